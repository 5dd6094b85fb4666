//! Making room: victims are chosen on trial, and leave only if they are enough (O5).

use super::{CellId, Inventory, Residency, of, of_mut};
use crate::index::Index;
use crate::message::Tier;
use crate::sabotage::sabotaged;

impl Inventory {
    /// Whether so many pages are free, or could be.
    pub(crate) fn make_room(&mut self, tier: Tier, pages: u32) -> bool {
        let free = self.counts(tier).free;
        let Some(short) = pages.checked_sub(free).filter(|short| *short > 0) else { return true };
        let in_vain = sabotaged!(self.sabotage, EvictInVain);
        if *of(tier, &self.idle) < short && !in_vain {
            return false;
        }
        let mut victims = Vec::new();
        while victims.len() < short as usize {
            let Some(id) = self.next_victim(tier) else { break };
            self.set_leaving(id, tier, true);
            victims.push(id);
        }
        let is_enough = victims.len() == short as usize;
        if !is_enough && !in_vain {
            for id in victims.into_iter().rev() {
                self.set_leaving(id, tier, false);
            }
            return false;
        }
        for id in victims {
            self.evict(id, tier);
        }
        is_enough
    }

    /// The copies that would leave next.
    pub(crate) fn next_to_leave(&self, tier: Tier, count: usize) -> Vec<CellId> {
        of(tier, &self.evictors).peek().take(count).collect()
    }

    fn next_victim(&mut self, tier: Tier) -> Option<CellId> {
        of_mut(tier, &mut self.evictors).next(&mut self.cells)
    }

    /// On trial: those before it may be next, as if it were gone.
    fn set_leaving(&mut self, id: CellId, tier: Tier, is_leaving: bool) {
        self.cell_mut(id).copy_mut(tier).is_leaving = is_leaving;
        self.refresh(id, tier);
        self.adjust_behind(id, tier, !is_leaving);
    }

    fn evict(&mut self, id: CellId, tier: Tier) {
        // What was taken away on trial is put back, to be taken away in earnest.
        let cell = self.cell(id);
        let is_leaf = cell.copy(tier).behind == 0 || !self.is_live(cell.root);
        assert!(is_leaf || !self.index.leaves_first(), "V4: {id:?} would leave a hole in {tier:?}");
        self.cell_mut(id).copy_mut(tier).is_leaving = false;
        self.adjust_behind(id, tier, true);
        of_mut(tier, &mut self.evictors).left(self.cells.get(id.0));
        *of_mut(tier, &mut self.evicted) += 1;
        self.remove_copy(id, tier);
        self.reap(id);
    }

    /// Puts a copy into the line of those to leave, or takes it out, as it is used and stands now.
    pub(super) fn refresh(&mut self, id: CellId, tier: Tier) {
        let copy = self.cell(id).copy(tier);
        let is_idle = matches!(copy.residency, Residency::Valid(_)) && !copy.is_used() && !copy.is_leaving;
        let inner =
            self.index.leaves_first() && copy.behind > 0 && !sabotaged!(self.sabotage, EvictInnerPages);
        let may_leave = is_idle && !(inner && self.is_live(self.cell(id).root));
        if is_idle != copy.is_idle {
            self.room_changes += 1;
            let idle = of_mut(tier, &mut self.idle);
            *idle = if is_idle { *idle + 1 } else { *idle - 1 };
        }
        let evictor = of_mut(tier, &mut self.evictors);
        let cell = self.cells.get_mut(id.0);
        cell.copy_mut(tier).is_idle = is_idle;
        match (may_leave, cell.copy(tier).queued.is_some()) {
            (true, false) => evictor.enter(cell, id),
            (false, true) => evictor.withdraw(cell, id),
            _ => {}
        }
    }
}
