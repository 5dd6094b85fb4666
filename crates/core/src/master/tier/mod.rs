//! The tier below memory: what goes to the disks, and when.
//!
//! A disk is a member of its own, beside the memory of its node. A copy on it is a copy: named by a hold, in
//! the catalog, retired, marked and announced like any other. So a delete, a replacement or the return of a
//! node means for disks exactly what it means for memory.
//!
//! Objects are written *ahead*: those that were unused for longest, while what is free and what is on the
//! disk already is less than a share of the memory. So a put that needs room finds objects that lose nothing
//! by leaving. Only when it finds none does it wait for the disk, if it may wait at all.
//!
//! **Invariant:** a copy is in the catalog, as one that cannot be read yet, from before its disk hears of it
//! until the disk has said that there is none: so whatever takes the object away takes that copy away, too.

mod promote;
mod sketch;

use std::collections::{BTreeMap, VecDeque};

pub use promote::PROMOTER;
pub(super) use promote::{Fetching, Promotions};

use super::{
    Master, Wait,
    catalog::{NamespaceIndex, NodeIndex, Object, ObjectIndex},
    members::Standing,
};
use crate::{
    Generation, Hold, Stamp, Tick,
    extent::room_for,
    message::{Cause, DemoteItem, Demotion, Dropped, Moved, Record, Reply, Request, TierStat},
    sabotage::sabotaged,
};

/// Objects and bytes that may be on their way to one disk.
const WRITING_OBJECTS_MAX: usize = 512;
const WRITING_BYTES_MAX: u64 = 64 << 20;
/// Objects that one message sends to a disk.
const DEMOTE_ITEMS_MAX: usize = 64;
/// How long nothing is written to a disk after it failed.
const REST_MS: u64 = 1000;

/// What the operator decides about disks.
#[derive(Clone, Copy, Debug)]
pub struct TierConfig {
    /// What becomes of the objects of a namespace that has no policy of its own.
    pub demotion: Demotion,
    /// How much of a node's memory is to be free, or on its disk too, in per cent.
    pub ahead_percent: u8,
    /// What is used a second time while only a disk has it comes back into memory.
    pub promote_on_hit: bool,
    /// How long what was brought back is kept from eviction, or until it is read.
    pub protect_ms: u64,
    /// How long a disk whose connection is closed is waited for, before it is lost.
    pub away_ms_max: u64,
    /// Which prefetches may run.
    pub throttle: tiffin_throttle::Config,
}

impl Default for TierConfig {
    fn default() -> Self {
        Self {
            demotion: Demotion::OnPressure,
            ahead_percent: 25,
            promote_on_hit: true,
            protect_ms: 5_000,
            away_ms_max: 3_600_000,
            throttle: tiffin_throttle::Config::default(),
        }
    }
}

/// What is on its way to one disk.
#[derive(Debug, Default)]
struct Writing {
    objects: usize,
    bytes: u64,
    /// Nothing is written before then: the disk failed.
    rest_until: Tick,
}

/// An object on its way to a disk: which, and where it will lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    index: ObjectIndex,
    generation: Generation,
    hold: Hold,
    len: u64,
}

/// The state of the tier.
#[derive(Debug)]
pub(super) struct Tier {
    pub(super) config: TierConfig,
    writing: BTreeMap<NodeIndex, Writing>,
    /// What is to be written through, by memory, the oldest first.
    eager: BTreeMap<NodeIndex, VecDeque<(ObjectIndex, Generation)>>,
    /// Something changed that may call for writing ahead.
    stirred: bool,
    pub(super) promotions: Promotions,
    pub(super) stat: TierStat,
}

impl Tier {
    pub(super) fn new(config: TierConfig) -> Self {
        Self {
            config,
            writing: BTreeMap::new(),
            eager: BTreeMap::new(),
            stirred: false,
            promotions: Promotions::new(config.throttle),
            stat: TierStat::default(),
        }
    }

    /// Something changed that may call for writing ahead.
    pub(super) fn stir(&mut self) {
        self.stirred = true;
    }

    /// When a disk has rested enough.
    pub(super) fn next_end_of_rest(&self, now: Tick) -> Option<Tick> {
        self.writing.values().map(|it| it.rest_until).filter(|it| *it > now).min()
    }
}

impl Master {
    /// An object has its name: perhaps it is to be written through.
    pub(super) fn maybe_write_through(&mut self, index: ObjectIndex) {
        let Some(object) = self.catalog.get(index) else { return };
        if self.demotion(object.namespace()) == Demotion::WriteThrough && may_be_shelved(object) {
            let homes = object.in_memory().map(|(node, _)| node);
            let home = homes.into_iter().find(|node| self.disks_beside(*node).next().is_some());
            if let Some(home) = home {
                let entry = (index, object.generation());
                self.tier.eager.entry(home).or_default().push_back(entry);
            }
        }
        self.tier.stir();
    }

    /// Writes ahead, if anything changed that calls for it.
    pub(super) fn shelve_ahead(&mut self) {
        if std::mem::take(&mut self.tier.stirred) {
            let disks: Vec<_> = self.members.disks().collect();
            disks.into_iter().for_each(|(disk, node)| while self.shelve_some(disk, node) {});
        }
    }

    /// Lets time pass: a disk may have rested enough.
    pub(super) fn end_rests(&mut self) {
        let now = self.now;
        let rested =
            self.tier.writing.values_mut().filter(|it| it.rest_until > Tick(0) && it.rest_until <= now);
        let mut any = false;
        rested.for_each(|it| (it.rest_until, any) = (Tick(0), true));
        if any {
            self.tier.stir();
        }
    }

    /// Whether room on that node is about to come from its disk, so that it pays to wait.
    pub(super) fn is_being_shelved(&mut self, node: NodeIndex) -> bool {
        self.tier.stir();
        self.shelve_ahead();
        let disks: Vec<_> = self.disks_beside(node).collect();
        disks.iter().any(|disk| self.tier.writing.get(disk).is_some_and(|it| it.objects > 0))
    }

    /// Whether what leaves that memory might have gone to a disk.
    pub(super) fn is_beside_a_disk(&self, node: NodeIndex) -> bool {
        self.disks_beside(node).next().is_some()
    }

    /// The disks beside a memory that can be written to now.
    fn disks_beside(&self, node: NodeIndex) -> impl Iterator<Item = NodeIndex> + '_ {
        let ready = |disk: NodeIndex| self.members.get(disk).is_some_and(|it| it.standing == Standing::Ready);
        let disks = self.members.disks().filter(move |(disk, beside)| *beside == node && ready(*disk));
        disks.map(|(disk, _)| disk)
    }

    /// What becomes of the objects of a namespace when memory is short.
    pub(super) fn demotion(&self, namespace: NamespaceIndex) -> Demotion {
        let own = self.room.policy(namespace).and_then(|it| it.demotion);
        own.unwrap_or(self.tier.config.demotion)
    }

    /// Sends one message with objects to a disk; `false` if there is nothing to send.
    fn shelve_some(&mut self, disk: NodeIndex, node: NodeIndex) -> bool {
        let ready = |it: NodeIndex| self.members.get(it).is_some_and(|it| it.standing == Standing::Ready);
        let rests = self.tier.writing.get(&disk).is_some_and(|it| it.rest_until > self.now);
        if !ready(disk) || !ready(node) || rests {
            return false;
        }
        let (mut items, mut leaving) = (Vec::new(), Vec::new());
        while items.len() < DEMOTE_ITEMS_MAX {
            let Some(index) = self.next_to_shelve(disk, node) else { break };
            let Some((item, entry)) = self.begin_demotion(index, disk, node) else { break };
            items.push(item);
            leaving.push(entry);
        }
        let any = !items.is_empty();
        if any {
            // A ready disk is connected, so this cannot fail.
            self.ask(disk, Request::Demote(items), Wait::Demote(leaving));
        }
        any
    }

    /// The next object to go from a memory to its disk, if there is any need.
    fn next_to_shelve(&mut self, disk: NodeIndex, node: NodeIndex) -> Option<ObjectIndex> {
        let writing = self.tier.writing.entry(disk).or_default();
        if writing.objects >= WRITING_OBJECTS_MAX || writing.bytes >= WRITING_BYTES_MAX {
            return None;
        }
        while let Some((index, generation)) = self.tier.eager.get_mut(&node).and_then(VecDeque::pop_front) {
            let object = self.catalog.get(index).filter(|it| it.generation() == generation);
            if object.is_some_and(|it| may_be_shelved(it) && it.in_memory().any(|(on, _)| on == node)) {
                return Some(index);
            }
        }
        let member = self.members.get(node)?;
        let ahead = member.usage.capacity / 100 * u64::from(self.tier.config.ahead_percent);
        if member.free.saturating_add(self.catalog.shelved_room(node)) >= ahead {
            return None;
        }
        let capacity = self.members.get(disk)?.usage.capacity;
        self.catalog.next_to_shelve(
            node,
            WRITING_OBJECTS_MAX * 2,
            |namespace| self.demotion(namespace) != Demotion::Never,
            // What a pin keeps in memory makes no room by being on a disk.
            |object| may_be_shelved(object) && !object.hard_pin() && object.len() < capacity / 2,
        )
    }

    fn begin_demotion(
        &mut self,
        index: ObjectIndex,
        disk: NodeIndex,
        node: NodeIndex,
    ) -> Option<(DemoteItem, Leaving)> {
        let object = self.catalog.get(index)?;
        let (_, source) = object.in_memory().find(|(on, _)| *on == node)?;
        let (generation, len) = (object.generation(), object.len());
        let member = self.members.get_mut(disk)?;
        let hold = Hold::on_disk(Stamp(member.next_stamp));
        member.next_stamp += 1;
        let item = DemoteItem { source, record: self.record(index, hold)? };
        if !sabotaged!(self.config.sabotage, ShelveUnseen) {
            self.catalog.add_pending(index, disk, hold);
        }
        let writing = self.tier.writing.entry(disk).or_default();
        (writing.objects, writing.bytes) = (writing.objects + 1, writing.bytes + len);
        Some((item, Leaving { index, generation, hold, len }))
    }

    /// What a node needs to know to hold a copy of an object.
    fn record(&self, index: ObjectIndex, hold: Hold) -> Option<Record> {
        let object = self.catalog.get(index)?;
        Some(Record {
            hold,
            namespace: self.catalog.namespace_name(object.namespace()).to_owned(),
            key: object.key().clone(),
            generation: object.generation(),
            len: object.len(),
            marks: object.marks().cloned().unwrap_or_default(),
        })
    }

    /// A disk has written objects down, or not.
    pub(super) fn demoted(&mut self, disk: NodeIndex, leaving: &[Leaving], moved: &Moved) {
        let mut done = moved.items.iter().copied();
        for it in leaving {
            let done = done.next().unwrap_or(false);
            let writing = self.tier.writing.entry(disk).or_default();
            (writing.objects, writing.bytes) =
                (writing.objects.saturating_sub(1), writing.bytes.saturating_sub(it.len));
            // What was taken away meanwhile took this copy with it.
            if self.catalog.get(it.index).is_none_or(|object| object.generation() != it.generation) {
                continue;
            }
            if !done {
                writing.rest_until = self.now.after(REST_MS);
                self.tier.stat.demotions_failed += 1;
            }
            if done {
                if sabotaged!(self.config.sabotage, ShelveUnseen) {
                    self.catalog.add_pending(it.index, disk, it.hold);
                }
                self.complete(it.index, disk, it.hold);
            } else {
                self.catalog.drop_replica(it.index, disk);
                // Where every object is to have a copy, it is tried again.
                self.maybe_write_through(it.index);
            }
        }
        self.tier.stir();
        self.room.note_change();
    }

    /// A copy on a disk can be read from now on.
    fn complete(&mut self, index: ObjectIndex, disk: NodeIndex, hold: Hold) {
        if self.catalog.complete(index, disk, hold) {
            self.tier.stat.demoted_objects += 1;
            self.tier.stat.demoted_bytes += self.catalog.get(index).map_or(0, Object::len);
        }
    }

    /// A disk is gone for now. What was on its way there it tells of when it is back, or it does not have it.
    pub(super) fn disk_away(&mut self, disk: NodeIndex) {
        self.tier.writing.remove(&disk);
    }

    /// A disk no longer has copies, and nobody asked it to let go of them.
    pub(super) fn dropped(&mut self, disk: NodeIndex, dropped: &Dropped) -> Reply {
        self.hear(disk);
        self.report(disk, dropped.usage);
        let count = dropped.items.len() as u64;
        match dropped.corrupt {
            true => self.tier.stat.disk_corrupt += count,
            false => self.tier.stat.disk_evicted += count,
        }
        for record in &dropped.items {
            self.ghosts.lay(disk, record.hold);
            let namespace = self.catalog.intern(&record.namespace);
            let index = self.catalog.find(namespace, &record.key);
            let is_it = |it: &ObjectIndex| {
                let object = self.catalog.get(*it);
                object.is_some_and(|it| it.replicas().any(|it| it == (disk, record.hold)))
            };
            if let Some(index) = index.filter(is_it) {
                self.lose_copy(index, disk, Cause::Evicted);
            }
        }
        self.tier.stir();
        Reply::Done
    }

    /// Takes an object out of the memory of one node, or of all; it stays on its disk. `false` if no disk has
    /// it that could be read.
    pub(super) fn leave_memory(&mut self, index: ObjectIndex, node: Option<NodeIndex>) -> bool {
        let Some(object) = self.catalog.get(index) else { return false };
        let readable = |disk: NodeIndex| self.members.get(disk).is_some_and(|it| it.readable());
        if !object.shelved().is_some_and(|(disk, _)| readable(disk)) {
            return false;
        }
        let leaving = object.in_memory().filter(|(on, _)| node.is_none_or(|node| node == *on));
        let leaving: Vec<_> = leaving.collect();
        let name = super::ghosts::Name { namespace: object.namespace(), key: object.key().clone() };
        let name = std::sync::Arc::new(name);
        for &(on, hold) in &leaving {
            self.catalog.drop_replica(index, on);
            self.ghosts.insert(&name, on, hold);
        }
        self.note_unread_leaves(index);
        self.retire(leaving, None);
        self.room.note_change();
        true
    }

    /// What the tier has done so far.
    pub(super) fn tier_stat(&self) -> TierStat {
        TierStat { shelved: self.members.disk_objects(), ..self.tier.stat }
    }
}

/// Whether an object may have a copy on a disk, and has none. The life of a sample is in memory.
fn may_be_shelved(object: &Object) -> bool {
    !object.is_sample() && !object.is_or_will_be_shelved() && room_for(object.len()).is_some()
}
