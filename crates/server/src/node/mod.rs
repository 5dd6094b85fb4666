//! A storage node's shell: it owns the `core::node::Node`, the memory that it decides about, and the sockets
//! through which others reach both.
//!
//! The core and the one hand that writes the control segment are behind one lock. What the core says about
//! memory is done under it, in order; what goes to the master leaves under it too; answers to clients leave
//! after it is released, and so never overtake the memory they speak of.
//!
//! It runs as a daemon and inside a client's process alike, and handles no signals.

mod disk;
mod disk_log;
mod effects;
mod link;
mod local_disks;
mod slot_memory;
mod staging;
mod store;

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tiffin_core::message::{
    ClientToNode, Hello, NodeInfo, Record, Reply, Request, RequestRef, Role, Usage, Welcome, wrong_direction,
};
use tiffin_core::node::{Event, Node, NodeConfig as CoreConfig, SLOT_BYTES};
use tiffin_core::sabotage::Sabotage;
use tiffin_core::{ClientId, ConnId, EXTENT_ALIGN, EXTENTS_MAX, RequestId, SegmentId};
use tiffin_proto::Incoming;
use tiffin_rpc::{Address, Greeting, ListenError, Listener, Outbox};
use tiffin_transport::Counters;
use tiffin_transport::control::ControlWriter;
use tiffin_transport::layout::{Geometry, HEAP_BYTES_MAX, SLOTS_MAX};
use tiffin_transport::local::LocalDisk;
use tiffin_transport::segment::{self, Fit, NodeMemory};
use tiffin_transport::{Pages, shm, tcp};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use disk::DiskMember;
pub use link::LinkStatus;

use crate::config::{NodeConfig, SsdConfig};
use crate::listen::{self, Door, Host};
use crate::reply_path::{self, ReplyPath};
use crate::supervise::{CoreLock, Locked, Supervisor};
use crate::{StartError, host};

/// Slot records and names grow by so many bytes at a time, which the node then has less for objects.
const CHUNK_BYTES: u64 = 16 << 10;
/// So many such steps are free: the records and names of several hundred objects.
const CHUNKS_FREE: u64 = 8;
/// The least memory that an object costs: its record, and a name.
const OBJECT_BYTES_MIN: u64 = SLOT_BYTES + EXTENT_ALIGN;
/// The heap is laid out for so many bytes more than the node has, so that one long name finds a place in it.
const HEAP_BYTES_EXTRA: u64 = 2 << 20;
/// Memory is given in whole pages.
const PAGE_BYTES: u64 = 4096;
/// The last thing that the master is asked; the core counts up from zero.
const LEAVING: RequestId = RequestId(u64::MAX);
/// What becomes of attached clients, waiting to be heard.
const SHM_EVENTS_MAX: usize = 1024;

/// A running storage node. It ends when this is dropped, and its memory when the last mapping goes.
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
    /// The master does not let it in.
    #[error("the node is not taken in by the master at `{master}`: {why}")]
    Refused {
        /// Which master.
        master: Address,
        /// What it said.
        why: String,
    },
    /// It did not happen in time.
    #[error("the master at `{master}` did not accept the node's registration in time: {why}\n\nhint: {hint}")]
    Timeout {
        /// Which master.
        master: Address,
        /// What was seen last.
        why: String,
        /// What to do.
        hint: String,
    },
}

pub(crate) struct Shared {
    // Guards the core, the control segment and the connections that both speak of. It is held while the core
    // decides and while memory and sockets that do not block are written; never over an await.
    state: CoreLock<State>,
    supervisor: Arc<Supervisor>,
    info: NodeInfo,
    master: Address,
    token: String,
    memory: Arc<NodeMemory>,
    counters: Arc<Counters>,
    door: Door,
    attachments: Option<Arc<shm::Server>>,
    status: watch::Sender<LinkStatus>,
    /// The link to the master is not made again.
    is_leaving: AtomicBool,
    /// Something was decided: slots may have become objects.
    decided: Notify,
    /// The disk members of this node, once they are open.
    disks: OnceLock<Vec<Weak<DiskMember>>>,
}

struct State {
    core: Node,
    writer: ControlWriter,
    memory: Arc<NodeMemory>,
    conns: BTreeMap<ConnId, ReplyPath>,
    next_conn: u64,
    master: Option<Outbox>,
}

/// Everything a node listens on.
struct Sockets {
    requests: Option<Listener>,
    bytes: Option<TcpListener>,
    local: Option<Listener>,
    memory: Option<UnixListener>,
}

impl NodeServer {
    /// Makes the memory, listens, and begins to look for the master. [`Self::joined`] waits for it.
    pub async fn start(config: NodeConfig) -> Result<Self, StartError> {
        Self::start_with(config, Arc::default()).await
    }

    /// The same, counting the bytes that move where the caller can see them.
    pub async fn start_with(config: NodeConfig, counters: Arc<Counters>) -> Result<Self, StartError> {
        config.check()?;
        let drawn = host::draw();
        let segment =
            drawn.map_err(|source| StartError::System { what: "drawing a random number", source })?;
        let segment = SegmentId(segment);
        let geometry = geometry(segment, config.memory);
        let (memory, writer) = NodeMemory::create_with_disks(geometry, disk_bytes(&config))?;
        let (sockets, info) = bind(&config, segment).await?;
        let core = Node::new(CoreConfig {
            segment,
            capacity: geometry.data_bytes,
            slot_count: geometry.slot_count,
            heap_bytes: geometry.heap_bytes,
            chunk_bytes: CHUNK_BYTES,
            chunks_free: CHUNKS_FREE,
            extents_max: EXTENTS_MAX,
            sabotage: Sabotage::default(),
        });
        let (events, heard) = mpsc::channel(SHM_EVENTS_MAX);
        let (status, watched) = watch::channel(LinkStatus::default());
        let state = State {
            core,
            writer,
            memory: Arc::clone(&memory),
            conns: BTreeMap::new(),
            next_conn: 0,
            master: None,
        };
        let supervisor = Supervisor::new();
        let shared = Arc::new_cyclic(|shared: &Weak<Shared>| Shared {
            state: CoreLock::new(state, "the node's core", &supervisor),
            supervisor,
            info,
            master: config.master.clone(),
            token: config.token.clone(),
            attachments: sockets.memory.as_ref().map(|_| attachments(shared, &memory, events)),
            memory,
            counters,
            door: Door::new(config.token.clone(), false),
            status,
            is_leaving: AtomicBool::new(false),
            decided: Notify::new(),
            disks: OnceLock::new(),
        });
        if config.populate {
            let pages = if config.ssd.is_empty() { Pages::Any } else { Pages::Huge };
            let populated = Arc::downgrade(&shared);
            shared.memory.populate_ahead(pages, move || withhold_again(&populated));
        }
        let mut tasks = spawn(&shared, sockets, heard);
        let mut disks = Vec::new();
        for (number, ssd) in config.ssd.iter().enumerate() {
            disks.push(DiskMember::open(ssd, number, &shared, &mut tasks).await?);
        }
        // Nobody can have set it before.
        let _set = shared.disks.set(disks.iter().map(Arc::downgrade).collect());
        let info = &shared.info;
        tracing::info!(
            name = info.name, segment = %info.segment, memory = geometry.data_bytes, requests = info.tcp,
            bytes = info.data, shared_memory = config.shared_memory, "the node listens"
        );
        Ok(Self { shared, disks, status: watched, tasks })
    }

    /// Waits until the master has taken in the node and everything it holds. Some refusals need not be waited
    /// out: they are told at once.
    pub async fn joined(&self, deadline: Instant) -> Result<(), JoinError> {
        join(self.status.clone(), &self.shared.master, deadline).await?;
        for disk in &self.disks {
            join(disk.watch(), &self.shared.master, deadline).await?;
        }
        Ok(())
    }

    /// How the link to the master is doing.
    #[must_use]
    pub fn status(&self) -> LinkStatus {
        self.status.borrow().clone()
    }

    pub(crate) fn supervisor(&self) -> &Arc<Supervisor> {
        &self.shared.supervisor
    }

    /// Waits until a part of it has failed, and says which. All its connections are closed then.
    pub async fn failed(&self) -> Arc<str> {
        self.shared.supervisor.failed().await
    }

    /// How full it is.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.shared.state.lock_anyway().core.usage()
    }

    /// Every object that it holds a copy of.
    #[must_use]
    pub fn inventory(&self) -> Vec<Record> {
        self.shared.state.lock_anyway().core.inventory()
    }

    /// Clients that are connected, map the memory or hold something.
    #[must_use]
    pub fn client_count(&self) -> usize {
        self.shared.state.lock_anyway().core.client_count()
    }

    /// The name of its memory.
    #[must_use]
    pub fn segment(&self) -> SegmentId {
        self.shared.info.segment
    }

    /// How others reach it.
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

    /// A client in this same process reaches the memory from now on, without a mapping of its own: what it
    /// reserves or looks at stays until it says goodbye.
    pub fn attach_local(&self, client: ClientId) {
        if !self.shared.state.has_failed() {
            self.shared.handle(Event::Mapped(client));
        }
    }

    /// How full its disks are, in their order.
    #[must_use]
    pub fn disk_usages(&self) -> Vec<Usage> {
        self.disks.iter().map(|it| it.usage()).collect()
    }

    /// What the logs of its disks have done, in their order.
    #[must_use]
    pub fn disk_stats(&self) -> Vec<tiffin_ssd::Stats> {
        self.disks.iter().map(|it| it.stats()).collect()
    }

    /// Takes no new objects from now on. What it holds stays readable until it leaves.
    pub fn drain(&self) {
        self.shared.handle(Event::Drain);
    }

    /// Leaves the cluster for good: the master hears of it and forgets what the node holds, answers that are
    /// ready still go out until the deadline, then every connection is closed.
    pub async fn leave(mut self, deadline: Instant) {
        if self.shared.supervisor.failure().is_some() {
            return;
        }
        self.shared.is_leaving.store(true, Ordering::Release);
        // From now on deletes are answered without this node, so nobody may trust what it holds without
        // asking.
        self.shared.handle(Event::Unlinked);
        let master = self.shared.lock().master.clone();
        if let Some(master) = master
            && master.request(LEAVING, RequestRef::Goodbye).is_ok()
        {
            // The master answers by closing the link. If it does not, it finds out when we do.
            let _ = timeout_at(deadline, master.closed()).await;
        }
        let outboxes = self.shared.outboxes();
        for outbox in outboxes {
            outbox.flush(deadline).await;
        }
        for disk in &self.disks {
            // What is under way ends well, or is cut off as a crash would.
            let _ = timeout_at(deadline, disk.flush()).await;
        }
        self.tasks.shutdown().await;
        self.shared.close_all();
        let ends: Vec<_> = self.disks.iter().map(|it| it.end()).collect();
        drop(std::mem::take(&mut self.disks));
        for end in ends {
            // Whoever is given the disk next need not wait for it.
            let _ = timeout_at(deadline, end).await;
        }
        tracing::info!(name = self.shared.info.name, "the node is down");
    }
}

impl Drop for NodeServer {
    fn drop(&mut self) {
        // Whoever has the memory mapped must not trust it any more when this returns.
        if !self.shared.state.has_failed() {
            self.shared.handle(Event::Unlinked);
        }
        self.tasks.abort_all();
        self.shared.close_all();
    }
}

impl Host for Shared {
    fn door(&self) -> &Door {
        &self.door
    }

    fn supervisor(&self) -> &Arc<Supervisor> {
        &self.supervisor
    }

    async fn visit(self: Arc<Self>, greeting: Greeting) {
        if greeting.hello.role == Role::Lane {
            let client = greeting.hello.client;
            let conn = reply_path::add_lane(self.lock().clients(), &greeting);
            let welcome = Welcome { segment: self.info.segment, ..Welcome::default() };
            return reply_path::serve_lane(
                greeting,
                welcome,
                conn,
                |conn, id, request, outbox| match request {
                    Request::ClientToNode(request) => self.serve((conn, client), outbox, id, request),
                    Request::Hello(_)
                    | Request::Goodbye
                    | Request::ClientToMaster(_)
                    | Request::MemberToMaster(_)
                    | Request::MasterToMember(_) => outbox.reply(id, &wrong_direction("a lane to a node")),
                },
            )
            .await;
        }
        // A client that is welcome has reached this node, whatever the master says of it.
        let visit = Visit::begin(&self, greeting.hello.clone(), greeting.outbox().clone());
        let welcome = Welcome { segment: self.info.segment, ..Welcome::default() };
        let (_, mut inbox) = greeting.welcome(welcome);
        while let Some(message) = inbox.next().await {
            // A node asks its clients nothing, so a reply answers nothing.
            let Incoming::Request(id, request) = message else { continue };
            match request {
                Request::ClientToNode(request) => {
                    self.serve((visit.conn, visit.client), &visit.outbox, id, request);
                }
                Request::Goodbye => {
                    self.handle(Event::Goodbye { conn: visit.conn, id });
                    if let Some(attachments) = &self.attachments {
                        attachments.forget(visit.client.0);
                    }
                }
                Request::Hello(_)
                | Request::ClientToMaster(_)
                | Request::MemberToMaster(_)
                | Request::MasterToMember(_) => {
                    visit.outbox.reply(id, &wrong_direction("a node"));
                }
            }
        }
    }
}

/// A connection that the core knows of, until it is dropped.
struct Visit<'a> {
    shared: &'a Shared,
    conn: ConnId,
    client: ClientId,
    outbox: Outbox,
}

impl<'a> Visit<'a> {
    fn begin(shared: &'a Shared, hello: Hello, outbox: Outbox) -> Self {
        let client = hello.client;
        let conn = {
            let mut state = shared.lock();
            state.next_conn += 1;
            let conn = ConnId(state.next_conn);
            state.conns.insert(conn, ReplyPath::new(&hello, outbox.clone()));
            conn
        };
        shared.handle(Event::Opened { conn, client, namespace: hello.namespace });
        Self { shared, conn, client, outbox }
    }
}

impl Drop for Visit<'_> {
    // In a drop, so that the core hears of it even when the task is cancelled.
    fn drop(&mut self) {
        if self.shared.state.has_failed() {
            return;
        }
        let replies = self.shared.lock().conns.remove(&self.conn);
        replies.into_iter().for_each(|replies| replies.close());
        self.shared.handle(Event::Closed(self.conn));
    }
}

impl Shared {
    /// Passes a client's request to the core, after the bytes that it contains are written.
    fn serve(
        &self,
        (conn, client): (ConnId, ClientId),
        outbox: &Outbox,
        id: RequestId,
        request: ClientToNode,
    ) {
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
            Err(refusal) => outbox.reply(id, &Reply::Refused(refusal)),
        }
    }

    fn lock(&self) -> Locked<'_, State> {
        self.state.lock()
    }

    fn outboxes(&self) -> Vec<Outbox> {
        let state = self.state.lock_anyway();
        let clients = state.conns.values().flat_map(ReplyPath::all).cloned();
        clients.chain(state.master.clone()).collect()
    }

    fn close_all(&self) {
        self.outboxes().iter().for_each(Outbox::close);
    }

    /// Ends a node that has failed: no byte of it is to be trusted, so no cached location counts any more.
    fn abandon(&self) {
        self.state.lock_anyway().writer.set_member(false);
        self.close_all();
        let disks = self.disks.get().into_iter().flatten().filter_map(Weak::upgrade);
        disks.for_each(|disk| disk.abandon());
    }
}

impl State {
    fn clients(&mut self) -> impl DoubleEndedIterator<Item = (ConnId, &mut ReplyPath)> {
        self.conns.iter_mut().map(|(conn, it)| (*conn, it))
    }
}

/// Waits until a member of this node is taken in.
async fn join(
    mut status: watch::Receiver<LinkStatus>,
    master: &Address,
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

/// Whether the machine and the control groups of this process have the memory that such a node needs.
pub fn check_memory(config: &NodeConfig) -> Result<Fit, StartError> {
    Ok(segment::check_memory(&geometry(SegmentId(0), config.memory), disk_bytes(config))?)
}

/// The memory that the disks of a node need beside its objects.
fn disk_bytes(config: &NodeConfig) -> u64 {
    let stage = if config.shared_memory { staging::STAGE_BYTES } else { 0 };
    let bytes = |ssd: &SsdConfig| tiffin_ssd::memory_bytes(ssd.size).saturating_add(stage);
    config.ssd.iter().map(bytes).fold(0, u64::saturating_add)
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

/// All memory was made present, also that of bytes which were withheld meanwhile.
fn withhold_again(shared: &Weak<Shared>) {
    if let Some(shared) = shared.upgrade().filter(|it| !it.state.has_failed()) {
        let state = shared.state.lock_anyway();
        state.core.withheld().for_each(|it| shared.memory.return_pages(effects::extent(it)));
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

fn spawn(shared: &Arc<Shared>, sockets: Sockets, heard: mpsc::Receiver<shm::Event>) -> JoinSet<()> {
    let (mut tasks, mut handles) = (JoinSet::new(), Vec::new());
    let watch = &shared.supervisor;
    for listener in [sockets.requests, sockets.local].into_iter().flatten() {
        let serving = listen::serve(listener, Arc::clone(shared));
        handles.push(tasks.spawn(watch.watch("the listener", serving)));
    }
    if let Some(listener) = sockets.bytes {
        let door = Door::new(shared.token.clone(), false);
        let authorise = move |hello: &tcp::Hello| {
            if door.opens_to(&hello.token) { Ok(()) } else { Err("the token is missing or wrong".to_owned()) }
        };
        let keeper: Arc<dyn tcp::SlotAccess> = Arc::<Shared>::clone(shared);
        let counters = Arc::clone(&shared.counters);
        let server = tcp::Server::new(Arc::clone(&shared.memory), keeper, Box::new(authorise), counters);
        handles.push(tasks.spawn(watch.watch("the data socket", server.run(listener))));
    }
    if let (Some(listener), Some(server)) = (sockets.memory, &shared.attachments) {
        handles.push(tasks.spawn(watch.watch("the attach socket", Arc::clone(server).run(listener))));
        let hearing = effects::hear(Arc::clone(shared), heard);
        handles.push(tasks.spawn(watch.watch("the watch over processes", hearing)));
    }
    handles.push(tasks.spawn(watch.watch("the link to the master", link::run(Arc::clone(shared)))));
    let abandoned = Arc::clone(shared);
    tasks.spawn(Arc::clone(watch).end_on_failure(handles, move || abandoned.abandon()));
    tasks
}

/// Begins to listen everywhere, and describes it.
async fn bind(config: &NodeConfig, segment: SegmentId) -> Result<(Sockets, NodeInfo), StartError> {
    let mut sockets = Sockets { requests: None, bytes: None, local: None, memory: None };
    let mut info = NodeInfo { segment, host: host::identity(), ..NodeInfo::default() };
    if let Some(listen) = &config.listen {
        let listener = Listener::bind(listen).await?;
        let data = config.data_listen.clone().unwrap_or_else(|| with_port(listen, 0));
        let (bytes, data) = bind_data(&data).await?;
        info.tcp = advertised(listener.local_address(), config).to_string();
        info.data = advertised(&data, config).to_string();
        sockets.requests = Some(listener);
        sockets.bytes = Some(bytes);
    } else if !config.ssd.is_empty() {
        // Objects on a disk are requested through a socket, also by clients that map the memory.
        let (bytes, data) = bind_data(&loopback()).await?;
        info.data = data.to_string();
        sockets.bytes = Some(bytes);
    }
    if config.shared_memory {
        info.unix = format!("tiffin-{segment}");
        info.memory = format!("tiffin-{segment}-memory");
        sockets.local = Some(Listener::bind(&Address::Unix { name: info.unix.clone() }).await?);
        let address = Address::Unix { name: info.memory.clone() };
        sockets.memory = Some(shm::listen(&info.memory).map_err(|source| ListenError { address, source })?);
    }
    info.name = if !config.name.is_empty() {
        config.name.clone()
    } else if info.tcp.is_empty() {
        host::label()
    } else {
        info.tcp.clone()
    };
    Ok((sockets, info))
}

fn loopback() -> Address {
    Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 }
}

async fn bind_data(address: &Address) -> Result<(TcpListener, Address), ListenError> {
    let fail = |source| ListenError { address: address.clone(), source };
    let Address::Tcp { host, port } = address else {
        return Err(fail(std::io::ErrorKind::Unsupported.into()));
    };
    let listener = TcpListener::bind((host.as_str(), *port)).await.map_err(fail)?;
    let port = listener.local_addr().map_err(fail)?.port();
    Ok((listener, Address::Tcp { host: host.clone(), port }))
}

fn with_port(address: &Address, port: u16) -> Address {
    match address {
        Address::Tcp { host, .. } => Address::Tcp { host: host.clone(), port },
        Address::Unix { .. } => address.clone(),
    }
}

/// The address under which others reach what listens there.
fn advertised(address: &Address, config: &NodeConfig) -> Address {
    let Address::Tcp { host, port } = address else { return address.clone() };
    let is_wildcard = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
    let host = match &config.advertise {
        Some(host) => host.clone(),
        None if is_wildcard => address_towards(&config.master).unwrap_or_else(host::name),
        None => host.clone(),
    };
    Address::Tcp { host, port: *port }
}

/// The address of this machine from which packets to the master leave.
fn address_towards(master: &Address) -> Option<String> {
    let Address::Tcp { host, port } = master else { return None };
    let any = if host.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any).ok()?;
    // This sends nothing: it only asks the system for a route. A name is not looked up, which might take
    // long.
    socket.connect((host.parse::<IpAddr>().ok()?, *port)).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    // A master on this machine says nothing about how others reach it.
    (!ip.is_loopback()).then(|| ip.to_string())
}

/// How long a node waits for the answer to its hello.
const HELLO_TIME_MAX: Duration = Duration::from_secs(10);
