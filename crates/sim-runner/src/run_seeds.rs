//! Plays seeds on all cores, and says which of them break a promise.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use serde_json::json;

use crate::progress::Progress;
use crate::{Breach, Covered, Report, Simulation, Task};

/// From this many seeds on, a case that was never tried is a failure.
const COVERING_SEEDS_MIN: u64 = 1000;
/// Seeds that a thread takes at a time.
const PIECE_SEEDS: u64 = 16;

/// What came of all seeds.
struct Sum<C> {
    coverage: C,
    events: u64,
    failed: u64,
    seconds: f64,
}

/// True if nothing is broken and, where enough was played, nothing was left untried.
pub(crate) fn play<S: Simulation>(task: &Task<S::Rule>) -> std::io::Result<bool> {
    let mut out = std::io::stdout().lock();
    let began = Instant::now();
    let mut progress = Progress::new("seeds", task.seeds);
    let mut sum = Sum { coverage: S::Coverage::default(), events: 0, failed: 0, seconds: 0.0 };
    let next = AtomicU64::new(0);
    let (reports, results) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..task.jobs {
            let (reports, next) = (reports.clone(), &next);
            scope.spawn(move || play_pieces::<S>(task, next, &reports));
        }
        drop(reports);
        for (done, report) in (1..).zip(results) {
            write!(out, "{}", report.text)?;
            sum.events += report.events;
            sum.coverage.add(&report.coverage);
            if let Some(broken) = &report.broken {
                sum.failed += 1;
                progress.clear();
                let (seed, promise, what) = (report.seed, broken.promise(), broken.what());
                match task.json {
                    true => writeln!(out, "{}", json!({"seed": seed, "invariant": promise, "what": what}))?,
                    false => writeln!(out, "seed {seed} breaks {promise}: {what}")?,
                }
            }
            progress.show(done, sum.failed);
        }
        std::io::Result::Ok(())
    })?;
    progress.clear();
    sum.seconds = began.elapsed().as_secs_f64();
    summarize(task, &sum, &mut out)?;
    let covers = sum.coverage.missing().is_empty() || task.seeds < COVERING_SEEDS_MIN || task.rule.is_some();
    Ok(sum.failed == 0 && covers)
}

/// Takes pieces of what is left to play, until nothing is or nobody listens.
fn play_pieces<S: Simulation>(
    task: &Task<S::Rule>,
    next: &AtomicU64,
    reports: &mpsc::Sender<Report<S::Broken, S::Coverage>>,
) {
    loop {
        let first = next.fetch_add(PIECE_SEEDS, Ordering::Relaxed);
        if first >= task.seeds {
            return;
        }
        for place in first..(first + PIECE_SEEDS).min(task.seeds) {
            let seed = task.start.saturating_add(place);
            let report = S::play(seed, task.rule.unwrap_or_default(), task.log && place == 0);
            if reports.send(report).is_err() {
                return;
            }
        }
    }
}

fn summarize<R, C: Covered>(task: &Task<R>, sum: &Sum<C>, out: &mut impl Write) -> std::io::Result<()> {
    let Task { seeds, start, .. } = task;
    let Sum { events, failed, seconds, coverage } = sum;
    let missing = coverage.missing();
    if task.json {
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
