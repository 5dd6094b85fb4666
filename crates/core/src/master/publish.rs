//! Publishing: the writer of an object asks the master directly, and its node learns of it later.
//!
//! Then a put needs one round trip: the master names the object, sends `Settle` to its node, and answers.
//! Two rules make that as safe as a commit at the node:
//!
//! - The answer waits until the node will certainly receive the message, even if the master ends now. That
//!   is when the message is in the socket buffer of a node on this host
//!   ([`Event::SameHost`](super::Event::SameHost)), or when the node has confirmed it. A node reads its
//!   socket to the end before it treats the link as broken.
//! - A node frees the memory of a reservation only after the master has agreed that it ends. So the message
//!   of a publication arrives before that, and never later.
//!
//! Objects that cannot be published are left to the home node, see
//! [`ClientToNode::Commit`](crate::message::ClientToNode::Commit).
//!
//! The answer does not wait until the node has read its ledger. Until then the slot says *reserved*. A
//! cached location of such an object is valid through shared memory in the same epoch. A read through a
//! socket makes the node read its ledger first, for a limited time. So does the master when:
//!
//! - a client looks up one of these objects, because it may read the object again;
//! - a disk is about to read an object of the node;
//! - many bytes were sent, because the socket buffer is bounded.

use std::collections::BTreeMap;

use super::{
    Caller, Context, Master, Objects, OpId, Retires, Wait,
    catalog::{NodeIndex, ObjectIndex},
    commit::{Others, Written},
    context::{RETIRE_MAX, held::HeldStage},
    delete::{Answer, Awaited, ReplacedCopies},
    members::{Member, Standing},
    refuse,
};
use crate::{
    BATCH_ITEMS_MAX, ConnId, Generation, RequestId, SlotRef,
    attributes::Attributes,
    message::{MasterToMember, Publish, PublishItem, Reason, Record, Reply, Settle, Settled},
    mutant::is_mutant,
};

impl Retires {
    pub(super) fn publish(
        &mut self,
        o: &mut Objects,
        conn: ConnId,
        id: RequestId,
        caller: &Caller,
        publish: Publish,
    ) {
        if publish.items.len() > BATCH_ITEMS_MAX {
            let reply = refuse(Reason::Invalid, "the batch is too large");
            return o.cx.reply(conn, id, reply);
        }
        let mut outcomes = Vec::with_capacity(publish.items.len());
        let mut held: BTreeMap<NodeIndex, ReplacedCopies> = BTreeMap::new();
        let mut told = Others::default();
        let mut homes: BTreeMap<NodeIndex, Vec<usize>> = BTreeMap::new();
        let mut items: BTreeMap<NodeIndex, Vec<usize>> = BTreeMap::new();
        for (index, item) in publish.items.into_iter().enumerate() {
            let Some(home) = o.home_of(caller, &item) else {
                outcomes.push(None);
                continue;
            };
            let (namespace, client) = (caller.namespace, caller.client);
            let written = Written { namespace, client, item: item.item, home_asks: false };
            let (outcome, old) = o.decide_one(home, written, &mut told);
            old.iter().for_each(|(node, _)| items.entry(*node).or_default().push(index));
            homes.entry(home).or_default().push(index);
            if !old.is_empty() {
                held.entry(home).or_default().copies.extend(old);
            }
            outcomes.push(Some(outcome));
        }
        let op = o.cx.next_op();
        let mut sent = BTreeMap::new();
        let mut behind = Vec::new();
        for (node, (mut settle, objects)) in told.0 {
            if let Some(held) = held.get_mut(&node) {
                retire_with(&o.cx, node, &mut settle, held);
            }
            let names: usize = settle.commit.iter().map(|it| it.key.as_bytes().len()).sum();
            let words = settle.commit.len() + settle.abort.len() + settle.retire.len();
            let id = o.cx.ask(node, MasterToMember::Settle(settle), Wait::Publish(objects, op));
            sent.extend(id.map(|id| (id, node)));
            behind.push((node, words, names));
        }
        if is_mutant!(o.cx.config.mutant, AnswerUnsent) {
            sent.clear();
        }
        let answer = Answer::Publish(outcomes, homes);
        let awaited = Awaited { items, asked: BTreeMap::new(), in_any_case: sent, held };
        self.answer_when(o, op, (conn, id), answer, awaited, publish.wait_ms);
        behind.into_iter().for_each(|(node, words, names)| o.cx.count_ledger(node, words, names));
    }

    /// A node has applied publications, or refuses the message.
    pub(super) fn settle_replied(
        &mut self,
        o: &mut Objects,
        node: NodeIndex,
        id: RequestId,
        objects: &[(ObjectIndex, Generation, SlotRef)],
        op: OpId,
        reply: Reply,
    ) {
        if let Reply::Settled(settled) = reply {
            o.cx.report(node, settled.usage);
            o.settled(node, objects, &settled.lost);
            return self.confirmed_behind(o, node, id, Some(op));
        }
        let lost: Vec<_> = objects.iter().map(|it| it.2).collect();
        o.settled(node, objects, &lost);
        self.retire_held(o, id);
        self.not_published(o, node, id, op);
    }

    /// Applies the confirmation of further publications that one reply of a node contains.
    pub(super) fn settled_all(&mut self, o: &mut Objects, node: NodeIndex, settled: &Settled) {
        for id in &settled.also {
            let is_its = |it: &(NodeIndex, Wait)| {
                it.0 == node && matches!(it.1, Wait::Publish(..) | Wait::Withdraw(..))
            };
            let found = o.cx.waits.get(id).is_some_and(is_its).then(|| o.cx.waits.remove(id)).flatten();
            match found {
                Some((_, Wait::Publish(objects, op))) => {
                    o.settled(node, &objects, &settled.lost);
                    self.confirmed_behind(o, node, *id, Some(op));
                }
                Some((_, Wait::Withdraw(slot_refs, op))) => {
                    self.retired(o, node, *id, &slot_refs, op);
                }
                _ => (),
            }
        }
    }
}

impl Objects {
    /// The home node of an object, if the object can be published. The node must be on the master's host.
    /// The object must have one copy and no attributes, and its reservation must belong to the client as
    /// far as the master knows.
    fn home_of(&self, caller: &Caller, publish: &PublishItem) -> Option<NodeIndex> {
        let PublishItem { home, item } = publish;
        let node = self.cx.members.find(*home)?;
        let member = self.cx.members.get(node)?;
        let is_there = member.is_on_same_host && member.standing == Standing::Ready;
        let is_plain = item.others.is_empty() && item.options.has_no_attributes();
        let name_len = self.cx.catalog.namespace_name(caller.namespace).len() + item.key.as_bytes().len();
        let fits = self.cx.quotas.is_granted(node, item.slot_ref, caller.namespace, |it| {
            it.client == caller.client && it.len == item.len && name_len as u64 <= it.name_len
        });
        let fits = fits || is_mutant!(self.cx.config.mutant, PublishEnded);
        (is_there && is_plain && fits).then_some(node)
    }
}

impl Master {
    /// The message of an [`Effect::SendLedger`](super::Effect::SendLedger) is in the node's socket buffer.
    pub fn sent(&mut self, id: RequestId) {
        let op = match self.objects.cx.waits.get(&id) {
            Some((node, Wait::Publish(_, op))) => {
                let (node, op) = (*node, *op);
                self.objects.cx.withdraw_held(node, id);
                Some(op)
            }
            Some((node, Wait::Withdraw(slot_refs, op))) => {
                let (node, slot_refs, op) = (*node, slot_refs.clone(), *op);
                self.objects.cx.withdraw(node, slot_refs);
                op
            }
            _ => return,
        };
        self.operations.retires.confirmed(&mut self.objects, id, op);
    }
}

impl Context {
    /// These publications may not have reached the node: it receives them when it registers.
    pub(super) fn note_unreceived(
        &mut self,
        node: NodeIndex,
        objects: Vec<(ObjectIndex, Generation, SlotRef)>,
    ) {
        let Some(member) = self.members.get_mut(node) else { return };
        member.unreceived.extend(objects.into_iter().map(|it| (it.2, (it.0, it.1))));
    }

    /// Records of published objects that a registering node may not have received.
    pub(super) fn unreceived(&self, node: NodeIndex) -> Vec<Record> {
        if is_mutant!(self.config.mutant, ForgetPublished) {
            return Vec::new();
        }
        let unreceived = self.members.get(node).into_iter().flat_map(|it| &it.unreceived);
        let records = unreceived.filter_map(|(slot_ref, (index, generation))| {
            let object = self.catalog.get(*index).filter(|it| it.generation() == *generation)?;
            object.replicas().any(|it| it == (node, *slot_ref)).then(|| Record {
                slot_ref: *slot_ref,
                namespace: self.catalog.namespace_name(object.namespace()).to_owned(),
                key: object.key().clone(),
                generation: *generation,
                len: object.len(),
                // Pins added since are written when the node announces the object. It learns when a prepared
                // object expires, whose other attributes it has.
                attributes: Attributes {
                    expiry: object.attributes().and_then(|it| it.expiry.clone()),
                    ..Attributes::default()
                },
            })
        });
        records.collect()
    }
}

/// Adds to a message through the ledger what its objects replace, if the node has all of that and the master
/// can withdraw it.
fn retire_with(cx: &Context, node: NodeIndex, settle: &mut Settle, held: &mut ReplacedCopies) {
    let can_withdraw = |it: &Member| it.can_withdraw && it.standing == Standing::Ready;
    let is_one = held.copies.iter().all(|it| it.0 == node) && held.copies.len() <= RETIRE_MAX;
    if is_one && cx.members.get(node).is_some_and(can_withdraw) {
        settle.retire.extend(held.copies.iter().map(|it| it.1));
        held.stage = HeldStage::Sent;
    }
}
