//! Requests that wait until the usage of a namespace has reached a limit.

use std::collections::{BTreeMap, BTreeSet};

use super::{Caller, Context, Objects, OpId, catalog::NamespaceIndex};
use crate::{
    ConnId, RequestId, Tick,
    message::{Await, Reply},
};

/// A client that waits until the usage of a namespace has reached a limit.
#[derive(Debug)]
struct Watching {
    conn: ConnId,
    id: RequestId,
    namespace: NamespaceIndex,
    until: Await,
    deadline: Tick,
}

/// Maximum number of watchers that one event answers. The others are answered by the next pieces of work.
const ANSWERS_MAX: usize = 64;

/// All requests that watch a namespace.
#[derive(Debug, Default)]
pub(super) struct Watches {
    all: BTreeMap<OpId, Watching>,
    /// The same by namespace and limit. No entry is empty.
    marks: BTreeMap<NamespaceIndex, Marks>,
    /// There may be more watchers whose limit is reached.
    has_more: bool,
}

/// The watchers of a namespace by their limits, so that one lookup finds those whose limit is reached.
#[derive(Debug, Default)]
struct Marks {
    at_most: BTreeSet<(u64, OpId)>,
    at_least: BTreeSet<(u64, OpId)>,
}

impl Marks {
    /// A watcher whose limit is reached.
    fn reached(&self, used: u64) -> Option<OpId> {
        let at_most = self.at_most.last().filter(|it| it.0 >= used);
        at_most.or_else(|| self.at_least.first().filter(|it| it.0 <= used)).map(|it| it.1)
    }
}

impl Watches {
    /// Answers the watchers whose limit is reached.
    pub(super) fn look_at_all(&mut self, o: &mut Objects) {
        let mut reached = Vec::new();
        let namespaces: Vec<_> = self.marks.keys().copied().collect();
        for namespace in namespaces {
            let used = o.cx.used(namespace);
            while reached.len() < ANSWERS_MAX
                && let Some(op) = self.marks.get(&namespace).and_then(|it| it.reached(used))
            {
                self.unlist(op);
                reached.push(op);
            }
        }
        self.has_more = reached.len() == ANSWERS_MAX;
        reached.into_iter().for_each(|op| self.answer_watch(o, op));
    }

    /// Whether more watchers may be answered now.
    pub(super) fn has_more(&self) -> bool {
        self.has_more
    }

    /// The connection of a watcher is closed: it is not answered.
    pub(super) fn forget(&mut self, cx: &mut Context, op: OpId) {
        self.unlist(op);
        if let Some(watching) = self.all.remove(&op) {
            cx.deadlines.strike(watching.deadline, op);
            cx.waiting.leave(op);
        }
    }

    /// A client no longer waits for an answer: its deadline is now.
    pub(super) fn cancel(&mut self, cx: &mut Context, conn: ConnId, id: RequestId) {
        if let Some(op) = cx.waiting.find(conn, id)
            && let Some(watching) = self.all.get_mut(&op)
        {
            watching.deadline = watching.deadline.min(cx.now);
            cx.deadlines.list(cx.now, op);
        }
    }

    /// Number of watchers.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn watch(
        &mut self,
        o: &mut Objects,
        (conn, id): (ConnId, RequestId),
        caller: &Caller,
        until: Await,
    ) {
        let (namespace, now) = (caller.namespace, o.cx.now);
        let deadline = now.after(until.wait_ms);
        let used = o.cx.used(namespace);
        let is_reached = until.at_most.is_some_and(|mark| used <= mark)
            || until.at_least.is_some_and(|mark| used >= mark)
            || deadline <= now;
        if is_reached {
            let stat = o.namespace_stat(namespace);
            return o.cx.reply(conn, id, Reply::Awaited(Box::new(stat)));
        }
        let op = o.cx.next_op();
        if let Err(refusal) = o.cx.wait(op, (conn, id), caller, 0) {
            return o.cx.reply(conn, id, *refusal);
        }
        o.cx.deadlines.list(deadline, op);
        let marks = self.marks.entry(namespace).or_default();
        marks.at_most.extend(until.at_most.map(|mark| (mark, op)));
        marks.at_least.extend(until.at_least.map(|mark| (mark, op)));
        self.all.insert(op, Watching { conn, id, namespace, until, deadline });
    }

    /// Answers a watcher whose deadline has passed.
    pub(super) fn end_watch(&mut self, o: &mut Objects, op: OpId) {
        if self.all.get(&op).is_some_and(|it| it.deadline <= o.cx.now) {
            self.answer_watch(o, op);
        }
    }

    /// Removes a watcher from the limits of its namespace.
    fn unlist(&mut self, op: OpId) {
        let Some(Watching { namespace, until, .. }) = self.all.get(&op) else { return };
        let Some(marks) = self.marks.get_mut(namespace) else { return };
        until.at_most.into_iter().for_each(|mark| _ = marks.at_most.remove(&(mark, op)));
        until.at_least.into_iter().for_each(|mark| _ = marks.at_least.remove(&(mark, op)));
        if marks.at_most.is_empty() && marks.at_least.is_empty() {
            self.marks.remove(namespace);
        }
    }

    fn answer_watch(&mut self, o: &mut Objects, op: OpId) {
        self.unlist(op);
        if let Some(watching) = self.all.remove(&op) {
            o.cx.deadlines.strike(watching.deadline, op);
            o.cx.waiting.leave(op);
            let stat = o.namespace_stat(watching.namespace);
            o.cx.reply(watching.conn, watching.id, Reply::Awaited(Box::new(stat)));
        }
    }
}
