//! A client's connections to one data socket.
//!
//! **Invariant:** a stream in the pool is between transfers: everything asked on it was answered in full.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};

use tokio::net::TcpStream;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::frame::{HelloHead, Unwelcome, WelcomeHead};
use super::line::Line;
use super::stream::{Socket, Wire};
use crate::buffer::SourceBuf;
use crate::{TOKEN_BYTES_MAX, TransferError};

/// The most connections of one client to one data socket.
pub const STREAMS_MAX: usize = 4;
/// The same where a disk is read: its streams mostly wait, and the disk is fast only if many do.
pub(super) const DISK_STREAMS_MAX: usize = 32;

/// A connection to be.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = io::Result<Box<dyn Wire>>> + Send + 'a>>;

/// Opens connections; another one than [`TcpConnect`] is for tests.
pub trait Connect: Send + Sync {
    /// Opens one to `host:port`.
    fn connect<'a>(&'a self, address: &'a str) -> Connecting<'a>;
}

/// Opens TCP connections.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpConnect;

impl Connect for TcpConnect {
    fn connect<'a>(&'a self, address: &'a str) -> Connecting<'a> {
        Box::pin(async move {
            let socket = Socket::new(TcpStream::connect(address).await?)?;
            Ok(Box::new(socket) as Box<dyn Wire>)
        })
    }
}

/// Who a client says it is, and whose memory it wants.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The client.
    pub client: u64,
    /// The memory it believes to be there.
    pub segment: u64,
    /// What it shows to prove that it may; empty where none is needed.
    pub token: String,
}

/// The connections of one client to one data socket.
pub(super) struct Pool {
    address: String,
    identity: Identity,
    connect: Box<dyn Connect>,
    permits: Semaphore,
    idle: Mutex<Vec<Line<Box<dyn Wire>>>>,
}

/// A stream that one transfer uses alone. It goes back only if it is handed back; otherwise it is closed.
pub(super) struct Lent<'a> {
    pool: &'a Pool,
    _permit: SemaphorePermit<'a>,
    pub(super) line: Line<Box<dyn Wire>>,
}

impl Lent<'_> {
    /// Everything asked on it was answered: the next transfer may use it.
    pub(super) fn hand_back(self) {
        self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(self.line);
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

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// A stream, as soon as there is one.
    pub(super) async fn lend(&self) -> Result<Lent<'_>, TransferError> {
        match self.permits.acquire().await {
            Ok(permit) => self.stream(permit).await,
            Err(_) => Err(self.lost("its pool was closed")),
        }
    }

    /// A stream, unless all are lent.
    pub(super) async fn try_lend(&self) -> Option<Result<Lent<'_>, TransferError>> {
        let permit = self.permits.try_acquire().ok()?;
        Some(self.stream(permit).await)
    }

    /// What to say when the other end is gone.
    pub(super) fn lost(&self, why: impl ToString) -> TransferError {
        TransferError::Lost { peer: self.address.clone(), why: why.to_string() }
    }

    async fn stream<'a>(&'a self, permit: SemaphorePermit<'a>) -> Result<Lent<'a>, TransferError> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let line = match idle {
                // One that the node has closed meanwhile is of no use.
                Some(line) if !line.is_quiet() => continue,
                Some(line) => line,
                None => self.open().await?,
            };
            return Ok(Lent { pool: self, _permit: permit, line });
        }
    }

    /// Opens a new stream and introduces the client.
    async fn open(&self) -> Result<Line<Box<dyn Wire>>, TransferError> {
        let refused = |reason| TransferError::Refused { peer: self.address.clone(), reason };
        let Identity { client, segment, token } = &self.identity;
        if token.len() > TOKEN_BYTES_MAX {
            return Err(refused(format!("a token has at most {TOKEN_BYTES_MAX} bytes")));
        }
        let wire = self.connect.connect(&self.address).await.map_err(|error| self.lost(error))?;
        let mut line = Line::new(wire);
        let hello = HelloHead::encode(*client, *segment, token);
        line.send([SourceBuf::from(&hello[..])]).await.map_err(|error| self.lost(error))?;
        let head = line.array(false).await.map_err(|error| self.lost(error))?;
        let head = WelcomeHead::decode(&head).map_err(|error| self.lost(error))?;
        let reason = line.vec(head.reason_bytes).await.map_err(|error| self.lost(error))?;
        let reason = String::from_utf8_lossy(&reason).into_owned();
        match head.status {
            Ok(()) => Ok(line),
            Err(Unwelcome::Refused) => Err(refused(reason)),
            Err(Unwelcome::OtherSegment) => Err(self.lost(reason)),
        }
    }
}
