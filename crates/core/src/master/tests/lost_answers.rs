//! What the simulation found: answers to nodes and clients may be lost, and words may cross.

use super::*;
use crate::{
    ATTRIBUTES_MAX, Location, OWNER_BYTES_MAX, SlotId, SlotRef, Stamp,
    attributes::{Attributes, Consumption},
    message::{
        Announce, CommitItem, CommitOutcome, Decide, DecideItem, DeleteOutcome, EndStream, ForgetNode,
        NodeInfo, Pin, PinOutcome, Policy, PutOptions, Record, Register, Registered, ReserveOutcome,
        ResolveOutcome, Why,
    },
    node,
};

impl Cluster {
    /// The first node registers on a connection that breaks before it hears the answer.
    fn register_in_vain(&mut self) -> Registered {
        let (conn, registered) = self.register(0);
        self.event(Event::Closed(conn));
        registered
    }

    /// The operator declares a node lost.
    fn forget(&mut self, index: usize) {
        let name = format!("node{}", index + 1);
        let forgotten = self.ask(ClientToMaster::ForgetNode(ForgetNode { name }));
        assert!(matches!(forgotten, Some(Reply::Forgotten(_))), "{forgotten:?}");
    }

    /// A node registers on a connection of which it hears nothing.
    fn register(&mut self, index: usize) -> (ConnId, Registered) {
        self.next_conn += 1;
        let conn = ConnId(self.next_conn);
        self.event(Event::Opened(conn, Hello { role: Role::Node, ..Hello::default() }));
        let (segment, name) = (SegmentId(index as u64 + 1), format!("node{}", index + 1));
        let info = NodeInfo { segment, name, ..NodeInfo::default() };
        let register = Register { info, usage: self.nodes[index].usage(), epoch: 5, instance: 1, stamps: 0 };
        let id = RequestId(900);
        self.event(Event::Request(conn, id, MemberToMaster::Register(Box::new(register)).into()));
        match self.replies.remove(&id) {
            Some(Reply::Registered(registered)) => (conn, registered),
            other => panic!("{other:?}"),
        }
    }

    /// On such a connection it tells all that it holds, and is to be told what it must drop.
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
fn a_retire_is_owed_until_the_node_has_heard_of_it() {
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
fn a_lost_node_must_discard_until_it_has_heard_of_it() {
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
fn a_node_that_has_yet_to_discard_gets_no_copy() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    let options = PutOptions { replicas: 2, preferred: vec!["node1".into()], ..plain() };
    let space = cluster.reserve("k", UNIT, options.clone());
    let ReserveOutcome::Space(reservations) = space else { panic!("{space:?}") };
    assert_eq!(reservations.len(), 2);
    cluster.unlink(1);
    cluster.forget(1);
    let (conn, registered) = cluster.register(1);
    assert!(registered.discard);
    // If it heard of the copy first, it would discard that too.
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
fn a_question_that_crosses_a_removal_is_stale_and_leaves_no_ghost() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    let space = cluster.reserve("k", UNIT, plain());
    let ReserveOutcome::Space(reservations) = space else { panic!("{space:?}") };
    let slot_ref: SlotRef = reservations[0].location.slot_ref();
    assert!(matches!(cluster.commit("k", UNIT, plain(), &reservations), CommitOutcome::Stored(_)));
    cluster.hold_up(0);
    cluster.delete("k", true);
    // The node has not heard of the removal, and asks about the same object once more.
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
fn room_is_given_back_that_was_found_for_a_client_whose_answer_was_lost() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    assert!(matches!(cluster.reserve("k", UNIT, plain()), ReserveOutcome::Space(_)));
    assert_eq!(cluster.nodes[0].usage().granted, UNIT);
    // The client never came to the node; it connects to the master anew.
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

/// Two nodes with an object of the same name each, of which the first one's is older: the first was away
/// when it was replaced.
fn rivals() -> Cluster {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    let on = |node: &str| PutOptions { preferred: vec![node.into()], ..plain() };
    cluster.put("k", UNIT, on("node1"));
    cluster.unlink(0);
    assert!(matches!(cluster.put("k", UNIT, on("node2")), CommitOutcome::Unconfirmed(_)));
    cluster
}

impl Cluster {
    /// Another life of the master begins; only these nodes register, in this order.
    fn restart_with(&mut self, epoch: u64, nodes: &[usize]) {
        let instance = self.master.objects.cx.config.instance + 1;
        self.master = Master::new(MasterConfig { epoch, instance, ..self.master.objects.cx.config });
        self.open(CLIENT, 7);
        for &index in nodes {
            self.nodes[index].handle(node::Event::Unlinked);
            self.link(index);
        }
    }

    /// The generation that a name has, and on how many nodes.
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
fn of_rivals_for_a_name_the_newer_wins_whoever_comes_first() {
    for order in [[0, 1], [1, 0]] {
        let mut cluster = rivals();
        cluster.restart_with(6, &order);
        assert_eq!(cluster.found("k"), (2, 1), "{order:?}");
        assert_eq!((cluster.nodes[0].usage().objects, cluster.nodes[1].usage().objects), (0, 1), "{order:?}");
    }
}

#[test]
fn of_two_copies_that_one_node_tells_of_it_must_drop_the_second() {
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
fn a_refusal_of_what_was_announced_is_owed_until_the_node_has_heard_it() {
    let mut cluster = rivals();
    cluster.restart_with(6, &[1]);
    // The first node announces its old copy, and its link breaks before it hears that it must drop it.
    cluster.register_in_vain();
    let (conn, _) = cluster.register(0);
    let slot_ref = SlotRef { slot: SlotId(0), stamp: Stamp(1) };
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
fn a_copy_that_a_joining_node_has_yet_to_hear_of_is_not_forgotten() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    let twice = PutOptions { replicas: 2, ..plain() };
    let ReserveOutcome::Space(space) = cluster.reserve("k", UNIT, twice.clone()) else { panic!() };
    let (home, other) = (space[0].location, space[1].location);
    let joining = other.segment.0 as usize - 1;
    // The other node's link breaks; it registers, and announces before it hears that it has a copy.
    cluster.unlink(joining);
    let (conn, _) = cluster.register(joining);
    cluster.send_commit("k", UNIT, twice, &space);
    assert_eq!(cluster.announce(conn, vec![]), []);
    let ResolveOutcome::Found(found) = cluster.resolve("k", false) else { panic!() };
    assert_eq!(found.replicas, [home, other]);
}

/// An object with two copies, of which one is on a node that never hears that it became one: its link breaks
/// before. The locations of both.
fn with_an_unheard_copy() -> (Cluster, [Location; 2]) {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    let twice = PutOptions { replicas: 2, ..plain() };
    let ReserveOutcome::Space(space) = cluster.reserve("k", UNIT, twice.clone()) else { panic!() };
    let (home, other) = (space[0].location, space[1].location);
    let away = other.segment.0 as usize - 1;
    // The writer stays connected to that node, so its room is not given back for that reason.
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
fn a_copy_that_its_node_never_heard_of_is_taken_away_when_it_returns() {
    let (mut cluster, [home, other]) = with_an_unheard_copy();
    let away = other.segment.0 as usize - 1;
    assert_eq!(cluster.nodes[away].usage().granted, UNIT);
    cluster.link(away);
    let ResolveOutcome::Found(found) = cluster.resolve("k", false) else { panic!() };
    assert_eq!(found.replicas, [home]);
    // Whoever was told where it lies reads nothing there.
    assert_eq!(cluster.nodes[away].usage().free, 4 * UNIT);
    cluster.node_event(away, node::Event::Beat);
    assert_eq!(cluster.master.unconfirmed_count(), 0);
    assert_eq!(cluster.delete("k", true), Some(DeleteOutcome::Deleted));
}

#[test]
fn a_delete_is_not_confirmed_before_a_node_has_heard_to_drop_what_it_did_not_tell_of() {
    let (mut cluster, [_, other]) = with_an_unheard_copy();
    let away = other.segment.0 as usize - 1;
    let name = format!("node{}", away + 1);
    // It comes back, and its link breaks again before it hears the answer.
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
fn a_question_about_what_was_deleted_is_stale_while_any_copy_is_not_confirmed() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    let twice = PutOptions { replicas: 2, ..plain() };
    let ReserveOutcome::Space(space) = cluster.reserve("k", UNIT, twice.clone()) else { panic!() };
    assert!(matches!(cluster.commit("k", UNIT, twice.clone(), &space), CommitOutcome::Stored(_)));
    let (home, other) = (space[0].location, space[1].location);
    let (asking, slow) = (home.segment.0 as usize - 1, other.segment.0 as usize - 1);
    // The master forgets the home, and what it owes; the other one is only slow.
    cluster.hold_up(slow);
    cluster.unlink(asking);
    assert_eq!(cluster.delete("k", true), None);
    cluster.forget(asking);
    cluster.link(asking);
    // The home never heard that the object was stored: what was prepared there is asked about once more.
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
fn a_pin_that_one_copy_has_in_writing_counts_for_all_of_them() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    cluster.put("k", UNIT, PutOptions { replicas: 2, ..plain() });
    cluster.unlink(0);
    let pin = Pin { keys: vec![key("k")], owner: "run".into(), on: true, wait_ms: 500 };
    let unconfirmed = PinOutcome::Unconfirmed(vec!["node1".into()]);
    assert_eq!(cluster.ask(ClientToMaster::Pin(pin)), Some(Reply::Pinned(vec![unconfirmed])));
    cluster.restart_with(6, &[0, 1]);
    assert_eq!(cluster.pins("k"), ["run"]);
    // The other one has it in writing now, too.
    cluster.restart_with(7, &[0]);
    assert_eq!(cluster.pins("k"), ["run"]);
}

#[test]
fn a_pin_is_not_confirmed_by_asking_again() {
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
        // Nobody was told of it but this life of the master.
        cluster.restart_with(6, &[0]);
        assert_eq!(cluster.pins("k").is_empty(), on);
        assert_eq!(cluster.ask(pin(on)), done);
        assert_eq!(cluster.ask(pin(on)), if on { done } else { not_pinned });
        cluster.restart_with(7, &[0]);
        assert_eq!(cluster.pins("k").is_empty(), !on);
    }
}

#[test]
fn an_object_stays_when_its_node_has_no_room_for_what_is_to_be_written_beside_it() {
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
    // Names and marks have little memory here: before long there is no room for another owner.
    let names: Vec<_> = (0..16).map(|it| format!("k{it}")).collect();
    let pins = names.iter().flat_map(|name| (0..ATTRIBUTES_MAX - 1).map(move |index| (name, index)));
    let refused = pins.map(|(name, index)| (name, pin(name, index))).find(|it| it.1 != PinOutcome::Done);
    let (name, outcome) = refused.expect("the heap is larger than all marks");
    assert_eq!(outcome, PinOutcome::Unconfirmed(vec!["node1".into()]));
    assert!(cluster.has(name));
}

#[test]
fn a_decision_waits_for_a_node_that_may_know_the_name() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    cluster.restart_with(6, &[0]);
    let end = EndStream { name: "s".into(), ..EndStream::default() };
    assert!(matches!(cluster.ask(ClientToMaster::EndStream(end)), Some(Reply::Stream(_))));
    // The other node has a copy that the last life of the master had named, before the stream had ended.
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
    assert_eq!(cluster.found("k"), (4, 2), "the first answer was lost: it has the name already");
}
