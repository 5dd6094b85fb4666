//! What a benchmark found, as it is written to a file and read again.
//!
//! `make bench` writes the same format, with the table of targets in it; unknown fields are skipped, so that
//! a file of a later version can be read as far as it is understood.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::console::Failure;

/// The name and version of the format.
pub(super) const SCHEMA: &str = "tiffin-bench/1";
/// Ourselves, as the source of a series.
pub(super) const OURS: &str = "tiffin";
/// What the machine does without any store.
pub(super) const FLOOR: &str = "floor";

/// All of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Document {
    pub(super) schema: String,
    /// `benchmark` of one store, or `comparison` of two.
    pub(super) kind: String,
    /// When it was made.
    pub(super) made: String,
    /// How long that took.
    #[serde(default)]
    pub(super) seconds: f64,
    /// Which version of whom.
    #[serde(default)]
    pub(super) versions: BTreeMap<String, String>,
    pub(super) machine: Machine,
    /// The part of a core that each used while others were measured.
    #[serde(default)]
    pub(super) idle_cores: BTreeMap<String, f64>,
    /// What was wanted and what was found.
    #[serde(default)]
    pub(super) targets: Vec<Target>,
    pub(super) series: Vec<Series>,
}

/// Where it was measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Machine {
    pub(super) cpu: String,
    pub(super) cores: u64,
    pub(super) memory: u64,
    pub(super) kernel: String,
}

/// One workload of one source in one shape, at one size and with one number of clients.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Series {
    /// `tiffin`, `mooncake` or `floor`.
    pub(super) source: String,
    /// Where the memory is: `same process`, `same host`, `tcp`; or `daemon`, the peer's best one.
    pub(super) shape: String,
    pub(super) workload: String,
    /// `known` or `new`, for reads: whether the client has seen the keys before.
    #[serde(default)]
    pub(super) keys: Option<String>,
    /// How many streams, for the floor of sockets.
    #[serde(default)]
    pub(super) streams: Option<u64>,
    /// Bytes of an object.
    pub(super) size: u64,
    /// Objects of a call.
    pub(super) items: u64,
    /// Processes at once.
    pub(super) clients: u64,
    /// Objects in the store beside those that are measured, where there are many.
    #[serde(default)]
    pub(super) objects: Option<u64>,
    pub(super) calls: u64,
    /// The time in calls, of all clients.
    pub(super) seconds: f64,
    pub(super) bytes_per_second: f64,
    pub(super) calls_per_second: f64,
    pub(super) micros: Micros,
}

/// How long a call took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Micros {
    pub(super) mean: f64,
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) max: f64,
}

/// One cell of the table of targets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Target {
    pub(super) row: String,
    pub(super) column: String,
    pub(super) unit: String,
    /// The ratio that is wanted; none where only the floor counts.
    pub(super) target: Option<f64>,
    /// How many times faster we are, and the least and greatest repetition.
    pub(super) faster: f64,
    pub(super) faster_low: f64,
    pub(super) faster_high: f64,
    pub(super) of_floor: Option<f64>,
    pub(super) p99_faster: f64,
    pub(super) met: bool,
    pub(super) met_by_floor: bool,
    pub(super) p99_met: bool,
    pub(super) tiffin: f64,
    pub(super) mooncake: f64,
}

impl Document {
    /// One of ours, made now.
    pub(super) fn new(series: Vec<Series>, seconds: f64) -> Self {
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
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path).map_err(|error| Failure::file("read", path, &error))?;
        let wrong = |what: String| {
            let advice = "name a file that `tiffin bench --json` or `make bench` has written";
            Failure::new("invalid", format!("`{}` is no benchmark: {what}", path.display())).hint(advice)
        };
        let document: Self = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        if document.schema != SCHEMA {
            return Err(wrong(format!("its format is `{}`, not `{SCHEMA}`", document.schema)));
        }
        Ok(document)
    }

    /// Takes over what another one says of others, and the targets.
    pub(super) fn add_peer(&mut self, other: Self) {
        self.versions.extend(other.versions.into_iter().filter(|(name, _)| name != OURS));
        self.series.extend(other.series.into_iter().filter(|it| it.source != OURS && it.source != FLOOR));
        self.targets.extend(other.targets);
    }

    /// Takes over all that another one says.
    pub(super) fn add(&mut self, other: Self) {
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
    pub(super) fn new(
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
pub(super) struct Times {
    pub(super) histogram: Histogram<u64>,
    /// The time in calls, of all clients.
    pub(super) seconds: f64,
    /// Calls a second, of all clients.
    pub(super) per_second: f64,
}

/// What a process tells another of its times.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Counts {
    /// Nanoseconds, and how many calls took as long.
    pub(super) counts: Vec<(u64, u64)>,
    pub(super) seconds: f64,
}

impl Times {
    /// No calls yet.
    pub(super) fn new() -> Self {
        let histogram = Histogram::new(3).unwrap_or_else(|_| unreachable!("three digits are allowed"));
        Self { histogram, seconds: 0.0, per_second: 0.0 }
    }

    /// One more call.
    pub(super) fn record(&mut self, time: std::time::Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // It grows as needed, and refuses only what does not fit into memory.
        let _refused = self.histogram.record(nanos.max(1));
        self.seconds += time.as_secs_f64();
        self.per_second = self.histogram.len() as f64 / self.seconds.max(1e-9);
    }

    /// For another process.
    pub(super) fn counts(&self) -> Counts {
        let counts = self.histogram.iter_recorded().map(|it| (it.value_iterated_to(), it.count_at_value()));
        Counts { counts: counts.collect(), seconds: self.seconds }
    }

    /// What another client did at the same time.
    pub(super) fn add(&mut self, other: &Counts) {
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
        assert!(failure.message.contains("is no benchmark"), "{failure:?}");
    }
}
