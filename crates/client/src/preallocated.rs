//! Requests preallocated memory in the background, so that a put of a small object needs no reserve call.
//!
//! `session::Preallocation` decides what to request and which offer a put uses; this module makes the
//! calls.
//!
//! **Invariant:** [`Reservations`](crate::reservations::Reservations) knows every offer here, like the
//! reservation of a put. A put uses it, or the client returns it.

use std::sync::Weak;
use std::time::Duration;

use tiffin_session::{OfferOrder, OfferRound};
use tiffin_types::message::{Reply, ReserveOutcome};
use tiffin_types::{Reservation, SegmentId};

use crate::chores::Chore;
use crate::inner::Inner;
use crate::reservations::{PutReservations, size_of};
use crate::{Deadline, Put};

/// Interval of the checks for pauses.
const ROUND: Duration = Duration::from_millis(100);
/// How long a request may take.
const ASK_TIME_MAX: Duration = Duration::from_secs(2);

/// Returns all offers of this node in the background. Called after a reservation there was invalid: the
/// node lacks memory, or is another one.
pub(crate) fn give_back(inner: &Inner, segment: SegmentId) {
    let all = &inner.offers;
    let left = all.lock().clear(segment, all.now_us());
    if !left.is_empty() {
        // It fails only if the client itself was dropped. Then its disconnect released the offers.
        let _gone = inner.chores.send(Chore::Abort(left));
    }
}

/// Requests offers in the background, if more puts like the last one are expected.
pub(crate) fn restock(inner: &Inner, puts: &[Put<'_>]) {
    let Some(size) = puts.last().and_then(size_of) else { return };
    let all = &inner.offers;
    let order = all.lock().order(size, all.now_us());
    if let Some(order) = order {
        inner.runtime.spawn(fetch(inner.weak(), order));
    }
}

async fn fetch(client: Weak<Inner>, order: OfferOrder) {
    let Some(inner) = client.upgrade() else { return };
    let needs_task = fill(&inner, order).await;
    drop(inner);
    if needs_task {
        keep(client).await;
    }
}

/// Requests offers and keeps them. Returns whether a task must be started to maintain them.
async fn fill(inner: &Inner, order: OfferOrder) -> bool {
    // A closed client does not reconnect, and a client that closes waits for this call first.
    let Ok(_busy) = inner.enter("preallocate", Deadline::after(ASK_TIME_MAX)) else { return false };
    let offers = reserve(inner, order).await;
    let all = &inner.offers;
    let (left, needs_task) = all.lock().stock(order, offers, all.now_us());
    let left: Vec<_> = left.into_iter().map(|it| it.location).collect();
    if !left.is_empty() {
        let _gone = inner.chores.send(Chore::Abort(left));
    }
    needs_task
}

async fn reserve(inner: &Inner, order: OfferOrder) -> Vec<Reservation> {
    let Some(reserve) = order.request() else { return Vec::new() };
    let held = PutReservations::new(&inner.reservations, &inner.chores);
    let deadline = Deadline::after(ASK_TIME_MAX);
    let Ok(Reply::Reserved(reserved)) = inner.reserve(reserve, &held, deadline).await else {
        return Vec::new();
    };
    let offers = reserved.items.into_iter().filter_map(|it| match it {
        ReserveOutcome::Space(offers) => Some(offers),
        _ => None,
    });
    let offers: Vec<_> = offers.flatten().collect();
    offers.iter().for_each(|it| held.let_go(it.location));
    offers
}

/// Checks for pauses and idle sizes until there are no offers. An idle client has no timer.
async fn keep(client: Weak<Inner>) {
    loop {
        tokio::time::sleep(ROUND).await;
        // A closed client has disconnected, and has no offers.
        let Some(inner) = client.upgrade().filter(|it| !it.is_closed()) else { return };
        let all = &inner.offers;
        let OfferRound { idle, orders, is_last } = all.lock().round(all.now_us());
        if !idle.is_empty() {
            let _gone = inner.chores.send(Chore::Abort(idle));
        }
        for order in orders {
            fill(&inner, order).await;
        }
        if is_last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tiffin_types::{Key, Location, SlotId, Stamp};

    use super::*;
    use crate::{Client, ConnectOptions};

    fn put(name: &str, bytes: &'static [u8]) -> Put<'static> {
        Put::new(Key::new(name.as_bytes()).unwrap(), bytes)
    }

    /// Puts until more of that size are expected, and returns the order then.
    fn first_order(inner: &Inner, put: &Put<'_>) -> OfferOrder {
        let all = &inner.offers;
        loop {
            assert!(all.take(put).is_none());
            let order = all.lock().order(size_of(put).unwrap(), all.now_us());
            if let Some(order) = order {
                return order;
            }
        }
    }

    /// A store in this process, and a client that reaches its memory without a mapping of its own.
    async fn start(memory: u64) -> (tiffin_server::Embedded, Client) {
        let store = tiffin_server::Embedded::start(memory).await.unwrap();
        let options = ConnectOptions {
            home: Some(store.node().segment()),
            own_memory: Some(store.node().memory().clone()),
            ..ConnectOptions::new(store.address().to_string())
        };
        (store, Client::connect(options).await.unwrap())
    }

    #[tokio::test]
    async fn closed_client_requests_no_offers() {
        let (_store, client) = start(4 << 20).await;
        let inner = &client.inner;
        let put = put("k", b"four");
        let order = first_order(inner, &put);
        client.close(Deadline::after(ASK_TIME_MAX)).await.unwrap();
        fetch(inner.weak(), order).await;
        assert!(inner.current_master().is_none() && inner.offers.take(&put).is_none());
        let location = Location { segment: SegmentId(1), slot: SlotId(1), stamp: Stamp(1) };
        let offers = vec![Reservation { location, extents: Vec::new() }];
        let all = &inner.offers;
        assert_eq!(all.lock().stock(order, offers, all.now_us()), (Vec::new(), true));
        keep(inner.weak()).await;
        assert!(inner.current_master().is_none(), "its task does not connect");
    }

    #[tokio::test]
    async fn another_client_gets_preallocated_memory() {
        const ALL: usize = 4 << 20;
        let (store, client) = start(ALL as u64).await;
        let other = Client::connect(client.options().clone()).await.unwrap();
        let (inner, deadline) = (&client.inner, Deadline::after(Duration::from_secs(60)));
        let small = put("small", b"four");
        let order = first_order(inner, &small);
        // No task maintains the offers, so they stay.
        assert!(fill(inner, order).await);
        let segment = store.node().segment();
        let count = inner.reservations.on(segment).len();
        assert!(count > 0 && count == inner.offers.lock().offers().count());
        assert_eq!(store.node().usage().free, ALL as u64, "offers count as free");
        let large = vec![7; ALL];
        let stored = other.put(&[Put::new(Key::new(b"large").unwrap(), &large)], deadline).await;
        assert!(matches!(stored.as_slice(), [Ok(_)]), "{stored:?}");
        // A put into a recalled offer reserves anew, and evicts.
        let stored = client.put(std::slice::from_ref(&small), deadline).await;
        assert!(matches!(stored.as_slice(), [Ok(_)]), "{stored:?}");
        assert!(inner.offers.take(&small).is_none(), "the other offers are returned, too");
        let all = &inner.offers;
        assert!(all.lock().order(size_of(&small).unwrap(), all.now_us()).is_none());
        other.close(deadline).await.unwrap();
        client.close(deadline).await.unwrap();
    }
}
