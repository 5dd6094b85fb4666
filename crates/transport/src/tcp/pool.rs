//! A client's connections to one data socket.
//!
//! **Invariant:** a stream in the pool is between transfers: all its requests were answered completely.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tiffin_tls::TlsClient;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{sleep, timeout};

use super::buffered::BufferedStream;
use super::frame::{HelloHead, Rejection, WelcomeHead};
use super::secure;
use super::stream::{ByteStream, Socket};
use crate::buffer::SourceBuf;
use crate::{TOKEN_BYTES_MAX, TransferError};

/// Maximum number of connections of one client to one data socket.
pub const STREAMS_MAX: usize = 4;
/// The same for a disk: its streams mostly wait, and a disk is fast only with many requests.
pub(super) const DISK_STREAMS_MAX: usize = 32;

/// Before the name of an abstract Unix socket in an address.
pub(super) const LOCAL_PREFIX: &str = "unix:@";
/// Pause before the next attempt when the queue of a Unix socket is full.
const CONNECT_PAUSE: Duration = Duration::from_millis(2);
/// Time limit for a connection that nothing waits for.
const OPEN_TIME_MAX: Duration = Duration::from_secs(10);
/// Pause after one that failed.
const OPEN_REST: Duration = Duration::from_secs(10);

/// A connection attempt.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = io::Result<Box<dyn ByteStream>>> + Send + 'a>>;

/// Opens connections. Tests use other implementations than [`TcpConnect`].
pub trait Connect: Send + Sync {
    /// Opens a connection to `host:port`, or to `unix:@name`.
    fn connect<'a>(&'a self, address: &'a str) -> Connecting<'a>;
}

/// Opens TCP connections, and those to Unix sockets of this host.
#[derive(Clone, Debug, Default)]
pub struct TcpConnect {
    /// Encrypts TCP connections, and checks whom they lead to.
    pub tls: Option<TlsClient>,
}

impl Connect for TcpConnect {
    fn connect<'a>(&'a self, address: &'a str) -> Connecting<'a> {
        Box::pin(async move {
            if let Some(name) = address.strip_prefix(LOCAL_PREFIX) {
                let stream = connect_local(name).await?;
                return Ok(Box::new(Socket::local(stream)?) as Box<dyn ByteStream>);
            }
            let stream = TcpStream::connect(address).await?;
            Ok(match &self.tls {
                None => Box::new(Socket::new(stream)?) as Box<dyn ByteStream>,
                Some(tls) => Box::new(secure::connect(stream, tls, address).await?),
            })
        })
    }
}

/// Connects to an abstract Unix socket. There is no deadline here: the caller drops the future at its own.
async fn connect_local(name: &str) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(format!("\0{name}")).await {
            // The listener's queue is full, and the system has no event for space in it.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(CONNECT_PAUSE).await,
            connected => return connected,
        }
    }
}

/// How a client identifies itself, and the segment it wants.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The client's id.
    pub client: u64,
    /// The segment it wants.
    pub segment: u64,
    /// The client's token; empty where none is needed.
    pub token: String,
}

/// The connections of one client to one data socket.
pub(super) struct Pool {
    address: String,
    identity: Identity,
    connect: Box<dyn Connect>,
    permits: Semaphore,
    idle: Mutex<Vec<BufferedStream<Box<dyn ByteStream>>>>,
}

/// A stream that one transfer uses exclusively. It returns to the pool by [`Self::release`]; otherwise it is
/// closed.
pub(super) struct PooledStream<'a> {
    pool: &'a Pool,
    _permit: SemaphorePermit<'a>,
    pub(super) stream: BufferedStream<Box<dyn ByteStream>>,
}

impl PooledStream<'_> {
    /// Returns the stream to the pool: all its requests were answered.
    pub(super) fn release(self) {
        self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(self.stream);
    }
}

impl Pool {
    pub(super) fn new(
        address: String,
        identity: Identity,
        connect: Box<dyn Connect>,
        streams_max: usize,
    ) -> Self {
        Self { address, identity, connect, permits: Semaphore::new(streams_max), idle: Mutex::default() }
    }

    /// Opens connections in another way from now on.
    pub(super) fn connect_by(&mut self, connect: Box<dyn Connect>) {
        self.connect = connect;
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// A stream, after waiting for a free one.
    pub(super) async fn acquire(&self) -> Result<PooledStream<'_>, TransferError> {
        match self.permits.acquire().await {
            Ok(permit) => self.stream(permit).await,
            Err(_) => Err(self.lost("its pool was closed")),
        }
    }

    /// A stream, unless all are in use.
    pub(super) async fn try_acquire(&self) -> Option<Result<PooledStream<'_>, TransferError>> {
        let permit = self.permits.try_acquire().ok()?;
        Some(self.stream(permit).await)
    }

    /// Number of streams that are not in use, open or not.
    pub(super) fn free_count(&self) -> usize {
        self.permits.available_permits()
    }

    /// Number of open streams that are not in use.
    pub(super) fn idle_count(&self) -> usize {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Opens so many streams more. If one cannot be opened, the next attempts wait for a while.
    pub(super) async fn open_idle(&self, count: usize) {
        for _ in 0..count {
            let Ok(permit) = self.permits.try_acquire() else { return };
            let Ok(Ok(stream)) = timeout(OPEN_TIME_MAX, self.open()).await else {
                drop(permit);
                return sleep(OPEN_REST).await;
            };
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        }
    }

    /// The error for a broken connection.
    pub(super) fn lost(&self, why: impl ToString) -> TransferError {
        TransferError::Lost { peer: self.address.clone(), why: why.to_string() }
    }

    async fn stream<'a>(&'a self, permit: SemaphorePermit<'a>) -> Result<PooledStream<'a>, TransferError> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let stream = match idle {
                // A connection that the node has closed meanwhile is dropped.
                Some(stream) if !stream.is_idle() => continue,
                Some(stream) => stream,
                None => self.open().await?,
            };
            return Ok(PooledStream { pool: self, _permit: permit, stream });
        }
    }

    /// Opens a new stream and sends the hello.
    async fn open(&self) -> Result<BufferedStream<Box<dyn ByteStream>>, TransferError> {
        let refused = |reason| TransferError::Refused { peer: self.address.clone(), reason };
        let Identity { client, segment, token } = &self.identity;
        if token.len() > TOKEN_BYTES_MAX {
            return Err(refused(format!("the token exceeds {TOKEN_BYTES_MAX} bytes")));
        }
        let wire = self.connect.connect(&self.address).await.map_err(|error| self.lost(error))?;
        let mut stream = BufferedStream::new(wire);
        let hello = HelloHead::encode(*client, *segment, token);
        stream.send([SourceBuf::from(&hello[..])]).await.map_err(|error| self.lost(error))?;
        let head = stream.array(false).await.map_err(|error| self.lost(error))?;
        let head = WelcomeHead::decode(&head).map_err(|error| self.lost(error))?;
        let reason = stream.vec(head.reason_bytes).await.map_err(|error| self.lost(error))?;
        let reason = String::from_utf8_lossy(&reason).into_owned();
        match head.status {
            Ok(()) => Ok(stream),
            Err(Rejection::Refused) => Err(refused(reason)),
            Err(Rejection::OtherSegment) => Err(self.lost(reason)),
        }
    }
}
