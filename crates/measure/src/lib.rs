//! Histograms of latency by operation and path, in plain arrays of counters.
//!
//! Clients, nodes and the master record into a [`Measures`] of their own. Clients and nodes have no port for
//! metrics: their heartbeats carry what was recorded since the last one ([`growth`]), and the master
//! adds it to its own ([`Measures::add`]).
//!
//! **Invariant:** recording takes no lock and allocates nothing.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bounds of the buckets, in microseconds. One more bucket has no bound.
pub const BOUNDS_US: [u64; 22] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000,
    500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000,
];
/// The number of buckets.
pub const BUCKETS: usize = BOUNDS_US.len() + 1;
/// The greatest number that one report adds to a bucket, a sum or a number of bytes: a client is not trusted.
pub const REPORT_MAX: u64 = 1 << 40;

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// A client's put.
    Put,
    /// A client's get.
    Get,
    /// A client's view.
    View,
    /// A client's probe.
    Exists,
    /// A client's delete.
    Delete,
    /// A client's list.
    List,
    /// A client's prefetch.
    Prefetch,
    /// A client's lease of samples.
    Lease,
    /// A client's pull from a stream.
    Pull,
    /// A client's acknowledgement of samples.
    Ack,
    /// A node's transfer of bytes to a reader.
    Read,
    /// A node's transfer of bytes from a writer.
    Write,
}

/// How bytes moved. If one call used several paths, it is the last of them in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Path {
    /// No bytes moved: at most a request to the master.
    Master,
    /// Inside one process.
    Process,
    /// Through shared memory.
    SharedMemory,
    /// Through a socket.
    Tcp,
    /// From or to a disk.
    Disk,
}

impl Operation {
    /// All of them. The position is the number on the wire.
    pub const ALL: [Self; 12] = [
        Self::Put,
        Self::Get,
        Self::View,
        Self::Exists,
        Self::Delete,
        Self::List,
        Self::Prefetch,
        Self::Lease,
        Self::Pull,
        Self::Ack,
        Self::Read,
        Self::Write,
    ];

    /// Its name in metrics, tables and pages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::View => "view",
            Self::Exists => "exists",
            Self::Delete => "delete",
            Self::List => "list",
            Self::Prefetch => "prefetch",
            Self::Lease => "lease",
            Self::Pull => "pull",
            Self::Ack => "ack",
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

impl Path {
    /// All of them. The position is the number on the wire.
    pub const ALL: [Self; 5] = [Self::Master, Self::Process, Self::SharedMemory, Self::Tcp, Self::Disk];

    /// Its name in metrics, tables and pages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Master => "master",
            Self::Process => "process",
            Self::SharedMemory => "shared_memory",
            Self::Tcp => "tcp",
            Self::Disk => "disk",
        }
    }
}

/// A histogram that many threads record into.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
    bytes: AtomicU64,
}

/// The numbers of a histogram at one time, or their growth.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of durations in each bucket.
    pub counts: [u64; BUCKETS],
    /// The sum of all durations, in microseconds.
    pub sum_us: u64,
    /// The bytes that were moved.
    pub bytes: u64,
}

impl Histogram {
    /// Records a duration.
    pub fn record(&self, took: Duration, bytes: u64) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.partition_point(|&bound| bound < us);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_us.fetch_add(us.min(REPORT_MAX), Ordering::Relaxed);
        if bytes > 0 {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Adds what another process has recorded, within [`REPORT_MAX`].
    pub fn add(&self, counts: &[u64], sum_us: u64, bytes: u64) {
        for (count, more) in self.counts.iter().zip(counts) {
            count.fetch_add((*more).min(REPORT_MAX), Ordering::Relaxed);
        }
        self.sum_us.fetch_add(sum_us.min(REPORT_MAX), Ordering::Relaxed);
        self.bytes.fetch_add(bytes.min(REPORT_MAX), Ordering::Relaxed);
    }

    /// The numbers now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut now = Counts::default();
        for (to, from) in now.counts.iter_mut().zip(&self.counts) {
            *to = from.load(Ordering::Relaxed);
        }
        now.sum_us = self.sum_us.load(Ordering::Relaxed);
        now.bytes = self.bytes.load(Ordering::Relaxed);
        now
    }
}

impl Counts {
    /// The number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Whether nothing was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count() == 0 && self.bytes == 0
    }

    /// The growth since earlier numbers of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut growth = self.clone();
        for (now, before) in growth.counts.iter_mut().zip(&earlier.counts) {
            *now = now.saturating_sub(*before);
        }
        growth.sum_us = growth.sum_us.saturating_sub(earlier.sum_us);
        growth.bytes = growth.bytes.saturating_sub(earlier.bytes);
        growth
    }

    /// Adds the numbers of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (sum, more) in self.counts.iter_mut().zip(&other.counts) {
            *sum = sum.saturating_add(*more);
        }
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    /// The upper bound of the bucket that contains this quantile, in microseconds: an estimate that is never
    /// too small, except in the last bucket. `None` if nothing was recorded.
    #[must_use]
    pub fn quantile_us(&self, quantile: f64) -> Option<u64> {
        let count = self.count();
        let rank = (quantile.clamp(0.0, 1.0) * count as f64).ceil().max(1.0) as u64;
        let mut sum = 0_u64;
        let at = self.counts.iter().position(|it| {
            sum = sum.saturating_add(*it);
            sum >= rank
        })?;
        let last = BOUNDS_US.last().copied().unwrap_or_default();
        (count > 0).then(|| BOUNDS_US.get(at).copied().unwrap_or(last))
    }
}

/// The histograms of all operations and paths.
#[derive(Default)]
pub struct Measures {
    all: Box<[[Histogram; Path::ALL.len()]; Operation::ALL.len()]>,
}

/// One histogram of [`Measures`], by operation and path.
pub type Series = (Operation, Path, Counts);

impl fmt::Debug for Measures {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Measures").finish_non_exhaustive()
    }
}

impl Measures {
    /// Records a duration, and the bytes that moved.
    pub fn record(&self, operation: Operation, path: Path, took: Duration, bytes: u64) {
        if let Some(histogram) = self.at(operation as usize, path as usize) {
            histogram.record(took, bytes);
        }
    }

    /// Adds what another process has recorded. Numbers of operations or paths that are not known here, and
    /// further buckets, are ignored: a later version may have more of them.
    pub fn add(&self, operation: u32, path: u32, counts: &[u64], sum_us: u64, bytes: u64) {
        if let Some(histogram) = self.at(operation as usize, path as usize) {
            histogram.add(counts, sum_us, bytes);
        }
    }

    /// All histograms that are not empty.
    #[must_use]
    pub fn series(&self) -> Vec<Series> {
        let mut series = Vec::new();
        for (operation, paths) in Operation::ALL.into_iter().zip(self.all.iter()) {
            for (path, histogram) in Path::ALL.into_iter().zip(paths) {
                let counts = histogram.counts();
                if !counts.is_empty() {
                    series.push((operation, path, counts));
                }
            }
        }
        series
    }

    fn at(&self, operation: usize, path: usize) -> Option<&Histogram> {
        self.all.get(operation)?.get(path)
    }
}

/// The growth of each series since earlier ones.
#[must_use]
pub fn growth(now: &[Series], earlier: &[Series]) -> Vec<Series> {
    let before = |operation, path| earlier.iter().find(|it| (it.0, it.1) == (operation, path));
    let grown = now.iter().map(|(operation, path, counts)| {
        let counts = before(*operation, *path).map_or_else(|| counts.clone(), |it| counts.since(&it.2));
        (*operation, *path, counts)
    });
    grown.filter(|it| !it.2.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn durations_fall_into_their_buckets() {
        let histogram = Histogram::default();
        for it in [0, 1, 2, 3, 5, 10_000_000, 10_000_001] {
            histogram.record(us(it), 10);
        }
        let counts = histogram.counts();
        assert_eq!(counts.counts[..3], [2, 1, 2]);
        assert_eq!(counts.counts[BUCKETS - 2..], [1, 1]);
        assert_eq!((counts.count(), counts.sum_us, counts.bytes), (7, 20_000_012, 70));
        histogram.record(Duration::MAX, 0);
        assert_eq!(histogram.counts().sum_us, 20_000_012 + REPORT_MAX, "the sum does not wrap");
    }

    #[test]
    fn quantile_is_the_bound_of_its_bucket() {
        assert_eq!(Counts::default().quantile_us(0.5), None);
        let histogram = Histogram::default();
        (0..99).for_each(|_| histogram.record(us(7), 0));
        histogram.record(us(900), 0);
        let counts = histogram.counts();
        for (quantile, expected) in [(0.0, 10), (0.5, 10), (0.99, 10), (0.991, 1000), (1.0, 1000)] {
            assert_eq!(counts.quantile_us(quantile), Some(expected), "{quantile}");
        }
        let last = Histogram::default();
        last.record(us(1 << 40), 0);
        assert_eq!(last.counts().quantile_us(0.5), BOUNDS_US.last().copied());
    }

    #[test]
    fn report_is_added_within_its_limit() {
        let (own, all) = (Measures::default(), Measures::default());
        own.record(Operation::Get, Path::Tcp, us(3), 5);
        let first = own.series();
        own.record(Operation::Get, Path::Tcp, us(3), 5);
        own.record(Operation::Put, Path::Disk, us(1), 0);
        for (operation, path, counts) in growth(&own.series(), &first) {
            all.add(operation as u32, path as u32, &counts.counts, counts.sum_us, counts.bytes);
        }
        let names: Vec<_> =
            all.series().iter().map(|it| (it.0.name(), it.1.name(), it.2.count(), it.2.bytes)).collect();
        assert_eq!(names, [("put", "disk", 1, 0), ("get", "tcp", 1, 5)]);
        assert_eq!(growth(&own.series(), &own.series()), []);
        // A report beyond the limit, of an unknown operation, with more buckets.
        all.add(1, 3, &[u64::MAX; BUCKETS + 5], u64::MAX, u64::MAX);
        all.add(u32::MAX, 0, &[1], 1, 1);
        all.add(0, u32::MAX, &[1], 1, 1);
        let (.., got) = &all.series()[1];
        assert_eq!((got.counts[0], got.sum_us, got.bytes), (REPORT_MAX, 3 + REPORT_MAX, 5 + REPORT_MAX));
        assert_eq!(all.series().len(), 2);
    }

    #[test]
    fn numbers_on_the_wire_are_positions() {
        for (at, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, at, "{operation:?}");
        }
        for (at, path) in Path::ALL.into_iter().enumerate() {
            assert_eq!(path as usize, at, "{path:?}");
        }
    }
}
