//! A whole store inside one process.

use std::time::Duration;

use tiffin_server::StartError;

use crate::{Client, ConnectOptions, Deadline, Error};

/// How long an embedded store that is dropped may take to close.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// A store inside this process, and a client that is connected to it. The store ends when this is dropped,
/// and its objects with it.
///
/// Other processes of the same user may join it: its address is in [`Client::options`].
#[derive(Debug)]
pub struct Embedded {
    /// Connected to the store.
    pub client: Client,
    /// The store itself.
    pub server: tiffin_server::Embedded,
}

/// Why there is no embedded store.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// It did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// It started, and cannot be reached.
    #[error(transparent)]
    Connect(#[from] Error),
}

impl Embedded {
    /// Starts a store of so many bytes in this process. Must be called inside a tokio runtime, which has to
    /// live as long as the store.
    pub async fn start(memory_bytes: u64) -> Result<Self, EmbeddedError> {
        let server = tiffin_server::Embedded::start(memory_bytes).await?;
        let options = Self::options(&server);
        let client = Client::connect(options).await?;
        Ok(Self { client, server })
    }

    /// How a client in the same process connects to that store.
    #[must_use]
    pub fn options(server: &tiffin_server::Embedded) -> ConnectOptions {
        ConnectOptions {
            home: Some(server.node().segment()),
            home_memory: Some(server.node().memory().clone()),
            home_disks: server.node().local_disks(),
            connect_time: CONNECT_TIME,
            ..ConnectOptions::new(server.address().to_string())
        }
    }

    /// Closes the client and then the store.
    pub async fn stop(self, deadline: Deadline) -> Result<(), Error> {
        let closed = self.client.close(deadline).await;
        self.server.shutdown(deadline.instant()).await;
        closed
    }
}
