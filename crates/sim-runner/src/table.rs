//! Runs every mutant, and prints how soon it is noticed.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use serde_json::json;

use crate::progress::Progress;
use crate::{Caught, RunOptions, Simulation, catch};

/// True if every mutant is noticed.
pub(crate) fn print<S: Simulation>(options: &RunOptions<S::Mutant>) -> std::io::Result<bool> {
    // Mutants may fail assertions, which is one way to be noticed.
    std::panic::set_hook(Box::new(|_| ()));
    let caught = catch_all::<S>(options);
    let mut out = std::io::stdout().lock();
    if options.json {
        let rows: Vec<_> = caught.iter().map(S::json).collect();
        writeln!(out, "{}", json!(rows))?;
    } else {
        writeln!(out, "| {} |\n|{}", S::COLUMNS.join(" | "), "---|".repeat(S::COLUMNS.len()))?;
        for it in &caught {
            writeln!(out, "| {} |", S::row(it).join(" | "))?;
        }
    }
    Ok(caught.iter().all(|it| it.seeds.is_some()))
}

/// Results of all mutants, in their declared order.
fn catch_all<S: Simulation>(options: &RunOptions<S::Mutant>) -> Vec<Caught<S::Mutant, S::Violation>> {
    let mut progress = Progress::new("rules", S::MUTANTS.len() as u64);
    let next = AtomicUsize::new(0);
    let (rows, results) = mpsc::channel();
    let mut caught = Vec::new();
    thread::scope(|scope| {
        for _ in 0..options.jobs {
            let (rows, next) = (rows.clone(), &next);
            scope.spawn(move || {
                while let Some(&mutant) = S::MUTANTS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let run = |seed, mutant| S::run(seed, mutant, false).violation;
                    _ = rows.send(catch(mutant, options.start, options.seeds, run));
                }
            });
        }
        drop(rows);
        for row in results {
            caught.push(row);
            let missed = caught.iter().filter(|it| it.seeds.is_none()).count();
            progress.show(caught.len() as u64, missed as u64);
        }
    });
    progress.clear();
    caught.sort_by_key(|it| S::MUTANTS.iter().position(|mutant| *mutant == it.mutant));
    caught
}
