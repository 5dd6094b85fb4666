//! What all handles of one client share: connections, and what is to be tidied up behind them.
//!
//! **Invariant:** no lock is held across I/O, but for the gates of [`Reservations`] and [`Leases`].
//!
//! **Invariant:** a node hears `Goodbye` only when nothing of this client can touch its memory any more: no
//! operation is under way, and no view is left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tiffin_core::message::{
    self, ClientToMaster, ClientToNode, Hello, LeaseOutcome, Leased, NodeInfo, Release, Reply, RequestRef,
    Reserve, ReserveOutcome, Reserved, Role,
};
use tiffin_core::session::{CallFailure, Views};
use tiffin_core::{ClientId, Hold, Location, SegmentId};
use tiffin_rpc::{Address, CallError, Connection, Reach};
use tiffin_transport::{Counters, this_process};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout_at};

use crate::hedge::Paces;
use crate::known::{self, Memory};
use crate::leases::Leases;
use crate::link::{Link, Usable};
use crate::preallocated::Preallocated;
use crate::reservations::{Held, Reservations};
use crate::route::{self, OpenRoute, Traveller};
use crate::running::Running;
use crate::tend::{self, Chore};
use crate::{ConnectOptions, Deadline, Error, Route, host};

/// How far disks are: further than any memory.
const DISTANCE_OF_DISKS: u8 = 4;
/// How long a node that could not be reached is left alone.
const NODE_REST: Duration = Duration::from_millis(500);
/// How long a node may take to hear what is reserved there.
const KEEP_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a put may wait for the moment to say that: longer than it takes, unless somebody waits for room.
const GATE_TIME_MAX: Duration = Duration::from_secs(3);
/// How much longer than an attempt to connect its outcome is waited for.
const ATTEMPT_GRACE: Duration = Duration::from_secs(1);
/// How long the last words of a client that is dropped may take.
const GOODBYE_TIME_MAX: Duration = Duration::from_secs(2);

/// A connection to the master.
pub(crate) struct Master {
    /// Which life of the master.
    pub(crate) epoch: u64,
    pub(crate) connection: Connection,
    pub(crate) heartbeat: Duration,
    /// A lease refuses unforced removal.
    strict_leases: bool,
}

impl Usable for Master {
    fn is_usable(&self) -> bool {
        !self.connection.is_closed()
    }

    /// Whether there was one before is what tells a first connection from a later one.
    fn is_worth_keeping(&self) -> bool {
        true
    }
}

struct Node {
    info: NodeInfo,
    /// The master tells it what is published there, as the master said last.
    is_near: bool,
    link: Arc<Link<OpenRoute>>,
}

/// What all handles of one client share.
pub(crate) struct Inner {
    pub(crate) options: ConnectOptions,
    pub(crate) counters: Arc<Counters>,
    pub(crate) runtime: Handle,
    pub(crate) reservations: Reservations,
    pub(crate) leases: Leases,
    pub(crate) chores: mpsc::UnboundedSender<Chore>,
    pub(crate) known: Memory,
    pub(crate) paces: Paces,
    pub(crate) preallocated: Preallocated,
    traveller: Traveller,
    address: Address,
    master: Arc<Link<Master>>,
    nodes: Mutex<BTreeMap<SegmentId, Node>>,
    /// The views on each node that was asked for any.
    views: Mutex<BTreeMap<SegmentId, Views>>,
    closed: AtomicBool,
    /// How many operations are under way, and who waits for their end.
    busy: AtomicUsize,
    idle: Notify,
    process: u32,
    me: Weak<Self>,
}

/// An operation under way.
pub(crate) struct Busy<'a>(&'a Inner);

impl Inner {
    pub(crate) async fn connect(options: ConnectOptions) -> Result<Arc<Self>, Error> {
        let address: Address = options.address.parse()?;
        // The attempt ends by itself after `connect_time`, and can tell how far it came.
        let deadline = Deadline::after(options.connect_time.saturating_add(ATTEMPT_GRACE));
        let counters = Arc::new(Counters::default());
        let drawn = host::draw().map_err(|error| Error::invalid(format!("no random number: {error}")))?;
        let hello = Hello {
            token: options.token.clone(),
            namespace: options.namespace.clone(),
            role: Role::Client,
            client: ClientId(drawn),
            label: options.label.clone(),
            home: options.home,
            host: host::identity(),
            ..Hello::default()
        };
        let traveller = Traveller {
            hello,
            shared_memory: options.shared_memory,
            home_memory: options.home_memory.clone(),
            home_disks: options.home_disks.clone(),
            connect_time: options.connect_time,
            counters: Arc::clone(&counters),
            disk_reads: Arc::default(),
        };
        let (chores, todo) = mpsc::unbounded_channel();
        let inner = Arc::new_cyclic(|me| Self {
            counters,
            runtime: Handle::current(),
            reservations: Reservations::default(),
            leases: Leases::default(),
            chores,
            known: Memory::new(known::KNOWN_MAX, drawn),
            paces: Paces::new(),
            preallocated: Preallocated::new(),
            traveller,
            master: Arc::new(Link::new(format!("`{address}`"), Duration::ZERO)),
            address,
            nodes: Mutex::default(),
            views: Mutex::default(),
            closed: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
            idle: Notify::new(),
            process: this_process(),
            me: Weak::clone(me),
            options,
        });
        let master = inner.master(deadline).await?;
        tokio::spawn(tend::run(Arc::downgrade(&inner), todo, master.heartbeat));
        Ok(inner)
    }

    pub(crate) fn weak(&self) -> Weak<Self> {
        Weak::clone(&self.me)
    }

    pub(crate) fn id(&self) -> ClientId {
        self.traveller.hello.client
    }

    /// Begins an operation, unless the client is closed or another process's, or it is too late.
    pub(crate) fn enter(&self, deadline: Deadline) -> Result<Busy<'_>, Error> {
        if deadline.has_passed() {
            return Err(Error::timeout("the call"));
        }
        if self.process != this_process() {
            return Err(Error::Forked);
        }
        self.busy.fetch_add(1, Ordering::SeqCst);
        let busy = Busy(self);
        if self.closed.load(Ordering::SeqCst) { Err(Error::Closed) } else { Ok(busy) }
    }

    /// Whether it was closed: it has said goodbye, or is about to.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Asks the master, and remembers the nodes that the answer names.
    pub(crate) async fn ask(&self, request: &ClientToMaster, deadline: Deadline) -> Result<Reply, Error> {
        let master = self.master(deadline).await?;
        let reply = match master.connection.call(request, deadline.instant()).await {
            // The master may have gone away and come back unnoticed. Asking a question twice is harmless.
            Err(CallError::Lost { .. }) if is_repeatable(request) => {
                let master = self.master(deadline).await?;
                master.connection.call(request, deadline.instant()).await?
            }
            reply => reply?,
        };
        if let (ClientToMaster::Resolve(resolve), Reply::Resolved(resolved)) = (request, &reply) {
            self.learn(&resolved.nodes);
            self.known.hear(&resolve.keys, &resolved.items);
        }
        Ok(reply)
    }

    /// Asks the master for leases, and says which life of it gave them. An answer that nobody waits for any
    /// more is undone when it comes.
    pub(crate) async fn ask_leases(
        &self,
        lease: message::Lease,
        deadline: Deadline,
    ) -> Result<(u64, Leased), Error> {
        match self.ask_for_leases(ClientToMaster::Lease(lease), deadline).await? {
            (epoch, Reply::Leased(leased)) => Ok((epoch, leased)),
            _ => Err(Error::misfit()),
        }
    }

    /// The same for every request whose answer leases something.
    pub(crate) async fn ask_for_leases(
        &self,
        mut request: ClientToMaster,
        deadline: Deadline,
    ) -> Result<(u64, Reply), Error> {
        let mut is_second = false;
        loop {
            if let ClientToMaster::Pull(pull) = &mut request {
                pull.wait_ms = pull.wait_ms.min(deadline.wait_ms());
            }
            let gate = timeout_at(deadline.instant(), self.leases.gate.read()).await;
            let gate = gate.map_err(|_| Error::timeout("waiting to lease"))?;
            // First the connection: if it is a new one, that something is owed is known when it is there.
            let master = self.master(deadline).await?;
            if self.leases.owed().is_some() {
                drop(gate);
                self.keep_leases(deadline).await?;
                continue;
            }
            let (epoch, chores) = (master.epoch, self.chores.clone());
            let late = move |reply| {
                if let Some(leased) = leased_in(&reply) {
                    leases(leased).for_each(|lease| _ = chores.send(Chore::Release { epoch, lease }));
                }
            };
            match master.connection.call_or(&request, deadline.instant(), late).await {
                Ok(reply) => {
                    if let Some(leased) = leased_in(&reply) {
                        self.learn(&leased.nodes);
                        leases(leased).for_each(|lease| self.leases.add(epoch, lease));
                    }
                    return Ok((epoch, reply));
                }
                // The master may have gone away and come back unnoticed. If it had leased anything, it hears
                // that we do not know of it.
                Err(CallError::Lost { .. }) if !is_second => is_second = true,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Connects to the master, if need be, and tells it which leases are known, if it must hear that.
    pub(crate) async fn keep_leases(&self, deadline: Deadline) -> Result<(), Error> {
        let alone = timeout_at(deadline.instant(), self.leases.gate.write()).await;
        let _alone = alone.map_err(|_| Error::timeout("waiting to say what is leased"))?;
        let master = self.master(deadline).await?;
        let Some(owed) = self.leases.owed() else { return Ok(()) };
        let request = ClientToMaster::KeepLeases(self.leases.of(master.epoch));
        master.connection.call(&request, deadline.instant()).await?;
        self.leases.told(owed);
        Ok(())
    }

    /// Ends leases that a life of the master gave. Another life does not know them, and its own have the same
    /// numbers. From here on they are not kept for the case that the connection breaks.
    pub(crate) async fn end_leases(
        &self,
        epoch: u64,
        leases: Vec<u64>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        leases.iter().for_each(|lease| self.leases.remove(epoch, *lease));
        let master = self.master(deadline).await?;
        if master.epoch != epoch {
            return Ok(());
        }
        master.connection.call(&ClientToMaster::Release(Release { leases }), deadline.instant()).await?;
        Ok(())
    }

    /// Asks the master for room. What it gives is in `held` before anything else can happen.
    pub(crate) async fn reserve(
        &self,
        reserve: Reserve,
        held: &Held<'_>,
        deadline: Deadline,
    ) -> Result<Reply, Error> {
        let late = || Error::timeout("waiting to reserve");
        let (mut is_told, mut is_second) = (false, false);
        let mut request = ClientToMaster::Reserve(reserve);
        loop {
            let gate = timeout_at(deadline.instant(), self.reservations.gate.read());
            let gate = gate.await.map_err(|_| late())?;
            // First the connection: if it is a new one, the nodes to be told are known when it is there.
            let master = self.master(deadline).await?;
            if !is_told && !self.owed().is_empty() {
                drop(gate);
                // Puts that wait for room hold the gate for long; what is owed is then said another time.
                let patience = deadline.instant().min(Instant::now() + GATE_TIME_MAX);
                let _unsaid = timeout_at(patience, self.keep()).await;
                // Once is enough: a node that does not listen must not stop all puts.
                is_told = true;
                continue;
            }
            if let ClientToMaster::Reserve(reserve) = &mut request {
                reserve.wait_ms = reserve.wait_ms.min(deadline.wait_ms());
            }
            // What this client uses must not make way for what it puts.
            known::tell_all(self);
            let chores = self.chores.clone();
            let abort = move |reply| {
                let _gone = chores.send(Chore::Late(reply));
            };
            let reply = match master.connection.call_or(&request, deadline.instant(), abort).await {
                // The master may have gone away and come back unnoticed. If it had found room already, the
                // nodes hear that we do not know of it.
                Err(CallError::Lost { .. }) if !is_second => {
                    (is_told, is_second) = (false, true);
                    continue;
                }
                reply => reply?,
            };
            if let Reply::Reserved(reserved) = &reply {
                self.learn(&reserved.nodes);
                self.learn_near(reserved);
                locations(reserved).for_each(|location| held.take(location));
            }
            return Ok(reply);
        }
    }

    /// Asks a node.
    pub(crate) async fn ask_node(
        &self,
        segment: SegmentId,
        request: &ClientToNode,
        deadline: Deadline,
    ) -> Result<Reply, Error> {
        let route = self.control_route(segment, deadline).await?;
        Ok(route.connection.call(request, deadline.instant()).await?)
    }

    /// The route to a node, for requests alone. It does not check whether the node's memory is still mapped:
    /// a node that is gone does not answer, and a client that wrote there has checked after its write.
    pub(crate) async fn control_route(
        &self,
        segment: SegmentId,
        deadline: Deadline,
    ) -> Result<Arc<OpenRoute>, Error> {
        let link = self.nodes().get(&segment).map(|node| Arc::clone(&node.link));
        match link.and_then(|link| link.current_if(|route| !route.connection.is_closed())) {
            Some(route) => Ok(route),
            None => self.route(segment, deadline).await,
        }
    }

    /// The way to a node.
    pub(crate) async fn route(
        &self,
        segment: SegmentId,
        deadline: Deadline,
    ) -> Result<Arc<OpenRoute>, Error> {
        let link = self.nodes().get(&segment).map(|node| Arc::clone(&node.link));
        if let Some(route) = link.as_ref().and_then(|link| link.current()) {
            return Ok(route);
        }
        let info = self.nodes().get(&segment).map(|node| node.info.clone());
        let (Some(info), Some(link)) = (info, link) else {
            return Err(Error::Unreachable { what: format!("the node of segment {segment} is not known") });
        };
        let (traveller, me) = (self.traveller.clone(), Weak::clone(&self.me));
        let open = |last| async move {
            let route = route::open(traveller, info, last).await?;
            if let Some(inner) = me.upgrade() {
                inner.list_views(segment, &route).await?;
            }
            Ok(route)
        };
        link.get(&self.runtime, deadline, open).await
    }

    /// The way to a node, if it is open.
    pub(crate) fn current_route(&self, segment: SegmentId) -> Option<Arc<OpenRoute>> {
        self.nodes().get(&segment)?.link.current()
    }

    /// The way to a node as it is or last was.
    pub(crate) fn last_route(&self, segment: SegmentId) -> Option<Arc<OpenRoute>> {
        self.nodes().get(&segment)?.link.last()
    }

    /// Whether a node was met, and was not told goodbye.
    pub(crate) fn knows(&self, segment: SegmentId) -> bool {
        self.nodes().contains_key(&segment)
    }

    /// What people call a node.
    pub(crate) fn node_name(&self, segment: SegmentId) -> String {
        let known = self.nodes().get(&segment).map(|node| node.info.name.clone());
        known.unwrap_or_else(|| segment.to_string())
    }

    /// Remembers nodes. One whose addresses have changed is reached at the new ones next time.
    pub(crate) fn learn(&self, infos: &[NodeInfo]) {
        let mut nodes = self.nodes();
        for info in infos {
            match nodes.get_mut(&info.segment) {
                Some(node) if node.info == *info => {}
                Some(node) => node.info = info.clone(),
                None => {
                    let link = Arc::new(Link::new(format!("node `{}`", info.name), NODE_REST));
                    nodes.insert(info.segment, Node { info: info.clone(), is_near: false, link });
                }
            }
        }
    }

    fn learn_near(&self, reserved: &Reserved) {
        let mut nodes = self.nodes();
        for info in &reserved.nodes {
            if let Some(node) = nodes.get_mut(&info.segment) {
                node.is_near = reserved.near.contains(&info.segment);
            }
        }
    }

    /// The nodes that need not be asked for what is put there.
    pub(crate) fn near(&self) -> BTreeSet<SegmentId> {
        let nodes = self.nodes();
        nodes.iter().filter(|(_, node)| node.is_near).map(|(segment, _)| *segment).collect()
    }

    /// Bytes that went to a node with a question.
    pub(crate) fn count_carried(&self, bytes: u64) {
        self.traveller.counters.tcp.add_written(bytes);
    }

    /// How much was read from disks.
    pub(crate) fn disk_reads(&self) -> u64 {
        self.traveller.disk_reads.load(Ordering::Relaxed)
    }

    /// How far a node is: zero is nearest.
    pub(crate) fn distance(&self, segment: SegmentId) -> u8 {
        let nodes = self.nodes();
        let Some(node) = nodes.get(&segment) else { return u8::MAX };
        if node.info.beside.is_some() {
            // Memory is read first, wherever it is.
            return DISTANCE_OF_DISKS;
        }
        match node.link.current().map(|route| route.attachment().is_some()) {
            Some(true) => 0,
            // One that was not tried yet may turn out to be near.
            None if node.link.failure().is_none() && self.may_share(&node.info) => 1,
            Some(false) => 2,
            None => 3,
        }
    }

    /// Opens the ways to these nodes, all at once; those that cannot be opened say why.
    pub(crate) async fn meet(&self, infos: &[NodeInfo], deadline: Deadline) -> Vec<Route> {
        self.learn(infos);
        let mut running = Running::new();
        for info in infos {
            // The outcome is kept in the link, where `routes` finds it.
            running.push(async move { self.route(info.segment, deadline).await.is_ok() });
        }
        running.all().await;
        self.routes()
    }

    /// Lets go of the memory of nodes that are gone.
    pub(crate) fn prune(&self) {
        self.nodes().values().for_each(|node| node.link.prune());
    }

    pub(crate) fn routes(&self) -> Vec<Route> {
        let nodes = self.nodes();
        let routes = nodes.values().map(|node| {
            let current = node.link.current();
            let why_not = current.as_ref().and_then(|route| route.why_not_shared.clone());
            Route {
                node: node.info.name.clone(),
                segment: node.info.segment,
                way: current.as_ref().map(|route| route.way()),
                why: if current.is_some() { why_not } else { node.link.failure().map(|it| it.to_string()) },
            }
        });
        routes.collect()
    }

    /// The views on a node.
    pub(crate) fn with_views<T>(&self, segment: SegmentId, use_views: impl FnOnce(&mut Views) -> T) -> T {
        use_views(lock(&self.views).entry(segment).or_default())
    }

    /// The ends of views to send on a connection to a node.
    pub(crate) fn take_view_ends(&self, segment: SegmentId, route: &OpenRoute) -> Vec<Hold> {
        let connection = route.views_connection.load(Ordering::Acquire);
        lock(&self.views).get_mut(&segment).map_or_else(Vec::new, |views| views.take_ends(connection))
    }

    /// The nodes that may count views that this client does not have, because the connection to them broke.
    pub(crate) fn unsettled_views(&self) -> Vec<SegmentId> {
        let nodes = self.nodes();
        let mut views = lock(&self.views);
        let link = |segment: &SegmentId| nodes.get(segment).map(|node| Arc::clone(&node.link));
        let is_gone = |segment: &SegmentId| match link(segment) {
            Some(link) => link.last().is_some_and(|route| route.is_node_gone()),
            None => true,
        };
        views.retain(|segment, views| !(views.is_empty() && is_gone(segment)));
        let is_open = |segment: &SegmentId| link(segment).is_none_or(|link| link.current().is_some());
        views.keys().filter(|segment| !is_open(segment)).copied().collect()
    }

    /// Says first on a new connection which views there are. What was sent on the last one counts no more.
    async fn list_views(&self, segment: SegmentId, route: &OpenRoute) -> Result<(), Error> {
        let listed = lock(&self.views).get_mut(&segment).map(Views::connected);
        let Some((connection, held)) = listed else { return Ok(()) };
        route.views_connection.store(connection, Ordering::Release);
        let deadline = Instant::now() + KEEP_TIME_MAX;
        match route.connection.call(&ClientToNode::KeepViews(held), deadline).await {
            // A node of an earlier release does not know the request; its views end with this client.
            Ok(_) | Err(CallError::Refused(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Says goodbye to everybody, when all operations have ended.
    pub(crate) async fn close(&self, deadline: Deadline) -> Result<(), Error> {
        self.closed.store(true, Ordering::SeqCst);
        let quiet = timeout_at(deadline.instant(), async {
            loop {
                let idle = self.idle.notified();
                if self.busy.load(Ordering::SeqCst) == 0 {
                    return;
                }
                idle.await;
            }
        });
        quiet.await.map_err(|_| Error::timeout("waiting for calls that are under way"))?;
        goodbye(self.leave(), deadline.instant()).await;
        self.give_up_room(deadline).await;
        Ok(())
    }

    /// Gives back what is still reserved on nodes that hear no goodbye yet, because of views.
    async fn give_up_room(&self, deadline: Deadline) {
        let mut running = Running::new();
        let left: Vec<_> =
            self.nodes().iter().map(|(segment, node)| (*segment, node.link.current())).collect();
        for (segment, route) in left {
            let Some(route) = route.filter(|_| !self.reservations.on(segment).is_empty()) else { continue };
            running.push(async move {
                // Who does not hear it hears the goodbye, or sees this process end.
                let _unheard =
                    route.connection.call(&ClientToNode::Keep(Vec::new()), deadline.instant()).await;
            });
        }
        running.all().await;
    }

    /// Everybody who has not heard goodbye yet and may: nodes on which something is still in view must wait.
    /// The master has been told of all reads.
    fn leave(&self) -> Vec<Connection> {
        known::tell_all(self);
        let views = lock(&self.views);
        let mut nodes = self.nodes();
        let mut connections: Vec<_> =
            self.master.current().map(|it| it.connection.clone()).into_iter().collect();
        nodes.retain(|segment, node| {
            if views.get(segment).is_some_and(|it| !it.is_empty()) {
                return true;
            }
            connections.extend(node.link.current().map(|route| route.connection.clone()));
            false
        });
        connections
    }

    /// Tells nodes what is known to be reserved there, so that they give the rest back.
    async fn keep(&self) {
        let _alone = self.reservations.gate.write().await;
        let mut running = Running::new();
        for (segment, route) in self.owed() {
            let request = ClientToNode::Keep(self.reservations.on(segment));
            running.push(async move {
                let deadline = Instant::now() + KEEP_TIME_MAX;
                match route.connection.call(&request, deadline).await {
                    Ok(_) => self.reservations.told(segment),
                    Err(error) => {
                        tracing::warn!(%segment, %error, "a node did not hear what is reserved there");
                        // It stays owed, and is said when the connection was opened again.
                        route.connection.close();
                    }
                }
            });
        }
        running.all().await;
    }

    /// The nodes that must be told what is reserved there and can be.
    fn owed(&self) -> Vec<(SegmentId, Arc<OpenRoute>)> {
        let nodes = self.nodes();
        let owed = self.reservations.owed().into_iter();
        owed.filter_map(|segment| Some((segment, nodes.get(&segment)?.link.current()?))).collect()
    }

    pub(crate) async fn master(&self, deadline: Deadline) -> Result<Arc<Master>, Error> {
        let (address, hello) = (self.address.clone(), self.traveller.hello.clone());
        let (time, me) = (self.options.connect_time, Weak::clone(&self.me));
        let reach = Reach::near_if(self.options.shared_memory);
        let open = |last: Option<Arc<Master>>| async move {
            let opened = Connection::open_by(&address, reach, hello, Instant::now() + time).await;
            let (connection, welcome) = opened?;
            if let Some(inner) = me.upgrade().filter(|_| last.is_some()) {
                let nodes = inner.nodes();
                let met = nodes.iter().filter(|(_, node)| node.link.last().is_some());
                inner.reservations.owe(met.map(|(segment, _)| *segment));
                inner.leases.owe();
            }
            Ok(Master {
                epoch: welcome.epoch,
                connection,
                heartbeat: Duration::from_millis(welcome.heartbeat_ms),
                strict_leases: welcome.strict_leases,
            })
        };
        self.master.get(&self.runtime, deadline, open).await
    }

    /// Whether leases refuse removals, as far as is known.
    pub(crate) fn has_strict_leases(&self) -> bool {
        self.master.last().is_none_or(|it| it.strict_leases)
    }

    /// The connection to the master, if it is open.
    pub(crate) fn current_master(&self) -> Option<Arc<Master>> {
        self.master.current()
    }

    fn may_share(&self, info: &NodeInfo) -> bool {
        self.options.shared_memory && !info.memory.is_empty() && info.host == self.traveller.hello.host
    }

    fn nodes(&self) -> MutexGuard<'_, BTreeMap<SegmentId, Node>> {
        lock(&self.nodes)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Nothing is under way and nothing in view: both would hold on to this.
        let connections = self.leave();
        if !connections.is_empty() {
            self.runtime.spawn(goodbye(connections, Instant::now() + GOODBYE_TIME_MAX));
        }
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        if self.0.busy.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

/// Every reservation of an answer.
pub(crate) fn locations(reserved: &Reserved) -> impl Iterator<Item = Location> + '_ {
    let rooms = reserved.items.iter().filter_map(|it| match it {
        ReserveOutcome::Room(reservations) => Some(reservations),
        _ => None,
    });
    rooms.flatten().map(|it| it.location)
}

/// Every lease of an answer.
fn leased_in(reply: &Reply) -> Option<&Leased> {
    match reply {
        Reply::Leased(leased) => Some(leased),
        Reply::Pulled(pulled) => Some(&pulled.leased),
        _ => None,
    }
}

pub(crate) fn leases(leased: &Leased) -> impl Iterator<Item = u64> + '_ {
    leased.items.iter().filter_map(|it| match it {
        LeaseOutcome::Leased(granted) => Some(granted.lease),
        _ => None,
    })
}

/// What a session is told of a call that failed.
pub(crate) fn call_failure(error: &Error) -> CallFailure {
    use tiffin_core::message::{Reason, Refusal};
    let refused = |reason| CallFailure::Refused(Refusal { reason, message: error.to_string() });
    match error {
        Error::Invalid { .. } => refused(Reason::Invalid),
        Error::Unauthenticated { .. } => refused(Reason::Unauthenticated),
        Error::Unavailable { .. } => refused(Reason::Unavailable),
        Error::Refused { reason, .. } => refused(*reason),
        Error::WrongPort { .. } => refused(Reason::NotForYou),
        _ => CallFailure::Unreachable,
    }
}

/// Whether a request may be sent again after its reply was lost.
fn is_repeatable(request: &ClientToMaster) -> bool {
    match request {
        ClientToMaster::Resolve(_)
        | ClientToMaster::Exists(_)
        | ClientToMaster::List(_)
        | ClientToMaster::Stat
        | ClientToMaster::Ping
        | ClientToMaster::Why(_)
        | ClientToMaster::Pin(_)
        | ClientToMaster::SetPolicy(_)
        | ClientToMaster::Prefetch(_)
        | ClientToMaster::OpenStream(_)
        | ClientToMaster::Pull(_) => true,
        ClientToMaster::EndStream(end) => !end.drop,
        ClientToMaster::Reserve(_)
        | ClientToMaster::Publish(_)
        | ClientToMaster::Delete(_)
        | ClientToMaster::DeleteMatching(_)
        | ClientToMaster::DropPins(_)
        | ClientToMaster::Await(_)
        | ClientToMaster::Lease(_)
        | ClientToMaster::Release(_)
        | ClientToMaster::KeepLeases(_)
        | ClientToMaster::Ack(_)
        | ClientToMaster::ForgetNode(_)
        | ClientToMaster::Cancel(_) => false,
    }
}

async fn goodbye(connections: Vec<Connection>, deadline: Instant) {
    let mut running = Running::new();
    for connection in connections {
        running.push(async move {
            // Whoever does not hear it finds out when this process ends.
            let _unheard = connection.call(RequestRef::Goodbye, deadline).await;
            connection.close();
        });
    }
    running.all().await;
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each use is one change of a map, so nothing can be half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
