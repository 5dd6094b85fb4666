//! Promotions that wait for memory, or for their turn.
//!
//! A request waits in the queue of the node whose memory it needs, and is tried again after every event. It
//! ends when its promotion begins, when its object is gone or in memory, when its node is gone, or when its
//! time is up. A node that is short of memory does not delay the promotions of others.
//!
//! **Invariant:** no request waits for memory that is free, or that is used only by objects which no client
//! has read and a disk has, too.
//! **Invariant:** there are no more requests than the limit says, and each of them ends.

use std::collections::{BTreeMap, BTreeSet};

use super::{Tier, promote::Begun};
use crate::master::{
    catalog::{NodeIndex, ObjectIndex},
    context::Context,
};
use crate::{ClientId, Generation, Tick, message::PrefetchOutcome, sabotage::sabotaged};

/// Requests of one node that are tried after one event.
const TRIES_MAX: usize = 64;
/// How long a request pauses whose node refused memory that it seemed to have.
const REFUSED_PAUSE_MS: u64 = 100;

/// One promotion that is to begin when there is memory for it.
#[derive(Clone, Copy, Debug)]
struct Request {
    index: ObjectIndex,
    /// Whose memory it needs, and how much.
    node: NodeIndex,
    need: u64,
    /// Its place in the order of arrival.
    number: u64,
    /// When it was requested, and when it is given up.
    since: Tick,
    until: Tick,
    /// It is not tried before then.
    paused_until: Tick,
    /// See [`Promoting`](super::promote).
    wanted_by: Option<ClientId>,
}

/// All requests that wait.
#[derive(Debug, Default)]
pub(super) struct MemoryQueue {
    requests: BTreeMap<Generation, Request>,
    /// The same by node, in the order of arrival.
    queues: BTreeMap<NodeIndex, BTreeMap<u64, Generation>>,
    /// The same by when they are given up.
    due: BTreeSet<(Tick, Generation)>,
    next: u64,
}

impl MemoryQueue {
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn contains(&self, generation: &Generation) -> bool {
        self.requests.contains_key(generation)
    }

    /// How much memory of a node the next requests wait for.
    pub(super) fn need_at(&self, node: NodeIndex) -> u64 {
        let queue = self.queues.get(&node).into_iter().flat_map(BTreeMap::values);
        let first = queue.take(TRIES_MAX).filter_map(|it| self.requests.get(it));
        first.map(|it| it.need).fold(0, u64::saturating_add)
    }

    /// Another client wants the same: then none of them may cancel it.
    pub(super) fn join(&mut self, generation: &Generation, by: Option<ClientId>) -> bool {
        let Some(request) = self.requests.get_mut(generation) else { return false };
        request.wanted_by = request.wanted_by.filter(|client| Some(*client) == by);
        true
    }

    /// The client that wants it, if it waits and only one client does.
    pub(super) fn wanted_by(&self, generation: &Generation) -> Option<ClientId> {
        self.requests.get(generation)?.wanted_by
    }

    /// When it was requested, if it waits.
    pub(super) fn since(&self, generation: &Generation) -> Option<Tick> {
        self.requests.get(generation).map(|it| it.since)
    }

    fn insert(&mut self, generation: Generation, request: Request) {
        self.queues.entry(request.node).or_default().insert(request.number, generation);
        self.due.insert((request.until, generation));
        self.requests.insert(generation, request);
    }

    fn remove(&mut self, generation: &Generation) -> Option<Request> {
        let request = self.requests.remove(generation)?;
        self.due.remove(&(request.until, *generation));
        if let Some(queue) = self.queues.get_mut(&request.node) {
            queue.remove(&request.number);
            if queue.is_empty() {
                self.queues.remove(&request.node);
            }
        }
        Some(request)
    }

    /// The request of a node that came next after that one.
    fn after(&self, node: NodeIndex, number: Option<u64>) -> Option<(u64, Generation)> {
        let first = number.map_or(0, |it| it + 1);
        self.queues.get(&node)?.range(first..).next().map(|(number, generation)| (*number, *generation))
    }

    fn nodes(&self) -> Vec<NodeIndex> {
        self.queues.keys().copied().collect()
    }
}

impl Tier {
    /// Has a promotion wait for memory of a node, or for its turn. It was requested at `since`, if it was
    /// begun before.
    pub(super) fn await_memory(
        &mut self,
        cx: &Context,
        (index, generation): (ObjectIndex, Generation),
        (node, need): (NodeIndex, u64),
        wanted_by: Option<ClientId>,
        since: Option<Tick>,
    ) -> PrefetchOutcome {
        let paused_until = since.map_or(Tick(0), |_| cx.now.after(REFUSED_PAUSE_MS));
        let since = since.unwrap_or(cx.now);
        let until = since.after(cx.config.tier.memory_wait_ms);
        let queue = &mut self.promotions.queue;
        let is_full = queue.requests.len() >= cx.config.tier.waiting_max;
        let throttle = &self.promotions.throttle;
        if is_full || until <= cx.now || throttle.is_cooling(cx.now.0, u32::from(node.0)) {
            return self.skip();
        }
        queue.next += 1;
        let number = queue.next;
        let request = Request { index, node, need, number, since, until, paused_until, wanted_by };
        queue.insert(generation, request);
        // Perhaps a disk can free some.
        self.demotions.wake();
        PrefetchOutcome::Running
    }

    /// Gives up those whose time is up, and begins those for which there is memory now.
    pub(super) fn serve_promotions(&mut self, cx: &mut Context) {
        if self.promotions.queue.requests.is_empty() {
            return;
        }
        while let Some(&(until, generation)) = self.promotions.queue.due.first() {
            if until > cx.now {
                break;
            }
            let Some(node) = self.end_waiting_promotion(cx, &generation, true) else { break };
            self.promotions.throttle.press(cx.now.0, u32::from(node.0));
        }
        if sabotaged!(cx.config.sabotage, RetryNever) {
            return;
        }
        for node in self.promotions.queue.nodes() {
            self.serve_promotions_at(cx, node);
        }
    }

    fn serve_promotions_at(&mut self, cx: &mut Context, node: NodeIndex) {
        let (mut last, mut too_much) = (None, u64::MAX);
        for _ in 0..TRIES_MAX {
            let Some((number, generation)) = self.promotions.queue.after(node, last) else { return };
            last = Some(number);
            let Some(request) = self.promotions.queue.requests.get(&generation).copied() else { return };
            if request.need >= too_much || request.paused_until > cx.now {
                continue;
            }
            match self.begin_promotion(cx, request.index, generation, request.wanted_by) {
                // Requests that wait for it go on waiting.
                Begun::Running => _ = self.promotions.queue.remove(&generation),
                Begun::NoMemory => too_much = request.need,
                Begun::NoPath | Begun::OverQuota => (),
                Begun::Busy => return,
                Begun::Joined | Begun::Failed | Begun::Resident | Begun::Absent => {
                    _ = self.end_waiting_promotion(cx, &generation, false);
                }
            }
        }
    }

    /// A request waits no more, and its promotion does not begin. The node whose memory it waited for.
    pub(super) fn end_waiting_promotion(
        &mut self,
        cx: &Context,
        generation: &Generation,
        skips: bool,
    ) -> Option<NodeIndex> {
        let request = self.promotions.queue.remove(generation)?;
        self.stat.prefetch_skipped += u64::from(skips);
        self.promotions.fetches.wake(cx, *generation, skips);
        Some(request.node)
    }

    /// The memory that requests wait for is gone.
    pub(super) fn end_waiting_promotions_at(&mut self, cx: &Context, node: NodeIndex) {
        while let Some((_, generation)) = self.promotions.queue.after(node, None) {
            self.end_waiting_promotion(cx, &generation, true);
        }
    }

    /// When something may have changed for requests that wait, if nothing else happens first.
    pub(super) fn next_promotion(&self, cx: &Context) -> Option<Tick> {
        let waiting = &self.promotions.queue;
        let mut next = waiting.due.first().map(|it| it.0);
        for (node, queue) in &waiting.queues {
            let paused = queue.values().take(TRIES_MAX).filter_map(|it| waiting.requests.get(it));
            let paused = paused.map(|it| it.paused_until).filter(|it| *it > cx.now).min();
            let cold = cx.catalog.next_cold(*node, cx.now, cx.config.tier.protect_ms);
            next = next.into_iter().chain(paused).chain(cold).min();
        }
        next
    }

    /// What is inconsistent, if anything is.
    pub(super) fn check_waiting_promotions(&self, cx: &Context) -> Result<(), String> {
        let waiting = &self.promotions.queue;
        let queued: usize = waiting.queues.values().map(BTreeMap::len).sum();
        if queued != waiting.requests.len() || waiting.due.len() != queued {
            return Err(format!("books: {queued} promotions are queued, {} wait", waiting.requests.len()));
        }
        if queued > cx.config.tier.waiting_max {
            return Err(format!("T11: {queued} promotions wait"));
        }
        for (generation, it) in &waiting.requests {
            let object = cx.catalog.get(it.index).filter(|object| object.generation() == *generation);
            if object.is_none() || it.until <= cx.now {
                return Err(format!("T20: {it:?} waits for nothing, at {:?}: {object:?}", cx.now));
            }
        }
        for queue in waiting.queues.values() {
            let first = queue.values().next().and_then(|it| Some((it, waiting.requests.get(it)?)));
            let Some((generation, it)) = first.filter(|it| it.1.paused_until <= cx.now) else { continue };
            if self.could_begin(cx, it.index, it.node, it.need) {
                return Err(format!("T20: {generation} {it:?} waits although there is memory for it"));
            }
        }
        Ok(())
    }
}
