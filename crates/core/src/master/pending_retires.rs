//! Pending retires: copies of removed objects whose nodes have not confirmed the retire. Until then a
//! client with a cached location may still validate such a copy.
//!
//! **Invariant:** a copy is here from the removal of its name until its node has confirmed, has announced
//! after it received the retire, or is lost. If a deferred request names the copy, the master remembers its
//! removal until the request is answered.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use super::catalog::{NamespaceIndex, NodeIndex};
use crate::{Generation, Key, SlotId, SlotRef, Stamp};

/// The name of a removed object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) namespace: NamespaceIndex,
    pub(super) key: Key,
}

/// One such copy. The default is less than every real one.
#[derive(Clone, Debug)]
pub(super) struct PendingRetire {
    pub(super) key: Key,
    pub(super) node: NodeIndex,
    pub(super) slot_ref: SlotRef,
}

impl Default for PendingRetire {
    fn default() -> Self {
        Self { key: Key::first(), node: NodeIndex(0), slot_ref: SLOT_REF_MIN }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct PendingRetires {
    by_name: BTreeSet<(Arc<Name>, NodeIndex, SlotRef)>,
    /// The name of each, and the generation of its object. That of a copy without one is zero.
    names: BTreeMap<(NodeIndex, SlotRef), (Arc<Name>, Generation)>,
    /// The copies that clients removed, and the version of the saved state at that time. A later version
    /// contains their retires.
    removed: BTreeMap<(NodeIndex, SlotRef), u64>,
    /// The same for copies that a member owes.
    owed: BTreeMap<(NodeIndex, SlotRef), u64>,
    /// Copies that are retired only once that version of the state is synced.
    retired_after: BTreeMap<(NodeIndex, SlotRef), u64>,
    /// The copies that deferred requests name, and whether they were withdrawn since.
    asked: BTreeMap<(NodeIndex, SlotRef), bool>,
}

/// The least and the greatest slot reference.
pub(super) const SLOT_REF_MIN: SlotRef = SlotRef { slot: SlotId(0), stamp: Stamp(0) };
pub(super) const SLOT_REF_MAX: SlotRef = SlotRef { slot: SlotId(u32::MAX), stamp: Stamp(u64::MAX) };

impl PendingRetires {
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// The name of a copy was removed.
    pub(super) fn insert(
        &mut self,
        name: &Arc<Name>,
        generation: Generation,
        (node, slot_ref): (NodeIndex, SlotRef),
    ) {
        if let Some((old, _)) = self.names.insert((node, slot_ref), (Arc::clone(name), generation)) {
            self.by_name.remove(&(old, node, slot_ref));
        }
        self.by_name.insert((Arc::clone(name), node, slot_ref));
    }

    /// The copy no longer validates.
    pub(super) fn remove(&mut self, node: NodeIndex, slot_ref: SlotRef) {
        if let Some((name, _)) = self.names.remove(&(node, slot_ref)) {
            self.by_name.remove(&(name, node, slot_ref));
        }
        self.removed.remove(&(node, slot_ref));
        self.owed.remove(&(node, slot_ref));
        self.retired_after.remove(&(node, slot_ref));
        // A copy that an earlier epoch removed has no name here.
        self.asked.entry((node, slot_ref)).and_modify(|is_withdrawn| *is_withdrawn = true);
    }

    /// The generation of the object that a pending copy belongs to.
    pub(super) fn generation(&self, copy: (NodeIndex, SlotRef)) -> Generation {
        self.names.get(&copy).map(|it| it.1).unwrap_or_default()
    }

    /// A client removes these copies, after that version of the state was saved.
    pub(super) fn note_removed(&mut self, copies: &[(NodeIndex, SlotRef)], version: u64) {
        let pending = copies.iter().filter(|copy| self.names.contains_key(copy));
        pending.for_each(|copy| _ = self.removed.entry(*copy).or_insert(version));
    }

    /// A member owes these retires, after that version of the state was saved.
    pub(super) fn note_owed(&mut self, node: NodeIndex, slot_refs: &[SlotRef], version: u64) {
        let copies = slot_refs.iter().map(|it| (node, *it)).filter(|it| self.names.contains_key(it));
        copies.for_each(|it| _ = self.owed.entry(it).or_insert(version));
    }

    /// The version of the saved state when a client removed the last pending copy of that name.
    pub(super) fn removed_after(&self, namespace: NamespaceIndex, key: &Key) -> Option<u64> {
        if self.removed.is_empty() {
            return None;
        }
        self.of(namespace, key).into_iter().filter_map(|copy| self.removed.get(&copy).copied()).max()
    }

    /// The version of the state that contains the retires of these copies.
    pub(super) fn removed_before(&self, copies: &[(NodeIndex, SlotRef)]) -> Option<u64> {
        let version = |copy| self.owed.get(copy).or_else(|| self.removed.get(copy));
        copies.iter().filter_map(version).max().map(|it| it + 1)
    }

    /// These copies are not retired before that version is synced.
    pub(super) fn retire_after(&mut self, copies: &[(NodeIndex, SlotRef)], version: u64) {
        let pending = copies.iter().filter(|copy| self.names.contains_key(copy));
        pending.for_each(|copy| _ = self.retired_after.insert(*copy, version));
    }

    /// The version that must be synced before these copies are retired.
    pub(super) fn retired_after(&self, node: NodeIndex, slot_refs: &[SlotRef]) -> Option<u64> {
        if self.retired_after.is_empty() {
            return None;
        }
        slot_refs.iter().filter_map(|it| self.retired_after.get(&(node, *it)).copied()).max()
    }

    /// A deferred request names these copies.
    pub(super) fn ask(&mut self, copies: impl Iterator<Item = (NodeIndex, SlotRef)>) {
        copies.for_each(|copy| _ = self.asked.entry(copy).or_default());
    }

    /// All deferred requests are answered, except those about these copies.
    pub(super) fn forget_answered(&mut self, open: &BTreeSet<(NodeIndex, SlotRef)>) {
        self.asked.retain(|copy, _| open.contains(copy));
    }

    /// The node is lost, so no confirmation for its copies will arrive. Forgets at most `count` of them, and
    /// returns whether these were all.
    pub(super) fn forget(&mut self, node: NodeIndex, count: usize) -> bool {
        let all = self.names.range((node, SLOT_REF_MIN)..=(node, SLOT_REF_MAX));
        let mut slot_refs = all.map(|((_, slot_ref), _)| *slot_ref);
        let page: Vec<_> = slot_refs.by_ref().take(count).collect();
        let is_all = slot_refs.next().is_none();
        page.into_iter().for_each(|slot_ref| self.remove(node, slot_ref));
        is_all
    }

    /// The nodes with such copies.
    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeIndex> {
        self.names.keys().map(|it| it.0)
    }

    /// Whether the object of one of these copies was removed.
    pub(super) fn has_any(&self, copies: &[(NodeIndex, SlotRef)]) -> bool {
        copies.iter().any(|copy| self.names.contains_key(copy) || self.asked.get(copy) == Some(&true))
    }

    /// The pending copies of objects of that name.
    pub(super) fn of(&self, namespace: NamespaceIndex, key: &Key) -> Vec<(NodeIndex, SlotRef)> {
        if self.names.is_empty() {
            return Vec::new();
        }
        let name = Arc::new(Name { namespace, key: key.clone() });
        let first = (Arc::clone(&name), NodeIndex(0), SLOT_REF_MIN);
        let last = (name, NodeIndex(u16::MAX), SLOT_REF_MAX);
        self.by_name.range(first..=last).map(|(_, node, slot_ref)| (*node, *slot_ref)).collect()
    }

    /// The copies of a namespace that come after `after`, in the order of the keys.
    pub(super) fn after<'a>(
        &'a self,
        namespace: NamespaceIndex,
        after: &PendingRetire,
    ) -> impl Iterator<Item = (&'a Key, NodeIndex, SlotRef)> + use<'a> {
        let name = Arc::new(Name { namespace, key: after.key.clone() });
        let before = (name, after.node, after.slot_ref);
        let rest = self
            .by_name
            .range((Bound::Excluded(before), Bound::Unbounded))
            .take_while(move |it| it.0.namespace == namespace);
        rest.map(|(name, node, slot_ref)| (&name.key, *node, *slot_ref))
    }
}
