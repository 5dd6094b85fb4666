//! The page at `/`, and what it shows: snapshots, events, explanations. `tiffin top` reads the same.
//!
//! With a token, the page asks for it once and gets a session: a cookie that scripts cannot read and that the
//! browser sends to this server only. A session may read; pages that change state need the token itself.
//!
//! **Invariant:** at most [`SESSIONS_MAX`] sessions exist, each for at most [`SESSION_TIME_MAX`]. One more
//! ends the oldest.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::json;
use tiffin_rpc::token_matches;
use tiffin_types::access::redact;
use tiffin_types::message::{ClientToMaster, Explain, Reply};
use tiffin_types::{Key, NAMESPACE_BYTES_MAX, NAMESPACE_DEFAULT};
use tokio::time::Instant;

use super::guard::{Caller, source, told_in_time};
use super::{Server, json as answer};
use crate::access::{Access, Holder, TokenProblem};
use crate::master::Shared;
use crate::{host, why};

/// The page: one file, with its style and script.
const PAGE: &str = include_str!("page.html");
/// The text in [`PAGE`] that stands for a number that is used once.
const NONCE: &str = "NONCE";
/// The name of the cookie.
const COOKIE: &str = "tiffin_session";
/// The maximum number of sessions.
pub(super) const SESSIONS_MAX: usize = 64;
/// How long a session lasts.
pub(super) const SESSION_TIME_MAX: Duration = Duration::from_secs(12 * 3600);
/// The maximum length of a token that is posted, in bytes.
const TOKEN_BYTES_MAX: usize = 4 << 10;

#[derive(Debug)]
struct Session {
    secret: String,
    end: Instant,
    holder: Arc<Holder>,
}

/// The sessions of browsers.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    // Held for one operation, never across an await.
    open: Mutex<VecDeque<Session>>,
}

impl Sessions {
    /// Opens a session and returns its secret. `None` if the system has no random numbers.
    fn begin(&self, holder: Arc<Holder>, now: Instant) -> Option<String> {
        let secret = random()?;
        let mut open = self.lock();
        open.retain(|it| it.end > now && !it.holder.is_ended());
        while open.len() >= SESSIONS_MAX {
            open.pop_front();
        }
        open.push_back(Session { secret: secret.clone(), end: now + SESSION_TIME_MAX, holder });
        Some(secret)
    }

    fn end(&self, secret: &str) {
        self.lock().retain(|it| !token_matches(&it.secret, secret));
    }

    fn find(&self, secret: &str, now: Instant) -> Option<Arc<Holder>> {
        let open = self.lock();
        let found = open.iter().find(|it| token_matches(&it.secret, secret) && it.end > now);
        found.map(|it| Arc::clone(&it.holder))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Session>> {
        // A panic leaves no partial state.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The holder of the token with which the session of a request was begun. A session may only read.
    pub(super) fn holder(&self, request: &Request) -> Option<Arc<Holder>> {
        let secret = secret(request.headers()).filter(|_| request.method() == axum::http::Method::GET)?;
        self.find(&secret, Instant::now())
    }
}

/// The secret of the session that a request names.
fn secret(headers: &HeaderMap) -> Option<String> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|it| it.to_str().ok());
    let mut cookies = cookies.flat_map(|it| it.split(';')).filter_map(|it| it.trim().split_once('='));
    cookies.find(|(name, _)| *name == COOKIE).map(|(_, secret)| secret.to_owned())
}

/// A random text of 128 bits.
fn random() -> Option<String> {
    let (one, other) = (host::draw().ok()?, host::draw().ok()?);
    Some(format!("{one:016x}{other:016x}"))
}

/// The page and its data.
pub(super) fn router(access: &Arc<Access>, sessions: &Arc<Sessions>) -> Router<Arc<Shared>> {
    let (access, begun, ended) = (Arc::clone(access), Arc::clone(sessions), Arc::clone(sessions));
    Router::new()
        .route("/", get(page))
        .route("/login", post(async move |request: Request| login(&access, &begun, request).await))
        .route("/logout", post(async move |headers: HeaderMap| logout(&ended, &headers)))
        .route("/api/tiffin/snapshot", get(snapshot))
        .route("/api/tiffin/events", get(events))
        .route("/api/tiffin/live", get(live))
        .route("/api/tiffin/why", get(explain))
}

async fn page() -> Response {
    let Some(nonce) = random() else {
        return super::text(StatusCode::SERVICE_UNAVAILABLE, "cannot get random numbers from the system\n");
    };
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8".to_owned()),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::CACHE_CONTROL, "no-store".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::REFERRER_POLICY, "no-referrer".to_owned()),
    ];
    (headers, PAGE.replace(NONCE, &nonce)).into_response()
}

/// Begins a session for a browser that posts the token.
async fn login(access: &Access, sessions: &Sessions, request: Request) -> Response {
    let source = source(&request);
    let given = to_bytes(request.into_body(), TOKEN_BYTES_MAX).await.unwrap_or_default();
    let found = str::from_utf8(&given).map_err(|_| TokenProblem::Wrong).and_then(|it| access.holder(it));
    if let Err(problem) = found
        && let Some(busy) = told_in_time(access, problem, source).await
    {
        return busy;
    }
    let Some(holder) = found.ok().filter(|_| !access.is_open()) else {
        let text = "the token is missing or wrong\n\nhint: post the token of the store, and nothing else\n";
        return super::text(StatusCode::UNAUTHORIZED, text);
    };
    let Some(secret) = sessions.begin(holder, Instant::now()) else {
        return super::text(StatusCode::SERVICE_UNAVAILABLE, "cannot get random numbers from the system\n");
    };
    (StatusCode::NO_CONTENT, cookie(&secret, SESSION_TIME_MAX)).into_response()
}

fn logout(sessions: &Sessions, headers: &HeaderMap) -> Response {
    secret(headers).into_iter().for_each(|it| sessions.end(&it));
    (StatusCode::NO_CONTENT, cookie("", Duration::ZERO)).into_response()
}

fn cookie(secret: &str, time: Duration) -> [(header::HeaderName, String); 1] {
    let seconds = time.as_secs();
    let text = format!("{COOKIE}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}");
    [(header::SET_COOKIE, text)]
}

async fn snapshot(State(shared): Server, headers: HeaderMap) -> Response {
    let mut response = answer(StatusCode::OK, &shared.view());
    let kept = response.headers_mut();
    kept.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    // The page offers to end a session only where there is one.
    if secret(&headers).is_some() {
        kept.insert("tiffin-session", header::HeaderValue::from_static("1"));
    }
    response
}

#[derive(Deserialize)]
struct After {
    #[serde(default)]
    after: u64,
    journal: Option<String>,
}

async fn events(State(shared): Server, Query(after): Query<After>) -> Response {
    answer(StatusCode::OK, &shared.events_after(after.after, after.journal.as_deref()))
}

/// Server-sent events: one snapshot at once, then one every few seconds.
async fn live(State(shared): Server, caller: Caller) -> Response {
    let Some(body) = shared.open_stream() else {
        let text = "too many open streams\n\nhint: close other windows of this page\n";
        let headers = [(header::RETRY_AFTER, "5")];
        return (StatusCode::SERVICE_UNAVAILABLE, headers, text).into_response();
    };
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    (headers, Body::new(caller.while_valid(body))).into_response()
}

#[derive(Deserialize)]
struct Which {
    #[serde(default)]
    key: String,
    namespace: Option<String>,
}

async fn explain(State(shared): Server, caller: Caller, Query(which): Query<Which>) -> Response {
    let namespace = which.namespace.unwrap_or_else(|| NAMESPACE_DEFAULT.to_owned());
    let key = match Key::new(which.key.as_bytes()) {
        Ok(key) if (1..=NAMESPACE_BYTES_MAX).contains(&namespace.len()) => key,
        Ok(_) => {
            let error = format!("a namespace has 1 to {NAMESPACE_BYTES_MAX} bytes");
            return answer(StatusCode::BAD_REQUEST, &json!({"error": error}));
        }
        Err(error) => return answer(StatusCode::BAD_REQUEST, &json!({"error": error.to_string()})),
    };
    // A question does not create a namespace.
    if !caller.covers(&namespace) || !shared.namespaces().contains(&namespace) {
        let text =
            format!("`{}` is unknown: no client has used the namespace", why::printable(key.as_bytes()));
        return answer(StatusCode::OK, &json!({"text": text}));
    }
    let request = ClientToMaster::Why(Explain { keys: vec![key.clone()], report_wait_ms: 0 });
    let mut reply = shared.ask(&namespace, request).await;
    redact(caller.namespaces(), &mut reply);
    match reply {
        Reply::Why(found) if found.len() == 1 => {
            let text = found.first().map(|it| why::as_text(&key, it));
            answer(StatusCode::OK, &json!({"text": text}))
        }
        Reply::Refused(refusal) => {
            answer(StatusCode::SERVICE_UNAVAILABLE, &json!({"error": refusal.message}))
        }
        _ => answer(StatusCode::INTERNAL_SERVER_ERROR, &json!({"error": "cannot explain the key"})),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_bounded_and_end() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let holder = Access::single("").find("").unwrap();
        let first = sessions.begin(Arc::clone(&holder), now).unwrap();
        for _ in 1..SESSIONS_MAX {
            sessions.begin(Arc::clone(&holder), now).unwrap();
        }
        let has = |secret: &str, at| sessions.find(secret, at).is_some();
        assert!(has(&first, now));
        let last = sessions.begin(Arc::clone(&holder), now).unwrap();
        assert!(!has(&first, now) && has(&last, now), "one more ends the oldest");
        assert!(!has(&last, now + SESSION_TIME_MAX) && !has("", now));
        sessions.end(&last);
        assert!(!has(&last, now));
    }

    #[test]
    fn page_builds_no_markup_from_text_and_asks_no_other_server() {
        for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", " style=\""] {
            assert!(!PAGE.contains(word), "{word}");
        }
        let addresses: Vec<_> = PAGE.match_indices("://").map(|(at, _)| &PAGE[at - 4..at + 9]).collect();
        assert_eq!(addresses, ["http://www.w3"], "only the name of SVG");
        assert_eq!(PAGE.matches("nonce=\"NONCE\"").count(), 2);
    }
}
