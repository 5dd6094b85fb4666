//! The pages of a master, over real sockets.

use crate::support::{http as support_http, *};
use serde_json::{Value, json};
use tiffin_proto::encode_state;
use tiffin_rpc::Address;
use tiffin_server::{MasterConfig, MasterServer, NodeConfig, NodeServer};
use tiffin_types::SegmentId;
use tiffin_types::message::{ClientToMaster, PolicyChange, Reply};
use tiffin_types::saved::{Saved, SavedMember};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

struct Cluster {
    master: MasterServer,
    node: NodeServer,
    client: Raw,
    http: Address,
}

async fn get_json(address: &Address, path: &str) -> (u16, Value) {
    let (status, text) = get(address, path).await;
    (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{path}: {text}")))
}

async fn cluster() -> Cluster {
    let http = Some("127.0.0.1:0".parse().unwrap());
    let master = start_master(MasterConfig { http, ..MasterConfig::default() }).await;
    let node =
        start_node(master.address(), NodeConfig { name: "node one".into(), ..NodeConfig::default() }).await;
    let client = Raw::connect(master.address(), hello(1)).await.unwrap();
    let http = master.http_address().unwrap().clone();
    Cluster { master, node, client, http }
}

/// Sends bytes to the pages, and reads what they answer, or a part of it if they wait for more.
async fn exchange(address: &Address, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address.to_string()).await.unwrap();
    // The server may close the connection at any time.
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let (mut answer, mut stream) = (Vec::new(), stream.take(1 << 20));
    let read = stream.read_to_end(&mut answer);
    let _ = tokio::time::timeout_at(soon(), read).await.expect("the connection is closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn mutated_requests_end_a_connection_at_most() {
    const REQUESTS: usize = 1500;
    let Cluster { master: _master, node: _node, client, http } = cluster().await;
    client.put("k", b"value", Way::Tcp).await;
    let head = |line: &str, rest: &str| format!("{line} HTTP/1.1\r\nHost: h\r\n{rest}\r\n").into_bytes();
    let body = "{\"name\": \"a\", \"quota\": 1048576}";
    let length = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
    let post = |path: &str| [head(&format!("POST {path}"), &length), body.into()].concat();
    let seeds = [
        head("GET /api/tiffin/why?key=k%2f&namespace=default", "Authorization: Bearer x\r\n"),
        head("GET /batch_query_keys?keys=k,l", "Connection: close\r\n"),
        head("GET /query_key?key=k", "Accept: application/json\r\nCookie: session=1\r\n"),
        head("GET /query_segment?segment=node%20one", ""),
        head("GET /metrics", "Accept-Encoding: gzip\r\n"),
        post("/login"),
        post("/api/v1/tenant_quotas"),
        post("/api/v1/drain_jobs"),
    ];
    let mut mutator = tiffin_smoke::Mutator::new("http", &seeds);
    for _ in 0..REQUESTS {
        exchange(&http, &mutator.next_input()).await;
    }
    assert_eq!(get(&http, "/health").await.0, 200);
    assert_eq!(client.get("k", Way::Tcp).await.as_deref(), Some(&b"value"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_show_state_and_counts() {
    let Cluster { master, node, client, http } = cluster().await;
    client.put("k", &[1; 5000], Way::Tcp).await;
    assert!(client.get("k", Way::Tcp).await.is_some());
    assert!(client.get("nothing", Way::Tcp).await.is_none());
    client.delete("nothing").await;
    until("the node reported its usage", || {
        master.stat().nodes.iter().any(|node| node.usage.committed == 5056)
    })
    .await;
    let (status, page) = get(&http, "/metrics").await;
    assert_eq!(status, 200);
    let capacity = node.usage().capacity;
    let free = capacity - 5056;
    for expected in [
        "master_allocated_bytes 5056".to_owned(),
        format!("master_total_capacity_bytes {capacity}"),
        "segment_allocated_bytes{segment=\"node one\"} 5056".to_owned(),
        format!("segment_total_capacity_bytes{{segment=\"node one\"}} {capacity}"),
        "master_key_count 1".to_owned(),
        "master_soft_pin_key_count 0".to_owned(),
        "master_active_clients 1".to_owned(),
        "master_put_start_requests_total 1".to_owned(),
        "master_put_start_failures_total 0".to_owned(),
        "master_put_end_requests_total 1".to_owned(),
        "master_get_replica_list_requests_total 2".to_owned(),
        "master_get_replica_list_failures_total 1".to_owned(),
        "master_remove_requests_total 1".to_owned(),
        "master_remove_failures_total 1".to_owned(),
        "master_mount_segment_requests_total 1".to_owned(),
        "master_value_size_bytes_count 1".to_owned(),
        "master_value_size_bytes_sum 5000".to_owned(),
        "master_evicted_key_count 0".to_owned(),
        "mem_cache_hit_nums_ 1".to_owned(),
        "valid_get_rate 0.5".to_owned(),
        format!("tiffin_epoch {}", master.epoch()),
        // The client's connection, and the node's two.
        "tiffin_connections 3".to_owned(),
        "tiffin_node_alive{node=\"node one\",tier=\"memory\"} 1".to_owned(),
        "tiffin_node_owed_retires{node=\"node one\",tier=\"memory\"} 0".to_owned(),
        format!("tiffin_node_bytes{{node=\"node one\",tier=\"memory\",state=\"free\"}} {free}"),
        "tiffin_node_bytes{node=\"node one\",tier=\"memory\",state=\"in_use\"} 5056".to_owned(),
        "tiffin_node_bytes{node=\"node one\",tier=\"memory\",state=\"reserved\"} 0".to_owned(),
        "tiffin_node_bytes{node=\"node one\",tier=\"memory\",state=\"in_view\"} 0".to_owned(),
        "tiffin_namespace_objects{namespace=\"default\"} 1".to_owned(),
        "tiffin_namespace_bytes{namespace=\"default\"} 5000".to_owned(),
    ] {
        assert!(page.lines().any(|line| line == expected), "{expected} is not in\n{page}");
    }
    let (_, summary) = get(&http, "/metrics/summary").await;
    assert!(summary.contains("Keys: 1 ") && summary.contains("Clients: 1 "), "{summary}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_segments_are_listed() {
    let Cluster { master, node, client, http } = cluster().await;
    client.put("k", b"value", Way::Tcp).await;
    client.put("other key/ü", b"value", Way::Tcp).await;
    let mut other = hello(2);
    other.namespace = "elsewhere".to_owned();
    let other = Raw::connect(&client.master.address().clone(), other).await.unwrap();
    other.put("hidden", b"value", Way::Tcp).await;

    let lines = async |path: &str| {
        let (status, text) = get(&http, path).await;
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        assert_eq!(status, 200);
        lines
    };
    client.put("two\nlines", b"value", Way::Tcp).await;
    let all = ["elsewhere\thidden", "k", "other key/\u{fc}", "two\\nlines"];
    assert_eq!(lines("/get_all_keys").await, all);
    assert_eq!(lines("/get_all_keys?namespace=default").await, all[1..]);
    assert_eq!(lines("/get_all_keys?tenant_id=elsewhere").await, ["hidden"]);
    assert_eq!(lines("/get_all_keys?namespace=nowhere").await, Vec::<String>::new());
    assert_eq!(get(&http, "/get_all_segments").await, (200, "node one\n".to_owned()));
    let (status, text) = get(&http, "/query_segment?segment=node%20one").await;
    let lines: Vec<_> = text.lines().collect();
    let capacity = node.usage().capacity;
    assert_eq!((status, lines.first(), lines.len()), (200, Some(&"node one"), 3));
    assert!(
        text.contains("\nUsed(bytes): ") && text.contains(&format!("\nCapacity(bytes) : {capacity}")),
        "{text}"
    );
    assert_eq!(get(&http, "/query_segment?segment=x").await, (500, "Failed to query segment".to_owned()));

    for (path, namespace) in [
        ("/query_key?key=k", "default"),
        ("/query_key?key=two%0Alines", "default"),
        ("/query_key?key=hidden", "elsewhere"),
        ("/query_key?key=hidden&namespace=elsewhere", "elsewhere"),
    ] {
        let (status, value) = get_json(&http, path).await;
        let place = &value["data"][0];
        assert_eq!((status, &value["success"], &value["namespace"]), (200, &json!(true), &json!(namespace)));
        assert_eq!((&place["size_"], &place["protocol_"]), (&json!(5), &json!("tcp")), "{path}");
        assert_eq!(place["transport_endpoint_"], node.info().data);
    }
    for path in ["/query_key?key=hidden&namespace=default", "/query_key?key=x", "/query_key"] {
        let expected = json!({"success": false, "error_code": -704, "error_message": "OBJECT_NOT_FOUND"});
        assert_eq!(get_json(&http, path).await, (404, expected), "{path}");
    }
    let (status, batch) = get_json(&http, "/batch_query_keys?keys=k,hidden,x").await;
    assert_eq!((status, &batch["success"], &batch["data"]["k"]["ok"]), (200, &json!(true), &json!(true)));
    assert_eq!(batch["data"]["k"]["local_disk_values"], Value::Null);
    assert_eq!(batch["data"]["hidden"]["namespace"], "elsewhere");
    assert_eq!(batch["data"]["x"]["error"], "OBJECT_NOT_FOUND");
    assert_eq!(get(&http, "/batch_query_keys").await.0, 400);
    // A report from before the last commit still counts that object as a reservation.
    let told = || master.stat().nodes.iter().map(|it| it.usage.objects).sum::<u64>() == 4;
    until("the node reported all objects", told).await;
    let (_, detail) = get_json(&http, "/get_segments_detail").await;
    let segment = &detail["segments"][0];
    assert_eq!((&detail["total_segments"], &segment["objects"]), (&json!(1), &json!(4)));
    assert_eq!((&segment["segment_name"], &segment["status"]), (&json!("node one"), &json!("OK")));
    assert_eq!(segment["allocator_capacity_bytes"], capacity);
    for (method, path) in [("GET", "/nothing"), ("POST", "/get_all_keys"), ("GET", "/api/v1/remove_all")] {
        let answer = support_http(&http, method, path, "", "").await;
        assert_eq!(answer, (404, "404 Not Found".to_owned()), "{method} {path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_removed_through_a_page() {
    let Cluster { master: _master, node: _node, client, http } = cluster().await;
    let mut other = hello(2);
    other.namespace = "elsewhere".to_owned();
    let other = Raw::connect(&client.master.address().clone(), other).await.unwrap();
    client.put("a", b"value", Way::Tcp).await;
    client.put("b", b"value", Way::Tcp).await;
    other.put("c", b"value", Way::Tcp).await;
    let post = async |query: &str| {
        let (status, text) = support_http(&http, "POST", &format!("/api/v1/remove_all{query}"), "", "").await;
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((status, &value["success"], &value["unconfirmed"]), (200, &json!(true), &json!([])));
        value["removed_count"].clone()
    };
    assert_eq!(post("?tenant_id=nowhere").await, 0);
    assert_eq!(post("?tenant_id=elsewhere").await, 1);
    assert!(client.get("a", Way::Tcp).await.is_some() && other.get("c", Way::Tcp).await.is_none());
    other.put("d", b"value", Way::Tcp).await;
    assert_eq!(post("?force=true").await, 3);
    assert_eq!(get(&http, "/get_all_keys").await, (200, String::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_have_quotas() {
    let http = Some("127.0.0.1:0".parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("quotas.yaml");
    let tenant_file = Some(file.clone());
    std::fs::write(&file, "version: 1\ntenants:\n- {name: old, quota: 77}\n").unwrap();
    let config = MasterConfig { http, tenants: true, tenant_file, ..MasterConfig::default() };
    let master = start_master(config).await;
    let _node = start_node(master.address(), NodeConfig::default()).await;
    let http = master.http_address().unwrap().clone();
    let ask = async |method: &str, query: &str, body: &str| {
        let path = format!("/api/v1/tenant_quotas{query}");
        let (status, text) = support_http(&http, method, &path, "", body).await;
        let value: Value = serde_json::from_str(&text).unwrap();
        let code = value.get("error_code").and_then(Value::as_i64).unwrap_or_default();
        (status, code, value["data"].clone())
    };
    assert_eq!(ask("GET", "", "").await.2[0]["requested_quota_bytes"], 77);
    assert_eq!(ask("DELETE", "?tenant_id=old", "").await.0, 200);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "version: 1\n\ntenants: []\n");
    assert_eq!(ask("GET", "", "").await, (200, 0, json!([])));
    for (query, body) in [
        ("", "{\"requested_quota_bytes\": 5}"),
        ("?tenant_id=_a", "{\"requested_quota_bytes\": 5}"),
        ("?tenant_id=a%0A", "{\"requested_quota_bytes\": 5}"),
        ("?tenant_id=a", "{\"requested_quota_bytes\": 0}"),
        ("?tenant_id=a", "{\"requested_quota_bytes\": 9223372036854775808}"),
        ("?tenant_id=a", "{\"requested_quota_bytes\": -1}"),
        ("?tenant_id=a", "{}"),
        ("?tenant_id=a", "{"),
    ] {
        let (status, code, _) = ask("PUT", query, body).await;
        assert_eq!((status, code), (400, -600), "{query} {body}");
    }
    let long = format!("?tenant_id={}", "t".repeat(129));
    assert_eq!(ask("PUT", &long, "{\"requested_quota_bytes\": 5}").await.0, 400);
    let (status, _, tenant) = ask("PUT", "?tenant_id=a", "{\"requested_quota_bytes\": 100000}").await;
    let expected = json!({
        "tenant_id": "a", "requested_quota_bytes": 100_000, "effective_quota_bytes": 100_000,
        "charged_bytes": 0, "admission_closed": false, "over_quota": false, "has_explicit_policy": true,
    });
    assert_eq!((status, &tenant), (200, &expected));
    let written = "version: 1\n\ntenants:\n  - name: \"a\"\n    quota: 100000\n";
    assert_eq!(std::fs::read_to_string(&file).unwrap(), written);
    assert_eq!(ask("GET", "?tenant_id=a", "").await, (200, 0, expected));

    let mut tenant = hello(2);
    tenant.namespace = "a".to_owned();
    let client = Raw::connect(&master.address().clone(), tenant).await.unwrap();
    client.put("k", b"value", Way::Tcp).await;
    assert_eq!(ask("DELETE", "?tenant_id=a", "").await.1, -1702);
    client.delete("k").await;
    assert_eq!(ask("DELETE", "?tenant_id=a", "").await, (200, 0, Value::Null));
    assert_eq!(ask("DELETE", "?tenant_id=a", "").await.1, -704);
    assert_eq!(ask("GET", "?tenant_id=a", "").await.1, -704);
}

#[tokio::test(flavor = "multi_thread")]
async fn segment_status_is_shown() {
    let cluster = cluster().await;
    let http = cluster.http.clone();
    let expected = json!({
        "success": true, "segment": "node one", "status": 1, "status_name": "OK", "error_code": 0,
        "error_message": "",
    });
    assert_eq!(get_json(&http, "/api/v1/segments/status?segment=node%20one").await, (200, expected));
    for (path, status, code) in [
        ("/api/v1/segments/status?segment=x", 404, -101),
        ("/api/v1/segments/status", 400, -600),
        ("/api/v1/tenant_quotas", 409, -1011),
    ] {
        let (found, value) = get_json(&http, path).await;
        assert_eq!((found, &value["error_code"]), (status, &json!(code)), "{path}");
    }
    assert_eq!(get_json(&http, "/kv_events/status").await.1["enabled"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_role_are_shown() {
    let cluster = cluster().await;
    let http = cluster.http.clone();
    let (status, text) = get(&http, "/health").await;
    let health: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &health["status"], &health["role"]), (200, &json!("ok"), &json!("leader")));
    assert_eq!((&health["ha_state"], &health["service_ready"]), (&json!("serving"), &json!(true)));
    assert_eq!(get(&http, "/role").await, (200, "leader".to_owned()));
    assert_eq!(get(&http, "/ha_status").await, (200, "serving".to_owned()));
    assert!(get(&http, "/leader").await.1.contains("\"present\":false"));
}

#[tokio::test(flavor = "multi_thread")]
async fn master_is_ready_when_every_member_has_reported() {
    let folder = tempfile::tempdir().unwrap();
    let config = MasterConfig {
        http: Some("127.0.0.1:0".parse().unwrap()),
        state_dir: Some(folder.path().to_owned()),
        ..MasterConfig::default()
    };
    let pages = async |master: &MasterServer| {
        let http = master.http_address().unwrap().clone();
        let (ready, health) = (get(&http, "/ready").await, get(&http, "/health").await);
        let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        (ready.0, value(&ready.1), health.0, value(&health.1)["service_ready"].clone())
    };
    let master = start_master(config.clone()).await;
    let ready = json!({"ready": true, "awaited": []});
    assert_eq!(pages(&master).await, (200, ready, 200, json!(true)), "a new store waits for no member");
    master.shutdown().await;
    // An earlier master knew a node that does not return, so that the test does not depend on timing.
    let member = SavedMember { segment: SegmentId(7), name: "one".to_owned(), ..SavedMember::default() };
    let saved = Saved { epoch: 1, members: vec![member], ..Saved::default() };
    std::fs::write(folder.path().join("state"), encode_state(&saved).unwrap()).unwrap();
    let master = start_master(config).await;
    let awaited = json!({"ready": false, "awaited": ["one"]});
    assert_eq!(pages(&master).await, (503, awaited, 200, json!(false)), "it runs, and is not ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn master_that_cannot_save_is_not_ready() {
    let folder = tempfile::tempdir().unwrap();
    let state_dir = folder.path().join("state");
    let config = MasterConfig {
        http: Some("127.0.0.1:0".parse().unwrap()),
        state_dir: Some(state_dir.clone()),
        ..MasterConfig::default()
    };
    let master = start_master(config).await;
    let http = master.http_address().unwrap().clone();
    assert_eq!(get(&http, "/ready").await.0, 200);
    std::fs::remove_dir_all(&state_dir).unwrap();
    // A policy is answered when it is saved.
    let client = Raw::connect(master.address(), hello(1)).await.unwrap();
    let setting = tokio::spawn(async move {
        let change = PolicyChange { quota: Some(1 << 20), ..PolicyChange::default() };
        client.master.call(&ClientToMaster::SetPolicy(change), soon()).await
    });
    let deadline = soon();
    let not_ready = loop {
        let (status, text) = get(&http, "/ready").await;
        if status != 200 {
            break (status, text);
        }
        assert!(Instant::now() < deadline, "the failing state folder is never reported");
    };
    assert_eq!(not_ready.0, 503);
    assert!(not_ready.1.contains("which is not writable"), "{}", not_ready.1);
    assert_eq!(get(&http, "/health").await.0, 200, "it runs");
    std::fs::create_dir(&state_dir).unwrap();
    assert_eq!(setting.await.unwrap().unwrap(), Reply::Done);
    assert_eq!(get(&http, "/ready").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_health_is_served_without_the_token() {
    let address: Address = "127.0.0.1:0".parse().unwrap();
    let master = start_master(MasterConfig {
        http: Some(address.clone()),
        metadata_http: Some(address),
        token: "secret".to_owned(),
        ..MasterConfig::default()
    })
    .await;
    for http in [master.http_address().unwrap(), master.metadata_http_address().unwrap()] {
        assert_eq!(get(http, "/health").await.0, 200);
        for (header, expected) in [
            ("", 401),
            ("Authorization: Bearer Secret\r\n", 401),
            ("Authorization: Basic secret\r\n", 401),
            ("Authorization: secret\r\n", 401),
            ("Authorization: bearer secret\r\n", 404),
        ] {
            let path = "/metadata?key=x";
            assert_eq!(crate::support::http(http, "GET", path, header, "").await.0, expected, "{header}");
        }
    }
    let header = "Authorization: Bearer secret\r\n";
    assert_eq!(http(master.http_address().unwrap(), "GET", "/metrics", header, "").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn health_without_the_token_names_nothing() {
    let http = Some("127.0.0.1:0".parse().unwrap());
    let config = MasterConfig { http, token: "secret".to_owned(), ..MasterConfig::default() };
    let master = start_master(config).await;
    let ask = async |header: &str| -> Value {
        let (status, text) =
            crate::support::http(master.http_address().unwrap(), "GET", "/health", header, "").await;
        assert_eq!(status, 200);
        serde_json::from_str(&text).unwrap()
    };
    let expected = json!({"status": "ok", "role": "leader", "ha_state": "serving", "service_ready": true});
    assert_eq!(ask("").await, expected);
    assert_eq!(ask("Authorization: Bearer wrong\r\n").await, expected);
    assert_eq!(ask("Authorization: Bearer secret\r\n").await["awaited"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_sites_change_nothing_without_a_token() {
    let cluster = cluster().await;
    let path = "/api/v1/remove_all?force=true";
    let post = async |header: &str| crate::support::http(&cluster.http, "POST", path, header, "").await;
    let (status, text) = post("Origin: https://evil.example\r\n").await;
    assert!(status == 403 && text.contains("hint: "), "{text}");
    assert_eq!(post("Origin: http://localhost\r\n").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_endpoint_behaves_like_mooncakes() {
    let metadata_http = Some("127.0.0.1:0".parse().unwrap());
    let master = start_master(MasterConfig { metadata_http, ..MasterConfig::default() }).await;
    let address = master.metadata_http_address().unwrap();
    for (method, path, body, expected) in [
        ("GET", "/metadata", "", (400, "Missing key parameter")),
        ("GET", "/metadata?key=mooncake/ram/a", "", (404, "metadata not found")),
        ("PUT", "/metadata?key=mooncake%2Fram%2Fa", "{\"a\": 1}", (200, "metadata updated")),
        ("PUT", "/metadata?key=mooncake/ram/a", "{\"a\": 2}", (200, "metadata updated")),
        ("GET", "/metadata?key=mooncake/ram/a", "", (200, "{\"a\": 2}")),
        ("PUT", "/metadata?key=mooncake/rpc_meta/a", "1", (200, "metadata updated")),
        ("PUT", "/metadata?key=mooncake/rpc_meta/a", "1", (200, "metadata unchanged")),
        ("PUT", "/metadata?key=mooncake/rpc_meta/a", "2", (400, "Duplicate rpc_meta key not allowed")),
        ("DELETE", "/metadata?key=mooncake/rpc_meta/a", "", (200, "metadata deleted")),
        ("DELETE", "/metadata?key=mooncake/rpc_meta/a", "", (404, "metadata not found")),
        ("DELETE", "/metadata", "", (400, "Missing key parameter")),
        ("GET", "/health", "", (200, "OK")),
        ("POST", "/metadata?key=a", "", (404, "404 Not Found")),
    ] {
        let (status, text) = http(address, method, path, "", body).await;
        assert_eq!((status, text.as_str()), expected, "{method} {path}");
    }
    let (status, _) = http(address, "PUT", "/metadata?key=large", "", &"x".repeat((1 << 20) + 1)).await;
    assert_eq!(status, 413);
}
