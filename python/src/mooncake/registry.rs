//! Which memory the caller has registered.
//!
//! Nothing here needs registration: bytes go through shared memory or a socket from wherever they lie. The
//! record is kept because callers check the answers, and so that a test can refuse what RDMA would refuse.
//!
//! **Invariant:** the ranges do not overlap, and none is empty.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The registered ranges of one store: start → length.
#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<BTreeMap<u64, u64>>);

impl Registry {
    /// Takes a range in, unless it is empty, at no address, or overlaps another.
    pub(crate) fn add(&self, start: u64, len: u64) -> bool {
        let mut ranges = self.lock();
        let Some(end) = start.checked_add(len) else { return false };
        if start == 0 || len == 0 {
            return false;
        }
        let overlaps = ranges.range(..end).next_back().is_some_and(|(at, len)| at + len > start);
        if !overlaps {
            ranges.insert(start, len);
        }
        !overlaps
    }

    /// Forgets the range that starts there; `false` if none does.
    pub(crate) fn remove(&self, start: u64) -> bool {
        self.lock().remove(&start).is_some()
    }

    /// Whether all of those bytes lie inside one range.
    pub(crate) fn covers(&self, start: u64, len: u64) -> bool {
        let Some(end) = start.checked_add(len) else { return false };
        self.lock().range(..=start).next_back().is_some_and(|(at, len)| end <= at + len)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
