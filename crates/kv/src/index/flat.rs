//! A table from (root, hash) to cell. A chain hash names its whole prefix, so that is enough.

use hashbrown::HashMap;

use super::Index;
use crate::cell::{CellId, RootId};
use crate::fold::FoldBuilder;
use crate::hash::ChainHash;

/// A table of hashes. It is never iterated, so that its order decides nothing (C1).
#[derive(Clone, Debug, Default)]
pub(crate) struct FlatIndex {
    cells: HashMap<(RootId, ChainHash), CellId, FoldBuilder>,
    /// The live roots. A root is never used twice, so dropped ones are forgotten.
    roots: std::collections::BTreeSet<RootId>,
}

impl Index for FlatIndex {
    fn add_root(&mut self, root: RootId) {
        self.roots.insert(root);
    }

    fn drop_root(&mut self, root: RootId) {
        self.roots.remove(&root);
    }

    fn walk(&self, root: RootId, hashes: &[ChainHash], found: &mut Vec<CellId>) {
        if self.roots.contains(&root) {
            found.extend(hashes.iter().map_while(|hash| self.cells.get(&(root, *hash)).copied()));
        }
    }

    fn locate(&self, root: RootId, hashes: &[ChainHash]) -> Vec<Option<CellId>> {
        let is_live = self.roots.contains(&root);
        let find = |hash: &ChainHash| self.cells.get(&(root, *hash)).copied().filter(|_| is_live);
        hashes.iter().map(find).collect()
    }

    fn find(&self, root: RootId, hash: ChainHash) -> Option<CellId> {
        self.cells.get(&(root, hash)).copied().filter(|_| self.roots.contains(&root))
    }

    fn insert(&mut self, root: RootId, _parent: Option<CellId>, hash: ChainHash, cell: CellId) -> bool {
        self.roots.contains(&root) && self.cells.try_insert((root, hash), cell).is_ok()
    }

    fn remove(&mut self, root: RootId, hash: ChainHash, cell: CellId) {
        let removed = self.cells.remove(&(root, hash));
        assert_eq!(removed, Some(cell), "the table has another cell for {hash:?}");
    }

    fn may_remove(&self, _cell: CellId) -> bool {
        true
    }

    fn leaves_first(&self) -> bool {
        false
    }
}
