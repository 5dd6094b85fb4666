//! Drops in pieces, answers that wait for nodes, and puts whose clients no longer wait.

use super::*;
use crate::attributes::Consumption;
use crate::message::{
    Ack, AckItem, AckOutcome, CommitOutcome, Delete, DeleteMatching, DeleteOutcome, DeletedMatching,
    DropPins, Pattern, Pin, PinOutcome, PutOptions, Replacement, Reserve, ReserveItem, ReserveOutcome,
};

impl Cluster {
    fn drop_all(&mut self) -> RequestId {
        let delete = DeleteMatching { pattern: Pattern::All, force: false, wait_ms: 500 };
        self.send(ClientToMaster::DeleteMatching(delete))
    }

    fn dropped(&mut self, id: RequestId) -> Option<DeletedMatching> {
        match self.replies.remove(&id) {
            Some(Reply::DeletedMatching(it)) => Some(it),
            None => None,
            other => panic!("{other:?}"),
        }
    }

    /// Does one piece of work. Returns whether there was one.
    fn work(&mut self) -> bool {
        let works = self.master.has_work();
        self.master.work(self.now);
        self.carry_out();
        works
    }

    fn put_many(&mut self, count: usize) {
        (0..count).for_each(|index| _ = self.put(&format!("k{index}"), 1, plain()));
    }

    /// Number of copies that the stalled first node was asked to retire since the last call.
    fn copies_asked_for(&mut self) -> usize {
        let asked = std::mem::take(&mut self.held_up[0]).into_iter().map(|(_, request)| match request {
            MasterToMember::Retire(retire) => retire.slot_refs.len(),
            _ => 0,
        });
        asked.sum()
    }

    fn left(&self) -> u64 {
        self.master.stat().namespaces.iter().map(|it| it.objects).sum()
    }
}

fn in_pieces_of(piece_objects_max: usize, capacities: &[u64]) -> Cluster {
    Cluster::with(capacities, |config| config.piece_objects_max = piece_objects_max)
}

fn confirmed(count: u64) -> Option<DeletedMatching> {
    Some(DeletedMatching { count, unconfirmed: vec![] })
}

fn unconfirmed(count: u64, node: &str) -> Option<DeletedMatching> {
    Some(DeletedMatching { count, unconfirmed: vec![node.into()] })
}

#[test]
fn drop_removes_a_bounded_number_per_turn() {
    let mut cluster = in_pieces_of(4, &[64 * UNIT]);
    cluster.put_many(18);
    let id = cluster.drop_all();
    let mut left = vec![cluster.left()];
    while cluster.work() {
        assert!(cluster.ask(ClientToMaster::Stat).is_some());
        left.push(cluster.left());
    }
    assert_eq!(left, [14, 10, 6, 2, 0]);
    assert_eq!(cluster.dropped(id), confirmed(18));
    assert_eq!((cluster.nodes[0].usage().objects, cluster.master.waiting_count()), (0, 0));
}

#[test]
fn drop_spares_objects_put_since_it_began() {
    let mut cluster = in_pieces_of(2, &[64 * UNIT]);
    cluster.put_many(6);
    let id = cluster.drop_all();
    // One of them takes a name that the drop has not reached yet, the other an index that it has passed.
    assert!(matches!(cluster.put("k5", 1, plain()), CommitOutcome::Replaced(_)));
    assert!(matches!(cluster.put("k0", 1, plain()), CommitOutcome::Stored(_)));
    while cluster.work() {}
    assert_eq!(cluster.dropped(id), confirmed(5));
    assert!(cluster.has("k0") && cluster.has("k5") && cluster.left() == 2);
}

#[test]
fn drops_take_turns() {
    let mut cluster = in_pieces_of(1, &[64 * UNIT]);
    cluster.put_many(6);
    let delete = |prefix: &[u8]| DeleteMatching {
        pattern: Pattern::Prefix(prefix.to_vec()),
        force: false,
        wait_ms: 500,
    };
    let first = cluster.send(ClientToMaster::DeleteMatching(delete(b"k")));
    let second = cluster.send(ClientToMaster::DeleteMatching(delete(b"k5")));
    let mut pieces = 0;
    while cluster.dropped(second).is_none() {
        assert!(cluster.work());
        pieces += 1;
    }
    assert!(pieces <= 2 && cluster.left() > 0, "{pieces} pieces, {} left", cluster.left());
    while cluster.work() {}
    assert_eq!(cluster.dropped(first), confirmed(5));
}

#[test]
fn messages_in_flight_of_a_drop_are_bounded() {
    let mut cluster = in_pieces_of(1, &[64 * UNIT]);
    cluster.put_many(20);
    cluster.hold_up(0);
    let id = cluster.drop_all();
    while cluster.work() {}
    assert_eq!((cluster.held_up[0].len(), cluster.left()), (4, 16));
    cluster.let_go(0);
    while cluster.work() {}
    assert_eq!(cluster.dropped(id), confirmed(20));
}

#[test]
fn late_drop_is_answered_after_every_name_is_gone() {
    let mut cluster = in_pieces_of(1, &[64 * UNIT]);
    cluster.put_many(20);
    cluster.hold_up(0);
    let id = cluster.drop_all();
    while cluster.work() {}
    cluster.wait(500);
    assert_eq!(cluster.dropped(id), None);
    while cluster.work() {}
    assert_eq!((cluster.dropped(id), cluster.left()), (unconfirmed(20, "node1"), 0));
    // A repeated drop is unconfirmed, too, until the node has applied its pending retires.
    let again = cluster.drop_all();
    cluster.wait(500);
    while cluster.work() {}
    assert_eq!(cluster.dropped(again), unconfirmed(0, "node1"));
    cluster.let_go(0);
    let again = cluster.drop_all();
    while cluster.work() {}
    assert_eq!(cluster.dropped(again), confirmed(0));
}

#[test]
fn pending_retires_per_turn_are_bounded() {
    const PIECE: usize = 3;
    // Copies of many names, or of one name that was replaced many times.
    for one_name in [false, true] {
        let mut cluster = in_pieces_of(PIECE, &[64 * UNIT]);
        let name = |index: usize| if one_name { "k".to_owned() } else { format!("k{index:02}") };
        let reserve = |index| match cluster.reserve(&name(index), 1, plain()) {
            ReserveOutcome::Space(space) => space,
            other => panic!("{other:?}"),
        };
        let reservations: Vec<_> = (0..20).map(reserve).collect();
        cluster.hold_up(0);
        for (index, space) in reservations.iter().enumerate() {
            cluster.send_commit(&name(index), 1, plain(), space);
            cluster.delete(&name(index), true);
        }
        let owed = cluster.master.unconfirmed_count();
        assert_eq!(owed, 20);
        cluster.wait(500);
        cluster.held_up[0].clear();
        let id = cluster.drop_all();
        // From here on the deadline has passed, so that there is always another piece to do.
        cluster.wait(500);
        assert_eq!(cluster.dropped(id), None);
        let mut turns = vec![cluster.copies_asked_for()];
        while cluster.work() {
            turns.push(cluster.copies_asked_for());
        }
        assert!(turns.iter().all(|&asked| asked <= PIECE), "too many retires in one turn: {turns:?}");
        assert_eq!(turns.iter().sum::<usize>(), owed, "{turns:?}");
        assert_eq!(cluster.dropped(id), unconfirmed(0, "node1"));
    }
}

#[test]
fn drop_continues_without_its_client() {
    let mut cluster = in_pieces_of(2, &[64 * UNIT]);
    cluster.put_many(9);
    cluster.drop_all();
    cluster.event(Event::Closed(CLIENT));
    while cluster.work() {}
    assert_eq!((cluster.left(), cluster.nodes[0].usage().objects), (0, 0));
    assert_eq!(cluster.master.waiting_count(), 0);
}

#[test]
fn drop_waits_for_concurrent_removals() {
    let mut cluster = in_pieces_of(8, &[64 * UNIT, 64 * UNIT]);
    let on = |node: &str| PutOptions { preferred: vec![node.into()], ..plain() };
    cluster.put("k", 1, on("node2"));
    cluster.hold_up(1);
    let ReserveOutcome::Space(space) = cluster.reserve("k", 1, on("node1")) else { panic!() };
    let put = cluster.send_commit("k", 1, on("node1"), &space);
    let id = cluster.drop_all();
    while cluster.work() {}
    assert_eq!((cluster.dropped(id), cluster.replies.contains_key(&put)), (None, false));
    cluster.let_go(1);
    assert_eq!(cluster.dropped(id), confirmed(1));
}

#[test]
fn repeated_delete_is_unconfirmed_while_a_retire_is_owed() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.put("k", UNIT, plain());
    cluster.unlink(0);
    let owed = Some(DeleteOutcome::Unconfirmed(vec!["node1".into()]));
    assert_eq!(cluster.delete("k", true), owed);
    assert_eq!(cluster.delete("k", true), owed);
    assert_eq!(cluster.delete("other", true), Some(DeleteOutcome::Absent));
    cluster.link(0);
    assert_eq!(cluster.delete("k", true), Some(DeleteOutcome::Absent));
    assert_eq!(cluster.master.unconfirmed_count(), 0);
}

#[test]
fn repeated_delete_waits_for_a_slow_node() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.put("k", UNIT, plain());
    cluster.hold_up(0);
    assert_eq!(cluster.delete("k", true), None);
    let again =
        cluster.send(ClientToMaster::Delete(Delete { keys: vec![key("k")], force: true, wait_ms: 500 }));
    assert!(!cluster.replies.contains_key(&again));
    cluster.let_go(0);
    assert_eq!(cluster.replies.remove(&again), Some(Reply::Deleted(vec![DeleteOutcome::Absent])));
}

#[test]
fn duplicate_key_in_a_batch_gets_the_same_answer() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.put("k", UNIT, plain());
    cluster.unlink(0);
    let delete = Delete { keys: vec![key("k"), key("k")], force: true, wait_ms: 500 };
    let unconfirmed = || DeleteOutcome::Unconfirmed(vec!["node1".into()]);
    let reply = cluster.ask(ClientToMaster::Delete(delete));
    assert_eq!(reply, Some(Reply::Deleted(vec![unconfirmed(), unconfirmed()])));
}

/// A replacement of `k` on the first node, while its old copy is on the second.
fn replace_on_another_node(before: impl FnOnce(&mut Cluster)) -> (Cluster, RequestId) {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    let on = |node: &str| PutOptions { preferred: vec![node.into()], ..plain() };
    cluster.put("k", UNIT, on("node2"));
    before(&mut cluster);
    let ReserveOutcome::Space(space) = cluster.reserve("k", UNIT, on("node1")) else { panic!() };
    let id = cluster.send_commit("k", UNIT, on("node1"), &space);
    (cluster, id)
}

#[test]
fn replacement_names_the_nodes_without_confirmation() {
    let generation = Generation { epoch: 5, counter: 2 };
    let unconfirmed = Replacement { generation, replaced: true, nodes: vec!["node2".into()] };
    let unconfirmed = Some(Reply::Committed(vec![CommitOutcome::Unconfirmed(unconfirmed)]));
    let (mut away, id) = replace_on_another_node(|cluster| cluster.unlink(1));
    assert_eq!(away.replies.remove(&id), unconfirmed);
    let (mut slow, id) = replace_on_another_node(|cluster| cluster.hold_up(1));
    slow.wait(499);
    assert_eq!(slow.replies.remove(&id), None);
    slow.wait(1);
    assert_eq!(slow.replies.remove(&id), unconfirmed);
    let (mut prompt, id) = replace_on_another_node(|_| ());
    let replaced = Some(Reply::Committed(vec![CommitOutcome::Replaced(generation)]));
    assert_eq!(prompt.replies.remove(&id), replaced);
}

#[test]
fn cancelled_put_leaves_the_queue_at_once() {
    let mut cluster = Cluster::new(&[2 * UNIT]);
    cluster.put("held", 2 * UNIT, pinned());
    let waiting = |cluster: &mut Cluster, name: &str, len| {
        let items = vec![ReserveItem { key: key(name), len, options: plain() }];
        cluster.send(ClientToMaster::Reserve(Reserve { items, wait_ms: 10_000, ..Reserve::default() }))
    };
    let first = waiting(&mut cluster, "first", 2 * UNIT);
    let second = waiting(&mut cluster, "second", UNIT);
    assert_eq!(cluster.ask(ClientToMaster::Cancel(first)), Some(Reply::Done));
    assert!(matches!(cluster.replies.remove(&first), Some(Reply::Reserved(_))));
    assert_eq!(cluster.master.stat().namespaces[0].waiting, 1);
    // Cancelling an answered request, or an unknown one, has no effect.
    assert_eq!(cluster.ask(ClientToMaster::Cancel(first)), Some(Reply::Done));
    assert_eq!(cluster.ask(ClientToMaster::Cancel(RequestId(77))), Some(Reply::Done));
    assert!(!cluster.replies.contains_key(&second));
    cluster.delete("held", true);
    let reply = cluster.replies.remove(&second);
    assert!(matches!(reply, Some(Reply::Reserved(it)) if matches!(it.items[..], [ReserveOutcome::Space(_)])));
}

#[test]
fn request_of_another_client_cannot_be_cancelled() {
    let mut cluster = Cluster::new(&[UNIT]);
    cluster.put("held", UNIT, pinned());
    let items = vec![ReserveItem { key: key("k"), len: UNIT, options: plain() }];
    let reserve = Reserve { items, wait_ms: 10_000, ..Reserve::default() };
    let id = cluster.send(ClientToMaster::Reserve(reserve));
    cluster.open(ConnId(2), 8);
    cluster.event(Event::Request(ConnId(2), RequestId(1), ClientToMaster::Cancel(id).into()));
    assert!(!cluster.replies.contains_key(&id));
}

/// Drops an object that was given up, and one whose retire waited for a successor, with the node that has
/// them; then the master restarts and the node returns. Returns which of them exist.
fn dropped_and_returned(mutant: Mutant) -> [bool; 2] {
    let mut cluster = Cluster::with(&[8 * UNIT], |config| {
        (config.durable, config.mutant) = (true, mutant);
    });
    cluster.put("given up", UNIT, plain());
    cluster.put("replaced", UNIT, plain());
    cluster.put("kept", UNIT, PutOptions { hard_pin: true, ..plain() });
    let ReserveOutcome::Space(space) = cluster.reserve("replaced", UNIT, plain()) else { panic!() };
    cluster.takes_at_once = false;
    cluster.hold_up(0);
    cluster.send_commit("replaced", UNIT, plain(), &space);
    cluster.held_up[0].clear();
    cluster.unlink(0);
    cluster.let_go(0);
    cluster.wait(2_000);
    // The node is known not to confirm from the first object on.
    let id = cluster.drop_all();
    while cluster.work() {}
    assert_eq!(cluster.dropped(id), unconfirmed(1, "node1"));
    cluster.restart_alone(6);
    cluster.link(0);
    assert!(!cluster.has("kept"));
    ["given up", "replaced"].map(|name| cluster.has(name))
}

#[test]
fn drop_is_pending_for_every_copy_of_its_names() {
    assert_eq!(dropped_and_returned(Mutant::None), [false, false]);
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_pending_drops_is_noticed() {
    assert_eq!(dropped_and_returned(Mutant::DropWithoutOwing), [true, true]);
}

/// Whether a name has an object after a delete by pattern that a lease has refused. The object has replaced
/// another one, and its home is lost before it has received it.
fn is_left_after_a_refused_drop(mutant: Mutant) -> bool {
    let mut cluster = Cluster::with(&[4 * UNIT, 4 * UNIT], |config| {
        (config.durable, config.strict_leases, config.mutant) = (true, true, mutant);
    });
    let on = |node: &str| PutOptions { preferred: vec![node.into()], ..plain() };
    cluster.put("a", UNIT, on("node1"));
    let ReserveOutcome::Space(space) = cluster.reserve("a", UNIT, on("node2")) else { panic!("full") };
    cluster.takes_at_once = false;
    cluster.hold_up(1);
    cluster.send_commit("a", UNIT, on("node2"), &space);
    assert!(matches!(cluster.resolve("a", true), ResolveOutcome::Found(_)));
    let id = cluster.drop_all();
    while cluster.work() {}
    assert_eq!(cluster.dropped(id), Some(DeletedMatching::default()));
    cluster.restart_alone(6);
    cluster.link(0);
    cluster.forget(1);
    cluster.has("a")
}

#[test]
fn drop_spares_what_waits_for_a_spared_successor() {
    assert!(is_left_after_a_refused_drop(Mutant::None));
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_spared_predecessors_is_noticed() {
    assert!(!is_left_after_a_refused_drop(Mutant::DropReplaced));
}

/// Whether a name has an object after a delete by pattern that began before it was put. It was replaced while
/// the delete was at work, and the home of the other object is lost before it has received that.
fn is_left_after_an_earlier_drop(mutant: Mutant) -> bool {
    let mut cluster = Cluster::with(&[8 * UNIT, 8 * UNIT], |config| {
        (config.durable, config.piece_objects_max, config.mutant) = (true, 1, mutant);
    });
    let on = |node: &str| PutOptions { preferred: vec![node.into()], ..plain() };
    ["x", "y"].into_iter().for_each(|name| _ = cluster.put(name, 1, on("node1")));
    let id = cluster.drop_all();
    cluster.put("a", UNIT, on("node1"));
    let ReserveOutcome::Space(space) = cluster.reserve("a", UNIT, on("node2")) else { panic!("full") };
    cluster.takes_at_once = false;
    cluster.hold_up(1);
    cluster.send_commit("a", UNIT, on("node2"), &space);
    while cluster.work() {}
    assert_eq!(cluster.dropped(id), confirmed(2));
    cluster.restart_alone(6);
    cluster.link(0);
    cluster.forget(1);
    cluster.has("a")
}

#[test]
fn drop_spares_what_was_put_since_and_replaced() {
    assert!(is_left_after_an_earlier_drop(Mutant::None));
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_later_predecessors_is_noticed() {
    assert!(!is_left_after_an_earlier_drop(Mutant::DropReplacedSince));
}

fn ten_keys() -> Vec<Key> {
    (0..10).map(|it| key(&format!("k{it}"))).collect()
}

fn pin_ten() -> ClientToMaster {
    ClientToMaster::Pin(Pin { keys: ten_keys(), owner: "run".into(), on: true, wait_ms: 500 })
}

fn pins(cluster: &Cluster) -> u64 {
    cluster.limit("pins_per_namespace").used
}

/// Sends a request about ten objects, of which four are handled at a time. Returns the reply, and a number
/// after each turn.
fn turns_of(
    cluster: &mut Cluster,
    request: ClientToMaster,
    number: impl Fn(&Cluster) -> u64,
) -> (Option<Reply>, Vec<u64>) {
    let id = cluster.send(request);
    let mut numbers = vec![number(cluster)];
    while cluster.work() {
        assert!(cluster.ask(ClientToMaster::Stat).is_some());
        cluster.master.check().unwrap();
        numbers.push(number(cluster));
    }
    (cluster.replies.remove(&id), numbers)
}

/// The pins after each turn of a pin and of the end of all pins, and the objects after each turn of
/// acknowledgements.
fn turns_of_batches(mutant: Mutant) -> [Vec<u64>; 3] {
    let mut cluster = in_pieces_of(4, &[64 * UNIT]);
    cluster.master.objects.cx.config.mutant = mutant;
    cluster.put_many(10);
    let (reply, pinned) = turns_of(&mut cluster, pin_ten(), pins);
    assert_eq!(reply, Some(Reply::Pinned(vec![PinOutcome::Done; 10])));
    let drop = DropPins { owner: "run".into(), wait_ms: 500 };
    let (reply, unpinned) = turns_of(&mut cluster, ClientToMaster::DropPins(drop), pins);
    assert_eq!(reply, confirmed(10).map(Reply::DeletedMatching));
    (0..10).for_each(|it| _ = cluster.delete(&format!("k{it}"), true));
    let sample = PutOptions { sample: Some(Consumption::Once), ..plain() };
    let items = (0..10).map(|it| {
        let name = format!("k{it}");
        let CommitOutcome::Stored(generation) = cluster.put(&name, 1, sample.clone()) else { panic!() };
        AckItem { key: key(&name), generation }
    });
    let ack = Ack { items: items.collect(), wait_ms: 500, ..Ack::default() };
    let (reply, acked) = turns_of(&mut cluster, ClientToMaster::Ack(ack), Cluster::left);
    assert_eq!(reply, Some(Reply::Acked(vec![AckOutcome::Freed; 10])));
    assert_eq!(cluster.nodes[0].usage().objects, 0);
    [pinned, unpinned, acked]
}

#[test]
fn large_batch_is_handled_in_pieces() {
    let expected = [vec![4, 8, 10], vec![0], vec![6, 2, 0]];
    assert_eq!(turns_of_batches(Mutant::None), expected);
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_that_handles_batches_at_once_is_noticed() {
    assert_eq!(turns_of_batches(Mutant::HandleAtOnce), [vec![10], vec![0], vec![0]]);
}

#[test]
fn late_batch_is_handled_to_its_end() {
    let mut cluster = in_pieces_of(2, &[64 * UNIT]);
    cluster.put_many(10);
    cluster.hold_up(0);
    let id = cluster.send(pin_ten());
    while cluster.work() {}
    assert_eq!((cluster.held_up[0].len(), pins(&cluster)), (4, 8), "few messages are in flight");
    assert!(!cluster.replies.contains_key(&id));
    cluster.wait(500);
    while cluster.work() {}
    let late = PinOutcome::Unconfirmed(vec!["node1".into()]);
    assert_eq!(cluster.replies.remove(&id), Some(Reply::Pinned(vec![late; 10])));
    assert_eq!((pins(&cluster), cluster.master.has_work()), (10, false));
    cluster.let_go(0);
    cluster.master.check().unwrap();
}

#[test]
fn batch_of_a_client_that_is_gone_is_handled_to_its_end() {
    let mut cluster = in_pieces_of(2, &[64 * UNIT]);
    cluster.put_many(10);
    cluster.send(pin_ten());
    cluster.event(Event::Closed(CLIENT));
    while cluster.work() {}
    assert_eq!((pins(&cluster), cluster.master.waiting_count()), (10, 0));
    cluster.master.check().unwrap();
}

#[test]
fn repeated_drop_of_pins_waits_for_unwritten_attributes() {
    let mut cluster = in_pieces_of(2, &[64 * UNIT]);
    (0..6).for_each(|it| _ = cluster.put(&format!("k{it}"), 1, pinned()));
    let owner = pinned().owner;
    let drop = || ClientToMaster::DropPins(DropPins { owner: owner.clone(), wait_ms: 500 });
    cluster.hold_up(0);
    let first = cluster.send(drop());
    while cluster.work() {}
    cluster.wait(500);
    assert_eq!(cluster.dropped(first), unconfirmed(6, "node1"));
    let second = cluster.send(drop());
    while cluster.work() {}
    assert_eq!(cluster.dropped(second), None, "the node has not written them");
    cluster.let_go(0);
    while cluster.work() {}
    assert_eq!(cluster.dropped(second), confirmed(0));
}
