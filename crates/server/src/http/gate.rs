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
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::{HEAD_TIME_MAX, IDLE_TIME_MAX, REQUEST_TIME_MAX};
use crate::access::Source;

/// The maximum length of a request's head and of a connection's buffer: a query may name many keys.
const BUFFER_BYTES_MAX: usize = 72 << 10;

/// The maximum number of expensive pages that are rendered at a time. Further requests for them wait, so
/// that the master's clients do not.
const TURNS_MAX: usize = 1;

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
    reserved: Arc<Semaphore>,
    requests_max: usize,
    /// Requests that found the limit reached.
    crowded: AtomicU64,
    turns: Semaphore,
}

impl Gate {
    pub(super) fn new(pending_max: usize, requests_max: usize, reserved_max: usize) -> Arc<Self> {
        Arc::new(Self {
            pending: Pending::new(pending_max),
            requests: Arc::new(Semaphore::new(requests_max)),
            reserved: Arc::new(Semaphore::new(reserved_max)),
            requests_max,
            crowded: AtomicU64::new(0),
            turns: Semaphore::new(TURNS_MAX),
        })
    }

    /// Counts a connection that has sent no request yet. It must end when `cut` is notified.
    pub(super) fn enter(&self, cut: &Arc<Notify>) -> PendingEntry {
        self.pending.enter(cut)
    }

    /// The limits of connections without a complete request, and of requests that are answered.
    pub(super) fn limits(&self) -> [LimitUse; 2] {
        let used = self.requests_max - self.requests.available_permits();
        let reached = self.crowded.load(Ordering::Relaxed);
        [self.pending.limit(), LimitUse { max: self.requests_max as u64, used: used as u64, reached }]
    }

    /// Waits for permission to render a page; only expensive pages wait.
    async fn turn(&self, is_expensive: bool) -> Option<SemaphorePermit<'_>> {
        match is_expensive {
            // The semaphore is never closed.
            true => self.turns.acquire().await.ok(),
            false => None,
        }
    }

    /// Admits a request, or returns `None` if the limit is reached.
    fn place(&self, path: &str) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.requests).try_acquire_owned().ok();
        self.crowded.fetch_add(u64::from(place.is_none()), Ordering::Relaxed);
        let is_reserved = matches!(path, "/health" | "/metrics");
        place.or_else(|| Arc::clone(&self.reserved).try_acquire_owned().ok().filter(|_| is_reserved))
    }
}

/// Whether a connection is pending.
struct Turn {
    gate: Arc<Gate>,
    cut: Arc<Notify>,
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
        let entry = self.turn.gate.pending.enter(&self.turn.cut);
        *self.turn.entry() = Some(entry);
    }
}

/// Serves one connection until it ends. Its requests carry where they come from.
pub(super) async fn serve<S>(stream: S, from: Source, router: Router, gate: Arc<Gate>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let cut = Arc::new(Notify::new());
    let entry = Mutex::new(Some(gate.pending.enter(&cut)));
    let turn = Arc::new(Turn { gate, cut: Arc::clone(&cut), entry });
    let pages = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(from);
        let served = Served::begin(&turn, request.uri().path());
        let (is_expensive, gate) = (is_expensive(request.uri().path()), Arc::clone(&turn.gate));
        let made = hyper::service::Service::call(&pages, request.map(Body::new));
        async move {
            let answer = async {
                let _turn = gate.turn(is_expensive).await;
                made.await
            };
            let response = match &served {
                Some(_) => timeout(REQUEST_TIME_MAX, answer).await.unwrap_or_else(|_| Ok(late()))?,
                None => crowded(),
            };
            Ok::<_, Infallible>(response.map(|body| Sent { body, _served: served }))
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

fn crowded() -> Response {
    let text = "too many concurrent requests\n\nhint: retry in a moment, or poll less often\n";
    let headers = [(header::CONNECTION, "close"), (header::RETRY_AFTER, "1")];
    (StatusCode::SERVICE_UNAVAILABLE, headers, text).into_response()
}

/// The body of a response. The request counts as served until all of it was handed on.
struct Sent {
    body: Body,
    _served: Option<Served>,
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
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use axum::routing::{get, put};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::task::JoinSet;

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
    async fn expensive_pages_are_rendered_one_at_a_time() {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counters = (Arc::clone(&now), Arc::clone(&most));
        let page = get(async move || {
            let (now, most) = counters;
            most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(1)).await;
            now.fetch_sub(1, Ordering::Relaxed);
            "numbers"
        });
        let pages = Router::new().route("/metrics", page.clone()).route("/health", page);
        let gate = Gate::new(16, 16, 1);
        for (path, expected) in [("/metrics", 1), ("/health", 4)] {
            let mut answers = JoinSet::new();
            for _ in 0..4 {
                let (mut near, far) = duplex(4096);
                tokio::spawn(serve(far, Source::User(0), pages.clone(), Arc::clone(&gate)));
                near.write_all(ask(path).as_bytes()).await.unwrap();
                answers.spawn(answer(near));
            }
            let answers = answers.join_all().await;
            assert!(answers.iter().all(|text| text.contains("numbers")), "{answers:?}");
            assert_eq!(most.swap(0, Ordering::Relaxed), expected, "{path}");
        }
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
