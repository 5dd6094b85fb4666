//! Measures how fast nodes reply. [`Pace`] decides from it how long to wait and which nodes to use last.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tiffin_session::Pace;
use tiffin_types::SegmentId;
use tiffin_types::mutant::Mutant;
use tokio::time::Instant;

use crate::Deadline;

/// Latencies of the nodes as one client sees them, and its number of hedged reads.
pub(crate) struct Paces {
    pace: Mutex<Pace>,
    origin: Instant,
    hedged: AtomicU64,
}

impl Paces {
    pub(crate) fn new() -> Self {
        let pace = Mutex::new(Pace::new(Mutant::None));
        Self { pace, origin: Instant::now(), hedged: AtomicU64::new(0) }
    }

    /// The nodes to use last for now.
    pub(crate) fn avoided(&self) -> BTreeSet<SegmentId> {
        let pace = self.lock();
        if pace.has_slow() { pace.avoided(self.now_us()) } else { BTreeSet::new() }
    }

    /// Number of reads that were started because another one stalled.
    pub(crate) fn hedged(&self) -> u64 {
        self.hedged.load(Ordering::Relaxed)
    }

    pub(crate) fn count_hedged(&self, is_hedged: bool) {
        if is_hedged {
            self.hedged.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes the start of a read. Returns its time, and how long it may go without a byte.
    pub(crate) fn begins(&self, segment: SegmentId, deadline: Deadline) -> (u64, u64) {
        let now = Instant::now();
        let left = deadline.instant().saturating_duration_since(now);
        let left_us = u64::try_from(left.as_micros()).unwrap_or(u64::MAX);
        let now_us = self.at_us(now);
        let mut pace = self.lock();
        pace.begins(segment, now_us);
        (now_us, pace.stall_us(segment, left_us))
    }

    /// Notes that the first byte of a read arrived.
    pub(crate) fn answered(&self, segment: SegmentId, began_us: u64, first: Instant, is_late: bool) {
        let now_us = self.at_us(first);
        self.lock().answered(segment, now_us.saturating_sub(began_us), is_late, now_us);
    }

    /// Notes that a node sends nothing.
    pub(crate) fn stalled(&self, segment: SegmentId, now_us: u64, name: impl FnOnce() -> String) {
        let pause_us = self.lock().stalled(segment, now_us);
        if let Some(pause_us) = pause_us {
            let (node, pause_ms) = (name(), pause_us / 1000);
            tracing::warn!(node, pause_ms, "node does not answer reads in time; its copies are read last");
        }
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.at_us(Instant::now())
    }

    pub(crate) fn at_us(&self, instant: Instant) -> u64 {
        let since = instant.saturating_duration_since(self.origin);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }

    /// The instant of this time, or the deadline if that is earlier.
    pub(crate) fn instant(&self, at_us: Option<u64>, deadline: Deadline) -> Instant {
        let at = at_us.and_then(|it| self.origin.checked_add(std::time::Duration::from_micros(it)));
        at.map_or(deadline.instant(), |it| it.min(deadline.instant()))
    }

    fn lock(&self) -> MutexGuard<'_, Pace> {
        // A wrong estimate costs one request, no more.
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
