//! Mooncake's administration pages below `/api/v1`, and the format of its errors.

use std::sync::Arc;

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::{Value, json};
use tiffin_core::master::QuotaStat;
use tiffin_types::NAMESPACE_BYTES_MAX;
use tiffin_types::message::{ClientToMaster, DeleteMatching, Pattern, PolicyChange, Reason, Refusal, Reply};

use super::drain;
use super::guard::Caller;
use super::master::{Names, status};
use super::{Server, json as answer};
use crate::master::Shared;

/// Mooncake's error codes.
pub(super) const INVALID: i32 = -600;
/// See [`INVALID`].
pub(super) const ABSENT: i32 = -704;
/// See [`INVALID`].
pub(super) const NOT_READY: i32 = -703;
/// See [`INVALID`].
pub(super) const INTERNAL: i32 = -1;
/// See [`INVALID`].
pub(super) const NO_SEGMENT: i32 = -101;
/// See [`INVALID`].
pub(super) const WRONG_STATE: i32 = -1010;
/// See [`INVALID`].
pub(super) const TOO_MANY_JOBS: i32 = -1401;
/// See [`INVALID`].
pub(super) const NO_JOB: i32 = -1402;
/// See [`INVALID`].
const WRONG_MODE: i32 = -1011;
/// See [`INVALID`].
const TENANT_NOT_EMPTY: i32 = -1702;
/// The maximum length of a request's body, in bytes.
pub(super) const BODY_BYTES_MAX: usize = 64 << 10;

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

/// The quota to set.
#[derive(Deserialize)]
struct QuotaRequest {
    requested_quota_bytes: Option<u64>,
}

/// The pages that change state.
pub(super) fn router() -> Router<Arc<Shared>> {
    let quotas = get(tenant_quotas).put(set_tenant_quota).delete(remove_tenant_quota);
    Router::new()
        .route("/api/v1/segments/status", get(segment_status))
        .route("/api/v1/remove_all", post(remove_all))
        .route("/api/v1/tenant_quotas", quotas)
        .merge(drain::router())
}

async fn segment_status(State(shared): Server, Query(names): Query<Names>) -> Response {
    if names.segment.is_empty() {
        return problem(INVALID, "Missing segment query parameter");
    }
    let stat = shared.stat();
    let Some(node) = stat.nodes.iter().find(|node| node.info.name == names.segment) else {
        return problem(NO_SEGMENT, "SEGMENT_NOT_FOUND");
    };
    let (number, name) = status(&shared, node);
    let value = json!({
        "success": true, "segment": names.segment, "status": number, "status_name": name,
        "error_code": 0, "error_message": "",
    });
    answer(StatusCode::OK, &value)
}

/// Removes the objects of one namespace, or of all.
async fn remove_all(State(shared): Server, caller: Caller, Query(removal): Query<Removal>) -> Response {
    let force = matches!(removal.force.as_str(), "true" | "1");
    let mut names = shared.namespaces();
    names.retain(|name| removal.tenant_id.is_empty() || *name == removal.tenant_id);
    names.retain(|name| caller.covers(name));
    let (mut count, mut unconfirmed) = (0, Vec::new());
    for namespace in names {
        let delete = DeleteMatching { pattern: Pattern::All, force, wait_ms: CONFIRM_WAIT_MS };
        match shared.ask(&namespace, ClientToMaster::DeleteMatching(delete)).await {
            Reply::DeletedMatching(deleted) => {
                count += deleted.count;
                unconfirmed.extend(deleted.unconfirmed);
            }
            Reply::Refused(refusal) => return refused(&refusal),
            _ => return problem(INTERNAL, "cannot remove the objects"),
        }
    }
    unconfirmed.sort_unstable();
    unconfirmed.dedup();
    let value = json!({"success": true, "removed_count": count, "unconfirmed": unconfirmed});
    answer(StatusCode::OK, &value)
}

/// The quota of a tenant, and its usage.
async fn tenant_quotas(State(shared): Server, caller: Caller, Query(names): Query<Names>) -> Response {
    if !shared.has_tenants() {
        return without_tenants();
    }
    let mut quotas = shared.quotas();
    quotas.retain(|it| caller.covers(&it.namespace));
    let Some(name) = names.tenant_id else {
        let every: Vec<_> = quotas.iter().map(describe).collect();
        return answer(StatusCode::OK, &json!({"success": true, "data": every}));
    };
    match quotas.iter().find(|it| it.namespace == name) {
        Some(quota) => answer(StatusCode::OK, &json!({"success": true, "data": describe(quota)})),
        None => problem(ABSENT, "OBJECT_NOT_FOUND"),
    }
}

async fn set_tenant_quota(
    State(shared): Server,
    caller: Caller,
    Query(names): Query<Names>,
    request: Request,
) -> Response {
    if !shared.has_tenants() {
        return without_tenants();
    }
    let Some(name) = names.tenant_id.filter(|it| is_tenant(it) && caller.covers(it)) else {
        return problem(INVALID, "Missing or invalid tenant_id");
    };
    let Ok(body) = to_bytes(request.into_body(), BODY_BYTES_MAX).await else {
        return problem(INVALID, &format!("Invalid JSON body: it has more than {BODY_BYTES_MAX} bytes"));
    };
    let wanted: QuotaRequest = match serde_json::from_slice(&body) {
        Ok(wanted) => wanted,
        Err(error) => return problem(INVALID, &format!("Invalid JSON body: {error}")),
    };
    let bytes = wanted.requested_quota_bytes.filter(|it| (1..=i64::MAX as u64).contains(it));
    let Some(bytes) = bytes else {
        return problem(INVALID, "Tenant quota must be in [1, 2^63 - 1] bytes");
    };
    let change = PolicyChange::NONE.quota(Some(bytes));
    match shared.ask(&name, ClientToMaster::SetPolicy(change)).await {
        Reply::Done => {}
        Reply::Refused(refusal) => return refused(&refusal),
        _ => return problem(INTERNAL, "cannot set the quota"),
    }
    if let Err(error) = shared.save_quotas().await {
        return problem(INTERNAL, &error.to_string());
    }
    match shared.quotas().iter().find(|it| it.namespace == name) {
        Some(quota) => answer(StatusCode::OK, &json!({"success": true, "data": describe(quota)})),
        None => problem(ABSENT, "OBJECT_NOT_FOUND"),
    }
}

/// Removes a tenant without objects.
async fn remove_tenant_quota(State(shared): Server, caller: Caller, Query(names): Query<Names>) -> Response {
    if !shared.has_tenants() {
        return without_tenants();
    }
    let Some(name) = names.tenant_id.filter(|it| is_tenant(it) && caller.covers(it)) else {
        return problem(INVALID, "Missing or invalid tenant_id");
    };
    match shared.quotas().iter().find(|it| it.namespace == name && it.requested.is_some()) {
        None => return problem(ABSENT, "OBJECT_NOT_FOUND"),
        Some(quota) if quota.objects > 0 || quota.used > 0 => {
            return problem(TENANT_NOT_EMPTY, "TENANT_NOT_EMPTY");
        }
        Some(_) => {}
    }
    match shared.ask(&name, ClientToMaster::SetPolicy(PolicyChange::NONE.quota(None))).await {
        Reply::Done => match shared.save_quotas().await {
            Ok(()) => answer(StatusCode::OK, &json!({"success": true, "data": null})),
            Err(error) => problem(INTERNAL, &error.to_string()),
        },
        Reply::Refused(refusal) => refused(&refusal),
        _ => problem(INTERNAL, "cannot remove the quota"),
    }
}

fn describe(quota: &QuotaStat) -> Value {
    let effective = quota.effective.unwrap_or_default();
    json!({
        "tenant_id": quota.namespace, "requested_quota_bytes": quota.requested.unwrap_or_default(),
        "effective_quota_bytes": effective, "charged_bytes": quota.used,
        "admission_closed": quota.requested.is_none(), "over_quota": quota.used > effective,
        "has_explicit_policy": quota.requested.is_some(),
    })
}

/// Whether the name is valid for a tenant.
fn is_tenant(name: &str) -> bool {
    let is_short = name.len() <= NAMESPACE_BYTES_MAX;
    !name.is_empty() && is_short && !name.starts_with('_') && !name.chars().any(char::is_control)
}

/// The answer of a master without `--enable_multi_tenants`.
fn without_tenants() -> Response {
    problem(WRONG_MODE, "UNAVAILABLE_IN_CURRENT_MODE")
}

/// The response to a refusal. A key that is unknown until members report is neither absent nor invalid.
pub(super) fn refused(refusal: &Refusal) -> Response {
    if refusal.reason != Reason::Unavailable {
        return problem(INVALID, &refusal.message);
    }
    let message = &refusal.message;
    let value = json!({"success": false, "error_code": NOT_READY, "error_message": message});
    answer(StatusCode::SERVICE_UNAVAILABLE, &value)
}

/// An error, with Mooncake's HTTP status for the code.
pub(super) fn problem(code: i32, message: &str) -> Response {
    let status = match code {
        INVALID => StatusCode::BAD_REQUEST,
        ABSENT | NO_SEGMENT | NO_JOB => StatusCode::NOT_FOUND,
        WRONG_STATE | WRONG_MODE | TENANT_NOT_EMPTY => StatusCode::CONFLICT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    answer(status, &json!({"success": false, "error_code": code, "error_message": message}))
}
