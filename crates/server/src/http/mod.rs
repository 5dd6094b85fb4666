//! HTTP pages for operators and their tools.
//!
//! **Invariant:** at most [`PENDING_MAX`] connections wait for a complete request; one more closes the
//! oldest. At most [`REQUESTS_MAX`] requests are answered at a time. Beyond that, only `/health` and
//! `/metrics` are served, up to [`RESERVED_MAX`] requests. So clients that send incomplete requests cannot
//! block others. Pages that read the state of all members are rendered one at a time, so that a flood of
//! requests does not delay the master's clients.
//!
//! **Invariant:** a request must arrive within [`HEAD_TIME_MAX`], and be answered within
//! [`REQUEST_TIME_MAX`], including its body. A connection on which no byte moves for [`IDLE_TIME_MAX`] is
//! closed.
//!
//! **Invariant:** with a certificate set, only HTTPS is served. Where clients must show a certificate, one
//! without gets `/health` only, because probes have none.
//!
//! **Invariant:** with a token set, only `/health` and the page at `/`, which contains no data, are served
//! without one or a session (see `watch`). What a token permits is decided in `guard`.

mod admin;
pub mod client;
mod drain;
mod gate;
mod guard;
pub(crate) mod master;
pub(crate) mod metadata;
mod secure;
mod watch;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tiffin_core::master::LimitStat;
use tiffin_rpc::{Address, ListenError, TlsServer};
use tiffin_transport::LimitUse;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::sleep;

pub(crate) use gate::Gate;

use crate::access::Source;
use crate::listen::limit_stat;
use crate::master::Shared;
use crate::supervise::Supervisor;

/// The master, as the functions of its pages get it.
type Server = State<Arc<Shared>>;

/// The maximum number of connections that wait for a complete request.
pub const PENDING_MAX: usize = 128;
/// The maximum number of requests that are answered at a time.
pub const REQUESTS_MAX: usize = 512;
/// The maximum number of further requests for `/health` and `/metrics`.
pub const RESERVED_MAX: usize = 32;
/// The time limit for the head of a request, from the end of the previous request.
pub const HEAD_TIME_MAX: Duration = Duration::from_secs(10);
/// The time limit from the head of a request to the start of its response, including the arrival of the
/// body.
pub const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);
/// The maximum time without traffic on a connection.
pub const IDLE_TIME_MAX: Duration = Duration::from_secs(60);
/// The pause after a failed accept, which means that the process is out of descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// A bound port for pages.
pub(crate) struct Pages {
    listener: TcpListener,
    address: Address,
    tls: Option<TlsServer>,
    gate: Arc<Gate>,
}

impl Pages {
    /// Binds the port, if an address is given.
    pub(crate) async fn bind(
        address: Option<&Address>,
        tls: Option<TlsServer>,
    ) -> Result<Option<Self>, ListenError> {
        let Some(address) = address else { return Ok(None) };
        let (listener, address) = listen(address).await?;
        Ok(Some(Self::on(listener, address, tls)))
    }

    fn on(listener: TcpListener, address: Address, tls: Option<TlsServer>) -> Self {
        Self { listener, address, tls, gate: Gate::new(PENDING_MAX, REQUESTS_MAX, RESERVED_MAX) }
    }

    /// The state of its connections.
    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// The address with the actual port.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Serves until the future is dropped.
    pub(crate) async fn serve(self, router: Router, supervisor: Arc<Supervisor>) {
        let router = match self.address.is_local() {
            true => router.layer(axum::Extension(guard::LocalPort)),
            false => router,
        };
        let mut connections = JoinSet::new();
        loop {
            let accepted = self.listener.accept().await;
            while connections.try_join_next().is_some() {}
            match accepted {
                Ok((stream, from)) => {
                    let (router, gate, tls) = (router.clone(), Arc::clone(&self.gate), self.tls.clone());
                    let from = Source::from(from.ip());
                    let served = async move {
                        match tls {
                            None => gate::serve(stream, from, router, gate).await,
                            Some(tls) => secure::serve(stream, from, &tls, router, gate).await,
                        }
                    };
                    connections.spawn(supervisor.watch("the task of a page", served));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a page connection");
                    sleep(ACCEPT_REST).await;
                }
            }
        }
    }
}

/// The limits of several ports with pages: the use of the port with most.
pub(crate) fn limits(gates: &[Arc<Gate>]) -> [LimitStat; 3] {
    let both: Vec<_> = gates.iter().map(|it| it.limits()).collect();
    let worst = |uses: &mut dyn Iterator<Item = LimitUse>, max: usize| {
        let start = LimitUse { max: max as u64, ..LimitUse::default() };
        uses.fold(start, |worst, it| LimitUse {
            used: worst.used.max(it.used),
            reached: worst.reached + it.reached,
            ..worst
        })
    };
    let unauthenticated = worst(&mut both.iter().map(|it| it[0]), PENDING_MAX);
    let requests = worst(&mut both.iter().map(|it| it[1]), REQUESTS_MAX);
    let public = worst(&mut both.iter().map(|it| it[2]), gate::PUBLIC_MAX);
    [
        limit_stat("page_unauthenticated", unauthenticated),
        limit_stat("page_requests", requests),
        limit_stat("page_public", public),
    ]
}

/// Listens on an address. Returns the listener and the address with the actual port.
pub(crate) async fn listen(address: &Address) -> Result<(TcpListener, Address), ListenError> {
    let fail = |source| ListenError { address: address.clone(), source };
    let Address::Tcp { host, port } = address else {
        return Err(fail(io::ErrorKind::Unsupported.into()));
    };
    let listener = TcpListener::bind((host.as_str(), *port)).await.map_err(fail)?;
    let port = listener.local_addr().map_err(fail)?.port();
    Ok((listener, Address::Tcp { host: host.clone(), port }))
}

/// The response to an unknown path or method, as Mooncake's servers give it.
pub(crate) async fn not_found() -> Response {
    (StatusCode::NOT_FOUND, "404 Not Found").into_response()
}

/// A text response.
pub(crate) fn text(status: StatusCode, body: impl Into<axum::body::Body>) -> Response {
    (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body.into()).into_response()
}

/// A JSON response.
pub(crate) fn json(status: StatusCode, value: &serde_json::Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json; charset=utf-8")], value.to_string()).into_response()
}
