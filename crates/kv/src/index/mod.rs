//! The index from chains of hashes to cells, behind one small trait.
//!
//! An index knows neither tiers nor pages nor operations, but only the cell of each hash, its root and its
//! parent. So a change of its shape cannot alter operations in flight (O6), and it can be replaced. There are
//! two: a radix tree and a flat table. One behaviour suite tests both.

mod flat;
mod radix;

pub(crate) use flat::FlatIndex;
pub(crate) use radix::RadixIndex;

use crate::cell::{CellId, RootId};
use crate::config::IndexKind;
use crate::hash::ChainHash;
use crate::mutant::Mutant;

/// A map from hashes to cells.
pub(crate) trait Index {
    /// Adds a root, under which chains can be inserted.
    fn add_root(&mut self, root: RootId);

    /// Hides everything under this root, in constant time. Its cells are removed later.
    fn drop_root(&mut self, root: RootId);

    /// Adds the cells of the leading hashes that have one to `found`.
    fn walk(&self, root: RootId, hashes: &[ChainHash], found: &mut Vec<CellId>);

    /// The cell of each of these hashes. A tree finds none after the first hash without a cell.
    fn locate(&self, root: RootId, hashes: &[ChainHash]) -> Vec<Option<CellId>> {
        let mut found = Vec::with_capacity(hashes.len());
        self.walk(root, hashes, &mut found);
        let mut cells: Vec<_> = found.into_iter().map(Some).collect();
        cells.resize(hashes.len(), None);
        cells
    }

    /// The cell of this hash, anywhere under the root.
    fn find(&self, root: RootId, hash: ChainHash) -> Option<CellId>;

    /// Inserts a cell after its parent, or after the root. False if there is a cell of that hash already, or
    /// no such parent.
    fn insert(&mut self, root: RootId, parent: Option<CellId>, hash: ChainHash, cell: CellId) -> bool;

    /// Removes a cell that [`Index::may_remove`] allows.
    fn remove(&mut self, root: RootId, hash: ChainHash, cell: CellId);

    /// Whether no other cell depends on this one.
    fn may_remove(&self, cell: CellId) -> bool;

    /// Whether the pages after a page leave a tier before it (V4).
    fn leaves_first(&self) -> bool;
}

/// The index that the configuration chose.
#[derive(Clone, Debug)]
pub(crate) enum AnyIndex {
    Radix(RadixIndex),
    Flat(FlatIndex),
}

impl AnyIndex {
    pub(crate) fn new(kind: IndexKind, mutant: Mutant) -> Self {
        match kind {
            IndexKind::Radix => Self::Radix(RadixIndex::new(mutant)),
            IndexKind::Flat => Self::Flat(FlatIndex::default()),
        }
    }
}

/// Calls the same method of the chosen index.
macro_rules! either {
    ($self:expr, $index:ident => $call:expr) => {
        match $self {
            AnyIndex::Radix($index) => $call,
            AnyIndex::Flat($index) => $call,
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
