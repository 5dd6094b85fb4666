//! Puts that replace objects of their home node: the node is told about both, and answered behind that.

use std::collections::BTreeSet;

use super::*;
use crate::{
    Reservation,
    message::{Commit, CommitItem},
    mutant::Mutant,
};

/// A node on another host than the master.
fn far(units: u64, change: impl Fn(&mut MasterConfig)) -> Cluster {
    let mut cluster = Cluster::with(&[], change);
    (cluster.is_on_same_host, cluster.takes_at_once) = (false, false);
    cluster.add_node(units * UNIT, |it| (it.slot_count, it.heap_bytes) = (4_096, 1 << 20));
    cluster
}

/// The numbers of objects that the waiting messages to a node store, and of copies that they retire.
fn settles(cluster: &Cluster, index: usize) -> Vec<(usize, usize)> {
    let settle = |it: &(RequestId, MasterToMember)| match &it.1 {
        MasterToMember::Settle(settle) => (settle.commit.len(), settle.retire.len()),
        MasterToMember::Retire(retire) => (0, retire.slot_refs.iter().collect::<BTreeSet<_>>().len()),
        other => panic!("{other:?}"),
    };
    cluster.held_up[index].iter().map(settle).collect()
}

/// A stalled node that has asked about a second object "a". The node has the first one.
fn asked(mutant: Mutant) -> (Cluster, RequestId) {
    let mut cluster = far(10, |config| config.mutant = mutant);
    assert_eq!(cluster.put("a", 10, plain()), CommitOutcome::Stored(generation(1)));
    let second = cluster.space("a");
    cluster.hold_up(0);
    let id = cluster.send_commit("a", 10, plain(), &[second]);
    (cluster, id)
}

fn committed(cluster: &mut Cluster, id: RequestId) -> Option<CommitOutcome> {
    match cluster.replies.remove(&id)? {
        Reply::Committed(mut outcomes) => Some(outcomes.remove(0)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn home_is_told_once_and_answered_behind() {
    let (mut cluster, id) = asked(Mutant::None);
    assert_eq!(settles(&cluster, 0), [(1, 1)], "it stores the new object and retires the old one");
    assert_eq!(cluster.held_answers[0].len(), 1, "the answer does not wait for the node");
    assert_eq!(committed(&mut cluster, id), None, "but the node does not pass it on before");
    cluster.let_go(0);
    assert_eq!(committed(&mut cluster, id), Some(CommitOutcome::Replaced(generation(2))));
    assert_eq!((cluster.inventory(0), cluster.nodes[0].usage().free), (vec!["a".to_owned()], 9 * UNIT));
    assert_eq!(cluster.delete("a", false), Some(DeleteOutcome::Deleted));
    assert_eq!(cluster.nodes[0].usage().free, 10 * UNIT);
    assert_eq!(cluster.master.objects.cx.pending_retires.len(), 0);
    assert!(cluster.master.objects.cx.held_retires.is_empty());
}

#[cfg(feature = "mutants")]
#[test]
fn home_retires_before_it_has_the_answer() {
    let (cluster, _) = asked(Mutant::AnswerUnretired);
    assert_eq!(settles(&cluster, 0), [(1, 0)]);
    assert_eq!(cluster.held_answers[0].len(), 1, "a reader validates the old object after this answer");
}

#[test]
fn lost_message_keeps_the_old_object_until_the_new_one_is_stored() {
    let (mut cluster, id) = asked(Mutant::None);
    cluster.held_up[0].clear();
    cluster.held_answers[0].clear();
    cluster.is_held_up[0] = false;
    cluster.unlink(0);
    assert_eq!(cluster.nodes[0].usage().free, 8 * UNIT, "the node has both");
    cluster.link(0);
    assert_eq!(committed(&mut cluster, id), Some(CommitOutcome::Stored(generation(2))));
    assert_eq!((cluster.inventory(0), cluster.nodes[0].usage().free), (vec!["a".to_owned()], 9 * UNIT));
    assert!(cluster.master.objects.cx.held_retires.is_empty());
}

#[test]
fn delete_behind_an_open_message_waits_for_no_save() {
    let mut cluster = far(10, |config| config.durable = true);
    cluster.put("a", 10, plain());
    let second = cluster.space("a");
    cluster.hold_up(0);
    cluster.send_commit("a", 10, plain(), &[second]);
    cluster.unsynced = Some(Vec::new());
    let delete = Delete { keys: vec![key("a")], force: false, wait_ms: 500 };
    let id = cluster.send(ClientToMaster::Delete(delete));
    assert_eq!(settles(&cluster, 0), [(1, 1), (0, 2)], "both are retired behind the message");
    cluster.let_go(0);
    let deleted = Some(Reply::Deleted(vec![DeleteOutcome::Deleted]));
    assert_eq!((cluster.replies.remove(&id), cluster.nodes[0].usage().free), (deleted, 10 * UNIT));
}

#[test]
fn copies_on_other_nodes_are_retired_after_the_new_object_is_stored() {
    let mut cluster = far(10, |_| ());
    cluster.put("a", 10, plain());
    cluster.add_node(20 * UNIT, |_| ());
    let second = cluster.space("a");
    assert_eq!(second.location.segment, SegmentId(2), "it has more free memory");
    (0..2).for_each(|node| cluster.hold_up(node));
    let id = cluster.send_commit("a", 10, plain(), &[second]);
    assert_eq!((settles(&cluster, 0), settles(&cluster, 1)), (vec![], vec![(1, 0)]));
    cluster.let_go(1);
    assert_eq!(settles(&cluster, 0), [(0, 1)]);
    assert_eq!(committed(&mut cluster, id), None);
    cluster.let_go(0);
    assert_eq!(committed(&mut cluster, id), Some(CommitOutcome::Replaced(generation(2))));
}

#[test]
fn large_batches_are_answered_when_the_home_has_confirmed() {
    let mut cluster = far(10_000, |_| ());
    let count = 1_025;
    for expected in [vec![], vec![(count, 0)]] {
        let names = (0..count).map(|it| it.to_string());
        let spaces: Vec<_> = names.map(|it| (it.clone(), cluster.space(&it))).collect();
        if !expected.is_empty() {
            cluster.hold_up(0);
        }
        let item = |(name, space): &(String, Reservation)| CommitItem {
            slot_ref: space.location.slot_ref(),
            key: key(name),
            len: 10,
            options: plain(),
            others: Vec::new(),
        };
        let items = spaces.iter().map(item).collect();
        cluster.node_request(0, ClientToNode::Commit(Commit { items, wait_ms: 500 }));
        assert_eq!((settles(&cluster, 0), cluster.held_answers[0].len()), (expected, 0));
    }
}

/// A node whose copies the master can withdraw. It is stalled, and a second object "a" was published.
fn withdrawn() -> Cluster {
    let mut cluster = Cluster::new(&[]);
    cluster.can_withdraw = true;
    cluster.add_node(10 * UNIT, |_| ());
    for (counter, is_stalled) in [(1, false), (2, true)] {
        let space = cluster.space("a");
        if is_stalled {
            cluster.hold_up(0);
        }
        let id = cluster.send_publish("a", plain(), &space);
        assert!(cluster.published(id).is_some_and(|it| it.is_some()), "object {counter} is published");
    }
    assert_eq!((settles(&cluster, 0), cluster.withdrawn.len()), (vec![(1, 1)], 1));
    cluster
}

#[test]
fn withdrawn_copies_are_owed_by_a_node_that_leaves() {
    let mut cluster = withdrawn();
    cluster.let_go(0);
    assert_eq!(cluster.master.objects.cx.pending_retires.len(), 0);
    let mut cluster = withdrawn();
    cluster.unlink(0);
    assert_eq!(cluster.master.objects.cx.members.iter().map(|(_, it)| it.owed.len()).sum::<usize>(), 1);
    assert!(cluster.master.objects.cx.held_retires.is_empty());
    // Its socket buffer outlives the connection.
    cluster.let_go(0);
    cluster.link(0);
    assert_eq!((cluster.inventory(0), cluster.nodes[0].usage().free), (vec!["a".to_owned()], 9 * UNIT));
}
