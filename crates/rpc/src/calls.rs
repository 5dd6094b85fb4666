//! The calls that wait for replies on a shared connection, and the task that reads the replies.
//!
//! **Invariant:** an id is in the table exactly as long as its reply is wanted. A reply without an id there
//! is ignored.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tiffin_proto::Incoming;
use tiffin_types::RequestId;
use tiffin_types::message::{Reason, Refusal, Reply};
use tokio::sync::oneshot;

use crate::{Inbox, Outbox};

/// The function that gets a reply which came after its call was given up.
pub(crate) type Late = Box<dyn FnOnce(Reply) + Send>;

/// The calls that wait; nothing when there will be no more replies.
#[derive(Debug)]
pub(crate) struct Calls(Mutex<Option<Table>>);

#[derive(Default)]
pub(crate) struct Table {
    pub(crate) calls: BTreeMap<RequestId, oneshot::Sender<Reply>>,
    /// Calls that were given up, but whose replies matter.
    pub(crate) late: BTreeMap<RequestId, Late>,
}

impl Calls {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Some(Table::default())))
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, Option<Table>> {
        // Nothing in the table can be half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers replies until the connection ends.
    pub(crate) async fn read(&self, inbox: &mut Inbox) {
        while let Some(message) = inbox.next().await {
            match message {
                Incoming::Reply(id, reply) => self.deliver(id, reply),
                Incoming::Request(id, _) => refuse(&inbox.outbox(), id),
            }
        }
        let table = self.table().take();
        // Dropped outside the lock: it may run code of callers.
        drop(table);
    }

    fn deliver(&self, id: RequestId, reply: Reply) {
        let mut table = self.table();
        let Some(known) = table.as_mut() else { return };
        if let Some(call) = known.calls.remove(&id) {
            // A call gives up under this lock, so the caller either takes the reply or finds it there.
            let _taken = call.send(reply);
        } else if let Some(late) = known.late.remove(&id) {
            drop(table);
            late(reply);
        }
    }
}

/// Refuses a request of the peer: the side that connected serves none.
pub(crate) fn refuse(outbox: &Outbox, id: RequestId) {
    let message = "this side answers no requests".to_owned();
    outbox.reply(id, &Reply::Refused(Refusal { reason: Reason::NotForYou, message }));
}

impl std::fmt::Debug for Table {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (calls, late) = (self.calls.len(), self.late.len());
        out.debug_struct("Table").field("calls", &calls).field("late", &late).finish()
    }
}
