//! What is where: records, tombstones and segments, and the sums that follow from them.

use std::sync::Arc;

use super::Log;
use crate::layout::{BLOCK, Entry, PartRef, SUM_BYTES, blocks_up};
use crate::types::{Record, RecordId};

/// What has so many of its kind in a segment wastes little of it.
const SMALL_PER_SEGMENT: u64 = 16;

/// Where an entry is: the copy of it that counts.
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
    /// How many copies of it lie on the disk, whether they count or not.
    pub(super) copies: u32,
    /// The segment that holds the newest note about its marks, if that is newer than its own header.
    pub(super) marks_at: Option<u32>,
    /// The sequence number of that note.
    pub(super) marks_sequence: u64,
}

/// A record that must not come back.
#[derive(Debug)]
pub(super) struct Tomb {
    /// How many copies of it lie on the disk.
    pub(super) copies: u32,
    /// The segment that holds its durable tombstone.
    pub(super) at: Option<u32>,
}

/// How a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing in it counts.
    Free,
    /// Its header is being written.
    Opening,
    /// Entries go here.
    Open,
    /// Nothing more goes here; its index waits for its last entries, or is being written.
    Sealing {
        /// Whether the index is being written.
        writing: bool,
    },
    /// Its index is durable.
    Sealed,
    /// Its header is being erased.
    Erasing,
    /// It is erased, and waits for reads to end.
    Draining,
    /// It could not be read, and is left alone.
    Bad,
}

/// A segment.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) state: State,
    pub(super) life: u64,
    /// Where the next entry goes.
    pub(super) used: u64,
    /// The index so far; empty once it is durable.
    pub(super) index: Vec<u8>,
    /// What the index will have with all entries that have been given a place.
    pub(super) index_bytes: u64,
    /// Bytes of records in the index that lie here.
    pub(super) live: u64,
    pub(super) protected: u64,
    /// What these keep others from using, see [`Log::footprint`].
    pub(super) footprint: u64,
    /// Sum of bytes times last use of those.
    pub(super) heat: u128,
    /// Every copy of a record that lies here.
    pub(super) ids: Vec<RecordId>,
    /// Every copy of a part that lies here.
    pub(super) parts: Vec<RecordId>,
    /// The records that notes here speak of.
    pub(super) noted: Vec<RecordId>,
    /// Reads in flight.
    pub(super) readers: u32,
    /// Entries that have a place and are not durable yet.
    pub(super) pending: u32,
    /// A record here could not be carried away.
    pub(super) stuck: bool,
    /// Not all of it could be read.
    pub(super) unsure: bool,
}

impl Segment {
    pub(super) fn free() -> Self {
        Self {
            state: State::Free,
            life: 0,
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
            unsure: false,
        }
    }

    /// Whether an entry of so many bytes, with so many in the index, still fits.
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
            None => panic!("segment {segment} of {count} was named"),
        }
    }

    pub(super) fn free_segments(&self) -> u64 {
        self.free.len() as u64
    }

    pub(super) fn protected_bytes(&self) -> u64 {
        self.protected
    }

    /// How much of a segment something that is not evicted keeps others from using: only one entry that is
    /// larger than half a segment fits into each.
    pub(super) fn footprint(&self, extent: u64) -> u64 {
        let per_segment = self.segment_bytes.saturating_sub(4 * BLOCK) / extent.max(1);
        if per_segment >= SMALL_PER_SEGMENT { extent } else { self.segment_bytes / per_segment.max(1) }
    }

    /// While the footprints of what is protected are at most this, some segment can always be emptied into
    /// less space than it gives back.
    pub(super) fn protected_bytes_max(&self) -> u64 {
        let usable = (self.segments.len() as u64).saturating_sub(super::RESERVE_SEGMENTS + 2);
        usable * self.segment_bytes / 8 * 5
    }

    /// Counts what lies in a segment, or no longer.
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

    /// Puts a record into the index. Its key must have none there, and its parts must be in the table.
    pub(super) fn insert(&mut self, id: RecordId, live: Live) {
        self.count(live.location, live.record.protected, true);
        self.adjust_parts(&Arc::clone(&live.parts), live.location.touch, live.record.protected);
        self.stats.payload_bytes += live.record.payload_bytes;
        let had = self.names.insert(Arc::clone(&live.record.name), id);
        assert!(had.is_none(), "{id} took the name of {had:?}, which is still here");
        let had = self.records.insert(id, live);
        assert!(had.is_none(), "{id} is there twice");
    }

    /// Takes a record out of the index, and its parts with it, whatever becomes of its copies.
    pub(super) fn remove(&mut self, id: RecordId) -> Option<Live> {
        let live = self.records.remove(&id)?;
        let named = self.names.remove(&live.record.name);
        assert_eq!(named, Some(id), "{id} was there without its name");
        self.stats.payload_bytes -= live.record.payload_bytes;
        self.count(live.location, live.record.protected, false);
        self.remove_parts(&live.parts);
        Some(live)
    }

    /// Notes a use.
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

    /// Protects a record or not.
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

    /// Takes a record out of the index and sees to it that it does not come back. `None` if it is not here.
    pub(super) fn bury(&mut self, id: RecordId, ticket: Option<super::write::Waiter>) -> Option<()> {
        let live = self.remove(id)?;
        self.tombs.insert(id, Tomb { copies: live.copies, at: None });
        self.queue_note(crate::layout::Note::Forget(id), ticket);
        Some(())
    }

    /// A segment has been durably erased: what lay there has one copy less.
    pub(super) fn forget_copies(&mut self, ids: &[RecordId]) {
        for id in ids {
            if let Some(live) = self.records.get_mut(id) {
                live.copies -= 1;
            } else if let Some(tomb) = self.tombs.get_mut(id) {
                tomb.copies -= 1;
                if tomb.copies == 0 && self.unsure == 0 {
                    self.tombs.remove(id);
                }
            }
        }
    }

    /// The bytes that a record in one piece takes up in a segment, of its header, and of its index entry.
    pub(super) fn extent_of(record: &Record) -> (u64, u64, u64) {
        Self::extent_with(record, record.payload_bytes.div_ceil(SUM_BYTES))
    }

    fn extent_with(record: &Record, sums: u64) -> (u64, u64, u64) {
        let compact = Entry::record_bytes(record, sums);
        let header = blocks_up(compact);
        (header + blocks_up(record.payload_bytes), header, compact)
    }

    /// The same for a record that is there, with what follows its header.
    pub(super) fn extent_of_live(live: &Live, record: &Record) -> (u64, u64, u64) {
        // An older version may have written it, with fewer checksums.
        if live.parts.is_empty() {
            return Self::extent_with(record, live.sums.len() as u64);
        }
        let compact = Entry::spanning_bytes(record, live.parts.len());
        (blocks_up(compact), blocks_up(compact), compact)
    }

    /// One line per segment, for failed tests.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = format!("open {:?}, {} notes, {:?}\n", self.open, self.notes.len(), self.reclaim);
        for (number, segment) in self.segments.iter().enumerate() {
            let Segment { state, life, used, live, protected, readers, pending, stuck, .. } = segment;
            text += &format!(
                "{number}: {state:?} life {life} used {used} live {live} protected {protected} \
                 readers {readers} pending {pending} stuck {stuck} ids {:?} parts {:?}\n",
                segment.ids, segment.parts
            );
        }
        text
    }

    /// Holds the sums against what they are sums of; for tests, after every step.
    ///
    /// # Panics
    /// When they differ, or an invariant of the module does not hold.
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
                "segment {number} counts wrong"
            );
            assert!(segment.used <= self.segment_bytes, "segment {number} is over-full");
            if matches!(segment.state, State::Free | State::Draining) {
                assert_eq!(segment.live, 0, "segment {number} is {:?} and has records", segment.state);
            }
        }
        let mut copies = std::collections::BTreeMap::new();
        for segment in &self.segments {
            segment.ids.iter().for_each(|id| *copies.entry(*id).or_insert(0u32) += 1);
        }
        for (id, live) in &self.records {
            assert_eq!(Some(&live.copies), copies.get(id), "{id} counts its copies wrong");
            assert_eq!(self.names.get(&live.record.name), Some(id), "{id} has not its name");
        }
        for (id, tomb) in &self.tombs {
            assert_eq!(tomb.copies, copies.get(id).copied().unwrap_or(0), "the tomb of {id} counts wrong");
        }
        assert_eq!(self.names.len(), self.records.len(), "names without records");
        let payload: u64 = self.records.values().map(|live| live.record.payload_bytes).sum();
        assert_eq!(payload, self.stats.payload_bytes, "payload bytes are counted wrong");
        let protected: u64 = self.segments.iter().map(|segment| segment.protected).sum();
        let kept: u64 = self.segments.iter().map(|segment| segment.footprint).sum();
        assert_eq!((protected, kept), (self.protected, self.kept), "protected bytes are counted wrong");
        self.check_parts();
        for (number, segment) in (0u32..).zip(&self.segments) {
            assert_eq!(self.free.contains(&number), segment.state == State::Free, "segment {number}");
        }
        assert!(self.end() <= self.config.budget_bytes.max(crate::layout::HEAD_BYTES), "over budget");
    }
}
