//! Cases that the simulation found: replies to nodes and clients may be lost, and messages may cross.

use tiffin_node as node;

use super::*;
use crate::{
    ATTRIBUTES_MAX, Location, OWNER_BYTES_MAX, SlotId, SlotRef, Stamp,
    attributes::{Attributes, Consumption},
    message::{
        Announce, CommitItem, CommitOutcome, Decide, DecideItem, DeleteOutcome, EndStream, ForgetNode,
        NodeInfo, Pin, PinOutcome, Policy, PutOptions, Record, Register, Registered, ReserveOutcome,
        ResolveOutcome, Why,
    },
};

impl Cluster {
    /// The first node registers on a connection that breaks before the reply arrives.
    fn register_in_vain(&mut self) -> Registered {
        let (conn, registered) = self.register(0);
        self.event(Event::Closed(conn));
        registered
    }

    /// The operator declares a node lost.
    pub(super) fn forget(&mut self, index: usize) {
        let name = format!("node{}", index + 1);
        let forgotten = self.ask(ClientToMaster::ForgetNode(ForgetNode { name }));
        assert!(matches!(forgotten, Some(Reply::Forgotten(_))), "{forgotten:?}");
    }

    /// A node registers on a connection whose messages it does not receive.
    pub(super) fn register(&mut self, index: usize) -> (ConnId, Registered) {
        self.next_conn += 1;
        let conn = ConnId(self.next_conn);
        self.event(Event::Opened(conn, Hello { role: Role::Node, ..Hello::default() }));
        let (segment, name) = (SegmentId(index as u64 + 1), format!("node{}", index + 1));
        let info = NodeInfo { segment, name, ..NodeInfo::default() };
        let register =
            Register { info, usage: self.nodes[index].usage(), epoch: 5, instance: 1, ..Register::default() };
        let id = RequestId(900);
        self.event(Event::Request(conn, id, MemberToMaster::Register(Box::new(register)).into()));
        match self.replies.remove(&id) {
            Some(Reply::Registered(registered)) => (conn, registered),
            other => panic!("{other:?}"),
        }
    }

    /// On such a connection it announces everything that it holds. Returns the retires of the reply.
    fn announce(&mut self, conn: ConnId, items: Vec<Record>) -> Vec<SlotRef> {
        let id = RequestId(902);
        self.event(Event::Request(conn, id, MemberToMaster::Announce(Announce { items, last: true }).into()));
        match self.replies.remove(&id) {
            Some(Reply::Announced(announced)) => announced.retire,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn replaced_object_stays_until_its_successor_is_stored() {
    let mut cluster = Cluster::durable(&[4 * UNIT, 4 * UNIT]);
    let on = |name: &str| PutOptions { preferred: vec![name.into()], ..plain() };
    let CommitOutcome::Stored(old) = cluster.put("k", UNIT, on("node1")) else { panic!("not stored") };
    let on_exists = crate::message::OnExists::Replace;
    let options = PutOptions { replaces: Some(old), on_exists, ..on("node2") };
    let ReserveOutcome::Space(space) = cluster.reserve("k", UNIT, options.clone()) else { panic!("full") };
    // Neither node is on the master's host.
    cluster.takes_at_once = false;
    cluster.hold_up(1);
    let id = cluster.send_commit("k", UNIT, options, &space);
    assert_eq!(cluster.nodes[0].inventory().len(), 1, "its successor is not stored yet");
    // The master dies before the node of the new object has received anything.
    cluster.held_up[1].clear();
    cluster.let_go(1);
    cluster.restart_master(6);
    assert!(cluster.has("k"));
    let held: Vec<_> = cluster.nodes.iter().map(|it| it.inventory().len()).collect();
    assert_eq!(held, [0, 1], "the put is decided again");
    assert!(matches!(cluster.replies.remove(&id), Some(Reply::Committed(_))));
}

#[test]
fn retire_is_owed_until_the_node_receives_it() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.put("k", UNIT, plain());
    cluster.unlink(0);
    assert_eq!(cluster.delete("k", true), Some(DeleteOutcome::Unconfirmed(vec!["node1".into()])));
    let owed = cluster.register_in_vain().retire;
    assert_eq!(owed.len(), 1);
    assert_eq!(cluster.register_in_vain().retire, owed);
    cluster.link(0);
    assert_eq!(cluster.nodes[0].usage().objects, 0);
    cluster.node_event(0, node::Event::Beat);
    cluster.unlink(0);
    assert_eq!(cluster.register_in_vain().retire, []);
}

#[test]
fn lost_node_is_told_to_discard_until_it_has() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.put("k", UNIT, plain());
    cluster.unlink(0);
    cluster.forget(0);
    assert!(cluster.register_in_vain().discard);
    assert!(cluster.register_in_vain().discard);
    cluster.link(0);
    assert_eq!(cluster.nodes[0].usage().objects, 0);
}

#[test]
fn node_that_must_discard_gets_no_copy() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    let options = PutOptions { replicas: 2, preferred: vec!["node1".into()], ..plain() };
    let space = cluster.reserve("k", UNIT, options.clone());
    let ReserveOutcome::Space(reservations) = space else { panic!("{space:?}") };
    assert_eq!(reservations.len(), 2);
    cluster.unlink(1);
    cluster.forget(1);
    let (conn, registered) = cluster.register(1);
    assert!(registered.discard);
    // If it learned of the copy first, it would discard that too.
    let outcome = cluster.commit("k", UNIT, options, &reservations);
    assert!(matches!(outcome, CommitOutcome::Stored(_)), "{outcome:?}");
    cluster.announce(conn, vec![]);
    cluster.node_event(0, node::Event::Beat);
    let found = cluster.resolve("k", false);
    let ResolveOutcome::Found(found) = found else { panic!("{found:?}") };
    let on: Vec<_> = found.replicas.iter().map(|it| it.segment).collect();
    assert_eq!(on, [SegmentId(1)]);
}

#[test]
fn decision_after_a_removal_is_stale() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    let space = cluster.reserve("k", UNIT, plain());
    let ReserveOutcome::Space(reservations) = space else { panic!("{space:?}") };
    let slot_ref: SlotRef = reservations[0].location.slot_ref();
    assert!(matches!(cluster.commit("k", UNIT, plain(), &reservations), CommitOutcome::Stored(_)));
    cluster.hold_up(0);
    cluster.delete("k", true);
    // The node has not received the retire, and asks about the same object once more.
    let item = CommitItem { slot_ref, key: key("k"), len: UNIT, options: plain(), others: vec![] };
    let decide = DecideItem { namespace: "default".into(), client: ClientId(7), item };
    let asked = MemberToMaster::Decide(Decide { items: vec![decide], wait_ms: 500 });
    cluster.event(Event::Request(cluster.links[0], RequestId(77), asked.into()));
    assert!(!cluster.has("k"));
    cluster.let_go(0);
    assert!(!cluster.has("k"));
    assert_eq!(cluster.nodes[0].usage().objects, 0);
}

#[test]
fn reservation_with_a_lost_reply_is_returned() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    assert!(matches!(cluster.reserve("k", UNIT, plain()), ReserveOutcome::Space(_)));
    assert_eq!(cluster.nodes[0].usage().granted, UNIT);
    // The client never connected to the node, and reconnects to the master.
    cluster.open(ConnId(2), 7);
    assert_eq!(cluster.nodes[0].usage().granted, 0);
}

#[test]
fn every_copy_counts_against_the_quota() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    cluster.ask(ClientToMaster::SetPolicy(Policy { quota: Some(3 * UNIT), ..Policy::default() }.into()));
    let twice = PutOptions { replicas: 2, ..plain() };
    let copies = |outcome: ReserveOutcome| match outcome {
        ReserveOutcome::Space(reservations) => reservations.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(copies(cluster.reserve("a", UNIT, twice.clone())), 2);
    assert_eq!(copies(cluster.reserve("b", UNIT, twice.clone())), 1);
    assert!(matches!(cluster.reserve("c", UNIT, twice), ReserveOutcome::OverQuota(_)));
}

/// Two nodes with an object of the same name each. The first one's is older: that node was away during the
/// replacement.
fn rivals() -> Cluster {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    let on = |node: &str| PutOptions { preferred: vec![node.into()], ..plain() };
    cluster.put("k", UNIT, on("node1"));
    cluster.unlink(0);
    assert!(matches!(cluster.put("k", UNIT, on("node2")), CommitOutcome::Unconfirmed(_)));
    cluster
}

impl Cluster {
    /// Starts a master of another epoch. Only these nodes register, in this order.
    fn restart_with(&mut self, epoch: u64, nodes: &[usize]) {
        let instance = self.master.objects.cx.config.instance + 1;
        self.master = Master::new(MasterConfig { epoch, instance, ..self.master.objects.cx.config });
        self.open(CLIENT, 7);
        for &index in nodes {
            self.nodes[index].handle(node::Event::Unlinked);
            self.link(index);
        }
    }

    /// The generation that a name has, and its number of replicas.
    fn found(&mut self, name: &str) -> (u64, usize) {
        match self.resolve(name, false) {
            ResolveOutcome::Found(found) => (found.generation.counter, found.replicas.len()),
            other => panic!("{other:?}"),
        }
    }

    fn pins(&mut self, name: &str) -> Vec<String> {
        match self
            .ask(ClientToMaster::Why(crate::message::Explain { keys: vec![key(name)], report_wait_ms: 0 }))
        {
            Some(Reply::Why(answers)) => match &answers[..] {
                [Why::Here(here)] => here.pins.clone(),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn newer_of_two_reported_objects_wins() {
    for order in [[0, 1], [1, 0]] {
        let mut cluster = rivals();
        cluster.restart_with(6, &order);
        assert_eq!(cluster.found("k"), (2, 1), "{order:?}");
        assert_eq!((cluster.nodes[0].usage().objects, cluster.nodes[1].usage().objects), (0, 1), "{order:?}");
    }
}

#[test]
fn second_announced_copy_of_one_node_is_retired() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.restart_with(6, &[]);
    let (conn, _) = cluster.register(0);
    let copy = |slot: u32| Record {
        slot_ref: SlotRef { slot: SlotId(slot), stamp: Stamp(1) },
        namespace: "default".into(),
        key: key("k"),
        generation: Generation { epoch: 5, counter: 1 },
        len: UNIT,
        attributes: Attributes::default(),
    };
    assert_eq!(cluster.announce(conn, vec![copy(0), copy(1)]), [copy(1).slot_ref]);
    assert_eq!(cluster.found("k"), (1, 1));
}

#[test]
fn retire_of_an_announced_copy_is_owed_until_received() {
    let mut cluster = rivals();
    cluster.restart_with(6, &[1]);
    // The first node announces its old copy, and its link breaks before it receives the retire.
    cluster.register_in_vain();
    let (conn, _) = cluster.register(0);
    let slot_ref = SlotRef { slot: SlotId(0), stamp: super::cluster::stamp_key().stamp(1) };
    let record = Record {
        slot_ref,
        namespace: "default".into(),
        key: key("k"),
        generation: Generation { epoch: 5, counter: 1 },
        len: UNIT,
        attributes: Attributes::default(),
    };
    assert_eq!(cluster.announce(conn, vec![record]), [slot_ref]);
    cluster.event(Event::Closed(conn));
    assert_eq!(cluster.register_in_vain().retire, [slot_ref]);
    cluster.link(0);
    assert_eq!((cluster.nodes[0].usage().objects, cluster.master.unconfirmed_count()), (0, 0));
}

#[test]
fn unreceived_copy_of_a_joining_node_is_kept() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    let twice = PutOptions { replicas: 2, ..plain() };
    let ReserveOutcome::Space(space) = cluster.reserve("k", UNIT, twice.clone()) else { panic!() };
    let (home, other) = (space[0].location, space[1].location);
    let joining = other.segment.0 as usize - 1;
    // The other node's link breaks. It registers, and announces before it learns that it has a copy.
    cluster.unlink(joining);
    let (conn, _) = cluster.register(joining);
    cluster.send_commit("k", UNIT, twice, &space);
    assert_eq!(cluster.announce(conn, vec![]), []);
    let ResolveOutcome::Found(found) = cluster.resolve("k", false) else { panic!() };
    assert_eq!(found.replicas, [home, other]);
}

/// An object with two copies. The link of one node breaks before it receives the commit of its copy.
/// Returns the locations of both.
fn with_an_unconfirmed_copy() -> (Cluster, [Location; 2]) {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    let twice = PutOptions { replicas: 2, ..plain() };
    let ReserveOutcome::Space(space) = cluster.reserve("k", UNIT, twice.clone()) else { panic!() };
    let (home, other) = (space[0].location, space[1].location);
    let away = other.segment.0 as usize - 1;
    // The writer stays connected to that node, so its reservation does not end for that reason.
    let opened = node::Event::Opened { conn: CLIENT, client: ClientId(7), namespace: "default".into() };
    cluster.node_event(away, opened);
    cluster.hold_up(away);
    cluster.send_commit("k", UNIT, twice, &space);
    let ResolveOutcome::Found(found) = cluster.resolve("k", false) else { panic!() };
    assert_eq!(found.replicas, [home, other]);
    cluster.unlink(away);
    cluster.held_up[away].clear();
    cluster.let_go(away);
    (cluster, [home, other])
}

#[test]
fn unreceived_copy_is_retired_when_its_node_returns() {
    let (mut cluster, [home, other]) = with_an_unconfirmed_copy();
    let away = other.segment.0 as usize - 1;
    assert_eq!(cluster.nodes[away].usage().granted, UNIT);
    cluster.link(away);
    let ResolveOutcome::Found(found) = cluster.resolve("k", false) else { panic!() };
    assert_eq!(found.replicas, [home]);
    // A client with a cached location reads nothing there.
    assert_eq!(cluster.nodes[away].usage().free, 4 * UNIT);
    cluster.node_event(away, node::Event::Beat);
    assert_eq!(cluster.master.unconfirmed_count(), 0);
    assert_eq!(cluster.delete("k", true), Some(DeleteOutcome::Deleted));
}

#[test]
fn delete_waits_for_the_retire_of_an_unannounced_copy() {
    let (mut cluster, [_, other]) = with_an_unconfirmed_copy();
    let away = other.segment.0 as usize - 1;
    let name = format!("node{}", away + 1);
    // It returns, and its link breaks again before the reply arrives.
    let (conn, registered) = cluster.register(away);
    assert_eq!(registered.retire, []);
    assert_eq!(cluster.announce(conn, vec![]), [other.slot_ref()]);
    cluster.event(Event::Closed(conn));
    assert_eq!(cluster.delete("k", true), Some(DeleteOutcome::Unconfirmed(vec![name.clone()])));
    assert_eq!(cluster.delete("k", true), Some(DeleteOutcome::Unconfirmed(vec![name])));
    cluster.link(away);
    assert_eq!(cluster.nodes[away].usage().free, 4 * UNIT);
    assert_eq!(cluster.delete("k", true), Some(DeleteOutcome::Absent));
}

#[test]
fn decision_is_stale_while_a_retire_is_unconfirmed() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    let twice = PutOptions { replicas: 2, ..plain() };
    let ReserveOutcome::Space(space) = cluster.reserve("k", UNIT, twice.clone()) else { panic!() };
    assert!(matches!(cluster.commit("k", UNIT, twice.clone(), &space), CommitOutcome::Stored(_)));
    let (home, other) = (space[0].location, space[1].location);
    let (asking, slow) = (home.segment.0 as usize - 1, other.segment.0 as usize - 1);
    // The master forgets the home, and the retires that it owes. The other node is only slow.
    cluster.hold_up(slow);
    cluster.unlink(asking);
    assert_eq!(cluster.delete("k", true), None);
    cluster.forget(asking);
    cluster.link(asking);
    // The home never learned that the object was stored, so it asks about the prepared object once more.
    let item = CommitItem {
        slot_ref: home.slot_ref(),
        key: key("k"),
        len: UNIT,
        options: twice,
        others: vec![other],
    };
    let decide = DecideItem { namespace: "default".into(), client: ClientId(7), item };
    let asked = MemberToMaster::Decide(Decide { items: vec![decide], wait_ms: 500 });
    cluster.event(Event::Request(cluster.links[asking], RequestId(77), asked.into()));
    assert!(!cluster.has("k"));
    cluster.let_go(slow);
    assert!(!cluster.has("k"));
    assert_eq!((cluster.nodes[slow].usage().objects, cluster.master.unconfirmed_count()), (0, 0));
}

#[test]
fn pin_written_on_one_node_counts_for_all_copies() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    cluster.put("k", UNIT, PutOptions { replicas: 2, ..plain() });
    cluster.unlink(0);
    let pin = Pin { keys: vec![key("k")], owner: "run".into(), on: true, wait_ms: 500 };
    let unconfirmed = PinOutcome::Unconfirmed(vec!["node1".into()]);
    assert_eq!(cluster.ask(ClientToMaster::Pin(pin)), Some(Reply::Pinned(vec![unconfirmed])));
    cluster.restart_with(6, &[0, 1]);
    assert_eq!(cluster.pins("k"), ["run"]);
    // The other node has written it now, too.
    cluster.restart_with(7, &[0]);
    assert_eq!(cluster.pins("k"), ["run"]);
}

#[test]
fn repeated_pin_is_not_confirmed_without_its_node() {
    for on in [true, false] {
        let mut cluster = Cluster::new(&[4 * UNIT]);
        cluster.put("k", UNIT, plain());
        let pin =
            |on| ClientToMaster::Pin(Pin { keys: vec![key("k")], owner: "run".into(), on, wait_ms: 500 });
        let done = Some(Reply::Pinned(vec![PinOutcome::Done]));
        let not_pinned = Some(Reply::Pinned(vec![PinOutcome::NotPinned]));
        assert_eq!(cluster.ask(pin(!on)), if on { not_pinned.clone() } else { done.clone() });
        cluster.unlink(0);
        let unconfirmed = Some(Reply::Pinned(vec![PinOutcome::Unconfirmed(vec!["node1".into()])]));
        assert_eq!(cluster.ask(pin(on)), unconfirmed);
        assert_eq!(cluster.ask(pin(on)), unconfirmed);
        // Only this instance of the master knows of it.
        cluster.restart_with(6, &[0]);
        assert_eq!(cluster.pins("k").is_empty(), on);
        assert_eq!(cluster.ask(pin(on)), done);
        assert_eq!(cluster.ask(pin(on)), if on { done } else { not_pinned });
        cluster.restart_with(7, &[0]);
        assert_eq!(cluster.pins("k").is_empty(), !on);
    }
}

#[test]
fn object_stays_when_its_attributes_do_not_fit() {
    let mut cluster = Cluster::new(&[64 * UNIT]);
    let owner = |index: usize| format!("{index:0>OWNER_BYTES_MAX$}");
    let mut pin = |name: &str, index: usize| {
        if index == 0 {
            cluster.put(name, 1, plain());
        }
        let pin = Pin { keys: vec![key(name)], owner: owner(index), on: true, wait_ms: 500 };
        match cluster.ask(ClientToMaster::Pin(pin)) {
            Some(Reply::Pinned(mut outcomes)) => outcomes.remove(0),
            other => panic!("{other:?}"),
        }
    };
    // The heap for names and attributes is small here: soon there is no space for another owner.
    let names: Vec<_> = (0..16).map(|it| format!("k{it}")).collect();
    let pins = names.iter().flat_map(|name| (0..ATTRIBUTES_MAX - 1).map(move |index| (name, index)));
    let refused = pins.map(|(name, index)| (name, pin(name, index))).find(|it| it.1 != PinOutcome::Done);
    let (name, outcome) = refused.expect("the heap holds all attributes");
    assert_eq!(outcome, PinOutcome::Unconfirmed(vec!["node1".into()]));
    assert!(cluster.has(name));
}

#[test]
fn decision_waits_for_a_node_that_may_know_the_name() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    cluster.restart_with(6, &[0]);
    let end = EndStream { name: "s".into(), ..EndStream::default() };
    assert!(matches!(cluster.ask(ClientToMaster::EndStream(end)), Some(Reply::Stream(_))));
    // The other node has a copy that the last epoch had named, before the stream ended.
    let (conn, _) = cluster.register(1);
    let other = Location { segment: SegmentId(2), slot: SlotId(3), stamp: Stamp(9) };
    let sample = Some(Consumption::Groups(vec!["g".into()]));
    let options = PutOptions { replicas: 2, sample, stream: "s".into(), ..plain() };
    let attributes = Attributes::of(&options);
    let slot_ref = SlotRef { slot: SlotId(1), stamp: Stamp(7) };
    let item = CommitItem { slot_ref, key: key("k"), len: UNIT, options, others: vec![other] };
    let decide = DecideItem { namespace: "default".into(), client: ClientId(7), item };
    let id = RequestId(77);
    let asked = MemberToMaster::Decide(Decide { items: vec![decide], wait_ms: 500 });
    cluster.master.handle(cluster.now, Event::Request(cluster.links[0], id, asked.into()));
    let said: Vec<_> = std::iter::from_fn(|| cluster.master.poll_effect()).collect();
    assert!(said.is_empty(), "the other node may know more: {said:?}");
    let record = Record {
        slot_ref: other.slot_ref(),
        namespace: "default".into(),
        key: key("k"),
        generation: Generation { epoch: 5, counter: 4 },
        len: UNIT,
        attributes,
    };
    assert_eq!(cluster.announce(conn, vec![record]), []);
    assert_eq!(cluster.found("k"), (4, 2), "the first reply was lost, and the object has its name");
}

#[test]
fn put_waits_for_a_retire_that_was_sent_to_a_joining_node() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    let on = |name: &str| PutOptions { preferred: vec![name.into()], ..plain() };
    cluster.put("k", UNIT, on("node1"));
    cluster.unlink(0);
    let (conn, _) = cluster.register(0);
    let put = |cluster: &mut Cluster| {
        let ReserveOutcome::Space(space) = cluster.reserve("k", UNIT, on("node2")) else { panic!("full") };
        let id = cluster.send_commit("k", UNIT, on("node2"), &space);
        (id, cluster.replies.contains_key(&id))
    };
    assert!(!put(&mut cluster).1, "the retire is sent on this connection");
    let part = MemberToMaster::Announce(Announce { items: Vec::new(), last: false });
    cluster.event(Event::Request(conn, RequestId(903), part.into()));
    let (id, is_answered) = put(&mut cluster);
    assert!(!is_answered, "the node may be a member before the copy is gone");
    cluster.wait(500);
    let outcome = cluster.replies.remove(&id);
    let is_unconfirmed = |it: &CommitOutcome| matches!(it, CommitOutcome::Unconfirmed(_));
    assert!(matches!(&outcome, Some(Reply::Committed(it)) if it.iter().all(is_unconfirmed)), "{outcome:?}");
}
