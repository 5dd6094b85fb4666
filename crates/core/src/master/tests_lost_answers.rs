//! What the simulation found: answers to nodes and clients may be lost, and words may cross.

use super::{tests::*, *};
use crate::{
    Hold,
    message::{
        CommitItem, CommitOutcome, Decide, DecideItem, DeleteOutcome, NodeInfo, Policy, PutOptions, Register,
        Registered, ReserveOutcome, Usage,
    },
    node,
};

impl Cluster {
    /// The first node registers on a connection that breaks before it hears the answer.
    fn register_in_vain(&mut self) -> Registered {
        self.next_conn += 1;
        let conn = ConnId(self.next_conn);
        self.event(Event::Opened(conn, Hello { role: Role::Node, ..Hello::default() }));
        let info = NodeInfo { segment: SegmentId(1), name: "node1".into(), ..NodeInfo::default() };
        let register = Register { info, usage: Usage::default(), epoch: 5 };
        let id = RequestId(900);
        self.event(Event::Request(conn, id, Request::Register(register)));
        self.event(Event::Closed(conn));
        match self.replies.remove(&id) {
            Some(Reply::Registered(registered)) => registered,
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
    cluster.wait(2_000);
    assert!(cluster.register_in_vain().discard);
    assert!(cluster.register_in_vain().discard);
    cluster.link(0);
    assert_eq!(cluster.nodes[0].usage().objects, 0);
}

#[test]
fn a_question_that_crosses_a_removal_is_stale_and_leaves_no_ghost() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    let room = cluster.reserve("k", UNIT, plain());
    let ReserveOutcome::Room(reservations) = room else { panic!("{room:?}") };
    let hold: Hold = reservations[0].location.hold();
    assert!(matches!(cluster.commit("k", UNIT, plain(), &reservations), CommitOutcome::Stored(_)));
    cluster.hold_up(0);
    cluster.delete("k", true);
    // The node has not heard of the removal, and asks about the same object once more.
    let item = CommitItem { hold, key: key("k"), len: UNIT, options: plain(), others: vec![] };
    let decide = DecideItem { namespace: "default".into(), client: ClientId(7), item };
    let asked = Request::Decide(Decide { items: vec![decide], wait_ms: 500 });
    cluster.event(Event::Request(cluster.links[0], RequestId(77), asked));
    assert!(!cluster.has("k"));
    cluster.let_go(0);
    assert!(!cluster.has("k"));
    assert_eq!(cluster.nodes[0].usage().objects, 0);
}

#[test]
fn room_is_given_back_that_was_found_for_a_client_whose_answer_was_lost() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    assert!(matches!(cluster.reserve("k", UNIT, plain()), ReserveOutcome::Room(_)));
    assert_eq!(cluster.nodes[0].usage().granted, UNIT);
    // The client never came to the node; it connects to the master anew.
    cluster.open(ConnId(2), 7);
    assert_eq!(cluster.nodes[0].usage().granted, 0);
}

#[test]
fn every_copy_counts_against_the_quota() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    cluster.ask(Request::SetPolicy(Policy { quota: Some(3 * UNIT), max_hold_ms: None }));
    let twice = PutOptions { replicas: 2, ..plain() };
    let copies = |outcome: ReserveOutcome| match outcome {
        ReserveOutcome::Room(reservations) => reservations.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(copies(cluster.reserve("a", UNIT, twice.clone())), 2);
    assert_eq!(copies(cluster.reserve("b", UNIT, twice.clone())), 1);
    assert!(matches!(cluster.reserve("c", UNIT, twice), ReserveOutcome::OverQuota(_)));
}
