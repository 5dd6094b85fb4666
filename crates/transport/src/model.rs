//! Models of shared words for loom, with loom's atomics.

use std::sync::atomic::Ordering;

use loom::sync::atomic::{AtomicU64, fence};

use crate::stamp::Words;

/// A few words of a segment, by their offsets.
pub(crate) trait Model {
    fn word(&self, at: u64) -> &AtomicU64;
}

impl<M: Model> Words for M {
    fn load(&self, at: u64) -> u64 {
        self.word(at).load(Ordering::Relaxed)
    }

    fn store(&self, at: u64, value: u64, order: Ordering) {
        self.word(at).store(value, order);
    }

    fn fence(&self, order: Ordering) {
        fence(order);
    }

    fn compare_and_swap(&self, at: u64, old: u64, new: u64) -> Result<(), u64> {
        let word = self.word(at);
        word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).map(|_| ())
    }
}
