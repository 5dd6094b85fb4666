//! What the oracle knows of objects that are taken away: each for a reason.

use tiffin_core::{Hold, SegmentId, Tick};

use crate::{
    coverage::{Coverage, Point},
    oracle::{Deleting, Oracle},
};

impl Oracle {
    /// The master takes an object away: there must be a reason.
    pub(crate) fn retires(&mut self, now: Tick, segment: SegmentId, hold: Hold, coverage: &mut Coverage) {
        // What is gone may be asked for any number of times.
        let again = !self.retired.insert((segment, hold));
        let was_pending = self.shelving.leaves((segment, hold));
        let Some(generation) = self.generation_of.get(&(segment, hold)).copied() else { return };
        if again || self.lives.get(&generation).is_some_and(|it| it.gone) {
            return;
        }
        // Samples that were waited for too long go in the same breath.
        let waited = self.lives.get(&generation).is_some_and(|it| it.sample) && self.impatient;
        let evicting = self.cause.evicting && !waited;
        if evicting {
            self.evicted(now, generation, coverage);
            // It only leaves memory.
            if self.shelving.is_shelved(generation) {
                return self.leaves_memory(generation, coverage);
            }
        }
        // What was never a copy goes without its object, unless that is evicted.
        if was_pending && !evicting {
            return;
        }
        let Some(life) = self.lives.get_mut(&generation) else { return };
        let dropped =
            |it: &Deleting| it.victims.iter().flat_map(|(_, of)| of).any(|it| it.generation == generation);
        let asked = self.cause.names.contains(&life.name)
            || self.cause.generations.contains(&generation)
            || self.cause.nameless.contains(&(segment, hold))
            || life.deletes > 0
            || self.undecided.contains(&(segment, hold))
            || self.undecided.iter().any(|it| self.generation_of.get(it) == Some(&generation))
            || self.deleting.values().any(dropped);
        // What was evicted unseen is asked for when its node is back.
        let unseen = self.blind && !life.is_protected();
        let explained = evicting || asked || waited || unseen;
        life.gone = true;
        if let Some(left) = &mut self.left {
            let newest = left.entry(life.name).or_default();
            *newest = (*newest).max(generation);
        }
        // What somebody else took away by force is not refused; it may only not be confirmed yet.
        let by_another = life.dead.is_some() || life.deletes > 1;
        let (name, leased) = (life.name, life.lease_until > now && !by_another);
        if self.cause.polite && !evicting {
            coverage.hit(Point::CheckedRefusal);
            if leased {
                self.fail("p2", || format!("{name:?} {generation} is leased, and was removed unforced"));
            }
        }
        if waited && !asked {
            self.given_up(name, generation, now, coverage);
        }
        // Leases end with what they are of, also if a node that was away brings that back.
        self.leases.retain(|_, (_, leased)| *leased != generation);
        if !explained {
            self.fail("names", || format!("{name:?} {generation} is taken away, and nobody asked for that"));
        }
    }
}
