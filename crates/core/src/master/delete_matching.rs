//! Deletes of all objects that match a pattern, a piece at a time.
//!
//! A namespace may hold millions of objects, and other clients want answers meanwhile. So such a delete is a
//! job: each piece removes a bounded number of objects, and the shell calls [`Master::work`] for the next one
//! after it has served others. Only a few messages of a job are under way at a time, so that other requests
//! to the nodes are not delayed either.
//!
//! **Invariant:** a job removes objects that existed when it began, and none that was put since.
//! **Invariant:** a job runs to its end even if its client is gone. It is answered when every node has
//! confirmed, or after its time is up and every name is gone.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Caller, Master, Objects, OpId,
    catalog::{NamespaceIndex, NodeIndex},
    delete::{Answer, Retires},
    members::Standing,
    pending_retires::PendingRetire,
    refuse,
    resolve::Matcher,
};
use crate::{
    ConnId, Generation, Key, RequestId, SlotRef, Tick,
    message::{Cause, DeleteMatching, DeletedMatching, Reason},
    sabotage::sabotaged,
};

/// Objects that one piece of a drop takes away, unless the operator decides otherwise.
pub const PIECE_OBJECTS_MAX: usize = 1 << 11;
/// Objects that one piece looks at, for each that it may take.
const SCAN_FACTOR: usize = 8;
/// Messages of one drop that may wait for nodes at a time.
const BATCHES_MAX: usize = 4;

/// A drop under way.
pub(super) struct Dropping {
    conn: ConnId,
    id: RequestId,
    namespace: NamespaceIndex,
    label: String,
    matcher: Matcher,
    force: bool,
    /// What was put later stays.
    newest: Generation,
    stage: Phase,
    count: u64,
    unconfirmed: BTreeSet<String>,
    outstanding: BTreeMap<RequestId, NodeIndex>,
    deadline: Tick,
}

/// How far it is.
#[derive(Debug)]
enum Phase {
    /// Objects, from this number on.
    Objects(u64),
    /// Every name is gone. Copies that others took away, and that are still to be confirmed: behind this one.
    PendingRetires(PendingRetire),
    /// Everything was asked for.
    Done,
}

impl std::fmt::Debug for Dropping {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { conn, id, stage, count, .. } = self;
        write!(out, "Dropping {count} for {conn:?} {id:?}, {stage:?}")
    }
}

impl Retires {
    /// Whether there is a piece of a drop to be done now.
    fn has_work(&self, o: &Objects) -> bool {
        self.jobs.iter().any(|job| self.is_ready(o, *job))
    }

    /// Does one piece of a drop, if there is any; drops take turns.
    fn work(&mut self, o: &mut Objects) {
        for _ in 0..self.jobs.len() {
            let Some(job) = self.jobs.pop_front() else { break };
            self.jobs.push_back(job);
            if self.is_ready(o, job) {
                self.drop_piece(o, job);
                break;
            }
        }
    }

    /// Ends drops whose time is up. One may end at any event, when it has asked for everything.
    pub(super) fn end_late_drops(&mut self, o: &mut Objects) {
        let late = |op: &OpId| self.drops.get(op).is_some_and(|it| it.deadline <= o.cx.now);
        let late: Vec<_> = self.jobs.iter().copied().filter(late).collect();
        late.into_iter().for_each(|op| self.maybe_end_drop(o, op));
    }

    /// When the time of the next drop is up. One whose time is up has work to do, and needs no wake-up.
    pub(super) fn next_deadline(&self, now: Tick) -> Option<Tick> {
        let deadlines = self.jobs.iter().filter_map(|op| Some(self.drops.get(op)?.deadline));
        deadlines.filter(|it| *it > now).min()
    }

    /// How many answers wait.
    pub(super) fn len(&self) -> usize {
        self.confirm_count() + self.drops.len()
    }

    pub(super) fn delete_matching(
        &mut self,
        o: &mut Objects,
        conn: ConnId,
        id: RequestId,
        caller: &Caller,
        delete: &DeleteMatching,
    ) {
        let matcher = match Matcher::new(&delete.pattern) {
            Ok(matcher) => matcher,
            Err(problem) => {
                let reply = refuse(Reason::Invalid, &problem);
                return o.cx.reply(conn, id, reply);
            }
        };
        let dropping = Dropping {
            conn,
            id,
            namespace: caller.namespace,
            label: caller.label.clone(),
            matcher,
            force: delete.force,
            newest: Generation { epoch: o.cx.config.epoch, counter: o.next_generation },
            stage: Phase::Objects(0),
            count: 0,
            unconfirmed: BTreeSet::new(),
            outstanding: BTreeMap::new(),
            deadline: o.cx.now.after(delete.wait_ms),
        };
        let op = o.cx.next_op();
        self.drops.insert(op, dropping);
        self.jobs.push_back(op);
        // What is small is done at once.
        self.drop_piece(o, op);
    }

    /// A node has taken away what it was asked for.
    pub(super) fn drop_confirmed(&mut self, o: &mut Objects, op: OpId, id: RequestId) {
        if let Some(dropping) = self.drops.get_mut(&op) {
            dropping.outstanding.remove(&id);
            self.go_on_dropping(o, op);
        }
    }

    /// A node will not confirm.
    pub(super) fn drop_unconfirmed(&mut self, o: &mut Objects, op: OpId, id: RequestId, node: &str) {
        if let Some(dropping) = self.drops.get_mut(&op) {
            dropping.unconfirmed.insert(node.to_owned());
            dropping.outstanding.remove(&id);
            self.go_on_dropping(o, op);
        }
    }

    /// Answers, if every name is gone and nobody is waited for any more.
    pub(super) fn maybe_end_drop(&mut self, o: &mut Objects, op: OpId) {
        let Some(dropping) = self.drops.get(&op) else { return };
        let late = dropping.deadline <= o.cx.now;
        let over = matches!(dropping.stage, Phase::Done) && (late || dropping.outstanding.is_empty());
        if !over {
            return;
        }
        self.jobs.retain(|job| *job != op);
        let Some(mut dropping) = self.drops.remove(&op) else { return };
        let late = dropping.outstanding.values().map(|node| o.cx.members.name(*node));
        dropping.unconfirmed.extend(late);
        let unconfirmed = dropping.unconfirmed.into_iter().collect();
        let matching = DeletedMatching { count: dropping.count, unconfirmed };
        Answer::Matching(matching).send(o, (dropping.conn, dropping.id));
    }

    /// That nothing is left to be asked for is seen at once. A piece, however small, is for a turn of its
    /// own: many drops may hear of one node in one event.
    fn go_on_dropping(&mut self, o: &mut Objects, op: OpId) {
        let Some(dropping) = self.drops.get(&op) else { return };
        let is_last = match &dropping.stage {
            Phase::PendingRetires(after) => {
                self.is_ready(o, op) && o.cx.pending_retires.after(dropping.namespace, after).next().is_none()
            }
            Phase::Objects(_) | Phase::Done => false,
        };
        if is_last && let Some(dropping) = self.drops.get_mut(&op) {
            dropping.stage = Phase::Done;
        }
        self.maybe_end_drop(o, op);
    }

    /// Whether the next piece of a drop may be done. A node that does not speak is not waited for, nor is
    /// any node once the time is up.
    fn is_ready(&self, o: &Objects, op: OpId) -> bool {
        let Some(dropping) = self.drops.get(&op) else { return false };
        let speaks = |node: &&NodeIndex| {
            let standing = o.cx.members.get(**node).map(|it| it.standing);
            matches!(standing, Some(Standing::Ready | Standing::Joining))
        };
        let waits = dropping.outstanding.values().filter(speaks).count();
        let late = dropping.deadline <= o.cx.now;
        match dropping.stage {
            Phase::Objects(_) => late || waits < BATCHES_MAX,
            // What the drop itself has asked for is then confirmed, or its node is known not to.
            Phase::PendingRetires(_) => late || dropping.outstanding.is_empty(),
            Phase::Done => false,
        }
    }

    fn drop_piece(&mut self, o: &mut Objects, op: OpId) {
        let Some(mut dropping) = self.drops.remove(&op) else { return };
        let (replicas, stage) = match std::mem::replace(&mut dropping.stage, Phase::Done) {
            Phase::PendingRetires(after) => self.piece_of_pending_retires(o, &dropping, &after),
            Phase::Objects(first) => self.piece_of_objects(o, &mut dropping, first),
            Phase::Done => (Vec::new(), Phase::Done),
        };
        dropping.stage = stage;
        let nodes: BTreeSet<_> = replicas.iter().map(|(node, _)| *node).collect();
        let asked = o.cx.retire(replicas, Some(op));
        for node in nodes.into_iter().filter(|node| !asked.values().any(|it| it == node)) {
            dropping.unconfirmed.insert(o.cx.members.name(node));
        }
        if !sabotaged!(o.cx.config.sabotage, DeleteWithoutConfirmation) {
            dropping.outstanding.extend(asked);
        }
        self.drops.insert(op, dropping);
        self.go_on_dropping(o, op);
    }

    /// Copies that others took away: their nodes are asked once more, and the answer waits for them too. A
    /// node that is known not to confirm is not asked again. But what was only given up there is deleted now:
    /// it must be pending, or it would count again after a restart of the master.
    fn piece_of_pending_retires(
        &self,
        o: &Objects,
        dropping: &Dropping,
        after: &PendingRetire,
    ) -> (Vec<(NodeIndex, SlotRef)>, Phase) {
        let max = o.cx.config.piece_objects_max.max(1);
        let mut replicas = Vec::new();
        let mut last = None;
        for (looked_at, (key, node, slot_ref)) in
            o.cx.pending_retires.after(dropping.namespace, after).enumerate()
        {
            if let Some((key, node, slot_ref)) = last.filter(|_| looked_at >= max) {
                return (
                    replicas,
                    Phase::PendingRetires(PendingRetire { key: Key::clone(key), node, slot_ref }),
                );
            }
            last = Some((key, node, slot_ref));
            let known = || dropping.unconfirmed.contains(&o.cx.members.name(node));
            let given_up = || o.cx.members.get(node).is_some_and(|it| it.given_up.contains(&slot_ref));
            let wanted = dropping.matcher.matches(key) && (!known() || given_up());
            replicas.extend(wanted.then_some((node, slot_ref)));
        }
        (replicas, Phase::Done)
    }

    fn piece_of_objects(
        &mut self,
        o: &mut Objects,
        dropping: &mut Dropping,
        first: u64,
    ) -> (Vec<(NodeIndex, SlotRef)>, Phase) {
        let max = o.cx.config.piece_objects_max.max(1);
        let newer_too = sabotaged!(o.cx.config.sabotage, DropNewer);
        let mut victims = Vec::new();
        let next = o.cx.catalog.page(first, max.saturating_mul(SCAN_FACTOR), |index, object| {
            if victims.len() == max {
                return false;
            }
            let mine = object.namespace() == dropping.namespace
                && (object.generation() <= dropping.newest || newer_too)
                && dropping.matcher.matches(object.key());
            victims.extend(mine.then_some(index));
            true
        });
        victims.retain(|&index| !o.cx.lease_refuses(index, dropping.force));
        dropping.count += victims.len() as u64;
        let taken = victims.into_iter().flat_map(|index| o.take_out(index, Cause::Deleted, &dropping.label));
        let replicas = taken.collect();
        (
            replicas,
            if next == 0 { Phase::PendingRetires(PendingRetire::default()) } else { Phase::Objects(next) },
        )
    }
}

impl Master {
    /// Whether there is a piece of work to be done now.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.retires.has_work(&self.objects)
    }

    /// Does one piece of work, if there is any; jobs take turns. The shell drains the effects, lets others
    /// in, and calls again while [`Self::has_work`] says so.
    pub fn work(&mut self, now: Tick) {
        self.handle_timeout(now);
        self.retires.work(&mut self.objects);
        self.serve_the_waiting();
        // What was taken away may have left memory, or a part of a quota, that promotions wait for.
        self.serve_tier();
    }
}
