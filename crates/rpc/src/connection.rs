//! Many calls at once over one stream.
//!
//! A caller writes its own frame and then waits for its answer: in the runtime, or in a thread that reads
//! the stream itself ([`Waiting`]; `reader` says how the two share it). A call that is dropped or late
//! removes its id, or leaves a function that gets the answer when it comes ([`Connection::call_or`]).

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tiffin_core::RequestId;
use tiffin_core::message::{ClientToMaster, Hello, Reply, RequestRef, Welcome};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;
use tokio::time::{Instant, timeout_at};

use crate::link::Ticket;
use crate::reader::{Late, SharedReader};
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
    reader: Arc<SharedReader>,
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

impl Connection {
    /// Connects and sends the hello. Requests of the peer are refused.
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
        Ok(Self::begin(address, dial(address, reach, hello, deadline).await?))
    }

    /// Asks, and waits for the answer until the deadline. A refusal is an error.
    pub fn call<'a>(
        &'a self,
        request: impl Into<RequestRef<'a>>,
        deadline: Instant,
    ) -> impl Future<Output = Result<Reply, CallError>> + Send + 'a {
        self.call_inner(request.into(), deadline, None)
    }

    /// Like [`Self::call`], for requests whose effect must be undone if nobody hears of it: an answer that
    /// comes after the deadline, or after this future was dropped, is handed to `late`. If the connection
    /// ends first, `late` is dropped uncalled.
    pub fn call_or<'a>(
        &'a self,
        request: impl Into<RequestRef<'a>>,
        deadline: Instant,
        late: impl FnOnce(Reply) + Send + 'static,
    ) -> impl Future<Output = Result<Reply, CallError>> + Send + 'a {
        self.call_inner(request.into(), deadline, Some(Box::new(late)))
    }

    /// Says something whose answer matters to nobody. It is heard before what is sent later.
    pub fn tell<'a>(&self, request: impl Into<RequestRef<'a>>) -> Result<(), SendError> {
        let id = self.shared.next_id();
        self.shared.reader.table().as_mut().ok_or(SendError::Closed)?.told.insert(id);
        let sent = self.shared.outbox.request(id, request);
        match sent {
            Ok(()) => self.shared.reader.attend(),
            Err(_) => drop(self.shared.reader.table().as_mut().map(|it| it.told.remove(&id))),
        }
        sent
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
        request: RequestRef<'_>,
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

    fn begin(address: &Address, dialed: Dialed) -> (Self, Welcome) {
        let Dialed { welcome, outbox, inbox } = dialed;
        let reader = SharedReader::new(inbox);
        tokio::spawn(Arc::clone(&reader).watch());
        let next_id = AtomicU64::new(greet::HELLO_ID.0 + 1);
        let shared = Shared { address: address.clone(), outbox, next_id, reader };
        (Self { shared: Arc::new(shared) }, welcome)
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
                    self.reader.linger(until, || !place.answer.is_empty());
                }
                Waiting::Never => self.reader.attend(),
                Waiting::Soon => {}
            }
            Pin::new(&mut place.answer).poll(context)
        })
        .await
    }

    fn enter(&self, id: RequestId, late: Option<Late>, lingers: bool) -> Option<Place<'_>> {
        let (sender, answer) = oneshot::channel();
        self.reader.table().as_mut()?.calls.insert(id, sender);
        Some(Place { id, shared: self, answer, late, lingers })
    }

    /// Tells the peer that nobody waits for an answer any more.
    fn cancel(&self, request: RequestId) {
        // If it cannot be said the connection is at its end, and with it the waiting.
        let _unsaid = self.outbox.request(self.next_id(), &ClientToMaster::Cancel(request));
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

    fn timeout(&self, request: RequestRef<'_>) -> CallError {
        let what = tiffin_proto::request_kind(request).name;
        CallError::Timeout { address: self.address.clone(), what }
    }
}

impl Place<'_> {
    /// Removes the call from the table. Returns whether its answer is still to come.
    fn give_up(&mut self) -> bool {
        let mut table = self.shared.reader.table();
        let Some(known) = table.as_mut() else { return false };
        let is_waiting = known.calls.remove(&self.id).is_some();
        let Some(late) = self.late.take() else { return is_waiting };
        if !is_waiting {
            drop(table);
            // The answer was delivered: the caller took it, or it came in the moment that the caller gave up.
            if let Ok(reply) = self.answer.try_recv() {
                late(reply);
            }
            return false;
        }
        known.late.insert(self.id, late);
        if known.late.len() > LATE_MAX {
            drop(table);
            self.shared.outbox.close();
        }
        true
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.give_up() {
            return;
        }
        if self.lingers {
            self.shared.cancel(self.id);
        }
        // The thread of this call may have meant to read the answer, whose effect may have to be undone.
        self.shared.reader.attend();
    }
}

/// Whether the peer may keep a request waiting for long, and should be told when its caller gives up.
fn lingers(request: RequestRef<'_>) -> bool {
    use ClientToMaster::{Await, Reserve};
    matches!(request, RequestRef::ClientToMaster(Reserve(_) | Await(_)))
}

/// A refusal is an error.
fn accepted(reply: Reply) -> Result<Reply, CallError> {
    match reply {
        Reply::Refused(refusal) => Err(CallError::Refused(refusal)),
        reply => Ok(reply),
    }
}
