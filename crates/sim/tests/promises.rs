//! A thousand worlds, in which every promise holds; and worlds with a broken rule each, in which that is
//! noticed.

use tiffin_sim::{Coverage, Sabotage, catch, run};

/// As many as the continuous integration plays; `tiffin-sim --seeds` plays any number.
const SEEDS: u64 = 1000;
/// What each world must at least go through.
const EVENTS_MIN: u64 = 2000;
/// How many worlds a broken rule may survive.
const SABOTAGE_SEEDS_MAX: u64 = 1000;

#[test]
fn a_thousand_seeds_keep_every_promise_and_leave_no_case_untried() {
    let mut coverage = Coverage::default();
    for seed in 0..SEEDS {
        let report = run(seed, Sabotage::None, false);
        assert_eq!(
            report.broken, None,
            "\n\nhint: `tiffin-sim --start {seed} --seeds 1 --log` shows the run"
        );
        assert!(report.events >= EVENTS_MIN, "seed {seed} had {} events", report.events);
        coverage.add(&report.coverage);
    }
    assert_eq!(coverage.missing(), Vec::<&str>::new(), "never exercised in {SEEDS} seeds");
}

#[test]
fn every_broken_rule_is_noticed() {
    let caught = Sabotage::ALL.into_iter().map(|sabotage| catch(sabotage, 0, SABOTAGE_SEEDS_MAX));
    let missed: Vec<_> = caught.filter(|it| it.seeds.is_none()).map(|it| it.sabotage).collect();
    assert_eq!(missed, [], "not noticed in {SABOTAGE_SEEDS_MAX} seeds");
}
