//! The reservations of this client, so that every one is returned.
//!
//! A node releases reserved memory when the writer says so or is proven dead, never because time passed.
//! Therefore a running client must account for every reservation it received:
//!
//! 1. A put that ends early, by its deadline or because its future was dropped, aborts its reservations.
//!    Its copies run inside its own future, so no copy can still be writing then.
//! 2. If a reply to a reservation arrives after its caller stopped waiting, the client aborts it.
//! 3. A reply that was lost with its connection may have contained reservations. So after a reconnect to the
//!    master the client sends each node the list of reservations it knows there
//!    ([`Keep`](tiffin_types::message::ClientToNode::Keep)), and the node releases the rest. The client does
//!    that before it reserves anything else. No reserve request may be in flight meanwhile, because the node
//!    would release its reservation as lost. The lock [`Reservations::gate`] ensures that.
//! 4. Space that was reserved before its bytes exist ([`Reserved`](crate::Reserved)) is tracked like that
//!    of a put, until it is used, released or dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tiffin_session::{OfferSize, Preallocation};
use tiffin_types::{Location, Reservation, SegmentId, SlotRef};
use tokio::sync::{RwLock, mpsc};
use tokio::time::Instant;

use crate::Put;
use crate::chores::Chore;

/// Every reservation that this client knows it has.
#[derive(Default)]
pub(crate) struct Reservations {
    known: Mutex<BTreeMap<SegmentId, BTreeSet<SlotRef>>>,
    /// Nodes that must receive the list before anything else is reserved.
    owed: Mutex<BTreeSet<SegmentId>>,
    /// Held for reading from before a `Reserve` is sent until its reply is in [`Self::known`]; held for
    /// writing during `Keep`. It is held across I/O; every wait for it has a deadline.
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

    /// The reservations on one node.
    pub(crate) fn on(&self, segment: SegmentId) -> Vec<SlotRef> {
        lock(&self.known).get(&segment).into_iter().flatten().copied().collect()
    }

    /// These nodes must receive the list, because replies of the master may have been lost.
    pub(crate) fn owe(&self, segments: impl IntoIterator<Item = SegmentId>) {
        lock(&self.owed).extend(segments);
    }

    /// The nodes that must receive the list.
    pub(crate) fn owed(&self) -> Vec<SegmentId> {
        lock(&self.owed).iter().copied().collect()
    }

    /// This node has received the list, or has left.
    pub(crate) fn received(&self, segment: SegmentId) {
        lock(&self.owed).remove(&segment);
    }
}

/// The reservations of one put. Those left when it is dropped are released in the background.
pub(crate) struct PutReservations<'a> {
    all: &'a Reservations,
    chores: &'a mpsc::UnboundedSender<Chore>,
    mine: Mutex<BTreeSet<Location>>,
}

impl<'a> PutReservations<'a> {
    pub(crate) fn new(all: &'a Reservations, chores: &'a mpsc::UnboundedSender<Chore>) -> Self {
        Self { all, chores, mine: Mutex::default() }
    }

    /// The master granted this reservation.
    pub(crate) fn take(&self, location: Location) {
        self.all.add(location);
        lock(&self.mine).insert(location);
    }

    /// Another owner is responsible for this reservation from now on.
    pub(crate) fn let_go(&self, location: Location) {
        lock(&self.mine).remove(&location);
    }

    /// The node reports that the reservation is an object now, or free.
    pub(crate) fn settle(&self, location: Location) {
        lock(&self.mine).remove(&location);
        self.all.remove(location);
    }
}

impl Drop for PutReservations<'_> {
    fn drop(&mut self) {
        let left: Vec<_> = std::mem::take(&mut *lock(&self.mine)).into_iter().collect();
        if !left.is_empty() {
            // It fails only if the client itself was dropped. Then its disconnect released the
            // reservations.
            let _gone = self.chores.send(Chore::Abort(left));
        }
    }
}

/// The preallocated memory of a client: offers that its next puts may use.
#[derive(Debug)]
pub(crate) struct Offers {
    state: Mutex<Preallocation>,
    /// The origin of its times.
    start: Instant,
}

impl Offers {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::default(), start: Instant::now() }
    }

    /// Notes a put, and takes an offer for it if there is one.
    pub(crate) fn take(&self, put: &Put<'_>) -> Option<Reservation> {
        let size = size_of(put)?;
        self.lock().take(size, self.now_us())
    }

    pub(crate) fn now_us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Preallocation> {
        // Each use is a single change of one size, so a panic leaves no partial state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which offers fit a put.
pub(crate) fn size_of(put: &Put<'_>) -> Option<OfferSize> {
    OfferSize::of(&put.key, put.len()?, &put.options)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each use is a single change of a set, so a panic leaves no partial state.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
