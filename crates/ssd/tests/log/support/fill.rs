//! Fills a log with records of all sizes: it must evict nothing before it is nearly full.
//!
//! Disk operations end in any order, records are read meanwhile, and the machine crashes once while it is
//! idle. No operation fails and nothing is deleted, so every record must stay.

use std::collections::BTreeMap;
use std::sync::Arc;

use tiffin_ssd::sim::{Fate, Output, Rig, SimDisk};
use tiffin_ssd::{
    Answer, BLOCK, Config, Event, Generation, Limits, Mutant, Name, OpId, RESERVE_SEGMENTS, Record, RecordId,
    SUM_BYTES, Span,
};

use super::{Chance, MIB, payload};

/// The maximum number of appends in flight.
const APPENDS_MAX: u64 = 12;

struct Fill {
    chance: Chance,
    rig: Rig,
    next_op: u64,
    appends: BTreeMap<OpId, u64>,
    reads: BTreeMap<OpId, u64>,
    /// The records by their generation, with their bytes.
    there: BTreeMap<u64, (RecordId, u64)>,
}

/// Plays a seed.
///
/// # Panics
/// When a record is refused, evicted or not what it was.
pub(super) fn fill(seed: u64, mutant: Mutant) {
    let mut chance = Chance::new(seed);
    let segment = chance.pick(&[MIB, 2 * MIB, 3 * MIB]).unwrap();
    let segments = 12 + chance.below(6);
    let budget_bytes = MIB + segments * segment;
    let (segment_bytes, limits) = (Some(segment), Limits::default());
    let config = Config { log: seed + 1, budget_bytes, segment_bytes, limits, mutant };
    let mut rig = Rig::open(config, SimDisk::new());
    rig.settle(0);
    // One size for most records of a seed: a mix would fill the ends of segments with small records.
    let usual = match chance.below(4) {
        0 => 1 + chance.below(SUM_BYTES * 2),
        1 => chance.below(segment / 2),
        2 => segment / 2 + chance.below(segment / 2),
        _ => segment + chance.below(segment),
    };
    let mixed = chance.percent(25);
    let (appends, reads, there) = Default::default();
    let mut fill = Fill { chance, rig, next_op: 1, appends, reads, there };
    let (mut asked, mut generation) = (0, 0);
    let capacity = capacity(segments, segment);
    let stop_at = fill.chance.below(capacity);
    let mut stopped = false;
    loop {
        let len = if mixed { fill.chance.below(usual + 1) } else { usual };
        asked += extent(len);
        if asked > capacity {
            break;
        }
        generation += 1;
        fill.append(generation, len);
        if asked > stop_at && !stopped {
            stopped = true;
            fill = fill.restart(config);
        }
        fill.turn();
    }
    fill.restart(config).read_all();
}

/// The largest extent of a record that is cut once for each segment.
fn extent(len: u64) -> u64 {
    let parts = if len > SUM_BYTES { 2 + len / MIB } else { 0 };
    len.next_multiple_of(BLOCK) + (1 + parts) * BLOCK
}

/// The extents that a log holds before it evicts. A segment is sealed when less than a part fits. The last
/// one is reclaimed when three quarters of the open one are used.
fn capacity(segments: u64, segment: u64) -> u64 {
    let ends = 4 * BLOCK + segment / 50;
    let rest = (segment / 64).max(SUM_BYTES) + 3 * BLOCK;
    ((segments - RESERVE_SEGMENTS) * 4 - 1) * (segment - ends - rest) / 4
}

impl Fill {
    fn op(&mut self) -> OpId {
        self.next_op += 1;
        OpId(self.next_op)
    }

    fn append(&mut self, generation: u64, len: u64) {
        let record = Record {
            name: Arc::new(Name { namespace: "n".into(), key: generation.to_le_bytes().to_vec() }),
            generation: Generation { epoch: 1, counter: generation },
            attributes: vec![],
            protected: false,
            payload_bytes: len,
        };
        let op = self.op();
        self.appends.insert(op, generation);
        let outputs = self.rig.append(op, record, payload(generation, len), 1, 0);
        self.apply(outputs);
    }

    fn read(&mut self, generation: u64) {
        let (op, (id, len)) = (self.op(), self.there[&generation]);
        self.reads.insert(op, generation);
        let outputs = self.rig.read(op, id, Span { offset: 0, len }, 1, 0);
        self.apply(outputs);
    }

    /// Ends some disk operations in any order, and reads a record now and then.
    fn turn(&mut self) {
        if self.chance.percent(20) {
            let all: Vec<u64> = self.there.keys().copied().collect();
            if let Some(generation) = self.chance.pick(&all) {
                self.read(generation);
            }
        }
        let most = self.chance.below(APPENDS_MAX) as usize;
        while self.appends.len() > most {
            let pending = self.rig.pending();
            let io = self.chance.pick(&pending).unwrap_or_else(|| panic!("liveness: {:?}", self.appends));
            let outputs = self.rig.finish(io, Fate::Ok, 0);
            self.apply(outputs);
        }
        self.rig.log.check();
    }

    /// Ends all disk operations, crashes and recovers.
    fn restart(mut self, config: Config) -> Self {
        let outputs = self.rig.settle(0);
        self.apply(outputs);
        let disk = self.rig.crash(&mut || false);
        self.rig = Rig::open(config, disk);
        let outputs = self.rig.settle(0);
        self.apply(outputs);
        assert_eq!(self.rig.log.records().count(), self.there.len(), "lost in a crash");
        self
    }

    fn read_all(mut self) {
        for generation in self.there.keys().copied().collect::<Vec<_>>() {
            self.read(generation);
        }
        let outputs = self.rig.settle(0);
        self.apply(outputs);
        assert!(self.reads.is_empty() && self.appends.is_empty(), "liveness");
    }

    fn apply(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Answer(op, Answer::Append(result), _) => {
                    let generation = self.appends.remove(&op).unwrap();
                    let id = result.unwrap_or_else(|error| panic!("refused: {error}"));
                    let len = self.rig.log.record(id).unwrap().payload_bytes;
                    self.there.insert(generation, (id, len));
                }
                Output::Answer(op, Answer::Read(result), bytes) => {
                    let generation = self.reads.remove(&op).unwrap();
                    let len = result.unwrap_or_else(|error| panic!("unreadable: {error}"));
                    assert!(bytes.unwrap() == payload(generation, len), "bytes: wrong bytes of {generation}");
                }
                Output::Event(Event::Left(left, ids)) => {
                    panic!("evicted without need: {left:?} {ids:?}\n{}", self.rig.log.describe());
                }
                Output::Event(Event::Recovered(_)) => {}
                output => panic!("unexpected: {output:?}"),
            }
        }
    }
}
