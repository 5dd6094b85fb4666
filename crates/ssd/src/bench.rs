//! How fast a shelf is, beside what its disk gives to a raw writer and reader with the same block size.
//!
//! The raw floor goes through the same engine, with aligned memory and nothing else: no log, no checksums.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::engine::{Drive, Driven, Raw, start};
use crate::layout::SUM_BYTES;
use crate::log::Limits;
use crate::memory::{Buffer, Pieces};
use crate::place::{OpenError, Place};
use crate::shelf::{Opened, Shelf, ShelfConfig, wait};
use crate::types::{Generation, Name, Record, RecordId, Span};

const LONG: Duration = Duration::from_secs(300);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Bench {
    /// A directory on the disk; it must not hold anything.
    pub path: PathBuf,
    /// How much to write and read.
    pub bytes: u64,
    /// The payload of each record, a multiple of 1 MiB.
    pub record_bytes: u64,
    /// Requests in flight.
    pub depth: usize,
    /// Which engine.
    pub drive: Drive,
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

/// All measurements.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Sequential writes of 1 MiB, synced at the end.
    pub raw_write: Rate,
    /// Reads of 1 MiB in a mixed order.
    pub raw_read: Rate,
    /// Appends, each durable when it is answered.
    pub append: Rate,
    /// Reads of 1 MiB of records in a mixed order, checksums verified.
    pub read: Rate,
    /// How long opening took with all those records.
    pub recovery: Duration,
    /// How many records there were.
    pub records: u64,
    /// Bytes written per byte appended.
    pub write_amplification: f64,
    /// Which engine, and why.
    pub driven: Driven,
}

/// Measures. The directory is left with a log in it.
///
/// # Errors
/// When the place cannot be used, or an operation fails: in words.
pub fn measure(bench: &Bench) -> Result<Measured, String> {
    let budget_bytes = bench.bytes / 4 * 5 + (2 << 30);
    let (raw_write, raw_read) = raw(bench).map_err(|error| error.to_string())?;
    let config = ShelfConfig {
        path: bench.path.clone(),
        budget_bytes,
        segment_bytes: Some(128 << 20),
        limits: Limits::default(),
        drive: bench.drive,
    };
    let opened = Shelf::open(&config, |_| {}).map_err(|error| error.to_string())?;
    let (append, ids) = appends(bench, &opened.shelf)?;
    let flushed: Result<(), _> = wait(|done| opened.shelf.flush(LONG, done));
    flushed.map_err(|error| error.to_string())?;
    let stats = opened.shelf.stats();
    drop(opened);
    let began = Instant::now();
    let Opened { shelf, recovery, driven, .. } =
        Shelf::open(&config, |_| {}).map_err(|error| error.to_string())?;
    let took = began.elapsed();
    let read = reads(bench, &shelf, &ids)?;
    Ok(Measured {
        raw_write,
        raw_read,
        append,
        read,
        recovery: took,
        records: recovery.records,
        write_amplification: stats.written_bytes as f64 / stats.appended_bytes.max(1) as f64,
        driven,
    })
}

/// The raw floor, in the room that the log will have.
fn raw(bench: &Bench) -> Result<(Rate, Rate), OpenError> {
    let system = |error: rustix::io::Errno| OpenError::System {
        path: bench.path.clone(),
        what: "measured",
        error: error.into(),
    };
    let place = Place::open(&bench.path, bench.bytes, bench.bytes)?;
    let file = Arc::new(place.file);
    let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).map_err(system)?;
    let wake = Arc::new(wake);
    let buffers: Vec<Buffer> = (0..bench.depth).map(|_| Buffer::new(SUM_BYTES as usize)).collect();
    // Bytes that no disk can shorten, as those of the records.
    for (number, buffer) in (1..).zip(&buffers) {
        // SAFETY: the buffer is ours, and nothing else uses it yet.
        unsafe { buffer.run().bytes_mut() }.copy_from_slice(&noise(number, SUM_BYTES));
    }
    let (mut engine, _) = start(bench.drive, &file, &wake, &buffers).map_err(OpenError::Engine)?;
    let count = bench.bytes / SUM_BYTES;
    let mut pass = |write: bool| {
        let clock = Clock::start();
        let (mut next, mut flying, mut done) = (0, 0, Vec::new());
        let mut free: Vec<u16> = (0..bench.depth as u16).collect();
        while next < count || flying > 0 {
            while let (true, Some(number)) = (next < count, free.pop()) {
                let Some(run) = buffers.get(number as usize).map(Buffer::run) else { break };
                let at = if write { next } else { mix(next, count) } * SUM_BYTES;
                let buffer = Some(number);
                let raw = if write { Raw::Write { at, run, buffer } } else { Raw::Read { at, run, buffer } };
                engine.submit(u64::from(number), raw);
                next += 1;
                flying += 1;
            }
            engine.kick();
            let _ = rustix::io::read(&wake, &mut [0; 8]);
            engine.collect(&mut done);
            for (token, _) in done.drain(..) {
                free.push(token as u16);
                flying -= 1;
            }
        }
        if write {
            let _ = rustix::fs::fdatasync(&file);
        }
        clock.stop(count * SUM_BYTES)
    };
    // The first writes into fresh room cost the filesystem more, and the log would find it used: they do not
    // count.
    pass(true);
    let rates = (pass(true), pass(false));
    drop(engine);
    // The log must not find what was written here.
    let zeros = Buffer::new(SUM_BYTES as usize);
    // SAFETY: the buffer is ours, and nothing writes it.
    let zeros = unsafe { zeros.run().bytes() };
    rustix::io::pwrite(&file, zeros, 0).map_err(system)?;
    rustix::fs::fdatasync(&file).map_err(system)?;
    Ok(rates)
}

fn appends(bench: &Bench, shelf: &Shelf) -> Result<(Rate, Vec<RecordId>), String> {
    let payload = Pieces::copy_of(&noise(99, bench.record_bytes));
    let (send, answers) = channel();
    let count = bench.bytes / bench.record_bytes;
    let clock = Clock::start();
    let (mut asked, mut ids) = (0, Vec::new());
    while (ids.len() as u64) < count {
        while asked < count && asked - (ids.len() as u64) < bench.depth as u64 {
            let record = Record {
                name: Arc::new(Name { namespace: "bench".into(), key: asked.to_le_bytes().to_vec() }),
                generation: Generation { epoch: 1, counter: asked },
                marks: Vec::new(),
                protected: false,
                payload_bytes: bench.record_bytes,
            };
            let send = send.clone();
            shelf.append(record, payload.clone(), LONG, move |result| drop(send.send(result)));
            asked += 1;
        }
        let answer = answers.recv().map_err(|error| error.to_string())?;
        ids.push(answer.map_err(|error| error.to_string())?);
    }
    Ok((clock.stop(count * bench.record_bytes), ids))
}

fn reads(bench: &Bench, shelf: &Shelf, ids: &[RecordId]) -> Result<Rate, String> {
    let per_record = bench.record_bytes / SUM_BYTES;
    let count = ids.len() as u64 * per_record;
    let mut free: Vec<Pieces> = (0..bench.depth).map(|_| Pieces::zeroed(SUM_BYTES)).collect();
    let (send, answers) = channel();
    let clock = Clock::start();
    let (mut asked, mut done) = (0, 0);
    while done < count {
        while let (true, Some(into)) = (asked < count, free.pop()) {
            let which = mix(asked, count);
            let Some(id) = ids.get((which / per_record) as usize) else { break };
            let span = Span { offset: which % per_record * SUM_BYTES, len: SUM_BYTES };
            let (send, back) = (send.clone(), into.clone());
            shelf.read(*id, span, into, LONG, move |result| drop(send.send((back, result))));
            asked += 1;
        }
        let (into, result) = answers.recv().map_err(|error| error.to_string())?;
        result.map_err(|error| error.to_string())?;
        free.push(into);
        done += 1;
    }
    Ok(clock.stop(count * SUM_BYTES))
}

/// Bytes without a pattern.
fn noise(seed: u64, len: u64) -> Vec<u8> {
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
fn mix(number: u64, count: u64) -> u64 {
    let mut step = (0x9e37_79b9 % count.max(1)) | 1;
    while gcd(step, count) != 1 {
        step += 2;
    }
    (number % count).wrapping_mul(step) % count
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

struct Clock {
    began: Instant,
    cpu: Duration,
}

impl Clock {
    fn start() -> Self {
        Self { cpu: cpu(), began: Instant::now() }
    }

    fn stop(&self, bytes: u64) -> Rate {
        Rate { bytes, took: self.began.elapsed(), cpu: cpu().saturating_sub(self.cpu) }
    }
}

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
