//! The log as a state machine: it places records, makes them durable, evicts, compacts and recovers.
//!
//! [`Log::apply`] takes one input and returns effects; it does no I/O, reads no clock and draws no number.
//! The driver carries out the effects in order, and reports the end of each [`IoId`] with [`Input::Done`].
//!
//! Invariants after every step:
//! - A record is in the index, and its append answered, only after a sync that began after its write ended.
//! - A key has at most one record in the index: the one with the highest generation.
//! - Every dead copy of a record on the disk has a tombstone, or a durable copy of the same record with a
//!   higher sequence number. A tombstone stays on the disk as long as a copy of its record does.
//! - A segment's header is durable before anything is written after it. It is durably erased before its
//!   records are reported as evicted. A segment is reused only after its last read has ended.
//! - Entries of a segment are only added. An index at its end lists them, once it is durable.
//! - `live` and `protected` of a segment are the sums over its records in the index, and over the parts of
//!   records that span segments (`span`).

mod carry;
mod commit;
mod disk;
mod ops;
mod queue;
mod read;
mod reclaim;
mod recover;
mod shape;
mod span;
mod table;
mod write;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::layout::HEAD_BYTES;
use crate::mutant::Mutant;
use crate::types::{
    Answer, Event, Fault, IoId, OpId, OpenFault, Record, RecordId, Recovery, Span, StageId, Stats, Tick,
};

pub use shape::PARTS_MAX;

use carry::Carries;
use disk::{Disk, Io};
use ops::Ops;
use queue::{Appends, Notes, Tickets};
use read::Reads;
use reclaim::Reclaim;
use recover::Recoverer;
use span::Spans;
use table::Table;
use write::Syncs;

/// Segments that only compaction and tombstones may use, so that space can always be reclaimed.
pub const RESERVE_SEGMENTS: u64 = 2;
/// The minimum number of segments.
pub const SEGMENTS_MIN: u64 = 6;
/// The number of segments if no segment size is given and their size stays within its limits. With so many
/// the reserve is a small part of the log.
const SEGMENTS_CHOSEN: u64 = 64;
/// The smallest segment.
pub const SEGMENT_BYTES_MIN: u64 = 1 << 20;
/// The largest segment if no segment size is given.
pub const SEGMENT_BYTES_CHOSEN_MAX: u64 = 256 << 20;
/// The largest segment.
pub const SEGMENT_BYTES_MAX: u64 = 2 << 30;
/// The maximum number of records in one forget.
pub const FORGET_IDS_MAX: usize = 1 << 16;

/// The configuration of a log.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The id of the log, if it is new. Draw it at random: it distinguishes the log from other bytes on the
    /// disk.
    pub log: u64,
    /// The maximum size in bytes.
    pub budget_bytes: u64,
    /// The size of a segment, a multiple of 1 MiB. Without it: that of the existing log, or a 64th of the
    /// budget.
    pub segment_bytes: Option<u64>,
    /// Limits of operations in progress.
    pub limits: Limits,
    /// The rule that a mutant breaks, in tests.
    pub mutant: Mutant,
}

/// Limits of operations in progress.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The maximum number of queued appends.
    pub queue_ops_max: usize,
    /// The maximum number of queued payload bytes.
    pub queue_bytes_max: u64,
    /// The maximum number of bytes of appends that are written at a time, unless one append is larger.
    pub write_bytes_max: u64,
    /// The maximum number of bytes of small appends in one write.
    pub group_bytes_max: u64,
    /// The maximum number of reads in progress, including those that share a disk read.
    pub reads_max: usize,
    /// The maximum number of queued notes: attributes and tombstones.
    pub notes_max: usize,
    /// The maximum number of records that compaction moves at a time.
    pub carries_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue_ops_max: 4096,
            queue_bytes_max: 1 << 30,
            write_bytes_max: 64 << 20,
            group_bytes_max: 1 << 20,
            reads_max: 4096,
            notes_max: 1 << 20,
            carries_max: 8,
        }
    }
}

/// An input of the log.
#[derive(Clone, Debug)]
pub enum Input {
    /// Append a record. The driver has its payload, under the id of the operation.
    Append {
        /// The operation.
        op: OpId,
        /// The record.
        record: Record,
        /// The checksums of its payload, by [`crate::sums`].
        sums: Arc<[u64]>,
        /// The deadline.
        deadline: Tick,
    },
    /// Read some of a record's payload.
    Read {
        /// The operation.
        op: OpId,
        /// The record.
        id: RecordId,
        /// Which bytes.
        span: Span,
        /// The deadline.
        deadline: Tick,
    },
    /// Set the attributes of a record.
    SetAttributes {
        /// The operation.
        op: OpId,
        /// The record.
        id: RecordId,
        /// The new attributes.
        attributes: Vec<u8>,
        /// Whether it is protected from now on.
        protected: bool,
        /// The deadline.
        deadline: Tick,
    },
    /// Delete records durably. They cannot be read from now on. Unknown ids are ignored.
    Forget {
        /// The operation.
        op: OpId,
        /// The records.
        ids: Vec<RecordId>,
        /// The deadline.
        deadline: Tick,
    },
    /// Answer when all earlier operations have ended.
    Flush {
        /// The operation.
        op: OpId,
        /// The deadline.
        deadline: Tick,
    },
    /// Cancel an operation. It is still answered: an append only when it cannot come back after a crash.
    Cancel {
        /// The operation.
        op: OpId,
    },
    /// A disk operation has ended.
    Done {
        /// Which.
        io: IoId,
        /// How.
        result: Done,
    },
    /// Time has passed.
    Tick,
}

/// The result of a disk operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// A write or sync succeeded, or a read whose bytes match their checksums.
    Ok,
    /// The bytes of a read by the log itself.
    Bytes(Vec<u8>),
    /// The bytes of a read do not match their checksums.
    Corrupt,
    /// It failed.
    Failed(Fault),
}

/// An effect that the driver carries out, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write these parts contiguously. `at` and the sum of their bytes are multiples of a block.
    Write {
        /// Its id.
        io: IoId,
        /// Where on the disk.
        at: u64,
        /// What.
        parts: Vec<Part>,
    },
    /// Make all writes durable that have been reported as done.
    Sync {
        /// Its id.
        io: IoId,
    },
    /// Read. `at` is a multiple of a block. `len` need not be; the driver may round it up.
    Read {
        /// Its id.
        io: IoId,
        /// Where on the disk.
        at: u64,
        /// How many bytes.
        len: u64,
        /// Where to.
        into: Into,
    },
    /// Copy bytes that the read `io`, which has just ended, and earlier ones for the same operation have put
    /// into their destination.
    Copy {
        /// The last of the reads.
        io: IoId,
        /// The operation whose destination gets the bytes, from its start.
        to: OpId,
        /// Which bytes of the first destination.
        from: Span,
    },
    /// Drop a stage.
    Unstage {
        /// Which.
        stage: StageId,
    },
    /// The one answer to an operation.
    Answer {
        /// The operation.
        op: OpId,
        /// The answer.
        answer: Answer,
    },
    /// An event.
    Event(Event),
}

/// A part of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Bytes that the log made.
    Bytes(Vec<u8>),
    /// A range of the payload of an append.
    Payload {
        /// The append.
        op: OpId,
        /// Which bytes.
        span: Span,
    },
    /// The bytes of a stage.
    Stage {
        /// Which.
        stage: StageId,
        /// How many bytes it has.
        len: u64,
    },
    /// This number of zeros.
    Zeros(u64),
}

/// The destination of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Into {
    /// Into [`Done::Bytes`].
    Log,
    /// Verified; then `span` of them goes to the destination of an operation.
    Op {
        /// The operation.
        op: OpId,
        /// The range of the bytes read.
        span: Span,
        /// Where they begin in the destination. Other reads bring its other bytes.
        to: u64,
        /// Their checksums.
        checks: Checks,
    },
    /// Verified, and kept in a stage.
    Stage {
        /// The name.
        stage: StageId,
        /// Their checksums.
        checks: Checks,
    },
}

/// Checksums to verify bytes with: those of a payload, from its block `first` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checks {
    /// All checksums of the payload.
    pub sums: Arc<[u64]>,
    /// How many bytes each of them covers.
    pub sum_bytes: u64,
    /// The block that the bytes begin with.
    pub first: usize,
}

impl Checks {
    /// Whether the bytes match.
    #[must_use]
    pub fn fit(&self, bytes: &[u8]) -> bool {
        self.fit_at(0, bytes)
    }

    /// Whether bytes match that begin `position` bytes after the first, with a whole block.
    #[must_use]
    pub fn fit_at(&self, position: u64, bytes: &[u8]) -> bool {
        let first = self.first + (position / self.sum_bytes) as usize;
        crate::layout::verify(bytes, &self.sums, first, self.sum_bytes)
    }
}

/// The state of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It is recovering.
    Recovering,
    /// It works.
    Ready,
    /// It can be read, but not written.
    Failed(Fault),
    /// It cannot be used.
    Unusable(OpenFault),
}

/// The state machine, see the module. Its parts own their state; it routes between them.
#[derive(Debug)]
pub struct Log {
    config: Config,
    health: Health,
    table: Table,
    disk: Disk,
    ops: Ops,
    tickets: Tickets,
    appends: Appends,
    notes: Notes,
    spans: Spans,
    /// Bytes of appends that are being written.
    write_bytes: u64,
    syncs: Syncs,
    reads: Reads,
    reclaim: Option<Reclaim>,
    carries: Carries,
    /// Evicted records whose tombstones are not durable yet.
    evicting: BTreeSet<RecordId>,
    recoverer: Option<Box<Recoverer>>,
    /// The recovery report, and the number of notes that must be durable before it is sent.
    announce: Option<(u64, Recovery)>,
    stats: Stats,
}

impl Log {
    /// Opens a log, and returns its first reads. It answers `Busy` until it has recovered.
    #[must_use]
    pub fn open(config: Config) -> (Self, Vec<Effect>) {
        let mut disk = Disk::default();
        let recoverer = Recoverer::new(config, &mut disk);
        let effects = disk.take_effects();
        let log = Self {
            config,
            health: Health::Recovering,
            table: Table::new(&config),
            disk,
            ops: Ops::default(),
            tickets: Tickets::default(),
            appends: Appends::default(),
            notes: Notes::default(),
            spans: Spans::default(),
            write_bytes: 0,
            syncs: Syncs::default(),
            reads: Reads::default(),
            reclaim: None,
            carries: Carries::default(),
            evicting: BTreeSet::new(),
            recoverer: Some(Box::new(recoverer)),
            announce: None,
            stats: Stats::default(),
        };
        (log, effects)
    }

    /// Applies an input; returns its effects in order.
    pub fn apply(&mut self, input: Input, now: Tick) -> Vec<Effect> {
        match input {
            Input::Append { op, record, sums, deadline } => self.ask_append(op, record, sums, deadline),
            Input::Read { op, id, span, deadline } => self.ask_read(op, id, span, deadline),
            Input::SetAttributes { op, id, attributes, protected, deadline } => {
                self.ask_set_attributes(op, id, attributes, protected, deadline);
            }
            Input::Forget { op, ids, deadline } => self.ask_forget(op, &ids, deadline),
            Input::Flush { op, deadline } => self.ask_flush(op, deadline),
            Input::Cancel { op } => self.cancel(op),
            Input::Done { io, result } => self.io_done(io, result),
            Input::Tick => {}
        }
        self.expire(now);
        self.pump();
        self.disk.take_effects()
    }

    /// When the next [`Input::Tick`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Tick> {
        self.ops.next_deadline()
    }

    /// The state of the log.
    #[must_use]
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// The readable records, ordered by id.
    pub fn records(&self) -> impl Iterator<Item = (RecordId, &Record)> {
        self.table.records.iter().map(|(id, live)| (*id, &live.record))
    }

    /// A readable record.
    #[must_use]
    pub fn record(&self, id: RecordId) -> Option<&Record> {
        self.table.record(id)
    }

    /// The record of a key.
    #[must_use]
    pub fn find(&self, name: &crate::types::Name) -> Option<RecordId> {
        self.table.find(name)
    }

    /// The positions of a record on the disk and the bytes there: its header with what follows it, then its
    /// parts.
    #[must_use]
    pub fn places_of(&self, id: RecordId) -> Vec<(u64, u64)> {
        self.table.places_of(id)
    }

    /// The end of the log on the disk: never beyond the budget.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.table.shape.end()
    }

    /// The number of disk operations in progress.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.disk.in_flight()
    }

    /// Counters and sizes.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.stats;
        stats.records = self.table.records.len() as u64;
        stats.live_bytes = self.table.segments.iter().map(|segment| segment.live).sum();
        stats.payload_bytes = self.table.payload_bytes();
        stats.carried_bytes = self.carries.moved_bytes();
        stats.written_bytes = self.disk.written_bytes();
        stats.protected_bytes = self.table.protected_bytes();
        let shape = self.table.shape;
        stats.protected_bytes_max = shape.protected_bytes_max();
        stats.segments = shape.segments;
        stats.segments_free = self.table.free_segments();
        stats.segment_bytes = shape.segment_bytes;
        stats.record_bytes_max = if shape.segment_bytes > 0 { shape.record_bytes_max() } else { 0 };
        stats.tombstones = self.table.tombstones.len() as u64;
        stats
    }

    fn io_done(&mut self, io: IoId, result: Done) {
        match self.disk.end(io) {
            Some(Io::Write(commit)) => self.write_done(commit, result),
            Some(Io::Sync) => self.sync_done(result),
            Some(Io::Read { flight, segment }) => self.flight_done(io, flight, segment, result),
            Some(Io::CarryRead(carry)) => self.carry_read_done(carry, &result),
            Some(Io::CarryWrite(carry)) => match result {
                Done::Failed(fault) => self.fail(fault),
                _ => self.carries.write_done(&mut self.table, &mut self.disk, carry),
            },
            Some(Io::Recover) => self.recover_done(io, result),
            None => self.stats.late += 1,
        }
    }

    /// Starts all work that can start.
    fn pump(&mut self) {
        if !matches!(self.health, Health::Ready) {
            return;
        }
        self.pump_notes();
        self.pump_reclaim();
        self.pump_appends();
        self.pump_reclaim();
        self.table.seal(&mut self.disk);
        self.stats.syncs += u64::from(self.syncs.start(&mut self.disk));
        while let Some(op) = self.tickets.take_flushed() {
            self.answer(op, Answer::Flush(Ok(())));
        }
        self.pump_announce();
    }

    /// Fails the log after a failed write or sync: it writes nothing more, and waiting operations get the
    /// fault.
    fn fail(&mut self, fault: Fault) {
        if !matches!(self.health, Health::Ready) {
            return;
        }
        self.health = Health::Failed(fault.clone());
        if let Some((_, report)) = self.announce.take() {
            self.disk.event(Event::Recovered(report));
        }
        self.appends.clear();
        self.notes.clear();
        self.syncs.clear();
        self.tickets.clear();
        self.reclaim = None;
        self.carries.clear(&mut self.disk);
        self.spans.clear();
        self.table.remove_unowned_parts();
        self.fail_changes(&fault);
        self.disk.event(Event::Failed(fault));
    }
}

/// The segment size and the number of segments for a budget.
///
/// # Errors
/// When no log fits into the budget, or the segment size is invalid.
pub fn shape(budget_bytes: u64, segment_bytes: Option<u64>) -> Result<(u64, u64), String> {
    let chosen = segment_bytes.unwrap_or_else(|| {
        let chosen = (budget_bytes / SEGMENTS_CHOSEN).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_CHOSEN_MAX);
        chosen - chosen % SEGMENT_BYTES_MIN
    });
    if !chosen.is_multiple_of(SEGMENT_BYTES_MIN) || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&chosen)
    {
        let hint = format!("give a multiple of {SEGMENT_BYTES_MIN}, at most {SEGMENT_BYTES_MAX}");
        return Err(format!("invalid segment size: {chosen} bytes\n\nhint: {hint}"));
    }
    let count = budget_bytes.saturating_sub(HEAD_BYTES) / chosen;
    if count < SEGMENTS_MIN {
        let hint = format!("give at least {} bytes", HEAD_BYTES + SEGMENTS_MIN * chosen);
        return Err(format!(
            "size of {budget_bytes} bytes is too small: it has {count} of at least {SEGMENTS_MIN} segments \
             of {chosen} bytes\n\nhint: {hint}"
        ));
    }
    Ok((chosen, count.min(u64::from(u32::MAX))))
}
