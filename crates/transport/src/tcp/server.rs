//! The node's end of the data socket.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::fetched::Fetch;
use super::frame::{
    CHECKSUM_BYTES, FrameError, HelloHead, REQUEST_BYTES, ReplyHead, ReplyKind, RequestHead, RequestKind,
    Status, Unwelcome, WelcomeHead,
};
use super::line::{FIRST_PIECE_BYTES, Line, PIECE_BYTES, SMALL_BYTES_MAX};
use super::stream::Wire;
use super::sums::Sums;
use crate::buffer::{Run, SourceBuf, TargetBuf};
use crate::checksum::checksum;
use crate::pending::Pending;
use crate::segment::NodeMemory;
use crate::{CHUNK_BYTES_MAX, Counters, Extent, copy, fetch};

/// The most connections to one data socket.
const CONNECTIONS_MAX: usize = 4096;
/// The most connections at a time that have not proven yet that they may be served; one more ends the oldest.
pub const PENDING_MAX: usize = 256;
/// How long a client may take to say who it is.
const HELLO_TIME_MAX: Duration = Duration::from_secs(10);
/// How long the bytes of one chunk may take. A client that is slower loses its connection, so that it cannot
/// keep a hold on space that others need.
pub(super) const CHUNK_TIME_MAX: Duration = Duration::from_secs(60);
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
    fn begin_store(&self, client: u64, range: &RequestHead) -> Option<Vec<Extent>>;

    /// That write has ended, well or not.
    fn end_store(&self, range: &RequestHead);

    /// Somebody wants to read this range: where it lies, from now on held; `None` if there is no such use.
    ///
    /// With [`RequestHead::unasked`] the use must also be one of a member in that life of the master.
    fn begin_send(&self, range: &RequestHead) -> Option<Vec<Extent>>;

    /// That read has ended, well or not; whether the use is still valid, and more than that as above.
    fn end_send(&self, range: &RequestHead) -> bool;

    /// Whether that is a disk beside the memory, whose bytes are fetched before they are sent.
    fn has_disk(&self, segment: u64) -> bool {
        let _none = segment;
        false
    }

    /// Begins to fetch this range from a disk; `None` if there is no such copy. As for
    /// [`Self::begin_send`], with [`RequestHead::unasked`]. Only if the request is a [`RequestKind::Stage`]
    /// the bytes may be left in memory that the reader maps.
    fn begin_fetch(&self, segment: u64, range: &RequestHead) -> Option<Fetch> {
        let _none = (segment, range);
        None
    }

    /// The bytes were sent: whether the copy is still valid, so that they count.
    fn end_fetch(&self, segment: u64, range: &RequestHead) -> bool {
        let _none = (segment, range);
        false
    }

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
    /// Newer connections took its place before it said who it is.
    #[error("too many connections did not say who they are, and this was the oldest")]
    Crowded,
}

/// Moves bytes between a node's memory and the clients on its data socket.
pub struct Server {
    memory: Arc<NodeMemory>,
    pub(super) keeper: Arc<dyn Keeper>,
    authorise: Authorise,
    pub(super) counters: Arc<Counters>,
    sums: Sums,
    pending: Arc<Pending>,
    /// How many connections each client has.
    open: Mutex<BTreeMap<u64, usize>>,
}

/// One connection: what came in, and answers that may wait for company.
pub(super) struct Served<W> {
    pub(super) line: Line<W>,
    client: u64,
    /// Answers that are whole and private: their bytes, if any, have been copied and the stamp was there
    /// afterwards.
    answers: Vec<u8>,
    discard: Vec<u8>,
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
        let (sums, open, pending) = (Sums::default(), Mutex::default(), Pending::new(PENDING_MAX));
        Arc::new(Self { memory, keeper, authorise, counters, sums, pending, open })
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
    pub async fn serve(&self, wire: impl Wire, is_full: bool) -> Result<(), ServeError> {
        let mut line = Line::unproven(wire);
        let cut = Arc::new(Notify::new());
        let pending = self.pending.enter(&cut);
        let HelloHead { client, segment, .. } = tokio::select! {
            biased;
            () = cut.notified() => return Err(ServeError::Crowded),
            welcomed = timeout(HELLO_TIME_MAX, self.welcome(&mut line, is_full)) => welcomed??,
        };
        drop(pending);
        line.proven();
        let _open = self.open(client);
        let mut served = Served { line, client, answers: Vec::new(), discard: vec![0; DISCARD_BYTES] };
        if segment != self.memory.geometry().segment {
            return self.serve_disk(&mut served, segment).await;
        }
        loop {
            // What is answered leaves when there is nothing more to answer at hand.
            if served.line.ahead_bytes() < REQUEST_BYTES || served.answers.len() > PIECE_BYTES {
                served.flush().await?;
            }
            let Some(head) = next_request(&mut served.line).await? else { return Ok(()) };
            match head.kind {
                RequestKind::Write => self.store(&mut served, &head).await?,
                RequestKind::Read if head.len as usize <= SMALL_BYTES_MAX => {
                    self.send_small(&mut served, &head);
                }
                RequestKind::Read => self.send(&mut served, &head).await?,
                // Memory is mapped as it is, or not at all.
                RequestKind::Stage | RequestKind::Release => return Err(FrameError::Nonsense.into()),
            }
        }
    }

    /// Hears the hello and answers it.
    async fn welcome(&self, line: &mut Line<impl Wire>, is_full: bool) -> Result<HelloHead, ServeError> {
        let head = HelloHead::decode(&line.array(false).await?);
        let head = match head {
            Ok(head) => head,
            // Whoever speaks another protocol is not told anything in this one.
            Err(FrameError::Magic) => return Err(FrameError::Magic.into()),
            Err(error) => return refuse(line, Unwelcome::Refused, error.to_string()).await,
        };
        let token = line.vec(head.token_bytes).await?;
        let Ok(token) = String::from_utf8(token) else {
            return refuse(line, Unwelcome::Refused, "the token is not text".to_owned()).await;
        };
        if is_full {
            let reason = format!("there are {CONNECTIONS_MAX} connections already");
            return refuse(line, Unwelcome::Refused, reason).await;
        }
        if let Err(reason) = (self.authorise)(&Hello { client: head.client, token }) {
            return refuse(line, Unwelcome::Refused, reason).await;
        }
        let here = self.memory.geometry().segment;
        if head.segment != here && !self.keeper.has_disk(head.segment) {
            let reason = format!("this is segment {here:016x}, and you asked for {:016x}", head.segment);
            return refuse(line, Unwelcome::OtherSegment, reason).await;
        }
        line.send([SourceBuf::from(&WelcomeHead::encode(Ok(()), "")[..])]).await?;
        Ok(head)
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
    async fn store<W: Wire>(&self, served: &mut Served<W>, head: &RequestHead) -> Result<(), ServeError> {
        let begun = self.keeper.begin_store(served.client, head);
        let status = if let Some(extents) = begun {
            let _hold = StoreHold { keeper: &*self.keeper, head };
            match self.targets(&extents, head.len) {
                Some(targets) => {
                    let found = timeout(CHUNK_TIME_MAX, served.line.fill_hashed(targets)).await??;
                    let sum: [u8; CHECKSUM_BYTES] =
                        timeout(CHUNK_TIME_MAX, served.line.array(true)).await??;
                    let is_whole = found == u64::from_le_bytes(sum);
                    if is_whole { Status::Ok } else { Status::BadChecksum }
                }
                None => {
                    tracing::error!(?head, ?extents, "the keeper gave extents that are not the range");
                    served.skip(head.len).await?;
                    Status::Stale
                }
            }
        } else {
            served.skip(head.len).await?;
            self.why_not(head)
        };
        if status == Status::Ok {
            self.counters.served.add_written(head.len);
        }
        served.answer(&ReplyHead { kind: ReplyKind::Written, status, id: head.id, len: 0, checksum: 0 });
        Ok(())
    }

    /// Copies the bytes of a small read, and then says whether they count: so all of it leaves at once,
    /// together with others, and nothing is held meanwhile.
    fn send_small<W: Wire>(&self, served: &mut Served<W>, head: &RequestHead) {
        let reply =
            ReplyHead { kind: ReplyKind::Data, status: Status::Ok, id: head.id, len: head.len, checksum: 0 };
        let begun = self.keeper.begin_send(head);
        let Some(extents) = begun else {
            let status = self.why_not(head);
            return served.answer(&ReplyHead { status, len: 0, ..reply });
        };
        let hold = SendHold::new(&*self.keeper, head);
        let Some(sources) = self.sources(&extents, head.len) else {
            tracing::error!(?head, ?extents, "the keeper gave extents that are not the range");
            return served.answer(&ReplyHead { status: Status::Stale, len: 0, ..reply });
        };
        served.answer(&reply);
        let start = served.answers.len();
        for source in sources {
            let from = served.answers.len();
            served.answers.resize(from + source.len(), 0);
            copy::copy_out(source, served.answers.get_mut(from..).unwrap_or_default());
        }
        let status = if hold.end() { Status::Ok } else { Status::Stale };
        // What is so short is hashed sooner than a checksum of it would be looked up.
        let checksum = checksum([SourceBuf::from(served.answers.get(start..).unwrap_or_default())]);
        self.counters.served.add_read(head.len);
        served.answer(&ReplyHead { kind: ReplyKind::Trailer, status, checksum, ..reply });
    }

    /// Sends the bytes of a read straight from the segment, and then says whether they count.
    async fn send<W: Wire>(&self, served: &mut Served<W>, head: &RequestHead) -> Result<(), ServeError> {
        let reply =
            ReplyHead { kind: ReplyKind::Data, status: Status::Ok, id: head.id, len: head.len, checksum: 0 };
        let Some(extents) = self.keeper.begin_send(head) else {
            let status = self.why_not(head);
            served.answer(&ReplyHead { status, len: 0, ..reply });
            return Ok(());
        };
        let hold = SendHold::new(&*self.keeper, head);
        let Some(sources) = self.sources(&extents, head.len) else {
            tracing::error!(?head, ?extents, "the keeper gave extents that are not the range");
            served.answer(&ReplyHead { status: Status::Stale, len: 0, ..reply });
            return Ok(());
        };
        served.answer(&reply);
        let known = self.sums.find(head);
        let checksum = timeout(CHUNK_TIME_MAX, served.send(sources, known)).await??;
        // The bytes are with the kernel now, so what becomes of the space no longer matters to them.
        let status = if hold.end() { Status::Ok } else { Status::Stale };
        if status == Status::Ok && known.is_none() {
            self.sums.keep(head, checksum);
        }
        self.counters.served.add_read(head.len);
        served.answer(&ReplyHead { kind: ReplyKind::Trailer, status, checksum, ..reply });
        Ok(())
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
        let targets = self.memory.targets(extents)?;
        (targets.iter().map(|target| target.len() as u64).sum::<u64>() == len).then_some(targets)
    }

    /// As above, to be read.
    fn sources(&self, extents: &[Extent], len: u64) -> Option<Vec<SourceBuf<'_>>> {
        let targets = self.targets(extents, len)?;
        Some(targets.into_iter().map(TargetBuf::as_source).collect())
    }
}

impl<W: Wire> Served<W> {
    pub(super) fn answer(&mut self, reply: &ReplyHead) {
        self.answers.extend(reply.encode());
    }

    /// Sends what was answered so far.
    pub(super) async fn flush(&mut self) -> Result<(), ServeError> {
        if self.answers.is_empty() {
            return Ok(());
        }
        let sent = self.line.send([SourceBuf::from(&self.answers[..])]);
        timeout(CHUNK_TIME_MAX, sent).await??;
        self.answers.clear();
        Ok(())
    }

    /// Sends what was answered so far, and these bytes; what their checksum is. If that is not known, each
    /// piece is hashed just before it is sent. The kernel finds it in the cache in any case.
    async fn send(&mut self, sources: Vec<SourceBuf<'_>>, known: Option<u64>) -> io::Result<u64> {
        let mut run = Run::new(sources);
        let mut bytes_max = FIRST_PIECE_BYTES;
        self.line.hash().reset();
        while !run.is_done() {
            let pieces = run.take(bytes_max as u64);
            bytes_max = PIECE_BYTES;
            match known {
                Some(_) => pieces.iter().for_each(|piece| fetch::to_read(*piece)),
                None => pieces.iter().for_each(|piece| self.line.hash().update_far(*piece)),
            }
            let answers = SourceBuf::from(&self.answers[..]);
            self.line.send(std::iter::once(answers).chain(pieces)).await?;
            self.answers.clear();
        }
        Ok(known.unwrap_or_else(|| self.line.hash().finish()))
    }

    /// Reads past bytes that have no place to go, and their checksum.
    pub(super) async fn skip(&mut self, len: u64) -> Result<(), ServeError> {
        debug_assert!(len <= CHUNK_BYTES_MAX);
        timeout(CHUNK_TIME_MAX, async {
            let mut left = usize::try_from(len).unwrap_or(usize::MAX);
            while left > 0 {
                let (piece, _) = TargetBuf::from(&mut self.discard[..]).split_at(left);
                self.line.fill([piece]).await?;
                left -= piece.len();
            }
            let _sum: [u8; CHECKSUM_BYTES] = self.line.array(true).await?;
            Ok(())
        })
        .await?
    }
}

/// The next request; `None` if the client closed the connection before it.
pub(super) async fn next_request(line: &mut Line<impl Wire>) -> Result<Option<RequestHead>, ServeError> {
    // A client may be silent between requests for as long as it likes.
    let first: [u8; 1] = match line.array(true).await {
        Ok(first) => first,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // Usually all of it is there.
    let rest: [u8; REQUEST_BYTES - 1] = match line.peek::<{ REQUEST_BYTES - 1 }>() {
        Some(_) => line.array(true).await?,
        None => timeout(CHUNK_TIME_MAX, line.array(true)).await??,
    };
    let mut bytes = [0; REQUEST_BYTES];
    for (to, from) in bytes.iter_mut().zip(first.iter().chain(&rest)) {
        *to = *from;
    }
    Ok(Some(RequestHead::decode(&bytes)?))
}

async fn refuse(line: &mut Line<impl Wire>, why: Unwelcome, reason: String) -> Result<HelloHead, ServeError> {
    line.send([SourceBuf::from(&WelcomeHead::encode(Err(why), &reason)[..])]).await?;
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
        self.keeper.end_store(self.head);
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
        self.keeper.end_send(self.head)
    }
}

impl Drop for SendHold<'_> {
    fn drop(&mut self) {
        if !self.is_ended {
            self.keeper.end_send(self.head);
        }
    }
}
