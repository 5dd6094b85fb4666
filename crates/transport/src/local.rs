//! The transport inside one process: the client and the node share the very mapping.

use std::sync::Arc;

use crate::control::ControlReader;
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

impl Local {
    /// Reaches this memory.
    #[must_use]
    pub fn new(memory: Arc<NodeMemory>, counters: Arc<Counters>) -> Self {
        Self { memory, counters }
    }

    /// The bytes of a use where they lie, if it is still there and lies in one piece. The caller has taken a
    /// hold at the node before, and keeps it for as long as it looks.
    #[must_use]
    pub fn view(&self, slot: u32, stamp: u64) -> Option<MappedRange> {
        MappedRange::of(self.memory.reader(), &self.memory.data, slot, stamp)
    }

    /// Reads in this thread, from begin to end.
    #[must_use]
    pub fn read_blocking(&self, ops: &[ReadOp<'_>], deadline: Instant) -> Vec<Outcome> {
        let outcomes = mapped::read_blocking(self.memory.reader(), &self.memory.data, ops, deadline);
        self.counters.local.add_read(moved(&outcomes, ops.iter().map(ReadOp::bytes)));
        outcomes
    }

    /// Writes in this thread, from begin to end.
    #[must_use]
    pub fn write_blocking(&self, ops: &[WriteOp<'_>], deadline: Instant) -> Vec<Outcome> {
        let outcomes = mapped::write_blocking(self.memory.reader(), &self.memory.data, ops, deadline);
        self.counters.local.add_written(moved(&outcomes, ops.iter().map(WriteOp::bytes)));
        outcomes
    }
}

impl Local {
    /// What the memory says of itself.
    #[must_use]
    pub fn control(&self) -> &ControlReader {
        self.memory.reader()
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
            let outcomes = mapped::write(self.memory.reader(), &self.memory.data, ops, deadline).await;
            self.counters.local.add_written(moved(&outcomes, ops.iter().map(WriteOp::bytes)));
            outcomes
        })
    }
}

/// How many bytes the operations that succeeded moved.
pub(crate) fn moved(outcomes: &[Outcome], bytes: impl Iterator<Item = u64>) -> u64 {
    outcomes.iter().zip(bytes).filter_map(|(outcome, bytes)| outcome.is_ok().then_some(bytes)).sum()
}
