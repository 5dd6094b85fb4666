//! Evictions for promotions, and promotions that wait for memory.

use tiffin_node::disk::{Disk, DiskConfig};
use tiffin_throttle::Config;

use std::collections::BTreeMap;

use super::{
    test_disk::{TestDisk, get, prefetch},
    *,
};
use crate::message::{
    Ahead, Demotion, Exists, Policy, PrefetchOutcome, Presence, ReserveOutcome, Resolve, TierStat,
};

use PrefetchOutcome::{Absent, Cancelled, Done, Resident, Running, Skipped};

pub(super) fn new_test_disk(index: u64) -> TestDisk {
    let config = DiskConfig {
        segment: SegmentId(100 + index),
        epoch: 0,
        instance: 0,
        cluster: crate::ClusterId(0),
        stamps: 0,
        mutant: Mutant::None,
    };
    TestDisk {
        core: Disk::new(config, Vec::new()),
        link: ConnId(0),
        log: BTreeMap::new(),
        to_do: VecDeque::new(),
        held_up: false,
        fails: false,
        takes: u64::MAX,
        stalls: false,
        reading: VecDeque::new(),
    }
}

/// Memory of this many units, full of unread objects with a disk copy. Further objects with these names are
/// only on the disk.
fn full_of_unread(units: u64, others: &[&str], change: impl Fn(&mut MasterConfig)) -> Cluster {
    let mut cluster = Cluster::tiered(&[units], change);
    others.iter().for_each(|name| cluster.demote(name, 1));
    cluster.write_through();
    for at in 0..units {
        cluster.put(&format!("filler{at}"), UNIT, plain());
    }
    cluster
}

fn read(cluster: &mut Cluster, name: &str) {
    let id = cluster.send(get(name, 0));
    assert!(matches!(cluster.replies.remove(&id), Some(Reply::Resolved(_))), "{name}");
}

/// An object that was only written is evicted at once. One that was read is evicted when it is cold,
/// without a further request.
#[test]
fn promotion_evicts_unread_objects_and_no_hot_ones() {
    let mut cluster = full_of_unread(2, &["a", "b"], |_| ());
    read(&mut cluster, "filler0");
    assert_eq!(cluster.prefetch(&["a"], Ahead::All).unwrap(), [Done], "one was never read");
    assert_eq!(cluster.where_is("filler0"), (true, true));
    assert_eq!(cluster.where_is("filler1"), (false, true));
    // Now one is in use, and the other was just promoted.
    let id = cluster.send(prefetch(&["b"], Ahead::All, 1000));
    assert_eq!((cluster.answer(id), cluster.master.moving_count()), (None, 1), "it waits");
    cluster.wait(49);
    assert_eq!(cluster.answer(id), None);
    cluster.wait(1);
    assert_eq!(cluster.answer(id).unwrap(), [Done], "a cold object is evicted without a further request");
    assert_eq!((cluster.where_is("filler0").0, cluster.where_is("a").0), (false, true));
}

/// More bytes are promoted than are free or on disk at that moment: unread objects are demoted for them,
/// and nothing is lost.
#[test]
fn burst_of_promotions_demotes_unread_objects() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let mut cluster = Cluster::tiered(&[8], |config| config.tier.ahead_percent = 25);
    names.iter().for_each(|name| cluster.demote(name, 1));
    for at in 0..8 {
        cluster.put(&format!("filler{at}"), UNIT, plain());
    }
    let id = cluster.send(prefetch(&names, Ahead::All, 1000));
    // The disk reads before its node has processed the publication, and pauses in between.
    (0..10).for_each(|_| cluster.wait(20));
    assert_eq!(cluster.answer(id).unwrap(), [Done; 6], "three quarters of the memory");
    assert_eq!(cluster.stat().evicted_undemoted, 0);
    for at in 0..8 {
        assert!(cluster.has(&format!("filler{at}")));
    }
}

/// Objects that a burst has promoted stay until they are read, or until a later request. The rest of the
/// burst does not evict them, and is skipped for lack of memory.
#[test]
fn burst_of_promotions_does_not_evict_its_own_objects() {
    let names = ["a", "b", "c", "d"];
    let mut cluster = full_of_unread(2, &names, |config| config.tier.memory_wait_ms = 500);
    let id = cluster.send(prefetch(&names, Ahead::All, 1000));
    assert_eq!(cluster.where_is("a"), (true, true));
    // Their protection has ended, and the others still wait.
    cluster.wait(400);
    assert_eq!(
        (cluster.answer(id), cluster.where_is("a"), cluster.where_is("b")),
        (None, (true, true), (true, true))
    );
    cluster.wait(100);
    assert_eq!(cluster.answer(id).unwrap(), [Done, Done, Skipped, Skipped]);
    // A later request evicts one.
    cluster.wait(10_000);
    assert_eq!(cluster.prefetch(&["c"], Ahead::All).unwrap(), [Done]);
    assert_ne!(cluster.where_is("a").0, cluster.where_is("b").0, "one of them is evicted");
}

/// An object that was promoted and has left memory again was readable all the time: that is not a failure.
#[test]
fn prefetched_object_evicted_by_a_put_has_not_failed() {
    let mut cluster = full_of_unread(2, &["a", "b", "c"], |config| config.tier.memory_wait_ms = 500);
    let id = cluster.send(prefetch(&["a", "b", "c"], Ahead::All, 1000));
    assert_eq!((cluster.where_is("a"), cluster.where_is("c")), ((true, true), (false, true)));
    cluster.put("new", 2 * UNIT, plain());
    assert_eq!((cluster.where_is("a").0, cluster.where_is("b").0), (false, false));
    cluster.wait(500);
    assert_eq!(cluster.answer(id).unwrap()[..2], [Skipped, Skipped]);
}

#[test]
fn object_is_promoted_after_enough_disk_reads() {
    let mut cluster = full_of_unread(4, &["a"], |config| {
        (config.tier.promote_on_hit, config.tier.promote_hits) = (true, 3);
    });
    for _ in 0..2 {
        read(&mut cluster, "a");
        assert_eq!(cluster.where_is("a"), (false, true));
    }
    read(&mut cluster, "a");
    assert_eq!(cluster.where_is("a"), (true, true), "the third read");
    // A recent promotion, after which the object left memory, does not prevent another.
    read(&mut cluster, "a");
    let index = cluster.index("a");
    assert!(cluster.leave_memory(index, None));
    cluster.carry_out();
    read(&mut cluster, "a");
    assert_eq!(cluster.where_is("a"), (true, true));
}

/// A probe with a lease, as the drop-in's `is_exist` sends it.
fn lease(cluster: &mut Cluster, name: &str) {
    let keys = [key(name)];
    let exists = Exists { keys: keys.iter().collect(), lease: true, ..Exists::default() };
    assert_eq!(cluster.ask(ClientToMaster::Exists(exists)), Some(Reply::Present(vec![Presence::Here])));
}

/// A lease protects the copies in memory from eviction. It does not delay a copy to or from the disk.
#[test]
fn lease_does_not_delay_copies_of_the_object() {
    let mut cluster = full_of_unread(4, &["a", "b"], |config| {
        (config.tier.promote_on_hit, config.tier.promote_hits) = (true, 1);
    });
    lease(&mut cluster, "a");
    assert_eq!(cluster.prefetch(&["a"], Ahead::All).unwrap(), [Done]);
    lease(&mut cluster, "b");
    read(&mut cluster, "b");
    assert_eq!(cluster.where_is("b"), (true, true));
    cluster.disks[0].held_up = true;
    cluster.put("new", UNIT, plain());
    lease(&mut cluster, "new");
    cluster.let_disk_go(0);
    assert_eq!(cluster.where_is("new"), (true, true));
}

/// An object that was only written and probed is evicted as soon as its lease has ended. That holds also
/// for a promotion that was requested before the probe.
#[test]
fn ended_lease_is_not_a_read() {
    // Leases last 100 ms in these tests.
    let mut cluster = full_of_unread(1, &["a", "b"], |config| config.tier.protect_ms = 500);
    lease(&mut cluster, "filler0");
    let id = cluster.send(prefetch(&["a"], Ahead::All, 1000));
    cluster.wait(50);
    lease(&mut cluster, "filler0");
    cluster.wait(99);
    assert_eq!(cluster.answer(id), None, "a lease protects");
    cluster.wait(1);
    assert_eq!(cluster.answer(id).unwrap(), [Done]);
    assert_eq!(cluster.where_is("filler0"), (false, true));
    assert_eq!(cluster.master.last_read("default", &key("filler0")), None);
}

/// Resolving, probing or explaining objects without a touch is not a use.
#[test]
fn lookup_without_touch_is_not_a_use() {
    let mut cluster = full_of_unread(4, &["a"], |config| {
        (config.tier.promote_on_hit, config.tier.promote_hits) = (true, 1);
    });
    let uses = |cluster: &Cluster| {
        let last = |it: &str| {
            (cluster.master.last_use("default", &key(it)), cluster.master.last_read("default", &key(it)))
        };
        [last("a"), last("filler0")]
    };
    let before = (uses(&cluster), cluster.stat());
    cluster.wait(1);
    let keys = vec![key("a"), key("filler0"), key("none")];
    for _ in 0..5 {
        let resolve = Resolve { keys: keys.clone(), locate: true, ..Resolve::default() };
        cluster.ask(ClientToMaster::Resolve(resolve.clone()));
        _ = cluster.master.resolve(Tick(0), "default", &resolve);
        cluster.ask(ClientToMaster::Exists(Exists { keys: keys.iter().collect(), ..Exists::default() }));
        cluster.ask(ClientToMaster::Why(crate::message::Explain { keys: keys.clone(), report_wait_ms: 0 }));
    }
    assert_eq!((uses(&cluster), cluster.stat()), before);
    assert_eq!((cluster.where_is("a"), cluster.master.moving_count()), ((false, true), 0));
}

/// Memory pressure on one node does not affect another. Requests on the one wait, expire, and are skipped
/// for a while; those on the other begin.
#[test]
fn memory_pressure_is_per_node() {
    let wait_ms = 500;
    let mut cluster = Cluster::tiered(&[1, 4], |config| {
        (config.tier.memory_wait_ms, config.tier.throttle.cooldown) = (wait_ms, 100);
    });
    cluster.disks.push(new_test_disk(1));
    cluster.link_disk(1);
    let options = |node: &str| {
        let preferred = vec![node.to_owned()];
        crate::message::PutOptions { preferred, ..plain() }
    };
    let demote = |cluster: &mut Cluster, name: &str, node: &str| {
        cluster.write_through();
        cluster.put(name, UNIT, options(node));
        let index = cluster.index(name);
        assert!(cluster.leave_memory(index, None));
        cluster.carry_out();
        assert_eq!(cluster.where_is(name), (false, true));
    };
    demote(&mut cluster, "a", "node1");
    demote(&mut cluster, "b", "node2");
    cluster.put("pinned", UNIT, crate::message::PutOptions { hard_pin: true, ..options("node1") });
    let id = cluster.send(prefetch(&["a"], Ahead::All, 1000));
    assert_eq!(cluster.prefetch(&["b"], Ahead::All).unwrap(), [Done]);
    cluster.wait(wait_ms - 1);
    assert_eq!(cluster.answer(id), None);
    cluster.wait(1);
    assert_eq!(cluster.answer(id).unwrap(), [Skipped], "its deadline has passed");
    assert_eq!(cluster.stat().prefetch_skipped, 1);
    assert_eq!(cluster.prefetch(&["a"], Ahead::All).unwrap(), [Skipped], "no request waits for a while");
    cluster.wait(100);
    let id = cluster.send(prefetch(&["a"], Ahead::All, 1000));
    assert_eq!(cluster.answer(id), None, "requests may wait again");
    cluster.ask(ClientToMaster::Delete(crate::message::Delete {
        keys: vec![key("pinned")],
        force: true,
        wait_ms: 0,
    }));
    assert_eq!(cluster.answer(id).unwrap(), [Done], "memory became available");
}

#[test]
fn waiting_promotion_can_be_cancelled_or_joined() {
    let pinned = crate::message::PutOptions { hard_pin: true, ..plain() };
    let mut cluster = Cluster::tiered(&[1], |_| ());
    cluster.demote("a", 1);
    cluster.put("pinned", UNIT, pinned);
    cluster.send(prefetch(&["a"], Ahead::All, 0));
    assert_eq!(cluster.prefetch(&["a"], Ahead::Nothing).unwrap(), [Cancelled]);
    assert_eq!((cluster.master.moving_count(), cluster.stat().prefetch_cancelled), (0, 1));
    cluster.send(prefetch(&["a"], Ahead::All, 0));
    cluster.probe(&["a"], Ahead::All);
    assert_eq!(cluster.prefetch(&["a"], Ahead::Nothing).unwrap(), [Running], "a probe wants it, too");
    let id = cluster.send(prefetch(&["a"], Ahead::All, 1000));
    cluster.ask(ClientToMaster::Delete(crate::message::Delete {
        keys: vec![key("a")],
        force: true,
        wait_ms: 0,
    }));
    assert_eq!(cluster.answer(id).unwrap(), [Absent], "a deleted object is not waited for");
    assert_eq!(cluster.master.moving_count(), 0);
}

#[test]
fn number_of_waiting_promotions_is_bounded() {
    let mut cluster = Cluster::tiered(&[2], |config| config.tier.waiting_max = 2);
    ["a", "b", "c"].iter().for_each(|name| cluster.demote(name, 1));
    let pinned = crate::message::PutOptions { hard_pin: true, ..plain() };
    cluster.put("pinned0", UNIT, pinned.clone());
    cluster.put("pinned1", UNIT, pinned);
    let id = cluster.send(prefetch(&["a", "b", "c"], Ahead::All, 10));
    cluster.wait(10);
    assert_eq!(cluster.answer(id).unwrap(), [Running, Running, Skipped]);
    assert_eq!(cluster.master.moving_count(), 2);
}

#[test]
fn promotions_beyond_the_throttle_follow_later() {
    let throttle = Config { keys_max: 1, ..Config::default() };
    let mut cluster = Cluster::tiered(&[8], |config| config.tier.throttle = throttle);
    cluster.demote("a", 1);
    cluster.demote("b", 1);
    cluster.disks[0].held_up = true;
    let id = cluster.send(prefetch(&["a", "b"], Ahead::All, 1000));
    assert_eq!(cluster.disks[0].to_do.len(), 1);
    cluster.let_disk_go(0);
    assert_eq!(cluster.answer(id).unwrap(), [Done, Done]);
}

/// A promoted object that was not read yet is protected, but fails no put. If nothing else can be evicted,
/// the first promoted one is.
#[test]
fn put_evicts_promoted_objects_as_a_last_resort() {
    let mut cluster = full_of_unread(2, &["a", "b"], |_| ());
    for name in ["a", "b"] {
        assert_eq!(cluster.prefetch(&[name], Ahead::All).unwrap(), [Done]);
        cluster.wait(1);
    }
    assert!(matches!(cluster.put_waiting("new", 1, 0), Some(ReserveOutcome::Space(_))));
    assert_eq!((cluster.where_is("a"), cluster.where_is("b")), ((false, true), (true, true)));
    let TierStat { promoted_unused, evicted_undemoted, .. } = cluster.stat();
    assert_eq!((promoted_unused, evicted_undemoted), (1, 0));
    // After a read it is protected no longer than others.
    read(&mut cluster, "b");
    // The first client has its share.
    cluster.open(CLIENT, 8);
    assert!(matches!(cluster.put_waiting("newer", 1, 0), Some(ReserveOutcome::Space(_))));
    assert_eq!(cluster.where_is("b"), (false, true));
}

/// A promotion frees quota as it frees memory: by evicting unread objects.
#[test]
fn promotion_frees_quota_by_evicting_unread_objects() {
    let mut cluster = Cluster::tiered(&[8], |_| ());
    cluster.demote("a", 2);
    cluster.put("b", UNIT, plain());
    let quota = |units: u64, demotion| {
        ClientToMaster::SetPolicy(Policy { quota: Some(units * UNIT), demotion, ..Policy::default() }.into())
    };
    cluster.ask(quota(2, Some(Demotion::Never)));
    let id = cluster.send(prefetch(&["a"], Ahead::All, 1000));
    assert_eq!(cluster.answer(id), None, "an object without a disk copy is not evicted");
    cluster.ask(quota(3, Some(Demotion::Never)));
    assert_eq!(cluster.answer(id).unwrap(), [Done], "it waited only for the quota");
    let mut cluster = full_of_unread(4, &["a"], |_| ());
    cluster.ask(quota(4, Some(Demotion::WriteThrough)));
    assert_eq!(cluster.prefetch(&["a"], Ahead::All).unwrap(), [Done]);
    assert_eq!(cluster.where_is("filler0"), (false, true));
    assert_eq!(cluster.prefetch(&["a"], Ahead::All).unwrap(), [Resident]);
}

/// The pin comes after the promotion, and no put evicts the object then.
#[test]
fn put_does_not_evict_promoted_and_pinned_objects() {
    let mut cluster = full_of_unread(1, &["a"], |_| ());
    assert_eq!(cluster.prefetch(&["a"], Ahead::All).unwrap(), [Done]);
    let pin = crate::message::Pin { keys: vec![key("a")], owner: String::new(), on: true, wait_ms: 0 };
    cluster.ask(ClientToMaster::Pin(pin));
    assert!(matches!(cluster.put_waiting("new", 1, 0), Some(ReserveOutcome::Full(_))));
    assert_eq!(cluster.where_is("a"), (true, true));
}

/// A drop runs in pieces, outside of events. Promotions that wait get the space that a piece frees at once.
#[test]
fn piece_of_a_drop_begins_waiting_promotions() {
    let mut cluster = Cluster::tiered(&[8], |config| config.piece_objects_max = 1);
    cluster.demote("a", 2);
    ["k0", "k1"].iter().for_each(|name| _ = cluster.put(name, UNIT, plain()));
    let policy = Policy { quota: Some(2 * UNIT), demotion: Some(Demotion::Never), ..Policy::default() };
    cluster.ask(ClientToMaster::SetPolicy(policy.into()));
    let id = cluster.send(prefetch(&["a"], Ahead::All, 1000));
    let pattern = crate::message::Pattern::Prefix(b"k".to_vec());
    let delete = crate::message::DeleteMatching { pattern, force: false, wait_ms: 500 };
    cluster.send(ClientToMaster::DeleteMatching(delete));
    assert_eq!((cluster.answer(id), cluster.master.check()), (None, Ok(())), "half of the quota is in use");
    while cluster.master.has_work() {
        cluster.master.work(cluster.now);
        assert_eq!(cluster.master.check(), Ok(()));
    }
    cluster.carry_out();
    assert_eq!(cluster.answer(id).unwrap(), [Done]);
}
