//! Many calls at once over one stream.
//!
//! A caller writes its own frame and then waits for its answer: a task in the runtime, a thread at the stream
//! itself (`desk` says how the two get along). A call that is dropped or late takes its id with it, or leaves
//! there what is to be done with the answer when it comes ([`Connection::call_or`]).

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tiffin_core::RequestId;
use tiffin_core::message::{Hello, Reply, Request, Welcome};
use tokio::runtime::Handle;
use tokio::sync::oneshot::error::RecvError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::desk::{Asked, Desk, Late, Slot, Table, Waited};
use crate::link::Ticket;
use crate::{Address, CallError, Dialed, Outbox, Reach, SendError, Waiting, dial, greet, waiting};

/// How long a thread that may wait does so in the socket. Most answers come sooner; for the others it waits
/// as a task does, and can be interrupted.
const LINGER_TIME_MAX: Duration = Duration::from_millis(4);

/// A connection for calls. Clones call over the same stream, which is closed when the last one is dropped.
#[derive(Clone, Debug)]
pub struct Connection {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    address: Address,
    outbox: Outbox,
    next_id: AtomicU64,
    desk: Arc<Desk>,
    // A thread that finds no room in the outbox waits with its help.
    runtime: Handle,
}

/// The most answers that may be late at a time. A peer that owes more is cut off.
const LATE_MAX: usize = 4096;

/// A place in the table, given up when dropped.
struct Place<'a> {
    id: RequestId,
    shared: &'a Shared,
    answer: oneshot::Receiver<Reply>,
    late: Option<Late>,
    /// The peer may keep this request waiting for long, and should know when nobody waits any more.
    lingers: bool,
}

/// A question that reaches the peer on another way than this connection, and is answered on it.
pub struct Prepared<'a> {
    place: Place<'a>,
    frame: Vec<u8>,
    what: &'static str,
}

/// The number of the next question that goes another way. They are numbered through all connections of this
/// process: one that the peer takes for a question of a later connection, and answers there, is nobody's.
static NEXT_PREPARED: AtomicU64 = AtomicU64::new(1 << 63);

/// The same for a thread.
struct ThreadPlace<'a> {
    id: RequestId,
    shared: &'a Shared,
    slot: Arc<Slot>,
    late: Option<Late>,
    lingers: bool,
}

impl Connection {
    /// Connects and says hello. Requests of the peer are refused.
    pub async fn open(
        address: &Address,
        hello: Hello,
        deadline: Instant,
    ) -> Result<(Self, Welcome), CallError> {
        Self::open_by(address, Reach::Far, hello, deadline).await
    }

    /// Like [`Self::open`], on the shortest way if `reach` says so.
    pub async fn open_by(
        address: &Address,
        reach: Reach,
        hello: Hello,
        deadline: Instant,
    ) -> Result<(Self, Welcome), CallError> {
        Ok(Self::begin(address, dial(address, reach, hello, deadline).await?, None))
    }

    /// Connects and says hello. Requests of the peer go to `incoming`, to be answered with
    /// [`Self::reply`]; they are refused as `Busy` while there is no room in it.
    pub async fn open_with(
        address: &Address,
        hello: Hello,
        deadline: Instant,
        incoming: mpsc::Sender<(RequestId, Request)>,
    ) -> Result<(Self, Welcome), CallError> {
        Ok(Self::begin(address, dial(address, Reach::Far, hello, deadline).await?, Some(incoming)))
    }

    /// Asks, and waits for the answer until the deadline. A refusal is an error.
    pub async fn call(&self, request: &Request, deadline: Instant) -> Result<Reply, CallError> {
        self.call_inner(request, deadline, None).await
    }

    /// Like [`Self::call`], for requests whose effect must be undone if nobody hears of it: an answer that
    /// comes after the deadline, or after this future was dropped, is handed to `late`. If the connection
    /// ends first, `late` is dropped uncalled.
    pub async fn call_or(
        &self,
        request: &Request,
        deadline: Instant,
        late: impl FnOnce(Reply) + Send + 'static,
    ) -> Result<Reply, CallError> {
        self.call_inner(request, deadline, Some(Box::new(late))).await
    }

    /// Like [`Self::call`], from a thread that may wait: it writes to the socket and reads from it itself,
    /// which is the shortest way to an answer. Tasks and any number of threads may call at the same time.
    ///
    /// It must not be called from a task: it would hold up all others of its runtime.
    pub fn call_blocking(&self, request: &Request, deadline: Instant) -> Result<Reply, CallError> {
        self.call_blocking_inner(request, deadline, None)
    }

    /// Like [`Self::call_or`], from a thread that may wait.
    pub fn call_blocking_or(
        &self,
        request: &Request,
        deadline: Instant,
        late: impl FnOnce(Reply) + Send + 'static,
    ) -> Result<Reply, CallError> {
        self.call_blocking_inner(request, deadline, Some(Box::new(late)))
    }

    /// Makes a question that the caller brings to the peer on another way, which hands it on as if it had
    /// come on this connection. The answer comes on this one.
    pub fn prepare(&self, request: &Request) -> Result<Prepared<'_>, CallError> {
        let shared = &*self.shared;
        let id = RequestId(NEXT_PREPARED.fetch_add(1, Ordering::Relaxed));
        let frame = tiffin_proto::encode_request(id, request)?;
        let place =
            shared.enter(id, None, false).filter(|_| !self.is_closed()).ok_or_else(|| shared.lost())?;
        Ok(Prepared { place, frame, what: tiffin_proto::request_kind(request).name })
    }

    /// Says something whose answer matters to nobody. It is heard before what is sent later.
    pub fn tell(&self, request: &Request) -> Result<(), SendError> {
        let id = self.shared.next_id();
        self.shared.desk.table().as_mut().ok_or(SendError::Closed)?.told.insert(id);
        let sent = self.shared.outbox.request(id, request);
        match sent {
            Ok(()) => self.shared.desk.attend(),
            Err(_) => drop(self.shared.desk.table().as_mut().map(|it| it.told.remove(&id))),
        }
        sent
    }

    /// Answers a request that came through the channel given to [`Self::open_with`].
    pub fn reply(&self, id: RequestId, reply: &Reply) {
        self.shared.outbox.reply(id, reply);
    }

    /// Where it was connected to.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.shared.address
    }

    /// Ends the connection: all calls under way fail with `Lost`.
    pub fn close(&self) {
        self.shared.outbox.close();
    }

    /// It has ended: calls fail at once.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.outbox.is_closed()
    }

    /// Waits until it has ended.
    pub async fn closed(&self) {
        self.shared.outbox.closed().await;
    }

    async fn call_inner(
        &self,
        request: &Request,
        deadline: Instant,
        late: Option<Late>,
    ) -> Result<Reply, CallError> {
        let shared = &*self.shared;
        let id = shared.next_id();
        let frame = tiffin_proto::encode_request(id, request)?;
        let mut place = shared.enter(id, late, lingers(request)).ok_or_else(|| shared.lost())?;
        let ticket = match timeout_at(deadline, shared.outbox.send_waiting(frame)).await {
            Ok(sent) => sent.map_err(|_| shared.lost())?,
            Err(_) => {
                // It was not sent, so there will be no answer.
                (place.late, place.lingers) = (None, false);
                return Err(shared.timeout(request));
            }
        };
        match timeout_at(deadline, shared.answer(&mut place, deadline)).await {
            Ok(Ok(reply)) => accepted(reply),
            Ok(Err(_)) => Err(shared.lost()),
            Err(_) => {
                shared.check_passed(ticket);
                Err(shared.timeout(request))
            }
        }
    }

    fn call_blocking_inner(
        &self,
        request: &Request,
        deadline: Instant,
        late: Option<Late>,
    ) -> Result<Reply, CallError> {
        let shared = &*self.shared;
        let id = shared.next_id();
        let frame = tiffin_proto::encode_request(id, request)?;
        let slot = Arc::new(Slot::default());
        let mut place = shared.enter_thread(id, late, Arc::clone(&slot)).ok_or_else(|| shared.lost())?;
        place.lingers = lingers(request);
        let ticket = match shared.outbox.try_send(frame) {
            Ok(ticket) => ticket,
            Err(None) => return Err(shared.lost()),
            Err(Some(frame)) => {
                let sending = timeout_at(deadline, shared.outbox.send_waiting(frame));
                match shared.runtime.block_on(sending) {
                    Ok(sent) => sent.map_err(|_| shared.lost())?,
                    Err(_) => {
                        // It was not sent, so there will be no answer.
                        (place.late, place.lingers) = (None, false);
                        return Err(shared.timeout(request));
                    }
                }
            }
        };
        match shared.desk.wait(&slot, deadline.into_std()) {
            Waited::Answered(reply) => accepted(reply),
            Waited::Ended => Err(shared.lost()),
            Waited::TimedOut => {
                shared.check_passed(ticket);
                Err(shared.timeout(request))
            }
        }
    }

    fn begin(address: &Address, dialed: Dialed, incoming: Option<Asked>) -> (Self, Welcome) {
        let Dialed { welcome, outbox, inbox } = dialed;
        let desk = Desk::new(inbox, incoming);
        tokio::spawn(Arc::clone(&desk).watch());
        let next_id = AtomicU64::new(greet::HELLO_ID.0 + 1);
        let shared = Shared { address: address.clone(), outbox, next_id, desk, runtime: Handle::current() };
        (Self { shared: Arc::new(shared) }, welcome)
    }
}

impl Prepared<'_> {
    /// What is to be brought to the peer.
    #[must_use]
    pub fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// Waits for the answer until the deadline. A refusal is an error.
    pub async fn answer(mut self, deadline: Instant) -> Result<Reply, CallError> {
        let shared = self.place.shared;
        match timeout_at(deadline, shared.answer(&mut self.place, deadline)).await {
            Ok(Ok(reply)) => accepted(reply),
            Ok(Err(_)) => Err(shared.lost()),
            Err(_) => Err(CallError::Timeout { address: shared.address.clone(), what: self.what }),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.outbox.close();
    }
}

impl Shared {
    fn next_id(&self) -> RequestId {
        RequestId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Waits for the answer: in this thread if it may, which then reads it, else until the runtime has.
    async fn answer(&self, place: &mut Place<'_>, deadline: Instant) -> Result<Reply, RecvError> {
        let mut is_seen_to = false;
        poll_fn(|context| {
            let how = if is_seen_to { Waiting::Soon } else { waiting() };
            is_seen_to |= how != Waiting::Soon;
            match how {
                Waiting::Now => {
                    let until = deadline.min(Instant::now() + LINGER_TIME_MAX).into_std();
                    self.desk.linger(until, || !place.answer.is_empty());
                }
                Waiting::Never => self.desk.attend(),
                Waiting::Soon => {}
            }
            Pin::new(&mut place.answer).poll(context)
        })
        .await
    }

    fn enter(&self, id: RequestId, late: Option<Late>, lingers: bool) -> Option<Place<'_>> {
        let (sender, answer) = oneshot::channel();
        self.desk.table().as_mut()?.tasks.insert(id, sender);
        Some(Place { id, shared: self, answer, late, lingers })
    }

    /// Tells the peer that nobody waits for an answer any more.
    fn cancel(&self, request: RequestId) {
        // If it cannot be said the connection is at its end, and with it the waiting.
        let _unsaid = self.outbox.request(self.next_id(), &Request::Cancel(request));
    }

    fn enter_thread(&self, id: RequestId, late: Option<Late>, slot: Arc<Slot>) -> Option<ThreadPlace<'_>> {
        self.desk.table().as_mut()?.threads.insert(id, Arc::clone(&slot));
        Some(ThreadPlace { id, shared: self, slot, late, lingers: false })
    }

    /// A peer that did not even take the request in would keep all later ones waiting too.
    fn check_passed(&self, ticket: Ticket) {
        if !self.outbox.has_passed(ticket) {
            self.outbox.close();
        }
    }

    fn lost(&self) -> CallError {
        CallError::Lost { address: self.address.clone() }
    }

    fn timeout(&self, request: &Request) -> CallError {
        let what = tiffin_proto::request_kind(request).name;
        CallError::Timeout { address: self.address.clone(), what }
    }

    /// Gives up a place: `remove` takes it out of the table and says whether it was there, `answer` finds an
    /// answer that was delivered already: to a caller that took it, or in the moment that it gave up. Says
    /// whether the answer is still to come.
    fn give_up(
        &self,
        id: RequestId,
        late: Option<Late>,
        remove: impl FnOnce(&mut Table) -> bool,
        answer: impl FnOnce() -> Option<Reply>,
    ) -> bool {
        let mut table = self.desk.table();
        let Some(known) = table.as_mut() else { return false };
        let is_waiting = remove(known);
        let Some(late) = late else { return is_waiting };
        if !is_waiting {
            drop(table);
            if let Some(reply) = answer() {
                late(reply);
            }
            return false;
        }
        known.late.insert(id, late);
        if known.late.len() > LATE_MAX {
            drop(table);
            self.outbox.close();
        }
        true
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let (id, late) = (self.id, self.late.take());
        let remove = |table: &mut Table| table.tasks.remove(&id).is_some();
        let was_waiting = self.shared.give_up(id, late, remove, || self.answer.try_recv().ok());
        if was_waiting && self.lingers {
            self.shared.cancel(id);
        }
        if was_waiting {
            // Its thread may have meant to read the answer, which may have to be undone.
            self.shared.desk.attend();
        }
    }
}

impl Drop for ThreadPlace<'_> {
    fn drop(&mut self) {
        let (id, late) = (self.id, self.late.take());
        let remove = |table: &mut Table| table.threads.remove(&id).is_some();
        let was_waiting = self.shared.give_up(id, late, remove, || self.slot.take());
        if was_waiting && self.lingers {
            self.shared.cancel(id);
        }
        // The seat may have been left to this thread, which does not want it any more.
        self.shared.desk.leave();
    }
}

/// Whether the peer may keep a request waiting for long, and should know when nobody waits for it any more.
fn lingers(request: &Request) -> bool {
    matches!(request, Request::Reserve(_) | Request::Await(_))
}

/// A refusal is an error.
fn accepted(reply: Reply) -> Result<Reply, CallError> {
    match reply {
        Reply::Refused(refusal) => Err(CallError::Refused(refusal)),
        reply => Ok(reply),
    }
}
