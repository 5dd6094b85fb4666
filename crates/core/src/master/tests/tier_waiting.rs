//! What makes way for what comes back from a disk, and what waits for memory.

use tiffin_throttle::Config;

use std::collections::BTreeMap;

use super::{
    tier::{TestDisk, get, prefetch},
    *,
};
use crate::disk::{Disk, DiskConfig};
use crate::message::{
    Ahead, Demotion, Exists, Policy, PrefetchOutcome, Presence, ReserveOutcome, Resolve, TierStat,
};

use PrefetchOutcome::{Absent, Cancelled, Done, Resident, Running, Skipped};

pub(super) fn new_test_disk(index: u64) -> TestDisk {
    let config = DiskConfig {
        segment: SegmentId(100 + index),
        epoch: 0,
        instance: 0,
        stamps: 0,
        sabotage: Sabotage::None,
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

/// Memory of so many units, full of objects that nobody has read and a disk has, too, and the names of others
/// that only the disk has.
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

/// What was only written makes way at once; what was read does not before it is cold, and then by itself.
#[test]
fn what_nobody_has_read_makes_way_and_what_is_read_does_not() {
    let mut cluster = full_of_unread(2, &["a", "b"], |_| ());
    read(&mut cluster, "filler0");
    assert_eq!(cluster.prefetch(&["a"], Ahead::All).unwrap(), [Done], "one was never read");
    assert_eq!(cluster.where_is("filler0"), (true, true));
    assert_eq!(cluster.where_is("filler1"), (false, true));
    // Now one is in use, and the other was just brought.
    let id = cluster.send(prefetch(&["b"], Ahead::All, 1000));
    assert_eq!((cluster.answer(id), cluster.master.moving_count()), (None, 1), "it waits");
    cluster.wait(49);
    assert_eq!(cluster.answer(id), None);
    cluster.wait(1);
    assert_eq!(cluster.answer(id).unwrap(), [Done], "what is cold makes way without another question");
    assert_eq!((cluster.where_is("filler0").0, cluster.where_is("a").0), (false, true));
}

/// More than is free or on a disk at that moment is brought all the same: what nobody has read goes to the
/// disk for it, and nothing is lost.
#[test]
fn a_burst_is_brought_whole() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let mut cluster = Cluster::tiered(&[8], |config| config.tier.ahead_percent = 25);
    names.iter().for_each(|name| cluster.demote(name, 1));
    for at in 0..8 {
        cluster.put(&format!("filler{at}"), UNIT, plain());
    }
    let id = cluster.send(prefetch(&names, Ahead::All, 1000));
    // The disk comes before its node has heard what the bytes are, and rests in between.
    (0..10).for_each(|_| cluster.wait(20));
    assert_eq!(cluster.answer(id).unwrap(), [Done; 6], "three quarters of the memory");
    assert_eq!(cluster.stat().evicted_undemoted, 0);
    for at in 0..8 {
        assert!(cluster.has(&format!("filler{at}")));
    }
}

/// What a burst has promoted stays until it is read, or until another request comes: the rest of the burst
/// does not displace it, and is told that memory was short.
#[test]
fn a_burst_does_not_displace_its_own() {
    let names = ["a", "b", "c", "d"];
    let mut cluster = full_of_unread(2, &names, |config| config.tier.memory_wait_ms = 500);
    let id = cluster.send(prefetch(&names, Ahead::All, 1000));
    assert_eq!(cluster.where_is("a"), (true, true));
    // Their protection is over, and the others still wait.
    cluster.wait(400);
    assert_eq!(
        (cluster.answer(id), cluster.where_is("a"), cluster.where_is("b")),
        (None, (true, true), (true, true))
    );
    cluster.wait(100);
    assert_eq!(cluster.answer(id).unwrap(), [Done, Done, Skipped, Skipped]);
    // A later request does.
    cluster.wait(10_000);
    assert_eq!(cluster.prefetch(&["c"], Ahead::All).unwrap(), [Done]);
    assert_ne!(cluster.where_is("a").0, cluster.where_is("b").0, "one of them makes way");
}

/// An object that was promoted and has left memory again was readable all the time: that is no failure.
#[test]
fn a_prefetch_displaced_by_a_put_has_not_failed() {
    let mut cluster = full_of_unread(2, &["a", "b", "c"], |config| config.tier.memory_wait_ms = 500);
    let id = cluster.send(prefetch(&["a", "b", "c"], Ahead::All, 1000));
    assert_eq!((cluster.where_is("a"), cluster.where_is("c")), ((true, true), (false, true)));
    cluster.put("new", 2 * UNIT, plain());
    assert_eq!((cluster.where_is("a").0, cluster.where_is("b").0), (false, false));
    cluster.wait(500);
    assert_eq!(cluster.answer(id).unwrap()[..2], [Skipped, Skipped]);
}

#[test]
fn what_was_read_often_enough_is_in_memory_soon() {
    let mut cluster = full_of_unread(4, &["a"], |config| {
        (config.tier.promote_on_hit, config.tier.promote_hits) = (true, 3);
    });
    for _ in 0..2 {
        read(&mut cluster, "a");
        assert_eq!(cluster.where_is("a"), (false, true));
    }
    read(&mut cluster, "a");
    assert_eq!(cluster.where_is("a"), (true, true), "the third read");
    // It was brought a moment ago and left again: that is no reason not to bring it.
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
fn a_lease_does_not_delay_copies_of_the_object() {
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

/// An object that was only written and probed makes way as soon as its lease has ended, also for a promotion
/// that was requested before the probe.
#[test]
fn an_ended_lease_is_not_a_read() {
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

/// To ask where objects lie, whether they are there or why, is no use of them.
#[test]
fn a_look_changes_nothing() {
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

/// Pressure on one node is no pressure on another: requests at the one wait, expire and are skipped at once
/// for a while, those at the other begin.
#[test]
fn pressure_is_of_one_node() {
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
    assert_eq!(cluster.answer(id).unwrap(), [Skipped], "its time is up");
    assert_eq!(cluster.stat().prefetch_skipped, 1);
    assert_eq!(cluster.prefetch(&["a"], Ahead::All).unwrap(), [Skipped], "nobody waits for a while");
    cluster.wait(100);
    let id = cluster.send(prefetch(&["a"], Ahead::All, 1000));
    assert_eq!(cluster.answer(id), None, "one may wait again");
    cluster.ask(ClientToMaster::Delete(crate::message::Delete {
        keys: vec![key("pinned")],
        force: true,
        wait_ms: 0,
    }));
    assert_eq!(cluster.answer(id).unwrap(), [Done], "memory became available");
}

#[test]
fn who_waits_for_memory_gives_up_and_may_be_joined() {
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
    assert_eq!(cluster.answer(id).unwrap(), [Absent], "what is gone is not waited for");
    assert_eq!(cluster.master.moving_count(), 0);
}

#[test]
fn only_so_many_wait() {
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
fn only_so_much_comes_back_at_a_time_and_the_rest_follows() {
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

/// What came back and was not read yet is kept, but no put fails for it: the first that came leaves for one
/// that finds nothing else.
#[test]
fn a_put_takes_what_was_brought_if_there_is_nothing_else() {
    let mut cluster = full_of_unread(2, &["a", "b"], |_| ());
    for name in ["a", "b"] {
        assert_eq!(cluster.prefetch(&[name], Ahead::All).unwrap(), [Done]);
        cluster.wait(1);
    }
    assert!(matches!(cluster.put_waiting("new", 1, 0), Some(ReserveOutcome::Space(_))));
    assert_eq!((cluster.where_is("a"), cluster.where_is("b")), ((false, true), (true, true)));
    let TierStat { promoted_unused, evicted_undemoted, .. } = cluster.stat();
    assert_eq!((promoted_unused, evicted_undemoted), (1, 0));
    // What was read is kept no longer than others, and what is leased is not taken.
    read(&mut cluster, "b");
    assert!(matches!(cluster.put_waiting("newer", 1, 0), Some(ReserveOutcome::Space(_))));
    assert_eq!(cluster.where_is("b"), (false, true));
}

/// A quota is made way in as memory is: by what nobody has read. Nobody else feels that.
#[test]
fn a_quota_makes_way_and_keeps_nobody_else_out() {
    let mut cluster = Cluster::tiered(&[8], |_| ());
    cluster.demote("a", 2);
    cluster.put("b", UNIT, plain());
    let quota = |units: u64, demotion| {
        ClientToMaster::SetPolicy(Policy { quota: Some(units * UNIT), demotion, ..Policy::default() }.into())
    };
    cluster.ask(quota(2, Some(Demotion::Never)));
    let id = cluster.send(prefetch(&["a"], Ahead::All, 1000));
    assert_eq!(cluster.answer(id), None, "what is in memory alone does not make way");
    cluster.ask(quota(3, Some(Demotion::Never)));
    assert_eq!(cluster.answer(id).unwrap(), [Done], "a larger quota is all it waited for");
    let mut cluster = full_of_unread(4, &["a"], |_| ());
    cluster.ask(quota(4, Some(Demotion::WriteThrough)));
    assert_eq!(cluster.prefetch(&["a"], Ahead::All).unwrap(), [Done]);
    assert_eq!(cluster.where_is("filler0"), (false, true));
    assert_eq!(cluster.prefetch(&["a"], Ahead::All).unwrap(), [Resident]);
}

/// A pin comes after the object was brought: no put takes it then.
#[test]
fn a_put_does_not_take_what_was_brought_and_pinned() {
    let mut cluster = full_of_unread(1, &["a"], |_| ());
    assert_eq!(cluster.prefetch(&["a"], Ahead::All).unwrap(), [Done]);
    let pin = crate::message::Pin { keys: vec![key("a")], owner: String::new(), on: true, wait_ms: 0 };
    cluster.ask(ClientToMaster::Pin(pin));
    assert!(matches!(cluster.put_waiting("new", 1, 0), Some(ReserveOutcome::Full(_))));
    assert_eq!(cluster.where_is("a"), (true, true));
}

/// A drop goes on in pieces, outside of events. What a piece frees is for those who wait, at once.
#[test]
fn a_piece_of_a_drop_begins_waiting_promotions() {
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
