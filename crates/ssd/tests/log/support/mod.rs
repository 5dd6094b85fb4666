//! A log, a simulated disk and a model of the log's obligations, driven by one seed.
//!
//! The model names each append by its generation, which is used once. Invariants: a record has its bytes or
//! is absent, deleted records stay deleted, and answered changes are durable.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failure here is a failed test")]

mod fill;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tiffin_ssd::sim::{Fate, Output, Rig, SimDisk};
use tiffin_ssd::{
    Answer, AppendError, ChangeError, Config, Event, Fault, FaultKind, Generation, Health, Input, Left,
    Limits, Mutant, Name, OpId, ReadError, Record, RecordId, Span,
};

const MIB: u64 = 1 << 20;

/// All chance comes from here.
struct Chance(ChaCha8Rng);

impl Chance {
    fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.0.next_u64() % end }
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        of.get(self.below(of.len() as u64) as usize).copied()
    }
}

/// What is known of an append.
#[derive(Clone, Debug)]
struct Owed {
    name: Arc<Name>,
    payload: u64,
    status: Status,
    /// Its name in the log, once that is known.
    id: Option<RecordId>,
    /// The attributes that were answered, and those asked for since.
    attributes: Vec<u8>,
    protected: bool,
    asked: Vec<(Vec<u8>, bool)>,
    /// Its bytes, or its header, were damaged.
    damaged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    /// It may be there after a restart.
    Unknown,
    /// It is there.
    Live,
    /// It is to be forgotten: it cannot be read, but may be there after a restart.
    Leaving,
    /// It must never be seen again.
    Gone,
}

/// An operation under way.
#[derive(Clone, Debug)]
enum Asked {
    Append(u64),
    /// Whether it is in flight.
    Read(u64, Span, bool),
    SetAttributes(u64, Vec<u8>, bool),
    Forget(Vec<u64>),
    Flush,
}

pub(crate) struct World {
    chance: Chance,
    config: Config,
    rig: Option<Rig>,
    now: u64,
    next_op: u64,
    next_generation: u64,
    owed: BTreeMap<u64, Owed>,
    by_id: BTreeMap<RecordId, u64>,
    ops: BTreeMap<OpId, Asked>,
    ids_seen: BTreeSet<RecordId>,
    keys: u64,
    /// How many of a hundred are protected.
    protective: u64,
    faults: bool,
    /// More is appended than forgotten.
    hungry: bool,
    /// Reads take long.
    lazy: bool,
    /// Many records are larger than a segment.
    large: bool,
    /// The machine stops after this step.
    crash_soon: bool,
    /// The last part of this record is damaged after this step, and the machine stops.
    strike: Option<(u64, RecordId)>,
    announced: bool,
    /// How the log was before the last crash.
    before: String,
    lost_io: u64,
    seen: BTreeMap<String, u64>,
}

/// Plays a seed; the text says what was wrong.
pub(crate) fn play(seed: u64, mutant: Mutant, events: u64) -> Result<BTreeMap<String, u64>, String> {
    caught(|| {
        let mut world = World::new(seed, mutant);
        for _ in 0..events {
            world.step();
        }
        world.end();
        world.seen
    })
}

/// Fills a log from a seed without faults; the text says what was evicted, or wrong otherwise.
pub(crate) fn fill(seed: u64, mutant: Mutant) -> Result<(), String> {
    caught(|| fill::fill(seed, mutant))
}

fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default()
    })
}

fn payload(generation: u64, len: u64) -> Vec<u8> {
    let mut state = generation.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; len.next_multiple_of(8) as usize];
    for word in bytes.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len as usize);
    bytes
}

impl World {
    fn new(seed: u64, mutant: Mutant) -> Self {
        let mut chance = Chance::new(seed);
        let large = chance.percent(35);
        let segment = if large { 2 * MIB } else { chance.pick(&[MIB, MIB, MIB, 3 * MIB]).unwrap() };
        let segments = if large { 12 + chance.below(6) } else { 6 + chance.below(5) };
        let mut limits = Limits::default();
        if chance.percent(30) {
            limits.queue_ops_max = 4;
            limits.write_bytes_max = 64 << 10;
        }
        let config = Config {
            log: seed + 1,
            budget_bytes: MIB + segments * segment + chance.below(MIB),
            segment_bytes: Some(segment),
            limits,
            mutant,
        };
        let hungry = chance.percent(60);
        let lazy = chance.percent(25);
        let keys = 4 + chance.below(if hungry { 1500 } else { 120 });
        let protective = chance.pick(&[2, 12, 70]).unwrap();
        let mut world = Self {
            chance,
            config,
            rig: Some(Rig::open(config, SimDisk::new())),
            now: 0,
            next_op: 1,
            next_generation: 1,
            owed: BTreeMap::new(),
            by_id: BTreeMap::new(),
            ops: BTreeMap::new(),
            ids_seen: BTreeSet::new(),
            keys,
            faults: true,
            hungry,
            lazy,
            large,
            crash_soon: false,
            strike: None,
            announced: false,
            before: String::new(),
            protective,
            lost_io: 0,
            seen: BTreeMap::new(),
        };
        world.recover();
        world
    }

    fn see(&mut self, what: &str) {
        *self.seen.entry(what.to_owned()).or_default() += 1;
    }

    fn rig(&mut self) -> &mut Rig {
        self.rig.as_mut().unwrap()
    }

    fn op(&mut self) -> OpId {
        self.next_op += 1;
        OpId(self.next_op)
    }

    fn deadline(&mut self) -> u64 {
        let rare = self.chance.percent(5);
        self.now + if rare { 1 + self.chance.below(5) } else { 10_000_000 }
    }

    fn step(&mut self) {
        self.now += 1;
        if matches!(self.rig().log.health(), Health::Failed(_)) && self.chance.percent(3) {
            self.crash();
        }
        if self.hungry && self.chance.percent(12) {
            self.append();
        }
        match self.chance.below(1000) {
            0..180 => self.append(),
            180..300 => self.read(),
            300..380 if self.hungry && !self.now.is_multiple_of(4) => {}
            300..380 => self.forget(),
            380..430 => self.set_attributes(),
            430..440 => self.flush(),
            440..455 => self.cancel(),
            455..463 => self.damage(),
            463..465 => self.spoil(),
            465..468 => self.crash(),
            468..470 => self.tick(),
            _ => self.finish_one(),
        }
        if let Some((generation, id)) = self.strike.take() {
            self.strike_last_part(generation, id);
        }
        if std::mem::take(&mut self.crash_soon) {
            self.crash();
        }
        self.check();
    }

    fn check(&mut self) {
        let budget = self.config.budget_bytes;
        let rig = self.rig();
        rig.log.check();
        assert!(rig.disk.written_end() <= budget, "budget: {} of {budget}", rig.disk.written_end());
    }

    fn append(&mut self) {
        let generation = self.next_generation;
        self.next_generation += 1;
        // Mostly the newest generation of its key; sometimes one that an earlier append overtakes.
        let key = self.chance.below(self.keys);
        let name = Arc::new(Name { namespace: format!("n{}", key % 3), key: key.to_le_bytes().to_vec() });
        let segment = self.config.segment_bytes.unwrap();
        let len = match self.chance.below(100) {
            // Several segments, now and then more than the log takes.
            _ if self.large && self.chance.percent(12) => segment / 2 + self.chance.below(3 * segment),
            0..5 => 0,
            5..70 => self.chance.below(30_000),
            70..97 => self.chance.below(200_000),
            _ => self.chance.below(segment + 50_000),
        };
        let protected = self.chance.percent(self.protective);
        let attributes = vec![generation as u8; self.chance.below(40) as usize];
        let owed = Owed {
            name: Arc::clone(&name),
            payload: len,
            status: Status::Unknown,
            id: None,
            attributes: attributes.clone(),
            protected,
            asked: Vec::new(),
            damaged: false,
        };
        self.owed.insert(generation, owed);
        let record = Record {
            name,
            generation: Generation { epoch: generation >> 4, counter: generation },
            attributes,
            protected,
            payload_bytes: len,
        };
        let (op, deadline, now) = (self.op(), self.deadline(), self.now);
        self.ops.insert(op, Asked::Append(generation));
        let outputs = self.rig().append(op, record, payload(generation, len), deadline, now);
        self.apply(outputs);
    }

    fn known(&mut self, status: Status) -> Option<(u64, RecordId)> {
        let all: Vec<(u64, RecordId)> = self
            .owed
            .iter()
            .filter(|(_, owed)| owed.status == status)
            .filter_map(|(generation, owed)| Some((*generation, owed.id?)))
            .collect();
        self.chance.pick(&all)
    }

    fn read(&mut self) {
        let status = if self.chance.percent(90) { Status::Live } else { Status::Gone };
        let Some((generation, id)) = self.known(status) else { return };
        let len = self.owed[&generation].payload;
        let times = if self.chance.percent(30) { 3 } else { 1 };
        for _ in 0..times {
            let offset = if self.chance.percent(70) { 0 } else { self.chance.below(len + 1) };
            let len =
                if self.chance.percent(70) { len - offset } else { self.chance.below(len - offset + 1) };
            let span = Span { offset, len };
            let (op, deadline, now) = (self.op(), self.deadline(), self.now);
            self.ops.insert(op, Asked::Read(generation, span, false));
            let outputs = self.rig().read(op, id, span, deadline, now);
            self.apply(outputs);
            if let Some(Asked::Read(_, _, flying)) = self.ops.get_mut(&op) {
                *flying = true;
            }
        }
    }

    fn forget(&mut self) {
        let (mut ids, mut generations) = (Vec::new(), Vec::new());
        for _ in 0..=self.chance.below(3) {
            let status = if self.chance.percent(85) { Status::Live } else { Status::Leaving };
            let Some((generation, id)) = self.known(status) else { continue };
            ids.push(id);
            generations.push(generation);
            self.owed.get_mut(&generation).unwrap().status = Status::Leaving;
        }
        let (op, deadline, now) = (self.op(), self.deadline(), self.now);
        self.ops.insert(op, Asked::Forget(generations));
        let outputs = self.rig().apply(Input::Forget { op, ids, deadline }, now);
        self.apply(outputs);
    }

    fn set_attributes(&mut self) {
        let Some((generation, id)) = self.known(Status::Live) else { return };
        let attributes: Vec<u8> = (0..self.chance.below(60)).map(|n| n as u8 ^ self.now as u8).collect();
        let protected = self.chance.percent(35);
        let owed = self.owed.get_mut(&generation).unwrap();
        owed.asked.push((attributes.clone(), protected));
        let (op, deadline, now) = (self.op(), self.deadline(), self.now);
        self.ops.insert(op, Asked::SetAttributes(generation, attributes.clone(), protected));
        let outputs = self.rig().apply(Input::SetAttributes { op, id, attributes, protected, deadline }, now);
        self.apply(outputs);
    }

    fn flush(&mut self) {
        let (op, deadline, now) = (self.op(), self.deadline(), self.now);
        self.ops.insert(op, Asked::Flush);
        let outputs = self.rig().apply(Input::Flush { op, deadline }, now);
        self.apply(outputs);
    }

    fn cancel(&mut self) {
        let ops: Vec<OpId> = self.ops.keys().copied().collect();
        let Some(op) = self.chance.pick(&ops) else { return };
        let now = self.now;
        let outputs = self.rig().apply(Input::Cancel { op }, now);
        self.apply(outputs);
    }

    fn tick(&mut self) {
        let now = self.now;
        let outputs = self.rig().apply(Input::Tick, now);
        self.apply(outputs);
    }

    /// Flips a bit somewhere; whoever's bytes those may be is no longer owed.
    fn damage(&mut self) {
        if !self.faults {
            return;
        }
        let newest = self.by_id.last_key_value().map(|(id, generation)| (*generation, *id));
        let newest = newest.filter(|_| self.chance.percent(50));
        let newest = if self.large && self.chance.percent(50) { self.spanning() } else { newest };
        let Some((generation, id)) = newest.or_else(|| self.known(Status::Live)) else { return };
        let places = self.rig().log.places_of(id);
        let Some((at, len)) = self.chance.pick(&places) else { return };
        let at = at + self.chance.below(len);
        let bit = self.chance.below(8) as u8;
        self.rig().disk.flip(at, bit);
        self.owed.get_mut(&generation).unwrap().damaged = true;
        self.see("bit flip");
        if self.chance.percent(40) {
            self.crash();
        }
    }

    /// Damages what was written last of a record in parts, before its segment has an index.
    fn strike_last_part(&mut self, generation: u64, id: RecordId) {
        let Some((at, len)) = self.rig().log.places_of(id).pop() else { return };
        let at = at + self.chance.below(len);
        self.rig().disk.flip(at, 3);
        self.owed.get_mut(&generation).unwrap().damaged = true;
        self.see("damaged part");
        self.crash_soon = true;
    }

    /// Makes a block of a live record unreadable for a while.
    fn spoil(&mut self) {
        if !self.faults {
            return;
        }
        let Some((generation, id)) = self.known(Status::Live) else { return };
        let places = self.rig().log.places_of(id);
        let Some((at, len)) = self.chance.pick(&places) else { return };
        let at = at + self.chance.below(len);
        let heal = self.chance.percent(50);
        self.rig().disk.spoil(at, true);
        if heal {
            let pending = self.rig().pending();
            let reads: Vec<_> =
                pending.into_iter().filter(|io| self.rig.as_ref().unwrap().is_read(*io)).collect();
            for io in reads {
                self.finish(io, Fate::Ok);
            }
            self.rig().disk.spoil(at, false);
        } else {
            self.owed.get_mut(&generation).unwrap().damaged = true;
        }
        self.see("unreadable sector");
    }

    fn finish_one(&mut self) {
        let pending = self.rig().pending();
        let Some(io) = self.chance.pick(&pending) else { return };
        if self.lazy && self.rig().is_read(io) && self.chance.percent(97) {
            return;
        }
        let fault = self.faults && self.chance.below(4000) == 0;
        if self.faults && self.chance.below(3000) == 0 && self.lost_io < 2 {
            // It will never end; the operation ends by its deadline.
            self.lost_io += 1;
            self.see("lost completion");
            self.now += 20_000_000;
            self.tick();
            return self.crash();
        }
        let kinds = [FaultKind::Io, FaultKind::NoSpace, FaultKind::ReadOnly, FaultKind::Vanished];
        let kind = self.chance.pick(&kinds).unwrap();
        match fault {
            true => {
                self.see(&format!("disk says {kind:?}"));
                self.finish(io, Fate::Fail(Fault::new(kind, "as the simulation wants it")));
            }
            false => self.finish(io, Fate::Ok),
        }
    }

    fn finish(&mut self, io: tiffin_ssd::IoId, fate: Fate) {
        let now = self.now;
        let outputs = self.rig().finish(io, fate, now);
        self.apply(outputs);
    }

    fn apply(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Answer(op, answer, bytes) => {
                    let asked = self.ops.remove(&op).unwrap_or_else(|| panic!("{op:?} was answered twice"));
                    self.answered(asked, answer, bytes);
                }
                Output::Event(event) => self.event(event),
            }
        }
    }

    fn answered(&mut self, asked: Asked, answer: Answer, bytes: Option<Vec<u8>>) {
        match (asked, answer) {
            (Asked::Append(generation), Answer::Append(result)) => self.append_answered(generation, result),
            (Asked::Read(generation, span, flying), Answer::Read(result)) => {
                let stopped = flying && result == Err(ReadError::Gone) && !self.owed[&generation].damaged;
                assert!(!stopped, "readers: a read in flight was stopped");
                self.read_answered(generation, span, result, bytes)
            }
            (Asked::SetAttributes(generation, attributes, protected), Answer::SetAttributes(result)) => {
                let owed = self.owed.get_mut(&generation).unwrap();
                match result {
                    Ok(()) => {
                        // Whatever was asked for before this cannot be what is found.
                        let at =
                            owed.asked.iter().position(|asked| *asked == (attributes.clone(), protected));
                        if let Some(at) = at {
                            owed.asked.drain(..=at);
                        }
                        (owed.attributes, owed.protected) = (attributes, protected);
                        self.see("mark");
                    }
                    Err(ChangeError::Gone | ChangeError::Full { .. } | ChangeError::TooLarge { .. }) => {
                        owed.asked.retain(|asked| *asked != (attributes.clone(), protected));
                        self.see("mark refused");
                    }
                    Err(_) => self.see("mark not sure"),
                }
            }
            (Asked::Forget(generations), Answer::Forget(result)) => match result {
                Ok(_) => {
                    self.see("forget");
                    for generation in generations {
                        self.owed.get_mut(&generation).unwrap().status = Status::Gone;
                    }
                }
                Err(error) => {
                    assert!(!matches!(error, ChangeError::Gone | ChangeError::Full { .. }), "{error}");
                    self.see("forget not sure");
                }
            },
            (Asked::Flush, Answer::Flush(result)) => {
                self.see(if result.is_ok() { "flush" } else { "flush failed" })
            }
            (asked, answer) => panic!("{asked:?} was answered with {answer:?}"),
        }
    }

    fn append_answered(&mut self, generation: u64, result: Result<RecordId, AppendError>) {
        let owed = self.owed.get_mut(&generation).unwrap();
        match result {
            Ok(id) => {
                owed.status = Status::Live;
                owed.id = Some(id);
                assert!(self.ids_seen.insert(id), "ids: {id} was used twice");
                self.by_id.insert(id, generation);
                let name = Arc::clone(&owed.name);
                for (_, older) in self.owed.range_mut(..generation).filter(|(_, older)| older.name == name) {
                    if older.status == Status::Live {
                        older.status = Status::Gone;
                    }
                }
                self.see("append");
                if self.spans(id) {
                    let is_cut = self.owed[&generation].payload < self.config.segment_bytes.unwrap();
                    self.see(if is_cut { "cut append" } else { "spanning append" });
                    if self.faults && self.chance.percent(15) {
                        self.strike = Some((generation, id));
                    }
                }
            }
            Err(AppendError::TimedOut) => self.see("append timed out"),
            Err(AppendError::Failed(_)) => self.see("append failed"),
            Err(error) => {
                owed.status = Status::Gone;
                let text = match error {
                    AppendError::Full { .. } => "append full",
                    AppendError::Stale { .. } => "append stale",
                    AppendError::Cancelled => "append cancelled",
                    AppendError::TooLarge { .. } => "append too large",
                    AppendError::Busy => "append busy",
                    _ => panic!("an append was answered with {error:?}"),
                };
                self.see(text);
            }
        }
    }

    fn read_answered(
        &mut self,
        generation: u64,
        span: Span,
        result: Result<u64, ReadError>,
        bytes: Option<Vec<u8>>,
    ) {
        let owed = self.owed[&generation].clone();
        match result {
            Ok(len) => {
                assert_eq!(len, span.len);
                let all = payload(generation, owed.payload);
                let expected = &all[span.offset as usize..(span.offset + span.len) as usize];
                assert!(bytes.unwrap() == expected, "bytes: wrong bytes of {owed:?}");
                self.see("read");
                if owed.id.is_some_and(|id| self.spans(id)) {
                    self.see("spanning read");
                }
            }
            Err(ReadError::Gone) => {
                let leaving = self.rig().log.leaving();
                let replaced = self.replaced(generation) || owed.id.is_some_and(|id| leaving.contains(&id));
                assert!(owed.status != Status::Live || replaced, "lost: {owed:?}");
                self.see("read gone");
            }
            Err(ReadError::Corrupt) => {
                assert!(owed.damaged, "corrupt without cause: {owed:?}");
                self.see("read corrupt");
            }
            Err(ReadError::Failed(_)) => self.see("read failed"),
            Err(ReadError::TimedOut) => self.see("read timed out"),
            Err(ReadError::Cancelled) => self.see("read cancelled"),
            Err(ReadError::Busy) => {}
            Err(error) => panic!("a read was answered with {error:?}"),
        }
    }

    /// The newest record that is there in parts.
    fn spanning(&self) -> Option<(u64, RecordId)> {
        let log = &self.rig.as_ref().unwrap().log;
        let spans = |id: &&RecordId| log.places_of(**id).len() > 1;
        let id = self.by_id.keys().rev().find(spans)?;
        Some((self.by_id[id], *id))
    }

    /// Whether a record is there in parts.
    fn spans(&mut self, id: RecordId) -> bool {
        self.rig().log.places_of(id).len() > 1
    }

    /// Whether a newer generation of its key is there, or may be.
    fn replaced(&self, generation: u64) -> bool {
        let name = &self.owed[&generation].name;
        self.owed.range(generation + 1..).any(|(_, owed)| owed.name == *name && owed.status != Status::Gone)
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Left(left, ids) => {
                self.see(&format!("{left:?}"));
                // What was said to be gone must be so from now on.
                self.crash_soon |= self.faults && left == Left::Evicted && self.chance.percent(4);
                for id in ids {
                    let Some(generation) = self.by_id.get(&id).copied() else { continue };
                    let is_large = self.owed[&generation].payload > self.config.segment_bytes.unwrap();
                    if is_large {
                        self.see(&format!("spanning {left:?}"));
                    }
                    let owed = self.owed.get_mut(&generation).unwrap();
                    if left == Left::Evicted {
                        let asked = owed.asked.iter().any(|(_, protected)| !protected);
                        assert!(!owed.protected || asked, "protected: evicted {owed:?}");
                    }
                    if left == Left::Corrupt {
                        assert!(owed.damaged, "corrupt without cause: {owed:?}");
                        // Nothing was promised about when it is durable.
                        if owed.status == Status::Live {
                            owed.status = Status::Leaving;
                        }
                    } else {
                        owed.status = Status::Gone;
                    }
                }
            }
            Event::Failed(_) => self.see("disk failed"),
            Event::Unusable(fault) => panic!("unusable: {fault}"),
            Event::Recovered(report) => {
                self.see("recovered");
                self.announced = true;
                if report.records_bad > 0 {
                    self.see("recovered bad records");
                }
                if report.records_superseded > 0 {
                    self.see("recovered several generations");
                }
                if report.segments_scanned > 1 {
                    self.see("scanned several segments");
                }
            }
        }
    }

    fn crash(&mut self) {
        self.see("crash");
        // What was being erased may be gone.
        for id in self.rig().log.leaving() {
            if let Some(generation) = self.by_id.get(&id) {
                let owed = self.owed.get_mut(generation).unwrap();
                assert!(!owed.protected || owed.asked.iter().any(|(_, p)| !p), "protected: erasing {owed:?}");
                if owed.status == Status::Live {
                    owed.status = Status::Leaving;
                }
            }
        }
        self.ops.clear();
        let keep_percent = self.chance.pick(&[0, 10, 50, 90, 100]).unwrap();
        let rig = self.rig.take().unwrap();
        self.before = rig.log.describe();
        let chance = &mut self.chance;
        let disk = rig.crash(&mut || chance.percent(keep_percent));
        self.rig = Some(Rig::open(self.config, disk));
        self.lost_io = 0;
        self.recover();
    }

    /// Reads the log, sometimes with a crash in between, and holds what it found against what it owes.
    fn recover(&mut self) {
        self.announced = false;
        while !self.announced {
            let pending = self.rig().pending();
            let io = self.chance.pick(&pending).unwrap();
            self.finish(io, Fate::Ok);
        }
        let segment = self.config.segment_bytes.unwrap();
        let rig = self.rig.as_ref().unwrap();
        let found: BTreeMap<u64, (RecordId, Record)> =
            rig.log.records().map(|(id, record)| (record.generation.counter, (id, record.clone()))).collect();
        for (generation, (id, record)) in &found {
            let owed = self.owed.get_mut(generation).unwrap();
            assert_ne!(owed.status, Status::Gone, "came back: {id} {owed:?}");
            assert_eq!((&owed.name, owed.payload), (&record.name, record.payload_bytes));
            let pair = (record.attributes.clone(), record.protected);
            let known = pair == (owed.attributes.clone(), owed.protected) || owed.asked.contains(&pair);
            assert!(known, "attributes: {pair:?} found, {owed:?}");
            if let Some(before) = owed.id {
                assert_eq!(before, *id, "ids: a record has another id");
            } else {
                assert!(self.ids_seen.insert(*id), "ids: {id} was used twice");
            }
            // What was found is owed from now on; a second restart must find it too.
            owed.id = Some(*id);
            owed.status = Status::Live;
            (owed.attributes, owed.protected) = pair;
            owed.asked.clear();
            self.by_id.insert(*id, *generation);
        }
        let large = |it: &&Owed| it.payload > segment && it.status == Status::Unknown;
        let cut = self.owed.iter().filter(|(generation, _)| !found.contains_key(generation));
        let cut = cut.filter(|(_, it)| large(it)).count() as u64;
        let recovered = found.values().filter(|(_, record)| record.payload_bytes > segment).count() as u64;
        let is_cut = |id, bytes| bytes < segment && rig.log.places_of(id).len() > 1;
        let cuts = found.values().filter(|(id, record)| is_cut(*id, record.payload_bytes)).count() as u64;
        let counts = [("spanning cut off", cut), ("spanning recovered", recovered), ("cut recovered", cuts)];
        for (what, count) in counts {
            if count > 0 {
                *self.seen.entry(what.to_owned()).or_default() += count;
            }
        }
        let replaced: BTreeSet<u64> = self.owed.keys().copied().filter(|g| self.replaced(*g)).collect();
        for (generation, owed) in &mut self.owed {
            if found.contains_key(generation) {
                continue;
            }
            let may = owed.damaged || replaced.contains(generation);
            assert!(
                owed.status != Status::Live || may,
                "lost in a crash: {owed:?}\n{}{}",
                self.before,
                rig.log.describe()
            );
            // What a restart did not find must not be found by a later one.
            if !owed.damaged {
                owed.status = Status::Gone;
            } else {
                owed.status = Status::Leaving;
            }
        }
    }

    /// All faults stop: every operation ends, and everything that is there can be read.
    fn end(&mut self) {
        self.faults = false;
        if matches!(self.rig().log.health(), Health::Failed(_)) {
            self.crash();
        }
        for _ in 0..2 {
            let now = self.now;
            let outputs = self.rig().settle(now);
            self.apply(outputs);
            self.check();
            let waiting = self.ops.len();
            let text = self.rig().log.describe();
            assert_eq!(waiting, 0, "liveness: {:?} waits\n{text}", self.ops.values().next());
            for generation in self.owed.keys().copied().collect::<Vec<_>>() {
                let owed = &self.owed[&generation];
                let (Status::Live, Some(id)) = (owed.status, owed.id) else { continue };
                let span = Span { offset: 0, len: owed.payload };
                let (op, now) = (self.op(), self.now);
                self.ops.insert(op, Asked::Read(generation, span, true));
                let outputs = self.rig().read(op, id, span, now + 1000, now);
                self.apply(outputs);
            }
            let now = self.now;
            let outputs = self.rig().settle(now);
            self.apply(outputs);
            assert_eq!(self.rig().log.in_flight(), 0);
            self.crash();
        }
    }
}
