//! The limits that keep one client or namespace from starving the others: at each limit, and one beyond it.

use super::*;
use crate::master::{namespaces::NAMESPACES_LISTED_MAX, resolve::REGEX_TEXT_BYTES_MAX};
use crate::{
    BATCH_KEY_BYTES_MAX, KEY_BYTES_MAX, Key, WHY_KEYS_MAX,
    access::{NamePattern, Namespaces},
    message::{Await, Explain, Why},
};

impl Cluster {
    fn why_all(&mut self, keys: &[Key]) -> Vec<Why> {
        let explain = Explain { keys: keys.to_vec(), report_wait_ms: 0 };
        match self.ask(ClientToMaster::Why(explain)) {
            Some(Reply::Why(answers)) => answers,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn limit(&self, name: &str) -> LimitStat {
        *self.master.limits().iter().find(|it| it.name == name).unwrap()
    }
}

/// Distinct keys of that length.
fn keys(count: usize, len: usize) -> Vec<Key> {
    let key = |number: usize| {
        let mut bytes = vec![b'k'; len];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        Key::new(&bytes).unwrap()
    };
    (0..count).map(key).collect()
}

/// How many of so many unknown keys one answer explains.
fn explained(mutant: Mutant, count: usize) -> usize {
    let mut cluster = Cluster::with(&[UNIT], |it| it.mutant = mutant);
    let answers = cluster.why_all(&keys(count, 8));
    assert!(answers.iter().all(|it| *it == Why::Unknown));
    answers.len()
}

/// How many of three keys an answer explains that names a long key, for which an object was evicted.
fn explained_with_a_long_key(mutant: Mutant) -> usize {
    let mut cluster = Cluster::with(&[], |it| it.mutant = mutant);
    cluster.add_node(8 << 20, |it| it.heap_bytes = 4 << 20);
    cluster.put("a", 7 << 20, plain());
    cluster.put(&"l".repeat(KEY_BYTES_MAX), 4 << 20, plain());
    cluster.why_all(&[key("a"), key("b"), key("a")]).len()
}

/// Whether keys of `more` bytes beyond the limit are accepted, and how often the limit was reached.
fn accepts_keys(mutant: Mutant, more: usize) -> (bool, u64) {
    let mut cluster = Cluster::with(&[UNIT], |it| it.mutant = mutant);
    let mut keys = keys(BATCH_KEY_BYTES_MAX / KEY_BYTES_MAX, KEY_BYTES_MAX);
    keys.extend((0..more).map(|_| key("k")));
    let resolve = Resolve { keys, ..Resolve::default() };
    let accepted = match cluster.ask(ClientToMaster::Resolve(resolve)) {
        Some(Reply::Resolved(_)) => true,
        Some(Reply::Refused(it)) if it.reason == Reason::Invalid => false,
        other => panic!("{other:?}"),
    };
    (accepted, cluster.limit("batch_key_bytes").reached)
}

#[test]
fn answer_explains_a_bounded_number_of_keys() {
    let counts = [1, WHY_KEYS_MAX, WHY_KEYS_MAX + 1, 20_000];
    let explained = counts.map(|it| explained(Mutant::None, it));
    assert_eq!(explained, [1, WHY_KEYS_MAX, WHY_KEYS_MAX, WHY_KEYS_MAX]);
    assert_eq!(explained_with_a_long_key(Mutant::None), 1);
}

#[test]
fn keys_of_a_batch_are_bounded_in_bytes() {
    assert_eq!(accepts_keys(Mutant::None, 0), (true, 0));
    assert_eq!(accepts_keys(Mutant::None, 1), (false, 1));
}

#[cfg(feature = "mutants")]
#[test]
fn mutants_of_limits_are_noticed() {
    assert_eq!(explained(Mutant::ExplainAll, WHY_KEYS_MAX + 1), WHY_KEYS_MAX + 1);
    assert_eq!(explained_with_a_long_key(Mutant::ExplainAll), 3);
    assert_eq!(accepts_keys(Mutant::AnyKeyBytes, 1), (true, 0));
    assert_eq!(namespaces_at_the_limit(Mutant::AnyNamespace), (true, true));
    assert_eq!(namespaces_at_the_limit(Mutant::KeepNamespaces), (false, false));
    assert_eq!(namespaces_of_a_token(Mutant::NamespacesOfOneToken), 15, "and that of the tests");
    assert_eq!(namespaces_listed(Mutant::ListAllNamespaces), NAMESPACES_LISTED_MAX + 2);
    for mutant in [Mutant::ClientWaitsAnyhow, Mutant::NamespaceWaitsAnyhow] {
        assert!((0..50).any(|seed| hostile_clients(mutant, seed).is_err()), "{mutant:?}");
    }
    assert_eq!(regex_over_long_keys(Mutant::MatchAnyBytes), (1, 1));
    assert_eq!(accepts_expressions(Mutant::CompileAnyText, REGEX_TEXT_BYTES_MAX + 1), [true, false]);
    assert!(!third_is_busy(Mutant::ClientWaitsAnyhow));
    assert!(!fourth_is_busy(Mutant::NamespaceWaitsAnyhow));
}

/// A client whose connection is `OTHER`, in the namespace of [`CLIENT`].
const OTHER: ConnId = ConnId(2);

impl Cluster {
    fn open_in(&mut self, conn: ConnId, namespace: &str) {
        let (client, namespace) = (ClientId(conn.0), namespace.to_owned());
        let hello = Hello { client, namespace, label: format!("client {}", conn.0), ..Hello::default() };
        self.event(Event::Opened(conn, hello));
    }

    pub(super) fn send_from(&mut self, conn: ConnId, request: ClientToMaster) -> RequestId {
        self.next_id += 1;
        let id = RequestId(1_000_000 + self.next_id);
        self.event(Event::Request(conn, id, request.into()));
        id
    }

    pub(super) fn is_busy(&mut self, id: RequestId) -> bool {
        match self.replies.remove(&id) {
            Some(Reply::Refused(refusal)) if refusal.reason == Reason::Busy => true,
            None => false,
            other => panic!("{other:?}"),
        }
    }

    fn do_piece(&mut self) {
        self.master.work(self.now);
        self.carry_out();
    }
}

pub(super) fn watch(at_least: u64) -> ClientToMaster {
    ClientToMaster::Await(Await { at_most: None, at_least: Some(at_least), wait_ms: 500 })
}

pub(super) fn waiting_put(name: &str) -> ClientToMaster {
    let items = vec![ReserveItem { key: key(name), len: UNIT, options: plain() }];
    ClientToMaster::Reserve(Reserve { items, wait_ms: 500, ..Reserve::default() })
}

/// A full node, and at most two waiting requests of each client, three of each namespace.
fn full_cluster(mutant: Mutant) -> Cluster {
    let mut cluster = Cluster::with(&[UNIT], |it| {
        it.limits = LimitsConfig { waiting_client_max: 2, waiting_namespace_max: 3, ..it.limits };
        it.mutant = mutant;
    });
    cluster.put("full", UNIT, pinned());
    cluster.open_in(OTHER, "default");
    cluster
}

/// Whether the third request of a client is refused.
fn third_is_busy(mutant: Mutant) -> bool {
    let mut cluster = full_cluster(mutant);
    let first = [watch(9 * UNIT), waiting_put("a")].map(|it| cluster.send_from(CLIENT, it));
    assert!(!first.iter().any(|it| cluster.is_busy(*it)));
    let third = cluster.send_from(CLIENT, watch(9 * UNIT));
    cluster.is_busy(third)
}

/// Whether the fourth request of a namespace is refused.
fn fourth_is_busy(mutant: Mutant) -> bool {
    let mut cluster = full_cluster(mutant);
    let first = [CLIENT, CLIENT, OTHER].map(|conn| cluster.send_from(conn, watch(9 * UNIT)));
    assert!(!first.iter().any(|it| cluster.is_busy(*it)));
    let fourth = cluster.send_from(OTHER, waiting_put("a"));
    cluster.open_in(ConnId(3), "another");
    let elsewhere = cluster.send_from(ConnId(3), waiting_put("a"));
    assert!(!cluster.is_busy(elsewhere), "another namespace does not notice");
    cluster.is_busy(fourth)
}

#[test]
fn waiting_requests_of_a_client_are_bounded() {
    assert!(third_is_busy(Mutant::None));
    let mut cluster = full_cluster(Mutant::None);
    let first = [waiting_put("a"), watch(9 * UNIT)].map(|it| cluster.send_from(CLIENT, it));
    for request in [waiting_put("b"), watch(9 * UNIT)] {
        let id = cluster.send_from(CLIENT, request);
        assert!(cluster.is_busy(id));
    }
    let stat = cluster.limit("waiting_per_client");
    assert_eq!((stat.max, stat.used, stat.reached), (2, 2, 2));
    // A request that need not wait is served.
    let at_once = cluster.send_from(CLIENT, watch(UNIT));
    assert!(matches!(cluster.replies.remove(&at_once), Some(Reply::Awaited(_))));
    let other = cluster.send_from(OTHER, waiting_put("c"));
    assert!(!cluster.is_busy(other), "another client does not notice");
    // One that is cancelled no longer counts, nor do those of a closed connection.
    cluster.ask(ClientToMaster::Cancel(first[0]));
    assert!(cluster.reserved(first[0]).is_some());
    assert_eq!(cluster.limit("waiting_per_namespace").used, 2);
    cluster.event(Event::Closed(CLIENT));
    cluster.event(Event::Closed(OTHER));
    assert_eq!((cluster.limit("waiting_per_client").used, cluster.master.waiting_count()), (0, 0));
    cluster.master.check().unwrap();
}

#[test]
fn waiting_requests_of_a_namespace_are_bounded() {
    assert!(fourth_is_busy(Mutant::None));
}

#[test]
fn requests_of_every_kind_count_while_they_wait() {
    let mut cluster = full_cluster(Mutant::None);
    let open = crate::message::OpenStream { name: "s".into(), ..Default::default() };
    assert!(matches!(cluster.ask(ClientToMaster::OpenStream(open)), Some(Reply::Stream(_))));
    cluster.hold_up(0);
    let pull = crate::message::Pull { stream: "s".into(), items_max: 1, wait_ms: 500, ..Default::default() };
    let drop = DeleteMatching { pattern: Pattern::All, force: true, wait_ms: 500 };
    let explain = Explain { keys: vec![key("full")], report_wait_ms: 0 };
    for (conn, request) in [
        (CLIENT, ClientToMaster::Why(explain)),
        (CLIENT, ClientToMaster::Pull(pull)),
        (OTHER, ClientToMaster::DeleteMatching(drop)),
    ] {
        let id = cluster.send_from(conn, request);
        assert!(!cluster.is_busy(id));
        cluster.master.check().unwrap();
    }
    assert_eq!(cluster.limit("waiting_per_namespace").used, 3);
    cluster.let_go(0);
    cluster.wait(500);
    assert_eq!(cluster.limit("waiting_per_namespace").used, 0);
    cluster.master.check().unwrap();
}

#[test]
fn watchers_are_answered_in_pieces() {
    let mut cluster = Cluster::new(&[9 * UNIT]);
    let ids: Vec<_> = (0..100).map(|at| cluster.send_from(CLIENT, watch(1 + at % 2 * UNIT))).collect();
    let never = cluster.send_from(CLIENT, watch(9 * UNIT));
    cluster.put("a", 2 * UNIT, plain());
    let answered = |cluster: &Cluster| ids.iter().filter(|it| cluster.replies.contains_key(it)).count();
    assert!((1..100).contains(&answered(&cluster)) && cluster.master.has_work());
    while cluster.master.has_work() {
        cluster.do_piece();
    }
    assert_eq!((answered(&cluster), cluster.replies.contains_key(&never)), (100, false));
    cluster.master.check().unwrap();
}

#[test]
fn queues_of_puts_are_served_in_pieces_and_in_turn() {
    const QUEUES: u64 = 100;
    let mut cluster = Cluster::with(&[], |_| ());
    cluster.add_node(QUEUES * UNIT, |it| it.slot_count = 2 * QUEUES as u32);
    cluster.put("full", QUEUES * UNIT, pinned());
    let ids: Vec<_> = (0..QUEUES)
        .map(|at| {
            cluster.open_in(ConnId(10_000 + at), &format!("namespace {at}"));
            cluster.send_from(ConnId(10_000 + at), waiting_put("a"))
        })
        .collect();
    assert!(ids.iter().all(|it| !cluster.replies.contains_key(it)));
    cluster.delete("full", true);
    while cluster.master.has_work() {
        cluster.do_piece();
    }
    assert!(ids.iter().all(|it| matches!(cluster.reserved(*it), Some(ReserveOutcome::Space(_)))));
    cluster.master.check().unwrap();
}

/// Whether a client may add a namespace beyond the limit, and whether an unused one is forgotten.
fn namespaces_at_the_limit(mutant: Mutant) -> (bool, bool) {
    let mut cluster = Cluster::with(&[4 * UNIT], |it| {
        (it.limits.namespaces_max, it.limits.namespaces_kept) = (3, 0);
        it.mutant = mutant;
    });
    cluster.open_in(ConnId(10), "a");
    cluster.open_in(ConnId(11), "b");
    assert!(
        cluster.master.admits("b", &Namespaces::All).is_ok(),
        "a known namespace has any number of clients"
    );
    let refused =
        matches!(cluster.master.admits("c", &Namespaces::All), Err(it) if it.reason == Reason::Busy);
    assert_eq!(cluster.limit("namespaces").reached, u64::from(refused));
    cluster.event(Event::Closed(ConnId(11)));
    (!refused, !cluster.master.namespaces().contains(&"b".to_owned()))
}

#[test]
fn namespaces_are_bounded() {
    assert_eq!(namespaces_at_the_limit(Mutant::None), (false, true));
}

/// How many of 16 namespaces the clients of a token may add that covers some of them.
fn namespaces_of_a_token(mutant: Mutant) -> u64 {
    let mut cluster = Cluster::with(&[4 * UNIT], |it| (it.limits.namespaces_max, it.mutant) = (16, mutant));
    let limited = |text| Namespaces::Some(vec![NamePattern::new(text).unwrap()]);
    let added = (0..).find(|at| {
        let name = format!("team-{at}");
        let is_admitted = cluster.master.admits(&name, &limited("team-*")).is_ok();
        is_admitted.then(|| cluster.open_in(ConnId(10 + at), &name)).is_none()
    });
    let added = added.unwrap_or_default();
    if mutant == Mutant::None {
        assert!(cluster.master.admits("team-1", &limited("team-*")).is_ok(), "it is known");
        for token in [limited("other-*"), Namespaces::All] {
            assert!(cluster.master.admits("other-1", &token).is_ok());
        }
        assert_eq!(cluster.limit("namespaces").reached, 1);
    }
    added
}

#[test]
fn token_leaves_namespaces_to_others() {
    assert_eq!(namespaces_of_a_token(Mutant::None), 14);
}

#[test]
fn namespace_is_kept_while_it_is_used() {
    use crate::message::{OpenStream, Policy};
    let mut cluster = Cluster::with(&[4 * UNIT], |it| it.limits.namespaces_kept = 0);
    let quota = Policy { quota: Some(UNIT), ..Policy::default() };
    let stream = OpenStream { name: "s".into(), ..OpenStream::default() };
    let reserve = waiting_put("a");
    for (at, (name, request)) in [
        ("quota", Some(ClientToMaster::SetPolicy(quota.into()))),
        ("stream", Some(ClientToMaster::OpenStream(stream))),
        ("reservation", Some(reserve)),
        ("nothing", None),
    ]
    .into_iter()
    .enumerate()
    {
        let conn = ConnId(10 + at as u64);
        cluster.open_in(conn, name);
        request.into_iter().for_each(|it| _ = cluster.send_from(conn, it));
        cluster.event(Event::Closed(conn));
    }
    cluster.put("object", UNIT, plain());
    cluster.event(Event::Closed(CLIENT));
    assert_eq!(cluster.master.namespaces(), ["default", "quota", "stream", "reservation"]);
    // A question does not create a namespace.
    _ = cluster.master.resolve(
        cluster.now,
        "another",
        &Resolve { keys: vec![key("a")], ..Resolve::default() },
    );
    // The node has released the reservation of the closed connection, and the sweep has found its namespace.
    assert_eq!(cluster.master.namespaces(), ["default", "quota", "stream"]);
    assert_eq!(cluster.limit("namespaces").used, 3);
}

#[test]
fn removals_are_explained_while_there_are_few_namespaces() {
    let mut cluster = Cluster::with(&[4 * UNIT], |it| it.limits.namespaces_kept = 2);
    cluster.put("a", UNIT, plain());
    cluster.delete("a", true);
    cluster.event(Event::Closed(CLIENT));
    cluster.open_in(ConnId(10), "other");
    cluster.event(Event::Closed(ConnId(10)));
    cluster.open(CLIENT, 7);
    assert!(matches!(cluster.why_all(&[key("a")])[..], [Why::Gone(_)]));
    cluster.event(Event::Closed(CLIENT));
    cluster.open_in(ConnId(11), "a third one");
    cluster.open_in(ConnId(12), "a fourth one");
    let unused = cluster.master.namespaces();
    let unused = unused.iter().filter(|it| ["default", "other"].contains(&it.as_str()));
    assert_eq!(unused.count(), 1, "one of two is forgotten");
}

#[test]
fn forgotten_namespace_hands_nothing_to_its_successor() {
    let mut cluster = Cluster::with(&[4 * UNIT], |it| it.limits.namespaces_kept = 0);
    cluster.put("a", UNIT, plain());
    cluster.delete("a", true);
    assert!(matches!(cluster.why_all(&[key("a")])[..], [Why::Gone(_)]));
    cluster.event(Event::Closed(CLIENT));
    for at in 0..3000 {
        let conn = ConnId(10_000 + at);
        cluster.open_in(conn, &format!("namespace {at}"));
        let explain = Explain { keys: vec![key("a")], report_wait_ms: 0 };
        let id = cluster.send_from(conn, ClientToMaster::Why(explain));
        assert_eq!(cluster.replies.remove(&id), Some(Reply::Why(vec![Why::Unknown])));
        cluster.event(Event::Closed(conn));
    }
    assert_eq!(cluster.master.namespaces().len(), 0);
}

/// How many namespaces an answer lists if there are two more than the limit.
fn namespaces_listed(mutant: Mutant) -> usize {
    let mut cluster = Cluster::with(&[4 * UNIT], |it| it.mutant = mutant);
    for at in 0..=NAMESPACES_LISTED_MAX as u64 {
        cluster.open_in(ConnId(10_000 + at), &format!("namespace {at}"));
    }
    let last = ConnId(10_000 + NAMESPACES_LISTED_MAX as u64);
    cluster.send_from(last, waiting_put("a"));
    let listed = cluster.master.stat().namespaces;
    assert!(listed.iter().any(|it| it.name == format!("namespace {NAMESPACES_LISTED_MAX}")));
    listed.len()
}

#[test]
fn answer_lists_the_namespaces_that_use_most() {
    assert_eq!(namespaces_listed(Mutant::None), NAMESPACES_LISTED_MAX);
}

/// Clients of two namespaces send requests that wait, cancel, leave and return, as a seed says. Returns the
/// first limit that was exceeded.
fn hostile_clients(mutant: Mutant, seed: u64) -> Result<(), String> {
    let mut cluster = full_cluster(mutant);
    let mut state = seed;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let conn_of = |client: u64, times: &[u64; 6]| ConnId(100 + client + 10 * times[client as usize]);
    let namespace_of = |client: u64| if client < 3 { "one" } else { "two" };
    let (mut times, mut sent) = ([0; 6], Vec::new());
    (0..6).for_each(|client| cluster.open_in(conn_of(client, &times), namespace_of(client)));
    for step in 0..200 {
        let client = draw(6);
        let conn = conn_of(client, &times);
        match draw(8) {
            0..=2 => sent.push((conn, cluster.send_from(conn, watch(UNIT * (1 + draw(9)))))),
            3..=5 => sent.push((conn, cluster.send_from(conn, waiting_put(&format!("k{}", draw(4)))))),
            6 => {
                let at = draw(sent.len() as u64 + 1) as usize;
                sent.get(at).copied().into_iter().for_each(|(conn, id)| {
                    cluster.send_from(conn, ClientToMaster::Cancel(id));
                });
            }
            _ => {
                cluster.event(Event::Closed(conn));
                times[client as usize] += 1;
                cluster.open_in(conn_of(client, &times), namespace_of(client));
            }
        }
        if draw(20) == 0 {
            cluster.wait(draw(300));
        }
        cluster.master.check()?;
        for limit in cluster.master.limits() {
            if limit.name.starts_with("waiting") && limit.used > limit.max {
                return Err(format!("seed {seed}, step {step}: {limit:?}"));
            }
        }
        // A client that asks for little is served at once, whatever the others do.
        let resolve = Resolve { keys: vec![key("full")], ..Resolve::default() };
        if !matches!(cluster.ask(ClientToMaster::Resolve(resolve)), Some(Reply::Resolved(_))) {
            return Err(format!("seed {seed}, step {step}: another client is not served"));
        }
    }
    Ok(())
}

#[test]
fn hostile_clients_stay_within_their_limits() {
    (0..50).for_each(|seed| assert_eq!(hostile_clients(Mutant::None, seed), Ok(())));
}

/// Whether a regular expression of that length is accepted, and one that needs much memory.
fn accepts_expressions(mutant: Mutant, len: usize) -> [bool; 2] {
    let mut cluster = Cluster::with(&[UNIT], |it| it.mutant = mutant);
    ["k".repeat(len), r"(\w{60}){60}".to_owned()].map(|text| {
        let pattern = Pattern::Regex(text);
        let list = List { pattern, pinned_by: None, cursor: 0, limit: 100, report_wait_ms: 0 };
        match cluster.ask(ClientToMaster::List(list)) {
            Some(Reply::Listed(_)) => true,
            Some(Reply::Refused(it)) if it.reason == Reason::Invalid => false,
            other => panic!("{other:?}"),
        }
    })
}

#[test]
fn regular_expressions_are_bounded() {
    assert_eq!(accepts_expressions(Mutant::None, REGEX_TEXT_BYTES_MAX), [true, false]);
    assert_eq!(accepts_expressions(Mutant::None, REGEX_TEXT_BYTES_MAX + 1), [false, false]);
}

/// The number of pages of a listing with a regular expression, and of pieces of a delete, over three keys of
/// maximum length.
fn regex_over_long_keys(mutant: Mutant) -> (usize, usize) {
    let mut cluster = Cluster::with(&[], |it| it.mutant = mutant);
    cluster.add_node(8 << 20, |it| it.heap_bytes = 4 << 20);
    for at in 0..3 {
        let name = format!("{at}{}", "k".repeat(KEY_BYTES_MAX - 1));
        cluster.put(&name, UNIT, plain());
    }
    let pattern = Pattern::Regex("^[0-9]k+$".into());
    let (mut pages, mut found, mut cursor) = (0, 0, 0);
    loop {
        let list = List { pattern: pattern.clone(), pinned_by: None, cursor, limit: 100, report_wait_ms: 0 };
        let Some(Reply::Listed(page)) = cluster.ask(ClientToMaster::List(list)) else { panic!() };
        (pages, found, cursor) = (pages + 1, found + page.items.len(), page.cursor);
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(found, 3);
    let delete = DeleteMatching { pattern, force: true, wait_ms: 500 };
    let id = cluster.send(ClientToMaster::DeleteMatching(delete));
    let mut pieces = 1;
    while cluster.master.has_work() {
        cluster.do_piece();
        pieces += 1;
    }
    let deleted = DeletedMatching { count: 3, unconfirmed: vec![] };
    assert_eq!(cluster.replies.remove(&id), Some(Reply::DeletedMatching(deleted)));
    (pages, pieces)
}

#[test]
fn expressions_compare_a_bounded_number_of_bytes_at_a_time() {
    assert_eq!(regex_over_long_keys(Mutant::None), (3, 3));
}
