//! Cache of checksums of sent bytes, so that ranges that are read often are hashed once.
//!
//! Bytes under a committed stamp do not change, and a stamp is never reused; so a checksum that was computed
//! while the slot held the stamp is valid for every later read of the same range of the same use. If the
//! bytes are damaged later, the reader notices the difference.

use std::sync::{Mutex, PoisonError};

use super::frame::RequestHead;

/// Number of entries. A collision replaces the older entry.
const ENTRIES_MAX: usize = 1 << 14;

pub(super) struct ChecksumCache(Mutex<Vec<Option<(Part, u64)>>>);

/// A range of one use of a slot.
type Part = (u32, u64, u64, u64);

impl Default for ChecksumCache {
    fn default() -> Self {
        Self(Mutex::new(vec![None; ENTRIES_MAX]))
    }
}

impl ChecksumCache {
    /// The checksum of the requested range, if it was sent before.
    pub(super) fn find(&self, head: &RequestHead) -> Option<u64> {
        let (part, place) = place(head);
        let checksums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, sum) = (*checksums.get(place)?)?;
        (known == part).then_some(sum)
    }

    /// Stores a checksum. The caller has checked the stamp after the bytes had been hashed, or copied to be
    /// hashed.
    pub(super) fn keep(&self, head: &RequestHead, sum: u64) {
        let (part, place) = place(head);
        let mut checksums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = checksums.get_mut(place) {
            *found = Some((part, sum));
        }
    }
}

fn place(head: &RequestHead) -> (Part, usize) {
    let part = (head.slot, head.stamp, head.offset, head.len);
    let mixed = head.stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (head.offset >> 12).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (part, (mixed >> 40) as usize % ENTRIES_MAX)
}
