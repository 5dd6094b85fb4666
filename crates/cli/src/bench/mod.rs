//! `tiffin bench`: the speed of the store on this machine, relative to the limits of the machine itself.
//!
//! Clients are separate processes, in every shape; each workload is prepared, warmed up and then measured for
//! a limited time or number of calls. The floor is measured in the same run, under the same conditions.

mod device;
mod floor;
mod plan;
mod processes;
mod table;
mod worker;

use std::path::{Path, PathBuf};
use std::time::Instant;

use bytesize::ByteSize;
use clap::Subcommand;
use tiffin_report::document::{Document, FLOOR, OURS, ReadError, Series, Times};
use tiffin_server::config;

pub(crate) use worker::{Worker, run as work};

use crate::Context;
use crate::console::{Console, Failure, STATUS_OK};
use crate::show;
use crate::torture::{Cluster, Program};
use plan::{Limit, Shape, Task, Workload};
use processes::ClientGroup;

/// Numbers of streams of the floor of sockets.
const STREAMS: [u64; 3] = [1, 2, 4];
/// Limits of each measurement with `--quick`.
const QUICK: Limit = Limit { seconds: 0.02, calls: 100 };
/// Memory of the store with `--quick`.
const QUICK_MEMORY: u64 = 256 << 20;
/// Width of the progress bar, in characters.
const BAR_CHARS: usize = 24;

/// Measures the speed of a store: puts, gets, batches, samples, pages; in one process, between two, and
/// through sockets; with one client and with many; and, for comparison, memory and sockets without a store.
///
/// Starts stores of its own, on loopback, and stops them.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Bench {
    #[command(subcommand)]
    action: Option<Action>,

    /// Measure everything briefly, in seconds, to check that it works; the numbers are not meaningful.
    #[arg(long)]
    quick: bool,

    /// Duration of each measurement.
    #[arg(long, default_value_t = 0.5, value_name = "N", value_parser = seconds)]
    seconds: f64,

    /// Maximum number of calls of each measurement.
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    calls: u64,

    /// Measure only this shape; may be repeated.
    #[arg(long)]
    shape: Vec<Shape>,

    /// Measure only this workload; may be repeated.
    #[arg(long)]
    workload: Vec<Workload>,

    /// Numbers of concurrent client processes.
    #[arg(long, default_value = "1,2,4,8", value_delimiter = ',', value_name = "N,…")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=64))]
    clients: Vec<u64>,

    /// Memory of the stores.
    #[arg(long, default_value = "1GiB", value_name = "SIZE", value_parser = config::size)]
    memory: ByteSize,

    /// Measure puts and gets with memory of this CUDA device instead, in turns with bare copies between the
    /// device and pinned memory: `cuda:0`.
    #[arg(long, value_name = "DEVICE", value_parser = device::number)]
    #[arg(conflicts_with_all = ["shape", "workload", "clients", "peer", "report"])]
    device: Option<u32>,

    /// A file written by `make bench`: its numbers of the other store are added to the report.
    #[arg(long, value_name = "FILE")]
    peer: Option<PathBuf>,

    /// Write a report with plots into this file: a self-contained page of HTML.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Action {
    Report(Report),
}

/// Renders results of benchmarks as a page with plots.
#[derive(Debug, clap::Args)]
struct Report {
    /// Files written by `tiffin bench --json` or `make bench`; several are merged.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// The file for the page.
    #[arg(short, long, default_value = "report.html", value_name = "FILE")]
    output: PathBuf,
}

/// A duration of a measurement: more than nothing, at most an hour.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "it is not a number".to_owned())?;
    match (0.001..=3600.0).contains(&seconds) {
        true => Ok(seconds),
        false => Err("it is not between 0.001 and 3600".to_owned()),
    }
}

impl Bench {
    /// The limit of each measurement, and the memory of the stores.
    fn bounds(&self) -> (Limit, u64) {
        let limit = Limit { seconds: self.seconds.clamp(0.001, 3600.0), calls: self.calls };
        if self.quick { (QUICK, QUICK_MEMORY) } else { (limit, self.memory.as_u64()) }
    }
}

/// Measures, or renders earlier results.
pub(crate) async fn run(bench: Bench, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    if let Some(Action::Report(report)) = &bench.action {
        return render(report, console);
    }
    if let Some(device) = bench.device {
        let (limit, memory) = bench.bounds();
        let (document, table) = device::run(device, limit, memory, console).await?;
        if console.json {
            console.value(&document)?;
        } else {
            console.text(table)?;
        }
        return Ok(STATUS_OK);
    }
    // Unreadable or unwritable files are reported before the measurement.
    let peer = bench.peer.as_deref().map(read).transpose()?;
    if let Some(path) = &bench.report {
        write(path, "")?;
    }
    let began = Instant::now();
    let mut run = Run::new(&bench, Program::own(context, String::new()));
    let measured = run.run_all(console).await;
    run.progress.clear(console);
    measured?;
    let mut document = Document::new(run.series, began.elapsed().as_secs_f64());
    document.quick = run.bench.quick;
    if console.json {
        console.value(&document)?;
    } else {
        console.text(table::table(&document.series))?;
    }
    if let Some(peer) = peer {
        document.add_peer(peer);
    }
    if let Some(path) = &bench.report {
        write(path, &tiffin_report::bench::page(&document))?;
        console.note(format!("the report is in `{}`", path.display()));
    }
    Ok(STATUS_OK)
}

fn render(report: &Report, console: &mut Console) -> Result<i32, Failure> {
    let mut whole: Option<Document> = None;
    for file in &report.files {
        let document = read(file)?;
        match &mut whole {
            Some(whole) => whole.add(document),
            None => whole = Some(document),
        }
    }
    if let Some(document) = whole {
        write(&report.output, &tiffin_report::bench::page(&document))?;
        if console.json {
            console.value(&serde_json::json!({ "report": report.output }))?;
        } else {
            console.note(format!("the report is in `{}`", report.output.display()));
        }
    }
    Ok(STATUS_OK)
}

/// Reads the results of a benchmark.
fn read(path: &Path) -> Result<Document, Failure> {
    Document::read(path).map_err(|error| match &error {
        ReadError::File { path, source } => Failure::file("read", path, source),
        ReadError::Format { .. } => Failure::new("invalid", error.to_string())
            .hint("name a file written by `tiffin bench --json` or `make bench`"),
    })
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| Failure::file("write", path, &error))
}

/// A running benchmark.
struct Run<'a> {
    bench: &'a Bench,
    program: Program,
    limit: Limit,
    memory: u64,
    tasks: Vec<Task>,
    growth: Vec<Task>,
    series: Vec<Series>,
    progress: Progress,
}

impl<'a> Run<'a> {
    fn new(bench: &'a Bench, program: Program) -> Self {
        let (limit, memory) = bench.bounds();
        let tasks = plan::tasks(&bench.workload, bench.quick);
        let growth = plan::growth(&bench.workload, bench.quick);
        let mut run = Self {
            bench,
            program,
            limit,
            memory,
            tasks,
            growth,
            series: Vec::new(),
            progress: Progress::default(),
        };
        let several = run.shapes().filter(|it| *it != Shape::Process).count();
        run.progress.steps = run.shapes().count() * run.tasks.len()
            + several * run.growth.len() * run.clients().len()
            + run.floors();
        run
    }

    fn shapes(&self) -> impl Iterator<Item = Shape> {
        let wanted = self.bench.shape.clone();
        Shape::ALL.into_iter().filter(move |it| wanted.is_empty() || wanted.contains(it))
    }

    fn clients(&self) -> Vec<u64> {
        if self.bench.quick { vec![1, 2] } else { self.bench.clients.clone() }
    }

    /// The sizes with a floor: those of single objects.
    fn sizes(&self) -> Vec<u64> {
        let gets = self.tasks.iter().filter(|task| task.workload == Workload::Get && task.items == 1);
        let mut sizes: Vec<u64> = gets.map(|task| task.size).collect();
        sizes.dedup();
        sizes
    }

    fn floors(&self) -> usize {
        self.sizes().len() * (1 + STREAMS.len()) + 2 + self.growth.len() * self.clients().len()
    }

    async fn run_all(&mut self, console: &mut Console) -> Result<(), Failure> {
        for shape in self.shapes().collect::<Vec<_>>() {
            self.shape(shape, console).await?;
        }
        self.floor(console)?;
        Ok(())
    }

    /// Runs all workloads in one shape.
    async fn shape(&mut self, shape: Shape, console: &mut Console) -> Result<(), Failure> {
        let cluster = match shape {
            Shape::Process => None,
            Shape::Host | Shape::Tcp => {
                Some(Cluster::start(&self.program, &[], 1, self.memory, shape == Shape::Host).await?)
            }
        };
        let address = cluster.as_ref().map(|it| it.address.clone()).unwrap_or_default();
        let mut group = ClientGroup::start(&self.program, shape, &address, self.memory, 1).await?;
        for task in self.tasks.clone() {
            self.progress.step(console, &describe(shape.name(), &task, 1));
            let times = group.run(task, self.limit, 1).await?;
            self.add_series(shape, &task, 1, &times);
        }
        group.stop().await;
        if shape == Shape::Process {
            return Ok(());
        }
        let counts = self.clients();
        let most = counts.iter().copied().max().unwrap_or(1);
        let mut group = ClientGroup::start(&self.program, shape, &address, self.memory, most).await?;
        for task in self.growth.clone() {
            for count in &counts {
                self.progress.step(console, &describe(shape.name(), &task, *count));
                let times = group.run(task, self.limit, *count as usize).await?;
                self.add_series(shape, &task, *count, &times);
            }
        }
        group.stop().await;
        Ok(())
    }

    fn add_series(&mut self, shape: Shape, task: &Task, clients: u64, times: &Times) {
        let what = (OURS, shape.name(), task.name());
        let mut series = Series::new(what, (task.size, task.items, clients), times);
        series.keys = task.keys().map(ToOwned::to_owned);
        series.bytes_per_second = times.per_second * task.call_bytes() as f64;
        // With one client a workload may be measured alone and as the first of many: the later result counts.
        self.series.retain(|old| {
            (&old.shape, &old.workload, &old.keys, old.size, old.items, old.clients)
                != (&series.shape, &series.workload, &series.keys, series.size, series.items, series.clients)
        });
        self.series.push(series);
    }

    /// Measures the machine's limits, named like the workloads that they bound.
    fn floor(&mut self, console: &mut Console) -> Result<(), Failure> {
        let fail = |error| Failure::new("system", format!("cannot measure a loopback socket: {error}"));
        for size in self.sizes() {
            self.progress.step(console, &format!("floor: memcpy of {}", show::size(size)));
            let buffers = (Task { size, ..self.tasks.first().copied().unwrap_or(ANY) }).working_calls();
            let times = floor::memcpy(size, buffers, 1, self.limit);
            for shape in [Shape::Process, Shape::Host] {
                self.add_floor(shape, ("memcpy", size, 1), None, &times);
            }
            for streams in STREAMS {
                self.progress.step(console, &format!("floor: {streams} streams of {}", show::size(size)));
                let times = floor::stream(size, streams, self.limit).map_err(fail)?;
                self.add_floor(Shape::Tcp, ("stream", size, 1), Some(streams), &times);
            }
        }
        self.progress.step(console, "floor: a round trip between processes");
        let times = floor::unix_round_trip(64, self.limit).map_err(fail)?;
        self.add_floor(Shape::Host, ("round trip", 64, 1), None, &times);
        self.progress.step(console, "floor: a round trip through loopback");
        let times = floor::tcp_round_trip(64, self.limit).map_err(fail)?;
        self.add_floor(Shape::Tcp, ("round trip", 64, 1), None, &times);
        for task in self.growth.clone() {
            for count in self.clients() {
                self.progress.step(console, &format!("floor: memcpy by {count} at once"));
                let times = floor::memcpy(task.size, task.working_calls(), count, self.limit);
                self.add_floor(Shape::Host, ("memcpy", task.size, count), None, &times);
            }
        }
        Ok(())
    }

    fn add_floor(
        &mut self,
        shape: Shape,
        (name, size, clients): (&str, u64, u64),
        streams: Option<u64>,
        times: &Times,
    ) {
        let mut series = Series::new((FLOOR, shape.name(), name), (size, 1, clients), times);
        series.streams = streams;
        self.series.push(series);
    }
}

/// A placeholder where only sizes matter.
const ANY: Task = Task { workload: Workload::Get, reads: true, size: 0, items: 1, new_keys: false };

fn describe(shape: &str, task: &Task, clients: u64) -> String {
    let items = if task.items > 1 { format!("{} x ", task.items) } else { String::new() };
    let clients = if clients > 1 { format!(", {clients} clients") } else { String::new() };
    format!("{shape}: {} {items}{}{clients}", task.name(), show::size(task.size))
}

/// Progress on the terminal.
#[derive(Debug, Default)]
struct Progress {
    steps: usize,
    done: usize,
}

impl Progress {
    fn step(&mut self, console: &mut Console, what: &str) {
        let full = (self.done * BAR_CHARS / self.steps.max(1)).min(BAR_CHARS);
        self.done += 1;
        let (full, rest) = ("#".repeat(full), ".".repeat(BAR_CHARS - full));
        if let Some(terminal) = console.progress_terminal() {
            // A failed write of the progress bar is ignored.
            let _ = write!(terminal, "\r\x1b[K[{full}{rest}] {} of {}  {what}", self.done, self.steps)
                .and_then(|()| terminal.flush());
        }
    }

    fn clear(&self, console: &mut Console) {
        if let Some(terminal) = console.progress_terminal() {
            let _ = write!(terminal, "\r\x1b[K").and_then(|()| terminal.flush());
        }
    }
}
