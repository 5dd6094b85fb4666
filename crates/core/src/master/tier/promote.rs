//! Promotion: an object is read from a disk back into memory. Either a client will read it soon (a prefetch
//! or a probe), or it was read repeatedly.
//!
//! A promotion has three messages: `Allocate` for space in the memory of the disk's node, `Promote` for the
//! bytes, `Settle` for the slot. The copy enters the catalog as pending after the first, and can be read
//! after the third.
//!
//! The throttle counts it from the first step to its end. Every path has an end: no memory, a disk that
//! cannot read, a removed object, a lost member, a deadline.
//!
//! A lost copy is made again in the same way ([`repair`](super::repair)): the second message is then `Fetch`,
//! to the node that gets the copy.
//!
//! A promotion that finds no memory waits for it: see [`waiting`](super::waiting).
//!
//! **Invariant:** the copy in memory is in the catalog, as pending, before its bytes are read. So the
//! removal of the object also removes that copy, and late replies do not affect a newer one.

use std::{collections::BTreeMap, sync::Arc};

use tiffin_throttle::{Config, End, Throttle, Token, Verdict};

use super::{Tier, sketch::Sketch, waiting::MemoryQueue};
use crate::master::{
    Notice, Wait,
    catalog::{LabelIndex, NamespaceIndex, NodeIndex, Object, ObjectIndex},
    context::{Context, guarantees, quotas::Charge},
    pending_retires::Name,
};
use crate::{
    ClientId, Generation, Reservation, SlotRef, Tick,
    attributes::Attributes,
    message::{
        Ahead, Allocate, AllocateItem, FetchItem, MasterToMember, PrefetchOutcome, PromoteItem, Settle,
    },
    mutant::is_mutant,
    space_for,
};

/// The outcome of an attempt to begin a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// It runs.
    Running,
    /// The object is in memory.
    Resident,
    /// The object is gone.
    Absent,
    /// No readable disk has it, or that disk's node has no usable memory.
    NoPath,
    /// It is already running, or was done a short while ago.
    Joined,
    /// It failed a short while ago.
    Failed,
    /// The maximum number is running.
    Busy,
    /// Its namespace has used up its quota, and has no object that may be evicted for a promotion.
    OverQuota,
    /// There is no memory, and no object that may be evicted for a promotion.
    NoMemory,
}

/// Why a copy is brought into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::master) enum Purpose {
    /// It is read soon, or often.
    Promotion,
    /// Its object has fewer copies than it should.
    Repair,
}

/// Identifies one promotion of an object, as distinct from later ones of the same object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::master) struct PromotionId {
    generation: Generation,
    purpose: Purpose,
    token: u64,
}

/// A copy that is about to begin.
#[derive(Debug)]
pub(super) struct NewCopy {
    pub(super) token: Token,
    pub(super) purpose: Purpose,
    pub(super) index: ObjectIndex,
    pub(super) from: (NodeIndex, SlotRef),
    pub(super) node: NodeIndex,
    pub(super) requested: Tick,
    pub(super) wanted_by: Option<ClientId>,
}

/// A promotion in progress.
#[derive(Debug)]
pub(super) struct Promoting {
    token: Token,
    pub(super) purpose: Purpose,
    pub(super) index: ObjectIndex,
    /// The node has been sent the record of the object.
    settling: bool,
    /// The source: a copy on a disk, or for a repair a copy on any other member.
    from: (NodeIndex, SlotRef),
    /// The memory that receives it.
    pub(super) node: NodeIndex,
    /// The reservation there, once there is one.
    slot_ref: Option<SlotRef>,
    since: Tick,
    /// When it was first requested: it may have waited for memory.
    requested: Tick,
    bytes: u64,
    /// The only client that requested it by name, and may cancel it; `None` if others want it as well.
    wanted_by: Option<ClientId>,
}

/// All promotions.
#[derive(Debug)]
pub(super) struct Promotions {
    pub(super) throttle: Throttle<Generation>,
    /// Promotions that wait for memory.
    pub(super) queue: MemoryQueue,
    pub(super) running: BTreeMap<Generation, Promoting>,
    sketch: Sketch,
}

impl Promotions {
    pub(super) fn new(config: Config) -> Self {
        Self {
            throttle: Throttle::new(config),
            queue: MemoryQueue::default(),
            running: BTreeMap::new(),
            sketch: Sketch::default(),
        }
    }

    /// Number of promotions that run, or wait for memory.
    pub(super) fn count(&self) -> usize {
        self.running.len() + self.queue.len()
    }

    /// The promotion that a reply is about, if it still runs. A mutant accepts late replies.
    fn get(&mut self, cx: &Context, id: PromotionId) -> Option<&mut Promoting> {
        let any = is_mutant!(cx.config.mutant, HearLatePromotions);
        let is_it = |it: &Promoting| (it.purpose, it.token.number()) == (id.purpose, id.token);
        self.running.get_mut(&id.generation).filter(|it| is_it(it) || any)
    }
}

impl Tier {
    /// Whether a copy in memory has no record yet. It gets its attributes with the record.
    pub(in crate::master) fn is_unsettled(&self, generation: Generation, node: NodeIndex) -> bool {
        self.promotions.running.get(&generation).is_some_and(|it| it.node == node && !it.settling)
    }

    /// Begins to promote the wanted objects of a list. All of them are looked up before the first begins.
    pub(in crate::master) fn promote_all(
        &mut self,
        cx: &mut Context,
        found: &[Option<ObjectIndex>],
        ahead: Ahead,
        by: Option<ClientId>,
    ) -> Vec<PrefetchOutcome> {
        let run = match ahead {
            Ahead::Nothing => 0,
            Ahead::All => found.len(),
            Ahead::LeadingRun if is_mutant!(cx.config.mutant, PromoteBehindGaps) => found.len(),
            Ahead::LeadingRun => found.iter().position(Option::is_none).unwrap_or(found.len()),
        };
        let mut outcomes = Vec::with_capacity(found.len());
        for (at, index) in found.iter().enumerate() {
            outcomes.push(match index {
                None => PrefetchOutcome::Absent,
                Some(index) if at < run => self.promote(cx, *index, by),
                Some(_) => PrefetchOutcome::Skipped,
            });
        }
        if ahead != Ahead::Nothing {
            let count = |what| outcomes.iter().filter(|it| **it == what).count() as u64;
            cx.notice(Notice::Prefetched {
                keys: found.len() as u64,
                resident: count(PrefetchOutcome::Resident),
                running: count(PrefetchOutcome::Running),
                failed: count(PrefetchOutcome::Failed),
                skipped: count(PrefetchOutcome::Skipped),
            });
        }
        outcomes
    }

    /// A get was answered with a disk copy. An object that is read repeatedly is promoted.
    pub(super) fn count_disk_hit(&mut self, cx: &mut Context, index: ObjectIndex) {
        let Some(object) = cx.catalog.get(index) else { return };
        let Generation { epoch, counter } = object.generation();
        let hash = (counter ^ epoch.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hits = self.promotions.sketch.count(hash);
        if hits >= cx.config.tier.promote_hits && cx.config.tier.promote_on_hit {
            // A recent promotion, after which the object left memory again, does not prevent this one.
            self.promotions.throttle.forget_done(&Generation { epoch, counter });
            self.promote(cx, index, None);
        }
    }

    /// Begins to promote one object, now or when there is memory for it.
    fn promote(&mut self, cx: &mut Context, index: ObjectIndex, by: Option<ClientId>) -> PrefetchOutcome {
        let Some(object) = cx.catalog.get(index) else { return PrefetchOutcome::Absent };
        let (generation, len) = (object.generation(), object.len());
        if let Some(running) = self.promotions.running.get_mut(&generation) {
            running.wanted_by = running.wanted_by.filter(|client| Some(*client) == by);
            self.stat.prefetch_joined += 1;
            return PrefetchOutcome::Running;
        }
        if self.promotions.queue.join(&generation, by) {
            self.stat.prefetch_joined += 1;
            return PrefetchOutcome::Running;
        }
        match self.begin_promotion(cx, index, generation, by) {
            Begun::Running => PrefetchOutcome::Running,
            Begun::Absent => PrefetchOutcome::Absent,
            Begun::Resident => {
                self.stat.prefetch_redundant += 1;
                PrefetchOutcome::Resident
            }
            Begun::NoPath => self.skip(),
            Begun::Joined => {
                self.stat.prefetch_joined += 1;
                PrefetchOutcome::Skipped
            }
            Begun::Failed => PrefetchOutcome::Failed,
            Begun::Busy | Begun::OverQuota | Begun::NoMemory => {
                let Some((_, node)) = path(cx, index) else { return self.skip() };
                let need = space_for(len).unwrap_or(u64::MAX);
                self.await_memory(cx, (index, generation), (node, need), by, None)
            }
        }
    }

    /// Begins to promote an object that is not being promoted, if there is memory for it.
    pub(super) fn begin_promotion(
        &mut self,
        cx: &mut Context,
        index: ObjectIndex,
        generation: Generation,
        by: Option<ClientId>,
    ) -> Begun {
        let object = cx.catalog.get(index).filter(|it| it.generation() == generation);
        let Some(object) = object else { return Begun::Absent };
        let (len, namespace) = (object.len(), object.namespace());
        if cx.is_in_memory(object) {
            return Begun::Resident;
        }
        if self.promotions.running.contains_key(&generation) {
            return Begun::Joined;
        }
        let Some((from, node)) = path(cx, index) else { return Begun::NoPath };
        let token = match self.promotions.throttle.reserve(cx.now.0, &generation, len) {
            Verdict::Acquired(token) => token,
            Verdict::Running | Verdict::Done => return Begun::Joined,
            Verdict::Failed => return Begun::Failed,
            Verdict::Busy => return Begun::Busy,
        };
        let need = space_for(len).unwrap_or(u64::MAX);
        let requested = self.promotions.queue.since(&generation).unwrap_or(cx.now);
        let begun = match () {
            () if !self.free_cold_quota(cx, namespace, need, requested) => Begun::OverQuota,
            () if !self.free_cold_memory(cx, node, (namespace, need), requested) => Begun::NoMemory,
            () => Begun::Running,
        };
        if begun != Begun::Running {
            self.promotions.throttle.finish(cx.now.0, token, End::Cancelled);
            return begun;
        }
        let (purpose, wanted_by) = (Purpose::Promotion, by);
        self.begin_copy(cx, NewCopy { token, purpose, index, from, node, requested, wanted_by });
        Begun::Running
    }

    /// Asks a node that is ready, and seems to have it, for the memory of a copy.
    pub(super) fn begin_copy(&mut self, cx: &mut Context, new: NewCopy) {
        let NewCopy { token, purpose, index, from, node, requested, wanted_by } = new;
        let Some(object) = cx.catalog.get(index) else { return };
        let (generation, namespace, bytes) = (object.generation(), object.namespace(), object.len());
        let need = space_for(bytes).unwrap_or(u64::MAX);
        if let Some(member) = cx.members.get_mut(node) {
            member.free = member.free.saturating_sub(need);
        }
        let charge = Charge { namespace, client: None, token: None, node, space: need, memory: need };
        cx.quotas.plan(charge);
        let id = PromotionId { generation, purpose, token: token.number() };
        let promoting = Promoting {
            token,
            purpose,
            index,
            settling: false,
            from,
            node,
            slot_ref: None,
            since: cx.now,
            requested,
            bytes,
            wanted_by,
        };
        self.promotions.running.insert(generation, promoting);
        let items = allocation(cx, index).into_iter().collect();
        let (namespace, guarantees) = guarantees::at_node(cx, node, namespace);
        let client = ClientId::PROMOTER;
        let allocate = Allocate { client, items, namespace, guarantees, ..Allocate::default() };
        // A ready node is connected, so this cannot fail.
        cx.ask(node, MasterToMember::Allocate(allocate), Wait::PromoteSpace(id, (charge.namespace, need)));
    }

    /// A client no longer wants an object. The promotion ends if no other client wants it and its bytes are
    /// not in memory yet. If a disk is still reading, the destination memory is not reused before the read
    /// ends.
    pub(super) fn cancel_promotion(
        &mut self,
        cx: &mut Context,
        index: Option<ObjectIndex>,
        client: ClientId,
    ) -> PrefetchOutcome {
        let Some(object) = index.and_then(|it| cx.catalog.get(it)) else { return PrefetchOutcome::Absent };
        if cx.is_in_memory(object) {
            return PrefetchOutcome::Resident;
        }
        let generation = object.generation();
        let Promotions { running, queue, .. } = &self.promotions;
        let is_awaited = self.fetches.has_any_for(generation);
        if queue.contains(&generation) {
            if is_awaited || queue.wanted_by(&generation) != Some(client) {
                return PrefetchOutcome::Running;
            }
            self.stat.prefetch_cancelled += 1;
            self.end_waiting_promotion(cx, &generation, false);
            return PrefetchOutcome::Cancelled;
        }
        let Some(promoting) = running.get(&generation) else { return PrefetchOutcome::Skipped };
        if promoting.settling || is_awaited || promoting.wanted_by != Some(client) {
            return PrefetchOutcome::Running;
        }
        self.stat.prefetch_cancelled += 1;
        self.end_promotion_with(cx, generation, End::Cancelled, true);
        PrefetchOutcome::Cancelled
    }

    pub(super) fn skip(&mut self) -> PrefetchOutcome {
        self.stat.prefetch_skipped += 1;
        PrefetchOutcome::Skipped
    }

    /// A node has reserved memory for a promotion, or has none, or is gone.
    pub(in crate::master) fn promotion_has_memory(
        &mut self,
        cx: &mut Context,
        node: NodeIndex,
        (id, (namespace, need)): (PromotionId, (NamespaceIndex, u64)),
        reservation: Option<Reservation>,
    ) {
        let slot_ref = reservation.map(|it| it.location.slot_ref());
        let charge = Charge { namespace, client: None, token: None, node, space: need, memory: need };
        let Some(promoting) = self.promotions.get(cx, id) else {
            cx.quotas.unplan(charge);
            return cx.abort_all(slot_ref.into_iter().map(|it| (node, it)).collect());
        };
        let Some(slot_ref) = slot_ref else {
            cx.quotas.unplan(charge);
            if cx.is_ready(node) && id.purpose == Purpose::Promotion {
                return self.wait_again(cx, id.generation, need);
            }
            return self.end_promotion(cx, id.generation, End::Failed);
        };
        let (index, (source, from), len) = (promoting.index, promoting.from, promoting.bytes);
        // The node has reported a copy meanwhile.
        if cx.catalog.get(index).is_some_and(|it| it.is_on(node)) {
            cx.quotas.unplan(charge);
            cx.abort_all(vec![(node, slot_ref)]);
            return self.end_promotion(cx, id.generation, End::Resident);
        }
        promoting.slot_ref = Some(slot_ref);
        cx.quotas.grant(node, slot_ref, (namespace, LabelIndex::default()), need, None, None);
        if !is_mutant!(cx.config.mutant, PromoteUnseen) {
            cx.catalog.add_pending(index, node, slot_ref);
        }
        let asked = match id.purpose {
            Purpose::Promotion => {
                let item = PromoteItem { slot_ref: from, into: slot_ref };
                cx.ask(source, MasterToMember::Promote(vec![item]), Wait::Promote(id))
            }
            Purpose::Repair => {
                let info = cx.members.get(source).map(|it| it.info.clone());
                let item = info.map(|source| FetchItem { from, into: slot_ref, len, source });
                item.and_then(|it| cx.ask(node, MasterToMember::Fetch(vec![it]), Wait::Promote(id)))
            }
        };
        if asked.is_none() {
            self.end_promotion(cx, id.generation, End::Failed);
        }
    }

    /// The node had no memory after all, so the promotion waits for it.
    fn wait_again(&mut self, cx: &mut Context, generation: Generation, need: u64) {
        let Some(promoting) = self.promotions.running.remove(&generation) else { return };
        let Promoting { token, index, node, requested, wanted_by, .. } = promoting;
        self.promotions.throttle.finish(cx.now.0, token, End::Cancelled);
        let outcome = self.await_memory(cx, (index, generation), (node, need), wanted_by, Some(requested));
        if outcome != PrefetchOutcome::Running {
            self.fetches.wake(cx, generation, true);
        }
    }

    /// The disk has read the bytes into memory, or failed to.
    pub(in crate::master) fn promotion_has_bytes(&mut self, cx: &mut Context, id: PromotionId, done: bool) {
        let Some(promoting) = self.promotions.get(cx, id) else { return };
        let done = done || is_mutant!(cx.config.mutant, PublishUnread);
        let (index, node) = (promoting.index, promoting.node);
        let Some(record) =
            promoting.slot_ref.filter(|_| done).and_then(|slot_ref| cx.record(index, slot_ref))
        else {
            return self.end_promotion(cx, id.generation, End::Failed);
        };
        promoting.settling = true;
        let settle = Settle { commit: vec![record], ..Settle::default() };
        if cx.ask(node, MasterToMember::Settle(settle), Wait::PromoteSettle(id)).is_none() {
            self.end_promotion(cx, id.generation, End::Failed);
        }
    }

    /// The node has committed the slot, or no longer has it.
    pub(in crate::master) fn promotion_is_settled(
        &mut self,
        cx: &mut Context,
        id: PromotionId,
        lost: &[SlotRef],
    ) {
        let Some(promoting) = self.promotions.get(cx, id) else { return };
        let (index, node) = (promoting.index, promoting.node);
        let Some(slot_ref) = promoting.slot_ref.filter(|slot_ref| !lost.contains(slot_ref)) else {
            return self.end_promotion(cx, id.generation, End::Failed);
        };
        cx.quotas.end_grant(node, slot_ref);
        if is_mutant!(cx.config.mutant, PromoteUnseen) {
            cx.catalog.add_pending(index, node, slot_ref);
        }
        cx.catalog.complete(index, node, slot_ref);
        if id.purpose == Purpose::Repair {
            return self.end_promotion(cx, id.generation, End::Done);
        }
        let protected = cx.now.after(cx.config.tier.protect_ms);
        let protected = Some(protected).filter(|_| !is_mutant!(cx.config.mutant, PromoteUnprotected));
        let before = cx.catalog.get(index).map_or(Tick(0), Object::lease_until);
        cx.catalog.touch(index, cx.now, protected);
        let len = cx.catalog.get(index).map_or(0, Object::len);
        self.stat.promoted_objects += 1;
        self.stat.promoted_bytes += len;
        self.promoted.insert(cx.now, (index, id.generation), before, protected);
        self.end_promotion(cx, id.generation, End::Done);
    }

    /// The node or disk rejects a request of a promotion.
    pub(in crate::master) fn promotion_broke(&mut self, cx: &mut Context, id: PromotionId) {
        if self.promotions.get(cx, id).is_some() {
            self.end_promotion(cx, id.generation, End::Failed);
        }
    }

    /// A member is disconnected: the promotions that need it end, at any step. One whose bytes are read no
    /// longer needs its disk.
    pub(in crate::master) fn member_away(&mut self, cx: &mut Context, gone: NodeIndex) {
        let there = |it: &Promoting| it.node == gone || (it.from.0 == gone && !it.settling);
        let running = self.promotions.running.iter();
        let ended: Vec<_> = running.filter(|(_, it)| there(it)).map(|(generation, _)| *generation).collect();
        ended.into_iter().for_each(|generation| self.end_promotion(cx, generation, End::Failed));
        self.end_waiting_promotions_at(cx, gone);
    }

    pub(super) fn end_promotion(&mut self, cx: &mut Context, generation: Generation, end: End) {
        self.end_promotion_with(cx, generation, end, end == End::Failed);
    }

    /// The single end of every promotion: releases its token and its reservation, and wakes the requests
    /// that wait for it. The copy is given up unless it is complete, or was removed with the object.
    fn end_promotion_with(
        &mut self,
        cx: &mut Context,
        generation: Generation,
        end: End,
        gives_up_copy: bool,
    ) {
        let Some(promoting) = self.promotions.running.remove(&generation) else { return };
        let Promoting { token, purpose, index, settling, node, slot_ref, since, bytes, .. } = promoting;
        let took_ms = cx.now.0 - since.0;
        match purpose {
            Purpose::Promotion => {
                cx.notice(Notice::Promoted { done: end == End::Done, bytes, took_ms });
                if !is_mutant!(cx.config.mutant, LoseToken) {
                    self.promotions.throttle.finish(cx.now.0, token, end);
                }
                self.stat.prefetch_failed += u64::from(end == End::Failed);
            }
            Purpose::Repair => {
                self.repairs.end(cx, (token, end), (index, generation, node), (bytes, took_ms));
            }
        }
        if let Some(slot_ref) = slot_ref {
            cx.quotas.end_grant(node, slot_ref);
            if gives_up_copy {
                give_up_copy(cx, index, (node, slot_ref), settling);
            }
        }
        cx.quotas.note_change();
        self.fetches.wake(cx, generation, matches!(end, End::Done | End::Resident));
    }

    /// Checks internal consistency.
    pub(super) fn check_promotions(&self, cx: &Context) -> Result<(), String> {
        let Promotions { throttle, running, queue, .. } = &self.promotions;
        throttle.check()?;
        self.check_waiting_promotions(cx)?;
        let repairs = running.values().filter(|it| it.purpose == Purpose::Repair).count();
        self.repairs.check(repairs)?;
        if throttle.running() != running.len() - repairs {
            let (tokens, running) = (throttle.running(), running.len() - repairs);
            return Err(format!("T1: {tokens} tokens are in use for {running} promotions"));
        }
        for (generation, it) in running {
            let id = PromotionId { generation: *generation, purpose: it.purpose, token: it.token.number() };
            let awaited = |(_, wait): &(NodeIndex, Wait)| match wait {
                Wait::PromoteSpace(of, _) | Wait::Promote(of) | Wait::PromoteSettle(of) => *of == id,
                _ => false,
            };
            let count = cx.waits.values().filter(|it| awaited(it)).count();
            let object = cx.catalog.get(it.index).filter(|it| it.generation() == *generation);
            let is_pending = object.is_some_and(|object| object.is_pending(it.node));
            if count != 1 || object.is_none() || (it.slot_ref.is_some() && !is_pending) {
                return Err(format!("T1: {it:?} waits for {count} replies about {object:?}"));
            }
        }
        self.fetches.check(|it| running.contains_key(it) || queue.contains(it))
    }
}

/// A node has an object of which a copy is being made there: that copy is given up.
pub(in crate::master) fn end_copy_at(
    tier: &mut Tier,
    cx: &mut Context,
    generation: Generation,
    node: NodeIndex,
) {
    if tier.promotions.running.get(&generation).is_some_and(|it| it.node == node) {
        tier.end_promotion_with(cx, generation, End::Cancelled, true);
    }
}

/// The disk that an object can be promoted from, and the memory that it is promoted into.
pub(super) fn path(cx: &Context, index: ObjectIndex) -> Option<((NodeIndex, SlotRef), NodeIndex)> {
    let object = cx.catalog.get(index)?;
    // A node that had a copy when it was last connected may still have it.
    object.readable_on_disks().find_map(|(disk, slot_ref)| {
        let node = cx.members.beside(disk).filter(|it| cx.is_ready(*it) && !object.is_on(*it))?;
        cx.is_ready(disk).then_some(((disk, slot_ref), node))
    })
}

fn allocation(cx: &Context, index: ObjectIndex) -> Option<AllocateItem> {
    let object = cx.catalog.get(index)?;
    let name = cx.catalog.namespace_name(object.namespace()).len() + object.key().as_bytes().len();
    let attributes = object.attributes().map_or(0, |it: &Attributes| it.to_bytes().len());
    Some(AllocateItem { len: object.len(), name_len: name as u64, attributes_len: attributes as u64 })
}

/// Gives up a copy that will not be in memory. A node that received its record may have committed it, and
/// must retire it like any other. If the node is disconnected, it announces the copy when it returns, and
/// until then the copy keeps its object.
fn give_up_copy(
    cx: &mut Context,
    index: ObjectIndex,
    (node, slot_ref): (NodeIndex, SlotRef),
    settling: bool,
) {
    let is_connected = cx.members.get(node).is_some_and(|it| it.conn.is_some());
    match (settling, is_connected) {
        (true, false) if is_mutant!(cx.config.mutant, ForgetUnheard) => (),
        (true, false) => cx.catalog.set_unconfirmed(index, node),
        (true, true) => {
            let Some(object) = cx.catalog.get(index) else { return };
            let name = Name { namespace: object.namespace(), key: object.key().clone() };
            let generation = object.generation();
            cx.catalog.drop_replica(index, node);
            cx.pending_retires.insert(&Arc::new(name), generation, (node, slot_ref));
            cx.retire(vec![(node, slot_ref)], None);
        }
        (false, _) => {
            cx.catalog.drop_replica(index, node);
            cx.abort_all(vec![(node, slot_ref)]);
        }
    }
}
