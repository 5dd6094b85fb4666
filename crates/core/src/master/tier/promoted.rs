//! Promoted objects in memory: which of them no client has read yet, and which are protected from eviction.

use std::collections::BTreeMap;

use super::shield::Shields;
use crate::{
    Generation, Tick,
    attributes::Attributes,
    master::{
        catalog::{NodeIndex, Object, ObjectIndex},
        context::Context,
    },
};

/// See the module.
#[derive(Debug, Default)]
pub(in crate::master) struct Promoted {
    /// Those that are protected from eviction for a while.
    shields: Shields,
    /// Those that no client has read yet.
    unread: BTreeMap<ObjectIndex, Generation>,
}

impl Promoted {
    /// An object was promoted, and is protected until then. Its earlier lease ends `before`.
    pub(super) fn insert(
        &mut self,
        now: Tick,
        (index, generation): (ObjectIndex, Generation),
        before: Tick,
        until: Option<Tick>,
    ) {
        self.unread.insert(index, generation);
        if let Some(until) = until {
            self.shields.insert(now, index, (before, until));
        }
    }

    /// Whether an object was promoted and no client has read it since.
    pub(super) fn is_unread(&self, index: ObjectIndex) -> bool {
        self.unread.contains_key(&index)
    }

    /// A get was answered with a copy in memory. Returns the generation of an object that was promoted for
    /// it.
    pub(super) fn read(&mut self, index: ObjectIndex) -> Option<Generation> {
        if self.unread.is_empty() { None } else { self.unread.remove(&index) }
    }

    /// An object leaves memory. Returns whether it was promoted and never read.
    pub(super) fn leave(&mut self, index: ObjectIndex) -> bool {
        self.shields.remove(index);
        self.unread.remove(&index).is_some()
    }

    /// A client leased an object, so the lease protects it from now on.
    pub(in crate::master) fn unshield(&mut self, index: ObjectIndex) {
        self.shields.remove(index);
    }

    /// Objects are being read: those that were promoted for that need no further protection.
    pub(in crate::master) fn end_shields<'a>(
        &mut self,
        cx: &mut Context,
        found: impl Iterator<Item = &'a ObjectIndex>,
    ) {
        if self.shields.is_empty() {
            return;
        }
        for &index in found {
            if let Some((before, until)) = self.shields.remove(index) {
                cx.catalog.end_protection(index, before, until);
            }
        }
    }

    /// The first protected promoted object that is wanted. A put evicts it if nothing else can be evicted,
    /// because it has a disk copy.
    pub(in crate::master) fn next_shielded(
        &self,
        cx: &Context,
        wanted: impl Fn(&Object) -> bool,
    ) -> Option<ObjectIndex> {
        let mut protected = self.shields.unleased(cx.now);
        protected.find(|index| cx.catalog.get(*index).is_some_and(|it| is_last_resort(it) && wanted(it)))
    }

    /// The memory of the wanted copies of such objects.
    pub(in crate::master) fn shielded_bytes(
        &self,
        cx: &Context,
        wanted: impl Fn(&Object, NodeIndex) -> bool,
    ) -> u64 {
        let protected = self.shields.unleased(cx.now).filter_map(|it| cx.catalog.get(it));
        let bytes = protected.filter(|it| is_last_resort(it)).map(|it| {
            let copies = it.in_memory().filter(|(node, _)| wanted(it, *node)).count() as u64;
            it.space_of_one().saturating_mul(copies)
        });
        bytes.fold(0, u64::saturating_add)
    }
}

/// Whether a protected promoted object may leave memory for a put that finds nothing else to evict.
fn is_last_resort(object: &Object) -> bool {
    let is_pinned = object.soft_pin() || object.attributes().is_some_and(Attributes::protect);
    object.readable_on_disks().next().is_some() && !is_pinned
}
