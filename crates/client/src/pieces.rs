//! Writes a reserved object piece by piece, and commits it afterwards.
//!
//! **Invariant:** a piece is written while the reservation's gate is held for reading. A put, commit or
//! release takes the gate for writing first. So no copy is in progress when the object becomes readable or
//! its memory is released.
//!
//! A commit names the bytes that the pieces have written. It cannot reserve again as a put does, because
//! the client no longer has the bytes: if the node gave up the reservation, the commit fails.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use tiffin_session::{CallFailure, Need, Put as Session, PutOutcome, PutRequest, WriteResult};
use tiffin_transport::{SourceBuf, TransferError, WriteOp};
use tiffin_types::message::ClientToMaster;
use tiffin_types::{Location, SegmentId};
use tokio::time::timeout_at;

use crate::inner::{Inner, call_failure};
use crate::link::InPauses;
use crate::put::{self, Done, Failures};
use crate::reservations::PutReservations;
use crate::reserved::{Reserved, SpaceRequest};
use crate::running::Running;
use crate::{Deadline, Error, Put, Stored, batch, names};

/// Bytes of a reserved object, to be written at an offset.
#[derive(Clone, Debug)]
pub struct Piece<'a> {
    /// The offset of the first byte.
    pub offset: u64,
    /// The bytes, in order.
    pub sources: Vec<SourceBuf<'a>>,
}

impl Piece<'_> {
    /// The offset after the last byte; `None` if it overflows.
    fn end(&self) -> Option<u64> {
        self.sources.iter().try_fold(self.offset, |end, source| end.checked_add(source.len() as u64))
    }
}

pub(crate) async fn write(
    inner: &Inner,
    items: &[(&Reserved, Piece<'_>)],
    deadline: Deadline,
) -> Vec<Result<(), Error>> {
    // One guard per object: a second one would wait for a commit that waits for the first one.
    let mut gates = BTreeMap::new();
    let (mut results, mut ops) = (Vec::with_capacity(items.len()), BTreeMap::new());
    for (item, (reserved, piece)) in items.iter().enumerate() {
        if let Entry::Vacant(gate) = gates.entry(&raw const **reserved as usize) {
            gate.insert(timeout_at(deadline.instant(), reserved.gate.read()).await.ok());
        }
        let is_open = gates.get(&(&raw const **reserved as usize)).is_some_and(Option::is_some);
        let checked = match is_open {
            true => reserved.locations_for(inner, piece.end()),
            false => Err(Error::timeout("waiting to write")),
        };
        results.push(checked.map(|locations| {
            for location in locations {
                ops.entry(location.segment).or_insert_with(Vec::new).push((item, op(location, piece)));
            }
        }));
    }
    let mut running = Running::new();
    for (segment, ops) in ops {
        running.push(write_to(inner, segment, ops, deadline));
    }
    while let Ok(Some(written)) = timeout_at(deadline.instant(), running.next()).await {
        for (item, failure) in written {
            let (Some(result), Some(error)) = (results.get_mut(item), failure) else { continue };
            *result = Err(error);
        }
    }
    // A copy that is still in progress ends with this future; its item did not succeed.
    if deadline.has_passed() {
        let late = |it: &mut Result<(), Error>| *it = it.clone().and(Err(Error::timeout("writing")));
        results.iter_mut().for_each(late);
    }
    results
}

fn op<'a>(location: Location, piece: &Piece<'a>) -> WriteOp<'a> {
    let (slot, stamp) = (location.slot.0, location.stamp.0);
    WriteOp { slot, stamp, offset: piece.offset, sources: piece.sources.clone() }
}

/// Writes to one node. Returns for each item why it failed, if it did.
async fn write_to(
    inner: &Inner,
    segment: SegmentId,
    ops: Vec<(usize, WriteOp<'_>)>,
    deadline: Deadline,
) -> Vec<(usize, Option<Error>)> {
    let (items, ops): (Vec<_>, Vec<_>) = ops.into_iter().unzip();
    let route = match inner.nodes.route_if(segment, deadline, InPauses::Wait).await {
        Ok(route) => route,
        Err(error) => return items.into_iter().map(|item| (item, Some(error.clone()))).collect(),
    };
    let outcomes = route.write(&ops, deadline).await;
    let failure = |error: TransferError| match error {
        TransferError::Device(_) => Error::Device { what: error.to_string() },
        error => Error::Unreachable { what: error.to_string() },
    };
    items.into_iter().zip(outcomes).map(|(item, outcome)| (item, outcome.err().map(failure))).collect()
}

pub(crate) async fn commit(
    inner: &Inner,
    items: &[&Reserved],
    deadline: Deadline,
) -> Vec<Result<Stored, Error>> {
    let mut results = Vec::with_capacity(items.len());
    for piece in batch::pieces(items.iter().map(|it| it.key())) {
        let items = items.get(piece).unwrap_or_default();
        results.extend(commit_piece(inner, items, deadline).await);
    }
    results
}

async fn commit_piece(inner: &Inner, items: &[&Reserved], deadline: Deadline) -> Vec<Result<Stored, Error>> {
    let held = PutReservations::new(&inner.reservations, &inner.chores);
    let (mut requests, mut puts, mut refused) = (Vec::new(), Vec::new(), Vec::with_capacity(items.len()));
    let mut written = BTreeSet::new();
    for reserved in items {
        let gate = timeout_at(deadline.instant(), reserved.gate.write()).await;
        let reserved_space = match gate {
            Ok(_alone) => reserved.take_written(inner),
            Err(_) => Err(Error::timeout("waiting to commit")),
        };
        match reserved_space {
            Ok((SpaceRequest { key, len, options }, reserved_space)) => {
                let ready = reserved_space.hand_over(&held);
                written.extend(ready.iter().map(|it| it.location));
                let options = put::with_at_least_one_copy(options);
                requests.push(PutRequest { key: key.clone(), len: *len, options: options.clone(), ready });
                puts.push((Put { key: key.clone(), parts: Vec::new(), options }, *len));
                refused.push(None);
            }
            Err(error) => refused.push(Some(error)),
        }
    }
    let mut stored = run(inner, &held, requests, &puts, &written, deadline).await.into_iter();
    let mut next = || stored.next().unwrap_or_else(|| Err(Error::misfit()));
    refused.into_iter().map(|it| it.map_or_else(&mut next, Err)).collect()
}

/// Runs the session of a put whose bytes are already written.
async fn run(
    inner: &Inner,
    held: &PutReservations<'_>,
    requests: Vec<PutRequest>,
    puts: &[(Put<'_>, u64)],
    written: &BTreeSet<Location>,
    deadline: Deadline,
) -> Vec<Result<Stored, Error>> {
    let mut session =
        Session::new(requests).publishing(inner.nodes.same_host()).confirming(names::wait_ms(deadline));
    let (mut failures, mut running) = (Failures::new(), Running::new());
    let mut is_late = deadline.has_passed();
    while !is_late {
        while let Some(need) = session.poll() {
            match need {
                Need::Write { id, reservation, .. } => {
                    let is_there = written.contains(&reservation.location);
                    session.written(id, if is_there { WriteResult::Written } else { WriteResult::Stale });
                }
                // There are no bytes to write into other memory.
                Need::AskMaster { id, request: ClientToMaster::Reserve(_) } => {
                    let what = "the node gave up the reserved space and the bytes written there";
                    failures.insert(id, Error::Unreachable { what: what.to_owned() });
                    session.replied(id, Err(CallFailure::Unreachable));
                }
                Need::AskMaster { id, request } => {
                    running.push(put::ask_master(inner, held, id, request, deadline));
                }
                Need::AskNode { id, segment, request, waits } => {
                    let peer = (segment, waits);
                    running.push(put::ask_node(inner, held, id, peer, request, None, deadline));
                }
                Need::Read { .. } | Need::Stop { .. } => {}
            }
        }
        match timeout_at(deadline.instant(), running.next()).await {
            Ok(Some(Done::Called(id, Ok(reply)))) => session.replied(id, Ok(reply)),
            Ok(Some(Done::Called(id, Err(error)))) => {
                session.replied(id, Err(call_failure(&error)));
                failures.insert(id, error);
            }
            Ok(Some(Done::Unwritten(id, ..))) => session.replied(id, Err(CallFailure::Unreachable)),
            Ok(Some(Done::Written(..))) => {}
            Ok(None) => break,
            Err(_) => is_late = true,
        }
    }
    drop(running);
    let outcomes = session.into_outcomes();
    for ((put, len), outcome) in puts.iter().zip(&outcomes) {
        if let PutOutcome::Stored { generation, replicas, .. } = outcome {
            inner.locations.lock().learn_put(&put.key, *generation, *len, replicas);
        }
    }
    let answers = outcomes.into_iter().zip(puts);
    answers.map(|(outcome, (put, _))| put::answer(outcome, put, &failures, is_late)).collect()
}
