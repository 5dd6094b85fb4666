//! The control segment in use: one writer in the node, any number of readers.
//!
//! **Invariant (retire before reuse):** when a slot's stamp goes away, that is stored sequentially
//! consistently and fenced before anything else happens; when a new stamp comes, every other word of the slot
//! is in place before it. So whoever finds a stamp before and after looking has seen the words and bytes of
//! that use. The module `stamp` has the loads, stores and fences that do it.
//!
//! **Invariant:** while a slot carries a stamp and is committed, its length and extents do not change.
//!
//! **Invariant:** a reader believes nothing it loads until it has been checked against the sizes of the
//! segment: words that race with a new use cannot lead outside the mappings, nor to a large allocation.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::claim;
use crate::layout::{
    self, CLAIM_BYTES, EXTENTS_MAX, Geometry, INLINE_EXTENTS, SPILLED_EXTENT_BYTES, header, slot,
};
use crate::map::Map;
use crate::stamp::{self, Words};
use crate::{Extent, TransferError, copy, cut};

/// What a slot is used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SlotState {
    /// Nothing.
    #[default]
    Free,
    /// A writer may fill it.
    Reserved,
    /// The writer is done; whether it becomes visible is being decided.
    Prepared,
    /// It can be read.
    Committed,
    /// Nobody may fill it any more, and it is about to be free, unless it was published before.
    Ending,
    /// A writer may fill it after it has claimed it; until then the node may recall it.
    Offered,
}

impl SlotState {
    fn from_word(word: u64) -> Option<Self> {
        match word & 0xff {
            layout::STATE_FREE => Some(Self::Free),
            1 => Some(Self::Reserved),
            2 => Some(Self::Prepared),
            3 => Some(Self::Committed),
            4 => Some(Self::Ending),
            5 => Some(Self::Offered),
            _ => None,
        }
    }

    fn to_word(self) -> u64 {
        match self {
            Self::Free => layout::STATE_FREE,
            Self::Reserved => 1,
            Self::Prepared => 2,
            Self::Committed => 3,
            Self::Ending => 4,
            Self::Offered => 5,
        }
    }
}

/// Everything a slot says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotRecord {
    /// The present use; zero is nobody's.
    pub stamp: u64,
    /// What the slot is used for.
    pub state: SlotState,
    /// Never evicted.
    pub hard_pin: bool,
    /// Evicted last.
    pub soft_pin: bool,
    /// The namespace's name, in the heap.
    pub namespace: Extent,
    /// Which life of the master minted the generation.
    pub generation_epoch: u64,
    /// Which one in that life.
    pub generation_counter: u64,
    /// How many bytes the extents hold together.
    pub len: u64,
    /// Where the bytes lie in the data segment, in order.
    pub extents: Vec<Extent>,
    /// Where in the heap the list of extents goes, if there are more than [`INLINE_EXTENTS`]:
    /// [`SPILLED_EXTENT_BYTES`] for each.
    pub spill_offset: u64,
    /// The key, in the heap.
    pub key: Extent,
    /// The marks, in the heap: who pins the object, and how it is consumed. They may change while it lives.
    pub marks: Extent,
}

/// The node's hand on its control segment. There is one per segment: the type is neither `Clone` nor made
/// again.
#[derive(Debug)]
pub struct ControlWriter {
    map: Arc<Map>,
    claims: Arc<Map>,
    geometry: Geometry,
    /// See [`header::SLOT_HIGH_WATER`].
    slots_used: u64,
}

impl ControlWriter {
    /// Writes the header of a new segment.
    pub(crate) fn initialise(map: Arc<Map>, claims: Arc<Map>, geometry: Geometry) -> Self {
        for (at, value) in [
            (header::FORMAT_VERSION, layout::FORMAT_VERSION),
            (header::SEGMENT_ID, geometry.segment),
            (header::SLOT_COUNT, u64::from(geometry.slot_count)),
            (header::SLOT_OFFSET, layout::HEADER_BYTES),
            (header::HEAP_OFFSET, geometry.heap_at()),
            (header::HEAP_BYTES, geometry.heap_bytes),
            (header::DATA_BYTES, geometry.data_bytes),
            (header::STAMP_HIGH_WATER, 1),
        ] {
            map.store(at, value, Ordering::Relaxed);
        }
        // A header without its magic is not a segment yet.
        map.store(header::MAGIC, layout::MAGIC, Ordering::SeqCst);
        Self { map, claims, geometry, slots_used: 0 }
    }

    /// The sizes of the segment.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Makes the slot say what the record says.
    ///
    /// A different stamp than before is a new use: the old one is retired first and the new one appears last.
    /// The same stamp is a step in the life of the same use: the state appears last.
    ///
    /// # Panics If the record does not fit the segment, or moves the bytes of a committed use: a broken
    /// invariant of the node, which would otherwise become wrong bytes.
    pub fn write_slot(&mut self, index: u32, record: &SlotRecord) {
        let at = self.slot_at(index);
        self.assert_fits(index, record);
        if record.stamp == 0 {
            return self.retire(index);
        }
        if self.map.load(at + slot::STAMP) == record.stamp {
            self.assert_unmoved(index, record);
        } else if record.state == SlotState::Offered {
            claim::offer(&*self.claims, u64::from(index) * CLAIM_BYTES, record.stamp);
        }
        if u64::from(index) >= self.slots_used {
            self.slots_used = u64::from(index) + 1;
            self.map.store(header::SLOT_HIGH_WATER, self.slots_used, Ordering::SeqCst);
        }
        stamp::enter(&*self.map, at, record.stamp, state_word(record), || self.write_words(at, record));
    }

    /// Takes the stamp away. When this returns, no copy that ends later validates, so the bytes may be
    /// reused.
    pub fn retire(&mut self, index: u32) {
        let at = self.slot_at(index);
        stamp::retire(&*self.map, at);
    }

    /// Takes an offered use back. False if its writer has claimed it, and may write at any time. If it was
    /// taken back nobody can have written it, nor will.
    pub fn recall(&mut self, index: u32, stamp: u64) -> bool {
        index < self.geometry.slot_count
            && claim::recall(&*self.claims, u64::from(index) * CLAIM_BYTES, stamp)
    }

    /// Puts bytes into the heap, where the node has found room for them.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write_heap(&mut self, offset: u64, bytes: &[u8]) {
        self.fill_heap(offset, bytes);
    }

    /// Records that no stamp at or above this one has ever been used.
    ///
    /// # Panics
    /// If the mark would sink: stamps would be used twice.
    pub fn set_stamp_high_water(&mut self, mark: u64) {
        let old = self.map.load(header::STAMP_HIGH_WATER);
        assert!(mark >= old, "the stamp high-water mark would sink from {old} to {mark}");
        self.map.store(header::STAMP_HIGH_WATER, mark, Ordering::SeqCst);
    }

    /// Records the life of the master that the node belongs to.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.map.store(header::MASTER_EPOCH, epoch, Ordering::SeqCst);
    }

    /// Says whether the node is a member of its cluster. When this returns, no read that ends later counts
    /// as one of a member's memory, or does.
    pub fn set_member(&mut self, is_member: bool) {
        stamp::set_member(&*self.map, is_member);
    }

    fn slot_at(&self, index: u32) -> u64 {
        let at = self.geometry.slot_at(index);
        at.unwrap_or_else(|| panic!("slot {index} of {}", self.geometry.slot_count))
    }

    fn fill_heap(&self, offset: u64, bytes: &[u8]) {
        let run = Extent { offset, len: bytes.len() as u64 };
        let target = self.geometry.in_heap(run).and_then(|run| self.map.target(run));
        let Some(target) = target else {
            panic!("{run:?} is outside the heap of {} bytes", self.geometry.heap_bytes);
        };
        copy::copy_in(bytes, target);
    }

    fn write_words(&self, at: u64, record: &SlotRecord) {
        if record.extents.len() > INLINE_EXTENTS {
            let words = record.extents.iter().flat_map(|extent| [extent.offset, extent.len]);
            let list: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            self.fill_heap(record.spill_offset, &list);
        }
        let words = [
            (slot::NAMESPACE_OFFSET, record.namespace.offset),
            (slot::NAMESPACE_LEN, record.namespace.len),
            (slot::GENERATION_EPOCH, record.generation_epoch),
            (slot::GENERATION_COUNTER, record.generation_counter),
            (slot::LEN, record.len),
            (slot::EXTENT_COUNT, record.extents.len() as u64),
            (slot::KEY_OFFSET, record.key.offset),
            (slot::KEY_LEN, record.key.len),
            (slot::MARKS, marks_word(record.marks)),
        ];
        for (word, value) in words {
            self.map.store(at + word, value, Ordering::Relaxed);
        }
        for (word, value) in (0..).zip(extent_words(record)) {
            self.map.store(at + slot::EXTENTS + word * 8, value, Ordering::Relaxed);
        }
    }

    fn assert_fits(&self, index: u32, record: &SlotRecord) {
        let count = record.extents.len() as u64;
        assert!(count <= EXTENTS_MAX, "slot {index}: {count} extents");
        let total = total_inside(&record.extents, self.geometry.data_bytes);
        assert_eq!(total, Some(record.len), "slot {index}: the extents do not hold the length");
        assert!(record.marks.len <= layout::MARKS_BYTES_MAX, "slot {index}: the marks are too long");
    }

    fn assert_unmoved(&self, index: u32, record: &SlotRecord) {
        let at = self.slot_at(index);
        if SlotState::from_word(self.map.load(at + slot::STATE)) != Some(SlotState::Committed) {
            return;
        }
        let old_words = (0..4).map(|word| self.map.load(at + slot::EXTENTS + word * 8));
        let is_same = self.map.load(at + slot::LEN) == record.len
            && self.map.load(at + slot::EXTENT_COUNT) == record.extents.len() as u64
            && old_words.eq(extent_words(record));
        assert!(is_same, "slot {index}: a committed use was moved");
    }
}

/// Where the bytes of one use of a slot lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// What the slot was used for when it was looked at.
    pub state: SlotState,
    /// How many bytes there are.
    pub len: u64,
    /// Where, in order; all inside the data segment.
    pub extents: Vec<Extent>,
}

impl Placement {
    /// A range of the bytes.
    pub fn range(&self, offset: u64, len: u64) -> Result<Vec<Extent>, TransferError> {
        cut(&self.extents, offset, len).ok_or(TransferError::OutOfRange)
    }
}

/// A use of a slot as it was found by [`ControlReader::scan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// Which slot.
    pub slot: u32,
    /// What it says.
    pub record: SlotRecord,
    /// The bytes of the namespace's name.
    pub namespace: Vec<u8>,
    /// The bytes of the key.
    pub key: Vec<u8>,
    /// The bytes of the marks.
    pub marks: Vec<u8>,
}

/// A hand on a control segment that can only look.
#[derive(Clone, Debug)]
pub struct ControlReader {
    map: Arc<Map>,
    geometry: Geometry,
}

impl ControlReader {
    pub(crate) fn new(map: Arc<Map>, geometry: Geometry) -> Self {
        Self { map, geometry }
    }

    /// Reads the header of a mapped control segment; `None` if it is not one, or not all there.
    pub(crate) fn open(map: Arc<Map>) -> Option<Self> {
        if map.len() < layout::HEADER_BYTES
            || map.load(header::MAGIC) != layout::MAGIC
            || map.load(header::FORMAT_VERSION) != layout::FORMAT_VERSION
        {
            return None;
        }
        let geometry = Geometry {
            segment: map.load(header::SEGMENT_ID),
            data_bytes: map.load(header::DATA_BYTES),
            slot_count: u32::try_from(map.load(header::SLOT_COUNT)).ok()?,
            heap_bytes: map.load(header::HEAP_BYTES),
        };
        let is_whole = geometry.is_sane()
            && map.load(header::SLOT_OFFSET) == layout::HEADER_BYTES
            && map.load(header::HEAP_OFFSET) == geometry.heap_at()
            && map.len() >= geometry.control_bytes();
        is_whole.then_some(Self { map, geometry })
    }

    /// The sizes of the segment.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// No stamp at or above this one has ever been used.
    #[must_use]
    pub fn stamp_high_water(&self) -> u64 {
        self.map.load(header::STAMP_HIGH_WATER)
    }

    /// The life of the master that the node last belonged to.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.map.load(header::MASTER_EPOCH)
    }

    /// Whether the node is a member of its cluster now, after everything that was copied before. While it
    /// is, it hears of every delete before the delete is answered.
    #[must_use]
    pub fn is_member(&self) -> bool {
        self.map.is_here() && stamp::is_member(&*self.map)
    }

    /// Whether the slot holds a committed use of that stamp now.
    #[must_use]
    pub fn is_committed(&self, index: u32, stamp: u64) -> bool {
        self.state_of(index, stamp) == Some(SlotState::Committed)
    }

    /// Whether the slot holds that use now, committed or still reserved. Who was told of the use by the
    /// master need not know whether its node has heard of it, too: until then it is reserved or offered.
    #[must_use]
    pub fn is_held(&self, index: u32, stamp: u64) -> bool {
        use SlotState::{Committed, Offered, Reserved};
        matches!(self.state_of(index, stamp), Some(Committed | Reserved | Offered))
    }

    /// How far the use of that stamp has come, if the slot holds it now.
    fn state_of(&self, index: u32, stamp: u64) -> Option<SlotState> {
        let at = self.geometry.slot_at(index).filter(|_| self.map.is_here())?;
        let state = stamp::look(&*self.map, at, stamp, || self.map.load(at + slot::STATE));
        state.and_then(SlotState::from_word)
    }

    /// Where the bytes of a use lie.
    pub fn load(&self, index: u32, stamp: u64) -> Result<Placement, TransferError> {
        if !self.map.is_here() {
            return Err(TransferError::Forked);
        }
        let at = self.geometry.slot_at(index).ok_or(TransferError::Stale)?;
        // What was loaded belongs to this use only if the use is still there; else it is nobody's fault.
        let placement = stamp::look(&*self.map, at, stamp, || self.placement(at));
        placement.ok_or(TransferError::Stale)?.ok_or(TransferError::Corrupt)
    }

    /// Whether the slot carries the stamp now, after everything that was copied before.
    #[must_use]
    pub fn still(&self, index: u32, stamp: u64) -> bool {
        self.geometry.slot_at(index).is_some_and(|at| stamp::still(&*self.map, at, stamp))
    }

    /// Comes between [`Self::load`] and the first byte that a writer stores under the stamp it found.
    pub(crate) fn before_bytes(&self) {
        stamp::before_bytes(&*self.map);
    }

    /// Reads back every use of every slot. Meant for when nobody writes. Slots that were never used are not
    /// looked at: that would give them memory.
    ///
    /// A record that makes no sense is an error with the slot's number: the segment is damaged.
    pub fn scan(&self) -> Result<Vec<Scanned>, u32> {
        let mut found = Vec::new();
        let used = self.map.load(header::SLOT_HIGH_WATER).min(u64::from(self.geometry.slot_count));
        for index in 0..used as u32 {
            let at = self.geometry.slot_at(index).ok_or(index)?;
            if self.map.load(at + slot::STAMP) != 0 {
                found.push(self.scan_slot(index, at).ok_or(index)?);
            }
        }
        Ok(found)
    }

    fn scan_slot(&self, index: u32, at: u64) -> Option<Scanned> {
        let word = |offset: u64| self.map.load(at + offset);
        let state = word(slot::STATE);
        let placement = self.placement(at)?;
        let is_spilled = placement.extents.len() > INLINE_EXTENTS;
        let record = SlotRecord {
            stamp: word(slot::STAMP),
            state: placement.state,
            hard_pin: state & layout::FLAG_HARD_PIN != 0,
            soft_pin: state & layout::FLAG_SOFT_PIN != 0,
            namespace: Extent { offset: word(slot::NAMESPACE_OFFSET), len: word(slot::NAMESPACE_LEN) },
            generation_epoch: word(slot::GENERATION_EPOCH),
            generation_counter: word(slot::GENERATION_COUNTER),
            len: placement.len,
            extents: placement.extents,
            spill_offset: if is_spilled { word(slot::EXTENTS) } else { 0 },
            key: Extent { offset: word(slot::KEY_OFFSET), len: word(slot::KEY_LEN) },
            marks: marks_extent(word(slot::MARKS)),
        };
        let namespace = self.heap_bytes(record.namespace, layout::NAME_BYTES_MAX)?;
        let key = self.heap_bytes(record.key, layout::NAME_BYTES_MAX)?;
        let marks = self.heap_bytes(record.marks, layout::MARKS_BYTES_MAX)?;
        Some(Scanned { slot: index, record, namespace, key, marks })
    }

    /// The words of a slot that lead to its bytes; `None` if they lead nowhere.
    fn placement(&self, at: u64) -> Option<Placement> {
        let state = SlotState::from_word(self.map.load(at + slot::STATE))?;
        let len = self.map.load(at + slot::LEN);
        let count = self.map.load(at + slot::EXTENT_COUNT);
        let words: Vec<u64> = if count <= INLINE_EXTENTS as u64 {
            (0..count * 2).map(|word| self.map.load(at + slot::EXTENTS + word * 8)).collect()
        } else {
            let list = Extent {
                offset: self.map.load(at + slot::EXTENTS),
                len: count.checked_mul(SPILLED_EXTENT_BYTES)?,
            };
            let bytes = self.heap_bytes(list, EXTENTS_MAX * SPILLED_EXTENT_BYTES)?;
            let (words, _) = bytes.as_chunks::<8>();
            words.iter().map(|word| u64::from_le_bytes(*word)).collect()
        };
        let (pairs, _) = words.as_chunks::<2>();
        let extents: Vec<Extent> = pairs.iter().map(|&[offset, len]| Extent { offset, len }).collect();
        let is_inside = total_inside(&extents, self.geometry.data_bytes) == Some(len);
        is_inside.then_some(Placement { state, len, extents })
    }

    fn heap_bytes(&self, run: Extent, most: u64) -> Option<Vec<u8>> {
        if run.len > most {
            return None;
        }
        let source = self.map.source(self.geometry.in_heap(run)?)?;
        let mut bytes = vec![0; source.len()];
        copy::copy_out(source, &mut bytes);
        Some(bytes)
    }
}

fn marks_word(marks: Extent) -> u64 {
    marks.len << layout::MARKS_OFFSET_BITS | marks.offset
}

fn marks_extent(word: u64) -> Extent {
    let offset = word & ((1 << layout::MARKS_OFFSET_BITS) - 1);
    Extent { offset, len: word >> layout::MARKS_OFFSET_BITS }
}

fn state_word(record: &SlotRecord) -> u64 {
    let hard = if record.hard_pin { layout::FLAG_HARD_PIN } else { 0 };
    let soft = if record.soft_pin { layout::FLAG_SOFT_PIN } else { 0 };
    record.state.to_word() | hard | soft
}

/// The four words of a slot that hold its extents, or the place of their list.
fn extent_words(record: &SlotRecord) -> [u64; 4] {
    match *record.extents.as_slice() {
        [] => [0; 4],
        [one] => [one.offset, one.len, 0, 0],
        [one, two] => [one.offset, one.len, two.offset, two.len],
        _ => [record.spill_offset, 0, 0, 0],
    }
}

/// How many bytes the extents hold together; `None` if one of them is not inside the data segment.
fn total_inside(extents: &[Extent], data_bytes: u64) -> Option<u64> {
    extents.iter().try_fold(0_u64, |total, extent| {
        let is_inside = extent.end()? <= data_bytes;
        if is_inside { total.checked_add(extent.len) } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Dice;
    use crate::segment::NodeMemory;

    const GEOMETRY: Geometry =
        Geometry { segment: 0xfeed, data_bytes: 1 << 20, slot_count: 16, heap_bytes: 64 << 10 };

    fn extents(list: &[(u64, u64)]) -> Vec<Extent> {
        list.iter().map(|&(offset, len)| Extent { offset, len }).collect()
    }

    fn record(stamp: u64, state: SlotState, list: &[(u64, u64)]) -> SlotRecord {
        let extents = extents(list);
        let len = extents.iter().map(|extent| extent.len).sum();
        SlotRecord { stamp, state, len, extents, ..SlotRecord::default() }
    }

    #[test]
    fn a_segment_tells_everything_about_itself() {
        let (memory, mut writer) = NodeMemory::create(GEOMETRY).unwrap();
        writer.write_heap(0, b"default");
        let mut expected = Vec::new();
        let cuts: [&[(u64, u64)]; 5] =
            [&[], &[(64, 100)], &[(64, 1), (0, 2)], &[(9, 9), (99, 99), (999, 999)], &[(5, 0); 1000]];
        for (index, list) in (0_u32..).zip(cuts) {
            let at = 1000 + u64::from(index) * 200;
            let key = format!("key {index}").into_bytes();
            writer.write_heap(at, &key);
            let marks = vec![0xa0 + index as u8; index as usize];
            writer.write_heap(at + 50, &marks);
            let mut record = record(77 + u64::from(index), SlotState::Committed, list);
            record.hard_pin = index % 2 == 0;
            record.soft_pin = index % 3 == 0;
            record.namespace = Extent { offset: 0, len: 7 };
            record.key = Extent { offset: at, len: key.len() as u64 };
            record.marks = Extent { offset: at + 50, len: marks.len() as u64 };
            (record.generation_epoch, record.generation_counter) = (3, u64::from(index));
            record.spill_offset = if list.len() > 2 { at + 100 * u64::from(index) } else { 0 };
            let slot = index * 3;
            writer.write_slot(slot, &record);
            expected.push(Scanned { slot, record, namespace: b"default".to_vec(), key, marks });
        }
        writer.set_stamp_high_water(4096);
        writer.set_epoch(3);

        // Read as whoever has only the descriptor would.
        let map = Map::new(
            std::os::fd::AsFd::as_fd(&memory.control_file),
            GEOMETRY.control_bytes(),
            crate::map::Access::ReadOnly,
        );
        let reader = ControlReader::open(Arc::new(map.unwrap())).unwrap();
        assert_eq!(reader.geometry(), GEOMETRY);
        assert_eq!((reader.stamp_high_water(), reader.epoch()), (4096, 3));
        for is_member in [false, true, false] {
            writer.set_member(is_member);
            assert_eq!(reader.is_member(), is_member);
        }
        assert_eq!(reader.scan(), Ok(expected.clone()));
        for Scanned { slot, record, .. } in expected {
            let placement = reader.load(slot, record.stamp).unwrap();
            assert_eq!((placement.len, placement.extents), (record.len, record.extents));
            writer.retire(slot);
            assert_eq!(reader.load(slot, record.stamp), Err(TransferError::Stale));
        }
        assert_eq!(reader.scan(), Ok(vec![]));
    }

    #[test]
    fn a_use_is_found_only_under_its_own_stamp() {
        let (memory, mut writer) = NodeMemory::create(GEOMETRY).unwrap();
        let reader = memory.reader();
        writer.write_slot(1, &record(5, SlotState::Reserved, &[(0, 10)]));
        assert_eq!(reader.load(1, 5).unwrap().state, SlotState::Reserved);
        assert!(!reader.is_committed(1, 5));
        writer.write_slot(1, &record(5, SlotState::Committed, &[(0, 10)]));
        assert_eq!(reader.load(1, 5).unwrap().state, SlotState::Committed);
        assert!(reader.is_committed(1, 5));
        writer.write_slot(1, &record(6, SlotState::Reserved, &[(20, 30)]));
        assert_eq!(reader.load(1, 6).unwrap().extents, extents(&[(20, 30)]));
        for (slot, stamp) in [(1, 5), (1, 0), (2, 5), (2, 0), (15, 6), (16, 6), (u32::MAX, 6)] {
            assert_eq!(reader.load(slot, stamp), Err(TransferError::Stale), "{slot} {stamp}");
            assert!(!reader.still(slot, stamp) && !reader.is_committed(slot, stamp));
        }
        writer.write_slot(1, &SlotRecord::default());
        assert!(!reader.still(1, 6), "a record without a stamp retires");
    }

    #[test]
    fn words_that_make_no_sense_lead_nowhere() {
        let (memory, mut writer) = NodeMemory::create(GEOMETRY).unwrap();
        let reader = memory.reader();
        let mut dice = Dice::new(3);
        let mut found = 0;
        for _ in 0..20_000 {
            writer.write_slot(0, &record(9, SlotState::Committed, &[(1, 10), (50, 10), (90, 10)]));
            let bent = 1 + dice.below(3);
            for _ in 0..bent {
                let word = 8 + dice.below(15) * 8;
                let value = match dice.below(4) {
                    0 => dice.below(u64::MAX),
                    1 => u64::MAX - dice.below(100),
                    2 => dice.below(5000),
                    _ => 1 << dice.below(64),
                };
                writer.map.store(GEOMETRY.slot_at(0).unwrap() + word, value, Ordering::SeqCst);
            }
            match reader.load(0, 9) {
                Ok(placement) => {
                    let total = total_inside(&placement.extents, GEOMETRY.data_bytes);
                    assert_eq!(total, Some(placement.len), "what is believed lies inside");
                    found += 1;
                }
                Err(error) => assert_eq!(error, TransferError::Corrupt),
            }
            if let Ok(scanned) = reader.scan() {
                assert_eq!(scanned.len(), 1);
            }
            writer.retire(0);
        }
        assert!(found > 0, "some words do not matter");
    }

    #[test]
    fn a_header_that_makes_no_sense_is_no_segment() {
        for (at, value) in [
            (header::MAGIC, 1),
            (header::FORMAT_VERSION, 2),
            (header::SLOT_COUNT, 0),
            (header::SLOT_COUNT, 17),
            (header::SLOT_COUNT, u64::MAX),
            (header::SLOT_OFFSET, 0),
            (header::HEAP_OFFSET, 1 << 50),
            (header::HEAP_BYTES, 1 << 30),
            (header::HEAP_BYTES, u64::MAX),
            (header::DATA_BYTES, 0),
            (header::DATA_BYTES, u64::MAX),
        ] {
            let (_memory, writer) = NodeMemory::create(GEOMETRY).unwrap();
            assert!(ControlReader::open(Arc::clone(&writer.map)).is_some());
            writer.map.store(at, value, Ordering::SeqCst);
            // One slot more or less may leave the heap where it was.
            let is_shifted =
                value == 17 && GEOMETRY.heap_at() == Geometry { slot_count: 17, ..GEOMETRY }.heap_at();
            let opened = ControlReader::open(Arc::clone(&writer.map));
            assert_eq!(opened.is_some(), is_shifted, "word {at} = {value}");
        }
    }

    /// Whether the node's bug is caught rather than made into wrong bytes.
    fn panics(bug: impl FnOnce(&mut ControlWriter) + std::panic::UnwindSafe) -> bool {
        std::panic::catch_unwind(|| {
            let (_memory, mut writer) = NodeMemory::create(GEOMETRY).unwrap();
            writer.set_stamp_high_water(100);
            writer.write_slot(0, &record(9, SlotState::Committed, &[(0, 10)]));
            bug(&mut writer);
        })
        .is_err()
    }

    #[test]
    fn a_node_that_breaks_an_invariant_stops() {
        assert!(!panics(|_| {}));
        assert!(panics(|writer| writer.write_slot(16, &record(1, SlotState::Reserved, &[]))));
        assert!(panics(|writer| writer.write_slot(1, &record(1, SlotState::Reserved, &[(1 << 20, 1)]))));
        assert!(panics(|writer| {
            writer.write_slot(1, &SlotRecord { len: 11, ..record(1, SlotState::Reserved, &[(0, 10)]) });
        }));
        assert!(panics(|writer| writer.write_slot(0, &record(9, SlotState::Committed, &[(10, 10)]))));
        assert!(panics(|writer| writer.write_slot(0, &record(9, SlotState::Committed, &[(0, 9)]))));
        assert!(panics(|writer| writer.write_heap((64 << 10) - 1, b"xx")));
        assert!(panics(|writer| writer.set_stamp_high_water(99)));
    }
}
