//! The transport to other hosts: a node's data socket.
//!
//! It is a small binary protocol of its own, apart from requests and replies: a fixed header, then bytes that
//! go straight from the caller's buffers into the segment and back ([`frame`] has the layout). A request
//! moves at most [`crate::CHUNK_BYTES_MAX`] bytes, and each one is checked against the slot's stamp.
//!
//! **Invariant:** between [`Keeper::begin_store`] and [`Keeper::end_store`], and between
//! [`Keeper::begin_send`] and [`Keeper::end_send`], the keeper does not let the bytes be reused. Each begin
//! that gave extents is followed by exactly one end, on every path, a cancelled task included.
//!
//! **Invariant:** a read counts only with a trailer that says that the stamp was still there after the last
//! byte was sent, and with the checksum of the bytes.
//!
//! **Invariant:** a stream on which a transfer broke off is closed: nothing that is still on its way can be
//! taken for the answer to something else.

mod batch;
mod client;
mod fetched;
pub mod frame;
mod line;
mod pool;
mod server;
pub mod stream;
mod sums;

pub use client::{Manner, Tcp};
pub use fetched::{Bytes, Fetch, Fetched, Staged, Unfetched};
pub use pool::{Connect, Connecting, Identity, STREAMS_MAX, TcpConnect};
pub use server::{Authorise, Hello, Keeper, PENDING_MAX, ServeError, Server};
pub use stream::{Waits, Wire};
