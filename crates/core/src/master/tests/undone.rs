//! Answers that stay true when the master restarts: a client that has seen an object, or its absence, does
//! not see the contrary because the master or a node has forgotten.

use super::*;
use crate::message::{CommitItem, Decide, DecideItem};

const WAIT_MS: u64 = 500;

fn resolve(name: &str) -> ClientToMaster {
    let keys = vec![key(name)];
    ClientToMaster::Resolve(Resolve { keys, locate: true, report_wait_ms: WAIT_MS, ..Resolve::default() })
}

impl Cluster {
    fn durable_with(capacities: &[u64], mutant: Mutant) -> Self {
        Self::with(capacities, |config| (config.durable, config.mutant) = (true, mutant))
    }

    /// Whether a lookup found its object, if it is answered.
    fn was_found(&mut self, id: RequestId) -> Option<bool> {
        match self.replies.remove(&id)? {
            Reply::Resolved(resolved) => Some(matches!(resolved.items[..], [ResolveOutcome::Found(_)])),
            other => panic!("{other:?}"),
        }
    }
}

/// An object that an earlier master has stored, and whose home has not learned that. A client looks it up,
/// and the home asks again, before the other member has reported.
struct AskedAgain {
    cluster: Cluster,
    home: usize,
    decide: MemberToMaster,
    lookup: RequestId,
}

impl AskedAgain {
    fn new(mutant: Mutant) -> Self {
        let mut cluster = Cluster::durable_with(&[4 * UNIT, 4 * UNIT], mutant);
        let ReserveOutcome::Space(space) = cluster.reserve("a", UNIT, keep()) else {
            panic!("there is space")
        };
        let (home, slot_ref) = (space[0].location.segment.0 as usize - 1, space[0].location.slot_ref());
        let item = CommitItem { slot_ref, key: key("a"), len: UNIT, options: keep(), others: Vec::new() };
        let item = DecideItem { namespace: "default".to_owned(), client: ClientId(7), item };
        let decide = MemberToMaster::Decide(Decide { items: vec![item], wait_ms: WAIT_MS });
        cluster.restart_alone(6);
        cluster.link(home);
        let lookup = cluster.send(resolve("a"));
        cluster.event(Event::Request(cluster.links[home], RequestId(91), decide.clone().into()));
        assert_eq!(cluster.master.undecided_count(), 1);
        Self { cluster, home, decide, lookup }
    }
}

/// Whether a lookup finds an object whose home asks at the same time.
fn is_found_after_the_reports(mutant: Mutant) -> bool {
    let AskedAgain { mut cluster, home, lookup, .. } = AskedAgain::new(mutant);
    cluster.link(1 - home);
    cluster.was_found(lookup).unwrap()
}

#[test]
fn decisions_are_repeated_before_lookups_are_answered() {
    assert!(is_found_after_the_reports(Mutant::None));
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_repeated_decisions_is_noticed() {
    assert!(!is_found_after_the_reports(Mutant::AnswerUndecided));
}

/// What the lookup says after the home was disconnected before it had an answer, and after it has returned.
fn found_without_the_home(mutant: Mutant) -> [Option<bool>; 2] {
    let AskedAgain { mut cluster, home, decide, lookup } = AskedAgain::new(mutant);
    cluster.unlink(home);
    cluster.link(1 - home);
    let before = cluster.was_found(lookup);
    cluster.link(home);
    cluster.event(Event::Request(cluster.links[home], RequestId(92), decide.into()));
    assert!(cluster.master.unreported().is_empty());
    [before, Some(cluster.has("a"))]
}

#[test]
fn member_with_an_unanswered_question_has_not_reported() {
    assert_eq!(found_without_the_home(Mutant::None), [None, Some(true)]);
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_unanswered_questions_is_noticed() {
    assert_eq!(found_without_the_home(Mutant::ForgetUnanswered), [Some(false), Some(true)]);
}

/// What a lookup says during a delete that is neither confirmed nor saved: at once, and once it is saved.
fn found_during_a_delete(mutant: Mutant) -> [Option<bool>; 2] {
    let mut cluster = Cluster::durable_with(&[4 * UNIT], mutant);
    cluster.put("a", UNIT, plain());
    cluster.hold_up(0);
    cluster.unsynced = Some(Vec::new());
    assert_eq!(cluster.delete("a", true), None);
    let lookup = cluster.send(resolve("a"));
    let at_once = cluster.was_found(lookup);
    // Lookups of other names never wait for the state folder.
    let other = cluster.send(resolve("b"));
    assert_eq!(cluster.was_found(other), Some(false));
    cluster.sync();
    [at_once, cluster.was_found(lookup)]
}

#[test]
fn absence_by_an_unsaved_delete_is_told_once_it_is_saved() {
    assert_eq!(found_during_a_delete(Mutant::None), [None, Some(false)]);
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_unsaved_absence_is_noticed() {
    assert_eq!(found_during_a_delete(Mutant::TellUnsaved)[0], Some(false));
}

#[test]
fn absence_by_a_saved_or_confirmed_delete_is_told_at_once() {
    for is_saved in [false, true] {
        let mut cluster = Cluster::durable(&[4 * UNIT]);
        cluster.put("a", UNIT, plain());
        cluster.hold_up(0);
        assert_eq!(cluster.delete("a", true), None);
        match is_saved {
            // A policy, for example, or another lookup.
            true => _ = cluster.ask(resolve("a")),
            false => cluster.let_go(0),
        }
        cluster.unsynced = Some(Vec::new());
        let lookup = cluster.send(resolve("a"));
        assert_eq!(cluster.was_found(lookup), Some(false), "{is_saved}");
        let exists = Exists { keys: [key("a")].iter().collect(), ..Exists::default() };
        assert!(cluster.ask(ClientToMaster::Exists(exists)).is_some(), "{is_saved}");
    }
}

#[test]
fn probe_of_an_unsaved_delete_waits_too() {
    let mut cluster = Cluster::durable(&[4 * UNIT]);
    cluster.put("a", UNIT, plain());
    cluster.hold_up(0);
    cluster.unsynced = Some(Vec::new());
    assert_eq!(cluster.delete("a", true), None);
    let exists = Exists { keys: [key("a")].iter().collect(), ..Exists::default() };
    let probe = cluster.send(ClientToMaster::Exists(exists));
    assert!(!cluster.replies.contains_key(&probe));
    cluster.sync();
    assert!(cluster.replies.contains_key(&probe));
}

/// Which object is found after a master has died that was deleting an object, while the node of the object
/// which that had replaced did not answer, and before its state was saved. And whether the delete ends
/// otherwise.
fn found_after_a_lost_delete(mutant: Mutant) -> (u64, bool) {
    let deleting = || {
        let mut cluster = Cluster::durable_with(&[4 * UNIT, 4 * UNIT], mutant);
        let on = |node: &str| PutOptions { preferred: vec![node.into()], ..plain() };
        cluster.put("a", UNIT, on("node1"));
        cluster.hold_up(0);
        let ReserveOutcome::Space(space) = cluster.reserve("a", UNIT, on("node2")) else { panic!("full") };
        cluster.send_commit("a", UNIT, on("node2"), &space);
        cluster.unsynced = Some(Vec::new());
        assert_eq!(cluster.delete("a", true), None);
        cluster
    };
    let mut saved = deleting();
    saved.sync();
    saved.let_go(0);
    let is_deleted = saved.nodes.iter().all(|it| it.inventory().is_empty()) && !saved.has("a");
    let mut lost = deleting();
    lost.held_up[0].clear();
    (lost.is_held_up[0], lost.unsynced) = (false, None);
    lost.restart_master(6);
    match lost.resolve("a", false) {
        ResolveOutcome::Found(found) => (found.generation.counter, is_deleted),
        other => panic!("{other:?}"),
    }
}

#[test]
fn lost_delete_does_not_bring_back_what_was_replaced() {
    assert_eq!(found_after_a_lost_delete(Mutant::None), (2, true));
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_lost_deletes_is_noticed() {
    assert_eq!(found_after_a_lost_delete(Mutant::RetireTogether), (1, true));
}

/// Whether a replaced object is back once the TTL of its successor is over, and the master has died. The home
/// of the successor is lost before it has received it.
fn is_back_after_the_ttl(mutant: Mutant) -> bool {
    let mut cluster = Cluster::durable_with(&[4 * UNIT, 4 * UNIT], mutant);
    let on = |node: &str| PutOptions { preferred: vec![node.into()], ..plain() };
    cluster.put("a", UNIT, on("node1"));
    let options = PutOptions { ttl_ms: Some(WAIT_MS), ..on("node2") };
    let ReserveOutcome::Space(space) = cluster.reserve("a", UNIT, options.clone()) else { panic!("full") };
    // Neither node is on the master's host.
    cluster.takes_at_once = false;
    cluster.hold_up(1);
    cluster.send_commit("a", UNIT, options, &space);
    assert!(cluster.has("a") && cluster.nodes[0].inventory().len() == 1);
    cluster.wait(WAIT_MS);
    assert!(!cluster.has("a"));
    cluster.restart_alone(6);
    cluster.link(0);
    cluster.forget(1);
    cluster.has("a")
}

#[test]
fn expired_object_does_not_bring_back_what_it_replaced() {
    assert!(!is_back_after_the_ttl(Mutant::None));
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_held_copies_is_noticed() {
    assert!(is_back_after_the_ttl(Mutant::KeepHeldCopies));
}
