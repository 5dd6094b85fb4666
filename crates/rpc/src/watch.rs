//! Tells tasks when a socket can be read or written.
//!
//! The runtime's own streams wake somebody for every byte that comes in and, on Unix sockets, for every
//! message that the peer has taken out. Here a socket is watched only for what somebody waits for.
//!
//! **Invariant:** everything `unsafe` of this crate is here.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::epoll;
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

use crate::Stream;

/// Tells tasks when a stream can be read, unless it was told to be silent.
#[derive(Debug)]
pub(crate) struct Readable {
    socket: Arc<OwnedFd>,
    /// The socket, or an epoll of its own that watches the socket: that one can be made to look away.
    watched: AsyncFd<Arc<OwnedFd>>,
    is_nested: bool,
}

impl Readable {
    /// Watches a stream that only tasks read.
    pub(crate) fn new(stream: &Stream) -> io::Result<Self> {
        let socket = Arc::clone(stream.socket());
        Ok(Self { watched: register(Arc::clone(&socket), Interest::READABLE)?, socket, is_nested: false })
    }

    /// Watches a stream that threads read too.
    pub(crate) fn new_shared(stream: &Stream) -> io::Result<Self> {
        let socket = Arc::clone(stream.socket());
        let watcher = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        epoll::add(&*watcher, &*socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self { watched: register(watcher, Interest::READABLE)?, socket, is_nested: true })
    }

    /// Waits until there is something to read, or the stream has ended.
    pub(crate) async fn ready(&self) -> io::Result<AsyncFdReadyGuard<'_, Arc<OwnedFd>>> {
        self.watched.readable().await
    }

    /// The end of a stream is an event of its own, and not lost with one for bytes that came just before
    /// it. Where that is so, a read that finds less than it has room for need not be followed by another
    /// that finds nothing.
    pub(crate) fn tells_ends(&self) -> bool {
        !self.is_nested
    }

    /// Says nothing about bytes that come in from now on. That a stream has ended is said still.
    pub(crate) fn be_silent(&self) -> io::Result<()> {
        self.change(epoll::EventFlags::empty())
    }

    /// Speaks again, at once if there is something to read.
    pub(crate) fn speak(&self) -> io::Result<()> {
        self.change(epoll::EventFlags::IN)
    }

    fn change(&self, flags: epoll::EventFlags) -> io::Result<()> {
        let watcher = &**self.watched.get_ref();
        Ok(epoll::modify(watcher, &*self.socket, epoll::EventData::new_u64(0), flags)?)
    }
}

/// Waits until bytes can be written. That is wanted only while a peer is slow, so nobody watches for it else.
pub(crate) async fn writable(stream: &Stream) -> io::Result<()> {
    // A second descriptor, because the first may be watched for reading.
    let again = Arc::new(stream.socket().try_clone()?);
    register(again, Interest::WRITABLE)?.writable().await.map(drop)
}

fn register(file: Arc<OwnedFd>, interest: Interest) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    // SAFETY: the descriptor is owned by the value that goes into the registration, and nobody can take it
    // out of an `Arc` of which that is one holder: it stays open for as long as it is registered.
    unsafe { AsyncFd::register_with_interest(file, interest) }.map_err(io::Error::from)
}
