//! Runs seeds on all cores, and reports those that violate a promise.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use serde_json::json;

use crate::progress::Progress;
use crate::{CoverageCounts, Report, RuleViolation, RunOptions, Simulation};

/// From this many seeds on, a case that never occurred is a failure.
const COVERING_SEEDS_MIN: u64 = 1000;
/// Number of seeds that a thread takes at a time.
const BATCH_SEEDS: u64 = 16;

/// Results of all seeds.
struct Totals<C> {
    coverage: C,
    events: u64,
    failed: u64,
    seconds: f64,
}

/// True if there is no violation and, with enough seeds, every case occurred.
pub(crate) fn run_seeds<S: Simulation>(options: &RunOptions<S::Mutant>) -> std::io::Result<bool> {
    let mut out = std::io::stdout().lock();
    let began = Instant::now();
    let mut progress = Progress::new("seeds", options.seeds);
    let mut totals = Totals { coverage: S::Coverage::default(), events: 0, failed: 0, seconds: 0.0 };
    let next = AtomicU64::new(0);
    let (reports, results) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..options.jobs {
            let (reports, next) = (reports.clone(), &next);
            scope.spawn(move || run_batches::<S>(options, next, &reports));
        }
        drop(reports);
        for (done, report) in (1..).zip(results) {
            write!(out, "{}", report.text)?;
            totals.events += report.events;
            totals.coverage.add(&report.coverage);
            if let Some(violation) = &report.violation {
                totals.failed += 1;
                progress.clear();
                let (seed, promise, what) = (report.seed, violation.promise(), violation.what());
                match options.json {
                    true => writeln!(out, "{}", json!({"seed": seed, "invariant": promise, "what": what}))?,
                    false => writeln!(out, "seed {seed} breaks {promise}: {what}")?,
                }
            }
            progress.show(done, totals.failed);
        }
        std::io::Result::Ok(())
    })?;
    progress.clear();
    totals.seconds = began.elapsed().as_secs_f64();
    summarize(options, &totals, &mut out)?;
    let covers = totals.coverage.missing().is_empty()
        || options.seeds < COVERING_SEEDS_MIN
        || options.mutant.is_some();
    Ok(totals.failed == 0 && covers)
}

/// Runs batches of the remaining seeds, until none is left or the receiver is gone.
fn run_batches<S: Simulation>(
    options: &RunOptions<S::Mutant>,
    next: &AtomicU64,
    reports: &mpsc::Sender<Report<S::Violation, S::Coverage>>,
) {
    loop {
        let first = next.fetch_add(BATCH_SEEDS, Ordering::Relaxed);
        if first >= options.seeds {
            return;
        }
        for index in first..(first + BATCH_SEEDS).min(options.seeds) {
            let seed = options.start.saturating_add(index);
            let report = S::run(seed, options.mutant.unwrap_or_default(), options.log && index == 0);
            if reports.send(report).is_err() {
                return;
            }
        }
    }
}

fn summarize<R, C: CoverageCounts>(
    options: &RunOptions<R>,
    totals: &Totals<C>,
    out: &mut impl Write,
) -> std::io::Result<()> {
    let RunOptions { seeds, start, .. } = options;
    let Totals { events, failed, seconds, coverage } = totals;
    let missing = coverage.missing();
    if options.json {
        let counts: serde_json::Map<_, _> =
            coverage.counts().into_iter().map(|(name, count)| (name.to_owned(), json!(count))).collect();
        let summary = json!({
            "seeds": seeds, "start": start, "events": events, "failed": failed,
            "seconds": seconds, "coverage": counts, "missing": missing,
        });
        return writeln!(out, "{summary}");
    }
    let rate = *seeds as f64 / seconds.max(f64::EPSILON);
    writeln!(out, "{seeds} seeds from {start}: {events} events, {failed} failed ({rate:.0} seeds a second)")?;
    if !missing.is_empty() {
        writeln!(out, "never exercised: {}", missing.join(", "))?;
    }
    Ok(())
}
