//! Requests that wait until the usage of a namespace has reached a limit.

use std::collections::BTreeMap;

use super::{Context, Master, Objects, OpId, catalog::NamespaceIndex};
use crate::{
    ConnId, RequestId, Tick,
    message::{Await, Reply},
    sabotage::sabotaged,
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

/// All requests that watch a namespace.
#[derive(Debug, Default)]
pub(super) struct Watches {
    all: BTreeMap<OpId, Watching>,
}

impl Watches {
    /// Answers the watchers whose limit is reached.
    pub(super) fn look_at_all(&mut self, o: &mut Objects) {
        for op in self.all.keys().copied().collect::<Vec<_>>() {
            self.look_at_watch(o, op);
        }
    }

    /// A connection is closed: its requests are not answered.
    pub(super) fn forget(&mut self, conn: ConnId) {
        self.all.retain(|_, it| it.conn != conn);
    }

    /// A client no longer waits for an answer: its deadline is now.
    pub(super) fn cancel(&mut self, cx: &mut Context, conn: ConnId, id: RequestId) {
        for (op, watching) in self.all.iter_mut().filter(|(_, it)| (it.conn, it.id) == (conn, id)) {
            watching.deadline = watching.deadline.min(cx.now);
            cx.deadlines.list(cx.now, *op);
        }
    }

    /// Number of watchers.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn watch(
        &mut self,
        o: &mut Objects,
        conn: ConnId,
        id: RequestId,
        namespace: NamespaceIndex,
        until: Await,
    ) {
        let deadline = o.cx.now.after(until.wait_ms);
        let op = o.cx.next_op();
        o.cx.deadlines.list(deadline, op);
        self.all.insert(op, Watching { conn, id, namespace, until, deadline });
        self.look_at_watch(o, op);
    }

    /// Answers a watcher whose deadline has passed.
    pub(super) fn end_watch(&mut self, o: &mut Objects, op: OpId) {
        if self.all.get(&op).is_some_and(|it| it.deadline <= o.cx.now) {
            self.answer_watch(o, op);
        }
    }

    fn look_at_watch(&mut self, o: &mut Objects, op: OpId) {
        let Some(watching) = self.all.get(&op) else { return };
        let used = o.cx.used(watching.namespace);
        let until = watching.until;
        let reached = until.at_most.is_some_and(|mark| used <= mark)
            || until.at_least.is_some_and(|mark| used >= mark)
            || watching.deadline <= o.cx.now;
        if reached {
            self.answer_watch(o, op);
        }
    }

    fn answer_watch(&mut self, o: &mut Objects, op: OpId) {
        if let Some(watching) = self.all.remove(&op) {
            o.cx.deadlines.strike(watching.deadline, op);
            let stat = o.namespace_stat(watching.namespace);
            o.cx.reply(watching.conn, watching.id, Reply::Awaited(Box::new(stat)));
        }
    }
}

impl Master {
    /// Retries the puts and watchers that wait.
    pub(super) fn wake(&mut self) {
        // Serving one put may free space for the next; each is served at most once per change.
        let last_first = sabotaged!(self.objects.cx.config.sabotage, ServeTheLast);
        for op in self.objects.cx.quotas.heads(last_first) {
            self.reservations.try_again(&mut self.objects, op);
        }
        self.watches.look_at_all(&mut self.objects);
    }
}
