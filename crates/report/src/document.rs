//! The results of a benchmark, and their file format.
//!
//! `make bench` writes the same format, with a table of targets. Unknown fields are ignored, so that files of
//! later versions can be read.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::size_text;

/// The name and version of the format.
pub const SCHEMA: &str = "tiffin-bench/1";
/// Source name of our own series.
pub const OURS: &str = "tiffin";
/// Source name of the machine's limits, measured without a store.
pub const FLOOR: &str = "floor";

/// Where the memory of a store is, relative to the client, in the order of a report.
pub const SHAPES: [&str; 3] = ["same process", "same host", "tcp"];

/// Why a document cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read `{}`: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file has another format.
    #[error("`{}` is not a benchmark: {what}", .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The problem.
        what: String,
    },
}

/// The results of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Document {
    /// The name and version of the format.
    pub schema: String,
    /// `benchmark` of one store, or `comparison` of two.
    pub kind: String,
    /// Date and time.
    pub made: String,
    /// Duration, in seconds.
    #[serde(default)]
    pub seconds: f64,
    /// Whether each measurement was cut short, so that its numbers are rough.
    #[serde(default)]
    pub quick: bool,
    /// Versions of the measured programs.
    #[serde(default)]
    pub versions: BTreeMap<String, String>,
    /// The machine.
    pub machine: Machine,
    /// Fraction of a core that each idle program used during the measurements of others.
    #[serde(default)]
    pub idle_cores: BTreeMap<String, f64>,
    /// Targets and results.
    #[serde(default)]
    pub targets: Vec<Target>,
    /// Measurements.
    pub series: Vec<Series>,
}

/// The machine of a measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Processor model.
    pub cpu: String,
    /// Processors that the process may use.
    pub cores: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// Kernel version.
    pub kernel: String,
}

/// One workload of one source in one shape, at one size and with one number of clients.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Series {
    /// `tiffin`, `mooncake` or `floor`.
    pub source: String,
    /// Where the memory is: `same process`, `same host`, `tcp`; or `daemon`, the peer's fastest.
    pub shape: String,
    /// The kind of call.
    pub workload: String,
    /// `known` or `new`, for reads: whether the client has seen the keys before.
    #[serde(default)]
    pub keys: Option<String>,
    /// Number of streams, for the floor of sockets.
    #[serde(default)]
    pub streams: Option<u64>,
    /// Size of an object in bytes.
    pub size: u64,
    /// Number of objects per call.
    pub items: u64,
    /// Number of concurrent processes.
    pub clients: u64,
    /// Number of other objects in the store, where there are many.
    #[serde(default)]
    pub objects: Option<u64>,
    /// Number of calls.
    pub calls: u64,
    /// Time spent in calls, by all clients, in seconds.
    pub seconds: f64,
    /// Bytes per second of all clients.
    pub bytes_per_second: f64,
    /// Calls per second of all clients.
    pub calls_per_second: f64,
    /// Latency of a call.
    pub micros: Micros,
}

/// Latency of a call, in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Micros {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
    /// The maximum.
    pub max: f64,
}

/// One cell of the table of targets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Target {
    /// The operation.
    pub row: String,
    /// The kind of object.
    pub column: String,
    /// Unit of the values.
    pub unit: String,
    /// The required ratio; none if only the floor counts.
    pub target: Option<f64>,
    /// Our speed relative to the peer.
    pub faster: f64,
    /// The lowest of the repetitions.
    pub faster_low: f64,
    /// The highest of the repetitions.
    pub faster_high: f64,
    /// Fraction of the floor.
    pub of_floor: Option<f64>,
    /// The ratio of the 99th percentiles.
    pub p99_faster: f64,
    /// Whether the target is met.
    pub met: bool,
    /// Whether it is met by the fraction of the floor.
    pub met_by_floor: bool,
    /// Whether the 99th percentile meets the target.
    pub p99_met: bool,
    /// Our value.
    pub tiffin: f64,
    /// The peer's value.
    pub mooncake: f64,
}

impl Document {
    /// A document with our series, dated now.
    #[must_use]
    pub fn new(series: Vec<Series>, seconds: f64) -> Self {
        let ours = (OURS.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        Self {
            schema: SCHEMA.to_owned(),
            kind: "benchmark".to_owned(),
            made: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            seconds,
            quick: false,
            versions: BTreeMap::from([ours]),
            machine: Machine::this(),
            idle_cores: BTreeMap::new(),
            targets: Vec::new(),
            series,
        }
    }

    /// Reads a document from a file.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ReadError::File { path: path.to_owned(), source })?;
        let wrong = |what| ReadError::Format { path: path.to_owned(), what };
        let document: Self = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        if document.schema != SCHEMA {
            return Err(wrong(format!("its format is `{}`, not `{SCHEMA}`", document.schema)));
        }
        Ok(document)
    }

    /// Adds the peer's series and the targets of another document.
    pub fn add_peer(&mut self, other: Self) {
        self.quick |= other.quick;
        self.versions.extend(other.versions.into_iter().filter(|(name, _)| name != OURS));
        self.series.extend(other.series.into_iter().filter(|it| it.source != OURS && it.source != FLOOR));
        self.targets.extend(other.targets);
    }

    /// Adds everything of another document.
    pub fn add(&mut self, other: Self) {
        self.quick |= other.quick;
        self.versions.extend(other.versions);
        self.series.extend(other.series);
        self.targets.extend(other.targets);
        self.idle_cores.extend(other.idle_cores);
    }
}

impl Machine {
    /// The current machine.
    fn this() -> Self {
        let lines = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
        };
        let memory = field(&lines("/proc/meminfo"), "MemTotal");
        let memory = memory.and_then(|it| it.split_whitespace().next()?.parse::<u64>().ok());
        Self {
            cpu: field(&lines("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism().map_or(1, |it| it.get() as u64),
            memory: memory.unwrap_or_default() * 1024,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        }
    }
}

impl Series {
    /// A series from a histogram of nanoseconds.
    #[must_use]
    pub fn new(
        (source, shape, workload): (&str, &str, &str),
        (size, items, clients): (u64, u64, u64),
        times: &Times,
    ) -> Self {
        let calls_per_second = times.per_second;
        Self {
            source: source.to_owned(),
            shape: shape.to_owned(),
            workload: workload.to_owned(),
            keys: None,
            streams: None,
            size,
            items,
            clients,
            objects: None,
            calls: times.histogram.len(),
            seconds: times.seconds,
            bytes_per_second: calls_per_second * (size * items) as f64,
            calls_per_second,
            micros: Micros::of(&times.histogram),
        }
    }
}

impl Series {
    /// The workload, with a prefix for the floor.
    #[must_use]
    pub fn name(&self) -> String {
        let streams = match self.streams {
            Some(1) => ", 1 stream".to_owned(),
            Some(streams) => format!(", {streams} streams"),
            None => String::new(),
        };
        let floor = if self.source == FLOOR { "floor: " } else { "" };
        format!("{floor}{}{streams}", self.workload)
    }

    /// Number and size of the objects of a call.
    #[must_use]
    pub fn call_size(&self) -> String {
        let size = size_text(self.size);
        if self.items > 1 { format!("{} x {size}", self.items) } else { size }
    }
}

impl Micros {
    fn of(histogram: &Histogram<u64>) -> Self {
        let at = |part: f64| histogram.value_at_quantile(part) as f64 / 1e3;
        Self {
            mean: histogram.mean() / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max() as f64 / 1e3,
        }
    }
}

/// Latencies of calls: a histogram of nanoseconds with three significant digits.
#[derive(Clone, Debug)]
pub struct Times {
    /// Nanoseconds per call.
    pub histogram: Histogram<u64>,
    /// Time spent in calls, by all clients, in seconds.
    pub seconds: f64,
    /// Calls per second of all clients.
    pub per_second: f64,
}

/// Latencies in the form that is sent between processes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Nanoseconds, and the number of calls that took that long.
    pub counts: Vec<(u64, u64)>,
    /// Time spent in calls, in seconds.
    pub seconds: f64,
}

impl Default for Times {
    fn default() -> Self {
        Self::new()
    }
}

impl Times {
    /// Without calls.
    #[must_use]
    pub fn new() -> Self {
        let histogram = Histogram::new(3).unwrap_or_else(|_| unreachable!("three digits are allowed"));
        Self { histogram, seconds: 0.0, per_second: 0.0 }
    }

    /// Records a call.
    pub fn record(&mut self, time: std::time::Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // The histogram resizes itself; recording fails only without memory.
        let _refused = self.histogram.record(nanos.max(1));
        self.seconds += time.as_secs_f64();
        self.per_second = self.histogram.len() as f64 / self.seconds.max(1e-9);
    }

    /// The counts to send to another process.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let counts = self.histogram.iter_recorded().map(|it| (it.value_iterated_to(), it.count_at_value()));
        Counts { counts: counts.collect(), seconds: self.seconds }
    }

    /// Adds the calls of a concurrent client: rates add up.
    pub fn add(&mut self, other: &Counts) {
        let mut calls = 0;
        for (value, count) in &other.counts {
            let _refused = self.histogram.record_n(*value, *count);
            calls += count;
        }
        self.seconds += other.seconds;
        self.per_second += calls as f64 / other.seconds.max(1e-9);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn clients_add_up() {
        let mut one = Times::new();
        for micros in 1..=100 {
            one.record(Duration::from_micros(micros));
        }
        let mut both = Times::new();
        both.add(&one.counts());
        both.add(&one.counts());
        assert_eq!(both.histogram.len(), 200);
        assert!((both.per_second / one.per_second - 2.0).abs() < 1e-9, "{both:?}");
        let micros = Micros::of(&both.histogram);
        assert!((micros.p50 - 50.0).abs() < 0.1 && (micros.max - 100.0).abs() < 0.2, "{micros:?}");
    }

    #[test]
    fn written_document_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        let series = Series::new((OURS, "tcp", "get_into"), (4096, 1, 1), &Times::new());
        let document = Document::new(vec![series], 1.0);
        std::fs::write(&path, serde_json::to_string(&document).unwrap()).unwrap();
        assert_eq!(Document::read(&path).unwrap().series.len(), 1);
        std::fs::write(&path, r#"{"schema": "other"}"#).unwrap();
        let failure = Document::read(&path).unwrap_err();
        assert!(failure.to_string().contains("is not a benchmark"), "{failure:?}");
    }
}
