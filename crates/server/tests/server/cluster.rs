//! A master and nodes over real sockets and real memory, with failing peers.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::*;
use tiffin_rpc::{Address, CallError, Connection};
use tiffin_server::node::{JoinError, LinkStatus};
use tiffin_server::{Embedded, MasterConfig, NodeConfig, NodeServer, Up, UpConfig};
use tiffin_transport::shm;
use tiffin_types::message::{
    ClientToMaster, ClientToNode, CommitOutcome, DeleteOutcome, Hello, List, Pattern, Reason, Reply, Request,
    ReserveOutcome, ResolveOutcome, Role,
};
use tokio::task::JoinSet;

fn any_port() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_read_through_sockets_and_through_memory() {
    let master = start_master(MasterConfig::default()).await;
    let node = start_node(master.address(), NodeConfig::default()).await;
    let client = Raw::connect(master.address(), hello(1)).await.unwrap();
    let bytes: Vec<u8> = (0..100_000_u32).map(|it| it as u8).collect();
    for (name, way, other) in [("a", Way::Tcp, Way::Shm), ("b", Way::Shm, Way::Tcp)] {
        let outcome = client.put(name, &bytes, way).await;
        assert!(matches!(outcome, CommitOutcome::Stored(generation) if generation.epoch == master.epoch()));
        assert_eq!(client.get(name, way).await.as_deref(), Some(&bytes[..]));
        assert_eq!(client.get(name, other).await.as_deref(), Some(&bytes[..]));
    }
    assert_eq!(client.put("empty", b"", Way::Tcp).await, client_generation(&client, "empty").await);
    assert_eq!(node.usage().objects, 3);
    assert_eq!(client.delete("a").await, DeleteOutcome::Deleted);
    assert_eq!(client.delete("a").await, DeleteOutcome::Absent);
    assert_eq!(client.get("a", Way::Tcp).await, None);
    assert_eq!(node.usage().objects, 2);
    assert_eq!(node.counters().served.written(), 100_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn store_writes_once_and_only_to_its_own_reservation() {
    let master = start_master(MasterConfig::default()).await;
    let node =
        start_node(master.address(), NodeConfig { shared_memory: false, ..NodeConfig::default() }).await;
    // Each client has one connection to the node: one that loses it loses its reservation.
    let connect = async |client| Raw::connect(master.address(), hello(client)).await.unwrap();
    let reader = connect(9).await;
    let one = connect(1).await;
    let place = one.place("k", 5, Way::Tcp).await;
    for bytes in [&b"four"[..], b"sixsix"] {
        let refused = place.store("k", 5, bytes).await;
        let is_invalid =
            |it: &CallError| matches!(it, CallError::Refused(it) if it.reason == Reason::Invalid);
        assert!(refused.as_ref().is_err_and(is_invalid), "{refused:?}");
    }
    assert_eq!(node.counters().served.written(), 0);
    let stored = place.store("k", 5, b"bytes").await.unwrap();
    assert!(matches!(stored, CommitOutcome::Stored(_)), "{stored:?}");
    // The answer was lost, and the request is repeated. Its bytes are ignored.
    assert_eq!(place.store("k", 5, b"other").await.unwrap(), stored);
    assert_eq!(reader.get("k", Way::Tcp).await.as_deref(), Some(&b"bytes"[..]));
    assert_eq!(node.counters().served.written(), 5);
    // The bytes were written before, through the data socket.
    let two = connect(2).await;
    let place = two.place("l", 3, Way::Tcp).await;
    place.write(b"old").await;
    assert!(matches!(place.store("l", 3, b"").await, Ok(CommitOutcome::Stored(_))));
    assert_eq!(reader.get("l", Way::Tcp).await.as_deref(), Some(&b"old"[..]));
    // The reservation of another client.
    let (me, they) = (connect(3).await, connect(4).await);
    let mine = me.place("m", 4, Way::Tcp).await;
    let mut theirs = they.place("m", 4, Way::Tcp).await;
    theirs.reservation = mine.reservation.clone();
    assert_eq!(theirs.store("m", 4, b"evil").await.unwrap(), CommitOutcome::Stale);
    assert_eq!(reader.get("m", Way::Tcp).await, None);
    assert!(matches!(mine.store("m", 4, b"good").await, Ok(CommitOutcome::Stored(_))));
    assert_eq!(reader.get("m", Way::Tcp).await.as_deref(), Some(&b"good"[..]));
}

async fn client_generation(client: &Raw, name: &str) -> CommitOutcome {
    match client.resolve(name).await.0 {
        ResolveOutcome::Found(found) => CommitOutcome::Stored(found.generation),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_returns_when_a_client_ends_before_its_commit() {
    let master = start_master(MasterConfig::default()).await;
    let node = start_node(master.address(), NodeConfig::default()).await;
    // One client never connected to the node, the other wrote there.
    let stranger = Raw::connect(master.address(), hello(1)).await.unwrap();
    assert!(matches!(stranger.reserve("k", 1 << 20).await, ReserveOutcome::Space(_)));
    let visitor = Raw::connect(master.address(), hello(2)).await.unwrap();
    let place = visitor.place("l", 1 << 20, Way::Tcp).await;
    place.write(&vec![1; 1 << 20]).await;
    assert_eq!(node.usage().granted, 2 << 20);
    drop((stranger, visitor, place));
    until("the memory returned", || node.usage().granted == 0).await;
    assert_eq!(node.usage().free, node.usage().capacity);
    until("the clients were forgotten", || node.client_count() == 0).await;
    until("the master forgot them too", || master.stat().clients == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_of_a_mapping_writer_stays_until_its_goodbye() {
    let master = start_master(MasterConfig::default()).await;
    let node = start_node(master.address(), NodeConfig::default()).await;
    let client = Raw::connect(master.address(), hello(1)).await.unwrap();
    let place = client.place("k", 1 << 20, Way::Shm).await;
    until("the mapping is known", || node.client_count() == 1).await;
    place.write(b"half").await;
    // The connections are closed, but this process still runs and maps the memory.
    place.node.close();
    client.master.close();
    until("the master noticed its end", || master.stat().clients == 0).await;
    let again = Raw::connect(master.address(), hello(2)).await.unwrap();
    let _node_has_heard = again.place("other", 64, Way::Tcp).await;
    assert!(node.usage().granted >= 1 << 20, "{:?}", node.usage());
    let address = Address::Unix { name: place.info.unix.clone() };
    let (connection, _) = Connection::open(&address, hello(1), soon()).await.unwrap();
    assert_eq!(connection.call(&Request::Goodbye, soon()).await.unwrap(), Reply::Done);
    // The memory is free when the master, too, knows that nothing will be published there.
    until("the memory returned", || node.usage().granted == 64).await;
}

/// Not a test: the process that [`memory_returns_when_a_mapping_process_is_killed`] kills.
#[tokio::test(flavor = "multi_thread")]
async fn victim() {
    let Some(master) = std::env::var_os("TIFFIN_TEST_VICTIM_OF") else { return };
    let master: Address = master.to_str().unwrap().parse().unwrap();
    let client = Raw::connect(&master, hello(77)).await.unwrap();
    let place = client.place("k", 1 << 20, Way::Shm).await;
    place.write(b"half").await;
    std::io::stderr().write_all(b"READY").unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_returns_when_a_mapping_process_is_killed() {
    let master = start_master(MasterConfig::default()).await;
    let node = start_node(master.address(), NodeConfig::default()).await;
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cluster::victim", "--nocapture"])
        .env("TIFFIN_TEST_VICTIM_OF", master.address().to_string())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let said = tokio::task::spawn_blocking(move || {
        let mut said = Vec::new();
        let mut byte = [0];
        while !said.ends_with(b"READY") && stderr.read(&mut byte).unwrap() > 0 {
            said.push(byte[0]);
        }
        said
    });
    let said = said.await.unwrap();
    assert!(said.ends_with(b"READY"), "{}", String::from_utf8_lossy(&said));
    assert_eq!(node.usage().granted, 1 << 20);
    child.kill().unwrap();
    child.wait().unwrap();
    until("the memory returned", || node.usage().granted == 0).await;
    until("the client was forgotten", || node.client_count() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_master_learns_objects_from_its_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let address = unix_address();
    let config = MasterConfig {
        listen: vec![address.clone()],
        state_dir: Some(folder.path().to_owned()),
        ..MasterConfig::default()
    };
    let master = start_master(config.clone()).await;
    let node = start_node(&address, NodeConfig::default()).await;
    let client = Raw::connect(&address, hello(1)).await.unwrap();
    let stored = client.put("k", b"value", Way::Shm).await;
    let first = master.epoch();
    master.shutdown().await;
    until("the node notices it", || matches!(node.status(), LinkStatus::Unreachable(_))).await;
    let lost = client.master.call(&ClientToMaster::Stat, soon()).await;
    assert!(matches!(lost, Err(CallError::Lost { .. })), "{lost:?}");

    let master = start_master(config).await;
    assert!(master.epoch() > first);
    node.joined(soon()).await.unwrap();
    let client = Raw::connect(&address, hello(1)).await.unwrap();
    assert_eq!(client.get("k", Way::Shm).await.as_deref(), Some(&b"value"[..]));
    assert_eq!(client_generation(&client, "k").await, stored);
    let CommitOutcome::Replaced(generation) = client.put("k", b"newer", Way::Shm).await else { panic!() };
    assert_eq!(generation.epoch, master.epoch());
}

#[tokio::test(flavor = "multi_thread")]
async fn leaving_node_is_away_at_once_and_a_new_one_is_used() {
    let config = MasterConfig { away: Duration::from_millis(1), ..MasterConfig::default() };
    let master = start_master(config).await;
    let node = start_node(master.address(), NodeConfig { name: "one".into(), ..NodeConfig::default() }).await;
    let client = Raw::connect(master.address(), hello(1)).await.unwrap();
    client.put("k", b"value", Way::Tcp).await;
    let first = node.segment();
    node.leave(soon()).await;
    until("the node is lost", || master.stat().nodes.is_empty()).await;
    assert_eq!(client.resolve("k").await.0, ResolveOutcome::Absent);
    assert!(matches!(client.reserve("k", 8).await, ReserveOutcome::NoNode));
    let node = start_node(master.address(), NodeConfig { name: "one".into(), ..NodeConfig::default() }).await;
    assert_ne!(node.segment(), first);
    client.put("k", b"again", Way::Tcp).await;
    assert_eq!(client.get("k", Way::Tcp).await.as_deref(), Some(&b"again"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn node_waits_for_its_master_and_reports_why() {
    let address = unix_address();
    let config = NodeConfig { master: address.clone().into(), memory: 1 << 20, ..NodeConfig::default() };
    let node = NodeServer::start(config).await.unwrap();
    until("the node notices it", || matches!(node.status(), LinkStatus::Unreachable(_))).await;
    let error = node.joined(tokio::time::Instant::now()).await.unwrap_err().to_string();
    assert!(error.contains(&address.to_string()) && error.contains("cannot connect"), "{error}");
    let _master = start_master(MasterConfig { listen: vec![address], ..MasterConfig::default() }).await;
    node.joined(soon()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_the_token_are_rejected() {
    let config = MasterConfig { token: "secret".into(), ..MasterConfig::default() };
    let master = start_master(config).await;
    let right = NodeConfig { token: "secret".into(), ..NodeConfig::default() };
    let node = start_node(master.address(), right.clone()).await;
    let mut addresses = vec![master.address().clone(), node.info().tcp.parse().unwrap()];
    addresses.push(Address::Unix { name: node.info().unix.clone() });
    for address in addresses {
        for (token, welcome) in [("secret", true), ("Secret", false), ("", false)] {
            let hello = Hello { token: token.to_owned(), ..hello(1) };
            let opened = Connection::open(&address, hello, soon()).await.map(|_| ());
            let refused = |error: &CallError| match error {
                CallError::Refused(refusal) => refusal.reason == Reason::Unauthenticated,
                _ => false,
            };
            assert!(if welcome { opened.is_ok() } else { opened.as_ref().is_err_and(refused) }, "{opened:?}");
        }
    }
    let config =
        NodeConfig { master: master.address().clone().into(), memory: 1 << 20, ..NodeConfig::default() };
    let wrong = NodeServer::start(config).await.unwrap();
    let error = wrong.joined(soon()).await.unwrap_err();
    assert!(
        matches!(&error, JoinError::Refused { why, .. } if why.contains("the token is missing")),
        "{error}"
    );
    let (segment, memory) = (node.segment().0, node.info().memory.as_str());
    let attached = shm::attach(memory, segment, 1, "Secret", soon()).await.map(|_| ());
    assert!(attached.unwrap_err().to_string().contains("the token is wrong"));
    guess_until_unanswered(segment, memory).await;
    let client = Raw::connect(master.address(), Hello { token: "secret".into(), ..hello(5) }).await.unwrap();
    client.put("k", b"value", Way::Tcp).await;
    assert_eq!(client.get("k", Way::Shm).await.as_deref(), Some(&b"value"[..]));
}

/// Guesses tokens at an attach socket, fewer at a time than it keeps connections, until it closes one without
/// an answer.
async fn guess_until_unanswered(segment: u64, memory: &str) {
    let mut guesses = JoinSet::new();
    loop {
        while guesses.len() < 64 {
            let memory = memory.to_owned();
            guesses.spawn(async move { shm::attach(&memory, segment, 1, "Secret", soon()).await });
        }
        let error = guesses.join_next().await.unwrap().unwrap().map(|_| ()).unwrap_err().to_string();
        if !error.contains("the token is wrong") {
            assert!(error.contains("no node can be reached"), "{error}");
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_hellos_and_requests_are_refused() {
    let master = start_master(MasterConfig::default()).await;
    let node = start_node(master.address(), NodeConfig::default()).await;
    let node_address: Address = node.info().tcp.parse().unwrap();
    for (address, hello, expected) in [
        (&node_address, Hello { role: Role::Node, ..hello(1) }, Reason::NotForYou),
        (&node_address, Hello { client: tiffin_types::ClientId(0), ..hello(1) }, Reason::Invalid),
        (master.address(), Hello { namespace: String::new(), ..hello(1) }, Reason::Invalid),
        (master.address(), Hello { namespace: "x".repeat(129), ..hello(1) }, Reason::Invalid),
    ] {
        let Err(CallError::Refused(refusal)) = Connection::open(address, hello, soon()).await else {
            panic!()
        };
        assert_eq!(refusal.reason, expected, "{refusal:?}");
    }
    let (connection, _) = Connection::open(master.address(), hello(1), soon()).await.unwrap();
    let asked = connection.call(&ClientToNode::Commit(Default::default()), soon()).await;
    assert!(matches!(asked, Err(CallError::Refused(refusal)) if refusal.reason == Reason::NotForYou));
    let (connection, _) = Connection::open(&node_address, hello(1), soon()).await.unwrap();
    let asked = connection.call(&ClientToMaster::Stat, soon()).await;
    assert!(matches!(asked, Err(CallError::Refused(refusal)) if refusal.reason == Reason::NotForYou));
}

#[tokio::test(flavor = "multi_thread")]
async fn newer_connection_of_a_client_ends_the_older_one() {
    let master = start_master(MasterConfig::default()).await;
    let old = Raw::connect(master.address(), hello(1)).await.unwrap();
    let new = Raw::connect(master.address(), hello(1)).await.unwrap();
    old.master.closed().await;
    assert!(matches!(new.ask(ClientToMaster::Stat).await, Reply::Stat(stat) if stat.clients == 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_store_listens_on_a_unix_socket() {
    let store = Embedded::start(4 << 20).await.unwrap();
    assert!(matches!(store.address(), Address::Unix { .. }));
    assert_eq!((store.node().info().tcp.as_str(), store.master().http_address()), ("", None));
    let client = Raw::connect(store.address(), hello(1)).await.unwrap();
    client.put("k", b"value", Way::Shm).await;
    assert_eq!(client.get("k", Way::Shm).await.as_deref(), Some(&b"value"[..]));
    let address = store.address().clone();
    store.shutdown(soon()).await;
    let refused = Raw::connect(&address, hello(1)).await.map(|_| ());
    assert!(matches!(refused, Err(CallError::Connect { .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn view_in_the_same_process_holds_memory_until_released() {
    let store = Embedded::start(4 << 20).await.unwrap();
    let client = Raw::connect(store.address(), hello(9)).await.unwrap();
    client.put("k", &[7; 4096], Way::Shm).await;
    let ResolveOutcome::Found(found) = client.resolve("k").await.0 else { panic!() };
    // Another client, which accesses the memory without a mapping of its own.
    let local = hello(10);
    store.node().attach_local(local.client);
    let address = Address::Unix { name: store.node().info().unix.clone() };
    let (connection, _) = Connection::open(&address, local.clone(), soon()).await.unwrap();
    let begin = ClientToNode::BeginViews(vec![found.replicas[0].slot_ref()]);
    assert_eq!(connection.call(&begin, soon()).await.unwrap(), Reply::ViewsBegun(vec![true]));
    assert_eq!(client.delete("k").await, DeleteOutcome::Deleted);
    assert_eq!(store.node().usage().held, 4096);
    connection.call(&Request::Goodbye, soon()).await.unwrap();
    until("the view has ended", || store.node().usage().held == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_with_the_memory_begins_a_view_at_once() {
    let store = Embedded::start(4 << 20).await.unwrap();
    let writer = Raw::connect(store.address(), hello(1)).await.unwrap();
    writer.put("k", &[7; 4096], Way::Shm).await;
    let ResolveOutcome::Found(found) = writer.resolve("k").await.0 else { panic!() };
    let info = store.node().info();
    let address = Address::Unix { name: info.unix.clone() };
    let begin = ClientToNode::BeginViews(vec![found.replicas[0].slot_ref()]);
    for client in 100..150 {
        let (connection, _) = Connection::open(&address, hello(client), soon()).await.unwrap();
        let attached = shm::attach(&info.memory, info.segment.0, client, "", soon()).await;
        let begun = connection.call(&begin, soon()).await.unwrap();
        assert_eq!(begun, Reply::ViewsBegun(vec![true]), "client {client}");
        drop(attached.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_lists_of_names_are_sent_in_several_messages() {
    const NAME_BYTES: usize = 1 << 20;
    const COUNT: usize = 72;
    let address = unix_address();
    let config = MasterConfig { listen: vec![address.clone()], ..MasterConfig::default() };
    let master = start_master(config.clone()).await;
    let node = NodeConfig {
        master: address.clone().into(),
        memory: 640 << 20,
        listen: None,
        ..NodeConfig::default()
    };
    let node = NodeServer::start(node).await.unwrap();
    node.joined(soon()).await.unwrap();
    let client = Raw::connect(&address, hello(1)).await.unwrap();
    let name = |number: usize| format!("{number:04}{}", "x".repeat(NAME_BYTES - 4));
    for number in 0..COUNT {
        client.put(&name(number), b"x", Way::Shm).await;
    }
    master.shutdown().await;
    until("the node notices it", || matches!(node.status(), LinkStatus::Unreachable(_))).await;
    let _master = start_master(config).await;
    node.joined(soon()).await.unwrap();
    let client = Raw::connect(&address, hello(1)).await.unwrap();
    assert!(matches!(client.resolve(&name(COUNT - 1)).await.0, ResolveOutcome::Found(_)));
    let (mut count, mut cursor) = (0, 0);
    loop {
        let list = List { pattern: Pattern::All, pinned_by: None, cursor, limit: 1000, report_wait_ms: 0 };
        let Reply::Listed(listed) = client.ask(ClientToMaster::List(list)).await else { panic!() };
        count += listed.items.len();
        cursor = listed.cursor;
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(count, COUNT);
}

#[tokio::test(flavor = "multi_thread")]
async fn up_is_a_master_and_a_node() {
    let folder = tempfile::tempdir().unwrap();
    let master = MasterConfig {
        listen: vec![any_port()],
        http: Some(any_port()),
        state_dir: Some(folder.path().to_owned()),
        ..MasterConfig::default()
    };
    let node = NodeConfig { memory: 4 << 20, ..NodeConfig::default() };
    let up = Up::start(UpConfig { master, node }).await.unwrap();
    assert_eq!(up.node().status(), LinkStatus::Member);
    let (status, segments) = get(up.master().http_address().unwrap(), "/get_all_segments").await;
    assert_eq!((status, segments), (200, format!("{}\n", up.node().info().name)));
    up.shutdown(soon()).await;
}
