//! The slots of one segment and their memory.
//!
//! The states of a slot: `free → reserved → prepared → committed → free`, or `reserved → ending → free` if
//! the master must be asked first whether the object was published. The stamp is assigned when the slot is
//! reserved, and withdrawn when it is retired. A request with an old stamp is rejected and changes nothing.
//!
//! An *offered* slot is a reservation that its client must claim before it writes; until then the node may
//! recall it (see `Effect::Recall`). Its memory counts as free, because the node recalls it when it is
//! needed.
//!
//! A retired use that is still viewed or copied keeps its slot until that ends (`Effect::Park`), so that a
//! node that is started again on the same memory knows which bytes it must not reuse.
//!
//! **Invariant:** `free + granted + committed + held + metadata = capacity`.
//! **Invariant:** memory is freed only after its slot's stamp was withdrawn and the last reference to that
//! use of the slot has ended.

mod expiry;
mod guarantees;
mod offers;

use std::collections::{BTreeMap, VecDeque};

use tiffin_types::{
    ClientId, EXTENT_ALIGN, Extent, Generation, Key, Location, Reservation, SlotId, SlotRef, Stamp,
    attributes::Attributes,
    message::{AllocateItem, Record, Resource, Shortage, Usage, Views},
    mutant::is_mutant,
    space_for,
};

use self::guarantees::Guarantees;
pub(crate) use self::guarantees::Whose;
use super::{
    Effect, NodeConfig,
    metadata::{Metadata, TableRange},
};
use crate::extent::{FreeSpace, cut, space_of, spill};
use crate::held::{Retired, RetiredMemory};

/// Stamps are reserved in runs of this length, so that the mark that must survive a restart is rarely
/// written.
const STAMPS_PER_MARK: u64 = 1 << 16;
/// Number of extents that a slot itself holds; more extents are stored in the heap.
pub const EXTENTS_INLINE: usize = 2;
/// Mean length of the names on a page of the inventory: keys may be long, messages are bounded.
const NAME_BYTES_MEAN_MAX: usize = 1 << 10;
/// Bytes of one extent in the heap.
const EXTENT_BYTES: u64 = 16;

/// The state of the object in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// A client writes it.
    Reserved(ClientId),
    /// A client may claim it and then write it. The node does not know whether it has.
    Offered(ClientId),
    /// Its client has ended or does not want it, and no client may write it. It may have been published
    /// before, so it ends only when the master has replied.
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

/// The record of one slot in the control segment: enough to read the object, and to rebuild the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotRecord {
    /// This use of the slot.
    pub stamp: Stamp,
    /// Its state.
    pub state: SlotState,
    /// Which put of the key; zero while reserved.
    pub generation: Generation,
    /// Its bytes.
    pub len: u64,
    /// Their extents.
    pub extents: Vec<Extent>,
    /// The heap range with the spilled extents, the namespace's name and the key, in this order.
    pub heap: Extent,
    /// Bytes of the namespace's name.
    pub namespace_len: u64,
    /// Bytes of the key.
    pub key_len: u64,
    /// The heap range with its attributes. Before the object has a name: the space for them.
    pub attributes: Extent,
    /// The client that may be writing it.
    pub writer: Option<ClientId>,
    /// Never evicted.
    pub hard_pin: bool,
}

/// The identity of an object.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) namespace: String,
    pub(super) key: Key,
    pub(super) attributes: Attributes,
}

#[derive(Clone, Debug)]
struct Slot {
    stamp: Stamp,
    /// The number of the stamp: later uses have greater ones.
    number: u64,
    state: SlotState,
    len: u64,
    extents: Vec<Extent>,
    heap: Extent,
    /// Heap range for the attributes, which may change during the object's lifetime. Readers never access
    /// it.
    attributes: Extent,
    generation: Generation,
    identity: Option<Box<Identity>>,
    /// The namespace that it is reserved for, if that has a guaranteed minimum.
    owner: Option<Box<str>>,
}

/// The result of storing attributes with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttributesSet {
    Written,
    /// This use of the slot is not valid, or is not an object yet.
    NoObject,
    /// The heap has no space for them.
    NoSpace,
}

/// The resources of a reservation.
#[derive(Debug)]
struct Allocation {
    slot: SlotId,
    extents: Vec<Extent>,
    heap: Extent,
    attributes: Extent,
}

/// The table. Effects are pushed in the order in which memory must change.
#[derive(Debug)]
pub(super) struct Slots {
    config: NodeConfig,
    slots: Vec<Option<Slot>>,
    space: FreeSpace,
    metadata: Metadata,
    use_counts: BTreeMap<SlotRef, u32>,
    retired: RetiredMemory,
    guarantees: Guarantees,
    /// Number of the next stamp.
    next_number: u64,
    stamp_high_water: u64,
    /// The offered uses by the number of their stamp, so the oldest first.
    offers: BTreeMap<u64, SlotRef>,
    offered: u64,
    granted: u64,
    committed: u64,
    objects: u64,
    /// Number of times that something was freed.
    freed: u64,
    /// No new object is accepted.
    drains: bool,
    /// Stamps with smaller numbers were used by an earlier process, and clients may have views of these uses
    /// that this process does not know of. Zero if there are none.
    unlisted_below: u64,
}

impl Slots {
    pub(super) fn new(config: NodeConfig) -> Self {
        Self {
            slots: Vec::new(),
            space: FreeSpace::new(config.capacity),
            metadata: Metadata::new(&config),
            use_counts: BTreeMap::new(),
            retired: RetiredMemory::default(),
            guarantees: Guarantees::default(),
            next_number: 1,
            stamp_high_water: 1,
            offers: BTreeMap::new(),
            offered: 0,
            granted: 0,
            committed: 0,
            objects: 0,
            freed: 0,
            drains: false,
            unlisted_below: 0,
            config,
        }
    }

    /// The number of the first stamp that was never used, in memory that an earlier process has used. Views
    /// of older uses may be unknown until [`Self::all_views_are_listed`].
    pub(super) fn adopt_stamps(&mut self, high_water: u64) {
        (self.next_number, self.stamp_high_water, self.unlisted_below) = (high_water, high_water, high_water);
        if is_mutant!(self.config.mutant, ReuseStamps) {
            (self.next_number, self.stamp_high_water) = (1, 1);
        }
    }

    /// Adopts one use of a slot, or a retired use whose memory may be in view. `false` if its memory is in
    /// use already, or outside the segment.
    pub(super) fn adopt(
        &mut self,
        at: SlotId,
        record: &SlotRecord,
        state: Option<SlotState>,
        identity: Option<Identity>,
        effects: &mut VecDeque<Effect>,
    ) -> bool {
        let heap = [record.heap, record.attributes];
        let has_bytes = |it: &&Extent| it.len > 0;
        let is_aligned = |it: &Extent| it.offset.is_multiple_of(EXTENT_ALIGN);
        let is_whole = self.metadata.adopt_slot(at)
            && record.extents.iter().filter(has_bytes).all(|it| is_aligned(it) && self.space.take_at(*it))
            && heap.iter().filter(has_bytes).all(|it| self.metadata.adopt_heap(*it));
        if !is_whole {
            return false;
        }
        let allocation = space_of(&record.extents);
        let Some(state) = state else {
            let slot_ref = SlotRef { slot: at, stamp: record.stamp };
            let namespace = identity.map(|it| it.namespace.into_boxed_str());
            self.retired.insert(slot_ref, Retired { extents: record.extents.clone(), heap, namespace });
            // It may have died between the record and the stamp.
            effects.push_back(Effect::Park { slot: at });
            return true;
        };
        let number = self.config.stamp_key.number(record.stamp);
        match state {
            SlotState::Committed => {
                self.committed += allocation;
                self.objects += 1;
            }
            SlotState::Offered(_) => {
                self.offered += allocation;
                self.offers.insert(number, SlotRef { slot: at, stamp: record.stamp });
            }
            SlotState::Reserved(_) | SlotState::Ending | SlotState::Prepared => self.granted += allocation,
        }
        let slot = Slot {
            stamp: record.stamp,
            number,
            state,
            len: record.len,
            extents: record.extents.clone(),
            heap: record.heap,
            attributes: record.attributes,
            generation: record.generation,
            identity: identity.map(Box::new),
            owner: None,
        };
        if self.slots.len() <= at.0 as usize {
            self.slots.resize(at.0 as usize + 1, None);
        }
        if let Some(place) = self.slots.get_mut(at.0 as usize) {
            *place = Some(slot);
        }
        true
    }

    /// Pays for the tables of what was adopted. `false` if there is not enough memory for them.
    pub(super) fn pay_for_adopted(&mut self, effects: &mut VecDeque<Effect>) -> bool {
        self.metadata.pay_for_adopted(&mut self.space, effects)
    }

    /// Every client that may have had views at an earlier process has listed them, or is gone.
    pub(super) fn all_views_are_listed(&mut self, effects: &mut VecDeque<Effect>) {
        if std::mem::take(&mut self.unlisted_below) > 0 {
            let unused: Vec<_> =
                self.retired.iter().map(|it| it.0).filter(|it| !self.is_in_use(*it)).collect();
            unused.into_iter().for_each(|slot_ref| self.reclaim(slot_ref, effects));
        }
    }

    /// The prepared uses: their identity and length.
    pub(super) fn prepared(&self) -> Vec<(SlotRef, Identity, u64)> {
        let numbered = self.slots.iter().zip(0..);
        let prepared = numbered.filter_map(|(slot, number)| {
            let slot = slot.as_ref().filter(|it| it.state == SlotState::Prepared)?;
            let slot_ref = SlotRef { slot: SlotId(number), stamp: slot.stamp };
            Some((slot_ref, slot.identity.as_deref()?.clone(), slot.len))
        });
        prepared.collect()
    }

    /// Whether this use stands, or is retired and its memory is not reused yet.
    pub(super) fn keeps(&self, slot_ref: SlotRef) -> bool {
        self.get(slot_ref).is_some() || self.retired.contains(slot_ref)
    }

    /// Bytes for objects, also of a node that takes no new ones.
    pub(super) fn capacity(&self) -> u64 {
        self.space.capacity()
    }

    pub(super) fn usage(&self) -> Usage {
        Usage {
            // The master requests no more than a node's capacity.
            capacity: if self.drains { 0 } else { self.space.capacity() },
            free: if self.drains { 0 } else { self.free() },
            granted: self.granted,
            committed: self.committed,
            held: self.retired.bytes(),
            objects: self.objects,
            offered: self.offered,
            metadata: self.metadata.charged(),
            unlisted: if self.unlisted_below > 0 { self.retired.bytes() } else { 0 },
            // Offers can be recalled, so any name may fit.
            name_max: self.offers.is_empty().then(|| self.metadata.name_max(&self.space)),
        }
    }

    /// Number of times that something was freed, so that there may be more space than before.
    pub(super) fn freed(&self) -> u64 {
        self.freed
    }

    /// Memory that was withheld is allocated, or could not be.
    pub(super) fn restored(&mut self, extents: Vec<Extent>, is_allocated: bool) {
        let is_allocated = is_allocated || is_mutant!(self.config.mutant, UseUnrestored);
        self.freed += u64::from(is_allocated);
        self.metadata.restored(extents, is_allocated, &mut self.space);
    }

    /// Ranges of the tables that are in use.
    pub(super) fn backed(&self) -> impl Iterator<Item = TableRange> + '_ {
        self.metadata.backed_ranges()
    }

    /// Bytes of the data segment that objects may not use, because records and names take as many.
    pub(super) fn withheld(&self) -> impl Iterator<Item = Extent> + '_ {
        self.metadata.withheld()
    }

    /// Number of free bytes: idle chunks of the tables and offers are included, because they can be
    /// reclaimed at any time.
    fn free(&self) -> u64 {
        self.space.free() + self.metadata.reclaimable() + self.offered
    }

    /// Reserves or offers space for one replica, in at most `pieces_max` extents. Fails with what is missing.
    pub(super) fn reserve(
        &mut self,
        state: SlotState,
        item: AllocateItem,
        (pieces_max, whose): (usize, &mut Whose<'_>),
        effects: &mut VecDeque<Effect>,
    ) -> Result<Reservation, Shortage> {
        if self.drains {
            let bytes = space_for(item.len).unwrap_or(u64::MAX);
            return Err(Shortage { resource: Resource::Bytes, amount: bytes, bytes, never: true });
        }
        if !whose.guarantees.is_empty() {
            self.check_guarantees(whose, item)?;
        }
        let mut allocation = self.allocate(item, pieces_max, effects);
        if allocation.is_err() && self.metadata.reclaimable() > 0 {
            self.metadata.trim(&mut self.space);
            allocation = self.allocate(item, pieces_max, effects);
        }
        let Allocation { slot, extents, heap, attributes } = allocation?;
        let (stamp, number) = self.mint(effects);
        let state_is_offer = matches!(state, SlotState::Offered(_));
        match state {
            SlotState::Offered(_) => {
                self.offered += space_of(&extents);
                self.offers.insert(number, SlotRef { slot, stamp });
            }
            _ => self.granted += space_of(&extents),
        }
        let reserved = Slot {
            stamp,
            number,
            state,
            len: item.len,
            extents: extents.clone(),
            heap,
            attributes,
            generation: Generation::default(),
            identity: None,
            owner: Some(whose.namespace).filter(|it| !it.is_empty() && !state_is_offer).map(Box::from),
        };
        if self.guarantees.counts_any() {
            self.guarantees.add(reserved.namespace(), space_of(&extents));
        }
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

    /// Allocates all resources of an object, or none.
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
            Resource::Bytes | Resource::Contiguous | Resource::Share => amount,
        };
        let never = !self.metadata.fits_alone(&item, self.space.capacity());
        Shortage { resource, amount, bytes, never }
    }

    /// Sets whether it rejects new objects.
    pub(super) fn set_drains(&mut self, drains: bool) {
        self.drains = drains;
    }

    /// The state of this use of the slot, if it is valid.
    pub(super) fn state(&self, slot_ref: SlotRef) -> Option<SlotState> {
        self.get(slot_ref).map(|slot| slot.state)
    }

    /// The current use of the slot.
    pub(super) fn current(&self, slot: SlotId) -> Option<SlotRef> {
        let stamp = self.slots.get(slot.0 as usize)?.as_ref()?.stamp;
        Some(SlotRef { slot, stamp })
    }

    /// Records that the object is written, according to its client or the master. `false` if the
    /// reservation has another client or length.
    pub(super) fn prepare(
        &mut self,
        writer: Option<ClientId>,
        slot_ref: SlotRef,
        len: u64,
        identity: Identity,
        effects: &mut VecDeque<Effect>,
    ) -> bool {
        let ignores_writer = is_mutant!(self.config.mutant, CommitWithoutFence);
        let Some(slot) = get_mut(&mut self.slots, slot_ref) else { return false };
        let mine = match slot.state {
            SlotState::Reserved(client) | SlotState::Offered(client) => {
                writer.is_none_or(|it| it == client) || ignores_writer
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
        let owner = slot.owner.take();
        if self.guarantees.counts_any() {
            let space = space_of(&slot.extents);
            self.guarantees.subtract(owner.as_deref(), space);
            self.guarantees.add(slot.namespace(), space);
        }
        slot.state = SlotState::Prepared;
        effects.push_back(Effect::Slot { slot: slot_ref.slot, record: record(slot) });
        self.count_claim(slot_ref);
        true
    }

    /// Ends the reservation. No client may write or commit it, unless it was published.
    pub(super) fn end(&mut self, slot_ref: SlotRef, effects: &mut VecDeque<Effect>) {
        if let Some(slot) = self.get_mut(slot_ref)
            && slot.state.writer().is_some()
        {
            slot.state = SlotState::Ending;
            effects.push_back(Effect::Slot { slot: slot_ref.slot, record: record(slot) });
            self.count_claim(slot_ref);
        }
    }

    /// Marks every reservation in the memory as [`SlotState::Ending`], so that no cached-location read
    /// accepts it, even if its name is known. Its writer continues. Called when the master has declared the
    /// node lost; after a mere change of the epoch, the readers' epoch check has the same effect.
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

    /// Records that the object can be read; `false` if this use of the slot is no longer valid.
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
        // A later epoch of the master, which was asked again, may have given it another generation.
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

    /// Stores other attributes with an object. They are written before the slot points to them, so that a
    /// crash leaves the old or the new ones.
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

    /// Retired objects that are still referenced.
    pub(super) fn held(&mut self) -> &mut RetiredMemory {
        &mut self.retired
    }

    /// The memory of a use that stands or is retired.
    pub(super) fn space(&self, slot_ref: SlotRef) -> u64 {
        self.get(slot_ref).map_or_else(|| self.retired.space(slot_ref), |it| space_of(&it.extents))
    }

    /// The uses of an object: its views, and all others, which are sends.
    pub(super) fn uses(&self, slot_ref: SlotRef, views: Views) -> Views {
        let count = self.use_counts.get(&slot_ref).map_or(0, |&count| u64::from(count));
        Views { sends: count.saturating_sub(views.count), ..views }
    }

    /// Withdraws the stamp, and frees the memory, or keeps it until the last reference ends. Returns
    /// `false` if this use was already retired.
    pub(super) fn retire(&mut self, slot_ref: SlotRef, effects: &mut VecDeque<Effect>) -> bool {
        let Some(place) = self.slots.get_mut(slot_ref.slot.0 as usize) else { return false };
        let Some(slot) = place.take_if(|slot| slot.stamp == slot_ref.stamp) else { return false };
        let stays = self.is_in_use(slot_ref);
        if !is_mutant!(self.config.mutant, ReuseBeforeRetire) {
            let slot = slot_ref.slot;
            effects.push_back(if stays { Effect::Park { slot } } else { Effect::Withdraw { slot } });
        }
        let allocation = space_of(&slot.extents);
        match slot.state {
            SlotState::Committed => {
                self.committed -= allocation;
                self.objects -= 1;
            }
            SlotState::Offered(_) => {
                self.offers.remove(&slot.number);
                self.offered -= allocation;
            }
            SlotState::Reserved(_) | SlotState::Ending | SlotState::Prepared => self.granted -= allocation,
        }
        self.guarantees.subtract(slot.namespace(), allocation);
        let namespace = slot.identity.map(|it| it.namespace.into_boxed_str());
        let memory = Retired { extents: slot.extents, heap: [slot.heap, slot.attributes], namespace };
        if stays {
            self.retired.insert(slot_ref, memory);
        } else {
            self.free_memory(slot_ref.slot, &memory, effects);
        }
        true
    }

    /// Keeps the memory of this use of the slot, until [`Self::end_use`].
    pub(super) fn begin_use(&mut self, slot_ref: SlotRef) {
        *self.use_counts.entry(slot_ref).or_default() += 1;
    }

    /// Ends one reference; frees the memory if it was the last one of a retired object.
    pub(super) fn end_use(&mut self, slot_ref: SlotRef, effects: &mut VecDeque<Effect>) {
        let Some(count) = self.use_counts.get_mut(&slot_ref) else { return };
        *count -= 1;
        if *count == 0 {
            self.use_counts.remove(&slot_ref);
            if !self.is_in_use(slot_ref) {
                self.reclaim(slot_ref, effects);
            }
        }
    }

    /// The extents of `len` bytes from `offset` on, if this use of the slot is valid.
    pub(super) fn cut(&self, slot_ref: SlotRef, offset: u64, len: u64) -> Option<Vec<Extent>> {
        cut(&self.get(slot_ref)?.extents, offset, len)
    }

    /// The namespace of the object, if this use of the slot has a name.
    pub(super) fn namespace(&self, slot_ref: SlotRef) -> Option<&str> {
        self.get(slot_ref)?.identity.as_ref().map(|it| it.namespace.as_str())
    }

    /// Committed objects from `first` on, at most `count` and as many bytes of names as fit such a message.
    /// Also returns where the next page begins.
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

    /// Panics with the numbers if the accounting is inconsistent.
    pub(super) fn assert_balance(&self) {
        let used = self.granted + self.committed + self.retired.bytes();
        let sum = self.free() + used + self.metadata.charged();
        assert_eq!(sum, self.space.capacity(), "the accounting is inconsistent: {:?}", self.usage());
        self.metadata.assert_paid();
    }

    /// Whether this use is viewed, sent or stored, or may be in view.
    fn is_in_use(&self, slot_ref: SlotRef) -> bool {
        let is_held = self.use_counts.contains_key(&slot_ref) && !is_mutant!(self.config.mutant, IgnoreViews);
        let is_from_before = |it: Stamp| self.config.stamp_key.number(it) < self.unlisted_below;
        is_held || self.unlisted_below > 0 && is_from_before(slot_ref.stamp)
    }

    /// Frees the memory of a retired use.
    fn reclaim(&mut self, slot_ref: SlotRef, effects: &mut VecDeque<Effect>) {
        let Some(memory) = self.retired.remove(slot_ref) else { return };
        effects.push_back(Effect::Reclaim { slot: slot_ref.slot });
        self.free_memory(slot_ref.slot, &memory, effects);
    }

    fn free_memory(&mut self, slot: SlotId, memory: &Retired, effects: &mut VecDeque<Effect>) {
        self.freed += 1;
        self.metadata.give_back_slot(slot);
        memory.extents.iter().for_each(|&extent| self.space.give_back(extent));
        memory.heap.iter().for_each(|&extent| self.metadata.give_back_heap(extent));
        self.metadata.restore_idle(effects);
    }

    fn get(&self, slot_ref: SlotRef) -> Option<&Slot> {
        self.slots.get(slot_ref.slot.0 as usize)?.as_ref().filter(|slot| slot.stamp == slot_ref.stamp)
    }

    fn get_mut(&mut self, slot_ref: SlotRef) -> Option<&mut Slot> {
        get_mut(&mut self.slots, slot_ref)
    }

    /// A stamp that was never used, and its number. The mark is advanced before a number beyond it is used.
    fn mint(&mut self, effects: &mut VecDeque<Effect>) -> (Stamp, u64) {
        let number = self.next_number;
        if number >= self.stamp_high_water {
            self.stamp_high_water = number + STAMPS_PER_MARK;
            effects.push_back(Effect::StampHighWater(self.stamp_high_water));
        }
        self.next_number += 1;
        (self.config.stamp_key.stamp(number), number)
    }
}

fn get_mut(slots: &mut [Option<Slot>], slot_ref: SlotRef) -> Option<&mut Slot> {
    slots.get_mut(slot_ref.slot.0 as usize)?.as_mut().filter(|slot| slot.stamp == slot_ref.stamp)
}

/// Bytes of an object's list of extents in the heap.
fn spilled_bytes(extents: &[Extent]) -> u64 {
    if extents.len() > EXTENTS_INLINE { extents.len() as u64 * EXTENT_BYTES } else { 0 }
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
        attributes: identity.map_or(slot.attributes, |it| Extent {
            offset: slot.attributes.offset,
            len: it.attributes.to_bytes().len() as u64,
        }),
        writer: slot.state.writer(),
        hard_pin: identity.is_some_and(|it| !it.attributes.pins.is_empty()),
    }
}

/// The effect that writes an object's name after its spilled extents; `None` if the name is longer than its
/// reservation.
fn name_bytes(slot: &Slot, identity: &Identity) -> Option<Effect> {
    let spilled = spilled_bytes(&slot.extents);
    let bytes = [identity.namespace.as_bytes(), identity.key.as_bytes()].concat();
    (spilled + bytes.len() as u64 <= slot.heap.len)
        .then(|| Effect::Heap { offset: slot.heap.offset + spilled, bytes })
}
