//! P6: a sample that all groups have consumed is treated as deleted when that is answered; a group that has
//! consumed it does not get it again; leases protect it, survive connections, and end with their client. P5:
//! a namespace gets no more than its quota, and waiting puts are served in order.

use std::collections::BTreeSet;

use tiffin_core::master::{Effect, Master, waits_for_share};
use tiffin_types::{
    ClientId, ConnId, Generation, RequestId, SegmentId, Tick,
    attributes::Consumption,
    message::{
        Ack, AckOutcome, DeleteOutcome, Granted, LeaseOutcome, Leased, Record, Reply, Reserve,
        ReserveOutcome, Reserved, Resolve, ResolveOutcome,
    },
};

use crate::{
    coverage::{Coverage, Point},
    invariants::p2::Victim,
    keyspace::{self, Name},
    oracle::{Acking, Memories, Oracle, QueuedPut},
    world::World,
};

impl Oracle {
    pub(crate) fn on_ack(&mut self, to: (ConnId, RequestId), ack: &Ack, complete: bool) {
        let leased: BTreeSet<_> = self.leases.values().map(|it| it.1).collect();
        for item in &ack.items {
            self.explain(item.generation);
            if let Some(history) = self.objects.get_mut(&item.generation) {
                history.deletes += 1;
            }
        }
        let generations = ack.items.iter().map(|it| it.generation).collect();
        let unless_leased = ack.unless_leased;
        let group = ack.group.clone();
        for item in &ack.items {
            let place = (item.generation, group.clone());
            if !unless_leased || !leased.contains(&item.generation) {
                self.deferred.remove(&place);
                self.acked_for_good.insert(place);
            } else if !self.acked_for_good.contains(&place) {
                self.deferred.insert(place);
            }
        }
        self.acking.insert(to, Acking { generations, group, complete, unless_leased, leased });
    }

    /// Whether a sample that a member reports is consumed, by the reports and requests.
    pub(crate) fn is_consumed(&self, record: &Record) -> bool {
        let all = [&self.announced_acks, &self.acked_for_good, &self.deferred];
        let mut acks = all.into_iter().flatten().filter(|it| it.0 == record.generation);
        match record.attributes.sample.as_ref().map(|it| &it.consumption) {
            Some(Consumption::Groups(groups)) => {
                let acked: BTreeSet<_> = acks.map(|it| &it.1).collect();
                groups.iter().all(|it| acked.contains(it))
            }
            Some(Consumption::Once) => acks.next().is_some(),
            _ => false,
        }
    }

    /// Acknowledgements are answered.
    pub(crate) fn acked(
        &mut self,
        to: (ConnId, RequestId),
        outcomes: &[AckOutcome],
        memories: &Memories,
        coverage: &mut Coverage,
    ) {
        let Some(acking) = self.acking.remove(&to) else { return };
        let Acking { generations, group, complete, unless_leased, leased } = acking;
        for (generation, outcome) in generations.into_iter().zip(outcomes) {
            let Some(history) = self.objects.get_mut(&generation) else { continue };
            match outcome {
                AckOutcome::Freed => {
                    let (name, returns) = (history.name, history.returns);
                    let victims = [Victim { generation, returns, gone: false }];
                    self.deleted(name, &victims, &DeleteOutcome::Deleted, complete, memories, coverage);
                }
                AckOutcome::Recorded => {
                    if unless_leased {
                        // It may be freed at any later time.
                        self.released.insert(generation);
                    } else {
                        history.deletes = history.deletes.saturating_sub(1);
                    }
                    let is_deferred = unless_leased && leased.contains(&generation);
                    // A copy that is being removed is not updated.
                    if history.by_groups && complete && history.returns == 0 && !is_deferred {
                        history.acked.insert(group.clone());
                    }
                }
                AckOutcome::Stale | AckOutcome::WrongGroup => {
                    history.deletes = history.deletes.saturating_sub(1);
                }
                AckOutcome::Unconfirmed(_) => (),
            }
        }
    }
}

impl Oracle {
    /// A sample is leased: not to a group that has consumed it.
    pub(crate) fn leased(
        &mut self,
        now: Tick,
        conn: ConnId,
        granted: &Granted,
        group: &str,
        coverage: &mut Coverage,
    ) {
        let generation = granted.found.generation;
        if !self.leased_samples(now).contains(&generation) {
            // The last lease has ended, and with it all deferred acknowledgements take effect.
            self.acked_for_good.extend(self.deferred.extract_if(.., |it| it.0 == generation));
        }
        let Some(&client) = self.conn_clients.get(&conn) else { return };
        self.leases.insert(granted.lease, (client, generation));
        let Some(history) = self.objects.get(&generation).filter(|it| it.by_groups) else { return };
        coverage.hit(Point::CheckedConsumed);
        if history.acked.contains(group) {
            let name = history.name;
            self.fail("p6", || format!("{group} has consumed {name:?} {generation}, and leased it again"));
        }
    }

    /// Leases are answered.
    pub(crate) fn lease_answered(
        &mut self,
        now: Tick,
        conn: ConnId,
        leased: &Leased,
        coverage: &mut Coverage,
    ) {
        let asked = std::mem::take(&mut self.cause.asked);
        let group = std::mem::take(&mut self.cause.group);
        for (name, outcome) in asked.into_iter().zip(&leased.items) {
            match outcome {
                LeaseOutcome::Leased(granted) => {
                    self.found(name, &granted.found, coverage);
                    self.leased(now, conn, granted, &group, coverage);
                }
                LeaseOutcome::Consumed => self.refused_as_consumed(now, name, &group, coverage),
                _ => (),
            }
        }
    }

    /// A lease is refused because the sample is consumed. That is wrong for a sample that was acknowledged
    /// while others had, and still have, it leased.
    pub(crate) fn refused_as_consumed(
        &mut self,
        now: Tick,
        name: Name,
        group: &str,
        coverage: &mut Coverage,
    ) {
        let Some(generation) = self.newest.get(&name).copied() else { return };
        let Some(history) =
            self.objects.get(&generation).filter(|_| self.leased_samples(now).contains(&generation))
        else {
            return;
        };
        coverage.hit(Point::CheckedRefusedLease);
        let is_acked = |it: &&(Generation, String)| it.0 == generation && (history.once || it.1 == group);
        // An acknowledgement whose answer was lost with the master may be in the slot.
        let is_recorded = self.announced_acks.contains(&(generation, group.to_owned()));
        if !history.acked.contains(group) && !is_recorded && self.deferred.iter().any(|it| is_acked(&it)) {
            self.fail("p6", || {
                format!("{name:?} {generation} is leased, and {group} cannot lease it as well")
            });
        }
    }

    /// A sample expires after waiting too long: only without a lease.
    pub(crate) fn given_up(
        &mut self,
        name: Name,
        generation: Generation,
        now: Tick,
        coverage: &mut Coverage,
    ) {
        coverage.hit(Point::CheckedGivenUp);
        if self.leases.values().any(|(of, leased)| *leased == generation && self.keeps_leases(*of, now)) {
            self.fail("p6", || format!("{name:?} {generation} is leased, but was dropped"));
        }
    }

    /// A client connects, and keeps its leases, unless it was away for too long.
    pub(crate) fn client_comes(&mut self, conn: ConnId, client: ClientId, now: Tick) {
        self.conn_clients.insert(conn, client);
        if !self.keeps_leases(client, now) {
            self.client_is_gone(client);
        }
        self.away.remove(&client);
    }

    /// A client's connection is closed; it may return.
    pub(crate) fn client_goes_away(&mut self, client: ClientId, now: Tick) {
        self.away.insert(client, now);
    }

    /// A client said goodbye or is dead, and its leases have ended.
    pub(crate) fn client_is_gone(&mut self, client: ClientId) {
        self.leases.retain(|_, (of, _)| *of != client);
    }

    /// A connection is closed or replaced: its requests are no longer answered.
    pub(crate) fn conn_is_gone(&mut self, conn: ConnId) {
        self.put_queue.retain(|(of, _), _| *of != conn);
    }

    pub(crate) fn keeps_leases(&self, client: ClientId, now: Tick) -> bool {
        self.away.get(&client).is_none_or(|since| now < since.after(self.lease_grace_ms))
    }

    /// Samples leased by clients that are connected, or were recently.
    fn leased_samples(&self, now: Tick) -> BTreeSet<Generation> {
        let kept = self.leases.values().filter(|(client, _)| self.keeps_leases(*client, now));
        kept.map(|(_, generation)| *generation).collect()
    }

    /// A put reserves space; `others_wait` in the same namespace.
    pub(crate) fn arrives(
        &mut self,
        to: (ConnId, RequestId),
        reserve: &Reserve,
        namespace: u8,
        others_wait: bool,
    ) {
        self.arrivals += 1;
        if others_wait {
            let waits = reserve.wait_ms > 0;
            let put = QueuedPut { namespace, arrival: self.arrivals, waits, is_beyond_share: false };
            self.put_queue.insert(to, put);
        }
    }

    /// A put is answered. If others waited when it arrived, it must not have overtaken an earlier put that
    /// still waits.
    pub(crate) fn reserved_in_order(
        &mut self,
        to: (ConnId, RequestId),
        reserved: &Reserved,
        coverage: &mut Coverage,
    ) {
        let Some(served) = self.put_queue.remove(&to) else { return };
        if !reserved
            .items
            .iter()
            .any(|it| matches!(it, ReserveOutcome::Space(reservations) if !reservations.is_empty()))
        {
            return;
        }
        coverage.hit(Point::CheckedOrder);
        let before = |it: &&QueuedPut| it.namespace == served.namespace && it.arrival < served.arrival;
        let overtaken = self.put_queue.values().filter(|it| it.waits && !it.is_beyond_share).find(before);
        if let Some(overtaken) = overtaken.map(|it| format!("{it:?}")) {
            self.fail("p5", || format!("{served:?} got space before {overtaken}"));
        } else if !served.waits {
            self.fail("p5", || format!("{served:?} got space that others wait for"));
        }
    }
}

impl World {
    /// A node is lost. Leases of samples whose last copy was there end, also if a node that joins later
    /// restores them.
    pub(crate) fn leases_end_with(&mut self, lost: SegmentId) {
        let Some(master) = &self.master else { return };
        let places = self.oracle.generation_of.iter().filter(|((segment, _), _)| *segment == lost);
        let is_gone = |generation: &Generation| {
            let name = self.oracle.objects.get(generation).map(|it| it.name);
            let found = |it: Name| master.generation(keyspace::namespace_name(it.namespace), &it.key());
            name.and_then(found) != Some(*generation)
        };
        let gone: BTreeSet<_> = places.map(|(_, generation)| *generation).filter(is_gone).collect();
        self.oracle.leases.retain(|_, (_, leased)| !gone.contains(leased));
    }

    /// Samples leased by live clients are leased, however often their connections broke.
    pub(crate) fn check_leases_kept(&mut self) {
        let now = self.read_clock();
        let Some(master) = &mut self.master else { return };
        let mut expected = [0; keyspace::NAMESPACES.len()];
        for generation in self.oracle.leased_samples(now) {
            let Some(name) = self.oracle.objects.get(&generation).map(|it| it.name) else { continue };
            // The object may have been removed on nodes that could not be informed.
            let is_there = is_there(master, now, name, generation);
            let count = expected.get_mut(name.namespace as usize);
            count.into_iter().for_each(|it| *it += u64::from(is_there));
        }
        for stat in master.stat().namespaces {
            let mut all = (0..).zip(&expected).filter(|(_, count)| **count > 0);
            let Some((_, &count)) = all.find(|(it, _)| keyspace::namespace_name(*it) == stat.name) else {
                continue;
            };
            self.coverage.hit(Point::CheckedLeasesKept);
            if stat.samples_leased < count {
                self.oracle.fail("p6", || format!("{count} samples should be leased: {stat:?}"));
            }
        }
    }

    /// After all clients have left, nothing is leased.
    pub(crate) fn check_leases_ended(&mut self) {
        let Some(master) = &self.master else { return };
        self.coverage.hit(Point::CheckedLeases);
        let leased = master.stat().namespaces.into_iter().find(|it| it.samples_leased > 0);
        if let Some(stat) = leased {
            self.oracle.fail("p6", || format!("no client is left, but samples are leased: {stat:?}"));
        }
    }

    /// After all clients have left, samples that were consumed while leased are freed.
    pub(crate) fn check_released_is_freed(&mut self) {
        let now = self.read_clock();
        let Some(master) = &mut self.master else { return };
        for generation in self.oracle.released.clone() {
            let history = self.oracle.objects.get(&generation);
            let Some(name) = history.filter(|it| it.once && it.returns == 0).map(|it| it.name) else {
                continue;
            };
            self.coverage.hit(Point::CheckedReleased);
            if is_there(master, now, name, generation) {
                let what = format!("{name:?} {generation} was consumed, but exists without a lease");
                self.oracle.fail("p6", || what);
            }
        }
    }

    /// Whether puts wait for space in a namespace, and not for the share of their client.
    pub(crate) fn puts_wait(&self, namespace: u8) -> bool {
        let Some(master) = &self.master else { return false };
        let name = keyspace::namespace_name(namespace);
        let is_in_it = |conn: ConnId| self.conns.get(&conn).is_some_and(|it| it.namespace == namespace);
        let of_share = waits_for_share(master).filter(|it| is_in_it(it.0)).count() as u64;
        master.stat().namespaces.iter().any(|it| it.name == name && it.waiting > of_share)
    }

    /// Notes which puts wait because their clients have their share.
    pub(crate) fn note_shares(&mut self) {
        let Some(master) = self.master.as_ref().filter(|_| self.plan.guaranteed_percent > 0) else { return };
        for to in waits_for_share(master) {
            self.coverage.hit(Point::ShareWaited);
            if let Some(put) = self.oracle.put_queue.get_mut(&to) {
                put.is_beyond_share = true;
            }
        }
    }

    /// Limits were changed: all limits of the namespace must be those that were set last.
    pub(crate) fn check_policy(&mut self) {
        let Some((namespace, policy)) = self.oracle.tier.take_changed_policy() else { return };
        let Some(master) = &self.master else { return };
        let name = keyspace::namespace_name(namespace);
        let Some(stat) = master.stat().namespaces.into_iter().find(|it| it.name == name) else { return };
        self.coverage.hit(Point::CheckedPolicy);
        let demotion = policy.demotion.unwrap_or(self.plan.tier.demotion);
        if (stat.quota, stat.max_hold_ms, stat.demotion) != (policy.quota, policy.max_hold_ms, demotion) {
            self.oracle.fail("p5", || format!("the limits should be {policy:?}: {stat:?}"));
        }
    }

    /// A change of limits is answered: it must be in the state folder, unless the limits were changed since.
    pub(crate) fn check_saved(&mut self, effect: &Effect) {
        let Effect::Reply(conn, id, Reply::Done) = effect else { return };
        let Some((namespace, policy)) = self.oracle.setting.remove(&(*conn, *id)) else { return };
        if self.oracle.tier.policy(namespace) != policy {
            return;
        }
        self.coverage.hit(Point::CheckedSaved);
        let name = keyspace::namespace_name(namespace);
        let saved = self.state.policies.iter().find(|it| it.namespace == name);
        let saved = saved.map(|it| it.policy.clone()).unwrap_or_default();
        if saved != policy {
            self.oracle.fail("p8", || format!("{policy:?} was answered, but {saved:?} is saved"));
        }
    }

    /// Space was allocated: the namespace must be within its quota.
    pub(crate) fn check_quota(&mut self, namespace: u8) {
        let Some(master) = &self.master else { return };
        let name = keyspace::namespace_name(namespace);
        let stats = master.stat().namespaces;
        let Some(stat) = stats.into_iter().find(|it| it.name == name) else { return };
        let Some(quota) = stat.quota else { return };
        self.coverage.hit(Point::CheckedQuota);
        if stat.used > quota {
            self.oracle.fail("p5", || format!("a namespace has more than its quota: {stat:?}"));
        }
    }
}

/// Whether the master has the object.
fn is_there(master: &mut Master, now: Tick, name: Name, generation: Generation) -> bool {
    let keys = vec![name.key()];
    let resolve = Resolve { keys, touch: false, lease: false, locate: false, ..Resolve::default() };
    let reply = master.resolve(now, keyspace::namespace_name(name.namespace), &resolve);
    let is_it = |it: &ResolveOutcome| match it {
        ResolveOutcome::Found(found) => found.generation == generation,
        _ => false,
    };
    matches!(reply, Reply::Resolved(it) if it.items.iter().any(is_it))
}
