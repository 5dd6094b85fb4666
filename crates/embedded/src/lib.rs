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

use std::time::Duration;

use tiffin_client::{Client, ConnectOptions, Deadline, Error};
use tiffin_server::StartError;

/// How long a client may take to connect to the store in its own process.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_goes_to_other_threads() {
        fn check<T: Send + Sync + 'static>() {}
        check::<Embedded>();
    }
}
