//! Tokens limit what their holders may do, on every socket and every page.

use std::collections::BTreeSet;
use std::path::PathBuf;

use tempfile::TempDir;
use tiffin_rpc::{Address, CallError, Connection};
use tiffin_server::access::{AccessFile, NewToken};
use tiffin_server::{MasterConfig, MasterServer, NodeConfig, NodeServer};
use tiffin_transport::tcp::{Identity, Tcp};
use tiffin_transport::{ReadOp, TargetBuf, TransferError, Transport, shm};
use tiffin_types::access::Right;
use tiffin_types::message::{
    ClientToMaster, CommitOutcome, Delete, Explain, Hello, NodeInfo, PolicyChange, Reason, Reply,
    ResolveOutcome, Role, Stat, Why,
};
use tiffin_types::{Location, SegmentId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Raw, Way, hello, http, key, soon, start_master, start_node, unix_address, until};

/// A store whose servers accept the tokens of a file.
struct Walled {
    _folder: TempDir,
    path: PathBuf,
    node_token: String,
    master: MasterServer,
    node: Option<NodeServer>,
}

impl Walled {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.toml");
        let node_token = create(&path, "node", &[Right::Node], &[]);
        let access_file = Some(path.clone());
        let any: Address = "127.0.0.1:0".parse().unwrap();
        let listen = vec![unix_address(), any.clone()];
        let master = MasterConfig {
            listen,
            http: Some(any),
            access_file: access_file.clone(),
            ..MasterConfig::default()
        };
        let master = start_master(master).await;
        let node = NodeConfig { token: node_token.clone(), access_file, ..NodeConfig::default() };
        let node = Some(start_node(master.address(), node).await);
        Self { _folder: folder, path, node_token, master, node }
    }

    /// Creates a token for these namespaces, and waits until the servers know it.
    async fn token(&self, name: &str, rights: &[Right], namespaces: &[&str]) -> String {
        let token = create(&self.path, name, rights, namespaces);
        let namespace = namespaces.first().map_or("default", |it| it.trim_end_matches('*'));
        let nodes = self.node.iter().map(|it| it.info().tcp.parse().unwrap());
        for address in nodes.chain([self.master.address().clone()]) {
            let deadline = soon();
            let hello = || Hello { token: token.clone(), namespace: namespace.to_owned(), ..hello(99) };
            // The file is read again in the next second. An unknown token does not take the id.
            while let Err(error) = Connection::open(&address, hello(), soon()).await {
                let is_unknown = refused(&error) == Some(Reason::Unauthenticated);
                let is_taken = refused(&error) == Some(Reason::Forbidden);
                assert!(is_unknown || is_taken, "{error}");
                assert!(tokio::time::Instant::now() < deadline, "the token is never known");
                if is_taken {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        token
    }

    async fn client(&self, id: u64, token: &str, namespace: &str) -> Raw {
        let hello = Hello { token: token.to_owned(), namespace: namespace.to_owned(), ..hello(id) };
        Raw::connect(self.master.address(), hello).await.unwrap()
    }

    fn info(&self) -> &NodeInfo {
        self.node.as_ref().unwrap().info()
    }
}

fn create(path: &std::path::Path, name: &str, rights: &[Right], namespaces: &[&str]) -> String {
    let new = NewToken {
        name: name.to_owned(),
        rights: rights.iter().copied().collect(),
        namespaces: namespaces.iter().map(|it| (*it).to_owned()).collect(),
        expires_ms: None,
    };
    AccessFile::create(path, &new).unwrap()
}

fn refused(error: &CallError) -> Option<Reason> {
    match error {
        CallError::Refused(refusal) => Some(refusal.reason),
        _ => None,
    }
}

/// Reads from a location through the data socket.
async fn read_at(
    client: &Raw,
    info: &NodeInfo,
    location: Location,
    len: usize,
) -> Result<Vec<u8>, TransferError> {
    let (client, token) = (client.hello.client.0, client.hello.token.clone());
    let identity = Identity { client, segment: info.segment.0, token };
    let tcp = Tcp::new(info.data.clone(), identity, Default::default());
    let mut bytes = vec![0; len];
    let targets = vec![TargetBuf::from(&mut bytes[..])];
    let op = ReadOp { slot: location.slot.0, stamp: location.stamp.0, offset: 0, targets };
    let outcome = tcp.read(std::slice::from_ref(&op), soon()).await.remove(0);
    drop(op);
    outcome.map(|()| bytes)
}

async fn location(client: &Raw, name: &str) -> Location {
    let (ResolveOutcome::Found(found), _) = client.resolve(name).await else { panic!("{name} is absent") };
    found.replicas[0]
}

async fn stat(client: &Raw) -> Stat {
    let Reply::Stat(stat) = client.ask(ClientToMaster::Stat).await else { panic!() };
    *stat
}

async fn is_forbidden(client: &Raw, request: ClientToMaster) -> bool {
    let answer = client.master.call(&request, soon()).await;
    answer.is_err_and(|error| refused(&error) == Some(Reason::Forbidden))
}

const BOTH: [Right; 2] = [Right::Read, Right::Write];

#[tokio::test(flavor = "multi_thread")]
async fn location_is_worthless_with_a_token_of_another_namespace() {
    let store = Walled::start().await;
    let a = store.token("a", &BOTH, &["team-a"]).await;
    let b = store.token("b", &BOTH, &["team-b*"]).await;
    let (a, b) = (store.client(1, &a, "team-a").await, store.client(2, &b, "team-b").await);
    let secret = b"bytes of team a";
    assert!(matches!(a.put("k", secret, Way::Tcp).await, CommitOutcome::Stored(_)));
    let at = location(&a, "k").await;
    let info = store.info();
    assert_eq!(read_at(&a, info, at, secret.len()).await.as_deref(), Ok(&secret[..]));
    // The attacker knows everything but the token.
    for len in [secret.len(), 1, 1 << 20] {
        assert_eq!(read_at(&b, info, at, len).await, Err(TransferError::Stale), "{len} bytes");
    }
    // Memory is not mapped with a token that is not for all namespaces.
    let (name, segment) = (&info.memory, info.segment.0);
    let mapped = shm::attach(name, segment, 2, &b.hello.token, soon()).await;
    assert!(mapped.is_err_and(|it| it.to_string().contains("not for all namespaces")));
    assert!(shm::attach(name, segment, 7, &store.node_token, soon()).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn reserved_memory_is_not_sent_to_any_client() {
    let store = Walled::start().await;
    let token = store.token("all", &BOTH, &[]).await;
    let client = store.client(1, &token, "default").await;
    let old = vec![0x5a; 4096];
    client.put("old", &old, Way::Tcp).await;
    client.delete("old").await;
    let place = client.place("new", 4096, Way::Tcp).await;
    let at = place.reservation.location;
    assert_eq!(read_at(&client, store.info(), at, 4096).await, Err(TransferError::Stale));
    place.write(&[1; 4096]).await;
    assert_eq!(read_at(&client, store.info(), at, 4096).await, Err(TransferError::Stale));
    assert!(matches!(place.commit("new", 4096).await, CommitOutcome::Stored(_)));
    assert_eq!(read_at(&client, store.info(), at, 4096).await, Ok(vec![1; 4096]));
}

/// Every client may read all that there is, so only the stamps keep a guess from succeeding.
#[tokio::test(flavor = "multi_thread")]
async fn guessed_slots_and_stamps_give_nothing() {
    const GUESSES: u64 = 4096;
    let store = Walled::start().await;
    let token = store.token("all", &BOTH, &[]).await;
    let client = store.client(1, &token, "default").await;
    let names: Vec<_> = (0..16).map(|it| format!("k{it}")).collect();
    for name in &names {
        client.put(name, b"a secret", Way::Tcp).await;
    }
    let reserved = client.place("reserved", 8, Way::Tcp).await;
    let mut known = vec![reserved.reservation.location];
    for name in &names {
        known.push(location(&client, name).await);
    }
    let stamps: BTreeSet<_> = known.iter().map(|it| it.stamp.0).collect();
    assert_eq!(stamps.len(), known.len());
    // All small numbers, and what is near the stamps that the attacker knows.
    let near = stamps.iter().flat_map(|it| [it.wrapping_sub(1), it + 1, it ^ 1 << 61, it << 1]);
    let guesses: BTreeSet<_> = (0..GUESSES).chain(near).filter(|it| !stamps.contains(it)).collect();
    let (id, info) = (client.hello.client.0, store.info());
    let identity = Identity { client: id, segment: info.segment.0, token };
    let tcp = Tcp::new(info.data.clone(), identity, Default::default());
    let pairs: Vec<_> = guesses.iter().flat_map(|stamp| (0..4).map(|slot| (slot, *stamp))).collect();
    let mut bytes = vec![[0; 8]; pairs.len()];
    let mut ops = Vec::new();
    for (&(slot, stamp), bytes) in pairs.iter().zip(&mut bytes) {
        ops.push(ReadOp { slot, stamp, offset: 0, targets: vec![TargetBuf::from(&mut bytes[..])] });
    }
    let outcomes = tcp.read(&ops, soon()).await;
    drop(ops);
    assert!(outcomes.iter().all(|it| *it == Err(TransferError::Stale)));
    assert!(bytes.iter().all(|it| *it == [0; 8]));
    assert_eq!(read_at(&client, info, known[1], 8).await.as_deref(), Ok(&b"a secret"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_administrators_change_policies_and_members() {
    let store = Walled::start().await;
    let a = store.token("a", &BOTH, &["team-a"]).await;
    let admin = store.token("admin", &[Right::Admin], &["team-a"]).await;
    let (a, admin) = (store.client(1, &a, "team-a").await, store.client(2, &admin, "team-a").await);
    let change = || ClientToMaster::SetPolicy(PolicyChange::NONE.quota(Some(1 << 30)));
    assert!(is_forbidden(&a, change()).await);
    assert_eq!(stat(&a).await.namespaces.iter().find(|it| it.name == "team-a").and_then(|it| it.quota), None);
    assert_eq!(admin.ask(change()).await, Reply::Done);
    let quota = stat(&a).await.namespaces.iter().find(|it| it.name == "team-a").and_then(|it| it.quota);
    assert_eq!(quota, Some(1 << 30));
    let delete = Delete { keys: vec![key("k")], force: true, wait_ms: 0 };
    assert!(is_forbidden(&admin, ClientToMaster::Delete(delete)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_reveal_nothing_of_other_namespaces() {
    let store = Walled::start().await;
    let a = store.token("a", &BOTH, &["team-a"]).await;
    let b = store.token("b", &BOTH, &["team-b"]).await;
    let (a, b) = (store.client(1, &a, "team-a").await, store.client(2, &b, "team-b").await);
    a.put("own", &[1; 3 << 20], Way::Tcp).await;
    // The object of team b needs the memory of the other.
    b.put("secret-name", &[2; 3 << 20], Way::Tcp).await;
    let names = |stat: Stat| stat.namespaces.into_iter().map(|it| it.name).collect::<Vec<_>>();
    assert_eq!(
        (names(stat(&a).await), names(stat(&b).await)),
        (vec!["team-a".into()], vec!["team-b".into()])
    );
    let explain = Explain { keys: vec![key("own"), key("secret-name")], report_wait_ms: 60_000 };
    let Reply::Why(why) = a.ask(ClientToMaster::Why(explain)).await else { panic!() };
    assert!(matches!(&why[0], Why::Gone(gone) if gone.for_key.is_none() && gone.by.is_empty()), "{why:?}");
    assert_eq!(why[1], Why::Unknown);
    let wrong = Hello { namespace: "team-b".to_owned(), ..a.hello.clone() };
    let error = Raw::connect(store.master.address(), wrong).await.map(|_| ()).unwrap_err();
    assert_eq!(refused(&error), Some(Reason::Forbidden), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_reveal_nothing_of_other_namespaces() {
    let store = Walled::start().await;
    let a = store.token("a", &BOTH, &["team-a"]).await;
    let b = store.token("b", &BOTH, &["team-b"]).await;
    let all = store.token("all", &[Right::Read], &[]).await;
    store.client(1, &a, "team-a").await.put("of-a", b"1", Way::Tcp).await;
    store.client(2, &b, "team-b").await.put("of-b", b"2", Way::Tcp).await;
    let pages = store.master.http_address().unwrap();
    let ask = async |method: &str, path: &str, token: &str| {
        http(pages, method, path, &format!("Authorization: Bearer {token}\r\n"), "").await
    };
    for path in
        ["/metrics", "/api/tiffin/snapshot", "/api/tiffin/events", "/api/tiffin/live", "/metrics/summary"]
    {
        assert_eq!(ask("GET", path, &a).await.0, 403, "{path}");
    }
    assert_eq!(ask("GET", "/metrics", &all).await.0, 200);
    assert_eq!(ask("GET", "/metrics", "wrong").await.0, 401);
    let keys = ask("GET", "/get_all_keys", &a).await.1;
    assert!(keys.contains("of-a") && !keys.contains("of-b"), "{keys}");
    for path in ["/query_key?key=of-b", "/query_key?key=of-b&namespace=team-b"] {
        assert_eq!(ask("GET", path, &a).await.0, 404, "{path}");
    }
    let why = ask("GET", "/api/tiffin/why?key=of-b&namespace=team-b", &a).await;
    assert!(why.1.contains("no client has used the namespace"), "{why:?}");
    assert_eq!(ask("POST", "/api/v1/remove_all", &all).await.0, 403);
    let removed = ask("POST", "/api/v1/remove_all", &a).await.1;
    assert!(removed.contains("\"removed_count\":1"), "{removed}");
    assert!(ask("GET", "/get_all_keys", &b).await.1.contains("of-b"));
}

#[tokio::test(flavor = "multi_thread")]
async fn client_ids_belong_to_their_token_and_nodes_need_a_right() {
    let store = Walled::start().await;
    let a = store.token("a", &BOTH, &[]).await;
    let b = store.token("b", &BOTH, &[]).await;
    let victim = store.client(1, &a, "default").await;
    let place = victim.place("k", 8, Way::Tcp).await;
    let thief = Hello { token: b.clone(), ..victim.hello.clone() };
    let info = store.info();
    for address in [store.master.address().clone(), info.tcp.parse().unwrap()] {
        for role in [Role::Client, Role::Lane] {
            let hello = Hello { role, lane: 1, ..thief.clone() };
            let error = Connection::open(&address, hello, soon()).await.map(|_| ()).unwrap_err();
            assert_eq!(refused(&error), Some(Reason::Forbidden), "{error}");
        }
    }
    let attached = shm::attach(&info.memory, info.segment.0, 1, &b, soon()).await;
    assert!(attached.is_err_and(|it| it.to_string().contains("another token")));
    let identity = Identity { client: 1, segment: info.segment.0, token: b.clone() };
    let tcp = Tcp::new(info.data.clone(), identity, Default::default());
    let bytes = [9; 8];
    let at = place.reservation.location;
    let sources = vec![tiffin_transport::SourceBuf::from(&bytes[..])];
    let op = tiffin_transport::WriteOp { slot: at.slot.0, stamp: at.stamp.0, offset: 0, sources };
    let outcome = tcp.write(std::slice::from_ref(&op), soon()).await.remove(0);
    assert!(outcome.is_err_and(|it| it.to_string().contains("another token")));
    place.write(b"own data").await;
    assert!(matches!(place.commit("k", 8).await, CommitOutcome::Stored(_)));
    for (role, home) in [(Role::Node, info.segment), (Role::Ledger, info.segment), (Role::Node, SegmentId(5))]
    {
        let hello = Hello { role, home: Some(home), token: a.clone(), ..Hello::default() };
        let error = Connection::open(store.master.address(), hello, soon()).await.map(|_| ()).unwrap_err();
        assert_eq!(refused(&error), Some(Reason::Forbidden), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn revoked_token_loses_its_connections_and_others_stay() {
    let store = Walled::start().await;
    let a = store.token("a", &BOTH, &[]).await;
    let b = store.token("b", &BOTH, &[]).await;
    let (a, b) = (store.client(1, &a, "default").await, store.client(2, &b, "default").await);
    b.put("k", b"value", Way::Tcp).await;
    let at = location(&b, "k").await;
    let (info, token) = (store.info(), a.hello.token.clone());
    let identity = Identity { client: 1, segment: info.segment.0, token: token.clone() };
    let tcp = Tcp::new(info.data.clone(), identity, Default::default());
    let read = async || {
        let mut bytes = [0; 5];
        let targets = vec![TargetBuf::from(&mut bytes[..])];
        let op = ReadOp { slot: at.slot.0, stamp: at.stamp.0, offset: 0, targets };
        tcp.read(std::slice::from_ref(&op), soon()).await.remove(0)
    };
    assert_eq!(read().await, Ok(()));
    let (node, _) = Connection::open(&info.tcp.parse().unwrap(), a.hello.clone(), soon()).await.unwrap();
    let mut live = TcpStream::connect(store.master.http_address().unwrap().to_string()).await.unwrap();
    let request =
        format!("GET /api/tiffin/live HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n");
    live.write_all(request.as_bytes()).await.unwrap();
    let mut shown = Vec::new();
    while !shown.ends_with(b"\n\n\r\n") {
        shown.push(live.read_u8().await.unwrap());
    }
    AccessFile::revoke(&store.path, "a").unwrap();
    until("the connections are closed", || a.master.is_closed() && node.is_closed()).await;
    let error = Raw::connect(store.master.address(), a.hello.clone()).await.map(|_| ()).unwrap_err();
    assert_eq!(refused(&error), Some(Reason::Unauthenticated), "{error}");
    // The node may read the file later than the master: its connection above was closed, so it has.
    assert!(read().await.is_err(), "the open data connection serves nothing");
    assert!(!b.master.is_closed());
    // The page sends no further snapshot, but the end of its body.
    let mut end = [0; 5];
    live.read_exact(&mut end).await.unwrap();
    while &end != b"0\r\n\r\n" {
        end.rotate_left(1);
        end[4] = live.read_u8().await.unwrap();
    }
    assert_eq!(b.get("k", Way::Tcp).await.as_deref(), Some(&b"value"[..]));
}
