//! Which pages a token permits.
//!
//! **Invariant:** a page whose path is not named here needs a token for all namespaces, and a request that is
//! not a GET the right of an administrator: a new page is never open by mistake.
//!
//! **Invariant:** where no token is set, a request that a browser sends for a page of another site is
//! refused. Such a page must not reach a port of the loopback interface that its own machine could not.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::HttpBody;
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use tiffin_types::access::{Credential, Namespaces, Right, Rights};

use super::gate::{self, TokenPlace};
use crate::access::{Access, Holder, PageLimit, Source, TokenProblem, now_ms};

/// What a page needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// No token: it contains no data, or takes the token itself.
    Nothing,
    /// One of these rights, in the namespaces that the page is about. The page itself compares them.
    Within(Rights),
    /// One of these rights, and all namespaces.
    Everywhere(Rights),
}

impl Need {
    fn of(method: &Method, path: &str) -> Self {
        let (read, write) = (Rights::of(Right::Read), Rights::of(Right::Write));
        let (admin, is_get) = (Rights::of(Right::Admin), matches!(*method, Method::GET | Method::HEAD));
        match path {
            _ if gate::is_public(path) => Self::Nothing,
            "/get_all_keys" | "/query_key" | "/batch_query_keys" | "/api/tiffin/why" => Self::Within(read),
            "/api/v1/remove_all" => Self::Within(write),
            "/api/v1/tenant_quotas" if is_get => Self::Within(read.and(Right::Admin)),
            "/api/v1/tenant_quotas" => Self::Within(admin),
            "/metadata" if is_get => Self::Everywhere(read),
            "/metadata" => Self::Everywhere(write),
            _ if is_get => Self::Everywhere(read.and(Right::Admin)),
            _ => Self::Everywhere(admin),
        }
    }

    /// Whether the credential meets it. `Err` is the problem.
    fn check(self, credential: &Credential) -> Result<(), String> {
        let (Self::Within(rights) | Self::Everywhere(rights)) = self else { return Ok(()) };
        if !credential.rights().meets(rights) {
            return Err(format!("the token lacks the right: {rights}"));
        }
        if matches!(self, Self::Everywhere(_)) && !credential.namespaces().is_all() {
            return Err("the page is about all namespaces, and the token is not for all of them".to_owned());
        }
        Ok(())
    }
}

/// The party that has requested a page, for pages that are about namespaces.
#[derive(Clone, Debug)]
pub(super) struct Caller(Option<Arc<Holder>>);

impl Caller {
    /// Whether the page may show this namespace.
    pub(super) fn covers(&self, namespace: &str) -> bool {
        self.0.as_ref().is_some_and(|it| it.namespaces().covers(namespace))
    }

    /// Whether it has shown a token, where one is needed.
    pub(super) fn is_known(&self) -> bool {
        self.0.is_some()
    }

    /// The body, which ends when the token does.
    pub(super) fn while_valid<B>(self, body: B) -> WhileValid<B> {
        let holder = self.0.clone();
        let ended = Box::pin(async move {
            if let Some(holder) = holder {
                holder.ended().await;
            }
        });
        WhileValid { caller: self, ended, body }
    }

    fn is_valid(&self) -> bool {
        self.0.as_ref().is_some_and(|it| it.is_valid(now_ms()))
    }

    /// The namespaces that the page may show.
    pub(super) fn namespaces(&self) -> &Namespaces {
        const NONE: &Namespaces = &Namespaces::Some(Vec::new());
        self.0.as_ref().map_or(NONE, |it| it.namespaces())
    }
}

/// A body that may last longer than the token of its reader.
pub(super) struct WhileValid<B> {
    caller: Caller,
    ended: Pin<Box<dyn Future<Output = ()> + Send>>,
    body: B,
}

impl<B: HttpBody + Unpin> HttpBody for WhileValid<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        if !self.caller.is_valid() || self.ended.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        Pin::new(&mut self.body).poll_frame(context)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        // A page that the guard does not cover shows nothing.
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or(Self(None)))
    }
}

/// Marks the requests of a port that only this machine reaches.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalPort;

/// Requires a token that permits the page.
pub(crate) fn guarded(router: Router, access: &Arc<Access>) -> Router {
    guarded_unless(router, access, |_| None)
}

/// The same, except for requests of a known holder that show no token.
pub(super) fn guarded_unless(
    router: Router,
    access: &Arc<Access>,
    known: impl Fn(&Request) -> Option<Arc<Holder>> + Clone + Send + Sync + 'static,
) -> Router {
    let access = Arc::clone(access);
    router.layer(from_fn(move |mut request: Request, next: Next| {
        let (access, known) = (Arc::clone(&access), known.clone());
        async move {
            let is_local = request.extensions().get::<LocalPort>().is_some();
            if access.is_open() && is_foreign(request.headers(), is_local) {
                let text = "the request comes from a page of another site\n\nhint: use the address of the \
                            server itself, or set a token\n";
                return (StatusCode::FORBIDDEN, text).into_response();
            }
            let need = Need::of(request.method(), request.uri().path());
            let shown = shown(&request, &access);
            if let Err(problem) = shown
                && let Some(busy) = told_in_time(&access, problem, source(&request)).await
            {
                return busy;
            }
            let holder = shown.ok().or_else(|| known(&request));
            let holder = holder.filter(|it| it.is_valid(now_ms()));
            let checked = match &holder {
                _ if need == Need::Nothing => Ok(()),
                Some(holder) => need.check(holder.credential()),
                None => return unauthenticated(),
            };
            if let Err(problem) = checked {
                let text = format!("{problem}\n\nhint: use a token that permits it; see `tiffin token`\n");
                return (StatusCode::FORBIDDEN, text).into_response();
            }
            let place = match holder.as_ref().map(|it| it.page_place()) {
                Some(Err(PageLimit)) => return gate::crowded(),
                Some(Ok(place)) => place,
                None => None,
            };
            let turn = gate::turn(&request);
            let _turn = turn.await;
            request.extensions_mut().insert(Caller(holder));
            let mut response = next.run(request).await;
            if let Some(place) = place {
                response.extensions_mut().insert(TokenPlace::new(place));
            }
            response
        }
    }))
}

fn unauthenticated() -> Response {
    let header = [(header::WWW_AUTHENTICATE, "Bearer")];
    let text = "the token is missing or wrong\n\nhint: send `Authorization: Bearer <token>`\n";
    (StatusCode::UNAUTHORIZED, header, text).into_response()
}

/// Whether a browser sends the request for a page of another site: its origin is another one, or it names a
/// port of the loopback interface by a name that an attacker may have directed there.
fn is_foreign(headers: &HeaderMap, is_local_port: bool) -> bool {
    let text = |name: HeaderName| headers.get(name).map(|it| it.to_str().unwrap_or_default());
    let host = text(header::HOST).unwrap_or_default();
    let origin = text(header::ORIGIN).map(|it| it.split_once("://").map_or("", |(_, authority)| authority));
    if origin.is_some_and(|it| !it.eq_ignore_ascii_case(host)) {
        return true;
    }
    let is_port = |it: &str| it.bytes().all(|byte| byte.is_ascii_digit());
    let name = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name);
    let is_loopback = match name.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(ip) => ip.is_loopback(),
        Err(_) => name.is_empty() || name.eq_ignore_ascii_case("localhost"),
    };
    is_local_port && !is_loopback
}

/// The holder of the token that a request shows.
fn shown(request: &Request, access: &Access) -> Result<Arc<Holder>, TokenProblem> {
    if access.is_open() {
        return access.holder("");
    }
    let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown = header.and_then(|text| text.split_once(' '));
    let token = shown.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, it)| it.trim());
    access.holder(token.unwrap_or_default())
}

/// Where a request comes from.
pub(super) fn source(request: &Request) -> Option<Source> {
    request.extensions().get().copied()
}

/// Waits until a peer may be told that its token is wrong. A response if it is told something else.
pub(super) async fn told_in_time(
    access: &Access,
    problem: TokenProblem,
    source: Option<Source>,
) -> Option<Response> {
    if access.answer_time(problem, source).comes().await {
        return None;
    }
    let text = "too many wrong tokens from this host\n\nhint: check the token, and retry later\n";
    let headers = [(header::CONNECTION, "close"), (header::RETRY_AFTER, "1")];
    Some((StatusCode::TOO_MANY_REQUESTS, headers, text).into_response())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use axum::routing::get;
    use tiffin_types::access::NamePattern;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::task::JoinSet;

    use super::*;
    use crate::access::Guesses;

    #[test]
    fn requests_of_other_sites_are_found() {
        for (host, origin, is_local_port, expected) in [
            (Some("127.0.0.1:7401"), None, true, false),
            (Some("localhost:7401"), Some("http://localhost:7401"), true, false),
            (Some("LOCALHOST"), Some("http://localhost"), true, false),
            (Some("[::1]:7401"), Some("http://[::1]:7401"), true, false),
            (None, None, true, false),
            (Some("master.example:7401"), None, false, false),
            (Some("127.0.0.1:7401"), Some("https://evil.example"), true, true),
            (Some("127.0.0.1:7401"), Some("http://127.0.0.1:80"), true, true),
            (Some("127.0.0.1:7401"), Some("null"), true, true),
            (Some("master.example:7401"), Some("https://evil.example"), false, true),
            (None, Some("https://evil.example"), false, true),
            // Its name was directed to this machine.
            (Some("evil.example:7401"), None, true, true),
            (Some("evil.example:7401"), Some("http://evil.example:7401"), true, true),
            (Some("localhost.evil.example"), None, true, true),
            (Some("10.0.0.1:7401"), None, true, true),
        ] {
            let pairs = [(header::HOST, host), (header::ORIGIN, origin)];
            let headers = pairs.into_iter().filter_map(|(name, it)| Some((name, it?.parse().unwrap())));
            let headers: HeaderMap = headers.collect();
            assert_eq!(is_foreign(&headers, is_local_port), expected, "{host:?} {origin:?}");
        }
    }

    #[test]
    fn pages_need_rights_and_namespaces() {
        let some = || Namespaces::Some(vec![NamePattern::new("team-a").unwrap()]);
        let with = |right, all: bool| {
            let namespaces = if all { Namespaces::All } else { some() };
            Credential::new("x", Rights::of(right), namespaces, None)
        };
        let (reader, limited) = (with(Right::Read, true), with(Right::Read, false));
        let (writer, admin) = (with(Right::Write, true), with(Right::Admin, true));
        let permitted = |method: &Method, path: &str| {
            [&reader, &limited, &writer, &admin].map(|it| Need::of(method, path).check(it).is_ok())
        };
        for (method, path, expected) in [
            (Method::GET, "/health", [true; 4]),
            (Method::POST, "/login", [true; 4]),
            (Method::GET, "/get_all_keys", [true, true, false, false]),
            (Method::GET, "/api/tiffin/why", [true, true, false, false]),
            (Method::GET, "/metrics", [true, false, false, true]),
            (Method::GET, "/api/tiffin/events", [true, false, false, true]),
            (Method::GET, "/unknown", [true, false, false, true]),
            (Method::PUT, "/unknown", [false, false, false, true]),
            (Method::POST, "/api/v1/remove_all", [false, false, true, false]),
            (Method::PUT, "/api/v1/tenant_quotas", [false, false, false, true]),
            (Method::POST, "/api/v1/drain_jobs", [false, false, false, true]),
            (Method::GET, "/metadata", [true, false, false, false]),
            (Method::PUT, "/metadata", [false, false, true, false]),
        ] {
            assert_eq!(permitted(&method, path), expected, "{method} {path}");
        }
    }

    fn ask(path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
    }

    async fn answer(mut stream: DuplexStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
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
        let pages = guarded(pages, &Access::single(""));
        let gate = gate::Gate::new(16, 16, 1);
        for (path, expected) in [("/metrics", 1), ("/health", 4)] {
            let mut answers = JoinSet::new();
            for _ in 0..4 {
                let (mut near, far) = duplex(4096);
                tokio::spawn(gate::serve(far, Source::User(0), pages.clone(), Arc::clone(&gate)));
                near.write_all(ask(path).as_bytes()).await.unwrap();
                answers.spawn(answer(near));
            }
            let answers = answers.join_all().await;
            assert!(answers.iter().all(|text| text.contains("numbers")), "{answers:?}");
            assert_eq!(most.swap(0, Ordering::Relaxed), expected, "{path}");
        }
    }

    /// The answers to wrong tokens are held back for ever.
    #[tokio::test(start_paused = true)]
    async fn wrong_tokens_hold_up_no_expensive_page() {
        let pages = Router::new().route("/metrics", get(async || "numbers"));
        let access = Access::with_guesses("secret", Guesses::with_limits(0, 2));
        let gate = gate::Gate::new(16, 16, 1);
        let say = async |token: &str| {
            let (mut near, far) = duplex(4096);
            tokio::spawn(gate::serve(
                far,
                Source::User(0),
                guarded(pages.clone(), &access),
                Arc::clone(&gate),
            ));
            let head = format!("\r\nAuthorization: Bearer {token}\r\n\r\n");
            near.write_all(ask("/metrics").replace("\r\n\r\n", &head).as_bytes()).await.unwrap();
            for _ in 0..16 {
                tokio::task::yield_now().await;
            }
            near
        };
        let _wrong = [say("wrong").await, say("wrong").await];
        let text = answer(say("secret").await).await;
        assert!(text.contains("numbers"), "{text}");
    }
}
