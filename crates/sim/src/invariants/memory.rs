//! Memory: the usage counters are correct, memory is used once, and at the end every byte is accounted for.

use std::collections::BTreeSet;

use tiffin_core::master::{Effect, Notice, asked_members};
use tiffin_node::{Node, SlotRecord, SlotState};
use tiffin_types::{
    Extent, Stamp,
    message::{NodeStat, Reply, ReserveOutcome},
    space_for,
};

use crate::{
    coverage::Point,
    invariants::drains::is_usage_of_drained,
    memory::{Memory, units},
    network::Conn,
    oracle::Oracle,
    world::World,
};

impl Oracle {
    /// Memory is reserved for a writer: it must not belong to another use.
    pub(crate) fn reserved(&mut self, memory: &Memory, record: &SlotRecord) {
        for unit in record.extents.iter().flat_map(|it| units(*it)) {
            if memory.is_withheld(unit) {
                return self.fail("memory", || format!("unit {unit} of {record:?} has no memory"));
            }
            if let Some(other) = memory.covered_by(unit, record.stamp) {
                return self.fail("memory", || format!("unit {unit} of {record:?} is {other:?}'s"));
            }
        }
    }
}

impl Oracle {
    /// Bytes are taken for metadata: they must not belong to a use.
    pub(crate) fn withheld(&mut self, memory: &Memory, extent: Extent) {
        if let Some(other) = units(extent).find_map(|unit| memory.covered_by(unit, Stamp::NONE)) {
            self.fail("memory", || format!("{extent:?} is taken for metadata, but belongs to {other:?}"));
        }
    }
}

impl World {
    /// The usage that nodes report matches their slots.
    pub(crate) fn check_books(&mut self) {
        for shell in &self.nodes {
            let Some(core) = &shell.core else { continue };
            let Some(memory) = self.memories.get(&shell.segment) else { continue };
            self.coverage.hit(Point::CheckedBooks);
            let usage = core.usage();
            let (mut committed, mut granted, mut offered, mut objects) = (0, 0, 0, 0);
            for (_, record) in memory.slots() {
                let space: u64 = record.extents.iter().filter_map(|it| space_for(it.len)).sum();
                match record.state {
                    SlotState::Committed => (committed, objects) = (committed + space, objects + 1),
                    SlotState::Reserved(_) | SlotState::Ending | SlotState::Prepared => granted += space,
                    SlotState::Offered(_) => offered += space,
                }
            }
            let sum = usage.free + usage.granted + usage.committed + usage.held + usage.metadata;
            let shown = (committed, granted, offered, objects);
            let same = shown == (usage.committed, usage.granted, usage.offered, usage.objects);
            let is_whole = match shell.draining.is_some() && usage.capacity == 0 {
                true => is_usage_of_drained(&usage, self.plan.capacity),
                false => sum == usage.capacity,
            };
            if !is_whole || !same {
                let segment = shell.segment;
                return self
                    .oracle
                    .fail("memory", || format!("{segment} reports {usage:?}, but its slots show {shown:?}"));
            }
        }
    }

    /// At the end nothing is reserved or in view; without clients nothing is offered.
    pub(crate) fn check_nothing_leaks(&mut self, when: &str) {
        let has_clients = self.clients.iter().any(|it| it.alive);
        for shell in &self.nodes {
            let Some(core) = &shell.core else { continue };
            let usage = core.usage();
            if usage.granted > 0 || usage.held > 0 || (usage.offered > 0 && !has_clients) {
                let segment = shell.segment;
                return self.oracle.fail("memory", || format!("{when}: {segment} leaks: {usage:?}"));
            }
        }
    }

    /// A put must not be refused for lack of memory, nor evict anything, while a node has enough unclaimed
    /// offers. Only nodes without messages in flight count: the master cannot know about others. A message
    /// may wait until the state is saved.
    pub(crate) fn check_offers(&mut self, effect: &Effect) {
        let put = match effect {
            Effect::Reply(conn, id, Reply::Reserved(reserved)) => {
                // A concurrent put may have claimed the offers that were planned for this one.
                let is_alone = self.oracle.single_puts.contains_key(&(*conn, *id));
                let need = self.oracle.needs.remove(&(*conn, *id)).filter(|_| is_alone);
                need.filter(|_| matches!(reserved.items.as_slice(), [ReserveOutcome::Full(_)]))
            }
            Effect::Notice(Notice::Evicted(..)) => {
                self.oracle.newest_put.and_then(|it| self.oracle.needs.get(&it)).copied()
            }
            _ => None,
        };
        let Some(need) = put else { return };
        self.coverage.hit(Point::CheckedOffers);
        let members: Vec<_> = self.master.iter().flat_map(|it| it.stat().nodes).collect();
        let asked: BTreeSet<_> = self.master.iter().flat_map(asked_members).collect();
        for shell in &self.nodes {
            let is_idle = shell.link.and_then(|it| self.conns.get(&it)).is_some_and(Conn::is_idle);
            let is_idle = is_idle && !asked.contains(&shell.segment);
            let is_ready =
                |it: &NodeStat| it.alive && it.info.segment == shell.segment && it.usage.capacity > 0;
            let is_ready = shell.draining.is_none() && members.iter().any(is_ready);
            let is_member = shell.core.as_ref().is_some_and(Node::is_member);
            let unclaimed = self.memories.get(&shell.segment).map_or(0, Memory::unclaimed);
            if is_idle && is_ready && is_member && unclaimed >= need {
                let segment = shell.segment;
                let what =
                    || format!("{unclaimed} bytes of {segment} are offered, {need} are needed: {effect:?}");
                return self.oracle.fail("p5", what);
            }
        }
    }
}
