//! The pages of a client: its health, and the bytes that it has moved.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tiffin_rpc::{Address, ListenError};
use tokio::task::JoinHandle;

use super::{Pages, guarded, not_found, text};
use crate::supervise::Supervisor;

/// What the pages show.
pub trait ClientState: Send + Sync + 'static {
    /// The code of the client's health: 0 if it is healthy.
    fn health(&self) -> Answer<'_, i64>;
    /// The bytes that were read and written.
    fn moved(&self) -> Answer<'_, (u64, u64)>;
}

/// What a client answers when it is asked.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

type Shown = State<Arc<dyn ClientState>>;

/// Pages of a client. They end when this is dropped.
#[derive(Debug)]
pub struct ClientPages {
    address: Address,
    task: JoinHandle<()>,
}

impl ClientPages {
    /// Serves the pages. With a token, all but `/health` require it.
    pub async fn start(
        listen: &Address,
        token: &str,
        state: Arc<dyn ClientState>,
    ) -> Result<Self, ListenError> {
        let (listener, address) = super::listen(listen).await?;
        let pages = Pages { listener, address: address.clone() };
        let task = tokio::spawn(pages.serve(router(state, token), Supervisor::new()));
        Ok(Self { address, task })
    }

    /// Where they are served, with the real port.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for ClientPages {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn router(state: Arc<dyn ClientState>, token: &str) -> Router {
    let router = Router::new()
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/metrics/summary", get(summary))
        .fallback(not_found)
        .method_not_allowed_fallback(not_found)
        .with_state(state);
    guarded(router, token)
}

async fn health(State(state): Shown) -> Response {
    let code = state.health().await;
    let (status, word) = match code {
        0 => (StatusCode::OK, "healthy"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "unhealthy"),
    };
    // In Mooncake's order, for those who compare the text.
    let body = format!(r#"{{"status":"{word}","code":{code}}}"#);
    (status, [(header::CONTENT_TYPE, "application/json; charset=utf-8")], body).into_response()
}

async fn metrics(State(state): Shown) -> Response {
    let (read, written) = state.moved().await;
    let rows = [
        ("mooncake_transfer_read_bytes", "Bytes that this client has read.", read),
        ("mooncake_transfer_write_bytes", "Bytes that this client has written.", written),
    ];
    let page: String = rows
        .iter()
        .map(|(name, about, value)| format!("# HELP {name} {about}\n# TYPE {name} counter\n{name} {value}\n"))
        .collect();
    (StatusCode::OK, [(header::CONTENT_TYPE, "text/plain; version=0.0.4")], page).into_response()
}

async fn summary(State(state): Shown) -> Response {
    let (read, written) = state.moved().await;
    text(StatusCode::OK, format!("Client Metrics Summary: read {read} bytes, written {written} bytes\n"))
}
