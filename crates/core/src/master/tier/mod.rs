//! The tier below memory: what goes to the disks, and when.
//!
//! A disk is a member of its own, beside the memory of its node. A copy on it is a copy: named by a hold, in
//! the catalog, retired, marked and announced like any other. So a delete, a replacement or the return of a
//! node means for disks exactly what it means for memory.
//!
//! Objects are written *ahead*: those that were unused for longest, while what is free and what is on the
//! disk already, or on its way there, is less than a share of the memory. So a put that needs room finds
//! objects that lose nothing by leaving. Only when it finds none does it wait for the disk, if it may wait at
//! all, and then as much is written as it needs.
//!
//! **Invariant:** a copy on a disk has a stamp that no other copy on any disk has, or ever had: it says which
//! life of the master gave it.
//! **Invariant:** a copy is in the catalog, as one that cannot be read yet, from before its disk hears of it
//! until the disk has said that there is none: so whatever takes the object away takes that copy away, too.

mod promote;
mod sketch;

use std::collections::{BTreeMap, VecDeque};

pub use promote::PROMOTER;
pub(super) use promote::{Fetching, PromotionId, Promotions};

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
/// How many bits a life of the master has for its stamps, at most.
const STAMP_BITS_MAX: u32 = 40;
/// How long nothing is written to a disk after it failed.
const REST_MS: u64 = 1000;
/// The same, if it may only be that the memory beside it has not heard yet of what was put there.
const RETRY_MS: u64 = 20;

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
    /// The room of these objects in memory.
    room: u64,
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
    /// Room on each node that was on its disk too, and went to what came back: it stays there while it is
    /// used, so as much must be written ahead anew, or soon nothing more could come back.
    spent: BTreeMap<NodeIndex, u64>,
    /// Something changed that may call for writing ahead.
    stirred: bool,
    /// The stamp of the next copy on a disk.
    next_stamp: u64,
    pub(super) promotions: Promotions,
    pub(super) stat: TierStat,
}

impl Tier {
    pub(super) fn new(config: TierConfig, epoch: u64) -> Self {
        Self {
            config,
            writing: BTreeMap::new(),
            eager: BTreeMap::new(),
            spent: BTreeMap::new(),
            stirred: false,
            next_stamp: first_stamp(epoch),
            promotions: Promotions::new(config.throttle),
            stat: TierStat::default(),
        }
    }

    /// Something changed that may call for writing ahead.
    pub(super) fn stir(&mut self) {
        self.stirred = true;
    }

    /// How many objects are on their way between memory and disks.
    pub(super) fn moving_count(&self) -> usize {
        self.promotions.running_count() + self.writing.values().map(|it| it.objects).sum::<usize>()
    }

    /// A node or disk is lost, and its number will be another's.
    pub(super) fn forget(&mut self, node: NodeIndex) {
        self.writing.remove(&node);
        self.eager.remove(&node);
        self.spent.remove(&node);
    }

    /// Room that was on a disk too went to what comes back.
    fn spend(&mut self, node: NodeIndex, room: u64) {
        *self.spent.entry(node).or_default() += room;
        self.stir();
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
        if self.demotion(object.namespace()) == Demotion::WriteThrough && !object.is_sample() {
            let mut homes = object.in_memory().map(|(node, _)| node);
            let home = homes.find(|node| self.members.disks().any(|(_, beside)| beside == *node));
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
            disks.into_iter().for_each(|(disk, node)| while self.shelve_some(disk, node, 0) {});
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

    /// Whether so much room on that node is about to come from its disk, so that it pays to wait.
    pub(super) fn is_being_shelved(&mut self, node: NodeIndex, need: u64) -> bool {
        let short = need.saturating_sub(self.members.get(node).map_or(0, |it| it.free));
        let disks: Vec<_> = self.disks_beside(node).collect();
        disks.iter().for_each(|disk| while self.shelve_some(*disk, node, short) {});
        disks.iter().any(|disk| self.tier.writing.get(disk).is_some_and(|it| it.objects > 0))
    }

    /// Writes objects of a namespace that has nearly all it may have, so much room of them: then they lose
    /// nothing by leaving. Whether anything is on its way to a disk then, so that it pays to wait.
    pub(super) fn shelve_of(&mut self, namespace: NamespaceIndex, room: u64) -> bool {
        if self.demotion(namespace) == Demotion::Never {
            return false;
        }
        let disks: Vec<_> = self.members.disks().collect();
        let under_way = |tier: &Tier| tier.writing.values().map(|it| it.room).sum::<u64>();
        for (disk, node) in disks {
            if !self.may_write(disk, node) {
                continue;
            }
            let (mut items, mut leaving) = (Vec::new(), Vec::new());
            while under_way(&self.tier) < room && items.len() < DEMOTE_ITEMS_MAX && !self.is_busy(disk) {
                let next = self.catalog.next_to_shelve(
                    node,
                    WRITING_OBJECTS_MAX * 2,
                    |it| it == namespace,
                    |object| self.may_be_shelved(object, disk) && !object.hard_pin(),
                );
                let Some((item, entry)) = next.and_then(|it| self.begin_demotion(it, disk, node)) else {
                    break;
                };
                items.push(item);
                leaving.push(entry);
            }
            if !items.is_empty() {
                self.demote(disk, node, items, leaving);
            }
        }
        under_way(&self.tier) > 0
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

    /// Whether objects may go from that memory to that disk now.
    fn may_write(&self, disk: NodeIndex, node: NodeIndex) -> bool {
        let ready = |it: NodeIndex| self.members.get(it).is_some_and(|it| it.standing == Standing::Ready);
        let rests = self.tier.writing.get(&disk).is_some_and(|it| it.rest_until > self.now);
        ready(disk) && ready(node) && !rests
    }

    /// Whether a disk has as much to write as it may.
    fn is_busy(&self, disk: NodeIndex) -> bool {
        let busy = |it: &Writing| it.objects >= WRITING_OBJECTS_MAX || it.bytes >= WRITING_BYTES_MAX;
        self.tier.writing.get(&disk).is_some_and(busy)
    }

    /// Sends one message with objects to a disk; `false` if there is nothing to send. If the memory beside it
    /// is `short` of room, at least that much is to be under way.
    fn shelve_some(&mut self, disk: NodeIndex, node: NodeIndex, short: u64) -> bool {
        if !self.may_write(disk, node) {
            return false;
        }
        let (mut items, mut leaving) = (Vec::new(), Vec::new());
        while items.len() < DEMOTE_ITEMS_MAX {
            let Some(index) = self.next_to_shelve(disk, node, short) else { break };
            let Some((item, entry)) = self.begin_demotion(index, disk, node) else { break };
            items.push(item);
            leaving.push(entry);
        }
        let any = !items.is_empty();
        if any {
            self.demote(disk, node, items, leaving);
        }
        any
    }

    /// The next object to go from a memory to its disk, if there is any need.
    fn next_to_shelve(&mut self, disk: NodeIndex, node: NodeIndex, short: u64) -> Option<ObjectIndex> {
        if self.is_busy(disk) {
            return None;
        }
        let capacity = self.members.get(disk)?.usage.capacity;
        while let Some((index, generation)) = self.tier.eager.get_mut(&node).and_then(VecDeque::pop_front) {
            let object = self.catalog.get(index).filter(|it| it.generation() == generation);
            let object = object.filter(|it| self.demotion(it.namespace()) != Demotion::Never);
            if object
                .is_some_and(|it| self.may_be_shelved(it, disk) && it.in_memory().any(|(on, _)| on == node))
            {
                return Some(index);
            }
        }
        let member = self.members.get(node)?;
        // On a small disk what is written ahead would drive out what was written ahead before.
        let ahead = member.usage.capacity / 100 * u64::from(self.tier.config.ahead_percent);
        let ahead = ahead.min(capacity / 2);
        let disks = self.disks_beside(node).filter_map(|it| self.tier.writing.get(&it));
        let under_way: u64 = disks.map(|it| it.room).sum();
        let soon_free = member.free.saturating_add(self.catalog.shelved_room(node)).saturating_add(under_way);
        let spent = self.tier.spent.get(&node).map_or(0, |it| ahead.min(*it));
        if soon_free >= ahead && under_way >= short && spent == 0 {
            return None;
        }
        let next = self.catalog.next_to_shelve(
            node,
            WRITING_OBJECTS_MAX * 2,
            |namespace| {
                let never = self.demotion(namespace) == Demotion::Never;
                !never || sabotaged!(self.config.sabotage, ShelveForbidden)
            },
            // What a pin keeps in memory makes no room by being on a disk.
            |object| self.may_be_shelved(object, disk) && !object.hard_pin(),
        );
        if next.is_none() {
            self.tier.spent.remove(&node);
        }
        next
    }

    /// Whether an object may have a copy on that disk, and has none; nor on another, unless it was on its way
    /// there when that went away. The life of a sample is in memory.
    fn may_be_shelved(&self, object: &Object, disk: NodeIndex) -> bool {
        let capacity = self.members.get(disk).map_or(0, |it| it.usage.capacity);
        let is_away = |it: NodeIndex| self.members.get(it).is_none_or(|it| it.conn.is_none());
        let mut others = object.on_disks();
        !object.is_sample()
            && object.len() < capacity / 2
            && others.all(|(on, pending)| pending && on != disk && is_away(on))
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
        let hold = Hold::on_disk(Stamp(self.tier.next_stamp));
        self.tier.next_stamp += 1;
        let item = DemoteItem { source, record: self.record(index, hold)? };
        if !sabotaged!(self.config.sabotage, ShelveUnseen) {
            self.catalog.add_pending(index, disk, hold);
        }
        let writing = self.tier.writing.entry(disk).or_default();
        (writing.objects, writing.bytes) = (writing.objects + 1, writing.bytes + len);
        let room = room_for(len).unwrap_or(0);
        writing.room += room;
        if let Some(spent) = self.tier.spent.get_mut(&node) {
            *spent = spent.saturating_sub(room);
        }
        Some((item, Leaving { index, generation, hold, len }))
    }

    /// Sends objects of a memory to its disk. What is new may only be entrusted to its node, and the disk
    /// waits until that has looked.
    fn demote(&mut self, disk: NodeIndex, node: NodeIndex, items: Vec<DemoteItem>, leaving: Vec<Leaving>) {
        // A disk that may be written to is connected, so this cannot fail.
        self.ask(disk, Request::Demote(items), Wait::Demote(leaving));
        self.have_look(node);
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
            writing.room = writing.room.saturating_sub(room_for(it.len).unwrap_or(0));
            // What was taken away meanwhile took this copy with it.
            let is_it = |object: &&Object| object.replicas().any(|copy| copy == (disk, it.hold));
            let object = self.catalog.get(it.index).filter(|object| object.generation() == it.generation);
            let unseen = sabotaged!(self.config.sabotage, ShelveUnseen);
            let Some(object) = object.filter(|object| is_it(object) || unseen) else { continue };
            if !done && object.in_memory().next().is_some() {
                // The bytes were there, so it was the disk that failed, unless they are very new.
                let is_young = object.put().after(REST_MS) > self.now;
                writing.rest_until = self.now.after(if is_young { RETRY_MS } else { REST_MS });
                self.tier.stat.demotions_failed += 1;
            }
            if done {
                let is_new = |it: &Object| !it.is_on(disk);
                if sabotaged!(self.config.sabotage, ShelveUnseen)
                    && self.catalog.get(it.index).is_some_and(is_new)
                {
                    self.catalog.add_pending(it.index, disk, it.hold);
                }
                self.complete(it.index, disk, it.hold);
            } else {
                self.lose_copy(it.index, disk, Cause::NodeLost);
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
    /// Who waits for room that the disk would have made looks elsewhere.
    pub(super) fn disk_away(&mut self, disk: NodeIndex) {
        self.tier.writing.remove(&disk);
        self.room.note_change();
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

    /// Takes an object out of the memory of one node, or of all; it stays on its disk, even if that is away
    /// for now. `false` if no disk has it.
    pub(super) fn leave_memory(&mut self, index: ObjectIndex, node: Option<NodeIndex>) -> bool {
        let Some(object) = self.catalog.get(index) else { return false };
        if object.shelved().next().is_none() {
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

    /// What is wrong with the books of the tier, if anything is.
    pub(super) fn check_tier(&self) -> Result<(), String> {
        let mut under_way: BTreeMap<NodeIndex, (usize, u64)> = BTreeMap::new();
        for (disk, wait) in self.waits.values() {
            let Wait::Demote(leaving) = wait else { continue };
            let sum = under_way.entry(*disk).or_default();
            leaving.iter().for_each(|it| *sum = (sum.0 + 1, sum.1 + it.len));
        }
        let written = self.tier.writing.iter().map(|(disk, it)| (*disk, (it.objects, it.bytes)));
        let written: BTreeMap<_, _> = written.filter(|(_, it)| *it != (0, 0)).collect();
        if written != under_way {
            return Err(format!("books: {written:?} are said to be written, {under_way:?} are"));
        }
        self.check_promotions()
    }

    /// What the tier has done so far.
    pub(super) fn tier_stat(&self) -> TierStat {
        TierStat { shelved: self.members.disk_objects(), ..self.tier.stat }
    }
}

/// The first stamp of a life of the master. Lives are counted one by one, and then each has a great many; or
/// they are microseconds of a clock, and then each has several for every microsecond until the next begins.
fn first_stamp(epoch: u64) -> u64 {
    let bits = epoch.leading_zeros().saturating_sub(1).min(STAMP_BITS_MAX);
    (epoch << bits).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_have_stamps_of_their_own() {
        let today = 1_795_000_000_000_000;
        let lives = [(1, 2, 1 << 40), (8000, 8001, 1 << 40), (today, today + 1_000_000, 4_000_000)];
        for (life, next, at_least) in lives {
            assert!(first_stamp(next) - first_stamp(life) >= at_least, "{life}");
        }
        assert!(first_stamp(u64::MAX) > 0);
    }
}
