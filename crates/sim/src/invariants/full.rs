//! R19: every resource can be evicted for. A put gets `Full` only when evicting everything possible would not
//! suffice, and then nothing was evicted.

use std::collections::BTreeMap;

use tiffin_node::{SlotRecord, SlotState};
use tiffin_types::{
    ConnId, RequestId, SegmentId, Tick,
    message::{NodeStat, Reserve, ReserveOutcome, Reserved, Resource},
    space_for,
};

use crate::{coverage::Point, keyspace, oracle::Oracle, world::World};

/// A put that is answered from the current state.
#[derive(Debug)]
pub(crate) struct SinglePut {
    avoid: Vec<SegmentId>,
    len: u64,
    now: Tick,
    evictions: u64,
    allocations: u64,
    saves: u64,
}

impl Oracle {
    /// A client reserves space. Only a put that does not wait, with no other put waiting, is answered from
    /// the state at that moment. Two concurrent puts may take memory evicted for each other, so neither is
    /// judged.
    pub(crate) fn record_single_put(
        &mut self,
        now: Tick,
        to: (ConnId, RequestId),
        reserve: &Reserve,
        others_wait: bool,
    ) {
        self.single_puts.clear();
        let is_single = reserve.items.len() == 1 && reserve.spare == 0 && reserve.wait_ms == 0;
        let item = reserve.items.first().filter(|_| is_single && !others_wait);
        if let Some(item) = item {
            let put = SinglePut {
                avoid: reserve.avoid.clone(),
                len: item.len,
                now,
                evictions: self.evictions,
                allocations: self.allocations,
                saves: self.saves,
            };
            self.single_puts.insert(to, put);
        }
        if reserve.items.len() == 1 && reserve.spare == 0 && reserve.wait_ms > 0 {
            self.waiting_puts.insert(to, now);
        }
    }

    /// Whether the object in a slot may be evicted. A pin counts as soon as the slot has it, even before its
    /// client is answered.
    fn may_be_evicted(&self, segment: SegmentId, record: &SlotRecord, now: Tick) -> bool {
        let of_node = self.generation_of.iter().filter(|((at, _), _)| *at == segment);
        let place = of_node.into_iter().find(|((_, slot_ref), _)| slot_ref.stamp == record.stamp);
        let Some(((_, slot_ref), generation)) = place else { return false };
        let Some(history) = self.objects.get(generation) else { return false };
        let is_named = self.standing(history.name) == Some(*generation);
        let place = (segment, *slot_ref);
        // A copy is evicted once the master knows that it was made.
        let is_known = !self.tier.is_pending(place) && !self.retired.contains(&place);
        is_named && is_known && !record.hard_pin && !history.is_protected() && history.lease_until <= now
    }
}

impl World {
    /// A put that can never fit is refused at once, even if it may wait.
    fn check_never_fits(&mut self, to: (ConnId, RequestId), reserved: &Reserved) {
        let Some(since) = self.oracle.waiting_puts.remove(&to) else { return };
        let [ReserveOutcome::OverQuota(quota)] = reserved.items.as_slice() else { return };
        let (quota, now) = (*quota, self.peek_clock());
        if quota.is_never_enough() && since < now {
            self.oracle.fail("r19", || {
                format!("a put waited from {since:?} to {now:?} without a chance: {quota:?}")
            });
        }
    }

    /// Checks the answer to a put. In worlds without disks and without protected soft pins, every evictable
    /// object must have been evicted.
    pub(crate) fn check_full(&mut self, to: (ConnId, RequestId), reserved: &Reserved) {
        self.check_never_fits(to, reserved);
        let single = self.oracle.single_puts.remove(&to);
        self.oracle.single_puts.clear();
        // A lease that ends during the put may have protected an object at first.
        let Some(SinglePut { avoid, len, now, evictions, allocations, saves }) = single else { return };
        // Before a node is asked for memory of an evicted object, it may have to be saved what others owe.
        let was_asked = allocations != self.oracle.allocations || saves != self.oracle.saves;
        let in_vain = if was_asked { 0 } else { self.oracle.evictions - evictions };
        if let ([ReserveOutcome::OverQuota(quota)], 1..) = (reserved.items.as_slice(), in_vain) {
            let fail = || format!("{in_vain} objects were evicted, and then the put was refused: {quota:?}");
            return self.oracle.fail("r19", fail);
        }
        let [ReserveOutcome::Full(full)] = reserved.items.as_slice() else { return };
        // Memory that is guaranteed to another namespace is not evicted, and not used.
        let is_reserved_for_others = self.plan.guaranteed_percent > 0;
        if full.never || self.plan.has_disks() || !self.plan.evict_soft_pinned || is_reserved_for_others {
            return;
        }
        // The rule is that of the client, whatever could be evicted.
        if full.lacks == Resource::Share {
            return;
        }
        let Some(master) = &self.master else { return };
        self.coverage.hit(Point::CheckedFull);
        let stat = master.stat();
        // The quota is enforced before the master knows that memory is short.
        let is_limited = stat.namespaces.iter().any(|it| it.quota.is_some());
        if !is_limited && in_vain > 0 {
            let fail = || format!("{in_vain} objects were evicted for a put that no node was asked about");
            return self.oracle.fail("r19", fail);
        }
        let available = master.available().into_iter().map(|(segment, free, rest)| (segment, (free, rest)));
        let available: BTreeMap<_, _> = available.collect();
        // A node that is drained has no capacity.
        let is_ready =
            |it: &&NodeStat| it.alive && it.usage.capacity > 0 && !avoid.contains(&it.info.segment);
        for node in stat.nodes.iter().filter(is_ready) {
            let segment = node.info.segment;
            let Some(memory) = self.memories.get(&segment).filter(|it| it.alive) else { continue };
            let committed = memory.slots().filter(|(_, it)| it.state == SlotState::Committed);
            let left = committed.map(|(_, it)| it).filter(|it| {
                let name = crate::node::name_in_heap(memory, it);
                let last_use = name
                    .and_then(|name| master.last_use(keyspace::namespace_name(name.namespace), &name.key()));
                let is_leased = last_use.is_none_or(|(_, until)| until > now);
                !is_leased && self.oracle.may_be_evicted(segment, it, now)
            });
            let left: Vec<_> = left.cloned().collect();
            // A node may lack more bytes than the master could evict there, whatever another node lacks.
            let (free, evictable) = available.get(&segment).copied().unwrap_or_default();
            let would_do = space_for(len).is_some_and(|need| need <= free + evictable);
            // Enough was evicted there, and is freed once all views are listed.
            let waits_for_lists = space_for(len).is_some_and(|need| need <= node.usage.unlisted);
            if waits_for_lists {
                continue;
            }
            if !left.is_empty() && would_do {
                let lacks = full.lacks;
                return self.oracle.fail("r19", || {
                    format!("a put that lacks {lacks:?} gets Full, but {segment} could evict {left:?}")
                });
            }
        }
    }
}
