//! The tier below memory. P8: what was said to be on a disk is there after a crash. T12, T14, T16: a probe
//! brings what it should, and changes and drives out nothing. A put that may wait loses nothing. Nothing goes
//! to disks that is to keep off them.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_core::{
    ConnId, Generation, Hold, RequestId, SegmentId, Tick,
    master::{Effect, Notice, Saved},
    message::{
        Ahead, ClientToMaster, DemoteItem, Demotion, Dropped, MasterToMember, Policy, PolicyChange, Presence,
        Record, Reply, TierStat,
    },
};

use crate::{
    coverage::{Coverage, Point},
    names::{self, Name},
    oracle::Oracle,
    world::World,
};

/// How long an object that a disk refused is not offered to it again.
const REFUSED_MS: u64 = 60_000;
/// How long a disk that failed is not written to.
const REST_MS: u64 = 1000;

/// What the oracle knows of disks, all of it in this life of the master, as far as that has heard.
#[derive(Debug, Default)]
pub(crate) struct Shelving {
    /// The memory beside each disk. Outlives the master.
    beside: BTreeMap<SegmentId, SegmentId>,
    /// Copies that are being written.
    pending: BTreeSet<(SegmentId, Hold)>,
    /// Copies on disks that can be read.
    shelved: BTreeMap<Generation, BTreeSet<(SegmentId, Hold)>>,
    /// What disks have let go of themselves, for ever.
    let_go: BTreeSet<(SegmentId, Hold)>,
    demoting: BTreeMap<(ConnId, RequestId), (SegmentId, Vec<Hold>)>,
    settling: BTreeMap<(ConnId, RequestId), (SegmentId, Hold, Generation)>,
    /// Namespaces that say something about disks, or have a quota.
    policies: BTreeMap<u8, Policy>,
    /// The namespace whose limits were changed, until they have been compared.
    changed: Option<u8>,
    /// Disks that are not written to until then.
    rest_until: BTreeMap<SegmentId, Tick>,
    /// Objects that a disk refused, and until when they are not offered to it again.
    refused: BTreeMap<(SegmentId, Generation), Tick>,
    protect_ms: u64,
    /// What was brought into memory, was not asked for since, and is kept until then.
    shields: BTreeMap<Generation, Tick>,
}

/// What a probe does to others, from when it is heard until it is answered.
#[derive(Debug, Default)]
pub(crate) struct Probe {
    names: Vec<Name>,
    ahead: Ahead,
    /// Nothing but the question counts.
    is_mere: bool,
    before: Vec<Option<(Tick, Tick)>>,
    begun: u64,
    evicted: Vec<Generation>,
    answer: Option<Vec<Presence>>,
    /// What the master has counted before.
    counted: TierStat,
}

impl Shelving {
    /// Another life of the master knows nothing of this, but for the limits that were saved.
    pub(crate) fn restart(&mut self, protect_ms: u64, state: &Saved) {
        let beside = std::mem::take(&mut self.beside);
        let let_go = std::mem::take(&mut self.let_go);
        let saved = state.policies.iter();
        let policies =
            saved.filter_map(|it| Some((names::namespace(it.namespace.as_bytes())?, it.policy.clone())));
        *self = Self { beside, let_go, protect_ms, policies: policies.collect(), ..Self::default() };
    }

    /// The limits of a namespace, as clients named them last.
    pub(crate) fn policy(&self, namespace: u8) -> Policy {
        self.policies.get(&namespace).cloned().unwrap_or_default()
    }

    pub(crate) fn is_disk(&self, segment: SegmentId) -> bool {
        self.beside.contains_key(&segment)
    }

    /// Whether a disk has it that the master knows of.
    pub(crate) fn is_shelved(&self, generation: Generation) -> bool {
        self.shelved.get(&generation).is_some_and(|it| !it.is_empty())
    }

    /// Whether the disk was asked to write that copy, on a connection that stands, and has not answered.
    fn is_demoting(&self, through: Option<&ConnId>, hold: Hold) -> bool {
        let mut demoting = self.demoting.iter();
        demoting.any(|((conn, _), (_, holds))| Some(conn) == through && holds.contains(&hold))
    }

    /// Whether a copy is being written, or was, and the master has not heard that it is there.
    pub(crate) fn is_pending(&self, place: (SegmentId, Hold)) -> bool {
        self.pending.contains(&place)
    }

    /// The master takes a copy away, or has heard that it is gone; `true` if it was only being written.
    pub(crate) fn leaves(&mut self, place: (SegmentId, Hold)) -> bool {
        self.shelved.values_mut().for_each(|it| _ = it.remove(&place));
        self.pending.remove(&place)
    }

    /// The object is deleted, also on disks that will hear of that when they are back.
    pub(crate) fn forget(&mut self, generation: Generation) {
        self.shelved.remove(&generation);
    }

    /// A node or disk is lost.
    pub(crate) fn lost(&mut self, segment: SegmentId) {
        self.pending.retain(|it| it.0 != segment);
        self.shelved.values_mut().for_each(|of| of.retain(|it| it.0 != segment));
        self.refused.retain(|(disk, _), _| *disk != segment);
    }

    /// The master knows of a copy that can be read.
    pub(crate) fn arrives(&mut self, place: (SegmentId, Hold), generation: Generation) {
        self.pending.remove(&place);
        if self.is_disk(place.0) {
            self.shelved.entry(generation).or_default().insert(place);
        }
    }

    /// A client changes limits. A limit that it does not name stays.
    pub(crate) fn changes_policy(&mut self, namespace: u8, change: &PolicyChange) {
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

    /// The namespace whose limits the last request changed, and what they are now.
    pub(crate) fn take_changed_policy(&mut self) -> Option<(u8, Policy)> {
        let namespace = self.changed.take()?;
        Some((namespace, self.policies.get(&namespace).cloned().unwrap_or_default()))
    }

    fn demotion(&self, namespace: u8) -> Demotion {
        self.policies.get(&namespace).and_then(|it| it.demotion).unwrap_or_default()
    }
}

impl Oracle {
    /// A disk is found as it was left: all that was said to be there is there.
    pub(crate) fn disk_starts(
        &mut self,
        disk: SegmentId,
        memory: SegmentId,
        records: &[Record],
        coverage: &mut Coverage,
    ) {
        self.shelving.beside.insert(disk, memory);
        let said = self.shelving.shelved.values().flatten().filter(|it| it.0 == disk);
        let gone = |it: &&(SegmentId, Hold)| self.shelving.let_go.contains(it) || self.retired.contains(it);
        let said: Vec<_> = said.filter(|it| !gone(it)).copied().collect();
        for place in said {
            coverage.hit(Point::CheckedSurvival);
            if !records.iter().any(|it| it.hold == place.1) {
                self.fail("p8", || format!("{place:?} was said to be on its disk, and did not survive"));
            }
        }
    }

    /// A disk has let go of a copy for good.
    pub(crate) fn disk_lets_go(&mut self, disk: SegmentId, hold: Hold) {
        self.shelving.let_go.insert((disk, hold));
    }

    /// Objects are to be written to a disk.
    pub(crate) fn demotes(
        &mut self,
        to: (ConnId, RequestId),
        now: Tick,
        disk: SegmentId,
        items: &[DemoteItem],
    ) {
        let memory = self.shelving.beside.get(&disk).copied().unwrap_or_default();
        for DemoteItem { source, record } in items {
            if let Some(value) = self.written.get(&(memory, *source)).copied() {
                self.written.insert((disk, record.hold), value);
            }
            self.shelving.pending.insert((disk, record.hold));
            self.generation_of.insert((disk, record.hold), record.generation);
            let namespace = names::namespace(record.namespace.as_bytes()).unwrap_or(0);
            if self.shelving.demotion(namespace) == Demotion::Never {
                let key = record.key.clone();
                self.fail("tier", || format!("{key:?} goes to a disk, and is to keep off them"));
            }
            let refused = self.shelving.refused.get(&(disk, record.generation));
            if refused.is_some_and(|until| *until > now) {
                let key = record.key.clone();
                self.fail("tier", || format!("{key:?} is offered to a disk that has just refused it"));
            }
            if record.marks.sample.is_some() {
                let key = record.key.clone();
                self.fail("tier", || format!("{key:?} is a sample, and goes to a disk"));
            }
        }
        let holds = items.iter().map(|it| it.record.hold).collect();
        self.shelving.demoting.insert(to, (disk, holds));
    }

    /// A copy is to be read into a reservation.
    pub(crate) fn promotes(&mut self, disk: SegmentId, into: Hold) {
        let memory = self.shelving.beside.get(&disk).copied().unwrap_or_default();
        self.shelving.pending.insert((memory, into));
    }

    /// A node is told what a reservation has become.
    pub(crate) fn settles_promotion(&mut self, to: (ConnId, RequestId), node: SegmentId, record: &Record) {
        if self.shelving.pending.contains(&(node, record.hold)) {
            self.shelving.settling.insert(to, (node, record.hold, record.generation));
        }
    }

    /// A reservation is given back.
    pub(crate) fn gives_back(&mut self, node: SegmentId, hold: Hold) {
        self.shelving.pending.remove(&(node, hold));
    }

    /// The master is about to hear an answer.
    pub(crate) fn hears_answer(&mut self, to: (ConnId, RequestId), now: Tick, reply: &Reply) {
        if let (Some((disk, holds)), Reply::Moved(moved)) = (self.shelving.demoting.remove(&to), reply) {
            let mut refused = moved.bytes_max.iter().map(|bytes_max| *bytes_max > 0);
            for (hold, done) in holds.into_iter().zip(&moved.items) {
                // One that is refused says nothing about the others.
                let refused = refused.next().unwrap_or(false);
                let place = (disk, hold);
                let generation = self.generation_of.get(&place).copied().unwrap_or_default();
                if !*done {
                    match refused {
                        true => self.shelving.refused.insert((disk, generation), now.after(REFUSED_MS)),
                        false => self.shelving.rest_until.insert(disk, now.after(REST_MS)),
                    };
                    self.shelving.pending.remove(&place);
                } else if self.shelving.pending.contains(&place) {
                    self.shelving.arrives(place, generation);
                }
            }
        }
        if let (Some((node, hold, generation)), Reply::Settled(settled)) =
            (self.shelving.settling.remove(&to), reply)
        {
            // What could not be settled is still to be taken away.
            let came = !settled.lost.contains(&hold) && self.shelving.pending.remove(&(node, hold));
            if came {
                let until = now.after(self.shelving.protect_ms);
                self.shelving.shields.insert(generation, until);
            }
        }
    }

    /// An object leaves the memory of a node: what was brought and not read only if nothing else may.
    pub(crate) fn leaves_shielded(&mut self, now: Tick, generation: Generation, others: u64) {
        let until = self.shelving.shields.remove(&generation);
        let rationed = self.shelving.policies.values().any(|it| it.quota.is_some());
        if until.is_some_and(|it| it > now) && others > 0 && !rationed {
            let name = self.lives.get(&generation).map(|it| it.name);
            self.fail("p4", || {
                format!("{name:?} was brought, and left before {until:?}: {others} others may")
            });
        }
    }

    /// An object leaves the memory of a node while a disk reads it, or not: that makes no memory available,
    /// so nothing else may leave. What a quota calls for is another matter.
    pub(crate) fn leaves_demoting(
        &mut self,
        generation: Generation,
        is_read: bool,
        others: u64,
        coverage: &mut Coverage,
    ) {
        coverage.hit(Point::CheckedDemoting);
        let rationed = self.shelving.policies.values().any(|it| it.quota.is_some());
        if is_read && others > 0 && !rationed {
            let name = self.lives.get(&generation).map(|it| it.name);
            self.fail("p5", || {
                format!("{name:?} was evicted while a disk read it: {others} others may leave")
            });
        }
    }

    /// Somebody was told where an object lies, and may have read it: it is kept for others no longer.
    pub(crate) fn ends_shield(&mut self, generation: Generation) {
        self.shelving.shields.remove(&generation);
    }

    /// A disk tells what it no longer has.
    pub(crate) fn hears_dropped(&mut self, disk: SegmentId, dropped: &Dropped) {
        for record in &dropped.items {
            self.shelving.leaves((disk, record.hold));
        }
    }

    /// Something is evicted on behalf of a put that may wait: not what its disk could have had first.
    pub(crate) fn evicted_for_a_patient_put(
        &mut self,
        now: Tick,
        generation: Generation,
        disks: &[(SegmentId, SegmentId, u64)],
        memory: SegmentId,
    ) {
        let Some((name, value)) = self.lives.get(&generation).map(|it| (it.name, it.value)) else { return };
        let len = value.and_then(|it| self.value(it)).map_or(u64::MAX, |it| it.len);
        let rests = |disk: &SegmentId| self.shelving.rest_until.get(disk).is_some_and(|it| *it > now);
        let mut able = disks.iter().filter(|(disk, beside, _)| *beside == memory && !rests(disk));
        let has_room = able.any(|(_, _, capacity)| len < capacity / 2);
        let rationed = self.shelving.policies.values().any(|it| it.quota.is_some());
        let never = self.shelving.demotion(name.namespace) == Demotion::Never;
        if !has_room || rationed || never {
            return;
        }
        self.fail("p5", || format!("{name:?} {generation} was lost for a put that could wait for the disk"));
    }
}

impl World {
    /// A question arrives. What it may not do is looked at when it is answered.
    pub(crate) fn begin_probe(&mut self, namespace: u8, request: &ClientToMaster) {
        let (names, ahead, is_mere) = match request {
            ClientToMaster::Exists(it) => {
                let names = it.keys.iter().filter_map(|it| Name::of(namespace, it)).collect();
                (names, it.ahead, !it.touch && !it.lease)
            }
            // To ask where something lies is no use of it.
            ClientToMaster::Resolve(it) => {
                let names = it.keys.iter().filter_map(|it| Name::of(namespace, it)).collect();
                (names, Ahead::Nothing, !it.touch && !it.lease)
            }
            ClientToMaster::Reserve(_)
            | ClientToMaster::Publish(_)
            | ClientToMaster::Delete(_)
            | ClientToMaster::DeleteMatching(_)
            | ClientToMaster::List(_)
            | ClientToMaster::Stat
            | ClientToMaster::Ping
            | ClientToMaster::Pin(_)
            | ClientToMaster::DropPins(_)
            | ClientToMaster::SetPolicy(_)
            | ClientToMaster::Await(_)
            | ClientToMaster::Why(_)
            | ClientToMaster::Lease(_)
            | ClientToMaster::Release(_)
            | ClientToMaster::KeepLeases(_)
            | ClientToMaster::Ack(_)
            | ClientToMaster::Cancel(_)
            | ClientToMaster::OpenStream(_)
            | ClientToMaster::EndStream(_)
            | ClientToMaster::Pull(_)
            | ClientToMaster::Prefetch(_) => return,
        };
        let mut probe = Probe { names, ahead, is_mere, ..Probe::default() };
        probe.before = self.uses(&probe.names);
        probe.counted = self.counted();
        self.probe = Some(probe);
    }

    /// What the master does while it handles the question.
    pub(crate) fn watch_probe(&mut self, effect: &Effect, segment: Option<SegmentId>) {
        let Some(probe) = self.probe.as_mut().filter(|it| it.answer.is_none()) else { return };
        match effect {
            Effect::Notice(Notice::Prefetched { resident, running, failed, .. }) => {
                probe.begun = resident + running + failed;
            }
            Effect::Ask(_, _, MasterToMember::Retire(retire)) => {
                let generation = |hold: &Hold| {
                    self.oracle.generation_of.get(&(segment.unwrap_or_default(), *hold)).copied()
                };
                probe.evicted.extend(retire.holds.iter().filter_map(generation));
            }
            Effect::Reply(_, _, Reply::Present(items)) => probe.answer = Some(items.clone()),
            Effect::Reply(_, _, Reply::Resolved(_)) => probe.answer = Some(Vec::new()),
            _ => (),
        }
    }

    pub(crate) fn end_probe(&mut self) {
        let Some(probe) = self.probe.take() else { return };
        let Some(answer) = probe.answer else { return };
        let now = self.told_time();
        let run = answer.iter().position(|it| *it != Presence::Here).unwrap_or(answer.len()) as u64;
        if probe.ahead == Ahead::LeadingRun {
            self.coverage.hit(Point::CheckedLeadingRun);
            if probe.begun > run {
                let begun = probe.begun;
                self.oracle
                    .fail("t12", || format!("{begun} keys are brought, of {run} before the first gap"));
            }
        }
        for generation in &probe.evicted {
            let Some(name) = self.oracle.lives.get(generation).map(|it| it.name) else { continue };
            self.coverage.hit(Point::CheckedCold);
            let Some(master) = &self.master else { continue };
            // What was only written is not hot.
            let read = master.last_read(names::namespace_name(name.namespace), &name.key());
            let Some(touched) = read else { continue };
            if touched.after(self.plan.tier.protect_ms) > now {
                let what = || format!("{name:?} was used at {touched:?}, and driven out at {now:?}");
                return self.oracle.fail("t16", what);
            }
        }
        if probe.is_mere {
            self.coverage.hit(Point::CheckedProbe);
            let counted = self.counted();
            if probe.ahead == Ahead::Nothing && probe.counted != counted {
                let before = probe.counted;
                self.oracle.fail("t14", || format!("a look made {counted:?} of {before:?}"));
            }
            let after = self.uses(&probe.names);
            if after != probe.before {
                let before = probe.before;
                self.oracle.fail("t14", || format!("a probe changed {before:?} into {after:?}"));
            }
        }
    }

    /// Gets, and what was brought for them, as the master counts them.
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
        let last = |it: &Name| master.last_use(names::namespace_name(it.namespace), &it.key());
        names.iter().map(last).collect()
    }

    /// The books of the master's tier.
    pub(crate) fn check_tier(&mut self) {
        let Some(master) = &self.master else { return };
        if let Err(what) = master.check() {
            self.oracle.fail("tier", || what);
        }
    }

    /// Whether the master knows that a disk is reading a copy in memory.
    pub(crate) fn is_read_by_a_disk(&self, memory: SegmentId, hold: Hold) -> bool {
        let Some(shell) = self.node_of(memory).and_then(|it| self.nodes.get(it)) else { return false };
        let Some(disk) = &shell.disk else { return false };
        let mut appending = disk.log.appending.values();
        appending.any(|it| {
            let through = self.registered.get(&disk.segment);
            let is_known = self.oracle.shelving.is_demoting(through, it.record.hold);
            it.source == hold && it.tags.is_none() && is_known
        })
    }

    /// The disks that the master can write to, the memory beside each, and how much they hold.
    pub(crate) fn ready_disks(&self) -> Vec<(SegmentId, SegmentId, u64)> {
        let Some(master) = &self.master else { return Vec::new() };
        let nodes = master.stat().nodes;
        let disks = nodes.iter().filter(|it| it.alive);
        disks.filter_map(|it| Some((it.info.segment, it.info.beside?, it.usage.capacity))).collect()
    }
}
