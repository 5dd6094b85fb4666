//! Promotions that wait for memory, or for their turn.
//!
//! A request waits in the queue of the node whose memory it needs, and is retried after every event. It
//! ends when its promotion begins, when its object is gone or in memory, when its node is gone, or when its
//! deadline passes. A node that is short of memory does not delay the promotions of others. Namespaces take
//! turns by bytes, those of one token together, so that one that prefetches too much delays the others by
//! its share only.
//!
//! **Invariant:** no request waits for memory that is free, or that is used only by unread objects with a
//! disk copy.
//!
//! **Invariant:** the number of requests is limited, and each of them ends.

use std::collections::{BTreeMap, BTreeSet};

use super::{Tier, promote::Begun};
use crate::master::{
    catalog::{NodeIndex, Object, ObjectIndex, TurnGroup},
    context::Context,
};
use crate::{ClientId, Generation, Tick, message::PrefetchOutcome, mutant::is_mutant};

/// Maximum number of requests of one node that are tried after one event.
const TRIES_MAX: usize = 64;
/// A namespace may have this many times the requests that may still be added: no one fills the queue.
const SHARE_OF_FREE: usize = 15;
/// How long a request pauses after its node refused memory that it seemed to have.
const REFUSED_PAUSE_MS: u64 = 100;

/// A promotion that begins when there is memory for it.
#[derive(Clone, Copy, Debug)]
struct Request {
    index: ObjectIndex,
    /// The node whose memory it needs.
    node: NodeIndex,
    group: TurnGroup,
    need: u64,
    turn: Turn,
    /// When it was requested, and when it is given up.
    since: Tick,
    until: Tick,
    /// It is not tried before then.
    paused_until: Tick,
    /// See [`Promoting`](super::promote).
    wanted_by: Option<ClientId>,
}

/// The place of a request in the queue of its node: its tag, and its number in the order of arrival.
type Turn = (u64, u64);

/// The requests of one node.
#[derive(Debug, Default)]
struct Queue {
    turns: BTreeMap<Turn, Generation>,
    /// The largest tag of a request that began.
    now: u64,
    /// The tag of each group's next request: those before it need so many bytes more.
    next: BTreeMap<TurnGroup, u64>,
}

/// All requests that wait.
#[derive(Debug, Default)]
pub(super) struct MemoryQueue {
    requests: BTreeMap<Generation, Request>,
    /// The same by node, in the order of their turns.
    queues: BTreeMap<NodeIndex, Queue>,
    /// How many each group has: a namespace, or those of a token.
    of_group: BTreeMap<TurnGroup, usize>,
    /// The same by deadline.
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

    /// Number of bytes that the next requests of a node wait for.
    pub(super) fn need_at(&self, node: NodeIndex) -> u64 {
        let queue = self.queues.get(&node).into_iter().flat_map(|it| it.turns.values());
        let first = queue.take(TRIES_MAX).filter_map(|it| self.requests.get(it));
        first.map(|it| it.need).fold(0, u64::saturating_add)
    }

    /// Another client requests the same promotion: then none of them may cancel it.
    pub(super) fn join(&mut self, generation: &Generation, by: Option<ClientId>) -> bool {
        let Some(request) = self.requests.get_mut(generation) else { return false };
        request.wanted_by = request.wanted_by.filter(|client| Some(*client) == by);
        true
    }

    /// The client that requested it, if it waits and only one client did.
    pub(super) fn wanted_by(&self, generation: &Generation) -> Option<ClientId> {
        self.requests.get(generation)?.wanted_by
    }

    /// When it was requested, if it waits.
    pub(super) fn since(&self, generation: &Generation) -> Option<Tick> {
        self.requests.get(generation).map(|it| it.since)
    }

    /// Whether a group may have another request.
    fn is_full(&self, cx: &Context, group: TurnGroup) -> bool {
        let free = cx.config.tier.waiting_max.saturating_sub(self.requests.len());
        let own = self.of_group.get(&group).copied().unwrap_or(0);
        let is_greedy = own > free.saturating_mul(SHARE_OF_FREE);
        free == 0 || (is_greedy && !is_mutant!(cx.config.mutant, PromoteInOrder))
    }

    /// The turn of a new request: behind the others of its group, and not before now.
    fn next_turn(&mut self, cx: &Context, node: NodeIndex, (group, need): (TurnGroup, u64)) -> Turn {
        self.next += 1;
        if is_mutant!(cx.config.mutant, PromoteInOrder) {
            return (0, self.next);
        }
        let queue = self.queues.entry(node).or_default();
        let next = queue.next.entry(group).or_default();
        let tag = queue.now.max(*next);
        *next = tag.saturating_add(need);
        (tag, self.next)
    }

    fn insert(&mut self, generation: Generation, request: Request) {
        self.queues.entry(request.node).or_default().turns.insert(request.turn, generation);
        self.due.insert((request.until, generation));
        *self.of_group.entry(request.group).or_default() += 1;
        self.requests.insert(generation, request);
    }

    /// A promotion begins.
    fn begin(&mut self, generation: &Generation) {
        if let Some(request) = self.remove(generation)
            && let Some(queue) = self.queues.get_mut(&request.node)
        {
            queue.now = queue.now.max(request.turn.0);
        }
    }

    fn remove(&mut self, generation: &Generation) -> Option<Request> {
        let request = self.requests.remove(generation)?;
        self.due.remove(&(request.until, *generation));
        if let Some(queue) = self.queues.get_mut(&request.node) {
            queue.turns.remove(&request.turn);
            if queue.turns.is_empty() {
                self.queues.remove(&request.node);
            }
        }
        if let Some(count) = self.of_group.get_mut(&request.group) {
            *count -= 1;
            if *count == 0 {
                self.of_group.remove(&request.group);
            }
        }
        Some(request)
    }

    /// The next request of a node after that turn.
    fn after(&self, node: NodeIndex, turn: Option<Turn>) -> Option<(Turn, Generation)> {
        let first = turn.map_or((0, 0), |(tag, number)| (tag, number + 1));
        let turns = &self.queues.get(&node)?.turns;
        turns.range(first..).next().map(|(turn, generation)| (*turn, *generation))
    }

    fn nodes(&self) -> Vec<NodeIndex> {
        self.queues.keys().copied().collect()
    }

    /// When a request must be tried again, if no other event occurs first.
    pub(super) fn next_try(&self, cx: &Context) -> Option<Tick> {
        let mut next = self.due.first().map(|it| it.0);
        for (node, queue) in &self.queues {
            let paused = queue.turns.values().take(TRIES_MAX).filter_map(|it| self.requests.get(it));
            let paused = paused.map(|it| it.paused_until).filter(|it| *it > cx.now).min();
            let cold = cx.catalog.next_cold(*node, cx.now, cx.config.tier.protect_ms);
            next = next.into_iter().chain(paused).chain(cold).min();
        }
        next
    }
}

impl Tier {
    /// Lets a promotion wait for memory of a node, or for its turn. `since` is the time of its request, if
    /// it was begun before.
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
        let Some(namespace) = cx.catalog.get(index).map(Object::namespace) else { return self.skip() };
        let group = cx.catalog.namespace(namespace).map(|it| it.turn_group(cx.config.mutant));
        let group = group.unwrap_or_default();
        let queue = &mut self.promotions.queue;
        let is_full = queue.is_full(cx, group);
        let throttle = &self.promotions.throttle;
        if is_full || until <= cx.now || throttle.is_cooling(cx.now.0, u32::from(node.0)) {
            return self.skip();
        }
        let turn = queue.next_turn(cx, node, (group, need));
        let request = Request { index, node, group, need, turn, since, until, paused_until, wanted_by };
        queue.insert(generation, request);
        // A disk may be able to free memory.
        self.demotions.wake();
        PrefetchOutcome::Running
    }

    /// Gives up requests whose deadline has passed, and begins those for which there is memory.
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
        if is_mutant!(cx.config.mutant, RetryNever) {
            return;
        }
        for node in self.promotions.queue.nodes() {
            self.serve_promotions_at(cx, node);
        }
    }

    fn serve_promotions_at(&mut self, cx: &mut Context, node: NodeIndex) {
        let (mut last, mut too_much) = (None, u64::MAX);
        for _ in 0..TRIES_MAX {
            let Some((turn, generation)) = self.promotions.queue.after(node, last) else { return };
            last = Some(turn);
            let Some(request) = self.promotions.queue.requests.get(&generation).copied() else { return };
            if request.need >= too_much || request.paused_until > cx.now {
                continue;
            }
            match self.begin_promotion(cx, request.index, generation, request.wanted_by) {
                // The fetches that wait for it continue to wait.
                Begun::Running => self.promotions.queue.begin(&generation),
                Begun::NoMemory => too_much = request.need,
                Begun::NoPath | Begun::OverQuota => (),
                Begun::Busy => return,
                Begun::Joined | Begun::Failed | Begun::Resident | Begun::Absent => {
                    _ = self.end_waiting_promotion(cx, &generation, false);
                }
            }
        }
    }

    /// Ends a request whose promotion does not begin. Returns the node whose memory it waited for.
    pub(super) fn end_waiting_promotion(
        &mut self,
        cx: &Context,
        generation: &Generation,
        skips: bool,
    ) -> Option<NodeIndex> {
        let request = self.promotions.queue.remove(generation)?;
        self.stat.prefetch_skipped += u64::from(skips);
        self.fetches.wake(cx, *generation, skips);
        Some(request.node)
    }

    /// The node whose memory requests wait for is gone.
    pub(super) fn end_waiting_promotions_at(&mut self, cx: &Context, node: NodeIndex) {
        while let Some((_, generation)) = self.promotions.queue.after(node, None) {
            self.end_waiting_promotion(cx, &generation, true);
        }
    }

    /// Checks internal consistency.
    pub(super) fn check_waiting_promotions(&self, cx: &Context) -> Result<(), String> {
        let waiting = &self.promotions.queue;
        let queued: usize = waiting.queues.values().map(|it| it.turns.len()).sum();
        let counted: usize = waiting.of_group.values().sum();
        if queued != waiting.requests.len() || waiting.due.len() != queued || counted != queued {
            return Err(format!(
                "accounting: {queued} promotions are queued, {} wait",
                waiting.requests.len()
            ));
        }
        if queued > cx.config.tier.waiting_max {
            return Err(format!("T11: {queued} promotions wait, more than the limit"));
        }
        for (generation, it) in &waiting.requests {
            let object = cx.catalog.get(it.index).filter(|object| object.generation() == *generation);
            if object.is_none() || it.until <= cx.now {
                return Err(format!("T20: {it:?} waits without cause at {:?}: {object:?}", cx.now));
            }
        }
        for queue in waiting.queues.values() {
            let first = queue.turns.values().next().and_then(|it| Some((it, waiting.requests.get(it)?)));
            let Some((generation, it)) = first.filter(|it| it.1.paused_until <= cx.now) else { continue };
            if self.could_begin(cx, it.index, it.node, it.need) {
                return Err(format!("T20: {generation} {it:?} waits although there is memory for it"));
            }
        }
        Ok(())
    }
}
