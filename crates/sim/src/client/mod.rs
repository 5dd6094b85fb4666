//! The shell of a client: connections, calls with deadlines, and the rules for returning unknown
//! reservations.
//!
//! The rules, which every real shell must follow too:
//!
//! - A call that timed out is forgotten; space that is reserved for it later is returned.
//! - `Keep` makes a node release all reservations that the client does not list. So it is sent only while no
//!   `Reserve` is in progress, and no `Reserve` is sent until it is answered. If its answer is lost, the
//!   client avoids the node until a new connection is welcomed: until then the old `Keep` may still arrive
//!   and would release newer reservations.
//! - The first message on a new connection to a node lists the client's views there (`session::Views`).
//! - The first message on a new connection to the master lists the client's leases, so that all others end.
//!   All calls on the old connection have failed by then, so no lease can be in flight.
//! - A client unmaps all memory before it sends `Goodbye`.

mod calls;
mod hedge;
mod session;
mod view;

use std::collections::{BTreeMap, BTreeSet};

use tiffin_session::{LocationCache, OfferLimits, Pace, Preallocation, Reach, Views};
use tiffin_types::{
    ClientId, ConnId, Generation, Key, RequestId, SegmentId,
    message::{
        ClientToMaster, Hello, Ping, Reply, Request, ResolveOutcome, Role, VERSION_MAJOR, VERSION_MINOR,
    },
    mutant::Mutant,
};

pub(crate) use calls::{Call, Purpose};
pub(crate) use session::{Kind, Session, SessionId};
pub(crate) use view::{View, ViewKey};

use crate::{
    coverage::Point,
    keyspace,
    network::Way,
    node::NodeEvent,
    transfer::{Ended, TransferId},
    world::{Event, Party, Phase, Time, World},
};

/// Clients put few objects, so they order offers early and often.
pub(super) const OFFER_LIMITS: OfferLimits =
    OfferLimits { puts_min: 1, puts_ahead: 4, offers_max: 6, rest_us: 30_000 };
/// Number of cached locations: fewer than there are objects.
const CACHED_MAX: usize = 6;

/// A client's own event.
#[derive(Debug)]
pub(crate) enum ClientEvent {
    /// Starts a random operation.
    Work,
    Beat,
    /// Connects again.
    Connect(Target),
    /// A call timed out.
    Timeout(RequestId),
    /// A put or get timed out.
    Deadline(SessionId),
    /// Checks for stalled reads.
    CheckStalls(SessionId),
    /// Copies a few more units.
    Step(TransferId),
    Transferred(TransferId, Ended),
    /// A view began on a connection with this number.
    ViewBegun(ViewKey, u64),
    /// Sends the ends of views.
    SendEnds(SegmentId),
    /// Reads a view.
    CheckView(ViewKey),
    /// Ends a view.
    EndView(ViewKey),
    /// Closes the handle.
    Leave,
}

/// A peer of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    Master,
    Node(SegmentId),
}

/// One of a client's connections, open or not.
#[derive(Debug, Default)]
pub(crate) struct Link {
    pub(crate) conn: Option<ConnId>,
    pub(crate) up: bool,
    /// It was welcomed before.
    pub(crate) ever: bool,
    /// A `Keep` is due.
    pub(crate) keep_due: bool,
    /// A `Keep` is in flight.
    pub(crate) keep: Option<RequestId>,
    /// The answer to a `Keep` was lost: the message may still arrive.
    pub(crate) unfenced: bool,
}

/// One client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: ClientId,
    pub(crate) incarnation: u32,
    pub(crate) alive: bool,
    pub(crate) leaving: bool,
    /// Whether it maps the nodes' memory where possible.
    pub(crate) shares: bool,
    pub(crate) namespace: u8,
    pub(crate) stopped_until: Time,
    /// The rate of its clock, in percent of the simulated time.
    pub(crate) clock_percent: u64,
    pub(crate) links: BTreeMap<Target, Link>,
    pub(crate) attached: BTreeSet<SegmentId>,
    /// The nodes that watch its process, including those it has detached from.
    pub(crate) watched_by: BTreeSet<SegmentId>,
    pub(crate) calls: BTreeMap<RequestId, Call>,
    pub(crate) last_request: RequestId,
    pub(crate) sessions: BTreeMap<SessionId, Session>,
    pub(crate) next_session: u64,
    pub(crate) views: BTreeMap<ViewKey, View>,
    pub(crate) next_view: u64,
    /// Its views, by node, as the node is to know them.
    pub(crate) views_at: BTreeMap<SegmentId, Views>,
    /// Its offers.
    pub(crate) preallocation: Preallocation,
    /// Nodes near the master, as reported with offers.
    pub(crate) same_host: BTreeSet<SegmentId>,
    /// Leases of samples that it keeps, and the epoch in which they were granted.
    pub(crate) leases: BTreeSet<u64>,
    pub(crate) leased_in: u64,
    pub(crate) locations: LocationCache,
    /// Speed of the nodes.
    pub(crate) pace: Pace,
    /// The newest generation of each object that it has seen.
    newest: BTreeMap<Key, Generation>,
    /// Peers to which it must still send `Goodbye`.
    pub(crate) goodbyes: BTreeSet<Target>,
}

impl Client {
    pub(crate) fn absent(mutant: Mutant) -> Self {
        Self {
            id: ClientId(0),
            incarnation: 0,
            alive: false,
            leaving: false,
            shares: false,
            namespace: 0,
            stopped_until: 0,
            clock_percent: 100,
            links: BTreeMap::new(),
            attached: BTreeSet::new(),
            watched_by: BTreeSet::new(),
            calls: BTreeMap::new(),
            last_request: RequestId(0),
            sessions: BTreeMap::new(),
            next_session: 0,
            views: BTreeMap::new(),
            next_view: 0,
            views_at: BTreeMap::new(),
            preallocation: Preallocation::new(OFFER_LIMITS),
            same_host: BTreeSet::new(),
            leases: BTreeSet::new(),
            leased_in: 0,
            locations: LocationCache::new(CACHED_MAX, 0, mutant),
            pace: Pace::new(mutant),
            newest: BTreeMap::new(),
            goodbyes: BTreeSet::new(),
        }
    }

    /// Learns locations from an answer of the master.
    fn learn(&mut self, keys: &[Key], outcomes: &[ResolveOutcome]) {
        for (key, outcome) in keys.iter().zip(outcomes) {
            self.locations.apply(key, outcome);
            if let ResolveOutcome::Found(found) = outcome {
                self.seen(key, found.generation);
            }
        }
    }

    /// Records a generation of an object.
    pub(crate) fn seen(&mut self, key: &Key, generation: Generation) {
        let newest = self.newest.entry(key.clone()).or_default();
        *newest = generation.max(*newest);
    }

    /// The newest generation of an object that it has seen.
    pub(crate) fn newest(&self, key: &Key) -> Generation {
        self.newest.get(key).copied().unwrap_or_default()
    }

    /// The epoch of the master that it is connected to.
    pub(crate) fn epoch(&self) -> Option<u64> {
        self.links.get(&Target::Master).filter(|it| it.up).map(|_| self.leased_in)
    }

    /// How it reaches the nodes that it is connected to.
    pub(crate) fn reaches(&self) -> BTreeMap<SegmentId, Reach> {
        let nodes = self.links.iter().filter_map(|(target, link)| match target {
            Target::Node(segment) if link.up => Some(*segment),
            Target::Node(_) | Target::Master => None,
        });
        let reach = |it| if self.attached.contains(&it) { Reach::Mapped } else { Reach::Socket };
        nodes.map(|it| (it, reach(it))).collect()
    }

    /// The id of its next call.
    pub(crate) fn next_request(&self) -> RequestId {
        RequestId(self.last_request.0 + 1)
    }

    pub(crate) fn target_of(&self, conn: ConnId) -> Option<Target> {
        self.links.iter().find(|(_, it)| it.conn == Some(conn)).map(|(target, _)| *target)
    }
}

impl World {
    pub(crate) fn start_client(&mut self, client: usize) {
        let is_mover = self.is_mover(client);
        if self.phase != Phase::Faults && !(is_mover && self.phase == Phase::Calm) {
            return;
        }
        self.moves_end(client);
        self.next_client += 1;
        let id = ClientId(self.next_client);
        let shares = self.rng.percent(self.plan.sharing_percent);
        let is_rare = self.rng.once_in(8);
        let namespace = u8::from(if self.plan.guaranteed_percent > 0 { client % 2 == 1 } else { is_rare });
        let namespace = if is_mover { self.mover_namespace(client) } else { namespace };
        let Some(it) = self.clients.get_mut(client) else { return };
        let incarnation = it.incarnation + 1;
        *it = Client { id, incarnation, alive: true, shares, namespace, ..Client::absent(self.mutant) };
        self.log.line(self.now, "client starts", &[client as u64, id.0], &[]);
        self.connect(client, Target::Master);
        self.client_at(1, client, ClientEvent::Work);
        self.client_at(self.plan.beat_ms, client, ClientEvent::Beat);
    }

    /// The process dies. Its sockets close and the kernel informs the nodes, in any order.
    pub(crate) fn crash_client(&mut self, client: usize) {
        let Some(it) = self.clients.get_mut(client).filter(|it| it.alive) else { return };
        it.alive = false;
        let (id, incarnation) = (it.id, it.incarnation);
        let watched_by = std::mem::take(&mut it.watched_by);
        (it.views, it.views_at) = Default::default();
        self.log.line(self.now, "client dies", &[client as u64], &[]);
        self.close_everything(client, incarnation);
        for segment in watched_by {
            let delay = self.rng.delay(60, 300);
            if let Some(node) = self.node_of(segment) {
                self.node_at(delay, node, NodeEvent::Dead(id));
            }
        }
        let again = self.rng.between(5, 60);
        self.at(self.now + again, Event::ClientStarts(client));
    }

    /// Closes all sockets and stops all copies.
    fn close_everything(&mut self, client: usize, incarnation: u32) {
        let mine = |it: &crate::network::Conn| {
            it.caller == Party::Client(client) && it.caller_incarnation == incarnation && it.caller_open
        };
        let conns: Vec<_> = self.conns.iter().filter(|(_, it)| mine(it)).map(|(id, _)| *id).collect();
        conns.into_iter().for_each(|conn| self.close_caller(conn));
        let Some(id) = self.clients.get(client).map(|it| it.id) else { return };
        let transfers = self.transfers.iter().filter(|(_, it)| it.client_id == id);
        let transfers: Vec<_> = transfers.map(|(id, _)| *id).collect();
        transfers.into_iter().for_each(|transfer| self.cancel_transfer(transfer));
    }

    pub(crate) fn client_event(&mut self, client: usize, event: ClientEvent) {
        match event {
            ClientEvent::Work if self.is_mover(client) => self.move_next(client),
            ClientEvent::Work => self.work(client),
            ClientEvent::Beat => self.client_beats(client),
            ClientEvent::Connect(target) => self.connect(client, target),
            ClientEvent::Timeout(id) => self.call_timed_out(client, id),
            ClientEvent::Deadline(session) => self.give_up(client, session),
            ClientEvent::CheckStalls(session) => self.check_stalls(client, session),
            ClientEvent::Step(transfer) => self.mapped_step(transfer),
            ClientEvent::Transferred(transfer, ended) => self.transferred(transfer, ended),
            ClientEvent::ViewBegun(view, connection) => self.view_begun(client, view, connection),
            ClientEvent::SendEnds(segment) => self.send_ends(client, segment),
            ClientEvent::CheckView(view) => self.check_view(client, view),
            ClientEvent::EndView(view) => self.end_view(client, view),
            ClientEvent::Leave => self.leave(client),
        }
    }

    fn client_beats(&mut self, client: usize) {
        let Some(it) = self.clients.get_mut(client).filter(|it| !it.leaving) else { return };
        for (target, link) in &mut it.links {
            link.keep_due |= matches!(target, Target::Node(_)) && link.up;
        }
        self.call(client, Target::Master, ClientToMaster::Ping(Ping::default()), Purpose::Nothing);
        self.report_uses(client);
        self.send_keeps(client);
        let pause = self.client_delay(client, self.plan.beat_ms);
        self.client_at(pause, client, ClientEvent::Beat);
    }

    /// The simulated time until the client's clock has advanced by `ms`.
    pub(crate) fn client_delay(&self, client: usize, ms: u64) -> u64 {
        let percent = self.clients.get(client).map_or(100, |it| it.clock_percent);
        ms * 100 / percent.max(1)
    }

    /// Connects, unless it is connected or connecting.
    pub(crate) fn connect(&mut self, client: usize, target: Target) {
        let known = self.clients.get(client).map_or(0, |it| it.leased_in);
        let is_open = |it: &Client| it.links.get(&target).is_some_and(|it| it.conn.is_some());
        if self.clients.get(client).is_some_and(is_open) {
            return;
        }
        let server = match target {
            // A client never goes back to a smaller epoch.
            Target::Master => Some(self.choose_master(known)),
            Target::Node(segment) => self.node_of(segment).map(Party::Node),
        };
        let Some(it) = self.clients.get_mut(client) else { return };
        it.links.entry(target).or_default();
        let hello = Hello {
            major: VERSION_MAJOR,
            minor: VERSION_MINOR,
            namespace: keyspace::namespace_name(it.namespace).to_owned(),
            role: Role::Client,
            client: it.id,
            host: format!("host{client}"),
            ..Hello::default()
        };
        match server {
            Some(server) => {
                let conn = self.open(Party::Client(client), server, hello);
                let it = self.clients.get_mut(client);
                it.and_then(|it| it.links.get_mut(&target)).expect("made above").conn = Some(conn);
            }
            // The next process of the node adopts the memory.
            None if !it.leaving && self.is_down(target) => {
                self.fail_calls(client, target);
                let delay = self.rng.delay(10, 80);
                self.client_at(delay, client, ClientEvent::Connect(target));
            }
            // The node of that segment does not exist any more.
            None => self.peer_gone(client, target),
        }
    }

    /// A connection broke, or was not accepted: no request on it will be answered.
    pub(crate) fn conn_lost(&mut self, client: usize, conn: ConnId) {
        let Some(it) = self.clients.get_mut(client) else { return };
        let Some(target) = it.target_of(conn) else { return };
        let link = it.links.entry(target).or_default();
        (link.conn, link.up) = (None, false);
        if link.keep.take().is_some() {
            link.unfenced = true;
        }
        self.fail_calls(client, target);
        let delay = self.rng.delay(10, 80);
        self.client_at(delay, client, ClientEvent::Connect(target));
    }

    /// Whether the target is a dead node whose memory will be adopted.
    fn is_down(&self, target: Target) -> bool {
        let Target::Node(segment) = target else { return false };
        self.memories.get(&segment).is_some_and(|it| it.alive && !it.runs)
    }

    fn peer_gone(&mut self, client: usize, target: Target) {
        let Some(it) = self.clients.get_mut(client) else { return };
        it.links.remove(&target);
        it.goodbyes.remove(&target);
        it.forget_views(target);
        self.fail_calls(client, target);
        self.maybe_exit(client);
    }

    pub(crate) fn client_receives(&mut self, client: usize, conn: ConnId, incoming: tiffin_proto::Incoming) {
        let Some(target) = self.clients.get(client).and_then(|it| it.target_of(conn)) else { return };
        match incoming {
            tiffin_proto::Incoming::Reply(_, Reply::Welcome(welcome)) => {
                if target == Target::Master {
                    self.send_leases(client, conn, welcome.epoch);
                }
                self.list_views(client, target, conn);
                self.welcomed(client, target);
            }
            tiffin_proto::Incoming::Reply(id, reply) => self.call_answered(client, id, reply),
            tiffin_proto::Incoming::Request(..) => (),
        }
    }

    /// Lists the leases of the client. A master of another epoch has granted none of them.
    fn send_leases(&mut self, client: usize, conn: ConnId, epoch: u64) {
        let Some(it) = self.clients.get_mut(client) else { return };
        if std::mem::replace(&mut it.leased_in, epoch) != epoch {
            return it.leases.clear();
        }
        it.last_request = it.next_request();
        let (id, leases) = (it.last_request, it.leases.iter().copied().collect());
        self.send_request(conn, Way::Up, id, &ClientToMaster::KeepLeases(leases));
    }

    fn welcomed(&mut self, client: usize, target: Target) {
        let delay = self.rng.delay(5, 60);
        let Some(it) = self.clients.get_mut(client) else { return };
        let link = it.links.entry(target).or_default();
        let again = std::mem::replace(&mut link.ever, true);
        (link.up, link.unfenced) = (true, false);
        let (shares, incarnation, leaving) = (it.shares && !it.leaving, it.incarnation, it.leaving);
        for (other, link) in &mut it.links {
            let told = *other == target || target == Target::Master;
            link.keep_due |= again && told && matches!(other, Target::Node(_)) && !leaving;
        }
        if let Target::Node(segment) = target
            && shares
            && !it.attached.contains(&segment)
            && let Some(node) = self.node_of(segment)
        {
            self.node_at(delay, node, NodeEvent::Attach(client, incarnation));
        }
        self.send_keeps(client);
        self.flush(client, target);
        let goodbye =
            |it: &Client| it.goodbyes.contains(&target) && !it.calls.values().any(|it| it.is_goodbye(target));
        if self.clients.get(client).is_some_and(goodbye) {
            self.say_goodbye(client, target);
        }
    }

    /// Closes the handle in order: stops everything, unmaps all memory, then sends `Goodbye`.
    pub(crate) fn leave(&mut self, client: usize) {
        let Some(it) = self.clients.get(client).filter(|it| it.alive && !it.leaving) else { return };
        self.coverage.hit(Point::ClientLeaves);
        self.log.line(self.now, "client leaves", &[client as u64], &[]);
        let sessions: Vec<_> = it.sessions.keys().copied().collect();
        sessions.into_iter().for_each(|session| self.drop_session(client, session));
        let Some(it) = self.clients.get_mut(client) else { return };
        it.leaving = true;
        (it.views, it.views_at) = Default::default();
        it.calls.clear();
        it.leases.clear();
        it.attached.clear();
        it.goodbyes = it.links.keys().copied().collect();
        for link in it.links.values_mut() {
            link.keep_due = false;
        }
        for target in it.goodbyes.clone() {
            self.say_goodbye(client, target);
        }
    }

    pub(crate) fn say_goodbye(&mut self, client: usize, target: Target) {
        self.call(client, target, Request::Goodbye, Purpose::Goodbye(target));
    }

    pub(crate) fn goodbye_answered(&mut self, client: usize, target: Target) {
        if let Some(it) = self.clients.get_mut(client) {
            it.goodbyes.remove(&target);
        }
        self.maybe_exit(client);
    }

    fn maybe_exit(&mut self, client: usize) {
        let Some(it) = self.clients.get_mut(client) else { return };
        if !(it.alive && it.leaving && it.goodbyes.is_empty()) {
            return;
        }
        it.alive = false;
        let incarnation = it.incarnation;
        self.log.line(self.now, "client exits", &[client as u64], &[]);
        self.close_everything(client, incarnation);
        let again = self.rng.between(5, 60);
        self.at(self.now + again, Event::ClientStarts(client));
    }
}
