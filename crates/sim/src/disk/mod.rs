//! The shell of a node's disk, in the same process: it has its own link to the master, a log that outlives
//! the process, and moves bytes between the log and the memory.

mod log;

use std::collections::BTreeMap;

use tiffin_node::disk::{Disk, DiskConfig, Effect, Event as CoreEvent};
use tiffin_proto::Incoming;
use tiffin_types::{
    ClientId, ConnId, EXTENT_ALIGN, Generation, RequestId, SegmentId, SlotRef, Stamp,
    message::{
        AttributesItem, Hello, MasterToMember, NodeInfo, Record, Reply, Request, Role, VERSION_MAJOR,
        VERSION_MINOR,
    },
    space_for,
};

pub(crate) use log::{Appending, DiskCopy, DiskLog, Loading};

use crate::{
    coverage::Point,
    memory::{Memory, all_units},
    network::Way,
    node::NodeEvent,
    oracle::record_name,
    transfer::{Ended, TransferId},
    world::{Party, Phase, Time, World},
};

/// Heartbeat interval of a disk.
const BEAT_MS: u64 = 50;

/// A disk's own event.
#[derive(Debug)]
pub(crate) enum DiskEvent {
    Beat,
    /// Connects to the master.
    Link,
    /// The bytes of a copy were read from memory.
    Copied(Stamp),
    /// A copy was written.
    Appended(Stamp),
    /// Copies were removed.
    Forgotten(Vec<Stamp>),
    /// Attributes were written.
    AttributesSet(Stamp),
    /// A few more units of a copy are in memory.
    Load(SlotRef),
}

/// A request of the master without an answer.
#[derive(Debug)]
enum PendingRequest {
    Demote(Vec<Stamp>),
    Retire(Vec<Stamp>),
    SetAttributes(Vec<AttributesItem>),
}

/// One disk.
#[derive(Debug, Default)]
pub(crate) struct DiskShell {
    pub(crate) core: Option<Disk>,
    pub(crate) segment: SegmentId,
    pub(crate) log: DiskLog,
    pub(crate) link: Option<ConnId>,
    linked: bool,
    /// The network blocks its link until then.
    pub(crate) barred_until: Time,
    pending: BTreeMap<RequestId, PendingRequest>,
}

impl DiskShell {
    /// Newer attributes were requested, and may be written before the older request is answered.
    fn forget_attributes(&mut self, newer: &[AttributesItem]) {
        for pending in self.pending.values_mut() {
            if let PendingRequest::SetAttributes(items) = pending {
                items.retain(|it| !newer.iter().any(|newer| newer.slot_ref == it.slot_ref));
            }
        }
    }
}

impl World {
    /// The disk of a node's process.
    pub(crate) fn disk(&mut self, node: usize) -> Option<&mut DiskShell> {
        self.nodes.get_mut(node)?.disk.as_deref_mut()
    }

    /// The node whose process has that disk, if it is alive.
    pub(crate) fn disk_of(&self, segment: SegmentId) -> Option<usize> {
        let has = |it: &crate::node::NodeShell| it.disk.as_ref().is_some_and(|it| it.segment == segment);
        self.nodes.iter().position(|it| it.core.is_some() && has(it))
    }

    /// The copies that disks are writing. Whether or not their process dies, they may become durable.
    pub(crate) fn copies_under_way(&self) -> Vec<(SegmentId, SlotRef, Generation)> {
        let disks = self.nodes.iter().filter_map(|it| it.disk.as_deref());
        let copies = disks.flat_map(|disk| {
            let appending = disk.log.appending.values().map(|it| &it.record);
            appending.map(|it| (disk.segment, it.slot_ref, it.generation))
        });
        copies.collect()
    }

    /// A node's process starts, and finds its disk as it was.
    pub(crate) fn start_disk(&mut self, node: usize) {
        let mutant = self.mutant;
        let (segment, capacity) = (self.rng.any(), self.plan.disk_capacity);
        let Some(shell) = self.nodes.get_mut(node) else { return };
        let memory = shell.segment;
        if shell.disk.is_none() {
            let segment = SegmentId(segment);
            let log = DiskLog::new(capacity);
            shell.disk = Some(Box::new(DiskShell { segment, log, ..DiskShell::default() }));
            self.memories.insert(segment, Memory::of_disk());
            self.oracle.node_starts(segment, &disk_name(node));
        }
        let Some(disk) = self.disk(node) else { return };
        let (segment, epoch, instance) = (disk.segment, disk.log.epoch, disk.log.instance);
        let cluster = disk.log.cluster;
        let config = DiskConfig { segment, epoch, instance, cluster, stamps: 0, mutant };
        let records = disk.log.records();
        disk.core = Some(Disk::new(config, records.clone()));
        let segment = disk.segment;
        self.oracle.disk_starts(segment, memory, &records, &mut self.coverage);
        if !records.is_empty() {
            self.coverage.hit(Point::DiskRecovered);
        }
        self.node_at(0, node, NodeEvent::Disk(DiskEvent::Link));
        self.node_at(BEAT_MS, node, NodeEvent::Disk(DiskEvent::Beat));
    }

    /// The process dies.
    pub(crate) fn crash_disk(&mut self, node: usize) {
        let Some(disk) = self.nodes.get_mut(node).and_then(|it| it.disk.as_mut()) else { return };
        let (link, segment) = (disk.link.take(), disk.segment);
        let under_way = !disk.log.is_idle();
        disk.core = None;
        (disk.linked, disk.barred_until) = (false, 0);
        disk.pending.clear();
        disk.log.crash(&mut self.rng);
        let records = disk.log.records();
        if under_way {
            self.coverage.hit(Point::DiskCrashUnderWay);
        }
        if let Some(memory) = self.memories.get_mut(&segment) {
            memory.member = false;
            memory.forget_all();
        }
        records.iter().for_each(|record| self.record_copy(segment, record));
        if let Some(link) = link {
            self.close_caller(link);
        }
        self.transfers_lose_node(segment);
    }

    pub(crate) fn disk_event(&mut self, node: usize, event: DiskEvent) {
        match event {
            DiskEvent::Beat => {
                self.disk_handles(node, CoreEvent::Beat);
                self.node_at(BEAT_MS, node, NodeEvent::Disk(DiskEvent::Beat));
            }
            DiskEvent::Link => self.disk_links(node),
            DiskEvent::Copied(stamp) => self.copied(node, stamp),
            DiskEvent::Appended(stamp) => self.appended(node, stamp),
            DiskEvent::Forgotten(stamps) => self.forgotten(node, stamps),
            DiskEvent::AttributesSet(stamp) => {
                let now = self.now;
                let Some(log) = self.disk(node).map(|it| &mut it.log) else { return };
                let Some(attributes) = log.marking.remove(&stamp) else { return };
                let done = log.fails_until.max(log.full_until) <= now;
                if let Some(copies) = log.copies.get_mut(&stamp).filter(|_| done) {
                    copies.record.attributes = attributes;
                }
                self.coverage.hit(if done { Point::DiskAttributesSet } else { Point::DiskAttributesFailed });
                self.disk_handles(node, CoreEvent::AttributesSet(stamp, done));
            }
            DiskEvent::Load(into) => self.load_units(node, into),
        }
    }

    /// Schedules the completion of a device operation, unless it is lost.
    fn io(&mut self, node: usize, event: DiskEvent) {
        let now = self.now;
        let delay = self.rng.delay(6, 60);
        let Some(log) = self.disk(node).map(|it| &mut it.log) else { return };
        if log.lose_completions > 0 {
            log.lose_completions -= 1;
            log.has_lost = true;
            return self.coverage.hit(Point::DiskLostCompletion);
        }
        let delay = if log.slow_until > now { delay * 10 } else { delay };
        self.node_at(delay, node, NodeEvent::Disk(event));
    }

    fn disk_links(&mut self, node: usize) {
        let now = self.now;
        let storm = self.phase == Phase::Faults;
        let Some(disk) = self.disk(node).filter(|it| it.link.is_none() && it.core.is_some()) else { return };
        if disk.barred_until > now && storm {
            let delay = disk.barred_until - now;
            return self.node_at(delay, node, NodeEvent::Disk(DiskEvent::Link));
        }
        let (major, minor) = (VERSION_MAJOR, VERSION_MINOR);
        let hello = Hello { major, minor, role: Role::Node, host: format!("host{node}"), ..Hello::default() };
        let conn = self.open(Party::Disk(node), Party::Master, hello);
        if let Some(disk) = self.disk(node) {
            disk.link = Some(conn);
        }
    }

    /// The link to the master broke; the disk reconnects later.
    pub(crate) fn disk_link_lost(&mut self, node: usize, conn: ConnId) {
        let Some(disk) = self.disk(node).filter(|it| it.link == Some(conn)) else { return };
        disk.link = None;
        disk.pending.clear();
        if std::mem::replace(&mut disk.linked, false) {
            self.disk_handles(node, CoreEvent::Unlinked);
        }
        let delay = self.rng.delay(20, 100);
        self.node_at(delay, node, NodeEvent::Disk(DiskEvent::Link));
    }

    pub(crate) fn disk_receives(&mut self, node: usize, conn: ConnId, incoming: Incoming) {
        let Some(beside) = self.nodes.get(node).map(|it| it.segment) else { return };
        let Some(disk) = self.disk(node).filter(|it| it.link == Some(conn)) else { return };
        match incoming {
            Incoming::Reply(_, Reply::Welcome(_)) => {
                disk.linked = true;
                let (segment, host) = (disk.segment, format!("host{node}"));
                let name = disk_name(node);
                let info = NodeInfo { segment, name, host, beside: Some(beside), ..NodeInfo::default() };
                self.disk_handles(node, CoreEvent::Linked(info));
            }
            Incoming::Reply(id, reply) => self.disk_handles(node, CoreEvent::MasterReply(id, reply)),
            Incoming::Request(id, Request::MasterToMember(request)) => {
                let stamps = |slot_refs: &[SlotRef]| slot_refs.iter().map(|it| it.stamp).collect();
                let pending = match &request {
                    MasterToMember::Demote(items) => Some(PendingRequest::Demote(
                        items.iter().map(|it| it.record.slot_ref.stamp).collect(),
                    )),
                    MasterToMember::Retire(retire) => Some(PendingRequest::Retire(stamps(&retire.slot_refs))),
                    MasterToMember::SetAttributes(items) => {
                        disk.forget_attributes(items);
                        Some(PendingRequest::SetAttributes(items.clone()))
                    }
                    MasterToMember::Allocate(_)
                    | MasterToMember::Settle(_)
                    | MasterToMember::ClientGone(_)
                    | MasterToMember::Inspect(_)
                    | MasterToMember::Fetch(_)
                    | MasterToMember::Promote(_)
                    | MasterToMember::Drain(_) => None,
                };
                pending.into_iter().for_each(|it| _ = disk.pending.insert(id, it));
                self.disk_handles(node, CoreEvent::MasterRequest(id, request));
            }
            Incoming::Request(
                _,
                Request::Hello(_)
                | Request::Goodbye
                | Request::ClientToMaster(_)
                | Request::MemberToMaster(_)
                | Request::ClientToNode(_),
            ) => panic!("the master sends a request that is not for members"),
        }
    }

    /// Passes an event in and executes the effects, in order, before anything else.
    fn disk_handles(&mut self, node: usize, event: CoreEvent) {
        let Some(disk) = self.disk(node) else { return };
        let (capacity, used) = (disk.log.capacity, disk.log.used());
        let link = disk.link;
        let Some(core) = disk.core.as_mut() else { return };
        let was_member = core.is_member();
        core.report(capacity, used);
        core.handle(event);
        while let Some(effect) = self.disk(node).and_then(|it| it.core.as_mut()).and_then(Disk::poll_effect) {
            self.disk_effect(node, effect);
        }
        let Some(disk) = self.disk(node) else { return };
        let (segment, member) = (disk.segment, disk.core.as_ref().is_some_and(Disk::is_member));
        if let Some(memory) = self.memories.get_mut(&segment) {
            memory.member = member;
        }
        if let Some(link) = link.filter(|_| member && !was_member) {
            self.oracle.readmitted(link, segment, &self.memories, &mut self.coverage);
        }
    }

    fn disk_effect(&mut self, node: usize, effect: Effect) {
        let Some(disk) = self.disk(node) else { return };
        let (segment, link) = (disk.segment, disk.link.filter(|_| disk.linked));
        self.log.note(|| format!("{segment} {effect:?}"));
        match effect {
            Effect::Store { source, record } => self.begin_append(node, source, record),
            Effect::Load { stamp, len, into } => self.begin_load(node, stamp, len, into),
            Effect::Forget(stamps) => {
                if let Some(disk) = self.disk(node) {
                    disk.log.forgetting.extend(&stamps);
                }
                self.io(node, DiskEvent::Forgotten(stamps));
            }
            Effect::SetAttributes(stamp, attributes) => {
                if let Some(disk) = self.disk(node) {
                    disk.log.marking.insert(stamp, attributes);
                }
                self.io(node, DiskEvent::AttributesSet(stamp));
            }
            Effect::Epoch { epoch, instance, cluster } => {
                if let Some(disk) = self.disk(node) {
                    (disk.log.epoch, disk.log.instance, disk.log.cluster) = (epoch, instance, cluster);
                }
            }
            Effect::RejectMaster { .. } | Effect::Refused(_) => {
                if let Some(link) = link {
                    self.break_conn(link);
                }
            }
            Effect::AskMaster(id, request) => {
                let Some(link) = link else { return };
                self.send_request(link, Way::Up, id, &request);
            }
            Effect::AnswerMaster(id, reply) => {
                self.check_answer(node, id, &reply);
                if let Some(link) = link {
                    self.send_reply(link, Way::Up, id, &reply);
                }
            }
        }
    }

    /// A disk's answer must be durable.
    fn check_answer(&mut self, node: usize, id: RequestId, reply: &Reply) {
        let Some(disk) = self.disk(node) else { return };
        let log = &disk.log;
        let wrong = match (disk.pending.remove(&id), reply) {
            (Some(PendingRequest::Demote(stamps)), Reply::Moved(moved)) => {
                let said = stamps.iter().zip(&moved.items).filter(|it| *it.1);
                let wrong = said.map(|it| it.0).find(|it| !log.copies.contains_key(it));
                wrong.map(|it| ("p8", format!("{it:?} is reported as written, but is not durable")))
            }
            (Some(PendingRequest::Retire(stamps)), Reply::Settled(_)) => {
                let is_there = |it: &&Stamp| log.copies.contains_key(it) || log.appending.contains_key(it);
                let wrong = stamps.iter().find(is_there);
                wrong.map(|it| {
                    ("p2", format!("{it:?} is reported as removed, but the removal is not durable"))
                })
            }
            (Some(PendingRequest::SetAttributes(items)), Reply::Settled(_)) => {
                let differs = |item: &&AttributesItem| {
                    log.copies
                        .get(&item.slot_ref.stamp)
                        .is_some_and(|it| it.record.attributes != item.attributes)
                };
                let forgotten = |item: &&AttributesItem| !log.forgetting.contains(&item.slot_ref.stamp);
                let wrong = items.iter().filter(forgotten).find(differs);
                wrong.map(|it| ("p4", format!("{it:?} is reported as written, but is not durable")))
            }
            _ => None,
        };
        if let Some((which, what)) = wrong {
            self.oracle.fail(which, || what);
        }
    }

    /// Informs the oracle of a durable copy.
    fn record_copy(&mut self, segment: SegmentId, record: &Record) {
        let Some(memory) = self.memories.get_mut(&segment) else { return };
        let slot = log::slot(record);
        memory.keep(slot.clone(), record_name(record));
        self.oracle.committed(segment, memory, record.slot_ref.slot, &slot);
    }

    fn begin_append(&mut self, node: usize, source: SlotRef, record: Record) {
        let stamp = record.slot_ref.stamp;
        let need = space_for(record.len).unwrap_or(0);
        let now = self.now;
        let Some(disk) = self.disk(node) else { return };
        let bytes_max = disk.log.capacity / 2;
        if record.len >= bytes_max {
            self.coverage.hit(Point::DemotionRefused);
            return self.queue_disk_event(node, CoreEvent::Refused(stamp, bytes_max));
        }
        let victims = disk.log.victims(need);
        let fits = disk.log.used() + need <= disk.log.capacity || !victims.is_empty();
        let fits = fits && disk.log.full_until <= now;
        if !victims.is_empty() {
            self.disk_evicts(node, victims);
        }
        let Some(core) = self.nodes.get_mut(node).and_then(|it| it.core.as_mut()) else { return };
        let extents = if fits { core.begin_demotion(source, record.len) } else { None };
        let Some(extents) = extents else {
            self.coverage.hit(if fits { Point::DemotionUnsourced } else { Point::DiskFull });
            return self.queue_disk_event(node, CoreEvent::Stored(stamp, false));
        };
        let appending = Appending { source, record, units: all_units(&extents), tags: None };
        if let Some(disk) = self.disk(node) {
            disk.log.appending.insert(stamp, appending);
        }
        self.io(node, DiskEvent::Copied(stamp));
    }

    /// An effect cannot be answered before the following effects are executed.
    fn queue_disk_event(&mut self, node: usize, event: CoreEvent) {
        if let Some(core) = self.disk(node).and_then(|it| it.core.as_mut()) {
            core.handle(event);
        }
    }

    fn disk_evicts(&mut self, node: usize, victims: Vec<Stamp>) {
        self.coverage.hit(Point::DiskEvicted);
        self.remove_copies(node, &victims);
        self.queue_disk_event(node, CoreEvent::Evicted(victims));
    }

    /// Removes copies durably.
    fn remove_copies(&mut self, node: usize, stamps: &[Stamp]) {
        let Some(disk) = self.disk(node) else { return };
        let segment = disk.segment;
        for stamp in stamps {
            disk.log.copies.remove(stamp);
            disk.log.marking.remove(stamp);
        }
        if let Some(memory) = self.memories.get_mut(&segment) {
            stamps.iter().for_each(|stamp| memory.forget(*stamp));
        }
        stamps.iter().for_each(|stamp| self.oracle.disk_removed(segment, SlotRef::on_disk(*stamp)));
    }

    /// The bytes are read, as they are now.
    fn copied(&mut self, node: usize, stamp: Stamp) {
        let Some(shell) = self.nodes.get_mut(node) else { return };
        let (Some(core), Some(disk)) = (shell.core.as_mut(), shell.disk.as_mut()) else { return };
        let Some(appending) = disk.log.appending.get_mut(&stamp) else { return };
        let memory = self.memories.get(&shell.segment);
        let units = std::mem::take(&mut appending.units).into_iter();
        let tags = units.filter_map(|unit| memory?.read_unit(unit)).collect();
        appending.tags = Some(tags);
        let is_current = core.end_demotion(appending.source);
        if !is_current {
            disk.log.appending.remove(&stamp);
        }
        self.drain_node(node);
        match is_current {
            true => self.io(node, DiskEvent::Appended(stamp)),
            false => {
                self.coverage.hit(Point::DemotionUnsourced);
                self.disk_handles(node, CoreEvent::Stored(stamp, false));
            }
        }
    }

    fn appended(&mut self, node: usize, stamp: Stamp) {
        let now = self.now;
        let Some(disk) = self.disk(node) else { return };
        let segment = disk.segment;
        let Some(appending) = disk.log.appending.remove(&stamp) else { return };
        let done = disk.log.fails_until <= now;
        if done {
            let record = appending.record.clone();
            let copies =
                DiskCopy { record: record.clone(), tags: appending.tags.unwrap_or_default(), flipped: false };
            disk.log.copies.insert(stamp, copies);
            self.record_copy(segment, &record);
        }
        self.coverage.hit(if done { Point::Demoted } else { Point::DemotionFailed });
        self.disk_handles(node, CoreEvent::Stored(stamp, done));
    }

    fn forgotten(&mut self, node: usize, stamps: Vec<Stamp>) {
        let Some(disk) = self.disk(node) else { return };
        stamps.iter().for_each(|stamp| _ = disk.log.forgetting.remove(stamp));
        self.coverage.hit(Point::DiskForgot);
        self.remove_copies(node, &stamps);
        self.disk_handles(node, CoreEvent::Forgotten(stamps));
    }

    fn begin_load(&mut self, node: usize, stamp: Stamp, len: u64, into: SlotRef) {
        let Some(shell) = self.nodes.get_mut(node) else { return };
        let segment = shell.segment;
        let extents = shell.core.as_mut().and_then(|it| it.begin_store(ClientId::PROMOTER, into, 0, len));
        let Some(disk) = shell.disk.as_mut() else { return };
        let from = (disk.segment, SlotRef::on_disk(stamp));
        let Some(extents) = extents else {
            self.coverage.hit(Point::PromotionFailed);
            return self.queue_disk_event(node, CoreEvent::Loaded(into, false));
        };
        disk.log.loading.insert(into, Loading { stamp, units: all_units(&extents), done: 0 });
        if let Some(value) = self.oracle.written.get(&from).copied() {
            self.oracle.will_write(segment, into, value);
        }
        self.io(node, DiskEvent::Load(into));
    }

    /// Writes a few more units of a copy into memory, if it is still intact.
    fn load_units(&mut self, node: usize, into: SlotRef) {
        let pace = self.rng.between(1, 4) as usize;
        let now = self.now;
        let Some(shell) = self.nodes.get_mut(node) else { return };
        let (segment, Some(disk)) = (shell.segment, shell.disk.as_mut()) else { return };
        let Some(loading) = disk.log.loading.get_mut(&into) else { return };
        let Some(memory) = self.memories.get_mut(&segment) else { return };
        let (stamp, fails) = (loading.stamp, disk.log.fails_until > now);
        let copies = disk.log.copies.get(&stamp);
        let flipped = copies.is_some_and(|it| it.flipped);
        let whole = copies.filter(|it| !it.flipped && !fails);
        let first = loading.done;
        for place in first..(first + pace).min(loading.units.len()) {
            let Some(&unit) = loading.units.get(place) else { break };
            // A device returns arbitrary bytes before it reports an error.
            let tag = whole.and_then(|it| it.tags.get(place)).copied().unwrap_or_default();
            self.oracle.writes(memory, unit, into, &mut self.coverage);
            memory.write_unit(unit, tag);
            loading.done += 1;
        }
        let done = loading.done >= loading.units.len();
        if whole.is_some() && !done {
            return self.io(node, DiskEvent::Load(into));
        }
        let done = whole.is_some();
        disk.log.loading.remove(&into);
        self.coverage.hit(if done { Point::Promoted } else { Point::PromotionFailed });
        if let Some(core) = self.nodes.get_mut(node).and_then(|it| it.core.as_mut()) {
            core.end_store(into);
        }
        self.drain_node(node);
        self.disk_handles(node, CoreEvent::Loaded(into, done));
        if flipped && !fails {
            self.is_corrupt(node, stamp);
        }
    }

    fn is_corrupt(&mut self, node: usize, stamp: Stamp) {
        self.coverage.hit(Point::DiskCorrupt);
        self.remove_copies(node, &[stamp]);
        self.disk_handles(node, CoreEvent::Corrupt(stamp));
    }

    /// A client requests a piece of a copy.
    pub(crate) fn disk_chunk(&mut self, node: usize, id: TransferId) {
        let reading = self.rng.delay(6, 60);
        let Some(transfer) = self.transfers.get(&id) else { return };
        match self.disk_readable(node, transfer.slot_ref.stamp, transfer.is_cached()) == Some(transfer.len) {
            true => self.node_at(reading, node, NodeEvent::ChunkDone(id)),
            false => self.end_socket(node, id, Ended::Stale),
        }
    }

    /// The piece was read: it is valid if the copy was readable before and after.
    pub(crate) fn disk_chunk_done(&mut self, node: usize, id: TransferId) {
        let now = self.now;
        let Some(transfer) = self.transfers.get(&id) else { return };
        let (stamp, len, is_cached) = (transfer.slot_ref.stamp, transfer.len, transfer.is_cached());
        let is_current = self.disk_readable(node, stamp, is_cached) == Some(len);
        let Some(disk) = self.disk(node) else { return };
        let fails = disk.log.fails_until > now;
        let copies = disk.log.copies.get(&stamp).map(|it| (it.tags.clone(), it.flipped));
        match copies {
            _ if fails => {
                self.coverage.hit(Point::DiskReadFailed);
                self.end_socket(node, id, Ended::Unreachable);
            }
            Some((_, true)) => {
                self.end_socket(node, id, Ended::Unreachable);
                self.is_corrupt(node, stamp);
            }
            Some((tags, false)) if is_current => {
                self.coverage.hit(Point::DiskRead);
                self.has_read(id, tags, len.div_ceil(EXTENT_ALIGN) as u32);
                self.end_socket(node, id, Ended::Whole);
            }
            _ => {
                self.coverage.hit(Point::DiskReadStale);
                self.end_socket(node, id, Ended::Stale);
            }
        }
    }

    fn disk_readable(&self, node: usize, stamp: Stamp, is_cached: bool) -> Option<u64> {
        let disk = self.nodes.get(node)?.disk.as_ref()?;
        disk.core.as_ref()?.readable(stamp, is_cached.then_some(disk.log.epoch))
    }
}

/// The same for every process of the node: the disk is the same.
fn disk_name(node: usize) -> String {
    format!("d{node}")
}
