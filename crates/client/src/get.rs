//! Runs a `session::Get` against connections and transports.
//!
//! Copies from mapped memory run inside the caller's own task. The transport yields after every few
//! megabytes, which takes less than a millisecond, so a large copy does not starve the executor. Handing it
//! to another thread would cost more than it saves for most objects.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Weak};

use tiffin_measure::{Operation, Path};
use tiffin_session::{Get as Session, GetOutcome, GetRequest, Need, NeedId, ReadResult};
use tiffin_transport::hedge::ReadControl;
use tiffin_transport::{Outcome, ReadOp, TargetBuf, TransferError};
use tiffin_types::message::Reply;
use tiffin_types::{Key, Location, SegmentId};
use tokio::time::{Instant, timeout_at};

use crate::cached;
use crate::hedge::Flights;
use crate::inner::{Inner, call_failure};
use crate::link::InPauses;
use crate::put::{Failures, unreachable};
use crate::route::{self, OpenRoute};
use crate::running::Running;
use crate::{Deadline, Error, Fetched, GetInto, GetOptions, batch};

/// Provides memory for an object when its size is known.
pub trait Landing<'a>: Sync {
    /// Memory of exactly `len` bytes for this item; `None` if there is less. For the same size it returns
    /// the same memory: another copy may be read into it. Another size means that the object was replaced
    /// meanwhile, and the memory provided before is not needed any more.
    fn land(&self, item: usize, len: u64) -> Option<Vec<TargetBuf<'a>>>;

    /// The range of the object to read, instead of the whole.
    fn range(&self, item: usize) -> Option<Range<u64>> {
        let _whole = item;
        None
    }
}

/// The memory of callers.
struct Given<'g, 'a>(&'g [GetInto<'a>]);

/// The reads of each item of a session.
pub(crate) trait Wants<'a>: Sync {
    /// Adds the reads of an item of `len` bytes at `location`; `false` if its memory does not fit. An item
    /// without reads only has to exist.
    fn ops(&self, item: usize, location: Location, len: u64, add: &mut dyn FnMut(ReadOp<'a>)) -> bool;
}

/// How a session ended.
pub(crate) struct Ended {
    pub(crate) outcomes: Vec<GetOutcome>,
    /// Why calls to the master failed.
    pub(crate) failures: Failures,
    pub(crate) is_late: bool,
    /// Which items the master was asked for.
    pub(crate) asked: Vec<bool>,
    /// Items whose bytes a device could not copy, and why.
    pub(crate) devices: BTreeMap<usize, String>,
}

impl Ended {
    /// The failure of an item's device, if that is why it was not read.
    pub(crate) fn device_failure(&mut self, item: usize) -> Option<Error> {
        let is_read = matches!(self.outcomes.get(item), Some(GetOutcome::Read(_)));
        self.devices.remove(&item).filter(|_| !is_read).map(|what| Error::Device { what })
    }
}

/// The memory for the items of one session. `first` is the index of its first item in the call.
struct Landed<'l, L> {
    landing: &'l L,
    first: usize,
}

/// A need of the session that was carried out.
enum Done {
    Called(NeedId, Result<Reply, Error>),
    Read(ReadNode),
}

/// Reads of one node that ended.
struct ReadNode {
    number: Option<u64>,
    reads: Vec<(usize, NeedId)>,
    outcomes: Vec<Outcome>,
}

/// Reads that go to one node together. Cached-location reads are separate, by the epoch in which the
/// objects were named.
type Reads<'a> = BTreeMap<(SegmentId, Option<u64>), Vec<((usize, NeedId), ReadOp<'a>)>>;

pub(crate) async fn get_into(
    inner: &Inner,
    items: &[GetInto<'_>],
    options: GetOptions,
    deadline: Deadline,
) -> Vec<Result<Fetched, Error>> {
    let keys: Vec<_> = items.iter().map(|item| item.key.clone()).collect();
    drive(inner, &keys, &Given(items), options, deadline).await
}

/// Reads objects into the memory that `landing` provides. `Ok` means that the memory provided last for that
/// item is full.
pub(crate) async fn drive<'a>(
    inner: &Inner,
    keys: &[Key],
    landing: &impl Landing<'a>,
    options: GetOptions,
    deadline: Deadline,
) -> Vec<Result<Fetched, Error>> {
    let mut outcomes = Vec::with_capacity(keys.len());
    for piece in batch::pieces(keys) {
        let first = piece.start;
        let keys = keys.get(piece).unwrap_or_default();
        outcomes.extend(drive_piece(inner, keys, first, landing, options, deadline).await);
    }
    outcomes
}

async fn drive_piece<'a>(
    inner: &Inner,
    keys: &[Key],
    first: usize,
    landing: &impl Landing<'a>,
    options: GetOptions,
    deadline: Deadline,
) -> Vec<Result<Fetched, Error>> {
    let requests = cached::recall(inner, keys, options);
    let cached: Vec<_> = requests.iter().map(|it| it.known.as_ref().map(|it| it.generation)).collect();
    let session = session(inner, requests, options);
    let landed = Landed { landing, first };
    let mut ended = run(inner, session, keys.len(), &landed, deadline).await;
    let device_failures: Vec<_> = (0..keys.len()).map(|item| ended.device_failure(item)).collect();
    let Ended { outcomes, failures, is_late, asked, .. } = ended;
    inner.locations.lock().finish(keys, &cached, &outcomes, &asked);
    cached::report_soon(inner);
    let ranges = (first..).map(|item| landing.range(item));
    let answers = outcomes.into_iter().zip(keys).zip(ranges).zip(device_failures);
    let answer = |(((outcome, key), range), device_failure): (((GetOutcome, &Key), _), Option<Error>)| {
        let answered = || answer(outcome, key, range, &failures, is_late);
        device_failure.map_or_else(answered, Err)
    };
    answers.map(answer).collect()
}

/// What a session has read, for the measurements.
struct Moved {
    began: Instant,
    path: Path,
    bytes: u64,
    /// Nodes to which there was no route yet.
    unopened: Vec<SegmentId>,
}

impl Moved {
    fn begin() -> Self {
        Self { began: Instant::now(), path: Path::Master, bytes: 0, unopened: Vec::new() }
    }

    fn add(&mut self, to_read: &ToRead<'_>) {
        self.bytes += to_read.ops.iter().map(ReadOp::bytes).sum::<u64>();
        match &to_read.route {
            Some(route) => self.path = self.path.max(route.path()),
            None => self.unopened.push(to_read.segment),
        }
    }

    /// Records how long the session took. Returns when it ended.
    fn record(self, inner: &Inner) -> Instant {
        let ended = Instant::now();
        // The reads have opened these routes.
        let opened = self.unopened.into_iter().filter_map(|it| inner.nodes.current_route(it));
        let path = opened.fold(self.path, |path, route| path.max(route.path()));
        let took = ended.duration_since(self.began);
        inner.measured.measures.record(Operation::Get, path, took, self.bytes);
        ended
    }
}

/// The items whose bytes a device could not move, and its errors.
fn device_errors(reads: &[(usize, NeedId)], outcomes: &[Outcome]) -> impl Iterator<Item = (usize, String)> {
    reads.iter().zip(outcomes).filter_map(|(&(item, _), outcome)| match outcome {
        Err(error @ TransferError::Device(_)) => Some((item, error.to_string())),
        _ => None,
    })
}

/// Runs a session of `items` items to its end, or until the deadline.
pub(crate) async fn run<'a>(
    inner: &Inner,
    session: Session,
    items: usize,
    wants: &impl Wants<'a>,
    deadline: Deadline,
) -> Ended {
    let mut session = session.wait_for_reports(crate::names::wait_ms(deadline));
    let (mut failures, mut devices) = (Failures::new(), BTreeMap::new());
    let (mut running, mut flights) = (Running::new(), Flights::new(inner, items, deadline));
    let mut moved = Moved::begin();
    let mut is_late = deadline.instant() <= moved.began;
    while !is_late && !session.is_done() {
        let (mut reads, mut last_copies) = (Reads::new(), BTreeSet::new());
        while let Some(need) = session.poll() {
            match need {
                Need::AskMaster { id, request } => {
                    running.push(async move { Done::Called(id, inner.ask(&request, deadline).await) });
                }
                Need::Read { id, item, location, len, cached_epoch, waits } => {
                    last_copies.extend(waits.then_some(location.segment));
                    inner.paces.count_hedged(session.reads(item) > 1);
                    let of_node = reads.entry((location.segment, cached_epoch)).or_default();
                    let before = of_node.len();
                    let fits = wants.ops(item, location, len, &mut |op| of_node.push(((item, id), op)));
                    match (fits, of_node.len() > before) {
                        (true, true) => {}
                        (true, false) => session.read(id, ReadResult::Valid),
                        (false, _) => session.read(id, ReadResult::TooSmall),
                    }
                }
                Need::Stop { id } => flights.stop(id),
                Need::AskNode { .. } | Need::Write { .. } => {}
            }
        }
        for ((segment, cached_epoch), reads) in reads.into_iter().filter(|(_, reads)| !reads.is_empty()) {
            let (reads, ops): (Vec<_>, Vec<_>) = reads.into_iter().unzip();
            let to_read = ToRead::new(inner, (segment, cached_epoch), last_copies.contains(&segment), ops);
            moved.add(&to_read);
            let watched = flights.begin(&mut session, segment, &reads, to_read.can_stall());
            running.push(async move {
                let (number, watch) = watched.unzip();
                let outcomes = to_read.read(inner, watch.as_ref(), deadline).await;
                Done::Read(ReadNode { number, reads, outcomes })
            });
        }
        match timeout_at(flights.wake(&session), running.next()).await {
            Ok(Some(Done::Called(id, Ok(reply)))) => session.replied(id, Ok(reply)),
            Ok(Some(Done::Called(id, Err(error)))) => {
                session.replied(id, Err(call_failure(&error)));
                failures.insert(id, error);
            }
            Ok(Some(Done::Read(ReadNode { number, reads, outcomes }))) => {
                devices.extend(device_errors(&reads, &outcomes));
                flights.end(&mut session, number, reads, outcomes);
            }
            Ok(None) => break,
            Err(_) if deadline.has_passed() => is_late = true,
            Err(_) => flights.tick(&mut session),
        }
    }
    // Reads that lost against another copy end here: none accesses a buffer after the call.
    drop(running);
    let is_late = is_late || deadline.instant() <= moved.record(inner);
    let asked = (0..items).map(|item| session.is_asked(item)).collect();
    Ended { outcomes: session.into_outcomes(), failures, is_late, asked, devices }
}

fn session(inner: &Inner, requests: Vec<GetRequest>, options: GetOptions) -> Session {
    let session = Session::new(requests, options.lease, distance(inner)).avoiding(inner.paces.avoided());
    match options.promotion_wait_ms {
        Some(ms) => session.wait_for_promotion(ms),
        None => session,
    }
}

/// Reads the closest copy first.
pub(crate) fn distance(inner: &Inner) -> tiffin_session::Distance {
    let me = inner.weak();
    Box::new(move |info| Weak::upgrade(&me).map_or(u8::MAX, |inner| inner.nodes.distance(info.segment)))
}

/// The read of the requested range of an object of `len` bytes. `None` if the range is not inside the
/// object or there is no memory for it.
fn op<'a>(landing: &impl Landing<'a>, item: usize, location: Location, len: u64) -> Option<ReadOp<'a>> {
    let range = landing.range(item).unwrap_or(0..len);
    let wanted = range.end.checked_sub(range.start).filter(|_| range.end <= len)?;
    let targets = landing.land(item, wanted)?;
    Some(ReadOp { slot: location.slot.0, stamp: location.stamp.0, offset: range.start, targets })
}

/// Reads that go to one node together.
struct ToRead<'a> {
    segment: SegmentId,
    cached_epoch: Option<u64>,
    /// The route to it, if it is open.
    route: Option<Arc<OpenRoute>>,
    in_pauses: InPauses,
    ops: Vec<ReadOp<'a>>,
}

impl<'a> ToRead<'a> {
    fn new(
        inner: &Inner,
        (segment, cached_epoch): (SegmentId, Option<u64>),
        waits: bool,
        ops: Vec<ReadOp<'a>>,
    ) -> Self {
        let (route, in_pauses) = (inner.nodes.current_route(segment), InPauses::wait_if(waits));
        Self { segment, cached_epoch, route, in_pauses, ops }
    }

    async fn read(self, inner: &Inner, watch: Option<&Arc<ReadControl>>, deadline: Deadline) -> Vec<Outcome> {
        let ops = &self.ops;
        let route = match self.route {
            Some(route) => Ok(route),
            None => inner.nodes.route_if(self.segment, deadline, self.in_pauses).await,
        };
        let route = match route {
            Ok(route) => route,
            Err(error) => {
                let lost = TransferError::Lost { peer: self.segment.to_string(), why: error.to_string() };
                return vec![Err(lost); ops.len()];
            }
        };
        let _span = route::transfer_span("read", &route, ops.iter().map(ReadOp::bytes));
        let epoch = inner.current_master().map(|it| it.epoch);
        let read = async |ops: &[ReadOp<'_>]| match (self.cached_epoch, epoch) {
            (None, _) => route.read(ops, watch, deadline).await,
            (Some(named), Some(epoch)) => route.read_cached(ops, named, epoch, watch, deadline).await,
            (Some(_), None) => vec![Err(TransferError::Stale); ops.len()],
        };
        let Some(watch) = watch.filter(|_| !route.can_stall()) else { return read(ops).await };
        // Mapped memory is copied at once, if no other read fills the same buffer.
        let free: Vec<_> = (0..ops.len()).map(|op| watch.may_fill(op)).collect();
        let taken = TransferError::Lost { peer: self.segment.to_string(), why: "another copy".to_owned() };
        let free_ops = ops.iter().zip(&free).filter(|(_, is_free)| **is_free).map(|(op, _)| op.clone());
        let mut outcomes = read(&free_ops.collect::<Vec<_>>()).await.into_iter();
        let outcome = |is_free: bool| if is_free { outcomes.next() } else { None };
        free.into_iter().map(outcome).map(|it| it.unwrap_or_else(|| Err(taken.clone()))).collect()
    }

    /// Whether it goes through a network, or may have to.
    fn can_stall(&self) -> bool {
        self.route.as_ref().is_none_or(|it| it.can_stall())
    }
}

pub(crate) fn answer(
    outcome: GetOutcome,
    key: &Key,
    range: Option<Range<u64>>,
    failures: &Failures,
    is_late: bool,
) -> Result<Fetched, Error> {
    let key = || key.clone();
    match outcome {
        GetOutcome::Read(found) => {
            let len = range.map_or(found.len, |it| it.end - it.start);
            Ok(Fetched { generation: found.generation, len })
        }
        GetOutcome::Absent => Err(Error::NotFound { key: key() }),
        GetOutcome::TooSmall(len) => Err(match range {
            None => Error::TooSmall { key: key(), len },
            Some(Range { start, end }) if start > end || end > len => {
                Error::OutOfRange { key: key(), len, start, end }
            }
            Some(Range { start, end }) => Error::TooSmall { key: key(), len: end - start },
        }),
        // A read that the deadline ended says nothing about its node.
        GetOutcome::Unavailable(_) if is_late => Err(Error::timeout("the get")),
        GetOutcome::Unavailable(nodes) => Err(Error::NodeDown { key: key(), nodes }),
        GetOutcome::Contended => Err(Error::Contended { key: key() }),
        GetOutcome::Superseded(generation) => Err(Error::Superseded { key: key(), generation }),
        GetOutcome::Refused(refusal) => Err(refusal.into()),
        GetOutcome::Unreachable(why) => Err(unreachable(why, failures, is_late, "the get")),
    }
}

impl<'a, L: Landing<'a>> Wants<'a> for Landed<'_, L> {
    fn ops(&self, item: usize, location: Location, len: u64, add: &mut dyn FnMut(ReadOp<'a>)) -> bool {
        let op = op(self.landing, self.first + item, location, len);
        op.map(add).is_some()
    }
}

impl<'a> Landing<'a> for Given<'_, 'a> {
    fn range(&self, item: usize) -> Option<Range<u64>> {
        self.0.get(item)?.range.clone()
    }

    fn land(&self, item: usize, len: u64) -> Option<Vec<TargetBuf<'a>>> {
        fit(&self.0.get(item)?.targets, len)
    }
}

/// The first `len` bytes of these buffers; `None` if they have fewer.
pub(crate) fn fit<'a>(targets: &[TargetBuf<'a>], len: u64) -> Option<Vec<TargetBuf<'a>>> {
    let mut left = usize::try_from(len).ok()?;
    let mut fitting = Vec::new();
    for target in targets {
        let (taken, _) = target.split_at(left);
        left -= taken.len();
        fitting.push(taken);
    }
    (left == 0).then_some(fitting)
}
