//! State that all handles of one client share: connections, caches, and cleanup work.
//!
//! **Invariant:** no lock is held across I/O, except the gates of [`Reservations`], [`Leases`] and
//! [`Reserved`](crate::reserved::Reserved).
//!
//! **Invariant:** a node receives `Goodbye` only when nothing of this client can access its memory: no
//! operation is in progress, and no view is left.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tiffin_measure::{Operation, Path};
use tiffin_rpc::{Address, CallError, Connection, LastMessage, Masters, Reach, TlsClient, Via, superseded};
use tiffin_session::{BackoffLimits, CallFailure};
use tiffin_trace::{Kind, Name, Span, Tracer};
use tiffin_transport::{Counters, this_process};
use tiffin_types::message::{
    self, ClientToMaster, ClientToNode, Hello, LeaseOutcome, Leased, Ping, Reason, Refusal, Release, Reply,
    Reserve, ReserveOutcome, Reserved, Role,
};
use tiffin_types::{ClientId, Location, SegmentId};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout_at};

use crate::chores::Chore;
use crate::leases::Leases;
use crate::link::{InPauses, Link, Usable};
use crate::locations::{Locations, REPORTED_MAX};
use crate::measured::OwnMeasures;
use crate::nodes::Nodes;
use crate::paces::Paces;
use crate::reservations::{Offers, PutReservations, Reservations};
use crate::route::{OpenRoute, RouteContext};
use crate::running::Running;
use crate::traced::Traced;
use crate::unfinished::Unfinished;
use crate::{ConnectOptions, Deadline, Error, host};

/// How long the master is left alone that could not be reached. A restart is to be noticed soon.
const MASTER_BACKOFF: BackoffLimits = BackoffLimits { free: 4, first_ms: 25, longest_ms: 400 };
/// Time limit for sending a node the list of reservations.
const KEEP_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a put waits for the gate to send those lists. It is longer than that takes, unless a put waits
/// for space.
const GATE_TIME_MAX: Duration = Duration::from_secs(3);
/// How much longer than the attempt to connect a caller waits for its outcome.
const ATTEMPT_GRACE: Duration = Duration::from_secs(1);
/// Where there are several masters: how often the leader is pinged, and how long a ping may take.
const PING_PAUSE: Duration = Duration::from_millis(250);
/// See [`PING_PAUSE`].
const PING_TIME_MAX: Duration = Duration::from_secs(5);
/// Time limit for sending the last spans when a client closes.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(2);
/// Time limit for the `Goodbye` of a dropped client.
const GOODBYE_TIME_MAX: Duration = Duration::from_secs(2);

/// A connection to the master.
pub(crate) struct Master {
    /// The epoch of the master.
    pub(crate) epoch: u64,
    pub(crate) connection: Connection,
    pub(crate) heartbeat: Duration,
    /// A lease protects from unforced removal.
    strict_leases: bool,
    pub(crate) tenants: bool,
}

impl Usable for Master {
    fn is_usable(&self) -> bool {
        !self.connection.is_closed()
    }

    /// Whether there was a connection before distinguishes a first connection from a later one.
    fn is_worth_keeping(&self) -> bool {
        true
    }
}

/// State that all handles of one client share.
pub(crate) struct Inner {
    pub(crate) options: ConnectOptions,
    pub(crate) counters: Arc<Counters>,
    pub(crate) measured: OwnMeasures,
    pub(crate) tracer: Option<Tracer>,
    pub(crate) runtime: Handle,
    pub(crate) reservations: Reservations,
    pub(crate) leases: Leases,
    pub(crate) chores: mpsc::UnboundedSender<Chore>,
    pub(crate) locations: Locations,
    pub(crate) paces: Paces,
    pub(crate) offers: Offers,
    pub(crate) nodes: Nodes,
    pub(crate) queued: Unfinished,
    hello: Hello,
    tls: Option<TlsClient>,
    masters: Masters,
    master: Arc<Link<Master>>,
    closed: AtomicBool,
    /// Number of operations in progress, and the notification when it reaches zero.
    busy: AtomicUsize,
    idle: Notify,
    process: u32,
    me: Weak<Self>,
}

/// An operation in progress.
pub(crate) struct Busy<'a> {
    inner: &'a Inner,
    /// Its span, if it is traced.
    pub(crate) span: Option<Span>,
    /// The operation that is measured until this is dropped, and when it began.
    measured: Option<(Operation, Instant)>,
}

impl Inner {
    /// Connects to the master. The chores are for [`tend::run`](crate::tend::run).
    pub(crate) async fn connect(
        options: ConnectOptions,
    ) -> Result<(Arc<Self>, mpsc::UnboundedReceiver<Chore>), Error> {
        let masters = options.address.parse::<Masters>()?.with_etcd(&options.etcd)?;
        let tls = TlsClient::open(&options.tls).map_err(Error::invalid)?;
        // The attempt ends by itself after `connect_time`, and its error says how far it got.
        let deadline = Deadline::after(options.connect_time.saturating_add(ATTEMPT_GRACE));
        let counters = Arc::new(Counters::default());
        let drawn =
            host::draw().map_err(|error| Error::invalid(format!("cannot get a random number: {error}")))?;
        let hello = Hello {
            token: options.token.clone(),
            namespace: options.namespace.clone(),
            role: Role::Client,
            // The kernel names locks on memory pools by numbers of 63 bits.
            client: ClientId(drawn >> 1),
            label: options.label.clone(),
            home: options.home,
            host: host::identity(),
            ..Hello::default()
        };
        let context = RouteContext {
            hello: hello.clone(),
            tls: tls.clone(),
            shared_memory: options.shared_memory,
            own_memory: options.own_memory.clone(),
            own_disks: options.own_disks.clone(),
            connect_time: options.connect_time,
            counters: Arc::clone(&counters),
            disk_reads: Arc::default(),
        };
        let (chores, todo) = mpsc::unbounded_channel();
        let inner = Arc::new_cyclic(|me| Self {
            counters,
            measured: OwnMeasures::default(),
            tracer: options.trace.clone().map(Tracer::start_export),
            runtime: Handle::current(),
            reservations: Reservations::default(),
            leases: Leases::default(),
            chores,
            locations: Locations::new(drawn),
            paces: Paces::new(),
            offers: Offers::new(),
            nodes: Nodes::new(context, Handle::current()),
            queued: Unfinished::default(),
            hello,
            tls,
            master: Arc::new(Link::new(format!("`{masters}`"), MASTER_BACKOFF)),
            masters,
            closed: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
            idle: Notify::new(),
            process: this_process(),
            me: Weak::clone(me),
            options,
        });
        inner.master(deadline).await?;
        Ok((inner, todo))
    }

    pub(crate) fn weak(&self) -> Weak<Self> {
        Weak::clone(&self.me)
    }

    pub(crate) fn id(&self) -> ClientId {
        self.hello.client
    }

    /// Begins an operation. Fails if the client is closed, belongs to another process, or the deadline has
    /// passed.
    pub(crate) fn enter(&self, call: &'static str, deadline: Deadline) -> Result<Busy<'_>, Error> {
        if deadline.has_passed() {
            return Err(Error::timeout("the call"));
        }
        if self.process != this_process() {
            return Err(Error::Forked);
        }
        self.busy.fetch_add(1, Ordering::SeqCst);
        let span = if tiffin_trace::is_active() { self.start_span(call) } else { None };
        let busy = Busy { inner: self, span, measured: None };
        if self.closed.load(Ordering::SeqCst) { Err(Error::Closed) } else { Ok(busy) }
    }

    /// The same for a call that moves no bytes. It is measured until the result is dropped.
    pub(crate) fn enter_for(&self, operation: Operation, deadline: Deadline) -> Result<Busy<'_>, Error> {
        let began = Instant::now();
        let mut busy = self.enter(operation.name(), deadline)?;
        busy.measured = Some((operation, began));
        Ok(busy)
    }

    /// The span of a call, if its caller traces it and this client exports spans.
    #[cold]
    fn start_span(&self, call: &'static str) -> Option<Span> {
        let tracer = self.tracer.as_ref()?;
        tracer.start(Name::Step(call), Kind::Internal, tiffin_trace::current()?.context)
    }

    /// Whether it was closed: it has disconnected, or is about to.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Sends a request to the master, and stores the nodes that the reply names.
    pub(crate) async fn ask(&self, request: &ClientToMaster, deadline: Deadline) -> Result<Reply, Error> {
        let master = self.master(deadline).await?;
        let reply = match master.connection.call(request, deadline.instant()).await {
            // The master may have restarted unnoticed. Repeating this request is harmless.
            Err(CallError::Lost { .. }) if is_repeatable(request) => {
                let master = self.master(deadline).await?;
                master.connection.call(request, deadline.instant()).await?
            }
            reply => reply?,
        };
        if let (ClientToMaster::Resolve(resolve), Reply::Resolved(resolved)) = (request, &reply) {
            self.nodes.learn(&resolved.nodes);
            let mut cache = self.locations.lock();
            resolve.keys.iter().zip(&resolved.items).for_each(|(key, outcome)| cache.apply(key, outcome));
        }
        Ok(reply)
    }

    /// Requests leases, and returns them with the epoch that granted them. If the reply arrives after the
    /// caller stopped waiting, the leases are released.
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

    /// The same for every request whose reply grants leases.
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
            // Connect first: a new connection adds to `owed` before it is usable.
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
                        self.nodes.learn(&leased.nodes);
                        leases(leased).for_each(|lease| self.leases.add(epoch, lease));
                    }
                    return Ok((epoch, reply));
                }
                // The master may have restarted unnoticed. If it had granted leases, `KeepLeases` tells
                // it that this client does not know them.
                Err(CallError::Lost { .. }) if !is_second => is_second = true,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Connects to the master if necessary, and sends it the list of known leases if that is due.
    pub(crate) async fn keep_leases(&self, deadline: Deadline) -> Result<(), Error> {
        let alone = timeout_at(deadline.instant(), self.leases.gate.write()).await;
        let _alone = alone.map_err(|_| Error::timeout("waiting to report leases"))?;
        let master = self.master(deadline).await?;
        let Some(owed) = self.leases.owed() else { return Ok(()) };
        let request = ClientToMaster::KeepLeases(self.leases.of(master.epoch));
        master.connection.call(&request, deadline.instant()).await?;
        self.leases.received(owed);
        Ok(())
    }

    /// Ends leases that an epoch of the master granted. Another epoch does not know them, and its own
    /// leases have the same numbers. From here on they are not reported as known after a reconnect.
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

    /// Reserves memory at the master. What it grants is in `held` before anything else can happen.
    pub(crate) async fn reserve(
        &self,
        reserve: Reserve,
        held: &PutReservations<'_>,
        deadline: Deadline,
    ) -> Result<Reply, Error> {
        let late = || Error::timeout("waiting to reserve");
        let (mut is_told, mut is_second) = (false, false);
        let mut request = ClientToMaster::Reserve(reserve);
        loop {
            let gate = timeout_at(deadline.instant(), self.reservations.gate.read());
            let gate = gate.await.map_err(|_| late())?;
            // Connect first: a new connection adds to `owed` before it is usable.
            let master = self.master(deadline).await?;
            if !is_told && !self.owed().is_empty() {
                drop(gate);
                // Puts that wait for space hold the gate for long; then the lists are sent later.
                let until = deadline.instant().min(Instant::now() + GATE_TIME_MAX);
                let _unsaid = timeout_at(until, self.keep()).await;
                // One attempt is enough: a node that does not respond must not stop all puts.
                is_told = true;
                continue;
            }
            if let ClientToMaster::Reserve(reserve) = &mut request {
                reserve.wait_ms = reserve.wait_ms.min(deadline.wait_ms());
            }
            // Objects that this client uses must not be evicted for its own put, so its uses are
            // reported first.
            let used = self.reports();
            let chores = self.chores.clone();
            let abort = move |reply| {
                let _gone = chores.send(Chore::Late(reply));
            };
            let call = master.connection.call_after(&used, &request, deadline.instant(), abort);
            let reply = match call.await {
                // The master may have restarted unnoticed. If it had already reserved memory, `Keep`
                // tells the nodes that this client does not know of it.
                Err(CallError::Lost { .. }) if !is_second => {
                    (is_told, is_second) = (false, true);
                    continue;
                }
                reply => reply?,
            };
            if let Reply::Reserved(reserved) = &reply {
                self.nodes.learn_reserved(reserved);
                locations(reserved).for_each(|location| held.take(location));
            }
            return Ok(reply);
        }
    }

    /// Sends a request to a node.
    pub(crate) async fn ask_node(
        &self,
        segment: SegmentId,
        request: &ClientToNode,
        deadline: Deadline,
        in_pauses: InPauses,
    ) -> Result<Reply, Error> {
        let route = self.nodes.control_route(segment, deadline, in_pauses).await?;
        Ok(route.connection.call(request, deadline.instant()).await?)
    }

    /// Disconnects from the master and the nodes, when all operations have ended.
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
        quiet.await.map_err(|_| Error::timeout("waiting for calls in progress"))?;
        goodbye(self.leave(), deadline.instant()).await;
        self.release_reservations(deadline).await;
        if let Some(tracer) = &self.tracer {
            tracer.flush(deadline.instant().min(Instant::now() + FLUSH_TIME_MAX)).await;
        }
        Ok(())
    }

    /// Releases the reservations on nodes that receive no `Goodbye` yet because of views.
    async fn release_reservations(&self, deadline: Deadline) {
        let mut running = Running::new();
        for (segment, route) in self.nodes.open_routes() {
            if self.reservations.on(segment).is_empty() {
                continue;
            }
            running.push(async move {
                // A node that misses this receives the `Goodbye` later, or sees this process end.
                let _unheard =
                    route.connection.call(&ClientToNode::Keep(Vec::new()), deadline.instant()).await;
            });
        }
        running.all().await;
    }

    /// The connections that may receive a `Goodbye` now: nodes on which there are views must wait. All uses
    /// have been reported to the master before.
    fn leave(&self) -> Vec<Connection> {
        self.report_uses();
        self.report_measures();
        let mut connections = self.nodes.leave();
        connections.extend(self.master.current().map(|it| it.connection.clone()));
        connections
    }

    /// Sends nodes the list of known reservations, so that they release the rest.
    async fn keep(&self) {
        let _alone = self.reservations.gate.write().await;
        let mut running = Running::new();
        for (segment, route) in self.owed() {
            let request = ClientToNode::Keep(self.reservations.on(segment));
            running.push(async move {
                let deadline = Instant::now() + KEEP_TIME_MAX;
                match route.connection.call(&request, deadline).await {
                    Ok(_) => self.reservations.received(segment),
                    Err(error) => {
                        tracing::warn!(%segment, %error, "cannot send the list of reservations to the node");
                        // The list stays owed, and is sent after the next reconnect.
                        route.connection.close();
                    }
                }
            });
        }
        running.all().await;
    }

    /// The nodes that must receive the list of reservations and can be reached.
    fn owed(&self) -> Vec<(SegmentId, Arc<OpenRoute>)> {
        let owed = self.reservations.owed().into_iter();
        owed.filter_map(|segment| Some((segment, self.nodes.current_route(segment)?))).collect()
    }

    pub(crate) async fn master(&self, deadline: Deadline) -> Result<Arc<Master>, Error> {
        let (masters, hello) = (self.masters.clone(), self.hello.clone());
        let (time, me) = (self.options.connect_time, Weak::clone(&self.me));
        let via = Via { reach: Reach::near_if(self.options.shared_memory), tls: self.tls.clone() };
        let open = |last: Option<Arc<Master>>| async move {
            let least = last.as_ref().map_or(0, |it| it.epoch);
            let (token, several) = (hello.token.clone(), masters.single().is_none());
            let connect = |address: Address, until: Instant| {
                let (hello, via) = (hello.clone(), via.clone());
                async move {
                    let (connection, welcome) = Connection::open_by(&address, via, hello, until).await?;
                    if several && welcome.epoch < least {
                        return Err(replaced(&address, welcome.epoch, least));
                    }
                    Ok((connection, welcome))
                }
            };
            let (connection, welcome) = masters.open(Instant::now() + time, connect).await?;
            if several {
                let watched = watch_leader(connection.clone(), masters, welcome.epoch, via, token);
                tokio::spawn(watched);
            }
            if let Some(inner) = me.upgrade().filter(|_| last.is_some()) {
                inner.reservations.owe(inner.nodes.visited());
                inner.leases.owe();
            }
            Ok(Master {
                epoch: welcome.epoch,
                connection,
                heartbeat: Duration::from_millis(welcome.heartbeat_ms),
                strict_leases: welcome.strict_leases,
                tenants: welcome.tenants,
            })
        };
        self.master.get(&self.runtime, deadline, InPauses::Fail, open).await
    }

    /// Whether only namespaces with a quota may be written to, according to the last connection.
    pub(crate) fn has_tenants(&self) -> bool {
        self.master.last().is_some_and(|it| it.tenants)
    }

    /// Whether leases protect from removal, according to the last connection.
    pub(crate) fn has_strict_leases(&self) -> bool {
        self.master.last().is_none_or(|it| it.strict_leases)
    }

    /// The connection to the master, if it is open.
    pub(crate) fn current_master(&self) -> Option<Arc<Master>> {
        self.master.current()
    }

    /// Reports of all uses of cached locations, for the caller to send.
    pub(crate) fn reports(&self) -> Vec<ClientToMaster> {
        std::iter::from_fn(|| self.locations.lock().report(1, REPORTED_MAX)).collect()
    }

    /// Sends a report of uses, if there are enough. The reply is ignored.
    pub(crate) fn report(&self, enough: usize) -> bool {
        let Some(master) = self.current_master() else { return false };
        let Some(report) = self.locations.lock().report(enough, REPORTED_MAX) else { return false };
        if let Err(error) = master.connection.notify(&report) {
            tracing::debug!(%error, "cannot report uses");
        }
        true
    }

    /// Sends what was measured since the last heartbeat, before the client leaves. The reply is ignored.
    fn report_measures(&self) {
        let (measured, reported) = self.measured.report();
        let Some(master) = self.current_master().filter(|_| !measured.is_empty()) else { return };
        if master.connection.notify(&ClientToMaster::Ping(Ping { measured })).is_ok() {
            self.measured.arrived(reported);
        }
    }

    /// Reports all uses of cached locations. The replies are ignored.
    pub(crate) fn report_uses(&self) {
        while self.report(1) {}
    }
}

/// The refusal to follow a master whose epoch is smaller than one that was seen: it was replaced.
fn replaced(address: &Address, epoch: u64, least: u64) -> CallError {
    let message = format!("`{address}` has epoch {epoch}, and a master of epoch {least} has replaced it");
    CallError::Refused(Refusal { reason: Reason::Standby, message })
}

/// Closes the connection to a master that is silent once another one leads, so that calls go there.
async fn watch_leader(connection: Connection, masters: Masters, epoch: u64, via: Via, token: String) {
    let last_message = LastMessage::now();
    let pings = async {
        loop {
            let deadline = Instant::now() + PING_TIME_MAX;
            match connection.call(&ClientToMaster::Ping(Ping::default()), deadline).await {
                Ok(_) => last_message.again(),
                Err(CallError::Lost { .. }) => return,
                Err(_) => {}
            }
            tokio::time::sleep(PING_PAUSE).await;
        }
    };
    tokio::select! {
        () = superseded(&masters, epoch, &via, &token, &last_message) => {
            tracing::warn!(address = %connection.address(), "the master is silent, and another one leads");
            connection.close();
        }
        () = pings => {}
        () = connection.closed() => {}
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // No operation is in progress and no view is left: each would hold a reference to this.
        let connections = self.leave();
        if !connections.is_empty() {
            self.runtime.spawn(goodbye(connections, Instant::now() + GOODBYE_TIME_MAX));
        }
    }
}

impl<'a> Busy<'a> {
    /// Runs the work of the operation, inside its span.
    pub(crate) fn run<F>(self, work: F) -> Traced<'a, F> {
        Traced::new(self, work)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        if let Some((operation, began)) = self.measured {
            self.inner.measured.measures.record(operation, Path::Master, began.elapsed(), 0);
        }
        if self.inner.busy.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.inner.idle.notify_waiters();
        }
    }
}

/// Every reservation of a reply.
pub(crate) fn locations(reserved: &Reserved) -> impl Iterator<Item = Location> + '_ {
    let spaces = reserved.items.iter().filter_map(|it| match it {
        ReserveOutcome::Space(reservations) => Some(reservations),
        _ => None,
    });
    spaces.flatten().map(|it| it.location)
}

/// Every lease of a reply.
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

/// The failure of a call, for its session.
pub(crate) fn call_failure(error: &Error) -> CallFailure {
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
        | ClientToMaster::Ping(_)
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
        | ClientToMaster::AdmitCluster(_)
        | ClientToMaster::Cancel(_) => false,
    }
}

async fn goodbye(connections: Vec<Connection>, deadline: Instant) {
    let mut running = Running::new();
    for connection in connections {
        running.push(async move {
            // A peer that misses it sees this process end.
            let _unheard = connection.goodbye(deadline).await;
            connection.close();
        });
    }
    running.all().await;
}
