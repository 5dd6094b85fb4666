//! The page of a trace that was replayed through the KV hierarchy.
//!
//! **Invariant:** the page states what it shows: the trace, the command that reproduces it, version and date,
//! and how many requests each column refused. Times are compared over the requests that every column served.

use std::fmt::Write as _;

use tiffin_kv_replay::{Comparison, Report};

use crate::page::{escape, facts, page as frame};
use crate::plot::{Line, Plot, XAxis};

const TITLE: &str = "A trace through the KV hierarchy";
/// CSS classes of lines; with more policies they repeat.
const CLASSES: [&str; 4] = ["ours", "peer", "ours new", "peer best"];

/// What was replayed.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The trace: its file, or how it was generated.
    pub trace: String,
    /// The command with all its flags, also those that have their default.
    pub command: String,
    /// The version of the program.
    pub version: String,
    /// Date and time.
    pub made: String,
}

/// A row of the table: its name, and its value for a run.
pub type Row = (&'static str, fn(&Report) -> String);

/// The page: a plot for each policy, and a table with these rows of these runs.
#[must_use]
pub fn page(
    origin: &Origin,
    compared: &[Comparison],
    rows: &[Row],
    columns: &[&Report],
    note: Option<&str>,
) -> String {
    let mut text = String::from("<section>\n<h2>Time to first token</h2>\n<div class=\"plots\">\n");
    for it in compared {
        let lines = [(&it.policy, CLASSES[0]), (&it.no_prefetch, CLASSES[1]), (&it.infinite, "floor")];
        text.push_str(&curve(&it.policy.policy, &lines).figure());
    }
    if compared.len() > 1 {
        let lines: Vec<_> = compared.iter().map(|it| &it.policy).zip(CLASSES.into_iter().cycle()).collect();
        text.push_str(&curve("All policies", &lines).figure());
    }
    text.push_str("</div>\n</section>\n");
    numbers(rows, columns, &mut text);
    if let Some(note) = note {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "<p>{}</p>", escape(note));
    }
    let requests = requests(columns);
    let lines = [
        ("Trace", origin.trace.as_str()),
        ("Requests", &requests),
        ("Command", &origin.command),
        ("Version", &origin.version),
        ("When", &origin.made),
    ];
    frame(TITLE, &facts(lines), &text)
}

/// The number of requests, of those that are compared, and of those that each column refused.
fn requests(columns: &[&Report]) -> String {
    let Some(first) = columns.first() else { return String::from("none") };
    let refused = columns.iter().filter(|it| it.refused > 0);
    let refused: Vec<_> = refused.map(|it| format!("{} by {}", it.refused, it.policy)).collect();
    let refused = if refused.is_empty() { String::from("none") } else { refused.join("; ") };
    format!("{} in the trace; {} compared; refused: {refused}", first.requests, first.compared)
}

/// The time by which each percentage of the requests had its first token.
fn curve(title: &str, lines: &[(&Report, &'static str)]) -> Plot {
    let line = |(report, class): &(&Report, &'static str)| {
        let points = (1..).zip(&report.ttft_curve).filter(|(percent, _)| percent % 5 == 0 || *percent > 90);
        let points = points.map(|(percent, seconds)| (f64::from(percent), *seconds));
        Line { label: report.policy.clone(), class, points: points.collect() }
    };
    Plot {
        title: title.to_owned(),
        x_axis: XAxis::Percent,
        x_label: "percent of the requests",
        unit: "s",
        is_log: true,
        lines: lines.iter().map(line).collect(),
    }
}

fn numbers(rows: &[Row], columns: &[&Report], text: &mut String) {
    text.push_str(
        "<section>\n<h2>All numbers</h2>\n<div class=\"wide\"><table>\n<thead><tr><th scope=\"col\"></th>",
    );
    for report in columns {
        // Writing to a string cannot fail, here and below.
        let _ = write!(text, "<th scope=\"col\">{}</th>", escape(&report.policy));
    }
    text.push_str("</tr></thead>\n<tbody>\n");
    for (name, value) in rows {
        let _ = write!(text, "<tr><th scope=\"row\">{}</th>", escape(name.trim()));
        for report in columns {
            let _ = write!(text, "<td>{}</td>", escape(&value(report)));
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</tbody>\n</table></div>\n</section>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(policy: &str, refused: u64) -> Report {
        Report {
            policy: policy.to_owned(),
            tiers: tiffin_kv_replay::Tiers::default(),
            requests: 100,
            served: 100 - refused,
            refused,
            compared: 93,
            hits: tiffin_kv_replay::Hits::default(),
            ttft: None,
            ttft_curve: (1..=100).map(f64::from).collect(),
            prefetch: tiffin_kv_replay::Prefetch::default(),
            edges: tiffin_kv_replay::Edges::default(),
            duplicate_pages: 0,
            evicted_pages: [0, 0],
            retractions: 0,
            virtual_seconds: 0.0,
            steps: 0,
            wall_seconds: 0.0,
        }
    }

    fn shown(refused: u64) -> String {
        let [policy, no_prefetch] = ["<lru>", "without"].map(|name| report(name, refused));
        let compared = Comparison { policy, no_prefetch, infinite: report("infinite", 0) };
        let origin = Origin {
            trace: "`a&b.jsonl`".to_owned(),
            command: "tiffin kv replay a --seed 1".to_owned(),
            version: "tiffin 1.2.3".to_owned(),
            made: "2026-11-18T08:00:00Z".to_owned(),
        };
        let columns = [&compared.policy, &compared.no_prefetch, &compared.infinite];
        let rows: [Row; 1] = [("refused", |it| it.refused.to_string())];
        page(&origin, std::slice::from_ref(&compared), &rows, &columns, None)
    }

    #[test]
    fn page_names_its_origin() {
        let text = shown(0);
        for part in ["`a&amp;b.jsonl`", "tiffin kv replay a --seed 1", "tiffin 1.2.3", "2026-11-18T08:00:00Z"]
        {
            assert!(text.contains(&format!("<dd>{part}</dd>")), "{part}: {text}");
        }
        assert!(text.contains("log scale, not from 0"), "{text}");
    }

    #[test]
    fn page_counts_refused_requests() {
        assert!(shown(0).contains("100 in the trace; 93 compared; refused: none"));
        assert!(shown(7).contains("refused: 7 by &lt;lru&gt;; 7 by without"));
    }
}
