//! The staging segment of a disk: clients of this host map it and copy from it what the disk has read.
//!
//! It is a segment like that of a node, with its own records, and is not part of the node's memory. So a read
//! that promotes nothing takes no memory from objects.
//!
//! **Invariant:** an extent is reused only after its stamp was retired. That happens when both the disk and
//! the connection that it was read for have dropped it. So a client that copies meanwhile notices the reuse.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tiffin_node::extent::FreeSpace;
use tiffin_transport::control::{ControlWriter, SlotRecord, SlotState};
use tiffin_transport::layout::Geometry;
use tiffin_transport::segment::{MemoryOptions, NodeMemory};
use tiffin_transport::{self as transport, tcp};
use tiffin_types::{Extent, SegmentId};

/// Bytes of a staging segment. The system allocates each page at its first use.
pub(super) const STAGE_BYTES: u64 = 64 << 20;
/// Slots of a staging segment.
const STAGE_SLOTS: u32 = 512;
/// Extents are whole blocks of a disk, so that direct I/O can read into them.
const BLOCK_BYTES: u64 = 4096;

/// The staging segment of one disk.
pub(super) struct Staging {
    memory: Arc<NodeMemory>,
    // Held while records are written; never over an await.
    state: Mutex<StageState>,
}

struct StageState {
    writer: ControlWriter,
    space: FreeSpace,
    slots: Vec<u32>,
    stamps: u64,
}

/// An extent of a staging segment, for one read. It is free again when the last reference is dropped.
pub(super) struct StagedExtent {
    stage: Arc<Staging>,
    slot: u32,
    stamp: u64,
    /// Whole blocks.
    extent: Extent,
    len: u64,
}

impl Staging {
    /// A staging segment for a disk, or `None` if the machine has no memory for it.
    pub(super) fn new(segment: SegmentId) -> Option<Arc<Self>> {
        let geometry = Geometry {
            segment: segment.0,
            data_bytes: STAGE_BYTES,
            slot_count: STAGE_SLOTS,
            heap_bytes: BLOCK_BYTES,
        };
        // Only the disk writes there.
        let options = MemoryOptions { is_isolated: true, ..MemoryOptions::default() };
        match NodeMemory::create_with(geometry, options) {
            Ok((memory, writer)) => {
                let (space, slots) = (FreeSpace::new(STAGE_BYTES), (0..STAGE_SLOTS).collect());
                let state = Mutex::new(StageState { writer, space, slots, stamps: 0 });
                Some(Arc::new(Self { memory, state }))
            }
            Err(error) => {
                tracing::warn!(%error, "no memory for a staging segment: disk reads use a socket");
                None
            }
        }
    }

    pub(super) fn memory(&self) -> &Arc<NodeMemory> {
        &self.memory
    }

    /// Allocates a contiguous extent, or `None` if there is none.
    pub(super) fn take(self: &Arc<Self>, len: u64) -> Option<Arc<StagedExtent>> {
        let mut state = self.lock();
        let slot = state.slots.pop()?;
        let Some(extent) = state.space.take_contiguous(len.checked_next_multiple_of(BLOCK_BYTES)?) else {
            state.slots.push(slot);
            return None;
        };
        state.stamps += 1;
        let (stamp, mark) = (state.stamps, state.stamps + 1);
        state.writer.set_stamp_high_water(mark);
        Some(Arc::new(StagedExtent { stage: Arc::clone(self), slot, stamp, extent, len }))
    }

    fn lock(&self) -> MutexGuard<'_, StageState> {
        // A slot is published by one call, so a panic leaves it published or not, and never half.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StagedExtent {
    /// Where the disk writes the bytes.
    pub(super) fn extent(&self) -> transport::Extent {
        transport::Extent { offset: self.extent.offset, len: self.len }
    }

    pub(super) fn memory(&self) -> &Arc<NodeMemory> {
        &self.stage.memory
    }

    /// Publishes the slot: the bytes are complete, and clients may load it from now on.
    pub(super) fn publish(&self) {
        let (stamp, len, state) = (self.stamp, self.len, SlotState::Committed);
        let record = SlotRecord { stamp, state, len, extents: vec![self.extent()], ..SlotRecord::default() };
        self.stage.lock().writer.write_slot(self.slot, &record);
    }
}

impl Drop for StagedExtent {
    fn drop(&mut self) {
        let mut state = self.stage.lock();
        state.writer.retire(self.slot);
        state.space.give_back(self.extent);
        state.slots.push(self.slot);
    }
}

/// A published extent, which stays until the connection drops it.
pub(super) struct Published(pub(super) Arc<StagedExtent>);

impl tcp::StagedBytes for Published {
    fn location(&self) -> (u32, u64) {
        (self.0.slot, self.0.stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extent_is_published_until_its_last_reference_is_dropped() {
        let stage = Staging::new(SegmentId(7)).unwrap();
        let staged = stage.take(5000).unwrap();
        let (slot, stamp) = (staged.slot, staged.stamp);
        let reader = stage.memory().reader();
        assert!(reader.load(slot, stamp).is_err(), "it is not published yet");
        staged.publish();
        assert_eq!(reader.load(slot, stamp).unwrap().extents, [staged.extent()]);
        let disk_reference = Arc::clone(&staged);
        drop(staged);
        assert!(reader.is_current(slot, stamp), "the disk may still write to it");
        drop(disk_reference);
        assert!(!reader.is_current(slot, stamp));
        let next = stage.take(5000).unwrap();
        assert_eq!(next.slot, slot);
        assert_ne!(next.stamp, stamp, "stamps are not used twice");
    }

    #[test]
    fn dropped_extents_are_allocated_again() {
        let stage = Staging::new(SegmentId(7)).unwrap();
        for _ in 0..3 {
            let extents: Vec<_> = std::iter::from_fn(|| stage.take(4 << 20)).collect();
            assert_eq!(extents.len() as u64, STAGE_BYTES / (4 << 20));
            assert!(extents.iter().all(|it| it.extent().offset.is_multiple_of(BLOCK_BYTES)));
        }
        let extents: Vec<_> = std::iter::from_fn(|| stage.take(1)).collect();
        assert_eq!(extents.len(), STAGE_SLOTS as usize);
    }
}
