//! Reservations: finding space for new objects.
//!
//! A reservation takes rounds. For every item that still lacks a copy, a round plans a node with enough
//! space. If no node has enough, it evicts just enough on the best one. The nodes allocate.
//!
//! An item that a node refuses is planned again, and the master evicts as much as the node says is missing.
//! Rounds end: a node is not asked again for an item if it refused twice although no eviction was needed,
//! or if nothing can be evicted there.

mod share;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub(super) use self::share::waits_for_share;
use self::share::{enter_queue, lacks_share};
use super::{
    Caller, Context, Objects, OpId, Wait,
    catalog::{Eviction, NamespaceIndex, NodeIndex, Object, ObjectIndex},
    context::{
        guarantees::{self, Spared},
        quotas::{Charge, QueueKey, Terms},
    },
    limits,
    members::{Member, Standing},
    placement::{Wish, rank},
    refuse,
    shortage::{Demand, Lack, Refused},
    stream::StreamIndex,
};
use crate::{
    BATCH_ITEMS_MAX, ConnId, Key, REPLICAS_MAX, RequestId, Reservation, SegmentId, Tick,
    attributes::Attributes,
    message::{
        Allocate, AllocateItem, Allocated, Full, MasterToMember, OnExists, Reason, Reply, Reserve,
        ReserveItem, ReserveOutcome, Reserved, Resource, Shortage, Usage,
    },
    mutant::is_mutant,
    space_for,
};

/// One part in this many of a node's memory stays free of offers, so that few puts must recall one.
const UNOFFERED_SHARE: u64 = 8;

/// All reservations in progress.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    /// Those that wait for nodes.
    all: BTreeMap<OpId, Reserving>,
    /// Those that wait for space, and for no node.
    parked: BTreeMap<OpId, Reserving>,
}

/// A reservation in progress.
#[derive(Debug)]
struct Reserving {
    conn: ConnId,
    id: RequestId,
    caller: Arc<Caller>,
    avoid: Vec<SegmentId>,
    /// Number of preallocated items per requested item, or 0 for a put; see [`Reserve::spare`].
    spare: usize,
    items: Vec<Item>,
    /// Nodes that have not replied yet in this round.
    outstanding: u32,
    /// The bytes that were evicted on each node for this round.
    evicted: BTreeMap<NodeIndex, u64>,
    /// How long it may wait for space.
    deadline: Tick,
    /// Whether it is in the queue for space.
    queued: bool,
    queue_key: QueueKey,
}

#[derive(Debug)]
struct Item {
    request: ReserveItem,
    got: Vec<(NodeIndex, Reservation)>,
    refusals: BTreeMap<NodeIndex, Refused>,
    done: Option<ReserveOutcome>,
    /// The stream that counts it while it has no space.
    counted: Option<StreamIndex>,
    /// It was planned on memory that is offered to clients and may be claimed.
    needs_recall: bool,
}

impl Reservations {
    pub(super) fn reserve(
        &mut self,
        o: &mut Objects,
        conn: ConnId,
        id: RequestId,
        caller: &Arc<Caller>,
        reserve: Reserve,
    ) {
        let spare = reserve.spare as usize;
        if reserve.items.len().saturating_mul(spare.max(1)) > BATCH_ITEMS_MAX {
            let reply = refuse(Reason::Invalid, "the batch is too large");
            return o.cx.reply(conn, id, reply);
        }
        let stream = reserve.items.first().map(|it| it.options.stream.clone()).unwrap_or_default();
        if reserve.items.iter().any(|it| it.options.stream != stream) {
            let reply = refuse(Reason::Invalid, "the batch names more than one stream");
            return o.cx.reply(conn, id, reply);
        }
        if let Some(refusal) = limits::refuse_too_many(&mut o.cx, caller, &reserve) {
            return o.cx.reply(conn, id, refusal);
        }
        let check = |request| self.check_item(o, caller, request, spare > 0);
        let items = reserve.items.into_iter().flat_map(|it| std::iter::repeat_n(it, spare.max(1)));
        let items = items.map(check).collect();
        let mut reserving = Reserving {
            conn,
            id,
            caller: Arc::clone(caller),
            avoid: reserve.avoid,
            spare,
            items,
            outstanding: 0,
            evicted: BTreeMap::new(),
            deadline: o.cx.now.after(if spare > 0 { 0 } else { reserve.wait_ms }),
            queued: false,
            queue_key: (caller.namespace, stream),
        };
        let op = o.cx.next_op();
        let overtakes = is_mutant!(o.cx.config.mutant, OvertakeTheWaiting);
        if o.cx.quotas.has_queue(&reserving.queue_key) && !overtakes {
            // First come, first served: space that is found now belongs to the puts in the queue.
            for index in 0..reserving.items.len() {
                if let Some(item) = reserving.items.get(index).filter(|it| it.done.is_none()) {
                    let exceeded = o.quota_exceeded_alone(caller.namespace, charge(&item.request));
                    let full = || self.full(o, item, self.need(o, &reserving, item));
                    let outcome = exceeded.map_or_else(full, ReserveOutcome::OverQuota);
                    self.finish(o, &mut reserving, index, outcome);
                }
            }
            return self.end_reserve(o, op, reserving);
        }
        self.go_on(o, op, reserving);
    }

    /// Retries the first put of a queue, because space may have become free.
    pub(super) fn try_again(&mut self, o: &mut Objects, op: OpId) {
        let Some(mut reserving) = self.parked.remove(&op) else { return };
        for item in &mut reserving.items {
            if may_fit_later(item) {
                item.done = None;
                item.refusals.clear();
            }
        }
        self.go_on(o, op, reserving);
    }

    /// Answers a put whose waiting time for space has passed.
    pub(super) fn end_parked(&mut self, o: &mut Objects, op: OpId) {
        let Some(late) = self.parked.get(&op).filter(|it| it.deadline <= o.cx.now) else { return };
        // A slow disk must not fail a put, so the eviction candidates are checked once more. Only the first
        // put of its queue is entitled to that.
        if o.cx.members.disks().next().is_some() && o.cx.quotas.is_first(&late.queue_key, op) {
            self.try_again(o, op);
        }
        if let Some(reserving) = self.parked.remove(&op) {
            self.end_reserve(o, op, reserving);
        }
    }

    /// The connection of a waiting put is closed: it no longer waits.
    pub(super) fn forget(&mut self, o: &mut Objects, op: OpId) {
        if let Some(reserving) = self.parked.remove(&op) {
            self.end_reserve(o, op, reserving);
        }
    }

    /// A client no longer waits for an answer: its deadline is now.
    pub(super) fn cancel(&mut self, cx: &mut Context, conn: ConnId, id: RequestId) {
        let waiting = cx.waiting.find(conn, id).and_then(|op| Some((op, self.parked.get_mut(&op)?)));
        let asking = self.all.iter_mut().filter(|(_, it)| (it.conn, it.id) == (conn, id));
        for (op, reserving) in asking.map(|(op, it)| (*op, it)).chain(waiting) {
            reserving.deadline = reserving.deadline.min(cx.now);
            cx.deadlines.list(cx.now, op);
        }
    }

    /// Number of reservations in the queues for space, those included that ask nodes again.
    pub(super) fn queued_count(&self) -> usize {
        self.parked.len() + self.all.values().filter(|it| it.queued).count()
    }

    /// Number of reservations in progress.
    pub(super) fn len(&self) -> usize {
        self.all.len() + self.parked.len()
    }

    pub(super) fn allocated(
        &mut self,
        o: &mut Objects,
        node: NodeIndex,
        op: OpId,
        items: &[usize],
        allocated: Allocated,
    ) {
        // Wakes no waiting put: a node that refuses has no more space than before, whatever it reports.
        if let Some(member) = o.cx.members.get_mut(node) {
            member.report(o.cx.now, allocated.usage);
        }
        let (mut answers, mut short) = (allocated.items.into_iter(), allocated.short.into_iter());
        let has_offers = allocated.usage.offered > 0;
        self.answered(o, node, op, items, has_offers, || {
            answers.next().flatten().ok_or_else(|| short.next())
        });
    }

    pub(super) fn not_allocated(&mut self, o: &mut Objects, node: NodeIndex, op: OpId, items: &[usize]) {
        self.answered(o, node, op, items, false, || Err(None));
    }

    fn answered(
        &mut self,
        o: &mut Objects,
        node: NodeIndex,
        op: OpId,
        items: &[usize],
        has_offers: bool,
        mut next: impl FnMut() -> Result<Reservation, Option<Shortage>>,
    ) {
        let Some(mut reserving) = self.all.remove(&op) else { return };
        reserving.outstanding -= 1;
        // A node that went away before it could answer has not refused. It may be asked when it is back.
        let is_away = !o.cx.is_ready(node);
        let namespace_len = o.cx.catalog.namespace_name(reserving.caller.namespace).len();
        for &index in items {
            let Some(item) = reserving.items.get_mut(index) else { continue };
            let stream = item.counted.take().map(|it| (it, in_stream(&item.request)));
            let space = charge(&item.request);
            let whose = (reserving.caller.namespace, reserving.caller.index);
            match next() {
                Ok(reservation) => {
                    let name_len = (namespace_len + item.request.key.as_bytes().len()) as u64;
                    let Caller { client, token, .. } = *reserving.caller;
                    let terms = Terms { client, token, len: item.request.len, name_len };
                    let slot_ref = reservation.location.slot_ref();
                    match reserving.spare > 0 {
                        true => o.cx.quotas.offer(node, slot_ref, whose, space, terms),
                        false => o.cx.quotas.grant(node, slot_ref, whose, space, Some(terms), stream),
                    }
                    item.got.push((node, reservation));
                }
                Err(shortage) => {
                    if reserving.spare == 0 {
                        o.cx.quotas.unplan(charge_at(&reserving.caller, node, &item.request));
                    }
                    item.counted = stream.map(|it| it.0);
                    // Offers that the master counted as free were claimed. The node's reply now has the
                    // actual numbers.
                    let is_excused = std::mem::take(&mut item.needs_recall) && !has_offers;
                    if !is_excused && !is_away {
                        item.refusals.entry(node).or_default().again(shortage);
                    }
                }
            }
        }
        if reserving.outstanding > 0 {
            self.all.insert(op, reserving);
        } else {
            self.go_on(o, op, reserving);
        }
    }

    /// Checks an item as far as possible without a request to a node.
    fn check_item(&self, o: &Objects, caller: &Caller, request: ReserveItem, spare: bool) -> Item {
        let replicas = request.options.replicas;
        let done = if replicas == 0 || replicas > REPLICAS_MAX {
            Some(ReserveOutcome::Invalid(format!(
                "invalid number of replicas {replicas}: it must be 1 to {REPLICAS_MAX}"
            )))
        } else if let Some(problem) = Attributes::problem(&request.options) {
            Some(ReserveOutcome::Invalid(problem))
        } else if spare && request.options.elsewhere > 0 {
            Some(ReserveOutcome::Invalid("a preallocation cannot include bytes in another store".to_owned()))
        } else if let Some(why) = o.streams.is_over(caller.namespace, &request.options) {
            Some(ReserveOutcome::Invalid(why))
        } else if let Some(it) = o.streams.used_up(&o.cx, caller.namespace, &request.options, &request.key) {
            Some(ReserveOutcome::Exists(it))
        } else {
            let on_exists = request.options.on_exists;
            let may_keep = on_exists != OnExists::Replace && !spare;
            let existing = may_keep.then(|| o.cx.catalog.find(caller.namespace, &request.key)).flatten();
            let existing = existing.and_then(|index| o.cx.catalog.get(index));
            let kept = existing.filter(|it| it.is_kept(on_exists)).map(|it| it.generation());
            let other = || o.not_replaceable(caller.namespace, &request.key, &request.options);
            kept.or_else(other).map(ReserveOutcome::Exists)
        };
        let (got, refusals) = (Vec::new(), BTreeMap::new());
        Item { request, got, refusals, done, counted: None, needs_recall: false }
    }

    /// Plans the next round, or ends.
    fn go_on(&mut self, o: &mut Objects, op: OpId, mut reserving: Reserving) {
        let mut plan: BTreeMap<NodeIndex, Vec<usize>> = BTreeMap::new();
        if reserving.spare > 0 {
            self.plan_spares(o, &mut reserving, &mut plan);
        } else {
            for index in 0..reserving.items.len() {
                for node in self.plan_item(o, &mut reserving, index) {
                    plan.entry(node).or_default().push(index);
                }
            }
        }
        if plan.is_empty() {
            return self.end_reserve(o, op, reserving);
        }
        let name_len = o.cx.catalog.namespace_name(reserving.caller.namespace).len();
        for (node, indexes) in plan {
            let items = indexes.iter().filter_map(|&index| {
                let request = &reserving.items.get(index)?.request;
                let name_len = (name_len + request.key.as_bytes().len()) as u64;
                let attributes_len = Attributes::of(&request.options).to_bytes().len() as u64;
                Some(AllocateItem { len: request.len, name_len, attributes_len })
            });
            let (client, offered) = (reserving.caller.client, reserving.spare > 0);
            let (namespace, guarantees) = guarantees::at_node(&o.cx, node, reserving.caller.namespace);
            let evicted = reserving.evicted.remove(&node).unwrap_or(0);
            let items = items.collect();
            let allocate = Allocate { client, items, offered, namespace, guarantees, evicted };
            // A candidate is connected, so this cannot fail.
            let asked = o.cx.ask(node, MasterToMember::Allocate(allocate), Wait::Allocate(op, indexes));
            reserving.outstanding += u32::from(asked.is_some());
        }
        self.all.insert(op, reserving);
    }

    /// The nodes to ask for one item in this round; none if the item is done.
    fn plan_item(&mut self, o: &mut Objects, reserving: &mut Reserving, index: usize) -> Vec<NodeIndex> {
        let Some(item) = reserving.items.get(index).filter(|it| it.done.is_none()) else { return Vec::new() };
        let wanted = (item.request.options.replicas as usize).saturating_sub(item.got.len());
        if wanted == 0 {
            return self.finish(o, reserving, index, ReserveOutcome::Full(Full::default()));
        }
        let need = self.need(o, reserving, item);
        let candidates = self.candidates(o, reserving, item, need.bytes);
        let namespace = reserving.caller.namespace;
        let first = item.got.is_empty();
        if first && item.counted.is_none() && !item.request.options.stream.is_empty() {
            let weight = in_stream(&item.request);
            let counted = match o.streams.admit(&mut o.cx, namespace, &item.request.options, weight) {
                Ok(counted) => counted,
                Err(backlog) => return self.finish(o, reserving, index, ReserveOutcome::Behind(backlog)),
            };
            if let Some(item) = reserving.items.get_mut(index) {
                item.counted = counted;
            }
        }
        let Some(item) = reserving.items.get(index) else { return Vec::new() };
        let whose = (reserving.caller.label.as_str(), &item.request.key);
        let may_wait = o.cx.now < reserving.deadline;
        let charge = charge(&item.request);
        if first && !guarantees::is_within_share(&o.cx, &reserving.caller, charge) {
            // Whatever the share becomes, an object that exceeds the quota alone need not wait for it.
            let alone = o.quota_exceeded_alone(namespace, charge);
            let alone = alone.filter(|_| !is_mutant!(o.cx.config.mutant, AwaitShareInVain));
            let outcome = alone.map_or_else(|| self.beyond_share(o), ReserveOutcome::OverQuota);
            return self.finish(o, reserving, index, outcome);
        }
        if first && let Err(quota) = o.within_quota(namespace, charge, whose, may_wait) {
            return self.finish(o, reserving, index, ReserveOutcome::OverQuota(quota));
        }
        let affordable = o.cx.quota_left(namespace).checked_div(charge).unwrap_or(u64::MAX);
        let wanted = wanted.min(usize::try_from(affordable).unwrap_or(usize::MAX));
        let lack = |node: NodeIndex| Lack::on(&o.cx, node, item.refusals.get(&node), need);
        let mut chosen = Vec::new();
        for &node in &candidates {
            let has_bytes =
                guarantees::left_on(&o.cx, node, namespace).is_some_and(|left| need.bytes <= left);
            if chosen.len() < wanted && has_bytes && lack(node).is_met() {
                chosen.push(node);
            }
        }
        // Fewer copies than requested are better than evictions for more. But without any copy there is no
        // object.
        if chosen.is_empty() && first {
            let candidates: Vec<_> = candidates.into_iter().map(|node| (node, lack(node))).collect();
            let made = o.make_space_somewhere(&candidates, (namespace, need.bytes), whose, may_wait);
            if let (Some((node, evicted)), Some(item)) = (made, reserving.items.get_mut(index)) {
                item.refusals.entry(node).and_modify(Refused::freed);
                *reserving.evicted.entry(node).or_default() += evicted;
                chosen.push(node);
            }
        }
        plan_on(&mut o.cx, reserving, index, (&chosen, need.bytes));
        if let Some(item) = reserving.items.get(index).filter(|_| chosen.is_empty()) {
            let full = self.full(o, item, need);
            return self.finish(o, reserving, index, full);
        }
        chosen
    }

    /// Plans offers in a single round, because no put depends on them.
    fn plan_spares(
        &mut self,
        o: &mut Objects,
        reserving: &mut Reserving,
        plan: &mut BTreeMap<NodeIndex, Vec<usize>>,
    ) {
        let mut candidates = None;
        for index in 0..reserving.items.len() {
            let Some(item) = reserving.items.get(index).filter(|it| it.done.is_none()) else { continue };
            let need = space_for(item.request.len).unwrap_or(u64::MAX);
            let is_first_round = item.got.is_empty() && item.refusals.is_empty();
            let candidates = candidates.get_or_insert_with(|| self.candidates(o, reserving, item, 0));
            let node =
                is_first_round.then(|| self.plan_spare(o, &reserving.caller, candidates, need)).flatten();
            match node {
                Some(node) => plan.entry(node).or_default().push(index),
                None => _ = self.finish(o, reserving, index, ReserveOutcome::Full(Full::default())),
            }
        }
    }

    /// The node to ask for an offer. It must have free memory that is not offered, with a reserve beyond
    /// the offer. No object is evicted and no offer is recalled for an offer, and there is none while a put
    /// waits for memory.
    fn plan_spare(
        &mut self,
        o: &mut Objects,
        caller: &Caller,
        candidates: &[NodeIndex],
        need: u64,
    ) -> Option<NodeIndex> {
        let is_rationed = o.cx.quota(caller.namespace).is_some() || !o.cx.quotas.guaranteed().is_empty();
        if is_rationed || o.cx.quotas.anybody_waits() {
            return None;
        }
        let has_plenty = |node: &&NodeIndex| {
            let left = |it: &Member| it.unoffered().checked_sub(need);
            let member = o.cx.members.get(**node);
            member.is_some_and(|it| left(it).is_some_and(|left| left >= it.usage.capacity / UNOFFERED_SHARE))
        };
        let node = *candidates.iter().find(has_plenty)?;
        if let Some(member) = o.cx.members.get_mut(node) {
            member.usage.offered = member.usage.offered.saturating_add(need);
        }
        Some(node)
    }

    /// Nodes that might store the item, best first.
    fn candidates(&self, o: &Objects, reserving: &Reserving, item: &Item, need: u64) -> Vec<NodeIndex> {
        let wish = Wish {
            preferred: &item.request.options.preferred,
            home: reserving.caller.home,
            host: &reserving.caller.host,
        };
        let possible = o.cx.members.iter().filter(|(node, member)| {
            member.standing == Standing::Ready
                && !member.is_disk()
                && need <= member.usage.capacity
                && !reserving.avoid.contains(&member.info.segment)
                && !item.got.iter().any(|(has, _)| has == node)
                && !item.refusals.get(node).is_some_and(Refused::is_final)
        });
        rank(possible, wish)
    }

    /// The resources that a copy of an item needs on any node.
    fn need(&self, o: &Objects, reserving: &Reserving, item: &Item) -> Demand {
        let namespace_len = o.cx.catalog.namespace_name(reserving.caller.namespace).len();
        let name_len = (namespace_len + item.request.key.as_bytes().len()) as u64;
        Demand { bytes: space_for(item.request.len).unwrap_or(u64::MAX), name_len }
    }

    /// Why an item finds no space.
    fn full(&self, o: &Objects, item: &Item, need: Demand) -> ReserveOutcome {
        let known = || o.cx.members.iter().filter(|(_, it)| !it.is_disk());
        let is_ready = |it: &Member| it.standing == Standing::Ready;
        if !known().any(|(_, it)| is_ready(it)) {
            return ReserveOutcome::NoNode;
        }
        // A node that is away may return, and its capacity is known.
        let never = |(node, it): (NodeIndex, &Member)| {
            need.bytes > it.usage.capacity || item.refusals.get(&node).is_some_and(Refused::is_for_ever)
        };
        let lacks = |(node, it): (NodeIndex, &Member)| {
            let lack = Lack::on(&o.cx, node, item.refusals.get(&node), need);
            let is_named = need.bytes <= it.free && !lack.is_met();
            if is_named { lack.resource() } else { Resource::Bytes }
        };
        let lacks = known().filter(|(_, it)| is_ready(it)).map(lacks).max().unwrap_or_default();
        let usage = self.total_usage(o);
        ReserveOutcome::Full(Full { usage, lacks, never: known().all(never) })
    }

    /// Answers, or joins the queue if there is no space yet and time to wait for it.
    fn end_reserve(&mut self, o: &mut Objects, op: OpId, mut reserving: Reserving) {
        let is_there = o.cx.connections.is_open(reserving.conn);
        if is_there && o.cx.now < reserving.deadline && may_wait_for_more(&reserving.items) {
            let is_new = !reserving.queued;
            let asked = (reserving.conn, reserving.id);
            let bytes = || limits::waiting_bytes(reserving.items.iter().map(|it| &it.request.key));
            let entered = if is_new { o.cx.wait(op, asked, &reserving.caller, bytes()) } else { Ok(()) };
            match entered {
                Ok(()) => {
                    enter_queue(&mut o.cx.quotas, op, &mut reserving);
                    o.cx.deadlines.list(reserving.deadline, op);
                    self.parked.insert(op, reserving);
                    return;
                }
                // Items that have found space are answered, the others with what they lack.
                Err(refusal) if !reserving.items.iter().any(has_space) => {
                    return o.cx.reply(reserving.conn, reserving.id, *refusal);
                }
                Err(_) => (),
            }
        }
        if reserving.queued {
            o.cx.waiting.leave(op);
            o.cx.deadlines.strike(reserving.deadline, op);
            o.cx.quotas.leave_queue(&reserving.queue_key, op);
        }
        let mut nodes = BTreeSet::new();
        let full = || ReserveOutcome::Full(Full::default());
        let mut outcomes: Vec<_> = reserving.items.drain(..).map(|it| it.done.unwrap_or_else(full)).collect();
        if reserving.spare > 0 {
            outcomes = outcomes.chunks(reserving.spare).map(together).collect();
        }
        let reservations = outcomes.iter().filter_map(|it| match it {
            ReserveOutcome::Space(reservations) => Some(reservations),
            _ => None,
        });
        let locations: Vec<_> = reservations.flatten().map(|it| it.location).collect();
        if !is_there {
            // The client is gone, or has reconnected and does not wait for this answer.
            let slot_refs =
                locations.iter().filter_map(|it| Some((o.cx.members.find(it.segment)?, it.slot_ref())));
            let slot_refs: Vec<_> = slot_refs.collect();
            return o.cx.abort_all(slot_refs);
        }
        nodes.extend(locations.iter().filter_map(|it| o.cx.members.find(it.segment)));
        let is_on_same_host =
            |node: &&NodeIndex| o.cx.members.get(**node).is_some_and(|it| it.is_on_same_host);
        let same_host = nodes.iter().filter(is_on_same_host);
        let same_host = same_host.filter_map(|node| Some(o.cx.members.get(*node)?.info.segment)).collect();
        let reply = Reply::Reserved(Reserved { items: outcomes, nodes: o.cx.infos(nodes), same_host });
        o.cx.reply(reserving.conn, reserving.id, reply);
    }

    /// Ends one item for this round: with the copies it has, or else with that outcome. Returns no nodes to
    /// ask.
    fn finish(
        &mut self,
        o: &mut Objects,
        reserving: &mut Reserving,
        index: usize,
        otherwise: ReserveOutcome,
    ) -> Vec<NodeIndex> {
        if let Some(item) = reserving.items.get_mut(index) {
            let got = std::mem::take(&mut item.got);
            item.done = Some(match got.is_empty() {
                true => otherwise,
                false => ReserveOutcome::Space(got.into_iter().map(|(_, it)| it).collect()),
            });
            if let Some(stream) = item.counted.take() {
                o.cx.quotas.unplan_stream(stream, in_stream(&item.request));
            }
        }
        Vec::new()
    }

    /// Its client has its share of the memory.
    fn beyond_share(&self, o: &mut Objects) -> ReserveOutcome {
        o.cx.limits.reserved_share += 1;
        ReserveOutcome::Full(Full { usage: self.total_usage(o), lacks: Resource::Share, never: false })
    }

    fn total_usage(&self, o: &Objects) -> Usage {
        let mut total = Usage::default();
        for (_, member) in
            o.cx.members.iter().filter(|(_, it)| it.standing == Standing::Ready && !it.is_disk())
        {
            total.capacity += member.usage.capacity;
            total.free += member.usage.free;
            total.granted += member.usage.granted;
            total.committed += member.usage.committed;
            total.held += member.usage.held;
            total.objects += member.usage.objects;
            total.offered += member.usage.offered;
            total.metadata += member.usage.metadata;
            total.unlisted += member.usage.unlisted;
        }
        total
    }
}

impl Objects {
    /// Frees space on one of these nodes. Objects that also have a disk copy leave first. A put that may
    /// wait then waits for a disk, so that no object is lost.
    fn make_space_somewhere(
        &mut self,
        candidates: &[(NodeIndex, Lack)],
        (namespace, need): (NamespaceIndex, u64),
        whose: (&str, &Key),
        may_wait: bool,
    ) -> Option<(NodeIndex, u64)> {
        let wanted = (namespace, need);
        let made = |master: &mut Self, on_disk_only| {
            let mut each = candidates.iter();
            each.find_map(|&it| Some((it.0, master.make_space(it, wanted, whose, on_disk_only)?)))
        };
        if let Some(lossless) = made(self, true) {
            return Some(lossless);
        }
        let waits = may_wait && !is_mutant!(self.cx.config.mutant, EvictUndemoted);
        // A need that is not for bytes is for a slot or for name space. Any object that leaves frees both.
        let is_awaited = |master: &mut Self, node| {
            let free = master.cx.members.get(node).map_or(0, |it| it.free);
            master.tier.frees_memory(&mut master.cx, node, need.max(free.saturating_add(1)))
        };
        if waits && candidates.iter().any(|(node, _)| is_awaited(self, *node)) {
            return None;
        }
        made(self, false)
    }

    /// Evicts on one node until an object fits there, and returns how many bytes. Evicts nothing if all
    /// evictable objects together are too small.
    fn make_space(
        &mut self,
        (node, mut lack): (NodeIndex, Lack),
        (namespace, bytes): (NamespaceIndex, u64),
        whose: (&str, &Key),
        on_disk_only: bool,
    ) -> Option<u64> {
        let (mut free, usage) = self.cx.members.get(node).map(|it| (it.free, it.usage))?;
        let need = guarantees::free_needed(&self.cx, node, namespace, bytes, free);
        let mut spared = guarantees::spared_from(&self.cx, namespace, node);
        let possible = free.saturating_add(usage.metadata).saturating_add(self.evictable(node, &spared));
        if need > possible && !is_mutant!(self.cx.config.mutant, EvictInVain) {
            return None;
        }
        // What is evicted there is freed when clients of the node's earlier process have listed their views.
        // Enough to wait for has been evicted already.
        let waits_for_lists = usage.unlisted > 0 && usage.unlisted >= need;
        if waits_for_lists && !is_mutant!(self.cx.config.mutant, EvictUnlisted) {
            return None;
        }
        // The records and names of evicted objects are freed too, as far as the node does not reuse them.
        let overhead = usage.metadata.checked_div(usage.objects).unwrap_or(0);
        let (mut shrinks, mut evicts, before) = (0, false, free);
        while free + shrinks < need || !lack.is_met() {
            let Some(victim) = next_victim(self, node, on_disk_only, &mut spared) else { break };
            if let Some(object) = self.cx.catalog.get(victim) {
                free += space_for(object.len()).unwrap_or(0);
                shrinks = usage.metadata.min(shrinks + overhead);
                lack.count(object, self.cx.catalog.namespace_name(object.namespace()).len());
            }
            self.evict(victim, Some(node), whose);
            evicts = true;
        }
        if let Some(member) = self.cx.members.get_mut(node) {
            member.free = free;
        }
        // When nothing is left to evict, only the node knows how much memory that has freed.
        let may_fit = evicts && need <= free + usage.metadata;
        (may_fit || (need <= free && lack.is_met())).then_some(free - before)
    }

    /// Upper bound of the bytes that eviction could free on a node.
    fn evictable(&self, node: NodeIndex, spared: &Spared) -> u64 {
        let mutant = self.cx.config.mutant;
        let is_broken = is_mutant!(mutant, EvictPinned) || is_mutant!(mutant, EvictLeased);
        if is_broken || is_mutant!(mutant, EvictSamples) {
            return u64::MAX;
        }
        let soft_pinned_too = self.cx.config.evict_soft_pinned;
        let rules = Eviction {
            soft_pinned_too,
            on_disk_only: !self.reports.floors.has_space(),
            ..Eviction::default()
        };
        let unshielded = guarantees::evictable_for(&self.cx, node, rules, spared);
        let is_free = |it: &Object| !spared.has(it.namespace());
        unshielded
            .saturating_add(self.tier.promoted.shielded_bytes(&self.cx, |it, on| on == node && is_free(it)))
    }

    /// The next object that may leave a node, of all but these namespaces.
    fn next_victim_but(&self, node: NodeIndex, on_disk_only: bool, spared: &Spared) -> Option<ObjectIndex> {
        let on_disk_only = on_disk_only || !self.reports.floors.has_space();
        let samples_too = is_mutant!(self.cx.config.mutant, EvictSamples);
        let rules = Eviction {
            soft_pinned_too: self.cx.config.evict_soft_pinned,
            on_disk_only,
            demoting_too: false,
            even_pinned: samples_too || is_mutant!(self.cx.config.mutant, EvictPinned),
        };
        let now = if is_mutant!(self.cx.config.mutant, EvictLeased) { Tick(u64::MAX) } else { self.cx.now };
        let none_of: Vec<_> = spared.namespaces().collect();
        let victim = self.cx.catalog.next_victim(node, now, rules, &none_of).or_else(|| {
            let is_there = |it: &Object| it.in_memory().any(|(on, _)| on == node);
            let may_go = |it: &Object| is_there(it) && !none_of.contains(&it.namespace());
            self.tier.promoted.next_shielded(&self.cx, may_go).filter(|_| !on_disk_only)
        })?;
        let pinned = self.cx.catalog.get(victim).is_some_and(|it| it.hard_pin());
        (!(samples_too && pinned)).then_some(victim)
    }
}

/// The next object that may leave a node.
fn next_victim(o: &Objects, node: NodeIndex, on_disk_only: bool, spared: &mut Spared) -> Option<ObjectIndex> {
    loop {
        let victim = o.next_victim_but(node, on_disk_only, spared)?;
        let object = o.cx.catalog.get(victim)?;
        let (namespace, space) = (object.namespace(), object.space_of_one());
        if spared.allows(namespace, space) {
            spared.count(namespace, space);
            return Some(victim);
        }
    }
}

/// Combines all offers for an item into one outcome.
fn together(outcomes: &[ReserveOutcome]) -> ReserveOutcome {
    let reservations = outcomes.iter().filter_map(|it| match it {
        ReserveOutcome::Space(reservations) => Some(reservations),
        _ => None,
    });
    let reservations: Vec<_> = reservations.flatten().cloned().collect();
    match outcomes.first() {
        // A preallocation without any offer is not a failure.
        Some(outcome) if reservations.is_empty() && !matches!(outcome, ReserveOutcome::Full(_)) => {
            outcome.clone()
        }
        _ => ReserveOutcome::Space(reservations),
    }
}

/// The bytes that a copy of an item is charged with once it is an object: its memory and its bytes in
/// another store.
fn charge(request: &ReserveItem) -> u64 {
    let elsewhere = if request.options.stream.is_empty() { request.options.elsewhere } else { 0 };
    space_for(request.len).unwrap_or(u64::MAX).saturating_add(elsewhere)
}

/// Counts the memory that is about to be requested from these nodes.
fn plan_on(cx: &mut Context, reserving: &mut Reserving, index: usize, (nodes, bytes): (&[NodeIndex], u64)) {
    let Some(item) = reserving.items.get_mut(index) else { return };
    item.needs_recall = false;
    for &node in nodes {
        if let Some(member) = cx.members.get_mut(node) {
            item.needs_recall |= bytes > member.unoffered();
            member.free = member.free.saturating_sub(bytes);
        }
        cx.quotas.plan(charge_at(&reserving.caller, node, &item.request));
    }
}

/// The same, for one copy on a node.
fn charge_at(caller: &Caller, node: NodeIndex, request: &ReserveItem) -> Charge {
    let memory = space_for(request.len).unwrap_or(u64::MAX);
    let (namespace, client, token) = (caller.namespace, Some(caller.client), caller.token);
    Charge { namespace, client, token, node, space: charge(request), memory }
}

/// The bytes that its stream counts.
fn in_stream(request: &ReserveItem) -> u64 {
    request.len.saturating_add(request.options.elsewhere)
}

fn has_space(item: &Item) -> bool {
    matches!(item.done, Some(ReserveOutcome::Space(_)))
}

/// Whether waiting may help. A batch that takes the share of its client itself would wait for its own end.
fn may_wait_for_more(items: &[Item]) -> bool {
    let has_some = items.iter().any(has_space);
    items.iter().any(|it| may_fit_later(it) && !(has_some && lacks_share(it)))
}

/// Whether an item lacks space now and may find it later.
fn may_fit_later(item: &Item) -> bool {
    match &item.done {
        Some(ReserveOutcome::Full(full)) => !full.never,
        Some(ReserveOutcome::OverQuota(quota)) => !quota.is_never_enough(),
        Some(ReserveOutcome::Behind(_) | ReserveOutcome::NoNode) => true,
        _ => false,
    }
}
