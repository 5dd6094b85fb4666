//! Changes of state that become valid when their write is durable.

use std::sync::Arc;

use super::queue::{Append, Queued};
use crate::layout::PartRef;
use crate::types::RecordId;

/// A change of state that a sync commits, if it begins after its write has ended.
#[derive(Debug)]
pub(super) enum Commit {
    Head(u32),
    Footer(u32),
    Erase(u32),
    Batch(Batch),
}

/// Entries that are written together.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) segment: u32,
    /// Their share of the bytes that are being written.
    pub(super) bytes: u64,
    pub(super) members: Vec<Member>,
}

/// An entry of a batch.
#[derive(Debug)]
pub(super) enum Member {
    Record { append: Append, id: RecordId, parts: Arc<[PartRef]>, offset: u64, sequence: u64 },
    Part { ticket: u64 },
    Notes { sequence: u64, notes: Vec<Queued> },
    Carry { carry: u64 },
}
