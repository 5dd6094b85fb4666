//! `tiffin-sim`: plays seeds, and says which of them break a promise.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use serde_json::json;
use tiffin_sim::{Coverage, Sabotage, run, table};

/// Plays whole clusters from seeds and checks the promises after every step
#[derive(Debug, Parser)]
#[command(name = "tiffin-sim", version)]
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
    // A closed pipe is no reason to fail: whoever reads has seen enough.
    let passed = match args.table {
        true => print_table(&args),
        false => play(&args),
    };
    if passed.unwrap_or(true) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn play(args: &Args) -> std::io::Result<bool> {
    let mut out = std::io::stdout().lock();
    let mut coverage = Coverage::default();
    let (mut events, mut failed) = (0, 0);
    for seed in args.start..args.start.saturating_add(args.seeds) {
        let report = run(seed, args.sabotage.unwrap_or_default(), args.log && seed == args.start);
        write!(out, "{}", report.text)?;
        events += report.events;
        coverage.add(&report.coverage);
        if let Some(broken) = &report.broken {
            failed += 1;
            match args.json {
                true => writeln!(
                    out,
                    "{}",
                    json!({"seed": seed, "invariant": broken.invariant, "what": broken.what})
                )?,
                false => writeln!(out, "seed {seed} breaks {}: {}", broken.invariant, broken.what)?,
            }
        }
        let done = seed - args.start + 1;
        if done.is_multiple_of(100) {
            eprintln!("{done} of {} seeds, {events} events, {failed} failed", args.seeds);
        }
    }
    let missing = coverage.missing();
    if args.json {
        let counts: serde_json::Map<_, _> =
            coverage.counts().into_iter().map(|(name, count)| (name.to_owned(), json!(count))).collect();
        let summary = json!({
            "seeds": args.seeds, "start": args.start, "events": events, "failed": failed,
            "coverage": counts, "missing": missing,
        });
        writeln!(out, "{summary}")?;
    } else {
        writeln!(out, "{} seeds from {}: {events} events, {failed} failed", args.seeds, args.start)?;
        if !missing.is_empty() {
            writeln!(out, "never exercised: {}", missing.join(", "))?;
        }
    }
    Ok(failed == 0)
}

fn print_table(args: &Args) -> std::io::Result<bool> {
    // Broken rules may trip the assertions of `core`; that is one way to notice them.
    std::panic::set_hook(Box::new(|_| ()));
    let mut out = std::io::stdout().lock();
    let caught = table(args.start, args.seeds);
    if args.json {
        let rows = caught.iter().map(|it| {
            let broken = it.broken.as_ref();
            json!({
                "rule": format!("{:?}", it.sabotage), "seeds": it.seeds,
                "invariant": broken.map(|it| it.invariant), "what": broken.map(|it| &it.what),
            })
        });
        writeln!(out, "{}", json!(rows.collect::<Vec<_>>()))?;
    } else {
        writeln!(out, "| broken rule | seeds needed | promise that broke |\n|---|---|---|")?;
        for it in &caught {
            let seeds = it.seeds.map_or_else(|| "not noticed".to_owned(), |seeds| seeds.to_string());
            let invariant = it.broken.as_ref().map_or("", |it| it.invariant);
            writeln!(out, "| {:?} | {seeds} | {invariant} |", it.sabotage)?;
        }
    }
    Ok(caught.iter().all(|it| it.seeds.is_some()))
}

fn parse_sabotage(name: &str) -> Result<Sabotage, String> {
    let names: Vec<_> = Sabotage::ALL.iter().map(|it| format!("{it:?}")).collect();
    let found = Sabotage::ALL.into_iter().zip(&names).find(|(_, known)| known.as_str() == name);
    found.map(|(it, _)| it).ok_or_else(|| format!("no such rule; there are {}", names.join(", ")))
}
