//! Offers: memory that a node preallocates for a client, and recalls when it is needed.

use tiffin_types::{
    Reservation,
    message::{AllocateItem, AttributesItem, CommitOutcome, Registered},
};

use super::{
    tests::{Bench, UNIT, WRITER},
    *,
};

const OTHER: ClientId = ClientId(8);

impl Bench {
    fn allocate(&mut self, client: ClientId, lens: &[u64], offered: bool) -> Vec<Option<Reservation>> {
        let items = lens.iter().map(|&len| AllocateItem { len, name_len: 20, attributes_len: 0 }).collect();
        match self.master(MasterToMember::Allocate(Allocate {
            client,
            items,
            offered,
            ..Allocate::default()
        })) {
            Reply::Allocated(allocated) => {
                assert_eq!(allocated.usage, self.node.usage());
                allocated.items
            }
            other => panic!("{other:?}"),
        }
    }

    fn offer(&mut self, count: usize) -> Vec<SlotRef> {
        let offers = self.allocate(WRITER, &vec![UNIT; count], true);
        offers.into_iter().flatten().map(|it| it.location.slot_ref()).collect()
    }

    fn usage(&self) -> (u64, u64, u64) {
        let Usage { free, offered, granted, .. } = self.node.usage();
        (free / UNIT, offered / UNIT, granted / UNIT)
    }

    fn released(&self) -> Vec<SlotRef> {
        let told = self.effects.iter().filter_map(|it| match it {
            Effect::AskMaster(_, MemberToMaster::Released(released)) => Some(released.slot_refs.clone()),
            _ => None,
        });
        told.flatten().collect()
    }
}

#[test]
fn offered_memory_counts_as_free() {
    let mut bench = Bench::new();
    assert_eq!(bench.offer(5).len(), 5);
    assert_eq!(bench.usage(), (8, 5, 0));
    assert_eq!(bench.offer(5).len(), 3, "nothing is recalled for an offer");
    assert_eq!((bench.usage(), bench.recalls.len()), ((8, 8, 0), 0));
}

#[test]
fn oldest_offers_are_recalled_and_no_more_than_needed() {
    let mut bench = Bench::new();
    let offers = bench.offer(8);
    let two = bench.allocate(OTHER, &[2 * UNIT, UNIT], false);
    assert!(two.iter().all(Option::is_some), "{two:?}");
    // All eight offers are fewer than the minimum number that is recalled at a time.
    assert_eq!((bench.recalls.as_slice(), bench.usage()), (&offers[..], (5, 0, 3)));
    let mut bench = Bench::with_slots(64, 64);
    let offers = bench.offer(64);
    assert!(bench.allocate(OTHER, &[40 * UNIT], false)[0].is_some());
    assert_eq!((bench.recalls.as_slice(), bench.released().as_slice()), (&offers[..40], &offers[..40]));
    assert_eq!(bench.usage(), (24, 24, 40));
}

#[test]
fn draining_node_recalls_offers_and_takes_nothing_new() {
    let mut bench = Bench::new();
    let object = bench.put(UNIT);
    let offers = bench.offer(4);
    bench.claimed.insert(offers[0]);
    bench.handle(Event::Drain);
    assert_eq!((bench.recalls.as_slice(), bench.released().as_slice()), (&offers[..], &offers[1..]));
    assert_eq!((bench.node.usage().capacity, bench.usage()), (0, (0, 0, 1)));
    assert_eq!(bench.reserve(UNIT), None);
    assert_eq!(bench.offer(1), []);
    // Written objects may still be committed, and stored objects stay.
    assert_eq!(bench.commit_outcome(offers[0]), None, "the master is asked");
    assert_eq!(bench.node.inventory().iter().map(|it| it.slot_ref).collect::<Vec<_>>(), [object.slot_ref()]);
}

#[test]
fn claimed_offers_stay_and_are_reservations_from_then_on() {
    let mut bench = Bench::new();
    let offers = bench.offer(8);
    bench.claimed.extend(&offers[..3]);
    assert!(bench.allocate(OTHER, &[6 * UNIT], false)[0].is_none());
    assert_eq!(bench.usage(), (5, 0, 3), "the rest is free, and the reply says so");
    assert_eq!(bench.released(), offers[3..]);
    assert!(bench.allocate(OTHER, &[5 * UNIT], false)[0].is_some());
    assert_eq!(bench.commit_outcome(offers[0]), None, "the master is asked");
    assert_eq!(bench.commit_outcome(offers[5]), Some(CommitOutcome::Stale));
}

#[test]
fn missing_slots_and_names_recall_offers_too() {
    let mut bench = Bench::with_slots(64, 8);
    assert_eq!(bench.offer(8).len(), 8);
    assert!(bench.allocate(OTHER, &[UNIT], false)[0].is_some(), "all slots were offered");
    let mut bench = Bench::new();
    // The heap of 1024 bytes has space for two such names.
    let item = AllocateItem { len: 1, name_len: 400, attributes_len: 0 };
    let allocate = |client, offered| {
        MasterToMember::Allocate(Allocate { client, items: vec![item; 2], offered, ..Allocate::default() })
    };
    bench.master(allocate(WRITER, true));
    let Reply::Allocated(allocated) = bench.master(allocate(OTHER, false)) else { panic!() };
    assert!(allocated.items.iter().all(Option::is_some), "{allocated:?}");
}

#[test]
fn missing_space_for_attributes_recalls_offers() {
    let pinned = |slot_ref| {
        let attributes = Attributes { pins: vec!["o".repeat(200)], ..Attributes::default() };
        MasterToMember::SetAttributes(vec![AttributesItem { slot_ref, attributes }])
    };
    for claimed in [0, 1, 2] {
        let mut bench = Bench::new();
        let object = bench.put(UNIT).slot_ref();
        // Two such names leave less of the heap of 1024 bytes than the pin needs.
        let item = AllocateItem { len: 1, name_len: 400, attributes_len: 0 };
        let offer = MasterToMember::Allocate(Allocate {
            client: WRITER,
            items: vec![item; 2],
            offered: true,
            ..Allocate::default()
        });
        let Reply::Allocated(offers) = bench.master(offer) else { panic!() };
        let offers: Vec<_> = offers.items.iter().flatten().map(|it| it.location.slot_ref()).collect();
        assert_eq!(offers.len(), 2);
        bench.claimed.extend(&offers[..claimed]);
        let reply = bench.master(pinned(object));
        assert_eq!(
            (bench.recalls.as_slice(), bench.released().as_slice()),
            (&offers[..], &offers[claimed..])
        );
        match (claimed, reply) {
            (0 | 1, Reply::Settled(settled)) => assert_eq!(settled.usage, bench.node.usage()),
            (2, Reply::Refused(refusal)) => assert_eq!(refusal.reason, Reason::Busy),
            other => panic!("{other:?}"),
        }
        assert_eq!(bench.node.inventory()[0].attributes.pins.len(), usize::from(claimed < 2));
    }
    let mut bench = Bench::new();
    let offers = bench.offer(2);
    let reserved = bench.reserve(UNIT).unwrap().location.slot_ref();
    assert!(matches!(bench.master(pinned(reserved)), Reply::Refused(_)), "it is not an object yet");
    assert_eq!(bench.usage(), (7, 2, 1), "the offers {offers:?} stay: there was space");
}

#[test]
fn bytes_from_a_socket_claim_an_offer() {
    let mut bench = Bench::new();
    let offers = bench.offer(8);
    assert!(bench.node.begin_store(OTHER, offers[0], 0, UNIT).is_none(), "it is offered to another client");
    assert!(bench.node.begin_store(WRITER, offers[0], 0, UNIT).is_some());
    bench.node.end_store(offers[0]);
    assert_eq!(bench.usage(), (7, 7, 1));
    assert!(bench.allocate(OTHER, &[7 * UNIT], false)[0].is_some());
    assert!(!bench.recalls.contains(&offers[0]));
    assert!(bench.node.begin_store(WRITER, offers[1], 0, UNIT).is_none(), "it was recalled");
}

#[test]
fn offers_end_with_their_client_or_on_request() {
    let ends: [fn(&mut Bench, Vec<SlotRef>); 3] = [
        |bench, offers| drop(bench.client(ClientToNode::Abort(offers))),
        |bench, _| drop(bench.client(ClientToNode::Keep(vec![]))),
        |bench, _| bench.goodbye(),
    ];
    for end in ends {
        let mut bench = Bench::new();
        let offers = bench.offer(3);
        end(&mut bench, offers);
        assert_eq!(bench.usage(), (5, 0, 3), "they may have been published: the master is asked");
        bench.let_end();
        assert_eq!(bench.usage(), (8, 0, 0));
    }
}

#[test]
fn committed_and_ended_offers_are_not_recalled() {
    let mut bench = Bench::new();
    let offers = bench.offer(3);
    assert_eq!(bench.commit_outcome(offers[0]), None);
    bench.client(ClientToNode::Abort(vec![offers[1]]));
    assert_eq!(bench.usage(), (6, 1, 2));
    assert!(bench.allocate(OTHER, &[6 * UNIT], false)[0].is_some());
    assert_eq!(bench.recalls, offers[2..]);
}

#[test]
fn lost_node_recalls_all_offers() {
    let mut bench = Bench::new();
    let offers = bench.offer(4);
    bench.claimed.insert(offers[1]);
    bench.handle(Event::Linked(NodeInfo::default()));
    bench.answer(Reply::Registered(Registered { epoch: 5, discard: true, ..Registered::default() }));
    assert_eq!((bench.recalls.as_slice(), bench.usage()), (&offers[..], (7, 0, 1)));
    let hidden = bench.effects.iter().rev().find_map(|it| match it {
        Effect::Slot { slot, record } if *slot == offers[1].slot => Some(record.state),
        _ => None,
    });
    assert_eq!(hidden, Some(SlotState::Ending), "it may have been published: no cached-location read");
}
