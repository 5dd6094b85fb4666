//! Members that are absent or lost.

use super::*;
use std::sync::Arc;

use crate::master::members::{FORGOTTEN_MAX, Members};
use crate::master::objects::floors::FLOORS_MAX;
use crate::master::pending_retires::Name;
use crate::{
    attributes::Consumption,
    message::{CommitItem, Decide, DecideItem, ForgetNode, Forgotten, Register},
};

#[test]
fn absent_node_keeps_only_its_protected_objects() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.put("plain", UNIT, plain());
    cluster.put("pinned", UNIT, pinned());
    cluster.put("sample", UNIT, PutOptions { sample: Some(Consumption::Once), ..plain() });
    cluster.unlink(0);
    assert!(matches!(cluster.resolve("plain", false), ResolveOutcome::Unavailable(_)));
    cluster.wait(2_000);
    assert_eq!(cluster.resolve("plain", false), ResolveOutcome::Absent);
    let absent = Notice::NodeAbsent { node: "node1".into(), removed: 1, kept: 2 };
    assert!(cluster.notices.contains(&absent), "{:?}", cluster.notices);
    cluster.wait(1_000_000);
    for key in ["pinned", "sample"] {
        let unavailable = ResolveOutcome::Unavailable(vec!["node1".to_owned()]);
        assert_eq!(cluster.resolve(key, false), unavailable);
    }
    cluster.link(0);
    assert!(!cluster.has("plain") && cluster.has("pinned") && cluster.has("sample"));
    assert_eq!(cluster.nodes[0].usage().objects, 2);
    assert_eq!(cluster.master.unconfirmed_count(), 0);
}

#[test]
fn delete_is_unconfirmed_while_a_node_is_absent() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    cluster.put("k", UNIT, PutOptions { preferred: vec!["node1".into()], ..plain() });
    cluster.unlink(0);
    cluster.wait(1_000_000);
    cluster.node_event(1, node::Event::Beat);
    // It may only be cut off, and its clients may still read the object there.
    let unconfirmed = DeleteOutcome::Unconfirmed(vec!["node1".into()]);
    assert_eq!(cluster.delete("k", true), Some(unconfirmed));
    assert!(matches!(cluster.put("k", UNIT, plain()), CommitOutcome::Unconfirmed(_)));
    cluster.link(0);
    assert_eq!(cluster.delete("k", true), Some(DeleteOutcome::Deleted));
}

#[test]
fn node_whose_process_ended_is_lost_at_once() {
    let mut cluster = Cluster::tiered(&[4], |_| ());
    cluster.put("a", UNIT, pinned());
    cluster.demote("b", 1);
    cluster.event(Event::Ended(cluster.links[0]));
    assert_eq!(cluster.resolve("a", false), ResolveOutcome::Absent);
    assert_eq!(cluster.delete("a", true), Some(DeleteOutcome::Absent));
    assert!(cluster.notices.iter().any(|it| matches!(it, Notice::NodeLost(name, _) if name == "node1")));
    cluster.event(Event::Ended(cluster.disks[0].link));
    assert!(cluster.has("b"), "a disk outlives the process");
    cluster.event(Event::Ended(ConnId(99)));
}

#[test]
fn only_the_end_of_the_registered_process_loses_a_node() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.put("k", UNIT, pinned());
    let first = cluster.links[0];
    // Another process connects as that node and ends before it registers.
    let stranger = ConnId(77);
    let hello = Hello { role: Role::Node, home: Some(SegmentId(1)), ..Hello::default() };
    cluster.event(Event::Opened(stranger, hello));
    cluster.event(Event::Closed(stranger));
    cluster.event(Event::Ended(stranger));
    assert!(cluster.has("k"));
    cluster.unlink(0);
    cluster.link(0);
    cluster.event(Event::Ended(first));
    assert!(cluster.has("k"), "it has registered again since");
    cluster.unlink(0);
    cluster.event(Event::Ended(cluster.links[0]));
    assert!(!cluster.has("k"), "the connection may be closed already");
}

#[test]
fn node_on_the_same_address_replaces_its_predecessor() {
    let place = |segment: u64, tcp: &str, host: &str| NodeInfo {
        segment: SegmentId(segment),
        name: "node".into(),
        tcp: tcp.into(),
        host: host.into(),
        ..NodeInfo::default()
    };
    let registered = |then: NodeInfo| {
        let mut cluster = Cluster::new(&[]);
        for (at, info) in [place(1, "h:7", "h/boot1"), then].into_iter().enumerate() {
            let conn = ConnId(50 + at as u64);
            cluster.event(Event::Opened(conn, Hello { role: Role::Node, ..Hello::default() }));
            let register = crate::message::Register { info, ..Default::default() };
            cluster.event(Event::Request(
                conn,
                RequestId(1),
                MemberToMaster::Register(Box::new(register)).into(),
            ));
            cluster.event(Event::Closed(conn));
        }
        cluster.master.stat().nodes.len()
    };
    assert_eq!(registered(place(2, "h:7", "h/boot2")), 1);
    for other in [place(2, "h:8", "h/boot1"), place(2, "", "h/boot1"), place(2, "h:7", "g/boot1")] {
        assert_eq!(registered(other), 2);
    }
    let disk = NodeInfo { beside: Some(SegmentId(1)), ..place(2, "h:7", "h/boot1") };
    assert_eq!(registered(disk), 2);
}

/// A node's machine boots, and its successor registers. Then the registration of the ended process arrives,
/// and the successor registers again. Returns the members after each of the last two.
fn registered_late(mutant: Mutant) -> [Vec<SegmentId>; 2] {
    let mut cluster = Cluster::with(&[], |config| config.mutant = mutant);
    let [old, new, again] = [50, 51, 52].map(ConnId);
    for conn in [old, new, again] {
        cluster.event(Event::Opened(conn, Hello { role: Role::Node, ..Hello::default() }));
    }
    let mut register = |conn: ConnId, segment: u64, host: &str| {
        let (segment, name) = (SegmentId(segment), "node".to_owned());
        let (tcp, host) = ("h:7".to_owned(), host.to_owned());
        let register = Register {
            info: NodeInfo { segment, name, tcp, host, ..NodeInfo::default() },
            ..Register::default()
        };
        let request = MemberToMaster::Register(Box::new(register)).into();
        cluster.event(Event::Request(conn, RequestId(1), request));
        cluster.event(Event::Closed(conn));
        cluster.master.stat().nodes.iter().map(|it| it.info.segment).collect()
    };
    register(new, 2, "h/boot2");
    [register(old, 1, "h/boot1"), register(again, 2, "h/boot2")]
}

#[test]
fn late_registration_of_an_ended_process_replaces_nothing() {
    let [late, again] = registered_late(Mutant::None);
    assert_eq!(late, [SegmentId(2), SegmentId(1)]);
    assert_eq!(again, [SegmentId(2)]);
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_late_registrations_is_noticed() {
    let [late, _] = registered_late(Mutant::ReplaceNewer);
    assert_eq!(late, [SegmentId(1)]);
}

#[test]
fn node_declared_lost_returns_empty() {
    let mut cluster = Cluster::durable(&[4 * UNIT]);
    cluster.put("a", UNIT, pinned());
    let forget = |cluster: &mut Cluster, name: &str| {
        cluster.ask(ClientToMaster::ForgetNode(ForgetNode { name: name.into() })).unwrap()
    };
    for (name, why) in [("node1", "is connected"), ("node2", "no member of the cluster")] {
        let Reply::Refused(refusal) = forget(&mut cluster, name) else { panic!() };
        assert!(refusal.message.contains(why), "{}", refusal.message);
    }
    cluster.unlink(0);
    cluster.wait(2_000);
    assert!(matches!(cluster.resolve("a", false), ResolveOutcome::Unavailable(_)));
    let forgotten = Forgotten { members: 1, objects: 1 };
    assert_eq!(forget(&mut cluster, "node1"), Reply::Forgotten(forgotten));
    assert_eq!(cluster.state.members.len(), 0, "a restarted master does not wait for it");
    assert!(cluster.notices.contains(&Notice::NodeLost("node1".into(), 1)));
    assert_eq!(cluster.resolve("a", false), ResolveOutcome::Absent);
    cluster.link(0);
    assert_eq!(cluster.resolve("a", false), ResolveOutcome::Absent);
    assert_eq!(cluster.nodes[0].usage().objects, 0);
}

/// The master dies after it has learned that a lost node is back, and before it could tell the node.
#[test]
fn lost_node_returns_empty_although_two_masters_died_meanwhile() {
    let mut cluster = Cluster::durable(&[4 * UNIT]);
    cluster.put("a", UNIT, pinned());
    cluster.unlink(0);
    cluster.wait(2_000);
    cluster.ask(ClientToMaster::ForgetNode(ForgetNode { name: "node1".into() }));
    cluster.restart_alone(6);
    // Its registration is received, and everything is saved, but the reply is lost.
    let conn = ConnId(900);
    let info = NodeInfo { segment: SegmentId(1), name: "node1".into(), ..NodeInfo::default() };
    let register = Register { info, epoch: 5, instance: 1, ..Register::default() };
    cluster.event(Event::Opened(conn, Hello { role: Role::Node, ..Hello::default() }));
    let request = MemberToMaster::Register(Box::new(register)).into();
    cluster.event(Event::Request(conn, RequestId(1), request));
    cluster.event(Event::Closed(conn));
    cluster.restart_alone(7);
    cluster.link(0);
    assert_eq!(cluster.nodes[0].usage().objects, 0);
    assert_eq!(cluster.resolve("a", false), ResolveOutcome::Absent);
    // From then on it keeps its objects.
    cluster.put("b", UNIT, pinned());
    assert_eq!((cluster.state.members.len(), cluster.state.forgotten.len()), (1, 0));
    cluster.restart_master(8);
    assert!(cluster.has("b"));
}

#[test]
fn unconfirmed_delete_survives_a_restart() {
    let mut cluster = Cluster::durable(&[8 * UNIT]);
    let unconfirmed = DeleteOutcome::Unconfirmed(vec!["node1".into()]);
    for (key, options) in [("deleted", pinned()), ("kept", pinned()), ("given up", plain())] {
        cluster.put(key, UNIT, options);
    }
    cluster.unlink(0);
    assert_eq!(cluster.delete("deleted", true), Some(unconfirmed));
    cluster.wait(2_000);
    cluster.restart_alone(6);
    cluster.link(0);
    assert!(!cluster.has("deleted") && cluster.has("kept"));
    assert!(cluster.has("given up"), "no client removed it");
    assert_eq!((cluster.nodes[0].usage().objects, cluster.master.stat().nodes[0].owed), (2, 0));
}

#[test]
fn member_that_was_given_up_brings_back_nothing_older() {
    let mut cluster = Cluster::durable(&[8 * UNIT, 8 * UNIT]);
    let on = |node: &str| PutOptions { preferred: vec![node.into()], ..pinned() };
    for key in ["deleted", "replaced", "kept"] {
        cluster.put(key, UNIT, on("node1"));
    }
    cluster.restart_alone(6);
    cluster.link(1);
    assert_eq!(cluster.master.unreported(), ["node1"]);
    cluster.wait(20_000);
    assert!(cluster.master.unreported().is_empty());
    cluster.node_event(1, node::Event::Beat);
    for key in ["deleted", "replaced"] {
        assert!(matches!(cluster.put(key, UNIT, on("node2")), CommitOutcome::Stored(_)), "{key}");
    }
    assert_eq!(cluster.delete("deleted", true), Some(DeleteOutcome::Deleted));
    cluster.link(0);
    assert!(!cluster.has("deleted") && cluster.has("replaced") && cluster.has("kept"));
    assert_eq!((cluster.nodes[0].usage().objects, cluster.nodes[1].usage().objects), (1, 1));
    // All members have reported, so floors are not needed any more.
    assert!(cluster.master.objects.reports.are_over());
}

#[test]
fn floors_for_a_member_that_was_given_up_are_bounded() {
    let mut cluster = Cluster::durable(&[4 * UNIT, 4 * UNIT]);
    cluster.put("k", UNIT, PutOptions { preferred: vec!["node1".into()], ..pinned() });
    cluster.restart_alone(6);
    cluster.link(1);
    let namespace = cluster.master.objects.cx.catalog.intern("default");
    let name = |it: usize| Arc::new(Name { namespace, key: key(&format!("k{it}")) });
    for it in 0..FLOORS_MAX {
        let o = &mut cluster.master.objects;
        o.reports.raise_floor(&o.cx, &name(it), generation(5));
    }
    assert!(
        !cluster.master.objects.reports.floors.has_space(),
        "nothing is evicted while reports are awaited"
    );
    cluster.wait(20_000);
    assert!(cluster.master.unreported().is_empty());
    let o = &mut cluster.master.objects;
    assert!(o.reports.floors.has_space(), "a member that may never return stops no eviction");
    let late = name(FLOORS_MAX);
    o.reports.raise_floor(&o.cx, &late, generation(5));
    assert!(o.reports.floors.has_space() && o.reports.floors.accepts(&late, generation(4)));
    let held = (0..FLOORS_MAX).filter(|it| !o.reports.floors.accepts(&name(*it), generation(4)));
    assert_eq!(held.count(), FLOORS_MAX - 1);
}

#[test]
fn unconfirmed_delete_is_answered_after_the_sync() {
    let mut cluster = Cluster::durable(&[4 * UNIT]);
    cluster.put("k", UNIT, plain());
    cluster.unlink(0);
    cluster.unsynced = Some(Vec::new());
    let id = cluster.send(ClientToMaster::Delete(Delete { keys: vec![key("k")], force: true, wait_ms: 500 }));
    cluster.wait(1_000);
    assert!(!cluster.replies.contains_key(&id));
    cluster.sync();
    let unconfirmed = DeleteOutcome::Unconfirmed(vec!["node1".into()]);
    assert_eq!(cluster.replies.remove(&id), Some(Reply::Deleted(vec![unconfirmed])));
    assert_eq!(cluster.state.members[0].owed_slot_refs().len(), 1);
}

/// The reply to the home's decision was lost, and then the home was away for too long: another node has the
/// object, and the home must retire its copy.
#[test]
fn copy_that_was_given_up_is_not_stored_again() {
    let mut cluster = Cluster::with(&[4 * UNIT, 4 * UNIT], |config| config.owed_page_max = 1);
    let on = |replicas| PutOptions { replicas, preferred: vec!["node1".into()], ..plain() };
    cluster.put("first", UNIT, on(1));
    let ReserveOutcome::Space(space) = cluster.reserve("k", UNIT, on(2)) else { panic!("there is space") };
    let (home, other) = (space[0].location, space[1].location);
    assert!(matches!(cluster.commit("k", UNIT, on(2), &space), CommitOutcome::Stored(_)));
    cluster.unlink(0);
    cluster.wait(2_000);
    cluster.node_event(1, node::Event::Beat);
    let (conn, registered) = cluster.register(0);
    assert_eq!(registered.retire.len(), 1);
    assert!(!registered.retire.contains(&home.slot_ref()), "that retire is in the next page");
    let item = CommitItem {
        slot_ref: home.slot_ref(),
        key: key("k"),
        len: UNIT,
        options: on(2),
        others: vec![other],
    };
    let decide = DecideItem { namespace: "default".into(), client: ClientId(7), item };
    let asked = MemberToMaster::Decide(Decide { items: vec![decide], wait_ms: 500 });
    cluster.master.handle(cluster.now, Event::Request(conn, RequestId(77), asked.into()));
    let effects: Vec<_> = std::iter::from_fn(|| cluster.master.poll_effect()).collect();
    let is_retire = |request: &MasterToMember| match request {
        MasterToMember::Retire(retire) => retire.slot_refs == [home.slot_ref()],
        _ => false,
    };
    let retires =
        |it: &Effect| matches!(it, Effect::Ask(to, _, request) if *to == conn && is_retire(request));
    assert!(effects.iter().any(retires), "{effects:?}");
    let stores = |it: &Effect| matches!(it, Effect::SendLedger(..));
    assert!(!effects.iter().any(stores), "{effects:?}");
}

#[test]
fn pending_retires_are_sent_in_pages() {
    for (page, count) in [(2, 1), (2, 2), (2, 3), (2, 7), (100, 7)] {
        let mut cluster = Cluster::with(&[10 * UNIT], |config| config.owed_page_max = page);
        for at in 0..count {
            cluster.put(&format!("k{at}"), UNIT, pinned());
        }
        cluster.put("kept", UNIT, pinned());
        cluster.unlink(0);
        for at in 0..count {
            cluster.delete(&format!("k{at}"), true);
        }
        assert_eq!(cluster.master.stat().nodes[0].owed, count);
        cluster.link(0);
        cluster.node_event(0, node::Event::Beat);
        assert_eq!((cluster.nodes[0].usage().objects, cluster.master.unconfirmed_count()), (1, 0));
        assert!(cluster.has("kept") && cluster.master.stat().nodes[0].alive);
    }
}

#[test]
fn node_declared_lost_returns_empty_to_a_later_master() {
    let mut cluster = Cluster::durable(&[4 * UNIT, 4 * UNIT]);
    let on = |node: &str| PutOptions { preferred: vec![node.into()], ..pinned() };
    cluster.put("a", UNIT, on("node1"));
    cluster.put("b", UNIT, on("node2"));
    cluster.unlink(0);
    cluster.ask(ClientToMaster::ForgetNode(ForgetNode { name: "node1".into() }));
    cluster.restart_alone(6);
    assert_eq!(cluster.master.unreported(), ["node2"]);
    // A member that has not reported may be declared lost, too.
    cluster.ask(ClientToMaster::ForgetNode(ForgetNode { name: "node2".into() }));
    cluster.link(0);
    cluster.link(1);
    assert!(!cluster.has("a") && !cluster.has("b"));
    assert!(cluster.nodes.iter().all(|it| it.usage().objects == 0));
    cluster.put("c", UNIT, on("node1"));
    cluster.unlink(0);
    cluster.link(0);
    assert!(cluster.has("c"), "it has discarded everything once");
}

#[test]
fn number_of_remembered_lost_members_is_bounded() {
    let mut members = Members::default();
    for segment in 0..=FORGOTTEN_MAX as u64 {
        members.forget(SegmentId(segment));
        assert!(members.was_forgotten(SegmentId(segment)));
    }
    assert!(!members.was_forgotten(SegmentId(0)) && members.was_forgotten(SegmentId(1)));
    assert_eq!(members.forgotten().count(), FORGOTTEN_MAX);
}
