//! Work of a client that no caller waits for.

use tiffin_types::message::Reply;
use tiffin_types::{Location, SegmentId};

/// Work that no caller waits for.
#[derive(Debug)]
pub(crate) enum Chore {
    /// Give reservations back.
    Abort(Vec<Location>),
    /// Undo what a late reply says.
    Late(Reply),
    /// End views on this node, or make sure that it knows which there are.
    EndViews(SegmentId),
    /// End a lease that a master granted.
    Release {
        /// The epoch of the master.
        epoch: u64,
        /// Its number.
        lease: u64,
    },
}
