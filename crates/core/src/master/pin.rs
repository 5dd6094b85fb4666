//! Pins: protection, not fate. They belong to owners, and are in writing on the nodes before they are
//! answered.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Master, OpId, Wait,
    catalog::{NamespaceIndex, NodeIndex, Object, ObjectIndex},
    confirm::Answer,
    refuse,
};
use crate::{
    BATCH_ITEMS_MAX, ConnId, Generation, Hold, MARKS_MAX, OWNER_BYTES_MAX, RequestId,
    marks::Marks,
    message::{DeletedMatching, DropPins, MarkItem, Pin, PinOutcome, Reason, Request},
    sabotage::sabotaged,
};

/// Marks that one message writes.
const MARK_ITEMS_MAX: usize = 1 << 13;

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

impl Master {
    pub(super) fn pin(&mut self, conn: ConnId, id: RequestId, namespace: NamespaceIndex, pin: &Pin) {
        if pin.keys.len() > BATCH_ITEMS_MAX || pin.owner.len() > OWNER_BYTES_MAX {
            let reply = refuse(Reason::Invalid, "the batch or the owner's name is too long");
            return self.effects.push_back(super::Effect::Reply(conn, id, reply));
        }
        let mut outcomes = Vec::with_capacity(pin.keys.len());
        let mut marked = Vec::new();
        for (item, key) in pin.keys.iter().enumerate() {
            let index = self.catalog.find(namespace, key);
            outcomes.push(match index {
                None => PinOutcome::Absent,
                Some(index) if !self.pin_one(index, &pin.owner, pin.on) => PinOutcome::TooMany,
                // Also what was said before: it may not be in writing everywhere yet.
                Some(index) => {
                    marked.push((item, index));
                    PinOutcome::Done
                }
            });
        }
        let deadline = Some(self.now.after(pin.wait_ms));
        if sabotaged!(self.config.sabotage, PinWithoutWriting) {
            marked.clear();
        }
        let generation = |index| self.catalog.get(index).map(Object::generation);
        let pinned = marked.iter().filter_map(|&(item, index)| Some((item, index, generation(index)?)));
        let answer = Answer::Pin(outcomes, pinned.collect());
        self.retire_and_mark(conn, id, answer, Vec::new(), &marked, deadline);
    }

    pub(super) fn drop_pins(
        &mut self,
        conn: ConnId,
        id: RequestId,
        namespace: NamespaceIndex,
        drop: &DropPins,
    ) {
        let pinned = self.catalog.pinned_by(namespace, &drop.owner);
        let count = pinned.len() as u64;
        for &index in &pinned {
            self.pin_one(index, &drop.owner, false);
        }
        // An earlier call may have ended these pins and not heard that it is in writing; so whoever asks
        // again waits for what is not, whoever asked for it.
        let is_here = |it: &ObjectIndex| self.catalog.get(*it).is_some_and(|it| it.namespace() == namespace);
        let unwritten = self.unwritten.objects().filter(is_here);
        let marked: BTreeSet<_> = pinned.into_iter().chain(unwritten).collect();
        let marked: Vec<_> = marked.into_iter().map(|index| (0, index)).collect();
        let answer = Answer::Matching(DeletedMatching { count, unconfirmed: Vec::new() });
        let deadline = Some(self.now.after(drop.wait_ms));
        self.retire_and_mark(conn, id, answer, Vec::new(), &marked, deadline);
    }

    /// Sets or ends one pin, unless it is so already; `false` if there are too many.
    fn pin_one(&mut self, index: ObjectIndex, owner: &str, on: bool) -> bool {
        let Some(object) = self.catalog.get(index) else { return false };
        let mut marks = object.marks().cloned().unwrap_or_default();
        let has = marks.pins.iter().any(|it| it == owner);
        if has == on {
            return true;
        }
        if on {
            if marks.pins.len() >= MARKS_MAX {
                return false;
            }
            marks.pins.push(owner.to_owned());
        } else {
            marks.pins.retain(|it| it != owner);
            // What nobody pins may be evicted, and somebody may be waiting for that.
            self.room.note_change();
        }
        self.catalog.mark(index, marks);
        true
    }

    /// Tells the nodes what the catalog says of these objects. A node that is away is told when it is back.
    pub(super) fn send_marks(
        &mut self,
        indexes: Vec<ObjectIndex>,
        op: Option<OpId>,
    ) -> BTreeMap<RequestId, NodeIndex> {
        let mut by_node: BTreeMap<NodeIndex, Vec<(MarkItem, ObjectIndex, Generation)>> = BTreeMap::new();
        for index in indexes {
            let Some(object) = self.catalog.get(index) else { continue };
            let marks = object.marks().cloned().unwrap_or_default();
            for (node, hold) in self.written_beside(object) {
                let item = MarkItem { hold, marks: marks.clone() };
                by_node.entry(node).or_default().push((item, index, object.generation()));
            }
        }
        let mut asked = BTreeMap::new();
        for (node, items) in by_node {
            for chunk in items.chunks(MARK_ITEMS_MAX) {
                let request = Request::Mark(chunk.iter().map(|it| it.0.clone()).collect());
                let objects = chunk.iter().map(|(item, index, generation)| (*index, *generation, item.hold));
                let told = self.ask(node, request, Wait::Mark(objects.collect(), op));
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
    ) -> impl Iterator<Item = (NodeIndex, Hold)> + 'a {
        let promotions = &self.tier.promotions;
        object.replicas().filter(|(node, _)| !promotions.is_unsettled(object.generation(), *node))
    }

    /// A node has marks in writing.
    pub(super) fn marked(
        &mut self,
        node: NodeIndex,
        id: RequestId,
        objects: &[(ObjectIndex, Generation, Hold)],
    ) {
        objects.iter().for_each(|(index, ..)| self.unwritten.confirmed(*index, node, Some(id)));
    }

    /// A node may or may not have marks in writing.
    pub(super) fn not_marked(
        &mut self,
        node: NodeIndex,
        id: RequestId,
        objects: &[(ObjectIndex, Generation, Hold)],
        op: Option<OpId>,
    ) {
        objects.iter().for_each(|(index, ..)| self.unwritten.unconfirmed(*index, node, id));
        self.unconfirmed(node, id, &[], op);
    }

    /// One more copy of an object is known, from before this life of the master. Where its marks say more
    /// than those of the others they count: the others may have been away when it was said.
    pub(super) fn merge_marks(&mut self, index: ObjectIndex, written: &Marks) {
        let Some(object) = self.catalog.get(index) else { return };
        let known = object.marks().cloned().unwrap_or_default();
        let mut marks = known.clone();
        let merge = |into: &mut Vec<String>, from: &[String]| {
            let more: Vec<_> = from.iter().filter(|it| !into.contains(it)).cloned().collect();
            into.extend(more);
        };
        merge(&mut marks.pins, &written.pins);
        if let (Some(sample), Some(told)) = (&mut marks.sample, &written.sample) {
            merge(&mut sample.acked, &told.acked);
        }
        if marks != known || marks != *written {
            self.catalog.mark(index, marks);
            self.send_marks(vec![index], None);
        }
    }

    /// Whether a node has other marks in writing than the catalog; they are written anew then.
    pub(super) fn correct_marks(&mut self, index: ObjectIndex, node: NodeIndex, written: &Marks) {
        let marks = self.catalog.get(index).and_then(|it| it.marks().cloned()).unwrap_or_default();
        if marks == *written {
            self.unwritten.confirmed(index, node, None);
        } else {
            self.send_marks(vec![index], None);
        }
    }
}
