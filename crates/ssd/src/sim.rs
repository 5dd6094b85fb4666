//! A disk in memory that distinguishes written from durable bytes, and a rig that drives a [`Log`] on it.
//!
//! A crash loses bytes that are not durable: each 512-byte sector that was written since the last sync, or by
//! a write that had not ended, is kept or lost independently. The caller of the rig decides in which order
//! disk operations end, and how.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::layout::sums;
use crate::log::{Checks, Config, Done, Effect, Input, Into, Log, Part};
use crate::types::{Answer, Event, Fault, FaultKind, IoId, OpId, Record, RecordId, Span, StageId, Tick};

/// The unit that a disk writes atomically.
pub const SECTOR: u64 = 512;

/// More disk operations than any log could have left.
const SETTLE_IOS_MAX: u64 = 50_000;

type Sector = [u8; SECTOR as usize];

/// The disk.
#[derive(Debug, Default)]
pub struct SimDisk {
    live: BTreeMap<u64, Sector>,
    durable: BTreeMap<u64, Sector>,
    /// Sectors that may differ.
    dirty: BTreeMap<u64, ()>,
    bad: BTreeMap<u64, ()>,
    written_end: u64,
}

impl SimDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The current bytes.
    ///
    /// # Errors
    /// When a sector was made unreadable.
    pub fn read(&self, at: u64, len: u64) -> Result<Vec<u8>, Fault> {
        let (first, end) = (at / SECTOR, (at + len).div_ceil(SECTOR));
        if let Some((bad, ())) = self.bad.range(first..end).next() {
            return Err(Fault::new(FaultKind::Io, format!("sector {bad} cannot be read")));
        }
        let mut bytes = Vec::with_capacity(((end - first) * SECTOR) as usize);
        for sector in first..end {
            match self.live.get(&sector) {
                Some(sector) => bytes.extend(sector),
                None => bytes.extend([0; SECTOR as usize]),
            }
        }
        bytes.drain(..(at - first * SECTOR) as usize);
        bytes.truncate(len as usize);
        Ok(bytes)
    }

    /// The end of all writes so far.
    #[must_use]
    pub fn written_end(&self) -> u64 {
        self.written_end
    }

    /// A disk with these bytes at these positions, and zeros elsewhere.
    #[must_use]
    pub fn with(runs: impl IntoIterator<Item = (u64, Vec<u8>)>) -> Self {
        let mut disk = Self::new();
        runs.into_iter().for_each(|(at, bytes)| disk.write(at, &bytes));
        disk.crash(&mut || true);
        disk
    }

    /// Flips a bit, written and durable.
    pub fn flip(&mut self, at: u64, bit: u8) {
        for sectors in [&mut self.live, &mut self.durable] {
            let sector = sectors.entry(at / SECTOR).or_insert([0; SECTOR as usize]);
            if let Some(byte) = sector.get_mut((at % SECTOR) as usize) {
                *byte ^= 1 << (bit % 8);
            }
        }
    }

    /// Makes a sector unreadable, or readable again. A write makes it readable too.
    pub fn spoil(&mut self, at: u64, unreadable: bool) {
        match unreadable {
            true => drop(self.bad.insert(at / SECTOR, ())),
            false => drop(self.bad.remove(&(at / SECTOR))),
        }
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        assert!(
            at.is_multiple_of(SECTOR) && (bytes.len() as u64).is_multiple_of(SECTOR),
            "a write at {at} is not aligned"
        );
        self.written_end = self.written_end.max(at + bytes.len() as u64);
        for (sector, chunk) in (at / SECTOR..).zip(bytes.chunks(SECTOR as usize)) {
            if let Ok(chunk) = chunk.try_into() {
                self.live.insert(sector, chunk);
                self.dirty.insert(sector, ());
                self.bad.remove(&sector);
            }
        }
    }

    /// The sectors that a sync which begins now makes durable.
    fn unsynced(&self) -> Vec<(u64, Sector)> {
        self.dirty.keys().filter_map(|sector| Some((*sector, *self.live.get(sector)?))).collect()
    }

    fn harden(&mut self, sectors: Vec<(u64, Sector)>) {
        for (number, sector) in sectors {
            if self.live.get(&number) == Some(&sector) {
                self.dirty.remove(&number);
            }
            self.durable.insert(number, sector);
        }
    }

    /// Keeps or loses each sector that is not durable.
    fn crash(&mut self, keep: &mut dyn FnMut() -> bool) {
        for sector in std::mem::take(&mut self.dirty).into_keys() {
            if keep()
                && let Some(bytes) = self.live.get(&sector)
            {
                self.durable.insert(sector, *bytes);
            }
        }
        self.live = self.durable.clone();
    }
}

/// An output of the rig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// The answer to an operation, with the bytes of a successful read.
    Answer(OpId, Answer, Option<Vec<u8>>),
    /// An event.
    Event(Event),
}

/// The result of a disk operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It succeeds.
    Ok,
    /// It fails; the first sectors of a write may have been written.
    Fail(Fault),
}

#[derive(Debug)]
enum Work {
    Write { at: u64, bytes: Vec<u8> },
    Sync { sectors: Vec<(u64, Sector)> },
    Read { at: u64, len: u64, into: Into },
}

/// A log on a simulated disk. Disk operations end with [`Rig::finish`].
#[derive(Debug)]
pub struct Rig {
    /// The log.
    pub log: Log,
    /// The disk.
    pub disk: SimDisk,
    payloads: BTreeMap<OpId, Arc<Vec<u8>>>,
    destinations: BTreeMap<OpId, Vec<u8>>,
    /// Operations that were answered before their reads had ended.
    answered: BTreeSet<OpId>,
    stages: BTreeMap<StageId, Vec<u8>>,
    work: BTreeMap<IoId, Work>,
    /// The last read that ended, and its operation.
    landed: Option<(IoId, OpId)>,
}

impl Rig {
    /// Opens a log on a disk.
    #[must_use]
    pub fn open(config: Config, disk: SimDisk) -> Self {
        let (log, effects) = Log::open(config);
        let mut rig = Self {
            log,
            disk,
            payloads: BTreeMap::new(),
            destinations: BTreeMap::new(),
            answered: BTreeSet::new(),
            stages: BTreeMap::new(),
            work: BTreeMap::new(),
            landed: None,
        };
        let said = rig.carry_out(effects);
        assert!(said.is_empty(), "a log that has read nothing says {said:?}");
        rig
    }

    /// Appends a record with this payload.
    pub fn append(
        &mut self,
        op: OpId,
        record: Record,
        payload: Vec<u8>,
        deadline: Tick,
        now: Tick,
    ) -> Vec<Output> {
        let sums = sums([payload.as_slice()]);
        self.payloads.insert(op, Arc::new(payload));
        self.apply(Input::Append { op, record, sums, deadline }, now)
    }

    /// Reads a record.
    pub fn read(&mut self, op: OpId, id: RecordId, span: Span, deadline: Tick, now: Tick) -> Vec<Output> {
        self.apply(Input::Read { op, id, span, deadline }, now)
    }

    /// Applies any other input.
    pub fn apply(&mut self, input: Input, now: Tick) -> Vec<Output> {
        let effects = self.log.apply(input, now);
        self.carry_out(effects)
    }

    /// The disk operations in progress, in the order in which they began.
    #[must_use]
    pub fn pending(&self) -> Vec<IoId> {
        self.work.keys().copied().collect()
    }

    /// Whether a disk operation is a read.
    #[must_use]
    pub fn is_read(&self, io: IoId) -> bool {
        matches!(self.work.get(&io), Some(Work::Read { .. }))
    }

    fn is_read_into(&self, of: OpId) -> bool {
        let is_it = |work: &Work| matches!(work, Work::Read { into: Into::Op { op, .. }, .. } if *op == of);
        self.work.values().any(is_it)
    }

    /// Ends a disk operation, and tells the log.
    pub fn finish(&mut self, io: IoId, fate: Fate, now: Tick) -> Vec<Output> {
        let Some(work) = self.work.remove(&io) else { return Vec::new() };
        let result = match (work, fate) {
            (Work::Write { at, bytes }, Fate::Ok) => {
                self.disk.write(at, &bytes);
                Done::Ok
            }
            (Work::Write { at, mut bytes }, Fate::Fail(fault)) => {
                bytes.truncate(bytes.len() / 2 / SECTOR as usize * SECTOR as usize);
                self.disk.write(at, &bytes);
                Done::Failed(fault)
            }
            (Work::Sync { sectors }, Fate::Ok) => {
                self.disk.harden(sectors);
                Done::Ok
            }
            (Work::Read { at, len, into }, Fate::Ok) => self.finish_read(io, at, len, into),
            (Work::Sync { sectors }, Fate::Fail(fault)) => {
                // As on a real disk, no later sync makes these sectors durable.
                self.disk.dirty.retain(|sector, ()| !sectors.iter().any(|(synced, _)| synced == sector));
                Done::Failed(fault)
            }
            (Work::Read { .. }, Fate::Fail(fault)) => Done::Failed(fault),
        };
        let effects = self.log.apply(Input::Done { io, result }, now);
        let said = self.carry_out(effects);
        // The destination of an operation that was answered stays until the last read into it has ended.
        if let Some((_, op)) = self.landed.take()
            && self.answered.contains(&op)
            && !self.is_read_into(op)
        {
            self.answered.remove(&op);
            self.destinations.remove(&op);
        }
        said
    }

    /// Ends all disk operations successfully, and those that follow from them.
    pub fn settle(&mut self, now: Tick) -> Vec<Output> {
        let mut said = Vec::new();
        let mut count = 0;
        while let Some(io) = self.work.keys().next().copied() {
            said.extend(self.finish(io, Fate::Ok, now));
            count += 1;
            assert!(count < SETTLE_IOS_MAX, "liveness: disk work without end\n{}", self.log.describe());
        }
        said
    }

    /// Crashes the machine. `keep` decides for each sector that is not durable whether it is kept.
    #[must_use]
    pub fn crash(mut self, keep: &mut dyn FnMut() -> bool) -> SimDisk {
        for work in self.work.into_values() {
            if let Work::Write { at, bytes } = work {
                for (sector, chunk) in (0..).zip(bytes.chunks(SECTOR as usize)) {
                    if keep() {
                        self.disk.write(at + sector * SECTOR, chunk);
                    }
                }
            }
        }
        self.disk.crash(keep);
        self.disk
    }

    fn finish_read(&mut self, io: IoId, at: u64, len: u64, into: Into) -> Done {
        let bytes = match self.disk.read(at, len) {
            Ok(bytes) => bytes,
            Err(fault) => return Done::Failed(fault),
        };
        let fit = |checks: &Checks| if checks.fit(&bytes) { Done::Ok } else { Done::Corrupt };
        match into {
            Into::Log => Done::Bytes(bytes),
            Into::Op { op, span, to, checks } => {
                let result = fit(&checks);
                let inner = bytes.get(span.offset as usize..(span.offset + span.len) as usize);
                let (begin, end) = (to as usize, (to + span.len) as usize);
                let destination = self.destinations.entry(op).or_default();
                destination.resize(destination.len().max(end), 0);
                if let Some((to, from)) = destination.get_mut(begin..end).zip(inner) {
                    to.copy_from_slice(from);
                }
                self.landed = Some((io, op));
                result
            }
            Into::Stage { stage, checks } => {
                let result = fit(&checks);
                self.stages.insert(stage, bytes);
                result
            }
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect>) -> Vec<Output> {
        let mut said = Vec::new();
        for effect in effects {
            match effect {
                Effect::Write { io, at, parts } => {
                    let bytes = self.gather(parts);
                    self.work.insert(io, Work::Write { at, bytes });
                }
                Effect::Sync { io } => {
                    self.work.insert(io, Work::Sync { sectors: self.disk.unsynced() });
                }
                Effect::Read { io, at, len, into } => {
                    self.work.insert(io, Work::Read { at, len, into });
                }
                Effect::Copy { io, to, from } => {
                    let landed = self.landed.filter(|(landed, _)| *landed == io);
                    if let Some(bytes) = landed.and_then(|(_, op)| self.destinations.get(&op)) {
                        let end = (from.offset + from.len) as usize;
                        let bytes = bytes.get(from.offset as usize..end).unwrap_or_default().to_vec();
                        self.destinations.insert(to, bytes);
                    }
                }
                Effect::Unstage { stage } => drop(self.stages.remove(&stage)),
                Effect::Answer { op, answer } => {
                    self.payloads.remove(&op);
                    let bytes = match &answer {
                        Answer::Read(Ok(_)) => Some(self.destinations.get(&op).cloned().unwrap_or_default()),
                        _ => None,
                    };
                    match self.is_read_into(op) || self.landed.is_some_and(|(_, landed)| landed == op) {
                        true => drop(self.answered.insert(op)),
                        false => drop(self.destinations.remove(&op)),
                    }
                    said.push(Output::Answer(op, answer, bytes));
                }
                Effect::Event(event) => said.push(Output::Event(event)),
            }
        }
        said
    }

    fn gather(&self, parts: Vec<Part>) -> Vec<u8> {
        let mut out = Vec::new();
        for part in parts {
            match part {
                Part::Bytes(bytes) => out.extend(bytes),
                Part::Payload { op, span } => {
                    let payload = self.payloads.get(&op).map(|it| it.as_slice()).unwrap_or_default();
                    let some = payload.get(span.offset as usize..(span.offset + span.len) as usize);
                    match some {
                        Some(some) => out.extend(some),
                        None => panic!("the payload of {op:?} is not what it was: {span:?} is asked for"),
                    }
                }
                Part::Stage { stage, len } => {
                    let bytes = self.stages.get(&stage).map(Vec::as_slice).unwrap_or_default();
                    assert_eq!(bytes.len() as u64, len, "{stage:?} is not what it was");
                    out.extend(bytes);
                }
                Part::Zeros(len) => out.resize(out.len() + len as usize, 0),
            }
        }
        out
    }
}
