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
mod requests;
mod retiring;
mod transfer;
mod workload;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use coverage::{Coverage, Point};
pub use oracle::Broken;
pub use tiffin_core::sabotage::Sabotage;
use tiffin_sim_runner::panic_text;
use world::World;

/// What came out of one seed.
pub type Report = tiffin_sim_runner::Report<Broken, Coverage>;

/// How a broken rule was noticed.
pub type Caught = tiffin_sim_runner::Caught<Sabotage, Broken>;

/// Plays one seed. `keep_text` keeps a log for people, which takes much longer.
#[must_use]
pub fn run(seed: u64, sabotage: Sabotage, keep_text: bool) -> Report {
    let mut world = World::new(seed, sabotage, keep_text);
    let panicked = catch_unwind(AssertUnwindSafe(|| world.run())).err();
    let broken =
        world.oracle.broken.take().or_else(|| {
            panicked.map(|panic| Broken { invariant: "panic", what: panic_text(panic.as_ref()) })
        });
    Report {
        seed,
        events: world.events,
        digest: u128::from(world.log.hash()),
        coverage: std::mem::take(&mut world.coverage),
        broken,
        text: world.log.take_text(),
    }
}

/// Breaks one rule, and plays seeds from `start` on until that is noticed, at most `limit`.
#[must_use]
pub fn catch(sabotage: Sabotage, start: u64, limit: u64) -> Caught {
    tiffin_sim_runner::catch(sabotage, start, limit, |seed, sabotage| run(seed, sabotage, false).broken)
}
