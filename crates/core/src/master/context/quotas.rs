//! Quotas, reservations, and the queues of puts that wait for space.
//!
//! Puts that may wait are queued, one queue per namespace, first come first served. They are tried again when
//! space may have become free: after a node's report, a removal, an unpin, or the end of a lease. Puts into a
//! stream have a queue of their own, so that slow consumers delay no other puts.
//!
//! **Invariant:** a namespace's reservations and objects together never exceed its quota.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    ops::Bound,
};

use crate::{
    ClientId, SlotRef, is_within_share,
    master::{
        OpId,
        catalog::{LabelIndex, NamespaceIndex, NodeIndex, TokenId},
        connections::Caller,
        pending_retires::{SLOT_REF_MAX, SLOT_REF_MIN},
        stream::StreamIndex,
    },
    message::Policy,
    space_for,
};

/// The policies and reservations of each namespace, and the queues of waiting puts.
#[derive(Debug, Default)]
pub(in crate::master) struct Quotas {
    policies: BTreeMap<NamespaceIndex, Policy>,
    /// The guaranteed minimums of these policies.
    guaranteed: BTreeMap<NamespaceIndex, u64>,
    /// The memory of the reservations of namespaces with a minimum, by node.
    granted_on: BTreeMap<(NamespaceIndex, NodeIndex), u64>,
    /// The bytes and number of the reservations of each namespace, offers without their bytes.
    granted: BTreeMap<NamespaceIndex, Granted>,
    /// The same of each client, of each token that is limited to namespaces, and of all.
    by_client: BTreeMap<ClientId, Granted>,
    by_token: BTreeMap<TokenId, Granted>,
    granted_bytes: u64,
    /// The reservations of the clients of each name in a namespace, without offers. None is zero.
    by_label: BTreeMap<(NamespaceIndex, LabelIndex), Granted>,
    /// Which namespace each reservation is charged to.
    grants: BTreeMap<(NodeIndex, SlotRef), Grant>,
    /// The puts of each queue, in the order in which they joined. No queue is empty.
    queues: BTreeMap<QueueKey, BTreeMap<u64, OpId>>,
    /// The position of each waiting put in its queue.
    positions: BTreeMap<OpId, u64>,
    next_position: u64,
    /// The queue that was tried last, and how many are left to be tried after a change.
    tried: Option<QueueKey>,
    untried: usize,
    /// Samples that are about to be put into each stream: their number and bytes.
    streams: BTreeMap<StreamIndex, (u64, u64)>,
    /// The reservations of these samples: the first copy of each, and its bytes.
    streamed: BTreeMap<(NodeIndex, SlotRef), (StreamIndex, u64)>,
    /// State has changed that puts or watchers may wait for.
    changed: bool,
}

/// The reservations of a namespace.
#[derive(Clone, Copy, Debug, Default)]
struct Granted {
    bytes: u64,
    count: u64,
}

impl Granted {
    fn add(&mut self, space: u64) {
        (self.bytes, self.count) = (self.bytes.saturating_add(space), self.count + 1);
    }

    fn subtract(&mut self, space: u64) {
        (self.bytes, self.count) = (self.bytes.saturating_sub(space), self.count - 1);
    }
}

/// Who pays for space on a node, which is requested or reserved.
#[derive(Clone, Copy, Debug)]
pub(in crate::master) struct Charge {
    pub(in crate::master) namespace: NamespaceIndex,
    /// None if it is for no client.
    pub(in crate::master) client: Option<ClientId>,
    /// That of the client, if it is limited to namespaces.
    pub(in crate::master) token: Option<TokenId>,
    pub(in crate::master) node: NodeIndex,
    /// The bytes that count for quotas and shares.
    pub(in crate::master) space: u64,
    /// The bytes of the node's memory.
    pub(in crate::master) memory: u64,
}

/// Identifies a queue: the puts of a namespace into the same stream, or into none.
pub(in crate::master) type QueueKey = (NamespaceIndex, String);

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

impl Grant {
    /// Bytes of the node's memory. That of a reservation without a client is counted with its object, which
    /// has it as a copy that is not complete.
    fn memory(&self) -> u64 {
        self.terms.as_ref().map_or(0, |it| space_for(it.len).unwrap_or(self.space))
    }

    fn charge(&self, node: NodeIndex) -> Charge {
        let (space, memory) = if self.offered { (0, 0) } else { (self.space, self.memory()) };
        let (client, token) = (self.terms.map(|it| it.client), self.terms.and_then(|it| it.token));
        Charge { namespace: self.namespace, client, token, node, space, memory }
    }
}

/// The client of a reservation, and the object that it is for.
#[derive(Clone, Copy, Debug)]
pub(in crate::master) struct Terms {
    pub(in crate::master) client: ClientId,
    /// That of the client, if it is limited to namespaces.
    pub(in crate::master) token: Option<TokenId>,
    /// The exact length of the object.
    pub(in crate::master) len: u64,
    /// Maximum length of its name, the namespace's name included.
    pub(in crate::master) name_len: u64,
}

/// Entries without reservations are removed.
fn subtract<K: Ord>(all: &mut BTreeMap<K, Granted>, key: K, space: u64) {
    if let Entry::Occupied(mut entry) = all.entry(key) {
        entry.get_mut().subtract(space);
        if entry.get().count == 0 {
            entry.remove();
        }
    }
}

impl Quotas {
    pub(in crate::master) fn note_change(&mut self) {
        self.changed = true;
    }

    /// Whether puts or watchers may go on since the last call.
    pub(in crate::master) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    pub(in crate::master) fn policy(&self, namespace: NamespaceIndex) -> Option<&Policy> {
        self.policies.get(&namespace)
    }

    pub(in crate::master) fn policies(&self) -> impl Iterator<Item = (NamespaceIndex, &Policy)> {
        self.policies.iter().map(|(namespace, policy)| (*namespace, policy))
    }

    /// Whether the namespace may have a policy, given the maximum number of policies.
    pub(in crate::master) fn may_set_policy(&self, namespace: NamespaceIndex, max: usize) -> bool {
        self.policies.contains_key(&namespace) || self.policies.len() < max
    }

    pub(in crate::master) fn set_policy(&mut self, namespace: NamespaceIndex, policy: Policy) {
        let guaranteed = policy.guaranteed.filter(|it| *it > 0);
        match guaranteed {
            Some(guaranteed) => self.guaranteed.insert(namespace, guaranteed),
            None => self.guaranteed.remove(&namespace),
        };
        // What is planned meanwhile and not granted yet is counted when it is granted.
        self.granted_on.retain(|it, _| it.0 != namespace);
        if guaranteed.is_some() {
            let of_it = |it: &&Grant| it.namespace == namespace && !it.offered;
            for ((node, _), grant) in self.grants.iter().filter(|it| of_it(&it.1)) {
                *self.granted_on.entry((namespace, *node)).or_default() += grant.memory();
            }
        }
        if policy == Policy::default() {
            self.policies.remove(&namespace);
        } else {
            self.policies.insert(namespace, policy);
        }
    }

    /// The guaranteed minimums.
    pub(in crate::master) fn guaranteed(&self) -> &BTreeMap<NamespaceIndex, u64> {
        &self.guaranteed
    }

    /// The memory of a node that is reserved for a namespace with a guaranteed minimum.
    pub(in crate::master) fn granted_on(&self, namespace: NamespaceIndex, node: NodeIndex) -> u64 {
        self.granted_on.get(&(namespace, node)).copied().unwrap_or(0)
    }

    /// Whether a client, or all clients of its token, may reserve `space` more, if the nodes have `capacity`
    /// bytes.
    pub(in crate::master) fn is_within_share(
        &self,
        (client, token): (ClientId, Option<TokenId>),
        space: u64,
        capacity: u64,
    ) -> bool {
        let own = match token {
            Some(token) => self.by_token.get(&token),
            None => self.by_client.get(&client),
        };
        let own = own.map_or(0, |it| it.bytes);
        is_within_share(own, space, self.granted_bytes.saturating_add(space), capacity)
    }

    /// Number of reservations of a client, of its namespace, and of its token.
    pub(in crate::master) fn counts(&self, caller: &Caller) -> [u64; 3] {
        let count = |it: Option<&Granted>| it.map_or(0, |it| it.count);
        let of_token = caller.token.and_then(|it| self.by_token.get(&it));
        [self.by_client.get(&caller.client), self.granted.get(&caller.namespace), of_token].map(count)
    }

    /// The most reservations of any client, of any namespace, and of any token, and the most bytes of any
    /// client or token.
    pub(in crate::master) fn most(&self) -> ([u64; 3], u64) {
        let most = |counts: &mut dyn Iterator<Item = u64>| counts.max().unwrap_or(0);
        let of_clients = most(&mut self.by_client.values().map(|it| it.count));
        let of_namespaces = most(&mut self.granted.values().map(|it| it.count));
        let of_tokens = most(&mut self.by_token.values().map(|it| it.count));
        let bytes = self.by_client.values().chain(self.by_token.values()).map(|it| it.bytes);
        ([of_clients, of_namespaces, of_tokens], bytes.max().unwrap_or(0))
    }

    /// Charges space that is about to be requested from a node.
    pub(in crate::master) fn plan(&mut self, at: Charge) {
        self.granted.entry(at.namespace).or_default().add(at.space);
        self.granted_bytes = self.granted_bytes.saturating_add(at.space);
        if let Some(client) = at.client {
            self.by_client.entry(client).or_default().add(at.space);
        }
        if let Some(token) = at.token {
            self.by_token.entry(token).or_default().add(at.space);
        }
        if self.guaranteed.contains_key(&at.namespace) {
            *self.granted_on.entry((at.namespace, at.node)).or_default() += at.memory;
        }
    }

    /// The space was not found. This wakes no waiting put, because nothing became free.
    pub(in crate::master) fn unplan(&mut self, at: Charge) {
        self.granted.entry(at.namespace).or_default().subtract(at.space);
        self.granted_bytes = self.granted_bytes.saturating_sub(at.space);
        if let Some(client) = at.client {
            subtract(&mut self.by_client, client, at.space);
        }
        if let Some(token) = at.token {
            subtract(&mut self.by_token, token, at.space);
        }
        self.unplan_memory(at);
    }

    fn unplan_memory(&mut self, at: Charge) {
        if let Some(granted) = self.granted_on.get_mut(&(at.namespace, at.node)) {
            *granted = granted.saturating_sub(at.memory);
        }
    }

    /// Planned space became a reservation.
    pub(in crate::master) fn grant(
        &mut self,
        node: NodeIndex,
        slot_ref: SlotRef,
        (namespace, who): (NamespaceIndex, LabelIndex),
        space: u64,
        terms: Option<Terms>,
        stream: Option<(StreamIndex, u64)>,
    ) {
        let grant = Grant { namespace, who, space, offered: false, terms };
        if terms.is_none() {
            self.unplan_memory(Charge { memory: space, ..grant.charge(node) });
        }
        self.by_label.entry((namespace, who)).or_default().add(space);
        let before = self.grants.insert((node, slot_ref), grant);
        before.into_iter().for_each(|it| self.end_holding(&it));
        if let Some(stream) = stream {
            self.streamed.insert((node, slot_ref), stream);
        }
    }

    /// A node has offered this to a client. No space was planned for it.
    pub(in crate::master) fn offer(
        &mut self,
        node: NodeIndex,
        slot_ref: SlotRef,
        (namespace, who): (NamespaceIndex, LabelIndex),
        space: u64,
        terms: Terms,
    ) {
        let grant = Grant { namespace, who, space, offered: true, terms: Some(terms) };
        let charge = grant.charge(node);
        match self.grants.insert((node, slot_ref), grant) {
            Some(before) => self.end_holding(&before),
            None => self.plan(charge),
        }
    }

    /// A reservation is not its client's any more.
    fn end_holding(&mut self, grant: &Grant) {
        if !grant.offered {
            subtract(&mut self.by_label, (grant.namespace, grant.who), grant.space);
        }
    }

    /// The bytes of an offer, if this is one.
    pub(in crate::master) fn offered(&self, node: NodeIndex, slot_ref: SlotRef) -> Option<u64> {
        self.grants.get(&(node, slot_ref)).filter(|it| it.offered).map(|it| it.space)
    }

    /// Whether such a reservation exists.
    pub(in crate::master) fn is_granted(
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
    pub(in crate::master) fn end_grant(&mut self, node: NodeIndex, slot_ref: SlotRef) {
        if let Some(grant) = self.grants.remove(&(node, slot_ref)) {
            self.unplan(grant.charge(node));
            self.end_holding(&grant);
            if let Some((index, len)) = self.streamed.remove(&(node, slot_ref)) {
                self.unplan_stream(index, len);
            }
            self.changed = true;
        }
    }

    /// The reservations of the clients of each name: their number and bytes.
    pub(in crate::master) fn held(
        &self,
        only: Option<NamespaceIndex>,
    ) -> impl Iterator<Item = (NamespaceIndex, LabelIndex, (u64, u64))> {
        let from_first = self.by_label.range((only.unwrap_or_default(), LabelIndex::default())..);
        let wanted = from_first.take_while(move |((namespace, _), _)| only.is_none_or(|it| it == *namespace));
        wanted.map(|((namespace, who), it)| (*namespace, *who, (it.count, it.bytes)))
    }

    /// A node was lost, with all reservations on it. Ends at most `count` of them, and returns whether these
    /// were all.
    pub(in crate::master) fn end_grants_on(&mut self, node: NodeIndex, count: usize) -> bool {
        let all = self.grants.range((node, SLOT_REF_MIN)..=(node, SLOT_REF_MAX));
        let mut slot_refs = all.map(|((_, slot_ref), _)| *slot_ref);
        let page: Vec<_> = slot_refs.by_ref().take(count).collect();
        let is_all = slot_refs.next().is_none();
        page.into_iter().for_each(|slot_ref| self.end_grant(node, slot_ref));
        is_all
    }

    /// The nodes with reservations.
    pub(in crate::master) fn granting(&self) -> impl Iterator<Item = NodeIndex> {
        self.grants.keys().map(|it| it.0)
    }

    pub(in crate::master) fn granted(&self, namespace: NamespaceIndex) -> u64 {
        self.granted.get(&namespace).map_or(0, |it| it.bytes)
    }

    /// A namespace without settings and reservations is forgotten.
    pub(in crate::master) fn forget_namespace(&mut self, namespace: NamespaceIndex) {
        self.granted.remove(&namespace);
        self.granted_on.retain(|it, _| it.0 != namespace);
    }

    /// Whether a namespace has settings, reservations or waiting puts.
    pub(in crate::master) fn knows(&self, namespace: NamespaceIndex) -> bool {
        self.policies.contains_key(&namespace)
            || self.granted.get(&namespace).is_some_and(|it| it.count > 0)
            || self.queue_len(namespace) > 0
    }

    /// A sample is about to be put into a stream.
    pub(in crate::master) fn plan_stream(&mut self, index: StreamIndex, len: u64) {
        let planned = self.streams.entry(index).or_default();
        *planned = (planned.0 + 1, planned.1.saturating_add(len));
    }

    /// The sample was stored, or will not be.
    pub(in crate::master) fn unplan_stream(&mut self, index: StreamIndex, len: u64) {
        let planned = self.streams.entry(index).or_default();
        *planned = (planned.0.saturating_sub(1), planned.1.saturating_sub(len));
        if *planned == (0, 0) {
            self.streams.remove(&index);
        }
    }

    /// Number of samples that are about to be put into a stream, and their bytes.
    pub(in crate::master) fn stream_granted(&self, index: StreamIndex) -> (u64, u64) {
        self.streams.get(&index).copied().unwrap_or_default()
    }

    /// Whether a put must wait behind others: in its own queue, or in the namespace's queue for space.
    pub(in crate::master) fn has_queue(&self, queue_key: &QueueKey) -> bool {
        let waits = |queue_key: &QueueKey| self.queues.contains_key(queue_key);
        !self.queues.is_empty()
            && (waits(queue_key) || !queue_key.1.is_empty() && waits(&(queue_key.0, String::new())))
    }

    pub(in crate::master) fn queue_len(&self, namespace: NamespaceIndex) -> u64 {
        let queues = self.queues.range((namespace, String::new())..);
        queues.take_while(|it| it.0.0 == namespace).map(|it| it.1.len() as u64).sum()
    }

    pub(in crate::master) fn queue(&mut self, queue_key: QueueKey, op: OpId) {
        self.next_position += 1;
        self.positions.insert(op, self.next_position);
        self.queues.entry(queue_key).or_default().insert(self.next_position, op);
    }

    pub(in crate::master) fn leave_queue(&mut self, queue_key: &QueueKey, op: OpId) {
        let Some(position) = self.positions.remove(&op) else { return };
        if let Some(waiting) = self.queues.get_mut(queue_key) {
            waiting.remove(&position);
            if waiting.is_empty() {
                self.queues.remove(queue_key);
            }
            self.changed = true;
        }
    }

    /// The first put of each queue must be tried again.
    pub(in crate::master) fn try_all(&mut self) {
        self.untried = self.queues.len();
    }

    /// Whether a queue is left to be tried.
    pub(in crate::master) fn has_untried(&self) -> bool {
        self.untried > 0 && !self.queues.is_empty()
    }

    /// The put to try next. The queues take turns, so that each is tried although others change all the time.
    pub(in crate::master) fn next_untried(&mut self, last_first: bool) -> Option<OpId> {
        self.untried = self.untried.checked_sub(1)?;
        let after = match self.tried.take() {
            Some(tried) => self.queues.range((Bound::Excluded(tried), Bound::Unbounded)).next(),
            None => None,
        };
        let (queue_key, queue) = after.or_else(|| self.queues.first_key_value())?;
        self.tried = Some(queue_key.clone());
        if last_first { queue.last_key_value() } else { queue.first_key_value() }.map(|it| *it.1)
    }

    /// Whether it is the first in its queue.
    pub(in crate::master) fn is_first(&self, queue_key: &QueueKey, op: OpId) -> bool {
        let first = self.queues.get(queue_key).and_then(BTreeMap::first_key_value);
        first.is_some_and(|it| *it.1 == op)
    }

    pub(in crate::master) fn anybody_waits(&self) -> bool {
        !self.queues.is_empty()
    }
}
