//! Keeps records on NVMe: a log of large segments in one directory, file or block device, with a byte budget.
//!
//! It knows nothing of the rest of the store. A record has a name (namespace and key), a generation, marks
//! that
//! are opaque here, and a payload with a checksum per 64 KiB. One that does not fit into the open segment of
//! the log lies in parts, each in a segment.
//!
//! # Two layers
//! - [`Log`] decides and does no I/O: [`Log::apply`] takes an [`Input`] and returns [`Effect`]s. A simulation
//!   drives it on a disk in memory (`sim::SimDisk`, feature `sim`).
//! - [`Shelf`] drives it on a real disk, with io_uring or with blocking threads.
//!
//! # Operations
//! Each is named by an [`OpId`] of the caller's and gets exactly one [`Answer`], by its deadline at the
//! latest.
//!
//! | operation | answered when |
//! |---|---|
//! | append | the record is durable and in the index, and an older generation of its key durably gone |
//! | read | the bytes are in the destination and fit their checksums; readers of a record share a disk read |
//! | mark | the new marks are durable |
//! | forget | the tombstones are durable: the records cannot come back, whatever happens |
//! | flush | all that was asked for before has ended |
//! | cancel | (has no answer of its own; a cancelled append is answered when it cannot come back) |
//!
//! Records leave by themselves too: [`Event::Left`] says which and why, after it is durable.

pub mod bench;
mod engine;
mod jobs;
mod layout;
mod log;
mod memory;
mod place;
mod sabotage;
mod shelf;
#[cfg(feature = "sim")]
pub mod sim;
mod types;

pub use engine::{Drive, Driven};
pub use layout::{
    BLOCK, CHUNK_BYTES, HEAD_BYTES, KEY_BYTES_MAX, MARKS_BYTES_MAX, NAMESPACE_BYTES_MAX, SUM_BYTES, VERSION,
    VERSION_MIN, sums,
};
pub use log::{
    Checks, Config, Done, Effect, FORGET_IDS_MAX, Health, Input, Into, Limits, Log, PARTS_MAX, Part,
    RESERVE_SEGMENTS, SEGMENT_BYTES_CHOSEN_MAX, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENTS_MIN, shape,
};
pub use memory::{Buffer, Bytes, Pieces, Pool};
pub use place::OpenError;
pub use sabotage::Sabotage;
pub use shelf::{INBOX_MAX, Opened, Shelf, ShelfConfig, memory_bytes, wait};
pub use types::{
    Answer, AppendError, ChangeError, Event, Fault, FaultKind, Generation, IoId, Left, Name, OpId, OpenFault,
    ReadError, Record, RecordId, Recovery, Span, StageId, Stats, Tick,
};
