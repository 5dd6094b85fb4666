//! The master's decisions: which key is which object, where it lies, what may go.
//!
//! [`Master::handle`] routes each [`Event`] to the module that decides; this file holds no rule itself. The
//! shell drains [`Master::poll_effect`] after every event, and calls [`Master::handle_timeout`] no later than
//! [`Master::poll_timeout`] says.
//!
//! **Invariant:** what arrives on a connection that was closed or replaced changes nothing.

mod answers;
mod catalog;
mod commit;
mod confirm;
mod deadlines;
mod drop;
mod ghosts;
mod join;
mod members;
mod pin;
mod placement;
mod publish;
mod reserve;
mod resolve;
mod room;
mod sample;
mod stream;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_drops;
#[cfg(test)]
mod tests_lifetimes;
#[cfg(test)]
mod tests_lost_answers;
#[cfg(test)]
mod tests_publish;
#[cfg(test)]
mod tests_tier;
#[cfg(test)]
mod tests_tier_room;
mod tier;
mod why;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use catalog::{Catalog, LabelIndex, NamespaceIndex, NodeIndex};
use confirm::Confirming;
use deadlines::Deadlines;
use drop::Dropping;
pub use drop::PIECE_OBJECTS_MAX;
use ghosts::Ghosts;
use members::Members;
use pin::Unwritten;
use reserve::Reserving;
use room::{Room, Watching};
use sample::Leases;
use stream::{Pulling, Streams};
use tier::{Fetching, Leaving, PromotionId, Tier};
pub use tier::{PROMOTER, TierConfig};
use why::{Explaining, History};

use crate::{
    ClientId, ConnId, Generation, Hold, RequestId, SegmentId, Tick,
    message::{Held, Hello, Holder, NodeStat, Reason, Refusal, Reply, Request, Role, Stat, Viewer},
    sabotage::Sabotage,
};

/// What the operator decides.
#[derive(Clone, Copy, Debug)]
pub struct MasterConfig {
    /// Which life of the master this is; larger than that of every earlier one.
    pub epoch: u64,
    /// A node that said nothing for this long is not read from or written to.
    pub silence_ms_max: u64,
    /// A node whose connection has been closed for this long is lost.
    pub away_ms_max: u64,
    /// How long a leased object is kept from eviction.
    pub lease_ms: u64,
    /// Whether a lease also refuses unforced removal.
    pub strict_leases: bool,
    /// How long the leases of samples are kept for a client whose connection broke, unless it is known to be
    /// dead.
    pub lease_grace_ms: u64,
    /// How long a soft pin lasts for which nobody has said it.
    pub soft_pin_ms: u64,
    /// Whether soft-pinned objects may be evicted when nothing else is left.
    pub evict_soft_pinned: bool,
    /// Objects that one piece of a drop takes away, see [`Master::work`].
    pub piece_objects_max: usize,
    /// How the disks are used.
    pub tier: TierConfig,
    /// Drawn at random by the shell, so that nobody can choose keys that collide.
    pub hash_seed: u64,
    /// For the simulation only.
    pub sabotage: Sabotage,
}

/// What happened outside.
#[derive(Clone, Debug)]
pub enum Event {
    /// A client or node was let in.
    Opened(ConnId, Hello),
    /// It asks.
    Request(ConnId, RequestId, Request),
    /// A node answers.
    Reply(ConnId, RequestId, Reply),
    /// The connection is closed.
    Closed(ConnId),
    /// What is sent through this connection is with the other side at once, so that it arrives whatever
    /// becomes of the sender: said of a node, before it registers.
    Near(ConnId),
}

/// What the shell must now do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Answer.
    Reply(ConnId, RequestId, Reply),
    /// Ask a node.
    Ask(ConnId, RequestId, Request),
    /// Ask a node that is near, and say so with [`Master::sent`] if the question is with it.
    Entrust(ConnId, RequestId, Request),
    /// Close a connection that a newer one has replaced.
    Disconnect(ConnId),
    /// Tell the operator.
    Notice(Notice),
}

/// What an operator would like to see in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A node can be used.
    NodeReady(String),
    /// A node is connected, but does not answer.
    NodeSilent(String),
    /// A node's connection is closed.
    NodeAway(String),
    /// A node has been away too long; so many objects went with it.
    NodeLost(String, u64),
    /// A node left for good, as it said; so many objects went with it.
    NodeLeft(String, u64),
    /// A node that had been declared lost came back and must start empty.
    NodeDiscarded(String),
    /// So many objects with so many bytes left to make room.
    Evicted(u64, u64),
    /// Somebody will soon ask for objects: so many, and what that means for how many of them.
    Prefetched {
        /// All that were named.
        keys: u64,
        /// In memory already.
        resident: u64,
        /// On their way from a disk.
        running: u64,
        /// Could not be read a short while ago.
        failed: u64,
        /// Not begun.
        skipped: u64,
    },
    /// A get was told of objects on disks, or waited for some that were on their way into memory.
    Got {
        /// So many are in memory.
        memory: u64,
        /// So many must be read from a disk.
        disk: u64,
        /// Of these, so many from one of another host.
        far: u64,
        /// How long it waited; nothing if it did not.
        waited_ms: Option<u64>,
        /// It waited in vain for some of them.
        late: bool,
    },
    /// An object that was on its way into memory is there, or will not be.
    Promoted {
        /// Whether it is there.
        done: bool,
        /// Its bytes.
        bytes: u64,
        /// How long it took.
        took_ms: u64,
    },
}

/// Who is at the other end of a connection.
#[derive(Debug)]
enum Party {
    Client(Arc<Visitor>),
    Node(Option<NodeIndex>),
}

/// A client, for as long as its connection lasts.
#[derive(Clone, Debug)]
struct Visitor {
    client: ClientId,
    namespace: NamespaceIndex,
    home: Option<SegmentId>,
    host: String,
    /// What it calls itself.
    label: String,
    index: LabelIndex,
}

/// An operation that waits for nodes.
#[derive(Debug)]
enum Op {
    Reserve(Reserving),
    Confirm(Confirming),
    Drop(Box<Dropping>),
    Watch(Watching),
    Why(Explaining),
    Fetch(Box<Fetching>),
    Pull(Box<Pulling>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OpId(u64);

/// What is to be done when a node answers.
#[derive(Debug)]
enum Wait {
    /// Room for these items of a reservation.
    Allocate(OpId, Vec<usize>),
    /// Objects were taken away; perhaps somebody waits for that.
    Retire(Vec<Hold>, Option<OpId>),
    /// Replicas were committed; those that were not must be forgotten.
    Settle(Vec<(catalog::ObjectIndex, Generation, Hold)>, Option<OpId>),
    /// The same for objects that were published there.
    Publish(Vec<(catalog::ObjectIndex, Generation, Hold)>, OpId),
    /// Marks were put in writing; a node that has no such object is no holder of it.
    Mark(Vec<(catalog::ObjectIndex, Generation, Hold)>, Option<OpId>),
    /// Who looks at these items of an explanation.
    Inspect(OpId, Vec<usize>),
    /// Objects go to a disk.
    Demote(Vec<Leaving>),
    /// Room for an object that comes back from a disk, and what that is charged to.
    PromoteRoom(PromotionId, (NamespaceIndex, u64)),
    /// Its bytes.
    Promote(PromotionId),
    /// Its slot.
    PromoteSettle(PromotionId),
}

/// The master's whole state.
#[derive(Debug)]
pub struct Master {
    config: MasterConfig,
    now: Tick,
    catalog: Catalog,
    members: Members,
    parties: BTreeMap<ConnId, Party>,
    clients: BTreeMap<ClientId, ConnId>,
    /// See [`Event::Near`].
    near: BTreeSet<ConnId>,
    ops: BTreeMap<OpId, Op>,
    /// When they must be answered, but for drops.
    deadlines: Deadlines,
    waits: BTreeMap<RequestId, (NodeIndex, Wait)>,
    next_id: u64,
    next_generation: u64,
    evicted_objects: u64,
    evicted_bytes: u64,
    room: Room,
    leases: Leases,
    streams: Streams,
    history: History,
    ghosts: Ghosts,
    unwritten: Unwritten,
    tier: Tier,
    /// Drops under way, the next one first.
    jobs: VecDeque<OpId>,
    labels: Labels,
    /// When leases will have run out that keep waiting puts from evicting.
    lease_end: Option<Tick>,
    effects: VecDeque<Effect>,
}

/// What clients call themselves, each name once. The first is of those that came after the table was full.
#[derive(Debug, Default)]
struct Labels {
    names: Vec<String>,
    numbers: BTreeMap<String, LabelIndex>,
}

/// The most names that are told apart.
const LABELS_MAX: usize = 1 << 16;

impl Labels {
    fn intern(&mut self, name: &str) -> LabelIndex {
        if self.names.is_empty() {
            self.names.push(String::new());
        }
        if let Some(&index) = self.numbers.get(name) {
            return index;
        }
        if self.names.len() >= LABELS_MAX {
            return LabelIndex::default();
        }
        let index = LabelIndex(self.names.len() as u16);
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), index);
        index
    }
}

impl Master {
    /// A master that knows nobody yet.
    #[must_use]
    pub fn new(config: MasterConfig) -> Self {
        Self {
            config,
            now: Tick::default(),
            catalog: Catalog::new(config.hash_seed),
            members: Members::default(),
            parties: BTreeMap::new(),
            clients: BTreeMap::new(),
            near: BTreeSet::new(),
            ops: BTreeMap::new(),
            deadlines: Deadlines::default(),
            waits: BTreeMap::new(),
            next_id: 0,
            next_generation: 0,
            evicted_objects: 0,
            evicted_bytes: 0,
            room: Room::default(),
            leases: Leases::default(),
            streams: Streams::default(),
            history: History::default(),
            ghosts: Ghosts::default(),
            unwritten: Unwritten::default(),
            tier: Tier::new(config.tier, config.epoch),
            jobs: VecDeque::new(),
            labels: Labels::default(),
            lease_end: None,
            effects: VecDeque::new(),
        }
    }

    /// Takes in one event. `now` never goes back.
    pub fn handle(&mut self, now: Tick, event: Event) {
        self.handle_timeout(now);
        match event {
            Event::Opened(conn, hello) => self.opened(conn, hello),
            Event::Request(conn, id, request) => self.request(conn, id, request),
            Event::Reply(conn, id, reply) => self.reply(conn, id, reply),
            Event::Closed(conn) => self.closed(conn),
            Event::Near(conn) => _ = self.near.insert(conn),
        }
        self.serve_the_pulling();
        self.serve_the_waiting();
        self.shelve_ahead();
        self.answer_the_woken();
    }

    /// Lets time pass. Time only tidies: it ends soft pins, notices silence, and answers who has waited
    /// enough.
    pub fn handle_timeout(&mut self, now: Tick) {
        self.now = self.now.max(now);
        self.catalog.end_soft_pins(self.now);
        self.notice_silence();
        self.end_waiting();
        self.end_leases_of_the_away();
        self.end_holding();
        self.end_late_promotions();
        self.end_rests();
        self.serve_the_pulling();
        self.serve_the_waiting();
        self.shelve_ahead();
        self.answer_the_woken();
    }

    /// Looks again at who waits for room, if anything changed that they wait for.
    fn serve_the_waiting(&mut self) {
        let lease_ended = self.lease_end.is_some_and(|end| end <= self.now);
        if self.take_change() || lease_ended {
            self.wake();
        }
        let waits = self.room.anybody_waits();
        self.lease_end = waits.then(|| self.catalog.next_lease_end(self.now)).flatten();
    }

    /// When [`Self::handle_timeout`] has something to do, if nothing else happens first.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Tick> {
        let wishes = [
            self.catalog.next_soft_pin_end(),
            self.next_silence(),
            self.next_end_of_waiting(),
            self.next_end_of_holding(),
            self.leases.next_end(),
            self.tier.promotions.next_late(),
            self.tier.next_end_of_rest(self.now),
            self.lease_end,
        ];
        wishes.into_iter().flatten().min()
    }

    /// The next thing to do, oldest first.
    #[must_use]
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// What the master knows of the cluster.
    #[must_use]
    pub fn stat(&self) -> Stat {
        Stat {
            epoch: self.config.epoch,
            clients: self.clients.len() as u64,
            nodes: self.node_stats(),
            namespaces: self.namespace_stats(),
            evicted_objects: self.evicted_objects,
            evicted_bytes: self.evicted_bytes,
            soft_pinned: self.catalog.soft_pinned(),
            tier: Box::new(self.tier_stat()),
        }
    }

    fn node_stats(&self) -> Vec<NodeStat> {
        let stats = self.members.iter().map(|(_, member)| {
            let holder = |it: &Viewer| Holder {
                held: Held::Viewed,
                who: self.client_name(it.client),
                objects: it.objects,
                bytes: it.bytes,
            };
            NodeStat { holders: member.viewers.iter().map(holder).collect(), ..member.stat() }
        });
        stats.collect()
    }

    /// Answers the shell's own pages, as it would a client of that namespace: `Resolve`, `List` and `Stat`.
    #[must_use]
    pub fn look(&mut self, now: Tick, namespace: &str, request: Request) -> Reply {
        self.now = self.now.max(now);
        let namespace = self.catalog.intern(namespace);
        match request {
            Request::Resolve(resolve) => {
                let page = Visitor {
                    client: ClientId::default(),
                    namespace,
                    home: None,
                    host: String::new(),
                    label: String::new(),
                    index: LabelIndex::default(),
                };
                self.resolve(&page, &resolve)
            }
            Request::List(list) => self.list(namespace, &list),
            Request::Stat => Reply::Stat(self.stat()),
            _ => refuse(Reason::NotForYou, "a page only looks"),
        }
    }

    /// How many copies were taken away whose nodes have not confirmed that yet.
    #[must_use]
    pub fn unconfirmed_count(&self) -> usize {
        self.ghosts.len()
    }

    /// What is wrong with the books, if anything is. For tests and simulations.
    pub fn check(&self) -> Result<(), String> {
        self.check_streams()?;
        self.check_tier()
    }

    /// When an object was last used, and until when nobody may evict it. For tests and simulations.
    #[must_use]
    pub fn last_use(&self, namespace: &str, key: &crate::Key) -> Option<(Tick, Tick)> {
        let namespace = self.catalog.namespace_index(namespace)?;
        let object = self.catalog.get(self.catalog.find(namespace, key)?)?;
        Some((object.touched(), object.lease_until()))
    }

    /// How many objects are on their way between memory and disks.
    #[must_use]
    pub fn moving_count(&self) -> usize {
        self.tier.moving_count()
    }

    /// How many operations wait for a node.
    #[must_use]
    pub fn waiting_count(&self) -> usize {
        self.ops.len()
    }

    fn opened(&mut self, conn: ConnId, hello: Hello) {
        match hello.role {
            // The shell's business.
            Role::Ledger => (),
            Role::Node => {
                self.parties.insert(conn, Party::Node(None));
            }
            Role::Client => {
                let namespace = self.catalog.intern(&hello.namespace);
                let index = self.labels.intern(&hello.label);
                let visitor = Visitor {
                    client: hello.client,
                    namespace,
                    home: hello.home,
                    host: hello.host,
                    label: hello.label,
                    index,
                };
                // What it had leased is its own again.
                self.leases.come_back(hello.client);
                if let Some(old) = self.clients.insert(hello.client, conn) {
                    self.fence(old);
                    // Answers may be lost with the old connection, and room with them.
                    self.lose_sight(hello.client);
                    self.client_broke(hello.client, false);
                }
                self.parties.insert(conn, Party::Client(Arc::new(visitor)));
            }
        }
    }

    /// What a replaced connection still says is not heard any more.
    fn fence(&mut self, old: ConnId) {
        if crate::sabotage::sabotaged!(self.config.sabotage, HearOldConnections) {
            return;
        }
        self.parties.remove(&old);
        self.near.remove(&old);
        self.forget_answers(old);
        self.effects.push_back(Effect::Disconnect(old));
    }

    fn request(&mut self, conn: ConnId, id: RequestId, request: Request) {
        match self.parties.get(&conn) {
            None => (),
            Some(Party::Client(visitor)) => {
                let visitor = Arc::clone(visitor);
                self.client_request(conn, id, &visitor, request);
            }
            Some(&Party::Node(node)) => self.node_request(conn, id, node, request),
        }
    }

    fn client_request(&mut self, conn: ConnId, id: RequestId, visitor: &Arc<Visitor>, request: Request) {
        let reply = match request {
            Request::Reserve(reserve) => return self.reserve(conn, id, visitor, reserve),
            Request::Publish(publish) => return self.publish(conn, id, visitor, publish),
            Request::Delete(delete) => return self.delete(conn, id, visitor, delete),
            Request::DeleteMatching(delete) => return self.delete_matching(conn, id, visitor, &delete),
            Request::Pin(pin) => return self.pin(conn, id, visitor.namespace, &pin),
            Request::DropPins(drop) => return self.drop_pins(conn, id, visitor.namespace, &drop),
            Request::Await(until) => return self.watch(conn, id, visitor.namespace, until),
            Request::Why(keys) => return self.why(conn, id, visitor.namespace, &keys),
            Request::Ack(ack) => return self.ack(conn, id, visitor, &ack),
            Request::OpenStream(open) => self.open_stream(visitor, open),
            Request::EndStream(end) => return self.end_stream(conn, id, visitor, end),
            Request::Pull(pull) => return self.pull(conn, id, visitor, pull),
            Request::Cancel(id) => self.cancel(conn, id),
            Request::Lease(lease) => self.lease(visitor, &lease),
            Request::Release(release) => self.release(visitor, &release),
            Request::SetPolicy(policy) => self.set_policy(visitor.namespace, policy),
            Request::Prefetch(prefetch) => return self.prefetch(conn, id, visitor, &prefetch),
            Request::Resolve(resolve) => match self.maybe_wait_for_promotion(conn, id, visitor, resolve) {
                Some(resolve) => self.resolve(visitor, &resolve),
                None => return,
            },
            Request::Exists(exists) => self.exists(visitor, &exists),
            Request::List(list) => self.list(visitor.namespace, &list),
            Request::Stat => Reply::Stat(self.stat()),
            Request::Heartbeat(_) => Reply::Done,
            Request::KeepLeases(leases) => self.keep_leases(visitor.client, &leases),
            Request::Goodbye => {
                self.effects.push_back(Effect::Reply(conn, id, Reply::Done));
                self.end_leases(visitor.client);
                return self.closed(conn);
            }
            _ => refuse(Reason::NotForYou, "the master does not answer this request to a client"),
        };
        self.effects.push_back(Effect::Reply(conn, id, reply));
    }

    fn node_request(&mut self, conn: ConnId, id: RequestId, node: Option<NodeIndex>, request: Request) {
        let reply = match (request, node) {
            (Request::Register(register), _) => self.register(conn, register),
            (Request::Announce(announce), Some(node)) => self.announce(node, announce),
            (Request::Decide(decide), Some(node)) => return self.decide(conn, id, node, decide),
            (Request::Heartbeat(beat), Some(node)) => self.heartbeat(node, beat),
            (Request::Released(released), Some(node)) => self.released(node, &released),
            (Request::ClientDied(client), Some(_)) => self.client_died(client),
            (Request::Dropped(dropped), Some(disk)) => self.dropped(disk, &dropped),
            (Request::Goodbye, Some(node)) => {
                self.effects.push_back(Effect::Reply(conn, id, Reply::Done));
                return self.node_left(node, conn);
            }
            (
                Request::Announce(_)
                | Request::Decide(_)
                | Request::Heartbeat(_)
                | Request::Released(_)
                | Request::ClientDied(_)
                | Request::Dropped(_),
                None,
            ) => refuse(Reason::Invalid, "a node must register first"),
            _ => refuse(Reason::NotForYou, "the master does not answer this request to a node"),
        };
        self.effects.push_back(Effect::Reply(conn, id, reply));
    }

    fn closed(&mut self, conn: ConnId) {
        self.near.remove(&conn);
        match self.parties.remove(&conn) {
            None => (),
            Some(Party::Node(None)) => (),
            Some(Party::Node(Some(node))) => self.node_away(node, conn),
            Some(Party::Client(visitor)) => {
                if self.clients.get(&visitor.client) == Some(&conn) {
                    self.clients.remove(&visitor.client);
                    self.client_broke(visitor.client, true);
                }
                self.forget_answers(conn);
                self.lose_sight(visitor.client);
            }
        }
    }

    /// Tells every node. Only a hint: each decides by its own evidence what that client can still touch.
    fn lose_sight(&mut self, client: ClientId) {
        let nodes: Vec<_> = self.members.iter().filter_map(|(_, it)| it.conn).collect();
        for node in nodes {
            let id = self.next_id();
            self.effects.push_back(Effect::Ask(node, id, Request::ClientGone(client)));
        }
    }

    /// Nobody is there any more to hear what this connection asked for.
    fn forget_answers(&mut self, conn: ConnId) {
        let moot = self.ops.iter().filter(|(_, op)| match op {
            Op::Reserve(it) => it.is_parked_for(conn),
            Op::Watch(it) => it.conn == conn,
            Op::Why(it) => it.conn == conn,
            Op::Fetch(it) => it.conn == conn,
            Op::Pull(it) => it.conn == conn,
            // What was asked for is done, whoever hears of it.
            Op::Confirm(_) | Op::Drop(_) => false,
        });
        for id in moot.map(|(id, _)| *id).collect::<Vec<_>>() {
            match self.ops.remove(&id) {
                Some(Op::Reserve(reserving)) => self.end_reserve(id, reserving),
                Some(Op::Fetch(fetching)) => {
                    self.ops.insert(id, Op::Fetch(fetching));
                    self.end_fetch(id);
                }
                Some(Op::Pull(pulling)) => self.forget_pull(id, &pulling),
                _ => (),
            }
        }
    }

    /// Nobody waits for this answer any more: who stands in a line leaves it.
    fn cancel(&mut self, conn: ConnId, id: RequestId) -> Reply {
        let now = self.now;
        for (op, waiting) in &mut self.ops {
            match waiting {
                Op::Reserve(it) if it.is_of(conn, id) => it.end_at(now),
                Op::Watch(it) if it.is_of(conn, id) => it.end_at(now),
                Op::Fetch(it) if it.is_of(conn, id) => it.end_at(now),
                Op::Pull(it) if it.is_of(conn, id) => it.end_at(now),
                _ => continue,
            }
            self.deadlines.list(now, *op);
        }
        self.end_waiting();
        Reply::Done
    }

    /// What a client calls itself, by its number.
    fn label(&self, index: LabelIndex) -> String {
        self.labels.names.get(index.0 as usize).cloned().unwrap_or_default()
    }

    /// What people can know a client by: what it calls itself, or its number while it is not connected.
    fn client_name(&self, client: ClientId) -> String {
        match self.clients.get(&client).and_then(|conn| self.parties.get(conn)) {
            Some(Party::Client(visitor)) => visitor.label.clone(),
            _ => format!("client {client}, which is not connected"),
        }
    }

    /// What a client that wrote something calls itself.
    fn writer(&self, client: ClientId) -> (LabelIndex, String) {
        match self.clients.get(&client).and_then(|conn| self.parties.get(conn)) {
            Some(Party::Client(visitor)) => (visitor.index, visitor.label.clone()),
            _ => (LabelIndex::default(), String::new()),
        }
    }

    /// Asks a node and remembers what for. `None` if it is not connected.
    fn ask(&mut self, node: NodeIndex, request: Request, wait: Wait) -> Option<RequestId> {
        let conn = self.members.get(node)?.conn?;
        let id = self.next_id();
        let effect = match wait {
            Wait::Publish(..) => Effect::Entrust(conn, id, request),
            _ => Effect::Ask(conn, id, request),
        };
        self.waits.insert(id, (node, wait));
        self.effects.push_back(effect);
        Some(id)
    }

    fn next_id(&mut self) -> RequestId {
        self.next_id += 1;
        RequestId(self.next_id)
    }

    fn next_op(&mut self) -> OpId {
        OpId(self.next_id().0)
    }

    fn mint_generation(&mut self) -> Generation {
        self.next_generation += 1;
        Generation { epoch: self.config.epoch, counter: self.next_generation }
    }
}

fn refuse(reason: Reason, message: &str) -> Reply {
    Reply::Refused(Refusal { reason, message: message.to_owned() })
}
