//! Saves from the device to the host, and backups from the host to the store.
//!
//! A save or a backup pins its source until its own end, so a request need not hold its pages (O1). A request
//! ends when its pages are in the host; it does not wait for backups.

use std::collections::{BTreeSet, VecDeque};

use super::spaces::Spaces;
use super::{
    CellId, Config, Ending, Engine, Inventory, Item, Ledger, OpId, OpKind, Order, ReqId, Request, Residency,
    Slot, State, Tick, Tier, mutants, policy,
};
use crate::cell::Stored;
use crate::message::{PageId, PageRecord, Place};

/// Queued saves at most.
const SAVE_JOBS_MAX: usize = 4096;
/// Queued backups at most, in pages.
const BACKUPS_WAITING_MAX: usize = 1 << 16;

/// Pages to save, and the request that waits for that, if any.
#[derive(Clone, Debug, Hash)]
struct SaveJob {
    request: Option<ReqId>,
    /// All of one root.
    cells: Vec<CellId>,
    /// Under write-back: a request waits for the memory of these pages.
    is_urgent: bool,
}

/// The saves and backups that are to be issued, and what is known of those in flight.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Writes {
    has_host: bool,
    saves: VecDeque<SaveJob>,
    backups: VecDeque<CellId>,
    /// Under write-back: saves whose device pages a request waits for.
    urgent_saves: BTreeSet<OpId>,
    /// Number of saves past their deadline that have not ended.
    stuck_saves: u32,
    /// Under write-back: the number of device pages ever taken when pages were last saved ahead.
    saved_ahead_at: u64,
}

impl Writes {
    pub(super) fn new(config: &Config) -> Self {
        Self { has_host: config.host_pages > 0, ..Self::default() }
    }

    /// Queues a save. Returns the number of pages that are skipped.
    pub(super) fn queue_save(&mut self, request: Option<ReqId>, cells: Vec<CellId>) -> u64 {
        if cells.is_empty() || !self.has_host || self.saves.len() >= SAVE_JOBS_MAX {
            return cells.len() as u64;
        }
        self.saves.push_back(SaveJob { request, cells, is_urgent: false });
        0
    }

    /// A request that has ended no longer waits for saves.
    pub(super) fn forget(&mut self, request: ReqId) {
        self.saves.retain(|job| job.request != Some(request));
    }

    /// Under write-back: pages that a request waits for are saved first.
    fn save_urgent(&mut self, inventory: &mut Inventory) {
        let mut unsaved = inventory.take_unsaved();
        unsaved.retain(|id| can_save(inventory, *id));
        for cells in by_root(inventory, unsaved) {
            self.saves.push_front(SaveJob { request: None, cells, is_urgent: true });
        }
    }

    /// Under write-back: saves the pages that will leave the device next. If no page was taken since the last
    /// time, no page is about to leave, and saving would only churn a small host. Returns the number of pages
    /// that are skipped.
    fn save_ahead(&mut self, inventory: &Inventory, ledger: &Ledger, config: &Config) -> u64 {
        let taken = inventory.pool(Tier::Device).taken();
        if taken == self.saved_ahead_at {
            return 0;
        }
        let free = inventory.counts(Tier::Device).free;
        let is_time = policy::saves_ahead(config.write, free, config.device_pages);
        if !is_time || !self.saves.is_empty() || ledger.in_flight(OpKind::Save) > 0 {
            return 0;
        }
        self.saved_ahead_at = taken;
        let mut cells = inventory.next_to_leave(config.op_pages_max as usize);
        cells.retain(|id| can_save(inventory, *id));
        by_root(inventory, cells).into_iter().map(|cells| self.queue_save(None, cells)).sum()
    }

    /// Whether a save that has ended was urgent.
    pub(super) fn take_urgent(&mut self, op: OpId) -> bool {
        self.urgent_saves.remove(&op)
    }

    /// A save is past its deadline. No request waits for its pages: those that cannot be saved may be lost.
    pub(super) fn save_is_stuck(&mut self, op: OpId) {
        self.stuck_saves += 1;
        self.urgent_saves.remove(&op);
    }

    /// A save that was past its deadline has ended.
    pub(super) fn stuck_save_ended(&mut self) {
        self.stuck_saves -= 1;
    }

    /// Tells the inventory whether a request waits for saves, and whether saves are stuck.
    pub(super) fn report(&self, inventory: &mut Inventory) {
        let is_saving = !self.urgent_saves.is_empty() || self.saves.iter().any(|job| job.is_urgent);
        inventory.set_saving(is_saving, self.stuck_saves > 0);
    }

    /// Queues the backup of a page that is in the host. False if the queue is full.
    pub(super) fn queue_backup(&mut self, id: CellId) -> bool {
        let fits = self.backups.len() < BACKUPS_WAITING_MAX;
        if fits {
            self.backups.push_back(id);
        }
        fits
    }

    fn has_backups(&self) -> bool {
        !self.backups.is_empty()
    }

    /// The pages at the head of the queue that are of one namespace and can still be backed up.
    fn next_backup(&mut self, inventory: &Inventory, spaces: &Spaces, budget: usize) -> Vec<CellId> {
        let mut batch: Vec<CellId> = Vec::new();
        while batch.len() < budget
            && let Some(id) = self.backups.pop_front()
        {
            let Some(cell) = inventory.find(id) else { continue };
            let is_wanted = cell.is_valid(Tier::Host) && cell.stored == Stored::Unknown;
            let takes =
                spaces.of_root(inventory, cell.root).is_some_and(|(_, root)| !spaces.is_clearing(root));
            if !is_wanted || !takes || batch.contains(&id) {
                continue;
            }
            if batch.first().is_some_and(|first| inventory.cell(*first).root != cell.root) {
                self.backups.push_front(id);
                break;
            }
            batch.push(id);
        }
        batch
    }

    /// The operation that saves these pages, all of one root. From here on it owns the pins.
    fn save(
        &mut self,
        inventory: &mut Inventory,
        ledger: &mut Ledger,
        spaces: &Spaces,
        (job, cells): (&SaveJob, &[CellId]),
        config: &Config,
        deadline: Tick,
    ) -> Option<Order> {
        let root = cells.first().map(|id| inventory.cell(*id).root)?;
        let (space, root_hash) = spaces.of_root(inventory, root)?;
        let (id, kind, waiter) = (ledger.next_id(), OpKind::Save, job.request);
        let mut items = Vec::with_capacity(cells.len());
        for page in cells {
            let cell = inventory.cell(*page);
            let (position, hash) = (cell.position, cell.hash);
            let from = cell.copy(Tier::Device).page().unwrap_or(u32::MAX);
            inventory.pin(*page, Tier::Device);
            let to = inventory.stage(*page, Tier::Host, id);
            let source = Place::Page(PageId { tier: Tier::Device, index: from });
            let target = Place::Page(PageId { tier: Tier::Host, index: to });
            items.push(Item { record: PageRecord { position, hash, source, target }, cell: Some(*page) });
            mutants::staged(inventory, kind, *page, id, config.mutant);
        }
        if job.is_urgent {
            self.urgent_saves.insert(id);
        }
        Some(Order { id, kind, space, root, root_hash, items, deadline, waiter })
    }

    /// The operation that backs up these pages, all of one root, if there are any.
    fn back_up(
        inventory: &mut Inventory,
        ledger: &mut Ledger,
        spaces: &Spaces,
        cells: &[CellId],
        config: &Config,
        deadline: Tick,
    ) -> Option<Order> {
        let root = cells.first().map(|id| inventory.cell(*id).root)?;
        let (space, root_hash) = spaces.of_root(inventory, root)?;
        let (id, kind, waiter) = (ledger.next_id(), OpKind::Backup, None);
        let mut items = Vec::with_capacity(cells.len());
        for page in cells {
            mutants::pin_backup(inventory, *page, config.mutant);
            let cell = inventory.cell_mut(*page);
            cell.stored = Stored::Pending(id);
            let index = cell.copy(Tier::Host).page().unwrap_or(u32::MAX);
            let source = Place::Page(PageId { tier: Tier::Host, index });
            let record =
                PageRecord { position: cell.position, hash: cell.hash, source, target: Place::Store };
            items.push(Item { record, cell: Some(*page) });
        }
        mutants::check_hashes(&mut items, config.mutant);
        Some(Order { id, kind, space, root, root_hash, items, deadline, waiter })
    }
}

impl Engine {
    /// The request has all its tokens: its pages are saved before it releases them.
    pub(super) fn drain(&mut self, id: ReqId) {
        let cells = unsaved(self.requests.get(id), &self.inventory, &self.config);
        let count = cells.len() as u64;
        let skipped = self.writes.queue_save(Some(id), cells);
        self.stats.saves_skipped += skipped;
        if count > 0 && skipped == 0 {
            self.requests.set_alarm(id, Some(self.now + self.config.op_timeout));
        } else {
            self.drained(id);
        }
    }

    /// Issues queued saves; true if pages may now leave that could not be saved.
    pub(super) fn pump_saves(&mut self) -> bool {
        self.writes.save_urgent(&mut self.inventory);
        self.stats.saves_skipped += self.writes.save_ahead(&self.inventory, &self.ledger, &self.config);
        let mut gave_up = false;
        while let Some(mut job) = self.writes.saves.pop_front() {
            job.cells.retain(|id| can_save(&self.inventory, *id));
            let budget = self.ledger.budget_left(OpKind::Save).min(self.config.op_pages_max);
            if budget == 0 && !job.cells.is_empty() {
                self.writes.saves.push_front(job);
                break;
            }
            let wanted = budget.min(job.cells.len() as u32);
            let is_enough = self.inventory.free_up(Tier::Host, wanted);
            let count = if is_enough { wanted } else { wanted.min(self.inventory.counts(Tier::Host).free) };
            if count > 0 {
                let batch: Vec<_> = job.cells.drain(..count as usize).collect();
                let deadline = self.now + self.config.op_timeout;
                let (inventory, ledger, config) = (&mut self.inventory, &mut self.ledger, &self.config);
                let order = self.writes.save(
                    inventory,
                    ledger,
                    &self.spaces,
                    (&job, batch.as_slice()),
                    config,
                    deadline,
                );
                order.into_iter().for_each(|it| self.issue(it));
            }
            if count > 0 && !job.cells.is_empty() {
                self.writes.saves.push_front(job);
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
        self.writes.report(&mut self.inventory);
        gave_up
    }

    /// The saves of a request are issued or skipped. From here on the operations own the pins, and the
    /// request waits for all that save its pages.
    fn drained(&mut self, id: ReqId) {
        self.requests.set_alarm(id, None);
        let saves = |slot: &Slot| match slot {
            Slot::Shared(cell, _) => match self.inventory.cell(*cell).residency(Tier::Host) {
                Residency::Pending(op, _) => Some(op),
                _ => None,
            },
            Slot::Private(_) => None,
        };
        let pending: BTreeSet<_> = self.requests.get(id).slots.iter().filter_map(saves).collect();
        for op in pending {
            let live =
                self.ledger.find_mut(op).filter(|live| live.kind == OpKind::Save && !live.is_abandoned);
            if let Some(live) = live {
                live.waiters.insert(id);
                self.requests.get_mut(id).waits.insert(op);
            }
        }
        self.requests.release_pages(id, &mut self.inventory);
        self.requests.get_mut(id).state = State::WritingBack;
        if self.requests.get(id).waits.is_empty() {
            self.end_request(id, Ending::Finished);
        }
    }

    pub(super) fn pump_backups(&mut self) {
        while policy::backs_up(self.pressures.store) && self.writes.has_backups() {
            let budget = self.ledger.budget_left(OpKind::Backup).min(self.config.op_pages_max) as usize;
            if budget == 0 {
                return;
            }
            let batch = self.writes.next_backup(&self.inventory, &self.spaces, budget);
            let deadline = self.now + self.config.op_timeout;
            let (inventory, ledger, config) = (&mut self.inventory, &mut self.ledger, &self.config);
            let order = Writes::back_up(inventory, ledger, &self.spaces, &batch, config, deadline);
            order.into_iter().for_each(|it| self.issue(it));
        }
    }
}

/// The shared pages of a request that the policy wants in the host, and that are not there.
pub(super) fn unsaved(request: &Request, inventory: &Inventory, config: &Config) -> Vec<CellId> {
    let wanted = |slot: &Slot| match slot {
        Slot::Shared(id, _) => {
            let cell = inventory.cell(*id);
            let is_wanted = policy::saves(config.write, cell.hits);
            (is_wanted && can_save(inventory, *id)).then_some(*id)
        }
        Slot::Private(_) => None,
    };
    request.slots.iter().filter_map(wanted).collect()
}

/// Whether a page is on the device, and not in the host.
fn can_save(inventory: &Inventory, id: CellId) -> bool {
    inventory.find(id).is_some_and(|cell| {
        cell.is_valid(Tier::Device)
            && cell.residency(Tier::Host) == Residency::Absent
            && inventory.is_live(cell.root)
    })
}

/// Groups cells by root, in the order of their positions.
fn by_root(inventory: &Inventory, mut cells: Vec<CellId>) -> Vec<Vec<CellId>> {
    let root = |id: &CellId| inventory.cell(*id).root;
    cells.sort_by_key(|id| (root(id), inventory.cell(*id).position, *id));
    cells.chunk_by(|a, b| root(a) == root(b)).map(<[CellId]>::to_vec).collect()
}
