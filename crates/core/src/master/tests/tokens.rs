//! What all clients of one token take together, if it is limited to namespaces: one that pretends to be many
//! gets no more than one.

use super::{
    guarantees::{lacks, steps_until},
    limits::{waiting_put, watch},
    *,
};
use crate::{
    attributes::Consumption,
    master::unreported::{CLIENTS_PARKED_MAX, PARKED_MAX},
    message::{Demotion, Lease, LeaseItem, Pin, PinOutcome, Policy, Resource},
};

const TOKEN: Option<TokenId> = Some(TokenId(1));
const ANOTHER: Option<TokenId> = Some(TokenId(2));

impl Cluster {
    /// Opens a connection of a client of that number, in a namespace of its own.
    fn greet(&mut self, number: u64, token: Option<TokenId>) -> ConnId {
        let (conn, client) = (ConnId(500 + number), ClientId(500 + number));
        let namespace = format!("namespace {number}");
        token.into_iter().for_each(|it| self.event(Event::Token(conn, it)));
        self.event(Event::Opened(conn, Hello { client, namespace, ..Hello::default() }));
        conn
    }

    /// The same, also at the nodes.
    fn open_with(&mut self, number: u64, token: Option<TokenId>) -> ConnId {
        let (conn, client) = (self.greet(number, token), ClientId(500 + number));
        let namespace = format!("namespace {number}");
        for index in 0..self.nodes.len() {
            let namespace = namespace.clone();
            self.node_event(index, node::Event::Opened { conn, client, namespace });
            self.node_event(index, node::Event::Mapped(client));
        }
        conn
    }

    /// Whether a request may wait.
    fn waits(&mut self, conn: ConnId, request: ClientToMaster) -> bool {
        let id = self.send_from(conn, request);
        !self.is_busy(id)
    }
}

/// A full node, and the limits of tests.
fn full(mutant: Mutant) -> Cluster {
    let mut cluster = Cluster::with(&[UNIT], |it| {
        it.limits.waiting_token_max = 3;
        it.mutant = mutant;
    });
    cluster.put("full", UNIT, pinned());
    cluster
}

/// How many of four clients of one token may wait, where three are the limit.
fn waiting_of_a_token(mutant: Mutant) -> usize {
    let mut cluster = full(mutant);
    let wait = |number| {
        let conn = cluster.open_with(number, TOKEN);
        cluster.waits(conn, waiting_put("a"))
    };
    (0..4).map(wait).filter(|it| *it).count()
}

#[test]
fn waiting_requests_of_a_token_are_bounded() {
    assert_eq!(waiting_of_a_token(Mutant::None), 3);
    let mut cluster = full(Mutant::None);
    let conns: Vec<_> = (0..4).map(|it| cluster.open_with(it, TOKEN)).collect();
    let waits: Vec<_> = conns.iter().map(|it| cluster.waits(*it, watch(9 * UNIT))).collect();
    assert_eq!(waits, [true, true, true, false]);
    let stat = cluster.limit("waiting_per_token");
    assert_eq!((stat.max, stat.used, stat.reached), (3, 3, 1));
    // Other tokens, and clients without such a token, do not notice.
    for token in [ANOTHER, None] {
        let other = cluster.open_with(10 + token.map_or(0, |it| it.0), token);
        assert!(cluster.waits(other, watch(9 * UNIT)));
    }
    conns.iter().for_each(|it| cluster.event(Event::Closed(*it)));
    assert_eq!(cluster.limit("waiting_per_token").used, 1, "that of the other token");
    cluster.master.check().unwrap();
}

/// How many of three requests of 1000 bytes each may wait, of one client and of three clients of one token,
/// where 3000 bytes are the limit of a client and 2600 that of a token.
fn waiting_bytes(mutant: Mutant) -> [usize; 2] {
    let request = || waiting_put(&"k".repeat(1000));
    let limited = || {
        Cluster::with(&[UNIT], |it| {
            it.limits.waiting_client_bytes_max = 3000;
            it.limits.waiting_token_bytes_max = 2600;
            it.mutant = mutant;
        })
    };
    let mut cluster = limited();
    cluster.put("full", UNIT, pinned());
    let of_client = (0..3).filter(|_| cluster.waits(CLIENT, request())).count();
    let mut cluster = limited();
    cluster.put("full", UNIT, pinned());
    let conns: Vec<_> = (0..3).map(|it| cluster.open_with(it, TOKEN)).collect();
    let of_token = conns.iter().filter(|it| cluster.waits(**it, request())).count();
    if mutant == Mutant::None {
        let stats = ["waiting_bytes_per_client", "waiting_bytes_per_token"].map(|it| cluster.limit(it));
        assert_eq!(stats.map(|it| (it.max, it.reached)), [(3000, 0), (2600, 1)]);
        assert!(stats[1].used > 2000 && stats[1].used <= 2600, "{stats:?}");
        // One of any size may wait if its client has no other.
        let alone = cluster.open_with(10, None);
        assert!(cluster.waits(alone, waiting_put(&"k".repeat(3000))));
        conns.iter().for_each(|it| cluster.event(Event::Closed(*it)));
        assert_eq!(cluster.limit("waiting_bytes_per_token").used, 0);
    }
    [of_client, of_token]
}

#[test]
fn keys_of_waiting_requests_are_bounded_in_bytes() {
    assert_eq!(waiting_bytes(Mutant::None), [2, 2]);
}

/// How many of 32 units two clients of one token get, and then one of another token.
fn reserved_by_a_token(mutant: Mutant) -> [usize; 3] {
    let mut cluster = Cluster::with(&[32 * UNIT], |it| it.mutant = mutant);
    cluster.share();
    let conns = [(0, TOKEN), (1, TOKEN), (2, ANOTHER)].map(|(it, token)| cluster.open_with(it, token));
    let counts = conns.map(|conn| {
        let outcomes = (0..32).map(|at| cluster.reserve_from(conn, &[&format!("{at}")], plain()).remove(0));
        outcomes.filter(|it| matches!(it, ReserveOutcome::Space(_))).count()
    });
    if mutant == Mutant::None {
        let refused = cluster.reserve_from(conns[1], &["more"], plain()).remove(0);
        assert_eq!(lacks(&refused), Some(Resource::Share));
        assert_eq!(cluster.limit("reserved_bytes_per_client").used, 30 * UNIT);
    }
    counts
}

#[test]
fn reservations_of_a_token_leave_memory_to_others() {
    assert_eq!(reserved_by_a_token(Mutant::None), [30, 0, 1]);
}

#[test]
fn reservations_of_a_token_are_bounded_in_number() {
    let mut cluster = Cluster::with(&[32 * UNIT], |it| it.limits.reservations_token_max = 3);
    let conns = [(0, TOKEN), (1, TOKEN), (2, ANOTHER)].map(|(it, token)| cluster.open_with(it, token));
    let reserve = |cluster: &mut Cluster, conn, name: &str| {
        let items = vec![ReserveItem { key: key(name), len: 1, options: plain() }];
        let id = cluster.send_from(conn, ClientToMaster::Reserve(Reserve { items, ..Reserve::default() }));
        match cluster.replies.get(&id) {
            Some(Reply::Reserved(_)) => true,
            _ => !cluster.is_busy(id),
        }
    };
    let served = ["a", "b"].map(|it| reserve(&mut cluster, conns[0], it));
    let further = ["c", "d"].map(|it| reserve(&mut cluster, conns[1], it));
    assert_eq!((served, further), ([true; 2], [true, false]));
    let stat = cluster.limit("reservations_per_token");
    assert_eq!((stat.max, stat.used, stat.reached), (3, 3, 1));
    assert!(reserve(&mut cluster, conns[2], "e"), "another token");
}

#[test]
fn leases_of_a_token_are_bounded_in_number() {
    let mut cluster = Cluster::with(&[32 * UNIT], |it| it.limits.leases_token_max = 3);
    let conns = [(0, TOKEN), (1, TOKEN), (2, ANOTHER)].map(|(it, token)| cluster.open_with(it, token));
    let sample = PutOptions { sample: Some(Consumption::Retained), ..plain() };
    assert!(conns.iter().all(|it| cluster.put_from(*it, "s", sample.clone())));
    let items = vec![LeaseItem { key: key("s"), generation: None }];
    let lease = ClientToMaster::Lease(Lease { items, ..Lease::default() });
    let leased = conns.map(|conn| {
        let is_leased = |_: &usize| match cluster.ask_from(conn, lease.clone()) {
            Some(Reply::Leased(_)) => true,
            Some(Reply::Refused(it)) if it.reason == Reason::Busy => false,
            other => panic!("{other:?}"),
        };
        (0..2).filter(is_leased).count()
    });
    assert_eq!(leased, [2, 1, 2]);
    let stat = cluster.limit("leases_per_token");
    assert_eq!((stat.max, stat.used, stat.reached), (3, 3, 1));
    conns.iter().for_each(|it| cluster.event(Event::Closed(*it)));
}

/// How many of three pinned objects each of three clients can put, and then pins of an object that is there.
/// Two have one token, of which four pins are the limit, and namespaces of their own. One has another token.
fn pins_of_a_token(mutant: Mutant) -> [[usize; 2]; 3] {
    let mut cluster = Cluster::with(&[32 * UNIT], |it| {
        it.limits.pins_token_max = 4;
        it.mutant = mutant;
    });
    let conns = [(0, TOKEN), (1, TOKEN), (2, ANOTHER)].map(|(it, token)| cluster.open_with(it, token));
    assert!(conns.iter().all(|it| cluster.put_from(*it, "plain", plain())));
    let pin = |cluster: &mut Cluster, conn: ConnId| {
        let pin = Pin { keys: vec![key("plain")], owner: "run".into(), on: true, wait_ms: 500 };
        cluster.ask_from(conn, ClientToMaster::Pin(pin)) == Some(Reply::Pinned(vec![PinOutcome::Done]))
    };
    let put = |cluster: &mut Cluster, conn: ConnId, name: &str| {
        let items = vec![ReserveItem { key: key(name), len: UNIT, options: pinned() }];
        let reserve = ClientToMaster::Reserve(Reserve { items, ..Reserve::default() });
        let is_refused = matches!(cluster.ask_from(conn, reserve), Some(Reply::Refused(_)));
        !is_refused && cluster.put_from(conn, name, pinned())
    };
    let counts = conns.map(|conn| {
        let by_put = (0..3).filter(|it| put(&mut cluster, conn, &it.to_string())).count();
        [by_put, usize::from(pin(&mut cluster, conn))]
    });
    if mutant == Mutant::None {
        let stat = cluster.limit("pins_per_token");
        assert_eq!((stat.max, stat.used, stat.reached), (4, 4, 4));
        // A pin that ends leaves a place, and a client without such a token does not notice.
        let delete = Delete { keys: vec![key("0")], force: true, wait_ms: 500 };
        assert!(cluster.ask_from(conns[0], ClientToMaster::Delete(delete)).is_some());
        assert!(put(&mut cluster, conns[1], "more"));
        let (other, client) = (ConnId(600), ClientId(600));
        let hello = Hello { client, namespace: "namespace 1".into(), ..Hello::default() };
        cluster.event(Event::Opened(other, hello));
        assert!(pin(&mut cluster, other));
        assert_eq!(cluster.limit("pins_per_token").used, 5, "it counts for the token of its namespace");
    }
    counts
}

#[test]
fn pins_of_a_token_are_bounded() {
    assert_eq!(pins_of_a_token(Mutant::None), [[3, 1], [0, 0], [3, 1]]);
}

/// How many requests of two clients of one token, and then of another client, wait for a member that is away.
fn deferred(mutant: Mutant) -> [usize; 2] {
    let mut cluster = Cluster::durable(&[10 * UNIT]);
    cluster.restart_alone(6);
    cluster.master.objects.cx.config.mutant = mutant;
    let conns = [(0, TOKEN), (1, TOKEN), (2, None)].map(|(it, token)| cluster.greet(it, token));
    let resolve =
        ClientToMaster::Resolve(Resolve { keys: vec![key("a")], report_wait_ms: 500, ..Resolve::default() });
    let mut defer = |conns: &[ConnId], count: usize| {
        let ids: Vec<_> =
            (0..count).map(|at| cluster.send_from(conns[at % conns.len()], resolve.clone())).collect();
        ids.into_iter().filter(|it| !cluster.replies.contains_key(it)).count()
    };
    let counts = [defer(&conns[..2], PARKED_MAX), defer(&conns[2..], 10)];
    if mutant == Mutant::None {
        let stat = cluster.limit("waiting_for_members");
        assert_eq!(stat.max, CLIENTS_PARKED_MAX as u64);
        assert_eq!(stat.used, counts.iter().sum::<usize>() as u64);
        assert_eq!(stat.reached, (PARKED_MAX - counts[0]) as u64);
    }
    counts
}

#[test]
fn requests_that_wait_for_members_leave_places_to_others() {
    let [of_token, of_other] = deferred(Mutant::None);
    assert_eq!((of_token, of_other), (CLIENTS_PARKED_MAX / 16 * 15, 10));
    assert!(of_token + of_other < PARKED_MAX * 7 / 8, "the rest is for nodes");
}

/// When two objects of a client without such a token are written through, in the order of all writes, while
/// three namespaces of one token have put four each.
fn turns_beside_a_token(mutant: Mutant) -> [usize; 2] {
    let mut cluster = Cluster::tiered(&[16], |config| config.mutant = mutant);
    cluster.write_through();
    let policy = Policy { demotion: Some(Demotion::WriteThrough), ..Policy::default() };
    cluster.disks[0].held_up = true;
    for number in 0..3 {
        let conn = cluster.open_with(number, TOKEN);
        cluster.ask_from(conn, ClientToMaster::SetPolicy(policy.clone().into()));
        assert_eq!(cluster.puts_from(conn, plain(), 4), 4);
    }
    for name in ["a", "b"] {
        cluster.put(name, UNIT, plain());
    }
    steps_until(&mut cluster, |cluster, name| cluster.where_is(name).1)
}

#[test]
fn namespaces_of_a_token_take_turns_together() {
    assert_eq!(turns_beside_a_token(Mutant::None), [6, 7]);
}

#[cfg(feature = "mutants")]
#[test]
fn mutants_of_tokens_are_noticed() {
    assert_eq!(waiting_of_a_token(Mutant::TokenWaitsAnyhow), 4);
    assert_eq!(waiting_bytes(Mutant::WaitWithAnyBytes), [3, 3]);
    assert_eq!(reserved_by_a_token(Mutant::ShareOfEachClient), [30, 1, 0]);
    assert_eq!(pins_of_a_token(Mutant::PinsOfEachNamespace), [[3, 1]; 3]);
    assert_eq!(deferred(Mutant::DeferForOne), [PARKED_MAX, 0]);
    assert_ne!(turns_beside_a_token(Mutant::TurnsOfEachNamespace), [6, 7]);
}
