//! A cell: one page of one prefix, and where copies of it are.
//!
//! The index, the pools and the inventory name cells by [`CellId`] and namespaces by [`RootId`]. This module
//! imports none of them.

use crate::arena::Id;
use crate::hash::ChainHash;
use crate::message::{OpId, Tier};
use crate::policy::CopyFacts;

/// Names a root: a namespace as it is since it was last defined or cleared. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RootId(pub(crate) u32);

/// Names a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CellId(pub(crate) Id<Cell>);

impl CellId {
    pub(crate) fn place(self) -> usize {
        self.0.place()
    }
}

/// Whether a tier has a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Residency {
    /// No.
    #[default]
    Absent,
    /// An operation writes it into this page. Requests may wait for that, but not match it (V1).
    Pending(OpId, u32),
    /// Yes, in this page.
    Valid(u32),
    /// It was lost, but its page is still read.
    Lost(u32),
}

/// Whether the store has a copy, as far as known. It only saves backups: matches probe the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Stored {
    /// Not known.
    #[default]
    Unknown,
    /// A backup is in flight.
    Pending(OpId),
    /// The last fetch or backup succeeded.
    Yes,
}

/// Whether the device copy was saved, since it was made or last used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Written {
    /// No.
    #[default]
    No,
    /// Yes, even if that host copy is gone by now.
    Yes,
    /// The save failed: under write-back it may leave the device all the same.
    GivenUp,
}

/// The copy of a page in a tier.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TierCopy {
    pub(crate) residency: Residency,
    /// Operations that read it (O1).
    pub(crate) pins: u32,
    /// Requests that compute with it.
    pub(crate) holds: u32,
    /// Number of child pages that have a copy in this tier.
    pub(crate) behind: u32,
    /// It was chosen for eviction, which may still be undone.
    pub(crate) is_leaving: bool,
    /// It is counted as idle: nothing uses it.
    pub(crate) is_idle: bool,
    /// Its score in the eviction queue.
    pub(crate) queued: Option<u64>,
    /// Under S3-FIFO: it was used while it was new.
    pub(crate) is_main: bool,
    pub(crate) facts: CopyFacts,
}

impl TierCopy {
    pub(crate) fn is_used(&self) -> bool {
        self.pins > 0 || self.holds > 0
    }

    /// The page of this copy, also while it is written.
    pub(crate) fn page(&self) -> Option<u32> {
        match self.residency {
            Residency::Absent => None,
            Residency::Pending(_, page) | Residency::Valid(page) | Residency::Lost(page) => Some(page),
        }
    }
}

/// One page of one prefix.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) root: RootId,
    pub(crate) hash: ChainHash,
    pub(crate) position: u32,
    /// The cell of the page before it. In a flat index that may be gone.
    pub(crate) parent: Option<CellId>,
    copies: [TierCopy; 2],
    pub(crate) stored: Stored,
    /// How often requests found it, in any tier.
    pub(crate) hits: u32,
    /// Its host copy was fetched from the store, and no request has used it yet.
    pub(crate) is_prefetched: bool,
    pub(crate) written: Written,
}

impl Cell {
    pub(crate) fn new(root: RootId, hash: ChainHash, position: u32, parent: Option<CellId>) -> Self {
        Self {
            root,
            hash,
            position,
            parent,
            copies: [TierCopy::default(); 2],
            stored: Stored::Unknown,
            hits: 0,
            is_prefetched: false,
            written: Written::No,
        }
    }

    pub(crate) fn copy(&self, tier: Tier) -> &TierCopy {
        let [device, host] = &self.copies;
        match tier {
            Tier::Device => device,
            Tier::Host => host,
        }
    }

    pub(crate) fn copy_mut(&mut self, tier: Tier) -> &mut TierCopy {
        let [device, host] = &mut self.copies;
        match tier {
            Tier::Device => device,
            Tier::Host => host,
        }
    }

    pub(crate) fn residency(&self, tier: Tier) -> Residency {
        self.copy(tier).residency
    }

    pub(crate) fn is_valid(&self, tier: Tier) -> bool {
        matches!(self.residency(tier), Residency::Valid(_))
    }

    /// It has no copy, and no operation refers to it.
    pub(crate) fn is_empty(&self) -> bool {
        let empty = |copy: &TierCopy| copy.residency == Residency::Absent && !copy.is_used();
        self.copies.iter().all(empty) && !matches!(self.stored, Stored::Pending(_))
    }
}
