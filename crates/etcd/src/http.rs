//! One endpoint: HTTP/1.1 connections that are kept for the next request.

use std::sync::{Mutex, PoisonError};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use crate::Failure;

/// The longest answer. A value has at most 1.5 MiB, and base64 adds a third.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// Connections that are kept.
const IDLE_MAX: usize = 8;
/// The codes of gRPC after which another try may succeed: cancelled, unknown, deadline exceeded, resource
/// exhausted, aborted, unavailable.
const AGAIN: [i64; 6] = [1, 2, 4, 8, 10, 14];

type Sender = SendRequest<Full<Bytes>>;

/// An address and its open connections.
#[derive(Debug)]
pub(crate) struct Endpoint {
    address: String,
    idle: Mutex<Vec<Sender>>,
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
    pub(crate) fn new(address: &str) -> Self {
        Self { address: address.to_owned(), idle: Mutex::default() }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Posts a request and returns the body of the answer. A connection that broke while it was idle is
    /// replaced once.
    pub(crate) async fn post(&self, path: &str, body: Vec<u8>, until: Instant) -> Result<Bytes, Failure> {
        let again = |why: &str| Failure::Again(format!("`{}`: {why}", self.address));
        let body = Bytes::from(body);
        let exchange = async {
            let kept = self.lock().pop();
            if let Some(sender) = kept
                && let Ok(answer) = self.exchange(sender, path, body.clone()).await
            {
                return Ok(answer);
            }
            let stream = TcpStream::connect(&self.address).await.map_err(|it| again(&it.to_string()))?;
            stream.set_nodelay(true).map_err(|it| again(&it.to_string()))?;
            let opened = http1::handshake(TokioIo::new(stream)).await;
            let (sender, connection) = opened.map_err(|it| again(&it.to_string()))?;
            // It ends with the sender.
            tokio::spawn(connection);
            self.exchange(sender, path, body.clone()).await.map_err(|it| again(&it))
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
                Err(Failure::Final(if it.message.is_empty() { it.error } else { it.message }))
            }
            Ok(it) => Err(again(&it.message)),
            Err(_) => Err(again("the answer is not that of etcd")),
        }
    }

    /// Whether the status says success, and the answer.
    async fn exchange(&self, mut sender: Sender, path: &str, body: Bytes) -> Result<(bool, Bytes), String> {
        let fail = |error: hyper::Error| error.to_string();
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("/v3/{path}"))
            .header(HOST, &self.address)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|it| it.to_string())?;
        sender.ready().await.map_err(fail)?;
        let response = sender.send_request(request).await.map_err(fail)?;
        let is_good = response.status().is_success();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|it| it.to_string())?.to_bytes();
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
