//! Whole clusters in one thread, from one seed.
//!
//! The parties are the production state machines of `core`, and every message between them goes through
//! `proto`; only sockets, memory and clocks are simulated. The memory knows for which value each of its
//! units was last written, so a read that returns anything else is found out. One master, two or three
//! nodes, some of them with a disk, three to five clients, a few keys, too little memory, and a storm of
//! faults; then calm, in which everything must come to rest.
//!
//! [`run`] plays one seed. [`catch`] breaks a rule of `core` and says how many seeds it took until that was
//! noticed.
//!
//! **Invariant:** the same seed gives the same run, to the last byte.

mod chance;
mod client;
mod coverage;
mod deciding;
mod disk;
mod faults;
mod invariants;
mod log;
mod master;
mod memory;
mod names;
mod network;
mod node;
mod oracle;
mod plan;
mod transfer;
mod workload;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use coverage::{Coverage, Point};
pub use oracle::Broken;
pub use tiffin_core::sabotage::Sabotage;
use world::World;

/// What came out of one seed.
#[derive(Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// How many events there were.
    pub events: u64,
    /// A digest of everything that happened.
    pub digest: u64,
    /// What was exercised.
    pub coverage: Coverage,
    /// The first promise that was broken, if any was.
    pub broken: Option<Broken>,
    /// Everything that happened, if it was asked for.
    pub text: String,
}

/// Plays one seed. `keep_text` keeps a log for people, which takes much longer.
#[must_use]
pub fn run(seed: u64, sabotage: Sabotage, keep_text: bool) -> Report {
    let mut world = World::new(seed, sabotage, keep_text);
    let panicked = catch_unwind(AssertUnwindSafe(|| world.run())).err();
    let broken = world.oracle.broken.take().or_else(|| {
        panicked.map(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).to_owned()));
            Broken { invariant: "panic", what: text.unwrap_or_default() }
        })
    });
    Report {
        seed,
        events: world.events,
        digest: world.log.hash(),
        coverage: std::mem::take(&mut world.coverage),
        broken,
        text: world.log.take_text(),
    }
}

/// How a broken rule was noticed.
#[derive(Clone, Debug)]
pub struct Caught {
    /// The rule.
    pub sabotage: Sabotage,
    /// How many seeds it took; nothing if it was not noticed.
    pub seeds: Option<u64>,
    /// The promise that broke.
    pub broken: Option<Broken>,
}

/// Breaks one rule, and plays seeds from `start` on until that is noticed, at most `limit`.
#[must_use]
pub fn catch(sabotage: Sabotage, start: u64, limit: u64) -> Caught {
    for seeds in 1..=limit {
        let report = run(start + seeds - 1, sabotage, false);
        if report.broken.is_some() {
            return Caught { sabotage, seeds: Some(seeds), broken: report.broken };
        }
    }
    Caught { sabotage, seeds: None, broken: None }
}
