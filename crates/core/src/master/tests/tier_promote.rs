//! Promotions and prefetches: what they bring, and how they end, one rule per test.

use super::{
    test_disk::{get, prefetch},
    *,
};
use crate::message::{
    Ahead, Delete, DeleteOutcome, Pin, PinOutcome, PrefetchOutcome, Presence, PutOptions, ReserveOutcome,
    ResolveOutcome,
};

use PrefetchOutcome::{Absent, Done, Failed, Resident, Skipped};

#[test]
fn prefetch_promotes_objects_of_the_disk() {
    let mut cluster = Cluster::tiered(&[8], |_| ());
    cluster.demote("a", 1);
    cluster.demote("b", 1);
    cluster.put("c", UNIT, plain());
    assert_eq!(
        cluster.prefetch(&["a", "c", "x", "b"], Ahead::LeadingRun).unwrap(),
        [Done, Resident, Absent, Skipped]
    );
    assert_eq!((cluster.where_is("a"), cluster.where_is("b")), ((true, true), (false, true)));
    assert_eq!(cluster.prefetch(&["x", "b"], Ahead::All).unwrap(), [Absent, Done]);
    let stat = cluster.stat();
    assert_eq!((stat.promoted_objects, stat.promoted_bytes, stat.prefetch_redundant), (2, 2 * UNIT, 1));
    cluster.ask(get("a", 0));
    assert_eq!(cluster.stat().promoted_used, 1);
    let usage = cluster.master.stat().nodes[0].usage;
    assert_eq!(usage, cluster.nodes[0].usage(), "the master and the node agree");
}

/// T13, T14: a probe has the same answer with and without prefetch, and is not a use.
#[test]
fn probe_promotes_the_leading_run_and_is_not_a_use() {
    let mut cluster = Cluster::tiered(&[8], |_| ());
    cluster.demote("a", 1);
    cluster.put("b", UNIT, plain());
    cluster.demote("c", 1);
    cluster.wait(10);
    cluster.disks[0].held_up = true;
    let names = ["a", "b", "x", "c"];
    let uses = |cluster: &Cluster| names.map(|it| cluster.master.last_use("default", &key(it)));
    let before = uses(&cluster);
    let gap = [Presence::Here, Presence::Here, Presence::Absent, Presence::Here];
    assert_eq!(cluster.probe(&names, Ahead::LeadingRun), gap);
    assert_eq!(uses(&cluster), before);
    assert_eq!(cluster.disks[0].to_do.len(), 1, "objects after the gap are not promoted");
    for _ in 0..5 {
        cluster.probe(&["a"], Ahead::All);
    }
    assert_eq!((cluster.disks[0].to_do.len(), cluster.stat().prefetch_joined), (1, 5));
    cluster.let_disk_go(0);
    assert_eq!(cluster.where_is("a"), (true, true));
}

#[test]
fn repeated_disk_reads_promote_an_object() {
    let mut cluster = Cluster::tiered(&[8], |config| config.tier.promote_on_hit = true);
    cluster.demote("a", 1);
    cluster.probe(&["a"], Ahead::Nothing);
    cluster.ask(get("a", 0));
    assert_eq!(cluster.where_is("a"), (false, true), "a probe does not count as a use");
    cluster.ask(get("a", 0));
    assert_eq!(cluster.where_is("a"), (true, true));
    assert_eq!(cluster.stat().gets_from_disk, 2);
}

#[test]
fn get_waits_only_for_running_promotions() {
    let mut cluster = Cluster::tiered(&[8], |_| ());
    cluster.demote("a", 1);
    cluster.demote("b", 1);
    cluster.disks[0].held_up = true;
    assert!(cluster.ask(get("a", 1000)).is_some(), "nothing is being promoted");
    cluster.probe(&["a"], Ahead::All);
    assert!(cluster.ask(get("b", 1000)).is_some(), "that object is not being promoted");
    let id = cluster.send(get("a", 1000));
    let late = cluster.send(get("a", 10));
    cluster.wait(10);
    assert!(!cluster.replies.contains_key(&id) && cluster.replies.contains_key(&late));
    cluster.let_disk_go(0);
    let Some(Reply::Resolved(resolved)) = cluster.replies.remove(&id) else { panic!("it was not answered") };
    assert!(
        matches!(&resolved.items[0], ResolveOutcome::Found(it) if !it.replicas[0].slot_ref().is_on_disk())
    );
    let stat = cluster.stat();
    assert_eq!((stat.gets_waited, stat.gets_late, stat.waited_ms), (1, 1, 20));
    // The notices distinguish these gets.
    let got = |memory, disk, waited_ms, late| Notice::Got { memory, disk, far: 0, waited_ms, late };
    let gets: Vec<_> = cluster.notices.iter().filter(|it| matches!(it, Notice::Got { .. })).collect();
    let not_begun = got(0, 1, None, false);
    assert_eq!(
        gets,
        [&not_begun, &not_begun, &got(0, 1, Some(10), true), &got(1, 0, Some(10), false)],
        "the last two waited, one of them past its deadline"
    );
    assert!(cluster.notices.contains(&Notice::Promoted { done: true, bytes: UNIT, took_ms: 10 }));
}

/// A waiting request is answered after all effects of an event, so a name that is being replaced is never
/// absent.
#[test]
fn get_waiting_during_a_replacement_finds_the_new_object() {
    let mut cluster = Cluster::tiered(&[8], |_| ());
    cluster.demote("a", 1);
    cluster.disks[0].held_up = true;
    cluster.probe(&["a"], Ahead::All);
    let waits = cluster.send(get("a", 1000));
    let ReserveOutcome::Space(space) = cluster.reserve("a", 2 * UNIT, plain()) else { panic!() };
    cluster.send_commit("a", 2 * UNIT, plain(), &space);
    let Some(Reply::Resolved(resolved)) = cluster.replies.remove(&waits) else {
        panic!("it was not answered")
    };
    assert!(matches!(&resolved.items[0], ResolveOutcome::Found(it) if it.len == 2 * UNIT));
    cluster.let_disk_go(0);
    cluster.stat();
    assert_eq!(cluster.disks[0].log.len(), 0);
}

/// The steps of a promotion.
pub(super) const STEPS: [&str; 3] = ["memory", "bytes", "slot"];

/// Stalls a promotion of `a` at a step.
pub(super) fn promoting(step: &str) -> (Cluster, RequestId) {
    let mut cluster = Cluster::tiered(&[8], |config| config.tier.throttle.deadline = 400);
    cluster.demote("a", 1);
    match step {
        "memory" => cluster.hold_up(0),
        _ => cluster.disks[0].held_up = true,
    }
    let id = cluster.send(prefetch(&["a"], Ahead::All, 1000));
    if step == "slot" {
        cluster.hold_up(0);
        cluster.let_disk_go(0);
        assert_eq!(cluster.held_up[0].len(), 1, "the settle");
    }
    assert!(!cluster.replies.contains_key(&id));
    cluster.master.check().unwrap();
    (cluster, id)
}

pub(super) fn go_on(cluster: &mut Cluster) {
    cluster.let_go(0);
    cluster.let_disk_go(0);
    cluster.master.check().unwrap();
    assert_eq!(cluster.master.moving_count(), 0);
    assert_eq!((cluster.nodes[0].usage().granted, cluster.nodes[0].usage().held), (0, 0));
}

#[test]
fn promotion_of_a_deleted_object_leaves_nothing() {
    for step in STEPS {
        let (mut cluster, id) = promoting(step);
        let delete = Delete { keys: vec![key("a")], force: true, wait_ms: 5000 };
        let deleted = cluster.send(ClientToMaster::Delete(delete));
        assert_eq!(cluster.answer(id).unwrap(), [Absent], "{step}");
        go_on(&mut cluster);
        assert_eq!(cluster.replies.remove(&deleted), Some(Reply::Deleted(vec![DeleteOutcome::Deleted])));
        assert!(!cluster.has("a"), "{step}");
        assert_eq!((cluster.nodes[0].usage().objects, cluster.disks[0].log.len()), (0, 0), "{step}");
        assert_eq!(cluster.nodes[0].client_count(), 1, "only the client is left");
    }
}

#[test]
fn promotion_ends_with_its_node_or_its_disk() {
    for step in STEPS {
        let (mut cluster, id) = promoting(step);
        cluster.held_up[0].clear();
        cluster.unlink(0);
        assert_eq!(cluster.answer(id).unwrap(), [Failed], "{step}");
        cluster.link(0);
        go_on(&mut cluster);
        assert_eq!(cluster.where_is("a"), (false, true), "{step}");

        let (mut cluster, id) = promoting(step);
        cluster.unlink_disk(0);
        let ends = cluster.answer(id);
        assert_eq!(ends, (step != "slot").then(|| vec![Failed]), "{step}: its bytes are in memory");
        go_on(&mut cluster);
        cluster.link_disk(0);
        assert_eq!(cluster.where_is("a"), (step == "slot", true), "{step}");
    }
}

#[test]
fn late_replies_of_a_promotion_have_no_effect() {
    for step in STEPS {
        let (mut cluster, id) = promoting(step);
        cluster.wait(400);
        assert_eq!(cluster.answer(id).unwrap(), [Failed], "{step}");
        assert_eq!(cluster.prefetch(&["a"], Ahead::All).unwrap(), [Failed], "for a while");
        cluster.wait(6000);
        // Another promotion of the same object, while the replies to the first are outstanding.
        let again = cluster.send(prefetch(&["a"], Ahead::All, 1000));
        go_on(&mut cluster);
        assert_eq!(cluster.answer(again).unwrap(), [Done], "{step}");
        assert_eq!(cluster.where_is("a"), (true, true));
        assert_eq!(cluster.nodes[0].usage().objects, 1);
    }
}

#[test]
fn failed_promotion_is_not_retried_for_a_while() {
    let mut cluster = Cluster::tiered(&[8], |_| ());
    cluster.demote("a", 1);
    cluster.disks[0].fails = true;
    assert_eq!(cluster.prefetch(&["a"], Ahead::All).unwrap(), [Failed]);
    cluster.disks[0].fails = false;
    assert_eq!(cluster.prefetch(&["a"], Ahead::All).unwrap(), [Failed]);
    cluster.wait(5000);
    assert_eq!(cluster.prefetch(&["a"], Ahead::All).unwrap(), [Done]);
    assert_eq!(cluster.stat().prefetch_failed, 1);
}

/// A copy that is being promoted gets its attributes with its record, so a pin does not wait for that copy.
#[test]
fn pin_reaches_a_promotion_at_every_step() {
    for step in STEPS {
        let (mut cluster, id) = promoting(step);
        let pin = Pin { keys: vec![key("a")], owner: "me".into(), on: true, wait_ms: 500 };
        let then = cluster.send(ClientToMaster::Pin(pin));
        go_on(&mut cluster);
        assert_eq!(cluster.replies.remove(&then), Some(Reply::Pinned(vec![PinOutcome::Done])), "{step}");
        let outcome = cluster.answer(id).unwrap();
        for record in cluster.nodes[0].inventory().iter().chain(cluster.disks[0].log.values()) {
            assert_eq!(record.attributes.pins, ["me"], "{step} {outcome:?}");
        }
    }
}

#[test]
fn requests_of_a_disconnected_client_end() {
    let (mut cluster, _) = promoting("bytes");
    cluster.event(Event::Closed(CLIENT));
    assert_eq!(cluster.master.waiting_count(), 0);
    cluster.let_disk_go(0);
    cluster.master.check().unwrap();
    let options = PutOptions { replicas: 1, ..PutOptions::default() };
    cluster.open(CLIENT, 7);
    cluster.put("b", UNIT, options);
}
