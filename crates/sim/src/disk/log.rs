//! A simulated disk that separates requested from durable operations. An operation in progress when its
//! process dies has happened, or has not.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_node::{SlotRecord, SlotState};
use tiffin_types::{ClusterId, SlotRef, Stamp, attributes::Attributes, message::Record, space_for};

use tiffin_sim_runner::Rng;

use crate::{memory::Tag, world::Time};

/// A durable copy.
#[derive(Debug)]
pub(crate) struct DiskCopy {
    pub(crate) record: Record,
    pub(crate) tags: Vec<Tag>,
    /// Its bytes are damaged, and the checksum shows it.
    pub(crate) flipped: bool,
}

/// A copy that is being written.
#[derive(Debug)]
pub(crate) struct Appending {
    pub(crate) source: SlotRef,
    pub(crate) record: Record,
    /// Units of the source in memory, until they are read.
    pub(crate) units: Vec<usize>,
    /// Their content, once they are read.
    pub(crate) tags: Option<Vec<Tag>>,
}

/// A copy that is being read into memory.
#[derive(Debug)]
pub(crate) struct Loading {
    pub(crate) stamp: Stamp,
    pub(crate) units: Vec<usize>,
    pub(crate) done: usize,
}

/// The log of one disk, and the state of its device.
#[derive(Debug, Default)]
pub(crate) struct DiskLog {
    pub(crate) copies: BTreeMap<Stamp, DiskCopy>,
    /// The durable epoch of the master.
    pub(crate) epoch: u64,
    pub(crate) instance: u64,
    pub(crate) cluster: ClusterId,
    pub(crate) capacity: u64,
    pub(crate) appending: BTreeMap<Stamp, Appending>,
    pub(crate) forgetting: BTreeSet<Stamp>,
    pub(crate) marking: BTreeMap<Stamp, Attributes>,
    pub(crate) loading: BTreeMap<SlotRef, Loading>,
    /// The device returns errors until then.
    pub(crate) fails_until: Time,
    /// The device is full until then.
    pub(crate) full_until: Time,
    /// The device is slow until then.
    pub(crate) slow_until: Time,
    /// Number of the next completions that are lost, until the process restarts.
    pub(crate) lose_completions: u32,
    pub(crate) has_lost: bool,
}

impl DiskLog {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// Bytes in use, including pending writes.
    pub(crate) fn used(&self) -> u64 {
        let copies = self.copies.values().map(|it| it.record.len);
        copies.chain(self.appending.values().map(|it| it.record.len)).filter_map(space_for).sum()
    }

    /// Whether no operation is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        self.appending.is_empty()
            && self.forgetting.is_empty()
            && self.marking.is_empty()
            && self.loading.is_empty()
    }

    /// The process dies: each operation in progress is durable, or never happened.
    pub(crate) fn crash(&mut self, rng: &mut Rng) {
        for (stamp, it) in std::mem::take(&mut self.appending) {
            if let Some(tags) = it.tags.filter(|_| rng.percent(50)) {
                self.copies.insert(stamp, DiskCopy { record: it.record, tags, flipped: false });
            }
        }
        for (stamp, attributes) in std::mem::take(&mut self.marking) {
            if let Some(copies) = self.copies.get_mut(&stamp).filter(|_| rng.percent(50)) {
                copies.record.attributes = attributes;
            }
        }
        for stamp in std::mem::take(&mut self.forgetting) {
            if rng.percent(50) {
                self.copies.remove(&stamp);
            }
        }
        self.loading.clear();
        (self.fails_until, self.full_until, self.slow_until) = (0, 0, 0);
        (self.lose_completions, self.has_lost) = (0, false);
    }

    /// The durable records.
    pub(crate) fn records(&self) -> Vec<Record> {
        self.copies.values().map(|it| it.record.clone()).collect()
    }

    /// The copies to evict for `need` bytes: the oldest, except pinned ones.
    pub(crate) fn victims(&self, need: u64) -> Vec<Stamp> {
        let mut victims = Vec::new();
        let mut used = self.used();
        for (stamp, copies) in &self.copies {
            if used + need <= self.capacity {
                break;
            }
            let marked = self.marking.get(stamp).is_some_and(|it| !it.pins.is_empty());
            if copies.record.attributes.pins.is_empty() && !marked && !self.forgetting.contains(stamp) {
                used -= space_for(copies.record.len).unwrap_or(0);
                victims.push(*stamp);
            }
        }
        if used + need <= self.capacity { victims } else { Vec::new() }
    }
}

/// The slot record of a copy on a disk, for the oracle.
pub(crate) fn slot(record: &Record) -> SlotRecord {
    SlotRecord {
        stamp: record.slot_ref.stamp,
        state: SlotState::Committed,
        generation: record.generation,
        len: record.len,
        extents: Vec::new(),
        heap: tiffin_types::Extent::default(),
        namespace_len: 0,
        key_len: 0,
        attributes: tiffin_types::Extent::default(),
        writer: None,
        hard_pin: !record.attributes.pins.is_empty(),
    }
}
