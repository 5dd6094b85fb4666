//! What a client asks of a storage node: commits, and references to objects in place.

use super::PutOptions;
use crate::{Generation, Key, Location, SlotRef};

/// A request of a client to a storage node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientToNode {
    /// Names objects whose bytes are written.
    Commit(Commit),
    /// A commit that contains the bytes. The node's shell writes them and passes a `Commit` to the core.
    Store(Store),
    /// Returns reservations that the client will not use.
    Abort(Vec<SlotRef>),
    /// Lists all reservations that the client knows on this node. All its others end, because the replies
    /// that granted them were lost.
    Keep(Vec<SlotRef>),
    /// Begins views: the memory of these objects is not reused while a view exists.
    BeginViews(Vec<SlotRef>),
    /// Ends views.
    EndViews(Vec<SlotRef>),
    /// Lists all views that the client has on this node, each object as often as it is viewed. All its others
    /// end, because their ends, or the replies that began them, were lost.
    KeepViews(Vec<SlotRef>),
}

/// See [`ClientToNode::Commit`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// One per object.
    pub items: Vec<CommitItem>,
    /// How long to wait for the nodes to confirm the retire of a replaced object, before the outcome is
    /// `Unconfirmed`.
    pub wait_ms: u64,
}

/// One object whose bytes are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitItem {
    /// The reservation on the home node.
    pub slot_ref: SlotRef,
    /// Its key.
    pub key: Key,
    /// Its size in bytes.
    pub len: u64,
    /// How it is stored.
    pub options: PutOptions,
    /// The copies on other nodes.
    pub others: Vec<Location>,
}

/// See [`ClientToNode::Store`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Store {
    /// The commit that follows the write.
    pub commit: Commit,
    /// For each item all of its bytes, or none if they were written before.
    pub bytes: Vec<Vec<u8>>,
}

/// The outcome of one [`CommitItem`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// It can be read, under a name that did not exist.
    Stored(Generation),
    /// It can be read; the older object of that name is retired.
    Replaced(Generation),
    /// It can be read, but some nodes have not confirmed the retire of the older object.
    Unconfirmed(Replacement),
    /// An object of that name exists and was kept.
    Exists(Generation),
    /// The reservation has ended, and nothing was stored.
    Stale,
    /// It is not there. It may have been stored by a decision whose answer was lost, and removed since. A
    /// writer that puts it again would bring its value back.
    Removed,
}

/// A new object whose predecessor may still be read: some nodes have not confirmed its retire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replacement {
    /// Which put of the key the new object is.
    pub generation: Generation,
    /// It replaced the older object; else that was removed before.
    pub replaced: bool,
    /// Nodes that have not confirmed. They must before they serve again.
    pub nodes: Vec<String>,
}
