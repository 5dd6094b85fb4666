//! Tells tasks when a socket can be read or written.
//!
//! The runtime's own streams wake a task for every byte that arrives and, on Unix sockets, for every message
//! that the peer has read. Here a socket is watched only for events that a task waits for.
//!
//! **Invariant:** everything `unsafe` of this crate is here.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

/// Tells tasks when a stream can be read, until this is dropped.
#[derive(Debug)]
pub(crate) struct Readable(AsyncFd<Arc<OwnedFd>>);

impl Readable {
    pub(crate) fn new(socket: &Arc<OwnedFd>) -> io::Result<Self> {
        register(Arc::clone(socket), Interest::READABLE).map(Self)
    }

    /// Waits until there is something to read, or the stream has ended.
    ///
    /// The end of a stream is an event of its own, so a read that finds less than it has space for need not
    /// be followed by another that finds nothing.
    pub(crate) async fn ready(&self) -> io::Result<AsyncFdReadyGuard<'_, Arc<OwnedFd>>> {
        self.0.readable().await
    }
}

/// Waits until bytes can be written. That is rare: only while a peer is slow.
pub(crate) async fn writable(socket: &OwnedFd) -> io::Result<()> {
    // A second descriptor, because the first may be watched for reading.
    let again = Arc::new(socket.try_clone()?);
    register(again, Interest::WRITABLE)?.writable().await.map(drop)
}

fn register(file: Arc<OwnedFd>, interest: Interest) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    // SAFETY: the descriptor is owned by the value that goes into the registration, and no code can take it
    // out of an `Arc` of which that is one holder: it stays open for as long as it is registered.
    unsafe { AsyncFd::register_with_interest(file, interest) }.map_err(io::Error::from)
}
