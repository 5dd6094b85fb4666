//! Samples: objects that are consumed.
//!
//! A sample is one object, whatever it is made of: its parts share one stamp, so they are reserved,
//! committed, read and freed together. [`Leases`] owns which client has leased a sample, and which samples
//! must be freed. The master asks it for the effect of a request, and removes the samples that it returns.
//!
//! **Invariant:** a sample is never evicted. It leaves when it is consumed, deleted or replaced, or when it
//! has waited for longer than its namespace's policy allows while no client leased it.
//!
//! **Invariant:** a lease ends in these cases only:
//!
//! - it is released, or its sample is gone;
//! - its client says goodbye, or is proven dead;
//! - the client's connection has been broken for longer than the operator allows.
//!
//! A client that reconnects in time keeps its leases.
//!
//! **Invariant:** a sample that was consumed while other clients had it leased is freed when the last of
//! these leases ends, for whatever reason.
//!
//! **Invariant:** an acknowledgement is written on the nodes before it is answered.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use super::{
    Caller,
    catalog::{NamespaceIndex, NodeIndex, Object, ObjectIndex, TokenId},
    context::Context,
    limits::subtract_one,
    refuse,
    stream::{StreamIndex, Streams},
};
use crate::{
    BATCH_ITEMS_MAX, ClientId, Generation, Tick,
    attributes::{Consumption, SampleAttributes},
    message::{
        Ack, AckItem, AckOutcome, Cause, Granted, Lease, LeaseItem, LeaseOutcome, Leased, Reason, Reply,
    },
    mutant::is_mutant,
};

/// The leases of all clients.
#[derive(Debug, Default)]
pub(super) struct Leases {
    next: u64,
    leases: BTreeMap<u64, HeldLease>,
    by_object: BTreeSet<(ObjectIndex, u64)>,
    by_client: BTreeSet<(ClientId, u64)>,
    /// Number of leases of each client, namespace, and token that is limited to namespaces.
    client_counts: BTreeMap<ClientId, usize>,
    namespace_counts: BTreeMap<NamespaceIndex, usize>,
    token_counts: BTreeMap<TokenId, usize>,
    /// The leases of the clients of each name in a namespace, and the bytes of their samples. None is zero.
    by_label: BTreeMap<(NamespaceIndex, String), (u64, u64)>,
    /// How often the limits of a client, of a namespace and of a token were reached.
    reached: [u64; 3],
    /// Disconnected clients that have leases, and how long the leases are kept for them.
    away: BTreeMap<ClientId, Tick>,
    /// Samples by namespace and by the time they were put.
    waiting: BTreeSet<(NamespaceIndex, Tick, ObjectIndex)>,
    /// Samples pulled from a stream whose leases have ended.
    put_back: Vec<Pulled>,
    /// Samples that were acknowledged while other clients had them leased.
    deferred: BTreeMap<ObjectIndex, Deferred>,
    /// Those of them whose last lease has ended.
    released: Vec<ObjectIndex>,
    /// By namespace: number of samples that waited too long and were freed, and their bytes.
    expired: BTreeMap<NamespaceIndex, (u64, u64)>,
}

/// A pulled sample: its stream, the group, and its generation.
type Pulled = (StreamIndex, String, Generation);

#[derive(Debug)]
struct HeldLease {
    object: ObjectIndex,
    client: ClientId,
    namespace: NamespaceIndex,
    token: Option<TokenId>,
    label: String,
    bytes: u64,
    pulled: Option<Pulled>,
}

/// Acknowledgements that take effect when the last lease ends.
#[derive(Debug, Default)]
struct Deferred {
    groups: Vec<String>,
    /// With them the sample is consumed.
    is_consumed: bool,
    /// The label of the client that acknowledged last.
    label: String,
}

/// The totals of a namespace's samples.
#[derive(Debug, Default)]
pub(super) struct SampleStat {
    pub(super) count: u64,
    pub(super) leased: u64,
    pub(super) oldest: Option<Tick>,
    pub(super) bytes: u64,
    pub(super) bytes_leased: u64,
    pub(super) oldest_leased: Option<Tick>,
    /// Number of samples that waited too long and were freed, and their bytes.
    pub(super) expired: (u64, u64),
}

impl Leases {
    /// Lease numbers start after `next`, so that two masters do not use the same ones.
    pub(super) fn after(next: u64) -> Self {
        Self { next, ..Self::default() }
    }

    fn grant(&mut self, (object, bytes): (ObjectIndex, u64), caller: &Caller, pulled: Option<Pulled>) -> u64 {
        self.next += 1;
        let lease = self.next;
        let Caller { client, namespace, token, .. } = *caller;
        let label = caller.label.clone();
        let sum = self.by_label.entry((namespace, label.clone())).or_default();
        *sum = (sum.0 + 1, sum.1.saturating_add(bytes));
        let held = HeldLease { object, client, namespace, token, label, bytes, pulled };
        *self.client_counts.entry(client).or_default() += 1;
        *self.namespace_counts.entry(namespace).or_default() += 1;
        token.into_iter().for_each(|it| *self.token_counts.entry(it).or_default() += 1);
        self.leases.insert(lease, held);
        self.by_object.insert((object, lease));
        self.by_client.insert((client, lease));
        lease
    }

    /// Leases a sample that was pulled from a stream.
    pub(super) fn grant_pulled(
        &mut self,
        object: (ObjectIndex, u64),
        caller: &Caller,
        pulled: Pulled,
    ) -> u64 {
        self.grant(object, caller, Some(pulled))
    }

    /// Pulled samples whose leases have ended since the last call.
    pub(super) fn take_put_back(&mut self) -> Vec<Pulled> {
        std::mem::take(&mut self.put_back)
    }

    /// Number of further leases that a client may have.
    pub(super) fn left_for(&self, cx: &Context, caller: &Caller) -> usize {
        if is_mutant!(cx.config.mutant, LeaseAnyNumber) {
            return usize::MAX;
        }
        self.left(cx, caller).into_iter().min().unwrap_or(0)
    }

    /// Number of further leases of a client, of its namespace, and of its token.
    fn left(&self, cx: &Context, caller: &Caller) -> [usize; 3] {
        let of_client = self.client_counts.get(&caller.client).copied().unwrap_or(0);
        let of_namespace = self.namespace_counts.get(&caller.namespace).copied().unwrap_or(0);
        let of_token = caller.token.and_then(|it| self.token_counts.get(&it)).copied().unwrap_or(0);
        let limits = cx.config.limits;
        [
            limits.leases_client_max.saturating_sub(of_client),
            limits.leases_namespace_max.saturating_sub(of_namespace),
            limits.leases_token_max.saturating_sub(of_token),
        ]
    }

    /// The most leases of any client, of any namespace and of any token, and how often these limits were
    /// reached.
    pub(super) fn most(&self) -> [(usize, u64); 3] {
        let most = |counts: &mut dyn Iterator<Item = &usize>| counts.copied().max().unwrap_or(0);
        let [client, namespace, token] = self.reached;
        [
            (most(&mut self.client_counts.values()), client),
            (most(&mut self.namespace_counts.values()), namespace),
            (most(&mut self.token_counts.values()), token),
        ]
    }

    /// Ends a lease, if the client has it.
    fn end(&mut self, lease: u64, client: ClientId) -> bool {
        if self.leases.get(&lease).is_none_or(|it| it.client != client) {
            return false;
        }
        let Some(held) = self.leases.remove(&lease) else { return false };
        self.by_object.remove(&(held.object, lease));
        self.by_client.remove(&(held.client, lease));
        subtract_one(&mut self.client_counts, held.client);
        subtract_one(&mut self.namespace_counts, held.namespace);
        held.token.into_iter().for_each(|it| subtract_one(&mut self.token_counts, it));
        if let Entry::Occupied(mut sum) = self.by_label.entry((held.namespace, held.label)) {
            let (count, bytes) = *sum.get();
            match count {
                1 => _ = sum.remove(),
                _ => *sum.get_mut() = (count - 1, bytes.saturating_sub(held.bytes)),
            }
        }
        self.put_back.extend(held.pulled);
        if self.deferred.contains_key(&held.object) && !self.is_leased(held.object) {
            self.released.push(held.object);
        }
        true
    }

    /// Samples whose consumption waited for the end of their leases, and whose leases have ended since the
    /// last call.
    pub(super) fn take_released(&mut self) -> Vec<(ObjectIndex, String)> {
        // Nearly always: this is called after every event.
        if self.released.is_empty() {
            return Vec::new();
        }
        let released = std::mem::take(&mut self.released);
        let unleased = released.into_iter().filter(|it| !self.is_leased(*it)).collect::<Vec<_>>();
        let ended = unleased.into_iter().filter_map(|it| Some((it, self.deferred.remove(&it)?)));
        ended.filter(|(_, it)| it.is_consumed).map(|(index, it)| (index, it.label)).collect()
    }

    /// Ends the leases of a client, except those that it knows of.
    pub(super) fn end_all_but(&mut self, client: ClientId, known: &[u64]) {
        let known: BTreeSet<_> = known.iter().copied().collect();
        let leases: Vec<_> = self.of_client(client).filter(|it| !known.contains(it)).collect();
        leases.into_iter().for_each(|lease| _ = self.end(lease, client));
    }

    /// A client has reconnected.
    pub(super) fn client_returned(&mut self, client: ClientId) {
        self.away.remove(&client);
    }

    /// A sample exists, and waits to be consumed.
    pub(super) fn arrive(&mut self, namespace: NamespaceIndex, put: Tick, object: ObjectIndex) {
        self.waiting.insert((namespace, put, object));
    }

    /// A sample is gone, so its leases end.
    pub(super) fn leave(&mut self, namespace: NamespaceIndex, put: Tick, object: ObjectIndex) {
        self.waiting.remove(&(namespace, put, object));
        self.deferred.remove(&object);
        let leases: Vec<_> = self.of_object(object).collect();
        for lease in leases {
            if let Some(client) = self.leases.get(&lease).map(|it| it.client) {
                self.end(lease, client);
            }
        }
    }

    /// The leases of the clients of each name: their number, and the bytes of their samples.
    pub(super) fn held(
        &self,
        only: Option<NamespaceIndex>,
    ) -> impl Iterator<Item = (NamespaceIndex, &str, (u64, u64))> {
        let first = (only.unwrap_or_default(), String::new());
        let from_first = self.by_label.range(first..);
        let wanted = from_first.take_while(move |((namespace, _), _)| only.is_none_or(|it| it == *namespace));
        wanted.map(|((namespace, label), sum)| (*namespace, label.as_str(), *sum))
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

    /// Leases samples by name.
    pub(super) fn lease(&mut self, cx: &mut Context, caller: &Caller, lease: &Lease) -> Reply {
        if lease.items.len() > BATCH_ITEMS_MAX {
            return refuse(Reason::Invalid, "the batch is too large");
        }
        if lease.items.len() > self.left_for(cx, caller) {
            let left = self.left(cx, caller);
            let who = ["client", "namespace", "holder of the token"];
            let full = self.reached.iter_mut().zip(left).zip(who).find(|it| it.0.1 < lease.items.len());
            let Some(((reached, _), who)) = full else { return refuse(Reason::Busy, "too many leases") };
            *reached += 1;
            return refuse(
                Reason::Busy,
                &format!("the {who} would have too many leases: release some first"),
            );
        }
        let mut nodes = BTreeSet::new();
        let items = lease.items.iter().map(|item| self.lease_one(cx, caller, item, &lease.group, &mut nodes));
        let items = items.collect();
        Reply::Leased(Leased { items, nodes: cx.infos(nodes) })
    }

    fn lease_one(
        &mut self,
        cx: &mut Context,
        caller: &Caller,
        item: &LeaseItem,
        group: &str,
        nodes: &mut BTreeSet<NodeIndex>,
    ) -> LeaseOutcome {
        let index = cx.catalog.find(caller.namespace, &item.key);
        let Some((index, object)) = index.and_then(|it| Some((it, cx.catalog.get(it)?))) else {
            return LeaseOutcome::Absent;
        };
        if item.generation.is_some_and(|wanted| wanted != object.generation()) {
            return LeaseOutcome::Superseded(object.generation());
        }
        let Some(sample) = object.attributes().and_then(|it| it.sample.as_ref()) else {
            return LeaseOutcome::NotASample;
        };
        if let Consumption::Groups(groups) = &sample.consumption
            && !groups.iter().any(|it| it == group)
        {
            return LeaseOutcome::WrongGroup;
        }
        let is_acked = sample.is_consumed() || sample.acked.iter().any(|it| it == group);
        // A sample that one client acknowledged while others had it leased can be leased until they release
        // it.
        let is_once = sample.consumption == Consumption::Once;
        let deferred = self.deferred.get(&index).filter(|_| self.is_leased(index));
        let is_deferred = deferred.is_some_and(|it| is_once || it.groups.iter().any(|it| it == group));
        let is_refused = is_acked && !is_deferred;
        if is_refused || is_acked && is_mutant!(cx.config.mutant, RefuseReleased) {
            return LeaseOutcome::Consumed;
        }
        let found = cx.found(object, true, nodes);
        cx.catalog.touch(index, cx.now, None);
        let bytes = cx.catalog.get(index).map_or(0, Object::len);
        LeaseOutcome::Leased(Granted { lease: self.grant((index, bytes), caller, None), found })
    }

    pub(super) fn release(&mut self, client: ClientId, leases: &[u64]) {
        leases.iter().for_each(|lease| _ = self.end(*lease, client));
    }

    /// The connection of a client is closed, and the client may reconnect. Returns whether it has leases,
    /// which are kept for it for a while.
    pub(super) fn client_away(&mut self, cx: &Context, client: ClientId) -> bool {
        let has_any = self.of_client(client).next().is_some();
        if has_any {
            self.away.insert(client, cx.now.after(cx.config.lease_grace_ms));
        }
        has_any
    }

    /// A client is gone for good: its leases end.
    pub(super) fn client_gone(&mut self, cx: &Context, client: ClientId) {
        self.away.remove(&client);
        if !is_mutant!(cx.config.mutant, LeasesOutliveClients) {
            self.end_all_but(client, &[]);
        }
    }

    /// Clients that have been disconnected for too long.
    pub(super) fn late_clients(&self, now: Tick) -> Vec<ClientId> {
        self.away.iter().filter(|(_, until)| **until <= now).map(|it| *it.0).collect()
    }

    /// A group has consumed a sample. Returns the effect.
    pub(super) fn ack(
        &mut self,
        cx: &mut Context,
        streams: &mut Streams,
        caller: &Caller,
        (item, ack): (&AckItem, &Ack),
    ) -> Acked {
        let stale = Acked::Nothing(AckOutcome::Stale);
        let index = cx.catalog.find(caller.namespace, &item.key);
        let Some((index, object)) = index.and_then(|it| Some((it, cx.catalog.get(it)?))) else {
            return stale;
        };
        let mut attributes = object.attributes().cloned().unwrap_or_default();
        let generation: Generation = object.generation();
        let same = generation == item.generation || is_mutant!(cx.config.mutant, AckAnyGeneration);
        let Some(sample) = attributes.sample.as_mut().filter(|_| same) else {
            return stale;
        };
        let waits = ack.unless_leased && self.is_leased(index);
        if ack.abort && waits {
            return Acked::Nothing(AckOutcome::Recorded);
        }
        if ack.abort {
            return Acked::Free(index, Cause::Deleted);
        }
        let group = &ack.group;
        let stream = sample.stream.clone();
        match &sample.consumption {
            Consumption::Retained => return Acked::Nothing(AckOutcome::Recorded),
            Consumption::Groups(groups) if !groups.iter().any(|it| it == group) => {
                return Acked::Nothing(AckOutcome::WrongGroup);
            }
            Consumption::Once | Consumption::Groups(_) => (),
        }
        let is_new = !sample.acked.contains(group);
        if is_new {
            sample.acked.push(group.to_owned());
        }
        let is_consumed = sample.is_consumed();
        streams.ack(caller.namespace, &stream, generation, group);
        if is_consumed && !waits {
            return Acked::Free(index, Cause::Consumed);
        }
        if waits {
            // The end of the last lease frees it, also if the client of that lease dies. The attributes on
            // the nodes free it if the master dies first.
            let deferred = self.deferred.entry(index).or_default();
            deferred.groups.extend(is_new.then(|| group.clone()));
            (deferred.is_consumed, deferred.label) = (is_consumed, caller.label.clone());
        } else if let Some(deferred) = self.deferred.get_mut(&index) {
            deferred.groups.retain(|it| it != group);
        }
        if is_consumed || !is_mutant!(cx.config.mutant, ForgetAcks) {
            cx.catalog.set_attributes(index, attributes);
        }
        Acked::SetAttributes(index)
    }

    /// Whether a sample must be removed because the attributes on the nodes say that it is consumed. If it
    /// is leased, the end of its last lease frees it.
    pub(super) fn frees_consumed(&mut self, cx: &Context, index: ObjectIndex) -> bool {
        let sample = cx.catalog.get(index).and_then(|it| it.attributes()?.sample.as_deref());
        if !sample.is_some_and(SampleAttributes::is_consumed) {
            return false;
        }
        let is_leased = self.is_leased(index);
        if is_leased {
            self.deferred.entry(index).or_default().is_consumed = true;
        }
        !is_leased
    }

    /// Samples that have waited for longer than their namespace allows while no client leased them. They
    /// count as expired.
    pub(super) fn take_expired(&mut self, cx: &Context) -> Vec<ObjectIndex> {
        let mut late = Vec::new();
        for (namespace, policy) in cx.quotas.policies() {
            let Some(max) = policy.max_hold_ms else { continue };
            let old = self.of_namespace(namespace).take_while(|(put, _)| put.after(max) <= cx.now);
            let even_leased = is_mutant!(cx.config.mutant, GiveUpLeased);
            late.extend(old.map(|it| it.1).filter(|&it| even_leased || !self.is_leased(it)));
        }
        for object in late.iter().filter_map(|index| cx.catalog.get(*index)) {
            let bytes = object.len().saturating_add(object.elsewhere());
            let expired = self.expired.entry(object.namespace()).or_default();
            *expired = (expired.0 + 1, expired.1.saturating_add(bytes));
        }
        late
    }

    /// When the first disconnected client loses its leases, or the first sample has waited too long.
    pub(super) fn next_timeout(&self, cx: &Context) -> Option<Tick> {
        let ends = cx.quotas.policies().filter_map(|(namespace, policy)| {
            let max = policy.max_hold_ms?;
            let mut unleased = self.of_namespace(namespace).filter(|(_, object)| !self.is_leased(*object));
            unleased.next().map(|(put, _)| put.after(max))
        });
        ends.chain(self.away.values().copied()).min()
    }

    /// A namespace without samples is forgotten.
    pub(super) fn forget_namespace(&mut self, namespace: NamespaceIndex) {
        self.expired.remove(&namespace);
    }

    pub(super) fn stat(&self, cx: &Context, namespace: NamespaceIndex) -> SampleStat {
        let expired = self.expired.get(&namespace).copied().unwrap_or_default();
        let mut stat = SampleStat { expired, ..SampleStat::default() };
        for (put, object) in self.of_namespace(namespace) {
            stat.count += 1;
            stat.oldest.get_or_insert(put);
            let bytes = cx.catalog.get(object).map_or(0, |it| it.len().saturating_add(it.elsewhere()));
            stat.bytes = stat.bytes.saturating_add(bytes);
            if self.is_leased(object) {
                stat.leased += 1;
                stat.bytes_leased = stat.bytes_leased.saturating_add(bytes);
                stat.oldest_leased.get_or_insert(put);
            }
        }
        stat
    }

    /// The clients that have leased an object, by name.
    pub(super) fn holders(&self, object: ObjectIndex) -> Vec<String> {
        let held = self.of_object(object).filter_map(|lease| self.leases.get(&lease));
        held.map(|it| it.label.clone()).collect()
    }
}

/// The effect of an acknowledgement.
#[derive(Debug)]
pub(super) enum Acked {
    Nothing(AckOutcome),
    /// It must be written on the nodes.
    SetAttributes(ObjectIndex),
    /// It was the last one: the sample must be removed.
    Free(ObjectIndex, Cause),
}
