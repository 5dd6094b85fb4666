//! The pages of a client: its health, and the bytes that it has moved.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tiffin_rpc::{Address, ClientCertificates, TlsFiles, TlsServer};
use tokio::task::JoinHandle;

use super::guard::guarded;
use super::{Pages, not_found, text};
use crate::StartError;
use crate::access::Access;
use crate::supervise::Supervisor;

/// What the pages show.
pub trait ClientState: Send + Sync + 'static {
    /// The code of the client's health: 0 if it is healthy.
    fn health(&self) -> Answer<'_, i64>;
    /// What it has counted.
    fn counts(&self) -> Answer<'_, ClientCounts>;
    /// Bytes that the devices of this process have moved.
    fn devices(&self) -> Vec<DeviceBytes>;
}

/// Bytes that a device has moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceBytes {
    /// Its name, such as `cuda:0`.
    pub device: String,
    /// From the device to the host.
    pub saved: u64,
    /// From the host to the device.
    pub loaded: u64,
    /// Those of both that went through pinned memory, because the store's memory was not registered.
    pub ringed: u64,
}

/// The counts of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounts {
    /// Bytes that were read.
    pub read: u64,
    /// Bytes that were written.
    pub written: u64,
    /// Nodes that could not be reached and are left alone for a while.
    pub avoided: u64,
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
    /// Serves the pages; by HTTPS, if there is a certificate. With a token, all but `/health` require it.
    pub async fn start(
        listen: &Address,
        token: &str,
        tls: &TlsFiles,
        state: Arc<dyn ClientState>,
    ) -> Result<Self, StartError> {
        let tls = TlsServer::open(tls, ClientCertificates::Asked)?;
        let (listener, address) = super::listen(listen).await?;
        let pages = Pages::on(listener, address.clone(), tls);
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
    guarded(router, &Access::single(token))
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
    let page = page(state.counts().await) + &device_rows(&state.devices());
    (StatusCode::OK, [(header::CONTENT_TYPE, "text/plain; version=0.0.4")], page).into_response()
}

fn page(ClientCounts { read, written, avoided }: ClientCounts) -> String {
    let about_avoided = "Nodes that could not be reached and are not tried for a while.";
    let rows = [
        ("mooncake_transfer_read_bytes", "counter", "Bytes that this client has read.", read),
        ("mooncake_transfer_write_bytes", "counter", "Bytes that this client has written.", written),
        ("tiffin_client_avoided_nodes", "gauge", about_avoided, avoided),
    ];
    let row = |(name, kind, about, value): (_, _, _, u64)| {
        format!("# HELP {name} {about}\n# TYPE {name} {kind}\n{name} {value}\n")
    };
    rows.into_iter().map(row).collect()
}

/// The counters of devices; nothing if none was used.
fn device_rows(devices: &[DeviceBytes]) -> String {
    if devices.is_empty() {
        return String::new();
    }
    let (moved, ringed) = ("tiffin_device_bytes_total", "tiffin_device_ring_bytes_total");
    let about = "Bytes that a device has moved, by direction.";
    let mut rows = format!("# HELP {moved} {about}\n# TYPE {moved} counter\n");
    for DeviceBytes { device, saved, loaded, .. } in devices {
        rows += &format!("{moved}{{device=\"{device}\",direction=\"save\"}} {saved}\n");
        rows += &format!("{moved}{{device=\"{device}\",direction=\"load\"}} {loaded}\n");
    }
    let about = "Bytes of devices that went through pinned memory.";
    rows += &format!("# HELP {ringed} {about}\n# TYPE {ringed} counter\n");
    for DeviceBytes { device, ringed: bytes, .. } in devices {
        rows += &format!("{ringed}{{device=\"{device}\"}} {bytes}\n");
    }
    rows
}

async fn summary(State(state): Shown) -> Response {
    let ClientCounts { read, written, .. } = state.counts().await;
    text(StatusCode::OK, format!("Client Metrics Summary: read {read} bytes, written {written} bytes\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_shows_every_count() {
        let shown = page(ClientCounts { read: 1, written: 2, avoided: 3 });
        let values: Vec<_> = shown.lines().filter(|it| !it.starts_with('#')).collect();
        let expected = ["mooncake_transfer_read_bytes 1", "mooncake_transfer_write_bytes 2"];
        assert_eq!(values, [&expected[..], &["tiffin_client_avoided_nodes 3"]].concat());
        assert!(shown.contains("# TYPE tiffin_client_avoided_nodes gauge\n"), "{shown}");
    }

    #[test]
    fn devices_are_counted_by_direction() {
        assert_eq!(device_rows(&[]), "");
        let device = DeviceBytes { device: "cuda:1".to_owned(), saved: 5, loaded: 7, ringed: 2 };
        let rows = device_rows(&[device]);
        for row in [
            "tiffin_device_bytes_total{device=\"cuda:1\",direction=\"save\"} 5\n",
            "tiffin_device_bytes_total{device=\"cuda:1\",direction=\"load\"} 7\n",
            "tiffin_device_ring_bytes_total{device=\"cuda:1\"} 2\n",
        ] {
            assert!(rows.contains(row), "{rows}");
        }
    }
}
