//! The oracle observes what clients write, what the master receives and sends, and what the nodes record.
//! From that it knows what may be seen. It decides nothing, and does not influence the parties.
//!
//! The promises are checked in [`crate::invariants`], one file each; this file keeps the history they need.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_core::master::{Departure, Effect, EvictionCause, Notice};
use tiffin_node::SlotState;
use tiffin_types::{
    ClientId, ConnId, Generation, RequestId, SegmentId, SlotRef, Tick,
    attributes::{Consumption, Expiry},
    message::{
        Announced, DecideItem, DeleteOutcome, DeletedMatching, MasterToMember, OnExists, Policy, Presence,
        Record, Registered, Reply, ResolveOutcome, Resolved,
    },
};

use crate::{
    coverage::{Coverage, Point},
    decisions::{Deciding, OnItsWay},
    invariants::expiry::WallClock,
    invariants::full::SinglePut,
    invariants::p2::{Dead, Victim},
    invariants::r16::NamedRequest,
    invariants::successors::Successors,
    invariants::tier::TierState,
    keyspace::{self, Name},
    memory::{Memory, ValueId},
};

/// All memory that ever existed.
pub(crate) type Memories = BTreeMap<SegmentId, Memory>;

/// A violated promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The id of the promise.
    pub invariant: &'static str,
    /// The observed violation.
    pub what: String,
}

impl tiffin_sim_runner::RuleViolation for Violation {
    fn promise(&self) -> &str {
        self.invariant
    }

    fn what(&self) -> &str {
        &self.what
    }
}

/// The sender of a message to the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// A client of a namespace, on its newest connection.
    Client(u8),
    /// A node, on its newest connection.
    Node(SegmentId),
    /// A connection that was closed or replaced: its messages must have no effect.
    Stale,
}

/// One put.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value {
    pub(crate) name: Name,
    pub(crate) len: u64,
    /// How many copies it is to have.
    pub(crate) copies: u32,
}

/// The history of one generation.
#[derive(Clone, Debug)]
pub(crate) struct ObjectHistory {
    pub(crate) name: Name,
    /// The owners of its pins, as the master knows them.
    pub(crate) pins: BTreeSet<String>,
    /// Those that every node has confirmed as written.
    pub(crate) written_pins: BTreeSet<String>,
    pub(crate) sample: bool,
    /// It is consumed by several groups.
    pub(crate) by_groups: bool,
    /// The first consumer frees it.
    pub(crate) once: bool,
    pub(crate) in_stream: bool,
    /// The groups that have consumed it, confirmed as written by every node.
    pub(crate) acked: BTreeSet<String>,
    /// Its attributes are known.
    pub(crate) marked: bool,
    pub(crate) value: Option<ValueId>,
    pub(crate) lease_until: Tick,
    /// There is a reason why it is not found: removed, replaced or evicted.
    pub(crate) gone: bool,
    /// Another such reason: deletes that apply to it, answered or not, except those that a lease refused.
    pub(crate) deletes: u32,
    /// One of these was requested when no successor was known, and no lease refuses it.
    pub(crate) is_deleted_first: bool,
    /// How often it was removed and then restored by a node that had not reported: some of its copies may
    /// still be about to be removed.
    pub(crate) returns: u32,
    pub(crate) dead: Option<Dead>,
    /// When it expires, as its nodes were told; and the latest time that it may.
    pub(crate) expiry: Option<Expiry>,
    pub(crate) ends_ms_max: Option<u64>,
}

impl ObjectHistory {
    pub(crate) fn is_gone(&self) -> bool {
        self.gone || self.deletes > 0
    }

    /// It must not be evicted.
    pub(crate) fn is_protected(&self) -> bool {
        !self.pins.is_empty() || !self.written_pins.is_empty() || self.sample
    }
}

/// An unanswered delete: for each name the objects it applies to.
#[derive(Debug)]
pub(crate) struct Deleting {
    pub(crate) victims: Vec<(Name, Vec<Victim>)>,
    /// The master knew every existing copy.
    pub(crate) complete: bool,
    pub(crate) force: bool,
}

/// An unanswered pin of one name.
#[derive(Debug, Default)]
pub(crate) struct Pinning {
    /// The object that is pinned in writing if the answer says so.
    pub(crate) written: Option<Generation>,
    /// The objects that were not pinned by that owner before.
    pub(crate) new: Vec<Generation>,
}

/// An acknowledgement, and whether the master knew every existing copy.
#[derive(Debug)]
pub(crate) struct Acking {
    pub(crate) generations: Vec<Generation>,
    pub(crate) group: String,
    pub(crate) complete: bool,
    /// It is freed only at the end of the last lease.
    pub(crate) unless_leased: bool,
    /// The samples that were leased when the master received it.
    pub(crate) leased: BTreeSet<Generation>,
}

/// A put that arrived while others waited for space.
#[derive(Debug)]
pub(crate) struct QueuedPut {
    pub(crate) namespace: u8,
    pub(crate) arrival: u64,
    /// It may wait.
    pub(crate) waits: bool,
    /// Its client had its share of the memory. Others need not wait for it.
    pub(crate) is_beyond_share: bool,
}

/// Reasons for removals that the current event of the master gives.
#[derive(Debug, Default)]
pub(crate) struct Cause {
    /// Objects of these names may be removed.
    pub(crate) names: BTreeSet<Name>,
    /// These objects may be removed.
    pub(crate) generations: BTreeSet<Generation>,
    /// Copies that may get no name.
    pub(crate) nameless: BTreeSet<(SegmentId, SlotRef)>,
    /// A removal that a lease refuses.
    pub(crate) is_refusable: bool,
    /// Names of a lookup, whether with a lease, and the group.
    pub(crate) asked: Vec<Name>,
    pub(crate) lease: bool,
    pub(crate) group: String,
    pub(crate) announced: Vec<Record>,
    /// Announced by a node that is new to this epoch: its objects may be older than the newest seen.
    pub(crate) from_new_node: bool,
    /// An eviction is in progress, and whether its object is known.
    pub(crate) evicting: bool,
    pub(crate) evicted: bool,
}

/// The history, and the result.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    pub(crate) violation: Option<Violation>,
    pub(crate) values: Vec<Value>,
    /// The value written into each use of a slot.
    pub(crate) written: BTreeMap<(SegmentId, SlotRef), ValueId>,
    pub(crate) objects: BTreeMap<Generation, ObjectHistory>,
    pub(crate) generation_of: BTreeMap<(SegmentId, SlotRef), Generation>,
    pub(crate) of_name: BTreeMap<Name, BTreeSet<Generation>>,
    /// The newest generation of each name seen in this epoch.
    pub(crate) newest: BTreeMap<Name, Generation>,
    /// The epoch of the master.
    pub(crate) epoch: u64,
    /// The number of starts of the master. Without its state folder it may start with an epoch again.
    pub(crate) incarnation: u64,
    /// The newest generation of each name that was acknowledged to a client in this epoch.
    pub(crate) acknowledged: BTreeMap<Name, Generation>,
    pub(crate) deleting: BTreeMap<(ConnId, RequestId), Deleting>,
    /// Other copies of decided objects, which their nodes may not know of.
    pub(crate) decided_too: BTreeMap<(SegmentId, SlotRef), Generation>,
    /// Copies that this epoch has named or adopted.
    pub(crate) recorded: BTreeSet<(SegmentId, SlotRef)>,
    /// Copies that this epoch has removed.
    pub(crate) retired: BTreeSet<(SegmentId, SlotRef)>,
    /// Copies that members owed the retires of when this epoch began. It never uses them.
    pub(crate) owed: BTreeSet<(SegmentId, SlotRef)>,
    /// Copies of undecided objects whose name was deleted: their generation was not known yet.
    pub(crate) undecided: BTreeSet<(SegmentId, SlotRef)>,
    pub(crate) deciding: BTreeMap<(ConnId, RequestId), Deciding>,
    pub(crate) on_their_way: BTreeMap<(ConnId, RequestId), OnItsWay>,
    pub(crate) cause: Cause,
    node_names: BTreeMap<String, Vec<SegmentId>>,
    /// Nodes that the master has registered, and not lost since.
    pub(crate) joined: BTreeSet<SegmentId>,
    /// Lost nodes, and whether the master knew their objects.
    pub(crate) lost: BTreeMap<SegmentId, bool>,
    /// Nodes that the master no longer waits for, although they have not reported in this epoch.
    pub(crate) absent: BTreeSet<SegmentId>,
    /// Answered puts of which an older copy may still be readable, on a node that could not be informed.
    pub(crate) shadowed: BTreeSet<Generation>,
    /// Objects that a node must not have after its registration is answered.
    pub(crate) pending_retires: BTreeMap<ConnId, Vec<Generation>>,
    /// Unanswered pins: the owner, and each name.
    pub(crate) pinning: BTreeMap<(ConnId, RequestId), (String, Vec<Pinning>)>,
    /// Unanswered acknowledgements.
    pub(crate) acking: BTreeMap<(ConnId, RequestId), Acking>,
    /// Published objects that were acknowledged to their writers.
    pub(crate) published: BTreeSet<(SegmentId, SlotRef)>,
    /// Written objects whose predecessors were retired for them.
    pub(crate) successors: BTreeMap<(SegmentId, SlotRef), Name>,
    /// Objects that this epoch named through the ledger.
    pub(crate) ledger_commits: BTreeSet<(SegmentId, SlotRef)>,
    /// Copies for which any epoch has sent a retire.
    pub(crate) retires_sent: BTreeSet<(SegmentId, SlotRef)>,
    /// Leases of samples: client and sample.
    pub(crate) leases: BTreeMap<u64, (ClientId, Generation)>,
    /// Samples that were consumed while others had them leased.
    pub(crate) released: BTreeSet<Generation>,
    /// Groups that consumed a sample while others had it leased.
    pub(crate) deferred: BTreeSet<(Generation, String)>,
    /// Groups that have consumed a sample according to a member that has joined.
    pub(crate) announced_acks: BTreeSet<(Generation, String)>,
    /// Groups that consumed a sample, or tried, at another time.
    pub(crate) acked_for_good: BTreeSet<(Generation, String)>,
    /// Unanswered pulls with their group; and the group of each pulled lease.
    pub(crate) pulls: BTreeMap<(ConnId, RequestId), String>,
    pub(crate) pulled: BTreeMap<u64, String>,
    /// The client of each connection.
    pub(crate) conn_clients: BTreeMap<ConnId, ClientId>,
    /// Clients whose connection broke, and since when, until they return.
    pub(crate) away: BTreeMap<ClientId, Tick>,
    /// The memory that each put needs, if nothing else limits it.
    pub(crate) needs: BTreeMap<(ConnId, RequestId), u64>,
    /// The put that the master has just received.
    pub(crate) newest_put: Option<(ConnId, RequestId)>,
    /// Puts that arrived while others waited for space.
    pub(crate) put_queue: BTreeMap<(ConnId, RequestId), QueuedPut>,
    pub(crate) arrivals: u64,
    /// The most nodes that the master has counted on at a time, dead ones included.
    pub(crate) nodes_counted: u64,
    /// Puts of one object that do not wait, with none waiting before them.
    pub(crate) single_puts: BTreeMap<(ConnId, RequestId), SinglePut>,
    /// Number of writes of the state, of evictions for puts, and of allocations at nodes.
    pub(crate) saves: u64,
    pub(crate) evictions: u64,
    pub(crate) allocations: u64,
    /// Waiting puts of one object, and since when. Only those since the last change of limits.
    pub(crate) waiting_puts: BTreeMap<(ConnId, RequestId), Tick>,
    /// In this epoch samples may be dropped after waiting too long.
    pub(crate) samples_expire: bool,
    /// Something was evicted without a copy on a reachable node, so the oracle does not know what.
    pub(crate) has_unknown_evictions: bool,
    /// Registered members that were not lost since: they survive a restart of the master.
    pub(crate) roster: BTreeSet<SegmentId>,
    /// While a restarted master waits for reports: the newest removed generation of each name.
    pub(crate) left: Option<BTreeMap<Name, Generation>>,
    /// The names in unanswered requests.
    pub(crate) asked_names: BTreeMap<(ConnId, RequestId), NamedRequest>,
    /// Limits that must be saved before they are answered.
    pub(crate) setting: BTreeMap<(ConnId, RequestId), (u8, Policy)>,
    /// How often the state folder was lost.
    pub(crate) losses: u32,
    /// What has been seen and removed, in all epochs.
    pub(crate) past: Successors,
    lease_ms: u64,
    pub(crate) lease_grace_ms: u64,
    pub(crate) strict: bool,
    pub(crate) tier: TierState,
    pub(crate) clock: WallClock,
}

impl Oracle {
    /// Records a violation; only the first one counts.
    pub(crate) fn fail(&mut self, invariant: &'static str, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(Violation { invariant, what: what() });
        }
    }

    pub(crate) fn rules(&mut self, lease_ms: u64, lease_grace_ms: u64, strict: bool) {
        (self.lease_ms, self.lease_grace_ms, self.strict) = (lease_ms, lease_grace_ms, strict);
    }

    pub(crate) fn new_value(&mut self, name: Name, len: u64) -> ValueId {
        self.values.push(Value { name, len, copies: 1 });
        ValueId(self.values.len() as u32)
    }

    /// A put requests this number of copies.
    pub(crate) fn wants_copies(&mut self, id: ValueId, copies: u32) {
        let value = (id.0 as usize).checked_sub(1).and_then(|it| self.values.get_mut(it));
        value.into_iter().for_each(|it| it.copies = copies);
    }

    pub(crate) fn value(&self, id: ValueId) -> Option<&Value> {
        self.values.get((id.0 as usize).checked_sub(1)?)
    }

    pub(crate) fn will_write(&mut self, segment: SegmentId, slot_ref: SlotRef, value: ValueId) {
        self.written.insert((segment, slot_ref), value);
    }

    pub(crate) fn node_starts(&mut self, segment: SegmentId, name: &str) {
        let named = self.node_names.entry(name.to_owned()).or_default();
        if !named.contains(&segment) {
            named.push(segment);
        }
    }

    /// The segments of that name, the oldest first.
    pub(crate) fn segments_of(&self, node: &str) -> &[SegmentId] {
        self.node_names.get(node).map_or(&[], Vec::as_slice)
    }

    /// Whether this epoch knows what a node holds, or ignores it.
    pub(crate) fn knows(&self, segment: SegmentId) -> bool {
        self.joined.contains(&segment) || self.lost.get(&segment) == Some(&true)
    }

    /// The master's state folder is lost, and with it the roster.
    pub(crate) fn state_is_lost(&mut self) {
        self.roster.clear();
        self.past.forget();
        self.losses += 1;
    }

    /// The object that has a name, as far as the oracle can tell.
    pub(crate) fn standing(&self, name: Name) -> Option<Generation> {
        let newest = self.newest.get(&name).copied()?;
        let history = self.objects.get(&newest)?;
        let vanishes =
            self.has_unknown_evictions && !history.is_protected() || self.samples_expire && history.sample;
        let vanishes = vanishes || self.has_expired(newest, history);
        (!history.is_gone() && history.returns == 0 && !vanishes).then_some(newest)
    }

    /// Whether the master has just announced an eviction.
    pub(crate) fn is_evicting(&self) -> bool {
        self.cause.evicting
    }

    /// Whether a later object had the name: what is left of this one goes with it.
    pub(crate) fn was_replaced(&self, generation: Generation) -> bool {
        let name = self.objects.get(&generation).map(|it| it.name);
        name.is_some_and(|name| {
            self.objects.iter().any(|(it, object)| *it > generation && object.name == name)
        })
    }

    /// Allows the removal of an object in the current event.
    pub(crate) fn explain(&mut self, generation: Generation) {
        self.cause.generations.insert(generation);
    }

    /// The master has sent all effects: an announced eviction is over.
    pub(crate) fn effects_done(&mut self) {
        let cause = &mut self.cause;
        self.has_unknown_evictions |=
            std::mem::take(&mut cause.evicting) && !std::mem::take(&mut cause.evicted);
    }

    pub(crate) fn begin_deleting(
        &mut self,
        conn: ConnId,
        id: RequestId,
        names: Vec<Name>,
        force: bool,
        complete: bool,
    ) {
        let mut victims = Vec::new();
        self.successors.retain(|_, name| !names.contains(name));
        for name in names {
            let mut of_name = Vec::new();
            for &generation in self.of_name.get(&name).into_iter().flatten() {
                let Some(history) = self.objects.get_mut(&generation) else { continue };
                let (returns, gone) = (history.returns, history.is_gone());
                history.deletes += 1;
                history.is_deleted_first |= !self.cause.is_refusable;
                of_name.push(Victim { generation, returns, gone });
            }
            self.cause.names.insert(name);
            victims.push((name, of_name));
        }
        let decided = self.deciding.values();
        let items = decided.flat_map(|it| &it.items);
        let meant = |item: &DecideItem| name_of(item).is_some_and(|it| victims.iter().any(|of| of.0 == it));
        let copies = items.filter(|(_, item)| meant(item)).flat_map(|(home, DecideItem { item, .. })| {
            let others = item.others.iter().map(|it| (it.segment, it.slot_ref()));
            others.chain(std::iter::once((*home, item.slot_ref)))
        });
        self.undecided.extend(copies);
        self.deleting.insert((conn, id), Deleting { victims, complete, force });
    }

    /// Whether a copy belongs to an undecided object.
    pub(crate) fn is_being_decided(&self, segment: SegmentId, slot_ref: SlotRef) -> bool {
        let mut items = self.deciding.values().flat_map(|it| &it.items);
        items
            .any(|(_, it)| it.item.others.iter().any(|it| (it.segment, it.slot_ref()) == (segment, slot_ref)))
    }

    /// The master has handled the request. Unanswered decisions have replaced their predecessors.
    pub(crate) fn request_done(&mut self) {
        self.cause = Cause::default();
        let mut replaced = Vec::new();
        for Deciding { items, late, .. } in self.deciding.values_mut() {
            *late = true;
            let new = items.iter().filter(|it| !self.generation_of.contains_key(&(it.0, it.1.item.slot_ref)));
            let new = new.filter(|it| it.1.item.options.on_exists == OnExists::Replace);
            replaced.extend(new.filter_map(|it| name_of(&it.1)));
        }
        for name in replaced {
            for generation in self.of_name.get(&name).into_iter().flatten() {
                if let Some(history) = self.objects.get_mut(generation) {
                    history.gone = true;
                }
            }
        }
    }

    fn evicts(&mut self, cause: EvictionCause) {
        // A waiting promotion may find memory in the same step.
        self.evictions += u64::from(cause != EvictionCause::Promotion);
        (self.cause.evicting, self.cause.evicted) = (true, false);
    }

    /// An effect of the master; `segment` is the node that it is sent to.
    pub(crate) fn on_effect(
        &mut self,
        now: Tick,
        effect: &Effect,
        segment: Option<SegmentId>,
        memories: &Memories,
        coverage: &mut Coverage,
    ) {
        self.clock.now = self.clock.now.max(now);
        let evicting = std::mem::take(&mut self.cause.evicting);
        let retires = matches!(effect, Effect::Ask(_, _, MasterToMember::Retire(_)));
        self.has_unknown_evictions |= evicting && !retires && !std::mem::take(&mut self.cause.evicted);
        match effect {
            Effect::Notice(Notice::Evicted(it)) => self.evicts(it.cause),
            Effect::Persist(_) => self.saves += 1,
            Effect::Notice(Notice::AwaitingReports(_)) => self.left = Some(BTreeMap::new()),
            Effect::Notice(Notice::AllReported) => self.left = None,
            Effect::Notice(Notice::NodeReady(_)) => {
                if let Some(segment) = segment {
                    self.lost.remove(&segment);
                    self.joined.insert(segment);
                }
            }
            Effect::Notice(Notice::Departs(_, Departure::Absent)) => {
                if let Some(segment) = segment {
                    self.successors.retain(|it, _| it.0 != segment);
                    self.gives_up(segment);
                }
            }
            Effect::Notice(Notice::Departs(_, Departure::Lost | Departure::Left)) => {
                if let Some(segment) = segment {
                    self.roster.remove(&segment);
                    self.joined.remove(&segment);
                    // If it returns, it starts empty.
                    self.lost.insert(segment, true);
                    self.successors.retain(|it, _| it.0 != segment);
                    self.pins_are_lost(segment, memories);
                    self.tier.lost(segment);
                }
            }
            Effect::Ask(conn, id, request) => {
                self.on_member_effect((*conn, *id, now), request, segment, evicting, coverage);
            }
            Effect::SendLedger(_, _, MasterToMember::Settle(settle)) => {
                let segment = segment.unwrap_or_default();
                self.on_retires(Some(segment), &settle.abort);
                self.on_retires(Some(segment), &settle.retire);
                settle.retire.iter().for_each(|slot_ref| self.retires(now, segment, *slot_ref, coverage));
                for record in &settle.commit {
                    self.ledger_commits.insert((segment, record.slot_ref));
                    self.record(segment, record, false);
                }
            }
            Effect::Reply(conn, id, reply) => {
                self.on_reply(now, (*conn, *id), reply, segment, memories, coverage);
            }
            _ => (),
        }
    }

    fn resolved(&mut self, now: Tick, resolved: &Resolved, memories: &Memories, coverage: &mut Coverage) {
        // A get that waited for a promotion reads like any other, but its names are not recorded.
        for outcome in &resolved.items {
            if let ResolveOutcome::Found(found) = outcome {
                self.end_protection(found.generation);
            }
        }
        let asked = std::mem::take(&mut self.cause.asked);
        for (name, outcome) in asked.into_iter().zip(&resolved.items) {
            match outcome {
                ResolveOutcome::Found(found) => {
                    self.found(name, found, coverage);
                    self.found_in_time(name, found, coverage);
                    let until = now.after(self.lease_ms);
                    let history = self.objects.get_mut(&found.generation).filter(|_| self.cause.lease);
                    if let Some(history) = history {
                        history.lease_until = history.lease_until.max(until);
                    }
                }
                ResolveOutcome::Absent => self.absent(name, memories, coverage),
                ResolveOutcome::Unavailable(_) => (),
            }
        }
    }

    fn present(&mut self, items: &[Presence], memories: &Memories, coverage: &mut Coverage) {
        let asked = std::mem::take(&mut self.cause.asked);
        let absent = asked.into_iter().zip(items).filter(|it| *it.1 == Presence::Absent);
        absent.for_each(|(name, _)| self.absent(name, memories, coverage));
    }

    fn deleted_matching(
        &mut self,
        to: (ConnId, RequestId),
        matching: &DeletedMatching,
        memories: &Memories,
        coverage: &mut Coverage,
    ) {
        let Some(deleting) = self.deleting.remove(&to) else { return };
        let outcome = match matching.unconfirmed.is_empty() {
            true => DeleteOutcome::Deleted,
            false => DeleteOutcome::Unconfirmed(matching.unconfirmed.clone()),
        };
        // If leases refuse, the answer does not say which.
        let is_refusable = self.strict && !deleting.force;
        let complete = deleting.complete && !is_refusable;
        for (name, mut victims) in deleting.victims {
            let is_gone = |it: &Victim| self.objects.get(&it.generation).is_some_and(|it| it.gone);
            victims.retain(|it| !is_refusable || is_gone(it));
            self.deleted(name, &victims, &outcome, complete, memories, coverage);
        }
    }

    fn on_reply(
        &mut self,
        now: Tick,
        to: (ConnId, RequestId),
        reply: &Reply,
        segment: Option<SegmentId>,
        memories: &Memories,
        coverage: &mut Coverage,
    ) {
        self.check_absences(to, reply, memories, coverage);
        match reply {
            Reply::Decided(outcomes) => {
                self.decide_answered(to, outcomes);
                self.all_decided(to, segment, outcomes.iter().map(Some), memories, coverage);
            }
            Reply::Published(outcomes) => {
                self.publish_answered(to, outcomes, memories);
                self.all_decided(to, None, outcomes.iter().map(Option::as_ref), memories, coverage);
            }
            Reply::Deleted(outcomes) => {
                let Some(deleting) = self.deleting.remove(&to) else { return };
                for ((name, victims), outcome) in deleting.victims.iter().zip(outcomes) {
                    self.deleted(*name, victims, outcome, deleting.complete, memories, coverage);
                    let again = !victims.is_empty() && victims.iter().all(|it| it.gone);
                    if again && matches!(outcome, DeleteOutcome::Unconfirmed(_)) {
                        coverage.hit(Point::RepeatedUnconfirmed);
                    }
                    if *outcome == DeleteOutcome::Leased {
                        self.kept_by_lease(victims, deleting.force);
                    }
                }
            }
            Reply::DeletedMatching(matching) => self.deleted_matching(to, matching, memories, coverage),
            Reply::Resolved(resolved) => self.resolved(now, resolved, memories, coverage),
            Reply::Present(items) => self.present(items, memories, coverage),
            Reply::Leased(leased) => self.lease_answered(now, to.0, leased, coverage),
            Reply::Pulled(pulled) => self.pulled(now, to, pulled, coverage),
            Reply::Reserved(reserved) => self.reserved_in_order(to, reserved, coverage),
            Reply::Pinned(outcomes) => self.pinned(to, outcomes),
            Reply::Acked(outcomes) => self.acked(to, outcomes, memories, coverage),
            Reply::Announced(Announced { retire: refused, more }) => {
                coverage.hit(if *more { Point::OwesMore } else { Point::OwesNoMore });
                self.on_retires(segment, refused);
                let segment = segment.unwrap_or_default();
                let announced = std::mem::take(&mut self.cause.announced);
                let unannounced =
                    refused.iter().filter(|slot_ref| !announced.iter().any(|it| it.slot_ref == **slot_ref));
                unannounced.for_each(|slot_ref| self.unannounced(segment, *slot_ref, memories));
                for record in &announced {
                    match refused.contains(&record.slot_ref) {
                        true => self.announcement_refused(segment, record, coverage),
                        false => self.adopted(segment, record, memories),
                    }
                }
            }
            Reply::Registered(registered) => {
                let at = segment.unwrap_or_default();
                registered.retire.iter().for_each(|slot_ref| _ = self.tier.leaves((at, *slot_ref)));
                self.on_registered(to.0, registered, segment);
            }
            _ => (),
        }
    }

    fn on_registered(&mut self, conn: ConnId, registered: &Registered, segment: Option<SegmentId>) {
        self.on_retires(segment, &registered.retire);
        let segment = segment.unwrap_or_default();
        self.roster.insert(segment);
        self.absent.remove(&segment);
        if registered.discard {
            self.published.retain(|it| it.0 != segment);
            self.ledger_commits.retain(|it| it.0 != segment);
            // A put that was decided before may be answered later.
            let on_node = self.generation_of.keys().filter(|it| it.0 == segment);
            self.retires_sent.extend(on_node);
        }
        // Objects that were deleted before the node joined this epoch are not pending.
        let owes = |it: &ObjectHistory| it.dead.as_ref().is_some_and(|it| !it.exempt.contains(&segment));
        let pending_retires = self.objects.iter().filter(|(_, it)| owes(it)).map(|(it, _)| *it).collect();
        self.pending_retires.insert(conn, pending_retires);
        if registered.discard && !self.lost.contains_key(&segment) {
            self.fail("names", || format!("{segment} must discard all, but was never lost"));
        }
    }

    fn adopted(&mut self, segment: SegmentId, record: &Record, memories: &Memories) {
        let acked = record.attributes.sample.iter().flat_map(|it| &it.acked);
        self.announced_acks.extend(acked.map(|it| (record.generation, it.clone())));
        // The same copy may have been decided again, and its node did not know yet.
        let anew = self.generation_of.get(&(segment, record.slot_ref)).copied();
        if anew.is_some_and(|it| it > record.generation && self.is_of_this_master(it)) {
            return;
        }
        self.tier.arrives((segment, record.slot_ref), record.generation);
        if let Some(name) = record_name(record).filter(|_| self.cause.from_new_node) {
            self.check_not_older(segment, name, record, memories);
            // A node that had stored an object, and not retired its predecessor, reports both.
            if !self.retired.contains(&(segment, record.slot_ref)) {
                self.removed_is_not_restored(segment, name, record.generation);
            }
            self.newest.insert(name, record.generation);
            let was_gone = self.objects.get(&record.generation).is_some_and(ObjectHistory::is_gone);
            if was_gone {
                self.leases.retain(|_, (_, leased)| *leased != record.generation);
            }
            // A delete by pattern in progress may or may not remove it.
            let meant = |it: &Victim| it.generation == record.generation;
            let deletes = self.deleting.values().flat_map(|it| &it.victims);
            let under_way = deletes.filter(|(_, of)| of.iter().any(meant)).count() as u32;
            // So may a recorded acknowledgement, when the last lease ends.
            let under_way = under_way + u32::from(self.released.contains(&record.generation));
            let history = self.seen(name, record.generation);
            if was_gone {
                // Its pins were removed with it; the returning node knows only its own.
                history.returns += 1;
                history.pins.clear();
                history.written_pins.clear();
            }
            (history.gone, history.deletes) = (false, under_way);
            history.is_deleted_first &= under_way > 0;
            // The object comes from messages of a dead process, or from an earlier epoch: it was not known
            // when it was deleted.
            let unheard = history.dead.as_ref().is_some_and(|it| it.exempt.contains(&segment));
            if unheard || memories.get(&segment).is_some_and(|it| !it.alive) {
                history.dead = None;
            }
            // A restarted master learns pins from the nodes.
            history.pins.extend(record.attributes.pins.iter().cloned());
            history.lease_until = Tick(0);
        }
        self.record(segment, record, false);
        // The report may complete its consumption: then it is freed at once, or with its last lease.
        let is_consumed = self.is_consumed(record);
        let history = self.objects.get_mut(&record.generation).filter(|_| is_consumed);
        history.into_iter().for_each(|it| it.gone = true);
    }

    /// A copy of an object is known.
    pub(crate) fn record(&mut self, segment: SegmentId, record: &Record, late: bool) {
        let Some(name) = record_name(record) else { return };
        let value = self.written.get(&(segment, record.slot_ref)).copied();
        self.recorded.insert((segment, record.slot_ref));
        self.generation_of.insert((segment, record.slot_ref), record.generation);
        // All older objects of the name are replaced.
        for older in self.of_name.get(&name).into_iter().flatten().filter(|it| **it < record.generation) {
            if let Some(history) = self.objects.get_mut(older) {
                history.gone = true;
            }
        }
        let history = self.seen(name, record.generation);
        history.sample |= record.attributes.sample.is_some();
        history.expiry =
            history.expiry.or(record.attributes.expiry.as_deref().copied().filter(|it| it.ends_ms > 0));
        let consumption = record.attributes.sample.as_ref().map(|it| &it.consumption);
        history.by_groups |= matches!(consumption, Some(Consumption::Groups(_)));
        history.once |= matches!(consumption, Some(Consumption::Once));
        history.in_stream |= record.attributes.sample.as_ref().is_some_and(|it| !it.stream.is_empty());
        // Pins that are reported late may have ended since.
        if !std::mem::replace(&mut history.marked, true) && !late {
            history.pins = record.attributes.pins.iter().cloned().collect();
        }
        if let (None, Some(value)) = (history.value, value) {
            history.value = Some(value);
        }
    }

    /// A generation of a name exists, or did.
    pub(crate) fn seen(&mut self, name: Name, generation: Generation) -> &mut ObjectHistory {
        self.of_name.entry(name).or_default().insert(generation);
        // A repeated report is not new: the object may have been replaced by one from an unknown node.
        if !self.objects.contains_key(&generation) {
            let newest = self.newest.entry(name).or_default();
            *newest = (*newest).max(generation);
        }
        self.objects.entry(generation).or_insert_with(|| ObjectHistory {
            name,
            pins: BTreeSet::new(),
            written_pins: BTreeSet::new(),
            sample: false,
            by_groups: false,
            once: false,
            in_stream: false,
            acked: BTreeSet::new(),
            marked: false,
            value: None,
            lease_until: Tick(0),
            gone: false,
            deletes: 0,
            is_deleted_first: false,
            returns: 0,
            dead: None,
            expiry: None,
            ends_ms_max: None,
        })
    }
}

/// Readable copies of one generation.
pub(crate) fn copies(memory: &Memory, generation: Generation) -> impl Iterator<Item = SlotRef> {
    let readable =
        memory.slots().filter(move |(_, it)| it.state == SlotState::Committed && it.generation == generation);
    readable.map(|(slot_ref, _)| slot_ref)
}

pub(crate) fn record_name(record: &Record) -> Option<Name> {
    Name::of(keyspace::namespace(record.namespace.as_bytes())?, &record.key)
}

pub(crate) fn name_of(item: &DecideItem) -> Option<Name> {
    Name::of(keyspace::namespace(item.namespace.as_bytes())?, &item.item.key)
}
