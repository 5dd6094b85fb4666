//! The table on the terminal.

use std::fmt::Write as _;

use super::document::{FLOOR, Series};
use crate::show::{self, Table};

/// All series, a table for each shape.
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
        name(series),
        size(series),
        series.keys.clone().unwrap_or_default(),
        series.clients.to_string(),
        number(micros.p50),
        number(micros.p99),
        number(micros.p999),
        number(series.calls_per_second),
        if series.bytes_per_second > 0.0 { number(series.bytes_per_second / 1e9) } else { String::new() },
    ]
}

/// What was done, and by whom if not by us.
pub(super) fn name(series: &Series) -> String {
    let streams = match series.streams {
        Some(1) => ", 1 stream".to_owned(),
        Some(streams) => format!(", {streams} streams"),
        None => String::new(),
    };
    let floor = if series.source == FLOOR { "floor: " } else { "" };
    format!("{floor}{}{streams}", series.workload)
}

/// What a call is about.
pub(super) fn size(series: &Series) -> String {
    let size = show::size(series.size);
    if series.items > 1 { format!("{} x {size}", series.items) } else { size }
}

/// Three digits, or all of those before the point.
pub(super) fn number(value: f64) -> String {
    match value {
        _ if value >= 99.95 => format!("{value:.0}"),
        _ if value >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in
            [(0.0, "0.00"), (1.234, "1.23"), (9.999, "10.0"), (99.99, "100"), (1e6, "1000000")]
        {
            assert_eq!(number(value), text);
        }
    }
}
