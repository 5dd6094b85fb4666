//! Saves from the device to the host, and backups from the host to the store.
//!
//! A save or a backup pins its source until its own end, so a request need not hold its pages (O1). A request
//! ends when its pages are in the host; it does not wait for backups.

use std::collections::BTreeSet;

use super::{CellId, Ending, Engine, Item, OpKind, Order, ReqId, Residency, Slot, State, Tier, policy};
use crate::cell::Stored;
use crate::message::{PageId, PageRecord, Place};

/// Queued saves at most.
const SAVE_JOBS_MAX: usize = 4096;
/// Queued backups at most, in pages.
const BACKUPS_WAITING_MAX: usize = 1 << 16;

/// Pages to save, and the request that waits for that, if any.
#[derive(Clone, Debug, Hash)]
pub(super) struct SaveJob {
    pub(super) request: Option<ReqId>,
    /// All of one root.
    cells: Vec<CellId>,
    /// Under write-back: a request waits for the memory of these pages.
    is_urgent: bool,
}

impl Engine {
    /// Queues a save of computed pages, if the policy wants that.
    pub(super) fn save_computed(&mut self, cells: Vec<CellId>) {
        if policy::saves(self.config.write, 0) {
            self.queue_save(None, cells);
        }
    }

    /// Queues a save of pages that were used again, if the policy wants that.
    pub(super) fn save_used(&mut self, id: ReqId) {
        let cells = self.unsaved(id);
        self.queue_save(None, cells);
    }

    /// The shared pages of a request that the policy wants in the host, and that are not there.
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
        self.saves.push_back(SaveJob { request, cells, is_urgent: false });
        true
    }

    /// The request has all its tokens: its pages are saved before it releases them.
    pub(super) fn drain(&mut self, id: ReqId) {
        let cells = self.unsaved(id);
        if self.queue_save(Some(id), cells) {
            self.set_alarm(id, Some(self.now + self.config.op_patience));
        } else {
            self.drained(id);
        }
    }

    /// The request has held its pages for too long.
    pub(super) fn stop_draining(&mut self, id: ReqId) {
        self.end_request(id, Ending::Finished);
    }

    /// Issues queued saves; true if pages may now leave that could not be saved.
    pub(super) fn pump_saves(&mut self) -> bool {
        self.save_urgent();
        self.save_ahead();
        let mut gave_up = false;
        while let Some(mut job) = self.saves.pop_front() {
            job.cells.retain(|id| self.can_save(*id));
            let budget = self.ledger.budget_left(OpKind::Save).min(self.config.op_pages_max);
            if budget == 0 && !job.cells.is_empty() {
                self.saves.push_front(job);
                break;
            }
            let wanted = budget.min(job.cells.len() as u32);
            let is_enough = self.inventory.free_up(Tier::Host, wanted);
            let count = if is_enough { wanted } else { wanted.min(self.inventory.counts(Tier::Host).free) };
            if count > 0 {
                let batch: Vec<_> = job.cells.drain(..count as usize).collect();
                self.save(&job, &batch);
            }
            if count > 0 && !job.cells.is_empty() {
                self.saves.push_front(job);
                continue;
            }
            // A full host skips saves: it is a cache.
            self.stats.saves_skipped += job.cells.len() as u64;
            if job.is_urgent {
                gave_up |= !job.cells.is_empty();
                job.cells.iter().for_each(|id| self.inventory.give_up_saving(*id));
            }
            if let Some(request) = job.request {
                self.drained(request);
            }
        }
        self.report_saving();
        gave_up
    }

    /// Under write-back: pages that a request waits for are saved first.
    fn save_urgent(&mut self) {
        let mut unsaved = self.inventory.take_unsaved();
        unsaved.retain(|id| self.can_save(*id));
        for cells in self.by_root(unsaved) {
            self.saves.push_front(SaveJob { request: None, cells, is_urgent: true });
        }
    }

    /// Groups cells by root, in the order of their positions.
    fn by_root(&self, mut cells: Vec<CellId>) -> Vec<Vec<CellId>> {
        let root = |id: &CellId| self.inventory.cell(*id).root;
        cells.sort_by_key(|id| (root(id), self.inventory.cell(*id).position, *id));
        cells.chunk_by(|a, b| root(a) == root(b)).map(<[CellId]>::to_vec).collect()
    }

    /// Tells the inventory whether a request waits for saves, and whether saves are stuck.
    pub(super) fn report_saving(&mut self) {
        let is_saving = !self.urgent_saves.is_empty() || self.saves.iter().any(|job| job.is_urgent);
        self.inventory.set_saving(is_saving, self.stuck_saves > 0);
    }

    /// Under write-back: saves the pages that will leave the device next. If no page was taken since the last
    /// time, no page is about to leave, and saving would only churn a small host.
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
            self.staged(OpKind::Save, *id, op);
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
        if job.is_urgent {
            self.urgent_saves.insert(op);
        }
        if let Some(request) = request {
            self.request_mut(request).waits.insert(op);
        }
    }

    /// The saves of a request are issued or skipped. From here on the operations own the pins, and the
    /// request waits for all that save its pages.
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
        self.release_pages(id);
        self.request_mut(id).state = State::WritingBack;
        if self.request(id).waits.is_empty() {
            self.end_request(id, Ending::Finished);
        }
    }

    /// Queues the backup of a page that is in the host.
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
            let budget = self.ledger.budget_left(OpKind::Backup).min(self.config.op_pages_max) as usize;
            if budget == 0 {
                return;
            }
            let batch = self.next_backup(budget);
            if !batch.is_empty() {
                self.back_up(&batch);
            }
        }
    }

    /// The pages at the head of the queue that are of one namespace and can still be backed up.
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
            self.pin_backup(*id);
            let cell = self.inventory.cell_mut(*id);
            cell.stored = Stored::Pending(op);
            let index = cell.copy(Tier::Host).page().unwrap_or(u32::MAX);
            let source = Place::Page(PageId { tier: Tier::Host, index });
            let record =
                PageRecord { position: cell.position, hash: cell.hash, source, target: Place::Store };
            items.push(Item { record, cell: Some(*id) });
        }
        self.check_hashes(&mut items);
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
}
