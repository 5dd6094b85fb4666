//! The disk tier. P8: a copy that was reported as written survives a crash. T12, T14, T16: a probe promotes
//! what it should, and neither changes nor evicts anything else. A put that may wait loses nothing. Objects
//! with `Demotion::Never` stay off disks.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_core::master::{Effect, Notice, Saved};
use tiffin_types::{
    ConnId, Generation, RequestId, SegmentId, SlotRef, Tick,
    message::{
        Ahead, ClientToMaster, DemoteItem, Demotion, Dropped, MasterToMember, Policy, PolicyChange, Presence,
        Record, Reply, TierStat,
    },
};

use crate::{
    coverage::{Coverage, Point},
    keyspace::{self, Name},
    oracle::Oracle,
    world::World,
};

/// How long an object that a disk refused is not offered to it again.
const REFUSED_MS: u64 = 60_000;
/// How long a failed disk is not written to.
const REST_MS: u64 = 1000;

/// State of disks in this epoch of the master, as far as the master knows it.
#[derive(Debug, Default)]
pub(crate) struct TierState {
    /// The memory of each disk's node. Survives the master.
    beside: BTreeMap<SegmentId, SegmentId>,
    /// Copies that are being written.
    pending: BTreeSet<(SegmentId, SlotRef)>,
    /// Readable copies on disks.
    disk_copies: BTreeMap<Generation, BTreeSet<(SegmentId, SlotRef)>>,
    /// Copies that disks removed themselves.
    removed: BTreeSet<(SegmentId, SlotRef)>,
    demoting: BTreeMap<(ConnId, RequestId), (SegmentId, Vec<SlotRef>)>,
    settling: BTreeMap<(ConnId, RequestId), (SegmentId, SlotRef, Generation)>,
    /// Namespaces with a demotion policy or a quota.
    policies: BTreeMap<u8, Policy>,
    /// The namespace whose limits were changed, until they are compared.
    changed: Option<u8>,
    /// Until when disks are not written to.
    rest_until: BTreeMap<SegmentId, Tick>,
    /// Objects that a disk refused, and until when they are not offered again.
    refused: BTreeMap<(SegmentId, Generation), Tick>,
    /// Copies of other members, which are not protected.
    fetched: BTreeSet<(SegmentId, SlotRef)>,
    protect_ms: u64,
    /// Promoted objects that were not read since, and until when they are protected.
    protected_until: BTreeMap<Generation, Tick>,
}

/// Effects of a probe, from its request to its answer.
#[derive(Debug, Default)]
pub(crate) struct Probe {
    names: Vec<Name>,
    ahead: Ahead,
    /// It neither touches nor leases.
    is_pure: bool,
    /// Whether it counts as a read.
    is_read: bool,
    /// Which of the objects had been read before.
    read: Vec<bool>,
    before: Vec<Option<(Tick, Tick)>>,
    begun: u64,
    evicted: Vec<Generation>,
    answer: Option<Vec<Presence>>,
    /// The master's counters before the probe.
    counted: TierStat,
}

impl TierState {
    /// A restarted master knows none of this, except the saved limits.
    pub(crate) fn restart(&mut self, protect_ms: u64, state: &Saved) {
        let beside = std::mem::take(&mut self.beside);
        let removed = std::mem::take(&mut self.removed);
        let saved = state.policies.iter();
        let policies =
            saved.filter_map(|it| Some((keyspace::namespace(it.namespace.as_bytes())?, it.policy.clone())));
        *self = Self { beside, removed, protect_ms, policies: policies.collect(), ..Self::default() };
    }

    /// The limits of a namespace, as clients set them last.
    pub(crate) fn policy(&self, namespace: u8) -> Policy {
        self.policies.get(&namespace).cloned().unwrap_or_default()
    }

    pub(crate) fn is_disk(&self, segment: SegmentId) -> bool {
        self.beside.contains_key(&segment)
    }

    /// Whether the master knows a copy on a disk.
    pub(crate) fn has_disk_copy(&self, generation: Generation) -> bool {
        self.disk_copies.get(&generation).is_some_and(|it| !it.is_empty())
    }

    /// Whether the disk was asked on an open connection to write that copy, and has not answered.
    fn is_demoting(&self, through: Option<&ConnId>, slot_ref: SlotRef) -> bool {
        let mut demoting = self.demoting.iter();
        demoting.any(|((conn, _), (_, slot_refs))| Some(conn) == through && slot_refs.contains(&slot_ref))
    }

    /// Whether a copy is being written, or was, without the master's knowledge.
    pub(crate) fn is_pending(&self, place: (SegmentId, SlotRef)) -> bool {
        self.pending.contains(&place)
    }

    /// The master removes a copy, or learns that it is gone; `true` if it was only being written.
    pub(crate) fn leaves(&mut self, place: (SegmentId, SlotRef)) -> bool {
        self.disk_copies.values_mut().for_each(|it| _ = it.remove(&place));
        self.pending.remove(&place)
    }

    /// The object is deleted, also on disks that will learn of it after they return.
    pub(crate) fn forget(&mut self, generation: Generation) {
        self.disk_copies.remove(&generation);
    }

    /// A node or disk is lost.
    pub(crate) fn lost(&mut self, segment: SegmentId) {
        self.pending.retain(|it| it.0 != segment);
        self.disk_copies.values_mut().for_each(|of| of.retain(|it| it.0 != segment));
        self.refused.retain(|(disk, _), _| *disk != segment);
    }

    /// The master learns of a readable copy.
    pub(crate) fn arrives(&mut self, place: (SegmentId, SlotRef), generation: Generation) {
        self.pending.remove(&place);
        if self.is_disk(place.0) {
            self.disk_copies.entry(generation).or_default().insert(place);
        }
    }

    /// A client changes limits. Unnamed limits stay.
    pub(crate) fn change_policy(&mut self, namespace: u8, change: &PolicyChange) {
        let policy = self.policies.entry(namespace).or_default();
        if !change.keep_quota {
            policy.quota = change.quota;
        }
        if !change.keep_max_hold {
            policy.max_hold_ms = change.max_hold_ms;
        }
        if !change.keep_demotion {
            policy.demotion = change.demotion;
        }
        self.changed = Some(namespace);
    }

    /// The namespace whose limits the last request changed, and its limits now.
    pub(crate) fn take_changed_policy(&mut self) -> Option<(u8, Policy)> {
        let namespace = self.changed.take()?;
        Some((namespace, self.policies.get(&namespace).cloned().unwrap_or_default()))
    }

    fn demotion(&self, namespace: u8) -> Demotion {
        self.policies.get(&namespace).and_then(|it| it.demotion).unwrap_or_default()
    }
}

impl Oracle {
    /// A disk restarts: every copy that was reported as written must be there.
    pub(crate) fn disk_starts(
        &mut self,
        disk: SegmentId,
        memory: SegmentId,
        records: &[Record],
        coverage: &mut Coverage,
    ) {
        self.tier.beside.insert(disk, memory);
        let said = self.tier.disk_copies.values().flatten().filter(|it| it.0 == disk);
        let gone = |it: &&(SegmentId, SlotRef)| self.tier.removed.contains(it) || self.retired.contains(it);
        let said: Vec<_> = said.filter(|it| !gone(it)).copied().collect();
        for place in said {
            coverage.hit(Point::CheckedSurvival);
            if !records.iter().any(|it| it.slot_ref == place.1) {
                self.fail("p8", || {
                    format!("{place:?} was reported as written to its disk, but did not survive")
                });
            }
        }
    }

    /// A disk removed a copy durably.
    pub(crate) fn disk_removed(&mut self, disk: SegmentId, slot_ref: SlotRef) {
        self.tier.removed.insert((disk, slot_ref));
    }

    /// The master demotes objects.
    pub(crate) fn demotes(
        &mut self,
        to: (ConnId, RequestId),
        now: Tick,
        disk: SegmentId,
        items: &[DemoteItem],
    ) {
        let memory = self.tier.beside.get(&disk).copied().unwrap_or_default();
        for DemoteItem { source, record } in items {
            if let Some(value) = self.written.get(&(memory, *source)).copied() {
                self.written.insert((disk, record.slot_ref), value);
            }
            self.tier.pending.insert((disk, record.slot_ref));
            self.generation_of.insert((disk, record.slot_ref), record.generation);
            let namespace = keyspace::namespace(record.namespace.as_bytes()).unwrap_or(0);
            if self.tier.demotion(namespace) == Demotion::Never {
                let key = record.key.clone();
                self.fail("tier", || format!("{key:?} is demoted, although its namespace forbids it"));
            }
            let refused = self.tier.refused.get(&(disk, record.generation));
            if refused.is_some_and(|until| *until > now) {
                let key = record.key.clone();
                self.fail("tier", || format!("{key:?} is offered to a disk that refused it recently"));
            }
            if record.attributes.sample.is_some() {
                let key = record.key.clone();
                self.fail("tier", || format!("{key:?} is a sample, but is demoted"));
            }
        }
        let slot_refs = items.iter().map(|it| it.record.slot_ref).collect();
        self.tier.demoting.insert(to, (disk, slot_refs));
    }

    /// The master promotes a copy into a reservation.
    pub(crate) fn promotes(&mut self, disk: SegmentId, into: SlotRef) {
        let memory = self.tier.beside.get(&disk).copied().unwrap_or_default();
        self.tier.pending.insert((memory, into));
    }

    /// The master has a node read a copy of another member into a reservation.
    pub(crate) fn fetches(&mut self, node: SegmentId, into: SlotRef) {
        self.tier.pending.insert((node, into));
        self.tier.fetched.insert((node, into));
    }

    /// The master settles a reservation.
    pub(crate) fn settles_promotion(&mut self, to: (ConnId, RequestId), node: SegmentId, record: &Record) {
        if self.tier.pending.contains(&(node, record.slot_ref)) {
            self.tier.settling.insert(to, (node, record.slot_ref, record.generation));
        }
    }

    /// A reservation is aborted.
    pub(crate) fn gives_back(&mut self, node: SegmentId, slot_ref: SlotRef) {
        self.tier.pending.remove(&(node, slot_ref));
    }

    /// The master is about to receive an answer.
    pub(crate) fn on_answer(&mut self, to: (ConnId, RequestId), now: Tick, reply: &Reply) {
        if let (Some((disk, slot_refs)), Reply::Moved(moved)) = (self.tier.demoting.remove(&to), reply) {
            let mut refused = moved.bytes_max.iter().map(|bytes_max| *bytes_max > 0);
            for (slot_ref, done) in slot_refs.into_iter().zip(&moved.items) {
                // A refusal says nothing about the other objects.
                let refused = refused.next().unwrap_or(false);
                let place = (disk, slot_ref);
                let generation = self.generation_of.get(&place).copied().unwrap_or_default();
                if !*done {
                    match refused {
                        true => self.tier.refused.insert((disk, generation), now.after(REFUSED_MS)),
                        false => self.tier.rest_until.insert(disk, now.after(REST_MS)),
                    };
                    self.tier.pending.remove(&place);
                } else if self.tier.pending.contains(&place) {
                    self.tier.arrives(place, generation);
                }
            }
        }
        if let (Some((node, slot_ref, generation)), Reply::Settled(settled)) =
            (self.tier.settling.remove(&to), reply)
        {
            // A copy that could not be settled is still to be removed.
            let is_settled = !settled.lost.contains(&slot_ref) && self.tier.pending.remove(&(node, slot_ref));
            if is_settled && !self.tier.fetched.remove(&(node, slot_ref)) {
                let until = now.after(self.tier.protect_ms);
                self.tier.protected_until.insert(generation, until);
            }
        }
    }

    /// An object is evicted from a node's memory: a promoted and unread one only if nothing else may be.
    pub(crate) fn evicted_protected(&mut self, now: Tick, generation: Generation, others: u64) {
        let until = self.tier.protected_until.remove(&generation);
        let has_quota = self.tier.policies.values().any(|it| it.quota.is_some());
        if until.is_some_and(|it| it > now) && others > 0 && !has_quota {
            let name = self.objects.get(&generation).map(|it| it.name);
            self.fail("p4", || {
                format!("{name:?} was promoted, but evicted before {until:?}: {others} others may be")
            });
        }
    }

    /// An object is evicted while a disk reads it, which frees no memory: wrong if anything else may be
    /// evicted. Evictions for a quota are exempt.
    pub(crate) fn evicted_demoting(
        &mut self,
        generation: Generation,
        is_read: bool,
        others: u64,
        coverage: &mut Coverage,
    ) {
        coverage.hit(Point::CheckedDemoting);
        let has_quota = self.tier.policies.values().any(|it| it.quota.is_some());
        if is_read && others > 0 && !has_quota {
            let name = self.objects.get(&generation).map(|it| it.name);
            self.fail("p5", || format!("{name:?} was evicted while a disk read it: {others} others may be"));
        }
    }

    /// A client learned an object's location, and may have read it: its protection ends.
    pub(crate) fn end_protection(&mut self, generation: Generation) {
        self.tier.protected_until.remove(&generation);
    }

    /// A disk reports removed copies.
    pub(crate) fn on_dropped(&mut self, disk: SegmentId, dropped: &Dropped) {
        for record in &dropped.items {
            self.tier.leaves((disk, record.slot_ref));
        }
    }

    /// An object is evicted for a put that may wait: wrong if its disk could have stored it first.
    pub(crate) fn evicted_for_waiting_put(
        &mut self,
        now: Tick,
        generation: Generation,
        disks: &[(SegmentId, SegmentId, u64)],
        memory: SegmentId,
    ) {
        let Some((name, value)) = self.objects.get(&generation).map(|it| (it.name, it.value)) else { return };
        let len = value.and_then(|it| self.value(it)).map_or(u64::MAX, |it| it.len);
        let rests = |disk: &SegmentId| self.tier.rest_until.get(disk).is_some_and(|it| *it > now);
        let mut able = disks.iter().filter(|(disk, beside, _)| *beside == memory && !rests(disk));
        let has_room = able.any(|(_, _, capacity)| len < capacity / 2);
        let has_quota = self.tier.policies.values().any(|it| it.quota.is_some());
        let never = self.tier.demotion(name.namespace) == Demotion::Never;
        if !has_room || has_quota || never {
            return;
        }
        self.fail("p5", || {
            format!("{name:?} {generation} was evicted for a put that could wait for the disk")
        });
    }
}

impl World {
    /// A probe arrives. Its side effects are checked when it is answered.
    pub(crate) fn begin_probe(&mut self, namespace: u8, request: &ClientToMaster) {
        let (names, ahead, touch, lease) = match request {
            ClientToMaster::Exists(it) => {
                let names: Vec<_> = it.keys.iter().filter_map(|it| Name::of(namespace, it)).collect();
                (names, it.ahead, it.touch, it.lease)
            }
            // A lookup without a read is not a use.
            ClientToMaster::Resolve(it) => {
                let names = it.keys.iter().filter_map(|it| Name::of(namespace, it)).collect();
                (names, Ahead::Nothing, it.touch, it.lease)
            }
            _ => return,
        };
        let is_pure = !touch && !lease;
        let mut probe = Probe { names, ahead, is_pure, is_read: touch, ..Probe::default() };
        probe.before = self.uses(&probe.names);
        probe.read = self.were_read(&probe.names);
        probe.counted = self.counted();
        self.probe = Some(probe);
    }

    /// Records effects of the master during the probe.
    pub(crate) fn record_probe(&mut self, effect: &Effect, segment: Option<SegmentId>) {
        let Some(probe) = self.probe.as_mut().filter(|it| it.answer.is_none()) else { return };
        match effect {
            Effect::Notice(Notice::Prefetched { resident, running, failed, .. }) => {
                probe.begun = resident + running + failed;
            }
            Effect::Ask(_, _, MasterToMember::Retire(retire)) => {
                let generation = |slot_ref: &SlotRef| {
                    self.oracle.generation_of.get(&(segment.unwrap_or_default(), *slot_ref)).copied()
                };
                probe.evicted.extend(retire.slot_refs.iter().filter_map(generation));
            }
            Effect::Reply(_, _, Reply::Present(items)) => probe.answer = Some(items.clone()),
            Effect::Reply(_, _, Reply::Resolved(_)) => probe.answer = Some(Vec::new()),
            _ => (),
        }
    }

    pub(crate) fn end_probe(&mut self) {
        let Some(probe) = self.probe.take() else { return };
        let Some(answer) = probe.answer else { return };
        let now = self.peek_clock();
        let run = answer.iter().position(|it| *it != Presence::Here).unwrap_or(answer.len()) as u64;
        if probe.ahead == Ahead::LeadingRun {
            self.coverage.hit(Point::CheckedLeadingRun);
            if probe.begun > run {
                let begun = probe.begun;
                self.oracle
                    .fail("t12", || format!("{begun} keys are promoted, of {run} before the first gap"));
            }
        }
        for generation in &probe.evicted {
            let Some(name) = self.oracle.objects.get(generation).map(|it| it.name) else { continue };
            self.coverage.hit(Point::CheckedCold);
            let Some(master) = &self.master else { continue };
            // An object that was only written is not hot.
            let read = master.last_read(keyspace::namespace_name(name.namespace), &name.key());
            let Some(touched) = read else { continue };
            if touched.after(self.plan.tier.protect_ms) > now {
                let what = || format!("{name:?} was used at {touched:?}, but evicted at {now:?}");
                return self.oracle.fail("t16", what);
            }
        }
        let (read, after) = (self.were_read(&probe.names), self.uses(&probe.names));
        // The TTL of an object may be over, or its last node be lost: the request removes it first.
        let exists = |at: usize| after.get(at).is_some_and(Option::is_some);
        let mut reads = read.iter().zip(&probe.read).enumerate();
        if !probe.is_read && reads.any(|(at, (read, before))| exists(at) && read != before) {
            let before = &probe.read;
            self.oracle.fail("t14", || format!("a question without a read made {read:?} of {before:?}"));
        }
        if probe.is_pure {
            self.coverage.hit(Point::CheckedProbe);
            let counted = self.counted();
            if probe.ahead == Ahead::Nothing && probe.counted != counted {
                let before = probe.counted;
                self.oracle
                    .fail("t14", || format!("a probe changed the counters from {before:?} to {counted:?}"));
            }
            let has_changed =
                after.iter().zip(&probe.before).any(|(after, before)| after.is_some() && after != before);
            if has_changed {
                let before = probe.before;
                self.oracle.fail("t14", || format!("a probe changed last uses from {before:?} to {after:?}"));
            }
        }
    }

    /// The master's counters of gets and promotions.
    fn counted(&self) -> TierStat {
        let all = self.master.as_ref().map(|it| *it.stat().tier).unwrap_or_default();
        let TierStat { gets_from_memory, gets_from_disk, gets_from_far_disk, .. } = all;
        let TierStat { promoted_used, prefetch_redundant, prefetch_joined, .. } = all;
        TierStat {
            gets_from_memory,
            gets_from_disk,
            gets_from_far_disk,
            promoted_used,
            prefetch_redundant,
            prefetch_joined,
            ..TierStat::default()
        }
    }

    fn uses(&self, names: &[Name]) -> Vec<Option<(Tick, Tick)>> {
        let Some(master) = &self.master else { return Vec::new() };
        let last = |it: &Name| master.last_use(keyspace::namespace_name(it.namespace), &it.key());
        names.iter().map(last).collect()
    }

    /// Whether the master knows of a read of each object.
    fn were_read(&self, names: &[Name]) -> Vec<bool> {
        let Some(master) = &self.master else { return Vec::new() };
        let read = |it: &Name| master.last_read(keyspace::namespace_name(it.namespace), &it.key());
        names.iter().map(|it| read(it).is_some()).collect()
    }

    /// The consistency of the master's tier state.
    pub(crate) fn check_tier(&mut self) {
        let Some(master) = &self.master else { return };
        if let Err(what) = master.check() {
            self.oracle.fail("tier", || what);
        }
    }

    /// Whether the master knows that a disk is reading a copy in memory.
    pub(crate) fn is_read_by_a_disk(&self, memory: SegmentId, slot_ref: SlotRef) -> bool {
        let Some(shell) = self.node_of(memory).and_then(|it| self.nodes.get(it)) else { return false };
        let Some(disk) = &shell.disk else { return false };
        let mut appending = disk.log.appending.values();
        appending.any(|it| {
            let through = self.registered.get(&disk.segment);
            let is_known = self.oracle.tier.is_demoting(through, it.record.slot_ref);
            it.source == slot_ref && it.tags.is_none() && is_known
        })
    }

    /// The disks that the master can write to, the memory of their nodes, and their capacity.
    pub(crate) fn ready_disks(&self) -> Vec<(SegmentId, SegmentId, u64)> {
        let Some(master) = &self.master else { return Vec::new() };
        let nodes = master.stat().nodes;
        let disks = nodes.iter().filter(|it| it.alive);
        disks.filter_map(|it| Some((it.info.segment, it.info.beside?, it.usage.capacity))).collect()
    }
}
