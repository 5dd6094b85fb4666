//! Memory usage over time as a self-contained SVG.

use std::fmt::Write as _;

use crate::page::escape;
use crate::size_text;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 90.0;
const TOP: f64 = 60.0;
const RIGHT: f64 = 20.0;
const BOTTOM: f64 = 50.0;
/// Colour, width and dashes of the lines; both are visible where they overlap.
const LINES: [(&str, u32, &str); 2] = [("#0072b2", 5, "none"), ("#e69f00", 2, "6 4")];
/// Number of horizontal grid lines.
const GRID_LINES: u32 = 4;

/// Usage of a store after each step of a run.
#[derive(Clone, Copy, Debug)]
pub struct Curve<'a> {
    /// Duration of leases, as text.
    pub lease_time: &'a str,
    /// Bytes that were produced and not yet consumed.
    pub in_flight: &'a [u64],
    /// Bytes used by the store.
    pub used: &'a [u64],
}

/// Bytes in flight as an area, and used bytes of each run as a line.
#[must_use]
pub fn svg(runs: &[Curve<'_>]) -> String {
    let steps = runs.iter().map(|run| run.used.len()).max().unwrap_or_default();
    let most = runs.iter().flat_map(|run| run.used.iter().chain(run.in_flight)).copied().max();
    let most = most.unwrap_or_default().max(1);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <title>Memory usage while samples are produced and consumed</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for mark in 0..=GRID_LINES {
        let bytes = most * u64::from(mark) / u64::from(GRID_LINES);
        let (y, end, shown) = (coordinates(0, bytes, steps, most).1, WIDTH - RIGHT, size_text(bytes));
        let label = LEFT - 8.0;
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            text,
            "<path d=\"M{LEFT} {y:.1}H{end}\" stroke=\"#ddd\"/>\
             <text x=\"{label}\" y=\"{y:.1}\" text-anchor=\"end\" dominant-baseline=\"middle\">{shown}</text>"
        );
    }
    if let Some(run) = runs.first() {
        let area = points(run.in_flight, steps, most);
        let (start, end) = (coordinates(0, 0, steps, most), coordinates(run.in_flight.len(), 0, steps, most));
        let _ = writeln!(
            text,
            "<polygon points=\"{:.1},{:.1} {area} {:.1},{:.1}\" fill=\"#bbb\"/>",
            start.0, start.1, end.0, end.1
        );
    }
    let _ = writeln!(text, "<text x=\"{LEFT}\" y=\"24\">in flight (grey)</text>");
    for (number, (run, (colour, width, dashes))) in runs.iter().zip(LINES).enumerate() {
        let style = format!(
            "fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" stroke-dasharray=\"{dashes}\""
        );
        let line = points(run.used, steps, most);
        let x = LEFT + 130.0 + 230.0 * number as f64;
        let _ = writeln!(text, "<polyline points=\"{line}\" {style}/>");
        let _ = writeln!(text, "<path d=\"M{x} 20h40\" {style}/>");
        let _ = writeln!(
            text,
            "<text x=\"{}\" y=\"24\">in use, leases of {}</text>",
            x + 48.0,
            escape(run.lease_time)
        );
    }
    let (middle, low) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 14.0);
    let _ = writeln!(
        text,
        "<text x=\"{middle}\" y=\"{low}\" text-anchor=\"middle\">{steps} steps</text>\n</svg>"
    );
    text
}

fn points(values: &[u64], steps: usize, most: u64) -> String {
    let pairs = values.iter().enumerate().map(|(step, value)| coordinates(step, *value, steps, most));
    pairs.map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
}

fn coordinates(step: usize, value: u64, steps: usize, most: u64) -> (f64, f64) {
    let x = LEFT + (WIDTH - LEFT - RIGHT) * step as f64 / steps.max(1) as f64;
    let y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value as f64 / most as f64;
    (x, y)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn svg_has_a_line_for_each_run_and_loads_nothing() {
        let run = Curve { lease_time: "1s", in_flight: &[0, 5, 0], used: &[0, 6, 0] };
        let text = svg(&[run, Curve { lease_time: "300s", ..run }]);
        assert_eq!(text.matches("<polyline").count(), 2);
        assert_eq!(text.matches("http").count(), 1, "only the name of the namespace");
        let empty = svg(&[Curve { lease_time: "1s", in_flight: &[], used: &[] }]);
        assert!(!empty.contains("NaN"), "{empty}");
    }
}
