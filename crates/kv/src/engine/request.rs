//! A request, and the states that it goes through.
//!
//! ```text
//! Submitted → Prefetching → Waiting → Loading → Prefilling → Decoding → Draining → WritingBack → (ended)
//!                              ▲         └──────────┴────────────┘ retract
//!                              └───────────────────────┘
//! ```
//! A state without work is skipped. An abort ends a request in every state (L2). Pages that an operation uses
//! belong to the operation, not to the request.

use std::collections::BTreeSet;

use crate::cell::{CellId, RootId};
use crate::hash::{ChainHash, Media};
use crate::message::{OpId, SpaceId, Tick};

/// The state of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// It waits for its turn to probe the store.
    Submitted,
    /// It waits for a probe or a fetch.
    Prefetching,
    /// It waits for the device: its prefetch is done, or it needs none, or it was retracted.
    Waiting,
    /// It has device pages, and waits for loads from the host.
    Loading,
    /// Its prompt is computed.
    Prefilling,
    /// Tokens are generated.
    Decoding,
    /// It has all its tokens, and holds its pages until their saves are issued.
    Draining,
    /// Its last saves are in flight.
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

    /// Whether it has device pages to compute in.
    pub(crate) fn is_running(self) -> bool {
        matches!(self, Self::Loading | Self::Prefilling | Self::Decoding)
    }
}

/// The order of requests: by priority, then by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Turn {
    pub(crate) rank: u8,
    pub(crate) came: u64,
    pub(crate) request: crate::message::ReqId,
}

/// The tier in which a shared page was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    Device,
    Host,
}

/// A page of a request's block table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Slot {
    /// A copy that other requests may use as well; it is held.
    Shared(CellId, Source),
    /// A page of the request's own.
    Private(u32),
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) space: SpaceId,
    pub(crate) root: RootId,
    /// The hash that its chain starts with.
    pub(crate) root_hash: ChainHash,
    /// Its tokens with those generated since, unless it was submitted as hashes.
    pub(crate) tokens: Option<Vec<u32>>,
    pub(crate) media: Vec<Media>,
    pub(crate) length: u32,
    pub(crate) prompt_length: u32,
    pub(crate) hashes: Vec<ChainHash>,
    pub(crate) turn: Turn,
    pub(crate) deadline: Option<Tick>,
    pub(crate) state: State,
    /// When it stops waiting, if there is a limit.
    pub(crate) alarm: Option<Tick>,
    /// Operations that it waits for.
    pub(crate) waits: BTreeSet<OpId>,
    pub(crate) slots: Vec<Slot>,
    /// Number of tokens that are computed or were cached.
    pub(crate) computed: u32,
    /// Number of leading pages that were inserted into the index or are duplicates.
    pub(crate) entered: u32,
    /// Number of leading pages that were cached or that the store has.
    pub(crate) promised: u32,
}
