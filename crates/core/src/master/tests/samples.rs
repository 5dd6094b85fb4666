//! Samples: consumption, leases and their ends, one rule per test.

use tiffin_node as node;

use super::*;
use crate::{
    Generation,
    attributes::Consumption,
    message::{
        Ack, AckItem, AckOutcome, AttributesItem, Cause, Lease, LeaseItem, LeaseOutcome, OnExists,
        PutOptions, Release, Why,
    },
};

pub(super) fn sample(consumption: Consumption) -> PutOptions {
    PutOptions { sample: Some(consumption), ..plain() }
}

fn groups(names: &[&str]) -> Consumption {
    Consumption::Groups(names.iter().map(|it| (*it).to_owned()).collect())
}

impl Cluster {
    pub(super) fn lease(&mut self, name: &str, generation: Option<Generation>, group: &str) -> LeaseOutcome {
        let items = vec![LeaseItem { key: key(name), generation }];
        match self.ask(ClientToMaster::Lease(Lease { items, group: group.into(), report_wait_ms: 0 })) {
            Some(Reply::Leased(mut leased)) => leased.items.remove(0),
            other => panic!("{other:?}"),
        }
    }

    fn ack(&mut self, name: &str, generation: Generation, group: &str) -> AckOutcome {
        let items = vec![AckItem { key: key(name), generation }];
        match self.ask(ClientToMaster::Ack(Ack {
            items,
            group: group.into(),
            wait_ms: 500,
            ..Ack::default()
        })) {
            Some(Reply::Acked(mut outcomes)) => outcomes.remove(0),
            other => panic!("{other:?}"),
        }
    }

    fn abort(&mut self, name: &str, generation: Generation) -> AckOutcome {
        let items = vec![AckItem { key: key(name), generation }];
        match self.ask(ClientToMaster::Ack(Ack {
            items,
            group: String::new(),
            wait_ms: 500,
            abort: true,
            ..Ack::default()
        })) {
            Some(Reply::Acked(mut outcomes)) => outcomes.remove(0),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn sample_leaves_when_consumed_not_by_eviction() {
    let mut cluster = Cluster::new(&[UNIT]);
    cluster.put("s", UNIT, sample(Consumption::Once));
    assert!(cluster.is_full("b"));
    assert!(
        matches!(cluster.lease("s", None, "g"), LeaseOutcome::Leased(it) if it.found.replicas.len() == 1)
    );
    assert_eq!(cluster.ack("s", generation(1), "g"), AckOutcome::Freed);
    assert_eq!(cluster.ack("s", generation(1), "g"), AckOutcome::Stale);
    assert_eq!(cluster.lease("s", None, "g"), LeaseOutcome::Absent);
    assert!(!cluster.is_full("b"));
    assert_eq!(cluster.cause("s").0, Cause::Consumed);
}

#[test]
fn aborted_sample_is_removed_for_all_groups() {
    let mut cluster = Cluster::new(&[UNIT]);
    for (at, consumption) in
        [Consumption::Once, groups(&["a", "b"]), Consumption::Retained].into_iter().enumerate()
    {
        let this = generation(at as u64 + 1);
        cluster.put("s", UNIT, sample(consumption));
        assert!(matches!(cluster.lease("s", None, "a"), LeaseOutcome::Leased(_)));
        assert_eq!(cluster.abort("s", generation(99)), AckOutcome::Stale);
        assert!(cluster.is_full("other"));
        assert_eq!(
            [cluster.abort("s", this), cluster.abort("s", this)],
            [AckOutcome::Freed, AckOutcome::Stale]
        );
        assert_eq!(cluster.cause("s").0, Cause::Deleted);
    }
    cluster.put("plain", UNIT, plain());
    assert_eq!(cluster.abort("plain", generation(4)), AckOutcome::Stale);
}

#[test]
fn samples_are_counted_by_state() {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    cluster.policy(None, Some(5_000_000));
    cluster.put("a", UNIT, sample(Consumption::Once));
    cluster.put("b", 2 * UNIT, sample(Consumption::Once));
    cluster.put("plain", UNIT, plain());
    assert!(matches!(cluster.lease("b", None, ""), LeaseOutcome::Leased(_)));
    let stat = cluster.master.stat().namespaces.remove(0);
    assert_eq!((stat.samples, stat.sample_bytes), (2, 3 * UNIT));
    assert_eq!((stat.samples_leased, stat.sample_bytes_leased), (1, 2 * UNIT));
    assert_eq!(stat.max_hold_ms, Some(5_000_000));
}

#[test]
fn each_group_consumes_a_sample_once() {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    cluster.put("s", UNIT, sample(groups(&["a", "b"])));
    assert_eq!(cluster.lease("s", None, "stranger"), LeaseOutcome::WrongGroup);
    assert_eq!(cluster.ack("s", generation(1), "stranger"), AckOutcome::WrongGroup);
    assert_eq!(cluster.ack("s", generation(1), "a"), AckOutcome::Recorded);
    assert_eq!(cluster.ack("s", generation(1), "a"), AckOutcome::Recorded);
    assert_eq!(cluster.lease("s", None, "a"), LeaseOutcome::Consumed);
    cluster.restart_master(6);
    assert_eq!(cluster.lease("s", None, "a"), LeaseOutcome::Consumed, "it is written on the node");
    assert!(matches!(cluster.lease("s", None, "b"), LeaseOutcome::Leased(_)));
    assert_eq!(cluster.ack("s", generation(1), "b"), AckOutcome::Freed);
    assert_eq!(cluster.nodes[0].usage().free, 8 * UNIT);
}

#[test]
fn retained_sample_stays_until_it_is_deleted() {
    let mut cluster = Cluster::new(&[UNIT]);
    cluster.put("s", UNIT, sample(Consumption::Retained));
    assert_eq!(cluster.ack("s", generation(1), "g"), AckOutcome::Recorded);
    assert!(cluster.is_full("b"));
    cluster.delete("s", false);
    assert!(!cluster.is_full("b"));
}

#[test]
fn references_to_a_replaced_sample_are_stale() {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    cluster.put("s", UNIT, sample(Consumption::Once));
    cluster.put("s", UNIT, sample(Consumption::Once));
    assert_eq!(cluster.lease("s", Some(generation(1)), "g"), LeaseOutcome::Superseded(generation(2)));
    assert_eq!(cluster.ack("s", generation(1), "g"), AckOutcome::Stale);
    assert!(matches!(cluster.lease("s", Some(generation(2)), "g"), LeaseOutcome::Leased(_)));
    cluster.put("plain", UNIT, plain());
    assert_eq!(cluster.lease("plain", None, "g"), LeaseOutcome::NotASample);
}

#[test]
fn leased_sample_does_not_expire() {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    cluster.policy(None, Some(300));
    cluster.put("s", UNIT, sample(Consumption::Once));
    cluster.put("t", UNIT, sample(Consumption::Once));
    let LeaseOutcome::Leased(lease) = cluster.lease("s", None, "g") else { panic!() };
    let stat = cluster.master.stat().namespaces[0].clone();
    assert_eq!((stat.samples, stat.samples_leased), (2, 1));
    cluster.wait(300);
    assert!(cluster.has("s") && !cluster.has("t"));
    assert_eq!(cluster.cause("t").0, Cause::HeldTooLong);
    assert_eq!(
        cluster.ask(ClientToMaster::Release(Release { leases: vec![lease.lease, 999] })),
        Some(Reply::Done)
    );
    assert_eq!(
        cluster.ask(ClientToMaster::Release(Release { leases: vec![lease.lease] })),
        Some(Reply::Done)
    );
    cluster.wait(1);
    assert!(!cluster.has("s"));
    cluster.put("u", UNIT, sample(Consumption::Once));
    cluster.lease("u", None, "g");
    cluster.ask(Request::Goodbye);
    cluster.open(CLIENT, 7);
    cluster.wait(300);
    assert!(!cluster.has("u"));
}

#[test]
fn consumption_waits_for_the_last_lease() {
    let ends: [fn(&mut Cluster, u64); 3] = [
        |cluster, lease| _ = cluster.ask(ClientToMaster::Release(Release { leases: vec![lease] })),
        |cluster, _| _ = cluster.ask(Request::Goodbye),
        |cluster, _| {
            cluster.event(Event::Closed(CLIENT));
            cluster.wait(300);
        },
    ];
    for (at, end) in ends.into_iter().enumerate() {
        let (mut cluster, lease) = leased();
        let items = vec![AckItem { key: key("s"), generation: generation(1) }];
        let ack = Ack { items, unless_leased: true, wait_ms: 500, ..Ack::default() };
        let Some(Reply::Acked(outcomes)) = cluster.ask(ClientToMaster::Ack(ack)) else { panic!() };
        assert_eq!(outcomes, [AckOutcome::Recorded]);
        cluster.wait(10);
        assert!(cluster.has("s"), "another client has it leased");
        end(&mut cluster, lease);
        if at > 0 {
            cluster.open(CLIENT, 7);
        }
        assert!(!cluster.has("s"), "way {at}");
        assert_eq!(cluster.master.stat().namespaces[0].samples, 0);
    }
}

#[test]
fn deferred_consumption_ends_with_its_generation() {
    let (mut cluster, lease) = leased();
    let items = vec![AckItem { key: key("s"), generation: generation(1) }];
    let ack = Ack { items, unless_leased: true, wait_ms: 500, ..Ack::default() };
    cluster.ask(ClientToMaster::Ack(ack));
    cluster.put("s", UNIT, PutOptions { on_exists: OnExists::Replace, ..sample(Consumption::Once) });
    cluster.ask(ClientToMaster::Release(Release { leases: vec![lease] }));
    cluster.wait(10);
    assert!(cluster.has("s"), "the new object is not consumed");
}

/// An acknowledgement is written before it is answered, also if a lease keeps the sample.
#[test]
fn deferred_consumption_survives_a_restart() {
    for consumption in [Consumption::Once, groups(&["g", "h"])] {
        let mut cluster = Cluster::new(&[8 * UNIT, 8 * UNIT]);
        cluster.put("s", UNIT, PutOptions { replicas: 2, ..sample(consumption.clone()) });
        cluster.lease("s", None, "g");
        for group in ["g", "h"] {
            let items = vec![AckItem { key: key("s"), generation: generation(1) }];
            let ack = Ack { items, group: group.into(), unless_leased: true, wait_ms: 500, abort: false };
            let Some(Reply::Acked(outcomes)) = cluster.ask(ClientToMaster::Ack(ack)) else { panic!() };
            assert_eq!(outcomes, [AckOutcome::Recorded], "{consumption:?}");
        }
        assert!(matches!(cluster.lease("s", None, "h"), LeaseOutcome::Leased(_)), "others have it leased");
        cluster.restart_master(2);
        assert!(!cluster.has("s"), "{consumption:?}");
        let objects: Vec<_> = cluster.nodes.iter().map(|it| it.usage().objects).collect();
        assert_eq!((objects, cluster.master.stat().namespaces[0].samples), (vec![0, 0], 0));
    }
}

/// One of two copies may have missed the last acknowledgement: it does not bring the sample back.
#[test]
fn consumption_written_on_one_copy_is_sufficient() {
    for told in [0, 1] {
        let mut cluster = Cluster::with(&[8 * UNIT, 8 * UNIT], |config| config.durable = true);
        cluster.put("s", UNIT, PutOptions { replicas: 2, ..sample(groups(&["g"])) });
        let record = cluster.nodes[told].inventory().remove(0);
        let mut attributes = record.attributes;
        attributes.sample.as_mut().unwrap().acked.push("g".into());
        let mark =
            MasterToMember::SetAttributes(vec![AttributesItem { slot_ref: record.slot_ref, attributes }]);
        cluster.nodes[told].handle(node::Event::MasterRequest(RequestId(1 << 40), mark));
        while cluster.nodes[told].poll_effect().is_some() {}
        cluster.restart_master(2);
        assert!(!cluster.has("s"), "node {told} knows");
        assert!(cluster.nodes.iter().all(|it| it.usage().objects == 0));
    }
}

#[test]
fn expired_samples_are_counted() {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    cluster.policy(None, Some(100));
    cluster.put("a", UNIT, sample(Consumption::Once));
    cluster.put("b", 1, PutOptions { elsewhere: 7, ..sample(Consumption::Once) });
    cluster.lease("b", None, "g");
    cluster.wait(101);
    let stat = cluster.master.stat().namespaces.remove(0);
    assert_eq!((stat.samples_expired, stat.sample_bytes_expired), (1, UNIT));
    cluster.ask(Request::Goodbye);
    cluster.wait(1);
    let stat = cluster.master.stat().namespaces.remove(0);
    assert_eq!((stat.samples_expired, stat.sample_bytes_expired), (2, UNIT + 8));
}

/// A cluster with a sample that the client has leased, and the number of the lease.
fn leased() -> (Cluster, u64) {
    let mut cluster = Cluster::with(&[8 * UNIT], |config| config.lease_grace_ms = 300);
    cluster.put("s", UNIT, sample(Consumption::Once));
    let LeaseOutcome::Leased(granted) = cluster.lease("s", None, "g") else { panic!() };
    assert_eq!(count_leased(&cluster), 1);
    (cluster, granted.lease)
}

fn count_leased(cluster: &Cluster) -> u64 {
    cluster.master.stat().namespaces[0].samples_leased
}

#[test]
fn lease_survives_a_timely_reconnect() {
    let (mut cluster, lease) = leased();
    cluster.event(Event::Closed(CLIENT));
    cluster.wait(299);
    assert_eq!(count_leased(&cluster), 1);
    cluster.open(CLIENT, 7);
    assert_eq!(cluster.ask(ClientToMaster::KeepLeases(vec![lease, 999])), Some(Reply::Done));
    cluster.wait(10_000);
    assert_eq!(count_leased(&cluster), 1);
    // The same holds for a new connection that replaces the old one before the old one is closed.
    cluster.open(ConnId(2), 7);
    cluster.event(Event::Closed(CLIENT));
    cluster.wait(10_000);
    assert_eq!(count_leased(&cluster), 1);
    let release = ClientToMaster::Release(Release { leases: vec![lease] });
    cluster.event(Event::Request(ConnId(2), RequestId(1), release.into()));
    assert_eq!(count_leased(&cluster), 0);
}

#[test]
fn lease_ends_when_its_client_is_away_too_long() {
    let (mut cluster, _) = leased();
    cluster.event(Event::Closed(CLIENT));
    let ends = cluster.now.after(300);
    assert!(cluster.master.poll_timeout().is_some_and(|at| at <= ends));
    cluster.wait(300);
    assert_eq!(count_leased(&cluster), 0);
    // A client that returns later may lease again.
    cluster.open(CLIENT, 7);
    assert!(matches!(cluster.lease("s", None, "g"), LeaseOutcome::Leased(_)));
}

#[test]
fn lease_with_a_lost_reply_ends_on_keep_leases() {
    let (mut cluster, known) = leased();
    let LeaseOutcome::Leased(_lost) = cluster.lease("s", None, "g") else { panic!() };
    let LeaseOutcome::Leased(other) = ({
        cluster.put("t", UNIT, sample(Consumption::Once));
        cluster.lease("t", None, "g")
    }) else {
        panic!()
    };
    cluster.event(Event::Closed(CLIENT));
    cluster.open(CLIENT, 7);
    cluster.ask(ClientToMaster::KeepLeases(vec![known]));
    assert_eq!(count_leased(&cluster), 1);
    let Why::Here(here) = cluster.why("s") else { panic!() };
    assert_eq!(here.leases, ["client 7"], "one of two is left");
    // Listed leases that the client does not have, or that belong to another one, have no effect.
    cluster.open(ConnId(2), 8);
    cluster.event(Event::Request(
        ConnId(2),
        RequestId(1),
        ClientToMaster::KeepLeases(vec![known, other.lease]).into(),
    ));
    assert_eq!(count_leased(&cluster), 1);
}

#[test]
fn lease_ends_at_once_when_its_client_is_proven_dead() {
    // The proof may come before or after the end of the connection.
    for closed_first in [false, true] {
        let (mut cluster, _) = leased();
        if closed_first {
            cluster.event(Event::Closed(CLIENT));
        }
        assert_eq!(count_leased(&cluster), 1);
        cluster.node_event(0, node::Event::Dead(ClientId(8)));
        assert_eq!(count_leased(&cluster), 1, "that was another client");
        cluster.node_event(0, node::Event::Dead(ClientId(7)));
        assert_eq!(count_leased(&cluster), 0);
    }
    // A client in the node's own process that detaches is not dead.
    let (mut cluster, _) = leased();
    cluster.node_event(0, node::Event::Detached(ClientId(7)));
    assert_eq!(count_leased(&cluster), 1);
}

#[test]
fn client_cannot_declare_another_client_dead() {
    let (mut cluster, _) = leased();
    cluster.open(ConnId(2), 8);
    cluster.event(Event::Request(ConnId(2), RequestId(1), MemberToMaster::ClientDied(ClientId(7)).into()));
    assert!(matches!(cluster.replies.remove(&RequestId(1)), Some(Reply::Refused(_))));
    assert_eq!(count_leased(&cluster), 1);
}

/// Consumes a sample while a node has not confirmed the retire of another copy of that name.
fn consumed_beside_a_pending_copy(mutant: Mutant) -> Option<Reply> {
    let mut cluster = Cluster::with(&[8 * UNIT; 2], |config| config.mutant = mutant);
    let at = |node: &str| PutOptions { preferred: vec![node.into()], ..sample(Consumption::Once) };
    cluster.put("s", UNIT, at("node1"));
    let ReserveOutcome::Space(space) = cluster.reserve("s", UNIT, at("node2")) else { panic!() };
    cluster.hold_up(0);
    cluster.send_commit("s", UNIT, at("node2"), &space);
    cluster.wait(500);
    let items = vec![AckItem { key: key("s"), generation: generation(2) }];
    cluster.ask(ClientToMaster::Ack(Ack { items, group: "g".into(), wait_ms: 500, ..Ack::default() }))
}

#[test]
fn consumed_sample_has_no_copies_left() {
    assert_eq!(consumed_beside_a_pending_copy(Mutant::None), None, "the node has not confirmed");
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_pending_copies_of_samples_is_noticed() {
    let freed = Some(Reply::Acked(vec![AckOutcome::Freed]));
    assert_eq!(consumed_beside_a_pending_copy(Mutant::FreeWithoutSurplus), freed);
}
