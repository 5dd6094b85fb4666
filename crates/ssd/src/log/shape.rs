//! The sizes of a log: which bytes of the disk it uses, what fits into a segment, and how a record is cut.

use super::RESERVE_SEGMENTS;
use crate::layout::{BLOCK, Entry, HEAD_BYTES, HEADER_BYTES_MAX, SUM_BYTES, blocks_up};
use crate::types::{AppendError, Record};

/// The maximum number of parts of a record.
pub const PARTS_MAX: u64 = 1 << 13;
/// The smallest part is this fraction of a segment, or one checksum block. Only the last may be smaller.
const PART_SHARE_MIN: u64 = 64;
/// Entries of which this many fit into a segment waste little of it.
const SMALL_PER_SEGMENT: u64 = 16;

/// The size and the number of segments; both zero until they are known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shape {
    pub(super) segment_bytes: u64,
    pub(super) segments: u64,
}

impl Shape {
    /// The end of the log on the disk: never beyond the budget.
    pub(super) fn end(self) -> u64 {
        HEAD_BYTES + self.segments * self.segment_bytes
    }

    pub(super) fn at(self, segment: u32, offset: u64) -> u64 {
        HEAD_BYTES + u64::from(segment) * self.segment_bytes + offset
    }

    /// The extent of a record in one piece, and the bytes of its header and of its index entry.
    pub(super) fn extent_of(record: &Record) -> (u64, u64, u64) {
        Self::extent_with(record, record.payload_bytes.div_ceil(SUM_BYTES) as usize, 0)
    }

    /// The same for a record in the index, with as many checksums and parts. A spanning one has only its
    /// header here.
    pub(super) fn extent_with(record: &Record, sums: usize, parts: usize) -> (u64, u64, u64) {
        if parts > 0 {
            let compact = Entry::spanning_bytes(record, parts);
            return (blocks_up(compact), blocks_up(compact), compact);
        }
        let compact = Entry::record_bytes(record, sums as u64);
        let header = blocks_up(compact);
        (header + blocks_up(record.payload_bytes), header, compact)
    }

    /// The space that an entry occupies in effect if it is not evicted: only one entry that is larger than
    /// half a segment fits into each.
    pub(super) fn footprint(self, extent: u64) -> u64 {
        let per_segment = self.segment_bytes.saturating_sub(4 * BLOCK) / extent.max(1);
        if per_segment >= SMALL_PER_SEGMENT { extent } else { self.segment_bytes / per_segment.max(1) }
    }

    /// The limit of the footprints of protected entries. Up to it, some segment can always be emptied into
    /// less space than it frees.
    pub(super) fn protected_bytes_max(self) -> u64 {
        let usable = self.segments.saturating_sub(RESERVE_SEGMENTS + 2);
        usable * self.segment_bytes / 8 * 5
    }

    /// Whether a record does not fit into one segment.
    pub(super) fn spans(self, record: &Record) -> bool {
        let (extent, header_bytes, compact) = Self::extent_of(record);
        extent > self.whole_bytes_max(compact) || header_bytes > HEADER_BYTES_MAX
    }

    /// The largest extent of a record in one piece, with this many bytes in the index.
    pub(super) fn whole_bytes_max(self, compact: u64) -> u64 {
        self.segment_bytes.saturating_sub(2 * BLOCK + blocks_up(compact))
    }

    /// The largest payload of a record.
    pub(super) fn record_bytes_max(self) -> u64 {
        let header = blocks_up(part_header_bytes(self.segment_bytes));
        let whole = self.whole_bytes_max(header).saturating_sub(header);
        let segments = (self.protected_bytes_max() / self.segment_bytes).min(PARTS_MAX);
        let parts = segments.saturating_sub(1) * self.part_bytes_max();
        whole.max(parts.saturating_sub(1))
    }

    /// The largest extent of an append.
    pub(super) fn asked_extent(self, record: &Record) -> u64 {
        if !self.spans(record) {
            return Self::extent_of(record).0;
        }
        let parts = self.parts_at_most(record.payload_bytes);
        let head = blocks_up(Entry::spanning_bytes(record, parts as usize));
        let part = blocks_up(part_header_bytes(record.payload_bytes.min(self.segment_bytes)));
        blocks_up(record.payload_bytes) + parts * part + head
    }

    /// The largest footprint of an append.
    pub(super) fn asked_footprint(self, record: &Record) -> u64 {
        match self.spans(record) {
            true => self.held_footprint(record.payload_bytes),
            false => self.footprint(Self::extent_of(record).0),
        }
    }

    /// Refuses a record that is too large for the log, even if the log were empty.
    pub(super) fn may_span(self, record: &Record) -> Result<(), AppendError> {
        let parts = self.parts_at_most(record.payload_bytes);
        let header = blocks_up(Entry::spanning_bytes(record, parts as usize));
        let fits = self.asked_footprint(record) <= self.protected_bytes_max()
            && parts <= PARTS_MAX
            && header <= HEADER_BYTES_MAX;
        let (bytes, bytes_max) = (record.payload_bytes, self.record_bytes_max());
        if fits { Ok(()) } else { Err(AppendError::TooLarge { bytes, bytes_max }) }
    }

    /// The smallest part, unless it is the last.
    pub(super) fn part_bytes_min(self) -> u64 {
        (self.segment_bytes / PART_SHARE_MIN / SUM_BYTES).max(1) * SUM_BYTES
    }

    /// The largest part.
    fn part_bytes_max(self) -> u64 {
        let header = blocks_up(part_header_bytes(self.segment_bytes));
        self.segment_bytes.saturating_sub(2 * BLOCK + 2 * header) / SUM_BYTES * SUM_BYTES
    }

    /// The expected maximum number of parts: one for each filled segment, for the rest of the first and for
    /// the end.
    fn parts_at_most(self, payload_bytes: u64) -> u64 {
        payload_bytes / self.part_bytes_max().max(1) + 2
    }

    /// The largest footprint of a payload in parts. They fill their segments, except for the first and the
    /// last.
    pub(super) fn held_footprint(self, payload_bytes: u64) -> u64 {
        self.parts_at_most(payload_bytes) * self.segment_bytes
    }
}

/// The bytes of the header of a part without padding.
pub(super) fn part_header_bytes(bytes: u64) -> u64 {
    Entry::part_bytes(bytes.div_ceil(SUM_BYTES))
}
