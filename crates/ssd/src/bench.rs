//! How fast a shelf is, beside what its disk gives to a raw writer and reader with the same block size.
//!
//! The raw floor goes through the same engine, with aligned memory and nothing else: no log, no checksums. It
//! writes a file of the same size that was made in the same way, and reads the very file of the log. Both
//! sides take turns of a fraction of a second, and who goes first changes with every round: a disk that is
//! shared, or cached further down, is as fast or slow for one as for the other. What counts is the median of
//! the rounds' ratios.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::engine::{Drive, Driven, Engine, Raw, start};
use crate::layout::{CHUNK_BYTES, HEAD_BYTES};
use crate::log::Limits;
use crate::memory::{Buffer, Pieces};
use crate::place::{OpenError, Place, RECORDS, direct};
use crate::shelf::{Opened, Shelf, ShelfConfig, wait};
use crate::types::{Generation, Name, Record, RecordId, Span, Stats};

const LONG: Duration = Duration::from_secs(300);
const MIB: u64 = 1 << 20;
/// The segments of the log that is measured.
const SEGMENT_BYTES: u64 = 128 * MIB;
/// What the log has beside what is written to it.
const SPARE_BYTES: u64 = 8 * SEGMENT_BYTES;
/// The log in which things leave.
const CHURN_BYTES: u64 = 512 * MIB;
/// Appends under way where they are small.
const SMALL_DEPTH: usize = 1024;
const SMALL_BYTES: u64 = 1024;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Bench {
    /// A directory on the disk, which must not hold anything; it is emptied again.
    pub path: PathBuf,
    /// How much to write and read.
    pub bytes: u64,
    /// The payload of each record, a multiple of 1 MiB.
    pub record_bytes: u64,
    /// Requests in flight.
    pub depth: usize,
    /// Which engine.
    pub drive: Drive,
    /// How often both sides take turns.
    pub rounds: u64,
    /// How many small records to recover; each takes 8 KiB.
    pub small_records: u64,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Bytes moved.
    pub bytes: u64,
    /// How long it took.
    pub took: Duration,
    /// Processor time of this process, all threads.
    pub cpu: Duration,
}

impl Rate {
    /// In GB/s.
    #[must_use]
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e9 / self.took.as_secs_f64().max(1e-9)
    }

    /// Processor seconds per GB.
    #[must_use]
    pub fn cpu_s_per_gb(&self) -> f64 {
        self.cpu.as_secs_f64() / (self.bytes as f64 / 1e9).max(1e-9)
    }
}

/// Measures from its start to its end.
#[derive(Debug)]
pub struct Clock {
    began: Instant,
    cpu: Duration,
}

impl Clock {
    /// Now.
    #[must_use]
    pub fn start() -> Self {
        Self { cpu: cpu(), began: Instant::now() }
    }

    /// Until now, so many bytes were moved.
    #[must_use]
    pub fn stop(&self, bytes: u64) -> Rate {
        Rate { bytes, took: self.began.elapsed(), cpu: cpu().saturating_sub(self.cpu) }
    }
}

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Two sides that took turns: the floor, and ours.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    rounds: Vec<(Rate, Rate)>,
}

impl Turns {
    /// One more round. Who goes first changes with every one of them.
    ///
    /// # Errors
    /// When a side fails: in words.
    pub fn round(
        &mut self,
        raw: impl FnOnce() -> Result<Rate, String>,
        ours: impl FnOnce() -> Result<Rate, String>,
    ) -> Result<(), String> {
        let round = if self.rounds.len().is_multiple_of(2) {
            let raw = raw()?;
            (raw, ours()?)
        } else {
            let ours = ours()?;
            (raw()?, ours)
        };
        self.rounds.push(round);
        Ok(())
    }

    /// A round that was measured elsewhere.
    pub fn push(&mut self, raw: Rate, ours: Rate) {
        self.rounds.push((raw, ours));
    }

    /// The median of the floor, in GB/s.
    #[must_use]
    pub fn raw_gb_per_s(&self) -> f64 {
        median(self.rounds.iter().map(|(raw, _)| raw.gb_per_s()))
    }

    /// Our median, in GB/s.
    #[must_use]
    pub fn gb_per_s(&self) -> f64 {
        median(self.rounds.iter().map(|(_, ours)| ours.gb_per_s()))
    }

    /// The median of our share of the floor.
    #[must_use]
    pub fn share(&self) -> f64 {
        median(self.rounds.iter().map(|(raw, ours)| ours.gb_per_s() / raw.gb_per_s().max(1e-9)))
    }

    /// Our processor seconds per GB, and the floor's.
    #[must_use]
    pub fn cpu_s_per_gb(&self) -> (f64, f64) {
        let ours = median(self.rounds.iter().map(|(_, ours)| ours.cpu_s_per_gb()));
        (ours, median(self.rounds.iter().map(|(raw, _)| raw.cpu_s_per_gb())))
    }

    /// The floor in the first and the last round, in GB/s: whether the disk stayed the same.
    #[must_use]
    pub fn drift(&self) -> (f64, f64) {
        let at = |it: Option<&(Rate, Rate)>| it.map_or(0.0, |(raw, _)| raw.gb_per_s());
        (at(self.rounds.first()), at(self.rounds.last()))
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// What a log did while things left it.
#[derive(Clone, Copy, Debug)]
pub struct Churn {
    /// In words, what happened to it.
    pub name: &'static str,
    /// Counters at the end.
    pub stats: Stats,
}

impl Churn {
    /// Bytes written per byte appended.
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        self.stats.written_bytes as f64 / self.stats.appended_bytes.max(1) as f64
    }
}

/// How long it took to open a log.
#[derive(Clone, Copy, Debug)]
pub struct Reopened {
    /// Records that were there.
    pub records: u64,
    /// Segments that had no index, and were scanned.
    pub scanned: u64,
    /// How long it took, all in all.
    pub took: Duration,
}

/// All measurements.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Appends, each durable when it is answered, beside sequential raw writes.
    pub append: Turns,
    /// Reads of 1 MiB of records in a mixed order, checksums verified, beside raw reads of that file.
    pub read: Turns,
    /// What leaving costs.
    pub churn: Vec<Churn>,
    /// Opening the log of large records, and one of small ones.
    pub reopened: Vec<Reopened>,
    /// Which engine, and why.
    pub driven: Driven,
}

/// Measures, and leaves nothing behind.
///
/// # Errors
/// When the place cannot be used, or an operation fails: in words.
pub fn measure(bench: &Bench) -> Result<Measured, String> {
    std::fs::create_dir_all(&bench.path).map_err(|error| error.to_string())?;
    let (log, side) = (bench.path.join("log"), bench.path.join("raw"));
    let config = ShelfConfig {
        path: log.clone(),
        budget_bytes: bench.bytes / 8 * 9 + SPARE_BYTES,
        segment_bytes: Some(SEGMENT_BYTES),
        limits: Limits::default(),
        drive: bench.drive,
    };
    // Both files are used once before they count: the first writes into fresh room cost the filesystem more.
    Floor::make(&log, config.budget_bytes, bench.drive, bench.depth)?.wipe()?;
    let mut floor = Floor::make(&side, bench.bytes, bench.drive, bench.depth)?;
    let opened = Shelf::open(&config, |_| {}).map_err(|error| error.to_string())?;
    let (mut append, mut ids) = (Turns::default(), Vec::new());
    let slice = bench.bytes / bench.rounds / bench.record_bytes * bench.record_bytes;
    for round in 0..bench.rounds {
        let first = round * slice / bench.record_bytes;
        append.round(
            || floor.write(round * slice / CHUNK_BYTES, slice / CHUNK_BYTES),
            || appends(bench, &opened.shelf, first, slice / bench.record_bytes, &mut ids),
        )?;
    }
    flush(&opened.shelf)?;
    drop((opened, floor));
    drop(std::fs::remove_dir_all(&side));
    let (opened, again) = reopen(&config)?;
    let mut floor = Floor::open(&log.join(RECORDS), bench.drive, bench.depth)?;
    let mut read = Turns::default();
    for round in 0..bench.rounds {
        let (first, count) = (round * slice / CHUNK_BYTES, slice / CHUNK_BYTES);
        let all = bench.rounds * count;
        read.round(
            || floor.read((first..first + count).map(|it| HEAD_BYTES / CHUNK_BYTES + mix(it, all))),
            || reads(bench, &opened.shelf, &ids, (first..first + count).map(|it| mix(it, all))),
        )?;
    }
    let driven = opened.driven.clone();
    drop((opened, floor));
    drop(std::fs::remove_dir_all(&log));
    let mut churns = Vec::new();
    for (name, forget, protect) in [
        ("evicted, the oldest first", 0, 0),
        ("half of it forgotten, in any order", 50, 0),
        ("the same, and a tenth of it pinned", 50, 10),
    ] {
        churns.push(Churn { name, stats: churn(bench, &log, forget, protect)? });
        drop(std::fs::remove_dir_all(&log));
    }
    let mut reopened = vec![again];
    if bench.small_records > 0 {
        reopened.push(small(bench, &log)?);
    }
    drop(std::fs::remove_dir_all(&bench.path));
    Ok(Measured { append, read, churn: churns, reopened, driven })
}

/// A file that is written and read raw, 1 MiB at a time.
pub struct Floor {
    engine: Box<dyn Engine>,
    file: Arc<OwnedFd>,
    wake: Arc<OwnedFd>,
    buffers: Vec<Buffer>,
    /// Requests in flight.
    depth: usize,
    count: u64,
}

impl Floor {
    /// A directory with a file of so many bytes, as a log has it; all of it has been written once.
    ///
    /// # Errors
    /// When the place cannot be used: in words.
    pub fn make(folder: &Path, bytes: u64, drive: Drive, depth: usize) -> Result<Self, String> {
        let text = |error: OpenError| error.to_string();
        let place = Place::open(folder, bytes, bytes).map_err(text)?;
        let mut floor = Self::on(place.file, bytes, drive, (depth, depth))?;
        floor.write(0, bytes / CHUNK_BYTES)?;
        Ok(floor)
    }

    /// A file that is there.
    ///
    /// # Errors
    /// When it cannot be used: in words.
    pub fn open(path: &Path, drive: Drive, depth: usize) -> Result<Self, String> {
        Self::open_spread(path, drive, depth, depth)
    }

    /// The same, with so many MiB of memory that it reads into, one after the other: what a processor has in
    /// its caches is written sooner than what it has not, by some disks too.
    ///
    /// # Errors
    /// When it cannot be used: in words.
    pub fn open_spread(path: &Path, drive: Drive, depth: usize, buffers: usize) -> Result<Self, String> {
        let file = direct(path, false).map_err(|error| error.to_string())?;
        let bytes = file.metadata().map_err(|error| error.to_string())?.len();
        Self::on(file.into(), bytes, drive, (depth, buffers))
    }

    /// The same, of which only the first so many bytes are written and read.
    #[must_use]
    pub fn within(self, bytes: u64) -> Self {
        Self { count: self.count.min(bytes / CHUNK_BYTES), ..self }
    }

    fn on(file: OwnedFd, bytes: u64, drive: Drive, (depth, buffers): (usize, usize)) -> Result<Self, String> {
        let file = Arc::new(file);
        let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC);
        let wake = Arc::new(wake.map_err(|error| error.to_string())?);
        let buffers: Vec<Buffer> = (0..buffers).map(|_| Buffer::new(CHUNK_BYTES as usize)).collect();
        // Bytes that no disk can shorten, as those of the records.
        for (number, buffer) in (1..).zip(&buffers) {
            // SAFETY: the buffer is ours, and nothing else uses it yet.
            unsafe { buffer.run().bytes_mut() }.copy_from_slice(&noise(number, CHUNK_BYTES));
        }
        let (engine, _) = start(drive, &file, &wake, &buffers)?;
        Ok(Self { engine, file, wake, buffers, depth, count: bytes / CHUNK_BYTES })
    }

    /// Writes so many MiB from this one on, and syncs.
    ///
    /// # Errors
    /// When the disk fails: in words.
    pub fn write(&mut self, first: u64, count: u64) -> Result<Rate, String> {
        let clock = Clock::start();
        self.pass(first..first + count, true)?;
        rustix::fs::fdatasync(&self.file).map_err(|error| error.to_string())?;
        Ok(clock.stop(count * CHUNK_BYTES))
    }

    /// Reads these MiB.
    ///
    /// # Errors
    /// When the disk fails: in words.
    pub fn read(&mut self, which: impl Iterator<Item = u64>) -> Result<Rate, String> {
        let clock = Clock::start();
        let done = self.pass(which, false)?;
        Ok(clock.stop(done * CHUNK_BYTES))
    }

    /// The same in a mixed order, from the start of the file on.
    ///
    /// # Errors
    /// When the disk fails: in words.
    pub fn read_mixed(&mut self, first: u64, count: u64) -> Result<Rate, String> {
        let all = self.count;
        self.read((first..first + count).map(|it| mix(it, all)))
    }

    fn pass(&mut self, which: impl Iterator<Item = u64>, write: bool) -> Result<u64, String> {
        let (mut flying, mut moved, mut done) = (0, 0, VecDeque::new());
        let mut free: VecDeque<u16> = (0..self.buffers.len() as u16).collect();
        let all = self.count.max(1);
        let mut which = which.map(|it| it % all).peekable();
        while which.peek().is_some() || flying > 0 {
            while which.peek().is_some() && flying < self.depth {
                let Some(number) = free.pop_front() else { break };
                let run = self.buffers.get(number as usize).map(Buffer::run);
                let (Some(run), Some(at)) = (run, which.next()) else { break };
                let (at, buffer) = (at * CHUNK_BYTES, Some(number));
                let raw = if write { Raw::Write { at, run, buffer } } else { Raw::Read { at, run, buffer } };
                self.engine.submit(u64::from(number), raw);
                flying += 1;
            }
            self.engine.kick();
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            self.engine.collect(&mut done);
            for (token, outcome) in done.drain(..) {
                if outcome != Ok(CHUNK_BYTES as usize) {
                    return Err(format!("the raw floor moved {outcome:?} instead of {CHUNK_BYTES} bytes"));
                }
                free.push_back(token as u16);
                (flying, moved) = (flying - 1, moved + 1);
            }
        }
        Ok(moved)
    }

    /// Takes away what a log would find here, and could not understand.
    ///
    /// # Errors
    /// When the disk fails: in words.
    pub fn wipe(self) -> Result<(), String> {
        let zeros = Buffer::new(CHUNK_BYTES as usize);
        // SAFETY: the buffer is ours, and nothing writes it.
        let zeros = unsafe { zeros.run().bytes() };
        let wiped = rustix::io::pwrite(&self.file, zeros, 0).and_then(|_| rustix::fs::fdatasync(&self.file));
        wiped.map_err(|error| error.to_string())
    }
}

fn flush(shelf: &Shelf) -> Result<(), String> {
    let flushed: Result<(), _> = wait(|done| shelf.flush(LONG, done));
    flushed.map_err(|error| error.to_string())
}

fn reopen(config: &ShelfConfig) -> Result<(Opened, Reopened), String> {
    let began = Instant::now();
    let opened = Shelf::open(config, |_| {}).map_err(|error| error.to_string())?;
    let took = began.elapsed();
    let (records, scanned) = (opened.recovery.records, opened.recovery.segments_scanned);
    Ok((opened, Reopened { records, scanned, took }))
}

fn record(key: u64, payload_bytes: u64, protected: bool) -> Record {
    Record {
        name: Arc::new(Name { namespace: "bench".into(), key: key.to_le_bytes().to_vec() }),
        generation: Generation { epoch: 1, counter: key },
        marks: Vec::new(),
        protected,
        payload_bytes,
    }
}

fn appends(
    bench: &Bench,
    shelf: &Shelf,
    first: u64,
    count: u64,
    ids: &mut Vec<RecordId>,
) -> Result<Rate, String> {
    let payload = Pieces::copy_of(&noise(99, bench.record_bytes));
    let clock = Clock::start();
    keep(shelf, bench.depth, first..first + count, ids, |key| {
        (record(key, bench.record_bytes, false), payload.clone())
    })?;
    Ok(clock.stop(count * bench.record_bytes))
}

/// Appends so many at a time; their ids, in the order of their answers.
fn keep(
    shelf: &Shelf,
    depth: usize,
    keys: std::ops::Range<u64>,
    ids: &mut Vec<RecordId>,
    make: impl Fn(u64) -> (Record, Pieces),
) -> Result<(), String> {
    let (send, answers) = channel();
    let (mut asked, mut answered) = (0, 0);
    let count = keys.end - keys.start;
    while answered < count {
        while asked < count && asked - answered < depth as u64 {
            let (record, payload) = make(keys.start + asked);
            let send = send.clone();
            shelf.append(record, payload, LONG, move |result| drop(send.send(result)));
            asked += 1;
        }
        let answer = answers.recv().map_err(|error| error.to_string())?;
        ids.push(answer.map_err(|error| error.to_string())?);
        answered += 1;
    }
    Ok(())
}

fn reads(
    bench: &Bench,
    shelf: &Shelf,
    ids: &[RecordId],
    which: impl Iterator<Item = u64>,
) -> Result<Rate, String> {
    let per_record = bench.record_bytes / CHUNK_BYTES;
    let mut free: Vec<Pieces> = (0..bench.depth).map(|_| Pieces::zeroed(CHUNK_BYTES)).collect();
    let (send, answers) = channel();
    let clock = Clock::start();
    let (mut asked, mut done) = (0, 0);
    let mut which = which.peekable();
    while which.peek().is_some() || done < asked {
        while let (true, Some(into)) = (which.peek().is_some(), free.pop()) {
            let Some(which) = which.next() else { break };
            let Some(id) = ids.get((which / per_record) as usize) else { break };
            let span = Span { offset: which % per_record * CHUNK_BYTES, len: CHUNK_BYTES };
            let (send, back) = (send.clone(), into.clone());
            shelf.read(*id, span, into, LONG, move |result| drop(send.send((back, result))));
            asked += 1;
        }
        let (into, result) = answers.recv().map_err(|error| error.to_string())?;
        result.map_err(|error| error.to_string())?;
        free.push(into);
        done += 1;
    }
    Ok(clock.stop(done * CHUNK_BYTES))
}

/// Fills a log several times over, so that old records must leave; of what is there, some per cent is
/// forgotten before that, and some is pinned.
fn churn(bench: &Bench, path: &Path, forget_percent: u64, protect_percent: u64) -> Result<Stats, String> {
    const BATCH: u64 = 64;
    let config = ShelfConfig {
        path: path.to_owned(),
        budget_bytes: CHURN_BYTES,
        segment_bytes: None,
        limits: Limits::default(),
        drive: bench.drive,
    };
    let opened = Shelf::open(&config, |_| {}).map_err(|error| error.to_string())?;
    let shelf = &opened.shelf;
    let sizes: Vec<Pieces> =
        [16, 64, 256, 1024].iter().map(|kib| Pieces::copy_of(&noise(*kib, kib << 10))).collect();
    let (mut key, mut ids) = (0, Vec::new());
    while shelf.stats().appended_bytes < 4 * CHURN_BYTES {
        keep(shelf, bench.depth, key..key + BATCH, &mut ids, |key| {
            let payload = sizes.iter().cycle().nth(mix(key, 1 << 16) as usize % 4).cloned();
            let payload = payload.unwrap_or_else(|| Pieces::zeroed(0));
            // A pin lasts for a while: what is pinned later takes the place of what was pinned before.
            let protected = mix(key, 1 << 16) % 100 < protect_percent && key % 2048 < 1024;
            (record(key, payload.len(), protected), payload)
        })?;
        key += BATCH;
        let doomed: Vec<_> = (0..BATCH * forget_percent / 100)
            .filter_map(|it| {
                let at = mix(key + it, 1 << 20) as usize % ids.len().max(1);
                (!ids.is_empty()).then(|| ids.swap_remove(at))
            })
            .collect();
        if !doomed.is_empty() {
            let forgotten: Result<u64, _> = wait(|done| shelf.forget(doomed, LONG, done));
            forgotten.map_err(|error| error.to_string())?;
        }
    }
    flush(shelf)?;
    Ok(shelf.stats())
}

/// How long many small records take to recover.
fn small(bench: &Bench, path: &Path) -> Result<Reopened, String> {
    let room = bench.small_records * 2 * crate::layout::BLOCK;
    let config = ShelfConfig {
        path: path.to_owned(),
        budget_bytes: room / 8 * 9 + SPARE_BYTES,
        segment_bytes: Some(SEGMENT_BYTES),
        limits: Limits::default(),
        drive: bench.drive,
    };
    let opened = Shelf::open(&config, |_| {}).map_err(|error| error.to_string())?;
    let payload = Pieces::copy_of(&noise(3, SMALL_BYTES));
    let mut ids = Vec::new();
    keep(&opened.shelf, SMALL_DEPTH, 0..bench.small_records, &mut ids, |key| {
        (record(key, SMALL_BYTES, false), payload.clone())
    })?;
    flush(&opened.shelf)?;
    drop(opened);
    let (_, reopened) = reopen(&config)?;
    drop(std::fs::remove_dir_all(path));
    Ok(reopened)
}

/// Bytes without a pattern.
#[must_use]
pub fn noise(seed: u64, len: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..len.div_ceil(8)).flat_map(|_| next().to_le_bytes()).take(len as usize).collect()
}

/// Each number below `count` once, in a mixed order.
#[must_use]
pub fn mix(number: u64, count: u64) -> u64 {
    let mut step = (0x9e37_79b9 % count.max(1)) | 1;
    while gcd(step, count) != 1 {
        step += 2;
    }
    (number % count).wrapping_mul(step) % count
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
