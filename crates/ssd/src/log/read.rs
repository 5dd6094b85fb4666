//! Reads: concurrent readers of the same bytes share one disk read, and a wrong checksum removes the record.

use std::sync::Arc;

use super::ops::Kind;
use super::table::State;
use super::{Checks, Done, Effect, Health, Into, Io, Log};
use crate::layout::{BLOCK, Note, SUM_BYTES, sum_bytes};
use crate::sabotage::sabotaged;
use crate::types::{Answer, Fault, IoId, Left, OpId, ReadError, RecordId, Span, Tick};

/// The disk reads for a range of a record, one for each part, and the operations that wait for them.
#[derive(Debug)]
pub(super) struct Flight {
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

impl Log {
    pub(super) fn ask_read(&mut self, op: OpId, id: RecordId, span: Span, deadline: Tick) {
        if let Err(error) = self.may_read(id, span) {
            return self.refuse(op, Answer::Read(Err(error)));
        }
        self.touch(id);
        if span.len == 0 {
            return self.refuse(op, Answer::Read(Ok(0)));
        }
        self.reads += 1;
        self.begin(op, deadline, Kind::Read);
        if let Some(flight) = self.shared.get(&id).and_then(|flight| self.flights.get_mut(flight))
            && covers(flight.span, span)
        {
            flight.joined.push((op, span));
            self.stats.reads_shared += 1;
            return;
        }
        self.start_reads(op, id, span);
    }

    fn may_read(&self, id: RecordId, span: Span) -> Result<(), ReadError> {
        if matches!(self.health, Health::Recovering | Health::Unusable(_)) {
            return Err(ReadError::Busy);
        }
        let Some(live) = self.records.get(&id) else { return Err(ReadError::Gone) };
        let payload_bytes = live.record.payload_bytes;
        if span.offset.checked_add(span.len).is_none_or(|end| end > payload_bytes) {
            return Err(ReadError::OutOfRange(span, payload_bytes));
        }
        if self.reads >= self.config.limits.reads_max { Err(ReadError::Busy) } else { Ok(()) }
    }

    /// The ranges of a payload on the disk, in order.
    fn runs(&self, id: RecordId) -> Vec<Run> {
        let Some(live) = self.records.get(&id) else { return Vec::new() };
        if live.parts.is_empty() {
            return vec![Run {
                segment: live.location.segment,
                offset: live.location.offset + live.location.header_bytes,
                start: 0,
                bytes: live.record.payload_bytes,
                sums: Arc::clone(&live.sums),
            }];
        }
        let pieces = live.parts.iter().filter_map(|part| self.pieces.get(&part.id));
        let run = |piece: &super::Piece| Run {
            segment: piece.location.segment,
            offset: piece.location.offset + piece.location.header_bytes,
            start: piece.head.start,
            bytes: piece.head.bytes,
            sums: Arc::clone(&piece.sums),
        };
        pieces.map(run).collect()
    }

    /// Starts the disk reads of a range, in whole checksum blocks.
    fn start_reads(&mut self, op: OpId, id: RecordId, span: Span) {
        let number = self.next_flight;
        self.next_flight += 1;
        let end = span.offset + span.len;
        let mut left = 0;
        for run in self.runs(id) {
            let (from, to) = (span.offset.max(run.start), end.min(run.start + run.bytes));
            if from >= to {
                continue;
            }
            left += 1;
            let sum_bytes = sum_bytes(run.bytes, run.sums.len()).unwrap_or(SUM_BYTES);
            let first = (from - run.start) / sum_bytes;
            let begin = first * sum_bytes;
            let len = ((to - run.start).div_ceil(sum_bytes) * sum_bytes).min(run.bytes) - begin;
            let at = self.at(run.segment, run.offset + begin);
            assert_eq!(at % BLOCK, 0, "unaligned payload at {at}");
            self.segment(run.segment).readers += 1;
            let io = self.io(Io::Read { flight: number, segment: run.segment });
            let into = Into::Op {
                op,
                span: Span { offset: from - run.start - begin, len: to - from },
                to: from - span.offset,
                checks: Checks { sums: run.sums, sum_bytes, first: first as usize },
            };
            self.effects.push(Effect::Read { io, at, len, into });
        }
        let flight = Flight { id, op, span, joined: Vec::new(), left, is_corrupt: false, fault: None };
        self.flights.insert(number, flight);
        let other = self.shared.get(&id).and_then(|other| self.flights.get(other));
        if other.is_none_or(|other| covers(span, other.span)) {
            self.shared.insert(id, number);
        }
    }

    pub(super) fn flight_done(&mut self, io: IoId, number: u64, segment: u32, result: Done) {
        self.segment(segment).readers -= 1;
        self.drained(segment);
        let Some(flight) = self.flights.get_mut(&number) else { return };
        flight.left -= 1;
        match result {
            Done::Ok | Done::Bytes(_) => {}
            Done::Corrupt => flight.is_corrupt |= !sabotaged!(self.config.sabotage, ServeCorrupt),
            Done::Failed(fault) => flight.fault = Some(fault),
        }
        if flight.left > 0 {
            return;
        }
        let Some(flight) = self.flights.remove(&number) else { return };
        if self.shared.get(&flight.id) == Some(&number) {
            self.shared.remove(&flight.id);
        }
        let result = match flight.fault {
            _ if flight.is_corrupt => Err(self.corrupt(flight.id)),
            Some(fault) => Err(ReadError::Failed(fault)),
            None => Ok(()),
        };
        for (op, span) in flight.joined {
            if result.is_ok() && self.ops.contains_key(&op) {
                let from = Span { offset: span.offset - flight.span.offset, len: span.len };
                self.effects.push(Effect::Copy { io, to: op, from });
            }
            self.read_answer(op, span, result.clone());
        }
        self.read_answer(flight.op, flight.span, result);
    }

    fn read_answer(&mut self, op: OpId, span: Span, result: Result<(), ReadError>) {
        if result.is_ok() && self.ops.contains_key(&op) {
            self.stats.reads += 1;
            self.stats.read_bytes += span.len;
        }
        self.answer(op, Answer::Read(result.map(|()| span.len)));
    }

    /// Removes a record whose bytes do not match their checksums, durably.
    pub(super) fn corrupt(&mut self, id: RecordId) -> ReadError {
        let Some(live) = self.remove(id) else { return ReadError::Gone };
        self.stats.corrupt += 1;
        self.tombstones.insert(id, super::Tombstone { copies: live.copies, at: None });
        self.queue_note(Note::Forget(id), None);
        self.effects.push(Effect::Event(crate::types::Event::Left(Left::Corrupt, vec![id])));
        ReadError::Corrupt
    }

    /// Frees an erased segment when its last read has ended.
    pub(super) fn drained(&mut self, number: u32) {
        let segment = self.segment(number);
        if segment.state == State::Draining && segment.readers == 0 {
            *segment = super::Segment::free();
            self.free.insert(number);
        }
    }
}

fn covers(outer: Span, inner: Span) -> bool {
    outer.offset <= inner.offset && inner.offset + inner.len <= outer.offset + outer.len
}
