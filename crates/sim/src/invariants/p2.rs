//! P2: after a delete is answered `Deleted` or `Absent`, no copy validates and no lookup finds the object
//! again, whatever removed it before. `Unconfirmed`: lookups find nothing, and once a node that did not
//! confirm is readmitted, its copies do not validate. A replaced object is treated like a deleted one. The
//! memory of a node that receives no retires says so, for readers of cached locations. An answer that a home
//! node passes on to the writer counts once it has arrived there.
//!
//! Exempt, until the master stores more durably: copies on a node that was declared lost, as long as it is
//! lost; and copies on a node that has not joined this epoch yet.

use std::collections::BTreeSet;

use tiffin_node::SlotRecord;
use tiffin_types::{
    ClientId, ConnId, Generation, Location, SegmentId, SlotId, SlotRef,
    message::{CommitOutcome, DecideItem, DeleteOutcome, Found},
};

use crate::{
    coverage::{Coverage, Point},
    keyspace::{Name, first_counter},
    memory::Memory,
    node::name_in_heap,
    oracle::{Memories, Oracle, copies, name_of},
    world::World,
};

/// An answered delete.
#[derive(Clone, Debug)]
pub(crate) struct Dead {
    /// Every node confirmed.
    pub(crate) confirmed: bool,
    /// Segments of lost nodes, whose copies are exempt.
    pub(crate) exempt: Vec<SegmentId>,
}

/// An object that a delete applies to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Victim {
    pub(crate) generation: Generation,
    /// Number of times it was restored before: a delete does not apply to what is restored after it began.
    pub(crate) returns: u32,
    /// It was removed before.
    pub(crate) gone: bool,
}

impl World {
    /// The memory of a node says "member" only while the node is one.
    pub(crate) fn check_membership(&mut self) {
        for shell in &self.nodes {
            let Some(core) = &shell.core else { continue };
            let says = self.memories.get(&shell.segment).is_some_and(|it| it.member);
            if !says {
                continue;
            }
            self.coverage.hit(Point::CheckedMembership);
            if !core.is_member() {
                let segment = shell.segment;
                return self.oracle.fail("p2", || format!("{segment} is marked as a member, but is not"));
            }
        }
    }
}

impl Oracle {
    /// A delete is answered.
    pub(crate) fn deleted(
        &mut self,
        name: Name,
        victims: &[Victim],
        outcome: &DeleteOutcome,
        complete: bool,
        memories: &Memories,
        coverage: &mut Coverage,
    ) {
        if *outcome != DeleteOutcome::Leased {
            let returns = |it: &Victim| self.objects.get(&it.generation).map(|it| it.returns);
            let gone: Vec<_> = victims.iter().filter(|it| returns(it) == Some(it.returns)).collect();
            gone.into_iter().for_each(|it| self.tier.forget(it.generation));
        }
        let confirmed = match outcome {
            _ if !complete => return,
            DeleteOutcome::Leased => return,
            DeleteOutcome::Deleted | DeleteOutcome::Absent => true,
            DeleteOutcome::Unconfirmed(_) => false,
        };
        for &Victim { generation, returns, .. } in victims {
            if self.objects.get(&generation).is_some_and(|it| it.returns != returns) {
                continue;
            }
            let known = returns == 0;
            coverage.hit(Point::CheckedDeletedCopies);
            let reached = |(segment, it): &(&SegmentId, &Memory)| it.alive && self.joined.contains(segment);
            let (reached, exempt): (Vec<_>, Vec<_>) = memories.iter().partition(reached);
            let mut holders =
                reached.into_iter().filter(|(segment, it)| self.lets_read(**segment, it, generation));
            let holder = holders.next().map(|(segment, _)| *segment);
            let exempt = exempt.into_iter().map(|(segment, _)| *segment).collect();
            if confirmed
                && known
                && let Some(segment) = holder
            {
                self.fail("p2", || {
                    format!("{name:?} {generation} was answered {outcome:?}, but {segment} still has it")
                });
            }
            if let Some(history) = self.objects.get_mut(&generation)
                && !history.dead.as_ref().is_some_and(|it| it.confirmed)
            {
                history.dead = Some(Dead { confirmed: confirmed && known, exempt });
            }
        }
    }

    /// A decision is answered: the replaced object is treated as deleted.
    pub(crate) fn replaced(
        &mut self,
        outcome: &CommitOutcome,
        old: Option<(Generation, u32)>,
        complete: bool,
        memories: &Memories,
        coverage: &mut Coverage,
    ) {
        let outcome = match outcome {
            CommitOutcome::Replaced(_) => DeleteOutcome::Deleted,
            CommitOutcome::Unconfirmed(it) if it.replaced => DeleteOutcome::Unconfirmed(it.nodes.clone()),
            CommitOutcome::Unconfirmed(_)
            | CommitOutcome::Stored(_)
            | CommitOutcome::Exists(_)
            | CommitOutcome::Stale
            | CommitOutcome::Removed => return,
        };
        let Some((generation, returns)) = old else { return };
        let Some(name) = self.objects.get(&generation).map(|it| it.name) else { return };
        coverage.hit(Point::CheckedReplaced);
        let victims = [Victim { generation, returns, gone: false }];
        self.deleted(name, &victims, &outcome, complete, memories, coverage);
    }

    /// A lookup finds an object.
    pub(crate) fn found(&mut self, name: Name, found: &Found, coverage: &mut Coverage) {
        coverage.hit(Point::CheckedResurrection);
        let generation = found.generation;
        if let Some(history) = self.objects.get(&generation)
            && (history.dead.is_some() || history.name != name)
        {
            let history = history.clone();
            self.fail("p2", || format!("a lookup of {name:?} found {generation}: {history:?}"));
        }
        self.shown(name, generation);
        let newest = self.newest.get(&name).copied().unwrap_or_default();
        if generation < newest {
            self.fail("p2", || format!("a lookup of {name:?} found {generation} after {newest} was seen"));
        }
        found.replicas.iter().for_each(|it| self.learn_generation((it.segment, it.slot_ref()), generation));
        self.seen(name, generation);
        // A late decision leaves open whether its object still has the name; a lookup that finds it does not.
        self.newest.insert(name, generation.max(newest));
    }

    /// A lookup shows an object: no successor of it was removed before.
    fn shown(&mut self, name: Name, generation: Generation) {
        if let Some(successor) = self.past.removed_before(generation) {
            self.fail("p2", || format!("{generation} is back after its successor {successor} was removed"));
        }
        let of_name = self.of_name.get(&name).into_iter().flat_map(|it| it.range(..generation));
        let older: BTreeSet<_> = of_name.copied().collect();
        if older.is_empty() || !self.past.is_new(generation) {
            return;
        }
        let is_known = |place| self.recorded.contains(place) || self.retired.contains(place);
        let places = self.generation_of.iter().filter(|(_, it)| older.contains(it));
        let (known, unknown): (Vec<_>, Vec<_>) = places.partition(|(place, _)| is_known(*place));
        let mut known: BTreeSet<_> = known.into_iter().map(|it| *it.1).collect();
        unknown.into_iter().for_each(|it| _ = known.remove(it.1));
        self.past.show(generation, known);
    }

    /// A node has retired a copy. After the last one of an object that a client has seen, no older one of its
    /// name may come back.
    pub(crate) fn copy_removed(
        &mut self,
        place: (SegmentId, SlotRef),
        memories: &Memories,
        coverage: &mut Coverage,
    ) {
        let generation = self.generation_of.get(&place).copied().filter(|_| self.retired.contains(&place));
        let Some(generation) = generation else { return };
        let mut places = self.generation_of.iter().filter(|(_, it)| **it == generation);
        let is_on_disk = places.any(|(place, _)| place.1.is_on_disk());
        let is_there = memories.values().any(|it| it.alive && copies(it, generation).next().is_some());
        if is_on_disk || is_there {
            return;
        }
        let newer = self.newer_at_members(generation, memories);
        if self.past.remove(generation, newer) {
            coverage.hit(Point::CheckedSuccessor);
        }
    }

    /// The newest later object of that name, if there is a copy of one. Its node may not know yet that it is
    /// stored.
    fn newer_at_members(&self, generation: Generation, memories: &Memories) -> Option<Generation> {
        let name = self.objects.get(&generation)?.name;
        let later =
            |it: Generation| it > generation && self.objects.get(&it).is_some_and(|it| it.name == name);
        let is_there = |(segment, slot_ref): &(SegmentId, SlotRef)| {
            slot_ref.is_on_disk()
                || memories.get(segment).is_some_and(|it| it.alive && it.is_current(*slot_ref))
        };
        let places = self.generation_of.iter().filter(|(place, it)| later(**it) && is_there(place));
        places.map(|(_, it)| *it).max()
    }

    /// A put is answered: no older object of that key can be read from a cached location in these memories,
    /// except on a node that could not be informed.
    pub(crate) fn supersedes<'a>(
        &mut self,
        item: &DecideItem,
        outcome: &CommitOutcome,
        memories: impl Iterator<Item = (&'a SegmentId, &'a Memory)>,
        coverage: &mut Coverage,
    ) {
        let generation = match outcome {
            CommitOutcome::Stored(generation) | CommitOutcome::Replaced(generation) => *generation,
            CommitOutcome::Unconfirmed(it) => {
                self.shadowed.insert(it.generation);
                return;
            }
            CommitOutcome::Exists(_) | CommitOutcome::Stale | CommitOutcome::Removed => return,
        };
        let Some(name) = name_of(item) else { return };
        coverage.hit(Point::CheckedSuperseded);
        // An object of an earlier epoch may be new to this one, from a node that had not reported.
        let first = Generation { counter: 0, ..generation };
        let older = self.of_name.get(&name).into_iter().flat_map(|it| it.range(first..generation));
        let older: Vec<_> = older.collect();
        let still = |segment, memory: &Memory| older.iter().any(|it| self.lets_read(segment, memory, **it));
        let any: Vec<_> = self.of_name.get(&name).into_iter().flatten().collect();
        // A node that has not joined this epoch may still receive a settle of the previous one.
        let is_any = |segment: SegmentId, slot_ref: SlotRef| {
            let known = self.generation_of.get(&(segment, slot_ref));
            known.is_some_and(|it| any.contains(&it))
        };
        let unheard = |segment: SegmentId, memory: &Memory| {
            any.iter().any(|it| copies(memory, **it).next().is_some())
                || memory.slots().any(|(slot_ref, _)| is_any(segment, slot_ref))
        };
        let mut is_shadowed = false;
        for (segment, memory) in memories.filter(|(_, it)| it.alive) {
            let joined = self.joined.contains(segment);
            if joined && memory.is_member() && still(*segment, memory) {
                let what =
                    || format!("{name:?} {generation} was stored, but {segment} still has an older one");
                return self.fail("p2", what);
            }
            is_shadowed |= !joined && unheard(*segment, memory);
        }
        if is_shadowed {
            self.shadowed.insert(generation);
        }
    }

    /// Whether a client with a cached location can read that generation. Objects named in this epoch need not
    /// be committed at the node yet.
    fn lets_read(&self, segment: SegmentId, memory: &Memory, generation: Generation) -> bool {
        let is_it = |slot_ref| self.generation_of.get(&(segment, slot_ref)) == Some(&generation);
        let is_there = |slot_ref| {
            let seen = memory.seen(slot_ref);
            seen.is_member && seen.state.is_some()
        };
        let is_early = |slot_ref| generation.epoch == self.epoch && is_there(slot_ref) && is_it(slot_ref);
        // No client learns the location of a copy that a member makes before it is committed.
        let is_told = |it: &SlotRecord| it.state.writer() != Some(ClientId::PROMOTER);
        let mut slots = memory.slots().filter(|(_, it)| is_told(it));
        let is_valid = |slot_ref| !memory.is_withdrawn(slot_ref);
        copies(memory, generation).any(is_valid) || slots.any(|(slot_ref, _)| is_early(slot_ref))
    }

    /// A get ended that began after a put of `newest` had been answered.
    pub(crate) fn got_after(
        &mut self,
        name: Name,
        found: &Found,
        newest: Generation,
        coverage: &mut Coverage,
    ) {
        coverage.hit(Point::CheckedNewest);
        // A restarted master does not know the objects of nodes that have not reported.
        let same_life = self.is_of_this_master(newest) && self.is_of_this_master(found.generation);
        // The same copy may have been decided again, because the first answer was lost.
        let is_newest = |it: &Location| self.generation_of.get(&(it.segment, it.slot_ref())) == Some(&newest);
        let is_anew = !found.replicas.is_empty() && found.replicas.iter().all(is_newest);
        if same_life && found.generation < newest && !is_anew {
            let found = found.generation;
            self.fail("p2", || format!("a get of {name:?} read {found} after {newest} was acknowledged"));
        }
    }

    /// Whether the current start of the master gave an object its generation.
    pub(crate) fn is_of_this_master(&self, generation: Generation) -> bool {
        generation.counter > first_counter(self.incarnation)
            && generation.counter < first_counter(self.incarnation + 1)
    }

    /// The newest acknowledged generation of a name.
    pub(crate) fn newest_acknowledged(&self, name: Name) -> Generation {
        self.acknowledged.get(&name).copied().unwrap_or_default()
    }

    /// A node has received its pending retires, and is about to announce its objects.
    pub(crate) fn readmitted(
        &mut self,
        conn: ConnId,
        segment: SegmentId,
        memories: &Memories,
        coverage: &mut Coverage,
    ) {
        let Some(memory) = memories.get(&segment) else { return };
        coverage.hit(Point::CheckedReadmission);
        let pending_retires = self.pending_retires.remove(&conn).unwrap_or_default();
        let kept = pending_retires.into_iter().find(|it| copies(memory, *it).next().is_some());
        if let Some(generation) = kept {
            self.fail("p2", || format!("{segment} was readmitted with {generation}, which was deleted"));
        }
    }

    /// A slot becomes committed.
    pub(crate) fn committed(
        &mut self,
        segment: SegmentId,
        memory: &Memory,
        slot: SlotId,
        record: &SlotRecord,
    ) {
        let slot_ref = SlotRef { slot, stamp: record.stamp };
        let generation = record.generation;
        let history = self.objects.get(&generation);
        let (name, dead) = (history.map(|it| it.name), history.and_then(|it| it.dead.as_ref()));
        // A node that was stopped for long may execute requests from before it was declared lost.
        let exempt = |it: &Dead| it.exempt.contains(&segment) || self.lost.contains_key(&segment);
        // A node that reads its ledger commits what it retires in the same ledger. No reader validates that.
        let is_withdrawn = memory.is_withdrawn(slot_ref);
        if dead.is_some_and(|it| it.confirmed && !exempt(it)) && !is_withdrawn {
            self.fail("p2", || format!("{segment} commits {slot_ref:?} as {generation}, which was deleted"));
        }
        if name.is_some() && name_in_heap(memory, record) != name {
            self.fail("memory", || {
                format!("{segment} commits {slot_ref:?} as {name:?}, but under another name")
            });
        }
    }

    /// A read was validated: its object must not be deleted.
    pub(crate) fn read_of_dead(&mut self, segment: SegmentId, slot_ref: SlotRef) {
        let Some(generation) = self.generation_of.get(&(segment, slot_ref)).copied() else { return };
        let dead = self.objects.get(&generation).and_then(|it| it.dead.as_ref());
        if dead.is_some_and(|it| it.confirmed && !it.exempt.contains(&segment)) {
            self.fail("p2", || {
                format!("a read of {slot_ref:?} on {segment} is valid, but {generation} was deleted")
            });
        }
    }

    /// A lease kept the newest of these from being deleted.
    pub(crate) fn kept_by_lease(&mut self, victims: &[Victim], force: bool) {
        let newest = victims.iter().map(|it| it.generation).max();
        let Some(history) = newest.and_then(|it| self.objects.get_mut(&it)) else { return };
        history.deletes = history.deletes.saturating_sub(1);
        if force || !self.strict {
            let name = history.name;
            self.fail("names", || format!("a delete of {name:?} was wrongly refused because of a lease"));
        }
    }
}
