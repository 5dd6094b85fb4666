//! The pages of a store: `/health` and `/metrics`, as Mooncake's clients serve them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tiffin_client::{Client, Deadline, Error, Key, ResolveOptions, gpu};
use tiffin_server::Address;
use tiffin_server::http::client::{Answer, ClientCounts, ClientPages, ClientState, DeviceBytes};

use super::codes;
use super::log::tell;
use super::segments::Site;
use crate::handle::Handle;

/// The time limit for the master's answer to a health check.
pub(super) const HEALTH_TIME_MAX: Duration = Duration::from_secs(2);

/// A store, which its pages do not keep alive.
struct Shown {
    handle: Weak<Handle>,
    call_time: Duration,
}

impl Shown {
    async fn client(&self, deadline: Deadline) -> Option<Client> {
        self.handle.upgrade()?.client(deadline).await.ok()
    }
}

impl ClientState for Shown {
    fn health(&self) -> Answer<'_, i64> {
        Box::pin(async {
            let deadline = Deadline::after(HEALTH_TIME_MAX.min(self.call_time));
            match self.client(deadline).await {
                None => codes::HEALTH_NOT_SET_UP,
                Some(client) if is_answered(&client, deadline).await => codes::OK,
                Some(_) => codes::HEALTH_NO_MASTER,
            }
        })
    }

    fn counts(&self) -> Answer<'_, ClientCounts> {
        Box::pin(async {
            let Some(client) = self.client(Deadline::after(self.call_time)).await else {
                return ClientCounts::default();
            };
            let counters = client.counters();
            let ways = [&counters.local, &counters.shm, &counters.tcp];
            ClientCounts {
                read: ways.iter().map(|it| it.read()).sum(),
                written: ways.iter().map(|it| it.written()).sum(),
                avoided: client.avoided_nodes(),
            }
        })
    }

    fn devices(&self) -> Vec<DeviceBytes> {
        let bytes = |it: gpu::Counted| DeviceBytes {
            device: format!("cuda:{}", it.device),
            saved: it.saved,
            loaded: it.loaded,
            ringed: it.ringed,
        };
        gpu::counted().into_iter().map(bytes).collect()
    }
}

/// Whether the master answers this client.
pub(super) async fn is_answered(client: &Client, deadline: Deadline) -> bool {
    let Ok(key) = Key::new(b"health") else { return false };
    let looked = client.resolve(&[key], ResolveOptions::default(), deadline).await;
    looked.iter().all(|it| matches!(it, Ok(_) | Err(Error::NodeDown { .. } | Error::Unavailable { .. })))
}

/// Serves the pages where the store's segments listen. `None`, with a line that says why, if that fails: the
/// store works without them.
pub(super) async fn serve(
    handle: &Arc<Handle>,
    call_time: Duration,
    site: &Site,
    port: u16,
) -> Option<ClientPages> {
    let listen = Address::Tcp { host: site.ip.to_string(), port };
    let shown = Shown { handle: Arc::downgrade(handle), call_time };
    match ClientPages::start(&listen, &site.config.token, &site.config.tls, Arc::new(shown)).await {
        Ok(pages) => Some(pages),
        Err(error) => {
            tell(&format!("warning: the pages of this client are not served: {error}"));
            None
        }
    }
}
