//! Transfers of bytes, a few units at a time, with all other events in between.
//!
//! Through a mapping the client copies, whenever it runs: no message can stop it. Through a socket the node
//! copies, and brackets every piece with `begin_…` and `end_…`. The rules are those of `transport`: a writer
//! checks its slot after mapping, a reader loads the record, copies, and checks the stamp again.

use tiffin_node::{Event as CoreEvent, SlotState};
use tiffin_session::{NeedId, ReadResult, SeenState, WriteResult, is_valid_cached};
use tiffin_types::{
    ClientId, EXTENT_ALIGN, SegmentId, SlotRef,
    message::{ClientToNode, Store},
    mutant::Mutant,
};

use crate::{
    client::{ClientEvent, SessionId},
    coverage::Point,
    memory::{Tag, ValueId, all_units},
    node::NodeEvent,
    world::World,
};

/// Id of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TransferId(pub(crate) u64);

/// Result of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Whole,
    Stale,
    Unreachable,
}

/// A copy of one object, in or out.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) client: usize,
    pub(crate) client_id: ClientId,
    pub(crate) session: SessionId,
    pub(crate) need: NeedId,
    pub(crate) segment: SegmentId,
    pub(crate) slot_ref: SlotRef,
    pub(crate) len: u64,
    /// The value to write; none for a read.
    pub(crate) write: Option<ValueId>,
    pub(crate) socket: bool,
    /// See [`Order::cached_epoch`].
    cached_epoch: Option<u64>,
    /// The epoch of the master that the client was connected to when it began; 0 if it was not.
    reader_epoch: u64,
    /// Number of units copied.
    done: u32,
    /// Through a mapping: all units, once the record is loaded. Through a socket: those of the current piece.
    units: Option<Vec<usize>>,
    /// It writes into an unclaimed offer.
    must_claim: bool,
    /// The tags that were read.
    tags: Vec<Tag>,
    data_open: bool,
    /// The data connection broke.
    pub(crate) violation: bool,
    /// The client no longer waits for it.
    client_done: bool,
    node_done: bool,
}

impl Transfer {
    pub(crate) fn is_cached(&self) -> bool {
        self.cached_epoch.is_some()
    }

    /// Number of units copied.
    pub(crate) fn units_done(&self) -> u32 {
        self.done
    }

    fn total(&self) -> u32 {
        self.len.div_ceil(EXTENT_ALIGN) as u32
    }
}

/// A transfer that a session requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) client: usize,
    pub(crate) session: SessionId,
    pub(crate) need: NeedId,
    pub(crate) segment: SegmentId,
    pub(crate) slot_ref: SlotRef,
    pub(crate) len: u64,
    pub(crate) write: Option<ValueId>,
    /// For a read from a cached location: the epoch in which the object was named.
    pub(crate) cached_epoch: Option<u64>,
}

impl World {
    /// Starts a transfer, through the mapping if the client has one.
    pub(crate) fn start_transfer(&mut self, order: Order) -> Option<TransferId> {
        let client = self.clients.get(order.client)?;
        let (client_id, socket) = (client.id, !client.attached.contains(&order.segment));
        self.next_transfer += 1;
        let id = TransferId(self.next_transfer);
        let transfer = Transfer {
            client: order.client,
            client_id,
            session: order.session,
            need: order.need,
            segment: order.segment,
            slot_ref: order.slot_ref,
            len: order.len,
            write: order.write,
            socket,
            cached_epoch: order.cached_epoch,
            reader_epoch: client.epoch().unwrap_or_default(),
            done: 0,
            units: None,
            must_claim: false,
            tags: Vec::new(),
            data_open: false,
            violation: false,
            client_done: false,
            node_done: !socket,
        };
        self.transfers.insert(id, transfer);
        let delay = self.rng.delay(4, 60);
        let node = if order.slot_ref.is_on_disk() {
            self.disk_of(order.segment)
        } else {
            self.node_of(order.segment)
        };
        match (socket, node) {
            (false, _) => self.client_at(delay, order.client, ClientEvent::Step(id)),
            (true, Some(node)) => self.node_at(delay, node, NodeEvent::Chunk(id)),
            (true, None) => {
                self.node_is_done(id);
                self.client_at(delay, order.client, ClientEvent::Transferred(id, Ended::Unreachable));
            }
        }
        Some(id)
    }

    /// The client stops: no further unit is copied through its mapping.
    pub(crate) fn cancel_transfer(&mut self, id: TransferId) {
        if let Some(transfer) = self.transfers.get_mut(&id) {
            transfer.client_done = true;
            if transfer.node_done {
                self.transfers.remove(&id);
            }
        }
    }

    /// The data connection breaks; the client is informed.
    pub(crate) fn break_transfer(&mut self, id: TransferId) {
        let delay = self.rng.below(20);
        let Some(transfer) = self.transfers.get_mut(&id).filter(|it| !it.violation && !it.client_done) else {
            return;
        };
        transfer.violation = true;
        let client = transfer.client;
        self.client_at(delay, client, ClientEvent::Transferred(id, Ended::Unreachable));
    }

    pub(crate) fn transfers_lose_node(&mut self, segment: SegmentId) {
        let lost = self.transfers.iter().filter(|(_, it)| it.socket && it.segment == segment);
        let lost: Vec<_> = lost.map(|(id, _)| *id).collect();
        for id in lost {
            self.break_transfer(id);
            self.node_is_done(id);
        }
    }

    /// One step of a copy through a mapping.
    pub(crate) fn mapped_step(&mut self, id: TransferId) {
        let pace = self.rng.between(1, 3) as usize;
        let pause = self.rng.delay(4, 80);
        let Some(transfer) = self.transfers.get_mut(&id).filter(|it| !it.client_done) else { return };
        let Some(memory) = self.memories.get_mut(&transfer.segment) else { return };
        let client = transfer.client;
        let Some(units) = &transfer.units else {
            let record = memory.load(transfer.slot_ref);
            let record = record.filter(|it| it.len == transfer.len);
            let record = record.filter(|it| transfer.write.is_none() || it.state.writer().is_some());
            let is_offered = record.as_ref().is_some_and(|it| matches!(it.state, SlotState::Offered(_)));
            let writes_unclaimed = self.mutant == Mutant::WriteUnclaimed;
            transfer.must_claim = is_offered && transfer.write.is_some() && !writes_unclaimed;
            transfer.units = record.map(|it| all_units(&it.extents));
            return match transfer.units.is_some() {
                true => self.client_at(pause, client, ClientEvent::Step(id)),
                false => self.transferred(id, Ended::Stale),
            };
        };
        if std::mem::take(&mut transfer.must_claim) {
            let is_claimed = memory.claim(transfer.slot_ref);
            self.coverage.hit(if is_claimed { Point::OfferClaimed } else { Point::ClaimFailed });
            if !is_claimed {
                return self.transferred(id, Ended::Stale);
            }
        }
        let first = transfer.done as usize;
        for (place, unit) in units.iter().copied().enumerate().skip(first).take(pace) {
            match transfer.write {
                Some(value) => {
                    let tag = Tag { value, unit: place as u32 };
                    self.oracle.writes(memory, unit, transfer.slot_ref, &mut self.coverage);
                    memory.write_unit(unit, tag);
                }
                None => transfer.tags.extend(memory.read_unit(unit)),
            }
            transfer.done += 1;
        }
        if transfer.done < transfer.total() {
            return self.client_at(pause, client, ClientEvent::Step(id));
        }
        let unchecked = self.mutant == Mutant::CheckBeforeCopyOnly && transfer.write.is_none();
        let (segment, slot_ref, reader_epoch) = (transfer.segment, transfer.slot_ref, transfer.reader_epoch);
        let is_current = match transfer.cached_epoch {
            None => memory.is_current(slot_ref) && !self.is_withdrawn(segment, slot_ref),
            Some(named) => self.is_valid_cached(reader_epoch, segment, slot_ref, named),
        };
        let whole = unchecked || is_current;
        if whole {
            self.validated(id);
        }
        self.transferred(id, if whole { Ended::Whole } else { Ended::Stale });
    }

    /// Whether bytes count that were read from a cached location of an object that was `named` in that epoch,
    /// by a client of a master of that `epoch`.
    pub(crate) fn is_valid_cached(
        &mut self,
        epoch: u64,
        segment: SegmentId,
        slot_ref: SlotRef,
        named: u64,
    ) -> bool {
        let Some(memory) = self.memories.get(&segment) else { return false };
        let seen = match self.mutant == Mutant::IgnoreWithdrawn {
            true => memory.seen_in_slot(slot_ref),
            false => memory.seen(slot_ref),
        };
        if memory.is_current(slot_ref) && memory.is_withdrawn(slot_ref) {
            self.coverage.hit(Point::ReadOfWithdrawn);
        }
        let is_valid = is_valid_cached(seen, named, epoch);
        if is_valid && seen.state == Some(SeenState::Reserved) {
            self.coverage.hit(Point::KnownReadEarly);
        }
        is_valid
    }

    /// Whether a reader finds that the master has withdrawn a use.
    pub(crate) fn is_withdrawn(&self, segment: SegmentId, slot_ref: SlotRef) -> bool {
        let is_withdrawn = self.memories.get(&segment).is_some_and(|it| it.is_withdrawn(slot_ref));
        is_withdrawn && self.mutant != Mutant::IgnoreWithdrawn
    }

    /// A piece, or the request for one, arrives at the node.
    pub(crate) fn chunk(&mut self, node: usize, id: TransferId) {
        let pace = self.rng.between(1, 4) as u32;
        let (copying, late) = (self.rng.delay(4, 60), self.rng.percent(50));
        let Some(transfer) = self.transfers.get_mut(&id).filter(|it| !it.node_done) else { return };
        if transfer.slot_ref.is_on_disk() {
            return self.disk_chunk(node, id);
        }
        if !std::mem::replace(&mut transfer.data_open, true) {
            let client = transfer.client_id;
            self.node_handles(node, CoreEvent::DataOpened(client));
        }
        let read = self.transfers.get(&id).filter(|it| it.write.is_none());
        let is_withdrawn = read.is_some_and(|it| self.is_withdrawn(it.segment, it.slot_ref));
        let Some(transfer) = self.transfers.get_mut(&id) else { return };
        let Some(core) = self.nodes.get_mut(node).and_then(|it| it.core.as_mut()) else { return };
        if transfer.violation || (transfer.client_done && !late) {
            return self.close_data(node, id);
        }
        let offset = u64::from(transfer.done) * EXTENT_ALIGN;
        let len = (u64::from(pace) * EXTENT_ALIGN).min(transfer.len.saturating_sub(offset));
        let extents = match transfer.write {
            Some(_) => core.begin_store(transfer.client_id, transfer.slot_ref, offset, len),
            None if is_withdrawn => None,
            None => core.begin_send(
                transfer.slot_ref,
                offset,
                len,
                transfer.cached_epoch.map(|_| transfer.reader_epoch),
            ),
        };
        transfer.units = extents.map(|it| all_units(&it));
        let is_begun = transfer.units.is_some();
        // An offer is claimed by its first byte.
        self.drain_node(node);
        match is_begun {
            true => self.node_at(copying, node, NodeEvent::ChunkDone(id)),
            false => self.end_socket(node, id, Ended::Stale),
        }
    }

    /// The piece is copied.
    pub(crate) fn chunk_done(&mut self, node: usize, id: TransferId) {
        let travel = self.rng.delay(4, 40);
        let Some(transfer) = self.transfers.get_mut(&id) else { return };
        if transfer.slot_ref.is_on_disk() {
            return self.disk_chunk_done(node, id);
        }
        let ignores = self.mutant == Mutant::IgnoreWithdrawn;
        let Some(memory) = self.memories.get_mut(&transfer.segment) else { return };
        let is_withdrawn = memory.is_withdrawn(transfer.slot_ref) && !ignores;
        let Some(core) = self.nodes.get_mut(node).and_then(|it| it.core.as_mut()) else { return };
        for (place, unit) in (transfer.done..).zip(transfer.units.take().unwrap_or_default()) {
            match transfer.write {
                Some(value) => {
                    self.oracle.writes(memory, unit, transfer.slot_ref, &mut self.coverage);
                    memory.write_unit(unit, Tag { value, unit: place });
                }
                None => transfer.tags.extend(memory.read_unit(unit)),
            }
            transfer.done += 1;
        }
        let is_current = match transfer.write {
            Some(_) => {
                core.end_store(transfer.slot_ref);
                true
            }
            None => {
                let epoch = transfer.cached_epoch.map(|_| transfer.reader_epoch);
                core.end_send(transfer.slot_ref, epoch) && !is_withdrawn
            }
        };
        let (more, wanted) = (transfer.done < transfer.total(), !transfer.client_done && !transfer.violation);
        self.drain_node(node);
        match (is_current, more) {
            (false, _) => self.end_socket(node, id, Ended::Stale),
            (true, true) if !wanted => self.close_data(node, id),
            (true, true) => self.node_at(travel, node, NodeEvent::Chunk(id)),
            (true, false) => {
                self.validated(id);
                self.end_socket(node, id, Ended::Whole);
            }
        }
    }

    /// Bytes inside a commit are written before it is handled.
    pub(crate) fn write_inline(&mut self, node: usize, client: ClientId, store: Store) -> ClientToNode {
        let Store { commit, bytes } = store;
        for (item, bytes) in commit.items.iter().zip(&bytes) {
            let Some(value) = bytes.first_chunk().map(|it| ValueId(u32::from_le_bytes(*it))) else {
                continue;
            };
            let Some(shell) = self.nodes.get_mut(node) else { continue };
            let (Some(core), Some(memory)) = (shell.core.as_mut(), self.memories.get_mut(&shell.segment))
            else {
                continue;
            };
            let Some(extents) = core.begin_store(client, item.slot_ref, 0, item.len) else {
                self.coverage.hit(Point::CarriedInVain);
                continue;
            };
            for (place, unit) in (0..).zip(all_units(&extents)) {
                self.oracle.writes(memory, unit, item.slot_ref, &mut self.coverage);
                memory.write_unit(unit, Tag { value, unit: place });
            }
            core.end_store(item.slot_ref);
            self.coverage.hit(Point::CarriedWritten);
            self.drain_node(node);
        }
        ClientToNode::Commit(commit)
    }

    /// The client has the result.
    pub(crate) fn transferred(&mut self, id: TransferId, ended: Ended) {
        let Some(transfer) = self.transfers.get(&id).filter(|it| !it.client_done) else { return };
        let (client, session, need) = (transfer.client, transfer.session, transfer.need);
        let segment = transfer.segment;
        let (write, socket) = (transfer.write.is_some(), transfer.socket);
        match (transfer.is_cached(), ended, socket) {
            (true, Ended::Whole, false) => self.coverage.hit(Point::KnownRead),
            (true, Ended::Stale, false) => self.coverage.hit(Point::KnownReadStale),
            (true, Ended::Whole, true) => self.coverage.hit(Point::KnownSocketRead),
            (true, Ended::Stale, true) => self.coverage.hit(Point::KnownSocketReadStale),
            _ => (),
        }
        self.log.line(self.now, "transferred", &[id.0, ended as u64], &[]);
        match (ended, write, socket) {
            (Ended::Whole, true, false) => self.coverage.hit(Point::MappedWritten),
            (Ended::Whole, false, false) => self.coverage.hit(Point::MappedRead),
            (Ended::Whole, true, true) => self.coverage.hit(Point::SocketWritten),
            (Ended::Whole, false, true) => self.coverage.hit(Point::SocketRead),
            (Ended::Stale, true, false) => self.coverage.hit(Point::MappedWriteStale),
            (Ended::Stale, false, false) => self.coverage.hit(Point::MappedReadStale),
            (Ended::Stale, true, true) => self.coverage.hit(Point::SocketWriteStale),
            (Ended::Stale, false, true) => self.coverage.hit(Point::SocketReadStale),
            (Ended::Unreachable, ..) => (),
        }
        self.cancel_transfer(id);
        let why = || "the connection broke".to_owned();
        if write {
            let result = match ended {
                Ended::Whole => WriteResult::Written,
                Ended::Stale => WriteResult::Stale,
                Ended::Unreachable => WriteResult::Unreachable(why()),
            };
            self.session_written(client, session, id, (segment, need), result);
        } else {
            let result = match ended {
                Ended::Whole => ReadResult::Valid,
                Ended::Stale => ReadResult::Stale,
                Ended::Unreachable => ReadResult::Unreachable(why()),
            };
            self.session_read(client, session, id, need, result);
        }
    }

    /// A copy was read from a disk completely and is valid.
    pub(crate) fn has_read(&mut self, id: TransferId, tags: Vec<Tag>, units: u32) {
        if let Some(transfer) = self.transfers.get_mut(&id) {
            (transfer.tags, transfer.done) = (tags, units);
        }
        self.validated(id);
    }

    /// A read is valid from here on.
    fn validated(&mut self, id: TransferId) {
        let Some(transfer) = self.transfers.get(&id).filter(|it| it.write.is_none()) else { return };
        self.oracle.read(
            transfer.segment,
            transfer.slot_ref,
            transfer.len,
            &transfer.tags,
            &mut self.coverage,
        );
    }

    pub(crate) fn end_socket(&mut self, node: usize, id: TransferId, ended: Ended) {
        let travel = self.rng.delay(4, 40);
        let Some(transfer) = self.transfers.get(&id) else { return };
        let (client, listens) = (transfer.client, !transfer.client_done && !transfer.violation);
        if listens {
            self.client_at(travel, client, ClientEvent::Transferred(id, ended));
        }
        self.close_data(node, id);
    }

    fn close_data(&mut self, node: usize, id: TransferId) {
        let delay = self.rng.delay(4, 60);
        let Some(transfer) = self.transfers.get(&id) else { return };
        if transfer.data_open {
            self.node_at(delay, node, NodeEvent::DataClosed(transfer.client_id));
        }
        self.node_is_done(id);
    }

    fn node_is_done(&mut self, id: TransferId) {
        if let Some(transfer) = self.transfers.get_mut(&id) {
            transfer.node_done = true;
            if transfer.client_done {
                self.transfers.remove(&id);
            }
        }
    }
}
