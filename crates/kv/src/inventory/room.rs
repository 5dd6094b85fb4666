//! Making room: victims are chosen on trial, and leave only if they are enough (O5). Under write-back they
//! leave only when they are saved, or cannot be.

use super::{CellId, Inventory, Residency, Written, of, of_mut};
use crate::config::Config;
use crate::index::Index;
use crate::message::Tier;
use crate::policy::WritePolicy;
use crate::sabotage::sabotaged;

/// How many of those to leave are looked at for one that is saved already.
const CLEAN_LOOK_MAX: usize = 64;

/// What write-back keeps on the device until it is saved.
#[derive(Clone, Debug, Hash)]
pub(super) struct WriteBack {
    /// Pages leave the device when they are saved.
    is_on: bool,
    /// Saves are stuck: what cannot be saved meanwhile may leave as it is.
    is_stuck: bool,
    /// Somebody waits for pages that are being saved; nothing more leaves for that before they are.
    is_saving: bool,
    /// Pages that must be saved before there is room.
    wanted: Vec<CellId>,
    /// Copies that left and were not saved.
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
    /// Whether so many pages are free, or could be. Where some of those that would leave must be saved first
    /// there is no room yet, and they are among those that [`Inventory::take_unsaved`] tells of.
    pub(crate) fn make_room(&mut self, tier: Tier, pages: u32) -> bool {
        let free = self.counts(tier).free;
        let Some(short) = pages.checked_sub(free).filter(|short| *short > 0) else { return true };
        let in_vain = sabotaged!(self.sabotage, EvictInVain);
        if *of(tier, &self.idle) < short && !in_vain {
            return false;
        }
        let keeps = tier == Tier::Device && self.write_back.is_on && !sabotaged!(self.sabotage, ReuseUnsaved);
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
        if (!is_enough && !in_vain) || !wanted.is_empty() {
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

    /// Room on the device for somebody who cannot wait until pages are saved: copies leave that are saved
    /// already, whoever would leave before them.
    pub(crate) fn make_clean_room(&mut self, pages: u32) -> bool {
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

    /// The pages that must be saved before there is room for whoever asked last.
    pub(crate) fn take_unsaved(&mut self) -> Vec<CellId> {
        std::mem::take(&mut self.write_back.wanted)
    }

    /// Whether somebody waits for pages to be saved, and whether saves are stuck.
    pub(crate) fn set_saving(&mut self, is_saving: bool, is_stuck: bool) {
        if (self.write_back.is_saving, self.write_back.is_stuck) != (is_saving, is_stuck) {
            (self.write_back.is_saving, self.write_back.is_stuck) = (is_saving, is_stuck);
            self.room_changes += 1;
        }
    }

    /// These could not be saved: they may leave as they are.
    pub(crate) fn give_up_saving(&mut self, id: CellId) {
        if self.write_back.is_on && self.find(id).is_some() {
            self.cell_mut(id).written = Written::GivenUp;
            self.room_changes += 1;
        }
    }

    /// Copies that left the device under write-back and were not saved.
    pub(crate) fn lost_unsaved(&self) -> u64 {
        self.write_back.lost
    }

    /// Whether a copy is on the device only, and would be missed.
    fn is_unsaved(&self, id: CellId) -> bool {
        let cell = self.cell(id);
        let is_elsewhere = cell.residency(Tier::Host) != Residency::Absent;
        !is_elsewhere && cell.written == Written::No && !self.write_back.is_stuck && self.is_live(cell.root)
    }

    /// Copies that are about to leave the device, in about the order in which they will: the first in the
    /// line, and those before them that would be next.
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
        if tier == Tier::Device && self.write_back.is_on {
            let is_elsewhere = cell.residency(Tier::Host) != Residency::Absent;
            let may_be_lost = cell.written == Written::GivenUp || self.write_back.is_stuck;
            self.write_back.lost += u64::from(may_be_lost && cell.written != Written::Yes && !is_elsewhere);
        }
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
