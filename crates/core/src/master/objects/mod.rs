//! The objects, and the state that each module of the master keeps for them.
//!
//! The removal of an object concerns every module: its copies are retired, and its leases, its position in
//! a stream and its promotions end. So only [`Objects::forget`] removes objects from the catalog.
//! Operations such as reservations and deletes are built on top of this, and are independent of those
//! modules.

pub(in crate::master) mod departing;
pub(in crate::master) mod floors;
pub(in crate::master) mod history;
mod quota;
pub(in crate::master) mod reports;
pub(in crate::master) mod unwritten;

use std::sync::Arc;

use departing::Departures;
use history::History;
use reports::Reports;
use unwritten::Unwritten;

use super::{
    EvictionCause,
    catalog::{NodeIndex, ObjectIndex},
    context::Context,
    leases::Leases,
    pending_retires::Name,
    stream::Streams,
    tier::Tier,
};
use crate::{
    ClientId, ConnId, Generation, Key, RequestId, SlotRef,
    message::{Cause, Reply},
    mutant::is_mutant,
};

/// The copies of an object.
type Replicas = Vec<(NodeIndex, SlotRef)>;

/// See the module.
#[derive(Debug)]
pub(in crate::master) struct Objects {
    pub(in crate::master) cx: Context,
    pub(in crate::master) tier: Tier,
    pub(in crate::master) leases: Leases,
    pub(in crate::master) streams: Streams,
    pub(in crate::master) unwritten: Unwritten,
    pub(in crate::master) history: History,
    pub(in crate::master) departures: Departures,
    pub(in crate::master) reports: Reports,
    /// The lookup in progress has met a removal that may be undone.
    pub(in crate::master) has_met_removal: bool,
    pub(in crate::master) next_generation: u64,
    /// The namespace that the last sweep ended with.
    pub(in crate::master) swept_namespace: String,
}

impl Objects {
    pub(in crate::master) fn new(cx: Context) -> Self {
        let config = cx.config;
        Self {
            cx,
            tier: Tier::new(config.tier, config.epoch),
            leases: Leases::after(config.first_counter),
            streams: Streams::default(),
            unwritten: Unwritten::default(),
            history: History::new(config.mutant),
            departures: Departures::default(),
            reports: Reports::default(),
            has_met_removal: false,
            next_generation: config.first_counter,
            swept_namespace: String::new(),
        }
    }

    /// Removes an object from the catalog, and records why. The caller must retire the returned replicas.
    pub(in crate::master) fn take_out(
        &mut self,
        index: ObjectIndex,
        cause: Cause,
        by: &str,
    ) -> Vec<(NodeIndex, SlotRef)> {
        let Some((name, generation, mut replicas)) = self.forget(index, cause, by) else { return Vec::new() };
        self.reports.raise_floor_above(&self.cx, &name, generation);
        let held = self.cx.held_copies(&name);
        for &copy in &replicas {
            self.cx.pending_retires.insert(&name, generation, copy);
        }
        replicas.extend(held);
        replicas
    }

    /// The same for a client that is told that the object is gone: also the copies that were removed before
    /// it, and whose nodes have not confirmed that, must be gone.
    pub(super) fn take_out_all(&mut self, index: ObjectIndex, cause: Cause, by: &str) -> Replicas {
        let object = self.cx.catalog.get(index);
        let mut pending = object.map(|it| self.cx.pending_of(it.namespace(), it.key())).unwrap_or_default();
        let mut replicas = self.take_out(index, cause, by);
        pending.retain(|it| !replicas.contains(it));
        if !is_mutant!(self.cx.config.mutant, FreeWithoutSurplus) {
            replicas.extend(pending);
        }
        replicas
    }

    /// Removes an object from the catalog, and records why. The returned replicas are gone, or their state
    /// is unknown. Those on lost nodes need no retire.
    pub(in crate::master) fn forget(
        &mut self,
        index: ObjectIndex,
        cause: Cause,
        by: &str,
    ) -> Option<(Arc<Name>, Generation, Replicas)> {
        let object = self.cx.catalog.remove(index)?;
        self.unwritten.forget(index);
        let disk_bytes_max = self.tier.forget_object(&mut self.cx, index, object.generation());
        if object.is_sample() {
            self.leases.leave(object.namespace(), object.put(), index);
            self.streams.leave(&self.cx, &object, cause);
        }
        let name = Arc::new(Name { namespace: object.namespace(), key: object.key().clone() });
        let generation = object.generation();
        let hash = self.cx.catalog.hash(name.namespace, name.key.as_bytes());
        let named = (Arc::clone(&name), hash);
        self.history.note(self.cx.now, named, generation, (cause, by), object.reader());
        self.history.had_been_refused(disk_bytes_max);
        self.cx.quotas.note_change();
        let (in_memory, on_disk) = object.tiers();
        // The event of the new object replaces that of the old one.
        self.cx.notice_removed(&name, in_memory && cause != Cause::Replaced, on_disk);
        let members = &self.cx.members;
        Some((name, generation, object.replicas().filter(|it| !members.is_leaving(it.0)).collect()))
    }

    /// Removes the copy on one node from the catalog, and the object with its last copy. A copy that is
    /// being written to a disk may exist already, even if the reply was lost; the disk will report it.
    /// Copies that are being promoted are retired with the last one.
    pub(in crate::master) fn lose_copy(&mut self, index: ObjectIndex, node: NodeIndex, cause: Cause) {
        let last = self.cx.catalog.get(index).is_some_and(|it| it.homes().all(|on| on == node));
        if !last {
            return self.cx.catalog.drop_replica(index, node);
        }
        let name = self.cx.members.name(node);
        let Some((object, generation, mut rest)) = self.forget(index, cause, "") else { return };
        self.reports.raise_floor(&self.cx, &object, generation);
        self.history.went_with(name);
        rest.retain(|(on, _)| *on != node);
        rest.iter().for_each(|copy| self.cx.pending_retires.insert(&object, generation, *copy));
        self.cx.retire(rest, None);
    }

    /// Removes the copy on one member from the catalog, and the object with its last copy. The returned
    /// copy is a pending retire: the caller must inform the member.
    pub(in crate::master) fn withdraw_copy(
        &mut self,
        index: ObjectIndex,
        node: NodeIndex,
    ) -> Option<SlotRef> {
        let object = self.cx.catalog.get(index)?;
        let slot_ref = object.replicas().find(|(on, _)| *on == node).map(|(_, slot_ref)| slot_ref)?;
        let name = Arc::new(Name { namespace: object.namespace(), key: object.key().clone() });
        let generation = object.generation();
        self.lose_copy(index, node, Cause::NodeLost);
        self.cx.pending_retires.insert(&name, generation, (node, slot_ref));
        Some(slot_ref)
    }

    /// Removes one object from memory to free space for another, on a node or within a quota.
    pub(in crate::master) fn evict(
        &mut self,
        victim: ObjectIndex,
        node: Option<NodeIndex>,
        (by, key): (&str, &Key),
    ) {
        let cause = node.map_or(EvictionCause::Quota, |_| EvictionCause::Memory);
        self.cx.count_eviction(victim, cause);
        if self.tier.leave_memory(&mut self.cx, victim, node) {
            return;
        }
        self.tier.count_evicted(&self.cx, node);
        let gone = take_out_last(self, victim, Cause::Evicted, by);
        self.history.freed_space(node.map_or_else(String::new, |node| self.cx.members.name(node)), key);
        // No operation waits for the reply: the request that needs the space follows on the same
        // connection, in order.
        self.cx.retire(gone, None);
    }

    /// The connection of a client broke. The client may reconnect, or has already done so.
    pub(in crate::master) fn client_broke(&mut self, client: ClientId, is_away: bool) {
        if is_mutant!(self.cx.config.mutant, LeasesEndWithConnections) {
            return self.client_gone(client);
        }
        if is_away && !self.leases.client_away(&self.cx, client) {
            self.streams.detach(client);
        }
    }

    /// A client is gone for good: it said so, or a node has proof of it.
    pub(in crate::master) fn client_gone(&mut self, client: ClientId) {
        self.streams.detach(client);
        self.leases.client_gone(&self.cx, client);
    }

    /// Ends the leases of clients that have been disconnected for too long, and frees samples that have
    /// been held too long.
    pub(in crate::master) fn end_leases(&mut self) {
        self.leases.late_clients(self.cx.now).into_iter().for_each(|client| self.client_gone(client));
        for index in self.leases.take_expired(&self.cx) {
            let gone = take_out_last(self, index, Cause::HeldTooLong, "");
            self.cx.retire(gone, None);
        }
    }

    /// Frees the consumed samples whose last lease has ended.
    pub(in crate::master) fn free_released(&mut self) {
        for (index, who) in self.leases.take_released() {
            if is_mutant!(self.cx.config.mutant, KeepReleased) {
                continue;
            }
            let gone = take_out_last(self, index, Cause::Consumed, &who);
            self.cx.retire(gone, None);
        }
    }

    /// Answers a client's request. An absence that the client learns must be final.
    pub(in crate::master) fn answer(&mut self, conn: ConnId, id: RequestId, reply: Reply) {
        match std::mem::take(&mut self.has_met_removal) {
            true => self.cx.reply_when_saved(conn, id, reply),
            false => self.cx.reply(conn, id, reply),
        }
    }

    pub(in crate::master) fn mint_generation(&mut self) -> Generation {
        self.next_generation += 1;
        Generation { epoch: self.cx.config.epoch, counter: self.next_generation }
    }
}

/// Removes an object that no client removes, see [`Objects::take_out`]. What it has replaced goes first.
pub(in crate::master) fn take_out_last(
    o: &mut Objects,
    index: ObjectIndex,
    cause: Cause,
    by: &str,
) -> Replicas {
    let object = o.cx.catalog.get(index);
    let older = object.map(|it| o.cx.pending_of(it.namespace(), it.key())).unwrap_or_default();
    let gone = o.take_out(index, cause, by);
    if older.is_empty() {
        return gone;
    }
    let copies: Vec<_> = gone.iter().copied().filter(|it| !older.contains(it)).collect();
    o.cx.retire_after(&older, &copies);
    gone
}
