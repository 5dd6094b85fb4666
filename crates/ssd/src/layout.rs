//! The on-disk format, as described in `docs/format.md`. All numbers are little-endian.
//!
//! Everything that is read is verified against its checksum, and every length against a limit, because a disk
//! may contain anything. The checksums of headers are seeded with the log id. So bytes of another log, or a
//! payload that looks like a header, are not accepted.

use std::sync::Arc;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::types::{Generation, Name, OpenFault, Record, RecordId};

/// Memory, offsets and lengths of all disk work are multiples of this.
pub const BLOCK: u64 = 4096;
/// The bytes of a checksum block: payloads have one checksum for each. A payload is cut between such blocks.
pub const SUM_BYTES: u64 = 64 << 10;
/// The same in logs of versions 1 and 2.
const SUM_BYTES_OLD: u64 = 1 << 20;
/// The maximum bytes of one disk operation: whole checksum blocks in every version.
pub const CHUNK_BYTES: u64 = 1 << 20;
/// The bytes before the first segment: two superblocks, and unused ones.
pub const HEAD_BYTES: u64 = 1 << 20;
/// The version that this program writes. Version 2 added records that span segments, version 3 smaller
/// checksum blocks.
pub const VERSION: u32 = 3;
/// The oldest version that it reads. A log of an older version is converted when it is opened.
pub const VERSION_MIN: u32 = 1;
/// The version in segment heads and trailers, the same in all versions so far.
const BLOCK_VERSION: u32 = 1;
/// The longest namespace.
pub const NAMESPACE_BYTES_MAX: usize = 4096;
/// The longest key.
pub const KEY_BYTES_MAX: usize = 64 << 10;
/// The longest attributes.
pub const ATTRIBUTES_BYTES_MAX: usize = 256 << 10;
/// The longest header of an entry.
pub(crate) const HEADER_BYTES_MAX: u64 = 512 << 10;
/// The maximum bytes of notes in one entry.
pub(crate) const NOTES_BYTES_MAX: usize = 256 << 10;

const SUPER_MAGIC: u64 = u64::from_le_bytes(*b"TIFFNSSD");
const SEGMENT_MAGIC: u32 = u32::from_le_bytes(*b"TFSG");
const ENTRY_MAGIC: u32 = u32::from_le_bytes(*b"TFSE");
const TRAILER_MAGIC: u32 = u32::from_le_bytes(*b"TFSX");
const ENTRY_FIXED: usize = 96;
const KIND_RECORD: u8 = 1;
const KIND_NOTES: u8 = 2;
const KIND_SPANNING: u8 = 3;
const KIND_PART: u8 = 4;
const FLAG_PROTECTED: u8 = 1;
const NOTE_FIXED: usize = 16;
const PART_REF_BYTES: u64 = 16;
const NOTE_FORGET: u8 = 1;
const NOTE_ATTRIBUTES: u8 = 2;

/// The superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Super {
    pub(crate) version: u32,
    pub(crate) log: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) segments: u64,
}

/// The first block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHead {
    /// Identifies this use of the segment; never reused.
    pub(crate) incarnation: u64,
    /// No sequence number at or above it had been used when the segment was opened.
    pub(crate) floor: u64,
}

/// The last block of a sealed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) incarnation: u64,
    pub(crate) index_offset: u64,
    pub(crate) index_bytes: u64,
    pub(crate) index_sum: u64,
}

/// An entry of the log, its position and its sequence number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) incarnation: u64,
    pub(crate) offset: u64,
    pub(crate) sequence: u64,
    pub(crate) body: Body,
}

/// The contents of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// A record, followed by its payload.
    Record { id: RecordId, record: Record, sums: Arc<[u64]> },
    /// A record whose payload is in these parts, in order.
    Spanning { id: RecordId, record: Record, parts: Arc<[PartRef]> },
    /// A part of the payload of a spanning record, followed by its bytes. It is ignored without that record.
    Part { id: RecordId, part: PartHead, sums: Arc<[u64]> },
    /// Notes about other records.
    Notes(Vec<Note>),
}

/// A reference of a spanning record to a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartRef {
    /// The id of the part, which stays when it is moved.
    pub(crate) id: RecordId,
    /// Its payload bytes. All parts but the last have whole checksum blocks.
    pub(crate) bytes: u64,
}

/// The header of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartHead {
    /// Its record.
    pub(crate) of: RecordId,
    /// Where its bytes begin in the payload.
    pub(crate) start: u64,
    /// The number of its bytes.
    pub(crate) bytes: u64,
}

impl Body {
    /// The bytes that follow the header, and their checksums.
    pub(crate) fn payload(&self) -> Option<(u64, &Arc<[u64]>)> {
        match self {
            Self::Record { record, sums, .. } => Some((record.payload_bytes, sums)),
            Self::Part { part, sums, .. } => Some((part.bytes, sums)),
            Self::Spanning { .. } | Self::Notes(_) => None,
        }
    }
}

/// A note about a record in another entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// A tombstone: the record is deleted.
    Forget(RecordId),
    /// The record has these attributes now.
    Attributes { id: RecordId, protected: bool, attributes: Vec<u8> },
}

impl Note {
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Forget(_) => NOTE_FIXED,
            Self::Attributes { attributes, .. } => NOTE_FIXED + attributes.len(),
        }
    }
}

/// A decoded header, and the sizes of its entry.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) entry: Entry,
    /// The bytes of the header without padding, as in an index.
    pub(crate) compact_bytes: usize,
    /// The bytes of the entry in its segment.
    pub(crate) extent: u64,
    /// The bytes of the header with padding.
    pub(crate) header_bytes: u64,
}

/// The next multiple of a block.
pub(crate) fn blocks_up(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK) * BLOCK
}

/// The checksums of a payload in these pieces.
pub fn sums<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Arc<[u64]> {
    let mut out = Vec::new();
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    let mut space = SUM_BYTES as usize;
    for mut piece in pieces {
        while !piece.is_empty() {
            let (now, later) = piece.split_at(space.min(piece.len()));
            if now.len() == SUM_BYTES as usize {
                out.push(sum(now));
            } else {
                hasher.update(now);
                space -= now.len();
                if space == 0 {
                    out.push(hasher.digest());
                    hasher.reset();
                    space = SUM_BYTES as usize;
                }
            }
            piece = later;
        }
    }
    if space < SUM_BYTES as usize {
        out.push(hasher.digest());
    }
    out.into()
}

/// How many bytes each of `count` checksums of a payload covers: [`SUM_BYTES`], or more if an older version
/// wrote it. `None` if no version has this number.
pub(crate) fn sum_bytes(payload_bytes: u64, count: usize) -> Option<u64> {
    [SUM_BYTES, SUM_BYTES_OLD].into_iter().find(|bytes| payload_bytes.div_ceil(*bytes) == count as u64)
}

/// Whether the bytes that begin at block `first` of a payload match its checksums, each of `sum_bytes`.
pub(crate) fn verify(bytes: &[u8], sums: &[u64], first: usize, sum_bytes: u64) -> bool {
    let mut sums = sums.get(first..).unwrap_or_default().iter();
    bytes.chunks(sum_bytes as usize).all(|chunk| sums.next() == Some(&sum(chunk)))
}

/// The xxh3-64 of a block, with the vector instructions of the processor.
fn sum(block: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(block)
}

impl Super {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(self.log.to_le_bytes());
        body.extend(self.segment_bytes.to_le_bytes());
        body.extend(self.segments.to_le_bytes());
        let mut block = Vec::with_capacity(BLOCK as usize);
        block.extend(SUPER_MAGIC.to_le_bytes());
        block.extend(self.version.to_le_bytes());
        block.extend(0u32.to_le_bytes());
        block.extend(xxh3_64(&body).to_le_bytes());
        block.extend(body);
        block.resize(BLOCK as usize, 0);
        block
    }

    /// Decodes a superblock; `None` if the block is empty.
    pub(crate) fn decode(block: &[u8]) -> Result<Option<Self>, OpenFault> {
        let u64_at = |at| le_u64(block, at).unwrap_or(0);
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let version = le_u32(block, 8).unwrap_or(0);
        if u64_at(0) != SUPER_MAGIC {
            return Err(OpenFault::NotOurs);
        }
        if !(VERSION_MIN..=VERSION).contains(&version) {
            return Err(OpenFault::Version { found: version, known: VERSION });
        }
        let body = block.get(24..48).unwrap_or_default();
        if xxh3_64(body) != u64_at(16) {
            return Err(OpenFault::NotOurs);
        }
        Ok(Some(Self { version, log: u64_at(24), segment_bytes: u64_at(32), segments: u64_at(40) }))
    }
}

impl SegmentHead {
    pub(crate) fn encode(self, log: u64, segment: u32, segment_bytes: u64) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(self.incarnation.to_le_bytes());
        body.extend(self.floor.to_le_bytes());
        body.extend(u64::from(segment).to_le_bytes());
        body.extend(segment_bytes.to_le_bytes());
        checked_block(SEGMENT_MAGIC, log, &body)
    }

    pub(crate) fn decode(block: &[u8], log: u64, segment: u32) -> Option<Self> {
        let body = open_block(block, SEGMENT_MAGIC, log, 32)?;
        let head = Self { incarnation: le_u64(body, 0)?, floor: le_u64(body, 8)? };
        (le_u64(body, 16)? == u64::from(segment)).then_some(head)
    }
}

impl Trailer {
    pub(crate) fn encode(self, log: u64) -> Vec<u8> {
        let mut body = Vec::new();
        for word in [self.incarnation, self.index_offset, self.index_bytes, self.index_sum] {
            body.extend(word.to_le_bytes());
        }
        checked_block(TRAILER_MAGIC, log, &body)
    }

    pub(crate) fn decode(block: &[u8], log: u64) -> Option<Self> {
        let body = open_block(block, TRAILER_MAGIC, log, 32)?;
        Some(Self {
            incarnation: le_u64(body, 0)?,
            index_offset: le_u64(body, 8)?,
            index_bytes: le_u64(body, 16)?,
            index_sum: le_u64(body, 24)?,
        })
    }
}

fn checked_block(magic: u32, log: u64, body: &[u8]) -> Vec<u8> {
    let mut block = Vec::with_capacity(BLOCK as usize);
    block.extend(magic.to_le_bytes());
    block.extend(BLOCK_VERSION.to_le_bytes());
    block.extend(xxh3_64_with_seed(body, log).to_le_bytes());
    block.extend(body);
    block.resize(BLOCK as usize, 0);
    block
}

fn open_block(block: &[u8], magic: u32, log: u64, body_bytes: usize) -> Option<&[u8]> {
    let body = block.get(16..16 + body_bytes)?;
    let good = le_u32(block, 0)? == magic
        && le_u32(block, 4)? == BLOCK_VERSION
        && le_u64(block, 8)? == xxh3_64_with_seed(body, log);
    good.then_some(body)
}

impl Entry {
    /// The header without padding, as in an index.
    pub(crate) fn encode(&self, log: u64) -> Vec<u8> {
        let mut bytes = vec![0; 16];
        let variable = self.variable();
        let header_bytes = blocks_up((ENTRY_FIXED + variable.len()) as u64);
        bytes.extend((header_bytes as u32).to_le_bytes());
        bytes.extend((variable.len() as u32).to_le_bytes());
        for word in [self.incarnation, self.offset, self.sequence] {
            bytes.extend(word.to_le_bytes());
        }
        let flags = |record: &Record| if record.protected { FLAG_PROTECTED } else { 0 };
        let (kind, flags) = match &self.body {
            Body::Record { id, record, sums } => {
                fix_record(&mut bytes, *id, record, sums.len());
                (KIND_RECORD, flags(record))
            }
            Body::Spanning { id, record, parts } => {
                fix_record(&mut bytes, *id, record, parts.len());
                (KIND_SPANNING, flags(record))
            }
            Body::Part { id, part, sums } => {
                for word in [id.0, part.of.0, part.start, part.bytes] {
                    bytes.extend(word.to_le_bytes());
                }
                bytes.resize(ENTRY_FIXED - 4, 0);
                bytes.extend((sums.len() as u32).to_le_bytes());
                (KIND_PART, 0)
            }
            Body::Notes(notes) => {
                bytes.resize(ENTRY_FIXED - 4, 0);
                bytes.extend((notes.len() as u32).to_le_bytes());
                (KIND_NOTES, 0)
            }
        };
        bytes.extend(variable);
        // The kind is before the checksum in the header, so it is part of the seed.
        let sum = xxh3_64_with_seed(bytes.get(16..).unwrap_or_default(), seed(log, kind, flags));
        let mut head = Vec::with_capacity(bytes.len());
        head.extend(ENTRY_MAGIC.to_le_bytes());
        head.extend([kind, flags, 0, 0]);
        head.extend(sum.to_le_bytes());
        head.extend(bytes.get(16..).unwrap_or_default());
        head
    }

    fn variable(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match &self.body {
            Body::Record { record, sums, .. } => {
                name_record(&mut out, record);
                out.extend(sums.iter().flat_map(|sum| sum.to_le_bytes()));
            }
            Body::Spanning { record, parts, .. } => {
                name_record(&mut out, record);
                for part in parts.iter() {
                    out.extend(part.id.0.to_le_bytes());
                    out.extend(part.bytes.to_le_bytes());
                }
            }
            Body::Part { sums, .. } => out.extend(sums.iter().flat_map(|sum| sum.to_le_bytes())),
            Body::Notes(notes) => notes.iter().for_each(|note| note.encode(&mut out)),
        }
        out
    }

    /// The bytes of a record's header without padding, if its payload follows it and has so many checksums.
    pub(crate) fn record_bytes(record: &Record, sums: u64) -> u64 {
        named_bytes(record) + sums * 8
    }

    /// The same, if its payload is in parts.
    pub(crate) fn spanning_bytes(record: &Record, parts: usize) -> u64 {
        named_bytes(record) + parts as u64 * PART_REF_BYTES
    }

    /// The bytes of the header of a part with so many checksums, without padding.
    pub(crate) fn part_bytes(sums: u64) -> u64 {
        ENTRY_FIXED as u64 + sums * 8
    }

    /// The bytes of the header of these notes without padding.
    pub(crate) fn notes_bytes(notes: &[Note]) -> u64 {
        ENTRY_FIXED as u64 + notes.iter().map(|note| note.bytes() as u64).sum::<u64>()
    }

    /// Decodes the header at the start of these bytes, if there is a valid one.
    pub(crate) fn decode(bytes: &[u8], log: u64) -> Option<Decoded> {
        if le_u32(bytes, 0)? != ENTRY_MAGIC {
            return None;
        }
        let (kind, flags) = (*bytes.get(4)?, *bytes.get(5)?);
        let header_bytes = u64::from(le_u32(bytes, 16)?);
        let compact_bytes = ENTRY_FIXED + le_u32(bytes, 20)? as usize;
        if header_bytes > HEADER_BYTES_MAX || header_bytes != blocks_up(compact_bytes as u64) {
            return None;
        }
        let compact = bytes.get(..compact_bytes)?;
        if xxh3_64_with_seed(compact.get(16..)?, seed(log, kind, flags)) != le_u64(bytes, 8)? {
            return None;
        }
        let body = match kind {
            KIND_RECORD => decode_record(compact, flags)?,
            KIND_SPANNING => decode_spanning(compact, flags)?,
            KIND_PART => decode_part(compact)?,
            KIND_NOTES => Body::Notes(decode_notes(compact)?),
            _ => return None,
        };
        let payload = body.payload().map_or(0, |(bytes, _)| bytes);
        let entry = Self {
            incarnation: le_u64(bytes, 24)?,
            offset: le_u64(bytes, 32)?,
            sequence: le_u64(bytes, 40)?,
            body,
        };
        Some(Decoded { entry, compact_bytes, extent: header_bytes + blocks_up(payload), header_bytes })
    }

    /// How many bytes the header at the start of these bytes has, or `None` if there is none.
    pub(crate) fn wanted(bytes: &[u8]) -> Option<u64> {
        let header_bytes = u64::from(le_u32(bytes, 16)?);
        (le_u32(bytes, 0)? == ENTRY_MAGIC && header_bytes <= HEADER_BYTES_MAX).then_some(header_bytes)
    }
}

fn fix_record(bytes: &mut Vec<u8>, id: RecordId, record: &Record, count: usize) {
    for word in [id.0, record.generation.epoch, record.generation.counter, record.payload_bytes] {
        bytes.extend(word.to_le_bytes());
    }
    for len in [record.name.namespace.len(), record.name.key.len(), record.attributes.len(), count] {
        bytes.extend((len as u32).to_le_bytes());
    }
}

fn name_record(out: &mut Vec<u8>, record: &Record) {
    out.extend(record.name.namespace.as_bytes());
    out.extend(&record.name.key);
    out.extend(&record.attributes);
}

fn named_bytes(record: &Record) -> u64 {
    (ENTRY_FIXED + record.name.namespace.len() + record.name.key.len() + record.attributes.len()) as u64
}

/// Decodes the common fields of a record and a spanning record: the id, the record, the number of items that
/// follow, and the items.
fn decode_named(compact: &[u8], flags: u8) -> Option<(RecordId, Record, usize, &[u8])> {
    let len_at = |at| Some(le_u32(compact, at)? as usize);
    let (namespace, key, attributes, count) = (len_at(80)?, len_at(84)?, len_at(88)?, len_at(92)?);
    let rest = compact.get(ENTRY_FIXED..)?;
    let (namespace, rest) = rest.split_at_checked(namespace)?;
    let (key, rest) = rest.split_at_checked(key)?;
    let (attributes, rest) = rest.split_at_checked(attributes)?;
    let namespace = std::str::from_utf8(namespace).ok()?.to_owned();
    let record = Record {
        name: Arc::new(Name { namespace, key: key.to_vec() }),
        generation: Generation { epoch: le_u64(compact, 56)?, counter: le_u64(compact, 64)? },
        attributes: attributes.to_vec(),
        protected: flags & FLAG_PROTECTED != 0,
        payload_bytes: le_u64(compact, 72)?,
    };
    Some((RecordId(le_u64(compact, 48)?), record, count, rest))
}

fn decode_record(compact: &[u8], flags: u8) -> Option<Body> {
    let (id, record, count, rest) = decode_named(compact, flags)?;
    let sums = decode_sums(rest, count, record.payload_bytes)?;
    Some(Body::Record { id, record, sums })
}

fn decode_spanning(compact: &[u8], flags: u8) -> Option<Body> {
    let (id, record, count, rest) = decode_named(compact, flags)?;
    if rest.len() as u64 != (count as u64).checked_mul(PART_REF_BYTES)? {
        return None;
    }
    let part = |bytes: &[u8]| Some(PartRef { id: RecordId(le_u64(bytes, 0)?), bytes: le_u64(bytes, 8)? });
    let parts: Option<Arc<[PartRef]>> = rest.chunks(PART_REF_BYTES as usize).map(part).collect();
    let parts = parts?;
    let (_, all_but_last) = parts.split_last()?;
    let mut bytes = parts.iter().map(|part| part.bytes);
    let whole = bytes.try_fold(0u64, u64::checked_add) == Some(record.payload_bytes)
        && parts.iter().all(|part| part.bytes > 0)
        && all_but_last.iter().all(|part| part.bytes.is_multiple_of(SUM_BYTES));
    whole.then_some(Body::Spanning { id, record, parts })
}

fn decode_part(compact: &[u8]) -> Option<Body> {
    let part = PartHead {
        of: RecordId(le_u64(compact, 56)?),
        start: le_u64(compact, 64)?,
        bytes: le_u64(compact, 72)?,
    };
    let sums = decode_sums(compact.get(ENTRY_FIXED..)?, le_u32(compact, 92)? as usize, part.bytes)?;
    part.start.checked_add(part.bytes)?;
    Some(Body::Part { id: RecordId(le_u64(compact, 48)?), part, sums })
}

/// Decodes the checksums of a payload, if their number is right.
fn decode_sums(bytes: &[u8], count: usize, payload_bytes: u64) -> Option<Arc<[u64]>> {
    sum_bytes(payload_bytes, count)?;
    if bytes.len() != count.checked_mul(8)? {
        return None;
    }
    bytes.chunks(8).map(|chunk| Some(u64::from_le_bytes(chunk.try_into().ok()?))).collect()
}

impl Note {
    fn encode(&self, out: &mut Vec<u8>) {
        let (kind, flags, id, attributes): (u8, u8, RecordId, &[u8]) = match self {
            Self::Forget(id) => (NOTE_FORGET, 0, *id, &[]),
            Self::Attributes { id, protected, attributes } => {
                (NOTE_ATTRIBUTES, if *protected { FLAG_PROTECTED } else { 0 }, *id, attributes)
            }
        };
        out.extend([kind, flags, 0, 0]);
        out.extend((attributes.len() as u32).to_le_bytes());
        out.extend(id.0.to_le_bytes());
        out.extend(attributes);
    }
}

fn decode_notes(compact: &[u8]) -> Option<Vec<Note>> {
    let count = le_u32(compact, ENTRY_FIXED - 4)?;
    let mut rest = compact.get(ENTRY_FIXED..)?;
    let mut notes = Vec::new();
    for _ in 0..count {
        let (fixed, later) = rest.split_at_checked(NOTE_FIXED)?;
        let (attributes, later) = later.split_at_checked(le_u32(fixed, 4)? as usize)?;
        let id = RecordId(le_u64(fixed, 8)?);
        notes.push(match *fixed.first()? {
            NOTE_FORGET => Note::Forget(id),
            NOTE_ATTRIBUTES => Note::Attributes {
                id,
                protected: fixed.get(1)? & FLAG_PROTECTED != 0,
                attributes: attributes.to_vec(),
            },
            _ => return None,
        });
        rest = later;
    }
    rest.is_empty().then_some(notes)
}

pub(crate) fn seed(log: u64, kind: u8, flags: u8) -> u64 {
    log ^ (u64::from(kind) << 8 | u64::from(flags))
}

fn le_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn le_u64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: u64 = 77;

    fn entries() -> Vec<Entry> {
        let record = |namespace: &str, key: &[u8], payload_bytes: u64, protected| Record {
            name: Arc::new(Name { namespace: namespace.into(), key: key.into() }),
            generation: Generation { epoch: 3, counter: 9 },
            attributes: vec![7; key.len() / 2],
            protected,
            payload_bytes,
        };
        let body = |record: Record| {
            let sums = (0..record.payload_bytes.div_ceil(SUM_BYTES)).collect();
            Body::Record { id: RecordId(5), record, sums }
        };
        let spanning = |record: Record| {
            let part = |id, bytes| PartRef { id: RecordId(id), bytes };
            let parts = [part(6, 2 * SUM_BYTES), part(7, SUM_BYTES + 5)].into();
            Body::Spanning { id: RecordId(5), record, parts }
        };
        let notes = vec![
            Note::Forget(RecordId(1)),
            Note::Attributes { id: RecordId(2), protected: true, attributes: vec![1, 2, 3] },
            Note::Attributes { id: RecordId(3), protected: false, attributes: vec![] },
        ];
        let bodies = [
            body(record("", b"", 0, false)),
            body(record("a", b"key", 1, true)),
            body(record("namespace", &[9; 5000], SUM_BYTES + 1, false)),
            spanning(record("b", b"large", 3 * SUM_BYTES + 5, true)),
            Body::Part {
                id: RecordId(6),
                part: PartHead { of: RecordId(5), start: SUM_BYTES, bytes: 2 * SUM_BYTES },
                sums: (0..2).collect(),
            },
            Body::Notes(notes),
            Body::Notes(Vec::new()),
        ];
        bodies.into_iter().map(|body| Entry { incarnation: 4, offset: 8192, sequence: 6, body }).collect()
    }

    #[test]
    fn entries_are_decoded_as_encoded() {
        for entry in entries() {
            let bytes = entry.encode(LOG);
            let decoded = Entry::decode(&bytes, LOG).unwrap();
            assert_eq!(decoded.entry, entry);
            assert_eq!(decoded.compact_bytes, bytes.len());
            match &entry.body {
                Body::Record { record, sums, .. } => {
                    assert_eq!(Entry::record_bytes(record, sums.len() as u64), bytes.len() as u64);
                }
                Body::Spanning { record, parts, .. } => {
                    assert_eq!(Entry::spanning_bytes(record, parts.len()), bytes.len() as u64);
                }
                Body::Part { sums, .. } => {
                    assert_eq!(Entry::part_bytes(sums.len() as u64), bytes.len() as u64);
                }
                Body::Notes(notes) => assert_eq!(Entry::notes_bytes(notes), bytes.len() as u64),
            }
        }
    }

    #[test]
    fn parts_of_another_size_are_refused() {
        let Some(Entry { body: Body::Spanning { id, record, parts }, .. }) =
            entries().into_iter().find(|entry| matches!(entry.body, Body::Spanning { .. }))
        else {
            panic!("no spanning record");
        };
        let one = |bytes| PartRef { id: RecordId(9), bytes };
        let bad: [&[PartRef]; 5] = [
            &[],
            &parts[..1],
            &[parts[0], parts[1], one(1)],
            &[one(SUM_BYTES + 5), one(2 * SUM_BYTES)],
            &[one(3 * SUM_BYTES + 5), one(0)],
        ];
        for parts in bad {
            let body = Body::Spanning { id, record: record.clone(), parts: parts.into() };
            let bytes = Entry { incarnation: 4, offset: 8192, sequence: 6, body }.encode(LOG);
            assert!(Entry::decode(&bytes, LOG).is_none(), "{parts:?}");
        }
    }

    #[test]
    fn changed_byte_is_detected() {
        for entry in entries() {
            let good = entry.encode(LOG);
            for at in (0..good.len()).filter(|at| !(6..8).contains(at)) {
                let mut bad = good.clone();
                bad[at] ^= 0x10;
                assert!(Entry::decode(&bad, LOG).is_none(), "byte {at} of {entry:?}");
            }
            assert!(Entry::decode(&good, LOG + 1).is_none(), "an entry of another log");
            for end in 0..good.len() {
                assert!(Entry::decode(&good[..end], LOG).is_none());
            }
        }
    }

    #[test]
    fn fixed_blocks_come_back_and_notice_changes() {
        let (head, trailer) = (
            SegmentHead { incarnation: 5, floor: 70 },
            Trailer { incarnation: 5, index_offset: 1 << 20, index_bytes: 99, index_sum: 3 },
        );
        let block = head.encode(LOG, 2, 4 << 20);
        assert_eq!(SegmentHead::decode(&block, LOG, 2), Some(head));
        assert_eq!(SegmentHead::decode(&block, LOG, 3), None, "it is of another segment");
        assert_eq!(Trailer::decode(&trailer.encode(LOG), LOG), Some(trailer));
        assert_eq!(Trailer::decode(&trailer.encode(LOG), 1), None);
        let sup = Super { version: VERSION, log: LOG, segment_bytes: 4 << 20, segments: 9 };
        assert_eq!(Super::decode(&sup.encode()), Ok(Some(sup)));
        let old = Super { version: VERSION_MIN, ..sup };
        assert_eq!(Super::decode(&old.encode()), Ok(Some(old)));
        assert_eq!(Super::decode(&[0; 4096]), Ok(None));
        let mut other = sup.encode();
        other[8] = 9;
        assert_eq!(Super::decode(&other), Err(OpenFault::Version { found: 9, known: VERSION }));
        other[0] ^= 1;
        assert_eq!(Super::decode(&other), Err(OpenFault::NotOurs));
    }

    #[test]
    fn checksums_are_independent_of_pieces() {
        let bytes: Vec<u8> = (0..(2 * SUM_BYTES + 5)).map(|n| (n * 7 % 251) as u8).collect();
        let whole = sums([&bytes[..]]);
        assert_eq!(whole.len(), 3);
        for cut in [1, 4096, SUM_BYTES as usize, SUM_BYTES as usize + 3] {
            let (a, b) = bytes.split_at(cut);
            assert_eq!(sums([a, b]), whole, "cut at {cut}");
        }
        assert!(verify(&bytes, &whole, 0, SUM_BYTES));
        assert!(verify(&bytes[SUM_BYTES as usize..], &whole, 1, SUM_BYTES));
        assert!(!verify(&bytes[1..], &whole, 0, SUM_BYTES));
        assert!(!verify(&bytes, &whole[..2], 0, SUM_BYTES), "a checksum is missing");
    }

    #[test]
    fn number_of_checksums_tells_what_each_covers() {
        for (payload_bytes, count, expected) in [
            (0, 0, Some(SUM_BYTES)),
            (1, 1, Some(SUM_BYTES)),
            (SUM_BYTES, 1, Some(SUM_BYTES)),
            (SUM_BYTES + 1, 1, Some(SUM_BYTES_OLD)),
            (SUM_BYTES + 1, 2, Some(SUM_BYTES)),
            (SUM_BYTES_OLD, 1, Some(SUM_BYTES_OLD)),
            (SUM_BYTES_OLD, 16, Some(SUM_BYTES)),
            (SUM_BYTES_OLD + 1, 2, Some(SUM_BYTES_OLD)),
            (SUM_BYTES_OLD + 1, 17, Some(SUM_BYTES)),
            (SUM_BYTES_OLD + 1, 16, None),
            (0, 1, None),
        ] {
            assert_eq!(sum_bytes(payload_bytes, count), expected, "{count} of {payload_bytes}");
        }
    }
}
