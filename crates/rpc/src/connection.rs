//! Many calls at once to one peer.
//!
//! Tasks share one stream: each writes its own frame, and one task reads all replies. A thread that may block
//! has a stream of its own for the call (`lanes`). A call that is dropped or late removes its id, or leaves a
//! function that gets the reply when it comes ([`Connection::call_or`]).

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tiffin_trace::{Kind, Name, Span, TraceContext};
use tiffin_types::RequestId;
use tiffin_types::message::{ClientToMaster, Hello, Reply, RequestRef, Welcome};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::calls::{Calls, Late};
use crate::lanes::{LaneCall, Lanes};
use crate::mailbox::Ticket;
use crate::{Address, Blocking, CallError, Outbox, SendError, Via, blocking, dial, handshake};

/// A connection for calls. Clones share it; it is closed when the last one is dropped.
#[derive(Clone, Debug)]
pub struct Connection {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    address: Address,
    outbox: Outbox,
    next_id: AtomicU64,
    calls: Arc<Calls>,
    lanes: Arc<Lanes>,
}

/// The name of the master in spans.
pub const MASTER_SERVICE: &str = "tiffin.Master";
/// The name of nodes in spans.
pub const NODE_SERVICE: &str = "tiffin.Node";
/// The most late replies at a time. A peer that owes more is disconnected.
const LATE_MAX: usize = 4096;

/// A call in the table, given up when dropped.
struct Call<'a> {
    id: RequestId,
    shared: &'a Shared,
    reply: oneshot::Receiver<Reply>,
    late: Option<Late>,
    /// The peer may delay the reply for long, and receives a cancel when the caller gives up.
    is_cancellable: bool,
}

impl Connection {
    /// Connects and sends the hello. Requests of the peer are refused.
    pub async fn open(
        address: &Address,
        hello: Hello,
        deadline: Instant,
    ) -> Result<(Self, Welcome), CallError> {
        Self::open_by(address, Via::default(), hello, deadline).await
    }

    /// Like [`Self::open`], on this way.
    pub async fn open_by(
        address: &Address,
        via: impl Into<Via>,
        hello: Hello,
        deadline: Instant,
    ) -> Result<(Self, Welcome), CallError> {
        let via = via.into();
        let dialed = dial(address, &via, hello.clone(), deadline).await?;
        let lanes = Lanes::new(address, via, hello, dialed.outbox.clone());
        let calls = Arc::new(Calls::new());
        let (mut inbox, all) = (dialed.inbox, (Arc::clone(&calls), Arc::clone(&lanes)));
        tokio::spawn(async move {
            all.0.read(&mut inbox).await;
            all.1.close();
        });
        let next_id = AtomicU64::new(handshake::HELLO_ID.0 + 1);
        let shared = Shared { address: address.clone(), outbox: dialed.outbox, next_id, calls, lanes };
        Ok((Self { shared: Arc::new(shared) }, dialed.welcome))
    }

    /// Sends a request, and waits for the reply until the deadline. A refusal is an error. When it is first
    /// polled, [`blocking()`] decides whether it uses a lane.
    pub fn call<'a>(
        &'a self,
        request: impl Into<RequestRef<'a>>,
        deadline: Instant,
    ) -> impl Future<Output = Result<Reply, CallError>> + Send + 'a {
        self.call_inner(&[], request.into(), deadline, None)
    }

    /// Like [`Self::call`], for requests whose effect must be undone if no caller learns of it: a reply that
    /// comes after the deadline, or after this future was dropped, goes to `late`. If the connection ends
    /// first, `late` is dropped uncalled.
    pub fn call_or<'a>(
        &'a self,
        request: impl Into<RequestRef<'a>>,
        deadline: Instant,
        late: impl FnOnce(Reply) + Send + 'static,
    ) -> impl Future<Output = Result<Reply, CallError>> + Send + 'a {
        self.call_inner(&[], request.into(), deadline, Some(Box::new(late)))
    }

    /// Like [`Self::call_or`]; the peer receives `before` before the request.
    pub fn call_after<'a>(
        &'a self,
        before: &'a [ClientToMaster],
        request: impl Into<RequestRef<'a>>,
        deadline: Instant,
        late: impl FnOnce(Reply) + Send + 'static,
    ) -> impl Future<Output = Result<Reply, CallError>> + Send + 'a {
        self.call_inner(before, request.into(), deadline, Some(Box::new(late)))
    }

    /// Sends a message without waiting for its reply. A later call on a lane may overtake it.
    pub fn notify<'a>(&self, request: impl Into<RequestRef<'a>>) -> Result<(), SendError> {
        self.shared.outbox.request(self.shared.next_id(), request)
    }

    /// Says goodbye, after all messages sent before. Nothing else may be called meanwhile or afterwards.
    pub async fn goodbye(&self, deadline: Instant) -> Result<(), CallError> {
        self.shared.call(&[], (RequestRef::Goodbye, None), deadline, None).await.map(drop)
    }

    /// Where it was connected to.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.shared.address
    }

    /// Ends the connection: all calls under way fail with `Lost`.
    pub fn close(&self) {
        self.shared.close();
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
        before: &[ClientToMaster],
        request: RequestRef<'_>,
        deadline: Instant,
        late: Option<Late>,
    ) -> Result<Reply, CallError> {
        let mut traced = Traced::begin(request);
        let trace = traced.context.as_ref();
        let lane = if blocking() == Blocking::Never { None } else { self.shared.lanes.begin() };
        let reply = match lane {
            Some(lane) => self.shared.call_on(lane, before, (request, trace), deadline, late).await,
            None => self.shared.call(before, (request, trace), deadline, late).await,
        };
        traced.end(&reply);
        reply
    }
}

/// The span of a call, and the context that its request carries; nothing if the call is not traced.
struct Traced {
    context: Option<TraceContext>,
    span: Option<Span>,
}

impl Traced {
    #[inline]
    fn begin(request: RequestRef<'_>) -> Self {
        if tiffin_trace::is_active() {
            Self::begin_active(request)
        } else {
            Self { context: None, span: None }
        }
    }

    #[cold]
    fn begin_active(request: RequestRef<'_>) -> Self {
        let Some(current) = tiffin_trace::current() else { return Self { context: None, span: None } };
        let service =
            if matches!(request, RequestRef::ClientToNode(_)) { NODE_SERVICE } else { MASTER_SERVICE };
        let name = Name::Request(service, tiffin_proto::request_kind(request).name);
        let span = current.tracer.and_then(|it| it.start(name, Kind::Client, current.context));
        // Without a span of its own, the server's span is a child of the caller's.
        let below = span.as_ref().and_then(Span::current);
        Self { context: Some(below.map_or(current.context, |it| it.context)), span }
    }

    fn end(&mut self, reply: &Result<Reply, CallError>) {
        if let (Some(span), Err(error)) = (&mut self.span, reply) {
            span.fail(error.kind());
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// Calls over the shared connection.
    async fn call(
        &self,
        before: &[ClientToMaster],
        (request, trace): (RequestRef<'_>, Option<&TraceContext>),
        deadline: Instant,
        late: Option<Late>,
    ) -> Result<Reply, CallError> {
        let id = self.next_id();
        let mut frames = Vec::with_capacity(before.len() + 1);
        for it in before {
            frames.push(tiffin_proto::encode_request(self.next_id(), it)?);
        }
        frames.push(tiffin_proto::encode_traced_request(id, request, trace)?);
        let mut call = self.enter(id, late, is_cancellable(request)).ok_or_else(|| self.lost())?;
        let sending = async {
            let mut ticket = None;
            for frame in frames {
                ticket = Some(self.outbox.send_waiting(frame).await?);
            }
            Ok::<_, SendError>(ticket)
        };
        let ticket = match timeout_at(deadline, sending).await {
            Ok(sent) => sent.map_err(|_| self.lost())?,
            Err(_) => {
                // It was not sent, so there will be no reply.
                (call.late, call.is_cancellable) = (None, false);
                return Err(self.timeout(request));
            }
        };
        match timeout_at(deadline, &mut call.reply).await {
            Ok(Ok(reply)) => accepted(reply),
            Ok(Err(_)) => Err(self.lost()),
            Err(_) => {
                ticket.into_iter().for_each(|ticket| self.check_written(ticket));
                Err(self.timeout(request))
            }
        }
    }

    /// Calls on a lane.
    async fn call_on(
        &self,
        mut lane: LaneCall,
        before: &[ClientToMaster],
        (request, trace): (RequestRef<'_>, Option<&TraceContext>),
        deadline: Instant,
        late: Option<Late>,
    ) -> Result<Reply, CallError> {
        let mut frames = Vec::with_capacity(before.len() + 1);
        for it in before {
            frames.push(tiffin_proto::encode_request(lane.next_id(), it)?);
        }
        frames.push(tiffin_proto::encode_traced_request(lane.id(), request, trace)?);
        let sending = async {
            let mut ticket = None;
            for frame in frames {
                ticket = Some(lane.send(frame).await?);
            }
            Ok::<_, SendError>(ticket)
        };
        match timeout_at(deadline, sending).await {
            Ok(Ok(Some(ticket))) => lane.sent(ticket, late, is_cancellable(request)),
            Ok(_) => {
                self.close();
                return Err(self.lost());
            }
            Err(_) => return Err(self.timeout(request)),
        }
        match timeout_at(deadline, lane.reply(deadline)).await {
            Ok(Some(reply)) => accepted(reply),
            Ok(None) => Err(self.lost()),
            Err(_) => Err(self.timeout(request)),
        }
    }

    fn close(&self) {
        self.outbox.close();
        self.lanes.close();
    }

    fn next_id(&self) -> RequestId {
        RequestId::on_lane(0, self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    fn enter(&self, id: RequestId, late: Option<Late>, is_cancellable: bool) -> Option<Call<'_>> {
        let (sender, reply) = oneshot::channel();
        self.calls.table().as_mut()?.calls.insert(id, sender);
        Some(Call { id, shared: self, reply, late, is_cancellable })
    }

    /// Tells the peer that the caller has given up.
    fn cancel(&self, request: RequestId) {
        // If it cannot be sent, the connection has ended, and with it the request.
        let _unsent = self.outbox.request(self.next_id(), &ClientToMaster::Cancel(request));
    }

    /// A peer that did not even read the request would keep all later ones waiting too.
    fn check_written(&self, ticket: Ticket) {
        if !self.outbox.is_written(ticket) {
            self.close();
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

impl Call<'_> {
    /// Removes the call from the table. Returns whether its reply is still to come.
    fn give_up(&mut self) -> bool {
        let mut table = self.shared.calls.table();
        let Some(known) = table.as_mut() else { return false };
        let is_waiting = known.calls.remove(&self.id).is_some();
        let Some(late) = self.late.take() else { return is_waiting };
        if !is_waiting {
            drop(table);
            // The reply was delivered: the caller took it, or it came in the moment that the caller gave up.
            if let Ok(reply) = self.reply.try_recv() {
                late(reply);
            }
            return false;
        }
        known.late.insert(self.id, late);
        if known.late.len() > LATE_MAX {
            drop(table);
            self.shared.close();
        }
        true
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.give_up() && self.is_cancellable {
            self.shared.cancel(self.id);
        }
    }
}

/// Whether the peer may delay the reply to a request for long, and is before when its caller gives up.
fn is_cancellable(request: RequestRef<'_>) -> bool {
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
