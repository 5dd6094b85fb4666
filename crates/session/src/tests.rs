//! Tests of puts and gets: each step when peers fail.

mod pauses;

use std::collections::BTreeSet;

use super::*;
use tiffin_types::{
    Generation, Key, SlotId, SlotRef, Stamp,
    message::{
        CallPart, CommitOutcome, Found, Full, NodeInfo, OnExists, PutOptions, Reply, ReserveOutcome,
        Reserved, ResolveOutcome, Resolved,
    },
    mutant::Mutant,
};

const GENERATION: Generation = Generation { epoch: 1, counter: 1 };

fn location(segment: u64, stamp: u64) -> Location {
    Location { segment: SegmentId(segment), slot: SlotId(0), stamp: Stamp(stamp) }
}

fn request(index: usize, ready: &[Location]) -> PutRequest {
    PutRequest {
        key: Key::new(format!("k{index}").as_bytes()).unwrap(),
        len: 10,
        options: PutOptions { replicas: 1, on_exists: OnExists::Keep, ..PutOptions::default() },
        ready: ready.iter().map(|&location| Reservation { location, extents: vec![] }).collect(),
    }
}

fn put_of(count: usize) -> Put {
    Put::new((0..count).map(|index| request(index, &[])).collect())
}

fn get_of_one() -> Get {
    let request = GetRequest { key: Key::new(b"k").unwrap(), known: None };
    Get::new(vec![request], false, Box::new(|node| node.segment.0 as u8))
}

fn space(locations: &[Location]) -> ReserveOutcome {
    let reservation = |&location| Reservation { location, extents: vec![] };
    ReserveOutcome::Space(locations.iter().map(reservation).collect())
}

fn reserved(items: Vec<ReserveOutcome>) -> Result<Reply, CallFailure> {
    Ok(Reply::Reserved(Reserved { items, ..Reserved::default() }))
}

fn resolved(outcome: ResolveOutcome) -> Result<Reply, CallFailure> {
    let node = |segment| NodeInfo {
        segment: SegmentId(segment),
        name: format!("n{segment}"),
        ..NodeInfo::default()
    };
    Ok(Reply::Resolved(Resolved { items: vec![outcome], nodes: vec![node(1), node(2)] }))
}

fn found(replicas: &[Location]) -> ResolveOutcome {
    ResolveOutcome::Found(Found {
        generation: GENERATION,
        len: 10,
        replicas: replicas.to_vec(),
        ..Found::default()
    })
}

fn lost() -> Result<Reply, CallFailure> {
    Err(CallFailure::Unreachable)
}

fn to_master(need: Option<Need>) -> (NeedId, ClientToMaster) {
    match need {
        Some(Need::AskMaster { id, request }) => (id, request),
        other => panic!("{other:?}"),
    }
}

fn asked(need: Option<Need>) -> NeedId {
    match need {
        Some(Need::AskMaster { id, .. } | Need::AskNode { id, .. }) => id,
        other => panic!("{other:?}"),
    }
}

fn to_node(need: Option<Need>) -> (NeedId, SegmentId, ClientToNode) {
    match need {
        Some(Need::AskNode { id, segment, request, .. }) => (id, segment, request),
        other => panic!("{other:?}"),
    }
}

fn write(need: Option<Need>) -> (NeedId, usize, Location) {
    match need {
        Some(Need::Write { id, item, reservation, .. }) => (id, item, reservation.location),
        other => panic!("{other:?}"),
    }
}

fn read(need: Option<Need>) -> (NeedId, Location) {
    match need {
        Some(Need::Read { id, location, .. }) => (id, location),
        other => panic!("{other:?}"),
    }
}

#[test]
fn batch_is_one_message_to_each_peer() {
    let mut put = put_of(2);
    let (id, request) = to_master(put.poll());
    assert!(matches!(&request, ClientToMaster::Reserve(it) if it.items.len() == 2));
    put.replied(id, reserved(vec![space(&[location(1, 1)]), space(&[location(1, 2)])]));
    let writes = [write(put.poll()), write(put.poll())];
    assert_eq!(put.reserved().count(), 2);
    writes.iter().for_each(|(id, ..)| put.written(*id, WriteResult::Written));
    let (id, _, request) = to_node(put.poll());
    assert!(matches!(request, ClientToNode::Commit(it) if it.items.len() == 2));
    let stored = vec![CommitOutcome::Stored(GENERATION), CommitOutcome::Exists(GENERATION)];
    put.replied(id, Ok(Reply::Committed(stored)));
    assert!(put.is_done() && put.poll().is_none());
    assert_eq!(
        put.into_outcomes(),
        [
            PutOutcome::Stored {
                generation: GENERATION,
                replicas: vec![location(1, 1)],
                replaced: false,
                unconfirmed: vec![]
            },
            PutOutcome::Exists(GENERATION)
        ]
    );
}

#[test]
fn bytes_may_be_sent_inside_the_next_commit() {
    let same_host = |same_host| {
        let reservations = vec![
            space(&[location(1, 1)]),
            space(&[location(1, 2)]),
            space(&[location(1, 3), location(2, 4)]),
        ];
        Ok(Reply::Reserved(Reserved { items: reservations, same_host, ..Reserved::default() }))
    };
    for (same_host, expected) in
        [(same_host(vec![]), [true, true, false]), (same_host(vec![SegmentId(1)]), [false, true, false])]
    {
        let mut requests: Vec<_> = (0..3).map(|index| request(index, &[])).collect();
        requests[1].options.hard_pin = true;
        let mut put = Put::new(requests);
        let id = asked(put.poll());
        assert!(!put.is_asked_next(0, SegmentId(1)), "nothing is reserved yet");
        put.replied(id, same_host);
        let asked_next = [0, 1, 2].map(|item| put.is_asked_next(item, SegmentId(1)));
        assert_eq!(asked_next, expected);
        let (id, ..) = write(put.poll());
        put.written(id, WriteResult::Written);
        assert!(!put.is_asked_next(0, SegmentId(1)), "the copy is written");
        assert!(!put.is_asked_next(9, SegmentId(1)), "there is no such item");
    }
}

#[test]
fn unsettled_publications_are_committed() {
    let same_host =
        |items| Ok(Reply::Reserved(Reserved { items, same_host: vec![SegmentId(1)], ..Reserved::default() }));
    let outcome = || CommitOutcome::Stored(GENERATION);
    type Answer = Result<Reply, CallFailure>;
    let answers: [(Answer, usize); 4] = [
        (Ok(Reply::Published(vec![Some(outcome()), Some(outcome())])), 0),
        (Ok(Reply::Published(vec![None, Some(outcome())])), 1),
        (Ok(Reply::Published(vec![])), 2),
        (lost(), 2),
    ];
    for (answer, left) in answers {
        let mut put = put_of(3);
        let id = asked(put.poll());
        let reservations = vec![space(&[location(1, 1)]), space(&[location(1, 2)]), space(&[location(2, 3)])];
        put.replied(id, same_host(reservations));
        let writes = [write(put.poll()), write(put.poll()), write(put.poll())];
        writes.iter().for_each(|(id, ..)| put.written(*id, WriteResult::Written));
        let (publish, request) = to_master(put.poll());
        let homes = |it: &tiffin_types::message::Publish| it.items.iter().all(|it| it.home == SegmentId(1));
        assert!(matches!(&request, ClientToMaster::Publish(it) if homes(it)));
        let (commit, _, request) = to_node(put.poll());
        assert!(matches!(request, ClientToNode::Commit(it) if it.items.len() == 1));
        put.replied(commit, Ok(Reply::Committed(vec![outcome()])));
        put.replied(publish, answer.clone());
        if left > 0 {
            let (id, segment, request) = to_node(put.poll());
            assert_eq!(segment, SegmentId(1));
            assert!(matches!(&request, ClientToNode::Commit(it) if it.items.len() == left), "{answer:?}");
            assert_eq!(put.reserved().count(), left, "they are still reserved");
            put.replied(id, Ok(Reply::Committed(vec![outcome(); left])));
        }
        assert!(put.is_done() && put.poll().is_none(), "{answer:?}");
        assert!(put.into_outcomes().iter().all(|it| matches!(it, PutOutcome::Stored { .. })));
    }
}

#[test]
fn attributes_or_several_copies_need_a_commit() {
    let marked = PutOptions { replicas: 1, hard_pin: true, ..PutOptions::default() };
    let plain = PutOptions { replicas: 2, ..PutOptions::default() };
    // Two copies were requested and one was reserved: the number of copies is an attribute.
    let one_of_two = (plain.clone(), vec![location(1, 1)]);
    let two = (plain, vec![location(1, 1), location(2, 2)]);
    for (options, ready) in [(marked, vec![location(1, 1)]), two, one_of_two] {
        let request = PutRequest { options, ..request(0, &ready) };
        let mut put = Put::new(vec![request]).publishing([SegmentId(1), SegmentId(2)].into());
        let writes: Vec<_> = ready.iter().map(|_| write(put.poll())).collect();
        writes.iter().for_each(|(id, ..)| put.written(*id, WriteResult::Written));
        let (_, _, request) = to_node(put.poll());
        assert!(matches!(request, ClientToNode::Commit(_)));
    }
}

#[test]
fn put_uses_another_node_after_a_failed_write() {
    let mut put = put_of(1);
    let id = asked(put.poll());
    put.replied(id, reserved(vec![space(&[location(1, 1)])]));
    let (id, ..) = write(put.poll());
    put.written(id, WriteResult::Unreachable("gone".into()));
    let (abort, segment, request) = to_node(put.poll());
    assert_eq!((segment, request), (SegmentId(1), ClientToNode::Abort(vec![location(1, 1).slot_ref()])));
    put.replied(abort, lost());
    let (_, request) = to_master(put.poll());
    assert!(matches!(request, ClientToMaster::Reserve(it) if it.avoid == [SegmentId(1)]));
}

#[test]
fn put_uses_another_node_after_an_unsent_commit() {
    let mut put = put_of(1);
    let id = asked(put.poll());
    put.replied(id, reserved(vec![space(&[location(1, 1)])]));
    let (id, ..) = write(put.poll());
    put.written(id, WriteResult::Written);
    let id = asked(put.poll());
    put.replied(id, Err(CallFailure::Unwritten));
    let (abort, segment, request) = to_node(put.poll());
    assert_eq!((segment, request), (SegmentId(1), ClientToNode::Abort(vec![location(1, 1).slot_ref()])));
    put.replied(abort, lost());
    let (_, request) = to_master(put.poll());
    assert!(matches!(request, ClientToMaster::Reserve(it) if it.avoid == [SegmentId(1)]));
}

/// The first commit may have been stored, so another reservation could store the object twice.
#[test]
fn unsent_repetition_of_a_commit_is_repeated() {
    let mut put = put_of(1);
    let id = asked(put.poll());
    put.replied(id, reserved(vec![space(&[location(1, 1)])]));
    let (id, ..) = write(put.poll());
    put.written(id, WriteResult::Written);
    let (id, _, first) = to_node(put.poll());
    put.replied(id, lost());
    let (id, _, second) = to_node(put.poll());
    assert_eq!(second, first);
    put.replied(id, Err(CallFailure::Unwritten));
    let (_, segment, third) = to_node(put.poll());
    assert_eq!((segment, third), (SegmentId(1), first));
}

#[test]
fn put_of_unreadable_bytes_ends_and_releases_its_memory() {
    let mut put = put_of(1);
    let id = asked(put.poll());
    put.replied(id, reserved(vec![space(&[location(1, 1)])]));
    let (id, ..) = write(put.poll());
    put.written(id, WriteResult::Unreadable);
    let (id, segment, request) = to_node(put.poll());
    assert!(matches!(request, ClientToNode::Abort(_)), "{request:?}");
    assert_eq!(segment, SegmentId(1));
    put.replied(id, Ok(Reply::Done));
    assert!(put.poll().is_none() && put.is_done(), "no node is tried again");
    assert!(matches!(put.into_outcomes().as_slice(), [PutOutcome::Invalid(_)]));
}

#[test]
fn failed_copy_is_released_and_others_are_committed() {
    let mut put = put_of(1);
    let id = asked(put.poll());
    put.replied(id, reserved(vec![space(&[location(1, 1), location(2, 2)])]));
    let (first, second) = (write(put.poll()), write(put.poll()));
    put.written(first.0, WriteResult::Unreachable("gone".into()));
    put.written(second.0, WriteResult::Written);
    let abort = to_node(put.poll());
    assert_eq!(abort.1, SegmentId(1));
    put.replied(abort.0, lost());
    let (id, segment, _) = to_node(put.poll());
    assert_eq!(segment, SegmentId(2));
    put.replied(id, Ok(Reply::Committed(vec![CommitOutcome::Stored(GENERATION)])));
    assert!(matches!(put.into_outcomes()[0], PutOutcome::Stored { ref replicas, .. } if replicas.len() == 1));
}

#[test]
fn commit_without_reply_is_repeated_with_the_stamp() {
    let mut put = put_of(1);
    let id = asked(put.poll());
    put.replied(id, reserved(vec![space(&[location(1, 1)])]));
    let (id, ..) = write(put.poll());
    put.written(id, WriteResult::Written);
    let (id, segment, request) = to_node(put.poll());
    put.replied(id, lost());
    let again = to_node(put.poll());
    assert_eq!((again.1, &again.2), (segment, &request));
    put.replied(again.0, Ok(Reply::Committed(vec![CommitOutcome::Stored(GENERATION)])));
    assert!(matches!(put.into_outcomes()[0], PutOutcome::Stored { .. }));
}

/// Whether a put that may have been stored and removed is put again.
fn is_put_again(mutant: Mutant, is_answered: bool, outcome: CommitOutcome) -> bool {
    let mut put = put_of(1).breaking(mutant);
    let id = asked(put.poll());
    put.replied(id, reserved(vec![space(&[location(1, 1)])]));
    let (id, ..) = write(put.poll());
    put.written(id, WriteResult::Written);
    let (mut id, ..) = to_node(put.poll());
    if !is_answered {
        put.replied(id, lost());
        id = to_node(put.poll()).0;
    }
    put.replied(id, Ok(Reply::Committed(vec![outcome])));
    match put.poll() {
        None => {
            let outcome = put.into_outcomes().remove(0);
            assert!(matches!(outcome, PutOutcome::Unreachable(_)), "{outcome:?}");
            false
        }
        need => matches!(to_master(need).1, ClientToMaster::Reserve(_)),
    }
}

#[test]
fn put_that_may_have_been_stored_is_not_put_again() {
    let again = |is_answered, outcome| is_put_again(Mutant::None, is_answered, outcome);
    assert!(again(true, CommitOutcome::Stale), "a stale reservation is reserved again");
    assert!(!again(false, CommitOutcome::Stale));
    assert!(!again(true, CommitOutcome::Removed));
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_repeated_puts_is_noticed() {
    assert!(is_put_again(Mutant::PutTwice, false, CommitOutcome::Stale));
    assert!(is_put_again(Mutant::PutTwice, true, CommitOutcome::Removed));
}

#[test]
fn item_with_reserved_space_starts_with_its_write() {
    let mut put = Put::new(vec![request(0, &[location(1, 1), location(2, 2)]), request(1, &[])]);
    assert_eq!(put.reserved().collect::<Vec<_>>(), [location(1, 1), location(2, 2)]);
    let writes = [write(put.poll()), write(put.poll())];
    assert_eq!(writes.map(|(_, item, location)| (item, location.segment.0)), [(0, 1), (0, 2)]);
    let (_, asked) = to_master(put.poll());
    let ClientToMaster::Reserve(reserve) = asked else { panic!("{asked:?}") };
    assert_eq!(reserve.items.into_iter().map(|it| it.key).collect::<Vec<_>>(), [request(1, &[]).key]);
    writes.iter().for_each(|(id, ..)| put.written(*id, WriteResult::Written));
    let (_, segment, asked) = to_node(put.poll());
    let ClientToNode::Commit(commit) = asked else { panic!("{asked:?}") };
    assert_eq!(segment, SegmentId(1));
    assert_eq!(
        (commit.items[0].slot_ref, &*commit.items[0].others),
        (location(1, 1).slot_ref(), &[location(2, 2)][..])
    );
}

#[test]
fn stale_reserved_space_is_reserved_again() {
    for is_written in [true, false] {
        let mut put = Put::new(vec![request(0, &[location(1, 1)])]);
        let (id, ..) = write(put.poll());
        if is_written {
            put.written(id, WriteResult::Written);
            let id = asked(put.poll());
            put.replied(id, Ok(Reply::Committed(vec![CommitOutcome::Stale])));
        } else {
            put.written(id, WriteResult::Stale);
        }
        assert_eq!(put.reserved().count(), 0);
        let (id, request) = to_master(put.poll());
        assert!(matches!(request, ClientToMaster::Reserve(it) if it.items.len() == 1));
        put.replied(id, reserved(vec![space(&[location(2, 2)])]));
        assert_eq!(write(put.poll()).2, location(2, 2));
    }
}

#[test]
fn put_has_a_maximum_number_of_attempts() {
    let mut put = put_of(1);
    for _ in 0..100 {
        match put.poll() {
            Some(Need::AskMaster { id, .. }) => {
                put.replied(id, reserved(vec![space(&[location(1, 1)])]));
            }
            Some(Need::AskNode { id, .. }) => put.replied(id, lost()),
            Some(Need::Write { id, .. }) => put.written(id, WriteResult::Stale),
            Some(Need::Read { .. } | Need::Stop { .. }) => panic!(),
            None => break,
        }
    }
    assert!(put.is_done());
    assert!(matches!(put.into_outcomes()[0], PutOutcome::Unreachable(_)));
}

#[test]
fn full_and_deadline_are_outcomes() {
    let mut put = put_of(2);
    let id = asked(put.poll());
    put.replied(id, reserved(vec![ReserveOutcome::Full(Full::default()), space(&[location(1, 1)])]));
    let outcomes = put.into_outcomes();
    assert_eq!(outcomes[0], PutOutcome::Full(Full::default()));
    assert!(
        matches!(&outcomes[1], PutOutcome::Unreachable(Unreached::Other(why)) if why.contains("deadline"))
    );
}

#[test]
fn closest_copy_is_read_and_the_next_after_a_failure() {
    let mut get = get_of_one();
    let id = asked(get.poll());
    get.replied(id, resolved(found(&[location(2, 2), location(1, 1)])));
    let (id, from) = read(get.poll());
    assert_eq!(from, location(1, 1));
    get.read(id, ReadResult::Unreachable("gone".into()));
    let (id, from) = read(get.poll());
    assert_eq!(from, location(2, 2));
    get.read(id, ReadResult::Unreachable("gone".into()));
    assert!(get.is_done());
    assert_eq!(get.into_outcomes(), [GetOutcome::Unavailable(vec!["n1".into(), "n2".into()])]);
}

#[test]
fn changed_stamp_resolves_again() {
    let mut get = get_of_one();
    let id = asked(get.poll());
    get.replied(id, resolved(found(&[location(1, 1)])));
    let (id, _) = read(get.poll());
    get.read(id, ReadResult::Stale);
    let id = asked(get.poll());
    get.replied(id, resolved(ResolveOutcome::Absent));
    assert_eq!(get.into_outcomes(), [GetOutcome::Absent]);
}

#[test]
fn constantly_replaced_object_is_contended() {
    let mut get = get_of_one();
    while let Some(need) = get.poll() {
        match need {
            Need::AskMaster { id, .. } => get.replied(id, resolved(found(&[location(1, 1)]))),
            Need::Read { id, .. } => get.read(id, ReadResult::Stale),
            Need::AskNode { .. } | Need::Write { .. } | Need::Stop { .. } => panic!(),
        }
    }
    assert_eq!(get.into_outcomes(), [GetOutcome::Contended]);
}

#[test]
fn small_buffer_and_lost_master_are_outcomes() {
    let mut get = get_of_one();
    let id = asked(get.poll());
    get.replied(id, resolved(found(&[location(1, 1)])));
    let (id, _) = read(get.poll());
    get.read(id, ReadResult::TooSmall);
    assert_eq!(get.into_outcomes(), [GetOutcome::TooSmall(10)]);
    let mut get = get_of_one();
    let id = asked(get.poll());
    get.replied(id, lost());
    assert_eq!(get.into_outcomes(), [GetOutcome::Unreachable(Unreached::Call(id))]);
}

#[test]
fn hold_is_the_location_without_its_segment() {
    assert_eq!(location(4, 9).slot_ref(), SlotRef { slot: SlotId(0), stamp: Stamp(9) });
}

fn known_get(replicas: &[Location]) -> Get {
    let found = Found { generation: GENERATION, len: 10, replicas: replicas.to_vec(), ..Found::default() };
    let request = GetRequest { key: Key::new(b"k").unwrap(), known: Some(found) };
    Get::new(vec![request], false, Box::new(|node| node.segment.0 as u8))
}

#[test]
fn cached_location_is_read_without_asking() {
    let mut get = known_get(&[location(1, 5)]);
    let Some(Need::Read { id, location: from, len, cached_epoch, .. }) = get.poll() else {
        panic!("no read")
    };
    assert_eq!((from, len, cached_epoch), (location(1, 5), 10, Some(1)));
    assert!(get.poll().is_none());
    get.read(id, ReadResult::Valid);
    assert!(get.is_done() && get.poll().is_none());
    assert!(
        matches!(get.into_outcomes().as_slice(), [GetOutcome::Read(found)] if found.generation == GENERATION)
    );
}

#[test]
fn failed_cached_location_is_resolved() {
    let wrong = [ReadResult::Stale, ReadResult::TooSmall, ReadResult::Unreachable("gone".into())];
    for result in wrong {
        let mut get = known_get(&[location(1, 5)]);
        let (id, _) = read(get.poll());
        get.read(id, result);
        let (id, request) = to_master(get.poll());
        assert!(matches!(request, ClientToMaster::Resolve(_)));
        // The same node may have the new one, and this read is not a cached-location read.
        get.replied(id, resolved(found(&[location(1, 6)])));
        let Some(Need::Read { id, cached_epoch, .. }) = get.poll() else { panic!("no read") };
        assert_eq!(cached_epoch, None);
        get.read(id, ReadResult::Unreachable("gone".into()));
        assert!(get.is_done());
        assert_eq!(get.into_outcomes(), [GetOutcome::Unavailable(vec!["n1".into()])]);
    }
}

#[test]
fn requests_say_which_part_of_the_call_they_are() {
    let known = Found { generation: GENERATION, len: 10, replicas: vec![location(1, 5)], ..Found::default() };
    let request = |index: usize| GetRequest {
        key: Key::new(format!("k{index}").as_bytes()).unwrap(),
        known: (index > 0).then(|| known.clone()),
    };
    let mut get = Get::new((0..3).map(request).collect(), false, Box::new(|_| 0));
    let mut reads = Vec::new();
    let mut asked = None;
    while let Some(need) = get.poll() {
        match need {
            Need::Read { id, .. } => reads.push(id),
            need => asked = Some(to_master(Some(need))),
        }
    }
    let part = |request: ClientToMaster| match request {
        ClientToMaster::Resolve(it) => (it.keys.len(), it.part.items, it.part.is_more, it.part.repeats),
        other => panic!("{other:?}"),
    };
    let (first, request) = asked.unwrap();
    assert_eq!(part(request), (1, 3, false, 0));
    get.read(reads[0], ReadResult::Valid);
    get.read(reads[1], ReadResult::Stale);
    let (second, request) = to_master(get.poll());
    assert_eq!(part(request), (1, 3, true, 0));
    assert_eq!([0, 1, 2].map(|item| get.is_asked(item)), [true, false, true]);
    assert_eq!([0, 1, 2].map(|item| get.is_located(item)), [false; 3]);
    get.replied(first, resolved(ResolveOutcome::Absent));
    get.replied(second, resolved(found(&[location(1, 6)])));
    assert!(get.is_located(2));
    let (id, _) = read(get.poll());
    get.read(id, ReadResult::Stale);
    let (_, request) = to_master(get.poll());
    assert_eq!(part(request), (1, 3, true, 1));
}

#[test]
fn request_for_all_objects_is_the_whole_call() {
    let (_, request) = to_master(get_of_one().poll());
    let ClientToMaster::Resolve(resolve) = request else { panic!("{request:?}") };
    assert_eq!(resolve.part, CallPart::default());
}

/// Two copies of one object that the master named.
fn get_of_two_copies() -> (Get, NeedId) {
    let mut get = get_of_one();
    let id = asked(get.poll());
    get.replied(id, resolved(found(&[location(1, 1), location(2, 2)])));
    let (id, from) = read(get.poll());
    assert_eq!(from, location(1, 1));
    (get, id)
}

#[test]
fn stalled_read_hedges_and_the_first_result_counts() {
    for first_wins in [true, false] {
        let (mut get, first) = get_of_two_copies();
        assert_eq!(get.due_us(), None, "a read that cannot stall is not watched");
        get.watch(first, 1000, 500);
        assert_eq!(get.due_us(), Some(1500));
        assert!(get.tick(1499).is_empty() && get.poll().is_none());
        assert_eq!(get.tick(1500), BTreeSet::from([SegmentId(1)]));
        assert!(get.tick(9999).is_empty(), "reported once");
        let (second, from) = read(get.poll());
        assert_eq!((from, get.reads(0)), (location(2, 2), 2));
        get.watch(second, 1500, 500);
        assert_eq!(get.due_us(), Some(2500), "twice as long as the read before");
        get.read(if first_wins { first } else { second }, ReadResult::Valid);
        assert!(get.is_done() && get.is_item_done(0), "the other read is not needed");
        get.read(if first_wins { second } else { first }, ReadResult::Stale);
        assert!(get.poll().is_none());
        assert!(matches!(get.into_outcomes().as_slice(), [GetOutcome::Read(_)]));
    }
}

#[test]
fn failed_hedge_leaves_the_first_read() {
    let (mut get, first) = get_of_two_copies();
    get.watch(first, 0, 10);
    get.tick(10);
    let (second, _) = read(get.poll());
    get.read(second, ReadResult::Unreachable("gone".into()));
    assert!(!get.is_done() && get.poll().is_none(), "the first may still complete");
    get.read(first, ReadResult::Unreachable("gone".into()));
    assert_eq!(get.into_outcomes(), [GetOutcome::Unavailable(vec!["n1".into(), "n2".into()])]);
}

#[test]
fn only_copy_is_waited_for() {
    let mut get = get_of_one();
    let id = asked(get.poll());
    get.replied(id, resolved(found(&[location(1, 1)])));
    let (id, _) = read(get.poll());
    get.watch(id, 0, 10);
    assert_eq!(get.tick(10), BTreeSet::from([SegmentId(1)]));
    assert!(get.poll().is_none() && get.due_us().is_none());
    assert!(get.progressed(id, 500), "the read was stalled before");
    assert_eq!(get.due_us(), Some(510));
    get.tick(510);
    assert!(get.poll().is_none(), "the read is not stopped");
    get.read(id, ReadResult::Valid);
    assert!(get.is_done());
}

#[test]
fn read_that_stalls_in_the_middle_is_stopped_first() {
    let (mut get, first) = get_of_two_copies();
    get.watch(first, 0, 10);
    assert!(!get.progressed(first, 9));
    assert!(get.tick(18).is_empty(), "bytes arrived");
    assert_eq!(get.tick(19), BTreeSet::from([SegmentId(1)]));
    assert_eq!(get.poll(), Some(Need::Stop { id: first }));
    assert!(get.poll().is_none(), "no other read may use the buffer before");
    get.read(first, ReadResult::Yielded);
    let (second, from) = read(get.poll());
    assert_eq!(from, location(2, 2));
    get.watch(second, 20, 10);
    get.progressed(second, 25);
    get.tick(100);
    assert_eq!(get.poll(), Some(Need::Stop { id: second }), "the first copy is tried again");
    get.read(second, ReadResult::Yielded);
    let (third, from) = read(get.poll());
    assert_eq!(from, location(1, 1));
    get.watch(third, 100, 10);
    get.progressed(third, 101);
    get.tick(1000);
    assert!(get.poll().is_none(), "one read must complete");
    get.read(third, ReadResult::Valid);
    assert!(get.is_done());
}

#[test]
fn read_that_lost_its_buffer_is_tried_again_if_the_other_fails() {
    let (mut get, first) = get_of_two_copies();
    get.watch(first, 0, 10);
    get.tick(10);
    let (second, _) = read(get.poll());
    get.read(first, ReadResult::Yielded);
    assert!(get.poll().is_none());
    get.read(second, ReadResult::Unreachable("gone".into()));
    let (_, from) = read(get.poll());
    assert_eq!(from, location(1, 1));
}

#[test]
fn stalled_cached_location_read_asks_the_master() {
    let mut get = known_get(&[location(1, 5)]);
    let (first, _) = read(get.poll());
    get.watch(first, 0, 10);
    get.tick(10);
    let id = asked(get.poll());
    get.replied(id, resolved(found(&[location(1, 5), location(2, 6)])));
    let Some(Need::Read { id: second, location: from, cached_epoch, .. }) = get.poll() else {
        panic!("no read")
    };
    assert_eq!((from, cached_epoch), (location(2, 6), None), "the first copy is being read");
    assert!(get.poll().is_none());
    get.read(first, ReadResult::Stale);
    let id = asked(get.poll());
    get.replied(id, resolved(ResolveOutcome::Absent));
    assert!(get.is_done(), "the master says that it does not exist");
    get.read(second, ReadResult::Valid);
    assert_eq!(get.into_outcomes(), [GetOutcome::Absent]);
}

#[test]
fn lost_master_does_not_end_a_read_in_progress() {
    for result in [ReadResult::Valid, ReadResult::Unreachable("gone".into())] {
        let mut get = known_get(&[location(1, 5)]);
        let (first, _) = read(get.poll());
        get.watch(first, 0, 10);
        get.tick(10);
        let id = asked(get.poll());
        get.replied(id, lost());
        assert!(!get.is_done() && get.poll().is_none());
        get.read(first, result.clone());
        if result == ReadResult::Valid {
            assert!(get.is_done());
        } else {
            let id = asked(get.poll());
            get.replied(id, lost());
            assert_eq!(get.into_outcomes(), [GetOutcome::Unreachable(Unreached::Call(id))]);
        }
    }
}

#[test]
fn older_generation_is_ignored_after_a_newer_one() {
    let mut get = known_get(&[location(1, 5)]);
    let (first, _) = read(get.poll());
    get.watch(first, 0, 10);
    get.tick(10);
    let id = asked(get.poll());
    let newer = Generation { counter: GENERATION.counter + 1, ..GENERATION };
    let found = Found { generation: newer, len: 7, replicas: vec![location(2, 6)], ..Found::default() };
    get.replied(id, resolved(ResolveOutcome::Found(found)));
    let (second, from) = read(get.poll());
    assert_eq!(from, location(2, 6));
    get.read(first, ReadResult::Valid);
    assert!(!get.is_done(), "an object does not go back in time");
    get.read(second, ReadResult::Valid);
    assert!(matches!(get.into_outcomes().as_slice(), [GetOutcome::Read(found)] if found.generation == newer));
}

#[test]
fn slow_nodes_are_used_last() {
    let slow = BTreeSet::from([SegmentId(1)]);
    let mut get = get_of_one().avoiding(slow.clone());
    let id = asked(get.poll());
    get.replied(id, resolved(found(&[location(1, 1), location(2, 2)])));
    let (id, from) = read(get.poll());
    assert_eq!(from, location(2, 2), "although it is at a greater distance");
    get.read(id, ReadResult::Unreachable("gone".into()));
    assert_eq!(read(get.poll()).1, location(1, 1));

    let mut get = get_of_one().avoiding(slow.clone());
    let id = asked(get.poll());
    get.replied(id, resolved(found(&[location(1, 1)])));
    assert_eq!(read(get.poll()).1, location(1, 1), "it has the only copy");

    let mut get = known_get(&[location(2, 6), location(1, 5)]).avoiding(slow.clone());
    assert_eq!(read(get.poll()).1, location(2, 6), "the other of two cached copies");
    let mut get = known_get(&[location(1, 5)]).avoiding(slow);
    // The master may know another copy.
    to_master(get.poll());
}

#[test]
fn third_copy_is_tried_when_the_hedge_fails() {
    let mut get = get_of_one();
    let id = asked(get.poll());
    get.replied(id, resolved(found(&[location(1, 1), location(2, 2), location(3, 3)])));
    let (first, _) = read(get.poll());
    get.watch(first, 0, 10);
    get.tick(10);
    let (second, from) = read(get.poll());
    assert_eq!(from, location(2, 2));
    get.read(second, ReadResult::Unreachable("gone".into()));
    let (third, from) = read(get.poll());
    assert_eq!(from, location(3, 3), "the first is stalled");
    assert!(!get.progressed(third, 11) && get.progressed(first, 12));
    get.read(third, ReadResult::Yielded);
    assert!(get.poll().is_none(), "the first continues, and owns the buffer");
    get.read(first, ReadResult::Valid);
    assert!(get.is_done());
}

#[test]
fn only_the_requested_generation_is_read() {
    let newer = Generation { counter: GENERATION.counter + 1, ..GENERATION };
    let slow = BTreeSet::from([SegmentId(1)]);
    let mut get = known_get(&[location(1, 5)]).avoiding(slow).of_generation();
    let Some(Need::Read { id, cached_epoch, .. }) = get.poll() else { panic!("no read") };
    assert_eq!(cached_epoch, None, "the locations are from the master");
    get.read(id, ReadResult::Stale);
    let (id, request) = to_master(get.poll());
    assert!(matches!(request, ClientToMaster::Resolve(it) if !it.touch && !it.lease && it.wait_ms == 0));
    get.replied(id, resolved(found(&[location(2, 7)])));
    let (id, from) = read(get.poll());
    assert_eq!(from, location(2, 7), "the copy has moved");
    get.read(id, ReadResult::Stale);
    let id = asked(get.poll());
    let other = Found { generation: newer, len: 7, replicas: vec![location(2, 8)], ..Found::default() };
    get.replied(id, resolved(ResolveOutcome::Found(other)));
    assert_eq!(get.into_outcomes(), [GetOutcome::Superseded(newer)]);
}
