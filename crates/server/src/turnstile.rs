//! The turnstile in front of a core: few requests of clients are decided at a time, and when more wait, the
//! clients take turns ([`Turns`]).
//!
//! A connection's task enters before it passes a request to the core, and leaves when the core has decided.
//! As long as there is a free place, entering and leaving are one atomic operation each. Otherwise the task
//! waits without a thread, so that a client with many connections does not occupy the threads of the others,
//! and reads no further request meanwhile. Members do not queue: what they report is part of every client's
//! request.
//!
//! **Invariant:** a place that becomes free goes to a request that waits, if there is one.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tiffin_core::master::LimitStat;
use tiffin_throttle::Turns;
use tiffin_types::message::{ClientToMaster, ClientToNode, Request};
use tokio::sync::oneshot;

use crate::access::Holder;

/// The maximum number of requests that are decided or about to be. The core decides one at a time; the others
/// keep it busy while a task wakes up.
const PLACES: u64 = 4;
/// Set while requests wait: then places are handed over under the lock.
const WAITS: u64 = 1 << 63;
/// The fixed cost of a request, as a number of items.
const REQUEST_COST: u64 = 8;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Turnstile {
    /// The number of places in use, and [`WAITS`].
    places: AtomicU64,
    // Held for a few operations on the queues; never across an await.
    turns: Mutex<Turns<oneshot::Sender<()>>>,
    /// The number of requests that had to wait so far.
    waited: AtomicU64,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Turnstile);

impl Turnstile {
    /// Waits for the turn of a request: of a client in a namespace, given as numbers.
    pub(crate) async fn enter(&self, who: (u64, u64), cost: u64) -> Turn<'_> {
        if self.try_enter() {
            return Turn(self);
        }
        let receiver = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            self.places.fetch_or(WAITS, Ordering::AcqRel);
            // A place may have become free before the flag was set.
            if turns.is_empty() && self.take_free_place() {
                self.places.fetch_and(!WAITS, Ordering::AcqRel);
                return Turn(self);
            }
            let (sender, receiver) = oneshot::channel();
            turns.push(who, cost, sender);
            receiver
        };
        self.waited.fetch_add(1, Ordering::Relaxed);
        let mut waiting = Waiting { turnstile: self, receiver, has_place: false };
        // The sender is dropped without a message only with the turnstile.
        _ = (&mut waiting.receiver).await;
        waiting.has_place = true;
        Turn(self)
    }

    /// Its use, for operators.
    pub(crate) fn stat(&self) -> LimitStat {
        let used = self.places.load(Ordering::Relaxed) & !WAITS;
        let reached = self.waited.load(Ordering::Relaxed);
        LimitStat { name: "requests_at_once", max: PLACES, used, reached }
    }

    fn try_enter(&self) -> bool {
        let places = self.places.load(Ordering::Relaxed);
        // Fails while requests wait, because the flag is a large number.
        places < PLACES
            && self.places.compare_exchange(places, places + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Takes a place although the flag is set.
    fn take_free_place(&self) -> bool {
        let change = |it: u64| ((it & !WAITS) < PLACES).then_some(it + 1);
        self.places.fetch_update(Ordering::AcqRel, Ordering::Relaxed, change).is_ok()
    }

    fn leave(&self) {
        let free = |it: u64| (it & WAITS == 0).then(|| it - 1);
        if self.places.fetch_update(Ordering::AcqRel, Ordering::Relaxed, free).is_ok() {
            return;
        }
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(next) = turns.pop() {
            // One whose connection has ended no longer waits.
            if next.send(()).is_ok() {
                return self.lower_flag(&turns);
            }
        }
        self.places.fetch_sub(1, Ordering::AcqRel);
        self.lower_flag(&turns);
    }

    fn lower_flag(&self, turns: &Turns<oneshot::Sender<()>>) {
        if turns.is_empty() {
            self.places.fetch_and(!WAITS, Ordering::AcqRel);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// A request that waits. If its connection ends when it has just got a place, the place goes to the next.
struct Waiting<'a> {
    turnstile: &'a Turnstile,
    receiver: oneshot::Receiver<()>,
    /// It knows that it has got a place.
    has_place: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.receiver.close();
        if !self.has_place && self.receiver.try_recv().is_ok() {
            self.turnstile.leave();
        }
    }
}

/// A namespace as a group that takes turns.
pub(crate) fn group(namespace: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    namespace.hash(&mut hasher);
    hasher.finish()
}

/// The group of a client: its namespace, or its token if that has a share of its own.
pub(crate) fn group_of(holder: &Holder, namespace: &str) -> u64 {
    holder.own_share().unwrap_or_else(|| group(namespace))
}

/// The cost of a request: its items, and a little for the request itself.
pub(crate) fn cost(request: &Request) -> u64 {
    let items = match request {
        Request::ClientToMaster(request) => master_items(request),
        Request::ClientToNode(request) => node_items(request),
        Request::Hello(_) | Request::Goodbye | Request::MemberToMaster(_) | Request::MasterToMember(_) => 0,
    };
    REQUEST_COST.saturating_add(items as u64)
}

fn node_items(request: &ClientToNode) -> usize {
    match request {
        ClientToNode::Commit(it) => it.items.len(),
        // The bytes come with it.
        ClientToNode::Store(it) => {
            let bytes: usize = it.bytes.iter().map(Vec::len).sum();
            it.commit.items.len().saturating_add(bytes >> 10)
        }
        ClientToNode::Abort(it)
        | ClientToNode::Keep(it)
        | ClientToNode::BeginViews(it)
        | ClientToNode::EndViews(it)
        | ClientToNode::KeepViews(it) => it.len(),
    }
}

fn master_items(request: &ClientToMaster) -> usize {
    match request {
        ClientToMaster::Resolve(it) => it.keys.len(),
        ClientToMaster::Exists(it) => it.keys.len(),
        ClientToMaster::Reserve(it) => it.items.len().saturating_mul((it.spare as usize).max(1)),
        ClientToMaster::Publish(it) => it.items.len(),
        ClientToMaster::Delete(it) => it.keys.len(),
        ClientToMaster::Pin(it) => it.keys.len(),
        ClientToMaster::Prefetch(it) => it.keys.len(),
        ClientToMaster::Why(it) => it.keys.len(),
        ClientToMaster::Lease(it) => it.items.len(),
        ClientToMaster::Ack(it) => it.items.len(),
        ClientToMaster::Release(it) => it.leases.len(),
        ClientToMaster::KeepLeases(it) => it.len(),
        // Pages and pieces of a bounded size.
        ClientToMaster::List(_)
        | ClientToMaster::DeleteMatching(_)
        | ClientToMaster::DropPins(_)
        | ClientToMaster::Stat => 1 << 10,
        ClientToMaster::Ping(_)
        | ClientToMaster::SetPolicy(_)
        | ClientToMaster::ForgetNode(_)
        | ClientToMaster::AdmitCluster(_)
        | ClientToMaster::Await(_)
        | ClientToMaster::Cancel(_)
        | ClientToMaster::OpenStream(_)
        | ClientToMaster::EndStream(_)
        | ClientToMaster::Pull(_) => 1,
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Whether a future is ready; it is polled once.
    macro_rules! poll {
        ($future:expr) => {
            $future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        };
    }

    #[test]
    fn places_are_handed_to_clients_in_turn() {
        let turnstile = Turnstile::default();
        let mut first: Vec<_> = (0..PLACES).map(|_| pin_now(turnstile.enter((1, 1), 1))).collect();
        let mut busy: Vec<_> = (0..3).map(|_| Box::pin(turnstile.enter((1, 1), 1))).collect();
        assert!(busy.iter_mut().all(|it| poll!(it).is_pending()));
        let mut other = pin!(turnstile.enter((1, 2), 1));
        assert!(poll!(other).is_pending());
        let stat = turnstile.stat();
        assert_eq!((stat.max, stat.used, stat.reached), (PLACES, PLACES, 4));
        drop(first.pop());
        drop(first.pop());
        let Poll::Ready(turn) = poll!(other) else { panic!("the other client does not get its turn") };
        let served = busy.iter_mut().filter_map(|it| match poll!(it) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        });
        let served: Vec<_> = served.collect();
        assert_eq!(served.len(), 1, "the first of the busy client came first");
        drop((turn, first));
    }

    #[test]
    fn place_of_a_closed_connection_is_not_lost() {
        let turnstile = Turnstile::default();
        let first: Vec<_> = (0..PLACES).map(|_| pin_now(turnstile.enter((1, 1), 1))).collect();
        let mut gone = Box::pin(turnstile.enter((1, 2), 1));
        let mut got = Box::pin(turnstile.enter((1, 3), 1));
        assert!(poll!(gone).is_pending() && poll!(got).is_pending());
        // It has got a place and does not know it yet.
        drop(first);
        drop((gone, got));
        let all: Vec<_> = (0..PLACES).map(|_| pin_now(turnstile.enter((1, 1), 1))).collect();
        assert_eq!(turnstile.places.load(Ordering::Relaxed), PLACES);
        drop(all);
        assert_eq!(turnstile.places.load(Ordering::Relaxed), 0);
    }

    fn pin_now<'a>(entering: impl Future<Output = Turn<'a>>) -> Turn<'a> {
        let mut entering = pin!(entering);
        match poll!(entering) {
            Poll::Ready(turn) => turn,
            Poll::Pending => panic!("there is a free place"),
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_place_and_no_request_is_lost() {
        let turnstile = std::sync::Arc::new(Turnstile::default());
        let tasks: Vec<_> = (0..64_u64)
            .map(|client| {
                let turnstile = std::sync::Arc::clone(&turnstile);
                tokio::spawn(async move {
                    for round in 0..200 {
                        let turn = turnstile.enter((client % 3, client), 1 + round % 5).await;
                        tokio::task::yield_now().await;
                        drop(turn);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(turnstile.places.load(Ordering::Relaxed), 0);
        assert!(turnstile.stat().reached > 0);
    }
}
