//! Writes: allocation in the open segment, grouping, syncs, and the changes of state when entries are
//! durable.

use std::sync::Arc;

use super::ops::Kind;
use super::table::{Live, Location, State, Tombstone};
use super::{Done, Effect, Io, Log, Part, RESERVE_SEGMENTS};
use crate::layout::{BLOCK, Body, Entry, NOTES_BYTES_MAX, Note, PartRef, SegmentHead, Trailer, blocks_up};
use crate::sabotage::sabotaged;
use crate::types::{Answer, AppendError, Event, Left, OpId, Record, RecordId, Span};

/// A queued append.
#[derive(Debug)]
pub(super) struct Append {
    pub(super) op: OpId,
    pub(super) record: Record,
    pub(super) sums: Arc<[u64]>,
    pub(super) ticket: u64,
}

/// The operation that waits for a note to be durable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter(pub(super) OpId);

/// A queued note.
#[derive(Debug)]
pub(super) struct Queued {
    note: Note,
    waiter: Option<Waiter>,
    ticket: u64,
    /// Why its record was removed, to be reported once the note is durable.
    left: Option<Left>,
}

/// A change of state that a sync commits, if it begins after its write has ended.
#[derive(Debug)]
pub(super) enum Commit {
    Head(u32),
    Footer(u32),
    Erase(u32),
    Batch(Batch),
}

/// Entries that are written together.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) segment: u32,
    /// Their share of the bytes that are being written.
    pub(super) bytes: u64,
    pub(super) members: Vec<Member>,
}

/// An entry of a batch.
#[derive(Debug)]
pub(super) enum Member {
    Record { append: Append, id: RecordId, parts: Arc<[PartRef]>, offset: u64, sequence: u64 },
    Part { ticket: u64 },
    Notes { sequence: u64, notes: Vec<Queued> },
    Carry { carry: u64 },
}

impl Log {
    pub(super) fn queue_note(&mut self, note: Note, waiter: Option<Waiter>) {
        self.queue(note, waiter, None);
    }

    pub(super) fn queue(&mut self, note: Note, waiter: Option<Waiter>, left: Option<Left>) {
        if !matches!(self.health, super::Health::Ready) {
            return;
        }
        let ticket = self.ticket();
        self.notes_queued += 1;
        self.notes.push_back(Queued { note, waiter, ticket, left });
    }

    /// Allocates space in the open segment. `None` if another segment is being opened or must be reclaimed
    /// first.
    pub(super) fn place(&mut self, extent: u64, index_bytes: u64, reserve: bool) -> Option<(u32, u64)> {
        let segment_bytes = self.segment_bytes;
        // A segment from the reserve is for compaction and tombstones, until the reserve is complete again.
        if !reserve && self.free_segments() < RESERVE_SEGMENTS {
            return None;
        }
        if let Some(number) = self.open {
            let early = sabotaged!(self.config.sabotage, WriteBeforeHead);
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
        self.open_next(reserve);
        None
    }

    /// Opens another segment, if one may be used, and seals the open one.
    pub(super) fn open_next(&mut self, reserve: bool) {
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
        let bytes = head.encode(self.log, number, self.segment_bytes);
        self.write(self.at(number, 0), vec![Part::Bytes(bytes)], Commit::Head(number));
    }

    pub(super) fn write(&mut self, at: u64, parts: Vec<Part>, commit: Commit) {
        self.count_written(&parts);
        let io = self.io(Io::Write(commit));
        self.effects.push(Effect::Write { io, at, parts });
    }

    pub(super) fn count_written(&mut self, parts: &[Part]) {
        let len = |part: &Part| match part {
            Part::Bytes(bytes) => bytes.len() as u64,
            Part::Payload { span, .. } => span.len,
            Part::Stage { len, .. } | Part::Zeros(len) => *len,
        };
        let bytes: u64 = parts.iter().map(len).sum();
        assert_eq!(bytes % BLOCK, 0, "a write of {bytes} bytes");
        self.stats.written_bytes += bytes;
    }

    /// Writes queued notes, one group at a time, so that they become durable in their order.
    pub(super) fn pump_notes(&mut self) {
        if self.notes_in_flight || self.notes.is_empty() {
            return;
        }
        let (mut count, mut bytes) = (0, 0);
        for queued in &self.notes {
            bytes += queued.note.bytes();
            if count > 0 && bytes > NOTES_BYTES_MAX.min(self.segment_bytes as usize / 8) {
                break;
            }
            count += 1;
        }
        let notes: Vec<Note> = self.notes.iter().take(count).map(|queued| queued.note.clone()).collect();
        let compact = Entry::notes_bytes(&notes);
        let Some((number, offset)) = self.place(blocks_up(compact), compact, true) else { return };
        let taken: Vec<Queued> = self.notes.drain(..count).collect();
        let sequence = self.sequence();
        let noted: Vec<RecordId> = notes
            .iter()
            .map(|note| match note {
                Note::Forget(id) | Note::Attributes { id, .. } => *id,
            })
            .collect();
        let log = self.log;
        let segment = self.segment(number);
        let entry = Entry { incarnation: segment.incarnation, offset, sequence, body: Body::Notes(notes) };
        let mut bytes = entry.encode(log);
        segment.index.extend(&bytes);
        segment.noted.extend(noted);
        bytes.resize(blocks_up(compact) as usize, 0);
        self.notes_in_flight = true;
        let batch =
            Batch { segment: number, bytes: 0, members: vec![Member::Notes { sequence, notes: taken }] };
        self.write(self.at(number, offset), vec![Part::Bytes(bytes)], Commit::Batch(batch));
    }

    /// Writes queued appends, small ones in groups, as far as space and the limits permit.
    pub(super) fn pump_appends(&mut self) {
        let limits = self.config.limits;
        self.pump_heads();
        while self.place_parts()
            && let Some(first) = self.appends.front()
        {
            if self.spans(&first.record) || self.is_cut(&first.record) {
                if !self.start_spanning() {
                    break;
                }
                continue;
            }
            let (extent, ..) = Self::extent_of(&first.record);
            if self.write_bytes > 0 && self.write_bytes + extent > limits.write_bytes_max {
                break;
            }
            let mut batch: Option<(u64, Batch, Vec<Part>)> = None;
            let mut bytes = 0;
            while let Some(next) = self.appends.front() {
                let (extent, _, compact) = Self::extent_of(&next.record);
                let group =
                    batch.is_none() || bytes + extent <= limits.group_bytes_max && !self.spans(&next.record);
                let open = self.open;
                let same = batch.as_ref().is_none_or(|(_, batch, _)| {
                    open == Some(batch.segment) && self.open_fits(extent, compact)
                });
                if !group || !same {
                    break;
                }
                let Some((segment, offset)) = self.place(extent, compact, false) else { break };
                let Some(append) = self.appends.pop_front() else { break };
                let (_, batch, parts) = batch.get_or_insert_with(|| {
                    (offset, Batch { segment, bytes: 0, members: Vec::new() }, Vec::new())
                });
                bytes += extent;
                batch.bytes += extent;
                batch.members.push(self.write_record(append, segment, offset, parts));
            }
            let Some((offset, batch, parts)) = batch else { break };
            self.write_bytes += batch.bytes;
            self.write(self.at(batch.segment, offset), parts, Commit::Batch(batch));
        }
    }

    pub(super) fn open_fits(&self, extent: u64, index_bytes: u64) -> bool {
        let open = self.open.and_then(|number| self.segments.get(number as usize));
        open.is_some_and(|segment| segment.fits(extent, index_bytes, self.segment_bytes))
    }

    fn write_record(&mut self, append: Append, number: u32, offset: u64, parts: &mut Vec<Part>) -> Member {
        let (extent, header_bytes, _) = Self::extent_of(&append.record);
        self.append_bytes -= extent;
        let sequence = self.sequence();
        let id = RecordId(sequence);
        if let Some(op) = self.ops.get_mut(&append.op) {
            op.kind = Kind::AppendWriting { cancelled: false };
        }
        let log = self.log;
        let segment = self.segment(number);
        let body = Body::Record { id, record: append.record.clone(), sums: Arc::clone(&append.sums) };
        let mut header = Entry { incarnation: segment.incarnation, offset, sequence, body }.encode(log);
        segment.index.extend(&header);
        segment.ids.push(id);
        header.resize(header_bytes as usize, 0);
        parts.push(Part::Bytes(header));
        let len = append.record.payload_bytes;
        if len > 0 {
            parts.push(Part::Payload { op: append.op, span: Span { offset: 0, len } });
        }
        if blocks_up(len) > len {
            parts.push(Part::Zeros(blocks_up(len) - len));
        }
        Member::Record { append, id, parts: Arc::default(), offset, sequence }
    }

    pub(super) fn pump_seal(&mut self) {
        let ready: Vec<u32> = self.sealing.iter().copied().collect();
        for number in ready {
            let (log, segment_bytes) = (self.log, self.segment_bytes);
            let segment = self.segment(number);
            if segment.pending > 0 || segment.state != (State::Sealing { writing: false }) {
                continue;
            }
            segment.state = State::Sealing { writing: true };
            let mut bytes = segment.index.clone();
            let index_bytes = bytes.len() as u64;
            let index_offset = segment_bytes - BLOCK - blocks_up(index_bytes);
            assert!(segment.used <= index_offset, "the index of segment {number} has no room");
            let trailer = Trailer {
                incarnation: segment.incarnation,
                index_offset,
                index_bytes,
                index_sum: xxhash_rust::xxh3::xxh3_64(&bytes),
            };
            bytes.resize(blocks_up(index_bytes) as usize, 0);
            bytes.extend(trailer.encode(log));
            self.write(self.at(number, index_offset), vec![Part::Bytes(bytes)], Commit::Footer(number));
        }
    }

    pub(super) fn pump_sync(&mut self) {
        if self.syncing.is_none() && !self.written.is_empty() {
            self.syncing = Some(std::mem::take(&mut self.written));
            self.stats.syncs += 1;
            let io = self.io(Io::Sync);
            self.effects.push(Effect::Sync { io });
        }
    }

    pub(super) fn write_done(&mut self, commit: Commit, result: Done) {
        if let Commit::Batch(batch) = &commit {
            self.write_bytes -= batch.bytes;
        }
        if let Done::Failed(fault) = result {
            return self.fail(fault);
        }
        if !matches!(self.health, super::Health::Ready) {
            return;
        }
        let early = matches!(commit, Commit::Batch(_)) && sabotaged!(self.config.sabotage, AnswerBeforeSync);
        match early {
            true => self.commit(commit),
            false => self.written.push(commit),
        }
    }

    pub(super) fn sync_done(&mut self, result: Done) {
        let commits = self.syncing.take().unwrap_or_default();
        if let Done::Failed(fault) = result
            && !sabotaged!(self.config.sabotage, IgnoreFailedSync)
        {
            return self.fail(fault);
        }
        commits.into_iter().for_each(|commit| self.commit(commit));
        if sabotaged!(self.config.sabotage, SyncCoversLater) {
            std::mem::take(&mut self.written).into_iter().for_each(|commit| self.commit(commit));
        }
    }

    fn commit(&mut self, commit: Commit) {
        match commit {
            Commit::Head(number) => self.segment(number).state = State::Open,
            Commit::Footer(number) => self.sealed(number),
            Commit::Erase(number) => self.erased(number),
            Commit::Batch(batch) => {
                for member in batch.members {
                    self.segment(batch.segment).pending -= 1;
                    match member {
                        Member::Record { append, id, parts, offset, sequence } => {
                            self.record_durable(append, id, parts, (batch.segment, offset), sequence);
                        }
                        Member::Part { ticket } => self.part_durable(ticket),
                        Member::Notes { sequence, notes } => {
                            self.notes_durable(notes, batch.segment, sequence)
                        }
                        Member::Carry { carry } => self.carry_durable(carry),
                    }
                }
            }
        }
    }

    fn sealed(&mut self, number: u32) {
        self.sealing.remove(&number);
        let segment = self.segment(number);
        segment.state = State::Sealed;
        segment.index = Vec::new();
        if std::mem::take(&mut segment.is_incomplete) {
            self.segments_incomplete -= 1;
        }
    }

    fn record_durable(
        &mut self,
        append: Append,
        id: RecordId,
        parts: Arc<[PartRef]>,
        (segment, offset): (u32, u64),
        sequence: u64,
    ) {
        let Append { op, record, sums, ticket } = append;
        self.outstanding.remove(&ticket);
        let (extent, header_bytes, _) = match self.heads.remove(&id) {
            true => {
                let header = blocks_up(Entry::spanning_bytes(&record, parts.len()));
                (header, header, header)
            }
            false => Self::extent_of(&record),
        };
        // Records in parts were accounted when their writing began.
        if record.protected && parts.is_empty() {
            self.protected_asked -= self.footprint(extent);
        }
        let cancelled = match self.ops.get(&op).map(|op| &op.kind) {
            Some(Kind::AppendWriting { cancelled }) => Some(*cancelled),
            _ => None,
        };
        let keep = sabotaged!(self.config.sabotage, KeepCancelled);
        let there = self.find(&record.name).and_then(|id| Some((id, self.record(id)?.generation)));
        let refusal = match (cancelled, there) {
            (None, _) if !keep => Some(AppendError::TimedOut),
            (Some(true), _) if !keep => Some(AppendError::Cancelled),
            (_, Some((other, there))) if there == record.generation => Some(AppendError::Exists(other)),
            (_, Some((_, there))) if there > record.generation => Some(AppendError::Stale { newest: there }),
            _ => None,
        };
        if let Some(refusal) = refusal {
            self.remove_parts(&parts);
            self.tombstones.insert(id, Tombstone { copies: 1, at: None });
            self.settle(op, Err(refusal));
            return self.queue_note(Note::Forget(id), Some(Waiter(op)));
        }
        self.stats.appends += 1;
        self.stats.appended_bytes += record.payload_bytes;
        let kept = cancelled == Some(true);
        self.settle(op, if kept { Err(AppendError::Cancelled) } else { Ok(id) });
        match there {
            Some((older, _)) => self.supersede(older, Waiter(op)),
            None => self.note_durable(op),
        }
        self.touch += 1;
        let touch = self.touch;
        let sums = if parts.is_empty() { sums } else { Arc::default() };
        let location = Location { segment, offset, header_bytes, extent, sequence, touch };
        self.insert(
            id,
            Live {
                record,
                sums,
                parts,
                location,
                copies: 1,
                attributes_segment: None,
                attributes_sequence: 0,
            },
        );
    }

    /// Removes an older generation after a newer one is durable. The newer is answered when the tombstone is
    /// durable.
    fn supersede(&mut self, older: RecordId, waiter: Waiter) {
        if let Some(live) = self.remove(older) {
            self.tombstones.insert(older, Tombstone { copies: live.copies, at: None });
            self.queue(Note::Forget(older), Some(waiter), Some(Left::Superseded));
            if sabotaged!(self.config.sabotage, AnswerBeforeSuperseded) {
                self.note_durable(waiter.0);
            }
        }
    }

    fn settle(&mut self, op: OpId, result: Result<RecordId, AppendError>) {
        if let Some(op) = self.ops.get_mut(&op) {
            op.kind = Kind::AppendSettling(result);
        }
    }

    fn notes_durable(&mut self, notes: Vec<Queued>, number: u32, sequence: u64) {
        self.notes_in_flight = false;
        self.notes_committed += notes.len() as u64;
        for Queued { note, waiter, ticket, left } in notes {
            self.outstanding.remove(&ticket);
            match note {
                Note::Forget(id) => {
                    if let Some(tombstone) = self.tombstones.get_mut(&id) {
                        tombstone.at = Some(number);
                    }
                    if let Some(left) = left {
                        self.evicting.remove(&id);
                        self.effects.push(Effect::Event(Event::Left(left, vec![id])));
                    }
                }
                Note::Attributes { id, .. } => {
                    if let Some(live) = self.records.get_mut(&id)
                        && live.location.sequence < sequence
                    {
                        (live.attributes_segment, live.attributes_sequence) = (Some(number), sequence);
                    }
                }
            }
            if let Some(Waiter(op)) = waiter {
                self.note_durable(op);
            }
        }
    }

    /// One of the notes that an operation waits for is durable.
    fn note_durable(&mut self, op: OpId) {
        let Some(known) = self.ops.get_mut(&op) else { return };
        let answer = match &mut known.kind {
            Kind::AppendSettling(result) => Answer::Append(result.clone()),
            Kind::SetAttributes => Answer::SetAttributes(Ok(())),
            Kind::Forget { waiting, found } => {
                *waiting -= 1;
                if *waiting > 0 {
                    return;
                }
                Answer::Forget(Ok(*found))
            }
            Kind::AppendQueued | Kind::AppendWriting { .. } | Kind::Read | Kind::Flush => return,
        };
        self.answer(op, answer);
    }
}
