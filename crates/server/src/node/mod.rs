//! A storage node's shell: it owns the `tiffin_node::Node`, its memory and its sockets.
//!
//! One lock guards the core and the writer of the control segment. Effects on memory are carried out under
//! it, in order, and messages to the master are sent under it. Replies to clients are sent after it is
//! released, so that they never overtake the change of memory they report.
//!
//! It runs as a daemon or inside a client's process, and handles no signals.

mod disk;
mod disk_log;
mod duty;
mod effects;
mod fetch;
mod link;
mod local_disks;
mod pool;
mod records;
mod slot_memory;
mod sockets;
mod staging;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use tiffin_measure::Series;
use tiffin_node::{Event, Node, NodeConfig as CoreConfig, SLOT_BYTES, StampKey};
use tiffin_proto::Incoming;
use tiffin_rpc::{Handshake, Masters, NODE_SERVICE, Outbox, TlsClient};
use tiffin_trace::{Name, TraceContext};
use tiffin_transport::Counters;
use tiffin_transport::control::ControlWriter;
use tiffin_transport::layout::{Geometry, HEAP_BYTES_MAX, SLOTS_MAX};
use tiffin_transport::local::LocalDisk;
use tiffin_transport::pool::Pool;
use tiffin_transport::segment::{self, Fit, NodeMemory};
use tiffin_transport::{Pages, shm, tcp};
use tiffin_types::access;
use tiffin_types::message::{
    ClientToNode, FetchItem, Hello, NodeInfo, Refusal, Reply, Request, RequestRef, Role, Usage, Welcome,
    wrong_direction,
};
pub use tiffin_types::message::{DrainJob, DrainReport, DrainState, Record};
use tiffin_types::mutant::Mutant;
use tiffin_types::{ClientId, ConnId, EXTENT_ALIGN, EXTENTS_MAX, RequestId, SegmentId};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use disk::DiskMember;
pub use duty::{DrainDuty, HeldPage};
use link::LedgerReads;
pub use link::LinkStatus;
use sockets::{Sockets, bind};

use crate::access::{Access, Holder};
use crate::config::{NodeConfig, PoolEnd, SsdConfig};
use crate::listen::{self, Admission, Host, forbidden};
use crate::reply_path::{self, NewestConns, ReplyPath};
use crate::supervise::{CoreLock, Locked, Supervisor};
use crate::traced::{self, TracedRequests};
use crate::turnstile::{self, Turn, Turnstile};
use crate::{StartError, host};

/// The step in which the memory for slot records and names grows, at the expense of the memory for objects.
const CHUNK_BYTES: u64 = 16 << 10;
/// The number of such steps that cost no object memory: the records and names of several hundred objects.
const CHUNKS_FREE: u64 = 8;
/// The minimum memory of an object: its record, and a name.
const OBJECT_BYTES_MIN: u64 = SLOT_BYTES + EXTENT_ALIGN;
/// The heap is this much larger than the node's memory, so that one long name always fits.
const HEAP_BYTES_EXTRA: u64 = 2 << 20;
/// Memory is allocated in whole pages.
const PAGE_BYTES: u64 = 4096;
/// The id of the last request to the master. The core counts up from zero.
const LEAVING: RequestId = RequestId(u64::MAX);
/// The maximum number of queued events of attached clients.
const SHM_EVENTS_MAX: usize = 1024;

/// A running storage node. Dropping it stops the node; its memory is freed with the last mapping.
#[derive(Debug)]
pub struct NodeServer {
    shared: Arc<Shared>,
    disks: Vec<Arc<DiskMember>>,
    status: watch::Receiver<LinkStatus>,
    tasks: JoinSet<()>,
}

/// Why a node is not a member of its cluster yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The master refuses the node.
    #[error("the master at `{master}` refuses the node: {why}")]
    Refused {
        /// The address of the master.
        master: Masters,
        /// The master's message.
        why: String,
    },
    /// The deadline has passed.
    #[error("the master at `{master}` did not accept the node's registration in time: {why}\n\nhint: {hint}")]
    Timeout {
        /// The address of the master.
        master: Masters,
        /// The last observed state.
        why: String,
        /// What to do.
        hint: String,
    },
}

pub(crate) struct Shared {
    // Guards the core, the control segment and the connections. It is held while the core decides and while
    // memory and non-blocking sockets are written; never across an await.
    state: CoreLock<State>,
    /// Whose request is decided next.
    turnstile: Turnstile,
    supervisor: Arc<Supervisor>,
    info: NodeInfo,
    master: Masters,
    token: String,
    /// For connections to the master and to other nodes.
    tls: Option<TlsClient>,
    memory: Arc<NodeMemory>,
    counters: Arc<Counters>,
    admission: Admission,
    attachments: Option<Arc<shm::Server>>,
    /// The data socket, once it is open.
    data_server: OnceLock<Weak<tcp::Server>>,
    status: watch::Sender<LinkStatus>,
    /// The link to the master is not reopened.
    is_leaving: AtomicBool,
    /// Notified when the node may register: the cluster of its memory or disks is known, if there is one.
    may_register: Notify,
    ledger_reads: Arc<LedgerReads>,
    /// The folder of its memory pool was removed: the memory ends with this process.
    is_pool_gone: AtomicBool,
    /// Notified after a decision: slots may have become objects.
    decided: Notify,
    /// The disk members of this node, once they are open.
    disks: OnceLock<Vec<Weak<DiskMember>>>,
    /// Clients that map the memory since an earlier process of the node, and have not attached to this one.
    mapped_by: Mutex<BTreeSet<ClientId>>,
    sources: fetch::Sources,
    pool_on_stop: PoolEnd,
}

struct State {
    core: Node,
    supervisor: Arc<Supervisor>,
    writer: ControlWriter,
    memory: Arc<NodeMemory>,
    conns: BTreeMap<ConnId, ReplyPath>,
    newest: NewestConns,
    next_conn: u64,
    master: Option<Outbox>,
    /// Why the master has refused the node.
    refusal: Option<Refusal>,
    /// The drain job of this node.
    drain_job: watch::Sender<Option<DrainJob>>,
    /// How long transfers took, and what the master has received of that.
    counters: Arc<Counters>,
    reported: Vec<Series>,
    /// Copies of other members' objects that are to be read.
    fetches: mpsc::Sender<FetchItem>,
    /// Requests that continue the trace of a client.
    traced: TracedRequests,
    /// Where the limits of the sockets are, once they are open.
    sockets: OnceLock<Weak<Shared>>,
}

impl NodeServer {
    /// Allocates the memory, listens, and starts to connect to the master. [`Self::joined`] waits for that.
    pub async fn start(config: NodeConfig) -> Result<Self, StartError> {
        Self::start_with(config, Arc::default()).await
    }

    /// The same, with counters for moved bytes that the caller can read.
    pub async fn start_with(config: NodeConfig, counters: Arc<Counters>) -> Result<Self, StartError> {
        config.check()?;
        let tls = TlsClient::open(&config.tls)?;
        let pool::Opened { memory, writer, core, mapped_by } = pool::open(&config, draw_segment()?)?;
        let geometry = memory.geometry();
        let (sockets, mut info) = bind(&config, SegmentId(geometry.segment)).await?;
        info.outlives = memory.pool().is_some();
        let admission = Admission::new(Access::new(&config.token, config.access_file.as_deref())?, false);
        let (events, shm_events) = mpsc::channel(SHM_EVENTS_MAX);
        let (status, watched) = watch::channel(LinkStatus::default());
        let (fetches, fetched) = mpsc::channel(fetch::WAITING_MAX);
        let supervisor = Supervisor::new();
        let state = State {
            core,
            supervisor: Arc::clone(&supervisor),
            writer,
            memory: Arc::clone(&memory),
            conns: BTreeMap::new(),
            newest: NewestConns::default(),
            next_conn: 0,
            master: None,
            refusal: None,
            drain_job: watch::Sender::new(None),
            counters: Arc::clone(&counters),
            reported: Vec::new(),
            fetches,
            traced: TracedRequests::new(traced::tracer(config.trace.as_ref(), "tiffin-node")),
            sockets: OnceLock::new(),
        };
        let shared = Arc::new_cyclic(|shared: &Weak<Shared>| Shared {
            state: CoreLock::new(state, "the node's core", &supervisor),
            turnstile: Turnstile::default(),
            supervisor,
            info,
            master: config.master.clone(),
            token: config.token.clone(),
            tls,
            attachments: sockets.memory.as_ref().map(|_| attachments(shared, &memory, events)),
            data_server: OnceLock::new(),
            memory,
            counters,
            admission,
            status,
            is_leaving: AtomicBool::new(false),
            may_register: Notify::new(),
            ledger_reads: Arc::default(),
            is_pool_gone: AtomicBool::new(false),
            decided: Notify::new(),
            disks: OnceLock::new(),
            mapped_by: Mutex::new(mapped_by),
            sources: fetch::Sources::default(),
            pool_on_stop: config.pool_on_stop,
        });
        shared.may_register_before(&config.ssd);
        // What the core says of adopted memory is written before a client is served.
        shared.ended(|_| ());
        if config.populate {
            populate(&shared, &config);
        }
        let mut tasks = spawn(&shared, sockets, shm_events, fetched);
        let mut disks = Vec::new();
        for (number, ssd) in config.ssd.iter().enumerate() {
            disks.push(DiskMember::open(ssd, number, &shared, &mut tasks).await?);
        }
        shared.disks_are_open(&disks);
        let _set_once = shared.disks.set(disks.iter().map(Arc::downgrade).collect());
        shared.log_start(geometry.data_bytes, config.shared_memory);
        Ok(Self { shared, disks, status: watched, tasks })
    }

    /// Waits until the master has accepted the node and all its objects. A refusal that only the operator
    /// can resolve is returned at once.
    pub async fn joined(&self, deadline: Instant) -> Result<(), JoinError> {
        join(self.status.clone(), &self.shared.master, deadline).await?;
        for disk in &self.disks {
            join(disk.watch(), &self.shared.master, deadline).await?;
        }
        Ok(())
    }

    /// The state of the link to the master.
    #[must_use]
    pub fn status(&self) -> LinkStatus {
        self.status.borrow().clone()
    }

    pub(crate) fn supervisor(&self) -> &Arc<Supervisor> {
        &self.shared.supervisor
    }

    /// Waits until a part of the node fails, and returns which. All its connections are then closed.
    pub async fn failed(&self) -> Arc<str> {
        self.shared.supervisor.failed().await
    }

    /// The usage of its memory.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.shared.state.lock_anyway().core.usage()
    }

    /// All objects of which it has a copy, as far as it knows.
    #[must_use]
    pub fn inventory(&self) -> Vec<Record> {
        self.shared.state.lock_anyway().core.inventory()
    }

    /// The number of clients that are connected, map the memory or hold something.
    #[must_use]
    pub fn client_count(&self) -> usize {
        self.shared.state.lock_anyway().core.client_count()
    }

    /// The id of its memory segment.
    #[must_use]
    pub fn segment(&self) -> SegmentId {
        self.shared.info.segment
    }

    /// The addresses at which other processes reach it.
    #[must_use]
    pub fn info(&self) -> &NodeInfo {
        &self.shared.info
    }

    /// Its memory, for clients in the same process.
    #[must_use]
    pub fn memory(&self) -> &Arc<NodeMemory> {
        &self.shared.memory
    }

    /// Its disks, for clients in the same process.
    #[must_use]
    pub fn local_disks(&self) -> Vec<Arc<dyn LocalDisk>> {
        local_disks::local_disks(&self.disks)
    }

    /// Bytes moved through its sockets.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.shared.counters
    }

    /// Registers a client of the same process, which accesses the memory without a mapping of its own. Its
    /// reservations and views stay until it says goodbye.
    pub fn attach_local(&self, client: ClientId) {
        if !self.shared.state.has_failed() {
            self.shared.handle(Event::Mapped(client));
        }
    }

    /// The usage of its disks, in their order.
    #[must_use]
    pub fn disk_usages(&self) -> Vec<Usage> {
        self.disks.iter().map(|it| it.usage()).collect()
    }

    /// The counters of its disks' logs, in their order.
    #[must_use]
    pub fn disk_stats(&self) -> Vec<tiffin_ssd::Stats> {
        self.disks.iter().map(|it| it.stats()).collect()
    }

    /// What a process needs to move the objects of this node away when an operator drains it.
    #[must_use]
    pub fn drain_duty(&self) -> DrainDuty {
        let job = self.shared.lock().drain_job.subscribe();
        DrainDuty { shared: Arc::downgrade(&self.shared), info: self.shared.info.clone(), job }
    }

    /// Accepts no new objects from now on. Objects stay readable until the node leaves.
    pub fn drain(&self) {
        self.shared.handle(Event::Drain);
    }

    /// Leaves the cluster for good. The master forgets the node's objects. Replies that are ready are still
    /// sent until the deadline, then every connection is closed.
    pub async fn leave(mut self, deadline: Instant) {
        if self.shared.supervisor.failure().is_some() {
            return;
        }
        self.shared.is_leaving.store(true, Ordering::Release);
        let keeps = self.keeps_memory();
        // From now on deletes are answered without this node, so that its cached locations are no longer
        // valid.
        self.shared.handle(Event::Unlinked);
        let master = self.shared.lock().master.clone();
        // After the goodbye they are answered without its memory, too, which must not be adopted any more.
        if let Some(master) = master
            && !keeps
            && pool::disown(&self.shared.memory)
            && master.request(LEAVING, RequestRef::Goodbye).is_ok()
        {
            // The master answers by closing the link. If it does not, it notices when the node closes.
            let _ = timeout_at(deadline, master.closed()).await;
        }
        let outboxes = self.shared.outboxes();
        for outbox in outboxes {
            outbox.flush(deadline).await;
        }
        for disk in &self.disks {
            // Operations in progress end, or are cut off as by a crash.
            let _ = timeout_at(deadline, disk.flush()).await;
        }
        self.tasks.shutdown().await;
        self.shared.close_all();
        let tracer = self.shared.lock().traced.tracer();
        traced::flush(tracer.as_ref(), Some(deadline)).await;
        let ends: Vec<_> = self.disks.iter().map(|it| it.end()).collect();
        drop(std::mem::take(&mut self.disks));
        for end in ends {
            // The next process to open the disk need not wait for it.
            let _ = timeout_at(deadline, end).await;
        }
        if !keeps {
            pool::discard(&self.shared.memory);
        }
        tracing::info!(name = self.shared.info.name, "node is down");
        let end = self.shared.memory.pool().map(Pool::end);
        drop(self);
        if let Some(end) = end {
            // The tasks of connections end later than the listener, and use the memory until then.
            let _ = timeout_at(deadline, end).await;
        }
    }

    /// Whether its memory stays when it is stopped, for the next process of the node.
    #[must_use]
    pub fn keeps_memory(&self) -> bool {
        self.shared.memory.pool().is_some_and(Pool::is_in_place) && self.shared.pool_on_stop == PoolEnd::Keep
    }
}

impl Drop for NodeServer {
    fn drop(&mut self) {
        // When this returns, processes that map the memory must not trust it.
        if !self.shared.state.has_failed() {
            self.shared.handle(Event::Unlinked);
        }
        self.tasks.abort_all();
        self.shared.close_all();
        // Memory that no master knows of would only be in the way.
        if self.shared.state.lock_anyway().core.epoch() == 0 {
            pool::discard(&self.shared.memory);
        }
    }
}

impl Host for Shared {
    fn admission(&self) -> &Admission {
        &self.admission
    }

    fn supervisor(&self) -> &Arc<Supervisor> {
        &self.supervisor
    }

    async fn serve_peer(self: Arc<Self>, handshake: Handshake, holder: Arc<Holder>) {
        if handshake.hello.role == Role::Lane {
            let client = handshake.hello.client;
            let conn = reply_path::add_lane(self.lock().client(client), &handshake);
            let welcome = Welcome { segment: self.info.segment, ..Welcome::default() };
            let serve =
                |(conn, id), request, trace: Option<TraceContext>, outbox: &Outbox, _turn: Turn<'_>| {
                    match request {
                        Request::ClientToNode(request) => {
                            self.serve((conn, client), outbox, id, request, trace);
                        }
                        Request::Hello(_)
                        | Request::Goodbye
                        | Request::ClientToMaster(_)
                        | Request::MemberToMaster(_)
                        | Request::MasterToMember(_) => {
                            outbox.reply(id, &wrong_direction("a lane to a node"))
                        }
                    }
                };
            return reply_path::serve_lane(handshake, welcome, conn, &holder, &self.turnstile, serve).await;
        }
        // An admitted client has reached this node, whatever the master says about the client.
        let who = (turnstile::group_of(&holder, &handshake.hello.namespace), handshake.hello.client.0);
        let known = KnownConnection::begin(&self, handshake.hello.clone(), handshake.outbox().clone());
        let welcome = Welcome { segment: self.info.segment, ..Welcome::default() };
        let (_, mut inbox) = handshake.welcome(welcome);
        while let Some(message) = inbox.next().await {
            // A node sends no requests to clients, so that it expects no replies.
            let Incoming::Request(id, request) = message else { continue };
            if let Err(denial) = access::permits(holder.credential(), &request) {
                known.outbox.reply(id, &Reply::Refused(forbidden(denial)));
                continue;
            }
            let _turn = self.turnstile.enter(who, turnstile::cost(&request)).await;
            match request {
                Request::ClientToNode(request) => {
                    self.serve((known.conn, known.client), &known.outbox, id, request, inbox.trace());
                }
                Request::Goodbye => {
                    self.handle(Event::Goodbye { conn: known.conn, id });
                    if let Some(attachments) = &self.attachments {
                        attachments.forget(known.client.0);
                    }
                }
                Request::Hello(_)
                | Request::ClientToMaster(_)
                | Request::MemberToMaster(_)
                | Request::MasterToMember(_) => {
                    known.outbox.reply(id, &wrong_direction("a node"));
                }
            }
        }
    }
}

/// A connection that the core knows, until it is dropped.
struct KnownConnection<'a> {
    shared: &'a Shared,
    conn: ConnId,
    client: ClientId,
    outbox: Outbox,
}

impl<'a> KnownConnection<'a> {
    fn begin(shared: &'a Shared, hello: Hello, outbox: Outbox) -> Self {
        let client = hello.client;
        let conn = {
            let mut state = shared.lock();
            state.next_conn += 1;
            let conn = ConnId(state.next_conn);
            state.conns.insert(conn, ReplyPath::new(&hello, outbox.clone()));
            state.newest.opened(client, conn);
            conn
        };
        shared.handle(Event::Opened { conn, client, namespace: hello.namespace });
        Self { shared, conn, client, outbox }
    }
}

impl Drop for KnownConnection<'_> {
    // In a destructor, so that the core learns of the end even when the task is cancelled.
    fn drop(&mut self) {
        if self.shared.state.has_failed() {
            return;
        }
        let replies = {
            let mut state = self.shared.lock();
            state.traced.forget(self.conn);
            state.newest.closed(self.client, self.conn);
            state.conns.remove(&self.conn)
        };
        replies.into_iter().for_each(|replies| replies.close());
        self.shared.handle(Event::Closed(self.conn));
    }
}

impl Shared {
    /// Passes a client's request to the core, after writing the bytes that it contains.
    fn serve(
        &self,
        (conn, client): (ConnId, ClientId),
        outbox: &Outbox,
        id: RequestId,
        request: ClientToNode,
        trace: Option<TraceContext>,
    ) {
        if let Some(trace) = trace {
            let name = Name::Request(NODE_SERVICE, tiffin_proto::request_kind(&request).name);
            self.lock().traced.begin((conn, id), name, trace);
        }
        let request = match request {
            ClientToNode::Store(store) => self.write_down(client, store).map(ClientToNode::Commit),
            ClientToNode::Commit(_)
            | ClientToNode::Abort(_)
            | ClientToNode::Keep(_)
            | ClientToNode::BeginViews(_)
            | ClientToNode::EndViews(_)
            | ClientToNode::KeepViews(_) => Ok(request),
        };
        match request {
            Ok(request) => self.handle(Event::Request { conn, id, request }),
            Err(refusal) => {
                let reply = Reply::Refused(refusal);
                if trace.is_some() {
                    self.lock().traced.end((conn, id), &reply);
                }
                outbox.reply(id, &reply);
            }
        }
    }

    fn lock(&self) -> Locked<'_, State> {
        self.state.lock()
    }

    fn log_start(&self, memory: u64, shared_memory: bool) {
        let info = &self.info;
        tracing::info!(
            name = info.name, segment = %info.segment, memory, requests = info.tcp, bytes = info.data,
            shared_memory, "node listens"
        );
    }

    /// Memory whose cluster is known registers before its disks are open.
    fn may_register_before(&self, disks: &[SsdConfig]) {
        if disks.is_empty() || self.lock().core.cluster().known().is_some() {
            self.may_register.notify_one();
        }
    }

    /// New memory joins the cluster of its disks. If it registered first, a master without its state would
    /// take the cluster for a new one, and refuse the disks.
    fn disks_are_open(&self, disks: &[Arc<DiskMember>]) {
        disks.iter().for_each(|it| self.lock().core.join_cluster(it.cluster()));
        self.may_register.notify_one();
    }

    fn outboxes(&self) -> Vec<Outbox> {
        let state = self.state.lock_anyway();
        let clients = state.conns.values().flat_map(ReplyPath::all).cloned();
        clients.chain(state.master.clone()).collect()
    }

    fn close_all(&self) {
        self.outboxes().iter().for_each(Outbox::close);
    }

    /// Stops a node that has failed: its bytes are not trusted, so that cached locations become invalid.
    fn abandon(&self) {
        self.state.lock_anyway().writer.set_member(false);
        self.close_all();
        let disks = self.disks.get().into_iter().flatten().filter_map(Weak::upgrade);
        disks.for_each(|disk| disk.abandon());
    }
}

impl State {
    fn client(&mut self, client: ClientId) -> Option<(ConnId, &mut ReplyPath)> {
        let conn = self.newest.of(client)?;
        Some((conn, self.conns.get_mut(&conn)?))
    }
}

/// Waits until the master has accepted a member of this node.
async fn join(
    mut status: watch::Receiver<LinkStatus>,
    master: &Masters,
    deadline: Instant,
) -> Result<(), JoinError> {
    let master = master.clone();
    let decided = |status: &LinkStatus| matches!(status, LinkStatus::Member | LinkStatus::Refused(_));
    let outcome = timeout_at(deadline, status.wait_for(decided)).await;
    match outcome.map(|found| found.map(|found| found.clone())) {
        Ok(Ok(LinkStatus::Refused(why))) => Err(JoinError::Refused { master, why }),
        Ok(Ok(_)) => Ok(()),
        Ok(Err(_)) => {
            let (why, hint) = ("the node was stopped".to_owned(), "start it again".to_owned());
            Err(JoinError::Timeout { master, why, hint })
        }
        Err(_) => {
            let seen = status.borrow().to_string();
            let usual = "check that a master listens there, or allow more time";
            let (why, hint) = seen.split_once("\n\nhint: ").unwrap_or((&seen, usual));
            Err(JoinError::Timeout { master, why: why.to_owned(), hint: hint.to_owned() })
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Shared").field("info", &self.info).finish_non_exhaustive()
    }
}

/// Whether the host and the control groups of this process have enough memory for the node.
pub fn check_memory(config: &NodeConfig) -> Result<Fit, StartError> {
    Ok(segment::check_memory(&geometry(SegmentId(0), config.memory), disk_bytes(config))?)
}

/// The memory that the disks of a node need besides its objects.
fn disk_bytes(config: &NodeConfig) -> u64 {
    let stage = if config.shared_memory { staging::STAGE_BYTES } else { 0 };
    let bytes = |ssd: &SsdConfig| tiffin_ssd::memory_bytes(ssd.size).saturating_add(stage);
    config.ssd.iter().map(bytes).fold(0, u64::saturating_add)
}

/// Opens a pool as a node does, and closes it.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz_pool(folder: &std::path::Path, segment: u64, memory: u64) -> Result<(), StartError> {
    let wanted = geometry(SegmentId(segment), memory);
    pool::open_in(folder, SegmentId(segment), wanted, segment::MemoryOptions::default()).map(drop)
}

/// The sizes of such a pool.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz_geometry(segment: u64, memory: u64) -> Geometry {
    geometry(SegmentId(segment), memory)
}

fn core_config(geometry: &Geometry, stamp_key: StampKey, restores: bool) -> CoreConfig {
    CoreConfig {
        segment: SegmentId(geometry.segment),
        capacity: geometry.data_bytes,
        slot_count: geometry.slot_count,
        heap_bytes: geometry.heap_bytes,
        chunk_bytes: CHUNK_BYTES,
        chunks_free: CHUNKS_FREE,
        restores,
        extents_max: EXTENTS_MAX,
        stamp_key,
        mutant: Mutant::default(),
    }
}

fn draw_segment() -> Result<SegmentId, StartError> {
    let failed = |source| StartError::System { what: "drawing a random number", source };
    host::draw().map(SegmentId).map_err(failed)
}

fn geometry(segment: SegmentId, memory: u64) -> Geometry {
    let data_bytes = memory - memory % PAGE_BYTES;
    let objects = (data_bytes + CHUNKS_FREE * CHUNK_BYTES) / OBJECT_BYTES_MIN;
    Geometry {
        segment: segment.0,
        data_bytes,
        slot_count: u32::try_from(objects).unwrap_or(u32::MAX).min(SLOTS_MAX),
        heap_bytes: data_bytes.saturating_add(HEAP_BYTES_EXTRA).min(HEAP_BYTES_MAX),
    }
}

/// Withholds memory again: populating the pages has also allocated memory that was withheld meanwhile.
fn withhold_again(shared: &Weak<Shared>) {
    if let Some(shared) = shared.upgrade().filter(|it| !it.state.has_failed()) {
        let state = shared.state.lock_anyway();
        state.core.withheld().for_each(|it| shared.memory.return_pages(records::extent(it)));
    }
}

fn attachments(
    shared: &Weak<Shared>,
    memory: &Arc<NodeMemory>,
    events: mpsc::Sender<shm::Event>,
) -> Arc<shm::Server> {
    let (shared, node) = (Weak::clone(shared), Weak::clone(shared));
    let authorise = move |attach: &shm::AttachRequest| effects::admit(&shared, attach);
    let stages = move |segment| node.upgrade()?.disk(segment)?.stage().cloned();
    shm::Server::with_staging(Arc::clone(memory), Box::new(authorise), Box::new(stages), events)
}

/// Populates the memory in the background.
fn populate(shared: &Arc<Shared>, config: &NodeConfig) {
    let pages = if config.ssd.is_empty() { Pages::Any } else { Pages::Huge };
    let populated = Arc::downgrade(shared);
    shared.memory.populate_ahead(pages, move || withhold_again(&populated));
}

fn spawn(
    shared: &Arc<Shared>,
    sockets: Sockets,
    shm_events: mpsc::Receiver<shm::Event>,
    fetched: mpsc::Receiver<FetchItem>,
) -> JoinSet<()> {
    let (mut tasks, mut handles) = (JoinSet::new(), Vec::new());
    let watch = &shared.supervisor;
    let access = Arc::clone(shared.admission.access());
    handles.push(tasks.spawn(watch.watch("the watch over the access file", access.keep())));
    for listener in [sockets.requests, sockets.local].into_iter().flatten() {
        let serving = listen::serve(listener, Arc::clone(shared));
        handles.push(tasks.spawn(watch.watch("the listener", serving)));
    }
    if let Some(listener) = sockets.bytes {
        let node = Arc::downgrade(shared);
        let authorise = move |hello: &tcp::Hello| effects::admit_data(&node, hello);
        let keeper: Arc<dyn tcp::SlotAccess> = Arc::<Shared>::clone(shared);
        let counters = Arc::clone(&shared.counters);
        let server = tcp::Server::new(Arc::clone(&shared.memory), keeper, Box::new(authorise), counters);
        let _set_once = shared.data_server.set(Arc::downgrade(&server));
        handles.push(tasks.spawn(watch.watch("the data socket", server.run_on(listener))));
    }
    let _set_once = shared.lock().sockets.set(Arc::downgrade(shared));
    if let (Some(listener), Some(server)) = (sockets.memory, &shared.attachments) {
        handles.push(tasks.spawn(watch.watch("the attach socket", Arc::clone(server).run(listener))));
        let receiving = effects::receive_events(Arc::clone(shared), shm_events);
        handles.push(tasks.spawn(watch.watch("the watch over processes", receiving)));
    }
    if !shared.mapped_by().is_empty() {
        let watching = pool::watch(Arc::downgrade(shared));
        handles.push(tasks.spawn(watch.watch("the watch over earlier clients", watching)));
    }
    if shared.memory.pool().is_some() {
        let guarding = pool::guard(Arc::downgrade(shared));
        handles.push(tasks.spawn(watch.watch("the watch over the memory pool", guarding)));
    }
    let fetching = fetch::run(Arc::clone(shared), fetched);
    handles.push(tasks.spawn(watch.watch("the copies from other nodes", fetching)));
    let linked = Arc::clone(shared);
    let linking = async move {
        linked.may_register.notified().await;
        link::run(linked).await;
    };
    handles.push(tasks.spawn(watch.watch("the link to the master", linking)));
    let abandoned = Arc::clone(shared);
    tasks.spawn(Arc::clone(watch).end_on_failure(handles, move || abandoned.abandon()));
    tasks
}

/// The time limit for the answer to a hello.
const HELLO_TIME_MAX: Duration = Duration::from_secs(10);
