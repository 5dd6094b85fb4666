//! The rules of publishing, one test each.

use tiffin_node as node;

use super::*;
use crate::{
    Reservation,
    message::{
        CommitItem, CommitOutcome, DeleteOutcome, Exists, Presence, Publish, PublishItem, PutOptions, Record,
        Replacement, ReserveOutcome, ResolveOutcome, Retire, Settle, Settled,
    },
};

impl Cluster {
    /// Reserves memory for an object of ten bytes.
    pub(in crate::master) fn space(&mut self, name: &str) -> Reservation {
        match self.reserve(name, 10, plain()) {
            ReserveOutcome::Space(mut space) => space.remove(0),
            other => panic!("{other:?}"),
        }
    }

    pub(in crate::master) fn send_publish(
        &mut self,
        name: &str,
        options: PutOptions,
        space: &Reservation,
    ) -> RequestId {
        let item = CommitItem {
            slot_ref: space.location.slot_ref(),
            key: key(name),
            len: 10,
            options,
            others: vec![],
        };
        let items = vec![PublishItem { home: space.location.segment, item }];
        self.send(ClientToMaster::Publish(Publish { items, wait_ms: 500 }))
    }

    /// The outcome, or `Some(None)` if the client must commit at the node. `None` while there is no answer.
    pub(in crate::master) fn published(&mut self, id: RequestId) -> Option<Option<CommitOutcome>> {
        match self.replies.remove(&id) {
            Some(Reply::Published(mut outcomes)) => Some(outcomes.remove(0)),
            None => None,
            other => panic!("{other:?}"),
        }
    }

    fn publish(&mut self, name: &str, options: PutOptions) -> Option<Option<CommitOutcome>> {
        let space = self.space(name);
        let id = self.send_publish(name, options, &space);
        self.published(id)
    }

    pub(in crate::master) fn inventory(&self, index: usize) -> Vec<String> {
        let name = |it: Record| String::from_utf8_lossy(it.key.as_bytes()).into_owned();
        self.nodes[index].inventory().into_iter().map(name).collect()
    }
}

fn stored(counter: u64) -> Option<Option<CommitOutcome>> {
    Some(Some(CommitOutcome::Stored(generation(counter))))
}

/// The client must commit at the home node.
const ASK: Option<Option<CommitOutcome>> = Some(None);

#[test]
fn published_object_is_found_and_stored_on_its_node() {
    let mut cluster = Cluster::new(&[10 * UNIT]);
    assert_eq!(cluster.publish("a", plain()), stored(1));
    assert_eq!(cluster.inventory(0), ["a"]);
    let usage = cluster.nodes[0].usage();
    assert_eq!((usage.objects, usage.granted), (1, 0));
    assert_eq!(cluster.master.stat().namespaces[0].granted, 0);
    assert!(cluster.has("a"));
    assert_eq!(cluster.publish("a", plain()), Some(Some(CommitOutcome::Replaced(generation(2)))));
    assert_eq!(cluster.publish("a", keep()), Some(Some(CommitOutcome::Exists(generation(2)))));
    let usage = cluster.nodes[0].usage();
    assert_eq!((usage.objects, usage.granted), (1, 0), "the copy without a name is returned");
    assert_eq!(cluster.delete("a", false), Some(DeleteOutcome::Deleted));
    assert_eq!(cluster.nodes[0].usage().free, 10 * UNIT);
}

#[test]
fn publish_is_answered_when_the_message_is_sent() {
    for is_taken in [true, false] {
        let mut cluster = Cluster::new(&[10 * UNIT]);
        let space = cluster.space("a");
        cluster.takes_at_once = is_taken;
        cluster.hold_up(0);
        let id = cluster.send_publish("a", plain(), &space);
        assert_eq!(cluster.published(id), is_taken.then_some(stored(1).flatten()));
        assert_eq!(cluster.inventory(0), [""; 0]);
        cluster.let_go(0);
        assert_eq!(cluster.published(id), (!is_taken).then_some(stored(1).flatten()));
        assert_eq!(cluster.inventory(0), ["a"]);
    }
}

#[test]
fn one_reply_confirms_several_publications() {
    let mut cluster = Cluster::new(&[10 * UNIT, 0]);
    let reservations = ["a", "b", "c"].map(|name| cluster.space(name));
    assert!(reservations.iter().all(|it| it.location.segment == reservations[0].location.segment));
    cluster.takes_at_once = false;
    cluster.hold_up(0);
    let ids = ["a", "b", "c"].map(|name| {
        cluster.send_publish(name, plain(), &reservations[usize::from(name.as_bytes()[0] - b'a')])
    });
    let words = std::mem::take(&mut cluster.held_up[0]).into_iter().map(|(id, request)| match request {
        MasterToMember::Settle(settle) => (id, settle),
        other => panic!("{other:?}"),
    });
    let mut words: Vec<_> = words.collect();
    assert_eq!(words.len(), 3);
    // No other node can confirm for it, nor can it confirm an unknown request.
    let also: Vec<_> = words.iter().map(|it| it.0).chain([RequestId(u64::MAX)]).collect();
    let settled = Settled { also, ..Settled::default() };
    cluster.event(Event::Reply(cluster.links[1], RequestId(u64::MAX), Reply::Settled(settled)));
    assert!(ids.iter().all(|id| cluster.published(*id).is_none()));
    // One of them is gone there, and the others count.
    let gone = words[1].1.commit[0].slot_ref;
    cluster.nodes[0].handle(node::Event::MasterRequest(
        RequestId(0),
        MasterToMember::Retire(Retire { slot_refs: vec![gone] }),
    ));
    while cluster.nodes[0].poll_effect().is_some() {}
    cluster.is_held_up[0] = false;
    words.rotate_left(1);
    cluster.node_event(0, node::Event::LedgerRead(words));
    let all: Vec<_> = ids.iter().map(|id| cluster.published(*id)).collect();
    assert_eq!(all, [stored(1), stored(2), stored(3)]);
    assert_eq!(cluster.inventory(0), ["a", "c"]);
    assert!(cluster.has("a") && !cluster.has("b") && cluster.has("c"));
}

#[test]
fn lookup_makes_the_node_read_its_ledger() {
    let mut cluster = Cluster::new(&[10 * UNIT]);
    let reservations = ["a", "b"].map(|name| cluster.space(name));
    cluster.hold_up(0);
    let asked = |cluster: &Cluster| {
        let look = MasterToMember::Settle(Settle::default());
        cluster.held_up[0].iter().filter(|(_, request)| *request == look).count()
    };
    cluster.send_publish("a", plain(), &reservations[0]);
    assert_eq!(asked(&cluster), 0, "no client has looked it up");
    assert!(cluster.has("a") && cluster.has("a"));
    assert_eq!(asked(&cluster), 1);
    cluster.send_publish("b", plain(), &reservations[1]);
    assert!(cluster.has("a"));
    assert_eq!(asked(&cluster), 1, "it was asked a moment ago");
    cluster.wait(2);
    let exists = Exists { keys: [key("c"), key("b")].iter().collect(), ..Exists::default() };
    let present = Reply::Present(vec![Presence::Absent, Presence::Here]);
    assert_eq!(cluster.ask(ClientToMaster::Exists(exists)), Some(present));
    assert_eq!(asked(&cluster), 2, "a client that probes may read the object");
    cluster.wait(2);
    assert!(cluster.has("a"));
    assert_eq!(asked(&cluster), 2, "the ledger is empty");
    cluster.let_go(0);
    assert_eq!(cluster.inventory(0), ["a", "b"]);
}

#[test]
fn lookup_makes_every_involved_node_read_its_ledger() {
    let mut cluster = Cluster::new(&[10 * UNIT, 10 * UNIT, 10 * UNIT]);
    let on = |node: usize| PutOptions { preferred: vec![format!("node{node}")], ..plain() };
    for (name, node) in [("a", 1), ("b", 2), ("c", 3)] {
        let ReserveOutcome::Space(space) = cluster.reserve(name, 10, on(node)) else { panic!() };
        cluster.hold_up(node - 1);
        cluster.send_publish(name, plain(), &space[0]);
    }
    let exists = Exists { keys: [key("a"), key("b"), key("a")].iter().collect(), ..Exists::default() };
    cluster.ask(ClientToMaster::Exists(exists));
    let look = MasterToMember::Settle(Settle::default());
    let looks = |node: usize| cluster.held_up[node].iter().filter(|(_, request)| *request == look).count();
    assert_eq!([0, 1, 2].map(looks), [1, 1, 0]);
}

#[test]
fn demotion_makes_the_node_read_its_ledger() {
    for is_through in [true, false] {
        let mut cluster = Cluster::tiered(&[10], |_| ());
        if is_through {
            cluster.write_through();
        }
        let space = cluster.space("a");
        cluster.hold_up(0);
        cluster.disks[0].held_up = true;
        cluster.send_publish("a", plain(), &space);
        let look = MasterToMember::Settle(Settle::default());
        assert_eq!(cluster.disks[0].to_do.len(), usize::from(is_through));
        assert_eq!(cluster.held_up[0].iter().any(|(_, request)| *request == look), is_through);
        cluster.let_go(0);
        cluster.let_disk_go(0);
        assert_eq!(cluster.where_is("a"), (true, is_through));
    }
}

#[test]
fn full_ledger_makes_the_node_read_it() {
    // By the number of bytes, most of which are in long names.
    for (name_len, count_max) in [(16, 225), (1024, 121)] {
        let mut cluster = Cluster::new(&[100 * UNIT]);
        let name = "n".repeat(name_len);
        let mut asked = 0;
        for count in 1..=600 {
            let space = cluster.space(&name);
            cluster.hold_up(0);
            cluster.send_publish(&name, plain(), &space);
            let look = MasterToMember::Settle(Settle::default());
            asked += cluster.held_up[0].iter().filter(|(_, request)| *request == look).count();
            assert_eq!(asked, count / count_max, "{name_len} bytes");
            cluster.let_go(0);
            assert_eq!(cluster.delete(&name, false), Some(DeleteOutcome::Deleted));
        }
    }
}

#[test]
fn aborts_are_sent_through_the_ledger_too() {
    let mut cluster = Cluster::new(&[100 * UNIT]);
    assert_eq!(cluster.publish("a", plain()), stored(1));
    let mut asked = 0;
    for count in 1..=600 {
        let space = cluster.space("a");
        cluster.hold_up(0);
        let id = cluster.send_publish("a", keep(), &space);
        assert_eq!(cluster.published(id), Some(Some(CommitOutcome::Exists(generation(1)))));
        let look = MasterToMember::Settle(Settle::default());
        asked += cluster.held_up[0].iter().filter(|(_, request)| *request == look).count();
        // The first message is the one of the object itself.
        assert_eq!(asked, [227, 455].into_iter().filter(|it| count >= *it).count(), "{count}");
        cluster.let_go(0);
    }
}

#[test]
fn lost_publication_is_sent_again() {
    let mut cluster = Cluster::new(&[10 * UNIT]);
    let space = cluster.space("a");
    cluster.node_event(0, node::Event::Mapped(ClientId(7)));
    cluster.takes_at_once = false;
    cluster.hold_up(0);
    let id = cluster.send_publish("a", plain(), &space);
    assert_eq!(cluster.published(id), None);
    cluster.held_up[0].clear();
    cluster.unlink(0);
    assert_eq!(cluster.published(id), ASK);
    cluster.let_go(0);
    cluster.link(0);
    assert_eq!(cluster.inventory(0), ["a"], "it is stored nevertheless");
    assert!(cluster.has("a"));
    let again = cluster.commit("a", 10, plain(), &[space]);
    assert_eq!(again, CommitOutcome::Stored(generation(1)), "a commit at the node confirms that");
}

#[test]
fn lost_publication_of_a_deleted_object_is_not_sent_again() {
    let mut cluster = Cluster::new(&[10 * UNIT]);
    let space = cluster.space("a");
    cluster.node_event(0, node::Event::Mapped(ClientId(7)));
    cluster.hold_up(0);
    let id = cluster.send_publish("a", plain(), &space);
    assert_eq!(cluster.published(id), stored(1), "the message is in the node's socket buffer");
    cluster.held_up[0].clear();
    cluster.unlink(0);
    assert_eq!(cluster.delete("a", false), Some(DeleteOutcome::Unconfirmed(vec!["node1".into()])));
    cluster.let_go(0);
    cluster.link(0);
    assert_eq!(cluster.inventory(0), [""; 0]);
    assert_eq!(cluster.nodes[0].usage().free, 10 * UNIT);
    assert_eq!(cluster.delete("a", false), Some(DeleteOutcome::Absent));
}

#[test]
fn client_commits_at_a_silent_node_itself() {
    let mut cluster = Cluster::new(&[10 * UNIT]);
    let (first, second) = (cluster.space("a"), cluster.space("b"));
    cluster.takes_at_once = false;
    cluster.hold_up(0);
    let id = cluster.send_publish("a", plain(), &first);
    cluster.wait(1_000);
    assert_eq!(cluster.published(id), ASK, "it became silent");
    let id = cluster.send_publish("b", plain(), &second);
    assert_eq!(cluster.published(id), ASK, "it is silent");
    cluster.let_go(0);
    assert_eq!(cluster.inventory(0), ["a"]);
}

#[test]
fn only_plain_objects_on_the_masters_host_are_published() {
    let mut cluster = Cluster::new(&[20 * UNIT, 20 * UNIT]);
    let space = cluster.space("a");
    for options in [pinned(), PutOptions { sample: Some(crate::attributes::Consumption::Once), ..plain() }] {
        let id = cluster.send_publish("a", options, &space);
        assert_eq!(cluster.published(id), ASK, "it has attributes");
    }
    let id = cluster.send_publish("a name that is longer than the reservation allows", plain(), &space);
    assert_eq!(cluster.published(id), ASK);
    let CommitItem { slot_ref, .. } = CommitItem {
        slot_ref: space.location.slot_ref(),
        key: key("a"),
        len: 10,
        options: plain(),
        others: vec![],
    };
    let other = CommitItem { slot_ref, key: key("a"), len: 11, options: plain(), others: vec![] };
    let two = CommitItem { len: 10, others: vec![space.location], ..other.clone() };
    for item in [other, two] {
        let items = vec![PublishItem { home: space.location.segment, item }];
        let reply = cluster.ask(ClientToMaster::Publish(Publish { items, wait_ms: 0 }));
        assert_eq!(reply, Some(Reply::Published(vec![None])), "another length, or another copy");
    }
    cluster.open(ConnId(2), 8);
    let (mine, id) = (space.location.slot_ref(), RequestId(77));
    let item = CommitItem { slot_ref: mine, key: key("a"), len: 10, options: plain(), others: vec![] };
    let items = vec![PublishItem { home: space.location.segment, item }];
    cluster.event(Event::Request(
        ConnId(2),
        id,
        ClientToMaster::Publish(Publish { items, wait_ms: 0 }).into(),
    ));
    assert_eq!(cluster.published(id), ASK, "the reservation of another client");
    let id = cluster.send_publish("a", plain(), &space);
    assert_eq!(cluster.published(id), stored(1));
    let id = cluster.send_publish("a", plain(), &space);
    assert_eq!(cluster.published(id), ASK, "the reservation is used up");
    let index = space.location.segment.0 as usize - 1;
    cluster.is_on_same_host = false;
    cluster.unlink(index);
    cluster.link(index);
    let far = PutOptions { preferred: vec![format!("node{}", index + 1)], ..plain() };
    let ReserveOutcome::Space(space) = cluster.reserve("b", 10, far) else { panic!() };
    let id = cluster.send_publish("b", plain(), &space[0]);
    assert_eq!(cluster.published(id), ASK, "the node is on another host");
}

#[test]
fn ended_reservation_is_not_published() {
    let mut cluster = Cluster::new(&[10 * UNIT]);
    let (late, early) = (cluster.space("late"), cluster.space("early"));
    cluster.node_event(0, node::Event::Mapped(ClientId(7)));
    cluster.node_request(0, ClientToNode::Abort(vec![late.location.slot_ref()]));
    let id = cluster.send_publish("late", plain(), &late);
    assert_eq!(cluster.published(id), ASK);
    assert_eq!(cluster.commit("late", 10, plain(), &[late]), CommitOutcome::Stale);
    cluster.hold_up(0);
    let id = cluster.send_publish("early", plain(), &early);
    assert_eq!(cluster.published(id), stored(1));
    // Its writer dies before the node reads the ledger: the reply to that follows the message.
    let word = std::mem::take(&mut cluster.held_up[0]);
    cluster.nodes[0].handle(node::Event::Dead(ClientId(7)));
    cluster.held_up[0] = word;
    cluster.let_go(0);
    cluster.node_event(0, node::Event::Beat);
    assert_eq!(cluster.inventory(0), ["early"]);
    assert_eq!(cluster.nodes[0].usage().granted, 0);
}

#[test]
fn replacement_waits_for_the_retire_of_the_old_object() {
    let mut cluster = Cluster::new(&[10 * UNIT, 10 * UNIT]);
    let first = PutOptions { preferred: vec!["node1".into()], ..plain() };
    assert_eq!(cluster.put("a", 10, first), CommitOutcome::Stored(generation(1)));
    let elsewhere = PutOptions { preferred: vec!["node2".into()], ..plain() };
    let ReserveOutcome::Space(space) = cluster.reserve("a", 10, elsewhere) else { panic!() };
    cluster.hold_up(0);
    let id = cluster.send_publish("a", plain(), &space[0]);
    assert_eq!(cluster.published(id), None);
    cluster.wait(500);
    let replacement = Replacement { generation: generation(2), replaced: true, nodes: vec!["node1".into()] };
    assert_eq!(cluster.published(id), Some(Some(CommitOutcome::Unconfirmed(replacement))));
    cluster.let_go(0);
    assert_eq!((cluster.inventory(0), cluster.inventory(1)), (vec![], vec!["a".to_owned()]));
}

#[test]
fn batch_is_one_message_per_node() {
    let mut cluster = Cluster::new(&[20 * UNIT]);
    let reservations = [cluster.space("a"), cluster.space("b"), cluster.space("c")];
    let item = |name: &str, space: &Reservation| PublishItem {
        home: space.location.segment,
        item: CommitItem {
            slot_ref: space.location.slot_ref(),
            key: key(name),
            len: 10,
            options: plain(),
            others: vec![],
        },
    };
    let mut items: Vec<_> =
        ["a", "b", "c"].iter().zip(&reservations).map(|(name, space)| item(name, space)).collect();
    items[1].home = SegmentId(99);
    cluster.hold_up(0);
    let reply = cluster.ask(ClientToMaster::Publish(Publish { items, wait_ms: 0 }));
    let outcomes =
        [Some(CommitOutcome::Stored(generation(1))), None, Some(CommitOutcome::Stored(generation(2)))];
    assert_eq!(reply, Some(Reply::Published(outcomes.to_vec())));
    assert_eq!(cluster.held_up[0].len(), 1);
    assert!(
        matches!(cluster.resolve("a", false), ResolveOutcome::Found(_)),
        "although its node has not read the ledger"
    );
    cluster.let_go(0);
    assert_eq!(cluster.inventory(0), ["a", "c"]);
}

/// A master that can withdraw the copies of its only node, which holds the first object of a name.
fn withdrawing() -> (Cluster, Reservation) {
    let mut cluster = Cluster::new(&[]);
    cluster.can_withdraw = true;
    cluster.add_node(10 * UNIT, |_| ());
    let first = cluster.space("a");
    let id = cluster.send_publish("a", plain(), &first);
    assert_eq!(cluster.published(id), stored(1));
    (cluster, first)
}

fn replaced(counter: u64) -> Option<Option<CommitOutcome>> {
    Some(Some(CommitOutcome::Replaced(generation(counter))))
}

#[test]
fn replaced_object_is_withdrawn_and_its_node_not_awaited() {
    let (mut cluster, first) = withdrawing();
    let second = cluster.space("a");
    cluster.hold_up(0);
    let id = cluster.send_publish("a", plain(), &second);
    assert_eq!(cluster.published(id), replaced(2), "the node has read nothing");
    assert_eq!(cluster.withdrawn, [(cluster.links[0], first.location.slot_ref())]);
    let usage = cluster.master.stat().nodes[0].usage;
    assert_eq!((usage.objects, usage.free), (1, 9 * UNIT), "its memory counts as free");
    let settles = cluster.held_up[0].iter().map(|(_, it)| match it {
        MasterToMember::Settle(settle) => (settle.commit.len(), settle.retire.clone()),
        other => panic!("{other:?}"),
    });
    let settles: Vec<_> = settles.collect();
    let old = vec![first.location.slot_ref()];
    assert_eq!(settles, [(1, old)], "one message, and the node stores the new object first");
    cluster.let_go(0);
    assert_eq!(cluster.inventory(0), ["a"]);
    assert_eq!(cluster.nodes[0].usage().free, 9 * UNIT);
    assert_eq!(cluster.delete("a", false), Some(DeleteOutcome::Deleted));
    assert_eq!(cluster.nodes[0].usage().free, 10 * UNIT);
}

#[test]
fn replacement_waits_until_the_retire_is_sent() {
    let (mut cluster, _) = withdrawing();
    let second = cluster.space("a");
    cluster.takes_at_once = false;
    cluster.hold_up(0);
    let id = cluster.send_publish("a", plain(), &second);
    assert_eq!((cluster.published(id), cluster.withdrawn.len()), (None, 0));
    cluster.let_go(0);
    assert_eq!((cluster.published(id), cluster.withdrawn.len()), (replaced(2), 0), "the node has confirmed");
    assert_eq!(cluster.inventory(0), ["a"]);
}

#[test]
fn withdrawn_copies_are_not_retired_again_by_the_next_put() {
    let (mut cluster, _) = withdrawing();
    let spaces = [cluster.space("a"), cluster.space("a"), cluster.space("a")];
    cluster.hold_up(0);
    for (counter, space) in (2..).zip(&spaces) {
        let id = cluster.send_publish("a", plain(), space);
        assert_eq!(cluster.published(id), replaced(counter));
    }
    let retires = cluster.held_up[0].iter().map(|(_, it)| match it {
        MasterToMember::Settle(settle) => settle.retire.len(),
        _ => 0,
    });
    assert_eq!(retires.sum::<usize>(), 3);
    cluster.let_go(0);
    assert_eq!(cluster.nodes[0].usage().free, 9 * UNIT);
    assert_eq!(cluster.master.unconfirmed_count(), 0);
}

#[test]
fn node_that_lost_its_ledger_owes_the_retires() {
    let (mut cluster, first) = withdrawing();
    let second = cluster.space("a");
    cluster.node_event(0, node::Event::Mapped(ClientId(7)));
    cluster.hold_up(0);
    let id = cluster.send_publish("a", plain(), &second);
    assert_eq!(cluster.published(id), replaced(2));
    cluster.held_up[0].clear();
    cluster.unlink(0);
    cluster.let_go(0);
    cluster.link(0);
    let slot_refs: Vec<_> = cluster.nodes[0].inventory().into_iter().map(|it| it.slot_ref).collect();
    assert_eq!(slot_refs, [second.location.slot_ref()], "not {first:?}");
    assert_eq!(cluster.nodes[0].usage().free, 9 * UNIT);
}

#[test]
fn pinned_objects_are_kept_if_the_put_says_so() {
    use crate::message::OnExists;
    let with = |on_exists| PutOptions { on_exists, ..plain() };
    let soft = PutOptions { soft_pin_ms: Some(100_000), ..plain() };
    for (first, hard_kept, any_kept) in [(plain(), false, false), (soft, false, true), (pinned(), true, true)]
    {
        for (on_exists, is_kept) in [(OnExists::KeepHardPinned, hard_kept), (OnExists::KeepPinned, any_kept)]
        {
            let mut cluster = Cluster::new(&[10 * UNIT]);
            cluster.put("a", 10, first.clone());
            let space = cluster.space("a");
            let id = cluster.send_publish("a", with(on_exists), &space);
            let outcome = if is_kept {
                CommitOutcome::Exists(generation(1))
            } else {
                CommitOutcome::Replaced(generation(2))
            };
            assert_eq!(cluster.published(id), Some(Some(outcome)), "{first:?} {on_exists:?}");
            let reserved = cluster.reserve("a", 10, with(on_exists));
            assert_eq!(matches!(reserved, ReserveOutcome::Exists(_)), is_kept, "before the bytes are copied");
        }
    }
}
