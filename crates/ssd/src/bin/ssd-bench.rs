//! Prints how fast a shelf is on a disk, beside a raw writer and reader on the same disk.

use std::io::Write;
use std::process::ExitCode;

use tiffin_ssd::Drive;
use tiffin_ssd::bench::{Bench, Measured, Rate, measure};

const USAGE: &str =
    "usage: ssd-bench --path FOLDER [--gib N] [--record-mib N] [--depth N] [--blocking] [--json]";

fn main() -> ExitCode {
    let result = match parse() {
        Some((bench, json)) => measure(&bench).map(|measured| print(&bench, &measured, json)),
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
        record_bytes: 4 << 20,
        depth: 32,
        drive: Drive::Auto,
    };
    let mut json = false;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--path" => bench.path = words.next()?.into(),
            "--gib" => bench.bytes = words.next()?.parse::<u64>().ok()? << 30,
            "--record-mib" => bench.record_bytes = words.next()?.parse::<u64>().ok()? << 20,
            "--depth" => bench.depth = words.next()?.parse().ok()?,
            "--blocking" => bench.drive = Drive::Blocking,
            "--json" => json = true,
            _ => return None,
        }
    }
    let fits = (1..=128).contains(&bench.depth) && bench.record_bytes > 0;
    (fits && !bench.path.as_os_str().is_empty()).then_some((bench, json))
}

fn print(bench: &Bench, measured: &Measured, json: bool) {
    let mut out = std::io::stdout().lock();
    let rows: [(&str, &Rate, &Rate); 4] = [
        ("raw_write", &measured.raw_write, &measured.raw_write),
        ("append", &measured.append, &measured.raw_write),
        ("raw_read", &measured.raw_read, &measured.raw_read),
        ("read", &measured.read, &measured.raw_read),
    ];
    let ms = measured.recovery.as_millis();
    if json {
        let rates: Vec<String> = rows
            .iter()
            .map(|(name, rate, _)| {
                let (gb, cpu) = (rate.gb_per_s(), rate.cpu_s_per_gb());
                format!("\"{name}\": {{\"gb_per_s\": {gb:.3}, \"cpu_s_per_gb\": {cpu:.3}}}")
            })
            .collect();
        let text = format!(
            "{{{}, \"recovery_ms\": {ms}, \"records\": {}, \"write_amplification\": {:.3}, \"uring\": {}}}",
            rates.join(", "),
            measured.records,
            measured.write_amplification,
            measured.driven.uring
        );
        drop(writeln!(out, "{text}"));
        return;
    }
    drop(writeln!(out, "{} at depth {}", measured.driven, bench.depth));
    for (name, rate, floor) in rows {
        let share = rate.gb_per_s() / floor.gb_per_s() * 100.0;
        let (gb, cpu) = (rate.gb_per_s(), rate.cpu_s_per_gb());
        drop(writeln!(out, "{name:<10} {gb:7.3} GB/s  {share:4.0} % of raw  {cpu:.3} cpu s/GB"));
    }
    let (records, amplification) = (measured.records, measured.write_amplification);
    drop(writeln!(out, "recovery   {records} records in {ms} ms; write amplification {amplification:.3}"));
}
