//! Plays the log on a simulated disk from seeds, and proves that the simulation detects every mutant.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tiffin_ssd::Mutant;

use crate::support::{fill, play};

const EVENTS: u64 = 3000;

/// The number of seeds that fill a log without faults, and of those that are tried for a mutant.
const FILLS: u64 = 12;
const FILLS_BROKEN: u64 = 2;

/// Events that must occur in some seed, or the simulation proves little.
const COVERED: &[&str] = &[
    "append",
    "append busy",
    "append cancelled",
    "append failed",
    "append full",
    "append stale",
    "append timed out",
    "append too large",
    "bit flip",
    "Corrupt",
    "damaged part",
    "crash",
    "cut append",
    "cut recovered",
    "disk failed",
    "disk says Io",
    "disk says NoSpace",
    "disk says ReadOnly",
    "disk says Vanished",
    "Evicted",
    "flush",
    "forget",
    "forget not sure",
    "lost completion",
    "mark",
    "mark not sure",
    "mark refused",
    "read",
    "read cancelled",
    "read corrupt",
    "read failed",
    "read gone",
    "read timed out",
    "recovered",
    "recovered bad records",
    "recovered several generations",
    "scanned several segments",
    "Superseded",
    "spanning append",
    "spanning Corrupt",
    "spanning cut off",
    "spanning Evicted",
    "spanning read",
    "spanning recovered",
    "spanning Superseded",
    "unreadable sector",
];

#[test]
fn answers_hold_through_faults_and_crashes() {
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for seed in 0..30 {
        match play(seed, Mutant::None, EVENTS) {
            Ok(more) => more.into_iter().for_each(|(what, count)| *seen.entry(what).or_default() += count),
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    for what in COVERED {
        assert!(seen.contains_key(*what), "`{what}` never happened; this did: {seen:#?}");
    }
}

#[test]
fn log_evicts_only_when_nearly_full() {
    for seed in 0..FILLS {
        if let Err(error) = fill(seed, Mutant::None) {
            panic!("seed {seed}: {error}");
        }
    }
}

/// What may detect a mutant, with its seed.
#[derive(Clone, Copy)]
enum Run {
    Fill(u64),
    Play(u64),
}

impl Run {
    fn detects(self, mutant: Mutant) -> bool {
        match self {
            Self::Fill(seed) => fill(seed, mutant).is_err(),
            Self::Play(seed) => play(seed, mutant, EVENTS).is_err(),
        }
    }
}

/// Mutants that the first play does not detect, and a run that did; it is tried first.
const DETECTED_BY: &[(Mutant, Run)] = &[
    (Mutant::AnswerBeforeSuperseded, Run::Play(5)),
    (Mutant::CarryForgotten, Run::Play(1)),
    (Mutant::EraseBeforeCarried, Run::Play(41)),
    (Mutant::HeadBeforeParts, Run::Play(26)),
    (Mutant::IgnoreFailedSync, Run::Play(84)),
    (Mutant::PadSegments, Run::Fill(0)),
    (Mutant::PreferOlder, Run::Play(5)),
    (Mutant::ReuseUnderReaders, Run::Play(36)),
    (Mutant::WriteBeforeHead, Run::Play(3)),
];

#[test]
fn every_mutant_is_detected() {
    // Panics of mutants are expected.
    std::panic::set_hook(Box::new(|_| {}));
    let next = AtomicUsize::new(0);
    let unnoticed = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(mutant) = Mutant::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let known = DETECTED_BY.iter().find(|it| it.0 == *mutant);
                    let first = known.map_or(Run::Play(0), |it| it.1);
                    let others = (0..FILLS_BROKEN).map(Run::Fill).chain((0..80).map(Run::Play));
                    if !std::iter::once(first).chain(others).any(|run| run.detects(*mutant)) {
                        unnoticed.lock().unwrap().push(*mutant);
                    }
                }
            });
        }
    });
    drop(std::panic::take_hook());
    assert_eq!(unnoticed.into_inner().unwrap(), [], "these mutants were not detected");
}
