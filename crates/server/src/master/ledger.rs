//! The ledgers of nodes on the master's host: how a publication reaches its node even if this process ends.
//!
//! A message in a node's socket outlives this process, but not the node's. If the node's memory outlives the
//! node, the message is also recorded in the journal in its memory pool, before it is relied on.

use std::path::PathBuf;
use std::time::Duration;

use tiffin_rpc::{Outbox, SendError};
use tiffin_transport::journal::Journal;
use tiffin_transport::{Instant, Withdrawals, shm};
use tiffin_types::message::{Hello, MasterToMember, Reply};
use tiffin_types::{ConnId, RequestId, SlotRef, Tick};

use super::State;

/// How long a node may take to hand over its claim words.
const CLAIMS_TIME_MAX: Duration = Duration::from_secs(2);

/// The ledger of a node on the master's host.
#[derive(Debug)]
pub(super) struct Ledger {
    outbox: Outbox,
    /// If the node's memory outlives the node: its journal, if it could be opened.
    journal: Option<Option<Journal>>,
    /// The claim words of the node, if this process may map them.
    withdrawals: Option<Withdrawals>,
}

impl Ledger {
    /// Opens the node's journal, if it has one, and maps its claim words.
    pub(super) async fn open(outbox: Outbox, hello: &Hello) -> Self {
        outbox.enlarge_buffer();
        let withdrawals = withdrawals(hello).await;
        if hello.journal.is_empty() {
            return Self { outbox, journal: None, withdrawals };
        }
        let (path, id) = (PathBuf::from(&hello.journal), hello.journal_id);
        let opened = tokio::task::spawn_blocking(move || Journal::open(&path, id)).await;
        let opened = opened.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        if let Err(error) = &opened {
            let (path, node) = (&hello.journal, hello.home.unwrap_or_default());
            let hint =
                "let master and node run as one user that sees this folder; small puts are slower without";
            tracing::warn!(path, %node, %error, hint, "the journal of a node cannot be opened");
        }
        Self { outbox, journal: Some(opened.ok()), withdrawals }
    }

    /// Whether copies of the node can be withdrawn.
    pub(super) fn can_withdraw(&self) -> bool {
        self.withdrawals.is_some()
    }

    /// Withdraws copies: no read that begins later validates them.
    fn withdraw(&self, slot_refs: &[SlotRef]) {
        let Some(withdrawals) = &self.withdrawals else { return };
        slot_refs.iter().for_each(|it| withdrawals.withdraw(it.slot.0, it.stamp.0));
    }

    pub(super) fn is_closed(&self) -> bool {
        self.outbox.is_closed()
    }

    pub(super) fn close(&self) {
        self.outbox.close();
    }

    /// Sends a message. Returns whether the node will certainly apply it.
    pub(super) fn send(&mut self, id: RequestId, request: &MasterToMember) -> Result<bool, SendError> {
        let frame = tiffin_proto::encode_request(id, request)?;
        let is_recorded = match &mut self.journal {
            None => true,
            Some(journal) => journal.as_mut().is_some_and(|it| it.record(id.0, &frame)),
        };
        Ok(self.outbox.send_frame_if_buffered(frame)? && is_recorded)
    }

    /// A reply of the node: it has applied every earlier message of the ledger.
    pub(super) fn replied(&mut self, id: RequestId, reply: &Reply) {
        if let (Some(Some(journal)), Reply::Settled(_)) = (&mut self.journal, reply) {
            journal.applied(id.0);
        }
    }
}

/// Maps the claim words of a node. Where that fails, a put that replaces an object waits for the node.
async fn withdrawals(hello: &Hello) -> Option<Withdrawals> {
    let (name, segment) = (hello.memory.as_str(), hello.home.filter(|_| !hello.memory.is_empty())?);
    match shm::attach_claims(name, segment.0, &hello.token, Instant::now() + CLAIMS_TIME_MAX).await {
        Ok(withdrawals) => Some(withdrawals),
        Err(error) => {
            let hint = "let master and node run as one user; puts that replace objects are slower without";
            tracing::info!(node = %segment, %error, hint, "the claim words of a node cannot be mapped");
            None
        }
    }
}

/// Whether a message in the socket of this node is lost if the node ends, although its memory is not.
pub(super) fn needs_journal(hello: &Hello) -> bool {
    !hello.journal.is_empty()
}

impl State {
    /// Withdraws copies of a node.
    pub(super) fn withdraw(&self, conn: ConnId, slot_refs: &[SlotRef]) {
        let ledger = self.conns.get(&conn).and_then(|it| it.ledger.as_ref());
        ledger.into_iter().for_each(|it| it.withdraw(slot_refs));
    }

    /// Sends a message through a node's ledger. Returns whether the node will certainly apply it.
    pub(super) fn send_ledger(
        &mut self,
        now: Tick,
        conn: ConnId,
        id: RequestId,
        request: &MasterToMember,
    ) -> bool {
        let Some(it) = self.conns.get_mut(&conn) else { return false };
        let needs_journal = it.needs_journal;
        match it.ledger.as_mut().map(|it| it.send(id, request)) {
            Some(Ok(is_there)) => is_there,
            // A closed or missing ledger: the request goes through the ordinary connection.
            None | Some(Err(_)) => {
                let sent = self.ask(now, conn, id, |outbox| outbox.send_if_buffered(id, request));
                sent == Some(true) && !needs_journal
            }
        }
    }
}
