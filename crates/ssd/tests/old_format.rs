//! A log that an older version wrote can be read and goes on. `data/version-1.txt` is one, as a list of what
//! lies where: a sector in hex, or one byte and how many sectors are full of it.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail in any line")]

use std::sync::Arc;

use tiffin_ssd::sim::{Rig, SECTOR, Said, SimDisk};
use tiffin_ssd::{Answer, Config, Generation, Limits, Name, OpId, Record, RecordId, Sabotage, Span, VERSION};

const OLD: &str = include_str!("data/version-1.txt");

fn old_disk() -> SimDisk {
    let byte = |hex: &str| u8::from_str_radix(hex, 16).unwrap();
    SimDisk::with(OLD.lines().map(|line| {
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

fn open(disk: SimDisk) -> Rig {
    let (limits, sabotage) = (Limits::default(), Sabotage::None);
    let config = Config { log: 9, budget_bytes: 8 << 20, segment_bytes: None, limits, sabotage };
    let mut rig = Rig::open(config, disk);
    rig.settle(0);
    rig
}

fn read(rig: &mut Rig, op: u64, id: RecordId, len: u64) -> Vec<u8> {
    let mut said = rig.read(OpId(op), id, Span { offset: 0, len }, 10, 0);
    said.extend(rig.settle(0));
    match said.as_slice() {
        [Said::Answer(_, Answer::Read(Ok(_)), Some(bytes))] => bytes.clone(),
        said => panic!("{said:?}"),
    }
}

#[test]
fn a_log_of_version_1_is_read_and_goes_on() {
    assert_eq!(old_disk().read(8, 4).unwrap(), 1u32.to_le_bytes());
    let mut rig = open(old_disk());
    let found: Vec<(RecordId, Record)> = rig.log.records().map(|(id, record)| (id, record.clone())).collect();
    let keys: Vec<_> =
        found.iter().map(|(_, it)| String::from_utf8_lossy(&it.name.key).into_owned()).collect();
    // One was replaced and one forgotten.
    assert_eq!(keys, ["key 0", "key 2", "key 3", "key 1"]);
    assert_eq!((found[0].1.marks.as_slice(), found[0].1.protected), (&b"other"[..], true));
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
    let record = Record { name, generation, marks: vec![], protected: false, payload_bytes: 5 };
    rig.append(OpId(50), record, b"bytes".to_vec(), 10, 0);
    rig.settle(0);
    let disk = rig.crash(&mut || false);
    assert_eq!(disk.read(8, 4).unwrap(), VERSION.to_le_bytes());
    let mut rig = open(disk);
    assert_eq!(rig.log.records().count(), 5);
    let id = rig.log.records().last().unwrap().0;
    assert_eq!(read(&mut rig, 60, id, 5), b"bytes");
}
