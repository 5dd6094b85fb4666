//! The node's end of the data socket.

use std::future::{Future, ready};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tiffin_measure::{Operation, Path};
use tiffin_tls::is_client_hello;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, timeout};

use super::buffered::{BufferedStream, FIRST_PIECE_BYTES, PIECE_BYTES, SMALL_BYTES_MAX};
use super::checksum_cache::ChecksumCache;
use super::disk::Fetch;
use super::frame::{
    CHECKSUM_BYTES, DATA_VERSION_MIN, FrameError, HelloHead, REQUEST_BYTES, Rejection, ReplyHead, ReplyKind,
    RequestHead, RequestKind, Status, WelcomeHead,
};
use super::grant::{Authorise, FetchReader, Grant, Hello};
use super::listener::{Accepted, DataListener, Peer};
use super::secure;
use super::share::{CLIENT_CONNECTIONS_MAX, Clients, Crowded, Owner, Part, Permit};
use super::stream::ByteStream;
use crate::buffer::{Run, SourceBuf, TargetBuf};
use crate::checksum::checksum;
use crate::pending::{Connections, LimitUse, Pending};
use crate::segment::NodeMemory;
use crate::{CHUNK_BYTES_MAX, Counters, Extent, cache_prefetch, copy};

/// Maximum number of connections to one data socket.
const CONNECTIONS_MAX: usize = 4096;
/// Maximum number of those of one credential that is limited to namespaces: the others get in.
const CREDENTIAL_CONNECTIONS_MAX: usize = CONNECTIONS_MAX / 8 * 7;
/// Maximum number of unauthenticated connections; one more closes the oldest.
pub const PENDING_MAX: usize = 256;
/// Time limit of a client's hello.
const HELLO_TIME_MAX: Duration = Duration::from_secs(10);
/// Time limit for the bytes of one chunk. A slower client loses its connection, so that it cannot block
/// memory that others need.
pub(super) const CHUNK_TIME_MAX: Duration = Duration::from_secs(60);
/// A peer that takes so long for a piece is slow: others of its client get its share until it goes on.
const SLOW_AFTER: Duration = Duration::from_secs(1);
/// Pause after a failed accept, which means that descriptors have run out.
const ACCEPT_REST: Duration = Duration::from_millis(50);
/// Unwanted bytes are read in pieces of this size and dropped.
const DISCARD_BYTES: usize = 64 << 10;
/// Bytes that one connection serves before others get the thread. A peer that reads as fast as the node
/// sends would keep it for ever.
const REST_BYTES: u64 = 1 << 20;
/// Bytes after which the end of a turn is one of the thread as well.
const TURN_BYTES: u64 = 64 << 10;
/// What a request counts beside its bytes.
const REQUEST_COST_BYTES: u64 = 1 << 10;

/// Access to the node's slots. An implementation protects the bytes of a transfer from reuse between its
/// begin and its end. Implemented by the node's shell.
///
/// No method may block for long: they are called from the tasks that move bytes.
pub trait SlotAccess: Send + Sync {
    /// Starts a write into a range of a client's reservation, and protects it. `None` if the client has no
    /// such reservation, or it is already being committed.
    fn begin_store(&self, client: u64, range: &RequestHead) -> Option<Vec<Extent>>;

    /// Ends that write, successful or not.
    fn end_store(&self, range: &RequestHead);

    /// Starts a read of a range, and protects it. `None` if there is no such use.
    ///
    /// With [`RequestHead::cached_epoch`] the node must also be a member in that epoch. The reader must be
    /// allowed to read the namespace of the object.
    fn begin_send(&self, reader: &dyn Grant, range: &RequestHead) -> Option<Vec<Extent>>;

    /// After [`Self::begin_send`] found no such use: it may be that the node has not learnt of the object
    /// yet. Then it does so in the future that is returned, and the read is tried once more.
    fn apply_published(&self, range: &RequestHead) -> Option<Applied> {
        let _none = range;
        None
    }

    /// Ends that read, successful or not. Whether the use is still valid, under the same condition.
    fn end_send(&self, range: &RequestHead) -> bool;

    /// Whether this segment is one of the node's disks.
    fn has_disk(&self, segment: u64) -> bool {
        let _none = segment;
        false
    }

    /// Starts to fetch a range from a disk; `None` if there is no such copy, or it is not for this reader.
    /// [`RequestHead::cached_epoch`] as in [`Self::begin_send`]. Only for a [`RequestKind::Stage`] the bytes
    /// may be left in the staging segment.
    fn begin_fetch(&self, reader: FetchReader<'_>, segment: u64, range: &RequestHead) -> Option<Fetch> {
        let _none = (reader, segment, range);
        None
    }

    /// Ends a fetch after its bytes were sent. Whether the copy is still valid, so that they count.
    fn end_fetch(&self, segment: u64, range: &RequestHead) -> bool {
        let _none = (segment, range);
        false
    }

    /// A client has opened its first connection.
    fn opened(&self, client: u64);

    /// A client has closed its last connection: it can no longer access memory through this socket.
    fn closed(&self, client: u64);
}

/// See [`SlotAccess::apply_published`].
pub type Applied = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Why a connection ended, other than by the client closing it between requests.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The connection broke, or ended within a message.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// The client violated the protocol.
    #[error("the client violated the protocol: {0}")]
    Protocol(#[from] FrameError),
    /// The client exceeded a time limit.
    #[error("the client was too slow")]
    Slow(#[from] tokio::time::error::Elapsed),
    /// The client was rejected.
    #[error("the client was refused: {0}")]
    Refused(String),
    /// Other requests of its client, or of its token, kept their share.
    #[error("other requests of the client took too long")]
    Crowded,
    /// Newer connections replaced it before its hello.
    #[error("too many connections without a hello, and this was the oldest")]
    Displaced,
}

/// Moves bytes between a node's memory and the clients on its data socket.
pub struct Server {
    memory: Arc<NodeMemory>,
    pub(super) slots: Arc<dyn SlotAccess>,
    authorise: Authorise,
    pub(super) counters: Arc<Counters>,
    checksums: ChecksumCache,
    pending: Arc<Pending>,
    clients: Clients,
    connections: Arc<Connections>,
}

/// The limits of a data socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataLimits {
    /// All connections.
    pub connections: LimitUse,
    /// Those of one client to one segment.
    pub per_client: LimitUse,
    /// Those of one credential that is limited to namespaces.
    pub per_credential: LimitUse,
    /// Those without a valid hello.
    pub unauthenticated: LimitUse,
}

/// How a connection came.
#[derive(Clone, Copy)]
struct Arrival {
    peer: Option<Peer>,
    /// There are as many connections as may be.
    is_full: bool,
}

/// One connection: its stream, and replies that are sent together.
pub(super) struct Served<W> {
    pub(super) stream: BufferedStream<W>,
    pub(super) client: u64,
    pub(super) grant: Arc<dyn Grant>,
    pub(super) part: Part,
    /// The transfer of its client that is in progress here: a large one, or small ones that are answered
    /// together.
    pub(super) turn: Option<Permit>,
    /// Bytes that were served since other connections got the thread.
    since_rest: u64,
    /// Complete replies: their bytes, if any, were copied, and the stamp was checked afterwards.
    answers: Vec<u8>,
    discard: Vec<u8>,
}

impl Server {
    /// Creates it.
    #[must_use]
    pub fn new(
        memory: Arc<NodeMemory>,
        slots: Arc<dyn SlotAccess>,
        authorise: Authorise,
        counters: Arc<Counters>,
    ) -> Arc<Self> {
        let (checksums, pending) = (ChecksumCache::default(), Pending::new(PENDING_MAX));
        let clients = Clients::new(CREDENTIAL_CONNECTIONS_MAX);
        let connections = Connections::new(CONNECTIONS_MAX);
        Arc::new(Self { memory, slots, authorise, counters, checksums, pending, clients, connections })
    }

    /// The limits of this socket and their use.
    #[must_use]
    pub fn limits(&self) -> DataLimits {
        DataLimits {
            connections: self.connections.limit(),
            per_client: self.clients.limit(),
            per_credential: self.clients.credential_limit(),
            unauthenticated: self.pending.limit(),
        }
    }

    /// Serves a TCP port without TLS until the future is dropped, which ends every connection.
    pub async fn run(self: Arc<Self>, listener: TcpListener) {
        self.run_on(DataListener::Tcp(listener, None)).await;
    }

    /// The same for any listener.
    pub async fn run_on(self: Arc<Self>, listener: DataListener) {
        let mut tasks = JoinSet::new();
        loop {
            let accepted = listener.accept().await;
            while let Some(ended) = tasks.try_join_next() {
                if let Err(error) = ended {
                    tracing::error!(%error, "the task of a data connection panicked");
                }
            }
            match accepted {
                Ok(accepted) => {
                    let (server, connected) = (Arc::clone(&self), self.connections.enter());
                    tasks.spawn(async move {
                        let peer = accepted.peer();
                        if let Err(error) = server.serve_accepted(accepted, connected.is_surplus).await {
                            tracing::debug!(%peer, %error, "a data connection ended");
                        }
                        drop(connected);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "accept failed on the data socket");
                    tokio::time::sleep(ACCEPT_REST).await;
                }
            }
        }
    }

    async fn serve_accepted(&self, accepted: Accepted, is_full: bool) -> Result<(), ServeError> {
        let arrival = Arrival { peer: Some(accepted.peer()), is_full };
        match accepted {
            Accepted::Tcp(stream, _, None) => self.serve_opened(ready(Ok(stream)), arrival).await,
            Accepted::Tcp(stream, _, Some(tls)) => {
                self.serve_opened(secure::accept(stream, &tls), arrival).await
            }
            Accepted::Local(stream, _) => self.serve_opened(ready(Ok(stream)), arrival).await,
        }
    }

    /// Serves one connection until it ends.
    pub async fn serve(&self, wire: impl ByteStream, is_full: bool) -> Result<(), ServeError> {
        self.serve_opened(ready(Ok(wire)), Arrival { peer: None, is_full }).await
    }

    /// The same for one that is still opened. That takes part in the time limit of the hello.
    async fn serve_opened<W: ByteStream>(
        &self,
        opened: impl Future<Output = io::Result<W>>,
        arrival: Arrival,
    ) -> Result<(), ServeError> {
        let cut = Arc::new(Notify::new());
        let from = match arrival.peer {
            Some(Peer::Tcp(address)) => Some(address.ip()),
            Some(Peer::Local(_)) | None => None,
        };
        let pending = self.pending.enter_from(&cut, from);
        let welcomed = async {
            let mut stream = BufferedStream::unauthenticated(opened.await?);
            let admitted = self.welcome(&mut stream, arrival).await?;
            Ok::<_, ServeError>((stream, admitted))
        };
        let (mut stream, (grant, open)) = tokio::select! {
            biased;
            () = cut.notified() => return Err(ServeError::Displaced),
            welcomed = timeout(HELLO_TIME_MAX, welcomed) => welcomed??,
        };
        drop(pending);
        stream.authenticate();
        let (Owner { client, segment, .. }, part) = (open.owner, open.part.clone());
        let (answers, discard) = (Vec::new(), vec![0; DISCARD_BYTES]);
        let (turn, since_rest) = (None, 0);
        let mut served = Served { stream, client, grant, part, turn, since_rest, answers, discard };
        if segment != self.memory.geometry().segment {
            return self.serve_disk(&mut served, segment).await;
        }
        loop {
            // Replies are sent when no further request has arrived.
            let is_last = served.stream.buffered_bytes() < REQUEST_BYTES;
            if is_last || served.answers.len() > PIECE_BYTES {
                served.flush().await?;
            }
            match is_last {
                true => served.end_turn().await,
                false => served.rest().await,
            }
            let Some(head) = served.next_request().await? else { return Ok(()) };
            served.count(&head);
            match head.kind {
                RequestKind::Write => self.store(&mut served, &head).await?,
                RequestKind::Read => {
                    let is_small = head.len as usize <= SMALL_BYTES_MAX;
                    served.begin_turn().await?;
                    let mut begun = served.begin_send(&*self.slots, &head);
                    if begun.is_none()
                        && let Some(applied) = self.slots.apply_published(&head)
                    {
                        served.flush().await?;
                        applied.await;
                        begun = served.begin_send(&*self.slots, &head);
                    }
                    match is_small {
                        true => self.send_small(&mut served, &head, begun),
                        false => self.send(&mut served, &head, begun).await?,
                    }
                }
                // Only disks stage bytes.
                RequestKind::Stage | RequestKind::Release => return Err(FrameError::Nonsense.into()),
            }
        }
    }

    /// Receives the hello and answers it.
    async fn welcome(
        &self,
        stream: &mut BufferedStream<impl ByteStream>,
        arrival: Arrival,
    ) -> Result<(Arc<dyn Grant>, Open<'_>), ServeError> {
        let bytes = stream.array(false).await?;
        let head = match HelloHead::decode(&bytes) {
            Ok(head) => head,
            // The client's TLS reports bytes that are not TLS.
            Err(FrameError::Magic) if is_client_hello(&bytes) => {
                let reason = "this data socket does not speak TLS".to_owned();
                return refuse(stream, DATA_VERSION_MIN, Rejection::Refused, reason).await;
            }
            // A peer of another protocol gets no answer.
            Err(FrameError::Magic) => return Err(FrameError::Magic.into()),
            // It is answered in the oldest version, which most peers understand.
            Err(error) => {
                return refuse(stream, DATA_VERSION_MIN, Rejection::Refused, error.to_string()).await;
            }
        };
        let version = head.version;
        let token = stream.vec(head.token_bytes).await?;
        let Ok(token) = String::from_utf8(token) else {
            return refuse(stream, version, Rejection::Refused, "the token is not text".to_owned()).await;
        };
        if arrival.is_full {
            let reason = format!("there are already {CONNECTIONS_MAX} connections");
            return refuse(stream, version, Rejection::Refused, reason).await;
        }
        let grant = match (self.authorise)(&Hello { client: head.client, token, peer: arrival.peer }) {
            Ok(grant) => grant,
            Err(denied) => match denied.reason_in_time().await {
                Some(reason) => return refuse(stream, version, Rejection::Refused, reason).await,
                None => return Err(ServeError::Refused("without an answer".to_owned())),
            },
        };
        let here = self.memory.geometry().segment;
        if head.segment != here && !self.slots.has_disk(head.segment) {
            let reason = format!("this is segment {here:016x}, not {:016x}", head.segment);
            return refuse(stream, version, Rejection::OtherSegment, reason).await;
        }
        let open = match self.open(&head, &*grant) {
            Ok(open) => open,
            Err(crowded) => {
                let (party, count) = match crowded {
                    Crowded::Client => ("this client", CLIENT_CONNECTIONS_MAX),
                    Crowded::Credential => ("the holder of this token", CREDENTIAL_CONNECTIONS_MAX),
                };
                let reason = format!("{party} already has {count} connections to it");
                return refuse(stream, version, Rejection::Refused, reason).await;
            }
        };
        stream.send([SourceBuf::from(&WelcomeHead::encode(version, Ok(()), "")[..])]).await?;
        Ok((grant, open))
    }

    /// Counts the client's connections; dropping the result decrements the count.
    fn open(&self, head: &HelloHead, grant: &dyn Grant) -> Result<Open<'_>, Crowded> {
        let owner = Owner { client: head.client, segment: head.segment, credential: grant.shared() };
        let part = self.clients.open(owner, || self.slots.opened(owner.client))?;
        Ok(Open { server: self, owner, part })
    }

    /// Receives the bytes of a write directly into the segment.
    async fn store<W: ByteStream>(
        &self,
        served: &mut Served<W>,
        head: &RequestHead,
    ) -> Result<(), ServeError> {
        let began = Instant::now();
        let may_write = served.grant.may_write();
        served.begin_turn().await?;
        let begun = may_write.then(|| self.slots.begin_store(served.client, head)).flatten();
        let status = if let Some(extents) = begun {
            let _guard = StoreGuard { slots: &*self.slots, head };
            match self.targets(&extents, head.len) {
                Some(targets) => {
                    let found = timeout(CHUNK_TIME_MAX, served.receive(targets)).await??;
                    let sum: [u8; CHECKSUM_BYTES] =
                        timeout(CHUNK_TIME_MAX, served.stream.array(true)).await??;
                    let is_whole = found == u64::from_le_bytes(sum);
                    if is_whole { Status::Ok } else { Status::BadChecksum }
                }
                None => {
                    tracing::error!(?head, ?extents, "the node returned extents that do not match the range");
                    served.skip(head.len).await?;
                    Status::Stale
                }
            }
        } else {
            served.skip(head.len).await?;
            self.why_not(&*served.grant, head)
        };
        if status == Status::Ok {
            self.counters.served.add_written(head.len);
            self.counters.served_times.record(Operation::Write, Path::Tcp, began.elapsed(), head.len);
        }
        served.answer(&ReplyHead { kind: ReplyKind::Written, status, id: head.id, len: 0, checksum: 0 });
        Ok(())
    }

    /// Copies the bytes of a small read and checks the stamp, so that the complete reply is sent together
    /// with others, and no protection outlives the call.
    fn send_small<W: ByteStream>(
        &self,
        served: &mut Served<W>,
        head: &RequestHead,
        begun: Option<Vec<Extent>>,
    ) {
        let reply =
            ReplyHead { kind: ReplyKind::Data, status: Status::Ok, id: head.id, len: head.len, checksum: 0 };
        let began = Instant::now();
        let Some(extents) = begun else {
            let status = self.why_not(&*served.grant, head);
            return served.answer(&ReplyHead { status, len: 0, ..reply });
        };
        let guard = SendGuard::new(&*self.slots, head);
        let Some(sources) = self.sources(&extents, head.len) else {
            tracing::error!(?head, ?extents, "the node returned extents that do not match the range");
            return served.answer(&ReplyHead { status: Status::Stale, len: 0, ..reply });
        };
        served.answer(&reply);
        let start = served.answers.len();
        for source in sources {
            let from = served.answers.len();
            served.answers.resize(from + source.len(), 0);
            copy::copy_out(source, served.answers.get_mut(from..).unwrap_or_default());
        }
        let status = if guard.end() { Status::Ok } else { Status::Stale };
        // Hashing so few bytes is faster than a lookup in the cache.
        let checksum = checksum([SourceBuf::from(served.answers.get(start..).unwrap_or_default())]);
        self.counters.served.add_read(head.len);
        self.counters.served_times.record(Operation::Read, Path::Tcp, began.elapsed(), head.len);
        served.answer(&ReplyHead { kind: ReplyKind::Trailer, status, checksum, ..reply });
    }

    /// Sends the bytes of a read directly from the segment, then a trailer that says whether they are valid.
    async fn send<W: ByteStream>(
        &self,
        served: &mut Served<W>,
        head: &RequestHead,
        begun: Option<Vec<Extent>>,
    ) -> Result<(), ServeError> {
        let reply =
            ReplyHead { kind: ReplyKind::Data, status: Status::Ok, id: head.id, len: head.len, checksum: 0 };
        let began = Instant::now();
        let Some(extents) = begun else {
            let status = self.why_not(&*served.grant, head);
            served.answer(&ReplyHead { status, len: 0, ..reply });
            return Ok(());
        };
        let guard = SendGuard::new(&*self.slots, head);
        let Some(sources) = self.sources(&extents, head.len) else {
            tracing::error!(?head, ?extents, "the node returned extents that do not match the range");
            served.answer(&ReplyHead { status: Status::Stale, len: 0, ..reply });
            return Ok(());
        };
        served.answer(&reply);
        let known = self.checksums.find(head);
        let checksum = timeout(CHUNK_TIME_MAX, served.send(sources, known)).await??;
        // The kernel has the bytes now, so the memory may be reused.
        let status = if guard.end() { Status::Ok } else { Status::Stale };
        if status == Status::Ok && known.is_none() {
            self.checksums.keep(head, checksum);
        }
        self.counters.served.add_read(head.len);
        self.counters.served_times.record(Operation::Read, Path::Tcp, began.elapsed(), head.len);
        served.answer(&ReplyHead { kind: ReplyKind::Trailer, status, checksum, ..reply });
        Ok(())
    }

    /// Distinguishes a range that is too large from a stale use. A limited client does not learn whether the
    /// use exists.
    fn why_not(&self, grant: &dyn Grant, head: &RequestHead) -> Status {
        if !grant.is_unlimited() {
            return Status::Stale;
        }
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

    /// The same as sources.
    fn sources(&self, extents: &[Extent], len: u64) -> Option<Vec<SourceBuf<'_>>> {
        let targets = self.targets(extents, len)?;
        Some(targets.into_iter().map(TargetBuf::as_source).collect())
    }
}

impl<W: ByteStream> Served<W> {
    /// The next request; `None` if the client closed the connection before it. A revoked client makes none,
    /// and its connection ends.
    pub(super) async fn next_request(&mut self) -> Result<Option<RequestHead>, ServeError> {
        let revoked = || ServeError::Refused("the token was revoked or has expired".to_owned());
        let Self { stream, grant, .. } = self;
        let head = match grant.end() {
            Some(end) if stream.buffered_bytes() == 0 => {
                let mut ended = pin!(end.notified());
                // From now on no end is missed.
                ended.as_mut().enable();
                if grant.is_ended() {
                    return Err(revoked());
                }
                tokio::select! {
                    biased;
                    head = next_request(stream) => head?,
                    () = ended => return Err(revoked()),
                }
            }
            _ => next_request(stream).await?,
        };
        if grant.is_ended() { Err(revoked()) } else { Ok(head) }
    }

    fn begin_send(&self, slots: &dyn SlotAccess, head: &RequestHead) -> Option<Vec<Extent>> {
        self.grant.may_read().then(|| slots.begin_send(&*self.grant, head)).flatten()
    }

    /// A request was served.
    pub(super) fn count(&mut self, head: &RequestHead) {
        self.since_rest = self.since_rest.saturating_add(head.len).saturating_add(REQUEST_COST_BYTES);
    }

    /// Ends the turn in the middle of requests, if it is time.
    pub(super) async fn rest(&mut self) {
        if self.since_rest >= REST_BYTES {
            self.end_turn().await;
        }
    }

    /// Ends the transfer in progress. If it was no small one, others have the thread before the next transfer
    /// of the same client begins: else its connections would follow each other without a gap.
    async fn end_turn(&mut self) {
        if self.since_rest >= TURN_BYTES {
            self.since_rest = 0;
            yield_now().await;
        }
        self.turn = None;
    }

    pub(super) fn answer(&mut self, reply: &ReplyHead) {
        self.answers.extend(reply.encode());
    }

    /// Sends the replies collected so far.
    pub(super) async fn flush(&mut self) -> Result<(), ServeError> {
        if self.answers.is_empty() {
            return Ok(());
        }
        Ok(timeout(CHUNK_TIME_MAX, self.send_piece(Vec::new())).await??)
    }

    /// Sends the replies so far, and these bytes; returns their checksum. If it is not known, each piece is
    /// hashed just before it is sent. The kernel finds it in the cache in either case.
    async fn send(&mut self, sources: Vec<SourceBuf<'_>>, known: Option<u64>) -> io::Result<u64> {
        let mut run = Run::new(sources);
        let (mut bytes_max, mut since_rest) = (FIRST_PIECE_BYTES, 0);
        self.stream.hash().reset();
        while !run.is_done() {
            let bytes = run.bytes().min(bytes_max) as u64;
            let pieces = run.take(bytes_max as u64);
            bytes_max = PIECE_BYTES;
            match known {
                Some(_) => pieces.iter().for_each(|piece| cache_prefetch::prefetch(*piece)),
                None => pieces.iter().for_each(|piece| self.stream.hash().update_uncached(*piece)),
            }
            self.send_piece(pieces).await?;
            since_rest += bytes;
            if since_rest >= REST_BYTES {
                since_rest = 0;
                yield_now().await;
            }
        }
        Ok(known.unwrap_or_else(|| self.stream.hash().finish()))
    }

    /// Sends the replies so far, and these bytes. While the peer is slow, others have the turn.
    pub(super) async fn send_piece(&mut self, pieces: Vec<SourceBuf<'_>>) -> io::Result<()> {
        let Self { stream, answers, turn, part, .. } = self;
        let is_turn = turn.is_some();
        {
            let all = std::iter::once(SourceBuf::from(&answers[..])).chain(pieces);
            let mut sent = pin!(stream.send(all));
            match timeout(SLOW_AFTER, &mut sent).await {
                Ok(sent) => sent?,
                Err(_) => {
                    *turn = None;
                    sent.await?;
                }
            }
        }
        answers.clear();
        if is_turn && turn.is_none() {
            *turn = part.transfer().await;
        }
        Ok(())
    }

    /// Receives bytes of a write; returns their checksum. If the peer is slow, others have the turn.
    async fn receive(&mut self, targets: Vec<TargetBuf<'_>>) -> io::Result<u64> {
        let Self { stream, turn, .. } = self;
        let mut filled = pin!(stream.fill_hashed(targets));
        match timeout(SLOW_AFTER, &mut filled).await {
            Ok(filled) => filled,
            Err(_) => {
                *turn = None;
                filled.await
            }
        }
    }

    /// Begins a transfer here, when its client may, unless one is in progress.
    pub(super) async fn begin_turn(&mut self) -> Result<(), ServeError> {
        if self.turn.is_none() {
            self.turn = Some(self.begin_transfer().await?);
        }
        Ok(())
    }

    /// Begins a transfer, when its client may. The replies so far do not wait for that.
    async fn begin_transfer(&mut self) -> Result<Permit, ServeError> {
        if let Some(turn) = self.part.try_transfer() {
            return Ok(turn);
        }
        self.flush().await?;
        self.part.transfer().await.ok_or(ServeError::Crowded)
    }

    /// Reads and drops the bytes of a rejected write, and their checksum.
    pub(super) async fn skip(&mut self, len: u64) -> Result<(), ServeError> {
        debug_assert!(len <= CHUNK_BYTES_MAX);
        timeout(CHUNK_TIME_MAX, async {
            let mut left = usize::try_from(len).unwrap_or(usize::MAX);
            while left > 0 {
                let (piece, _) = TargetBuf::from(&mut self.discard[..]).split_at(left);
                self.stream.fill([piece]).await?;
                left -= piece.len();
            }
            let _sum: [u8; CHECKSUM_BYTES] = self.stream.array(true).await?;
            Ok(())
        })
        .await?
    }
}

/// The next request; `None` if the client closed the connection before it.
async fn next_request(
    stream: &mut BufferedStream<impl ByteStream>,
) -> Result<Option<RequestHead>, ServeError> {
    // A client may be silent between requests without limit.
    let first: [u8; 1] = match stream.array(true).await {
        Ok(first) => first,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // Usually the whole request has arrived.
    let rest: [u8; REQUEST_BYTES - 1] = match stream.peek::<{ REQUEST_BYTES - 1 }>() {
        Some(_) => stream.array(true).await?,
        None => timeout(CHUNK_TIME_MAX, stream.array(true)).await??,
    };
    let mut bytes = [0; REQUEST_BYTES];
    for (to, from) in bytes.iter_mut().zip(first.iter().chain(&rest)) {
        *to = *from;
    }
    Ok(Some(RequestHead::decode(&bytes)?))
}

async fn refuse<T>(
    stream: &mut BufferedStream<impl ByteStream>,
    version: u32,
    why: Rejection,
    reason: String,
) -> Result<T, ServeError> {
    stream.send([SourceBuf::from(&WelcomeHead::encode(version, Err(why), &reason)[..])]).await?;
    Err(ServeError::Refused(reason))
}

struct Open<'a> {
    server: &'a Server,
    owner: Owner,
    part: Part,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.server.clients.close(self.owner, || self.server.slots.closed(self.owner.client));
    }
}

/// Protects memory while bytes are received into it.
struct StoreGuard<'a> {
    slots: &'a dyn SlotAccess,
    head: &'a RequestHead,
}

impl Drop for StoreGuard<'_> {
    fn drop(&mut self) {
        self.slots.end_store(self.head);
    }
}

/// Protects memory while bytes are sent from it.
struct SendGuard<'a> {
    slots: &'a dyn SlotAccess,
    head: &'a RequestHead,
    is_ended: bool,
}

impl<'a> SendGuard<'a> {
    fn new(slots: &'a dyn SlotAccess, head: &'a RequestHead) -> Self {
        Self { slots, head, is_ended: false }
    }

    /// Ends the protection. Whether the use is still valid.
    fn end(mut self) -> bool {
        self.is_ended = true;
        self.slots.end_send(self.head)
    }
}

impl Drop for SendGuard<'_> {
    fn drop(&mut self) {
        if !self.is_ended {
            self.slots.end_send(self.head);
        }
    }
}
