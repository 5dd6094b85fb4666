//! Tests of the node's rules.

use std::collections::BTreeSet;

use tiffin_types::{
    Key, Location, Reservation, Stamp,
    message::{AllocateItem, Announced, PutOptions, Record, Registered, Retire},
};

use super::{tests_adopt::Image, *};

pub(super) const CONN: ConnId = ConnId(1);
pub(super) const WRITER: ClientId = ClientId(7);
pub(super) const UNIT: u64 = 64;

pub(super) struct Bench {
    pub(super) node: Node,
    next_id: u64,
    pub(super) effects: Vec<Effect>,
    /// Offers that their client has claimed.
    pub(super) claimed: BTreeSet<SlotRef>,
    /// Offers that were recalled, or found claimed, in order.
    pub(super) recalls: Vec<SlotRef>,
    /// What the memory says.
    pub(super) image: Image,
}

impl Bench {
    /// A node of eight units that is a member, with one client connected.
    pub(super) fn new() -> Self {
        Self::with_slots(8, 8)
    }

    pub(super) fn with_slots(units: u64, slot_count: u32) -> Self {
        let config = NodeConfig {
            segment: SegmentId(3),
            capacity: units * UNIT,
            slot_count,
            heap_bytes: 128 * u64::from(slot_count),
            chunk_bytes: 1 << 16,
            chunks_free: 2,
            restores: false,
            extents_max: tiffin_types::EXTENTS_MAX,
            stamp_key: StampKey::from_bytes(*b"sixteen letters!"),
            mutant: Mutant::None,
        };
        let (claimed, recalls) = (BTreeSet::new(), Vec::new());
        let (node, image) = (Node::new(config), Image::default());
        let mut bench = Self { node, next_id: 0, effects: Vec::new(), claimed, recalls, image };
        bench.join(Registered { epoch: 5, ..Registered::default() });
        bench.handle(Event::Opened { conn: CONN, client: WRITER, namespace: "default".into() });
        bench
    }

    pub(super) fn join(&mut self, registered: Registered) {
        self.handle(Event::Linked(NodeInfo::default()));
        self.answer(Reply::Registered(registered));
        while !self.node.is_member() {
            self.answer(Reply::Announced(Announced::default()));
        }
    }

    pub(super) fn handle(&mut self, event: Event) {
        self.node.handle(event);
        self.drain();
    }

    pub(super) fn drain(&mut self) {
        self.effects.clear();
        while let Some(effect) = self.node.poll_effect() {
            if let Effect::Recall(slot_refs) = &effect {
                self.recalls.extend(slot_refs);
                let outcomes = slot_refs.iter().map(|slot_ref| (*slot_ref, !self.claimed.contains(slot_ref)));
                self.node.handle(Event::Recalled(outcomes.collect()));
            }
            self.image.apply(&effect);
            self.effects.push(effect);
        }
    }

    /// Replies to the last request to the master.
    pub(super) fn answer(&mut self, reply: Reply) {
        let asked = self.effects.iter().rev().find_map(|it| match it {
            Effect::AskMaster(id, _) => Some(*id),
            _ => None,
        });
        self.handle(Event::MasterReply(asked.unwrap(), reply));
    }

    pub(super) fn master(&mut self, request: MasterToMember) -> Reply {
        self.handle(Event::MasterRequest(RequestId(99), request));
        let answer = self.effects.iter().rev().find_map(|it| match it {
            Effect::AnswerMaster(RequestId(99), reply) => Some(reply.clone()),
            _ => None,
        });
        answer.unwrap_or_else(|| panic!("{:?}", self.effects))
    }

    pub(super) fn client(&mut self, request: ClientToNode) -> Option<Reply> {
        self.next_id += 1;
        let id = RequestId(self.next_id);
        self.handle(Event::Request { conn: CONN, id, request });
        self.reply_to(id)
    }

    pub(super) fn goodbye(&mut self) {
        self.next_id += 1;
        let id = RequestId(self.next_id);
        self.handle(Event::Goodbye { conn: CONN, id });
        assert_eq!(self.reply_to(id), Some(Reply::Done));
    }

    fn reply_to(&self, wanted: RequestId) -> Option<Reply> {
        self.effects.iter().find_map(|it| match it {
            Effect::Reply { id, reply, .. } if *id == wanted => Some(reply.clone()),
            _ => None,
        })
    }

    pub(super) fn reserve(&mut self, len: u64) -> Option<Reservation> {
        let allocate = Allocate {
            client: WRITER,
            items: vec![AllocateItem { len, name_len: 20, attributes_len: 0 }],
            offered: false,
            ..Allocate::default()
        };
        match self.master(MasterToMember::Allocate(allocate)) {
            Reply::Allocated(mut allocated) => allocated.items.remove(0),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn commit(&mut self, location: Location, len: u64) -> Option<Reply> {
        let item = CommitItem {
            slot_ref: location.slot_ref(),
            key: Key::new(b"k").unwrap(),
            len,
            options: PutOptions::default(),
            others: vec![],
        };
        self.client(ClientToNode::Commit(Commit { items: vec![item], wait_ms: 0 }))
    }

    /// The outcome of a commit of one unit, if the master is not asked.
    pub(super) fn commit_outcome(&mut self, slot_ref: SlotRef) -> Option<CommitOutcome> {
        let location = Location { segment: SegmentId(3), slot: slot_ref.slot, stamp: slot_ref.stamp };
        match self.commit(location, UNIT)? {
            Reply::Committed(mut outcomes) => Some(outcomes.remove(0)),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn put(&mut self, len: u64) -> Location {
        let location = self.reserve(len).unwrap().location;
        assert_eq!(self.commit(location, len), None);
        self.answer(Reply::Decided(vec![CommitOutcome::Stored(GENERATION)]));
        location
    }

    /// The master receives the ends of reservations, and replies.
    pub(super) fn let_end(&mut self) {
        let asked = self.effects.iter().find_map(|it| match it {
            Effect::AskMaster(id, MemberToMaster::Released(_)) => Some(*id),
            _ => None,
        });
        self.handle(Event::MasterReply(asked.unwrap(), Reply::Done));
    }

    pub(super) fn retire(&mut self, location: Location) {
        self.master(MasterToMember::Retire(Retire { slot_refs: vec![location.slot_ref()] }));
    }

    pub(super) fn free(&self) -> u64 {
        self.node.usage().free / UNIT
    }
}

pub(super) const GENERATION: tiffin_types::Generation = tiffin_types::Generation { epoch: 5, counter: 1 };

#[test]
fn memory_is_written_before_requests_and_replies() {
    let mut bench = Bench::new();
    let location = bench.reserve(100).unwrap().location;
    bench.commit(location, 100);
    let states = |effects: &[Effect]| {
        effects
            .iter()
            .filter_map(|it| match it {
                Effect::Slot { record, .. } => Some(format!("{:?}", record.state)),
                Effect::AskMaster(..) => Some("ask".into()),
                Effect::Reply { .. } => Some("reply".into()),
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(states(&bench.effects), ["Prepared", "ask"]);
    bench.answer(Reply::Decided(vec![CommitOutcome::Stored(GENERATION)]));
    assert_eq!(states(&bench.effects), ["Committed", "reply"]);
}

#[test]
fn stamp_is_withdrawn_first_and_never_reused() {
    let mut bench = Bench::new();
    let mut seen = Vec::new();
    for _ in 0..20 {
        let location = bench.put(UNIT);
        assert!(!seen.contains(&location.stamp));
        seen.push(location.stamp);
        bench.handle(Event::MasterRequest(
            RequestId(9),
            MasterToMember::Retire(Retire { slot_refs: vec![location.slot_ref()] }),
        ));
        assert_eq!(bench.effects[0], Effect::Withdraw { slot: location.slot });
    }
    assert_eq!(bench.free(), 8);
}

#[test]
fn stamp_mark_is_ahead_of_every_stamp() {
    let mut node = Bench::new();
    let allocate = Allocate {
        client: WRITER,
        items: vec![AllocateItem { len: 1, name_len: 1, attributes_len: 0 }],
        offered: false,
        ..Allocate::default()
    };
    node.handle(Event::MasterRequest(RequestId(1), MasterToMember::Allocate(allocate)));
    let mark = node.effects.iter().position(|it| matches!(it, Effect::StampHighWater(2..)));
    let slot = node.effects.iter().position(|it| matches!(it, Effect::Slot { .. }));
    assert!(mark.is_some() && mark < slot, "{:?}", node.effects);
}

#[test]
fn commit_with_wrong_stamp_client_or_length_is_stale() {
    let mut bench = Bench::new();
    let location = bench.reserve(100).unwrap().location;
    let stale = Some(Reply::Committed(vec![CommitOutcome::Stale]));
    assert_eq!(bench.commit(Location { stamp: Stamp(77), ..location }, 100), stale);
    assert_eq!(bench.commit(location, 99), stale);
    let mut bench = Bench::new();
    let location = bench.reserve(100).unwrap().location;
    bench.handle(Event::Opened { conn: CONN, client: ClientId(8), namespace: String::new() });
    assert_eq!(bench.commit(location, 100), stale);
}

#[test]
fn repeated_commit_has_the_same_outcome() {
    let mut bench = Bench::new();
    let location = bench.put(100);
    assert_eq!(bench.commit(location, 100), None, "the master knows whether the replaced object is retired");
    let id = RequestId(bench.next_id);
    bench.answer(Reply::Decided(vec![CommitOutcome::Stored(GENERATION)]));
    assert_eq!(bench.reply_to(id), Some(Reply::Committed(vec![CommitOutcome::Stored(GENERATION)])));
    bench.retire(location);
    assert_eq!(bench.commit(location, 100), Some(Reply::Committed(vec![CommitOutcome::Stale])));
}

#[test]
fn commit_repeated_while_the_master_decides_has_its_outcome() {
    let asked = |bench: &Bench| {
        bench.effects.iter().find_map(|it| match it {
            Effect::AskMaster(id, MemberToMaster::Decide(_)) => Some(*id),
            _ => None,
        })
    };
    let all = [
        CommitOutcome::Stored(GENERATION),
        CommitOutcome::Replaced(GENERATION),
        CommitOutcome::Exists(GENERATION),
        CommitOutcome::Removed,
    ];
    for (outcome, is_retired) in all.into_iter().flat_map(|it| [(it.clone(), false), (it, true)]) {
        let mut bench = Bench::new();
        let location = bench.reserve(100).unwrap().location;
        assert_eq!(bench.commit(location, 100), None);
        let (first, decide) = (RequestId(bench.next_id), asked(&bench).unwrap());
        if is_retired {
            // The object was stored, and removed before the master could answer.
            bench.retire(location);
        }
        assert_eq!(bench.commit(location, 100), None, "the first one may still be stored");
        let second = RequestId(bench.next_id);
        assert_eq!(asked(&bench), None, "the master must not decide twice");
        bench.handle(Event::MasterReply(decide, Reply::Decided(vec![outcome.clone()])));
        assert_eq!(bench.reply_to(first), Some(Reply::Committed(vec![outcome.clone()])));
        assert_eq!(bench.reply_to(second), Some(Reply::Committed(vec![outcome])));
        assert_eq!(asked(&bench), None);
    }
}

#[test]
fn rejected_commit_frees_its_memory() {
    let mut bench = Bench::new();
    let location = bench.reserve(100).unwrap().location;
    bench.commit(location, 100);
    bench.answer(Reply::Decided(vec![CommitOutcome::Exists(GENERATION)]));
    assert_eq!(bench.free(), 8);
}

#[test]
fn refused_decision_is_requested_again() {
    let mut bench = Bench::new();
    let location = bench.reserve(100).unwrap().location;
    assert_eq!(bench.commit(location, 100), None);
    let id = RequestId(bench.next_id);
    let asks = |bench: &Bench| {
        let asked = |it: &&Effect| matches!(it, Effect::AskMaster(_, MemberToMaster::Decide(_)));
        bench.effects.iter().filter(asked).count()
    };
    for _ in 0..2 {
        bench.answer(refuse(Reason::Unavailable, "too many requests wait"));
        assert_eq!((asks(&bench), bench.reply_to(id)), (0, None), "nothing is known yet");
        bench.handle(Event::Beat);
        assert_eq!(asks(&bench), 1);
    }
    bench.answer(Reply::Decided(vec![CommitOutcome::Stored(GENERATION)]));
    assert_eq!(bench.reply_to(id), Some(Reply::Committed(vec![CommitOutcome::Stored(GENERATION)])));
    bench.handle(Event::Beat);
    assert_eq!(asks(&bench), 0);
}

#[test]
fn view_keeps_memory_and_needs_a_valid_stamp() {
    let mut bench = Bench::new();
    let location = bench.put(UNIT);
    let begin = ClientToNode::BeginViews(vec![location.slot_ref()]);
    assert_eq!(
        bench.client(begin.clone()),
        Some(Reply::ViewsBegun(vec![false])),
        "the client does not map the memory yet"
    );
    bench.handle(Event::Mapped(WRITER));
    assert_eq!(bench.client(begin.clone()), Some(Reply::ViewsBegun(vec![true])));
    bench.retire(location);
    assert_eq!((bench.free(), bench.node.usage().held), (7, UNIT));
    assert_eq!(bench.client(begin), Some(Reply::ViewsBegun(vec![false])));
    bench.client(ClientToNode::EndViews(vec![location.slot_ref()]));
    assert_eq!(bench.free(), 8);
    bench.client(ClientToNode::EndViews(vec![location.slot_ref()]));
    assert_eq!(bench.free(), 8);
}

/// How many of 32 objects, which fill the memory, one client can view, and then another one.
fn viewed_by_two(mutant: Mutant) -> (usize, usize) {
    let mut bench = Bench::with_slots(32, 32);
    bench.node.config.mutant = mutant;
    let other = (ConnId(2), ClientId(8));
    bench.handle(Event::Opened { conn: other.0, client: other.1, namespace: "default".into() });
    [WRITER, other.1].into_iter().for_each(|client| bench.handle(Event::Mapped(client)));
    let slot_refs: Vec<_> = (0..32).map(|_| bench.put(UNIT).slot_ref()).collect();
    let mut view = |conn, slot_refs: &[SlotRef]| {
        let request = ClientToNode::BeginViews(slot_refs.to_vec());
        bench.handle(Event::Request { conn, id: RequestId(77), request });
        match bench.reply_to(RequestId(77)) {
            Some(Reply::ViewsBegun(begun)) => begun.into_iter().filter(|it| *it).count(),
            reply => panic!("{reply:?}"),
        }
    };
    let first = view(CONN, &slot_refs);
    assert_eq!(view(CONN, &slot_refs[..1]), 1, "one more view of the same object takes nothing");
    let others: Vec<_> = slot_refs.iter().rev().copied().collect();
    (first, view(other.0, &others))
}

#[test]
fn views_of_one_client_leave_memory_to_others() {
    // The second one takes one of two units that are not in view, and may view fifteen times the other.
    assert_eq!(viewed_by_two(Mutant::None), (30, 15));
}

#[test]
fn held_memory_is_reported_by_namespace_at_once() {
    let mut bench = Bench::new();
    bench.handle(Event::Mapped(WRITER));
    let location = bench.put(UNIT);
    bench.client(ClientToNode::BeginViews(vec![location.slot_ref()]));
    let held = |bench: &Bench| {
        let told = bench.effects.iter().find_map(|it| match it {
            Effect::AskMaster(_, MemberToMaster::Released(released)) => Some(released.held.clone()),
            _ => None,
        });
        told.unwrap().into_iter().map(|it| (it.namespace, it.bytes)).collect::<Vec<_>>()
    };
    bench.retire(location);
    assert_eq!(held(&bench), [("default".to_owned(), UNIT)]);
    bench.client(ClientToNode::EndViews(vec![location.slot_ref()]));
    assert_eq!(held(&bench), []);
}

#[test]
fn mapped_writer_keeps_its_memory_until_proven_dead() {
    let mut bench = Bench::new();
    bench.handle(Event::Mapped(WRITER));
    bench.reserve(UNIT);
    bench.handle(Event::Closed(CONN));
    bench.master(MasterToMember::ClientGone(WRITER));
    assert_eq!(bench.free(), 7);
    bench.handle(Event::Dead(WRITER));
    bench.let_end();
    assert_eq!(bench.free(), 8);
}

#[test]
fn goodbye_frees_all_reservations() {
    let mut bench = Bench::new();
    bench.handle(Event::Mapped(WRITER));
    let location = bench.put(UNIT);
    bench.client(ClientToNode::BeginViews(vec![location.slot_ref()]));
    bench.reserve(UNIT);
    bench.goodbye();
    bench.let_end();
    bench.retire(location);
    assert_eq!(bench.free(), 8);
}

#[test]
fn socket_writer_ends_with_its_last_connection() {
    let mut bench = Bench::new();
    bench.handle(Event::DataOpened(WRITER));
    let slot_ref = bench.reserve(UNIT).unwrap().location.slot_ref();
    assert!(bench.node.begin_store(WRITER, slot_ref, 0, UNIT).is_some());
    bench.handle(Event::Closed(CONN));
    assert_eq!(bench.free(), 7);
    bench.handle(Event::DataClosed(WRITER));
    bench.let_end();
    assert_eq!((bench.free(), bench.node.usage().held), (7, UNIT), "a copy is in progress");
    bench.node.end_store(slot_ref);
    assert_eq!(bench.free(), 8);
}

#[test]
fn unconnected_client_ends_by_the_masters_message() {
    let mut bench = Bench::new();
    let allocate = Allocate {
        client: ClientId(8),
        items: vec![AllocateItem { len: 1, name_len: 1, attributes_len: 0 }],
        offered: false,
        ..Allocate::default()
    };
    bench.master(MasterToMember::Allocate(allocate));
    assert_eq!(bench.free(), 7);
    bench.master(MasterToMember::ClientGone(ClientId(8)));
    bench.let_end();
    assert_eq!(bench.free(), 8);
}

#[test]
fn freed_memory_is_reported_to_the_master_at_once() {
    let mut bench = Bench::new();
    let slot_ref = bench.reserve(UNIT).unwrap().location.slot_ref();
    let tells = |it: &Effect| matches!(it, Effect::AskMaster(_, MemberToMaster::Released(_)));
    assert!(!bench.effects.iter().any(tells));
    bench.client(ClientToNode::Abort(vec![slot_ref]));
    assert!(bench.effects.iter().any(tells));
    bench.client(ClientToNode::Abort(vec![slot_ref]));
    assert!(!bench.effects.iter().any(tells));
}

#[test]
fn keep_frees_unlisted_reservations() {
    let mut bench = Bench::new();
    let known = bench.reserve(UNIT).unwrap().location.slot_ref();
    bench.reserve(UNIT);
    bench.client(ClientToNode::Keep(vec![known]));
    bench.let_end();
    assert_eq!(bench.free(), 7);
    bench.client(ClientToNode::Abort(vec![known]));
    bench.let_end();
    assert_eq!(bench.free(), 8);
}

/// The record of the object that these tests reserve.
fn record(slot_ref: SlotRef) -> Record {
    Record {
        slot_ref,
        namespace: "default".into(),
        key: Key::new(b"k").unwrap(),
        generation: GENERATION,
        len: UNIT,
        attributes: Attributes::default(),
    }
}

#[test]
fn reservation_ends_after_the_master_unless_published() {
    let ends: [fn(&mut Bench, SlotRef); 4] = [
        |bench, slot_ref| drop(bench.client(ClientToNode::Abort(vec![slot_ref]))),
        |bench, _| drop(bench.client(ClientToNode::Keep(vec![]))),
        |bench, _| bench.goodbye(),
        |bench, _| bench.handle(Event::Dead(WRITER)),
    ];
    for (index, end) in ends.into_iter().enumerate() {
        let mut bench = Bench::new();
        let location = bench.reserve(UNIT).unwrap().location;
        end(&mut bench, location.slot_ref());
        assert_eq!(bench.free(), 7, "end {index}: the master may have published it");
        assert!(bench.node.begin_store(WRITER, location.slot_ref(), 0, 1).is_none(), "end {index}");
        let told = bench.effects.clone();
        let stale = Some(Reply::Committed(vec![CommitOutcome::Stale]));
        assert_eq!(bench.commit(location, UNIT), stale, "end {index}: its writer cannot commit");
        let settle = Settle { commit: vec![record(location.slot_ref())], ..Settle::default() };
        let Reply::Settled(settled) = bench.master(MasterToMember::Settle(settle)) else { panic!() };
        assert_eq!(settled.lost, [], "end {index}");
        bench.effects = told;
        bench.let_end();
        assert_eq!(bench.node.inventory(), [record(location.slot_ref())], "end {index}");
    }
}

#[test]
fn reservation_ended_offline_ends_after_reconnect() {
    let mut bench = Bench::new();
    let held = bench.reserve(UNIT).unwrap().location.slot_ref();
    let lost = bench.reserve(UNIT).unwrap().location.slot_ref();
    bench.client(ClientToNode::Abort(vec![lost]));
    bench.handle(Event::Unlinked);
    bench.client(ClientToNode::Abort(vec![held]));
    assert_eq!(bench.free(), 6, "the first reply is lost, the second was never sent");
    bench.join(Registered { epoch: 5, ..Registered::default() });
    assert_eq!(bench.free(), 6, "the same epoch may have published them");
    bench.let_end();
    assert_eq!(bench.free(), 8);
    let held = bench.reserve(UNIT).unwrap().location.slot_ref();
    bench.handle(Event::Unlinked);
    bench.client(ClientToNode::Abort(vec![held]));
    bench.join(Registered { epoch: 6, ..Registered::default() });
    assert_eq!(bench.free(), 8, "another epoch has not");
}

#[test]
fn missed_publication_is_committed_before_announcing() {
    let mut bench = Bench::new();
    let location = bench.reserve(UNIT).unwrap().location;
    let kept = bench.reserve(UNIT).unwrap().location;
    assert_eq!(bench.commit(location, UNIT), None, "its writer commits at the node");
    let id = RequestId(bench.next_id);
    bench.handle(Event::Unlinked);
    bench.handle(Event::Linked(NodeInfo::default()));
    let commit = vec![record(location.slot_ref())];
    bench.answer(Reply::Registered(Registered { epoch: 5, commit, ..Registered::default() }));
    let announced = bench.effects.iter().find_map(|it| match it {
        Effect::AskMaster(_, MemberToMaster::Announce(announce)) => Some(announce.items.clone()),
        _ => None,
    });
    assert_eq!(announced, Some(vec![record(location.slot_ref())]));
    let asks = |it: &Effect| matches!(it, Effect::AskMaster(_, MemberToMaster::Decide(_)));
    assert!(!bench.effects.iter().any(asks), "the master would take it for a new put");
    bench.answer(Reply::Announced(Announced::default()));
    assert!(bench.reply_to(id).is_none() && bench.effects.iter().any(asks), "now the master knows it");
    assert_eq!(bench.commit(kept, UNIT), None, "other reservations stay valid");
}

#[test]
fn resolved_object_can_be_read_before_its_settle() {
    let mut bench = Bench::new();
    bench.handle(Event::Mapped(WRITER));
    let slot_ref = bench.reserve(UNIT).unwrap().location.slot_ref();
    assert_eq!(
        bench.node.begin_send(slot_ref, 0, UNIT, Some(5)),
        None,
        "the node does not know yet that it is an object"
    );
    assert!(bench.node.begin_send(slot_ref, 0, UNIT, None).is_some());
    assert!(bench.node.end_send(slot_ref, None));
    assert_eq!(bench.client(ClientToNode::BeginViews(vec![slot_ref])), Some(Reply::ViewsBegun(vec![true])));
    bench.client(ClientToNode::Abort(vec![slot_ref]));
    bench.let_end();
    assert_eq!((bench.free(), bench.node.usage().held), (7, UNIT), "viewed memory stays");
    assert_eq!(bench.node.begin_send(slot_ref, 0, UNIT, None), None);
}

#[test]
fn store_needs_the_writer_range_and_valid_stamp() {
    let mut bench = Bench::new();
    let slot_ref = bench.reserve(100).unwrap().location.slot_ref();
    assert_eq!(bench.node.begin_store(ClientId(8), slot_ref, 0, 1), None);
    assert_eq!(bench.node.begin_store(WRITER, slot_ref, 50, 51), None);
    assert_eq!(bench.node.begin_store(WRITER, SlotRef { stamp: Stamp(99), ..slot_ref }, 0, 1), None);
    assert_eq!(bench.node.begin_store(WRITER, slot_ref, 50, 50), Some(vec![Extent { offset: 50, len: 50 }]));
    bench.node.end_store(slot_ref);
    bench.client(ClientToNode::Abort(vec![slot_ref]));
    assert_eq!(bench.node.begin_store(WRITER, slot_ref, 0, 1), None);
}

#[test]
fn bytes_sent_during_a_delete_are_invalid() {
    let mut bench = Bench::new();
    let location = bench.put(100);
    let slot_ref = location.slot_ref();
    assert!(bench.node.begin_send(slot_ref, 0, 100, None).is_some());
    assert!(bench.node.end_send(slot_ref, None));
    assert!(bench.node.begin_send(slot_ref, 0, 100, None).is_some());
    bench.retire(location);
    assert_eq!(bench.node.usage().held, 2 * UNIT);
    assert!(!bench.node.end_send(slot_ref, None));
    assert_eq!(bench.free(), 8);
    assert_eq!(bench.node.begin_send(slot_ref, 0, 1, None), None);
}

#[test]
fn cached_location_send_needs_a_member_of_the_epoch() {
    let mut bench = Bench::new();
    let slot_ref = bench.put(100).slot_ref();
    for (cached_epoch, counts) in [(None, true), (Some(5), true), (Some(4), false), (Some(6), false)] {
        let begins = bench.node.begin_send(slot_ref, 0, 100, cached_epoch).is_some();
        assert_eq!(begins, counts, "{cached_epoch:?}");
        assert!(!begins || bench.node.end_send(slot_ref, cached_epoch), "{cached_epoch:?}");
    }
    assert!(bench.node.begin_send(slot_ref, 0, 100, Some(5)).is_some());
    bench.node.handle(Event::Unlinked);
    assert!(!bench.node.end_send(slot_ref, Some(5)), "the node left while the bytes were sent");
    assert!(bench.node.begin_send(slot_ref, 0, 100, Some(5)).is_none());
    assert!(bench.node.begin_send(slot_ref, 0, 100, None).is_some(), "the client has resolved it");
    assert!(bench.node.end_send(slot_ref, None));
}

#[test]
fn missing_memory_slots_or_heap_is_a_reply() {
    let mut bench = Bench::new();
    assert_eq!(bench.reserve(9 * UNIT), None);
    assert_eq!(bench.reserve(u64::MAX), None);
    let allocate = Allocate {
        client: WRITER,
        items: vec![AllocateItem { len: 1, name_len: 2000, attributes_len: 0 }],
        offered: false,
        ..Allocate::default()
    };
    let Reply::Allocated(allocated) = bench.master(MasterToMember::Allocate(allocate)) else { panic!() };
    assert_eq!(allocated.items, [None]);
    assert_eq!(bench.free(), 8);
    for _ in 0..8 {
        assert!(bench.reserve(0).is_some());
    }
    assert_eq!(bench.reserve(0), None, "there are eight slots");
}

#[test]
fn reconnect_asks_again_and_lost_node_starts_empty() {
    let mut bench = Bench::new();
    let old = bench.put(UNIT);
    let location = bench.reserve(UNIT).unwrap().location;
    bench.commit(location, UNIT);
    bench.handle(Event::Unlinked);
    bench.handle(Event::Linked(NodeInfo::default()));
    bench.answer(Reply::Registered(Registered {
        epoch: 5,
        retire: vec![old.slot_ref()],
        ..Registered::default()
    }));
    let asked: Vec<_> = bench
        .effects
        .iter()
        .filter_map(|it| match it {
            Effect::AskMaster(_, MemberToMaster::Decide(decide)) => {
                Some(format!("decide {}", decide.items.len()))
            }
            Effect::AskMaster(_, MemberToMaster::Announce(announce)) => {
                Some(format!("announce {}", announce.items.len()))
            }
            Effect::Withdraw { slot } => Some(format!("withdraw {}", slot.0)),
            _ => None,
        })
        .collect();
    assert_eq!(asked, ["withdraw 0", "decide 1", "announce 0"]);
    let mut bench = Bench::new();
    bench.put(UNIT);
    bench.handle(Event::Unlinked);
    bench.join(Registered { epoch: 5, discard: true, ..Registered::default() });
    assert_eq!(bench.free(), 8);
}

#[test]
fn lost_node_hides_reservations_from_cached_reads() {
    let mut bench = Bench::new();
    let location = bench.reserve(UNIT).unwrap().location;
    bench.handle(Event::Unlinked);
    bench.handle(Event::Linked(NodeInfo::default()));
    bench.answer(Reply::Registered(Registered { epoch: 5, discard: true, ..Registered::default() }));
    let hidden = bench.effects.iter().filter_map(|it| match it {
        Effect::Slot { slot, record } => Some((*slot, record.stamp, record.state)),
        _ => None,
    });
    assert_eq!(hidden.collect::<Vec<_>>(), [(location.slot, location.stamp, SlotState::Ending)]);
    // Its writer continues.
    assert!(bench.node.begin_store(WRITER, location.slot_ref(), 0, UNIT).is_some());
    bench.node.end_store(location.slot_ref());
    bench.commit(location, UNIT);
    let is_asked = |it: &Effect| matches!(it, Effect::AskMaster(_, MemberToMaster::Decide(_)));
    assert!(bench.effects.iter().any(is_asked));
}

#[test]
fn settled_reservation_commits_and_stale_is_reported() {
    let mut bench = Bench::new();
    let slot_ref = bench.reserve(10).unwrap().location.slot_ref();
    let record = |slot_ref| Record { len: 10, ..record(slot_ref) };
    let gone = SlotRef { stamp: Stamp(99), ..slot_ref };
    let settle = Settle { commit: vec![record(slot_ref), record(gone)], ..Settle::default() };
    let Reply::Settled(settled) = bench.master(MasterToMember::Settle(settle)) else { panic!() };
    assert_eq!(settled.lost, [gone]);
    assert_eq!(settled.usage.objects, 1);
    assert!(bench.node.begin_send(slot_ref, 0, 10, None).is_some());
}

/// The master that reserved memory for a copy ends before it learns that the copy cannot be committed.
#[test]
fn reservation_that_cannot_be_committed_ends_with_its_master() {
    let mut bench = Bench::new();
    let items = vec![AllocateItem { len: 10, name_len: 20, attributes_len: 0 }];
    let allocate = Allocate { client: ClientId::PROMOTER, items, ..Allocate::default() };
    let Reply::Allocated(allocated) = bench.master(MasterToMember::Allocate(allocate)) else { panic!() };
    let slot_ref = allocated.items[0].as_ref().unwrap().location.slot_ref();
    let attributes = Attributes { pins: vec!["set since".into()], ..Attributes::default() };
    let commit = vec![Record { len: 10, attributes, ..record(slot_ref) }];
    let settle = MasterToMember::Settle(Settle { commit, abort: vec![], retire: vec![] });
    let Reply::Settled(settled) = bench.master(settle) else { panic!() };
    assert_eq!((settled.lost, bench.free()), (vec![slot_ref], 7));
    bench.handle(Event::Unlinked);
    bench.join(Registered { epoch: 6, ..Registered::default() });
    assert_eq!(bench.free(), 8);
}

#[test]
fn settle_retires_replaced_copies_after_the_commits() {
    let mut bench = Bench::new();
    let [old, new] = [10, 10].map(|len| bench.reserve(len).unwrap().location.slot_ref());
    let commit = |slot_ref| vec![Record { len: 10, ..record(slot_ref) }];
    let words = [
        Settle { commit: commit(old), ..Settle::default() },
        Settle { commit: commit(new), abort: vec![], retire: vec![old] },
    ];
    bench.handle(Event::LedgerRead((7..).map(RequestId).zip(words).collect()));
    let usage = bench.node.usage();
    assert_eq!((usage.objects, usage.granted), (1, 0));
    assert!(bench.node.begin_send(old, 0, 10, None).is_none());
    assert!(bench.node.begin_send(new, 0, 10, None).is_some());
}

#[test]
fn ledger_messages_get_one_reply() {
    let mut bench = Bench::new();
    let slot_refs = [10, 10, 10].map(|len| bench.reserve(len).unwrap().location.slot_ref());
    let gone = SlotRef { stamp: Stamp(99), ..slot_refs[0] };
    let record = |slot_ref| Record { len: 10, ..record(slot_ref) };
    let words = [
        Settle { commit: vec![record(slot_refs[0])], ..Settle::default() },
        Settle { commit: vec![record(gone)], abort: vec![slot_refs[1]], retire: vec![] },
        Settle { commit: vec![record(slot_refs[2])], ..Settle::default() },
    ];
    let words: Vec<_> = (7..).map(RequestId).zip(words).collect();
    bench.handle(Event::LedgerRead(words));
    let answers = bench.effects.iter().filter_map(|it| match it {
        Effect::AnswerMaster(id, reply) => Some((*id, reply.clone())),
        _ => None,
    });
    let usage = bench.node.usage();
    let settled = Settled { lost: vec![gone], usage, also: vec![RequestId(7), RequestId(8)] };
    assert_eq!(answers.collect::<Vec<_>>(), [(RequestId(9), Reply::Settled(settled))]);
    assert_eq!((usage.objects, usage.granted), (2, 0));
    bench.handle(Event::LedgerRead(vec![]));
    assert_eq!(bench.effects, []);
}

#[test]
fn pending_decision_overrides_a_late_abort() {
    // A publication that its writer gave up arrived late and was rejected, after the node had been asked.
    for (outcome, free) in [(CommitOutcome::Stored(GENERATION), 7), (CommitOutcome::Exists(GENERATION), 8)] {
        let mut bench = Bench::new();
        let location = bench.reserve(UNIT).unwrap().location;
        assert_eq!(bench.commit(location, UNIT), None);
        let asked = bench.effects.clone();
        bench
            .master(MasterToMember::Settle(Settle { abort: vec![location.slot_ref()], ..Settle::default() }));
        assert_eq!(bench.free(), 7, "the master has not received the request yet");
        bench.effects = asked;
        bench.answer(Reply::Decided(vec![outcome]));
        assert_eq!(bench.free(), free);
    }
}

#[test]
fn replaced_connection_is_closed_and_ignored() {
    let mut bench = Bench::new();
    let location = bench.reserve(10).unwrap().location;
    bench.handle(Event::Opened { conn: ConnId(2), client: WRITER, namespace: "default".into() });
    assert_eq!(bench.effects, [Effect::Disconnect(CONN)]);
    assert_eq!(bench.commit(location, 10), None);
    assert!(bench.effects.is_empty());
}

#[test]
#[cfg(feature = "mutants")]
fn node_that_hears_a_replaced_connection_is_noticed() {
    let all = [Mutant::NodeServesOldConnections, Mutant::ViewEverything, Mutant::AskTogether];
    assert_eq!(Mutant::OF_NODES, all);
    assert_eq!(viewed_by_two(Mutant::ViewEverything), (32, 32));
    let mut bench = Bench::new();
    bench.node.config.mutant = Mutant::NodeServesOldConnections;
    let location = bench.reserve(10).unwrap().location;
    bench.handle(Event::Opened { conn: ConnId(2), client: WRITER, namespace: "default".into() });
    assert_ne!(bench.effects, [Effect::Disconnect(CONN)]);
    bench.commit(location, 10);
    assert!(!bench.effects.is_empty(), "the commit was ignored");
}

#[test]
fn other_master_with_smaller_or_equal_epoch_is_rejected() {
    for (epoch, instance, accepts) in [(4, 1, false), (5, 1, false), (5, 0, true), (6, 1, true)] {
        let mut bench = Bench::new();
        bench.put(UNIT);
        bench.handle(Event::Unlinked);
        bench.handle(Event::Linked(NodeInfo::default()));
        bench.answer(Reply::Registered(Registered {
            epoch,
            instance,
            discard: true,
            ..Registered::default()
        }));
        let rejected = bench.effects.contains(&Effect::RejectMaster { served: 5, offered: epoch });
        assert_eq!(rejected, !accepts, "{epoch} {instance}");
        assert_eq!(bench.free(), if accepts { 8 } else { 7 });
    }
}

#[test]
fn requests_for_disks_and_store_are_rejected() {
    let mut bench = Bench::new();
    for request in [MasterToMember::Demote(vec![]), MasterToMember::Promote(vec![])] {
        let Reply::Refused(refusal) = bench.master(request) else { panic!() };
        assert_eq!(refusal.reason, Reason::NotForYou);
    }
    let store = ClientToNode::Store(tiffin_types::message::Store::default());
    assert!(
        matches!(bench.client(store), Some(Reply::Refused(refusal)) if refusal.reason == Reason::Invalid)
    );
}
