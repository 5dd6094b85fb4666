//! A whole store inside one process: a master, a node, and a client that is connected to them.
//!
//! It is a crate of its own so that a plain client depends neither on the servers nor on the disk engine.
//!
//! ```
//! # use std::time::Duration;
//! use tiffin_client::{Deadline, Key, Put};
//! use tiffin_embedded::Embedded;
//!
//! # #[tokio::main(flavor = "multi_thread", worker_threads = 2)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Embedded::start(64 << 20).await?;
//! let soon = Deadline::after(Duration::from_secs(10));
//! for stored in store.client.put(&[Put::new(Key::new(b"greeting")?, b"hello")], soon).await {
//!     println!("stored as generation {}", stored?.generation);
//! }
//! store.stop(soon).await?;
//! # Ok(())
//! # }
//! ```

pub mod drain;

use std::time::Duration;

use tiffin_client::{Client, ConnectOptions, Deadline, Error};
use tiffin_server::StartError;

/// Time limit for connecting to the store in the same process.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// A store inside this process, and a client that is connected to it. Dropping it stops the store and deletes
/// its objects.
///
/// Other processes of the same user may connect to it: its address is in [`Client::options`].
#[derive(Debug)]
pub struct Embedded {
    /// A client of the store.
    pub client: Client,
    /// The store.
    pub server: tiffin_server::Embedded,
}

/// Why an embedded store could not be started.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// The store did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The store started, but the client could not connect.
    #[error(transparent)]
    Connect(#[from] Error),
}

impl Embedded {
    /// Starts a store of `memory_bytes` in this process. Must be called inside a tokio runtime that
    /// outlives the store.
    pub async fn start(memory_bytes: u64) -> Result<Self, EmbeddedError> {
        let server = tiffin_server::Embedded::start(memory_bytes).await?;
        let options = Self::options(&server);
        let client = Client::connect(options).await?;
        Ok(Self { client, server })
    }

    /// Options for a client in the same process.
    #[must_use]
    pub fn options(server: &tiffin_server::Embedded) -> ConnectOptions {
        ConnectOptions {
            home: Some(server.node().segment()),
            own_memory: Some(server.node().memory().clone()),
            own_disks: server.node().local_disks(),
            connect_time: CONNECT_TIME,
            ..ConnectOptions::new(server.address().to_string())
        }
    }

    /// Closes the client, then stops the store.
    pub async fn stop(self, deadline: Deadline) -> Result<(), Error> {
        let closed = self.client.close(deadline).await;
        self.server.shutdown(deadline.instant()).await;
        closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_can_be_moved_to_other_threads() {
        fn check<T: Send + Sync + 'static>() {}
        check::<Embedded>();
    }
}
