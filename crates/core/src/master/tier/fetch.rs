//! Requests that wait for promotions: a prefetch that waits for its outcome, and a get of objects that are
//! being promoted.
//!
//! A request waits for the end of each of its promotions, up to its deadline.
//!
//! **Invariant:** every promotion that a request waits for is running, or waits for memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::Tier;
use crate::master::{Caller, OpId, catalog::ObjectIndex, context::Context, limits::waiting_bytes, refuse};
use crate::{
    BATCH_ITEMS_MAX, ConnId, Generation, RequestId, Tick,
    message::{Ahead, Prefetch, PrefetchOutcome, Reason, Reply, Resolve},
    mutant::is_mutant,
};

/// A request that waits for promotions.
#[derive(Debug)]
pub(in crate::master) struct Fetching {
    pub(in crate::master) conn: ConnId,
    pub(in crate::master) id: RequestId,
    pub(in crate::master) caller: Arc<Caller>,
    ask: Ask,
    awaited: BTreeSet<Generation>,
    since: Tick,
    deadline: Tick,
}

/// The kind of the request, and the state of its answer.
#[derive(Debug)]
enum Ask {
    Resolve(Resolve),
    /// The outcome of each key as far as it is known, with the promotion that decides the rest; and the
    /// promotions that did not fail.
    Prefetch(Vec<(PrefetchOutcome, Option<(ObjectIndex, Generation)>)>, BTreeSet<Generation>),
}

impl Ask {
    /// What it has in memory, about.
    fn bytes(&self) -> usize {
        match self {
            Self::Resolve(resolve) => waiting_bytes(resolve.keys.iter()),
            Self::Prefetch(items, _) => std::mem::size_of_val(&items[..]),
        }
    }
}

/// The answer to a request that has ended.
#[derive(Debug)]
pub(in crate::master) enum Fetched {
    /// Resolve the objects now. With how long the request has waited, and whether its deadline passed.
    Resolve(Resolve, (u64, bool)),
    Reply(Reply),
}

/// All requests that wait for promotions.
#[derive(Debug, Default)]
pub(in crate::master) struct Fetches {
    all: BTreeMap<OpId, Fetching>,
    /// The same by promotion.
    by_promotion: BTreeMap<Generation, BTreeSet<OpId>>,
    /// Requests that wait for no promotion any more. They are answered after the event, when all its
    /// consequences are known.
    woken: Vec<OpId>,
}

impl Fetches {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Lets a request wait. Returns it if it has nothing to wait for, or may not wait.
    fn insert(&mut self, cx: &mut Context, fetching: Fetching) -> Option<OpId> {
        let op = cx.next_op();
        let at_once = fetching.awaited.is_empty() || fetching.deadline <= cx.now;
        // A request that may not wait is answered with what is known now.
        let asked = (fetching.conn, fetching.id);
        let may_wait = at_once || cx.wait(op, asked, &fetching.caller, fetching.ask.bytes()).is_ok();
        for generation in &fetching.awaited {
            self.by_promotion.entry(*generation).or_default().insert(op);
        }
        cx.deadlines.list(fetching.deadline, op);
        self.all.insert(op, fetching);
        (at_once || !may_wait).then_some(op)
    }

    /// Whether a request waits for that promotion.
    pub(super) fn has_any_for(&self, generation: Generation) -> bool {
        self.by_promotion.get(&generation).is_some_and(|it| !it.is_empty())
    }

    /// A promotion has ended. It has not failed if the object was promoted, or if there was no memory.
    pub(super) fn wake(&mut self, cx: &Context, generation: Generation, has_not_failed: bool) {
        let waiting = self.by_promotion.remove(&generation).unwrap_or_default();
        if is_mutant!(cx.config.mutant, WakeNobody) {
            return;
        }
        for op in waiting {
            if let Some(fetching) = self.all.get_mut(&op) {
                fetching.awaited.remove(&generation);
                if let Ask::Prefetch(_, not_failed) = &mut fetching.ask {
                    not_failed.extend(has_not_failed.then_some(generation));
                }
                if fetching.awaited.is_empty() {
                    self.woken.push(op);
                }
            }
        }
    }

    /// The next request that no longer waits and must be answered.
    pub(in crate::master) fn take_woken(&mut self) -> Option<OpId> {
        self.woken.pop()
    }

    /// Whether the deadline of a request has passed.
    pub(in crate::master) fn is_late(&self, cx: &Context, op: OpId) -> bool {
        self.all.get(&op).is_some_and(|it| it.deadline <= cx.now)
    }

    /// Ends the waiting of a request.
    pub(in crate::master) fn end(&mut self, cx: &mut Context, op: OpId) -> Option<Fetching> {
        let fetching = self.all.remove(&op)?;
        cx.deadlines.strike(fetching.deadline, op);
        cx.waiting.leave(op);
        for generation in &fetching.awaited {
            if let Some(waiting) = self.by_promotion.get_mut(generation) {
                waiting.remove(&op);
            }
        }
        Some(fetching)
    }

    /// A client no longer waits for an answer: its deadline is now.
    pub(in crate::master) fn cancel(&mut self, cx: &mut Context, conn: ConnId, id: RequestId) {
        if let Some(op) = cx.waiting.find(conn, id)
            && let Some(fetching) = self.all.get_mut(&op)
        {
            fetching.deadline = fetching.deadline.min(cx.now);
            cx.deadlines.list(cx.now, op);
        }
    }

    /// Checks internal consistency. `is_coming` says whether a promotion will end.
    pub(super) fn check(&self, is_coming: impl Fn(&Generation) -> bool) -> Result<(), String> {
        for fetching in self.all.values() {
            let nothing = fetching.awaited.iter().find(|it| !is_coming(it));
            if fetching.awaited.is_empty() || nothing.is_some() {
                return Err(format!("T6: {fetching:?} waits for a promotion that does not run"));
            }
        }
        match self.by_promotion.keys().find(|it| !is_coming(it)) {
            Some(generation) => Err(format!("T3: no promotion will end the wait for {generation}")),
            None => Ok(()),
        }
    }
}

impl Tier {
    /// Promotes objects that a client will read soon, or cancels that. Returns the request if it must be
    /// answered at once.
    pub(in crate::master) fn prefetch(
        &mut self,
        cx: &mut Context,
        (conn, id): (ConnId, RequestId),
        caller: &Arc<Caller>,
        prefetch: &Prefetch,
    ) -> Option<OpId> {
        if prefetch.keys.len() > BATCH_ITEMS_MAX {
            cx.reply(conn, id, refuse(Reason::Invalid, "the batch is too large"));
            return None;
        }
        let found: Vec<_> = prefetch.keys.iter().map(|key| cx.catalog.find(caller.namespace, key)).collect();
        if prefetch.ahead == Ahead::Nothing {
            let outcomes = found.into_iter().map(|index| self.cancel_promotion(cx, index, caller.client));
            let reply = Reply::Prefetched(outcomes.collect());
            cx.reply(conn, id, reply);
            return None;
        }
        let outcomes = self.promote_all(cx, &found, prefetch.ahead, Some(caller.client));
        let mut awaited = BTreeSet::new();
        let mut items = Vec::with_capacity(outcomes.len());
        for (index, outcome) in found.iter().zip(outcomes) {
            let object = index.and_then(|index| Some((index, cx.catalog.get(index)?.generation())));
            let running = object.filter(|_| outcome == PrefetchOutcome::Running);
            awaited.extend(running.map(|(_, generation)| generation));
            items.push((outcome, running));
        }
        let deadline = cx.now.after(prefetch.wait_ms);
        let (caller, since) = (Arc::clone(caller), cx.now);
        let ask = Ask::Prefetch(items, BTreeSet::new());
        self.fetches.insert(cx, Fetching { conn, id, caller, ask, awaited, since, deadline })
    }

    /// Lets a get of objects that are being promoted wait, if it may. Otherwise returns it.
    pub(in crate::master) fn maybe_wait(
        &mut self,
        cx: &mut Context,
        (conn, id): (ConnId, RequestId),
        caller: &Arc<Caller>,
        resolve: Resolve,
    ) -> Option<Resolve> {
        let runs = !self.promotions.running.is_empty();
        if resolve.wait_ms == 0 || !(runs || is_mutant!(cx.config.mutant, WaitForNothing)) {
            return Some(resolve);
        }
        let mut awaited = BTreeSet::new();
        for key in &resolve.keys {
            let object = cx.catalog.find(caller.namespace, key).and_then(|it| cx.catalog.get(it));
            let Some(object) = object.filter(|it| !cx.is_in_memory(it)) else { continue };
            let generation = object.generation();
            let is_awaited = self.promotions.running.contains_key(&generation)
                || is_mutant!(cx.config.mutant, WaitForNothing);
            awaited.extend(is_awaited.then_some(generation));
        }
        if awaited.is_empty() {
            return Some(resolve);
        }
        let deadline = cx.now.after(resolve.wait_ms);
        let (caller, since) = (Arc::clone(caller), cx.now);
        let ask = Ask::Resolve(Resolve { wait_ms: 0, ..resolve });
        let op = self.fetches.insert(cx, Fetching { conn, id, caller, ask, awaited, since, deadline })?;
        match self.fetches.end(cx, op)?.ask {
            Ask::Resolve(resolve) => Some(resolve),
            Ask::Prefetch(..) => None,
        }
    }

    /// The answer to a request that has ended.
    pub(in crate::master) fn answer(&mut self, cx: &Context, fetching: Fetching) -> Fetched {
        let Fetching { ask, awaited, since, .. } = fetching;
        match ask {
            Ask::Resolve(resolve) => {
                let in_time = awaited.is_empty();
                *(if in_time { &mut self.stat.gets_waited } else { &mut self.stat.gets_late }) += 1;
                let waited_ms = cx.now.0 - since.0;
                self.stat.waited_ms += waited_ms;
                Fetched::Resolve(resolve, (waited_ms, !in_time))
            }
            Ask::Prefetch(items, not_failed) => {
                let outcome = |(outcome, running): (PrefetchOutcome, Option<(ObjectIndex, Generation)>)| {
                    running.map_or(outcome, |it| outcome_of(cx, it, &awaited, &not_failed))
                };
                Fetched::Reply(Reply::Prefetched(items.into_iter().map(outcome).collect()))
            }
        }
    }
}

fn outcome_of(
    cx: &Context,
    (index, generation): (ObjectIndex, Generation),
    still_running: &BTreeSet<Generation>,
    not_failed: &BTreeSet<Generation>,
) -> PrefetchOutcome {
    let object = cx.catalog.get(index).filter(|it| it.generation() == generation);
    match object {
        None => PrefetchOutcome::Absent,
        Some(object) if cx.is_in_memory(object) => PrefetchOutcome::Done,
        Some(_) if still_running.contains(&generation) => PrefetchOutcome::Running,
        // There was no memory, or a put has evicted it since.
        Some(_) if not_failed.contains(&generation) => PrefetchOutcome::Skipped,
        Some(_) => PrefetchOutcome::Failed,
    }
}
