//! Records whose payload is in parts, each in one segment: those larger than a segment, and those that are
//! cut to fill the open segment.
//!
//! A record that does not fit into the open segment is cut there if the rest takes a 64th of a segment of its
//! payload, and at least one checksum block. So records smaller than a 64th are never cut, and little of a
//! sealed segment is unused. Protected records that fit into one segment are not cut, because their footprint
//! would be larger in two.
//!
//! The parts are written first. When all of them are durable, the head is written: an entry with the record
//! and the ids of its parts. So a crash leaves the record complete or absent; parts without a head are
//! ignored. A part keeps its id when it is moved, so that the head need not be rewritten.
//!
//! Invariants after every step:
//! - A record in the index has all its parts in the table. They are removed with it.
//! - A part whose head is not durable yet is *held*: it counts as protected, and is moved instead of erased.
//! - The footprints of all held and protected entries, with those of parts that are not placed yet, are at
//!   most [`Log::protected_bytes_max`]. So there is always a segment that can be emptied.

use std::sync::Arc;

use super::ops::Kind;
use super::table::Location;
use super::write::{Append, Batch, Commit, Member};
use super::{Log, Part, RESERVE_SEGMENTS, State};
use crate::layout::{BLOCK, Body, Entry, HEADER_BYTES_MAX, PartHead, PartRef, SUM_BYTES, blocks_up};
use crate::sabotage::sabotaged;
use crate::types::{Answer, AppendError, Record, RecordId, Span};

/// The maximum number of parts of a record.
pub const PARTS_MAX: u64 = 1 << 13;
/// The maximum number of additional parts of a record, where other entries took space in its segments.
const PARTS_MORE_MAX: u64 = 1 << 11;
/// The smallest part is this fraction of a segment, or one checksum block. Only the last may be smaller.
const PART_SHARE_MIN: u64 = 64;

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

/// A record that is being written in parts.
#[derive(Debug)]
pub(super) struct Spanning {
    append: Append,
    id: RecordId,
    /// The parts that are placed, and the payload bytes in them.
    parts: Vec<PartRef>,
    position: u64,
    /// The number of parts that are not durable yet.
    pending: usize,
    /// The footprint of parts that are not placed yet, at most.
    ahead: u64,
}

impl Log {
    /// Whether a record does not fit into one segment.
    pub(super) fn spans(&self, record: &Record) -> bool {
        let (extent, header_bytes, compact) = Self::extent_of(record);
        extent > self.whole_bytes_max(compact) || header_bytes > HEADER_BYTES_MAX
    }

    /// Whether a record that would fit into one segment is cut to fill the open one. If its parts may not be
    /// held now, it waits for other spanning records; if there are none, it is not cut.
    pub(super) fn is_cut(&self, record: &Record) -> bool {
        let (extent, _, compact) = Self::extent_of(record);
        let payload_bytes = record.payload_bytes;
        let part_bytes = || self.open_part_bytes(payload_bytes).unwrap_or(0);
        let held_bytes = || self.kept_bytes() + self.held_footprint(payload_bytes);
        !record.protected
            && !sabotaged!(self.config.sabotage, PadSegments)
            && self.free_segments() >= RESERVE_SEGMENTS
            && !self.open_fits(extent, compact)
            && part_bytes() >= self.part_bytes_min()
            && (held_bytes() <= self.protected_bytes_max() || self.is_spanning())
    }

    /// Whether any record is being written in parts.
    fn is_spanning(&self) -> bool {
        !(self.spannings.is_empty() && self.heads.is_empty())
    }

    /// The largest extent of a record in one piece, with this many bytes in the index.
    pub(super) fn whole_bytes_max(&self, compact: u64) -> u64 {
        self.segment_bytes.saturating_sub(2 * BLOCK + blocks_up(compact))
    }

    /// The largest extent of an append.
    pub(super) fn asked_extent(&self, record: &Record) -> u64 {
        if !self.spans(record) {
            return Self::extent_of(record).0;
        }
        let parts = self.parts_at_most(record.payload_bytes);
        let head = blocks_up(Entry::spanning_bytes(record, parts as usize));
        let part = blocks_up(part_header_bytes(record.payload_bytes.min(self.segment_bytes)));
        blocks_up(record.payload_bytes) + parts * part + head
    }

    /// The smallest part, unless it is the last.
    fn part_bytes_min(&self) -> u64 {
        (self.segment_bytes / PART_SHARE_MIN / SUM_BYTES).max(1) * SUM_BYTES
    }

    /// The largest part.
    fn part_bytes_max(&self) -> u64 {
        let header = blocks_up(part_header_bytes(self.segment_bytes));
        self.segment_bytes.saturating_sub(2 * BLOCK + 2 * header) / SUM_BYTES * SUM_BYTES
    }

    /// The expected maximum number of parts: one for each filled segment, for the rest of the first and for
    /// the end.
    fn parts_at_most(&self, payload_bytes: u64) -> u64 {
        payload_bytes / self.part_bytes_max().max(1) + 2
    }

    /// The largest footprint of an append.
    pub(super) fn asked_footprint(&self, record: &Record) -> u64 {
        match self.spans(record) {
            true => self.held_footprint(record.payload_bytes),
            false => self.footprint(Self::extent_of(record).0),
        }
    }

    /// The largest footprint of a payload in parts. They fill their segments, except for the first and the
    /// last.
    fn held_footprint(&self, payload_bytes: u64) -> u64 {
        self.parts_at_most(payload_bytes) * self.segment_bytes
    }

    /// The largest payload of a record.
    pub(super) fn record_bytes_max(&self) -> u64 {
        let header = blocks_up(part_header_bytes(self.segment_bytes));
        let whole = self.whole_bytes_max(header).saturating_sub(header);
        let segments = (self.protected_bytes_max() / self.segment_bytes).min(PARTS_MAX);
        let parts = segments.saturating_sub(1) * self.part_bytes_max();
        whole.max(parts.saturating_sub(1))
    }

    /// Refuses a record that is too large for the log, even if the log were empty.
    pub(super) fn may_span(&self, record: &Record) -> Result<(), AppendError> {
        let parts = self.parts_at_most(record.payload_bytes);
        let header = blocks_up(Entry::spanning_bytes(record, parts as usize));
        let fits = self.asked_footprint(record) <= self.protected_bytes_max()
            && parts <= PARTS_MAX
            && header <= HEADER_BYTES_MAX;
        let (bytes, bytes_max) = (record.payload_bytes, self.record_bytes_max());
        if fits { Ok(()) } else { Err(AppendError::TooLarge { bytes, bytes_max }) }
    }

    /// The footprints of all entries that may not be evicted, and of those that are being written.
    pub(super) fn kept_bytes(&self) -> u64 {
        let ahead: u64 = self.spannings.values().map(|spanning| spanning.ahead).sum();
        self.kept + self.protected_asked + ahead
    }

    /// Starts to write the next append in parts. False if it has to wait.
    pub(super) fn start_spanning(&mut self) -> bool {
        let Some(first) = self.appends.front() else { return false };
        let extent = self.asked_extent(&first.record);
        let ahead = self.held_footprint(first.record.payload_bytes);
        let own = if first.record.protected { ahead } else { 0 };
        let (protected_bytes, protected_bytes_max) = (self.kept_bytes() - own, self.protected_bytes_max());
        let is_full = protected_bytes + ahead > protected_bytes_max;
        // Other spanning records may be evicted once they are complete.
        if is_full && self.is_spanning() {
            return false;
        }
        let Some(append) = self.appends.pop_front() else { return false };
        self.append_bytes -= extent;
        self.protected_asked -= own;
        if is_full {
            self.outstanding.remove(&append.ticket);
            let full = AppendError::Full { protected_bytes, protected_bytes_max };
            self.answer(append.op, Answer::Append(Err(full)));
            return true;
        }
        if let Some(op) = self.ops.get_mut(&append.op) {
            op.kind = Kind::AppendWriting { cancelled: false };
        }
        let (ticket, id) = (append.ticket, RecordId(self.sequence()));
        let spanning = Spanning { append, id, parts: Vec::new(), position: 0, pending: 0, ahead };
        self.spannings.insert(ticket, spanning);
        self.placing = Some(ticket);
        true
    }

    /// Places the parts of the current spanning record. False if it is not complete yet.
    pub(super) fn place_parts(&mut self) -> bool {
        loop {
            let Some(ticket) = self.placing else { return true };
            let Some(spanning) = self.spannings.get(&ticket) else {
                self.placing = None;
                return true;
            };
            let rest = spanning.append.record.payload_bytes - spanning.position;
            if rest == 0 {
                self.placing = None;
            } else if !self.is_wanted(ticket) {
                self.abort(ticket, AppendError::Cancelled);
            } else if spanning.parts.len() as u64 >= PARTS_MAX + PARTS_MORE_MAX {
                self.abort(ticket, AppendError::Busy);
            } else if !self.place_part(ticket, rest) {
                return false;
            }
        }
    }

    fn is_wanted(&self, ticket: u64) -> bool {
        let op = self.spannings.get(&ticket).and_then(|spanning| self.ops.get(&spanning.append.op));
        op.is_some_and(|op| matches!(op.kind, Kind::AppendWriting { cancelled: false }))
    }

    /// Whether the current or next spanning record needs another segment.
    pub(super) fn spanning_waits(&self) -> bool {
        let placing = self.placing.and_then(|ticket| self.spannings.get(&ticket));
        let placing = placing.map(|spanning| spanning.append.record.payload_bytes - spanning.position);
        let next = || self.appends.front().filter(|append| self.spans(&append.record));
        let rest = placing.or_else(|| next().map(|append| append.record.payload_bytes));
        let head = self.spannings.values().find(|spanning| spanning.is_placed());
        let head_waits = head.is_some_and(|spanning| {
            let compact = Entry::spanning_bytes(&spanning.append.record, spanning.parts.len());
            !self.open_fits(blocks_up(compact), compact)
        });
        head_waits || rest.is_some_and(|rest| self.open_part_bytes(rest).is_none())
    }

    /// How many of the remaining payload bytes the open segment takes as one part. `None` if too few.
    fn open_part_bytes(&self, rest: u64) -> Option<u64> {
        let open = self.open.and_then(|number| self.segments.get(number as usize))?;
        let fits = |bytes: u64| {
            let compact = part_header_bytes(bytes);
            open.fits(blocks_up(compact) + blocks_up(bytes), compact, self.segment_bytes)
        };
        if fits(rest) {
            return Some(rest);
        }
        let unused = self.segment_bytes.saturating_sub(open.used + blocks_up(open.index_bytes) + BLOCK);
        let (least, most) = (self.part_bytes_min() / SUM_BYTES, rest.min(unused) / SUM_BYTES);
        (least..=most)
            .rev()
            .map(|sums| sums * SUM_BYTES)
            .filter(|bytes| *bytes < rest)
            .find(|bytes| fits(*bytes))
    }

    /// Writes the next part. False if there is no space for it yet.
    fn place_part(&mut self, ticket: u64, rest: u64) -> bool {
        let opening = self.open.is_some_and(|number| self.segment(number).state == State::Opening);
        if opening || self.free_segments() < RESERVE_SEGMENTS {
            return false;
        }
        let Some(bytes) = self.open_part_bytes(rest) else {
            self.open_next(false);
            return false;
        };
        let compact = part_header_bytes(bytes);
        let (header_bytes, extent) = (blocks_up(compact), blocks_up(compact) + blocks_up(bytes));
        if self.write_bytes > 0 && self.write_bytes + extent > self.config.limits.write_bytes_max {
            return false;
        }
        let Some((number, offset)) = self.place(extent, compact, false) else { return false };
        let (sequence, touch, log) = (self.sequence(), self.touch, self.log);
        let footprint = self.footprint(extent);
        let id = RecordId(sequence);
        let Some(spanning) = self.spannings.get_mut(&ticket) else { return false };
        let head = PartHead { of: spanning.id, start: spanning.position, bytes };
        let first = (head.start / SUM_BYTES) as usize;
        let count = bytes.div_ceil(SUM_BYTES) as usize;
        let sums: Arc<[u64]> = spanning.append.sums.get(first..first + count).unwrap_or_default().into();
        spanning.parts.push(PartRef { id, bytes });
        spanning.position += bytes;
        spanning.pending += 1;
        spanning.ahead = spanning.ahead.saturating_sub(footprint);
        let op = spanning.append.op;
        let segment = self.segment(number);
        let body = Body::Part { id, part: head, sums: Arc::clone(&sums) };
        let mut header = Entry { incarnation: segment.incarnation, offset, sequence, body }.encode(log);
        segment.index.extend(&header);
        segment.parts.push(id);
        header.resize(header_bytes as usize, 0);
        let span = Span { offset: head.start, len: bytes };
        let mut parts = vec![Part::Bytes(header), Part::Payload { op, span }];
        if blocks_up(bytes) > bytes {
            parts.push(Part::Zeros(blocks_up(bytes) - bytes));
        }
        let location = Location { segment: number, offset, header_bytes, extent, sequence, touch };
        self.insert_part(id, Piece { head, sums, location, protected: true });
        self.write_bytes += extent;
        let batch = Batch { segment: number, bytes: extent, members: vec![Member::Part { ticket }] };
        self.write(self.at(number, offset), parts, Commit::Batch(batch));
        true
    }

    /// Handles a durable part.
    pub(super) fn part_durable(&mut self, ticket: u64) {
        // The record may have been aborted meanwhile.
        if let Some(spanning) = self.spannings.get_mut(&ticket) {
            spanning.pending -= 1;
        }
    }

    /// Writes the heads of records whose parts are all durable.
    pub(super) fn pump_heads(&mut self) {
        let early = sabotaged!(self.config.sabotage, HeadBeforeParts);
        let ready = |spanning: &Spanning| spanning.is_placed() && (spanning.pending == 0 || early);
        let ready: Vec<u64> =
            self.spannings.iter().filter(|(_, it)| ready(it)).map(|(ticket, _)| *ticket).collect();
        for ticket in ready {
            if !self.is_wanted(ticket) {
                self.abort(ticket, AppendError::Cancelled);
            } else if !self.write_head(ticket) {
                return;
            }
        }
    }

    fn write_head(&mut self, ticket: u64) -> bool {
        let Some(spanning) = self.spannings.get(&ticket) else { return true };
        let compact = Entry::spanning_bytes(&spanning.append.record, spanning.parts.len());
        let Some((number, offset)) = self.place(blocks_up(compact), compact, false) else { return false };
        let Some(Spanning { append, id, parts, .. }) = self.spannings.remove(&ticket) else { return true };
        let parts: Arc<[PartRef]> = parts.into();
        let (sequence, log) = (self.sequence(), self.log);
        let segment = self.segment(number);
        let body = Body::Spanning { id, record: append.record.clone(), parts: Arc::clone(&parts) };
        let mut header = Entry { incarnation: segment.incarnation, offset, sequence, body }.encode(log);
        segment.index.extend(&header);
        segment.ids.push(id);
        header.resize(blocks_up(compact) as usize, 0);
        self.heads.insert(id);
        let members = vec![Member::Record { append, id, parts, offset, sequence }];
        let batch = Batch { segment: number, bytes: 0, members };
        self.write(self.at(number, offset), vec![Part::Bytes(header)], Commit::Batch(batch));
        true
    }

    /// Aborts a record before its head is written: nothing of it remains after a crash.
    pub(super) fn abort(&mut self, ticket: u64, error: AppendError) {
        let Some(spanning) = self.spannings.remove(&ticket) else { return };
        if self.placing == Some(ticket) {
            self.placing = None;
        }
        self.outstanding.remove(&ticket);
        self.remove_parts(&spanning.parts);
        // An operation whose deadline has passed has been answered.
        if self.ops.contains_key(&spanning.append.op) {
            self.answer(spanning.append.op, Answer::Append(Err(error)));
        }
    }

    /// Aborts the record of a part that is unreadable.
    pub(super) fn abort_of(&mut self, id: RecordId) {
        let ticket = self.spannings.iter().find(|(_, spanning)| spanning.id == id).map(|(ticket, _)| *ticket);
        if let Some(ticket) = ticket {
            self.abort(ticket, AppendError::Busy);
        }
    }

    /// Drops all records without a head, because the disk has failed.
    pub(super) fn drop_spannings(&mut self) {
        self.spannings.clear();
        self.heads.clear();
        self.placing = None;
        let parts = self.pieces.iter().filter(|(_, piece)| !self.records.contains_key(&piece.head.of));
        let parts: Vec<PartRef> =
            parts.map(|(id, piece)| PartRef { id: *id, bytes: piece.head.bytes }).collect();
        self.remove_parts(&parts);
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

    /// Verifies parts against records; for tests.
    pub(super) fn check_parts(&self) {
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
        let held = |of: &RecordId| {
            self.heads.contains(of) || self.spannings.values().any(|spanning| spanning.id == *of)
        };
        let held = self.pieces.values().filter(|piece| piece.protected && held(&piece.head.of)).count();
        assert_eq!(self.pieces.len(), owned + held, "parts without a record");
    }
}

/// The bytes of the header of a part without padding.
fn part_header_bytes(bytes: u64) -> u64 {
    Entry::part_bytes(bytes.div_ceil(SUM_BYTES))
}

impl Spanning {
    fn is_placed(&self) -> bool {
        self.position == self.append.record.payload_bytes
    }
}
