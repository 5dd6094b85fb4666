//! The transport to other hosts: a node's data socket.
//!
//! It is a binary protocol of its own, separate from the control connection: a fixed header, then bytes that
//! go directly from the caller's buffers into the segment and back ([`frame`] has the layout). A request
//! moves at most [`crate::CHUNK_BYTES_MAX`] bytes, and each one is checked against the slot's stamp.
//!
//! **Invariant:** between [`SlotAccess::begin_store`] and [`SlotAccess::end_store`], and between
//! [`SlotAccess::begin_send`] and [`SlotAccess::end_send`], the node does not reuse the bytes. Each begin
//! that returned extents is followed by exactly one end, on every path, a cancelled task included.
//!
//! **Invariant:** a read counts only with a trailer that confirms that the slot still held the stamp after
//! the last byte was sent, and with the checksum of the bytes.
//!
//! **Invariant:** a stream with an incomplete transfer is closed: bytes still in flight cannot be taken for
//! the answer to another request.

mod batch;
mod buffered;
mod checksum_cache;
mod client;
mod disk;
#[cfg(test)]
mod divided;
pub mod frame;
mod grant;
mod listener;
mod pool;
mod secure;
mod server;
mod share;
pub mod stream;
mod together;
#[cfg(test)]
mod turns;

pub use client::{ReadOptions, Tcp};
pub use disk::{Bytes, Fetch, FetchError, Fetched, StagedBytes};
pub use grant::{Authorise, FetchReader, Grant, Hello, Unlimited};
pub use listener::{DataListener, Peer, local_address};
pub use pool::{Connect, Connecting, Identity, STREAMS_MAX, TcpConnect};
pub use server::{Applied, DataLimits, PENDING_MAX, ServeError, Server, SlotAccess};
pub use stream::{ByteStream, WaitMode};
