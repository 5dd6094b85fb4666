//! The master's pages, with Mooncake's paths and formats where Mooncake has them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;
use serde_json::{Value, json};
use tiffin_types::message::{
    Found, List, NodeInfo, NodeStat, Pattern, Reason, Refusal, Reply, Resolve, ResolveOutcome, Resolved,
};
use tiffin_types::{BATCH_ITEMS_MAX, Key, Location, NAMESPACE_DEFAULT};

use super::admin::{self, ABSENT, INTERNAL, INVALID, NOT_READY, problem, refused};
use super::guard::{Caller, guarded_unless};
use super::watch::{self, Sessions};
use super::{Server, json as answer, not_found, text};
use crate::master::Shared;
use crate::metrics::allocated;

/// The maximum length of the list of all keys, in bytes.
const LIST_BYTES_MAX: usize = 256 << 20;
/// The unit of human-readable sizes.
const GIB: f64 = (1_u64 << 30) as f64;
/// Keys per acquisition of the lock. Other requests wait meanwhile.
const PAGE_KEYS: u32 = 1 << 14;

/// The parameters of a query.
#[derive(Deserialize)]
pub(super) struct Names {
    #[serde(default)]
    keys: String,
    #[serde(default)]
    pub(super) segment: String,
    /// Restricts the query to this namespace.
    namespace: Option<String>,
    /// The same, under Mooncake's name.
    pub(super) tenant_id: Option<String>,
}

impl Names {
    /// The namespaces to search: the named one, or all that the caller may read, the default one first. An
    /// unused name gives none.
    fn namespaces(&self, shared: &Shared, caller: &Caller) -> Vec<String> {
        let wanted = self.namespace.as_ref().or(self.tenant_id.as_ref());
        let mut names = shared.namespaces();
        names.retain(|name| caller.covers(name));
        names.retain(|name| wanted.is_none_or(|wanted| wanted == name));
        names.sort_unstable_by_key(|name| (name != NAMESPACE_DEFAULT, name.clone()));
        names
    }

    fn is_one(&self) -> bool {
        self.namespace.is_some() || self.tenant_id.is_some()
    }
}

/// All pages of the master.
pub(crate) fn router(shared: Arc<Shared>) -> Router {
    let (sessions, access) = (Arc::new(Sessions::default()), Arc::clone(shared.access()));
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/metrics/summary", get(async |State(it): Server| text(StatusCode::OK, it.summary())))
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/role", get(async |State(it): Server| text(StatusCode::OK, part(&it).0)))
        .route("/ha_status", get(async |State(it): Server| text(StatusCode::OK, part(&it).1)))
        .route("/leader", get(leader))
        .route("/get_all_segments", get(all_segments))
        .route("/get_segments_detail", get(segments_detail))
        .route("/query_segment", get(query_segment))
        .route("/get_all_keys", get(all_keys))
        .route("/query_key", get(query_key))
        .route("/batch_query_keys", get(batch_query_keys))
        .route("/kv_events/status", get(kv_events_status))
        .merge(admin::router())
        .merge(watch::router(&access, &sessions))
        .fallback(not_found)
        .method_not_allowed_fallback(not_found)
        .with_state(shared);
    guarded_unless(router, &access, move |request| sessions.holder(request))
}

async fn metrics(State(shared): Server) -> Response {
    let header = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (header, shared.metrics()).into_response()
}

/// Whether the master runs; it need not be ready. A request without a token learns no name and no address.
async fn health(State(shared): Server, caller: Caller) -> Response {
    if let Some(failure) = shared.failure() {
        let shown = if caller.is_known() { &*failure } else { "see the log of the master" };
        return answer(StatusCode::INTERNAL_SERVER_ERROR, &failed(shown));
    }
    let awaited = shared.awaited();
    let ((role, state), (address, version)) = (part(&shared), view(&shared));
    if !caller.is_known() {
        let ready = awaited.is_empty();
        let value = json!({"status": "ok", "role": role, "ha_state": state, "service_ready": ready});
        return answer(StatusCode::OK, &value);
    }
    let value = json!({
        "status": "ok", "role": role, "ha_state": state, "service_ready": awaited.is_empty(),
        "leader_address": address, "view_version": version, "awaited": awaited,
    });
    answer(StatusCode::OK, &value)
}

/// Whether every member has reported and the state folder is writable, so that no answer waits for either.
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

/// The leader, if there is an election and it has one.
async fn leader(State(shared): Server) -> Response {
    let (address, version) = view(&shared);
    let value = json!({"present": address.is_some(), "leader_address": address, "view_version": version});
    answer(StatusCode::OK, &value)
}

/// The role of this master and its state, in Mooncake's words.
fn part(shared: &Shared) -> (&'static str, &'static str) {
    match shared.ha_stat() {
        Some((false, _)) => ("standby", "standby"),
        Some((true, _)) | None => ("leader", "serving"),
    }
}

/// The address of the leader and its epoch, if there is an election.
fn view(shared: &Shared) -> (Option<String>, Option<u64>) {
    let leader = shared.ha_stat().and_then(|(_, it)| it.leader);
    let address = leader.as_ref().and_then(|it| it.addresses.first().cloned());
    (address, leader.map(|it| it.epoch))
}

async fn all_segments(State(shared): Server) -> Response {
    let stat = shared.stat();
    // Disks are not listed: Mooncake's segments are memory.
    let is_shown = |node: &&NodeStat| {
        let is_drained = shared.drain_phase(node.info.segment) == Some(true);
        node.alive && node.info.beside.is_none() && !is_drained
    };
    let segments = stat.nodes.iter().filter(is_shown);
    let names = segments.map(|node| format!("{}\n", node.info.name));
    text(StatusCode::OK, names.collect::<String>())
}

async fn segments_detail(State(shared): Server) -> Response {
    let stat = shared.stat();
    let segments = stat.nodes.iter().map(|node| {
        let (used, capacity) = (allocated(&node.usage), node.usage.capacity);
        let id = segment_id(&node.info);
        json!({
            "segment_name": node.info.name, "segment_id": id, "client_id": id, "base_address": "0x0",
            "size_bytes": capacity, "size_human": format!("{:.4} GiB", capacity as f64 / GIB),
            "te_endpoint": node.info.data, "protocol": "tcp", "status": status(&shared, node).1,
            "allocator_used_bytes": used, "allocator_capacity_bytes": capacity,
            "allocator_usage_percent": used as f64 * 100.0 / capacity.max(1) as f64,
            "alive": node.alive, "disk": node.info.beside.is_some(), "free": node.usage.free,
            "granted": node.usage.granted, "committed": node.usage.committed, "held": node.usage.held,
            "metadata": node.usage.metadata, "objects": node.usage.objects, "owed": node.owed,
            "requests": node.info.tcp,
        })
    });
    let segments: Vec<_> = segments.collect();
    answer(StatusCode::OK, &json!({"total_segments": segments.len(), "segments": segments}))
}

/// The number and name of a member's state in Mooncake's list.
pub(super) fn status(shared: &Shared, node: &NodeStat) -> (u32, &'static str) {
    match shared.drain_phase(node.info.segment) {
        _ if !node.alive => (0, "UNDEFINED"),
        Some(false) => (2, "DRAINING"),
        Some(true) => (3, "DRAINED"),
        // The owner of the segment unmounts it, and lets readers finish first.
        None if node.info.beside.is_none() && node.usage.capacity == 0 => (4, "GRACEFULLY_UNMOUNTING"),
        None => (1, "OK"),
    }
}

/// A segment's number in the format of Mooncake's ids.
fn segment_id(node: &NodeInfo) -> String {
    format!("{}-0", node.segment.0)
}

async fn query_segment(State(shared): Server, Query(names): Query<Names>) -> Response {
    let stat = shared.stat();
    match stat.nodes.iter().find(|node| node.info.name == names.segment) {
        Some(node) => {
            let (used, capacity) = (allocated(&node.usage), node.usage.capacity);
            let name = &node.info.name;
            // The space before the second colon is Mooncake's.
            text(StatusCode::OK, format!("{name}\nUsed(bytes): {used}\nCapacity(bytes) : {capacity}\n"))
        }
        // Mooncake answers neither with JSON nor with "not found".
        None => text(StatusCode::INTERNAL_SERVER_ERROR, "Failed to query segment"),
    }
}

/// One key per line. Without a namespace in the query, a key outside the default namespace follows the name
/// of its namespace and a tab. Control characters are escaped, so neither is ambiguous.
async fn all_keys(State(shared): Server, caller: Caller, Query(names): Query<Names>) -> Response {
    let mut lines = String::new();
    for namespace in names.namespaces(&shared, &caller) {
        let prefix = match names.is_one() || namespace == NAMESPACE_DEFAULT {
            true => String::new(),
            false => format!("{}\t", escaped(namespace.as_bytes())),
        };
        let mut cursor = 0;
        loop {
            // The lock is released between pages, so that a large store keeps serving.
            let list =
                List { pattern: Pattern::All, pinned_by: None, cursor, limit: PAGE_KEYS, report_wait_ms: 0 };
            let listed = match shared.list(&namespace, &list).await {
                Reply::Listed(listed) => listed,
                Reply::Refused(refusal) => return refused(&refusal),
                _ => return problem(INTERNAL, "cannot list the keys"),
            };
            for item in &listed.items {
                lines.push_str(&prefix);
                lines.push_str(&escaped(item.key.as_bytes()));
                lines.push('\n');
            }
            if lines.len() > LIST_BYTES_MAX {
                return problem(INTERNAL, "too many keys for one page; `tiffin ls` lists them in batches");
            }
            tokio::task::yield_now().await;
            match listed.cursor {
                0 => break,
                next => cursor = next,
            }
        }
    }
    text(StatusCode::OK, lines)
}

/// Text on one line: control characters and backslashes as in JSON, invalid UTF-8 as `\xff`.
fn escaped(bytes: &[u8]) -> Cow<'_, str> {
    let is_plain = |text: &&str| !text.chars().any(|it| it.is_control() || it == '\\');
    if let Some(plain) = str::from_utf8(bytes).ok().filter(is_plain) {
        return Cow::Borrowed(plain);
    }
    let mut out = String::new();
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\\' => out.push_str("\\\\"),
                it if it.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(it))),
                it => out.push(it),
            }
        }
        chunk.invalid().iter().for_each(|byte| out.push_str(&format!("\\x{byte:02x}")));
    }
    Cow::Owned(out)
}

/// The bytes of the parameter `key`, which need not be UTF-8.
fn raw_key(query: &str) -> Vec<u8> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix("key=")).unwrap_or_default();
    let mut rest = value.as_bytes();
    let mut key = Vec::with_capacity(rest.len());
    let digit = |byte: u8| char::from(byte).to_digit(16);
    loop {
        let (byte, tail) = match *rest {
            [b'%', high, low, ref tail @ ..] => match (digit(high), digit(low)) {
                (Some(high), Some(low)) => ((high * 16 + low) as u8, tail),
                _ => (b'%', rest.get(1..).unwrap_or_default()),
            },
            [b'+', ref tail @ ..] => (b' ', tail),
            [byte, ref tail @ ..] => (byte, tail),
            [] => break,
        };
        key.push(byte);
        rest = tail;
    }
    key
}

async fn query_key(
    State(shared): Server,
    caller: Caller,
    RawQuery(query): RawQuery,
    Query(names): Query<Names>,
) -> Response {
    let key = raw_key(&query.unwrap_or_default());
    let mut worst = (ABSENT, "OBJECT_NOT_FOUND");
    for namespace in names.namespaces(&shared, &caller).iter().filter(|_| !key.is_empty()) {
        let resolved = match resolve(&shared, namespace, &[&key]).await {
            Ok(resolved) => resolved,
            Err(refusal) => return refused(&refusal),
        };
        match resolved.items.first() {
            Some(ResolveOutcome::Found(found)) => {
                let data = descriptors(found, &by_segment(&resolved), false);
                let value = json!({"success": true, "data": data, "namespace": namespace});
                return answer(StatusCode::OK, &value);
            }
            Some(ResolveOutcome::Unavailable(_)) => worst = (NOT_READY, "REPLICA_IS_NOT_READY"),
            Some(ResolveOutcome::Absent) | None => {}
        }
    }
    problem(worst.0, worst.1)
}

async fn batch_query_keys(State(shared): Server, caller: Caller, Query(names): Query<Names>) -> Response {
    let keys: Vec<_> = names.keys.split(',').filter(|key| !key.is_empty()).collect();
    if keys.len() > BATCH_ITEMS_MAX {
        return problem(INVALID, &format!("too many keys: at most {BATCH_ITEMS_MAX} per request"));
    }
    if keys.is_empty() {
        let error = "No keys provided. Use ?keys=key1,key2,...";
        return answer(StatusCode::BAD_REQUEST, &json!({"success": false, "error": error}));
    }
    let mut data: serde_json::Map<_, _> =
        keys.iter().map(|key| ((*key).to_owned(), missing("OBJECT_NOT_FOUND"))).collect();
    // The first namespace that has a key answers for it, and the default one is first.
    let bytes: Vec<_> = keys.iter().map(|key| key.as_bytes()).collect();
    for namespace in names.namespaces(&shared, &caller).iter().rev() {
        let resolved = match resolve(&shared, namespace, &bytes).await {
            Ok(resolved) => resolved,
            Err(refusal) => return refused(&refusal),
        };
        let nodes = by_segment(&resolved);
        for (key, outcome) in keys.iter().zip(&resolved.items) {
            let value = match outcome {
                ResolveOutcome::Found(found) => {
                    let on_disk = Some(descriptors(found, &nodes, true)).filter(|it| !it.is_empty());
                    json!({
                        "ok": true, "error": null, "values": descriptors(found, &nodes, false),
                        "disk_values": null, "local_disk_values": on_disk, "nof_values": null,
                        "namespace": namespace,
                    })
                }
                ResolveOutcome::Absent => continue,
                ResolveOutcome::Unavailable(_) => missing("REPLICA_IS_NOT_READY"),
            };
            data.insert((*key).to_owned(), value);
        }
    }
    answer(StatusCode::OK, &json!({"success": true, "data": data}))
}

async fn kv_events_status(State(shared): Server) -> Response {
    let counted = shared.event_counts();
    let counts = counted.unwrap_or_default();
    let value = json!({
        "enabled": counted.is_some(), "published_batches": counts.batches,
        "published_events": counts.events, "dropped_events": counts.dropped,
        "skipped_unparsed_keys": counts.unparsed,
    });
    answer(StatusCode::OK, &value)
}

/// Resolves keys without side effects: no lease, no count, no promotion.
async fn resolve(shared: &Shared, namespace: &str, keys: &[&[u8]]) -> Result<Resolved, Refusal> {
    let invalid = |message: String| Refusal { reason: Reason::Invalid, message };
    let keys = keys.iter().map(|key| Key::new(key)).collect::<Result<Vec<_>, _>>();
    let keys = keys.map_err(|error| invalid(error.to_string()))?;
    let resolve = Resolve { keys, touch: false, lease: false, locate: true, ..Resolve::default() };
    match shared.resolve(namespace, &resolve).await {
        Reply::Resolved(resolved) => Ok(resolved),
        Reply::Refused(refusal) => Err(refusal),
        _ => Err(invalid("cannot resolve the keys".to_owned())),
    }
}

fn by_segment(resolved: &Resolved) -> BTreeMap<u64, &NodeInfo> {
    resolved.nodes.iter().map(|node| (node.segment.0, node)).collect()
}

/// The replicas in memory, or those on disks, in the format of Mooncake's buffer descriptors. An address in
/// a node's memory is meaningless elsewhere, so that slot and stamp replace it.
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

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn query_names_any_bytes() {
        for (query, key) in [
            ("key=k", &b"k"[..]),
            ("namespace=n&key=two%0Alines&key=x", b"two\nlines"),
            ("key=a+b%2B%c3%bc", "a b+\u{fc}".as_bytes()),
            ("key=%FF%00%fe", b"\xff\0\xfe"),
            ("key=%&x", b"%"),
            ("key=%4", b"%4"),
            ("key=%zz%+1", b"%zz% 1"),
            ("keys=k", b""),
            ("", b""),
        ] {
            assert_eq!(super::raw_key(query), key, "{query}");
        }
    }

    #[test]
    fn keys_stay_on_their_line() {
        let rows: [(&[u8], &str); 6] = [
            (b"plain/key", "plain/key"),
            ("gr\u{fc}n".as_bytes(), "gr\u{fc}n"),
            (b"a\nb\tc\rd", "a\\nb\\tc\\rd"),
            (b"back\\slash", "back\\\\slash"),
            (b"\x1b[31m\0", "\\u001b[31m\\u0000"),
            (b"\xff\xfe!", "\\xff\\xfe!"),
        ];
        for (key, expected) in rows {
            assert_eq!(escaped(key), expected);
        }
    }
}
