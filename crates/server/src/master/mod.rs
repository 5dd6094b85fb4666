//! The master's shell: it owns the `core::master::Master`, its clock and its connections.
//!
//! A connection's task receives a message, locks, lets the core decide, and drains the effects. Messages to
//! nodes are sent under the lock, so that they leave in the order of the decisions. Replies to clients are
//! sent after the lock is released. A publish is answered when its `Settle` is in the socket of a node on
//! this host, because that socket outlives this process.
//!
//! **Invariant:** the core's effects are drained before the lock is released. **Invariant:** the timer task
//! never sleeps past the time at which the core wants to be woken.

mod connections;
mod ha;
mod ledger;
mod notices;
mod observe;
mod pages;
mod state;
mod tasks;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ha::Ha;
pub(crate) use ha::HaStat;
use ledger::Ledger;
use observe::{Timed, Unanswered, Watched};
use state::{StateFolder, Store};
use tiffin_core::master::{
    Effect, Event, LimitsConfig, Master, MasterConfig as CoreConfig, OWED_PAGE_MAX, PIECE_OBJECTS_MAX, Saved,
};
use tiffin_rpc::{Address, ClientCertificates, Listener, Outbox, SendError, TlsServer};
use tiffin_trace::Tracer;
use tiffin_transport::peer::process_of;
use tiffin_types::access;
use tiffin_types::message::{List, Reason, Refusal, Reply, Resolve, Stat};
use tiffin_types::mutant::Mutant;
use tiffin_types::{ClientId, ConnId, RequestId, SegmentId, Tick};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::access::{Access, Holder};
use crate::config::{LeaseMode, MasterConfig};
use crate::events::Events;
use crate::listen::Admission;
use crate::metrics::Counters;
use crate::reply_path::{NewestConns, ReplyPath};
use crate::supervise::faults::{Point, strike};
use crate::supervise::{CoreLock, Locked, Supervisor};
use crate::turnstile::{Turn, Turnstile};
use crate::watch::Kind;
use crate::{StartError, host, http, traced};

/// The number of heartbeats within the silence limit.
const BEATS_PER_SILENCE: u32 = 4;
/// The maximum time between heartbeats.
const HEARTBEAT_MAX: Duration = Duration::from_secs(5);
/// The exclusive upper bound of a generation's first counter. It leaves most of the 40 bits for later ones.
const FIRST_COUNTER_MAX: u64 = 1 << 39;

/// A running master. Dropping it stops the master.
#[derive(Debug)]
pub struct MasterServer {
    shared: Arc<Shared>,
    addresses: Vec<Address>,
    http: Option<Address>,
    metadata_http: Option<Address>,
    events: Option<Address>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    // Guards the core and its connections. It is held while the core decides and while frames are written
    // to non-blocking sockets; never across an await.
    state: CoreLock<State>,
    /// Whose request is decided next.
    turnstile: Turnstile,
    supervisor: Arc<Supervisor>,
    /// Notified when the core wants to be woken before the timer does.
    earlier: Notify,
    /// Notified when the core has background work.
    work: Notify,
    /// Notified when there is state to save.
    unsaved: Notify,
    /// Notified when the core must be replaced.
    restart: Notify,
    /// There are answers that wait for a confirmation.
    unconfirmed: Notify,
    started: Instant,
    epoch: AtomicU64,
    config: CoreConfig,
    store: Option<Store>,
    strict_leases: bool,
    heartbeat: Duration,
    admission: Admission,
    tls: Option<TlsServer>,
    /// The connections to its pages, of each port.
    gates: Vec<Arc<http::Gate>>,
    counters: Counters,
    watched: Watched,
    /// Requests that take longer are logged; zero for none.
    slow: Duration,
    /// Exports the spans of requests that continue a trace, if a collector is set.
    tracer: Option<Tracer>,
    /// The file with the quotas of tenants, if there is one. It is locked while it is written.
    tenant_file: tokio::sync::Mutex<Option<PathBuf>>,
    /// The event queue, if events are published.
    events: Option<Arc<Events>>,
    /// The process is stopping, and its own members are about to leave.
    is_stopping: AtomicBool,
}

#[derive(Debug)]
struct State {
    core: Master,
    conns: BTreeMap<ConnId, Conn>,
    newest: NewestConns,
    /// Ledgers of nodes that have not opened their first connection yet.
    ledgers: BTreeMap<SegmentId, Ledger>,
    next_conn: u64,
    /// Pages that wait for a reply.
    pages: BTreeMap<ConnId, oneshot::Sender<Reply>>,
    /// Watches of the processes of members on this host.
    processes: BTreeMap<SegmentId, JoinSet<()>>,
    /// The time at which the timer wakes up.
    armed: Option<Tick>,
    /// The newest version that must be saved.
    unsaved: Option<u64>,
    /// The core must be replaced by one with an epoch greater than this.
    restart: Option<u64>,
    /// The newest confirmation that is wanted.
    unconfirmed: Option<u64>,
    /// Whether this master leads. Where there is one master, it does.
    leads: bool,
    /// Requests that wait for their answer.
    unanswered: Unanswered,
}

impl State {
    fn new(core: Master, leads: bool) -> Self {
        Self {
            core,
            conns: BTreeMap::new(),
            newest: NewestConns::default(),
            ledgers: BTreeMap::new(),
            next_conn: 0,
            pages: BTreeMap::new(),
            processes: BTreeMap::new(),
            armed: None,
            unsaved: None,
            restart: None,
            unconfirmed: None,
            leads,
            unanswered: Unanswered::default(),
        }
    }

    /// The state to save, if there is any.
    fn take_unsaved(&mut self) -> Option<(u64, Box<Saved>)> {
        let version = self.unsaved.take()?;
        Some((version, Box::new(self.core.saved())))
    }
}

#[derive(Debug)]
struct Conn {
    replies: ReplyPath,
    is_node: bool,
    /// The ledger of a node on the master's host.
    ledger: Option<Ledger>,
    /// Its memory outlives it: only what is recorded in its journal is certain to arrive.
    needs_journal: bool,
    /// The namespace of a client.
    namespace: String,
    holder: Arc<Holder>,
}

impl Conn {
    fn close(self) {
        self.replies.close();
        self.ledger.into_iter().for_each(|ledger| ledger.close());
    }
}

/// A reply to send after the lock is released.
type Answer = (Outbox, RequestId, Reply);

impl MasterServer {
    /// Listens, increments the epoch, and serves.
    pub async fn start(config: MasterConfig) -> Result<Self, StartError> {
        config.check()?;
        let tls = TlsServer::open(&config.tls, ClientCertificates::Required)?;
        let mut listeners = Vec::new();
        for address in &config.listen {
            listeners.push(Listener::bind_with(address, tls.clone()).await?);
        }
        // Only a master that can listen increments the epoch, so that a second one started by mistake uses
        // none up.
        let tls = TlsServer::open(&config.tls, ClientCertificates::Asked)?;
        let pages = http::Pages::bind(config.http.as_ref(), tls.clone()).await?;
        let metadata = http::Pages::bind(config.metadata_http.as_ref(), tls.clone()).await?;
        let publisher = match &config.events {
            Some(events) => Some(http::listen(&events.listen).await?),
            None => None,
        };
        let addresses: Vec<_> = listeners.iter().map(|it| it.local_address().clone()).collect();
        let (store, saved) = open_store(&config, &addresses).await?;
        let epoch = saved.epoch;
        let gates = pages.iter().chain(&metadata).map(|it| Arc::clone(it.gate())).collect();
        let shared = Arc::new(Shared { tls: tls.clone(), gates, ..Shared::new(&config, store, saved)? });
        let http = pages.as_ref().map(|it| it.address().clone());
        let metadata_http = metadata.as_ref().map(|it| it.address().clone());
        let pages = pages.map(|it| (it, http::master::router(Arc::clone(&shared))));
        let metadata = metadata.map(|it| (it, http::metadata::router(shared.admission.access())));
        let events_address = publisher.as_ref().map(|it| it.1.clone());
        let tasks =
            tasks::spawn(&shared, listeners, publisher.map(|it| it.0), pages.into_iter().chain(metadata));
        if shared.ha().is_none() {
            shared.load_quotas().await?;
        }
        let shown = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let pages = http.as_ref().map(ToString::to_string).unwrap_or_default();
        tracing::info!(epoch, address = shown, http = pages, "master is up");
        shared.watched.journal.add(Kind::MasterStarted, "", &format!("the master is up, with epoch {epoch}"));
        Ok(Self { shared, addresses, http, metadata_http, events: events_address, tasks })
    }

    /// The address for clients and nodes.
    ///
    /// # Panics
    /// Never: a master listens on at least one address.
    #[must_use]
    pub fn address(&self) -> &Address {
        match self.addresses.first() {
            Some(address) => address,
            None => unreachable!("a master listens on at least one address"),
        }
    }

    /// All addresses on which it listens.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The address of its pages, if it has any.
    #[must_use]
    pub fn http_address(&self) -> Option<&Address> {
        self.http.as_ref()
    }

    /// The address of its `/metadata` endpoint, if there is one.
    #[must_use]
    pub fn metadata_http_address(&self) -> Option<&Address> {
        self.metadata_http.as_ref()
    }

    /// The address at which events are published, if they are.
    #[must_use]
    pub fn events_address(&self) -> Option<&Address> {
        self.events.as_ref()
    }

    /// The epoch of the master.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.shared.epoch()
    }

    /// The members that have not reported since the start. Answers that depend on them wait.
    #[must_use]
    pub fn unreported(&self) -> Vec<String> {
        self.shared.unreported()
    }

    pub(crate) fn supervisor(&self) -> &Arc<Supervisor> {
        &self.shared.supervisor
    }

    /// Waits until a part of the master fails, and returns which. All its connections are then closed.
    pub async fn failed(&self) -> Arc<str> {
        self.shared.supervisor.failed().await
    }

    /// The state of the cluster.
    #[must_use]
    pub fn stat(&self) -> Stat {
        self.shared.stat()
    }

    /// A one-line summary for operators.
    #[must_use]
    pub fn summary(&self) -> String {
        self.shared.summary()
    }

    /// Announces that the members in this process are about to stop, so that their departure logs no
    /// warning.
    pub(crate) fn expect_departures(&self) {
        self.shared.is_stopping.store(true, Ordering::Release);
    }

    /// Closes all connections and ports. Nodes keep their objects for the next epoch.
    pub async fn shutdown(mut self) {
        self.tasks.shutdown().await;
        self.shared.close_all();
        if let Some(ha) = self.shared.ha() {
            ha.resign().await;
        }
        traced::flush(self.shared.tracer.as_ref(), None).await;
        tracing::info!(epoch = self.shared.epoch(), "master is down");
    }
}

impl Drop for MasterServer {
    fn drop(&mut self) {
        self.tasks.abort_all();
        self.shared.close_all();
    }
}

/// Opens the durable state, and takes the next epoch. With several masters the epoch is 0 until this one
/// leads.
async fn open_store(
    config: &MasterConfig,
    addresses: &[Address],
) -> Result<(Option<Store>, Saved), StartError> {
    if let Some(ha) = &config.ha {
        let opened = Ha::new(ha, ha.advertised(addresses)).map_err(|it| StartError::Etcd(it.to_string()))?;
        return Ok((Some(Store::Etcd(Arc::new(opened))), Saved::default()));
    }
    let Some(folder) = &config.state_dir else {
        return Ok((None, Saved { epoch: state::next_epoch(0), ..Saved::default() }));
    };
    let (folder, mut saved) = StateFolder::open(folder).await?;
    saved.epoch = state::next_epoch(saved.epoch);
    folder.write_first(&saved)?;
    Ok((Some(Store::Folder(Arc::new(folder))), saved))
}

/// The time between two heartbeats. Where a standby may take over, nodes and clients notice soon that this
/// master is silent.
fn heartbeat(config: &MasterConfig) -> Duration {
    match config.ha {
        Some(_) => ha::BEAT,
        None => HEARTBEAT_MAX.min(config.silence / BEATS_PER_SILENCE),
    }
}

impl Shared {
    fn new(config: &MasterConfig, store: Option<Store>, saved: Saved) -> Result<Self, StartError> {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let draw =
            || host::draw().map_err(|source| StartError::System { what: "drawing a random number", source });
        let core_config = CoreConfig {
            epoch: saved.epoch,
            instance: draw()?,
            first_counter: draw()? % FIRST_COUNTER_MAX,
            durable: store.is_some(),
            confirms: config.ha.is_some(),
            silence_ms_max: ms(config.silence),
            away_ms_max: ms(config.away),
            lease_ms: ms(config.lease_ttl),
            strict_leases: config.lease_mode == LeaseMode::Strict,
            lease_grace_ms: ms(config.lease_grace),
            soft_pin_ms: ms(config.soft_pin_ttl),
            evict_soft_pinned: config.evict_soft_pinned,
            tenants: config.tenants,
            events: config.events.is_some(),
            owed_page_max: OWED_PAGE_MAX,
            piece_objects_max: PIECE_OBJECTS_MAX,
            limits: LimitsConfig::default(),
            tier: config.tier.core(),
            wall_ms: wall_ms_before(Duration::ZERO),
            hash_seed: draw()?,
            mutant: Mutant::default(),
        };
        let epoch = AtomicU64::new(saved.epoch);
        let state = State::new(Master::recover(core_config, saved), config.ha.is_none());
        let supervisor = Supervisor::new();
        Ok(Self {
            state: CoreLock::new(state, "the master's core", &supervisor),
            turnstile: Turnstile::default(),
            supervisor,
            earlier: Notify::new(),
            work: Notify::new(),
            unsaved: Notify::new(),
            restart: Notify::new(),
            unconfirmed: Notify::new(),
            started: Instant::now(),
            epoch,
            config: core_config,
            store,
            strict_leases: config.lease_mode == LeaseMode::Strict,
            heartbeat: heartbeat(config),
            admission: Admission::new(Access::new(&config.token, config.access_file.as_deref())?, true),
            tls: None,
            gates: Vec::new(),
            counters: Counters::default(),
            watched: Watched::default(),
            slow: config.slow,
            tracer: traced::tracer(config.trace.as_ref(), "tiffin-master"),
            tenant_file: tokio::sync::Mutex::new(config.tenant_file.clone().filter(|_| config.tenants)),
            events: config.events.clone().map(|it| Arc::new(Events::new(it))),
            is_stopping: AtomicBool::new(false),
        })
    }

    /// Tells the core when the process of a member has ended: its memory is then gone.
    fn watch_process(self: &Arc<Self>, conn: ConnId, segment: SegmentId, pid: i32) {
        let process = match process_of(pid) {
            Ok(process) => process,
            Err(error) => return tracing::debug!(pid, %error, "cannot watch a node's process"),
        };
        let shared = Arc::downgrade(self);
        let mut watch = JoinSet::new();
        watch.spawn(self.supervisor.watch("the watch over a node's process", async move {
            let ended = process.readable().await.is_ok();
            if let Some(shared) = shared.upgrade().filter(|_| ended) {
                shared.handle(Event::Ended(conn), None);
                // Removing the entry also ends this task.
                shared.lock().processes.remove(&segment);
            }
        }));
        self.lock().processes.insert(segment, watch);
    }

    /// The part in an election, if there are several masters.
    fn ha(&self) -> Option<&Arc<Ha>> {
        match &self.store {
            Some(Store::Etcd(ha)) => Some(ha),
            Some(Store::Folder(_)) | None => None,
        }
    }

    /// The election, if there are several masters; whether this one leads.
    pub(crate) fn ha_stat(&self) -> Option<(bool, HaStat)> {
        self.ha().map(|it| (self.state.lock_anyway().leads, it.stat()))
    }

    /// Why a standby refuses everything; `None` if this master leads.
    pub(crate) fn standby_refusal(&self) -> Option<Refusal> {
        let (leads, stat) = self.ha_stat()?;
        let leader = stat.leader.and_then(|it| it.addresses.into_iter().next());
        let message = match leader {
            Some(leader) => format!("this master is a standby; the leader is `{leader}`"),
            None => "this master is a standby; no leader is known".to_owned(),
        };
        (!leads).then_some(Refusal { reason: Reason::Standby, message })
    }

    /// The confirmation that is wanted, and for which epoch.
    fn take_unconfirmed(&self) -> Option<(u64, u64)> {
        let mut state = self.lock();
        let round = state.unconfirmed.take()?;
        Some((self.epoch(), round))
    }

    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The members that have not reported yet.
    pub(crate) fn unreported(&self) -> Vec<String> {
        self.state.lock_anyway().core.unreported()
    }

    /// What answers may wait for: unreported members, and a state folder that is not writable.
    pub(crate) fn awaited(&self) -> Vec<String> {
        let store = self.store.as_ref().filter(|it| it.is_failing());
        let store = store.map(|it| format!("{}, which is not writable", it.name()));
        let standby = self.standby_refusal().map(|it| it.message);
        self.unreported().into_iter().chain(store).chain(standby).collect()
    }

    /// The accepted tokens.
    pub(crate) fn access(&self) -> &Arc<Access> {
        self.admission.access()
    }

    /// The failure, if a part has failed. The server is about to stop.
    pub(crate) fn failure(&self) -> Option<Arc<str>> {
        self.supervisor.failure()
    }

    /// The state of the cluster.
    pub(crate) fn stat(&self) -> Stat {
        self.state.lock_anyway().core.stat()
    }

    /// Resolves keys for a page, as for a client of that namespace.
    pub(crate) async fn resolve(&self, namespace: &str, resolve: &Resolve) -> Reply {
        self.answer(|core, now| core.resolve(now, namespace, resolve)).await
    }

    /// Lists objects for a page, as for a client of that namespace.
    pub(crate) async fn list(&self, namespace: &str, list: &List) -> Reply {
        self.answer(|core, now| core.list(now, namespace, list)).await
    }

    /// Answers a page. Where there are several masters, this one must still lead after it has decided, as for
    /// clients: a leader that was stopped or cut off does not know whether another one has taken over.
    async fn answer(&self, decide: impl FnOnce(&mut Master, Tick) -> Reply) -> Reply {
        if let Some(refusal) = self.standby_refusal() {
            return Reply::Refused(refusal);
        }
        let (epoch, reply) = {
            let mut state = self.lock();
            let now = self.now();
            (self.epoch(), decide(&mut state.core, now))
        };
        let Some(ha) = self.ha() else { return reply };
        let refused = |reason, message| Reply::Refused(Refusal { reason, message });
        match ha.confirm(epoch).await {
            Ok(true) => reply,
            Ok(false) => refused(Reason::Standby, "another master may have taken over: ask again".to_owned()),
            Err(error) => {
                refused(Reason::Unavailable, format!("cannot confirm that this master leads: {error}"))
            }
        }
    }

    fn lock(&self) -> Locked<'_, State> {
        self.state.lock()
    }

    fn now(&self) -> Tick {
        Tick(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Lets the core decide, and carries out its effects. `timed` is the request, for the counters.
    fn handle(&self, event: Event, timed: Option<&Timed>) {
        self.handle_in_turn(event, timed, None);
    }

    /// The same for a request that had to wait for its turn, which ends here.
    fn handle_in_turn(&self, event: Event, timed: Option<&Timed>, turn: Option<Turn<'_>>) {
        let mut answers = Vec::new();
        {
            let mut state = self.lock();
            let now = self.now();
            if let Event::Reply(conn, id, reply) = &event {
                let ledger = state.conns.get_mut(conn).and_then(|it| it.ledger.as_mut());
                ledger.into_iter().for_each(|it| it.replied(*id, reply));
            }
            state.core.handle(now, event);
            self.drain(&mut state, now, timed, &mut answers);
            timed.into_iter().for_each(|it| state.unanswered.add(it));
        }
        drop(turn);
        for (outbox, id, reply) in answers {
            outbox.reply(id, &reply);
        }
    }

    /// The same, unless the core was replaced since that epoch.
    fn handle_in(&self, epoch: u64, event: Event) {
        let mut answers = Vec::new();
        {
            let mut state = self.lock();
            if self.epoch() != epoch {
                return;
            }
            let now = self.now();
            state.core.handle(now, event);
            self.drain(&mut state, now, None, &mut answers);
        }
        for (outbox, id, reply) in answers {
            outbox.reply(id, &reply);
        }
    }

    /// Replaces the core after a member has served a later epoch; see [`tasks`].
    fn replace_core(&self, saved: Saved) {
        let epoch = saved.epoch;
        if self.swap_core(saved, true) {
            tracing::warn!(epoch, "the master goes on with a later epoch");
            let text =
                format!("the master goes on with epoch {epoch}: later than the one that a member has served");
            self.watched.journal.add(Kind::EpochRaised, "", &text);
        }
    }

    /// This master leads now, with what the last leader has saved.
    fn lead(&self, saved: Saved) {
        self.swap_core(saved, true);
        self.watched.journal.add(
            Kind::MasterLeads,
            "",
            &format!("this master leads, with epoch {}", self.epoch()),
        );
    }

    /// This master stands by: it forgets everything, and closes every connection.
    fn follow(&self) {
        self.swap_core(Saved::default(), false);
        self.watched.journal.add(Kind::MasterStandsBy, "", "this master stands by");
        let ledgers = std::mem::take(&mut self.lock().ledgers);
        ledgers.into_values().for_each(|it| it.close());
    }

    /// `false` if it should lead, and has stepped down meanwhile: then nothing changes.
    fn swap_core(&self, saved: Saved, leads: bool) -> bool {
        let conns = {
            let mut state = self.lock();
            let epoch = saved.epoch;
            if leads && self.ha().is_some_and(|it| !it.leads_in(epoch)) {
                return false;
            }
            let now = self.now();
            let wall_ms = wall_ms_before(Duration::from_millis(now.0));
            let config = CoreConfig { epoch, wall_ms, ..self.config };
            state.core = match leads {
                true => state.core.succeed(now, config, saved),
                false => Master::recover_at(now, config, saved),
            };
            (state.unsaved, state.restart, state.unconfirmed, state.leads) = (None, None, None, leads);
            state.pages.clear();
            self.epoch.store(epoch, Ordering::Release);
            state.core.handle_timeout(now);
            self.drain(&mut state, now, None, &mut Vec::new());
            std::mem::take(&mut state.conns)
        };
        conns.into_values().for_each(Conn::close);
        true
    }

    fn drain(&self, state: &mut State, now: Tick, timed: Option<&Timed>, answers: &mut Vec<Answer>) {
        strike(Point::MasterCore);
        while let Some(effect) = state.core.poll_effect() {
            match effect {
                Effect::Reply(conn, id, reply) => {
                    self.answered(state, conn, id, &reply, timed);
                    match state.conns.get(&conn) {
                        Some(it) if it.is_node => it.replies.first().reply(id, &reply),
                        Some(it) => {
                            let mut reply = reply;
                            access::redact(it.holder.namespaces(), &mut reply);
                            answers.push((it.replies.of(id).clone(), id, reply));
                        }
                        None => {
                            let page = state.pages.remove(&conn);
                            page.into_iter().for_each(|page| drop(page.send(reply.clone())));
                        }
                    }
                }
                Effect::Ask(conn, id, request) => {
                    state.ask(now, conn, id, |outbox| outbox.request(id, &request));
                }
                Effect::SendLedger(conn, id, request) => {
                    if state.send_ledger(now, conn, id, &request) {
                        state.core.sent(id);
                    }
                }
                Effect::Withdraw(conn, slot_refs) => state.withdraw(conn, &slot_refs),
                Effect::Disconnect(conn) => {
                    if let Some(it) = state.conns.remove(&conn) {
                        it.close();
                    }
                }
                Effect::Notice(notice) => self.notice(&notice),
                Effect::Persist(version) => {
                    state.unsaved = Some(version);
                    self.unsaved.notify_one();
                }
                Effect::Confirm(round) => {
                    state.unconfirmed = Some(round);
                    self.unconfirmed.notify_one();
                }
                Effect::Restart(epoch) => {
                    state.restart = Some(epoch);
                    self.restart.notify_one();
                }
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

    fn close_all(&self) {
        let (conns, ledgers) = {
            let mut state = self.state.lock_anyway();
            (std::mem::take(&mut state.conns), std::mem::take(&mut state.ledgers))
        };
        conns.into_values().for_each(Conn::close);
        ledgers.into_values().for_each(|it| it.close());
    }
}

/// The wall clock that long ago, in milliseconds since the Unix epoch.
fn wall_ms_before(time: Duration) -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.saturating_sub(time).as_millis()).unwrap_or(u64::MAX)
}

impl State {
    fn client(&mut self, client: ClientId) -> Option<(ConnId, &mut ReplyPath)> {
        let conn = self.newest.of(client)?;
        Some((conn, &mut self.conns.get_mut(&conn)?.replies))
    }

    /// Sends through a connection, if it is open.
    fn ask<T>(
        &mut self,
        now: Tick,
        conn: ConnId,
        id: RequestId,
        send: impl FnOnce(&Outbox) -> Result<T, SendError>,
    ) -> Option<T> {
        match send(self.conns.get(&conn)?.replies.first()) {
            Ok(sent) => return Some(sent),
            // The end of the connection answers its requests.
            Err(SendError::Closed) => {}
            Err(SendError::TooLarge(error)) => {
                tracing::error!(%error, "cannot send a request to a node");
                let refusal = Refusal { reason: Reason::Invalid, message: error.to_string() };
                self.core.handle(now, Event::Reply(conn, id, Reply::Refused(refusal)));
            }
        }
        None
    }
}
