//! Removals as the oracle sees them: each must have a reason.

use tiffin_types::{Generation, SegmentId, SlotRef, Tick};

use crate::{
    coverage::{Coverage, Point},
    oracle::{Deleting, ObjectHistory, Oracle},
};

impl Oracle {
    /// The master retires a copy: there must be a reason.
    pub(crate) fn retires(
        &mut self,
        now: Tick,
        segment: SegmentId,
        slot_ref: SlotRef,
        coverage: &mut Coverage,
    ) {
        // A retire may be repeated.
        let again = !self.retired.insert((segment, slot_ref));
        let was_pending = self.tier.leaves((segment, slot_ref));
        let Some(generation) = self.generation_of.get(&(segment, slot_ref)).copied() else { return };
        self.retired_for(generation, again);
        if again || self.objects.get(&generation).is_some_and(|it| it.gone) {
            return;
        }
        // Samples that waited too long are removed in the same step.
        let waited = self.objects.get(&generation).is_some_and(|it| it.sample) && self.samples_expire;
        let evicting = self.cause.evicting && !waited;
        if evicting {
            self.evicted(now, generation, coverage);
            // It is evicted from memory only.
            if self.tier.has_disk_copy(generation) {
                return self.evicted_from_memory(generation, coverage);
            }
        }
        // A pending copy is removed without its object, unless the object is evicted.
        if was_pending && !evicting {
            return;
        }
        let Some(history) = self.objects.get(&generation) else { return };
        let asked = self.is_asked_for(history, generation, (segment, slot_ref));
        // An unseen eviction is applied when the node returns.
        let unseen = self.has_unknown_evictions && !history.is_protected();
        let expired = self.has_expired(generation, history);
        // A sample that waited too long loses its other copies next.
        let may_be_surplus = self.is_surplus(generation, (segment, slot_ref));
        if !(evicting || asked || unseen || expired) && may_be_surplus {
            return coverage.hit(Point::SurplusDropped);
        }
        let explained = evicting || asked || waited || unseen || expired;
        let Some(history) = self.objects.get_mut(&generation) else { return };
        history.gone = true;
        if let Some(newest) = self.left.as_mut().map(|it| it.entry(history.name).or_default()) {
            *newest = (*newest).max(generation);
        }
        // A removal that another client forced may only be unconfirmed yet.
        let by_another = history.dead.is_some() || history.deletes > 1;
        // A lease does not keep an object whose TTL is over.
        let (name, leased) = (history.name, history.lease_until > now && !by_another && !expired);
        if self.cause.is_refusable && !evicting {
            coverage.hit(Point::CheckedRefusal);
            if leased {
                self.fail("p2", || format!("{name:?} {generation} is leased, but was removed without force"));
            }
        }
        if waited && !asked {
            self.given_up(name, generation, now, coverage);
        }
        // Leases end with their object, also if a returning node restores it.
        if !may_be_surplus {
            self.leases.retain(|_, (_, leased)| *leased != generation);
        }
        if !explained {
            self.fail("names", || format!("{name:?} {generation} is removed without a reason"));
        }
    }

    /// Whether a request in progress may remove an object.
    fn is_asked_for(
        &self,
        history: &ObjectHistory,
        generation: Generation,
        place: (SegmentId, SlotRef),
    ) -> bool {
        let dropped =
            |it: &Deleting| it.victims.iter().flat_map(|(_, of)| of).any(|it| it.generation == generation);
        self.cause.names.contains(&history.name)
            || self.cause.generations.contains(&generation)
            || self.cause.nameless.contains(&place)
            || history.deletes > 0
            || self.undecided.contains(&place)
            || self.undecided.iter().any(|it| self.generation_of.get(it) == Some(&generation))
            || self.deleting.values().any(dropped)
    }

    /// Whether a copy belongs to an object that a later one of its name has replaced, which is not gone.
    pub(crate) fn is_of_replaced(&self, place: &(SegmentId, SlotRef)) -> bool {
        let Some(generation) = self.generation_of.get(place) else { return false };
        let name = self.objects.get(generation).map(|it| it.name);
        let newest = name.and_then(|it| self.newest.get(&it)).filter(|it| *it > generation);
        newest.and_then(|it| self.objects.get(it)).is_some_and(|it| !it.is_gone())
    }

    /// An object is retired: if it is in favour of another one, that must get its name. A retire that is
    /// repeated may belong to an earlier removal, which is what the other one waits for. If the other one is
    /// evicted, what it has replaced goes first, and it is not known yet that the other one follows. A delete
    /// that began before the other one was put may retire the object later.
    fn retired_for(&mut self, generation: Generation, again: bool) {
        let generation_of = &self.generation_of;
        self.successors.retain(|place, _| generation_of.get(place) != Some(&generation));
        if again {
            return;
        }
        let history = self.objects.get(&generation).filter(|it| !it.is_deleted_first);
        let Some(name) = history.map(|it| it.name) else { return };
        let newest = self.newest.get(&name).copied();
        let newest = newest.filter(|it| *it > generation && self.is_of_this_master(*it));
        // A delete removes both, in any order.
        let is_unseen = self.cause.evicting || self.has_unknown_evictions;
        let stays = |it: &ObjectHistory| !it.is_gone() && (it.is_protected() || !is_unseen);
        let newest = newest.filter(|it| self.objects.get(it).is_some_and(stays));
        // A lost node decides nothing any more.
        let is_there = |(place, it): &(&(SegmentId, SlotRef), &Generation)| {
            Some(**it) == newest && !self.lost.contains_key(&place.0)
        };
        let successors = self.generation_of.iter().filter(is_there);
        self.successors.extend(successors.map(|(place, _)| (*place, name)));
    }

    /// Whether an object has enough copies in memory without that one.
    fn is_surplus(&self, generation: Generation, place: (SegmentId, SlotRef)) -> bool {
        let value = self.written.get(&place).and_then(|it| self.value(*it));
        let wanted = value.map_or(0, |it| it.copies as usize);
        let others = self.generation_of.iter().filter(|(it, of)| **of == generation && **it != place);
        let others = others.filter(|((segment, slot_ref), _)| {
            // An eviction to a disk is noted for all memories, and concerns one.
            let is_retired = self.retired.contains(&(*segment, *slot_ref));
            let is_there = !is_retired || self.tier.has_disk_copy(generation);
            self.joined.contains(segment)
                && is_there
                && !slot_ref.is_on_disk()
                && !self.tier.is_pending((*segment, *slot_ref))
        });
        wanted > 1 && others.count() >= wanted
    }
}
