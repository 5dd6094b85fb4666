//! Splits the disk work of the log into operations of the engine.
//!
//! Bytes move straight from and to the memory of the caller where it is aligned, else through aligned buffers
//! that are registered with the kernel. The memory of a job is kept until its last operation has ended, even
//! if its caller has given up.
//!
//! Reads that wait take turns: a client that asks for much more than the disk can read delays the others by
//! its share only.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tiffin_throttle::Turns;

use crate::engine::{Engine, Outcome, RAWS_MAX, Raw};
use crate::layout::{BLOCK, CHUNK_BYTES, blocks_up};
use crate::log::{Checks, Done};
use crate::memory::{Buffer, Pieces, Run};
use crate::types::{Fault, FaultKind, IoId, Reader, Span};

/// The number of aligned buffers of 1 MiB, for unaligned memory.
pub(crate) const BUFFERS: usize = 32;
/// The number of buffers that writes may use.
const WRITE_BUFFERS_MAX: usize = 16;
/// Smaller runs are copied into one buffer instead of written one by one.
const DIRECT_BYTES_MIN: u64 = 64 << 10;

/// The cost of a small read, in blocks: what a disk could read in the same time.
const READ_COST_MIN: u64 = 4;
/// The number of reads that may overtake the next prefetch.
const PASSED_MAX: usize = 8;
/// The maximum bytes of reads in flight. More make no disk faster; beyond the queue of the device the kernel
/// blocks a thread for each.
const READING_BYTES_MAX: u64 = 64 << 20;
/// The same while several clients read: those in flight cannot be overtaken by the next client.
const READING_SHARED_BYTES_MAX: u64 = 16 << 20;
/// A client that has read so much without another in between is alone.
const ALONE_BYTES: u64 = 256 << 20;
/// The same for prefetches: reads in flight cannot be overtaken by those that a client waits for.
const READING_AHEAD_BYTES_MAX: u64 = 16 << 20;

/// A part of a write.
#[derive(Debug)]
pub(crate) enum Source {
    Bytes(Vec<u8>),
    Pieces(Pieces),
    Buffer(Arc<Buffer>, u64),
    Zeros(u64),
}

/// The destination of a read.
#[derive(Debug)]
pub(crate) enum Dest {
    Log,
    /// A range of the destination of an operation, and all of it for operations that share the read.
    Pieces {
        pieces: Pieces,
        whole: Pieces,
        span: Span,
        checks: Checks,
    },
    Buffer {
        buffer: Arc<Buffer>,
        checks: Checks,
    },
}

/// A disk operation of the log.
#[derive(Debug)]
pub(crate) enum Work {
    Write { at: u64, sources: Vec<Source> },
    Read { at: u64, len: u64, dest: Dest },
    Sync,
}

#[derive(Debug)]
struct Job {
    work: Work,
    len: u64,
    /// The bytes whose operations were issued.
    next: u64,
    flying: usize,
    fault: Option<Fault>,
    corrupt: bool,
    bytes: Vec<u8>,
}

struct Flying {
    io: IoId,
    position: u64,
    len: u64,
    run: Option<Run>,
    buffer: Option<u16>,
    raw: Raw,
}

/// A job that has ended, with the destination of a read for operations that share it.
pub(crate) struct Ended {
    pub(crate) io: IoId,
    pub(crate) done: Done,
    pub(crate) landed: Option<Pieces>,
}

/// Reads that wait, in the order of their turns.
#[derive(Default)]
struct Reads {
    /// The one that is being issued, and for whom.
    first: Option<(IoId, Reader)>,
    turns: Turns<(IoId, Reader)>,
    /// Whose read was issued last, and how many bytes since that of another.
    last: Option<Reader>,
    since_other: Option<u64>,
}

impl Reads {
    fn push(&mut self, reader: Reader, len: u64, io: IoId) {
        self.turns.push((reader.group, reader.client), (len / BLOCK).max(READ_COST_MIN), (io, reader));
    }

    /// Whether several clients have read lately.
    fn is_shared(&self) -> bool {
        self.since_other.is_some_and(|bytes| bytes < ALONE_BYTES)
    }

    fn is_empty(&self) -> bool {
        self.first.is_none() && self.turns.is_empty()
    }

    fn front(&mut self) -> Option<IoId> {
        self.first = self.first.or_else(|| self.turns.pop());
        self.first.map(|it| it.0)
    }

    /// All operations of the first one were issued.
    fn issued(&mut self, len: u64) {
        let reader = self.first.take().map(|it| it.1);
        let is_other = self.last.is_some() && self.last != reader;
        self.since_other = if is_other { Some(0) } else { self.since_other.map(|it| it.saturating_add(len)) };
        self.last = reader;
    }
}

/// All jobs, and the buffers.
pub(crate) struct Jobs {
    // Dropped before the buffers, which it may have registered with the kernel.
    engine: Box<dyn Engine>,
    file: Arc<OwnedFd>,
    jobs: BTreeMap<IoId, Job>,
    reads: Reads,
    /// Prefetches, and how many reads have overtaken the next one.
    reads_ahead: Reads,
    passed: usize,
    writes: VecDeque<IoId>,
    flying: BTreeMap<u64, Flying>,
    next_token: u64,
    free: Vec<u16>,
    write_buffers: usize,
    /// Bytes of reads in flight.
    reading_bytes: u64,
    buffers: Vec<Buffer>,
    outcomes: VecDeque<(u64, Outcome)>,
}

impl Jobs {
    pub(crate) fn new(engine: Box<dyn Engine>, buffers: Vec<Buffer>, file: Arc<OwnedFd>) -> Self {
        Self {
            file,
            engine,
            jobs: BTreeMap::new(),
            reads: Reads::default(),
            reads_ahead: Reads::default(),
            passed: 0,
            writes: VecDeque::new(),
            flying: BTreeMap::new(),
            next_token: 0,
            free: (0..buffers.len() as u16).collect(),
            write_buffers: 0,
            reading_bytes: 0,
            buffers,
            outcomes: VecDeque::new(),
        }
    }

    pub(crate) fn add(&mut self, io: IoId, work: Work) {
        self.add_for(io, work, Reader::default());
    }

    /// Adds a read. Reads of several clients take turns.
    pub(crate) fn add_for(&mut self, io: IoId, work: Work, reader: Reader) {
        let len = match &work {
            Work::Read { len, .. } => *len,
            Work::Write { sources, .. } => sources.iter().map(Source::len).sum(),
            Work::Sync => 1,
        };
        let bytes = match &work {
            Work::Read { dest: Dest::Log, .. } => vec![0; len as usize],
            _ => Vec::new(),
        };
        match &work {
            Work::Read { .. } if reader.is_ahead => self.reads_ahead.push(reader, len, io),
            Work::Read { .. } => self.reads.push(reader, len, io),
            Work::Write { .. } | Work::Sync => self.writes.push_back(io),
        }
        self.jobs.insert(io, Job { work, len, next: 0, flying: 0, fault: None, corrupt: false, bytes });
    }

    /// Whether no operation is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.flying.is_empty()
    }

    /// Issues operations within the limits, reads and writes in turns.
    pub(crate) fn issue(&mut self) {
        let (mut read, mut write) = (true, true);
        while (read || write) && self.flying.len() < RAWS_MAX {
            read = read && self.issue_read();
            write = write && self.flying.len() < RAWS_MAX && self.issue_write();
        }
        self.engine.kick();
    }

    fn issue_read(&mut self) -> bool {
        // Prefetches are overtaken, but not forever: a client may wait for them by now.
        let is_ahead = self.reads.is_empty() || self.passed >= PASSED_MAX && !self.reads_ahead.is_empty();
        let bytes_max = match () {
            () if is_ahead => READING_AHEAD_BYTES_MAX,
            () if self.reads.is_shared() => READING_SHARED_BYTES_MAX,
            () => READING_BYTES_MAX,
        };
        if self.reading_bytes >= bytes_max {
            return false;
        }
        let queue = if is_ahead { &mut self.reads_ahead } else { &mut self.reads };
        let Some(io) = queue.front() else { return false };
        let Some(job) = self.jobs.get_mut(&io) else { return false };
        let Work::Read { at, dest, .. } = &job.work else { return false };
        let (at, position) = (*at, job.next);
        let len = CHUNK_BYTES.min(job.len - position);
        let direct = match dest {
            Dest::Log => None,
            Dest::Buffer { buffer, .. } => buffer.run().part(position as usize, blocks_up(len) as usize),
            Dest::Pieces { pieces, span, .. } => direct_run(pieces, *span, position, len),
        };
        let (run, buffer) = match direct {
            Some(run) => (run, None),
            None => {
                let Some(number) = self.free.pop() else { return false };
                let run = self.buffers.get(number as usize).map(Buffer::run);
                let Some(run) = run.and_then(|run| run.part(0, blocks_up(len) as usize)) else {
                    return false;
                };
                (run, Some(number))
            }
        };
        job.next += len;
        job.flying += 1;
        if job.next == job.len {
            queue.issued(job.len);
        }
        self.passed = if is_ahead { 0 } else { self.passed + 1 };
        self.reading_bytes += run.len() as u64;
        let raw = Raw::Read { at: at + position, run, buffer };
        self.fly(Flying { io, position, len, run: Some(run), buffer, raw });
        true
    }

    fn issue_write(&mut self) -> bool {
        let Some(io) = self.writes.front().copied() else { return false };
        let Some(job) = self.jobs.get_mut(&io) else { return false };
        let (flying, len) = match &job.work {
            Work::Read { .. } => return false,
            Work::Sync => (Flying { io, position: 0, len: 0, run: None, buffer: None, raw: Raw::Sync }, 1),
            Work::Write { at, sources } => {
                let (at, position) = (*at, job.next);
                let (run, buffer) = match direct_source(sources, position) {
                    Some(run) => (run, None),
                    None => {
                        if self.write_buffers >= WRITE_BUFFERS_MAX {
                            return false;
                        }
                        let Some(number) = self.free.pop() else { return false };
                        let Some(whole) = self.buffers.get(number as usize).map(Buffer::run) else {
                            return false;
                        };
                        // SAFETY: the buffer belongs to this type and was free.
                        let len = gather(sources, position, unsafe { whole.bytes_mut() });
                        let Some(run) = whole.part(0, len) else { return false };
                        self.write_buffers += 1;
                        (run, Some(number))
                    }
                };
                let raw = Raw::Write { at: at + position, run, buffer };
                let len = run.len() as u64;
                (Flying { io, position, len, run: Some(run), buffer, raw }, len)
            }
        };
        job.next += len;
        job.flying += 1;
        if job.next >= job.len {
            self.writes.pop_front();
        }
        self.fly(flying);
        true
    }

    fn fly(&mut self, flying: Flying) {
        self.next_token += 1;
        self.engine.submit(self.next_token, flying.raw);
        self.flying.insert(self.next_token, flying);
    }

    /// The next job that has ended. Verifying its bytes takes a while; operations that start meanwhile keep
    /// the disk busy.
    pub(crate) fn next_ended(&mut self) -> Option<Ended> {
        loop {
            if self.outcomes.is_empty() {
                self.engine.collect(&mut self.outcomes);
            }
            let (token, outcome) = self.outcomes.pop_front()?;
            let Some(flying) = self.flying.remove(&token) else { continue };
            let again =
                [rustix::io::Errno::AGAIN, rustix::io::Errno::INTR].map(rustix::io::Errno::raw_os_error);
            if outcome.is_err_and(|code| again.contains(&code)) {
                self.fly(flying);
                continue;
            }
            let ended = self.landed(flying, outcome);
            if ended.is_some() {
                return ended;
            }
        }
    }

    fn landed(&mut self, flying: Flying, outcome: Outcome) -> Option<Ended> {
        let job = self.jobs.get_mut(&flying.io)?;
        job.flying -= 1;
        let wanted = flying.run.map_or(0, Run::len);
        if matches!(flying.raw, Raw::Read { .. }) {
            self.reading_bytes -= wanted as u64;
        }
        match outcome {
            Err(code) => job.fault = Some(fault(code, &flying.raw)),
            Ok(moved) if moved != wanted => {
                let text = format!("short transfer: {moved} of {wanted} bytes by {:?}", flying.raw);
                job.fault = Some(Fault::new(FaultKind::Io, text));
            }
            // Bytes in a deleted file are lost with the process, synced or not.
            Ok(_) if matches!(job.work, Work::Sync) && has_no_name(&self.file) => {
                let text = "the file of the log was deleted, or its directory was".to_owned();
                job.fault = Some(Fault::new(FaultKind::Vanished, text));
            }
            Ok(_) => arrived(job, &flying),
        }
        if let Some(number) = flying.buffer {
            self.free.push(number);
            if matches!(flying.raw, Raw::Write { .. }) {
                self.write_buffers -= 1;
            }
        }
        if job.flying > 0 || job.next < job.len {
            return None;
        }
        let job = self.jobs.remove(&flying.io)?;
        let done = match (job.fault, job.corrupt, &job.work) {
            (Some(fault), ..) => Done::Failed(fault),
            (None, true, _) => Done::Corrupt,
            (None, false, Work::Read { dest: Dest::Log, .. }) => Done::Bytes(job.bytes),
            _ => Done::Ok,
        };
        let landed = match job.work {
            Work::Read { dest: Dest::Pieces { whole, .. }, .. } => Some(whole),
            _ => None,
        };
        Some(Ended { io: flying.io, done, landed })
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        // The kernel must not use freed memory, not even after a panic.
        while !self.flying.is_empty() {
            self.engine.kick();
            while self.next_ended().is_some() {}
            std::thread::yield_now();
        }
    }
}

/// Verifies bytes that were read, and copies them to their destination.
fn arrived(job: &mut Job, flying: &Flying) {
    let (Some(run), Work::Read { dest, .. }) = (flying.run, &job.work) else { return };
    // SAFETY: the job keeps the memory alive, or the buffer belongs to this type; the operation has ended.
    let bytes = unsafe { run.bytes() };
    let bytes = bytes.get(..flying.len as usize).unwrap_or_default();
    match dest {
        Dest::Log => {
            let (begin, end) = (flying.position as usize, (flying.position + flying.len) as usize);
            if let Some(to) = job.bytes.get_mut(begin..end) {
                to.copy_from_slice(bytes);
            }
        }
        Dest::Buffer { checks, .. } => job.corrupt |= !checks.fit_at(flying.position, bytes),
        Dest::Pieces { pieces, span, checks, .. } => {
            job.corrupt |= !checks.fit_at(flying.position, bytes);
            if flying.buffer.is_some() {
                let begin = span.offset.max(flying.position);
                let end = (span.offset + span.len).min(flying.position + flying.len);
                let inner = (begin - flying.position) as usize..(end.max(begin) - flying.position) as usize;
                pieces.write(begin - span.offset, bytes.get(inner).unwrap_or_default());
            }
        }
    }
}

impl Source {
    fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Pieces(pieces) => pieces.len(),
            Self::Buffer(_, len) | Self::Zeros(len) => *len,
        }
    }

    /// Whole blocks that can be written without a copy.
    fn direct(&self, offset: u64) -> Option<Run> {
        let run = match self {
            Self::Pieces(pieces) => pieces.run_at(offset, CHUNK_BYTES)?,
            Self::Buffer(buffer, len) => {
                buffer.run().part(offset as usize, (len - offset).min(CHUNK_BYTES) as usize)?
            }
            Self::Bytes(_) | Self::Zeros(_) => return None,
        };
        let whole = run.len() as u64 / BLOCK * BLOCK;
        run.part(0, whole as usize).filter(|run| run.is_aligned() && whole >= DIRECT_BYTES_MIN)
    }

    fn copy(&self, offset: u64, to: &mut [u8]) {
        match self {
            Self::Bytes(bytes) => {
                let from = bytes.get(offset as usize..).unwrap_or_default();
                to.copy_from_slice(from.get(..to.len()).unwrap_or_default());
            }
            Self::Pieces(pieces) => pieces.read(offset, to),
            Self::Buffer(buffer, _) => {
                if let Some(run) = buffer.run().part(offset as usize, to.len()) {
                    // SAFETY: the read that filled the buffer has ended, and nothing writes it since.
                    to.copy_from_slice(unsafe { run.bytes() });
                }
            }
            Self::Zeros(_) => to.fill(0),
        }
    }
}

/// The run at this position that can be written without a copy.
fn direct_source(sources: &[Source], position: u64) -> Option<Run> {
    let mut begin = 0;
    for source in sources {
        if position < begin + source.len() {
            return source.direct(position - begin);
        }
        begin += source.len();
    }
    None
}

/// Copies from this position until the buffer is full, no bytes are left, or the rest can be written without
/// a copy.
fn gather(sources: &[Source], position: u64, to: &mut [u8]) -> usize {
    let (mut begin, mut filled) = (0, 0);
    for source in sources {
        if filled == to.len() {
            break;
        }
        let (end, here) = (begin + source.len(), position + filled as u64);
        if here < end {
            let whole = (filled as u64).is_multiple_of(BLOCK) && filled > 0;
            if whole && source.direct(here - begin).is_some() {
                break;
            }
            let len = ((end - here) as usize).min(to.len() - filled);
            if let Some(to) = to.get_mut(filled..filled + len) {
                source.copy(here - begin, to);
            }
            filled += len;
        }
        begin = end;
    }
    filled
}

/// The destination of a chunk, if it can be read without a copy.
fn direct_run(pieces: &Pieces, span: Span, position: u64, len: u64) -> Option<Run> {
    let inside = span.offset <= position && position + len <= span.offset + span.len;
    if !inside {
        return None;
    }
    let run = pieces.run_at(position - span.offset, len)?;
    (run.len() as u64 == len && run.is_aligned()).then_some(run)
}

fn has_no_name(file: &OwnedFd) -> bool {
    let is_file = |mode| rustix::fs::FileType::from_raw_mode(mode).is_file();
    rustix::fs::fstat(file).is_ok_and(|it| it.st_nlink == 0 && is_file(it.st_mode))
}

fn fault(code: i32, raw: &Raw) -> Fault {
    use rustix::io::Errno;
    let errno = Errno::from_raw_os_error(code);
    let kind = match errno {
        Errno::IO => FaultKind::Io,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => FaultKind::NoSpace,
        Errno::ROFS => FaultKind::ReadOnly,
        Errno::NODEV | Errno::NXIO | Errno::STALE => FaultKind::Vanished,
        _ => FaultKind::Other,
    };
    let (what, at, len) = match raw {
        Raw::Read { at, run, .. } => ("a read", *at, run.len()),
        Raw::Write { at, run, .. } => ("a write", *at, run.len()),
        Raw::Sync => ("a sync", 0, 0),
    };
    Fault::new(kind, format!("{what} of {len} bytes at {at} failed: {errno}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A buffer that is full in the middle of a source is written as it is.
    #[test]
    fn gather_continues_in_the_next_buffer() {
        let parts = [5, 3000, 7000, 0, 9000, 4000].into_iter().enumerate();
        let sources: Vec<_> = parts.map(|(at, len)| Source::Bytes(vec![at as u8 + 1; len])).collect();
        let all: Vec<u8> = [(1, 5), (2, 3000), (3, 7000), (5, 9000), (6, 4000)]
            .into_iter()
            .flat_map(|(byte, len)| std::iter::repeat_n(byte, len))
            .collect();
        for size in [1, 4, 5, 4096, 10_005, 19_004, 23_005, 100_000] {
            let (mut found, mut buffer) = (Vec::new(), vec![0; size]);
            while found.len() < all.len() {
                let filled = gather(&sources, found.len() as u64, &mut buffer);
                assert_eq!(filled, size.min(all.len() - found.len()), "{size}");
                found.extend_from_slice(&buffer[..filled]);
            }
            assert!(found == all, "{size}");
        }
    }

    #[test]
    fn faults_have_the_kind_of_their_error_number() {
        use rustix::io::Errno;
        let raw = Raw::Sync;
        for (errno, kind, words) in [
            (Errno::IO, FaultKind::Io, "Input/output error"),
            (Errno::NOSPC, FaultKind::NoSpace, "No space left on device"),
            (Errno::DQUOT, FaultKind::NoSpace, "quota exceeded"),
            (Errno::FBIG, FaultKind::NoSpace, "File too large"),
            (Errno::ROFS, FaultKind::ReadOnly, "Read-only file system"),
            (Errno::NODEV, FaultKind::Vanished, "No such device"),
            (Errno::NXIO, FaultKind::Vanished, "No such device or address"),
            (Errno::STALE, FaultKind::Vanished, "Stale file handle"),
            (Errno::PERM, FaultKind::Other, "Operation not permitted"),
        ] {
            let told = fault(errno.raw_os_error(), &raw);
            assert_eq!(told.kind, kind, "{told}");
            assert!(told.to_string().contains(words) && told.to_string().contains("\n\nhint: "), "{told}");
        }
    }

    /// Executes one operation at a time, when it is told to.
    #[derive(Clone, Default)]
    struct Slow(Arc<Mutex<Operations>>);

    #[derive(Default)]
    struct Operations {
        waiting: VecDeque<(u64, Raw)>,
        /// Where it has read, in order.
        was_read: Vec<u64>,
        /// How many it may execute.
        granted: usize,
    }

    impl Engine for Slow {
        fn submit(&mut self, token: u64, raw: Raw) {
            self.0.lock().unwrap().waiting.push_back((token, raw));
        }

        fn kick(&mut self) {}

        fn collect(&mut self, into: &mut VecDeque<(u64, Outcome)>) {
            let mut operations = self.0.lock().unwrap();
            while operations.granted > 0
                && let Some((token, raw)) = operations.waiting.pop_front()
            {
                let Raw::Read { at, run, .. } = raw else { panic!("it only reads") };
                operations.granted -= 1;
                operations.was_read.push(at);
                into.push_back((token, Ok(run.len())));
            }
        }
    }

    impl Slow {
        fn was_read(&self) -> Vec<u64> {
            self.0.lock().unwrap().was_read.clone()
        }
    }

    fn jobs() -> (Jobs, Slow) {
        let slow = Slow::default();
        let buffers = (0..4).map(|_| Buffer::new(CHUNK_BYTES as usize)).collect();
        let file = std::fs::File::open("/dev/null").unwrap();
        (Jobs::new(Box::new(slow.clone()), buffers, Arc::new(file.into())), slow)
    }

    fn execute(jobs: &mut Jobs, slow: &Slow, count: usize) {
        for _ in 0..count {
            jobs.issue();
            slow.0.lock().unwrap().granted = 1;
            while jobs.next_ended().is_some() {}
        }
    }

    fn read(at: u64) -> Work {
        Work::Read { at, len: CHUNK_BYTES, dest: Dest::Log }
    }

    #[test]
    fn clients_take_turns_at_the_disk() {
        for is_ahead in [false, true] {
            let (mut jobs, slow) = jobs();
            let of = |client| Reader { group: client % 2, client, is_ahead };
            (0..100).for_each(|it| jobs.add_for(IoId(it), read(it << 32), of(1)));
            jobs.issue();
            // These come when the queue is long.
            (100..103).for_each(|it| jobs.add_for(IoId(it), read(it << 32), of(2)));
            (103..106).for_each(|it| jobs.add_for(IoId(it), read(it << 32), of(4)));
            execute(&mut jobs, &slow, 106);
            let order: Vec<_> = slow.was_read().into_iter().map(|it| it >> 32).collect();
            let position = |of| order.iter().position(|it| *it == of).unwrap();
            // One operation is issued for each that ends, so four of the first client came before. The groups
            // take turns, and the two clients of the second group.
            let positions: Vec<_> = (100..106).map(position).collect();
            assert!(positions.iter().all(|it| *it < 4 + 2 * 6 + 1), "{positions:?}");
            assert!(positions[3] < positions[1], "{positions:?}");
            assert_eq!(order.len(), 106);
        }
    }

    #[test]
    fn fewer_reads_are_in_flight_while_several_clients_read() {
        let mut reads = Reads::default();
        let mut read = |client, len| {
            reads.push(Reader { client, ..Reader::default() }, len, IoId(client));
            assert_eq!(reads.front(), Some(IoId(client)));
            reads.issued(len);
            reads.is_shared()
        };
        assert!(!read(1, ALONE_BYTES) && !read(1, 1));
        assert!(read(2, 1) && read(1, ALONE_BYTES) && read(1, ALONE_BYTES - 1));
        assert!(!read(1, 1) && !read(1, 1));
        assert!(read(2, 1));
    }

    #[test]
    fn reads_of_one_client_stay_in_order() {
        let (mut jobs, slow) = jobs();
        (0..20).for_each(|it| jobs.add(IoId(it), read(it << 32)));
        execute(&mut jobs, &slow, 20);
        assert!(slow.was_read().is_sorted());
    }
}
