//! A cell: one page of one prefix, and where copies of it are.

use crate::arena::Id;
use crate::hash::ChainHash;
use crate::index::RootId;
use crate::message::{OpId, Tier};
use crate::policy::CopyFacts;

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
    /// An operation brings it into this page. Others may wait for that, nobody may match it (V1).
    Pending(OpId, u32),
    /// Yes, in this page.
    Valid(u32),
    /// It was, in this page, which something still reads.
    Lost(u32),
}

/// Whether the store has it, as far as we know. Nothing is matched by that: the store is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Stored {
    /// We do not know.
    #[default]
    Unknown,
    /// A backup is under way.
    Pending(OpId),
    /// It had, when we last heard.
    Yes,
}

/// Whether what is on the device was saved, since it came there or was last used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Written {
    /// No.
    #[default]
    No,
    /// Yes, whatever has become of that copy.
    Yes,
    /// It could not be: under write-back it may leave the device as it is.
    GivenUp,
}

/// What is known of a copy in a tier.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TierCopy {
    pub(crate) residency: Residency,
    /// Operations that read it (O1).
    pub(crate) pins: u32,
    /// Requests that compute with it.
    pub(crate) holds: u32,
    /// Pages right behind it that have a copy in this tier.
    pub(crate) behind: u32,
    /// It is about to be evicted, unless that turns out to be in vain.
    pub(crate) is_leaving: bool,
    /// It is counted as one that could leave.
    pub(crate) is_idle: bool,
    /// The score that it stands in the line of those to leave with.
    pub(crate) queued: Option<u64>,
    /// Under S3-FIFO: it was used while it was new.
    pub(crate) is_main: bool,
    pub(crate) facts: CopyFacts,
}

impl TierCopy {
    pub(crate) fn is_used(&self) -> bool {
        self.pins > 0 || self.holds > 0
    }

    /// The page that it has or is to have.
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
    /// The page before it. In a flat index that may be gone.
    pub(crate) parent: Option<CellId>,
    copies: [TierCopy; 2],
    pub(crate) stored: Stored,
    /// How often requests found it, in whatever tier.
    pub(crate) hits: u32,
    /// Its host copy came from the store and nobody has used it yet.
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

    /// Nothing is left of it, and nobody means it.
    pub(crate) fn is_empty(&self) -> bool {
        let empty = |copy: &TierCopy| copy.residency == Residency::Absent && !copy.is_used();
        self.copies.iter().all(empty) && !matches!(self.stored, Stored::Pending(_))
    }
}
