//! `tiffin-sim`: runs seeds, and reports those that violate a promise.

use std::process::ExitCode;

use serde_json::{Value, json};
use tiffin_sim::{Caught, Coverage, Mutant, Report, Violation};
use tiffin_sim_runner::Simulation;

/// The simulation of whole clusters.
struct Clusters;

impl Simulation for Clusters {
    type Mutant = Mutant;
    type Violation = Violation;
    type Coverage = Coverage;

    const NAME: &'static str = "tiffin-sim";
    const ABOUT: &'static str = "Runs whole clusters from seeds and checks the promises after every step";
    const MUTANTS: &'static [Mutant] = Mutant::ALL;
    const COLUMNS: &'static [&'static str] = &["rule", "mutant", "seeds until noticed", "violated promise"];

    fn run(seed: u64, rule: Mutant, keeps_log: bool) -> Report {
        tiffin_sim::run(seed, rule, keeps_log)
    }

    fn row(caught: &Caught) -> Vec<String> {
        let seeds = caught.seeds.map_or_else(|| "not noticed".to_owned(), |seeds| seeds.to_string());
        let promise = caught.violation.as_ref().map_or("", |it| it.invariant);
        let rule = caught.mutant;
        vec![rule.rule().to_owned(), format!("`{rule:?}`"), seeds, promise.to_owned()]
    }

    fn json(caught: &Caught) -> Value {
        let violation = caught.violation.as_ref();
        json!({
            "variant": format!("{:?}", caught.mutant), "rule": caught.mutant.rule(),
            "seeds": caught.seeds, "invariant": violation.map(|it| it.invariant),
            "what": violation.map(|it| &it.what),
        })
    }
}

fn main() -> ExitCode {
    tiffin_sim_runner::main::<Clusters>()
}
