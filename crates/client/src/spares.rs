//! Room at hand for small objects, so that putting one asks nobody for room.
//!
//! Who has put several objects of one size in a row will put more of them, and who has done so a while ago
//! will do it again. So room for some is reserved ahead, behind the caller's back; a put then writes and
//! commits: one call less, and that the one which goes on from the master to a node. The master gives a
//! namespace little such room ([`Reserve::spare`]): of what is free where that is plenty, and less by
//! evicting what the puts to come would evict. It is given back when nothing of that size was put for a
//! moment, and at once when a put of this client finds no other. Whose puts come row after row keeps some for
//! the next one a little longer: the first put after a pause is the slowest anyway.
//!
//! The question takes processors that puts want, too, so a put that meets it is slow, and so is one that
//! wakes somebody who is to ask. So there is room for several rows, and who looks after it asks for more when
//! nobody puts; during a row it is asked for only if three quarters are gone.
//!
//! **Invariant:** what lies on a shelf is known to [`Reservations`](crate::reservations::Reservations), as
//! that of a put is. It leaves the shelf with a put, or is given back.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tiffin_core::message::{PutOptions, Reply, Request, Reserve, ReserveItem, ReserveOutcome};
use tiffin_core::{Key, Location, Reservation, SegmentId};
use tokio::time::Instant;

use crate::inner::Inner;
use crate::reservations::Held;
use crate::running::Running;
use crate::tend::Chore;
use crate::{Deadline, Put};

/// The largest objects that room is kept for; larger ones take longer to copy than to ask for.
const LEN_MAX: u64 = 2 << 20;
/// After that many puts of one size in a row more are expected, and such rows are remembered.
const ROW_MIN: u64 = 4;
/// Room is kept for so many rows.
const ROWS_AHEAD: u64 = 4;
/// The most room of one size.
const ROOMS_MAX: u64 = 1024;
/// The most room of one size, in bytes.
const BYTES_MAX: u64 = 32 << 20;
/// How many sizes are kept in mind.
const SIZES_MAX: usize = 8;
/// Puts that are further apart are not in a row. Room that was not used for so long is given back.
const MOMENT: Duration = Duration::from_millis(250);
/// Where nobody puts for so long, there is a pause.
const BREATH: Duration = Duration::from_millis(5);
/// How often room is looked after.
const ROUND: Duration = Duration::from_millis(100);
/// Where one row followed another, room is kept for so long.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// How long nothing is asked for after there was nothing; after there was too little, a [`MOMENT`].
const REST: Duration = Duration::from_secs(1);
/// How long a put without room waits for that which was at hand: until its nodes have heard that, and again
/// until it is free, because they ask the master first.
pub(crate) const RETURN_TIME_MAX: Duration = Duration::from_millis(500);
/// How long asking may take.
const ASK_TIME_MAX: Duration = Duration::from_secs(2);
/// Names are reckoned in steps of so many bytes.
const NAME_STEP: usize = 64;

/// What room is for: objects of exactly so many bytes, with names of at most so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Size {
    len: u64,
    key_len: usize,
}

#[derive(Debug)]
struct Shelf {
    rooms: Vec<Reservation>,
    /// How many were put in a row so far.
    row: u64,
    /// How many the row before had, if it was one.
    before: u64,
    last: Instant,
    is_asking: bool,
    /// There was less than was asked for last; not before then is it asked for again.
    asks_from: Instant,
}

#[derive(Debug, Default)]
struct Store {
    shelves: BTreeMap<Size, Shelf>,
    /// Somebody sees to it that what is not used is given back.
    is_kept: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    store: Mutex<Store>,
}

/// Room that should be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    size: Size,
    count: u64,
}

/// What is to be done for the room at hand.
#[derive(Debug, Default, PartialEq, Eq)]
struct Round {
    /// What was not used for too long, to be given back.
    unused: Vec<Location>,
    /// What to ask for.
    orders: Vec<Order>,
    /// Nothing is left to look after.
    is_last: bool,
}

impl Shelf {
    /// How much more is wanted, if there is at most this part of what is.
    fn order(&mut self, len: u64, (part, of): (u64, u64)) -> Option<u64> {
        // As long as the row before was, this one and the next ones will be; if this one is longer, or the
        // first, as long as it is so far.
        let longest = self.row.max(self.before);
        let expected = if longest >= ROW_MIN { longest.saturating_mul(ROWS_AHEAD) } else { 0 };
        let most = ROOMS_MAX.min(BYTES_MAX / len.max(1)).min(expected);
        let there = self.rooms.len() as u64;
        if self.is_asking || self.last < self.asks_from || most == 0 || there * of > most * part {
            return None;
        }
        self.is_asking = true;
        Some(most - there)
    }

    /// Whether one row followed another, so that there may be one more.
    fn has_rows(&self) -> bool {
        self.before >= ROW_MIN
    }

    /// How long its room is kept.
    fn patience(&self) -> Duration {
        if self.has_rows() { PAUSE_MAX } else { MOMENT }
    }
}

impl Spares {
    /// Notes a put, and has room for it if there is some at hand.
    pub(crate) fn take(&self, put: &Put<'_>, now: Instant) -> Option<Reservation> {
        let size = size_of(put)?;
        let Store { shelves, .. } = &mut *self.store();
        if !shelves.contains_key(&size) && shelves.len() >= SIZES_MAX {
            let idle = shelves.iter().filter(|(_, it)| it.rooms.is_empty() && !it.is_asking);
            let oldest = idle.min_by_key(|(_, it)| it.last).map(|(size, _)| *size)?;
            shelves.remove(&oldest);
        }
        let new =
            || Shelf { rooms: Vec::new(), row: 0, before: 0, last: now, is_asking: false, asks_from: now };
        let shelf = shelves.entry(size).or_insert_with(new);
        if now.duration_since(shelf.last) < MOMENT {
            shelf.row += 1;
        } else {
            shelf.before = if shelf.row >= ROW_MIN { shelf.row } else { 0 };
            shelf.row = 1;
        }
        shelf.last = now;
        shelf.rooms.pop()
    }

    /// What to ask for after a put of that size, if little is left.
    fn order(&self, size: Size) -> Option<Order> {
        let count = self.store().shelves.get_mut(&size)?.order(size.len, (1, 4))?;
        Some(Order { size, count })
    }

    /// Puts what was asked for on its shelf; gives back what there is no shelf for. The second is whether
    /// somebody must begin to look after it.
    fn stock(&self, order: Order, rooms: Vec<Reservation>, now: Instant) -> (Vec<Reservation>, bool) {
        let mut store = self.store();
        let Some(shelf) = store.shelves.get_mut(&order.size) else { return (rooms, false) };
        shelf.is_asking = false;
        if (rooms.len() as u64) < order.count {
            shelf.asks_from = now + if rooms.is_empty() { REST } else { MOMENT };
        }
        if rooms.is_empty() {
            return (rooms, false);
        }
        shelf.rooms.extend(rooms);
        (Vec::new(), !std::mem::replace(&mut store.is_kept, true))
    }

    /// Takes away what was not used for too long, and asks for what is missing where nobody puts just now:
    /// for rows to come, so after the first of all nothing is.
    fn round(&self, now: Instant) -> Round {
        let mut store = self.store();
        let mut round = Round::default();
        for (size, shelf) in &mut store.shelves {
            let idle = now.duration_since(shelf.last);
            if idle >= shelf.patience() && !shelf.is_asking {
                round.unused.extend(shelf.rooms.drain(..).map(|it| it.location));
            } else if idle >= BREATH && shelf.has_rows() && !shelf.rooms.is_empty() {
                let order = shelf.order(size.len, (7, 8)).map(|count| Order { size: *size, count });
                round.orders.extend(order);
            }
        }
        round.is_last = store.shelves.values().all(|it| it.rooms.is_empty() && !it.is_asking);
        store.is_kept = !round.is_last;
        round
    }

    /// Takes everything away, and asks for nothing for a while.
    fn clear(&self, now: Instant) -> Vec<Location> {
        let mut rooms = Vec::new();
        for shelf in self.store().shelves.values_mut() {
            rooms.extend(shelf.rooms.drain(..).map(|it| it.location));
            shelf.asks_from = now + REST;
        }
        rooms
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        // Each use is one change of one shelf, so nothing can be half done.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Only plain objects: whatever else is asked for decides where there is room, and how much.
fn size_of(put: &Put<'_>) -> Option<Size> {
    let len = put.len().filter(|len| *len <= LEN_MAX)?;
    let PutOptions { replicas, hard_pin, preferred, sample, .. } = &put.options;
    let is_plain = *replicas <= 1 && !hard_pin && preferred.is_empty() && sample.is_none();
    let key_len = put.key.as_bytes().len().next_multiple_of(NAME_STEP);
    is_plain.then_some(Size { len, key_len })
}

/// Gives all of it back, and waits a while for the nodes to hear it; those that have not are told in the
/// background. Whether there was any.
pub(crate) async fn give_back(inner: &Inner, deadline: Deadline) -> bool {
    let deadline = deadline.instant().min(Instant::now() + RETURN_TIME_MAX);
    let held = Held::new(&inner.reservations, &inner.chores);
    let mut nodes: BTreeMap<SegmentId, Vec<Location>> = BTreeMap::new();
    for location in inner.spares.clear(Instant::now()) {
        held.take(location);
        nodes.entry(location.segment).or_default().push(location);
    }
    let mut running = Running::new();
    for (segment, rooms) in &nodes {
        let held = &held;
        running.push(async move {
            let abort = Request::Abort(rooms.iter().map(|it| it.hold()).collect());
            if inner.ask_node(*segment, &abort, Deadline::at(deadline)).await.is_ok() {
                rooms.iter().for_each(|it| held.settle(*it));
            }
        });
    }
    running.all().await;
    !nodes.is_empty()
}

/// Asks for room, behind the caller's back, if more of what was put last is expected.
pub(crate) fn restock(inner: &Inner, puts: &[Put<'_>]) {
    let Some(size) = puts.last().and_then(size_of) else { return };
    if let Some(order) = inner.spares.order(size) {
        inner.runtime.spawn(fetch(inner.weak(), order));
    }
}

async fn fetch(client: Weak<Inner>, order: Order) {
    let Some(inner) = client.upgrade() else { return };
    let needs_keeper = fill(&inner, order).await;
    drop(inner);
    if needs_keeper {
        keep(client).await;
    }
}

/// Asks for room and puts it on its shelf. Whether somebody must begin to look after it.
async fn fill(inner: &Inner, order: Order) -> bool {
    // A client that was closed connects no more, and one that closes says goodbye after the answer.
    let Ok(_busy) = inner.enter(Deadline::after(ASK_TIME_MAX)) else { return false };
    let rooms = reserve(inner, order).await;
    let (left, needs_keeper) = inner.spares.stock(order, rooms, Instant::now());
    let left: Vec<_> = left.into_iter().map(|it| it.location).collect();
    if !left.is_empty() {
        let _gone = inner.chores.send(Chore::Abort(left));
    }
    needs_keeper
}

async fn reserve(inner: &Inner, Order { size, count }: Order) -> Vec<Reservation> {
    let Ok(key) = Key::new(&vec![b'-'; size.key_len]) else { return Vec::new() };
    let options = PutOptions { replicas: 1, ..PutOptions::default() };
    let item = ReserveItem { key, len: size.len, options };
    let spare = u32::try_from(count).unwrap_or(u32::MAX);
    let request = Request::Reserve(Reserve { items: vec![item], spare, ..Reserve::default() });
    let held = Held::new(&inner.reservations, &inner.chores);
    let deadline = Deadline::after(ASK_TIME_MAX);
    let Ok(Reply::Reserved(reserved)) = inner.reserve(&request, &held, deadline).await else {
        return Vec::new();
    };
    let rooms = reserved.items.into_iter().filter_map(|it| match it {
        ReserveOutcome::Room(rooms) => Some(rooms),
        _ => None,
    });
    let rooms: Vec<_> = rooms.flatten().collect();
    rooms.iter().for_each(|it| held.let_go(it.location));
    rooms
}

/// Looks after the room at hand, until there is none. A client that does nothing has no room and no timer.
async fn keep(client: Weak<Inner>) {
    loop {
        tokio::time::sleep(ROUND).await;
        // A client that was closed has said goodbye, and has no room.
        let Some(inner) = client.upgrade().filter(|it| !it.is_closed()) else { return };
        let Round { unused, orders, is_last } = inner.spares.round(Instant::now());
        if !unused.is_empty() {
            let _gone = inner.chores.send(Chore::Abort(unused));
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
    use tiffin_core::{SlotId, Stamp};

    use super::*;

    fn room(stamp: u64) -> Reservation {
        let location = Location { segment: SegmentId(1), slot: SlotId(stamp as u32), stamp: Stamp(stamp) };
        Reservation { location, extents: Vec::new() }
    }

    fn put(name: &str, bytes: &'static [u8]) -> Put<'static> {
        Put::new(Key::new(name.as_bytes()).unwrap(), bytes)
    }

    #[test]
    fn after_some_puts_in_a_row_room_is_asked_for_once_and_used() {
        let spares = Spares::default();
        let now = Instant::now();
        let put = put("k", b"four");
        let size = size_of(&put).unwrap();
        assert_eq!(size, Size { len: 4, key_len: NAME_STEP });
        for _ in 1..ROW_MIN {
            assert!(spares.take(&put, now).is_none() && spares.order(size).is_none());
        }
        assert!(spares.take(&put, now).is_none());
        let order = Order { size, count: ROW_MIN * ROWS_AHEAD };
        assert_eq!(spares.order(size), Some(order));
        assert!(spares.order(size).is_none(), "it is being asked for");
        assert_eq!(spares.stock(order, (1..=order.count).map(room).collect(), now), (Vec::new(), true));
        assert_eq!(spares.take(&put, now), Some(room(order.count)));
        let longer = Key::new(&[b'k'; NAME_STEP + 1]).unwrap();
        assert_eq!(spares.take(&Put::new(longer, b"four"), now), None, "its name would not fit");
        while spares.take(&put, now) != Some(room(4)) {}
        let row = ROW_MIN + order.count - 3;
        let order = Order { size, count: row * ROWS_AHEAD - 3 };
        assert_eq!(spares.order(size), Some(order), "three are there, and more were put");
        let rooms = (0..order.count).map(room).collect();
        assert_eq!(spares.stock(order, rooms, now), (Vec::new(), false), "that is looked after");
    }

    #[test]
    fn what_was_not_used_for_a_moment_is_given_back() {
        let spares = Spares::default();
        let now = Instant::now();
        let put = put("k", b"four");
        let size = size_of(&put).unwrap();
        (0..ROW_MIN).for_each(|_| drop(spares.take(&put, now)));
        let order = spares.order(size).unwrap();
        let awaiting = Round::default();
        assert_eq!(spares.round(now + MOMENT), awaiting, "an answer is still to come");
        spares.stock(order, (0..16).map(room).collect(), now);
        assert_eq!(spares.round(now + MOMENT / 2), Round::default());
        let unused: Vec<_> = (0..16).map(|at| room(at).location).collect();
        assert_eq!(spares.round(now + MOMENT), Round { unused, is_last: true, ..Round::default() });
        assert!(spares.take(&put, now + MOMENT).is_none());
    }

    /// A shelf with all the room that a row of that many puts is followed by, and how much that is.
    fn stocked(put: &Put<'_>, row: u64, now: Instant) -> (Spares, u64) {
        let spares = Spares::default();
        (0..row).for_each(|_| drop(spares.take(put, now)));
        let order = spares.order(size_of(put).unwrap()).unwrap();
        spares.stock(order, (0..order.count).map(room).collect(), now);
        (spares, order.count)
    }

    /// The same after as long a row as there may be and the first put of another, and when that was.
    fn stocked_twice(put: &Put<'_>) -> (Spares, Instant) {
        let now = Instant::now();
        let (spares, count) = stocked(put, ROOMS_MAX, now);
        assert_eq!(count, ROOMS_MAX);
        let now = now + MOMENT;
        assert!(spares.take(put, now).is_some());
        spares.stock(Order { size: size_of(put).unwrap(), count: 1 }, vec![room(count)], now);
        (spares, now)
    }

    #[test]
    fn where_rows_follow_rows_there_is_room_for_the_next() {
        let put = put("k", b"four");
        let size = size_of(&put).unwrap();
        let mut now = Instant::now();
        let (spares, count) = stocked(&put, 10, now);
        assert_eq!(count, 10 * ROWS_AHEAD);
        now += MOMENT;
        for _ in 0..20 {
            assert_eq!(spares.order(size), None);
            assert!(spares.take(&put, now).is_some(), "the next row has some from the start");
        }
        let order = Order { size, count: 20 * ROWS_AHEAD - 20 };
        assert_eq!(spares.order(size), Some(order), "it is a longer one");
        spares.stock(order, (0..order.count).map(room).collect(), now);
        now += MOMENT;
        assert_eq!(spares.round(now), Round::default(), "it is kept for longer, then");
        assert_eq!(spares.round(now - MOMENT + PAUSE_MAX).unused.len(), 80);
        // What came once and not again is no row.
        now += PAUSE_MAX;
        drop(spares.take(&put, now));
        drop(spares.take(&put, now + MOMENT));
        assert!(spares.order(size).is_none());
    }

    #[test]
    fn more_is_asked_for_in_a_pause_and_during_a_row_only_when_little_is_left() {
        let put = put("k", b"four");
        let size = size_of(&put).unwrap();
        let (spares, now) = stocked_twice(&put);
        let used = ROOMS_MAX - ROOMS_MAX / 4;
        (1..used).for_each(|_| drop(spares.take(&put, now)));
        assert_eq!((spares.order(size), spares.round(now + BREATH / 2)), (None, Round::default()));
        let order = Order { size, count: used - 1 };
        assert_eq!(spares.round(now + BREATH), Round { orders: vec![order], ..Round::default() });
        assert_eq!(spares.round(now + BREATH), Round::default(), "it is being asked for");
        spares.stock(order, (0..order.count).map(room).collect(), now);
        (0..used).for_each(|_| drop(spares.take(&put, now)));
        assert_eq!(spares.order(size), Some(Order { size, count: used }));
    }

    #[test]
    fn after_a_single_row_nothing_is_asked_for_in_its_pauses() {
        let put = put("k", b"four");
        let now = Instant::now();
        let (spares, count) = stocked(&put, ROOMS_MAX, now);
        (0..count / 2).for_each(|_| drop(spares.take(&put, now)));
        assert_eq!(spares.round(now + BREATH), Round::default());
        assert_eq!(spares.round(now + MOMENT).unused.len() as u64, count / 2);
    }

    #[test]
    fn a_few_rooms_less_are_not_worth_a_question() {
        let put = put("k", b"four");
        let (spares, now) = stocked_twice(&put);
        (1..ROOMS_MAX / 8).for_each(|_| drop(spares.take(&put, now)));
        assert_eq!(spares.round(now + BREATH), Round::default());
        drop(spares.take(&put, now));
        assert_eq!(spares.round(now + BREATH).orders.len(), 1);
    }

    #[test]
    fn sizes_that_were_not_used_lately_are_forgotten_first() {
        let spares = Spares::default();
        let mut now = Instant::now();
        let sizes: Vec<_> = (0..SIZES_MAX as u64 + 3).map(|len| vec![0_u8; len as usize]).collect();
        for bytes in &sizes {
            drop(spares.take(&Put::new(Key::new(b"k").unwrap(), bytes), now));
            now += Duration::from_millis(1);
        }
        let kept: Vec<_> = spares.store().shelves.keys().map(|it| it.len).collect();
        assert_eq!(kept, (3..SIZES_MAX as u64 + 3).collect::<Vec<_>>());
    }

    #[test]
    fn where_there_was_too_little_nobody_asks_again_at_once() {
        let spares = Spares::default();
        let now = Instant::now();
        let put = put("k", b"four");
        let size = size_of(&put).unwrap();
        (0..ROW_MIN).for_each(|_| drop(spares.take(&put, now)));
        let order = spares.order(size).unwrap();
        assert_eq!(spares.stock(order, Vec::new(), now), (Vec::new(), false));
        drop(spares.take(&put, now));
        assert!(spares.order(size).is_none());
        let now = now + REST;
        drop(spares.take(&put, now));
        let order = spares.order(size).unwrap();
        assert_eq!(spares.stock(order, vec![room(1)], now), (Vec::new(), true));
        assert_eq!(spares.take(&put, now), Some(room(1)));
        assert!(spares.order(size).is_none(), "nor where there was less than was asked for");
        (0..ROW_MIN).for_each(|_| drop(spares.take(&put, now + MOMENT)));
        assert!(spares.order(size).is_some(), "but sooner than where there was none");
    }

    #[tokio::test]
    async fn a_client_that_was_closed_asks_for_nothing() {
        let store = crate::Embedded::start(4 << 20).await.unwrap();
        let client = crate::Client::connect(store.client.options().clone()).await.unwrap();
        let inner = &client.inner;
        let put = put("k", b"four");
        (0..ROW_MIN).for_each(|_| drop(inner.spares.take(&put, Instant::now())));
        let order = inner.spares.order(size_of(&put).unwrap()).unwrap();
        client.close(Deadline::after(ASK_TIME_MAX)).await.unwrap();
        fetch(inner.weak(), order).await;
        assert!(inner.current_master().is_none() && inner.spares.take(&put, Instant::now()).is_none());
        inner.spares.stock(order, vec![room(1)], Instant::now());
        keep(inner.weak()).await;
        assert!(inner.current_master().is_none(), "nor who looks after what it had");
    }

    #[tokio::test]
    async fn a_put_without_room_is_given_what_is_at_hand() {
        const ALL: usize = 4 << 20;
        let store = crate::Embedded::start(ALL as u64).await.unwrap();
        let (inner, deadline) = (&store.client.inner, Deadline::after(Duration::from_secs(60)));
        let small = put("small", b"four");
        (0..ROW_MIN).for_each(|_| drop(inner.spares.take(&small, Instant::now())));
        let order = inner.spares.order(size_of(&small).unwrap()).unwrap();
        assert!(fill(inner, order).await, "nobody looks after it, so that it stays");
        assert!(inner.reservations.on(store.server.node().segment()).len() as u64 == order.count);
        let large = vec![7; ALL];
        let stored = store.client.put(&[Put::new(Key::new(b"large").unwrap(), &large)], deadline).await;
        assert!(matches!(stored.as_slice(), [Ok(_)]), "{stored:?}");
        let none = inner.spares.take(&small, Instant::now());
        assert!(none.is_none() && inner.spares.order(order.size).is_none(), "nor is more asked for at once");
        store.stop(deadline).await.unwrap();
    }

    #[test]
    fn only_plain_small_objects_have_room_at_hand() {
        let plain = put("k", b"four");
        assert!(size_of(&plain).is_some());
        let options = |options| Put { options, ..plain.clone() };
        let no = [
            PutOptions { replicas: 2, ..PutOptions::default() },
            PutOptions { hard_pin: true, ..PutOptions::default() },
            PutOptions { preferred: vec!["n".into()], ..PutOptions::default() },
        ];
        assert!(no.into_iter().all(|it| size_of(&options(it)).is_none()));
        let large = vec![0; LEN_MAX as usize + 1];
        assert!(size_of(&Put::new(Key::new(b"k").unwrap(), &large)).is_none());
    }
}
