//! A client's put or get, as a state machine: what to ask whom next, when to retry, when to fall over.
//!
//! The shell calls `poll` until it gives nothing more, carries each [`Need`] out (many at a time if it
//! likes), reports each result, and polls again. When `poll` gives nothing and nothing is under way, the
//! outcomes are ready. Deadlines are the shell's: it simply stops.

mod get;
mod locations;
mod pace;
mod preallocation;
mod put;
#[cfg(test)]
mod tests;
mod views;

pub use get::{Distance, Get, GetOutcome, GetRequest, ReadResult};
pub use locations::{CachedGet, LocationCache, Reach, Seen, SeenState, is_valid_cached};
pub use pace::{PACES_MAX, Pace, STALL_US_MAX, STALL_US_MIN};
pub use preallocation::{OfferLimits, OfferOrder, OfferRound, OfferSize, Preallocation};
pub use put::{Put, PutOutcome, PutRequest, WriteResult};
pub use views::Views;

use tiffin_types::sabotage;
use tiffin_types::{
    Location, Reservation, SegmentId,
    message::{ClientToMaster, ClientToNode},
};

/// Names a need, so that its result finds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NeedId(pub u64);

/// What must be done for a session to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// Ask the master, and report the reply.
    AskMaster {
        /// Reported with the reply.
        id: NeedId,
        /// What.
        request: ClientToMaster,
    },
    /// Ask a storage node, and report the reply.
    AskNode {
        /// Reported with the reply.
        id: NeedId,
        /// Which.
        segment: SegmentId,
        /// What.
        request: ClientToNode,
    },
    /// Write the whole of an item's bytes into a reservation.
    Write {
        /// Reported with the result.
        id: NeedId,
        /// Which item's bytes.
        item: usize,
        /// Where they go.
        reservation: Reservation,
    },
    /// Read an object into an item's buffer, and check the stamp after the copy.
    Read {
        /// Reported with the result.
        id: NeedId,
        /// Which item's buffer.
        item: usize,
        /// From where.
        location: Location,
        /// How long the object is.
        len: u64,
        /// For a cached location: the epoch in which the object was named. After the copy, the read must be
        /// checked with [`is_valid_cached`].
        cached_epoch: Option<u64>,
    },
    /// Stop a read before it touches its buffer again, and report what became of it until then;
    /// [`ReadResult::Yielded`] if it did not come to its end.
    Stop {
        /// The read.
        id: NeedId,
    },
}

/// Why a call brought no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallFailure {
    /// The peer cannot be reached, or the connection broke before the answer came.
    Unreachable,
    /// The peer refused; trying again does not help.
    Refused(tiffin_types::message::Refusal),
    /// A commit with the object's bytes inside was not sent, so nothing was stored or named.
    Unwritten,
}

/// Why the outcome of an item is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreached {
    /// This call failed. The shell knows how.
    Call(NeedId),
    /// Another reason, in words.
    Other(&'static str),
}
