//! Decides whether a written object gets its name.
//!
//! A reservation claims no name: the first commit wins. So a writer that stalls or dies blocks no other,
//! and no timeout is needed.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Objects, OpId, Retires, Wait,
    catalog::{NamespaceIndex, NewObject, NodeIndex, Object, ObjectIndex},
    context::{
        Context,
        held::{HeldRetire, HeldStage},
    },
    delete::{Answer, Awaited, ReplacedCopies},
    members::{Member, Members, Standing},
    pending_retires::Name,
    refuse,
    tier::end_copy_at,
};
use crate::{
    BATCH_ITEMS_MAX, ClientId, ConnId, Generation, Key, RequestId, SlotRef, Tick,
    attributes::Attributes,
    message::{
        Cause, CommitItem, CommitOutcome, Decide, MasterToMember, PutOptions, Reason, Record,
        SOFT_PIN_DEFAULT, Settle,
    },
    mutant::is_mutant,
    space_for,
};

/// Maximum number of objects that a message stores, and of copies that it retires, if the answer is sent
/// without waiting for it: a message that is too large would be refused.
const RETIRED_BEHIND_MAX: usize = 1 << 10;

/// A message to a node, and the objects that it commits.
type Message = (Settle, Vec<(ObjectIndex, Generation, SlotRef)>);

/// The messages to the nodes of a batch other than the one that asks.
#[derive(Debug, Default)]
pub(super) struct Others(pub(super) BTreeMap<NodeIndex, Message>);

impl Others {
    /// A node must commit its copy of an object.
    #[inline]
    fn commit(&mut self, node: NodeIndex, index: ObjectIndex, record: impl IntoIterator<Item = Record>) {
        for record in record {
            let (settle, objects) = self.0.entry(node).or_default();
            objects.push((index, record.generation, record.slot_ref));
            settle.commit.push(record);
        }
    }

    /// Aborts the copies of an object that gets no name, other than that of a home that asks. An earlier
    /// epoch may have named the object, so a joining node may announce its copy before it receives the abort.
    /// Such a copy is returned, and is retired instead.
    fn abort(
        &mut self,
        members: &Members,
        replicas: &[(NodeIndex, SlotRef)],
        home_asks: bool,
    ) -> Vec<(NodeIndex, SlotRef)> {
        let is_joining = |node| members.get(node).is_some_and(|it| it.standing == Standing::Joining);
        let (joining, ready): (Vec<_>, Vec<_>) =
            replicas.iter().skip(usize::from(home_asks)).partition(|(node, _)| is_joining(*node));
        for (node, slot_ref) in ready {
            self.0.entry(node).or_default().0.abort.push(slot_ref);
        }
        joining
    }
}

/// A written object that requests a name.
pub(super) struct Written {
    pub(super) namespace: NamespaceIndex,
    pub(super) client: ClientId,
    pub(super) item: CommitItem,
    /// Its home node learns the decision from the reply, and not with the others.
    pub(super) home_asks: bool,
}

impl Retires {
    pub(super) fn decide(
        &mut self,
        o: &mut Objects,
        conn: ConnId,
        id: RequestId,
        node: NodeIndex,
        decide: Decide,
    ) {
        if decide.items.len() > BATCH_ITEMS_MAX {
            let reply = refuse(Reason::Invalid, "the batch is too large");
            return o.cx.reply(conn, id, reply);
        }
        let mut outcomes = Vec::with_capacity(decide.items.len());
        let (mut replaced, mut nameless) = (Vec::new(), Vec::new());
        let mut others = Others::default();
        let mut items: BTreeMap<NodeIndex, Vec<usize>> = BTreeMap::new();
        for (index, item) in decide.items.into_iter().enumerate() {
            let namespace = o.cx.catalog.intern(&item.namespace);
            let written = Written { namespace, client: item.client, item: item.item, home_asks: true };
            let (outcome, old) = o.decide_one(node, written, &mut others);
            old.iter().for_each(|(node, _)| items.entry(*node).or_default().push(index));
            match outcome {
                CommitOutcome::Exists(_) | CommitOutcome::Stale | CommitOutcome::Removed => {
                    nameless.extend(old);
                }
                _ => replaced.extend(old),
            }
            outcomes.push(outcome);
        }
        let op = o.cx.next_op();
        let answer = Answer::Decide(outcomes);
        if nameless.is_empty() && is_answered_behind(&o.cx, (conn, node), &others, &replaced) {
            replace_behind(&mut o.cx, node, others, replaced, op);
            return answer.send(o, (conn, id));
        }
        // Until its node has recorded it, a copy belongs to the writer and is lost with it. The writer may
        // exit once it has its answer, so the answer waits for the copies. It does not wait for a node that
        // is already silent.
        let mut copies = BTreeMap::new();
        for (other, (settle, replicas)) in others.0 {
            // The home is told before its answer if the objects replace others, which are retired after that.
            let wait = match other == node {
                true => Wait::Publish(replicas, op),
                false => Wait::Settle(replicas, Some(op)),
            };
            let id = o.cx.ask(other, MasterToMember::Settle(settle), wait);
            let speaks = o.cx.members.get(other).is_some_and(|it| it.standing != Standing::Silent);
            copies.extend(id.filter(|_| speaks || other == node).map(|id| (id, other)));
        }
        let asked = o.cx.retire(nameless, Some(op));
        let held = ReplacedCopies { copies: replaced, stage: HeldStage::Held };
        let held = BTreeMap::from_iter((!held.copies.is_empty()).then_some((node, held)));
        let awaited = Awaited { items, asked, in_any_case: copies, held };
        self.answer_when(o, op, (conn, id), answer, awaited, decide.wait_ms);
    }
}

impl Objects {
    /// Removes replicas from the catalog that their node could not commit.
    pub(super) fn settled(
        &mut self,
        node: NodeIndex,
        replicas: &[(ObjectIndex, Generation, SlotRef)],
        lost: &[SlotRef],
    ) {
        for (index, generation, slot_ref) in replicas {
            // A disk that could not write a copy may have another one by now.
            let is_it = |it: &Object| it.replicas().any(|it| it == (node, *slot_ref));
            let same = self.cx.catalog.get(*index).filter(|it| it.generation() == *generation);
            if same.is_some_and(is_it) && lost.contains(slot_ref) {
                self.lose_copy(*index, node, Cause::NodeLost);
            }
        }
    }

    /// Decides on one object. Returns the outcome, and the copies that must be retired for it.
    pub(super) fn decide_one(
        &mut self,
        home: NodeIndex,
        written: Written,
        others: &mut Others,
    ) -> (CommitOutcome, Vec<(NodeIndex, SlotRef)>) {
        let Written { namespace, client, item, home_asks } = &written;
        let (namespace, client, home_asks) = (*namespace, *client, *home_asks);
        let replicas = self.cx.members.copies(home, item);
        self.cx.members.expect(home, item.slot_ref);
        let offered = self.end_grants(&replicas);
        let before = self.still_leaving(namespace, &item.key);
        let existing = self.cx.catalog.find(namespace, &item.key);
        let existing = existing.and_then(|index| Some((index, self.cx.catalog.get(index)?)));
        let is_known = |(_, it): &(ObjectIndex, &Object)| it.replicas().any(|it| replicas.contains(&it));
        let was_taken = !existing.as_ref().is_some_and(is_known) && self.cx.was_removed(&replicas);
        if was_taken && !is_mutant!(self.cx.config.mutant, NameRetired) {
            // The node asks again about an object that was stored and removed meanwhile. It has not
            // received the retire yet.
            return (CommitOutcome::Removed, others.abort(&self.cx.members, &replicas, home_asks));
        }
        let is_asked_again = !item.options.stream.is_empty() && existing.as_ref().is_some_and(is_known);
        if let Some(generation) =
            self.streams.used_up(&self.cx, namespace, &item.options, &item.key).filter(|_| !is_asked_again)
        {
            return (CommitOutcome::Exists(generation), others.abort(&self.cx.members, &replicas, home_asks));
        }
        // An offer is charged to no namespace until it is written. If a quota was set since that does not
        // allow it, the writer reserves again and then learns of the quota.
        let is_over_quota = offered > self.cx.quota_left(namespace);
        if !is_asked_again && (is_over_quota || self.streams.is_over(namespace, &item.options).is_some()) {
            return (CommitOutcome::Stale, others.abort(&self.cx.members, &replicas, home_asks));
        }
        if !existing.as_ref().is_some_and(is_known)
            && let Some(other) = self.not_replaceable(namespace, &item.key, &item.options)
        {
            return (CommitOutcome::Exists(other), others.abort(&self.cx.members, &replicas, home_asks));
        }
        // The home stores the object before its predecessor is retired, so that one stays if the master dies.
        let retires_first = is_mutant!(self.cx.config.mutant, RetireFirst);
        let Some((index, object)) = existing else {
            let home_asks =
                home_asks && (before.is_empty() || retires_first) && !self.informs_home(&item.options);
            let generation = self.name(Written { home_asks, ..written }, replicas, others);
            return (CommitOutcome::Stored(generation), before);
        };
        let generation = object.generation();
        let has_expiry = |it: &Attributes| it.expiry.is_some();
        let is_told = self.informs_home(&item.options) || object.attributes().is_some_and(has_expiry);
        if object.replicas().any(|replica| replicas.contains(&replica)) {
            // The node asks again because the first reply was lost, perhaps in an earlier epoch that had
            // settled the other copies. Or the home copy was removed since and others were not: if the node
            // has not received that retire yet, it must not store the copy again.
            let stays = self.keep_copy(index, home, item.slot_ref);
            if home_asks && stays && (!before.is_empty() && !retires_first || is_told) {
                others.commit(home, index, self.cx.record(index, item.slot_ref));
            }
            return (CommitOutcome::Stored(generation), before);
        }
        if object.is_kept(item.options.on_exists) {
            return (CommitOutcome::Exists(generation), others.abort(&self.cx.members, &replicas, home_asks));
        }
        let label = self.cx.connections.writer(client).1.to_owned();
        let mut old = self.take_replaced(index, &label);
        let before: Vec<_> = before.into_iter().filter(|it| !old.contains(it)).collect();
        old.extend(before);
        let home_asks = home_asks && retires_first && !self.informs_home(&item.options);
        let generation = self.name(Written { home_asks, ..written }, replicas, others);
        (CommitOutcome::Replaced(generation), old)
    }

    /// Adds a copy to its object, unless it is there already or must be retired. Returns whether it stays. A
    /// lost copy may have been made again at this home meanwhile: one per node is enough, and the one that
    /// is complete stays.
    fn keep_copy(&mut self, index: ObjectIndex, home: NodeIndex, slot_ref: SlotRef) -> bool {
        let Some(object) = self.cx.catalog.get(index) else { return false };
        if self.cx.was_removed(&[(home, slot_ref)]) {
            return false;
        }
        let is_there = object.replicas().any(|it| it == (home, slot_ref));
        if is_there || object.is_on(home) && is_mutant!(self.cx.config.mutant, KeepSecondCopy) {
            return true;
        }
        if object.copies().any(|(on, _)| on == home) {
            let name = Arc::new(Name { namespace: object.namespace(), key: object.key().clone() });
            let generation = object.generation();
            self.cx.pending_retires.insert(&name, generation, (home, slot_ref));
            self.cx.retire(vec![(home, slot_ref)], None);
            return false;
        }
        let generation = object.generation();
        end_copy_at(&mut self.tier, &mut self.cx, generation, home);
        if let Some(unfinished) = self.withdraw_copy(index, home) {
            self.cx.retire(vec![(home, unfinished)], None);
        }
        self.cx.catalog.add_replica(index, home, slot_ref);
        true
    }

    /// Removes an object that is replaced, and counts its memory as free where it need not be waited for.
    fn take_replaced(&mut self, index: ObjectIndex, by: &str) -> Vec<(NodeIndex, SlotRef)> {
        let space = self.cx.catalog.get(index).and_then(|it| space_for(it.len())).unwrap_or(0);
        let old = self.take_out(index, Cause::Replaced, by);
        for (node, _) in &old {
            let member = self.cx.members.get_mut(*node).filter(|it| it.can_withdraw);
            member.into_iter().for_each(|it| it.count_replaced(space));
        }
        old
    }

    /// Whether the home of a put learns of its object with the other nodes, before its answer. If the object
    /// expires: the answer has only the generation. And with several masters: the answer waits until
    /// leadership is confirmed. If this master ended meanwhile, after a client has seen the object, the next
    /// one would not know that the object was stored, and when.
    fn informs_home(&self, options: &PutOptions) -> bool {
        let mutant = self.cx.config.mutant;
        options.ttl_ms.is_some() && !is_mutant!(mutant, ExpiryUntold)
            || self.cx.config.confirms && !is_mutant!(mutant, TellWhenConfirmed)
    }

    /// For a put that replaces only one generation: the generation of the object that it must not replace,
    /// or zero if there is no object. `None` if the put may proceed. That generation is the expected one if
    /// the object is a sample, or has other pins than the put.
    pub(super) fn not_replaceable(
        &self,
        namespace: NamespaceIndex,
        key: &Key,
        options: &PutOptions,
    ) -> Option<Generation> {
        let expected = options.replaces?;
        let index = self.cx.catalog.find(namespace, key);
        let Some(object) = index.and_then(|index| self.cx.catalog.get(index)) else {
            return Some(Generation::default());
        };
        // A pin that was set or ended after the writer looked must not be lost, or come back.
        let none = Attributes::default();
        let (has, wanted) = (object.attributes().unwrap_or(&none), Attributes::of(options));
        let has_pins = has.pins == wanted.pins || is_mutant!(self.cx.config.mutant, ReplacePinned);
        let is_it = object.generation() == expected && has.sample.is_none() && has_pins;
        (!is_it).then(|| object.generation())
    }

    /// Ends the reservations of a written object. Returns the bytes that were only offered.
    fn end_grants(&mut self, replicas: &[(NodeIndex, SlotRef)]) -> u64 {
        let mut all = 0;
        for &(node, slot_ref) in replicas {
            let offered = self.cx.quotas.offered(node, slot_ref);
            self.cx.quotas.end_grant(node, slot_ref);
            if let (Some(offered), Some(member)) = (offered, self.cx.members.get_mut(node)) {
                member.count_claim(offered);
                all += offered;
            }
        }
        all
    }

    /// Copies of older objects of that name that a client with a cached location may still read. A second
    /// retire is harmless, and its confirmation proves that the copy is gone. Withdrawn copies are left out.
    ///
    /// A joining node is left out: it serves no cached locations, and applies its pending retires before it
    /// does. But only an announcement proves that it is joining; a registration may be an old message of a
    /// connection that the node gave up. A retire that was sent on this connection is waited for: a disk that
    /// joins may serve before the removal is durable.
    fn still_leaving(&self, namespace: NamespaceIndex, key: &Key) -> Vec<(NodeIndex, SlotRef)> {
        if is_mutant!(self.cx.config.mutant, ForgetWhatLeaves) {
            return Vec::new();
        }
        let mut leaving = self.cx.pending_retires.of(namespace, key);
        let is_joining = |it: &Member| it.standing == Standing::Joining && it.announces;
        leaving.retain(|(node, slot_ref)| {
            let may_be_read = |it: &Member| !is_joining(it) || it.retiring.contains(slot_ref);
            let member = self.cx.members.get(*node).filter(|it| !it.withdrawn.contains(slot_ref));
            member.is_some_and(may_be_read)
        });
        leaving
    }

    /// Gives a written object its name, which is free, and collects the messages to its other nodes.
    fn name(
        &mut self,
        written: Written,
        replicas: Vec<(NodeIndex, SlotRef)>,
        others: &mut Others,
    ) -> Generation {
        let Written { namespace, client, item, home_asks } = written;
        let (writer, _) = self.cx.connections.writer(client);
        let generation = self.mint_generation();
        let attributes = self.new_attributes(&item.options);
        let record = |slot_ref| Record {
            slot_ref,
            namespace: self.cx.catalog.namespace_name(namespace).to_owned(),
            key: item.key.clone(),
            generation,
            len: item.len,
            attributes: attributes.clone(),
        };
        let heard = usize::from(home_asks);
        let told = replicas.get(heard..).unwrap_or_default();
        let records: Vec<_> = told.iter().map(|&(node, slot_ref)| (node, record(slot_ref))).collect();
        for &(node, _) in &replicas {
            if let Some(member) = self.cx.members.get_mut(node) {
                member.count_commit(space_for(item.len).unwrap_or(0));
            }
        }
        let soft_until = match item.options.soft_pin_ms {
            None => Tick(0),
            Some(SOFT_PIN_DEFAULT) => self.cx.now.after(self.cx.config.soft_pin_ms),
            Some(ms) => self.cx.now.after(ms),
        };
        let is_sample = attributes.sample.is_some();
        let new = NewObject {
            namespace,
            key: item.key,
            generation,
            len: item.len,
            attributes,
            writer,
            soft_until,
            replicas,
        };
        let Some(index) = self.cx.catalog.insert(self.cx.now, new) else { return generation };
        self.cx.notice_stored(index);
        if is_sample {
            self.leases.arrive(namespace, self.cx.now, index);
            self.streams.enter(&self.cx, index, true);
        }
        self.cx.quotas.note_change();
        self.tier.write_through(&self.cx, index);
        for (node, record) in records {
            self.cx.members.expect(node, record.slot_ref);
            others.commit(node, index, [record]);
        }
        generation
    }
}

/// Whether the answer to a home node that asks can be sent at once: if only that node has copies, of the
/// objects and of those that they replace. It receives the message about both before the answer, on the same
/// connection, and answers the writer after that.
fn is_answered_behind(
    cx: &Context,
    (conn, home): (ConnId, NodeIndex),
    others: &Others,
    replaced: &[(NodeIndex, SlotRef)],
) -> bool {
    let is_its = |it: &Member| it.conn == Some(conn) && it.standing == Standing::Ready;
    let is_all_there = !replaced.is_empty() && replaced.iter().all(|it| it.0 == home) && others.0.len() == 1;
    let is_small = |it: &Message| it.1.len().max(replaced.len()) <= RETIRED_BEHIND_MAX;
    is_all_there && others.0.get(&home).is_some_and(is_small) && cx.members.get(home).is_some_and(is_its)
}

/// Sends such a message.
fn replace_behind(
    cx: &mut Context,
    home: NodeIndex,
    mut others: Others,
    copies: Vec<(NodeIndex, SlotRef)>,
    op: OpId,
) {
    let Some((mut settle, objects)) = others.0.remove(&home) else { return };
    let is_told = !is_mutant!(cx.config.mutant, AnswerUnretired);
    let stage = if is_told { HeldStage::Sent } else { HeldStage::Held };
    if is_told {
        settle.retire.extend(copies.iter().map(|it| it.1));
    }
    if let Some(id) = cx.ask(home, MasterToMember::Settle(settle), Wait::Replace(objects)) {
        cx.held_retires.insert(id, HeldRetire { home, copies, op, stage });
    }
}
