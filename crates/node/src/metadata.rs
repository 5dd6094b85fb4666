//! The memory of slot records and of the heap of names, which grows and shrinks with the objects.
//!
//! Both tables have address space for far more than is ever used, and only the chunks in use are backed by
//! memory. A node has a few chunks without charge. It pays for each further one with as many bytes of its
//! data segment, which objects may not use, so that its total memory stays constant. There are two
//! exceptions. The pages of a released chunk stay with the sealed control segment until the node restarts.
//! Withheld ranges shorter than a page stay with the data segment.
//!
//! A chunk without any use is *idle*. It counts as free, and is released when bytes are missing, not
//! before: so records that come and go at the edge of a chunk cost nothing. In a memory pool the bytes of a
//! released chunk must first be allocated again ([`Effect::Restore`]), which other programs can prevent. So
//! there a chunk is released while it is idle, apart from a few, and its bytes count as free once they are
//! allocated.
//!
//! **Invariant:** the withheld bytes are those of the backed chunks beyond the ones without charge, and those
//! that could not be allocated again.

use std::collections::{BTreeSet, VecDeque};

use tiffin_types::{EXTENT_ALIGN, Extent, SlotId, message::AllocateItem, space_for};

use super::{Effect, NodeConfig};
use crate::extent::FreeSpace;

/// Bytes of one slot record.
pub const SLOT_BYTES: u64 = 128;

/// Idle chunks that keep their memory in a pool.
const IDLE_KEPT: usize = 4;

/// A table of the control segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// The slot records.
    Slots,
    /// Names, attributes and long lists of extents.
    Heap,
}

/// A range of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableRange {
    /// Which table.
    pub table: Table,
    /// The range, from the beginning of the table.
    pub bytes: Extent,
}

/// Both tables, and the bytes withheld for them.
#[derive(Debug)]
pub(super) struct Metadata {
    chunk: u64,
    chunks_free: u64,
    slots: SlotTable,
    heap: Heap,
    /// Bytes of the data segment that no object may use. A range that is free here is withheld there.
    withheld: FreeSpace,
    /// See [`NodeConfig::restores`].
    restores: bool,
    /// Bytes that are being allocated again.
    restoring: u64,
    /// Withheld bytes of released chunks, because they could not be allocated again.
    unrestored: u64,
}

impl Metadata {
    pub(super) fn new(config: &NodeConfig) -> Self {
        Self {
            chunk: config.chunk_bytes,
            chunks_free: config.chunks_free,
            slots: SlotTable::new(config.slot_count, config.chunk_bytes),
            heap: Heap::new(config.heap_bytes, config.chunk_bytes),
            withheld: FreeSpace::all_used(config.capacity),
            restores: config.restores,
            restoring: 0,
            unrestored: 0,
        }
    }

    /// Bytes that the tables in use are charged with, without idle chunks.
    pub(super) fn charged(&self) -> u64 {
        self.withheld.free() + self.restoring - self.reclaimable()
    }

    /// Withheld bytes that [`Self::trim`] would return.
    pub(super) fn reclaimable(&self) -> u64 {
        if self.restores {
            return 0;
        }
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
            effects.push_back(Effect::Back(self.slots.range(first)));
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
        effects.push_back(Effect::Back(self.heap.range(first, count)));
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
        while !self.restores && self.withheld.free() > 0 {
            if !(self.heap.release_idle() || self.slots.release_idle()) {
                return;
            }
            self.released().into_iter().for_each(|it| space.give_back(it));
        }
    }

    /// Releases idle chunks that were paid for, apart from a few, and asks for their memory.
    pub(super) fn restore_idle(&mut self, effects: &mut VecDeque<Effect>) {
        while self.restores
            && self.withheld.free() > self.unrestored
            && self.slots.table.idle.len() + self.heap.table.idle.len() > IDLE_KEPT
            && (self.heap.release_idle() || self.slots.release_idle())
        {
            let mut extents = self.released();
            // What could not be allocated before is tried again.
            let again = std::mem::take(&mut self.unrestored);
            extents.extend(self.withheld.take(again, usize::MAX).into_iter().flatten());
            if !extents.is_empty() {
                self.restoring += extents.iter().map(|it| it.len).sum::<u64>();
                effects.push_back(Effect::Restore(extents));
            }
        }
    }

    /// The bytes of [`Self::restore_idle`] are allocated, or could not be.
    pub(super) fn restored(&mut self, extents: Vec<Extent>, is_allocated: bool, space: &mut FreeSpace) {
        for extent in extents {
            self.restoring -= extent.len;
            if is_allocated {
                space.give_back(extent);
            } else {
                self.withheld.give_back(extent);
                self.unrestored += extent.len;
            }
        }
    }

    /// Every range of both tables that is backed by memory.
    pub(super) fn backed_ranges(&self) -> impl Iterator<Item = TableRange> + '_ {
        let slots = self.slots.table.backed_chunks().map(|it| self.slots.range(it));
        slots.chain(self.heap.table.backed_chunks().map(|it| self.heap.range(it, 1)))
    }

    /// The number of bytes of values that must be removed so that a table can grow by `len` bytes.
    pub(super) fn growth_bytes(&self, len: u64) -> u64 {
        len.div_ceil(self.chunk).saturating_mul(self.chunk)
    }

    /// The longest name with which one more small object fits.
    pub(super) fn name_max(&self, space: &FreeSpace) -> u64 {
        let unpaid = self.chunks_free.saturating_sub(self.backed());
        let idle = self.reclaimable() / self.chunk;
        let mut growth = unpaid + idle + (space.free() + self.unrestored) / self.chunk;
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
        assert_eq!(self.withheld.free(), cost + self.unrestored, "{} chunks are backed", self.backed());
    }

    fn backed(&self) -> u64 {
        self.slots.table.backed + self.heap.table.backed
    }

    /// Withholds the bytes of `count` further chunks; nothing if there are not enough.
    fn pay(&mut self, count: u64, space: &mut FreeSpace, effects: &mut VecDeque<Effect>) -> bool {
        let unpaid = self.chunks_free.saturating_sub(self.backed());
        let owed = count.saturating_sub(unpaid);
        // Bytes that are withheld for nothing pay first.
        let paid = owed.min(self.unrestored / self.chunk);
        let is_paid = self.withhold(owed - paid, space, effects);
        self.unrestored -= if is_paid { paid * self.chunk } else { 0 };
        is_paid
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

    /// The bytes that were paid for a chunk which was just released.
    fn released(&mut self) -> Vec<Extent> {
        let is_paid = self.backed() >= self.chunks_free;
        is_paid.then(|| self.withheld.take(self.chunk, usize::MAX)).flatten().unwrap_or_default()
    }
}

/// Which chunks of a table are backed by memory, and which of these are idle.
#[derive(Debug)]
struct Chunks {
    /// Chunks from here on were never backed.
    end: u64,
    /// Chunks before `end` that are not backed.
    holes: BTreeSet<u64>,
    idle: BTreeSet<u64>,
    backed: u64,
    chunks_max: u64,
}

impl Chunks {
    fn new(chunks_max: u64) -> Self {
        Self { end: 0, holes: BTreeSet::new(), idle: BTreeSet::new(), backed: 0, chunks_max }
    }

    fn is_backed(&self, chunk: u64) -> bool {
        chunk < self.end && !self.holes.contains(&chunk)
    }

    fn is_full(&self) -> bool {
        self.backed == self.chunks_max
    }

    fn backed_chunks(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.end).filter(|it| !self.holes.contains(it))
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
    table: Chunks,
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
        let table = Chunks::new(slot_count.div_ceil(per_chunk));
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

    /// The bytes of a chunk.
    fn range(&self, chunk: u64) -> TableRange {
        let (offset, len) = (chunk * self.per_chunk * SLOT_BYTES, self.size(chunk) as u64 * SLOT_BYTES);
        TableRange { table: Table::Slots, bytes: Extent { offset, len } }
    }

    fn size(&self, chunk: u64) -> usize {
        let first = chunk * self.per_chunk;
        (self.slot_count.saturating_sub(first)).min(self.per_chunk) as usize
    }
}

/// The heap; its free runs are in backed chunks only.
#[derive(Debug)]
struct Heap {
    table: Chunks,
    chunk: u64,
    space: FreeSpace,
    /// Bytes in use of each chunk.
    used: Vec<u64>,
}

impl Heap {
    fn new(bytes: u64, chunk: u64) -> Self {
        let space = FreeSpace::all_used(bytes);
        Self { table: Chunks::new(bytes.div_ceil(chunk)), chunk, space, used: Vec::new() }
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

    /// The same, of the table.
    fn range(&self, first: u64, count: u64) -> TableRange {
        TableRange { table: Table::Heap, bytes: self.run(first, count) }
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

    use tiffin_types::{SegmentId, mutant::Mutant};

    use super::*;

    fn config(chunks_free: u64) -> NodeConfig {
        NodeConfig {
            segment: SegmentId(1),
            capacity: 64 * 64,
            slot_count: 9,
            heap_bytes: 20 * 64,
            chunk_bytes: 256,
            chunks_free,
            restores: false,
            extents_max: 1,
            stamp_key: crate::StampKey::from_bytes([0; 16]),
            mutant: Mutant::None,
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

        /// In a memory pool, objects get only bytes that were allocated again, and all others stay withheld.
        #[test]
        fn bytes_that_cannot_be_allocated_stay_withheld(
            steps in prop::collection::vec((0u8..4, 1u64..600, 0usize..64, any::<bool>()), 1..200),
            chunks_free in 0u64..4,
        ) {
            let config = NodeConfig { restores: true, slot_count: 64, ..config(chunks_free) };
            let (mut space, mut effects) = (FreeSpace::new(config.capacity), VecDeque::new());
            let mut metadata = Metadata::new(&config);
            let (mut slots, mut names) = (Vec::new(), Vec::new());
            for (what, len, pick, is_allocated) in steps {
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
                metadata.restore_idle(&mut effects);
                prop_assert_eq!(space.free() + metadata.charged(), config.capacity);
                for effect in std::mem::take(&mut effects) {
                    if let Effect::Restore(extents) = effect {
                        metadata.restored(extents, is_allocated, &mut space);
                    }
                }
                metadata.assert_paid();
                prop_assert_eq!(space.free() + metadata.charged(), config.capacity);
            }
            slots.into_iter().for_each(|it| metadata.give_back_slot(it));
            names.into_iter().for_each(|it| metadata.give_back_heap(it));
            metadata.restore_idle(&mut effects);
            for effect in effects {
                if let Effect::Restore(extents) = effect {
                    metadata.restored(extents, true, &mut space);
                }
            }
            let kept = IDLE_KEPT as u64 * config.chunk_bytes + metadata.unrestored;
            prop_assert!(metadata.charged() <= kept, "{} of {kept}", metadata.charged());
        }
    }
}
