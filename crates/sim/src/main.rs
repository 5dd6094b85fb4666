//! `tiffin-sim`: plays seeds, and says which of them break a promise.

mod progress;

use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use clap::Parser;
use progress::Progress;
use serde_json::json;
use tiffin_sim::{Coverage, Report, Sabotage, catch, run};

/// From this many seeds on, a case that was never tried is a failure.
const COVERING_SEEDS_MIN: u64 = 1000;
/// Seeds that a thread takes at a time.
const PIECE_SEEDS: u64 = 16;

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
    /// How many threads play [default: one per core]
    #[arg(long)]
    jobs: Option<u64>,
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
    let began = Instant::now();
    let mut progress = Progress::new("seeds", args.seeds);
    let mut coverage = Coverage::default();
    let (mut events, mut failed) = (0, 0);
    let next = AtomicU64::new(0);
    let (reports, results) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..jobs(args) {
            let reports = reports.clone();
            scope.spawn(|| play_pieces(args, &next, reports));
        }
        drop(reports);
        for (done, report) in (1..).zip(results) {
            write!(out, "{}", report.text)?;
            events += report.events;
            coverage.add(&report.coverage);
            if let Some(broken) = &report.broken {
                failed += 1;
                progress.clear();
                let seed = report.seed;
                match args.json {
                    true => {
                        let what = json!({"seed": seed, "invariant": broken.invariant, "what": broken.what});
                        writeln!(out, "{what}")?;
                    }
                    false => writeln!(out, "seed {seed} breaks {}: {}", broken.invariant, broken.what)?,
                }
            }
            progress.show(done, failed);
        }
        std::io::Result::Ok(())
    })?;
    progress.clear();
    let seconds = began.elapsed().as_secs_f64();
    let missing = coverage.missing();
    let covers = missing.is_empty() || args.seeds < COVERING_SEEDS_MIN || args.sabotage.is_some();
    if args.json {
        let counts: serde_json::Map<_, _> =
            coverage.counts().into_iter().map(|(name, count)| (name.to_owned(), json!(count))).collect();
        let summary = json!({
            "seeds": args.seeds, "start": args.start, "events": events, "failed": failed,
            "seconds": seconds, "coverage": counts, "missing": missing,
        });
        writeln!(out, "{summary}")?;
    } else {
        let rate = args.seeds as f64 / seconds.max(f64::EPSILON);
        let (seeds, start) = (args.seeds, args.start);
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

/// Takes pieces of what is left to play, until nothing is or nobody listens.
fn play_pieces(args: &Args, next: &AtomicU64, reports: mpsc::Sender<Report>) {
    loop {
        let first = next.fetch_add(PIECE_SEEDS, Ordering::Relaxed);
        if first >= args.seeds {
            return;
        }
        for place in first..(first + PIECE_SEEDS).min(args.seeds) {
            let seed = args.start.saturating_add(place);
            let report = run(seed, args.sabotage.unwrap_or_default(), args.log && place == 0);
            if reports.send(report).is_err() {
                return;
            }
        }
    }
}

fn print_table(args: &Args) -> std::io::Result<bool> {
    // Broken rules may trip the assertions of `core`; that is one way to notice them.
    std::panic::set_hook(Box::new(|_| ()));
    let mut progress = Progress::new("rules", Sabotage::ALL.len() as u64);
    let next = AtomicU64::new(0);
    let (rows, results) = mpsc::channel();
    let mut caught = Vec::new();
    thread::scope(|scope| {
        for _ in 0..jobs(args) {
            let (rows, next) = (rows.clone(), &next);
            scope.spawn(move || {
                while let Some(&rule) = Sabotage::ALL.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    _ = rows.send(catch(rule, args.start, args.seeds));
                }
            });
        }
        drop(rows);
        for row in results {
            caught.push(row);
            progress.show(caught.len() as u64, caught.iter().filter(|it| it.seeds.is_none()).count() as u64);
        }
    });
    progress.clear();
    caught.sort_by_key(|it| Sabotage::ALL.iter().position(|rule| *rule == it.sabotage));
    let mut out = std::io::stdout().lock();
    if args.json {
        let rows = caught.iter().map(|it| {
            let broken = it.broken.as_ref();
            json!({
                "variant": format!("{:?}", it.sabotage), "rule": it.sabotage.rule(), "seeds": it.seeds,
                "invariant": broken.map(|it| it.invariant), "what": broken.map(|it| &it.what),
            })
        });
        writeln!(out, "{}", json!(rows.collect::<Vec<_>>()))?;
    } else {
        writeln!(out, "| rule | broken variant | seeds until noticed | what broke |\n|---|---|---|---|")?;
        for it in &caught {
            let seeds = it.seeds.map_or_else(|| "not noticed".to_owned(), |seeds| seeds.to_string());
            let invariant = it.broken.as_ref().map_or("", |it| it.invariant);
            writeln!(out, "| {} | `{:?}` | {seeds} | {invariant} |", it.sabotage.rule(), it.sabotage)?;
        }
    }
    Ok(caught.iter().all(|it| it.seeds.is_some()))
}

fn jobs(args: &Args) -> u64 {
    let cores = || thread::available_parallelism().map_or(1, |it| it.get() as u64);
    args.jobs.unwrap_or_else(cores).max(1)
}

fn parse_sabotage(name: &str) -> Result<Sabotage, String> {
    let names: Vec<_> = Sabotage::ALL.iter().map(|it| format!("{it:?}")).collect();
    let found = Sabotage::ALL.iter().copied().zip(&names).find(|(_, known)| known.as_str() == name);
    found.map(|(it, _)| it).ok_or_else(|| format!("no such rule; there are {}", names.join(", ")))
}
