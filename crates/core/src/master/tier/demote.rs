//! Demotion: which objects are written to disks, and when.
//!
//! Objects are written *ahead* of need, the least recently used first. This goes on while less than a share
//! of the memory is free, also on disk, or being written. So a put that needs memory finds objects that can
//! leave it without loss. Only if it finds none does it wait for the disk, if it may wait at all. Then as
//! many bytes are written as it needs.
//!
//! **Invariant:** the stamp of a disk copy is unique among all disk copies, past ones included: it contains
//! the epoch of the master.
//!
//! **Invariant:** a copy is in the catalog, as pending, before its disk receives it, and until the disk has
//! reported that there is none. So the removal of the object also removes that copy.

use std::collections::BTreeMap;

use super::{
    refused::Refusals,
    waiting::MemoryQueue,
    write_through::{Entry, Owner, WriteThrough},
};
use crate::master::{
    Notice, Wait,
    catalog::{NamespaceIndex, NodeIndex, Object, ObjectIndex},
    context::Context,
};
use crate::{
    Generation, SlotRef, Stamp, Tick,
    message::{DemoteItem, Demotion, MasterToMember, Moved, TierStat},
    mutant::is_mutant,
    space_for,
};

/// Maximum number of objects, and of bytes, that are being written to one disk.
const WRITING_OBJECTS_MAX: usize = 512;
const WRITING_BYTES_MAX: u64 = 64 << 20;
/// One part in this many of a node's memory may be read by its disks at a time, or one object if that is
/// larger. That memory cannot be reused before the disk is done, however slow it is, so the rest must be
/// enough for new objects.
const DEMOTING_SHARE: u64 = 4;
/// Maximum number of objects that one message sends to a disk.
const DEMOTE_ITEMS_MAX: usize = 64;
/// Maximum number of stamp bits of one epoch.
const STAMP_BITS_MAX: u32 = 40;
/// How long a disk gets no writes after it failed.
const PAUSE_MS: u64 = 1000;
/// The same, if the cause may be that the node has not processed the publication yet.
const RETRY_MS: u64 = 20;

/// Writes in progress to one disk.
#[derive(Debug, Default)]
struct Writing {
    objects: usize,
    bytes: u64,
    /// The memory of these objects, as allocated.
    memory: u64,
    /// The same by namespace. None is zero.
    memory_of: BTreeMap<NamespaceIndex, u64>,
    /// The disk failed and gets no writes before then.
    paused_until: Tick,
}

impl Writing {
    fn add(&mut self, namespace: NamespaceIndex, len: u64, memory: u64) {
        (self.objects, self.bytes) = (self.objects + 1, self.bytes + len);
        self.memory += memory;
        *self.memory_of.entry(namespace).or_default() += memory;
    }

    fn remove(&mut self, namespace: NamespaceIndex, len: u64) {
        (self.objects, self.bytes) = (self.objects.saturating_sub(1), self.bytes.saturating_sub(len));
        let memory = space_for(len).unwrap_or(0);
        self.memory = self.memory.saturating_sub(memory);
        if let Some(own) = self.memory_of.get_mut(&namespace) {
            *own = own.saturating_sub(memory);
            if *own == 0 {
                self.memory_of.remove(&namespace);
            }
        }
    }
}

/// An object that is being written to a disk, and its copy there.
#[derive(Clone, Copy, Debug)]
pub(in crate::master) struct Leaving {
    pub(in crate::master) index: ObjectIndex,
    namespace: NamespaceIndex,
    /// The memory that it is read from, unless that was lost since.
    node: Option<NodeIndex>,
    generation: Generation,
    slot_ref: SlotRef,
    len: u64,
}

/// The outcome of a demotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::master) enum DemotionEnd {
    /// The copy exists, or was removed meanwhile.
    Settled,
    /// The disk does not have it, and the catalog must remove that copy.
    Lost,
    /// The same, because the object is larger than the disk accepts. It is not sent again for a while.
    Refused,
}

/// All demotions.
#[derive(Debug)]
pub(super) struct Demotions {
    writing: BTreeMap<NodeIndex, Writing>,
    /// The objects to write through, by memory.
    write_through: BTreeMap<NodeIndex, WriteThrough>,
    /// By node: memory that was also on its disk, and was given to promoted objects. As much must be
    /// written ahead again, or soon no further object could be promoted.
    spent: BTreeMap<NodeIndex, u64>,
    /// State has changed that may require demotions.
    is_woken: bool,
    /// The stamp of the next disk copy.
    next_stamp: u64,
    pub(super) refusals: Refusals,
    /// The objects that a disk has dropped to make space for others. They are not written ahead again for
    /// a while: a disk that is too small for all of them, because it holds pinned ones, would write for ever.
    pub(super) evicted: Refusals,
}

impl Demotions {
    pub(super) fn new(epoch: u64) -> Self {
        Self {
            writing: BTreeMap::new(),
            write_through: BTreeMap::new(),
            spent: BTreeMap::new(),
            is_woken: false,
            next_stamp: first_stamp(epoch),
            refusals: Refusals::default(),
            evicted: Refusals::default(),
        }
    }

    pub(super) fn wake(&mut self) {
        self.is_woken = true;
    }

    pub(super) fn count(&self) -> usize {
        self.writing.values().map(|it| it.objects).sum()
    }

    /// A member is lost, and its index may be reused. A disk may still read what it held.
    pub(super) fn forget_member(&mut self, cx: &mut Context, node: NodeIndex) {
        for (_, wait) in cx.waits.values_mut() {
            let Wait::Demote(leaving) = wait else { continue };
            leaving.iter_mut().filter(|it| it.node == Some(node)).for_each(|it| it.node = None);
        }
        self.writing.remove(&node);
        self.write_through.remove(&node);
        self.spent.remove(&node);
        self.refusals.forget_disk(node);
        self.evicted.forget_disk(node);
    }

    /// Memory that was also on a disk is given to a promoted object.
    pub(super) fn spend(&mut self, node: NodeIndex, memory: u64) {
        *self.spent.entry(node).or_default() += memory;
        self.wake();
    }

    /// When the next pause of a disk ends.
    pub(super) fn next_pause_end(&self, now: Tick) -> Option<Tick> {
        self.writing.values().map(|it| it.paused_until).filter(|it| *it > now).min()
    }

    pub(super) fn end_pauses(&mut self, now: Tick) {
        let is_over = |it: &&mut Writing| it.paused_until > Tick(0) && it.paused_until <= now;
        for writing in self.writing.values_mut().filter(is_over) {
            writing.paused_until = Tick(0);
            self.is_woken = true;
        }
    }

    /// An object was committed, or could not be written: lists it for write-through if its namespace
    /// requires that.
    pub(super) fn write_through(&mut self, cx: &Context, index: ObjectIndex) {
        let Some(object) = cx.catalog.get(index) else { return };
        if cx.demotion(object.namespace()) == Demotion::WriteThrough && !object.is_sample() {
            let mut homes = object.in_memory().map(|(node, _)| node);
            let home = homes.find(|node| cx.members.disks().any(|(_, beside)| beside == *node));
            if let Some(home) = home {
                let is_anyone = is_mutant!(cx.config.mutant, WriteThroughInOrder);
                let (namespace, client) = (object.namespace(), object.writer());
                let group = cx.catalog.namespace(namespace).map(|it| it.turn_group(cx.config.mutant));
                let group = group.unwrap_or_default();
                let owner = Owner { namespace, group, client, is_anyone };
                let list = self.write_through.entry(home).or_default();
                list.push(owner, object.len(), (index, object.generation()));
            }
        }
        self.wake();
    }

    /// Writes ahead, if state has changed that requires it.
    pub(super) fn write_ahead(&mut self, cx: &mut Context, queue: &MemoryQueue) {
        if std::mem::take(&mut self.is_woken) {
            let disks: Vec<_> = cx.members.disks().collect();
            disks.into_iter().for_each(|(disk, node)| while self.demote_some(cx, queue, (disk, node), 0) {});
        }
    }

    /// Demotes until that much memory of a node is about to be free, as far as its disks can. Returns
    /// whether any object is being written.
    pub(super) fn free_memory(
        &mut self,
        cx: &mut Context,
        queue: &MemoryQueue,
        node: NodeIndex,
        need: u64,
    ) -> bool {
        let short = need.saturating_sub(cx.members.get(node).map_or(0, |it| it.free));
        let disks: Vec<_> = disks_of(cx, node).collect();
        disks.iter().for_each(|disk| while self.demote_some(cx, queue, (*disk, node), short) {});
        disks.iter().any(|disk| self.writing.get(disk).is_some_and(|it| it.objects > 0))
    }

    /// Demotes objects of a namespace until that much memory of it is being written, as far as the disks can.
    /// Returns whether the caller should wait for any. If others keep a disk busy, it writes one message of
    /// this namespace all the same.
    pub(super) fn demote_namespace(
        &mut self,
        cx: &mut Context,
        namespace: NamespaceIndex,
        need: u64,
    ) -> bool {
        if cx.demotion(namespace) == Demotion::Never {
            return false;
        }
        let counted = (!is_mutant!(cx.config.mutant, AwaitDemotionsOfOthers)).then_some(namespace);
        let mut is_held_up = false;
        let disks: Vec<_> = cx.members.disks().collect();
        for (disk, node) in disks {
            if !self.may_write(cx, disk, node) {
                continue;
            }
            let (mut items, mut leaving) = (Vec::new(), Vec::new());
            let has_none = self.memory(counted) == 0;
            while self.memory(counted) < need
                && items.len() < DEMOTE_ITEMS_MAX
                && (has_none || !self.is_busy(disk))
            {
                let next = cx.catalog.next_to_demote(
                    node,
                    WRITING_OBJECTS_MAX * 2,
                    |it| it == namespace,
                    |object| self.may_be_demoted(cx, object, disk) && !object.hard_pin(),
                );
                let may_begin = next.filter(|it| self.may_be_read_from(cx, node, *it));
                is_held_up |= next.is_some() && may_begin.is_none();
                let Some((item, entry)) = may_begin.and_then(|it| self.begin(cx, it, disk, node)) else {
                    break;
                };
                items.push(item);
                leaving.push(entry);
            }
            if !items.is_empty() {
                send(cx, (disk, node), items, leaving);
            }
        }
        self.memory(counted) > 0 || (is_held_up && self.memory(None) > 0)
    }

    /// The memory of the objects that are being written to disks: those of a namespace, or all.
    fn memory(&self, namespace: Option<NamespaceIndex>) -> u64 {
        let memory = |it: &Writing| match namespace {
            Some(namespace) => it.memory_of.get(&namespace).copied().unwrap_or(0),
            None => it.memory,
        };
        self.writing.values().map(memory).sum()
    }

    /// Whether objects of that memory may be written to that disk now.
    fn may_write(&self, cx: &Context, disk: NodeIndex, node: NodeIndex) -> bool {
        let is_paused = self.writing.get(&disk).is_some_and(|it| it.paused_until > cx.now);
        cx.is_ready(disk) && cx.is_ready(node) && !is_paused
    }

    /// Whether a disk has the maximum amount of writes in progress.
    fn is_busy(&self, disk: NodeIndex) -> bool {
        let busy = |it: &Writing| it.objects >= WRITING_OBJECTS_MAX || it.bytes >= WRITING_BYTES_MAX;
        self.writing.get(&disk).is_some_and(busy)
    }

    /// Sends one message with objects to a disk; `false` if there is nothing to send. If the node's memory
    /// is `short` of bytes, at least that much must be in progress.
    fn demote_some(
        &mut self,
        cx: &mut Context,
        queue: &MemoryQueue,
        (disk, node): (NodeIndex, NodeIndex),
        short: u64,
    ) -> bool {
        if !self.may_write(cx, disk, node) {
            return false;
        }
        let (mut items, mut leaving) = (Vec::new(), Vec::new());
        while items.len() < DEMOTE_ITEMS_MAX {
            let Some(index) = self.next(cx, queue, (disk, node), short) else { break };
            let Some((item, entry)) = self.begin(cx, index, disk, node) else { break };
            items.push(item);
            leaving.push(entry);
        }
        let any = !items.is_empty();
        if any {
            send(cx, (disk, node), items, leaving);
        }
        any
    }

    /// The next object to demote from a memory to its disk, if one is needed.
    fn next(
        &mut self,
        cx: &Context,
        queue: &MemoryQueue,
        (disk, node): (NodeIndex, NodeIndex),
        short: u64,
    ) -> Option<ObjectIndex> {
        if self.is_busy(disk) {
            return None;
        }
        let capacity = cx.members.get(disk)?.usage.capacity;
        if let Some(next) = self.next_written_through(cx, disk, node) {
            return next;
        }
        let member = cx.members.get(node)?;
        // On a small disk, objects written ahead would evict those that were written ahead before.
        let ahead = member.usage.capacity / 100 * u64::from(cx.config.tier.ahead_percent);
        let ahead = ahead.min(capacity / 2);
        let under_way = self.demoting_memory(cx, node);
        let soon_free = member.free.saturating_add(cx.catalog.on_disk_space(node)).saturating_add(under_way);
        let spent = self.spent.get(&node).map_or(0, |it| ahead.min(*it));
        if soon_free >= ahead && under_way >= short && spent == 0 {
            let soon_free = member.free.saturating_add(under_way);
            return self.next_for_promotions(cx, queue, (disk, node), soon_free);
        }
        let next = cx.catalog.next_to_demote(
            node,
            WRITING_OBJECTS_MAX * 2,
            |namespace| {
                let never = cx.demotion(namespace) == Demotion::Never;
                !never || is_mutant!(cx.config.mutant, DemoteForbidden)
            },
            // A pinned object frees no memory by having a disk copy.
            |object| {
                self.may_be_demoted(cx, object, disk)
                    && !object.hard_pin()
                    && (under_way < short || !self.was_evicted(cx, object, disk))
            },
        );
        if next.is_none() {
            self.spent.remove(&node);
        }
        next.filter(|it| self.may_be_read_from(cx, node, *it))
    }

    /// The next object to write through from a memory to its disk, if there is any. `Some(None)` if too
    /// much of that memory is being read.
    fn next_written_through(
        &mut self,
        cx: &Context,
        disk: NodeIndex,
        node: NodeIndex,
    ) -> Option<Option<ObjectIndex>> {
        while let Some((namespace, entry)) = self.write_through.get_mut(&node)?.first() {
            let found = match entry {
                Entry::Object(index, generation) => {
                    let object = cx.catalog.get(index).filter(|it| it.generation() == generation);
                    let object = object.filter(|it| cx.demotion(it.namespace()) != Demotion::Never);
                    let is_wanted = object.is_some_and(|it| {
                        self.may_be_demoted(cx, it, disk) && it.in_memory().any(|(on, _)| on == node)
                    });
                    is_wanted.then_some(index)
                }
                Entry::Unlisted => cx.catalog.next_to_demote(
                    node,
                    WRITING_OBJECTS_MAX * 2,
                    |it| it == namespace && cx.demotion(it) == Demotion::WriteThrough,
                    |object| self.may_be_demoted(cx, object, disk),
                ),
            };
            if found.is_some_and(|index| !self.may_be_read_from(cx, node, index)) {
                return Some(None);
            }
            let bytes = found.and_then(|index| cx.catalog.get(index)).map(Object::len);
            self.write_through.get_mut(&node)?.pop(bytes);
            if found.is_some() {
                return Some(found);
            }
        }
        None
    }

    /// The next object to demote so that waiting promotions find memory: one that was never read, or not
    /// for a while.
    fn next_for_promotions(
        &self,
        cx: &Context,
        queue: &MemoryQueue,
        (disk, node): (NodeIndex, NodeIndex),
        soon_free: u64,
    ) -> Option<ObjectIndex> {
        let available = soon_free.saturating_add(cx.catalog.on_disk_unread_space(node));
        if available >= queue.need_at(node) {
            return None;
        }
        let protect_ms = cx.config.tier.protect_ms;
        let is_hot = |it: &Object| it.was_read() && it.touched().after(protect_ms) > cx.now;
        let next = cx.catalog.next_to_demote(
            node,
            WRITING_OBJECTS_MAX * 2,
            |namespace| cx.demotion(namespace) != Demotion::Never,
            |object| self.may_be_demoted(cx, object, disk) && !object.hard_pin() && !is_hot(object),
        );
        next.filter(|it| self.may_be_read_from(cx, node, *it))
    }

    /// Number of bytes of a node's memory that its disks are reading.
    fn demoting_memory(&self, cx: &Context, node: NodeIndex) -> u64 {
        let disks = cx.members.disks().filter(|(_, beside)| *beside == node);
        disks.filter_map(|(disk, _)| self.writing.get(&disk)).map(|it| it.memory).sum()
    }

    /// Whether a disk may read one more object now, so that enough of the memory is left for others.
    fn may_be_read_from(&self, cx: &Context, node: NodeIndex, index: ObjectIndex) -> bool {
        let (Some(member), Some(object)) = (cx.members.get(node), cx.catalog.get(index)) else {
            return false;
        };
        let (under_way, memory) =
            (self.demoting_memory(cx, node), space_for(object.len()).unwrap_or(u64::MAX));
        under_way == 0
            || under_way.saturating_add(memory) <= member.usage.capacity / DEMOTING_SHARE
            || is_mutant!(cx.config.mutant, DemoteAllAtOnce)
    }

    /// Whether an object may have a copy on that disk, and has none. It must have none on another disk
    /// either, unless that copy was being written when that disk disconnected. Samples stay in memory.
    fn may_be_demoted(&self, cx: &Context, object: &Object, disk: NodeIndex) -> bool {
        let is_away = |it: NodeIndex| cx.members.get(it).is_none_or(|it| it.conn.is_none());
        let mut others = object.on_disks();
        !object.is_sample()
            && (!self.refusals.forbid(object.generation(), disk, cx.now)
                || is_mutant!(cx.config.mutant, OfferRefused))
            && others.all(|(on, pending)| pending && on != disk && is_away(on))
    }

    /// Whether that disk has dropped the object lately.
    fn was_evicted(&self, cx: &Context, object: &Object, disk: NodeIndex) -> bool {
        self.evicted.forbid(object.generation(), disk, cx.now)
            && !is_mutant!(cx.config.mutant, WriteAheadAgain)
    }

    fn begin(
        &mut self,
        cx: &mut Context,
        index: ObjectIndex,
        disk: NodeIndex,
        node: NodeIndex,
    ) -> Option<(DemoteItem, Leaving)> {
        let object = cx.catalog.get(index)?;
        let (_, source) = object.in_memory().find(|(on, _)| *on == node)?;
        let (namespace, generation, len) = (object.namespace(), object.generation(), object.len());
        let slot_ref = SlotRef::on_disk(Stamp(self.next_stamp));
        self.next_stamp += 1;
        let item = DemoteItem { source, record: cx.record(index, slot_ref)? };
        if !is_mutant!(cx.config.mutant, DemoteUnseen) {
            cx.catalog.add_pending(index, disk, slot_ref);
        }
        if !is_mutant!(cx.config.mutant, EvictDemoting) {
            cx.catalog.set_demoting(index, node, true);
        }
        let memory = space_for(len).unwrap_or(0);
        self.writing.entry(disk).or_default().add(namespace, len, memory);
        if let Some(spent) = self.spent.get_mut(&node) {
            *spent = spent.saturating_sub(memory);
        }
        Some((item, Leaving { index, namespace, node: Some(node), generation, slot_ref, len }))
    }

    /// Applies a disk's reply about one object: written, failed, or refused with the maximum size that it
    /// accepts.
    pub(super) fn end(
        &mut self,
        cx: &mut Context,
        stat: &mut TierStat,
        disk: NodeIndex,
        (it, done, refused): (&Leaving, bool, Option<u64>),
    ) -> DemotionEnd {
        self.writing.entry(disk).or_default().remove(it.namespace, it.len);
        // If the object was removed meanwhile, this copy was removed with it.
        let is_it = |object: &&Object| object.replicas().any(|copy| copy == (disk, it.slot_ref));
        let object = cx.catalog.get(it.index).filter(|object| object.generation() == it.generation);
        if object.is_some() {
            it.node.into_iter().for_each(|node| cx.catalog.set_demoting(it.index, node, false));
            // The disk may have dropped this copy before it refuses it.
            refused.into_iter().for_each(|bytes_max| self.refuse(cx, stat, disk, it, bytes_max));
        }
        let object = cx.catalog.get(it.index).filter(|object| object.generation() == it.generation);
        let unseen = is_mutant!(cx.config.mutant, DemoteUnseen);
        let Some(object) = object.filter(|object| is_it(object) || unseen) else {
            return DemotionEnd::Settled;
        };
        if refused.is_some() {
            return DemotionEnd::Refused;
        }
        if !done && object.in_memory().next().is_some() {
            // The bytes were in memory, so the disk failed, unless the object is very new.
            let is_young = object.put().after(PAUSE_MS) > cx.now;
            let writing = self.writing.entry(disk).or_default();
            writing.paused_until = cx.now.after(if is_young { RETRY_MS } else { PAUSE_MS });
            stat.demotions_failed += 1;
        }
        if !done {
            return DemotionEnd::Lost;
        }
        if unseen && !object.is_on(disk) {
            cx.catalog.add_pending(it.index, disk, it.slot_ref);
        }
        if cx.catalog.complete(it.index, disk, it.slot_ref) {
            self.refusals.take(it.generation);
            stat.demoted_objects += 1;
            stat.demoted_bytes += it.len;
        }
        DemotionEnd::Settled
    }

    /// A working disk refuses an object: the object is not sent to it again for a while.
    fn refuse(
        &mut self,
        cx: &mut Context,
        stat: &mut TierStat,
        disk: NodeIndex,
        leaving: &Leaving,
        bytes_max: u64,
    ) {
        if !self.refusals.note(leaving.generation, disk, bytes_max, cx.now) {
            return;
        }
        stat.demotions_refused += 1;
        let Some(key) = cx.catalog.get(leaving.index).map(|it| it.key().clone()) else { return };
        let (disk, total) = (cx.members.name(disk), stat.demotions_refused);
        cx.notice(Notice::DemotionRefused { disk, key, bytes: leaving.len, bytes_max, total });
    }

    /// A disk is disconnected. Puts that wait for memory that it would have freed are retried.
    pub(super) fn disk_away(&mut self, cx: &mut Context, disk: NodeIndex, leaving: &[Leaving]) {
        self.writing.remove(&disk);
        for it in leaving {
            if cx.catalog.get(it.index).is_some_and(|object| object.generation() == it.generation) {
                it.node.into_iter().for_each(|node| cx.catalog.set_demoting(it.index, node, false));
            }
        }
        cx.quotas.note_change();
    }

    pub(super) fn check(&self, cx: &Context) -> Result<(), String> {
        let all = || {
            cx.waits.values().filter_map(|(disk, wait)| match wait {
                Wait::Demote(leaving) => Some((*disk, leaving)),
                _ => None,
            })
        };
        let mut under_way: BTreeMap<NodeIndex, (usize, u64)> = BTreeMap::new();
        for (disk, leaving) in all() {
            let sum = under_way.entry(disk).or_default();
            leaving.iter().for_each(|it| *sum = (sum.0 + 1, sum.1 + it.len));
        }
        let written = self.writing.iter().map(|(disk, it)| (*disk, (it.objects, it.bytes)));
        let written: BTreeMap<_, _> = written.filter(|(_, it)| *it != (0, 0)).collect();
        if written != under_way {
            return Err(format!("accounting: {written:?} are counted as being written, {under_way:?} are"));
        }
        // A node that is drained has no capacity of which a part could be read.
        for (node, member) in cx.members.iter().filter(|(_, it)| !it.is_disk() && !it.is_draining()) {
            let leaving = all().flat_map(|it| it.1).filter(|it| it.node == Some(node) && it.len > 0);
            let sizes: Vec<_> = leaving.filter_map(|it| space_for(it.len)).collect();
            let sum: u64 = sizes.iter().sum();
            if sizes.len() > 1 && sum > member.usage.capacity / DEMOTING_SHARE {
                return Err(format!("R19: disks read {} objects of {sum} bytes", sizes.len()));
            }
        }
        Ok(())
    }
}

/// The outcome of each object that was sent to a disk, in the order of processing: whether it was written,
/// and the maximum size that the disk accepts, if it refused the object.
pub(in crate::master) fn ends<'a>(
    leaving: &'a [Leaving],
    moved: &Moved,
) -> impl Iterator<Item = (&'a Leaving, bool, Option<u64>)> {
    let mut answers = moved.items.iter().copied();
    let mut refusals = moved.bytes_max.iter().copied();
    let ends = leaving.iter().map(|it| {
        let done = answers.next().unwrap_or(false);
        (it, done, refusals.next().filter(|bytes_max| *bytes_max > 0 && !done))
    });
    let (done, failed): (Vec<_>, Vec<_>) = ends.partition(|(_, done, _)| *done);
    // Objects that could not be written return to the old end of their list, so the oldest comes last.
    done.into_iter().chain(failed.into_iter().rev())
}

/// The disks of a node that can be written to now.
pub(super) fn disks_of(cx: &Context, node: NodeIndex) -> impl Iterator<Item = NodeIndex> + '_ {
    let disks = cx.members.disks().filter(move |(disk, beside)| *beside == node && cx.is_ready(*disk));
    disks.map(|(disk, _)| disk)
}

/// Sends objects of a memory to its disk. The node may not have processed the publication of new ones yet;
/// the disk waits until it has.
fn send(
    cx: &mut Context,
    (disk, node): (NodeIndex, NodeIndex),
    items: Vec<DemoteItem>,
    leaving: Vec<Leaving>,
) {
    // A disk that may be written to is connected, so this cannot fail.
    cx.ask(disk, MasterToMember::Demote(items), Wait::Demote(leaving));
    cx.poll_node(node);
}

/// The first stamp of an epoch. If epochs are counted one by one, each has a great many stamps. If they are
/// microseconds of a clock, each has several stamps per microsecond until the next epoch begins.
fn first_stamp(epoch: u64) -> u64 {
    let bits = epoch.leading_zeros().saturating_sub(1).min(STAMP_BITS_MAX);
    (epoch << bits).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_have_separate_stamps() {
        let today = 1_795_000_000_000_000;
        let epochs = [(1, 2, 1 << 40), (8000, 8001, 1 << 40), (today, today + 1_000_000, 4_000_000)];
        for (epoch, next, at_least) in epochs {
            assert!(first_stamp(next) - first_stamp(epoch) >= at_least, "{epoch}");
        }
        assert!(first_stamp(u64::MAX) > 0);
    }
}
