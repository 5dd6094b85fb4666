//! Logs that older versions wrote are read and converted. `data/version-1.txt` and `data/version-2.txt` are
//! such logs, as lists of positions with their bytes: a sector in hex, or one byte and the number of sectors
//! full of it.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail in any line")]

use std::sync::Arc;

use tiffin_ssd::sim::{Output, Rig, SECTOR, SimDisk};
use tiffin_ssd::{
    Answer, Config, Generation, Input, Limits, Mutant, Name, OpId, Record, RecordId, Span, VERSION,
};

const VERSION_1: &str = include_str!("data/version-1.txt");
const VERSION_2: &str = include_str!("data/version-2.txt");

const MIB: u64 = 1 << 20;

fn disk(text: &str) -> SimDisk {
    let byte = |hex: &str| u8::from_str_radix(hex, 16).unwrap();
    SimDisk::with(text.lines().map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let bytes = match words.get(2) {
            Some(count) => vec![byte(words[1]); count.parse::<usize>().unwrap() * SECTOR as usize],
            None => {
                let hex: Vec<String> = words[1].chars().map(String::from).collect();
                let mut bytes: Vec<u8> = hex.chunks(2).map(|pair| byte(&pair.concat())).collect();
                bytes.resize(SECTOR as usize, 0);
                bytes
            }
        };
        (words[0].parse().unwrap(), bytes)
    }))
}

fn open(disk: SimDisk, budget_bytes: u64) -> Rig {
    let (limits, mutant) = (Limits::default(), Mutant::None);
    let config = Config { log: 9, budget_bytes, segment_bytes: None, limits, mutant };
    let mut rig = Rig::open(config, disk);
    rig.settle(0);
    rig
}

fn read(rig: &mut Rig, op: u64, id: RecordId, len: u64) -> Vec<u8> {
    let mut said = rig.read(OpId(op), id, Span { offset: 0, len }, 10, 0);
    said.extend(rig.settle(0));
    match said.as_slice() {
        [Output::Answer(_, Answer::Read(Ok(_)), Some(bytes))] => bytes.clone(),
        said => panic!("{said:?}"),
    }
}

#[test]
fn version_1_is_read_and_converted() {
    assert_eq!(disk(VERSION_1).read(8, 4).unwrap(), 1u32.to_le_bytes());
    let mut rig = open(disk(VERSION_1), 8 * MIB);
    let found: Vec<(RecordId, Record)> = rig.log.records().map(|(id, record)| (id, record.clone())).collect();
    let keys: Vec<_> =
        found.iter().map(|(_, it)| String::from_utf8_lossy(&it.name.key).into_owned()).collect();
    // One was replaced and one forgotten.
    assert_eq!(keys, ["key 0", "key 2", "key 3", "key 1"]);
    assert_eq!((found[0].1.attributes.as_slice(), found[0].1.protected), (&b"other"[..], true));
    for (op, (byte, len, at)) in
        [(1, 700, 0), (3, 900_000, 1), (4, 600_000, 2), (2, 300, 3)].into_iter().enumerate()
    {
        let (id, record) = &found[at];
        assert_eq!(record.payload_bytes, len);
        assert_eq!(read(&mut rig, op as u64 + 1, *id, len), vec![byte; len as usize]);
    }
    // It goes on, says so, and is found again.
    let name = Arc::new(Name { namespace: "new".into(), key: b"k".to_vec() });
    let generation = Generation { epoch: 2, counter: 1 };
    let record = Record { name, generation, attributes: vec![], protected: false, payload_bytes: 5 };
    rig.append(OpId(50), record, b"bytes".to_vec(), 10, 0);
    rig.settle(0);
    let disk = rig.crash(&mut || false);
    assert_eq!(disk.read(8, 4).unwrap(), VERSION.to_le_bytes());
    let mut rig = open(disk, 8 * MIB);
    assert_eq!(rig.log.records().count(), 5);
    let id = rig.log.records().last().unwrap().0;
    assert_eq!(read(&mut rig, 60, id, 5), b"bytes");
}

/// Records with a checksum per MiB, one of them in parts: they are read, moved by compaction and found again.
#[test]
fn version_2_is_read_and_compacted() {
    let lens = [700, 2_500_000, 5 * MIB + 300_000, 1_200_000, 900_000, 1_900_000, 40_000, 2_500_000, 30_000];
    assert_eq!(disk(VERSION_2).read(8, 4).unwrap(), 2u32.to_le_bytes());
    let mut rig = open(disk(VERSION_2), 37 * MIB);
    let check = |rig: &mut Rig, kept: &[u64]| {
        let found = rig.log.records().filter(|(_, record)| record.name.namespace == "old");
        let found: Vec<_> = found.map(|(id, it)| (id, it.generation.counter, it.payload_bytes)).collect();
        let expected: Vec<_> = kept.iter().map(|counter| (*counter, lens[*counter as usize - 1])).collect();
        assert_eq!(found.iter().map(|it| (it.1, it.2)).collect::<Vec<_>>(), expected);
        for (id, counter, len) in found {
            assert!(read(rig, 100, id, len) == vec![counter as u8; len as usize], "{counter}");
            rig.read(OpId(100), id, Span { offset: len / 2, len: len / 3 }, 10, 0);
            assert!(
                rig.settle(0).iter().all(|said| matches!(said, Output::Answer(_, Answer::Read(Ok(_)), _)))
            );
        }
    };
    check(&mut rig, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    // Two segments are half empty from now on: they are compacted before anything is evicted.
    let places = |rig: &Rig, at: usize| rig.log.places_of(rig.log.records().nth(at).unwrap().0);
    let gone = [3, 5].map(|at| rig.log.records().nth(at).unwrap().0).to_vec();
    rig.apply(Input::Forget { op: OpId(1), ids: gone, deadline: 10 }, 0);
    rig.settle(0);
    let before = [places(&rig, 2), places(&rig, 3)];
    for counter in 1.. {
        if rig.log.stats().segments_compacted == 2 {
            break;
        }
        let name = Arc::new(Name { namespace: "new".into(), key: vec![counter as u8] });
        let generation = Generation { epoch: 2, counter };
        let record = Record { name, generation, attributes: vec![], protected: false, payload_bytes: MIB };
        rig.append(OpId(1), record, vec![9; MIB as usize], 10, 0);
        rig.settle(0);
    }
    let kept = [1, 2, 3, 5, 7, 8, 9];
    check(&mut rig, &kept);
    assert!(before[0].last() != places(&rig, 2).last(), "a part was moved");
    assert!(before[1] != places(&rig, 3), "a record was moved");
    let mut rig = open(rig.crash(&mut || false), 37 * MIB);
    check(&mut rig, &kept);
}
