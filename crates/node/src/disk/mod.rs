//! The state machine of one disk: which copies it has, and which of them are valid.
//!
//! A disk belongs to a node and is a member of its own. It registers at the master, announces its copies,
//! and receives requests to write, read and forget copies. Its shell keeps the bytes in a log, and reports
//! when a write or a removal is *durable*, so that it survives a crash.
//!
//! **Invariant:** a copy is announced and read only after it is durable.
//! **Invariant:** the removal of a copy is confirmed only after it is durable, whatever the state of the
//! copy was.
//! **Invariant:** a disk announces its copies to a master only after all its writes have ended. Another
//! epoch of the master does not know these writes, and could not retire them.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tiffin_types::{
    ClusterId, RequestId, SegmentId, SlotRef, Stamp,
    attributes::Attributes,
    message::{
        Announce, Dropped, Heartbeat, MasterToMember, MemberReply, MemberToMaster, Moved, NodeInfo, Reason,
        Record, Refusal, Register, Registered, Reply, Settled, Usage, Views, wrong_direction,
    },
    mutant::{Mutant, is_mutant},
};

use crate::serves;

/// Copies per announcement.
const ANNOUNCE_ITEMS_MAX: usize = 1024;
/// Maximum number of bytes of names on a page: keys may be long, messages are bounded.
const ANNOUNCE_BYTES_MAX: usize = ANNOUNCE_ITEMS_MAX << 10;

/// The parameters of a disk.
#[derive(Clone, Copy, Debug)]
pub struct DiskConfig {
    /// Its id, drawn at random when it was first used.
    pub segment: SegmentId,
    /// The epoch of the master that it last belonged to; zero if none.
    pub epoch: u64,
    /// The instance number of that master, see [`Registered::instance`].
    pub instance: u64,
    /// The cluster that it belongs to; zero if it is not known.
    pub cluster: ClusterId,
    /// No stamp from this one on was used.
    pub stamps: u64,
    /// For the simulation only.
    pub mutant: Mutant,
}

/// An input of the disk.
#[derive(Clone, Debug)]
pub enum Event {
    /// The master accepted the connection; the disk must register.
    Linked(NodeInfo),
    /// The connection to the master is broken.
    Unlinked,
    /// A request of the master.
    MasterRequest(RequestId, MasterToMember),
    /// A reply of the master.
    MasterReply(RequestId, Reply),
    /// A heartbeat is due.
    Beat,
    /// A copy is durable, or could not be written and does not exist.
    Stored(Stamp, bool),
    /// The log works, but rejects a copy of that size. The number is the largest size that it accepts now.
    Refused(Stamp, u64),
    /// The removal of copies is durable.
    Forgotten(Vec<Stamp>),
    /// Other attributes are stored with a copy, or could not be.
    AttributesSet(Stamp, bool),
    /// A copy was read into memory, or could not be. The hold is the reservation that it was read into.
    Loaded(SlotRef, bool),
    /// The log evicted copies: their removal is durable. It never evicts a copy that is pinned, by its
    /// attributes or by those that are being written.
    Evicted(Vec<Stamp>),
    /// A copy turned out to be unreadable: its removal is durable.
    Corrupt(Stamp),
}

/// An action for the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write an object of the node's memory to the log, and pass in [`Event::Stored`]. The bytes are read
    /// between [`begin_demotion`](crate::Node::begin_demotion) and
    /// [`end_demotion`](crate::Node::end_demotion).
    Store {
        /// The copy in memory.
        source: SlotRef,
        /// Its description; the stamp of its hold identifies the copy on the disk.
        record: Record,
    },
    /// Read a copy into a reservation of the node's memory, and pass in [`Event::Loaded`]. The bytes are
    /// written between [`begin_store`](crate::Node::begin_store), on behalf of
    /// [`ClientId::PROMOTER`](tiffin_types::ClientId::PROMOTER), and [`end_store`](crate::Node::end_store).
    Load {
        /// The copy.
        stamp: Stamp,
        /// Its bytes.
        len: u64,
        /// The destination.
        into: SlotRef,
    },
    /// Remove copies, and pass in [`Event::Forgotten`].
    Forget(Vec<Stamp>),
    /// Store other attributes with a copy, and pass in [`Event::AttributesSet`].
    SetAttributes(Stamp, Attributes),
    /// Store durably which master it serves, before any later effect.
    Epoch {
        /// The epoch of the master.
        epoch: u64,
        /// Its [`Registered::instance`].
        instance: u64,
        /// The cluster that the disk belongs to.
        cluster: ClusterId,
    },
    /// Close the connection: the master refuses the disk.
    Refused(Refusal),
    /// Close the connection: the master's epoch is not greater than the one that was served.
    RejectMaster {
        /// The greatest epoch that it has served.
        served: u64,
        /// The epoch of the master.
        offered: u64,
    },
    /// Send a request to the master.
    AskMaster(RequestId, MemberToMaster),
    /// Send a reply to the master.
    AnswerMaster(RequestId, Reply),
}

/// The state of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Writing,
    Stored,
    /// Retired; the log may still have it.
    Leaving,
}

#[derive(Debug)]
struct Copy {
    state: State,
    /// The durable record, including its attributes.
    record: Record,
    /// Attributes that are being written. One write at a time, so that it is known which ones are durable.
    attributes_in_flight: Option<Attributes>,
    /// Attributes to write next.
    next_attributes: Option<Attributes>,
}

impl Copy {
    fn new(state: State, record: Record) -> Self {
        Self { state, record, attributes_in_flight: None, next_attributes: None }
    }
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Broken,
    Registering(RequestId),
    /// The disk removes retired copies and waits for its writes, before it announces its copies from this
    /// stamp on, or becomes a member. The set has the copies that it waits for.
    Clearing(Option<Stamp>, BTreeSet<Stamp>),
    /// The request of the last announced page, and the copy where the next one begins.
    Announcing(RequestId, Option<Stamp>),
    Member,
}

/// A request of the master that waits for the log.
#[derive(Debug)]
struct Waiting {
    /// The holds that it waits for; [`Answer`] says for which event.
    left: BTreeSet<SlotRef>,
    answer: Answer,
}

#[derive(Debug)]
enum Answer {
    /// The items in order, and those that are done.
    Moved(Vec<SlotRef>, BTreeSet<SlotRef>),
    /// Copies that the disk does not have.
    Settled(Vec<SlotRef>),
    /// The same, and whether all attributes were written.
    AttributesSet(Vec<SlotRef>, bool),
}

/// The state of one disk.
#[derive(Debug)]
pub struct Disk {
    config: DiskConfig,
    copies: BTreeMap<Stamp, Copy>,
    /// Number of readable copies.
    stored: u64,
    stage: Stage,
    epoch: u64,
    instance: u64,
    cluster: ClusterId,
    next_id: u64,
    stamps: u64,
    /// The usage, as the shell last reported it.
    capacity: u64,
    used: u64,
    waiting: BTreeMap<RequestId, Waiting>,
    /// Copies that the log rejected, until the master is informed: the largest size that it accepts.
    refused: BTreeMap<SlotRef, u64>,
    effects: VecDeque<Effect>,
}

impl Disk {
    /// A disk with the copies that were found in its log.
    #[must_use]
    pub fn new(config: DiskConfig, recovered: Vec<Record>) -> Self {
        let stamps = recovered
            .iter()
            .map(|it| it.slot_ref.stamp.0.saturating_add(1))
            .max()
            .unwrap_or(0)
            .max(config.stamps);
        let copy = |record: Record| (record.slot_ref.stamp, Copy::new(State::Stored, record));
        let copies: BTreeMap<_, _> = recovered.into_iter().map(copy).collect();
        Self {
            config,
            stored: copies.len() as u64,
            copies,
            stage: Stage::Broken,
            epoch: config.epoch,
            instance: config.instance,
            cluster: config.cluster,
            next_id: 0,
            stamps,
            capacity: 0,
            used: 0,
            waiting: BTreeMap::new(),
            refused: BTreeMap::new(),
            effects: VecDeque::new(),
        }
    }

    /// The cluster that it belongs to; zero if it is not known.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Sets the usage of the log, in bytes.
    pub fn report(&mut self, capacity: u64, used: u64) {
        (self.capacity, self.used) = (capacity, used);
    }

    /// Processes one event.
    pub fn handle(&mut self, event: Event) {
        match event {
            Event::Linked(info) => self.linked(info),
            Event::Unlinked => self.stage = Stage::Broken,
            Event::MasterRequest(id, request) => self.asked(id, request),
            Event::MasterReply(id, reply) => self.answered(id, reply),
            Event::Beat => self.beat(),
            Event::Stored(stamp, done) => self.stored(stamp, done),
            Event::Refused(stamp, bytes_max) => self.refused(stamp, bytes_max),
            Event::Forgotten(stamps) => self.forgotten(&stamps),
            Event::AttributesSet(stamp, done) => self.attributes_set(stamp, done),
            Event::Loaded(into, done) => self.end_moves(into, done),
            Event::Evicted(stamps) => self.dropped(&stamps, false),
            Event::Corrupt(stamp) => self.dropped(&[stamp], true),
        }
    }

    /// The next effect, oldest first.
    #[must_use]
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Whether the master has accepted everything that this disk announced.
    #[must_use]
    pub fn is_member(&self) -> bool {
        matches!(self.stage, Stage::Member)
    }

    /// The usage of the disk.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let (capacity, committed) = (self.capacity, self.used);
        let free = capacity.saturating_sub(committed);
        Usage { capacity, free, committed, objects: self.stored, ..Usage::default() }
    }

    /// Every copy that can be read.
    #[must_use]
    pub fn inventory(&self) -> Vec<Record> {
        let stored = self.copies.values().filter(|it| it.state == State::Stored);
        stored.map(|it| it.record.clone()).collect()
    }

    /// The length of a copy, if it can be read. `cached_epoch` is the epoch of a reader with a cached
    /// location. The shell calls this before and after it reads the bytes: they are valid only if both
    /// results are equal.
    #[must_use]
    pub fn readable(&self, stamp: Stamp, cached_epoch: Option<u64>) -> Option<u64> {
        let is_valid = cached_epoch.is_none_or(|epoch| self.is_member() && epoch == self.epoch);
        let copy = self.copies.get(&stamp).filter(|it| it.state == State::Stored && is_valid)?;
        Some(copy.record.len)
    }

    /// The namespace of a copy.
    #[must_use]
    pub fn namespace_of(&self, stamp: Stamp) -> Option<&str> {
        self.copies.get(&stamp).map(|it| it.record.namespace.as_str())
    }

    fn linked(&mut self, info: NodeInfo) {
        // No caller waits for the requests of the old connection.
        self.waiting.clear();
        let id = self.next_id();
        self.stage = Stage::Registering(id);
        let &mut Self { epoch, instance, stamps, cluster, .. } = self;
        let register = Register { info, usage: self.usage(), epoch, instance, stamps, cluster };
        self.effects.push_back(Effect::AskMaster(id, MemberToMaster::Register(Box::new(register))));
    }

    fn asked(&mut self, id: RequestId, request: MasterToMember) {
        let reply = match request {
            MasterToMember::Demote(items) => {
                let order: Vec<_> = items.iter().map(|it| it.record.slot_ref).collect();
                let mut left = BTreeSet::new();
                for item in items {
                    left.extend(self.store(item.source, item.record));
                }
                let mut done = BTreeSet::new();
                if is_mutant!(self.config.mutant, FreeBeforeDemoted) {
                    std::mem::swap(&mut left, &mut done);
                }
                return self.wait(id, left, Answer::Moved(order, done));
            }
            MasterToMember::Promote(items) => {
                let order: Vec<_> = items.iter().map(|it| it.into).collect();
                let mut left = BTreeSet::new();
                for item in items {
                    let Some(len) = self.readable(item.slot_ref.stamp, None) else { continue };
                    left.insert(item.into);
                    self.effects.push_back(Effect::Load { stamp: item.slot_ref.stamp, len, into: item.into });
                }
                return self.wait(id, left, Answer::Moved(order, BTreeSet::new()));
            }
            MasterToMember::Retire(retire) => {
                let left = self.retire(&retire.slot_refs);
                return self.wait(id, left, Answer::Settled(Vec::new()));
            }
            MasterToMember::SetAttributes(items) => {
                let (mut left, mut lost) = (BTreeSet::new(), Vec::new());
                for item in items {
                    match self.copies.get_mut(&item.slot_ref.stamp).filter(|it| it.state != State::Leaving) {
                        None => lost.push(item.slot_ref),
                        Some(copy) => {
                            copy.next_attributes = Some(item.attributes);
                            left.insert(item.slot_ref);
                            self.write_attributes(item.slot_ref.stamp);
                        }
                    }
                }
                if is_mutant!(self.config.mutant, ConfirmAttributesEarly) {
                    left.clear();
                }
                return self.wait(id, left, Answer::AttributesSet(lost, true));
            }
            MasterToMember::Inspect(slot_refs) => Reply::Inspected(vec![Views::default(); slot_refs.len()]),
            MasterToMember::ClientGone(_) => Reply::Done,
            MasterToMember::Allocate(_)
            | MasterToMember::Settle(_)
            | MasterToMember::Fetch(_)
            | MasterToMember::Drain(_) => wrong_direction("a disk"),
        };
        self.effects.push_back(Effect::AnswerMaster(id, reply));
    }

    /// Starts to write a copy. Returns its hold, or `None` if the copy already exists.
    fn store(&mut self, source: SlotRef, record: Record) -> Option<SlotRef> {
        let slot_ref = record.slot_ref;
        self.stamps = self.stamps.max(slot_ref.stamp.0.saturating_add(1));
        if !slot_ref.is_on_disk() || self.copies.contains_key(&slot_ref.stamp) {
            return None;
        }
        self.copies.insert(slot_ref.stamp, Copy::new(State::Writing, record.clone()));
        self.effects.push_back(Effect::Store { source, record });
        Some(slot_ref)
    }

    /// Starts to remove copies. Returns those whose removal is not durable yet.
    fn retire(&mut self, slot_refs: &[SlotRef]) -> BTreeSet<SlotRef> {
        let (mut left, mut now) = (BTreeSet::new(), Vec::new());
        for &slot_ref in slot_refs {
            let Some(copy) = self.copies.get_mut(&slot_ref.stamp) else { continue };
            left.insert(slot_ref);
            match copy.state {
                State::Leaving => continue,
                // It is removed after it is written.
                State::Writing => (),
                State::Stored => {
                    self.stored -= 1;
                    now.push(slot_ref.stamp);
                }
            }
            copy.state = State::Leaving;
        }
        if !now.is_empty() {
            self.effects.push_back(Effect::Forget(now));
        }
        if is_mutant!(self.config.mutant, ForgetLater) {
            left.clear();
        }
        left
    }

    fn wait(&mut self, id: RequestId, left: BTreeSet<SlotRef>, answer: Answer) {
        self.waiting.insert(id, Waiting { left, answer });
        self.maybe_answer(id);
    }

    fn maybe_answer(&mut self, id: RequestId) {
        if self.waiting.get(&id).is_none_or(|it| !it.left.is_empty()) {
            return;
        }
        let Some(waiting) = self.waiting.remove(&id) else { return };
        let usage = self.usage();
        let reply = match waiting.answer {
            Answer::Moved(order, done) => {
                let mut bytes_max: Vec<u64> =
                    order.iter().map(|it| self.refused.remove(it).unwrap_or(0)).collect();
                if bytes_max.iter().all(|it| *it == 0) {
                    bytes_max.clear();
                }
                let items = order.iter().map(|it| done.contains(it)).collect();
                Reply::Moved(Moved { items, usage, bytes_max })
            }
            Answer::Settled(lost) | Answer::AttributesSet(lost, true) => {
                Reply::Settled(Settled { lost, usage, also: Vec::new() })
            }
            Answer::AttributesSet(_, false) => {
                let message = "the disk could not write object attributes".to_owned();
                Reply::Refused(Refusal { reason: Reason::Busy, message })
            }
        };
        self.effects.push_back(Effect::AnswerMaster(id, reply));
    }

    /// Writes the next attributes, if the copy is stored and no other attributes are being written.
    fn write_attributes(&mut self, stamp: Stamp) {
        let copy = self
            .copies
            .get_mut(&stamp)
            .filter(|it| it.state == State::Stored && it.attributes_in_flight.is_none());
        let Some(copy) = copy else { return };
        if let Some(attributes) = copy.next_attributes.take() {
            copy.attributes_in_flight = Some(attributes.clone());
            self.effects.push_back(Effect::SetAttributes(stamp, attributes));
        }
    }

    /// A copy was written or read, or could not be. Requests that wait for another event of it continue to
    /// wait.
    fn end_moves(&mut self, slot_ref: SlotRef, done: bool) {
        self.end_some(slot_ref, |answer| match answer {
            Answer::Moved(_, all) => {
                if done {
                    all.insert(slot_ref);
                }
                true
            }
            Answer::Settled(_) | Answer::AttributesSet(..) => false,
        });
    }

    /// The attributes of a copy are durable, or could not be written.
    fn end_attributes(&mut self, slot_ref: SlotRef, done: bool) {
        self.end_some(slot_ref, |answer| match answer {
            Answer::AttributesSet(_, all) => {
                *all &= done;
                true
            }
            Answer::Moved(..) | Answer::Settled(_) => false,
        });
    }

    /// The removal of a copy is durable: this ends every wait for it.
    fn end_all(&mut self, slot_ref: SlotRef) {
        // A request that still waits for other copies must not report this one as done.
        for it in self.waiting.values_mut() {
            if let Answer::Moved(_, done) = &mut it.answer {
                done.remove(&slot_ref);
            }
        }
        self.end_some(slot_ref, |answer| {
            if let Answer::AttributesSet(lost, _) = answer {
                lost.push(slot_ref);
            }
            true
        });
    }

    /// Sends the replies of requests that have nothing left to wait for.
    fn end_some(&mut self, slot_ref: SlotRef, mut ends: impl FnMut(&mut Answer) -> bool) {
        let mut ended = Vec::new();
        for (id, it) in &mut self.waiting {
            if it.left.contains(&slot_ref) && ends(&mut it.answer) {
                it.left.remove(&slot_ref);
                ended.push(*id);
            }
        }
        ended.into_iter().for_each(|id| self.maybe_answer(id));
    }

    fn stored(&mut self, stamp: Stamp, done: bool) {
        let slot_ref = SlotRef::on_disk(stamp);
        let Some(copy) = self.copies.get_mut(&stamp) else { return };
        match (copy.state, done) {
            // It was retired while it was written.
            (State::Leaving, true) => {
                self.end_moves(slot_ref, false);
                self.effects.push_back(Effect::Forget(vec![stamp]));
            }
            (State::Writing, true) => {
                copy.state = State::Stored;
                self.stored += 1;
                self.cleared(stamp);
                // Attributes may have arrived meanwhile; requests for them continue to wait.
                self.write_attributes(stamp);
                self.end_moves(slot_ref, true);
                self.go_on();
            }
            (State::Stored, _) => (),
            (_, false) => {
                self.remove(stamp);
                self.end_all(slot_ref);
                self.go_on();
            }
        }
    }

    fn refused(&mut self, stamp: Stamp, bytes_max: u64) {
        let slot_ref = SlotRef::on_disk(stamp);
        let asked = self
            .waiting
            .values()
            .any(|it| matches!(it.answer, Answer::Moved(..)) && it.left.contains(&slot_ref));
        if asked {
            self.refused.insert(slot_ref, bytes_max.max(1));
        }
        self.stored(stamp, false);
    }

    fn forgotten(&mut self, stamps: &[Stamp]) {
        for stamp in stamps {
            self.remove(*stamp);
            self.end_all(SlotRef::on_disk(*stamp));
        }
        self.go_on();
    }

    fn remove(&mut self, stamp: Stamp) -> Option<Copy> {
        self.cleared(stamp);
        let copy = self.copies.remove(&stamp)?;
        self.stored -= u64::from(copy.state == State::Stored);
        Some(copy)
    }

    /// The disk no longer waits for this copy.
    fn cleared(&mut self, stamp: Stamp) {
        if let Stage::Clearing(_, on) = &mut self.stage {
            on.remove(&stamp);
        }
    }

    fn attributes_set(&mut self, stamp: Stamp, done: bool) {
        let Some(copy) = self.copies.get_mut(&stamp) else { return };
        let written = copy.attributes_in_flight.take();
        if let Some(attributes) = written.filter(|_| done) {
            copy.record.attributes = attributes;
        }
        match (copy.state, copy.next_attributes.is_some()) {
            // A request for the first of several changes waits for the last.
            (State::Stored, true) => self.write_attributes(stamp),
            (State::Stored, false) => self.end_attributes(SlotRef::on_disk(stamp), done),
            // It is being removed; that ends every wait.
            (State::Writing | State::Leaving, _) => (),
        }
    }

    /// The log has dropped copies by itself.
    fn dropped(&mut self, stamps: &[Stamp], corrupt: bool) {
        let mut items = Vec::new();
        for stamp in stamps {
            let Some(copy) = self.remove(*stamp) else { continue };
            self.end_all(SlotRef::on_disk(*stamp));
            if copy.state == State::Stored {
                items.push(copy.record);
            }
        }
        // Copies that were not announced yet need not be reported, but may be.
        let tells = matches!(self.stage, Stage::Clearing(..) | Stage::Announcing(..) | Stage::Member);
        if !items.is_empty() && tells {
            let dropped = Dropped { items, corrupt, usage: self.usage() };
            self.notify(MemberToMaster::Dropped(dropped));
        }
        self.go_on();
    }

    fn answered(&mut self, id: RequestId, reply: Reply) {
        let Some(reply) = MemberReply::new(reply) else { return };
        match (&self.stage, reply) {
            (Stage::Registering(asked), MemberReply::Registered(registered)) if *asked == id => {
                self.registered(&registered);
            }
            // It keeps everything it holds.
            (Stage::Registering(asked), MemberReply::Refused(refusal)) if *asked == id => {
                self.stage = Stage::Broken;
                self.effects.push_back(Effect::Refused(refusal));
            }
            (Stage::Announcing(asked, next), MemberReply::Announced(announced)) if *asked == id => {
                // If there are more retires, the next page is empty.
                let next = next.or(announced.more.then_some(Stamp(u64::MAX)));
                let left = self.retire(&announced.retire);
                self.stage = Stage::Clearing(next, left.iter().map(|it| it.stamp).collect());
                self.go_on();
            }
            // The reply of a request that the disk has forgotten since.
            (_, MemberReply::Registered(_) | MemberReply::Announced(_)) => (),
            // A master that refuses an announcement also closes the connection.
            (_, MemberReply::Refused(_)) => (),
            // Heartbeats and reports have no result, and a disk prepares nothing.
            (_, MemberReply::Done | MemberReply::Decided(_)) => (),
        }
    }

    fn registered(&mut self, registered: &Registered) {
        if !serves(self.config.mutant, (self.epoch, self.instance), registered) {
            self.stage = Stage::Broken;
            let (served, offered) = (self.epoch, registered.epoch);
            return self.effects.push_back(Effect::RejectMaster { served, offered });
        }
        (self.epoch, self.instance) = (registered.epoch, registered.instance);
        self.cluster = registered.cluster.known().unwrap_or(self.cluster);
        let &mut Self { epoch, instance, cluster, .. } = self;
        self.effects.push_back(Effect::Epoch { epoch, instance, cluster });
        self.retire(&registered.retire);
        if registered.discard {
            let all: Vec<_> = self.copies.keys().map(|stamp| SlotRef::on_disk(*stamp)).collect();
            self.retire(&all);
        }
        let under_way = self.copies.iter().filter(|(_, it)| it.state != State::Stored);
        let under_way = under_way.filter(|_| !is_mutant!(self.config.mutant, ForgetLater));
        let under_way = under_way
            .filter(|(_, it)| it.state == State::Leaving || !is_mutant!(self.config.mutant, AnnounceTooSoon));
        self.stage = Stage::Clearing(Some(Stamp(0)), under_way.map(|(stamp, _)| *stamp).collect());
        self.go_on();
    }

    /// Continues to join once all retired copies are removed: whatever the disk sends next implies that.
    fn go_on(&mut self) {
        match &self.stage {
            Stage::Clearing(Some(first), on) if on.is_empty() => self.announce(*first),
            Stage::Clearing(None, on) if on.is_empty() => self.stage = Stage::Member,
            _ => (),
        }
    }

    fn announce(&mut self, first: Stamp) {
        let (mut items, mut bytes, mut next) = (Vec::new(), 0, None);
        for (stamp, copy) in self.copies.range(first..).filter(|(_, it)| it.state == State::Stored) {
            if items.len() >= ANNOUNCE_ITEMS_MAX || bytes >= ANNOUNCE_BYTES_MAX {
                next = Some(*stamp);
                break;
            }
            bytes += copy.record.key.as_bytes().len() + copy.record.attributes.to_bytes().len();
            items.push(copy.record.clone());
        }
        let id = self.next_id();
        self.stage = Stage::Announcing(id, next);
        let announce = Announce { items, last: next.is_none() };
        self.effects.push_back(Effect::AskMaster(id, MemberToMaster::Announce(announce)));
    }

    fn beat(&mut self) {
        if self.is_member() {
            let beat = Heartbeat { usage: self.usage(), ..Heartbeat::default() };
            self.notify(MemberToMaster::Heartbeat(Box::new(beat)));
        }
    }

    fn notify(&mut self, request: MemberToMaster) {
        let id = self.next_id();
        self.effects.push_back(Effect::AskMaster(id, request));
    }

    fn next_id(&mut self) -> RequestId {
        self.next_id += 1;
        RequestId(self.next_id)
    }
}
