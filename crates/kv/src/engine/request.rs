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

use super::spaces::Space;
use crate::cell::{CellId, RootId};
use crate::config::Config;
use crate::hash::{ChainHash, Media, chain_with};
use crate::inventory::Inventory;
use crate::message::{OpId, SpaceId, Tick, Tier};
use crate::mutant::Mutant;

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

impl Request {
    /// Adds generated tokens, and the hashes of the pages that they fill.
    pub(super) fn append(&mut self, generated: &[u32], page_tokens: u32, mutant: Mutant) {
        self.length += generated.len() as u32;
        let Some(tokens) = &mut self.tokens else { return };
        tokens.extend_from_slice(generated);
        let hashed = self.hashes.len() as u32;
        let before = mutant.chain_start(self.hashes.last().copied(), self.root_hash);
        let rest = tokens.get((hashed * page_tokens) as usize..).unwrap_or_default();
        let more = chain_with(before, hashed, page_tokens, rest, &self.media, mutant);
        self.hashes.extend(more);
    }

    /// Follows a namespace that was redefined or cleared since the request arrived.
    pub(super) fn follow(&mut self, space: &Space, page_tokens: u32, mutant: Mutant) {
        let Space { root, root_hash } = *space;
        let before = std::mem::replace(&mut self.root_hash, root_hash);
        self.root = root;
        if let Some(tokens) = self.tokens.as_ref().filter(|_| before != root_hash) {
            self.hashes = chain_with(root_hash, 0, page_tokens, tokens, &self.media, mutant);
        }
    }

    /// The device pages of its slots, in order.
    pub(super) fn table(&self, inventory: &Inventory) -> Vec<u32> {
        let page = |slot: &Slot| match slot {
            Slot::Private(page) => *page,
            Slot::Shared(cell, _) => inventory.cell(*cell).copy(Tier::Device).page().unwrap_or(u32::MAX),
        };
        self.slots.iter().map(page).collect()
    }

    /// The hashes of the pages that may be cached.
    pub(super) fn usable_hashes(&self, config: &Config) -> &[ChainHash] {
        let usable = config.usable_pages(self.length) as usize;
        self.hashes.get(..usable.min(self.hashes.len())).unwrap_or_default()
    }
}
