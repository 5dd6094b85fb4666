//! Copies: after the faults stop, every object has as many copies as its put asked for, on as many nodes, as
//! far as there are nodes with memory for them; and no more.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_core::master::Master;
use tiffin_node::SlotState;
use tiffin_types::{Generation, space_for};

use crate::{coverage::Point, memory::ValueId, world::World};

/// More than the name and the attributes of an object need.
const NAME_SPACE: u64 = 256;

/// Where the copies of one object are.
#[derive(Debug, Default)]
struct Places {
    value: Option<ValueId>,
    /// The nodes with a copy in memory or on a disk.
    nodes: BTreeSet<usize>,
    in_memory: usize,
}

impl World {
    /// Waits until lost copies are made again, and nothing of that is under way.
    pub(crate) fn copies_are_made_again(&mut self) -> bool {
        let has_all = self.wait_for("lost copies to be made again", |it| {
            let rests = |it: &Master| it.moving_count() == 0 && it.unconfirmed_count() == 0;
            let is_still = it.fetching.is_empty() && it.leader().is_some_and(rests);
            is_still && it.is_nothing_reserved() && it.short_of_copies().is_empty()
        });
        if has_all {
            self.coverage.hit(Point::CheckedCopies);
        }
        has_all
    }

    /// The objects with fewer copies than there could be, or with more than wanted.
    pub(crate) fn short_of_copies(&self) -> Vec<String> {
        let mut objects: BTreeMap<Generation, Places> = BTreeMap::new();
        for (node, shell) in self.nodes.iter().enumerate() {
            let memory = self.memories.get(&shell.segment);
            for (slot_ref, record) in memory.into_iter().flat_map(|it| it.slots()) {
                if record.state == SlotState::Committed {
                    let places = objects.entry(record.generation).or_default();
                    places.value =
                        places.value.or(self.oracle.written.get(&(shell.segment, slot_ref)).copied());
                    places.nodes.insert(node);
                    places.in_memory += 1;
                }
            }
            for copy in shell.disk.iter().flat_map(|it| it.log.copies.values()) {
                objects.entry(copy.record.generation).or_default().nodes.insert(node);
            }
        }
        let short = objects.iter().filter_map(|(generation, places)| {
            let value = self.oracle.value(places.value?)?;
            let wanted = value.copies.max(1) as usize;
            let has_more = wanted > 1 && places.in_memory > wanted;
            let has_fewer =
                places.nodes.len() < wanted && self.could_copy(places, value.name.namespace, value.len);
            let what = || format!("{generation} of {wanted} copies is at {places:?}");
            (has_more || has_fewer).then(what)
        });
        short.collect()
    }

    /// Whether a node without the object has memory for it, and its namespace a quota.
    fn could_copy(&self, places: &Places, namespace: u8, len: u64) -> bool {
        let Some(need) = space_for(len) else { return false };
        // Free memory may be guaranteed to the other namespace.
        if self.plan.guaranteed_percent > 0 {
            return false;
        }
        let name = crate::keyspace::namespace_name(namespace);
        let namespaces = self.leader().into_iter().flat_map(|it| it.stat().namespaces);
        let mut over = namespaces.filter(|it| it.name == name);
        if over.any(|it| it.quota.is_some_and(|quota| it.used.saturating_add(need) > quota)) {
            return false;
        }
        // Where memory for records and names is short, the bytes do not tell.
        let has_space = |it: &tiffin_types::message::Usage| {
            let has_records = it.objects + 2 < u64::from(self.plan.slot_count);
            it.capacity > 0 && it.free >= need && has_records && it.name_max.is_none_or(|it| it >= NAME_SPACE)
        };
        let others = self.nodes.iter().enumerate().filter(|(node, _)| !places.nodes.contains(node));
        let mut others = others.filter_map(|(_, it)| it.core.as_ref());
        !self.plan.has_little_metadata && others.any(|it| has_space(&it.usage()))
    }
}
