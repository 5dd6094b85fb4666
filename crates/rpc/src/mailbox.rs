//! The two ends of one stream: an [`Outbox`] that all tasks may send through, an [`Inbox`] that one
//! task or thread receives from.
//!
//! Sending is not async. The sender writes the frame at once if no other frame is queued; what the socket
//! does not accept is queued, and a task that lives only as long as the queue writes it.
//!
//! **Invariant:** frames are never mixed: bytes enter the socket under the queue's lock, in the order of the
//! queue. **Invariant:** at most [`OUTBOX_BYTES_MAX`] bytes and one frame wait for a peer. **Invariant:** the
//! side that connected reads while a reply is to come; the side that accepted stops reading while much waits
//! to be sent. So a peer that sends requests faster than it reads replies is slowed down and not
//! disconnected, and the two never wait for each other.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tiffin_proto::codec::EncodeError;
use tiffin_proto::frame::{self, FrameError, HEADER_BYTES, Header};
use tiffin_proto::{DecodeError, Incoming};
use tiffin_types::RequestId;
use tiffin_types::message::{Reason, Refusal, Reply, RequestRef};
use tiffin_types::trace::TraceContext;
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, watch};
use tokio::time::{Instant, timeout_at};

use crate::budget::{Budget, RECEIVE_TIME_MAX, SMALL_BYTES_MAX};
use crate::handshake::HELLO_BYTES_MAX;
use crate::log_limit::permits_line;
use crate::secure::linger;
use crate::watch::{Readable, writable};
use crate::{Peer, Stream};

/// See [`Outbox::enlarge_buffer`].
const SEND_BUFFER_BYTES: usize = 1 << 20;
/// The most bytes that may wait for a peer to read, beside the frame that reaches the limit.
pub const OUTBOX_BYTES_MAX: usize = 128 << 20;
/// While more than this waits to be sent, the accepting side does not read.
const BACKLOG_BYTES_MAX: usize = 8 << 20;

/// The least space for each read.
const READ_BYTES_MIN: usize = 16 << 10;
/// The same before the peer's hello was accepted. A long hello takes several reads.
const HELLO_READ_BYTES: usize = 1 << 10;
/// A larger buffer is freed when it is empty.
const IDLE_BYTES_MAX: usize = 1 << 20;
/// The same if the connections of a credential share a budget.
const SHARED_IDLE_BYTES_MAX: usize = 2 * SMALL_BYTES_MAX;
/// How many frames one system call writes.
const VECTOR_MAX: usize = 64;
/// Maximum bytes of replies that are gathered before they are sent, while more requests of the peer have been
/// read.
const GATHER_BYTES_MAX: usize = 64 << 10;

/// Sends messages to one peer. Clones send to the same one.
#[derive(Clone, Debug)]
pub struct Outbox {
    shared: Arc<Shared>,
}

/// Receives the messages of one peer. The connection ends when this is dropped.
#[derive(Debug)]
pub struct Inbox {
    shared: Arc<Shared>,
    /// Made when a task first waits for bytes.
    readable: Option<Arc<Readable>>,
    /// Bytes that were read; the first `taken` are decoded.
    buffer: Vec<u8>,
    taken: usize,
    payload_bytes_max: usize,
    side: Side,
    /// The trace context of the message that was decoded last.
    trace: Option<TraceContext>,
    /// Space in the budget for the large message that is arriving, and when it must have arrived.
    space: Option<(OwnedSemaphorePermit, Instant)>,
    /// The same of the last message, until the next one is awaited.
    handled: Option<(OwnedSemaphorePermit, Instant)>,
    /// How many bytes of a refused message are still to be dropped.
    dropping: usize,
}

/// The side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Dialing,
    Accepting,
}

/// Why a request was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The connection has ended.
    #[error("the connection has ended")]
    Closed,
    /// It exceeds a limit that every peer checks.
    #[error(transparent)]
    TooLarge(#[from] EncodeError),
}

/// The result of [`Inbox::take`].
#[derive(Debug)]
pub enum Taken {
    /// A message.
    Message(Incoming),
    /// Nothing yet.
    Nothing,
    /// The connection has ended.
    End,
}

/// Why there will be no more messages.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    /// Between two messages; or this side closed it.
    #[error("it was closed")]
    Closed,
    /// In the middle of a message.
    #[error("it was closed in the middle of a message")]
    Torn,
    /// The system reports an error.
    #[error("{0}")]
    Broken(#[from] io::Error),
    /// The bytes are not frames.
    #[error("{0}")]
    Garbage(#[from] FrameError),
    /// A frame that is longer than allowed at this moment.
    #[error("a message of {0} bytes came where {1} are allowed")]
    TooLong(u32, usize),
    /// A large message, while others wait for its space.
    #[error("a large message did not arrive in time")]
    Slow,
    /// A request does not decode, and the peer was not welcomed yet.
    #[error("{1}")]
    Nonsense(RequestId, DecodeError),
}

/// The number of bytes after which a frame is completely in the socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket(u64);

#[derive(Debug)]
struct Shared {
    stream: Stream,
    peer: Peer,
    // Guards the order of the bytes in the socket. It is held over one write that does not block and never
    // over an await, hence a std mutex.
    queue: Mutex<Queue>,
    // Wakes the tasks that wait for space in the queue, or for its end.
    drained: Notify,
    closed: watch::Sender<bool>,
    // Set before the peer is welcomed, if its connections share one.
    budget: OnceLock<Arc<Budget>>,
    // Frames may be sent from threads outside the runtime.
    runtime: Handle,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Vec<u8>>,
    // How much of the first frame has been written.
    front_taken: usize,
    bytes: usize,
    // How many of them are charged to the budget.
    charged: usize,
    // A task is writing, or about to.
    flushing: bool,
    // The inbox has more requests, whose replies may be sent together.
    gathering: bool,
    // Bytes that were ever accepted, and ever written.
    accepted: u64,
    written: u64,
}

/// Makes both ends of a stream. Payloads longer than `payload_bytes_max` end it.
///
/// # Panics
///
/// Outside a tokio runtime.
pub(crate) fn split(mut stream: Stream, side: Side, payload_bytes_max: usize) -> (Outbox, Inbox) {
    let buffer = stream.take_early();
    let shared = Arc::new(Shared {
        peer: stream.peer(),
        stream,
        queue: Mutex::default(),
        drained: Notify::new(),
        closed: watch::Sender::new(false),
        budget: OnceLock::new(),
        runtime: Handle::current(),
    });
    let outbox = Outbox { shared: shared.clone() };
    let (readable, trace, space, handled, taken, dropping) = Default::default();
    let inbox =
        Inbox { shared, readable, buffer, taken, payload_bytes_max, side, trace, space, handled, dropping };
    (outbox, inbox)
}

impl Outbox {
    /// Sends a request. The caller chooses the id; no other request in flight may have it.
    pub fn request<'a>(&self, id: RequestId, request: impl Into<RequestRef<'a>>) -> Result<(), SendError> {
        let frame = tiffin_proto::encode_request(id, request)?;
        if self.send(frame) { Ok(()) } else { Err(SendError::Closed) }
    }

    /// Sends a request at once. Returns whether the peer will certainly receive it, even if this process ends
    /// now: the peer is on this host, and the whole frame is in its socket. A frame that is queued, or has to
    /// cross a network, is not certain.
    pub fn send_if_buffered<'a>(
        &self,
        id: RequestId,
        request: impl Into<RequestRef<'a>>,
    ) -> Result<bool, SendError> {
        self.send_frame_if_buffered(tiffin_proto::encode_request(id, request)?)
    }

    /// The same for a request that is encoded already.
    pub fn send_frame_if_buffered(&self, frame: Vec<u8>) -> Result<bool, SendError> {
        let is_near = matches!(self.shared.peer, Peer::Unix { .. });
        match self.shared.offer_at_once(frame) {
            Ok(ticket) => Ok(is_near && self.is_written(ticket)),
            Err(Refused::Closed) => Err(SendError::Closed),
            Err(Refused::Full(_)) => {
                self.disconnect();
                Err(SendError::Closed)
            }
        }
    }

    /// Asks the system for a large buffer in front of the peer.
    pub fn enlarge_buffer(&self) {
        // If the system refuses, the buffer is smaller, and senders wait sooner.
        let _refused = self.shared.stream.set_send_buffer(SEND_BUFFER_BYTES);
    }

    /// Sends a reply. If it is too large, a refusal is sent instead; if the connection has ended, nothing is.
    pub fn reply(&self, id: RequestId, reply: &Reply) {
        let frame = tiffin_proto::encode_reply(id, reply).or_else(|error| {
            tracing::warn!(peer = %self.shared.peer, %error, "a reply cannot be sent");
            let message = format!("the reply cannot be sent: {error}");
            tiffin_proto::encode_reply(id, &Reply::Refused(Refusal { reason: Reason::Invalid, message }))
        });
        if let Ok(frame) = frame {
            self.send(frame);
        }
    }

    /// Frames from now on are sent together, with [`Self::send_gathered`].
    pub fn gather(&self) {
        self.shared.lock().gathering = true;
    }

    /// Sends what was gathered.
    pub fn send_gathered(&self) {
        self.shared.send_gathered();
    }

    /// Ends the connection; queued frames are lost. The peer's calls fail, and this side's inbox ends.
    pub fn close(&self) {
        self.shared.close();
    }

    /// The connection has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        *self.shared.closed.borrow()
    }

    /// Waits until the connection has ended.
    pub async fn closed(&self) {
        // It cannot fail: the sender lives in what is borrowed here.
        let mut closed = self.shared.closed.subscribe();
        let _ended = closed.wait_for(|closed| *closed).await;
    }

    /// Waits until everything is written, or the connection ended, or the deadline has passed.
    pub async fn flush(&self, deadline: Instant) {
        let ticket = Ticket(self.shared.lock().accepted);
        let _late = timeout_at(deadline, self.shared.wait_for(|queue| queue.written >= ticket.0)).await;
    }

    /// The peer.
    #[must_use]
    pub fn peer(&self) -> Peer {
        self.shared.peer
    }

    /// Sends a frame without waiting. Disconnects a peer that does not read.
    fn send(&self, frame: Vec<u8>) -> bool {
        match self.shared.offer(frame) {
            Ok(_) => true,
            Err(Refused::Closed) => false,
            Err(Refused::Full(_)) => {
                self.disconnect();
                false
            }
        }
    }

    fn disconnect(&self) {
        let peer = self.shared.peer;
        tracing::warn!(%peer, "disconnected: more than {OUTBOX_BYTES_MAX} bytes wait for it to read");
        self.close();
    }

    /// Sends a frame; waits while the queue is full.
    pub(crate) async fn send_waiting(&self, mut frame: Vec<u8>) -> Result<Ticket, SendError> {
        loop {
            let drained = self.shared.drained.notified();
            frame = match self.shared.offer(frame) {
                Ok(ticket) => return Ok(ticket),
                Err(Refused::Closed) => return Err(SendError::Closed),
                Err(Refused::Full(frame)) => frame,
            };
            drained.await;
        }
    }

    /// Whether the frame is completely in the socket.
    pub(crate) fn is_written(&self, ticket: Ticket) -> bool {
        self.shared.lock().written >= ticket.0
    }
}

impl Inbox {
    /// The next message, or `None` when the connection has ended. Dropping the future loses no message.
    ///
    /// Requests that do not decode are refused here. Replies that do not decode become refusals, so that
    /// their callers learn why.
    pub async fn next(&mut self) -> Option<Incoming> {
        match self.receive().await {
            Ok(message) => Some(message),
            Err(ended) => {
                self.end(&ended);
                None
            }
        }
    }

    /// The trace context of the request that was received last, if it has one.
    #[must_use]
    pub fn trace(&self) -> Option<TraceContext> {
        self.trace
    }

    /// From now on no task is woken by incoming bytes, until one waits for them again.
    pub fn unwatch(&mut self) {
        self.readable = None;
    }

    /// The next message, if one has arrived. Reads a little at a time, so that others can run in between.
    pub fn take(&mut self) -> Taken {
        loop {
            match self.pop() {
                Ok(Some(message)) => return Taken::Message(message),
                Ok(None) => {}
                Err(_) => return Taken::End,
            }
            match self.read(Stream::try_read_little) {
                Ok(_) => {}
                Err(Ended::Broken(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Taken::Nothing;
                }
                Err(_) => return Taken::End,
            }
        }
    }

    /// Ends the connection, and returns every message that the peer had sent before, also if the peer is
    /// gone. What it sends from now on fails on its side.
    pub fn drain(&mut self) -> Vec<Incoming> {
        self.shared.close();
        let mut messages = Vec::new();
        loop {
            while let Ok(Some(message)) = self.decode() {
                messages.push(message);
            }
            // This ends: the socket receives nothing any more.
            if self.read(Stream::try_read).is_err() {
                return messages;
            }
        }
    }

    /// Drops what the peer still sends, for a moment, so that it reads what was sent to it.
    pub(crate) async fn linger(&mut self) {
        if let Ok(readable) = self.readable() {
            linger(&self.shared.stream, &readable).await;
        }
    }

    /// The sending side of this connection.
    #[must_use]
    pub fn outbox(&self) -> Outbox {
        Outbox { shared: self.shared.clone() }
    }

    /// The peer.
    #[must_use]
    pub fn peer(&self) -> Peer {
        self.shared.peer
    }

    /// Whether a part of a message has arrived.
    #[must_use]
    pub fn has_part(&self) -> bool {
        self.buffer.len() > self.taken
    }

    /// Charges what arrives and what waits to be sent to this budget.
    pub(crate) fn share(&mut self, budget: &Arc<Budget>) {
        // A connection has one credential.
        let _other = self.shared.budget.set(Arc::clone(budget));
    }

    /// Changes the greatest length of payloads.
    pub(crate) fn allow(&mut self, payload_bytes_max: usize) {
        self.payload_bytes_max = payload_bytes_max;
    }

    pub(crate) async fn receive(&mut self) -> Result<Incoming, Ended> {
        self.handled = None;
        loop {
            if self.side == Side::Accepting {
                let backlog = self.shared.wait_for(|queue| queue.bytes <= BACKLOG_BYTES_MAX);
                in_time(self.space.as_ref(), backlog).await?;
            }
            if let Some(message) = self.pop()? {
                self.handled = self.space.take();
                // The replies to several requests are sent together with the last one.
                self.shared.lock().gathering = self.side == Side::Accepting && self.has_whole();
                return Ok(message);
            }
            // The last one may have no reply yet.
            self.shared.send_gathered();
            if let Some(refused) = self.make_space().await? {
                return Ok(refused);
            }
            let readable = self.readable()?;
            let mut ready = in_time(self.space.as_ref(), readable.ready()).await??;
            match self.read(Stream::try_read) {
                Ok(true) => ready.clear_ready(),
                Ok(false) => {}
                Err(Ended::Broken(error)) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(ended) => return Err(ended),
            }
        }
    }

    /// Waits until the budget has space for the message that is arriving, if it is a large one. If there is
    /// none in time, a request is refused here; a reply becomes a refusal, which is returned.
    async fn make_space(&mut self) -> Result<Option<Incoming>, Ended> {
        let Some(budget) = self.shared.budget.get().filter(|_| self.dropping == 0) else { return Ok(None) };
        let waiting = self.buffer.get(self.taken..).unwrap_or_default();
        let Some((head, _)) = waiting.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = frame::decode_header(head)?;
        let bytes = header.len as usize;
        if bytes <= SMALL_BYTES_MAX || self.space.is_some() {
            return Ok(None);
        }
        if let Some(space) = budget.receive(bytes).await {
            self.space = Some((space, Instant::now() + RECEIVE_TIME_MAX));
            return Ok(None);
        }
        self.dropping = HEADER_BYTES + bytes;
        let message = "the large messages of this token's other connections take all the memory for them";
        let message = format!("{message}\n\nhint: try again, send smaller batches, or use fewer connections");
        Ok(self.refuse(&header, Refusal { reason: Reason::Busy, message }))
    }

    /// The next message that has arrived completely.
    pub(crate) fn pop(&mut self) -> Result<Option<Incoming>, Ended> {
        if *self.shared.closed.borrow() {
            return Err(Ended::Closed);
        }
        self.decode()
    }

    /// The same, also after the end of the connection.
    fn decode(&mut self) -> Result<Option<Incoming>, Ended> {
        loop {
            if self.dropping > 0 {
                self.drop_refused();
            }
            let waiting = self.buffer.get(self.taken..).unwrap_or_default();
            let Some((head, rest)) = waiting.split_first_chunk::<HEADER_BYTES>() else {
                frame::check_start(waiting)?;
                return Ok(None);
            };
            let header = frame::decode_header(head)?;
            let len = header.len as usize;
            if len > self.payload_bytes_max {
                return Err(Ended::TooLong(header.len, self.payload_bytes_max));
            }
            let Some(payload) = rest.get(..len) else { return Ok(None) };
            frame::verify(&header, payload)?;
            self.trace = tiffin_proto::trace_of(payload);
            let decoded = tiffin_proto::decode(&header, payload);
            self.take_bytes(HEADER_BYTES + len);
            match decoded {
                Ok(message) => return Ok(Some(message)),
                Err(error) if self.is_unproven() && !header.reply => {
                    return Err(Ended::Nonsense(header.id, error));
                }
                Err(error) => {
                    if let Some(message) = self.refuse_malformed(&header, &error) {
                        return Ok(Some(message));
                    }
                }
            }
        }
    }

    /// So many bytes of the buffer are not needed any more.
    fn take_bytes(&mut self, bytes: usize) {
        self.taken += bytes;
        if self.taken == self.buffer.len() {
            self.taken = 0;
            self.buffer.clear();
            let is_shared = self.shared.budget.get().is_some();
            let idle_max = if is_shared { SHARED_IDLE_BYTES_MAX } else { IDLE_BYTES_MAX };
            if self.buffer.capacity() > idle_max {
                self.buffer = Vec::new();
            }
        }
    }

    /// Drops what has arrived of a refused message.
    fn drop_refused(&mut self) {
        let bytes = self.dropping.min(self.buffer.len() - self.taken);
        self.dropping -= bytes;
        self.take_bytes(bytes);
    }

    /// Reads into the buffer. Returns whether that was less than it had space for.
    pub(crate) fn read(
        &mut self,
        read: impl FnOnce(&Stream, &mut Vec<u8>) -> io::Result<usize>,
    ) -> Result<bool, Ended> {
        if self.taken > 0 && self.buffer.capacity() - self.buffer.len() < READ_BYTES_MIN {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        self.buffer.reserve(if self.is_unproven() { HELLO_READ_BYTES } else { READ_BYTES_MIN });
        let room = self.buffer.capacity() - self.buffer.len();
        match read(&self.shared.stream, &mut self.buffer) {
            Ok(0) if self.buffer.len() == self.taken => Err(Ended::Closed),
            Ok(0) => Err(Ended::Torn),
            Ok(read) => Ok(read < room),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the peer was not welcomed yet: it gets a small buffer, and no second attempt.
    fn is_unproven(&self) -> bool {
        self.side == Side::Accepting && self.payload_bytes_max <= HELLO_BYTES_MAX
    }

    /// Tells when there is something to read.
    fn readable(&mut self) -> io::Result<Arc<Readable>> {
        if let Some(readable) = &self.readable {
            return Ok(Arc::clone(readable));
        }
        let readable = Arc::new(Readable::new(self.shared.stream.socket())?);
        self.readable = Some(Arc::clone(&readable));
        Ok(readable)
    }

    /// Ends the connection, with a line in the log if the peer is at fault.
    pub(crate) fn end(&self, ended: &Ended) {
        let peer = self.shared.peer;
        match ended {
            Ended::Closed => {}
            Ended::Torn | Ended::Broken(_) => tracing::debug!(%peer, %ended, "the connection broke"),
            Ended::Garbage(_) | Ended::TooLong(..) | Ended::Slow | Ended::Nonsense(..) => {
                if permits_line() {
                    tracing::warn!(%peer, %ended, "disconnected");
                }
            }
        }
        self.shared.close();
    }

    /// Whether another message has arrived completely.
    fn has_whole(&self) -> bool {
        let waiting = self.buffer.get(self.taken..).unwrap_or_default();
        let Some((head, rest)) = waiting.split_first_chunk::<HEADER_BYTES>() else { return false };
        frame::decode_header(head).is_ok_and(|header| rest.len() >= header.len as usize)
    }

    /// Refuses a request; turns a reply into a refusal.
    fn refuse_malformed(&self, header: &Header, error: &DecodeError) -> Option<Incoming> {
        if permits_line() {
            tracing::warn!(peer = %self.shared.peer, %error, "a message does not decode");
        }
        self.refuse(header, Refusal { reason: Reason::Invalid, message: error.to_string() })
    }

    fn refuse(&self, header: &Header, refusal: Refusal) -> Option<Incoming> {
        let refusal = Reply::Refused(refusal);
        if header.reply {
            return Some(Incoming::Reply(header.id, refusal));
        }
        self.outbox().reply(header.id, &refusal);
        None
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// Waits for something, but not beyond the time in which a large message must arrive.
async fn in_time<T>(
    space: Option<&(OwnedSemaphorePermit, Instant)>,
    wait: impl Future<Output = T>,
) -> Result<T, Ended> {
    match space {
        None => Ok(wait.await),
        Some((_, until)) => timeout_at(*until, wait).await.map_err(|_| Ended::Slow),
    }
}

enum Refused {
    Closed,
    Full(Vec<u8>),
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A panic elsewhere leaves the queue valid: nothing in it is half done.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        if !self.closed.send_replace(true) {
            self.stream.shutdown();
            let mut queue = self.lock();
            queue.frames.clear();
            queue.bytes = 0;
            self.charge(&mut queue);
        }
        self.drained.notify_waiters();
    }

    /// Waits until the queue fulfils a condition, or the connection has ended.
    async fn wait_for(&self, is_met: impl Fn(&Queue) -> bool) {
        loop {
            let drained = self.drained.notified();
            if *self.closed.borrow() || is_met(&self.lock()) {
                return;
            }
            drained.await;
        }
    }

    /// Queues a frame and writes as much as the socket accepts.
    fn offer(self: &Arc<Self>, frame: Vec<u8>) -> Result<Ticket, Refused> {
        self.push(self.lock(), frame)
    }

    /// The same, without gathering.
    fn offer_at_once(self: &Arc<Self>, frame: Vec<u8>) -> Result<Ticket, Refused> {
        let mut queue = self.lock();
        queue.gathering = false;
        self.push(queue, frame)
    }

    fn push(self: &Arc<Self>, mut queue: MutexGuard<'_, Queue>, frame: Vec<u8>) -> Result<Ticket, Refused> {
        if *self.closed.borrow() {
            return Err(Refused::Closed);
        }
        if queue.bytes > OUTBOX_BYTES_MAX || (queue.bytes > 0 && queue.bytes + frame.len() > OUTBOX_BYTES_MAX)
        {
            return Err(Refused::Full(frame));
        }
        // Under the lock of the queue, so that records are sent in their order.
        let Ok(frame) = self.stream.seal(frame) else {
            drop(queue);
            self.close();
            return Err(Refused::Closed);
        };
        queue.accepted += frame.len() as u64;
        queue.bytes += frame.len();
        queue.frames.push_back(frame);
        let ticket = Ticket(queue.accepted);
        if !queue.flushing && queue.gathering && queue.bytes < GATHER_BYTES_MAX {
            return Ok(ticket);
        }
        if queue.flushing {
            return if self.keep(queue) { Ok(ticket) } else { Err(Refused::Closed) };
        }
        if self.write(queue) { Ok(ticket) } else { Err(Refused::Closed) }
    }

    /// Charges what waits to be sent. Returns whether the budget has space for it.
    fn charge(&self, queue: &mut Queue) -> bool {
        let Some(budget) = self.budget.get() else { return true };
        let before = std::mem::replace(&mut queue.charged, queue.bytes);
        budget.send(before, queue.bytes)
    }

    /// The same, and ends the connection if it has none.
    fn keep(&self, mut queue: MutexGuard<'_, Queue>) -> bool {
        let may = self.charge(&mut queue);
        drop(queue);
        if !may {
            if permits_line() {
                let peer = self.peer;
                let why = "too many bytes wait for the clients of its token to read";
                tracing::warn!(%peer, "disconnected: {why}");
            }
            self.close();
        }
        may
    }

    /// Sends what was gathered, if no reply has done that.
    fn send_gathered(self: &Arc<Self>) {
        let mut queue = self.lock();
        queue.gathering = false;
        if !queue.flushing && !queue.frames.is_empty() {
            self.write(queue);
        }
    }

    /// Writes what the socket accepts, and leaves the rest to a task; false if the connection has ended.
    fn write(self: &Arc<Self>, mut queue: MutexGuard<'_, Queue>) -> bool {
        match queue.write(&self.stream) {
            Ok(true) => true,
            Ok(false) => {
                queue.flushing = true;
                self.runtime.spawn(flush(self.clone()));
                self.keep(queue)
            }
            Err(_) => {
                drop(queue);
                self.close();
                false
            }
        }
    }
}

/// Writes until the queue is empty.
async fn flush(shared: Arc<Shared>) {
    while writable(shared.stream.socket()).await.is_ok() {
        if *shared.closed.borrow() {
            return;
        }
        let mut queue = shared.lock();
        let written = queue.write(&shared.stream);
        queue.flushing = !matches!(written, Ok(true));
        shared.charge(&mut queue);
        drop(queue);
        shared.drained.notify_waiters();
        match written {
            Ok(true) => return,
            Ok(false) => {}
            Err(_) => break,
        }
    }
    shared.close();
}

impl Queue {
    /// Writes until the queue is empty (true) or the socket is full (false).
    fn write(&mut self, stream: &Stream) -> io::Result<bool> {
        while !self.frames.is_empty() {
            let mut skip = self.front_taken;
            let mut slices = Vec::with_capacity(VECTOR_MAX.min(self.frames.len()));
            for frame in self.frames.iter().take(VECTOR_MAX) {
                slices.push(IoSlice::new(frame.get(std::mem::take(&mut skip)..).unwrap_or_default()));
            }
            let mut taken = match stream.try_write(&slices) {
                Ok(taken) => taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.bytes -= taken;
            self.written += taken as u64;
            while let Some(front) = self.frames.front() {
                let rest = front.len() - self.front_taken;
                if taken < rest {
                    self.front_taken += taken;
                    break;
                }
                taken -= rest;
                self.frames.pop_front();
                self.front_taken = 0;
            }
        }
        Ok(true)
    }
}
