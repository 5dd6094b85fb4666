//! Ten thousand worlds, in which every promise holds; and the mutants, which are all noticed. The seeds are
//! split into parts for all cores; each part covers all cases.

use tiffin_sim::{Coverage, Mutant, catch, run};
use tiffin_sim_runner::CoverageCounts;

/// Number of seeds of each part; `tiffin-sim --seeds` runs any number.
const PART_SEEDS: u64 = 2000;
/// Minimum number of events of each world.
const EVENTS_MIN: u64 = 2000;
/// Maximum number of worlds until a mutant must be noticed.
const MUTANT_SEEDS_MAX: u64 = 6000;
/// The page whose table says which mutant is noticed after how many worlds.
const PAGE: &str = include_str!("../../../docs/simulation.md");
/// Number of tests for the mutants.
const MUTANT_PARTS: usize = 4;

fn keep_every_promise(part: u64) {
    let mut coverage = Coverage::default();
    let first = part * PART_SEEDS;
    for seed in first..first + PART_SEEDS {
        let report = run(seed, Mutant::None, false);
        assert_eq!(
            report.violation, None,
            "\n\nhint: `tiffin-sim --start {seed} --seeds 1 --log` shows the run"
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
            keep_every_promise($part);
        })*
    };
}

parts! {
    seeds_from_0_keep_every_promise = 0,
    seeds_from_2000_keep_every_promise = 1,
    seeds_from_4000_keep_every_promise = 2,
    seeds_from_6000_keep_every_promise = 3,
    seeds_from_8000_keep_every_promise = 4,
}

/// The seed of the world that notices a mutant, by the document.
fn documented_seed(mutant: Mutant) -> Option<u64> {
    let (_, row) = PAGE.split_once(&format!("| `{mutant:?}` | "))?;
    row.split(' ').next()?.parse::<u64>().ok()?.checked_sub(1)
}

/// Each mutant is tried in the world that the document names. If that one does not notice it any more,
/// because the worlds have changed, all worlds from the first are tried.
fn notice_mutants(part: usize) {
    let is_missed = |mutant: &Mutant| {
        let is_noticed = |start, count| catch(*mutant, start, count).seeds.is_some();
        !documented_seed(*mutant).is_some_and(|seed| is_noticed(seed, 1)) && !is_noticed(0, MUTANT_SEEDS_MAX)
    };
    let rules = Mutant::ALL.iter().skip(part).step_by(MUTANT_PARTS);
    let missed: Vec<_> = rules.copied().filter(is_missed).collect();
    assert_eq!(missed, [], "not noticed in {MUTANT_SEEDS_MAX} seeds");
}

#[test]
fn mutants_are_noticed_1() {
    notice_mutants(0);
}

#[test]
fn mutants_are_noticed_2() {
    notice_mutants(1);
}

#[test]
fn mutants_are_noticed_3() {
    notice_mutants(2);
}

#[test]
fn mutants_are_noticed_4() {
    notice_mutants(3);
}

#[test]
fn every_mutant_is_in_the_document() {
    let missing: Vec<_> =
        Mutant::ALL.iter().filter(|it| !PAGE.contains(&format!("| {} | `{it:?}` |", it.rule()))).collect();
    assert!(
        missing.is_empty(),
        "not in docs/simulation.md: {missing:?}\n\nhint: `make mutant-table` writes it"
    );
}
