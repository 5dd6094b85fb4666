//! The table on the terminal.

use std::fmt::Write as _;

use tiffin_report::document::Series;
use tiffin_report::number;

use crate::show::Table;

/// A table for each shape.
pub(super) fn table(series: &[Series]) -> String {
    let mut text = String::new();
    let mut shapes: Vec<&str> = Vec::new();
    for one in series {
        if !shapes.contains(&one.shape.as_str()) {
            shapes.push(&one.shape);
        }
    }
    for shape in shapes {
        let head = [shape, "size", "keys", "clients", "p50 µs", "p99 µs", "p99.9 µs", "calls/s", "GB/s"];
        let mut table = Table::new(&head);
        for one in series.iter().filter(|it| it.shape == shape) {
            table.row(cells(one));
        }
        let space = if text.is_empty() { "" } else { "\n\n" };
        // Writing to a string cannot fail.
        let _ = write!(text, "{space}{table}");
    }
    text
}

fn cells(series: &Series) -> [String; 9] {
    let micros = series.micros;
    [
        series.name(),
        series.call_size(),
        series.keys.clone().unwrap_or_default(),
        series.clients.to_string(),
        number(micros.p50),
        number(micros.p99),
        number(micros.p999),
        number(series.calls_per_second),
        if series.bytes_per_second > 0.0 { number(series.bytes_per_second / 1e9) } else { String::new() },
    ]
}
