//! Whole clusters in one thread, from one seed.
//!
//! The parties are the production state machines of `core`, `node` and `session`, and every message between
//! them is encoded by `proto`; only sockets, memory and clocks are simulated. The memory records the value
//! for which each of its units was last written, so a read that returns anything else is detected. A world
//! has one master or two, two to eight nodes, some of them with a disk, three to five clients, a few keys,
//! too little memory, and many faults; then the faults stop, and everything must end.
//!
//! [`run`] runs one seed. [`catch`] runs a mutant and returns the number of seeds until it was
//! noticed.
//!
//! **Invariant:** the same seed gives the same run.

mod answers;
mod client;
mod coverage;
mod decisions;
mod disk;
mod draining;
mod drains;
mod faults;
mod fetch;
mod foreigner;
mod invariants;
mod keyspace;
mod master;
mod memory;
mod network;
mod node;
mod oracle;
mod plan;
mod removals;
mod requests;
mod restarts;
mod run_log;
mod standby;
mod store;
mod transfer;
mod workload;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use coverage::{Coverage, Point};
pub use oracle::Violation;
use tiffin_sim_runner::panic_text;
pub use tiffin_types::mutant::Mutant;
use world::World;

/// The result of one seed.
pub type Report = tiffin_sim_runner::Report<Violation, Coverage>;

/// How a mutant was noticed.
pub type Caught = tiffin_sim_runner::Caught<Mutant, Violation>;

/// Runs one seed. `keep_text` keeps a readable log, which takes much longer.
#[must_use]
pub fn run(seed: u64, mutant: Mutant, keep_text: bool) -> Report {
    let mut world = World::new(seed, mutant, keep_text);
    let panicked = catch_unwind(AssertUnwindSafe(|| world.run())).err();
    let violation =
        world.oracle.violation.take().or_else(|| {
            panicked.map(|panic| Violation { invariant: "panic", what: panic_text(panic.as_ref()) })
        });
    Report {
        seed,
        events: world.events,
        digest: u128::from(world.log.hash()),
        coverage: std::mem::take(&mut world.coverage),
        violation,
        text: world.log.take_text(),
    }
}

/// Runs seeds from `start` on with a mutant until it is noticed, at most `limit`.
#[must_use]
pub fn catch(mutant: Mutant, start: u64, limit: u64) -> Caught {
    tiffin_sim_runner::catch(mutant, start, limit, |seed, mutant| run(seed, mutant, false).violation)
}
