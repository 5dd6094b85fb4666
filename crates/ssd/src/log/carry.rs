//! Moves entries from one segment to another: payload first, in chunks, then the header, which makes the copy
//! valid. [`Reclaim`](super::reclaim::Reclaim) decides which entries are moved.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::commit::{Batch, Commit, Member};
use super::disk::{Disk, Io};
use super::table::{Location, Table};
use super::{Checks, Done, Effect, Into, Part};
use crate::layout::{Body, CHUNK_BYTES, Entry, PartHead, SUM_BYTES, blocks_up, sum_bytes};
use crate::mutant::is_mutant;
use crate::types::{RecordId, StageId};

/// A record or part that is being moved.
#[derive(Debug)]
struct Carry {
    id: RecordId,
    /// The header of a part.
    part: Option<PartHead>,
    /// The sequence number of the copy that is moved. If it has changed at the end, the move is void.
    from: u64,
    from_at: u64,
    segment: u32,
    offset: u64,
    sequence: u64,
    extent: u64,
    header_bytes: u64,
    compact: u64,
    payload_bytes: u64,
    sums: Arc<[u64]>,
    position: u64,
    stage: Option<StageId>,
    #[cfg(feature = "mutants")]
    record: Option<crate::types::Record>,
}

impl Carry {
    /// The move of a record or part out of the victim. `None` if it is not there any more.
    fn new(table: &Table, id: RecordId, victim: u32) -> Option<Self> {
        if let Some(piece) = table.pieces.get(&id).filter(|piece| piece.location.segment == victim) {
            return Some(Self {
                id,
                part: Some(piece.head),
                from: piece.location.sequence,
                from_at: payload_at(table, piece.location),
                segment: 0,
                offset: 0,
                sequence: 0,
                extent: piece.location.extent,
                header_bytes: piece.location.header_bytes,
                compact: Entry::part_bytes(piece.sums.len() as u64),
                payload_bytes: piece.head.bytes,
                sums: Arc::clone(&piece.sums),
                position: 0,
                stage: None,
                #[cfg(feature = "mutants")]
                record: None,
            });
        }
        let live = table.records.get(&id).filter(|live| live.location.segment == victim)?;
        let (extent, header_bytes, compact) = live.extent_with(&live.record);
        let follows = if live.parts.is_empty() { live.record.payload_bytes } else { 0 };
        Some(Self {
            id,
            part: None,
            from: live.location.sequence,
            from_at: payload_at(table, live.location),
            segment: 0,
            offset: 0,
            sequence: 0,
            extent,
            header_bytes,
            compact,
            payload_bytes: follows,
            sums: Arc::clone(&live.sums),
            position: 0,
            stage: None,
            #[cfg(feature = "mutants")]
            record: live.parts.is_empty().then(|| live.record.clone()),
        })
    }

    /// Whether the entry is still where it is moved from.
    fn is_current(&self, table: &Table) -> bool {
        let live = table.records.get(&self.id).map(|live| live.location.sequence);
        let piece = table.pieces.get(&self.id).map(|piece| piece.location.sequence);
        live.or(piece) == Some(self.from)
    }

    /// The header of the new copy, if the entry still exists and its size has not changed.
    fn body(&self, table: &Table) -> Option<Body> {
        let (id, sums) = (self.id, Arc::clone(&self.sums));
        #[cfg(feature = "mutants")]
        if let Some(record) = &self.record
            && is_mutant!(table.mutant, CarryForgotten)
        {
            return Some(Body::Record { id, record: record.clone(), sums });
        }
        if !self.is_current(table) {
            return None;
        }
        if let Some(part) = self.part {
            return Some(Body::Part { id, part, sums });
        }
        let live = table.records.get(&id)?;
        let (.., compact) = live.extent_with(&live.record);
        let record = live.record.clone();
        let body = match live.parts.is_empty() {
            true => Body::Record { id, record, sums },
            false => Body::Spanning { id, record, parts: Arc::clone(&live.parts) },
        };
        (compact == self.compact).then_some(body)
    }

    /// The bytes of the next read or write.
    fn chunk_bytes(&self) -> u64 {
        CHUNK_BYTES.min(self.payload_bytes - self.position)
    }

    #[cfg(feature = "mutants")]
    fn resurrect(self, table: &mut Table) {
        let Self { id, segment, offset, header_bytes, extent, sequence, sums, record, .. } = self;
        let Some(record) = record else { return };
        let gone = table.find(&record.name).is_none();
        if is_mutant!(table.mutant, CarryForgotten) && gone {
            let copies = table.tombstones.remove(&id).map_or(1, |tombstone| tombstone.copies);
            let location = Location { segment, offset, header_bytes, extent, sequence, touch: 0 };
            let mut live = super::table::Live::new(record, sums, Arc::default(), location);
            live.copies = copies;
            table.insert(id, live);
        }
    }
}

/// The moves in progress, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Carries {
    carries: BTreeMap<u64, Carry>,
    /// The last number of a move or a stage.
    last_number: u64,
    moved_bytes: u64,
}

/// What follows from the end of a read.
pub(super) enum CarryRead {
    /// The move continues, or was void.
    Done,
    /// The record is damaged.
    Corrupt(RecordId),
    /// A later read may succeed.
    Failed,
}

impl Carries {
    pub(super) fn len(&self) -> usize {
        self.carries.len()
    }

    pub(super) fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Starts to move an entry out of a segment. False if there is no space yet.
    pub(super) fn start(&mut self, table: &mut Table, disk: &mut Disk, id: RecordId, victim: u32) -> bool {
        let Some(mut carry) = Carry::new(table, id, victim) else { return true };
        let place = table.place(disk, carry.extent, carry.compact, true);
        let Some((segment, offset)) = place else { return false };
        (carry.segment, carry.offset) = (segment, offset);
        let number = self.next_number();
        self.carries.insert(number, carry);
        self.go_on(table, disk, number);
        true
    }

    /// Reads the next bytes of an entry, or writes its header after the last.
    fn go_on(&mut self, table: &mut Table, disk: &mut Disk, number: u64) {
        let stage = StageId(self.next_number());
        let Some(carry) = self.carries.get_mut(&number) else { return };
        if carry.position == carry.payload_bytes {
            return self.write_header(table, disk, number);
        }
        carry.stage = Some(stage);
        let at = carry.from_at + carry.position;
        let sum_bytes = sum_bytes(carry.payload_bytes, carry.sums.len()).unwrap_or(SUM_BYTES);
        let first = (carry.position / sum_bytes) as usize;
        let checks = Checks { sums: Arc::clone(&carry.sums), sum_bytes, first };
        disk.read(Io::CarryRead(number), at, carry.chunk_bytes(), Into::Stage { stage, checks });
    }

    pub(super) fn read_done(
        &mut self,
        table: &mut Table,
        disk: &mut Disk,
        number: u64,
        result: &Done,
    ) -> CarryRead {
        let Some(carry) = self.carries.get(&number) else { return CarryRead::Done };
        let Some(stage) = carry.stage else { return CarryRead::Done };
        match result {
            Done::Ok | Done::Bytes(_) => {}
            Done::Corrupt => {
                let (same, of) = (carry.is_current(table), carry.part.map_or(carry.id, |part| part.of));
                self.abort(table, disk, number);
                return if same { CarryRead::Corrupt(of) } else { CarryRead::Done };
            }
            Done::Failed(_) => {
                self.abort(table, disk, number);
                return CarryRead::Failed;
            }
        }
        let len = carry.chunk_bytes();
        let at = table.shape.at(carry.segment, carry.offset + carry.header_bytes + carry.position);
        let mut parts = vec![Part::Stage { stage, len }];
        if blocks_up(len) > len {
            parts.push(Part::Zeros(blocks_up(len) - len));
        }
        self.moved_bytes += blocks_up(len);
        disk.write_for(Io::CarryWrite(number), at, parts);
        CarryRead::Done
    }

    pub(super) fn write_done(&mut self, table: &mut Table, disk: &mut Disk, number: u64) {
        let Some(carry) = self.carries.get_mut(&number) else { return };
        carry.position += carry.chunk_bytes();
        if let Some(stage) = carry.stage.take() {
            disk.push(Effect::Unstage { stage });
        }
        self.go_on(table, disk, number);
    }

    /// Writes the header after the payload. It makes the copy valid, with the current attributes.
    fn write_header(&mut self, table: &mut Table, disk: &mut Disk, number: u64) {
        let Some(carry) = self.carries.get_mut(&number) else { return };
        let Some(body) = carry.body(table) else { return self.abort(table, disk, number) };
        carry.sequence = table.sequence();
        if let Some(live) = table.records.get_mut(&carry.id) {
            live.copies += 1;
        } else if let Some(tombstone) = table.tombstones.get_mut(&carry.id) {
            tombstone.copies += 1;
        }
        let Carry { segment, offset, sequence, .. } = *carry;
        let header = table.add_entry(segment, offset, sequence, body);
        self.moved_bytes += header.len() as u64;
        let batch = Batch { segment, bytes: 0, members: vec![Member::Carry { carry: number }] };
        disk.write(table.shape.at(segment, offset), vec![Part::Bytes(header)], Commit::Batch(batch));
        if is_mutant!(table.mutant, EraseBeforeCarried) {
            self.durable(table, number);
        }
    }

    /// Replaces the old copy by the new one, which is durable.
    pub(super) fn durable(&mut self, table: &mut Table, number: u64) {
        let Some(carry) = self.carries.remove(&number) else { return };
        if !carry.is_current(table) {
            #[cfg(feature = "mutants")]
            carry.resurrect(table);
            return;
        }
        let Carry { id, segment, offset, sequence, extent, header_bytes, .. } = carry;
        let moved = |from: Location| Location { segment, offset, header_bytes, extent, sequence, ..from };
        let (from, to, protected) = if let Some(piece) = table.pieces.get_mut(&id) {
            let from = piece.location;
            piece.location = moved(from);
            (from, piece.location, piece.protected)
        } else if let Some(live) = table.records.get_mut(&id) {
            let from = live.location;
            live.location = moved(from);
            live.attributes_segment = live.attributes_segment.filter(|_| live.attributes_sequence > sequence);
            (from, live.location, live.record.protected)
        } else {
            return;
        };
        table.count(from, protected, false);
        table.count(to, protected, true);
    }

    /// Aborts a move before its header is written; the allocated space stays unused.
    fn abort(&mut self, table: &mut Table, disk: &mut Disk, number: u64) {
        let Some(carry) = self.carries.remove(&number) else { return };
        if let Some(stage) = carry.stage {
            disk.push(Effect::Unstage { stage });
        }
        let segment = table.segment(carry.segment);
        segment.pending -= 1;
        segment.index_bytes -= carry.compact;
    }

    /// Drops all moves, because the disk has failed.
    pub(super) fn clear(&mut self, disk: &mut Disk) {
        for carry in std::mem::take(&mut self.carries).into_values() {
            if let Some(stage) = carry.stage {
                disk.push(Effect::Unstage { stage });
            }
        }
    }
}

/// Where the payload of an entry begins on the disk.
fn payload_at(table: &Table, location: Location) -> u64 {
    table.shape.at(location.segment, location.offset + location.header_bytes)
}
