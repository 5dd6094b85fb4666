//! Moves bytes between memories.
//!
//! This crate knows segments, slots, stamps and ranges, but neither objects nor permissions. A [`Transport`]
//! copies ranges of a slot into a caller's buffers and back, and proves with the slot's stamp that the bytes
//! were those of the use that the caller named:
//!
//! - [`local::Local`] reaches the memory of a node in the same process,
//! - [`shm::Shm`] reaches the memory of a node on the same host, through mappings,
//! - [`tcp::Tcp`] reaches any node, through its data socket.
//!
//! The node's side is [`segment::NodeMemory`] with its only [`control::ControlWriter`]. [`shm::Server`] hands
//! the memory to other processes, [`tcp::Server`] serves it to other hosts.
//!
//! **Invariant:** a read that answers `Ok` returned bytes of the use with the given stamp, and the slot still
//! held that stamp after the last byte was copied. After any error the buffer's content is unspecified.
//!
//! **Invariant:** no `&[u8]` is ever formed over memory that another process may write. Such bytes are
//! accessed only by the copy kernel, the checksum and system calls.
//!
//! Buffers may be memory of a CUDA device ([`device`]); segments are always host memory.
//!
//! **Invariant:** all `unsafe` code is in `arena`, `buffer`, `checksum`, `copy`, `cache_prefetch`, `device`,
//! `device_memory`, `forks`, `lock`, `process`, `map`, `peer`, `probe`, `queued` and `tcp::stream`.

pub mod arena;
mod available;
#[cfg(any(test, feature = "testkit"))]
pub mod behavior;
pub mod buffer;
mod cache_prefetch;
pub mod checksum;
mod claim;
pub mod control;
pub mod copy;
pub mod device;
mod device_memory;
pub mod device_rates;
#[cfg(any(test, feature = "testkit"))]
pub mod faults;
mod fields;
mod forks;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod hedge;
pub mod journal;
pub mod layout;
pub mod local;
mod lock;
mod map;
mod mapped;
#[cfg(test)]
mod model;
pub mod peer;
mod pending;
pub mod pool;
mod populate;
pub mod probe;
mod process;
pub mod queued;
#[cfg(test)]
mod schedules;
mod seams;
pub mod segment;
pub mod shm;
mod stamp;
pub mod tcp;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};

pub use tiffin_gpu as gpu;
pub use tokio::time::Instant;

pub use crate::available::{Available, Limit, available_memory};
pub use crate::buffer::{SourceBuf, TargetBuf};
pub use crate::claim::Withdrawals;
pub use crate::device_memory::DeviceMemory;
pub use crate::mapped::MappedRange;
pub use crate::pending::{AnswerTime, Connections, Denied, Entry as PendingEntry, LimitUse, Pending};
pub use crate::populate::Pages;
pub use crate::process::id as this_process;

/// Maximum number of bytes per request of the data socket, so that the stamp is checked at least that often.
pub const CHUNK_BYTES_MAX: u64 = 4 << 20;
/// Maximum length of a token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 1024;
/// Maximum length of the reason of a refusal, in bytes.
pub const REASON_BYTES_MAX: usize = 1024;

/// A contiguous range of bytes in a data segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Offset from the start of the segment.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl Extent {
    /// The offset after the range; `None` on overflow.
    #[must_use]
    pub fn end(self) -> Option<u64> {
        self.offset.checked_add(self.len)
    }
}

/// The part `offset .. offset + len` of the bytes that `extents` hold in order; `None` if they hold fewer.
///
/// ```
/// # use tiffin_transport::{Extent, cut};
/// let extents = [Extent { offset: 64, len: 10 }, Extent { offset: 512, len: 10 }];
/// assert_eq!(cut(&extents, 8, 4).unwrap(), [Extent { offset: 72, len: 2 }, Extent { offset: 512, len: 2 }]);
/// assert_eq!(cut(&extents, 18, 4), None);
/// ```
#[must_use]
pub fn cut(extents: &[Extent], offset: u64, len: u64) -> Option<Vec<Extent>> {
    let mut skip = offset;
    let mut left = len;
    let mut pieces = Vec::new();
    for extent in extents {
        if skip >= extent.len {
            skip -= extent.len;
            continue;
        }
        let take = left.min(extent.len - skip);
        if take > 0 {
            pieces.push(Extent { offset: extent.offset.checked_add(skip)?, len: take });
        }
        (skip, left) = (0, left - take);
    }
    (left == 0 && skip == 0).then_some(pieces)
}

/// A read of one range of one slot into buffers, filled in order; the range is as long as they are together.
#[derive(Clone, Debug)]
pub struct ReadOp<'a> {
    /// The slot in the control segment.
    pub slot: u32,
    /// The use of that slot.
    pub stamp: u64,
    /// Start of the range within the object's bytes.
    pub offset: u64,
    /// Destination buffers.
    pub targets: Vec<TargetBuf<'a>>,
}

impl ReadOp<'_> {
    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.targets.iter().fold(0, |sum, target| sum.saturating_add(target.len() as u64))
    }
}

/// A write of buffers, in order, into one range of one reserved slot.
#[derive(Clone, Debug)]
pub struct WriteOp<'a> {
    /// The slot in the control segment.
    pub slot: u32,
    /// The use of that slot: the writer's token.
    pub stamp: u64,
    /// Start of the range within the object's bytes.
    pub offset: u64,
    /// Source buffers.
    pub sources: Vec<SourceBuf<'a>>,
}

impl WriteOp<'_> {
    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.sources.iter().fold(0, |sum, source| sum.saturating_add(source.len() as u64))
    }
}

/// Why bytes were not moved. The content of a read's buffer is then unspecified.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// The slot does not hold that stamp, or is no longer writable: resolve or reserve again.
    #[error("the slot no longer holds the requested stamp")]
    Stale,
    /// The node disconnected during the transfer or could not be reached: try another replica.
    #[error("lost {peer}: {why}")]
    Lost {
        /// Address of the node.
        peer: String,
        /// The cause.
        why: String,
    },
    /// The node rejects this client; a retry does not help.
    #[error("{peer} refused: {reason}")]
    Refused {
        /// Address of the node.
        peer: String,
        /// The node's reason.
        reason: String,
    },
    /// The deadline passed.
    #[error("the deadline passed before the bytes were moved")]
    Timeout,
    /// The bytes, or the slot's record, are not what was written: try another replica.
    #[error("the bytes are damaged")]
    Corrupt,
    /// The range is not inside the slot's bytes.
    #[error("the range is outside the bytes of the slot")]
    OutOfRange,
    /// The disk that has the bytes cannot read them now: try another replica.
    #[error("the disk cannot read the bytes")]
    Unreadable,
    /// A device could not copy the bytes; another replica does not help.
    #[error("the device could not copy the bytes: {0}")]
    Device(#[from] tiffin_gpu::DeviceError),
    /// The memory was mapped by a parent process and is not mapped in this one: attach again.
    #[error("the memory was mapped before this process was forked\n\nhint: connect again in the child")]
    Forked,
}

/// The result of one operation of a batch.
pub type Outcome = Result<(), TransferError>;

/// The results of a batch, in the order of its operations.
pub type Outcomes<'a> = Pin<Box<dyn Future<Output = Vec<Outcome>> + Send + 'a>>;

/// Properties of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// `local`, `shm` or `tcp`.
    pub name: &'static str,
    /// The node is on the same host.
    pub same_host: bool,
    /// The bytes can be read in place.
    pub can_view: bool,
}

/// Moves bytes to and from one node's memory. A single operation is a batch of one.
///
/// Dropping a future is safe at any time: from then on no buffer of its operations is touched.
pub trait Transport: Send + Sync {
    /// The properties of this transport.
    fn capability(&self) -> Capability;

    /// Copies ranges of slots into buffers, and then requires the stamps.
    fn read<'a>(&'a self, ops: &'a [ReadOp<'a>], deadline: Instant) -> Outcomes<'a>;

    /// Copies buffers into ranges of slots that are reserved under these stamps.
    fn write<'a>(&'a self, ops: &'a [WriteOp<'a>], deadline: Instant) -> Outcomes<'a>;
}

/// Bytes moved in each direction.
#[derive(Debug, Default)]
pub struct Moved {
    read: AtomicU64,
    written: AtomicU64,
}

impl Moved {
    /// Bytes read from segments.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Bytes written to segments.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Counts bytes read from segments.
    pub fn add_read(&self, bytes: u64) {
        self.read.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes written to segments.
    pub fn add_written(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Bytes moved, by transport. A zero proves that no byte crossed a socket.
#[derive(Debug, Default)]
pub struct Counters {
    /// By this process's clients inside this process.
    pub local: Moved,
    /// By this process's clients through mappings of another process's memory.
    pub shm: Moved,
    /// By this process's clients through sockets.
    pub tcp: Moved,
    /// By this process's nodes, for clients, through sockets.
    pub served: Moved,
    /// How long each of these took.
    pub served_times: tiffin_measure::Measures,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(list: &[(u64, u64)]) -> Vec<Extent> {
        list.iter().map(|&(offset, len)| Extent { offset, len }).collect()
    }

    #[test]
    fn range_is_cut_out_of_extents() {
        let whole = extents(&[(100, 10), (0, 5), (50, 1)]);
        for (offset, len, expected) in [
            (0, 16, Some(vec![(100, 10), (0, 5), (50, 1)])),
            (0, 0, Some(vec![])),
            (16, 0, Some(vec![])),
            (10, 5, Some(vec![(0, 5)])),
            (9, 7, Some(vec![(109, 1), (0, 5), (50, 1)])),
            (3, 2, Some(vec![(103, 2)])),
            (16, 1, None),
            (17, 0, None),
            (0, 17, None),
            (u64::MAX, u64::MAX, None),
        ] {
            let expected = expected.map(|list| extents(&list));
            assert_eq!(cut(&whole, offset, len), expected, "{offset}+{len}");
        }
        assert_eq!(cut(&[], 0, 0), Some(vec![]));
    }
}
