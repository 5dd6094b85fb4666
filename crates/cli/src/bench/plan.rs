//! The measurements: workloads, sizes, and limits.

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tiffin_report::document::SHAPES;

/// Working set of a client during a measurement: bytes, and limits in calls.
const WORKING_BYTES: u64 = 32 << 20;
const WORKING_CALLS_MAX: u64 = 64;
const WORKING_CALLS_MIN: u64 = 2;

/// Sizes of single objects: 4 KiB to 16 MiB.
pub(super) const SIZES: [u64; 7] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
const SIZES_QUICK: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];
/// Number of objects of a batch.
pub(super) const BATCH: u64 = 32;
/// Number of keys per existence check.
const EXISTS_KEYS: u64 = 128;
/// Pages of a prefix: as many tokens as one block of an 8B model's cache, an eighth of its layers.
const PAGE_BYTES: u64 = 256 << 10;
pub(super) const PAGES: u64 = 16;
/// Number of keys of the Zipf workload.
pub(super) const ZIPF_KEYS: u64 = 1024;
/// A sample of hidden states of an 8B model for 2048 tokens, scaled down by 16: tokens, the values of three
/// layers and of the last one.
pub(super) const SAMPLE_TOKENS: u64 = 128;
pub(super) const SAMPLE_AUX: u64 = 3 * 4096;
pub(super) const SAMPLE_LAST: u64 = 4096;
const SAMPLE_BYTES: u64 = SAMPLE_TOKENS * ((SAMPLE_AUX + SAMPLE_LAST) * 2 + 8);

/// Where the memory is, relative to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Shape {
    /// In the client's own process.
    Process,
    /// In another process of the host, mapped.
    Host,
    /// Behind a socket, as on another host.
    Tcp,
}

impl Shape {
    pub(super) const ALL: [Self; 3] = [Self::Process, Self::Host, Self::Tcp];

    /// The name in a report.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Process => SHAPES[0],
            Self::Host => SHAPES[1],
            Self::Tcp => SHAPES[2],
        }
    }
}

/// The workload of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Workload {
    /// Puts new objects from a buffer.
    Put,
    /// Gets objects into a buffer.
    Get,
    /// Checks the existence of 128 keys.
    Exists,
    /// Four gets, then a put that replaces an object.
    Mixed,
    /// Gets of 1024 keys with a Zipf distribution.
    Zipf,
    /// Samples of hidden states: put, then leased, read and acknowledged.
    Sample,
    /// Pages of a cache: a prefix is looked up, and the existing pages are read.
    Kv,
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) workload: Workload,
    /// The reading half of a workload that writes and reads.
    pub(super) reads: bool,
    /// Bytes of an object.
    pub(super) size: u64,
    /// Number of objects per call.
    pub(super) items: u64,
    /// The client has no cached locations of the keys.
    pub(super) new_keys: bool,
}

impl Task {
    const fn new(workload: Workload, reads: bool, size: u64, items: u64) -> Self {
        Self { workload, reads, size, items, new_keys: false }
    }

    /// The name of the call in `mooncake.store`, if there is one.
    pub(super) fn name(&self) -> &'static str {
        match (self.workload, self.reads, self.items > 1) {
            (Workload::Put, _, false) => "put_from",
            (Workload::Put, _, true) => "batch_put_from",
            (Workload::Get, _, false) => "get_into",
            (Workload::Get, _, true) => "batch_get_into",
            (Workload::Exists, ..) => "batch_is_exist",
            (Workload::Mixed, ..) => "mixed, 4 gets a put",
            (Workload::Zipf, ..) => "get_into, Zipf keys",
            (Workload::Sample, false, _) => "sample put",
            (Workload::Sample, true, _) => "sample take",
            (Workload::Kv, false, _) => "pages put",
            (Workload::Kv, true, _) => "pages get",
        }
    }

    /// Whether the keys it reads are known; none if it does not read by key.
    pub(super) fn keys(&self) -> Option<&'static str> {
        let reads = matches!(self.workload, Workload::Get | Workload::Zipf)
            || self.workload == Workload::Kv && self.reads;
        reads.then_some(if self.new_keys { "new" } else { "known" })
    }

    /// Bytes moved per call.
    pub(super) fn call_bytes(&self) -> u64 {
        if self.workload == Workload::Exists { 0 } else { self.size * self.items }
    }

    /// Number of calls whose objects exist at the same time.
    pub(super) fn working_calls(&self) -> u64 {
        (WORKING_BYTES / (self.size * self.items).max(1)).clamp(WORKING_CALLS_MIN, WORKING_CALLS_MAX)
    }
}

/// The limits of a measurement.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Limit {
    pub(super) seconds: f64,
    pub(super) calls: u64,
}

impl Limit {
    /// The limit of the warm-up: a fifth.
    pub(super) fn warm_up(self) -> Self {
        Self { seconds: self.seconds / 5.0, calls: self.calls.div_ceil(5) }
    }

    pub(super) fn time(self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// The measurements of one client, in command.
pub(super) fn tasks(wanted: &[Workload], quick: bool) -> Vec<Task> {
    let sizes: &[u64] = if quick { &SIZES_QUICK } else { &SIZES };
    let mut tasks = Vec::new();
    for size in sizes {
        tasks.extend(put_and_get(*size, 1));
    }
    for size in [4 << 10, 64 << 10] {
        tasks.extend(put_and_get(size, BATCH));
    }
    tasks.extend([
        Task::new(Workload::Exists, true, 4 << 10, EXISTS_KEYS),
        Task::new(Workload::Mixed, true, 64 << 10, 1),
        Task::new(Workload::Zipf, true, 4 << 10, 1),
        Task::new(Workload::Sample, false, SAMPLE_BYTES, 1),
        Task::new(Workload::Sample, true, SAMPLE_BYTES, 1),
        Task::new(Workload::Kv, false, PAGE_BYTES, PAGES),
        Task::new(Workload::Kv, true, PAGE_BYTES, PAGES),
    ]);
    tasks.retain(|task| wanted.is_empty() || wanted.contains(&task.workload));
    tasks
}

/// The measurements with several clients at once.
pub(super) fn growth(wanted: &[Workload], quick: bool) -> Vec<Task> {
    let every = [
        Task::new(Workload::Get, true, 4 << 10, 1),
        Task::new(Workload::Get, true, 1 << 20, 1),
        Task::new(Workload::Put, false, 4 << 10, 1),
        Task::new(Workload::Put, false, 1 << 20, 1),
    ];
    let some = every.iter().skip(usize::from(quick)).step_by(if quick { 4 } else { 1 });
    some.filter(|task| wanted.is_empty() || wanted.contains(&task.workload)).copied().collect()
}

fn put_and_get(size: u64, items: u64) -> [Task; 3] {
    let get = Task::new(Workload::Get, true, size, items);
    [Task::new(Workload::Put, false, size, items), get, Task { new_keys: true, ..get }]
}
