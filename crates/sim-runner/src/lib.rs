//! What programs share that play simulated worlds from seeds: chance, how a broken rule is caught, and the
//! program itself, with its flags, all cores, progress, tables and JSON.
//!
//! A simulation says with [`Simulation`] how a seed is played; [`main`] does the rest.

mod chance;
mod play;
mod progress;
mod table;

use std::any::Any;
use std::fmt::Debug;
use std::process::ExitCode;

pub use chance::Chance;
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};
use serde_json::Value;

/// A promise that was not kept.
pub trait Breach: Clone + Debug + Send {
    /// The name of the promise.
    fn promise(&self) -> &str;

    /// What was seen.
    fn what(&self) -> &str;
}

/// What was exercised: a simulation that never met a case proves nothing about it.
pub trait Covered: Default + Send {
    /// Adds what happened elsewhere.
    fn add(&mut self, other: &Self);

    /// Each case, with how often it happened.
    fn counts(&self) -> Vec<(&'static str, u64)>;

    /// The cases that never happened.
    fn missing(&self) -> Vec<&'static str>;
}

/// What became of a seed.
#[derive(Clone, Debug)]
pub struct Report<B, C> {
    /// Which one.
    pub seed: u64,
    /// How many events there were.
    pub events: u64,
    /// The first promise that was broken, if any was.
    pub broken: Option<B>,
    /// What was exercised.
    pub coverage: C,
    /// A digest of what happened.
    pub digest: u128,
    /// Everything that happened, if it was asked for.
    pub text: String,
}

/// How a broken rule was noticed.
#[derive(Clone, Debug)]
pub struct Caught<R, B> {
    /// The rule.
    pub sabotage: R,
    /// How many seeds it took; nothing if it was not noticed.
    pub seeds: Option<u64>,
    /// The promise that broke.
    pub broken: Option<B>,
}

/// Breaks one rule, and plays seeds from `start` on until that is noticed, at most `limit`.
pub fn catch<R: Copy, B>(
    sabotage: R,
    start: u64,
    limit: u64,
    play: impl Fn(u64, R) -> Option<B>,
) -> Caught<R, B> {
    for seeds in 1..=limit {
        if let Some(broken) = play(start + seeds - 1, sabotage) {
            return Caught { sabotage, seeds: Some(seeds), broken: Some(broken) };
        }
    }
    Caught { sabotage, seeds: None, broken: None }
}

/// The words of a panic.
#[must_use]
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_else(|| "a panic without words".to_owned())
}

/// A simulation, as its program sees it.
pub trait Simulation {
    /// The rules that can be broken.
    type Rule: Copy + Debug + Default + PartialEq + Send + Sync + 'static;
    /// A promise that was not kept.
    type Broken: Breach;
    /// What was exercised.
    type Coverage: Covered;

    /// The name of the program.
    const NAME: &'static str;
    /// What it does, in a sentence.
    const ABOUT: &'static str;
    /// The rules that must be noticed when they are broken.
    const RULES: &'static [Self::Rule];
    /// What the columns of the table of rules are called.
    const COLUMNS: &'static [&'static str];

    /// Plays a seed. `keeps_log` keeps everything that happens, which takes longer.
    fn play(seed: u64, rule: Self::Rule, keeps_log: bool) -> Report<Self::Broken, Self::Coverage>;

    /// The cells of a row of that table.
    fn row(caught: &Caught<Self::Rule, Self::Broken>) -> Vec<String>;

    /// The same for programs.
    fn json(caught: &Caught<Self::Rule, Self::Broken>) -> Value;
}

/// The flags.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// How many seeds to play
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// How many threads play [default: one per core]
    #[arg(long)]
    jobs: Option<u64>,
    /// Break this rule on purpose
    #[arg(long, value_name = "RULE")]
    sabotage: Option<String>,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    /// Print everything that happens in the first seed
    #[arg(long)]
    log: bool,
    /// Break each rule in turn, and print how many seeds it takes until that is noticed (`--seeds` at most)
    #[arg(long, conflicts_with_all = ["sabotage", "log"])]
    table: bool,
}

/// What is to be played.
#[derive(Clone, Copy, Debug)]
struct Task<R> {
    seeds: u64,
    start: u64,
    jobs: u64,
    rule: Option<R>,
    json: bool,
    log: bool,
}

/// The program.
#[must_use]
pub fn main<S: Simulation>() -> ExitCode {
    let command = Args::command().name(S::NAME).about(S::ABOUT);
    let args = Args::from_arg_matches(&command.clone().get_matches()).unwrap_or_else(|error| error.exit());
    let rule = args.sabotage.as_deref().map(|name| {
        let found = S::RULES.iter().copied().find(|rule| format!("{rule:?}") == name);
        found.unwrap_or_else(|| {
            let names: Vec<_> = S::RULES.iter().map(|rule| format!("{rule:?}")).collect();
            let text = format!("there is no rule `{name}`\n\nhint: there are {}", names.join(", "));
            command.clone().error(ErrorKind::InvalidValue, text).exit()
        })
    });
    let cores = || std::thread::available_parallelism().map_or(1, |it| it.get() as u64);
    let task = Task {
        seeds: args.seeds,
        start: args.start,
        jobs: args.jobs.unwrap_or_else(cores).max(1),
        rule,
        json: args.json,
        log: args.log,
    };
    // A closed pipe is no reason to fail: whoever reads has seen enough.
    let passed = if args.table { table::print::<S>(&task) } else { play::play::<S>(&task) };
    if passed.unwrap_or(true) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_rule_is_caught_at_the_first_seed_that_shows_it() {
        let shows = |seed, rule: u64| (seed >= rule).then_some("broken");
        let caught = catch(7, 3, 100, shows);
        assert_eq!((caught.seeds, caught.broken), (Some(5), Some("broken")));
        assert_eq!(catch(7, 0, 7, shows).seeds, None);
    }

    #[test]
    fn a_panic_has_words_whatever_it_was_made_of() {
        let words = |panic: fn()| panic_text(std::panic::catch_unwind(panic).unwrap_err().as_ref());
        assert_eq!(words(|| panic!("plain")), "plain");
        assert_eq!(words(|| panic!("made of {}", 2)), "made of 2");
        assert_eq!(words(|| std::panic::panic_any(7)), "a panic without words");
    }
}
