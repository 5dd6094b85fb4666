//! Further connections of a client, each for the call of one blocked thread at a time.
//!
//! A thread that may block takes a lane, writes its request there, reads the reply itself, and gives the lane
//! back: the reply crosses no other thread, and threads do not wait for each other. While no lane is idle, a
//! call goes over the shared connection, and one more lane is opened for later calls. A peer may refuse
//! lanes.
//!
//! **Invariant:** a lane ends together with its connection: if one of them breaks, all are closed. That an
//! idle lane is broken is noticed by its next call.
//!
//! **Invariant:** no reply that matters is still to come on an idle lane. A call that is given up leaves its
//! lane to a task, which waits for the reply and then gives the lane back.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tiffin_proto::Incoming;
use tiffin_types::RequestId;
use tiffin_types::message::{ClientToMaster, Hello, Reply, Role};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::calls::{Late, refuse};
use crate::mailbox::{Ended, Ticket};
use crate::spin::Spin;
use crate::{Address, Blocking, Inbox, Outbox, SendError, Via, blocking, dial};

/// The most lanes of one connection. Threads beyond that share the connection.
pub const LANES_MAX: u32 = 16;
/// How long opening a lane may take.
const OPEN_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a thread blocks for a reply. Most come sooner; for the others it waits as a task does, so that
/// it can be cancelled.
const BLOCK_TIME_MAX: Duration = Duration::from_millis(4);

/// The lanes of one connection.
#[derive(Debug)]
pub(crate) struct Lanes {
    address: Address,
    via: Via,
    hello: Hello,
    /// The shared connection.
    shared: Outbox,
    runtime: Handle,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Lane>,
    /// All of them, idle or not.
    open: Vec<Outbox>,
    is_opening: bool,
    /// Opening one failed: no more are opened.
    has_failed: bool,
}

/// A connection for one call at a time.
#[derive(Debug)]
pub(crate) struct Lane {
    number: u32,
    counter: u64,
    outbox: Outbox,
    inbox: Inbox,
    spin: Spin,
}

/// A call on a lane, which is given up when this is dropped.
pub(crate) struct LaneCall {
    lanes: Arc<Lanes>,
    lane: Option<Lane>,
    id: RequestId,
    /// The request, as soon as it is accepted by the outbox.
    sent: Option<Ticket>,
    late: Option<Late>,
    /// The peer may delay the reply for long, and receives a cancel when the caller gives up.
    is_cancellable: bool,
}

impl Lanes {
    pub(crate) fn new(address: &Address, via: Via, hello: Hello, shared: Outbox) -> Arc<Self> {
        let hello = Hello { role: Role::Lane, ..hello };
        let (address, runtime) = (address.clone(), Handle::current());
        Arc::new(Self { address, via, hello, shared, runtime, state: Mutex::default() })
    }

    /// Begins a call on an idle lane. If there is none, one more is opened for later calls.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<LaneCall> {
        let mut lane = self.take()?;
        let id = lane.next_id();
        let lanes = Arc::clone(self);
        Some(LaneCall { lanes, lane: Some(lane), id, sent: None, late: None, is_cancellable: false })
    }

    /// Closes all lanes of a connection that has ended.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        let (idle, open) = (std::mem::take(&mut state.idle), std::mem::take(&mut state.open));
        drop(state);
        open.iter().for_each(Outbox::close);
        drop(idle);
    }

    fn take(self: &Arc<Self>) -> Option<Lane> {
        let mut state = self.lock();
        let lane = state.idle.pop();
        let number = state.open.len() as u32 + 1;
        let may_open = !state.has_failed && !state.is_opening && number <= LANES_MAX;
        if lane.is_none() && may_open && !self.shared.is_closed() {
            state.is_opening = true;
            self.runtime.spawn(Arc::clone(self).open(number));
        }
        lane
    }

    async fn open(self: Arc<Self>, number: u32) {
        let hello = Hello { lane: number, ..self.hello.clone() };
        let dialed = dial(&self.address, &self.via, hello, Instant::now() + OPEN_TIME_MAX).await;
        let mut state = self.lock();
        state.is_opening = false;
        match dialed {
            Ok(_) if self.shared.is_closed() => {}
            Ok(dialed) => {
                let (outbox, mut inbox) = (dialed.outbox, dialed.inbox);
                inbox.unwatch();
                state.open.push(outbox.clone());
                state.idle.push(Lane { number, counter: 0, outbox, inbox, spin: Spin::default() });
            }
            Err(error) => {
                tracing::debug!(address = %self.address, %error, "no lane could be opened");
                state.has_failed = true;
            }
        }
    }

    /// Makes a lane idle again. One of a connection that has ended is closed.
    fn give_back(&self, lane: Lane) {
        let mut state = self.lock();
        if !self.shared.is_closed() {
            state.idle.push(lane);
        }
    }

    /// One lane is broken, and with it the connection.
    fn broke(&self) {
        self.shared.close();
        self.close();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is complete before the next call, so nothing can be half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lane {
    fn next_id(&mut self) -> RequestId {
        self.counter += 1;
        RequestId::on_lane(self.number, self.counter)
    }

    /// Waits for a reply; at first in this thread, if it may block.
    async fn reply(&mut self, id: RequestId, deadline: Instant) -> Result<Reply, Ended> {
        while blocking() == Blocking::Soon {
            next_poll().await;
        }
        if blocking() == Blocking::Now
            && let Some(reply) = self.reply_in_thread(id, deadline)?
        {
            return Ok(reply);
        }
        let reply = self.reply_later(id).await;
        self.inbox.unwatch();
        reply
    }

    /// Blocks this thread for the reply, for a moment.
    fn reply_in_thread(&mut self, id: RequestId, deadline: Instant) -> Result<Option<Reply>, Ended> {
        let until = deadline.min(Instant::now() + BLOCK_TIME_MAX).into_std();
        let spin = &mut self.spin;
        loop {
            if let Some(reply) = reply_to(id, &mut self.inbox)? {
                return Ok(Some(reply));
            }
            match self.inbox.read(|stream, buffer| stream.read_until(buffer, spin, until)) {
                Ok(_) => {}
                Err(Ended::Broken(error)) if error.kind() == io::ErrorKind::TimedOut => return Ok(None),
                Err(ended) => return Err(ended),
            }
        }
    }

    /// Waits for a reply as a task does.
    async fn reply_later(&mut self, id: RequestId) -> Result<Reply, Ended> {
        loop {
            match self.inbox.receive().await? {
                Incoming::Reply(of, reply) if of == id => return Ok(reply),
                Incoming::Reply(..) => {}
                Incoming::Request(id, _) => refuse(&self.outbox, id),
            }
        }
    }
}

/// Ends with the next poll, which needs no wake-up.
async fn next_poll() {
    let mut is_polled = false;
    poll_fn(|_| if std::mem::replace(&mut is_polled, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

/// The reply to a request, if it has been read. Other replies are ignored.
fn reply_to(id: RequestId, inbox: &mut Inbox) -> Result<Option<Reply>, Ended> {
    while let Some(message) = inbox.pop()? {
        match message {
            Incoming::Reply(of, reply) if of == id => return Ok(Some(reply)),
            Incoming::Reply(..) => {}
            Incoming::Request(id, _) => refuse(&inbox.outbox(), id),
        }
    }
    Ok(None)
}

impl LaneCall {
    /// The id of the request.
    pub(crate) fn id(&self) -> RequestId {
        self.id
    }

    /// An id for something that is sent before the request.
    pub(crate) fn next_id(&mut self) -> RequestId {
        self.lane.as_mut().map(Lane::next_id).unwrap_or_default()
    }

    /// Sends a frame; waits while the peer reads nothing.
    pub(crate) async fn send(&mut self, frame: Vec<u8>) -> Result<Ticket, SendError> {
        let outbox = self.lane.as_ref().map(|it| it.outbox.clone()).ok_or(SendError::Closed)?;
        outbox.send_waiting(frame).await
    }

    /// The request was sent: from now on a reply is to come.
    pub(crate) fn sent(&mut self, ticket: Ticket, late: Option<Late>, is_cancellable: bool) {
        (self.sent, self.late, self.is_cancellable) = (Some(ticket), late, is_cancellable);
    }

    /// Waits for the reply. `None` if the connection ended first.
    pub(crate) async fn reply(&mut self, deadline: Instant) -> Option<Reply> {
        let reply = self.lane.as_mut()?.reply(self.id, deadline).await;
        let lane = self.lane.take()?;
        match reply {
            Ok(reply) => {
                self.lanes.give_back(lane);
                Some(reply)
            }
            Err(ended) => {
                lane.inbox.end(&ended);
                self.lanes.broke();
                None
            }
        }
    }
}

impl Drop for LaneCall {
    fn drop(&mut self) {
        let Some(mut lane) = self.lane.take() else { return };
        let Some(ticket) = self.sent else { return self.lanes.give_back(lane) };
        if !lane.outbox.is_written(ticket) {
            // A peer that did not even read the request would keep all later ones waiting too.
            return self.lanes.broke();
        }
        if self.is_cancellable {
            let id = lane.next_id();
            // If it cannot be sent, the connection has ended, and with it the request.
            let _unsent = lane.outbox.request(id, &ClientToMaster::Cancel(self.id));
        }
        let (lanes, id, late) = (Arc::clone(&self.lanes), self.id, self.late.take());
        self.lanes.runtime.spawn(async move {
            match lane.reply_later(id).await {
                Ok(reply) => {
                    lane.inbox.unwatch();
                    lanes.give_back(lane);
                    if let Some(late) = late {
                        late(reply);
                    }
                }
                Err(ended) => {
                    lane.inbox.end(&ended);
                    lanes.broke();
                }
            }
        });
    }
}
