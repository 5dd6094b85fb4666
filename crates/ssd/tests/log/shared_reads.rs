//! Who wants the same bytes at the same time costs the disk one read: counted, on a disk that waits for us.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failure here is a failed test")]

use std::collections::BTreeMap;
use std::sync::Arc;

use tiffin_ssd::sim::{Fate, Output, Rig, SECTOR, SimDisk};
use tiffin_ssd::{
    Answer, Config, Event, Fault, FaultKind, Generation, IoId, Left, Limits, Mutant, Name, OpId, ReadError,
    Record, RecordId, SUM_BYTES, Span,
};

const MIB: u64 = 1 << 20;
const LEN: u64 = 3 * SUM_BYTES;
const WHOLE: Span = Span { offset: 0, len: LEN };
const NEVER: u64 = 1_000_000;

struct Bench {
    rig: Rig,
    next_op: u64,
}

impl Bench {
    fn new() -> Self {
        let config = Config {
            log: 1,
            budget_bytes: MIB + 8 * 4 * MIB,
            segment_bytes: Some(4 * MIB),
            limits: Limits::default(),
            mutant: Mutant::None,
        };
        let mut rig = Rig::open(config, SimDisk::new());
        rig.settle(0);
        Self { rig, next_op: 0 }
    }

    fn op(&mut self) -> OpId {
        self.next_op += 1;
        OpId(self.next_op)
    }

    fn append(&mut self, key: u8) -> RecordId {
        let name = Arc::new(Name { namespace: "n".into(), key: vec![key] });
        let generation = Generation { epoch: 1, counter: u64::from(key) };
        let record =
            Record { name, generation, attributes: Vec::new(), protected: false, payload_bytes: LEN };
        let op = self.op();
        let mut said = self.rig.append(op, record, payload(key), NEVER, 0);
        said.extend(self.rig.settle(0));
        let appended = said.iter().find_map(|it| match it {
            Output::Answer(answered, Answer::Append(Ok(id)), _) if *answered == op => Some(*id),
            _ => None,
        });
        appended.unwrap()
    }

    fn read(&mut self, id: RecordId, span: Span) -> OpId {
        let op = self.op();
        let said = self.rig.read(op, id, span, NEVER, 0);
        assert_eq!(said, [], "the disk has not read anything yet");
        op
    }

    /// What the disk is to read.
    fn disk_reads(&self) -> Vec<IoId> {
        self.rig.pending().into_iter().filter(|io| self.rig.is_read(*io)).collect()
    }

    /// The disk has read one of them.
    fn finish(&mut self, io: IoId, fate: Fate) -> BTreeMap<OpId, (Answer, Option<Vec<u8>>)> {
        let said = self.rig.finish(io, fate, 0).into_iter();
        let answers = said.filter_map(|it| match it {
            Output::Answer(op, answer, bytes) => Some((op, (answer, bytes))),
            Output::Event(_) => None,
        });
        answers.collect()
    }
}

fn payload(key: u8) -> Vec<u8> {
    (0..LEN).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 ^ key).collect()
}

fn part(key: u8, span: Span) -> Vec<u8> {
    payload(key)[span.offset as usize..(span.offset + span.len) as usize].to_vec()
}

#[test]
fn forty_readers_of_one_record_cost_one_disk_read() {
    let mut bench = Bench::new();
    let (one, other) = (bench.append(1), bench.append(2));
    let readers: Vec<_> = (0..40).map(|_| bench.read(one, WHOLE)).collect();
    assert_eq!(bench.disk_reads().len(), 1);
    let stranger = bench.read(other, WHOLE);
    let reads = bench.disk_reads();
    assert_eq!(reads.len(), 2, "another record is another read");
    let answers = bench.finish(reads[0], Fate::Ok);
    assert_eq!(answers.keys().copied().collect::<Vec<_>>(), readers);
    for (answer, bytes) in answers.into_values() {
        assert_eq!(answer, Answer::Read(Ok(LEN)));
        assert!(bytes.unwrap() == payload(1));
    }
    let answers = bench.finish(reads[1], Fate::Ok);
    assert!(answers[&stranger].1.as_ref().unwrap() == &payload(2));
    let stats = bench.rig.log.stats();
    assert_eq!((stats.reads, stats.reads_shared), (41, 39));
    // Who comes when it is over reads anew: the bytes of those before are theirs by now.
    let late = bench.read(one, WHOLE);
    let reads = bench.disk_reads();
    assert_eq!(reads.len(), 1);
    assert!(bench.finish(reads[0], Fate::Ok)[&late].1.as_ref().unwrap() == &payload(1));
    assert_eq!(bench.rig.log.stats().reads_shared, 39);
}

#[test]
fn range_joins_a_read_that_covers_it() {
    let mut bench = Bench::new();
    let one = bench.append(1);
    let parts = [
        Span { offset: 0, len: 1 },
        Span { offset: SUM_BYTES - 3, len: 7 },
        Span { offset: 2 * SUM_BYTES, len: SUM_BYTES },
    ];
    let first = bench.read(one, parts[1]);
    assert_eq!(bench.disk_reads().len(), 1);
    let whole = bench.read(one, WHOLE);
    assert_eq!(bench.disk_reads().len(), 2, "there is more than the first reads");
    // All of these are in the wider one.
    let joined: Vec<_> = parts.iter().map(|span| (bench.read(one, *span), *span)).collect();
    let reads = bench.disk_reads();
    assert_eq!((reads.len(), bench.rig.log.stats().reads_shared), (2, 3));
    let mut answers = bench.finish(reads[0], Fate::Ok);
    assert_eq!(answers.remove(&first), Some((Answer::Read(Ok(7)), Some(part(1, parts[1])))));
    assert_eq!(answers, BTreeMap::new());
    let mut answers = bench.finish(reads[1], Fate::Ok);
    assert!(answers.remove(&whole).unwrap().1.unwrap() == payload(1));
    for (op, span) in joined {
        let (answer, bytes) = answers.remove(&op).unwrap();
        assert_eq!(answer, Answer::Read(Ok(span.len)));
        assert!(bytes.unwrap() == part(1, span), "{span:?}");
    }
    assert_eq!(answers, BTreeMap::new());
}

#[test]
fn shared_reads_have_the_same_result() {
    let mut bench = Bench::new();
    let one = bench.append(1);
    let readers: Vec<_> = (0..5).map(|_| bench.read(one, WHOLE)).collect();
    let reads = bench.disk_reads();
    let fault = Fault::new(FaultKind::Io, "the disk says no".to_owned());
    let answers = bench.finish(reads[0], Fate::Fail(fault.clone()));
    assert_eq!(answers.keys().copied().collect::<Vec<_>>(), readers);
    assert!(answers.values().all(|it| *it == (Answer::Read(Err(ReadError::Failed(fault.clone()))), None)));
    // Who has given up meanwhile is answered once, and the others are not held up.
    let (stays, leaves) = (bench.read(one, WHOLE), bench.read(one, WHOLE));
    let said = bench.rig.apply(tiffin_ssd::Input::Cancel { op: leaves }, 0);
    assert_eq!(said, [Output::Answer(leaves, Answer::Read(Err(ReadError::Cancelled)), None)]);
    let reads = bench.disk_reads();
    assert_eq!(reads.len(), 1);
    let answers = bench.finish(reads[0], Fate::Ok);
    assert_eq!(answers.keys().copied().collect::<Vec<_>>(), [stays]);
    // Bytes that are wrong are served to none of them, and are dropped once.
    let readers: Vec<_> = (0..5).map(|_| bench.read(one, WHOLE)).collect();
    let reads = bench.disk_reads();
    let sector = part(1, Span { offset: SECTOR, len: SECTOR });
    let mut sectors = (0..bench.rig.disk.written_end()).step_by(SECTOR as usize);
    let at = sectors.find(|at| bench.rig.disk.read(*at, SECTOR).unwrap() == sector).unwrap();
    bench.rig.disk.flip(at, 3);
    let said = bench.rig.finish(reads[0], Fate::Ok, 0);
    for reader in &readers {
        assert!(said.contains(&Output::Answer(*reader, Answer::Read(Err(ReadError::Corrupt)), None)));
    }
    assert!(said.contains(&Output::Event(Event::Left(Left::Corrupt, vec![one]))));
    assert_eq!(bench.rig.log.stats().corrupt, 1);
}
