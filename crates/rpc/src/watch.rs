//! Tells tasks when a socket can be read or written.
//!
//! The runtime's own streams wake somebody for every byte that comes in and, on Unix sockets, for every
//! message that the peer has taken out. Here a socket is watched only for what somebody waits for.
//!
//! **Invariant:** everything `unsafe` of this crate is here and in `untaken`.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
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
        self.change(epoll::EventFlags::RDHUP)
    }

    /// Speaks again, at once if there is something to read.
    ///
    /// The system tells nobody of bytes that came while it was silent if the watcher still lists the socket
    /// for earlier ones, which nobody ever takes off that list. So where there are some, the socket is added
    /// anew: what is new on the list is always told.
    pub(crate) fn speak(&self) -> io::Result<()> {
        self.change(epoll::EventFlags::IN)?;
        let mut socket = [PollFd::new(&*self.socket, PollFlags::IN)];
        if poll(&mut socket, Some(&Timespec::default()))? > 0 {
            let watcher = &**self.watched.get_ref();
            epoll::delete(watcher, &*self.socket)?;
            epoll::add(watcher, &*self.socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;

    use super::*;

    /// A thread that reads looks away from what comes meanwhile, and whoever watches hears of it afterwards:
    /// also if the watcher had noticed the socket before.
    #[tokio::test]
    async fn what_came_while_it_was_silent_is_told_when_it_speaks_again() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let stream = Stream::from_unix(near).unwrap();
        let readable = Readable::new_shared(&stream).unwrap();
        let mut buffer = Vec::with_capacity(16);
        for _ in 0..10 {
            far.write_all(b"noticed").await.unwrap();
            readable.ready().await.unwrap().clear_ready();
            readable.be_silent().unwrap();
            assert_eq!(stream.try_read(&mut buffer).unwrap(), 7);
            buffer.clear();
            far.write_all(b"meanwhile").await.unwrap();
            readable.speak().unwrap();
            let told = tokio::time::timeout(Duration::from_secs(10), readable.ready()).await;
            told.expect("it is told").unwrap().clear_ready();
            assert_eq!(stream.try_read(&mut buffer).unwrap(), 9);
            buffer.clear();
        }
    }

    /// Nobody reads a stream on which nothing is asked, and its end is told nevertheless.
    #[tokio::test]
    async fn the_end_is_told_although_it_is_silent() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address =
            crate::Address::Tcp { host: "127.0.0.1".into(), port: listener.local_addr().unwrap().port() };
        let (accepted, tcp) = tokio::join!(listener.accept(), Stream::connect(&address, crate::Reach::Far));
        let (unix, far) = UnixStream::pair().unwrap();
        let streams = [tcp.unwrap(), Stream::from_unix(unix).unwrap()];
        let watched = streams.each_ref().map(|it| Readable::new_shared(it).unwrap());
        for readable in &watched {
            readable.be_silent().unwrap();
        }
        drop((accepted, far));
        for readable in &watched {
            let told = tokio::time::timeout(Duration::from_secs(10), readable.ready()).await;
            drop(told.expect("it is told").unwrap());
        }
    }
}
