//! From submission to the end of the prefetch: probe the store, and fetch its pages into the host.

use super::{
    CellId, Effect, Engine, Item, LiveOp, OpId, OpKind, Order, PrefetchStop, Prompt, Refusal, ReqId, Request,
    Residency, State, Submit, Tier, Turn, chain_with, policy,
};
use std::collections::BTreeSet;

use crate::config::StoreConfig;
use crate::message::{PageId, PageRecord, Place};

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

impl Engine {
    pub(super) fn submit(&mut self, submit: Submit) {
        let request = match self.read(submit) {
            Ok(request) => request,
            Err(refusal) => return self.refuse(refusal),
        };
        let id = request.turn.request;
        self.stats.requests += 1;
        let usable = self.usable_pages(request.length).min(request.hashes.len() as u32);
        let hashes = request.hashes.get(..usable as usize).unwrap_or_default();
        let found = self.match_hashes(request.root, hashes);
        let turn = request.turn;
        let deadline = request.deadline;
        self.requests.insert(id, request);
        let missing = usable - found.host;
        let is_cooling = self.now < self.cool_until;
        self.stats.cooled += u64::from(is_cooling && missing > 0 && self.config.store.is_some());
        let asks = self.config.store.filter(|_| !is_cooling).filter(|store| {
            let (host, pressure) = (self.pressures.host, self.pressures.store);
            policy::starts_prefetch(store.start, missing, store.threshold_pages, host, pressure)
                && self.ledger.budget_left(OpKind::Fetch) > 0
        });
        let Some(store) = asks else { return self.wait(id) };
        self.to_probe.insert(turn);
        let until = policy::stops_prefetch_at(store.stop, missing, self.now, deadline);
        self.set_alarm(id, Some(until));
        if store.stop == PrefetchStop::BestEffort {
            self.waiting.insert(turn);
        }
    }

    /// Checks a submission and makes a request of it.
    fn read(&mut self, submit: Submit) -> Result<Request, Refusal> {
        let Submit { request, space, prompt, priority, deadline } = submit;
        if self.requests.contains_key(&request) {
            return Err(Refusal::Duplicate(request));
        }
        let known = self.spaces.get(&space).ok_or(Refusal::UnknownSpace(space))?;
        let (root, root_hash) = (known.root, known.root_hash);
        let (tokens, media, length, hashes) = match prompt {
            Prompt::Tokens { tokens, media } => {
                let page = self.config.page_tokens;
                let hashes = chain_with(root_hash, 0, page, &tokens, &media, self.config.sabotage);
                let length = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
                (Some(tokens), media, length, hashes)
            }
            Prompt::Hashes { tokens, pages } => {
                let full = tokens / self.config.page_tokens;
                if pages.len() > full as usize {
                    let hashes = pages.len() as u32;
                    return Err(Refusal::PagesDoNotDivide { request, hashes, pages: full });
                }
                let mut seen = BTreeSet::new();
                let is_out =
                    |(at, (position, hash)): &(u32, &(u32, _))| at != position || !seen.insert(*hash);
                if let Some((at, _)) = (0..).zip(&pages).find(is_out) {
                    return Err(Refusal::HashesOutOfOrder(request, at));
                }
                (None, Vec::new(), tokens, pages.into_iter().map(|(_, hash)| hash).collect())
            }
        };
        if length == 0 {
            return Err(Refusal::Empty(request));
        }
        let (pages, capacity) = (self.pages_for(length), self.config.device_pages);
        if pages > capacity {
            return Err(Refusal::TooLong { request, pages, capacity });
        }
        self.came += 1;
        let turn = Turn { rank: u8::MAX - priority, came: self.came, request };
        Ok(Request {
            space,
            root,
            root_hash,
            tokens,
            media,
            length,
            prompt_length: length,
            hashes,
            turn,
            deadline,
            state: State::Submitted,
            alarm: None,
            waits: BTreeSet::new(),
            slots: Vec::new(),
            computed: 0,
            entered: 0,
            promised: 0,
        })
    }

    /// Probes the store for the next requests.
    pub(super) fn pump_probes(&mut self) {
        while self.ledger.budget_left(OpKind::Probe) > 0
            && let Some(turn) = self.to_probe.pop_first()
        {
            let id = turn.request;
            // A namespace that is being cleared is empty, also before the store has deleted it.
            let is_clearing = self.clearing.contains_key(&self.request(id).root_hash);
            if is_clearing { self.stop_prefetch(id, false) } else { self.probe(id) }
        }
    }

    fn probe(&mut self, id: ReqId) {
        let request = self.request(id);
        let usable = self.usable_pages(request.length).min(request.hashes.len() as u32);
        let hashes = request.hashes.get(..usable as usize).unwrap_or_default();
        let start = self.match_hashes(request.root, hashes).host;
        let record =
            |(position, hash)| PageRecord { position, hash, source: Place::Store, target: Place::Nowhere };
        let missing = (0..).zip(hashes.iter().copied()).skip(start as usize);
        let items: Vec<_> = missing.map(|page| Item { record: record(page), cell: None }).collect();
        if items.is_empty() {
            return self.stop_prefetch(id, false);
        }
        let (space, root, root_hash) = (request.space, request.root, request.root_hash);
        let op = self.ledger.next_id();
        let deadline = self.now + self.config.op_patience;
        let order =
            Order { id: op, kind: OpKind::Probe, space, root, root_hash, items, deadline, waiter: Some(id) };
        self.issue(order);
        self.stats.probes += 1;
        let request = self.request_mut(id);
        request.state = State::Prefetching;
        request.waits.insert(op);
    }

    /// The store has the first `leading` pages of a probe. The answer belongs to the positions of the probe;
    /// where the match has changed since then, it is cut by position (K2).
    pub(super) fn probed(&mut self, op: &LiveOp, leading: u32) {
        let Some(&id) = op.waiters.first() else { return };
        let request = self.request(id);
        if request.state != State::Prefetching || request.root != op.root || !self.inventory.is_live(op.root)
        {
            return;
        }
        let asked_from = op.items.first().map_or(0, |item| item.record.position);
        let is_worth_it = |store: StoreConfig| {
            let is_enough = policy::fetches_hits(store.start, leading, store.threshold_pages);
            self.config.sabotage.is_worth_a_fetch(is_enough)
        };
        let leading = if self.config.store.is_some_and(is_worth_it) { leading } else { 0 };
        let has = asked_from..asked_from + leading;
        let plan = self.plan_fetch(id, &has);
        self.request_mut(id).promised = if leading > 0 { has.end } else { 0 };
        self.fetch(id, plan, asked_from);
    }

    fn plan_fetch(&self, id: ReqId, has: &std::ops::Range<u32>) -> FetchPlan {
        let request = self.request(id);
        let hashes = request.hashes.get(..has.end as usize).unwrap_or_default();
        let mut plan = FetchPlan::default();
        for (position, id) in (0..).zip(self.inventory.locate(request.root, hashes)) {
            let cell = id.map(|id| self.inventory.cell(id));
            let residency = cell.map_or(Residency::Absent, |cell| cell.residency(Tier::Host));
            let on_device = cell.is_some_and(|cell| cell.is_valid(Tier::Device));
            match residency {
                Residency::Valid(_) => plan.anchor.extend(id),
                _ if on_device => plan.anchor.extend(id),
                Residency::Pending(op, _) if self.can_join(op) => self.join(&mut plan, position, op),
                Residency::Absent if has.contains(&position) => plan.fetch.push(position),
                // A page that was cached at the time of the probe is gone, or its operation is abandoned.
                _ => break,
            }
        }
        plan
    }

    fn fetch(&mut self, id: ReqId, mut plan: FetchPlan, asked_from: u32) {
        let (config, wanted) = (&self.config, plan.fetch.len() as u32);
        let count = config.sabotage.pages_in_budget(wanted, self.ledger.budget_left(OpKind::Fetch));
        let count = config.sabotage.pages_on_rank(count, config.rank);
        let count = self.free_up_behind(&plan.anchor, count);
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
                self.request_mut(id).waits.insert(op);
            }
        }
    }

    /// Frees this number of host pages, or uses those that are free, without evicting pages that the request
    /// relies on (O4). Returns the number.
    fn free_up_behind(&mut self, anchor: &[CellId], count: u32) -> u32 {
        let held: Vec<_> =
            anchor.iter().filter(|id| self.inventory.cell(**id).is_valid(Tier::Host)).copied().collect();
        let protected = self.config.sabotage.protected(&held);
        for id in protected {
            self.inventory.pin(*id, Tier::Host);
        }
        let is_enough = self.inventory.free_up(Tier::Host, count);
        let is_there =
            held.last().is_none_or(|id| self.inventory.find(*id).is_some_and(|it| it.is_valid(Tier::Host)));
        assert!(is_there, "O4: an eviction took pages that the request relies on");
        for id in protected {
            self.inventory.unpin(*id, Tier::Host);
        }
        if is_enough { count } else { count.min(self.inventory.counts(Tier::Host).free) }
    }

    fn fetch_batch(&mut self, id: ReqId, positions: &[u32], asked_from: usize) {
        let request = self.request(id);
        let (space, root, root_hash) = (request.space, request.root, request.root_hash);
        let Some(last) = positions.last() else { return };
        let hashes = request.hashes.get(..=*last as usize).unwrap_or_default().to_vec();
        let cells = self.inventory.enter(root, &hashes);
        let op = self.ledger.next_id();
        let mut items = Vec::with_capacity(positions.len());
        for (at, &position) in (0..).zip(positions) {
            let cell = cells.get(self.config.sabotage.place_of_cell(at, position as usize));
            let hash = hashes.get(self.config.sabotage.place_of_hash(at, position as usize, asked_from));
            let Some((&cell, &hash)) = cell.zip(hash) else { break };
            let index = self.inventory.stage(cell, Tier::Host, op);
            let target = Place::Page(PageId { tier: Tier::Host, index });
            let record = PageRecord { position, hash, source: Place::Store, target };
            items.push(Item { record, cell: Some(cell) });
            self.name_fetched(cell, hashes.get(asked_from + at));
        }
        cells.into_iter().rev().for_each(|cell| self.inventory.reap(cell));
        if items.is_empty() {
            return;
        }
        self.stats.fetch_issued += items.len() as u64;
        let deadline = self.now + self.config.op_patience;
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
        self.request_mut(id).waits.insert(op);
    }

    /// The request continues without the pages that have not arrived.
    pub(super) fn stop_prefetch(&mut self, id: ReqId, is_late: bool) {
        self.stats.prefetch_late += u64::from(is_late);
        self.leave_ops(id);
        self.wait(id);
    }

    /// The request waits for the device, in the order of priority and age.
    pub(super) fn wait(&mut self, id: ReqId) {
        self.set_alarm(id, None);
        let request = self.request_mut(id);
        request.state = State::Waiting;
        let turn = request.turn;
        self.to_probe.remove(&turn);
        self.waiting.insert(turn);
    }

    /// The request stops waiting for operations. Those without other waiters are abandoned; they keep their
    /// pages and pins until they end (O1, O3).
    pub(super) fn leave_ops(&mut self, id: ReqId) {
        let waits = std::mem::take(&mut self.request_mut(id).waits);
        for op in waits {
            let Some(live) = self.ledger.find_mut(op) else { continue };
            live.waiters.remove(&id);
            self.config.sabotage.keep_joiners(&mut live.waiters);
            let can_stop = matches!(live.kind, OpKind::Probe | OpKind::Fetch | OpKind::Load);
            if live.waiters.is_empty() && can_stop {
                self.abandon(op);
            }
        }
    }

    /// Reports from where on the request must compute, if fewer pages arrived than the store has.
    pub(super) fn report_shortfall(&mut self, id: ReqId, found_pages: u32) {
        let request = self.request_mut(id);
        let promised = std::mem::take(&mut request.promised);
        if promised == 0 {
            return;
        }
        let is_short = found_pages < promised;
        self.stats.prefetch_in_time += u64::from(!is_short);
        if is_short {
            let from = found_pages * self.config.page_tokens;
            self.effects.push(Effect::MustRecompute { request: id, from });
        }
    }
}
