//! A node's simulated memory, which records the value of each unit.
//!
//! Control memory is the result of the node's effects, in order. Data memory has one tag per unit of
//! [`EXTENT_ALIGN`] bytes instead of bytes. It outlives its node's process, like a mapping: clients that
//! mapped it can still read it. A memory pool can also be adopted by the node's next process.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_node::{Adopted, Found, SlotRecord, SlotState};
use tiffin_session::{Seen, SeenState};
use tiffin_types::message::Settle;
use tiffin_types::{ClientId, ClusterId, ConnId, EXTENT_ALIGN, Extent, SlotId, SlotRef, Stamp, space_for};

use crate::keyspace::Name;

/// Id of one put of one client: the value that it writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ValueId(pub(crate) u32);

/// The value and unit that a unit was last written for. Zero is no value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) value: ValueId,
    pub(crate) unit: u32,
}

/// State of a claim word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    Offered,
    Claimed,
    Recalled,
    /// The master has withdrawn the use.
    Withdrawn,
}

/// One segment.
#[derive(Debug)]
pub(crate) struct Memory {
    units: Vec<Tag>,
    /// At most one use per slot; a disk has one slot for all.
    slots: BTreeMap<SlotRef, SlotRecord>,
    /// For a disk: the names of its copies.
    names: BTreeMap<Stamp, Name>,
    heap: Vec<u8>,
    /// The claim words: the last use of the slot, and its state.
    claims: BTreeMap<SlotId, (Stamp, Claim)>,
    /// The retired uses whose memory is still in use, by slot.
    parked: BTreeMap<SlotId, SlotRecord>,
    /// Units that are withheld from objects, and whose memory was returned to the system.
    withheld: BTreeSet<usize>,
    /// The node's process is alive, or the next one can adopt the memory.
    pub(crate) alive: bool,
    /// The node's process is alive.
    pub(crate) runs: bool,
    /// The memory says that its node is a member.
    pub(crate) member: bool,
    /// The epoch that the memory says, and the number of that master.
    pub(crate) epoch: u64,
    pub(crate) instance: u64,
    pub(crate) cluster: ClusterId,
    /// No stamp with this number or a greater one was used.
    pub(crate) stamp_high_water: u64,
    /// The journal of the ledger: the messages of this connection, which the master has recorded in memory
    /// that outlives both.
    pub(crate) journal: (ConnId, Vec<Settle>),
}

impl Memory {
    pub(crate) fn new(capacity: u64, heap_bytes: u64) -> Self {
        Self {
            units: vec![Tag::default(); (capacity / EXTENT_ALIGN) as usize],
            slots: BTreeMap::new(),
            names: BTreeMap::new(),
            heap: vec![0; heap_bytes as usize],
            claims: BTreeMap::new(),
            parked: BTreeMap::new(),
            withheld: BTreeSet::new(),
            alive: true,
            runs: true,
            member: false,
            epoch: 0,
            instance: 0,
            cluster: ClusterId(0),
            stamp_high_water: 1,
            journal: (ConnId(0), Vec::new()),
        }
    }

    pub(crate) fn withhold(&mut self, extent: Extent) {
        self.withheld.extend(units(extent));
    }

    pub(crate) fn restore(&mut self, extent: Extent) {
        units(extent).for_each(|it| _ = self.withheld.remove(&it));
    }

    /// A new process allocates all memory before it serves.
    pub(crate) fn restore_all(&mut self) {
        self.withheld.clear();
    }

    pub(crate) fn is_withheld(&self, unit: usize) -> bool {
        self.withheld.contains(&unit)
    }

    /// What a process finds that adopts the memory, while these clients map it.
    pub(crate) fn adopted(&self, clients: Vec<ClientId>) -> Adopted {
        let used = self.slots.iter().map(|(slot_ref, it)| self.found(slot_ref.slot, it, false));
        let parked = self.parked.iter().map(|(slot, it)| self.found(*slot, it, true));
        let mut slots: Vec<_> = used.chain(parked).collect();
        slots.sort_by_key(|it| it.slot);
        Adopted {
            epoch: self.epoch,
            instance: self.instance,
            cluster: self.cluster,
            stamp_high_water: self.stamp_high_water,
            slots,
            clients,
            ledger: self.journal.1.clone(),
        }
    }

    fn found(&self, slot: SlotId, record: &SlotRecord, is_retired: bool) -> Found {
        let (namespace, key) = self.name(record).unwrap_or_default();
        let attributes =
            record.attributes.offset as usize..(record.attributes.offset + record.attributes.len) as usize;
        Found {
            slot,
            record: record.clone(),
            is_retired,
            namespace: namespace.to_vec(),
            key: key.to_vec(),
            attributes: self.heap.get(attributes).unwrap_or_default().to_vec(),
        }
    }

    /// The durable copies of a disk.
    pub(crate) fn of_disk() -> Self {
        Self::new(0, 0)
    }

    /// Adds a durable copy.
    pub(crate) fn keep(&mut self, record: SlotRecord, name: Option<Name>) {
        let stamp = record.stamp;
        self.names.extend(name.map(|name| (stamp, name)));
        self.slots.insert(SlotRef::on_disk(stamp), record);
    }

    /// Removes a durable copy.
    pub(crate) fn forget(&mut self, stamp: Stamp) {
        self.slots.remove(&SlotRef::on_disk(stamp));
    }

    pub(crate) fn forget_all(&mut self) {
        self.slots.clear();
    }

    /// The name of a copy on a disk.
    pub(crate) fn name_on_disk(&self, record: &SlotRecord) -> Option<Name> {
        self.names.get(&record.stamp).copied()
    }

    /// The record of a slot, if it has that stamp.
    pub(crate) fn load(&self, slot_ref: SlotRef) -> Option<&SlotRecord> {
        self.slots.get(&slot_ref)
    }

    /// Whether the slot has that stamp.
    pub(crate) fn is_current(&self, slot_ref: SlotRef) -> bool {
        self.load(slot_ref).is_some()
    }

    /// What a reader sees of a use.
    pub(crate) fn seen(&self, slot_ref: SlotRef) -> Seen {
        let seen = self.seen_in_slot(slot_ref);
        Seen { state: seen.state.filter(|_| !self.is_withdrawn(slot_ref)), ..seen }
    }

    /// What a reader sees that does not look at the claim word.
    pub(crate) fn seen_in_slot(&self, slot_ref: SlotRef) -> Seen {
        let state = self.load(slot_ref).and_then(|it| match it.state {
            SlotState::Committed => Some(SeenState::Committed),
            SlotState::Reserved(_) | SlotState::Offered(_) => Some(SeenState::Reserved),
            SlotState::Ending | SlotState::Prepared => None,
        });
        Seen { is_member: self.is_member(), epoch: self.epoch, state }
    }

    /// Whether readers see a member: a dead process has closed its attach socket.
    pub(crate) fn is_member(&self) -> bool {
        self.runs && self.member
    }

    /// The current use of a slot.
    pub(crate) fn current(&self, slot: SlotId) -> Option<SlotRef> {
        let all = SlotRef { slot, stamp: Stamp(0) }..=SlotRef { slot, stamp: Stamp(u64::MAX) };
        self.slots.range(all).next().map(|(slot_ref, _)| *slot_ref)
    }

    /// Every slot with a stamp.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (SlotRef, &SlotRecord)> {
        self.slots.iter().map(|(&slot_ref, it)| (slot_ref, it))
    }

    /// Whether a use of a slot is a readable object.
    pub(crate) fn is_committed(&self, slot_ref: SlotRef) -> bool {
        self.slots.get(&slot_ref).is_some_and(|it| it.state == SlotState::Committed)
    }

    /// Claims an offer before it is written. True on success.
    pub(crate) fn claim(&mut self, slot_ref: SlotRef) -> bool {
        match self.claims.get_mut(&slot_ref.slot) {
            Some((stamp, claim))
                if *stamp == slot_ref.stamp && matches!(claim, Claim::Offered | Claim::Claimed) =>
            {
                *claim = Claim::Claimed;
                true
            }
            _ => false,
        }
    }

    /// Recalls an offer. True on success.
    pub(crate) fn recall(&mut self, slot_ref: SlotRef) -> bool {
        let is_offered = self.is_unclaimed(slot_ref);
        if is_offered {
            self.claims.insert(slot_ref.slot, (slot_ref.stamp, Claim::Recalled));
        }
        is_offered
    }

    /// The master withdraws a use, unless the word is that of another one.
    pub(crate) fn withdraw_use(&mut self, slot_ref: SlotRef) {
        if let Some((stamp, claim)) = self.claims.get_mut(&slot_ref.slot)
            && *stamp == slot_ref.stamp
            && !matches!(claim, Claim::Recalled)
        {
            *claim = Claim::Withdrawn;
        }
    }

    /// Whether the master has withdrawn this use.
    pub(crate) fn is_withdrawn(&self, slot_ref: SlotRef) -> bool {
        self.claims.get(&slot_ref.slot) == Some(&(slot_ref.stamp, Claim::Withdrawn))
    }

    fn is_unclaimed(&self, slot_ref: SlotRef) -> bool {
        self.claims.get(&slot_ref.slot) == Some(&(slot_ref.stamp, Claim::Offered))
    }

    /// Number of unclaimed bytes in offers.
    pub(crate) fn unclaimed(&self) -> u64 {
        let is_offer = |it: &SlotRecord| matches!(it.state, SlotState::Offered(_));
        let offers = self.slots().filter(|(slot_ref, it)| is_offer(it) && self.is_unclaimed(*slot_ref));
        offers.flat_map(|(_, it)| &it.extents).filter_map(|it| space_for(it.len)).sum()
    }

    pub(crate) fn write_slot(&mut self, slot: SlotId, record: SlotRecord) {
        let is_new = self.current(slot).is_none_or(|it| it.stamp != record.stamp);
        if is_new {
            let is_offered = matches!(record.state, SlotState::Offered(_));
            let claim = if is_offered { Claim::Offered } else { Claim::Claimed };
            self.claims.insert(slot, (record.stamp, claim));
        }
        self.withdraw(slot);
        self.slots.insert(SlotRef { slot, stamp: record.stamp }, record);
    }

    /// Withdraws a stamp, and keeps the record of the memory.
    pub(crate) fn park(&mut self, slot: SlotId) {
        let record = self.current(slot).and_then(|slot_ref| self.slots.get(&slot_ref).cloned());
        self.parked.extend(record.map(|record| (slot, record)));
        self.withdraw(slot);
    }

    /// The memory of a retired use is not in use any more.
    pub(crate) fn reclaim(&mut self, slot: SlotId) {
        self.parked.remove(&slot);
    }

    pub(crate) fn withdraw(&mut self, slot: SlotId) {
        self.slots.retain(|slot_ref, _| slot_ref.slot != slot);
    }

    /// Writes into the heap; `false` if the bytes are outside.
    pub(crate) fn write_heap(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let start = offset as usize;
        let Some(place) = self.heap.get_mut(start..start + bytes.len()) else { return false };
        place.copy_from_slice(bytes);
        true
    }

    /// Namespace and key of a record, from the heap.
    pub(crate) fn name(&self, record: &SlotRecord) -> Option<(&[u8], &[u8])> {
        let name_len = record.namespace_len + record.key_len;
        let spilled = match record.extents.len() {
            0..=tiffin_node::EXTENTS_INLINE => 0,
            more => more as u64 * 16,
        };
        let start = (record.heap.offset + spilled) as usize;
        let bytes = self.heap.get(start..start + name_len as usize)?;
        bytes.split_at_checked(record.namespace_len as usize)
    }

    pub(crate) fn write_unit(&mut self, unit: usize, tag: Tag) {
        if let Some(place) = self.units.get_mut(unit) {
            *place = tag;
        }
    }

    pub(crate) fn read_unit(&self, unit: usize) -> Option<Tag> {
        self.units.get(unit).copied()
    }

    /// Another use that covers a unit.
    pub(crate) fn covered_by(&self, unit: usize, except: Stamp) -> Option<SlotRef> {
        let covers = |it: &SlotRecord| it.extents.iter().any(|extent| units(*extent).contains(&unit));
        self.slots().find(|(_, it)| it.stamp != except && covers(it)).map(|(slot_ref, _)| slot_ref)
    }
}

/// The units of an extent.
pub(crate) fn units(extent: Extent) -> std::ops::Range<usize> {
    let first = (extent.offset / EXTENT_ALIGN) as usize;
    first..first + extent.len.div_ceil(EXTENT_ALIGN) as usize
}

/// The units of an object's extents, in order.
pub(crate) fn all_units(extents: &[Extent]) -> Vec<usize> {
    extents.iter().flat_map(|it| units(*it)).collect()
}
