//! Thousands of seeds, in which every invariant holds after every event; and the mutants, which are all
//! noticed. The seeds are split into parts for all cores; each part covers all cases.

use tiffin_kv_sim::{Coverage, Mutant, catch, run};
use tiffin_sim_runner::CoverageCounts;

/// Number of seeds of each part; `tiffin-kv-sim --seeds` runs any number.
const PART_SEEDS: u64 = 1000;
/// Minimum number of events of each seed.
const EVENTS_MIN: u64 = 150;
/// Maximum number of seeds until a mutant must be noticed.
const MUTANT_SEEDS_MAX: u64 = 3000;

fn keep_every_invariant(part: u64) {
    let mut coverage = Coverage::default();
    let first = part * PART_SEEDS;
    for seed in first..first + PART_SEEDS {
        let report = run(seed, Mutant::None, false);
        assert_eq!(
            report.violation, None,
            "\n\nhint: `tiffin-kv-sim --start {seed} --seeds 1 --log` shows the run"
        );
        assert!(report.events >= EVENTS_MIN, "seed {seed} had {} events", report.events);
        coverage.add(&report.coverage);
    }
    assert_eq!(coverage.missing(), Vec::<&str>::new(), "never exercised in {PART_SEEDS} seeds from {first}");
}

macro_rules! parts {
    ($($name:ident = $part:literal,)*) => {
        $(#[test]
        fn $name() {
            keep_every_invariant($part);
        })*
    };
}

parts! {
    seeds_from_0_keep_every_invariant = 0,
    seeds_from_1000_keep_every_invariant = 1,
    seeds_from_2000_keep_every_invariant = 2,
    seeds_from_3000_keep_every_invariant = 3,
    seeds_from_4000_keep_every_invariant = 4,
    seeds_from_5000_keep_every_invariant = 5,
    seeds_from_6000_keep_every_invariant = 6,
    seeds_from_7000_keep_every_invariant = 7,
    seeds_from_8000_keep_every_invariant = 8,
    seeds_from_9000_keep_every_invariant = 9,
}

#[test]
fn every_mutant_is_noticed() {
    // Mutants fail assertions of the engine; their messages are not printed.
    std::panic::set_hook(Box::new(|_| ()));
    let caught = Mutant::ALL.iter().map(|mutant| catch(*mutant, 0, MUTANT_SEEDS_MAX));
    let missed: Vec<_> = caught.filter(|it| it.seeds.is_none()).map(|it| it.mutant).collect();
    drop(std::panic::take_hook());
    assert_eq!(missed, [], "not noticed in {MUTANT_SEEDS_MAX} seeds");
}

#[test]
fn every_mutant_is_in_the_document() {
    let page = include_str!("../../../docs/kv.md");
    let missing: Vec<_> = Mutant::ALL.iter().filter(|it| !page.contains(&format!("| `{it:?}` |"))).collect();
    assert!(missing.is_empty(), "not in docs/kv.md: {missing:?}\n\nhint: `make kv-mutants` writes it");
    let row = |rule: &str| page.lines().find(|line| line.starts_with(&format!("| {rule} |")));
    let unnamed: Vec<_> = Mutant::ALL
        .iter()
        .filter(|it| !row(it.rule()).is_some_and(|row| row.contains(&format!("`{it:?}`"))))
        .collect();
    assert!(unnamed.is_empty(), "not listed with their invariant in docs/kv.md: {unnamed:?}");
    let count = format!("{0} of {0}", Mutant::ALL.len());
    let readme = include_str!("../../../README.md");
    assert!(readme.contains(&count), "the README should say that {count} bugs are noticed");
}

#[test]
fn same_seed_gives_the_same_log() {
    for seed in 0..5 {
        let (once, twice) = (run(seed, Mutant::None, true), run(seed, Mutant::None, true));
        assert!(once.text.len() > 10_000, "seed {seed} has almost no log");
        assert!(once.text == twice.text, "seed {seed} gives two different logs");
        assert_eq!(run(seed, Mutant::None, false).digest, once.digest, "keeping the log changes the run");
    }
}
