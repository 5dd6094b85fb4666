//! Many calls at once over one stream.
//!
//! A caller writes its own frame and then waits for its answer; one task per connection reads the answers
//! and hands them to whoever waits for that id.
//!
//! **Invariant:** an id is in the table exactly as long as somebody cares for the answer: a call that is
//! dropped or late takes its id with it, or leaves there what is to be done with the answer when it comes
//! ([`Connection::call_or`]). An answer to nobody is ignored.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tiffin_core::RequestId;
use tiffin_core::message::{Hello, Reason, Refusal, Reply, Request, Welcome};
use tiffin_proto::Incoming;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::{Address, CallError, Dialed, Inbox, Outbox, dial, greet};

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
    waiting: Arc<Waiting>,
}

/// The most answers that may be late at a time. A peer that owes more is cut off.
const LATE_MAX: usize = 4096;

/// What to do with an answer that came after its call was given up.
type Late = Box<dyn FnOnce(Reply) + Send>;

/// Who waits for which answer; nothing when there will be no more answers. The lock is held for one look
/// into the table.
#[derive(Debug)]
struct Waiting(Mutex<Option<Table>>);

#[derive(Default)]
struct Table {
    callers: BTreeMap<RequestId, oneshot::Sender<Reply>>,
    /// Calls that were given up, but whose answers matter.
    late: BTreeMap<RequestId, Late>,
}

/// A place in the table, given up when dropped.
struct Place<'a> {
    id: RequestId,
    shared: &'a Shared,
    answer: oneshot::Receiver<Reply>,
    late: Option<Late>,
}

impl Connection {
    /// Connects and says hello. Requests of the peer are refused.
    pub async fn open(
        address: &Address,
        hello: Hello,
        deadline: Instant,
    ) -> Result<(Self, Welcome), CallError> {
        Self::open_inner(address, hello, deadline, None).await
    }

    /// Connects and says hello. Requests of the peer go to `incoming`, to be answered with
    /// [`Self::reply`]; they are refused as `Busy` while there is no room in it.
    pub async fn open_with(
        address: &Address,
        hello: Hello,
        deadline: Instant,
        incoming: mpsc::Sender<(RequestId, Request)>,
    ) -> Result<(Self, Welcome), CallError> {
        Self::open_inner(address, hello, deadline, Some(incoming)).await
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
        let lost = || CallError::Lost { address: shared.address.clone() };
        let timeout = || {
            let what = tiffin_proto::request_kind(request).name;
            CallError::Timeout { address: shared.address.clone(), what }
        };
        let id = RequestId(shared.next_id.fetch_add(1, Ordering::Relaxed));
        let frame = tiffin_proto::encode_request(id, request)?;
        let mut place = shared.enter(id, late).ok_or_else(lost)?;
        let ticket = match timeout_at(deadline, shared.outbox.send_waiting(frame)).await {
            Ok(sent) => sent.map_err(|_| lost())?,
            Err(_) => {
                // It was not sent, so there will be no answer.
                place.late = None;
                return Err(timeout());
            }
        };
        match timeout_at(deadline, &mut place.answer).await {
            Ok(Ok(Reply::Refused(refusal))) => Err(CallError::Refused(refusal)),
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(_)) => Err(lost()),
            Err(_) => {
                // A peer that did not even take the request in would keep all later ones waiting too.
                if !shared.outbox.has_passed(ticket) {
                    shared.outbox.close();
                }
                Err(timeout())
            }
        }
    }

    async fn open_inner(
        address: &Address,
        hello: Hello,
        deadline: Instant,
        incoming: Option<mpsc::Sender<(RequestId, Request)>>,
    ) -> Result<(Self, Welcome), CallError> {
        let Dialed { welcome, outbox, inbox } = dial(address, hello, deadline).await?;
        let waiting = Arc::new(Waiting(Mutex::new(Some(Table::default()))));
        tokio::spawn(deliver(inbox, waiting.clone(), incoming));
        let next_id = AtomicU64::new(greet::HELLO_ID.0 + 1);
        let shared = Shared { address: address.clone(), outbox, next_id, waiting };
        Ok((Self { shared: Arc::new(shared) }, welcome))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.outbox.close();
    }
}

impl Shared {
    fn enter(&self, id: RequestId, late: Option<Late>) -> Option<Place<'_>> {
        let (sender, answer) = oneshot::channel();
        self.waiting.lock().as_mut()?.callers.insert(id, sender);
        Some(Place { id, shared: self, answer, late })
    }
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Option<Table>> {
        // Nothing in the table can be half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands an answer to whoever cares.
    fn answer(&self, id: RequestId, reply: Reply) {
        let mut table = self.lock();
        let Some(known) = table.as_mut() else { return };
        if let Some(caller) = known.callers.remove(&id) {
            // Its place is given up under this lock, so the caller either takes the answer or finds it there.
            let _taken = caller.send(reply);
        } else if let Some(late) = known.late.remove(&id) {
            drop(table);
            late(reply);
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut table = self.shared.waiting.lock();
        let Some(known) = table.as_mut() else { return };
        let is_waiting = known.callers.remove(&self.id).is_some();
        let Some(late) = self.late.take() else { return };
        if is_waiting {
            known.late.insert(self.id, late);
            if known.late.len() > LATE_MAX {
                drop(table);
                self.shared.outbox.close();
            }
            return;
        }
        drop(table);
        // The answer was delivered: to a caller that took it, or in the moment that it gave up.
        if let Ok(reply) = self.answer.try_recv() {
            late(reply);
        }
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (callers, late) = (self.callers.len(), self.late.len());
        out.debug_struct("Table").field("callers", &callers).field("late", &late).finish()
    }
}

/// Hands every message to whom it concerns, until the connection ends; then nobody waits any more.
async fn deliver(
    mut inbox: Inbox,
    waiting: Arc<Waiting>,
    incoming: Option<mpsc::Sender<(RequestId, Request)>>,
) {
    while let Some(message) = inbox.next().await {
        match message {
            Incoming::Reply(id, reply) => waiting.answer(id, reply),
            Incoming::Request(id, request) => {
                let refusal = match &incoming {
                    None => refusal(Reason::NotForYou, "this side answers no requests"),
                    Some(incoming) => match incoming.try_send((id, request)) {
                        Ok(()) => continue,
                        // Waiting here would hold up the very answers that make room.
                        Err(_) => refusal(Reason::Busy, "too many requests at once"),
                    },
                };
                inbox.outbox().reply(id, &refusal);
            }
        }
    }
    // What is left is dropped outside the lock: it may be anybody's code.
    let table = waiting.lock().take();
    drop(table);
}

fn refusal(reason: Reason, message: &str) -> Reply {
    Reply::Refused(Refusal { reason, message: message.to_owned() })
}
