//! The transport between processes of one host: the client maps the node's memory.
//!
//! The node listens on an abstract Unix socket ([`Server`]). A client connects, identifies itself, and gets
//! the three descriptors of the node's memory ([`attach`]). The connection then stays open and silent: its
//! end is a hint, the end of the process is proof.
//!
//! **Invariant:** only processes of the node's own user get its memory, and a client accepts memory only from
//! its own user or from root.
//!
//! **Invariant:** a client that only reads never has a writable mapping.

mod client;
mod server;
pub(crate) mod wire;

use std::sync::Arc;

pub use client::{AttachError, Attachment, attach, attach_claims};
pub use server::{AttachRequest, Authorise, Event, PENDING_MAX, Server, StagingSegments, listen};
pub use wire::{ATTACH_MAGIC, ATTACH_VERSION};

use crate::device::has_device;
use crate::local::moved;
use crate::map::Map;
use crate::{
    Capability, Counters, Instant, Outcome, Outcomes, ReadOp, TransferError, Transport, WriteOp, mapped,
};

/// Reaches the memory of a node on the same host.
#[derive(Clone, Debug)]
pub struct Shm {
    attachment: Arc<Attachment>,
    counters: Arc<Counters>,
}

impl Shm {
    /// Creates it.
    #[must_use]
    pub fn new(attachment: Arc<Attachment>, counters: Arc<Counters>) -> Self {
        Self { attachment, counters }
    }

    /// The attached memory.
    #[must_use]
    pub fn attachment(&self) -> &Arc<Attachment> {
        &self.attachment
    }

    /// A dead node no longer withdraws stamps, so its segment proves nothing.
    fn unless_lost(&self, outcomes: Vec<Outcome>) -> Vec<Outcome> {
        if self.attachment.is_connected() {
            return outcomes;
        }
        let peer = self.attachment.name().to_owned();
        let lost = TransferError::Lost { peer, why: "the node closed its attach socket".to_owned() };
        outcomes.into_iter().map(|outcome| outcome.and(Err(lost.clone()))).collect()
    }
}

impl Transport for Shm {
    fn capability(&self) -> Capability {
        Capability { name: "shm", same_host: true, can_view: true }
    }

    fn read<'a>(&'a self, ops: &'a [ReadOp<'a>], deadline: Instant) -> Outcomes<'a> {
        Box::pin(async move {
            let control = self.attachment.reader();
            let data: &Map = match ops.iter().any(|op| has_device(&op.targets)) {
                true => self.attachment.data_for_device(),
                false => self.attachment.data(),
            };
            let outcomes = self.unless_lost(mapped::read(control, data, ops, deadline).await);
            self.counters.shm.add_read(moved(&outcomes, ops.iter().map(ReadOp::bytes)));
            outcomes
        })
    }

    fn write<'a>(&'a self, ops: &'a [WriteOp<'a>], deadline: Instant) -> Outcomes<'a> {
        Box::pin(async move {
            let writable = match self.attachment.writable() {
                Ok(writable) => writable,
                Err(error) => return vec![Err(error); ops.len()],
            };
            let outcomes = mapped::write(self.attachment.reader(), writable, ops, deadline).await;
            let outcomes = self.unless_lost(outcomes);
            self.counters.shm.add_written(moved(&outcomes, ops.iter().map(WriteOp::bytes)));
            outcomes
        })
    }
}
