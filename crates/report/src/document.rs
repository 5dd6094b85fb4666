//! What a benchmark found, as it is written to a file and read again.
//!
//! `make bench` writes the same format, with the table of targets in it; unknown fields are skipped, so that
//! a file of a later version can be read as far as it is understood.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::size_text;

/// The name and version of the format.
pub const SCHEMA: &str = "tiffin-bench/1";
/// Ourselves, as the source of a series.
pub const OURS: &str = "tiffin";
/// What the machine does without any store.
pub const FLOOR: &str = "floor";

/// Where the memory of a store is, as a client sees it, in the order of a report.
pub const SHAPES: [&str; 3] = ["same process", "same host", "tcp"];

/// Why there is no document.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read `{}`: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file is something else.
    #[error("`{}` is not a benchmark: {what}", .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

/// All of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Document {
    /// The name and version of the format.
    pub schema: String,
    /// `benchmark` of one store, or `comparison` of two.
    pub kind: String,
    /// When it was made.
    pub made: String,
    /// How long that took.
    #[serde(default)]
    pub seconds: f64,
    /// Which version of whom.
    #[serde(default)]
    pub versions: BTreeMap<String, String>,
    /// Where it was measured.
    pub machine: Machine,
    /// The part of a core that each used while others were measured.
    #[serde(default)]
    pub idle_cores: BTreeMap<String, f64>,
    /// What was wanted and what was found.
    #[serde(default)]
    pub targets: Vec<Target>,
    /// What was measured.
    pub series: Vec<Series>,
}

/// Where it was measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// The model of its processor.
    pub cpu: String,
    /// Processors that this process may use.
    pub cores: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// The version of its kernel.
    pub kernel: String,
}

/// One workload of one source in one shape, at one size and with one number of clients.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Series {
    /// `tiffin`, `mooncake` or `floor`.
    pub source: String,
    /// Where the memory is: `same process`, `same host`, `tcp`; or `daemon`, the peer's best one.
    pub shape: String,
    /// What was done.
    pub workload: String,
    /// `known` or `new`, for reads: whether the client has seen the keys before.
    #[serde(default)]
    pub keys: Option<String>,
    /// How many streams, for the floor of sockets.
    #[serde(default)]
    pub streams: Option<u64>,
    /// Bytes of an object.
    pub size: u64,
    /// Objects of a call.
    pub items: u64,
    /// Processes at once.
    pub clients: u64,
    /// Objects in the store beside those that are measured, where there are many.
    #[serde(default)]
    pub objects: Option<u64>,
    /// How many calls.
    pub calls: u64,
    /// The time in calls, of all clients.
    pub seconds: f64,
    /// Bytes moved in a second, by all clients.
    pub bytes_per_second: f64,
    /// Calls in a second, of all clients.
    pub calls_per_second: f64,
    /// How long a call took.
    pub micros: Micros,
}

/// How long a call took.
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
    /// The longest.
    pub max: f64,
}

/// One cell of the table of targets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Target {
    /// The operation.
    pub row: String,
    /// The kind of object.
    pub column: String,
    /// What is compared.
    pub unit: String,
    /// The ratio that is wanted; none where only the floor counts.
    pub target: Option<f64>,
    /// How many times faster we are.
    pub faster: f64,
    /// The least repetition.
    pub faster_low: f64,
    /// The greatest repetition.
    pub faster_high: f64,
    /// The part of what the machine itself does.
    pub of_floor: Option<f64>,
    /// The ratio of the 99th percentiles.
    pub p99_faster: f64,
    /// Whether the target is met.
    pub met: bool,
    /// Whether it is met by the floor.
    pub met_by_floor: bool,
    /// Whether the 99th percentile is as good.
    pub p99_met: bool,
    /// Our value.
    pub tiffin: f64,
    /// The value of the peer.
    pub mooncake: f64,
}

impl Document {
    /// One of ours, made now.
    #[must_use]
    pub fn new(series: Vec<Series>, seconds: f64) -> Self {
        let ours = (OURS.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        Self {
            schema: SCHEMA.to_owned(),
            kind: "benchmark".to_owned(),
            made: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            seconds,
            versions: BTreeMap::from([ours]),
            machine: Machine::this(),
            idle_cores: BTreeMap::new(),
            targets: Vec::new(),
            series,
        }
    }

    /// Reads one that was written before.
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

    /// Takes over what another one says of others, and the targets.
    pub fn add_peer(&mut self, other: Self) {
        self.versions.extend(other.versions.into_iter().filter(|(name, _)| name != OURS));
        self.series.extend(other.series.into_iter().filter(|it| it.source != OURS && it.source != FLOOR));
        self.targets.extend(other.targets);
    }

    /// Takes over all that another one says.
    pub fn add(&mut self, other: Self) {
        self.versions.extend(other.versions);
        self.series.extend(other.series);
        self.targets.extend(other.targets);
        self.idle_cores.extend(other.idle_cores);
    }
}

impl Machine {
    /// The machine that this runs on.
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
    /// A series of this histogram of nanoseconds. Several clients together do what each does, added up.
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
    /// What was done, and that it is the floor if it is.
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

    /// The objects of a call, and their size.
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

/// How long calls took: a histogram of nanoseconds, with three digits.
#[derive(Clone, Debug)]
pub struct Times {
    /// Nanoseconds of calls.
    pub histogram: Histogram<u64>,
    /// The time in calls, of all clients.
    pub seconds: f64,
    /// Calls a second, of all clients.
    pub per_second: f64,
}

/// What a process tells another of its times.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Nanoseconds, and how many calls took as long.
    pub counts: Vec<(u64, u64)>,
    /// The time in calls.
    pub seconds: f64,
}

impl Default for Times {
    fn default() -> Self {
        Self::new()
    }
}

impl Times {
    /// No calls yet.
    #[must_use]
    pub fn new() -> Self {
        let histogram = Histogram::new(3).unwrap_or_else(|_| unreachable!("three digits are allowed"));
        Self { histogram, seconds: 0.0, per_second: 0.0 }
    }

    /// One more call.
    pub fn record(&mut self, time: std::time::Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // It grows as needed, and refuses only what does not fit into memory.
        let _refused = self.histogram.record(nanos.max(1));
        self.seconds += time.as_secs_f64();
        self.per_second = self.histogram.len() as f64 / self.seconds.max(1e-9);
    }

    /// For another process.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let counts = self.histogram.iter_recorded().map(|it| (it.value_iterated_to(), it.count_at_value()));
        Counts { counts: counts.collect(), seconds: self.seconds }
    }

    /// What another client did at the same time.
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
    fn what_is_written_can_be_read() {
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
