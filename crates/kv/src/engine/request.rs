//! A request, and the states that it goes through.
//!
//! ```text
//! Submitted → Prefetching → Waiting → Loading → Prefilling → Decoding → Draining → WritingBack → (ended)
//!                              ▲         └──────────┴────────────┘ retract
//!                              └───────────────────────┘
//! ```
//! Every state may be skipped that has nothing to do. An abort ends a request in every state (L2). A state
//! owns no pages that an operation uses: those belong to the operation.

use std::collections::BTreeSet;

use crate::hash::{ChainHash, Media};
use crate::index::RootId;
use crate::inventory::CellId;
use crate::message::{OpId, SpaceId, Tick};

/// Where a request is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// It is to ask the store, and waits for its turn.
    Submitted,
    /// It waits for the store.
    Prefetching,
    /// It waits for room on the device: its prefetch is done, or it needs none, or it was retracted.
    Waiting,
    /// It has its place on the device, and waits for pages from the host.
    Loading,
    /// Its prompt is computed.
    Prefilling,
    /// Tokens are generated.
    Decoding,
    /// It has its tokens, and keeps its pages until they are on their way to the host.
    Draining,
    /// Its last pages are on their way to the host.
    WritingBack,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 8] = [
        Self::Submitted,
        Self::Prefetching,
        Self::Waiting,
        Self::Loading,
        Self::Prefilling,
        Self::Decoding,
        Self::Draining,
        Self::WritingBack,
    ];

    /// It has pages of the device to compute in.
    pub(crate) fn is_running(self) -> bool {
        matches!(self, Self::Loading | Self::Prefilling | Self::Decoding)
    }
}

/// Whose turn comes first: higher priorities, then whoever came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Turn {
    pub(crate) rank: u8,
    pub(crate) came: u64,
    pub(crate) request: crate::message::ReqId,
}

/// Where a shared page was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    Device,
    Host,
}

/// A page of a request's block table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Slot {
    /// A copy that others may use as well; it is held.
    Shared(CellId, Source),
    /// A page of the request's own.
    Private(u32),
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) space: SpaceId,
    pub(crate) root: RootId,
    /// What the hashes begin with.
    pub(crate) root_hash: ChainHash,
    /// Its tokens, if it was given any, and what was generated since.
    pub(crate) tokens: Option<Vec<u32>>,
    pub(crate) media: Vec<Media>,
    pub(crate) length: u32,
    pub(crate) prompt_length: u32,
    pub(crate) hashes: Vec<ChainHash>,
    pub(crate) turn: Turn,
    pub(crate) deadline: Option<Tick>,
    pub(crate) state: State,
    /// When it stops waiting, if it does.
    pub(crate) alarm: Option<Tick>,
    /// Operations that it waits for.
    pub(crate) waits: BTreeSet<OpId>,
    pub(crate) slots: Vec<Slot>,
    /// Tokens that are computed, or were found.
    pub(crate) computed: u32,
    /// Pages, counted from the first, that were entered into the index or found there to be taken.
    pub(crate) entered: u32,
    /// Pages, counted from the first, that the store said it has or that were here.
    pub(crate) promised: u32,
}
