//! P4: pinned and leased objects are not evicted. Nothing vanishes without a reason: a lookup misses only
//! objects that were deleted, replaced, evicted, or lost with their node.

use std::collections::BTreeSet;

use tiffin_node::SlotState;
use tiffin_types::{
    ConnId, Generation, RequestId, SegmentId, SlotRef, Tick,
    attributes::SampleAttributes,
    message::{DropPins, Pin, PinOutcome, Record},
};

use crate::{
    coverage::{Coverage, Point},
    keyspace::Name,
    oracle::{Memories, ObjectHistory, Oracle, Pinning, copies},
};

impl Oracle {
    /// The master evicts an object.
    pub(crate) fn evicted(&mut self, now: Tick, generation: Generation, coverage: &mut Coverage) {
        coverage.hit(Point::CheckedEviction);
        let Some(history) = self.objects.get(&generation) else { return };
        let name = history.name;
        if history.is_protected() {
            let history = history.clone();
            self.fail("p4", || format!("{name:?} {generation} is protected, and was evicted: {history:?}"));
        } else if history.lease_until > now {
            let until = history.lease_until;
            self.fail("p4", || {
                format!("{name:?} {generation} was evicted at {now:?}, leased until {until:?}")
            });
        }
    }

    /// An object with a disk copy is evicted from all memory, including nodes that will learn of it after
    /// they return.
    pub(crate) fn evicted_from_memory(&mut self, generation: Generation, coverage: &mut Coverage) {
        coverage.hit(Point::LeftMemory);
        let copies = self.generation_of.iter().filter(|(_, it)| **it == generation).map(|(place, _)| *place);
        self.retired.extend(copies.filter(|(_, slot_ref)| !slot_ref.is_on_disk()));
    }

    /// A lookup finds nothing, although all nodes are available.
    pub(crate) fn absent(&mut self, name: Name, memories: &Memories, coverage: &mut Coverage) {
        let Some(generation) = self.newest.get(&name).copied() else { return };
        let Some(history) = self.objects.get(&generation).filter(|it| !it.is_gone()) else { return };
        let (pinned, waits) = (history.is_protected(), history.sample);
        if self.has_expired(generation, history) {
            return;
        }
        if (self.has_unknown_evictions && !pinned) || (self.samples_expire && waits) {
            return;
        }
        if pinned {
            coverage.hit(Point::CheckedPinnedAbsence);
        }
        let members = memories.iter().filter(|(segment, it)| it.alive && self.joined.contains(segment));
        // A copy that this epoch removed may exist until its node confirms, also if another node restored the
        // name meanwhile, and is lost.
        let kept = |segment: SegmentId, slot_ref: SlotRef| !self.retired.contains(&(segment, slot_ref));
        let mut holders =
            members.filter(|(segment, it)| copies(it, generation).any(|slot_ref| kept(**segment, slot_ref)));
        if let Some((segment, _)) = holders.next() {
            let segment = *segment;
            let which = if pinned { "p4" } else { "names" };
            self.fail(which, || format!("{name:?} {generation} is answered as absent, but {segment} has it"));
        }
    }

    /// A node has been away for long: its unprotected objects are removed, and it owes their retires.
    pub(crate) fn gives_up(&mut self, segment: SegmentId) {
        let is_joined = self.joined.contains(&segment);
        if !is_joined {
            self.absent.insert(segment);
        }
        // Of a node that was joining, the master knows what it has announced and what was put there.
        let is_known = |place: &(SegmentId, SlotRef)| is_joined || self.recorded.contains(place);
        let there = self.generation_of.iter().filter(|(place, _)| place.0 == segment && is_known(place));
        let there: Vec<_> = there.map(|((_, slot_ref), generation)| (*slot_ref, *generation)).collect();
        for (slot_ref, generation) in there {
            let Some(history) = self.objects.get(&generation).filter(|it| !it.is_protected()) else {
                continue;
            };
            let name = history.name;
            self.retired.insert((segment, slot_ref));
            self.tier.leaves((segment, slot_ref));
            let mut places = self.generation_of.iter().filter(|(_, it)| **it == generation);
            let is_last = places.all(|(place, _)| self.retired.contains(place));
            if let Some(history) = self.objects.get_mut(&generation).filter(|_| is_last) {
                history.gone = true;
                self.leases.retain(|_, (_, leased)| *leased != generation);
                if let Some(left) = &mut self.left {
                    let newest = left.entry(name).or_default();
                    *newest = (*newest).max(generation);
                }
            }
        }
    }

    /// A node is lost. An object is lost with the last copy that the master knows, and so are its pins. A
    /// member that has not reported yet may restore it with another copy, and knows the pins only if every
    /// node had written them.
    pub(crate) fn pins_are_lost(&mut self, lost: SegmentId, memories: &Memories) {
        let is_known = |place: &(SegmentId, SlotRef)| {
            self.joined.contains(&place.0)
                && memories.get(&place.0).is_some_and(|it| it.alive)
                && !self.retired.contains(place)
                && !self.tier.is_pending(*place)
        };
        let known: BTreeSet<_> =
            self.generation_of.iter().filter(|it| is_known(it.0)).map(|it| *it.1).collect();
        let there = self.generation_of.iter().filter(|((at, _), _)| *at == lost).map(|(_, it)| *it);
        for generation in there.filter(|it| !known.contains(it)).collect::<Vec<_>>() {
            self.objects.get_mut(&generation).into_iter().for_each(|it| it.pins.clear());
        }
    }

    /// A returning node must drop an object: only with a reason.
    pub(crate) fn announcement_refused(
        &mut self,
        segment: SegmentId,
        record: &Record,
        coverage: &mut Coverage,
    ) {
        coverage.hit(Point::CheckedRival);
        self.tier.leaves((segment, record.slot_ref));
        let was_retired = !self.retired.insert((segment, record.slot_ref));
        let generation = record.generation;
        let Some(history) = self.objects.get(&generation) else { return };
        let (name, pinned) = (history.name, history.is_protected());
        if self.has_expired(generation, history) {
            return;
        }
        if (self.has_unknown_evictions && !pinned) || (self.samples_expire && history.sample) {
            return;
        }
        // It was removed for a reason, whatever another node has restored since. A node that was away then
        // was sent no retire.
        let is_consumed = record.attributes.sample.as_deref().is_some_and(SampleAttributes::is_consumed);
        if was_retired || history.returns > 0 || is_consumed {
            return;
        }
        if !history.is_gone() && self.newest.get(&name) == Some(&generation) {
            let which = if pinned { "p4" } else { "names" };
            self.fail(which, || format!("{segment} must drop {name:?} {generation} without a reason"));
        }
    }

    /// A node that has announced everything must drop a copy that it did not announce: it did not know that
    /// the copy was committed.
    pub(crate) fn unannounced(&mut self, segment: SegmentId, slot_ref: SlotRef, memories: &Memories) {
        let was_retired = !self.retired.insert((segment, slot_ref));
        self.tier.leaves((segment, slot_ref));
        // Or its retire is pending, and a later page would announce it. An unseen eviction is applied when
        // the node returns.
        let generation = self.generation_of.get(&(segment, slot_ref));
        let unseen = |it: &ObjectHistory| self.has_unknown_evictions && !it.is_protected();
        let is_gone = |(generation, it): (&Generation, &ObjectHistory)| {
            it.is_gone() || unseen(it) || self.has_expired(*generation, it)
        };
        if was_retired || generation.and_then(|it| Some((it, self.objects.get(it)?))).is_some_and(is_gone) {
            return;
        }
        // A disk may have written it after its announcement.
        if self.tier.is_disk(segment) {
            return;
        }
        let slot = memories.get(&segment).and_then(|it| it.load(slot_ref));
        if slot.is_some_and(|it| it.state == SlotState::Committed) {
            self.fail("names", || format!("{segment} must drop {slot_ref:?}, which it committed"));
        }
        self.unannounced_published(segment, slot_ref);
    }

    /// A node that joins this epoch announces an object: it must not be older than the master's.
    pub(crate) fn check_not_older(
        &mut self,
        segment: SegmentId,
        name: Name,
        record: &Record,
        memories: &Memories,
    ) {
        let generation = record.generation;
        let Some(newest) = self.newest.get(&name).copied().filter(|it| *it > generation) else { return };
        let Some(history) = self.objects.get(&newest).filter(|it| !it.is_gone()) else { return };
        if (self.has_unknown_evictions && !history.is_protected()) || (self.samples_expire && history.sample)
        {
            return;
        }
        if self.has_expired(newest, history) {
            return;
        }
        // The same copy may have been decided again, and its node does not know yet.
        let place = (segment, record.slot_ref);
        if [&self.generation_of, &self.decided_too].iter().any(|it| it.get(&place) == Some(&newest)) {
            return;
        }
        // The newer object may be lost with its node, or removed there without the node's knowledge, so that
        // only the older one is left.
        let mut members = memories.iter().filter(|(it, memory)| memory.alive && self.joined.contains(it));
        let kept = |segment: SegmentId, slot_ref: SlotRef| !self.retired.contains(&(segment, slot_ref));
        if !members.any(|(segment, it)| copies(it, newest).any(|slot_ref| kept(*segment, slot_ref))) {
            return;
        }
        self.fail("names", || format!("{segment} restores {name:?} {generation}, older than {newest}"));
    }

    /// A client pins or unpins. The master applies it at once; it is a promise once it is answered.
    pub(crate) fn on_pin(&mut self, to: (ConnId, RequestId), pin: &Pin, namespace: u8, complete: bool) {
        let mut pinned = Vec::new();
        for key in &pin.keys {
            let Some(name) = Name::of(namespace, key) else {
                pinned.push(Pinning::default());
                continue;
            };
            let newest = self.newest.get(&name).copied();
            let all_known = newest.and_then(|it| self.objects.get(&it)).is_some_and(|it| it.returns == 0);
            // Copies that the master does not know yet, or that are being removed, are not updated.
            let written = newest.filter(|_| pin.on && complete && all_known);
            let mut new = Vec::new();
            // A member that has not reported may have a later object, which the master cannot pin.
            let at_members = self.generation_of.iter().filter(|((at, _), _)| self.joined.contains(at));
            let known: BTreeSet<_> = at_members.map(|it| *it.1).chain(newest).collect();
            // After a late decision the newest object is not known; older ones are gone. An object whose TTL
            // is over can be pinned while nothing expires.
            for generation in self.of_name.get(&name).into_iter().flatten() {
                let is_over =
                    self.objects.get(generation).is_some_and(|it| self.has_expired(*generation, it));
                let has_expired = is_over && !self.clock.stands;
                let Some(history) = self.objects.get_mut(generation).filter(|_| !has_expired) else {
                    continue;
                };
                let is_pinned = pin.on && known.contains(generation);
                if is_pinned && !history.is_gone() && !self.has_unknown_evictions {
                    new.extend(history.pins.insert(pin.owner.clone()).then_some(*generation));
                } else if !pin.on {
                    history.pins.remove(&pin.owner);
                    history.written_pins.remove(&pin.owner);
                }
            }
            pinned.push(Pinning { written, new });
        }
        self.pinning.insert(to, (pin.owner.clone(), pinned));
    }

    /// All pins of an owner end, also those without an answer.
    pub(crate) fn on_drop_pins(&mut self, drop: &DropPins, namespace: u8) {
        for history in self.objects.values_mut().filter(|it| it.name.namespace == namespace) {
            history.pins.remove(&drop.owner);
            history.written_pins.remove(&drop.owner);
        }
    }

    /// Pins are answered: from now on they survive a restart of the master. A master that answers that there
    /// is no such object has pinned none: it may not know yet what a member has.
    pub(crate) fn pinned(&mut self, to: (ConnId, RequestId), outcomes: &[PinOutcome]) {
        let Some((owner, pinning)) = self.pinning.remove(&to) else { return };
        for (Pinning { written, new }, outcome) in pinning.into_iter().zip(outcomes) {
            let history = written.and_then(|it| self.objects.get_mut(&it));
            if let Some(history) = history
                && *outcome == PinOutcome::Done
                && history.pins.contains(&owner)
            {
                history.written_pins.insert(owner.clone());
            }
            for generation in new.iter().filter(|_| *outcome == PinOutcome::Absent) {
                let history = self.objects.get_mut(generation);
                history.into_iter().for_each(|it| _ = it.pins.remove(&owner));
            }
        }
    }
}
