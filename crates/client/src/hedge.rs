//! Detects reads that stall, and wakes the session of a get when nothing arrives.
//!
//! `session` makes the decisions: [`Paces`](crate::paces::Paces) says how long to wait and which
//! nodes to use last, and the session says what to read instead. Reads of mapped memory do not stall, and
//! cost nothing here.

use std::collections::BTreeMap;
use std::sync::Arc;

use tiffin_session::{Get as Session, NeedId, ReadResult};
use tiffin_transport::hedge::{BufferOwners, ReadControl};
use tiffin_transport::{Outcome, TransferError};
use tiffin_types::SegmentId;
use tokio::time::Instant;

use crate::Deadline;
use crate::inner::Inner;

/// The reads of one get that may stall.
pub(crate) struct Flights<'i> {
    inner: &'i Inner,
    deadline: Deadline,
    /// Number of items of the get.
    items: usize,
    owners: Option<Arc<BufferOwners>>,
    flights: BTreeMap<u64, Flight>,
    next: u64,
}

struct Flight {
    segment: SegmentId,
    watch: Arc<ReadControl>,
    /// The items that it reads, and the read of each.
    reads: Vec<(usize, NeedId)>,
    began_us: u64,
    arrivals: u64,
    is_counted: bool,
    is_late: bool,
}

impl<'i> Flights<'i> {
    pub(crate) fn new(inner: &'i Inner, items: usize, deadline: Deadline) -> Self {
        Self { inner, deadline, items, owners: None, flights: BTreeMap::new(), next: 0 }
    }

    /// A read of one node begins. A read that cannot stall is only prevented from filling a buffer that
    /// another read fills.
    pub(crate) fn begin(
        &mut self,
        session: &mut Session,
        segment: SegmentId,
        reads: &[(usize, NeedId)],
        can_stall: bool,
    ) -> Option<(u64, Arc<ReadControl>)> {
        if !can_stall && self.owners.is_none() {
            return None;
        }
        let mut began_us = 0;
        if can_stall {
            let (now_us, wait_us) = self.inner.paces.begins(segment, self.deadline);
            reads.iter().for_each(|(_, id)| session.watch(*id, now_us, wait_us));
            began_us = now_us;
        }
        let owners = self.owners.get_or_insert_with(|| Arc::new(BufferOwners::new(self.items)));
        let ops = reads.iter().map(|(item, id)| (*item, id.0)).collect();
        let watch = Arc::new(ReadControl::new(Arc::clone(owners), ops));
        self.next += 1;
        let flight = Flight {
            segment,
            watch: Arc::clone(&watch),
            reads: reads.to_vec(),
            began_us,
            arrivals: 0,
            is_counted: !can_stall,
            is_late: false,
        };
        self.flights.insert(self.next, flight);
        Some((self.next, watch))
    }

    /// Stops a read, and the others of its node.
    pub(crate) fn stop(&mut self, id: NeedId) {
        let reads = |it: &&Flight| it.reads.iter().any(|(_, read)| *read == id);
        self.flights.values().find(reads).into_iter().for_each(|it| it.watch.stop());
    }

    /// When to check next.
    pub(crate) fn wake(&self, session: &Session) -> Instant {
        let due_us = if self.flights.is_empty() { None } else { session.due_us() };
        self.inner.paces.instant(due_us, self.deadline)
    }

    /// Checks whether anything has arrived.
    pub(crate) fn tick(&mut self, session: &mut Session) {
        let now_us = self.inner.paces.now_us();
        for flight in self.flights.values_mut() {
            let arrivals = flight.watch.arrivals();
            if std::mem::replace(&mut flight.arrivals, arrivals) != arrivals {
                for (_, id) in &flight.reads {
                    flight.is_late |= session.progressed(*id, now_us);
                }
                flight.count(self.inner);
            }
        }
        for segment in session.tick(now_us) {
            self.inner.paces.stalled(segment, now_us, || self.inner.nodes.name(segment));
        }
    }

    /// Reads of one node ended.
    pub(crate) fn end(
        &mut self,
        session: &mut Session,
        number: Option<u64>,
        reads: Vec<(usize, NeedId)>,
        outcomes: Vec<Outcome>,
    ) {
        let flight = number.and_then(|it| self.flights.remove(&it));
        let has_yielded = flight.is_some_and(|mut flight| {
            flight.is_late |= reads.iter().any(|(_, id)| session.is_stalled(*id));
            flight.count(self.inner);
            flight.watch.is_stopped() || flight.watch.has_yielded()
        });
        let mut ended = reads.into_iter().zip(outcomes).peekable();
        while let Some(((item, id), mut outcome)) = ended.next() {
            // Pieces of one object are adjacent.
            while let Some((_, other)) = ended.next_if(|((_, other), _)| *other == id) {
                outcome = both(outcome, other);
            }
            session.read(id, result_of(outcome, has_yielded));
            // A read whose result counts keeps ownership of its buffer.
            if !session.is_item_done(item)
                && let Some(owners) = &self.owners
            {
                owners.release(item, id.0);
            }
        }
    }
}

impl Flight {
    /// Reports the latency of the first byte, once.
    fn count(&mut self, inner: &Inner) {
        if let Some(first) = self.watch.first_arrival().filter(|_| !self.is_counted) {
            self.is_counted = true;
            inner.paces.answered(self.segment, self.began_us, first, self.is_late);
        }
    }
}

/// The combined outcome of two pieces of one object: if one is stale, so is the object.
fn both(one: Outcome, other: Outcome) -> Outcome {
    match other {
        Err(TransferError::Stale) => other,
        other => one.and(other),
    }
}

/// The result of a read for its session.
fn result_of(outcome: Outcome, has_yielded: bool) -> ReadResult {
    match outcome {
        Ok(()) => ReadResult::Valid,
        Err(TransferError::Stale) => ReadResult::Stale,
        Err(TransferError::Lost { .. } | TransferError::Timeout) if has_yielded => ReadResult::Yielded,
        Err(error) => ReadResult::Unreachable(error.to_string()),
    }
}
