//! Decides which memory a client requests before it puts, and which of it a put uses.
//!
//! A client that puts objects of one size will probably put more of them. So it lets the master preallocate
//! memory ([`Reserve::spare`](tiffin_types::message::Reserve::spare)). Such a put writes and commits, and
//! costs one call instead of two. Preallocated memory is only *offered*: the transport claims an offer
//! before the first byte, and a node recalls unclaimed offers as soon as it needs the memory, whatever the
//! client does. So offers cost other clients nothing. A put whose offer was recalled reserves as any other
//! put does.
//!
//! The request takes processor time from concurrent puts. So a client has offers for several times as many
//! puts as it made, and requests more in a pause, or when three quarters are used.
//!
//! **Invariant:** at most [`SIZES_MAX`] sizes, and of each at most [`OfferLimits::offers_max`] offers and
//! [`BYTES_MAX`] bytes, or [`LARGE_OFFERS_MAX`] offers, are requested.

use std::collections::BTreeMap;

use tiffin_types::{
    Key, Location, Reservation, SegmentId,
    message::{PutOptions, Reserve, ReserveItem},
};

/// Maximum length of objects that memory is preallocated for. A device copies 16 MiB in the time of two
/// calls.
const LEN_MAX: u64 = 64 << 20;
/// Maximum number of bytes of the offers of one size, unless [`LARGE_OFFERS_MAX`] have more.
const BYTES_MAX: u64 = 32 << 20;
/// Maximum number of offers of a large size: one is used while the next is requested.
const LARGE_OFFERS_MAX: u64 = 2;
/// Maximum number of sizes.
const SIZES_MAX: usize = 8;
/// After this time without a put there is a pause, and a request disturbs no put.
const PAUSE_US: u64 = 5_000;
/// After this time without a put of a size, its offers are released. This is only cleanup.
const IDLE_US: u64 = 10_000_000;
/// Lengths of names are rounded up to a multiple of this.
const NAME_STEP: usize = 64;

/// The limits of preallocation.
#[derive(Clone, Copy, Debug)]
pub struct OfferLimits {
    /// After this number of puts of one size, more are expected.
    pub puts_min: u64,
    /// Number of offers per put that was made.
    pub puts_ahead: u64,
    /// Maximum number of offers of one size.
    pub offers_max: u64,
    /// How long nothing is requested after a request got too few offers, or offers were recalled.
    pub rest_us: u64,
}

impl Default for OfferLimits {
    fn default() -> Self {
        Self { puts_min: 4, puts_ahead: 4, offers_max: 1024, rest_us: 1_000_000 }
    }
}

/// The objects that an offer fits: exactly `len` bytes, with names of at most `key_len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OfferSize {
    len: u64,
    key_len: usize,
}

/// The offers of one size, the newest last: nodes recall the oldest first.
#[derive(Debug)]
struct Stock {
    offers: Vec<Reservation>,
    /// Number of puts since the size was idle.
    puts: u64,
    last_put_us: u64,
    is_asking: bool,
    /// Nothing is requested before then.
    asks_from_us: u64,
}

/// The offers of a client. All times are of one clock of the caller, in microseconds.
#[derive(Debug, Default)]
pub struct Preallocation {
    limits: OfferLimits,
    sizes: BTreeMap<OfferSize, Stock>,
    /// The caller calls [`Self::round`] at intervals.
    has_rounds: bool,
}

/// Offers to request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferOrder {
    size: OfferSize,
    count: u64,
}

/// The work that [`Preallocation::round`] finds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OfferRound {
    /// Offers of idle sizes, to be released.
    pub idle: Vec<Location>,
    /// Offers to request.
    pub orders: Vec<OfferOrder>,
    /// There are no offers left, so no further rounds are needed.
    pub is_last: bool,
}

impl OfferSize {
    /// The size of offers that an object can use. Only plain objects have one: other options determine the
    /// node and the amount of memory. An object without bytes needs no offer.
    #[must_use]
    pub fn of(key: &Key, len: u64, options: &PutOptions) -> Option<Self> {
        let is_plain = options.has_no_attributes() && options.preferred.is_empty();
        let key_len = key.as_bytes().len().next_multiple_of(NAME_STEP);
        (is_plain && (1..=LEN_MAX).contains(&len)).then_some(Self { len, key_len })
    }
}

impl OfferOrder {
    /// The request for this order.
    #[must_use]
    pub fn request(&self) -> Option<Reserve> {
        let key = Key::new(&vec![b'-'; self.size.key_len]).ok()?;
        let options = PutOptions { replicas: 1, ..PutOptions::default() };
        let item = ReserveItem { key, len: self.size.len, options };
        let spare = u32::try_from(self.count).unwrap_or(u32::MAX);
        Some(Reserve { items: vec![item], spare, ..Reserve::default() })
    }
}

impl Stock {
    fn new(now_us: u64) -> Self {
        Self { offers: Vec::new(), puts: 0, last_put_us: now_us, is_asking: false, asks_from_us: now_us }
    }

    /// Number of offers to request, if at most `part / of` of the wanted number is left.
    fn order(&mut self, limits: &OfferLimits, len: u64, (part, of): (u64, u64), now_us: u64) -> Option<u64> {
        let is_expected = self.puts >= limits.puts_min;
        let expected = if is_expected { self.puts.saturating_mul(limits.puts_ahead) } else { 0 };
        let offers_max = limits.offers_max.min((BYTES_MAX / len.max(1)).max(LARGE_OFFERS_MAX));
        let wanted = offers_max.min(expected);
        let there = self.offers.len() as u64;
        if self.is_asking || now_us < self.asks_from_us || wanted == 0 || there * of > wanted * part {
            return None;
        }
        self.is_asking = true;
        Some(wanted - there)
    }
}

impl Preallocation {
    /// No offers yet.
    #[must_use]
    pub fn new(limits: OfferLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Notes a put, and takes an offer for it if there is one.
    pub fn take(&mut self, size: OfferSize, now_us: u64) -> Option<Reservation> {
        if !self.sizes.contains_key(&size) && self.sizes.len() >= SIZES_MAX {
            let unused = self.sizes.iter().filter(|(_, it)| it.offers.is_empty() && !it.is_asking);
            let oldest = unused.min_by_key(|(_, it)| it.last_put_us).map(|(size, _)| *size)?;
            self.sizes.remove(&oldest);
        }
        let stock = self.sizes.entry(size).or_insert_with(|| Stock::new(now_us));
        if now_us.saturating_sub(stock.last_put_us) >= IDLE_US {
            stock.puts = 0;
        }
        stock.puts += 1;
        stock.last_put_us = now_us;
        stock.offers.pop()
    }

    /// The offers to request after a put of that size, if few are left. [`Self::stock`] completes the
    /// order, even if it brought nothing.
    pub fn order(&mut self, size: OfferSize, now_us: u64) -> Option<OfferOrder> {
        let count = self.sizes.get_mut(&size)?.order(&self.limits, size.len, (1, 4), now_us)?;
        Some(OfferOrder { size, count })
    }

    /// Adds the offers of an order, and returns those that are not kept. The second result says whether the
    /// caller must start to call [`Self::round`].
    #[must_use]
    pub fn stock(
        &mut self,
        order: OfferOrder,
        mut offers: Vec<Reservation>,
        now_us: u64,
    ) -> (Vec<Reservation>, bool) {
        let Some(stock) = self.sizes.get_mut(&order.size) else { return (offers, false) };
        stock.is_asking = false;
        if (offers.len() as u64) < order.count {
            stock.asks_from_us = now_us.saturating_add(self.limits.rest_us);
        }
        if offers.is_empty() {
            return (offers, false);
        }
        stock.offers.append(&mut offers);
        (offers, !std::mem::replace(&mut self.has_rounds, true))
    }

    /// Removes the offers of idle sizes, and orders missing ones if there is a pause.
    #[must_use]
    pub fn round(&mut self, now_us: u64) -> OfferRound {
        let mut round = OfferRound::default();
        for (size, stock) in &mut self.sizes {
            let unused_us = now_us.saturating_sub(stock.last_put_us);
            if unused_us >= IDLE_US && !stock.is_asking {
                round.idle.extend(stock.offers.drain(..).map(|it| it.location));
            } else if unused_us >= PAUSE_US && !stock.offers.is_empty() {
                let order = stock.order(&self.limits, size.len, (7, 8), now_us);
                let order = order.map(|count| OfferOrder { size: *size, count });
                round.orders.extend(order);
            }
        }
        round.is_last = self.sizes.values().all(|it| it.offers.is_empty() && !it.is_asking);
        self.has_rounds = !round.is_last;
        round
    }

    /// Removes all offers of a node that has recalled some, and requests none for a while.
    #[must_use]
    pub fn clear(&mut self, segment: SegmentId, now_us: u64) -> Vec<Location> {
        let mut cleared = Vec::new();
        for stock in self.sizes.values_mut() {
            let of_node = stock.offers.extract_if(.., |it| it.location.segment == segment);
            cleared.extend(of_node.map(|it| it.location));
            stock.asks_from_us = now_us.saturating_add(self.limits.rest_us);
        }
        cleared
    }

    /// All offers.
    pub fn offers(&self) -> impl Iterator<Item = Location> + '_ {
        self.sizes.values().flat_map(|it| it.offers.iter().map(|offer| offer.location))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiffin_types::{SlotId, Stamp};

    const NODE: SegmentId = SegmentId(1);
    const NOW: u64 = 1 << 40;
    const PUTS_MIN: u64 = 4;
    const PUTS_AHEAD: u64 = 4;
    const OFFERS_MAX: u64 = 1024;
    const REST_US: u64 = 1_000_000;

    fn offer(stamp: u64) -> Reservation {
        let location = Location { segment: NODE, slot: SlotId(stamp as u32), stamp: Stamp(stamp) };
        Reservation { location, extents: Vec::new() }
    }

    fn offers(stamps: std::ops::Range<u64>) -> Vec<Reservation> {
        stamps.map(offer).collect()
    }

    fn key(len: usize) -> Key {
        Key::new(&vec![b'k'; len]).unwrap()
    }

    fn size(len: u64) -> OfferSize {
        OfferSize::of(&key(1), len, &PutOptions::default()).unwrap()
    }

    /// The state after this number of puts with all offers requested then, and their number.
    fn stocked(size: OfferSize, puts: u64) -> (Preallocation, u64) {
        let mut all = Preallocation::default();
        (0..puts).for_each(|_| drop(all.take(size, NOW)));
        let order = all.order(size, NOW).unwrap();
        assert_eq!(all.stock(order, offers(0..order.count), NOW), (Vec::new(), true));
        (all, order.count)
    }

    #[test]
    fn offers_are_requested_once_and_used_newest_first() {
        let mut all = Preallocation::default();
        let size = size(4);
        assert_eq!(size, OfferSize { len: 4, key_len: NAME_STEP });
        for _ in 1..PUTS_MIN {
            assert!(all.take(size, NOW).is_none() && all.order(size, NOW).is_none());
        }
        assert!(all.take(size, NOW).is_none());
        let order = OfferOrder { size, count: PUTS_MIN * PUTS_AHEAD };
        assert_eq!(all.order(size, NOW), Some(order));
        assert!(all.order(size, NOW).is_none(), "a reply is outstanding");
        assert_eq!(all.stock(order, offers(0..order.count), NOW), (Vec::new(), true));
        assert_eq!(all.take(size, NOW), Some(offer(order.count - 1)));
        let longer = OfferSize::of(&key(NAME_STEP + 1), 4, &PutOptions::default()).unwrap();
        assert_eq!(all.take(longer, NOW), None, "its name would not fit");
        assert_eq!(all.stock(order, offers(20..21), NOW), (Vec::new(), false), "there are rounds");
        assert_eq!(all.offers().count() as u64, order.count);
    }

    #[test]
    fn request_asks_for_all_offers_of_an_order() {
        let order = OfferOrder { size: OfferSize { len: 9, key_len: 128 }, count: 7 };
        let request = order.request().unwrap();
        let [item] = request.items.as_slice() else { panic!("{request:?}") };
        assert_eq!((request.spare, item.len, item.key.as_bytes().len()), (7, 9, 128));
        let long = OfferOrder { size: OfferSize { len: 9, key_len: usize::MAX >> 40 }, count: 7 };
        assert_eq!(long.request(), None, "no name is that long");
    }

    #[test]
    fn more_is_requested_in_a_pause_or_when_few_are_left() {
        let size = size(4);
        let (mut all, count) = stocked(size, OFFERS_MAX);
        assert_eq!(count, OFFERS_MAX);
        (1..OFFERS_MAX / 8).for_each(|_| drop(all.take(size, NOW)));
        assert_eq!(all.round(NOW + PAUSE_US), OfferRound::default(), "a few are not worth a request");
        (0..OFFERS_MAX / 2).for_each(|_| drop(all.take(size, NOW)));
        assert_eq!((all.order(size, NOW), all.round(NOW + PAUSE_US / 2)), (None, OfferRound::default()));
        let order = OfferOrder { size, count: OFFERS_MAX / 8 + OFFERS_MAX / 2 - 1 };
        assert_eq!(all.round(NOW + PAUSE_US), OfferRound { orders: vec![order], ..OfferRound::default() });
        assert_eq!(all.round(NOW + PAUSE_US), OfferRound::default(), "a reply is outstanding");
        drop(all.stock(order, offers(0..order.count), NOW));
        (0..OFFERS_MAX * 3 / 4).for_each(|_| drop(all.take(size, NOW)));
        assert_eq!(all.order(size, NOW), Some(OfferOrder { size, count: OFFERS_MAX * 3 / 4 }));
    }

    #[test]
    fn bytes_of_one_size_are_limited() {
        let count = |len| stocked(size(len), OFFERS_MAX).1;
        assert_eq!((count(BYTES_MAX / 8), count(LEN_MAX)), (8, LARGE_OFFERS_MAX));
    }

    #[test]
    fn offers_of_idle_sizes_are_released() {
        let size = size(4);
        let (mut all, count) = stocked(size, PUTS_MIN);
        assert_eq!(all.round(NOW + IDLE_US / 2), OfferRound::default());
        let idle = offers(0..count).into_iter().map(|it| it.location).collect();
        assert_eq!(all.round(NOW + IDLE_US), OfferRound { idle, is_last: true, ..OfferRound::default() });
        assert!(all.take(size, NOW + IDLE_US).is_none());
        assert!(all.order(size, NOW + IDLE_US).is_none(), "its puts are counted from zero");
    }

    #[test]
    fn recall_stops_requests_for_a_while() {
        let size = size(4);
        let (mut all, count) = stocked(size, PUTS_MIN);
        assert!(all.clear(SegmentId(2), NOW - REST_US).is_empty(), "another node has recalled some");
        assert_eq!(all.clear(NODE, NOW).len() as u64, count);
        assert!(all.take(size, NOW).is_none() && all.order(size, NOW).is_none());
        assert!(all.order(size, NOW + REST_US).is_some());
    }

    #[test]
    fn nothing_is_requested_soon_after_too_few_offers() {
        let mut all = Preallocation::default();
        let size = size(4);
        (0..PUTS_MIN).for_each(|_| drop(all.take(size, NOW)));
        for found in [Vec::new(), offers(0..1)] {
            let later = NOW + REST_US;
            let order = all.order(size, later).unwrap();
            drop(all.stock(order, found, later - REST_US / 2));
            assert!(all.order(size, later).is_none());
            drop(all.clear(NODE, later - REST_US));
        }
    }

    #[test]
    fn oldest_unused_sizes_are_forgotten_first() {
        let mut all = Preallocation::default();
        for len in 1..SIZES_MAX as u64 + 4 {
            drop(all.take(size(len), NOW + len));
        }
        let kept: Vec<_> = all.sizes.keys().map(|it| it.len).collect();
        assert_eq!(kept, (4..SIZES_MAX as u64 + 4).collect::<Vec<_>>());
    }

    #[test]
    fn only_plain_small_objects_use_offers() {
        let of = |len, options| OfferSize::of(&key(1), len, &options);
        assert!(of(4, PutOptions::default()).is_some() && of(0, PutOptions::default()).is_none());
        assert!(of(LEN_MAX, PutOptions::default()).is_some());
        assert!(of(LEN_MAX + 1, PutOptions::default()).is_none());
        for options in [
            PutOptions { replicas: 2, ..PutOptions::default() },
            PutOptions { hard_pin: true, ..PutOptions::default() },
            PutOptions { preferred: vec!["n".into()], ..PutOptions::default() },
            PutOptions {
                sample: Some(tiffin_types::attributes::Consumption::default()),
                ..PutOptions::default()
            },
        ] {
            assert!(of(4, options.clone()).is_none(), "{options:?}");
        }
    }
}
