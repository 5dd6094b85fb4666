//! Pending retires: copies of removed objects that their nodes have not yet confirmed to have withdrawn.
//! Until then a reader that knows their location may still validate them.
//!
//! **Invariant:** a copy is here from the moment its name is removed until its node has confirmed, has
//! announced what it holds after it was told of this, or is lost. If a parked question names it, the master
//! knows that it was here until the question is answered.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use super::catalog::{NamespaceIndex, NodeIndex};
use crate::{Hold, Key, SlotId, Stamp};

/// What an object was called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) namespace: NamespaceIndex,
    pub(super) key: Key,
}

/// One such copy. The least of them is none that there may be.
#[derive(Clone, Debug)]
pub(super) struct Ghost {
    pub(super) key: Key,
    pub(super) node: NodeIndex,
    pub(super) hold: Hold,
}

impl Default for Ghost {
    fn default() -> Self {
        Self { key: Key(Arc::default()), node: NodeIndex(0), hold: HOLD_MIN }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ghosts {
    by_name: BTreeSet<(Arc<Name>, NodeIndex, Hold)>,
    names: BTreeMap<(NodeIndex, Hold), Arc<Name>>,
    /// The copies that parked questions name, and whether they were withdrawn since.
    asked: BTreeMap<(NodeIndex, Hold), bool>,
}

/// The least and the greatest hold there may be.
const HOLD_MIN: Hold = Hold { slot: SlotId(0), stamp: Stamp(0) };
const HOLD_MAX: Hold = Hold { slot: SlotId(u32::MAX), stamp: Stamp(u64::MAX) };

impl Ghosts {
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// A copy's name was taken away.
    pub(super) fn insert(&mut self, name: &Arc<Name>, node: NodeIndex, hold: Hold) {
        if let Some(old) = self.names.insert((node, hold), Arc::clone(name)) {
            self.by_name.remove(&(old, node, hold));
        }
        self.by_name.insert((Arc::clone(name), node, hold));
    }

    /// The copy validates no more.
    pub(super) fn lay(&mut self, node: NodeIndex, hold: Hold) {
        if let Some(name) = self.names.remove(&(node, hold)) {
            self.by_name.remove(&(name, node, hold));
        }
        // A copy that an earlier epoch removed has no name here.
        self.asked.entry((node, hold)).and_modify(|is_withdrawn| *is_withdrawn = true);
    }

    /// A question about these copies waits.
    pub(super) fn ask(&mut self, copies: impl Iterator<Item = (NodeIndex, Hold)>) {
        copies.for_each(|copy| _ = self.asked.entry(copy).or_default());
    }

    /// All questions are answered but those about these copies.
    pub(super) fn forget_answered(&mut self, open: &BTreeSet<(NodeIndex, Hold)>) {
        self.asked.retain(|copy, _| open.contains(copy));
    }

    /// Nobody can speak for the copies on this node any more.
    pub(super) fn forget(&mut self, node: NodeIndex) {
        let all = self.names.range((node, HOLD_MIN)..=(node, HOLD_MAX));
        let holds: Vec<_> = all.map(|((_, hold), _)| *hold).collect();
        holds.into_iter().for_each(|hold| self.lay(node, hold));
    }

    /// Whether one of these copies had a name that is gone.
    pub(super) fn has_any(&self, copies: &[(NodeIndex, Hold)]) -> bool {
        copies.iter().any(|copy| self.names.contains_key(copy) || self.asked.get(copy) == Some(&true))
    }

    /// The copies of what was called so.
    pub(super) fn of(&self, namespace: NamespaceIndex, key: &Key) -> Vec<(NodeIndex, Hold)> {
        if self.names.is_empty() {
            return Vec::new();
        }
        let name = Arc::new(Name { namespace, key: key.clone() });
        let first = (Arc::clone(&name), NodeIndex(0), HOLD_MIN);
        let last = (name, NodeIndex(u16::MAX), HOLD_MAX);
        self.by_name.range(first..=last).map(|(_, node, hold)| (*node, *hold)).collect()
    }

    /// The copies of a namespace that come after `after`, in the order of the keys.
    pub(super) fn after<'a>(
        &'a self,
        namespace: NamespaceIndex,
        after: &Ghost,
    ) -> impl Iterator<Item = (&'a Key, NodeIndex, Hold)> + use<'a> {
        let name = Arc::new(Name { namespace, key: after.key.clone() });
        let before = (name, after.node, after.hold);
        let rest = self
            .by_name
            .range((Bound::Excluded(before), Bound::Unbounded))
            .take_while(move |it| it.0.namespace == namespace);
        rest.map(|(name, node, hold)| (&name.key, *node, *hold))
    }
}
