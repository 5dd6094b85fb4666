//! The durable state of the master: its epoch, its members and the retires that they owe, and the policies of
//! namespaces.

use std::collections::BTreeSet;

use crate::{
    ClusterId, SegmentId, SlotId, SlotRef, Stamp,
    message::{NodeInfo, Policy},
};

/// The state that survives a restart of the master.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// The epoch of the master that wrote it.
    pub epoch: u64,
    /// The roster: every member that may hold objects.
    pub members: Vec<SavedMember>,
    /// The namespaces that have a policy.
    pub policies: Vec<SavedPolicy>,
    /// Members that the operator declared lost.
    pub forgotten: Vec<SegmentId>,
    /// The id of the cluster, then the ids of other clusters whose members belong to it as well. Empty before
    /// the first member registers.
    pub clusters: Vec<ClusterId>,
}

/// The policy of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedPolicy {
    /// Its name.
    pub namespace: String,
    /// Its settings.
    pub policy: Policy,
}

/// A member of the roster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedMember {
    /// Its memory, or its disk.
    pub segment: SegmentId,
    /// Its name, for messages.
    pub name: String,
    /// The machine it runs on.
    pub host: String,
    /// For a disk: the memory of its node.
    pub beside: Option<SegmentId>,
    /// Its address for other hosts; empty if it has none.
    pub tcp: String,
    /// Its memory outlives its process.
    pub outlives: bool,
    /// Its pending retires: the slot and the stamp of each copy, in 4 and 8 bytes, little-endian.
    pub owed: Vec<u8>,
}

impl SavedMember {
    /// A member without pending retires.
    #[must_use]
    pub fn of(info: &NodeInfo) -> Self {
        let NodeInfo { segment, name, host, beside, tcp, outlives, .. } = info;
        let (name, host, tcp) = (name.clone(), host.clone(), tcp.clone());
        let owed = Vec::new();
        Self { segment: *segment, name, host, beside: *beside, tcp, outlives: *outlives, owed }
    }

    /// With these pending retires.
    #[must_use]
    pub fn owing<'a>(self, slot_refs: impl Iterator<Item = &'a SlotRef>) -> Self {
        Self { owed: pack(slot_refs), ..self }
    }

    /// See [`Self::owed`].
    #[must_use]
    pub fn owed_slot_refs(&self) -> BTreeSet<SlotRef> {
        unpack(&self.owed)
    }

    /// What is known of it before it registers.
    #[must_use]
    pub fn info(self) -> NodeInfo {
        let Self { segment, name, host, beside, tcp, outlives, owed: _ } = self;
        NodeInfo { segment, name, host, beside, tcp, outlives, ..NodeInfo::default() }
    }
}

/// Copies as bytes: slot and stamp of each.
fn pack<'a>(slot_refs: impl Iterator<Item = &'a SlotRef>) -> Vec<u8> {
    let bytes = slot_refs.flat_map(|it| {
        let (slot, stamp) = (it.slot.0.to_le_bytes(), it.stamp.0.to_le_bytes());
        slot.into_iter().chain(stamp)
    });
    bytes.collect()
}

/// See [`pack`]. What is left over at the end is ignored.
fn unpack(mut bytes: &[u8]) -> BTreeSet<SlotRef> {
    let mut slot_refs = BTreeSet::new();
    while let Some((slot, rest)) = bytes.split_first_chunk()
        && let Some((stamp, rest)) = rest.split_first_chunk()
    {
        let (slot, stamp) = (SlotId(u32::from_le_bytes(*slot)), Stamp(u64::from_le_bytes(*stamp)));
        slot_refs.insert(SlotRef { slot, stamp });
        bytes = rest;
    }
    slot_refs
}
