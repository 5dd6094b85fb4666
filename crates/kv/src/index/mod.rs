//! Where pages are found: an index from chains of hashes to cells, behind one small trait.
//!
//! An index knows neither tiers nor pages nor operations: only which cell stands for which hash, under which
//! root, behind which other. So a change of its shape cannot alter what is in flight (O6), and another index
//! can take its place. Two do: a radix tree and a flat table; one behaviour suite holds both.

mod flat;
mod radix;

pub(crate) use flat::FlatIndex;
pub(crate) use radix::RadixIndex;

use crate::config::IndexKind;
use crate::hash::ChainHash;
use crate::inventory::CellId;
use crate::sabotage::Sabotage;

/// Names a root: a namespace as it is since it was last defined or cleared. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RootId(pub(crate) u32);

/// Which cell stands for which page.
pub(crate) trait Index {
    /// Chains may begin here from now on.
    fn add_root(&mut self, root: RootId);

    /// Nothing is found under this root any more, whatever is still there; in constant time.
    fn drop_root(&mut self, root: RootId);

    /// The cells of the leading hashes that have one, added to `found`.
    fn walk(&self, root: RootId, hashes: &[ChainHash], found: &mut Vec<CellId>);

    /// The cell of each of these hashes, also behind one that has none where the index can tell.
    fn locate(&self, root: RootId, hashes: &[ChainHash]) -> Vec<Option<CellId>> {
        let mut found = Vec::with_capacity(hashes.len());
        self.walk(root, hashes, &mut found);
        let mut cells: Vec<_> = found.into_iter().map(Some).collect();
        cells.resize(hashes.len(), None);
        cells
    }

    /// The cell of this hash, wherever under the root it stands.
    fn find(&self, root: RootId, hash: ChainHash) -> Option<CellId>;

    /// Enters a cell behind its parent, or behind the root. False if there is a cell of that hash already,
    /// or no such parent.
    fn insert(&mut self, root: RootId, parent: Option<CellId>, hash: ChainHash, cell: CellId) -> bool;

    /// Takes a cell out that [`Index::may_remove`] allows.
    fn remove(&mut self, root: RootId, hash: ChainHash, cell: CellId);

    /// Whether nothing hangs on this cell.
    fn may_remove(&self, cell: CellId) -> bool;

    /// Whether what stands behind a page leaves a tier before it (V4).
    fn leaves_first(&self) -> bool;
}

/// One of the two, chosen when the engine is made.
#[derive(Clone, Debug)]
pub(crate) enum AnyIndex {
    Radix(RadixIndex),
    Flat(FlatIndex),
}

impl AnyIndex {
    pub(crate) fn new(kind: IndexKind, sabotage: Sabotage) -> Self {
        match kind {
            IndexKind::Radix => Self::Radix(RadixIndex::new(sabotage)),
            IndexKind::Flat => Self::Flat(FlatIndex::default()),
        }
    }
}

/// Says the same to whichever it is.
macro_rules! either {
    ($self:expr, $index:ident => $said:expr) => {
        match $self {
            AnyIndex::Radix($index) => $said,
            AnyIndex::Flat($index) => $said,
        }
    };
}

impl Index for AnyIndex {
    fn add_root(&mut self, root: RootId) {
        either!(self, index => index.add_root(root));
    }

    fn drop_root(&mut self, root: RootId) {
        either!(self, index => index.drop_root(root));
    }

    fn walk(&self, root: RootId, hashes: &[ChainHash], found: &mut Vec<CellId>) {
        either!(self, index => index.walk(root, hashes, found));
    }

    fn locate(&self, root: RootId, hashes: &[ChainHash]) -> Vec<Option<CellId>> {
        either!(self, index => index.locate(root, hashes))
    }

    fn find(&self, root: RootId, hash: ChainHash) -> Option<CellId> {
        either!(self, index => index.find(root, hash))
    }

    fn insert(&mut self, root: RootId, parent: Option<CellId>, hash: ChainHash, cell: CellId) -> bool {
        either!(self, index => index.insert(root, parent, hash, cell))
    }

    fn remove(&mut self, root: RootId, hash: ChainHash, cell: CellId) {
        either!(self, index => index.remove(root, hash, cell));
    }

    fn may_remove(&self, cell: CellId) -> bool {
        either!(self, index => index.may_remove(cell))
    }

    fn leaves_first(&self) -> bool {
        either!(self, index => index.leaves_first())
    }
}

#[cfg(test)]
mod behavior;
