//! The tier below memory. P8: what was said to be on a disk is there after a crash. T12, T14, T16: a probe
//! brings what it should, and changes and drives out nothing. A put that may wait loses nothing. Nothing goes
//! to disks that is to keep off them.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_core::{
    ConnId, Generation, Hold, RequestId, SegmentId, Tick,
    master::{Effect, Notice},
    message::{Ahead, DemoteItem, Demotion, Dropped, Policy, Presence, Record, Reply, Request},
};

use crate::{
    coverage::{Coverage, Point},
    names::{self, Name},
    oracle::Oracle,
    world::World,
};

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
    /// Disks that are not written to until then.
    rest_until: BTreeMap<SegmentId, Tick>,
    protect_ms: u64,
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
}

impl Shelving {
    /// Another life of the master knows nothing of this.
    pub(crate) fn restart(&mut self, protect_ms: u64) {
        let beside = std::mem::take(&mut self.beside);
        let let_go = std::mem::take(&mut self.let_go);
        *self = Self { beside, let_go, protect_ms, ..Self::default() };
    }

    pub(crate) fn is_disk(&self, segment: SegmentId) -> bool {
        self.beside.contains_key(&segment)
    }

    /// Whether a disk has it that the master knows of.
    pub(crate) fn is_shelved(&self, generation: Generation) -> bool {
        self.shelved.get(&generation).is_some_and(|it| !it.is_empty())
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
    }

    /// The master knows of a copy that can be read.
    pub(crate) fn arrives(&mut self, place: (SegmentId, Hold), generation: Generation) {
        self.pending.remove(&place);
        if self.is_disk(place.0) {
            self.shelved.entry(generation).or_default().insert(place);
        }
    }

    pub(crate) fn sets_policy(&mut self, namespace: u8, policy: Policy) {
        self.policies.insert(namespace, policy);
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
    pub(crate) fn demotes(&mut self, to: (ConnId, RequestId), disk: SegmentId, items: &[DemoteItem]) {
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
            for (hold, done) in holds.into_iter().zip(&moved.items) {
                let place = (disk, hold);
                let generation = self.generation_of.get(&place).copied().unwrap_or_default();
                if !*done {
                    self.shelving.rest_until.insert(disk, now.after(REST_MS));
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
            let until = now.after(self.shelving.protect_ms);
            if let Some(life) = self.lives.get_mut(&generation).filter(|_| came) {
                // It is kept for a while.
                life.lease_until = life.lease_until.max(until);
            }
        }
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
    pub(crate) fn begin_probe(&mut self, namespace: u8, request: &Request) {
        let Request::Exists(exists) = request else { return };
        let names = exists.keys.iter().filter_map(|key| Name::of(namespace, key)).collect();
        let is_mere = !exists.touch && !exists.lease;
        let mut probe = Probe { names, ahead: exists.ahead, is_mere, ..Probe::default() };
        probe.before = self.uses(&probe.names);
        self.probe = Some(probe);
    }

    /// What the master does while it handles the question.
    pub(crate) fn watch_probe(&mut self, effect: &Effect, segment: Option<SegmentId>) {
        let Some(probe) = self.probe.as_mut().filter(|it| it.answer.is_none()) else { return };
        match effect {
            Effect::Notice(Notice::Prefetched { resident, running, failed, .. }) => {
                probe.begun = resident + running + failed;
            }
            Effect::Ask(_, _, Request::Retire(retire)) => {
                let generation = |hold: &Hold| {
                    self.oracle.generation_of.get(&(segment.unwrap_or_default(), *hold)).copied()
                };
                probe.evicted.extend(retire.holds.iter().filter_map(generation));
            }
            Effect::Reply(_, _, Reply::Present(items)) => probe.answer = Some(items.clone()),
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
            let Some(&Some((touched, _))) = self.uses(&[name]).first() else { continue };
            self.coverage.hit(Point::CheckedCold);
            if touched.after(self.plan.tier.protect_ms) > now {
                let what = || format!("{name:?} was used at {touched:?}, and driven out at {now:?}");
                return self.oracle.fail("t16", what);
            }
        }
        if probe.is_mere && probe.ahead != Ahead::Nothing {
            self.coverage.hit(Point::CheckedProbe);
            let after = self.uses(&probe.names);
            if after != probe.before {
                let before = probe.before;
                self.oracle.fail("t14", || format!("a probe changed {before:?} into {after:?}"));
            }
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

    /// The disks that the master can write to, the memory beside each, and how much they hold.
    pub(crate) fn ready_disks(&self) -> Vec<(SegmentId, SegmentId, u64)> {
        let Some(master) = &self.master else { return Vec::new() };
        let nodes = master.stat().nodes;
        let disks = nodes.iter().filter(|it| it.alive);
        disks.filter_map(|it| Some((it.info.segment, it.info.beside?, it.usage.capacity))).collect()
    }
}
