//! The tables of the log: records, tombstones and segments, and the sums that are derived from them.

use std::sync::Arc;

use super::Log;
use crate::layout::{BLOCK, Entry, PartRef, SUM_BYTES, blocks_up};
use crate::types::{Record, RecordId};

/// Entries of which this many fit into a segment waste little of it.
const SMALL_PER_SEGMENT: u64 = 16;

/// The location of an entry: of its newest copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Location {
    pub(super) segment: u32,
    /// Where its header begins in the segment.
    pub(super) offset: u64,
    pub(super) header_bytes: u64,
    /// The bytes of its header and payload, in whole blocks.
    pub(super) extent: u64,
    /// The sequence number of this copy.
    pub(super) sequence: u64,
    /// When its record was last used, as a number that grows with each use of any record.
    pub(super) touch: u64,
}

/// A record in the index.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) record: Record,
    pub(super) sums: Arc<[u64]>,
    /// The parts of its payload, if that does not follow its header.
    pub(super) parts: Arc<[PartRef]>,
    pub(super) location: Location,
    /// The number of its copies on the disk, dead ones included.
    pub(super) copies: u32,
    /// The segment that holds the newest note about its attributes, if that is newer than its own header.
    pub(super) attributes_segment: Option<u32>,
    /// The sequence number of that note.
    pub(super) attributes_sequence: u64,
}

/// A deleted record that has copies on the disk.
#[derive(Debug)]
pub(super) struct Tombstone {
    /// The number of its copies on the disk.
    pub(super) copies: u32,
    /// The segment that holds its durable tombstone.
    pub(super) at: Option<u32>,
}

/// The state of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It has no contents.
    Free,
    /// Its header is being written.
    Opening,
    /// Entries are added to it.
    Open,
    /// It is full. Its index waits for its last entries, or is being written.
    Sealing {
        /// Whether the index is being written.
        writing: bool,
    },
    /// Its index is durable.
    Sealed,
    /// Its header is being erased.
    Erasing,
    /// It is erased, and waits for its last reads to end.
    Draining,
    /// It could not be read, and is not used.
    Bad,
}

/// A segment.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) state: State,
    pub(super) incarnation: u64,
    /// Where the next entry goes.
    pub(super) used: u64,
    /// The index so far; empty once it is durable.
    pub(super) index: Vec<u8>,
    /// The bytes of the index, including entries that are placed and not written yet.
    pub(super) index_bytes: u64,
    /// Bytes of live records and parts here.
    pub(super) live: u64,
    pub(super) protected: u64,
    /// Their footprints, see [`Log::footprint`].
    pub(super) footprint: u64,
    /// Sum of bytes times last use of live records and parts.
    pub(super) heat: u128,
    /// Every copy of a record here.
    pub(super) ids: Vec<RecordId>,
    /// Every copy of a part here.
    pub(super) parts: Vec<RecordId>,
    /// The records that notes here are about.
    pub(super) noted: Vec<RecordId>,
    /// Reads in flight.
    pub(super) readers: u32,
    /// Entries that are placed and not durable yet.
    pub(super) pending: u32,
    /// A record here could not be moved.
    pub(super) stuck: bool,
    /// It could not be read completely.
    pub(super) is_incomplete: bool,
}

impl Segment {
    pub(super) fn free() -> Self {
        Self {
            state: State::Free,
            incarnation: 0,
            used: 0,
            index: Vec::new(),
            index_bytes: 0,
            live: 0,
            protected: 0,
            footprint: 0,
            heat: 0,
            ids: Vec::new(),
            parts: Vec::new(),
            noted: Vec::new(),
            readers: 0,
            pending: 0,
            stuck: false,
            is_incomplete: false,
        }
    }

    /// Whether an entry of this extent fits, with this many bytes in the index.
    pub(super) fn fits(&self, extent: u64, index_bytes: u64, segment_bytes: u64) -> bool {
        let footer = blocks_up(self.index_bytes + index_bytes) + BLOCK;
        self.used + extent + footer <= segment_bytes
    }

    /// The mean last use of its bytes.
    pub(super) fn mean_touch(&self) -> u64 {
        (self.heat / u128::from(self.live.max(1))) as u64
    }
}

impl Log {
    pub(super) fn segment(&mut self, segment: u32) -> &mut Segment {
        let count = self.segments.len();
        match self.segments.get_mut(segment as usize) {
            Some(segment) => segment,
            None => panic!("segment {segment} does not exist: there are {count}"),
        }
    }

    pub(super) fn free_segments(&self) -> u64 {
        self.free.len() as u64
    }

    pub(super) fn protected_bytes(&self) -> u64 {
        self.protected
    }

    /// The space that an entry occupies in effect if it is not evicted: only one entry that is larger than
    /// half a segment fits into each.
    pub(super) fn footprint(&self, extent: u64) -> u64 {
        let per_segment = self.segment_bytes.saturating_sub(4 * BLOCK) / extent.max(1);
        if per_segment >= SMALL_PER_SEGMENT { extent } else { self.segment_bytes / per_segment.max(1) }
    }

    /// The limit of the footprints of protected entries. Up to it, some segment can always be emptied into
    /// less space than it frees.
    pub(super) fn protected_bytes_max(&self) -> u64 {
        let usable = (self.segments.len() as u64).saturating_sub(super::RESERVE_SEGMENTS + 2);
        usable * self.segment_bytes / 8 * 5
    }

    /// Adds an entry to the sums of its segment, or subtracts it.
    pub(super) fn count(&mut self, location: Location, protected: bool, is_there: bool) {
        let Location { segment, extent, touch, .. } = location;
        let (protected, footprint) = if protected { (extent, self.footprint(extent)) } else { (0, 0) };
        let heat = u128::from(extent) * u128::from(touch);
        let segment = self.segment(segment);
        if is_there {
            segment.live += extent;
            segment.protected += protected;
            segment.footprint += footprint;
            segment.heat += heat;
            self.protected += protected;
            self.kept += footprint;
        } else {
            segment.live -= extent;
            segment.protected -= protected;
            segment.footprint -= footprint;
            segment.heat -= heat;
            self.protected -= protected;
            self.kept -= footprint;
        }
    }

    /// Inserts a record into the index. Its key must have none there, and its parts must be in the table.
    pub(super) fn insert(&mut self, id: RecordId, live: Live) {
        self.count(live.location, live.record.protected, true);
        self.adjust_parts(&Arc::clone(&live.parts), live.location.touch, live.record.protected);
        self.stats.payload_bytes += live.record.payload_bytes;
        let had = self.names.insert(Arc::clone(&live.record.name), id);
        assert!(had.is_none(), "{id} replaced {had:?} in the index of names");
        let had = self.records.insert(id, live);
        assert!(had.is_none(), "{id} was inserted twice");
    }

    /// Removes a record and its parts from the index. Its copies stay on the disk.
    pub(super) fn remove(&mut self, id: RecordId) -> Option<Live> {
        let live = self.records.remove(&id)?;
        let named = self.names.remove(&live.record.name);
        assert_eq!(named, Some(id), "{id} has another name in the index");
        self.stats.payload_bytes -= live.record.payload_bytes;
        self.count(live.location, live.record.protected, false);
        self.remove_parts(&live.parts);
        Some(live)
    }

    /// Records a use.
    pub(super) fn touch(&mut self, id: RecordId) {
        self.touch += 1;
        let touch = self.touch;
        let Some(live) = self.records.get_mut(&id) else { return };
        let location = &mut live.location;
        let more = u128::from(location.extent) * u128::from(touch - location.touch);
        location.touch = touch;
        let (segment, parts, protected) = (location.segment, Arc::clone(&live.parts), live.record.protected);
        self.segment(segment).heat += more;
        self.adjust_parts(&parts, touch, protected);
    }

    /// Sets the protection of a record.
    pub(super) fn protect(&mut self, id: RecordId, protected: bool) {
        let Some(live) = self.records.get_mut(&id) else { return };
        let was = std::mem::replace(&mut live.record.protected, protected);
        let (location, parts) = (live.location, Arc::clone(&live.parts));
        if was != protected {
            self.count(location, was, false);
            self.count(location, protected, true);
            self.adjust_parts(&parts, location.touch, protected);
        }
    }

    /// The footprint of a record and its parts.
    pub(super) fn whole_footprint(&self, live: &Live) -> u64 {
        let parts = live.parts.iter().filter_map(|part| self.pieces.get(&part.id));
        self.footprint(live.location.extent)
            + parts.map(|piece| self.footprint(piece.location.extent)).sum::<u64>()
    }

    /// Removes a record from the index and queues its tombstone. `None` if there is no such record.
    pub(super) fn delete(&mut self, id: RecordId, ticket: Option<super::write::Waiter>) -> Option<()> {
        let live = self.remove(id)?;
        self.tombstones.insert(id, Tombstone { copies: live.copies, at: None });
        self.queue_note(crate::layout::Note::Forget(id), ticket);
        Some(())
    }

    /// Subtracts the copies in a segment that has been durably erased.
    pub(super) fn forget_copies(&mut self, ids: &[RecordId]) {
        for id in ids {
            if let Some(live) = self.records.get_mut(id) {
                live.copies -= 1;
            } else if let Some(tombstone) = self.tombstones.get_mut(id) {
                tombstone.copies -= 1;
                if tombstone.copies == 0 && self.segments_incomplete == 0 {
                    self.tombstones.remove(id);
                }
            }
        }
    }

    /// The extent of a record in one piece, and the bytes of its header and of its index entry.
    pub(super) fn extent_of(record: &Record) -> (u64, u64, u64) {
        Self::extent_with(record, record.payload_bytes.div_ceil(SUM_BYTES))
    }

    fn extent_with(record: &Record, sums: u64) -> (u64, u64, u64) {
        let compact = Entry::record_bytes(record, sums);
        let header = blocks_up(compact);
        (header + blocks_up(record.payload_bytes), header, compact)
    }

    /// The same for a live record. A spanning one has only its header here.
    pub(super) fn extent_of_live(live: &Live, record: &Record) -> (u64, u64, u64) {
        // An older version may have written it, with fewer checksums.
        if live.parts.is_empty() {
            return Self::extent_with(record, live.sums.len() as u64);
        }
        let compact = Entry::spanning_bytes(record, live.parts.len());
        (blocks_up(compact), blocks_up(compact), compact)
    }

    /// Describes each segment in a line, for failed tests.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = format!("open {:?}, {} notes, {:?}\n", self.open, self.notes.len(), self.reclaim);
        for (number, segment) in self.segments.iter().enumerate() {
            let Segment { state, incarnation, used, live, protected, readers, pending, stuck, .. } = segment;
            text += &format!(
                "{number}: {state:?} incarnation {incarnation} used {used} live {live} protected {protected} \
                 readers {readers} pending {pending} stuck {stuck} ids {:?} parts {:?}\n",
                segment.ids, segment.parts
            );
        }
        text
    }

    /// Verifies the sums and the invariants of the module; for tests, after every step.
    ///
    /// # Panics
    /// When one of them does not hold.
    pub fn check(&self) {
        for (number, segment) in self.segments.iter().enumerate() {
            let records = self.records.values().map(|it| (it.location, it.record.protected));
            let parts = self.pieces.values().map(|it| (it.location, it.protected));
            let mine: Vec<_> = records.chain(parts).filter(|it| it.0.segment as usize == number).collect();
            let kept = || mine.iter().filter(|it| it.1);
            let live: u64 = mine.iter().map(|it| it.0.extent).sum();
            let protected: u64 = kept().map(|it| it.0.extent).sum();
            let footprint: u64 = kept().map(|it| self.footprint(it.0.extent)).sum();
            let heat: u128 = mine.iter().map(|it| u128::from(it.0.extent) * u128::from(it.0.touch)).sum();
            assert_eq!(
                (segment.live, segment.protected, segment.footprint, segment.heat),
                (live, protected, footprint, heat),
                "wrong sums of segment {number}"
            );
            assert!(segment.used <= self.segment_bytes, "segment {number} is over-full");
            if matches!(segment.state, State::Free | State::Draining) {
                assert_eq!(segment.live, 0, "segment {number} is {:?} and has live records", segment.state);
            }
        }
        let mut copies = std::collections::BTreeMap::new();
        for segment in &self.segments {
            segment.ids.iter().for_each(|id| *copies.entry(*id).or_insert(0u32) += 1);
        }
        for (id, live) in &self.records {
            assert_eq!(Some(&live.copies), copies.get(id), "wrong number of copies of {id}");
            assert_eq!(self.names.get(&live.record.name), Some(id), "{id} is missing in the index of names");
        }
        for (id, tombstone) in &self.tombstones {
            assert_eq!(
                tombstone.copies,
                copies.get(id).copied().unwrap_or(0),
                "wrong number of copies of deleted {id}"
            );
        }
        assert_eq!(self.names.len(), self.records.len(), "names without records");
        let payload: u64 = self.records.values().map(|live| live.record.payload_bytes).sum();
        assert_eq!(payload, self.stats.payload_bytes, "wrong sum of payload bytes");
        let protected: u64 = self.segments.iter().map(|segment| segment.protected).sum();
        let kept: u64 = self.segments.iter().map(|segment| segment.footprint).sum();
        assert_eq!((protected, kept), (self.protected, self.kept), "wrong sum of protected bytes");
        self.check_parts();
        for (number, segment) in (0u32..).zip(&self.segments) {
            assert_eq!(self.free.contains(&number), segment.state == State::Free, "segment {number}");
        }
        assert!(self.end() <= self.config.budget_bytes.max(crate::layout::HEAD_BYTES), "over budget");
    }
}
