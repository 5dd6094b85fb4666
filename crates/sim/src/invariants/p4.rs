//! P4: nothing pinned is evicted, and nothing leased. Nothing vanishes without a reason: a lookup misses only
//! what was deleted, replaced, evicted, or lost with its node.

use tiffin_core::{Generation, SegmentId, Tick, message::Record};

use crate::{
    coverage::{Coverage, Point},
    names::Name,
    oracle::{Memories, Oracle, copies},
};

impl Oracle {
    /// The master evicts an object.
    pub(crate) fn evicted(&mut self, now: Tick, generation: Generation, coverage: &mut Coverage) {
        coverage.hit(Point::CheckedEviction);
        let Some(life) = self.lives.get(&generation) else { return };
        let name = life.name;
        if life.pinned {
            self.fail("p4", || format!("{name:?} {generation} is pinned, and was evicted"));
        } else if life.lease_until > now {
            let until = life.lease_until;
            self.fail("p4", || {
                format!("{name:?} {generation} was evicted at {now:?}, leased until {until:?}")
            });
        }
    }

    /// A lookup finds nothing, and not because nodes are away.
    pub(crate) fn absent(&mut self, name: Name, memories: &Memories, coverage: &mut Coverage) {
        let Some(generation) = self.newest.get(&name).copied() else { return };
        let Some(life) = self.lives.get(&generation).filter(|it| !it.is_gone()) else { return };
        let pinned = life.pinned;
        if pinned {
            coverage.hit(Point::CheckedPinnedAbsence);
        }
        let members = memories.iter().filter(|(segment, it)| it.alive && self.joined.contains(segment));
        let mut holders = members.filter(|(_, it)| copies(it, generation).next().is_some());
        if let Some((segment, _)) = holders.next() {
            let segment = *segment;
            let which = if pinned { "p4" } else { "names" };
            self.fail(which, || format!("{name:?} {generation} is said to be absent, but {segment} has it"));
        }
    }

    /// A node that comes back must drop an object: only one that is gone for a reason.
    pub(crate) fn refuses(&mut self, segment: SegmentId, record: &Record) {
        let generation = record.generation;
        let Some(life) = self.lives.get(&generation) else { return };
        let (name, pinned) = (life.name, life.pinned);
        if !life.is_gone() && self.newest.get(&name) == Some(&generation) {
            let which = if pinned { "p4" } else { "names" };
            self.fail(which, || format!("{segment} must drop {name:?} {generation} for no reason"));
        }
    }
}
