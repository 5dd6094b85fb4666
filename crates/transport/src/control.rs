//! Access to the control segment: one writer in the node, any number of readers.
//!
//! **Invariant (retire before reuse):** withdrawing a stamp is a sequentially consistent store with a fence
//! before anything else happens; a new stamp is stored after every other word of the slot. So a reader that
//! finds a stamp before and after its loads has read the words and bytes of that use. The module `stamp` has
//! the loads, stores and fences.
//!
//! **Invariant:** while a slot carries a stamp and is committed, its length and extents do not change.
//!
//! **Invariant:** a reader checks everything it loads against the sizes of the segment: words that race with
//! a new use cannot lead outside the mappings, nor to a large allocation.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::claim::{self, Claims};
use crate::layout::{
    self, CLAIM_BYTES, EXTENTS_MAX, Geometry, INLINE_EXTENTS, SPILLED_EXTENT_BYTES, header, slot,
};
use crate::map::Map;
use crate::stamp::{self, Words};
use crate::{Extent, TransferError, copy, cut};

/// State of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SlotState {
    /// Not in use.
    #[default]
    Free,
    /// A writer may write its bytes.
    Reserved,
    /// The writer is done; the master decides whether it is committed.
    Prepared,
    /// Readable.
    Committed,
    /// No longer writable, and about to be freed, unless it was published before.
    Ending,
    /// Writable after a claim; until then the node may recall it.
    Offered,
    /// Retired, while its memory is still viewed or copied.
    Retired,
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
            6 => Some(Self::Retired),
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
            Self::Retired => 6,
        }
    }
}

/// The content of a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotRecord {
    /// The current use; zero if the slot is free.
    pub stamp: u64,
    /// State of the slot.
    pub state: SlotState,
    /// Never evicted.
    pub hard_pin: bool,
    /// Evicted last.
    pub soft_pin: bool,
    /// The namespace's name, in the heap.
    pub namespace: Extent,
    /// The epoch of the master that minted the generation.
    pub generation_epoch: u64,
    /// The counter of the generation within the epoch.
    pub generation_counter: u64,
    /// Total length of the extents.
    pub len: u64,
    /// Location of the bytes in the data segment, in order.
    pub extents: Vec<Extent>,
    /// Offset in the heap of the list of extents, if there are more than [`INLINE_EXTENTS`]:
    /// [`SPILLED_EXTENT_BYTES`] for each.
    pub spill_offset: u64,
    /// The key, in the heap.
    pub key: Extent,
    /// Bytes of the heap that are allocated for namespace and key.
    pub name_bytes: u64,
    /// The client that may be writing it; zero if there is none.
    pub writer: u64,
    /// The attributes (pins, consumption state), in the heap. They may change while the object exists.
    pub attributes: Extent,
}

/// The only writer of a control segment. It is not `Clone` and is created once per segment.
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
        // The magic is stored last: without it the header is not valid.
        map.store(header::MAGIC, layout::MAGIC, Ordering::SeqCst);
        Self { map, claims, geometry, slots_used: 0 }
    }

    /// The sizes of the segment.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The only writer of a segment that an earlier process has written. The caller holds its lock.
    pub(crate) fn resume(map: Arc<Map>, claims: Arc<Map>, geometry: Geometry) -> Self {
        let slots_used = map.load(header::SLOT_HIGH_WATER);
        Self { map, claims, geometry, slots_used }
    }

    /// Writes a record into a slot.
    ///
    /// A different stamp than before is a new use: the old one is retired first and the new one appears last.
    /// The same stamp is the next state of the same use: the state appears last.
    ///
    /// # Panics
    /// If the record does not fit the segment, or moves the bytes of a committed use: a broken invariant of
    /// the node, which would otherwise give readers wrong bytes.
    pub fn write_slot(&mut self, index: u32, record: &SlotRecord) {
        let at = self.slot_at(index);
        self.assert_fits(index, record);
        if record.stamp == 0 {
            return self.retire(index);
        }
        if self.map.load(at + slot::STAMP) == record.stamp {
            self.assert_unmoved(index, record);
        } else {
            let is_offered = record.state == SlotState::Offered;
            claim::begin(&*self.claims, u64::from(index) * CLAIM_BYTES, record.stamp, is_offered);
        }
        if u64::from(index) >= self.slots_used {
            self.slots_used = u64::from(index) + 1;
            self.map.store(header::SLOT_HIGH_WATER, self.slots_used, Ordering::SeqCst);
        }
        stamp::publish_use(&*self.map, at, record.stamp, state_word(record), || self.write_words(at, record));
    }

    /// Withdraws the stamp. After this returns, no copy that ends later validates, so the bytes may be
    /// reused.
    pub fn retire(&mut self, index: u32) {
        let at = self.slot_at(index);
        stamp::retire(&*self.map, at);
    }

    /// Withdraws the stamp, as [`Self::retire`], and records that the memory is still in use. A slot without
    /// a stamp stays as it is.
    pub fn park(&mut self, index: u32) {
        let at = self.slot_at(index);
        stamp::park(&*self.map, at, SlotState::Retired.to_word());
    }

    /// Records that the memory of a parked slot is not in use any more.
    pub fn reclaim(&mut self, index: u32) {
        let at = self.slot_at(index);
        self.map.store(at + slot::STATE, layout::STATE_FREE, Ordering::SeqCst);
    }

    /// Recalls an offered use. False if its writer has claimed it, and may write at any time. After a
    /// successful recall no byte of it was or will be written.
    pub fn recall(&mut self, index: u32, stamp: u64) -> bool {
        index < self.geometry.slot_count
            && claim::recall(&*self.claims, u64::from(index) * CLAIM_BYTES, stamp)
    }

    /// Writes bytes into the heap, at an offset that the node has allocated.
    ///
    /// # Panics
    /// If they are outside the heap.
    pub fn write_heap(&mut self, offset: u64, bytes: &[u8]) {
        self.fill_heap(offset, bytes);
    }

    /// Records that no stamp at or above this one has ever been used.
    ///
    /// # Panics
    /// If it would decrease: stamps would be used twice.
    pub fn set_stamp_high_water(&mut self, mark: u64) {
        let old = self.map.load(header::STAMP_HIGH_WATER);
        assert!(mark >= old, "the stamp high-water mark would decrease from {old} to {mark}");
        self.map.store(header::STAMP_HIGH_WATER, mark, Ordering::SeqCst);
    }

    /// Records the master that the node belongs to, by its epoch and its random number, and the cluster.
    pub fn set_epoch(&mut self, epoch: u64, instance: u64, cluster: u64) {
        self.map.store(header::CLUSTER, cluster, Ordering::SeqCst);
        self.map.store(header::MASTER_INSTANCE, instance, Ordering::SeqCst);
        self.map.store(header::MASTER_EPOCH, epoch, Ordering::SeqCst);
    }

    /// Records whether the node is a member of its cluster. Reads that end after this returns see the new
    /// value.
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
            (slot::NAMESPACE_LEN, record.name_bytes << layout::NAMESPACE_LEN_BITS | record.namespace.len),
            (slot::GENERATION_EPOCH, record.generation_epoch),
            (slot::GENERATION_COUNTER, record.generation_counter),
            (slot::LEN, record.len),
            (slot::EXTENT_COUNT, record.extents.len() as u64),
            (slot::KEY_OFFSET, record.key.offset),
            (slot::KEY_LEN, record.key.len),
            (slot::WRITER, record.writer),
            (slot::ATTRIBUTES, attributes_word(record.attributes)),
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
        assert!(record.name_bytes >> layout::NAMESPACE_LEN_BITS == 0, "slot {index}: the name is too long");
        assert!(
            record.attributes.len <= layout::ATTRIBUTES_BYTES_MAX,
            "slot {index}: the attributes are too long"
        );
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

/// Location of the bytes of one use of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// State of the slot when it was read.
    pub state: SlotState,
    /// Number of bytes.
    pub len: u64,
    /// Their extents, in order; all inside the data segment.
    pub extents: Vec<Extent>,
}

impl Placement {
    /// The extents of a range of the bytes.
    pub fn range(&self, offset: u64, len: u64) -> Result<Vec<Extent>, TransferError> {
        cut(&self.extents, offset, len).ok_or(TransferError::OutOfRange)
    }
}

/// A use of a slot that [`ControlReader::scan`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// The slot.
    pub slot: u32,
    /// The record in the slot. A retired use has the stamp that it had.
    pub record: SlotRecord,
    /// The bytes of the namespace's name.
    pub namespace: Vec<u8>,
    /// The bytes of the key.
    pub key: Vec<u8>,
    /// The bytes of the attributes.
    pub attributes: Vec<u8>,
}

/// Read access to a control segment and its claim words.
#[derive(Clone, Debug)]
pub struct ControlReader {
    map: Arc<Map>,
    /// Without them nothing counts as withdrawn.
    claims: Option<Claims>,
    geometry: Geometry,
}

impl ControlReader {
    pub(crate) fn new(map: Arc<Map>, geometry: Geometry) -> Self {
        Self { map, claims: None, geometry }
    }

    /// With the claim words, which say what the master has withdrawn.
    pub(crate) fn with_claims(self, claims: Claims) -> Self {
        Self { claims: Some(claims), ..self }
    }

    /// Reads the header of a mapped control segment; `None` if it is invalid or incomplete.
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
        is_whole.then_some(Self { map, claims: None, geometry })
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

    /// The epoch of the master that the node last belonged to.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.map.load(header::MASTER_EPOCH)
    }

    /// The random number of that master.
    #[must_use]
    pub fn instance(&self) -> u64 {
        self.map.load(header::MASTER_INSTANCE)
    }

    /// The id of the cluster that the node belongs to; zero if it is not known.
    #[must_use]
    pub fn cluster(&self) -> u64 {
        self.map.load(header::CLUSTER)
    }

    /// Whether the node is a member of its cluster now, ordered after all earlier copies. A member receives
    /// every retire before the delete is answered.
    #[must_use]
    pub fn is_member(&self) -> bool {
        self.map.is_here() && stamp::is_member(&*self.map)
    }

    /// The state of the use with that stamp, if the slot holds it now.
    #[must_use]
    pub fn state_of(&self, index: u32, stamp: u64) -> Option<SlotState> {
        let at = self.geometry.slot_at(index).filter(|_| self.map.is_here())?;
        if self.is_withdrawn(index, stamp) {
            return None;
        }
        let state = stamp::read_checked(&*self.map, at, stamp, || self.map.load(at + slot::STATE));
        state.and_then(SlotState::from_word)
    }

    /// The location of the bytes of a use.
    pub fn load(&self, index: u32, stamp: u64) -> Result<Placement, TransferError> {
        if !self.map.is_here() {
            return Err(TransferError::Forked);
        }
        let at = self.geometry.slot_at(index).ok_or(TransferError::Stale)?;
        if self.is_withdrawn(index, stamp) {
            return Err(TransferError::Stale);
        }
        // The loaded words count only if the use still exists; otherwise the use is stale, not corrupt.
        let placement = stamp::read_checked(&*self.map, at, stamp, || self.placement(at));
        placement.ok_or(TransferError::Stale)?.ok_or(TransferError::Corrupt)
    }

    /// Whether the master has withdrawn this use. A check of the stamp must follow: see [`claim::is_valid`].
    fn is_withdrawn(&self, index: u32, stamp: u64) -> bool {
        self.claims.as_ref().is_some_and(|it| it.is_withdrawn(index, stamp))
    }

    /// Whether the slot holds the stamp now and the master has not withdrawn it, ordered after all earlier
    /// copies.
    #[must_use]
    pub fn is_current(&self, index: u32, stamp: u64) -> bool {
        let Some(at) = self.geometry.slot_at(index) else { return false };
        match &self.claims {
            Some(claims) => claims.is_valid(&self.map, (index, at), stamp),
            None => stamp::is_current(&*self.map, at, stamp),
        }
    }

    /// A writer calls this between [`Self::load`] and the first byte that it stores under that stamp.
    pub(crate) fn before_bytes(&self) {
        stamp::before_bytes(&*self.map);
    }

    /// Reads back every use of every slot, while the node does not write. Skips slots that were never used:
    /// reading their pages would allocate memory.
    ///
    /// An invalid record is an error with the slot's number: the segment is damaged.
    pub fn scan(&self) -> Result<Vec<Scanned>, u32> {
        let mut found = Vec::new();
        let used = self.map.load(header::SLOT_HIGH_WATER).min(u64::from(self.geometry.slot_count));
        for index in 0..used as u32 {
            let at = self.geometry.slot_at(index).ok_or(index)?;
            let state = SlotState::from_word(self.map.load(at + slot::STATE));
            if self.map.load(at + slot::STAMP) != 0 || state == Some(SlotState::Retired) {
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
        let (names, is_retired) = (word(slot::NAMESPACE_LEN), placement.state == SlotState::Retired);
        let namespace_len = names & ((1 << layout::NAMESPACE_LEN_BITS) - 1);
        let record = SlotRecord {
            stamp: word(if is_retired { slot::WRITER } else { slot::STAMP }),
            state: placement.state,
            hard_pin: state & layout::FLAG_HARD_PIN != 0,
            soft_pin: state & layout::FLAG_SOFT_PIN != 0,
            namespace: Extent { offset: word(slot::NAMESPACE_OFFSET), len: namespace_len },
            generation_epoch: word(slot::GENERATION_EPOCH),
            generation_counter: word(slot::GENERATION_COUNTER),
            len: placement.len,
            extents: placement.extents,
            spill_offset: if is_spilled { word(slot::EXTENTS) } else { 0 },
            key: Extent { offset: word(slot::KEY_OFFSET), len: word(slot::KEY_LEN) },
            name_bytes: names >> layout::NAMESPACE_LEN_BITS,
            writer: if is_retired { 0 } else { word(slot::WRITER) },
            attributes: attributes_extent(word(slot::ATTRIBUTES)),
        };
        let namespace = self.heap_bytes(record.namespace, layout::NAME_BYTES_MAX)?;
        let key = self.heap_bytes(record.key, layout::NAME_BYTES_MAX)?;
        let attributes = self.heap_bytes(record.attributes, layout::ATTRIBUTES_BYTES_MAX)?;
        Some(Scanned { slot: index, record, namespace, key, attributes })
    }

    /// The location of the bytes of a slot; `None` if its words are invalid.
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

fn attributes_word(attributes: Extent) -> u64 {
    attributes.len << layout::ATTRIBUTES_OFFSET_BITS | attributes.offset
}

fn attributes_extent(word: u64) -> Extent {
    let offset = word & ((1 << layout::ATTRIBUTES_OFFSET_BITS) - 1);
    Extent { offset, len: word >> layout::ATTRIBUTES_OFFSET_BITS }
}

fn state_word(record: &SlotRecord) -> u64 {
    let hard = if record.hard_pin { layout::FLAG_HARD_PIN } else { 0 };
    let soft = if record.soft_pin { layout::FLAG_SOFT_PIN } else { 0 };
    record.state.to_word() | hard | soft
}

/// The four words of a slot that hold its extents, or the offset of their list.
fn extent_words(record: &SlotRecord) -> [u64; 4] {
    match *record.extents.as_slice() {
        [] => [0; 4],
        [one] => [one.offset, one.len, 0, 0],
        [one, two] => [one.offset, one.len, two.offset, two.len],
        _ => [record.spill_offset, 0, 0, 0],
    }
}

/// Total length of the extents; `None` if one of them is not inside the data segment.
fn total_inside(extents: &[Extent], data_bytes: u64) -> Option<u64> {
    extents.iter().try_fold(0_u64, |total, extent| {
        let is_inside = extent.end()? <= data_bytes;
        if is_inside { total.checked_add(extent.len) } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Rng;
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
    fn withdrawn_use_is_stale_until_the_slot_has_another() {
        let (memory, mut writer) = NodeMemory::create(GEOMETRY).unwrap();
        let record = |stamp| SlotRecord { stamp, state: SlotState::Committed, ..SlotRecord::default() };
        let reader = memory.reader();
        writer.write_slot(1, &record(5));
        writer.write_slot(2, &record(6));
        assert!(reader.is_current(1, 5) && !memory.is_withdrawn(1, 5));
        memory.claims.withdraw(1, 5);
        memory.claims.withdraw(u32::MAX, 5);
        assert!(memory.is_withdrawn(1, 5) && !reader.is_current(1, 5));
        assert_eq!((reader.state_of(1, 5), reader.load(1, 5)), (None, Err(TransferError::Stale)));
        assert!(reader.is_current(2, 6), "other slots are not concerned");
        writer.write_slot(1, &SlotRecord { state: SlotState::Offered, ..record(7) });
        memory.claims.withdraw(1, 5);
        assert!(reader.is_current(1, 7) && memory.claims.claim(1, 7), "a late withdrawal changes nothing");
        // Stamps have no order: the next use may have a smaller one.
        writer.write_slot(1, &record(3));
        memory.claims.withdraw(1, 7);
        memory.claims.withdraw(1, 5);
        assert!(reader.is_current(1, 3) && !memory.is_withdrawn(1, 3));
        memory.claims.withdraw(1, 3);
        assert!(!reader.is_current(1, 3) && memory.is_withdrawn(1, 3));
    }

    #[test]
    fn segment_describes_itself_completely() {
        let (memory, mut writer) = NodeMemory::create(GEOMETRY).unwrap();
        writer.write_heap(0, b"default");
        let mut expected = Vec::new();
        let cuts: [&[(u64, u64)]; 5] =
            [&[], &[(64, 100)], &[(64, 1), (0, 2)], &[(9, 9), (99, 99), (999, 999)], &[(5, 0); 1000]];
        for (index, list) in (0_u32..).zip(cuts) {
            let at = 1000 + u64::from(index) * 200;
            let key = format!("key {index}").into_bytes();
            writer.write_heap(at, &key);
            let attributes = vec![0xa0 + index as u8; index as usize];
            writer.write_heap(at + 50, &attributes);
            let mut record = record(77 + u64::from(index), SlotState::Committed, list);
            record.hard_pin = index % 2 == 0;
            record.soft_pin = index % 3 == 0;
            record.namespace = Extent { offset: 0, len: 7 };
            record.key = Extent { offset: at, len: key.len() as u64 };
            record.attributes = Extent { offset: at + 50, len: attributes.len() as u64 };
            (record.generation_epoch, record.generation_counter) = (3, u64::from(index));
            record.spill_offset = if list.len() > 2 { at + 100 * u64::from(index) } else { 0 };
            let slot = index * 3;
            writer.write_slot(slot, &record);
            expected.push(Scanned { slot, record, namespace: b"default".to_vec(), key, attributes });
        }
        writer.set_stamp_high_water(4096);
        writer.set_epoch(3, 33, 333);

        // Read through the descriptor alone.
        let map = Map::new(
            std::os::fd::AsFd::as_fd(&memory.control_file),
            GEOMETRY.control_bytes(),
            crate::map::Access::ReadOnly,
        );
        let reader = ControlReader::open(Arc::new(map.unwrap())).unwrap();
        assert_eq!(reader.geometry(), GEOMETRY);
        assert_eq!((reader.stamp_high_water(), reader.epoch(), reader.cluster()), (4096, 3, 333));
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
    fn use_is_found_only_under_its_own_stamp() {
        let (memory, mut writer) = NodeMemory::create(GEOMETRY).unwrap();
        let reader = memory.reader();
        writer.write_slot(1, &record(5, SlotState::Reserved, &[(0, 10)]));
        assert_eq!(reader.load(1, 5).unwrap().state, SlotState::Reserved);
        assert!(reader.state_of(1, 5) != Some(SlotState::Committed));
        writer.write_slot(1, &record(5, SlotState::Committed, &[(0, 10)]));
        assert_eq!(reader.load(1, 5).unwrap().state, SlotState::Committed);
        assert!(reader.state_of(1, 5) == Some(SlotState::Committed));
        writer.write_slot(1, &record(6, SlotState::Reserved, &[(20, 30)]));
        assert_eq!(reader.load(1, 6).unwrap().extents, extents(&[(20, 30)]));
        for (slot, stamp) in [(1, 5), (1, 0), (2, 5), (2, 0), (15, 6), (16, 6), (u32::MAX, 6)] {
            assert_eq!(reader.load(slot, stamp), Err(TransferError::Stale), "{slot} {stamp}");
            assert!(!reader.is_current(slot, stamp) && reader.state_of(slot, stamp).is_none());
        }
        writer.write_slot(1, &SlotRecord::default());
        assert!(!reader.is_current(1, 6), "a record without a stamp retires");
    }

    #[test]
    fn invalid_words_are_rejected() {
        let (memory, mut writer) = NodeMemory::create(GEOMETRY).unwrap();
        let reader = memory.reader();
        let mut rng = Rng::new(3);
        let mut found = 0;
        for _ in 0..20_000 {
            writer.write_slot(0, &record(9, SlotState::Committed, &[(1, 10), (50, 10), (90, 10)]));
            let bent = 1 + rng.below(3);
            for _ in 0..bent {
                let word = 8 + rng.below(15) * 8;
                let value = match rng.below(4) {
                    0 => rng.below(u64::MAX),
                    1 => u64::MAX - rng.below(100),
                    2 => rng.below(5000),
                    _ => 1 << rng.below(64),
                };
                writer.map.store(GEOMETRY.slot_at(0).unwrap() + word, value, Ordering::SeqCst);
            }
            match reader.load(0, 9) {
                Ok(placement) => {
                    let total = total_inside(&placement.extents, GEOMETRY.data_bytes);
                    assert_eq!(total, Some(placement.len), "accepted extents are inside the segment");
                    found += 1;
                }
                Err(error) => assert_eq!(error, TransferError::Corrupt),
            }
            if let Ok(scanned) = reader.scan() {
                assert_eq!(scanned.len(), 1);
            }
            writer.retire(0);
        }
        assert!(found > 0, "some changed words are harmless");
    }

    #[test]
    fn invalid_header_is_rejected() {
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
            // One slot more or less may not move the heap.
            let is_shifted =
                value == 17 && GEOMETRY.heap_at() == Geometry { slot_count: 17, ..GEOMETRY }.heap_at();
            let opened = ControlReader::open(Arc::clone(&writer.map));
            assert_eq!(opened.is_some(), is_shifted, "word {at} = {value}");
        }
    }

    /// Whether a bug of the node causes a panic instead of wrong bytes.
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
    fn broken_invariant_of_the_node_panics() {
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
