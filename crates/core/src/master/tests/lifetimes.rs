//! Pins, waiting for space, quotas and explanations, one rule per test.

use tiffin_node as node;

use super::{samples::sample, *};
use crate::{
    attributes::Consumption,
    message::{
        Await, Cause, CommitOutcome, DeletedMatching, Demotion, DropPins, Full, Held, LeaseOutcome, List,
        Pattern, Pin, PinOutcome, Policy, PolicyChange, PutOptions, Quota, Release, Reserve, ReserveItem,
        ReserveOutcome, ResolveOutcome, SOFT_PIN_DEFAULT, Why,
    },
};

fn owned(owner: &str) -> PutOptions {
    PutOptions { owner: owner.into(), ..pinned() }
}

impl Cluster {
    fn pin(&mut self, name: &str, owner: &str, on: bool) -> PinOutcome {
        let pin = Pin { keys: vec![key(name)], owner: owner.into(), on, wait_ms: 500 };
        match self.ask(ClientToMaster::Pin(pin)) {
            Some(Reply::Pinned(mut outcomes)) => outcomes.remove(0),
            other => panic!("{other:?}"),
        }
    }

    fn pinned_by(&mut self, owner: &str) -> Vec<String> {
        let list = List {
            pattern: Pattern::All,
            pinned_by: Some(owner.into()),
            cursor: 0,
            limit: 100,
            report_wait_ms: 0,
        };
        let Some(Reply::Listed(page)) = self.ask(ClientToMaster::List(list)) else { panic!() };
        page.items.iter().map(|it| it.key.to_string()).collect()
    }

    pub(super) fn reserve_waiting(&mut self, name: &str, len: u64, wait_ms: u64) -> RequestId {
        let items = vec![ReserveItem { key: key(name), len, options: plain() }];
        self.send(ClientToMaster::Reserve(Reserve { items, wait_ms, ..Reserve::default() }))
    }

    pub(super) fn reserved(&mut self, id: RequestId) -> Option<ReserveOutcome> {
        match self.replies.remove(&id)? {
            Reply::Reserved(mut reserved) => Some(reserved.items.remove(0)),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn policy(&mut self, quota: Option<u64>, max_hold_ms: Option<u64>) {
        assert_eq!(
            self.ask(ClientToMaster::SetPolicy(Policy { quota, max_hold_ms, ..Policy::default() }.into())),
            Some(Reply::Done)
        );
    }

    pub(super) fn why(&mut self, name: &str) -> Why {
        match self
            .ask(ClientToMaster::Why(crate::message::Explain { keys: vec![key(name)], report_wait_ms: 0 }))
        {
            Some(Reply::Why(mut answers)) => answers.remove(0),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn cause(&mut self, name: &str) -> (Cause, String) {
        match self.why(name) {
            Why::Gone(gone) => (gone.cause, gone.by),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn is_full(&mut self, name: &str) -> bool {
        matches!(self.reserve(name, UNIT, plain()), ReserveOutcome::Full(_))
    }
}

#[test]
fn pin_protects_until_its_owner_drops_it() {
    let mut cluster = Cluster::new(&[UNIT]);
    cluster.put("a", UNIT, plain());
    assert_eq!(cluster.pin("a", "run", true), PinOutcome::Done);
    assert!(cluster.is_full("b"));
    assert_eq!(cluster.pin("a", "other", false), PinOutcome::NotPinned);
    assert!(cluster.is_full("b"));
    assert_eq!(cluster.pin("a", "run", false), PinOutcome::Done);
    assert_eq!(cluster.pin("a", "run", false), PinOutcome::NotPinned);
    assert!(!cluster.is_full("b"));
    assert_eq!(cluster.pin("nothing", "run", true), PinOutcome::Absent);
}

#[test]
fn soft_pin_without_a_time_lasts_the_default() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    let soft = |soft_pin_ms| PutOptions { soft_pin_ms, ..plain() };
    let puts = [("none", None), ("short", Some(10)), ("default", Some(SOFT_PIN_DEFAULT))];
    puts.into_iter().for_each(|(name, ms)| _ = cluster.put(name, UNIT, soft(ms)));
    assert_eq!(cluster.master.stat().soft_pinned, 2);
    cluster.wait(10);
    assert_eq!(cluster.master.stat().soft_pinned, 1);
    cluster.wait(1000);
    assert_eq!(cluster.master.stat().soft_pinned, 0);
}

#[test]
fn pins_are_per_owner_and_dropped_in_one_call() {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    cluster.put("a", UNIT, owned("one"));
    cluster.put("b", UNIT, owned("one"));
    cluster.put("c", UNIT, owned("two"));
    cluster.pin("a", "two", true);
    assert_eq!(cluster.pinned_by("one"), ["a", "b"]);
    assert_eq!(cluster.pinned_by("two"), ["a", "c"]);
    let owners = |cluster: &Cluster| {
        let stat = cluster.master.stat();
        let owners = stat.namespaces.into_iter().flat_map(|it| it.owners);
        owners.map(|it| (it.owner, it.objects, it.bytes)).collect::<Vec<_>>()
    };
    let both = [("one".to_owned(), 2, 2 * UNIT), ("two".to_owned(), 2, 2 * UNIT)];
    assert_eq!(owners(&cluster), both);
    let dropped = cluster.ask(ClientToMaster::DropPins(DropPins { owner: "one".into(), wait_ms: 500 }));
    assert_eq!(dropped, Some(Reply::DeletedMatching(DeletedMatching { count: 2, unconfirmed: vec![] })));
    assert!(cluster.pinned_by("one").is_empty());
    let Why::Here(here) = cluster.why("a") else { panic!() };
    assert_eq!(here.pins, ["two"]);
    assert_eq!(owners(&cluster), both[1..]);
    cluster.delete("a", true);
    cluster.pin("c", "two", false);
    assert_eq!(owners(&cluster), []);
}

#[test]
fn pin_is_written_before_it_is_answered() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.put("a", UNIT, plain());
    cluster.hold_up(0);
    let pin = Pin { keys: vec![key("a")], owner: "run".into(), on: true, wait_ms: 500 };
    let id = cluster.send(ClientToMaster::Pin(pin));
    assert_eq!(cluster.replies.get(&id), None);
    cluster.let_go(0);
    assert_eq!(cluster.replies.remove(&id), Some(Reply::Pinned(vec![PinOutcome::Done])));
    cluster.restart_master(6);
    assert_eq!(cluster.pinned_by("run"), ["a"]);
}

#[test]
fn returning_node_receives_changed_pins() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.put("a", UNIT, owned("run"));
    cluster.unlink(0);
    assert_eq!(cluster.pin("a", "run", false), PinOutcome::Unconfirmed(vec!["node1".into()]));
    cluster.link(0);
    cluster.restart_master(6);
    assert!(cluster.has("a"));
    assert!(cluster.pinned_by("run").is_empty());
}

#[test]
fn repeated_drop_of_pins_waits_for_unwritten_ones() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.put("a", UNIT, owned("run"));
    let drop = || ClientToMaster::DropPins(DropPins { owner: "run".into(), wait_ms: 500 });
    let dropped = |count, unconfirmed: &[&str]| {
        let unconfirmed = unconfirmed.iter().map(|it| (*it).to_owned()).collect();
        Some(Reply::DeletedMatching(DeletedMatching { count, unconfirmed }))
    };
    cluster.unlink(0);
    assert_eq!(cluster.ask(drop()), dropped(1, &["node1"]));
    assert_eq!(cluster.ask(drop()), dropped(0, &["node1"]), "it is still not written");
    cluster.link(0);
    assert_eq!(cluster.ask(drop()), dropped(0, &[]));
    cluster.restart_master(6);
    assert!(cluster.has("a") && cluster.pinned_by("run").is_empty());
}

#[test]
fn repeated_drop_of_pins_skips_written_ones() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.put("a", UNIT, owned("run"));
    let drop = || ClientToMaster::DropPins(DropPins { owner: "run".into(), wait_ms: 500 });
    assert!(cluster.ask(drop()).is_some());
    cluster.hold_up(0);
    let none = DeletedMatching { count: 0, unconfirmed: vec![] };
    assert_eq!(cluster.ask(drop()), Some(Reply::DeletedMatching(none)));
}

#[test]
fn waiting_put_continues_when_space_is_freed() {
    let mut cluster = Cluster::new(&[UNIT]);
    cluster.put("a", UNIT, pinned());
    let id = cluster.reserve_waiting("b", UNIT, 500);
    assert_eq!(cluster.reserved(id), None);
    assert_eq!(cluster.master.stat().namespaces[0].waiting, 1);
    cluster.delete("a", true);
    assert!(matches!(cluster.reserved(id), Some(ReserveOutcome::Space(_))));
}

#[test]
fn late_put_receives_the_usage() {
    let mut cluster = Cluster::new(&[UNIT]);
    cluster.put("a", UNIT, pinned());
    let id = cluster.reserve_waiting("b", UNIT, 500);
    cluster.wait(499);
    assert_eq!(cluster.reserved(id), None);
    cluster.wait(1);
    let Some(ReserveOutcome::Full(Full { usage, .. })) = cluster.reserved(id) else { panic!() };
    assert_eq!(usage.committed, UNIT);
    assert_eq!(cluster.master.waiting_count(), 0);
}

#[test]
fn waiting_puts_are_served_in_order() {
    let mut cluster = Cluster::new(&[2 * UNIT]);
    cluster.put("a", UNIT, pinned());
    cluster.put("b", UNIT, pinned());
    let large = cluster.reserve_waiting("large", 2 * UNIT, 500);
    let small = cluster.reserve_waiting("small", UNIT, 500);
    cluster.delete("a", true);
    assert_eq!(cluster.reserved(small), None, "a put that fits must not overtake an earlier one");
    assert!(cluster.is_full("now"), "nor may a put that does not wait");
    cluster.delete("b", true);
    let Some(ReserveOutcome::Space(space)) = cluster.reserved(large) else { panic!() };
    assert_eq!(cluster.reserved(small), None);
    cluster.commit("large", 2 * UNIT, plain(), &space);
    // The new object may be evicted for the next put of the queue.
    assert!(matches!(cluster.reserved(small), Some(ReserveOutcome::Space(_))));
}

#[test]
fn waiting_put_continues_when_a_lease_or_pin_ends() {
    let mut cluster = Cluster::new(&[UNIT]);
    cluster.put("a", UNIT, plain());
    cluster.resolve("a", true);
    let id = cluster.reserve_waiting("b", UNIT, 5_000);
    assert_eq!(cluster.master.poll_timeout(), Some(Tick(100)));
    cluster.wait(100);
    assert!(matches!(cluster.reserved(id), Some(ReserveOutcome::Space(_))));
    let mut cluster = Cluster::new(&[UNIT]);
    cluster.put("a", UNIT, owned("run"));
    let id = cluster.reserve_waiting("b", UNIT, 5_000);
    cluster.pin("a", "run", false);
    assert!(matches!(cluster.reserved(id), Some(ReserveOutcome::Space(_))));
}

#[test]
fn disconnected_client_leaves_the_queue() {
    let mut cluster = Cluster::new(&[UNIT]);
    cluster.put("a", UNIT, pinned());
    cluster.reserve_waiting("b", UNIT, 5_000);
    cluster.event(Event::Closed(CLIENT));
    assert_eq!(cluster.master.waiting_count(), 0);
    cluster.open(CLIENT, 7);
    cluster.delete("a", true);
    assert!(!cluster.is_full("c"));
}

#[test]
fn quota_counts_reservations_and_objects() {
    let mut cluster = Cluster::new(&[8 * UNIT, 8 * UNIT]);
    cluster.policy(Some(2 * UNIT), None);
    assert!(matches!(cluster.reserve("a", UNIT, pinned()), ReserveOutcome::Space(_)));
    cluster.put("b", UNIT, pinned());
    let ReserveOutcome::OverQuota(quota) = cluster.reserve("c", 1, plain()) else { panic!() };
    assert_eq!((quota.used, quota.limit), (2 * UNIT, 2 * UNIT));
    cluster.policy(Some(0), None);
    assert!(matches!(cluster.reserve("c", 1, plain()), ReserveOutcome::OverQuota(_)));
    assert!(cluster.has("b"), "a smaller quota removes nothing");
    cluster.policy(None, None);
    assert!(matches!(cluster.reserve("c", 1, plain()), ReserveOutcome::Space(_)));
}

#[test]
fn quota_counts_sample_bytes_in_other_stores() {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    let elsewhere = |bytes| PutOptions { elsewhere: bytes, ..sample(Consumption::Once) };
    cluster.policy(Some(10 * UNIT), None);
    cluster.put("a", UNIT, elsewhere(5 * UNIT));
    let ReserveOutcome::OverQuota(quota) = cluster.reserve("b", UNIT, elsewhere(4 * UNIT)) else { panic!() };
    assert_eq!((quota.used, quota.limit), (6 * UNIT, 10 * UNIT));
    let ReserveOutcome::Space(_) = cluster.reserve("b", UNIT, elsewhere(3 * UNIT)) else { panic!() };
    assert_eq!(cluster.master.stat().namespaces[0].used, 10 * UNIT);
    cluster.restart_master(6);
    let stat = cluster.master.stat().namespaces[0].clone();
    assert_eq!((stat.used, stat.sample_bytes), (6 * UNIT, 6 * UNIT));
    cluster.delete("a", true);
    assert_eq!(cluster.master.stat().namespaces[0].used, 0);
}

#[test]
fn policy_change_keeps_unnamed_limits() {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    let mut limits = |change: PolicyChange| {
        assert_eq!(cluster.ask(ClientToMaster::SetPolicy(change)), Some(Reply::Done));
        let stat = cluster.master.stat().namespaces.remove(0);
        (stat.quota, stat.max_hold_ms, stat.demotion)
    };
    let (none, never) = (PolicyChange::NONE, Demotion::Never);
    limits(none.quota(Some(UNIT)).demotion(Some(never)));
    assert_eq!(limits(none.max_hold_ms(Some(60))), (Some(UNIT), Some(60), never));
    assert_eq!(limits(none), (Some(UNIT), Some(60), never));
    assert_eq!(limits(none.quota(None)), (None, Some(60), never));
    assert_eq!(limits(none.max_hold_ms(None).demotion(None)), (None, None, Demotion::OnPressure));
    let all = Policy { quota: Some(1), ..Policy::default() };
    assert_eq!(limits(all.into()), (Some(1), None, Demotion::OnPressure));
}

#[test]
fn put_over_the_quota_evicts_in_its_namespace_or_waits() {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    cluster.put("old", UNIT, plain());
    cluster.policy(Some(UNIT), None);
    assert!(matches!(cluster.put("new", UNIT, pinned()), CommitOutcome::Stored(_)));
    assert!(!cluster.has("old"));
    let id = cluster.reserve_waiting("next", UNIT, 500);
    assert_eq!(cluster.reserved(id), None);
    cluster.delete("new", true);
    assert!(matches!(cluster.reserved(id), Some(ReserveOutcome::Space(_))));
}

#[test]
fn put_larger_than_the_quota_is_refused_at_once() {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    cluster.put("old", UNIT, plain());
    cluster.policy(Some(2 * UNIT), None);
    let id = cluster.reserve_waiting("large", 3 * UNIT, 500);
    let quota = Quota { used: UNIT, limit: 2 * UNIT, need: 3 * UNIT };
    assert_eq!(cluster.reserved(id), Some(ReserveOutcome::OverQuota(quota)));
    assert!(cluster.has("old"), "nothing is evicted needlessly");
    // A put that does not fit now, but would into an empty namespace, waits.
    cluster.put("pinned", UNIT, pinned());
    let id = cluster.reserve_waiting("next", 2 * UNIT, 500);
    assert_eq!(cluster.reserved(id), None);
    // A put behind it is refused at once, too.
    let behind = cluster.reserve_waiting("large", 3 * UNIT, 500);
    assert!(matches!(cluster.reserved(behind), Some(ReserveOutcome::OverQuota(_))));
    // It is refused when the quota is lowered below its size.
    cluster.policy(Some(UNIT), None);
    let refused = cluster.reserved(id);
    assert!(matches!(refused, Some(ReserveOutcome::OverQuota(it)) if it.limit == UNIT), "{refused:?}");
}

#[test]
fn aborted_reservation_is_not_charged() {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    cluster.policy(Some(UNIT), None);
    let ReserveOutcome::Space(space) = cluster.reserve("a", UNIT, plain()) else { panic!() };
    assert!(matches!(cluster.reserve("b", UNIT, plain()), ReserveOutcome::OverQuota(_)));
    cluster.node_request(0, ClientToNode::Abort(vec![space[0].location.slot_ref()]));
    assert!(matches!(cluster.reserve("b", UNIT, plain()), ReserveOutcome::Space(_)));
    assert_eq!(cluster.master.stat().namespaces[0].granted, UNIT);
}

#[test]
fn client_can_wait_for_a_usage_limit() {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    cluster.put("a", 2 * UNIT, plain());
    let low = Await { at_most: Some(UNIT), at_least: None, wait_ms: 500 };
    let high = Await { at_most: None, at_least: Some(3 * UNIT), wait_ms: 500 };
    let (low, high) = (cluster.send(ClientToMaster::Await(low)), cluster.send(ClientToMaster::Await(high)));
    assert!(cluster.replies.is_empty());
    cluster.put("b", UNIT, plain());
    assert!(matches!(cluster.replies.remove(&high), Some(Reply::Awaited(stat)) if stat.used == 3 * UNIT));
    cluster.delete("a", true);
    assert!(matches!(cluster.replies.remove(&low), Some(Reply::Awaited(stat)) if stat.used == UNIT));
    let never = cluster.send(ClientToMaster::Await(Await { at_most: Some(0), at_least: None, wait_ms: 500 }));
    cluster.wait(500);
    assert!(matches!(cluster.replies.remove(&never), Some(Reply::Awaited(stat)) if stat.used == UNIT));
}

#[test]
fn viewers_of_objects_are_named() {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    cluster.put("k", 2 * UNIT, plain());
    let ResolveOutcome::Found(found) = cluster.resolve("k", false) else { panic!() };
    let slot_ref = found.replicas[0].slot_ref();
    cluster.node_event(0, node::Event::Mapped(ClientId(7)));
    cluster.node_request(0, ClientToNode::BeginViews(vec![slot_ref, slot_ref]));
    // A client that is connected to the node, but not to the master.
    cluster.node_event(0, node::Event::Mapped(ClientId(9)));
    let opened =
        node::Event::Opened { conn: ConnId(9), client: ClientId(9), namespace: "default".to_owned() };
    cluster.node_event(0, opened);
    let request = ClientToNode::BeginViews(vec![slot_ref]);
    cluster.node_event(0, node::Event::Request { conn: ConnId(9), id: RequestId(5), request });
    let Why::Here(here) = cluster.why("k") else { panic!() };
    let stranger = "client 0000000000000009 (not connected)";
    assert_eq!((here.views, here.viewers_more, here.sends), (3, 0, 0));
    assert_eq!(here.viewers, [stranger, "client 7"]);
    assert!(cluster.nodes[0].begin_send(slot_ref, 0, 1, None).is_some());
    let Why::Here(here) = cluster.why("k") else { panic!() };
    assert_eq!((here.views, here.sends), (3, 1));
    cluster.nodes[0].end_send(slot_ref, None);

    let holders = |cluster: &Cluster| cluster.master.stat().nodes.remove(0).holders;
    cluster.node_event(0, node::Event::Beat);
    assert_eq!(holders(&cluster), [], "views of stored objects hold no memory back");
    cluster.delete("k", true);
    cluster.node_event(0, node::Event::Beat);
    let holder = |who: &str| Holder { held: Held::Viewed, who: who.into(), objects: 1, bytes: 2 * UNIT };
    assert_eq!(holders(&cluster), [holder("client 7"), holder(stranger)]);
    cluster.node_event(0, node::Event::Dead(ClientId(9)));
    cluster.node_event(0, node::Event::Dead(ClientId(7)));
    assert_eq!(holders(&cluster), []);
    assert_eq!(cluster.nodes[0].usage().held, 0);
}

#[test]
fn why_explains_presence_and_absence() {
    let mut cluster = Cluster::new(&[2 * UNIT]);
    cluster.put("a", UNIT, owned("run"));
    cluster.wait(5);
    cluster.resolve("a", true);
    cluster.wait(10);
    let Why::Here(here) = cluster.why("a") else { panic!() };
    assert_eq!((here.age_ms, here.idle_ms, here.lease_ms), (15, 10, 90));
    assert_eq!((here.pins, here.nodes), (vec!["run".to_owned()], vec!["node1".to_owned()]));
    assert_eq!((here.writer.as_str(), here.reader.as_str()), ("client 7", "client 7"));
    assert_eq!(cluster.why("never"), Why::Unknown);
    cluster.put("b", UNIT, plain());
    cluster.put("c", UNIT, plain());
    let Why::Gone(gone) = cluster.why("b") else { panic!() };
    assert_eq!((gone.cause, gone.by.as_str(), gone.node.as_str()), (Cause::Evicted, "client 7", "node1"));
    assert_eq!(gone.for_key, Some(key("c")));
    cluster.delete("c", true);
    assert_eq!(cluster.cause("c"), (Cause::Deleted, "client 7".into()));
    cluster.event(Event::Ended(cluster.links[0]));
    let Why::Gone(gone) = cluster.why("a") else { panic!() };
    assert_eq!(
        (gone.cause, gone.node.as_str(), gone.reader.as_str()),
        (Cause::NodeLost, "node1", "client 7")
    );
}

#[test]
fn why_explains_quota_evictions() {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    cluster.policy(Some(UNIT), None);
    cluster.put("old", UNIT, plain());
    cluster.put("new", UNIT, plain());
    let Why::Gone(gone) = cluster.why("old") else { panic!() };
    assert_eq!((gone.cause, gone.node.as_str(), gone.for_key), (Cause::Evicted, "", Some(key("new"))));
}

#[test]
fn holders_of_memory_are_named() {
    let mut cluster = Cluster::new(&[64 * UNIT]);
    cluster.put("s", 7, sample(Consumption::Once));
    let LeaseOutcome::Leased(granted) = cluster.lease("s", None, "") else { panic!() };
    cluster.reserve("new", 2 * UNIT, plain());
    let holders = |cluster: &Cluster| {
        let holders = cluster.master.stat().namespaces.remove(0).holders.into_iter();
        holders.map(|it| (it.held, it.who, it.objects, it.bytes)).collect::<Vec<_>>()
    };
    let expected =
        [(Held::Reserved, "client 7".to_owned(), 1, 2 * UNIT), (Held::Leased, "client 7".to_owned(), 1, 7)];
    assert_eq!(holders(&cluster), expected);
    cluster.ask(ClientToMaster::Release(Release { leases: vec![granted.lease] }));
    assert_eq!(holders(&cluster), [expected[0].clone()]);
}
