//! The rules of the catalog, tested without a master.

use proptest::prelude::*;

use super::*;
use crate::{SlotId, Stamp, mutant::Mutant};

const NODE: NodeIndex = NodeIndex(0);
const OTHER: NodeIndex = NodeIndex(1);

fn slot_ref(stamp: u64) -> SlotRef {
    SlotRef { slot: SlotId(stamp as u32), stamp: Stamp(stamp) }
}

fn put(catalog: &mut Catalog, now: u64, name: &str, hard_pin: bool, soft_until: u64) -> ObjectIndex {
    let namespace = catalog.intern("default");
    let pins = if hard_pin { vec!["me".to_owned()] } else { vec![] };
    let new = NewObject {
        namespace,
        key: Key::new(name.as_bytes()).unwrap(),
        generation: Generation { epoch: 1, counter: now },
        len: 10,
        attributes: Attributes { pins, ..Attributes::default() },
        writer: LabelIndex::default(),
        soft_until: Tick(soft_until),
        replicas: vec![(NODE, slot_ref(now)), (OTHER, slot_ref(now))],
    };
    catalog.insert(Tick(now), new).unwrap()
}

fn victims(catalog: &mut Catalog, now: u64, rules: Eviction) -> Vec<String> {
    let mut names = Vec::new();
    while let Some(index) = catalog.next_victim(NODE, Tick(now), rules, &[]) {
        names.push(catalog.remove(index).unwrap().key().to_string());
    }
    names
}

#[test]
fn least_recently_used_object_is_evicted_first() {
    let mut catalog = Catalog::new(0, 0, Mutant::default());
    for (name, now) in [("a", 1), ("b", 2), ("c", 3)] {
        put(&mut catalog, now, name, false, 0);
    }
    let a = catalog.find(catalog.namespace_names["default"], &Key::new(b"a").unwrap()).unwrap();
    catalog.touch(a, Tick(9), None);
    assert_eq!(victims(&mut catalog, 10, Eviction::default()), ["b", "c", "a"]);
}

#[test]
fn eviction_respects_leases_and_pins() {
    let mut catalog = Catalog::new(0, 0, Mutant::default());
    let leased = put(&mut catalog, 1, "leased", false, 0);
    put(&mut catalog, 2, "pinned", true, 0);
    put(&mut catalog, 3, "soft", false, 1_000);
    put(&mut catalog, 4, "plain", false, 0);
    catalog.touch(leased, Tick(5), Some(Tick(50)));
    assert_eq!(victims(&mut catalog, 10, Eviction::default()), ["plain"]);
    let rules = Eviction { soft_pinned_too: true, ..Eviction::default() };
    assert_eq!(victims(&mut catalog, 10, rules), ["soft"]);
    assert_eq!(victims(&mut catalog, 51, rules), ["leased"]);
    assert_eq!(victims(&mut catalog, 51, rules), Vec::<String>::new());
}

#[test]
fn expired_soft_pin_does_not_protect() {
    let mut catalog = Catalog::new(0, 0, Mutant::default());
    put(&mut catalog, 1, "soft", false, 100);
    catalog.end_soft_pins(Tick(99));
    assert_eq!(catalog.soft_pinned(), 1);
    catalog.end_soft_pins(Tick(100));
    assert_eq!(victims(&mut catalog, 100, Eviction::default()), ["soft"]);
}

#[test]
fn object_is_removed_with_its_last_replica() {
    let mut catalog = Catalog::new(0, 0, Mutant::default());
    let index = put(&mut catalog, 1, "a", false, 0);
    catalog.drop_replica(index, NODE);
    assert_eq!(catalog.get(index).unwrap().replicas().collect::<Vec<_>>(), [(OTHER, slot_ref(1))]);
    assert_eq!(catalog.page_on(NODE, 0, 9, 9), (vec![], 0));
    assert_eq!(catalog.page_on(OTHER, 0, 9, 9), (vec![index], 0));
    catalog.drop_replica(index, OTHER);
    assert!(catalog.get(index).is_none());
    assert_eq!(catalog.namespaces[0].objects, 0);
}

proptest! {
    /// Compared with a model, a sorted list of (touched, name).
    #[test]
    fn eviction_follows_the_order_of_use(steps in prop::collection::vec((0u8..4, 0u8..12), 1..120)) {
        let mut catalog = Catalog::new(7, 0, Mutant::default());
        let mut model: Vec<(u64, u8)> = Vec::new();
        for (now, (what, name)) in (1u64..).zip(steps) {
            let namespace = catalog.intern("default");
            let key = Key::new(&[b'a' + name]).unwrap();
            let found = catalog.find(namespace, &key);
            prop_assert_eq!(found.is_some(), model.iter().any(|it| it.1 == name));
            match (what, found) {
                (0 | 1, None) => {
                    put(&mut catalog, now, key.to_string().as_str(), false, 0);
                    model.push((now, name));
                }
                (2, Some(index)) => {
                    catalog.touch(index, Tick(now), None);
                    model.iter_mut().filter(|it| it.1 == name).for_each(|it| it.0 = now);
                }
                (3, Some(index)) => {
                    catalog.remove(index);
                    model.retain(|it| it.1 != name);
                }
                _ => (),
            }
        }
        model.sort_unstable();
        let expected: Vec<_> = model.iter().map(|it| char::from(b'a' + it.1).to_string()).collect();
        prop_assert_eq!(victims(&mut catalog, u64::MAX, Eviction::default()), expected);
    }

    /// After every step, every list is intact and its ends are correct.
    #[test]
    fn eviction_lists_stay_consistent(steps in prop::collection::vec((0u8..8, 0u8..6, 0u8..2), 1..150)) {
        let mut catalog = Catalog::new(7, 0, Mutant::default());
        for (now, (what, name, namespace)) in (1u64..).zip(steps) {
            let namespace = catalog.intern(["a", "b"][usize::from(namespace)]);
            let key = Key::new(&[b'a' + name]).unwrap();
            match (what, catalog.find(namespace, &key)) {
                (_, None) => {
                    let attributes = Attributes::default();
                    let soft_until = Tick(if what == 1 { now + 20 } else { 0 });
                    let replicas = [(NODE, slot_ref(now)), (OTHER, slot_ref(now))];
                    let replicas = replicas.into_iter().take(1 + usize::from(what % 2)).collect();
                    let (generation, writer) = (Generation { epoch: 1, counter: now }, LabelIndex(0));
                    let new = NewObject {
                        namespace, key, generation, len: 10, attributes, writer, soft_until, replicas
                    };
                    catalog.insert(Tick(now), new);
                }
                (0, Some(index)) => _ = catalog.remove(index),
                (1, Some(index)) => catalog.touch(index, Tick(now), None),
                (2, Some(index)) => catalog.touch(index, Tick(now), Some(Tick(now + 10))),
                (3, Some(index)) => {
                    let pins = if now % 2 == 0 { vec!["me".to_owned()] } else { vec![] };
                    catalog.set_attributes(index, Attributes { pins, ..Attributes::default() });
                }
                (4, Some(index)) => catalog.drop_replica(index, NODE),
                (5, Some(index)) => {
                    if catalog.get(index).unwrap().on(OTHER).is_none() {
                        catalog.add_replica(index, OTHER, slot_ref(now));
                    }
                }
                (_, Some(_)) => catalog.end_soft_pins(Tick(now)),
            }
            catalog.assert_lists();
            let space: u64 = catalog.objects.range(0..99).map(|(_, it)| it.space()).sum();
            prop_assert_eq!(catalog.namespaces.iter().map(|it| it.committed).sum::<u64>(), space);
        }
    }
}

#[test]
fn quota_eviction_is_limited_to_the_namespace() {
    let mut catalog = Catalog::new(0, 0, Mutant::default());
    for now in 1..10_000 {
        put(&mut catalog, now, &format!("other {now}"), false, 0);
    }
    let mine = catalog.intern("mine");
    let replicas = vec![(OTHER, slot_ref(77))];
    let key = Key::new(b"mine").unwrap();
    let (generation, attributes) = (Generation { epoch: 1, counter: 77 }, Attributes::default());
    let (writer, soft_until) = (LabelIndex(0), Tick(0));
    let new =
        NewObject { namespace: mine, key, generation, len: 10, attributes, writer, soft_until, replicas };
    let index = catalog.insert(Tick(10_000), new);
    assert_eq!(catalog.next_victim_of(mine, Tick(10_001), Eviction::default()), index);
    assert_eq!(catalog.next_victim(OTHER, Tick(10_001), Eviction::default(), &[]), Some(ObjectIndex(0)));
    catalog.touch(index.unwrap(), Tick(10_001), Some(Tick(10_100)));
    assert_eq!(catalog.next_victim_of(mine, Tick(10_002), Eviction::default()), None);
    assert_eq!(catalog.next_lease_end(Tick(10_002)), Some(Tick(10_100)));
}

#[test]
fn batch_lookup_equals_single_lookups() {
    let mut catalog = Catalog::new(3, 0, Mutant::default());
    let namespace = catalog.intern("default");
    for now in 1..=200 {
        put(&mut catalog, now, &format!("key {now}"), false, 0);
    }
    let keys: Vec<_> = (150..=250).map(|it| Key::new(format!("key {it}").as_bytes()).unwrap()).collect();
    for count in [0, 1, 2, 3, TOGETHER] {
        let found = catalog.find_all(namespace, &keys[..count]);
        let alone: Vec<_> = keys[..count].iter().map(|key| catalog.find(namespace, key)).collect();
        assert_eq!(found[..count], alone);
        assert!(found[count..].iter().all(Option::is_none));
    }
}
