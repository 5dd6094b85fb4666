//! A disk that keeps apart what it was asked to do and what is there for good. What is under way when its
//! process dies has happened, or has not.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_core::{
    Hold, Stamp,
    extent::room_for,
    marks::Marks,
    message::Record,
    node::{SlotRecord, SlotState},
};

use tiffin_sim_runner::Rng;

use crate::{memory::Tag, world::Time};

/// A copy that is there for good.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) record: Record,
    pub(crate) tags: Vec<Tag>,
    /// Its bytes are not what they were, and its checksum tells.
    pub(crate) flipped: bool,
}

/// A copy that is being written.
#[derive(Debug)]
pub(crate) struct Appending {
    pub(crate) source: Hold,
    pub(crate) record: Record,
    /// Where the bytes lie in memory, until they are read.
    pub(crate) units: Vec<usize>,
    /// Once they are.
    pub(crate) tags: Option<Vec<Tag>>,
}

/// A copy that is being read into memory.
#[derive(Debug)]
pub(crate) struct Loading {
    pub(crate) stamp: Stamp,
    pub(crate) units: Vec<usize>,
    pub(crate) done: usize,
}

/// The log of one disk, and how well its device works.
#[derive(Debug, Default)]
pub(crate) struct DiskLog {
    pub(crate) kept: BTreeMap<Stamp, Kept>,
    /// The life of the master that it belongs to, for good.
    pub(crate) epoch: u64,
    pub(crate) life: u64,
    pub(crate) capacity: u64,
    pub(crate) appending: BTreeMap<Stamp, Appending>,
    pub(crate) forgetting: BTreeSet<Stamp>,
    pub(crate) marking: BTreeMap<Stamp, Marks>,
    pub(crate) loading: BTreeMap<Hold, Loading>,
    /// The device answers with errors until then.
    pub(crate) fails_until: Time,
    /// Something else has filled it until then.
    pub(crate) full_until: Time,
    /// It is slow until then.
    pub(crate) slow_until: Time,
    /// So many of the next completions are lost, until its process starts anew.
    pub(crate) loses: u32,
    pub(crate) has_lost: bool,
}

impl DiskLog {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// Bytes that are taken, or will be.
    pub(crate) fn used(&self) -> u64 {
        let kept = self.kept.values().map(|it| it.record.len);
        kept.chain(self.appending.values().map(|it| it.record.len)).filter_map(room_for).sum()
    }

    /// Nothing is under way.
    pub(crate) fn rests(&self) -> bool {
        self.appending.is_empty()
            && self.forgetting.is_empty()
            && self.marking.is_empty()
            && self.loading.is_empty()
    }

    /// The process dies: what is under way is there for good, or never was.
    pub(crate) fn crash(&mut self, rng: &mut Rng) {
        for (stamp, it) in std::mem::take(&mut self.appending) {
            if let Some(tags) = it.tags.filter(|_| rng.percent(50)) {
                self.kept.insert(stamp, Kept { record: it.record, tags, flipped: false });
            }
        }
        for (stamp, marks) in std::mem::take(&mut self.marking) {
            if let Some(kept) = self.kept.get_mut(&stamp).filter(|_| rng.percent(50)) {
                kept.record.marks = marks;
            }
        }
        for stamp in std::mem::take(&mut self.forgetting) {
            if rng.percent(50) {
                self.kept.remove(&stamp);
            }
        }
        self.loading.clear();
        (self.fails_until, self.full_until, self.slow_until) = (0, 0, 0);
        (self.loses, self.has_lost) = (0, false);
    }

    /// What it was found to hold.
    pub(crate) fn records(&self) -> Vec<Record> {
        self.kept.values().map(|it| it.record.clone()).collect()
    }

    /// The next copies to leave to make room for so many bytes: the oldest, but nothing that is pinned.
    pub(crate) fn victims(&self, need: u64) -> Vec<Stamp> {
        let mut victims = Vec::new();
        let mut used = self.used();
        for (stamp, kept) in &self.kept {
            if used + need <= self.capacity {
                break;
            }
            let marked = self.marking.get(stamp).is_some_and(|it| !it.pins.is_empty());
            if kept.record.marks.pins.is_empty() && !marked && !self.forgetting.contains(stamp) {
                used -= room_for(kept.record.len).unwrap_or(0);
                victims.push(*stamp);
            }
        }
        if used + need <= self.capacity { victims } else { Vec::new() }
    }
}

/// How a copy on a disk looks to the oracle: like any that can be read.
pub(crate) fn slot(record: &Record) -> SlotRecord {
    SlotRecord {
        stamp: record.hold.stamp,
        state: SlotState::Committed,
        generation: record.generation,
        len: record.len,
        extents: Vec::new(),
        heap: tiffin_core::Extent::default(),
        namespace_len: 0,
        key_len: 0,
        marks: tiffin_core::Extent::default(),
        hard_pin: !record.marks.pins.is_empty(),
    }
}
