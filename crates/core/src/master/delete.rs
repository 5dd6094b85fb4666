//! Deletes, and answers that wait until nodes have retired copies.
//!
//! [`Retires`] owns the answers that wait: of deletes, of replacements, of pins and acknowledgements, and
//! of deletes by pattern ([`delete_matching`](super::delete_matching)). Large batches are handled a piece at
//! a time ([`batch`](super::batch)).
//!
//! **Invariant:** a delete answers `Deleted` only after every node that holds a copy has withdrawn its
//! stamp. If a node is not connected or does not reply in time, the answer is `Unconfirmed`. The retires
//! that the node owes are applied before the node is used again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{
    Caller, Objects, OpId,
    batch::Rest,
    catalog::{NodeIndex, ObjectIndex},
    changed::{Changed, send_changes},
    context::held::{HeldRetire, HeldStage},
    delete_matching::Dropping,
    leases::Acked,
    members::Standing,
    pin::pin_items,
    refuse,
};
use crate::{
    BATCH_ITEMS_MAX, ConnId, Generation, OWNER_BYTES_MAX, RequestId, SlotRef, Tick,
    message::{
        Ack, AckOutcome, Cause, CommitOutcome, Delete, DeleteOutcome, DeletedMatching, DropPins, EndStream,
        Pin, PinOutcome, Reason, Replacement, Reply,
    },
    mutant::is_mutant,
};

/// Answers that wait until nodes have retired copies or written attributes.
#[derive(Debug, Default)]
pub(super) struct Retires {
    pub(super) confirms: BTreeMap<OpId, Confirming>,
    pub(super) drops: BTreeMap<OpId, Dropping>,
    /// Drops in progress, and large batches with items that are not handled yet, the next one first.
    pub(super) jobs: VecDeque<OpId>,
}

/// An answer that waits for nodes to confirm.
#[derive(Debug)]
pub(super) struct Confirming {
    pub(super) conn: ConnId,
    pub(super) id: RequestId,
    pub(super) answer: Answer,
    pub(super) outstanding: BTreeSet<RequestId>,
    /// Which items of the answer depend on which node.
    pub(super) items: BTreeMap<NodeIndex, Vec<usize>>,
    pub(super) asked: BTreeMap<RequestId, NodeIndex>,
    /// Requests that are awaited beyond the deadline.
    pub(super) awaited_beyond_deadline: BTreeSet<RequestId>,
    /// `None` once it has passed.
    pub(super) deadline: Option<Tick>,
    /// The items of a large batch that are not handled yet.
    pub(super) rest: Option<Box<Rest>>,
}

/// The conditions of an answer.
#[derive(Debug)]
pub(super) struct Awaited {
    /// Which items of the answer depend on which node.
    pub(super) items: BTreeMap<NodeIndex, Vec<usize>>,
    /// Requests that are awaited until the deadline. A node without a request cannot confirm.
    pub(super) asked: BTreeMap<RequestId, NodeIndex>,
    pub(super) in_any_case: BTreeMap<RequestId, NodeIndex>,
    /// Copies that are retired once the message to a node about their successors is certain to arrive.
    pub(super) held: BTreeMap<NodeIndex, ReplacedCopies>,
}

/// Copies of replaced objects, which are retired after their successors.
#[derive(Debug, Default)]
pub(super) struct ReplacedCopies {
    pub(super) copies: Vec<(NodeIndex, SlotRef)>,
    pub(super) stage: HeldStage,
}

/// The content of an answer.
#[derive(Debug)]
pub(super) enum Answer {
    Delete(Vec<DeleteOutcome>),
    Matching(DeletedMatching),
    Decide(Vec<CommitOutcome>),
    /// And which items are stored on which node.
    Publish(Vec<Option<CommitOutcome>>, BTreeMap<NodeIndex, Vec<usize>>),
    /// And the objects of the items.
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
            // The new object is stored, whether or not the old one is gone. The node retires the old one
            // when it returns.
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

    /// Sends the answer. If a node has not confirmed a retire, the retire is saved first.
    pub(super) fn send(self, o: &mut Objects, (conn, id): (ConnId, RequestId)) {
        let saves = match &self {
            Self::Delete(outcomes) => outcomes.iter().any(|it| matches!(it, DeleteOutcome::Unconfirmed(_))),
            Self::Matching(matching) => !matching.unconfirmed.is_empty(),
            Self::Decide(outcomes) => outcomes.iter().any(is_unconfirmed),
            Self::Publish(outcomes, _) => outcomes.iter().flatten().any(is_unconfirmed),
            Self::Ack(outcomes) => outcomes.iter().any(|it| matches!(it, AckOutcome::Unconfirmed(_))),
            Self::Pin(..) => false,
        };
        let reply = self.into_reply();
        if saves && !is_mutant!(o.cx.config.mutant, AnswerUnsaved) {
            return o.cx.reply_when_saved(conn, id, reply);
        }
        // A put that gets no name may have a copy that must never come back.
        let is_removed = |it: &CommitOutcome| *it == CommitOutcome::Removed;
        match matches!(&reply, Reply::Decided(outcomes) if outcomes.iter().any(is_removed)) {
            true => o.cx.reply_when_synced(conn, id, reply),
            false => o.cx.reply(conn, id, reply),
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

fn is_unconfirmed(outcome: &CommitOutcome) -> bool {
    matches!(outcome, CommitOutcome::Unconfirmed(_))
}

/// A node did not confirm the retire of the previous object of this name.
fn unconfirm(outcome: &mut CommitOutcome, name: &str) {
    let (generation, replaced) = match outcome {
        CommitOutcome::Unconfirmed(it) => return note(&mut it.nodes, name),
        CommitOutcome::Replaced(generation) => (*generation, true),
        CommitOutcome::Stored(generation) => (*generation, false),
        CommitOutcome::Exists(_) | CommitOutcome::Stale | CommitOutcome::Removed => return,
    };
    let nodes = vec![name.to_owned()];
    *outcome = CommitOutcome::Unconfirmed(Replacement { generation, replaced, nodes });
}

/// Adds the name of a node, unless it is already listed.
fn note(names: &mut Vec<String>, name: &str) {
    if !names.iter().any(|it| it == name) {
        names.push(name.to_owned());
    }
}

impl Retires {
    pub(super) fn ack(&mut self, o: &mut Objects, conn: ConnId, id: RequestId, caller: &Caller, ack: &Ack) {
        if ack.items.len() > BATCH_ITEMS_MAX {
            return o.cx.reply(conn, id, refuse(Reason::Invalid, "the batch is too large"));
        }
        let mut outcomes = Vec::with_capacity(ack.items.len());
        let changed = ack_items(o, caller, ack, &mut outcomes);
        self.retire_and_set_attributes(o, (conn, id), Answer::Ack(outcomes), changed, ack.wait_ms);
    }

    pub(super) fn pin(&mut self, o: &mut Objects, conn: ConnId, id: RequestId, caller: &Caller, pin: &Pin) {
        if pin.keys.len() > BATCH_ITEMS_MAX || pin.owner.len() > OWNER_BYTES_MAX {
            let reply = refuse(Reason::Invalid, "the batch is too large, or the owner's name too long");
            return o.cx.reply(conn, id, reply);
        }
        let (mut outcomes, mut pinned) = (Vec::with_capacity(pin.keys.len()), Vec::new());
        let changed = pin_items(o, caller, pin, &mut outcomes, &mut pinned);
        self.retire_and_set_attributes(o, (conn, id), Answer::Pin(outcomes, pinned), changed, pin.wait_ms);
    }

    /// In one turn, however many there are: no pin may end that is set after the request has arrived.
    pub(super) fn drop_pins(
        &mut self,
        o: &mut Objects,
        to: (ConnId, RequestId),
        caller: &Caller,
        drop: &DropPins,
    ) {
        let (count, changed) = o.end_pins(caller.namespace, &drop.owner);
        let answer = Answer::Matching(DeletedMatching { count, unconfirmed: Vec::new() });
        self.retire_and_set_attributes(o, to, answer, changed, drop.wait_ms);
    }

    /// A node may or may not have written attributes.
    pub(super) fn attributes_not_set(
        &mut self,
        o: &mut Objects,
        node: NodeIndex,
        id: RequestId,
        objects: &[(ObjectIndex, Generation, SlotRef)],
        op: Option<OpId>,
    ) {
        objects.iter().for_each(|(index, ..)| o.unwritten.unconfirmed(*index, node, id));
        self.unconfirmed(o, node, id, &[], op);
    }

    pub(super) fn end_stream(
        &mut self,
        o: &mut Objects,
        conn: ConnId,
        id: RequestId,
        caller: &Caller,
        end: &EndStream,
    ) {
        let objects = match o.streams.end(&mut o.cx, caller, end) {
            Ok(objects) => objects,
            Err(reply) => return o.cx.reply(conn, id, *reply),
        };
        let matching = DeletedMatching { count: objects.len() as u64, unconfirmed: Vec::new() };
        let mut changed = Changed::default();
        for object in objects {
            let replicas = o.take_out_all(object, Cause::Deleted, &caller.label);
            changed.gone.extend(replicas.into_iter().map(|replica| (0, replica)));
        }
        self.retire_and_set_attributes(o, (conn, id), Answer::Matching(matching), changed, end.wait_ms);
    }

    pub(super) fn confirm_count(&self) -> usize {
        self.confirms.len()
    }

    pub(super) fn delete(
        &mut self,
        o: &mut Objects,
        conn: ConnId,
        id: RequestId,
        caller: &Caller,
        delete: Delete,
    ) {
        if delete.keys.len() > BATCH_ITEMS_MAX {
            let reply = refuse(Reason::Invalid, "the batch is too large");
            return o.cx.reply(conn, id, reply);
        }
        let (outcomes, changed) = delete_items(o, caller, &delete);
        self.retire_and_set_attributes(o, (conn, id), Answer::Delete(outcomes), changed, delete.wait_ms);
    }

    /// Retires copies, writes the attributes of objects, and answers when the nodes have confirmed. An item
    /// of the answer depends on each of them.
    pub(super) fn retire_and_set_attributes(
        &mut self,
        o: &mut Objects,
        to: (ConnId, RequestId),
        answer: Answer,
        changed: Changed,
        wait_ms: u64,
    ) {
        let op = o.cx.next_op();
        let (items, asked) = send_changes(o, op, changed);
        let awaited = Awaited { items, asked, in_any_case: BTreeMap::new(), held: BTreeMap::new() };
        self.answer_when(o, op, to, answer, awaited, wait_ms);
    }

    /// Answers when the nodes have confirmed all requests.
    pub(super) fn answer_when(
        &mut self,
        o: &mut Objects,
        op: OpId,
        (conn, id): (ConnId, RequestId),
        mut answer: Answer,
        awaited: Awaited,
        wait_ms: u64,
    ) {
        let Awaited { items, mut asked, in_any_case, held } = awaited;
        let mut waits: BTreeSet<NodeIndex> = asked.values().copied().collect();
        for (home, ReplacedCopies { copies, stage }) in held {
            match in_any_case.iter().find(|(_, node)| **node == home) {
                Some((id, _)) => {
                    waits.extend(copies.iter().map(|it| it.0));
                    o.cx.held_retires.insert(*id, HeldRetire { home, copies, op, stage });
                }
                None => asked.extend(o.cx.retire(copies, Some(op))),
            }
        }
        waits.extend(asked.values());
        for (node, indexes) in items.iter().filter(|(node, _)| !waits.contains(node)) {
            answer.unconfirmed(&o.cx.members.name(*node), indexes);
        }
        let is_decision = matches!(answer, Answer::Decide(_) | Answer::Publish(..));
        if is_decision && is_mutant!(o.cx.config.mutant, ReplaceWithoutConfirmation) {
            asked.clear();
        }
        asked.extend(&in_any_case);
        let awaited_beyond_deadline: BTreeSet<_> = in_any_case.into_keys().collect();
        let outstanding: BTreeSet<_> = asked.keys().copied().collect();
        let at_once = outstanding.is_empty() || is_mutant!(o.cx.config.mutant, DeleteWithoutConfirmation);
        if at_once {
            return answer.send(o, (conn, id));
        }
        let deadline = o.cx.now.after(wait_ms);
        o.cx.deadlines.list(deadline, op);
        let (deadline, rest) = (Some(deadline), None);
        let confirming = Confirming {
            conn,
            id,
            answer,
            outstanding,
            items,
            asked,
            awaited_beyond_deadline,
            deadline,
            rest,
        };
        self.confirms.insert(op, confirming);
    }

    /// A node has retired copies.
    pub(super) fn retired(
        &mut self,
        o: &mut Objects,
        node: NodeIndex,
        id: RequestId,
        slot_refs: &[SlotRef],
        op: Option<OpId>,
    ) {
        if let Some(member) = o.cx.members.get_mut(node) {
            for slot_ref in slot_refs {
                member.retiring.remove(slot_ref);
                member.withdrawn.remove(slot_ref);
            }
        }
        slot_refs.iter().for_each(|slot_ref| o.cx.pending_retires.remove(node, *slot_ref));
        self.confirmed(o, id, op);
    }

    /// A node has applied a request, or is certain to.
    pub(super) fn confirmed(&mut self, o: &mut Objects, id: RequestId, op: Option<OpId>) {
        self.retire_held(o, id);
        self.awaits_no_longer(o, id, op);
    }

    /// A node has stored objects and then retired what they replace, or rejects the message.
    pub(super) fn has_replaced(
        &mut self,
        o: &mut Objects,
        node: NodeIndex,
        id: RequestId,
        objects: &[(ObjectIndex, Generation, SlotRef)],
        reply: Reply,
    ) {
        let Reply::Settled(settled) = reply else {
            let lost: Vec<_> = objects.iter().map(|it| it.2).collect();
            o.settled(node, objects, &lost);
            return self.retire_held(o, id);
        };
        o.cx.report(node, settled.usage);
        o.settled(node, objects, &settled.lost);
        self.confirmed_behind(o, node, id, None);
    }

    /// A node has stored objects, and retired what the same message retires.
    pub(super) fn confirmed_behind(
        &mut self,
        o: &mut Objects,
        node: NodeIndex,
        id: RequestId,
        op: Option<OpId>,
    ) {
        match o.cx.held_retires.take_sent(id) {
            Some(slot_refs) => self.retired(o, node, id, &slot_refs, op),
            None => self.confirmed(o, id, op),
        }
    }

    /// Retires the predecessors of objects that are stored now. The answer waits for that, too, unless its
    /// deadline has passed.
    pub(super) fn retire_held(&mut self, o: &mut Objects, id: RequestId) {
        // The node has not confirmed the message that retires them.
        if o.cx.waits.contains_key(&id) && o.cx.held_retires.is_sent(id) {
            return;
        }
        let Some(HeldRetire { home, copies, op, .. }) = o.cx.held_retires.take(id) else { return };
        let nodes: BTreeSet<_> = copies.iter().map(|it| it.0).collect();
        let asked = o.cx.retire_replaced(home, copies, op);
        let Some(confirming) = self.confirms.get_mut(&op) else { return };
        if is_mutant!(o.cx.config.mutant, ReplaceWithoutConfirmation) {
            return;
        }
        let is_late = confirming.deadline.is_none();
        for node in nodes.iter().filter(|node| is_late || !asked.values().any(|it| it == *node)) {
            let items = confirming.items.get(node).cloned().unwrap_or_default();
            confirming.answer.unconfirmed(&o.cx.members.name(*node), &items);
        }
        if !is_late {
            confirming.outstanding.extend(asked.keys());
            confirming.asked.extend(asked);
        }
    }

    /// The answer does not wait for this request any more.
    fn awaits_no_longer(&mut self, o: &mut Objects, id: RequestId, op: Option<OpId>) {
        let Some(op) = op else { return };
        self.drop_confirmed(o, op, id);
        let Some(confirming) = self.confirms.get_mut(&op) else { return };
        confirming.outstanding.remove(&id);
        self.maybe_end_confirm(o, op);
    }

    /// A node will not confirm on this connection any more.
    pub(super) fn unconfirmed(
        &mut self,
        o: &mut Objects,
        node: NodeIndex,
        id: RequestId,
        slot_refs: &[SlotRef],
        op: Option<OpId>,
    ) {
        o.cx.owe(node, slot_refs);
        let name = o.cx.members.name(node);
        if let Some(op) = op {
            self.drop_unconfirmed(o, op, id, &name);
        }
        if let Some(op) = op
            && let Some(confirming) = self.confirms.get_mut(&op)
        {
            let items = confirming.items.get(&node).cloned().unwrap_or_default();
            confirming.answer.unconfirmed(&name, &items);
            self.confirmed(o, id, Some(op));
        }
    }

    /// Answers a request whose deadline has passed, unless it waits for a node beyond the deadline.
    pub(super) fn confirm_no_longer(&mut self, o: &mut Objects, op: OpId) {
        let Some(confirming) = self.confirms.get_mut(&op) else { return };
        if confirming.deadline.is_none_or(|at| at > o.cx.now) {
            return;
        }
        confirming.deadline = None;
        let late: Vec<_> =
            confirming.outstanding.difference(&confirming.awaited_beyond_deadline).copied().collect();
        for id in late {
            confirming.outstanding.remove(&id);
            let Some(node) = confirming.asked.get(&id) else { continue };
            let items = confirming.items.get(node).cloned().unwrap_or_default();
            confirming.answer.unconfirmed(&o.cx.members.name(*node), &items);
        }
        self.maybe_end_confirm(o, op);
    }

    /// A publication may not have reached its node, so the writer must commit at the node.
    pub(super) fn not_published(&mut self, o: &mut Objects, node: NodeIndex, id: RequestId, op: OpId) {
        let is_decision = self.confirms.get(&op).is_some_and(|it| matches!(it.answer, Answer::Decide(_)));
        if is_decision && o.cx.held_retires.contains(id) {
            // The node asks again when it returns, and until then what its objects replace stays.
            if o.cx.members.get(node).is_none_or(|it| it.standing != Standing::Silent)
                && let Some(deadline) = self.confirms.remove(&op).and_then(|it| it.deadline)
            {
                o.cx.deadlines.strike(deadline, op);
            }
            return;
        }
        if let Some(confirming) = self.confirms.get_mut(&op)
            && confirming.outstanding.contains(&id)
            && let Some(node) = confirming.asked.get(&id)
            && let Answer::Publish(outcomes, homes) = &mut confirming.answer
        {
            for &index in homes.get(node).into_iter().flatten() {
                outcomes.get_mut(index).into_iter().for_each(|it| *it = None);
            }
        }
        // What the objects replace stays until the node has stored them.
        self.awaits_no_longer(o, id, Some(op));
    }

    /// Changes the outcome of pins whose object is gone meanwhile: its disk may have dropped the last copy
    /// before it received the pin.
    fn read_pinned(&self, o: &Objects, answer: &mut Answer) {
        let Answer::Pin(outcomes, pinned) = answer else { return };
        for (item, index, generation) in pinned {
            let stands = o.cx.catalog.get(*index).is_some_and(|it| it.generation() == *generation);
            let is_answer = |it: &&mut PinOutcome| matches!(it, PinOutcome::Done | PinOutcome::NotPinned);
            if let Some(outcome) = outcomes.get_mut(*item).filter(|it| !stands && is_answer(it)) {
                *outcome = PinOutcome::Absent;
            }
        }
    }

    /// Answers, if nothing is awaited any more and all items are handled.
    pub(super) fn maybe_end_confirm(&mut self, o: &mut Objects, op: OpId) {
        let is_over = |it: &Confirming| it.outstanding.is_empty() && it.rest.is_none();
        if !self.confirms.get(&op).is_some_and(is_over) {
            return;
        }
        if let Some(mut confirming) = self.confirms.remove(&op) {
            if let Some(deadline) = confirming.deadline {
                o.cx.deadlines.strike(deadline, op);
            }
            self.read_pinned(o, &mut confirming.answer);
            confirming.answer.send(o, (confirming.conn, confirming.id));
        }
    }
}

/// Removes objects.
fn delete_items(o: &mut Objects, caller: &Caller, delete: &Delete) -> (Vec<DeleteOutcome>, Changed) {
    let (mut outcomes, mut gone) = (Vec::with_capacity(delete.keys.len()), Vec::new());
    for (item, key) in delete.keys.iter().enumerate() {
        let index = o.cx.catalog.find(caller.namespace, key);
        let pending_retires = o.cx.pending_of(caller.namespace, key);
        outcomes.push(match index {
            None => DeleteOutcome::Absent,
            Some(index) if o.cx.lease_refuses(index, delete.force) => DeleteOutcome::Leased,
            Some(index) => {
                let replicas = o.take_out(index, Cause::Deleted, &caller.label);
                gone.extend(replicas.into_iter().map(|replica| (item, replica)));
                DeleteOutcome::Deleted
            }
        });
        // Copies of earlier objects of that name may still exist; their nodes are asked once more.
        let refused = outcomes.last() == Some(&DeleteOutcome::Leased);
        if !refused && !is_mutant!(o.cx.config.mutant, ForgetPendingRetires) {
            gone.extend(pending_retires.into_iter().map(|replica| (item, replica)));
        }
    }
    (outcomes, Changed { gone, ..Changed::default() })
}

/// Acknowledges samples, and appends the outcomes.
pub(super) fn ack_items(
    o: &mut Objects,
    caller: &Caller,
    ack: &Ack,
    outcomes: &mut Vec<AckOutcome>,
) -> Changed {
    let mut changed = Changed::default();
    for item in &ack.items {
        let at = outcomes.len();
        outcomes.push(match o.leases.ack(&mut o.cx, &mut o.streams, caller, (item, ack)) {
            Acked::Nothing(outcome) => outcome,
            Acked::SetAttributes(index) => {
                changed.attributes_set.push((at, index));
                AckOutcome::Recorded
            }
            Acked::Free(index, cause) => {
                let replicas = o.take_out_all(index, cause, &caller.label);
                changed.gone.extend(replicas.into_iter().map(|replica| (at, replica)));
                AckOutcome::Freed
            }
        });
    }
    if is_mutant!(o.cx.config.mutant, AckWithoutWriting) {
        changed.attributes_set.clear();
    }
    changed
}
