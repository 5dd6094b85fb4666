//! The memory of slot records and of the heap of names, which grows and shrinks with the objects.
//!
//! Both tables have address space for far more than is ever used, and only the chunks in use are backed by
//! memory. A node has a few chunks without charge. It pays for each further one with as many bytes of its
//! data segment, which objects may not use, so that its total memory stays constant. There are two
//! exceptions. The pages of a released chunk stay with the sealed control segment until the node restarts.
//! Withheld ranges shorter than a page stay with the data segment.
//!
//! A chunk without any use is *idle*. It counts as free, and is released when bytes are missing, not
//! before: so records that come and go at the edge of a chunk cost nothing.
//!
//! **Invariant:** the withheld bytes are those of the backed chunks beyond the ones without charge.

use std::collections::{BTreeSet, VecDeque};

use tiffin_types::{EXTENT_ALIGN, Extent, SlotId, message::AllocateItem, space_for};

use super::{Effect, NodeConfig};
use crate::extent::FreeSpace;

/// Bytes of one slot record.
pub const SLOT_BYTES: u64 = 128;

/// Both tables, and the bytes withheld for them.
#[derive(Debug)]
pub(super) struct Metadata {
    chunk: u64,
    chunks_free: u64,
    slots: SlotTable,
    heap: Heap,
    /// Bytes of the data segment that no object may use. A range that is free here is withheld there.
    withheld: FreeSpace,
}

impl Metadata {
    pub(super) fn new(config: &NodeConfig) -> Self {
        Self {
            chunk: config.chunk_bytes,
            chunks_free: config.chunks_free,
            slots: SlotTable::new(config.slot_count, config.chunk_bytes),
            heap: Heap::new(config.heap_bytes, config.chunk_bytes),
            withheld: FreeSpace::all_used(config.capacity),
        }
    }

    /// Bytes that the tables in use are charged with, without idle chunks.
    pub(super) fn charged(&self) -> u64 {
        self.withheld.free() - self.reclaimable()
    }

    /// Withheld bytes that [`Self::trim`] would return.
    pub(super) fn reclaimable(&self) -> u64 {
        let idle = (self.slots.table.idle.len() + self.heap.table.idle.len()) as u64;
        (idle * self.chunk).min(self.withheld.free())
    }

    /// Every run of withheld bytes.
    pub(super) fn withheld(&self) -> impl Iterator<Item = Extent> + '_ {
        self.withheld.runs()
    }

    /// A slot for one more object.
    pub(super) fn take_slot(
        &mut self,
        space: &mut FreeSpace,
        effects: &mut VecDeque<Effect>,
    ) -> Option<SlotId> {
        if self.slots.open.is_empty() {
            let first = self.slots.table.unbacked_run(1)?;
            self.pay(1, space, effects).then(|| self.slots.back(first))?;
        }
        self.slots.take()
    }

    pub(super) fn give_back_slot(&mut self, slot: SlotId) {
        self.slots.give_back(slot);
    }

    /// Contiguous bytes of the heap.
    pub(super) fn take_heap(
        &mut self,
        len: u64,
        space: &mut FreeSpace,
        effects: &mut VecDeque<Effect>,
    ) -> Option<Extent> {
        if let Some(extent) = self.heap.take(len) {
            return Some(extent);
        }
        let count = space_for(len)?.div_ceil(self.chunk);
        let first = self.heap.table.unbacked_run(count)?;
        self.pay(count, space, effects).then(|| self.heap.back(first, count))?;
        self.heap.take(len)
    }

    pub(super) fn give_back_heap(&mut self, extent: Extent) {
        self.heap.give_back(extent);
    }

    /// Takes this very slot, in memory that an earlier process has used. `false` if it is in use already, or
    /// there is no such slot. [`Self::pay_for_adopted`] follows.
    pub(super) fn adopt_slot(&mut self, slot: SlotId) -> bool {
        self.slots.take_at(slot)
    }

    /// Takes these very bytes of the heap, as above.
    pub(super) fn adopt_heap(&mut self, extent: Extent) -> bool {
        self.heap.take_at(extent)
    }

    /// Withholds what the adopted tables cost. `false` if there is not that much.
    pub(super) fn pay_for_adopted(&mut self, space: &mut FreeSpace, effects: &mut VecDeque<Effect>) -> bool {
        let cost = self.backed().saturating_sub(self.chunks_free) * self.chunk;
        let owed = cost.saturating_sub(self.withheld.free()) / self.chunk;
        self.withhold(owed, space, effects)
    }

    /// Releases idle chunks, as far as they were paid for, and returns their bytes to objects.
    pub(super) fn trim(&mut self, space: &mut FreeSpace) {
        while self.withheld.free() > 0 {
            if !(self.heap.release_idle() || self.slots.release_idle()) {
                return;
            }
            self.refund(space);
        }
    }

    /// The number of bytes of values that must be removed so that a table can grow by `len` bytes.
    pub(super) fn growth_bytes(&self, len: u64) -> u64 {
        len.div_ceil(self.chunk).saturating_mul(self.chunk)
    }

    /// The longest name with which one more small object fits.
    pub(super) fn name_max(&self, space: &FreeSpace) -> u64 {
        let unpaid = self.chunks_free.saturating_sub(self.backed());
        let idle = self.reclaimable() / self.chunk;
        let mut growth = unpaid + idle + space.free() / self.chunk;
        if self.slots.open.is_empty() {
            if growth == 0 || self.slots.table.is_full() {
                return 0;
            }
            growth -= 1;
        }
        let name_max = self.heap.space.longest().max(growth.saturating_mul(self.chunk));
        // Zero would mean that slots are missing.
        name_max.clamp(1, self.heap.space.capacity().max(1))
    }

    /// Whether an object would fit if it were the only one.
    pub(super) fn fits_alone(&self, item: &AllocateItem, capacity: u64) -> bool {
        let spaces = [item.len, item.name_len, item.attributes_len].map(space_for);
        let [Some(len), Some(name), Some(attributes)] = spaces else { return false };
        let heap = name.saturating_add(attributes);
        let chunks = 1 + heap.div_ceil(self.chunk);
        let charged = chunks.saturating_sub(self.chunks_free).saturating_mul(self.chunk);
        len.saturating_add(charged) <= capacity && heap <= self.heap.space.capacity()
    }

    /// Panics with the numbers if the withheld bytes are not the cost of the tables.
    pub(super) fn assert_paid(&self) {
        let cost = self.backed().saturating_sub(self.chunks_free) * self.chunk;
        assert_eq!(self.withheld.free(), cost, "{} chunks are backed", self.backed());
    }

    fn backed(&self) -> u64 {
        self.slots.table.backed + self.heap.table.backed
    }

    /// Withholds the bytes of `count` further chunks; nothing if there are not enough.
    fn pay(&mut self, count: u64, space: &mut FreeSpace, effects: &mut VecDeque<Effect>) -> bool {
        let unpaid = self.chunks_free.saturating_sub(self.backed());
        self.withhold(count.saturating_sub(unpaid), space, effects)
    }

    fn withhold(&mut self, owed: u64, space: &mut FreeSpace, effects: &mut VecDeque<Effect>) -> bool {
        if owed.saturating_mul(self.chunk) > space.free() {
            return false;
        }
        let mut taken = Vec::new();
        for _ in 0..owed {
            // No object uses these bytes, so ranges between objects are as good as one run.
            let run = space.take_from_end(self.chunk).map(|it| vec![it]);
            let Some(extents) = run.or_else(|| space.take(self.chunk, usize::MAX)) else {
                taken.into_iter().for_each(|it| space.give_back(it));
                return false;
            };
            taken.extend(extents);
        }
        for extent in taken {
            self.withheld.give_back(extent);
            effects.push_back(Effect::Withhold(extent));
        }
        true
    }

    /// Returns the bytes of one chunk after it was released.
    fn refund(&mut self, space: &mut FreeSpace) {
        if self.backed() >= self.chunks_free {
            let extents = self.withheld.take(self.chunk, usize::MAX).unwrap_or_default();
            extents.into_iter().for_each(|it| space.give_back(it));
        }
    }
}

/// Which chunks of a table are backed by memory, and which of these are idle.
#[derive(Debug)]
struct Table {
    /// Chunks from here on were never backed.
    end: u64,
    /// Chunks before `end` that are not backed.
    holes: BTreeSet<u64>,
    idle: BTreeSet<u64>,
    backed: u64,
    chunks_max: u64,
}

impl Table {
    fn new(chunks_max: u64) -> Self {
        Self { end: 0, holes: BTreeSet::new(), idle: BTreeSet::new(), backed: 0, chunks_max }
    }

    fn is_backed(&self, chunk: u64) -> bool {
        chunk < self.end && !self.holes.contains(&chunk)
    }

    fn is_full(&self) -> bool {
        self.backed == self.chunks_max
    }

    /// The first of `count` consecutive chunks that are not backed.
    fn unbacked_run(&self, count: u64) -> Option<u64> {
        let (mut first, mut next) = (0, 0);
        for &hole in &self.holes {
            if hole != next {
                first = hole;
            }
            next = hole + 1;
            if next - first >= count {
                return Some(first);
            }
        }
        let first = if next == self.end && next > first { first } else { self.end };
        (first.checked_add(count)? <= self.chunks_max).then_some(first)
    }

    /// Backs a chunk, which is idle at first.
    fn back(&mut self, chunk: u64) {
        self.holes.remove(&chunk);
        self.holes.extend(self.end..chunk);
        self.end = self.end.max(chunk + 1);
        self.idle.insert(chunk);
        self.backed += 1;
    }

    /// Releases the last idle chunk.
    fn release_idle(&mut self) -> Option<u64> {
        let chunk = self.idle.pop_last()?;
        self.holes.insert(chunk);
        while self.end > 0 && self.holes.remove(&(self.end - 1)) {
            self.end -= 1;
        }
        self.backed -= 1;
        Some(chunk)
    }
}

/// The slots, by chunk; low ones are used first, so that the last chunks become idle.
#[derive(Debug)]
struct SlotTable {
    table: Table,
    slot_count: u64,
    per_chunk: u64,
    /// The unused slots of each backed chunk.
    unused: Vec<Vec<SlotId>>,
    /// Chunks with an unused slot.
    open: BTreeSet<u64>,
}

impl SlotTable {
    fn new(slot_count: u32, chunk: u64) -> Self {
        let per_chunk = (chunk / SLOT_BYTES).max(1);
        let slot_count = u64::from(slot_count);
        let table = Table::new(slot_count.div_ceil(per_chunk));
        Self { table, slot_count, per_chunk, unused: Vec::new(), open: BTreeSet::new() }
    }

    fn back(&mut self, chunk: u64) {
        let first = chunk * self.per_chunk;
        let end = (first + self.per_chunk).min(self.slot_count);
        if self.unused.len() <= chunk as usize {
            self.unused.resize(chunk as usize + 1, Vec::new());
        }
        if let Some(unused) = self.unused.get_mut(chunk as usize) {
            *unused = (first..end).rev().map(|slot| SlotId(slot as u32)).collect();
        }
        self.open.insert(chunk);
        self.table.back(chunk);
    }

    fn take(&mut self) -> Option<SlotId> {
        let &chunk = self.open.first()?;
        let size = self.size(chunk);
        let unused = self.unused.get_mut(chunk as usize)?;
        if unused.len() == size {
            self.table.idle.remove(&chunk);
        }
        let slot = unused.pop();
        if unused.is_empty() {
            self.open.remove(&chunk);
        }
        slot
    }

    /// Takes this very slot, and backs its chunk if need be; `false` if it is taken or does not exist.
    fn take_at(&mut self, slot: SlotId) -> bool {
        if u64::from(slot.0) >= self.slot_count {
            return false;
        }
        let chunk = u64::from(slot.0) / self.per_chunk;
        if !self.table.is_backed(chunk) {
            self.back(chunk);
        }
        let Some(unused) = self.unused.get_mut(chunk as usize) else { return false };
        let Some(at) = unused.iter().position(|it| *it == slot) else { return false };
        unused.remove(at);
        self.table.idle.remove(&chunk);
        if unused.is_empty() {
            self.open.remove(&chunk);
        }
        true
    }

    fn give_back(&mut self, slot: SlotId) {
        let chunk = u64::from(slot.0) / self.per_chunk;
        let size = self.size(chunk);
        let Some(unused) = self.unused.get_mut(chunk as usize) else { return };
        if unused.is_empty() {
            self.open.insert(chunk);
        }
        unused.push(slot);
        if unused.len() == size {
            self.table.idle.insert(chunk);
        }
    }

    fn release_idle(&mut self) -> bool {
        let Some(chunk) = self.table.release_idle() else { return false };
        self.open.remove(&chunk);
        if let Some(unused) = self.unused.get_mut(chunk as usize) {
            *unused = Vec::new();
        }
        true
    }

    fn size(&self, chunk: u64) -> usize {
        let first = chunk * self.per_chunk;
        (self.slot_count.saturating_sub(first)).min(self.per_chunk) as usize
    }
}

/// The heap; its free runs are in backed chunks only.
#[derive(Debug)]
struct Heap {
    table: Table,
    chunk: u64,
    space: FreeSpace,
    /// Bytes in use of each chunk.
    used: Vec<u64>,
}

impl Heap {
    fn new(bytes: u64, chunk: u64) -> Self {
        let space = FreeSpace::all_used(bytes);
        Self { table: Table::new(bytes.div_ceil(chunk)), chunk, space, used: Vec::new() }
    }

    fn back(&mut self, first: u64, count: u64) {
        if self.used.len() < (first + count) as usize {
            self.used.resize((first + count) as usize, 0);
        }
        (first..first + count).for_each(|chunk| self.table.back(chunk));
        self.space.give_back(self.run(first, count));
    }

    /// Chunks as a range of bytes; the last one of the table may be short.
    fn run(&self, first: u64, count: u64) -> Extent {
        let offset = first * self.chunk;
        Extent { offset, len: (count * self.chunk).min(self.space.capacity().saturating_sub(offset)) }
    }

    fn take(&mut self, len: u64) -> Option<Extent> {
        let extent = self.space.take_contiguous(len)?;
        self.count(extent, true);
        Some(extent)
    }

    /// Takes these very bytes, and backs their chunks if need be; `false` if they are taken or outside.
    fn take_at(&mut self, extent: Extent) -> bool {
        let Some(end) = space_for(extent.len).and_then(|space| extent.offset.checked_add(space)) else {
            return false;
        };
        if end > self.space.capacity() || !extent.offset.is_multiple_of(EXTENT_ALIGN) {
            return false;
        }
        for chunk in extent.offset / self.chunk..end.div_ceil(self.chunk) {
            if !self.table.is_backed(chunk) {
                self.back(chunk, 1);
            }
        }
        let is_free = self.space.take_at(extent);
        if is_free {
            self.count(extent, true);
        }
        is_free
    }

    fn give_back(&mut self, extent: Extent) {
        self.space.give_back(extent);
        self.count(extent, false);
    }

    fn release_idle(&mut self) -> bool {
        let Some(chunk) = self.table.release_idle() else { return false };
        let run = self.run(chunk, 1);
        let free = self.space.take_at(run);
        assert!(free, "the idle chunk {chunk} is in use");
        true
    }

    /// Adds a range to the usage of its chunks, or subtracts it.
    fn count(&mut self, extent: Extent, is_used: bool) {
        let end = extent.offset + space_for(extent.len).unwrap_or(0);
        let mut at = extent.offset;
        while at < end {
            let chunk = at / self.chunk;
            let part = end.min((chunk + 1) * self.chunk) - at;
            let Some(used) = self.used.get_mut(chunk as usize) else { return };
            let before = *used;
            *used = if is_used { before + part } else { before - part };
            if before == 0 {
                self.table.idle.remove(&chunk);
            } else if *used == 0 {
                self.table.idle.insert(chunk);
            }
            at += part;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use tiffin_types::{SegmentId, sabotage::Sabotage};

    use super::*;

    fn config(chunks_free: u64) -> NodeConfig {
        NodeConfig {
            segment: SegmentId(1),
            capacity: 64 * 64,
            slot_count: 9,
            heap_bytes: 20 * 64,
            chunk_bytes: 256,
            chunks_free,
            extents_max: 1,
            sabotage: Sabotage::None,
        }
    }

    #[test]
    fn names_longer_than_a_chunk_use_adjacent_chunks() {
        let config = config(0);
        let (mut space, mut effects) = (FreeSpace::new(config.capacity), VecDeque::new());
        let mut metadata = Metadata::new(&config);
        let mut take = |metadata: &mut Metadata, len| metadata.take_heap(len, &mut space, &mut effects);
        let short = take(&mut metadata, 10).unwrap();
        let long = take(&mut metadata, 700).unwrap();
        assert_eq!((short.offset, long.offset), (0, 64));
        assert_eq!(take(&mut metadata, 700), None, "the heap has five chunks");
        assert_eq!(take(&mut metadata, 256).unwrap().offset, 768);
        assert_eq!(metadata.charged(), 4 * 256);
        metadata.give_back_heap(short);
        metadata.give_back_heap(long);
        assert_eq!((metadata.charged(), metadata.reclaimable()), (256, 3 * 256));
    }

    #[test]
    fn table_of_slots_is_limited() {
        let config = config(100);
        let (mut space, mut effects) = (FreeSpace::new(config.capacity), VecDeque::new());
        let mut metadata = Metadata::new(&config);
        let slots: Vec<_> =
            std::iter::from_fn(|| metadata.take_slot(&mut space, &mut effects)).map(|it| it.0).collect();
        assert_eq!(slots, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(metadata.name_max(&space), 0);
        metadata.give_back_slot(SlotId(4));
        assert_eq!(metadata.take_slot(&mut space, &mut effects), Some(SlotId(4)));
        assert_eq!((metadata.charged(), space.free()), (0, config.capacity), "all chunks are without charge");
    }

    proptest! {
        /// After any sequence of steps, the withheld bytes are the cost of the tables, and all of them are
        /// returned.
        #[test]
        fn withheld_bytes_are_returned(
            steps in prop::collection::vec((0u8..4, 1u64..600, 0usize..64), 1..200),
            chunks_free in 0u64..4,
        ) {
            let config = config(chunks_free);
            let (mut space, mut effects) = (FreeSpace::new(config.capacity), VecDeque::new());
            let mut metadata = Metadata::new(&config);
            let (mut slots, mut names) = (Vec::new(), Vec::new());
            for (what, len, pick) in steps {
                match what {
                    0 => slots.extend(metadata.take_slot(&mut space, &mut effects)),
                    1 => names.extend(metadata.take_heap(len, &mut space, &mut effects)),
                    2 if !slots.is_empty() => {
                        metadata.give_back_slot(slots.swap_remove(pick % slots.len()));
                    }
                    3 if !names.is_empty() => {
                        metadata.give_back_heap(names.swap_remove(pick % names.len()));
                    }
                    _ => metadata.trim(&mut space),
                }
                metadata.assert_paid();
                let withheld: u64 = metadata.withheld().map(|it| it.len).sum();
                prop_assert_eq!(space.free() + withheld, config.capacity);
                prop_assert_eq!(metadata.charged() + metadata.reclaimable(), withheld);
                let mut sorted = slots.clone();
                sorted.sort_unstable();
                sorted.dedup();
                prop_assert_eq!(sorted.len(), slots.len(), "a slot was handed out twice");
            }
            slots.into_iter().for_each(|it| metadata.give_back_slot(it));
            names.into_iter().for_each(|it| metadata.give_back_heap(it));
            prop_assert_eq!(metadata.charged(), 0);
            metadata.trim(&mut space);
            prop_assert_eq!(space.free(), config.capacity);
        }
    }
}
