//! The roots of prefixes. A root whose namespace is gone stays until its last cell is removed.

use std::collections::BTreeMap;

use crate::cell::RootId;
use crate::message::SpaceId;

/// A root.
#[derive(Clone, Copy, Debug)]
struct Root {
    space: SpaceId,
    is_live: bool,
    cells: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roots {
    all: BTreeMap<RootId, Root>,
    /// Number of roots that were ever added.
    made: u32,
    /// Number of roots that are gone and still have cells.
    retired: usize,
}

impl Roots {
    pub(super) fn add(&mut self, space: SpaceId) -> RootId {
        let root = RootId(self.made);
        self.made += 1;
        self.all.insert(root, Root { space, is_live: true, cells: 0 });
        root
    }

    /// The namespace of a root is gone.
    pub(super) fn retire(&mut self, root: RootId) {
        if let Some(it) = self.all.get_mut(&root) {
            it.is_live = false;
            self.retired += 1;
        }
        self.forget(root);
    }

    /// Whether there are roots that are gone and still have cells.
    pub(super) fn has_retired(&self) -> bool {
        self.retired > 0
    }

    pub(super) fn is_live(&self, root: RootId) -> bool {
        self.all.get(&root).is_some_and(|it| it.is_live)
    }

    /// The namespace of a live root.
    pub(crate) fn space_of(&self, root: RootId) -> Option<SpaceId> {
        self.all.get(&root).filter(|it| it.is_live).map(|it| it.space)
    }

    /// The namespace of a root that has cells, or had it.
    pub(super) fn last_space_of(&self, root: RootId) -> Option<SpaceId> {
        self.all.get(&root).map(|it| it.space)
    }

    pub(super) fn add_cell(&mut self, root: RootId) {
        if let Some(it) = self.all.get_mut(&root) {
            it.cells += 1;
        }
    }

    pub(super) fn remove_cell(&mut self, root: RootId) {
        if let Some(it) = self.all.get_mut(&root) {
            it.cells -= 1;
        }
        self.forget(root);
    }

    pub(super) fn ids(&self) -> Vec<&RootId> {
        self.all.keys().collect()
    }

    fn forget(&mut self, root: RootId) {
        if self.all.get(&root).is_some_and(|it| !it.is_live && it.cells == 0) {
            self.all.remove(&root);
            self.retired -= 1;
        }
    }
}
