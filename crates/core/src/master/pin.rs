//! Pins: protection from eviction on behalf of an owner. The nodes write them before they are answered.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Objects, OpId, Retires, Wait,
    catalog::{NamespaceIndex, NodeIndex, Object, ObjectIndex},
    delete::Answer,
    departures::remove_departed,
    limits::has_pins_left,
    refuse,
};
use crate::{
    ATTRIBUTES_MAX, BATCH_ITEMS_MAX, ConnId, Generation, OWNER_BYTES_MAX, RequestId, SlotRef,
    attributes::Attributes,
    message::{AttributesItem, DeletedMatching, DropPins, MasterToMember, Pin, PinOutcome, Reason},
    sabotage::sabotaged,
};

/// Maximum number of objects whose attributes one message writes.
const ATTRIBUTES_ITEMS_MAX: usize = 1 << 13;

impl Retires {
    pub(super) fn pin(
        &mut self,
        o: &mut Objects,
        conn: ConnId,
        id: RequestId,
        namespace: NamespaceIndex,
        pin: &Pin,
    ) {
        if pin.keys.len() > BATCH_ITEMS_MAX || pin.owner.len() > OWNER_BYTES_MAX {
            let reply = refuse(Reason::Invalid, "the batch is too large, or the owner's name too long");
            return o.cx.reply(conn, id, reply);
        }
        let mut outcomes = Vec::with_capacity(pin.keys.len());
        let mut attributes_set = Vec::new();
        for (item, key) in pin.keys.iter().enumerate() {
            let index = o.cx.catalog.find(namespace, key);
            let Some(index) = index else {
                outcomes.push(PinOutcome::Absent);
                continue;
            };
            let outcome = o.pin_one(index, &pin.owner, pin.on);
            // Unchanged pins too: not all nodes may have written them yet.
            if outcome != PinOutcome::TooMany {
                attributes_set.push((item, index));
            }
            outcomes.push(outcome);
        }
        if sabotaged!(o.cx.config.sabotage, PinWithoutWriting) {
            attributes_set.clear();
        }
        let generation = |index| o.cx.catalog.get(index).map(Object::generation);
        // A pin that has ended may have kept an object that expires now.
        let pinned = attributes_set.iter().filter(|_| pin.on);
        let pinned = pinned.filter_map(|&(item, index)| Some((item, index, generation(index)?)));
        let answer = Answer::Pin(outcomes, pinned.collect());
        self.retire_and_set_attributes(o, (conn, id), answer, Vec::new(), &attributes_set, pin.wait_ms);
    }

    pub(super) fn drop_pins(
        &mut self,
        o: &mut Objects,
        conn: ConnId,
        id: RequestId,
        namespace: NamespaceIndex,
        drop: &DropPins,
    ) {
        let mut pinned = o.cx.catalog.pinned_by(namespace, &drop.owner);
        pinned.iter().for_each(|index| remove_departed(o, *index));
        pinned.retain(|index| o.cx.catalog.get(*index).is_some());
        let count = pinned.len() as u64;
        for &index in &pinned {
            o.pin_one(index, &drop.owner, false);
        }
        // An earlier call may have ended these pins without a confirmation from all nodes. So a repeated
        // call waits for all unwritten attributes of the namespace, whichever call changed them.
        let is_here = |it: &ObjectIndex| o.cx.catalog.get(*it).is_some_and(|it| it.namespace() == namespace);
        let unwritten = o.unwritten.objects().filter(is_here);
        let attributes_set: BTreeSet<_> = pinned.into_iter().chain(unwritten).collect();
        let attributes_set: Vec<_> = attributes_set.into_iter().map(|index| (0, index)).collect();
        let answer = Answer::Matching(DeletedMatching { count, unconfirmed: Vec::new() });
        self.retire_and_set_attributes(o, (conn, id), answer, Vec::new(), &attributes_set, drop.wait_ms);
    }

    /// A node may or may not have written attributes.
    pub(super) fn attributes_not_set(
        &mut self,
        o: &mut Objects,
        node: NodeIndex,
        id: RequestId,
        objects: &[(ObjectIndex, Generation, SlotRef)],
        op: Option<OpId>,
    ) {
        objects.iter().for_each(|(index, ..)| o.unwritten.unconfirmed(*index, node, id));
        self.unconfirmed(o, node, id, &[], op);
    }
}

impl Objects {
    /// Sets or ends one pin, unless it is in that state already.
    fn pin_one(&mut self, index: ObjectIndex, owner: &str, on: bool) -> PinOutcome {
        let Some(object) = self.cx.catalog.get(index) else { return PinOutcome::Absent };
        let mut attributes = object.attributes().cloned().unwrap_or_default();
        match (attributes.pins.iter().any(|it| it == owner), on) {
            (true, true) => return PinOutcome::Done,
            (false, false) => return PinOutcome::NotPinned,
            _ => {}
        }
        if on {
            let namespace = object.namespace();
            if attributes.pins.len() >= ATTRIBUTES_MAX || !has_pins_left(&mut self.cx, namespace, 1) {
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
