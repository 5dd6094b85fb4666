//! Memory of retired objects that is still viewed or copied, and which namespaces pay for it.
//!
//! **Invariant:** the sums are those of the entries.

use std::collections::BTreeMap;

use tiffin_types::{Extent, HELD_NAMESPACES_MAX, SlotRef, message::HeldBy};

use crate::extent::space_of;

/// Memory of a retired object that is still referenced.
#[derive(Clone, Debug)]
pub(super) struct Retired {
    pub(super) extents: Vec<Extent>,
    pub(super) heap: [Extent; 2],
    /// The namespace that pays for it; `None` if the object never had a name.
    pub(super) namespace: Option<Box<str>>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct RetiredMemory {
    all: BTreeMap<SlotRef, Retired>,
    by_namespace: BTreeMap<Box<str>, u64>,
    bytes: u64,
    /// The sums have changed since they were last reported.
    has_changed: bool,
}

impl RetiredMemory {
    pub(super) fn insert(&mut self, slot_ref: SlotRef, memory: Retired) {
        let space = space_of(&memory.extents);
        self.bytes += space;
        if let Some(namespace) = &memory.namespace {
            *self.by_namespace.entry(namespace.clone()).or_default() += space;
            self.has_changed = true;
        }
        self.all.insert(slot_ref, memory);
    }

    pub(super) fn remove(&mut self, slot_ref: SlotRef) -> Option<Retired> {
        let memory = self.all.remove(&slot_ref)?;
        let space = space_of(&memory.extents);
        self.bytes -= space;
        if let Some(namespace) = &memory.namespace
            && let Some(held) = self.by_namespace.get_mut(namespace)
        {
            *held -= space;
            self.has_changed = true;
            if *held == 0 {
                self.by_namespace.remove(namespace);
            }
        }
        Some(memory)
    }

    pub(super) fn contains(&self, slot_ref: SlotRef) -> bool {
        self.all.contains_key(&slot_ref)
    }

    /// The memory of one of them, or zero.
    pub(super) fn space(&self, slot_ref: SlotRef) -> u64 {
        self.all.get(&slot_ref).map_or(0, |it| space_of(&it.extents))
    }

    /// All of them, and their memory.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SlotRef, u64)> + '_ {
        self.all.iter().map(|(slot_ref, retired)| (*slot_ref, space_of(&retired.extents)))
    }

    /// The memory of all.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The memory that one namespace pays for.
    pub(super) fn of(&self, namespace: &str) -> u64 {
        self.by_namespace.get(namespace).copied().unwrap_or(0)
    }

    /// The sums by namespace, most first, as many as a report names.
    pub(super) fn by_namespace(&self) -> Vec<HeldBy> {
        let each = self.by_namespace.iter();
        let mut all: Vec<_> = each
            .map(|(namespace, bytes)| HeldBy { namespace: namespace.to_string(), bytes: *bytes })
            .collect();
        all.sort_by_key(|it| std::cmp::Reverse(it.bytes));
        all.truncate(HELD_NAMESPACES_MAX);
        all
    }

    /// Whether a sum has changed since this was last asked.
    pub(super) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }
}
