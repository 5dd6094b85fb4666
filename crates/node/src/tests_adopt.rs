//! A node that is started again on its memory, one test per rule.

use std::collections::BTreeMap;

use tiffin_types::{
    EPOCH_MAX, Generation, Key, Location, STAMPS_MAX,
    message::{AllocateItem, Announced, Decide, Registered, Retire},
};

use super::tests::{Bench, CONN, GENERATION, UNIT, WRITER};
use super::*;

/// What the memory of a node says: the result of its effects.
#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    slots: BTreeMap<SlotId, SlotRecord>,
    parked: BTreeMap<SlotId, SlotRecord>,
    heap: BTreeMap<u64, u8>,
    mark: u64,
    master: (u64, u64),
    cluster: ClusterId,
    is_member: bool,
}

impl Image {
    pub(super) fn apply(&mut self, effect: &Effect) {
        match effect {
            Effect::Slot { slot, record } => _ = self.slots.insert(*slot, record.clone()),
            Effect::Withdraw { slot } => _ = self.slots.remove(slot),
            Effect::Park { slot } => self.parked.extend(self.slots.remove(slot).map(|it| (*slot, it))),
            Effect::Reclaim { slot } => _ = self.parked.remove(slot),
            Effect::Heap { offset, bytes } => self.heap.extend((*offset..).zip(bytes.iter().copied())),
            Effect::StampHighWater(mark) => self.mark = *mark,
            Effect::Epoch { epoch, instance, cluster } => {
                (self.master, self.cluster) = ((*epoch, *instance), *cluster)
            }
            Effect::Membership(is_member) => self.is_member = *is_member,
            _ => (),
        }
    }

    fn bytes(&self, offset: u64, len: u64) -> Vec<u8> {
        (offset..offset + len).map(|at| self.heap.get(&at).copied().unwrap_or_default()).collect()
    }

    fn found(&self, slot: SlotId, record: &SlotRecord, is_retired: bool) -> Found {
        let spilled =
            if record.extents.len() > EXTENTS_INLINE { 16 * record.extents.len() as u64 } else { 0 };
        let name = record.heap.offset + spilled;
        Found {
            slot,
            record: record.clone(),
            is_retired,
            namespace: self.bytes(name, record.namespace_len),
            key: self.bytes(name + record.namespace_len, record.key_len),
            attributes: self.bytes(record.attributes.offset, record.attributes.len),
        }
    }

    fn adopted(&self, clients: &[ClientId]) -> Adopted {
        let used = self.slots.iter().map(|(slot, it)| self.found(*slot, it, false));
        let parked = self.parked.iter().map(|(slot, it)| self.found(*slot, it, true));
        let (epoch, instance) = self.master;
        let slots = used.chain(parked).collect();
        let (cluster, clients, ledger) = (self.cluster, clients.to_vec(), Vec::new());
        Adopted { epoch, instance, cluster, stamp_high_water: self.mark, slots, clients, ledger }
    }
}

impl Bench {
    /// The process dies, and another one adopts the memory, which these clients still map.
    fn restart(&mut self, clients: &[ClientId]) {
        self.node = Node::adopt(self.node.config, self.image.adopted(clients)).unwrap();
        self.drain();
    }

    /// It registers with the master that it knew.
    fn rejoin(&mut self, registered: Registered) {
        let (epoch, instance) = self.image.master;
        self.join(Registered { epoch, instance, ..registered });
        self.handle(Event::Opened { conn: CONN, client: WRITER, namespace: "default".into() });
    }

    fn asked(&self) -> Vec<&MemberToMaster> {
        let mut asked = Vec::new();
        for effect in &self.effects {
            if let Effect::AskMaster(_, request) = effect {
                asked.push(request);
            }
        }
        asked
    }
}

#[test]
fn committed_objects_are_announced_with_attributes() {
    let mut bench = Bench::new();
    let plain = bench.put(UNIT);
    let location = bench.reserve(2 * UNIT).unwrap().location;
    let attributes = Attributes { pins: vec!["run".into()], ..Attributes::default() };
    let record = Record {
        slot_ref: location.slot_ref(),
        namespace: "default".into(),
        key: tiffin_types::Key::new(b"pinned").unwrap(),
        generation: Generation { epoch: 5, counter: 2 },
        len: 2 * UNIT,
        attributes: Attributes::default(),
    };
    bench.master(MasterToMember::Settle(Settle { commit: vec![record.clone()], ..Settle::default() }));
    bench.master(MasterToMember::SetAttributes(vec![AttributesItem {
        slot_ref: location.slot_ref(),
        attributes: attributes.clone(),
    }]));
    let (before, usage) = (bench.node.inventory(), bench.node.usage());
    assert_eq!(before[1], Record { attributes, ..record });
    bench.restart(&[]);
    assert_eq!((bench.node.inventory(), bench.node.usage()), (before, usage));
    assert!(!bench.image.is_member, "deletes may have been missed");
    bench.rejoin(Registered { retire: vec![plain.slot_ref()], ..Registered::default() });
    assert_eq!(bench.node.inventory().len(), 1, "what it owes is retired first");
    assert!(bench.image.is_member);
    bench.retire(location);
    assert_eq!(bench.free(), 8);
}

#[test]
fn stamps_are_not_used_again() {
    let mut bench = Bench::new();
    let mut seen = Vec::new();
    for _ in 0..3 {
        for _ in 0..20 {
            let location = bench.put(UNIT);
            assert!(!seen.contains(&location.stamp));
            seen.push(location.stamp);
            bench.retire(location);
        }
        bench.restart(&[]);
        bench.rejoin(Registered::default());
    }
}

#[test]
fn living_writer_keeps_its_reservation() {
    let mut bench = Bench::new();
    bench.handle(Event::Mapped(WRITER));
    let location = bench.reserve(UNIT).unwrap().location;
    bench.restart(&[WRITER]);
    bench.rejoin(Registered::default());
    assert_eq!(bench.free(), 7);
    assert_eq!(bench.commit(location, UNIT), None, "the master is asked");
    bench.answer(Reply::Decided(vec![CommitOutcome::Stored(GENERATION)]));
    assert_eq!(bench.node.inventory().len(), 1);

    let mut bench = Bench::new();
    bench.handle(Event::Mapped(WRITER));
    bench.reserve(UNIT).unwrap();
    bench.restart(&[WRITER]);
    bench.rejoin(Registered::default());
    bench.client(ClientToNode::KeepViews(vec![]));
    bench.client(ClientToNode::Keep(vec![]));
    bench.let_end();
    assert_eq!(bench.free(), 8, "it does not know of the reservation");
}

#[test]
fn memory_of_a_gone_writer_returns_after_the_master_was_asked() {
    let mut bench = Bench::new();
    let published = bench.reserve(UNIT).unwrap().location;
    bench.reserve(UNIT).unwrap();
    bench.restart(&[]);
    let record = Record {
        slot_ref: published.slot_ref(),
        namespace: "default".into(),
        key: tiffin_types::Key::new(b"published").unwrap(),
        generation: GENERATION,
        len: UNIT,
        attributes: Attributes::default(),
    };
    bench.rejoin(Registered { commit: vec![record], ..Registered::default() });
    assert_eq!(bench.node.inventory().len(), 1, "it was published while the node was dead");
    bench.handle(Event::Beat);
    assert_eq!(bench.free(), 6, "the master may have published the other one too");
}

#[test]
fn memory_of_a_gone_writer_is_free_when_the_master_agrees() {
    let mut bench = Bench::new();
    bench.reserve(UNIT).unwrap();
    bench.restart(&[]);
    bench.handle(Event::Linked(NodeInfo::default()));
    let (epoch, instance) = bench.image.master;
    bench.answer(Reply::Registered(Registered { epoch, instance, ..Registered::default() }));
    bench.answer(Reply::Announced(Announced::default()));
    assert_eq!(bench.free(), 7);
    bench.let_end();
    assert_eq!(bench.free(), 8);
}

#[test]
fn unclaimed_offers_are_recalled_and_claimed_ones_stay() {
    let mut bench = Bench::new();
    bench.handle(Event::Mapped(WRITER));
    let items = vec![AllocateItem { len: UNIT, name_len: 20, attributes_len: 0 }; 2];
    let offers = match bench.master(MasterToMember::Allocate(Allocate {
        client: WRITER,
        items,
        offered: true,
        ..Allocate::default()
    })) {
        Reply::Allocated(it) => it.items.into_iter().flatten().map(|it| it.location).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    bench.claimed.insert(offers[0].slot_ref());
    bench.restart(&[WRITER]);
    bench.rejoin(Registered::default());
    bench.client(ClientToNode::KeepViews(vec![]));
    assert_eq!(bench.free(), 7);
    assert_eq!(bench.commit(offers[0], UNIT), None, "it may be written and committed");
    assert_eq!(bench.commit_outcome(offers[1].slot_ref()), Some(CommitOutcome::Stale));
}

#[test]
fn prepared_object_is_stored_only_if_that_was_decided() {
    for outcome in [CommitOutcome::Stored(GENERATION), CommitOutcome::Exists(Generation::default())] {
        let mut bench = Bench::new();
        let location = bench.reserve(UNIT).unwrap().location;
        bench.commit(location, UNIT);
        bench.restart(&[]);
        assert_eq!(bench.free(), 7);
        bench.handle(Event::Linked(NodeInfo::default()));
        let (epoch, instance) = bench.image.master;
        bench.answer(Reply::Registered(Registered { epoch, instance, ..Registered::default() }));
        let asked = bench.asked();
        let [MemberToMaster::Decide(Decide { items, .. }), MemberToMaster::Announce(_)] = asked[..] else {
            panic!("{asked:?}")
        };
        assert_eq!(items[0].item.slot_ref, location.slot_ref());
        assert!(items[0].item.options.replaces.is_some(), "nothing else is stored");
        let id = bench.effects.iter().find_map(|it| match it {
            Effect::AskMaster(id, MemberToMaster::Decide(_)) => Some(*id),
            _ => None,
        });
        bench.handle(Event::MasterReply(id.unwrap(), Reply::Decided(vec![outcome.clone()])));
        let is_stored = matches!(outcome, CommitOutcome::Stored(_));
        assert_eq!((bench.node.inventory().len(), bench.free()), if is_stored { (1, 7) } else { (0, 8) });
    }
}

/// What a node sends that was started on memory with two prepared objects, of which the master has published
/// one; and what it holds when the master has stored the other one as well.
fn asked_about_two_prepared_objects(mutant: Mutant) -> (Vec<&'static str>, usize) {
    let mut bench = Bench::new();
    let [published, other] = [0; 2].map(|_| bench.reserve(UNIT).unwrap().location);
    for location in [published, other] {
        bench.commit(location, UNIT);
    }
    bench.node.config.mutant = mutant;
    bench.restart(&[]);
    bench.handle(Event::Linked(NodeInfo::default()));
    let record = Record {
        slot_ref: published.slot_ref(),
        namespace: "default".to_owned(),
        key: Key::new(b"k").unwrap(),
        generation: GENERATION,
        len: UNIT,
        attributes: Attributes::default(),
    };
    let (epoch, instance) = bench.image.master;
    bench.answer(Reply::Registered(Registered {
        epoch,
        instance,
        commit: vec![record],
        ..Registered::default()
    }));
    let asks = bench.asked().into_iter().map(|it| match it {
        MemberToMaster::Decide(decide) if decide.items[0].item.slot_ref == other.slot_ref() => "decide",
        MemberToMaster::Announce(_) => "announce",
        other => panic!("{other:?}"),
    });
    let asks = asks.collect();
    let id = bench.effects.iter().find_map(|it| match it {
        Effect::AskMaster(id, MemberToMaster::Decide(_)) => Some(*id),
        _ => None,
    });
    let later = Generation { counter: GENERATION.counter + 1, ..GENERATION };
    if let Some(id) = id {
        bench.handle(Event::MasterReply(id, Reply::Decided(vec![CommitOutcome::Stored(later)])));
    }
    (asks, bench.node.inventory().len())
}

#[test]
fn prepared_objects_are_asked_about_before_the_announcement() {
    assert_eq!(asked_about_two_prepared_objects(Mutant::None), (vec!["decide", "announce"], 2));
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_questions_before_the_announcement_is_noticed() {
    assert_eq!(asked_about_two_prepared_objects(Mutant::AskTogether), (vec!["announce"], 1));
}

#[test]
fn published_object_that_was_not_read_is_committed() {
    let mut bench = Bench::new();
    let [unread, read, retired] = [0; 3].map(|_| bench.reserve(UNIT).unwrap().location.slot_ref());
    let record = |slot_ref, generation| Record {
        slot_ref,
        namespace: "default".to_owned(),
        key: Key::new(b"k").unwrap(),
        generation,
        len: UNIT,
        attributes: Attributes::default(),
    };
    let later = Generation { counter: GENERATION.counter + 1, ..GENERATION };
    let settle = Settle { commit: vec![record(read, later)], ..Settle::default() };
    bench.handle(Event::LedgerRead(vec![(RequestId(7), settle)]));
    bench.handle(Event::MasterRequest(
        RequestId(8),
        MasterToMember::Retire(Retire { slot_refs: vec![retired] }),
    ));
    let mut adopted = bench.image.adopted(&[]);
    let commit = [unread, read, retired].map(|it| record(it, GENERATION)).to_vec();
    adopted.ledger = vec![Settle { commit, abort: vec![unread, read], retire: vec![] }];
    bench.node = Node::adopt(bench.node.config, adopted).unwrap();
    bench.drain();
    let inventory = bench.node.inventory();
    let kept: Vec<_> = inventory.iter().map(|it| (it.slot_ref, it.generation)).collect();
    assert_eq!(kept, [(unread, GENERATION), (read, later)]);
}

#[test]
fn replaced_object_whose_retire_was_not_read_is_retired() {
    let mut bench = Bench::new();
    let old = bench.put(UNIT).slot_ref();
    let new = bench.reserve(UNIT).unwrap().location.slot_ref();
    let record = Record {
        slot_ref: new,
        namespace: "default".to_owned(),
        key: Key::new(b"k").unwrap(),
        generation: Generation { counter: GENERATION.counter + 1, ..GENERATION },
        len: UNIT,
        attributes: Attributes::default(),
    };
    let mut adopted = bench.image.adopted(&[]);
    let retire = Settle { retire: vec![old], ..Settle::default() };
    adopted.ledger = vec![Settle { commit: vec![record], ..Settle::default() }, retire];
    bench.node = Node::adopt(bench.node.config, adopted).unwrap();
    bench.drain();
    let kept: Vec<_> = bench.node.inventory().iter().map(|it| it.slot_ref).collect();
    assert_eq!(kept, [new]);
}

#[test]
fn old_views_keep_their_memory_until_they_are_listed() {
    let mut bench = Bench::new();
    bench.handle(Event::Mapped(WRITER));
    let locations = [bench.put(UNIT), bench.put(UNIT), bench.put(UNIT)];
    let [retired, viewed, other] = locations.map(Location::slot_ref);
    bench.client(ClientToNode::BeginViews(vec![retired, viewed]));
    bench.retire(locations[0]);
    assert_eq!(bench.node.usage().held, UNIT);
    bench.restart(&[WRITER]);
    assert_eq!(bench.node.usage().held, UNIT, "it was retired before");
    bench.rejoin(Registered::default());
    bench.retire(locations[1]);
    bench.retire(locations[2]);
    assert_eq!((bench.free(), bench.node.usage().held), (5, 3 * UNIT), "its views are not known");
    bench.client(ClientToNode::KeepViews(vec![retired, viewed, viewed]));
    assert_eq!(bench.free(), 6, "{other:?} is not in view");
    bench.client(ClientToNode::EndViews(vec![retired, viewed]));
    assert_eq!(bench.free(), 7);
    bench.client(ClientToNode::EndViews(vec![viewed]));
    assert_eq!((bench.free(), bench.image.parked.len()), (8, 0));
}

#[test]
fn old_views_of_a_gone_client_end() {
    let mut bench = Bench::new();
    bench.handle(Event::Mapped(WRITER));
    let location = bench.put(UNIT);
    bench.client(ClientToNode::BeginViews(vec![location.slot_ref()]));
    bench.retire(location);
    for clients in [&[WRITER][..], &[]] {
        bench.restart(clients);
        bench.handle(Event::Detached(WRITER));
        assert_eq!((bench.free(), bench.image.parked.len()), (8, 0));
    }
    assert!(!bench.asked().iter().any(|it| matches!(it, MemberToMaster::ClientDied(_))));
}

#[test]
fn hidden_reservation_of_a_living_writer_stays() {
    let mut bench = Bench::new();
    bench.handle(Event::Mapped(WRITER));
    bench.reserve(UNIT).unwrap();
    bench.join(Registered { epoch: 5, discard: true, ..Registered::default() });
    assert!(bench.image.slots.values().all(|it| it.state == SlotState::Ending));
    bench.restart(&[WRITER]);
    bench.rejoin(Registered::default());
    bench.handle(Event::Beat);
    assert_eq!(bench.free(), 7);
}

#[test]
fn reservation_that_has_ended_stays_so() {
    let mut bench = Bench::new();
    bench.reserve(UNIT).unwrap();
    bench.handle(Event::Closed(CONN));
    assert!(bench.image.slots.values().all(|it| it.state == SlotState::Ending));
    // Its client maps the memory only since then, and does not know of the reservation.
    bench.restart(&[WRITER]);
    bench.rejoin(Registered::default());
    bench.client(ClientToNode::KeepViews(vec![]));
    assert!(bench.node.clients.reservations_except(WRITER, &[]).is_empty());
}

#[test]
fn many_extents_and_tables_are_adopted() {
    let config = NodeConfig { chunk_bytes: 256, chunks_free: 1, ..Bench::with_slots(64, 64).node.config };
    let mut bench = Bench::new();
    bench.node = Node::new(config);
    bench.image = Image::default();
    bench.join(Registered { epoch: 5, ..Registered::default() });
    bench.handle(Event::Opened { conn: CONN, client: WRITER, namespace: "default".into() });
    let small: Vec<_> = (0..12).map(|_| bench.put(UNIT)).collect();
    small.iter().step_by(2).for_each(|&it| bench.retire(it));
    let left = bench.node.usage().free;
    let large = bench.reserve(left - left % UNIT - 4 * UNIT).unwrap();
    assert!(large.extents.len() > EXTENTS_INLINE, "{large:?}");
    bench.commit(large.location, large.extents.iter().map(|it| it.len).sum());
    bench.answer(Reply::Decided(vec![CommitOutcome::Stored(GENERATION)]));
    let before = (bench.node.inventory(), bench.node.usage().committed, bench.node.usage().metadata);
    bench.restart(&[]);
    let after = (bench.node.inventory(), bench.node.usage().committed, bench.node.usage().metadata);
    assert_eq!(before, after);
    bench.rejoin(Registered::default());
    let all: Vec<_> = bench.node.inventory().into_iter().map(|it| it.slot_ref).collect();
    bench.master(MasterToMember::Retire(tiffin_types::message::Retire { slot_refs: all }));
    assert_eq!(bench.node.usage().free, 64 * UNIT);
}

#[test]
fn damaged_memory_is_refused_with_the_slot() {
    let mut bench = Bench::new();
    let (one, _other) = (bench.put(UNIT), bench.put(UNIT));
    let good = bench.image.adopted(&[]);
    let config = bench.node.config;
    type Harm = fn(&mut Found);
    let harms: [Harm; 7] = [
        |it| it.record.stamp = tiffin_types::Stamp(u64::MAX),
        |it| it.record.extents[0].offset += UNIT,
        |it| it.record.extents[0].offset += 1,
        |it| it.record.extents[0].offset = u64::MAX - 63,
        |it| it.record.heap.offset = 1 << 40,
        |it| it.key.clear(),
        |it| it.slot = SlotId(u32::MAX),
    ];
    for harm in harms {
        let mut bad = good.clone();
        harm(&mut bad.slots[0]);
        assert!(matches!(Node::adopt(config, bad), Err(Damage::Slot { .. })));
    }
    let mut twice = good.clone();
    twice.slots.push(good.slots[0].clone());
    let slot = one.slot;
    let Err(Damage::Slot { slot: named, .. }) = Node::adopt(config, twice) else { panic!() };
    assert_eq!(named, slot);
    let mut alike = good.clone();
    alike.slots[1].record.stamp = good.slots[0].record.stamp;
    let what = "its stamp belongs to another use";
    let damage = Damage::Slot { slot: good.slots[1].slot, what };
    assert_eq!(Node::adopt(config, alike).err(), Some(damage));
    let mut low = good.clone();
    low.stamp_high_water = 1;
    assert!(matches!(Node::adopt(config, low), Err(Damage::Slot { .. })));
    let other_key = NodeConfig { stamp_key: crate::StampKey::from_bytes([9; 16]), ..config };
    assert!(matches!(Node::adopt(other_key, good.clone()), Err(Damage::Slot { .. })), "stamps could repeat");
    let small = NodeConfig { chunks_free: 0, capacity: 2 * UNIT, ..config };
    assert_eq!(Node::adopt(small, good).err(), Some(Damage::Space));
}

#[test]
fn header_out_of_range_is_refused() {
    let mut bench = Bench::new();
    bench.put(UNIT);
    let (good, config) = (bench.image.adopted(&[]), bench.node.config);
    for (epoch, mark, is_good) in [
        (EPOCH_MAX - 1, STAMPS_MAX - 1, true),
        (EPOCH_MAX, STAMPS_MAX - 1, false),
        (u64::MAX, STAMPS_MAX - 1, false),
        (EPOCH_MAX - 1, STAMPS_MAX, false),
        (EPOCH_MAX - 1, (1 << 63) - 1, false),
    ] {
        let adopted = Adopted { epoch, stamp_high_water: mark, ..good.clone() };
        let damage = Node::adopt(config, adopted).err();
        assert_eq!(damage.is_none(), is_good, "{epoch} {mark}: {damage:?}");
        assert!(damage.is_none_or(|it| matches!(it, Damage::Header(_))));
    }
}

#[test]
fn refused_node_keeps_its_objects_and_its_cluster() {
    let mut bench = Bench::new();
    let cluster = ClusterId(9);
    bench.handle(Event::Unlinked);
    bench.join(Registered { epoch: 5, cluster, ..Registered::default() });
    bench.put(UNIT);
    // A master of an earlier release does not know the cluster.
    bench.handle(Event::Unlinked);
    bench.join(Registered { epoch: 5, ..Registered::default() });
    bench.restart(&[]);
    let refusal = Refusal { reason: Reason::OtherCluster, message: "other".into() };
    bench.handle(Event::Linked(NodeInfo::default()));
    let asked = bench.asked();
    assert!(matches!(asked[..], [MemberToMaster::Register(it)] if it.cluster == cluster && it.epoch == 5));
    bench.answer(Reply::Refused(refusal.clone()));
    assert_eq!(bench.effects, [Effect::Refused(refusal)]);
    assert_eq!((bench.node.inventory().len(), bench.node.epoch(), bench.image.slots.len()), (1, 5, 1));
    assert!(!bench.image.is_member);
    bench.rejoin(Registered { cluster, ..Registered::default() });
    assert_eq!(bench.node.inventory().len(), 1);
}

#[test]
fn new_memory_joins_the_cluster_of_its_disks() {
    let mut bench = Bench::new();
    bench.node.join_cluster(ClusterId(0));
    assert_eq!(bench.node.cluster(), ClusterId(0));
    bench.node.join_cluster(ClusterId(9));
    bench.node.join_cluster(ClusterId(8));
    bench.handle(Event::Linked(NodeInfo::default()));
    let asked = bench.asked();
    assert!(matches!(asked[..], [MemberToMaster::Register(it)] if it.cluster == ClusterId(9)));
}
