//! Demotion and copies on disks, one rule per test, with real nodes and disks.

use tiffin_node::disk;

use super::{test_disk::reserve, *};
use crate::message::{
    CommitOutcome, Delete, DeleteOutcome, Demotion, Pin, PinOutcome, Policy, ReserveOutcome, ResolveOutcome,
};

#[test]
fn coldest_objects_are_written_ahead_as_needed() {
    let mut cluster = Cluster::tiered(&[10], |config| config.tier.ahead_percent = 30);
    for name in ["a", "b", "c", "d", "e", "f", "g"] {
        cluster.put(name, UNIT, plain());
        cluster.wait(1);
    }
    assert_eq!(cluster.stat().demoted_objects, 0, "three units are free");
    cluster.disks[0].held_up = true;
    cluster.put("h", UNIT, plain());
    assert_eq!(cluster.disks[0].to_do.len(), 1, "writes in progress count");
    cluster.put("i", UNIT, plain());
    cluster.let_disk_go(0);
    assert_eq!(cluster.stat().demoted_objects, 2);
    assert!(cluster.where_is("a").1 && cluster.where_is("b").1 && !cluster.where_is("c").1);
    assert_eq!(cluster.where_is("a"), (true, true), "it stays in memory until the space is needed");
}

#[test]
fn waiting_put_waits_for_the_disk_and_loses_nothing() {
    let mut cluster = Cluster::tiered(&[4], |_| ());
    for name in ["a", "b", "c"] {
        cluster.put(name, UNIT, plain());
        cluster.wait(1);
    }
    cluster.disks[0].held_up = true;
    let id = cluster.send(reserve("new", 3, 500));
    assert_eq!((cluster.replies.len(), cluster.disks[0].to_do.len()), (0, 1), "the maximum in progress");
    cluster.let_disk_go(0);
    assert!(matches!(cluster.replies.remove(&id), Some(Reply::Reserved(_))));
    assert_eq!((cluster.where_is("a"), cluster.where_is("b")), ((false, true), (false, true)));
    assert_eq!(cluster.where_is("c"), (true, false));
    assert_eq!(cluster.stat().evicted_undemoted, 0);
}

#[test]
fn put_that_may_not_wait_evicts() {
    let mut cluster = Cluster::tiered(&[4], |_| ());
    for name in ["a", "b", "c", "d"] {
        cluster.put(name, UNIT, plain());
        cluster.wait(1);
    }
    cluster.disks[0].held_up = true;
    assert!(matches!(cluster.put_waiting("e", 1, 0), Some(ReserveOutcome::Space(_))));
    assert!(!cluster.has("a") && cluster.has("b"));
    assert_eq!(cluster.stat().evicted_undemoted, 1);
    let id = cluster.send(reserve("f", 1, 100));
    cluster.wait(100);
    let Some(Reply::Reserved(reserved)) = cluster.replies.remove(&id) else { panic!("no answer") };
    assert!(matches!(reserved.items[..], [ReserveOutcome::Space(_)]), "a slow disk fails no put");
    assert!(cluster.has("b") && !cluster.has("c"), "memory that the disk is reading is not available");
    assert_eq!(cluster.stat().evicted_undemoted, 2);
}

#[test]
fn only_the_first_of_the_queue_evicts_at_its_deadline() {
    let mut cluster = Cluster::tiered(&[2], |_| ());
    cluster.put("a", UNIT, plain());
    cluster.put("b", UNIT, plain());
    cluster.disks[0].held_up = true;
    let first = cluster.send(reserve("c", 1, 500));
    cluster.open(ConnId(2), 8);
    cluster.event(Event::Request(ConnId(2), RequestId(77), reserve("d", 1, 100).into()));
    cluster.wait(100);
    assert!(!cluster.replies.contains_key(&first));
    let Some(Reply::Reserved(reserved)) = cluster.replies.remove(&RequestId(77)) else { panic!("no answer") };
    assert!(matches!(reserved.items[..], [ReserveOutcome::Full(_)]), "others came before it");
}

#[test]
fn demotion_follows_the_policy_of_the_namespace() {
    for (demotion, readable_on_disks) in
        [(Some(Demotion::WriteThrough), true), (Some(Demotion::Never), false), (None, false)]
    {
        let mut cluster = Cluster::tiered(&[8], |_| ());
        cluster.ask(ClientToMaster::SetPolicy(Policy { demotion, ..Policy::default() }.into()));
        cluster.put("a", UNIT, plain());
        assert_eq!(cluster.where_is("a"), (true, readable_on_disks), "{demotion:?}");
    }
    let mut cluster = Cluster::tiered(&[1], |config| config.tier.demotion = Demotion::Never);
    cluster.put("a", UNIT, plain());
    assert!(
        matches!(cluster.put_waiting("b", 1, 500), Some(ReserveOutcome::Space(_))),
        "nothing to wait for"
    );
    assert_eq!(cluster.stat().demoted_objects, 0);
}

#[test]
fn pins_and_leases_keep_copies_in_memory() {
    let mut cluster = Cluster::tiered(&[2], |_| ());
    cluster.write_through();
    cluster.put("pinned", UNIT, pinned());
    cluster.put("leased", UNIT, plain());
    assert_eq!(cluster.where_is("pinned"), (true, true));
    cluster.resolve("leased", true);
    assert!(matches!(cluster.put_waiting("c", 1, 0), Some(ReserveOutcome::Full(_))));
    cluster.wait(100);
    assert!(matches!(cluster.put_waiting("c", 1, 0), Some(ReserveOutcome::Space(_))));
    assert_eq!((cluster.where_is("pinned"), cluster.where_is("leased")), ((true, true), (false, true)));
}

#[test]
fn removal_waits_for_a_demotion_in_progress() {
    for replace in [false, true] {
        let mut cluster = Cluster::tiered(&[4], |_| ());
        cluster.write_through();
        cluster.disks[0].held_up = true;
        cluster.put("a", UNIT, plain());
        assert_eq!(cluster.disks[0].to_do.len(), 1);
        let id = match replace {
            true => {
                let ReserveOutcome::Space(space) = cluster.reserve("a", UNIT, plain()) else { panic!() };
                cluster.send_commit("a", UNIT, plain(), &space)
            }
            false => {
                let delete = Delete { keys: vec![key("a")], force: false, wait_ms: 500 };
                cluster.send(ClientToMaster::Delete(delete))
            }
        };
        assert!(!cluster.replies.contains_key(&id), "the disk may still have it");
        cluster.let_disk_go(0);
        assert!(cluster.replies.contains_key(&id));
        assert_eq!(cluster.disks[0].log.values().filter(|it| it.generation == generation(1)).count(), 0);
        cluster.crash_disk(0);
        cluster.new_master(6);
        cluster.link_disk(0);
        assert_eq!(cluster.has("a"), replace);
        cluster.stat();
    }
}

#[test]
fn failed_disk_pauses_unless_the_object_was_removed() {
    let mut cluster = Cluster::tiered(&[4], |_| ());
    cluster.write_through();
    cluster.disks[0].fails = true;
    cluster.put("a", UNIT, plain());
    cluster.disks[0].fails = false;
    cluster.put("b", UNIT, plain());
    assert_eq!((cluster.where_is("a"), cluster.where_is("b")), ((true, false), (true, false)));
    cluster.wait(1000);
    assert_eq!(cluster.where_is("b"), (true, true));
    cluster.disks[0].held_up = true;
    cluster.put("c", UNIT, plain());
    cluster.delete("c", true);
    cluster.let_disk_go(0);
    cluster.put("d", UNIT, plain());
    assert_eq!((cluster.where_is("d"), cluster.stat().demotions_failed), ((true, true), 1));
}

#[test]
fn returning_disk_settles_its_unfinished_writes() {
    for is_there in [false, true] {
        let mut cluster = Cluster::tiered(&[4], |_| ());
        cluster.write_through();
        cluster.disks[0].held_up = true;
        cluster.put("a", UNIT, plain());
        let Some(disk::Effect::Store { record, .. }) = cluster.disks[0].to_do.pop_front() else { panic!() };
        if is_there {
            cluster.disks[0].log.insert(record.slot_ref.stamp, record);
        }
        cluster.crash_disk(0);
        assert_eq!(cluster.where_is("a"), (true, false));
        cluster.link_disk(0);
        assert_eq!(cluster.where_is("a"), (true, is_there));
        cluster.stat();
        cluster.wait(2000);
        assert_eq!(cluster.delete("a", true), Some(DeleteOutcome::Deleted));
        assert_eq!(cluster.disks[0].log.len(), 0);
    }
}

#[test]
fn demotion_outlives_the_memory_of_its_source() {
    for is_there in [false, true] {
        let mut cluster = Cluster::tiered(&[4], |_| ());
        cluster.write_through();
        cluster.disks[0].held_up = true;
        cluster.put("a", UNIT, pinned());
        let Some(disk::Effect::Store { record, .. }) = cluster.disks[0].to_do.pop_front() else { panic!() };
        if is_there {
            cluster.disks[0].log.insert(record.slot_ref.stamp, record);
        }
        cluster.crash_disk(0);
        cluster.event(Event::Ended(cluster.links[0]));
        let away = ResolveOutcome::Unavailable(vec!["disk1".to_owned()]);
        assert_eq!(cluster.resolve("a", false), away, "it is unknown whether the disk has it");
        cluster.link_disk(0);
        assert_eq!(cluster.where_is("a"), (false, is_there));
        assert_eq!(cluster.has("a"), is_there);
        cluster.stat();
    }
}

#[test]
fn failed_demotion_is_lost_with_the_memory_of_its_source() {
    let mut cluster = Cluster::tiered(&[4], |_| ());
    cluster.write_through();
    cluster.disks[0].held_up = true;
    cluster.put("a", UNIT, plain());
    cluster.unlink(0);
    cluster.wait(2000);
    assert!(matches!(cluster.resolve("a", false), ResolveOutcome::Unavailable(_)));
    cluster.disks[0].fails = true;
    cluster.let_disk_go(0);
    assert_eq!(cluster.resolve("a", false), ResolveOutcome::Absent);
    cluster.stat();
}

#[test]
fn put_stops_waiting_for_a_disconnected_disk() {
    let mut cluster = Cluster::tiered(&[1], |_| ());
    cluster.put("a", UNIT, plain());
    cluster.disks[0].held_up = true;
    let id = cluster.send(reserve("b", 1, 500));
    assert!(!cluster.replies.contains_key(&id));
    cluster.unlink_disk(0);
    assert!(cluster.replies.contains_key(&id));
}

#[test]
fn later_epoch_adopts_disk_copies_unless_newer_exist() {
    let mut cluster = Cluster::tiered(&[8], |_| ());
    cluster.demote("old", 1);
    cluster.demote("kept", 1);
    cluster.unlink_disk(0);
    assert!(matches!(cluster.put("old", UNIT, plain()), CommitOutcome::Unconfirmed(_)));
    cluster.new_master(6);
    cluster.link_disk(0);
    assert_eq!((cluster.where_is("old"), cluster.where_is("kept")), ((true, false), (false, true)));
    assert_eq!(cluster.disks[0].log.len(), 1);
    cluster.write_through();
    cluster.put("new", UNIT, plain());
    let stamps: Vec<_> = cluster.disks[0].log.keys().map(|it| it.0).collect();
    assert!(stamps[1] >= 6 << 40, "no epoch uses the stamps of another: {stamps:?}");
}

#[test]
fn absent_disk_retires_its_copies_when_it_returns() {
    let mut cluster = Cluster::tiered(&[8], |config| config.tier.away_ms_max = 5000);
    cluster.demote("a", 1);
    cluster.unlink_disk(0);
    cluster.wait(4999);
    assert!(matches!(cluster.resolve("a", false), ResolveOutcome::Unavailable(_)));
    cluster.wait(1);
    assert_eq!(cluster.resolve("a", false), ResolveOutcome::Absent);
    cluster.crash_disk(0);
    cluster.link_disk(0);
    assert!(!cluster.has("a"));
    assert_eq!(cluster.disks[0].log.len(), 0);
}

#[test]
fn object_leaves_memory_even_if_its_disk_is_away() {
    let mut cluster = Cluster::tiered(&[1], |_| ());
    cluster.write_through();
    cluster.put("a", UNIT, plain());
    cluster.unlink_disk(0);
    cluster.put("b", UNIT, plain());
    assert!(matches!(cluster.resolve("a", false), ResolveOutcome::Unavailable(_)), "only its disk has it");
    cluster.link_disk(0);
    assert_eq!(cluster.where_is("a"), (false, true));
}

#[test]
fn pins_are_written_on_disks_too() {
    let mut cluster = Cluster::tiered(&[8], |_| ());
    cluster.demote("a", 1);
    cluster.disks[0].held_up = true;
    let pin = |on| Pin { keys: vec![key("a")], owner: "me".into(), on, wait_ms: 500 };
    let id = cluster.send(ClientToMaster::Pin(pin(true)));
    assert!(!cluster.replies.contains_key(&id));
    cluster.let_disk_go(0);
    assert_eq!(cluster.replies.remove(&id), Some(Reply::Pinned(vec![PinOutcome::Done])));
    assert_eq!(cluster.disks[0].log.values().next().unwrap().attributes.pins, ["me"]);
    // An object that its disk drops before it receives the pin is not pinned.
    cluster.ask(ClientToMaster::Pin(pin(false)));
    cluster.disks[0].held_up = true;
    let id = cluster.send(ClientToMaster::Pin(pin(true)));
    let stamp = *cluster.disks[0].log.keys().next().unwrap();
    cluster.disk_event(0, disk::Event::Evicted(vec![stamp]));
    assert_eq!(cluster.replies.remove(&id), Some(Reply::Pinned(vec![PinOutcome::Absent])));
    assert!(!cluster.has("a"));
    assert_eq!(cluster.stat().disk_evicted, 1);
}

#[test]
fn corrupt_copy_is_dropped_and_counted() {
    let mut cluster = Cluster::tiered(&[8], |_| ());
    cluster.write_through();
    cluster.put("a", UNIT, plain());
    let stamp = *cluster.disks[0].log.keys().next().unwrap();
    cluster.disk_event(0, disk::Event::Corrupt(stamp));
    assert_eq!(cluster.where_is("a"), (true, false), "the other copy is read");
    assert_eq!(cluster.stat().disk_corrupt, 1);
}

#[test]
fn demotions_of_a_lost_node_count_for_no_other() {
    let mut cluster = Cluster::tiered(&[8], |_| ());
    cluster.write_through();
    cluster.disks[0].stalls = true;
    cluster.put("a", UNIT, plain());
    cluster.put("b", UNIT, plain());
    assert_eq!(cluster.disks[0].reading.len(), 2, "a quarter of the memory");
    cluster.event(Event::Ended(cluster.links[0]));
    // Another node gets its index, and the disk has not answered yet.
    cluster.add_node(8 * UNIT, |_| ());
    cluster.disks.push(super::tier_waiting::new_test_disk(1));
    cluster.disks[1].stalls = true;
    cluster.link_disk(1);
    cluster.put("c", UNIT, plain());
    assert_eq!(cluster.disks[1].reading.len(), 1);
    cluster.stat();
    cluster.let_disk_go(1);
    assert_eq!(cluster.where_is("c"), (true, true));
}
