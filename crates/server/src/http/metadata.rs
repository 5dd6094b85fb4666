//! The key-value endpoint `/metadata`, through which Mooncake's clients discover each other.
//!
//! Tiffin's own clients do not use it. Its entries are in memory only, within the limits below.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::{Bytes, to_bytes};
use axum::extract::{Query, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;

use super::guard::guarded;
use super::{not_found, text};
use crate::access::Access;

/// The maximum number of entries.
pub(crate) const ENTRIES_MAX: usize = 1 << 16;
/// The maximum length of a key, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 4 << 10;
/// The maximum length of a value, in bytes.
pub(crate) const VALUE_BYTES_MAX: usize = 1 << 20;
/// The maximum length of all keys and values together, in bytes.
pub(crate) const TOTAL_BYTES_MAX: usize = 256 << 20;
/// Keys that contain this identify a client, and are never overwritten.
const IDENTITY_MARK: &str = "rpc_meta";

#[derive(Default)]
struct Entries {
    by_key: BTreeMap<String, Bytes>,
    bytes: usize,
}

#[derive(Clone, Default)]
struct Store(Arc<Mutex<Entries>>);

#[derive(Deserialize)]
struct Which {
    #[serde(default)]
    key: String,
}

/// The endpoint with an empty store behind it.
pub(crate) fn router(access: &Arc<Access>) -> Router {
    let router = Router::new()
        .route("/metadata", get(read).put(write).delete(remove))
        .route("/health", get(async || text(StatusCode::OK, "OK")))
        .fallback(not_found)
        .method_not_allowed_fallback(not_found)
        .with_state(Store::default());
    guarded(router, access)
}

async fn read(State(store): State<Store>, Query(which): Query<Which>) -> Response {
    if which.key.is_empty() {
        return text(StatusCode::BAD_REQUEST, "Missing key parameter");
    }
    match store.lock().by_key.get(&which.key) {
        Some(value) => ([(header::CONTENT_TYPE, "application/json")], value.clone()).into_response(),
        None => text(StatusCode::NOT_FOUND, "metadata not found"),
    }
}

async fn write(State(store): State<Store>, Query(which): Query<Which>, request: Request) -> Response {
    let Ok(value) = to_bytes(request.into_body(), VALUE_BYTES_MAX).await else {
        let most = format!("the value has more than {VALUE_BYTES_MAX} bytes");
        return text(StatusCode::PAYLOAD_TOO_LARGE, most);
    };
    match store.lock().put(which.key, value) {
        Ok(what) => text(StatusCode::OK, what),
        Err((status, why)) => text(status, why),
    }
}

async fn remove(State(store): State<Store>, Query(which): Query<Which>) -> Response {
    if which.key.is_empty() {
        return text(StatusCode::BAD_REQUEST, "Missing key parameter");
    }
    if store.lock().remove(&which.key) {
        text(StatusCode::OK, "metadata deleted")
    } else {
        text(StatusCode::NOT_FOUND, "metadata not found")
    }
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        // The lock is held for one operation; a panic leaves no partial state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    /// Stores an entry. Returns the text of the response.
    fn put(&mut self, key: String, value: Bytes) -> Result<&'static str, (StatusCode, String)> {
        if key.is_empty() {
            return Err((StatusCode::BAD_REQUEST, "Missing key parameter".to_owned()));
        }
        if key.len() > KEY_BYTES_MAX {
            return Err((StatusCode::BAD_REQUEST, format!("a key must have 1 to {KEY_BYTES_MAX} bytes")));
        }
        let old = self.by_key.get(&key);
        if key.contains(IDENTITY_MARK) && old.is_some_and(|old| *old != value) {
            return Err((StatusCode::BAD_REQUEST, "Duplicate rpc_meta key not allowed".to_owned()));
        }
        if key.contains(IDENTITY_MARK) && old.is_some() {
            return Ok("metadata unchanged");
        }
        let old_bytes = old.map_or(0, |old| key.len() + old.len());
        let is_new = old.is_none();
        let bytes = self.bytes - old_bytes + key.len() + value.len();
        if bytes > TOTAL_BYTES_MAX || (is_new && self.by_key.len() >= ENTRIES_MAX) {
            return Err((StatusCode::INSUFFICIENT_STORAGE, "the metadata limit is reached".to_owned()));
        }
        self.bytes = bytes;
        self.by_key.insert(key, value);
        Ok("metadata updated")
    }

    fn remove(&mut self, key: &str) -> bool {
        let Some(value) = self.by_key.remove(key) else { return false };
        self.bytes -= key.len() + value.len();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_bounded_and_identities_are_not_overwritten() {
        let mut entries = Entries::default();
        let status = |result: Result<&'static str, (StatusCode, String)>| {
            result.map_err(|(status, _)| status.as_u16())
        };
        let (updated, unchanged) = ("metadata updated", "metadata unchanged");
        for (key, value, expected) in [
            ("", "x", Err(400)),
            ("mooncake/ram/a", "one", Ok(updated)),
            ("mooncake/ram/a", "two", Ok(updated)),
            ("mooncake/rpc_meta/a", "one", Ok(updated)),
            ("mooncake/rpc_meta/a", "one", Ok(unchanged)),
            ("mooncake/rpc_meta/a", "two", Err(400)),
        ] {
            assert_eq!(status(entries.put(key.to_owned(), value.into())), expected, "{key} = {value}");
        }
        assert_eq!(entries.bytes, "mooncake/ram/atwomooncake/rpc_meta/aone".len());
        assert!(entries.remove("mooncake/rpc_meta/a"));
        assert!(!entries.remove("mooncake/rpc_meta/a"));
        assert_eq!(entries.bytes, "mooncake/ram/atwo".len());
        assert_eq!(status(entries.put("x".repeat(KEY_BYTES_MAX + 1), Bytes::new())), Err(400));
        let large = Bytes::from(vec![0; TOTAL_BYTES_MAX]);
        assert_eq!(status(entries.put("large".to_owned(), large)), Err(507));
        for number in entries.by_key.len()..ENTRIES_MAX {
            assert_eq!(status(entries.put(format!("{number}"), Bytes::new())), Ok(updated));
        }
        assert_eq!(status(entries.put("one more".to_owned(), Bytes::new())), Err(507));
        assert_eq!(status(entries.put("mooncake/ram/a".to_owned(), "three".into())), Ok(updated));
    }
}
