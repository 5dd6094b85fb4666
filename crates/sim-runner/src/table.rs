//! Breaks each rule in turn, and says how soon that is noticed.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use serde_json::json;

use crate::progress::Progress;
use crate::{Caught, Simulation, Task, catch};

/// True if every one is noticed.
pub(crate) fn print<S: Simulation>(task: &Task<S::Rule>) -> std::io::Result<bool> {
    // Broken rules may trip assertions; that is one way to notice them.
    std::panic::set_hook(Box::new(|_| ()));
    let caught = catch_all::<S>(task);
    let mut out = std::io::stdout().lock();
    if task.json {
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

/// All of them, in the order of the rules, however many threads there are.
fn catch_all<S: Simulation>(task: &Task<S::Rule>) -> Vec<Caught<S::Rule, S::Broken>> {
    let mut progress = Progress::new("rules", S::RULES.len() as u64);
    let next = AtomicUsize::new(0);
    let (rows, results) = mpsc::channel();
    let mut caught = Vec::new();
    thread::scope(|scope| {
        for _ in 0..task.jobs {
            let (rows, next) = (rows.clone(), &next);
            scope.spawn(move || {
                while let Some(&rule) = S::RULES.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let play = |seed, rule| S::play(seed, rule, false).broken;
                    _ = rows.send(catch(rule, task.start, task.seeds, play));
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
    caught.sort_by_key(|it| S::RULES.iter().position(|rule| *rule == it.sabotage));
    caught
}
