//! Samples: objects that are consumed.
//!
//! A sample is one object, whatever it is made of: its parts are reserved, committed, read and freed together
//! because they lie under one stamp. What this module adds is who has it leased, and who has consumed it.
//!
//! **Invariant:** a sample is never evicted: it leaves when it is consumed, deleted, replaced, or has waited
//! for longer than its namespace's policy allows while nobody leased it.
//! **Invariant:** a lease ends when it is released, when its sample is gone, when its client says goodbye or
//! is proven dead, or when the client's connection has been broken for longer than the operator allows. A
//! client that comes back in time has its leases as before.
//! **Invariant:** an acknowledgement is in writing on the nodes before it is answered.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Master, Visitor,
    catalog::{NamespaceIndex, NodeIndex, ObjectIndex},
    confirm::Answer,
    refuse,
    stream::StreamIndex,
};
use crate::{
    BATCH_ITEMS_MAX, ClientId, ConnId, Generation, Hold, RequestId, Tick,
    marks::Consumption,
    message::{
        Ack, AckItem, AckOutcome, Cause, Granted, Lease, LeaseItem, LeaseOutcome, Leased, Reason, Release,
        Reply,
    },
    sabotage::sabotaged,
};

/// Leases that one client may have.
const LEASES_PER_CLIENT_MAX: usize = 1 << 16;

/// Who has what leased.
#[derive(Debug, Default)]
pub(super) struct Leases {
    next: u64,
    leases: BTreeMap<u64, Held>,
    by_object: BTreeSet<(ObjectIndex, u64)>,
    by_client: BTreeSet<(ClientId, u64)>,
    /// Clients that have leases and are not connected: until when these are kept for them.
    away: BTreeMap<ClientId, Tick>,
    /// Samples by namespace and by the time they were put.
    waiting: BTreeSet<(NamespaceIndex, Tick, ObjectIndex)>,
    /// What was pulled from a stream by leases that have ended.
    put_back: Vec<Pulled>,
}

/// What was pulled, from which stream, by which group.
type Pulled = (StreamIndex, String, Generation);

#[derive(Debug)]
struct Held {
    object: ObjectIndex,
    client: ClientId,
    label: String,
    pulled: Option<Pulled>,
}

/// The sums of a namespace's samples.
#[derive(Debug, Default)]
pub(super) struct SampleStat {
    pub(super) count: u64,
    pub(super) leased: u64,
    pub(super) oldest: Option<Tick>,
    pub(super) bytes: u64,
    pub(super) bytes_leased: u64,
    pub(super) oldest_leased: Option<Tick>,
}

impl Leases {
    fn grant(&mut self, object: ObjectIndex, visitor: &Visitor, pulled: Option<Pulled>) -> u64 {
        self.next += 1;
        let lease = self.next;
        let held = Held { object, client: visitor.client, label: visitor.label.clone(), pulled };
        self.leases.insert(lease, held);
        self.by_object.insert((object, lease));
        self.by_client.insert((visitor.client, lease));
        lease
    }

    /// Leases what was pulled from a stream.
    pub(super) fn grant_pulled(&mut self, object: ObjectIndex, visitor: &Visitor, pulled: Pulled) -> u64 {
        self.grant(object, visitor, Some(pulled))
    }

    /// What was pulled by leases that have ended since this was asked last.
    pub(super) fn take_put_back(&mut self) -> Vec<Pulled> {
        std::mem::take(&mut self.put_back)
    }

    /// How many more leases a client may have.
    pub(super) fn left_for(&self, client: ClientId) -> usize {
        LEASES_PER_CLIENT_MAX.saturating_sub(self.of_client(client).count())
    }

    /// Ends a lease, if the client has it.
    fn end(&mut self, lease: u64, client: ClientId) -> bool {
        if self.leases.get(&lease).is_none_or(|it| it.client != client) {
            return false;
        }
        let Some(held) = self.leases.remove(&lease) else { return false };
        self.by_object.remove(&(held.object, lease));
        self.by_client.remove(&(held.client, lease));
        self.put_back.extend(held.pulled);
        true
    }

    /// Ends the leases of a client, apart from those that it says it knows of.
    fn end_all_but(&mut self, client: ClientId, known: &[u64]) {
        let known: BTreeSet<_> = known.iter().copied().collect();
        let leases: Vec<_> = self.of_client(client).filter(|it| !known.contains(it)).collect();
        leases.into_iter().for_each(|lease| _ = self.end(lease, client));
    }

    /// A client is connected again.
    pub(super) fn come_back(&mut self, client: ClientId) {
        self.away.remove(&client);
    }

    /// When the first client that is not connected loses its leases.
    pub(super) fn next_end(&self) -> Option<Tick> {
        self.away.values().min().copied()
    }

    /// A sample is there, and waits to be consumed.
    pub(super) fn arrive(&mut self, namespace: NamespaceIndex, put: Tick, object: ObjectIndex) {
        self.waiting.insert((namespace, put, object));
    }

    /// A sample is gone, and so is the point of its leases.
    pub(super) fn leave(&mut self, namespace: NamespaceIndex, put: Tick, object: ObjectIndex) {
        self.waiting.remove(&(namespace, put, object));
        let leases: Vec<_> = self.of_object(object).collect();
        for lease in leases {
            if let Some(client) = self.leases.get(&lease).map(|it| it.client) {
                self.end(lease, client);
            }
        }
    }

    /// Every lease: of what, and whose.
    pub(super) fn held(&self) -> impl Iterator<Item = (ObjectIndex, &str)> {
        self.leases.values().map(|it| (it.object, it.label.as_str()))
    }

    fn of_object(&self, object: ObjectIndex) -> impl Iterator<Item = u64> + '_ {
        self.by_object.range((object, 0)..=(object, u64::MAX)).map(|it| it.1)
    }

    fn of_client(&self, client: ClientId) -> impl Iterator<Item = u64> + '_ {
        self.by_client.range((client, 0)..=(client, u64::MAX)).map(|it| it.1)
    }

    fn is_leased(&self, object: ObjectIndex) -> bool {
        self.of_object(object).next().is_some()
    }

    fn of_namespace(&self, namespace: NamespaceIndex) -> impl Iterator<Item = (Tick, ObjectIndex)> + '_ {
        let first = (namespace, Tick(0), ObjectIndex::MIN);
        let last = (namespace, Tick(u64::MAX), ObjectIndex::MAX);
        self.waiting.range(first..=last).map(|it| (it.1, it.2))
    }
}

impl Master {
    pub(super) fn lease(&mut self, visitor: &Visitor, lease: &Lease) -> Reply {
        let many = self.leases.of_client(visitor.client).count() + lease.items.len() > LEASES_PER_CLIENT_MAX;
        if lease.items.len() > BATCH_ITEMS_MAX || many {
            return refuse(Reason::Busy, "too many leases at a time");
        }
        let mut nodes = BTreeSet::new();
        let items = lease.items.iter().map(|item| self.lease_one(visitor, item, &lease.group, &mut nodes));
        let items = items.collect();
        Reply::Leased(Leased { items, nodes: self.infos(nodes) })
    }

    fn lease_one(
        &mut self,
        visitor: &Visitor,
        item: &LeaseItem,
        group: &str,
        nodes: &mut BTreeSet<NodeIndex>,
    ) -> LeaseOutcome {
        let index = self.catalog.find(visitor.namespace, &item.key);
        let Some((index, object)) = index.and_then(|it| Some((it, self.catalog.get(it)?))) else {
            return LeaseOutcome::Absent;
        };
        if item.generation.is_some_and(|wanted| wanted != object.generation()) {
            return LeaseOutcome::Superseded(object.generation());
        }
        let Some(sample) = object.marks().and_then(|it| it.sample.as_ref()) else {
            return LeaseOutcome::NotASample;
        };
        if let Consumption::Groups(groups) = &sample.consumption
            && !groups.iter().any(|it| it == group)
        {
            return LeaseOutcome::WrongGroup;
        }
        if sample.acked.iter().any(|it| it == group) {
            return LeaseOutcome::Consumed;
        }
        let found = self.found(object, true, nodes);
        self.catalog.touch(index, self.now, None);
        LeaseOutcome::Leased(Granted { lease: self.leases.grant(index, visitor, None), found })
    }

    pub(super) fn release(&mut self, visitor: &Visitor, release: &Release) -> Reply {
        for &lease in &release.leases {
            self.leases.end(lease, visitor.client);
        }
        Reply::Done
    }

    /// A client that connected again tells which leases it knows of.
    pub(super) fn keep_leases(&mut self, client: ClientId, known: &[u64]) -> Reply {
        self.leases.end_all_but(client, known);
        Reply::Done
    }

    /// A client's connection broke, and it may come back; or it is back already, by a new one.
    pub(super) fn client_broke(&mut self, client: ClientId, is_away: bool) {
        if sabotaged!(self.config.sabotage, LeasesEndWithConnections) {
            return self.end_leases(client);
        }
        if is_away && self.leases.of_client(client).next().is_some() {
            self.leases.away.insert(client, self.now.after(self.config.lease_grace_ms));
        } else if is_away {
            self.streams.detach(client);
        }
    }

    /// A node has proof that a client is dead.
    pub(super) fn client_died(&mut self, client: ClientId) -> Reply {
        self.end_leases(client);
        Reply::Done
    }

    /// A client is gone for good: nothing of it is leased any more.
    pub(super) fn end_leases(&mut self, client: ClientId) {
        self.leases.away.remove(&client);
        self.streams.detach(client);
        if !sabotaged!(self.config.sabotage, LeasesOutliveClients) {
            self.leases.end_all_but(client, &[]);
        }
    }

    /// Ends the leases of those who have been away for too long.
    pub(super) fn end_leases_of_the_away(&mut self) {
        let late = self.leases.away.iter().filter(|(_, until)| **until <= self.now).map(|it| *it.0);
        for client in late.collect::<Vec<_>>() {
            self.end_leases(client);
        }
    }

    pub(super) fn ack(&mut self, conn: ConnId, id: RequestId, visitor: &Visitor, ack: &Ack) {
        if ack.items.len() > BATCH_ITEMS_MAX {
            let reply = refuse(Reason::Invalid, "the batch is too large");
            return self.effects.push_back(super::Effect::Reply(conn, id, reply));
        }
        let mut outcomes = Vec::with_capacity(ack.items.len());
        let (mut gone, mut marked) = (Vec::new(), Vec::new());
        for (item, it) in ack.items.iter().enumerate() {
            let outcome = match self.ack_one(visitor, it, ack) {
                Acked::Nothing(outcome) => outcome,
                Acked::Mark(index) => {
                    marked.push((item, index));
                    AckOutcome::Recorded
                }
                Acked::Free(replicas) => {
                    gone.extend(replicas.into_iter().map(|replica| (item, replica)));
                    AckOutcome::Freed
                }
            };
            outcomes.push(outcome);
        }
        let deadline = Some(self.now.after(ack.wait_ms));
        if sabotaged!(self.config.sabotage, AckWithoutWriting) {
            marked.clear();
        }
        self.retire_and_mark(conn, id, Answer::Ack(outcomes), gone, &marked, deadline);
    }

    fn ack_one(&mut self, visitor: &Visitor, item: &AckItem, ack: &Ack) -> Acked {
        let stale = Acked::Nothing(AckOutcome::Stale);
        let index = self.catalog.find(visitor.namespace, &item.key);
        let Some((index, object)) = index.and_then(|it| Some((it, self.catalog.get(it)?))) else {
            return stale;
        };
        let mut marks = object.marks().cloned().unwrap_or_default();
        let generation: Generation = object.generation();
        let same = generation == item.generation || sabotaged!(self.config.sabotage, AckAnyGeneration);
        let Some(sample) = marks.sample.as_mut().filter(|_| same) else {
            return stale;
        };
        if ack.unless_leased && self.leases.is_leased(index) {
            return Acked::Nothing(AckOutcome::Recorded);
        }
        if ack.abort {
            return Acked::Free(self.take_out(index, Cause::Deleted, &visitor.label));
        }
        let group = &ack.group;
        let stream = sample.stream.clone();
        match &sample.consumption {
            Consumption::Retained => return Acked::Nothing(AckOutcome::Recorded),
            Consumption::Once => (),
            Consumption::Groups(groups) => {
                if !groups.iter().any(|it| it == group) {
                    return Acked::Nothing(AckOutcome::WrongGroup);
                }
                if !sample.acked.iter().any(|it| it == group) {
                    sample.acked.push(group.to_owned());
                }
                if groups.iter().any(|it| !sample.acked.contains(it)) {
                    self.ack_in_stream(visitor, &stream, generation, group);
                    if !sabotaged!(self.config.sabotage, ForgetAcks) {
                        self.catalog.mark(index, marks);
                    }
                    return Acked::Mark(index);
                }
            }
        }
        self.ack_in_stream(visitor, &stream, generation, group);
        Acked::Free(self.take_out(index, Cause::Consumed, &visitor.label))
    }

    /// Frees the samples that have waited too long while nobody leased them.
    pub(super) fn end_holding(&mut self) {
        let mut late = Vec::new();
        for (namespace, policy) in self.room.policies() {
            let Some(max) = policy.max_hold_ms else { continue };
            let old = self.leases.of_namespace(namespace).take_while(|(put, _)| put.after(max) <= self.now);
            let even_leased = sabotaged!(self.config.sabotage, GiveUpLeased);
            late.extend(old.map(|it| it.1).filter(|&it| even_leased || !self.leases.is_leased(it)));
        }
        for index in late {
            let gone = self.take_out(index, Cause::HeldTooLong, "");
            self.retire(gone, None);
        }
    }

    pub(super) fn next_end_of_holding(&self) -> Option<Tick> {
        let ends = self.room.policies().filter_map(|(namespace, policy)| {
            let max = policy.max_hold_ms?;
            let mut unleased =
                self.leases.of_namespace(namespace).filter(|(_, object)| !self.leases.is_leased(*object));
            unleased.next().map(|(put, _)| put.after(max))
        });
        ends.min()
    }

    pub(super) fn sample_stat(&self, namespace: NamespaceIndex) -> SampleStat {
        let mut stat = SampleStat::default();
        for (put, object) in self.leases.of_namespace(namespace) {
            stat.count += 1;
            stat.oldest.get_or_insert(put);
            let bytes = self.catalog.get(object).map_or(0, |it| it.len().saturating_add(it.elsewhere()));
            stat.bytes = stat.bytes.saturating_add(bytes);
            if self.leases.is_leased(object) {
                stat.leased += 1;
                stat.bytes_leased = stat.bytes_leased.saturating_add(bytes);
                stat.oldest_leased.get_or_insert(put);
            }
        }
        stat
    }

    pub(super) fn leaseholders(&self, object: ObjectIndex) -> Vec<String> {
        let held = self.leases.of_object(object).filter_map(|lease| self.leases.leases.get(&lease));
        held.map(|it| it.label.clone()).collect()
    }
}

/// What an acknowledgement leads to.
enum Acked {
    Nothing(AckOutcome),
    /// It must be put in writing.
    Mark(ObjectIndex),
    /// It was the last one.
    Free(Vec<(NodeIndex, Hold)>),
}
