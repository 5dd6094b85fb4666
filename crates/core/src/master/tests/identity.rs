//! The identity of the cluster: which members are refused, and what that leaves untouched.

use super::*;
use crate::{
    ClusterId, EPOCH_MAX,
    message::{AdmitCluster, ForgetNode, Register},
};

const OTHER: ClusterId = ClusterId(99);

/// A member that registers on a connection of its own. Returns the master's reply.
fn register(cluster: &mut Cluster, register: Register) -> Reply {
    cluster.next_conn += 1;
    let (conn, id) = (ConnId(cluster.next_conn), RequestId(77));
    cluster.event(Event::Opened(conn, Hello { role: Role::Node, ..Hello::default() }));
    cluster.event(Event::Request(conn, id, MemberToMaster::Register(Box::new(register)).into()));
    let reply = cluster.replies.remove(&id).unwrap();
    cluster.event(Event::Closed(conn));
    reply
}

fn member(segment: u64, cluster: ClusterId) -> Register {
    let info = NodeInfo { segment: SegmentId(segment), name: "m".into(), ..NodeInfo::default() };
    Register { info, cluster, ..Register::default() }
}

fn told(reply: Reply) -> ClusterId {
    let Reply::Registered(registered) = reply else { panic!("{reply:?}") };
    registered.cluster
}

fn refusal(reply: Reply) -> Refusal {
    let Reply::Refused(refusal) = reply else { panic!("{reply:?}") };
    refusal
}

#[test]
fn member_of_another_cluster_is_refused_without_a_trace() {
    let mut cluster = Cluster::durable(&[4 * UNIT]);
    cluster.put("a", UNIT, pinned());
    let (own, saved, epoch) =
        (cluster.nodes[0].cluster(), cluster.state.clone(), cluster.master.stat().epoch);
    assert_eq!(saved.clusters, [own]);
    // A later epoch would otherwise raise that of the master, and an equal one would discard the objects.
    for epoch in [0, 5, 900] {
        let refusal = refusal(register(&mut cluster, Register { epoch, ..member(40, OTHER) }));
        assert_eq!(refusal.reason, Reason::OtherCluster);
        for part in [OTHER.to_string(), own.to_string(), "\n\nhint: name the master".to_owned()] {
            assert!(refusal.message.contains(&part), "{}", refusal.message);
        }
    }
    assert_eq!((cluster.master.saved(), cluster.master.stat().epoch), (saved, epoch));
    assert_eq!(cluster.master.stat().nodes.len(), 1);
    let notice = Notice::OtherCluster { node: "m".into(), cluster: OTHER, own };
    assert_eq!(cluster.notices.iter().filter(|it| **it == notice).count(), 3);
    assert!(matches!(cluster.resolve("a", false), ResolveOutcome::Found(_)));
}

#[test]
fn cluster_keeps_its_id_over_restarts() {
    let mut cluster = Cluster::durable(&[4 * UNIT]);
    let own = cluster.nodes[0].cluster();
    assert!(own.known().is_some());
    cluster.restart_master(6);
    assert_eq!((cluster.nodes[0].cluster(), cluster.state.clusters.clone()), (own, vec![own]));
    // Members without an id get it.
    assert_eq!(told(register(&mut cluster, member(40, ClusterId(0)))), own);
    assert_eq!(told(register(&mut cluster, member(41, own))), own);
    assert_eq!(refusal(register(&mut cluster, member(42, OTHER))).reason, Reason::OtherCluster);
}

#[test]
fn master_without_state_takes_the_first_reported_id() {
    let mut cluster = Cluster::durable(&[4 * UNIT]);
    let own = cluster.nodes[0].cluster();
    cluster.put("a", UNIT, pinned());
    cluster.state = Saved::default();
    cluster.restart_master(6);
    assert_eq!((cluster.nodes[0].cluster(), cluster.state.clusters.clone()), (own, vec![own]));
    assert!(matches!(cluster.resolve("a", false), ResolveOutcome::Found(_)));
    assert_eq!(refusal(register(&mut cluster, member(42, OTHER))).reason, Reason::OtherCluster);
}

/// A new node joins first after the master has lost its state. The others are still taken in, because nothing
/// is stored yet.
#[test]
fn id_of_an_empty_cluster_yields_to_a_reported_one() {
    let mut cluster = Cluster::durable(&[]);
    let drawn = told(register(&mut cluster, member(1, ClusterId(0))));
    assert_eq!(told(register(&mut cluster, Register { epoch: 3, ..member(2, OTHER) })), OTHER);
    assert_eq!(cluster.state.clusters, [OTHER, drawn]);
    assert_eq!(told(register(&mut cluster, member(1, drawn))), OTHER, "it was told the drawn one");
    assert_eq!(refusal(register(&mut cluster, member(3, ClusterId(7)))).reason, Reason::OtherCluster);
}

#[test]
fn operator_may_admit_another_cluster() {
    let mut cluster = Cluster::durable(&[4 * UNIT]);
    cluster.put("a", UNIT, pinned());
    let own = cluster.nodes[0].cluster();
    refusal(register(&mut cluster, Register { epoch: 3, ..member(2, OTHER) }));
    let admit = |cluster: &mut Cluster, it| {
        cluster.ask(ClientToMaster::AdmitCluster(AdmitCluster { cluster: ClusterId(it) })).unwrap()
    };
    assert_eq!(admit(&mut cluster, OTHER.0), Reply::Done);
    assert_eq!(cluster.state.clusters, [own, OTHER], "it is saved before the answer");
    assert_eq!(told(register(&mut cluster, Register { epoch: 3, ..member(2, OTHER) })), own);
    for more in 0..CLUSTER_IDS_MAX as u64 - 2 {
        assert_eq!(admit(&mut cluster, 1000 + more), Reply::Done);
    }
    assert_eq!(admit(&mut cluster, OTHER.0), Reply::Done, "it is known");
    assert_eq!(refusal(admit(&mut cluster, 5000)).reason, Reason::Busy);
    assert_eq!(cluster.state.clusters.len(), CLUSTER_IDS_MAX);
}

#[test]
fn epoch_of_damaged_memory_is_refused() {
    let mut cluster = Cluster::durable(&[4 * UNIT]);
    for epoch in [EPOCH_MAX, u64::MAX] {
        let refusal = refusal(register(&mut cluster, Register { epoch, ..member(40, ClusterId(0)) }));
        assert!(refusal.message.contains("its memory is damaged"), "{}", refusal.message);
    }
    assert_eq!(cluster.master.stat().epoch, 5);
    cluster.next_conn += 1;
    let conn = ConnId(cluster.next_conn);
    cluster.event(Event::Opened(conn, Hello { role: Role::Node, ..Hello::default() }));
    let last = Register { epoch: EPOCH_MAX - 1, ..member(40, ClusterId(0)) };
    cluster.event(Event::Request(conn, RequestId(1), MemberToMaster::Register(Box::new(last)).into()));
    assert_eq!(cluster.master.stat().epoch, EPOCH_MAX, "the last one is moved past");
}

#[test]
fn name_of_several_absent_members_is_ambiguous() {
    let mut cluster = Cluster::durable(&[4 * UNIT]);
    register(&mut cluster, member(40, ClusterId(0)));
    register(&mut cluster, member(41, ClusterId(0)));
    let forget = |cluster: &mut Cluster, name: &str| {
        cluster.ask(ClientToMaster::ForgetNode(ForgetNode { name: name.into() })).unwrap()
    };
    let message = refusal(forget(&mut cluster, "m")).message;
    for part in ["2 absent members", &SegmentId(40).to_string(), &SegmentId(41).to_string()] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(cluster.state.members.len(), 3, "nothing is lost");
    assert!(
        matches!(forget(&mut cluster, &SegmentId(40).to_string()), Reply::Forgotten(it) if it.members == 1)
    );
    let left: Vec<_> = cluster.state.members.iter().map(|it| it.segment).collect();
    assert_eq!(left, [SegmentId(1), SegmentId(41)]);
    assert!(matches!(forget(&mut cluster, "m"), Reply::Forgotten(it) if it.members == 1));
}
