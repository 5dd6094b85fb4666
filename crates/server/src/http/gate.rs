//! One HTTP connection: its time limits, and its share of the port's capacity.
//!
//! A connection is *pending* while it waits for the head of a request. It is *served* from then until the
//! system has accepted the last byte of the response. The module above has the invariants.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tiffin_transport::{LimitUse, Pending, PendingEntry};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::{HEAD_TIME_MAX, IDLE_TIME_MAX, REQUEST_TIME_MAX};
use crate::access::Source;

/// The maximum length of a request's head and of a connection's buffer: a query may name many keys.
const BUFFER_BYTES_MAX: usize = 72 << 10;

/// The maximum number of expensive pages that are rendered at a time. Further requests for them wait, so
/// that the master's clients do not.
const TURNS_MAX: usize = 1;

/// The maximum number of requests for pages that need no token: they leave the others to those that do.
pub(super) const PUBLIC_MAX: usize = 64;

/// Whether a page needs no token: it contains no data, or takes the token itself.
pub(super) fn is_public(path: &str) -> bool {
    matches!(path, "/" | "/health" | "/login" | "/logout")
}

/// Whether a page reads the state of all members.
fn is_expensive(path: &str) -> bool {
    let is_watched = matches!(path, "/api/tiffin/snapshot" | "/api/tiffin/live");
    is_watched || path.starts_with("/metrics") || matches!(path, "/get_all_segments" | "/get_segments_detail")
}

/// The state that all connections of a port share.
#[derive(Debug)]
pub(crate) struct Gate {
    pending: Arc<Pending>,
    requests: Arc<Semaphore>,
    public: Arc<Semaphore>,
    reserved: Arc<Semaphore>,
    requests_max: usize,
    /// Requests that found the limit reached.
    crowded: AtomicU64,
    public_crowded: AtomicU64,
    turns: Arc<Semaphore>,
}

impl Gate {
    pub(super) fn new(pending_max: usize, requests_max: usize, reserved_max: usize) -> Arc<Self> {
        Arc::new(Self {
            pending: Pending::new(pending_max),
            requests: Arc::new(Semaphore::new(requests_max)),
            public: Arc::new(Semaphore::new(PUBLIC_MAX)),
            reserved: Arc::new(Semaphore::new(reserved_max)),
            requests_max,
            crowded: AtomicU64::new(0),
            public_crowded: AtomicU64::new(0),
            turns: Arc::new(Semaphore::new(TURNS_MAX)),
        })
    }

    /// Counts a connection that has sent no request yet. It must end when `cut` is notified.
    pub(super) fn enter(&self, cut: &Arc<Notify>, from: Source) -> PendingEntry {
        self.pending.enter_from(cut, from.host())
    }

    /// The limits of connections without a complete request, of requests that are answered, and of those for
    /// pages that need no token.
    pub(super) fn limits(&self) -> [LimitUse; 3] {
        let limit = |all: &Semaphore, max: usize, reached: &AtomicU64| {
            let used = (max - all.available_permits()) as u64;
            LimitUse { max: max as u64, used, reached: reached.load(Ordering::Relaxed) }
        };
        [
            self.pending.limit(),
            limit(&self.requests, self.requests_max, &self.crowded),
            limit(&self.public, PUBLIC_MAX, &self.public_crowded),
        ]
    }

    /// Admits a request, or returns `None` if the limit is reached.
    fn place(&self, path: &str) -> Option<OwnedSemaphorePermit> {
        let (places, crowded) = match is_public(path) {
            true => (&self.public, &self.public_crowded),
            false => (&self.requests, &self.crowded),
        };
        let place = Arc::clone(places).try_acquire_owned().ok();
        crowded.fetch_add(u64::from(place.is_none()), Ordering::Relaxed);
        let is_reserved = matches!(path, "/health" | "/metrics");
        place.or_else(|| Arc::clone(&self.reserved).try_acquire_owned().ok().filter(|_| is_reserved))
    }
}

/// The turns of expensive pages. A request waits for its turn once its token is accepted: others must not
/// hold it up.
#[derive(Clone)]
struct Turns(Arc<Semaphore>);

/// Waits until the page may be rendered; only expensive pages wait.
pub(super) fn turn(
    request: &axum::extract::Request,
) -> impl Future<Output = Option<OwnedSemaphorePermit>> + Send + use<> {
    let turns = request.extensions().get::<Turns>().filter(|_| is_expensive(request.uri().path())).cloned();
    // The semaphore is never closed.
    async move { turns?.0.acquire_owned().await.ok() }
}

/// A place among the requests of one token, until the response was sent.
#[derive(Clone)]
pub(super) struct TokenPlace {
    _place: Arc<OwnedSemaphorePermit>,
}

impl TokenPlace {
    pub(super) fn new(place: OwnedSemaphorePermit) -> Self {
        Self { _place: Arc::new(place) }
    }
}

/// Whether a connection is pending.
struct Turn {
    gate: Arc<Gate>,
    cut: Arc<Notify>,
    from: Source,
    entry: Mutex<Option<PendingEntry>>,
}

impl Turn {
    fn entry(&self) -> MutexGuard<'_, Option<PendingEntry>> {
        self.entry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is being answered, or a response that is being sent. When it is dropped, the connection
/// is pending again.
struct Served {
    turn: Arc<Turn>,
    _place: OwnedSemaphorePermit,
}

impl Served {
    /// Returns `None` if the limit is reached; the connection then stays pending.
    fn begin(turn: &Arc<Turn>, path: &str) -> Option<Self> {
        let place = turn.gate.place(path)?;
        drop(turn.entry().take());
        Some(Self { turn: Arc::clone(turn), _place: place })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let entry = self.turn.gate.enter(&self.turn.cut, self.turn.from);
        *self.turn.entry() = Some(entry);
    }
}

/// Serves one connection until it ends. Its requests carry where they come from.
pub(super) async fn serve<S>(stream: S, from: Source, router: Router, gate: Arc<Gate>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let cut = Arc::new(Notify::new());
    let entry = Mutex::new(Some(gate.enter(&cut, from)));
    let turn = Arc::new(Turn { gate, cut: Arc::clone(&cut), from, entry });
    let pages = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(from);
        request.extensions_mut().insert(Turns(Arc::clone(&turn.gate.turns)));
        let served = Served::begin(&turn, request.uri().path());
        let answer = hyper::service::Service::call(&pages, request.map(Body::new));
        async move {
            let mut response = match &served {
                Some(_) => timeout(REQUEST_TIME_MAX, answer).await.unwrap_or_else(|_| Ok(late()))?,
                None => crowded(),
            };
            let place = response.extensions_mut().remove::<TokenPlace>();
            Ok::<_, Infallible>(response.map(|body| Sent { body, _served: served, _place: place }))
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME_MAX).max_buf_size(BUFFER_BYTES_MAX);
    let connection = builder.serve_connection(TokioIo::new(Idle::new(stream)), service);
    tokio::select! {
        biased;
        () = cut.notified() => {}
        ended = connection => {
            if let Err(error) = ended {
                tracing::debug!(%error, "page connection ended");
            }
        }
    }
}

fn late() -> Response {
    let text = "the request was incomplete at its deadline\n\nhint: send the body without delay, and retry\n";
    (StatusCode::REQUEST_TIMEOUT, [(header::CONNECTION, "close")], text).into_response()
}

pub(super) fn crowded() -> Response {
    let text = "too many concurrent requests\n\nhint: retry in a moment, or poll less often\n";
    let headers = [(header::CONNECTION, "close"), (header::RETRY_AFTER, "1")];
    (StatusCode::SERVICE_UNAVAILABLE, headers, text).into_response()
}

/// The body of a response. The request counts as served until all of it was handed on.
struct Sent {
    body: Body,
    _served: Option<Served>,
    _place: Option<TokenPlace>,
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection that fails when no byte moves for too long.
struct Idle<S> {
    stream: S,
    timer: Pin<Box<Sleep>>,
}

impl<S> Idle<S> {
    fn new(stream: S) -> Self {
        Self { stream, timer: Box::pin(sleep(IDLE_TIME_MAX)) }
    }

    /// Passes on the result of I/O, or a timeout if no byte moved for too long.
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

impl<S: AsyncRead + Unpin> AsyncRead for Idle<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let moved = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.watch(context, moved)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Idle<S> {
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

#[cfg(test)]
mod tests {
    use axum::routing::{get, put};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn pages() -> Router {
        Router::new()
            .route("/health", get(async || "fine"))
            .route("/metrics", get(async || "numbers"))
            .route("/value", put(async |body: Bytes| format!("{} bytes", body.len())))
    }

    /// An in-memory connection that has sent this text.
    async fn say(gate: &Arc<Gate>, text: &str) -> DuplexStream {
        let (mut near, far) = duplex(4096);
        tokio::spawn(serve(far, Source::User(0), pages(), Arc::clone(gate)));
        near.write_all(text.as_bytes()).await.unwrap();
        // The peer has read the text when it has nothing left to do.
        for _ in 0..16 {
            tokio::task::yield_now().await;
        }
        near
    }

    fn ask(path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
    }

    async fn answer(mut stream: DuplexStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    const HALF_HEAD: &str = "GET /metrics HTTP/1.1\r\nHost: he";
    const HALF_BODY: &str = "PUT /value HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\n123";

    #[tokio::test(start_paused = true)]
    async fn incomplete_head_ends_the_connection_at_its_deadline() {
        let gate = Gate::new(4, 4, 1);
        let began = Instant::now();
        let stream = say(&gate, HALF_HEAD).await;
        answer(stream).await;
        assert_eq!(began.elapsed().as_secs(), HEAD_TIME_MAX.as_secs());
        assert!(gate.pending.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn incomplete_body_is_answered_at_its_deadline() {
        let gate = Gate::new(4, 4, 1);
        let began = Instant::now();
        let text = answer(say(&gate, HALF_BODY).await).await;
        assert!(text.starts_with("HTTP/1.1 408 ") && text.contains("hint: "), "{text}");
        assert_eq!(began.elapsed().as_secs(), REQUEST_TIME_MAX.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn incomplete_heads_block_no_other_client() {
        let gate = Gate::new(3, 4, 1);
        let began = Instant::now();
        let mut half = Vec::new();
        for _ in 0..3 {
            half.push(say(&gate, HALF_HEAD).await);
        }
        assert_eq!(gate.pending.cut(), 0, "at the limit no connection is closed");
        for path in ["/health", "/metrics"] {
            let text = answer(say(&gate, &ask(path)).await).await;
            assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
        }
        // The first replaced the oldest connection, and the second the first. No time has passed.
        assert_eq!((gate.pending.cut(), gate.pending.len()), (1, 2));
        assert_eq!(answer(half.remove(0)).await, "");
        assert_eq!(began.elapsed().as_secs(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn incomplete_bodies_leave_the_reserved_capacity() {
        let gate = Gate::new(8, 2, 1);
        let began = Instant::now();
        let _half = [say(&gate, HALF_BODY).await, say(&gate, HALF_BODY).await];
        let refused = answer(say(&gate, &ask("/value")).await).await;
        assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("hint: "), "{refused}");
        assert_eq!(gate.limits()[1], LimitUse { max: 2, used: 2, reached: 1 });
        for path in ["/health", "/metrics", "/health"] {
            let text = answer(say(&gate, &ask(path)).await).await;
            assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
        }
        assert_eq!(began.elapsed().as_secs(), 0);
        // The capacity returns when the requests end.
        tokio::time::sleep(REQUEST_TIME_MAX).await;
        let text = answer(say(&gate, &ask("/value")).await).await;
        assert!(text.starts_with("HTTP/1.1 405 "), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn pages_without_a_token_leave_places_to_others() {
        let pages = pages().route("/login", put(async |body: Bytes| format!("{} bytes", body.len())));
        let gate = Gate::new(2 * PUBLIC_MAX, 2, 1);
        let say = async |text: &str| {
            let (mut near, far) = duplex(4096);
            tokio::spawn(serve(far, Source::User(0), pages.clone(), Arc::clone(&gate)));
            near.write_all(text.as_bytes()).await.unwrap();
            for _ in 0..16 {
                tokio::task::yield_now().await;
            }
            near
        };
        let half = HALF_BODY.replace("/value", "/login");
        let mut held = Vec::new();
        for _ in 0..PUBLIC_MAX {
            held.push(say(&half).await);
        }
        let max = PUBLIC_MAX as u64;
        assert_eq!(gate.limits()[2], LimitUse { max, used: max, reached: 0 });
        let refused = answer(say(&half).await).await;
        assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
        assert_eq!(gate.limits()[2], LimitUse { max, used: max, reached: 1 });
        for path in ["/health", "/metrics"] {
            let text = answer(say(&ask(path)).await).await;
            assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
        }
        assert_eq!(gate.limits()[1], LimitUse { max: 2, used: 0, reached: 0 });
    }

    #[tokio::test(start_paused = true)]
    async fn connection_serves_several_requests() {
        let gate = Gate::new(4, 4, 1);
        let stream = say(&gate, &ask("/health").replace("close", "keep-alive")).await;
        assert_eq!(gate.pending.len(), 1, "it waits for the next request");
        let mut stream = stream;
        stream.write_all(ask("/metrics").as_bytes()).await.unwrap();
        let text = answer(stream).await;
        assert!(text.contains("fine") && text.contains("numbers"), "{text}");
        assert!(gate.pending.is_empty());
    }
}
