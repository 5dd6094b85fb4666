//! The transport inside one process: client and node share the same mapping. The node's disks are read
//! through [`LocalDisk`], so that the client does not depend on the server.

use std::sync::Arc;

use crate::control::ControlReader;
use crate::mapped::Writable;
use crate::segment::NodeMemory;
use crate::{
    Capability, Counters, Instant, MappedRange, Outcome, Outcomes, ReadOp, Transport, WriteOp, mapped,
};

/// Reaches the memory of a node in this process.
#[derive(Clone, Debug)]
pub struct Local {
    memory: Arc<NodeMemory>,
    counters: Arc<Counters>,
}

/// A disk of a node in this process.
pub trait LocalDisk: Send + Sync {
    /// The id of its segment.
    fn segment(&self) -> u64;

    /// Reads copies, and adds the bytes of successful reads to `counters`. `cached_epoch` is the epoch of a
    /// cached location; `None` if the master has just resolved it.
    fn read<'a>(
        &'a self,
        ops: &'a [ReadOp<'a>],
        cached_epoch: Option<u64>,
        counters: &'a Counters,
        deadline: Instant,
    ) -> Outcomes<'a>;
}

impl Local {
    /// Creates it.
    #[must_use]
    pub fn new(memory: Arc<NodeMemory>, counters: Arc<Counters>) -> Self {
        Self { memory, counters }
    }

    /// The bytes of a use in the node's own mapping, if it still exists and is contiguous. That mapping is
    /// writable: a view for callers is from [`Attachment::view`](crate::shm::Attachment::view).
    #[must_use]
    pub fn in_place(&self, slot: u32, stamp: u64) -> Option<MappedRange> {
        MappedRange::of(self.memory.reader(), &self.memory.data, slot, stamp)
    }

    /// Read access to the control segment.
    #[must_use]
    pub fn control(&self) -> &ControlReader {
        self.memory.reader()
    }

    fn writable(&self) -> Writable<'_> {
        Writable { data: &self.memory.data, claims: &self.memory.claims }
    }
}

impl Transport for Local {
    fn capability(&self) -> Capability {
        Capability { name: "local", same_host: true, can_view: true }
    }

    fn read<'a>(&'a self, ops: &'a [ReadOp<'a>], deadline: Instant) -> Outcomes<'a> {
        Box::pin(async move {
            let outcomes = mapped::read(self.memory.reader(), &self.memory.data, ops, deadline).await;
            self.counters.local.add_read(moved(&outcomes, ops.iter().map(ReadOp::bytes)));
            outcomes
        })
    }

    fn write<'a>(&'a self, ops: &'a [WriteOp<'a>], deadline: Instant) -> Outcomes<'a> {
        Box::pin(async move {
            let outcomes = mapped::write(self.memory.reader(), self.writable(), ops, deadline).await;
            self.counters.local.add_written(moved(&outcomes, ops.iter().map(WriteOp::bytes)));
            outcomes
        })
    }
}

/// Total bytes of the operations that succeeded.
pub(crate) fn moved(outcomes: &[Outcome], bytes: impl Iterator<Item = u64>) -> u64 {
    outcomes.iter().zip(bytes).filter_map(|(outcome, bytes)| outcome.is_ok().then_some(bytes)).sum()
}
