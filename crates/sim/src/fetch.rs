//! Copies between members: a node reads an object of another member into its own memory, a few units at a
//! time. The rules are those of a read through a socket: the source brackets every piece, and says after it
//! whether it counts.

use tiffin_node::Event as CoreEvent;
use tiffin_types::{ClientId, EXTENT_ALIGN, SegmentId, SlotRef, message::FetchItem};

use crate::{
    coverage::Point,
    memory::{Tag, all_units},
    node::NodeEvent,
    world::{Phase, World},
};

/// One copy between members.
#[derive(Debug)]
pub(crate) struct Fetching {
    item: FetchItem,
    /// The units of the reservation.
    units: Vec<usize>,
    done: usize,
    /// The units of the source that are being sent, from a memory.
    sending: Option<Vec<usize>>,
}

impl World {
    /// A node is to read a copy of another member.
    pub(crate) fn begin_fetch(&mut self, node: usize, item: FetchItem) {
        let Some(shell) = self.nodes.get_mut(node) else { return };
        let segment = shell.segment;
        let extents =
            shell.core.as_mut().and_then(|it| it.begin_store(ClientId::PROMOTER, item.into, 0, item.len));
        let Some(extents) = extents else { return self.fetched(node, item.into, false) };
        if let Some(value) = self.oracle.written.get(&(item.source.segment, item.from)).copied() {
            self.oracle.will_write(segment, item.into, value);
        }
        let (into, units) = (item.into, all_units(&extents));
        let fetching = Fetching { item, units, done: 0, sending: None };
        self.fetching.insert((node, into), fetching);
        let delay = self.rng.delay(4, 60);
        self.node_at(delay, node, NodeEvent::Fetch(into));
    }

    /// The next piece is requested; an empty object has none.
    pub(crate) fn fetch_piece(&mut self, node: usize, into: SlotRef) {
        let pace = self.rng.between(1, 4);
        let (copying, breaks) = (self.rng.delay(4, 60), self.rng.once_in(60));
        let Some(fetching) = self.fetching.get_mut(&(node, into)) else { return };
        let FetchItem { from, len, source, .. } = fetching.item.clone();
        let offset = fetching.done as u64 * EXTENT_ALIGN;
        let piece = (pace * EXTENT_ALIGN).min(len.saturating_sub(offset));
        let is_open = !breaks || self.phase != Phase::Faults;
        if from.is_on_disk() {
            let is_there = self.disk_tags(source.segment, from).is_some();
            return match is_there && is_open {
                true => self.node_at(copying, node, NodeEvent::FetchDone(into)),
                false => self.end_fetch(node, into, false),
            };
        }
        let sender = self.node_of(source.segment).filter(|_| is_open);
        let sender = sender.filter(|_| !self.is_withdrawn(source.segment, from));
        let core = sender.and_then(|it| self.nodes.get_mut(it)?.core.as_mut());
        let extents = core.and_then(|it| it.begin_send(from, offset, piece, None));
        let Some(extents) = extents else { return self.end_fetch(node, into, false) };
        if let Some(fetching) = self.fetching.get_mut(&(node, into)) {
            fetching.sending = Some(all_units(&extents));
        }
        self.node_at(copying, node, NodeEvent::FetchDone(into));
    }

    /// A piece arrives, and whether it counts.
    pub(crate) fn fetch_piece_done(&mut self, node: usize, into: SlotRef) {
        let travel = self.rng.delay(4, 40);
        let Some(fetching) = self.fetching.get_mut(&(node, into)) else { return };
        let FetchItem { from, source, .. } = fetching.item.clone();
        let tags = match fetching.sending.take() {
            Some(units) => self.sent_tags(source.segment, from, &units),
            None => self.disk_tags(source.segment, from),
        };
        let Some(tags) = tags else { return self.end_fetch(node, into, false) };
        let Some(segment) = self.nodes.get(node).map(|it| it.segment) else { return };
        let Some(fetching) = self.fetching.get_mut(&(node, into)) else { return };
        let Some(memory) = self.memories.get_mut(&segment) else { return };
        for tag in tags {
            let Some(&unit) = fetching.units.get(fetching.done) else { break };
            self.oracle.writes(memory, unit, into, &mut self.coverage);
            memory.write_unit(unit, tag);
            fetching.done += 1;
        }
        match fetching.done < fetching.units.len() {
            true => self.node_at(travel, node, NodeEvent::Fetch(into)),
            false => self.end_fetch(node, into, true),
        }
    }

    /// The units that a node has sent from its memory, if they count.
    fn sent_tags(&mut self, segment: SegmentId, from: SlotRef, units: &[usize]) -> Option<Vec<Tag>> {
        let sender = self.node_of(segment)?;
        let is_withdrawn = self.is_withdrawn(segment, from);
        let memory = self.memories.get(&segment)?;
        let tags = units.iter().filter_map(|unit| memory.read_unit(*unit)).collect();
        let counts = self.nodes.get_mut(sender)?.core.as_mut()?.end_send(from, None);
        self.drain_node(sender);
        (counts && !is_withdrawn).then_some(tags)
    }

    /// The units of a copy on a disk, if it can be read.
    fn disk_tags(&self, segment: SegmentId, from: SlotRef) -> Option<Vec<Tag>> {
        let disk = self.nodes.get(self.disk_of(segment)?)?.disk.as_ref()?;
        disk.core.as_ref()?.readable(from.stamp, None)?;
        let copy = disk.log.copies.get(&from.stamp).filter(|it| !it.flipped)?;
        (disk.log.fails_until <= self.now).then(|| copy.tags.clone())
    }

    fn end_fetch(&mut self, node: usize, into: SlotRef, is_whole: bool) {
        if self.fetching.remove(&(node, into)).is_none() {
            return;
        }
        if let Some(core) = self.nodes.get_mut(node).and_then(|it| it.core.as_mut()) {
            core.end_store(into);
        }
        self.drain_node(node);
        self.fetched(node, into, is_whole);
    }

    fn fetched(&mut self, node: usize, into: SlotRef, is_whole: bool) {
        self.coverage.hit(if is_whole { Point::Fetched } else { Point::FetchFailed });
        self.node_handles(node, CoreEvent::Fetched(into, is_whole));
    }

    /// A node's process dies, and what it reads is lost.
    pub(crate) fn fetches_lose_node(&mut self, node: usize) {
        let lost = self.fetching.extract_if(.., |(at, _), _| *at == node);
        for (_, Fetching { item, sending, .. }) in lost.collect::<Vec<_>>() {
            // The source notices that the connection is closed.
            if let Some(units) = sending {
                self.sent_tags(item.source.segment, item.from, &units);
            }
        }
    }
}
