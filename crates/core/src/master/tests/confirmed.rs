//! Answers that wait until the master knows that it still leads.

use super::*;
use crate::master::context::confirmed::HELD_MAX;
use crate::message::{Decide, DecideItem, PolicyChange};

impl Cluster {
    /// Masters that may be replaced at any time. Confirmations are given by hand.
    fn fenced(capacities: &[u64]) -> Self {
        Self::with(capacities, |config| (config.durable, config.confirms) = (true, true))
    }

    fn confirm(&mut self) {
        let round = self.unconfirmed;
        self.event(Event::Confirmed(round));
    }
}

fn resolve(name: &str) -> ClientToMaster {
    let keys = vec![key(name)];
    ClientToMaster::Resolve(Resolve { keys, locate: true, report_wait_ms: 500, ..Resolve::default() })
}

#[test]
fn answers_about_names_wait_for_a_confirmation() {
    let mut cluster = Cluster::fenced(&[UNIT * 8]);
    let list = List { pattern: Pattern::All, pinned_by: None, cursor: 0, limit: 9, report_wait_ms: 500 };
    let exists = Exists { keys: [key("a")].iter().collect(), ..Exists::default() };
    let delete = Delete { keys: vec![key("a")], force: true, wait_ms: 500 };
    let asked = [
        resolve("a"),
        ClientToMaster::List(list),
        ClientToMaster::Exists(exists),
        ClientToMaster::Delete(delete),
    ];
    for request in asked {
        let id = cluster.send(request.clone());
        assert_eq!(cluster.replies.get(&id), None, "{request:?}");
        // A confirmation that began before the answer was decided does not count.
        let earlier = cluster.unconfirmed - 1;
        cluster.event(Event::Confirmed(earlier));
        assert_eq!(cluster.replies.get(&id), None, "{request:?}");
        cluster.confirm();
        assert!(cluster.replies.contains_key(&id), "{request:?}");
    }
    // What says nothing of names is answered at once.
    for request in [ClientToMaster::Ping(Default::default()), ClientToMaster::Stat] {
        let id = cluster.send(request);
        assert!(cluster.replies.contains_key(&id));
    }
}

#[test]
fn puts_are_acknowledged_after_a_confirmation() {
    let mut cluster = Cluster::fenced(&[UNIT * 8]);
    // Memory is given at once: it is the node's.
    let ReserveOutcome::Space(space) = cluster.reserve("a", 10, plain()) else { panic!("no space") };
    let id = cluster.send_commit("a", 10, plain(), &space);
    assert_eq!(cluster.replies.get(&id), None, "the client must not hear the decision yet");
    cluster.confirm();
    assert!(matches!(cluster.replies.get(&id), Some(Reply::Committed(_))));
    // That a name is taken needs a confirmation, too.
    let items = vec![ReserveItem { key: key("a"), len: 10, options: keep() }];
    let id = cluster.send(ClientToMaster::Reserve(Reserve { items, ..Reserve::default() }));
    assert_eq!(cluster.replies.get(&id), None);
    cluster.confirm();
    assert!(matches!(cluster.replies.get(&id), Some(Reply::Reserved(_))));
}

/// Whether a home has an object that its master has stored, before and after that one knows that it leads.
fn stored_at_the_home(mutant: Mutant) -> [bool; 2] {
    let mut cluster = Cluster::fenced(&[UNIT * 8]);
    cluster.master.objects.cx.config.mutant = mutant;
    let ReserveOutcome::Space(space) = cluster.reserve("a", 10, plain()) else { panic!("no space") };
    cluster.send_commit("a", 10, plain(), &space);
    let before = cluster.nodes[0].inventory().len() == 1;
    cluster.confirm();
    [before, cluster.nodes[0].inventory().len() == 1]
}

/// The master may end before the confirmation, after it has shown the object to clients.
#[test]
fn home_stores_its_object_before_the_confirmation() {
    assert_eq!(stored_at_the_home(Mutant::None), [true, true]);
}

/// A master decides about two objects at once while its state is being written: one that was removed
/// meanwhile, and a new one. Returns the outcomes that it sends when that write is done, and when the next
/// one is.
fn decided_with_a_stale_object(mutant: Mutant) -> [Option<Vec<CommitOutcome>>; 2] {
    let mut cluster = Cluster::fenced(&[UNIT * 8]);
    cluster.master.objects.cx.config.mutant = mutant;
    let mut item = |name: &str| {
        let ReserveOutcome::Space(space) = cluster.reserve(name, 10, plain()) else { panic!("no space") };
        let slot_ref = space[0].location.slot_ref();
        let item = crate::message::CommitItem {
            slot_ref,
            key: key(name),
            len: 10,
            options: plain(),
            others: Vec::new(),
        };
        (space, DecideItem { namespace: "default".into(), client: ClientId(7), item })
    };
    let ((removed, old), (_, new)) = (item("removed"), item("new"));
    cluster.send_commit("removed", 10, plain(), &removed);
    cluster.confirm();
    // The node does not answer, so the object is not gone yet.
    cluster.hold_up(0);
    let keys = vec![key("removed")];
    cluster.send(ClientToMaster::Delete(Delete { keys, force: true, wait_ms: 500 }));
    let change = PolicyChange { quota: Some(1 << 30), ..PolicyChange::default() };
    let mut versions = Vec::new();
    let mut outcomes = Vec::new();
    let decide = MemberToMaster::Decide(Decide { items: vec![old, new], wait_ms: 500 });
    let requests = [(CLIENT, ClientToMaster::SetPolicy(change).into()), (cluster.links[0], decide.into())];
    let mut events: VecDeque<_> =
        requests.into_iter().map(|(conn, it)| Event::Request(conn, RequestId(77), it)).collect();
    while let Some(event) = events.pop_front() {
        let is_persisted = matches!(event, Event::Persisted(_));
        cluster.master.handle(cluster.now, event);
        let mut sent = None;
        while let Some(effect) = cluster.master.poll_effect() {
            match effect {
                Effect::Persist(version) => versions.push(version),
                Effect::SendLedger(_, id, _) => cluster.master.sent(id),
                Effect::Reply(_, _, Reply::Decided(decided)) => sent = Some(decided),
                _ => (),
            }
        }
        assert!(is_persisted || sent.is_none(), "{sent:?}");
        if is_persisted {
            outcomes.push(sent);
        } else if events.is_empty() {
            events.extend(versions.iter().map(|it| Event::Persisted(*it)));
        }
    }
    [outcomes.remove(0), outcomes.pop().flatten()]
}

/// The write that was in progress may have ended before another master was elected.
#[test]
fn stale_object_lets_no_answer_out_unconfirmed() {
    let [before, after] = decided_with_a_stale_object(Mutant::None);
    assert_eq!(before, None);
    let after = after.unwrap();
    assert!(matches!(after[..], [CommitOutcome::Removed, CommitOutcome::Stored(_)]), "{after:?}");
}

#[cfg(feature = "mutants")]
#[test]
fn mutants_of_confirmations_are_noticed() {
    let [before, _] = decided_with_a_stale_object(Mutant::AnswerDeposed);
    assert!(before.is_some());
    assert_eq!(stored_at_the_home(Mutant::TellWhenConfirmed), [false, true]);
    let mut cluster = Cluster::fenced(&[UNIT * 8]);
    cluster.master.objects.cx.config.mutant = Mutant::ConfirmLater;
    let id = cluster.send(resolve("a"));
    let earlier = cluster.unconfirmed - 1;
    cluster.event(Event::Confirmed(earlier));
    assert!(cluster.replies.contains_key(&id));
}

#[test]
fn deposed_master_says_nothing_of_names() {
    let mut cluster = Cluster::fenced(&[UNIT * 8]);
    let id = cluster.send(resolve("a"));
    // Another master leads: no confirmation ever comes, and the connection closes.
    cluster.event(Event::Closed(CLIENT));
    cluster.confirm();
    assert_eq!(cluster.replies.get(&id), None);
    assert_eq!(cluster.master.waiting_count(), 0, "nothing is kept for a closed connection");
}

#[test]
fn new_leader_parks_replacing_puts_until_members_report() {
    let mut cluster = Cluster::fenced(&[UNIT * 8]);
    cluster.restart_alone(9);
    let replace = PutOptions { on_exists: OnExists::Replace, ..plain() };
    let items = vec![ReserveItem { key: key("a"), len: 10, options: replace }];
    let request = ClientToMaster::Reserve(Reserve { items, report_wait_ms: 500, ..Reserve::default() });
    let id = cluster.send(request);
    assert_eq!(cluster.replies.get(&id), None, "a member may still show the old object to readers");
    cluster.link(0);
    assert!(matches!(cluster.replies.get(&id), Some(Reply::Reserved(_))));
}

#[test]
fn more_held_answers_than_the_limit_close_the_connection() {
    let mut cluster = Cluster::fenced(&[UNIT * 8]);
    for _ in 0..HELD_MAX {
        cluster.send(resolve("a"));
    }
    assert_eq!((cluster.master.waiting_count(), cluster.disconnected.len()), (HELD_MAX, 0));
    cluster.send(resolve("a"));
    assert_eq!(cluster.disconnected, [CLIENT]);
    assert_eq!(cluster.master.waiting_count(), HELD_MAX);
    cluster.event(Event::Closed(CLIENT));
    assert_eq!(cluster.master.waiting_count(), 0);
}

#[test]
fn members_are_waited_for_from_the_takeover_on() {
    let mut cluster = Cluster::fenced(&[UNIT * 8]);
    let config = MasterConfig { epoch: 9, ..cluster.master.objects.cx.config };
    // The standby has run for long when it takes over, longer than a member may be away.
    cluster.now = Tick(1_000_000);
    cluster.master = Master::recover_at(cluster.now, config, cluster.state.clone());
    cluster.wait(config.away_ms_max - 1);
    assert_eq!(cluster.master.unreported(), ["node1"]);
    cluster.wait(1);
    assert_eq!(cluster.master.unreported(), [] as [&str; 0]);
}
