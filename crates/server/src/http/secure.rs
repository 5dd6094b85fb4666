//! HTTPS: the handshake, and what a client without a certificate gets.

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use tiffin_rpc::TlsServer;
use tiffin_tls::{TlsError, TlsStream, is_client_hello};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::HEAD_TIME_MAX;
use super::gate::{self, Gate};
use crate::access::Source;

/// How much of the request of a client without TLS is read.
const PLAINTEXT_BYTES: usize = 4 << 10;
/// What such a client gets.
const PLAINTEXT_ANSWER: &str = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n\
    Connection: close\r\n\r\nthis port accepts only HTTPS\n\nhint: write `https://`, and trust the CA of the \
    server's certificate (`curl --cacert ca.pem`)\n";

/// Serves one connection until it ends.
pub(super) async fn serve(stream: TcpStream, from: Source, tls: &TlsServer, router: Router, gate: Arc<Gate>) {
    let cut = Arc::new(Notify::new());
    let pending = gate.enter(&cut, from);
    let shaken = tokio::select! {
        biased;
        () = cut.notified() => return,
        shaken = timeout(HEAD_TIME_MAX, shake(stream, tls)) => shaken,
    };
    drop(pending);
    let stream = match shaken {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "no TLS handshake on a page's port"),
        Err(_) => return tracing::debug!("a TLS handshake on a page's port took too long"),
    };
    let is_limited = tls.asks_for_certificates() && !stream.has_peer_certificate();
    let router = if is_limited { router.layer(from_fn(only_health)) } else { router };
    gate::serve(stream, from, router, gate).await;
}

async fn shake(mut stream: TcpStream, tls: &TlsServer) -> std::io::Result<TlsStream<TcpStream>> {
    let mut start = [0; 2];
    let len = stream.peek(&mut start).await?;
    if start.get(..len).is_some_and(|it| len == start.len() && !is_client_hello(it)) {
        let _request = stream.read(&mut [0; PLAINTEXT_BYTES]).await?;
        stream.write_all(PLAINTEXT_ANSWER.as_bytes()).await?;
        stream.shutdown().await?;
        return Err(TlsError::Plaintext.into());
    }
    TlsStream::shake(stream, tls.session()?).await
}

async fn only_health(request: Request, next: Next) -> Response {
    if request.uri().path() == "/health" {
        return next.run(request).await;
    }
    let text = "the server accepts only clients with a certificate\n\nhint: show one, as with `curl --cert \
                client.pem --key client.key`\n";
    (StatusCode::FORBIDDEN, text).into_response()
}
