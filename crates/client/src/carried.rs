//! Sends the bytes of small objects inside the commit that names them, to nodes whose memory this client does
//! not write itself.
//!
//! That saves a round trip on the data connection. When only the commit is left to do, the session is told
//! that the bytes are written, and requests the commit next. If the commit is repeated, it carries the
//! bytes again.

use std::collections::BTreeMap;

use tiffin_session::{Need, Put as Session, WriteResult};
use tiffin_transport::copy::copy_out;
use tiffin_types::message::{ClientToNode, Reply, Store};
use tiffin_types::{SegmentId, SlotRef};

use crate::inner::Inner;
use crate::link::InPauses;
use crate::put::{ToWrite, Writes};
use crate::{Deadline, Error, Put};

/// Maximum number of bytes inside one commit; more bytes go through the data connection.
const CARRIED_BYTES_MAX: u64 = 16 << 10;

/// Why a call to a node has no reply.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// The node cannot be reached. The request was not sent, and neither were the bytes inside it.
    Unwritten(String),
    /// The node may have received it.
    Failed(Error),
}

/// The objects of a batch whose bytes go inside the commit. Two nodes may have the same slot and stamp.
#[derive(Default)]
pub(crate) struct Carried(BTreeMap<(SegmentId, SlotRef), usize>);

impl Carried {
    /// The next need. Once only writes are left, those whose bytes can go inside a commit are removed from
    /// `writes`.
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
            self.0.insert((reservation.location.segment, reservation.location.slot_ref()), item);
            session.written(id, WriteResult::Written);
        }
        session.poll()
    }

    /// The objects that were to be stored at these locations.
    pub(crate) fn items(&self, places: &[(SegmentId, SlotRef)]) -> impl Iterator<Item = usize> {
        places.iter().filter_map(|it| self.0.get(it).copied())
    }

    /// The bytes that go inside a commit, for each of its objects; empty if they were written before.
    /// `None` if there are none at all.
    pub(crate) fn bytes(
        &self,
        puts: &[Put<'_>],
        segment: SegmentId,
        request: &ClientToNode,
    ) -> Option<Vec<Vec<u8>>> {
        let ClientToNode::Commit(commit) = request else { return None };
        let bytes_of = |slot_ref| Some(gathered(puts.get(*self.0.get(&(segment, slot_ref))?)?));
        let bytes: Vec<_> = commit.items.iter().map(|it| bytes_of(it.slot_ref).unwrap_or_default()).collect();
        bytes.iter().any(|it| !it.is_empty()).then_some(bytes)
    }
}

/// Sends a request to a node, with `bytes` inside it if there are any.
pub(crate) async fn ask(
    inner: &Inner,
    segment: SegmentId,
    request: &ClientToNode,
    bytes: Option<Vec<Vec<u8>>>,
    in_pauses: InPauses,
    deadline: Deadline,
) -> Result<Reply, Unanswered> {
    let (ClientToNode::Commit(commit), Some(bytes)) = (request, bytes) else {
        return inner.ask_node(segment, request, deadline, in_pauses).await.map_err(Unanswered::Failed);
    };
    // The bytes can be sent to another node.
    let route = inner.nodes.control_route(segment, deadline, InPauses::Fail).await;
    let route = route.map_err(|error| Unanswered::Unwritten(error.to_string()))?;
    let count = bytes.iter().map(|it| it.len() as u64).sum();
    let store = ClientToNode::Store(Store { commit: commit.clone(), bytes });
    let reply = route.connection.call(&store, deadline.instant()).await;
    inner.nodes.count_carried(count);
    reply.map_err(|error| Unanswered::Failed(error.into()))
}

/// Whether few bytes cross a socket to this node, and the next step is a commit at the same node.
fn may_be_carried(
    inner: &Inner,
    puts: &[Put<'_>],
    session: &Session,
    segment: SegmentId,
    writes: &[ToWrite],
) -> bool {
    let len = |(_, item, _): &ToWrite| puts.get(*item).and_then(Put::len).unwrap_or(u64::MAX);
    writes.iter().map(len).fold(0, u64::saturating_add) <= CARRIED_BYTES_MAX
        && writes.iter().all(|(_, item, _)| session.is_asked_next(*item, segment))
        && writes.iter().all(|(_, item, _)| puts.get(*item).is_some_and(is_on_host))
        && inner.nodes.current_route(segment).is_some_and(|it| !it.writes_in_place())
}

/// Whether the processor can read the bytes.
fn is_on_host(put: &Put<'_>) -> bool {
    put.parts.iter().all(|part| part.place().is_none())
}

fn gathered(put: &Put<'_>) -> Vec<u8> {
    let mut bytes = vec![0; put.parts.iter().map(|part| part.len()).sum()];
    let mut rest = bytes.as_mut_slice();
    for part in &put.parts {
        let Some((target, more)) = rest.split_at_mut_checked(part.len()) else { break };
        copy_out(*part, target);
        rest = more;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use tiffin_transport::SourceBuf;
    use tiffin_types::message::{Commit, CommitItem, PutOptions};
    use tiffin_types::{Key, SlotId, Stamp};

    use super::*;

    #[test]
    fn repeated_commit_carries_the_bytes_again() {
        let key = Key::new(b"k").unwrap();
        let slot_ref = |slot| SlotRef { slot: SlotId(slot), stamp: Stamp(1) };
        let item = |slot, len| {
            let (key, options) = (key.clone(), PutOptions::default());
            CommitItem { slot_ref: slot_ref(slot), key, len, options, others: Vec::new() }
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
        let carried =
            Carried([((here, slot_ref(1)), 1), ((here, slot_ref(2)), 2), ((there, slot_ref(0)), 1)].into());
        let along = |segment, request: &ClientToNode| carried.bytes(&puts, segment, request);
        let about = |items| ClientToNode::Commit(Commit { items, wait_ms: 0 });
        let request = about(vec![item(0, 5), item(2, 0), item(1, 5)]);
        let expected = Some(vec![vec![], vec![], b"small".to_vec()]);
        assert_eq!(along(here, &request), expected);
        assert_eq!(along(here, &request), expected, "repeated");
        let other = Some(vec![b"small".to_vec(), vec![], vec![]]);
        assert_eq!(along(there, &request), other, "another node has the same slots");
        assert_eq!(along(here, &about(vec![item(0, 5), item(2, 0)])), None);
        assert_eq!(along(here, &ClientToNode::Abort(vec![slot_ref(1)])), None);
    }
}
