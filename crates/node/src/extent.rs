//! The free extents of a segment.
//!
//! Best fit with coalescing. An object that fits into no single run gets several extents: fragmentation
//! never rejects an object that fits, up to the limit of extents. Space is allocated in multiples of
//! [`EXTENT_ALIGN`].
//!
//! **Invariant:** free runs neither overlap nor touch, and the two indexes list the same runs.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_types::{EXTENT_ALIGN, Extent, space_for};

/// The free runs of one segment.
#[derive(Clone, Debug)]
pub struct FreeSpace {
    capacity: u64,
    free: u64,
    by_offset: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
}

impl FreeSpace {
    /// A segment that is completely free. A capacity that is not a multiple of the alignment is rounded
    /// down.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        let mut space = Self::all_used(capacity);
        if space.capacity > 0 {
            space.insert(0, space.capacity);
            space.free = space.capacity;
        }
        space
    }

    /// A segment that is completely in use: [`Self::give_back`] adds free runs.
    #[must_use]
    pub fn all_used(capacity: u64) -> Self {
        let capacity = capacity - capacity % EXTENT_ALIGN;
        Self { capacity, free: 0, by_offset: BTreeMap::new(), by_len: BTreeSet::new() }
    }

    /// Total number of bytes.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Number of free bytes.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.free
    }

    /// The length of the longest free run.
    #[must_use]
    pub fn longest(&self) -> u64 {
        self.by_len.last().map_or(0, |&(len, _)| len)
    }

    /// The free runs, in order.
    pub fn runs(&self) -> impl Iterator<Item = Extent> + '_ {
        self.by_offset.iter().map(|(&offset, &len)| Extent { offset, len })
    }

    /// Allocates `len` bytes, in one extent if some run is long enough, otherwise in as few as possible.
    /// `None` if there is not enough space, or only in more than `pieces_max` extents.
    pub fn take(&mut self, len: u64, pieces_max: usize) -> Option<Vec<Extent>> {
        if len == 0 {
            return Some(Vec::new());
        }
        let need = space_for(len)?;
        if need > self.free {
            return None;
        }
        if self.longest() >= need {
            return self.take_contiguous(len).map(|extent| vec![extent]);
        }
        let pieces = self.longest_runs(need, pieces_max).ok()?;
        let mut left = len;
        let mut taken = Vec::with_capacity(pieces.len());
        for run in pieces {
            let piece = run.len.min(left);
            self.carve(run, space_for(piece)?);
            taken.push(Extent { offset: run.offset, len: piece });
            left -= piece;
        }
        Some(taken)
    }

    /// Allocates `len` contiguous bytes.
    pub fn take_contiguous(&mut self, len: u64) -> Option<Extent> {
        let need = space_for(len)?;
        if need == 0 {
            return Some(Extent::default());
        }
        let &(run_len, offset) = self.by_len.range((need, 0)..).next()?;
        self.carve(Extent { offset, len: run_len }, need);
        Some(Extent { offset, len })
    }

    /// Allocates `len` bytes from the end of the longest run. Consecutive allocations are then adjacent and
    /// do not fragment the rest.
    pub fn take_from_end(&mut self, len: u64) -> Option<Extent> {
        let need = space_for(len).filter(|&need| need > 0)?;
        let &(run_len, start) = self.by_len.last().filter(|(run_len, _)| *run_len >= need)?;
        let extent = Extent { offset: start + run_len - need, len: need };
        self.take_at(extent).then_some(extent)
    }

    /// Allocates exactly this range; `false` if it is not completely free.
    pub fn take_at(&mut self, extent: Extent) -> bool {
        let Some(need) = space_for(extent.len).filter(|&need| need > 0) else { return false };
        let end = extent.offset.saturating_add(need);
        let run = self.by_offset.range(..=extent.offset).next_back().map(|(&start, &len)| (start, len));
        let Some((start, len)) = run.filter(|(start, len)| start + len >= end) else { return false };
        self.remove(start, len);
        if start < extent.offset {
            self.insert(start, extent.offset - start);
        }
        if end < start + len {
            self.insert(end, start + len - end);
        }
        self.free -= need;
        true
    }

    /// The number of bytes that the `pieces_max` longest free runs lack together to hold `len` bytes.
    #[must_use]
    pub fn short_by(&self, len: u64, pieces_max: usize) -> u64 {
        let need = space_for(len).unwrap_or(u64::MAX);
        self.longest_runs(need, pieces_max).map_or_else(|found| need - found, |_| 0)
    }

    /// Frees what [`Self::take`] or [`Self::take_contiguous`] allocated.
    ///
    /// # Panics
    /// If the run was not allocated: a run that is freed twice would be given to two writers.
    pub fn give_back(&mut self, extent: Extent) {
        let Some(len) = space_for(extent.len).filter(|&len| len > 0) else { return };
        let (mut start, mut end) = (extent.offset, extent.offset + len);
        assert!(end <= self.capacity, "{extent:?} is outside of the segment");
        if let Some((&before, &before_len)) = self.by_offset.range(..=start).next_back() {
            assert!(before + before_len <= start, "{extent:?} is already free");
            if before + before_len == start {
                self.remove(before, before_len);
                start = before;
            }
        }
        if let Some((&after, &after_len)) = self.by_offset.range(extent.offset..).next() {
            assert!(end <= after, "{extent:?} is already free");
            if after == end {
                self.remove(after, after_len);
                end += after_len;
            }
        }
        self.insert(start, end - start);
        self.free += len;
    }

    /// The longest runs that hold `need` bytes together, longest first; otherwise the number of bytes they
    /// hold.
    fn longest_runs(&self, need: u64, pieces_max: usize) -> Result<Vec<Extent>, u64> {
        let mut runs = Vec::new();
        let mut found = 0;
        for &(len, offset) in self.by_len.iter().rev().take(pieces_max) {
            runs.push(Extent { offset, len });
            found += len;
            if found >= need {
                return Ok(runs);
            }
        }
        Err(found)
    }

    /// Allocates the first `need` bytes of a free run.
    fn carve(&mut self, run: Extent, need: u64) {
        self.remove(run.offset, run.len);
        if run.len > need {
            self.insert(run.offset + need, run.len - need);
        }
        self.free -= need;
    }

    fn insert(&mut self, offset: u64, len: u64) {
        self.by_offset.insert(offset, len);
        self.by_len.insert((len, offset));
    }

    fn remove(&mut self, offset: u64, len: u64) {
        self.by_offset.remove(&offset);
        self.by_len.remove(&(len, offset));
    }
}

/// The part of an object's extents that holds `len` bytes from `offset` on. `None` if the object is
/// shorter.
#[must_use]
pub fn cut(extents: &[Extent], offset: u64, len: u64) -> Option<Vec<Extent>> {
    let (mut skip, mut left) = (offset, len);
    let mut parts = Vec::new();
    for extent in extents {
        if left == 0 {
            break;
        }
        if skip >= extent.len {
            skip -= extent.len;
            continue;
        }
        let part = (extent.len - skip).min(left);
        parts.push(Extent { offset: extent.offset + skip, len: part });
        left -= part;
        skip = 0;
    }
    (left == 0 && (skip == 0 || len == 0)).then_some(parts)
}

/// The memory of these extents.
pub(super) fn space_of(extents: &[Extent]) -> u64 {
    extents.iter().filter_map(|it| space_for(it.len)).sum()
}

/// A list of extents as it is stored in the heap.
pub(super) fn spill(extents: &[Extent]) -> Vec<u8> {
    extents.iter().flat_map(|it| [it.offset.to_le_bytes(), it.len.to_le_bytes()]).flatten().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use tiffin_types::EXTENTS_MAX;

    use super::*;

    #[test]
    fn smallest_run_that_fits_is_used() {
        let mut space = FreeSpace::new(1024);
        let all: Vec<_> = (0..16).map(|_| space.take_contiguous(64).unwrap()).collect();
        for &index in &[1, 2, 3, 5, 6] {
            space.give_back(all[index]);
        }
        assert_eq!(space.take_contiguous(128), Some(Extent { offset: 5 * 64, len: 128 }));
    }

    #[test]
    fn fragmentation_does_not_reject_what_fits() {
        let mut space = FreeSpace::new(1024);
        let all: Vec<_> = (0..16).map(|_| space.take_contiguous(64).unwrap()).collect();
        all.iter().step_by(2).for_each(|&extent| space.give_back(extent));
        let taken = space.take(500, EXTENTS_MAX).unwrap();
        assert_eq!(taken.len(), 8);
        assert_eq!(taken.iter().map(|it| it.len).sum::<u64>(), 500);
        assert_eq!(space.free(), 0);
        assert_eq!(space.take(1, EXTENTS_MAX), None);
    }

    #[test]
    fn extents_beyond_the_limit_are_rejected() {
        let mut space = FreeSpace::new(1024);
        let all: Vec<_> = (0..16).map(|_| space.take_contiguous(64).unwrap()).collect();
        all.iter().step_by(2).for_each(|&extent| space.give_back(extent));
        assert_eq!((space.take(4 * 64, 3), space.short_by(4 * 64, 3)), (None, 64));
        assert_eq!(space.short_by(4 * 64, 4), 0);
        assert_eq!(space.take(4 * 64, 4).unwrap().len(), 4);
    }

    #[test]
    fn ranges_are_allocated_by_offset() {
        let mut space = FreeSpace::new(1024);
        assert_eq!(space.take_from_end(128), Some(Extent { offset: 896, len: 128 }));
        assert_eq!(space.take_from_end(128), Some(Extent { offset: 768, len: 128 }));
        assert!(space.take_at(Extent { offset: 128, len: 64 }));
        assert!(!space.take_at(Extent { offset: 64, len: 128 }), "a part of it is in use");
        assert!(!space.take_at(Extent { offset: 768, len: 64 }));
        assert_eq!((space.free(), space.longest()), (704, 576));
        space.give_back(Extent { offset: 128, len: 64 });
        assert_eq!(space.longest(), 768);
        assert_eq!(space.take_from_end(1024), None);
        let mut used = FreeSpace::all_used(1024);
        assert_eq!((used.capacity(), used.free(), used.take_from_end(64)), (1024, 0, None));
    }

    #[test]
    fn sizes_that_overflow_are_rejected() {
        let mut space = FreeSpace::new(1024);
        assert_eq!(space.take(u64::MAX, EXTENTS_MAX), None);
        assert_eq!(space.take_contiguous(u64::MAX), None);
        assert_eq!(space.take(0, EXTENTS_MAX), Some(vec![]));
    }

    #[test]
    #[should_panic(expected = "is already free")]
    fn freeing_twice_panics() {
        let mut space = FreeSpace::new(1024);
        let extent = space.take_contiguous(64).unwrap();
        space.give_back(extent);
        space.give_back(extent);
    }

    #[test]
    fn cut_follows_the_extents() {
        let extents = [Extent { offset: 100, len: 10 }, Extent { offset: 500, len: 20 }];
        assert_eq!(
            cut(&extents, 5, 10).unwrap(),
            [Extent { offset: 105, len: 5 }, Extent { offset: 500, len: 5 }]
        );
        assert_eq!(cut(&extents, 10, 20).unwrap(), [Extent { offset: 500, len: 20 }]);
        assert_eq!(cut(&extents, 10, 21), None);
        assert_eq!(cut(&extents, 30, 0), Some(vec![]));
        assert_eq!(cut(&extents, u64::MAX, 1), None);
    }

    proptest! {
        /// Compares with a trivial model: one flag per unit.
        #[test]
        fn free_space_agrees_with_a_bitmap(
            steps in prop::collection::vec((any::<bool>(), 0u64..2000, 0usize..64), 1..200)
        ) {
            const UNITS: usize = 128;
            let mut space = FreeSpace::new(UNITS as u64 * EXTENT_ALIGN);
            let mut used = [false; UNITS];
            let mut live: Vec<Vec<Extent>> = Vec::new();
            for (take, len, pick) in steps {
                if take || live.is_empty() {
                    let free = used.iter().filter(|it| !**it).count() as u64 * EXTENT_ALIGN;
                    let taken = space.take(len, EXTENTS_MAX);
                    prop_assert_eq!(taken.is_some(), space_for(len).unwrap() <= free);
                    let Some(extents) = taken else { continue };
                    prop_assert_eq!(extents.iter().map(|it| it.len).sum::<u64>(), len);
                    for unit in extents.iter().flat_map(units) {
                        prop_assert!(!used[unit], "unit {} was handed out twice", unit);
                        used[unit] = true;
                    }
                    live.push(extents);
                } else {
                    let extents = live.swap_remove(pick % live.len());
                    for extent in &extents {
                        units(extent).for_each(|unit| used[unit] = false);
                        space.give_back(*extent);
                    }
                }
                let free = used.iter().filter(|it| !**it).count() as u64 * EXTENT_ALIGN;
                prop_assert_eq!(space.free(), free);
                prop_assert_eq!(space.longest(), longest_run(&used));
            }
        }
    }

    fn units(extent: &Extent) -> std::ops::Range<usize> {
        let first = (extent.offset / EXTENT_ALIGN) as usize;
        first..first + (extent.len.div_ceil(EXTENT_ALIGN)) as usize
    }

    fn longest_run(used: &[bool]) -> u64 {
        used.split(|it| *it).map(|run| run.len() as u64).max().unwrap_or(0) * EXTENT_ALIGN
    }
}
