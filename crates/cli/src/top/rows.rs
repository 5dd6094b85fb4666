//! The lists of `tiffin top`, from a snapshot. All texts are escaped here.

use serde_json::Value;
use tiffin_types::units::Count;

use crate::{events, show};

/// A list: its name, and its columns. The first column is a name, the others are numbers or states.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tab {
    pub(super) title: &'static str,
    pub(super) columns: &'static [&'static str],
    pub(super) sorted_by: usize,
    pub(super) largest_first: bool,
}

/// All lists.
pub(super) const TABS: [Tab; 5] = [
    Tab {
        title: "nodes",
        columns: &["node", "tier", "state", "fill", "in use", "capacity", "in view", "objects"],
        sorted_by: 0,
        largest_first: false,
    },
    Tab {
        title: "namespaces",
        columns: &["namespace", "objects", "size", "used", "quota", "pinned", "samples", "waiting"],
        sorted_by: 3,
        largest_first: true,
    },
    Tab {
        title: "streams",
        columns: &["stream", "namespace", "state", "samples", "in flight", "lag", "leased", "consumers"],
        sorted_by: 4,
        largest_first: true,
    },
    Tab {
        title: "operations",
        columns: &["operation", "by", "path", "per second", "bytes/s", "p50", "p99", "total"],
        sorted_by: 3,
        largest_first: true,
    },
    Tab { title: "events", columns: &["event"], sorted_by: 0, largest_first: true },
];

/// The rows of a list.
pub(super) struct List {
    pub(super) rows: Vec<Row>,
    /// The number of rows that the server has left out.
    pub(super) more: u64,
}

/// A cell: its text, and its value for sorting.
pub(super) struct Cell {
    pub(super) text: String,
    value: Sorted,
}

/// Texts come after numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sorted {
    Number(u64),
    Text(String),
}

/// A row, and what it shows when it is opened.
pub(super) struct Row {
    /// Names the row among those of its list.
    pub(super) id: String,
    pub(super) cells: Vec<Cell>,
    pub(super) inner: Vec<String>,
    /// The history of an operation, per second.
    pub(super) history: Vec<u64>,
    pub(super) is_bad: bool,
}

impl Row {
    pub(super) fn key(&self, column: usize) -> Option<&Sorted> {
        self.cells.get(column).map(|it| &it.value)
    }
}

/// The rows of the list with this number.
pub(super) fn list(snapshot: &Value, tab: usize) -> List {
    let (name, row): (&str, fn(&Value) -> Row) = match tab {
        0 => ("nodes", node),
        1 => ("namespaces", namespace),
        2 => ("streams", stream),
        3 => ("operations", operation),
        _ => ("events", event),
    };
    let rows = snapshot[name].as_array().into_iter().flatten().map(row).collect();
    List { rows, more: number(&snapshot["more"], name) }
}

/// A text of the snapshot, escaped.
pub(super) fn text(value: &Value, name: &str) -> String {
    show::key(value[name].as_str().unwrap_or_default().as_bytes())
}

/// A number of the snapshot.
pub(super) fn number(value: &Value, name: &str) -> u64 {
    let found = &value[name];
    found.as_u64().unwrap_or_else(|| found.as_f64().unwrap_or_default().max(0.0) as u64)
}

/// A latency.
pub(super) fn latency(us: Option<u64>) -> String {
    match us {
        None => "-".to_owned(),
        Some(us) if us < 1000 => format!("{us} µs"),
        Some(us) if us < 1_000_000 => format!("{} ms", us / 1000),
        Some(us) => format!("{} s", us / 1_000_000),
    }
}

/// A part in percent.
pub(super) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{} %", (u128::from(part) * 100 / u128::from(whole))) }
}

fn named(value: String) -> Cell {
    Cell { text: value.clone(), value: Sorted::Text(value) }
}

fn counted(value: u64) -> Cell {
    Cell { text: value.to_string(), value: Sorted::Number(value) }
}

fn sized(value: u64) -> Cell {
    Cell { text: show::size(value), value: Sorted::Number(value) }
}

fn holders(value: &Value) -> Vec<String> {
    let holder = |it: &Value| {
        let (kept, by, objects) = (text(it, "kept"), text(it, "by"), number(it, "objects"));
        format!("{kept} by {by}: {}, {}", Count(objects, "object"), show::size(number(it, "bytes")))
    };
    value["holders"].as_array().into_iter().flatten().map(holder).collect()
}

fn node(it: &Value) -> Row {
    let (used, capacity) = (number(it, "used"), number(it, "capacity"));
    let fill = used.saturating_mul(1000) / capacity.max(1);
    let fill = Cell { text: percent(used, capacity), value: Sorted::Number(fill) };
    let transfer = |it: &Value| {
        format!(
            "{} through {}: {}, {}, p50 {}, p99 {}",
            text(it, "operation"),
            text(it, "path"),
            Count(number(it, "count"), "transfer"),
            show::size(number(it, "bytes")),
            latency(it["p50_us"].as_u64()),
            latency(it["p99_us"].as_u64())
        )
    };
    let mut inner = vec![
        format!("host {}, address {}", text(it, "host"), text(it, "address")),
        format!(
            "free {}, reserved {}, in view {}, metadata {}, {}",
            show::size(number(it, "free")),
            show::size(number(it, "reserved")),
            show::size(number(it, "in_view")),
            show::size(number(it, "metadata")),
            Count(number(it, "owed"), "pending removal")
        ),
    ];
    inner.extend(it["transfers"].as_array().into_iter().flatten().map(transfer));
    inner.extend(holders(it));
    let state = text(it, "state");
    Row {
        id: format!("{} {}", text(it, "tier"), text(it, "name")),
        is_bad: state != "ok",
        cells: vec![
            named(text(it, "name")),
            named(text(it, "tier")),
            named(state),
            fill,
            sized(number(it, "in_use")),
            sized(capacity),
            sized(number(it, "in_view")),
            counted(number(it, "objects")),
        ],
        inner,
        history: Vec::new(),
    }
}

fn namespace(it: &Value) -> Row {
    let quota = match it["quota"].as_u64() {
        Some(quota) => Cell {
            text: format!("{} of {}", percent(number(it, "used"), quota), show::size(quota)),
            value: Sorted::Number(quota),
        },
        None => Cell { text: "none".to_owned(), value: Sorted::Number(0) },
    };
    let owner = |it: &Value| {
        let owner = text(it, "owner");
        let owner = if owner.is_empty() { "no owner".to_owned() } else { owner };
        let objects = Count(number(it, "objects"), "object");
        format!("pinned by {owner}: {objects}, {}", show::size(number(it, "bytes")))
    };
    let mut inner: Vec<_> = it["owners"].as_array().into_iter().flatten().map(owner).collect();
    inner.extend(holders(it));
    inner.push(format!(
        "{}, {} leased, {} expired, the oldest {} s old",
        Count(number(it, "samples"), "sample"),
        number(it, "samples_leased"),
        number(it, "samples_expired"),
        number(it, "sample_age_ms") / 1000
    ));
    Row {
        id: text(it, "name"),
        is_bad: number(it, "waiting") > 0,
        cells: vec![
            named(text(it, "name")),
            counted(number(it, "objects")),
            sized(number(it, "bytes")),
            sized(number(it, "used")),
            quota,
            sized(number(it, "pinned_bytes")),
            counted(number(it, "samples")),
            counted(number(it, "waiting")),
        ],
        inner,
        history: Vec::new(),
    }
}

fn stream(it: &Value) -> Row {
    let groups = || it["groups"].as_array().into_iter().flatten();
    let is = |name: &str| it[name].as_bool().unwrap_or_default();
    let failure = text(it, "failure");
    let state = match (failure.is_empty(), is("ended"), is("blocked")) {
        (false, ..) => "failed",
        (_, true, _) => "ended",
        (.., true) => "puts wait",
        _ => "open",
    };
    let group = |it: &Value| {
        let (lag, leased, acked) = (number(it, "lag"), number(it, "leased"), number(it, "acked"));
        let (name, consumers) = (text(it, "group"), number(it, "consumers"));
        let consumers = Count(consumers, "consumer");
        format!("group {name}: lag {lag}, leased {leased}, {consumers}, {acked} acknowledged")
    };
    let mut inner = vec![format!(
        "{} put, {} consumed in this epoch {failure}",
        number(it, "appended"),
        number(it, "consumed")
    )];
    inner.extend(groups().map(group));
    Row {
        id: format!("{} {}", text(it, "namespace"), text(it, "name")),
        is_bad: matches!(state, "failed" | "puts wait"),
        cells: vec![
            named(text(it, "name")),
            named(text(it, "namespace")),
            named(state.to_owned()),
            counted(number(it, "samples")),
            sized(number(it, "in_flight_bytes")),
            counted(groups().map(|it| number(it, "lag")).max().unwrap_or_default()),
            counted(groups().map(|it| number(it, "leased")).sum()),
            counted(groups().map(|it| number(it, "consumers")).sum()),
        ],
        inner,
        history: Vec::new(),
    }
}

fn operation(it: &Value) -> Row {
    let timed = |name: &str| Cell {
        text: latency(it[name].as_u64()),
        value: Sorted::Number(it[name].as_u64().unwrap_or_default()),
    };
    let rate = it["per_second"].as_f64().unwrap_or_default();
    let text_of_rate = if rate > 0.0 && rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") };
    let rates = it["rates"].as_array().into_iter().flatten();
    Row {
        id: ["operation", "side", "path"].map(|name| text(it, name)).join(" "),
        is_bad: false,
        cells: vec![
            named(text(it, "operation")),
            named(text(it, "side")),
            named(text(it, "path").replace('_', " ")),
            Cell { text: text_of_rate, value: Sorted::Number((rate * 1000.0) as u64) },
            sized(number(it, "bytes_per_second")),
            timed("p50_us"),
            timed("p99_us"),
            counted(number(it, "total")),
        ],
        inner: vec![format!("p90 {}; rates of the last five minutes:", latency(it["p90_us"].as_u64()))],
        history: rates.map(|it| it.as_f64().unwrap_or_default().max(0.0).ceil() as u64).collect(),
    }
}

fn event(it: &Value) -> Row {
    Row {
        id: number(it, "number").to_string(),
        is_bad: text(it, "level") != "info",
        cells: vec![Cell { text: events::line(it), value: Sorted::Number(number(it, "number")) }],
        inner: vec![text(it, "subject"), text(it, "text")],
        history: Vec::new(),
    }
}
