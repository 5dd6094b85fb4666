//! Measures a log on a disk, beside a raw writer and reader on the same disk.

use std::io::Write;
use std::process::ExitCode;

use tiffin_ssd::Drive;
use tiffin_ssd::bench::{Bench, Measured, Turns, measure};

const USAGE: &str = "usage: ssd-bench --path FOLDER [--gib N] [--record-mib N] [--depth N] [--rounds N] \
                     [--small RECORDS] [--blocking] [--json]";
/// The target ratio to the floor.
const SHARE: f64 = 0.8;

fn main() -> ExitCode {
    let result = match parse() {
        Some((bench, json)) => measure(&bench).map(|measured| {
            drop(if json { print_json(&measured) } else { print(&bench, &measured) });
        }),
        None => Err(USAGE.to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            drop(writeln!(std::io::stderr(), "{text}"));
            ExitCode::FAILURE
        }
    }
}

fn parse() -> Option<(Bench, bool)> {
    let mut bench = Bench {
        path: Default::default(),
        bytes: 2 << 30,
        record_bytes: 1 << 20,
        depth: 32,
        drive: Drive::Auto,
        rounds: 8,
        small_records: 1_000_000,
    };
    let mut json = false;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--path" => bench.path = words.next()?.into(),
            "--gib" => bench.bytes = words.next()?.parse::<u64>().ok()? << 30,
            "--record-mib" => bench.record_bytes = words.next()?.parse::<u64>().ok()? << 20,
            "--depth" => bench.depth = words.next()?.parse().ok()?,
            "--rounds" => bench.rounds = words.next()?.parse().ok()?,
            "--small" => bench.small_records = words.next()?.parse().ok()?,
            "--blocking" => bench.drive = Drive::Blocking,
            "--json" => json = true,
            _ => return None,
        }
    }
    let fits = (1..=128).contains(&bench.depth) && bench.record_bytes > 0 && bench.rounds > 0;
    (fits && !bench.path.as_os_str().is_empty()).then_some((bench, json))
}

fn print(bench: &Bench, measured: &Measured) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let (depth, rounds) = (bench.depth, bench.rounds);
    writeln!(out, "the log alone: {}, depth {depth}, medians of {rounds} rounds in turns", measured.driven)?;
    for (name, turns) in [("append", &measured.append), ("read", &measured.read)] {
        let (share, (cpu, raw_cpu), (first, last)) = (turns.share(), turns.cpu_s_per_gb(), turns.drift());
        let verdict = if share >= SHARE { "met" } else { "missed" };
        writeln!(
            out,
            "{name:<8}{:6.2} GB/s, raw {:5.2} ({first:.2} first, {last:.2} last): {:3.0} % of raw, aim 80 %: \
             {verdict}; {cpu:.3} cpu s/GB, raw {raw_cpu:.3}",
            turns.gb_per_s(),
            turns.raw_gb_per_s(),
            share * 100.0,
        )?;
    }
    writeln!(out, "bytes written per byte kept, in a log that is filled four times over:")?;
    for churn in &measured.churn {
        let stats = &churn.stats;
        writeln!(
            out,
            "  {:5.2}  {}: {} segments evicted, {} compacted, {} MiB carried on",
            churn.write_amplification(),
            churn.name,
            stats.segments_evicted,
            stats.segments_compacted,
            stats.carried_bytes >> 20,
        )?;
    }
    for it in &measured.reopened {
        let each = it.took.as_secs_f64() * 1e6 / it.records.max(1) as f64;
        writeln!(
            out,
            "recovery of {} records: {} ms, {each:.2} µs each, {} segments scanned",
            it.records,
            it.took.as_millis(),
            it.scanned
        )?;
    }
    Ok(())
}

fn print_json(measured: &Measured) -> std::io::Result<()> {
    let turns = |turns: &Turns| {
        let (cpu, raw_cpu) = turns.cpu_s_per_gb();
        format!(
            r#"{{"gb_per_s": {:.3}, "raw_gb_per_s": {:.3}, "share": {:.3}, {}}}"#,
            turns.gb_per_s(),
            turns.raw_gb_per_s(),
            turns.share(),
            format_args!(r#""cpu_s_per_gb": {cpu:.3}, "raw_cpu_s_per_gb": {raw_cpu:.3}"#),
        )
    };
    let churn = measured.churn.iter().map(|it| {
        let amplification = it.write_amplification();
        format!(r#"{{"name": "{}", "write_amplification": {amplification:.3}}}"#, it.name)
    });
    let reopened = measured.reopened.iter().map(|it| {
        let (ms, scanned) = (it.took.as_millis(), it.scanned);
        format!(r#"{{"records": {}, "ms": {ms}, "segments_scanned": {scanned}}}"#, it.records)
    });
    writeln!(
        std::io::stdout(),
        r#"{{"append": {}, "read": {}, "churn": [{}], "recovery": [{}], "uring": {}}}"#,
        turns(&measured.append),
        turns(&measured.read),
        churn.collect::<Vec<_>>().join(", "),
        reopened.collect::<Vec<_>>().join(", "),
        measured.driven.uring
    )
}
