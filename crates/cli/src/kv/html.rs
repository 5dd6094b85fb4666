//! The report of a replay: one page of HTML that needs nothing but itself.
//!
//! **Invariant:** it asks nobody for anything, and no word of a caller reaches it unescaped.

use std::fmt::Write as _;

use tiffin_kv_replay::{Compared, Report};

use super::replay::{ROWS, columns};
use crate::bench::plot::{Across, Line, Plot, escape};

const STYLE: &str = include_str!("../bench/report.css");
const TITLE: &str = "A trace through the KV hierarchy";
/// The looks of lines; more policies than looks repeat them.
const LOOKS: [&str; 4] = ["ours", "peer", "ours new", "peer best"];

/// The whole page.
pub(super) fn page(compared: &[Compared]) -> String {
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{TITLE}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<header>\n<h1>{TITLE}</h1>\n</header>\n<main>\n"
    );
    text.push_str("<section>\n<h2>Time to first token</h2>\n<div class=\"plots\">\n");
    for it in compared {
        let lines = [(&it.policy, LOOKS[0]), (&it.no_prefetch, LOOKS[1]), (&it.infinite, "floor")];
        text.push_str(&curve(&it.policy.policy, &lines).figure());
    }
    if compared.len() > 1 {
        let lines: Vec<_> = compared.iter().map(|it| &it.policy).zip(LOOKS.into_iter().cycle()).collect();
        text.push_str(&curve("All policies", &lines).figure());
    }
    text.push_str("</div>\n</section>\n");
    numbers(&columns(compared), &mut text);
    text.push_str("</main>\n</body>\n</html>\n");
    text
}

/// The part of requests that had their first token by then.
fn curve(title: &str, lines: &[(&Report, &'static str)]) -> Plot {
    let line = |(report, class): &(&Report, &'static str)| {
        let points = (1..).zip(&report.ttft_curve).filter(|(percent, _)| percent % 10 == 0 || *percent > 90);
        let points = points.map(|(percent, seconds)| (f64::from(percent), *seconds));
        Line { label: report.policy.clone(), class, points: points.collect() }
    };
    Plot {
        title: title.to_owned(),
        across: Across::Count,
        across_label: "percent of the requests",
        unit: "s",
        is_log: true,
        lines: lines.iter().map(line).collect(),
    }
}

fn numbers(columns: &[&Report], text: &mut String) {
    text.push_str(
        "<section>\n<h2>All numbers</h2>\n<div class=\"wide\"><table>\n<thead><tr><th scope=\"col\"></th>",
    );
    for report in columns {
        // Writing to a string cannot fail, here and below.
        let _ = write!(text, "<th scope=\"col\">{}</th>", escape(&report.policy));
    }
    text.push_str("</tr></thead>\n<tbody>\n");
    for (name, value) in ROWS {
        let _ = write!(text, "<tr><th scope=\"row\">{}</th>", escape(name.trim()));
        for report in columns {
            let _ = write!(text, "<td>{}</td>", escape(&value(report)));
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</tbody>\n</table></div>\n</section>\n");
}
