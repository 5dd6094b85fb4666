//! A radix tree over pages: a node is a run of pages without a branch, and a branch splits it.
//!
//! **Invariant:** every cell knows its node and its offset in the node's run; no run except a root's is
//! empty; the children of a node differ in their first hash.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use super::Index;
use crate::arena::{Arena, Id};
use crate::cell::{CellId, RootId};
use crate::fold::FoldBuilder;
use crate::hash::ChainHash;
use crate::mutant::Mutant;

type NodeId = Id<Node>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    /// None for a root.
    parent: Option<NodeId>,
    /// A dropped root, which is removed with the last node under it.
    is_dropped: bool,
    run: Vec<(ChainHash, CellId)>,
    /// By their first hash.
    children: BTreeMap<ChainHash, NodeId>,
}

/// Node and offset of a cell.
#[derive(Clone, Copy, Debug)]
struct Spot {
    cell: CellId,
    node: NodeId,
    offset: usize,
}

/// A tree for each root.
#[derive(Clone, Debug, Default)]
pub(crate) struct RadixIndex {
    nodes: Arena<Node>,
    roots: BTreeMap<RootId, NodeId>,
    /// By the slot of the cell.
    spots: Vec<Option<Spot>>,
    /// By hash, for lookups without a path. It is never iterated (C1).
    names: HashMap<(RootId, ChainHash), CellId, FoldBuilder>,
    mutant: Mutant,
}

impl RadixIndex {
    pub(crate) fn new(mutant: Mutant) -> Self {
        Self { mutant, ..Self::default() }
    }

    fn spot(&self, cell: CellId) -> Option<Spot> {
        self.spots.get(cell.place()).copied().flatten().filter(|spot| spot.cell == cell)
    }

    fn set_spot(&mut self, cell: CellId, node: NodeId, offset: usize) {
        if self.spots.len() <= cell.place() {
            self.spots.resize(cell.place() + 1, None);
        }
        if let Some(spot) = self.spots.get_mut(cell.place()) {
            *spot = Some(Spot { cell, node, offset });
        }
    }

    /// The node after which a page can be inserted: one whose run ends with the parent.
    fn node_ending_with(&mut self, root: RootId, parent: Option<CellId>) -> Option<NodeId> {
        let root_node = self.roots.get(&root).copied()?;
        let Some(parent) = parent else { return Some(root_node) };
        let spot = self.spot(parent)?;
        if spot.offset + 1 < self.nodes.get(spot.node).run.len() {
            self.split(spot.node, spot.offset + 1);
        }
        Some(spot.node)
    }

    /// Makes the run from `at` on a child of the pages before it.
    fn split(&mut self, node: NodeId, at: usize) {
        let head = self.nodes.get_mut(node);
        let run = head.run.split_off(at);
        let children = std::mem::take(&mut head.children);
        let first = run.first().map(|(hash, _)| *hash).expect("a split leaves pages on both sides");
        let (run_of_tail, children_of_tail) = (run.clone(), children.clone());
        let tail =
            Node { parent: Some(node), run: run_of_tail, children: children_of_tail, is_dropped: false };
        let tail = self.nodes.insert(tail);
        self.nodes.get_mut(node).children.insert(first, tail);
        for child in children.into_values() {
            self.nodes.get_mut(child).parent = Some(tail);
        }
        for (offset, (_, cell)) in self.mutant.moved_by_split(run).into_iter().enumerate() {
            self.set_spot(cell, tail, offset);
        }
    }

    /// Removes an empty node, and its root if that was dropped.
    fn prune(&mut self, node: NodeId, first: ChainHash) {
        let Some(parent) = self.nodes.get(node).parent else { return };
        self.nodes.remove(node);
        let above = self.nodes.get_mut(parent);
        above.children.remove(&first);
        if above.is_dropped && above.children.is_empty() {
            self.nodes.remove(parent);
        }
    }
}

impl Index for RadixIndex {
    fn add_root(&mut self, root: RootId) {
        let node = self.nodes.insert(Node::default());
        self.roots.insert(root, node);
    }

    fn drop_root(&mut self, root: RootId) {
        let Some(node) = self.roots.remove(&root) else { return };
        let node_of_root = self.nodes.get_mut(node);
        node_of_root.is_dropped = true;
        if node_of_root.children.is_empty() {
            self.nodes.remove(node);
        }
    }

    fn find(&self, root: RootId, hash: ChainHash) -> Option<CellId> {
        self.names.get(&(root, hash)).copied().filter(|_| self.roots.contains_key(&root))
    }

    fn walk(&self, root: RootId, hashes: &[ChainHash], found: &mut Vec<CellId>) {
        let Some(mut node) = self.roots.get(&root).map(|node| self.nodes.get(*node)) else { return };
        let mut rest = hashes;
        while let Some(child) = rest.first().and_then(|hash| node.children.get(hash)) {
            node = self.nodes.get(*child);
            let same = node.run.iter().zip(rest).take_while(|((known, _), hash)| known == *hash);
            let before = found.len();
            found.extend(same.map(|((_, cell), _)| *cell));
            let matched = found.len() - before;
            if matched < node.run.len() {
                return;
            }
            rest = rest.get(matched..).unwrap_or_default();
        }
    }

    fn insert(&mut self, root: RootId, parent: Option<CellId>, hash: ChainHash, cell: CellId) -> bool {
        if self.names.contains_key(&(root, hash)) {
            // A chain hash names its whole prefix, so it is in the tree once.
            return false;
        }
        let Some(node) = self.node_ending_with(root, parent) else { return false };
        let above = self.nodes.get_mut(node);
        if above.children.contains_key(&hash) {
            return false;
        }
        if above.parent.is_some() && above.children.is_empty() {
            above.run.push((hash, cell));
            let offset = above.run.len() - 1;
            self.set_spot(cell, node, offset);
        } else {
            let child = Node { parent: Some(node), run: vec![(hash, cell)], ..Node::default() };
            let child = self.nodes.insert(child);
            self.nodes.get_mut(node).children.insert(hash, child);
            self.set_spot(cell, child, 0);
        }
        self.names.insert((root, hash), cell);
        true
    }

    fn remove(&mut self, root: RootId, hash: ChainHash, cell: CellId) {
        let spot = self.spot(cell).expect("a cell that is removed is in the tree");
        let node = self.nodes.get_mut(spot.node);
        assert_eq!(node.run.last(), Some(&(hash, cell)), "O6: another page is there");
        assert!(node.children.is_empty(), "O6: pages depend on the one that is removed");
        node.run.pop();
        self.names.remove(&(root, hash));
        if let Some(place) = self.spots.get_mut(cell.place()) {
            *place = None;
        }
        if node.run.is_empty() {
            self.prune(spot.node, hash);
        }
    }

    fn may_remove(&self, cell: CellId) -> bool {
        self.spot(cell).is_some_and(|spot| {
            let node = self.nodes.get(spot.node);
            spot.offset + 1 == node.run.len() && node.children.is_empty()
        })
    }

    fn leaves_first(&self) -> bool {
        true
    }
}
