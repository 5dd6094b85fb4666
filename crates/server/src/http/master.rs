//! The master's pages, with Mooncake's paths and shapes where it has them.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;
use serde_json::{Value, json};
use tiffin_core::message::{
    Found, List, NodeInfo, Pattern, Reason, Refusal, Reply, Resolve, ResolveOutcome, Resolved,
};
use tiffin_core::{BATCH_ITEMS_MAX, Key, Location, NAMESPACE_DEFAULT};

use super::{guarded, json as answer, text};
use crate::master::Shared;
use crate::metrics::allocated;

/// The most bytes that the list of all keys may have.
const LIST_BYTES_MAX: usize = 256 << 20;
/// Keys per look at the catalog: others wait meanwhile.
const PAGE_KEYS: u32 = 1 << 14;

/// Mooncake's codes for what can go wrong here.
const INVALID: i32 = -600;
/// See [`INVALID`].
const ABSENT: i32 = -704;
/// See [`INVALID`].
const UNAVAILABLE: i32 = -703;
/// See [`INVALID`].
const INTERNAL: i32 = -1;

type Server = State<Arc<Shared>>;

#[derive(Deserialize)]
struct Names {
    #[serde(default)]
    key: String,
    #[serde(default)]
    keys: String,
    #[serde(default)]
    segment: String,
}

/// Every page of the master.
pub(crate) fn router(shared: Arc<Shared>, token: &str) -> Router {
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/metrics/summary", get(async |State(it): Server| text(StatusCode::OK, it.summary())))
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/role", get(async || text(StatusCode::OK, "leader")))
        .route("/ha_status", get(async || text(StatusCode::OK, "serving")))
        .route("/leader", get(leader))
        .route("/get_all_segments", get(all_segments))
        .route("/get_segments_detail", get(segments_detail))
        .route("/query_segment", get(query_segment))
        .route("/get_all_keys", get(all_keys))
        .route("/query_key", get(query_key))
        .route("/batch_query_keys", get(batch_query_keys))
        .with_state(shared);
    guarded(router, token)
}

async fn metrics(State(shared): Server) -> Response {
    let header = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (header, shared.metrics()).into_response()
}

/// That the master lives, whether or not it is ready.
async fn health(State(shared): Server) -> Response {
    if let Some(failure) = shared.failure() {
        return answer(StatusCode::INTERNAL_SERVER_ERROR, &failed(&failure));
    }
    let awaited = shared.awaited();
    let value = json!({
        "status": "ok", "role": "leader", "ha_state": "serving", "service_ready": awaited.is_empty(),
        "leader_address": null, "view_version": null, "awaited": awaited,
    });
    answer(StatusCode::OK, &value)
}

/// Whether every member has reported and the state folder can be written, so that no answer waits for that.
async fn ready(State(shared): Server) -> Response {
    if let Some(failure) = shared.failure() {
        return answer(StatusCode::SERVICE_UNAVAILABLE, &failed(&failure));
    }
    let awaited = shared.awaited();
    let status = if awaited.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    answer(status, &json!({"ready": awaited.is_empty(), "awaited": awaited}))
}

fn failed(failure: &str) -> Value {
    json!({"status": "failed", "ready": false, "service_ready": false, "failure": failure})
}

/// There is one master, and no election.
async fn leader() -> Response {
    let value = json!({"present": false, "leader_address": null, "view_version": null});
    answer(StatusCode::OK, &value)
}

async fn all_segments(State(shared): Server) -> Response {
    let stat = shared.stat();
    // Disks are no segments: who asks wants to know where there is memory.
    let segments = stat.nodes.iter().filter(|node| node.alive && node.info.beside.is_none());
    let names = segments.map(|node| format!("{}\n", node.info.name));
    text(StatusCode::OK, names.collect::<String>())
}

async fn segments_detail(State(shared): Server) -> Response {
    let stat = shared.stat();
    let nodes = stat.nodes.iter().map(|node| {
        json!({
            "name": node.info.name, "segment": node.info.segment.to_string(), "alive": node.alive,
            "capacity": node.usage.capacity, "used": allocated(&node.usage), "free": node.usage.free,
            "granted": node.usage.granted, "committed": node.usage.committed, "held": node.usage.held,
            "metadata": node.usage.metadata,
            "objects": node.usage.objects, "owed": node.owed, "requests": node.info.tcp,
            "bytes": node.info.data, "disk": node.info.beside.is_some(),
        })
    });
    answer(StatusCode::OK, &Value::Array(nodes.collect()))
}

async fn query_segment(State(shared): Server, Query(names): Query<Names>) -> Response {
    let stat = shared.stat();
    match stat.nodes.iter().find(|node| node.info.name == names.segment) {
        Some(node) => {
            let (used, capacity) = (allocated(&node.usage), node.usage.capacity);
            let name = &node.info.name;
            text(StatusCode::OK, format!("{name}\nUsed(bytes): {used}\nCapacity(bytes): {capacity}\n"))
        }
        // As Mooncake answers: neither JSON nor "not found".
        None => text(StatusCode::INTERNAL_SERVER_ERROR, "Failed to query segment"),
    }
}

async fn all_keys(State(shared): Server) -> Response {
    let mut lines = Vec::new();
    let mut cursor = 0;
    loop {
        // The lock is released between the pages, so that a large store goes on working meanwhile.
        let list =
            List { pattern: Pattern::All, pinned_by: None, cursor, limit: PAGE_KEYS, report_wait_ms: 0 };
        let listed = match shared.list(NAMESPACE_DEFAULT, &list) {
            Reply::Listed(listed) => listed,
            Reply::Refused(refusal) => return refused(&refusal),
            _ => return problem(INTERNAL, "the keys could not be listed"),
        };
        for item in &listed.items {
            lines.extend_from_slice(item.key.as_bytes());
            lines.push(b'\n');
        }
        if lines.len() > LIST_BYTES_MAX {
            return problem(
                INTERNAL,
                "there are too many keys for one page; `tiffin ls` lists them in pieces",
            );
        }
        if listed.cursor == 0 {
            return text(StatusCode::OK, lines);
        }
        cursor = listed.cursor;
        tokio::task::yield_now().await;
    }
}

async fn query_key(State(shared): Server, Query(names): Query<Names>) -> Response {
    if names.key.is_empty() {
        return problem(ABSENT, "OBJECT_NOT_FOUND");
    }
    let resolved = match resolve(&shared, &[&names.key]) {
        Ok(resolved) => resolved,
        Err(refusal) => return refused(&refusal),
    };
    let nodes = by_segment(&resolved);
    match resolved.items.first() {
        Some(ResolveOutcome::Found(found)) => {
            let lines = descriptors(found, &nodes, false).into_iter().map(|line| format!("{line}\n"));
            text(StatusCode::OK, lines.collect::<String>())
        }
        Some(ResolveOutcome::Unavailable(_)) => problem(UNAVAILABLE, "REPLICA_IS_NOT_READY"),
        Some(ResolveOutcome::Absent) | None => problem(ABSENT, "OBJECT_NOT_FOUND"),
    }
}

async fn batch_query_keys(State(shared): Server, Query(names): Query<Names>) -> Response {
    let keys: Vec<_> = names.keys.split(',').filter(|key| !key.is_empty()).collect();
    if keys.len() > BATCH_ITEMS_MAX {
        return problem(INVALID, &format!("at most {BATCH_ITEMS_MAX} keys can be asked at once"));
    }
    if keys.is_empty() {
        let error = "No keys provided. Use ?keys=key1,key2,...";
        return answer(StatusCode::BAD_REQUEST, &json!({"success": false, "error": error}));
    }
    let resolved = match resolve(&shared, &keys) {
        Ok(resolved) => resolved,
        Err(refusal) => return refused(&refusal),
    };
    let nodes = by_segment(&resolved);
    let mut data = serde_json::Map::new();
    for (key, outcome) in keys.iter().zip(&resolved.items) {
        let none = Vec::<Value>::new();
        let value = match outcome {
            ResolveOutcome::Found(found) => json!({
                "ok": true, "error": null, "values": descriptors(found, &nodes, false), "disk_values": none,
                "local_disk_values": descriptors(found, &nodes, true), "nof_values": none,
            }),
            ResolveOutcome::Absent => missing("OBJECT_NOT_FOUND"),
            ResolveOutcome::Unavailable(_) => missing("REPLICA_IS_NOT_READY"),
        };
        data.insert((*key).to_owned(), value);
    }
    answer(StatusCode::OK, &json!({"success": true, "data": data}))
}

/// Looks keys up. That is no use of them: nothing is leased, counted or moved.
fn resolve(shared: &Shared, keys: &[&str]) -> Result<Resolved, Refusal> {
    let invalid = |message: String| Refusal { reason: Reason::Invalid, message };
    let keys = keys.iter().map(|key| Key::new(key.as_bytes())).collect::<Result<Vec<_>, _>>();
    let keys = keys.map_err(|error| invalid(error.to_string()))?;
    let resolve = Resolve { keys, touch: false, lease: false, locate: true, ..Resolve::default() };
    match shared.resolve(NAMESPACE_DEFAULT, &resolve) {
        Reply::Resolved(resolved) => Ok(resolved),
        Reply::Refused(refusal) => Err(refusal),
        _ => Err(invalid("the keys could not be looked up".to_owned())),
    }
}

/// What the master does not answer: a key that is not known yet is neither absent nor invalid.
fn refused(refusal: &Refusal) -> Response {
    if refusal.reason != Reason::Unavailable {
        return problem(INVALID, &refusal.message);
    }
    let message = &refusal.message;
    let value = json!({"success": false, "error_code": UNAVAILABLE, "error_message": message});
    answer(StatusCode::SERVICE_UNAVAILABLE, &value)
}

fn by_segment(resolved: &Resolved) -> BTreeMap<u64, &NodeInfo> {
    resolved.nodes.iter().map(|node| (node.segment.0, node)).collect()
}

/// Where each replica in memory lies, or each on a disk, in the shape of Mooncake's buffer descriptors. An
/// address in a node's memory means nothing outside it, so the slot and its stamp stand for it.
fn descriptors(found: &Found, nodes: &BTreeMap<u64, &NodeInfo>, on_disk: bool) -> Vec<Value> {
    let describe = |location: &Location| {
        let node = nodes.get(&location.segment.0);
        let endpoint = node.map(|it| if it.data.is_empty() { &it.name } else { &it.data });
        json!({
            "size_": found.len, "buffer_address_": 0, "protocol_": "tcp", "transport_endpoint_": endpoint,
            "segment_name_": node.map(|it| &it.name), "slot": location.slot.0, "stamp": location.stamp.0,
        })
    };
    let is_on_disk = |it: &&Location| nodes.get(&it.segment.0).is_some_and(|node| node.beside.is_some());
    found.replicas.iter().filter(|it| is_on_disk(it) == on_disk).map(describe).collect()
}

fn missing(error: &str) -> Value {
    json!({
        "ok": false, "error": error, "values": null, "disk_values": null, "local_disk_values": null,
        "nof_values": null,
    })
}

fn problem(code: i32, message: &str) -> Response {
    let status = match code {
        INVALID => StatusCode::BAD_REQUEST,
        ABSENT => StatusCode::NOT_FOUND,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    answer(status, &json!({"success": false, "error_code": code, "error_message": message}))
}
