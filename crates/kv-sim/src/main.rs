//! `tiffin-kv-sim`: runs seeds, and reports those that violate an invariant.

use std::process::ExitCode;

use serde_json::{Value, json};
use tiffin_kv_sim::{Caught, Coverage, Mutant, Report, Violation};
use tiffin_sim_runner::Simulation;

/// The simulation of engines of a KV hierarchy.
struct Engines;

impl Simulation for Engines {
    type Mutant = Mutant;
    type Violation = Violation;
    type Coverage = Coverage;

    const NAME: &'static str = "tiffin-kv-sim";
    const ABOUT: &'static str =
        "Runs engines of a KV hierarchy from seeds and checks every invariant after every event";
    const MUTANTS: &'static [Mutant] = Mutant::ALL;
    const COLUMNS: &'static [&'static str] =
        &["bug", "breaks", "seen in", "seeds until noticed", "noticed as"];

    fn run(seed: u64, rule: Mutant, keeps_log: bool) -> Report {
        tiffin_kv_sim::run(seed, rule, keeps_log)
    }

    fn row(caught: &Caught) -> Vec<String> {
        let bug = caught.mutant;
        let seeds = caught.seeds.map_or_else(|| "not noticed".to_owned(), |seeds| seeds.to_string());
        let noticed = caught.violation.as_ref().map_or("", |it| it.invariant.as_str());
        vec![format!("`{bug:?}`"), bug.rule().to_owned(), bug.origin().to_owned(), seeds, noticed.to_owned()]
    }

    fn json(caught: &Caught) -> Value {
        json!({
            "bug": format!("{:?}", caught.mutant), "breaks": caught.mutant.rule(),
            "seen": caught.mutant.origin(), "what": caught.mutant.what().trim(),
            "seeds": caught.seeds, "noticed": caught.violation.as_ref().map(|it| &it.invariant),
        })
    }
}

fn main() -> ExitCode {
    // A failed assertion of the engine is reported with its seed instead.
    std::panic::set_hook(Box::new(|_| ()));
    tiffin_sim_runner::main::<Engines>()
}
