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
//!   most [`Shape::protected_bytes_max`]. So there is always a segment that can be emptied.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::commit::{Batch, Commit, Member};
use super::disk::Disk;
use super::ops::Kind;
use super::queue::Append;
use super::shape::{PARTS_MAX, Shape, part_header_bytes};
use super::table::{Location, Piece, Table};
use super::{Log, Part, RESERVE_SEGMENTS};
use crate::layout::{Body, Entry, PartHead, PartRef, SUM_BYTES, blocks_up};
use crate::mutant::is_mutant;
use crate::types::{Answer, AppendError, OpId, Record, RecordId, Span};

/// The maximum number of additional parts of a record, where other entries took space in its segments.
const PARTS_MORE_MAX: u64 = 1 << 11;

/// A record that is being written in parts.
#[derive(Debug)]
struct Spanning {
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

/// The records that are being written in parts.
#[derive(Debug, Default)]
pub(super) struct Spans {
    /// By their tickets.
    spannings: BTreeMap<u64, Spanning>,
    /// The one whose parts are being placed.
    placing: Option<u64>,
    /// Records whose head is being written.
    heads: BTreeSet<RecordId>,
}

impl Spans {
    /// Whether any record is being written in parts.
    fn is_any(&self) -> bool {
        !(self.spannings.is_empty() && self.heads.is_empty())
    }

    /// Whether this record is being written in parts; for tests.
    pub(super) fn writes(&self, id: RecordId) -> bool {
        self.heads.contains(&id) || self.ticket_of(id).is_some()
    }

    pub(super) fn ticket_of(&self, id: RecordId) -> Option<u64> {
        self.spannings.iter().find(|(_, spanning)| spanning.id == id).map(|(ticket, _)| *ticket)
    }

    /// The largest footprints of parts that are not placed yet.
    fn ahead_bytes(&self) -> u64 {
        self.spannings.values().map(|spanning| spanning.ahead).sum()
    }

    fn start(&mut self, append: Append, id: RecordId, ahead: u64) {
        let ticket = append.ticket;
        let spanning = Spanning { append, id, parts: Vec::new(), position: 0, pending: 0, ahead };
        self.spannings.insert(ticket, spanning);
        self.placing = Some(ticket);
    }

    /// The record whose parts are being placed.
    fn placing(&self) -> Option<(u64, &Spanning)> {
        let ticket = self.placing?;
        self.spannings.get(&ticket).map(|spanning| (ticket, spanning))
    }

    /// Whether the current or next record needs another segment.
    pub(super) fn need_segment(&self, table: &Table, next: Option<&Append>) -> bool {
        let placing = self.placing().map(|(_, spanning)| spanning.rest());
        let next = next.filter(|append| table.shape.spans(&append.record));
        let rest = placing.or_else(|| next.map(|append| append.record.payload_bytes));
        let head = self.spannings.values().find(|spanning| spanning.rest() == 0);
        let head_waits = head.is_some_and(|spanning| {
            let compact = Entry::spanning_bytes(&spanning.append.record, spanning.parts.len());
            !table.open_fits(blocks_up(compact), compact)
        });
        head_waits || rest.is_some_and(|rest| table.open_part_bytes(rest).is_none())
    }

    /// The records whose head can be written, and their operations. `early` ones have parts that are not
    /// durable.
    fn complete(&self, early: bool) -> Vec<(u64, OpId)> {
        let complete = |spanning: &Spanning| spanning.rest() == 0 && (spanning.pending == 0 || early);
        let complete = self.spannings.iter().filter(|(_, spanning)| complete(spanning));
        complete.map(|(ticket, spanning)| (*ticket, spanning.append.op)).collect()
    }

    /// Writes the next part. Returns its extent; zero if there is no space for it yet.
    fn place_part(&mut self, table: &mut Table, disk: &mut Disk, ticket: u64, bytes: u64) -> u64 {
        let compact = part_header_bytes(bytes);
        let (header_bytes, extent) = (blocks_up(compact), blocks_up(compact) + blocks_up(bytes));
        let Some((number, offset)) = table.place(disk, extent, compact, false) else { return 0 };
        let sequence = table.sequence();
        let footprint = table.shape.footprint(extent);
        let id = RecordId(sequence);
        let Some(spanning) = self.spannings.get_mut(&ticket) else { return 0 };
        let head = PartHead { of: spanning.id, start: spanning.position, bytes };
        let first = (head.start / SUM_BYTES) as usize;
        let count = bytes.div_ceil(SUM_BYTES) as usize;
        let sums: Arc<[u64]> = spanning.append.sums.get(first..first + count).unwrap_or_default().into();
        spanning.parts.push(PartRef { id, bytes });
        spanning.position += bytes;
        spanning.pending += 1;
        spanning.ahead = spanning.ahead.saturating_sub(footprint);
        let op = spanning.append.op;
        let touch = table.last_touch();
        let body = Body::Part { id, part: head, sums: Arc::clone(&sums) };
        let header = table.add_entry(number, offset, sequence, body);
        let span = Span { offset: head.start, len: bytes };
        let mut parts = vec![Part::Bytes(header), Part::Payload { op, span }];
        if blocks_up(bytes) > bytes {
            parts.push(Part::Zeros(blocks_up(bytes) - bytes));
        }
        let location = Location { segment: number, offset, header_bytes, extent, sequence, touch };
        table.insert_part(id, Piece { head, sums, location, protected: true });
        let batch = Batch { segment: number, bytes: extent, members: vec![Member::Part { ticket }] };
        disk.write(table.shape.at(number, offset), parts, Commit::Batch(batch));
        extent
    }

    /// Handles a durable part. Its record may have been aborted meanwhile.
    pub(super) fn part_durable(&mut self, ticket: u64) {
        if let Some(spanning) = self.spannings.get_mut(&ticket) {
            spanning.pending -= 1;
        }
    }

    /// Writes the head of a record. False if there is no space for it yet.
    fn write_head(&mut self, table: &mut Table, disk: &mut Disk, ticket: u64) -> bool {
        let Some(spanning) = self.spannings.get(&ticket) else { return true };
        let compact = Entry::spanning_bytes(&spanning.append.record, spanning.parts.len());
        let Some((number, offset)) = table.place(disk, blocks_up(compact), compact, false) else {
            return false;
        };
        let Some(Spanning { append, id, parts, .. }) = self.spannings.remove(&ticket) else { return true };
        let parts: Arc<[PartRef]> = parts.into();
        let sequence = table.sequence();
        let body = Body::Spanning { id, record: append.record.clone(), parts: Arc::clone(&parts) };
        let header = table.add_entry(number, offset, sequence, body);
        self.heads.insert(id);
        let members = vec![Member::Record { append, id, parts, offset, sequence }];
        let batch = Batch { segment: number, bytes: 0, members };
        disk.write(table.shape.at(number, offset), vec![Part::Bytes(header)], Commit::Batch(batch));
        true
    }

    /// Handles a durable record. Whether it was a head.
    pub(super) fn head_durable(&mut self, id: RecordId) -> bool {
        self.heads.remove(&id)
    }

    fn remove(&mut self, ticket: u64) -> Option<Spanning> {
        self.placing = self.placing.filter(|placing| *placing != ticket);
        self.spannings.remove(&ticket)
    }

    /// Drops all records without a head, because the disk has failed.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Log {
    /// Whether a record that would fit into one segment is cut to fill the open one. If its parts may not be
    /// held now, it waits for other spanning records; if there are none, it is not cut.
    pub(super) fn is_cut(&self, record: &Record) -> bool {
        let (extent, _, compact) = Shape::extent_of(record);
        let payload_bytes = record.payload_bytes;
        let part_bytes = || self.table.open_part_bytes(payload_bytes).unwrap_or(0);
        let held_bytes = || self.kept_bytes() + self.table.shape.held_footprint(payload_bytes);
        !record.protected
            && !is_mutant!(self.config.mutant, PadSegments)
            && self.table.free_segments() >= RESERVE_SEGMENTS
            && !self.table.open_fits(extent, compact)
            && part_bytes() >= self.table.shape.part_bytes_min()
            && (held_bytes() <= self.table.shape.protected_bytes_max() || self.spans.is_any())
    }

    /// The footprints of all entries that may not be evicted, and of those that are being written.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.table.kept_bytes() + self.appends.protected_asked() + self.spans.ahead_bytes()
    }

    /// Starts to write the next append in parts. False if it has to wait.
    pub(super) fn start_spanning(&mut self) -> bool {
        let Some(first) = self.appends.next() else { return false };
        let shape = self.table.shape;
        let ahead = shape.held_footprint(first.record.payload_bytes);
        let own = if first.record.protected { ahead } else { 0 };
        let (protected_bytes, protected_bytes_max) = (self.kept_bytes() - own, shape.protected_bytes_max());
        let is_full = protected_bytes + ahead > protected_bytes_max;
        // Other spanning records may be evicted once they are complete.
        if is_full && self.spans.is_any() {
            return false;
        }
        let Some(append) = self.appends.take_cut(shape) else { return false };
        if is_full {
            self.tickets.end(append.ticket);
            let full = AppendError::Full { protected_bytes, protected_bytes_max };
            self.answer(append.op, Answer::Append(Err(full)));
            return true;
        }
        self.ops.set(append.op, Kind::AppendWriting { cancelled: false });
        self.spans.start(append, RecordId(self.table.sequence()), ahead);
        true
    }

    /// Places the parts of the current spanning record. False if it is not complete yet.
    pub(super) fn place_parts(&mut self) -> bool {
        while let Some((ticket, spanning)) = self.spans.placing() {
            let (op, rest, parts) = (spanning.append.op, spanning.rest(), spanning.parts.len() as u64);
            if rest == 0 {
                self.spans.placing = None;
            } else if !self.ops.is_writing(op) {
                self.abort(ticket, AppendError::Cancelled);
            } else if parts >= PARTS_MAX + PARTS_MORE_MAX {
                self.abort(ticket, AppendError::Busy);
            } else if !self.place_part(ticket, rest) {
                return false;
            }
        }
        true
    }

    /// Writes the next part. False if there is no space for it yet.
    fn place_part(&mut self, ticket: u64, rest: u64) -> bool {
        if self.table.is_opening() || self.table.free_segments() < RESERVE_SEGMENTS {
            return false;
        }
        let Some(bytes) = self.table.open_part_bytes(rest) else {
            self.table.open_next(&mut self.disk, false);
            return false;
        };
        let extent = blocks_up(part_header_bytes(bytes)) + blocks_up(bytes);
        if self.write_bytes > 0 && self.write_bytes + extent > self.config.limits.write_bytes_max {
            return false;
        }
        let placed = self.spans.place_part(&mut self.table, &mut self.disk, ticket, bytes);
        self.write_bytes += placed;
        placed > 0
    }

    /// Writes the heads of records whose parts are all durable.
    pub(super) fn pump_heads(&mut self) {
        let early = is_mutant!(self.config.mutant, HeadBeforeParts);
        for (ticket, op) in self.spans.complete(early) {
            if !self.ops.is_writing(op) {
                self.abort(ticket, AppendError::Cancelled);
            } else if !self.spans.write_head(&mut self.table, &mut self.disk, ticket) {
                return;
            }
        }
    }

    /// Aborts a record before its head is written: nothing of it remains after a crash.
    pub(super) fn abort(&mut self, ticket: u64, error: AppendError) {
        let Some(spanning) = self.spans.remove(ticket) else { return };
        self.tickets.end(ticket);
        self.table.remove_parts(&spanning.parts);
        // An operation whose deadline has passed has been answered.
        if self.ops.contains(spanning.append.op) {
            self.answer(spanning.append.op, Answer::Append(Err(error)));
        }
    }
}

impl Spanning {
    /// The payload bytes that are not placed yet.
    fn rest(&self) -> u64 {
        self.append.record.payload_bytes - self.position
    }
}
