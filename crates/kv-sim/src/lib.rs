//! Engines of a KV hierarchy on one or several ranks, in one thread and from one seed: the same seed gives
//! the same run, to the last byte.
//!
//! The content oracle is the main weapon: every page of the simulated memories holds a number that says what
//! was last written to it, copies read and write at any time between their issue and their end, and whatever
//! can be matched, is computed on or lies in the store is compared with what it must hold, after every
//! event. A wrong-KV bug of whatever kind becomes "this page holds something else".

mod chance;
mod coverage;
mod executor;
pub mod exhaustive;
mod invariants;
mod plan;
mod play;
mod truth;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use coverage::Coverage;
pub use tiffin_kv::sabotage::Sabotage;
pub use world::Broken;
use world::World;

/// What became of a seed.
#[derive(Clone, Debug)]
pub struct Report {
    /// Which one.
    pub seed: u64,
    /// How many events there were.
    pub events: u64,
    /// What was broken, if anything.
    pub broken: Option<Broken>,
    /// What was exercised.
    pub coverage: Coverage,
    /// A digest of the engines at the end.
    pub digest: u128,
    /// Everything that happened, if that was asked for.
    pub text: String,
}

/// Plays a seed.
#[must_use]
pub fn run(seed: u64, sabotage: Sabotage, keeps_log: bool) -> Report {
    let mut world = None;
    let played = catch_unwind(AssertUnwindSafe(|| {
        let world = world.insert(World::new(seed, sabotage, keeps_log)?);
        world.play()
    }));
    let broken = match played {
        Ok(played) => played.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            let text = text.unwrap_or_else(|| "a panic without words".to_owned());
            // An assertion of the engine names its invariant.
            let is_name =
                |word: &&str| matches!(word.as_bytes(), [b'K' | b'V' | b'O' | b'L' | b'C', _, b':']);
            let named =
                text.split_whitespace().find(is_name).unwrap_or("panic:").trim_end_matches(':').to_owned();
            Some(Broken::new(&named, text))
        }
    };
    let mut report =
        Report { seed, events: 0, broken, coverage: Coverage::default(), digest: 0, text: String::new() };
    if let Some(world) = world {
        report.events = world.events;
        report.digest = world.ranks.iter().fold(0, |digest, rank| digest ^ rank.engine.digest());
        report.coverage = world.coverage;
        report.text = world.log.unwrap_or_default();
    }
    report
}

/// How soon a broken rule was noticed.
#[derive(Clone, Debug)]
pub struct Caught {
    /// Which rule.
    pub sabotage: Sabotage,
    /// How many seeds that took, or none if it was not noticed.
    pub seeds: Option<u64>,
    /// What was noticed.
    pub broken: Option<Broken>,
}

/// Plays seeds with a broken rule until that is noticed.
#[must_use]
pub fn catch(sabotage: Sabotage, start: u64, seeds_max: u64) -> Caught {
    for count in 1..=seeds_max {
        let report = run(start + count - 1, sabotage, false);
        if report.broken.is_some() {
            return Caught { sabotage, seeds: Some(count), broken: report.broken };
        }
    }
    Caught { sabotage, seeds: None, broken: None }
}
