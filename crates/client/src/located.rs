//! Reading pieces of objects of which the generation and the places are known already.
//!
//! All pieces of an object are read from one copy of it, under one stamp; each read holds the stamp against
//! the slot after its last byte. A stamp is never used twice, so pieces that all pass belong to one object. A
//! copy that has moved is looked up again, and must be of the same generation.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_core::message::{Reply, Request, Resolve, ResolveOutcome};
use tiffin_core::{Generation, Key, Location, SegmentId};
use tiffin_transport::{Outcome, ReadOp, TargetBuf, TransferError};

use crate::inner::Inner;
use crate::running::Running;
use crate::{Deadline, Error};

/// How often an object whose copies move is looked up anew.
const TRIES_MAX: u32 = 16;

/// One range of an object, as long as its targets are together.
#[derive(Clone, Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) offset: u64,
    pub(crate) targets: Vec<TargetBuf<'a>>,
}

/// What is wanted of one object.
#[derive(Clone, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) key: Key,
    pub(crate) generation: Generation,
    pub(crate) replicas: Vec<Location>,
    pub(crate) pieces: Vec<Piece<'a>>,
}

struct Item<'a> {
    wanted: Wanted<'a>,
    tries: u32,
    failed: BTreeSet<SegmentId>,
    outcome: Option<Result<(), Error>>,
}

/// Reads all of them; items that are errors already stay so.
pub(crate) async fn read(
    inner: &Inner,
    wanted: Vec<Result<Wanted<'_>, Error>>,
    deadline: Deadline,
) -> Vec<Result<(), Error>> {
    let (mut items, mut refused) = (BTreeMap::new(), BTreeMap::new());
    let count = wanted.len();
    for (index, wanted) in wanted.into_iter().enumerate() {
        match wanted {
            Ok(wanted) => {
                items.insert(index, Item { wanted, tries: 0, failed: BTreeSet::new(), outcome: None });
            }
            Err(error) => drop(refused.insert(index, error)),
        }
    }
    loop {
        let stale = once(inner, &mut items, deadline).await;
        if !stale.is_empty() {
            look_up(inner, &mut items, &stale, deadline).await;
        }
        if items.values().all(|it| it.outcome.is_some()) {
            break;
        }
    }
    let results = (0..count).map(|index| match refused.remove(&index) {
        Some(error) => Err(error),
        None => items.remove(&index).and_then(|it| it.outcome).unwrap_or_else(|| Err(Error::misfit())),
    });
    results.collect()
}

/// Tries the nearest copy of each that is left, and says which have moved.
async fn once(inner: &Inner, items: &mut BTreeMap<usize, Item<'_>>, deadline: Deadline) -> Vec<usize> {
    let mut by_node: BTreeMap<SegmentId, Vec<(usize, Vec<ReadOp<'_>>)>> = BTreeMap::new();
    for (&index, item) in items.iter_mut().filter(|(_, it)| it.outcome.is_none()) {
        let untried = item.wanted.replicas.iter().filter(|it| !item.failed.contains(&it.segment));
        match untried.copied().min_by_key(|it| inner.distance(it.segment)) {
            Some(it) => by_node.entry(it.segment).or_default().push((index, ops(&item.wanted.pieces, it))),
            None if deadline.has_passed() => item.outcome = Some(Err(Error::timeout("the read"))),
            None => {
                let nodes = item.failed.iter().map(|&segment| inner.node_name(segment)).collect();
                item.outcome = Some(Err(Error::NodeDown { key: item.wanted.key.clone(), nodes }));
            }
        }
    }
    let mut running = Running::new();
    for (segment, reads) in by_node {
        running.push(async move { (segment, read_node(inner, segment, reads, deadline).await) });
    }
    let mut stale = Vec::new();
    for (segment, outcomes) in running.all().await {
        for (index, outcome) in outcomes {
            let Some(item) = items.get_mut(&index) else { continue };
            match outcome {
                Ok(()) => item.outcome = Some(Ok(())),
                Err(TransferError::Stale) => stale.push(index),
                Err(_) => drop(item.failed.insert(segment)),
            }
        }
    }
    stale
}

fn ops<'a>(pieces: &[Piece<'a>], location: Location) -> Vec<ReadOp<'a>> {
    let op = |piece: &Piece<'a>| ReadOp {
        slot: location.slot.0,
        stamp: location.stamp.0,
        offset: piece.offset,
        targets: piece.targets.clone(),
    };
    pieces.iter().map(op).collect()
}

/// Reads all that lies on one node.
async fn read_node(
    inner: &Inner,
    segment: SegmentId,
    reads: Vec<(usize, Vec<ReadOp<'_>>)>,
    deadline: Deadline,
) -> Vec<(usize, Outcome)> {
    let (indexes, counts): (Vec<_>, Vec<_>) = reads.iter().map(|(index, ops)| (*index, ops.len())).unzip();
    let ops: Vec<_> = reads.into_iter().flat_map(|it| it.1).collect();
    let mut outcomes = match inner.route(segment, deadline).await {
        Ok(route) => route.read(&ops, deadline).await.into_iter(),
        Err(error) => {
            let lost = TransferError::Lost { peer: segment.to_string(), why: error.to_string() };
            return indexes.into_iter().map(|index| (index, Err(lost.clone()))).collect();
        }
    };
    let together = indexes.into_iter().zip(counts).map(|(index, count)| {
        let all: Vec<_> = outcomes.by_ref().take(count).collect();
        let is_stale = all.contains(&Err(TransferError::Stale));
        let first = all.into_iter().find(Result::is_err).unwrap_or(Ok(()));
        (index, if is_stale { Err(TransferError::Stale) } else { first })
    });
    together.collect()
}

/// Finds the copies of objects that have moved, if they are still what was wanted.
async fn look_up(inner: &Inner, items: &mut BTreeMap<usize, Item<'_>>, stale: &[usize], deadline: Deadline) {
    let keys = stale.iter().filter_map(|index| Some(items.get(index)?.wanted.key.clone())).collect();
    let resolve = Resolve { keys, touch: false, lease: false, locate: true, ..Resolve::default() };
    let outcomes = match inner.ask(&Request::Resolve(resolve), deadline).await {
        Ok(Reply::Resolved(resolved)) if resolved.items.len() == stale.len() => Ok(resolved.items),
        Ok(_) => Err(Error::misfit()),
        Err(error) => Err(error),
    };
    for (at, index) in stale.iter().enumerate() {
        let Some(item) = items.get_mut(index) else { continue };
        let key = item.wanted.key.clone();
        item.tries += 1;
        let failure = match outcomes.as_ref().map(|it| it.get(at)) {
            Err(error) => error.clone(),
            Ok(Some(ResolveOutcome::Found(found))) if found.generation != item.wanted.generation => {
                Error::Superseded { key, generation: found.generation }
            }
            Ok(Some(ResolveOutcome::Found(found))) if item.tries < TRIES_MAX => {
                item.wanted.replicas.clone_from(&found.replicas);
                continue;
            }
            Ok(Some(ResolveOutcome::Found(_))) => Error::Contended { key },
            Ok(Some(ResolveOutcome::Unavailable(nodes))) => Error::NodeDown { key, nodes: nodes.clone() },
            Ok(Some(ResolveOutcome::Absent) | None) => Error::NotFound { key },
        };
        item.outcome = Some(Err(failure));
    }
}
