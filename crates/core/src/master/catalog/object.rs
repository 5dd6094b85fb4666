//! The record of one object. It is kept small, because there may be fifty million.

use super::{EvictionList, LabelIndex, NIL, NamespaceIndex, NewObject, NodeIndex};
use crate::{
    Generation, Key, SlotId, SlotRef, Stamp, Tick,
    attributes::{Attributes, Expiry},
    message::OnExists,
    space_for,
};

/// A tick in six bytes, which is enough for eight thousand years.
#[derive(Clone, Copy, Debug)]
struct Moment([u16; 3]);

impl Moment {
    fn of(tick: Tick) -> Self {
        let ms = tick.0.min((1 << 48) - 1);
        Self([ms as u16, (ms >> 16) as u16, (ms >> 32) as u16])
    }

    fn tick(self) -> Tick {
        let [low, middle, high] = self.0;
        Tick(u64::from(low) | u64::from(middle) << 16 | u64::from(high) << 32)
    }
}

/// One copy of an object, and its links in an eviction list of its node.
#[derive(Clone, Debug)]
pub(super) struct Replica {
    stamp: Stamp,
    slot: SlotId,
    pub(super) older: u32,
    pub(super) newer: u32,
    pub(super) node: NodeIndex,
    pub(super) list: EvictionList,
    state: CopyState,
}

/// The state of one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyState {
    /// It can be read.
    Complete,
    /// It is being written, and cannot be read yet. It is retired with the others.
    Pending,
    /// It is written, but its node was disconnected before it could report that it is committed. It cannot
    /// be read until the node returns.
    Unconfirmed,
    /// It can be read, and a disk is reading it. Its memory cannot be reused before that ends, even if the
    /// object is removed.
    Demoting,
}

impl Replica {
    pub(super) fn new((node, slot_ref): (NodeIndex, SlotRef)) -> Self {
        Self {
            stamp: slot_ref.stamp,
            slot: slot_ref.slot,
            older: NIL,
            newer: NIL,
            node,
            list: EvictionList::Idle,
            state: CopyState::Complete,
        }
    }

    pub(super) fn pending((node, slot_ref): (NodeIndex, SlotRef)) -> Self {
        Self { state: CopyState::Pending, ..Self::new((node, slot_ref)) }
    }

    fn slot_ref(&self) -> SlotRef {
        SlotRef { slot: self.slot, stamp: self.stamp }
    }

    pub(super) fn is_in_memory(&self) -> bool {
        !self.slot_ref().is_on_disk() && !self.is_pending()
    }

    fn is_pending(&self) -> bool {
        matches!(self.state, CopyState::Pending | CopyState::Unconfirmed)
    }

    /// Whether its member has it, or may have it: a disk that is writing it may be done already.
    fn may_be_there(&self) -> bool {
        self.state != CopyState::Pending || self.slot_ref().is_on_disk()
    }

    fn is_readable_on_disk(&self) -> bool {
        self.slot_ref().is_on_disk() && !self.is_pending()
    }
}

/// One object. It touches two cache lines at any address of its alignment.
#[derive(Debug)]
#[repr(align(32))]
pub(in crate::master) struct Object {
    key: Key,
    generation: Generation,
    len: u64,
    first: Replica,
    /// `None` in the many objects that have one copy and no attributes.
    extra: Option<Box<Extra>>,
    namespace: NamespaceIndex,
    /// How long after its last use it is protected from eviction.
    lease_ms: u32,
    put: Moment,
    touched: Moment,
    writer: LabelIndex,
    reader: LabelIndex,
}

/// Fields that few objects have.
#[derive(Debug, Default)]
struct Extra {
    more: Vec<Replica>,
    attributes: Attributes,
    /// Zero if it has no soft pin.
    soft_until: Tick,
}

impl Object {
    /// `None` if it has no replica.
    pub(super) fn new(now: Tick, new: NewObject) -> Option<Self> {
        let mut replicas = new.replicas.into_iter().map(Replica::new);
        let first = replicas.next()?;
        let extra =
            Extra { more: replicas.collect(), attributes: new.attributes, soft_until: new.soft_until };
        Some(Self {
            key: new.key,
            generation: new.generation,
            len: new.len,
            first,
            extra: (!extra.is_nothing()).then(|| Box::new(extra)),
            namespace: new.namespace,
            lease_ms: 0,
            put: Moment::of(now),
            touched: Moment::of(now),
            writer: new.writer,
            reader: LabelIndex::default(),
        })
    }

    pub(in crate::master) fn generation(&self) -> Generation {
        self.generation
    }
    pub(in crate::master) fn len(&self) -> u64 {
        self.len
    }
    pub(in crate::master) fn key(&self) -> &Key {
        &self.key
    }
    pub(in crate::master) fn namespace(&self) -> NamespaceIndex {
        self.namespace
    }
    pub(in crate::master) fn put(&self) -> Tick {
        self.put.tick()
    }
    pub(in crate::master) fn writer(&self) -> LabelIndex {
        self.writer
    }
    /// The client that used it last; the default label if there is none.
    pub(in crate::master) fn reader(&self) -> LabelIndex {
        self.reader
    }
    pub(in crate::master) fn touched(&self) -> Tick {
        self.touched.tick()
    }

    /// The end of its lease; zero if it was not leased when it was last used.
    pub(in crate::master) fn lease_until(&self) -> Tick {
        if self.lease_ms == 0 { Tick(0) } else { self.touched().after(u64::from(self.lease_ms)) }
    }
    pub(in crate::master) fn leased(&self, now: Tick) -> bool {
        self.lease_until() > now
    }

    pub(in crate::master) fn attributes(&self) -> Option<&Attributes> {
        self.extra.as_ref().map(|it| &it.attributes)
    }
    pub(in crate::master) fn hard_pin(&self) -> bool {
        self.attributes().is_some_and(|it| !it.pins.is_empty())
    }
    /// Whether it is kept when a put with these options finds it.
    pub(in crate::master) fn is_kept(&self, on_exists: OnExists) -> bool {
        match on_exists {
            OnExists::Replace => false,
            OnExists::Keep => true,
            OnExists::KeepHardPinned => self.hard_pin(),
            OnExists::KeepPinned => self.hard_pin() || self.soft_pin(),
        }
    }
    pub(in crate::master) fn is_sample(&self) -> bool {
        self.attributes().is_some_and(|it| it.sample.is_some())
    }
    /// On how many nodes it is to have a copy.
    pub(in crate::master) fn copies_wanted(&self) -> usize {
        self.attributes().map_or(1, |it| it.copies.max(1) as usize)
    }
    /// When it expires, if it has a TTL, pinned or not. `wall_ms` is the wall clock at the first tick. If
    /// that clock was set back since its put, it does not live longer than its TTL from now on.
    pub(in crate::master) fn expires(&self, wall_ms: u64) -> Option<Tick> {
        let Expiry { ttl_ms, ends_ms } = *self.attributes()?.expiry.as_deref()?;
        let longest = self.put().after(ttl_ms);
        Some(if ends_ms == 0 { longest } else { Tick(ends_ms.saturating_sub(wall_ms)).min(longest) })
    }
    pub(super) fn soft_until(&self) -> Tick {
        self.extra.as_ref().map_or(Tick(0), |it| it.soft_until)
    }
    pub(in crate::master) fn soft_pin(&self) -> bool {
        self.soft_until() > Tick(0)
    }

    /// The memory of one copy.
    pub(in crate::master) fn space_of_one(&self) -> u64 {
        space_for(self.len).unwrap_or(0)
    }

    /// The bytes that it is charged with: the memory of all its copies, and its bytes in another store.
    pub(super) fn space(&self) -> u64 {
        (self.space_of_one() * self.in_memory().count() as u64).wrapping_add(self.elsewhere())
    }

    /// Its bytes in another store that its namespace is charged with. A stream counts those of its samples
    /// itself.
    pub(in crate::master) fn elsewhere(&self) -> u64 {
        let sample = self.attributes().and_then(|it| it.sample.as_deref());
        sample.filter(|it| it.stream.is_empty()).map_or(0, |it| it.elsewhere)
    }

    /// Every copy, including those that are being written.
    pub(in crate::master) fn replicas(&self) -> impl Iterator<Item = (NodeIndex, SlotRef)> + '_ {
        self.all().map(|it| (it.node, it.slot_ref()))
    }

    /// The copies that can be read, those in memory first.
    pub(in crate::master) fn copies(&self) -> impl Iterator<Item = (NodeIndex, SlotRef)> + '_ {
        let on_disks = self.all().filter(|it| it.is_readable_on_disk()).map(|it| (it.node, it.slot_ref()));
        self.in_memory().chain(on_disks)
    }

    /// The members that have it, or may have it.
    pub(in crate::master) fn homes(&self) -> impl Iterator<Item = NodeIndex> + '_ {
        self.all().filter(|it| it.may_be_there()).map(|it| it.node)
    }

    /// The copies in memory that can be read.
    pub(in crate::master) fn in_memory(&self) -> impl Iterator<Item = (NodeIndex, SlotRef)> + '_ {
        self.all().filter(|it| it.is_in_memory()).map(|it| (it.node, it.slot_ref()))
    }

    /// The copies on disks that can be read.
    pub(in crate::master) fn readable_on_disks(&self) -> impl Iterator<Item = (NodeIndex, SlotRef)> + '_ {
        self.all().filter(|it| it.is_readable_on_disk()).map(|it| (it.node, it.slot_ref()))
    }

    /// Whether it can be read from memory, and from a disk.
    pub(in crate::master) fn tiers(&self) -> (bool, bool) {
        (self.in_memory().next().is_some(), self.readable_on_disks().next().is_some())
    }

    /// Whether a node has a copy, or will have one.
    pub(in crate::master) fn is_on(&self, node: NodeIndex) -> bool {
        self.on(node).is_some()
    }

    /// Whether a copy is being written.
    pub(in crate::master) fn is_pending(&self, node: NodeIndex) -> bool {
        self.on(node).is_some_and(Replica::is_pending)
    }

    /// The disks that have it or are writing it, and whether they are still writing.
    pub(in crate::master) fn on_disks(&self) -> impl Iterator<Item = (NodeIndex, bool)> + '_ {
        self.all().filter(|it| it.slot_ref().is_on_disk()).map(|it| (it.node, it.is_pending()))
    }

    /// The replicas, the first one first.
    pub(super) fn all(&self) -> impl Iterator<Item = &Replica> {
        std::iter::once(&self.first).chain(self.extra.iter().flat_map(|it| &it.more))
    }

    /// The number of replicas, whether they can be read or not.
    pub(in crate::master) fn replica_count(&self) -> usize {
        1 + self.extra.as_ref().map_or(0, |it| it.more.len())
    }

    pub(super) fn replica(&self, at: usize) -> Option<&Replica> {
        match at {
            0 => Some(&self.first),
            more => self.extra.as_ref()?.more.get(more - 1),
        }
    }

    pub(super) fn replica_mut(&mut self, at: usize) -> Option<&mut Replica> {
        match at {
            0 => Some(&mut self.first),
            more => self.extra.as_mut()?.more.get_mut(more - 1),
        }
    }

    /// Reads each cache line of the record, so that it is cached afterwards.
    pub(super) fn warm(&self) -> u64 {
        self.len ^ u64::from(self.first.older) ^ u64::from(self.lease_ms) ^ self.generation.counter
    }

    /// The same for the key's bytes.
    pub(super) fn warm_key(&self) -> u64 {
        let ends = [self.key.as_bytes().first(), self.key.as_bytes().last()];
        ends.into_iter().flatten().map(|&byte| u64::from(byte)).sum()
    }

    pub(super) fn on(&self, node: NodeIndex) -> Option<&Replica> {
        self.all().find(|it| it.node == node)
    }

    pub(super) fn on_mut(&mut self, node: NodeIndex) -> Option<&mut Replica> {
        if self.first.node == node {
            return Some(&mut self.first);
        }
        self.extra.as_mut()?.more.iter_mut().find(|it| it.node == node)
    }

    /// Makes a copy readable that was being written. `false` if there is no such copy.
    pub(super) fn complete(&mut self, node: NodeIndex, slot_ref: SlotRef) -> bool {
        let replica = self.on_mut(node).filter(|it| it.is_pending() && it.slot_ref() == slot_ref);
        replica.map(|it| it.state = CopyState::Complete).is_some()
    }

    /// The node of a copy that was being written is disconnected, and may have it.
    pub(super) fn set_unconfirmed(&mut self, node: NodeIndex) {
        if let Some(replica) = self.on_mut(node).filter(|it| it.is_pending()) {
            replica.state = CopyState::Unconfirmed;
        }
    }

    /// Whether a disk is reading the copy in the memory of that node.
    pub(in crate::master) fn is_demoting(&self, node: NodeIndex) -> bool {
        self.on(node).is_some_and(|it| it.state == CopyState::Demoting)
    }

    /// A disk begins to read the copy in the memory of that node, or has finished.
    pub(super) fn set_demoting(&mut self, node: NodeIndex, demoting: bool) {
        if let Some(replica) = self.on_mut(node).filter(|it| it.is_in_memory()) {
            replica.state = if demoting { CopyState::Demoting } else { CopyState::Complete };
        }
    }

    /// Adds a copy on a node that has none.
    pub(super) fn add(&mut self, replica: Replica) {
        debug_assert!(!self.is_on(replica.node), "object has a second copy on one node");
        self.extra.get_or_insert_default().more.push(replica);
    }

    /// Removes the copy on one node, which must not be the only one.
    pub(super) fn forget(&mut self, node: NodeIndex) {
        let Some(extra) = &mut self.extra else { return };
        if self.first.node == node && !extra.more.is_empty() {
            self.first = extra.more.remove(0);
        } else {
            extra.more.retain(|it| it.node != node);
        }
        self.tidy();
    }

    /// Counts a use. An expired lease is dropped, and a new one may begin.
    pub(super) fn touch(&mut self, now: Tick, lease_until: Option<Tick>) {
        let still = self.lease_until();
        let until = lease_until.map_or(still, |until| until.max(still));
        self.touched = Moment::of(now);
        self.lease_ms = until.0.saturating_sub(now.0).min(u64::from(u32::MAX)) as u32;
    }

    pub(super) fn read_by(&mut self, reader: LabelIndex) {
        self.reader = reader;
    }

    /// Whether it was read since it was put.
    pub(in crate::master) fn was_read(&self) -> bool {
        self.reader != LabelIndex::default()
    }

    /// Sets the end of its lease.
    pub(super) fn lease_again(&mut self, until: Tick) {
        self.lease_ms = until.0.saturating_sub(self.touched().0).min(u64::from(u32::MAX)) as u32;
    }

    /// Replaces the attributes, and returns the old ones.
    pub(super) fn set_attributes(&mut self, attributes: Attributes) -> Attributes {
        let old = std::mem::replace(&mut self.extra.get_or_insert_default().attributes, attributes);
        self.tidy();
        old
    }

    pub(super) fn end_soft_pin(&mut self) {
        if let Some(extra) = &mut self.extra {
            extra.soft_until = Tick(0);
        }
        self.tidy();
    }

    /// The eviction list of its copies in memory, according to its protection, its lease and its disk
    /// copies.
    pub(super) fn list_in_memory(&self) -> EvictionList {
        let protected = self.attributes().is_some_and(Attributes::protect);
        match (protected, self.soft_pin(), self.lease_ms > 0, self.readable_on_disks().next().is_some()) {
            (true, ..) => EvictionList::Pinned,
            (_, false, false, false) if !self.was_read() => EvictionList::Unread,
            (_, false, false, true) if !self.was_read() => EvictionList::OnDiskUnread,
            (_, false, false, false) => EvictionList::Idle,
            (_, false, true, false) => EvictionList::Leased,
            (_, true, false, false) => EvictionList::SoftIdle,
            (_, true, true, false) => EvictionList::SoftLeased,
            (_, false, false, true) => EvictionList::OnDiskIdle,
            (_, false, true, true) => EvictionList::OnDiskLeased,
            (_, true, false, true) => EvictionList::OnDiskSoftIdle,
            (_, true, true, true) => EvictionList::OnDiskSoftLeased,
        }
    }

    /// The eviction list that one of its copies belongs to.
    pub(super) fn rightful_list(&self, replica: &Replica) -> EvictionList {
        match (replica.is_in_memory(), self.list_in_memory()) {
            (false, _) => EvictionList::Aside,
            (true, EvictionList::Pinned) => EvictionList::Pinned,
            (true, _) if replica.state == CopyState::Demoting => EvictionList::Demoting,
            (true, list) => list,
        }
    }

    fn tidy(&mut self) {
        self.extra.take_if(|it| it.is_nothing());
    }
}

impl Extra {
    fn is_nothing(&self) -> bool {
        self.more.is_empty() && self.attributes == Attributes::default() && self.soft_until == Tick(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_has_96_bytes() {
        assert_eq!(size_of::<Option<Object>>(), 96);
    }

    #[test]
    fn moment_converts_to_the_same_tick() {
        for ms in [0, 1, 0xffff, 0x1_0000, 0x1234_5678_9abc, (1 << 48) - 1] {
            assert_eq!(Moment::of(Tick(ms)).tick(), Tick(ms));
        }
        assert_eq!(Moment::of(Tick(u64::MAX)).tick(), Tick((1 << 48) - 1));
    }
}
