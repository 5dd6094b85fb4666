//! Restarts of the master: the members it waits for, the requests that wait, the state that survives, and
//! the epoch that wins.

use tiffin_node as node;

use super::*;
use crate::master::{context::saved::POLICIES_MAX, unreported::*};
use crate::{
    attributes::{Attributes, Consumption},
    message::{
        Ack, AckItem, AckOutcome, Await, CommitItem, CommitOutcome, Decide, DecideItem, Delete,
        DeleteMatching, DeleteOutcome, Dropped, Exists, ForgetNode, Lease, LeaseItem, LeaseOutcome, List,
        Pattern, Policy, Presence, Pull, PutOptions, Record, Reserve, ReserveItem, ReserveOutcome, Resolve,
        ResolveOutcome,
    },
};

const WAIT_MS: u64 = 500;

impl Cluster {
    /// Nodes that are in the roster of a master with a state folder.
    pub(super) fn durable(capacities: &[u64]) -> Self {
        Self::with(capacities, |config| config.durable = true)
    }

    pub(super) fn persist(&mut self, version: u64, saved: Saved) {
        match &mut self.unsynced {
            Some(unsynced) => unsynced.push((version, saved)),
            None => {
                self.state = saved;
                self.event(Event::Persisted(version));
            }
        }
    }

    pub(super) fn sync(&mut self) {
        for (version, saved) in self.unsynced.take().unwrap_or_default() {
            self.persist(version, saved);
        }
    }

    /// Starts another master with the state folder. No member has reported yet.
    pub(super) fn restart_alone(&mut self, epoch: u64) {
        let instance = self.master.objects.cx.config.instance + 1;
        let config = MasterConfig { epoch, instance, ..self.master.objects.cx.config };
        for node in &mut self.nodes {
            node.handle(node::Event::Unlinked);
        }
        self.master = Master::recover(config, self.state.clone());
        self.now = Tick(0);
        self.open(CLIENT, 7);
        self.carry_out();
    }

    fn refused(&mut self, id: RequestId) -> String {
        match self.replies.remove(&id) {
            Some(Reply::Refused(refusal)) if refusal.reason == Reason::Unavailable => refusal.message,
            other => panic!("{other:?}"),
        }
    }
}

fn resolve(name: &str) -> ClientToMaster {
    let keys = vec![key(name)];
    ClientToMaster::Resolve(Resolve { keys, locate: true, report_wait_ms: WAIT_MS, ..Resolve::default() })
}

fn delete(name: &str) -> ClientToMaster {
    ClientToMaster::Delete(Delete { keys: vec![key(name)], force: true, wait_ms: WAIT_MS })
}

/// Every kind of request whose answer depends on members that have not reported.
fn dependent() -> Vec<ClientToMaster> {
    let (keys, wait_ms) = (vec![key("a")], WAIT_MS);
    let item = ReserveItem { key: key("a"), len: 10, options: keep() };
    let stream = PutOptions { sample: Some(Consumption::Once), stream: "s".into(), ..plain() };
    let streamed = ReserveItem { key: key("b"), len: 10, options: stream };
    let reserve = |item| {
        ClientToMaster::Reserve(Reserve { items: vec![item], report_wait_ms: WAIT_MS, ..Reserve::default() })
    };
    let generation = generation(1);
    let ack = Ack { items: vec![AckItem { key: key("a"), generation }], wait_ms, ..Ack::default() };
    let leased = vec![LeaseItem { key: key("a"), generation: None }];
    let list = List { pattern: Pattern::All, pinned_by: None, cursor: 0, limit: 9, report_wait_ms: WAIT_MS };
    vec![
        resolve("a"),
        ClientToMaster::Exists(Exists {
            keys: keys.iter().collect(),
            report_wait_ms: WAIT_MS,
            ..Exists::default()
        }),
        ClientToMaster::Lease(Lease { items: leased, group: String::new(), report_wait_ms: WAIT_MS }),
        ClientToMaster::Ack(ack),
        ClientToMaster::Pin(crate::message::Pin {
            keys: keys.clone(),
            owner: String::new(),
            on: true,
            wait_ms,
        }),
        ClientToMaster::Prefetch(crate::message::Prefetch {
            keys: keys.clone(),
            wait_ms,
            ..Default::default()
        }),
        ClientToMaster::Why(crate::message::Explain { keys: keys.clone(), report_wait_ms: WAIT_MS }),
        reserve(item),
        reserve(streamed),
        ClientToMaster::List(list),
        delete("a"),
        ClientToMaster::DeleteMatching(DeleteMatching { pattern: Pattern::All, force: true, wait_ms }),
        ClientToMaster::DropPins(crate::message::DropPins { owner: String::new(), wait_ms }),
        ClientToMaster::EndStream(crate::message::EndStream {
            name: "s".into(),
            drop: true,
            failure: None,
            wait_ms,
        }),
    ]
}

#[test]
fn dependent_requests_wait_for_every_member() {
    for request in dependent() {
        let mut cluster = Cluster::durable(&[10 * UNIT, 10 * UNIT]);
        cluster.put("a", 100, plain());
        cluster.restart_alone(6);
        let id = cluster.send(request.clone());
        cluster.link(0);
        assert!(!cluster.replies.contains_key(&id), "{request:?}");
        cluster.link(1);
        let reply = cluster.replies.remove(&id);
        assert!(!matches!(reply, None | Some(Reply::Refused(_))), "{request:?}: {reply:?}");
        assert_eq!(cluster.master.waiting_count(), 0);
    }
}

#[test]
fn refused_requests_name_the_missing_members() {
    for request in dependent() {
        let mut cluster = Cluster::durable(&[10 * UNIT, 10 * UNIT]);
        cluster.restart_alone(6);
        cluster.link(0);
        let id = cluster.send(request.clone());
        cluster.wait(WAIT_MS - 1);
        assert!(!cluster.replies.contains_key(&id), "{request:?}");
        cluster.wait(1);
        let message = cluster.refused(id);
        assert!(message.ends_with("waiting for node2"), "{message}");
        assert_eq!(cluster.master.waiting_count(), 0);
    }
}

#[test]
fn deleted_objects_stay_deleted_when_a_node_reports_late() {
    let mut cluster = Cluster::durable(&[10 * UNIT, 10 * UNIT]);
    cluster.put("a", 100, twice());
    cluster.restart_alone(6);
    let id = cluster.send(delete("a"));
    cluster.link(1);
    cluster.link(0);
    assert_eq!(cluster.replies.remove(&id), Some(Reply::Deleted(vec![DeleteOutcome::Deleted])));
    assert!(!cluster.has("a"));
    assert_eq!(cluster.nodes.iter().map(|it| it.usage().objects).sum::<u64>(), 0);
}

#[test]
fn lost_copy_does_not_block_a_later_report() {
    let mut cluster = Cluster::durable(&[10 * UNIT, 10 * UNIT]);
    cluster.put("a", 100, twice());
    let ResolveOutcome::Found(found) = cluster.resolve("a", false) else { panic!("it is there") };
    cluster.restart_alone(6);
    cluster.link(0);
    let lost = found.replicas.iter().find(|it| it.segment == SegmentId(1)).unwrap();
    let record = Record {
        slot_ref: lost.slot_ref(),
        namespace: "default".to_owned(),
        key: key("a"),
        generation: found.generation,
        len: found.len,
        attributes: Attributes::default(),
    };
    let dropped = Dropped { items: vec![record], corrupt: true, ..Dropped::default() };
    cluster.event(Event::Request(cluster.links[0], RequestId(90), MemberToMaster::Dropped(dropped).into()));
    cluster.link(1);
    assert!(cluster.has("a"));
}

#[test]
fn copy_evicted_before_the_decision_gets_no_name() {
    let mut cluster = Cluster::durable(&[2 * UNIT, 2 * UNIT]);
    cluster.put("a", UNIT, plain());
    let ResolveOutcome::Found(found) = cluster.resolve("a", false) else { panic!("it is there") };
    let home = found.replicas[0].segment.0 as usize - 1;
    cluster.restart_alone(6);
    cluster.link(home);
    // The earlier master named it, and its reply was lost.
    let (slot_ref, options) = (found.replicas[0].slot_ref(), keep());
    let item = CommitItem { slot_ref, key: key("a"), len: found.len, options, others: Vec::new() };
    let item = DecideItem { namespace: "default".to_owned(), client: ClientId(7), item };
    let decide = MemberToMaster::Decide(Decide { items: vec![item], wait_ms: WAIT_MS });
    cluster.event(Event::Request(cluster.links[home], RequestId(90), decide.into()));
    for name in ["b", "c"] {
        assert!(matches!(cluster.put(name, UNIT, plain()), CommitOutcome::Stored(_)));
    }
    assert_eq!(cluster.nodes[home].usage().objects, 2, "`a` was evicted");
    cluster.link(1 - home);
    assert!(!cluster.has("a"));
}

/// A put with two copies that an earlier master named, and whose home node did not receive the reply. The
/// home asks again before the other member has reported. Returns the home and the other node.
fn put_asked_again_without_its_other_copy() -> (Cluster, usize, usize) {
    let mut cluster = Cluster::durable(&[4 * UNIT, 4 * UNIT]);
    let ReserveOutcome::Space(space) = cluster.reserve("a", UNIT, twice()) else { panic!("there is space") };
    let [home, other] = [0, 1].map(|at: usize| space[at].location.segment.0 as usize - 1);
    let (slot_ref, others) = (space[0].location.slot_ref(), vec![space[1].location]);
    let item = CommitItem { slot_ref, key: key("a"), len: UNIT, options: twice(), others };
    let item = DecideItem { namespace: "default".to_owned(), client: ClientId(7), item };
    let decide = MemberToMaster::Decide(Decide { items: vec![item], wait_ms: WAIT_MS });
    cluster.event(Event::Request(cluster.links[home], RequestId(90), decide.clone().into()));
    assert_eq!(cluster.nodes[other].usage().objects, 1);
    cluster.restart_alone(6);
    cluster.link(home);
    cluster.event(Event::Request(cluster.links[home], RequestId(91), decide.into()));
    assert_eq!((cluster.master.waiting_count(), cluster.master.undecided_count()), (1, 1));
    (cluster, home, other)
}

#[test]
fn put_waits_for_a_member_with_a_copy_until_it_reports() {
    let (mut cluster, _, other) = put_asked_again_without_its_other_copy();
    cluster.wait(1_000);
    assert_eq!(cluster.master.undecided_count(), 1);
    cluster.link(other);
    let ResolveOutcome::Found(found) = cluster.resolve("a", false) else { panic!("it has its name") };
    assert_eq!((found.generation.epoch, cluster.master.waiting_count()), (5, 0));
}

#[test]
fn a_put_with_a_copy_on_a_member_that_was_given_up_gets_no_name() {
    let (mut cluster, home, other) = put_asked_again_without_its_other_copy();
    cluster.unsynced = Some(Vec::new());
    cluster.wait(2_000);
    assert!(cluster.master.unreported().is_empty(), "the other one was given up");
    let given_up = |it: &Notice| matches!(it, Notice::PutGivenUp { .. });
    assert_eq!(cluster.notices.iter().filter(|it| given_up(it)).count(), 1);
    assert!(!cluster.has("a"));
    // The answer waits until it is saved that the copy must go.
    assert_eq!(cluster.master.objects.cx.saving.held_count(), 1);
    assert_eq!(cluster.state.members.iter().map(|it| it.owed.len()).sum::<usize>(), 0);
    cluster.sync();
    assert_eq!(cluster.master.objects.cx.saving.held_count(), 0);
    assert_eq!(cluster.state.members.iter().map(|it| it.owed_slot_refs().len()).sum::<usize>(), 1);
    assert_eq!(cluster.master.waiting_count(), 0);
    // Not even a later master brings it back.
    cluster.restart_alone(7);
    cluster.link(home);
    cluster.link(other);
    assert!(!cluster.has("a"));
    assert_eq!(cluster.nodes[other].usage().objects, 0);
}

#[test]
fn put_does_not_wait_for_a_lost_member() {
    let (mut cluster, home, other) = put_asked_again_without_its_other_copy();
    cluster.ask(ClientToMaster::ForgetNode(ForgetNode { name: format!("node{}", other + 1) }));
    assert_eq!(cluster.master.waiting_count(), 0);
    cluster.node_event(home, node::Event::Beat);
    let ResolveOutcome::Found(found) = cluster.resolve("a", false) else { panic!("it has its name") };
    assert_eq!(found.generation.epoch, 6);
}

#[test]
fn empty_answers_and_usage_end_without_an_error() {
    let mut cluster = Cluster::durable(&[10 * UNIT]);
    cluster.restart_alone(6);
    let pull = Pull { stream: "s".into(), items_max: 1, wait_ms: WAIT_MS, ..Pull::default() };
    let pull = cluster.send(ClientToMaster::Pull(pull));
    let wait =
        cluster.send(ClientToMaster::Await(Await { at_most: Some(0), at_least: None, wait_ms: WAIT_MS }));
    assert!(cluster.replies.is_empty());
    cluster.wait(WAIT_MS);
    assert!(matches!(cluster.replies.remove(&pull), Some(Reply::Pulled(it)) if it.keys.is_empty()));
    assert!(matches!(cluster.replies.remove(&wait), Some(Reply::Awaited(_))));
}

#[test]
fn object_of_this_epoch_is_answered_at_once() {
    let mut cluster = Cluster::durable(&[10 * UNIT, 10 * UNIT]);
    cluster.put("old", 100, plain());
    cluster.restart_alone(6);
    cluster.link(0);
    let stored = cluster.put("new", 100, plain());
    assert!(matches!(stored, CommitOutcome::Stored(_)), "{stored:?}");
    assert!(cluster.has("new"));
    assert!(cluster.ask(resolve("old")).is_none());
    assert!(cluster.ask(delete("new")).is_none(), "an older copy may be on the other node");
}

#[test]
fn cancelled_and_disconnected_requests_stop_waiting() {
    let mut cluster = Cluster::durable(&[10 * UNIT]);
    cluster.restart_alone(6);
    let id = cluster.send(resolve("a"));
    assert_eq!(cluster.ask(ClientToMaster::Cancel(id)), Some(Reply::Done));
    assert!(cluster.refused(id).contains("node1"));
    cluster.send(resolve("a"));
    assert_eq!(cluster.master.waiting_count(), 1);
    cluster.event(Event::Closed(CLIENT));
    assert_eq!(cluster.master.waiting_count(), 0);
    cluster.open(CLIENT, 7);
    cluster.link(0);
    assert!(!cluster.has("a"));
}

#[test]
fn deferred_requests_are_limited() {
    let mut cluster = Cluster::durable(&[10 * UNIT]);
    cluster.restart_alone(6);
    let ids: Vec<_> = (0..CLIENTS_PARKED_MAX / 16 * 15).map(|_| cluster.send(resolve("a"))).collect();
    assert!(cluster.replies.is_empty());
    let id = cluster.send(resolve("a"));
    assert!(cluster.refused(id).contains("node1"));
    cluster.link(0);
    assert!(ids.iter().all(|id| matches!(cluster.replies.get(id), Some(Reply::Resolved(_)))));
}

#[test]
fn missing_member_is_waited_for_until_it_is_absent() {
    let mut cluster = Cluster::durable(&[10 * UNIT, 10 * UNIT]);
    cluster.restart_alone(6);
    cluster.link(0);
    assert_eq!(cluster.master.unreported(), ["node2"]);
    cluster.wait(1_999);
    let id = cluster.send(resolve("a"));
    assert!(!cluster.replies.contains_key(&id));
    cluster.wait(1);
    assert!(matches!(cluster.replies.remove(&id), Some(Reply::Resolved(_))));
    cluster.restart_alone(7);
    assert_eq!(cluster.master.unreported(), ["node1", "node2"]);
}

#[test]
fn leaving_member_is_erased_before_the_reply() {
    let mut cluster = Cluster::durable(&[10 * UNIT, 10 * UNIT]);
    cluster.unsynced = Some(Vec::new());
    let (conn, id) = (cluster.links[0], RequestId(77));
    cluster.links[0] = ConnId(0);
    cluster.event(Event::Request(conn, id, Request::Goodbye));
    assert!(!cluster.replies.contains_key(&id));
    cluster.sync();
    assert_eq!(cluster.replies.remove(&id), Some(Reply::Done));
    assert_eq!(cluster.state.members.len(), 1);
}

#[test]
fn member_is_used_after_the_roster_is_synced() {
    let mut cluster = Cluster::durable(&[10 * UNIT]);
    cluster.nodes[0].handle(node::Event::Unlinked);
    cluster.event(Event::Ended(cluster.links[0]));
    assert!(cluster.state.members.is_empty(), "it is lost");
    cluster.unsynced = Some(Vec::new());
    cluster.link(0);
    assert!(!matches!(cluster.reserve("a", 10, plain()), ReserveOutcome::Space(_)));
    cluster.sync();
    assert!(matches!(cluster.reserve("a", 10, plain()), ReserveOutcome::Space(_)));
    assert_eq!(cluster.state.members.len(), 1);
}

/// While the state folder cannot be written, nodes and clients give up and reconnect, for hours.
#[test]
fn answers_waiting_for_a_sync_end_with_their_connection() {
    let mut cluster = Cluster::durable(&[10 * UNIT]);
    cluster.unsynced = Some(Vec::new());
    for at in 0..10 {
        let policy = Policy { quota: Some((1 << 20) + at), ..Policy::default() };
        cluster.send(ClientToMaster::SetPolicy(policy.into()));
        assert_eq!(cluster.master.objects.cx.saving.held_count(), if at == 0 { 1 } else { 2 });
        cluster.nodes[0].handle(node::Event::Unlinked);
        cluster.event(Event::Closed(cluster.links[0]));
        cluster.link(0);
        assert_eq!(
            cluster.master.objects.cx.saving.held_count(),
            2,
            "closed connections have no waiting answers"
        );
        cluster.event(Event::Closed(CLIENT));
        cluster.open(CLIENT, 7);
        assert_eq!(cluster.master.objects.cx.saving.held_count(), 1);
    }
    cluster.sync();
    assert_eq!(cluster.master.objects.cx.saving.held_count(), 0);
    assert!(matches!(cluster.reserve("a", 10, plain()), ReserveOutcome::Space(_)), "the node is used");
}

#[test]
fn memory_in_the_process_of_the_only_master_is_not_in_the_roster() {
    for (confirms, recorded) in [(false, 0), (true, 1)] {
        let mut cluster = Cluster::durable(&[10 * UNIT]);
        // One of several masters may be replaced, and return, while its process goes on.
        let config = MasterConfig { confirms, ..cluster.master.objects.cx.config };
        cluster.state = Saved::default();
        cluster.master = Master::new(config);
        cluster.nodes[0].handle(node::Event::Unlinked);
        cluster.event(Event::SameProcess(ConnId(cluster.next_conn + 1)));
        cluster.link(0);
        assert_eq!(cluster.master.saved().members.len(), recorded, "{confirms}");
    }
}

#[test]
fn memory_in_the_process_of_a_master_that_goes_on_must_report() {
    let mut cluster = Cluster::durable(&[10 * UNIT]);
    cluster.state = Saved::default();
    let config = cluster.master.objects.cx.config;
    cluster.master = Master::new(config);
    cluster.open(CLIENT, 7);
    cluster.nodes[0].handle(node::Event::Unlinked);
    cluster.event(Event::SameProcess(ConnId(cluster.next_conn + 1)));
    cluster.link(0);
    cluster.put("a", 10, plain());
    let next = MasterConfig { epoch: config.epoch + 1, instance: config.instance + 1, ..config };
    cluster.master = cluster.master.succeed(Tick(1), next, cluster.master.saved());
    cluster.open(CLIENT, 7);
    let keys = vec![key("a")];
    let id =
        cluster.send(ClientToMaster::Resolve(Resolve { keys, report_wait_ms: 100, ..Resolve::default() }));
    assert!(!cluster.replies.contains_key(&id), "absence is not known yet");
    cluster.nodes[0].handle(node::Event::Unlinked);
    cluster.event(Event::SameProcess(ConnId(cluster.next_conn + 1)));
    cluster.link(0);
    let Some(Reply::Resolved(resolved)) = cluster.replies.remove(&id) else { panic!("no answer") };
    assert!(matches!(resolved.items[..], [ResolveOutcome::Found(_)]), "{resolved:?}");
    assert_eq!(cluster.master.saved().members, [], "it ends with the process");
}

#[test]
fn policies_survive_and_are_limited() {
    let mut cluster = Cluster::durable(&[10 * UNIT]);
    let policy = Policy { quota: Some(77), max_hold_ms: Some(5), guaranteed: Some(9), ..Policy::default() };
    cluster.unsynced = Some(Vec::new());
    let id = cluster.send(ClientToMaster::SetPolicy(policy.clone().into()));
    assert!(!cluster.replies.contains_key(&id), "it is not synced yet");
    cluster.sync();
    assert_eq!(cluster.replies.remove(&id), Some(Reply::Done));
    cluster.restart_master(6);
    let stat = cluster.master.stat();
    let of_default = stat.namespaces.iter().find(|it| it.name == "default").unwrap();
    assert_eq!((of_default.quota, of_default.max_hold_ms), (Some(77), Some(5)));
    assert_eq!(cluster.ask(ClientToMaster::SetPolicy(Policy::default().into())), Some(Reply::Done));
    assert_eq!(cluster.state.policies, []);

    for index in 0..POLICIES_MAX {
        let namespace = cluster.master.objects.cx.catalog.intern(&format!("n{index}"));
        cluster.master.objects.cx.quotas.set_policy(namespace, policy.clone());
    }
    let refused = cluster.ask(ClientToMaster::SetPolicy(policy.into()));
    assert!(matches!(refused, Some(Reply::Refused(it)) if it.reason == Reason::Busy));
}

#[test]
fn replacement_is_not_undone_by_a_late_report() {
    let mut cluster = Cluster::durable(&[10 * UNIT, 10 * UNIT]);
    let on = |node: &str| PutOptions { preferred: vec![node.into()], ..plain() };
    let evicted_later = PutOptions { preferred: vec!["node1".into()], ..plain() };
    cluster.put("k", UNIT, on("node2"));
    cluster.restart_alone(6);
    cluster.link(0);
    cluster.put("k", 9 * UNIT, evicted_later);
    // It is evicted, and only then does the other node report the older one.
    cluster.put("other", 9 * UNIT, on("node1"));
    cluster.link(1);
    assert_eq!(cluster.resolve("k", false), ResolveOutcome::Absent);
    assert_eq!(cluster.nodes[1].usage().objects, 0);
}

#[test]
fn copies_of_an_object_of_a_lost_node_are_accepted() {
    let mut cluster = Cluster::durable(&[10 * UNIT, 10 * UNIT, 10 * UNIT]);
    cluster.put("k", UNIT, twice());
    cluster.restart_alone(6);
    cluster.link(0);
    cluster.unlink(0);
    cluster.wait(1_500);
    cluster.link(1);
    cluster.wait(500);
    let absent = |it: &Notice| matches!(it, Notice::NodeAbsent { node, .. } if node == "node3");
    assert!(cluster.notices.iter().any(absent));
    assert!(cluster.has("k"), "{:?}", cluster.notices);
}

#[test]
fn outdated_master_restarts_with_a_greater_epoch() {
    let mut cluster = Cluster::new(&[10 * UNIT, 10 * UNIT]);
    let before = cluster.put("k", UNIT, pinned());
    // The same epoch of another instance: its state folder was lost. Or a smaller epoch: the folder is an
    // old copy.
    for epoch in [5, 3] {
        cluster.restart_master(epoch);
        assert!(cluster.master.objects.cx.config.epoch > 5);
        assert!(cluster.notices.iter().any(|it| matches!(it, Notice::Superseded(..))));
        assert_eq!(cluster.master.stat().nodes.iter().filter(|it| it.alive).count(), 2);
        let ResolveOutcome::Found(found) = cluster.resolve("k", false) else { panic!() };
        assert_eq!(before, CommitOutcome::Stored(found.generation));
        assert!(found.hard_pin);
        cluster.notices.clear();
    }
    let CommitOutcome::Stored(after) = cluster.put("n", UNIT, plain()) else { panic!() };
    assert!(after > generation(u64::MAX), "generations are not used twice");
    assert!(!cluster.notices.iter().any(|it| matches!(it, Notice::NodeDiscarded(_))));
}

#[test]
fn superseded_master_sends_nothing() {
    let cluster = Cluster::new(&[10 * UNIT]);
    let config = MasterConfig { epoch: 5, instance: 9, ..cluster.master.objects.cx.config };
    let mut master = Master::new(config);
    let hello = Hello { role: Role::Node, ..Hello::default() };
    master.handle(Tick(0), Event::Opened(ConnId(1), hello));
    let register = crate::message::Register { epoch: 5, instance: 1, ..Default::default() };
    let register = MemberToMaster::Register(Box::new(register));
    master.handle(Tick(0), Event::Request(ConnId(1), RequestId(1), register.into()));
    let effects: Vec<_> = std::iter::from_fn(|| master.poll_effect()).collect();
    assert!(matches!(effects[..], [Effect::Notice(Notice::Superseded(_, 5)), Effect::Restart(5)]));
    master.handle(Tick(0), Event::Opened(CLIENT, Hello::default()));
    master.handle(Tick(9), Event::Request(CLIENT, RequestId(1), ClientToMaster::Stat.into()));
    assert_eq!((master.poll_effect(), master.poll_timeout()), (None, None));
}

#[test]
fn acknowledgements_survive_a_restart() {
    let mut cluster = Cluster::durable(&[10 * UNIT]);
    let sample = PutOptions { sample: Some(Consumption::Once), ..plain() };
    let CommitOutcome::Stored(generation) = cluster.put("s", UNIT, sample) else { panic!() };
    cluster.restart_alone(6);
    let items = vec![AckItem { key: key("s"), generation }];
    let id = cluster.send(ClientToMaster::Ack(Ack { items, wait_ms: WAIT_MS, ..Ack::default() }));
    let leased = vec![LeaseItem { key: key("s"), generation: Some(generation) }];
    let lease = Lease { items: leased, group: String::new(), report_wait_ms: WAIT_MS };
    let lease = cluster.send(ClientToMaster::Lease(lease));
    cluster.link(0);
    assert_eq!(cluster.replies.remove(&id), Some(Reply::Acked(vec![AckOutcome::Freed])));
    let Some(Reply::Leased(leased)) = cluster.replies.remove(&lease) else { panic!() };
    assert_eq!(leased.items, [LeaseOutcome::Absent]);
    assert_eq!(
        cluster
            .ask(ClientToMaster::Exists(Exists { keys: [key("s")].iter().collect(), ..Exists::default() })),
        Some(Reply::Present(vec![Presence::Absent]))
    );
}
