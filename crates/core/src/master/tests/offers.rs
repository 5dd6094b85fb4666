//! Offers: preallocated memory stays free for all others until its client claims it.

use tiffin_node as node;

use super::*;
use crate::{
    Location, Reservation,
    message::{
        CommitItem, CommitOutcome, OnExists, Publish, PublishItem, PutOptions, Reserve, ReserveItem,
        ReserveOutcome, Why,
    },
};

impl Cluster {
    /// Requests offers of one unit each.
    fn offers(&mut self, options: &PutOptions, count: u32) -> Vec<Reservation> {
        let items = vec![ReserveItem { key: key("k"), len: UNIT, options: options.clone() }];
        let reserve = Reserve { items, spare: count, wait_ms: 1000, ..Reserve::default() };
        match self.ask(ClientToMaster::Reserve(reserve)) {
            Some(Reply::Reserved(mut reserved)) => match reserved.items.remove(0) {
                ReserveOutcome::Space(reservations) => reservations,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    /// The client claims these offers.
    fn claim(&mut self, offers: &[Reservation]) {
        let node = |it: &Reservation| it.location.segment.0 as usize - 1;
        self.claimed.extend(offers.iter().map(|it| (node(it), it.location.slot_ref())));
    }

    fn publish_offer(&mut self, name: &str, offer: &Reservation) -> Option<CommitOutcome> {
        let Location { segment: home, .. } = offer.location;
        let (slot_ref, others) = (offer.location.slot_ref(), Vec::new());
        let item = CommitItem { slot_ref, key: key(name), len: UNIT, options: plain(), others };
        let publish = Publish { items: vec![PublishItem { home, item }], wait_ms: 500 };
        match self.ask(ClientToMaster::Publish(publish)) {
            Some(Reply::Published(mut outcomes)) => outcomes.remove(0),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn offers_come_from_free_memory_only() {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    cluster.put("k", UNIT, plain());
    let keep = PutOptions { on_exists: OnExists::Keep, ..plain() };
    cluster.policy(Some(8 * UNIT), None);
    assert_eq!(cluster.offers(&keep, 1).len(), 0, "memory under a quota is not preallocated");
    cluster.policy(None, None);
    assert_eq!(cluster.offers(&keep, 9).len(), 6, "an eighth is left, and the name is not checked");
    assert_eq!(cluster.offers(&keep, 1).len(), 0);
    assert!(matches!(cluster.why("k"), Why::Here(_)), "no object is evicted for it");
    let stat = cluster.master.stat();
    assert_eq!((stat.namespaces[0].granted, stat.namespaces[0].used), (0, UNIT), "offers are not charged");
    assert_eq!((stat.nodes[0].usage.free, stat.nodes[0].usage.offered), (7 * UNIT, 6 * UNIT));
}

#[test]
fn offers_are_requested_from_one_node_once() {
    let mut cluster = Cluster::new(&[8 * UNIT, 8 * UNIT]);
    assert_eq!(cluster.offers(&plain(), 2).len(), 2, "not one on each of the nodes");
    let batch = u32::try_from(crate::BATCH_ITEMS_MAX).unwrap() + 1;
    let items = vec![ReserveItem { key: key("k"), len: UNIT, options: plain() }];
    let reserve = Reserve { items, spare: batch, ..Reserve::default() };
    assert!(matches!(cluster.ask(ClientToMaster::Reserve(reserve)), Some(Reply::Refused(_))), "too many");
}

#[test]
fn no_offers_while_a_put_waits() {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    cluster.put("pinned", 4 * UNIT, pinned());
    cluster.reserve_waiting("large", 5 * UNIT, 1000);
    assert_eq!(cluster.offers(&plain(), 1).len(), 0);
}

#[test]
fn put_recalls_offers_before_it_evicts() {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    cluster.put("old", UNIT, plain());
    let offers = cluster.offers(&plain(), 6);
    assert_eq!(offers.len(), 6);
    cluster.put("new", 7 * UNIT, plain());
    assert!(cluster.has("old") && cluster.has("new"));
    assert_eq!(cluster.publish_offer("late", &offers[0]), None, "it was recalled");
    assert_eq!(cluster.commit("late", UNIT, plain(), &offers[..1]), CommitOutcome::Stale);
    assert_eq!(cluster.nodes[0].usage().free, 0);
}

#[test]
fn claimed_offers_are_not_recalled() {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    cluster.put("old", UNIT, plain());
    cluster.put("young", UNIT, plain());
    let offers = cluster.offers(&plain(), 5);
    cluster.claim(&offers[..2]);
    cluster.put("four", 4 * UNIT, plain());
    assert!(cluster.has("old") && cluster.has("young"), "four units were free or unclaimed");
    cluster.put("one", UNIT, plain());
    assert!(!cluster.has("old") && cluster.has("young"), "one more unit is needed");
    assert!(matches!(cluster.publish_offer("a", &offers[0]), Some(CommitOutcome::Stored(_))));
    assert!(matches!(cluster.commit("b", UNIT, plain(), &offers[1..2]), CommitOutcome::Stored(_)));
    assert!(cluster.has("a") && cluster.has("b"));
    let usage = cluster.nodes[0].usage();
    assert_eq!((usage.granted, usage.offered, usage.free), (0, 0, 0));
}

#[test]
fn store_of_pins_and_claimed_offers_is_full() {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    let offers = cluster.offers(&plain(), 7);
    cluster.claim(&offers[..1]);
    for number in 0..7 {
        cluster.put(&format!("{number}"), UNIT, pinned());
    }
    let ReserveOutcome::Full(usage) = cluster.reserve("more", UNIT, plain()) else { panic!() };
    let usage = usage.usage;
    assert_eq!((usage.free, usage.granted, usage.committed), (0, UNIT, 7 * UNIT));
}

#[test]
fn refusal_caused_by_claims_does_not_count() {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    for round in 0..3 {
        cluster.put(&format!("{round}"), UNIT, plain());
    }
    let offers = cluster.offers(&plain(), 4);
    cluster.claim(&offers);
    // The master counts five units as free, but only one is.
    cluster.put("new", 4 * UNIT, plain());
    assert!((0..3).all(|it| !cluster.has(&it.to_string())) && cluster.has("new"));
}

#[test]
fn waiting_put_gets_the_memory_of_released_offers() {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    let offers = cluster.offers(&plain(), 7);
    cluster.claim(&offers);
    let waiting = cluster.reserve_waiting("large", 4 * UNIT, 1000);
    assert_eq!(cluster.reserved(waiting), None, "all offers are claimed");
    cluster.node_event(0, node::Event::Dead(ClientId(7)));
    assert!(matches!(cluster.reserved(waiting), Some(ReserveOutcome::Space(_))));
}

#[test]
fn quota_set_later_applies_to_offers() {
    let mut cluster = Cluster::new(&[16 * UNIT]);
    let offers = cluster.offers(&plain(), 4);
    cluster.policy(Some(2 * UNIT), None);
    cluster.claim(&offers);
    cluster.put("pinned", UNIT, pinned());
    assert!(matches!(cluster.publish_offer("a", &offers[0]), Some(CommitOutcome::Stored(_))));
    assert_eq!(cluster.publish_offer("b", &offers[1]), Some(CommitOutcome::Stale), "the quota is full");
    assert_eq!(cluster.commit("b", UNIT, plain(), &offers[2..3]), CommitOutcome::Stale);
    cluster.put("b", UNIT, plain());
    assert!(cluster.has("b") && !cluster.has("a"), "an ordinary put evicts within the quota");
    assert!(cluster.master.stat().namespaces[0].used <= 2 * UNIT);
}
