//! Background work of a client: no caller waits for it.

use tiffin_types::message::Reply;
use tiffin_types::{Location, SegmentId};

/// Background work.
#[derive(Debug)]
pub(crate) enum Chore {
    /// Release reservations.
    Abort(Vec<Location>),
    /// Undo the effects of a late reply.
    Late(Reply),
    /// End views on this node, or send it the complete list of views.
    EndViews(SegmentId),
    /// End a lease that a master granted.
    Release {
        /// The epoch of the master.
        epoch: u64,
        /// Its number.
        lease: u64,
    },
}
