//! The log's decisions: where a record goes, when it is durable, what leaves, what a restart finds.
//!
//! [`Log::apply`] takes one input and returns effects; it does no I/O, reads no clock and draws no number.
//! Whoever drives it carries the effects out in order, and tells of each [`IoId`]'s end with [`Input::Done`].
//!
//! What holds at every step:
//! - A record is in the index, and its append answered, only after a sync that began after its write ended.
//! - A key has at most one record in the index: the one with the highest generation.
//! - Every dead copy of a record on the disk has a tombstone, or a copy of the same record with a higher
//!   sequence number that is durable. A tombstone lies on the disk for as long as a copy of its record does.
//! - A segment's header is durable before anything is written behind it, and durably erased before its
//!   records
//!   are said to be evicted. It is used again only after the last read of it has ended.
//! - Entries of a segment are only ever added. An index at its end says which count, once it is durable.
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
use table::{Live, Segment, State, Tomb};
use write::{Append, Commit};

/// Segments that only compaction and tombstones may take, so that there is always a way to make room.
pub const RESERVE_SEGMENTS: u64 = 2;
/// A log has at least so many segments.
pub const SEGMENTS_MIN: u64 = 6;
/// A log for which no segment size is asked gets so many segments, if their size stays within its limits. The
/// reserve is a small part of the log then.
const SEGMENTS_CHOSEN: u64 = 64;
/// The smallest segment.
pub const SEGMENT_BYTES_MIN: u64 = 1 << 20;
/// The largest segment that is chosen where none is asked for.
pub const SEGMENT_BYTES_CHOSEN_MAX: u64 = 256 << 20;
/// The largest segment.
pub const SEGMENT_BYTES_MAX: u64 = 2 << 30;
/// The most records that one forget may name.
pub const FORGET_IDS_MAX: usize = 1 << 16;

/// What a log is to be.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The id that the log gets if it is new. Draw it at random: it tells our bytes from others'.
    pub log: u64,
    /// The most bytes it may take up.
    pub budget_bytes: u64,
    /// The size of a segment, a multiple of 1 MiB. Without it: that of the log which is there, or a 64th of
    /// the budget.
    pub segment_bytes: Option<u64>,
    /// Limits of what is under way.
    pub limits: Limits,
    /// A rule to break, in tests.
    pub sabotage: Sabotage,
}

/// Limits of what is under way.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most appends that wait to be written.
    pub queue_ops_max: usize,
    /// The most payload bytes that wait to be written.
    pub queue_bytes_max: u64,
    /// The most bytes of appends that are being written at a time (one append may be larger).
    pub write_bytes_max: u64,
    /// The most bytes that small appends are joined to.
    pub group_bytes_max: u64,
    /// The most reads under way, those that share one included.
    pub reads_max: usize,
    /// The most changes of marks and tombstones that wait to be written.
    pub notes_max: usize,
    /// The most records that compaction moves at a time.
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

/// What happens to a log.
#[derive(Clone, Debug)]
pub enum Input {
    /// Keep a record. Its payload is the driver's, under the name of the operation.
    Append {
        /// The operation.
        op: OpId,
        /// The record.
        record: Record,
        /// The checksums of its payload, by [`crate::sums`].
        sums: Arc<[u64]>,
        /// When to give up.
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
        /// When to give up.
        deadline: Tick,
    },
    /// Give a record other marks.
    Mark {
        /// The operation.
        op: OpId,
        /// The record.
        id: RecordId,
        /// The new marks.
        marks: Vec<u8>,
        /// Whether it is protected from now on.
        protected: bool,
        /// When to give up.
        deadline: Tick,
    },
    /// Let records go for good. From now on they cannot be read; those that are not here do no harm.
    Forget {
        /// The operation.
        op: OpId,
        /// The records.
        ids: Vec<RecordId>,
        /// When to give up.
        deadline: Tick,
    },
    /// Answer when all that was asked for before has ended.
    Flush {
        /// The operation.
        op: OpId,
        /// When to give up.
        deadline: Tick,
    },
    /// An operation is no longer wanted. It is answered all the same: an append only when it cannot come
    /// back.
    Cancel {
        /// The operation.
        op: OpId,
    },
    /// A piece of disk work has ended.
    Done {
        /// Which.
        io: IoId,
        /// How.
        result: Done,
    },
    /// Time has passed.
    Tick,
}

/// How a piece of disk work ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// A write or sync succeeded, or a read whose bytes the driver has and found good.
    Ok,
    /// A read for the log itself, with its bytes.
    Bytes(Vec<u8>),
    /// A read whose bytes do not fit their checksums.
    Corrupt,
    /// It failed.
    Failed(Fault),
}

/// What the driver is to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write these parts one after another. Their bytes together are a multiple of a block, and so is `at`.
    Write {
        /// Its name.
        io: IoId,
        /// Where on the disk.
        at: u64,
        /// What.
        parts: Vec<Part>,
    },
    /// Make everything durable whose write has been reported as done.
    Sync {
        /// Its name.
        io: IoId,
    },
    /// Read. `at` is a multiple of a block; `len` need not be, and may be rounded up to one for the disk.
    Read {
        /// Its name.
        io: IoId,
        /// Where on the disk.
        at: u64,
        /// How many bytes.
        len: u64,
        /// Where to.
        into: Into,
    },
    /// Copy some of what the read `io`, which has just been reported as done, and earlier ones for the same
    /// operation put into their destination.
    Copy {
        /// The last of the reads.
        io: IoId,
        /// The operation whose destination gets the bytes, from its start.
        to: OpId,
        /// Which bytes of the first destination.
        from: Span,
    },
    /// Bytes in between are no longer needed.
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
    /// What else happened.
    Event(Event),
}

/// A part of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// These bytes.
    Bytes(Vec<u8>),
    /// Some of the payload of an append.
    Payload {
        /// The append.
        op: OpId,
        /// Which bytes.
        span: Span,
    },
    /// What was read into a stage.
    Stage {
        /// Which.
        stage: StageId,
        /// How many bytes it has.
        len: u64,
    },
    /// So many zeros.
    Zeros(u64),
}

/// Where a read's bytes go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Into {
    /// Into [`Done::Bytes`].
    Log,
    /// Held against checksums; then `span` of them into the destination of an operation.
    Op {
        /// The operation.
        op: OpId,
        /// Which of the bytes read.
        span: Span,
        /// Where they begin in the destination. The other bytes of it come with other reads.
        to: u64,
        /// What they must fit.
        checks: Checks,
    },
    /// Held against checksums, and kept under this name.
    Stage {
        /// The name.
        stage: StageId,
        /// What they must fit.
        checks: Checks,
    },
}

/// The checksums that bytes must match: those of a payload, from its block `first` on.
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

    /// Whether some of the bytes match, which begin `position` bytes after the first: with a whole block.
    #[must_use]
    pub fn fit_at(&self, position: u64, bytes: &[u8]) -> bool {
        let first = self.first + (position / self.sum_bytes) as usize;
        crate::layout::verify(bytes, &self.sums, first, self.sum_bytes)
    }
}

/// How the log is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It is being read.
    Recovering,
    /// It works.
    Ready,
    /// Reads go on; nothing is written.
    Failed(Fault),
    /// It cannot be used.
    Unusable(OpenFault),
}

/// The state machine. See the module's own words.
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
    /// Those whose head is being written.
    heads: BTreeSet<RecordId>,
    tombs: BTreeMap<RecordId, Tomb>,
    /// Segments that could not be read whole: what lies in them is not known, so no tombstone is dropped.
    unsure: u64,
    /// Evicted records whose tombstones are not durable yet.
    going: BTreeSet<RecordId>,
    open: Option<u32>,
    free: BTreeSet<u32>,
    sealing: BTreeSet<u32>,
    protected: u64,
    /// The footprints of what is protected or held.
    kept: u64,
    next_sequence: u64,
    next_life: u64,
    next_io: u64,
    next_stage: u64,
    next_ticket: u64,
    touch: u64,
    ops: BTreeMap<OpId, Op>,
    deadlines: BTreeSet<(Tick, OpId)>,
    ios: BTreeMap<IoId, Io>,
    /// Numbers of the changes under way, for flushes.
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
    /// The flight that another reader of a record may join.
    shared: BTreeMap<RecordId, u64>,
    next_flight: u64,
    reads: usize,
    reclaim: Option<Reclaim>,
    carries: BTreeMap<u64, Carry>,
    recoverer: Option<Box<Recoverer>>,
    /// What a restart found, and the notes that must be durable before it is said.
    announce: Option<(u64, Recovery)>,
    stats: Stats,
    effects: Vec<Effect>,
}

/// What a piece of disk work is for.
#[derive(Debug)]
enum Io {
    Write(Commit),
    Sync,
    /// For a flight, from a segment.
    Read {
        flight: u64,
        segment: u32,
    },
    CarryRead(u64),
    CarryWrite(u64),
    Recover,
}

impl Log {
    /// A log that is about to be read, and the first of the reads. It answers `Busy` until it has recovered.
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
            tombs: BTreeMap::new(),
            unsure: 0,
            going: BTreeSet::new(),
            open: None,
            free: BTreeSet::new(),
            sealing: BTreeSet::new(),
            protected: 0,
            kept: 0,
            next_sequence: 1,
            next_life: 1,
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

    /// Takes one input; returns what is to be done about it, in order.
    pub fn apply(&mut self, input: Input, now: Tick) -> Vec<Effect> {
        match input {
            Input::Append { op, record, sums, deadline } => self.ask_append(op, record, sums, deadline),
            Input::Read { op, id, span, deadline } => self.ask_read(op, id, span, deadline),
            Input::Mark { op, id, marks, protected, deadline } => {
                self.ask_mark(op, id, marks, protected, deadline);
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

    /// When an [`Input::Tick`] is due at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Tick> {
        self.deadlines.first().map(|(tick, _)| *tick)
    }

    /// How it is.
    #[must_use]
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// The records that can be read, in the order of their ids.
    pub fn records(&self) -> impl Iterator<Item = (RecordId, &Record)> {
        self.records.iter().map(|(id, live)| (*id, &live.record))
    }

    /// One of them.
    #[must_use]
    pub fn record(&self, id: RecordId) -> Option<&Record> {
        self.records.get(&id).map(|live| &live.record)
    }

    /// The record of a key.
    #[must_use]
    pub fn find(&self, name: &crate::types::Name) -> Option<RecordId> {
        self.names.get(name).copied()
    }

    /// Where on the disk a record lies: its header and what follows it, then its parts. Each with how many
    /// bytes it takes up.
    #[must_use]
    pub fn places_of(&self, id: RecordId) -> Vec<(u64, u64)> {
        let Some(live) = self.records.get(&id) else { return Vec::new() };
        let parts = live.parts.iter().filter_map(|part| self.pieces.get(&part.id));
        let parts = parts.map(|piece| piece.location);
        let locations = std::iter::once(live.location).chain(parts);
        locations.map(|it| (self.at(it.segment, it.offset), it.extent)).collect()
    }

    /// How many pieces of disk work have not ended.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.ios.len()
    }

    /// Counters, and how things are.
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
        stats.tombstones = self.tombs.len() as u64;
        stats
    }

    /// The bytes of the disk that may be written: never more than the budget.
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

    /// Starts whatever can be started.
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

    /// Something could not be written: nothing more is, and whoever waits for it is told.
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

/// How many segments of which size a budget gives, or what is wrong with it.
///
/// # Errors
/// When no log fits into the budget, or segments cannot have the size asked for: in words.
pub fn shape(budget_bytes: u64, segment_bytes: Option<u64>) -> Result<(u64, u64), String> {
    let chosen = segment_bytes.unwrap_or_else(|| {
        let chosen = (budget_bytes / SEGMENTS_CHOSEN).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_CHOSEN_MAX);
        chosen - chosen % SEGMENT_BYTES_MIN
    });
    if !chosen.is_multiple_of(SEGMENT_BYTES_MIN) || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&chosen)
    {
        let hint = format!("give a multiple of {SEGMENT_BYTES_MIN}, at most {SEGMENT_BYTES_MAX}");
        return Err(format!("segments of {chosen} bytes are not possible\n\nhint: {hint}"));
    }
    let count = budget_bytes.saturating_sub(HEAD_BYTES) / chosen;
    if count < SEGMENTS_MIN {
        let hint = format!("give at least {} bytes", HEAD_BYTES + SEGMENTS_MIN * chosen);
        return Err(format!(
            "{budget_bytes} bytes are {count} segments of {chosen} bytes, and {SEGMENTS_MIN} are needed\n\n\
             hint: {hint}"
        ));
    }
    Ok((chosen, count.min(u64::from(u32::MAX))))
}
