//! The rules of the tier below memory, one test each, with real nodes and disks.

use std::collections::BTreeMap;

use tiffin_node::{
    self as node,
    disk::{self, Disk, DiskConfig},
};

use super::*;
use crate::{
    Key, Stamp,
    message::{
        Ahead, CommitOutcome, Delete, DeleteOutcome, Demotion, Exists, Found, NodeInfo, Pin, PinOutcome,
        Policy, Prefetch, PrefetchOutcome, Presence, PutOptions, Record, Reserve, ReserveItem,
        ReserveOutcome, Resolve, ResolveOutcome, TierStat, Why,
    },
};

/// The disk of the node with the same index, with a log under the test's control.
pub(super) struct TestDisk {
    pub(super) core: Disk,
    pub(super) link: ConnId,
    /// The records that are durable.
    pub(super) log: BTreeMap<Stamp, Record>,
    /// Its pending effects, while it is stalled.
    pub(super) to_do: VecDeque<disk::Effect>,
    pub(super) held_up: bool,
    pub(super) fails: bool,
    /// The largest object that it accepts.
    pub(super) takes: u64,
    /// It begins to read memory, and does not finish before it is resumed.
    pub(super) stalls: bool,
    /// The objects that it is reading.
    pub(super) reading: VecDeque<(crate::SlotRef, Record)>,
}

const DISK_BYTES: u64 = 1 << 20;

impl Cluster {
    /// Nodes with this many units of memory, and a disk at the first.
    pub(super) fn tiered(units: &[u64], change: impl Fn(&mut MasterConfig)) -> Self {
        let capacities: Vec<_> = units.iter().map(|it| it * UNIT).collect();
        let mut cluster = Self::with(&capacities, |config| {
            config.silence_ms_max = 1_000_000_000;
            config.tier.promote_on_hit = false;
            config.tier.protect_ms = 50;
            config.tier.ahead_percent = 0;
            change(config);
        });
        cluster.disks.push(super::tier_waiting::new_test_disk(0));
        cluster.link_disk(0);
        cluster
    }

    pub(super) fn disk_at(&self, conn: ConnId) -> Option<usize> {
        self.disks.iter().position(|it| it.link == conn)
    }

    pub(super) fn link_disk(&mut self, index: usize) {
        self.next_conn += 1;
        self.disks[index].link = ConnId(self.next_conn);
        let hello = Hello { role: Role::Node, ..Hello::default() };
        self.event(Event::Opened(self.disks[index].link, hello));
        let (segment, beside) = (SegmentId(100 + index as u64), Some(SegmentId(index as u64 + 1)));
        let info = NodeInfo { segment, name: format!("disk{}", index + 1), beside, ..NodeInfo::default() };
        self.disk_event(index, disk::Event::Linked(info));
    }

    pub(super) fn unlink_disk(&mut self, index: usize) {
        let link = std::mem::take(&mut self.disks[index].link);
        self.disks[index].core.handle(disk::Event::Unlinked);
        self.event(Event::Closed(link));
    }

    /// The process of a disk dies and restarts with the records of its log.
    pub(super) fn crash_disk(&mut self, index: usize) {
        let link = std::mem::take(&mut self.disks[index].link);
        self.event(Event::Closed(link));
        let MasterConfig { epoch, instance, .. } = self.master.objects.cx.config;
        let disk = &mut self.disks[index];
        (disk.to_do, disk.held_up) = (VecDeque::new(), false);
        disk.core = new_disk((epoch, instance), disk.log.values().cloned().collect());
    }

    pub(super) fn new_master(&mut self, epoch: u64) {
        self.disks[0].link = ConnId(0);
        self.disks[0].core.handle(disk::Event::Unlinked);
        self.restart_master(epoch);
    }

    pub(super) fn disk_event(&mut self, index: usize, event: disk::Event) {
        let disk = &mut self.disks[index];
        let used = disk.log.values().map(|it| it.len).sum();
        disk.core.report(DISK_BYTES, used);
        disk.core.handle(event);
        while let Some(effect) = self.disks[index].core.poll_effect() {
            let conn = self.disks[index].link;
            match effect {
                disk::Effect::AskMaster(id, request) => self.event(Event::Request(conn, id, request.into())),
                disk::Effect::AnswerMaster(id, reply) => self.event(Event::Reply(conn, id, reply)),
                disk::Effect::Epoch { .. } => (),
                effect => self.disks[index].to_do.push_back(effect),
            }
        }
        if !self.disks[index].held_up {
            self.do_all(index);
        }
    }

    pub(super) fn do_all(&mut self, index: usize) {
        while let Some(effect) = self.disks[index].to_do.pop_front() {
            self.do_one(index, effect);
        }
    }

    pub(super) fn let_disk_go(&mut self, index: usize) {
        (self.disks[index].held_up, self.disks[index].stalls) = (false, false);
        while let Some((source, record)) = self.disks[index].reading.pop_front() {
            let there = self.nodes[index].end_demotion(source);
            self.has_stored(index, record, there);
        }
        self.do_all(index);
    }

    fn has_stored(&mut self, index: usize, record: Record, there: bool) {
        let there = there && !self.disks[index].fails;
        let stamp = record.slot_ref.stamp;
        if there {
            self.disks[index].log.insert(stamp, record);
        }
        // The node reports the freed memory to the master.
        self.node_event(index, node::Event::Beat);
        self.disk_event(index, disk::Event::Stored(stamp, there));
    }

    pub(super) fn do_one(&mut self, index: usize, effect: disk::Effect) {
        let done = !self.disks[index].fails;
        match effect {
            disk::Effect::Store { record, .. } if record.len > self.disks[index].takes => {
                let takes = self.disks[index].takes;
                self.disk_event(index, disk::Event::Refused(record.slot_ref.stamp, takes));
            }
            disk::Effect::Store { source, record } => {
                let there = self.nodes[index].begin_demotion(source, record.len).is_some();
                if there && self.disks[index].stalls {
                    return self.disks[index].reading.push_back((source, record));
                }
                let there = there && self.nodes[index].end_demotion(source);
                self.has_stored(index, record, there);
            }
            disk::Effect::Load { len, into, .. } => {
                let space = self.nodes[index].begin_store(ClientId::PROMOTER, into, 0, len).is_some();
                if space {
                    self.nodes[index].end_store(into);
                    // The node reports the freed memory to the master.
                    self.node_event(index, node::Event::Beat);
                }
                self.disk_event(index, disk::Event::Loaded(into, space && done));
            }
            disk::Effect::Forget(stamps) => {
                stamps.iter().for_each(|it| _ = self.disks[index].log.remove(it));
                self.disk_event(index, disk::Event::Forgotten(stamps));
            }
            disk::Effect::SetAttributes(stamp, attributes) => {
                if let Some(record) = self.disks[index].log.get_mut(&stamp).filter(|_| done) {
                    record.attributes = attributes;
                }
                self.disk_event(index, disk::Event::AttributesSet(stamp, done));
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn stat(&self) -> TierStat {
        self.master.check().unwrap();
        *self.master.stat().tier
    }

    pub(super) fn look_up(&mut self, name: &str) -> Option<Found> {
        match self.resolve(name, false) {
            ResolveOutcome::Found(found) => Some(found),
            _ => None,
        }
    }

    /// Whether it is in memory, and whether it is on a disk.
    pub(super) fn where_is(&mut self, name: &str) -> (bool, bool) {
        let found = self.look_up(name).unwrap_or_default();
        let on_disk = |disk: bool| found.replicas.iter().any(|it| it.slot_ref().is_on_disk() == disk);
        (on_disk(false), on_disk(true))
    }

    /// Reserves units with a wait time. Returns the outcome if there is one already.
    pub(super) fn put_waiting(&mut self, name: &str, units: u64, wait_ms: u64) -> Option<ReserveOutcome> {
        let id = self.send(reserve(name, units, wait_ms));
        match self.replies.remove(&id)? {
            Reply::Reserved(mut reserved) => Some(reserved.items.remove(0)),
            other => panic!("{other:?}"),
        }
    }

    /// Puts an object that is only on the disk.
    pub(super) fn demote(&mut self, name: &str, units: u64) {
        self.write_through();
        self.put(name, units * UNIT, plain());
        self.ask(ClientToMaster::SetPolicy(Policy::default().into()));
        self.wait(1);
        assert_eq!(self.where_is(name), (true, true));
        let index = self.index(name);
        assert!(self.leave_memory(index, None));
        self.carry_out();
        assert_eq!(self.where_is(name), (false, true));
    }

    pub(super) fn why_nodes(&mut self, name: &str) -> Vec<String> {
        match self
            .ask(ClientToMaster::Why(crate::message::Explain { keys: vec![key(name)], report_wait_ms: 0 }))
        {
            Some(Reply::Why(mut why)) => match why.remove(0) {
                Why::Here(here) => here.nodes,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn leave_memory(&mut self, index: catalog::ObjectIndex, node: Option<NodeIndex>) -> bool {
        self.master.objects.tier.leave_memory(&mut self.master.objects.cx, index, node)
    }

    pub(super) fn index(&self, name: &str) -> catalog::ObjectIndex {
        let namespace = self.master.objects.cx.catalog.namespace_index("default").unwrap();
        self.master.objects.cx.catalog.find(namespace, &key(name)).unwrap()
    }

    pub(super) fn write_through(&mut self) {
        let demotion = Some(Demotion::WriteThrough);
        self.ask(ClientToMaster::SetPolicy(Policy { demotion, ..Policy::default() }.into()));
    }

    pub(super) fn prefetch(&mut self, names: &[&str], ahead: Ahead) -> Option<Vec<PrefetchOutcome>> {
        let id = self.send(prefetch(names, ahead, 1000));
        self.answer(id)
    }

    pub(super) fn answer(&mut self, id: RequestId) -> Option<Vec<PrefetchOutcome>> {
        match self.replies.remove(&id)? {
            Reply::Prefetched(outcomes) => Some(outcomes),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn probe(&mut self, names: &[&str], ahead: Ahead) -> Vec<Presence> {
        let keys: Vec<_> = names.iter().map(|it| key(it)).collect();
        let exists = Exists { keys: keys.iter().collect(), ahead, ..Exists::default() };
        match self.ask(ClientToMaster::Exists(exists)) {
            Some(Reply::Present(items)) => items,
            other => panic!("{other:?}"),
        }
    }
}

fn new_disk((epoch, instance): (u64, u64), recovered: Vec<Record>) -> Disk {
    let (segment, cluster) = (SegmentId(100), crate::ClusterId(0));
    let config = DiskConfig { segment, epoch, instance, cluster, stamps: 0, sabotage: Sabotage::None };
    Disk::new(config, recovered)
}

pub(super) fn reserve(name: &str, units: u64, wait_ms: u64) -> ClientToMaster {
    let items = vec![ReserveItem { key: key(name), len: units * UNIT, options: plain() }];
    ClientToMaster::Reserve(Reserve { items, wait_ms, ..Reserve::default() })
}

pub(super) fn prefetch(names: &[&str], ahead: Ahead, wait_ms: u64) -> ClientToMaster {
    ClientToMaster::Prefetch(Prefetch { keys: names.iter().map(|it| key(it)).collect(), ahead, wait_ms })
}

pub(super) fn get(name: &str, wait_ms: u64) -> ClientToMaster {
    let keys: Vec<Key> = vec![key(name)];
    ClientToMaster::Resolve(Resolve { keys, touch: true, locate: true, wait_ms, ..Resolve::default() })
}

use PrefetchOutcome::{Absent, Done, Failed, Resident, Skipped};

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
