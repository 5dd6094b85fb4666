//! The control segment, byte by byte. `docs/format.md`, section "Memory segments", draws it.
//!
//! ```text
//! 0            4096                     heap offset
//! ├── header ──┼── slots, 128 bytes each ──┼── heap ──┤
//! ```
//!
//! Everything in the header and the slots is a 64-bit little-endian word, so that it can be loaded and stored
//! atomically. The heap holds key bytes, namespace names and spilled extents; where in it, the node decides.
//!
//! Slots and heap are laid out for far more than a node will hold. The file is sparse: only the pages in use
//! have memory, and a page must not even be read before it was used, because that gives it some.
//!
//! **Invariant:** a control segment describes itself: with nothing else at hand,
//! [`crate::control::ControlReader`] finds every use of every slot, its key, its namespace and its extents.

use crate::Extent;

/// The first word: `TIFFIN` and two zero bytes, in that order.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TIFFIN\0\0");
/// Which layout this is. Another one is refused.
pub const FORMAT_VERSION: u64 = 1;

/// Bytes of the header; words that are not named below are zero.
pub const HEADER_BYTES: u64 = 4096;
/// Bytes of one slot.
pub const SLOT_BYTES: u64 = 128;
/// Bytes of one extent in the heap: offset, then length.
pub const SPILLED_EXTENT_BYTES: u64 = 16;
/// Bytes of the claim word of a slot, in the file of claims.
pub const CLAIM_BYTES: u64 = 8;
/// How many extents a slot holds itself.
pub const INLINE_EXTENTS: usize = 2;

/// The most slots of a segment.
pub const SLOTS_MAX: u32 = 1 << 28;
/// The most pieces that the bytes of one slot may be cut into.
pub const EXTENTS_MAX: u64 = 1 << 16;
/// The largest heap.
pub const HEAP_BYTES_MAX: u64 = 1 << 40;
/// The largest data segment.
pub const DATA_BYTES_MAX: u64 = 1 << 46;
/// The longest key or namespace name that is read back.
pub const NAME_BYTES_MAX: u64 = 1 << 20;

/// Byte offsets of the words of the header.
pub mod header {
    /// [`super::MAGIC`].
    pub const MAGIC: u64 = 0;
    /// [`super::FORMAT_VERSION`].
    pub const FORMAT_VERSION: u64 = 8;
    /// Drawn at random when the segment is made.
    pub const SEGMENT_ID: u64 = 16;
    /// How many slots there are.
    pub const SLOT_COUNT: u64 = 24;
    /// Where they begin.
    pub const SLOT_OFFSET: u64 = 32;
    /// Where the heap begins.
    pub const HEAP_OFFSET: u64 = 40;
    /// How many bytes it has.
    pub const HEAP_BYTES: u64 = 48;
    /// How many bytes the data segment has.
    pub const DATA_BYTES: u64 = 56;
    /// No stamp at or above this one has ever been used.
    pub const STAMP_HIGH_WATER: u64 = 64;
    /// The life of the master that the node last belonged to.
    pub const MASTER_EPOCH: u64 = 72;
    /// One while the node is a member of its cluster, and so hears of every delete; else zero.
    pub const MEMBER: u64 = 80;
    /// No slot at or above this one has ever been used.
    pub const SLOT_HIGH_WATER: u64 = 88;
}

/// Byte offsets of the words of a slot.
pub mod slot {
    /// Zero, or the stamp of the present use. Changes before any byte of that use may be overwritten.
    pub const STAMP: u64 = 0;
    /// Bits 0–7 the state, bit 8 hard pin, bit 9 soft pin.
    pub const STATE: u64 = 8;
    /// Where in the heap the namespace's name begins.
    pub const NAMESPACE_OFFSET: u64 = 16;
    /// How many bytes it has.
    pub const NAMESPACE_LEN: u64 = 24;
    /// The generation's epoch.
    pub const GENERATION_EPOCH: u64 = 32;
    /// The generation's counter.
    pub const GENERATION_COUNTER: u64 = 40;
    /// How many bytes the extents hold together.
    pub const LEN: u64 = 48;
    /// How many extents there are.
    pub const EXTENT_COUNT: u64 = 56;
    /// Two extents (offset, length, offset, length); with more than two, the first word says where in the
    /// heap the list of all of them begins.
    pub const EXTENTS: u64 = 64;
    /// Where in the heap the key begins.
    pub const KEY_OFFSET: u64 = 96;
    /// How many bytes it has.
    pub const KEY_LEN: u64 = 104;
    /// Kept for the reference to checksums.
    pub const CHECKSUMS: u64 = 112;
    /// Where in the heap the marks begin (bits 0–39) and how many bytes they have (bits 40–63).
    pub const MARKS: u64 = 120;
}

/// The bits of the word of the marks that say where they begin.
pub const MARKS_OFFSET_BITS: u32 = 40;
/// The most bytes of an object's marks.
pub const MARKS_BYTES_MAX: u64 = (1 << 24) - 1;
/// The state of a slot without a use.
pub const STATE_FREE: u64 = 0;
/// The bit of the state word that says "never evict".
pub const FLAG_HARD_PIN: u64 = 1 << 8;
/// The bit of the state word that says "evict last".
pub const FLAG_SOFT_PIN: u64 = 1 << 9;

/// The sizes of a segment; everything else about the layout follows from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Geometry {
    /// The segment's random id.
    pub segment: u64,
    /// Bytes of the data segment.
    pub data_bytes: u64,
    /// Records in the control segment.
    pub slot_count: u32,
    /// Bytes of its heap.
    pub heap_bytes: u64,
}

impl Geometry {
    /// Where a slot begins; `None` if there is no such slot.
    #[must_use]
    pub fn slot_at(&self, slot: u32) -> Option<u64> {
        (slot < self.slot_count).then(|| HEADER_BYTES + u64::from(slot) * SLOT_BYTES)
    }

    /// Where the heap begins.
    #[must_use]
    pub fn heap_at(&self) -> u64 {
        (HEADER_BYTES + u64::from(self.slot_count) * SLOT_BYTES).next_multiple_of(HEADER_BYTES)
    }

    /// How many bytes the control segment has.
    #[must_use]
    pub fn control_bytes(&self) -> u64 {
        self.heap_at() + self.heap_bytes.min(HEAP_BYTES_MAX)
    }

    /// How many bytes the file of claims has.
    #[must_use]
    pub fn claims_bytes(&self) -> u64 {
        u64::from(self.slot_count) * CLAIM_BYTES
    }

    /// A run of heap bytes as a run of the control segment; `None` if it is not all inside the heap.
    #[must_use]
    pub fn in_heap(&self, run: Extent) -> Option<Extent> {
        (run.end()? <= self.heap_bytes).then(|| Extent { offset: self.heap_at() + run.offset, len: run.len })
    }

    /// Whether every size is inside its limits.
    #[must_use]
    pub fn is_sane(&self) -> bool {
        (1..=DATA_BYTES_MAX).contains(&self.data_bytes)
            && (1..=SLOTS_MAX).contains(&self.slot_count)
            && self.heap_bytes <= HEAP_BYTES_MAX
    }
}
