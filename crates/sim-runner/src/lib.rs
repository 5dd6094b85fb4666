//! Common parts of programs that run simulations from seeds: random numbers, detection of mutants, and the
//! program itself, with its flags, all cores, progress, tables and JSON.
//!
//! A simulation implements [`Simulation`]; [`main`] does the rest.

mod progress;
mod rng;
mod run_seeds;
mod table;

use std::any::Any;
use std::fmt::Debug;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};
pub use rng::Rng;
use serde_json::Value;

/// A violated promise.
pub trait RuleViolation: Clone + Debug + Send {
    /// The id of the promise.
    fn promise(&self) -> &str;

    /// The observed violation.
    fn what(&self) -> &str;
}

/// Counts of the cases that occurred: a case that never occurs is not tested.
pub trait CoverageCounts: Default + Send {
    /// Adds the counts of another run.
    fn add(&mut self, other: &Self);

    /// Each case, with the number of times it occurred.
    fn counts(&self) -> Vec<(&'static str, u64)>;

    /// The cases that never occurred.
    fn missing(&self) -> Vec<&'static str>;
}

/// The result of a seed.
#[derive(Clone, Debug)]
pub struct Report<B, C> {
    /// The seed.
    pub seed: u64,
    /// Number of events.
    pub events: u64,
    /// The first violation, if any.
    pub violation: Option<B>,
    /// The cases that occurred.
    pub coverage: C,
    /// A digest of the run.
    pub digest: u128,
    /// The log, if it was requested.
    pub text: String,
}

/// How a mutant was noticed.
#[derive(Clone, Debug)]
pub struct Caught<R, B> {
    /// The mutant.
    pub mutant: R,
    /// Number of seeds until it was noticed; none if it was not.
    pub seeds: Option<u64>,
    /// The violation by which it was noticed.
    pub violation: Option<B>,
}

/// Runs seeds from `start` on with a mutant until it is noticed, at most `limit`.
pub fn catch<R: Copy, B>(
    mutant: R,
    start: u64,
    limit: u64,
    run: impl Fn(u64, R) -> Option<B>,
) -> Caught<R, B> {
    for seeds in 1..=limit {
        if let Some(violation) = run(start + seeds - 1, mutant) {
            return Caught { mutant, seeds: Some(seeds), violation: Some(violation) };
        }
    }
    Caught { mutant, seeds: None, violation: None }
}

/// The message of a panic.
#[must_use]
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_else(|| "a panic without a message".to_owned())
}

/// A simulation, as used by its program.
pub trait Simulation {
    /// The mutants.
    type Mutant: Copy + Debug + Default + PartialEq + Send + Sync + 'static;
    /// A violated promise.
    type Violation: RuleViolation;
    /// The cases that occurred.
    type Coverage: CoverageCounts;

    /// The name of the program.
    const NAME: &'static str;
    /// Description of the program, in a sentence.
    const ABOUT: &'static str;
    /// The mutants that must be noticed.
    const MUTANTS: &'static [Self::Mutant];
    /// Column titles of the table of mutants.
    const COLUMNS: &'static [&'static str];

    /// Runs a seed. `keeps_log` records every event, which takes longer.
    fn run(seed: u64, mutant: Self::Mutant, keeps_log: bool) -> Report<Self::Violation, Self::Coverage>;

    /// The cells of a row of that table.
    fn row(caught: &Caught<Self::Mutant, Self::Violation>) -> Vec<String>;

    /// The same as JSON.
    fn json(caught: &Caught<Self::Mutant, Self::Violation>) -> Value;
}

/// The command-line flags.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Number of seeds to run
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Number of threads [default: one per core]
    #[arg(long)]
    jobs: Option<u64>,
    /// Run this mutant
    #[arg(long, value_name = "RULE")]
    mutant: Option<String>,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    /// Print the log of the first seed
    #[arg(long)]
    log: bool,
    /// Run every mutant, and print how many seeds it takes until it is noticed (`--seeds` at most)
    #[arg(long, conflicts_with_all = ["mutant", "log"])]
    table: bool,
}

/// The seeds to run, and how.
#[derive(Clone, Copy, Debug)]
struct RunOptions<R> {
    seeds: u64,
    start: u64,
    jobs: u64,
    mutant: Option<R>,
    json: bool,
    log: bool,
}

/// The main function of the program.
#[must_use]
pub fn main<S: Simulation>() -> ExitCode {
    let command = Args::command().name(S::NAME).about(S::ABOUT);
    let args = Args::from_arg_matches(&command.clone().get_matches()).unwrap_or_else(|error| error.exit());
    let mutant = args.mutant.as_deref().map(|name| {
        let found = S::MUTANTS.iter().copied().find(|mutant| format!("{mutant:?}") == name);
        found.unwrap_or_else(|| {
            let names: Vec<_> = S::MUTANTS.iter().map(|mutant| format!("{mutant:?}")).collect();
            let text = format!("unknown mutant `{name}`\n\nhint: choose one of {}", names.join(", "));
            command.clone().error(ErrorKind::InvalidValue, text).exit()
        })
    });
    let cores = || std::thread::available_parallelism().map_or(1, |it| it.get() as u64);
    let options = RunOptions {
        seeds: args.seeds,
        start: args.start,
        jobs: args.jobs.unwrap_or_else(cores).max(1),
        mutant,
        json: args.json,
        log: args.log,
    };
    // A closed pipe is not a failure: the reader has seen enough.
    let passed = if args.table { table::print::<S>(&options) } else { run_seeds::run_seeds::<S>(&options) };
    if passed.unwrap_or(true) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutant_is_caught_at_the_first_seed_that_shows_it() {
        let shows = |seed, mutant: u64| (seed >= mutant).then_some("violation");
        let caught = catch(7, 3, 100, shows);
        assert_eq!((caught.seeds, caught.violation), (Some(5), Some("violation")));
        assert_eq!(catch(7, 0, 7, shows).seeds, None);
    }

    #[test]
    fn panic_message_is_found_for_every_payload() {
        let words = |panic: fn()| panic_text(std::panic::catch_unwind(panic).unwrap_err().as_ref());
        assert_eq!(words(|| panic!("plain")), "plain");
        assert_eq!(words(|| panic!("made of {}", 2)), "made of 2");
        assert_eq!(words(|| std::panic::panic_any(7)), "a panic without a message");
    }
}
