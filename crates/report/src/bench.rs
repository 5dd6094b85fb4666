//! The page of a benchmark.

use std::fmt::Write as _;

use crate::document::{Document, FLOOR, OURS, SHAPES, Series, Target};
use crate::page::{escape, page as frame};
use crate::plot::{Line, Plot, XAxis};
use crate::{number, size_text};

const PEER: &str = "mooncake";
/// The peer's shape in which a daemon of the same host shares memory with its clients.
const PEER_BEST: &str = "daemon";

/// The page of a document.
#[must_use]
pub fn page(document: &Document) -> String {
    let title = match (document.kind == "comparison", document.quick) {
        (true, false) => "Tiffin and Mooncake, side by side",
        (true, true) => "Tiffin and Mooncake, side by side (a quick run: the numbers are not meaningful)",
        (false, false) => "How fast Tiffin is",
        (false, true) => "How fast Tiffin is (a quick run: the numbers are not meaningful)",
    };
    let mut text = String::new();
    targets(&document.targets, &mut text);
    for shape in SHAPES {
        section(&format!("Single objects: {}", memory_location(shape)), &sizes(document, shape), &mut text);
    }
    section("Many clients at once", &clients(document), &mut text);
    section("Many objects in the store", &objects(document), &mut text);
    numbers(&document.series, &mut text);
    frame(title, &facts(document), &text)
}

/// Location of the memory, as text.
fn memory_location(shape: &str) -> &str {
    match shape {
        "same process" => "memory in the same process",
        "same host" => "memory in another process of the host",
        "tcp" => "memory behind a TCP socket",
        other => other,
    }
}

fn facts(document: &Document) -> String {
    let machine = &document.machine;
    let versions = document.versions.iter().map(|(name, version)| format!("{name} {version}"));
    let versions = versions.collect::<Vec<_>>().join(", ");
    let cores = if machine.cores == 1 { "core" } else { "cores" };
    let lines = [
        ("Version", versions),
        ("When", format!("{}, in {:.0} s", document.made, document.seconds)),
        (
            "Where",
            format!(
                "{}, {} {cores}, {}, Linux {}",
                machine.cpu,
                machine.cores,
                size_text(machine.memory),
                machine.kernel
            ),
        ),
    ];
    let mut text = String::from("<dl>\n");
    for (name, value) in lines {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(text, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(&value));
    }
    if !document.idle_cores.is_empty() {
        let each =
            document.idle_cores.iter().map(|(name, cores)| format!("{name} {:.1} %", cores.max(0.0) * 100.0));
        let each = escape(&each.collect::<Vec<_>>().join("; "));
        let _ =
            writeln!(text, "<div><dt>Idle</dt><dd>{each} of a core while others were measured</dd></div>");
    }
    text.push_str("</dl>\n");
    text
}

/// The table of targets, if there is one.
fn targets(targets: &[Target], text: &mut String) {
    let (mut rows, mut columns): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for target in targets {
        for (names, name) in [(&mut rows, &target.row), (&mut columns, &target.column)] {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
    }
    if targets.is_empty() {
        return;
    }
    let met = targets.iter().map(|it| usize::from(it.met) + usize::from(it.p99_met)).sum::<usize>();
    let _ = write!(
        text,
        "<section>\n<h2>Targets</h2>\n<p>{met} of {} are met. A cell is the ratio of ours to theirs, and \
         below it that of the 99th percentiles; a bulk target is also met by 85 % of what the machine itself \
         did in the same run.</p>\n<div class=\"wide\"><table class=\"targets\">\n<thead><tr><th></th>",
        2 * targets.len()
    );
    for column in &columns {
        let _ = write!(text, "<th scope=\"col\">{}</th>", escape(column));
    }
    text.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        let _ = write!(text, "<tr><th scope=\"row\">{}</th>", escape(row));
        for column in &columns {
            match targets.iter().find(|it| it.row == row && it.column == *column) {
                Some(target) => cell(target, text),
                None => text.push_str("<td></td>"),
            }
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</tbody>\n</table></div>\n</section>\n");
}

fn cell(target: &Target, text: &mut String) {
    let is_time = target.unit == "µs";
    let ratio = |faster: f64| number(if is_time { 1.0 / faster } else { faster });
    let badge =
        |met: bool| if met { "<b class=\"met\">✓ met</b>" } else { "<b class=\"missed\">✗ missed</b>" };
    let wanted = match target.target {
        Some(wanted) if is_time => format!("≤ {wanted} ×"),
        Some(wanted) => format!("≥ {wanted} ×"),
        None => "the floor".to_owned(),
    };
    let floor = target.of_floor.filter(|_| target.unit == "GB/s");
    let floor = floor.map_or_else(String::new, |it| format!("<span>{:.0} % of the floor</span>", it * 100.0));
    let (low, high) = (ratio(target.faster_low), ratio(target.faster_high));
    let unit = escape(&target.unit);
    let _ = write!(
        text,
        "<td title=\"tiffin {} {unit}, mooncake {} {unit}; repetitions from {low} to {high}\">\
         <strong>{} ×</strong> {}<span>wanted {wanted}</span><span>p99 {} × {}</span>{floor}</td>",
        number(target.tiffin),
        number(target.mooncake),
        ratio(target.faster),
        badge(target.met),
        ratio(target.p99_faster),
        badge(target.p99_met),
    );
}

/// Plots under a heading, if any of them has points.
fn section(title: &str, plots: &[Plot], text: &mut String) {
    let seen: Vec<&Plot> = plots.iter().filter(|plot| !plot.is_empty()).collect();
    if seen.is_empty() {
        return;
    }
    let _ = writeln!(text, "<section>\n<h2>{}</h2>\n<div class=\"plots\">", escape(title));
    for plot in seen {
        text.push_str(&plot.figure());
    }
    text.push_str("</div>\n</section>\n");
}

/// Latency and throughput by size, of gets and of puts.
fn sizes(document: &Document, shape: &str) -> Vec<Plot> {
    let mut plots = Vec::new();
    for (workload, title) in [("get_into", "Get"), ("put_from", "Put")] {
        let lines = |value: fn(&Series) -> f64, is_time: bool| {
            let find = |source: &str, shape: &str, keys: Option<&str>, names: &[&str]| {
                let fits = |it: &&Series| {
                    it.source == source
                        && it.shape == shape
                        && (it.clients, it.items, it.objects) == (1, 1, None)
                        && names.contains(&it.workload.as_str())
                        && (workload == "put_from" || source == FLOOR || it.keys.as_deref() == keys)
                };
                document.series.iter().filter(fits).map(|it| (it.size as f64, value(it))).collect::<Vec<_>>()
            };
            let names = [workload];
            let mut lines = vec![line("Tiffin", "ours", find(OURS, shape, Some("known"), &names))];
            if workload == "get_into" {
                lines.push(line("Tiffin, new keys", "ours new", find(OURS, shape, Some("new"), &names)));
            }
            lines.push(line("Mooncake", "peer", find(PEER, shape, Some("known"), &names)));
            if shape == "same host" {
                let best = find(PEER, PEER_BEST, Some("known"), &names);
                lines.push(line("Mooncake, its daemon", "peer best", best));
            }
            let floor = find(FLOOR, shape, None, &[workload, "memcpy", "stream"]);
            let label = if shape == "tcp" { "Floor: plain sockets" } else { "Floor: memcpy" };
            lines.push(line(label, "floor", best_of(floor, is_time)));
            lines
        };
        let plot = |title: String, unit, is_log, lines| Plot {
            title,
            x_axis: XAxis::Bytes,
            x_label: "size of the object",
            unit,
            is_log,
            lines,
        };
        plots.push(plot(format!("{title}: median time"), "µs", true, lines(|it| it.micros.p50, true)));
        plots.push(plot(format!("{title}: throughput"), "GB/s", true, lines(throughput, false)));
    }
    plots
}

/// A line; of several points with the same x, the first one counts.
fn line(label: &str, class: &'static str, points: Vec<(f64, f64)>) -> Line {
    let mut first: Vec<(f64, f64)> = Vec::new();
    for point in points {
        if !first.iter().any(|it| it.0.total_cmp(&point.0).is_eq()) {
            first.push(point);
        }
    }
    Line { label: label.to_owned(), class, points: first }
}

/// Of several points with the same x, the best: the floor is that of the fastest number of streams.
fn best_of(points: Vec<(f64, f64)>, less_is_better: bool) -> Vec<(f64, f64)> {
    let mut best: Vec<(f64, f64)> = Vec::new();
    for (x, y) in points {
        match best.iter_mut().find(|it| it.0.total_cmp(&x).is_eq()) {
            Some(old) => old.1 = if less_is_better { old.1.min(y) } else { old.1.max(y) },
            None => best.push((x, y)),
        }
    }
    best
}

/// Throughput of the median call.
fn throughput(series: &Series) -> f64 {
    (series.size * series.items) as f64 / series.micros.p50.max(f64::MIN_POSITIVE) / 1e3
}

/// Throughput by number of clients, for workloads that were measured with more than one.
fn clients(document: &Document) -> Vec<Plot> {
    let mut plots = Vec::new();
    for shape in ["same host", "tcp"] {
        for (workload, title) in [("get_into", "gets"), ("put_from", "puts")] {
            for size in [4 << 10, 1 << 20] {
                plots.push(clients_of(document, (shape, workload, title), size));
            }
        }
    }
    plots.retain(|plot| plot.lines.iter().any(|line| line.class != "floor" && line.points.len() > 1));
    plots
}

fn clients_of(document: &Document, (shape, workload, title): (&str, &str, &str), size: u64) -> Plot {
    let is_bulk = size >= 1 << 20;
    let find = |source: &str, shape: &str, names: &[&str]| {
        let fits = |it: &&Series| {
            it.source == source
                && it.shape == shape
                && (it.items, it.size, it.objects) == (1, size, None)
                && names.contains(&it.workload.as_str())
                && it.keys.as_deref() != Some("new")
        };
        let value = |it: &Series| if is_bulk { it.bytes_per_second / 1e9 } else { it.calls_per_second / 1e3 };
        let mut points: Vec<(f64, f64)> = Vec::new();
        for it in document.series.iter().filter(fits) {
            points.push((it.clients as f64, value(it)));
        }
        points
    };
    let mut lines = vec![
        line("Tiffin", "ours", find(OURS, shape, &[workload])),
        line("Mooncake", "peer", find(PEER, shape, &[workload])),
    ];
    if shape == "same host" {
        lines.push(line("Mooncake, its daemon", "peer best", find(PEER, PEER_BEST, &[workload])));
        if is_bulk {
            lines.push(line("Floor: memcpy", "floor", find(FLOOR, shape, &["memcpy"])));
        }
    }
    Plot {
        title: format!("{} {title}, {}", size_text(size).replace(".0 ", " "), memory_location(shape)),
        x_axis: XAxis::Count,
        x_label: "client processes",
        unit: if is_bulk { "GB/s" } else { "thousand calls/s" },
        is_log: false,
        lines,
    }
}

/// Time of a get by number of objects in the store.
fn objects(document: &Document) -> Vec<Plot> {
    let points = |source: &str, value: fn(&Series) -> f64| {
        let of = document.series.iter().filter(|it| it.source == source && it.workload == "get_into");
        of.filter_map(|it| Some((it.objects? as f64, value(it)))).collect::<Vec<_>>()
    };
    let lines = vec![
        line("Tiffin", "ours", points(OURS, |it| it.micros.p50)),
        line("Tiffin, 99th percentile", "ours new", points(OURS, |it| it.micros.p99)),
        line("Mooncake", "peer", points(PEER, |it| it.micros.p50)),
        line("Mooncake, 99th percentile", "peer best", points(PEER, |it| it.micros.p99)),
    ];
    vec![Plot {
        title: "Get of a new key".to_owned(),
        x_axis: XAxis::Count,
        x_label: "objects in the store",
        unit: "µs",
        is_log: true,
        lines,
    }]
}

/// The table of all numbers.
fn numbers(series: &[Series], text: &mut String) {
    text.push_str(
        "<section>\n<h2>All numbers</h2>\n<details>\n<summary>Show the table</summary>\n\
         <div class=\"wide\"><table class=\"numbers\">\n<thead><tr>",
    );
    let head =
        ["source", "memory", "workload", "size", "keys", "clients", "calls", "p50 µs", "p90 µs", "p99 µs"];
    for name in head.iter().chain(&["p99.9 µs", "max µs", "calls/s", "GB/s"]) {
        let _ = write!(text, "<th scope=\"col\">{name}</th>");
    }
    text.push_str("</tr></thead>\n<tbody>\n");
    for one in series {
        let micros = one.micros;
        let words = [&one.source, &one.shape, &one.name(), &one.call_size()].map(|it| escape(it));
        let keys = escape(one.keys.as_deref().unwrap_or_default());
        text.push_str("<tr>");
        for word in words.iter().chain([&keys]) {
            let _ = write!(text, "<td>{word}</td>");
        }
        let _ = write!(text, "<td>{}</td><td>{}</td>", one.clients, one.calls);
        let gigabytes = one.bytes_per_second / 1e9;
        let times = [micros.p50, micros.p90, micros.p99, micros.p999, micros.max];
        for value in times.iter().chain(&[one.calls_per_second, gigabytes]) {
            let _ = write!(text, "<td>{}</td>", number(*value));
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</tbody>\n</table></div>\n</details>\n</section>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_run_says_so_in_its_title() {
        let mut document = Document::new(Vec::new(), 1.0);
        for (kind, quick) in
            [("benchmark", false), ("comparison", false), ("benchmark", true), ("comparison", true)]
        {
            document.kind = kind.to_owned();
            document.quick = quick;
            let text = page(&document);
            let title = text.split("<h1>").nth(1).and_then(|it| it.split("</h1>").next()).unwrap_or_default();
            assert_eq!(title.contains("quick"), quick, "{title}");
            assert!(text.contains(&format!("<title>{title}</title>")), "{title}");
        }
    }
}
