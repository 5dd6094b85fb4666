//! Control over concurrent reads that may fill the same buffers (hedged reads).
//!
//! A reader that receives nothing from one node requests the same bytes from another, and uses the first that
//! arrive. Both reads have the same buffers, so a buffer belongs to the read whose first byte arrives first,
//! its *owner*. Any other read gives up instead of writing there. A [`ReadControl`] belongs to one such read:
//! it reports arrivals, and can stop the read.
//!
//! **Invariant:** a read writes into the buffer of an item only while it owns it. All reads run inside one
//! task, so a read that is not polled writes nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::Instant;

/// Which read fills the buffer of each item; zero is none.
#[derive(Debug)]
pub struct BufferOwners(Box<[AtomicU64]>);

impl BufferOwners {
    /// `count` buffers without an owner.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self((0..count).map(|_| AtomicU64::new(0)).collect())
    }

    /// Makes a read the owner, unless another one is. Read numbers are not zero.
    #[must_use]
    pub fn take(&self, item: usize, read: u64) -> bool {
        let Some(owner) = self.0.get(item) else { return false };
        match owner.compare_exchange(0, read, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(owner) => owner == read,
        }
    }

    /// Gives up the ownership.
    pub fn release(&self, item: usize, read: u64) {
        if let Some(owner) = self.0.get(item) {
            // Another owner keeps it.
            let _other = owner.compare_exchange(read, 0, Ordering::AcqRel, Ordering::Acquire);
        }
    }
}

/// One read of several objects on one node.
#[derive(Debug)]
pub struct ReadControl {
    arrivals: AtomicU64,
    first_arrival: OnceLock<Instant>,
    is_stopped: AtomicBool,
    has_yielded: AtomicBool,
    owners: Arc<BufferOwners>,
    /// For each operation its item, and its read number.
    ops: Vec<(usize, u64)>,
}

impl ReadControl {
    /// A read whose operations fill these items under these read numbers.
    #[must_use]
    pub fn new(owners: Arc<BufferOwners>, ops: Vec<(usize, u64)>) -> Self {
        Self {
            arrivals: AtomicU64::new(0),
            first_arrival: OnceLock::new(),
            is_stopped: AtomicBool::new(false),
            has_yielded: AtomicBool::new(false),
            owners,
            ops,
        }
    }

    /// Number of times that bytes arrived.
    #[must_use]
    pub fn arrivals(&self) -> u64 {
        self.arrivals.load(Ordering::Acquire)
    }

    /// When the first byte arrived.
    #[must_use]
    pub fn first_arrival(&self) -> Option<Instant> {
        self.first_arrival.get().copied()
    }

    /// Ends the read at its next poll, before it accesses a buffer again.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
    }

    /// Whether the read was stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    /// Whether the read gave up because another read owns one of its buffers.
    #[must_use]
    pub fn has_yielded(&self) -> bool {
        self.has_yielded.load(Ordering::Acquire)
    }

    /// Makes this read the owner of an operation's buffers. False if another read is.
    #[must_use]
    pub fn may_fill(&self, op: usize) -> bool {
        let may = self.ops.get(op).is_some_and(|(item, read)| self.owners.take(*item, *read));
        if !may {
            self.has_yielded.store(true, Ordering::Release);
        }
        may
    }

    /// Counts an arrival.
    pub(crate) fn arrived(&self) {
        if self.arrivals.fetch_add(1, Ordering::AcqRel) == 0 {
            self.first_arrival.get_or_init(Instant::now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_belongs_to_the_first_that_fills_it() {
        let owners = Arc::new(BufferOwners::new(2));
        let one = ReadControl::new(Arc::clone(&owners), vec![(0, 1), (1, 2)]);
        let other = ReadControl::new(Arc::clone(&owners), vec![(1, 3), (0, 4)]);
        assert!(one.may_fill(0) && one.may_fill(0), "it stays the owner");
        assert!(!other.may_fill(1) && other.has_yielded() && !one.has_yielded());
        assert!(other.may_fill(0) && !one.may_fill(1));
        owners.release(0, 4);
        assert!(!other.may_fill(1), "only the owner releases it");
        owners.release(0, 1);
        assert!(other.may_fill(1));
        assert!(!one.may_fill(2), "unknown operation");
    }

    #[test]
    fn first_arrival_is_remembered() {
        let watch = ReadControl::new(Arc::new(BufferOwners::new(0)), Vec::new());
        assert!(watch.first_arrival().is_none() && watch.arrivals() == 0);
        watch.arrived();
        let first = watch.first_arrival();
        watch.arrived();
        assert_eq!((watch.first_arrival(), watch.arrivals()), (first, 2));
        assert!(first.is_some() && !watch.is_stopped());
        watch.stop();
        assert!(watch.is_stopped());
    }
}
