//! Down the hierarchy: from the device to the host, and from the host to the store.
//!
//! A save or a backup pins its source until its own end, so a request need not wait for it (O1). A request
//! ends when its pages are in the host; nobody waits for a backup.

use std::collections::BTreeSet;

use super::{
    CellId, Ending, Engine, Item, OpKind, Order, ReqId, Residency, Slot, State, Tier, policy, sabotaged,
};
use crate::inventory::Stored;
use crate::message::{PageId, PageRecord, Place};

/// Saves that may wait for their turn.
const SAVE_JOBS_MAX: usize = 4096;
/// Pages that may wait to be backed up.
const BACKUPS_WAITING_MAX: usize = 1 << 16;

/// Pages to be saved, for a request that waits for that or for nobody.
#[derive(Clone, Debug, Hash)]
pub(super) struct SaveJob {
    pub(super) request: Option<ReqId>,
    /// All of one root.
    cells: Vec<CellId>,
    /// Under write-back: somebody waits until these may leave the device.
    makes_room: bool,
}

impl Engine {
    /// Pages that were just computed go to the host, if the policy has it so.
    pub(super) fn save_computed(&mut self, cells: Vec<CellId>) {
        if policy::saves(self.config.write, 0) {
            self.queue_save(None, cells);
        }
    }

    /// Pages that were used again go to the host, if that makes them worth it.
    pub(super) fn save_used(&mut self, id: ReqId) {
        let cells = self.unsaved(id);
        self.queue_save(None, cells);
    }

    /// The shared pages of a request that the policy wants in the host and that are not.
    fn unsaved(&self, id: ReqId) -> Vec<CellId> {
        let wanted = |slot: &Slot| match slot {
            Slot::Shared(id, _) => {
                let cell = self.inventory.cell(*id);
                let is_wanted = policy::saves(self.config.write, cell.hits);
                (is_wanted && self.can_save(*id)).then_some(*id)
            }
            Slot::Private(_) => None,
        };
        self.request(id).slots.iter().filter_map(wanted).collect()
    }

    fn can_save(&self, id: CellId) -> bool {
        self.inventory.find(id).is_some_and(|cell| {
            cell.is_valid(Tier::Device)
                && cell.residency(Tier::Host) == Residency::Absent
                && self.inventory.is_live(cell.root)
        })
    }

    fn queue_save(&mut self, request: Option<ReqId>, cells: Vec<CellId>) -> bool {
        let has_host = self.config.host_pages > 0;
        if cells.is_empty() || !has_host || self.saves.len() >= SAVE_JOBS_MAX {
            self.stats.saves_skipped += cells.len() as u64;
            return false;
        }
        self.saves.push_back(SaveJob { request, cells, makes_room: false });
        true
    }

    /// The request has its tokens: what is not in the host goes there before the request lets go of it.
    pub(super) fn drain(&mut self, id: ReqId) {
        let cells = self.unsaved(id);
        if self.queue_save(Some(id), cells) {
            self.set_alarm(id, Some(self.now + self.config.op_patience));
        } else {
            self.drained(id);
        }
    }

    /// It has held its pages for long enough.
    pub(super) fn stop_draining(&mut self, id: ReqId) {
        self.end_request(id, Ending::Finished);
    }

    /// Issues what is to be saved; true if pages may leave now that could not be saved.
    pub(super) fn pump_saves(&mut self) -> bool {
        self.save_for_room();
        self.save_ahead();
        let mut gave_up = false;
        while let Some(mut job) = self.saves.pop_front() {
            job.cells.retain(|id| self.can_save(*id));
            let budget = self.ledger.room(OpKind::Save).min(self.config.op_pages_max);
            if budget == 0 && !job.cells.is_empty() {
                self.saves.push_front(job);
                break;
            }
            let wanted = budget.min(job.cells.len() as u32);
            let has_room = self.inventory.make_room(Tier::Host, wanted);
            let count = if has_room { wanted } else { wanted.min(self.inventory.counts(Tier::Host).free) };
            if count > 0 {
                let batch: Vec<_> = job.cells.drain(..count as usize).collect();
                self.save(&job, &batch);
            }
            if count > 0 && !job.cells.is_empty() {
                self.saves.push_front(job);
                continue;
            }
            // What the host has no room for is not saved: it is a cache.
            self.stats.saves_skipped += job.cells.len() as u64;
            if job.makes_room {
                gave_up |= !job.cells.is_empty();
                job.cells.iter().for_each(|id| self.inventory.give_up_saving(*id));
            }
            if let Some(request) = job.request {
                self.drained(request);
            }
        }
        self.tell_saving();
        gave_up
    }

    /// Under write-back: what must be saved before there is room goes before all else.
    fn save_for_room(&mut self) {
        let mut unsaved = self.inventory.take_unsaved();
        unsaved.retain(|id| self.can_save(*id));
        for cells in self.by_root(unsaved) {
            self.saves.push_front(SaveJob { request: None, cells, makes_room: true });
        }
    }

    /// Those of one root together, in the order of their positions.
    fn by_root(&self, mut cells: Vec<CellId>) -> Vec<Vec<CellId>> {
        let root = |id: &CellId| self.inventory.cell(*id).root;
        cells.sort_by_key(|id| (root(id), self.inventory.cell(*id).position, *id));
        cells.chunk_by(|a, b| root(a) == root(b)).map(<[CellId]>::to_vec).collect()
    }

    /// Tells the inventory whether anybody waits for saves, and whether they are stuck.
    pub(super) fn tell_saving(&mut self) {
        let is_saving = !self.room_saves.is_empty() || self.saves.iter().any(|job| job.makes_room);
        self.inventory.set_saving(is_saving, self.stuck_saves > 0);
    }

    /// Under write-back: what will leave the device next is saved first. Where no page was taken since the
    /// last time nothing is about to leave, and a host that is smaller than the device would only be
    /// churned.
    fn save_ahead(&mut self) {
        let taken = self.inventory.pool(Tier::Device).taken();
        if taken == self.saved_ahead_at {
            return;
        }
        let free = self.inventory.counts(Tier::Device).free;
        let is_time = policy::saves_ahead(self.config.write, free, self.config.device_pages);
        if is_time && self.saves.is_empty() && self.ledger.in_flight(OpKind::Save) == 0 {
            self.saved_ahead_at = taken;
            let mut cells = self.inventory.next_to_leave(self.config.op_pages_max as usize);
            cells.retain(|id| self.can_save(*id));
            for cells in self.by_root(cells) {
                self.queue_save(None, cells);
            }
        }
    }

    fn save(&mut self, job: &SaveJob, cells: &[CellId]) {
        let request = job.request;
        let Some(root) = cells.first().map(|id| self.inventory.cell(*id).root) else { return };
        let Some((space, root_hash)) = self.space_of(root) else { return };
        let op = self.ledger.next_id();
        let mut items = Vec::with_capacity(cells.len());
        for id in cells {
            let cell = self.inventory.cell(*id);
            let (position, hash) = (cell.position, cell.hash);
            let from = cell.copy(Tier::Device).page().unwrap_or(u32::MAX);
            self.inventory.pin(*id, Tier::Device);
            let to = self.inventory.stage(*id, Tier::Host, op);
            let source = Place::Page(PageId { tier: Tier::Device, index: from });
            let target = Place::Page(PageId { tier: Tier::Host, index: to });
            items.push(Item { record: PageRecord { position, hash, source, target }, cell: Some(*id) });
            if sabotaged!(self.config.sabotage, PublishSaveEarly) {
                self.inventory.settle(*id, Tier::Host, op, true);
            }
        }
        let deadline = self.now + self.config.op_patience;
        self.issue(Order {
            id: op,
            kind: OpKind::Save,
            space,
            root,
            root_hash,
            items,
            deadline,
            waiter: request,
        });
        if job.makes_room {
            self.room_saves.insert(op);
        }
        if let Some(request) = request {
            self.request_mut(request).waits.insert(op);
        }
    }

    /// All that the request had to save is on its way, or will not be: operations own the pins from here on,
    /// and the request waits for those that save its pages, whoever began them.
    fn drained(&mut self, id: ReqId) {
        self.set_alarm(id, None);
        let saves = |slot: &Slot| match slot {
            Slot::Shared(cell, _) => match self.inventory.cell(*cell).residency(Tier::Host) {
                Residency::Pending(op, _) => Some(op),
                _ => None,
            },
            Slot::Private(_) => None,
        };
        let pending: BTreeSet<_> = self.request(id).slots.iter().filter_map(saves).collect();
        for op in pending {
            let live =
                self.ledger.find_mut(op).filter(|live| live.kind == OpKind::Save && !live.is_abandoned);
            if let Some(live) = live {
                live.waiters.insert(id);
                self.request_mut(id).waits.insert(op);
            }
        }
        self.vacate(id);
        self.request_mut(id).state = State::WritingBack;
        if self.request(id).waits.is_empty() {
            self.end_request(id, Ending::Finished);
        }
    }

    /// A page is in the host: it may go on to the store.
    pub(super) fn queue_backup(&mut self, id: CellId) {
        if self.config.store.is_none() || self.inventory.cell(id).stored != Stored::Unknown {
            return;
        }
        if self.backups.len() >= BACKUPS_WAITING_MAX {
            self.stats.backups_skipped += 1;
            return;
        }
        self.backups.push_back(id);
    }

    pub(super) fn pump_backups(&mut self) {
        while policy::backs_up(self.pressures.store) && !self.backups.is_empty() {
            let budget = self.ledger.room(OpKind::Backup).min(self.config.op_pages_max) as usize;
            if budget == 0 {
                return;
            }
            let batch = self.next_backup(budget);
            if !batch.is_empty() {
                self.back_up(&batch);
            }
        }
    }

    /// The pages at the head of the line that are of one namespace and can still be backed up.
    fn next_backup(&mut self, budget: usize) -> Vec<CellId> {
        let mut batch: Vec<CellId> = Vec::new();
        while batch.len() < budget
            && let Some(id) = self.backups.pop_front()
        {
            let Some(cell) = self.inventory.find(id) else { continue };
            let is_wanted = cell.is_valid(Tier::Host) && cell.stored == Stored::Unknown;
            let takes = self.space_of(cell.root).is_some_and(|(_, root)| !self.clearing.contains_key(&root));
            if !is_wanted || !takes || batch.contains(&id) {
                continue;
            }
            if batch.first().is_some_and(|first| self.inventory.cell(*first).root != cell.root) {
                self.backups.push_front(id);
                break;
            }
            batch.push(id);
        }
        batch
    }

    fn back_up(&mut self, cells: &[CellId]) {
        let Some(root) = cells.first().map(|id| self.inventory.cell(*id).root) else { return };
        let Some((space, root_hash)) = self.space_of(root) else { return };
        let op = self.ledger.next_id();
        let mut items = Vec::with_capacity(cells.len());
        for id in cells {
            if !sabotaged!(self.config.sabotage, UnpinnedBackup) {
                self.inventory.pin(*id, Tier::Host);
            }
            let cell = self.inventory.cell_mut(*id);
            cell.stored = Stored::Pending(op);
            let index = cell.copy(Tier::Host).page().unwrap_or(u32::MAX);
            let source = Place::Page(PageId { tier: Tier::Host, index });
            let record =
                PageRecord { position: cell.position, hash: cell.hash, source, target: Place::Store };
            items.push(Item { record, cell: Some(*id) });
        }
        self.confuse_hashes(&mut items);
        let deadline = self.now + self.config.op_patience;
        self.issue(Order {
            id: op,
            kind: OpKind::Backup,
            space,
            root,
            root_hash,
            items,
            deadline,
            waiter: None,
        });
    }

    /// Two ways in which lists of pages and of hashes that lie beside each other have come apart.
    fn confuse_hashes(&self, items: &mut [Item]) {
        let hashes: Vec<_> = items.iter().map(|item| item.record.hash).collect();
        if sabotaged!(self.config.sabotage, ReverseBackupHashes) {
            items.iter_mut().zip(hashes.iter().rev()).for_each(|(item, hash)| item.record.hash = *hash);
        }
        if sabotaged!(self.config.sabotage, SlideHashes) {
            items.iter_mut().zip(hashes.iter().skip(1)).for_each(|(item, hash)| item.record.hash = *hash);
        }
    }
}
