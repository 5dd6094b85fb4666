//! Memory usage over time as a self-contained SVG.

use std::fmt::Write as _;

use crate::page::escape;
use crate::plot::nice;
use crate::size_text;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 100.0;
const TOP: f64 = 86.0;
const RIGHT: f64 = 24.0;
const BOTTOM: f64 = 56.0;
/// Name of the horizontal axis.
const STEP: &str = "step: a sample is put, or a batch is consumed";
const TITLE: &str = "Memory usage while samples are produced and consumed";
/// Colour, width and dashes of the lines; both are visible where they overlap.
const LINES: [(&str, u32, &str); 2] = [("#0072b2", 5, "none"), ("#e69f00", 2, "6 4")];
/// Approximate number of labelled values of each axis.
const TICKS: u64 = 5;

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

/// Bytes in flight as an area, and used bytes of each run as a line. Both axes start at zero.
#[must_use]
pub fn svg(runs: &[Curve<'_>]) -> String {
    let steps = runs.iter().map(|run| run.used.len()).max().unwrap_or_default();
    let most = runs.iter().flat_map(|run| run.used.iter().chain(run.in_flight)).copied().max();
    let most = most.unwrap_or_default().max(1);
    let tick = byte_step(most);
    let scale = Scale { steps, most: most.next_multiple_of(tick) };
    let (middle, high) = (f64::midpoint(LEFT, WIDTH - RIGHT), TOP - 58.0);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <title>{TITLE}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{middle}\" y=\"{high}\" text-anchor=\"middle\" font-size=\"16\">{TITLE}</text>\n"
    );
    axes(&scale, tick, &mut text);
    if let Some(run) = runs.first() {
        let area = scale.points(run.in_flight);
        let (start, end) = (scale.at(0, 0), scale.at(run.in_flight.len().saturating_sub(1), 0));
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            text,
            "<polygon points=\"{:.1},{:.1} {area} {:.1},{:.1}\" fill=\"#bbb\"/>",
            start.0, start.1, end.0, end.1
        );
    }
    legend(runs, &mut text);
    for (run, style) in runs.iter().zip(LINES.map(style)) {
        let _ = writeln!(text, "<polyline points=\"{}\" {style}/>", scale.points(run.used));
    }
    text.push_str("</svg>\n");
    text
}

/// Grid, labelled values and names of both axes.
fn axes(scale: &Scale, tick: u64, text: &mut String) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for bytes in (0..=scale.most / tick).map(|mark| mark * tick) {
        let (y, shown) = (scale.at(0, bytes).1, size_text(bytes).replace(".0 ", " "));
        let _ = writeln!(
            text,
            "<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{y:.1}\" text-anchor=\"end\" dominant-baseline=\"middle\">{shown}</text>",
            LEFT - 8.0
        );
    }
    let step = (nice(scale.steps as f64 / TICKS as f64) as usize).max(1);
    for mark in (0..scale.steps).step_by(step) {
        let x = scale.at(mark, 0).0;
        let _ = writeln!(
            text,
            "<path d=\"M{x:.1} {bottom}v5\" stroke=\"#888\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{mark}</text>",
            bottom + 19.0
        );
    }
    let (middle, height) = (f64::midpoint(LEFT, right), f64::midpoint(TOP, bottom));
    let _ = writeln!(
        text,
        "<path d=\"M{LEFT} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"#888\"/>\
         <text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{STEP}</text>\
         <text transform=\"translate(18 {height}) rotate(-90)\" text-anchor=\"middle\">memory</text>",
        HEIGHT - 12.0
    );
}

fn legend(runs: &[Curve<'_>], text: &mut String) {
    let y = TOP - 24.0;
    let _ = writeln!(
        text,
        "<rect x=\"{LEFT}\" y=\"{}\" width=\"40\" height=\"12\" fill=\"#bbb\"/>\
         <text x=\"{}\" y=\"{}\">samples in flight</text>",
        y - 6.0,
        LEFT + 48.0,
        y + 4.0
    );
    for (number, (run, style)) in runs.iter().zip(LINES.map(style)).enumerate() {
        let x = LEFT + 190.0 + 240.0 * number as f64;
        let _ = writeln!(
            text,
            "<path d=\"M{x} {y}h40\" {style}/><text x=\"{}\" y=\"{}\">in use, leases of {}</text>",
            x + 48.0,
            y + 4.0,
            escape(run.lease_time)
        );
    }
}

fn style((colour, width, dashes): (&str, u32, &str)) -> String {
    format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" stroke-dasharray=\"{dashes}\"")
}

/// A distance of labels that is round in bytes: a power of two, with about [`TICKS`] of them up to `most`.
fn byte_step(most: u64) -> u64 {
    most.div_ceil(TICKS).max(1).checked_next_power_of_two().unwrap_or(1 << 63)
}

/// Maps steps and bytes to coordinates.
struct Scale {
    steps: usize,
    most: u64,
}

impl Scale {
    fn at(&self, step: usize, value: u64) -> (f64, f64) {
        let last = self.steps.saturating_sub(1).max(1);
        let x = LEFT + (WIDTH - LEFT - RIGHT) * step as f64 / last as f64;
        let y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value as f64 / self.most as f64;
        (x, y)
    }

    fn points(&self, values: &[u64]) -> String {
        let pairs = values.iter().enumerate().map(|(step, value)| self.at(step, *value));
        pairs.map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
    }
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

    #[test]
    fn svg_has_title_legend_and_round_ticks() {
        let used = [0, 3_500_000, 9_000_000, 1_000_000, 0];
        let run = Curve { lease_time: "1s", in_flight: &used, used: &used };
        let text = svg(&[run, Curve { lease_time: "300s", ..run }]);
        for part in [TITLE, "samples in flight", "leases of 1s", "leases of 300s", ">memory<"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        for tick in [">0 B<", ">2 MiB<", ">4 MiB<", ">10 MiB<", ">0<", ">4<"] {
            assert!(text.contains(tick), "{tick}: {text}");
        }
    }

    #[test]
    fn distances_of_labels_are_powers_of_two() {
        for (most, step) in [(1, 1), (5, 1), (6, 2), (9 << 20, 2 << 20), (u64::MAX, 1 << 62)] {
            assert_eq!(byte_step(most), step, "{most}");
        }
    }
}
