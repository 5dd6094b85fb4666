//! Layout of the control segment, see `docs/format.md`, section "Memory segments".
//!
//! ```text
//! 0            4096                     heap offset
//! ├── header ──┼── slots, 128 bytes each ──┼── heap ──┤
//! ```
//!
//! Everything in the header and the slots is a 64-bit little-endian word, so that it can be loaded and stored
//! atomically. The heap holds keys, namespace names, attributes and spilled extents; the node allocates it.
//!
//! Slots and heap are sized for far more objects than a node will hold. The file is sparse: only pages in use
//! have memory. An unused page must not even be read, because that allocates it.
//!
//! **Invariant:** a control segment describes itself: from its bytes alone, [`crate::control::ControlReader`]
//! finds every use of every slot, its key, its namespace and its extents.

use crate::Extent;

/// The first word: `TIFFIN` and two zero bytes.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TIFFIN\0\0");
/// Version of this layout. Others are rejected.
pub const FORMAT_VERSION: u64 = 1;

/// Bytes of the header; words that are not named below are zero.
pub const HEADER_BYTES: u64 = 4096;
/// Bytes of one slot.
pub const SLOT_BYTES: u64 = 128;
/// Bytes of one extent in the heap: offset, then length.
pub const SPILLED_EXTENT_BYTES: u64 = 16;
/// Bytes of the claim word of a slot, in the file of claims.
pub const CLAIM_BYTES: u64 = 8;
/// Number of extents in the slot itself.
pub const INLINE_EXTENTS: usize = 2;

/// Maximum number of slots of a segment.
pub const SLOTS_MAX: u32 = 1 << 28;
/// Maximum number of extents of one slot.
pub const EXTENTS_MAX: u64 = 1 << 16;
/// Maximum size of the heap.
pub const HEAP_BYTES_MAX: u64 = 1 << 40;
/// Maximum size of the data segment.
pub const DATA_BYTES_MAX: u64 = 1 << 46;
/// Maximum length of a key or namespace name that is read back.
pub const NAME_BYTES_MAX: u64 = 1 << 20;

/// Byte offsets of the words of the header.
pub mod header {
    /// [`super::MAGIC`].
    pub const MAGIC: u64 = 0;
    /// [`super::FORMAT_VERSION`].
    pub const FORMAT_VERSION: u64 = 8;
    /// Random, chosen at creation.
    pub const SEGMENT_ID: u64 = 16;
    /// Number of slots.
    pub const SLOT_COUNT: u64 = 24;
    /// Offset of the first slot.
    pub const SLOT_OFFSET: u64 = 32;
    /// Offset of the heap.
    pub const HEAP_OFFSET: u64 = 40;
    /// Size of the heap.
    pub const HEAP_BYTES: u64 = 48;
    /// Size of the data segment.
    pub const DATA_BYTES: u64 = 56;
    /// No stamp at or above this one has ever been used.
    pub const STAMP_HIGH_WATER: u64 = 64;
    /// The epoch of the master that the node last belonged to.
    pub const MASTER_EPOCH: u64 = 72;
    /// One while the node is a member of its cluster, and receives every retire; else zero.
    pub const MEMBER: u64 = 80;
    /// No slot at or above this one has ever been used.
    pub const SLOT_HIGH_WATER: u64 = 88;
    /// The random number of the master that the node last belonged to.
    pub const MASTER_INSTANCE: u64 = 96;
    /// The id of the cluster that the node belongs to; zero if it is not known.
    pub const CLUSTER: u64 = 104;
}

/// Byte offsets of the words of a slot.
pub mod slot {
    /// Zero, or the stamp of the current use. Changes before any byte of that use may be overwritten.
    pub const STAMP: u64 = 0;
    /// Bits 0–7 the state, bit 8 hard pin, bit 9 soft pin.
    pub const STATE: u64 = 8;
    /// Offset in the heap of the namespace's name.
    pub const NAMESPACE_OFFSET: u64 = 16;
    /// Bits 0–31 the length of the namespace's name, bits 32–63 the bytes that are allocated for namespace
    /// and key.
    pub const NAMESPACE_LEN: u64 = 24;
    /// The generation's epoch.
    pub const GENERATION_EPOCH: u64 = 32;
    /// The generation's counter.
    pub const GENERATION_COUNTER: u64 = 40;
    /// Total length of the extents.
    pub const LEN: u64 = 48;
    /// Number of extents.
    pub const EXTENT_COUNT: u64 = 56;
    /// Two extents (offset, length, offset, length); with more than two, the first word is the offset in the
    /// heap of the list of all of them.
    pub const EXTENTS: u64 = 64;
    /// Offset in the heap of the key.
    pub const KEY_OFFSET: u64 = 96;
    /// Length of the key.
    pub const KEY_LEN: u64 = 104;
    /// The client that may be writing it; zero for none. Of a retired use: its stamp.
    pub const WRITER: u64 = 112;
    /// Offset in the heap of the attributes (bits 0–39) and their length (bits 40–63).
    pub const ATTRIBUTES: u64 = 120;
}

/// Number of bits of the namespace's length.
pub const NAMESPACE_LEN_BITS: u32 = 32;
/// Number of bits of the attributes word that hold the offset.
pub const ATTRIBUTES_OFFSET_BITS: u32 = 40;
/// Maximum length of an object's attributes.
pub const ATTRIBUTES_BYTES_MAX: u64 = (1 << 24) - 1;
/// State of a slot that is not in use.
pub const STATE_FREE: u64 = 0;
/// The bit of the state word for "never evict".
pub const FLAG_HARD_PIN: u64 = 1 << 8;
/// The bit of the state word for "evict last".
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
    /// Offset of a slot; `None` if there is no such slot.
    #[must_use]
    pub fn slot_at(&self, slot: u32) -> Option<u64> {
        (slot < self.slot_count).then(|| HEADER_BYTES + u64::from(slot) * SLOT_BYTES)
    }

    /// Number of slots that begin before this offset.
    #[must_use]
    pub fn slots_before(&self, offset: u64) -> u64 {
        offset.saturating_sub(HEADER_BYTES).div_ceil(SLOT_BYTES).min(u64::from(self.slot_count))
    }

    /// Offset of the heap.
    #[must_use]
    pub fn heap_at(&self) -> u64 {
        (HEADER_BYTES + u64::from(self.slot_count) * SLOT_BYTES).next_multiple_of(HEADER_BYTES)
    }

    /// Size of the control segment.
    #[must_use]
    pub fn control_bytes(&self) -> u64 {
        self.heap_at() + self.heap_bytes.min(HEAP_BYTES_MAX)
    }

    /// Size of the file of claim words.
    #[must_use]
    pub fn claims_bytes(&self) -> u64 {
        u64::from(self.slot_count) * CLAIM_BYTES
    }

    /// A range of the heap as a range of the control segment; `None` if it is not inside the heap.
    #[must_use]
    pub fn in_heap(&self, run: Extent) -> Option<Extent> {
        (run.end()? <= self.heap_bytes).then(|| Extent { offset: self.heap_at() + run.offset, len: run.len })
    }

    /// Whether every size is within its limits.
    #[must_use]
    pub fn is_sane(&self) -> bool {
        (1..=DATA_BYTES_MAX).contains(&self.data_bytes)
            && (1..=SLOTS_MAX).contains(&self.slot_count)
            && self.heap_bytes <= HEAP_BYTES_MAX
    }
}
