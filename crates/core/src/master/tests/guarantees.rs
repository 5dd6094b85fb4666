//! What one client or namespace can take from the others: shares, guaranteed minimums, and removed objects in
//! view.

use tiffin_node::disk;

use super::{test_disk::prefetch, *};
use crate::message::{
    Ahead, Commit, CommitItem, Demotion, HeldBy, Policy, PolicyChange, PrefetchOutcome, Resource,
};

/// A client of the namespace `hog`; [`CLIENT`] is in `default`.
const HOG: ConnId = ConnId(20);
/// Another client of `hog`.
const SECOND: ConnId = ConnId(21);

impl Cluster {
    fn join(&mut self, conn: ConnId, namespace: &str) {
        let (client, namespace) = (ClientId(conn.0), namespace.to_owned());
        let hello = Hello { client, namespace: namespace.clone(), ..Hello::default() };
        self.event(Event::Opened(conn, hello));
        for index in 0..self.nodes.len() {
            self.node_event(index, node::Event::Opened { conn, client, namespace: namespace.clone() });
            self.node_event(index, node::Event::Mapped(client));
        }
    }

    pub(super) fn ask_from(&mut self, conn: ConnId, request: ClientToMaster) -> Option<Reply> {
        self.next_id += 1;
        let id = RequestId(2_000_000 + self.next_id);
        self.event(Event::Request(conn, id, request.into()));
        self.replies.remove(&id)
    }

    pub(super) fn reserve_from(
        &mut self,
        conn: ConnId,
        names: &[&str],
        options: PutOptions,
    ) -> Vec<ReserveOutcome> {
        let item = |name: &&str| ReserveItem { key: key(name), len: UNIT, options: options.clone() };
        let items = names.iter().map(item).collect();
        match self.ask_from(conn, ClientToMaster::Reserve(Reserve { items, ..Reserve::default() })) {
            Some(Reply::Reserved(reserved)) => reserved.items,
            other => panic!("{other:?}"),
        }
    }

    /// Puts an object of one unit; `false` if there is no memory for it.
    pub(super) fn put_from(&mut self, conn: ConnId, name: &str, options: PutOptions) -> bool {
        let ReserveOutcome::Space(space) = self.reserve_from(conn, &[name], options.clone()).remove(0) else {
            return false;
        };
        let location = space[0].location;
        let item = CommitItem {
            slot_ref: location.slot_ref(),
            key: key(name),
            len: UNIT,
            options,
            others: Vec::new(),
        };
        let request = ClientToNode::Commit(Commit { items: vec![item], wait_ms: 0 });
        let index = location.segment.0 as usize - 1;
        self.node_event(index, node::Event::Request { conn, id: RequestId(5), request });
        true
    }

    fn view_from(&mut self, conn: ConnId, name: &str) {
        let resolve = Resolve { keys: vec![key(name)], locate: true, ..Resolve::default() };
        let Some(Reply::Resolved(resolved)) = self.ask_from(conn, ClientToMaster::Resolve(resolve)) else {
            panic!("no answer")
        };
        let [ResolveOutcome::Found(found)] = &resolved.items[..] else { panic!("{resolved:?}") };
        let location = found.replicas[0];
        let request = ClientToNode::BeginViews(vec![location.slot_ref()]);
        let index = location.segment.0 as usize - 1;
        self.node_event(index, node::Event::Request { conn, id: RequestId(6), request });
    }

    fn guarantee(&mut self, bytes: u64) -> Option<Reply> {
        self.ask(ClientToMaster::SetPolicy(PolicyChange::NONE.guaranteed(Some(bytes))))
    }

    /// Another namespace has the least possible minimum, so that clients get a share each.
    pub(super) fn share(&mut self) {
        let namespace = self.master.objects.cx.catalog.intern("other");
        let policy = Policy { guaranteed: Some(1), ..Policy::default() };
        self.master.objects.cx.quotas.set_policy(namespace, policy);
    }

    pub(super) fn puts_from(&mut self, conn: ConnId, options: PutOptions, count: usize) -> usize {
        (0..count).filter(|at| self.put_from(conn, &format!("{conn:?} {at}"), options.clone())).count()
    }
}

pub(super) fn lacks(outcome: &ReserveOutcome) -> Option<Resource> {
    match outcome {
        ReserveOutcome::Full(full) => Some(full.lacks),
        _ => None,
    }
}

/// How many of 32 units, one request each, one client gets, and how many of 4 another one gets after that.
fn reserved_by_two(mutant: Mutant) -> (usize, usize) {
    let mut cluster = Cluster::with(&[32 * UNIT], |it| it.mutant = mutant);
    cluster.share();
    [HOG, SECOND].into_iter().for_each(|conn| cluster.join(conn, "hog"));
    let mut reserve = |conn, count: usize| {
        let spaces = (0..count).map(|at| cluster.reserve_from(conn, &[&format!("{at}")], plain()).remove(0));
        spaces.filter(|it| matches!(it, ReserveOutcome::Space(_))).count()
    };
    (reserve(HOG, 32), reserve(SECOND, 4))
}

#[test]
fn stopped_client_leaves_memory_to_others() {
    assert_eq!(reserved_by_two(Mutant::None), (30, 1), "15 of 16 parts, and then 15 of 16 of the rest");
    let mut cluster = Cluster::new(&[32 * UNIT]);
    cluster.share();
    cluster.join(HOG, "hog");
    (0..30).for_each(|at| _ = cluster.reserve_from(HOG, &[&at.to_string()], plain()));
    let refused = cluster.reserve_from(HOG, &["more"], plain()).remove(0);
    assert_eq!(lacks(&refused), Some(Resource::Share));
    let stat = cluster.limit("reserved_bytes_per_client");
    assert_eq!((stat.max, stat.used, stat.reached), (30 * UNIT, 30 * UNIT, 1));
    // It does not hold up the others of its namespace in the queue.
    cluster.join(SECOND, "hog");
    assert!(cluster.put_from(SECOND, "a", plain()));
    // What is stored is not reserved any more.
    let whole = Cluster::new(&[32 * UNIT]).put("all", 32 * UNIT, plain());
    assert!(matches!(whole, CommitOutcome::Stored(_)), "one object may have any size");
}

/// Whether a put of an object that is larger than the quota is answered at once, although its client has its
/// share and the put may wait.
fn is_refused_at_once(mutant: Mutant) -> bool {
    let mut cluster = Cluster::with(&[32 * UNIT], |it| it.mutant = mutant);
    cluster.share();
    cluster.ask(ClientToMaster::SetPolicy(PolicyChange::NONE.quota(Some(30 * UNIT))));
    (0..4).for_each(|at| assert!(lacks(&cluster.reserve(&at.to_string(), UNIT, plain())).is_none()));
    let items = vec![ReserveItem { key: key("large"), len: 31 * UNIT, options: plain() }];
    let reserve = Reserve { items, wait_ms: 500, ..Reserve::default() };
    match cluster.ask(ClientToMaster::Reserve(reserve)) {
        Some(Reply::Reserved(it)) => matches!(it.items[..], [ReserveOutcome::OverQuota(_)]),
        _ => false,
    }
}

#[test]
fn put_beyond_quota_does_not_wait_for_its_share() {
    assert!(is_refused_at_once(Mutant::None));
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_waiting_in_vain_is_noticed() {
    assert!(!is_refused_at_once(Mutant::AwaitShareInVain));
}

/// How many reservations a client and its namespace get, where four and six are the limits.
fn numbers_of_reservations(mutant: Mutant) -> (usize, usize) {
    let mut cluster = Cluster::with(&[32 * UNIT], |it| {
        (it.limits.reservations_client_max, it.limits.reservations_namespace_max) = (4, 6);
        it.mutant = mutant;
    });
    [HOG, SECOND].into_iter().for_each(|conn| cluster.join(conn, "hog"));
    let mut reserve = |conn: ConnId| {
        let is_served = |at: &usize| {
            let items = vec![ReserveItem { key: key(&at.to_string()), len: 1, options: plain() }];
            match cluster.ask_from(conn, ClientToMaster::Reserve(Reserve { items, ..Reserve::default() })) {
                Some(Reply::Reserved(_)) => true,
                Some(Reply::Refused(it)) if it.reason == Reason::Busy => false,
                other => panic!("{other:?}"),
            }
        };
        (0..8).filter(is_served).count()
    };
    let served = (reserve(HOG), reserve(SECOND));
    cluster.put("a", UNIT, plain());
    if mutant == Mutant::None {
        let stats = ["reservations_per_client", "reservations_per_namespace"].map(|it| cluster.limit(it));
        assert_eq!(stats.map(|it| (it.max, it.used, it.reached)), [(4, 4, 4), (6, 6, 6)]);
        cluster.event(Event::Closed(HOG));
        cluster.nodes_release(HOG);
        assert_eq!(cluster.limit("reservations_per_client").used, 2);
    }
    served
}

impl Cluster {
    /// The nodes have proof that a client is dead.
    fn nodes_release(&mut self, conn: ConnId) {
        (0..self.nodes.len()).for_each(|it| self.node_event(it, node::Event::Dead(ClientId(conn.0))));
    }
}

#[test]
fn reservations_are_bounded_in_number() {
    assert_eq!(numbers_of_reservations(Mutant::None), (4, 2));
}

/// How many of three pins are set where two are the limit: at a put, and by a request.
fn numbers_of_pins(mutant: Mutant) -> (usize, usize) {
    let mut cluster = Cluster::with(&[32 * UNIT], |it| {
        it.limits.pins_namespace_max = 2;
        it.mutant = mutant;
    });
    let by_put = |at: &usize| {
        let items = vec![ReserveItem { key: key(&at.to_string()), len: UNIT, options: pinned() }];
        matches!(
            cluster.ask(ClientToMaster::Reserve(Reserve { items, ..Reserve::default() })),
            Some(Reply::Reserved(it)) if matches!(&it.items[..], [ReserveOutcome::Space(space)]
                if matches!(cluster.commit(&at.to_string(), UNIT, pinned(), space), CommitOutcome::Stored(_)))
        )
    };
    let puts = (0..3).filter(by_put).count();
    cluster.delete("0", true);
    cluster.put("plain", UNIT, plain());
    let pin = |owner: &str| crate::message::Pin {
        keys: vec![key("plain")],
        owner: owner.into(),
        on: true,
        wait_ms: 500,
    };
    let by_request = ["a", "b", "c"].into_iter().filter(|owner| {
        let reply = cluster.ask(ClientToMaster::Pin(pin(owner)));
        reply == Some(Reply::Pinned(vec![crate::message::PinOutcome::Done]))
    });
    let requests = by_request.count();
    if mutant == Mutant::None {
        let stat = cluster.limit("pins_per_namespace");
        assert_eq!((stat.max, stat.used, stat.reached), (2, 2, 3));
    }
    (puts, requests)
}

#[test]
fn pins_are_bounded_in_number() {
    assert_eq!(numbers_of_pins(Mutant::None), (2, 1));
}

/// How many of three leases a client gets where two are the limit, and then another one of the namespace,
/// where three are.
fn numbers_of_leases(mutant: Mutant) -> (usize, usize) {
    let mut cluster = Cluster::with(&[32 * UNIT], |it| {
        (it.limits.leases_client_max, it.limits.leases_namespace_max) = (2, 3);
        it.mutant = mutant;
    });
    cluster.join(HOG, "default");
    let consumption = Some(crate::attributes::Consumption::Retained);
    cluster.put("s", UNIT, PutOptions { sample: consumption, ..plain() });
    let mut lease = |conn: ConnId| {
        let items = vec![crate::message::LeaseItem { key: key("s"), generation: None }];
        let lease = crate::message::Lease { items, ..crate::message::Lease::default() };
        let is_leased = |_: &usize| match cluster.ask_from(conn, ClientToMaster::Lease(lease.clone())) {
            Some(Reply::Leased(_)) => true,
            Some(Reply::Refused(it)) if it.reason == Reason::Busy => false,
            other => panic!("{other:?}"),
        };
        (0..3).filter(is_leased).count()
    };
    let leased = (lease(CLIENT), lease(HOG));
    if mutant == Mutant::None {
        let stats = ["leases_per_client", "leases_per_namespace"].map(|it| cluster.limit(it));
        assert_eq!(stats.map(|it| (it.max, it.used, it.reached)), [(2, 2, 1), (3, 3, 2)]);
    }
    leased
}

#[test]
fn leases_are_bounded_in_number() {
    assert_eq!(numbers_of_leases(Mutant::None), (2, 1));
}

/// A node of 16 units of which 8 are guaranteed to `default`: how many of 16 pinned objects the other
/// namespace can store, and how many of 8 the first one can store after that.
fn stored_beside_a_hog() -> (usize, usize) {
    let mut cluster = Cluster::with(&[16 * UNIT], |_| ());
    cluster.join(HOG, "hog");
    cluster.join(CLIENT, "default");
    assert_eq!(cluster.guarantee(8 * UNIT), Some(Reply::Done));
    (cluster.puts_from(HOG, pinned(), 16), cluster.puts_from(CLIENT, plain(), 8))
}

#[test]
fn guaranteed_minimum_can_always_be_had() {
    assert_eq!(stored_beside_a_hog(), (8, 8));
    let mut cluster = Cluster::new(&[8 * UNIT, 8 * UNIT]);
    cluster.join(HOG, "hog");
    cluster.join(CLIENT, "default");
    assert_eq!(cluster.guarantee(8 * UNIT), Some(Reply::Done));
    // Reserved, viewed and removed memory of the other namespace does not reduce it, either.
    for at in 0..8 {
        let name = format!("{at}");
        assert!(cluster.put_from(HOG, &name, plain()));
        cluster.view_from(HOG, &name);
    }
    assert!(!cluster.put_from(HOG, "more", plain()), "what leaves is in view, and frees nothing");
    assert_eq!(cluster.puts_from(CLIENT, plain(), 8), 8);
    assert_eq!(cluster.master.stat().namespaces.iter().find(|it| it.name == "default").unwrap().objects, 8);
    // Beyond it, a namespace is like any other.
    assert!(cluster.put_from(CLIENT, "ninth", plain()), "its own objects make way");
}

/// Whether objects within a guaranteed minimum are evicted for another namespace, and those beyond it.
fn evicted_for_a_hog(mutant: Mutant) -> (u64, usize) {
    let mut cluster = Cluster::with(&[16 * UNIT], |it| it.mutant = mutant);
    cluster.join(HOG, "hog");
    cluster.join(CLIENT, "default");
    assert_eq!(cluster.guarantee(8 * UNIT), Some(Reply::Done));
    assert_eq!(cluster.puts_from(CLIENT, plain(), 12), 12);
    let stored = cluster.puts_from(HOG, pinned(), 16);
    let stat = cluster.master.stat();
    (stat.namespaces.iter().find(|it| it.name == "default").unwrap().objects, stored)
}

#[test]
fn guaranteed_objects_are_not_evicted_for_others() {
    assert_eq!(evicted_for_a_hog(Mutant::None), (8, 8));
}

#[test]
fn minimum_is_reached_as_others_put() {
    let mut cluster = Cluster::new(&[16 * UNIT]);
    cluster.join(HOG, "hog");
    cluster.join(CLIENT, "default");
    assert_eq!(cluster.puts_from(HOG, plain(), 16), 16);
    assert_eq!(cluster.guarantee(4 * UNIT), Some(Reply::Done));
    let free = |cluster: &Cluster| cluster.nodes[0].usage().free / UNIT;
    // Each put evicts one object for itself and one for the minimum.
    let after = ["a", "b", "c", "d", "e"].map(|name| {
        assert!(cluster.put_from(HOG, name, plain()));
        free(&cluster)
    });
    assert_eq!(after, [1, 2, 3, 4, 4]);
}

#[test]
fn impossible_minimums_are_refused() {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    cluster.join(HOG, "hog");
    let invalid = |reply| matches!(reply, Some(Reply::Refused(Refusal { reason: Reason::Invalid, .. })));
    assert!(invalid(cluster.guarantee(9 * UNIT)), "there is not so much memory");
    assert_eq!(cluster.guarantee(5 * UNIT), Some(Reply::Done));
    let more = ClientToMaster::SetPolicy(PolicyChange::NONE.guaranteed(Some(4 * UNIT)));
    assert!(invalid(cluster.ask_from(HOG, more)), "nor for both");
    cluster.policy(Some(8 * UNIT), None);
    let small = PolicyChange::NONE.quota(Some(4 * UNIT)).guaranteed(Some(5 * UNIT));
    assert!(invalid(cluster.ask(ClientToMaster::SetPolicy(small))), "more than the quota");
    assert_eq!(cluster.guarantee(0), Some(Reply::Done));
    assert!(cluster.master.objects.cx.quotas.guaranteed().is_empty());
}

#[test]
fn number_of_minimums_is_bounded() {
    use crate::master::context::guarantees::GUARANTEES_MAX;
    let mut cluster = Cluster::new(&[8 * UNIT]);
    for at in 0..GUARANTEES_MAX {
        let namespace = cluster.master.objects.cx.catalog.intern(&format!("n{at}"));
        let policy = Policy { guaranteed: Some(1), ..Policy::default() };
        cluster.master.objects.cx.quotas.set_policy(namespace, policy);
    }
    let refused = cluster.guarantee(1);
    assert!(matches!(refused, Some(Reply::Refused(it)) if it.reason == Reason::Busy));
    let stat = cluster.limit("guaranteed_minimums");
    assert_eq!((stat.used, stat.reached), (GUARANTEES_MAX as u64, 1));
    let first = cluster.master.objects.cx.catalog.intern("n0");
    cluster.master.objects.cx.quotas.set_policy(first, Policy::default());
    assert_eq!(cluster.guarantee(1), Some(Reply::Done));
}

/// What a namespace with a quota of four units can store while it views everything that it has removed.
fn stored_while_in_view(mutant: Mutant) -> usize {
    let mut cluster = Cluster::with(&[32 * UNIT], |it| it.mutant = mutant);
    cluster.join(CLIENT, "default");
    cluster.policy(Some(4 * UNIT), None);
    let stores_and_removes = |at: &usize| {
        let name = at.to_string();
        let is_stored = cluster.put_from(CLIENT, &name, plain());
        if is_stored {
            cluster.view_from(CLIENT, &name);
            cluster.delete(&name, true);
        }
        is_stored
    };
    (0..16).filter(stores_and_removes).count()
}

#[test]
fn views_of_removed_objects_count_for_the_quota() {
    assert_eq!(stored_while_in_view(Mutant::None), 4);
    let mut cluster = Cluster::new(&[32 * UNIT]);
    cluster.join(CLIENT, "default");
    assert!(cluster.put_from(CLIENT, "a", plain()));
    cluster.view_from(CLIENT, "a");
    cluster.delete("a", true);
    let stat = |cluster: &Cluster| {
        let stat = cluster.master.stat().namespaces.remove(0);
        (stat.used, stat.held)
    };
    assert_eq!(stat(&cluster), (UNIT, UNIT));
    cluster.nodes_release(ConnId(CLIENT.0));
    assert_eq!(stat(&cluster), (0, 0));
    // A report names known namespaces only, and is bounded.
    let held = vec![HeldBy { namespace: "unknown".into(), bytes: UNIT }; 1_000];
    let beat = crate::message::Heartbeat { held, usage: cluster.nodes[0].usage(), ..Default::default() };
    cluster.event(Event::Request(
        cluster.links[0],
        RequestId(9),
        MemberToMaster::Heartbeat(Box::new(beat)).into(),
    ));
    assert_eq!(stat(&cluster), (0, 0));
}

#[cfg(feature = "mutants")]
#[test]
fn mutants_of_shares_and_minimums_are_noticed() {
    assert_eq!(reserved_by_two(Mutant::ReserveEverything), (31, 0), "all but what is kept");
    assert_ne!(numbers_of_reservations(Mutant::ReserveAnyNumber), (4, 2));
    assert_eq!(numbers_of_pins(Mutant::PinAnyNumber), (3, 3));
    assert_eq!(numbers_of_leases(Mutant::LeaseAnyNumber), (3, 3));
    assert_ne!(evicted_for_a_hog(Mutant::EvictGuaranteed), (8, 8));
    assert_eq!(turns_of_promotions(Mutant::PromoteInOrder), [7, 8]);
    assert_eq!(turns_of_writes(Mutant::WriteThroughInOrder), [13, 14]);
    assert!(!own_demotions_begin(Mutant::AwaitDemotionsOfOthers));
    assert_eq!(stored_while_in_view(Mutant::ViewForFree), 16);
}

/// When two objects of another namespace are promoted, in the order of all promotions, while a hog prefetches
/// six.
fn turns_of_promotions(mutant: Mutant) -> [usize; 2] {
    let throttle = tiffin_throttle::Config { keys_max: 1, ..Default::default() };
    let mut cluster =
        Cluster::tiered(&[16], |config| (config.mutant, config.tier.throttle) = (mutant, throttle));
    cluster.demote("a", 1);
    cluster.demote("b", 1);
    let names: Vec<_> = (0..6).map(|it| format!("hog{it}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    demote_of_hog(&mut cluster, &names);
    cluster.disks[0].held_up = true;
    assert_eq!(cluster.ask_from(HOG, prefetch(&names, Ahead::All, 0)), Some(running(6)));
    assert_eq!(cluster.ask(prefetch(&["a", "b"], Ahead::All, 0)), Some(running(2)));
    steps_until(&mut cluster, |cluster, name| cluster.where_is(name).0)
}

/// When two objects of another namespace are written through, in the order of all writes, while a hog has put
/// twelve.
fn turns_of_writes(mutant: Mutant) -> [usize; 2] {
    let mut cluster = Cluster::tiered(&[16], |config| config.mutant = mutant);
    cluster.write_through();
    hog_puts(&mut cluster, 12);
    for name in ["a", "b"] {
        cluster.put(name, UNIT, plain());
    }
    steps_until(&mut cluster, |cluster, name| cluster.where_is(name).1)
}

/// The numbers of operations of the disk after which that is so of the objects `a` and `b`.
pub(super) fn steps_until(cluster: &mut Cluster, is_so: impl Fn(&mut Cluster, &str) -> bool) -> [usize; 2] {
    let mut steps = [0; 2];
    for step in 1.. {
        let Some(effect) = cluster.disks[0].to_do.pop_front() else { break };
        cluster.do_one(0, effect);
        cluster.carry_out();
        for (first, name) in steps.iter_mut().zip(["a", "b"]) {
            if *first == 0 && is_so(cluster, name) {
                *first = step;
            }
        }
    }
    steps
}

/// Puts objects of the hog, which must be written to a disk that does nothing by itself from now on.
fn hog_puts(cluster: &mut Cluster, count: usize) {
    cluster.join(HOG, "hog");
    let policy = Policy { demotion: Some(Demotion::WriteThrough), ..Policy::default() };
    cluster.ask_from(HOG, ClientToMaster::SetPolicy(policy.into()));
    cluster.disks[0].held_up = true;
    assert_eq!(cluster.puts_from(HOG, plain(), count), count);
}

/// A disk reads a quarter of the memory at a time: those of the hog that it has begun come first.
#[test]
fn writes_of_namespaces_take_turns() {
    assert_eq!(turns_of_writes(Mutant::None), [6, 7]);
}

/// Whether a put that exceeds its quota, and may wait, has an object of its own namespace written to the
/// disk, while objects of another one are.
fn own_demotions_begin(mutant: Mutant) -> bool {
    let mut cluster = Cluster::tiered(&[32], |config| {
        (config.mutant, config.tier.ahead_percent) = (mutant, 0);
    });
    cluster.policy(Some(4 * UNIT), None);
    hog_puts(&mut cluster, 4);
    for name in ["a", "b", "c"] {
        cluster.put(name, UNIT, plain());
    }
    assert_eq!(cluster.put_waiting("d", 2, 500), None, "it waits");
    let is_own =
        |it: &disk::Effect| matches!(it, disk::Effect::Store { record, .. } if record.key == key("a"));
    cluster.disks[0].to_do.iter().any(is_own)
}

#[test]
fn put_over_its_quota_waits_for_its_own_demotions() {
    assert!(own_demotions_begin(Mutant::None));
}

/// Puts objects of the hog that are only on the disk.
fn demote_of_hog(cluster: &mut Cluster, names: &[&str]) {
    cluster.join(HOG, "hog");
    let policy = Policy { demotion: Some(Demotion::WriteThrough), ..Policy::default() };
    cluster.ask_from(HOG, ClientToMaster::SetPolicy(policy.into()));
    assert!(names.iter().all(|it| cluster.put_from(HOG, it, plain())));
    cluster.wait(1);
    let namespace = cluster.master.objects.cx.catalog.intern("hog");
    for name in names {
        let index = cluster.master.objects.cx.catalog.find(namespace, &key(name)).unwrap();
        assert!(cluster.leave_memory(index, None));
    }
    cluster.carry_out();
}

fn running(count: usize) -> Reply {
    Reply::Prefetched(vec![PrefetchOutcome::Running; count])
}

#[test]
fn promotions_of_namespaces_take_turns() {
    assert_eq!(turns_of_promotions(Mutant::None), [3, 5]);
}

#[test]
fn no_namespace_fills_the_queue_of_promotions() {
    let throttle = tiffin_throttle::Config { keys_max: 1, ..Default::default() };
    let mut cluster = Cluster::tiered(&[40], |config| {
        (config.tier.throttle, config.tier.waiting_max) = (throttle, 18);
    });
    let names: Vec<_> = (0..20).map(|it| format!("a{it}")).collect();
    names.iter().for_each(|it| cluster.demote(it, 1));
    demote_of_hog(&mut cluster, &["hog0", "hog1"]);
    cluster.disks[0].held_up = true;
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let Some(Reply::Prefetched(outcomes)) = cluster.ask(prefetch(&names, Ahead::All, 0)) else {
        panic!("no answer")
    };
    // One runs, and of 18 places one is left for others.
    let count = |of| outcomes.iter().filter(|it| **it == of).count();
    assert_eq!((count(PrefetchOutcome::Running), count(PrefetchOutcome::Skipped)), (1 + 17, 2));
    let outcomes = vec![PrefetchOutcome::Running, PrefetchOutcome::Skipped];
    let reply = cluster.ask_from(HOG, prefetch(&["hog0", "hog1"], Ahead::All, 0));
    assert_eq!(reply, Some(Reply::Prefetched(outcomes)));
}
