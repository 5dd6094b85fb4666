//! Replies of nodes: routes each of them to the module that waits for it.

use super::{
    Objects, Operations, Party, Wait,
    catalog::{NodeIndex, ObjectIndex},
    tier::{DemotionEnd, Leaving, ends},
};
use crate::{
    ConnId, RequestId, Reservation,
    message::{Cause, Dropped, Moved, Reply},
};

impl Operations {
    /// Applies a node's reply to a request.
    pub(super) fn reply(&mut self, o: &mut Objects, conn: ConnId, id: RequestId, reply: Reply) {
        let Some(&Party::Node(Some(node))) = o.cx.connections.get(conn) else { return };
        o.cx.note_message(node);
        if let Reply::Settled(settled) = &reply {
            self.retires.settled_all(o, node, settled);
        }
        let Some((asked, wait)) = o.cx.waits.remove(&id) else {
            return late_reply(o, node, reply);
        };
        if asked != node {
            o.cx.waits.insert(id, (asked, wait));
            return;
        }
        match (wait, reply) {
            (Wait::Allocate(op, items), Reply::Allocated(allocated)) => {
                self.reservations.allocated(o, node, op, &items, allocated);
            }
            (Wait::Allocate(op, items), _) => self.reservations.not_allocated(o, node, op, &items),
            (Wait::Retire(slot_refs, op) | Wait::Withdraw(slot_refs, op), Reply::Settled(settled)) => {
                o.cx.report(node, settled.usage);
                self.retires.retired(o, node, id, &slot_refs, op);
            }
            (Wait::Settle(objects, op), Reply::Settled(settled)) => {
                o.cx.report(node, settled.usage);
                o.settled(node, &objects, &settled.lost);
                self.retires.confirmed(o, id, op);
            }
            (Wait::SetAttributes(objects, op), Reply::Settled(settled)) => {
                o.cx.report(node, settled.usage);
                objects.iter().for_each(|(index, ..)| o.unwritten.confirmed(*index, node, Some(id)));
                o.settled(node, &objects, &settled.lost);
                self.retires.confirmed(o, id, op);
            }
            (Wait::SetAttributes(objects, op), _) => {
                self.retires.attributes_not_set(o, node, id, &objects, op)
            }
            (Wait::Demote(leaving), reply) => demote_replied(o, node, &leaving, &reply),
            (Wait::PromoteSpace(id, charged), reply) => {
                let reservation = one_allocated(o, node, reply);
                o.tier.promotion_has_memory(&mut o.cx, node, (id, charged), reservation);
            }
            (Wait::Promote(id), Reply::Moved(moved)) => {
                o.cx.report(node, moved.usage);
                o.tier.promotion_has_bytes(&mut o.cx, id, moved.items == [true]);
            }
            (Wait::PromoteSettle(id), Reply::Settled(settled)) => {
                o.cx.report(node, settled.usage);
                o.tier.promotion_is_settled(&mut o.cx, id, &settled.lost);
            }
            (Wait::Promote(id) | Wait::PromoteSettle(id), _) => o.tier.promotion_broke(&mut o.cx, id),
            (Wait::Inspect(op, items), Reply::Inspected(views)) => {
                self.explanations.inspected(o, op, &items, &views);
            }
            (Wait::Inspect(op, items), _) => self.explanations.inspected(o, op, &items, &[]),
            // A node that rejects a retire may still serve the old copy.
            (Wait::Retire(it, op) | Wait::Withdraw(it, op), _) => {
                self.retires.unconfirmed(o, node, id, &it, op)
            }
            (Wait::Publish(objects, op), reply) => {
                self.retires.settle_replied(o, node, id, &objects, op, reply)
            }
            (Wait::Replace(objects), reply) => self.retires.has_replaced(o, node, id, &objects, reply),
            // A node that refuses to settle has none of these copies: the put has no other to wait for there.
            (Wait::Settle(replicas, op), _) => {
                let lost: Vec<_> = replicas.iter().map(|it| it.2).collect();
                o.settled(node, &replicas, &lost);
                self.retires.confirmed(o, id, op);
            }
        }
    }
}

/// The reservation in a reply about one object. The node's report wakes no put, as in
/// [`Reservations`](super::reserve::Reservations).
fn one_allocated(o: &mut Objects, node: NodeIndex, reply: Reply) -> Option<Reservation> {
    let Reply::Allocated(mut allocated) = reply else { return None };
    if let Some(member) = o.cx.members.get_mut(node) {
        member.report(o.cx.now, allocated.usage);
    }
    allocated.items.pop().flatten()
}

fn demote_replied(o: &mut Objects, disk: NodeIndex, leaving: &[Leaving], reply: &Reply) {
    let Reply::Moved(moved) = reply else { return demoted(o, disk, leaving, &Moved::default()) };
    o.cx.report(disk, moved.usage);
    demoted(o, disk, leaving, moved);
}

/// A disk has written objects, or failed to.
fn demoted(o: &mut Objects, disk: NodeIndex, leaving: &[Leaving], moved: &Moved) {
    for end in ends(leaving, moved) {
        let index = end.0.index;
        match o.tier.end_demotion(&mut o.cx, disk, end) {
            DemotionEnd::Settled => (),
            DemotionEnd::Refused => o.lose_copy(index, disk, Cause::NodeLost),
            DemotionEnd::Lost => {
                o.lose_copy(index, disk, Cause::NodeLost);
                // With write-through, it is tried again.
                o.tier.write_through(&o.cx, index);
            }
        }
    }
    o.tier.wake();
    o.cx.quotas.note_change();
}

/// A disk has dropped copies that it was not asked to retire.
pub(super) fn dropped(o: &mut Objects, disk: NodeIndex, dropped: &Dropped) -> Reply {
    o.cx.note_message(disk);
    o.cx.report(disk, dropped.usage);
    o.tier.count_dropped(dropped);
    for record in &dropped.items {
        o.cx.pending_retires.remove(disk, record.slot_ref);
        let namespace = o.cx.catalog.intern(&record.namespace);
        let index = o.cx.catalog.find(namespace, &record.key);
        let is_it = |it: &ObjectIndex| {
            let object = o.cx.catalog.get(*it);
            object.is_some_and(|it| it.replicas().any(|it| it == (disk, record.slot_ref)))
        };
        if let Some(index) = index.filter(is_it) {
            if !dropped.corrupt {
                o.tier.evicted_on_disk(&o.cx, index, disk);
            }
            o.lose_copy(index, disk, Cause::Evicted);
        }
    }
    o.tier.wake();
    Reply::Done
}

/// The request has ended. Memory that a node allocated too late is returned.
fn late_reply(o: &mut Objects, node: NodeIndex, reply: Reply) {
    if let Reply::Allocated(allocated) = reply {
        let found = allocated.items.into_iter().flatten();
        o.cx.abort_all(found.map(|it| (node, it.location.slot_ref())).collect());
    }
}
