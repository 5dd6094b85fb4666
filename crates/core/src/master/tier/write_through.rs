//! The objects that must be written through to a disk, in the order in which they were put.
//!
//! A disk may be slow, or away, for any time. So each memory lists at most [`WRITE_THROUGH_MAX`] of them.
//! The others are found in the catalog, once the listed ones are written.

use std::collections::VecDeque;

use crate::{Generation, master::catalog::ObjectIndex};

/// Maximum number of objects that are listed for one memory.
const WRITE_THROUGH_MAX: usize = 1 << 12;

/// The objects of one memory that must be written through.
#[derive(Debug, Default)]
pub(super) struct WriteThrough {
    listed: VecDeque<(ObjectIndex, Generation)>,
    /// There are further ones, which are only in the catalog.
    has_more: bool,
}

impl WriteThrough {
    pub(super) fn push(&mut self, object: (ObjectIndex, Generation)) {
        // Unlisted objects come after all listed ones, so no object is listed after the first unlisted one.
        self.has_more |= self.listed.len() >= WRITE_THROUGH_MAX;
        if !self.has_more {
            self.listed.push_back(object);
        }
    }

    /// The oldest listed object.
    pub(super) fn first(&self) -> Option<(ObjectIndex, Generation)> {
        self.listed.front().copied()
    }

    pub(super) fn pop(&mut self) {
        self.listed.pop_front();
    }

    /// Whether the catalog must be searched once the list is empty.
    pub(super) fn has_more(&self) -> bool {
        self.has_more
    }

    /// The catalog has no further ones.
    pub(super) fn all_found(&mut self) {
        self.has_more = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_is_bounded() {
        let object = |counter: usize| (ObjectIndex::MIN, Generation { epoch: 1, counter: counter as u64 });
        let mut queue = WriteThrough::default();
        (0..WRITE_THROUGH_MAX).for_each(|at| queue.push(object(at)));
        assert_eq!((queue.listed.len(), queue.has_more()), (WRITE_THROUGH_MAX, false));
        queue.push(object(WRITE_THROUGH_MAX));
        assert_eq!((queue.listed.len(), queue.has_more()), (WRITE_THROUGH_MAX, true));
        assert_eq!(queue.first(), Some(object(0)));
        queue.pop();
        queue.push(object(WRITE_THROUGH_MAX + 1));
        assert_eq!(
            queue.listed.back(),
            Some(&object(WRITE_THROUGH_MAX - 1)),
            "a newer object is listed before an older, unlisted one"
        );
        queue.all_found();
        queue.push(object(WRITE_THROUGH_MAX + 2));
        assert_eq!((queue.listed.back(), queue.has_more()), (Some(&object(WRITE_THROUGH_MAX + 2)), false));
    }
}
