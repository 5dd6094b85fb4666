//! Reading: one disk read for all who want the same bytes at the same time, and what a bad checksum means.

use super::ops::Kind;
use super::table::State;
use super::{Checks, Done, Effect, Health, Into, Io, Log};
use crate::layout::{BLOCK, Note, SUM_BYTES};
use crate::sabotage::sabotaged;
use crate::types::{Answer, IoId, Left, OpId, ReadError, RecordId, Span, Tick};

/// A disk read, and who waits for it.
#[derive(Debug)]
pub(super) struct Flight {
    id: RecordId,
    segment: u32,
    op: OpId,
    span: Span,
    joined: Vec<(OpId, Span)>,
}

impl Log {
    pub(super) fn ask_read(&mut self, op: OpId, id: RecordId, span: Span, deadline: Tick) {
        let payload_bytes = match self.may_read(id, span) {
            Ok(payload_bytes) => payload_bytes,
            Err(error) => return self.refuse(op, Answer::Read(Err(error))),
        };
        self.touch(id);
        if span.len == 0 {
            return self.refuse(op, Answer::Read(Ok(0)));
        }
        self.reads += 1;
        self.begin(op, deadline, Kind::Read);
        if let Some(io) = self.flights.get(&id)
            && let Some(Io::Read(flight)) = self.ios.get_mut(io)
            && covers(flight.span, span)
        {
            flight.joined.push((op, span));
            self.stats.reads_shared += 1;
            return;
        }
        self.take_off(op, id, span, payload_bytes);
    }

    fn may_read(&self, id: RecordId, span: Span) -> Result<u64, ReadError> {
        if matches!(self.health, Health::Recovering | Health::Unusable(_)) {
            return Err(ReadError::Busy);
        }
        let Some(live) = self.records.get(&id) else { return Err(ReadError::Gone) };
        let payload_bytes = live.record.payload_bytes;
        if span.offset.checked_add(span.len).is_none_or(|end| end > payload_bytes) {
            return Err(ReadError::OutOfRange(span, payload_bytes));
        }
        if self.reads >= self.config.limits.reads_max { Err(ReadError::Busy) } else { Ok(payload_bytes) }
    }

    /// Reads whole blocks of the checksum around the span.
    fn take_off(&mut self, op: OpId, id: RecordId, span: Span, payload_bytes: u64) {
        let Some(live) = self.records.get(&id) else { return };
        let first = span.offset / SUM_BYTES;
        let begin = first * SUM_BYTES;
        let end = ((span.offset + span.len).div_ceil(SUM_BYTES) * SUM_BYTES).min(payload_bytes);
        let checks = Checks { sums: live.sums.clone(), first: first as usize };
        let (segment, at) = (live.segment, self.at(live.segment, live.offset + live.header_bytes + begin));
        self.segment(segment).readers += 1;
        let flight = Flight { id, segment, op, span, joined: Vec::new() };
        let io = self.io(Io::Read(flight));
        let wider = match self.flights.get(&id).and_then(|io| self.ios.get(io)) {
            Some(Io::Read(other)) => covers(span, other.span),
            _ => true,
        };
        if wider {
            self.flights.insert(id, io);
        }
        assert_eq!(at % BLOCK, 0, "a payload begins at {at}");
        let inner = Span { offset: span.offset - begin, len: span.len };
        self.effects.push(Effect::Read {
            io,
            at,
            len: end - begin,
            into: Into::Op { op, span: inner, checks },
        });
    }

    pub(super) fn flight_done(&mut self, io: IoId, flight: Flight, result: Done) {
        if self.flights.get(&flight.id) == Some(&io) {
            self.flights.remove(&flight.id);
        }
        self.segment(flight.segment).readers -= 1;
        self.drained(flight.segment);
        let result = match result {
            Done::Ok | Done::Bytes(_) => Ok(()),
            Done::Corrupt if sabotaged!(self.config.sabotage, ServeCorrupt) => Ok(()),
            Done::Corrupt => Err(self.corrupt(flight.id)),
            Done::Failed(fault) => Err(ReadError::Failed(fault)),
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

    /// A record's bytes are bad: it goes, and must not come back either.
    pub(super) fn corrupt(&mut self, id: RecordId) -> ReadError {
        let Some(live) = self.remove(id) else { return ReadError::Gone };
        self.stats.corrupt += 1;
        self.tombs.insert(id, super::Tomb { copies: live.copies, at: None });
        self.queue_note(Note::Forget(id), None);
        self.effects.push(Effect::Event(crate::types::Event::Left(Left::Corrupt, vec![id])));
        ReadError::Corrupt
    }

    /// An erased segment is free when its last read has ended.
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
