//! The inventory: cells, their index, the pages of both tiers, and the eviction order.
//!
//! **Invariants.** A page has one use at a time (O2). A copy can be matched only once it is settled (V1).
//! Pinned and held copies do not leave (O1). Evictions free enough pages or none are made, with as few
//! victims as possible (O5). In a tree a copy leaves a tier before its parent, whatever the policy, so that
//! the copies of a prefix are always a leading run without a hole (V4).

mod check;
mod evict;
mod free_up;
mod mutants;
mod roots;

pub(crate) use check::Uses;
use evict::Evictor;
use free_up::WriteBack;
use roots::Roots;

use crate::arena::Arena;
use crate::cell::{Cell, CellId, Residency, RootId, Written};
use crate::config::Config;
use crate::hash::ChainHash;
use crate::index::{AnyIndex, Index};
use crate::message::{OpId, ReqId, SpaceId, Tier};
use crate::mutant::Mutant;
use crate::policy::USES_MAX;
use crate::pool::{PageCounts, PageState, Pool};

/// Cells that one step checks for namespaces that are gone.
const SWEEP_PLACES_MAX: usize = 64;

/// The element of a tier.
fn of<T>(tier: Tier, [device, host]: &[T; 2]) -> &T {
    match tier {
        Tier::Device => device,
        Tier::Host => host,
    }
}

/// The element of a tier.
fn of_mut<T>(tier: Tier, [device, host]: &mut [T; 2]) -> &mut T {
    match tier {
        Tier::Device => device,
        Tier::Host => host,
    }
}

/// What became of a copy that an operation wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It can be matched.
    Published,
    /// Its page was freed.
    Dropped,
}

/// A copy that became available or was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) tier: Tier,
    pub(crate) space: SpaceId,
    pub(crate) hash: ChainHash,
    pub(crate) is_there: bool,
}

/// Cells, index, pages and eviction order.
#[derive(Clone, Debug)]
pub(crate) struct Inventory {
    cells: Arena<Cell>,
    index: AnyIndex,
    pools: [Pool; 2],
    evictors: [Evictor; 2],
    pub(crate) roots: Roots,
    write_back: WriteBack,
    /// Number of unused copies, by tier: an upper bound of what can be evicted.
    idle: [u32; 2],
    /// Number of evicted copies, by tier.
    evicted: [u64; 2],
    /// Number of fetched copies that were evicted before a request used them.
    wasted: u64,
    /// Counts changes after which a request may fit on the device that did not before.
    fit_changes: u64,
    /// Counts uses, so that their order does not depend on a clock (C1).
    uses: u64,
    sweep_from: usize,
    changes: Option<Vec<Change>>,
    mutant: Mutant,
}

impl Inventory {
    pub(crate) fn new(config: &Config) -> Self {
        let evictor = |tier, pages| Evictor::new(tier, config.eviction, pages, config.mutant, config.rank);
        Self {
            cells: Arena::default(),
            index: AnyIndex::new(config.index, config.mutant),
            pools: [Pool::new(Tier::Device, config.device_pages), Pool::new(Tier::Host, config.host_pages)],
            evictors: [evictor(Tier::Device, config.device_pages), evictor(Tier::Host, config.host_pages)],
            roots: Roots::default(),
            write_back: WriteBack::new(config),
            idle: [0; 2],
            evicted: [0; 2],
            wasted: 0,
            fit_changes: 0,
            uses: 0,
            sweep_from: 0,
            changes: config.events.then(Vec::new),
            mutant: config.mutant,
        }
    }

    // ---- Queries.

    pub(crate) fn pool(&self, tier: Tier) -> &Pool {
        of(tier, &self.pools)
    }

    fn pool_mut(&mut self, tier: Tier) -> &mut Pool {
        of_mut(tier, &mut self.pools)
    }

    pub(crate) fn counts(&self, tier: Tier) -> PageCounts {
        self.pool(tier).counts()
    }

    pub(crate) fn evicted(&self) -> [u64; 2] {
        self.evicted
    }

    /// Number of changes after which a request may fit on the device that did not before.
    pub(crate) fn fit_changes(&self) -> u64 {
        self.fit_changes
    }

    pub(crate) fn wasted(&self) -> u64 {
        self.wasted
    }

    pub(crate) fn find(&self, id: CellId) -> Option<&Cell> {
        self.cells.find(id.0)
    }

    #[track_caller]
    pub(crate) fn cell(&self, id: CellId) -> &Cell {
        self.cells.get(id.0)
    }

    #[track_caller]
    pub(crate) fn cell_mut(&mut self, id: CellId) -> &mut Cell {
        self.cells.get_mut(id.0)
    }

    pub(crate) fn cells(&self) -> impl Iterator<Item = (CellId, &Cell)> {
        self.cells.iter().map(|(id, cell)| (CellId(id), cell))
    }

    pub(crate) fn is_live(&self, root: RootId) -> bool {
        self.roots.is_live(root)
    }

    pub(crate) fn changes(&mut self) -> Vec<Change> {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The cells of the leading hashes that have one.
    pub(crate) fn walk(&self, root: RootId, hashes: &[ChainHash]) -> Vec<CellId> {
        let mut found = Vec::with_capacity(hashes.len());
        self.index.walk(root, hashes, &mut found);
        found
    }

    /// The cell of this hash, at any position.
    pub(crate) fn find_name(&self, root: RootId, hash: ChainHash) -> Option<CellId> {
        self.index.find(root, hash)
    }

    /// The cell of each hash, if there is one.
    pub(crate) fn locate(&self, root: RootId, hashes: &[ChainHash]) -> Vec<Option<CellId>> {
        self.index.locate(root, hashes)
    }

    // ---- Roots and cells.

    pub(crate) fn add_root(&mut self, space: SpaceId) -> RootId {
        let root = self.roots.add(space);
        self.index.add_root(root);
        root
    }

    /// Hides everything under a root. Its cells are removed step by step.
    pub(crate) fn retire_root(&mut self, root: RootId) {
        self.index.drop_root(root);
        self.roots.retire(root);
    }

    /// The cells of these hashes, with new cells for those that have none. Fewer if a hash is at another
    /// position already, or if the root is gone.
    pub(crate) fn enter(&mut self, root: RootId, hashes: &[ChainHash]) -> Vec<CellId> {
        let mut cells: Vec<CellId> = Vec::with_capacity(hashes.len());
        for (position, (hash, known)) in (0..).zip(hashes.iter().zip(self.locate(root, hashes))) {
            if let Some(known) = known.filter(|id| self.cell(*id).position == position) {
                cells.push(known);
                continue;
            }
            let parent = cells.last().copied();
            let id = CellId(self.cells.insert(Cell::new(root, *hash, position, parent)));
            if !self.index.insert(root, parent, *hash, id) {
                self.cells.remove(id.0);
                break;
            }
            self.roots.add_cell(root);
            cells.push(id);
        }
        cells
    }

    /// Removes a cell if it is empty, and then its parents.
    pub(crate) fn reap(&mut self, id: CellId) {
        let mut next = Some(id);
        while let Some(id) = next
            && let Some(cell) = self.cells.find(id.0)
            && cell.is_empty()
            && self.index.may_remove(id)
        {
            let (root, hash) = (cell.root, cell.hash);
            next = cell.parent;
            self.index.remove(root, hash, id);
            self.cells.remove(id.0);
            self.roots.remove_cell(root);
        }
    }

    /// Removes some copies whose namespace is gone.
    pub(crate) fn sweep(&mut self) {
        if !self.roots.has_retired() {
            return;
        }
        let from = self.sweep_from;
        let ids = self.cells.at_places(from, SWEEP_PLACES_MAX);
        self.sweep_from = if ids.is_empty() { 0 } else { from + SWEEP_PLACES_MAX };
        for id in ids.into_iter().flatten().map(CellId) {
            if self.find(id).is_none_or(|cell| self.is_live(cell.root)) {
                continue;
            }
            for tier in Tier::BOTH {
                let copy = self.find(id).map(|cell| *cell.copy(tier));
                if copy.is_some_and(|copy| matches!(copy.residency, Residency::Valid(_)) && !copy.is_used()) {
                    self.remove_copy(id, tier);
                }
            }
            self.reap(id);
        }
    }

    // ---- Uses.

    /// A request uses this copy, or will use it once it is written.
    pub(crate) fn hold(&mut self, id: CellId, tier: Tier) {
        let copy = self.cell_mut(id).copy_mut(tier);
        copy.holds += 1;
        copy.facts.uses = (copy.facts.uses + 1).min(USES_MAX);
        self.cell_mut(id).written = Written::No;
        self.refresh(id, tier);
    }

    /// Ends a hold.
    pub(crate) fn release(&mut self, id: CellId, tier: Tier) {
        let last_use = self.uses;
        let copy = self.cell_mut(id).copy_mut(tier);
        assert!(copy.holds > 0, "O1: {id:?} is released more often than held");
        copy.holds -= 1;
        copy.facts.last_use = last_use;
        self.unused(id, tier);
    }

    /// Starts a new use: copies released from now on are more recent than those before.
    pub(crate) fn next_use(&mut self) {
        self.uses += 1;
    }

    /// An operation reads this copy.
    pub(crate) fn pin(&mut self, id: CellId, tier: Tier) {
        self.cell_mut(id).copy_mut(tier).pins += 1;
        self.refresh(id, tier);
    }

    /// Ends a pin.
    pub(crate) fn unpin(&mut self, id: CellId, tier: Tier) {
        let last_use = self.uses;
        let mutant = self.mutant;
        let copy = self.cell_mut(id).copy_mut(tier);
        let pins = mutant.pins_after_unpin(copy.pins);
        copy.pins = pins.unwrap_or_else(|| panic!("O1: {id:?} is unpinned more often than pinned"));
        copy.facts.last_use = copy.facts.last_use.max(last_use);
        self.unused(id, tier);
    }

    /// A use has ended: lost copies and empty cells are removed with their last use.
    fn unused(&mut self, id: CellId, tier: Tier) {
        let copy = *self.cell(id).copy(tier);
        if let Residency::Lost(page) = copy.residency
            && !copy.is_used()
        {
            self.set_absent(id, tier, page, PageState::Indexed(id));
        }
        self.refresh(id, tier);
        self.reap(id);
    }

    // ---- Pages.

    /// Takes a device page for a request. The caller has made sure that one is free.
    pub(crate) fn take_private(&mut self, request: ReqId) -> u32 {
        self.pool_mut(Tier::Device).take(PageState::Private(request))
    }

    pub(crate) fn free_private(&mut self, request: ReqId, page: u32) {
        self.fit_changes += 1;
        self.pool_mut(Tier::Device).give_back(page, PageState::Private(request));
    }

    /// Publishes a private page of a request, which then holds it. False if there is another copy, or if the
    /// root is gone: then the page stays private.
    pub(crate) fn adopt(&mut self, id: CellId, request: ReqId, page: u32) -> bool {
        let tier = Tier::Device;
        if self.cell(id).residency(tier) != Residency::Absent || !self.may_settle(id) {
            return false;
        }
        self.pool_mut(Tier::Device).change(page, PageState::Private(request), PageState::Indexed(id));
        self.adjust_children(id, tier, true);
        self.set_valid(id, tier, page);
        self.cell_mut(id).copy_mut(tier).holds += 1;
        self.refresh(id, tier);
        true
    }

    /// Takes a page that an operation will write. The caller has made sure that one is free.
    pub(crate) fn stage(&mut self, id: CellId, tier: Tier, op: OpId) -> u32 {
        assert_eq!(self.cell(id).residency(tier), Residency::Absent, "L7: {id:?} in {tier:?}");
        let page = self.pool_mut(tier).take(PageState::Staged(op));
        self.cell_mut(id).copy_mut(tier).residency = Residency::Pending(op, page);
        self.adjust_children(id, tier, true);
        page
    }

    /// The operation is abandoned: its page is not used until it ends (O3).
    pub(crate) fn quarantine(&mut self, id: CellId, tier: Tier, op: OpId) {
        if let Some(Residency::Pending(by, page)) = self.find(id).map(|cell| cell.residency(tier))
            && by == op
        {
            self.pool_mut(tier).change(page, PageState::Staged(op), PageState::Quarantined(op));
        }
    }

    /// The operation has ended: its copy is published if it is good, and dropped otherwise (V1, V2).
    pub(crate) fn settle(&mut self, id: CellId, tier: Tier, op: OpId, is_good: bool) -> Settled {
        let residency = self.cell(id).residency(tier);
        let Residency::Pending(by, page) = residency else {
            panic!("V1: {id:?} is {residency:?} in {tier:?}, but {op:?} was to write it")
        };
        assert_eq!(by, op, "L5: another operation writes {id:?}");
        let staged = PageState::Staged(op);
        let is_staged = self.pool(tier).states().get(page as usize) == Some(&staged);
        let was = if is_staged { staged } else { PageState::Quarantined(op) };
        if !is_good || !self.may_settle(id) {
            self.set_absent(id, tier, page, was);
            self.reap(id);
            return Settled::Dropped;
        }
        self.pool_mut(tier).change(page, was, PageState::Indexed(id));
        self.set_valid(id, tier, page);
        self.own_published(id, tier, page);
        Settled::Published
    }

    /// The bytes of this copy are lost: it cannot be matched any more, and its page is freed with the last
    /// use.
    pub(crate) fn lose(&mut self, id: CellId, tier: Tier) {
        let Residency::Valid(page) = self.cell(id).residency(tier) else { return };
        self.record(id, tier, false);
        self.cell_mut(id).copy_mut(tier).residency = Residency::Lost(page);
        self.unused(id, tier);
    }

    /// Whether a new copy could be found.
    fn may_settle(&self, id: CellId) -> bool {
        self.is_live(self.cell(id).root)
    }

    fn set_valid(&mut self, id: CellId, tier: Tier, page: u32) {
        self.fit_changes += 1;
        let last_use = self.uses;
        let cell = self.cells.get_mut(id.0);
        of_mut(tier, &mut self.evictors).made(cell, last_use);
        let is_written = tier == Tier::Host || cell.is_valid(Tier::Host);
        cell.written = if is_written { Written::Yes } else { Written::No };
        let copy = cell.copy_mut(tier);
        copy.residency = Residency::Valid(page);
        copy.facts.last_use = last_use;
        self.refresh(id, tier);
        self.record(id, tier, true);
    }

    fn set_absent(&mut self, id: CellId, tier: Tier, page: u32, was: PageState) {
        self.fit_changes += 1;
        self.pool_mut(tier).give_back(page, was);
        self.cell_mut(id).copy_mut(tier).residency = Residency::Absent;
        self.refresh(id, tier);
        self.adjust_children(id, tier, false);
    }

    /// Removes an unused copy from its tier.
    fn remove_copy(&mut self, id: CellId, tier: Tier) {
        let Residency::Valid(page) = self.cell(id).residency(tier) else { return };
        self.record(id, tier, false);
        let cell = self.cells.get_mut(id.0);
        if tier == Tier::Host && std::mem::take(&mut cell.is_prefetched) {
            self.wasted += 1;
        }
        self.set_absent(id, tier, page, PageState::Indexed(id));
    }

    fn adjust_children(&mut self, id: CellId, tier: Tier, more: bool) {
        let Some(parent) = self.cell(id).parent else { return };
        let Some(cell) = self.cells.find_mut(parent.0) else { return };
        let behind = &mut cell.copy_mut(tier).behind;
        *behind = if more { *behind + 1 } else { *behind - 1 };
        self.refresh(parent, tier);
    }

    fn record(&mut self, id: CellId, tier: Tier, is_there: bool) {
        let cell = self.cells.get(id.0);
        let space = self.roots.last_space_of(cell.root);
        if let Some((changes, space)) = self.changes.as_mut().zip(space) {
            changes.push(Change { tier, space, hash: cell.hash, is_there });
        }
    }
}
