//! Mooncake's administration below `/api/v1`, and the form of its errors.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::json;
use tiffin_core::message::{ClientToMaster, DeleteMatching, Pattern, Reason, Refusal, Reply};

use super::json as answer;
use super::master::{Names, Server, status};
use crate::master::Shared;

/// Mooncake's codes for what can go wrong here.
pub(super) const INVALID: i32 = -600;
/// See [`INVALID`].
pub(super) const ABSENT: i32 = -704;
/// See [`INVALID`].
pub(super) const NOT_READY: i32 = -703;
/// See [`INVALID`].
pub(super) const INTERNAL: i32 = -1;
/// See [`INVALID`].
const NO_SEGMENT: i32 = -101;
/// See [`INVALID`].
const WRONG_MODE: i32 = -1011;

/// How long a removal waits for nodes to confirm it.
const CONFIRM_WAIT_MS: u64 = 5_000;

/// Which objects to remove.
#[derive(Deserialize)]
struct Removal {
    #[serde(default)]
    force: String,
    #[serde(default)]
    tenant_id: String,
}

/// The pages that change something.
pub(super) fn router() -> Router<Arc<Shared>> {
    let quotas = get(without_tenants).put(without_tenants).delete(without_tenants);
    Router::new()
        .route("/api/v1/segments/status", get(segment_status))
        .route("/api/v1/remove_all", post(remove_all))
        .route("/api/v1/tenant_quotas", quotas)
}

async fn segment_status(State(shared): Server, Query(names): Query<Names>) -> Response {
    if names.segment.is_empty() {
        return problem(INVALID, "Missing segment query parameter");
    }
    let stat = shared.stat();
    let Some(node) = stat.nodes.iter().find(|node| node.info.name == names.segment) else {
        return problem(NO_SEGMENT, "SEGMENT_NOT_FOUND");
    };
    let (number, name) = status(node);
    let value = json!({
        "success": true, "segment": names.segment, "status": number, "status_name": name,
        "error_code": 0, "error_message": "",
    });
    answer(StatusCode::OK, &value)
}

/// Removes the objects of one namespace, or of all.
async fn remove_all(State(shared): Server, Query(removal): Query<Removal>) -> Response {
    let force = matches!(removal.force.as_str(), "true" | "1");
    let mut names = shared.namespaces();
    names.retain(|name| removal.tenant_id.is_empty() || *name == removal.tenant_id);
    let (mut count, mut unconfirmed) = (0, Vec::new());
    for namespace in names {
        let delete = DeleteMatching { pattern: Pattern::All, force, wait_ms: CONFIRM_WAIT_MS };
        match shared.ask(&namespace, ClientToMaster::DeleteMatching(delete)).await {
            Reply::DeletedMatching(deleted) => {
                count += deleted.count;
                unconfirmed.extend(deleted.unconfirmed);
            }
            Reply::Refused(refusal) => return refused(&refusal),
            _ => return problem(INTERNAL, "the objects could not be removed"),
        }
    }
    unconfirmed.sort_unstable();
    unconfirmed.dedup();
    let value = json!({"success": true, "removed_count": count, "unconfirmed": unconfirmed});
    answer(StatusCode::OK, &value)
}

/// A master without `--enable_multi_tenants` has no quotas for them.
async fn without_tenants() -> Response {
    problem(WRONG_MODE, "UNAVAILABLE_IN_CURRENT_MODE")
}

/// What the master does not answer: a key that is not known yet is neither absent nor invalid.
pub(super) fn refused(refusal: &Refusal) -> Response {
    if refusal.reason != Reason::Unavailable {
        return problem(INVALID, &refusal.message);
    }
    let message = &refusal.message;
    let value = json!({"success": false, "error_code": NOT_READY, "error_message": message});
    answer(StatusCode::SERVICE_UNAVAILABLE, &value)
}

/// An error, with the status that Mooncake has for its code.
pub(super) fn problem(code: i32, message: &str) -> Response {
    let status = match code {
        INVALID => StatusCode::BAD_REQUEST,
        ABSENT | NO_SEGMENT => StatusCode::NOT_FOUND,
        WRONG_MODE => StatusCode::CONFLICT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    answer(status, &json!({"success": false, "error_code": code, "error_message": message}))
}
