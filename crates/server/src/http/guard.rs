//! Which pages a token permits.
//!
//! **Invariant:** a page whose path is not named here needs a token for all namespaces, and a request that is
//! not a GET the right of an administrator: a new page is never open by mistake.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::HttpBody;
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use tiffin_types::access::{Credential, Namespaces, Right, Rights};

use crate::access::{Access, Holder, now_ms};

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
            "/" | "/health" | "/login" | "/logout" => Self::Nothing,
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

    /// The body, which ends when the token does.
    pub(super) fn while_valid<B>(self, body: B) -> WhileValid<B> {
        WhileValid { caller: self, body }
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
    body: B,
}

impl<B: HttpBody + Unpin> HttpBody for WhileValid<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match polled {
            Poll::Ready(Some(_)) if !self.caller.is_valid() => Poll::Ready(None),
            polled => polled,
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        // A page that the guard does not cover shows nothing.
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or(Self(None)))
    }
}

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
            let need = Need::of(request.method(), request.uri().path());
            let holder = shown(&request, &access).or_else(|| known(&request));
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
            request.extensions_mut().insert(Caller(holder));
            next.run(request).await
        }
    }))
}

fn unauthenticated() -> Response {
    let header = [(header::WWW_AUTHENTICATE, "Bearer")];
    let text = "the token is missing or wrong\n\nhint: send `Authorization: Bearer <token>`\n";
    (StatusCode::UNAUTHORIZED, header, text).into_response()
}

/// The holder of the token that a request shows.
fn shown(request: &Request, access: &Access) -> Option<Arc<Holder>> {
    if access.is_open() {
        return access.find("");
    }
    let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let (scheme, shown) = header.and_then(|text| text.split_once(' '))?;
    scheme.eq_ignore_ascii_case("bearer").then(|| access.find(shown.trim())).flatten()
}

#[cfg(test)]
mod tests {
    use tiffin_types::access::NamePattern;

    use super::*;

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
}
