//! Writes: allocation in the open segment, grouping, syncs, and the changes of state when entries are
//! durable.

use std::sync::Arc;

use super::commit::{Batch, Commit, Member};
use super::disk::{Disk, Io};
use super::ops::Kind;
use super::queue::{Append, Queued, Waiter};
use super::shape::Shape;
use super::table::{Live, Location, State, Table, Tombstone};
use super::{Done, Health, Log, Part};
use crate::layout::{Body, Entry, NOTES_BYTES_MAX, Note, PartRef, blocks_up};
use crate::mutant::is_mutant;
use crate::types::{Answer, AppendError, Event, Left, OpId, RecordId, Span};

/// Writes that have ended, and those that the current sync makes durable.
#[derive(Debug, Default)]
pub(super) struct Syncs {
    written: Vec<Commit>,
    syncing: Option<Vec<Commit>>,
}

impl Syncs {
    fn push(&mut self, commit: Commit) {
        self.written.push(commit);
    }

    /// Starts a sync, unless one is in progress or there is nothing to sync.
    pub(super) fn start(&mut self, disk: &mut Disk) -> bool {
        let starts = self.syncing.is_none() && !self.written.is_empty();
        if starts {
            self.syncing = Some(self.take_written());
            disk.sync(Io::Sync);
        }
        starts
    }

    /// The sync has ended: what it covers.
    fn end(&mut self) -> Vec<Commit> {
        self.syncing.take().unwrap_or_default()
    }

    fn take_written(&mut self) -> Vec<Commit> {
        std::mem::take(&mut self.written)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Log {
    /// Queues a note, unless the log has failed. `left` is reported when it is durable.
    pub(super) fn queue_note(&mut self, note: Note, waiter: Option<Waiter>, left: Option<Left>) {
        if matches!(self.health, Health::Ready) {
            let ticket = self.tickets.issue();
            self.notes.push(Queued { note, waiter, ticket, left });
        }
    }

    /// Writes queued notes.
    pub(super) fn pump_notes(&mut self) {
        let bytes_max = NOTES_BYTES_MAX.min(self.table.shape.segment_bytes as usize / 8);
        let notes = self.notes.next_group(bytes_max);
        if notes.is_empty() {
            return;
        }
        let compact = Entry::notes_bytes(&notes);
        let place = self.table.place(&mut self.disk, blocks_up(compact), compact, true);
        let Some((number, offset)) = place else { return };
        let taken = self.notes.take(notes.len());
        let sequence = self.table.sequence();
        let header = self.table.add_entry(number, offset, sequence, Body::Notes(notes));
        let batch =
            Batch { segment: number, bytes: 0, members: vec![Member::Notes { sequence, notes: taken }] };
        self.disk.write(self.table.shape.at(number, offset), vec![Part::Bytes(header)], Commit::Batch(batch));
    }

    /// Writes queued appends, small ones in groups, as far as space and the limits permit.
    pub(super) fn pump_appends(&mut self) {
        let limits = self.config.limits;
        self.pump_heads();
        while self.place_parts()
            && let Some(first) = self.appends.next()
        {
            if self.table.shape.spans(&first.record) || self.is_cut(&first.record) {
                if !self.start_spanning() {
                    break;
                }
                continue;
            }
            let (extent, ..) = Shape::extent_of(&first.record);
            if self.write_bytes > 0 && self.write_bytes + extent > limits.write_bytes_max {
                break;
            }
            let mut batch: Option<(u64, Batch, Vec<Part>)> = None;
            let mut bytes = 0;
            while let Some(next) = self.appends.next() {
                let (extent, _, compact) = Shape::extent_of(&next.record);
                let group = batch.is_none()
                    || bytes + extent <= limits.group_bytes_max && !self.table.shape.spans(&next.record);
                let open = self.table.open;
                let same = batch.as_ref().is_none_or(|(_, batch, _)| {
                    open == Some(batch.segment) && self.table.open_fits(extent, compact)
                });
                if !group || !same {
                    break;
                }
                let Some((segment, offset)) = self.table.place(&mut self.disk, extent, compact, false) else {
                    break;
                };
                let Some(append) = self.appends.take_whole() else { break };
                let (_, batch, parts) = batch.get_or_insert_with(|| {
                    (offset, Batch { segment, bytes: 0, members: Vec::new() }, Vec::new())
                });
                bytes += extent;
                batch.bytes += extent;
                self.ops.set(append.op, Kind::AppendWriting { cancelled: false });
                batch.members.push(add_record(&mut self.table, append, segment, offset, parts));
            }
            let Some((offset, batch, parts)) = batch else { break };
            self.write_bytes += batch.bytes;
            self.disk.write(self.table.shape.at(batch.segment, offset), parts, Commit::Batch(batch));
        }
    }

    pub(super) fn write_done(&mut self, commit: Commit, result: Done) {
        if let Commit::Batch(batch) = &commit {
            self.write_bytes -= batch.bytes;
        }
        if let Done::Failed(fault) = result {
            return self.fail(fault);
        }
        if !matches!(self.health, Health::Ready) {
            return;
        }
        let early = matches!(commit, Commit::Batch(_)) && is_mutant!(self.config.mutant, AnswerBeforeSync);
        match early {
            true => self.commit(commit),
            false => self.syncs.push(commit),
        }
    }

    pub(super) fn sync_done(&mut self, result: Done) {
        let commits = self.syncs.end();
        if let Done::Failed(fault) = result
            && !is_mutant!(self.config.mutant, IgnoreFailedSync)
        {
            return self.fail(fault);
        }
        commits.into_iter().for_each(|commit| self.commit(commit));
        if is_mutant!(self.config.mutant, SyncCoversLater) {
            self.syncs.take_written().into_iter().for_each(|commit| self.commit(commit));
        }
    }

    fn commit(&mut self, commit: Commit) {
        match commit {
            Commit::Head(number) => self.table.segment(number).state = State::Open,
            Commit::Footer(number) => self.table.sealed(number),
            Commit::Erase(number) => self.erased(number),
            Commit::Batch(batch) => {
                for member in batch.members {
                    self.table.segment(batch.segment).pending -= 1;
                    match member {
                        Member::Record { append, id, parts, offset, sequence } => {
                            self.record_durable(append, id, parts, (batch.segment, offset), sequence);
                        }
                        Member::Part { ticket } => self.spans.part_durable(ticket),
                        Member::Notes { sequence, notes } => {
                            self.notes_durable(notes, batch.segment, sequence)
                        }
                        Member::Carry { carry } => self.carries.durable(&mut self.table, carry),
                    }
                }
            }
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
        self.tickets.end(ticket);
        let (extent, header_bytes, _) = match self.spans.head_durable(id) {
            true => {
                let header = blocks_up(Entry::spanning_bytes(&record, parts.len()));
                (header, header, header)
            }
            false => Shape::extent_of(&record),
        };
        // Records in parts were accounted when their writing began.
        if record.protected && parts.is_empty() {
            self.appends.is_written(self.table.shape.footprint(extent));
        }
        let cancelled = match self.ops.kind(op) {
            Some(Kind::AppendWriting { cancelled }) => Some(*cancelled),
            _ => None,
        };
        let keep = is_mutant!(self.config.mutant, KeepCancelled);
        let there = self.table.newest(&record.name);
        let refusal = match (cancelled, there) {
            (None, _) if !keep => Some(AppendError::TimedOut),
            (Some(true), _) if !keep => Some(AppendError::Cancelled),
            (_, Some((other, there))) if there == record.generation => Some(AppendError::Exists(other)),
            (_, Some((_, there))) if there > record.generation => Some(AppendError::Stale { newest: there }),
            _ => None,
        };
        if let Some(refusal) = refusal {
            self.table.remove_parts(&parts);
            self.table.tombstones.insert(id, Tombstone { copies: 1, at: None });
            self.ops.set(op, Kind::AppendSettling(Err(refusal)));
            return self.queue_note(Note::Forget(id), Some(Waiter(op)), None);
        }
        self.stats.appends += 1;
        self.stats.appended_bytes += record.payload_bytes;
        let kept = cancelled == Some(true);
        let result = if kept { Err(AppendError::Cancelled) } else { Ok(id) };
        self.ops.set(op, Kind::AppendSettling(result));
        match there {
            // The older generation is removed now. The newer is answered when the tombstone is durable.
            Some((older, _)) => {
                self.delete(older, Some(Waiter(op)), Some(Left::Superseded));
                if is_mutant!(self.config.mutant, AnswerBeforeSuperseded) {
                    self.note_durable(op);
                }
            }
            None => self.note_durable(op),
        }
        let touch = self.table.next_touch();
        let sums = if parts.is_empty() { sums } else { Arc::default() };
        let location = Location { segment, offset, header_bytes, extent, sequence, touch };
        self.table.insert(id, Live::new(record, sums, parts, location));
    }

    fn notes_durable(&mut self, notes: Vec<Queued>, number: u32, sequence: u64) {
        self.notes.is_durable(notes.len());
        for Queued { note, waiter, ticket, left } in notes {
            self.tickets.end(ticket);
            match note {
                Note::Forget(id) => {
                    if let Some(tombstone) = self.table.tombstones.get_mut(&id) {
                        tombstone.at = Some(number);
                    }
                    if let Some(left) = left {
                        self.evicting.remove(&id);
                        self.disk.event(Event::Left(left, vec![id]));
                    }
                }
                Note::Attributes { id, .. } => {
                    if let Some(live) = self.table.records.get_mut(&id)
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
        let Some(kind) = self.ops.kind_mut(op) else { return };
        let answer = match kind {
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

/// Adds a record to a segment and to the parts of a write.
fn add_record(table: &mut Table, append: Append, number: u32, offset: u64, parts: &mut Vec<Part>) -> Member {
    let sequence = table.sequence();
    let id = RecordId(sequence);
    let body = Body::Record { id, record: append.record.clone(), sums: Arc::clone(&append.sums) };
    let header = table.add_entry(number, offset, sequence, body);
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
