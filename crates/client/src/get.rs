//! Runs a `session::Get` against connections and transports.
//!
//! Copies from mapped memory run inside the caller's own task. The transport gives others their turn after
//! every few megabytes, less than a millisecond's worth, so a large copy does not starve the executor;
//! handing it to another thread would cost more than it saves for most objects.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Weak;

use tiffin_core::message::Reply;
use tiffin_core::session::{Get as Session, GetOutcome, Need, NeedId, ReadResult};
use tiffin_core::{Key, Location, SegmentId};
use tiffin_transport::{ReadOp, TargetBuf, TransferError};
use tokio::time::timeout_at;

use crate::inner::{Inner, call_failure};
use crate::known;
use crate::put::unreachable;
use crate::running::Running;
use crate::{Deadline, Error, Fetched, GetInto, GetOptions, batch};

/// Gives memory for an object when its size is known.
pub trait Landing<'a>: Sync {
    /// Memory of exactly that size for that item; `None` if there is less. Asked again where the object was
    /// replaced meanwhile: what was given before is then not needed any more.
    fn land(&self, item: usize, len: u64) -> Option<Vec<TargetBuf<'a>>>;

    /// The part of the object that is wanted, instead of the whole.
    fn range(&self, item: usize) -> Option<Range<u64>> {
        let _whole = item;
        None
    }
}

/// The memory of callers.
struct Given<'g, 'a>(&'g [GetInto<'a>]);

/// What was carried out.
enum Done {
    Called(NeedId, Result<Reply, Error>),
    Read(Vec<(NeedId, ReadResult)>),
}

/// Reads that go to one node together; those of which the master was not asked apart, by the life of it in
/// which they were named.
type Reads<'a> = BTreeMap<(SegmentId, Option<u64>), Vec<(NeedId, ReadOp<'a>)>>;

pub(crate) async fn get_into(
    inner: &Inner,
    items: &[GetInto<'_>],
    options: GetOptions,
    deadline: Deadline,
) -> Vec<Result<Fetched, Error>> {
    let keys: Vec<_> = items.iter().map(|item| item.key.clone()).collect();
    drive(inner, &keys, &Given(items), options, deadline).await
}

/// Gets objects into the memory that `landing` gives. `Ok` means that what it gave last for that item is
/// full.
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
    let requests = known::recall(inner, keys, options);
    let before: Vec<_> = requests.iter().map(|it| it.known.as_ref().map(|it| it.generation)).collect();
    let mut session = Session::new(requests, options.lease, distance(inner));
    if let Some(ms) = options.promotion_wait_ms {
        session = session.wait_for_promotion(ms);
    }
    let mut failures = Vec::new();
    let mut running = Running::new();
    let mut is_late = deadline.has_passed();
    while !is_late {
        let mut reads = Reads::new();
        while let Some(need) = session.poll() {
            match need {
                Need::Call { id, request, .. } => {
                    running.push(async move { Done::Called(id, inner.ask(&request, deadline).await) });
                }
                Need::Read { id, item, location, len, unasked } => {
                    match op(landing, first + item, location, len) {
                        Some(op) => reads.entry((location.segment, unasked)).or_default().push((id, op)),
                        // The memory does not fit the object, or the object does not have what is wanted.
                        None => session.read(id, ReadResult::TooSmall),
                    }
                }
                Need::Write { .. } => {}
            }
        }
        for ((segment, unasked), reads) in reads {
            running.push(read(inner, segment, unasked, reads, deadline));
        }
        match timeout_at(deadline.instant(), running.next()).await {
            Ok(Some(Done::Called(id, Ok(reply)))) => session.replied(id, Ok(reply)),
            Ok(Some(Done::Called(id, Err(error)))) => {
                session.replied(id, Err(call_failure(&error)));
                failures.push(error);
            }
            Ok(Some(Done::Read(results))) => {
                results.into_iter().for_each(|(id, result)| session.read(id, result));
            }
            Ok(None) => break,
            Err(_) => is_late = true,
        }
    }
    drop(running);
    let is_late = is_late || deadline.has_passed();
    let outcomes = session.into_outcomes();
    known::take_in(inner, keys, &before, &outcomes);
    known::tell_soon(inner);
    let outcomes = outcomes.into_iter().zip(keys).enumerate();
    let answers = outcomes.map(|(item, (outcome, key))| {
        let range = landing.range(first + item);
        answer(outcome, key, range, &failures, is_late)
    });
    answers.collect()
}

/// The nearest copy is read first.
fn distance(inner: &Inner) -> tiffin_core::session::Distance {
    let me = inner.weak();
    Box::new(move |info| Weak::upgrade(&me).map_or(u8::MAX, |inner| inner.distance(info.segment)))
}

/// The read of what is wanted of an object of `len` bytes, if it has that and there is memory for it.
fn op<'a>(landing: &impl Landing<'a>, item: usize, location: Location, len: u64) -> Option<ReadOp<'a>> {
    let range = landing.range(item).unwrap_or(0..len);
    let wanted = range.end.checked_sub(range.start).filter(|_| range.end <= len)?;
    let targets = landing.land(item, wanted)?;
    Some(ReadOp { slot: location.slot.0, stamp: location.stamp.0, offset: range.start, targets })
}

/// Reads all that lies on one node.
async fn read<'a>(
    inner: &Inner,
    segment: SegmentId,
    unasked: Option<u64>,
    reads: Vec<(NeedId, ReadOp<'a>)>,
    deadline: Deadline,
) -> Done {
    let (ids, ops): (Vec<_>, Vec<_>) = reads.into_iter().unzip();
    let outcomes: Vec<_> = match inner.route(segment, deadline).await {
        Ok(route) => {
            let epoch = inner.current_master().map(|it| it.epoch);
            match (unasked, epoch) {
                (None, _) => route.read(&ops, deadline).await,
                (Some(named), Some(epoch)) => route.read_unasked(&ops, named, epoch, deadline).await,
                (Some(_), None) => vec![Err(TransferError::Stale); ops.len()],
            }
        }
        Err(error) => {
            let failed = ReadResult::Unreachable(error.to_string());
            return Done::Read(ids.into_iter().map(|id| (id, failed.clone())).collect());
        }
    };
    let results = outcomes.into_iter().map(|outcome| match outcome {
        Ok(()) => ReadResult::Valid,
        Err(TransferError::Stale) => ReadResult::Stale,
        Err(error) => ReadResult::Unreachable(error.to_string()),
    });
    Done::Read(ids.into_iter().zip(results).collect())
}

fn answer(
    outcome: GetOutcome,
    key: &Key,
    range: Option<Range<u64>>,
    failures: &[Error],
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
        // A read that the deadline cut off says nothing about its node.
        GetOutcome::Unavailable(_) if is_late => Err(Error::timeout("the get")),
        GetOutcome::Unavailable(nodes) => Err(Error::NodeDown { key: key(), nodes }),
        GetOutcome::Contended => Err(Error::Contended { key: key() }),
        GetOutcome::Refused(refusal) => Err(refusal.into()),
        GetOutcome::Unreachable(what) => Err(unreachable(what, failures, is_late, "the get")),
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
