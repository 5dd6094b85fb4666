//! The shell of a disk member: it owns the `tiffin_node::disk::Disk` and its log, and moves bytes between the
//! log and the memory of its node. The node starts it, and clients read through it.
//!
//! The log names records by ids, the cluster names copies by stamps. The stamp is stored with the record,
//! before its attributes. The segment id of the disk, its epoch and the number of its master are stored in a
//! record, too: under a namespace that no client can use.
//!
//! **Invariant:** a disk whose log has failed disconnects from the master. Deletes that the log could not
//! make durable are then not confirmed; the master keeps them until the disk returns.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tiffin_measure::{Measures, Operation, Path, Series};
use tiffin_node::disk::{Disk, DiskConfig, Effect, Event};
use tiffin_rpc::{Masters, Outbox, SendError, Via};
use tiffin_ssd as ssd;
use tiffin_ssd::{Left, RecordId};
use tiffin_transport::segment::NodeMemory;
use tiffin_transport::tcp::frame::{RequestHead, RequestKind};
use tiffin_transport::tcp::{Fetch, FetchError, FetchReader, Fetched};
use tiffin_types::attributes::Attributes;
use tiffin_types::message::{MemberToMaster, NodeInfo, Record, Refusal, Usage};
use tiffin_types::mutant::Mutant;
use tiffin_types::{ClusterId, Generation, Key, SegmentId, SlotRef, Stamp};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Shared as Node;
use super::disk_log::AsyncLog;
use super::link::{self, LinkEvent, LinkStatus};
use super::slot_memory;
use super::staging::{Published, Staging};
use crate::config::SsdConfig;
use crate::supervise::{CoreLock, Locked};
use crate::turnstile;
use crate::{StartError, host};

/// The namespace of the disk's own record. Clients cannot use an empty one.
const OWN_NAMESPACE: &str = "";
/// The key of the disk's own record.
const OWN_KEY: &[u8] = b"member";

/// A disk of a node, which is a member of the cluster like the node itself.
pub(super) struct DiskMember {
    // Held while the core decides and while sockets that do not block are written; never over an await.
    state: CoreLock<State>,
    log: AsyncLog,
    /// Buffers for reads that go through a socket or to clients in this process.
    pool: Arc<ssd::Pool>,
    /// Memory for reads by clients of this host, which map it.
    stage: Option<Arc<Staging>>,
    node: Arc<Node>,
    info: NodeInfo,
    /// How long reads and writes of the disk took.
    measures: Arc<Measures>,
    /// The disk's own record.
    own: RecordId,
    status: watch::Sender<LinkStatus>,
    /// How often the link has broken.
    links_broken: watch::Sender<u64>,
    /// The log has failed.
    has_failed: AtomicBool,
    /// Dropped after the log: then the disk may be opened again.
    end: watch::Sender<()>,
}

/// The client that reads. Reads take turns by the namespaces of the objects, or by the token if that has a
/// share of its own, and then by client.
#[derive(Clone, Copy)]
pub(super) struct DiskClient {
    pub(super) id: u64,
    pub(super) token_group: Option<u64>,
}

struct State {
    core: Disk,
    ids: BTreeMap<Stamp, RecordId>,
    stamps: BTreeMap<RecordId, Stamp>,
    master: Option<Outbox>,
    /// Why the master has refused the disk.
    refusal: Option<Refusal>,
    /// Effects wait until the new epoch is durable.
    is_paused: bool,
    /// Events that were raised while effects were carried out.
    events: VecDeque<Event>,
    /// Number of appends in progress, and the records that the log removed before their append was answered.
    appending: usize,
    left_early: BTreeMap<RecordId, Left>,
    /// What the master has received of the measurements.
    reported: Vec<Series>,
}

/// The contents of a log when it was opened.
struct Found {
    segment: SegmentId,
    epoch: u64,
    instance: u64,
    cluster: ClusterId,
    own: RecordId,
    records: Vec<Record>,
    ids: BTreeMap<Stamp, RecordId>,
}

impl DiskMember {
    /// Opens the log and connects to the master. `number` is the index of the disk in its node.
    pub(super) async fn open(
        config: &SsdConfig,
        number: usize,
        node: &Arc<Node>,
        tasks: &mut JoinSet<()>,
    ) -> Result<Arc<Self>, StartError> {
        let (log, recovered, events) = AsyncLog::open(config).await?;
        let found = read_contents(&log, recovered).await?;
        let info = NodeInfo {
            segment: found.segment,
            name: format!("{} disk {}", node.info.name, number + 1),
            data: node.info.data.clone(),
            tcp: node.info.tcp.clone(),
            unix: node.info.unix.clone(),
            host: node.info.host.clone(),
            memory: node.info.memory.clone(),
            beside: Some(node.info.segment),
            outlives: false,
            registration: 0,
        };
        tracing::info!(
            path = %config.path.display(), records = found.records.len(), engine = log.engine(),
            segment = %found.segment, "disk is open"
        );
        let core_config = DiskConfig {
            segment: found.segment,
            epoch: found.epoch,
            instance: found.instance,
            cluster: found.cluster,
            stamps: 0,
            mutant: Mutant::default(),
        };
        let core = Disk::new(core_config, found.records);
        let stamps = found.ids.iter().map(|(stamp, id)| (*id, *stamp)).collect();
        let state = State {
            core,
            ids: found.ids,
            stamps,
            master: None,
            refusal: None,
            is_paused: false,
            events: VecDeque::new(),
            appending: 0,
            left_early: BTreeMap::new(),
            reported: Vec::new(),
        };
        let disk = Arc::new(Self {
            state: CoreLock::new(state, "the core of a disk", &node.supervisor),
            log,
            pool: Arc::default(),
            stage: node.attachments.as_ref().and_then(|_| Staging::new(found.segment)),
            node: Arc::clone(node),
            info,
            measures: Arc::default(),
            own: found.own,
            status: watch::Sender::new(LinkStatus::default()),
            links_broken: watch::Sender::new(0),
            has_failed: AtomicBool::new(false),
            end: watch::Sender::new(()),
        });
        let watch = &node.supervisor;
        tasks.spawn(watch.watch("the events of a disk", apply_events(Arc::clone(&disk), events)));
        tasks.spawn(watch.watch("the link of a disk", link::run(Arc::new(Arc::clone(&disk)))));
        Ok(disk)
    }

    pub(super) fn segment(&self) -> SegmentId {
        self.info.segment
    }

    pub(super) fn name(&self) -> &str {
        &self.info.name
    }

    pub(super) fn watch(&self) -> watch::Receiver<LinkStatus> {
        self.status.subscribe()
    }

    /// Waits until the disk is closed and unlocked.
    pub(super) fn end(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut end = self.end.subscribe();
        // Nothing is ever sent: the channel ends with its sender.
        async move { while end.changed().await.is_ok() {} }
    }

    /// The cluster that it belongs to; zero if it is not known.
    pub(super) fn cluster(&self) -> ClusterId {
        self.state.lock_anyway().core.cluster()
    }

    pub(super) fn usage(&self) -> Usage {
        self.state.lock_anyway().core.usage()
    }

    /// Counters of the log.
    pub(super) fn stats(&self) -> ssd::Stats {
        self.log.stats()
    }

    /// Waits until all earlier operations of the log have ended.
    pub(super) async fn flush(&self) {
        self.log.flush().await;
    }

    /// Starts to read a range of a copy for a client, or `None` if there is no such copy.
    pub(super) fn read(
        &self,
        client: DiskClient,
        stamp: Stamp,
        span: ssd::Span,
        cached_epoch: Option<u64>,
    ) -> Option<impl Future<Output = Result<ssd::Bytes, FetchError>> + Send + use<>> {
        let found = self.find(client, stamp, span, cached_epoch)?;
        let buffer = self.pool.take(span.len);
        let reading = self.read_into(found, span, buffer.clone());
        Some(async { reading.await.map(|()| buffer.into_bytes()) })
    }

    fn find(
        &self,
        client: DiskClient,
        stamp: Stamp,
        span: ssd::Span,
        cached_epoch: Option<u64>,
    ) -> Option<(ssd::Reader, RecordId)> {
        let state = self.lock();
        let len = state.core.readable(stamp, cached_epoch)?;
        span.offset.checked_add(span.len).filter(|end| *end <= len)?;
        let namespace_group = || state.core.namespace_of(stamp).map_or(0, turnstile::group);
        let group = client.token_group.unwrap_or_else(namespace_group);
        let reader = ssd::Reader { group, client: client.id, is_ahead: false };
        Some((reader, state.ids.get(&stamp).copied()?))
    }

    fn read_into(
        &self,
        (reader, id): (ssd::Reader, RecordId),
        span: ssd::Span,
        into: ssd::Pieces,
    ) -> impl Future<Output = Result<(), FetchError>> + Send + use<> {
        let (reading, name) = (self.log.read(reader, id, span, into), self.info.name.clone());
        let (measures, began) = (Arc::clone(&self.measures), Instant::now());
        async move {
            match reading.await {
                Ok(_) => {
                    measures.record(Operation::Read, Path::Disk, began.elapsed(), span.len);
                    Ok(())
                }
                // No byte of it was sent, and the log reports it to the master as an event.
                Err(error @ (ssd::ReadError::Gone | ssd::ReadError::Corrupt)) => {
                    tracing::debug!(disk = name, %error, "copy on disk is gone");
                    Err(FetchError::Gone)
                }
                Err(error) => {
                    tracing::warn!(disk = name, %error, "copy on disk is unreadable");
                    Err(FetchError::Unreadable)
                }
            }
        }
    }

    /// The same for a socket: through the staging segment if the client maps it and it has space.
    pub(super) fn fetch(&self, reader: FetchReader<'_>, range: &RequestHead) -> Option<Fetch> {
        let FetchReader { client, grant } = reader;
        let client = DiskClient { id: client, token_group: grant.shared() };
        let is_allowed = |namespace: Option<&str>| namespace.is_some_and(|it| grant.covers(it));
        if !grant.is_unlimited() && !is_allowed(self.lock().core.namespace_of(Stamp(range.stamp))) {
            return None;
        }
        let span = ssd::Span { offset: range.offset, len: range.len };
        let stage = self.stage.as_ref().filter(|_| range.kind == RequestKind::Stage);
        if let Some(extent) = stage.and_then(|it| it.take(range.len)) {
            let found = self.find(client, Stamp(range.stamp), span, range.cached_epoch)?;
            let reading = self.read_into(found, span, slot_memory::staged(&extent)?);
            return Some(Box::pin(async {
                reading.await?;
                extent.publish();
                Ok(Fetched::Staged(Box::new(Published(extent))))
            }));
        }
        let reading = self.read(client, Stamp(range.stamp), span, range.cached_epoch)?;
        Some(Box::pin(async { reading.await.map(|it| Fetched::Bytes(Box::new(it))) }))
    }

    /// The staging segment, for clients of this host.
    pub(super) fn stage(&self) -> Option<&Arc<NodeMemory>> {
        self.stage.as_ref().map(|it| it.memory())
    }

    /// Whether a copy that was read is still valid.
    pub(super) fn counts(&self, stamp: Stamp, cached_epoch: Option<u64>) -> bool {
        self.lock().core.readable(stamp, cached_epoch).is_some()
    }

    fn lock(&self) -> Locked<'_, State> {
        self.state.lock()
    }

    /// Runs a task of this disk. Its panic is a failure of the node.
    fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(self.node.supervisor.watch("the task of a disk", future));
    }

    fn handle(self: &Arc<Self>, event: Event) {
        let mut state = self.lock();
        state.events.push_back(event);
        self.carry_on(&mut state);
    }

    /// Passes events to the core, and carries out its effects in order.
    fn carry_on(self: &Arc<Self>, state: &mut State) {
        loop {
            if let Some(event) = state.events.pop_front() {
                let stats = self.log.stats();
                state.core.report(stats.segments * stats.segment_bytes, stats.live_bytes);
                state.core.handle(event);
            } else if state.is_paused {
                return;
            }
            while !state.is_paused
                && let Some(effect) = state.core.poll_effect()
            {
                self.carry_out(state, effect);
            }
            if state.events.is_empty() {
                return;
            }
        }
    }

    fn carry_out(self: &Arc<Self>, state: &mut State, effect: Effect) {
        match effect {
            Effect::Store { source, record } => self.store(state, source, record),
            Effect::Load { stamp, len, into } => self.load(state, stamp, len, into),
            Effect::Forget(stamps) => self.forget(state, stamps),
            Effect::SetAttributes(stamp, attributes) => {
                let Some(id) = state.ids.get(&stamp).copied() else {
                    return state.events.push_back(Event::AttributesSet(stamp, false));
                };
                let writing =
                    self.log.set_attributes(id, stored_attributes(stamp, &attributes), attributes.protect());
                let disk = Arc::clone(self);
                self.spawn(async move { disk.handle(Event::AttributesSet(stamp, writing.await.is_ok())) });
            }
            Effect::Refused(refusal) => {
                state.refusal = Some(refusal);
                state.master.iter().for_each(Outbox::close);
            }
            Effect::Epoch { epoch, instance, cluster } => {
                state.is_paused = true;
                let attributes = own_attributes(self.info.segment, epoch, instance, cluster);
                let writing = self.log.set_attributes(self.own, attributes, true);
                let disk = Arc::clone(self);
                self.spawn(async move {
                    match writing.await {
                        Ok(()) => {
                            let mut state = disk.lock();
                            state.is_paused = false;
                            disk.carry_on(&mut state);
                        }
                        Err(error) => disk.fail(&error),
                    }
                });
            }
            Effect::RejectMaster { served, offered } => {
                super::link::reject(served, offered);
                state.master.iter().for_each(Outbox::close);
            }
            Effect::AskMaster(id, mut request) => {
                if let MemberToMaster::Heartbeat(beat) = &mut request
                    && state.master.is_some()
                {
                    beat.measured = super::effects::grown(&self.measures, &mut state.reported);
                }
                let sent = state.master.as_ref().map(|master| master.request(id, &request));
                if let Some(Err(SendError::TooLarge(error))) = sent {
                    tracing::error!(%error, "a request to the master cannot be sent");
                }
            }
            Effect::AnswerMaster(id, reply) => {
                if let Some(master) = &state.master {
                    master.reply(id, &reply);
                }
            }
        }
    }

    fn store(self: &Arc<Self>, state: &mut State, source: SlotRef, record: Record) {
        state.appending += 1;
        let (disk, link) = (Arc::clone(self), self.links_broken.subscribe());
        self.spawn(async move {
            let (stamp, bytes, began) = (record.slot_ref.stamp, record.len, Instant::now());
            // The slot is referenced, so its bytes do not change before the log has them.
            let appended = match disk.refusal(record.len) {
                Some(refusal) => Err(Some(refusal)),
                None => match slot_memory::source(&disk.node, source, record.len, link).await {
                    Some(bytes) => disk.log.append(log_record(&record), bytes).await.map_err(Some),
                    None => Err(None),
                },
            };
            let mut state = disk.lock();
            state.appending -= 1;
            let mut left = None;
            let event = match appended {
                Ok(id) => {
                    disk.measures.record(Operation::Write, Path::Disk, began.elapsed(), bytes);
                    state.ids.insert(stamp, id);
                    state.stamps.insert(id, stamp);
                    left = state.left_early.remove(&id).map(|why| (why, id));
                    Event::Stored(stamp, true)
                }
                // The object was deleted meanwhile, or the link broke before it was one.
                Err(None) => Event::Stored(stamp, false),
                Err(Some(error @ ssd::AppendError::Failed(_))) => {
                    drop(state);
                    // Whether the record is durable is unknown: the disk disconnects without an answer.
                    return disk.fail(&error);
                }
                // The log works, so other objects are not affected. The master reports it.
                Err(Some(error @ ssd::AppendError::TooLarge { bytes_max, .. })) => {
                    tracing::debug!(disk = disk.info.name, %error, "object is too large for the disk");
                    Event::Refused(stamp, bytes_max)
                }
                Err(Some(error @ ssd::AppendError::Full { protected_bytes, protected_bytes_max })) => {
                    tracing::debug!(disk = disk.info.name, %error, "pinned objects leave no space");
                    Event::Refused(stamp, protected_bytes_max.saturating_sub(protected_bytes))
                }
                Err(Some(error)) => {
                    tracing::warn!(%error, "object could not be written to disk");
                    Event::Stored(stamp, false)
                }
            };
            if state.appending == 0 {
                state.left_early.clear();
            }
            state.events.push_back(event);
            disk.carry_on(&mut state);
            drop(state);
            if let Some((why, id)) = left {
                disk.left(why, &[id]);
            }
        });
    }

    /// Why the log would refuse this many bytes. Checked first, because hashing them takes a while.
    fn refusal(&self, bytes: u64) -> Option<ssd::AppendError> {
        let bytes_max = self.log.stats().record_bytes_max;
        (bytes > bytes_max && bytes_max > 0).then_some(ssd::AppendError::TooLarge { bytes, bytes_max })
    }

    fn load(self: &Arc<Self>, state: &mut State, stamp: Stamp, len: u64, into: SlotRef) {
        let id = state.ids.get(&stamp).copied();
        let Some((bytes, id)) = slot_memory::target(&self.node, into, len).zip(id) else {
            return state.events.push_back(Event::Loaded(into, false));
        };
        // A read that the kernel has begun may end after this process, and a memory pool has another owner
        // then. So the disk writes to memory that ends with the process.
        let via = self.node.memory.pool().map(|_| ssd::Pieces::zeroed(len));
        let into_memory = via.clone().unwrap_or_else(|| bytes.clone());
        let group = state.core.namespace_of(stamp).map_or(0, turnstile::group);
        let reader = ssd::Reader { group, client: 0, is_ahead: true };
        let reading = self.log.read(reader, id, ssd::Span { offset: 0, len }, into_memory);
        let (disk, began) = (Arc::clone(self), Instant::now());
        self.spawn(async move {
            let read = reading.await;
            match &read {
                Err(error) => tracing::debug!(%error, "object could not be promoted from disk"),
                Ok(_) => disk.measures.record(Operation::Read, Path::Disk, began.elapsed(), len),
            }
            if let Some(via) = via.filter(|_| read.is_ok()) {
                bytes.write(0, via.into_bytes().as_ref());
            }
            drop(bytes);
            disk.handle(Event::Loaded(into, read.is_ok()));
        });
    }

    fn forget(self: &Arc<Self>, state: &mut State, stamps: Vec<Stamp>) {
        let ids: Vec<_> = stamps.iter().filter_map(|stamp| state.ids.get(stamp).copied()).collect();
        let forgetting = self.log.forget(ids);
        let disk = Arc::clone(self);
        self.spawn(async move {
            match forgetting.await {
                Ok(_) => {
                    let mut state = disk.lock();
                    for stamp in &stamps {
                        let id = state.ids.remove(stamp);
                        id.and_then(|id| state.stamps.remove(&id));
                    }
                    state.events.push_back(Event::Forgotten(stamps));
                    disk.carry_on(&mut state);
                }
                Err(error) => disk.fail(&error),
            }
        });
    }

    /// Disconnects the disk from the master, because its log has failed. Only clients that
    /// the master has just told of a copy can still read it. All copies are available again when the node is
    /// restarted.
    fn fail(&self, error: &dyn std::error::Error) {
        if self.has_failed.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::error!(disk = self.info.name, %error, "disk has failed; the node continues with its memory");
        let master = self.lock().master.take();
        if let Some(master) = master {
            master.close();
        }
    }

    /// Disconnects the disk for good, because its node has failed.
    pub(super) fn abandon(&self) {
        self.has_failed.store(true, Ordering::Release);
        let master = self.state.lock_anyway().master.take();
        master.iter().for_each(Outbox::close);
    }

    /// The log has removed records by itself.
    fn left(self: &Arc<Self>, why: Left, ids: &[RecordId]) {
        let mut state = self.lock();
        let mut gone = Vec::new();
        for id in ids {
            if let Some(stamp) = state.stamps.remove(id) {
                state.ids.remove(&stamp);
                gone.push(stamp);
            } else if state.appending > 0 {
                state.left_early.insert(*id, why);
            }
        }
        match why {
            Left::Corrupt => state.events.extend(gone.into_iter().map(Event::Corrupt)),
            Left::Evicted | Left::Superseded => state.events.push_back(Event::Evicted(gone)),
        }
        self.carry_on(&mut state);
    }
}

impl link::Linked for Arc<DiskMember> {
    fn master(&self) -> &Masters {
        &self.node.master
    }

    fn token(&self) -> &str {
        &self.node.token
    }

    fn info(&self) -> &NodeInfo {
        &self.info
    }

    fn via(&self) -> Via {
        self.node.via()
    }

    fn is_leaving(&self) -> bool {
        self.has_failed.load(Ordering::Acquire) || self.node.is_leaving.load(Ordering::Acquire)
    }

    fn is_member(&self) -> bool {
        self.lock().core.is_member()
    }

    fn take_refusal(&self) -> Option<Refusal> {
        self.state.lock_anyway().refusal.take()
    }

    fn status(&self) -> &watch::Sender<LinkStatus> {
        &self.status
    }

    fn redirect(&self, master: Option<Outbox>) -> Option<Outbox> {
        if self.state.has_failed() {
            return None;
        }
        std::mem::replace(&mut self.lock().master, master)
    }

    fn apply(&self, event: LinkEvent) {
        if self.state.has_failed() {
            return;
        }
        self.handle(match event {
            LinkEvent::Linked => Event::Linked(self.info.clone()),
            LinkEvent::Unlinked => {
                self.links_broken.send_modify(|it| *it += 1);
                Event::Unlinked
            }
            LinkEvent::Request(id, request) => Event::MasterRequest(id, request),
            // A disk has no ledger.
            LinkEvent::LedgerRead(_) => return,
            LinkEvent::Reply(id, reply) => Event::MasterReply(id, reply),
            LinkEvent::Beat => Event::Beat,
        });
    }
}

impl std::fmt::Debug for DiskMember {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("DiskMember").field("info", &self.info).finish_non_exhaustive()
    }
}

/// Applies the events of the log.
async fn apply_events(disk: Arc<DiskMember>, mut events: mpsc::UnboundedReceiver<ssd::Event>) {
    while let Some(event) = events.recv().await {
        match event {
            ssd::Event::Left(why, ids) => disk.left(why, &ids),
            ssd::Event::Failed(fault) => disk.fail(&fault),
            ssd::Event::Unusable(fault) => disk.fail(&fault),
            ssd::Event::Recovered(_) => {}
        }
    }
}

/// Finds the disk's own record, or creates it, and the copies that the disk holds.
async fn read_contents(log: &AsyncLog, recovered: Vec<(RecordId, ssd::Record)>) -> Result<Found, StartError> {
    let (mut own, mut records, mut ids) = (None, Vec::new(), BTreeMap::new());
    let mut unknown = Vec::new();
    for (id, record) in recovered {
        if record.name.namespace == OWN_NAMESPACE {
            own = read_own_attributes(&record.attributes).map(|it| (it, id)).or(own);
            continue;
        }
        match copy_of(&record) {
            Some(copy) => {
                ids.insert(copy.slot_ref.stamp, id);
                records.push(copy);
            }
            None => unknown.push(id),
        }
    }
    if !unknown.is_empty() {
        tracing::warn!(records = unknown.len(), "records without a stamp are deleted");
        log.forget(unknown).await.map_err(StartError::disk)?;
    }
    if let Some(((segment, epoch, instance, cluster), own)) = own {
        return Ok(Found { segment, epoch, instance, cluster, own, records, ids });
    }
    let drawn = host::draw();
    let segment = drawn.map_err(|source| StartError::System { what: "drawing a random number", source })?;
    let segment = SegmentId(segment);
    let name = Arc::new(ssd::Name { namespace: OWN_NAMESPACE.to_owned(), key: OWN_KEY.to_vec() });
    let generation = ssd::Generation { epoch: 0, counter: 1 };
    let attributes = own_attributes(segment, 0, 0, ClusterId(0));
    let record = ssd::Record { name, generation, attributes, protected: true, payload_bytes: 0 };
    let own = log.append(record, ssd::Pieces::zeroed(0)).await.map_err(StartError::disk)?;
    // Copies of a disk without its own record are unknown to any master.
    Ok(Found { segment, epoch: 0, instance: 0, cluster: ClusterId(0), own, records, ids })
}

/// The log record of a copy.
fn log_record(record: &Record) -> ssd::Record {
    let key = record.key.as_bytes().to_vec();
    ssd::Record {
        name: Arc::new(ssd::Name { namespace: record.namespace.clone(), key }),
        generation: ssd::Generation { epoch: record.generation.epoch, counter: record.generation.counter },
        attributes: stored_attributes(record.slot_ref.stamp, &record.attributes),
        protected: record.attributes.protect(),
        payload_bytes: record.len,
    }
}

/// The copy of a log record, or `None` if the record has no stamp.
fn copy_of(record: &ssd::Record) -> Option<Record> {
    let (stamp, attributes) = record.attributes.split_first_chunk::<8>()?;
    Some(Record {
        slot_ref: SlotRef::on_disk(Stamp(u64::from_le_bytes(*stamp))),
        namespace: record.name.namespace.clone(),
        key: Key::new(&record.name.key).ok()?,
        generation: Generation { epoch: record.generation.epoch, counter: record.generation.counter },
        len: record.payload_bytes,
        attributes: Attributes::from_bytes(attributes)?,
    })
}

/// The stamp and the attributes of a copy, as the log stores them.
fn stored_attributes(stamp: Stamp, attributes: &Attributes) -> Vec<u8> {
    let mut bytes = stamp.0.to_le_bytes().to_vec();
    bytes.extend(attributes.to_bytes());
    bytes
}

fn own_attributes(segment: SegmentId, epoch: u64, instance: u64, cluster: ClusterId) -> Vec<u8> {
    [segment.0, epoch, instance, cluster.0].map(u64::to_le_bytes).concat()
}

/// The contents of the disk's own record. Earlier releases did not store the number of the master and the id
/// of the cluster.
fn read_own_attributes(attributes: &[u8]) -> Option<(SegmentId, u64, u64, ClusterId)> {
    let (segment, rest) = attributes.split_first_chunk::<8>()?;
    let (epoch, rest) = rest.split_first_chunk::<8>()?;
    let word = |at: usize| {
        let bytes = rest.get(at..).and_then(<[u8]>::first_chunk::<8>);
        bytes.map_or(0, |it| u64::from_le_bytes(*it))
    };
    let (instance, cluster) = (word(0), ClusterId(word(8)));
    Some((SegmentId(u64::from_le_bytes(*segment)), u64::from_le_bytes(*epoch), instance, cluster))
}
