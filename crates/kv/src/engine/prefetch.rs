//! From submission to the end of the prefetch: probe the store, and fetch its pages into the host.

use super::{
    CellId, Engine, Inventory, Item, Ledger, LiveOp, Match, OpId, OpKind, Order, PrefetchStop, ReqId,
    Request, Residency, State, Submit, Tier, mutants, policy,
};
use crate::config::StoreConfig;
use crate::message::{PageId, PageRecord, Place};
use crate::mutant::Mutant;

/// The pages that a request fetches, and the operations that it joins.
#[derive(Default)]
pub(super) struct FetchPlan {
    /// Leading pages that are cached already.
    pub(super) anchor: Vec<CellId>,
    /// The positions to fetch, in order.
    pub(super) fetch: Vec<u32>,
    /// Operations to join, with the first position that each is needed for.
    pub(super) join: Vec<(u32, OpId)>,
}

impl FetchPlan {
    /// The pages to fetch of those that the store has.
    fn of(
        request: &Request,
        has: &std::ops::Range<u32>,
        inventory: &Inventory,
        ledger: &Ledger,
        mutant: Mutant,
    ) -> Self {
        let hashes = request.hashes.get(..has.end as usize).unwrap_or_default();
        let mut plan = Self::default();
        for (position, id) in (0..).zip(inventory.locate(request.root, hashes)) {
            let cell = id.map(|id| inventory.cell(id));
            let residency = cell.map_or(Residency::Absent, |cell| cell.residency(Tier::Host));
            let on_device = cell.is_some_and(|cell| cell.is_valid(Tier::Device));
            match residency {
                Residency::Valid(_) => plan.anchor.extend(id),
                _ if on_device => plan.anchor.extend(id),
                Residency::Pending(op, _) if mutants::can_join(ledger, op, mutant) => {
                    mutants::join(&mut plan, position, op, mutant)
                }
                Residency::Absent if has.contains(&position) => plan.fetch.push(position),
                // A page that was cached at the time of the probe is gone, or its operation is abandoned.
                _ => break,
            }
        }
        plan
    }
}

impl Engine {
    pub(super) fn submit(&mut self, submit: Submit) {
        let read = self.requests.read(submit, &self.spaces, &self.config);
        let request = match read {
            Ok(request) => request,
            Err(refusal) => return self.refuse(refusal),
        };
        let id = request.turn.request;
        self.stats.requests += 1;
        let hashes = request.usable_hashes(&self.config);
        let usable = hashes.len() as u32;
        let found = Match::of(&self.inventory, request.root, hashes);
        let turn = request.turn;
        let deadline = request.deadline;
        self.requests.insert(request);
        let missing = usable - found.host;
        let is_cooling = self.cooldown.is_on(self.now);
        self.stats.cooled += u64::from(is_cooling && missing > 0 && self.config.store.is_some());
        let asks = self.config.store.filter(|_| !is_cooling).filter(|store| {
            let (host, pressure) = (self.pressures.host, self.pressures.store);
            policy::starts_prefetch(store.start, missing, store.threshold_pages, host, pressure)
                && self.ledger.budget_left(OpKind::Fetch) > 0
        });
        let Some(store) = asks else { return self.requests.wait(id) };
        self.requests.add_to_probe(turn);
        let until = policy::stops_prefetch_at(store.stop, missing, self.now, deadline);
        self.requests.set_alarm(id, Some(until));
        if store.stop == PrefetchStop::BestEffort {
            self.requests.add_waiting(turn);
        }
    }

    /// Probes the store for the next requests.
    pub(super) fn pump_probes(&mut self) {
        while self.ledger.budget_left(OpKind::Probe) > 0
            && let Some(id) = self.requests.next_to_probe()
        {
            // A namespace that is being cleared is empty, also before the store has deleted it.
            let is_clearing = self.spaces.is_clearing(self.requests.get(id).root_hash);
            if is_clearing { self.stop_prefetch(id, false) } else { self.probe(id) }
        }
    }

    fn probe(&mut self, id: ReqId) {
        let request = self.requests.get(id);
        let hashes = request.usable_hashes(&self.config);
        let start = Match::of(&self.inventory, request.root, hashes).host;
        let record =
            |(position, hash)| PageRecord { position, hash, source: Place::Store, target: Place::Nowhere };
        let missing = (0..).zip(hashes.iter().copied()).skip(start as usize);
        let items: Vec<_> = missing.map(|page| Item { record: record(page), cell: None }).collect();
        if items.is_empty() {
            return self.stop_prefetch(id, false);
        }
        let (space, root, root_hash) = (request.space, request.root, request.root_hash);
        let op = self.ledger.next_id();
        let deadline = self.now + self.config.op_timeout;
        let order =
            Order { id: op, kind: OpKind::Probe, space, root, root_hash, items, deadline, waiter: Some(id) };
        self.issue(order);
        self.stats.probes += 1;
        self.requests.get_mut(id).state = State::Prefetching;
    }

    /// The store has the first `leading` pages of a probe. The answer belongs to the positions of the probe;
    /// where the match has changed since then, it is cut by position (K2).
    pub(super) fn probed(&mut self, op: &LiveOp, leading: u32) {
        let Some(&id) = op.waiters.first() else { return };
        let request = self.requests.get(id);
        if request.state != State::Prefetching || request.root != op.root || !self.inventory.is_live(op.root)
        {
            return;
        }
        let asked_from = op.items.first().map_or(0, |item| item.record.position);
        let is_worth_it = |store: StoreConfig| {
            let is_enough = policy::fetches_hits(store.start, leading, store.threshold_pages);
            self.config.mutant.is_worth_a_fetch(is_enough)
        };
        let leading = if self.config.store.is_some_and(is_worth_it) { leading } else { 0 };
        let has = asked_from..asked_from + leading;
        let mutant = self.config.mutant;
        let plan = FetchPlan::of(request, &has, &self.inventory, &self.ledger, mutant);
        self.requests.get_mut(id).promised = if leading > 0 { has.end } else { 0 };
        self.fetch(id, plan, asked_from);
    }

    fn fetch(&mut self, id: ReqId, mut plan: FetchPlan, asked_from: u32) {
        let (config, wanted) = (&self.config, plan.fetch.len() as u32);
        let count = config.mutant.pages_in_budget(wanted, self.ledger.budget_left(OpKind::Fetch));
        let count = config.mutant.pages_on_rank(count, config.rank);
        let count = free_up_behind(&mut self.inventory, &plan.anchor, count, self.config.mutant);
        if let Some(&first_missing) = plan.fetch.get(count as usize) {
            // A shorter prefix is better than none; pages after a gap are of no use (V3).
            plan.fetch.truncate(count as usize);
            plan.join.retain(|(position, _)| *position < first_missing);
        }
        let pages_max = self.config.op_pages_max as usize;
        let batches: Vec<Vec<u32>> = plan.fetch.chunks(pages_max).map(<[u32]>::to_vec).collect();
        for batch in batches {
            self.fetch_batch(id, &batch, asked_from as usize);
        }
        for (_, op) in plan.join {
            if let Some(op) = self.ledger.find_mut(op) {
                self.stats.joined += u64::from(op.waiters.insert(id));
                let op = op.id;
                self.requests.get_mut(id).waits.insert(op);
            }
        }
    }

    fn fetch_batch(&mut self, id: ReqId, positions: &[u32], asked_from: usize) {
        let request = self.requests.get(id);
        let (space, root, root_hash) = (request.space, request.root, request.root_hash);
        let Some(last) = positions.last() else { return };
        let hashes = request.hashes.get(..=*last as usize).unwrap_or_default().to_vec();
        let cells = self.inventory.enter(root, &hashes);
        let op = self.ledger.next_id();
        let mut items = Vec::with_capacity(positions.len());
        for (at, &position) in (0..).zip(positions) {
            let cell = cells.get(self.config.mutant.place_of_cell(at, position as usize));
            let hash = hashes.get(self.config.mutant.place_of_hash(at, position as usize, asked_from));
            let Some((&cell, &hash)) = cell.zip(hash) else { break };
            let index = self.inventory.stage(cell, Tier::Host, op);
            let target = Place::Page(PageId { tier: Tier::Host, index });
            let record = PageRecord { position, hash, source: Place::Store, target };
            items.push(Item { record, cell: Some(cell) });
            mutants::name_fetched(&mut self.inventory, cell, hashes.get(asked_from + at), self.config.mutant);
        }
        cells.into_iter().rev().for_each(|cell| self.inventory.reap(cell));
        if items.is_empty() {
            return;
        }
        self.stats.fetch_issued += items.len() as u64;
        let deadline = self.now + self.config.op_timeout;
        self.issue(Order {
            id: op,
            kind: OpKind::Fetch,
            space,
            root,
            root_hash,
            items,
            deadline,
            waiter: Some(id),
        });
    }

    /// The request continues without the pages that have not arrived.
    pub(super) fn stop_prefetch(&mut self, id: ReqId, is_late: bool) {
        self.stats.prefetch_late += u64::from(is_late);
        self.leave_ops(id);
        self.requests.wait(id);
    }

    /// The request stops waiting for operations. Those without other waiters are abandoned; they keep their
    /// pages and pins until they end (O1, O3).
    pub(super) fn leave_ops(&mut self, id: ReqId) {
        let waits = std::mem::take(&mut self.requests.get_mut(id).waits);
        for op in waits {
            let Some(live) = self.ledger.find_mut(op) else { continue };
            live.waiters.remove(&id);
            self.config.mutant.keep_joiners(&mut live.waiters);
            let can_stop = matches!(live.kind, OpKind::Probe | OpKind::Fetch | OpKind::Load);
            if live.waiters.is_empty() && can_stop {
                self.abandon(op);
            }
        }
    }
}

/// Frees this number of host pages, or uses those that are free, without evicting pages that the request
/// relies on (O4). Returns the number.
fn free_up_behind(inventory: &mut Inventory, anchor: &[CellId], count: u32, mutant: Mutant) -> u32 {
    let held: Vec<_> =
        anchor.iter().filter(|id| inventory.cell(**id).is_valid(Tier::Host)).copied().collect();
    let protected = mutant.protected(&held);
    for id in protected {
        inventory.pin(*id, Tier::Host);
    }
    let is_enough = inventory.free_up(Tier::Host, count);
    let is_there = held.last().is_none_or(|id| inventory.find(*id).is_some_and(|it| it.is_valid(Tier::Host)));
    assert!(is_there, "O4: an eviction took pages that the request relies on");
    for id in protected {
        inventory.unpin(*id, Tier::Host);
    }
    if is_enough { count } else { count.min(inventory.counts(Tier::Host).free) }
}
