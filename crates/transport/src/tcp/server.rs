//! The node's end of the data socket.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::frame::{
    FrameError, HelloHead, ReplyHead, ReplyKind, RequestHead, RequestKind, Status, Unwelcome, WelcomeHead,
};
use super::stream::{Wire, receive_all, receive_array, receive_vec, send_all};
use crate::buffer::{SourceBuf, TargetBuf};
use crate::segment::NodeMemory;
use crate::{CHUNK_BYTES_MAX, Counters, Extent, copy};

/// The most connections to one data socket.
const CONNECTIONS_MAX: usize = 4096;
/// How long a client may take to say who it is.
const HELLO_TIME_MAX: Duration = Duration::from_secs(10);
/// How long the bytes of one chunk may take. A client that is slower loses its connection, so that it cannot
/// keep a hold on space that others need.
const CHUNK_TIME_MAX: Duration = Duration::from_secs(60);
/// How long to rest when no connection can be accepted, which means that descriptors have run out.
const ACCEPT_REST: Duration = Duration::from_millis(50);
/// Bytes that are not wanted are read in pieces of this size and dropped.
const DISCARD_BYTES: usize = 64 << 10;
/// When an idle connection is asked whether its host still lives.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Knows whose bytes are where, and keeps them there while they are moved. Implemented by the node's shell.
///
/// Nothing here may block for long: it is called from the tasks that move bytes.
pub trait Keeper: Send + Sync {
    /// A client wants to write this range of its reservation: where it lies, from now on held; `None` if the
    /// client holds no such reservation, or it is already being committed.
    fn begin_store(&self, client: u64, slot: u32, stamp: u64, offset: u64, len: u64) -> Option<Vec<Extent>>;

    /// That write has ended, well or not.
    fn end_store(&self, slot: u32, stamp: u64);

    /// Somebody wants to read this range: where it lies, from now on held; `None` if there is no such use.
    fn begin_send(&self, slot: u32, stamp: u64, offset: u64, len: u64) -> Option<Vec<Extent>>;

    /// That read has ended, well or not; whether the use is still valid.
    fn end_send(&self, slot: u32, stamp: u64) -> bool;

    /// A client has opened its first connection.
    fn opened(&self, client: u64);

    /// A client has closed its last connection: it reaches no byte through this socket any more.
    fn closed(&self, client: u64);
}

/// A client that wants to come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Who it says it is.
    pub client: u64,
    /// What it shows to prove that it may.
    pub token: String,
}

/// Decides who may come in; the text of a refusal is shown to the client.
pub type Authorise = Box<dyn Fn(&Hello) -> Result<(), String> + Send + Sync>;

/// Why a connection ended other than by the client closing it between requests.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The connection broke, or ended in the middle of something.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// The client did not speak the protocol.
    #[error("the client did not speak the protocol: {0}")]
    Protocol(#[from] FrameError),
    /// The client was too slow.
    #[error("the client was too slow")]
    Slow(#[from] tokio::time::error::Elapsed),
    /// The client was not let in.
    #[error("the client was refused: {0}")]
    Refused(String),
}

/// Moves bytes between a node's memory and the clients on its data socket.
pub struct Server {
    memory: Arc<NodeMemory>,
    keeper: Arc<dyn Keeper>,
    authorise: Authorise,
    counters: Arc<Counters>,
    /// How many connections each client has.
    open: Mutex<BTreeMap<u64, usize>>,
}

impl Server {
    /// Serves this memory as the keeper allows.
    #[must_use]
    pub fn new(
        memory: Arc<NodeMemory>,
        keeper: Arc<dyn Keeper>,
        authorise: Authorise,
        counters: Arc<Counters>,
    ) -> Arc<Self> {
        Arc::new(Self { memory, keeper, authorise, counters, open: Mutex::default() })
    }

    /// Serves until it is dropped; that ends every connection.
    pub async fn run(self: Arc<Self>, listener: TcpListener) {
        let mut tasks = JoinSet::new();
        loop {
            let accepted = listener.accept().await;
            while let Some(ended) = tasks.try_join_next() {
                if let Err(error) = ended {
                    tracing::error!(%error, "the task of a data connection broke down");
                }
            }
            match accepted {
                Ok((stream, from)) => {
                    let (server, is_full) = (Arc::clone(&self), tasks.len() >= CONNECTIONS_MAX);
                    prepare(&stream);
                    tasks.spawn(async move {
                        if let Err(error) = server.serve(stream, is_full).await {
                            tracing::debug!(%from, %error, "a data connection ended");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "no connection could be accepted on the data socket");
                    tokio::time::sleep(ACCEPT_REST).await;
                }
            }
        }
    }

    /// Serves one connection to its end.
    pub async fn serve(&self, mut wire: impl Wire, is_full: bool) -> Result<(), ServeError> {
        let client = timeout(HELLO_TIME_MAX, self.welcome(&mut wire, is_full)).await??;
        let _open = self.open(client);
        let mut discard = vec![0; DISCARD_BYTES];
        loop {
            let Some(head) = next_request(&mut wire).await? else { return Ok(()) };
            match head.kind {
                RequestKind::Write => self.store(&mut wire, client, &head, &mut discard).await?,
                RequestKind::Read => self.send(&mut wire, &head).await?,
            }
        }
    }

    /// Hears the hello and answers it.
    async fn welcome(&self, wire: &mut impl Wire, is_full: bool) -> Result<u64, ServeError> {
        let head = HelloHead::decode(&receive_array(wire).await?);
        let head = match head {
            Ok(head) => head,
            // Whoever speaks another protocol is not told anything in this one.
            Err(FrameError::Magic) => return Err(FrameError::Magic.into()),
            Err(error) => return refuse(wire, Unwelcome::Refused, error.to_string()).await,
        };
        let token = receive_vec(wire, head.token_bytes).await?;
        let Ok(token) = String::from_utf8(token) else {
            return refuse(wire, Unwelcome::Refused, "the token is not text".to_owned()).await;
        };
        if is_full {
            let reason = format!("there are {CONNECTIONS_MAX} connections already");
            return refuse(wire, Unwelcome::Refused, reason).await;
        }
        if let Err(reason) = (self.authorise)(&Hello { client: head.client, token }) {
            return refuse(wire, Unwelcome::Refused, reason).await;
        }
        let here = self.memory.geometry().segment;
        if head.segment != here {
            let reason = format!("this is segment {here:016x}, and you asked for {:016x}", head.segment);
            return refuse(wire, Unwelcome::OtherSegment, reason).await;
        }
        send_all(wire, [SourceBuf::from(&WelcomeHead::encode(Ok(()), "")[..])]).await?;
        Ok(head.client)
    }

    /// Counts the client's connections; the count sinks when the returned value is dropped.
    fn open(&self, client: u64) -> Open<'_> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(client).or_default();
        *count += 1;
        // Under the lock, so that the keeper hears openings and closings in the order in which they happened.
        if *count == 1 {
            self.keeper.opened(client);
        }
        Open { server: self, client }
    }

    /// Receives the bytes of a write straight into the segment.
    async fn store(
        &self,
        wire: &mut impl Wire,
        client: u64,
        head: &RequestHead,
        discard: &mut [u8],
    ) -> Result<(), ServeError> {
        let begun = self.keeper.begin_store(client, head.slot, head.stamp, head.offset, head.len);
        let status = if let Some(extents) = begun {
            let _hold = StoreHold { keeper: &*self.keeper, head };
            match self.targets(&extents, head.len) {
                Some(targets) => {
                    timeout(CHUNK_TIME_MAX, receive_all(wire, targets.iter().copied())).await??;
                    let sources = targets.into_iter().map(TargetBuf::as_source);
                    let is_whole = copy::checksum(sources) == head.checksum;
                    if is_whole { Status::Ok } else { Status::BadChecksum }
                }
                None => {
                    tracing::error!(?head, ?extents, "the keeper gave extents that are not the range");
                    self.skip(wire, head.len, discard).await?;
                    Status::Stale
                }
            }
        } else {
            self.skip(wire, head.len, discard).await?;
            self.why_not(head)
        };
        if status == Status::Ok {
            self.counters.served.add_written(head.len);
        }
        let reply = ReplyHead { kind: ReplyKind::Written, status, id: head.id, len: 0, checksum: 0 };
        self.reply(wire, &reply).await
    }

    /// Sends the bytes of a read straight from the segment, and then says whether they count.
    async fn send(&self, wire: &mut impl Wire, head: &RequestHead) -> Result<(), ServeError> {
        let mut reply =
            ReplyHead { kind: ReplyKind::Data, status: Status::Ok, id: head.id, len: head.len, checksum: 0 };
        let Some(extents) = self.keeper.begin_send(head.slot, head.stamp, head.offset, head.len) else {
            let status = self.why_not(head);
            return self.reply(wire, &ReplyHead { status, len: 0, ..reply }).await;
        };
        let hold = SendHold::new(&*self.keeper, head);
        let Some(sources) = self.sources(&extents, head.len) else {
            tracing::error!(?head, ?extents, "the keeper gave extents that are not the range");
            return self.reply(wire, &ReplyHead { status: Status::Stale, len: 0, ..reply }).await;
        };
        let head_bytes = reply.encode();
        let all: Vec<_> = std::iter::once(SourceBuf::from(&head_bytes[..])).chain(sources.clone()).collect();
        timeout(CHUNK_TIME_MAX, send_all(wire, all)).await??;
        // The bytes are with the kernel now, so what becomes of the space no longer matters to them.
        reply.checksum = copy::checksum(sources);
        reply.status = if hold.end() { Status::Ok } else { Status::Stale };
        reply.kind = ReplyKind::Trailer;
        self.counters.served.add_read(head.len);
        self.reply(wire, &reply).await
    }

    /// Tells a range that is too large from a use that is gone.
    fn why_not(&self, head: &RequestHead) -> Status {
        let placement = self.memory.reader().load(head.slot, head.stamp);
        match placement.map(|placement| placement.range(head.offset, head.len)) {
            Ok(Err(_)) => Status::OutOfRange,
            _ => Status::Stale,
        }
    }

    /// The memory of the extents, if they are inside the segment and exactly `len` bytes.
    fn targets(&self, extents: &[Extent], len: u64) -> Option<Vec<TargetBuf<'_>>> {
        let targets: Vec<_> =
            extents.iter().map(|&extent| self.memory.data.target(extent)).collect::<Option<_>>()?;
        (targets.iter().map(|target| target.len() as u64).sum::<u64>() == len).then_some(targets)
    }

    /// As above, to be read.
    fn sources(&self, extents: &[Extent], len: u64) -> Option<Vec<SourceBuf<'_>>> {
        let targets = self.targets(extents, len)?;
        Some(targets.into_iter().map(TargetBuf::as_source).collect())
    }

    /// Reads past bytes that have no place to go.
    async fn skip(&self, wire: &mut impl Wire, len: u64, discard: &mut [u8]) -> Result<(), ServeError> {
        debug_assert!(len <= CHUNK_BYTES_MAX);
        timeout(CHUNK_TIME_MAX, async {
            let mut left = usize::try_from(len).unwrap_or(usize::MAX);
            while left > 0 {
                let (piece, _) = TargetBuf::from(&mut *discard).split_at(left);
                receive_all(wire, [piece]).await?;
                left -= piece.len();
            }
            Ok(())
        })
        .await?
    }

    async fn reply(&self, wire: &mut impl Wire, reply: &ReplyHead) -> Result<(), ServeError> {
        timeout(CHUNK_TIME_MAX, send_all(wire, [SourceBuf::from(&reply.encode()[..])])).await??;
        Ok(())
    }
}

/// The next request; `None` if the client closed the connection before it.
async fn next_request(wire: &mut impl Wire) -> Result<Option<RequestHead>, ServeError> {
    let mut first = [0];
    // A client may be silent between requests for as long as it likes.
    match receive_all(wire, [TargetBuf::from(&mut first[..])]).await {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let mut bytes = [0; super::frame::REQUEST_BYTES];
    let (start, rest) = TargetBuf::from(&mut bytes[..]).split_at(first.len());
    copy::copy_in(&first, start);
    timeout(CHUNK_TIME_MAX, receive_all(wire, [rest])).await??;
    Ok(Some(RequestHead::decode(&bytes)?))
}

async fn refuse(wire: &mut impl Wire, why: Unwelcome, reason: String) -> Result<u64, ServeError> {
    send_all(wire, [SourceBuf::from(&WelcomeHead::encode(Err(why), &reason)[..])]).await?;
    Err(ServeError::Refused(reason))
}

/// Small replies are not to wait for company, and a host that vanished is to be noticed.
fn prepare(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    let socket = SockRef::from(stream);
    for (what, set) in
        [("TCP_NODELAY", stream.set_nodelay(true)), ("keepalive", socket.set_tcp_keepalive(&keepalive))]
    {
        if let Err(error) = set {
            tracing::warn!(%error, what, "a data connection could not be set up as wanted");
        }
    }
}

/// A client's connection, counted.
struct Open<'a> {
    server: &'a Server,
    client: u64,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let mut open = self.server.open.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(count) = open.get_mut(&self.client) else { return };
        *count -= 1;
        if *count == 0 {
            open.remove(&self.client);
            self.server.keeper.closed(self.client);
        }
    }
}

/// Space held while bytes are received into it.
struct StoreHold<'a> {
    keeper: &'a dyn Keeper,
    head: &'a RequestHead,
}

impl Drop for StoreHold<'_> {
    fn drop(&mut self) {
        self.keeper.end_store(self.head.slot, self.head.stamp);
    }
}

/// Space held while bytes are sent from it.
struct SendHold<'a> {
    keeper: &'a dyn Keeper,
    head: &'a RequestHead,
    is_ended: bool,
}

impl<'a> SendHold<'a> {
    fn new(keeper: &'a dyn Keeper, head: &'a RequestHead) -> Self {
        Self { keeper, head, is_ended: false }
    }

    /// Ends the hold; whether the use is still valid.
    fn end(mut self) -> bool {
        self.is_ended = true;
        self.keeper.end_send(self.head.slot, self.head.stamp)
    }
}

impl Drop for SendHold<'_> {
    fn drop(&mut self) {
        if !self.is_ended {
            self.keeper.end_send(self.head.slot, self.head.stamp);
        }
    }
}
