//! The master's decisions: which key is which object, where its copies are, which objects are evicted.
//!
//! [`Master::handle`] routes each [`Event`] to the module that decides. The shell drains
//! [`Master::poll_effect`] after every event. It calls [`Master::handle_timeout`] no later than
//! [`Master::poll_timeout`] says.
//!
//! The modules are layers. `Context` is the state that all of them share. `Tier`, `Leases` and `Streams`
//! keep state for objects, and `Objects` removes an object from all of them. `Operations` and `Membership`
//! are built on that: the requests that wait, and the members.
//!
//! **Invariant:** a message on a connection that was closed or replaced changes nothing.

mod answers;
mod batch;
mod catalog;
mod changed;
mod commit;
mod connections;
mod context;
mod deadlines;
mod delete;
mod delete_matching;
mod departures;
mod drain;
mod expire;
mod leases;
mod limit_stats;
mod limits;
mod members;
mod membership;
mod namespaces;
mod notice;
mod objects;
mod observed;
mod operations;
mod pending_retires;
mod pin;
mod placement;
mod publish;
mod reserve;
mod resolve;
mod shortage;
mod stream;
#[cfg(test)]
mod tests;
mod tier;
mod unreported;
mod watches;
mod why;

use std::sync::Arc;

pub use crate::saved::{Saved, SavedMember, SavedPolicy};
pub use catalog::TokenId;
use catalog::{LabelIndex, NamespaceIndex, NodeIndex};
use connections::{Caller, Party};
use context::Context;
pub use context::cluster::CLUSTER_IDS_MAX;
pub use context::saved::POLICIES_MAX;
use delete::Retires;
pub use delete_matching::PIECE_OBJECTS_MAX;
use drain::Drains;
pub use drain::{DRAIN_JOBS_ENDED_MAX, DRAIN_JOBS_MAX, DrainRefusal, DrainStat, DrainStatus};
pub use limit_stats::LimitStat;
pub use limits::LimitsConfig;
use membership::Membership;
pub use notice::{Departure, Eviction, EvictionCause, Notice};
use objects::Objects;
pub use observed::{absent_members, asked_members};
use operations::{Operations, end_fetch};
use tier::{Fetched, Leaving, PromotionId};
pub use tier::{RepairConfig, TierConfig};

use crate::{
    ClientId, ConnId, Generation, Key, RequestId, SegmentId, SlotRef, Tick,
    attributes::Attributes,
    message::{
        ClientToMaster, Held, Hello, Holder, List, MasterToMember, MemberToMaster, NodeStat, Reason, Refusal,
        Reply, Request, Resolve, Role, STREAMS_LISTED_MAX, Stat, Viewer, wrong_direction,
    },
    mutant::{Mutant, is_mutant},
    space_for,
};

/// The settings of the operator.
#[derive(Clone, Copy, Debug)]
pub struct MasterConfig {
    /// The epoch of this master; larger than that of every earlier one.
    pub epoch: u64,
    /// A random number for each start. It lets members tell two masters of the same epoch apart.
    pub instance: u64,
    /// The counter of the first generation, minus one.
    pub first_counter: u64,
    /// Whether there is a state folder: see [`Saved`].
    pub durable: bool,
    /// Another master may take over at any time: answers about names wait for [`Event::Confirmed`].
    pub confirms: bool,
    /// A node that sent nothing for this long is not read from or written to.
    pub silence_ms_max: u64,
    /// A node whose connection has been closed for this long is absent: it keeps protected objects only.
    pub away_ms_max: u64,
    /// How long a leased object is kept from eviction.
    pub lease_ms: u64,
    /// Whether a lease also refuses unforced removal.
    pub strict_leases: bool,
    /// How long the leases of samples outlive a broken connection, unless the client is known to be dead.
    pub lease_grace_ms: u64,
    /// The duration of a soft pin whose request names none.
    pub soft_pin_ms: u64,
    /// Whether soft-pinned objects may be evicted when no other object can be.
    pub evict_soft_pinned: bool,
    /// Whether only namespaces with a quota may be written to. Quotas that exceed the memory of all nodes are
    /// then reduced in proportion.
    pub tenants: bool,
    /// Whether every object that is stored or removed causes a notice.
    pub events: bool,
    /// Maximum number of retires in one reply to a returning member, not counting those of announced
    /// objects.
    pub owed_page_max: usize,
    /// Maximum number of objects that one piece of a drop, of a departure or of a large batch handles, and
    /// that expire at one event, see [`Master::work`].
    pub piece_objects_max: usize,
    /// The limits of clients and namespaces.
    pub limits: LimitsConfig,
    /// How the disks are used.
    pub tier: TierConfig,
    /// The wall clock at tick 0, in milliseconds since the Unix epoch. Only the ends of TTLs depend on it:
    /// they are wall-clock times, because ticks end with the process.
    pub wall_ms: u64,
    /// Drawn at random by the shell, so that no client can choose keys that collide.
    pub hash_seed: u64,
    /// Fault injection, for the simulation only.
    pub mutant: Mutant,
}

/// One namespace and its quota.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaStat {
    /// Its name.
    pub namespace: String,
    /// The quota that was set, if one was.
    pub requested: Option<u64>,
    /// The quota that applies, if one does.
    pub effective: Option<u64>,
    /// The memory that it uses, reservations included, each copy counted.
    pub used: u64,
    /// The number of its objects.
    pub objects: u64,
}

/// Default maximum number of retires in one reply to a returning member.
pub const OWED_PAGE_MAX: usize = 1 << 10;

/// An input of the master.
#[derive(Clone, Debug)]
pub enum Event {
    /// A client or node was accepted.
    Opened(ConnId, Hello),
    /// A request arrived.
    Request(ConnId, RequestId, Request),
    /// A node replied.
    Reply(ConnId, RequestId, Reply),
    /// The connection is closed.
    Closed(ConnId),
    /// The node of this connection is on the master's host. A message that was written to the connection
    /// arrives, even if the master ends. Reported before the node registers.
    SameHost(ConnId),
    /// The shell can carry out [`Effect::Withdraw`] for the node of this connection. Reported before the node
    /// registers.
    CanWithdraw(ConnId),
    /// The node of this connection runs in the master's own process, so its memory ends with that process.
    /// Reported before the node registers.
    SameProcess(ConnId),
    /// The client of this connection has a token that is limited to namespaces. All clients of a token have
    /// one share. Reported before [`Self::Opened`].
    Token(ConnId, TokenId),
    /// The kernel of the master's host reports that the process at the other end of this connection has
    /// ended. The connection may be closed already.
    Ended(ConnId),
    /// The state folder contains this version of [`Effect::Persist`], or a later one.
    Persisted(u64),
    /// This master was the leader at some time after this [`Effect::Confirm`].
    Confirmed(u64),
}

/// An action that the shell must carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send a reply.
    Reply(ConnId, RequestId, Reply),
    /// Send a request to a node.
    Ask(ConnId, RequestId, MasterToMember),
    /// Send a request to a node on the master's host, and call [`Master::sent`] once it is in the node's
    /// socket buffer.
    SendLedger(ConnId, RequestId, MasterToMember),
    /// Withdraw copies in the memory of a node on the master's host, so that no reader validates them from
    /// now on. The node retires them when it reads its ledger.
    Withdraw(ConnId, Vec<SlotRef>),
    /// Close a connection that a newer one has replaced.
    Disconnect(ConnId),
    /// Inform the operator.
    Notice(Notice),
    /// Write [`Master::saved`] into the state folder, sync it, and report [`Event::Persisted`] with this
    /// version.
    Persist(u64),
    /// Ask the election service whether this master still leads, beginning now, and report
    /// [`Event::Confirmed`] with this number if so. A later confirmation contains all earlier ones.
    Confirm(u64),
    /// A member has served a master of this epoch, which is not smaller than this one's: the state folder
    /// was lost or is old. The shell replaces the core by one with a greater epoch and with the state of
    /// [`Master::saved`]. It saves the new epoch before it uses the new core, and closes all connections.
    /// All later effects of this core are void.
    Restart(u64),
}

/// Identifies a waiting operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OpId(u64);

/// The continuation of a request to a node.
#[derive(Debug)]
enum Wait {
    /// Allocate memory for these items of a reservation.
    Allocate(OpId, Vec<usize>),
    /// Retire copies; an operation may wait for that.
    Retire(Vec<SlotRef>, Option<OpId>),
    /// Commit replicas. Those that the node could not commit leave the catalog.
    Settle(Vec<(catalog::ObjectIndex, Generation, SlotRef)>, Option<OpId>),
    /// The same for objects that were published there.
    Publish(Vec<(catalog::ObjectIndex, Generation, SlotRef)>, OpId),
    /// The same for objects that replace others, whose copies the message retires as well. The answer is
    /// behind it.
    Replace(Vec<(catalog::ObjectIndex, Generation, SlotRef)>),
    /// Retire copies of replaced objects through the ledger. Once that message is certain to arrive, they are
    /// withdrawn, and the operation does not wait for it.
    Withdraw(Vec<SlotRef>, Option<OpId>),
    /// Write attributes. A node that has no such object is removed from its holders.
    SetAttributes(Vec<(catalog::ObjectIndex, Generation, SlotRef)>, Option<OpId>),
    /// Inspect these items of an explanation.
    Inspect(OpId, Vec<usize>),
    /// Demote objects to a disk.
    Demote(Vec<Leaving>),
    /// Allocate memory for a promotion, and the namespace and bytes that it is charged to.
    PromoteSpace(PromotionId, (NamespaceIndex, u64)),
    /// Read the bytes of a promotion.
    Promote(PromotionId),
    /// Commit the slot of a promotion.
    PromoteSettle(PromotionId),
}

/// The master's whole state.
#[derive(Debug)]
pub struct Master {
    objects: Objects,
    operations: Operations,
    membership: Membership,
    drains: Drains,
}

impl Master {
    /// A master without members or clients.
    #[must_use]
    pub fn new(config: MasterConfig) -> Self {
        Self::recover(config, Saved::default())
    }

    /// A master with the saved state of an earlier one. It waits for the members of its roster.
    #[must_use]
    pub fn recover(config: MasterConfig, saved: Saved) -> Self {
        Self::recover_at(Tick::default(), config, saved)
    }

    /// The same on a clock that runs already: the members are away since `now`.
    #[must_use]
    pub fn recover_at(now: Tick, config: MasterConfig, saved: Saved) -> Self {
        let mut master = Self::empty(now, config);
        master.restore(saved, Vec::new());
        master
    }

    /// The same in place of a master whose process goes on. Memory in that process is not in the roster, but
    /// has not ended: it must report as well.
    #[must_use]
    pub fn succeed(&self, now: Tick, config: MasterConfig, saved: Saved) -> Self {
        let mut master = Self::empty(now, config);
        master.restore(saved, self.objects.cx.members_in_same_process());
        master
    }

    fn empty(now: Tick, config: MasterConfig) -> Self {
        let mut master = Self {
            objects: Objects::new(Context::new(config)),
            operations: Operations::default(),
            membership: Membership::default(),
            drains: Drains::default(),
        };
        master.objects.cx.now = now;
        master
    }

    /// Applies one event. `now` never goes back.
    pub fn handle(&mut self, now: Tick, event: Event) {
        self.handle_timeout(now);
        if self.membership.is_superseded {
            return;
        }
        match event {
            Event::Opened(conn, hello) => self.opened(conn, hello),
            Event::Request(conn, id, request) => self.request(conn, id, request),
            Event::Reply(conn, id, reply) => self.operations.reply(&mut self.objects, conn, id, reply),
            Event::Closed(conn) => self.closed(conn),
            Event::SameHost(conn) => self.objects.cx.connections.set_same_host(conn),
            Event::CanWithdraw(conn) => self.objects.cx.connections.set_can_withdraw(conn),
            Event::SameProcess(conn) => self.objects.cx.connections.set_same_process(conn),
            Event::Token(conn, token) => self.objects.cx.connections.set_token(conn, token),
            Event::Ended(conn) => self.process_ended(conn),
            Event::Persisted(version) => self.objects.cx.persisted(version),
            Event::Confirmed(round) => self.objects.cx.confirmed(round),
        }
        self.serve();
    }

    /// Applies the passage of time. It ends soft pins, leases and TTLs, detects silent members, and answers
    /// requests whose deadline has passed.
    pub fn handle_timeout(&mut self, now: Tick) {
        self.objects.cx.now = self.objects.cx.now.max(now);
        if self.membership.is_superseded {
            return;
        }
        self.objects.cx.catalog.end_soft_pins(self.objects.cx.now);
        self.notice_silence();
        self.operations.end_late(&mut self.objects);
        self.objects.end_leases();
        self.objects.expire();
        self.objects.tier.handle_timeout(&mut self.objects.cx);
        self.serve();
    }

    /// Continues everything that has become possible.
    fn serve(&mut self) {
        self.resume_parked();
        self.objects.free_released();
        self.objects.streams.serve(&mut self.objects.cx, &mut self.objects.leases);
        self.operations.serve_puts(&mut self.objects);
        self.operations.serve_tier(&mut self.objects);
        self.objects.cx.notice_tiers();
    }

    /// Continues deferred requests after a report.
    fn resume_parked(&mut self) {
        if !self.objects.reports.take_change() {
            return;
        }
        let has_all = self.objects.reports.are_complete();
        for (conn, id, request) in self.operations.parking.resume(&mut self.objects) {
            self.objects.cx.notice(Notice::Resumed(conn, id));
            self.request(conn, id, request);
        }
        if has_all {
            self.operations.parking.forget_answered(&mut self.objects.cx);
        }
    }

    /// When [`Self::handle_timeout`] is due, if no other event occurs first.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Tick> {
        if self.membership.is_superseded {
            return None;
        }
        let wishes = [
            self.objects.cx.catalog.next_soft_pin_end(),
            self.objects.next_expiry(),
            membership::next_silence(&self.objects.cx),
            self.operations.next_deadline(&self.objects.cx),
            self.objects.leases.next_timeout(&self.objects.cx),
            self.objects.tier.next_timeout(&self.objects.cx),
            self.operations.lease_end(),
        ];
        wishes.into_iter().flatten().min()
    }

    /// The next effect, oldest first.
    #[must_use]
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.objects.cx.effects.pop_front()
    }

    /// The master's view of the cluster.
    #[must_use]
    pub fn stat(&self) -> Stat {
        Stat {
            epoch: self.objects.cx.config.epoch,
            clients: self.objects.cx.connections.client_count(),
            nodes: self.node_stats(),
            namespaces: self.objects.namespace_stats(),
            evicted_objects: self.objects.cx.evictions.total().objects,
            evicted_bytes: self.objects.cx.evictions.total().bytes,
            evictions: self.objects.cx.evictions,
            expired: self.objects.cx.expired,
            expiring: self.objects.cx.catalog.expiries().len() as u64,
            soft_pinned: self.objects.cx.catalog.soft_pinned(),
            unreported: self.unreported(),
            undecided: self.undecided_count() as u64,
            tier: Box::new(self.objects.tier.stat(&self.objects.cx)),
            copies: self.objects.tier.repairs.stat(),
            streams: self.objects.streams.stats(&self.objects.cx, STREAMS_LISTED_MAX),
        }
    }

    fn node_stats(&self) -> Vec<NodeStat> {
        let stats = self.objects.cx.members.iter().map(|(_, member)| {
            let holder = |it: &Viewer| Holder {
                held: Held::Viewed,
                who: self.objects.cx.connections.client_name(it.client),
                objects: it.objects,
                bytes: it.bytes,
            };
            NodeStat { holders: member.viewers.iter().map(holder).collect(), ..member.stat() }
        });
        stats.collect()
    }

    /// Looks objects up for the shell's own pages, as for a client of that namespace.
    #[must_use]
    pub fn resolve(&mut self, now: Tick, namespace: &str, resolve: &Resolve) -> Reply {
        self.read(now, namespace, |objects, namespace| {
            objects.remove_overdue(namespace, resolve.keys.iter().map(Key::as_bytes));
            let page = Caller {
                client: ClientId::default(),
                namespace,
                home: None,
                host: String::new(),
                label: String::new(),
                index: LabelIndex::default(),
                token: None,
            };
            objects.resolve(&page, resolve, None)
        })
    }

    /// Lists objects for the shell's own pages, as for a client of that namespace.
    #[must_use]
    pub fn list(&mut self, now: Tick, namespace: &str, list: &List) -> Reply {
        self.read(now, namespace, |objects, namespace| objects.list(namespace, list))
    }

    fn read(
        &mut self,
        now: Tick,
        namespace: &str,
        read: impl FnOnce(&mut Objects, NamespaceIndex) -> Reply,
    ) -> Reply {
        self.objects.cx.now = self.objects.cx.now.max(now);
        if !self.objects.reports.are_complete() {
            return refuse(Reason::Unavailable, &self.unreported_message());
        }
        let namespace = self.objects.enter_namespace(namespace);
        let reply = read(&mut self.objects, namespace);
        // A question does not create a namespace.
        self.objects.forget_unused(namespace);
        reply
    }

    /// The names of the members that have not reported since the master started, or since they joined.
    #[must_use]
    pub fn unreported(&self) -> Vec<String> {
        self.objects.reports.names(&self.objects.cx)
    }

    /// How many requests of nodes wait, with written objects that have no name yet.
    #[must_use]
    pub fn undecided_count(&self) -> usize {
        self.operations.parking.undecided_count()
    }

    /// A message for users: the members that the master waits for.
    #[must_use]
    pub fn unreported_message(&self) -> String {
        self.objects.reports.message(&self.objects.cx)
    }

    /// Whether a request of that connection would wait for reports, or for a departure. For simulations.
    #[must_use]
    pub fn waits_for_reports(&self, conn: ConnId, request: &Request) -> bool {
        let o = &self.objects;
        match (o.cx.connections.get(conn), request) {
            (Some(Party::Client(caller)), Request::ClientToMaster(request)) => {
                o.reports.wait_ms(&o.cx, caller.namespace, request).is_some()
            }
            (Some(Party::Node(Some(home))), Request::MemberToMaster(MemberToMaster::Decide(decide))) => {
                o.reports.are_needed_for(&o.cx, *home, decide)
            }
            (Some(Party::Node(_)), Request::MemberToMaster(MemberToMaster::Register(it))) => {
                o.departures.has(it.info.segment)
            }
            // Refused, or answered at once.
            (None | Some(Party::Client(_) | Party::Node(_)), _) => false,
        }
    }

    /// Number of removed copies whose nodes have not confirmed the retire.
    #[must_use]
    pub fn unconfirmed_count(&self) -> usize {
        self.objects.cx.pending_retires.len()
    }

    /// Checks internal consistency, and describes the first problem. For tests and simulations.
    pub fn check(&self) -> Result<(), String> {
        self.operations.check(&self.objects)?;
        departures::check(&self.objects)?;
        self.objects.streams.check(&self.objects.cx)?;
        self.objects.tier.check(&self.objects.cx)
    }

    /// The generation that has a name, according to this master. For tests and simulations.
    #[must_use]
    pub fn generation(&self, namespace: &str, key: &Key) -> Option<Generation> {
        let namespace = self.objects.cx.catalog.namespace_index(namespace)?;
        Some(self.objects.cx.catalog.get(self.objects.cx.catalog.find(namespace, key)?)?.generation())
    }

    /// When an object was last used, and the end of its lease. For tests and simulations.
    #[must_use]
    pub fn last_use(&self, namespace: &str, key: &Key) -> Option<(Tick, Tick)> {
        let namespace = self.objects.cx.catalog.namespace_index(namespace)?;
        let object = self.objects.cx.catalog.get(self.objects.cx.catalog.find(namespace, key)?)?;
        Some((object.touched(), object.lease_until()))
    }

    /// When an object was last used, if it was read in this epoch. For tests and simulations.
    #[must_use]
    pub fn last_read(&self, namespace: &str, key: &Key) -> Option<Tick> {
        let namespace = self.objects.cx.catalog.namespace_index(namespace)?;
        let object = self.objects.cx.catalog.get(self.objects.cx.catalog.find(namespace, key)?)?;
        Some(object.touched()).filter(|_| object.was_read())
    }

    /// Number of objects that are being promoted or demoted.
    #[must_use]
    pub fn moving_count(&self) -> usize {
        self.objects.tier.moving_count()
    }

    /// The memory that every ready node could give to a new object: its free memory as the master counts
    /// it, and the bytes that may be evicted at once. Promoted objects that are protected do not count.
    /// Counted object by object. For tests and simulations.
    #[must_use]
    pub fn available(&self) -> Vec<(SegmentId, u64, u64)> {
        let memory = self
            .objects
            .cx
            .members
            .iter()
            .filter(|(node, it)| self.objects.cx.is_ready(*node) && !it.is_disk());
        let available = memory.map(|(node, member)| {
            let mut sum = 0;
            self.objects.cx.catalog.page(0, usize::MAX, |_, object| {
                let protected = object.attributes().is_some_and(Attributes::protect)
                    || object.leased(self.objects.cx.now)
                    || object.soft_pin() && !self.objects.cx.config.evict_soft_pinned;
                let is_there = object.in_memory().any(|(on, _)| on == node) && !object.is_demoting(node);
                sum += if is_there && !protected { space_for(object.len()).unwrap_or(0) } else { 0 };
                true
            });
            (member.info.segment, member.free, sum)
        });
        available.collect()
    }

    /// Number of operations that wait.
    #[must_use]
    pub fn waiting_count(&self) -> usize {
        self.operations.len(&self.objects) + self.objects.cx.confirming.held_count()
    }

    fn opened(&mut self, conn: ConnId, hello: Hello) {
        match hello.role {
            // Handled by the shell.
            Role::Ledger | Role::Lane => (),
            Role::Node => self.objects.cx.connections.set_node(conn, None),
            Role::Client => {
                let client = hello.client;
                let namespace = self.objects.enter_namespace(&hello.namespace);
                self.objects.leases.client_returned(client);
                if let Some(old) = self.objects.cx.connections.replace_client(client, conn) {
                    self.fence(old);
                    // Replies may be lost with the old connection, and reservations with them.
                    self.lose_sight(client);
                    self.objects.client_broke(client, false);
                }
                let token = self.objects.cx.connections.open_client(conn, hello, namespace);
                token.into_iter().for_each(|it| self.objects.cx.catalog.set_token(namespace, it));
            }
        }
    }

    /// Ignores all further messages of a replaced connection.
    fn fence(&mut self, old: ConnId) {
        if is_mutant!(self.objects.cx.config.mutant, HearOldConnections) {
            return;
        }
        self.objects.cx.connections.close(old);
        self.objects.cx.saving.forget(old);
        self.objects.cx.confirming.forget(old);
        self.operations.forget(&mut self.objects, old);
        self.objects.cx.effects.push_back(Effect::Disconnect(old));
    }

    /// The only place that refuses requests of the wrong direction.
    fn request(&mut self, conn: ConnId, id: RequestId, request: Request) {
        let Some(party) = self.objects.cx.connections.get(conn) else { return };
        match (request, party) {
            (Request::ClientToMaster(request), Party::Client(caller)) => {
                let caller = Arc::clone(caller);
                self.client_request(conn, id, &caller, request);
            }
            (Request::MemberToMaster(request), &Party::Node(node)) => {
                self.member_request(conn, id, node, request);
            }
            (Request::Goodbye, Party::Client(caller)) => {
                let client = caller.client;
                self.objects.cx.reply(conn, id, Reply::Done);
                self.objects.client_gone(client);
                self.closed(conn);
            }
            (Request::Goodbye, &Party::Node(Some(node))) => self.node_left(node, conn, id),
            (Request::Goodbye, Party::Node(None)) => self.objects.cx.reply(conn, id, unregistered()),
            (Request::ClientToMaster(_), Party::Node(_))
            | (Request::MemberToMaster(_), Party::Client(_))
            | (Request::Hello(_) | Request::MasterToMember(_) | Request::ClientToNode(_), _) => {
                self.objects.cx.reply(conn, id, wrong_direction("the master"));
            }
        }
    }

    fn client_request(&mut self, conn: ConnId, id: RequestId, caller: &Arc<Caller>, request: ClientToMaster) {
        let namespace = caller.namespace;
        if let Some(refusal) = limits::oversize(&request, self.objects.cx.config.mutant) {
            self.objects.cx.limits.key_bytes += 1;
            return self.objects.cx.reply(conn, id, refusal);
        }
        let request = why::shortened(request, self.objects.cx.config.mutant);
        let (o, operations) = (&mut self.objects, &mut self.operations);
        let Some(request) = operations.parking.park(o, (conn, id), namespace, request) else { return };
        if batch::is_large(o, &request) {
            return operations.retires.begin_batch(o, (conn, id), caller, request);
        }
        o.remove_named(namespace, &request);
        let reply = match request {
            ClientToMaster::Reserve(reserve) => {
                return operations.reservations.reserve(o, conn, id, caller, reserve);
            }
            ClientToMaster::Publish(publish) => {
                return operations.retires.publish(o, conn, id, caller, publish);
            }
            ClientToMaster::Delete(delete) => return operations.retires.delete(o, conn, id, caller, delete),
            ClientToMaster::DeleteMatching(delete) => {
                return operations.retires.delete_matching(o, conn, id, caller, &delete);
            }
            ClientToMaster::Pin(pin) => return operations.retires.pin(o, conn, id, caller, &pin),
            ClientToMaster::DropPins(it) => return operations.retires.drop_pins(o, (conn, id), caller, &it),
            ClientToMaster::Await(until) => return operations.watches.watch(o, (conn, id), caller, until),
            ClientToMaster::Why(it) => return operations.explanations.why(o, (conn, id), caller, &it.keys),
            ClientToMaster::Ack(ack) => return operations.retires.ack(o, conn, id, caller, &ack),
            ClientToMaster::OpenStream(open) => o.streams.open(&mut o.cx, caller, open),
            ClientToMaster::EndStream(end) => {
                return operations.retires.end_stream(o, conn, id, caller, &end);
            }
            ClientToMaster::Pull(pull) => match o.streams.pull(&mut o.cx, (conn, id), caller, pull) {
                Ok(()) => return,
                Err(reply) => *reply,
            },
            ClientToMaster::Cancel(id) => {
                operations.cancel(o, conn, id);
                Reply::Done
            }
            ClientToMaster::Lease(lease) => o.leases.lease(&mut o.cx, caller, &lease),
            ClientToMaster::Release(release) => {
                o.leases.release(caller.client, &release.leases);
                Reply::Done
            }
            ClientToMaster::ForgetNode(forget) => return self.forget_node(conn, id, &forget.name),
            ClientToMaster::AdmitCluster(admit) => return self.admit_cluster(conn, id, admit.cluster),
            ClientToMaster::SetPolicy(change) => return self.set_policy(conn, id, namespace, &change),
            ClientToMaster::Prefetch(prefetch) => {
                let op = o.tier.prefetch(&mut o.cx, (conn, id), caller, &prefetch);
                return op.into_iter().for_each(|op| end_fetch(o, op));
            }
            ClientToMaster::Resolve(resolve) => {
                match o.tier.maybe_wait(&mut o.cx, (conn, id), caller, resolve) {
                    Some(resolve) => o.resolve(caller, &resolve, None),
                    None => return,
                }
            }
            ClientToMaster::Exists(exists) => o.exists(caller, &exists),
            ClientToMaster::List(list) => o.list(namespace, &list),
            ClientToMaster::Stat => Reply::Stat(Box::new(self.stat())),
            ClientToMaster::Ping(_) => Reply::Done,
            ClientToMaster::KeepLeases(leases) => {
                o.leases.end_all_but(caller.client, &leases);
                Reply::Done
            }
        };
        self.objects.answer(conn, id, reply);
    }

    fn member_request(
        &mut self,
        conn: ConnId,
        id: RequestId,
        node: Option<NodeIndex>,
        request: MemberToMaster,
    ) {
        let o = &mut self.objects;
        let reply = match (request, node) {
            (MemberToMaster::Register(register), _) => return self.register(conn, id, *register),
            (MemberToMaster::Announce(announce), Some(node)) => {
                let reply = membership::announce(o, node, announce);
                o.cx.reply(conn, id, reply);
                return self.drains.joined(&mut o.cx, node);
            }
            (MemberToMaster::Heartbeat(beat), Some(node)) => membership::heartbeat(o, node, *beat),
            (MemberToMaster::Decide(decide), Some(node)) => {
                let operations = &mut self.operations;
                let Some(decide) = operations.parking.park_decide(o, (conn, id), node, decide) else {
                    return;
                };
                departures::remove_decided(o, &decide);
                return operations.retires.decide(o, conn, id, node, decide);
            }
            (MemberToMaster::Released(released), Some(node)) => membership::released(o, node, &released),
            (MemberToMaster::ClientDied(client), Some(_)) => {
                o.client_gone(client);
                Reply::Done
            }
            (MemberToMaster::Dropped(dropped), Some(disk)) => answers::dropped(o, disk, &dropped),
            (MemberToMaster::Drained(report), Some(node)) => self.drains.report(&mut o.cx, node, *report),
            (
                MemberToMaster::Announce(_)
                | MemberToMaster::Heartbeat(_)
                | MemberToMaster::Decide(_)
                | MemberToMaster::Released(_)
                | MemberToMaster::ClientDied(_)
                | MemberToMaster::Dropped(_)
                | MemberToMaster::Drained(_),
                None,
            ) => unregistered(),
        };
        self.objects.cx.reply(conn, id, reply);
    }

    fn closed(&mut self, conn: ConnId) {
        self.objects.cx.saving.forget(conn);
        self.objects.cx.confirming.forget(conn);
        match self.objects.cx.connections.close(conn) {
            None | Some(Party::Node(None)) => (),
            Some(Party::Node(Some(node))) => {
                self.operations.forget(&mut self.objects, conn);
                self.node_away(node, conn);
            }
            Some(Party::Client(caller)) => {
                if self.objects.cx.connections.end_client(caller.client, conn) {
                    self.objects.client_broke(caller.client, true);
                }
                self.operations.forget(&mut self.objects, conn);
                self.lose_sight(caller.client);
                self.objects.forget_unused(caller.namespace);
            }
        }
    }

    /// Informs every node. This is only a hint: each node uses its own evidence of what that client can
    /// still touch.
    fn lose_sight(&mut self, client: ClientId) {
        let nodes: Vec<_> = self.objects.cx.members.iter().filter_map(|(_, it)| it.conn).collect();
        for node in nodes {
            let id = self.objects.cx.next_id();
            self.objects.cx.effects.push_back(Effect::Ask(node, id, MasterToMember::ClientGone(client)));
        }
    }
}

fn unregistered() -> Reply {
    refuse(Reason::Invalid, "member is not registered: register first")
}

fn refuse(reason: Reason, message: &str) -> Reply {
    Reply::Refused(Refusal { reason, message: message.to_owned() })
}

/// The puts that wait because their clients have their share of the memory. For tests and simulations.
pub fn waits_for_share(master: &Master) -> impl Iterator<Item = (ConnId, RequestId)> + '_ {
    reserve::waits_for_share(&master.operations.reservations)
}
