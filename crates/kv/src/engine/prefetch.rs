//! From submission to the end of the prefetch: ask the store what it has, fetch it into host pages.

use super::{
    CellId, Effect, Engine, Item, LiveOp, OpId, OpKind, Order, PrefetchStop, Prompt, Refusal, ReqId, Request,
    Residency, State, Submit, Tier, Turn, chain_with, policy, sabotaged,
};
use std::collections::BTreeSet;

use crate::message::{PageId, PageRecord, Place};

/// What a request will fetch, and what others fetch for it already.
#[derive(Default)]
struct FetchPlan {
    /// Pages that are here, up to the first that is not.
    anchor: Vec<CellId>,
    /// The positions to fetch, in order.
    fetch: Vec<u32>,
    /// Operations to wait for, with the first position that each is needed for.
    join: Vec<(u32, OpId)>,
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
            policy::starts_prefetch(missing, store.threshold_pages, self.pressures.host, self.pressures.store)
                && self.ledger.room(OpKind::Fetch) > 0
        });
        let Some(store) = asks else { return self.wait(id) };
        self.asking.insert(turn);
        let until = policy::stops_prefetch_at(store.stop, missing, self.now, deadline);
        self.set_alarm(id, Some(until));
        if store.stop == PrefetchStop::BestEffort {
            self.waiting.insert(turn);
        }
    }

    /// A request, if it makes sense.
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

    /// Asks the store for those whose turn it is.
    pub(super) fn pump_probes(&mut self) {
        while self.ledger.room(OpKind::Probe) > 0
            && let Some(turn) = self.asking.pop_first()
        {
            let id = turn.request;
            // What is being cleared has nothing to be found, however long the store takes to forget it.
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

    /// The store has the first `leading` of the pages that it was asked about. The answer is bound to the
    /// positions of the question; where the match has moved since, it is cut anew by position (K2).
    pub(super) fn probed(&mut self, op: &LiveOp, leading: u32) {
        let Some(&id) = op.waiters.first() else { return };
        let request = self.request(id);
        if request.state != State::Prefetching || request.root != op.root || !self.inventory.is_live(op.root)
        {
            return;
        }
        let asked_from = op.items.first().map_or(0, |item| item.record.position);
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
                Residency::Pending(op, _) if sabotaged!(self.config.sabotage, FetchTwice) => {
                    plan.join.push((position, op));
                    plan.fetch.push(position);
                }
                Residency::Pending(op, _) if self.ledger.is_joinable(op) => plan.join.push((position, op)),
                Residency::Absent if has.contains(&position) => plan.fetch.push(position),
                // What was here when the store was asked is gone, or comes too late.
                _ => break,
            }
        }
        plan
    }

    fn fetch(&mut self, id: ReqId, mut plan: FetchPlan, asked_from: u32) {
        let mut count = plan.fetch.len() as u32;
        if !sabotaged!(self.config.sabotage, UnboundedPrefetch) {
            count = count.min(self.ledger.room(OpKind::Fetch));
        }
        if sabotaged!(self.config.sabotage, RankLocalRoom) && self.config.rank > 0 {
            count /= 2;
        }
        let count = self.make_room_behind(&plan.anchor, count);
        if let Some(&first_missing) = plan.fetch.get(count as usize) {
            // A shorter prefix is better than none; what lies behind a gap is of no use (V3).
            plan.fetch.truncate(count as usize);
            plan.join.retain(|(position, _)| *position < first_missing);
        }
        let pages_max = self.config.op_pages_max as usize;
        let batches: Vec<Vec<u32>> = plan.fetch.chunks(pages_max).map(<[u32]>::to_vec).collect();
        for batch in batches {
            self.fetch_batch(id, &batch, asked_from);
        }
        for (_, op) in plan.join {
            if let Some(op) = self.ledger.find_mut(op) {
                self.stats.joined += u64::from(op.waiters.insert(id));
                let op = op.id;
                self.request_mut(id).waits.insert(op);
            }
        }
    }

    /// Room in the host for so many pages, or for as many as are free, without touching what the request
    /// relies on (O4).
    fn make_room_behind(&mut self, anchor: &[CellId], count: u32) -> u32 {
        let held: Vec<_> =
            anchor.iter().filter(|id| self.inventory.cell(**id).is_valid(Tier::Host)).copied().collect();
        let protects = !sabotaged!(self.config.sabotage, EvictOwnAnchor);
        for id in held.iter().filter(|_| protects) {
            self.inventory.pin(*id, Tier::Host);
        }
        let has_room = self.inventory.make_room(Tier::Host, count);
        let is_there =
            held.last().is_none_or(|id| self.inventory.find(*id).is_some_and(|it| it.is_valid(Tier::Host)));
        assert!(is_there, "O4: making room took what the request relies on");
        for id in held.iter().filter(|_| protects) {
            self.inventory.unpin(*id, Tier::Host);
        }
        if has_room { count } else { count.min(self.inventory.counts(Tier::Host).free) }
    }

    fn fetch_batch(&mut self, id: ReqId, positions: &[u32], asked_from: u32) {
        let request = self.request(id);
        let (space, root, root_hash) = (request.space, request.root, request.root_hash);
        let Some(last) = positions.last() else { return };
        let hashes = request.hashes.get(..=*last as usize).unwrap_or_default().to_vec();
        let cells = self.inventory.enter(root, &hashes);
        let op = self.ledger.next_id();
        let mut items = Vec::with_capacity(positions.len());
        for (at, &position) in (0..).zip(positions) {
            let from_zero = sabotaged!(self.config.sabotage, InsertAtZero);
            let place = if from_zero { at } else { position as usize };
            let named = if sabotaged!(self.config.sabotage, StaleSlice) {
                asked_from as usize + at
            } else {
                position as usize
            };
            let Some((&cell, &hash)) = cells.get(place).zip(hashes.get(named)) else { break };
            let index = self.inventory.stage(cell, Tier::Host, op);
            let target = Place::Page(PageId { tier: Tier::Host, index });
            let record = PageRecord { position, hash, source: Place::Store, target };
            items.push(Item { record, cell: Some(cell) });
            if sabotaged!(self.config.sabotage, PublishByAdmission)
                && let Some(name) = hashes.get(asked_from as usize + at)
            {
                self.inventory.cell_mut(cell).hash = *name;
            }
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

    /// The request goes on without whatever has not come.
    pub(super) fn stop_prefetch(&mut self, id: ReqId, is_late: bool) {
        self.stats.prefetch_late += u64::from(is_late);
        self.leave_ops(id);
        self.wait(id);
    }

    /// The request waits for the device, with its priority and its age.
    pub(super) fn wait(&mut self, id: ReqId) {
        self.set_alarm(id, None);
        let request = self.request_mut(id);
        request.state = State::Waiting;
        let turn = request.turn;
        self.asking.remove(&turn);
        self.waiting.insert(turn);
    }

    /// Nothing that it waits for concerns the request any more. Operations that nobody waits for are told to
    /// stop; they keep what they use until they do (O1, O3).
    pub(super) fn leave_ops(&mut self, id: ReqId) {
        let waits = std::mem::take(&mut self.request_mut(id).waits);
        for op in waits {
            let Some(live) = self.ledger.find_mut(op) else { continue };
            live.waiters.remove(&id);
            if sabotaged!(self.config.sabotage, ForgetJoiners) {
                live.waiters.clear();
            }
            let can_stop = matches!(live.kind, OpKind::Probe | OpKind::Fetch | OpKind::Load);
            if live.waiters.is_empty() && can_stop {
                self.abandon(op);
            }
        }
    }

    /// Says from where on the request must compute, if it was promised more than there is.
    pub(super) fn tell_shortfall(&mut self, id: ReqId, found_pages: u32) {
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
