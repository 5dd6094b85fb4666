//! Quotas, reservations, and the queues of puts that wait for space.
//!
//! Puts that may wait are queued, one queue per namespace, first come first served. They are tried again when
//! space may have become free: after a node's report, a removal, an unpin, or the end of a lease. Puts into a
//! stream have a queue of their own, so that slow consumers delay no other puts.
//!
//! **Invariant:** a namespace's reservations and objects together never exceed its quota.

use std::collections::{BTreeMap, VecDeque};

use super::{
    Context, Master, Objects, OpId,
    catalog::{Eviction, LabelIndex, NamespaceIndex, NodeIndex, Pinned, Scope},
    stream::StreamIndex,
};
use crate::{
    ClientId, ConnId, Key, RequestId, SlotRef, Tick,
    message::{Await, HOLDERS_MAX, Held, Holder, NamespaceStat, OWNERS_MAX, OwnerStat, Policy, Quota, Reply},
    sabotage::sabotaged,
};

/// The policies and reservations of each namespace, and the queues of waiting puts.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    policies: BTreeMap<NamespaceIndex, Policy>,
    granted: BTreeMap<NamespaceIndex, u64>,
    /// Which namespace each reservation is charged to.
    grants: BTreeMap<(NodeIndex, SlotRef), Grant>,
    queues: BTreeMap<QueueKey, VecDeque<OpId>>,
    /// Samples that are about to be put into each stream: their number and bytes.
    streams: BTreeMap<StreamIndex, (u64, u64)>,
    /// The reservations of these samples: the first copy of each, and its bytes.
    streamed: BTreeMap<(NodeIndex, SlotRef), (StreamIndex, u64)>,
    /// State has changed that puts or watchers may wait for.
    changed: bool,
}

/// Identifies a queue: the puts of a namespace into the same stream, or into none.
pub(super) type QueueKey = (NamespaceIndex, String);

/// The namespace that a reservation is charged to, and its client.
#[derive(Clone, Copy, Debug)]
struct Grant {
    namespace: NamespaceIndex,
    who: LabelIndex,
    space: u64,
    /// It is an offer, which is charged to no namespace: its node may recall it.
    offered: bool,
    /// None if it belongs to no client.
    terms: Option<Terms>,
}

/// The client of a reservation, and the object that it is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) client: ClientId,
    /// The exact length of the object.
    pub(super) len: u64,
    /// Maximum length of its name, the namespace's name included.
    pub(super) name_len: u64,
}

/// A client that waits until the usage of a namespace has reached a limit.
#[derive(Debug)]
struct Watching {
    conn: ConnId,
    id: RequestId,
    namespace: NamespaceIndex,
    until: Await,
    deadline: Tick,
}

/// All requests that watch a namespace.
#[derive(Debug, Default)]
pub(super) struct Watches {
    all: BTreeMap<OpId, Watching>,
}

impl Quotas {
    pub(super) fn note_change(&mut self) {
        self.changed = true;
    }

    pub(super) fn policy(&self, namespace: NamespaceIndex) -> Option<&Policy> {
        self.policies.get(&namespace)
    }

    pub(super) fn policies(&self) -> impl Iterator<Item = (NamespaceIndex, &Policy)> {
        self.policies.iter().map(|(namespace, policy)| (*namespace, policy))
    }

    /// Whether the namespace may have a policy, given the maximum number of policies.
    pub(super) fn may_set_policy(&self, namespace: NamespaceIndex, max: usize) -> bool {
        self.policies.contains_key(&namespace) || self.policies.len() < max
    }

    pub(super) fn set_policy(&mut self, namespace: NamespaceIndex, policy: Policy) {
        if policy == Policy::default() {
            self.policies.remove(&namespace);
        } else {
            self.policies.insert(namespace, policy);
        }
    }

    /// Charges space that is about to be requested.
    pub(super) fn plan(&mut self, namespace: NamespaceIndex, space: u64) {
        let granted = self.granted.entry(namespace).or_default();
        *granted = granted.saturating_add(space);
    }

    /// The space was not found. This wakes no waiting put, because nothing became free.
    pub(super) fn unplan(&mut self, namespace: NamespaceIndex, space: u64) {
        let granted = self.granted.entry(namespace).or_default();
        *granted = granted.saturating_sub(space);
    }

    /// Planned space became a reservation.
    pub(super) fn grant(
        &mut self,
        node: NodeIndex,
        slot_ref: SlotRef,
        (namespace, who): (NamespaceIndex, LabelIndex),
        space: u64,
        terms: Option<Terms>,
        stream: Option<(StreamIndex, u64)>,
    ) {
        self.grants.insert((node, slot_ref), Grant { namespace, who, space, offered: false, terms });
        if let Some(stream) = stream {
            self.streamed.insert((node, slot_ref), stream);
        }
    }

    /// A node has offered this to a client. No space was planned for it.
    pub(super) fn offer(
        &mut self,
        node: NodeIndex,
        slot_ref: SlotRef,
        (namespace, who): (NamespaceIndex, LabelIndex),
        space: u64,
        terms: Terms,
    ) {
        let grant = Grant { namespace, who, space, offered: true, terms: Some(terms) };
        self.grants.insert((node, slot_ref), grant);
    }

    /// The bytes of an offer, if this is one.
    pub(super) fn offered(&self, node: NodeIndex, slot_ref: SlotRef) -> Option<u64> {
        self.grants.get(&(node, slot_ref)).filter(|it| it.offered).map(|it| it.space)
    }

    /// Whether such a reservation exists.
    pub(super) fn is_granted(
        &self,
        node: NodeIndex,
        slot_ref: SlotRef,
        namespace: NamespaceIndex,
        fits: impl Fn(&Terms) -> bool,
    ) -> bool {
        let grant = self.grants.get(&(node, slot_ref));
        grant.is_some_and(|it| it.namespace == namespace && it.terms.as_ref().is_some_and(fits))
    }

    /// A reservation became an object, or was given up.
    pub(super) fn end_grant(&mut self, node: NodeIndex, slot_ref: SlotRef) {
        if let Some(Grant { namespace, space, offered, .. }) = self.grants.remove(&(node, slot_ref)) {
            if !offered {
                self.unplan(namespace, space);
            }
            if let Some((index, len)) = self.streamed.remove(&(node, slot_ref)) {
                self.unplan_stream(index, len);
            }
            self.changed = true;
        }
    }

    /// A node was lost, with all reservations on it.
    pub(super) fn end_grants_on(&mut self, node: NodeIndex) {
        let slot_refs: Vec<_> = self.grants.keys().filter(|it| it.0 == node).map(|it| it.1).collect();
        slot_refs.into_iter().for_each(|slot_ref| self.end_grant(node, slot_ref));
    }

    pub(super) fn granted(&self, namespace: NamespaceIndex) -> u64 {
        self.granted.get(&namespace).copied().unwrap_or(0)
    }

    /// A sample is about to be put into a stream.
    pub(super) fn plan_stream(&mut self, index: StreamIndex, len: u64) {
        let planned = self.streams.entry(index).or_default();
        *planned = (planned.0 + 1, planned.1.saturating_add(len));
    }

    /// The sample was stored, or will not be.
    pub(super) fn unplan_stream(&mut self, index: StreamIndex, len: u64) {
        let planned = self.streams.entry(index).or_default();
        *planned = (planned.0.saturating_sub(1), planned.1.saturating_sub(len));
        if *planned == (0, 0) {
            self.streams.remove(&index);
        }
    }

    /// Number of samples that are about to be put into a stream, and their bytes.
    pub(super) fn stream_granted(&self, index: StreamIndex) -> (u64, u64) {
        self.streams.get(&index).copied().unwrap_or_default()
    }

    /// Whether a put must wait behind others: in its own queue, or in the namespace's queue for space.
    pub(super) fn has_queue(&self, queue_key: &QueueKey) -> bool {
        let waits = |queue_key: &QueueKey| self.queues.get(queue_key).is_some_and(|it| !it.is_empty());
        waits(queue_key) || !queue_key.1.is_empty() && waits(&(queue_key.0, String::new()))
    }

    pub(super) fn queue_len(&self, namespace: NamespaceIndex) -> u64 {
        self.queues.iter().filter(|it| it.0.0 == namespace).map(|it| it.1.len() as u64).sum()
    }

    pub(super) fn queue(&mut self, queue_key: QueueKey, op: OpId) {
        self.queues.entry(queue_key).or_default().push_back(op);
    }

    pub(super) fn leave_queue(&mut self, queue_key: &QueueKey, op: OpId) {
        if let Some(waiting) = self.queues.get_mut(queue_key) {
            waiting.retain(|it| *it != op);
            if waiting.is_empty() {
                self.queues.remove(queue_key);
            }
            self.changed = true;
        }
    }

    fn heads(&self, last_first: bool) -> Vec<OpId> {
        let next = |queue_key: &VecDeque<OpId>| {
            if last_first { queue_key.back() } else { queue_key.front() }.copied()
        };
        self.queues.values().filter_map(next).collect()
    }

    /// Whether it is the first in its queue.
    pub(super) fn is_first(&self, op: OpId) -> bool {
        self.queues.values().any(|queue_key| queue_key.front() == Some(&op))
    }

    pub(super) fn anybody_waits(&self) -> bool {
        self.queues.values().any(|queue_key| !queue_key.is_empty())
    }
}

impl Watches {
    /// Answers the watchers whose limit is reached.
    pub(super) fn look_at_all(&mut self, o: &mut Objects) {
        for op in self.all.keys().copied().collect::<Vec<_>>() {
            self.look_at_watch(o, op);
        }
    }

    /// A connection is closed: its requests are not answered.
    pub(super) fn forget(&mut self, conn: ConnId) {
        self.all.retain(|_, it| it.conn != conn);
    }

    /// A client no longer waits for an answer: its deadline is now.
    pub(super) fn cancel(&mut self, cx: &mut Context, conn: ConnId, id: RequestId) {
        for (op, watching) in self.all.iter_mut().filter(|(_, it)| (it.conn, it.id) == (conn, id)) {
            watching.deadline = watching.deadline.min(cx.now);
            cx.deadlines.list(cx.now, *op);
        }
    }

    /// Number of watchers.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn watch(
        &mut self,
        o: &mut Objects,
        conn: ConnId,
        id: RequestId,
        namespace: NamespaceIndex,
        until: Await,
    ) {
        let deadline = o.cx.now.after(until.wait_ms);
        let op = o.cx.next_op();
        o.cx.deadlines.list(deadline, op);
        self.all.insert(op, Watching { conn, id, namespace, until, deadline });
        self.look_at_watch(o, op);
    }

    /// Answers a watcher whose deadline has passed.
    pub(super) fn end_watch(&mut self, o: &mut Objects, op: OpId) {
        if self.all.get(&op).is_some_and(|it| it.deadline <= o.cx.now) {
            self.answer_watch(o, op);
        }
    }

    fn look_at_watch(&mut self, o: &mut Objects, op: OpId) {
        let Some(watching) = self.all.get(&op) else { return };
        let used = o.cx.used(watching.namespace);
        let until = watching.until;
        let reached = until.at_most.is_some_and(|mark| used <= mark)
            || until.at_least.is_some_and(|mark| used >= mark)
            || watching.deadline <= o.cx.now;
        if reached {
            self.answer_watch(o, op);
        }
    }

    fn answer_watch(&mut self, o: &mut Objects, op: OpId) {
        if let Some(watching) = self.all.remove(&op) {
            o.cx.deadlines.strike(watching.deadline, op);
            let stat = o.namespace_stat(watching.namespace);
            o.cx.reply(watching.conn, watching.id, Reply::Awaited(Box::new(stat)));
        }
    }
}

impl Objects {
    /// Evicts objects of a namespace until it may use `need` more bytes. If that is impossible, evicts
    /// nothing and returns the state of the quota. Objects that also have a disk copy leave first. A put
    /// that may wait waits for a disk, so that no object is lost.
    pub(super) fn within_quota(
        &mut self,
        namespace: NamespaceIndex,
        need: u64,
        whose: (&str, &Key),
        may_wait: bool,
    ) -> Result<(), Quota> {
        let Some(limit) = self.cx.quota(namespace) else { return Ok(()) };
        if sabotaged!(self.cx.config.sabotage, IgnoreQuota) {
            return Ok(());
        }
        let soft_pinned_too = self.cx.config.evict_soft_pinned;
        let rules = Eviction { soft_pinned_too, ..Eviction::default() };
        let lossless = Eviction { on_disk_only: true, ..rules };
        let wanted = self.cx.used(namespace).saturating_add(need);
        let is_possible = wanted <= limit || wanted - limit <= self.evictable_in(namespace);
        if !is_possible && !sabotaged!(self.cx.config.sabotage, EvictInVain) {
            return Err(Quota { used: self.cx.used(namespace), limit, need });
        }
        while self.cx.used(namespace).saturating_add(need) > limit {
            let next = |rules| self.cx.catalog.next_victim_of(namespace, self.cx.now, rules);
            let mut victim = next(lossless).filter(|_| need <= limit);
            if victim.is_none() && need <= limit {
                let short = self.cx.used(namespace).saturating_add(need) - limit;
                let waits = may_wait && self.tier.demote_namespace(&mut self.cx, namespace, short);
                let rules = Eviction { demoting_too: true, ..rules };
                victim = self.cx.catalog.next_victim_of(namespace, self.cx.now, rules).filter(|_| !waits);
                victim =
                    victim.or_else(|| self.tier.next_shielded(&self.cx, |it| it.namespace() == namespace));
            }
            let Some(victim) = victim else {
                return Err(Quota { used: self.cx.used(namespace), limit, need });
            };
            self.evict(victim, None, whose);
        }
        // Demotes ahead of need, so that the next puts find objects to evict.
        if self.cx.used(namespace).saturating_add(need) > limit / 4 * 3 {
            self.tier.demote_namespace(&mut self.cx, namespace, need);
        }
        Ok(())
    }

    /// Upper bound of the bytes that eviction could free in a namespace.
    fn evictable_in(&self, namespace: NamespaceIndex) -> u64 {
        let soft_pinned_too = self.cx.config.evict_soft_pinned;
        let rules = Eviction { soft_pinned_too, demoting_too: true, ..Eviction::default() };
        let unshielded = self.cx.catalog.evictable(Scope::Namespace(namespace), self.cx.now, rules);
        let shielded = self.tier.shielded_bytes(&self.cx, |it, _| it.namespace() == namespace);
        unshielded.saturating_add(shielded)
    }

    /// The state of the quota, if an object with that charge exceeds it even in an empty namespace.
    pub(super) fn quota_exceeded_alone(&self, namespace: NamespaceIndex, need: u64) -> Option<Quota> {
        let limit = self.cx.quota(namespace)?;
        let quota = Quota { used: self.cx.used(namespace), limit, need };
        let is_ignored = sabotaged!(self.cx.config.sabotage, IgnoreQuota);
        Some(quota).filter(|it| it.is_never_enough() && !is_ignored)
    }

    pub(super) fn namespace_stat(&self, index: NamespaceIndex) -> NamespaceStat {
        let Some(namespace) = self.cx.catalog.namespace(index) else { return NamespaceStat::default() };
        let samples = self.leases.stat(&self.cx, index);
        NamespaceStat {
            name: namespace.name.clone(),
            objects: namespace.objects,
            bytes: namespace.bytes,
            used: self.cx.used(index),
            granted: self.cx.quotas.granted(index),
            quota: self.cx.quotas.policy(index).and_then(|it| it.quota),
            max_hold_ms: self.cx.quotas.policy(index).and_then(|it| it.max_hold_ms),
            demotion: self.cx.demotion(index),
            samples: samples.count,
            samples_leased: samples.leased,
            sample_age_ms: samples.oldest.map_or(0, |put| self.cx.now.0.saturating_sub(put.0)),
            sample_bytes: samples.bytes,
            sample_bytes_leased: samples.bytes_leased,
            leased_age_ms: samples.oldest_leased.map_or(0, |put| self.cx.now.0.saturating_sub(put.0)),
            samples_expired: samples.expired.0,
            sample_bytes_expired: samples.expired.1,
            waiting: self.cx.quotas.queue_len(index),
            owners: self.owner_stats(index),
            holders: self.holders(index),
        }
    }

    fn owner_stats(&self, index: NamespaceIndex) -> Vec<OwnerStat> {
        let stat = |(owner, pinned): (&str, Pinned)| OwnerStat {
            owner: owner.to_owned(),
            objects: pinned.objects,
            bytes: pinned.bytes,
        };
        let mut owners: Vec<_> = self.cx.catalog.owners(index).map(stat).collect();
        owners.sort_by_key(|it| std::cmp::Reverse(it.bytes));
        owners.truncate(OWNERS_MAX);
        owners
    }

    /// The clients that hold memory of a namespace, so that a leak can be attributed.
    fn holders(&self, index: NamespaceIndex) -> Vec<Holder> {
        let mut sums: BTreeMap<(Held, String), (u64, u64)> = BTreeMap::new();
        let mut add = |held, who: String, bytes: u64| {
            let sum = sums.entry((held, who)).or_default();
            *sum = (sum.0 + 1, sum.1.saturating_add(bytes));
        };
        for (object, label) in self.leases.held() {
            if let Some(object) = self.cx.catalog.get(object).filter(|it| it.namespace() == index) {
                add(Held::Leased, label.to_owned(), object.len());
            }
        }
        for grant in self.cx.quotas.grants.values().filter(|it| it.namespace == index && !it.offered) {
            add(Held::Reserved, self.cx.connections.label(grant.who), grant.space);
        }
        let holder = |((held, who), (objects, bytes))| Holder { held, who, objects, bytes };
        let mut holders: Vec<_> = sums.into_iter().map(holder).collect();
        holders.sort_by_key(|it| std::cmp::Reverse(it.bytes));
        holders.truncate(HOLDERS_MAX);
        holders
    }
}

impl Master {
    /// Retries the puts and watchers that wait.
    pub(super) fn wake(&mut self) {
        // Serving one put may free space for the next; each is served at most once per change.
        let last_first = sabotaged!(self.objects.cx.config.sabotage, ServeTheLast);
        for op in self.objects.cx.quotas.heads(last_first) {
            self.reservations.try_again(&mut self.objects, op);
        }
        self.watches.look_at_all(&mut self.objects);
    }

    pub(super) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.objects.cx.quotas.changed)
    }
}
