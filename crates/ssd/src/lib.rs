//! Stores records on NVMe: a log of large segments in one directory or block device, with a byte budget.
//!
//! It is independent of the rest of the store. A record has a name (namespace and key), a generation,
//! attributes that are opaque here, and a payload with a checksum per 64 KiB. A payload that does not fit
//! into the open segment is stored in parts, each in one segment.
//!
//! # Two layers
//! - [`Log`] decides and does no I/O: [`Log::apply`] takes an [`Input`] and returns [`Effect`]s. A simulation
//!   drives it on a disk in memory (`sim::SimDisk`, feature `sim`).
//! - [`DiskLog`] drives it on a real disk, with io_uring or with blocking threads.
//!
//! # Operations
//! The caller names each by an [`OpId`]. It gets exactly one [`Answer`], at the latest at its deadline.
//!
//! | operation | answered when |
//! |---|---|
//! | append | the record is durable and in the index, and the removal of an older generation of its key is
//! durable |
//! | read | the bytes are in the destination and verified; concurrent readers of a record share a disk read |
//! | set attributes | the new attributes are durable |
//! | forget | the tombstones are durable: the records are deleted |
//! | flush | all earlier operations have ended |
//! | cancel | (has no answer; a cancelled append is answered when its tombstone is durable) |
//!
//! The log also removes records by itself: [`Event::Left`] names them and the reason, after the removal is
//! durable.

pub mod bench;
mod disk_log;
mod engine;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod jobs;
mod layout;
mod log;
mod memory;
mod mutant;
mod place;
#[cfg(feature = "sim")]
pub mod sim;
mod types;

pub use disk_log::{DiskLog, DiskLogConfig, INBOX_MAX, Opened, memory_bytes, wait};
pub use engine::{Drive, Driven};
pub use layout::{
    ATTRIBUTES_BYTES_MAX, BLOCK, CHUNK_BYTES, HEAD_BYTES, KEY_BYTES_MAX, NAMESPACE_BYTES_MAX, SUM_BYTES,
    VERSION, VERSION_MIN, sums,
};
pub use log::{
    Checks, Config, Done, Effect, FORGET_IDS_MAX, Health, Input, Into, Limits, Log, PARTS_MAX, Part,
    RESERVE_SEGMENTS, SEGMENT_BYTES_CHOSEN_MAX, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENTS_MIN, shape,
};
pub use memory::{Buffer, Bytes, Pieces, Pool};
pub use mutant::Mutant;
pub use place::OpenError;
pub use types::{
    Answer, AppendError, ChangeError, Event, Fault, FaultKind, Generation, IoId, Left, Name, OpId, OpenFault,
    ReadError, Reader, Record, RecordId, Recovery, Span, StageId, Stats, Tick,
};
