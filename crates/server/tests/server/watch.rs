//! The page at `/` and what it reads: snapshots, streams, events, explanations, sessions.

use serde_json::{Value, json};
use tiffin_rpc::Address;
use tiffin_server::{HTTP_STREAMS_MAX, MasterConfig, MasterServer, NodeConfig};
use tiffin_types::message::{ClientToMaster, Measured, Ping, PolicyChange, Reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout_at;

use crate::support::*;

async fn start(token: &str) -> (MasterServer, Address) {
    let http = Some("127.0.0.1:0".parse().unwrap());
    let config = MasterConfig { http, token: token.to_owned(), ..MasterConfig::default() };
    let master = start_master(config).await;
    let http = master.http_address().unwrap().clone();
    (master, http)
}

async fn get_json(address: &Address, path: &str) -> Value {
    let (status, text) = get(address, path).await;
    assert_eq!(status, 200, "{path}: {text}");
    serde_json::from_str(&text).unwrap()
}

/// Sends a request and returns its connection, for responses that do not end.
async fn begin(address: &Address, path: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address.to_string()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Reads until the text has arrived.
async fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    while !text.contains(wanted) {
        let read = timeout_at(soon(), stream.read(&mut buffer)).await.expect("nothing arrives").unwrap();
        assert!(read > 0, "the stream has ended: {text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshot_shows_nodes_namespaces_and_events() {
    let (master, http) = start("").await;
    // Names of others are data, never markup.
    let name = "<script>alert(1)</script>";
    let node = start_node(master.address(), NodeConfig { name: name.into(), ..NodeConfig::default() }).await;
    let client = Raw::connect(master.address(), hello(1)).await.unwrap();
    client.put("k", &[1; 5000], Way::Tcp).await;
    let measured = vec![Measured { operation: 1, path: 2, counts: vec![4], sum_us: 4, bytes: 64 }];
    assert_eq!(client.ask(ClientToMaster::Ping(Ping { measured })).await, Reply::Done);
    let quota = ClientToMaster::SetPolicy(PolicyChange::NONE.quota(Some(6000)));
    assert_eq!(client.ask(quota).await, Reply::Done);
    client.reserve("too large", 7000).await;
    let seen = get_json(&http, "/api/tiffin/snapshot").await;
    assert_eq!((&seen["nodes"][0]["name"], &seen["nodes"][0]["state"]), (&json!(name), &json!("ok")));
    assert_eq!(seen["nodes"][0]["tier"], "memory");
    let namespace = &seen["namespaces"][0];
    assert_eq!((&namespace["objects"], &namespace["quota"]), (&json!(1), &json!(6000)));
    assert_eq!((&seen["ready"], &seen["leads"], &seen["clients"]), (&json!(true), &json!(true), &json!(1)));
    let kinds: Vec<_> =
        seen["events"].as_array().unwrap().iter().map(|it| it["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["master_started", "member_ready", "quota_reached"]);
    assert_eq!(seen["events"][2]["subject"], "default");
    // Events after a number.
    let later = get_json(&http, "/api/tiffin/events?after=2").await;
    assert_eq!((later["events"].as_array().unwrap().len(), &later["more"]), (1, &json!(false)));
    // Numbers of another journal, from before a restart, mean nothing here.
    let journal = later["journal"].as_str().unwrap();
    for (journal, expected) in [(journal, 1), ("1", 3)] {
        let found = get_json(&http, &format!("/api/tiffin/events?after=2&journal={journal}")).await;
        assert_eq!(found["events"].as_array().unwrap().len(), expected, "{journal}");
    }
    let metrics = get(&http, "/metrics").await.1;
    for expected in [
        "tiffin_client_call_seconds_count{operation=\"get\",path=\"shared_memory\"} 4",
        "tiffin_puts_over_quota_total 1",
        "tiffin_namespace_quota_bytes{namespace=\"default\"} 6000",
        "tiffin_events_total{kind=\"quota_reached\"} 1",
    ] {
        assert!(metrics.lines().any(|line| line == expected), "{expected} is not in\n{metrics}");
    }
    assert!(metrics.contains("tiffin_request_seconds_count{operation=\"reserve\"} 2"), "{metrics}");
    drop(node);
}

#[tokio::test(flavor = "multi_thread")]
async fn node_reports_its_transfers_with_its_heartbeat() {
    let http = Some("127.0.0.1:0".parse().unwrap());
    let silence = std::time::Duration::from_millis(400);
    let master = start_master(MasterConfig { http, silence, ..MasterConfig::default() }).await;
    let http = master.http_address().unwrap().clone();
    let node = start_node(master.address(), NodeConfig { name: "n".into(), ..NodeConfig::default() }).await;
    let client = Raw::connect(master.address(), hello(1)).await.unwrap();
    client.put("k", &[1; 5000], Way::Tcp).await;
    assert!(client.get("k", Way::Tcp).await.is_some());
    let deadline = soon();
    let wanted = ["write", "read"].map(|it| {
        format!("tiffin_node_transferred_bytes_total{{node=\"n\",operation=\"{it}\",path=\"tcp\"}} 5000")
    });
    loop {
        let metrics = get(&http, "/metrics").await.1;
        if wanted.iter().all(|it| metrics.contains(it)) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{wanted:?} are not in\n{metrics}");
    }
    drop(node);
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_sends_snapshots_and_is_limited() {
    let (_master, http) = start("").await;
    let mut first = begin(&http, "/api/tiffin/live", "").await;
    let head = read_until(&mut first, "\r\n\r\n").await;
    assert!(head.contains("text/event-stream"), "{head}");
    // The first snapshot comes at once, another one later without a request.
    let text = read_until(&mut first, "}\n\n").await;
    let more = read_until(&mut first, "}\n\n").await;
    for snapshot in [text, more] {
        let data = &snapshot[snapshot.find("data: ").unwrap() + 6..];
        let seen: Value = serde_json::from_str(data.split("\n\n").next().unwrap()).unwrap();
        assert_eq!(seen["ready"], true);
    }
    let mut open = Vec::new();
    for _ in 1..HTTP_STREAMS_MAX {
        let mut stream = begin(&http, "/api/tiffin/live", "").await;
        read_until(&mut stream, "data: ").await;
        open.push(stream);
    }
    let (status, text) = get(&http, "/api/tiffin/live").await;
    assert!(status == 503 && text.contains("hint: "), "{status} {text}");
    assert_eq!(get(&http, "/health").await.0, 200);
    open.clear();
    let deadline = soon();
    loop {
        let mut stream = begin(&http, "/api/tiffin/live", "Connection: close\r\n").await;
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        if &head == b"HTTP/1.1 200" {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "the limit is never free again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn token_opens_a_session_that_may_only_read() {
    let (_master, address) = start("secret").await;
    let (status, page) = get(&address, "/").await;
    assert_eq!(status, 200);
    assert!(page.contains("<title>tiffin</title>") && !page.contains("secret") && !page.contains("NONCE"));
    for path in ["/api/tiffin/snapshot", "/api/tiffin/live", "/api/tiffin/events", "/api/tiffin/why?key=k"] {
        assert_eq!(get(&address, path).await.0, 401, "{path}");
    }
    for (body, expected) in [("", 401), ("Secret", 401), (&*"x".repeat(5000), 401), ("secret", 204)] {
        assert_eq!(http(&address, "POST", "/login", "", body).await.0, expected, "{body}");
    }
    let mut stream = TcpStream::connect(address.to_string()).await.unwrap();
    let request =
        "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsecret";
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = read_until(&mut stream, "\r\n\r\n").await;
    let cookie = head.lines().find_map(|it| it.strip_prefix("set-cookie: ")).unwrap();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    assert!(!cookie.contains("secret"), "{cookie}");
    let cookie = format!("Cookie: other=1; {}\r\n", cookie.split(';').next().unwrap());
    let ask = async |method: &str, path: &str| http(&address, method, path, &cookie, "").await.0;
    assert_eq!(ask("GET", "/api/tiffin/snapshot").await, 200);
    assert_eq!(ask("GET", "/metrics").await, 200);
    assert_eq!(ask("POST", "/api/v1/remove_all").await, 401, "a session may only read");
    let wrong = "Cookie: tiffin_session=0123\r\n";
    assert_eq!(http(&address, "GET", "/api/tiffin/snapshot", wrong, "").await.0, 401);
    assert_eq!(ask("POST", "/logout").await, 204);
    assert_eq!(ask("GET", "/api/tiffin/snapshot").await, 401);
    let header = "Authorization: Bearer secret\r\n";
    assert_eq!(http(&address, "GET", "/api/tiffin/snapshot", header, "").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_explained_as_text() {
    let (master, http) = start("").await;
    let node = start_node(master.address(), NodeConfig { name: "n".into(), ..NodeConfig::default() }).await;
    let client = Raw::connect(master.address(), hello(1)).await.unwrap();
    client.put("a<b>", &[1; 50], Way::Tcp).await;
    let why = async |query: &str| get(&http, &format!("/api/tiffin/why?{query}")).await;
    let (status, text) = why("key=a%3Cb%3E").await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(status, 200);
    assert!(answer["text"].as_str().unwrap().starts_with("`a<b>` exists: generation "), "{answer}");
    let (_, text) = why("key=nothing").await;
    assert!(text.contains("`nothing` is unknown"), "{text}");
    let before = get_json(&http, "/api/tiffin/snapshot").await["namespaces"].clone();
    let (_, text) = why("key=k&namespace=nowhere").await;
    assert!(text.contains("no client has used the namespace"), "{text}");
    let after = get_json(&http, "/api/tiffin/snapshot").await["namespaces"].clone();
    assert_eq!(
        before.as_array().unwrap().len(),
        after.as_array().unwrap().len(),
        "a question creates nothing"
    );
    for query in ["", "key=", "key=k&namespace="] {
        assert_eq!(why(query).await.0, 400, "{query}");
    }
    let long = format!("key=k&namespace={}", "x".repeat(200));
    assert_eq!(why(&long).await.0, 400);
    drop(node);
}
