//! Pins: protection from eviction on behalf of an owner. The nodes write them before they are answered.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Caller, Objects, OpId, Wait,
    catalog::{NamespaceIndex, NodeIndex, Object, ObjectIndex, TokenId},
    changed::Changed,
    departures::remove_departed,
    limits::has_pins_left,
};
use crate::{
    ATTRIBUTES_MAX, Generation, RequestId, SlotRef,
    attributes::Attributes,
    message::{AttributesItem, MasterToMember, Pin, PinOutcome},
    mutant::is_mutant,
};

/// Maximum number of objects whose attributes one message writes.
const ATTRIBUTES_ITEMS_MAX: usize = 1 << 13;

/// Sets or ends pins, and appends the outcomes, and those that are set.
pub(super) fn pin_items(
    o: &mut Objects,
    caller: &Caller,
    pin: &Pin,
    outcomes: &mut Vec<PinOutcome>,
    pinned: &mut Vec<(usize, ObjectIndex, Generation)>,
) -> Changed {
    let mut attributes_set = Vec::new();
    for key in &pin.keys {
        let Some(index) = o.cx.catalog.find(caller.namespace, key) else {
            outcomes.push(PinOutcome::Absent);
            continue;
        };
        let outcome = o.pin_one(index, &pin.owner, pin.on, caller.token);
        // Unchanged pins too: not all nodes may have written them yet.
        if outcome != PinOutcome::TooMany {
            attributes_set.push((outcomes.len(), index));
        }
        outcomes.push(outcome);
    }
    if is_mutant!(o.cx.config.mutant, PinWithoutWriting) {
        attributes_set.clear();
    }
    // A pin that has ended may have kept an object that expires now.
    if pin.on {
        let generation = |index| o.cx.catalog.get(index).map(Object::generation);
        pinned.extend(
            attributes_set.iter().filter_map(|&(item, index)| Some((item, index, generation(index)?))),
        );
    }
    Changed { attributes_set, ..Changed::default() }
}

impl Objects {
    /// Ends all pins of an owner. Returns how many.
    pub(super) fn end_pins(&mut self, namespace: NamespaceIndex, owner: &str) -> (u64, Changed) {
        let mut pinned = self.cx.catalog.pinned_by(namespace, owner);
        pinned.iter().for_each(|index| remove_departed(self, *index));
        pinned.retain(|index| self.cx.catalog.get(*index).is_some());
        for &index in &pinned {
            self.pin_one(index, owner, false, None);
        }
        let count = pinned.len() as u64;
        // An earlier call may have ended these pins without a confirmation from all nodes. So a repeated
        // call waits for all unwritten attributes of the namespace, whichever call changed them.
        let is_here =
            |it: &ObjectIndex| self.cx.catalog.get(*it).is_some_and(|it| it.namespace() == namespace);
        let unwritten = self.unwritten.objects().filter(is_here);
        let written: BTreeSet<_> = pinned.into_iter().chain(unwritten).collect();
        let attributes_set = written.into_iter().map(|index| (0, index)).collect();
        (count, Changed { attributes_set, ..Changed::default() })
    }

    /// Sets or ends one pin, unless it is in that state already. `token`: that of the client, if it is
    /// limited to namespaces.
    fn pin_one(&mut self, index: ObjectIndex, owner: &str, on: bool, token: Option<TokenId>) -> PinOutcome {
        let Some(object) = self.cx.catalog.get(index) else { return PinOutcome::Absent };
        let mut attributes = object.attributes().cloned().unwrap_or_default();
        match (attributes.pins.iter().any(|it| it == owner), on) {
            (true, true) => return PinOutcome::Done,
            (false, false) => return PinOutcome::NotPinned,
            _ => {}
        }
        if on {
            let namespace = object.namespace();
            let whose = (namespace, token);
            if attributes.pins.len() >= ATTRIBUTES_MAX || !has_pins_left(&mut self.cx, whose, 1) {
                return PinOutcome::TooMany;
            }
            attributes.pins.push(owner.to_owned());
        } else {
            attributes.pins.retain(|it| it != owner);
            // An unpinned object may be evicted, and a put may wait for that.
            self.cx.quotas.note_change();
        }
        self.cx.catalog.set_attributes(index, attributes);
        PinOutcome::Done
    }

    /// Sends the attributes of these objects to the nodes. A node that is away receives them when it
    /// returns.
    pub(super) fn send_attributes(
        &mut self,
        indexes: Vec<ObjectIndex>,
        op: Option<OpId>,
    ) -> BTreeMap<RequestId, NodeIndex> {
        let mut by_node: BTreeMap<NodeIndex, Vec<(AttributesItem, ObjectIndex, Generation)>> =
            BTreeMap::new();
        for index in indexes {
            let Some(object) = self.cx.catalog.get(index) else { continue };
            let attributes = object.attributes().cloned().unwrap_or_default();
            for (node, slot_ref) in self.written_beside(object) {
                let item = AttributesItem { slot_ref, attributes: attributes.clone() };
                by_node.entry(node).or_default().push((item, index, object.generation()));
            }
        }
        let mut asked = BTreeMap::new();
        for (node, items) in by_node {
            for chunk in items.chunks(ATTRIBUTES_ITEMS_MAX) {
                let request = MasterToMember::SetAttributes(chunk.iter().map(|it| it.0.clone()).collect());
                let objects =
                    chunk.iter().map(|(item, index, generation)| (*index, *generation, item.slot_ref));
                let told = self.cx.ask(node, request, Wait::SetAttributes(objects.collect(), op));
                asked.extend(told.map(|id| (id, node)));
                chunk.iter().for_each(|(_, index, _)| self.unwritten.note(*index, node, told));
            }
        }
        asked
    }

    /// The copies whose nodes must write attributes. A copy that is being promoted and is not settled yet
    /// receives its attributes when it is settled.
    pub(super) fn written_beside<'a>(
        &'a self,
        object: &'a Object,
    ) -> impl Iterator<Item = (NodeIndex, SlotRef)> + 'a {
        object.replicas().filter(|(node, _)| !self.tier.is_unsettled(object.generation(), *node))
    }

    /// Merges the attributes of one more copy, from an earlier epoch. Additional attributes count: the
    /// nodes of the other copies may have been away when they were set.
    pub(super) fn merge_attributes(&mut self, index: ObjectIndex, written: &Attributes) {
        let Some(object) = self.cx.catalog.get(index) else { return };
        let known = object.attributes().cloned().unwrap_or_default();
        let mut attributes = known.clone();
        let merge = |into: &mut Vec<String>, from: &[String]| {
            let more: Vec<_> = from.iter().filter(|it| !into.contains(it)).cloned().collect();
            into.extend(more);
        };
        merge(&mut attributes.pins, &written.pins);
        attributes.copies = attributes.copies.max(written.copies);
        // A node that was away when the object got its name may not know the end of its TTL.
        attributes.expiry =
            [attributes.expiry, written.expiry.clone()].into_iter().flatten().max_by_key(|it| it.ends_ms);
        if let (Some(sample), Some(told)) = (&mut attributes.sample, &written.sample) {
            merge(&mut sample.acked, &told.acked);
        }
        if attributes != known || attributes != *written {
            self.cx.catalog.set_attributes(index, attributes);
            self.send_attributes(vec![index], None);
        }
    }

    /// Compares the attributes that a node has written with the catalog, and sends them again if they
    /// differ.
    pub(super) fn correct_attributes(&mut self, index: ObjectIndex, node: NodeIndex, written: &Attributes) {
        let attributes =
            self.cx.catalog.get(index).and_then(|it| it.attributes().cloned()).unwrap_or_default();
        if attributes == *written {
            self.unwritten.confirmed(index, node, None);
        } else {
            self.send_attributes(vec![index], None);
        }
    }
}
