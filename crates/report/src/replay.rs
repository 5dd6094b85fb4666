//! The page of a trace that was replayed through the KV hierarchy.

use std::fmt::Write as _;

use tiffin_kv_replay::{Comparison, Report};

use crate::page::{escape, page as frame};
use crate::plot::{Line, Plot, XAxis};

const TITLE: &str = "A trace through the KV hierarchy";
/// CSS classes of lines; with more policies they repeat.
const CLASSES: [&str; 4] = ["ours", "peer", "ours new", "peer best"];

/// A row of the table: its name, and its value for a run.
pub type Row = (&'static str, fn(&Report) -> String);

/// The page: a plot for each policy, and a table with these rows of these runs.
#[must_use]
pub fn page(compared: &[Comparison], rows: &[Row], columns: &[&Report], note: Option<&str>) -> String {
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
    frame(TITLE, "", &text)
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
