//! From waiting to ready: find the prefix, load its host pages, take device pages for the rest.
//!
//! Requests are admitted strictly in the order of priority and age, with or without a prefetch. A request
//! that does not fit is not overtaken, so that none starves.

use super::{
    CellId, Effect, Ending, Engine, Item, OpId, OpKind, Order, ReqId, Residency, Slot, Source, State, Tier,
    chain_with,
};
use crate::message::{CachedTokens, PageId, PageRecord, Place, RetractReason};

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

impl Engine {
    pub(super) fn pump_admissions(&mut self) {
        while self.running.len() < self.config.running_max as usize
            && let Some(turn) = self.waiting.first().copied()
            && self.blocked != Some((turn.request, self.inventory.fit_changes()))
        {
            if !self.admit(turn.request) {
                // A second attempt in the same state would fail again.
                self.blocked = Some((turn.request, self.inventory.fit_changes()));
                return;
            }
        }
    }

    /// Puts a request on the device; false if it does not fit yet.
    fn admit(&mut self, id: ReqId) -> bool {
        if self.request(id).state != State::Waiting {
            // Best effort: it could run now, so it stops waiting for the store.
            self.leave_ops(id);
            self.wait(id);
        }
        self.follow_space(id);
        let total = self.pages_for(self.request(id).length);
        if total > self.config.device_pages {
            self.end_request(id, Ending::TooLong);
            return true;
        }
        let found = self.find_prefix(id);
        if !self.free_up_for(&found, total) {
            return false;
        }
        let turn = self.request(id).turn;
        self.waiting.remove(&turn);
        self.running.insert(turn);
        let waits = self.load(id, &found);
        let found_count = found.cells.len() as u32;
        let mut slots: Vec<_> =
            found.cells.into_iter().map(|(cell, source)| Slot::Shared(cell, source)).collect();
        slots.extend((found_count..total).map(|_| Slot::Private(self.inventory.take_private(id))));
        let request = self.request_mut(id);
        request.slots = slots;
        request.state = State::Loading;
        request.waits.extend(waits);
        if request.waits.is_empty() {
            self.ready(id);
        }
        true
    }

    /// Follows a namespace that was redefined or cleared since the request arrived.
    fn follow_space(&mut self, id: ReqId) {
        let request = self.request(id);
        let Some(space) = self.spaces.get(&request.space) else { return };
        let (root, root_hash) = (space.root, space.root_hash);
        let rehashed = request.tokens.as_ref().filter(|_| request.root_hash != root_hash).map(|tokens| {
            chain_with(root_hash, 0, self.config.page_tokens, tokens, &request.media, self.config.sabotage)
        });
        let request = self.request_mut(id);
        (request.root, request.root_hash) = (root, root_hash);
        if let Some(hashes) = rehashed {
            request.hashes = hashes;
        }
    }

    /// The longest prefix that is on the device, in a load to it, or in the host.
    fn find_prefix(&self, id: ReqId) -> Found {
        let request = self.request(id);
        let usable = self.usable_pages(request.length) as usize;
        let hashes = request.hashes.get(..usable.min(request.hashes.len())).unwrap_or_default();
        let mut found = Found::default();
        for (position, id) in (0..).zip(self.inventory.walk(request.root, hashes)) {
            let cell = self.inventory.cell(id);
            match cell.residency(Tier::Device) {
                Residency::Valid(_) => found.cells.push((id, Source::Device)),
                Residency::Pending(op, _) if self.ledger.is_joinable(op) => {
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
    fn free_up_for(&mut self, found: &Found, total: u32) -> bool {
        let here = (found.cells.len() - found.load.len()) as u32;
        let need = total - here;
        if !self.may_protect(need) {
            return false;
        }
        let alone = |engine: &Self, id: &CellId| engine.inventory.find(*id).is_some();
        assert!(
            found.cells.iter().all(|(id, _)| alone(self, id)),
            "O4: an eviction took pages that were found"
        );
        for (id, _) in &found.cells {
            self.inventory.hold(*id, Tier::Device);
        }
        for (_, id) in &found.load {
            self.inventory.pin(*id, Tier::Host);
        }
        if self.inventory.free_up(Tier::Device, need) {
            return true;
        }
        for (_, id) in &found.load {
            self.inventory.unpin(*id, Tier::Host);
        }
        for (id, _) in &found.cells {
            self.inventory.release(*id, Tier::Device);
        }
        false
    }

    /// Issues loads from the host to the device, and returns the operations to wait for. The sources are
    /// pinned already; from here on the operations own the pins.
    fn load(&mut self, id: ReqId, found: &Found) -> Vec<OpId> {
        let request = self.request(id);
        let (space, root, root_hash) = (request.space, request.root, request.root_hash);
        let mut waits = Vec::new();
        for op in &found.join {
            if let Some(live) = self.ledger.find_mut(*op) {
                live.waiters.insert(id);
                waits.push(*op);
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
                self.staged(OpKind::Load, *cell, op);
            }
            let deadline = self.now + self.config.op_patience;
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
            waits.push(op);
        }
        waits
    }

    /// The loads of a request have ended: it uses the leading run that arrived, and computes the rest (V3).
    pub(super) fn ready(&mut self, id: ReqId) {
        let request = self.request(id);
        let shared: Vec<_> = request
            .slots
            .iter()
            .map_while(|slot| match slot {
                Slot::Shared(cell, source) => Some((*cell, *source)),
                Slot::Private(_) => None,
            })
            .collect();
        let came = |(cell, _): &(CellId, Source)| self.inventory.cell(*cell).is_valid(Tier::Device);
        let cached = self.config.sabotage.usable_pages(shared.iter().map(came));
        if !self.replace_missing(id, &shared, cached) {
            return self.take_off_device(id, None);
        }
        let tokens = cached as u32 * self.config.page_tokens;
        let by_tier = self.count_hits(shared.get(..cached).unwrap_or_default());
        let request = self.request_mut(id);
        request.computed = tokens;
        request.entered = cached as u32;
        request.state = State::Prefilling;
        self.report_shortfall(id, cached as u32);
        let pages = self.table(&self.request(id).slots);
        self.effects.push(Effect::Ready { request: id, cached: by_tier, pages });
        self.save_used(id);
    }

    /// Gives the request private pages for those that did not arrive; false if there are none.
    fn replace_missing(&mut self, id: ReqId, shared: &[(CellId, Source)], cached: usize) -> bool {
        let missing = shared.get(cached..).unwrap_or_default();
        if !self.inventory.free_up(Tier::Device, missing.len() as u32) {
            return false;
        }
        for (at, (cell, _)) in (cached..).zip(missing) {
            let page = self.inventory.take_private(id);
            if let Some(slot) = self.request_mut(id).slots.get_mut(at) {
                *slot = Slot::Private(page);
            }
            self.inventory.release(*cell, Tier::Device);
        }
        true
    }

    fn count_hits(&mut self, found: &[(CellId, Source)]) -> CachedTokens {
        let mut cached = CachedTokens::default();
        for (id, source) in found {
            let cell = self.inventory.cell_mut(*id);
            cell.hits += 1;
            let was_prefetched = std::mem::take(&mut cell.is_prefetched);
            self.stats.prefetch_used += u64::from(was_prefetched);
            let of = match source {
                _ if was_prefetched => &mut cached.store,
                Source::Device => &mut cached.device,
                Source::Host => &mut cached.host,
            };
            *of += self.config.page_tokens;
        }
        cached
    }

    /// The request leaves the device and waits again. The shell is told the reason, unless it asked for that.
    pub(super) fn take_off_device(&mut self, id: ReqId, why: Option<RetractReason>) {
        self.leave_ops(id);
        self.release_pages(id);
        let request = self.request_mut(id);
        request.computed = 0;
        request.entered = 0;
        self.wait(id);
        if let Some(why) = why {
            self.stats.retractions += 1;
            self.effects.push(Effect::Retracted(id, why));
        }
    }

    /// Releases the pages of a request. Shared pages stay until they are evicted.
    pub(super) fn release_pages(&mut self, id: ReqId) {
        let request = self.request_mut(id);
        let turn = request.turn;
        let slots = std::mem::take(&mut request.slots);
        self.running.remove(&turn);
        self.inventory.next_use();
        for slot in slots {
            match slot {
                Slot::Shared(cell, _) => self.inventory.release(cell, Tier::Device),
                Slot::Private(page) => self.inventory.free_private(id, page),
            }
        }
    }
}
