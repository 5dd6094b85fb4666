//! The slots of one segment and the room under them.
//!
//! A slot's life: `free → reserved → prepared → committed → free`, or `reserved → ending → free` where the
//! master must be asked first whether it was published. The stamp is minted when it is reserved
//! and withdrawn when it is retired; whoever still names the old stamp is told so and touches nothing.
//!
//! An *offered* slot is a reservation that its client must claim before it writes; until then the node may
//! recall it (see `Effect::Recall`). Its memory counts as free, because whatever needs it gets it.
//!
//! **Invariant:** `free + granted + committed + held + metadata = capacity`.
//! **Invariant:** room returns to the free space only after its slot's stamp was withdrawn and the last hold
//! on that use of the slot has ended.

use std::collections::{BTreeMap, VecDeque};

use super::{Effect, NodeConfig, metadata::Metadata};
use crate::{
    ClientId, Extent, Generation, Key, Location, Reservation, SlotId, SlotRef, Stamp,
    attributes::Attributes,
    extent::{FreeSpace, cut, space_for},
    message::{AllocateItem, Record, Resource, Shortage, Usage},
    sabotage::sabotaged,
};

/// Stamps are taken in runs of this many, so that the mark that must survive a restart is rarely written.
const STAMPS_PER_MARK: u64 = 1 << 16;
/// Extents that a slot holds itself; more of them spill into the heap.
pub const EXTENTS_INLINE: usize = 2;
/// The mean length of the names on a page of the inventory: keys may be long, messages may not.
const NAME_BYTES_MEAN_MAX: usize = 1 << 10;
/// The fewest offers that are recalled at a time, where something else than bytes is missing.
const RECALLS_MIN: usize = 16;
/// What one spilled extent costs in the heap.
const EXTENT_BYTES: u64 = 16;

/// How far the object in a slot has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// A client writes it.
    Reserved(ClientId),
    /// A client may claim it and then write it. The node does not know whether it has.
    Offered(ClientId),
    /// Its client is gone or does not want it, and nobody may write it. It may have been published before
    /// that, and ends when the master has had its say.
    Ending,
    /// It is written, and the master is asked.
    Prepared,
    /// It can be read. Published objects can be read before, while they are reserved.
    Committed,
}

impl SlotState {
    /// The client that may write.
    #[must_use]
    pub fn writer(self) -> Option<ClientId> {
        match self {
            Self::Reserved(client) | Self::Offered(client) => Some(client),
            Self::Ending | Self::Prepared | Self::Committed => None,
        }
    }
}

/// What the control segment says of one slot: enough to read the object, and to rebuild the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotRecord {
    /// This use of the slot.
    pub stamp: Stamp,
    /// How far it has come.
    pub state: SlotState,
    /// Which put of the key; nothing yet while reserved.
    pub generation: Generation,
    /// Its bytes.
    pub len: u64,
    /// Where they lie.
    pub extents: Vec<Extent>,
    /// Where the heap holds the spilled extents, the namespace's name and the key, one after the other.
    pub heap: Extent,
    /// Bytes of the namespace's name.
    pub namespace_len: u64,
    /// Bytes of the key.
    pub key_len: u64,
    /// Where the heap holds its marks.
    pub attributes: Extent,
    /// Never evicted.
    pub hard_pin: bool,
}

/// Who an object is.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) namespace: String,
    pub(super) key: Key,
    pub(super) attributes: Attributes,
}

#[derive(Clone, Debug)]
struct Slot {
    stamp: Stamp,
    state: SlotState,
    len: u64,
    extents: Vec<Extent>,
    heap: Extent,
    /// Room for the marks, which may change while the object lives. Readers never look there.
    attributes: Extent,
    generation: Generation,
    identity: Option<Box<Identity>>,
}

/// What became of attributes that were to be written beside an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttributesSet {
    Written,
    /// This use of the slot does not stand, or is not an object yet.
    NoObject,
    /// The heap has no space for them.
    NoSpace,
}

/// What a reservation has taken.
#[derive(Debug)]
struct Allocation {
    slot: SlotId,
    extents: Vec<Extent>,
    heap: Extent,
    attributes: Extent,
}

/// Room of an object that is gone, but that somebody still touches.
#[derive(Clone, Debug)]
struct Retired {
    extents: Vec<Extent>,
    heap: [Extent; 2],
}

/// The table. Effects are pushed in the order in which memory must change.
#[derive(Debug)]
pub(super) struct Slots {
    config: NodeConfig,
    slots: Vec<Option<Slot>>,
    space: FreeSpace,
    metadata: Metadata,
    use_counts: BTreeMap<SlotRef, u32>,
    retired: BTreeMap<SlotRef, Retired>,
    next_stamp: u64,
    stamp_high_water: u64,
    /// Slots that are offered, the oldest first.
    offers: BTreeMap<Stamp, SlotId>,
    offered: u64,
    granted: u64,
    committed: u64,
    held: u64,
    objects: u64,
    /// How often something was given back.
    freed: u64,
    /// No new object is taken.
    drains: bool,
}

impl Slots {
    pub(super) fn new(config: NodeConfig) -> Self {
        Self {
            slots: Vec::new(),
            space: FreeSpace::new(config.capacity),
            metadata: Metadata::new(&config),
            use_counts: BTreeMap::new(),
            retired: BTreeMap::new(),
            next_stamp: 1,
            stamp_high_water: 1,
            offers: BTreeMap::new(),
            offered: 0,
            granted: 0,
            committed: 0,
            held: 0,
            objects: 0,
            freed: 0,
            drains: false,
            config,
        }
    }

    pub(super) fn usage(&self) -> Usage {
        Usage {
            // The master asks no node for more than its capacity.
            capacity: if self.drains { 0 } else { self.space.capacity() },
            free: if self.drains { 0 } else { self.free() },
            granted: self.granted,
            committed: self.committed,
            held: self.held,
            objects: self.objects,
            offered: self.offered,
            metadata: self.metadata.charged(),
            // What is offered can be recalled, so anything may fit.
            name_max: self.offers.is_empty().then(|| self.metadata.name_max(&self.space)),
        }
    }

    /// How often something was given back, so that there may be more space than before.
    pub(super) fn freed(&self) -> u64 {
        self.freed
    }

    /// Bytes of the data segment that objects may not have, because records and names cost as many.
    pub(super) fn withheld(&self) -> impl Iterator<Item = Extent> + '_ {
        self.metadata.withheld()
    }

    /// Bytes that nobody uses: what idle chunks of the tables cost can be had back at any time, and
    /// so can offers.
    fn free(&self) -> u64 {
        self.space.free() + self.metadata.reclaimable() + self.offered
    }

    /// Reserves room for one replica, or offers it, in at most `pieces_max` pieces; else what is missing.
    pub(super) fn reserve(
        &mut self,
        state: SlotState,
        item: AllocateItem,
        pieces_max: usize,
        effects: &mut VecDeque<Effect>,
    ) -> Result<Reservation, Shortage> {
        if self.drains {
            let bytes = space_for(item.len).unwrap_or(u64::MAX);
            return Err(Shortage { resource: Resource::Bytes, amount: bytes, bytes, never: true });
        }
        let mut allocation = self.allocate(item, pieces_max, effects);
        if allocation.is_err() && self.metadata.reclaimable() > 0 {
            self.metadata.trim(&mut self.space);
            allocation = self.allocate(item, pieces_max, effects);
        }
        let Allocation { slot, extents, heap, attributes } = allocation?;
        let stamp = self.mint(effects);
        match state {
            SlotState::Offered(_) => {
                self.offered += space_of(&extents);
                self.offers.insert(stamp, slot);
            }
            _ => self.granted += space_of(&extents),
        }
        let reserved = Slot {
            stamp,
            state,
            len: item.len,
            extents: extents.clone(),
            heap,
            attributes,
            generation: Generation::default(),
            identity: None,
        };
        if extents.len() > EXTENTS_INLINE {
            effects.push_back(Effect::Heap { offset: heap.offset, bytes: spill(&extents) });
        }
        effects.push_back(Effect::Slot { slot, record: record(&reserved) });
        if self.slots.len() <= slot.0 as usize {
            self.slots.resize(slot.0 as usize + 1, None);
        }
        if let Some(place) = self.slots.get_mut(slot.0 as usize) {
            *place = Some(reserved);
        }
        let location = Location { segment: self.config.segment, slot, stamp };
        Ok(Reservation { location, extents })
    }

    /// Takes everything that an object needs, or nothing.
    fn allocate(
        &mut self,
        item: AllocateItem,
        pieces_max: usize,
        effects: &mut VecDeque<Effect>,
    ) -> Result<Allocation, Shortage> {
        let Some(slot) = self.metadata.take_slot(&mut self.space, effects) else {
            return Err(self.short_of(Resource::Slots, 1, item));
        };
        let Some(extents) = self.space.take(item.len, pieces_max.min(self.config.extents_max)) else {
            self.metadata.give_back_slot(slot);
            let missing = space_for(item.len).unwrap_or(u64::MAX).saturating_sub(self.space.free());
            return Err(match missing {
                0 => {
                    let amount = self.space.short_by(item.len, pieces_max.min(self.config.extents_max));
                    self.short_of(Resource::Contiguous, amount, item)
                }
                amount => self.short_of(Resource::Bytes, amount, item),
            });
        };
        let name_len = item.name_len.saturating_add(spilled_bytes(&extents));
        let heap = self.metadata.take_heap(name_len, &mut self.space, effects);
        let attributes =
            heap.and_then(|_| self.metadata.take_heap(item.attributes_len, &mut self.space, effects));
        let (Some(heap), Some(attributes)) = (heap, attributes) else {
            heap.into_iter().for_each(|extent| self.metadata.give_back_heap(extent));
            extents.iter().for_each(|&extent| self.space.give_back(extent));
            self.metadata.give_back_slot(slot);
            let amount = space_for(name_len).unwrap_or(u64::MAX).saturating_add(item.attributes_len);
            return Err(self.short_of(Resource::KeySpace, amount, item));
        };
        Ok(Allocation { slot, extents, heap, attributes })
    }

    fn short_of(&self, resource: Resource, amount: u64, item: AllocateItem) -> Shortage {
        let bytes = match resource {
            Resource::Slots => self.metadata.growth_bytes(1),
            Resource::KeySpace => self.metadata.growth_bytes(amount),
            Resource::Bytes | Resource::Contiguous => amount,
        };
        let never = !self.metadata.fits_alone(&item, self.space.capacity());
        Shortage { resource, amount, bytes, never }
    }

    /// Takes no new objects from now on.
    pub(super) fn drain(&mut self) {
        self.drains = true;
    }

    /// Everything that is offered, the oldest first.
    pub(super) fn offers(&self) -> Vec<SlotRef> {
        self.offers.iter().map(|(&stamp, &slot)| SlotRef { slot, stamp }).collect()
    }

    /// The offers to recall next for `len` bytes that found no space, or for a record or a name that did not:
    /// the oldest, and as many as it lacks.
    pub(super) fn offers_for(&self, len: u64) -> Vec<SlotRef> {
        let mut short = space_for(len).unwrap_or(u64::MAX).saturating_sub(self.space.free());
        let mut slot_refs = Vec::new();
        for (&stamp, &slot) in &self.offers {
            if short == 0 && slot_refs.len() >= RECALLS_MIN {
                break;
            }
            let slot_ref = SlotRef { slot, stamp };
            short = short.saturating_sub(self.get(slot_ref).map_or(0, |it| space_of(&it.extents)));
            slot_refs.push(slot_ref);
        }
        slot_refs
    }

    /// An offer was claimed: it is a reservation like any other.
    pub(super) fn claim(&mut self, slot_ref: SlotRef, effects: &mut VecDeque<Effect>) {
        let Some(slot) = self.get_mut(slot_ref) else { return };
        let SlotState::Offered(client) = slot.state else { return };
        slot.state = SlotState::Reserved(client);
        effects.push_back(Effect::Slot { slot: slot_ref.slot, record: record(slot) });
        self.count_claim(slot_ref);
    }

    /// What was offered is reserved from now on, or has come further.
    fn count_claim(&mut self, slot_ref: SlotRef) {
        if self.offers.remove(&slot_ref.stamp).is_some() {
            let bytes = self.get(slot_ref).map_or(0, |it| space_of(&it.extents));
            self.offered -= bytes;
            self.granted += bytes;
        }
    }

    /// Whether this use of the slot stands, and how far it has come.
    pub(super) fn state(&self, slot_ref: SlotRef) -> Option<SlotState> {
        self.get(slot_ref).map(|slot| slot.state)
    }

    /// Whatever use of the slot stands now.
    pub(super) fn current(&self, slot: SlotId) -> Option<SlotRef> {
        let stamp = self.slots.get(slot.0 as usize)?.as_ref()?.stamp;
        Some(SlotRef { slot, stamp })
    }

    /// Records that the object is written, as its client says or else the master; `false` if the
    /// reservation is not this client's, of this length.
    pub(super) fn prepare(
        &mut self,
        writer: Option<ClientId>,
        slot_ref: SlotRef,
        len: u64,
        identity: Identity,
        effects: &mut VecDeque<Effect>,
    ) -> bool {
        let anybody = sabotaged!(self.config.sabotage, CommitWithoutFence);
        let Some(slot) = self.get_mut(slot_ref) else { return false };
        let mine = match slot.state {
            SlotState::Reserved(client) | SlotState::Offered(client) => {
                writer.is_none_or(|it| it == client) || anybody
            }
            SlotState::Ending => writer.is_none(),
            SlotState::Prepared | SlotState::Committed => false,
        };
        if !mine || slot.len != len {
            return false;
        }
        let attributes = identity.attributes.to_bytes();
        let Some(name) = name_bytes(slot, &identity) else { return false };
        if attributes.len() as u64 > slot.attributes.len {
            return false;
        }
        effects.push_back(name);
        if !attributes.is_empty() {
            effects.push_back(Effect::Heap { offset: slot.attributes.offset, bytes: attributes });
        }
        slot.identity = Some(Box::new(identity));
        slot.state = SlotState::Prepared;
        effects.push_back(Effect::Slot { slot: slot_ref.slot, record: record(slot) });
        self.count_claim(slot_ref);
        true
    }

    /// The reservation is to end. Nobody writes or commits it any more, unless it was published.
    pub(super) fn end(&mut self, slot_ref: SlotRef, effects: &mut VecDeque<Effect>) {
        if let Some(slot) = self.get_mut(slot_ref)
            && slot.state.writer().is_some()
        {
            slot.state = SlotState::Ending;
            effects.push_back(Effect::Slot { slot: slot_ref.slot, record: record(slot) });
            self.count_claim(slot_ref);
        }
    }

    /// Has the memory say of all that is being written what it says of [`SlotState::Ending`]: that nobody may
    /// read it without asking, even who was told its name. Whoever writes goes on.
    pub(super) fn hide_reserved(&self, effects: &mut VecDeque<Effect>) {
        for (slot, number) in self.slots.iter().zip(0..) {
            if let Some(slot) = slot
                && matches!(slot.state, SlotState::Reserved(_))
            {
                let record = SlotRecord { state: SlotState::Ending, ..record(slot) };
                effects.push_back(Effect::Slot { slot: SlotId(number), record });
            }
        }
    }

    /// Records that the object can be read; `false` if this use of the slot no longer stands.
    pub(super) fn commit(
        &mut self,
        slot_ref: SlotRef,
        generation: Generation,
        effects: &mut VecDeque<Effect>,
    ) -> bool {
        let Some(slot) = self.get_mut(slot_ref) else { return false };
        let before = std::mem::replace(&mut slot.state, SlotState::Committed);
        if before == SlotState::Committed && slot.generation == generation {
            return true;
        }
        // A later life of the master, which was asked again, may have named it anew.
        slot.generation = generation;
        let allocation = space_of(&slot.extents);
        effects.push_back(Effect::Slot { slot: slot_ref.slot, record: record(slot) });
        if before != SlotState::Committed {
            self.granted -= allocation;
            self.committed += allocation;
            self.objects += 1;
        }
        true
    }

    /// Writes other attributes beside an object. The new ones are written before the slot points to them, so
    /// that a crash leaves the old or the new.
    pub(super) fn set_attributes(
        &mut self,
        slot_ref: SlotRef,
        attributes: &Attributes,
        effects: &mut VecDeque<Effect>,
    ) -> AttributesSet {
        let written = self.get(slot_ref).and_then(|it| it.identity.as_ref()).map(|it| &it.attributes);
        let Some(written) = written else { return AttributesSet::NoObject };
        if written == attributes {
            return AttributesSet::Written;
        }
        let bytes = attributes.to_bytes();
        let len = bytes.len() as u64;
        let mut allocation = self.metadata.take_heap(len, &mut self.space, effects);
        if allocation.is_none() {
            self.metadata.trim(&mut self.space);
            allocation = self.metadata.take_heap(len, &mut self.space, effects);
        }
        let Some(allocation) = allocation else { return AttributesSet::NoSpace };
        let Some(slot) = self.get_mut(slot_ref) else { return AttributesSet::NoObject };
        let old = std::mem::replace(&mut slot.attributes, allocation);
        if let Some(identity) = &mut slot.identity {
            identity.attributes = attributes.clone();
        }
        effects.push_back(Effect::Heap { offset: allocation.offset, bytes });
        effects.push_back(Effect::Slot { slot: slot_ref.slot, record: record(slot) });
        self.metadata.give_back_heap(old);
        AttributesSet::Written
    }

    /// How many look at, send or store this use of the slot.
    pub(super) fn use_count(&self, slot_ref: SlotRef) -> u64 {
        self.use_counts.get(&slot_ref).map_or(0, |&count| u64::from(count))
    }

    /// What is gone but still held, and its room.
    pub(super) fn retired(&self) -> impl Iterator<Item = (SlotRef, u64)> + '_ {
        self.retired.iter().map(|(slot_ref, retired)| (*slot_ref, space_of(&retired.extents)))
    }

    /// Withdraws the stamp, and frees the room or parks it until the last hold ends. What is gone already
    /// stays so: `false` then.
    pub(super) fn retire(&mut self, slot_ref: SlotRef, effects: &mut VecDeque<Effect>) -> bool {
        let Some(place) = self.slots.get_mut(slot_ref.slot.0 as usize) else { return false };
        let Some(slot) = place.take_if(|slot| slot.stamp == slot_ref.stamp) else { return false };
        if !sabotaged!(self.config.sabotage, ReuseBeforeRetire) {
            effects.push_back(Effect::Withdraw { slot: slot_ref.slot });
        }
        self.metadata.give_back_slot(slot_ref.slot);
        let allocation = space_of(&slot.extents);
        match slot.state {
            SlotState::Committed => {
                self.committed -= allocation;
                self.objects -= 1;
            }
            SlotState::Offered(_) => {
                self.offers.remove(&slot_ref.stamp);
                self.offered -= allocation;
            }
            SlotState::Reserved(_) | SlotState::Ending | SlotState::Prepared => self.granted -= allocation,
        }
        self.held += allocation;
        self.retired.insert(slot_ref, Retired { extents: slot.extents, heap: [slot.heap, slot.attributes] });
        self.free_if_unheld(slot_ref);
        true
    }

    /// Keeps the room of this use of the slot as it is, until [`Self::end_use`].
    pub(super) fn begin_use(&mut self, slot_ref: SlotRef) {
        *self.use_counts.entry(slot_ref).or_default() += 1;
    }

    /// Ends one hold; the room returns if it was the last one of an object that is gone.
    pub(super) fn end_use(&mut self, slot_ref: SlotRef) {
        let Some(count) = self.use_counts.get_mut(&slot_ref) else { return };
        *count -= 1;
        if *count == 0 {
            self.use_counts.remove(&slot_ref);
            self.free_if_unheld(slot_ref);
        }
    }

    /// Where `len` bytes from `offset` on lie, if this use of the slot stands.
    pub(super) fn cut(&self, slot_ref: SlotRef, offset: u64, len: u64) -> Option<Vec<Extent>> {
        cut(&self.get(slot_ref)?.extents, offset, len)
    }

    /// Committed objects from `first` on, at most `count` and as many bytes of names as fit a message of that
    /// many, and where to go on.
    pub(super) fn inventory(&self, first: usize, count: usize) -> (Vec<Record>, Option<usize>) {
        let mut records = Vec::new();
        let mut bytes = 0;
        let bytes_max = count.saturating_mul(NAME_BYTES_MEAN_MAX);
        for (index, slot) in self.slots.iter().enumerate().skip(first) {
            if records.len() == count || bytes >= bytes_max {
                return (records, Some(index));
            }
            let Some(slot) = slot.as_ref().filter(|it| it.state == SlotState::Committed) else { continue };
            let Some(identity) = &slot.identity else { continue };
            bytes += identity.namespace.len() + identity.key.as_bytes().len();
            bytes += identity.attributes.to_bytes().len();
            records.push(Record {
                slot_ref: SlotRef { slot: SlotId(index as u32), stamp: slot.stamp },
                namespace: identity.namespace.clone(),
                key: identity.key.clone(),
                generation: slot.generation,
                len: slot.len,
                attributes: identity.attributes.clone(),
            });
        }
        (records, None)
    }

    /// Panics with the numbers if the books do not balance.
    pub(super) fn assert_balance(&self) {
        let used = self.granted + self.committed + self.held;
        let sum = self.free() + used + self.metadata.charged();
        assert_eq!(sum, self.space.capacity(), "the books do not balance: {:?}", self.usage());
        self.metadata.assert_paid();
    }

    fn free_if_unheld(&mut self, slot_ref: SlotRef) {
        let looked_at =
            self.use_counts.contains_key(&slot_ref) && !sabotaged!(self.config.sabotage, IgnoreViews);
        if looked_at {
            return;
        }
        let Some(retired) = self.retired.remove(&slot_ref) else { return };
        self.freed += 1;
        self.held -= space_of(&retired.extents);
        retired.extents.iter().for_each(|&extent| self.space.give_back(extent));
        retired.heap.iter().for_each(|&extent| self.metadata.give_back_heap(extent));
    }

    fn get(&self, slot_ref: SlotRef) -> Option<&Slot> {
        self.slots.get(slot_ref.slot.0 as usize)?.as_ref().filter(|slot| slot.stamp == slot_ref.stamp)
    }

    fn get_mut(&mut self, slot_ref: SlotRef) -> Option<&mut Slot> {
        self.slots.get_mut(slot_ref.slot.0 as usize)?.as_mut().filter(|slot| slot.stamp == slot_ref.stamp)
    }

    /// A stamp that was never used. The mark is moved before a stamp beyond it is used.
    fn mint(&mut self, effects: &mut VecDeque<Effect>) -> Stamp {
        let stamp = self.next_stamp;
        if stamp >= self.stamp_high_water {
            self.stamp_high_water = stamp + STAMPS_PER_MARK;
            effects.push_back(Effect::StampHighWater(self.stamp_high_water));
        }
        self.next_stamp += 1;
        Stamp(stamp)
    }
}

fn space_of(extents: &[Extent]) -> u64 {
    extents.iter().filter_map(|it| space_for(it.len)).sum()
}

fn record(slot: &Slot) -> SlotRecord {
    let identity = slot.identity.as_deref();
    SlotRecord {
        stamp: slot.stamp,
        state: slot.state,
        generation: slot.generation,
        len: slot.len,
        extents: slot.extents.clone(),
        heap: slot.heap,
        namespace_len: identity.map_or(0, |it| it.namespace.len() as u64),
        key_len: identity.map_or(0, |it| it.key.as_bytes().len() as u64),
        attributes: identity.map_or_else(Extent::default, |it| Extent {
            offset: slot.attributes.offset,
            len: it.attributes.to_bytes().len() as u64,
        }),
        hard_pin: identity.is_some_and(|it| !it.attributes.pins.is_empty()),
    }
}

/// What the list of an object's extents costs in the heap.
fn spilled_bytes(extents: &[Extent]) -> u64 {
    if extents.len() > EXTENTS_INLINE { extents.len() as u64 * EXTENT_BYTES } else { 0 }
}

fn spill(extents: &[Extent]) -> Vec<u8> {
    extents.iter().flat_map(|it| [it.offset.to_le_bytes(), it.len.to_le_bytes()]).flatten().collect()
}

/// The effect that writes an object's name behind its spilled extents; `None` if the name is longer than what
/// was reserved for it.
fn name_bytes(slot: &Slot, identity: &Identity) -> Option<Effect> {
    let spilled = spilled_bytes(&slot.extents);
    let bytes = [identity.namespace.as_bytes(), identity.key.as_bytes()].concat();
    (spilled + bytes.len() as u64 <= slot.heap.len)
        .then(|| Effect::Heap { offset: slot.heap.offset + spilled, bytes })
}
