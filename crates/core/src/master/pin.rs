//! Pins: protection from eviction on behalf of an owner. They are written on the nodes before they are
//! answered.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Objects, OpId, Retires, Wait,
    catalog::{NamespaceIndex, NodeIndex, Object, ObjectIndex},
    delete::Answer,
    refuse,
};
use crate::{
    ATTRIBUTES_MAX, BATCH_ITEMS_MAX, ConnId, Generation, OWNER_BYTES_MAX, RequestId, SlotRef,
    attributes::Attributes,
    message::{AttributesItem, DeletedMatching, DropPins, MasterToMember, Pin, PinOutcome, Reason},
    sabotage::sabotaged,
};

/// Marks that one message writes.
const ATTRIBUTES_ITEMS_MAX: usize = 1 << 13;

/// What nodes may have otherwise in writing than the catalog says, with the message that tells them, if one
/// is under way. A node that was away is told when it is back.
#[derive(Debug, Default)]
pub(super) struct Unwritten(BTreeMap<(ObjectIndex, NodeIndex), Option<RequestId>>);

impl Unwritten {
    fn note(&mut self, object: ObjectIndex, node: NodeIndex, message: Option<RequestId>) {
        self.0.insert((object, node), message);
    }

    /// It is in writing, unless there is something newer to write.
    fn confirmed(&mut self, object: ObjectIndex, node: NodeIndex, message: Option<RequestId>) {
        if self.0.get(&(object, node)) == Some(&message) {
            self.0.remove(&(object, node));
        }
    }

    /// The message may have been lost.
    fn unconfirmed(&mut self, object: ObjectIndex, node: NodeIndex, message: RequestId) {
        if let Some(last) = self.0.get_mut(&(object, node)).filter(|it| **it == Some(message)) {
            *last = None;
        }
    }

    /// The object is gone, and its number will be another's.
    pub(super) fn forget(&mut self, object: ObjectIndex) {
        let of_it = (object, NodeIndex(0))..=(object, NodeIndex(u16::MAX));
        for place in self.0.range(of_it).map(|(place, _)| *place).collect::<Vec<_>>() {
            self.0.remove(&place);
        }
    }

    fn objects(&self) -> impl Iterator<Item = ObjectIndex> {
        self.0.keys().map(|(object, _)| *object)
    }
}

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
            let reply = refuse(Reason::Invalid, "the batch or the owner's name is too long");
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
            // Also what was said before: it may not be in writing everywhere yet.
            if outcome != PinOutcome::TooMany {
                attributes_set.push((item, index));
            }
            outcomes.push(outcome);
        }
        if sabotaged!(o.cx.config.sabotage, PinWithoutWriting) {
            attributes_set.clear();
        }
        let generation = |index| o.cx.catalog.get(index).map(Object::generation);
        let pinned =
            attributes_set.iter().filter_map(|&(item, index)| Some((item, index, generation(index)?)));
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
        let pinned = o.cx.catalog.pinned_by(namespace, &drop.owner);
        let count = pinned.len() as u64;
        for &index in &pinned {
            o.pin_one(index, &drop.owner, false);
        }
        // An earlier call may have ended these pins and not heard that it is in writing; so whoever asks
        // again waits for what is not, whoever asked for it.
        let is_here = |it: &ObjectIndex| o.cx.catalog.get(*it).is_some_and(|it| it.namespace() == namespace);
        let unwritten = o.unwritten.objects().filter(is_here);
        let attributes_set: BTreeSet<_> = pinned.into_iter().chain(unwritten).collect();
        let attributes_set: Vec<_> = attributes_set.into_iter().map(|index| (0, index)).collect();
        let answer = Answer::Matching(DeletedMatching { count, unconfirmed: Vec::new() });
        self.retire_and_set_attributes(o, (conn, id), answer, Vec::new(), &attributes_set, drop.wait_ms);
    }

    /// A node may or may not have marks in writing.
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
    /// Sets or ends one pin, unless it is so already.
    fn pin_one(&mut self, index: ObjectIndex, owner: &str, on: bool) -> PinOutcome {
        let Some(object) = self.cx.catalog.get(index) else { return PinOutcome::Absent };
        let mut attributes = object.attributes().cloned().unwrap_or_default();
        match (attributes.pins.iter().any(|it| it == owner), on) {
            (true, true) => return PinOutcome::Done,
            (false, false) => return PinOutcome::NotPinned,
            _ => {}
        }
        if on {
            if attributes.pins.len() >= ATTRIBUTES_MAX {
                return PinOutcome::TooMany;
            }
            attributes.pins.push(owner.to_owned());
        } else {
            attributes.pins.retain(|it| it != owner);
            // What nobody pins may be evicted, and somebody may be waiting for that.
            self.cx.quotas.note_change();
        }
        self.cx.catalog.set_attributes(index, attributes);
        PinOutcome::Done
    }

    /// Tells the nodes what the catalog says of these objects. A node that is away is told when it is back.
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

    /// The copies that marks must be written beside. What is on its way into memory, and is not told yet what
    /// it is, will be told its marks with that.
    pub(super) fn written_beside<'a>(
        &'a self,
        object: &'a Object,
    ) -> impl Iterator<Item = (NodeIndex, SlotRef)> + 'a {
        object.replicas().filter(|(node, _)| !self.tier.is_unsettled(object.generation(), *node))
    }

    /// A node has marks in writing.
    pub(super) fn attributes_set(
        &mut self,
        node: NodeIndex,
        id: RequestId,
        objects: &[(ObjectIndex, Generation, SlotRef)],
    ) {
        objects.iter().for_each(|(index, ..)| self.unwritten.confirmed(*index, node, Some(id)));
    }

    /// One more copy of an object is known, from before this life of the master. Where its marks say more
    /// than those of the others they count: the others may have been away when it was said.
    pub(super) fn merge_attributes(&mut self, index: ObjectIndex, written: &Attributes) {
        let Some(object) = self.cx.catalog.get(index) else { return };
        let known = object.attributes().cloned().unwrap_or_default();
        let mut attributes = known.clone();
        let merge = |into: &mut Vec<String>, from: &[String]| {
            let more: Vec<_> = from.iter().filter(|it| !into.contains(it)).cloned().collect();
            into.extend(more);
        };
        merge(&mut attributes.pins, &written.pins);
        if let (Some(sample), Some(told)) = (&mut attributes.sample, &written.sample) {
            merge(&mut sample.acked, &told.acked);
        }
        if attributes != known || attributes != *written {
            self.cx.catalog.set_attributes(index, attributes);
            self.send_attributes(vec![index], None);
        }
    }

    /// Whether a node has other marks in writing than the catalog; they are written anew then.
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
