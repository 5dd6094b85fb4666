//! Checks recorded histories of calls on one key: whether some order of the calls explains every answer.
//!
//! A history is linearizable if each call can be given one moment between its begin and its end, so that the
//! answers are those of a store that performs one call at a time. Keys are independent, so each key has a
//! history of its own: a set of such histories is linearizable if each of them is (Herlihy and Wing, 1990).
//!
//! The rules of one key are those that the store promises, no more:
//!
//! - A call whose outcome is unknown (a timeout, a lost connection, a killed client) stays *open*: it takes
//!   effect at any later moment, or never.
//! - After a change that is not confirmed by every node, a read may return the value before it, through a
//!   cached location. The next confirmed change of the key ends that.
//! - An object that may be evicted can disappear at any moment ([`Loss::Anytime`]). One whose node was killed
//!   can disappear once: an open call with [`Guard::Fragile`] and [`Change::Clear`].
//!
//! The crate has no I/O, no clock and no dependencies. `tiffin chaos` records histories and checks them here.

mod register;
mod search;

pub use search::{OPERATIONS_MAX, STEPS_MAX};

/// A call on one key, with what was learned of its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// When it began, on a clock that all callers share.
    pub begin: u64,
    /// When its answer came. Without one the call stays open.
    pub end: Option<u64>,
    /// What its answer says of the key at the moment of the call. For an open call, the condition under which
    /// it has an effect.
    pub guard: Guard,
    /// What it changes.
    pub change: Change,
    /// Whether every node has confirmed the change.
    pub is_confirmed: bool,
}

/// The state of the key in which a call can have its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Any.
    Any,
    /// The key has no object.
    Absent,
    /// The key has an object.
    Present,
    /// The key has an object that can be lost with one node.
    Fragile,
    /// The key has this value.
    Is(u64),
    /// The key has another value, or none.
    IsNot(u64),
    /// A read returned this value, perhaps through a cached location.
    Read(u64),
}

/// What a call does to the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    Keep,
    /// Stores a value. A fragile value can be lost with one node.
    Set {
        /// The value: unique in its history.
        value: u64,
        /// See [`Guard::Fragile`].
        is_fragile: bool,
    },
    /// Removes the object.
    Clear,
}

/// When an object can disappear without a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Never: it is protected.
    Never,
    /// At any moment: it may be evicted.
    Anytime,
}

/// Why a history was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// No order of the calls explains the answers.
    Violation {
        /// The call, by its position in the history, at which the longest explanation ends.
        operation: usize,
        /// The number of calls that this explanation covers.
        explained: usize,
    },
    /// The history is longer than [`OPERATIONS_MAX`], so it was not checked.
    TooLong {
        /// Its length.
        operations: usize,
    },
    /// The search ended after [`STEPS_MAX`] steps without a result.
    Undecided,
}

impl std::fmt::Display for Rejection {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Violation { operation, explained } => {
                write!(out, "call {operation} has no explanation, after {explained} that have one")
            }
            Self::TooLong { operations } => write!(
                out,
                "the history has {operations} calls, of which {OPERATIONS_MAX} can be checked\n\n\
                 hint: record fewer calls per key, or use more keys"
            ),
            Self::Undecided => write!(
                out,
                "the history was not decided in {STEPS_MAX} steps\n\nhint: record fewer calls per key, or \
                 fewer at the same time"
            ),
        }
    }
}

impl std::error::Error for Rejection {}

impl Operation {
    /// A call that was answered.
    #[must_use]
    pub fn answered(begin: u64, end: u64, guard: Guard, change: Change) -> Self {
        Self { begin, end: Some(end), guard, change, is_confirmed: true }
    }

    /// A call whose outcome is unknown.
    #[must_use]
    pub fn open(begin: u64, guard: Guard, change: Change) -> Self {
        Self { begin, end: None, guard, change, is_confirmed: false }
    }

    /// The same with a change that not every node has confirmed.
    #[must_use]
    pub fn unconfirmed(self) -> Self {
        Self { is_confirmed: false, ..self }
    }
}

/// Whether the history of one key, which begins without an object, is linearizable.
///
/// # Errors
///
/// The history is not linearizable, or is too large to be decided.
pub fn check(history: &[Operation], loss: Loss) -> Result<(), Rejection> {
    search::search(history, loss, STEPS_MAX)
}
