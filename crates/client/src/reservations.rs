//! What this client has reserved, so that all of it comes back.
//!
//! A node gives the room under a reservation back when the writer says so or is proven dead, never because
//! time passed. A client that lives on must therefore account for each one it was ever given:
//!
//! 1. A put that ends early, by its deadline or because its future was dropped, aborts what it still holds.
//!    Its copies run inside its own future, so by then none of them can still be writing.
//! 2. An answer to a reservation that nobody waits for any more is aborted when it arrives.
//! 3. An answer that was lost with its connection tells nobody what it contained. So after the connection
//!    to the master was replaced, and before anything else is reserved, each node is told what the client
//!    knows that it holds there ([`Keep`](tiffin_types::message::ClientToNode::Keep)), and gives the rest
//!    back. No reservation may be on its way meanwhile: the node would take it for one that was lost. The
//!    lock [`Reservations::gate`] sees to that.
//! 4. Room that was reserved ahead of its bytes ([`Reserved`](crate::Reserved)) is known like that of a put,
//!    until it is used, released or dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tiffin_types::{Location, SegmentId, SlotRef};
use tokio::sync::{RwLock, mpsc};

use crate::chores::Chore;

/// Everything that is reserved for this client, as far as it knows.
#[derive(Default)]
pub(crate) struct Reservations {
    known: Mutex<BTreeMap<SegmentId, BTreeSet<SlotRef>>>,
    /// Nodes that must hear what is known before anything else is reserved.
    owed: Mutex<BTreeSet<SegmentId>>,
    /// Held for reading from before a `Reserve` is sent until its answer is in [`Self::known`], for writing
    /// while `Keep` is said. It is the one lock that is held across I/O, and every wait for it has a
    /// deadline.
    pub(crate) gate: RwLock<()>,
}

impl Reservations {
    pub(crate) fn add(&self, location: Location) {
        lock(&self.known).entry(location.segment).or_default().insert(location.slot_ref());
    }

    pub(crate) fn remove(&self, location: Location) {
        let mut known = lock(&self.known);
        if let Some(slot_refs) = known.get_mut(&location.segment) {
            slot_refs.remove(&location.slot_ref());
            if slot_refs.is_empty() {
                known.remove(&location.segment);
            }
        }
    }

    /// What is reserved on one node.
    pub(crate) fn on(&self, segment: SegmentId) -> Vec<SlotRef> {
        lock(&self.known).get(&segment).into_iter().flatten().copied().collect()
    }

    /// These nodes must be told, because answers of the master may have been lost.
    pub(crate) fn owe(&self, segments: impl IntoIterator<Item = SegmentId>) {
        lock(&self.owed).extend(segments);
    }

    /// The nodes that must be told.
    pub(crate) fn owed(&self) -> Vec<SegmentId> {
        lock(&self.owed).iter().copied().collect()
    }

    /// This one was told, or is gone.
    pub(crate) fn told(&self, segment: SegmentId) {
        lock(&self.owed).remove(&segment);
    }
}

/// What one put holds. Whatever is left when it is dropped is given back, behind the caller's back.
pub(crate) struct Held<'a> {
    all: &'a Reservations,
    chores: &'a mpsc::UnboundedSender<Chore>,
    mine: Mutex<BTreeSet<Location>>,
}

impl<'a> Held<'a> {
    pub(crate) fn new(all: &'a Reservations, chores: &'a mpsc::UnboundedSender<Chore>) -> Self {
        Self { all, chores, mine: Mutex::default() }
    }

    /// The master says that this is ours.
    pub(crate) fn take(&self, location: Location) {
        self.all.add(location);
        lock(&self.mine).insert(location);
    }

    /// Somebody else answers for it from now on.
    pub(crate) fn let_go(&self, location: Location) {
        lock(&self.mine).remove(&location);
    }

    /// The node says that it is an object now, or free.
    pub(crate) fn settle(&self, location: Location) {
        lock(&self.mine).remove(&location);
        self.all.remove(location);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let left: Vec<_> = std::mem::take(&mut *lock(&self.mine)).into_iter().collect();
        if !left.is_empty() {
            // It fails only when the client itself is gone, and then it has said goodbye.
            let _gone = self.chores.send(Chore::Abort(left));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each use is one change of a set, so nothing can be half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
