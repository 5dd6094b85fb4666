//! The behaviour suite of indexes: each of them, and a naive one to compare with.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{AnyIndex, Index};
use crate::arena::Arena;
use crate::cell::{Cell, CellId, RootId};
use crate::config::IndexKind;
use crate::hash::ChainHash;
use crate::mutant::Mutant;

const KINDS: [IndexKind; 2] = [IndexKind::Radix, IndexKind::Flat];

/// Hashes of a path: each covers those before it, as chain hashes do.
fn path(steps: &[u8]) -> Vec<ChainHash> {
    let prefixes = (1..=steps.len()).map(|len| &steps[..len]);
    let id = |prefix: &[u8]| prefix.iter().fold(7u64, |id, step| id * 11 + u64::from(*step) + 1);
    prefixes.map(|prefix| ChainHash::foreign(id(prefix))).collect()
}

/// An index, its cells, and a naive index: a list of paths.
struct Pair {
    index: AnyIndex,
    cells: Arena<Cell>,
    naive: BTreeMap<(RootId, Vec<u8>), CellId>,
}

impl Pair {
    fn new(kind: IndexKind) -> Self {
        let mut index = AnyIndex::new(kind, Mutant::None);
        index.add_root(RootId(0));
        index.add_root(RootId(1));
        Self { index, cells: Arena::default(), naive: BTreeMap::new() }
    }

    /// Inserts all missing pages of a path.
    fn insert(&mut self, root: RootId, steps: &[u8]) {
        let mut parent = None;
        for (at, hash) in path(steps).into_iter().enumerate() {
            let key = (root, steps[..=at].to_vec());
            let cell = CellId(self.cells.insert(Cell::new(root, hash, at as u32, parent)));
            let is_new = self.index.insert(root, parent, hash, cell);
            assert_eq!(is_new, !self.naive.contains_key(&key), "{key:?}");
            if is_new {
                self.naive.insert(key, cell);
                parent = Some(cell);
            } else {
                self.cells.remove(cell.0);
                parent = self.naive.get(&key).copied();
            }
        }
    }

    /// Removes the last page of the path, if no other page follows it.
    fn remove(&mut self, root: RootId, steps: &[u8]) {
        let key = (root, steps.to_vec());
        let Some(cell) = self.naive.get(&key).copied() else { return };
        let behind = self
            .naive
            .keys()
            .any(|(r, other)| *r == root && other.len() > steps.len() && other.starts_with(steps));
        if self.index.leaves_first() {
            assert_eq!(self.index.may_remove(cell), !behind, "{key:?}");
        }
        if !behind {
            let hash = path(steps)[steps.len() - 1];
            self.index.remove(root, hash, cell);
            self.cells.remove(cell.0);
            self.naive.remove(&key);
        }
    }

    fn check(&self, root: RootId, steps: &[u8]) {
        let mut found = vec![];
        self.index.walk(root, &path(steps), &mut found);
        let known =
            (1..=steps.len()).map_while(|len| self.naive.get(&(root, steps[..len].to_vec())).copied());
        assert_eq!(found, known.collect::<Vec<_>>(), "{root:?} {steps:?}");
    }
}

#[test]
fn walk_finds_the_leading_run_also_after_a_branch() {
    for kind in KINDS {
        let mut pair = Pair::new(kind);
        pair.insert(RootId(0), &[1, 2, 3, 4]);
        pair.insert(RootId(0), &[1, 2, 5]);
        pair.insert(RootId(0), &[1, 2]);
        for steps in [&[1u8, 2, 3, 4, 5][..], &[1, 2, 5, 4], &[2], &[], &[1, 2, 4]] {
            pair.check(RootId(0), steps);
        }
        pair.check(RootId(1), &[1, 2]);
    }
}

#[test]
fn v4_dropped_root_hides_its_cells_and_they_can_be_removed() {
    for kind in KINDS {
        let mut pair = Pair::new(kind);
        pair.insert(RootId(0), &[1, 2, 3]);
        pair.insert(RootId(1), &[1, 2]);
        pair.index.drop_root(RootId(0));
        let mut found = vec![];
        pair.index.walk(RootId(0), &path(&[1, 2, 3]), &mut found);
        assert_eq!(found, []);
        let cell = CellId(pair.cells.insert(Cell::new(RootId(0), ChainHash::foreign(1), 0, None)));
        assert!(!pair.index.insert(RootId(0), None, ChainHash::foreign(1), cell));
        for len in (1..=3).rev() {
            pair.remove(RootId(0), &[1, 2, 3][..len]);
        }
        pair.check(RootId(1), &[1, 2, 3]);
    }
}

proptest! {
    #[test]
    fn indexes_agree_with_a_list_of_paths(
        steps in prop::collection::vec((any::<bool>(), 0u32..2, prop::collection::vec(0u8..3, 1..7)), 1..60),
    ) {
        for kind in KINDS {
            let mut pair = Pair::new(kind);
            for (inserts, root, steps) in &steps {
                match inserts {
                    true => pair.insert(RootId(*root), steps),
                    false => pair.remove(RootId(*root), steps),
                }
                pair.check(RootId(*root), steps);
                pair.check(RootId(1 - *root), steps);
            }
        }
    }
}
