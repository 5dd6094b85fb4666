//! The vocabulary: records, operations and their answers.
//!
//! Every operation has one answer, and every error says what happened and whether to try again.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// A point in time in milliseconds, from any start. Whoever drives the log says what time it is.
pub type Tick = u64;

/// The name of a record in its directory. Never used twice there, whatever happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId(pub u64);

/// An operation, named by whoever asks; unique while it is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// A piece of disk work, named by the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoId(pub u64);

/// A piece of memory that holds bytes between a read and the write that follows it, named by the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StageId(pub u64);

/// Which of several records of one key is the newest: by epoch, then by counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation {
    /// The life of whoever gives generations out.
    pub epoch: u64,
    /// Counts within that life.
    pub counter: u64,
}

/// What a record is called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// The namespace.
    pub namespace: String,
    /// The key within it.
    pub key: Vec<u8>,
}

/// Everything about a record but its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Namespace and key.
    pub name: Arc<Name>,
    /// The generation of the key that this is.
    pub generation: Generation,
    /// What the caller wants to find again: pins, the state of a sample. Opaque here.
    pub marks: Vec<u8>,
    /// A protected record is never evicted.
    pub protected: bool,
    /// How many bytes the payload has.
    pub payload_bytes: u64,
}

/// Some bytes of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where they begin in the payload.
    pub offset: u64,
    /// How many they are.
    pub len: u64,
}

/// What went wrong with the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// The device or the filesystem could not (EIO).
    Io,
    /// No room where room had been set aside, or a limit of the process (ENOSPC, EDQUOT, EFBIG).
    NoSpace,
    /// The filesystem has become read-only (EROFS).
    ReadOnly,
    /// What was opened is not there any more (ENODEV, ENXIO, ESTALE).
    Vanished,
    /// Anything else.
    Other,
}

/// A failure of the disk, in words.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text}\n\nhint: {}", self.hint())]
pub struct Fault {
    /// Its kind.
    pub kind: FaultKind,
    /// What was tried and what the system said.
    pub text: String,
}

impl Fault {
    /// A failure with a text that says what was tried.
    pub fn new(kind: FaultKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    fn hint(&self) -> &'static str {
        match self.kind {
            FaultKind::Io => {
                "the disk may be failing: see the kernel's log, and replace it or use another path"
            }
            FaultKind::NoSpace => {
                "the filesystem has less room than was set aside: free some, or open with a smaller size"
            }
            FaultKind::ReadOnly => {
                "the filesystem was remounted read-only: repair it, then start the node again"
            }
            FaultKind::Vanished => {
                "the device or directory is gone: bring it back, then start the node again"
            }
            FaultKind::Other => "see the kernel's log, then start the node again",
        }
    }
}

/// Why an append did not happen. Unless it says otherwise, nothing of it will come back after a restart.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AppendError {
    /// Nothing may be evicted to make room; try again after something was forgotten or is no longer
    /// protected.
    #[error("no room: {protected_bytes} of at most {protected_bytes_max} protected bytes are in use")]
    Full {
        /// Bytes that protected records take up.
        protected_bytes: u64,
        /// The most that they may.
        protected_bytes_max: u64,
    },
    /// A record must fit beside what always has to stay free.
    #[error(
        "a record of {bytes} bytes exceeds the {bytes_max} bytes that one record may take up on this disk\n\n\
         hint: use a larger disk, or split the object"
    )]
    TooLarge {
        /// What it would take up.
        bytes: u64,
        /// The most that a record may take up.
        bytes_max: u64,
    },
    /// A newer generation of the key is here.
    #[error("a newer generation of the key is here: {newest:?}")]
    Stale {
        /// That generation.
        newest: Generation,
    },
    /// This very generation of the key is here.
    #[error("this generation of the key is here already, as {0:?}")]
    Exists(RecordId),
    /// Too much is waiting; try again when some of it has been answered.
    #[error("too many operations or bytes are waiting for the disk")]
    Busy,
    /// It was cancelled.
    #[error("the append was cancelled")]
    Cancelled,
    /// Its deadline passed. Only a crash before the disk has answered can bring it back.
    #[error("the append did not end before its deadline")]
    TimedOut,
    /// The disk failed. Whether the record comes back after a restart is not known.
    #[error("the disk has failed, and takes no more records: {0}")]
    Failed(#[source] Fault),
}

/// Why a read did not happen.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReadError {
    /// The record was forgotten or evicted, or never was.
    #[error("the record is not here")]
    Gone,
    /// The bytes are not those that were written; the record was dropped.
    #[error("the record's bytes do not fit its checksum; it was dropped")]
    Corrupt,
    /// The span reaches beyond the payload.
    #[error("bytes {0:?} reach beyond the payload, which has {1} bytes")]
    OutOfRange(Span, u64),
    /// Too much is waiting; try again when some of it has been answered.
    #[error("too many reads are waiting for the disk")]
    Busy,
    /// It was cancelled; its memory is in use until its guard is dropped.
    #[error("the read was cancelled")]
    Cancelled,
    /// Its deadline passed; its memory is in use until its guard is dropped.
    #[error("the read did not end before its deadline")]
    TimedOut,
    /// The disk could not read it. The record stays, because another try may succeed.
    #[error("the record cannot be read: {0}")]
    Failed(#[source] Fault),
}

/// Why marks were not changed, records not forgotten or the log not flushed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ChangeError {
    /// The record is not here.
    #[error("the record is not here")]
    Gone,
    /// So many bytes may not be protected.
    #[error("no room: {protected_bytes} of at most {protected_bytes_max} protected bytes are in use")]
    Full {
        /// Bytes that protected records take up.
        protected_bytes: u64,
        /// The most that they may.
        protected_bytes_max: u64,
    },
    /// Marks have a limit.
    #[error("marks of {bytes} bytes are more than a record has ({bytes_max})")]
    TooLarge {
        /// What was given.
        bytes: u64,
        /// The most there may be.
        bytes_max: u64,
    },
    /// Too much is waiting; try again when some of it has been answered.
    #[error("too many operations are waiting for the disk")]
    Busy,
    /// It was cancelled; it may happen all the same.
    #[error("the change was cancelled")]
    Cancelled,
    /// Its deadline passed; it may happen all the same.
    #[error("the change did not end before its deadline")]
    TimedOut,
    /// The disk failed. What was to be forgotten cannot be read any more, but may come back after a restart.
    #[error("the disk has failed, and takes no more changes: {0}")]
    Failed(#[source] Fault),
}

/// The one answer to an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The record is durable, and in the index.
    Append(Result<RecordId, AppendError>),
    /// So many bytes are in the destination and fit their checksums.
    Read(Result<u64, ReadError>),
    /// The new marks are durable.
    Mark(Result<(), ChangeError>),
    /// None of the records can come back; so many of them were here.
    Forget(Result<u64, ChangeError>),
    /// All that was answered before is durable, and nothing is waiting that came before.
    Flush(Result<(), ChangeError>),
}

/// Why a record left without being asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Left {
    /// Its segment was needed. It is durably gone.
    Evicted,
    /// A newer generation of its key came. It is durably gone.
    Superseded,
    /// Its bytes do not fit its checksum.
    Corrupt,
}

/// What happened beside the answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The log was read; operations that waited go on.
    Recovered(Recovery),
    /// The log cannot be used at all.
    Unusable(OpenFault),
    /// These records are gone.
    Left(Left, Vec<RecordId>),
    /// Reads of what is readable go on; nothing more is written.
    Failed(Fault),
}

/// What a restart found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Records that are here.
    pub records: u64,
    /// The bytes of their payloads.
    pub payload_bytes: u64,
    /// Segments that hold anything.
    pub segments: u64,
    /// Segments that had to be scanned, because they had no index yet or a bad one.
    pub segments_scanned: u64,
    /// Records that were cut off or damaged, and dropped.
    pub records_bad: u64,
    /// Records that had been forgotten.
    pub records_forgotten: u64,
    /// Older generations of keys that have a newer one.
    pub records_superseded: u64,
    /// Blocks that could not be read.
    pub blocks_unreadable: u64,
}

/// Why a log cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OpenFault {
    /// What lies there is not a log of ours.
    #[error("there is something else than a log of records\n\nhint: use an empty directory")]
    NotOurs,
    /// Another version wrote it.
    #[error(
        "it has format version {found}, and this program knows version {known}\n\nhint: {}",
        VERSION_HINT
    )]
    Version {
        /// What it has.
        found: u32,
        /// What we know.
        known: u32,
    },
    /// It was made with segments of another size.
    #[error(
        "it has segments of {found} bytes, and {asked} were asked for\n\nhint: leave the segment size away"
    )]
    SegmentBytes {
        /// What it has.
        found: u64,
        /// What was asked for.
        asked: u64,
    },
    /// It is larger than the budget.
    #[error("it has {found} bytes, and the size given is {budget}\n\nhint: give at least as much as before")]
    Shrunk {
        /// What it has.
        found: u64,
        /// The budget.
        budget: u64,
    },
    /// The disk does not answer as it should.
    #[error("it cannot be read: {0}")]
    Disk(#[source] Fault),
}

const VERSION_HINT: &str = "use the program that wrote it, or an empty directory";

/// Counters since the start, and how things are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Records that are here.
    pub records: u64,
    /// The bytes of their payloads.
    pub payload_bytes: u64,
    /// What they take up, with headers and padding.
    pub live_bytes: u64,
    /// The part of that which is protected.
    pub protected_bytes: u64,
    /// The most that may be protected.
    pub protected_bytes_max: u64,
    /// Segments that are free.
    pub segments_free: u64,
    /// Segments in all.
    pub segments: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// The most bytes of payload that a record may have; zero before the log was read.
    pub record_bytes_max: u64,
    /// Appends that were answered with a record.
    pub appends: u64,
    /// Payload bytes that callers appended.
    pub appended_bytes: u64,
    /// Bytes written to the disk, for whatever reason. Divided by the above: the write amplification.
    pub written_bytes: u64,
    /// Bytes that compaction wrote anew.
    pub carried_bytes: u64,
    /// Syncs.
    pub syncs: u64,
    /// Reads that were answered with bytes.
    pub reads: u64,
    /// Reads that shared the disk read of another.
    pub reads_shared: u64,
    /// Payload bytes given to readers.
    pub read_bytes: u64,
    /// Records that were evicted.
    pub evicted: u64,
    /// Records that were forgotten by request.
    pub forgotten: u64,
    /// Records dropped for their checksum.
    pub corrupt: u64,
    /// Segments that were evicted.
    pub segments_evicted: u64,
    /// Segments that were compacted without evicting anything.
    pub segments_compacted: u64,
    /// Tombstones that must be kept.
    pub tombstones: u64,
    /// Answers that came too late: their operation had been answered.
    pub late: u64,
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {}", self.0)
    }
}
