//! A log on a real disk: one thread drives it, and answers requests by callbacks.
//!
//! The queue of requests is bounded; if it is full, the answer is `Busy` at once. Callbacks run on the
//! driving thread and must not block. Dropping a [`DiskLog`] waits until all operations have been answered
//! and the kernel uses no memory of theirs.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::engine::{Drive, Driven, start};
use crate::jobs::{BUFFERS, Dest, Ended, Jobs, Source, Work};
use crate::layout::CHUNK_BYTES;
use crate::log::{Config, Effect, Input, Into, Limits, Log, Part};
use crate::memory::{Buffer, POOL_BYTES_MAX, Pieces};
use crate::mutant::Mutant;
use crate::place::{OpenError, Place, end_of};
use crate::types::{
    Answer, AppendError, ChangeError, Event, Fault, FaultKind, OpId, ReadError, Reader, Record, RecordId,
    Recovery, Span, StageId, Stats,
};

/// The maximum number of queued requests.
pub const INBOX_MAX: usize = 16 << 10;

/// The maximum number of ended disk operations that are handled before deadlines are checked.
const ENDED_MAX: usize = 64;

/// The estimate of the index is one byte per this many bytes of the disk: about 1 KiB for each record of 1
/// MiB.
const INDEX_SHARE: u64 = 1024;
/// The minimum of the estimate: for the records of small objects, and compaction.
const INDEX_BYTES_MIN: u64 = 32 << 20;
/// The maximum of the estimate.
const INDEX_BYTES_MAX: u64 = 4 << 30;

/// The memory that a log of this size needs, without the payloads of its callers: aligned buffers, a
/// [`crate::Pool`], and its index.
#[must_use]
pub fn memory_bytes(budget_bytes: u64) -> u64 {
    let index = (budget_bytes / INDEX_SHARE).clamp(INDEX_BYTES_MIN, INDEX_BYTES_MAX);
    BUFFERS as u64 * CHUNK_BYTES + POOL_BYTES_MAX as u64 + index
}

/// The configuration of a log on a disk.
#[derive(Clone, Debug)]
pub struct DiskLogConfig {
    /// A directory, which is created if its parent exists, or a block device.
    pub path: PathBuf,
    /// The maximum size in bytes.
    pub budget_bytes: u64,
    /// See [`Config::segment_bytes`].
    pub segment_bytes: Option<u64>,
    /// Limits of operations in progress.
    pub limits: Limits,
    /// The requested engine.
    pub drive: Drive,
}

/// An open log, and its contents.
pub struct Opened {
    /// The log.
    pub log: DiskLog,
    /// The recovery report.
    pub recovery: Recovery,
    /// The records.
    pub records: Vec<(RecordId, Record)>,
    /// The engine, and why it was chosen.
    pub driven: Driven,
}

/// A log on a real disk.
pub struct DiskLog {
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
}

type Reply = Box<dyn FnOnce(Answer) + Send>;
type Listener = Box<dyn FnMut(Event) + Send>;

struct Inbox {
    queue: Mutex<Queue>,
    stats: Mutex<Stats>,
    wake: Arc<OwnedFd>,
    next_op: AtomicU64,
}

#[derive(Default)]
struct Queue {
    requests: VecDeque<Request>,
    closed: bool,
}

struct Request {
    input: Asked,
    pieces: Option<Pieces>,
    reply: Option<Reply>,
}

/// An input with a timeout instead of a deadline.
enum Asked {
    Append { op: OpId, record: Record, sums: Arc<[u64]>, within: Duration },
    Read { op: OpId, id: RecordId, span: Span, within: Duration, reader: Reader },
    SetAttributes { op: OpId, id: RecordId, attributes: Vec<u8>, protected: bool, within: Duration },
    Forget { op: OpId, ids: Vec<RecordId>, within: Duration },
    Flush { op: OpId, within: Duration },
    Cancel { op: OpId },
}

impl DiskLog {
    /// Opens a directory or device, recovers the log, and starts its thread. `listen` receives the events of
    /// the log.
    ///
    /// # Errors
    /// When the directory or device cannot be used.
    pub fn open(
        config: &DiskLogConfig,
        listen: impl FnMut(Event) + Send + 'static,
    ) -> Result<Opened, OpenError> {
        let segment_bytes = config.segment_bytes.or_else(|| Place::segment_bytes(&config.path));
        let (segment_bytes, segments) =
            crate::log::shape(config.budget_bytes, segment_bytes).map_err(OpenError::Shape)?;
        let place = Place::open(&config.path, config.budget_bytes, end_of(segment_bytes, segments))?;
        let system = |what, error: rustix::io::Errno| OpenError::System {
            path: config.path.clone(),
            what,
            error: error.into(),
        };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = Arc::new(wake.map_err(|error| system("given an eventfd", error))?);
        let Place { file, lock } = place;
        let file = Arc::new(file);
        let buffers: Vec<Buffer> = (0..BUFFERS).map(|_| Buffer::new(CHUNK_BYTES as usize)).collect();
        let (engine, driven) = start(config.drive, &file, &wake, &buffers).map_err(OpenError::Engine)?;
        let (log, effects) = Log::open(Config {
            log: random().map_err(|error| OpenError::System {
                path: config.path.clone(),
                what: "given an id",
                error,
            })?,
            budget_bytes: config.budget_bytes,
            segment_bytes: Some(segment_bytes),
            limits: config.limits,
            mutant: Mutant::None,
        });
        let inbox = Arc::new(Inbox {
            queue: Mutex::default(),
            stats: Mutex::default(),
            wake,
            next_op: AtomicU64::new(1),
        });
        let mut driver = Driver {
            log,
            jobs: Jobs::new(engine, buffers, Arc::clone(&file)),
            inbox: Arc::clone(&inbox),
            ops: BTreeMap::new(),
            readers: BTreeMap::new(),
            stages: BTreeMap::new(),
            listen: Box::new(listen),
            started: Instant::now(),
            recovered: None,
        };
        driver.carry_out(effects, None);
        let recovery =
            driver.recover().map_err(|fault| OpenError::Fault { path: config.path.clone(), fault })?;
        let records = driver.log.records().map(|(id, record)| (id, record.clone())).collect();
        let thread = thread::Builder::new().name("tiffin-ssd".to_owned()).spawn(move || {
            if catch_unwind(AssertUnwindSafe(|| driver.run())).is_err() {
                driver.abandon();
            }
            drop(driver);
            drop(file);
            drop(lock);
        });
        let thread = thread.map_err(|error| OpenError::System {
            path: config.path.clone(),
            what: "given a thread",
            error,
        })?;
        Ok(Opened { log: Self { inbox, thread: Some(thread) }, recovery, records, driven })
    }

    /// Appends a record. The calling thread computes its checksums.
    ///
    /// # Panics
    /// When the payload has another length than the record.
    pub fn append(
        &self,
        record: Record,
        payload: Pieces,
        within: Duration,
        done: impl FnOnce(Result<RecordId, AppendError>) + Send + 'static,
    ) -> OpId {
        assert_eq!(payload.len(), record.payload_bytes, "payload and record differ in length");
        let op = self.inbox.op();
        let sums = payload.sums();
        let reply: Reply = Box::new(|answer| {
            done(if let Answer::Append(result) = answer { result } else { Err(AppendError::Busy) });
        });
        self.inbox.ask(Asked::Append { op, record, sums, within }, Some(payload), Some(reply));
        op
    }

    /// Reads into memory. The bytes are valid once `done` is called with success.
    ///
    /// # Panics
    /// When the memory has another length than the span.
    pub fn read(
        &self,
        id: RecordId,
        span: Span,
        into: Pieces,
        within: Duration,
        done: impl FnOnce(Result<u64, ReadError>) + Send + 'static,
    ) -> OpId {
        self.read_for(Reader::default(), id, span, into, within, done)
    }

    /// The same for one of several clients: where reads queue up, they take turns.
    ///
    /// # Panics
    /// When the memory has another length than the span.
    pub fn read_for(
        &self,
        reader: Reader,
        id: RecordId,
        span: Span,
        into: Pieces,
        within: Duration,
        done: impl FnOnce(Result<u64, ReadError>) + Send + 'static,
    ) -> OpId {
        assert_eq!(into.len(), span.len, "memory and span differ in length");
        let op = self.inbox.op();
        let reply: Reply = Box::new(|answer| {
            done(if let Answer::Read(result) = answer { result } else { Err(ReadError::Busy) });
        });
        self.inbox.ask(Asked::Read { op, id, span, within, reader }, Some(into), Some(reply));
        op
    }

    /// Sets the attributes and the protection of a record.
    pub fn set_attributes(
        &self,
        id: RecordId,
        attributes: Vec<u8>,
        protected: bool,
        within: Duration,
        done: impl FnOnce(Result<(), ChangeError>) + Send + 'static,
    ) -> OpId {
        let op = self.inbox.op();
        let reply: Reply = Box::new(|answer| {
            done(if let Answer::SetAttributes(result) = answer { result } else { Err(ChangeError::Busy) });
        });
        self.inbox.ask(Asked::SetAttributes { op, id, attributes, protected, within }, None, Some(reply));
        op
    }

    /// Deletes records durably.
    pub fn forget(
        &self,
        ids: Vec<RecordId>,
        within: Duration,
        done: impl FnOnce(Result<u64, ChangeError>) + Send + 'static,
    ) -> OpId {
        let op = self.inbox.op();
        let reply: Reply = Box::new(|answer| {
            done(if let Answer::Forget(result) = answer { result } else { Err(ChangeError::Busy) });
        });
        self.inbox.ask(Asked::Forget { op, ids, within }, None, Some(reply));
        op
    }

    /// Answers when all earlier operations have ended.
    pub fn flush(
        &self,
        within: Duration,
        done: impl FnOnce(Result<(), ChangeError>) + Send + 'static,
    ) -> OpId {
        let op = self.inbox.op();
        let reply: Reply = Box::new(|answer| {
            done(if let Answer::Flush(result) = answer { result } else { Err(ChangeError::Busy) });
        });
        self.inbox.ask(Asked::Flush { op, within }, None, Some(reply));
        op
    }

    /// Cancels an operation; it is still answered.
    pub fn cancel(&self, op: OpId) {
        self.inbox.ask(Asked::Cancel { op }, None, None);
    }

    /// Counters and sizes, as of a moment ago.
    #[must_use]
    pub fn stats(&self) -> Stats {
        *self.inbox.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DiskLog {
    fn drop(&mut self) {
        self.inbox.lock().closed = true;
        self.inbox.wake();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Waits for the answer of one operation: `wait(|done| log.flush(within, done))`.
///
/// # Panics
/// When the thread of the log has panicked.
pub fn wait<T: Send + 'static>(ask: impl FnOnce(Box<dyn FnOnce(T) + Send>) -> OpId) -> T {
    let (send, receive) = sync_channel(1);
    ask(Box::new(move |answer| drop(send.send(answer))));
    match receive.recv() {
        Ok(answer) => answer,
        Err(_) => panic!("the thread of a log has panicked"),
    }
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn op(&self) -> OpId {
        OpId(self.next_op.fetch_add(1, Ordering::Relaxed))
    }

    fn wake(&self) {
        // This fails only if it is signalled already.
        let _ = rustix::io::write(&self.wake, &1u64.to_le_bytes());
    }

    fn ask(&self, input: Asked, pieces: Option<Pieces>, reply: Option<Reply>) {
        let mut queue = self.lock();
        let full = queue.closed || queue.requests.len() >= INBOX_MAX;
        if full && !matches!(input, Asked::Cancel { .. }) {
            drop(queue);
            if let Some(reply) = reply {
                reply(busy(&input));
            }
            return;
        }
        let first = queue.requests.is_empty();
        queue.requests.push_back(Request { input, pieces, reply });
        drop(queue);
        if first {
            self.wake();
        }
    }
}

fn busy(input: &Asked) -> Answer {
    match input {
        Asked::Append { .. } => Answer::Append(Err(AppendError::Busy)),
        Asked::Read { .. } => Answer::Read(Err(ReadError::Busy)),
        Asked::SetAttributes { .. } => Answer::SetAttributes(Err(ChangeError::Busy)),
        Asked::Forget { .. } => Answer::Forget(Err(ChangeError::Busy)),
        Asked::Flush { .. } | Asked::Cancel { .. } => Answer::Flush(Err(ChangeError::Busy)),
    }
}

struct Driver {
    // Dropped first: its engine must stop using all memory.
    jobs: Jobs,
    log: Log,
    inbox: Arc<Inbox>,
    ops: BTreeMap<OpId, (Option<Pieces>, Option<Reply>)>,
    /// Who the reads are for.
    readers: BTreeMap<OpId, Reader>,
    stages: BTreeMap<StageId, Arc<Buffer>>,
    listen: Listener,
    started: Instant,
    recovered: Option<Result<Recovery, crate::types::OpenFault>>,
}

impl Driver {
    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn recover(&mut self) -> Result<Recovery, crate::types::OpenFault> {
        loop {
            if let Some(recovered) = self.recovered.take() {
                return recovered;
            }
            self.turn();
        }
    }

    fn run(&mut self) {
        loop {
            let closed = self.take_requests();
            self.turn();
            if closed && self.ops.is_empty() && self.jobs.is_idle() {
                return;
            }
        }
    }

    /// After a panic: accepts nothing more, and reports it. What is in progress is never answered: its
    /// callbacks are dropped with the driver.
    fn abandon(&mut self) {
        let requests = {
            let mut queue = self.inbox.lock();
            queue.closed = true;
            std::mem::take(&mut queue.requests)
        };
        drop(requests);
        let text = "the thread of the log has panicked";
        (self.listen)(Event::Failed(Fault::new(FaultKind::Other, text)));
    }

    /// Waits for ended disk operations or requests, and handles them.
    fn turn(&mut self) {
        self.jobs.issue();
        let mut ended = self.jobs.next_ended();
        if ended.is_none() && self.inbox.lock().requests.is_empty() {
            self.wait();
            ended = self.jobs.next_ended();
        }
        // Each is answered before the next is handled, and new requests start in between.
        let mut left = ENDED_MAX;
        while let Some(Ended { io, done, landed }) = ended.take() {
            let now = self.now();
            let effects = self.log.apply(Input::Done { io, result: done }, now);
            self.carry_out(effects, landed);
            left -= 1;
            if left > 0 {
                self.take_requests();
                self.jobs.issue();
                ended = self.jobs.next_ended();
            }
        }
        let now = self.now();
        if self.log.next_deadline().is_some_and(|deadline| deadline <= now) {
            let effects = self.log.apply(Input::Tick, now);
            self.carry_out(effects, None);
        }
        *self.inbox.stats.lock().unwrap_or_else(PoisonError::into_inner) = self.log.stats();
    }

    fn wait(&self) {
        let left = self.log.next_deadline().map(|deadline| deadline.saturating_sub(self.now()));
        let closing = self.inbox.lock().closed;
        let left = left.or(closing.then_some(10));
        let timeout =
            left.map(|ms| Timespec { tv_sec: (ms / 1000) as i64, tv_nsec: (ms % 1000 * 1_000_000) as i64 });
        let mut fds = [PollFd::new(&self.inbox.wake, PollFlags::IN)];
        let _ = poll(&mut fds, timeout.as_ref());
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.inbox.wake, &mut count);
    }

    /// True when the log is closed.
    fn take_requests(&mut self) -> bool {
        let (requests, closed) = {
            let mut queue = self.inbox.lock();
            (std::mem::take(&mut queue.requests), queue.closed)
        };
        for Request { input, pieces, reply } in requests {
            let now = self.now();
            let due = |within: Duration| now.saturating_add(within.as_millis() as u64);
            let (op, input) = match input {
                Asked::Append { op, record, sums, within } => {
                    (op, Input::Append { op, record, sums, deadline: due(within) })
                }
                Asked::Read { op, id, span, within, reader } => {
                    if reader != Reader::default() {
                        self.readers.insert(op, reader);
                    }
                    (op, Input::Read { op, id, span, deadline: due(within) })
                }
                Asked::SetAttributes { op, id, attributes, protected, within } => {
                    (op, Input::SetAttributes { op, id, attributes, protected, deadline: due(within) })
                }
                Asked::Forget { op, ids, within } => (op, Input::Forget { op, ids, deadline: due(within) }),
                Asked::Flush { op, within } => (op, Input::Flush { op, deadline: due(within) }),
                Asked::Cancel { op } => (op, Input::Cancel { op }),
            };
            if reply.is_some() {
                self.ops.insert(op, (pieces, reply));
            }
            let effects = self.log.apply(input, now);
            self.carry_out(effects, None);
        }
        closed
    }

    fn carry_out(&mut self, effects: Vec<Effect>, landed: Option<Pieces>) {
        for effect in effects {
            match effect {
                Effect::Write { io, at, parts } => {
                    let sources = parts.into_iter().map(|part| self.source(part)).collect();
                    self.jobs.add(io, Work::Write { at, sources });
                }
                Effect::Sync { io } => self.jobs.add(io, Work::Sync),
                Effect::Read { io, at, len, into } => {
                    let of_op = |op| self.readers.get(op).copied();
                    let reader = if let Into::Op { op, .. } = &into { of_op(op) } else { None };
                    let dest = self.dest(into, len);
                    self.jobs.add_for(io, Work::Read { at, len, dest }, reader.unwrap_or_default());
                }
                Effect::Copy { to, from, .. } => self.copy(landed.as_ref(), to, from),
                Effect::Unstage { stage } => drop(self.stages.remove(&stage)),
                Effect::Answer { op, answer } => {
                    self.readers.remove(&op);
                    if let Some((_, Some(reply))) = self.ops.remove(&op) {
                        reply(answer);
                    }
                }
                Effect::Event(Event::Recovered(recovery)) => self.recovered = Some(Ok(recovery)),
                Effect::Event(Event::Unusable(fault)) => self.recovered = Some(Err(fault)),
                Effect::Event(event) => (self.listen)(event),
            }
        }
    }

    fn pieces(&self, op: OpId, span: Span) -> Pieces {
        // An answered operation has no memory any more: it gets none of its caller.
        let known = self.ops.get(&op).and_then(|(pieces, _)| pieces.as_ref());
        known.map_or_else(|| Pieces::zeroed(span.len), |known| known.part(span.offset, span.len))
    }

    fn source(&self, part: Part) -> Source {
        match part {
            Part::Bytes(bytes) => Source::Bytes(bytes),
            Part::Payload { op, span } => Source::Pieces(self.pieces(op, span)),
            Part::Stage { stage, len } => match self.stages.get(&stage) {
                Some(buffer) => Source::Buffer(Arc::clone(buffer), len),
                None => Source::Zeros(len),
            },
            Part::Zeros(len) => Source::Zeros(len),
        }
    }

    fn dest(&mut self, into: Into, len: u64) -> Dest {
        match into {
            Into::Log => Dest::Log,
            Into::Op { op, span, to, checks } => {
                let pieces = self.pieces(op, Span { offset: to, len: span.len });
                let whole = self.ops.get(&op).and_then(|(whole, _)| whole.clone());
                Dest::Pieces { whole: whole.unwrap_or_else(|| pieces.clone()), pieces, span, checks }
            }
            Into::Stage { stage, checks } => {
                let buffer = Arc::new(Buffer::new(len as usize));
                self.stages.insert(stage, Arc::clone(&buffer));
                Dest::Buffer { buffer, checks }
            }
        }
    }

    fn copy(&self, landed: Option<&Pieces>, to: OpId, from: Span) {
        let Some((landed, (Some(pieces), _))) = landed.zip(self.ops.get(&to)) else { return };
        let mut offset = 0;
        let mut chunk = vec![0; from.len.min(CHUNK_BYTES) as usize];
        while offset < from.len {
            let len = (from.len - offset).min(CHUNK_BYTES) as usize;
            if let Some(chunk) = chunk.get_mut(..len) {
                landed.read(from.offset + offset, chunk);
                pieces.write(offset, chunk);
            }
            offset += len as u64;
        }
    }
}

fn random() -> std::io::Result<u64> {
    use std::io::Read;
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
