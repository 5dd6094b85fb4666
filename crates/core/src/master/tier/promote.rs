//! Bringing objects from a disk back into memory: because somebody will ask for them soon, because they were
//! used again, or because somebody wants it so.
//!
//! A promotion goes in four steps, each a message: room in the memory beside the disk, the bytes into it, the
//! slot that says what they are, and then the catalog. The throttle knows it from the first step to its end,
//! and every path has an end: no room, a disk that cannot read, an object that was taken away, a member that
//! is gone, a deadline.
//!
//! Who asks for what is on its way waits for the end of it, up to a budget, and is woken by it.
//!
//! **Invariant:** the copy in memory is in the catalog, as one that cannot be read yet, from before its bytes
//! are read: whatever takes the object away takes it away, too, and what comes late touches nothing newer.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tiffin_throttle::{Config, End, Throttle, Token, Verdict};

use super::sketch::Sketch;
use crate::master::{
    Effect, Master, Notice, Op, OpId, Visitor, Wait,
    catalog::{Eviction, LabelIndex, NamespaceIndex, NodeIndex, Object, ObjectIndex},
    ghosts::Name,
    members::Standing,
    refuse,
};
use crate::{
    BATCH_ITEMS_MAX, ClientId, ConnId, Generation, Hold, RequestId, Reservation, Tick,
    extent::room_for,
    marks::Marks,
    message::{
        Ahead, Allocate, AllocateItem, Prefetch, PrefetchOutcome, PromoteItem, Reason, Reply, Request,
        Resolve, Settle,
    },
    sabotage::sabotaged,
};

/// Who reserves room for what comes back from a disk: no client, and none may call itself so.
pub const PROMOTER: ClientId = ClientId(u64::MAX);
/// What is used this often while only a disk has it comes back.
const HITS: u8 = 2;

/// Which promotion of which object: one that comes after it is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::master) struct PromotionId {
    generation: Generation,
    token: u64,
}

/// One object on its way into memory.
#[derive(Debug)]
struct Promoting {
    token: Token,
    index: ObjectIndex,
    /// The memory was told what the bytes are.
    settling: bool,
    /// Where it lies on a disk.
    from: (NodeIndex, Hold),
    /// The memory beside it.
    node: NodeIndex,
    /// The room there, once there is some.
    hold: Option<Hold>,
    since: Tick,
    bytes: u64,
    /// The one client that asked for it by name, and may give it up; nobody if others want it as well.
    wanted_by: Option<ClientId>,
}

/// All that is on its way, and who waits for it.
#[derive(Debug)]
pub(in crate::master) struct Promotions {
    throttle: Throttle<Generation>,
    running: BTreeMap<Generation, Promoting>,
    waiting: BTreeMap<Generation, BTreeSet<OpId>>,
    /// Those of them who wait for nothing any more: they are answered once it is known what has come of all
    /// that is being done.
    woken: Vec<OpId>,
    /// How long the get waited that is being answered, and whether in vain.
    pub(in crate::master) waited: Option<(u64, bool)>,
    /// What was brought and nobody has read yet.
    unread: BTreeMap<ObjectIndex, Generation>,
    sketch: Sketch,
}

/// Somebody who waits for objects to come into memory.
#[derive(Debug)]
pub(in crate::master) struct Fetching {
    pub(in crate::master) conn: ConnId,
    id: RequestId,
    visitor: Arc<Visitor>,
    ask: Ask,
    awaited: BTreeSet<Generation>,
    since: Tick,
    deadline: Tick,
}

/// What it is to be answered with.
#[derive(Debug)]
enum Ask {
    Resolve(Resolve),
    /// What is known of each key, and which promotion tells the rest.
    Prefetch(Vec<(PrefetchOutcome, Option<(ObjectIndex, Generation)>)>),
}

impl Fetching {
    pub(in crate::master) fn is_of(&self, conn: ConnId, id: RequestId) -> bool {
        (self.conn, self.id) == (conn, id)
    }

    /// It waits no longer than until then.
    pub(in crate::master) fn end_at(&mut self, at: Tick) {
        self.deadline = self.deadline.min(at);
    }

    pub(in crate::master) fn deadline(&self) -> Tick {
        self.deadline
    }
}

impl Promotions {
    pub(super) fn new(config: Config) -> Self {
        Self {
            throttle: Throttle::new(config),
            running: BTreeMap::new(),
            waiting: BTreeMap::new(),
            woken: Vec::new(),
            waited: None,
            unread: BTreeMap::new(),
            sketch: Sketch::default(),
        }
    }

    pub(super) fn running_count(&self) -> usize {
        self.running.len()
    }

    /// When the next promotion has taken too long.
    pub(in crate::master) fn next_late(&self) -> Option<Tick> {
        self.throttle.next_late().map(Tick)
    }

    /// The promotion that somebody speaks of, if it still runs.
    fn get(&self, id: PromotionId, broken: bool) -> Option<&Promoting> {
        self.running.get(&id.generation).filter(|it| it.token.number() == id.token || broken)
    }

    /// Whether a copy in memory has no name of its own yet, and will be told its marks with that.
    pub(in crate::master) fn is_unsettled(&self, generation: Generation, node: NodeIndex) -> bool {
        self.running.get(&generation).is_some_and(|it| it.node == node && !it.settling)
    }
}

impl Master {
    pub(in crate::master) fn prefetch(
        &mut self,
        conn: ConnId,
        id: RequestId,
        visitor: &Arc<Visitor>,
        prefetch: &Prefetch,
    ) {
        if prefetch.keys.len() > BATCH_ITEMS_MAX {
            let reply = refuse(Reason::Invalid, "the batch is too large");
            return self.effects.push_back(Effect::Reply(conn, id, reply));
        }
        let found: Vec<_> =
            prefetch.keys.iter().map(|key| self.catalog.find(visitor.namespace, key)).collect();
        if prefetch.ahead == Ahead::Nothing {
            let outcomes = found.into_iter().map(|index| self.give_up_promotion(index, visitor.client));
            let reply = Reply::Prefetched(outcomes.collect());
            return self.effects.push_back(Effect::Reply(conn, id, reply));
        }
        let outcomes = self.bring(&found, prefetch.ahead, Some(visitor.client));
        let mut awaited = BTreeSet::new();
        let mut items = Vec::with_capacity(outcomes.len());
        for (index, outcome) in found.iter().zip(outcomes) {
            let object = index.and_then(|index| Some((index, self.catalog.get(index)?.generation())));
            let running = object.filter(|_| outcome == PrefetchOutcome::Running);
            awaited.extend(running.map(|(_, generation)| generation));
            items.push((outcome, running));
        }
        let deadline = self.now.after(prefetch.wait_ms);
        let (visitor, since) = (Arc::clone(visitor), self.now);
        let ask = Ask::Prefetch(items);
        self.fetch(Fetching { conn, id, visitor, ask, awaited, since, deadline });
    }

    /// Parks a resolve of objects that are on their way, if it may wait for them. Else gives it back.
    pub(in crate::master) fn maybe_wait_for_promotion(
        &mut self,
        conn: ConnId,
        id: RequestId,
        visitor: &Arc<Visitor>,
        resolve: Resolve,
    ) -> Option<Resolve> {
        let runs = !self.tier.promotions.running.is_empty();
        if resolve.wait_ms == 0 || !(runs || sabotaged!(self.config.sabotage, WaitForNothing)) {
            return Some(resolve);
        }
        let mut awaited = BTreeSet::new();
        for key in &resolve.keys {
            let object = self.catalog.find(visitor.namespace, key).and_then(|it| self.catalog.get(it));
            let Some(object) = object.filter(|it| !self.is_in_memory(it)) else { continue };
            let generation = object.generation();
            let is_awaited = self.tier.promotions.running.contains_key(&generation)
                || sabotaged!(self.config.sabotage, WaitForNothing);
            awaited.extend(is_awaited.then_some(generation));
        }
        if awaited.is_empty() {
            return Some(resolve);
        }
        let deadline = self.now.after(resolve.wait_ms);
        let (visitor, since) = (Arc::clone(visitor), self.now);
        let ask = Ask::Resolve(Resolve { wait_ms: 0, ..resolve });
        self.fetch(Fetching { conn, id, visitor, ask, awaited, since, deadline });
        None
    }

    /// Begins to bring objects, those of a list that are wanted. Looks at all of them before it begins any.
    pub(in crate::master) fn bring(
        &mut self,
        found: &[Option<ObjectIndex>],
        ahead: Ahead,
        by: Option<ClientId>,
    ) -> Vec<PrefetchOutcome> {
        let run = match ahead {
            Ahead::Nothing => 0,
            Ahead::All => found.len(),
            Ahead::LeadingRun if sabotaged!(self.config.sabotage, PromoteBehindGaps) => found.len(),
            Ahead::LeadingRun => found.iter().position(Option::is_none).unwrap_or(found.len()),
        };
        let mut outcomes = Vec::with_capacity(found.len());
        for (at, index) in found.iter().enumerate() {
            outcomes.push(match index {
                None => PrefetchOutcome::Absent,
                Some(index) if at < run => self.promote(*index, by),
                Some(_) => PrefetchOutcome::Skipped,
            });
        }
        if ahead != Ahead::Nothing {
            let count = |what| outcomes.iter().filter(|it| **it == what).count() as u64;
            self.effects.push_back(Effect::Notice(Notice::Prefetched {
                keys: found.len() as u64,
                resident: count(PrefetchOutcome::Resident),
                running: count(PrefetchOutcome::Running),
                failed: count(PrefetchOutcome::Failed),
                skipped: count(PrefetchOutcome::Skipped),
            }));
        }
        outcomes
    }

    /// A get was answered with a copy on a disk: what is used again comes back.
    pub(in crate::master) fn count_disk_hit(&mut self, index: ObjectIndex) {
        let Some(object) = self.catalog.get(index) else { return };
        let Generation { epoch, counter } = object.generation();
        let hash = (counter ^ epoch.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if self.tier.promotions.sketch.count(hash) >= HITS && self.tier.config.promote_on_hit {
            self.promote(index, None);
        }
    }

    /// A get was answered with a copy in memory that may have been brought there for it.
    pub(in crate::master) fn count_memory_hit(&mut self, index: ObjectIndex) {
        if !self.tier.promotions.unread.is_empty() && self.tier.promotions.unread.remove(&index).is_some() {
            self.tier.stat.promoted_used += 1;
        }
    }

    /// An object leaves memory, perhaps before anybody read what was brought there.
    pub(super) fn note_unread_leaves(&mut self, index: ObjectIndex) {
        if self.tier.promotions.unread.remove(&index).is_some() {
            self.tier.stat.promoted_unused += 1;
        }
    }

    /// Whether it can be read from memory.
    pub(in crate::master) fn is_in_memory(&self, object: &Object) -> bool {
        object.in_memory().any(|(node, _)| self.members.get(node).is_some_and(|it| it.readable()))
    }

    /// Begins to bring one object into memory.
    fn promote(&mut self, index: ObjectIndex, by: Option<ClientId>) -> PrefetchOutcome {
        let Some(object) = self.catalog.get(index) else { return PrefetchOutcome::Absent };
        let (generation, len, namespace) = (object.generation(), object.len(), object.namespace());
        if self.is_in_memory(object) {
            self.tier.stat.prefetch_redundant += 1;
            return PrefetchOutcome::Resident;
        }
        if let Some(running) = self.tier.promotions.running.get_mut(&generation) {
            running.wanted_by = running.wanted_by.filter(|client| Some(*client) == by);
            self.tier.stat.prefetch_joined += 1;
            return PrefetchOutcome::Running;
        }
        let ready = |it: NodeIndex| self.members.get(it).is_some_and(|it| it.standing == Standing::Ready);
        // What a node had when it was last heard of it may still have.
        let way = object.shelved().find_map(|(disk, hold)| {
            let node = self.members.beside(disk).filter(|it| ready(*it) && !object.is_on(*it))?;
            ready(disk).then_some(((disk, hold), node))
        });
        let Some((from, node)) = way else { return self.skip() };
        let token = match self.tier.promotions.throttle.reserve(self.now.0, &generation, len) {
            Verdict::Acquired(token) => token,
            Verdict::Running | Verdict::Done => {
                self.tier.stat.prefetch_joined += 1;
                return PrefetchOutcome::Skipped;
            }
            Verdict::Failed => return PrefetchOutcome::Failed,
            Verdict::Cooldown | Verdict::Busy => return self.skip(),
        };
        let need = room_for(len).unwrap_or(u64::MAX);
        // That one namespace has had its share says nothing about the others.
        let affordable = self.quota_left(namespace) >= need;
        if !affordable || !self.make_cold_room(node, need, index) {
            if affordable {
                self.tier.promotions.throttle.press(self.now.0);
            }
            self.tier.promotions.throttle.finish(self.now.0, token, End::Cancelled);
            return self.skip();
        }
        if let Some(member) = self.members.get_mut(node) {
            member.free = member.free.saturating_sub(need);
        }
        self.room.plan(namespace, need);
        let id = PromotionId { generation, token: token.number() };
        let since = self.now;
        let (settling, hold, bytes, wanted_by) = (false, None, len, by);
        let promoting = Promoting { token, index, settling, from, node, hold, since, bytes, wanted_by };
        self.tier.promotions.running.insert(generation, promoting);
        let allocate = Allocate { client: PROMOTER, items: self.allocation(index).into_iter().collect() };
        // A ready node is connected, so this cannot fail.
        self.ask(node, Request::Allocate(allocate), Wait::PromoteRoom(id, (namespace, need)));
        PrefetchOutcome::Running
    }

    /// A client does not want an object any more. It stops where nobody else wants it and its bytes are not
    /// there yet; what a disk still reads goes into room that stays aside until it is done.
    fn give_up_promotion(&mut self, index: Option<ObjectIndex>, client: ClientId) -> PrefetchOutcome {
        let Some(object) = index.and_then(|it| self.catalog.get(it)) else { return PrefetchOutcome::Absent };
        if self.is_in_memory(object) {
            return PrefetchOutcome::Resident;
        }
        let generation = object.generation();
        let Promotions { running, waiting, .. } = &self.tier.promotions;
        let Some(promoting) = running.get(&generation) else { return PrefetchOutcome::Skipped };
        let is_awaited = waiting.get(&generation).is_some_and(|it| !it.is_empty());
        if promoting.settling || is_awaited || promoting.wanted_by != Some(client) {
            return PrefetchOutcome::Running;
        }
        self.tier.stat.prefetch_cancelled += 1;
        self.end_promotion_with(generation, End::Cancelled, true);
        PrefetchOutcome::Cancelled
    }

    fn skip(&mut self) -> PrefetchOutcome {
        self.tier.stat.prefetch_skipped += 1;
        PrefetchOutcome::Skipped
    }

    fn allocation(&self, index: ObjectIndex) -> Option<AllocateItem> {
        let object = self.catalog.get(index)?;
        let name = self.catalog.namespace_name(object.namespace()).len() + object.key().as_bytes().len();
        let marks = object.marks().map_or(0, |it: &Marks| it.to_bytes().len());
        Some(AllocateItem { len: object.len(), name_len: name as u64, marks_len: marks as u64 })
    }

    /// Makes room for what comes back, out of what is on a disk too and was not used for a while: what comes
    /// back drives out nothing that is hotter.
    fn make_cold_room(&mut self, node: NodeIndex, need: u64, for_it: ObjectIndex) -> bool {
        let Some(key) = self.catalog.get(for_it).map(|it| it.key().clone()) else { return false };
        let mut free = self.members.get(node).map_or(0, |it| it.free);
        let rules = Eviction { shelved_only: true, ..Eviction::default() };
        while free < need {
            let victim = self.catalog.next_victim(node, self.now, rules);
            let victim = victim.and_then(|index| Some((index, self.catalog.get(index)?)));
            let Some((victim, object)) = victim else { break };
            let protect_ms = self.tier.config.protect_ms;
            let hot = object.touched().after(protect_ms) > self.now;
            if hot && !sabotaged!(self.config.sabotage, PromoteOverHot) {
                break;
            }
            let room = room_for(object.len()).unwrap_or(0);
            free += room;
            self.evict(victim, Some(node), ("prefetch", &key));
            self.tier.spend(node, room);
        }
        if let Some(member) = self.members.get_mut(node) {
            member.free = free;
        }
        need <= free
    }

    /// There is room for what comes back, or not: then memory is short, unless its node is gone.
    pub(in crate::master) fn promotion_has_room(
        &mut self,
        node: NodeIndex,
        id: PromotionId,
        (namespace, need): (NamespaceIndex, u64),
        room: Option<Reservation>,
    ) {
        let Some(promoting) = self.tier.promotions.get(id, self.hears_the_late()) else {
            self.room.unplan(namespace, need);
            return self.abort_all(room.into_iter().map(|it| (node, it.location.hold())).collect());
        };
        let Some(reservation) = room else {
            self.room.unplan(namespace, need);
            if self.members.get(node).is_some_and(|it| it.standing == Standing::Ready) {
                self.tier.promotions.throttle.press(self.now.0);
            }
            return self.end_promotion(id.generation, End::Failed);
        };
        let hold = reservation.location.hold();
        let (index, (disk, from)) = (promoting.index, promoting.from);
        if let Some(promoting) = self.tier.promotions.running.get_mut(&id.generation) {
            promoting.hold = Some(hold);
        }
        self.room.grant(node, hold, (namespace, LabelIndex::default()), need, None, None);
        if !sabotaged!(self.config.sabotage, PromoteUnseen) {
            self.catalog.add_pending(index, node, hold);
        }
        let item = PromoteItem { hold: from, into: hold };
        if self.ask(disk, Request::Promote(vec![item]), Wait::Promote(id)).is_none() {
            self.end_promotion(id.generation, End::Failed);
        }
    }

    /// The bytes are in memory, or not.
    pub(in crate::master) fn promotion_has_bytes(&mut self, id: PromotionId, done: bool) {
        let Some(promoting) = self.tier.promotions.get(id, self.hears_the_late()) else { return };
        let done = done || sabotaged!(self.config.sabotage, PublishUnread);
        let (index, node) = (promoting.index, promoting.node);
        let record = promoting.hold.filter(|_| done).and_then(|hold| self.record(index, hold));
        let Some(record) = record else { return self.end_promotion(id.generation, End::Failed) };
        if let Some(promoting) = self.tier.promotions.running.get_mut(&id.generation) {
            promoting.settling = true;
        }
        let settle = Settle { commit: vec![record], abort: Vec::new() };
        if self.ask(node, Request::Settle(settle), Wait::PromoteSettle(id)).is_none() {
            self.end_promotion(id.generation, End::Failed);
        }
    }

    /// The slot says what it holds, or the node had no such slot any more.
    pub(in crate::master) fn promotion_is_settled(&mut self, id: PromotionId, lost: &[Hold]) {
        let Some(promoting) = self.tier.promotions.get(id, self.hears_the_late()) else { return };
        let (index, node) = (promoting.index, promoting.node);
        let Some(hold) = promoting.hold.filter(|hold| !lost.contains(hold)) else {
            return self.end_promotion(id.generation, End::Failed);
        };
        self.room.end_grant(node, hold);
        if sabotaged!(self.config.sabotage, PromoteUnseen) {
            self.catalog.add_pending(index, node, hold);
        }
        self.catalog.complete(index, node, hold);
        let protected = self.now.after(self.tier.config.protect_ms);
        let protected = Some(protected).filter(|_| !sabotaged!(self.config.sabotage, PromoteUnprotected));
        self.catalog.touch(index, self.now, protected);
        let len = self.catalog.get(index).map_or(0, Object::len);
        self.tier.stat.promoted_objects += 1;
        self.tier.stat.promoted_bytes += len;
        self.tier.promotions.unread.insert(index, id.generation);
        self.end_promotion(id.generation, End::Done);
    }

    /// The node or disk refuses what it must do.
    pub(in crate::master) fn promotion_broke(&mut self, id: PromotionId) {
        if self.tier.promotions.get(id, self.hears_the_late()).is_some() {
            self.end_promotion(id.generation, End::Failed);
        }
    }

    /// The memory or the disk of promotions is gone for now: they end, whatever step they were at, unless
    /// they need the disk no more.
    pub(in crate::master) fn end_promotions_at(&mut self, gone: NodeIndex) {
        let there = |it: &Promoting| it.node == gone || (it.from.0 == gone && !it.settling);
        let running = self.tier.promotions.running.iter();
        let ended: Vec<_> = running.filter(|(_, it)| there(it)).map(|(generation, _)| *generation).collect();
        ended.into_iter().for_each(|generation| self.end_promotion(generation, End::Failed));
    }

    /// Only when sabotaged: what comes late is taken for what is awaited now.
    fn hears_the_late(&self) -> bool {
        sabotaged!(self.config.sabotage, HearLatePromotions)
    }

    /// The object was taken away, and the copy that was being written with it.
    pub(in crate::master) fn promotion_is_moot(&mut self, index: ObjectIndex, generation: Generation) {
        self.note_unread_leaves(index);
        self.end_promotion(generation, End::Cancelled);
    }

    /// Ends promotions that have taken too long. What a disk still does for them goes into room that stays
    /// aside until it is done.
    pub(in crate::master) fn end_late_promotions(&mut self) {
        for generation in self.tier.promotions.throttle.take_late(self.now.0) {
            self.end_promotion(generation, End::Failed);
        }
    }

    fn end_promotion(&mut self, generation: Generation, end: End) {
        self.end_promotion_with(generation, end, end == End::Failed);
    }

    /// The one end of every promotion: its token, its room, and those who wait for it. The copy is given up
    /// unless it is there, or whatever took the object away has taken it, too.
    fn end_promotion_with(&mut self, generation: Generation, end: End, gives_up_copy: bool) {
        let Some(promoting) = self.tier.promotions.running.remove(&generation) else { return };
        let Promoting { token, index, settling, node, hold, since, bytes, .. } = promoting;
        let took_ms = self.now.0 - since.0;
        let done = end == End::Done;
        self.effects.push_back(Effect::Notice(Notice::Promoted { done, bytes, took_ms }));
        if !sabotaged!(self.config.sabotage, LoseToken) {
            self.tier.promotions.throttle.finish(self.now.0, token, end);
        }
        if end == End::Failed {
            self.tier.stat.prefetch_failed += 1;
        }
        if let Some(hold) = hold {
            self.room.end_grant(node, hold);
            if gives_up_copy {
                self.give_up_copy(index, (node, hold), settling);
            }
        }
        self.room.note_change();
        let waiting = self.tier.promotions.waiting.remove(&generation).unwrap_or_default();
        if sabotaged!(self.config.sabotage, WakeNobody) {
            return;
        }
        for op in waiting {
            if let Some(Op::Fetch(fetching)) = self.ops.get_mut(&op) {
                fetching.awaited.remove(&generation);
                if fetching.awaited.is_empty() {
                    self.tier.promotions.woken.push(op);
                }
            }
        }
    }

    /// A copy that was to be in memory will not be. If its node may have heard what the bytes are it may
    /// have the copy, and must take it away like any other; if it is away, it tells when it is back.
    fn give_up_copy(&mut self, index: ObjectIndex, (node, hold): (NodeIndex, Hold), settling: bool) {
        let is_there = self.members.get(node).is_some_and(|it| it.conn.is_some());
        match (settling, is_there) {
            (true, false) => (),
            (true, true) => {
                let Some(object) = self.catalog.get(index) else { return };
                let name = Name { namespace: object.namespace(), key: object.key().clone() };
                self.catalog.drop_replica(index, node);
                self.ghosts.insert(&Arc::new(name), node, hold);
                self.retire(vec![(node, hold)], None);
            }
            (false, _) => {
                self.catalog.drop_replica(index, node);
                self.abort_all(vec![(node, hold)]);
            }
        }
    }

    /// Answers those who wait for nothing any more.
    pub(in crate::master) fn answer_the_woken(&mut self) {
        while let Some(op) = self.tier.promotions.woken.pop() {
            self.end_fetch(op);
        }
    }

    /// What is wrong with the books, if anything is.
    pub(super) fn check_promotions(&self) -> Result<(), String> {
        let Promotions { throttle, running, waiting, .. } = &self.tier.promotions;
        throttle.check()?;
        if throttle.running() != running.len() {
            let (tokens, running) = (throttle.running(), running.len());
            return Err(format!("T1: {tokens} tokens are out for {running} promotions"));
        }
        for (generation, it) in running {
            let id = PromotionId { generation: *generation, token: it.token.number() };
            let awaited = |(_, wait): &(NodeIndex, Wait)| match wait {
                Wait::PromoteRoom(of, _) | Wait::Promote(of) | Wait::PromoteSettle(of) => *of == id,
                _ => false,
            };
            let count = self.waits.values().filter(|it| awaited(it)).count();
            let object = self.catalog.get(it.index).filter(|it| it.generation() == *generation);
            let is_pending = object.is_some_and(|object| object.is_pending(it.node));
            if count != 1 || object.is_none() || (it.hold.is_some() && !is_pending) {
                return Err(format!("T1: {it:?} waits for {count} answers, for {object:?}"));
            }
        }
        let fetches = self.ops.values().filter_map(|op| match op {
            Op::Fetch(fetching) => Some(fetching),
            _ => None,
        });
        for fetching in fetches {
            let nothing = fetching.awaited.iter().find(|it| !running.contains_key(it));
            if fetching.awaited.is_empty() || nothing.is_some() {
                return Err(format!("T6: {fetching:?} waits for what is not on its way"));
            }
        }
        match waiting.keys().find(|it| !running.contains_key(it)) {
            Some(generation) => Err(format!("T3: nobody will wake those who wait for {generation}")),
            None => Ok(()),
        }
    }

    fn fetch(&mut self, fetching: Fetching) {
        let op = self.next_op();
        for generation in &fetching.awaited {
            self.tier.promotions.waiting.entry(*generation).or_default().insert(op);
        }
        let at_once = fetching.awaited.is_empty() || fetching.deadline <= self.now;
        self.deadlines.list(fetching.deadline, op);
        self.ops.insert(op, Op::Fetch(Box::new(fetching)));
        if at_once {
            self.end_fetch(op);
        }
    }

    /// Answers who has waited for objects to come into memory.
    pub(in crate::master) fn end_fetch(&mut self, op: OpId) {
        let Some(Op::Fetch(fetching)) = self.ops.remove(&op) else { return };
        let Fetching { conn, id, visitor, ask, awaited, since, deadline } = *fetching;
        self.deadlines.strike(deadline, op);
        for generation in &awaited {
            if let Some(waiting) = self.tier.promotions.waiting.get_mut(generation) {
                waiting.remove(&op);
            }
        }
        if !self.parties.contains_key(&conn) {
            return;
        }
        let reply = match ask {
            Ask::Resolve(resolve) => {
                let in_time = awaited.is_empty();
                *(if in_time { &mut self.tier.stat.gets_waited } else { &mut self.tier.stat.gets_late }) += 1;
                let waited_ms = self.now.0 - since.0;
                self.tier.stat.waited_ms += waited_ms;
                self.tier.promotions.waited = Some((waited_ms, !in_time));
                let reply = self.resolve(&visitor, &resolve);
                self.tier.promotions.waited = None;
                reply
            }
            Ask::Prefetch(items) => {
                let outcome = |(outcome, running): (PrefetchOutcome, Option<(ObjectIndex, Generation)>)| {
                    running.map_or(outcome, |it| self.outcome_of(it, &awaited))
                };
                Reply::Prefetched(items.into_iter().map(outcome).collect())
            }
        };
        self.effects.push_back(Effect::Reply(conn, id, reply));
    }

    fn outcome_of(
        &self,
        (index, generation): (ObjectIndex, Generation),
        still_running: &BTreeSet<Generation>,
    ) -> PrefetchOutcome {
        let object = self.catalog.get(index).filter(|it| it.generation() == generation);
        match object {
            None => PrefetchOutcome::Absent,
            Some(object) if self.is_in_memory(object) => PrefetchOutcome::Done,
            Some(_) if still_running.contains(&generation) => PrefetchOutcome::Running,
            Some(_) => PrefetchOutcome::Failed,
        }
    }
}
