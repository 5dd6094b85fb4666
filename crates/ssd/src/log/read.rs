//! Reads: concurrent readers of the same bytes share one disk read, and a wrong checksum removes the record.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::disk::{Disk, Io};
use super::ops::Kind;
use super::table::{Piece, Table};
use super::{Checks, Done, Effect, Health, Into, Log};
use crate::layout::{BLOCK, SUM_BYTES, sum_bytes};
use crate::mutant::is_mutant;
use crate::types::{Answer, Event, Fault, IoId, Left, OpId, ReadError, RecordId, Span, Tick};

/// The disk reads for a range of a record, one for each part, and the operations that wait for them.
#[derive(Debug)]
struct Flight {
    id: RecordId,
    op: OpId,
    span: Span,
    joined: Vec<(OpId, Span)>,
    /// Reads that have not ended.
    left: usize,
    is_corrupt: bool,
    fault: Option<Fault>,
}

/// A contiguous range of a payload on the disk.
struct Run {
    segment: u32,
    /// Where it begins in the segment.
    offset: u64,
    /// Where it begins in the payload.
    start: u64,
    bytes: u64,
    sums: Arc<[u64]>,
}

/// The reads in progress.
#[derive(Debug, Default)]
pub(super) struct Reads {
    last_flight: u64,
    flights: BTreeMap<u64, Flight>,
    /// The read in flight that other readers of a record may join.
    shared: BTreeMap<RecordId, u64>,
    /// The number of operations that wait.
    waiting: usize,
}

impl Reads {
    /// An operation was answered.
    pub(super) fn end_one(&mut self) {
        self.waiting -= 1;
    }

    /// Lets an operation wait for a read in flight, if that brings its bytes.
    fn join(&mut self, op: OpId, id: RecordId, span: Span) -> bool {
        let flight = self.shared.get(&id).and_then(|flight| self.flights.get_mut(flight));
        let flight = flight.filter(|flight| covers(flight.span, span));
        flight.map(|flight| flight.joined.push((op, span))).is_some()
    }

    /// Starts the disk reads of a range, in whole checksum blocks.
    fn start(&mut self, table: &mut Table, disk: &mut Disk, op: OpId, id: RecordId, span: Span) {
        self.last_flight += 1;
        let number = self.last_flight;
        let end = span.offset + span.len;
        let mut left = 0;
        for run in runs(table, id) {
            let (from, to) = (span.offset.max(run.start), end.min(run.start + run.bytes));
            if from >= to {
                continue;
            }
            left += 1;
            let sum_bytes = sum_bytes(run.bytes, run.sums.len()).unwrap_or(SUM_BYTES);
            let first = (from - run.start) / sum_bytes;
            let begin = first * sum_bytes;
            let len = ((to - run.start).div_ceil(sum_bytes) * sum_bytes).min(run.bytes) - begin;
            let at = table.shape.at(run.segment, run.offset + begin);
            assert_eq!(at % BLOCK, 0, "unaligned payload at {at}");
            table.segment(run.segment).readers += 1;
            let into = Into::Op {
                op,
                span: Span { offset: from - run.start - begin, len: to - from },
                to: from - span.offset,
                checks: Checks { sums: run.sums, sum_bytes, first: first as usize },
            };
            disk.read(Io::Read { flight: number, segment: run.segment }, at, len, into);
        }
        let flight = Flight { id, op, span, joined: Vec::new(), left, is_corrupt: false, fault: None };
        self.flights.insert(number, flight);
        let other = self.shared.get(&id).and_then(|other| self.flights.get(other));
        if other.is_none_or(|other| covers(span, other.span)) {
            self.shared.insert(id, number);
        }
    }

    /// Handles the end of a disk read. Returns the flight if it was its last.
    fn done(&mut self, number: u64, result: Done, serve_corrupt: bool) -> Option<Flight> {
        let flight = self.flights.get_mut(&number)?;
        flight.left -= 1;
        match result {
            Done::Ok | Done::Bytes(_) => {}
            Done::Corrupt => flight.is_corrupt |= !serve_corrupt,
            Done::Failed(fault) => flight.fault = Some(fault),
        }
        if flight.left > 0 {
            return None;
        }
        let flight = self.flights.remove(&number)?;
        if self.shared.get(&flight.id) == Some(&number) {
            self.shared.remove(&flight.id);
        }
        Some(flight)
    }
}

impl Log {
    pub(super) fn ask_read(&mut self, op: OpId, id: RecordId, span: Span, deadline: Tick) {
        if let Err(error) = self.may_read(id, span) {
            return self.disk.answer(op, Answer::Read(Err(error)));
        }
        self.table.touch(id);
        if span.len == 0 {
            return self.disk.answer(op, Answer::Read(Ok(0)));
        }
        self.reads.waiting += 1;
        self.ops.begin(op, deadline, Kind::Read);
        if self.reads.join(op, id, span) {
            self.stats.reads_shared += 1;
        } else {
            self.reads.start(&mut self.table, &mut self.disk, op, id, span);
        }
    }

    fn may_read(&self, id: RecordId, span: Span) -> Result<(), ReadError> {
        if matches!(self.health, Health::Recovering | Health::Unusable(_)) {
            return Err(ReadError::Busy);
        }
        let Some(live) = self.table.records.get(&id) else { return Err(ReadError::Gone) };
        let payload_bytes = live.record.payload_bytes;
        if span.offset.checked_add(span.len).is_none_or(|end| end > payload_bytes) {
            return Err(ReadError::OutOfRange(span, payload_bytes));
        }
        if self.reads.waiting >= self.config.limits.reads_max { Err(ReadError::Busy) } else { Ok(()) }
    }

    pub(super) fn flight_done(&mut self, io: IoId, number: u64, segment: u32, result: Done) {
        self.table.segment(segment).readers -= 1;
        self.table.drained(segment);
        let serve_corrupt = is_mutant!(self.config.mutant, ServeCorrupt);
        let Some(flight) = self.reads.done(number, result, serve_corrupt) else { return };
        let result = match flight.fault {
            _ if flight.is_corrupt => Err(self.corrupt(flight.id)),
            Some(fault) => Err(ReadError::Failed(fault)),
            None => Ok(()),
        };
        for (op, span) in flight.joined {
            if result.is_ok() && self.ops.contains(op) {
                let from = Span { offset: span.offset - flight.span.offset, len: span.len };
                self.disk.push(Effect::Copy { io, to: op, from });
            }
            self.read_answer(op, span, result.clone());
        }
        self.read_answer(flight.op, flight.span, result);
    }

    fn read_answer(&mut self, op: OpId, span: Span, result: Result<(), ReadError>) {
        if result.is_ok() && self.ops.contains(op) {
            self.stats.reads += 1;
            self.stats.read_bytes += span.len;
        }
        self.answer(op, Answer::Read(result.map(|()| span.len)));
    }

    /// Removes a record whose bytes do not match their checksums, durably.
    pub(super) fn corrupt(&mut self, id: RecordId) -> ReadError {
        if !self.delete(id, None, None) {
            return ReadError::Gone;
        }
        self.stats.corrupt += 1;
        self.disk.event(Event::Left(Left::Corrupt, vec![id]));
        ReadError::Corrupt
    }
}

/// The ranges of a payload on the disk, in order.
fn runs(table: &Table, id: RecordId) -> Vec<Run> {
    let Some(live) = table.records.get(&id) else { return Vec::new() };
    if live.parts.is_empty() {
        return vec![Run {
            segment: live.location.segment,
            offset: live.location.offset + live.location.header_bytes,
            start: 0,
            bytes: live.record.payload_bytes,
            sums: Arc::clone(&live.sums),
        }];
    }
    let pieces = live.parts.iter().filter_map(|part| table.pieces.get(&part.id));
    let run = |piece: &Piece| Run {
        segment: piece.location.segment,
        offset: piece.location.offset + piece.location.header_bytes,
        start: piece.head.start,
        bytes: piece.head.bytes,
        sums: Arc::clone(&piece.sums),
    };
    pieces.map(run).collect()
}

fn covers(outer: Span, inner: Span) -> bool {
    outer.offset <= inner.offset && inner.offset + inner.len <= outer.offset + outer.len
}
