//! Departures of members in pieces: of lost ones, and of those that have been away for too long.

use tiffin_node::Node;

use super::*;
use crate::{
    attributes::Consumption,
    message::{DeletedMatching, ForgetNode, Forgotten, Pin, PinOutcome, Pull},
};

impl Cluster {
    /// Does one piece of work, and returns the number of objects that are left after it.
    fn piece(&mut self) -> u64 {
        self.master.work(self.now);
        self.carry_out();
        self.master.check().unwrap();
        self.objects_left()
    }

    fn objects_left(&self) -> u64 {
        self.master.stat().namespaces.iter().map(|it| it.objects).sum()
    }

    fn finish(&mut self) {
        while self.master.has_work() {
            self.piece();
        }
    }

    fn put_on(&mut self, node: &str, prefix: &str, count: usize, options: PutOptions) {
        for at in 0..count {
            let options = PutOptions { preferred: vec![node.into()], ..options.clone() };
            let outcome = self.put(&format!("{prefix}{at}"), UNIT, options);
            assert!(matches!(outcome, CommitOutcome::Stored(_)), "{outcome:?}");
        }
    }

    /// The operator declares the first node lost.
    fn forget_first(&mut self) -> RequestId {
        self.unlink(0);
        self.send(ClientToMaster::ForgetNode(ForgetNode { name: "node1".into() }))
    }

    fn member_names(&self) -> Vec<String> {
        self.master.stat().nodes.into_iter().map(|it| it.info.name).collect()
    }
}

/// Two nodes, and objects on the first.
fn in_pieces_of(piece_objects_max: usize, count: usize, mutant: Mutant) -> Cluster {
    let mut cluster = Cluster::with(&[32 * UNIT, 32 * UNIT], |config| {
        config.piece_objects_max = piece_objects_max;
        config.mutant = mutant;
    });
    cluster.put_on("node1", "k", count, plain());
    cluster
}

#[test]
fn loss_removes_a_bounded_number_per_turn() {
    let mut cluster = in_pieces_of(4, 14, Mutant::None);
    cluster.put_on("node2", "other", 1, plain());
    let id = cluster.forget_first();
    let mut left = vec![cluster.objects_left()];
    while cluster.master.has_work() {
        assert!(!cluster.replies.contains_key(&id), "the reply has the number of all objects");
        left.push(cluster.piece());
    }
    assert_eq!(left, [11, 7, 3, 1]);
    assert_eq!(cluster.replies.remove(&id), Some(Reply::Forgotten(Forgotten { members: 1, objects: 14 })));
    let lost = |it: &&Notice| matches!(it, Notice::Departs(..) | Notice::NodeLost(..));
    let notices: Vec<_> = cluster.notices.iter().filter(lost).cloned().collect();
    let departs = Notice::Departs("node1".into(), Departure::Lost);
    assert_eq!(notices, [departs, Notice::NodeLost("node1".into(), 14)]);
    assert!(cluster.has("other0"));
}

#[test]
fn lost_node_is_no_member_while_its_objects_are_removed() {
    let mut cluster = in_pieces_of(1, 8, Mutant::None);
    let id = cluster.forget_first();
    assert_eq!(cluster.member_names(), ["node2"]);
    let Some(Reply::Refused(refusal)) =
        cluster.ask(ClientToMaster::ForgetNode(ForgetNode { name: "node1".into() }))
    else {
        panic!()
    };
    assert!(refusal.message.contains("no member"), "{}", refusal.message);
    // The next piece would remove another one.
    assert_eq!(cluster.resolve("k7", false), ResolveOutcome::Absent);
    assert_eq!(cluster.delete("k6", true), Some(DeleteOutcome::Absent));
    let pin = Pin { keys: vec![key("k5")], owner: "me".into(), on: true, wait_ms: 500 };
    let pinned = cluster.ask(ClientToMaster::Pin(pin));
    assert_eq!(pinned, Some(Reply::Pinned(vec![PinOutcome::Absent])));
    assert!(matches!(cluster.put("k4", UNIT, keep()), CommitOutcome::Stored(_)));
    assert_eq!(cluster.objects_left(), 4);
    // Only this one is confirmed by a node; the others need no confirmation.
    let drop = DeleteMatching { pattern: Pattern::All, force: true, wait_ms: 500 };
    let drop = cluster.send(ClientToMaster::DeleteMatching(drop));
    cluster.finish();
    let Some(Reply::DeletedMatching(DeletedMatching { unconfirmed, .. })) = cluster.replies.remove(&drop)
    else {
        panic!()
    };
    assert_eq!(unconfirmed, Vec::<String>::new());
    assert!(matches!(cluster.replies.remove(&id), Some(Reply::Forgotten(_))));
    assert_eq!((cluster.objects_left(), cluster.master.unconfirmed_count()), (0, 0));
}

#[test]
fn pending_retires_of_a_lost_node_end_in_pieces() {
    let mut cluster = in_pieces_of(2, 8, Mutant::None);
    cluster.unlink(0);
    (0..8).for_each(|at| _ = cluster.delete(&format!("k{at}"), true));
    assert_eq!(cluster.master.unconfirmed_count(), 8);
    cluster.send(ClientToMaster::ForgetNode(ForgetNode { name: "node1".into() }));
    assert_eq!(cluster.delete("k7", true), Some(DeleteOutcome::Absent));
    let mut pending = vec![cluster.master.unconfirmed_count()];
    while cluster.master.has_work() {
        cluster.piece();
        pending.push(cluster.master.unconfirmed_count());
    }
    assert_eq!(pending, [6, 4, 2, 0]);
}

#[test]
fn losses_take_turns() {
    let mut cluster = in_pieces_of(1, 4, Mutant::None);
    cluster.put_on("node2", "other", 2, plain());
    for node in [0, 1] {
        cluster.event(Event::Ended(cluster.links[node]));
    }
    assert_eq!((cluster.objects_left(), cluster.member_names().len()), (5, 0));
    for _ in 0..4 {
        cluster.piece();
    }
    assert!(cluster.notices.contains(&Notice::NodeLost("node2".into(), 2)), "{:?}", cluster.notices);
    assert!(cluster.master.has_work());
    cluster.finish();
    assert!(cluster.notices.contains(&Notice::NodeLost("node1".into(), 4)));
}

#[test]
fn node_that_is_given_up_and_then_lost_departs_once() {
    let mut cluster = in_pieces_of(1, 6, Mutant::None);
    cluster.put_on("node1", "pinned", 2, pinned());
    cluster.unlink(0);
    cluster.wait(2_000);
    assert_eq!(cluster.piece(), 6);
    let id = cluster.send(ClientToMaster::ForgetNode(ForgetNode { name: "node1".into() }));
    cluster.finish();
    assert_eq!(cluster.replies.remove(&id), Some(Reply::Forgotten(Forgotten { members: 1, objects: 8 })));
    let is_end = |it: &&Notice| matches!(it, Notice::NodeAbsent { .. } | Notice::NodeLost(..));
    assert_eq!(cluster.notices.iter().filter(is_end).count(), 1);
}

/// A new node registers while a lost one departs. Returns how many of its six objects are there at the end.
fn new_nodes_objects(mutant: Mutant) -> usize {
    let mut cluster = in_pieces_of(4, 12, mutant);
    cluster.forget_first();
    cluster.add_node(32 * UNIT, |_| ());
    cluster.put_on("node3", "new", 6, plain());
    while cluster.master.has_work() {
        cluster.master.work(cluster.now);
        cluster.carry_out();
    }
    (0..6).filter(|at| cluster.has(&format!("new{at}"))).count()
}

#[test]
fn index_of_a_departing_node_is_not_used_again() {
    assert_eq!(new_nodes_objects(Mutant::None), 6);
}

/// A node with six objects has been away for too long, and returns. Returns how many objects the master
/// and the node have then, and whether a client found one that was about to be removed.
fn returned_early(mutant: Mutant) -> (u64, u64, bool) {
    let mut cluster = in_pieces_of(1, 6, mutant);
    cluster.put_on("node1", "pinned", 2, pinned());
    cluster.unlink(0);
    cluster.wait(2_000);
    assert_eq!(cluster.objects_left(), 7);
    let is_found = cluster.resolve("k5", false) != ResolveOutcome::Absent;
    cluster.link(0);
    while cluster.master.has_work() {
        cluster.master.work(cluster.now);
        cluster.carry_out();
    }
    (cluster.objects_left(), cluster.nodes[0].usage().objects, is_found)
}

#[test]
fn absent_node_returns_after_its_departure() {
    assert_eq!(returned_early(Mutant::None), (2, 2, false));
}

#[test]
fn node_that_waits_for_its_departure_is_forgotten_with_its_connection() {
    let mut cluster = in_pieces_of(1, 6, Mutant::None);
    cluster.unlink(0);
    cluster.wait(2_000);
    cluster.link(0);
    cluster.unlink(0);
    cluster.finish();
    assert!(!cluster.master.stat().nodes[0].alive);
    cluster.link(0);
    assert!(cluster.master.stat().nodes[0].alive);
    assert_eq!((cluster.objects_left(), cluster.nodes[0].usage().objects), (0, 0));
}

#[test]
fn absence_keeps_protected_objects_and_counts_both() {
    let mut cluster = in_pieces_of(1, 3, Mutant::None);
    cluster.put_on("node1", "pinned", 3, pinned());
    cluster.unlink(0);
    cluster.wait(2_000);
    cluster.finish();
    let absent = Notice::NodeAbsent { node: "node1".into(), removed: 3, kept: 3 };
    assert!(cluster.notices.contains(&absent), "{:?}", cluster.notices);
    cluster.link(0);
    assert_eq!((cluster.objects_left(), cluster.nodes[0].usage().objects), (3, 3));
    assert_eq!(cluster.master.unconfirmed_count(), 0);
}

/// A node returns without its objects. Returns how many of them are found when it has joined.
fn found_although_lacking(mutant: Mutant) -> usize {
    let mut cluster = in_pieces_of(1, 6, mutant);
    cluster.unlink(0);
    cluster.nodes[0] = Node::new(node_config(1, 32 * UNIT));
    cluster.link(0);
    assert!(cluster.master.stat().nodes[0].alive);
    (0..6).filter(|at| cluster.has(&format!("k{at}"))).count()
}

#[test]
fn returning_node_joins_after_all_its_copies_were_compared() {
    assert_eq!(found_although_lacking(Mutant::None), 0);
}

#[cfg(feature = "mutants")]
#[test]
fn mutants_of_departures_are_noticed() {
    assert_eq!(new_nodes_objects(Mutant::ReuseIndex), 4);
    assert!(returned_early(Mutant::FindDeparted).2);
    assert_ne!(returned_early(Mutant::AdmitDeparting).1, 2);
    assert_eq!(found_although_lacking(Mutant::JoinEarly), 5);
}

/// The number of samples that a pull gets while their node departs.
fn pulled_from_a_lost_node(mutant: Mutant) -> usize {
    let options = PutOptions { sample: Some(Consumption::Once), stream: "s".into(), ..plain() };
    let mut cluster = in_pieces_of(1, 0, mutant);
    cluster.put_on("node1", "k", 4, options);
    cluster.forget_first();
    assert_eq!(cluster.objects_left(), 3);
    let pull = Pull { stream: "s".into(), items_max: 4, ..Pull::default() };
    match cluster.ask(ClientToMaster::Pull(pull)) {
        Some(Reply::Pulled(pulled)) => pulled.keys.len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn pull_gets_nothing_from_a_lost_node() {
    assert_eq!(pulled_from_a_lost_node(Mutant::None), 0);
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_pulls_from_lost_nodes_is_noticed() {
    assert_eq!(pulled_from_a_lost_node(Mutant::FindDeparted), 3);
}
