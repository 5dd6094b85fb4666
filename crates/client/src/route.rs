//! The route to one node: a connection for requests, and a transport for bytes.
//!
//! Shared memory is tried first: only a node of this host can hand over its memory, so success proves that
//! it is one. The client attaches to a node in its own process, too, although its memory is already mapped.
//! That is how the node learns that this client can access its memory directly.
//!
//! **Invariant:** a client that has mapped a node's memory stays attached across broken connections, under
//! the same id. Its reservations and views outlive the connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tiffin_measure::Path;
use tiffin_rpc::{Address, Blocking, Connection, TlsClient, Via, blocking};
use tiffin_session::{Seen, SeenState, is_valid_cached};
use tiffin_trace::{Kind, Name, Span};
use tiffin_transport::control::{ControlReader, SlotState};
use tiffin_transport::hedge::ReadControl;
use tiffin_transport::local::{Local, LocalDisk};
use tiffin_transport::segment::NodeMemory;
use tiffin_transport::shm::{AttachError, Attachment, Shm, attach};
use tiffin_transport::tcp::{Identity, ReadOptions, Tcp};
use tiffin_transport::{Counters, MappedRange, Outcome, ReadOp, TransferError, Transport, WriteOp};
use tiffin_types::message::{Hello, NodeInfo, Welcome};
use tokio::time::Instant;

use crate::link::Usable;
use crate::{Deadline, Error, Way};

/// Time limit for mapping memory, so that enough time is left for the socket instead.
const ATTACH_TIME_MAX: Duration = Duration::from_secs(2);

/// Settings and counters that all routes of one client share.
#[derive(Clone)]
pub(crate) struct RouteContext {
    pub(crate) hello: Hello,
    /// Encrypts TCP connections, if a CA is known.
    pub(crate) tls: Option<TlsClient>,
    pub(crate) shared_memory: bool,
    pub(crate) own_memory: Option<Arc<NodeMemory>>,
    pub(crate) own_disks: Vec<Arc<dyn LocalDisk>>,
    pub(crate) connect_time: Duration,
    pub(crate) counters: Arc<Counters>,
    /// Number of reads from disks: see [`Client::disk_reads`](crate::Client::disk_reads).
    pub(crate) disk_reads: Arc<AtomicU64>,
}

impl RouteContext {
    /// Whether the memory of a node may be mapped.
    pub(crate) fn may_share(&self, info: &NodeInfo) -> bool {
        self.shared_memory && !info.memory.is_empty() && info.host == self.hello.host
    }

    /// The disk, if it belongs to a node in this process.
    fn own_disk(&self, info: &NodeInfo) -> Option<&Arc<dyn LocalDisk>> {
        self.own_disks.iter().find(|it| it.segment() == info.segment.0)
    }
}

/// An open route.
pub(crate) struct OpenRoute {
    pub(crate) connection: Connection,
    /// Its number among the connections on which views were listed.
    pub(crate) views_connection: AtomicU64,
    data_path: DataPath,
    /// Why the memory is not mapped.
    pub(crate) why_not_shared: Option<String>,
    /// Where reads are counted, if this leads to a disk.
    disk_reads: Option<Arc<AtomicU64>>,
}

enum DataPath {
    Local(Local, Arc<Attachment>),
    Disk(Arc<dyn LocalDisk>, Arc<Counters>),
    Shm(Shm),
    /// The memory may only be read: bytes are written through the socket.
    ReadOnly(Shm, Tcp),
    Tcp(Tcp),
}

impl Usable for OpenRoute {
    fn is_usable(&self) -> bool {
        !self.connection.is_closed() && self.attachment().is_none_or(|it| it.is_connected())
    }

    /// The mapping of a live node is reused. The mapping of a dead node would keep its memory allocated.
    fn is_worth_keeping(&self) -> bool {
        self.attachment().is_some_and(|it| it.is_connected())
    }
}

impl OpenRoute {
    pub(crate) fn way(&self) -> Way {
        match self.data_path {
            DataPath::Local(..) | DataPath::Disk(..) => Way::Local,
            DataPath::Shm(_) | DataPath::ReadOnly(..) => Way::SharedMemory,
            DataPath::Tcp(_) => Way::Tcp,
        }
    }

    /// The path by which bytes move, for measurements.
    pub(crate) fn path(&self) -> Path {
        match (self.disk_reads.is_some(), self.way()) {
            (true, _) => Path::Disk,
            (false, Way::Local) => Path::Process,
            (false, Way::SharedMemory) => Path::SharedMemory,
            (false, Way::Tcp) => Path::Tcp,
        }
    }

    /// Whether this client writes into the node's memory itself, not through a socket.
    pub(crate) fn writes_in_place(&self) -> bool {
        matches!(self.data_path, DataPath::Local(..) | DataPath::Shm(_))
    }

    pub(crate) fn attachment(&self) -> Option<&Arc<Attachment>> {
        match &self.data_path {
            DataPath::Local(_, attachment) => Some(attachment),
            DataPath::Shm(shm) | DataPath::ReadOnly(shm, _) => Some(shm.attachment()),
            DataPath::Tcp(_) | DataPath::Disk(..) => None,
        }
    }

    /// Whether this route reads a disk, not memory.
    pub(crate) fn leads_to_disk(&self) -> bool {
        self.disk_reads.is_some()
    }

    /// Whether the node has certainly ended, and with it all its state for this client.
    pub(crate) fn is_node_gone(&self) -> bool {
        self.attachment().is_some_and(|it| !it.is_connected())
    }

    /// Whether bytes arrive through a network, so that a read may stall.
    pub(crate) fn can_stall(&self) -> bool {
        matches!(self.data_path, DataPath::Tcp(_))
    }

    pub(crate) async fn read(
        &self,
        ops: &[ReadOp<'_>],
        watch: Option<&Arc<ReadControl>>,
        deadline: Deadline,
    ) -> Vec<Outcome> {
        let since = self.disk_reads.as_ref().map(|_| Instant::now());
        match &self.data_path {
            DataPath::Tcp(tcp) => {
                let read = tcp.read_controlled(ops, manner(None), watch, deadline.instant()).await;
                self.counted(ops, since, read)
            }
            DataPath::Disk(disk, counters) => {
                let read = disk.read(ops, None, counters, deadline.instant()).await;
                self.counted(ops, since, read)
            }
            DataPath::Local(local, _) => self.unless_gone(local.read(ops, deadline.instant()).await),
            DataPath::Shm(shm) | DataPath::ReadOnly(shm, _) => shm.read(ops, deadline.instant()).await,
        }
    }

    /// Reads from cached locations of objects that were `named` in that epoch; `epoch` is the master's. In
    /// mapped memory this checks the validity of the bytes after the copy. Through a socket the node checks
    /// after it has sent them.
    pub(crate) async fn read_cached(
        &self,
        ops: &[ReadOp<'_>],
        named: u64,
        epoch: u64,
        watch: Option<&Arc<ReadControl>>,
        deadline: Deadline,
    ) -> Vec<Outcome> {
        let since = self.disk_reads.as_ref().map(|_| Instant::now());
        match &self.data_path {
            DataPath::Tcp(tcp) => {
                let read = tcp.read_controlled(ops, manner(Some(epoch)), watch, deadline.instant()).await;
                return self.counted(ops, since, read);
            }
            DataPath::Disk(disk, counters) => {
                let read = disk.read(ops, Some(epoch), counters, deadline.instant()).await;
                return self.counted(ops, since, read);
            }
            DataPath::Local(..) | DataPath::Shm(_) | DataPath::ReadOnly(..) => (),
        }
        let uses = || ops.iter().map(|op| (op.slot, op.stamp));
        let stale = || vec![Err(TransferError::Stale); ops.len()];
        let Some(control) = self.control() else { return stale() };
        if !uses().any(|(slot, stamp)| is_valid_cached(seen(control, slot, stamp), named, epoch)) {
            return stale();
        }
        let outcomes = self.read(ops, None, deadline).await;
        let checked = outcomes.into_iter().zip(self.are_valid(uses(), named, epoch));
        checked.map(|(it, is_valid)| if is_valid { it } else { it.and(Err(TransferError::Stale)) }).collect()
    }

    pub(crate) async fn write(&self, ops: &[WriteOp<'_>], deadline: Deadline) -> Vec<Outcome> {
        let sources = ops.iter().flat_map(|op| &op.sources);
        let _span = transfer_span("write", self, sources.map(|it| it.len() as u64));
        match &self.data_path {
            DataPath::Tcp(tcp) | DataPath::ReadOnly(_, tcp) => {
                tcp.write_with(ops, blocking() == Blocking::Now, deadline.instant()).await
            }
            // Only its node writes to a disk.
            DataPath::Disk(..) => vec![Err(TransferError::Stale); ops.len()],
            DataPath::Local(local, _) => self.unless_gone(local.write(ops, deadline.instant()).await),
            DataPath::Shm(shm) => shm.write(ops, deadline.instant()).await,
        }
    }

    /// Whether bytes that were copied before from these slots are valid, for objects that were `named` in
    /// that epoch. The master answers a delete only after the node has withdrawn the stamp.
    pub(crate) fn are_valid(
        &self,
        uses: impl Iterator<Item = (u32, u64)>,
        named: u64,
        epoch: u64,
    ) -> Vec<bool> {
        let control = self.control();
        let is_valid = |(slot, stamp)| {
            control.is_some_and(|control| is_valid_cached(seen(control, slot, stamp), named, epoch))
        };
        let mut valid: Vec<_> = uses.map(is_valid).collect();
        // One system call for all: a node that is alive now was alive when they were checked.
        if valid.contains(&true) && self.is_node_gone() {
            valid.fill(false);
        }
        valid
    }

    /// Counts and logs reads from a disk, through a socket or in this process.
    fn counted(&self, ops: &[ReadOp<'_>], since: Option<Instant>, outcomes: Vec<Outcome>) -> Vec<Outcome> {
        if let (Some(reads), Some(since)) = (&self.disk_reads, since) {
            let read = outcomes.iter().filter(|it| it.is_ok()).count();
            reads.fetch_add(read as u64, Ordering::Relaxed);
            tracing::debug!(
                objects = ops.len(),
                read,
                bytes = ops.iter().map(ReadOp::bytes).sum::<u64>(),
                here = matches!(self.data_path, DataPath::Disk(..)),
                us = since.elapsed().as_micros() as u64,
                "get served from a disk"
            );
        }
        outcomes
    }

    fn control(&self) -> Option<&ControlReader> {
        match &self.data_path {
            DataPath::Local(local, _) => Some(local.control()),
            DataPath::Shm(shm) | DataPath::ReadOnly(shm, _) => Some(shm.attachment().reader()),
            DataPath::Tcp(_) | DataPath::Disk(..) => None,
        }
    }

    /// The bytes of a slot in place, if they are mapped and contiguous. The caller holds a view at the node.
    /// Also the memory of a node in this process is seen through a read-only mapping.
    pub(crate) fn view(&self, slot: u32, stamp: u64) -> Option<MappedRange> {
        self.attachment()?.view(slot, stamp)
    }

    /// A stopped node of this process no longer changes stamps, so its stamps prove nothing.
    fn unless_gone(&self, outcomes: Vec<Outcome>) -> Vec<Outcome> {
        let DataPath::Local(_, attachment) = &self.data_path else { return outcomes };
        if attachment.is_connected() {
            return outcomes;
        }
        let peer = attachment.name().to_owned();
        let lost = TransferError::Lost { peer, why: "the node in this process was stopped".to_owned() };
        outcomes.into_iter().map(|outcome| outcome.and(Err(lost.clone()))).collect()
    }
}

/// The current state of a slot, read in the order that [`Seen`] requires.
fn seen(control: &ControlReader, slot: u32, stamp: u64) -> Seen {
    let (is_member, epoch) = (control.is_member(), control.epoch());
    let state = match control.state_of(slot, stamp) {
        Some(SlotState::Committed) => Some(SeenState::Committed),
        Some(SlotState::Reserved | SlotState::Offered) => Some(SeenState::Reserved),
        Some(_) | None => None,
    };
    Seen { is_member, epoch, state }
}

/// The options of a read through a socket, for the thread that polls now.
fn manner(cached_epoch: Option<u64>) -> ReadOptions {
    ReadOptions { cached_epoch, may_block: blocking() == Blocking::Now }
}

/// Opens the route to a node. `last` is the broken route, if there was one.
pub(crate) async fn open(
    context: RouteContext,
    info: NodeInfo,
    last: Option<Arc<OpenRoute>>,
) -> Result<OpenRoute, Error> {
    let deadline = Instant::now() + context.connect_time;
    let (attached, why_not_shared) = match attached(&context, &info, last, deadline).await {
        Ok(attachment) => (Some(attachment), None),
        Err(why) => (None, Some(why)),
    };
    // A disk has no sockets of its own: requests go to its node. This client may be connected there
    // already, and a node accepts one connection per client id; so it uses another id for the disk.
    let mut hello = context.hello.clone();
    if info.beside.is_some() {
        hello.client.0 ^= info.segment.0;
    }
    let is_near = info.beside.is_some() && context.shared_memory && info.host == hello.host;
    let address = match &attached {
        Some(_) => format!("unix:@{}", info.unix),
        None if is_near && !info.unix.is_empty() => format!("unix:@{}", info.unix),
        None if info.tcp.is_empty() || info.data.is_empty() => {
            let why = why_not_shared.unwrap_or_default();
            let what = format!(
                "node `{}` listens on its own host only, and its memory is not mapped: {why}",
                info.name
            );
            return Err(Error::Unreachable { what });
        }
        None => info.tcp.clone(),
    };
    let address: Address = address.parse()?;
    let named = |error: Error| match error {
        Error::Unreachable { what } => Error::Unreachable { what: format!("node `{}`: {what}", info.name) },
        Error::Timeout { what } => Error::Timeout { what: format!("node `{}`: {what}", info.name) },
        Error::NoHandshake { what, is_silent } => {
            Error::NoHandshake { what: format!("node `{}`: {what}", info.name), is_silent }
        }
        Error::Tls { what, hint } => Error::Tls { what: format!("node `{}`: {what}", info.name), hint },
        error => error,
    };
    let via = Via { tls: context.tls.clone(), ..Via::default() };
    let opened = Connection::open_by(&address, via, hello, deadline).await;
    let (connection, welcome) = opened.map_err(|error| named(error.into()))?;
    check_segment(&info, &welcome, &address)?;
    let data_path = data_path(&context, &info, attached);
    let disk_reads = info.beside.map(|_| Arc::clone(&context.disk_reads));
    let views_connection = AtomicU64::new(0);
    Ok(OpenRoute { connection, views_connection, data_path, why_not_shared, disk_reads })
}

fn data_path(context: &RouteContext, info: &NodeInfo, attached: Option<Arc<Attachment>>) -> DataPath {
    let counters = Arc::clone(&context.counters);
    if let Some(disk) = context.own_disk(info) {
        return DataPath::Disk(Arc::clone(disk), counters);
    }
    let token = context.hello.token.clone();
    let identity = Identity { client: context.hello.client.0, segment: info.segment.0, token };
    if info.beside.is_some() {
        let disk = Tcp::to_disk(info.data.clone(), identity, counters, attached);
        return DataPath::Tcp(disk.secured(context.tls.clone()));
    }
    let Some(attachment) = attached else {
        return DataPath::Tcp(Tcp::new(info.data.clone(), identity, counters).secured(context.tls.clone()));
    };
    match &context.own_memory {
        Some(memory) if memory.geometry().segment == info.segment.0 => {
            DataPath::Local(Local::new(Arc::clone(memory), counters), attachment)
        }
        _ if attachment.is_read_only() => {
            let tcp = Tcp::new(info.data.clone(), identity, Arc::clone(&counters));
            DataPath::ReadOnly(Shm::new(attachment, counters), tcp.secured(context.tls.clone()))
        }
        _ => DataPath::Shm(Shm::new(attachment, counters)),
    }
}

fn check_segment(info: &NodeInfo, welcome: &Welcome, address: &Address) -> Result<(), Error> {
    if welcome.segment == info.beside.unwrap_or(info.segment) {
        return Ok(());
    }
    let what = format!("node `{}` has ended: another node answers at `{address}`", info.name);
    Err(Error::Unreachable { what })
}

/// Maps the node's memory, or returns why it is not mapped.
async fn attached(
    context: &RouteContext,
    info: &NodeInfo,
    last: Option<Arc<OpenRoute>>,
    deadline: Instant,
) -> Result<Arc<Attachment>, String> {
    if !context.shared_memory {
        return Err("switched off".to_owned());
    }
    if info.memory.is_empty() || info.unix.is_empty() {
        return Err("the node shares no memory".to_owned());
    }
    if context.own_disk(info).is_some() {
        return Err("its disk is read in this process".to_owned());
    }
    if let Some(attachment) = last.as_ref().and_then(|it| it.attachment()).filter(|it| it.is_connected()) {
        return Ok(Arc::clone(attachment));
    }
    let deadline = deadline.min(Instant::now() + ATTACH_TIME_MAX);
    let Hello { client, token, host, .. } = &context.hello;
    let attached = attach(&info.memory, info.segment.0, client.0, token, deadline).await;
    attached.map(Arc::new).map_err(|error| match error {
        AttachError::Unreachable { .. } if info.host != *host => "another host".to_owned(),
        AttachError::OtherUser { uid, .. } => format!("another user, {uid}"),
        AttachError::Refused { reason, .. } => reason,
        error => error.to_string(),
    })
}

/// The span of a transfer of bytes, if the call is traced.
#[inline]
pub(crate) fn transfer_span(
    name: &'static str,
    route: &OpenRoute,
    sizes: impl Iterator<Item = u64>,
) -> Option<Span> {
    if !tiffin_trace::is_active() {
        return None;
    }
    let mut span = tiffin_trace::start(Name::Step(name), Kind::Internal)?;
    span.word("tiffin.path", route.path().name());
    span.number("tiffin.bytes", sizes.fold(0, u64::saturating_add));
    Some(span)
}
