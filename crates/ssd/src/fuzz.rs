//! The decoders of the format on disks, for `tiffin-smoke` and cargo-fuzz.

use std::sync::Arc;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::layout::{
    BLOCK, Body, Entry, Note, PartHead, PartRef, SUM_BYTES, SegmentHead, Super, Trailer, VERSION, seed,
};
use crate::types::{Generation, Name, Record, RecordId};

/// Name, decoder and valid inputs.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// All of them.
pub const TARGETS: [Target; 2] = [("disk_blocks", blocks, block_seeds), ("disk_entries", entry, entry_seeds)];

const LOG: u64 = 0x5eed;
const SEGMENT: u32 = 3;

/// The bytes as they are, then with the right checksum, so that the other fields are reached.
fn blocks(bytes: &[u8]) {
    let mut block = bytes.to_vec();
    block.resize(BLOCK as usize, 0);
    let decode = |block: &[u8]| {
        let _super = Super::decode(block);
        let _head = SegmentHead::decode(block, LOG, SEGMENT);
        let _trailer = Trailer::decode(block, LOG);
    };
    decode(&block);
    let sum = xxh3_64(block.get(24..48).unwrap_or_default());
    replace(&mut block, 16, sum);
    decode(&block);
    let sum = xxh3_64_with_seed(block.get(16..48).unwrap_or_default(), LOG);
    replace(&mut block, 8, sum);
    decode(&block);
}

fn block_seeds() -> Vec<Vec<u8>> {
    let blocks = [
        Super { version: VERSION, log: LOG, segment_bytes: 64 << 20, segments: 16 }.encode(),
        SegmentHead { incarnation: 7, floor: 8 }.encode(LOG, SEGMENT, 64 << 20),
        Trailer { incarnation: 7, index_offset: 4096, index_bytes: 100, index_sum: 9 }.encode(LOG),
    ];
    // The rest of a block is zero.
    blocks.into_iter().map(|block| block.get(..64).unwrap_or_default().to_vec()).collect()
}

/// As for blocks.
fn entry(bytes: &[u8]) {
    let _header_bytes = Entry::wanted(bytes);
    if let Some(decoded) = Entry::decode(bytes, LOG) {
        assert_eq!(decoded.entry.encode(LOG).len(), decoded.compact_bytes);
    }
    let mut sealed = bytes.to_vec();
    let variable = sealed.get(20..24).and_then(|it| it.first_chunk()).map_or(0, |it| u32::from_le_bytes(*it));
    let (kind, flags) = (sealed.get(4).copied(), sealed.get(5).copied());
    let Some(summed) = sealed.get(16..96usize.saturating_add(variable as usize)) else { return };
    let sum = xxh3_64_with_seed(summed, seed(LOG, kind.unwrap_or(0), flags.unwrap_or(0)));
    replace(&mut sealed, 8, sum);
    if let Some(decoded) = Entry::decode(&sealed, LOG) {
        assert_eq!(decoded.entry.encode(LOG).len(), decoded.compact_bytes);
        assert!(decoded.extent >= decoded.header_bytes);
    }
}

fn entry_seeds() -> Vec<Vec<u8>> {
    let record = |payload_bytes| Record {
        name: Arc::new(Name { namespace: "default".to_owned(), key: b"key".to_vec() }),
        generation: Generation { epoch: 1, counter: 2 },
        attributes: vec![7; 20],
        protected: true,
        payload_bytes,
    };
    let part = |id, bytes| PartRef { id: RecordId(id), bytes };
    let note = Note::Attributes { id: RecordId(9), protected: true, attributes: vec![1, 2, 3] };
    let bodies = [
        Body::Record { id: RecordId(1), record: record(SUM_BYTES + 1), sums: [5, 6].into() },
        Body::Spanning {
            id: RecordId(2),
            record: record(SUM_BYTES + 9),
            parts: [part(3, SUM_BYTES), part(4, 9)].into(),
        },
        Body::Part {
            id: RecordId(3),
            part: PartHead { of: RecordId(2), start: 0, bytes: SUM_BYTES },
            sums: [7].into(),
        },
        Body::Notes(vec![Note::Forget(RecordId(8)), note]),
    ];
    let entry = |body| Entry { incarnation: 7, offset: 4096, sequence: 11, body }.encode(LOG);
    bodies.into_iter().map(entry).collect()
}

fn replace(bytes: &mut [u8], at: usize, word: u64) {
    if let Some(place) = bytes.get_mut(at..at + 8) {
        place.copy_from_slice(&word.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn mutated_input_harms_no_decoder() {
        tiffin_smoke::run(&super::TARGETS);
    }
}
