//! Drain jobs: an operator empties segments before their processes stop.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::{Value, json};
use tiffin_core::master::{DrainRefusal, DrainStat, DrainStatus};
use tiffin_types::message::{DrainJob, JobId};

use super::admin::{
    BODY_BYTES_MAX, INTERNAL, INVALID, NO_JOB, NO_SEGMENT, TOO_MANY_JOBS, WRONG_STATE, problem,
};
use super::{Server, json as answer};
use crate::host;
use crate::master::Shared;

/// The number of objects that each segment moves at a time, unless the request says another.
const CONCURRENCY_DEFAULT: u32 = 4;

/// A job to create.
#[derive(Deserialize)]
struct JobRequest {
    #[serde(default)]
    segments: Vec<String>,
    #[serde(default)]
    target_segments: Vec<String>,
    #[serde(default = "default_concurrency")]
    max_concurrency: u32,
}

fn default_concurrency() -> u32 {
    CONCURRENCY_DEFAULT
}

/// Which job.
#[derive(Deserialize)]
struct Which {
    #[serde(default)]
    job_id: String,
}

impl Which {
    fn id(&self) -> Option<JobId> {
        let (first, second) = self.job_id.split_once('-')?;
        Some(JobId { first: first.parse().ok()?, second: second.parse().ok()? })
    }
}

pub(super) fn router() -> Router<Arc<Shared>> {
    Router::new()
        .route("/api/v1/drain_jobs", post(create))
        .route("/api/v1/drain_jobs/query", get(query))
        .route("/api/v1/drain_jobs/cancel", post(cancel))
}

async fn create(State(shared): Server, request: Request) -> Response {
    let Ok(body) = to_bytes(request.into_body(), BODY_BYTES_MAX).await else {
        return problem(INVALID, &format!("Invalid JSON body: it has more than {BODY_BYTES_MAX} bytes"));
    };
    let wanted: JobRequest = match serde_json::from_slice(&body) {
        Ok(wanted) => wanted,
        Err(error) => return problem(INVALID, &format!("Invalid JSON body: {error}")),
    };
    let (Ok(first), Ok(second)) = (host::draw(), host::draw()) else {
        return problem(INTERNAL, "the system has no random numbers");
    };
    let id = JobId { first, second };
    let job = DrainJob {
        id,
        created_ms: now_ms(),
        sources: wanted.segments,
        targets: wanted.target_segments,
        concurrency: wanted.max_concurrency,
    };
    tracing::info!(job = name_of(id), segments = ?job.sources, "a drain job is requested");
    match shared.start_drain(job) {
        Ok(()) => done(id, "CREATED"),
        Err(refusal) => refused(refusal),
    }
}

async fn query(State(shared): Server, Query(which): Query<Which>) -> Response {
    let Some(id) = which.id() else { return problem(INVALID, "Missing or invalid job_id") };
    match shared.drain_stat(id) {
        Some((stat, updated_ago_ms)) => answer(StatusCode::OK, &describe(&stat, updated_ago_ms)),
        None => refused(DrainRefusal::NoJob),
    }
}

async fn cancel(State(shared): Server, Query(which): Query<Which>) -> Response {
    let Some(id) = which.id() else { return problem(INVALID, "Missing or invalid job_id") };
    match shared.cancel_drain(id) {
        Ok(()) => done(id, "CANCELED"),
        Err(refusal) => refused(refusal),
    }
}

fn done(id: JobId, status: &str) -> Response {
    let value = json!({
        "success": true, "job_id": name_of(id), "status": status, "error_code": 0, "error_message": "",
    });
    answer(StatusCode::OK, &value)
}

fn refused(refusal: DrainRefusal) -> Response {
    let (code, message) = match refusal {
        DrainRefusal::Invalid => (INVALID, "INVALID_PARAMS"),
        DrainRefusal::NoSegment => (NO_SEGMENT, "SEGMENT_NOT_FOUND"),
        DrainRefusal::WrongState => (WRONG_STATE, "UNAVAILABLE_IN_CURRENT_STATUS"),
        DrainRefusal::TooMany => (TOO_MANY_JOBS, "TASK_PENDING_LIMIT_EXCEEDED"),
        DrainRefusal::NoJob => (NO_JOB, "JOB_NOT_FOUND"),
    };
    problem(code, message)
}

fn describe(stat: &DrainStat, updated_ago_ms: u64) -> Value {
    let (number, name, message) = match stat.status {
        DrainStatus::Created => (0, "CREATED", "Drain job created"),
        DrainStatus::Running => (2, "RUNNING", "Drain job running"),
        DrainStatus::Succeeded => (3, "SUCCEEDED", "Drain job finished successfully"),
        DrainStatus::Failed => (4, "FAILED", "Drain job failed: unrecoverable units remain"),
        DrainStatus::Left => (4, "FAILED", "Drain job failed: a segment left before it was empty"),
        DrainStatus::Cancelled => (5, "CANCELED", "Drain job canceled"),
    };
    json!({
        "success": true, "job_id": name_of(stat.job.id), "type": 0, "type_name": "DRAIN",
        "status": number, "status_name": name, "created_at_ms_epoch": stat.job.created_ms,
        "last_updated_at_ms_epoch": now_ms().saturating_sub(updated_ago_ms).max(stat.job.created_ms),
        "segments": stat.job.sources, "succeeded_units": stat.succeeded, "failed_units": stat.failed,
        "blocked_units": stat.blocked, "active_units": stat.active, "migrated_bytes": stat.bytes,
        "message": message, "error_code": 0, "error_message": "",
    })
}

fn name_of(JobId { first, second }: JobId) -> String {
    format!("{first}-{second}")
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
