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

mod ops;
mod read;
mod reclaim;
mod recover;
mod span;
mod table;
mod write;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::layout::HEAD_BYTES;
use crate::sabotage::Sabotage;
use crate::types::{
    Answer, Event, Fault, IoId, OpId, OpenFault, Record, RecordId, Recovery, Span, StageId, Stats, Tick,
};

use ops::Op;
pub use span::PARTS_MAX;

use read::Flight;
use reclaim::{Carry, Reclaim};
use recover::Recoverer;
use span::{Piece, Spanning};
use table::{Live, Segment, State, Tombstone};
use write::{Append, Commit};

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
    pub sabotage: Sabotage,
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

/// The state machine, see the module.
#[derive(Debug)]
pub struct Log {
    config: Config,
    health: Health,
    log: u64,
    segment_bytes: u64,
    segments: Vec<Segment>,
    records: BTreeMap<RecordId, Live>,
    names: BTreeMap<Arc<crate::types::Name>, RecordId>,
    /// The parts of records that span segments, by their own ids.
    pieces: BTreeMap<RecordId, Piece>,
    /// Records that are being written in parts, by their tickets, and the one whose parts are being placed.
    spannings: BTreeMap<u64, Spanning>,
    placing: Option<u64>,
    /// Spanning records whose head is being written.
    heads: BTreeSet<RecordId>,
    tombstones: BTreeMap<RecordId, Tombstone>,
    /// The number of segments that could not be read completely. Their contents are unknown, so no tombstone
    /// is dropped.
    segments_incomplete: u64,
    /// Evicted records whose tombstones are not durable yet.
    evicting: BTreeSet<RecordId>,
    open: Option<u32>,
    free: BTreeSet<u32>,
    sealing: BTreeSet<u32>,
    protected: u64,
    /// The footprints of all protected or held records and parts.
    kept: u64,
    next_sequence: u64,
    next_incarnation: u64,
    next_io: u64,
    next_stage: u64,
    next_ticket: u64,
    touch: u64,
    ops: BTreeMap<OpId, Op>,
    deadlines: BTreeSet<(Tick, OpId)>,
    ios: BTreeMap<IoId, Io>,
    /// Tickets of the changes in progress, for flushes.
    outstanding: BTreeSet<u64>,
    flushes: BTreeSet<(u64, OpId)>,
    appends: VecDeque<Append>,
    append_bytes: u64,
    write_bytes: u64,
    protected_asked: u64,
    notes: VecDeque<write::Queued>,
    notes_in_flight: bool,
    notes_queued: u64,
    notes_committed: u64,
    written: Vec<Commit>,
    syncing: Option<Vec<Commit>>,
    flights: BTreeMap<u64, Flight>,
    /// The read in flight that other readers of a record may join.
    shared: BTreeMap<RecordId, u64>,
    next_flight: u64,
    reads: usize,
    reclaim: Option<Reclaim>,
    carries: BTreeMap<u64, Carry>,
    recoverer: Option<Box<Recoverer>>,
    /// The recovery report, and the number of notes that must be durable before it is sent.
    announce: Option<(u64, Recovery)>,
    stats: Stats,
    effects: Vec<Effect>,
}

/// The purpose of a disk operation.
#[derive(Debug)]
enum Io {
    Write(Commit),
    Sync,
    /// A read of a flight from a segment.
    Read {
        flight: u64,
        segment: u32,
    },
    CarryRead(u64),
    CarryWrite(u64),
    Recover,
}

impl Log {
    /// Opens a log, and returns its first reads. It answers `Busy` until it has recovered.
    #[must_use]
    pub fn open(config: Config) -> (Self, Vec<Effect>) {
        let mut log = Self {
            config,
            health: Health::Recovering,
            log: config.log,
            segment_bytes: 0,
            segments: Vec::new(),
            records: BTreeMap::new(),
            names: BTreeMap::new(),
            pieces: BTreeMap::new(),
            spannings: BTreeMap::new(),
            placing: None,
            heads: BTreeSet::new(),
            tombstones: BTreeMap::new(),
            segments_incomplete: 0,
            evicting: BTreeSet::new(),
            open: None,
            free: BTreeSet::new(),
            sealing: BTreeSet::new(),
            protected: 0,
            kept: 0,
            next_sequence: 1,
            next_incarnation: 1,
            next_io: 1,
            next_stage: 1,
            next_ticket: 1,
            touch: 0,
            ops: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            ios: BTreeMap::new(),
            outstanding: BTreeSet::new(),
            flushes: BTreeSet::new(),
            appends: VecDeque::new(),
            append_bytes: 0,
            write_bytes: 0,
            protected_asked: 0,
            notes: VecDeque::new(),
            notes_in_flight: false,
            notes_queued: 0,
            notes_committed: 0,
            written: Vec::new(),
            syncing: None,
            flights: BTreeMap::new(),
            shared: BTreeMap::new(),
            next_flight: 1,
            reads: 0,
            reclaim: None,
            carries: BTreeMap::new(),
            recoverer: None,
            announce: None,
            stats: Stats::default(),
            effects: Vec::new(),
        };
        log.recover_start();
        let effects = std::mem::take(&mut log.effects);
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
        std::mem::take(&mut self.effects)
    }

    /// When the next [`Input::Tick`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Tick> {
        self.deadlines.first().map(|(tick, _)| *tick)
    }

    /// The state of the log.
    #[must_use]
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// The readable records, ordered by id.
    pub fn records(&self) -> impl Iterator<Item = (RecordId, &Record)> {
        self.records.iter().map(|(id, live)| (*id, &live.record))
    }

    /// A readable record.
    #[must_use]
    pub fn record(&self, id: RecordId) -> Option<&Record> {
        self.records.get(&id).map(|live| &live.record)
    }

    /// The record of a key.
    #[must_use]
    pub fn find(&self, name: &crate::types::Name) -> Option<RecordId> {
        self.names.get(name).copied()
    }

    /// The positions of a record on the disk and the bytes there: its header with what follows it, then its
    /// parts.
    #[must_use]
    pub fn places_of(&self, id: RecordId) -> Vec<(u64, u64)> {
        let Some(live) = self.records.get(&id) else { return Vec::new() };
        let parts = live.parts.iter().filter_map(|part| self.pieces.get(&part.id));
        let parts = parts.map(|piece| piece.location);
        let locations = std::iter::once(live.location).chain(parts);
        locations.map(|it| (self.at(it.segment, it.offset), it.extent)).collect()
    }

    /// The number of disk operations in progress.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.ios.len()
    }

    /// Counters and sizes.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.stats;
        stats.records = self.records.len() as u64;
        stats.live_bytes = self.segments.iter().map(|segment| segment.live).sum();
        stats.protected_bytes = self.protected_bytes();
        stats.protected_bytes_max = self.protected_bytes_max();
        stats.segments = self.segments.len() as u64;
        stats.segments_free = self.free_segments();
        stats.segment_bytes = self.segment_bytes;
        stats.record_bytes_max = if self.segment_bytes > 0 { self.record_bytes_max() } else { 0 };
        stats.tombstones = self.tombstones.len() as u64;
        stats
    }

    /// The end of the log on the disk: never beyond the budget.
    #[must_use]
    pub fn end(&self) -> u64 {
        HEAD_BYTES + self.segments.len() as u64 * self.segment_bytes
    }

    fn io(&mut self, what: Io) -> IoId {
        let io = IoId(self.next_io);
        self.next_io += 1;
        self.ios.insert(io, what);
        io
    }

    fn io_done(&mut self, io: IoId, result: Done) {
        match self.ios.remove(&io) {
            Some(Io::Write(commit)) => self.write_done(commit, result),
            Some(Io::Sync) => self.sync_done(result),
            Some(Io::Read { flight, segment }) => self.flight_done(io, flight, segment, result),
            Some(Io::CarryRead(carry)) => self.carry_read_done(carry, result),
            Some(Io::CarryWrite(carry)) => self.carry_write_done(carry, result),
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
        self.pump_seal();
        self.pump_sync();
        self.pump_flushes();
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
            self.effects.push(Effect::Event(Event::Recovered(report)));
        }
        self.appends.clear();
        self.append_bytes = 0;
        self.notes.clear();
        self.written.clear();
        self.syncing = None;
        self.flushes.clear();
        self.outstanding.clear();
        self.reclaim = None;
        self.unstage_carries();
        self.drop_spannings();
        self.fail_changes(&fault);
        self.effects.push(Effect::Event(Event::Failed(fault)));
    }

    fn at(&self, segment: u32, offset: u64) -> u64 {
        HEAD_BYTES + u64::from(segment) * self.segment_bytes + offset
    }

    fn ticket(&mut self) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.outstanding.insert(ticket);
        ticket
    }

    fn sequence(&mut self) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        sequence
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
