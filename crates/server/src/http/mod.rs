//! Pages for people and their tools, over HTTP.
//!
//! **Invariant:** at most [`CONNECTIONS_MAX`] connections are open, and one on which nothing is said for
//! [`IDLE_TIME_MAX`] is closed. **Invariant:** with a token set, nothing but `/health` is told to who does
//! not show it.

pub(crate) mod master;
pub(crate) mod metadata;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use tiffin_rpc::{Address, ListenError, token_matches};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// The most connections to one page server.
pub const CONNECTIONS_MAX: usize = 512;
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
        let fail = |source| ListenError { address: address.clone(), source };
        let Address::Tcp { host, port } = address else {
            return Err(fail(io::ErrorKind::Unsupported.into()));
        };
        let listener = TcpListener::bind((host.as_str(), *port)).await.map_err(fail)?;
        let port = listener.local_addr().map_err(fail)?.port();
        Ok(Some(Self { listener, address: Address::Tcp { host: host.clone(), port } }))
    }

    /// Where it listens, with the real port.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Serves until it is dropped.
    pub(crate) async fn serve(self, router: Router) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let listener = Limited { listener: self.listener, places };
        // It only returns when the listener fails, and ours never says so.
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, address = %self.address, "the pages are no longer served");
        }
    }
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

/// An answer that is text.
pub(crate) fn text(status: StatusCode, body: impl Into<axum::body::Body>) -> Response {
    (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body.into()).into_response()
}

/// An answer that is JSON.
pub(crate) fn json(status: StatusCode, value: &serde_json::Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

fn shows(request: &Request, token: &str) -> bool {
    let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some((scheme, shown)) = header.and_then(|text| text.split_once(' ')) else { return false };
    scheme.eq_ignore_ascii_case("bearer") && token_matches(token, shown.trim())
}

/// Accepts no more connections than there are places.
struct Limited {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl axum::serve::Listener for Limited {
    type Io = Idle;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Idle, Self::Addr) {
        loop {
            // The semaphore is never closed. Who waits here for a place waits in the system's queue, which is
            // bounded; and places become free, because idle connections are closed.
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
                return std::future::pending().await;
            };
            match self.listener.accept().await {
                Ok((stream, from)) => return (Idle::new(stream, place), from),
                Err(error) => {
                    tracing::warn!(%error, "no connection could be accepted for the pages");
                    sleep(ACCEPT_REST).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when nothing moves on it for too long.
struct Idle {
    stream: TcpStream,
    timer: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Idle {
    fn new(stream: TcpStream, place: OwnedSemaphorePermit) -> Self {
        Self { stream, timer: Box::pin(sleep(IDLE_TIME_MAX)), _place: place }
    }

    /// Passes on what moved; if nothing did and the time is over, that is an error.
    fn watch<T>(&mut self, context: &mut Context<'_>, moved: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if moved.is_ready() {
            self.timer.as_mut().reset(Instant::now() + IDLE_TIME_MAX);
            return moved;
        }
        match self.timer.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Idle {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let moved = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.watch(context, moved)
    }
}

impl AsyncWrite for Idle {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let moved = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, moved)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
