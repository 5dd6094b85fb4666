//! Freeing pages: victims are chosen tentatively, and leave only if they are enough (O5). Under write-back
//! they leave only after they are saved, or if saves fail.

use super::{Inventory, of, of_mut};
use crate::cell::{CellId, Residency, Written};
use crate::config::Config;
use crate::index::Index;
use crate::message::Tier;
use crate::policy::WritePolicy;

/// Copies of the queue that are searched for one that is saved already.
const CLEAN_LOOK_MAX: usize = 64;

/// The state of write-back, which keeps copies on the device until they are saved.
#[derive(Clone, Debug, Hash)]
pub(super) struct WriteBack {
    /// Whether pages must be saved before they leave the device.
    is_on: bool,
    /// Saves are stuck: pages may leave without being saved.
    is_stuck: bool,
    /// A request waits for pages that are being saved; no more pages are chosen meanwhile.
    is_saving: bool,
    /// Pages to save before they can leave.
    wanted: Vec<CellId>,
    /// Number of copies that left without being saved.
    lost: u64,
}

impl WriteBack {
    pub(super) fn new(config: &Config) -> Self {
        let is_on =
            config.write == WritePolicy::Back && config.host_pages > 0 && config.budgets.save_pages > 0;
        Self { is_on, is_stuck: false, is_saving: false, wanted: Vec::new(), lost: 0 }
    }
}

impl Inventory {
    /// Makes sure that this number of pages is free, with evictions if needed. False if that is impossible
    /// now. If some victims must be saved first, [`Inventory::take_unsaved`] returns them.
    pub(crate) fn free_up(&mut self, tier: Tier, pages: u32) -> bool {
        let free = self.counts(tier).free;
        let Some(short) = pages.checked_sub(free).filter(|short| *short > 0) else { return true };
        let only_if_enough = self.mutant.evicts_only_if_enough();
        if *of(tier, &self.idle) < short && only_if_enough {
            return false;
        }
        let keeps = tier == Tier::Device && self.write_back.is_on && self.mutant.saves_before_reuse();
        if keeps && self.write_back.is_saving {
            return false;
        }
        let mut victims = Vec::new();
        while victims.len() < short as usize {
            let Some(id) = self.next_victim(tier) else { break };
            self.set_leaving(id, tier, true);
            victims.push(id);
        }
        let is_enough = victims.len() == short as usize;
        let unsaved = || victims.iter().copied().filter(|id| self.is_unsaved(*id));
        let wanted: Vec<_> = if keeps && is_enough { unsaved().collect() } else { Vec::new() };
        if (!is_enough && only_if_enough) || !wanted.is_empty() {
            for id in victims.into_iter().rev() {
                self.set_leaving(id, tier, false);
            }
            self.write_back.wanted = wanted;
            return false;
        }
        for id in victims {
            self.evict(id, tier);
        }
        is_enough
    }

    /// The same on the device for a request that cannot wait for saves: only saved copies are evicted, also
    /// if others are before them in the queue.
    pub(crate) fn free_up_clean(&mut self, pages: u32) -> bool {
        let tier = Tier::Device;
        let short = pages.saturating_sub(self.counts(tier).free) as usize;
        if !self.write_back.is_on && short > 0 {
            return false;
        }
        let line = of(tier, &self.evictors).peek().take(CLEAN_LOOK_MAX);
        let victims: Vec<_> = line.filter(|id| !self.is_unsaved(*id)).take(short).collect();
        if victims.len() < short {
            return false;
        }
        for id in victims {
            self.set_leaving(id, tier, true);
            self.evict(id, tier);
        }
        true
    }

    /// The pages to save before the last call of [`Inventory::free_up`] can succeed.
    pub(crate) fn take_unsaved(&mut self) -> Vec<CellId> {
        std::mem::take(&mut self.write_back.wanted)
    }

    /// Sets whether a request waits for saves, and whether saves are stuck.
    pub(crate) fn set_saving(&mut self, is_saving: bool, is_stuck: bool) {
        if (self.write_back.is_saving, self.write_back.is_stuck) != (is_saving, is_stuck) {
            (self.write_back.is_saving, self.write_back.is_stuck) = (is_saving, is_stuck);
            self.fit_changes += 1;
        }
    }

    /// This page could not be saved: it may leave all the same.
    pub(crate) fn give_up_saving(&mut self, id: CellId) {
        if self.write_back.is_on && self.find(id).is_some() {
            self.cell_mut(id).written = Written::GivenUp;
            self.fit_changes += 1;
        }
    }

    /// Number of copies that left the device under write-back without being saved.
    pub(crate) fn lost_unsaved(&self) -> u64 {
        self.write_back.lost
    }

    /// Whether a copy is only on the device, and must be saved.
    fn is_unsaved(&self, id: CellId) -> bool {
        let cell = self.cell(id);
        let is_elsewhere = cell.residency(Tier::Host) != Residency::Absent;
        !is_elsewhere && cell.written == Written::No && !self.write_back.is_stuck && self.is_live(cell.root)
    }

    /// Copies that will leave the device next, in approximate order: the first ones in the queue, and their
    /// parents that follow them.
    pub(crate) fn next_to_leave(&self, count: usize) -> Vec<CellId> {
        let tier = Tier::Device;
        let mut next = Vec::new();
        for first in of(tier, &self.evictors).peek().take(count) {
            let mut on_the_way = Some(first);
            while let Some(id) = on_the_way
                && next.len() < count
            {
                next.push(id);
                let before = self.cell(id).parent.filter(|_| self.index.leaves_first());
                on_the_way = before.filter(|id| {
                    self.find(*id).is_some_and(|cell| cell.copy(tier).is_idle && cell.copy(tier).behind == 1)
                });
            }
            if next.len() >= count {
                break;
            }
        }
        next
    }

    fn next_victim(&mut self, tier: Tier) -> Option<CellId> {
        of_mut(tier, &mut self.evictors).next(&mut self.cells)
    }

    /// Chooses a victim tentatively: its parent may be chosen next, as if it were gone.
    fn set_leaving(&mut self, id: CellId, tier: Tier, is_leaving: bool) {
        self.cell_mut(id).copy_mut(tier).is_leaving = is_leaving;
        self.refresh(id, tier);
        self.adjust_children(id, tier, !is_leaving);
    }

    fn evict(&mut self, id: CellId, tier: Tier) {
        // The tentative choice is undone before the copy is removed.
        let cell = self.cell(id);
        let is_leaf = cell.copy(tier).behind == 0 || !self.is_live(cell.root);
        assert!(is_leaf || !self.index.leaves_first(), "V4: {id:?} would leave a hole in {tier:?}");
        if tier == Tier::Device && self.write_back.is_on {
            let is_elsewhere = cell.residency(Tier::Host) != Residency::Absent;
            let may_be_lost = cell.written == Written::GivenUp || self.write_back.is_stuck;
            self.write_back.lost += u64::from(may_be_lost && cell.written != Written::Yes && !is_elsewhere);
        }
        self.cell_mut(id).copy_mut(tier).is_leaving = false;
        self.adjust_children(id, tier, true);
        of_mut(tier, &mut self.evictors).left(self.cells.get(id.0));
        *of_mut(tier, &mut self.evicted) += 1;
        self.remove_copy(id, tier);
        self.reap(id);
    }

    /// Adds a copy to the eviction queue or removes it, according to its current uses and children.
    pub(super) fn refresh(&mut self, id: CellId, tier: Tier) {
        let copy = self.cell(id).copy(tier);
        let is_idle = matches!(copy.residency, Residency::Valid(_)) && !copy.is_used() && !copy.is_leaving;
        let leaves_first = self.index.leaves_first() && self.mutant.evicts_leaves_first();
        let is_inner = leaves_first && copy.behind > 0;
        let may_leave = is_idle && !(is_inner && self.is_live(self.cell(id).root));
        if is_idle != copy.is_idle {
            self.fit_changes += 1;
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
