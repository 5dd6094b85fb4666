//! The simulation is deterministic: the same seed gives the same run.

use tiffin_sim::{Mutant, run};

#[test]
fn same_seed_gives_the_same_log() {
    for seed in 0..5 {
        let (once, twice) = (run(seed, Mutant::None, true), run(seed, Mutant::None, true));
        assert!(once.text.len() > 100_000, "seed {seed} has almost no log");
        assert!(once.text == twice.text, "seed {seed} gives two different logs");
        assert_eq!(once.digest, twice.digest);
    }
}

#[test]
fn log_does_not_change_the_run_and_seeds_differ() {
    let digests: Vec<_> = (0..30).map(|seed| run(seed, Mutant::None, false).digest).collect();
    for (seed, digest) in (0..).zip(&digests) {
        assert_eq!(run(seed, Mutant::None, true).digest, *digest, "seed {seed}");
    }
    let mut different = digests.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), digests.len());
}
