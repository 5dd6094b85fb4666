//! Streams and listeners, TCP and Unix.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, sendmsg, sockopt};
use tiffin_tls::{TlsClient, TlsError, TlsServer};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream, lookup_host};

use crate::Address;
use crate::local::{self, Reach, abstract_path};
use crate::secure::Secure;
use crate::spin::{SPIN_TIME_MAX, Spin};

/// How long `accept` waits before it tries again after an error, at first and at most.
const ACCEPT_PAUSE_MS_MIN: u64 = 1;
/// See [`ACCEPT_PAUSE_MS_MIN`].
const ACCEPT_PAUSE_MS_MAX: u64 = 1000;
/// How long to wait before a full Unix socket is tried again.
const CONNECT_PAUSE: Duration = Duration::from_millis(5);
/// The longest that a read sleeps before it checks its deadline again.
const SLEEP_TIME_MAX: Duration = Duration::from_secs(60);

/// What [`Stream::try_read_little`] reads at most: about twenty small messages.
const LITTLE_BYTES: usize = 4 << 10;

/// A connected stream. Reading and writing need no exclusive access: one reads while others write.
///
/// The socket is a blocking one and is not registered with the runtime; callers that must not wait pass a
/// flag with each system call. So a thread can wait in the kernel for its reply (`read_until`), and no
/// other thread is woken for the bytes that it reads.
#[derive(Debug)]
pub struct Stream {
    socket: Arc<OwnedFd>,
    peer: Peer,
    layer: Layer,
}

/// What is between the socket and the frames.
#[derive(Debug)]
enum Layer {
    Plain,
    /// A handshake, which the listener's settings want and which has not taken place.
    Wanted(TlsServer),
    /// TLS, and bytes that were decrypted before the first read.
    Tls(Box<Secure>, Vec<u8>),
}

/// The peer of a connection, as far as the system knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// By its address.
    Tcp(SocketAddr),
    /// By its process, which is on this machine.
    Unix {
        /// The user it ran as when it connected.
        uid: u32,
        /// Its process, as it was then.
        pid: Option<i32>,
    },
    /// It was gone before the system was asked.
    Gone,
}

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The host's name has no address.
    #[error("{0}")]
    Resolve(io::Error),
    /// No address of the host takes connections on that port.
    #[error("{0}")]
    Connect(#[from] io::Error),
}

/// Why a listener cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on `{address}`: {source}{}", listen_hint(.source))]
pub struct ListenError {
    /// Its address.
    pub address: Address,
    /// The system's error.
    pub source: io::Error,
}

/// Waits for streams.
#[derive(Debug)]
pub struct Listener {
    kind: ListenerKind,
    address: Address,
    /// Wanted of every TCP connection.
    tls: Option<TlsServer>,
}

#[derive(Debug)]
enum ListenerKind {
    // Closed in this order, so that the next owner of the port also gets the local socket.
    Tcp { local: Option<UnixListener>, listener: TcpListener },
    Unix(UnixListener),
}

impl Stream {
    /// Connects. There is no deadline here: the caller drops the future at its own.
    pub async fn connect(address: &Address, reach: Reach) -> Result<Self, ConnectError> {
        match address {
            Address::Tcp { host, port } => Self::connect_tcp(host, *port, reach).await,
            Address::Unix { name } => loop {
                match UnixStream::connect(abstract_path(name)).await {
                    Ok(stream) => return Ok(Self::from_unix(stream)?),
                    // The listener's queue is full, and the system has no event for space in it.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        tokio::time::sleep(CONNECT_PAUSE).await;
                    }
                    Err(error) => return Err(error.into()),
                }
            },
        }
    }

    /// The peer.
    #[must_use]
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Carries out the handshake of a client. There is no deadline here.
    pub(crate) async fn secure(mut self, tls: &TlsClient, host: &str) -> io::Result<Self> {
        let (secure, early) = Secure::shake(&self, tls.session(host)?).await?;
        self.layer = Layer::Tls(Box::new(secure), early);
        Ok(self)
    }

    /// Carries out the handshake of a server, if its listener wants one. There is no deadline here.
    pub(crate) async fn welcome(&mut self) -> io::Result<()> {
        if let Layer::Wanted(tls) = &self.layer {
            let session = tls.session()?;
            // If it fails, what is sent next is not encrypted.
            self.layer = Layer::Plain;
            let (secure, early) = Secure::shake(self, session).await?;
            self.layer = Layer::Tls(Box::new(secure), early);
        }
        Ok(())
    }

    /// Bytes that were received before the first read.
    pub(crate) fn take_early(&mut self) -> Vec<u8> {
        match &mut self.layer {
            Layer::Tls(_, early) => std::mem::take(early),
            Layer::Plain | Layer::Wanted(_) => Vec::new(),
        }
    }

    /// A frame as it goes into the socket.
    pub(crate) fn seal(&self, frame: Vec<u8>) -> Result<Vec<u8>, TlsError> {
        match &self.layer {
            Layer::Plain => Ok(frame),
            Layer::Wanted(_) => Err(TlsError::Wanted),
            Layer::Tls(secure, _) => secure.seal(&frame),
        }
    }

    /// Tries the addresses of the host in turn; on loopback through the local socket first.
    async fn connect_tcp(host: &str, port: u16, reach: Reach) -> Result<Self, ConnectError> {
        // The listener compares with this one: see `SO_PEERCRED`.
        let own = rustix::process::geteuid().as_raw();
        let mut last = None;
        for address in lookup_host((host, port)).await.map_err(ConnectError::Resolve)? {
            if reach == Reach::Near
                && let Some(stream) = local::connect(address, own).await
            {
                return Ok(stream);
            }
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(Self::from_tcp(stream)?),
                Err(error) => last = Some(error),
            }
        }
        Err(match last {
            Some(error) => ConnectError::Connect(error),
            None => ConnectError::Resolve(io::Error::new(io::ErrorKind::NotFound, "the host has no address")),
        })
    }

    fn from_tcp(stream: TcpStream) -> io::Result<Self> {
        // Messages are written as a whole, so there is nothing to gather.
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr().map_or(Peer::Gone, Peer::Tcp);
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(Self::new(stream.into(), peer))
    }

    pub(crate) fn from_unix(stream: UnixStream) -> io::Result<Self> {
        let found = stream.peer_cred();
        let peer = found.map_or(Peer::Gone, |found| Peer::Unix { uid: found.uid(), pid: found.pid() });
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(Self::new(stream.into(), peer))
    }

    fn new(socket: OwnedFd, peer: Peer) -> Self {
        Self { socket: Arc::new(socket), peer, layer: Layer::Plain }
    }

    /// The socket.
    pub(crate) fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Appends what has arrived; `WouldBlock` if nothing has, zero at the end.
    pub(crate) fn try_read(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        if let Layer::Tls(secure, _) = &self.layer {
            let wanted = buffer.capacity() - buffer.len();
            return secure.try_read(self, buffer, wanted);
        }
        Ok(recv(&*self.socket, spare_capacity(buffer), RecvFlags::DONTWAIT)?.0)
    }

    /// The same, but little at a time: freeing many small messages takes the system longer than others should
    /// wait for the processor.
    pub(crate) fn try_read_little(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        if let Layer::Tls(secure, _) = &self.layer {
            return secure.try_read(self, buffer, LITTLE_BYTES);
        }
        let mut little = [0; LITTLE_BYTES];
        let (_, read) = recv(&*self.socket, &mut little[..], RecvFlags::DONTWAIT)?;
        buffer.extend_from_slice(little.get(..read).unwrap_or_default());
        Ok(read)
    }

    /// The same as [`Self::try_read`], but waits in this thread until something is there; `TimedOut` if that
    /// is too late.
    pub(crate) fn read_until(
        &self,
        buffer: &mut Vec<u8>,
        spin: &mut Spin,
        deadline: Instant,
    ) -> io::Result<usize> {
        if spin.is_due() {
            let found = self.poll_briefly(buffer);
            spin.ended(found.is_some());
            if let Some(found) = found {
                return found;
            }
        }
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // A thread that waits in `recv` is also woken when the peer has taken the request out of a Unix
            // socket, and then takes the processor from it.
            let mut socket = [PollFd::new(&*self.socket, PollFlags::IN)];
            let left = Timespec::try_from(left.min(SLEEP_TIME_MAX)).unwrap_or_default();
            match poll(&mut socket, Some(&left)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            match self.try_read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                found => return found,
            }
        }
    }

    /// Reads without sleeping, for a moment. Between two attempts other threads may run: the thread that
    /// replies may need this very processor.
    fn poll_briefly(&self, buffer: &mut Vec<u8>) -> Option<io::Result<usize>> {
        let from = Instant::now();
        loop {
            match self.try_read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                found => return Some(found),
            }
            if from.elapsed() >= SPIN_TIME_MAX {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// Writes as much as the socket accepts.
    pub(crate) fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(sendmsg(&*self.socket, slices, &mut SendAncillaryBuffer::default(), flags)?)
    }

    /// Sets how many bytes the system buffers until the peer has read them, as far as it allows.
    pub(crate) fn set_send_buffer(&self, bytes: usize) -> io::Result<()> {
        Ok(sockopt::set_socket_send_buffer_size(&*self.socket, bytes)?)
    }

    /// Ends both directions at once and wakes all threads and tasks that wait for it.
    pub(crate) fn shutdown(&self) {
        // It fails only if the peer was faster.
        let _gone = rustix::net::shutdown(self, Shutdown::Both);
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(out, "{address}"),
            Self::Unix { uid, pid: Some(pid) } => write!(out, "process {pid} of user {uid}"),
            Self::Unix { uid, pid: None } => write!(out, "a process of user {uid}"),
            Self::Gone => write!(out, "a peer that is gone"),
        }
    }
}

impl Listener {
    /// Begins to listen. Port 0 takes any free one: see [`Self::local_address`]. What listens on loopback has
    /// a local Unix socket besides, for clients with [`Reach::Near`].
    pub async fn bind(address: &Address) -> Result<Self, ListenError> {
        Self::bind_with(address, None).await
    }

    /// The same; TCP connections are encrypted if there is a certificate.
    pub async fn bind_with(address: &Address, tls: Option<TlsServer>) -> Result<Self, ListenError> {
        let bound = Self::try_bind(address).await;
        let bound = bound.map_err(|source| ListenError { address: address.clone(), source })?;
        Ok(Self { tls, ..bound })
    }

    /// Where it listens, with the real port.
    #[must_use]
    pub fn local_address(&self) -> &Address {
        &self.address
    }

    /// The next stream. Errors of single connections and shortages of the system pass by: they are logged,
    /// and waited out with growing pauses.
    pub async fn accept(&self) -> Stream {
        let mut pause_ms = ACCEPT_PAUSE_MS_MIN;
        loop {
            match self.try_accept().await {
                Ok(stream) => return stream,
                Err(error) => {
                    tracing::warn!(address = %self.address, %error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(pause_ms)).await;
                    pause_ms = ACCEPT_PAUSE_MS_MAX.min(pause_ms * 2);
                }
            }
        }
    }

    async fn try_bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp { host, port } => {
                let listener = TcpListener::bind((host.as_str(), *port)).await?;
                let at = listener.local_addr()?;
                let address = Address::Tcp { host: host.clone(), port: at.port() };
                let kind = ListenerKind::Tcp { local: local::listen(at), listener };
                Ok(Self { kind, address, tls: None })
            }
            Address::Unix { name } => {
                let listener = UnixListener::bind(abstract_path(name))?;
                Ok(Self { kind: ListenerKind::Unix(listener), address: address.clone(), tls: None })
            }
        }
    }

    async fn try_accept(&self) -> io::Result<Stream> {
        match &self.kind {
            ListenerKind::Tcp { local: None, listener } => self.accepted(listener.accept().await?.0),
            // Both are equally likely to be next, so that neither keeps the other waiting.
            ListenerKind::Tcp { local: Some(local), listener } => tokio::select! {
                accepted = listener.accept() => self.accepted(accepted?.0),
                accepted = local.accept() => Stream::from_unix(accepted?.0),
            },
            ListenerKind::Unix(listener) => Stream::from_unix(listener.accept().await?.0),
        }
    }

    fn accepted(&self, stream: TcpStream) -> io::Result<Stream> {
        let stream = Stream::from_tcp(stream)?;
        let layer = self.tls.clone().map_or(Layer::Plain, Layer::Wanted);
        Ok(Stream { layer, ..stream })
    }
}

fn listen_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "\n\nhint: another process listens there; stop it, or choose another address (port 0 takes a \
             free one)"
        }
        io::ErrorKind::AddrNotAvailable => "\n\nhint: it is not an address of this machine",
        io::ErrorKind::PermissionDenied => "\n\nhint: choose a port above 1023",
        _ => "",
    }
}
