//! The rules of the master, one test each, with real nodes behind in-memory connections.

mod absent;
mod behind;
mod cluster;
mod conditional;
mod confirmed;
mod departures;
mod drain;
mod drops;
mod expire;
mod guarantees;
mod identity;
mod lifetimes;
mod limits;
mod lost_answers;
mod offers;
mod pools;
mod publish;
mod repair;
mod restart;
mod samples;
mod shortage;
mod successors;
mod tenants;
mod test_disk;
mod tier;
mod tier_promote;
mod tier_refused;
mod tier_space;
mod tier_waiting;
mod tokens;
mod undone;

pub(super) use cluster::*;

use std::collections::VecDeque;

use tiffin_node as node;

use super::*;
use crate::{
    Location, SlotId, Stamp,
    message::{
        ClientToNode, CommitOutcome, Delete, DeleteMatching, DeleteOutcome, DeletedMatching, Exists, Full,
        List, NodeInfo, OnExists, Pattern, Presence, PutOptions, Reserve, ReserveItem, ReserveOutcome,
        Resolve, ResolveOutcome,
    },
};

#[test]
fn put_object_is_found_and_deleted_once() {
    let mut cluster = Cluster::new(&[10 * UNIT]);
    assert_eq!(cluster.put("a", 100, plain()), CommitOutcome::Stored(generation(1)));
    assert!(cluster.has("a"));
    assert_eq!(cluster.delete("a", false), Some(DeleteOutcome::Deleted));
    assert_eq!(cluster.delete("a", false), Some(DeleteOutcome::Absent));
    assert!(!cluster.has("a"));
    assert_eq!(cluster.nodes[0].usage().free, 10 * UNIT);
}

#[test]
fn first_commit_wins() {
    let mut cluster = Cluster::new(&[10 * UNIT]);
    let ReserveOutcome::Space(first) = cluster.reserve("a", 10, keep()) else { panic!() };
    let ReserveOutcome::Space(second) = cluster.reserve("a", 10, keep()) else { panic!() };
    assert_eq!(cluster.commit("a", 10, keep(), &second), CommitOutcome::Stored(generation(1)));
    assert_eq!(cluster.commit("a", 10, keep(), &first), CommitOutcome::Exists(generation(1)));
    assert_eq!(cluster.reserve("a", 10, keep()), ReserveOutcome::Exists(generation(1)));
    assert_eq!(cluster.nodes[0].usage().granted, 0);
}

#[test]
fn replacement_retires_the_old_object() {
    let mut cluster = Cluster::new(&[10 * UNIT, 10 * UNIT]);
    assert_eq!(cluster.put("a", 10, plain()), CommitOutcome::Stored(generation(1)));
    assert_eq!(cluster.put("a", 20, plain()), CommitOutcome::Replaced(generation(2)));
    let ResolveOutcome::Found(found) = cluster.resolve("a", false) else { panic!() };
    assert_eq!((found.generation, found.len), (generation(2), 20));
    let committed: u64 = cluster.nodes.iter().map(|it| it.usage().committed).sum();
    assert_eq!(committed, UNIT);
}

#[test]
fn conditional_replacement_spares_newer_objects() {
    let mut cluster = Cluster::new(&[10 * UNIT]);
    let only = |counter| PutOptions { replaces: Some(generation(counter)), ..plain() };
    // There is no object to replace.
    assert_eq!(cluster.reserve("a", 10, only(1)), ReserveOutcome::Exists(Generation::default()));
    assert_eq!(cluster.put("a", 10, plain()), CommitOutcome::Stored(generation(1)));
    let ReserveOutcome::Space(early) = cluster.reserve("a", 10, only(1)) else { panic!() };
    let ReserveOutcome::Space(late) = cluster.reserve("a", 10, only(1)) else { panic!() };
    assert_eq!(cluster.commit("a", 10, only(1), &early), CommitOutcome::Replaced(generation(2)));
    // The other writer saw the first object, and must not overwrite the second.
    assert_eq!(cluster.commit("a", 10, only(1), &late), CommitOutcome::Exists(generation(2)));
    assert_eq!(cluster.reserve("a", 10, only(1)), ReserveOutcome::Exists(generation(2)));
    // Nor may it bring back a deleted object.
    let ReserveOutcome::Space(space) = cluster.reserve("a", 10, only(2)) else { panic!() };
    assert_eq!(cluster.delete("a", false), Some(DeleteOutcome::Deleted));
    assert_eq!(cluster.commit("a", 10, only(2), &space), CommitOutcome::Exists(Generation::default()));
    assert!(!cluster.has("a"));
    assert_eq!(cluster.nodes[0].usage().free, 10 * UNIT);
}

#[test]
fn draining_node_is_readable_and_gets_no_objects() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    let there = PutOptions { preferred: vec!["node1".into()], ..plain() };
    cluster.put("old", UNIT, there.clone());
    cluster.node_event(0, node::Event::Drain);
    assert_eq!(cluster.master.stat().nodes[0].usage.capacity, 0, "the master learns of it at once");
    for name in ["a", "b", "c", "d"] {
        assert!(matches!(cluster.put(name, UNIT, there.clone()), CommitOutcome::Stored(_)));
    }
    assert_eq!(cluster.nodes[0].inventory().len(), 1);
    assert!(cluster.has("old"), "nothing was evicted for space that a draining node would not give");
    let mut alone = Cluster::new(&[4 * UNIT]);
    alone.put("old", UNIT, plain());
    alone.node_event(0, node::Event::Drain);
    assert!(matches!(alone.reserve("a", UNIT, plain()), ReserveOutcome::Full(_)));
    assert!(alone.has("old"));
}

#[test]
fn conditional_replacement_refuses_samples() {
    let mut cluster = Cluster::new(&[10 * UNIT]);
    let sample = PutOptions { sample: Some(crate::attributes::Consumption::Once), ..plain() };
    assert_eq!(cluster.put("a", 10, sample), CommitOutcome::Stored(generation(1)));
    let only = PutOptions { replaces: Some(generation(1)), ..plain() };
    assert_eq!(cluster.reserve("a", 10, only), ReserveOutcome::Exists(generation(1)));
}

#[test]
fn full_store_evicts_the_oldest_unpinned_object() {
    let mut cluster = Cluster::new(&[3 * UNIT]);
    cluster.put("pinned", UNIT, pinned());
    cluster.wait(1);
    cluster.put("old", UNIT, plain());
    cluster.wait(1);
    cluster.put("young", UNIT, plain());
    cluster.wait(1);
    assert_eq!(cluster.put("new", UNIT, plain()), CommitOutcome::Stored(generation(4)));
    assert!(cluster.has("pinned") && cluster.has("young") && cluster.has("new") && !cluster.has("old"));
    let (bytes, cause) = (UNIT, EvictionCause::Memory);
    let eviction = Eviction { bytes, cause, is_unread: true, is_lost: true };
    assert!(cluster.notices.contains(&Notice::Evicted(eviction)));
}

#[test]
fn store_full_of_pins_reports_its_usage() {
    let mut cluster = Cluster::new(&[2 * UNIT]);
    cluster.put("a", UNIT, pinned());
    cluster.put("b", UNIT, pinned());
    let ReserveOutcome::Full(Full { usage, .. }) = cluster.reserve("c", 1, plain()) else { panic!() };
    assert_eq!((usage.capacity, usage.committed, usage.free), (2 * UNIT, 2 * UNIT, 0));
    assert!(cluster.has("a") && cluster.has("b"));
}

#[test]
fn object_larger_than_every_node_evicts_nothing() {
    let mut cluster = Cluster::new(&[2 * UNIT]);
    cluster.put("a", UNIT, plain());
    assert!(matches!(cluster.reserve("big", 3 * UNIT, plain()), ReserveOutcome::Full(_)));
    assert!(matches!(cluster.reserve("huge", u64::MAX, plain()), ReserveOutcome::Full(_)));
    assert!(cluster.has("a"));
}

#[test]
fn lease_protects_from_eviction_until_it_ends() {
    let mut cluster = Cluster::new(&[UNIT]);
    cluster.put("a", UNIT, plain());
    cluster.resolve("a", true);
    assert!(matches!(cluster.reserve("b", 1, plain()), ReserveOutcome::Full(_)));
    cluster.wait(100);
    assert!(matches!(cluster.reserve("b", 1, plain()), ReserveOutcome::Space(_)));
}

#[test]
fn lease_refuses_unforced_removal_in_strict_mode_only() {
    for strict in [false, true] {
        let mut cluster = Cluster::with(&[4 * UNIT], |config| config.strict_leases = strict);
        cluster.put("a", UNIT, plain());
        cluster.resolve("a", true);
        let refused = if strict { DeleteOutcome::Leased } else { DeleteOutcome::Deleted };
        assert_eq!(cluster.delete("a", false), Some(refused));
        cluster.put("b", UNIT, plain());
        cluster.resolve("b", true);
        assert_eq!(cluster.delete("b", true), Some(DeleteOutcome::Deleted));
    }
}

#[test]
fn replicas_are_on_different_nodes() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    cluster.put("a", UNIT, twice());
    let ResolveOutcome::Found(found) = cluster.resolve("a", false) else { panic!() };
    assert_eq!(found.replicas.len(), 2);
    assert_ne!(found.replicas[0].segment, found.replicas[1].segment);
    cluster.unlink(0);
    let ResolveOutcome::Found(found) = cluster.resolve("a", false) else { panic!() };
    assert_eq!(found.replicas.iter().map(|it| it.segment.0).collect::<Vec<_>>(), [2]);
    cluster.unlink(1);
    let ResolveOutcome::Unavailable(names) = cluster.resolve("a", false) else { panic!() };
    assert_eq!(names, ["node1", "node2"]);
}

#[test]
fn replicas_are_limited_by_the_number_of_nodes() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    let ReserveOutcome::Space(space) = cluster.reserve("a", 1, twice()) else { panic!() };
    assert_eq!(space.len(), 1);
    let none = PutOptions { replicas: 0, ..plain() };
    assert!(matches!(cluster.reserve("a", 1, none), ReserveOutcome::Invalid(_)));
}

#[test]
fn refused_commit_returns_the_other_replicas() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    let options = PutOptions { on_exists: OnExists::Keep, ..twice() };
    let ReserveOutcome::Space(space) = cluster.reserve("a", 1, options.clone()) else { panic!() };
    cluster.put("a", 1, plain());
    assert_eq!(cluster.commit("a", 1, options, &space), CommitOutcome::Exists(generation(1)));
    assert!(cluster.nodes.iter().all(|it| it.usage().granted == 0));
}

#[test]
fn delete_waits_for_its_node_until_the_deadline() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.put("a", UNIT, plain());
    cluster.put("b", UNIT, plain());
    cluster.hold_up(0);
    let id =
        cluster.send(ClientToMaster::Delete(Delete { keys: vec![key("a")], force: false, wait_ms: 500 }));
    assert_eq!(cluster.replies.get(&id), None);
    assert!(!cluster.has("a"));
    cluster.wait(500);
    let unconfirmed = DeleteOutcome::Unconfirmed(vec!["node1".into()]);
    assert_eq!(cluster.replies.remove(&id), Some(Reply::Deleted(vec![unconfirmed])));
    let id =
        cluster.send(ClientToMaster::Delete(Delete { keys: vec![key("b")], force: false, wait_ms: 500 }));
    cluster.let_go(0);
    assert_eq!(cluster.replies.remove(&id), Some(Reply::Deleted(vec![DeleteOutcome::Deleted])));
    assert_eq!(cluster.nodes[0].usage().free, 4 * UNIT);
}

#[test]
fn returning_node_applies_its_pending_retires_first() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.put("a", UNIT, plain());
    cluster.put("b", UNIT, plain());
    cluster.unlink(0);
    assert_eq!(cluster.delete("a", false), Some(DeleteOutcome::Unconfirmed(vec!["node1".into()])));
    assert_eq!(cluster.master.stat().nodes[0].owed, 1);
    cluster.link(0);
    assert!(!cluster.has("a") && cluster.has("b"));
    assert_eq!(cluster.nodes[0].usage().objects, 1);
    assert_eq!(cluster.master.stat().nodes[0].owed, 0);
}

#[test]
fn node_that_left_is_not_waited_for() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    cluster.put("both", UNIT, twice());
    cluster.put("there", UNIT, PutOptions { preferred: vec!["node1".into()], ..keep() });
    cluster.event(Event::Request(cluster.links[0], RequestId(9), Request::Goodbye));
    assert_eq!(cluster.resolve("there", false), ResolveOutcome::Absent);
    assert!(cluster.has("both"));
    assert_eq!(cluster.master.stat().nodes.len(), 1);
    assert!(matches!(cluster.put("there", UNIT, keep()), CommitOutcome::Stored(_)));
    // Further messages on that connection are ignored, and its end has no effect.
    cluster.event(Event::Request(cluster.links[0], RequestId(10), Request::Goodbye));
    cluster.unlink(0);
    assert!(cluster.has("both") && cluster.has("there"));
}

#[test]
fn silent_node_is_skipped_but_never_lost() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.put("a", UNIT, plain());
    cluster.wait(1_000);
    assert!(matches!(cluster.resolve("a", false), ResolveOutcome::Unavailable(_)));
    assert!(matches!(cluster.reserve("b", 1, plain()), ReserveOutcome::NoNode));
    cluster.wait(1_000_000);
    assert!(matches!(cluster.resolve("a", false), ResolveOutcome::Unavailable(_)));
    cluster.node_event(0, node::Event::Beat);
    assert!(cluster.has("a"));
}

#[test]
fn late_allocation_of_a_silent_node_is_returned() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    cluster.hold_up(0);
    cluster.hold_up(1);
    let items = vec![ReserveItem { key: key("a"), len: UNIT, options: plain() }];
    let id = cluster.send(ClientToMaster::Reserve(Reserve { items, ..Reserve::default() }));
    cluster.wait(1_000);
    let Some(Reply::Reserved(reserved)) = cluster.replies.remove(&id) else { panic!() };
    assert!(matches!(reserved.items[0], ReserveOutcome::NoNode));
    cluster.let_go(0);
    cluster.let_go(1);
    assert!(cluster.nodes.iter().all(|it| it.usage().free == 4 * UNIT));
}

#[test]
fn restarted_master_learns_from_its_nodes() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.put("a", UNIT, pinned());
    cluster.put("b", UNIT, plain());
    cluster.delete("b", false);
    cluster.restart_master(6);
    let ResolveOutcome::Found(found) = cluster.resolve("a", false) else { panic!() };
    assert_eq!((found.generation, found.hard_pin), (generation(1), true));
    assert!(!cluster.has("b"));
    let new = Generation { epoch: 6, counter: 1 };
    assert_eq!(cluster.put("a", UNIT, plain()), CommitOutcome::Replaced(new));
}

#[test]
fn messages_of_a_replaced_connection_are_ignored() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.put("a", UNIT, plain());
    cluster.open(ConnId(2), 7);
    cluster.delete("a", true);
    cluster.open(CLIENT, 7);
    assert!(cluster.has("a"));
}

#[test]
fn pattern_deletes_all_matches_and_is_validated() {
    let mut cluster = Cluster::new(&[64 * UNIT]);
    for name in ["rx_1", "rx_2", "other_rx_1", "x"] {
        cluster.put(name, 1, plain());
    }
    let mut matching = |pattern| {
        let request = DeleteMatching { pattern, force: false, wait_ms: 500 };
        match cluster.ask(ClientToMaster::DeleteMatching(request)) {
            Some(Reply::DeletedMatching(DeletedMatching { count, .. })) => Ok(count),
            Some(Reply::Refused(refusal)) => Err(refusal.reason),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(matching(Pattern::Regex("rx_[12]$".into())), Ok(3));
    assert_eq!(matching(Pattern::Regex("(".into())), Err(Reason::Invalid));
    assert_eq!(matching(Pattern::Regex("(a{1000}){1000}".into())), Err(Reason::Invalid));
    assert_eq!(matching(Pattern::Prefix(b"y".to_vec())), Ok(0));
    assert_eq!(matching(Pattern::All), Ok(1));
}

#[test]
fn listing_is_paged_and_lists_each_object_once() {
    let mut cluster = Cluster::new(&[64 * UNIT]);
    for number in 0..10 {
        cluster.put(&format!("k{number}"), number + 1, plain());
    }
    let (mut names, mut cursor) = (Vec::new(), 0);
    loop {
        let list = List {
            pattern: Pattern::Prefix(b"k".to_vec()),
            pinned_by: None,
            cursor,
            limit: 3,
            report_wait_ms: 0,
        };
        let Some(Reply::Listed(page)) = cluster.ask(ClientToMaster::List(list)) else { panic!() };
        assert!(page.items.len() <= 3);
        names.extend(page.items.into_iter().map(|it| it.key.to_string()));
        cursor = page.cursor;
        if cursor == 0 {
            break;
        }
    }
    names.sort();
    assert_eq!(names, (0..10).map(|it| format!("k{it}")).collect::<Vec<_>>());
}

#[test]
fn namespaces_are_isolated() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.put("a", 1, plain());
    let hello = Hello { client: ClientId(7), namespace: "other".into(), ..Hello::default() };
    cluster.event(Event::Opened(CLIENT, hello));
    assert!(!cluster.has("a"));
    assert_eq!(cluster.delete("a", true), Some(DeleteOutcome::Absent));
}

#[test]
fn reservation_of_a_lost_client_is_returned() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.hold_up(0);
    let items = vec![ReserveItem { key: key("a"), len: UNIT, options: plain() }];
    cluster.send(ClientToMaster::Reserve(Reserve { items, ..Reserve::default() }));
    cluster.event(Event::Closed(CLIENT));
    cluster.let_go(0);
    assert_eq!(cluster.nodes[0].usage().free, 4 * UNIT);
    assert_eq!(cluster.master.waiting_count(), 0);
}

#[test]
fn replica_that_its_node_lost_leaves_the_catalog() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    let ReserveOutcome::Space(mut space) = cluster.reserve("a", 1, twice()) else { panic!() };
    let segment = space[1].location.segment;
    space[1].location = Location { segment, slot: SlotId(0), stamp: Stamp(999) };
    assert_eq!(cluster.commit("a", 1, twice(), &space), CommitOutcome::Stored(generation(1)));
    let ResolveOutcome::Found(found) = cluster.resolve("a", false) else { panic!() };
    assert_eq!(found.replicas, [space[0].location]);
}

/// A writer that has its answer may exit at once, and copies that no node has recorded are lost with it.
#[test]
fn put_is_answered_when_every_copy_is_recorded() {
    let endings: [fn(&mut Cluster, usize); 3] =
        [Cluster::let_go, Cluster::unlink, |cluster, _| cluster.wait(1_000)];
    for ending in endings {
        let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
        let ReserveOutcome::Space(space) = cluster.reserve("a", UNIT, twice()) else {
            panic!("there is space")
        };
        let other = space[1].location.segment.0 as usize - 1;
        cluster.hold_up(other);
        let id = cluster.send_commit("a", UNIT, twice(), &space);
        assert!(!cluster.replies.contains_key(&id), "the other node has not recorded its copy");
        ending(&mut cluster, other);
        assert!(matches!(cluster.replies.get(&id), Some(Reply::Committed(_))), "{:?}", cluster.replies);
    }
}

#[test]
fn exists_distinguishes_absent_from_unavailable() {
    let mut cluster = Cluster::new(&[64 * UNIT, 64 * UNIT]);
    cluster.put("here", 10, PutOptions { replicas: 1, ..PutOptions::default() });
    let keys = ["here", "nowhere"].map(key).to_vec();
    let exists = |cluster: &mut Cluster| {
        let exists = Exists { keys: keys.iter().collect(), touch: true, lease: true, ..Exists::default() };
        cluster.ask(ClientToMaster::Exists(exists)).unwrap()
    };
    assert_eq!(exists(&mut cluster), Reply::Present(vec![Presence::Here, Presence::Absent]));
    cluster.unlink(0);
    cluster.unlink(1);
    assert_eq!(exists(&mut cluster), Reply::Present(vec![Presence::Unavailable, Presence::Absent]));
}

#[test]
fn requests_of_the_wrong_direction_are_refused() {
    let client = || Request::from(ClientToMaster::Stat);
    let member = || Request::from(MemberToMaster::ClientDied(ClientId(9)));
    let neither = || [MasterToMember::Inspect(vec![]).into(), ClientToNode::Abort(vec![]).into()];
    let mut cluster = Cluster::new(&[8 * UNIT]);
    let node = cluster.links[0];
    let hello = || Request::Hello(Hello::default());
    for (conn, requests) in [(CLIENT, [member(), hello()]), (node, [client(), hello()])] {
        for request in requests.into_iter().chain(neither()) {
            cluster.master.handle(cluster.now, Event::Request(conn, RequestId(9), request.clone()));
            let effects: Vec<_> = std::iter::from_fn(|| cluster.master.poll_effect()).collect();
            let [Effect::Reply(to, RequestId(9), Reply::Refused(refusal))] = &effects[..] else {
                panic!("{request:?}: {effects:?}")
            };
            assert_eq!((*to, refusal.reason), (conn, Reason::NotForYou), "{request:?}");
        }
    }
}

#[test]
fn unregistered_members_may_only_register() {
    let mut cluster = Cluster::new(&[]);
    let conn = ConnId(99);
    cluster.event(Event::Opened(conn, Hello { role: Role::Node, ..Hello::default() }));
    for request in [MemberToMaster::ClientDied(ClientId(9)).into(), Request::Goodbye] {
        cluster.master.handle(cluster.now, Event::Request(conn, RequestId(9), request));
        let Some(Effect::Reply(_, _, Reply::Refused(refusal))) = cluster.master.poll_effect() else {
            panic!()
        };
        assert_eq!(refusal.reason, Reason::Invalid);
    }
}
