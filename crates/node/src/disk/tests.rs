//! Tests of a single disk: its messages, and when it sends them.

use tiffin_types::{
    Generation, Key, SlotId,
    message::{Announced, AttributesItem, DemoteItem, PromoteItem, Retire},
};

use super::*;

/// What it stores when it has registered with the master of these tests, which knows no clusters.
const EPOCH_2: Effect = Effect::Epoch { epoch: 2, instance: 0, cluster: ClusterId(9) };

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
    Attributes { pins: vec![by.to_owned()], ..Attributes::default() }
}

/// A disk with these copies, which has sent its registration.
fn linked(recovered: &[u64]) -> Disk {
    linked_with(Mutant::None, recovered)
}

fn linked_with(mutant: Mutant, recovered: &[u64]) -> Disk {
    let (segment, cluster) = (SegmentId(7), ClusterId(9));
    let config = DiskConfig { segment, epoch: 1, instance: 0, cluster, stamps: 0, mutant };
    let mut disk = Disk::new(config, recovered.iter().map(|stamp| record(*stamp)).collect());
    disk.handle(Event::Linked(NodeInfo::default()));
    assert!(matches!(effects(&mut disk)[..], [Effect::AskMaster(_, MemberToMaster::Register(_))]));
    disk
}

/// A disk that has joined with these copies.
fn member(recovered: &[u64]) -> Disk {
    joined(linked(recovered))
}

fn joined(mut disk: Disk) -> Disk {
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

/// Returns the announced copies, and replies.
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
fn copy_is_reported_and_read_once_it_is_durable() {
    let mut disk = member(&[]);
    assert_eq!(answers(&ask(&mut disk, 1, demote(&[3, 4]))), []);
    assert_eq!(disk.readable(Stamp(3), None), None);
    assert_eq!(answers(&stored(&mut disk, 3, true)), []);
    assert_eq!((disk.readable(Stamp(3), None), disk.usage().objects), (Some(10), 1));
    assert_eq!(moved(&stored(&mut disk, 4, false)), [true, false]);
    assert_eq!(disk.inventory().len(), 1);
    assert_eq!(moved(&ask(&mut disk, 2, demote(&[3]))), [false], "the disk has that copy");
}

#[test]
fn dropped_copy_is_not_reported_as_stored() {
    let mut disk = member(&[]);
    ask(&mut disk, 1, demote(&[3, 4]));
    stored(&mut disk, 3, true);
    disk.handle(Event::Evicted(vec![Stamp(3)]));
    let told = effects(&mut disk);
    assert!(matches!(&told[..], [Effect::AskMaster(_, MemberToMaster::Dropped(it))] if !it.corrupt));
    assert_eq!(moved(&stored(&mut disk, 4, true)), [false, true]);
}

#[test]
fn retire_waits_until_the_removal_is_durable() {
    let mut disk = member(&[3]);
    assert_eq!(ask(&mut disk, 1, retire(3)), [Effect::Forget(vec![Stamp(3)])]);
    assert_eq!(disk.readable(Stamp(3), None), None);
    assert_eq!(ask(&mut disk, 2, retire(3)), [], "the second waits for the same");
    disk.handle(Event::Forgotten(vec![Stamp(3)]));
    assert_eq!(answers(&effects(&mut disk)).len(), 2);
    assert_eq!(answers(&ask(&mut disk, 3, retire(3))).len(), 1, "a removed copy is confirmed");
}

#[test]
fn retire_waits_for_a_copy_being_written() {
    for done in [true, false] {
        let mut disk = member(&[]);
        ask(&mut disk, 1, demote(&[3]));
        assert_eq!(ask(&mut disk, 2, retire(3)), []);
        let then = stored(&mut disk, 3, done);
        if done {
            assert_eq!(moved(&then[..1]), [false], "it will not be stored");
            assert_eq!(then[1..], [Effect::Forget(vec![Stamp(3)])]);
            disk.handle(Event::Forgotten(vec![Stamp(3)]));
            assert!(matches!(answers(&effects(&mut disk))[..], [(2, Reply::Settled(_))]));
        } else {
            assert_eq!(answers(&then).iter().map(|it| it.0).collect::<Vec<_>>(), [1, 2]);
        }
        assert_eq!(disk.inventory(), []);
    }
}

/// Attributes are written one after the other: a reply means that the requested ones, or later ones, are
/// durable.
#[test]
fn attributes_are_confirmed_when_durable() {
    let mut disk = member(&[3]);
    assert_eq!(ask(&mut disk, 1, mark(3, pinned("a"))), [Effect::SetAttributes(Stamp(3), pinned("a"))]);
    assert_eq!(ask(&mut disk, 2, mark(3, pinned("b"))), []);
    assert_eq!(disk.inventory()[0].attributes, Attributes::default(), "nothing is durable yet");
    disk.handle(Event::AttributesSet(Stamp(3), true));
    assert_eq!(effects(&mut disk), [Effect::SetAttributes(Stamp(3), pinned("b"))]);
    assert_eq!(disk.inventory()[0].attributes, pinned("a"));
    disk.handle(Event::AttributesSet(Stamp(3), true));
    assert_eq!(answers(&effects(&mut disk)).len(), 2);
    assert_eq!(disk.inventory()[0].attributes, pinned("b"));
}

#[test]
fn attributes_are_written_after_their_copy() {
    let mut disk = member(&[]);
    ask(&mut disk, 1, demote(&[3]));
    assert_eq!(ask(&mut disk, 2, mark(3, pinned("a"))), []);
    disk.handle(Event::Unlinked);
    disk.handle(Event::Linked(NodeInfo::default()));
    effects(&mut disk);
    assert_eq!(stored(&mut disk, 3, true), [Effect::SetAttributes(Stamp(3), pinned("a"))]);
}

#[test]
fn end_of_attributes_does_not_confirm_a_retire() {
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
fn failed_attributes_are_refused_or_lost() {
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
fn disk_joins_after_its_pending_retires() {
    let mut disk = linked(&[3, 4, 5]);
    register(&mut disk, &[3], false);
    assert_eq!(effects(&mut disk), [EPOCH_2, Effect::Forget(vec![Stamp(3)])]);
    disk.handle(Event::Forgotten(vec![Stamp(3)]));
    assert_eq!(announced(&mut disk, &[4]), [4, 5]);
    assert_eq!(effects(&mut disk), [Effect::Forget(vec![Stamp(4)])]);
    assert!(!disk.is_member());
    assert_eq!(disk.readable(Stamp(5), Some(2)), None, "it has not received every retire yet");
    disk.handle(Event::Forgotten(vec![Stamp(4)]));
    assert!(disk.is_member());
    assert_eq!((disk.readable(Stamp(5), Some(2)), disk.readable(Stamp(5), Some(1))), (Some(10), None));
    disk.handle(Event::Unlinked);
    assert_eq!((disk.readable(Stamp(5), Some(2)), disk.readable(Stamp(5), None)), (None, Some(10)));
}

/// A disk that registers again while it writes two copies, and its effects.
fn registers_while_writing(mutant: Mutant) -> (Disk, Vec<Effect>) {
    let mut disk = joined(linked_with(mutant, &[3]));
    ask(&mut disk, 1, demote(&[4, 5]));
    disk.handle(Event::Unlinked);
    disk.handle(Event::Linked(NodeInfo::default()));
    effects(&mut disk);
    register(&mut disk, &[], false);
    let done = effects(&mut disk);
    (disk, done)
}

#[cfg(feature = "mutants")]
#[test]
fn mutants_of_disks_are_noticed() {
    for &mutant in Mutant::OF_DISKS {
        let (_, done) = registers_while_writing(mutant);
        assert_ne!(done, [EPOCH_2], "{mutant:?} is not noticed");
    }
}

/// A master that did not send these writes could not retire them.
#[test]
fn disk_joins_after_its_writes_have_ended() {
    let (mut disk, done) = registers_while_writing(Mutant::None);
    assert_eq!(done, [EPOCH_2]);
    stored(&mut disk, 4, false);
    disk.handle(Event::Stored(Stamp(5), true));
    assert_eq!(announced(&mut disk, &[]), [3, 5]);
    assert!(disk.is_member());
}

#[test]
fn lost_disk_discards_everything() {
    let mut disk = linked(&[3, 4]);
    register(&mut disk, &[], true);
    assert_eq!(effects(&mut disk), [EPOCH_2, Effect::Forget(vec![Stamp(3), Stamp(4)])]);
    disk.handle(Event::Forgotten(vec![Stamp(3), Stamp(4)]));
    assert_eq!(announced(&mut disk, &[]), [0u64; 0]);
    assert!(disk.is_member());
}

/// Also between two pages, and during removals: announced copies are reported when they are dropped.
#[test]
fn copies_dropped_while_joining_are_reported() {
    let mut disk = linked(&[3, 4]);
    register(&mut disk, &[4], false);
    effects(&mut disk);
    disk.handle(Event::Evicted(vec![Stamp(3)]));
    let told = effects(&mut disk);
    assert!(matches!(&told[..], [Effect::AskMaster(_, MemberToMaster::Dropped(it))] if it.items.len() == 1));
}

#[test]
fn unreadable_copy_is_not_promoted() {
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
        answers(&ask(&mut disk, 4, MasterToMember::Settle(tiffin_types::message::Settle::default())))[..],
        [(4, Reply::Refused(_))]
    ));
}

#[test]
fn other_master_with_smaller_or_equal_epoch_is_rejected() {
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

#[test]
fn refused_disk_keeps_its_copies_and_its_cluster() {
    let mut disk = linked(&[3]);
    let refusal = Refusal { reason: Reason::OtherCluster, message: "other".into() };
    disk.handle(Event::MasterReply(RequestId(disk.next_id), Reply::Refused(refusal.clone())));
    assert_eq!(effects(&mut disk), [Effect::Refused(refusal)]);
    assert_eq!(disk.inventory().len(), 1);
    disk.handle(Event::Linked(NodeInfo::default()));
    let all = effects(&mut disk);
    let [Effect::AskMaster(id, MemberToMaster::Register(register))] = &all[..] else { panic!("{all:?}") };
    assert_eq!((register.cluster, register.epoch), (ClusterId(9), 1));
    let registered = Registered { epoch: 2, cluster: ClusterId(4), ..Registered::default() };
    disk.handle(Event::MasterReply(*id, Reply::Registered(registered)));
    let cluster = ClusterId(4);
    assert_eq!(effects(&mut disk)[0], Effect::Epoch { epoch: 2, instance: 0, cluster });
    assert_eq!(disk.cluster(), cluster);
}
