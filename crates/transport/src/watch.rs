//! Several reads that may fill the same buffers, seen and steered while they run.
//!
//! A reader that hears nothing from one node asks another for the same bytes, and takes what comes first.
//! Both reads have the same buffers, so a buffer belongs to the read whose first byte arrives first, its
//! *owner*. Any other read gives up instead of writing there. A [`Watch`] is one such read: it tells what has
//! arrived, and can be stopped.
//!
//! **Invariant:** a read writes into the buffer of an item only while it owns it. All reads run inside one
//! task, so a read that is not polled writes nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::Instant;

/// Which read fills the buffer of each item; zero is none.
#[derive(Debug)]
pub struct Owners(Box<[AtomicU64]>);

impl Owners {
    /// So many buffers that nobody owns.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self((0..count).map(|_| AtomicU64::new(0)).collect())
    }

    /// Makes a read the owner, unless another one is. Numbers of reads are not zero.
    #[must_use]
    pub fn take(&self, item: usize, read: u64) -> bool {
        let Some(owner) = self.0.get(item) else { return false };
        match owner.compare_exchange(0, read, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(owner) => owner == read,
        }
    }

    /// The read does not use the buffer any more.
    pub fn release(&self, item: usize, read: u64) {
        if let Some(owner) = self.0.get(item) {
            // If another one is the owner, it stays so.
            let _other = owner.compare_exchange(read, 0, Ordering::AcqRel, Ordering::Acquire);
        }
    }
}

/// One read of several objects that lie on one node.
#[derive(Debug)]
pub struct Watch {
    arrivals: AtomicU64,
    first_arrival: OnceLock<Instant>,
    is_stopped: AtomicBool,
    has_yielded: AtomicBool,
    owners: Arc<Owners>,
    /// For each operation its item, and the number of the read that it is.
    ops: Vec<(usize, u64)>,
}

impl Watch {
    /// A read whose operations fill these items, each as the read of that number.
    #[must_use]
    pub fn new(owners: Arc<Owners>, ops: Vec<(usize, u64)>) -> Self {
        Self {
            arrivals: AtomicU64::new(0),
            first_arrival: OnceLock::new(),
            is_stopped: AtomicBool::new(false),
            has_yielded: AtomicBool::new(false),
            owners,
            ops,
        }
    }

    /// How often something arrived.
    #[must_use]
    pub fn arrivals(&self) -> u64 {
        self.arrivals.load(Ordering::Acquire)
    }

    /// When the first byte arrived.
    #[must_use]
    pub fn first_arrival(&self) -> Option<Instant> {
        self.first_arrival.get().copied()
    }

    /// Has the read end the next time it is polled, before it touches a buffer again.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
    }

    /// Whether it was told to end.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    /// Whether it gave up because another read has a buffer that it wanted to fill.
    #[must_use]
    pub fn has_yielded(&self) -> bool {
        self.has_yielded.load(Ordering::Acquire)
    }

    /// Whether the buffers of an operation may be filled: from here on they are this read's.
    #[must_use]
    pub fn may_fill(&self, op: usize) -> bool {
        let may = self.ops.get(op).is_some_and(|(item, read)| self.owners.take(*item, *read));
        if !may {
            self.has_yielded.store(true, Ordering::Release);
        }
        may
    }

    /// Something arrived.
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
        let owners = Arc::new(Owners::new(2));
        let one = Watch::new(Arc::clone(&owners), vec![(0, 1), (1, 2)]);
        let other = Watch::new(Arc::clone(&owners), vec![(1, 3), (0, 4)]);
        assert!(one.may_fill(0) && one.may_fill(0), "and stays its own");
        assert!(!other.may_fill(1) && other.has_yielded() && !one.has_yielded());
        assert!(other.may_fill(0) && !one.may_fill(1));
        owners.release(0, 4);
        assert!(!other.may_fill(1), "only its owner gives it up");
        owners.release(0, 1);
        assert!(other.may_fill(1));
        assert!(!one.may_fill(2), "there is no such operation");
    }

    #[test]
    fn first_arrival_is_remembered() {
        let watch = Watch::new(Arc::new(Owners::new(0)), Vec::new());
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
