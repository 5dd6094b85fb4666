//! The decisions of a storage node and its disks, and no I/O.
//!
//! [`Node`] is the state machine of a node's memory: which bytes belong to which object, which clients may
//! access them, and the stamps that make reads valid. [`disk::Disk`] decides about the copies on one disk.
//!
//! The shell passes in each [`Event`] with [`Node::handle`], then drains [`Node::poll_effect`] and carries
//! out the effects *in order* before it does anything else: a reply must not overtake the memory that it
//! describes. The data sockets call [`Node::begin_store`]/[`Node::end_store`] and
//! [`Node::begin_send`]/[`Node::end_send`] around every copy.
//!
//! **Invariant:** the same events give the same effects. Nothing here reads a clock, draws a random number,
//! starts a task, or depends on the order of a hash map.
//!
//! **Invariant:** no byte of user data and no pointer enters this crate, only extents and lengths.

mod adopt;
mod clients;
pub mod disk;
mod drain;
pub mod extent;
mod fetch;
mod held;
mod link;
mod metadata;
mod slots;
mod stamp_key;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_adopt;
#[cfg(test)]
mod tests_guarantees;
#[cfg(test)]
mod tests_offers;
mod transfers;
mod views;

use std::collections::VecDeque;

pub use adopt::{Adopted, Damage, Found};
use clients::Clients;
use drain::Draining;
use fetch::Fetches;
pub(crate) use link::serves;
use link::{Link, Waiting};
pub use metadata::{SLOT_BYTES, Table, TableRange};
use slots::{AttributesSet, Identity, Slots, Whose};
pub use slots::{EXTENTS_INLINE, SlotRecord, SlotState};
pub use stamp_key::StampKey;

use tiffin_types::{
    ANSWER_EXTENTS_MAX, BATCH_ITEMS_MAX, ClientId, ClusterId, ConnId, Extent, RequestId, Reservation,
    SegmentId, SlotId, SlotRef,
    attributes::Attributes,
    message::{
        Allocate, Allocated, AttributesItem, ClientToNode, Commit, CommitItem, CommitOutcome, DecideItem,
        DrainJob, DrainReport, FetchItem, MasterToMember, MemberToMaster, NodeInfo, Reason, Record, Refusal,
        Released, Reply, Settle, Settled, Shortage, Usage, wrong_direction,
    },
    mutant::{self, Mutant, is_mutant},
};

/// The parameters of a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeConfig {
    /// The random id of its memory.
    pub segment: SegmentId,
    /// Bytes for objects.
    pub capacity: u64,
    /// Maximum number of objects: the size of the table of slots. Only the part in use takes memory.
    pub slot_count: u32,
    /// Maximum number of bytes for names and long lists of extents. Only the part in use takes memory.
    pub heap_bytes: u64,
    /// Both grow by this number of bytes at a time, a multiple of
    /// [`EXTENT_ALIGN`](tiffin_types::EXTENT_ALIGN).
    pub chunk_bytes: u64,
    /// Number of such chunks that take no capacity, so that few objects leave all of it.
    pub chunks_free: u64,
    /// Memory that was withheld must be allocated before objects use it again, which may fail: other
    /// programs can fill the file system of a memory pool.
    pub restores: bool,
    /// Maximum number of extents of one object.
    pub extents_max: usize,
    /// The secret from which its stamps follow. Memory that is adopted keeps its key.
    pub stamp_key: StampKey,
    /// For the simulation only.
    pub mutant: Mutant,
}

/// An input of the node.
#[derive(Clone, Debug)]
pub enum Event {
    /// A client's connection was accepted.
    Opened {
        /// The new connection.
        conn: ConnId,
        /// Its client.
        client: ClientId,
        /// The namespace of its keys.
        namespace: String,
    },
    /// A request of a client.
    Request {
        /// On this connection.
        conn: ConnId,
        /// The reply carries the same id.
        id: RequestId,
        /// The request.
        request: ClientToNode,
    },
    /// A client has no reservation and no view any more, and does not return.
    Goodbye {
        /// On this connection.
        conn: ConnId,
        /// The reply carries the same id.
        id: RequestId,
    },
    /// A client's connection is closed.
    Closed(ConnId),
    /// A client maps the memory from now on.
    Mapped(ClientId),
    /// A client's process is dead, according to the kernel.
    Dead(ClientId),
    /// A client in the node's own process no longer accesses the memory.
    Detached(ClientId),
    /// A client opened a data connection.
    DataOpened(ClientId),
    /// A client's data connection is closed, and no copy for it is in progress.
    DataClosed(ClientId),
    /// The master accepted the connection; the node must register.
    Linked(NodeInfo),
    /// A request of the master.
    MasterRequest(RequestId, MasterToMember),
    /// Messages of the ledger, in order. One reply answers all of them.
    LedgerRead(Vec<(RequestId, Settle)>),
    /// A reply of the master.
    MasterReply(RequestId, Reply),
    /// The connection to the master is broken.
    Unlinked,
    /// The results of an [`Effect::Recall`]: true for recalled offers. No client has written there, or
    /// will. The others are claimed.
    Recalled(Vec<(SlotRef, bool)>),
    /// The result of an [`Effect::Restore`]: whether the memory was allocated.
    Restored(Vec<Extent>, bool),
    /// The copy of an [`Effect::Fetch`] into this reservation has ended: whether all its bytes are there, and
    /// were valid at their source after they were read.
    Fetched(SlotRef, bool),
    /// The node leaves soon: it accepts no new objects from now on, and reports no capacity. Its objects
    /// stay readable.
    Drain,
    /// How far the node's process is with its drain job.
    DrainReport(DrainReport),
    /// A heartbeat is due.
    Beat,
}

/// An action for the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write this slot: everything else first, the stamp last.
    Slot {
        /// The slot.
        slot: SlotId,
        /// Its content.
        record: SlotRecord,
    },
    /// Withdraw this slot's stamp, before any later effect.
    Withdraw {
        /// The slot.
        slot: SlotId,
    },
    /// Withdraw this slot's stamp, as above. Its memory is still viewed or copied, so the slot keeps saying
    /// which memory that is, and which stamp it had.
    Park {
        /// The retired slot.
        slot: SlotId,
    },
    /// The memory of this parked slot is not in use any more.
    Reclaim {
        /// The retired slot.
        slot: SlotId,
    },
    /// Recall these offers, by one compare-and-swap of each claim word, and pass in an [`Event::Recalled`]
    /// before any other event.
    Recall(Vec<SlotRef>),
    /// Read a copy of another member into a reservation, and say [`Event::Fetched`]. The bytes are bracketed
    /// with [`Node::begin_store`] for the client [`ClientId::PROMOTER`], and
    /// [`Node::end_store`].
    Fetch(FetchItem),
    /// Write these bytes into the heap.
    Heap {
        /// Where they begin, in bytes from the start of the heap.
        offset: u64,
        /// A name, spilled extents or attributes.
        bytes: Vec<u8>,
    },
    /// No object may use these bytes of the data segment, because records or names take as many: return
    /// their memory to the system.
    Withhold(Extent),
    /// Allocate this memory, which was withheld, and pass in an [`Event::Restored`] before any other event.
    /// Only with [`NodeConfig::restores`].
    Restore(Vec<Extent>),
    /// Records or names are written there from now on: it needs memory.
    Back(TableRange),
    /// Store that no stamp with this number or a greater one was used.
    StampHighWater(u64),
    /// Store the master and the cluster that the memory belongs to. The epoch is written last.
    Epoch {
        /// The epoch of the master.
        epoch: u64,
        /// Its [`Registered::instance`](tiffin_types::message::Registered::instance).
        instance: u64,
        /// The cluster.
        cluster: ClusterId,
    },
    /// Close the connection: the master refuses the node.
    Refused(Refusal),
    /// Close the connection: the master's epoch is not greater than the one that was served.
    RejectMaster {
        /// The greatest epoch that it has served.
        served: u64,
        /// The epoch of the master.
        offered: u64,
    },
    /// Store in the memory whether the node is a member of its cluster. While it is, it receives every
    /// retire, so a client with a cached location need not ask the master.
    Membership(bool),
    /// Send a reply to a client.
    Reply {
        /// On this connection.
        conn: ConnId,
        /// To this request.
        id: RequestId,
        /// The reply.
        reply: Reply,
    },
    /// Send a request to the master.
    AskMaster(RequestId, MemberToMaster),
    /// Send a reply to the master.
    AnswerMaster(RequestId, Reply),
    /// Close a connection that a newer one has replaced.
    Disconnect(ConnId),
    /// The drain job of the node from now on, if it has one: its process moves the objects away.
    Drain(Option<DrainJob>),
}

/// A request for memory in progress.
#[derive(Debug)]
struct Allocating {
    id: RequestId,
    allocate: Allocate,
    /// The reservations for the first items.
    items: Vec<Option<Reservation>>,
    /// The shortages of the items without space.
    short: Vec<Shortage>,
}

/// A request of the master that continues when offers are recalled.
#[derive(Debug)]
enum Suspended {
    Allocate(Allocating),
    SetAttributes(RequestId, Vec<AttributesItem>),
}

/// The state of the node.
#[derive(Debug)]
pub struct Node {
    config: NodeConfig,
    slots: Slots,
    clients: Clients,
    link: Link,
    /// Reservations that end without the master, and that it has not been informed of.
    released: Vec<SlotRef>,
    fetches: Fetches,
    suspended: Option<Suspended>,
    /// Offers that turn out to be claimed must be hidden like all reservations.
    hides_claimed: bool,
    draining: Draining,
    /// Views that were not begun, because their client had its share.
    views_refused: u64,
    effects: VecDeque<Effect>,
}

impl Node {
    /// A node with empty memory.
    #[must_use]
    pub fn new(config: NodeConfig) -> Self {
        Self {
            config,
            slots: Slots::new(config),
            clients: Clients::default(),
            link: Link::new(config.mutant),
            released: Vec::new(),
            fetches: Fetches::default(),
            suspended: None,
            hides_claimed: false,
            draining: Draining::default(),
            views_refused: 0,
            effects: VecDeque::new(),
        }
    }

    /// Processes one event.
    pub fn handle(&mut self, event: Event) {
        let freed = self.slots.freed();
        // The replies to these contain the usage.
        let is_answered = match &event {
            Event::MasterRequest(_, request) => !matches!(request, MasterToMember::ClientGone(_)),
            Event::LedgerRead(_) | Event::Recalled(_) => true,
            Event::Opened { .. }
            | Event::Request { .. }
            | Event::Goodbye { .. }
            | Event::Closed(_)
            | Event::Mapped(_)
            | Event::Dead(_)
            | Event::Detached(_)
            | Event::DataOpened(_)
            | Event::DataClosed(_)
            | Event::Linked(_)
            | Event::MasterReply(..)
            | Event::Unlinked
            | Event::Restored(..)
            | Event::Fetched(..)
            | Event::Drain
            | Event::DrainReport(_)
            | Event::Beat => false,
        };
        match event {
            Event::Opened { conn, client, namespace } => self.opened(conn, client, namespace),
            Event::Request { conn, id, request } => self.client_request(conn, id, request),
            Event::Goodbye { conn, id } => self.goodbye(conn, id),
            Event::Closed(conn) => self.closed(conn),
            Event::Mapped(client) => self.clients.map(client),
            Event::Dead(client) => {
                self.dead(client);
                // State that depends on the client ends now, not after a timeout.
                if self.link.is_member() {
                    self.link.notify(MemberToMaster::ClientDied(client), &mut self.effects);
                }
            }
            Event::Detached(client) => self.dead(client),
            Event::DataOpened(client) => self.clients.open_data(client),
            Event::DataClosed(client) => {
                self.clients.close_data(client);
                self.maybe_gone(client);
            }
            Event::Linked(info) => self.linked(info),
            Event::MasterRequest(id, request) => self.master_request(id, request),
            Event::LedgerRead(entries) => self.apply_ledger(entries),
            Event::MasterReply(id, reply) => self.master_reply(id, reply),
            Event::Unlinked => self.unlinked(),
            Event::Recalled(offers) => self.recalled(offers),
            Event::Restored(extents, is_allocated) => self.slots.restored(extents, is_allocated),
            Event::Fetched(into, is_whole) => {
                self.fetches.end(&self.slots, into, is_whole, &mut self.effects);
            }
            Event::Drain => {
                self.draining.leaves = true;
                self.drain();
            }
            Event::DrainReport(report) => {
                if self.draining.has(&report.job) && self.link.is_member() {
                    self.link.notify(MemberToMaster::Drained(Box::new(report)), &mut self.effects);
                }
            }
            Event::Beat => self.beat(),
        }
        self.report_space(freed, is_answered);
        self.slots.assert_balance();
    }

    /// Informs the master at once of memory that was freed without it: puts may be waiting for it.
    fn report_space(&mut self, freed_before: u64, is_answered: bool) {
        let grew = freed_before < self.slots.freed() && !is_answered;
        // What is held is charged to its namespace, so that the next put there finds it.
        let is_held = self.slots.held().take_change();
        if (grew || is_held || !self.released.is_empty()) && self.link.is_member() {
            let slot_refs = std::mem::take(&mut self.released);
            let (usage, held) = (self.slots.usage(), self.slots.held().by_namespace());
            self.link.notify_of_ends(Released { slot_refs, usage, held }, &mut self.effects);
        }
    }

    /// The next effect, oldest first.
    #[must_use]
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Every committed object.
    #[must_use]
    pub fn inventory(&self) -> Vec<Record> {
        self.slots.inventory(0, usize::MAX).0
    }

    /// Committed objects, at most `count`, and where the next page begins.
    #[must_use]
    pub fn inventory_page(&self, first: usize, count: usize) -> (Vec<Record>, Option<usize>) {
        self.slots.inventory(first, count)
    }

    /// The usage of its memory.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.slots.usage()
    }

    /// Every run of bytes that is withheld from objects; see [`Effect::Withhold`].
    pub fn withheld(&self) -> impl Iterator<Item = Extent> + '_ {
        self.slots.withheld()
    }

    /// See [`NodeConfig::restores`].
    #[must_use]
    pub fn restores(&self) -> bool {
        self.config.restores
    }

    /// Every range of the tables that has records or names; see [`Effect::Back`].
    pub fn backed(&self) -> impl Iterator<Item = TableRange> + '_ {
        self.slots.backed()
    }

    /// The epoch of the master that it last belonged to.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.link.epoch()
    }

    /// The cluster that its memory belongs to; zero if it is not known.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.link.cluster()
    }

    /// New memory belongs to the cluster of its node's disks. Called before the node registers.
    pub fn join_cluster(&mut self, cluster: ClusterId) {
        self.link.join_cluster(cluster);
    }

    /// Number of known clients.
    #[must_use]
    pub fn client_count(&self) -> usize {
        self.clients.count()
    }

    /// Whether the master has accepted everything that this node announced.
    #[must_use]
    pub fn is_member(&self) -> bool {
        self.link.is_member()
    }

    fn opened(&mut self, conn: ConnId, client: ClientId, namespace: String) {
        let replaced = self.clients.replaced_by(conn, client);
        let heard = is_mutant!(self.config.mutant, NodeServesOldConnections);
        for old in replaced.into_iter().filter(|_| !heard) {
            self.clients.close(old);
            self.effects.push_back(Effect::Disconnect(old));
        }
        self.clients.open(conn, client, namespace);
    }

    fn client_request(&mut self, conn: ConnId, id: RequestId, request: ClientToNode) {
        // Requests of closed or replaced connections are ignored.
        let Some((client, namespace)) = self.clients.of(conn) else { return };
        let reply = match request {
            ClientToNode::Commit(commit) => {
                let namespace = namespace.to_owned();
                return self.commit(conn, id, client, &namespace, commit);
            }
            // An object must not be named before its bytes are written.
            ClientToNode::Store(_) => refuse(Reason::Invalid, "the bytes of the object are not written"),
            ClientToNode::Abort(slot_refs) => {
                slot_refs.into_iter().for_each(|slot_ref| self.abort(client, slot_ref));
                Reply::Done
            }
            ClientToNode::Keep(slot_refs) => {
                for slot_ref in self.clients.reservations_except(client, &slot_refs) {
                    self.abort(client, slot_ref);
                }
                Reply::Done
            }
            ClientToNode::BeginViews(slot_refs) => Reply::ViewsBegun(
                slot_refs.into_iter().map(|slot_ref| self.begin_view(client, slot_ref)).collect(),
            ),
            ClientToNode::EndViews(slot_refs) => {
                slot_refs.into_iter().for_each(|slot_ref| self.end_view(client, slot_ref));
                Reply::Done
            }
            ClientToNode::KeepViews(slot_refs) => {
                self.list_views(client, slot_refs.clone());
                let kept = is_mutant!(self.config.mutant, KeepAllViews);
                for slot_ref in self.clients.views_except(client, slot_refs).into_iter().filter(|_| !kept) {
                    self.end_view(client, slot_ref);
                }
                Reply::Done
            }
        };
        self.effects.push_back(Effect::Reply { conn, id, reply });
    }

    fn goodbye(&mut self, conn: ConnId, id: RequestId) {
        let Some((client, _)) = self.clients.of(conn) else { return };
        self.dead(client);
        self.effects.push_back(Effect::Reply { conn, id, reply: Reply::Done });
    }

    fn commit(&mut self, conn: ConnId, id: RequestId, client: ClientId, namespace: &str, commit: Commit) {
        if commit.items.len() > BATCH_ITEMS_MAX {
            let reply = refuse(Reason::Invalid, "the batch is too large");
            return self.effects.push_back(Effect::Reply { conn, id, reply });
        }
        let mut outcomes = Vec::with_capacity(commit.items.len());
        let (mut asked, mut is_repeat) = (Vec::new(), false);
        for mut item in commit.items {
            if is_mutant!(self.config.mutant, CommitWithoutFence) {
                item.slot_ref = self.slots.current(item.slot_ref.slot).unwrap_or(item.slot_ref);
            }
            // One that is repeated while the master decides has the same result.
            let item = DecideItem { namespace: namespace.to_owned(), client, item };
            let is_repeated = self.link.is_deciding(&self.slots, &item);
            is_repeat |= is_repeated;
            let outcome = if is_repeated { None } else { self.prepare(client, namespace, &item.item) };
            if outcome.is_none() {
                asked.push(item);
            }
            outcomes.push(outcome);
        }
        if asked.is_empty() {
            let reply = Reply::Committed(outcomes.into_iter().flatten().collect());
            return self.effects.push_back(Effect::Reply { conn, id, reply });
        }
        let mut waiting = Waiting::new(Some((conn, id)), outcomes, asked, commit.wait_ms);
        waiting.is_repeat = is_repeat;
        self.link.ask_about(&self.slots, waiting, &mut self.effects);
    }

    /// Records the object as written. Returns an outcome if the master need not be asked.
    fn prepare(&mut self, client: ClientId, namespace: &str, item: &CommitItem) -> Option<CommitOutcome> {
        // A commit that is repeated because its reply was lost, or that follows a publish, has the same
        // result. Only the master knows whether the replaced object is retired.
        if self.slots.state(item.slot_ref) == Some(SlotState::Committed) {
            return None;
        }
        let identity = Identity {
            namespace: namespace.to_owned(),
            key: item.key.clone(),
            attributes: Attributes::of(&item.options),
        };
        let prepared = self.slots.prepare(Some(client), item.slot_ref, item.len, identity, &mut self.effects);
        self.clients.unreserved(client, item.slot_ref);
        (!prepared).then_some(CommitOutcome::Stale)
    }

    fn abort(&mut self, client: ClientId, slot_ref: SlotRef) {
        if self.clients.unreserved(client, slot_ref) {
            self.end_reservation(slot_ref);
        }
    }

    fn closed(&mut self, conn: ConnId) {
        let Some(client) = self.clients.close(conn) else { return };
        if is_mutant!(self.config.mutant, SilenceIsDeath) {
            self.clients.unmap(client);
        }
        self.maybe_gone(client);
    }

    fn dead(&mut self, client: ClientId) {
        self.clients.unmap(client);
        self.release_all(client);
        self.list_views(client, Vec::new());
    }

    /// A hint that the client has ended. It is proof only if the client cannot access the memory.
    fn maybe_gone(&mut self, client: ClientId) {
        if self.clients.unreachable(client) {
            self.release_all(client);
        }
    }

    fn release_all(&mut self, client: ClientId) {
        let holdings = self.clients.release_all(client);
        for slot_ref in holdings.reservations {
            self.end_reservation(slot_ref);
        }
        for slot_ref in holdings.views {
            self.slots.end_use(slot_ref, &mut self.effects);
        }
    }

    /// Ends a reservation whose client has ended, or does not want it. The client may have published the
    /// object before, with the settle still in flight. So the memory is free only after the master has
    /// replied; from then on it does not publish the object.
    fn end_reservation(&mut self, slot_ref: SlotRef) {
        if is_mutant!(self.config.mutant, EndUnasked) {
            self.slots.retire(slot_ref, &mut self.effects);
        }
        self.slots.end(slot_ref, &mut self.effects);
        self.released.push(slot_ref);
    }

    /// The master has replied: these reservations can end.
    fn ended(&mut self, slot_refs: &[SlotRef]) {
        for slot_ref in slot_refs {
            if self.slots.state(*slot_ref) == Some(SlotState::Ending) {
                self.slots.retire(*slot_ref, &mut self.effects);
            }
        }
    }

    fn master_request(&mut self, id: RequestId, request: MasterToMember) {
        assert!(self.suspended.is_none(), "effect was not carried out: {:?}", self.suspended);
        let reply = match request {
            MasterToMember::Allocate(allocate) => {
                return self.allocate(Allocating { id, allocate, items: Vec::new(), short: Vec::new() });
            }
            MasterToMember::Settle(settle) => return self.apply_ledger(vec![(id, settle)]),
            MasterToMember::Retire(retire) => {
                self.retire_all(retire.slot_refs);
                Reply::Settled(Settled { usage: self.slots.usage(), ..Settled::default() })
            }
            MasterToMember::ClientGone(client) => {
                self.maybe_gone(client);
                Reply::Done
            }
            MasterToMember::SetAttributes(items) => return self.set_attributes(id, items),
            MasterToMember::Inspect(slot_refs) => {
                let views = slot_refs.into_iter().map(|it| self.slots.uses(it, self.clients.views(it)));
                Reply::Inspected(views.collect())
            }
            MasterToMember::Drain(drain) => {
                if self.draining.apply(drain) {
                    self.effects.push_back(self.draining.effect());
                    self.drain();
                }
                Reply::Done
            }
            MasterToMember::Fetch(items) => {
                return self.fetches.begin(&self.slots, id, items, &mut self.effects);
            }
            MasterToMember::Demote(_) | MasterToMember::Promote(_) => wrong_direction("a node"),
        };
        self.effects.push_back(Effect::AnswerMaster(id, reply));
    }

    /// Reserves or offers memory for the remaining items, and replies. If something is missing, it recalls
    /// offers first and continues after that.
    fn allocate(&mut self, mut allocating: Allocating) {
        let Allocate { client, offered, .. } = allocating.allocate;
        let state = if offered { SlotState::Offered(client) } else { SlotState::Reserved(client) };
        self.slots.count_guaranteed(&allocating.allocate.guarantees);
        while let Some(&item) = allocating.allocate.items.get(allocating.items.len()) {
            let used: usize = allocating.items.iter().flatten().map(|it| it.extents.len()).sum();
            let left = ANSWER_EXTENTS_MAX.saturating_sub(used);
            let Allocate { namespace, guarantees, evicted, .. } = &mut allocating.allocate;
            let mut whose = Whose { namespace, guarantees, evicted };
            let reservation = self.slots.reserve(state, item, (left, &mut whose), &mut self.effects);
            match &reservation {
                Ok(it) => self.clients.reserved(client, it.location.slot_ref()),
                Err(_) if offered || is_mutant!(self.config.mutant, NeverRecall) => (),
                Err(_) => {
                    let offers = self.slots.offers_for(item.len);
                    if !offers.is_empty() {
                        self.effects.push_back(Effect::Recall(offers));
                        self.suspended = Some(Suspended::Allocate(allocating));
                        return;
                    }
                }
            }
            allocating.short.extend(reservation.as_ref().err());
            allocating.items.push(reservation.ok());
        }
        self.slots.note_guarantees(&allocating.allocate.guarantees);
        let reply = Reply::Allocated(Allocated {
            items: allocating.items,
            usage: self.slots.usage(),
            short: allocating.short,
        });
        self.effects.push_back(Effect::AnswerMaster(allocating.id, reply));
    }

    /// Offers were recalled, or turned out to be claimed. A recalled offer cannot have been published, so
    /// its memory is free at once; the master only updates its accounting.
    fn recalled(&mut self, offers: Vec<(SlotRef, bool)>) {
        for (slot_ref, is_recalled) in offers {
            if !is_recalled && !is_mutant!(self.config.mutant, RecallClaimed) {
                self.slots.claim(slot_ref, &mut self.effects);
                continue;
            }
            if let Some(client) = self.slots.state(slot_ref).and_then(SlotState::writer) {
                self.clients.unreserved(client, slot_ref);
                self.slots.retire(slot_ref, &mut self.effects);
                self.released.push(slot_ref);
            }
        }
        if std::mem::take(&mut self.hides_claimed) {
            self.slots.hide_reserved(&mut self.effects);
        }
        match self.suspended.take() {
            Some(Suspended::Allocate(allocating)) => self.allocate(allocating),
            Some(Suspended::SetAttributes(id, items)) => self.set_attributes(id, items),
            None => (),
        }
    }

    /// Stores attributes with objects, and replies. If the heap lacks space, it recalls offers and starts
    /// again: attributes that are already stored are not stored twice.
    fn set_attributes(&mut self, id: RequestId, items: Vec<AttributesItem>) {
        let mut lost = Vec::new();
        let mut is_written = true;
        for item in &items {
            let attributes_set =
                self.slots.set_attributes(item.slot_ref, &item.attributes, &mut self.effects);
            if attributes_set == AttributesSet::NoSpace && !is_mutant!(self.config.mutant, NeverRecall) {
                let offers = self.slots.offers_for(0);
                if !offers.is_empty() {
                    self.effects.push_back(Effect::Recall(offers));
                    self.suspended = Some(Suspended::SetAttributes(id, items));
                    return;
                }
            }
            match self.slots.state(item.slot_ref) {
                None => lost.push(item.slot_ref),
                Some(_) => is_written &= attributes_set == AttributesSet::Written,
            }
        }
        // The object exists even if there is no space for its attributes.
        let reply = match is_written {
            true => Reply::Settled(Settled { lost, usage: self.slots.usage(), also: Vec::new() }),
            false => refuse(Reason::Busy, "the node has no space for object attributes"),
        };
        self.effects.push_back(Effect::AnswerMaster(id, reply));
    }

    /// Settles all messages, with one reply.
    fn apply_ledger(&mut self, entries: Vec<(RequestId, Settle)>) {
        let (mut lost, mut also) = (Vec::new(), Vec::with_capacity(entries.len()));
        for (id, settle) in entries {
            lost.extend(self.settle(settle));
            also.push(id);
        }
        if let Some(id) = also.pop() {
            let reply = Reply::Settled(Settled { lost, usage: self.slots.usage(), also });
            self.effects.push_back(Effect::AnswerMaster(id, reply));
        }
    }

    /// Returns what could not be committed.
    fn settle(&mut self, settle: Settle) -> Vec<SlotRef> {
        let lost = self.commit_all(settle.commit);
        for slot_ref in settle.abort {
            match self.slots.state(slot_ref) {
                Some(SlotState::Reserved(client) | SlotState::Offered(client)) => {
                    self.clients.unreserved(client, slot_ref);
                }
                // Its writer has sent a commit since. The master receives that after this abort was sent,
                // so its reply to the commit decides.
                Some(SlotState::Prepared) => continue,
                _ => {}
            }
            self.slots.retire(slot_ref, &mut self.effects);
        }
        // The successors are stored first, so that one of both is there if the process ends.
        self.retire_all(settle.retire);
        lost
    }

    /// Commits reservations that the master named. Returns those that are no longer valid.
    fn commit_all(&mut self, records: Vec<Record>) -> Vec<SlotRef> {
        let mut lost = Vec::new();
        for record in records {
            let (slot_ref, expiry) = (record.slot_ref, record.attributes.expiry.clone());
            let state = self.slots.state(slot_ref);
            let writer = state.and_then(SlotState::writer);
            if writer.is_some() || state == Some(SlotState::Ending) {
                let identity =
                    Identity { namespace: record.namespace, key: record.key, attributes: record.attributes };
                self.slots.prepare(None, slot_ref, record.len, identity, &mut self.effects);
            }
            if let Some(expiry) = expiry {
                self.slots.set_expiry(slot_ref, expiry, &mut self.effects);
            }
            let prepared =
                matches!(self.slots.state(slot_ref), Some(SlotState::Prepared | SlotState::Committed));
            // Attributes that were added since may not fit. Then the reservation ends like any other.
            if let Some(client) = writer.filter(|_| prepared) {
                self.clients.unreserved(client, slot_ref);
            }
            if !(prepared && self.slots.commit(slot_ref, record.generation, &mut self.effects)) {
                lost.push(slot_ref);
            }
        }
        lost
    }
}

fn refuse(reason: Reason, message: &str) -> Reply {
    Reply::Refused(Refusal { reason, message: message.to_owned() })
}
