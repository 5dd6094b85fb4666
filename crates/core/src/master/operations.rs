//! The operations of clients that wait: for members, for space, for a limit, for promotions or samples, or
//! for their deadline.
//!
//! Each part owns the operations of one kind. [`Operations`] routes to them what concerns any operation: a
//! reply of a member or its end, a deadline, a closed connection, a cancelled request, freed space.

use std::sync::Arc;

use super::{
    Context, Fetched, Objects, OpId, Wait, catalog::NodeIndex, delete::Retires, reserve::Reservations,
    unreported::Parking, watches::Watches, why::Explanations,
};
use crate::{ConnId, RequestId, Tick, mutant::is_mutant};

/// Maximum number of waiting puts that one event tries again. The others follow in the next pieces of work.
const TRIES_MAX: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Operations {
    pub(super) reservations: Reservations,
    pub(super) retires: Retires,
    pub(super) watches: Watches,
    pub(super) explanations: Explanations,
    /// Requests that wait until all members have reported.
    pub(super) parking: Parking,
    /// The end of the leases that keep waiting puts from evicting.
    lease_end: Option<Tick>,
}

impl Operations {
    /// Number of operations that wait.
    pub(super) fn len(&self, o: &Objects) -> usize {
        let parts = [
            self.reservations.len(),
            self.retires.len(),
            self.watches.len(),
            self.explanations.len(),
            self.parking.len(),
            o.tier.waiting_count(),
            o.streams.waiting_count(),
        ];
        parts.iter().sum()
    }

    /// Checks that every request that waits is listed, and no other.
    pub(super) fn check(&self, o: &Objects) -> Result<(), String> {
        let parts = [
            self.reservations.queued_count(),
            self.retires.job_count(),
            self.watches.len(),
            self.explanations.len(),
            o.tier.waiting_count(),
            o.streams.waiting_count(),
        ];
        let (waiting, listed) = (parts.iter().sum::<usize>(), o.cx.waiting.len());
        match waiting == listed {
            true => Ok(()),
            false => Err(format!("limits: {waiting} requests wait ({parts:?}), {listed} are listed")),
        }
    }

    /// When [`Self::end_late`] is due.
    #[inline]
    pub(super) fn next_deadline(&self, cx: &Context) -> Option<Tick> {
        self.retires.next_deadline(cx.now).into_iter().chain(cx.deadlines.next()).min()
    }

    /// The end of the leases that keep waiting puts from evicting.
    pub(super) fn lease_end(&self) -> Option<Tick> {
        self.lease_end
    }

    /// Answers the requests whose deadline has passed. The nodes are still expected to confirm.
    #[inline]
    pub(super) fn end_late(&mut self, o: &mut Objects) {
        for op in o.cx.deadlines.take_due(o.cx.now) {
            // The operation is in one of these, or has ended.
            self.reservations.end_parked(o, op);
            self.retires.confirm_no_longer(o, op);
            self.watches.end_watch(o, op);
            self.parking.end(o, op);
            if o.tier.fetches.is_late(&o.cx, op) {
                end_fetch(o, op);
            }
            o.streams.end_pull(&mut o.cx, &mut o.leases, op);
        }
        self.retires.end_late_drops(o);
    }

    /// Retries the puts that wait for space, if the state that they depend on has changed.
    #[inline]
    pub(super) fn serve_puts(&mut self, o: &mut Objects) {
        let lease_ended = self.lease_end.is_some_and(|end| end <= o.cx.now);
        if o.cx.quotas.take_change() || lease_ended {
            o.cx.quotas.try_all();
            self.wake(o);
        }
        let waits = o.cx.quotas.anybody_waits();
        self.lease_end = waits.then(|| o.cx.catalog.next_lease_end(o.cx.now)).flatten();
    }

    /// Retries the puts and watchers that wait, a bounded number at a time. Serving one put may free space
    /// for the next; each is served at most once per change.
    pub(super) fn wake(&mut self, o: &mut Objects) {
        let last_first = is_mutant!(o.cx.config.mutant, ServeTheLast);
        for _ in 0..TRIES_MAX {
            let Some(op) = o.cx.quotas.next_untried(last_first) else { break };
            self.reservations.try_again(o, op);
        }
        self.watches.look_at_all(o);
    }

    /// Whether puts or watchers are left that the last change may serve.
    pub(super) fn has_more_to_wake(&self, cx: &Context) -> bool {
        cx.quotas.has_untried() || self.watches.has_more()
    }

    /// Starts promotions and demotions that have become possible, and answers the requests that waited for
    /// them.
    #[inline]
    pub(super) fn serve_tier(&mut self, o: &mut Objects) {
        o.tier.serve(&mut o.cx);
        while let Some(op) = o.tier.fetches.take_woken() {
            end_fetch(o, op);
        }
    }

    /// A connection is closed: its requests are not answered. Deletes and drops continue.
    pub(super) fn forget(&mut self, o: &mut Objects, conn: ConnId) {
        for op in o.cx.waiting.of(conn) {
            o.tier.fetches.end(&mut o.cx, op);
            o.streams.forget_pull(&mut o.cx, op);
            self.reservations.forget(o, op);
            self.watches.forget(&mut o.cx, op);
            self.explanations.forget(&mut o.cx, op);
        }
        self.parking.forget(o, conn);
    }

    /// A client no longer waits for an answer: its deadline is now.
    pub(super) fn cancel(&mut self, o: &mut Objects, conn: ConnId, id: RequestId) {
        self.reservations.cancel(&mut o.cx, conn, id);
        self.watches.cancel(&mut o.cx, conn, id);
        self.parking.cancel(&mut o.cx, conn, id);
        o.tier.fetches.cancel(&mut o.cx, conn, id);
        o.streams.cancel_pull(&mut o.cx, conn, id);
        self.end_late(o);
    }

    /// A member is disconnected, and will not answer what it was asked.
    pub(super) fn member_away(&mut self, o: &mut Objects, node: NodeIndex) {
        let asked: Vec<_> = o.cx.waits.iter().filter(|(_, (on, _))| *on == node).map(|(id, _)| *id).collect();
        for id in asked {
            match o.cx.waits.remove(&id) {
                Some((_, Wait::Allocate(op, items))) => self.reservations.not_allocated(o, node, op, &items),
                Some((_, Wait::Retire(slot_refs, op) | Wait::Withdraw(slot_refs, op))) => {
                    self.retires.unconfirmed(o, node, id, &slot_refs, op)
                }
                // The attributes are corrected when the node returns.
                Some((_, Wait::SetAttributes(objects, op))) => {
                    self.retires.attributes_not_set(o, node, id, &objects, op)
                }
                Some((_, Wait::Inspect(op, items))) => self.explanations.inspected(o, op, &items, &[]),
                Some((_, Wait::Demote(leaving))) => o.tier.disk_away(&mut o.cx, node, &leaving),
                // The promotion has ended.
                Some((_, Wait::PromoteSpace(id, charged))) => {
                    o.tier.promotion_has_memory(&mut o.cx, node, (id, charged), None);
                }
                Some((_, Wait::Promote(_) | Wait::PromoteSettle(_))) => (),
                // The node announces its committed copies when it returns.
                Some((_, Wait::Settle(_, op))) => self.retires.confirmed(o, id, op),
                // The node receives it again when it returns.
                Some((_, Wait::Publish(objects, op))) => {
                    o.cx.note_unreceived(node, objects);
                    if let Some(slot_refs) = o.cx.held_retires.take_withdrawn(id) {
                        o.cx.owe(node, &slot_refs);
                    }
                    self.retires.not_published(o, node, id, op);
                }
                // The same. What the objects replace is retired after that.
                Some((_, Wait::Replace(objects))) => o.cx.note_unreceived(node, objects),
                None => (),
            }
        }
    }

    /// A member is silent. New objects go to other nodes, and its open allocations are requested from those.
    pub(super) fn member_silent(&mut self, o: &mut Objects, node: NodeIndex) {
        let is_allocation =
            |(on, wait): &(NodeIndex, Wait)| *on == node && matches!(wait, Wait::Allocate(..));
        let allocations = o.cx.waits.iter().filter(|(_, it)| is_allocation(it));
        let allocations: Vec<_> = allocations.map(|(id, _)| *id).collect();
        for id in allocations {
            if let Some((_, Wait::Allocate(op, items))) = o.cx.waits.remove(&id) {
                self.reservations.not_allocated(o, node, op, &items);
            }
        }
        // No put waits for its copy on the silent node. The node reports the state of that copy when it
        // sends again. The others end with the connection.
        let (mut copies, mut published) = (Vec::new(), Vec::new());
        for (id, (_, wait)) in o.cx.waits.iter().filter(|(_, (on, _))| *on == node) {
            match wait {
                Wait::Settle(_, op) => copies.push((*id, *op)),
                Wait::Publish(_, op) => published.push((*id, *op)),
                Wait::Allocate(..)
                | Wait::Retire(..)
                | Wait::Replace(_)
                | Wait::Withdraw(..)
                | Wait::SetAttributes(..)
                | Wait::Inspect(..)
                | Wait::Demote(_)
                | Wait::PromoteSpace(..)
                | Wait::Promote(_)
                | Wait::PromoteSettle(_) => {}
            }
        }
        for (id, op) in copies {
            self.retires.confirmed(o, id, op);
        }
        for (id, op) in published {
            self.retires.not_published(o, node, id, op);
        }
    }
}

/// Answers a request that has waited for promotions.
pub(super) fn end_fetch(o: &mut Objects, op: OpId) {
    let Some(fetching) = o.tier.fetches.end(&mut o.cx, op) else { return };
    let (conn, id, caller) = (fetching.conn, fetching.id, Arc::clone(&fetching.caller));
    if !o.cx.connections.is_open(conn) {
        return;
    }
    let reply = match o.tier.answer(&o.cx, fetching) {
        Fetched::Resolve(resolve, waited) => o.resolve(&caller, &resolve, Some(waited)),
        Fetched::Reply(reply) => reply,
    };
    o.answer(conn, id, reply);
}
