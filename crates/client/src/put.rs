//! Runs a `session::Put` against connections and transports.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_measure::{Operation, Path};
use tiffin_session::{
    CallFailure, Need, NeedId, Put as Session, PutOutcome, PutRequest, Unreached, WriteResult,
};
use tiffin_transport::{TransferError, WriteOp};
use tiffin_types::message::{
    ClientToMaster, ClientToNode, CommitOutcome, Publish, PublishItem, PutOptions, Reply,
};
use tiffin_types::{Location, Reservation, SegmentId, SlotRef};
use tokio::time::{Instant, timeout_at};

use crate::carried::{self, Carried, Unanswered};
use crate::inner::{Inner, call_failure};
use crate::link::InPauses;
use crate::names;
use crate::reservations::PutReservations;
use crate::reserved::ReservedSpace;
use crate::running::Running;
use crate::{Deadline, Error, Put, PutEffect, SpaceWait, Stored, batch, preallocated};

/// Copying this number of bytes takes about as long as a call to the master.
const LONG_COPY: u64 = 256 << 10;
/// The smallest number of bytes of a mapped write after which the master is called.
const STEP_BYTES_MIN: u64 = 512 << 10;

/// A need of the session that was carried out.
pub(crate) enum Done {
    Called(NeedId, Result<Reply, Error>),
    /// A commit with bytes inside was not sent. These are the slots that it would have named.
    Unwritten(NeedId, Vec<(SegmentId, SlotRef)>, String),
    /// The first writes to one node, and the writes left for it.
    Written(Vec<Written>, Option<(SegmentId, Vec<ToWrite>)>),
}

pub(crate) struct Written {
    id: NeedId,
    item: usize,
    location: Location,
    result: WriteResult,
    /// A device could not copy the bytes.
    device: Option<String>,
}

/// When memory for the next puts is preallocated.
#[derive(PartialEq, Eq)]
enum PreallocateWhen {
    /// These puts take a while to copy; the preallocation runs meanwhile.
    DuringCopy,
    /// The call of these puts would have to wait for the preallocation, so it is sent first.
    AfterCall,
}

impl PreallocateWhen {
    fn with(puts: &[Put<'_>]) -> Self {
        let bytes = puts.iter().fold(0_u64, |sum, put| sum.saturating_add(put.len().unwrap_or(u64::MAX)));
        if bytes >= LONG_COPY { Self::DuringCopy } else { Self::AfterCall }
    }
}

/// How calls of a session failed.
pub(crate) type Failures = BTreeMap<NeedId, Error>;

/// A write that waits for the others to the same node.
pub(crate) type ToWrite = (NeedId, usize, Reservation);
pub(crate) type Writes = BTreeMap<SegmentId, Vec<ToWrite>>;

pub(crate) async fn put(
    inner: &Inner,
    puts: &[Put<'_>],
    space_wait: SpaceWait,
    deadline: Deadline,
) -> Vec<Result<Stored, Error>> {
    put_ready(inner, puts, Vec::new(), space_wait, deadline).await
}

/// Puts into memory that was reserved before: for each put, or for none.
pub(crate) async fn put_ready(
    inner: &Inner,
    puts: &[Put<'_>],
    ready: Vec<ReservedSpace>,
    space_wait: SpaceWait,
    deadline: Deadline,
) -> Vec<Result<Stored, Error>> {
    let mut outcomes = Vec::with_capacity(puts.len());
    let mut ready = ready.into_iter();
    for piece in batch::pieces(puts.iter().map(|put| &put.key)) {
        let puts = puts.get(piece).unwrap_or_default();
        outcomes.extend(drive(inner, puts, &mut ready, space_wait, deadline).await);
    }
    outcomes
}

async fn drive(
    inner: &Inner,
    puts: &[Put<'_>],
    ready: &mut (dyn Iterator<Item = ReservedSpace> + Send),
    space_wait: SpaceWait,
    deadline: Deadline,
) -> Vec<Result<Stored, Error>> {
    // Dropped last: the rest is released when no copy of this put can be in progress.
    let held = &PutReservations::new(&inner.reservations, &inner.chores);
    let requests = puts.iter().map(|put| request(put, space_for(inner, held, put, ready.next()))).collect();
    let session = Session::new(requests).publishing(inner.nodes.same_host());
    let mut session = session.waiting(space_wait.wait_ms(deadline)).confirming(names::wait_ms(deadline));
    let restock = |_: &PreallocateWhen| preallocated::restock(inner, puts);
    let mut failures = Failures::new();
    let mut unwritten = Unwritten::default();
    let mut running = Running::new();
    let began = Instant::now();
    let mut is_late = deadline.instant() <= began;
    let mut preallocate = Some(PreallocateWhen::with(puts));
    let (mut writes, mut last_resorts) = (Writes::new(), BTreeSet::new());
    let mut carried = Carried::default();
    while !is_late {
        while let Some(need) = carried.next_need(inner, puts, &mut session, &mut writes) {
            match need {
                Need::AskMaster { id, request } => {
                    if !matches!(request, ClientToMaster::Reserve(_)) {
                        preallocate.take_if(|it| *it == PreallocateWhen::AfterCall).inspect(restock);
                    }
                    running.push(ask_master(inner, held, id, request, deadline));
                }
                Need::AskNode { id, segment, request, waits } => {
                    let bytes = carried.bytes(puts, segment, &request);
                    preallocate.take_if(|it| *it == PreallocateWhen::AfterCall).inspect(restock);
                    running.push(ask_node(inner, held, id, (segment, waits), request, bytes, deadline));
                }
                Need::Write { id, item, reservation, waits } => {
                    last_resorts.extend(waits.then_some(reservation.location.segment));
                    writes.entry(reservation.location.segment).or_default().push((id, item, reservation));
                }
                Need::Read { .. } | Need::Stop { .. } => {}
            }
        }
        for (segment, writes) in std::mem::take(&mut writes) {
            preallocate.take_if(|it| *it == PreallocateWhen::DuringCopy).inspect(restock);
            running.push(write(inner, puts, (segment, last_resorts.contains(&segment)), writes, deadline));
        }
        match timeout_at(deadline.instant(), running.next()).await {
            Ok(Some(Done::Called(id, Ok(reply)))) => session.replied(id, Ok(reply)),
            Ok(Some(Done::Called(id, Err(error)))) => {
                session.replied(id, Err(call_failure(&error)));
                failures.insert(id, error);
            }
            Ok(Some(Done::Unwritten(id, places, why))) => {
                unwritten.nodes.extend(carried.items(&places).map(|item| (item, why.clone())));
                session.replied(id, Err(CallFailure::Unwritten));
            }
            Ok(Some(Done::Written(results, left))) => {
                left.into_iter().for_each(|(segment, left)| writes.entry(segment).or_default().extend(left));
                pass_results(inner, &mut session, held, &mut unwritten, results);
            }
            Ok(None) => break,
            Err(_) => is_late = true,
        }
    }
    drop(running);
    let outcomes = session.into_outcomes();
    let is_late = is_late || deadline.instant() <= measure(inner, puts, &outcomes, began);
    learn(inner, puts, &outcomes);
    answers(puts, outcomes, unwritten, &failures, is_late)
}

/// Passes the results of writes to the session.
fn pass_results(
    inner: &Inner,
    session: &mut Session,
    held: &PutReservations<'_>,
    unwritten: &mut Unwritten,
    results: Vec<Written>,
) {
    for Written { id, item, location, result, device } in results {
        unwritten.devices.extend(device.map(|why| (item, why)));
        match &result {
            WriteResult::Written | WriteResult::Unreadable => {}
            WriteResult::Stale => {
                held.settle(location);
                preallocated::give_back(inner, location.segment);
            }
            WriteResult::Unreachable(why) => drop(unwritten.nodes.insert(item, why.clone())),
        }
        session.written(id, result);
    }
}

/// Why items could not be written.
#[derive(Default)]
struct Unwritten {
    /// Their nodes could not be reached.
    nodes: BTreeMap<usize, String>,
    /// A device could not copy their bytes.
    devices: BTreeMap<usize, String>,
}

/// The results for the caller. `unwritten` says why items could not be written.
fn answers(
    puts: &[Put<'_>],
    outcomes: Vec<PutOutcome>,
    mut unwritten: Unwritten,
    failures: &Failures,
    is_late: bool,
) -> Vec<Result<Stored, Error>> {
    let outcomes = outcomes.into_iter().zip(puts).enumerate();
    let answers = outcomes.map(|(item, (outcome, put))| match (outcome, unwritten.nodes.remove(&item)) {
        (outcome, _) if !is_stored(&outcome) && unwritten.devices.contains_key(&item) => {
            Err(Error::Device { what: unwritten.devices.remove(&item).unwrap_or_default() })
        }
        // It is only full because the node that had space cannot be reached.
        (PutOutcome::Full(_) | PutOutcome::NoNode, Some(why)) if !is_late => {
            Err(Error::Unreachable { what: why })
        }
        (PutOutcome::Full(_) | PutOutcome::NoNode, Some(_)) => Err(Error::timeout("the put")),
        // The bytes were to come with the request that failed.
        (PutOutcome::Unreachable(Unreached::Call(id)), Some(why))
            if !is_late && !failures.contains_key(&id) =>
        {
            Err(Error::Unreachable { what: why })
        }
        (outcome, _) => answer(outcome, put, failures, is_late),
    });
    answers.collect()
}

/// Records how long the puts took, and by which path the bytes moved. Returns when they ended.
fn measure(inner: &Inner, puts: &[Put<'_>], outcomes: &[PutOutcome], began: Instant) -> Instant {
    let ended = Instant::now();
    let (mut path, mut bytes, mut last) = (Path::Master, 0_u64, None);
    for (put, outcome) in puts.iter().zip(outcomes) {
        let PutOutcome::Stored { replicas, .. } = outcome else { continue };
        bytes = bytes.saturating_add(put.len().unwrap_or_default());
        for segment in replicas.iter().map(|it| it.segment) {
            // Objects of one batch are mostly on one node.
            if last.replace(segment) != Some(segment) {
                let route = inner.nodes.current_route(segment);
                path = path.max(route.map_or(Path::Tcp, |it| it.path()));
            }
        }
    }
    inner.measured.measures.record(Operation::Put, path, ended.duration_since(began), bytes);
    ended
}

fn is_stored(outcome: &PutOutcome) -> bool {
    matches!(outcome, PutOutcome::Stored { .. } | PutOutcome::Exists(_))
}

/// Caches the locations of the objects, for the next reads.
fn learn(inner: &Inner, puts: &[Put<'_>], outcomes: &[PutOutcome]) {
    for (put, outcome) in puts.iter().zip(outcomes) {
        if let PutOutcome::Stored { generation, replicas, .. } = outcome {
            inner.locations.lock().learn_put(&put.key, *generation, put.len().unwrap_or(u64::MAX), replicas);
        }
    }
}

/// Memory that a put need not request: reserved for it before, or preallocated.
fn space_for(
    inner: &Inner,
    held: &PutReservations<'_>,
    put: &Put<'_>,
    ready: Option<ReservedSpace>,
) -> Vec<Reservation> {
    match ready {
        Some(reserved_space) => reserved_space.hand_over(held),
        None => {
            let space = inner.offers.take(put);
            space.inspect(|it| held.take(it.location)).into_iter().collect()
        }
    }
}

fn request(put: &Put<'_>, ready: Vec<Reservation>) -> PutRequest {
    // Overlapping buffers can be longer together than memory; no node has that much space.
    let len = put.len().unwrap_or(u64::MAX);
    PutRequest { key: put.key.clone(), len, options: with_at_least_one_copy(&put.options), ready }
}

/// The options as the master understands them.
pub(crate) fn with_at_least_one_copy(options: &PutOptions) -> PutOptions {
    PutOptions { replicas: options.replicas.max(1), ..options.clone() }
}

pub(crate) async fn ask_master(
    inner: &Inner,
    held: &PutReservations<'_>,
    id: NeedId,
    request: ClientToMaster,
    deadline: Deadline,
) -> Done {
    if let ClientToMaster::Reserve(reserve) = request {
        return Done::Called(id, inner.reserve(reserve, held, deadline).await);
    }
    let reply = inner.ask(&request, deadline).await;
    if let (ClientToMaster::Publish(publish), Ok(Reply::Published(outcomes))) = (&request, &reply) {
        published(inner, held, publish, outcomes);
    }
    Done::Called(id, reply)
}

pub(crate) async fn ask_node(
    inner: &Inner,
    held: &PutReservations<'_>,
    id: NeedId,
    (segment, waits): (SegmentId, bool),
    request: ClientToNode,
    bytes: Option<Vec<Vec<u8>>>,
    deadline: Deadline,
) -> Done {
    match carried::ask(inner, segment, &request, bytes, InPauses::wait_if(waits), deadline).await {
        Ok(reply) => {
            settle(inner, held, segment, &request, &reply);
            Done::Called(id, Ok(reply))
        }
        Err(Unanswered::Failed(error)) => Done::Called(id, Err(error)),
        Err(Unanswered::Unwritten(why)) => {
            let items = if let ClientToNode::Commit(it) = request { it.items } else { Vec::new() };
            Done::Unwritten(id, items.iter().map(|it| (segment, it.slot_ref)).collect(), why)
        }
    }
}

/// Removes from `held` what a node has committed or released.
fn settle(
    inner: &Inner,
    held: &PutReservations<'_>,
    segment: SegmentId,
    request: &ClientToNode,
    reply: &Reply,
) {
    match request {
        ClientToNode::Abort(slot_refs) if *reply == Reply::Done => {
            for slot_ref in slot_refs {
                held.settle(Location { segment, slot: slot_ref.slot, stamp: slot_ref.stamp });
            }
        }
        ClientToNode::Commit(commit) => {
            let Reply::Committed(outcomes) = reply else { return };
            for (item, outcome) in commit.items.iter().zip(outcomes) {
                held.settle(Location { segment, slot: item.slot_ref.slot, stamp: item.slot_ref.stamp });
                // The session aborts the other copies of a stale one.
                match outcome {
                    CommitOutcome::Stale | CommitOutcome::Removed => preallocated::give_back(inner, segment),
                    _ => item.others.iter().for_each(|other| held.settle(*other)),
                }
            }
        }
        ClientToNode::Abort(_)
        | ClientToNode::Store(_)
        | ClientToNode::Keep(_)
        | ClientToNode::BeginViews(_)
        | ClientToNode::EndViews(_)
        | ClientToNode::KeepViews(_) => {}
    }
}

/// Removes from `held` what the master has published or rejected.
fn published(
    inner: &Inner,
    held: &PutReservations<'_>,
    publish: &Publish,
    outcomes: &[Option<CommitOutcome>],
) {
    let settled =
        publish.items.iter().zip(outcomes).filter_map(|(item, outcome)| Some((item, outcome.as_ref()?)));
    for (PublishItem { home, item }, outcome) in settled {
        held.settle(Location { segment: *home, slot: item.slot_ref.slot, stamp: item.slot_ref.stamp });
        if matches!(outcome, CommitOutcome::Stale | CommitOutcome::Removed) {
            preallocated::give_back(inner, *home);
        }
    }
}

/// Writes everything for one node; if this client writes into its memory itself, only the first part.
async fn write(
    inner: &Inner,
    puts: &[Put<'_>],
    (segment, waits): (SegmentId, bool),
    mut writes: Vec<ToWrite>,
    deadline: Deadline,
) -> Done {
    let route = match inner.nodes.route_if(segment, deadline, InPauses::wait_if(waits)).await {
        Ok(route) => route,
        Err(error) => {
            let failed = WriteResult::Unreachable(error.to_string());
            let results = writes.into_iter().map(|(id, item, reservation)| Written {
                id,
                item,
                location: reservation.location,
                result: failed.clone(),
                device: None,
            });
            return Done::Written(results.collect(), None);
        }
    };
    let left = if route.writes_in_place() { leave_for_later(puts, &mut writes) } else { Vec::new() };
    let op = |(_, item, reservation): &ToWrite| WriteOp {
        slot: reservation.location.slot.0,
        stamp: reservation.location.stamp.0,
        offset: 0,
        sources: puts.get(*item).map(|put| put.parts.clone()).unwrap_or_default(),
    };
    let ops: Vec<_> = writes.iter().map(op).collect();
    let outcomes = route.write(&ops, deadline).await;
    let results = writes.into_iter().zip(outcomes).map(|((id, item, reservation), outcome)| {
        let device = match &outcome {
            Err(error @ TransferError::Device(_)) => Some(error.to_string()),
            _ => None,
        };
        let result = match outcome {
            Ok(()) => WriteResult::Written,
            Err(TransferError::Stale) => WriteResult::Stale,
            Err(TransferError::Device(_)) => WriteResult::Unreadable,
            Err(error) => WriteResult::Unreachable(error.to_string()),
        };
        Written { id, item, location: reservation.location, result, device }
    });
    Done::Written(results.collect(), (!left.is_empty()).then_some((segment, left)))
}

/// Splits off the writes that are not copied now: half of the bytes. While they are copied, the master
/// handles the first half, so a batch takes hardly longer than its copy. A few messages suffice for any
/// size.
fn leave_for_later(puts: &[Put<'_>], writes: &mut Vec<ToWrite>) -> Vec<ToWrite> {
    let len = |(_, item, _): &ToWrite| puts.get(*item).and_then(Put::len).unwrap_or(0);
    let all = writes.iter().map(len).fold(0, u64::saturating_add);
    let mut sum = 0_u64;
    let is_now = |it: &&ToWrite| {
        let is_now = sum < STEP_BYTES_MIN.max(all / 2);
        sum = sum.saturating_add(len(it));
        is_now
    };
    let now = writes.iter().take_while(is_now).count();
    writes.split_off(now)
}

pub(crate) fn answer(
    outcome: PutOutcome,
    put: &Put<'_>,
    failures: &Failures,
    is_late: bool,
) -> Result<Stored, Error> {
    match outcome {
        PutOutcome::Stored { generation, replicas, replaced, unconfirmed } => {
            let copies = replicas.len() as u32;
            let effect = if replaced { PutEffect::Replaced } else { PutEffect::Created };
            Ok(Stored { generation, copies, effect, unconfirmed })
        }
        PutOutcome::Exists(generation) => {
            Ok(Stored { generation, copies: 0, effect: PutEffect::Kept, unconfirmed: Vec::new() })
        }
        PutOutcome::Full(full) => Err(Error::full(put.key.clone(), put.len().unwrap_or(u64::MAX), full)),
        PutOutcome::NoNode => Err(Error::NoNode { key: put.key.clone() }),
        PutOutcome::OverQuota(quota) => Err(Error::OverQuota { key: put.key.clone(), quota }),
        PutOutcome::Behind(backlog) => Err(Error::Behind { key: put.key.clone(), backlog }),
        PutOutcome::Invalid(what) => Err(Error::Invalid { what }),
        PutOutcome::Refused(refusal) => Err(refusal.into()),
        PutOutcome::Unreachable(why) => Err(unreachable(why, failures, is_late, "the put")),
    }
}

/// Why the outcome of an item is unknown.
pub(crate) fn unreachable(why: Unreached, failures: &Failures, is_late: bool, operation: &str) -> Error {
    let what = match why {
        Unreached::Call(id) => match failures.get(&id) {
            Some(failure) => return failure.clone(),
            None => "a call failed",
        },
        Unreached::Other(why) => why,
    };
    if is_late { Error::timeout(operation) } else { Error::Unreachable { what: what.to_owned() } }
}

#[cfg(test)]
mod tests {
    use tiffin_types::{Key, SlotId, Stamp};

    use super::*;

    /// The number of objects copied in each step, for `count` objects of one size.
    fn steps(count: usize, len: usize) -> Vec<usize> {
        let bytes = vec![0; len];
        let key = |at: usize| Key::new(format!("k{at}").as_bytes()).unwrap();
        let puts: Vec<_> = (0..count).map(|at| Put::new(key(at), &bytes)).collect();
        let space = |at: usize| {
            let location = Location { segment: SegmentId(1), slot: SlotId(at as u32), stamp: Stamp(1) };
            (NeedId(at as u64), at, Reservation { location, extents: Vec::new() })
        };
        let mut left: Vec<_> = (0..count).map(space).collect();
        let mut steps = Vec::new();
        while !left.is_empty() {
            let mut now = left;
            left = leave_for_later(&puts, &mut now);
            steps.push(now.len());
        }
        steps
    }

    #[tokio::test]
    async fn replaced_object_is_withdrawn_in_the_memory_of_its_node() {
        let store = tiffin_server::Embedded::start(4 << 20).await.unwrap();
        let memory = store.node().memory().clone();
        let options = crate::ConnectOptions {
            home: Some(store.node().segment()),
            own_memory: Some(memory.clone()),
            ..crate::ConnectOptions::new(store.address().to_string())
        };
        let client = crate::Client::connect(options).await.unwrap();
        let deadline = Deadline::after(std::time::Duration::from_secs(60));
        let key = Key::new(b"k").unwrap();
        let mut places = Vec::new();
        for (value, effect) in [(b"old", PutEffect::Created), (b"new", PutEffect::Replaced)] {
            let stored = client.put(&[Put::new(key.clone(), value)], deadline).await;
            assert!(matches!(stored.as_slice(), [Ok(it)] if it.effect == effect), "{stored:?}");
            let locations = client.inner.locations.lock();
            places.push(locations.peek(&key).unwrap().replicas[0]);
        }
        let is_withdrawn = |it: &Location| memory.is_withdrawn(it.slot.0, it.stamp.0);
        assert_eq!(places.iter().map(is_withdrawn).collect::<Vec<_>>(), [true, false]);
        assert!(!memory.reader().is_current(places[0].slot.0, places[0].stamp.0));
        client.close(deadline).await.unwrap();
    }

    #[test]
    fn large_batches_are_copied_in_shrinking_parts() {
        assert_eq!(steps(32, 64 << 10), [16, 8, 8]);
        assert_eq!(steps(64, 1 << 20), [32, 16, 8, 4, 2, 1, 1]);
        assert_eq!(steps(3, 4 << 20), [2, 1]);
    }

    #[test]
    fn failure_of_a_call_is_found_by_its_id() {
        let alike = || Error::Unreachable { what: "gone".to_owned() };
        let lost = Error::timeout("the master");
        let failures = Failures::from([(NeedId(1), alike()), (NeedId(2), lost.clone())]);
        let found = |why, is_late| unreachable(why, &failures, is_late, "the put");
        assert_eq!(found(Unreached::Call(NeedId(2)), true), lost);
        assert_eq!(found(Unreached::Call(NeedId(1)), true), alike());
        assert_eq!(found(Unreached::Other("gone"), false), alike());
        assert_eq!(found(Unreached::Other("gone"), true), Error::timeout("the put"));
    }

    #[test]
    fn bytes_that_were_not_sent_are_the_reason() {
        let puts = [Put::new(Key::new(b"k").unwrap(), b"v")];
        let outcome = vec![PutOutcome::Unreachable(Unreached::Call(NeedId(1)))];
        let nodes = BTreeMap::from([(0, "the node ended".to_owned())]);
        let unwritten = Unwritten { nodes, ..Unwritten::default() };
        let found = answers(&puts, outcome, unwritten, &Failures::new(), false).remove(0);
        assert_eq!(found.unwrap_err(), Error::Unreachable { what: "the node ended".to_owned() });
    }

    #[test]
    fn small_batches_are_copied_and_committed_at_once() {
        assert_eq!(steps(1, 16 << 20), [1]);
        assert_eq!(steps(128, 4 << 10), [128]);
        assert_eq!(steps(10_000, 0), [10_000]);
    }
}
