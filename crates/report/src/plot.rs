//! A plot as SVG: lines by size or by number of clients. Colours come from the page's style sheet.
//!
//! **Invariant:** no information is in the colour alone: every line has its own dashes or marker, and every
//! point has a title.

use std::fmt::Write as _;

use crate::page::escape;
use crate::size_text;

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 46.0;
/// Approximate number of horizontal grid lines.
const GRID_LINES: f64 = 5.0;
/// With more grid lines than this, a log scale shows powers of ten only.
const LOG_LABELS_MAX: usize = 8;

/// Kind of the horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum XAxis {
    /// Sizes, on a log scale.
    Bytes,
    /// Numbers of clients or of objects, equally spaced.
    Count,
    /// Percentages from 0 to 100, linear.
    Percent,
}

/// A line: label, CSS class, and points.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) label: String,
    pub(crate) class: &'static str,
    pub(crate) points: Vec<(f64, f64)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) x_axis: XAxis,
    pub(crate) x_label: &'static str,
    pub(crate) unit: &'static str,
    /// The vertical axis has a log scale.
    pub(crate) is_log: bool,
    pub(crate) lines: Vec<Line>,
}

impl Plot {
    /// Whether there are no points except those of the floor.
    pub(crate) fn is_empty(&self) -> bool {
        !self.lines.iter().any(|line| line.class != "floor" && !line.points.is_empty())
    }

    /// The plot and its legend, as a figure.
    pub(crate) fn figure(&self) -> String {
        let mut text = format!("<figure>\n<figcaption>{}</figcaption>\n", escape(&self.title));
        let lines = || self.lines.iter().filter(|line| !line.points.is_empty());
        text.push_str("<ul class=\"legend\">");
        for line in lines() {
            let (class, label) = (line.class, escape(&line.label));
            // Writing to a string cannot fail, here and below.
            let _ = write!(
                text,
                "<li><svg viewBox=\"0 0 34 12\" class=\"{class}\" aria-hidden=\"true\"><path class=\"line\" \
                 d=\"M1 6h32\"/>{}</svg>{label}</li>",
                mark(class, 17.0, 6.0, "")
            );
        }
        text.push_str("</ul>\n");
        let _ = writeln!(
            text,
            "<svg class=\"plot\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}, in {}\">",
            escape(&self.title),
            escape(self.unit)
        );
        let scale = Scale::of(self);
        self.axes(&scale, &mut text);
        for line in lines() {
            let mut points: Vec<(f64, f64)> = line.points.clone();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            let pairs = points.iter().map(|(x, y)| format!("{:.1},{:.1}", scale.x(*x), scale.y(*y)));
            let pairs = pairs.collect::<Vec<_>>().join(" ");
            let _ = write!(text, "<g class=\"{}\"><polyline class=\"line\" points=\"{pairs}\"/>", line.class);
            for (x, y) in points {
                let title = format!("{}: {} {} at {}", line.label, number(y), self.unit, self.x_text(x));
                text.push_str(&mark(line.class, scale.x(x), scale.y(y), &title));
            }
            text.push_str("</g>\n");
        }
        text.push_str("</svg>\n</figure>\n");
        text
    }

    fn axes(&self, scale: &Scale, text: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for mark in &scale.grid {
            let y = scale.y(*mark);
            let _ = writeln!(
                text,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/>\
                 <text class=\"tick\" x=\"{}\" y=\"{y:.1}\" \
                 text-anchor=\"end\" dominant-baseline=\"middle\">{}</text>",
                LEFT - 7.0,
                number(*mark)
            );
        }
        for x in &scale.ticks() {
            let _ = writeln!(
                text,
                "<path class=\"grid\" d=\"M{0:.1} {bottom}v5\"/><text class=\"tick\" x=\"{0:.1}\" y=\"{1}\" \
                 text-anchor=\"middle\">{2}</text>",
                scale.x(*x),
                bottom + 18.0,
                self.x_text(*x)
            );
        }
        let middle = f64::midpoint(LEFT, right);
        let height = f64::midpoint(TOP, bottom);
        let _ = writeln!(
            text,
            "<path class=\"axis\" d=\"M{LEFT} {bottom}H{right}\"/>\
             <text class=\"axis-label\" x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
             <text class=\"axis-label\" transform=\"translate(14 {height}) rotate(-90)\" \
             text-anchor=\"middle\">{}</text>",
            HEIGHT - 8.0,
            escape(self.x_label),
            escape(&if self.is_log {
                format!("{}, log scale, not from 0", self.unit)
            } else {
                self.unit.to_owned()
            })
        );
    }

    fn x_text(&self, x: f64) -> String {
        match self.x_axis {
            XAxis::Bytes => size_text(x as u64).replace(".0 ", " "),
            XAxis::Count | XAxis::Percent => number(x),
        }
    }
}

/// Maps values to coordinates.
struct Scale {
    xs: Vec<f64>,
    x_axis: XAxis,
    low: f64,
    high: f64,
    is_log: bool,
    grid: Vec<f64>,
}

impl Scale {
    fn of(plot: &Plot) -> Self {
        let points = || plot.lines.iter().flat_map(|line| line.points.iter().copied());
        let mut xs: Vec<f64> = points().map(|(x, _)| x).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        let most = points().map(|(_, y)| y).fold(f64::MIN_POSITIVE, f64::max);
        let least = points().map(|(_, y)| y).filter(|y| *y > 0.0).fold(most, f64::min);
        if plot.is_log {
            let grid = orders(least, most);
            let ends = grid.first().zip(grid.last()).map(|(low, high)| (low.log10(), high.log10()));
            let (low, high) = ends.unwrap_or((0.0, 1.0));
            let mut shown = grid.clone();
            if grid.len() > LOG_LABELS_MAX {
                // With many orders of magnitude, only powers of ten are labelled.
                shown.retain(|mark| (mark.log10() - mark.log10().round()).abs() < 1e-6);
            }
            return Self { xs, x_axis: plot.x_axis, low, high, is_log: true, grid: shown };
        }
        let step = nice(most / GRID_LINES);
        let high = (most / step).ceil() * step;
        let grid = (0..=(high / step).round() as u32).map(|mark| f64::from(mark) * step).collect();
        Self { xs, x_axis: plot.x_axis, low: 0.0, high, is_log: false, grid }
    }

    /// The labelled values of the horizontal axis.
    fn ticks(&self) -> Vec<f64> {
        match self.x_axis {
            XAxis::Bytes | XAxis::Count => self.xs.clone(),
            XAxis::Percent => (0..=10).map(|tenth| f64::from(tenth) * 10.0).collect(),
        }
    }

    fn x(&self, value: f64) -> f64 {
        let part = match self.x_axis {
            XAxis::Bytes => {
                let low = self.xs.first().copied().unwrap_or(1.0).max(1.0).log2();
                let high = self.xs.last().copied().unwrap_or(1.0).max(1.0).log2();
                (value.max(1.0).log2() - low) / (high - low).max(f64::MIN_POSITIVE)
            }
            XAxis::Count => {
                let at = self.xs.iter().position(|it| *it >= value).unwrap_or_default() as f64;
                at / (self.xs.len().saturating_sub(1)).max(1) as f64
            }
            XAxis::Percent => value / 100.0,
        };
        // A margin at both ends, so that markers do not overlap the axis.
        LEFT + 18.0 + (WIDTH - LEFT - RIGHT - 36.0) * part.clamp(0.0, 1.0)
    }

    fn y(&self, value: f64) -> f64 {
        let value = if self.is_log { value.max(f64::MIN_POSITIVE).log10() } else { value };
        let part = ((value - self.low) / (self.high - self.low).max(f64::MIN_POSITIVE)).clamp(0.0, 1.0);
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part
    }
}

/// The values 1, 2, 5 times powers of ten that enclose the range.
fn orders(least: f64, most: f64) -> Vec<f64> {
    let powers = least.log10().floor() as i32..=most.log10().ceil() as i32;
    let every = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)));
    let every: Vec<f64> = every.collect();
    let first = every.iter().rposition(|it| *it <= least * 1.000_001).unwrap_or_default();
    let last = every.iter().position(|it| *it >= most / 1.000_001).unwrap_or(every.len().saturating_sub(1));
    // At least two, so that there is a scale.
    every.get(first..=last.max(first + 1)).unwrap_or(&every).to_vec()
}

/// A round step of about this size: 1, 2 or 5 times a power of ten.
pub(crate) fn nice(step: f64) -> f64 {
    let power = 10_f64.powf(step.max(f64::MIN_POSITIVE).log10().floor());
    let rest = step / power;
    power
        * if rest <= 1.0 {
            1.0
        } else if rest <= 2.0 {
            2.0
        } else if rest <= 5.0 {
            5.0
        } else {
            10.0
        }
}

/// A marker in the shape of its class, with a title as tooltip.
fn mark(class: &str, x: f64, y: f64, title: &str) -> String {
    let title = if title.is_empty() { String::new() } else { format!("<title>{}</title>", escape(title)) };
    let shape = match class {
        "peer" => format!(
            "<rect class=\"mark\" x=\"{:.1}\" y=\"{:.1}\" width=\"7\" height=\"7\">",
            x - 3.5,
            y - 3.5
        ),
        "peer best" => format!("<path class=\"mark\" d=\"M{x:.1} {:.1}l4.5 8h-9z\">", y - 5.0),
        "floor" => format!("<path class=\"mark\" d=\"M{:.1} {y:.1}h7\">", x - 3.5),
        _ => format!("<circle class=\"mark\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.8\">"),
    };
    let end = shape.split([' ', '<']).find(|it| !it.is_empty()).unwrap_or("path").to_owned();
    format!("{shape}{title}</{end}>")
}

/// A number in short form.
pub(crate) fn number(value: f64) -> String {
    let (value, tail) = match value {
        _ if value >= 1e6 => (value / 1e6, " M"),
        _ if value >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    let text = match value {
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value >= 10.0 => format!("{value:.1}"),
        _ if value >= 0.1 || value <= 0.0 => format!("{value:.2}"),
        // Two digits that count.
        _ => format!("{value:.*}", (1.0 - value.log10().floor()) as usize),
    };
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_numbers_are_short() {
        for (step, round) in [(0.9, 1.0), (1.3, 2.0), (0.034, 0.05), (700.0, 1000.0)] {
            assert!((nice(step) - round).abs() < 1e-9, "{step}: {}", nice(step));
        }
        assert_eq!(orders(3.0, 40.0), [2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(orders(7.0, 7.0), [5.0, 10.0]);
        for (value, text) in [(0.0, "0"), (0.25, "0.25"), (10.0, "10"), (1234.0, "1234"), (2.5e6, "2.5 M")] {
            assert_eq!(number(value), text);
        }
        for (value, text) in
            [(0.1, "0.1"), (0.05, "0.05"), (0.0342, "0.034"), (0.001, "0.001"), (2e-5, "0.00002")]
        {
            assert_eq!(number(value), text, "a small value is not shown as 0");
        }
    }

    #[test]
    fn percent_axis_is_to_scale() {
        let points = [10.0, 50.0, 90.0, 91.0, 99.0, 100.0].map(|x| (x, 1.0)).to_vec();
        let plot = Plot {
            title: "a".to_owned(),
            x_axis: XAxis::Percent,
            x_label: "b",
            unit: "s",
            is_log: true,
            lines: vec![Line { label: "c".to_owned(), class: "ours", points }],
        };
        let scale = Scale::of(&plot);
        let width = |from: f64, to: f64| scale.x(to) - scale.x(from);
        for (from, to) in [(10.0, 50.0), (50.0, 90.0), (90.0, 91.0), (91.0, 99.0), (99.0, 100.0)] {
            assert!(
                (width(from, to) / width(0.0, 100.0) - (to - from) / 100.0).abs() < 1e-9,
                "{from} to {to}"
            );
        }
        assert_eq!(scale.ticks().len(), 11);
        assert_eq!(plot.figure().matches("class=\"tick\"").count(), 11 + scale.grid.len());
    }

    #[test]
    fn plot_with_few_points_has_no_invalid_numbers() {
        for points in [vec![], vec![(1.0, 0.0)], vec![(4096.0, 3.0)]] {
            for (x_axis, is_log) in [(XAxis::Bytes, true), (XAxis::Count, false), (XAxis::Percent, true)] {
                let line = Line { label: "<us>".to_owned(), class: "ours", points: points.clone() };
                let plot = Plot {
                    title: "a".to_owned(),
                    x_axis,
                    x_label: "b",
                    unit: "µs",
                    is_log,
                    lines: vec![line],
                };
                let text = plot.figure();
                assert!(!text.contains("NaN") && !text.contains("inf") && !text.contains("<us>"), "{text}");
                assert_eq!(plot.is_empty(), points.is_empty());
            }
        }
    }
}
