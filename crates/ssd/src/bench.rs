//! Measures a log beside a raw writer and reader on the same disk, with the same block size.
//!
//! The raw floor uses the same engine with aligned memory, without a log and checksums. It writes a file of
//! the same size that was allocated in the same way, and reads the file of the log. Both sides take turns of
//! a fraction of a second, and the order changes with every round, so that a shared or cached disk affects
//! both. The result is the median of the ratios.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::disk_log::{DiskLog, DiskLogConfig, Opened, wait};
use crate::engine::{Drive, Driven, Engine, Raw, start};
use crate::layout::{CHUNK_BYTES, HEAD_BYTES};
use crate::log::Limits;
use crate::memory::{Buffer, Pieces};
use crate::place::{OpenError, Place, RECORDS, direct};
use crate::types::{Generation, Name, Record, RecordId, Span, Stats};

const LONG: Duration = Duration::from_secs(300);
const MIB: u64 = 1 << 20;
/// The segment size of the measured log.
const SEGMENT_BYTES: u64 = 128 * MIB;
/// The size of the log beyond the bytes written to it.
const SPARE_BYTES: u64 = 8 * SEGMENT_BYTES;
/// The size of the log that evicts.
const CHURN_BYTES: u64 = 512 * MIB;
/// Small appends in flight.
const SMALL_DEPTH: usize = 1024;
const SMALL_BYTES: u64 = 1024;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Bench {
    /// An empty or new directory on the disk; it is emptied again.
    pub path: PathBuf,
    /// The bytes to write and read.
    pub bytes: u64,
    /// The payload of each record, a multiple of 1 MiB.
    pub record_bytes: u64,
    /// Requests in flight.
    pub depth: usize,
    /// The engine.
    pub drive: Drive,
    /// The number of rounds.
    pub rounds: u64,
    /// The number of small records to recover; each takes 8 KiB.
    pub small_records: u64,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Bytes moved.
    pub bytes: u64,
    /// The duration.
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

/// A running measurement.
#[derive(Debug)]
pub struct Clock {
    began: Instant,
    cpu: Duration,
}

impl Clock {
    /// Starts a measurement.
    #[must_use]
    pub fn start() -> Self {
        Self { cpu: cpu(), began: Instant::now() }
    }

    /// Ends the measurement of this many bytes.
    #[must_use]
    pub fn stop(&self, bytes: u64) -> Rate {
        Rate { bytes, took: self.began.elapsed(), cpu: cpu().saturating_sub(self.cpu) }
    }
}

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The rounds of both sides: the floor, and the log.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    rounds: Vec<(Rate, Rate)>,
}

impl Turns {
    /// Measures another round. The order of the sides changes with every round.
    ///
    /// # Errors
    /// When a side fails.
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

    /// The median of the log, in GB/s.
    #[must_use]
    pub fn gb_per_s(&self) -> f64 {
        median(self.rounds.iter().map(|(_, ours)| ours.gb_per_s()))
    }

    /// The median of the ratios to the floor.
    #[must_use]
    pub fn share(&self) -> f64 {
        median(self.rounds.iter().map(|(raw, ours)| ours.gb_per_s() / raw.gb_per_s().max(1e-9)))
    }

    /// The processor seconds per GB of the log, and of the floor.
    #[must_use]
    pub fn cpu_s_per_gb(&self) -> (f64, f64) {
        let ours = median(self.rounds.iter().map(|(_, ours)| ours.cpu_s_per_gb()));
        (ours, median(self.rounds.iter().map(|(raw, _)| raw.cpu_s_per_gb())))
    }

    /// The floor in the first and the last round, in GB/s, to see whether the disk has changed.
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

/// The work of a log that evicts.
#[derive(Clone, Copy, Debug)]
pub struct Churn {
    /// A description of the load.
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

/// The time to open a log.
#[derive(Clone, Copy, Debug)]
pub struct Reopened {
    /// The number of records.
    pub records: u64,
    /// Segments without an index, which were scanned.
    pub scanned: u64,
    /// The duration.
    pub took: Duration,
}

/// All measurements.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Appends, each durable when it is answered, beside sequential raw writes.
    pub append: Turns,
    /// Reads of 1 MiB of records in a mixed order, checksums verified, beside raw reads of that file.
    pub read: Turns,
    /// The cost of eviction.
    pub churn: Vec<Churn>,
    /// Opening the log of large records, and one of small ones.
    pub reopened: Vec<Reopened>,
    /// The engine, and why it was chosen.
    pub driven: Driven,
}

/// Runs all measurements, and deletes their files.
///
/// # Errors
/// When the directory cannot be used, or an operation fails.
pub fn measure(bench: &Bench) -> Result<Measured, String> {
    std::fs::create_dir_all(&bench.path).map_err(|error| error.to_string())?;
    let (log, side) = (bench.path.join("log"), bench.path.join("raw"));
    let config = DiskLogConfig {
        path: log.clone(),
        budget_bytes: bench.bytes / 8 * 9 + SPARE_BYTES,
        segment_bytes: Some(SEGMENT_BYTES),
        limits: Limits::default(),
        drive: bench.drive,
    };
    // Both files are written once before: the first writes into allocated space cost the filesystem more.
    Floor::make(&log, config.budget_bytes, bench.drive, bench.depth)?.wipe()?;
    let mut floor = Floor::make(&side, bench.bytes, bench.drive, bench.depth)?;
    let opened = DiskLog::open(&config, |_| {}).map_err(|error| error.to_string())?;
    let (mut append, mut ids) = (Turns::default(), Vec::new());
    let slice = bench.bytes / bench.rounds / bench.record_bytes * bench.record_bytes;
    for round in 0..bench.rounds {
        let first = round * slice / bench.record_bytes;
        append.round(
            || floor.write(round * slice / CHUNK_BYTES, slice / CHUNK_BYTES),
            || appends(bench, &opened.log, first, slice / bench.record_bytes, &mut ids),
        )?;
    }
    flush(&opened.log)?;
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
            || reads(bench, &opened.log, &ids, (first..first + count).map(|it| mix(it, all))),
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
    /// Creates a directory with a file of this size, allocated like that of a log, and writes all of it once.
    ///
    /// # Errors
    /// When the directory cannot be used.
    pub fn make(folder: &Path, bytes: u64, drive: Drive, depth: usize) -> Result<Self, String> {
        let text = |error: OpenError| error.to_string();
        let place = Place::open(folder, bytes, bytes).map_err(text)?;
        let mut floor = Self::on(place.file, bytes, drive, (depth, depth))?;
        floor.write(0, bytes / CHUNK_BYTES)?;
        Ok(floor)
    }

    /// Opens an existing file.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn open(path: &Path, drive: Drive, depth: usize) -> Result<Self, String> {
        Self::open_spread(path, drive, depth, depth)
    }

    /// The same with this many MiB of buffers, used in turn: some disks are faster with buffers in the
    /// processor cache.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn open_spread(path: &Path, drive: Drive, depth: usize, buffers: usize) -> Result<Self, String> {
        let file = direct(path, false).map_err(|error| error.to_string())?;
        let bytes = file.metadata().map_err(|error| error.to_string())?.len();
        Self::on(file.into(), bytes, drive, (depth, buffers))
    }

    /// The same, limited to the first bytes of the file.
    #[must_use]
    pub fn within(self, bytes: u64) -> Self {
        Self { count: self.count.min(bytes / CHUNK_BYTES), ..self }
    }

    fn on(file: OwnedFd, bytes: u64, drive: Drive, (depth, buffers): (usize, usize)) -> Result<Self, String> {
        let file = Arc::new(file);
        let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC);
        let wake = Arc::new(wake.map_err(|error| error.to_string())?);
        let buffers: Vec<Buffer> = (0..buffers).map(|_| Buffer::new(CHUNK_BYTES as usize)).collect();
        // Incompressible bytes, like those of the records.
        for (number, buffer) in (1..).zip(&buffers) {
            // SAFETY: the buffer belongs to this type, and is not in use yet.
            unsafe { buffer.run().bytes_mut() }.copy_from_slice(&noise(number, CHUNK_BYTES));
        }
        let (engine, _) = start(drive, &file, &wake, &buffers)?;
        Ok(Self { engine, file, wake, buffers, depth, count: bytes / CHUNK_BYTES })
    }

    /// Writes this many MiB from a position on, and syncs.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn write(&mut self, first: u64, count: u64) -> Result<Rate, String> {
        let clock = Clock::start();
        self.pass(first..first + count, true)?;
        rustix::fs::fdatasync(&self.file).map_err(|error| error.to_string())?;
        Ok(clock.stop(count * CHUNK_BYTES))
    }

    /// Reads these MiB.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn read(&mut self, which: impl Iterator<Item = u64>) -> Result<Rate, String> {
        let clock = Clock::start();
        let done = self.pass(which, false)?;
        Ok(clock.stop(done * CHUNK_BYTES))
    }

    /// The same in a mixed order, from the start of the file on.
    ///
    /// # Errors
    /// When the disk fails.
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

    /// Zeroes the superblocks, so that a log can be created here.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn wipe(self) -> Result<(), String> {
        let zeros = Buffer::new(CHUNK_BYTES as usize);
        // SAFETY: the buffer belongs to this function, and is not written.
        let zeros = unsafe { zeros.run().bytes() };
        let wiped = rustix::io::pwrite(&self.file, zeros, 0).and_then(|_| rustix::fs::fdatasync(&self.file));
        wiped.map_err(|error| error.to_string())
    }
}

fn flush(log: &DiskLog) -> Result<(), String> {
    let flushed: Result<(), _> = wait(|done| log.flush(LONG, done));
    flushed.map_err(|error| error.to_string())
}

fn reopen(config: &DiskLogConfig) -> Result<(Opened, Reopened), String> {
    let began = Instant::now();
    let opened = DiskLog::open(config, |_| {}).map_err(|error| error.to_string())?;
    let took = began.elapsed();
    let (records, scanned) = (opened.recovery.records, opened.recovery.segments_scanned);
    Ok((opened, Reopened { records, scanned, took }))
}

fn record(key: u64, payload_bytes: u64, protected: bool) -> Record {
    Record {
        name: Arc::new(Name { namespace: "bench".into(), key: key.to_le_bytes().to_vec() }),
        generation: Generation { epoch: 1, counter: key },
        attributes: Vec::new(),
        protected,
        payload_bytes,
    }
}

fn appends(
    bench: &Bench,
    log: &DiskLog,
    first: u64,
    count: u64,
    ids: &mut Vec<RecordId>,
) -> Result<Rate, String> {
    let payload = Pieces::copy_of(&noise(99, bench.record_bytes));
    let clock = Clock::start();
    keep(log, bench.depth, first..first + count, ids, |key| {
        (record(key, bench.record_bytes, false), payload.clone())
    })?;
    Ok(clock.stop(count * bench.record_bytes))
}

/// Appends records, with a number of them in flight. Returns their ids in the order of their answers.
fn keep(
    log: &DiskLog,
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
            log.append(record, payload, LONG, move |result| drop(send.send(result)));
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
    log: &DiskLog,
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
            log.read(*id, span, into, LONG, move |result| drop(send.send((back, result))));
            asked += 1;
        }
        let (into, result) = answers.recv().map_err(|error| error.to_string())?;
        result.map_err(|error| error.to_string())?;
        free.push(into);
        done += 1;
    }
    Ok(clock.stop(done * CHUNK_BYTES))
}

/// Fills a log several times, so that it evicts. Some percent of the records are deleted before that, and
/// some are pinned.
fn churn(bench: &Bench, path: &Path, forget_percent: u64, protect_percent: u64) -> Result<Stats, String> {
    const BATCH: u64 = 64;
    let config = DiskLogConfig {
        path: path.to_owned(),
        budget_bytes: CHURN_BYTES,
        segment_bytes: None,
        limits: Limits::default(),
        drive: bench.drive,
    };
    let opened = DiskLog::open(&config, |_| {}).map_err(|error| error.to_string())?;
    let log = &opened.log;
    let sizes: Vec<Pieces> =
        [16, 64, 256, 1024].iter().map(|kib| Pieces::copy_of(&noise(*kib, kib << 10))).collect();
    let (mut key, mut ids) = (0, Vec::new());
    while log.stats().appended_bytes < 4 * CHURN_BYTES {
        keep(log, bench.depth, key..key + BATCH, &mut ids, |key| {
            let payload = sizes.iter().cycle().nth(mix(key, 1 << 16) as usize % 4).cloned();
            let payload = payload.unwrap_or_else(|| Pieces::zeroed(0));
            // Later pins replace earlier ones.
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
            let forgotten: Result<u64, _> = wait(|done| log.forget(doomed, LONG, done));
            forgotten.map_err(|error| error.to_string())?;
        }
    }
    flush(log)?;
    Ok(log.stats())
}

/// Measures the recovery of many small records.
fn small(bench: &Bench, path: &Path) -> Result<Reopened, String> {
    let room = bench.small_records * 2 * crate::layout::BLOCK;
    let config = DiskLogConfig {
        path: path.to_owned(),
        budget_bytes: room / 8 * 9 + SPARE_BYTES,
        segment_bytes: Some(SEGMENT_BYTES),
        limits: Limits::default(),
        drive: bench.drive,
    };
    let opened = DiskLog::open(&config, |_| {}).map_err(|error| error.to_string())?;
    let payload = Pieces::copy_of(&noise(3, SMALL_BYTES));
    let mut ids = Vec::new();
    keep(&opened.log, SMALL_DEPTH, 0..bench.small_records, &mut ids, |key| {
        (record(key, SMALL_BYTES, false), payload.clone())
    })?;
    flush(&opened.log)?;
    drop(opened);
    let (_, reopened) = reopen(&config)?;
    drop(std::fs::remove_dir_all(path));
    Ok(reopened)
}

/// Pseudo-random bytes.
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
