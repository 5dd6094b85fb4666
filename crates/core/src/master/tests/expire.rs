//! TTLs of objects, one rule per test.

use super::*;
use crate::{
    attributes::{Attributes, Consumption},
    message::{
        Cause, DeleteOutcome, Evicted, List, Pattern, Pin, PinOutcome, PutOptions, ReserveOutcome, Why,
    },
};

const TTL_MS: u64 = 1_000;

fn ttl(ttl_ms: u64) -> PutOptions {
    PutOptions { ttl_ms: Some(ttl_ms), ..plain() }
}

impl Cluster {
    fn pin_as(&mut self, name: &str, on: bool) -> PinOutcome {
        let pin = Pin { keys: vec![key(name)], owner: "run".into(), on, wait_ms: 500 };
        match self.ask(ClientToMaster::Pin(pin)) {
            Some(Reply::Pinned(mut outcomes)) => outcomes.remove(0),
            other => panic!("{other:?}"),
        }
    }

    fn listed(&mut self) -> Vec<(String, Option<u64>)> {
        let list = List { pattern: Pattern::All, pinned_by: None, cursor: 0, limit: 100, report_wait_ms: 0 };
        let Some(Reply::Listed(page)) = self.ask(ClientToMaster::List(list)) else { panic!() };
        page.items.iter().map(|it| (it.key.to_string(), it.expires_in_ms)).collect()
    }

    /// The TTL of an object, and the time until it ends.
    fn times(&mut self, name: &str) -> (Option<u64>, Option<u64>) {
        match self.why(name) {
            Why::Here(here) => (here.ttl_ms, here.found.expires_in_ms),
            other => panic!("{other:?}"),
        }
    }

    /// Starts another master whose wall clock has gone on by that much since tick 0 of this one. Its members
    /// are known, and have not reported.
    fn restart_later(&mut self, wall_ms: u64) {
        let config = self.master.objects.cx.config;
        let (epoch, instance) = (config.epoch + 1, config.instance + 1);
        let config = MasterConfig { epoch, instance, wall_ms, ..config };
        for node in &mut self.nodes {
            node.handle(node::Event::Unlinked);
        }
        self.master = Master::recover(config, self.state.clone());
        self.now = Tick(0);
        self.open(CLIENT, 7);
        self.carry_out();
    }

    fn wall_ms(&self) -> u64 {
        self.master.objects.cx.config.wall_ms + self.now.0
    }
}

#[test]
fn object_exists_until_its_ttl_is_over() {
    let mut cluster = Cluster::new(&[10 * UNIT]);
    cluster.put("a", 100, ttl(TTL_MS));
    cluster.put("b", 100, plain());
    assert_eq!(cluster.times("a"), (Some(TTL_MS), Some(TTL_MS)));
    assert_eq!(cluster.times("b"), (None, None));
    cluster.wait(TTL_MS - 1);
    assert_eq!(cluster.listed(), [("a".to_owned(), Some(1)), ("b".to_owned(), None)]);
    assert_eq!(cluster.master.poll_timeout(), Some(Tick(TTL_MS)));
    cluster.wait(1);
    assert!(!cluster.has("a") && cluster.has("b"));
    assert_eq!(cluster.cause("a"), (Cause::Expired, String::new()));
    let expired = Evicted { objects: 1, bytes: 100 };
    assert_eq!(cluster.master.stat().expired, expired);
    assert!(cluster.notices.contains(&Notice::Expired(expired)));
    assert_eq!(cluster.nodes[0].usage().free, 8 * UNIT);
    assert_eq!(cluster.delete("a", true), Some(DeleteOutcome::Absent));
}

#[test]
fn ttl_begins_at_the_commit() {
    let mut cluster = Cluster::new(&[10 * UNIT]);
    let ReserveOutcome::Space(space) = cluster.reserve("a", 10, ttl(TTL_MS)) else { panic!() };
    cluster.wait(900);
    cluster.commit("a", 10, ttl(TTL_MS), &space);
    cluster.wait(TTL_MS - 1);
    assert!(cluster.has("a"));
    cluster.wait(1);
    assert!(!cluster.has("a"));
}

#[test]
fn put_that_replaces_has_its_own_ttl() {
    let mut cluster = Cluster::new(&[10 * UNIT]);
    for (options, expected) in
        [(ttl(10), Some(10)), (ttl(500), Some(500)), (plain(), None), (ttl(20), Some(20))]
    {
        cluster.put("a", 10, options);
        assert_eq!(cluster.times("a").1, expected);
    }
    // A put that keeps the object leaves its TTL.
    cluster.wait(15);
    assert_eq!(cluster.reserve("a", 10, keep()), ReserveOutcome::Exists(generation(4)));
    assert_eq!(cluster.times("a").1, Some(5));
    cluster.wait(5);
    assert!(matches!(cluster.reserve("a", 10, keep()), ReserveOutcome::Space(_)));
}

#[test]
fn pinned_object_expires_with_its_last_pin() {
    let mut cluster = Cluster::new(&[10 * UNIT]);
    cluster.put("a", 10, PutOptions { ttl_ms: Some(TTL_MS), ..pinned() });
    assert_eq!(cluster.pin_as("a", true), PinOutcome::Done);
    cluster.wait(2 * TTL_MS);
    assert_eq!((cluster.times("a").1, cluster.master.has_work()), (Some(0), false));
    let empty = Pin { keys: vec![key("a")], owner: String::new(), on: false, wait_ms: 500 };
    cluster.ask(ClientToMaster::Pin(empty));
    cluster.wait(1);
    assert!(cluster.has("a"));
    assert_eq!(cluster.pin_as("a", false), PinOutcome::Done);
    assert!(!cluster.has("a"));
    assert_eq!(cluster.nodes[0].usage().free, 10 * UNIT);
}

#[test]
fn soft_pin_and_lease_do_not_keep_an_expired_object() {
    let mut cluster = Cluster::with(&[10 * UNIT], |config| config.strict_leases = true);
    cluster.put("a", 10, PutOptions { soft_pin_ms: Some(10 * TTL_MS), ..ttl(TTL_MS) });
    cluster.wait(TTL_MS - 1);
    let resolve =
        Resolve { keys: vec![key("a")], touch: true, lease: true, locate: true, ..Resolve::default() };
    cluster.ask(ClientToMaster::Resolve(resolve));
    cluster.wait(1);
    assert!(!cluster.has("a"));
    assert_eq!(cluster.master.stat().soft_pinned, 0);
}

#[test]
fn view_keeps_the_memory_of_an_expired_object() {
    let mut cluster = Cluster::new(&[10 * UNIT]);
    let ReserveOutcome::Space(space) = cluster.reserve("a", 10, ttl(TTL_MS)) else { panic!() };
    cluster.commit("a", 10, ttl(TTL_MS), &space);
    let slot_refs = vec![space[0].location.slot_ref()];
    cluster.node_event(0, node::Event::Mapped(ClientId(7)));
    cluster.node_request(0, ClientToNode::BeginViews(slot_refs.clone()));
    cluster.wait(TTL_MS);
    assert!(!cluster.has("a"));
    assert_eq!((cluster.nodes[0].usage().free, cluster.nodes[0].usage().held), (9 * UNIT, UNIT));
    cluster.node_request(0, ClientToNode::EndViews(slot_refs));
    assert_eq!(cluster.nodes[0].usage().free, 10 * UNIT);
}

#[test]
fn many_objects_expire_in_pieces_and_none_is_found() {
    let mut cluster = Cluster::with(&[100 * UNIT], |config| config.piece_objects_max = 4);
    (0..20).for_each(|index| _ = cluster.put(&format!("k{index}"), 1, ttl(TTL_MS)));
    cluster.hold_up(0);
    cluster.wait(TTL_MS);
    let left = |cluster: &Cluster| cluster.master.stat().namespaces.iter().map(|it| it.objects).sum::<u64>();
    assert_eq!((left(&cluster), cluster.master.has_work()), (16, true));
    // No wake-up is needed for what is over already.
    assert_ne!(cluster.master.poll_timeout(), Some(Tick(TTL_MS)));
    // A request removes what it names, and a piece of the others.
    assert!(!cluster.has("k19"));
    assert_eq!(left(&cluster), 11);
    assert_eq!(cluster.listed(), []);
    let keys = [key("k18"), key("k17"), key("k0")].iter().collect();
    let present = cluster.ask(ClientToMaster::Exists(Exists { keys, ..Exists::default() }));
    assert_eq!(present, Some(Reply::Present(vec![Presence::Absent; 3])));
    while cluster.master.has_work() {
        cluster.master.work(cluster.now);
        cluster.carry_out();
    }
    assert_eq!((left(&cluster), cluster.master.stat().expired.objects), (0, 20));
    cluster.let_go(0);
    assert_eq!(cluster.nodes[0].usage().free, 100 * UNIT);
}

#[test]
fn ttl_survives_a_restart_of_the_master() {
    let mut cluster = Cluster::durable(&[10 * UNIT, 10 * UNIT]);
    cluster.put("one", 10, ttl(TTL_MS));
    cluster.put("two", 10, PutOptions { replicas: 2, ..ttl(TTL_MS) });
    cluster.wait(300);
    cluster.restart_later(cluster.wall_ms() + 200);
    // Nothing expires before all members have reported.
    cluster.wait(600);
    cluster.link(0);
    assert!(!cluster.master.has_work());
    cluster.link(1);
    // The clock of the master had reached 500 of 1000 ms at tick 0.
    assert!(cluster.master.has_work());
    assert!(!cluster.has("one") && !cluster.has("two"));
    assert_eq!(cluster.master.stat().expired.objects, 2);

    let mut cluster = Cluster::durable(&[10 * UNIT]);
    cluster.put("a", 10, ttl(TTL_MS));
    cluster.restart_later(cluster.wall_ms() + 400);
    cluster.link(0);
    assert_eq!(cluster.times("a"), (Some(TTL_MS), Some(600)));
}

/// Whether an object survives whose TTL is over and whose pin is known to the last member only that reports.
fn pin_survives_a_restart(mutant: Mutant) -> bool {
    let mut cluster = Cluster::with(&[10 * UNIT, 10 * UNIT], |config| {
        (config.durable, config.mutant) = (true, mutant);
    });
    cluster.put("a", 10, PutOptions { replicas: 2, ..ttl(TTL_MS) });
    cluster.unlink(0);
    cluster.pin_as("a", true);
    cluster.restart_later(cluster.wall_ms() + TTL_MS);
    cluster.link(0);
    cluster.wait(1);
    cluster.link(1);
    cluster.has("a")
}

#[test]
fn nothing_expires_before_all_members_have_reported() {
    assert!(pin_survives_a_restart(Mutant::None));
}

#[cfg(feature = "mutants")]
#[test]
fn expiry_before_all_reports_is_noticed() {
    assert!(!pin_survives_a_restart(Mutant::ExpireUnreported));
}

#[test]
fn clock_that_was_set_back_grants_one_more_ttl() {
    let mut cluster = Cluster::durable(&[10 * UNIT]);
    cluster.put("a", 10, ttl(TTL_MS));
    cluster.restart_later(0);
    cluster.link(0);
    assert_eq!(cluster.times("a").1, Some(TTL_MS));
    cluster.wait(TTL_MS);
    assert!(!cluster.has("a"));
}

#[test]
fn expired_copy_of_an_absent_node_expires_again() {
    let mut cluster = Cluster::durable(&[10 * UNIT, 10 * UNIT]);
    cluster.put("a", 10, PutOptions { replicas: 2, ..ttl(TTL_MS) });
    cluster.unlink(1);
    cluster.wait(TTL_MS);
    assert!(!cluster.has("a"));
    // The master has not saved that the node must retire its copy.
    cluster.restart_later(cluster.wall_ms());
    cluster.link(0);
    cluster.link(1);
    assert!(!cluster.has("a"));
    assert_eq!([0, 1].map(|it: usize| cluster.nodes[it].usage().free), [10 * UNIT; 2]);
}

#[test]
fn home_that_missed_the_answer_learns_the_end() {
    let mut cluster = Cluster::durable(&[10 * UNIT]);
    let ReserveOutcome::Space(space) = cluster.reserve("a", 10, ttl(TTL_MS)) else { panic!() };
    cluster.hold_up(0);
    cluster.is_on_same_host = false;
    cluster.send_commit("a", 10, ttl(TTL_MS), &space);
    cluster.held_up[0].clear();
    cluster.is_held_up[0] = false;
    cluster.wait(500);
    cluster.unlink(0);
    cluster.link(0);
    cluster.restart_later(cluster.wall_ms());
    cluster.link(0);
    assert_eq!(cluster.times("a").1, Some(500));
}

#[test]
fn invalid_ttls_are_refused() {
    let mut cluster = Cluster::new(&[10 * UNIT]);
    let sample = PutOptions { sample: Some(Consumption::Once), ..ttl(1) };
    for options in [ttl(0), ttl(crate::TTL_MS_MAX + 1), sample] {
        let problem = Attributes::problem(&options).unwrap();
        let outcome = cluster.reserve("a", 10, options);
        assert!(matches!(&outcome, ReserveOutcome::Invalid(it) if *it == problem), "{outcome:?}");
    }
    assert!(matches!(cluster.reserve("a", 10, ttl(crate::TTL_MS_MAX)), ReserveOutcome::Space(_)));
}
