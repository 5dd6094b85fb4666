//! Who may have how much, and who waits for it.
//!
//! Puts that may wait stand in line, one line per namespace, first come first served. They are looked at
//! again when something made room: a node's report, a removal, an unpin, a lease that ran out. Nobody
//! polls. Puts into a stream stand in a line of their own, so that consumers who are behind keep nobody
//! else waiting.
//!
//! **Invariant:** a namespace's reservations and objects never exceed its quota together.

use std::collections::{BTreeMap, VecDeque};

use super::{
    Effect, Master, Op, OpId,
    catalog::{Eviction, LabelIndex, NamespaceIndex, NodeIndex, ObjectIndex, Pinned},
    stream::StreamIndex,
};
use crate::{
    ClientId, ConnId, Hold, Key, RequestId, Tick,
    message::{
        Await, Cause, HOLDERS_MAX, Held, Holder, NamespaceStat, OWNERS_MAX, OwnerStat, Policy, Quota, Reply,
    },
    sabotage::sabotaged,
};

/// What each namespace has reserved and may have, and who waits.
#[derive(Debug, Default)]
pub(super) struct Room {
    policies: BTreeMap<NamespaceIndex, Policy>,
    granted: BTreeMap<NamespaceIndex, u64>,
    /// What each reservation is charged to.
    grants: BTreeMap<(NodeIndex, Hold), Grant>,
    lines: BTreeMap<Line, VecDeque<OpId>>,
    /// What is about to be put into each stream: samples, and their bytes.
    streams: BTreeMap<StreamIndex, (u64, u64)>,
    /// Which reservations that is: the first copy of each, and its bytes.
    streamed: BTreeMap<(NodeIndex, Hold), (StreamIndex, u64)>,
    /// Something changed that puts or watchers may be waiting for.
    changed: bool,
}

/// Who waits together: those of a namespace who put into the same stream, or into none.
pub(super) type Line = (NamespaceIndex, String);

/// What a reservation is charged to, and who has it.
#[derive(Clone, Copy, Debug)]
struct Grant {
    namespace: NamespaceIndex,
    who: LabelIndex,
    room: u64,
    /// None if no client has it.
    terms: Option<Terms>,
}

/// Whose a reservation is, and what for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) client: ClientId,
    /// The bytes of the object, exactly.
    pub(super) len: u64,
    /// The most bytes of its name, that of the namespace included.
    pub(super) name_len: u64,
}

/// Somebody who wants to know when a namespace has filled or emptied so far.
#[derive(Debug)]
pub(super) struct Watching {
    pub(super) conn: ConnId,
    id: RequestId,
    namespace: NamespaceIndex,
    until: Await,
    deadline: Tick,
}

impl Watching {
    pub(super) fn is_of(&self, conn: ConnId, id: RequestId) -> bool {
        (self.conn, self.id) == (conn, id)
    }

    /// It waits no longer than until then.
    pub(super) fn end_at(&mut self, at: Tick) {
        self.deadline = self.deadline.min(at);
    }
}

impl Room {
    pub(super) fn note_change(&mut self) {
        self.changed = true;
    }

    pub(super) fn policy(&self, namespace: NamespaceIndex) -> Option<&Policy> {
        self.policies.get(&namespace)
    }

    pub(super) fn policies(&self) -> impl Iterator<Item = (NamespaceIndex, &Policy)> {
        self.policies.iter().map(|(namespace, policy)| (*namespace, policy))
    }

    /// Charges room that is about to be asked for.
    pub(super) fn plan(&mut self, namespace: NamespaceIndex, room: u64) {
        let granted = self.granted.entry(namespace).or_default();
        *granted = granted.saturating_add(room);
    }

    /// The room was not found after all. Nobody is woken by that: nothing became free.
    pub(super) fn unplan(&mut self, namespace: NamespaceIndex, room: u64) {
        let granted = self.granted.entry(namespace).or_default();
        *granted = granted.saturating_sub(room);
    }

    /// Planned room became a reservation.
    pub(super) fn grant(
        &mut self,
        node: NodeIndex,
        hold: Hold,
        (namespace, who): (NamespaceIndex, LabelIndex),
        room: u64,
        terms: Option<Terms>,
        stream: Option<(StreamIndex, u64)>,
    ) {
        self.grants.insert((node, hold), Grant { namespace, who, room, terms });
        if let Some(stream) = stream {
            self.streamed.insert((node, hold), stream);
        }
    }

    /// Whether such a reservation stands.
    pub(super) fn is_granted(
        &self,
        node: NodeIndex,
        hold: Hold,
        namespace: NamespaceIndex,
        fits: impl Fn(&Terms) -> bool,
    ) -> bool {
        let grant = self.grants.get(&(node, hold));
        grant.is_some_and(|it| it.namespace == namespace && it.terms.as_ref().is_some_and(fits))
    }

    /// A reservation became an object, or nothing.
    pub(super) fn end_grant(&mut self, node: NodeIndex, hold: Hold) {
        if let Some(Grant { namespace, room, .. }) = self.grants.remove(&(node, hold)) {
            self.unplan(namespace, room);
            if let Some((index, len)) = self.streamed.remove(&(node, hold)) {
                self.unplan_stream(index, len);
            }
            self.changed = true;
        }
    }

    /// All reservations on a node are gone with it.
    pub(super) fn end_grants_on(&mut self, node: NodeIndex) {
        let holds: Vec<_> = self.grants.keys().filter(|it| it.0 == node).map(|it| it.1).collect();
        holds.into_iter().for_each(|hold| self.end_grant(node, hold));
    }

    pub(super) fn granted(&self, namespace: NamespaceIndex) -> u64 {
        self.granted.get(&namespace).copied().unwrap_or(0)
    }

    /// A sample is about to be put into a stream.
    pub(super) fn plan_stream(&mut self, index: StreamIndex, len: u64) {
        let planned = self.streams.entry(index).or_default();
        *planned = (planned.0 + 1, planned.1.saturating_add(len));
    }

    /// It is there, or will not be.
    pub(super) fn unplan_stream(&mut self, index: StreamIndex, len: u64) {
        let planned = self.streams.entry(index).or_default();
        *planned = (planned.0.saturating_sub(1), planned.1.saturating_sub(len));
        if *planned == (0, 0) {
            self.streams.remove(&index);
        }
    }

    /// How many samples are about to be put into a stream, and their bytes.
    pub(super) fn stream_granted(&self, index: StreamIndex) -> (u64, u64) {
        self.streams.get(&index).copied().unwrap_or_default()
    }

    /// Whether anybody waits whom a put must not overtake: in its own line, or for room.
    pub(super) fn has_line(&self, line: &Line) -> bool {
        let waits = |line: &Line| self.lines.get(line).is_some_and(|it| !it.is_empty());
        waits(line) || !line.1.is_empty() && waits(&(line.0, String::new()))
    }

    pub(super) fn line_len(&self, namespace: NamespaceIndex) -> u64 {
        self.lines.iter().filter(|it| it.0.0 == namespace).map(|it| it.1.len() as u64).sum()
    }

    pub(super) fn queue(&mut self, line: Line, op: OpId) {
        self.lines.entry(line).or_default().push_back(op);
    }

    pub(super) fn leave_line(&mut self, line: &Line, op: OpId) {
        if let Some(waiting) = self.lines.get_mut(line) {
            waiting.retain(|it| *it != op);
            if waiting.is_empty() {
                self.lines.remove(line);
            }
            self.changed = true;
        }
    }

    fn heads(&self, last_first: bool) -> Vec<OpId> {
        let next = |line: &VecDeque<OpId>| if last_first { line.back() } else { line.front() }.copied();
        self.lines.values().filter_map(next).collect()
    }

    /// Whether nobody in its line came before it.
    pub(super) fn is_first(&self, op: OpId) -> bool {
        self.lines.values().any(|line| line.front() == Some(&op))
    }

    pub(super) fn anybody_waits(&self) -> bool {
        self.lines.values().any(|line| !line.is_empty())
    }
}

impl Master {
    pub(super) fn set_policy(&mut self, namespace: NamespaceIndex, policy: Policy) -> Reply {
        self.room.policies.insert(namespace, policy);
        self.room.note_change();
        self.tier.stir();
        Reply::Done
    }

    pub(super) fn watch(&mut self, conn: ConnId, id: RequestId, namespace: NamespaceIndex, until: Await) {
        let deadline = self.now.after(until.wait_ms);
        let op = self.next_op();
        self.deadlines.list(deadline, op);
        self.ops.insert(op, Op::Watch(Watching { conn, id, namespace, until, deadline }));
        self.look_at_watch(op);
    }

    /// What a namespace holds, reservations included.
    pub(super) fn used(&self, namespace: NamespaceIndex) -> u64 {
        let committed = self.catalog.namespace(namespace).map_or(0, |it| it.committed);
        committed.saturating_add(self.room.granted(namespace))
    }

    /// Whether the namespace may have that much more, after evicting what it no longer needs; else how it
    /// stands. What disks have, too, leaves first; a put that may wait waits for a disk, so that nothing is
    /// lost.
    pub(super) fn within_quota(
        &mut self,
        namespace: NamespaceIndex,
        need: u64,
        whose: (&str, &Key),
        may_wait: bool,
    ) -> Result<(), Quota> {
        let limit = self.room.policy(namespace).and_then(|it| it.quota);
        let Some(limit) = limit else { return Ok(()) };
        if sabotaged!(self.config.sabotage, IgnoreQuota) {
            return Ok(());
        }
        let soft_pinned_too = self.config.evict_soft_pinned;
        let rules = Eviction { soft_pinned_too, ..Eviction::default() };
        let lossless = Eviction { shelved_only: true, ..rules };
        while self.used(namespace).saturating_add(need) > limit {
            let next = |rules| self.catalog.next_victim_of(namespace, self.now, rules);
            let mut victim = next(lossless).filter(|_| need <= limit);
            if victim.is_none() && need <= limit {
                let short = self.used(namespace).saturating_add(need) - limit;
                let waits = may_wait && self.shelve_of(namespace, short);
                victim = self.catalog.next_victim_of(namespace, self.now, rules).filter(|_| !waits);
            }
            let Some(victim) = victim else {
                return Err(Quota { used: self.used(namespace), limit });
            };
            self.evict(victim, None, whose);
        }
        // The next to come find something that may leave.
        if self.used(namespace).saturating_add(need) > limit / 4 * 3 {
            self.shelve_of(namespace, need);
        }
        Ok(())
    }

    /// How much more the namespace may have as it is.
    pub(super) fn quota_left(&self, namespace: NamespaceIndex) -> u64 {
        let limit = self.room.policy(namespace).and_then(|it| it.quota);
        let limit = limit.filter(|_| !sabotaged!(self.config.sabotage, IgnoreQuota));
        limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.used(namespace)))
    }

    /// Looks at everybody again who waits for room or for a mark to be passed.
    pub(super) fn wake(&mut self) {
        // Serving one may make room for the next; each is served at most once per change.
        let last_first = sabotaged!(self.config.sabotage, ServeTheLast);
        for op in self.room.heads(last_first) {
            self.try_again(op);
        }
        let watches = self.ops.iter().filter(|(_, op)| matches!(op, Op::Watch(_))).map(|(id, _)| *id);
        for op in watches.collect::<Vec<_>>() {
            self.look_at_watch(op);
        }
    }

    pub(super) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.room.changed)
    }

    /// Answers a watcher whose time is up.
    pub(super) fn end_watch(&mut self, op: OpId) {
        if matches!(self.ops.get(&op), Some(Op::Watch(it)) if it.deadline <= self.now) {
            self.answer_watch(op);
        }
    }

    fn look_at_watch(&mut self, op: OpId) {
        let Some(Op::Watch(watching)) = self.ops.get(&op) else { return };
        let used = self.used(watching.namespace);
        let until = watching.until;
        let reached = until.at_most.is_some_and(|mark| used <= mark)
            || until.at_least.is_some_and(|mark| used >= mark)
            || watching.deadline <= self.now;
        if reached {
            self.answer_watch(op);
        }
    }

    fn answer_watch(&mut self, op: OpId) {
        if let Some(Op::Watch(watching)) = self.ops.remove(&op) {
            self.deadlines.strike(watching.deadline, op);
            let stat = self.namespace_stat(watching.namespace);
            self.effects.push_back(Effect::Reply(watching.conn, watching.id, Reply::Awaited(stat)));
        }
    }

    pub(super) fn namespace_stat(&self, index: NamespaceIndex) -> NamespaceStat {
        let Some(namespace) = self.catalog.namespace(index) else { return NamespaceStat::default() };
        let samples = self.sample_stat(index);
        NamespaceStat {
            name: namespace.name.clone(),
            objects: namespace.objects,
            bytes: namespace.bytes,
            used: self.used(index),
            granted: self.room.granted(index),
            quota: self.room.policy(index).and_then(|it| it.quota),
            max_hold_ms: self.room.policy(index).and_then(|it| it.max_hold_ms),
            demotion: self.demotion(index),
            samples: samples.count,
            samples_leased: samples.leased,
            sample_age_ms: samples.oldest.map_or(0, |put| self.now.0.saturating_sub(put.0)),
            sample_bytes: samples.bytes,
            sample_bytes_leased: samples.bytes_leased,
            leased_age_ms: samples.oldest_leased.map_or(0, |put| self.now.0.saturating_sub(put.0)),
            waiting: self.room.line_len(index),
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
        let mut owners: Vec<_> = self.catalog.owners(index).map(stat).collect();
        owners.sort_by_key(|it| std::cmp::Reverse(it.bytes));
        owners.truncate(OWNERS_MAX);
        owners
    }

    /// Which clients keep what of a namespace, so that a leak has a name.
    fn holders(&self, index: NamespaceIndex) -> Vec<Holder> {
        let mut sums: BTreeMap<(Held, String), (u64, u64)> = BTreeMap::new();
        let mut add = |held, who: String, bytes: u64| {
            let sum = sums.entry((held, who)).or_default();
            *sum = (sum.0 + 1, sum.1.saturating_add(bytes));
        };
        for (object, label) in self.leases.held() {
            if let Some(object) = self.catalog.get(object).filter(|it| it.namespace() == index) {
                add(Held::Leased, label.to_owned(), object.len());
            }
        }
        for grant in self.room.grants.values().filter(|it| it.namespace == index) {
            add(Held::Reserved, self.label(grant.who), grant.room);
        }
        let holder = |((held, who), (objects, bytes))| Holder { held, who, objects, bytes };
        let mut holders: Vec<_> = sums.into_iter().map(holder).collect();
        holders.sort_by_key(|it| std::cmp::Reverse(it.bytes));
        holders.truncate(HOLDERS_MAX);
        holders
    }

    /// Takes one object away to make room for another, on a node or within a quota.
    pub(super) fn evict(&mut self, victim: ObjectIndex, node: Option<NodeIndex>, (by, key): (&str, &Key)) {
        let bytes = self.catalog.get(victim).map_or(0, super::catalog::Object::len);
        self.evicted_objects += 1;
        self.evicted_bytes += bytes;
        self.effects.push_back(Effect::Notice(super::Notice::Evicted(1, bytes)));
        if self.leave_memory(victim, node) {
            return;
        }
        let might_be_shelved = node.is_some_and(|node| self.is_beside_a_disk(node));
        self.tier.stat.evicted_unshelved += u64::from(might_be_shelved);
        let gone = self.take_out(victim, Cause::Evicted, by);
        self.history.made_room(node.map_or_else(String::new, |node| self.members.name(node)), key);
        // Nobody waits for the answer: what needs the room follows on the same connection, in order.
        self.retire(gone, None);
    }
}
