//! Several masters on a stand-in for etcd: enough of its JSON gateway for an election. `make test-ha` runs
//! the same with real etcd and processes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::post;
use serde_json::{Value, json};
use tiffin_etcd::leader::Keys;
use tiffin_rpc::{Address, CallError, Connection, Masters};
use tiffin_server::config::HaConfig;
use tiffin_server::{MasterConfig, MasterServer, NodeConfig, NodeServer};
use tiffin_types::message::{CommitOutcome, Hello, MemberToMaster, Policy, Reason, Register, Reply, Role};
use tiffin_types::saved::{Saved, SavedPolicy};

use crate::support::*;

const LEADER: &str = "/tiffin/c/leader";
/// The lease of another leader.
const OTHER: &str = "1000000";

/// Keys with value, revision and lease; leases with their length, and whether their owner is silent. No clock
/// takes part: a lease is as good as new until a test says otherwise.
#[derive(Default)]
struct Kept {
    revision: i64,
    keys: BTreeMap<String, (String, i64, String)>,
    leases: BTreeMap<String, (i64, bool)>,
    granted: u64,
    /// Nothing is answered.
    is_deaf: bool,
}

type Shared = Arc<Mutex<Kept>>;

struct StandIn {
    kept: Shared,
    address: String,
}

impl StandIn {
    async fn start() -> Self {
        let kept = Shared::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let router = Router::new().route("/v3/{kind}/{call}", post(answer)).with_state(Arc::clone(&kept));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { kept, address }
    }

    async fn master(&self) -> MasterServer {
        let (etcd, access) = (self.address.clone(), Default::default());
        let ha = HaConfig { etcd, access, cluster: "c".to_owned(), advertise: None };
        start_master(MasterConfig { ha: Some(ha), http: Some(any_port()), ..MasterConfig::default() }).await
    }

    fn masters(&self) -> Masters {
        format!("etcd://{}/c", self.address).parse().unwrap()
    }

    /// Another master takes the record.
    fn usurp(&self) {
        let mut kept = self.kept.lock().unwrap();
        kept.revision += 1;
        let revision = kept.revision;
        let value = base64(r#"{"epoch":99999999,"id":"other","addresses":["127.0.0.1:1"]}"#);
        kept.leases.insert(OTHER.to_owned(), (5, false));
        kept.keys.insert(LEADER.to_owned(), (value, revision, OTHER.to_owned()));
    }

    /// Another master has saved its state, with a quota.
    fn save(&self, quota: u64) {
        let policy = Policy { quota: Some(quota), ..Policy::default() };
        let policies = vec![SavedPolicy { namespace: "default".to_owned(), policy }];
        let state = tiffin_proto::encode_state(&Saved { policies, ..Saved::default() }).unwrap();
        let head = format!(r#"{{"generation":9,"chunks":1,"bytes":{}}}"#, state.len());
        let (keys, mut kept) = (Keys::new("c").unwrap(), self.kept.lock().unwrap());
        for (key, value) in [(keys.head(), head.as_bytes()), (keys.chunk(9, 0), &state)] {
            kept.revision += 1;
            let revision = kept.revision;
            kept.keys.insert(key, (base64(value), revision, "0".to_owned()));
        }
    }

    /// The state that the last leader has saved, if it is small.
    fn saved(&self) -> Saved {
        use base64::Engine;
        let (keys, kept) = (Keys::new("c").unwrap(), self.kept.lock().unwrap());
        let (_, (state, ..)) =
            kept.keys.range(keys.states()..).find(|(key, _)| **key != keys.head()).unwrap();
        tiffin_proto::decode_state(&base64::prelude::BASE64_STANDARD.decode(state).unwrap()).unwrap()
    }

    /// The leader prolongs its lease no more, and that was long ago.
    fn silence(&self) {
        let mut kept = self.kept.lock().unwrap();
        let lease = kept.keys[LEADER].2.clone();
        kept.leases.get_mut(&lease).unwrap().1 = true;
    }
}

async fn answer(
    State(kept): State<Shared>,
    Path((kind, call)): Path<(String, String)>,
    body: String,
) -> String {
    let body: Value = serde_json::from_str(&body).unwrap();
    if kept.lock().unwrap().is_deaf {
        std::future::pending::<()>().await;
    }
    let mut kept = kept.lock().unwrap();
    let id = body["ID"].as_str().unwrap_or_default().to_owned();
    let answer = match (kind.as_str(), call.as_str()) {
        ("kv", "txn") => kept.txn(&body),
        ("lease", "grant") => {
            kept.granted += 1;
            let id = kept.granted.to_string();
            let ttl = body["TTL"].as_str().unwrap().parse().unwrap();
            kept.leases.insert(id.clone(), (ttl, false));
            json!({"ID": id, "TTL": body["TTL"]})
        }
        ("lease", "keepalive") => match kept.leases.get(&id) {
            Some((ttl, _)) => json!({"result": {"ID": id, "TTL": ttl.to_string()}}),
            None => json!({"result": {"ID": id}}),
        },
        ("lease", "timetolive") => match kept.leases.get(&id) {
            Some((ttl, is_silent)) => {
                let left = if *is_silent { 0 } else { ttl - 1 };
                json!({"ID": id, "TTL": left.to_string(), "grantedTTL": ttl.to_string()})
            }
            None => json!({"ID": id, "TTL": "-1"}),
        },
        ("lease", "revoke") => {
            kept.leases.remove(&id);
            // Keys end with their lease.
            kept.keys.retain(|_, (_, _, lease)| *lease != id);
            json!({})
        }
        other => panic!("{other:?}"),
    };
    answer.to_string()
}

impl Kept {
    fn txn(&mut self, body: &Value) -> Value {
        let revision_of = |key: &str| self.keys.get(key).map_or(0, |it| it.1);
        let compares = body["compare"].as_array().unwrap();
        let slot_refs = compares
            .iter()
            .all(|it| revision_of(&text(&it["key"])).to_string() == it["mod_revision"].as_str().unwrap());
        let ops = body[if slot_refs { "success" } else { "failure" }].as_array().unwrap().clone();
        let writes = ops.iter().any(|it| it["request_range"].is_null());
        self.revision += i64::from(writes);
        let mut responses = Vec::new();
        for op in ops {
            if let Some(put) = op["request_put"].as_object() {
                let value = put["value"].as_str().unwrap().to_owned();
                let lease = put["lease"].as_str().unwrap().to_owned();
                self.keys.insert(text(&put["key"]), (value, self.revision, lease));
                responses.push(json!({"response_put": {}}));
            } else if let Some(delete) = op["request_delete_range"].as_object() {
                let (from, to) = (text(&delete["key"]), text(&delete["range_end"]));
                self.keys.retain(|key, _| *key < from || *key >= to);
                responses.push(json!({"response_delete_range": {}}));
            } else {
                let key = &op["request_range"]["key"];
                let found = self.keys.get(&text(key)).map(|(value, revision, lease)| {
                    json!({"key": key, "value": value, "mod_revision": revision.to_string(), "lease": lease})
                });
                responses.push(json!({"response_range": {"kvs": found.into_iter().collect::<Vec<_>>()}}));
            }
        }
        let header = json!({"revision": self.revision.to_string()});
        json!({"header": header, "succeeded": slot_refs, "responses": responses})
    }
}

fn any_port() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

/// The text of a base64 value.
fn text(value: &Value) -> String {
    use base64::Engine;
    let bytes = base64::prelude::BASE64_STANDARD.decode(value.as_str().unwrap()).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn base64(text: impl AsRef<[u8]>) -> String {
    use base64::Engine;
    base64::prelude::BASE64_STANDARD.encode(text)
}

async fn leads(master: &MasterServer) {
    until("it leads", || master.epoch() > 0).await;
}

async fn node(etcd: &StandIn) -> NodeServer {
    let config = NodeConfig { master: etcd.masters(), memory: 4 << 20, ..NodeConfig::default() };
    let node = NodeServer::start(config).await.unwrap();
    node.joined(soon()).await.unwrap();
    node
}

#[tokio::test(flavor = "multi_thread")]
async fn standby_takes_over_with_everything() {
    let etcd = StandIn::start().await;
    let first = etcd.master().await;
    leads(&first).await;
    let second = etcd.master().await;
    // A standby refuses everybody, and names the leader.
    let refused = Connection::open(second.address(), hello(1), soon()).await.unwrap_err();
    let CallError::Refused(refusal) = refused else { panic!("{refused:?}") };
    assert_eq!(refusal.reason, Reason::Standby);
    while !get(second.http_address().unwrap(), "/leader").await.1.contains(&first.address().to_string()) {
        tokio::task::yield_now().await;
    }
    let (status, page) = get(second.http_address().unwrap(), "/ready").await;
    assert_eq!(status, 503, "{page}");
    assert!(page.contains("standby"), "{page}");
    assert_eq!(get(second.http_address().unwrap(), "/role").await.1, "standby");

    let _node = node(&etcd).await;
    let client = Raw::connect(first.address(), hello(1)).await.unwrap();
    let outcome = client.put("k", b"bytes", Way::Tcp).await;
    assert!(matches!(outcome, CommitOutcome::Stored(_)), "{outcome:?}");
    let epoch = first.epoch();
    // It ends without a word, as if it were killed.
    drop(first);
    etcd.silence();
    leads(&second).await;
    assert!(second.epoch() > epoch);
    let client = Raw::connect(second.address(), hello(1)).await.unwrap();
    assert_eq!(client.get("k", Way::Tcp).await.as_deref(), Some(&b"bytes"[..]));
    assert_eq!(client.get("other", Way::Tcp).await, None);
    let (_, page) = get(second.http_address().unwrap(), "/metrics").await;
    assert!(page.contains("tiffin_leader 1") && page.contains("tiffin_elections_won_total 1"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn replaced_leader_answers_nothing_about_names() {
    let etcd = StandIn::start().await;
    let master = etcd.master().await;
    leads(&master).await;
    let _node = node(&etcd).await;
    let client = Raw::connect(master.address(), hello(1)).await.unwrap();
    assert_eq!(client.get("k", Way::Tcp).await, None);
    etcd.usurp();
    // The question arrives after another master has taken over. It is not answered: the connection ends.
    let resolve = tiffin_types::message::Resolve { keys: vec![key("k")], ..Default::default() };
    let request = tiffin_types::message::ClientToMaster::Resolve(resolve);
    let answer = client.master.call(&request, soon()).await;
    assert!(matches!(answer, Err(CallError::Lost { .. })), "{answer:?}");
    until("it stands by", || master.epoch() == 0).await;
    loop {
        let (_, page) = get(master.http_address().unwrap(), "/leader").await;
        assert!(!page.contains(&master.address().to_string()), "it does not lead: {page}");
        if page.contains("127.0.0.1:1\"") {
            break;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_that_is_cut_off_steps_down_and_returns() {
    let etcd = StandIn::start().await;
    let master = etcd.master().await;
    leads(&master).await;
    let epoch = master.epoch();
    let _node = node(&etcd).await;
    let client = Raw::connect(master.address(), hello(1)).await.unwrap();
    let outcome = client.put("k", b"bytes", Way::Tcp).await;
    assert!(matches!(outcome, CommitOutcome::Stored(_)), "{outcome:?}");
    etcd.kept.lock().unwrap().is_deaf = true;
    // What says nothing of names is still answered; the rest waits, and ends with the connection.
    assert_eq!(
        client.ask(tiffin_types::message::ClientToMaster::Ping(Default::default())).await,
        Reply::Done
    );
    until("it stands by", || master.epoch() == 0).await;
    etcd.kept.lock().unwrap().is_deaf = false;
    leads(&master).await;
    assert!(master.epoch() > epoch);
    let client = Raw::connect(master.address(), hello(1)).await.unwrap();
    assert_eq!(client.get("k", Way::Tcp).await.as_deref(), Some(&b"bytes"[..]));
}

/// A member has served a later epoch, so the leader must take a greater one. Before it can, it steps down,
/// another master saves its state, and this one leads again.
#[tokio::test(flavor = "multi_thread")]
async fn late_restart_keeps_the_state_of_another_leader() {
    let etcd = StandIn::start().await;
    let master = etcd.master().await;
    leads(&master).await;
    let floor = master.epoch() + 1000;
    let register = async || {
        let hello = Hello { role: Role::Node, ..hello(9) };
        let (connection, _) = Connection::open(master.address(), hello, soon()).await.unwrap();
        let register = Register { epoch: floor, instance: 1, ..Register::default() };
        connection.call(&MemberToMaster::Register(Box::new(register)), soon()).await
    };
    etcd.kept.lock().unwrap().is_deaf = true;
    let lost = register().await;
    assert!(matches!(lost, Err(CallError::Lost { .. })), "{lost:?}");
    until("it stands by", || master.epoch() == 0).await;
    etcd.save(1 << 30);
    etcd.kept.lock().unwrap().is_deaf = false;
    leads(&master).await;
    // The next restart begins when the first one has ended.
    let _lost = register().await;
    until("it has a greater epoch", || master.epoch() > floor).await;
    let saved = etcd.saved();
    assert!(saved.policies.iter().any(|it| it.policy.quota == Some(1 << 30)), "{saved:?}");
}
