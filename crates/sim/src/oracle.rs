//! The oracle watches: what clients write, what the master hears and says, what the nodes record. From that
//! it knows what may and what may not be seen. It decides nothing, and nothing that it says reaches the
//! parties.
//!
//! The promises are checked in [`crate::invariants`], one file each; this file keeps the history they need.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_core::{
    ClientId, ConnId, Generation, Hold, RequestId, SegmentId, Tick,
    marks::Consumption,
    master::{Effect, Notice, Saved},
    message::{
        DecideItem, DeleteOutcome, DeletedMatching, MasterToMember, OnExists, Policy, Presence, Record,
        Registered, Reply, ResolveOutcome, Resolved,
    },
    node::SlotState,
};

use crate::{
    coverage::{Coverage, Point},
    deciding::Deciding,
    invariants::full::SinglePut,
    invariants::p2::{Dead, Victim},
    invariants::r16::Asked,
    invariants::tier::Shelving,
    memory::{Memory, ValueId},
    names::{self, Name},
};

/// All memory there ever was.
pub(crate) type Memories = BTreeMap<SegmentId, Memory>;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Which.
    pub invariant: &'static str,
    /// How.
    pub what: String,
}

impl tiffin_sim_runner::Breach for Broken {
    fn promise(&self) -> &str {
        self.invariant
    }

    fn what(&self) -> &str {
        &self.what
    }
}

/// Who speaks to the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaker {
    /// A client of a namespace, on its newest connection.
    Client(u8),
    /// A node, on its newest connection.
    Node(SegmentId),
    /// Somebody on a connection that was closed or replaced: nothing that is said there may matter.
    Nobody,
}

/// One put.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value {
    pub(crate) name: Name,
    pub(crate) len: u64,
}

/// What is known of one generation.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub(crate) name: Name,
    /// The owners of its pins, as the master knows them.
    pub(crate) pins: BTreeSet<String>,
    /// Those of them that every node has confirmed to have in writing.
    pub(crate) written_pins: BTreeSet<String>,
    pub(crate) sample: bool,
    /// Each of several groups consumes it.
    pub(crate) by_groups: bool,
    /// The first consumer frees it.
    pub(crate) once: bool,
    pub(crate) in_stream: bool,
    /// The groups that have, as every node has confirmed to have in writing.
    pub(crate) acked: BTreeSet<String>,
    /// Its marks were told.
    pub(crate) marked: bool,
    pub(crate) value: Option<ValueId>,
    pub(crate) lease_until: Tick,
    /// There is a reason why nobody finds it: taken away, replaced or evicted.
    pub(crate) gone: bool,
    /// Another such reason: deletes that were meant for it, answered or not, except those that a lease
    /// refused.
    pub(crate) deletes: u32,
    /// How often it was gone, and a node that had not been heard of brought it back: then some of its copies
    /// may still be leaving.
    pub(crate) returns: u32,
    pub(crate) dead: Option<Dead>,
}

impl Life {
    pub(crate) fn is_gone(&self) -> bool {
        self.gone || self.deletes > 0
    }

    /// Eviction must leave it alone.
    pub(crate) fn is_protected(&self) -> bool {
        !self.pins.is_empty() || !self.written_pins.is_empty() || self.sample
    }
}

/// A delete that is not answered yet: for each name what it is meant for.
#[derive(Debug)]
pub(crate) struct Deleting {
    pub(crate) victims: Vec<(Name, Vec<Victim>)>,
    /// Every copy that exists was known to the master.
    pub(crate) complete: bool,
    pub(crate) force: bool,
}

/// An owner, and what it pins.
pub(crate) type Pinning = (String, Vec<Option<Generation>>);

/// Who acknowledges what, and whether every copy that exists was known to the master.
#[derive(Debug)]
pub(crate) struct Acking {
    pub(crate) generations: Vec<Generation>,
    pub(crate) group: String,
    pub(crate) complete: bool,
    /// Only the end of the last lease frees it.
    pub(crate) unless_leased: bool,
    /// What was leased when the master heard of it.
    pub(crate) leased: BTreeSet<Generation>,
}

/// A put that came while others waited for room.
#[derive(Debug)]
pub(crate) struct InLine {
    pub(crate) namespace: u8,
    pub(crate) arrival: u64,
    /// It is ready to wait.
    pub(crate) waits: bool,
}

/// What the event that the master handles now may be the reason for.
#[derive(Debug, Default)]
pub(crate) struct Cause {
    /// Objects of these names may be taken away.
    pub(crate) names: BTreeSet<Name>,
    /// And these very objects.
    pub(crate) generations: BTreeSet<Generation>,
    /// Copies of what may get no name.
    pub(crate) nameless: BTreeSet<(SegmentId, Hold)>,
    /// A removal that a lease refuses.
    pub(crate) polite: bool,
    /// Names that were looked up, and with a lease; or on behalf of which group.
    pub(crate) asked: Vec<Name>,
    pub(crate) lease: bool,
    pub(crate) group: String,
    pub(crate) announced: Vec<Record>,
    /// By a node that this life of the master knew nothing of: what it holds may be older than what was seen.
    pub(crate) news: bool,
    /// Objects are being evicted, and it was seen which.
    pub(crate) evicting: bool,
    pub(crate) evicted: bool,
}

/// The history, and the verdict.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    pub(crate) broken: Option<Broken>,
    pub(crate) values: Vec<Value>,
    /// What is written into each use of a slot.
    pub(crate) written: BTreeMap<(SegmentId, Hold), ValueId>,
    pub(crate) lives: BTreeMap<Generation, Life>,
    pub(crate) generation_of: BTreeMap<(SegmentId, Hold), Generation>,
    pub(crate) of_name: BTreeMap<Name, BTreeSet<Generation>>,
    /// The newest generation of each name that was seen in this life of the master.
    pub(crate) newest: BTreeMap<Name, Generation>,
    /// Which life of the master this is.
    pub(crate) epoch: u64,
    /// The newest generation of each name that a client was told of, in this life of the master.
    pub(crate) acknowledged: BTreeMap<Name, Generation>,
    pub(crate) deleting: BTreeMap<(ConnId, RequestId), Deleting>,
    /// Other copies of what was decided, which their nodes may not have heard of.
    pub(crate) decided_too: BTreeMap<(SegmentId, Hold), Generation>,
    /// What this life of the master has taken away.
    pub(crate) retired: BTreeSet<(SegmentId, Hold)>,
    /// Copies of what was being decided when its name was deleted: nobody knew yet which generation that is.
    pub(crate) undecided: BTreeSet<(SegmentId, Hold)>,
    pub(crate) deciding: BTreeMap<(ConnId, RequestId), Deciding>,
    pub(crate) cause: Cause,
    node_names: BTreeMap<String, SegmentId>,
    /// Nodes that the master has taken in, and has not lost since.
    pub(crate) joined: BTreeSet<SegmentId>,
    /// Nodes that it has lost, and whether it had ever heard what they hold.
    pub(crate) lost: BTreeMap<SegmentId, bool>,
    /// Puts that were answered although an older copy may still be read, on a node that could not be told.
    pub(crate) shadowed: BTreeSet<Generation>,
    /// What a node must not have any more once it has heard that it is registered.
    pub(crate) owing: BTreeMap<ConnId, Vec<Generation>>,
    /// Pins that are not answered yet.
    pub(crate) pinning: BTreeMap<(ConnId, RequestId), Pinning>,
    /// Acknowledgements that are not answered yet.
    pub(crate) acking: BTreeMap<(ConnId, RequestId), Acking>,
    /// What was published, as its writers were told.
    pub(crate) published: BTreeSet<(SegmentId, Hold)>,
    /// What was named without its node, by this life of the master.
    pub(crate) entrusted: BTreeSet<(SegmentId, Hold)>,
    /// What any life of the master has told its node to let go of.
    pub(crate) ordered: BTreeSet<(SegmentId, Hold)>,
    /// Leases of samples: whose, and of what.
    pub(crate) leases: BTreeMap<u64, (ClientId, Generation)>,
    /// Samples that were consumed while others had them leased.
    pub(crate) released: BTreeSet<Generation>,
    /// Groups that consumed a sample while others had it leased.
    pub(crate) deferred: BTreeSet<(Generation, String)>,
    /// Groups that consumed a sample, or tried, at another time.
    pub(crate) acked_for_good: BTreeSet<(Generation, String)>,
    /// Pulls that are not answered yet, and on whose behalf; and of which leases were pulled.
    pub(crate) pulls: BTreeMap<(ConnId, RequestId), String>,
    pub(crate) pulled: BTreeMap<u64, String>,
    /// Whose connection each is.
    pub(crate) speakers: BTreeMap<ConnId, ClientId>,
    /// Clients whose connection broke, since when, as long as they have not come back.
    pub(crate) away: BTreeMap<ClientId, Tick>,
    /// How much memory each put needs that nothing else limits.
    pub(crate) needs: BTreeMap<(ConnId, RequestId), u64>,
    /// The put that the master has just heard of.
    pub(crate) newest_put: Option<(ConnId, RequestId)>,
    /// Puts that came while others waited for room, and how they stand.
    pub(crate) line: BTreeMap<(ConnId, RequestId), InLine>,
    pub(crate) arrivals: u64,
    /// Puts of one object that do not wait and have nobody before them, and the nodes they avoid.
    pub(crate) single_puts: BTreeMap<(ConnId, RequestId), SinglePut>,
    /// How many objects were evicted, and how often a node was asked for space.
    pub(crate) evictions: u64,
    pub(crate) allocations: u64,
    /// Puts of one object that wait, and since when. Only those since which no limit was changed.
    pub(crate) waiting_puts: BTreeMap<(ConnId, RequestId), Tick>,
    /// Samples may be given up for having waited too long, in this life of the master.
    pub(crate) impatient: bool,
    /// Something was evicted of which no reachable node had a copy, so nobody knows what.
    pub(crate) blind: bool,
    /// Members that a master has registered, and none has lost since: they survive its restart.
    pub(crate) roster: BTreeSet<SegmentId>,
    /// While a restarted master waits for reports: the newest generation of each name that it took away.
    pub(crate) left: Option<BTreeMap<Name, Generation>>,
    /// The names that requests ask for which are not answered yet.
    pub(crate) asked_names: BTreeMap<(ConnId, RequestId), Asked>,
    /// Limits that are to be saved before this is answered.
    pub(crate) setting: BTreeMap<(ConnId, RequestId), (u8, Policy)>,
    lease_ms: u64,
    pub(crate) lease_grace_ms: u64,
    pub(crate) strict: bool,
    pub(crate) shelving: Shelving,
}

impl Oracle {
    /// Records a broken promise; the first one counts.
    pub(crate) fn fail(&mut self, invariant: &'static str, what: impl FnOnce() -> String) {
        if self.broken.is_none() {
            self.broken = Some(Broken { invariant, what: what() });
        }
    }

    pub(crate) fn rules(&mut self, lease_ms: u64, lease_grace_ms: u64, strict: bool) {
        (self.lease_ms, self.lease_grace_ms, self.strict) = (lease_ms, lease_grace_ms, strict);
    }

    pub(crate) fn new_value(&mut self, name: Name, len: u64) -> ValueId {
        self.values.push(Value { name, len });
        ValueId(self.values.len() as u32)
    }

    pub(crate) fn value(&self, id: ValueId) -> Option<&Value> {
        self.values.get((id.0 as usize).checked_sub(1)?)
    }

    pub(crate) fn will_write(&mut self, segment: SegmentId, hold: Hold, value: ValueId) {
        self.written.insert((segment, hold), value);
    }

    pub(crate) fn node_starts(&mut self, segment: SegmentId, name: &str) {
        self.node_names.insert(name.to_owned(), segment);
    }

    /// Whether what a node holds is known to this life of the master, or of no account to it.
    pub(crate) fn knows(&self, segment: SegmentId) -> bool {
        self.joined.contains(&segment) || self.lost.get(&segment) == Some(&true)
    }

    /// What an earlier life knew about nodes that it could not reach dies with it: until the master keeps
    /// that durably, copies that survived on such a node may be seen again.
    pub(crate) fn master_restarts(&mut self, epoch: u64, memories: &Memories, state: &Saved) {
        self.epoch = epoch;
        self.asked_names.clear();
        self.setting.clear();
        self.left = None;
        self.newest.clear();
        self.acknowledged.clear();
        self.joined.clear();
        self.lost.clear();
        self.owing.clear();
        self.deleting.clear();
        self.retired.clear();
        self.entrusted.clear();
        self.deciding.clear();
        self.pinning.clear();
        self.acking.clear();
        self.leases.clear();
        self.released.clear();
        self.deferred.clear();
        self.pulls.clear();
        self.pulled.clear();
        self.speakers.clear();
        self.away.clear();
        self.line.clear();
        self.single_puts.clear();
        self.waiting_puts.clear();
        self.blind = false;
        self.impatient = state.policies.iter().any(|it| it.policy.max_hold_ms.is_some());
        let alive = memories.values().filter(|it| it.alive);
        let surviving: BTreeSet<_> =
            alive.flat_map(|it| it.slots()).map(|(_, record)| record.generation).collect();
        for (generation, life) in &mut self.lives {
            life.lease_until = Tick(0);
            life.pins.clear();
            let unconfirmed = life.dead.as_ref().is_some_and(|it| !it.confirmed);
            if unconfirmed || surviving.contains(generation) {
                (life.gone, life.deletes, life.dead) = (false, 0, None);
            }
        }
    }

    /// The master's state folder is gone, and with it the roster.
    pub(crate) fn state_is_lost(&mut self) {
        self.roster.clear();
    }

    /// The object that has a name, as far as anybody can tell.
    pub(crate) fn standing(&self, name: Name) -> Option<Generation> {
        let newest = self.newest.get(&name).copied()?;
        let life = self.lives.get(&newest)?;
        let vanishes = self.blind && !life.is_protected() || self.impatient && life.sample;
        (!life.is_gone() && life.returns == 0 && !vanishes).then_some(newest)
    }

    /// Whether the master has just said that it evicts something.
    pub(crate) fn is_evicting(&self) -> bool {
        self.cause.evicting
    }

    /// What may be taken away in the course of this event.
    pub(crate) fn explain(&mut self, generation: Generation) {
        self.cause.generations.insert(generation);
    }

    /// The master has nothing more to do for now: an eviction that was told of is over.
    pub(crate) fn seen_all(&mut self) {
        let cause = &mut self.cause;
        self.blind |= std::mem::take(&mut cause.evicting) && !std::mem::take(&mut cause.evicted);
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
        for name in names {
            let mut of_name = Vec::new();
            for &generation in self.of_name.get(&name).into_iter().flatten() {
                let Some(life) = self.lives.get_mut(&generation) else { continue };
                let (returns, gone) = (life.returns, life.is_gone());
                life.deletes += 1;
                of_name.push(Victim { generation, returns, gone });
            }
            self.cause.names.insert(name);
            victims.push((name, of_name));
        }
        let decided = self.deciding.values();
        let items = decided.flat_map(|it| &it.items);
        let meant = |item: &DecideItem| name_of(item).is_some_and(|it| victims.iter().any(|of| of.0 == it));
        let copies = items.filter(|(_, item)| meant(item)).flat_map(|(home, DecideItem { item, .. })| {
            let others = item.others.iter().map(|it| (it.segment, it.hold()));
            others.chain(std::iter::once((*home, item.hold)))
        });
        self.undecided.extend(copies);
        self.deleting.insert((conn, id), Deleting { victims, complete, force });
    }

    /// Whether a copy belongs to what a node has asked about and is yet to be answered.
    pub(crate) fn is_being_decided(&self, segment: SegmentId, hold: Hold) -> bool {
        let mut items = self.deciding.values().flat_map(|it| &it.items);
        items.any(|(_, it)| it.item.others.iter().any(|it| (it.segment, it.hold()) == (segment, hold)))
    }

    /// The master has handled the request. Decisions that are still to be answered have replaced what was
    /// there.
    pub(crate) fn heard(&mut self) {
        self.cause = Cause::default();
        let mut replaced = Vec::new();
        for Deciding { items, late, .. } in self.deciding.values_mut() {
            *late = true;
            let new = items.iter().filter(|it| !self.generation_of.contains_key(&(it.0, it.1.item.hold)));
            let new = new.filter(|it| it.1.item.options.on_exists == OnExists::Replace);
            replaced.extend(new.filter_map(|it| name_of(&it.1)));
        }
        for name in replaced {
            for generation in self.of_name.get(&name).into_iter().flatten() {
                if let Some(life) = self.lives.get_mut(generation) {
                    life.gone = true;
                }
            }
        }
    }

    fn evicts(&mut self) {
        self.evictions += 1;
        (self.cause.evicting, self.cause.evicted) = (true, false);
    }

    /// The master does something; `segment` is the node's that it says it to.
    pub(crate) fn sees(
        &mut self,
        now: Tick,
        effect: &Effect,
        segment: Option<SegmentId>,
        memories: &Memories,
        coverage: &mut Coverage,
    ) {
        let evicting = std::mem::take(&mut self.cause.evicting);
        let retires = matches!(effect, Effect::Ask(_, _, MasterToMember::Retire(_)));
        self.blind |= evicting && !retires && !std::mem::take(&mut self.cause.evicted);
        match effect {
            Effect::Notice(Notice::Evicted(..)) => self.evicts(),
            Effect::Notice(Notice::AwaitingReports(_)) => self.left = Some(BTreeMap::new()),
            Effect::Notice(Notice::AllReported) => self.left = None,
            Effect::Notice(Notice::NodeReady(name)) => {
                if let Some(segment) = self.node_names.get(name) {
                    self.lost.remove(segment);
                    self.joined.insert(*segment);
                }
            }
            Effect::Notice(Notice::NodeLost(name, _) | Notice::NodeLeft(name, _)) => {
                if let Some(segment) = self.node_names.get(name) {
                    self.roster.remove(segment);
                    let was_known = self.joined.remove(segment);
                    self.lost.insert(*segment, was_known);
                    let segment = *segment;
                    self.shelving.lost(segment);
                    self.leases_end_with(segment);
                }
            }
            Effect::Ask(conn, id, request) => {
                self.sees_request((*conn, *id, now), request, segment, evicting, coverage);
            }
            Effect::Entrust(_, _, MasterToMember::Settle(settle)) => {
                let segment = segment.unwrap_or_default();
                self.orders(Some(segment), &settle.abort);
                for record in &settle.commit {
                    self.entrusted.insert((segment, record.hold));
                    self.record(segment, record, false);
                }
            }
            Effect::Reply(conn, id, reply) => {
                self.replies(now, (*conn, *id), reply, segment, memories, coverage);
            }
            _ => (),
        }
    }

    fn resolved(&mut self, now: Tick, resolved: &Resolved, memories: &Memories, coverage: &mut Coverage) {
        // A get that waited for a promotion reads as any other does, though its names are not at hand.
        for outcome in &resolved.items {
            if let ResolveOutcome::Found(found) = outcome {
                self.ends_shield(found.generation);
            }
        }
        let asked = std::mem::take(&mut self.cause.asked);
        for (name, outcome) in asked.into_iter().zip(&resolved.items) {
            match outcome {
                ResolveOutcome::Found(found) => {
                    self.found(name, found, coverage);
                    let until = now.after(self.lease_ms);
                    let life = self.lives.get_mut(&found.generation).filter(|_| self.cause.lease);
                    if let Some(life) = life {
                        life.lease_until = life.lease_until.max(until);
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
        // Where leases refuse, nobody is told which ones did.
        let complete = deleting.complete && (deleting.force || !self.strict);
        for (name, victims) in &deleting.victims {
            self.deleted(*name, victims, &outcome, complete, memories, coverage);
        }
    }

    fn replies(
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
                self.retires_undecided(to, outcomes);
                self.all_decided(to, outcomes.iter().map(Some), memories, coverage);
            }
            Reply::Published(outcomes) => {
                self.told_of_published(to, outcomes, memories);
                self.all_decided(to, outcomes.iter().map(Option::as_ref), memories, coverage);
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
                        self.spared(victims, deleting.force);
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
            Reply::Announced(refused) => {
                self.orders(segment, refused);
                let segment = segment.unwrap_or_default();
                let announced = std::mem::take(&mut self.cause.announced);
                let untold = refused.iter().filter(|hold| !announced.iter().any(|it| it.hold == **hold));
                untold.for_each(|hold| self.untold(segment, *hold, memories));
                for record in &announced {
                    match refused.contains(&record.hold) {
                        true => self.refuses(segment, record, coverage),
                        false => self.taken_in(segment, record, memories),
                    }
                }
            }
            Reply::Registered(registered) => {
                let at = segment.unwrap_or_default();
                registered.retire.iter().for_each(|hold| _ = self.shelving.leaves((at, *hold)));
                self.registers(to.0, registered, segment);
            }
            _ => (),
        }
    }

    fn registers(&mut self, conn: ConnId, registered: &Registered, segment: Option<SegmentId>) {
        self.orders(segment, &registered.retire);
        let segment = segment.unwrap_or_default();
        self.roster.insert(segment);
        if registered.discard {
            self.published.retain(|it| it.0 != segment);
            self.entrusted.retain(|it| it.0 != segment);
        }
        // What was deleted when this life of the master had not heard of the node is not owed.
        let owes = |it: &Life| it.dead.as_ref().is_some_and(|it| !it.exempt.contains(&segment));
        let owing = self.lives.iter().filter(|(_, it)| owes(it)).map(|(it, _)| *it).collect();
        self.owing.insert(conn, owing);
        if registered.discard && !self.lost.contains_key(&segment) {
            self.fail("names", || format!("{segment} must discard all, but was never lost"));
        }
    }

    fn taken_in(&mut self, segment: SegmentId, record: &Record, memories: &Memories) {
        // The very same copy may have been decided anew, which its node had not heard yet.
        let anew = self.generation_of.get(&(segment, record.hold)).copied();
        if anew.is_some_and(|it| it > record.generation && it.epoch == self.epoch) {
            return;
        }
        self.shelving.arrives((segment, record.hold), record.generation);
        if let Some(name) = record_name(record).filter(|_| self.cause.news) {
            self.older_is_refused(segment, name, record, memories);
            self.left_stays_away(segment, name, record.generation);
            self.newest.insert(name, record.generation);
            let was_gone = self.lives.get(&record.generation).is_some_and(Life::is_gone);
            if was_gone {
                self.leases.retain(|_, (_, leased)| *leased != record.generation);
            }
            // A drop that has begun may take it or spare it.
            let meant = |it: &Victim| it.generation == record.generation;
            let deletes = self.deleting.values().flat_map(|it| &it.victims);
            let under_way = deletes.filter(|(_, of)| of.iter().any(meant)).count() as u32;
            let life = self.seen(name, record.generation);
            if was_gone {
                // Its pins went with it; what brings it back knows only its own.
                life.returns += 1;
                life.pins.clear();
                life.written_pins.clear();
            }
            (life.gone, life.deletes) = (false, under_way);
            // The last words of a process that died, or what a node has heard from an earlier life of the
            // master: nobody knew of that when the object was deleted.
            let unheard = life.dead.as_ref().is_some_and(|it| it.exempt.contains(&segment));
            if unheard || memories.get(&segment).is_some_and(|it| !it.alive) {
                life.dead = None;
            }
            // This life of the master knows of pins what the nodes tell it.
            life.pins.extend(record.marks.pins.iter().cloned());
            life.lease_until = Tick(0);
        }
        self.record(segment, record, false);
    }

    /// An object is known to lie somewhere.
    pub(crate) fn record(&mut self, segment: SegmentId, record: &Record, late: bool) {
        let Some(name) = record_name(record) else { return };
        let value = self.written.get(&(segment, record.hold)).copied();
        self.generation_of.insert((segment, record.hold), record.generation);
        // Whatever was there before has been replaced.
        for older in self.of_name.get(&name).into_iter().flatten().filter(|it| **it < record.generation) {
            if let Some(life) = self.lives.get_mut(older) {
                life.gone = true;
            }
        }
        let life = self.seen(name, record.generation);
        life.sample |= record.marks.sample.is_some();
        let consumption = record.marks.sample.as_ref().map(|it| &it.consumption);
        life.by_groups |= matches!(consumption, Some(Consumption::Groups(_)));
        life.once |= matches!(consumption, Some(Consumption::Once));
        life.in_stream |= record.marks.sample.as_ref().is_some_and(|it| !it.stream.is_empty());
        // Pins that are told late may have ended since.
        if !std::mem::replace(&mut life.marked, true) && !late {
            life.pins = record.marks.pins.iter().cloned().collect();
        }
        if let (None, Some(value)) = (life.value, value) {
            life.value = Some(value);
        }
    }

    /// A generation of a name exists, or did.
    pub(crate) fn seen(&mut self, name: Name, generation: Generation) -> &mut Life {
        self.of_name.entry(name).or_default().insert(generation);
        // What is told a second time is no news: it may have been replaced by what an unknown node brought.
        if !self.lives.contains_key(&generation) {
            let newest = self.newest.entry(name).or_default();
            *newest = (*newest).max(generation);
        }
        self.lives.entry(generation).or_insert_with(|| Life {
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
            returns: 0,
            dead: None,
        })
    }
}

/// Copies that can be read, of one generation.
pub(crate) fn copies(memory: &Memory, generation: Generation) -> impl Iterator<Item = Hold> {
    let readable =
        memory.slots().filter(move |(_, it)| it.state == SlotState::Committed && it.generation == generation);
    readable.map(|(hold, _)| hold)
}

pub(crate) fn record_name(record: &Record) -> Option<Name> {
    Name::of(names::namespace(record.namespace.as_bytes())?, &record.key)
}

pub(crate) fn name_of(item: &DecideItem) -> Option<Name> {
    Name::of(names::namespace(item.namespace.as_bytes())?, &item.item.key)
}
