//! How full a log gets before it evicts, for objects of every size. The disk has no contents: all its
//! operations succeed, in order.

#![expect(clippy::unwrap_used, reason = "a test may fail in any line")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tiffin_ssd::{
    Answer, Config, Done, Effect, Event, Generation, Input, Into, IoId, Left, Limits, Log, Mutant, Name,
    OpId, Record, RecordId, SUM_BYTES, Span, shape,
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A log on a disk without contents.
struct Filling {
    log: Log,
    ios: VecDeque<(IoId, Done)>,
    /// Records that were appended and not evicted, with their payload bytes.
    kept: BTreeMap<RecordId, u64>,
    sizes: BTreeMap<OpId, u64>,
    evicted: u64,
    next_op: u64,
    protected: bool,
}

impl Filling {
    fn open(budget_bytes: u64, segment_bytes: Option<u64>, mutant: Mutant) -> Self {
        let config = Config { log: 1, budget_bytes, segment_bytes, limits: Limits::default(), mutant };
        let (log, effects) = Log::open(config);
        let (ios, kept, sizes) = Default::default();
        let mut filling = Self { log, ios, kept, sizes, evicted: 0, next_op: 1, protected: false };
        filling.carry_out(effects);
        filling.settle(0);
        filling
    }

    fn append(&mut self, payload_bytes: u64) {
        let op = OpId(self.next_op);
        self.next_op += 1;
        self.sizes.insert(op, payload_bytes);
        let record = Record {
            name: Arc::new(Name { namespace: "n".into(), key: op.0.to_le_bytes().to_vec() }),
            generation: Generation { epoch: 1, counter: op.0 },
            attributes: vec![],
            protected: self.protected,
            payload_bytes,
        };
        let sums = vec![0; payload_bytes.div_ceil(SUM_BYTES) as usize].into();
        self.apply(Input::Append { op, record, sums, deadline: 1 });
    }

    fn read(&mut self, id: RecordId, len: u64) {
        let op = OpId(self.next_op);
        self.next_op += 1;
        self.apply(Input::Read { op, id, span: Span { offset: 0, len }, deadline: 1 });
    }

    fn apply(&mut self, input: Input) {
        let effects = self.log.apply(input, 0);
        self.carry_out(effects);
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Write { io, .. } | Effect::Sync { io } => self.ios.push_back((io, Done::Ok)),
                Effect::Read { io, len, into: Into::Log, .. } => {
                    self.ios.push_back((io, Done::Bytes(vec![0; len as usize])));
                }
                Effect::Read { io, .. } => self.ios.push_back((io, Done::Ok)),
                Effect::Answer { op, answer: Answer::Append(result) } => {
                    self.kept.insert(result.unwrap(), self.sizes.remove(&op).unwrap());
                }
                Effect::Event(Event::Left(Left::Evicted, ids)) => {
                    self.evicted += ids.len() as u64;
                    self.kept.retain(|id, _| !ids.contains(id));
                }
                _ => {}
            }
        }
    }

    /// Ends disk work until at most so many appends are under way; all of it if none may be.
    fn settle(&mut self, appends: usize) {
        while (appends == 0 || self.sizes.len() > appends)
            && let Some((io, result)) = self.ios.pop_front()
        {
            self.apply(Input::Done { io, result });
        }
    }
}

/// The percentage of a disk that records of one size take when the next one evicts.
fn filled_percent(budget_bytes: u64, payload_bytes: u64) -> u64 {
    let mut filling = Filling::open(budget_bytes, None, Mutant::None);
    let mut live_bytes = 0;
    while filling.evicted == 0 {
        live_bytes = filling.log.stats().live_bytes;
        filling.append(payload_bytes);
        filling.settle(0);
    }
    live_bytes * 100 / budget_bytes
}

#[test]
fn small_records_fill_a_disk() {
    let budget_bytes = 128 * MIB;
    assert_eq!(shape(budget_bytes, None), Ok((2 * MIB, 63)));
    for payload_bytes in [1, 4 * KIB, 30_000, 60 * KIB, SUM_BYTES, SUM_BYTES + 1, 100_000, 200_000] {
        let percent = filled_percent(budget_bytes, payload_bytes);
        assert!(percent >= 90, "{payload_bytes}: {percent} %");
    }
}

#[test]
fn records_of_any_size_fill_a_disk() {
    let (budget_bytes, segment) = (1024 * MIB, 16 * MIB);
    assert_eq!(shape(budget_bytes, None), Ok((segment, 63)));
    for (of, share) in [(1, 64), (1, 20), (1, 3), (17, 32), (3, 4), (63, 64), (1, 1), (5, 4), (3, 1), (5, 1)]
    {
        for payload_bytes in [segment * of / share - 5000, segment * of / share + 5000] {
            let percent = filled_percent(budget_bytes, payload_bytes);
            assert!(percent >= 90, "{payload_bytes}: {percent} %");
        }
    }
}

#[test]
fn disk_stays_half_unused_without_cuts() {
    let mut filling = Filling::open(1024 * MIB, None, Mutant::PadSegments);
    while filling.evicted == 0 {
        filling.append(9 * MIB);
        filling.settle(0);
    }
    assert!(filling.log.stats().live_bytes < 600 * MIB);
}

/// Reads of all records evict none, for any number of appends in flight.
#[test]
fn reading_records_evicts_none() {
    for (budget_bytes, segment_bytes, payload_bytes) in [
        (1024 * MIB, None, 17 * MIB),
        (64 * MIB, None, MIB),
        // The segments that older versions chose.
        (1024 * MIB, Some(32 * MIB), 17 * MIB),
        (64 * MIB, Some(2 * MIB), MIB),
    ] {
        for appends in [0, 1, 20, 50] {
            let mut filling = Filling::open(budget_bytes, segment_bytes, Mutant::None);
            for _ in 0..50 {
                filling.append(payload_bytes);
                filling.settle(appends);
            }
            filling.settle(0);
            for id in filling.kept.keys().copied().collect::<Vec<_>>() {
                filling.read(id, payload_bytes);
                filling.settle(0);
            }
            let kept = (filling.kept.len(), filling.evicted, filling.log.stats().reads);
            assert_eq!(kept, (50, 0, 50), "{payload_bytes} on {budget_bytes} by {appends}");
        }
    }
}

/// Appends a record that leaves `rest` KiB of the first segment of 2 MiB, and one that does not fit there.
/// True if the second is cut.
fn is_cut(segments: u64, rest: u64, protected: bool) -> bool {
    let mut filling = Filling::open(MIB + segments * 2 * MIB, Some(2 * MIB), Mutant::None);
    // Beside the payload there are two heads.
    filling.append(2 * MIB - (rest + 8) * KIB);
    filling.settle(0);
    filling.protected = protected;
    filling.append(200_000);
    filling.settle(0);
    let last = filling.kept.keys().next_back().copied().unwrap();
    filling.log.places_of(last).len() > 1
}

#[test]
fn cut_needs_space_for_the_smallest_part() {
    // A head, a block of the checksum, the index and the trailer.
    let rest = 4 + 64 + 4 + 4;
    assert!(is_cut(12, rest, false));
    assert!(!is_cut(12, rest - 4, false));
}

#[test]
fn protected_records_are_not_cut() {
    assert!(!is_cut(12, 100, true));
    assert!(is_cut(12, 100, false));
}

/// The parts of a record are held until all are written. A log that may not hold two segments cuts nothing.
#[test]
fn cut_needs_two_segments_that_may_be_held() {
    assert!(!is_cut(7, 100, false));
    assert!(is_cut(8, 100, false));
}
