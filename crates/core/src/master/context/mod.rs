//! State that all modules of the master share: the time, the configuration, the catalog, the members, the
//! reserved space, and the messages to nodes and clients.
//!
//! A module of the master, such as [`Tier`](super::tier::Tier), owns its state and is called with the
//! context. What concerns several of them, such as the removal of an object, is in
//! [`Objects`](super::Objects) and in the master.
//!
//! **Invariant:** every request to a node that needs a reply has an entry in `waits` until the node replies
//! or its connection is closed.

pub(in crate::master) mod cluster;
pub(in crate::master) mod confirmed;
pub(in crate::master) mod guarantees;
pub(in crate::master) mod held;
mod older;
pub(in crate::master) mod quotas;
pub(in crate::master) mod saved;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use cluster::Cluster;
use confirmed::Confirming;
use held::HeldRetires;
use quotas::Quotas;
use saved::Saving;

use super::{
    Effect, Eviction, EvictionCause, MasterConfig, Notice, OpId, Wait,
    catalog::{Catalog, NamespaceIndex, NodeIndex, Object, ObjectIndex, TierChange},
    connections::{Caller, Connections},
    deadlines::Deadlines,
    limits::{Limits, Waiting},
    members::{Member, Members, Standing},
    pending_retires::{Name, PendingRetires},
};
use crate::{
    ConnId, Key, Location, RequestId, SlotRef, Tick,
    message::{
        Demotion, Evicted, Evictions, Found, MasterToMember, NodeInfo, Record, Reply, Retire, Settle, Usage,
    },
    mutant::is_mutant,
};

/// Maximum number of copies that one message retires, so that a large one does not delay others.
pub(in crate::master) const RETIRE_MAX: usize = 1 << 14;
/// Maximum number of bytes in the ledger before the node is asked to read it: about 200 puts of one object,
/// or 40 of many. With default limits, a socket buffer holds 1.5 times as much.
const LEDGER_BYTES_MAX: usize = 256 << 10;
/// Socket buffer space of a message, however short it is.
const MESSAGE_BYTES: usize = 1 << 10;
/// Bytes of a message per committed object, without its name, or per aborted or retired copy.
const WORD_BYTES: usize = 128;
/// Minimum time between two requests to a node to read its ledger.
const POLL_PAUSE_MS: u64 = 2;

/// See the module.
#[derive(Debug)]
pub(in crate::master) struct Context {
    pub(in crate::master) config: MasterConfig,
    pub(in crate::master) now: Tick,
    pub(in crate::master) catalog: Catalog,
    pub(in crate::master) members: Members,
    pub(in crate::master) connections: Connections,
    pub(in crate::master) quotas: Quotas,
    pub(in crate::master) limits: Limits,
    /// The requests of clients that wait.
    pub(in crate::master) waiting: Waiting,
    pub(in crate::master) pending_retires: PendingRetires,
    pub(in crate::master) saving: Saving,
    pub(in crate::master) cluster: Cluster,
    pub(in crate::master) confirming: Confirming,
    /// The deadlines of all operations except drops.
    pub(in crate::master) deadlines: Deadlines,
    pub(in crate::master) waits: BTreeMap<RequestId, (NodeIndex, Wait)>,
    pub(in crate::master) held_retires: HeldRetires,
    pub(in crate::master) effects: VecDeque<Effect>,
    /// Objects evicted since the master started.
    pub(in crate::master) evictions: Evictions,
    /// Objects expired since the master started.
    pub(in crate::master) expired: Evicted,
    next_id: u64,
}

impl Context {
    pub(in crate::master) fn new(config: MasterConfig) -> Self {
        let mut catalog = Catalog::new(config.hash_seed, config.wall_ms, config.mutant);
        if config.events {
            catalog.note_tiers();
        }
        Self {
            config,
            now: Tick::default(),
            catalog,
            members: Members::default(),
            connections: Connections::default(),
            quotas: Quotas::default(),
            limits: Limits::default(),
            waiting: Waiting::default(),
            pending_retires: PendingRetires::default(),
            saving: Saving::default(),
            cluster: Cluster::default(),
            confirming: Confirming::default(),
            deadlines: Deadlines::default(),
            waits: BTreeMap::new(),
            held_retires: HeldRetires::default(),
            effects: VecDeque::new(),
            evictions: Evictions::default(),
            expired: Evicted::default(),
            next_id: 0,
        }
    }

    pub(in crate::master) fn next_id(&mut self) -> RequestId {
        self.next_id += 1;
        RequestId(self.next_id)
    }

    pub(in crate::master) fn next_op(&mut self) -> OpId {
        OpId(self.next_id().0)
    }

    pub(in crate::master) fn reply(&mut self, conn: ConnId, id: RequestId, reply: Reply) {
        self.reply_confirmed(Effect::Reply(conn, id, reply));
    }

    pub(in crate::master) fn notice(&mut self, notice: Notice) {
        self.effects.push_back(Effect::Notice(notice));
    }

    /// Sends a request to a node and records the continuation. `None` if the node is not connected.
    pub(in crate::master) fn ask(
        &mut self,
        node: NodeIndex,
        request: MasterToMember,
        wait: Wait,
    ) -> Option<RequestId> {
        let conn = self.members.get(node)?.conn?;
        let id = self.next_id();
        let after = self.sent_after(node, &request);
        let effect = match wait {
            Wait::Publish(..) | Wait::Withdraw(..) => Effect::SendLedger(conn, id, request),
            _ => Effect::Ask(conn, id, request),
        };
        self.waits.insert(id, (node, wait));
        match after {
            Some(version) => self.when_saved(version, effect),
            None => self.effects.push_back(effect),
        }
        Some(id)
    }

    /// Makes a node process the publications in its socket, unless it was asked a moment ago. Any request
    /// has that effect.
    pub(in crate::master) fn poll_node(&mut self, node: NodeIndex) {
        let member = self.members.get(node).filter(|it| it.ledger_bytes > 0 && it.polls_from <= self.now);
        if member.is_some() {
            self.poll_node_now(node);
        }
    }

    pub(in crate::master) fn poll_node_now(&mut self, node: NodeIndex) {
        let Some(member) = self.members.get_mut(node) else { return };
        member.ledger_bytes = 0;
        member.polls_from = self.now.after(POLL_PAUSE_MS);
        self.ask(node, MasterToMember::Settle(Settle::default()), Wait::Settle(Vec::new(), None));
    }

    /// Sends retires to the nodes, and returns the requests. Nodes that are not connected owe their
    /// retires. A node also confirms copies that it no longer has.
    pub(in crate::master) fn retire(
        &mut self,
        replicas: Vec<(NodeIndex, SlotRef)>,
        op: Option<OpId>,
    ) -> BTreeMap<RequestId, NodeIndex> {
        let mut by_node: BTreeMap<NodeIndex, Vec<SlotRef>> = BTreeMap::new();
        for (node, slot_ref) in replicas {
            by_node.entry(node).or_default().push(slot_ref);
        }
        let mut asked = BTreeMap::new();
        for (node, slot_refs) in by_node {
            for slot_refs in slot_refs.chunks(RETIRE_MAX) {
                let request = MasterToMember::Retire(Retire { slot_refs: slot_refs.to_vec() });
                match self.ask(node, request, Wait::Retire(slot_refs.to_vec(), op)) {
                    Some(id) => {
                        asked.insert(id, node);
                        if let Some(member) = self.members.get_mut(node) {
                            member.retiring.extend(slot_refs);
                        }
                    }
                    None => self.owe(node, slot_refs),
                }
            }
        }
        asked
    }

    /// Retires the copies of objects that clients remove, and returns the requests. Older copies of their
    /// names, whose retires are not confirmed yet, come first: once it is saved that their nodes owe them. If
    /// the master died in between, and only the newer objects were gone, the older ones would return.
    pub(in crate::master) fn retire_removed(
        &mut self,
        replicas: Vec<(NodeIndex, SlotRef)>,
        op: OpId,
    ) -> BTreeMap<RequestId, NodeIndex> {
        let is_open = |id: RequestId| self.waits.contains_key(&id);
        let is_older = |copy: &(NodeIndex, SlotRef)| {
            self.members.get(copy.0).is_some_and(|it| it.is_saved(copy.1))
                || self.held_retires.has_unsent(*copy, is_open)
        };
        let (older, newer): (Vec<_>, Vec<_>) = replicas.into_iter().partition(is_older);
        let mut asked = self.retire(older.clone(), Some(op));
        let waits = self.config.durable && !older.is_empty() && !newer.is_empty();
        if !waits || is_mutant!(self.config.mutant, RetireTogether) {
            asked.extend(self.retire(newer, Some(op)));
            return asked;
        }
        let version = self.save();
        let sent = self.effects.len();
        asked.extend(self.retire(newer, Some(op)));
        for effect in self.effects.split_off(sent) {
            self.when_saved(version, effect);
        }
        asked
    }

    /// Retires copies of objects whose successors are certain to be stored, and returns the requests. A node
    /// whose copies can be withdrawn reads its retires when it likes: the answer waits only until they are in
    /// its socket, and then withdrawn.
    pub(super) fn retire_replaced(
        &mut self,
        home: NodeIndex,
        copies: Vec<(NodeIndex, SlotRef)>,
        op: OpId,
    ) -> BTreeMap<RequestId, NodeIndex> {
        let can_withdraw = |(node, _): &(NodeIndex, SlotRef)| {
            self.members.get(*node).is_some_and(|it| it.can_withdraw && it.standing == Standing::Ready)
        };
        let (near, others): (Vec<_>, Vec<_>) = copies.into_iter().partition(can_withdraw);
        let mut asked = self.retire(others, Some(op));
        let mut by_node: BTreeMap<NodeIndex, Vec<SlotRef>> = BTreeMap::new();
        for (node, slot_ref) in near {
            by_node.entry(node).or_default().push(slot_ref);
        }
        for (node, slot_refs) in by_node {
            for slot_refs in slot_refs.chunks(RETIRE_MAX) {
                let settle = Settle { retire: slot_refs.to_vec(), ..Settle::default() };
                let wait = Wait::Withdraw(slot_refs.to_vec(), Some(op));
                let Some(id) = self.ask(node, MasterToMember::Settle(settle), wait) else {
                    self.owe(node, slot_refs);
                    continue;
                };
                asked.insert(id, node);
                if let Some(member) = self.members.get_mut(node) {
                    member.retiring.extend(slot_refs);
                }
                self.count_ledger(node, slot_refs.len(), 0);
            }
            // The home node reads its ledger soon, because it has the reservation of the successor.
            if node != home {
                self.poll_node(node);
            }
        }
        asked
    }

    /// The message about these copies is certain to reach the node: no reader validates them from now on.
    pub(super) fn withdraw(&mut self, node: NodeIndex, slot_refs: Vec<SlotRef>) {
        let Some(member) = self.members.get_mut(node) else { return };
        member.withdrawn.extend(&slot_refs);
        if let Some(conn) = member.conn
            && !is_mutant!(self.config.mutant, AnswerUnwithdrawn)
        {
            self.effects.push_back(Effect::Withdraw(conn, slot_refs));
        }
    }

    /// The message about these successors is certain to reach the node: what it retires as well is withdrawn.
    pub(super) fn withdraw_held(&mut self, node: NodeIndex, id: RequestId) {
        let Some(slot_refs) = self.held_retires.withdraw(id) else { return };
        self.members.get_mut(node).into_iter().for_each(|it| it.retiring.extend(&slot_refs));
        self.withdraw(node, slot_refs);
    }

    /// Counts a message in the ledger of a node, and asks the node to read it if it has become long.
    pub(super) fn count_ledger(&mut self, node: NodeIndex, words: usize, names: usize) {
        let Some(member) = self.members.get_mut(node) else { return };
        member.ledger_bytes += MESSAGE_BYTES + WORD_BYTES * words + names;
        if member.ledger_bytes >= LEDGER_BYTES_MAX {
            self.poll_node_now(node);
        }
    }

    /// Retires what waited for this node: it has received every message that an earlier connection lost, or
    /// is lost itself.
    pub(in crate::master) fn release_retires(&mut self, home: NodeIndex) {
        let is_open = |id: RequestId| self.waits.contains_key(&id);
        for held in self.held_retires.take_closed(home, is_open) {
            self.retire(held.copies, None);
        }
    }

    /// The copies of replaced objects of this name whose retires wait for their successor. With the successor
    /// they must be removed: otherwise a restarted master takes them for objects.
    pub(in crate::master) fn held_copies(&self, name: &Name) -> Vec<(NodeIndex, SlotRef)> {
        if self.held_retires.is_empty() || is_mutant!(self.config.mutant, KeepHeldCopies) {
            return Vec::new();
        }
        let pending = self.pending_retires.of(name.namespace, &name.key);
        pending.into_iter().filter(|it| self.held_retires.has(*it)).collect()
    }

    /// The removed copies of that name whose nodes have not confirmed the retire. Lost nodes confirm nothing.
    pub(in crate::master) fn pending_of(
        &self,
        namespace: NamespaceIndex,
        key: &Key,
    ) -> Vec<(NodeIndex, SlotRef)> {
        let mut pending = self.pending_retires.of(namespace, key);
        pending.retain(|(node, _)| !self.members.is_leaving(*node));
        pending
    }

    /// Whether the object of one of these copies was removed, in this epoch or, as saved, in an earlier one.
    pub(in crate::master) fn was_removed(&self, copies: &[(NodeIndex, SlotRef)]) -> bool {
        let is_owed = |(node, slot_ref): &(NodeIndex, SlotRef)| {
            self.members.get(*node).is_some_and(|it| it.owes(*slot_ref) || it.sent_owed.contains(slot_ref))
        };
        self.pending_retires.has_any(copies) || copies.iter().any(is_owed)
    }

    /// A node must apply these retires before it is used again.
    pub(in crate::master) fn owe(&mut self, node: NodeIndex, slot_refs: &[SlotRef]) {
        if self.config.durable {
            self.pending_retires.note_owed(node, slot_refs, self.saving.version());
        }
        if let Some(member) = self.members.get_mut(node) {
            slot_refs.iter().for_each(|slot_ref| {
                member.withdrawn.remove(slot_ref);
                _ = member.retiring.remove(slot_ref) || member.given_up.remove(slot_ref)
            });
            member.owed.extend(slot_refs);
        }
    }

    /// Aborts reservations that no client will use.
    pub(in crate::master) fn abort_all(&mut self, slot_refs: Vec<(NodeIndex, SlotRef)>) {
        let mut by_node: BTreeMap<NodeIndex, Vec<SlotRef>> = BTreeMap::new();
        for (node, slot_ref) in slot_refs {
            self.quotas.end_grant(node, slot_ref);
            by_node.entry(node).or_default().push(slot_ref);
        }
        for (node, abort) in by_node {
            let settle = Settle { abort, ..Settle::default() };
            self.ask(node, MasterToMember::Settle(settle), Wait::Settle(Vec::new(), None));
        }
    }

    /// A message of the node arrived, so the node is not silent.
    pub(in crate::master) fn note_message(&mut self, node: NodeIndex) {
        let Some(member) = self.members.get_mut(node) else { return };
        member.last_message = self.now;
        if member.standing == Standing::Silent {
            member.standing = Standing::Ready;
            let name = member.info.name.clone();
            self.members.note_change();
            self.notice(Notice::NodeReady(name));
        }
    }

    pub(in crate::master) fn report(&mut self, node: NodeIndex, usage: Usage) {
        if let Some(member) = self.members.get_mut(node) {
            if member.free < usage.free || member.usage.name_max < usage.name_max {
                self.quotas.note_change();
            }
            let was_draining = member.is_draining();
            member.report(self.now, usage);
            if member.is_draining() != was_draining {
                self.members.note_change();
            }
        }
    }

    /// Counts an object that leaves memory in favour of another one.
    pub(in crate::master) fn count_eviction(&mut self, index: ObjectIndex, cause: EvictionCause) {
        let Some(object) = self.catalog.get(index) else { return };
        let (bytes, is_unread, is_lost) = (object.len(), !object.was_read(), !object.tiers().1);
        let evicted = match cause {
            EvictionCause::Memory => &mut self.evictions.memory,
            EvictionCause::Quota => &mut self.evictions.quota,
            EvictionCause::Promotion => &mut self.evictions.promotion,
        };
        *evicted = Evicted { objects: evicted.objects + 1, bytes: evicted.bytes + bytes };
        self.evictions.unread += u64::from(is_unread && is_lost);
        self.notice(Notice::Evicted(Eviction { bytes, cause, is_unread, is_lost }));
    }

    /// Lets a request of a client wait, or refuses that. `bytes`: what it has in memory meanwhile.
    pub(in crate::master) fn wait(
        &mut self,
        op: OpId,
        asked: (ConnId, RequestId),
        caller: &Caller,
        bytes: usize,
    ) -> Result<(), Box<Reply>> {
        self.waiting.enter(op, asked, (caller, bytes), self.config.limits, self.config.mutant)
    }

    /// Bytes that a namespace uses, with reservations, and removed objects that are still in view.
    pub(in crate::master) fn used(&self, namespace: NamespaceIndex) -> u64 {
        let committed = self.catalog.namespace(namespace).map_or(0, |it| it.committed);
        let held =
            if is_mutant!(self.config.mutant, ViewForFree) { 0 } else { guarantees::held(self, namespace) };
        committed.saturating_add(self.quotas.granted(namespace)).saturating_add(held)
    }

    /// Emits a notice for an object that was added to the catalog. The cluster is not empty any more.
    pub(in crate::master) fn notice_stored(&mut self, index: ObjectIndex) {
        self.cluster.close();
        self.notice_tiers();
        let Some(object) = self.catalog.get(index).filter(|_| self.config.events) else { return };
        let namespace = self.catalog.namespace_name(object.namespace()).to_owned();
        let is_disk = |node| self.members.get(node).is_some_and(Member::is_disk);
        let on_disk = object.replicas().all(|(node, _)| is_disk(node));
        let stored = Notice::Stored { namespace, key: object.key().clone(), on_disk };
        self.notice(stored);
    }

    /// Announces that an object is gone, from memory, from disks, or from both.
    pub(in crate::master) fn notice_removed(&mut self, name: &Name, in_memory: bool, on_disk: bool) {
        self.notice_tiers();
        for on_disk in [(in_memory, false), (on_disk, true)].into_iter().filter_map(|it| it.0.then_some(it.1))
        {
            if self.config.events {
                let namespace = self.catalog.namespace_name(name.namespace).to_owned();
                self.notice(Notice::Removed { namespace, key: name.key.clone(), on_disk });
            }
        }
    }

    /// Announces the tiers that objects have entered or left.
    pub(in crate::master) fn notice_tiers(&mut self) {
        for TierChange { namespace, key, on_disk, is_stored } in self.catalog.take_tier_changes() {
            let namespace = self.catalog.namespace_name(namespace).to_owned();
            self.notice(match is_stored {
                true => Notice::Stored { namespace, key, on_disk },
                false => Notice::Removed { namespace, key, on_disk },
            });
        }
    }

    /// Maximum number of bytes that the namespace may use, if it has a limit.
    pub(in crate::master) fn quota(&self, namespace: NamespaceIndex) -> Option<u64> {
        let set = self.quotas.policy(namespace).and_then(|it| it.quota);
        if !self.config.tenants {
            return set;
        }
        let Some(set) = set else { return Some(0) };
        let asked: u128 = self.quotas.policies().filter_map(|(_, it)| it.quota).map(u128::from).sum();
        let memory = self.members.iter().filter(|(_, it)| !it.is_disk());
        let capacity: u128 = memory.map(|(_, it)| u128::from(it.usage.capacity)).sum();
        if asked <= capacity {
            return Some(set);
        }
        // The product of two 64-bit sizes fits.
        Some(u64::try_from(u128::from(set) * capacity / asked).unwrap_or(set))
    }

    /// Bytes that the namespace may use in addition without evictions.
    pub(in crate::master) fn quota_left(&self, namespace: NamespaceIndex) -> u64 {
        let limit = self.quota(namespace);
        let limit = limit.filter(|_| !is_mutant!(self.config.mutant, IgnoreQuota));
        limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.used(namespace)))
    }

    /// The demotion policy of a namespace, which applies when memory is short.
    pub(in crate::master) fn demotion(&self, namespace: NamespaceIndex) -> Demotion {
        let own = self.quotas.policy(namespace).and_then(|it| it.demotion);
        own.unwrap_or(self.config.tier.demotion)
    }

    /// Whether a lease protects an object from a delete that is not forced.
    pub(in crate::master) fn lease_refuses(&self, index: ObjectIndex, force: bool) -> bool {
        let leased = self.catalog.get(index).is_some_and(|it| it.leased(self.now));
        self.config.strict_leases && !force && leased && !is_mutant!(self.config.mutant, RemoveLeased)
    }

    /// Whether a member can be read from and written to.
    pub(in crate::master) fn is_ready(&self, node: NodeIndex) -> bool {
        self.members.get(node).is_some_and(|it| it.standing == Standing::Ready)
    }

    /// Whether an object can be read from memory.
    pub(in crate::master) fn is_in_memory(&self, object: &Object) -> bool {
        object.in_memory().any(|(node, _)| self.members.get(node).is_some_and(|it| it.readable()))
    }

    /// An object as a client sees it, with its locations if requested.
    pub(in crate::master) fn found(
        &self,
        object: &Object,
        locate: bool,
        nodes: &mut BTreeSet<NodeIndex>,
    ) -> Found {
        let readable = |node: NodeIndex| self.members.get(node).is_some_and(|it| it.readable());
        let mut replicas = Vec::new();
        if locate {
            replicas = Vec::with_capacity(object.replica_count());
            for (node, slot_ref) in object.copies().filter(|(node, _)| readable(*node)) {
                replicas.extend(self.location(node, slot_ref));
                nodes.insert(node);
            }
        }
        Found {
            generation: object.generation(),
            len: object.len(),
            replicas,
            hard_pin: object.hard_pin(),
            soft_pin: object.soft_pin(),
            leased: object.leased(self.now),
            sample: object.is_sample(),
            expires_in_ms: self.catalog.expires_in_ms(object, self.now),
        }
    }

    fn location(&self, node: NodeIndex, slot_ref: SlotRef) -> Option<Location> {
        let segment = self.members.get(node)?.info.segment;
        Some(Location { segment, slot: slot_ref.slot, stamp: slot_ref.stamp })
    }

    pub(in crate::master) fn infos(&self, nodes: BTreeSet<NodeIndex>) -> Vec<NodeInfo> {
        nodes.into_iter().filter_map(|node| Some(self.members.get(node)?.info.clone())).collect()
    }

    /// The record that a node stores with a copy of an object.
    pub(in crate::master) fn record(&self, index: ObjectIndex, slot_ref: SlotRef) -> Option<Record> {
        let object = self.catalog.get(index)?;
        Some(Record {
            slot_ref,
            namespace: self.catalog.namespace_name(object.namespace()).to_owned(),
            key: object.key().clone(),
            generation: object.generation(),
            len: object.len(),
            attributes: object.attributes().cloned().unwrap_or_default(),
        })
    }
}
