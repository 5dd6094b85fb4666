//! The two ends of one stream: an [`Outbox`] that anybody may send through, an [`Inbox`] that one task
//! receives from.
//!
//! Sending is not async. The frame is written at once, by the sender, if nothing waits before it; what the
//! socket does not take is queued, and a task that lives only as long as the queue writes it.
//!
//! **Invariant:** frames are never mixed: bytes enter the socket under the queue's lock, in the order of the
//! queue. **Invariant:** at most [`OUTBOX_BYTES_MAX`] bytes and one frame wait for a peer. **Invariant:** the
//! side that connected reads while it waits for anything or has said anything; the side that accepted takes
//! nothing in while much waits to go out. So a peer that asks faster than it reads is slowed down and not cut
//! off, and the two never wait for each other.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tiffin_core::RequestId;
use tiffin_core::message::{Reason, Refusal, Reply, RequestRef};
use tiffin_proto::codec::EncodeError;
use tiffin_proto::frame::{self, FrameError, HEADER_BYTES, Header};
use tiffin_proto::{DecodeError, Incoming};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use crate::greet::HELLO_BYTES_MAX;
use crate::watch::{Readable, writable};
use crate::{Peer, Stream};

/// See [`Outbox::hold_much`].
const HELD_BYTES_MAX: usize = 1 << 20;
/// The most bytes that may wait for a peer to read, beside the frame that reaches the limit.
pub const OUTBOX_BYTES_MAX: usize = 128 << 20;
/// While more than this waits to go out, an accepting side takes nothing in.
const BACKLOG_BYTES_MAX: usize = 8 << 20;

/// How much room there is at least for each read.
const READ_BYTES_MIN: usize = 16 << 10;
/// The same before the peer's hello was accepted: some hellos. A long one takes several reads.
const HELLO_READ_BYTES: usize = 1 << 10;
/// A larger buffer is given back when it is empty.
const IDLE_BYTES_MAX: usize = 1 << 20;
/// How many frames are handed to the system at once.
const VECTOR_MAX: usize = 64;
/// While a peer's requests are still being worked off, this much may be gathered before it is sent.
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
    /// Made when somebody waits for something to read.
    readable: Option<Arc<Readable>>,
    /// What came in; the first `taken` bytes are done with.
    buffer: Vec<u8>,
    taken: usize,
    payload_bytes_max: usize,
    side: Side,
}

/// Who opened the connection.
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
    /// No peer would take it.
    #[error(transparent)]
    TooLarge(#[from] EncodeError),
}

/// What [`Inbox::take`] finds.
#[derive(Debug)]
pub enum Taken {
    /// A message.
    Message(Incoming),
    /// Nothing yet.
    Nothing,
    /// Nothing, and nothing more will come.
    End,
}

/// Why there will be no more messages.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    /// Between two messages, as it should be; or this side closed it.
    #[error("it was closed")]
    Closed,
    /// In the middle of a message.
    #[error("it was closed in the middle of a message")]
    Torn,
    /// The system says so.
    #[error("{0}")]
    Broken(#[from] io::Error),
    /// Those were no frames.
    #[error("{0}")]
    Garbage(#[from] FrameError),
    /// It is a frame, but not one for this moment.
    #[error("a message of {0} bytes came where {1} are allowed")]
    TooLong(u32, usize),
}

/// How far the outbox must get until a frame is with the system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket(u64);

#[derive(Debug)]
struct Shared {
    stream: Stream,
    peer: Peer,
    // Guards the order of the bytes in the socket. It is held over one write that does not block and never
    // over an await, hence a std mutex.
    queue: Mutex<Queue>,
    // Somebody may wait for room in the queue, or for its end.
    drained: Notify,
    closed: watch::Sender<bool>,
    // Frames may be sent from threads that know no runtime.
    runtime: Handle,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Vec<u8>>,
    // How much of the first frame is with the system already.
    front_taken: usize,
    bytes: usize,
    // A task is writing, or about to.
    flushing: bool,
    // The inbox has more requests at hand, whose answers may go out together.
    gathering: bool,
    // All bytes that were ever accepted, and ever given to the system.
    accepted: u64,
    written: u64,
}

/// Makes both ends of a stream. Payloads longer than `payload_bytes_max` end it.
///
/// # Panics
///
/// Outside a tokio runtime.
pub(crate) fn split(stream: Stream, side: Side, payload_bytes_max: usize) -> (Outbox, Inbox) {
    let shared = Arc::new(Shared {
        peer: stream.peer(),
        stream,
        queue: Mutex::default(),
        drained: Notify::new(),
        closed: watch::Sender::new(false),
        runtime: Handle::current(),
    });
    let outbox = Outbox { shared: shared.clone() };
    (outbox, Inbox { shared, readable: None, buffer: Vec::new(), taken: 0, payload_bytes_max, side })
}

impl Outbox {
    /// Asks. The caller chooses the id and must not have another request of that id under way.
    pub fn request<'a>(&self, id: RequestId, request: impl Into<RequestRef<'a>>) -> Result<(), SendError> {
        let frame = tiffin_proto::encode_request(id, request)?;
        if self.send(frame) { Ok(()) } else { Err(SendError::Closed) }
    }

    /// Asks at once, and says whether the whole question is where it will reach the peer whatever becomes
    /// of this process: with a peer on this machine, in the socket that only it reads. What waits for a
    /// slow peer, or is still to cross a network, is not.
    pub fn entrust<'a>(&self, id: RequestId, request: impl Into<RequestRef<'a>>) -> Result<bool, SendError> {
        let frame = tiffin_proto::encode_request(id, request)?;
        let is_near = matches!(self.shared.peer, Peer::Unix { .. });
        match self.shared.offer_at_once(frame) {
            Ok(ticket) => Ok(is_near && self.has_passed(ticket)),
            Err(Refused::Closed) => Err(SendError::Closed),
            Err(Refused::Full(_)) => {
                self.cut_off();
                Err(SendError::Closed)
            }
        }
    }

    /// Has the system hold as much as it will before the peer has read it.
    pub fn hold_much(&self) {
        // The system takes less where it is told to. If it refuses, less is held, and more is waited for.
        let _refused = self.shared.stream.hold(HELD_BYTES_MAX);
    }

    /// Answers. If the connection has ended there is nobody to be told; if the answer is too large, the
    /// peer hears that instead.
    pub fn reply(&self, id: RequestId, reply: &Reply) {
        let frame = tiffin_proto::encode_reply(id, reply).or_else(|error| {
            tracing::warn!(peer = %self.shared.peer, %error, "an answer cannot be sent");
            let message = format!("the answer cannot be sent: {error}");
            tiffin_proto::encode_reply(id, &Reply::Refused(Refusal { reason: Reason::Invalid, message }))
        });
        if let Ok(frame) = frame {
            self.send(frame);
        }
    }

    /// What is sent from now on goes out together, with [`Self::send_gathered`].
    pub fn gather(&self) {
        self.shared.lock().gathering = true;
    }

    /// Sends what was gathered.
    pub fn send_gathered(&self) {
        self.shared.send_gathered();
    }

    /// Ends the connection; what is queued is lost. The other side's calls fail, this side's inbox ends.
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

    /// Waits until everything is with the system, or the connection ended, or the deadline has come.
    pub async fn flush(&self, deadline: Instant) {
        let ticket = Ticket(self.shared.lock().accepted);
        let _late = timeout_at(deadline, self.shared.wait_for(|queue| queue.written >= ticket.0)).await;
    }

    /// Who is at the other end.
    #[must_use]
    pub fn peer(&self) -> Peer {
        self.shared.peer
    }

    /// Sends a frame without waiting, and ends the connection of a peer that does not read.
    fn send(&self, frame: Vec<u8>) -> bool {
        match self.shared.offer(frame) {
            Ok(_) => true,
            Err(Refused::Closed) => false,
            Err(Refused::Full(_)) => {
                self.cut_off();
                false
            }
        }
    }

    fn cut_off(&self) {
        let peer = self.shared.peer;
        tracing::warn!(%peer, "cut off: more than {OUTBOX_BYTES_MAX} bytes wait for it");
        self.close();
    }

    /// Sends a frame, and waits for room where there is none.
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

    /// The frame is with the system.
    pub(crate) fn has_passed(&self, ticket: Ticket) -> bool {
        self.shared.lock().written >= ticket.0
    }
}

impl Inbox {
    /// The next message, or nothing when the connection has ended. Losing the future loses no message.
    ///
    /// Requests that nobody here understands are refused from in here; answers that nobody understands
    /// become refusals, so that whoever waits for them hears why.
    pub async fn next(&mut self) -> Option<Incoming> {
        match self.receive().await {
            Ok(message) => Some(message),
            Err(ended) => {
                self.end(&ended);
                None
            }
        }
    }

    /// From now on nobody is woken by what comes in, until somebody waits for it again.
    pub fn unwatch(&mut self) {
        self.readable = None;
    }

    /// The next message, if one has come in. It is read a little at a time, so that others get their turn in
    /// between if the caller lets them.
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

    /// Ends the connection, and has everything that the peer had sent before that: also if it is gone, or
    /// could not be written to any more. What it sends from now on fails on its side.
    pub fn last_words(&mut self) -> Vec<Incoming> {
        self.shared.close();
        let mut words = Vec::new();
        loop {
            while let Ok(Some(message)) = self.decode() {
                words.push(message);
            }
            // There is an end: the socket takes nothing in any more.
            if self.read(Stream::try_read).is_err() {
                return words;
            }
        }
    }

    /// The other end.
    #[must_use]
    pub fn outbox(&self) -> Outbox {
        Outbox { shared: self.shared.clone() }
    }

    /// Who is at the other end.
    #[must_use]
    pub fn peer(&self) -> Peer {
        self.shared.peer
    }

    /// Whether a message has come in part.
    #[must_use]
    pub fn has_part(&self) -> bool {
        self.buffer.len() > self.taken
    }

    /// From now on, payloads may be that long.
    pub(crate) fn allow(&mut self, payload_bytes_max: usize) {
        self.payload_bytes_max = payload_bytes_max;
    }

    pub(crate) async fn receive(&mut self) -> Result<Incoming, Ended> {
        loop {
            if self.side == Side::Accepting {
                self.shared.wait_for(|queue| queue.bytes <= BACKLOG_BYTES_MAX).await;
            }
            if let Some(message) = self.pop()? {
                // The answer to the last of several requests takes those to the others with it.
                self.shared.lock().gathering = self.side == Side::Accepting && self.has_whole();
                return Ok(message);
            }
            // Unless that one has no answer yet.
            self.shared.send_gathered();
            let readable = self.readable()?;
            let mut ready = readable.ready().await?;
            match self.read(Stream::try_read) {
                Ok(true) => ready.clear_ready(),
                Ok(false) => {}
                Err(Ended::Broken(error)) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(ended) => return Err(ended),
            }
        }
    }

    /// The next message that has arrived whole.
    pub(crate) fn pop(&mut self) -> Result<Option<Incoming>, Ended> {
        if *self.shared.closed.borrow() {
            return Err(Ended::Closed);
        }
        self.decode()
    }

    /// The same, whether the connection stands or not.
    fn decode(&mut self) -> Result<Option<Incoming>, Ended> {
        loop {
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
            let decoded = tiffin_proto::decode(&header, payload);
            self.taken += HEADER_BYTES + len;
            if self.taken == self.buffer.len() {
                self.taken = 0;
                self.buffer.clear();
                if self.buffer.capacity() > IDLE_BYTES_MAX {
                    self.buffer = Vec::new();
                }
            }
            match decoded {
                Ok(message) => return Ok(Some(message)),
                Err(error) => {
                    if let Some(message) = self.not_understood(&header, &error) {
                        return Ok(Some(message));
                    }
                }
            }
        }
    }

    /// Takes in what `read` finds; whether that was less than there was room for.
    pub(crate) fn read(
        &mut self,
        read: impl FnOnce(&Stream, &mut Vec<u8>) -> io::Result<usize>,
    ) -> Result<bool, Ended> {
        if self.taken > 0 && self.buffer.capacity() - self.buffer.len() < READ_BYTES_MIN {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        // A peer that was not let in yet gets a small buffer.
        let is_unproven = self.side == Side::Accepting && self.payload_bytes_max <= HELLO_BYTES_MAX;
        self.buffer.reserve(if is_unproven { HELLO_READ_BYTES } else { READ_BYTES_MIN });
        let room = self.buffer.capacity() - self.buffer.len();
        match read(&self.shared.stream, &mut self.buffer) {
            Ok(0) if self.buffer.len() == self.taken => Err(Ended::Closed),
            Ok(0) => Err(Ended::Torn),
            Ok(read) => Ok(read < room),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Who tells when there is something to read.
    fn readable(&mut self) -> io::Result<Arc<Readable>> {
        if let Some(readable) = &self.readable {
            return Ok(Arc::clone(readable));
        }
        let readable = Arc::new(Readable::new(&self.shared.stream)?);
        self.readable = Some(Arc::clone(&readable));
        Ok(readable)
    }

    /// Ends the connection, with a line in the log if the peer is to blame.
    pub(crate) fn end(&self, ended: &Ended) {
        let peer = self.shared.peer;
        match ended {
            Ended::Closed => {}
            Ended::Torn | Ended::Broken(_) => tracing::debug!(%peer, %ended, "the connection broke"),
            Ended::Garbage(_) | Ended::TooLong(..) => tracing::warn!(%peer, %ended, "cut off"),
        }
        self.shared.close();
    }

    /// Another message has arrived whole.
    fn has_whole(&self) -> bool {
        let waiting = self.buffer.get(self.taken..).unwrap_or_default();
        let Some((head, rest)) = waiting.split_first_chunk::<HEADER_BYTES>() else { return false };
        frame::decode_header(head).is_ok_and(|header| rest.len() >= header.len as usize)
    }

    /// Refuses a request; makes a refusal of an answer.
    fn not_understood(&self, header: &Header, error: &DecodeError) -> Option<Incoming> {
        tracing::warn!(peer = %self.shared.peer, %error, "not understood");
        let refusal = Reply::Refused(Refusal { reason: Reason::Invalid, message: error.to_string() });
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

enum Refused {
    Closed,
    Full(Vec<u8>),
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A panic elsewhere leaves the queue as true as it was: nothing in it is half done.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        if !self.closed.send_replace(true) {
            self.stream.shutdown();
            let mut queue = self.lock();
            queue.frames.clear();
            queue.bytes = 0;
        }
        self.drained.notify_waiters();
    }

    /// Waits until the queue is so, or the connection has ended.
    async fn wait_for(&self, is_so: impl Fn(&Queue) -> bool) {
        loop {
            let drained = self.drained.notified();
            if *self.closed.borrow() || is_so(&self.lock()) {
                return;
            }
            drained.await;
        }
    }

    /// Queues a frame and writes as much as the socket takes.
    fn offer(self: &Arc<Self>, frame: Vec<u8>) -> Result<Ticket, Refused> {
        self.push(self.lock(), frame)
    }

    /// The same, and does not wait for what else there will be to send.
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
        queue.accepted += frame.len() as u64;
        queue.bytes += frame.len();
        queue.frames.push_back(frame);
        let ticket = Ticket(queue.accepted);
        if queue.flushing || (queue.gathering && queue.bytes < GATHER_BYTES_MAX) {
            return Ok(ticket);
        }
        if self.write(queue) { Ok(ticket) } else { Err(Refused::Closed) }
    }

    /// Sends what was gathered, if no answer has done that.
    fn send_gathered(self: &Arc<Self>) {
        let mut queue = self.lock();
        queue.gathering = false;
        if !queue.flushing && !queue.frames.is_empty() {
            self.write(queue);
        }
    }

    /// Writes what the socket takes, and leaves the rest to a task; false if the connection is at its end.
    fn write(self: &Arc<Self>, mut queue: MutexGuard<'_, Queue>) -> bool {
        match queue.write(&self.stream) {
            Ok(true) => true,
            Ok(false) => {
                queue.flushing = true;
                self.runtime.spawn(flush(self.clone()));
                true
            }
            Err(_) => {
                drop(queue);
                self.close();
                false
            }
        }
    }
}

/// Writes what is queued until nothing is.
async fn flush(shared: Arc<Shared>) {
    while writable(&shared.stream).await.is_ok() {
        if *shared.closed.borrow() {
            return;
        }
        let mut queue = shared.lock();
        let written = queue.write(&shared.stream);
        queue.flushing = !matches!(written, Ok(true));
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
