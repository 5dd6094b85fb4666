//! Tests of calls to nodes that are being left alone: which of them wait for the next attempt.

use super::*;
use tiffin_types::mutant::Mutant;

fn waits(need: &Option<Need>) -> bool {
    match need {
        Some(Need::Read { waits, .. } | Need::Write { waits, .. } | Need::AskNode { waits, .. }) => *waits,
        other => panic!("{other:?}"),
    }
}

/// Whether each read of an object with two copies waits for its node, in order.
fn waits_of_reads(mutant: Mutant) -> [bool; 2] {
    let mut get = get_of_one().breaking(mutant);
    let id = asked(get.poll());
    get.replied(id, resolved(found(&[location(1, 1), location(2, 2)])));
    [(); 2].map(|()| {
        let need = get.poll();
        let is_waiting = waits(&need);
        get.read(read(need).0, ReadResult::Unreachable("left alone".into()));
        is_waiting
    })
}

/// Whether a write, the write after the only node failed, and the commit wait for their node.
fn waits_of_a_put(mutant: Mutant) -> Option<[bool; 3]> {
    let mut put = put_of(1).breaking(mutant);
    let id = asked(put.poll());
    put.replied(id, reserved(vec![space(&[location(1, 1)])]));
    let first = put.poll();
    let first_waits = waits(&first);
    put.written(write(first).0, WriteResult::Unreachable("left alone".into()));
    let abort = put.poll();
    assert!(!waits(&abort), "nothing waits for an abort");
    put.replied(asked(abort), lost());
    let id = asked(put.poll());
    put.replied(id, reserved(vec![ReserveOutcome::NoNode]));
    let (id, request) = match put.poll() {
        Some(Need::AskMaster { id, request }) => (id, request),
        _ => return None,
    };
    assert!(matches!(request, ClientToMaster::Reserve(it) if it.avoid.is_empty()));
    put.replied(id, reserved(vec![space(&[location(1, 2)])]));
    let second = put.poll();
    let second_waits = waits(&second);
    put.written(write(second).0, WriteResult::Written);
    let commit = put.poll();
    let all = Some([first_waits, second_waits, waits(&commit)]);
    put.replied(asked(commit), Ok(Reply::Committed(vec![CommitOutcome::Stored(GENERATION)])));
    assert!(matches!(put.into_outcomes()[0], PutOutcome::Stored { .. }));
    all
}

#[test]
fn only_calls_without_another_way_wait_for_a_node() {
    assert_eq!(waits_of_reads(Mutant::None), [false, true]);
    assert_eq!(waits_of_a_put(Mutant::None), Some([false, true, true]));
}

#[test]
fn cached_read_waits_for_no_node() {
    let found = Found { generation: GENERATION, replicas: vec![location(1, 1)], ..Found::default() };
    let request = GetRequest { key: Key::new(b"k").unwrap(), known: Some(found) };
    let mut get = Get::new(vec![request], false, Box::new(|_| 0));
    let need = get.poll();
    assert!(!waits(&need), "the master is asked instead");
    get.read(read(need).0, ReadResult::Unreachable("left alone".into()));
    to_master(get.poll());
}

#[test]
fn avoided_nodes_are_used_once_more() {
    for last in [ReserveOutcome::NoNode, ReserveOutcome::Full(Full::default())] {
        let mut put = put_of(1);
        let id = asked(put.poll());
        put.replied(id, reserved(vec![space(&[location(1, 1)])]));
        let (id, ..) = write(put.poll());
        put.written(id, WriteResult::Unreachable("gone".into()));
        let id = asked(put.poll());
        put.replied(id, lost());
        for _ in 0..2 {
            let id = to_master(put.poll()).0;
            put.replied(id, reserved(vec![last.clone()]));
        }
        assert!(put.is_done() && put.poll().is_none());
        assert!(matches!(put.into_outcomes()[0], PutOutcome::NoNode | PutOutcome::Full(_)));
    }
}

#[cfg(feature = "mutants")]
#[test]
fn mutants_of_waiting_calls_are_noticed() {
    assert_ne!(waits_of_reads(Mutant::FailInPauses), waits_of_reads(Mutant::None));
    assert_ne!(waits_of_a_put(Mutant::FailInPauses), waits_of_a_put(Mutant::None));
}
