//! Pages for people and their tools, over HTTP.
//!
//! **Invariant:** at most [`PENDING_MAX`] connections wait for a request to arrive whole, and one more closes
//! the oldest. At most [`REQUESTS_MAX`] requests are answered at a time; beyond that only `/health` and
//! `/metrics` are, from [`RESERVED_MAX`] places of their own. So clients that send half a request keep nobody
//! out, however many they are. Pages that need a look at all members are made one at a time, so that a flood
//! of requests for them does not delay the master's clients.
//!
//! **Invariant:** a request has [`HEAD_TIME_MAX`] to arrive, and [`REQUEST_TIME_MAX`] to be answered, its
//! body included. A connection on which no byte moves for [`IDLE_TIME_MAX`] is closed.
//!
//! **Invariant:** with a token set, only `/health` is served without it.

mod admin;
mod gate;
pub(crate) mod master;
pub(crate) mod metadata;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use tiffin_rpc::{Address, ListenError, token_matches};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::sleep;

use gate::Gate;

use crate::supervise::Supervisor;

/// The most connections that wait for a request to arrive whole.
pub const PENDING_MAX: usize = 128;
/// The most requests that are answered at a time.
pub const REQUESTS_MAX: usize = 512;
/// The most requests for `/health` and `/metrics` that are answered beside those.
pub const RESERVED_MAX: usize = 32;
/// How long the head of a request may take to arrive, from the end of the one before it.
pub const HEAD_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a request may take from its head to the beginning of its answer: its body arrives meanwhile.
pub const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a connection may be silent.
pub const IDLE_TIME_MAX: Duration = Duration::from_secs(60);
/// How long to rest when no connection can be accepted, which means that descriptors have run out.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// A port that pages will be served on.
pub(crate) struct Pages {
    listener: TcpListener,
    address: Address,
}

impl Pages {
    /// Begins to listen, if it is to be anywhere.
    pub(crate) async fn bind(address: Option<&Address>) -> Result<Option<Self>, ListenError> {
        let Some(address) = address else { return Ok(None) };
        let (listener, address) = listen(address).await?;
        Ok(Some(Self { listener, address }))
    }

    /// Where it listens, with the real port.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Serves until it is dropped.
    pub(crate) async fn serve(self, router: Router, supervisor: Arc<Supervisor>) {
        let gate = Gate::new(PENDING_MAX, REQUESTS_MAX, RESERVED_MAX);
        let mut connections = JoinSet::new();
        loop {
            let accepted = self.listener.accept().await;
            while connections.try_join_next().is_some() {}
            match accepted {
                Ok((stream, _)) => {
                    let served = gate::serve(stream, router.clone(), Arc::clone(&gate));
                    connections.spawn(supervisor.watch("the task of a page", served));
                }
                Err(error) => {
                    tracing::warn!(%error, "no connection could be accepted for the pages");
                    sleep(ACCEPT_REST).await;
                }
            }
        }
    }
}

/// Listens on a port; gives the address with the real one.
pub(crate) async fn listen(address: &Address) -> Result<(TcpListener, Address), ListenError> {
    let fail = |source| ListenError { address: address.clone(), source };
    let Address::Tcp { host, port } = address else {
        return Err(fail(io::ErrorKind::Unsupported.into()));
    };
    let listener = TcpListener::bind((host.as_str(), *port)).await.map_err(fail)?;
    let port = listener.local_addr().map_err(fail)?.port();
    Ok((listener, Address::Tcp { host: host.clone(), port }))
}

/// Lets only those who show the token see the pages; everybody where none is set, and `/health` always.
pub(crate) fn guarded(router: Router, token: &str) -> Router {
    if token.is_empty() {
        return router;
    }
    let token: Arc<str> = token.into();
    router.layer(from_fn(move |request: Request, next: Next| {
        let token = Arc::clone(&token);
        async move {
            if request.uri().path() == "/health" || shows(&request, &token) {
                return next.run(request).await;
            }
            let header = [(header::WWW_AUTHENTICATE, "Bearer")];
            let text = "the token is missing or wrong\n\nhint: send `Authorization: Bearer <token>`\n";
            (StatusCode::UNAUTHORIZED, header, text).into_response()
        }
    }))
}

/// The answer to a path or method that there is none for, as Mooncake's servers give it.
pub(crate) async fn not_found() -> Response {
    (StatusCode::NOT_FOUND, "404 Not Found").into_response()
}

/// An answer that is text.
pub(crate) fn text(status: StatusCode, body: impl Into<axum::body::Body>) -> Response {
    (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body.into()).into_response()
}

/// An answer that is JSON.
pub(crate) fn json(status: StatusCode, value: &serde_json::Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json; charset=utf-8")], value.to_string()).into_response()
}

fn shows(request: &Request, token: &str) -> bool {
    let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some((scheme, shown)) = header.and_then(|text| text.split_once(' ')) else { return false };
    scheme.eq_ignore_ascii_case("bearer") && token_matches(token, shown.trim())
}
