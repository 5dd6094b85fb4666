//! One endpoint: HTTP/1.1 connections that are kept for the next request.

use std::error::Error;
use std::io;
use std::sync::{Mutex, PoisonError};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tiffin_tls::{AnyStream, TlsClient, TlsError, TlsStream, host_of};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use crate::{Failure, INVALID_ARGUMENT};

/// The longest answer. A value has at most 1.5 MiB, and base64 adds a third.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// Connections that are kept.
const IDLE_MAX: usize = 8;
/// The codes of gRPC after which another try may succeed: cancelled, unknown, deadline exceeded, resource
/// exhausted, aborted, unavailable.
const AGAIN: [i64; 6] = [1, 2, 4, 8, 10, 14];

/// What an HTTPS server written in Go answers to plain HTTP.
const WANTS_TLS: &[u8] = b"HTTP request to an HTTPS server";

/// What etcd answers to a certificate with a CommonName while it has users.
const COMMON_NAME: &[u8] = b"CommonName of client";
/// What the user is told then.
const NAMELESS: &str = "while etcd has users, it takes no certificate with a CommonName: show one without, \
    as `tiffin certs` makes them, or none";

type Sender = SendRequest<Full<Bytes>>;

/// An address and its open connections.
#[derive(Debug)]
pub(crate) struct Endpoint {
    address: String,
    tls: Option<TlsClient>,
    /// Whether TLS shows a certificate.
    has_cert: bool,
    idle: Mutex<Vec<Sender>>,
}

/// What is posted.
#[derive(Clone)]
pub(crate) struct Post<'a> {
    /// The path below `/v3/`.
    pub(crate) path: &'a str,
    /// The token of the user; empty for none.
    pub(crate) token: &'a str,
    pub(crate) body: Bytes,
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    message: String,
    #[serde(default)]
    error: String,
    #[serde(default)]
    code: i64,
}

impl Endpoint {
    pub(crate) fn new(address: &str, tls: Option<TlsClient>, has_cert: bool) -> Self {
        Self { address: address.to_owned(), tls, has_cert, idle: Mutex::default() }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Posts a request and returns the body of the answer. A connection that broke while it was idle is
    /// replaced once.
    pub(crate) async fn post(&self, post: Post<'_>, until: Instant) -> Result<Bytes, Failure> {
        let again = |why: &str| Failure::Again(format!("`{}`: {why}", self.address));
        let exchange = async {
            let kept = self.lock().pop();
            if let Some(sender) = kept
                && let Ok(answer) = self.exchange(sender, &post).await
            {
                return Ok(answer);
            }
            let stream = self.connect().await.map_err(|it| self.failure(&it))?;
            let opened = http1::handshake(TokioIo::new(stream)).await;
            let (sender, connection) = opened.map_err(|it| self.failure(&it))?;
            // It ends with the sender.
            tokio::spawn(connection);
            self.exchange(sender, &post).await
        };
        let (is_good, answer) = match timeout_at(until, exchange).await {
            Ok(answer) => answer?,
            Err(_) => return Err(again("no answer")),
        };
        if is_good {
            return Ok(answer);
        }
        match serde_json::from_slice::<Refusal>(&answer) {
            Ok(it) if !AGAIN.contains(&it.code) => {
                let message = if it.message.is_empty() { it.error } else { it.message };
                Err(Failure::Final { code: it.code, message })
            }
            Ok(it) => Err(again(&it.message)),
            Err(_) if answer.windows(WANTS_TLS.len()).any(|it| it == WANTS_TLS) => {
                Err(Failure::Tls(self.address.clone(), TlsError::Wanted))
            }
            Err(_) if answer.starts_with(COMMON_NAME) => {
                Err(Failure::Final { code: INVALID_ARGUMENT, message: NAMELESS.to_owned() })
            }
            Err(_) => Err(again("the answer is not that of etcd")),
        }
    }

    async fn connect(&self) -> io::Result<Box<dyn AnyStream>> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        Ok(match &self.tls {
            None => Box::new(stream),
            Some(tls) => Box::new(TlsStream::shake(stream, tls.session(host_of(&self.address))?).await?),
        })
    }

    /// The failure of a connection. In TLS 1.3 a server refuses a certificate after the handshake, so it may
    /// be behind any error. etcd only closes a connection that has TLS where it expects none, or the reverse.
    fn failure(&self, error: &(dyn Error + 'static)) -> Failure {
        let mut cause = Some(error);
        let mut may_expect = "";
        while let Some(it) = cause {
            match it.downcast_ref().and_then(TlsError::of) {
                // Go's TLS has no alert of its own for that.
                Some(TlsError::Refused(_)) if !self.has_cert => {
                    return Failure::Tls(self.address.clone(), TlsError::CertificateWanted);
                }
                Some(TlsError::Closed) => may_expect = "; it may listen without TLS",
                Some(tls) => return Failure::Tls(self.address.clone(), tls.clone()),
                None => {}
            }
            let is_cut = it.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message)
                || it
                    .downcast_ref::<io::Error>()
                    .is_some_and(|it| it.kind() == io::ErrorKind::ConnectionReset);
            if self.tls.is_none() && is_cut {
                may_expect = "; it may accept only TLS";
            }
            cause = it.source();
        }
        Failure::Again(format!("`{}`: {error}{may_expect}", self.address))
    }

    /// Whether the status says success, and the answer.
    async fn exchange(&self, mut sender: Sender, post: &Post<'_>) -> Result<(bool, Bytes), Failure> {
        let fail = |error: hyper::Error| self.failure(&error);
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("/v3/{}", post.path))
            .header(HOST, &self.address)
            .header(CONTENT_TYPE, "application/json");
        if !post.token.is_empty() {
            request = request.header(AUTHORIZATION, post.token);
        }
        let request = request.body(Full::new(post.body.clone()));
        let request = request.map_err(|it| Failure::Again(format!("`{}`: {it}", self.address)))?;
        sender.ready().await.map_err(fail)?;
        let response = sender.send_request(request).await.map_err(fail)?;
        let is_good = response.status().is_success();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|it| self.failure(&*it))?.to_bytes();
        let mut idle = self.lock();
        if idle.len() < IDLE_MAX {
            idle.push(sender);
        }
        Ok((is_good, body))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Sender>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
