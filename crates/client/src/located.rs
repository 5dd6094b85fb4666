//! Reads pieces of objects whose generation and locations are already known.
//!
//! All pieces of an object are read from one copy, under one stamp. Each read compares the stamp with the
//! slot after its last byte. A stamp is never used twice, so pieces that all pass belong to one object. If
//! a copy has moved, the client resolves it again and requires the same generation. If a node does not
//! respond in time, another copy is read, as in every get.

use std::cmp::Reverse;

use tiffin_session::{Get as Session, GetOutcome, GetRequest};
use tiffin_transport::{ReadOp, TargetBuf};
use tiffin_types::message::Found;
use tiffin_types::{Generation, Key, Location};

use crate::get::{self, Ended, Wants};
use crate::inner::Inner;
use crate::{Deadline, Error, batch};

/// One range of an object; its length is the total length of its targets.
#[derive(Clone, Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) offset: u64,
    pub(crate) targets: Vec<TargetBuf<'a>>,
}

/// The requested pieces of one object.
#[derive(Clone, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) key: Key,
    pub(crate) generation: Generation,
    pub(crate) replicas: Vec<Location>,
    pub(crate) pieces: Vec<Piece<'a>>,
}

/// Reads all items; an item that is already an error is returned unchanged.
pub(crate) async fn read(
    inner: &Inner,
    wanted: Vec<Result<Wanted<'_>, Error>>,
    deadline: Deadline,
) -> Vec<Result<(), Error>> {
    let mut results: Vec<Option<Error>> = Vec::with_capacity(wanted.len());
    let mut found = Vec::with_capacity(wanted.len());
    for wanted in wanted {
        match wanted {
            Ok(wanted) => {
                found.push(wanted);
                results.push(None);
            }
            Err(error) => results.push(Some(error)),
        }
    }
    let mut read = Vec::with_capacity(found.len());
    for piece in batch::pieces(found.iter().map(|it| &it.key)) {
        read.extend(read_piece(inner, found.get(piece).unwrap_or_default(), deadline).await);
    }
    let mut read = read.into_iter();
    let result = |refused: Option<Error>| match refused {
        Some(error) => Err(error),
        None => read.next().unwrap_or_else(|| Err(Error::misfit())),
    };
    results.into_iter().map(result).collect()
}

/// Reads as many items as fit one message.
async fn read_piece(inner: &Inner, wanted: &[Wanted<'_>], deadline: Deadline) -> Vec<Result<(), Error>> {
    let request = |it: &Wanted<'_>| {
        let mut replicas = it.replicas.clone();
        // The session reads the last one first.
        replicas.sort_by_key(|it| Reverse(inner.nodes.distance(it.segment)));
        let found = Found { generation: it.generation, replicas, ..Found::default() };
        GetRequest { key: it.key.clone(), known: Some(found) }
    };
    let requests = wanted.iter().map(request).collect();
    let session = Session::new(requests, false, get::distance(inner)).avoiding(inner.paces.avoided());
    let mut ended = get::run(inner, session.of_generation(), wanted.len(), &Pieces(wanted), deadline).await;
    let device_failures: Vec<_> = (0..wanted.len()).map(|item| ended.device_failure(item)).collect();
    let Ended { outcomes, failures, is_late, .. } = ended;
    let answer = |((outcome, wanted), device_failure): ((GetOutcome, &Wanted<'_>), Option<Error>)| {
        if let Some(error) = device_failure {
            return Err(error);
        }
        let outcome = match outcome {
            GetOutcome::Unavailable(nodes) => GetOutcome::Unavailable(named(inner, wanted, nodes)),
            outcome => outcome,
        };
        get::answer(outcome, &wanted.key, None, &failures, is_late).map(|_| ())
    };
    outcomes.into_iter().zip(wanted).zip(device_failures).map(answer).collect()
}

/// The names of nodes. The master was not asked, so the session knows only their segments.
fn named(inner: &Inner, wanted: &Wanted<'_>, nodes: Vec<String>) -> Vec<String> {
    let name = |node: String| {
        let replica = wanted.replicas.iter().find(|it| it.segment.to_string() == node);
        replica.map_or(node, |it| inner.nodes.name(it.segment))
    };
    nodes.into_iter().map(name).collect()
}

/// The pieces of each object.
struct Pieces<'w, 'a>(&'w [Wanted<'a>]);

impl<'a> Wants<'a> for Pieces<'_, 'a> {
    fn ops(&self, item: usize, location: Location, _len: u64, add: &mut dyn FnMut(ReadOp<'a>)) -> bool {
        let Some(wanted) = self.0.get(item) else { return false };
        for piece in &wanted.pieces {
            let (slot, stamp) = (location.slot.0, location.stamp.0);
            add(ReadOp { slot, stamp, offset: piece.offset, targets: piece.targets.clone() });
        }
        true
    }
}
