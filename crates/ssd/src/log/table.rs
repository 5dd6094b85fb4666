//! The tables of the log: records, tombstones and segments, and the sums that are derived from them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::commit::Commit;
use super::disk::Disk;
use super::queue::Waiter;
use super::shape::{Shape, part_header_bytes};
use super::{Config, Log, Part, RESERVE_SEGMENTS};
use crate::layout::{
    BLOCK, Body, Entry, Note, PartHead, PartRef, SUM_BYTES, SegmentHead, Trailer, blocks_up,
};
use crate::mutant::{Mutant, is_mutant};
use crate::types::{Generation, Left, Name, Record, RecordId};

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

/// A part of a payload, and its location.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) head: PartHead,
    pub(super) sums: Arc<[u64]>,
    /// Its last use is that of its record, or the time of its write.
    pub(super) location: Location,
    /// As its record; `true` while it is held.
    pub(super) protected: bool,
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
    /// Their footprints, see [`Shape::footprint`].
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

impl Live {
    /// A record with one copy, and no newer note about its attributes.
    pub(super) fn new(record: Record, sums: Arc<[u64]>, parts: Arc<[PartRef]>, location: Location) -> Self {
        let (attributes_segment, attributes_sequence) = (None, 0);
        Self { record, sums, parts, location, copies: 1, attributes_segment, attributes_sequence }
    }

    /// The extent of a copy with this record, and the bytes of its header and of its index entry. An older
    /// version may have written it with fewer checksums.
    pub(super) fn extent_with(&self, record: &Record) -> (u64, u64, u64) {
        Shape::extent_with(record, self.sums.len(), self.parts.len())
    }
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

/// The records, tombstones and segments of a log, and the sums that are derived from them.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) mutant: Mutant,
    pub(super) log: u64,
    pub(super) shape: Shape,
    pub(super) segments: Vec<Segment>,
    pub(super) records: BTreeMap<RecordId, Live>,
    names: BTreeMap<Arc<Name>, RecordId>,
    /// The parts of records that span segments, by their own ids.
    pub(super) pieces: BTreeMap<RecordId, Piece>,
    pub(super) tombstones: BTreeMap<RecordId, Tombstone>,
    /// The number of segments that could not be read completely. Their contents are unknown, so no tombstone
    /// is dropped.
    pub(super) segments_incomplete: u64,
    /// The segment that entries are added to.
    pub(super) open: Option<u32>,
    free: BTreeSet<u32>,
    /// Full segments without a durable index.
    sealing: BTreeSet<u32>,
    /// The sums of all segments: of protected bytes, and of the footprints of protected or held entries.
    protected: u64,
    kept: u64,
    payload_bytes: u64,
    /// The number of uses so far.
    touch: u64,
    pub(super) next_sequence: u64,
    pub(super) next_incarnation: u64,
}

impl Table {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            mutant: config.mutant,
            log: config.log,
            shape: Shape::default(),
            segments: Vec::new(),
            records: BTreeMap::new(),
            names: BTreeMap::new(),
            pieces: BTreeMap::new(),
            tombstones: BTreeMap::new(),
            segments_incomplete: 0,
            open: None,
            free: BTreeSet::new(),
            sealing: BTreeSet::new(),
            protected: 0,
            kept: 0,
            payload_bytes: 0,
            touch: 0,
            next_sequence: 1,
            next_incarnation: 1,
        }
    }

    pub(super) fn protected_bytes(&self) -> u64 {
        self.protected
    }

    /// The footprints of all protected or held records and parts.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.kept
    }

    pub(super) fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

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

    /// The record of a key.
    pub(super) fn find(&self, name: &crate::types::Name) -> Option<RecordId> {
        self.names.get(name).copied()
    }

    /// A readable record.
    pub(super) fn record(&self, id: RecordId) -> Option<&Record> {
        self.records.get(&id).map(|live| &live.record)
    }

    /// The positions of a record on the disk and the bytes there: its header with what follows it, then its
    /// parts.
    pub(super) fn places_of(&self, id: RecordId) -> Vec<(u64, u64)> {
        let Some(live) = self.records.get(&id) else { return Vec::new() };
        let parts = live.parts.iter().filter_map(|part| self.pieces.get(&part.id));
        let parts = parts.map(|piece| piece.location);
        let locations = std::iter::once(live.location).chain(parts);
        locations.map(|it| (self.shape.at(it.segment, it.offset), it.extent)).collect()
    }

    pub(super) fn sequence(&mut self) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        sequence
    }

    /// Adds an entry to the sums of its segment, or subtracts it.
    pub(super) fn count(&mut self, location: Location, protected: bool, is_there: bool) {
        let Location { segment, extent, touch, .. } = location;
        let (protected, footprint) = if protected { (extent, self.shape.footprint(extent)) } else { (0, 0) };
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
        self.payload_bytes += live.record.payload_bytes;
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
        self.payload_bytes -= live.record.payload_bytes;
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
        self.shape.footprint(live.location.extent)
            + parts.map(|piece| self.shape.footprint(piece.location.extent)).sum::<u64>()
    }

    pub(super) fn insert_part(&mut self, id: RecordId, piece: Piece) {
        self.count(piece.location, piece.protected, true);
        let had = self.pieces.insert(id, piece);
        assert!(had.is_none(), "part {} was inserted twice", id.0);
    }

    /// Removes parts from the table: their bytes are dead from now on.
    pub(super) fn remove_parts(&mut self, parts: &[PartRef]) {
        for part in parts {
            if let Some(piece) = self.pieces.remove(&part.id) {
                self.count(piece.location, piece.protected, false);
            }
        }
    }

    /// Sets last use and protection of parts to those of their record.
    pub(super) fn adjust_parts(&mut self, parts: &[PartRef], touch: u64, protected: bool) {
        for part in parts {
            let Some(piece) = self.pieces.get_mut(&part.id) else { continue };
            let was = (piece.location, piece.protected);
            (piece.location.touch, piece.protected) = (touch, protected);
            let location = piece.location;
            self.count(was.0, was.1, false);
            self.count(location, protected, true);
        }
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

    /// Allocates space in the open segment. `None` if another segment is being opened or must be reclaimed
    /// first.
    pub(super) fn place(
        &mut self,
        disk: &mut Disk,
        extent: u64,
        index_bytes: u64,
        reserve: bool,
    ) -> Option<(u32, u64)> {
        let segment_bytes = self.shape.segment_bytes;
        // A segment from the reserve is for compaction and tombstones, until the reserve is complete again.
        if !reserve && self.free_segments() < RESERVE_SEGMENTS {
            return None;
        }
        if let Some(number) = self.open {
            let early = is_mutant!(self.mutant, WriteBeforeHead);
            let segment = self.segment(number);
            if segment.state == State::Opening && !early {
                return None;
            }
            if segment.fits(extent, index_bytes, segment_bytes) {
                let offset = segment.used;
                segment.used += extent;
                segment.index_bytes += index_bytes;
                segment.pending += 1;
                return Some((number, offset));
            }
        }
        self.open_next(disk, reserve);
        None
    }

    /// Adds an entry to the index of a segment. Returns its header, in whole blocks.
    pub(super) fn add_entry(&mut self, number: u32, offset: u64, sequence: u64, body: Body) -> Vec<u8> {
        let log = self.log;
        let segment = self.segment(number);
        match &body {
            Body::Record { id, .. } | Body::Spanning { id, .. } => segment.ids.push(*id),
            Body::Part { id, .. } => segment.parts.push(*id),
            Body::Notes(notes) => segment.noted.extend(notes.iter().map(|note| match note {
                Note::Forget(id) | Note::Attributes { id, .. } => *id,
            })),
        }
        let mut header = Entry { incarnation: segment.incarnation, offset, sequence, body }.encode(log);
        segment.index.extend(&header);
        header.resize(blocks_up(header.len() as u64) as usize, 0);
        header
    }

    /// Opens another segment, if one may be used, and seals the open one.
    pub(super) fn open_next(&mut self, disk: &mut Disk, reserve: bool) {
        let floor = if reserve { 0 } else { RESERVE_SEGMENTS };
        if self.free_segments() <= floor {
            return;
        }
        let Some(number) = self.free.pop_first() else { return };
        if let Some(full) = self.open.take() {
            self.segment(full).state = State::Sealing { writing: false };
            self.sealing.insert(full);
        }
        let head = SegmentHead { incarnation: self.next_incarnation, floor: self.next_sequence };
        self.next_incarnation += 1;
        let segment = self.segment(number);
        segment.state = State::Opening;
        segment.incarnation = head.incarnation;
        segment.used = BLOCK;
        self.open = Some(number);
        let bytes = head.encode(self.log, number, self.shape.segment_bytes);
        disk.write(self.shape.at(number, 0), vec![Part::Bytes(bytes)], Commit::Head(number));
    }

    pub(super) fn open_fits(&self, extent: u64, index_bytes: u64) -> bool {
        let open = self.open_segment();
        open.is_some_and(|segment| segment.fits(extent, index_bytes, self.shape.segment_bytes))
    }

    /// How many of the remaining payload bytes the open segment takes as one part. `None` if too few.
    pub(super) fn open_part_bytes(&self, rest: u64) -> Option<u64> {
        let open = self.open_segment()?;
        let fits = |bytes: u64| {
            let compact = part_header_bytes(bytes);
            open.fits(blocks_up(compact) + blocks_up(bytes), compact, self.shape.segment_bytes)
        };
        if fits(rest) {
            return Some(rest);
        }
        let unused = self.shape.segment_bytes.saturating_sub(open.used + blocks_up(open.index_bytes) + BLOCK);
        let (least, most) = (self.shape.part_bytes_min() / SUM_BYTES, rest.min(unused) / SUM_BYTES);
        (least..=most)
            .rev()
            .map(|sums| sums * SUM_BYTES)
            .filter(|bytes| *bytes < rest)
            .find(|bytes| fits(*bytes))
    }

    /// Writes the indexes of full segments whose entries are durable.
    pub(super) fn seal(&mut self, disk: &mut Disk) {
        let ready: Vec<u32> = self.sealing.iter().copied().collect();
        for number in ready {
            let (log, segment_bytes) = (self.log, self.shape.segment_bytes);
            let segment = self.segment(number);
            if segment.pending > 0 || segment.state != (State::Sealing { writing: false }) {
                continue;
            }
            segment.state = State::Sealing { writing: true };
            let mut bytes = segment.index.clone();
            let index_bytes = bytes.len() as u64;
            let index_offset = segment_bytes - BLOCK - blocks_up(index_bytes);
            assert!(segment.used <= index_offset, "the index of segment {number} has no space");
            let trailer = Trailer {
                incarnation: segment.incarnation,
                index_offset,
                index_bytes,
                index_sum: xxhash_rust::xxh3::xxh3_64(&bytes),
            };
            bytes.resize(blocks_up(index_bytes) as usize, 0);
            bytes.extend(trailer.encode(log));
            disk.write(self.shape.at(number, index_offset), vec![Part::Bytes(bytes)], Commit::Footer(number));
        }
    }

    /// The index of a segment is durable.
    pub(super) fn sealed(&mut self, number: u32) {
        self.sealing.remove(&number);
        let segment = self.segment(number);
        segment.state = State::Sealed;
        segment.index = Vec::new();
        if std::mem::take(&mut segment.is_incomplete) {
            self.segments_incomplete -= 1;
        }
    }

    /// Frees an erased segment when its last read has ended.
    pub(super) fn drained(&mut self, number: u32) {
        let segment = self.segment(number);
        if segment.state == State::Draining && segment.readers == 0 {
            *segment = Segment::free();
            self.free.insert(number);
        }
    }

    /// The record of a key, and its generation.
    pub(super) fn newest(&self, name: &Name) -> Option<(RecordId, Generation)> {
        let id = self.find(name)?;
        Some((id, self.record(id)?.generation))
    }

    /// Removes parts without a record: it was being written, and the disk has failed.
    pub(super) fn remove_unowned_parts(&mut self) {
        let parts = self.pieces.iter().filter(|(_, piece)| !self.records.contains_key(&piece.head.of));
        let parts: Vec<PartRef> =
            parts.map(|(id, piece)| PartRef { id: *id, bytes: piece.head.bytes }).collect();
        self.remove_parts(&parts);
    }

    /// Removes the records of a segment that is erased, and returns them.
    pub(super) fn evict(&mut self, victim: u32) -> Vec<RecordId> {
        let ids = self.segment(victim).ids.clone();
        let is_here = |id: &RecordId| self.records.get(id).is_some_and(|it| it.location.segment == victim);
        let mut gone: Vec<RecordId> = ids.into_iter().filter(is_here).collect();
        gone.sort_unstable();
        gone.dedup();
        gone.iter().for_each(|id| drop(self.remove(*id)));
        gone
    }

    /// A segment was durably erased. It is free when its last read has ended.
    pub(super) fn erased(&mut self, victim: u32) {
        let ids = std::mem::take(&mut self.segment(victim).ids);
        self.forget_copies(&ids);
        let reuse = is_mutant!(self.mutant, ReuseUnderReaders);
        let segment = self.segment(victim);
        let readers = segment.readers;
        *segment = Segment::free();
        segment.readers = readers;
        if readers > 0 && !reuse {
            segment.state = State::Draining;
        } else {
            self.free.insert(victim);
        }
    }

    /// The open segment.
    fn open_segment(&self) -> Option<&Segment> {
        self.open.and_then(|number| self.segments.get(number as usize))
    }

    /// The space for moved entries.
    pub(super) fn carry_space(&self) -> u64 {
        if self.free_segments() > 0 {
            return self.shape.segment_bytes / 4 * 3;
        }
        let open = self.open_segment();
        open.map_or(0, |segment| {
            let footer = 2 * (blocks_up(segment.index_bytes) + BLOCK);
            self.shape.segment_bytes.saturating_sub(segment.used + footer)
        })
    }

    /// After the recovery: continues the newest segment if it was not sealed; seals others.
    pub(super) fn continue_segments(&mut self) {
        self.touch = self.next_sequence;
        let newest = self.segments.iter().map(|segment| segment.incarnation).max().unwrap_or(0);
        let free = self.segments.iter().filter(|segment| segment.state == State::Free).count() as u64;
        // A segment with unreadable blocks is sealed, so that its index leaves them out; but free space comes
        // first.
        let goes_on = |segment: &Segment| {
            segment.incarnation == newest && (!segment.is_incomplete || free <= RESERVE_SEGMENTS)
        };
        self.open = self.open.filter(|open| self.segments.get(*open as usize).is_some_and(goes_on));
        for number in 0..self.segments.len() as u32 {
            let open = self.open == Some(number);
            let segment = self.segment(number);
            match segment.state {
                State::Free => drop(self.free.insert(number)),
                State::Sealing { .. } if open => segment.state = State::Open,
                State::Sealing { .. } => drop(self.sealing.insert(number)),
                _ => {}
            }
        }
    }

    /// Records the use of a new record.
    pub(super) fn next_touch(&mut self) -> u64 {
        self.touch += 1;
        self.touch
    }

    /// The time of the last use.
    pub(super) fn last_touch(&self) -> u64 {
        self.touch
    }

    /// Whether the header of the open segment is not durable yet.
    pub(super) fn is_opening(&self) -> bool {
        self.open_segment().is_some_and(|segment| segment.state == State::Opening)
    }

    /// Whether the open segment is more than three quarters full.
    pub(super) fn open_is_nearly_full(&self) -> bool {
        self.open_segment().is_some_and(|segment| segment.used > self.shape.segment_bytes / 4 * 3)
    }
}

impl Table {
    /// Verifies the sums and the invariants of the module; for tests.
    fn check(&self) {
        for (number, segment) in self.segments.iter().enumerate() {
            let records = self.records.values().map(|it| (it.location, it.record.protected));
            let parts = self.pieces.values().map(|it| (it.location, it.protected));
            let mine: Vec<_> = records.chain(parts).filter(|it| it.0.segment as usize == number).collect();
            let kept = || mine.iter().filter(|it| it.1);
            let live: u64 = mine.iter().map(|it| it.0.extent).sum();
            let protected: u64 = kept().map(|it| it.0.extent).sum();
            let footprint: u64 = kept().map(|it| self.shape.footprint(it.0.extent)).sum();
            let heat: u128 = mine.iter().map(|it| u128::from(it.0.extent) * u128::from(it.0.touch)).sum();
            assert_eq!(
                (segment.live, segment.protected, segment.footprint, segment.heat),
                (live, protected, footprint, heat),
                "wrong sums of segment {number}"
            );
            assert!(segment.used <= self.shape.segment_bytes, "segment {number} is over-full");
            if matches!(segment.state, State::Free | State::Draining) {
                assert_eq!(segment.live, 0, "segment {number} is {:?} and has live records", segment.state);
            }
        }
        let mut copies = BTreeMap::new();
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
        assert_eq!(payload, self.payload_bytes, "wrong sum of payload bytes");
        let protected: u64 = self.segments.iter().map(|segment| segment.protected).sum();
        let kept: u64 = self.segments.iter().map(|segment| segment.footprint).sum();
        assert_eq!((protected, kept), (self.protected, self.kept), "wrong sum of protected bytes");
        for (number, segment) in (0u32..).zip(&self.segments) {
            assert_eq!(self.free.contains(&number), segment.state == State::Free, "segment {number}");
        }
    }
    /// Verifies parts against records, and those of records that are being written; for tests.
    fn check_parts(&self, is_written: impl Fn(RecordId) -> bool) {
        let mut owned = 0;
        for (id, live) in self.records.iter().filter(|(_, live)| !live.parts.is_empty()) {
            let mut start = 0;
            for part in live.parts.iter() {
                let Some(piece) = self.pieces.get(&part.id) else { panic!("{id} lacks a part at {start}") };
                let expected = PartHead { of: *id, start, bytes: part.bytes };
                assert_eq!(piece.head, expected, "{id} has a part of another record");
                let (own, whole) = (piece.location.touch, live.location.touch);
                assert_eq!((own, piece.protected), (whole, live.record.protected), "{id}");
                start += part.bytes;
                owned += 1;
            }
            assert_eq!(start, live.record.payload_bytes, "{id} is incomplete");
        }
        let held = self.pieces.values().filter(|piece| piece.protected && is_written(piece.head.of)).count();
        assert_eq!(self.pieces.len(), owned + held, "parts without a record");
    }
}

impl Log {
    /// Removes a record from the index and queues its tombstone. False if there is no such record. `left` is
    /// reported when the tombstone is durable.
    pub(super) fn delete(&mut self, id: RecordId, waiter: Option<Waiter>, left: Option<Left>) -> bool {
        let Some(live) = self.table.remove(id) else { return false };
        self.table.tombstones.insert(id, Tombstone { copies: live.copies, at: None });
        self.queue_note(Note::Forget(id), waiter, left);
        true
    }

    /// Describes each segment in a line, for failed tests.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text =
            format!("open {:?}, {} notes, {:?}\n", self.table.open, self.notes.len(), self.reclaim);
        for (number, segment) in self.table.segments.iter().enumerate() {
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
        self.table.check();
        self.table.check_parts(|id| self.spans.writes(id));
        assert!(self.end() <= self.config.budget_bytes.max(crate::layout::HEAD_BYTES), "over budget");
    }
}
