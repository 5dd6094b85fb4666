//! Taking objects away, and answering only once the nodes have confirmed it.
//!
//! **Invariant:** a delete answers `Deleted` only after every node that holds a copy has withdrawn its stamp.
//! A node that cannot be asked, or does not answer in time, makes it `Unconfirmed`; what it owes is applied
//! before the node is used again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{
    Effect, Master, Op, OpId, Visitor, Wait,
    catalog::{NodeIndex, ObjectIndex},
    ghosts::Name,
    refuse,
};
use crate::{
    BATCH_ITEMS_MAX, ConnId, Generation, Hold, RequestId, Tick,
    message::{
        AckOutcome, Cause, CommitOutcome, Delete, DeleteOutcome, DeletedMatching, PinOutcome, Reason,
        Replacement, Reply, Request, Retire,
    },
    sabotage::sabotaged,
};

/// Replicas that one message takes away, so that a large one does not keep the others waiting.
const RETIRE_HOLDS_MAX: usize = 1 << 14;

/// Where an object lay.
type Replicas = Vec<(NodeIndex, Hold)>;

/// An answer that waits for nodes to confirm.
#[derive(Debug)]
pub(super) struct Confirming {
    conn: ConnId,
    id: RequestId,
    answer: Answer,
    outstanding: BTreeSet<RequestId>,
    /// Which items of the answer hang on which node.
    items: BTreeMap<NodeIndex, Vec<usize>>,
    asked: BTreeMap<RequestId, NodeIndex>,
    /// Those of them that are waited for beyond the deadline.
    patient: BTreeSet<RequestId>,
    deadline: Option<Tick>,
}

/// What will be said.
#[derive(Debug)]
pub(super) enum Answer {
    Delete(Vec<DeleteOutcome>),
    Matching(DeletedMatching),
    Decide(Vec<CommitOutcome>),
    /// And which items lie on which node.
    Publish(Vec<Option<CommitOutcome>>, BTreeMap<NodeIndex, Vec<usize>>),
    /// And which objects they are of.
    Pin(Vec<PinOutcome>, Vec<(usize, ObjectIndex, Generation)>),
    Ack(Vec<AckOutcome>),
}

impl Answer {
    pub(super) fn unconfirmed(&mut self, name: &str, items: &[usize]) {
        match self {
            Self::Delete(outcomes) => {
                for &index in items {
                    match outcomes.get_mut(index) {
                        Some(DeleteOutcome::Unconfirmed(names)) => note(names, name),
                        Some(outcome) => *outcome = DeleteOutcome::Unconfirmed(vec![name.to_owned()]),
                        None => (),
                    }
                }
            }
            Self::Matching(matching) => {
                note(&mut matching.unconfirmed, name);
            }
            Self::Pin(outcomes, _) => {
                for &index in items {
                    match outcomes.get_mut(index) {
                        Some(PinOutcome::Unconfirmed(names)) => note(names, name),
                        Some(outcome) => *outcome = PinOutcome::Unconfirmed(vec![name.to_owned()]),
                        None => (),
                    }
                }
            }
            Self::Ack(outcomes) => {
                for &index in items {
                    match outcomes.get_mut(index) {
                        Some(AckOutcome::Unconfirmed(names)) => note(names, name),
                        Some(outcome) => *outcome = AckOutcome::Unconfirmed(vec![name.to_owned()]),
                        None => (),
                    }
                }
            }
            // The new object is stored whatever became of the old one; its node will retire it on return.
            Self::Decide(outcomes) => {
                for &index in items {
                    outcomes.get_mut(index).into_iter().for_each(|it| unconfirm(it, name));
                }
            }
            Self::Publish(outcomes, _) => {
                for &index in items {
                    outcomes.get_mut(index).into_iter().flatten().for_each(|it| unconfirm(it, name));
                }
            }
        }
    }

    fn into_reply(self) -> Reply {
        match self {
            Self::Delete(outcomes) => Reply::Deleted(outcomes),
            Self::Matching(matching) => Reply::DeletedMatching(matching),
            Self::Decide(outcomes) => Reply::Decided(outcomes),
            Self::Publish(outcomes, _) => Reply::Published(outcomes),
            Self::Pin(outcomes, _) => Reply::Pinned(outcomes),
            Self::Ack(outcomes) => Reply::Acked(outcomes),
        }
    }
}

/// A node did not confirm that what had this name before is gone.
fn unconfirm(outcome: &mut CommitOutcome, name: &str) {
    let (generation, replaced) = match outcome {
        CommitOutcome::Unconfirmed(it) => return note(&mut it.nodes, name),
        CommitOutcome::Replaced(generation) => (*generation, true),
        CommitOutcome::Stored(generation) => (*generation, false),
        CommitOutcome::Exists(_) | CommitOutcome::Stale => return,
    };
    let nodes = vec![name.to_owned()];
    *outcome = CommitOutcome::Unconfirmed(Replacement { generation, replaced, nodes });
}

/// Names a node once, however many copies it has.
fn note(names: &mut Vec<String>, name: &str) {
    if !names.iter().any(|it| it == name) {
        names.push(name.to_owned());
    }
}

impl Master {
    pub(super) fn delete(&mut self, conn: ConnId, id: RequestId, visitor: &Visitor, delete: Delete) {
        if delete.keys.len() > BATCH_ITEMS_MAX {
            let reply = refuse(Reason::Invalid, "the batch is too large");
            return self.effects.push_back(Effect::Reply(conn, id, reply));
        }
        let mut outcomes = Vec::with_capacity(delete.keys.len());
        let mut gone = Vec::new();
        for (item, key) in delete.keys.iter().enumerate() {
            let index = self.catalog.find(visitor.namespace, key);
            let ghosts = self.ghosts.of(visitor.namespace, key);
            outcomes.push(match index {
                None => DeleteOutcome::Absent,
                Some(index) if self.lease_refuses(index, delete.force) => DeleteOutcome::Leased,
                Some(index) => {
                    let replicas = self.take_out(index, Cause::Deleted, &visitor.label);
                    gone.extend(replicas.into_iter().map(|replica| (item, replica)));
                    DeleteOutcome::Deleted
                }
            });
            // Copies of what had that name before may not be gone yet: they are asked for once more.
            let refused = outcomes.last() == Some(&DeleteOutcome::Leased);
            if !refused && !sabotaged!(self.config.sabotage, ForgetGhosts) {
                gone.extend(ghosts.into_iter().map(|replica| (item, replica)));
            }
        }
        let deadline = Some(self.now.after(delete.wait_ms));
        self.confirm(conn, id, Answer::Delete(outcomes), gone, deadline);
    }

    /// Retires replicas, each of which an item of the answer hangs on, and answers when that is confirmed.
    pub(super) fn confirm(
        &mut self,
        conn: ConnId,
        id: RequestId,
        answer: Answer,
        gone: Vec<(usize, (NodeIndex, Hold))>,
        deadline: Option<Tick>,
    ) {
        self.retire_and_mark(conn, id, answer, gone, &[], deadline);
    }

    /// The same, and has marks put in writing too.
    pub(super) fn retire_and_mark(
        &mut self,
        conn: ConnId,
        id: RequestId,
        answer: Answer,
        gone: Vec<(usize, (NodeIndex, Hold))>,
        marked: &[(usize, ObjectIndex)],
        deadline: Option<Tick>,
    ) {
        let op = self.next_op();
        let mut items: BTreeMap<NodeIndex, Vec<usize>> = BTreeMap::new();
        for (item, (node, _)) in &gone {
            items.entry(*node).or_default().push(*item);
        }
        for (item, index) in marked {
            for (node, _) in self.catalog.get(*index).into_iter().flat_map(|it| self.written_beside(it)) {
                items.entry(node).or_default().push(*item);
            }
        }
        let mut asked = self.retire(gone.into_iter().map(|(_, replica)| replica).collect(), Some(op));
        asked.extend(self.send_marks(marked.iter().map(|it| it.1).collect(), Some(op)));
        let mut answer = answer;
        for (node, indexes) in &items {
            if !asked.values().any(|it| it == node) {
                answer.unconfirmed(&self.members.name(*node), indexes);
            }
        }
        self.answer_when(op, (conn, id), answer, items, (asked, BTreeMap::new()), deadline);
    }

    /// Answers when all that was asked of nodes is confirmed: the former until the deadline, the latter in
    /// any case.
    pub(super) fn answer_when(
        &mut self,
        op: OpId,
        (conn, id): (ConnId, RequestId),
        answer: Answer,
        items: BTreeMap<NodeIndex, Vec<usize>>,
        (mut asked, patient): (BTreeMap<RequestId, NodeIndex>, BTreeMap<RequestId, NodeIndex>),
        deadline: Option<Tick>,
    ) {
        let is_decision = matches!(answer, Answer::Decide(_) | Answer::Publish(..));
        if is_decision && sabotaged!(self.config.sabotage, ReplaceWithoutConfirmation) {
            asked.clear();
        }
        asked.extend(&patient);
        let patient: BTreeSet<_> = patient.into_keys().collect();
        let outstanding: BTreeSet<_> = asked.keys().copied().collect();
        let at_once = outstanding.is_empty() || sabotaged!(self.config.sabotage, DeleteWithoutConfirmation);
        if at_once {
            return self.effects.push_back(Effect::Reply(conn, id, answer.into_reply()));
        }
        if let Some(deadline) = deadline {
            self.deadlines.list(deadline, op);
        }
        let confirming = Confirming { conn, id, answer, outstanding, items, asked, patient, deadline };
        self.ops.insert(op, Op::Confirm(confirming));
    }

    /// Tells the nodes to take replicas away, and which of them could be told. The others owe it. What is
    /// gone already is confirmed like the rest.
    pub(super) fn retire(
        &mut self,
        replicas: Vec<(NodeIndex, Hold)>,
        op: Option<OpId>,
    ) -> BTreeMap<RequestId, NodeIndex> {
        let mut by_node: BTreeMap<NodeIndex, Vec<Hold>> = BTreeMap::new();
        for (node, hold) in replicas {
            by_node.entry(node).or_default().push(hold);
        }
        let mut asked = BTreeMap::new();
        for (node, holds) in by_node {
            for holds in holds.chunks(RETIRE_HOLDS_MAX) {
                let request = Request::Retire(Retire { holds: holds.to_vec() });
                match self.ask(node, request, Wait::Retire(holds.to_vec(), op)) {
                    Some(id) => {
                        asked.insert(id, node);
                        if let Some(member) = self.members.get_mut(node) {
                            member.retiring.extend(holds);
                        }
                    }
                    None => self.owe(node, holds),
                }
            }
        }
        asked
    }

    /// A node has taken replicas away.
    pub(super) fn retired(&mut self, node: NodeIndex, id: RequestId, holds: &[Hold], op: Option<OpId>) {
        if let Some(member) = self.members.get_mut(node) {
            holds.iter().for_each(|hold| _ = member.retiring.remove(hold));
        }
        holds.iter().for_each(|hold| self.ghosts.lay(node, *hold));
        self.confirmed(id, op);
    }

    pub(super) fn confirmed(&mut self, id: RequestId, op: Option<OpId>) {
        let Some(op) = op else { return };
        self.drop_confirmed(op, id);
        let Some(Op::Confirm(confirming)) = self.ops.get_mut(&op) else { return };
        confirming.outstanding.remove(&id);
        if confirming.outstanding.is_empty() {
            self.end_confirm(op);
        }
    }

    /// A node will not confirm any more on this connection.
    pub(super) fn unconfirmed(&mut self, node: NodeIndex, id: RequestId, holds: &[Hold], op: Option<OpId>) {
        self.owe(node, holds);
        let name = self.members.name(node);
        if let Some(op) = op {
            self.drop_unconfirmed(op, id, &name);
        }
        if let Some(op) = op
            && let Some(Op::Confirm(confirming)) = self.ops.get_mut(&op)
        {
            let items = confirming.items.get(&node).cloned().unwrap_or_default();
            confirming.answer.unconfirmed(&name, &items);
            self.confirmed(id, Some(op));
        }
    }

    /// Answers who has waited long enough. The nodes are still expected to confirm.
    pub(super) fn end_waiting(&mut self) {
        for op in self.deadlines.take_due(self.now) {
            match self.ops.get(&op) {
                Some(Op::Reserve(_)) => self.end_parked(op),
                Some(Op::Confirm(_)) => self.confirm_no_longer(op),
                Some(Op::Watch(_)) => self.end_watch(op),
                Some(Op::Fetch(it)) if it.deadline() <= self.now => self.end_fetch(op),
                Some(Op::Pull(_)) => self.end_pull(op),
                Some(Op::Fetch(_) | Op::Drop(_) | Op::Why(_)) | None => (),
            }
        }
        // One whose time is up may end at any event, when it has asked for everything.
        let late = |op: &OpId| matches!(self.ops.get(op), Some(Op::Drop(it)) if it.deadline <= self.now);
        let late: Vec<_> = self.jobs.iter().copied().filter(late).collect();
        late.into_iter().for_each(|op| self.maybe_end_drop(op));
    }

    /// Answers who has waited for nodes to confirm, if that time is up, but for what is waited for in any
    /// case.
    fn confirm_no_longer(&mut self, op: OpId) {
        let Some(Op::Confirm(confirming)) = self.ops.get_mut(&op) else { return };
        if confirming.deadline.is_none_or(|at| at > self.now) {
            return;
        }
        confirming.deadline = None;
        let late: Vec<_> = confirming.outstanding.difference(&confirming.patient).copied().collect();
        for id in late {
            confirming.outstanding.remove(&id);
            let Some(node) = confirming.asked.get(&id) else { continue };
            let items = confirming.items.get(node).cloned().unwrap_or_default();
            confirming.answer.unconfirmed(&self.members.name(*node), &items);
        }
        if confirming.outstanding.is_empty() {
            self.end_confirm(op);
        }
    }

    pub(super) fn next_end_of_waiting(&self) -> Option<Tick> {
        // A drop whose time is up has work to do, which needs no waking.
        let deadline = |op: &OpId| match self.ops.get(op) {
            Some(Op::Drop(dropping)) => Some(dropping.deadline).filter(|it| *it > self.now),
            _ => None,
        };
        self.jobs.iter().filter_map(deadline).chain(self.deadlines.next()).min()
    }

    /// Takes an object out of the catalog, and notes why; its replicas are still to be retired.
    pub(super) fn take_out(&mut self, index: ObjectIndex, cause: Cause, by: &str) -> Vec<(NodeIndex, Hold)> {
        let Some((name, replicas)) = self.forget(index, cause, by) else { return Vec::new() };
        for &(node, hold) in &replicas {
            self.ghosts.insert(&name, node, hold);
        }
        replicas
    }

    /// Takes an object out of the catalog, and notes why; its replicas are no more, or nobody can say.
    pub(super) fn forget(
        &mut self,
        index: ObjectIndex,
        cause: Cause,
        by: &str,
    ) -> Option<(Arc<Name>, Replicas)> {
        let object = self.catalog.remove(index)?;
        self.unwritten.forget(index);
        self.promotion_is_moot(index, object.generation());
        if object.is_sample() {
            self.leases.leave(object.namespace(), object.put(), index);
            self.leave_stream(&object, cause);
        }
        let name = Arc::new(Name { namespace: object.namespace(), key: object.key().clone() });
        let generation = object.generation();
        self.history.note(self.now, Arc::clone(&name), generation, (cause, by), object.reader());
        self.room.note_change();
        Some((name, object.replicas().collect()))
    }

    pub(super) fn lease_refuses(&self, index: ObjectIndex, force: bool) -> bool {
        let leased = self.catalog.get(index).is_some_and(|it| it.leased(self.now));
        self.config.strict_leases && !force && leased && !sabotaged!(self.config.sabotage, RemoveLeased)
    }

    fn owe(&mut self, node: NodeIndex, holds: &[Hold]) {
        if let Some(member) = self.members.get_mut(node) {
            holds.iter().for_each(|hold| _ = member.retiring.remove(hold));
            member.owed.extend(holds);
        }
    }

    /// What was published cannot be said to have reached its node: the writer must ask that itself.
    pub(super) fn not_published(&mut self, id: RequestId, op: OpId) {
        if let Some(Op::Confirm(confirming)) = self.ops.get_mut(&op)
            && confirming.outstanding.contains(&id)
            && let Some(node) = confirming.asked.get(&id)
            && let Answer::Publish(outcomes, homes) = &mut confirming.answer
        {
            for &index in homes.get(node).into_iter().flatten() {
                outcomes.get_mut(index).into_iter().for_each(|it| *it = None);
            }
        }
        self.confirmed(id, Some(op));
    }

    /// What is gone meanwhile is not pinned: its disk may have let go of the last copy before it heard of the
    /// pin.
    fn look_at_pinned(&self, answer: &mut Answer) {
        let Answer::Pin(outcomes, pinned) = answer else { return };
        for (item, index, generation) in pinned {
            let stands = self.catalog.get(*index).is_some_and(|it| it.generation() == *generation);
            if let Some(outcome) = outcomes.get_mut(*item).filter(|it| !stands && **it == PinOutcome::Done) {
                *outcome = PinOutcome::Absent;
            }
        }
    }

    fn end_confirm(&mut self, op: OpId) {
        if let Some(Op::Confirm(mut confirming)) = self.ops.remove(&op) {
            if let Some(deadline) = confirming.deadline {
                self.deadlines.strike(deadline, op);
            }
            self.look_at_pinned(&mut confirming.answer);
            let reply = confirming.answer.into_reply();
            self.effects.push_back(Effect::Reply(confirming.conn, confirming.id, reply));
        }
    }
}
