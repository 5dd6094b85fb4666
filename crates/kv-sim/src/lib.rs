//! A simulation of KV engines on one or several ranks, in one thread and from one seed: the same seed gives
//! an identical run.
//!
//! The content oracle finds most faults. Every page of the simulated memories contains a number that
//! identifies what was last written to it, and operations read and write at any time between their issue and
//! their end. After every event, all pages that can be matched, are computed on or are in the store are
//! compared with their expected content. So every bug that mixes up pages is reported as a wrong content.

mod coverage;
mod events;
mod executor;
pub mod exhaustive;
mod invariants;
mod oracle;
mod plan;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use coverage::Coverage;
pub use tiffin_kv::mutant::Mutant;
use tiffin_sim_runner::panic_text;
pub use world::Violation;
use world::World;

/// The result of a seed.
pub type Report = tiffin_sim_runner::Report<Violation, Coverage>;

/// How soon a mutant was noticed.
pub type Caught = tiffin_sim_runner::Caught<Mutant, Violation>;

/// Runs a seed.
#[must_use]
pub fn run(seed: u64, mutant: Mutant, keeps_log: bool) -> Report {
    let mut world = None;
    let run = catch_unwind(AssertUnwindSafe(|| {
        let world = world.insert(World::new(seed, mutant, keeps_log)?);
        world.run()
    }));
    let violation = match run {
        Ok(result) => result.err(),
        Err(panic) => {
            let text = panic_text(panic.as_ref());
            // An assertion of the engine starts with the id of its invariant.
            let is_name =
                |word: &&str| matches!(word.as_bytes(), [b'K' | b'V' | b'O' | b'L' | b'C', _, b':']);
            let named =
                text.split_whitespace().find(is_name).unwrap_or("panic:").trim_end_matches(':').to_owned();
            Some(Violation::new(&named, text))
        }
    };
    let mut report =
        Report { seed, events: 0, violation, coverage: Coverage::default(), digest: 0, text: String::new() };
    if let Some(world) = world {
        report.events = world.events;
        report.digest = world.ranks.iter().fold(0, |digest, rank| digest ^ rank.engine.digest());
        report.coverage = world.coverage;
        report.text = world.log.unwrap_or_default();
    }
    report
}

/// Runs seeds with a mutant until it is noticed.
#[must_use]
pub fn catch(mutant: Mutant, start: u64, seeds_max: u64) -> Caught {
    tiffin_sim_runner::catch(mutant, start, seeds_max, |seed, mutant| run(seed, mutant, false).violation)
}
