//! The types of records, operations and answers.
//!
//! Every operation has one answer, and every error says what happened and whether a retry may help.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// A point in time in milliseconds, from any origin. The driver provides it.
pub type Tick = u64;

/// The id of a record in its log. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId(pub u64);

/// The id of an operation, chosen by the caller; unique while the operation is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// The id of a disk operation, chosen by the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoId(pub u64);

/// The id of a buffer between a read and the write that follows it, chosen by the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StageId(pub u64);

/// The order of the records of one key: by epoch, then by counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation {
    /// The epoch of the issuer of generations.
    pub epoch: u64,
    /// A counter within the epoch.
    pub counter: u64,
}

/// The name of a record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// The namespace.
    pub namespace: String,
    /// The key within it.
    pub key: Vec<u8>,
}

/// A record without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Namespace and key.
    pub name: Arc<Name>,
    /// Its generation among the records of its key.
    pub generation: Generation,
    /// Opaque bytes of the caller: pins, the state of a sample.
    pub attributes: Vec<u8>,
    /// A protected record is never evicted.
    pub protected: bool,
    /// The bytes of the payload.
    pub payload_bytes: u64,
}

/// A range of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where they begin in the payload.
    pub offset: u64,
    /// The number of bytes.
    pub len: u64,
}

/// Who a read is for. The clients of a group take turns, and so do the groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reader {
    /// For example a namespace, as a number.
    pub group: u64,
    /// A client of it.
    pub client: u64,
    /// It is a prefetch: reads that a client waits for overtake it a limited number of times.
    pub is_ahead: bool,
}

/// The kind of a disk failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// The device or the filesystem failed (EIO).
    Io,
    /// No space, although it was allocated, or a limit of the process (ENOSPC, EDQUOT, EFBIG).
    NoSpace,
    /// The filesystem has become read-only (EROFS).
    ReadOnly,
    /// The device or file is gone (ENODEV, ENXIO, ESTALE).
    Vanished,
    /// Anything else.
    Other,
}

/// A failure of the disk.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text}\n\nhint: {}", self.hint())]
pub struct Fault {
    /// Its kind.
    pub kind: FaultKind,
    /// The failed operation and the error of the system.
    pub text: String,
}

impl Fault {
    /// A failure with a text that names the failed operation.
    pub fn new(kind: FaultKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    fn hint(&self) -> &'static str {
        match self.kind {
            FaultKind::Io => "see the kernel log; replace the disk or use another path",
            FaultKind::NoSpace => "free space on the filesystem, or use a smaller size",
            FaultKind::ReadOnly => "repair the filesystem, then restart the node",
            FaultKind::Vanished => "restore the device or directory, then restart the node",
            FaultKind::Other => "see the kernel log, then restart the node",
        }
    }
}

/// Why an append failed. Unless stated otherwise, the record does not appear after a restart.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AppendError {
    /// Protected records leave no space; retry after one was deleted or unprotected.
    #[error("no space: protected records use {protected_bytes} of at most {protected_bytes_max} bytes")]
    Full {
        /// The bytes of protected records.
        protected_bytes: u64,
        /// Their limit.
        protected_bytes_max: u64,
    },
    /// The record is larger than the log can take.
    #[error(
        "a record of {bytes} bytes exceeds the {bytes_max} bytes that one record may take up on this disk\n\n\
         hint: use a larger disk, or split the object"
    )]
    TooLarge {
        /// The bytes of the record.
        bytes: u64,
        /// The largest record.
        bytes_max: u64,
    },
    /// The key has a newer generation.
    #[error("key has a newer generation: {newest:?}")]
    Stale {
        /// That generation.
        newest: Generation,
    },
    /// The key has this generation already.
    #[error("key has this generation already: {0:?}")]
    Exists(RecordId),
    /// Too many queued operations; retry when some have been answered.
    #[error("too many operations or bytes are queued for the disk")]
    Busy,
    /// It was cancelled.
    #[error("the append was cancelled")]
    Cancelled,
    /// Its deadline has passed. It appears after a restart only if a crash comes before its tombstone is
    /// durable.
    #[error("the append did not end before its deadline")]
    TimedOut,
    /// The disk has failed. Whether the record appears after a restart is unknown.
    #[error("disk has failed and accepts no records: {0}")]
    Failed(#[source] Fault),
}

/// Why a read failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReadError {
    /// The record does not exist: it was deleted or evicted, or never written.
    #[error("record does not exist")]
    Gone,
    /// The bytes do not match their checksum; the record was dropped.
    #[error("record does not match its checksum and was dropped")]
    Corrupt,
    /// The range exceeds the payload.
    #[error("range {0:?} exceeds the payload of {1} bytes")]
    OutOfRange(Span, u64),
    /// Too many queued operations; retry when some have been answered.
    #[error("too many reads are queued for the disk")]
    Busy,
    /// It was cancelled; its memory is in use until its guard is dropped.
    #[error("the read was cancelled")]
    Cancelled,
    /// Its deadline passed; its memory is in use until its guard is dropped.
    #[error("the read did not end before its deadline")]
    TimedOut,
    /// The disk could not read it. The record stays, because a later read may succeed.
    #[error("record cannot be read: {0}")]
    Failed(#[source] Fault),
}

/// Why attributes were not set, records not deleted or the log not flushed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ChangeError {
    /// The record does not exist.
    #[error("record does not exist")]
    Gone,
    /// The record may not be protected: it would exceed the limit.
    #[error("no space: protected records use {protected_bytes} of at most {protected_bytes_max} bytes")]
    Full {
        /// The bytes of protected records.
        protected_bytes: u64,
        /// Their limit.
        protected_bytes_max: u64,
    },
    /// The attributes are too long.
    #[error("attributes of {bytes} bytes exceed the limit of {bytes_max} bytes")]
    TooLarge {
        /// Their bytes.
        bytes: u64,
        /// Their limit.
        bytes_max: u64,
    },
    /// Too many queued operations; retry when some have been answered.
    #[error("too many operations are queued for the disk")]
    Busy,
    /// It was cancelled; it may take effect nevertheless.
    #[error("the change was cancelled")]
    Cancelled,
    /// Its deadline has passed; it may take effect nevertheless.
    #[error("the change did not end before its deadline")]
    TimedOut,
    /// The disk has failed. Deleted records cannot be read, but may appear after a restart.
    #[error("disk has failed and accepts no changes: {0}")]
    Failed(#[source] Fault),
}

/// The one answer to an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The record is durable, and in the index.
    Append(Result<RecordId, AppendError>),
    /// This number of bytes is in the destination and verified.
    Read(Result<u64, ReadError>),
    /// The new attributes are durable.
    SetAttributes(Result<(), ChangeError>),
    /// The deletes are durable; this number of the records existed.
    Forget(Result<u64, ChangeError>),
    /// All earlier operations have ended, and their changes are durable.
    Flush(Result<(), ChangeError>),
}

/// Why the log removed a record by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Left {
    /// Its segment was reclaimed. The removal is durable.
    Evicted,
    /// It was replaced by a newer generation. The removal is durable.
    Superseded,
    /// Its bytes do not match its checksum.
    Corrupt,
}

/// An event of the log that is not an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The log has recovered.
    Recovered(Recovery),
    /// The log cannot be used at all.
    Unusable(OpenFault),
    /// These records were removed.
    Left(Left, Vec<RecordId>),
    /// The disk has failed: records can be read, but nothing is written.
    Failed(Fault),
}

/// The result of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The number of records.
    pub records: u64,
    /// The bytes of their payloads.
    pub payload_bytes: u64,
    /// Segments with contents.
    pub segments: u64,
    /// Segments that were scanned, because they had no valid index.
    pub segments_scanned: u64,
    /// Torn or damaged records, which were dropped.
    pub records_bad: u64,
    /// Deleted records.
    pub records_forgotten: u64,
    /// Older generations of keys, which were replaced.
    pub records_superseded: u64,
    /// Blocks that could not be read.
    pub blocks_unreadable: u64,
}

/// Why a log cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OpenFault {
    /// The contents are not a log.
    #[error("the contents are not a log of records\n\nhint: use an empty directory")]
    NotOurs,
    /// It has an unknown format version.
    #[error(
        "it has format version {found}, and this program knows version {known}\n\nhint: {}",
        VERSION_HINT
    )]
    Version {
        /// What the log has.
        found: u32,
        /// The newest known version.
        known: u32,
    },
    /// Its segments have another size.
    #[error("it has segments of {found} bytes, and {asked} were asked for\n\nhint: omit the segment size")]
    SegmentBytes {
        /// What the log has.
        found: u64,
        /// What was requested.
        asked: u64,
    },
    /// It is larger than the budget.
    #[error("it has {found} bytes, and the size given is {budget}\n\nhint: give at least as much as before")]
    Shrunk {
        /// What the log has.
        found: u64,
        /// The budget.
        budget: u64,
    },
    /// The disk cannot be read.
    #[error("it cannot be read: {0}")]
    Disk(#[source] Fault),
}

const VERSION_HINT: &str = "use the program that wrote it, or an empty directory";

/// Counters since the start, and sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The number of records.
    pub records: u64,
    /// The bytes of their payloads.
    pub payload_bytes: u64,
    /// Their bytes on the disk, with headers and padding.
    pub live_bytes: u64,
    /// The protected bytes of these.
    pub protected_bytes: u64,
    /// The limit of protected footprints.
    pub protected_bytes_max: u64,
    /// Free segments.
    pub segments_free: u64,
    /// All segments.
    pub segments: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// The largest payload of a record; zero before the log has recovered.
    pub record_bytes_max: u64,
    /// Successful appends.
    pub appends: u64,
    /// Their payload bytes.
    pub appended_bytes: u64,
    /// All bytes written to the disk. Divided by the appended bytes: the write amplification.
    pub written_bytes: u64,
    /// Bytes that reclaiming moved.
    pub carried_bytes: u64,
    /// Syncs.
    pub syncs: u64,
    /// Successful reads.
    pub reads: u64,
    /// Reads that shared the disk read of another operation.
    pub reads_shared: u64,
    /// Their payload bytes.
    pub read_bytes: u64,
    /// Evicted records.
    pub evicted: u64,
    /// Records that were deleted by request.
    pub forgotten: u64,
    /// Records that were dropped for a wrong checksum.
    pub corrupt: u64,
    /// Evicted segments.
    pub segments_evicted: u64,
    /// Compacted segments.
    pub segments_compacted: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// Results of disk work whose operation had been answered.
    pub late: u64,
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {}", self.0)
    }
}
