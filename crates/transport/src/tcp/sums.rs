//! Checksums of what was sent, kept so that what is read often is hashed once.
//!
//! Bytes under a committed stamp do not change, and a stamp is never used twice; so a checksum that was
//! computed while the stamp was there is that of every later read of the same range of the same use. If
//! the bytes differ all the same, whoever reads them finds out.

use std::sync::{Mutex, PoisonError};

use super::frame::RequestHead;

/// How many are kept. One that needs the place of another takes it.
const SUMS_MAX: usize = 1 << 14;

/// A table of checksums.
pub(super) struct Sums(Mutex<Vec<Option<(Part, u64)>>>);

/// A range of one use of a slot.
type Part = (u32, u64, u64, u64);

impl Default for Sums {
    fn default() -> Self {
        Self(Mutex::new(vec![None; SUMS_MAX]))
    }
}

impl Sums {
    /// The checksum of what is asked for, if it was sent before.
    pub(super) fn find(&self, head: &RequestHead) -> Option<u64> {
        let (part, place) = place(head);
        let sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, sum) = (*sums.get(place)?)?;
        (known == part).then_some(sum)
    }

    /// Keeps a checksum; the stamp was there after the bytes had been hashed, or copied to be hashed.
    pub(super) fn keep(&self, head: &RequestHead, sum: u64) {
        let (part, place) = place(head);
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = sums.get_mut(place) {
            *found = Some((part, sum));
        }
    }
}

fn place(head: &RequestHead) -> (Part, usize) {
    let part = (head.slot, head.stamp, head.offset, head.len);
    let mixed = head.stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (head.offset >> 12).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (part, (mixed >> 40) as usize % SUMS_MAX)
}
