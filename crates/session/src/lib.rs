//! A client's put or get as a state machine: which request to send next, when to retry, when to use another
//! copy.
//!
//! The shell calls `poll` until it returns `None`, carries out each [`Need`] (concurrently if it likes),
//! reports each result, and polls again. When `poll` returns `None` and nothing is in progress, the
//! outcomes are ready. The shell enforces deadlines: it simply stops.

mod backoff;
mod get;
mod locations;
mod pace;
mod preallocation;
mod put;
#[cfg(test)]
mod tests;
mod views;

pub use backoff::{Backoff, BackoffLimits, DOWN_AFTER};
pub use get::{Distance, Get, GetOutcome, GetRequest, ReadResult};
pub use locations::{CachedGet, LocationCache, Reach, Seen, SeenState, is_valid_cached};
pub use pace::{PACES_MAX, Pace, STALL_US_MAX, STALL_US_MIN};
pub use preallocation::{OfferLimits, OfferOrder, OfferRound, OfferSize, Preallocation};
pub use put::{Put, PutOutcome, PutRequest, WriteResult};
pub use views::Views;

use tiffin_types::mutant;
use tiffin_types::{
    Location, Reservation, SegmentId,
    message::{ClientToMaster, ClientToNode},
};

/// Identifies a need, so that its result can be matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NeedId(pub u64);

/// An action that a session needs to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// Send a request to the master, and report the reply.
    AskMaster {
        /// Reported with the reply.
        id: NeedId,
        /// The request.
        request: ClientToMaster,
    },
    /// Send a request to a storage node, and report the reply.
    AskNode {
        /// Reported with the reply.
        id: NeedId,
        /// The node.
        segment: SegmentId,
        /// The request.
        request: ClientToNode,
        /// There is no other way: see [`Need::Read::waits`].
        waits: bool,
    },
    /// Write all bytes of an item into a reservation.
    Write {
        /// Reported with the result.
        id: NeedId,
        /// The item with the bytes.
        item: usize,
        /// The destination.
        reservation: Reservation,
        /// There is no other way: see [`Need::Read::waits`].
        waits: bool,
    },
    /// Read an object into an item's buffer, and check the stamp after the copy.
    Read {
        /// Reported with the result.
        id: NeedId,
        /// The item with the buffer.
        item: usize,
        /// The source.
        location: Location,
        /// The length of the object.
        len: u64,
        /// For a cached location: the epoch in which the object was named. After the copy, the read must be
        /// checked with [`is_valid_cached`].
        cached_epoch: Option<u64>,
        /// No other copy is left. If the node is being left alone ([`Backoff`]), wait for the next attempt to
        /// reach it; otherwise such a node has failed at once.
        waits: bool,
    },
    /// Stop a read before it writes to its buffer again, and report its result so far;
    /// [`ReadResult::Yielded`] if it is not complete.
    Stop {
        /// The read.
        id: NeedId,
    },
}

/// Why a call has no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallFailure {
    /// The peer cannot be reached, or the connection broke before the reply arrived.
    Unreachable,
    /// The peer rejected the request; a retry does not help.
    Refused(tiffin_types::message::Refusal),
    /// A commit with the object's bytes inside was not sent, so nothing was stored or named.
    Unwritten,
}

/// Why the outcome of an item is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreached {
    /// This call failed. The shell has its error.
    Call(NeedId),
    /// Another reason, as text.
    Other(&'static str),
}
