//! P4: nothing pinned is evicted, and nothing leased. Nothing vanishes without a reason: a lookup misses only
//! what was deleted, replaced, evicted, or lost with its node.

use tiffin_core::{
    ConnId, Generation, Hold, RequestId, SegmentId, Tick,
    message::{DropPins, Pin, PinOutcome, Record},
    node::SlotState,
};

use crate::{
    coverage::{Coverage, Point},
    names::Name,
    oracle::{Life, Memories, Oracle, copies},
};

impl Oracle {
    /// The master evicts an object.
    pub(crate) fn evicted(&mut self, now: Tick, generation: Generation, coverage: &mut Coverage) {
        coverage.hit(Point::CheckedEviction);
        let Some(life) = self.lives.get(&generation) else { return };
        let name = life.name;
        if life.is_protected() {
            let life = life.clone();
            self.fail("p4", || format!("{name:?} {generation} is protected, and was evicted: {life:?}"));
        } else if life.lease_until > now {
            let until = life.lease_until;
            self.fail("p4", || {
                format!("{name:?} {generation} was evicted at {now:?}, leased until {until:?}")
            });
        }
    }

    /// An object that is on a disk leaves memory: all of it, also nodes that will hear of that when they are
    /// back.
    pub(crate) fn leaves_memory(&mut self, generation: Generation, coverage: &mut Coverage) {
        coverage.hit(Point::LeftMemory);
        let copies = self.generation_of.iter().filter(|(_, it)| **it == generation).map(|(place, _)| *place);
        self.retired.extend(copies.filter(|(_, hold)| !hold.is_on_disk()));
    }

    /// A lookup finds nothing, and not because nodes are away.
    pub(crate) fn absent(&mut self, name: Name, memories: &Memories, coverage: &mut Coverage) {
        let Some(generation) = self.newest.get(&name).copied() else { return };
        let Some(life) = self.lives.get(&generation).filter(|it| !it.is_gone()) else { return };
        let (pinned, waits) = (life.is_protected(), life.sample);
        if (self.blind && !pinned) || (self.impatient && waits) {
            return;
        }
        if pinned {
            coverage.hit(Point::CheckedPinnedAbsence);
        }
        let members = memories.iter().filter(|(segment, it)| it.alive && self.joined.contains(segment));
        // What this life of the master took away may still be there until its node confirms, also if another
        // node brought the name back meanwhile, and is lost. What is on its way back into memory goes with
        // the last copy that the master knows of, also where its node has settled it and could not say so.
        let kept = |segment: SegmentId, hold: Hold| {
            let place = (segment, hold);
            !self.retired.contains(&place) && !self.shelving.is_pending(place)
        };
        let mut holders =
            members.filter(|(segment, it)| copies(it, generation).any(|hold| kept(**segment, hold)));
        if let Some((segment, _)) = holders.next() {
            let segment = *segment;
            let which = if pinned { "p4" } else { "names" };
            self.fail(which, || format!("{name:?} {generation} is said to be absent, but {segment} has it"));
        }
    }

    /// A node has been away for long: what nothing protects is taken away there, and owed by the node.
    pub(crate) fn gives_up(&mut self, segment: SegmentId) {
        if !self.joined.contains(&segment) {
            self.absent.insert(segment);
            return;
        }
        let there = self.generation_of.iter().filter(|((at, _), _)| *at == segment);
        let there: Vec<_> = there.map(|((_, hold), generation)| (*hold, *generation)).collect();
        for (hold, generation) in there {
            let Some(life) = self.lives.get(&generation).filter(|it| !it.is_protected()) else { continue };
            let name = life.name;
            self.retired.insert((segment, hold));
            self.shelving.leaves((segment, hold));
            let mut places = self.generation_of.iter().filter(|(_, it)| **it == generation);
            let is_last = places.all(|(place, _)| self.retired.contains(place));
            if let Some(life) = self.lives.get_mut(&generation).filter(|_| is_last) {
                life.gone = true;
                self.leases.retain(|_, (_, leased)| *leased != generation);
                if let Some(left) = &mut self.left {
                    let newest = left.entry(name).or_default();
                    *newest = (*newest).max(generation);
                }
            }
        }
    }

    /// A node that comes back must drop an object: only one that is gone for a reason.
    pub(crate) fn refuses(&mut self, segment: SegmentId, record: &Record, coverage: &mut Coverage) {
        coverage.hit(Point::CheckedRival);
        self.shelving.leaves((segment, record.hold));
        let was_retired = !self.retired.insert((segment, record.hold));
        let generation = record.generation;
        let Some(life) = self.lives.get(&generation) else { return };
        let (name, pinned) = (life.name, life.is_protected());
        if (self.blind && !pinned) || (self.impatient && life.sample) {
            return;
        }
        // It was taken away for a reason, whatever another node has brought back since.
        if was_retired {
            return;
        }
        if !life.is_gone() && self.newest.get(&name) == Some(&generation) {
            let which = if pinned { "p4" } else { "names" };
            self.fail(which, || format!("{segment} must drop {name:?} {generation} for no reason"));
        }
    }

    /// A node that has told everything must drop a copy that it did not tell of: it never heard that this
    /// became one.
    pub(crate) fn untold(&mut self, segment: SegmentId, hold: Hold, memories: &Memories) {
        let was_retired = !self.retired.insert((segment, hold));
        self.shelving.leaves((segment, hold));
        // Or it owes that, and would have told of it later on.
        let generation = self.generation_of.get(&(segment, hold));
        if was_retired || generation.and_then(|it| self.lives.get(it)).is_some_and(Life::is_gone) {
            return;
        }
        // A disk may have written it after it had told of all that was there.
        if self.shelving.is_disk(segment) {
            return;
        }
        let slot = memories.get(&segment).and_then(|it| it.load(hold));
        if slot.is_some_and(|it| it.state == SlotState::Committed) {
            self.fail("names", || format!("{segment} must drop {hold:?}, which it committed"));
        }
        self.untold_published(segment, hold);
    }

    /// A node that is new to this life of the master brings an object: not one that is older than what the
    /// master has.
    pub(crate) fn older_is_refused(
        &mut self,
        segment: SegmentId,
        name: Name,
        record: &Record,
        memories: &Memories,
    ) {
        let generation = record.generation;
        let Some(newest) = self.newest.get(&name).copied().filter(|it| *it > generation) else { return };
        let Some(life) = self.lives.get(&newest).filter(|it| !it.is_gone()) else { return };
        if (self.blind && !life.is_protected()) || (self.impatient && life.sample) {
            return;
        }
        // The very same copy may have been decided anew, which its node has not heard yet.
        let place = (segment, record.hold);
        if [&self.generation_of, &self.decided_too].iter().any(|it| it.get(&place) == Some(&newest)) {
            return;
        }
        // It may be lost with its node, or taken away there without the node having heard of it yet, and the
        // older one is all there is.
        let mut members = memories.iter().filter(|(it, memory)| memory.alive && self.joined.contains(it));
        let kept = |segment: SegmentId, hold: Hold| !self.retired.contains(&(segment, hold));
        if !members.any(|(segment, it)| copies(it, newest).any(|hold| kept(*segment, hold))) {
            return;
        }
        self.fail("names", || format!("{segment} brings back {name:?} {generation}, older than {newest}"));
    }

    /// A client pins, or no longer. The master does so at once; it is a promise when it is answered.
    pub(crate) fn hears_pin(&mut self, to: (ConnId, RequestId), pin: &Pin, namespace: u8, complete: bool) {
        let mut pinned = Vec::new();
        for key in &pin.keys {
            let newest = Name::of(namespace, key).and_then(|name| self.newest.get(&name)).copied();
            let all_known = newest.and_then(|it| self.lives.get(&it)).is_some_and(|it| it.returns == 0);
            // A copy that the master does not know of yet cannot be told, nor one that is still leaving.
            pinned.push(newest.filter(|_| pin.on && complete && all_known));
            let Some(life) = newest.and_then(|it| self.lives.get_mut(&it)) else { continue };
            if pin.on && !life.is_gone() && !self.blind {
                life.pins.insert(pin.owner.clone());
            } else if !pin.on {
                life.pins.remove(&pin.owner);
                life.written_pins.remove(&pin.owner);
            }
        }
        self.pinning.insert(to, (pin.owner.clone(), pinned));
    }

    /// An owner's pins all end. So do those that are still to be answered.
    pub(crate) fn hears_drop_pins(&mut self, drop: &DropPins, namespace: u8) {
        for life in self.lives.values_mut().filter(|it| it.name.namespace == namespace) {
            life.pins.remove(&drop.owner);
            life.written_pins.remove(&drop.owner);
        }
    }

    /// Pins are answered: from now on they outlive the master.
    pub(crate) fn pinned(&mut self, to: (ConnId, RequestId), outcomes: &[PinOutcome]) {
        let Some((owner, generations)) = self.pinning.remove(&to) else { return };
        for (generation, outcome) in generations.into_iter().zip(outcomes) {
            let life = generation.and_then(|it| self.lives.get_mut(&it));
            if let Some(life) = life
                && *outcome == PinOutcome::Done
                && life.pins.contains(&owner)
            {
                life.written_pins.insert(owner.clone());
            }
        }
    }
}
