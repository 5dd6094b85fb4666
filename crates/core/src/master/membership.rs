//! Membership: nodes and disks that register, fall silent, disconnect, return, or are lost.
//!
//! A member registers, announces what it holds, and is then ready. [`Membership`] records whether this
//! master is superseded; the state of each member is in [`members`](super::members). When a connection
//! ends, the master ends the requests that the member will not answer any more.
//!
//! A member that has been away for too long is *absent*. Unprotected objects that only it has are removed,
//! and the member retires them when it returns. Its pinned objects and unconsumed samples stay in the
//! catalog, unavailable, until it returns.
//!
//! **Invariant:** a member is lost in three cases only: it says goodbye, its process is proven to have ended
//! (unless its memory outlives the process), or the operator declares it lost. A member that was lost in this
//! epoch returns empty. Objects that it still holds may have been deleted meanwhile, and the master keeps no
//! list of them.

use std::sync::Arc;

use super::{
    Context, Departure, Effect, Master, Notice, Objects,
    catalog::{LabelIndex, NewObject, NodeIndex},
    departures::{SCAN_FACTOR, give_up_member, lose_member},
    members::{Member, Members, Standing},
    objects::take_out_last,
    pending_retires::Name,
    refuse,
    unreported::Question,
};
use crate::{
    ConnId, HELD_NAMESPACES_MAX, RequestId, SegmentId, Tick, VIEWERS_MAX,
    attributes::{Attributes, SampleAttributes},
    message::{
        Announce, Announced, Cause, Heartbeat, HeldBy, NodeInfo, Reason, Record, Register, Registered,
        Released, Reply,
    },
    mutant::is_mutant,
};

/// Maximum number of segments in a message about an ambiguous name.
const SEGMENTS_SHOWN_MAX: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Membership {
    /// See [`Effect::Restart`].
    pub(super) is_superseded: bool,
}

impl Membership {
    /// Whether a member has served a later epoch than this one's, or an equal one of another master. Then
    /// this master is outdated and must be replaced.
    fn supersedes(&mut self, o: &mut Objects, register: &Register) -> bool {
        let config = o.cx.config;
        let ignores_later = is_mutant!(config.mutant, StayBehind)
            || is_mutant!(config.mutant, ServeAnyEpoch)
            || is_mutant!(config.mutant, DiscardForOthers);
        if is_of_this_master(o, register) || register.epoch < config.epoch || ignores_later {
            return false;
        }
        o.cx.notice(Notice::Superseded(register.info.name.clone(), register.epoch));
        o.cx.effects.push_back(Effect::Restart(register.epoch));
        self.is_superseded = true;
        true
    }

    /// Registers a member whose earlier connection is closed.
    fn register(&mut self, o: &mut Objects, conn: ConnId, id: RequestId, mut register: Register) {
        // Each registration has a connection of its own, and their numbers grow.
        register.info.registration = o.cx.config.epoch << 32 | conn.0 & u64::from(u32::MAX);
        let is_same_life = is_of_this_master(o, &register);
        let known = o.cx.members.find(register.info.segment);
        let same_epoch = register.epoch == o.cx.config.epoch;
        let discards = is_same_life || (same_epoch && is_mutant!(o.cx.config.mutant, DiscardForOthers));
        let discards = discards || o.cx.members.was_forgotten(register.info.segment);
        let was_lost = known.is_none() && discards && !is_mutant!(o.cx.config.mutant, BelieveTheLost);
        if was_lost {
            o.cx.notice(Notice::NodeDiscarded(register.info.name.clone()));
        }
        let has_served_another = known.is_none() && register.epoch != 0 && !is_same_life && !was_lost;
        let may_bring_more = known.is_some_and(|it| o.reports.may_bring_more(&o.cx, it));
        let node = match known {
            Some(node) => readmit(o, node, conn, register),
            None => {
                let mut member = Member::new(register.info, register.usage, o.cx.now);
                (member.conn, member.registered_on) = (Some(conn), Some(conn));
                member.is_on_same_host = o.cx.connections.is_on_same_host(conn);
                member.can_withdraw = o.cx.connections.can_withdraw(conn);
                member.discard = was_lost;
                member.from_earlier_epoch = !discards || is_mutant!(o.cx.config.mutant, BelieveTheLost);
                o.cx.members.insert(member)
            }
        };
        let Some(node) = node else {
            let reply = refuse(Reason::Busy, "the master cannot register more members: forget lost ones");
            return o.cx.reply(conn, id, reply);
        };
        if has_served_another || may_bring_more {
            // It may hold objects that this master does not know.
            o.reports.expect_again([node]);
        }
        for ended in predecessors(o, node) {
            let pool = o.cx.members.get(ended).filter(|it| it.info.outlives).map(|it| it.info.segment);
            // If it is found after all, on another machine of that name, it starts empty.
            pool.into_iter().for_each(|it| o.cx.members.forget(it));
            lose_member(o, ended, Departure::Lost, None);
        }
        o.cx.connections.set_node(conn, Some(node));
        // A member that must discard its objects enters the roster only afterwards: a later master must not
        // adopt them.
        let discards = o.cx.members.get(node).is_some_and(|it| it.discard);
        if !discards || is_mutant!(o.cx.config.mutant, EnrollTheLost) {
            o.cx.enroll(node, conn);
        }
        o.cx.registered_when_saved(node, conn, id);
    }
}

/// The members that a node replaces. It listens on their address, so their processes have ended, and their
/// memory with them. A registration of an ended process may arrive late, so the connection must be newer
/// than theirs. A memory pool stays until its machine boots again: another node may have the address
/// while the pool waits for its own.
fn predecessors(o: &Objects, node: NodeIndex) -> Vec<NodeIndex> {
    let machine = |it: &NodeInfo| it.host.split('/').next().unwrap_or_default().to_owned();
    let Some(new) = o.cx.members.get(node).filter(|it| !it.is_disk() && !it.info.tcp.is_empty()) else {
        return Vec::new();
    };
    let is_same = |it: &NodeInfo| {
        (&it.name, &it.tcp, machine(it)) == (&new.info.name, &new.info.tcp, machine(&new.info))
    };
    let loses_pools = is_mutant!(o.cx.config.mutant, ReplaceThePool);
    let stays = |it: &NodeInfo| it.outlives && it.host == new.info.host && !loses_pools;
    let others = o.cx.members.iter().filter(|(at, it)| *at != node && !it.is_disk() && it.conn.is_none());
    let replaces_newer = is_mutant!(o.cx.config.mutant, ReplaceNewer);
    let is_earlier = |it: &Member| it.registered_on < new.registered_on || replaces_newer;
    let replaced = others.filter(|(_, it)| is_same(&it.info) && !stays(&it.info) && is_earlier(it));
    replaced.map(|(at, _)| at).collect()
}

/// The one absent member of that name or segment id. `Err` is the problem.
fn absent_member(members: &Members, name: &str) -> Result<(NodeIndex, SegmentId), String> {
    let is_named = |it: &Member| it.info.name == name || it.info.segment.to_string() == name;
    let named: Vec<_> = members.iter().filter(|(_, it)| is_named(it)).collect();
    let absent: Vec<_> = named.iter().filter(|(_, it)| it.conn.is_none()).collect();
    match absent.as_slice() {
        [(node, member)] => Ok((*node, member.info.segment)),
        [] if named.is_empty() => Err(format!("no member of the cluster is called `{name}`")),
        [] => Err(format!("`{name}` is connected: stop it first")),
        several => {
            let shown = several.iter().take(SEGMENTS_SHOWN_MAX).map(|it| it.1.info.segment.to_string());
            let shown = shown.collect::<Vec<_>>().join(", ");
            let count = several.len();
            Err(format!(
                "`{name}` is the name of {count} absent members, with the segments {shown}: give the segment \
                 of the one to forget"
            ))
        }
    }
}

fn is_of_this_master(o: &Objects, register: &Register) -> bool {
    (register.epoch, register.instance) == (o.cx.config.epoch, o.cx.config.instance)
}

/// Registers a known member again.
fn readmit(o: &mut Objects, node: NodeIndex, conn: ConnId, register: Register) -> Option<NodeIndex> {
    let is_on_same_host = o.cx.connections.is_on_same_host(conn);
    let can_withdraw = o.cx.connections.can_withdraw(conn);
    let member = o.cx.members.get_mut(node)?;
    (member.is_on_same_host, member.can_withdraw) = (is_on_same_host, can_withdraw);
    member.info = register.info;
    member.report(o.cx.now, register.usage);
    member.standing = Standing::Joining;
    // A member that registers for the first time has no copies here yet.
    member.unannounced_from = member.registered_on.map(|_| 0);
    (member.conn, member.registered_on) = (Some(conn), Some(conn));
    member.announced.clear();
    member.announces = false;
    o.cx.members.note_kinds();
    Some(node)
}

pub(super) fn announce(o: &mut Objects, node: NodeIndex, announce: Announce) -> Reply {
    o.cx.note_message(node);
    // It has applied the retires of the reply to its registration; this reply may be lost too.
    has_done_what_it_owed(o, node);
    if let Some(conn) = has_discarded(o, node) {
        // It registers again, which is answered when the roster that contains it is saved. If it were used
        // before that, a later master would make it discard objects that were put since.
        o.cx.effects.push_back(Effect::Disconnect(conn));
        return refuse(Reason::Unavailable, "node was declared lost and starts empty: register again");
    }
    let mut retire = Vec::new();
    for record in announce.items {
        let (slot_ref, generation) = (record.slot_ref, record.generation);
        if let Err(name) = take_in(o, node, record) {
            retire.push(slot_ref);
            o.cx.pending_retires.insert(&Arc::new(name), generation, (node, slot_ref));
        }
    }
    let is_done = announce.last && withdraw_unannounced(o, node);
    let mut more = false;
    if let Some(member) = o.cx.members.get_mut(node) {
        retire
            .iter()
            .for_each(|slot_ref| _ = member.owed.remove(slot_ref) || member.given_up.remove(slot_ref));
        member.sent_owed.extend(&retire);
        retire.extend(member.next_owed(o.cx.config.owed_page_max));
        let owes_more = member.owes_more() && !is_mutant!(o.cx.config.mutant, TellOnePage);
        let is_done = is_done || is_mutant!(o.cx.config.mutant, JoinEarly);
        more = announce.last && (!is_done || owes_more);
        member.announces = true;
    }
    if announce.last && !more {
        end_joining(o, node);
    }
    Reply::Announced(Announced { retire, more })
}

/// Adopts an announced object into the catalog if it belongs there; otherwise returns its name.
fn take_in(o: &mut Objects, node: NodeIndex, record: Record) -> Result<(), Name> {
    let namespace = o.cx.catalog.intern(&record.namespace);
    let refused = |key| Err(Name { namespace, key });
    let Some(member) = o.cx.members.get_mut(node) else { return refused(record.key) };
    if member.retiring.contains(&record.slot_ref) || member.owes(record.slot_ref) {
        // It was removed meanwhile, and the node has not received the retire yet.
        return refused(record.key);
    }
    member.announced.insert(record.slot_ref);
    let news = member.from_earlier_epoch;
    let existing = o.cx.catalog.find(namespace, &record.key);
    if let Some((index, object)) = existing.and_then(|it| Some((it, o.cx.catalog.get(it)?))) {
        if object.replicas().any(|replica| replica == (node, record.slot_ref)) {
            // It may have been in flight to the node when the connection broke.
            o.cx.catalog.complete(index, node, record.slot_ref);
            o.correct_attributes(index, node, &record.attributes);
            return Ok(());
        }
        let older = object.generation() > record.generation;
        let is_same = object.generation() == record.generation;
        // One copy per node is enough.
        let is_second = is_same && object.is_on(node);
        if !news || is_second || (older && !is_mutant!(o.cx.config.mutant, PreferOlder)) {
            return refused(record.key);
        }
        if is_same {
            o.cx.catalog.add_replica(index, node, record.slot_ref);
            o.merge_attributes(index, &record.attributes);
            if o.leases.frees_consumed(&o.cx, index) {
                let gone = take_out_last(o, index, Cause::Consumed, "");
                o.cx.retire(gone, None);
            }
            return Ok(());
        }
        let old = o.take_out(index, Cause::Replaced, "");
        o.cx.retire(old, None);
    } else if !news {
        return refused(record.key);
    }
    let name = Name { namespace, key: record.key };
    if !o.reports.floors.accepts(&name, record.generation) {
        // A newer object of that name existed here, and was removed.
        return Err(name);
    }
    if record.attributes.sample.as_deref().is_some_and(SampleAttributes::is_consumed) {
        // Only leases kept it, and they ended with the earlier epoch. A copy whose node missed the last
        // acknowledgement does not bring it back.
        o.reports.raise_floor_above(&o.cx, &Arc::new(name.clone()), record.generation);
        return Err(name);
    }
    let new = NewObject {
        namespace,
        key: name.key,
        generation: record.generation,
        len: record.len,
        attributes: adopted_attributes(&o.cx, record.attributes),
        writer: LabelIndex::default(),
        soft_until: Tick(0),
        replicas: vec![(node, record.slot_ref)],
    };
    let is_sample = new.attributes.sample.is_some();
    let index = o.cx.catalog.insert(o.cx.now, new);
    index.into_iter().for_each(|index| o.cx.notice_stored(index));
    if let Some(index) = index.filter(|_| is_sample) {
        o.leases.arrive(namespace, o.cx.now, index);
        o.streams.enter(&o.cx, index, false);
    }
    Ok(())
}

/// What a restarted master takes over of the attributes that a node has written.
fn adopted_attributes(cx: &Context, written: Attributes) -> Attributes {
    let copies = if is_mutant!(cx.config.mutant, ForgetCopies) { 0 } else { written.copies };
    let forgets_expiry = is_mutant!(cx.config.mutant, ForgetExpiry);
    Attributes { copies, expiry: written.expiry.filter(|_| !forgets_expiry), ..written }
}

/// The node has announced everything, so it does not have the other copies. It may have their bytes, if it
/// never learned that they were committed. Clients with a cached location must not read such a copy, so the
/// node owes its retire. Looks at a bounded number of copies, and returns whether these were the last. The
/// node announces again until they were.
fn withdraw_unannounced(o: &mut Objects, node: NodeIndex) -> bool {
    let Some(member) = o.cx.members.get_mut(node) else { return true };
    let Some(first) = member.unannounced_from.filter(|_| member.standing == Standing::Joining) else {
        return true;
    };
    let mut announced = std::mem::take(&mut member.announced);
    let mut unannounced = Vec::new();
    let max = o.cx.config.piece_objects_max.max(1);
    let (found, next) = o.cx.catalog.page_on(node, first, max, max.saturating_mul(SCAN_FACTOR));
    for index in found {
        let Some(object) = o.cx.catalog.get(index) else { continue };
        // Forgotten one by one: to forget all at the end would take time by their number.
        if !object.replicas().any(|(on, slot_ref)| on == node && announced.remove(&slot_ref)) {
            unannounced.extend(o.withdraw_copy(index, node));
        }
    }
    if let Some(member) = o.cx.members.get_mut(node) {
        member.owed.extend(unannounced);
        member.unannounced_from = Some(next).filter(|next| *next > 0);
        if next > 0 {
            member.announced = announced;
        }
    }
    next == 0
}

/// The node has announced everything, and has received all retires that it owes.
fn end_joining(o: &mut Objects, node: NodeIndex) {
    let Some(member) = o.cx.members.get_mut(node) else { return };
    if member.standing != Standing::Joining {
        return;
    }
    member.standing = Standing::Ready;
    member.from_earlier_epoch = false;
    let name = member.info.name.clone();
    o.cx.release_retires(node);
    o.cx.quotas.note_change();
    o.tier.wake();
    o.tier.repairs.members_changed(&o.cx);
    o.cx.notice(Notice::NodeReady(name));
    o.reports.end(&mut o.cx, node);
}

/// Records that a member has discarded its objects, if it had to. Returns its connection if that must be
/// saved before the member is used.
fn has_discarded(o: &mut Objects, node: NodeIndex) -> Option<ConnId> {
    let member = o.cx.members.get_mut(node)?;
    if !std::mem::replace(&mut member.discard, false) {
        return None;
    }
    let (segment, conn) = (member.info.segment, member.conn?);
    o.cx.members.has_discarded(segment);
    o.cx.enroll(node, conn);
    let is_recorded = o.cx.members.get(node).is_some_and(|it| it.is_recorded);
    (is_recorded && o.cx.config.durable && !is_mutant!(o.cx.config.mutant, EnrollTheLost)).then_some(conn)
}

/// The node has received its pending retires: it applies them before it sends anything else.
fn has_done_what_it_owed(o: &mut Objects, node: NodeIndex) {
    let Some(member) = o.cx.members.get_mut(node) else { return };
    member.unreceived.clear();
    for slot_ref in std::mem::take(&mut member.sent_owed) {
        // A retire that was requested since is confirmed by its own reply.
        if !member.retiring.contains(&slot_ref) {
            o.cx.pending_retires.remove(node, slot_ref);
        }
    }
}

pub(super) fn heartbeat(o: &mut Objects, node: NodeIndex, beat: Heartbeat) -> Reply {
    o.cx.note_message(node);
    // A node sends heartbeats only after it has received all replies to its announcements.
    has_done_what_it_owed(o, node);
    o.cx.report(node, beat.usage);
    note_held(o, node, beat.held);
    if let Some(member) = o.cx.members.get_mut(node) {
        member.views_refused = beat.views_refused;
        member.viewers = beat.viewers;
        member.viewers.truncate(VIEWERS_MAX);
    }
    Reply::Done
}

/// Who pays for memory of removed objects on a node from now on.
fn note_held(o: &mut Objects, node: NodeIndex, held: Vec<HeldBy>) {
    let known = |it: HeldBy| Some((o.cx.catalog.namespace_index(&it.namespace)?, it.bytes));
    let held_by: Vec<_> = held.into_iter().take(HELD_NAMESPACES_MAX).filter_map(known).collect();
    if let Some(member) = o.cx.members.get_mut(node) {
        let before: u64 = member.held_by.iter().map(|it| it.1).sum();
        let is_less = held_by.iter().map(|it| it.1).sum::<u64>() < before;
        member.held_by = held_by;
        if is_less {
            o.cx.quotas.note_change();
        }
    }
}

/// Ends reservations that the node has released on its own.
pub(super) fn released(o: &mut Objects, node: NodeIndex, released: &Released) -> Reply {
    o.cx.note_message(node);
    o.cx.report(node, released.usage);
    note_held(o, node, released.held.clone());
    for &slot_ref in &released.slot_refs {
        o.cx.quotas.end_grant(node, slot_ref);
    }
    Reply::Done
}

pub(super) fn next_silence(cx: &Context) -> Option<Tick> {
    let next = cx.members.iter().filter_map(|(node, it)| match it.standing {
        Standing::Ready => Some(it.last_message.after(cx.config.silence_ms_max)),
        Standing::Away(since) => Some(since.after(away_ms_max(cx, node))),
        Standing::Joining | Standing::Silent | Standing::Absent => None,
    });
    next.min()
}

/// How long a member may be away. A disk keeps its objects while its node restarts.
fn away_ms_max(cx: &Context, node: NodeIndex) -> u64 {
    let is_disk = cx.members.get(node).is_some_and(Member::is_disk);
    if is_disk { cx.config.tier.away_ms_max } else { cx.config.away_ms_max }
}

impl Master {
    pub(super) fn register(&mut self, conn: ConnId, id: RequestId, register: Register) {
        if let Some(refusal) = self.objects.cx.refusal_of(&register) {
            return self.objects.cx.reply(conn, id, refusal);
        }
        if self.membership.supersedes(&mut self.objects, &register) {
            return;
        }
        let is_departing = self.objects.departures.has(register.info.segment);
        if is_departing && !is_mutant!(self.objects.cx.config.mutant, AdmitDeparting) {
            let question = Question::Register(Box::new(register));
            return self.operations.parking.park_question(&mut self.objects, (conn, id), question, None);
        }
        let members = &self.objects.cx.members;
        let known = members.find(register.info.segment);
        if let Some((node, old)) = known.and_then(|node| Some((node, members.get(node)?.conn?))) {
            self.fence(old);
            self.node_away(node, old);
        }
        self.membership.register(&mut self.objects, conn, id, register);
    }

    /// A node's connection was closed without a goodbye.
    pub(super) fn node_away(&mut self, node: NodeIndex, conn: ConnId) {
        let member = self.objects.cx.members.get(node).filter(|it| it.conn == Some(conn));
        if let Some(name) = member.map(|it| it.info.name.clone()) {
            self.objects.cx.notice(Notice::NodeAway(name));
            self.disconnect(node, conn);
        }
    }

    /// A node's connection has ended: the node will not answer the requests that were sent on it.
    fn disconnect(&mut self, node: NodeIndex, conn: ConnId) {
        let member = self.objects.cx.members.get_mut(node).filter(|it| it.conn == Some(conn));
        let Some(member) = member else { return };
        member.conn = None;
        // The replies may be lost.
        let announced = std::mem::take(&mut member.sent_owed);
        member.owed.extend(announced);
        member.standing = Standing::Away(self.objects.cx.now);
        self.objects.tier.member_away(&mut self.objects.cx, node);
        self.objects.tier.repairs.members_changed(&self.objects.cx);
        self.operations.member_away(&mut self.objects, node);
    }

    /// A node leaves for good: its objects are lost now, and no request waits for it.
    pub(super) fn node_left(&mut self, node: NodeIndex, conn: ConnId, id: RequestId) {
        self.objects.cx.connections.set_node(conn, None);
        self.operations.forget(&mut self.objects, conn);
        self.disconnect(node, conn);
        let version = lose_member(&mut self.objects, node, Departure::Left, None);
        self.objects.cx.when_saved(version, Effect::Reply(conn, id, Reply::Done));
        self.objects.cx.when_saved(version, Effect::Disconnect(conn));
    }

    /// The process at the other end of a connection has ended, and with it the memory that it registered
    /// there. A disk outlives its process, and so does a memory pool.
    pub(super) fn process_ended(&mut self, conn: ConnId) {
        let loses_pools = is_mutant!(self.objects.cx.config.mutant, LoseThePool);
        let outlives = |it: &Member| it.is_disk() || (it.info.outlives && !loses_pools);
        let is_its = |it: &Member| it.registered_on == Some(conn) && !outlives(it);
        let node = self.objects.cx.members.iter().find(|(_, it)| is_its(it)).map(|(node, _)| node);
        let Some(node) = node else { return };
        self.fence(conn);
        self.disconnect(node, conn);
        lose_member(&mut self.objects, node, Departure::Lost, None);
    }

    /// The operator declares the member of that name or segment lost. A connected member is refused, and so
    /// is a name that several absent members have.
    pub(super) fn forget_node(&mut self, conn: ConnId, id: RequestId, name: &str) {
        let members = &mut self.objects.cx.members;
        let (node, segment) = match absent_member(members, name) {
            Ok(found) => found,
            Err(message) => return self.objects.cx.reply(conn, id, refuse(Reason::Invalid, &message)),
        };
        members.forget(segment);
        lose_member(&mut self.objects, node, Departure::Lost, Some((conn, id)));
    }

    pub(super) fn notice_silence(&mut self) {
        if next_silence(&self.objects.cx).is_none_or(|at| at > self.objects.cx.now) {
            return;
        }
        let nodes: Vec<_> =
            self.objects.cx.members.iter().map(|(node, it)| (node, it.standing, it.last_message)).collect();
        for (node, standing, last_message) in nodes {
            match standing {
                Standing::Ready
                    if last_message.after(self.objects.cx.config.silence_ms_max) <= self.objects.cx.now =>
                {
                    self.silent(node)
                }
                Standing::Away(since)
                    if since.after(away_ms_max(&self.objects.cx, node)) <= self.objects.cx.now =>
                {
                    give_up_member(&mut self.objects, node);
                }
                _ => (),
            }
        }
    }

    fn silent(&mut self, node: NodeIndex) {
        let Some(member) = self.objects.cx.members.get_mut(node) else { return };
        member.standing = Standing::Silent;
        let name = member.info.name.clone();
        self.objects.cx.notice(Notice::NodeSilent(name));
        self.objects.tier.repairs.members_changed(&self.objects.cx);
        self.operations.member_silent(&mut self.objects, node);
    }
}

impl Context {
    /// Confirms a registration, with the actions that the node must take before it is used.
    pub(super) fn answer_registered(&mut self, node: NodeIndex, conn: ConnId, id: RequestId) {
        let page_max = self.config.owed_page_max;
        let Some(member) = self.members.get_mut(node).filter(|it| it.conn == Some(conn)) else { return };
        let discard = member.discard;
        let retire = if is_mutant!(self.config.mutant, ForgetOwedRetires) {
            let forgotten = std::mem::take(&mut member.owed);
            member.sent_owed.extend(forgotten);
            Vec::new()
        } else {
            member.next_owed(page_max)
        };
        let reply = Reply::Registered(Registered {
            epoch: self.config.epoch,
            instance: self.config.instance,
            cluster: self.cluster.id(),
            discard,
            retire,
            commit: self.unreceived(node),
        });
        self.reply(conn, id, reply);
    }
}
