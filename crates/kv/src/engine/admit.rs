//! From waiting to ready: find the prefix, load its host pages, take device pages for the rest.
//!
//! Requests are admitted strictly in the order of priority and age, with or without a prefetch. A request
//! that does not fit is not overtaken, so that none starves.

use super::write::unsaved;
use super::{
    CellId, Config, Effect, Ending, Engine, Inventory, Item, Ledger, OpId, OpKind, Order, ReqId, Request,
    Residency, Slot, Source, State, Tier, mutants,
};
use crate::message::{CachedTokens, PageId, PageRecord, Place, RetractReason};
use crate::mutant::Mutant;

/// The cached pages of a request.
#[derive(Default)]
struct Found {
    /// The leading pages that need not be computed.
    cells: Vec<(CellId, Source)>,
    /// The pages to load, with their positions.
    load: Vec<(u32, CellId)>,
    /// Loads of other requests that bring some of the pages.
    join: Vec<OpId>,
}

impl Found {
    /// The longest prefix that is on the device, in a load to it, or in the host.
    fn of(request: &Request, inventory: &Inventory, ledger: &Ledger, config: &Config) -> Self {
        let mut found = Self::default();
        for (position, id) in (0..).zip(inventory.walk(request.root, request.usable_hashes(config))) {
            let cell = inventory.cell(id);
            match cell.residency(Tier::Device) {
                Residency::Valid(_) => found.cells.push((id, Source::Device)),
                Residency::Pending(op, _) if ledger.is_joinable(op) => {
                    found.cells.push((id, Source::Host));
                    found.join.push(op);
                }
                Residency::Absent if cell.is_valid(Tier::Host) => {
                    found.cells.push((id, Source::Host));
                    found.load.push((position, id));
                }
                _ => break,
            }
        }
        found
    }

    /// Protects the cached pages, and then frees device pages for the rest. If that fails, nothing has
    /// changed (O4, O5).
    fn free_up(&self, inventory: &mut Inventory, total: u32, mutant: Mutant) -> bool {
        let here = (self.cells.len() - self.load.len()) as u32;
        let need = total - here;
        if !mutants::may_protect(inventory, need, mutant) {
            return false;
        }
        assert!(
            self.cells.iter().all(|(id, _)| inventory.find(*id).is_some()),
            "O4: an eviction took pages that were found"
        );
        for (id, _) in &self.cells {
            inventory.hold(*id, Tier::Device);
        }
        for (_, id) in &self.load {
            inventory.pin(*id, Tier::Host);
        }
        if inventory.free_up(Tier::Device, need) {
            return true;
        }
        for (_, id) in &self.load {
            inventory.unpin(*id, Tier::Host);
        }
        for (id, _) in &self.cells {
            inventory.release(*id, Tier::Device);
        }
        false
    }
}

impl Engine {
    pub(super) fn pump_admissions(&mut self) {
        while self.requests.running_count() < self.config.running_max as usize
            && let Some(id) = self.requests.first_waiting()
            && self.blocked != Some((id, self.inventory.fit_changes()))
        {
            if !self.admit(id) {
                // A second attempt in the same state would fail again.
                self.blocked = Some((id, self.inventory.fit_changes()));
                return;
            }
        }
    }

    /// Puts a request on the device; false if it does not fit yet.
    fn admit(&mut self, id: ReqId) -> bool {
        if self.requests.get(id).state != State::Waiting {
            // Best effort: it could run now, so it stops waiting for the store.
            self.leave_ops(id);
            self.requests.wait(id);
        }
        let request = self.requests.get_mut(id);
        if let Some(space) = self.spaces.find(request.space) {
            request.follow(space, self.config.page_tokens, self.config.mutant);
        }
        let total = self.config.pages_for(request.length);
        if total > self.config.device_pages {
            self.end_request(id, Ending::TooLong);
            return true;
        }
        let found = Found::of(self.requests.get(id), &self.inventory, &self.ledger, &self.config);
        if !found.free_up(&mut self.inventory, total, self.config.mutant) {
            return false;
        }
        self.requests.run(id);
        self.load(id, &found);
        let found_count = found.cells.len() as u32;
        let cached = expected(&self.inventory, &found.cells, self.config.page_tokens);
        let mut slots: Vec<_> =
            found.cells.into_iter().map(|(cell, source)| Slot::Shared(cell, source)).collect();
        slots.extend((found_count..total).map(|_| Slot::Private(self.inventory.take_private(id))));
        let request = self.requests.get_mut(id);
        request.slots = slots;
        request.state = State::Loading;
        if request.waits.is_empty() {
            self.ready(id);
        } else {
            let pages = self.requests.get(id).table(&self.inventory);
            self.effects.push(Effect::Loading { request: id, cached, pages });
        }
        true
    }

    /// Issues loads from the host to the device, which the request waits for. The sources are pinned already;
    /// from here on the operations own the pins.
    fn load(&mut self, id: ReqId, found: &Found) {
        let request = self.requests.get(id);
        let (space, root, root_hash) = (request.space, request.root, request.root_hash);
        for op in &found.join {
            if let Some(live) = self.ledger.find_mut(*op) {
                live.waiters.insert(id);
                self.requests.get_mut(id).waits.insert(*op);
            }
        }
        for batch in found.load.chunks(self.config.op_pages_max as usize) {
            let op = self.ledger.next_id();
            let mut items = Vec::with_capacity(batch.len());
            for (position, cell) in batch {
                let from = self.inventory.cell(*cell).copy(Tier::Host).page().unwrap_or(u32::MAX);
                let to = self.inventory.stage(*cell, Tier::Device, op);
                let record = PageRecord {
                    position: *position,
                    hash: self.inventory.cell(*cell).hash,
                    source: Place::Page(PageId { tier: Tier::Host, index: from }),
                    target: Place::Page(PageId { tier: Tier::Device, index: to }),
                };
                items.push(Item { record, cell: Some(*cell) });
                mutants::staged(&mut self.inventory, OpKind::Load, *cell, op, self.config.mutant);
            }
            let deadline = self.now + self.config.op_timeout;
            self.issue(Order {
                id: op,
                kind: OpKind::Load,
                space,
                root,
                root_hash,
                items,
                deadline,
                waiter: Some(id),
            });
        }
    }

    /// The loads of a request have ended: it uses the leading run that arrived, and computes the rest (V3).
    pub(super) fn ready(&mut self, id: ReqId) {
        let request = self.requests.get(id);
        let shared: Vec<_> = request
            .slots
            .iter()
            .map_while(|slot| match slot {
                Slot::Shared(cell, source) => Some((*cell, *source)),
                Slot::Private(_) => None,
            })
            .collect();
        let came = |(cell, _): &(CellId, Source)| self.inventory.cell(*cell).is_valid(Tier::Device);
        let cached = self.config.mutant.usable_pages(shared.iter().map(came));
        let request = self.requests.get_mut(id);
        if !replace_missing(&mut self.inventory, id, request, &shared, cached) {
            return self.take_off_device(id, Some(RetractReason::NoSpace));
        }
        let tokens = cached as u32 * self.config.page_tokens;
        let used = shared.get(..cached).unwrap_or_default();
        let (by_tier, prefetched) = count_hits(&mut self.inventory, used, self.config.page_tokens);
        self.stats.prefetch_used += prefetched;
        let request = self.requests.get_mut(id);
        request.computed = tokens;
        request.entered = cached as u32;
        request.state = State::Prefilling;
        let promised = std::mem::take(&mut request.promised);
        let is_short = (cached as u32) < promised;
        self.stats.prefetch_in_time += u64::from(promised > 0 && !is_short);
        if is_short {
            self.effects.push(Effect::MustRecompute { request: id, from: tokens });
        }
        let pages = self.requests.get(id).table(&self.inventory);
        self.effects.push(Effect::Ready { request: id, cached: by_tier, pages });
        let cells = unsaved(self.requests.get(id), &self.inventory, &self.config);
        self.stats.saves_skipped += self.writes.queue_save(None, cells);
    }

    /// The request leaves the device and waits again. The shell is told the reason, unless it asked for that.
    pub(super) fn take_off_device(&mut self, id: ReqId, why: Option<RetractReason>) {
        self.leave_ops(id);
        self.requests.release_pages(id, &mut self.inventory);
        let request = self.requests.get_mut(id);
        request.computed = 0;
        request.entered = 0;
        self.requests.wait(id);
        if let Some(why) = why {
            self.stats.retractions += 1;
            self.effects.push(Effect::Retracted(id, why));
        }
    }
}

/// Gives the request private pages for those that did not arrive; false if there are none.
fn replace_missing(
    inventory: &mut Inventory,
    id: ReqId,
    request: &mut Request,
    shared: &[(CellId, Source)],
    cached: usize,
) -> bool {
    let missing = shared.get(cached..).unwrap_or_default();
    if !inventory.free_up(Tier::Device, missing.len() as u32) {
        return false;
    }
    for (at, (cell, _)) in (cached..).zip(missing) {
        let page = inventory.take_private(id);
        if let Some(slot) = request.slots.get_mut(at) {
            *slot = Slot::Private(page);
        }
        inventory.release(*cell, Tier::Device);
    }
    true
}

/// Counts the use of cached pages. Returns their number by tier, and how many were prefetched.
fn count_hits(
    inventory: &mut Inventory,
    found: &[(CellId, Source)],
    page_tokens: u32,
) -> (CachedTokens, u64) {
    let (mut cached, mut prefetched) = (CachedTokens::default(), 0);
    for (id, source) in found {
        let cell = inventory.cell_mut(*id);
        cell.hits += 1;
        let was_prefetched = std::mem::take(&mut cell.is_prefetched);
        prefetched += u64::from(was_prefetched);
        *by_tier(&mut cached, was_prefetched, *source) += page_tokens;
    }
    (cached, prefetched)
}

/// The cached tokens by tier, if all of these pages arrive.
fn expected(inventory: &Inventory, found: &[(CellId, Source)], page_tokens: u32) -> CachedTokens {
    let mut cached = CachedTokens::default();
    for (id, source) in found {
        *by_tier(&mut cached, inventory.cell(*id).is_prefetched, *source) += page_tokens;
    }
    cached
}

fn by_tier(cached: &mut CachedTokens, was_prefetched: bool, source: Source) -> &mut u32 {
    match source {
        _ if was_prefetched => &mut cached.store,
        Source::Device => &mut cached.device,
        Source::Host => &mut cached.host,
    }
}
