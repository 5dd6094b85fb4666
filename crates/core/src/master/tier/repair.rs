//! Makes missing copies again. An object that should have several copies has fewer if a node was lost, or if
//! its put found too few nodes.
//!
//! A *sweep* checks all objects, a bounded number at a time, and enters those with too few copies into a
//! bounded queue: pinned objects and samples first, then the most recently read. A copy runs like a
//! promotion, with its own throttle. If no node or no memory is available, a later sweep finds the object
//! again. All of this runs in [`Master::work`](crate::master::Master), so no request waits for it.
//!
//! Copies count by node: memory and disks of one node are one copy. A copy on a member that is away, silent
//! or draining does not count, once it has been so for [`RepairConfig::delay_ms`]. If it returns after its
//! copy was made elsewhere, one copy in memory is dropped.
//!
//! **Invariant:** a new copy is in the catalog before its bytes are read, so a delete or a replacement also
//! removes it.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_throttle::{Config, End, Throttle, Token, Verdict};

use super::{
    Tier,
    promote::{NewCopy, Purpose},
};
use crate::master::{
    Notice,
    catalog::{NodeIndex, Object, ObjectIndex},
    context::{Context, guarantees},
    members::{Member, Standing},
    pending_retires::Name,
};
use crate::{
    Generation, SegmentId, SlotRef, Tick,
    attributes::Attributes,
    message::{CopyStat, CopyWait},
    mutant::is_mutant,
    space_for,
};

/// Maximum number of objects in the queue; a later sweep finds the others again.
const QUEUE_MAX: usize = 1 << 12;
/// Number of objects that one piece of a sweep checks, per unit of work that the caller allows.
const SCAN_FACTOR: usize = 8;
/// When a sweep is repeated because objects wait for a node or for memory.
const RETRY_MS: u64 = 1_000;
/// Minimum pause before the next sweep, as a multiple of the duration of the last.
const REST_FACTOR: u64 = 10;
/// How long a copy of an object is not tried again after one has failed.
const FAILED_MS: u64 = 1_000;
/// How long one copy may take.
const COPY_MS_MAX: u64 = 600_000;
/// Objects whose copy one piece of work tries to begin.
const TRIES_MAX: usize = 64;

/// What the operator decides about lost copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairConfig {
    /// How long a node may be gone before its copies are made elsewhere: one that restarts causes no work.
    pub delay_ms: u64,
    /// Copies under way at a time; none are made if this is zero.
    pub copies_max: usize,
    /// Bytes under way at a time. A single object may be larger.
    pub bytes_max: u64,
}

impl Default for RepairConfig {
    fn default() -> Self {
        Self { delay_ms: 10_000, copies_max: 8, bytes_max: 1 << 30 }
    }
}

/// The order in which copies are made: protected objects first, then those that were read, the last one
/// first.
type Rank = (bool, bool, std::cmp::Reverse<Tick>);

/// See the module.
#[derive(Debug)]
pub(in crate::master) struct Repairs {
    throttle: Throttle<Generation>,
    /// The number at which the sweep goes on, if one is under way.
    cursor: Option<u64>,
    /// When that sweep began.
    since: Tick,
    /// When the next sweep begins.
    due: Option<Tick>,
    queue: BTreeSet<(Rank, ObjectIndex, Generation)>,
    /// Where copies of an object have failed since one of it was made last: other nodes come first.
    failed: BTreeMap<Generation, BTreeSet<NodeIndex>>,
    /// Objects that are short of copies: as the last complete sweep found them, and this one so far.
    short: u64,
    short_so_far: u64,
    /// Objects whose copy could not begin, since the last sweep began.
    waiting: u64,
    /// The queue was full.
    overflows: bool,
    stat: CopyStat,
}

/// Where the copies of an object are.
struct Copies {
    /// The nodes with a copy that counts.
    there: BTreeSet<SegmentId>,
    /// The nodes with any copy, complete or not.
    taken: BTreeSet<SegmentId>,
}

impl Repairs {
    pub(super) fn new(config: RepairConfig) -> Self {
        let throttle = Throttle::new(Config {
            keys_max: config.copies_max,
            bytes_max: config.bytes_max,
            done_ttl: 0,
            failed_ttl: FAILED_MS,
            deadline: COPY_MS_MAX,
            ..Config::default()
        });
        Self {
            throttle,
            cursor: None,
            since: Tick(0),
            due: None,
            queue: BTreeSet::new(),
            failed: BTreeMap::new(),
            short: 0,
            short_so_far: 0,
            waiting: 0,
            overflows: false,
            stat: CopyStat::default(),
        }
    }

    /// A sweep is to begin at that time, or before.
    fn wake_at(&mut self, at: Tick) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    fn enqueue(&mut self, entry: (Rank, ObjectIndex, Generation)) {
        self.queue.insert(entry);
        if self.queue.len() > QUEUE_MAX {
            self.queue.pop_last();
            self.overflows = true;
        }
    }

    /// A copy of an object has failed on that node.
    fn note_failed(&mut self, generation: Generation, node: NodeIndex) {
        self.failed.entry(generation).or_default().insert(node);
        if self.failed.len() > QUEUE_MAX {
            self.failed.pop_first();
        }
    }

    /// A member is ready, gone or lost: objects may be short of copies, or can be copied.
    pub(in crate::master) fn members_changed(&mut self, cx: &Context) {
        if cx.catalog.copied() > 0 {
            self.wake_at(cx.now.after(delay_ms(cx)));
        }
    }

    /// Notices that an object has lost a copy, or that a member speaks again or leaves soon.
    #[inline]
    pub(super) fn notice_lost_copies(&mut self, cx: &mut Context) {
        let has_lost = cx.catalog.take_lost_copy();
        if cx.members.take_change() || has_lost {
            self.members_changed(cx);
        }
    }

    /// Whether a sweep is to begin now.
    fn is_due(&self, cx: &Context) -> bool {
        self.due.is_some_and(|at| at <= cx.now) && !awaits_reports(cx)
    }

    /// Whether there is a piece of work to be done now.
    pub(in crate::master) fn has_work(&self, cx: &Context) -> bool {
        self.cursor.is_some() || self.is_due(cx) || self.next_copy(cx).is_some()
    }

    /// Begins a sweep if one is due, and does one piece of it. `is_moving` says whether a copy of an object
    /// is being made.
    fn sweep(&mut self, cx: &mut Context, is_moving: impl Fn(&Generation) -> bool) {
        if self.cursor.is_none() && self.is_due(cx) {
            (self.cursor, self.since, self.due) = (Some(0), cx.now, None);
            (self.short_so_far, self.waiting, self.overflows) = (0, 0, false);
        }
        let Some(cursor) = self.cursor else { return };
        let (mut short, mut surplus, mut postponed) = (Vec::new(), Vec::new(), 0);
        let scan = cx.config.piece_objects_max.saturating_mul(SCAN_FACTOR);
        let next = cx.catalog.page(cursor, scan, |index, object| {
            if object.copies_wanted() > 1 {
                let copies = copies(cx, object);
                if copies.there.len() < object.copies_wanted() {
                    short.push((rank(object), index, object.generation()));
                } else if object.in_memory().count() > object.copies_wanted() {
                    match surplus_copy(cx, object) {
                        Some(node) => surplus.push((index, node)),
                        None => postponed += 1,
                    }
                }
            }
            true
        });
        self.short_so_far += short.len() as u64;
        self.waiting += postponed;
        short.into_iter().for_each(|it| self.enqueue(it));
        for (index, node) in surplus {
            // The end of a copy under way looks again.
            if !cx.catalog.get(index).is_some_and(|it| is_moving(&it.generation())) {
                self.drop_surplus(cx, index, node);
            }
        }
        self.cursor = Some(next).filter(|next| *next > 0);
        if next == 0 {
            self.short = self.short_so_far;
            if self.overflows {
                self.repeat_later(cx);
            }
            // Copies that still counted in this sweep, and will not if their members stay away.
            let later = gone_members(cx).filter(|at| *at > self.since).min();
            later.into_iter().for_each(|at| self.wake_at(at));
        }
    }

    /// This sweep has found objects that wait: plans another one for them.
    fn repeat_later(&mut self, cx: &Context) {
        let took_ms = cx.now.0.saturating_sub(self.since.0);
        self.wake_at(cx.now.after(RETRY_MS.max(took_ms.saturating_mul(REST_FACTOR))));
        self.waiting = 0;
    }

    /// The first object of the queue, if one more copy may run.
    fn next_copy(&self, cx: &Context) -> Option<(Rank, ObjectIndex, Generation)> {
        let first = self.queue.first().copied()?;
        let len = cx.catalog.get(first.1).map_or(0, Object::len);
        (!self.throttle.is_busy(len)).then_some(first)
    }

    /// A copy has ended.
    pub(super) fn end(
        &mut self,
        cx: &mut Context,
        (token, end): (Token, End),
        (index, generation, node): (ObjectIndex, Generation, NodeIndex),
        (bytes, took_ms): (u64, u64),
    ) {
        self.throttle.finish(cx.now.0, token, end);
        match end {
            End::Failed => self.note_failed(generation, node),
            End::Done | End::Resident | End::Cancelled => _ = self.failed.remove(&generation),
        }
        match end {
            End::Done | End::Resident => {
                self.stat.made += 1;
                self.stat.made_bytes += bytes;
                let Some(object) = cx.catalog.get(index) else { return };
                match copies(cx, object).there.len() < object.copies_wanted() {
                    true => self.enqueue((rank(object), index, object.generation())),
                    false => self.short = self.short.saturating_sub(1),
                }
                // A node may have returned with the copy meanwhile.
                if object.in_memory().count() > object.copies_wanted() {
                    self.wake_at(cx.now);
                }
            }
            End::Failed => {
                self.stat.failed += 1;
                self.wake_at(cx.now.after(FAILED_MS));
            }
            // Its object is gone.
            End::Cancelled => self.short = self.short.saturating_sub(1),
        }
        let node = cx.members.name(node);
        cx.notice(Notice::Copied { done: end == End::Done, node, bytes, took_ms });
    }

    /// When there is something to do, if nothing else happens first.
    pub(super) fn next(&self, cx: &Context) -> Option<Tick> {
        let late = self.throttle.next_late().map(Tick);
        // What is due already is work, which needs no timer.
        let due = self.due.filter(|at| *at > cx.now);
        [late, due].into_iter().flatten().min()
    }

    /// A copy in memory that is one too many goes.
    fn drop_surplus(&mut self, cx: &mut Context, index: ObjectIndex, node: NodeIndex) {
        let Some(object) = cx.catalog.get(index) else { return };
        let Some((_, slot_ref)) = object.in_memory().find(|(on, _)| *on == node) else { return };
        let name = Name { namespace: object.namespace(), key: object.key().clone() };
        let generation = object.generation();
        cx.catalog.drop_replica(index, node);
        cx.pending_retires.insert(&std::sync::Arc::new(name), generation, (node, slot_ref));
        cx.retire(vec![(node, slot_ref)], None);
        cx.quotas.note_change();
        self.stat.dropped += 1;
    }

    /// From which member an object can be copied, and to which node. A node on which that has failed comes
    /// last: it may have memory, and no space for the name. If the others have no memory, or it has failed on
    /// them too, all are tried again.
    fn path(&self, cx: &Context, object: &Object) -> Result<((NodeIndex, SlotRef), NodeIndex), CopyWait> {
        let failed = self.failed.get(&object.generation());
        let failed = failed.filter(|_| !is_mutant!(cx.config.mutant, RepairAtOneNode));
        path(cx, object, |node| failed.is_some_and(|it| it.contains(&node)))
    }

    /// What was done so far, and what is to be done.
    pub(in crate::master) fn stat(&self) -> CopyStat {
        CopyStat { short: self.short, running: self.throttle.running() as u64, ..self.stat }
    }

    /// What is inconsistent, if anything is.
    pub(super) fn check(&self, running: usize) -> Result<(), String> {
        self.throttle.check()?;
        if self.throttle.running() != running || self.queue.len() > QUEUE_MAX {
            let (tokens, queued) = (self.throttle.running(), self.queue.len());
            return Err(format!("T1: {tokens} tokens are out for {running} repairs; {queued} wait"));
        }
        Ok(())
    }
}

impl Tier {
    /// Looks at a few objects, and begins copies.
    pub(in crate::master) fn work_on_repairs(&mut self, cx: &mut Context) {
        if is_mutant!(cx.config.mutant, RepairNever) || cx.config.tier.repair.copies_max == 0 {
            self.repairs.due = None;
            return;
        }
        self.repairs.sweep(cx, |it| self.promotions.running.contains_key(it));
        for _ in 0..TRIES_MAX {
            let Some(entry) = self.repairs.next_copy(cx) else { break };
            self.repairs.queue.remove(&entry);
            if let Err(wait) = self.begin_repair(cx, entry.1, entry.2) {
                self.repairs.waiting += u64::from(wait != CopyWait::Nothing);
            }
        }
        if self.repairs.waiting > 0 && self.repairs.cursor.is_none() {
            self.repairs.repeat_later(cx);
        }
    }

    /// Begins to copy an object to one more node, or says what it waits for.
    fn begin_repair(
        &mut self,
        cx: &mut Context,
        index: ObjectIndex,
        generation: Generation,
    ) -> Result<(), CopyWait> {
        let object = cx.catalog.get(index).filter(|it| it.generation() == generation);
        let Some(object) = object else { return Err(CopyWait::Nothing) };
        if self.promotions.running.contains_key(&generation) || self.promotions.queue.contains(&generation) {
            return Err(CopyWait::Turn);
        }
        let (from, node) = self.repairs.path(cx, object)?;
        // A copy has failed on every node: they take turns, because one of them may have space by now.
        let have_all_failed = self.repairs.failed.get(&generation).is_some_and(|it| it.contains(&node));
        if have_all_failed && !is_mutant!(cx.config.mutant, RepairOutOfTurn) {
            self.repairs.failed.remove(&generation);
        }
        let (namespace, len) = (object.namespace(), object.len());
        let is_protected = object.attributes().is_some_and(Attributes::protect);
        let token = match self.repairs.throttle.reserve(cx.now.0, &generation, len) {
            Verdict::Acquired(token) => token,
            Verdict::Running | Verdict::Done | Verdict::Failed | Verdict::Busy => {
                return Err(CopyWait::Turn);
            }
        };
        let need = space_for(len).unwrap_or(u64::MAX);
        // Only what is protected displaces others, and only such as a disk has, too.
        let has_quota = cx.quota_left(namespace) >= need
            || is_protected && self.free_cold_quota(cx, namespace, need, cx.now);
        let has_memory = guarantees::left_on(cx, node, namespace).is_some_and(|left| left >= need)
            || is_protected && has_quota && self.free_cold_memory(cx, node, (namespace, need), cx.now);
        if !has_quota || !has_memory {
            self.repairs.throttle.finish(cx.now.0, token, End::Cancelled);
            // A node on which a copy failed may be the only one with memory.
            if !is_mutant!(cx.config.mutant, RepairNeverAgain) {
                self.repairs.failed.remove(&generation);
            }
            return Err(if has_quota { CopyWait::Memory } else { CopyWait::Quota });
        }
        let (purpose, requested, wanted_by) = (Purpose::Repair, cx.now, None);
        self.begin_copy(cx, NewCopy { token, purpose, index, from, node, requested, wanted_by });
        Ok(())
    }

    pub(super) fn end_late_repairs(&mut self, cx: &mut Context) {
        for generation in self.repairs.throttle.take_late(cx.now.0) {
            self.end_promotion(cx, generation, End::Failed);
        }
    }

    /// The number of nodes with a copy that counts; the node that is about to get one; and what the next copy
    /// waits for, if there is to be one.
    pub(in crate::master) fn explain_copies(
        &self,
        cx: &Context,
        object: &Object,
    ) -> (usize, Option<NodeIndex>, CopyWait) {
        let there = copies(cx, object).there.len();
        let running = self.promotions.running.get(&object.generation());
        let running = running.filter(|it| it.purpose == Purpose::Repair).map(|it| it.node);
        if there >= object.copies_wanted() || running.is_some() {
            return (there, running, CopyWait::Nothing);
        }
        let need = object.space_of_one();
        let wait = match self.repairs.path(cx, object) {
            Err(wait) => wait,
            Ok(_) if cx.quota_left(object.namespace()) < need => CopyWait::Quota,
            Ok((_, node)) if guarantees::left_on(cx, node, object.namespace()).is_none_or(|it| it < need) => {
                CopyWait::Memory
            }
            Ok(_) => CopyWait::Turn,
        };
        (there, None, wait)
    }
}

fn rank(object: &Object) -> Rank {
    let is_protected = object.attributes().is_some_and(Attributes::protect);
    (!is_protected, !object.was_read(), std::cmp::Reverse(object.touched()))
}

fn delay_ms(cx: &Context) -> u64 {
    cx.config.tier.repair.delay_ms
}

/// Which node a member belongs to: the name of its memory.
fn machine(cx: &Context, member: &Member) -> SegmentId {
    let own = member.info.segment;
    if is_mutant!(cx.config.mutant, CountDisksTwice) { own } else { member.info.beside.unwrap_or(own) }
}

/// Since when a member has been gone, if it is.
fn gone_since(member: &Member) -> Option<Tick> {
    match member.standing {
        Standing::Ready | Standing::Joining => None,
        Standing::Silent => Some(member.last_message),
        Standing::Away(since) => Some(since),
        Standing::Absent => Some(Tick(0)),
    }
}

/// When the copies of each member that is gone do not count any more.
fn gone_members(cx: &Context) -> impl Iterator<Item = Tick> + '_ {
    cx.members.iter().filter_map(|(_, it)| Some(gone_since(it)?.after(delay_ms(cx))))
}

/// Whether a member of an earlier epoch has yet to tell what it holds: its copies are not missing.
fn awaits_reports(cx: &Context) -> bool {
    let is_expected = |it: &Member| matches!(it.standing, Standing::Away(_) | Standing::Joining);
    cx.members.iter().any(|(_, it)| it.from_earlier_epoch && is_expected(it))
}

/// Whether the copies of a member count: it is there, or has not been gone for long, and does not leave soon.
fn counts(cx: &Context, member: &Member) -> bool {
    let is_there = gone_since(member).is_none_or(|at| at.after(delay_ms(cx)) > cx.now);
    let memory = member.info.beside.and_then(|it| cx.members.find(it)).and_then(|it| cx.members.get(it));
    is_there && !memory.unwrap_or(member).is_draining()
}

fn copies(cx: &Context, object: &Object) -> Copies {
    let mut copies = Copies { there: BTreeSet::new(), taken: BTreeSet::new() };
    for (node, _) in object.replicas() {
        let Some(member) = cx.members.get(node) else { continue };
        copies.taken.insert(machine(cx, member));
        if !object.is_pending(node) && counts(cx, member) {
            copies.there.insert(machine(cx, member));
        }
    }
    copies
}

/// From which member an object can be copied, and to which node: the emptiest that has none of it, on a host
/// that has none if such a node has memory.
fn path(
    cx: &Context,
    object: &Object,
    has_failed: impl Fn(NodeIndex) -> bool,
) -> Result<((NodeIndex, SlotRef), NodeIndex), CopyWait> {
    let taken = copies(cx, object).taken;
    let hosts: BTreeSet<_> =
        object.replicas().filter_map(|(node, _)| Some(cx.members.get(node)?.info.host.as_str())).collect();
    let is_target = |node: NodeIndex, it: &Member| {
        let is_open = cx.is_ready(node) && !it.is_disk() && !it.is_draining();
        is_open && !taken.contains(&it.info.segment)
    };
    let targets = cx.members.iter().filter(|(node, it)| is_target(*node, it));
    let is_elsewhere = |it: &Member| !hosts.contains(it.info.host.as_str());
    let has_memory = |it: &Member| it.free >= object.space_of_one();
    let target = targets.max_by_key(|(node, it)| {
        (!has_failed(*node), has_memory(it), is_elsewhere(it), it.free, std::cmp::Reverse(*node))
    });
    let Some((target, _)) = target else { return Err(CopyWait::Node) };
    let mut sources = object.copies().filter(|(node, _)| cx.is_ready(*node));
    sources.next().map(|source| (source, target)).ok_or(CopyWait::Source)
}

/// A copy in memory that is one too many: that of the fullest node.
fn surplus_copy(cx: &Context, object: &Object) -> Option<NodeIndex> {
    let has_others = object.replicas().any(|(node, _)| object.is_pending(node) || object.is_demoting(node));
    if has_others || is_mutant!(cx.config.mutant, KeepSurplus) {
        return None;
    }
    let is_good =
        |node: NodeIndex| cx.is_ready(node) && cx.members.get(node).is_some_and(|it| counts(cx, it));
    let good: BTreeMap<_, _> = object
        .in_memory()
        .filter(|(node, _)| is_good(*node))
        .filter_map(|(node, _)| Some(((cx.members.get(node)?.free, node), node)))
        .collect();
    let is_too_many = good.len() > object.copies_wanted();
    good.into_values().next().filter(|_| is_too_many)
}
