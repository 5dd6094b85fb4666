//! `tiffin kv replay`: runs a trace through the hierarchy in virtual time, for one or several policies.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::time::SystemTime;

use bytesize::ByteSize;
use serde_json::json;
use tiffin_kv::config::PAGE_TOKENS_MAX;
use tiffin_kv::{Budgets, Config};
use tiffin_kv_replay::generate::{Traffic, generate};
use tiffin_kv_replay::trace::{self, TraceRequest};
use tiffin_kv_replay::{Comparison, Machine, Report, compare};
use tiffin_report::replay::{Origin, Row};
use tiffin_server::config;

use super::policy::PolicyText;
use crate::console::{Console, Failure, STATUS_OK};
use crate::show::{self, Table};

/// Maximum number of policies per call.
const POLICIES_MAX: usize = 4;

/// Replays a trace of requests through device, host and store, and shows where pages were found.
///
/// Time is virtual: pages move at the given bandwidths, prompts are computed one after the other. Every
/// policy is replayed three times: as it is, without probes of the store, and with a device that holds
/// everything. A trace has one JSON object per line, as Mooncake's public ones: `timestamp`, `input_length`,
/// `output_length`, `hash_ids`.
#[derive(Debug, clap::Args)]
pub(crate) struct Replay {
    /// The file with the trace.
    #[arg(value_name = "TRACE", required_unless_present = "generate")]
    trace: Option<PathBuf>,

    /// Generate a trace of this many requests instead: conversations and agents.
    #[arg(long, value_name = "N", conflicts_with = "trace")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    generate: Option<u64>,

    /// Seed of a generated trace.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,

    /// Requests per second of a generated trace.
    #[arg(long, default_value_t = 2.0, value_name = "N", value_parser = parse_rate)]
    rate: f64,

    /// Pages on the device.
    #[arg(long, default_value_t = 1000, value_name = "N")]
    device_pages: u32,

    /// Pages in host memory.
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    host_pages: u32,

    /// Capacity of the store in pages: `none`, `infinite` or a number.
    #[arg(long, default_value = "infinite", value_name = "PAGES", value_parser = parse_store)]
    l3: StoreSize,

    /// The policy, as in `eviction=s3-fifo,write=back,stop=best-effort,index=flat`; may be repeated to
    /// compare policies.
    #[arg(long = "policy", value_name = "WORDS", default_value = "eviction=lru")]
    policies: Vec<PolicyText>,

    /// Minimum size of a fetch in pages: with `start=hits`, which is the default, a fetch starts if the store
    /// has more pages than this; with `start=missing`, if at least this many are missing.
    #[arg(long, default_value_t = 0, value_name = "N")]
    threshold: u32,

    /// Maximum number of requests on the device.
    #[arg(long, default_value_t = 256, value_name = "N")]
    running: u32,

    /// Tokens of a page, and of a block of the trace.
    #[arg(long, default_value_t = 512, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(PAGE_TOKENS_MAX)))]
    page_tokens: u32,

    /// Bytes of a page.
    #[arg(long, default_value = "34MiB", value_name = "SIZE", value_parser = config::size)]
    page_bytes: ByteSize,

    /// Bandwidth between store and host, per second.
    #[arg(long, default_value = "12GB", value_name = "SIZE", value_parser = config::size)]
    l3_bandwidth: ByteSize,

    /// Bandwidth between host and device, per second.
    #[arg(long, default_value = "50GB", value_name = "SIZE", value_parser = config::size)]
    device_bandwidth: ByteSize,

    /// Prompt tokens computed per second.
    #[arg(long, default_value_t = 40_000, value_name = "N")]
    prefill: u64,

    /// The file for a report with plots.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Capacity of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreSize {
    None,
    Infinite,
    Pages(u64),
}

fn parse_store(text: &str) -> Result<StoreSize, String> {
    match text {
        "none" => Ok(StoreSize::None),
        "infinite" => Ok(StoreSize::Infinite),
        number => number
            .parse()
            .map(StoreSize::Pages)
            .map_err(|_| "not `none`, `infinite` or a number of pages".to_owned()),
    }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| "not a positive number of requests per second".to_owned())
}

/// Replays the trace for every policy. Returns the reports as JSON.
pub(super) fn json(replay: &Replay) -> Result<String, Failure> {
    let trace = load(replay)?;
    let compared = compare_policies(replay, &trace)?;
    if let Some(path) = &replay.output {
        std::fs::write(path, page(&origin(replay), &compared))
            .map_err(|error| Failure::file("write", path, &error))?;
    }
    Ok(json!({ "policies": compared }).to_string())
}

/// Replays the trace for every policy, and prints the reports.
pub(crate) async fn run(replay: Replay, console: &mut Console) -> Result<i32, Failure> {
    let trace = load(&replay)?;
    let unit = if trace.len() == 1 { "request" } else { "requests" };
    console.note(format!("{} {unit}", trace.len()));
    let (output, origin) = (replay.output.clone(), origin(&replay));
    let work = tokio::task::spawn_blocking(move || compare_policies(&replay, &trace));
    let compared = work.await.map_err(|error| Failure::new("internal", error))??;
    if let Some(path) = output {
        let fail = |error| Failure::file("write", &path, &error);
        std::fs::write(&path, page(&origin, &compared)).map_err(fail)?;
        console.note(format!("the report is in `{}`", path.display()));
    }
    if console.json {
        console.value(&json!({ "policies": compared }))?;
    } else {
        console.text(table(&compared))?;
        left_out(&compared).into_iter().for_each(|why| console.note(format!("\nnote: {why}")));
    }
    Ok(STATUS_OK)
}

fn load(replay: &Replay) -> Result<Vec<TraceRequest>, Failure> {
    if replay.policies.len() > POLICIES_MAX {
        let text = format!("{} policies exceed the maximum of {POLICIES_MAX}", replay.policies.len());
        return Err(Failure::new("usage", text).hint("compare them in several calls"));
    }
    let Some(path) = &replay.trace else {
        let traffic = Traffic {
            requests: replay.generate.unwrap_or_default(),
            rate: replay.rate,
            page_tokens: replay.page_tokens,
            seed: replay.seed,
            ..Traffic::default()
        };
        return Ok(generate(&traffic));
    };
    let file = File::open(path).map_err(|error| Failure::file("read", path, &error))?;
    let requests = trace::read(BufReader::new(file), replay.page_tokens)
        .map_err(|error| Failure::new("trace", format!("`{}`, {error}", path.display())))?;
    if requests.is_empty() {
        let text = format!("`{}` has no request", path.display());
        return Err(Failure::new("trace", text).hint("name another file, or use `--generate`"));
    }
    Ok(requests)
}

fn compare_policies(replay: &Replay, trace: &[TraceRequest]) -> Result<Vec<Comparison>, Failure> {
    let mut machine = Machine {
        page_tokens: replay.page_tokens,
        page_bytes: replay.page_bytes.as_u64(),
        prefill_tokens_per_second: replay.prefill,
        ..Machine::default()
    };
    for link in [&mut machine.fetch, &mut machine.backup] {
        link.bytes_per_second = replay.l3_bandwidth.as_u64();
    }
    for link in [&mut machine.load, &mut machine.save] {
        link.bytes_per_second = replay.device_bandwidth.as_u64();
    }
    let has_store = replay.l3 != StoreSize::None;
    let budget = (replay.host_pages / 4).max(1);
    let config = Config {
        page_tokens: replay.page_tokens,
        device_pages: replay.device_pages,
        host_pages: replay.host_pages,
        // Policies and the threshold are set for each policy.
        store: Config::default().store.filter(|_| has_store),
        budgets: Budgets { probes: 256, fetch_pages: budget, save_pages: budget, backup_pages: budget },
        running_max: replay.running,
        op_timeout: 120_000_000,
        hint_interval: 10_000_000,
        ..Config::default()
    };
    let pages = match replay.l3 {
        StoreSize::Pages(pages) => Some(pages),
        StoreSize::None | StoreSize::Infinite => None,
    };
    let policies = replay.policies.iter().map(|words| words.policy(config, replay.threshold, pages));
    let policies: Vec<_> = policies.collect();
    compare(trace, &machine, &policies).map_err(|error| Failure::new("config", error))
}

/// Shown where there is no measurement.
const NO_VALUE: &str = "-";

/// The rows of the table.
const ROWS: [Row; 20] = [
    ("requests", |it| it.requests.to_string()),
    ("  served", |it| it.served.to_string()),
    ("  refused", |it| it.refused.to_string()),
    ("  compared", |it| it.compared.to_string()),
    ("hit rate, tokens", |it| percent(it.hits.rate())),
    ("  device", |it| percent(fraction(it.hits.device_tokens, it))),
    ("  host", |it| percent(fraction(it.hits.host_tokens, it).filter(|_| it.tiers.host))),
    ("  store", |it| percent(fraction(it.hits.store_tokens, it).filter(|_| it.tiers.store))),
    ("TTFT p50", |it| seconds(it.ttft.map(|ttft| ttft.p50))),
    ("TTFT p95", |it| seconds(it.ttft.map(|ttft| ttft.p95))),
    ("TTFT p99", |it| seconds(it.ttft.map(|ttft| ttft.p99))),
    ("prefetch accuracy", |it| percent(it.prefetch.accuracy())),
    ("prefetch in time", |it| percent(it.prefetch.timeliness())),
    ("store → host", |it| show::size(it.edges.fetch_bytes)),
    ("host → device", |it| show::size(it.edges.load_bytes)),
    ("device → host", |it| show::size(it.edges.save_bytes)),
    ("host → store", |it| show::size(it.edges.backup_bytes)),
    ("duplicate pages", |it| it.duplicate_pages.to_string()),
    ("retractions", |it| it.retractions.to_string()),
    ("replayed in", |it| seconds(Some(it.wall_seconds))),
];

/// All reports, in the order of the table's columns. The infinite device does not depend on the policy.
fn columns(compared: &[Comparison]) -> Vec<&Report> {
    let mut columns: Vec<_> = compared.iter().flat_map(|it| [&it.policy, &it.no_prefetch]).collect();
    columns.extend(compared.first().map(|it| &it.infinite));
    columns
}

/// What is replayed: enough to do it again.
fn origin(replay: &Replay) -> Origin {
    let trace = match &replay.trace {
        Some(path) => format!("`{}`", path.display()),
        None => {
            let count = replay.generate.unwrap_or_default();
            format!("generated: {count} requests, {} a second, seed {}", replay.rate, replay.seed)
        }
    };
    Origin {
        trace,
        command: command(replay),
        version: format!("tiffin {}", env!("CARGO_PKG_VERSION")),
        made: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
    }
}

/// The command with all flags that change numbers, also those that have their default.
fn command(replay: &Replay) -> String {
    let mut words = vec![String::from("tiffin kv replay")];
    match &replay.trace {
        Some(path) => words.push(path.display().to_string()),
        None => {
            let count = replay.generate.unwrap_or_default();
            words.push(format!("--generate {count} --seed {} --rate {}", replay.seed, replay.rate));
        }
    }
    let store = match replay.l3 {
        StoreSize::None => String::from("none"),
        StoreSize::Infinite => String::from("infinite"),
        StoreSize::Pages(pages) => pages.to_string(),
    };
    let flags = [
        ("device-pages", replay.device_pages.to_string()),
        ("host-pages", replay.host_pages.to_string()),
        ("l3", store),
        ("threshold", replay.threshold.to_string()),
        ("running", replay.running.to_string()),
        ("page-tokens", replay.page_tokens.to_string()),
        ("page-bytes", replay.page_bytes.as_u64().to_string()),
        ("l3-bandwidth", replay.l3_bandwidth.as_u64().to_string()),
        ("device-bandwidth", replay.device_bandwidth.as_u64().to_string()),
        ("prefill", replay.prefill.to_string()),
    ];
    words.extend(flags.into_iter().map(|(name, value)| format!("--{name} {value}")));
    words.extend(replay.policies.iter().map(|policy| format!("--policy {policy}")));
    words.join(" ")
}

/// The report as a page.
fn page(origin: &Origin, compared: &[Comparison]) -> String {
    let note = left_out(compared);
    tiffin_report::replay::page(origin, compared, &ROWS, &columns(compared), note.as_deref())
}

fn table(compared: &[Comparison]) -> Table {
    let columns = columns(compared);
    let head: Vec<&str> = std::iter::once("").chain(columns.iter().map(|it| it.policy.as_str())).collect();
    let mut table = Table::new(&head);
    for (name, value) in ROWS {
        table.row(std::iter::once(name.to_owned()).chain(columns.iter().map(|it| value(it))));
    }
    table
}

/// Why hits and times do not cover the whole trace, if they do not.
fn left_out(compared: &[Comparison]) -> Option<String> {
    let reports = columns(compared);
    let of_all = reports.iter().map(|it| (it.compared, it.requests)).next();
    of_all.filter(|(compared, requests)| compared < requests).map(|(compared, requests)| {
        format!(
            "hits and times cover the {compared} of {requests} requests that every column served; a refused \
             request needs more pages than the device has"
        )
    })
}

fn fraction(tokens: u64, report: &Report) -> Option<f64> {
    let asked = report.hits.asked_tokens;
    (asked > 0).then(|| tokens as f64 / asked as f64)
}

fn percent(fraction: Option<f64>) -> String {
    fraction.map_or_else(|| NO_VALUE.to_owned(), |fraction| format!("{:.1} %", fraction * 100.0))
}

fn seconds(seconds: Option<f64>) -> String {
    match seconds {
        None => NO_VALUE.to_owned(),
        Some(seconds) if seconds < 10.0 => format!("{seconds:.3} s"),
        Some(seconds) => format!("{seconds:.1} s"),
    }
}
