//! Tests of the minimums that a node keeps for namespaces.

use tiffin_types::{
    Key,
    message::{AllocateItem, Guarantee, Retire},
};

use super::{tests::*, *};

/// What two namespaces are guaranteed, in units.
type Minimums = [(&'static str, u64); 2];

impl Bench {
    /// Requests one object of so many units for a namespace, and returns its slot or what is missing.
    fn request(
        &mut self,
        namespace: &str,
        minimums: Minimums,
        units: u64,
        evicted: u64,
    ) -> Result<SlotRef, u64> {
        let guarantee =
            |(name, units): (&str, u64)| Guarantee { namespace: name.to_owned(), bytes: units * UNIT };
        let allocate = Allocate {
            client: WRITER,
            items: vec![AllocateItem { len: units * UNIT, name_len: 20, attributes_len: 0 }],
            namespace: namespace.to_owned(),
            guarantees: minimums.into_iter().filter(|it| it.1 > 0).map(guarantee).collect(),
            evicted: evicted * UNIT,
            ..Allocate::default()
        };
        let Reply::Allocated(it) = self.master(MasterToMember::Allocate(allocate)) else { panic!() };
        match it.items.into_iter().flatten().next() {
            Some(reservation) => Ok(reservation.location.slot_ref()),
            None => Err(it.short[0].amount / UNIT),
        }
    }

    /// Stores what was reserved in a namespace.
    fn store(&mut self, namespace: &str, slot_ref: SlotRef, units: u64) {
        let record = Record {
            slot_ref,
            namespace: namespace.to_owned(),
            key: Key::new(b"k").unwrap(),
            generation: GENERATION,
            len: units * UNIT,
            attributes: Default::default(),
        };
        self.master(MasterToMember::Settle(Settle { commit: vec![record], ..Settle::default() }));
    }

    fn remove(&mut self, slot_ref: SlotRef) {
        self.master(MasterToMember::Retire(Retire { slot_refs: vec![slot_ref] }));
    }
}

const ONE: Minimums = [("a", 3), ("", 0)];

#[test]
fn what_is_guaranteed_stays_free_for_its_namespace() {
    let mut bench = Bench::new();
    assert!(bench.request("", ONE, 5, 0).is_ok());
    assert_eq!(bench.request("", ONE, 1, 0), Err(1));
    let own = bench.request("a", ONE, 3, 0).unwrap();
    // What it has used and freed is kept for it again, however it was used.
    bench.remove(own);
    assert_eq!(bench.request("", ONE, 1, 0), Err(1));
    let own = bench.request("a", ONE, 2, 0).unwrap();
    bench.store("a", own, 2);
    assert_eq!(bench.request("", ONE, 1, 0), Err(1));
    bench.remove(own);
    assert_eq!(bench.request("", ONE, 3, 0), Err(3));
    assert!(bench.request("a", ONE, 3, 0).is_ok());
}

#[test]
fn a_namespace_with_a_minimum_leaves_that_of_another() {
    let mut bench = Bench::new();
    let two = [("a", 3), ("b", 2)];
    assert!(bench.request("a", two, 6, 0).is_ok());
    assert_eq!(bench.request("a", two, 1, 0), Err(1));
    assert!(bench.request("b", two, 2, 0).is_ok());
}

#[test]
fn objects_from_before_the_minimum_count_for_it() {
    let mut bench = Bench::new();
    let none = [("", 0), ("", 0)];
    for units in [2, 1] {
        let own = bench.request("", none, units, 0).unwrap();
        bench.store("a", own, units);
    }
    assert!(bench.request("", ONE, 5, 0).is_ok());
    assert_eq!(bench.free(), 0);
}

#[test]
fn removed_objects_in_view_count_for_their_namespace() {
    let (mut bench, minimum) = (Bench::new(), [("default", 3), ("", 0)]);
    let own = bench.request("default", minimum, 3, 0).unwrap();
    bench.store("default", own, 3);
    bench.handle(Event::Mapped(WRITER));
    bench.client(ClientToNode::BeginViews(vec![own]));
    bench.remove(own);
    assert_eq!(bench.node.usage().held, 3 * UNIT);
    assert!(bench.request("", minimum, 5, 0).is_ok());
    bench.client(ClientToNode::EndViews(vec![own]));
    assert_eq!((bench.free(), bench.request("", minimum, 1, 0)), (3, Err(1)));
}

#[test]
fn objects_take_the_place_of_evicted_ones_until_a_new_minimum_is_reached() {
    let mut bench = Bench::new();
    let none = [("", 0), ("", 0)];
    let old: Vec<_> = (0..8).map(|_| bench.request("", none, 1, 0).unwrap()).collect();
    bench.remove(old[0]);
    bench.remove(old[1]);
    assert_eq!(bench.request("", ONE, 1, 0), Err(1), "nothing was evicted for it");
    // The refused request has seen that two units are free.
    assert_eq!(bench.request("", ONE, 1, 2), Err(1), "another put may have taken that place");
    bench.remove(old[2]);
    assert!(bench.request("", ONE, 1, 1).is_ok());
    assert_eq!(bench.free(), 2);
    bench.remove(old[3]);
    assert_eq!(bench.request("", ONE, 1, 0), Err(1), "the minimum is reached");
    bench.remove(old[4]);
    assert!(bench.request("", ONE, 1, 0).is_ok());
}

#[test]
fn namespaces_without_a_minimum_are_forgotten() {
    let mut bench = Bench::with_slots(8, 400);
    for at in 0..200 {
        let name: &'static str = format!("n{at}").leak();
        let own = bench.request(name, [(name, 1), ("", 0)], 1, 0).unwrap();
        bench.remove(own);
    }
    assert!(bench.node.slots.counted_namespaces() <= 66, "{}", bench.node.slots.counted_namespaces());
}

#[cfg(feature = "mutants")]
#[test]
fn a_node_that_gives_away_what_is_guaranteed_is_noticed() {
    let mut bench = Bench::new();
    bench.node.slots.mutant(Mutant::TakeGuaranteed);
    assert!(bench.request("", ONE, 8, 0).is_ok());
}
