//! The master's shell: it owns the `core::master::Master`, the clock it lives by and the connections it
//! speaks on.
//!
//! A connection's task receives a message, locks, lets the core decide, and drains the effects. What is asked
//! of nodes and answered to them is sent under the lock, so that it leaves in the order in which it was
//! decided; answers to clients are sent after it is released. Who has published is answered when the word
//! of it is in the socket of a node of this machine, which outlives this process.
//!
//! **Invariant:** the core's effects are drained before the lock is released. **Invariant:** whenever the
//! core wants to be woken, the timer task sleeps no longer than that.

mod epoch;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tiffin_core::master::{Effect, Event, Master, MasterConfig as CoreConfig, Notice, PIECE_OBJECTS_MAX};
use tiffin_core::message::{Hello, Reason, Refusal, Reply, Request, Role, Stat, Welcome};
use tiffin_core::sabotage::Sabotage;
use tiffin_core::{ConnId, RequestId, SegmentId, Tick};
use tiffin_proto::Incoming;
use tiffin_rpc::{Address, Inbox, Listener, Outbox, Peer, SendError};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::config::{LeaseMode, MasterConfig};
use crate::listen::{self, Door, Host};
use crate::metrics::{self, Counters};
use crate::{StartError, host, http};

/// Heartbeats that fit into the time after which silence counts.
const BEATS_PER_SILENCE: u32 = 4;
/// The rarest heartbeat.
const HEARTBEAT_MAX: Duration = Duration::from_secs(5);
/// Between two pieces of work the lock is free for at least this long, so that others get in.
const WORK_REST: Duration = Duration::from_millis(1);
/// The timer rests at least this long between two looks, whatever the core says.
const TIMER_REST: Duration = Duration::from_millis(1);

/// A running master. It ends when this is dropped.
#[derive(Debug)]
pub struct MasterServer {
    shared: Arc<Shared>,
    addresses: Vec<Address>,
    http: Option<Address>,
    metadata_http: Option<Address>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    // Guards the core and the connections it speaks of. It is held while the core decides and while frames
    // are put into sockets that do not block; never over an await.
    state: Mutex<State>,
    /// The core wants to be woken earlier than the timer sleeps.
    earlier: Notify,
    /// The core has work to do.
    work: Notify,
    started: Instant,
    epoch: u64,
    strict_leases: bool,
    heartbeat: Duration,
    door: Door,
    counters: Counters,
}

#[derive(Debug)]
struct State {
    core: Master,
    conns: BTreeMap<ConnId, Conn>,
    /// Of nodes that have not opened their first connection yet.
    ledgers: BTreeMap<SegmentId, Outbox>,
    next_conn: u64,
    /// How long the timer sleeps.
    armed: Option<Tick>,
}

#[derive(Debug)]
struct Conn {
    outbox: Outbox,
    is_node: bool,
    /// Where a node that is near finds what is entrusted to it.
    ledger: Option<Outbox>,
}

impl Conn {
    fn close(self) {
        self.outbox.close();
        self.ledger.into_iter().for_each(|ledger| ledger.close());
    }
}

/// An answer to be sent when the lock is released.
type Answer = (Outbox, RequestId, Reply);

impl MasterServer {
    /// Takes the next epoch, listens, and serves.
    pub async fn start(config: MasterConfig) -> Result<Self, StartError> {
        config.check()?;
        let mut listeners = Vec::new();
        for address in &config.listen {
            listeners.push(Listener::bind(address).await?);
        }
        // Only a master that can listen takes an epoch: a second one by mistake must not spend them.
        let pages = http::Pages::bind(config.http.as_ref()).await?;
        let metadata = http::Pages::bind(config.metadata_http.as_ref()).await?;
        let epoch = match &config.state_dir {
            Some(folder) => epoch::next(folder).await?,
            None => epoch::drawn(),
        };
        let shared = Arc::new(Shared::new(&config, epoch)?);
        let mut tasks = JoinSet::new();
        let addresses: Vec<_> = listeners.iter().map(|it| it.local_address().clone()).collect();
        for listener in listeners {
            tasks.spawn(listen::serve(listener, Arc::clone(&shared)));
        }
        tasks.spawn(run_timer(Arc::clone(&shared)));
        tasks.spawn(run_work(Arc::clone(&shared)));
        let http = pages.as_ref().map(|it| it.address().clone());
        let metadata_http = metadata.as_ref().map(|it| it.address().clone());
        if let Some(pages) = pages {
            tasks.spawn(pages.serve(http::master::router(Arc::clone(&shared), &config.token)));
        }
        if let Some(pages) = metadata {
            tasks.spawn(pages.serve(http::metadata::router(&config.token)));
        }
        let shown = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let pages = http.as_ref().map(ToString::to_string).unwrap_or_default();
        tracing::info!(epoch, address = shown, http = pages, "the master is up");
        Ok(Self { shared, addresses, http, metadata_http, tasks })
    }

    /// Where clients and nodes reach it.
    ///
    /// # Panics
    /// Never: a master listens somewhere.
    #[must_use]
    pub fn address(&self) -> &Address {
        match self.addresses.first() {
            Some(address) => address,
            None => unreachable!("a master listens somewhere"),
        }
    }

    /// Everywhere it listens.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Where its pages are, if anywhere.
    #[must_use]
    pub fn http_address(&self) -> Option<&Address> {
        self.http.as_ref()
    }

    /// Where its `/metadata` endpoint is, if anywhere.
    #[must_use]
    pub fn metadata_http_address(&self) -> Option<&Address> {
        self.metadata_http.as_ref()
    }

    /// Which life of the master this is.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.shared.epoch
    }

    /// What it knows of the cluster.
    #[must_use]
    pub fn stat(&self) -> Stat {
        self.shared.stat()
    }

    /// One line about it, for people.
    #[must_use]
    pub fn summary(&self) -> String {
        self.shared.summary()
    }

    /// Closes every connection and every port. Nodes keep their objects for the next life.
    pub async fn shutdown(mut self) {
        self.tasks.shutdown().await;
        self.shared.close_all();
        tracing::info!(epoch = self.shared.epoch, "the master is down");
    }
}

impl Drop for MasterServer {
    fn drop(&mut self) {
        self.tasks.abort_all();
        self.shared.close_all();
    }
}

impl Host for Shared {
    fn door(&self) -> &Door {
        &self.door
    }

    fn welcome(&self) -> Welcome {
        let heartbeat_ms = u64::try_from(self.heartbeat.as_millis()).unwrap_or(u64::MAX);
        let strict_leases = self.strict_leases;
        Welcome { epoch: self.epoch, heartbeat_ms, strict_leases, ..Welcome::default() }
    }

    async fn visit(self: Arc<Self>, hello: Hello, outbox: Outbox, mut inbox: Inbox) {
        if hello.role == Role::Ledger {
            let segment = hello.home.unwrap_or_default();
            // Across a network nothing would be sure to arrive.
            if matches!(outbox.peer(), Peer::Unix { .. }) {
                outbox.hold_much();
                self.lock().ledgers.insert(segment, outbox.clone());
            }
            // A node says nothing there.
            while inbox.next().await.is_some() {}
            let mut state = self.lock();
            if state.ledgers.get(&segment).is_some_and(Outbox::is_closed) {
                state.ledgers.remove(&segment);
            }
            return;
        }
        let visit = Visit::begin(&self, hello, outbox);
        while let Some(message) = inbox.next().await {
            match message {
                Incoming::Request(id, request) => self.asked(visit.conn, id, request),
                Incoming::Reply(id, reply) => self.handle(Event::Reply(visit.conn, id, reply), None),
            }
        }
    }
}

/// A connection that the core knows of, until it is dropped.
struct Visit<'a> {
    shared: &'a Shared,
    conn: ConnId,
}

impl<'a> Visit<'a> {
    fn begin(shared: &'a Shared, hello: Hello, outbox: Outbox) -> Self {
        let is_node = hello.role == Role::Node;
        let is_near = is_node && matches!(outbox.peer(), Peer::Unix { .. });
        let conn = {
            let mut state = shared.lock();
            let ledger = hello.home.filter(|_| is_node).and_then(|it| state.ledgers.remove(&it));
            state.next_conn += 1;
            let conn = ConnId(state.next_conn);
            state.conns.insert(conn, Conn { outbox, is_node, ledger });
            conn
        };
        shared.handle(Event::Opened(conn, hello), None);
        if is_near {
            shared.handle(Event::Near(conn), None);
        }
        Self { shared, conn }
    }
}

impl Drop for Visit<'_> {
    // In a drop, so that the core hears of it even when the task is cancelled.
    fn drop(&mut self) {
        if self.shared.state.is_poisoned() {
            return;
        }
        let conn = self.shared.lock().conns.remove(&self.conn);
        conn.into_iter().for_each(Conn::close);
        self.shared.handle(Event::Closed(self.conn), None);
    }
}

impl Shared {
    fn new(config: &MasterConfig, epoch: u64) -> Result<Self, StartError> {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let draw = host::draw();
        let core = Master::new(CoreConfig {
            epoch,
            silence_ms_max: ms(config.silence),
            away_ms_max: ms(config.away),
            lease_ms: ms(config.lease_ttl),
            strict_leases: config.lease_mode == LeaseMode::Strict,
            lease_grace_ms: ms(config.lease_grace),
            soft_pin_ms: ms(config.soft_pin_ttl),
            evict_soft_pinned: config.evict_soft_pinned,
            piece_objects_max: PIECE_OBJECTS_MAX,
            tier: config.tier.core(),
            hash_seed: draw
                .map_err(|source| StartError::System { what: "drawing a random number", source })?,
            sabotage: Sabotage::default(),
        });
        Ok(Self {
            state: Mutex::new(State {
                core,
                conns: BTreeMap::new(),
                ledgers: BTreeMap::new(),
                next_conn: 0,
                armed: None,
            }),
            earlier: Notify::new(),
            work: Notify::new(),
            started: Instant::now(),
            epoch,
            strict_leases: config.lease_mode == LeaseMode::Strict,
            heartbeat: HEARTBEAT_MAX.min(config.silence / BEATS_PER_SILENCE),
            door: Door::new(config.token.clone(), true),
            counters: Counters::default(),
        })
    }

    /// What the master knows of the cluster.
    pub(crate) fn stat(&self) -> Stat {
        self.lock().core.stat()
    }

    /// Answers a page as it would a client of that namespace.
    pub(crate) fn look(&self, namespace: &str, request: Request) -> Reply {
        let mut state = self.lock();
        let now = self.now();
        state.core.look(now, namespace, request)
    }

    /// The page `/metrics`.
    pub(crate) fn metrics(&self) -> String {
        let (stat, waiting) = {
            let state = self.lock();
            (state.core.stat(), state.core.waiting_count() as u64)
        };
        metrics::render(&self.snapshot(&stat, waiting))
    }

    /// The page `/metrics/summary`.
    pub(crate) fn summary(&self) -> String {
        let stat = self.stat();
        metrics::summary(&self.snapshot(&stat, 0))
    }

    fn snapshot<'a>(&'a self, stat: &'a Stat, waiting: u64) -> metrics::Snapshot<'a> {
        metrics::Snapshot {
            stat,
            counters: &self.counters,
            waiting,
            connections: self.door.inside(),
            refused: self.door.refused(),
            uptime: self.started.elapsed(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The core panics only if an invariant is broken, and then nothing it says is to be believed: whoever
        // comes next must fail too.
        #[expect(clippy::unwrap_used, reason = "a broken invariant stops the master")]
        self.state.lock().unwrap()
    }

    fn now(&self) -> Tick {
        Tick(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn asked(&self, conn: ConnId, id: RequestId, request: Request) {
        let op = self.counters.asked(&request);
        self.handle(Event::Request(conn, id, request), op.map(|op| (conn, id, op)));
    }

    /// Lets the core decide and does what it says. `asked` is the request that the event is, for the
    /// counters.
    fn handle(&self, event: Event, asked: Option<(ConnId, RequestId, metrics::Op)>) {
        let mut answers = Vec::new();
        {
            let mut state = self.lock();
            let now = self.now();
            state.core.handle(now, event);
            self.drain(&mut state, now, asked, &mut answers);
        }
        for (outbox, id, reply) in answers {
            outbox.reply(id, &reply);
        }
    }

    fn drain(
        &self,
        state: &mut State,
        now: Tick,
        asked: Option<(ConnId, RequestId, metrics::Op)>,
        answers: &mut Vec<Answer>,
    ) {
        while let Some(effect) = state.core.poll_effect() {
            match effect {
                Effect::Reply(conn, id, reply) => {
                    let op = asked.filter(|it| (it.0, it.1) == (conn, id)).map(|it| it.2);
                    self.counters.answered(op, &reply);
                    match state.conns.get(&conn) {
                        Some(it) if it.is_node => it.outbox.reply(id, &reply),
                        Some(it) => answers.push((it.outbox.clone(), id, reply)),
                        None => {}
                    }
                }
                Effect::Ask(conn, id, request) => drop(state.ask(now, conn, id, &request, Outbox::request)),
                Effect::Entrust(conn, id, request) => {
                    if state.entrust(now, conn, id, &request) {
                        state.core.sent(id);
                    }
                }
                Effect::Disconnect(conn) => {
                    if let Some(it) = state.conns.remove(&conn) {
                        it.close();
                    }
                }
                Effect::Notice(notice) => self.notice(&notice),
            }
        }
        let wanted = state.core.poll_timeout();
        let is_earlier = wanted.is_some_and(|at| state.armed.is_none_or(|armed| at < armed));
        if is_earlier {
            self.earlier.notify_one();
        }
        if state.core.has_work() {
            self.work.notify_one();
        }
    }

    fn notice(&self, notice: &Notice) {
        match notice {
            Notice::NodeReady(node) => tracing::info!(node, "a node is ready"),
            Notice::NodeSilent(node) => {
                tracing::warn!(node, "a node is silent, and not used until it speaks")
            }
            Notice::NodeAway(node) => tracing::warn!(node, "a node is away"),
            Notice::NodeLost(node, objects) => {
                tracing::error!(node, objects, "a node is lost, and its objects with it");
            }
            Notice::NodeLeft(node, objects) => tracing::info!(node, objects, "a node left, with its objects"),
            Notice::NodeDiscarded(node) => {
                tracing::warn!(node, "a node that had been lost came back, and starts empty");
            }
            Notice::Evicted(objects, bytes) => {
                self.counters.evicted();
                tracing::debug!(objects, bytes, "evicted to make room");
            }
            Notice::Prefetched { keys, resident, running, failed, skipped } => {
                tracing::info!(keys, resident, running, failed, skipped, "a prefetch was asked for");
            }
            // These are as many as there are gets from disks, so they are for who looks for them.
            Notice::Got { memory, disk, far, waited_ms, late } => {
                tracing::debug!(memory, disk, far, waited_ms, late, "a get was told of disks");
            }
            Notice::Promoted { done, bytes, took_ms } => {
                tracing::debug!(done, bytes, took_ms, "a promotion ended");
            }
        }
    }

    fn close_all(&self) {
        let conns = match self.state.lock() {
            Ok(mut state) => std::mem::take(&mut state.conns),
            Err(poisoned) => std::mem::take(&mut PoisonError::into_inner(poisoned).conns),
        };
        conns.into_values().for_each(Conn::close);
    }
}

impl State {
    /// Whether the node is sure to hear it.
    fn entrust(&mut self, now: Tick, conn: ConnId, id: RequestId, request: &Request) -> bool {
        let ledger = self.conns.get(&conn).and_then(|it| it.ledger.as_ref());
        match ledger.map(|it| it.entrust(id, request)) {
            Some(Ok(is_there)) => is_there,
            // It goes the way of all else that is asked.
            None | Some(Err(_)) => self.ask(now, conn, id, request, Outbox::entrust) == Some(true),
        }
    }

    /// What `send` says, if there is somebody to send it to.
    fn ask<T>(
        &mut self,
        now: Tick,
        conn: ConnId,
        id: RequestId,
        request: &Request,
        send: fn(&Outbox, RequestId, &Request) -> Result<T, SendError>,
    ) -> Option<T> {
        match send(&self.conns.get(&conn)?.outbox, id, request) {
            Ok(sent) => return Some(sent),
            // What is asked on a connection that has ended is answered by its end.
            Err(SendError::Closed) => {}
            Err(SendError::TooLarge(error)) => {
                tracing::error!(%error, "a request to a node cannot be sent");
                let refusal = Refusal { reason: Reason::Invalid, message: error.to_string() };
                self.core.handle(now, Event::Reply(conn, id, Reply::Refused(refusal)));
            }
        }
        None
    }
}

/// Lets the core do what it cannot do in one go, piece by piece. Draining a piece says whether there is
/// another.
async fn run_work(shared: Arc<Shared>) {
    loop {
        shared.work.notified().await;
        let mut answers = Vec::new();
        {
            let mut state = shared.lock();
            let now = shared.now();
            state.core.work(now);
            shared.drain(&mut state, now, None, &mut answers);
        }
        for (outbox, id, reply) in answers {
            outbox.reply(id, &reply);
        }
        tokio::time::sleep(WORK_REST).await;
    }
}

/// Wakes the core when it wants to be woken.
async fn run_timer(shared: Arc<Shared>) {
    loop {
        let wake = {
            let mut answers = Vec::new();
            let mut state = shared.lock();
            let now = shared.now();
            state.core.handle_timeout(now);
            // Nothing is earlier than now, so that draining does not wake this very task.
            state.armed = Some(Tick(0));
            shared.drain(&mut state, now, None, &mut answers);
            state.armed = state.core.poll_timeout();
            let wake = state.armed;
            drop(state);
            for (outbox, id, reply) in answers {
                outbox.reply(id, &reply);
            }
            wake
        };
        let rested = tokio::time::sleep(TIMER_REST);
        match wake.and_then(|at| shared.started.checked_add(Duration::from_millis(at.0))) {
            Some(at) => {
                tokio::select! {
                    () = tokio::time::sleep_until(at) => {}
                    () = shared.earlier.notified() => {}
                }
            }
            None => shared.earlier.notified().await,
        }
        rested.await;
    }
}
