//! Few bytes for a node without shared memory go with the question for their names.
//!
//! On their own they would take as long as that question does, and who puts waits for one after the other.
//! The session is told that they are written when only that question is left, which it then asks next; if
//! the question is asked again, they go with it again.

use std::collections::BTreeMap;

use tiffin_core::message::{Reply, Request, Store};
use tiffin_core::session::{Need, Peer, Put as Session, WriteResult};
use tiffin_core::{Hold, SegmentId};
use tiffin_transport::copy::copy_out;

use crate::inner::Inner;
use crate::put::{ToWrite, Writes};
use crate::{Deadline, Error, Put, Way};

/// The most bytes that one question takes along.
const CARRIED_BYTES_MAX: u64 = 16 << 10;

/// Those of each object that a question is about; none where they were written before.
pub(crate) type Bytes = Vec<Vec<u8>>;

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

    /// The bytes that go with a question, if any do.
    pub(crate) fn bytes_of(&self, puts: &[Put<'_>], peer: Peer, request: &Request) -> Option<Bytes> {
        let (Peer::Node(segment), Request::Commit(commit)) = (peer, request) else { return None };
        let put_of = |hold| self.0.get(&(segment, hold)).and_then(|item| puts.get(*item));
        let bytes = commit.items.iter().map(|it| put_of(it.hold));
        let bytes: Bytes = bytes.map(|put| put.map(gathered).unwrap_or_default()).collect();
        bytes.iter().any(|it| !it.is_empty()).then_some(bytes)
    }
}

/// Asks a node, and sends it the bytes that go with the question, if there are any.
pub(crate) async fn ask(
    inner: &Inner,
    segment: SegmentId,
    request: &Request,
    bytes: Option<Bytes>,
    deadline: Deadline,
) -> Result<Reply, Error> {
    let (Request::Commit(commit), Some(bytes)) = (request, bytes) else {
        return inner.ask_node(segment, request, deadline).await;
    };
    let count = bytes.iter().map(|it| it.len() as u64).sum();
    let store = Request::Store(Store { commit: commit.clone(), bytes });
    let reply = inner.ask_node(segment, &store, deadline).await?;
    inner.count_carried(count);
    Ok(reply)
}

/// Whether what goes to one node is little, and nothing but a question to that node follows.
fn may_be_carried(
    inner: &Inner,
    puts: &[Put<'_>],
    session: &Session,
    segment: SegmentId,
    writes: &[ToWrite],
) -> bool {
    let len = |(_, item, _): &ToWrite| puts.get(*item).and_then(Put::len).unwrap_or(u64::MAX);
    let bytes = writes.iter().map(len).fold(0, u64::saturating_add);
    bytes <= CARRIED_BYTES_MAX
        && writes.iter().all(|(_, item, _)| session.is_asked_next(*item, segment))
        && inner.current_route(segment).is_some_and(|it| it.way() == Way::Tcp)
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
        let along = |segment, request: &Request| carried.bytes_of(&puts, Peer::Node(segment), request);
        let about = |items| Request::Commit(Commit { items, wait_ms: 0 });
        let request = about(vec![item(0, 5), item(2, 0), item(1, 5)]);
        let expected = Some(vec![vec![], vec![], b"small".to_vec()]);
        assert_eq!(along(here, &request), expected);
        assert_eq!(along(here, &request), expected, "once more");
        let other = Some(vec![b"small".to_vec(), vec![], vec![]]);
        assert_eq!(along(there, &request), other, "another node has the same slots");
        assert_eq!(along(here, &about(vec![item(0, 5), item(2, 0)])), None);
        assert_eq!(along(here, &Request::Abort(vec![hold(1)])), None);
        assert_eq!(carried.bytes_of(&puts, Peer::Master, &request), None);
    }
}
