//! The rules of the tier below memory that concern space: evictions for promotions, and quotas.

use super::{
    test_disk::{get, prefetch, reserve},
    tier_promote::{STEPS, go_on, promoting},
    *,
};
use crate::message::{
    Ahead, CommitItem, Decide, DecideItem, Demotion, Policy, PrefetchOutcome, ReserveOutcome, ResolveOutcome,
};

use PrefetchOutcome::{Absent, Cancelled, Done, Resident, Running, Skipped};

/// A promoted object has a disk copy too, but is in use. So it does not count as written ahead in place of
/// the object that it evicted.
#[test]
fn promotions_do_not_use_up_objects_written_ahead() {
    let mut cluster = Cluster::tiered(&[4], |config| config.tier.ahead_percent = 25);
    for name in ["x", "y", "z"] {
        cluster.demote(name, 1);
    }
    for name in ["a", "b", "c", "d"] {
        cluster.put(name, UNIT, plain());
        cluster.wait(1);
    }
    cluster.wait(50);
    assert_eq!(cluster.stat().demoted_objects, 4, "a quarter is on the disk, and may leave");
    for (name, demoted) in [("x", 5), ("y", 6), ("z", 7)] {
        assert_eq!(cluster.prefetch(&[name], Ahead::All).unwrap(), [Done], "{name}");
        assert_eq!(cluster.stat().demoted_objects, demoted, "{name}: as much is written ahead again");
    }
    assert_eq!(cluster.stat().evicted_undemoted, 0);
}

/// An object that must leave because of the quota of its namespace is demoted first.
#[test]
fn eviction_for_a_quota_demotes_first() {
    let mut cluster = Cluster::tiered(&[8], |_| ());
    cluster.ask(ClientToMaster::SetPolicy(Policy { quota: Some(2 * UNIT), ..Policy::default() }.into()));
    cluster.disks[0].held_up = true;
    for name in ["a", "b"] {
        cluster.put(name, UNIT, plain());
        cluster.wait(1);
    }
    let id = cluster.send(reserve("c", 1, 500));
    assert!(!cluster.replies.contains_key(&id), "it waits for the disk");
    assert_eq!(cluster.why_nodes("a"), ["node1"], "a copy that is being written does not exist yet");
    cluster.let_disk_go(0);
    assert!(matches!(cluster.replies.remove(&id), Some(Reply::Reserved(_))));
    assert_eq!(cluster.where_is("a"), (false, true));
    // A put that may not wait evicts an object that was written ahead.
    assert!(matches!(cluster.put_waiting("d", 1, 0), Some(ReserveOutcome::Space(_))));
    assert_eq!(cluster.where_is("b"), (false, true));
    // The same without demotion.
    let mut cluster = Cluster::tiered(&[8], |_| ());
    let demotion = Some(Demotion::Never);
    cluster
        .ask(ClientToMaster::SetPolicy(Policy { quota: Some(UNIT), demotion, ..Policy::default() }.into()));
    cluster.put("a", UNIT, plain());
    assert!(matches!(cluster.put_waiting("b", 1, 500), Some(ReserveOutcome::Space(_))));
    assert!(!cluster.has("a") && cluster.stat().demoted_objects == 0);
}

/// A disk that does not finish its reads occupies memory that no other object can use. Meanwhile, puts that
/// do not wait evict other objects.
#[test]
fn puts_evict_objects_that_a_stalled_disk_does_not_read() {
    for demotion in [Demotion::WriteThrough, Demotion::OnPressure] {
        let mut cluster = Cluster::tiered(&[8], |config| {
            (config.tier.demotion, config.tier.ahead_percent) = (demotion, 50);
        });
        cluster.disks[0].stalls = true;
        for at in 0..40 {
            cluster.put(&format!("o{at}"), UNIT, plain());
            cluster.wait(1);
        }
        let reading = cluster.disks[0].reading.len();
        assert_eq!(reading, 2, "{demotion:?}: a quarter of the memory is being read");
        assert_eq!(cluster.stat().evicted_undemoted, 40 - 8, "{demotion:?}: no more than was needed");
        // Objects that are being read are not lost, and the newest ones exist.
        for name in ["o0", "o1", "o34", "o39"] {
            assert_eq!(cluster.where_is(name), (true, false), "{demotion:?}: {name}");
        }
        assert!(!cluster.has("o33"), "{demotion:?}: the least recently used have left");
        cluster.let_disk_go(0);
        assert_eq!(cluster.where_is("o0"), (true, true), "{demotion:?}");
    }
}

/// A put that may wait waits for the disk instead, and loses nothing. One that needs more than is left
/// evicts nothing that the disk reads.
#[test]
fn put_that_waits_for_a_stalled_disk_loses_nothing() {
    let mut cluster = Cluster::tiered(&[8], |_| ());
    cluster.disks[0].stalls = true;
    for at in 0..8 {
        cluster.put(&format!("o{at}"), UNIT, plain());
        cluster.wait(1);
    }
    let id = cluster.send(reserve("large", 3, 500));
    assert!(!cluster.replies.contains_key(&id), "it waits for the disk");
    assert_eq!(cluster.disks[0].reading.len(), 2, "the maximum read at a time");
    cluster.let_disk_go(0);
    assert!(matches!(cluster.replies.remove(&id), Some(Reply::Reserved(_))));
    assert_eq!(cluster.stat().evicted_undemoted, 0);
    assert_eq!((cluster.where_is("o0"), cluster.where_is("o2")), ((false, true), (false, true)));
}

/// One object may be larger than the share that disks may read.
#[test]
fn large_object_is_read_alone() {
    let mut cluster = Cluster::tiered(&[8], |config| config.tier.demotion = Demotion::WriteThrough);
    cluster.disks[0].stalls = true;
    cluster.put("large", 5 * UNIT, plain());
    cluster.put("small", UNIT, plain());
    assert_eq!(cluster.disks[0].reading.len(), 1);
    cluster.let_disk_go(0);
    assert_eq!((cluster.where_is("large"), cluster.where_is("small")), ((true, true), (true, true)));
}

/// An eviction for a quota takes an object even if a disk is reading it, because that ends its charge.
#[test]
fn eviction_for_a_quota_takes_objects_a_disk_reads() {
    let mut cluster = Cluster::tiered(&[8], |_| ());
    let policy = Policy { quota: Some(UNIT), ..Policy::default() };
    cluster.ask(ClientToMaster::SetPolicy(policy.into()));
    cluster.disks[0].stalls = true;
    cluster.put("a", UNIT, plain());
    cluster.wait(1);
    assert!(matches!(cluster.put_waiting("b", 1, 0), Some(ReserveOutcome::Space(_))));
    assert!(!cluster.has("a"));
}

/// An object that could not be written returns to its position in the eviction order.
#[test]
fn object_of_a_failed_demotion_stays_the_oldest() {
    let mut cluster = Cluster::tiered(&[8], |config| config.tier.ahead_percent = 25);
    for at in 0..8 {
        cluster.disks[0].stalls = true;
        cluster.put(&format!("o{at}"), UNIT, plain());
        cluster.wait(1);
    }
    assert_eq!(cluster.disks[0].reading.len(), 2);
    cluster.disks[0].fails = true;
    cluster.let_disk_go(0);
    cluster.put("p", UNIT, plain());
    assert!(!cluster.has("o0") && cluster.has("o1") && cluster.has("o2"));
}

/// A cancelled promotion ends at once and leaves nothing behind, at any step before its bytes are in
/// memory. After that it completes. It may be requested again at once.
#[test]
fn cancelled_promotion_ends_at_once_or_completes() {
    for step in STEPS {
        let (mut cluster, id) = promoting(step);
        assert_eq!(
            cluster.prefetch(&["a"], Ahead::Nothing).unwrap(),
            [Running],
            "{step}: a request waits for it"
        );
        cluster.ask(ClientToMaster::Cancel(id));
        assert_eq!(cluster.answer(id).unwrap(), [Running], "{step}");
        let is_late = step == "slot";
        let end = if is_late { Running } else { Cancelled };
        assert_eq!(cluster.prefetch(&["a", "none"], Ahead::Nothing).unwrap(), [end, Absent], "{step}");
        assert_eq!(cluster.master.moving_count(), usize::from(is_late), "{step}");
        let again = if is_late { Running } else { Skipped };
        assert_eq!(cluster.prefetch(&["a"], Ahead::Nothing).unwrap(), [again], "{step}: it has one end");
        go_on(&mut cluster);
        assert_eq!(cluster.where_is("a"), (is_late, true), "{step}");
        assert_eq!(cluster.stat().prefetch_failed, 0, "{step}: nothing has failed");
        let end = if is_late { Resident } else { Done };
        assert_eq!(cluster.prefetch(&["a"], Ahead::All).unwrap(), [end], "{step}: it may be requested again");
        assert_eq!(cluster.prefetch(&["a"], Ahead::Nothing).unwrap(), [Resident], "{step}");
    }
}

#[test]
fn promotion_wanted_by_others_is_not_cancelled() {
    for other in ["another client", "a probe", "a get", "another client before"] {
        let mut cluster = Cluster::tiered(&[8], |_| ());
        cluster.demote("a", 1);
        cluster.disks[0].held_up = true;
        cluster.open(ConnId(2), 8);
        let of_the_other = |cluster: &mut Cluster| {
            cluster.event(Event::Request(ConnId(2), RequestId(77), prefetch(&["a"], Ahead::All, 0).into()));
        };
        if other == "another client before" {
            of_the_other(&mut cluster);
        }
        cluster.send(prefetch(&["a"], Ahead::All, 0));
        match other {
            "another client" => of_the_other(&mut cluster),
            "a probe" => _ = cluster.probe(&["a"], Ahead::All),
            "a get" => _ = cluster.send(get("a", 1000)),
            _ => (),
        }
        assert_eq!(cluster.prefetch(&["a"], Ahead::Nothing).unwrap(), [Running], "{other}");
        cluster.let_disk_go(0);
        assert_eq!(cluster.where_is("a"), (true, true), "{other}");
    }
}

#[test]
fn late_decision_restores_no_copy_that_leaves_memory() {
    let mut cluster = Cluster::tiered(&[4, 4], |_| ());
    cluster.write_through();
    let ReserveOutcome::Space(space) = cluster.reserve("a", UNIT, twice()) else { panic!() };
    cluster.commit("a", UNIT, twice(), &space);
    // The disk reads before its node has processed the publication, and pauses.
    cluster.wait(5_000);
    let (home, other) = (space[0].location, space[1].location);
    let asking = home.segment.0 as usize - 1;
    cluster.hold_up(asking);
    let (index, node) = (cluster.index("a"), cluster.master.objects.cx.members.find(home.segment));
    assert_eq!(cluster.where_is("a"), (true, true));
    assert!(cluster.leave_memory(index, node));
    cluster.carry_out();
    // The reply to its first request was lost, and it has not received the retire yet.
    let item = CommitItem {
        slot_ref: home.slot_ref(),
        key: key("a"),
        len: UNIT,
        options: twice(),
        others: vec![other],
    };
    let items = vec![DecideItem { namespace: "default".into(), client: ClientId(7), item }];
    let asked = MemberToMaster::Decide(Decide { items, wait_ms: 0 });
    cluster.event(Event::Request(cluster.links[asking], RequestId(77), asked.into()));
    cluster.let_go(asking);
    let ResolveOutcome::Found(found) = cluster.resolve("a", false) else { panic!() };
    let in_memory: Vec<_> = found.replicas.into_iter().filter(|it| !it.slot_ref().is_on_disk()).collect();
    assert_eq!(in_memory, [other]);
}

/// The disk is away, so more objects must be written through than are listed. All of them are written once
/// it is back.
#[test]
fn write_through_catches_up_after_a_long_absence() {
    let count = 5000;
    let mut cluster = Cluster::with(&[], |config| {
        config.silence_ms_max = 1_000_000_000;
        (config.tier.demotion, config.tier.away_ms_max) = (Demotion::WriteThrough, 1_000_000_000);
    });
    cluster.add_node(4 * count * UNIT, |config| {
        (config.slot_count, config.heap_bytes, config.chunks_free) = (1 << 13, 1 << 20, 100);
    });
    cluster.disks.push(super::tier_waiting::new_test_disk(0));
    cluster.link_disk(0);
    cluster.unlink_disk(0);
    for at in 0..count {
        cluster.put(&format!("o{at}"), UNIT, plain());
    }
    // The effects of the disk are executed here step by step, because there are many.
    cluster.disks[0].held_up = true;
    cluster.link_disk(0);
    let work = |cluster: &mut Cluster| {
        // The disk reads before its node has processed the latest publications, and pauses in between.
        for _ in 0..10 {
            while let Some(effect) = cluster.disks[0].to_do.pop_front() {
                cluster.do_one(0, effect);
            }
            cluster.wait(20);
        }
    };
    work(&mut cluster);
    assert_eq!(cluster.disks[0].log.len() as u64, count);
    cluster.put("new", UNIT, plain());
    work(&mut cluster);
    assert_eq!(cluster.where_is("new"), (true, true));
}
