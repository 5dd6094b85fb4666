//! Finding room for new objects.
//!
//! A reservation goes in rounds. Each round plans, for every item that still lacks a copy, a node with room;
//! where no node has any, it evicts just enough on the best one. The nodes allocate; what they refuse is
//! planned again. A node that refused an item twice is not asked for it again, so rounds end.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    Effect, Master, Op, OpId, Visitor, Wait,
    catalog::{Eviction, NodeIndex, ObjectIndex},
    members::Standing,
    placement::{Wish, rank},
    refuse,
    room::{Line, Terms},
    stream::StreamIndex,
};
use crate::{
    BATCH_ITEMS_MAX, ConnId, Hold, Key, REPLICAS_MAX, RequestId, Reservation, SegmentId, Tick,
    extent::room_for,
    marks::Marks,
    message::{
        Allocate, AllocateItem, Allocated, OnExists, Reason, Reply, Request, Reserve, ReserveItem,
        ReserveOutcome, Reserved, Settle, Usage,
    },
    sabotage::sabotaged,
};

/// Where memory is short, a namespace has at most this part of a node reserved if it is to have some at hand.
const SPARE_SHARE: u64 = 16;
/// What room at hand is called where it is told what something made way for.
const SPARE_NAME: &[u8] = b"(room at hand)";
/// How often a node may refuse an item before it is not asked again.
const REFUSALS_MAX: u32 = 2;

/// A reservation under way.
#[derive(Debug)]
pub(super) struct Reserving {
    conn: ConnId,
    id: RequestId,
    visitor: Arc<Visitor>,
    avoid: Vec<SegmentId>,
    /// How many items stand for one that was asked for, for objects that may come; see [`Reserve::spare`].
    spare: usize,
    items: Vec<Item>,
    /// Nodes that have not answered yet in this round.
    outstanding: u32,
    /// Until when it may wait for room.
    deadline: Tick,
    /// It stands in its line.
    queued: bool,
    line: Line,
}

#[derive(Debug)]
struct Item {
    request: ReserveItem,
    got: Vec<(NodeIndex, Reservation)>,
    refusals: BTreeMap<NodeIndex, u32>,
    done: Option<ReserveOutcome>,
    /// The stream that counts it, as long as it has no room.
    counted: Option<StreamIndex>,
}

impl Reserving {
    pub(super) fn is_of(&self, conn: ConnId, id: RequestId) -> bool {
        (self.conn, self.id) == (conn, id)
    }

    /// It waits no longer than until then.
    pub(super) fn end_at(&mut self, at: Tick) {
        self.deadline = self.deadline.min(at);
    }

    /// Whether it waits for room on behalf of that connection.
    pub(super) fn is_parked_for(&self, conn: ConnId) -> bool {
        self.conn == conn && self.is_parked()
    }

    fn is_parked(&self) -> bool {
        self.queued && self.outstanding == 0
    }
}

impl Master {
    pub(super) fn reserve(&mut self, conn: ConnId, id: RequestId, visitor: &Arc<Visitor>, reserve: Reserve) {
        let spare = reserve.spare as usize;
        if reserve.items.len().saturating_mul(spare.max(1)) > BATCH_ITEMS_MAX {
            let reply = refuse(Reason::Invalid, "the batch is too large");
            return self.effects.push_back(Effect::Reply(conn, id, reply));
        }
        let stream = reserve.items.first().map(|it| it.options.stream.clone()).unwrap_or_default();
        if reserve.items.iter().any(|it| it.options.stream != stream) {
            let reply = refuse(Reason::Invalid, "the batch is for more than one stream");
            return self.effects.push_back(Effect::Reply(conn, id, reply));
        }
        let look = |request| self.first_look(visitor, request, spare > 0);
        let items = reserve.items.into_iter().flat_map(|it| std::iter::repeat_n(it, spare.max(1)));
        let items = items.map(look).collect();
        let mut reserving = Reserving {
            conn,
            id,
            visitor: Arc::clone(visitor),
            avoid: reserve.avoid,
            spare,
            items,
            outstanding: 0,
            deadline: self.now.after(if spare > 0 { 0 } else { reserve.wait_ms }),
            queued: false,
            line: (visitor.namespace, stream),
        };
        let op = self.next_op();
        let overtakes = sabotaged!(self.config.sabotage, OvertakeTheWaiting);
        if self.room.has_line(&reserving.line) && !overtakes {
            // Who came first is served first: room that is found now belongs to those who wait.
            let full = self.total_usage();
            for item in reserving.items.iter_mut().filter(|it| it.done.is_none()) {
                item.done = Some(ReserveOutcome::Full(full));
            }
            return self.end_reserve(op, reserving);
        }
        self.go_on(op, reserving);
    }

    /// Room may have been found for the first in a line.
    pub(super) fn try_again(&mut self, op: OpId) {
        match self.ops.remove(&op) {
            Some(Op::Reserve(mut reserving)) if reserving.is_parked() => {
                for item in &mut reserving.items {
                    if is_short(item) {
                        item.done = None;
                        item.refusals.clear();
                    }
                }
                self.go_on(op, reserving);
            }
            Some(other) => _ = self.ops.insert(op, other),
            None => (),
        }
    }

    /// Answers a put that has waited for room long enough.
    pub(super) fn end_parked(&mut self, op: OpId) {
        let is_late = |it: &Reserving| it.is_parked() && it.deadline <= self.now;
        if !matches!(self.ops.get(&op), Some(Op::Reserve(it)) if is_late(it)) {
            return;
        }
        // A disk that cannot keep up costs nobody a put: what may be evicted is looked at once more. Who is
        // not the first in its line has no claim on that.
        if self.members.disks().next().is_some() && self.room.is_first(op) {
            self.try_again(op);
        }
        match self.ops.remove(&op) {
            Some(Op::Reserve(reserving)) if reserving.is_parked() => self.end_reserve(op, reserving),
            Some(other) => _ = self.ops.insert(op, other),
            None => (),
        }
    }

    pub(super) fn allocated(&mut self, node: NodeIndex, op: OpId, items: &[usize], allocated: Allocated) {
        // Without waking anybody: a node that refuses has no more room than before, whatever it reports.
        if let Some(member) = self.members.get_mut(node) {
            member.report(self.now, allocated.usage);
        }
        let mut answers = allocated.items.into_iter();
        self.answered(node, op, items, || answers.next().flatten());
    }

    pub(super) fn not_allocated(&mut self, node: NodeIndex, op: OpId, items: &[usize]) {
        self.answered(node, op, items, || None);
    }

    fn answered(
        &mut self,
        node: NodeIndex,
        op: OpId,
        items: &[usize],
        mut next: impl FnMut() -> Option<Reservation>,
    ) {
        let Some(Op::Reserve(mut reserving)) = self.ops.remove(&op) else { return };
        reserving.outstanding -= 1;
        let namespace_len = self.catalog.namespace_name(reserving.visitor.namespace).len();
        for &index in items {
            let Some(item) = reserving.items.get_mut(index) else { continue };
            let stream = item.counted.take().map(|it| (it, in_stream(&item.request)));
            let room = charge(&item.request);
            let namespace = reserving.visitor.namespace;
            match next() {
                Some(reservation) => {
                    let who = reserving.visitor.index;
                    let name_len = (namespace_len + item.request.key.as_bytes().len()) as u64;
                    let terms = Terms { client: reserving.visitor.client, len: item.request.len, name_len };
                    let hold = reservation.location.hold();
                    self.room.grant(node, hold, (namespace, who), room, Some(terms), stream);
                    item.got.push((node, reservation));
                }
                None => {
                    self.room.unplan(namespace, room);
                    item.counted = stream.map(|it| it.0);
                    *item.refusals.entry(node).or_default() += 1;
                }
            }
        }
        if reserving.outstanding > 0 {
            self.ops.insert(op, Op::Reserve(reserving));
        } else {
            self.go_on(op, reserving);
        }
    }

    /// What can be said of an item without asking any node.
    fn first_look(&self, visitor: &Visitor, request: ReserveItem, spare: bool) -> Item {
        let replicas = request.options.replicas;
        let done = if replicas == 0 || replicas > REPLICAS_MAX {
            Some(ReserveOutcome::Invalid(format!("{replicas} replicas: it must be 1 to {REPLICAS_MAX}")))
        } else if let Some(problem) = Marks::problem(&request.options) {
            Some(ReserveOutcome::Invalid(problem))
        } else if spare && request.options.elsewhere > 0 {
            Some(ReserveOutcome::Invalid("nothing of what may come lies elsewhere".to_owned()))
        } else if let Some(why) = self.is_over(visitor.namespace, &request.options) {
            Some(ReserveOutcome::Invalid(why))
        } else if let Some(it) = self.used_up(visitor.namespace, &request.options, &request.key) {
            Some(ReserveOutcome::Exists(it))
        } else if request.options.on_exists == OnExists::Keep && !spare {
            let existing = self.catalog.find(visitor.namespace, &request.key);
            let existing = existing.and_then(|index| self.catalog.get(index));
            existing.map(|it| ReserveOutcome::Exists(it.generation()))
        } else {
            None
        };
        Item { request, got: Vec::new(), refusals: BTreeMap::new(), done, counted: None }
    }

    /// Plans the next round, or ends.
    fn go_on(&mut self, op: OpId, mut reserving: Reserving) {
        let mut plan: BTreeMap<NodeIndex, Vec<usize>> = BTreeMap::new();
        if reserving.spare > 0 {
            self.plan_spares(&mut reserving, &mut plan);
        } else {
            for index in 0..reserving.items.len() {
                for node in self.plan_item(&mut reserving, index) {
                    plan.entry(node).or_default().push(index);
                }
            }
        }
        if plan.is_empty() {
            return self.end_reserve(op, reserving);
        }
        let name_len = self.catalog.namespace_name(reserving.visitor.namespace).len();
        for (node, indexes) in plan {
            let items = indexes.iter().filter_map(|&index| {
                let request = &reserving.items.get(index)?.request;
                let name_len = (name_len + request.key.as_bytes().len()) as u64;
                let marks_len = Marks::of(&request.options).to_bytes().len() as u64;
                Some(AllocateItem { len: request.len, name_len, marks_len })
            });
            let allocate = Allocate { client: reserving.visitor.client, items: items.collect() };
            // A candidate is connected, so this cannot fail.
            let asked = self.ask(node, Request::Allocate(allocate), Wait::Allocate(op, indexes));
            reserving.outstanding += u32::from(asked.is_some());
        }
        self.ops.insert(op, Op::Reserve(reserving));
    }

    /// The nodes to ask for one item in this round; none if it is done.
    fn plan_item(&mut self, reserving: &mut Reserving, index: usize) -> Vec<NodeIndex> {
        let Some(item) = reserving.items.get(index).filter(|it| it.done.is_none()) else { return Vec::new() };
        let wanted = (item.request.options.replicas as usize).saturating_sub(item.got.len());
        if wanted == 0 {
            return self.finish(reserving, index, ReserveOutcome::Full(Usage::default()));
        }
        let need = room_for(item.request.len).unwrap_or(u64::MAX);
        let candidates = self.candidates(reserving, item, need);
        let namespace = reserving.visitor.namespace;
        let first = item.got.is_empty();
        if first && item.counted.is_none() && !item.request.options.stream.is_empty() {
            let weight = in_stream(&item.request);
            let counted = match self.admit(&reserving.visitor, &item.request.options, weight) {
                Ok(counted) => counted,
                Err(backlog) => return self.finish(reserving, index, ReserveOutcome::Behind(backlog)),
            };
            if let Some(item) = reserving.items.get_mut(index) {
                item.counted = counted;
            }
        }
        let Some(item) = reserving.items.get(index) else { return Vec::new() };
        let whose = (reserving.visitor.label.as_str(), &item.request.key);
        let may_wait = self.now < reserving.deadline;
        let charge = charge(&item.request);
        if first && let Err(quota) = self.within_quota(namespace, charge, whose, may_wait) {
            return self.finish(reserving, index, ReserveOutcome::OverQuota(quota));
        }
        let affordable = self.quota_left(namespace).checked_div(charge).unwrap_or(u64::MAX);
        let wanted = wanted.min(usize::try_from(affordable).unwrap_or(usize::MAX));
        let mut chosen = Vec::new();
        for &node in &candidates {
            if chosen.len() < wanted && self.members.get(node).is_some_and(|it| need <= it.free) {
                chosen.push(node);
            }
        }
        // Fewer copies than wanted are better than evicting for more, and no copy is no object.
        if chosen.is_empty() && first {
            chosen.extend(self.make_room_somewhere(&candidates, need, whose, may_wait));
        }
        for &node in &chosen {
            if let Some(member) = self.members.get_mut(node) {
                member.free = member.free.saturating_sub(need);
            }
            self.room.plan(namespace, charge);
        }
        if chosen.is_empty() {
            let full = ReserveOutcome::Full(self.total_usage());
            return self.finish(reserving, index, full);
        }
        chosen
    }

    /// Plans room to have at hand: one round, because nobody counts on it.
    fn plan_spares(&mut self, reserving: &mut Reserving, plan: &mut BTreeMap<NodeIndex, Vec<usize>>) {
        let mut candidates = None;
        for index in 0..reserving.items.len() {
            let Some(item) = reserving.items.get(index).filter(|it| it.done.is_none()) else { continue };
            let need = room_for(item.request.len).unwrap_or(u64::MAX);
            let is_first_round = item.got.is_empty() && item.refusals.is_empty();
            let candidates = candidates.get_or_insert_with(|| self.candidates(reserving, item, 0));
            let node =
                is_first_round.then(|| self.plan_spare(&reserving.visitor, candidates, need)).flatten();
            match node {
                Some(node) => plan.entry(node).or_default().push(index),
                None => _ = self.finish(reserving, index, ReserveOutcome::Full(Usage::default())),
            }
        }
    }

    /// The node to ask for room to have at hand, where nobody counts: one that is less than half full, or
    /// else one with something to evict, which the puts to come would evict anyway. Of that a namespace
    /// has little, and nothing while anybody waits.
    fn plan_spare(&mut self, visitor: &Visitor, candidates: &[NodeIndex], need: u64) -> Option<NodeIndex> {
        let namespace = visitor.namespace;
        let is_rationed = self.room.policy(namespace).is_some_and(|it| it.quota.is_some());
        let has_plenty = |node: &&NodeIndex| {
            let member = self.members.get(**node).filter(|_| !is_rationed);
            member.is_some_and(|it| need <= it.free && it.free.saturating_sub(need) >= it.usage.capacity / 2)
        };
        let node = match candidates.iter().find(has_plenty) {
            Some(&node) => node,
            None if is_rationed || self.room.anybody_waits() => return None,
            None => {
                let whose = (visitor.label.as_str(), &Key(Arc::from(SPARE_NAME)));
                let has = self.room.granted(namespace).saturating_add(need);
                let is_little = |node: &NodeIndex| {
                    self.members.get(*node).is_some_and(|it| has <= it.usage.capacity / SPARE_SHARE)
                };
                let little: Vec<_> = candidates.iter().copied().filter(is_little).collect();
                self.make_room_somewhere(&little, need, whose, true)?
            }
        };
        if let Some(member) = self.members.get_mut(node) {
            member.free = member.free.saturating_sub(need);
        }
        self.room.plan(namespace, need);
        Some(node)
    }

    /// Nodes that might take the item, best first.
    fn candidates(&self, reserving: &Reserving, item: &Item, need: u64) -> Vec<NodeIndex> {
        let wish = Wish {
            preferred: &item.request.options.preferred,
            home: reserving.visitor.home,
            host: &reserving.visitor.host,
        };
        let possible = self.members.iter().filter(|(node, member)| {
            member.standing == Standing::Ready
                && !member.is_disk()
                && need <= member.usage.capacity
                && !reserving.avoid.contains(&member.info.segment)
                && !item.got.iter().any(|(has, _)| has == node)
                && item.refusals.get(node).is_none_or(|&count| count < REFUSALS_MAX)
        });
        rank(possible, wish)
    }

    /// Makes room on one of these nodes: first of all with what disks have, too. A put that may wait waits
    /// for a disk, so that nothing is lost.
    fn make_room_somewhere(
        &mut self,
        candidates: &[NodeIndex],
        need: u64,
        whose: (&str, &Key),
        may_wait: bool,
    ) -> Option<NodeIndex> {
        let lossless = candidates.iter().copied().find(|&node| self.make_room(node, need, whose, true));
        if lossless.is_some() {
            return lossless;
        }
        let waits = may_wait && !sabotaged!(self.config.sabotage, EvictUnshelved);
        if waits && candidates.iter().any(|&node| self.is_being_shelved(node, need)) {
            return None;
        }
        candidates.iter().copied().find(|&node| self.make_room(node, need, whose, false))
    }

    /// Evicts on one node until it has room. What was evicted before it turned out not to suffice stays
    /// evicted: it was unused for longest, and the next put needs it anyway.
    fn make_room(&mut self, node: NodeIndex, need: u64, whose: (&str, &Key), shelved_only: bool) -> bool {
        let mut free = self.members.get(node).map_or(0, |it| it.free);
        while free < need {
            let Some(victim) = self.next_victim(node, shelved_only) else { break };
            free += self.catalog.get(victim).and_then(|it| room_for(it.len())).unwrap_or(0);
            self.evict(victim, Some(node), whose);
        }
        if let Some(member) = self.members.get_mut(node) {
            member.free = free;
        }
        need <= free
    }

    /// The next object that may leave a node.
    fn next_victim(&self, node: NodeIndex, shelved_only: bool) -> Option<ObjectIndex> {
        let samples_too = sabotaged!(self.config.sabotage, EvictSamples);
        let rules = Eviction {
            soft_pinned_too: self.config.evict_soft_pinned,
            shelved_only,
            even_pinned: samples_too || sabotaged!(self.config.sabotage, EvictPinned),
        };
        let now = if sabotaged!(self.config.sabotage, EvictLeased) { Tick(u64::MAX) } else { self.now };
        let victim = self.catalog.next_victim(node, now, rules)?;
        let pinned = self.catalog.get(victim).is_some_and(|it| it.hard_pin());
        (!(samples_too && pinned)).then_some(victim)
    }

    /// Answers, or stands in line if there is no room yet and time to wait for it.
    pub(super) fn end_reserve(&mut self, op: OpId, mut reserving: Reserving) {
        let is_there = self.parties.contains_key(&reserving.conn);
        if is_there && self.now < reserving.deadline && reserving.items.iter().any(is_short) {
            if !reserving.queued {
                reserving.queued = true;
                self.room.queue(reserving.line.clone(), op);
            }
            self.deadlines.list(reserving.deadline, op);
            self.ops.insert(op, Op::Reserve(reserving));
            return;
        }
        if reserving.queued {
            self.deadlines.strike(reserving.deadline, op);
            self.room.leave_line(&reserving.line, op);
        }
        let mut nodes = BTreeSet::new();
        let full = || ReserveOutcome::Full(Usage::default());
        let mut outcomes: Vec<_> = reserving.items.drain(..).map(|it| it.done.unwrap_or_else(full)).collect();
        if reserving.spare > 0 {
            outcomes = outcomes.chunks(reserving.spare).map(together).collect();
        }
        let rooms = outcomes.iter().filter_map(|it| match it {
            ReserveOutcome::Room(reservations) => Some(reservations),
            _ => None,
        });
        let locations: Vec<_> = rooms.flatten().map(|it| it.location).collect();
        if !is_there {
            // The client is gone, or has a new connection and does not wait for this answer.
            let holds = locations.iter().filter_map(|it| Some((self.members.find(it.segment)?, it.hold())));
            let holds: Vec<_> = holds.collect();
            return self.abort_all(holds);
        }
        nodes.extend(locations.iter().filter_map(|it| self.members.find(it.segment)));
        let is_near = |node: &&NodeIndex| self.members.get(**node).is_some_and(|it| it.is_near);
        let near = nodes.iter().filter(is_near);
        let near = near.filter_map(|node| Some(self.members.get(*node)?.info.segment)).collect();
        let reply = Reply::Reserved(Reserved { items: outcomes, nodes: self.infos(nodes), near });
        self.effects.push_back(Effect::Reply(reserving.conn, reserving.id, reply));
    }

    /// Gives back reservations that nobody will use.
    pub(super) fn abort_all(&mut self, holds: Vec<(NodeIndex, Hold)>) {
        let mut by_node: BTreeMap<NodeIndex, Vec<Hold>> = BTreeMap::new();
        for (node, hold) in holds {
            self.room.end_grant(node, hold);
            by_node.entry(node).or_default().push(hold);
        }
        for (node, abort) in by_node {
            let settle = Settle { commit: Vec::new(), abort };
            self.ask(node, Request::Settle(settle), Wait::Settle(Vec::new(), None));
        }
    }

    /// One item is done for this round: with what it has got, or else with that outcome. Nobody is to be
    /// asked.
    fn finish(
        &mut self,
        reserving: &mut Reserving,
        index: usize,
        otherwise: ReserveOutcome,
    ) -> Vec<NodeIndex> {
        if let Some(item) = reserving.items.get_mut(index) {
            let got = std::mem::take(&mut item.got);
            item.done = Some(match got.is_empty() {
                true => otherwise,
                false => ReserveOutcome::Room(got.into_iter().map(|(_, it)| it).collect()),
            });
            if let Some(stream) = item.counted.take() {
                self.room.unplan_stream(stream, in_stream(&item.request));
            }
        }
        Vec::new()
    }

    fn total_usage(&self) -> Usage {
        let mut total = Usage::default();
        for (_, member) in
            self.members.iter().filter(|(_, it)| it.standing == Standing::Ready && !it.is_disk())
        {
            total.capacity += member.usage.capacity;
            total.free += member.usage.free;
            total.granted += member.usage.granted;
            total.committed += member.usage.committed;
            total.held += member.usage.held;
            total.objects += member.usage.objects;
        }
        total
    }
}

/// What was found for objects that may come, as one answer.
fn together(outcomes: &[ReserveOutcome]) -> ReserveOutcome {
    let rooms = outcomes.iter().filter_map(|it| match it {
        ReserveOutcome::Room(rooms) => Some(rooms),
        _ => None,
    });
    let rooms: Vec<_> = rooms.flatten().cloned().collect();
    match outcomes.first() {
        Some(outcome) if rooms.is_empty() => outcome.clone(),
        _ => ReserveOutcome::Room(rooms),
    }
}

/// What a copy of an item is charged with, once it is an object: its room, and what lies elsewhere.
fn charge(request: &ReserveItem) -> u64 {
    let elsewhere = if request.options.stream.is_empty() { request.options.elsewhere } else { 0 };
    room_for(request.len).unwrap_or(u64::MAX).saturating_add(elsewhere)
}

/// What its stream counts.
fn in_stream(request: &ReserveItem) -> u64 {
    request.len.saturating_add(request.options.elsewhere)
}

/// Whether an item was not given what it may wait for.
fn is_short(item: &Item) -> bool {
    use ReserveOutcome::{Behind, Full, OverQuota};
    matches!(item.done, Some(Full(_) | OverQuota(_) | Behind(_)))
}
