//! The disks of a [`Cluster`], with logs under the test's control.

use std::collections::BTreeMap;

use tiffin_node::{
    self as node,
    disk::{self, Disk, DiskConfig},
};

use super::*;
use crate::{
    Key, Stamp,
    message::{
        Ahead, Demotion, Exists, Found, NodeInfo, Policy, Prefetch, PrefetchOutcome, Presence, Record,
        Reserve, ReserveItem, ReserveOutcome, Resolve, ResolveOutcome, TierStat, Why,
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
    let config = DiskConfig { segment, epoch, instance, cluster, stamps: 0, mutant: Mutant::None };
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
