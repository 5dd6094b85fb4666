//! Bytes for a node without shared memory go with the question for their names: few in it, more before it on
//! the same stream.
//!
//! On their own, who puts would wait for one after the other. The session is told that they are written when
//! only that question is left, which it then asks next; if the question is asked again, they go with it
//! again.

use std::collections::BTreeMap;

use tiffin_core::message::{Reply, Request, Store};
use tiffin_core::session::{Need, Peer, Put as Session, WriteResult};
use tiffin_core::{Hold, SegmentId};
use tiffin_transport::WriteOp;
use tiffin_transport::copy::copy_out;

use crate::inner::Inner;
use crate::put::{ToWrite, Writes};
use crate::{Deadline, Error, Put};

/// The most bytes that come in a question.
const CARRIED_BYTES_MAX: u64 = 16 << 10;

/// How bytes go with a question.
#[derive(Debug)]
pub(crate) enum Along<'a> {
    /// In it: those of each object that it is about; none where they were written before.
    Inside(Vec<Vec<u8>>),
    /// Before it, through the data socket.
    Ahead(Vec<WriteOp<'a>>),
}

/// Why a question has no answer.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// The bytes that go with it did not get there, and it was not asked.
    Unwritten(String),
    /// It may have been asked.
    Failed(Error),
}

impl<E: Into<Error>> From<E> for Unanswered {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Which objects of a batch have not been written but go with the question. Two nodes may have the same slot
/// and stamp.
#[derive(Default)]
pub(crate) struct Carried(BTreeMap<(SegmentId, Hold), usize>);

impl Carried {
    /// The next thing to do, other than those writes. Those that need not be are taken out, once there is
    /// nothing else to do.
    pub(crate) fn next_need(
        &mut self,
        inner: &Inner,
        puts: &[Put<'_>],
        session: &mut Session,
        writes: &mut Writes,
    ) -> Option<Need> {
        if let Some(need) = session.poll() {
            return Some(need);
        }
        let may =
            |segment: &SegmentId, writes: &mut Vec<_>| may_be_carried(inner, puts, session, *segment, writes);
        let carried: Vec<_> = writes.extract_if(.., may).flat_map(|(_, writes)| writes).collect();
        for (id, item, reservation) in carried {
            self.0.insert((reservation.location.segment, reservation.location.hold()), item);
            session.written(id, WriteResult::Written);
        }
        session.poll()
    }

    /// Which objects are to lie there.
    pub(crate) fn items(&self, places: &[(SegmentId, Hold)]) -> impl Iterator<Item = usize> {
        places.iter().filter_map(|it| self.0.get(it).copied())
    }

    /// The bytes that go with a question, if any do.
    pub(crate) fn along<'a>(&self, puts: &[Put<'a>], peer: Peer, request: &Request) -> Option<Along<'a>> {
        let (Peer::Node(segment), Request::Commit(commit)) = (peer, request) else { return None };
        let item_of = |hold| Some((hold, puts.get(*self.0.get(&(segment, hold))?)?));
        let carried: Vec<_> = commit.items.iter().map(|it| item_of(it.hold)).collect();
        let len = |put: &Put<'_>| put.len().unwrap_or(u64::MAX);
        let bytes = carried.iter().flatten().map(|(_, put)| len(put)).fold(0, u64::saturating_add);
        match bytes {
            0 => None,
            1..=CARRIED_BYTES_MAX => {
                let bytes = carried.iter().map(|it| it.map(|(_, put)| gathered(put)).unwrap_or_default());
                Some(Along::Inside(bytes.collect()))
            }
            _ => Some(Along::Ahead(carried.into_iter().flatten().map(|it| write_op(it.0, it.1)).collect())),
        }
    }
}

fn write_op<'a>(hold: Hold, put: &Put<'a>) -> WriteOp<'a> {
    WriteOp { slot: hold.slot.0, stamp: hold.stamp.0, offset: 0, sources: put.parts.clone() }
}

/// Asks a node, and sends it the bytes that go with the question, if there are any.
pub(crate) async fn ask(
    inner: &Inner,
    segment: SegmentId,
    request: &Request,
    along: Option<Along<'_>>,
    deadline: Deadline,
) -> Result<Reply, Unanswered> {
    match (request, along) {
        (Request::Commit(commit), Some(Along::Inside(bytes))) => {
            let count = bytes.iter().map(|it| it.len() as u64).sum();
            let store = Request::Store(Store { commit: commit.clone(), bytes });
            let reply = inner.ask_node(segment, &store, deadline).await?;
            inner.count_carried(count);
            Ok(reply)
        }
        (_, Some(Along::Ahead(ops))) => {
            let unreachable = |error: Error| Unanswered::Unwritten(error.to_string());
            let route = inner.route(segment, deadline).await.map_err(unreachable)?;
            route.write_and_ask(&ops, request, deadline).await
        }
        _ => Ok(inner.ask_node(segment, request, deadline).await?),
    }
}

/// Whether what goes to one node crosses a socket, in one stream, and nothing but a question to that node
/// follows.
fn may_be_carried(
    inner: &Inner,
    puts: &[Put<'_>],
    session: &Session,
    segment: SegmentId,
    writes: &[ToWrite],
) -> bool {
    let len = |(_, item, _): &ToWrite| puts.get(*item).and_then(Put::len).unwrap_or(u64::MAX);
    let bytes = writes.iter().map(len).fold(0, u64::saturating_add);
    writes.iter().all(|(_, item, _)| session.is_asked_next(*item, segment))
        && inner.current_route(segment).is_some_and(|it| it.takes_along(bytes))
}

fn gathered(put: &Put<'_>) -> Vec<u8> {
    let mut bytes = vec![0; put.parts.iter().map(|part| part.len()).sum()];
    let mut rest = bytes.as_mut_slice();
    for part in &put.parts {
        let Some((room, more)) = rest.split_at_mut_checked(part.len()) else { break };
        copy_out(*part, room);
        rest = more;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use tiffin_core::message::{Commit, CommitItem, PutOptions};
    use tiffin_core::{Key, SlotId, Stamp};
    use tiffin_transport::SourceBuf;

    use super::*;

    #[test]
    fn those_that_are_carried_go_with_every_question_about_them() {
        let key = Key::new(b"k").unwrap();
        let hold = |slot| Hold { slot: SlotId(slot), stamp: Stamp(1) };
        let item = |slot, len| {
            let (key, options) = (key.clone(), PutOptions::default());
            CommitItem { hold: hold(slot), key, len, options, others: Vec::new() }
        };
        let puts = [
            Put::new(key.clone(), b"large"),
            Put {
                parts: [&b"sm"[..], b"", b"all"].map(SourceBuf::from).to_vec(),
                ..Put::new(key.clone(), b"")
            },
            Put::new(key.clone(), b""),
        ];
        let (here, there) = (SegmentId(1), SegmentId(2));
        let carried = Carried([((here, hold(1)), 1), ((here, hold(2)), 2), ((there, hold(0)), 1)].into());
        let along = |segment, request: &Request| match carried.along(&puts, Peer::Node(segment), request) {
            Some(Along::Inside(bytes)) => Some(bytes),
            Some(Along::Ahead(_)) => panic!("these are few bytes"),
            None => None,
        };
        let about = |items| Request::Commit(Commit { items, wait_ms: 0 });
        let request = about(vec![item(0, 5), item(2, 0), item(1, 5)]);
        let expected = Some(vec![vec![], vec![], b"small".to_vec()]);
        assert_eq!(along(here, &request), expected);
        assert_eq!(along(here, &request), expected, "once more");
        let other = Some(vec![b"small".to_vec(), vec![], vec![]]);
        assert_eq!(along(there, &request), other, "another node has the same slots");
        assert_eq!(along(here, &about(vec![item(0, 5), item(2, 0)])), None);
        assert_eq!(along(here, &Request::Abort(vec![hold(1)])), None);
        assert!(carried.along(&puts, Peer::Master, &request).is_none());
    }

    #[test]
    fn many_bytes_go_ahead_of_the_question() {
        let key = Key::new(b"k").unwrap();
        let bytes = vec![7; CARRIED_BYTES_MAX as usize];
        let hold = |slot| Hold { slot: SlotId(slot), stamp: Stamp(5) };
        let puts = [Put::new(key.clone(), &bytes), Put::new(key.clone(), b"x"), Put::new(key.clone(), b"y")];
        let item = |slot, len| {
            let (key, options) = (key.clone(), PutOptions::default());
            CommitItem { hold: hold(slot), key, len, options, others: Vec::new() }
        };
        let here = SegmentId(1);
        let carried = Carried([((here, hold(0)), 0), ((here, hold(1)), 1)].into());
        let items = vec![item(0, CARRIED_BYTES_MAX), item(1, 1), item(2, 1)];
        let request = Request::Commit(Commit { items, wait_ms: 0 });
        let Some(Along::Ahead(ops)) = carried.along(&puts, Peer::Node(here), &request) else {
            panic!("not ahead")
        };
        let ops: Vec<_> = ops.iter().map(|op| (op.slot, op.stamp, op.offset, op.bytes())).collect();
        assert_eq!(ops, [(0, 5, 0, CARRIED_BYTES_MAX), (1, 5, 0, 1)], "not what was written before");
    }
}
