//! Memory through which a disk hands its bytes to clients of this host: they map it, and copy from there.
//!
//! It is a segment like that of a node, with its own records, and lives beside the node's memory: what is
//! read from a disk without coming back into memory takes no room from objects.
//!
//! **Invariant:** room is given to somebody else only after its stamp was withdrawn, and that only when both
//! the disk and the connection that it was read for have let go of it. So a copy that was cut short by the
//! node itself does not count, and no other can be.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tiffin_core::{Extent, SegmentId, extent::FreeSpace};
use tiffin_transport::control::{ControlWriter, SlotRecord, SlotState};
use tiffin_transport::layout::Geometry;
use tiffin_transport::segment::NodeMemory;
use tiffin_transport::{self as transport, tcp};

/// The bytes of a stage. They are taken from the system when they are used first.
pub(super) const STAGE_BYTES: u64 = 64 << 20;
/// How many places it has.
const STAGE_SLOTS: u32 = 512;
/// Room is given in blocks of a disk, so that it can read straight into them.
const BLOCK_BYTES: u64 = 4096;

/// The stage of one disk.
pub(super) struct Stage {
    memory: Arc<NodeMemory>,
    // Held while records are written; never over an await.
    book: Mutex<Book>,
}

struct Book {
    writer: ControlWriter,
    space: FreeSpace,
    slots: Vec<u32>,
    stamps: u64,
}

/// Room on a stage, for one reader. It is free again when the last who holds this lets go.
pub(super) struct Room {
    stage: Arc<Stage>,
    slot: u32,
    stamp: u64,
    /// Whole blocks.
    extent: Extent,
    len: u64,
}

impl Stage {
    /// A stage for the disk of that name; nothing if the machine has no memory for it.
    pub(super) fn new(segment: SegmentId) -> Option<Arc<Self>> {
        let geometry = Geometry {
            segment: segment.0,
            data_bytes: STAGE_BYTES,
            slot_count: STAGE_SLOTS,
            heap_bytes: BLOCK_BYTES,
        };
        match NodeMemory::create(geometry) {
            Ok((memory, writer)) => {
                let (space, slots) = (FreeSpace::new(STAGE_BYTES), (0..STAGE_SLOTS).collect());
                let book = Mutex::new(Book { writer, space, slots, stamps: 0 });
                Some(Arc::new(Self { memory, book }))
            }
            Err(error) => {
                tracing::warn!(%error, "what lies on the disk goes through a socket, also on this host");
                None
            }
        }
    }

    pub(super) fn memory(&self) -> &Arc<NodeMemory> {
        &self.memory
    }

    /// Room in one piece; nothing if there is none.
    pub(super) fn take(self: &Arc<Self>, len: u64) -> Option<Arc<Room>> {
        let mut book = self.lock();
        let slot = book.slots.pop()?;
        let Some(extent) = book.space.take_contiguous(len.checked_next_multiple_of(BLOCK_BYTES)?) else {
            book.slots.push(slot);
            return None;
        };
        book.stamps += 1;
        let (stamp, mark) = (book.stamps, book.stamps + 1);
        book.writer.set_stamp_high_water(mark);
        Some(Arc::new(Room { stage: Arc::clone(self), slot, stamp, extent, len }))
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        // What was being written when somebody panicked is not published, or is: both are whole.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Room {
    /// Where the bytes are to go.
    pub(super) fn extent(&self) -> transport::Extent {
        transport::Extent { offset: self.extent.offset, len: self.len }
    }

    pub(super) fn memory(&self) -> &Arc<NodeMemory> {
        &self.stage.memory
    }

    /// The bytes are there: from now on they are found.
    pub(super) fn publish(&self) {
        let (stamp, len, state) = (self.stamp, self.len, SlotState::Committed);
        let record = SlotRecord { stamp, state, len, extents: vec![self.extent()], ..SlotRecord::default() };
        self.stage.lock().writer.write_slot(self.slot, &record);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut book = self.stage.lock();
        book.writer.retire(self.slot);
        book.space.give_back(self.extent);
        book.slots.push(self.slot);
    }
}

/// Room with bytes in it, for as long as its reader has not let go.
pub(super) struct Shown(pub(super) Arc<Room>);

impl tcp::StagedBytes for Shown {
    fn location(&self) -> (u32, u64) {
        (self.0.slot, self.0.stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_found_under_its_stamp_until_the_last_has_let_go() {
        let stage = Stage::new(SegmentId(7)).unwrap();
        let room = stage.take(5000).unwrap();
        let (slot, stamp) = (room.slot, room.stamp);
        let reader = stage.memory().reader();
        assert!(reader.load(slot, stamp).is_err(), "nothing is there yet");
        room.publish();
        assert_eq!(reader.load(slot, stamp).unwrap().extents, [room.extent()]);
        let of_the_disk = Arc::clone(&room);
        drop(room);
        assert!(reader.is_current(slot, stamp), "the disk may still write there");
        drop(of_the_disk);
        assert!(!reader.is_current(slot, stamp));
        let next = stage.take(5000).unwrap();
        assert_eq!(next.slot, slot);
        assert_ne!(next.stamp, stamp, "stamps are not used twice");
    }

    #[test]
    fn a_stage_has_an_end_and_room_comes_back() {
        let stage = Stage::new(SegmentId(7)).unwrap();
        for _ in 0..3 {
            let rooms: Vec<_> = std::iter::from_fn(|| stage.take(4 << 20)).collect();
            assert_eq!(rooms.len() as u64, STAGE_BYTES / (4 << 20));
            assert!(rooms.iter().all(|it| it.extent().offset.is_multiple_of(BLOCK_BYTES)));
        }
        let rooms: Vec<_> = std::iter::from_fn(|| stage.take(1)).collect();
        assert_eq!(rooms.len(), STAGE_SLOTS as usize);
    }
}
