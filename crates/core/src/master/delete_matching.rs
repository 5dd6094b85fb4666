//! Deletes of all objects that match a pattern, a piece at a time.
//!
//! A namespace may hold millions of objects, and other clients must be served meanwhile. So such a delete
//! is a job: each piece removes a bounded number of objects, and the shell calls [`Master::work`] for the
//! next one after it has served other requests. Only a few messages of a job are in flight at a time, so
//! that other requests to the nodes are not delayed either.
//!
//! **Invariant:** a job removes only objects that existed when it began.
//!
//! **Invariant:** a job runs to its end even if its client is gone. It is answered when every node has
//! confirmed, or when its deadline has passed and every name is removed.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Caller, Master, Objects, OpId,
    catalog::{NamespaceIndex, NodeIndex},
    delete::{Answer, Retires},
    departures::depart,
    members::Standing,
    pending_retires::PendingRetire,
    refuse,
    resolve::Matcher,
};
use crate::{
    ConnId, Generation, Key, RequestId, SlotRef, Tick,
    message::{Cause, DeleteMatching, DeletedMatching, Reason},
    mutant::is_mutant,
};

/// Default maximum number of objects that one piece of a drop removes.
pub const PIECE_OBJECTS_MAX: usize = 1 << 8;
/// Maximum number of objects that one piece scans, per object that it may remove.
const SCAN_FACTOR: usize = 8;
/// Maximum number of messages of one drop that wait for nodes.
const BATCHES_MAX: usize = 4;

/// A drop in progress.
pub(super) struct Dropping {
    conn: ConnId,
    id: RequestId,
    namespace: NamespaceIndex,
    label: String,
    matcher: Matcher,
    force: bool,
    /// Objects with a greater generation stay.
    newest: Generation,
    stage: Phase,
    count: u64,
    unconfirmed: BTreeSet<String>,
    outstanding: BTreeMap<RequestId, NodeIndex>,
    deadline: Tick,
}

/// The progress of a drop.
#[derive(Debug)]
enum Phase {
    /// Removes objects, from this index on.
    Objects(u64),
    /// Every name is removed. Asks again for pending retires of earlier removals, after this one.
    PendingRetires(PendingRetire),
    /// All retires were sent.
    Done,
}

impl std::fmt::Debug for Dropping {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { conn, id, stage, count, .. } = self;
        write!(out, "Dropping {count} for {conn:?} {id:?}, {stage:?}")
    }
}

impl Retires {
    /// Whether a piece of a drop can be done now.
    fn has_work(&self, o: &Objects) -> bool {
        self.jobs.iter().any(|job| self.is_ready(o, *job))
    }

    /// Does one piece of a drop, if there is any. Drops take turns.
    fn work(&mut self, o: &mut Objects) {
        for _ in 0..self.jobs.len() {
            let Some(job) = self.jobs.pop_front() else { break };
            self.jobs.push_back(job);
            if self.is_ready(o, job) {
                self.drop_piece(o, job);
                self.batch_piece(o, job);
                break;
            }
        }
    }

    /// Ends drops whose deadline has passed. After its last piece, a drop may end at any event.
    pub(super) fn end_late_drops(&mut self, o: &mut Objects) {
        if self.jobs.is_empty() {
            return;
        }
        let late = |op: &OpId| self.drops.get(op).is_some_and(|it| it.deadline <= o.cx.now);
        let late: Vec<_> = self.jobs.iter().copied().filter(late).collect();
        late.into_iter().for_each(|op| self.maybe_end_drop(o, op));
    }

    /// The next deadline of a drop. A drop whose deadline has passed has work to do, and needs no wake-up.
    pub(super) fn next_deadline(&self, now: Tick) -> Option<Tick> {
        let deadlines = self.jobs.iter().filter_map(|op| Some(self.drops.get(op)?.deadline));
        deadlines.filter(|it| *it > now).min()
    }

    /// Number of drops and large batches in progress.
    pub(super) fn job_count(&self) -> usize {
        self.jobs.len()
    }

    /// Number of answers that wait.
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
        let matcher = match Matcher::new(&delete.pattern, o.cx.config.mutant) {
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
        if let Err(refusal) = o.cx.wait(op, (conn, id), caller, 0) {
            return o.cx.reply(conn, id, *refusal);
        }
        self.drops.insert(op, dropping);
        self.jobs.push_back(op);
        // A small drop ends at once.
        self.drop_piece(o, op);
    }

    /// A node has retired the copies of a message.
    pub(super) fn drop_confirmed(&mut self, o: &mut Objects, op: OpId, id: RequestId) {
        if let Some(dropping) = self.drops.get_mut(&op) {
            dropping.outstanding.remove(&id);
            self.go_on_dropping(o, op);
        }
    }

    /// A node will not confirm a message.
    pub(super) fn drop_unconfirmed(&mut self, o: &mut Objects, op: OpId, id: RequestId, node: &str) {
        if let Some(dropping) = self.drops.get_mut(&op) {
            dropping.unconfirmed.insert(node.to_owned());
            dropping.outstanding.remove(&id);
            self.go_on_dropping(o, op);
        }
    }

    /// Answers, if every name is removed and no reply is awaited any more.
    pub(super) fn maybe_end_drop(&mut self, o: &mut Objects, op: OpId) {
        let Some(dropping) = self.drops.get(&op) else { return };
        let late = dropping.deadline <= o.cx.now;
        let over = matches!(dropping.stage, Phase::Done) && (late || dropping.outstanding.is_empty());
        if !over {
            return;
        }
        self.jobs.retain(|job| *job != op);
        let Some(mut dropping) = self.drops.remove(&op) else { return };
        o.cx.waiting.leave(op);
        let late = dropping.outstanding.values().map(|node| o.cx.members.name(*node));
        dropping.unconfirmed.extend(late);
        let unconfirmed = dropping.unconfirmed.into_iter().collect();
        let matching = DeletedMatching { count: dropping.count, unconfirmed };
        Answer::Matching(matching).send(o, (dropping.conn, dropping.id));
    }

    /// Ends the drop at once if no retire is left to send. A further piece, however small, gets a turn of
    /// its own: one event of a node may concern many drops.
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

    /// Whether the next piece of a job may be done. It waits for silent nodes no longer, nor for any node
    /// once the deadline has passed.
    fn is_ready(&self, o: &Objects, op: OpId) -> bool {
        let speaks = |node: &&NodeIndex| {
            let standing = o.cx.members.get(**node).map(|it| it.standing);
            matches!(standing, Some(Standing::Ready | Standing::Joining))
        };
        let Some(dropping) = self.drops.get(&op) else {
            let Some(batch) = self.confirms.get(&op) else { return false };
            let nodes = batch.outstanding.iter().filter_map(|id| batch.asked.get(id));
            return batch.deadline.is_none() || nodes.filter(speaks).count() < BATCHES_MAX;
        };
        let waits = dropping.outstanding.values().filter(speaks).count();
        let late = dropping.deadline <= o.cx.now;
        match dropping.stage {
            Phase::Objects(_) => late || waits < BATCHES_MAX,
            // Then the retires of the drop itself are confirmed, or their node is known not to confirm.
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
        o.cx.note_removed(&replicas);
        let asked = o.cx.retire_removed(replicas, op);
        for node in nodes.into_iter().filter(|node| !asked.values().any(|it| it == node)) {
            dropping.unconfirmed.insert(o.cx.members.name(node));
        }
        if !is_mutant!(o.cx.config.mutant, DeleteWithoutConfirmation) {
            dropping.outstanding.extend(asked);
        }
        self.drops.insert(op, dropping);
        self.go_on_dropping(o, op);
    }

    /// Asks the nodes again for pending retires of earlier removals, and the answer waits for them too. A
    /// node that is known not to confirm is not asked again about retires that it owes. But copies that were
    /// only given up there, and those whose retire waits for a successor, are now deleted: the node must owe
    /// their retires too, or they would count again after a restart of the master.
    ///
    /// What an object has replaced stays until that object is stored, unless the object is removed too. One
    /// that a lease protects is not, and may be lost with its home. Nor is one that was put since the drop
    /// began: then what it has replaced is spared too, unless that existed when the drop began.
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
            let is_saved = || o.cx.members.get(node).is_some_and(|it| it.is_saved(slot_ref));
            let forgets = is_mutant!(o.cx.config.mutant, DropWithoutOwing)
                || is_mutant!(o.cx.config.mutant, KeepHeldCopies);
            let is_lost = o.cx.members.is_leaving(node);
            let wanted = !is_lost && dropping.matcher.matches(key) && (!known() || !is_saved() && !forgets);
            let wanted = wanted && !waits_for_successor(o, dropping, key, (node, slot_ref));
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
        let newer_too = is_mutant!(o.cx.config.mutant, DropNewer);
        let (mut victims, mut matched) = (Vec::new(), 0);
        let next = o.cx.catalog.page(first, max.saturating_mul(SCAN_FACTOR), |index, object| {
            if victims.len() == max {
                return false;
            }
            let is_old = object.generation() <= dropping.newest || newer_too;
            if object.namespace() != dropping.namespace || !is_old {
                return true;
            }
            if !dropping.matcher.affords(object.key(), &mut matched, o.cx.config.mutant) {
                return false;
            }
            victims.extend(dropping.matcher.matches(object.key()).then_some(index));
            true
        });
        victims.retain(|&index| !o.cx.lease_refuses(index, dropping.force));
        dropping.count += victims.len() as u64;
        let taken =
            victims.into_iter().flat_map(|index| o.take_out_all(index, Cause::Deleted, &dropping.label));
        let replicas = taken.collect();
        (
            replicas,
            if next == 0 { Phase::PendingRetires(PendingRetire::default()) } else { Phase::Objects(next) },
        )
    }
}

/// Whether a copy belongs to an object whose successor is not stored yet. The drop has spared the successor,
/// or the object itself was put since the drop began.
fn waits_for_successor(o: &Objects, dropping: &Dropping, key: &Key, copy: (NodeIndex, SlotRef)) -> bool {
    if !o.cx.held_retires.has(copy) {
        return false;
    }
    let mutant = o.cx.config.mutant;
    let successor = o.cx.catalog.find(dropping.namespace, key).and_then(|index| o.cx.catalog.get(index));
    let is_spared = successor.is_some_and(|it| it.generation() <= dropping.newest);
    let is_new = o.cx.pending_retires.generation(copy) > dropping.newest;
    is_spared && !is_mutant!(mutant, DropReplaced) || is_new && !is_mutant!(mutant, DropReplacedSince)
}

impl Master {
    /// Whether a piece of work can be done now.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.operations.retires.has_work(&self.objects)
            || !self.objects.departures.is_empty()
            || self.operations.has_more_to_wake(&self.objects.cx)
            || self.objects.cx.deadlines.has_due(self.objects.cx.now)
            || self.objects.has_overdue()
            || self.objects.tier.repairs.has_work(&self.objects.cx)
    }

    /// Does one piece of work, if there is any. Jobs take turns. The shell drains the effects, serves other
    /// requests, and calls again while [`Self::has_work`] says so.
    pub fn work(&mut self, now: Tick) {
        self.objects.cx.now = self.objects.cx.now.max(now);
        depart(&mut self.objects);
        // Continues what the end of a departure has made possible.
        self.handle_timeout(now);
        self.operations.retires.work(&mut self.objects);
        self.objects.tier.work_on_repairs(&mut self.objects.cx);
        if self.operations.has_more_to_wake(&self.objects.cx) {
            self.operations.wake(&mut self.objects);
        }
        self.operations.serve_puts(&mut self.objects);
        // The removal may have freed memory or quota that promotions wait for.
        self.operations.serve_tier(&mut self.objects);
    }
}
