//! A disk's shell: it owns the `core::disk::Disk` and the log that it decides about, and moves bytes between
//! the log and the memory of the node beside it.
//!
//! The log knows its records by numbers of its own, the cluster knows copies by stamps; the stamp is written
//! with the record, in front of its marks. What the disk must remember of itself, its name and the life of
//! the master that it belongs to, is a record like any other, under a namespace that no client can have.
//!
//! **Invariant:** a log that can no longer promise what it is asked for, because its disk failed, makes the
//! disk leave the master's sight: what was to be forgotten is owed then, and not confirmed.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tiffin_core::disk::{Disk, DiskConfig, Effect, Event};
use tiffin_core::marks::Marks;
use tiffin_core::message::{NodeInfo, Record, Usage};
use tiffin_core::sabotage::Sabotage;
use tiffin_core::{Generation, Hold, Key, SegmentId, Stamp};
use tiffin_rpc::{Address, Outbox, SendError};
use tiffin_ssd as ssd;
use tiffin_ssd::{Left, RecordId};
use tiffin_transport::segment::NodeMemory;
use tiffin_transport::tcp::frame::{RequestHead, RequestKind};
use tiffin_transport::tcp::{Fetch, FetchError, Fetched};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::Shared as Node;
use super::lent;
use super::link::{self, LinkStatus, Said};
use super::shelf::Shelf;
use super::stage::{Shown, Stage};
use crate::config::SsdConfig;
use crate::{StartError, host};

/// The namespace of what the disk remembers of itself. No client may have an empty one.
const OWN_NAMESPACE: &str = "";
/// The key of it.
const OWN_KEY: &[u8] = b"member";

/// A disk beside the memory of a node.
pub(super) struct Beside {
    // Held while the core decides and while sockets that do not block are written; never over an await.
    state: Mutex<State>,
    shelf: Shelf,
    /// Memory to read into for those who are not this node.
    pool: Arc<ssd::Pool>,
    /// Memory to read into for those of this host who map it.
    stage: Option<Arc<Stage>>,
    node: Arc<Node>,
    info: NodeInfo,
    /// The record of what the disk remembers of itself.
    own: RecordId,
    status: watch::Sender<LinkStatus>,
    /// The log can promise nothing any more.
    has_failed: AtomicBool,
    /// Ends when this does, after the log: then another may use the disk.
    end: watch::Sender<()>,
}

struct State {
    core: Disk,
    ids: BTreeMap<Stamp, RecordId>,
    stamps: BTreeMap<RecordId, Stamp>,
    master: Option<Outbox>,
    /// What the core says waits until it has been written which life of the master it belongs to.
    is_paused: bool,
    /// What happened while effects were carried out.
    events: VecDeque<Event>,
    /// Appends under way, and records that left before it was heard that they had come.
    appending: usize,
    left_early: BTreeMap<RecordId, Left>,
}

/// What a log was found to hold, sorted out.
struct Found {
    segment: SegmentId,
    epoch: u64,
    life: u64,
    own: RecordId,
    records: Vec<Record>,
    ids: BTreeMap<Stamp, RecordId>,
}

impl Beside {
    /// Opens the log and tells what it holds. `number` is which of the node's disks it is.
    pub(super) async fn open(
        config: &SsdConfig,
        number: usize,
        node: &Arc<Node>,
        tasks: &mut JoinSet<()>,
    ) -> Result<Arc<Self>, StartError> {
        let (shelf, recovered, events) = Shelf::open(config).await?;
        let found = sort_out(&shelf, recovered).await?;
        let info = NodeInfo {
            segment: found.segment,
            name: format!("{} disk {}", node.info.name, number + 1),
            data: node.info.data.clone(),
            tcp: node.info.tcp.clone(),
            unix: node.info.unix.clone(),
            host: node.info.host.clone(),
            memory: node.info.memory.clone(),
            beside: Some(node.info.segment),
        };
        tracing::info!(
            path = %config.path.display(), records = found.records.len(), engine = shelf.engine(),
            segment = %found.segment, "the disk is up"
        );
        let core_config = DiskConfig {
            segment: found.segment,
            epoch: found.epoch,
            life: found.life,
            stamps: 0,
            sabotage: Sabotage::default(),
        };
        let core = Disk::new(core_config, found.records);
        let stamps = found.ids.iter().map(|(stamp, id)| (*id, *stamp)).collect();
        let state = State {
            core,
            ids: found.ids,
            stamps,
            master: None,
            is_paused: false,
            events: VecDeque::new(),
            appending: 0,
            left_early: BTreeMap::new(),
        };
        let disk = Arc::new(Self {
            state: Mutex::new(state),
            shelf,
            pool: Arc::default(),
            stage: node.attachments.as_ref().and_then(|_| Stage::new(found.segment)),
            node: Arc::clone(node),
            info,
            own: found.own,
            status: watch::Sender::new(LinkStatus::default()),
            has_failed: AtomicBool::new(false),
            end: watch::Sender::new(()),
        });
        tasks.spawn(hear(Arc::clone(&disk), events));
        tasks.spawn(link::run(Arc::new(Arc::clone(&disk))));
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

    /// Ends when nobody uses the disk any more, and it is unlocked.
    pub(super) fn end(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut end = self.end.subscribe();
        // Nothing is ever sent: it changes when its other end is gone.
        async move { while end.changed().await.is_ok() {} }
    }

    pub(super) fn usage(&self) -> Usage {
        self.lock().core.usage()
    }

    /// What the log has done.
    pub(super) fn stats(&self) -> ssd::Stats {
        self.shelf.stats()
    }

    /// Ends when all that was asked of the log before has ended.
    pub(super) async fn flush(&self) {
        self.shelf.flush().await;
    }

    /// Begins to read a range of a copy; `None` if there is no such copy.
    pub(super) fn read(
        &self,
        stamp: Stamp,
        span: ssd::Span,
        unasked: Option<u64>,
    ) -> Option<impl Future<Output = Result<ssd::Bytes, FetchError>> + Send + use<>> {
        let id = self.find(stamp, span, unasked)?;
        let room = self.pool.take(span.len);
        let reading = self.read_into(id, span, room.clone());
        Some(async { reading.await.map(|()| room.into_bytes()) })
    }

    fn find(&self, stamp: Stamp, span: ssd::Span, unasked: Option<u64>) -> Option<RecordId> {
        let state = self.lock();
        let len = state.core.readable(stamp, unasked)?;
        span.offset.checked_add(span.len).filter(|end| *end <= len)?;
        state.ids.get(&stamp).copied()
    }

    fn read_into(
        &self,
        id: RecordId,
        span: ssd::Span,
        into: ssd::Pieces,
    ) -> impl Future<Output = Result<(), FetchError>> + Send + use<> {
        let (reading, name) = (self.shelf.read(id, span, into), self.info.name.clone());
        async move {
            match reading.await {
                Ok(_) => Ok(()),
                // It is found out before it is served, and the master hears of it.
                Err(error @ (ssd::ReadError::Gone | ssd::ReadError::Corrupt)) => {
                    tracing::debug!(disk = name, %error, "a copy on disk is not there any more");
                    Err(FetchError::Gone)
                }
                Err(error) => {
                    tracing::warn!(disk = name, %error, "a copy on disk could not be read");
                    Err(FetchError::Unreadable)
                }
            }
        }
    }

    /// The same, for a socket: on the stage, if the reader maps it and there is room.
    pub(super) fn fetch(&self, range: &RequestHead) -> Option<Fetch> {
        let span = ssd::Span { offset: range.offset, len: range.len };
        let stage = self.stage.as_ref().filter(|_| range.kind == RequestKind::Stage);
        if let Some(room) = stage.and_then(|it| it.take(range.len)) {
            let id = self.find(Stamp(range.stamp), span, range.cached_epoch)?;
            let reading = self.read_into(id, span, lent::staged(&room)?);
            return Some(Box::pin(async {
                reading.await?;
                room.publish();
                Ok(Fetched::Staged(Box::new(Shown(room))))
            }));
        }
        let reading = self.read(Stamp(range.stamp), span, range.cached_epoch)?;
        Some(Box::pin(async { reading.await.map(|it| Fetched::Bytes(Box::new(it))) }))
    }

    /// The memory through which others of this host read the disk.
    pub(super) fn stage(&self) -> Option<&Arc<NodeMemory>> {
        self.stage.as_ref().map(|it| it.memory())
    }

    /// Whether a copy that was read still counts.
    pub(super) fn counts(&self, stamp: Stamp, unasked: Option<u64>) -> bool {
        self.lock().core.readable(stamp, unasked).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The core panics only if an invariant is broken; a disk that forgets what happened then is worse
        // than one that says so, and every answer is checked against the core anyway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(self: &Arc<Self>, event: Event) {
        let mut state = self.lock();
        state.events.push_back(event);
        self.carry_on(&mut state);
    }

    /// Lets the core decide, and does what it says, in order.
    fn carry_on(self: &Arc<Self>, state: &mut State) {
        loop {
            if let Some(event) = state.events.pop_front() {
                let stats = self.shelf.stats();
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
            Effect::Mark(stamp, marks) => {
                let Some(id) = state.ids.get(&stamp).copied() else {
                    return state.events.push_back(Event::Marked(stamp, false));
                };
                let marking = self.shelf.mark(id, written(stamp, &marks), marks.protect());
                let disk = Arc::clone(self);
                tokio::spawn(async move { disk.handle(Event::Marked(stamp, marking.await.is_ok())) });
            }
            Effect::Epoch(epoch, life) => {
                state.is_paused = true;
                let marks = own_marks(self.info.segment, epoch, life);
                let marking = self.shelf.mark(self.own, marks, true);
                let disk = Arc::clone(self);
                tokio::spawn(async move {
                    match marking.await {
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
                super::keep::reject(served, offered);
                state.master.iter().for_each(Outbox::close);
            }
            Effect::AskMaster(id, request) => {
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

    fn store(self: &Arc<Self>, state: &mut State, source: Hold, record: Record) {
        state.appending += 1;
        let disk = Arc::clone(self);
        tokio::spawn(async move {
            let stamp = record.hold.stamp;
            // The room is held, so the bytes stay what they are until the log has them.
            let appended = match disk.refusal(record.len) {
                Some(refusal) => Err(Some(refusal)),
                None => match lent::source(&disk.node, source, record.len).await {
                    Some(bytes) => disk.shelf.append(kept(&record), bytes).await.map_err(Some),
                    None => Err(None),
                },
            };
            let mut state = disk.lock();
            state.appending -= 1;
            let mut left = None;
            let event = match appended {
                Ok(id) => {
                    state.ids.insert(stamp, id);
                    state.stamps.insert(id, stamp);
                    left = state.left_early.remove(&id).map(|why| (why, id));
                    Event::Stored(stamp, true)
                }
                // It was taken away meanwhile.
                Err(None) => Event::Stored(stamp, false),
                Err(Some(error @ ssd::AppendError::Failed(_))) => {
                    drop(state);
                    // Whether it is there is not known: nothing is said about it, and the disk is away.
                    return disk.fail(&error);
                }
                // The log works, so others are not affected. The master says it in its log.
                Err(Some(error @ ssd::AppendError::TooLarge { bytes_max, .. })) => {
                    tracing::debug!(disk = disk.info.name, %error, "an object is too large for the disk");
                    Event::Refused(stamp, bytes_max)
                }
                Err(Some(error @ ssd::AppendError::Full { protected_bytes, protected_bytes_max })) => {
                    tracing::debug!(disk = disk.info.name, %error, "pinned objects leave no space");
                    Event::Refused(stamp, protected_bytes_max.saturating_sub(protected_bytes))
                }
                Err(Some(error)) => {
                    tracing::warn!(%error, "an object could not be written to disk");
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

    /// Why the log will not take so many bytes: it need not be asked, and they need not be hashed for that.
    fn refusal(&self, bytes: u64) -> Option<ssd::AppendError> {
        let bytes_max = self.shelf.stats().record_bytes_max;
        (bytes > bytes_max && bytes_max > 0).then_some(ssd::AppendError::TooLarge { bytes, bytes_max })
    }

    fn load(self: &Arc<Self>, state: &mut State, stamp: Stamp, len: u64, into: Hold) {
        let id = state.ids.get(&stamp).copied();
        let Some((bytes, id)) = lent::target(&self.node, into, len).zip(id) else {
            return state.events.push_back(Event::Loaded(into, false));
        };
        let reading = self.shelf.read_ahead(id, ssd::Span { offset: 0, len }, bytes);
        let disk = Arc::clone(self);
        tokio::spawn(async move {
            let read = reading.await;
            if let Err(error) = &read {
                tracing::debug!(%error, "an object could not be brought back from disk");
            }
            disk.handle(Event::Loaded(into, read.is_ok()));
        });
    }

    fn forget(self: &Arc<Self>, state: &mut State, stamps: Vec<Stamp>) {
        let ids: Vec<_> = stamps.iter().filter_map(|stamp| state.ids.get(stamp).copied()).collect();
        let forgetting = self.shelf.forget(ids);
        let disk = Arc::clone(self);
        tokio::spawn(async move {
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

    /// The log can promise nothing any more. The disk leaves the master's sight; what it holds can still be
    /// read by who knows of it, and is offered again when the node is started again.
    fn fail(&self, error: &dyn std::error::Error) {
        if self.has_failed.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::error!(disk = self.info.name, %error, "the disk has failed; memory goes on serving");
        let master = self.lock().master.take();
        if let Some(master) = master {
            master.close();
        }
    }

    /// Records left the log by themselves.
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

impl link::Linked for Arc<Beside> {
    fn master(&self) -> &Address {
        &self.node.master
    }

    fn token(&self) -> &str {
        &self.node.token
    }

    fn info(&self) -> &NodeInfo {
        &self.info
    }

    fn is_near(&self) -> bool {
        self.node.attachments.is_some()
    }

    fn is_leaving(&self) -> bool {
        self.has_failed.load(Ordering::Acquire) || self.node.is_leaving.load(Ordering::Acquire)
    }

    fn is_member(&self) -> bool {
        self.lock().core.is_member()
    }

    fn status(&self) -> &watch::Sender<LinkStatus> {
        &self.status
    }

    fn redirect(&self, master: Option<Outbox>) -> Option<Outbox> {
        std::mem::replace(&mut self.lock().master, master)
    }

    fn hear(&self, said: Said) {
        self.handle(match said {
            Said::Linked => Event::Linked(self.info.clone()),
            Said::Unlinked => Event::Unlinked,
            Said::Request(id, request) => Event::MasterRequest(id, request),
            // It has no ledger.
            Said::Entrusted(_) => return,
            Said::Reply(id, reply) => Event::MasterReply(id, reply),
            Said::Beat => Event::Beat,
        });
    }
}

impl std::fmt::Debug for Beside {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Beside").field("info", &self.info).finish_non_exhaustive()
    }
}

/// Hears what the log does by itself.
async fn hear(disk: Arc<Beside>, mut events: mpsc::UnboundedReceiver<ssd::Event>) {
    while let Some(event) = events.recv().await {
        match event {
            ssd::Event::Left(why, ids) => disk.left(why, &ids),
            ssd::Event::Failed(fault) => disk.fail(&fault),
            ssd::Event::Unusable(fault) => disk.fail(&fault),
            ssd::Event::Recovered(_) => {}
        }
    }
}

/// Finds out who the disk is, and what it holds.
async fn sort_out(shelf: &Shelf, recovered: Vec<(RecordId, ssd::Record)>) -> Result<Found, StartError> {
    let (mut own, mut records, mut ids) = (None, Vec::new(), BTreeMap::new());
    let mut unknown = Vec::new();
    for (id, record) in recovered {
        if record.name.namespace == OWN_NAMESPACE {
            own = read_own_marks(&record.marks).map(|it| (it, id)).or(own);
            continue;
        }
        match read(&record) {
            Some(read) => {
                ids.insert(read.hold.stamp, id);
                records.push(read);
            }
            None => unknown.push(id),
        }
    }
    if !unknown.is_empty() {
        tracing::warn!(records = unknown.len(), "records that nobody can understand are forgotten");
        shelf.forget(unknown).await.map_err(StartError::disk)?;
    }
    if let Some(((segment, epoch, life), own)) = own {
        return Ok(Found { segment, epoch, life, own, records, ids });
    }
    let drawn = host::draw();
    let segment = drawn.map_err(|source| StartError::System { what: "drawing a random number", source })?;
    let segment = SegmentId(segment);
    let name = Arc::new(ssd::Name { namespace: OWN_NAMESPACE.to_owned(), key: OWN_KEY.to_vec() });
    let generation = ssd::Generation { epoch: 0, counter: 1 };
    let marks = own_marks(segment, 0, 0);
    let record = ssd::Record { name, generation, marks, protected: true, payload_bytes: 0 };
    let own = shelf.append(record, ssd::Pieces::zeroed(0)).await.map_err(StartError::disk)?;
    // What was there without a name is of an unfinished life, and nobody can ask for it.
    Ok(Found { segment, epoch: 0, life: 0, own, records, ids })
}

/// What the log keeps of a copy.
fn kept(record: &Record) -> ssd::Record {
    let key = record.key.as_bytes().to_vec();
    ssd::Record {
        name: Arc::new(ssd::Name { namespace: record.namespace.clone(), key }),
        generation: ssd::Generation { epoch: record.generation.epoch, counter: record.generation.counter },
        marks: written(record.hold.stamp, &record.marks),
        protected: record.marks.protect(),
        payload_bytes: record.len,
    }
}

/// The other way round; `None` if it was not written so.
fn read(record: &ssd::Record) -> Option<Record> {
    let (stamp, marks) = record.marks.split_first_chunk::<8>()?;
    Some(Record {
        hold: Hold::on_disk(Stamp(u64::from_le_bytes(*stamp))),
        namespace: record.name.namespace.clone(),
        key: Key::new(&record.name.key).ok()?,
        generation: Generation { epoch: record.generation.epoch, counter: record.generation.counter },
        len: record.payload_bytes,
        marks: Marks::from_bytes(marks)?,
    })
}

/// A copy's stamp and marks.
fn written(stamp: Stamp, marks: &Marks) -> Vec<u8> {
    let mut bytes = stamp.0.to_le_bytes().to_vec();
    bytes.extend(marks.to_bytes());
    bytes
}

fn own_marks(segment: SegmentId, epoch: u64, life: u64) -> Vec<u8> {
    [segment.0, epoch, life].map(u64::to_le_bytes).concat()
}

/// Earlier releases did not write the number of the master.
fn read_own_marks(marks: &[u8]) -> Option<(SegmentId, u64, u64)> {
    let (segment, rest) = marks.split_first_chunk::<8>()?;
    let (epoch, rest) = rest.split_first_chunk::<8>()?;
    let life = rest.first_chunk::<8>().map_or(0, |it| u64::from_le_bytes(*it));
    Some((SegmentId(u64::from_le_bytes(*segment)), u64::from_le_bytes(*epoch), life))
}
