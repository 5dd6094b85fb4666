//! A disk alone: what it says, and when.

use super::*;
use crate::{
    Generation, Key, SlotId,
    message::{Announced, AttributesItem, DemoteItem, PromoteItem, Retire},
};

const SOURCE: SlotRef = SlotRef { slot: SlotId(1), stamp: Stamp(5) };

fn record(stamp: u64) -> Record {
    Record {
        slot_ref: SlotRef::on_disk(Stamp(stamp)),
        namespace: "default".into(),
        key: Key::new(format!("k{stamp}").as_bytes()).unwrap(),
        generation: Generation { epoch: 1, counter: stamp },
        len: 10,
        attributes: Attributes::default(),
    }
}

fn pinned(by: &str) -> Attributes {
    Attributes { pins: vec![by.to_owned()], sample: None }
}

/// A disk with these copies, which has just been asked to register.
fn linked(recovered: &[u64]) -> Disk {
    linked_with(Sabotage::None, recovered)
}

fn linked_with(sabotage: Sabotage, recovered: &[u64]) -> Disk {
    let config = DiskConfig { segment: SegmentId(7), epoch: 1, instance: 0, stamps: 0, sabotage };
    let mut disk = Disk::new(config, recovered.iter().map(|stamp| record(*stamp)).collect());
    disk.handle(Event::Linked(NodeInfo::default()));
    assert!(matches!(effects(&mut disk)[..], [Effect::AskMaster(_, MemberToMaster::Register(_))]));
    disk
}

/// One that has been taken in with them.
fn member(recovered: &[u64]) -> Disk {
    taken_in(linked(recovered))
}

fn taken_in(mut disk: Disk) -> Disk {
    register(&mut disk, &[], false);
    announced(&mut disk, &[]);
    assert!(disk.is_member());
    disk
}

fn effects(disk: &mut Disk) -> Vec<Effect> {
    std::iter::from_fn(|| disk.poll_effect()).collect()
}

fn ask(disk: &mut Disk, id: u64, request: MasterToMember) -> Vec<Effect> {
    disk.handle(Event::MasterRequest(RequestId(id), request));
    effects(disk)
}

fn register(disk: &mut Disk, retire: &[u64], discard: bool) {
    let retire = retire.iter().map(|it| SlotRef::on_disk(Stamp(*it))).collect();
    let id = RequestId(disk.next_id);
    disk.handle(Event::MasterReply(
        id,
        Reply::Registered(Registered { epoch: 2, discard, retire, ..Registered::default() }),
    ));
}

/// Takes what it announces, and answers.
fn announced(disk: &mut Disk, refused: &[u64]) -> Vec<u64> {
    let all = effects(disk);
    let Some(Effect::AskMaster(id, MemberToMaster::Announce(announce))) = all.last() else {
        panic!("{all:?}")
    };
    let refused = refused.iter().map(|it| SlotRef::on_disk(Stamp(*it))).collect();
    disk.handle(Event::MasterReply(*id, Reply::Announced(Announced { retire: refused, more: false })));
    announce.items.iter().map(|it| it.slot_ref.stamp.0).collect()
}

fn demote(stamps: &[u64]) -> MasterToMember {
    let item = |stamp: &u64| DemoteItem { source: SOURCE, record: record(*stamp) };
    MasterToMember::Demote(stamps.iter().map(item).collect())
}

fn retire(stamp: u64) -> MasterToMember {
    MasterToMember::Retire(Retire { slot_refs: vec![SlotRef::on_disk(Stamp(stamp))] })
}

fn mark(stamp: u64, attributes: Attributes) -> MasterToMember {
    MasterToMember::SetAttributes(vec![AttributesItem {
        slot_ref: SlotRef::on_disk(Stamp(stamp)),
        attributes,
    }])
}

fn answers(effects: &[Effect]) -> Vec<(u64, Reply)> {
    let answer = |it: &Effect| match it {
        Effect::AnswerMaster(id, reply) => Some((id.0, reply.clone())),
        _ => None,
    };
    effects.iter().filter_map(answer).collect()
}

fn moved(effects: &[Effect]) -> Vec<bool> {
    match &answers(effects)[..] {
        [(_, Reply::Moved(moved))] => moved.items.clone(),
        other => panic!("{other:?}"),
    }
}

fn stored(disk: &mut Disk, stamp: u64, done: bool) -> Vec<Effect> {
    disk.handle(Event::Stored(Stamp(stamp), done));
    effects(disk)
}

#[test]
fn a_copy_is_told_and_read_once_it_is_there_for_good() {
    let mut disk = member(&[]);
    assert_eq!(answers(&ask(&mut disk, 1, demote(&[3, 4]))), []);
    assert_eq!(disk.readable(Stamp(3), None), None);
    assert_eq!(answers(&stored(&mut disk, 3, true)), []);
    assert_eq!((disk.readable(Stamp(3), None), disk.usage().objects), (Some(10), 1));
    assert_eq!(moved(&stored(&mut disk, 4, false)), [true, false]);
    assert_eq!(disk.inventory().len(), 1);
    assert_eq!(moved(&ask(&mut disk, 2, demote(&[3]))), [false], "it has that one");
}

#[test]
fn what_the_log_lets_go_of_is_not_said_to_be_there() {
    let mut disk = member(&[]);
    ask(&mut disk, 1, demote(&[3, 4]));
    stored(&mut disk, 3, true);
    disk.handle(Event::Evicted(vec![Stamp(3)]));
    let told = effects(&mut disk);
    assert!(matches!(&told[..], [Effect::AskMaster(_, MemberToMaster::Dropped(it))] if !it.corrupt));
    assert_eq!(moved(&stored(&mut disk, 4, true)), [false, true]);
}

#[test]
fn a_retire_waits_until_the_copy_is_gone_for_good() {
    let mut disk = member(&[3]);
    assert_eq!(ask(&mut disk, 1, retire(3)), [Effect::Forget(vec![Stamp(3)])]);
    assert_eq!(disk.readable(Stamp(3), None), None);
    assert_eq!(ask(&mut disk, 2, retire(3)), [], "the second waits for the same");
    disk.handle(Event::Forgotten(vec![Stamp(3)]));
    assert_eq!(answers(&effects(&mut disk)).len(), 2);
    assert_eq!(answers(&ask(&mut disk, 3, retire(3))).len(), 1, "what is gone is confirmed");
}

#[test]
fn a_retire_waits_for_a_copy_that_is_being_written() {
    for done in [true, false] {
        let mut disk = member(&[]);
        ask(&mut disk, 1, demote(&[3]));
        assert_eq!(ask(&mut disk, 2, retire(3)), []);
        let then = stored(&mut disk, 3, done);
        if done {
            assert_eq!(moved(&then[..1]), [false], "it will not be there");
            assert_eq!(then[1..], [Effect::Forget(vec![Stamp(3)])]);
            disk.handle(Event::Forgotten(vec![Stamp(3)]));
            assert!(matches!(answers(&effects(&mut disk))[..], [(2, Reply::Settled(_))]));
        } else {
            assert_eq!(answers(&then).iter().map(|it| it.0).collect::<Vec<_>>(), [1, 2]);
        }
        assert_eq!(disk.inventory(), []);
    }
}

/// Marks are written one after the other: an answer means that those that were asked for are there, or later
/// ones.
#[test]
fn marks_are_confirmed_by_their_own_end() {
    let mut disk = member(&[3]);
    assert_eq!(ask(&mut disk, 1, mark(3, pinned("a"))), [Effect::SetAttributes(Stamp(3), pinned("a"))]);
    assert_eq!(ask(&mut disk, 2, mark(3, pinned("b"))), []);
    assert_eq!(disk.inventory()[0].attributes, Attributes::default(), "nothing is there for good yet");
    disk.handle(Event::AttributesSet(Stamp(3), true));
    assert_eq!(effects(&mut disk), [Effect::SetAttributes(Stamp(3), pinned("b"))]);
    assert_eq!(disk.inventory()[0].attributes, pinned("a"));
    disk.handle(Event::AttributesSet(Stamp(3), true));
    assert_eq!(answers(&effects(&mut disk)).len(), 2);
    assert_eq!(disk.inventory()[0].attributes, pinned("b"));
}

#[test]
fn marks_of_what_is_being_written_follow_it_even_if_nobody_waits_any_more() {
    let mut disk = member(&[]);
    ask(&mut disk, 1, demote(&[3]));
    assert_eq!(ask(&mut disk, 2, mark(3, pinned("a"))), []);
    disk.handle(Event::Unlinked);
    disk.handle(Event::Linked(NodeInfo::default()));
    effects(&mut disk);
    assert_eq!(stored(&mut disk, 3, true), [Effect::SetAttributes(Stamp(3), pinned("a"))]);
}

#[test]
fn the_end_of_marks_does_not_confirm_a_retire() {
    let mut disk = member(&[3]);
    ask(&mut disk, 1, mark(3, pinned("a")));
    ask(&mut disk, 2, retire(3));
    disk.handle(Event::AttributesSet(Stamp(3), true));
    assert_eq!(effects(&mut disk), []);
    disk.handle(Event::Forgotten(vec![Stamp(3)]));
    let all = answers(&effects(&mut disk));
    assert!(matches!(&all[..], [(1, Reply::Settled(it)), (2, _)] if it.lost.len() == 1), "{all:?}");
}

#[test]
fn marks_that_cannot_be_written_are_refused_and_those_of_what_is_gone_are_lost() {
    let mut disk = member(&[3, 4]);
    ask(&mut disk, 1, mark(3, pinned("a")));
    disk.handle(Event::AttributesSet(Stamp(3), false));
    assert!(matches!(answers(&effects(&mut disk))[..], [(1, Reply::Refused(_))]));
    ask(&mut disk, 2, mark(4, pinned("a")));
    disk.handle(Event::Corrupt(Stamp(4)));
    let all = answers(&effects(&mut disk));
    assert!(matches!(&all[..], [(2, Reply::Settled(it))] if it.lost.len() == 1), "{all:?}");
    let all = answers(&ask(&mut disk, 3, mark(9, pinned("a"))));
    assert!(matches!(&all[..], [(3, Reply::Settled(it))] if it.lost.len() == 1), "{all:?}");
}

#[test]
fn it_joins_after_it_has_let_go_of_what_it_owes() {
    let mut disk = linked(&[3, 4, 5]);
    register(&mut disk, &[3], false);
    assert_eq!(effects(&mut disk), [Effect::Epoch(2, 0), Effect::Forget(vec![Stamp(3)])]);
    disk.handle(Event::Forgotten(vec![Stamp(3)]));
    assert_eq!(announced(&mut disk, &[4]), [4, 5]);
    assert_eq!(effects(&mut disk), [Effect::Forget(vec![Stamp(4)])]);
    assert!(!disk.is_member());
    assert_eq!(disk.readable(Stamp(5), Some(2)), None, "it has not heard of every delete yet");
    disk.handle(Event::Forgotten(vec![Stamp(4)]));
    assert!(disk.is_member());
    assert_eq!((disk.readable(Stamp(5), Some(2)), disk.readable(Stamp(5), Some(1))), (Some(10), None));
    disk.handle(Event::Unlinked);
    assert_eq!((disk.readable(Stamp(5), Some(2)), disk.readable(Stamp(5), None)), (None, Some(10)));
}

/// A disk that registers again while it writes two copies, and what it does then.
fn registers_while_writing(sabotage: Sabotage) -> (Disk, Vec<Effect>) {
    let mut disk = taken_in(linked_with(sabotage, &[3]));
    ask(&mut disk, 1, demote(&[4, 5]));
    disk.handle(Event::Unlinked);
    disk.handle(Event::Linked(NodeInfo::default()));
    effects(&mut disk);
    register(&mut disk, &[], false);
    let done = effects(&mut disk);
    (disk, done)
}

#[cfg(feature = "sabotage")]
#[test]
fn broken_rules_of_disks_are_noticed() {
    for &sabotage in Sabotage::OF_DISKS {
        let (_, done) = registers_while_writing(sabotage);
        assert_ne!(done, [Effect::Epoch(2, 0)], "{sabotage:?} is not noticed");
    }
}

/// A master that did not send what is being written could not have it taken away.
#[test]
fn it_joins_after_it_knows_what_became_of_what_it_was_writing() {
    let (mut disk, done) = registers_while_writing(Sabotage::None);
    assert_eq!(done, [Effect::Epoch(2, 0)]);
    stored(&mut disk, 4, false);
    disk.handle(Event::Stored(Stamp(5), true));
    assert_eq!(announced(&mut disk, &[]), [3, 5]);
    assert!(disk.is_member());
}

#[test]
fn one_that_was_lost_discards_everything() {
    let mut disk = linked(&[3, 4]);
    register(&mut disk, &[], true);
    assert_eq!(effects(&mut disk), [Effect::Epoch(2, 0), Effect::Forget(vec![Stamp(3), Stamp(4)])]);
    disk.handle(Event::Forgotten(vec![Stamp(3), Stamp(4)]));
    assert_eq!(announced(&mut disk, &[]), [0u64; 0]);
    assert!(disk.is_member());
}

/// Also between two pages, and while it lets go: what was announced is told of when it is gone.
#[test]
fn what_is_dropped_while_it_joins_is_told() {
    let mut disk = linked(&[3, 4]);
    register(&mut disk, &[4], false);
    effects(&mut disk);
    disk.handle(Event::Evicted(vec![Stamp(3)]));
    let told = effects(&mut disk);
    assert!(matches!(&told[..], [Effect::AskMaster(_, MemberToMaster::Dropped(it))] if it.items.len() == 1));
}

#[test]
fn what_cannot_be_read_does_not_come_into_memory() {
    let mut disk = member(&[3]);
    let promote = |stamp| {
        let item = PromoteItem { slot_ref: SlotRef::on_disk(Stamp(stamp)), into: SOURCE };
        MasterToMember::Promote(vec![item])
    };
    assert_eq!(moved(&ask(&mut disk, 1, promote(4))), [false]);
    let load = Effect::Load { stamp: Stamp(3), len: 10, into: SOURCE };
    assert_eq!(ask(&mut disk, 2, promote(3)), [load]);
    disk.handle(Event::Loaded(SOURCE, true));
    assert_eq!(moved(&effects(&mut disk)), [true]);
    ask(&mut disk, 3, promote(3));
    disk.handle(Event::Loaded(SOURCE, false));
    assert_eq!(moved(&effects(&mut disk)), [false]);
    assert!(matches!(
        answers(&ask(&mut disk, 4, MasterToMember::Settle(crate::message::Settle::default())))[..],
        [(4, Reply::Refused(_))]
    ));
}

#[test]
fn a_smaller_or_equal_epoch_of_another_master_is_rejected() {
    for (epoch, instance, accepts) in [(0, 1, false), (1, 1, false), (1, 0, true), (2, 1, true)] {
        let mut disk = linked(&[3]);
        let registered = Registered { epoch, instance, discard: true, ..Registered::default() };
        disk.handle(Event::MasterReply(RequestId(disk.next_id), Reply::Registered(registered)));
        let effects = effects(&mut disk);
        let rejected = effects.contains(&Effect::RejectMaster { served: 1, offered: epoch });
        assert_eq!(rejected, !accepts, "{epoch} {instance}: {effects:?}");
        assert_eq!(effects.contains(&Effect::Forget(vec![Stamp(3)])), accepts);
        assert_eq!(disk.inventory().len(), usize::from(!accepts));
    }
}
