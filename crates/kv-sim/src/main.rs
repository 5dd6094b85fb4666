//! `tiffin-kv-sim`: plays seeds, and says which of them break an invariant.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use serde_json::json;
use tiffin_kv_sim::{Coverage, Sabotage, catch, run};

/// From this many seeds on, a case that was never tried is a failure.
const COVERING_SEEDS_MIN: u64 = 1000;

/// Plays engines of a KV hierarchy from seeds and checks every invariant after every event
#[derive(Debug, Parser)]
#[command(name = "tiffin-kv-sim", version)]
struct Args {
    /// How many seeds to play
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Break this rule on purpose
    #[arg(long, value_parser = parse_sabotage)]
    sabotage: Option<Sabotage>,
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

fn main() -> ExitCode {
    let args = Args::parse();
    // Broken rules may trip the assertions of the engine; that is one way to notice them.
    std::panic::set_hook(Box::new(|_| ()));
    // A closed pipe is no reason to fail: whoever reads has seen enough.
    let passed = if args.table { print_table(&args) } else { play(&args) };
    if passed.unwrap_or(true) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn play(args: &Args) -> std::io::Result<bool> {
    let mut out = std::io::stdout().lock();
    let began = Instant::now();
    let mut coverage = Coverage::default();
    let (mut events, mut failed) = (0, 0);
    for seed in args.start..args.start.saturating_add(args.seeds) {
        let report = run(seed, args.sabotage.unwrap_or_default(), args.log && seed == args.start);
        write!(out, "{}", report.text)?;
        events += report.events;
        coverage.add(&report.coverage);
        if let Some(broken) = report.broken {
            failed += 1;
            match args.json {
                true => {
                    writeln!(
                        out,
                        "{}",
                        json!({"seed": seed, "invariant": broken.invariant, "what": broken.what})
                    )?;
                }
                false => writeln!(out, "seed {seed} breaks {}: {}", broken.invariant, broken.what)?,
            }
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let missing = coverage.missing();
    let covers = missing.is_empty() || args.seeds < COVERING_SEEDS_MIN || args.sabotage.is_some();
    let (seeds, start) = (args.seeds, args.start);
    if args.json {
        let summary = json!({
            "seeds": seeds, "start": start, "events": events, "failed": failed,
            "seconds": seconds, "coverage": coverage.counts(), "missing": missing,
        });
        writeln!(out, "{summary}")?;
    } else {
        let rate = seeds as f64 / seconds.max(f64::EPSILON);
        writeln!(
            out,
            "{seeds} seeds from {start}: {events} events, {failed} failed ({rate:.0} seeds a second)"
        )?;
        if !missing.is_empty() {
            writeln!(out, "never exercised: {}", missing.join(", "))?;
        }
    }
    Ok(failed == 0 && covers)
}

fn print_table(args: &Args) -> std::io::Result<bool> {
    let mut out = std::io::stdout().lock();
    let caught: Vec<_> = Sabotage::ALL.iter().map(|rule| catch(*rule, args.start, args.seeds)).collect();
    if args.json {
        let rows = caught.iter().map(|it| {
            json!({
                "bug": format!("{:?}", it.sabotage), "breaks": it.sabotage.invariant(),
                "seen": it.sabotage.origin(),
                "seeds": it.seeds, "noticed": it.broken.as_ref().map(|it| &it.invariant),
            })
        });
        writeln!(out, "{}", json!(rows.collect::<Vec<_>>()))?;
    } else {
        writeln!(
            out,
            "| bug | breaks | seen in | seeds until noticed | noticed as |\n|---|---|---|---|---|"
        )?;
        for it in &caught {
            let (bug, origin) = (it.sabotage, it.sabotage.origin());
            let seeds = it.seeds.map_or_else(|| "not noticed".to_owned(), |seeds| seeds.to_string());
            let noticed = it.broken.as_ref().map_or("", |it| it.invariant.as_str());
            writeln!(out, "| `{bug:?}` | {} | {origin} | {seeds} | {noticed} |", bug.invariant())?;
        }
    }
    Ok(caught.iter().all(|it| it.seeds.is_some()))
}

fn parse_sabotage(name: &str) -> Result<Sabotage, String> {
    let names: Vec<_> = Sabotage::ALL.iter().map(|it| format!("{it:?}")).collect();
    let found = Sabotage::ALL.iter().copied().zip(&names).find(|(_, known)| known.as_str() == name);
    found.map(|(it, _)| it).ok_or_else(|| format!("no such rule; there are {}", names.join(", ")))
}
