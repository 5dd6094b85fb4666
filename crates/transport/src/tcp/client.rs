//! A client's end of the data socket.
//!
//! A batch is divided into chunks, which are distributed over a few streams, each with several requests in
//! flight; small ones are sent and answered many at a time. Everything happens inside the caller's future:
//! when it is dropped or its deadline passes, no buffer is accessed any more, and the streams that it used
//! are closed. A caller that may block its thread ([`ReadOptions::may_block`]) waits in the socket itself
//! if one stream suffices. Threads that help with its large writes are done when its poll returns
//! ([`together`]).
//!
//! Bytes of a disk on this host are left in a staging segment that is mapped here: the reply names the slot,
//! and the bytes are valid if the slot holds the same stamp after the copy.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tiffin_gpu::Stage;
use tiffin_tls::TlsClient;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::timeout_at;

use super::batch::{Batch, Chunk, ChunkOutcome, Division};
use super::buffered::{AHEAD_BYTES, BufferedStream, FIRST_PIECE_BYTES, PIECE_BYTES, SMALL_BYTES_MAX};
use super::frame::{ReplyHead, ReplyKind, RequestHead, RequestKind, Status};
use super::pool::{Connect, DISK_STREAMS_MAX, Identity, Pool, PooledStream, STREAMS_MAX, TcpConnect};
use super::stream::{ByteStream, WaitMode};
use super::together::{self, Worker};
use crate::buffer::{Buf, Run, SourceBuf, TargetBuf};
use crate::hedge::ReadControl;
use crate::local::moved;
use crate::shm::Attachment;
use crate::{
    CHUNK_BYTES_MAX, Capability, Counters, Instant, Outcome, Outcomes, ReadOp, TransferError, Transport,
    WriteOp, device, mapped,
};

/// Maximum requests in flight on one stream: enough that the node never waits for the next.
const WINDOW_MAX: usize = 128;

/// Maximum bytes of small objects that are sent in one call.
const TOGETHER_BYTES_MAX: usize = 512 << 10;

/// How long a thread waits in a socket before it continues as a task, so that it can be interrupted.
const BLOCK_TIME_MAX: Duration = Duration::from_millis(16);
/// The same for threads that write together. It is longer because tasks continue in one thread.
const TOGETHER_TIME_MAX: Duration = Duration::from_millis(64);
/// Fewer bytes are written by the caller's thread alone.
const TOGETHER_BYTES_MIN: u64 = 1 << 20;
/// Minimum bytes of a chunk that threads divide among themselves.
const SHARE_BYTES_MIN: u64 = 256 << 10;
/// The same for the maximum.
const SHARE_BYTES_MAX: u64 = 2 << 20;
/// Chunks are whole pages.
const SHARE_STEP_BYTES: u64 = 4 << 10;

/// How a batch is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// The epoch of cached locations; `None` if the master has just resolved them. With an epoch, the node
    /// checks after the bytes that it is a member in that epoch and that the uses are its objects; otherwise
    /// the read is [`TransferError::Stale`].
    pub cached_epoch: Option<u64>,
    /// The polling thread wait_mode for nothing else, so it may block in the socket for a short time.
    pub may_block: bool,
}

/// Reaches the memory of a node through its data socket.
pub struct Tcp {
    pool: Arc<Pool>,
    /// Opens connections for the next transfers.
    opening: Mutex<JoinSet<()>>,
    counters: Arc<Counters>,
    /// The staging segment of a disk on this host.
    stage: Option<Arc<Attachment>>,
    /// Maximum number of threads that write together.
    threads_max: usize,
}

impl Tcp {
    /// Reaches the node at `host:port`. Connects at the first transfer.
    #[must_use]
    pub fn new(address: String, identity: Identity, counters: Arc<Counters>) -> Self {
        Self::with_connect(address, identity, counters, Box::new(TcpConnect::default()))
    }

    /// The same over connections of another kind.
    #[must_use]
    pub fn with_connect(
        address: String,
        identity: Identity,
        counters: Arc<Counters>,
        connect: Box<dyn Connect>,
    ) -> Self {
        Self::of(Pool::new(address, identity, connect, STREAMS_MAX), counters, None)
    }

    /// Reaches a disk of the node at `host:port`, named by the identity. If its staging segment is mapped,
    /// the bytes are copied from there.
    #[must_use]
    pub fn to_disk(
        address: String,
        identity: Identity,
        counters: Arc<Counters>,
        stage: Option<Arc<Attachment>>,
    ) -> Self {
        let pool = Pool::new(address, identity, Box::new(TcpConnect::default()), DISK_STREAMS_MAX);
        Self::of(pool, counters, stage)
    }

    fn of(pool: Pool, counters: Arc<Counters>, stage: Option<Arc<Attachment>>) -> Self {
        let (pool, opening, threads_max) = (Arc::new(pool), Mutex::default(), helpers_max());
        Self { pool, opening, counters, stage, threads_max }
    }

    /// Connects with TLS, if there is a CA to trust.
    #[must_use]
    pub fn secured(mut self, tls: Option<TlsClient>) -> Self {
        // Nothing else has the pool before the first transfer.
        Arc::get_mut(&mut self.pool)
            .into_iter()
            .for_each(|it| it.connect_by(Box::new(TcpConnect { tls: tls.clone() })));
        self
    }

    /// Lets so many threads write together, instead of as many as this machine has processors for.
    #[must_use]
    pub fn with_threads(mut self, threads_max: usize) -> Self {
        self.threads_max = threads_max;
        self
    }

    /// The node's `host:port`.
    #[must_use]
    pub fn address(&self) -> &str {
        self.pool.address()
    }

    /// Connects, if there is no connection yet, to check that the node can be reached and accepts this
    /// client.
    pub async fn probe(&self, deadline: Instant) -> Outcome {
        let stream =
            timeout_at(deadline, self.pool.acquire()).await.map_err(|_| TransferError::Timeout)??;
        stream.release();
        Ok(())
    }

    /// Moves all chunks, or as many as possible until the deadline.
    async fn run<B: Direction>(&self, batch: &Batch<B>, may_block: bool, deadline: Instant) -> Vec<Outcome> {
        // `timeout_at` polls ready work even after the deadline, so that is checked here.
        let now = Instant::now();
        if now >= deadline {
            return batch.outcomes(&TransferError::Timeout);
        }
        let Division { streams, is_together, .. } = batch.division();
        let until = |time| WaitMode::ThreadUntil(deadline.min(now + time).into_std());
        let wait_mode = match may_block {
            true if is_together => until(TOGETHER_TIME_MAX),
            // With several streams the thread must serve all of them, so it cannot block in one.
            true if streams == 1 => until(BLOCK_TIME_MAX),
            _ => WaitMode::Task,
        };
        let workers = (0..streams).map(|number| {
            Box::pin(async move { self.work(batch, number == 0, wait_mode).await }) as Worker<'_>
        });
        let settled = until_settled(workers.collect(), batch);
        let in_time = timeout_at(deadline, settled).await.is_ok();
        self.outcomes(batch, in_time && !batch.is_stopped())
    }

    fn outcomes<B: Direction>(&self, batch: &Batch<B>, in_time: bool) -> Vec<Outcome> {
        let unfinished = if in_time { self.pool.lost("every stream broke") } else { TransferError::Timeout };
        batch.outcomes(&unfinished)
    }

    /// One stream's share. The first worker wait_mode for a stream; the others only take a free one.
    async fn work<B: Direction>(&self, batch: &Batch<B>, is_first: bool, wait_mode: WaitMode) {
        let pooled = if is_first {
            self.pool.acquire().await
        } else if batch.division().is_together && batch.is_taken() {
            return;
        } else {
            match self.pool.try_acquire().await {
                Some(pooled) => pooled,
                None => return,
            }
        };
        let mut pooled = match pooled {
            Ok(pooled) => pooled,
            // Other workers may have streams already; if not, this is the batch's error.
            Err(error) => return batch.explain(error),
        };
        pooled.stream.set_wait(wait_mode);
        pooled.stream.set_control(batch.watch());
        match self.exchange(&mut pooled, batch).await {
            Ok(()) => {
                pooled.stream.set_control(None);
                pooled.release();
            }
            Err(error) => drop((pooled, error)),
        }
    }

    /// Sends requests and receives replies until no chunk is left. `Err`: the stream broke, and its chunks
    /// are lost.
    async fn exchange<B: Direction>(
        &self,
        pooled: &mut PooledStream<'_>,
        batch: &Batch<B>,
    ) -> Result<(), TransferError> {
        let mut in_flight: VecDeque<(u64, Chunk<B>)> = VecDeque::new();
        let (mut next_id, mut bytes) = (0, 0);
        let (taken_max, window) = (batch.division().taken_bytes(), batch.division().window_bytes());
        loop {
            let (known, bytes_max) = (in_flight.len(), window.min(taken_max.saturating_add(bytes)));
            // The window is refilled when half of it is empty, so that requests are sent together.
            while known <= WINDOW_MAX / 2 && in_flight.len() < WINDOW_MAX && bytes < bytes_max {
                let pinned = match batch.device() {
                    None => None,
                    // Waiting for pinned memory while holding some could block all streams for ever.
                    Some(device) if in_flight.is_empty() => Some(device::take_stage(device).await?),
                    Some(device) => match Stage::take(device)? {
                        Some(stage) => Some(stage),
                        None => break,
                    },
                };
                let Some(mut chunk) = batch.next() else { break };
                if let Some(pinned) = pinned.filter(|_| device::has_device(&chunk.bufs))
                    && let Err(error) = B::pin(&mut chunk, pinned).await
                {
                    batch.settle(&chunk, ChunkOutcome::of(Err(error)));
                    continue;
                }
                next_id += 1;
                bytes += chunk.len;
                in_flight.push_back((next_id, chunk));
            }
            let new = in_flight.iter().skip(known);
            let broken = if in_flight.len() > known {
                B::send_requests(&mut pooled.stream, new).await.err()
            } else {
                None
            };
            // While the node receives these bytes, more are sent.
            let has_sent = broken.is_none() && in_flight.len() > known;
            if has_sent && bytes_max < window && !batch.is_taken() {
                continue;
            }
            let outcome = match (broken, in_flight.front()) {
                (None, None) => return Ok(()),
                (None, Some((id, chunk))) => B::receive_reply(&mut pooled.stream, *id, chunk).await,
                (Some(error), _) => Err(Broken::from(error)),
            };
            match (outcome, in_flight.pop_front()) {
                (Ok(mut outcome), Some((_, chunk))) => {
                    bytes -= chunk.len;
                    if outcome.outcome.is_ok() {
                        outcome.outcome = B::unpin(&chunk, &pooled.stream).await;
                    }
                    batch.settle(&chunk, outcome);
                }
                (Err(Broken(why)), front) => {
                    let lost = self.pool.lost(why);
                    for (_, chunk) in front.into_iter().chain(in_flight) {
                        batch.settle(&chunk, ChunkOutcome::of(Err(lost.clone())));
                    }
                    return Err(lost);
                }
                (Ok(_), None) => return Ok(()),
            }
        }
    }
}

impl Transport for Tcp {
    fn capability(&self) -> Capability {
        Capability { name: "tcp", same_host: false, can_view: false }
    }

    fn read<'a>(&'a self, ops: &'a [ReadOp<'a>], deadline: Instant) -> Outcomes<'a> {
        Box::pin(self.read_with(ops, ReadOptions::default(), deadline))
    }

    fn write<'a>(&'a self, ops: &'a [WriteOp<'a>], deadline: Instant) -> Outcomes<'a> {
        Box::pin(self.write_with(ops, false, deadline))
    }
}

impl Tcp {
    /// Reads with options that [`Transport::read`] does not have.
    pub async fn read_with(
        &self,
        ops: &[ReadOp<'_>],
        options: ReadOptions,
        deadline: Instant,
    ) -> Vec<Outcome> {
        self.read_controlled(ops, options, None, deadline).await
    }

    /// The same with a control. Operations that were not finished when the read was stopped are
    /// [`TransferError::Timeout`]; if another read owns the buffers, they are [`TransferError::Lost`].
    pub async fn read_controlled(
        &self,
        ops: &[ReadOp<'_>],
        options: ReadOptions,
        watch: Option<&Arc<ReadControl>>,
        deadline: Instant,
    ) -> Vec<Outcome> {
        let parts = ops.iter().map(|op| (op.slot, op.stamp, op.offset, op.targets.as_slice()));
        let bytes = ops.iter().map(ReadOp::bytes).fold(0, u64::saturating_add);
        let division = divided(bytes, options.may_block);
        let batch = Batch::new(parts, options.cached_epoch, self.stage(), division).watched(watch);
        let outcomes = self.run(&batch, options.may_block, deadline).await;
        self.count_read(ops, &outcomes, &batch);
        outcomes
    }

    /// Writes; [`ReadOptions::may_block`] explains `may_block`.
    pub async fn write_with(&self, ops: &[WriteOp<'_>], may_block: bool, deadline: Instant) -> Vec<Outcome> {
        let parts = ops.iter().map(|op| (op.slot, op.stamp, op.offset, op.sources.as_slice()));
        let bytes = ops.iter().map(WriteOp::bytes).fold(0, u64::saturating_add);
        let is_on_host = ops.iter().flat_map(|op| &op.sources).all(|source| source.place().is_none());
        let division = match may_block && is_on_host {
            true => self.divided_among_threads(bytes),
            false => divided(bytes, may_block),
        };
        let outcomes = self.run(&Batch::new(parts, None, None, division), may_block, deadline).await;
        self.counters.tcp.add_written(moved(&outcomes, ops.iter().map(WriteOp::bytes)));
        outcomes
    }

    /// How this number of bytes is divided among the threads that may write together. They use only open
    /// connections: others are opened for the next transfers. Connections that other calls use do not count.
    fn divided_among_threads(&self, bytes: u64) -> Division {
        let alone = Division { streams: 1, chunk_bytes: CHUNK_BYTES_MAX, is_together: false };
        let wanted = self.threads_max.min(STREAMS_MAX).min(self.pool.free_count());
        if wanted <= 1 || bytes < TOGETHER_BYTES_MIN {
            return alone;
        }
        let open = self.pool.idle_count().min(wanted);
        if open < wanted {
            self.open_more(wanted - open);
        }
        if open <= 1 {
            return alone;
        }
        let share = bytes / (2 * open as u64);
        let chunk_bytes = share.clamp(SHARE_BYTES_MIN, SHARE_BYTES_MAX).next_multiple_of(SHARE_STEP_BYTES);
        Division { streams: open, chunk_bytes, is_together: true }
    }

    /// The number of threads that would write so many bytes now.
    #[cfg(test)]
    pub(super) fn threads_for(&self, bytes: u64) -> usize {
        self.divided_among_threads(bytes).streams
    }

    /// Opens all connections.
    #[cfg(test)]
    pub(super) async fn open_now(&self) {
        self.pool.open_idle(STREAMS_MAX - self.pool.idle_count()).await;
        assert_eq!(self.pool.idle_count(), STREAMS_MAX);
    }

    /// Opens so many connections more, unless that is in progress or failed just now.
    fn open_more(&self, count: usize) {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        while opening.try_join_next().is_some() {}
        if opening.is_empty() {
            let pool = Arc::clone(&self.pool);
            opening.spawn_on(async move { pool.open_idle(count).await }, &runtime);
        }
    }

    /// The staging segment, while its node is connected.
    fn stage(&self) -> Option<&Arc<Attachment>> {
        self.stage.as_ref().filter(|it| it.is_connected())
    }

    fn count_read(&self, ops: &[ReadOp<'_>], outcomes: &[Outcome], batch: &Batch<TargetBuf<'_>>) {
        let (all, staged) = (moved(outcomes, ops.iter().map(ReadOp::bytes)), batch.state().staged);
        self.counters.shm.add_read(staged.min(all));
        self.counters.tcp.add_read(all.saturating_sub(staged));
    }
}

/// How this number of bytes is divided among streams of one thread.
fn divided(bytes: u64, may_block: bool) -> Division {
    let streams = if may_block && helpers_max() == 1 { 1 } else { streams_for(bytes) };
    Division { streams, chunk_bytes: CHUNK_BYTES_MAX, is_together: false }
}

fn streams_for(bytes: u64) -> usize {
    usize::try_from(bytes / CHUNK_BYTES_MAX).unwrap_or(STREAMS_MAX).clamp(1, STREAMS_MAX)
}

/// Number of threads that may move bytes at the same time: a stream keeps one processor busy here and, on the
/// same machine, another at its other end.
fn helpers_max() -> usize {
    // The query takes longer than a small transfer.
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, |count| count.get().div_ceil(2)))
}

/// Why a stream is no longer usable.
struct Broken(String);

impl<E: std::error::Error> From<E> for Broken {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

type ClientStream = BufferedStream<Box<dyn ByteStream>>;

/// Requests and replies, by the direction of the bytes.
trait Direction: Buf + Send + Sync + Sized {
    /// Sends the requests, with the bytes of writes.
    fn send_requests<'a>(
        stream: &mut ClientStream,
        new: impl Iterator<Item = &'a (u64, Chunk<Self>)> + Send,
    ) -> impl Future<Output = std::io::Result<()>> + Send
    where
        Self: 'a;

    /// Receives the reply, with the bytes of reads.
    fn receive_reply(
        stream: &mut ClientStream,
        id: u64,
        chunk: &Chunk<Self>,
    ) -> impl Future<Output = Result<ChunkOutcome, Broken>> + Send;

    /// Replaces buffers on a device by pinned memory; writes copy their bytes there.
    fn pin(chunk: &mut Chunk<Self>, stage: Stage) -> impl Future<Output = Outcome> + Send;

    /// The chunk was moved: reads copy the bytes from pinned memory to the device.
    fn unpin(chunk: &Chunk<Self>, stream: &ClientStream) -> impl Future<Output = Outcome> + Send;
}

impl Direction for SourceBuf<'_> {
    async fn send_requests<'a>(
        stream: &mut ClientStream,
        new: impl Iterator<Item = &'a (u64, Chunk<Self>)> + Send,
    ) -> std::io::Result<()>
    where
        Self: 'a,
    {
        // Small writes are sent together, up to a number of bytes.
        let mut small: Vec<&(u64, Chunk<Self>)> = Vec::new();
        let (mut bytes, mut bytes_max) = (0, FIRST_PIECE_BYTES);
        for in_flight in new {
            let len = in_flight.1.len as usize;
            // Replies come in the order of the requests.
            if bytes + len > bytes_max || len > AHEAD_BYTES {
                write_small(stream, &small).await?;
                small.clear();
                (bytes, bytes_max) = (0, TOGETHER_BYTES_MAX);
            }
            if len > AHEAD_BYTES {
                write_large(stream, in_flight).await?;
            } else {
                small.push(in_flight);
                bytes += len;
            }
        }
        write_small(stream, &small).await
    }

    async fn receive_reply(
        stream: &mut ClientStream,
        id: u64,
        _: &Chunk<Self>,
    ) -> Result<ChunkOutcome, Broken> {
        let reply = reply(stream, id, ReplyKind::Written, true).await?;
        Ok(ChunkOutcome::of(outcome_of(reply.status)))
    }

    async fn pin(chunk: &mut Chunk<Self>, stage: Stage) -> Outcome {
        let pinned = device::staged_target(&stage, chunk.len);
        let sources = std::mem::replace(&mut chunk.bufs, vec![pinned.as_source()]);
        device::gather(&sources, pinned).await?;
        chunk.pinned = Some((stage, sources));
        Ok(())
    }

    async fn unpin(_: &Chunk<Self>, _: &ClientStream) -> Outcome {
        Ok(())
    }
}

async fn write_small(
    stream: &mut ClientStream,
    small: &[&(u64, Chunk<SourceBuf<'_>>)],
) -> std::io::Result<()> {
    let mut frames = Vec::with_capacity(small.len());
    for (id, chunk) in small {
        stream.hash().reset();
        chunk.bufs.iter().for_each(|buf| stream.hash().update_uncached(*buf));
        frames.push((
            chunk.request(RequestKind::Write, *id).encode(),
            &chunk.bufs,
            stream.hash().finish().to_le_bytes(),
        ));
    }
    let mut all = Vec::new();
    for (head, bufs, sum) in &frames {
        all.push(SourceBuf::from(&head[..]));
        all.extend(bufs.iter().copied());
        all.push(SourceBuf::from(&sum[..]));
    }
    stream.send(all).await
}

/// Each piece is hashed just before it is sent, so that the kernel finds it in the cache.
async fn write_large(
    stream: &mut ClientStream,
    in_flight: &(u64, Chunk<SourceBuf<'_>>),
) -> std::io::Result<()> {
    let (id, chunk) = in_flight;
    let head = chunk.request(RequestKind::Write, *id).encode();
    let mut run = Run::new(chunk.bufs.iter().copied());
    let mut all = vec![SourceBuf::from(&head[..])];
    let mut bytes_max = FIRST_PIECE_BYTES;
    stream.hash().reset();
    loop {
        let pieces = run.take(bytes_max as u64);
        bytes_max = PIECE_BYTES;
        pieces.iter().for_each(|piece| stream.hash().update_uncached(*piece));
        all.extend(pieces);
        if run.is_done() {
            break;
        }
        stream.send(all).await?;
        all = Vec::new();
    }
    let sum = stream.hash().finish().to_le_bytes();
    all.push(SourceBuf::from(&sum[..]));
    stream.send(all).await
}

impl Direction for TargetBuf<'_> {
    async fn send_requests<'a>(
        stream: &mut ClientStream,
        new: impl Iterator<Item = &'a (u64, Chunk<Self>)> + Send,
    ) -> std::io::Result<()>
    where
        Self: 'a,
    {
        let heads: Vec<u8> =
            new.flat_map(|(id, chunk)| chunk.request(RequestKind::Read, *id).encode()).collect();
        stream.send([SourceBuf::from(&heads[..])]).await
    }

    async fn receive_reply(
        stream: &mut ClientStream,
        id: u64,
        chunk: &Chunk<Self>,
    ) -> Result<ChunkOutcome, Broken> {
        // For a large chunk only the header is received first: its bytes go directly to the targets.
        let is_small = chunk.len as usize <= SMALL_BYTES_MAX;
        let head = ReplyHead::decode(&stream.array(is_small).await?)?;
        let overtaken = || Broken("another replica was faster".to_owned());
        let data = match (head.kind, &chunk.stage) {
            (ReplyKind::Staged, Some(_)) if head.status == Status::Ok && !stream.may_fill(chunk.op) => {
                return Err(overtaken());
            }
            (ReplyKind::Staged, Some(stage)) if head.id == id => {
                let outcome = collect(stream, &head, chunk, stage).await?;
                return Ok(ChunkOutcome { outcome, is_staged: true });
            }
            _ => answered(head, id, ReplyKind::Data)?,
        };
        if data.status != Status::Ok {
            return Ok(ChunkOutcome::of(outcome_of(data.status)));
        }
        if data.len != chunk.len {
            return Err(Broken("it sent another length than requested".to_owned()));
        }
        if !stream.may_fill(chunk.op) {
            return Err(overtaken());
        }
        let sum = stream.fill_hashed(chunk.bufs.iter().copied()).await?;
        let trailer = reply(stream, id, ReplyKind::Trailer, true).await?;
        if trailer.status != Status::Ok {
            return Ok(ChunkOutcome::of(outcome_of(trailer.status)));
        }
        Ok(ChunkOutcome::of(if sum == trailer.checksum { Ok(()) } else { Err(TransferError::Corrupt) }))
    }

    async fn pin(chunk: &mut Chunk<Self>, stage: Stage) -> Outcome {
        let pinned = device::staged_target(&stage, chunk.len);
        let targets = std::mem::replace(&mut chunk.bufs, vec![pinned]);
        chunk.pinned = Some((stage, targets));
        Ok(())
    }

    async fn unpin(chunk: &Chunk<Self>, stream: &ClientStream) -> Outcome {
        let (Some((_, targets)), Some(pinned)) = (&chunk.pinned, chunk.bufs.first()) else { return Ok(()) };
        if !stream.may_fill(chunk.op) {
            let why = "another replica was faster".to_owned();
            return Err(TransferError::Lost { peer: String::new(), why });
        }
        device::scatter(pinned.as_source(), targets).await
    }
}

/// Copies bytes from the staging segment, and releases its slot.
async fn collect(
    stream: &mut ClientStream,
    head: &ReplyHead,
    chunk: &Chunk<TargetBuf<'_>>,
    stage: &Attachment,
) -> Result<Outcome, Broken> {
    if head.status != Status::Ok {
        return Ok(outcome_of(head.status));
    }
    let slot = u32::try_from(head.len).map_err(|_| Broken("it named an invalid slot".to_owned()))?;
    let op = ReadOp { slot, stamp: head.checksum, offset: 0, targets: chunk.bufs.clone() };
    let outcome = mapped::read_now(stage.reader(), stage.data(), &op);
    let release = RequestHead {
        kind: RequestKind::Release,
        slot,
        id: head.id,
        stamp: head.checksum,
        offset: 0,
        len: 0,
        cached_epoch: None,
    };
    stream.send([SourceBuf::from(&release.encode()[..])]).await?;
    Ok(match outcome {
        // The node reused the slot while we hold it, so it is shutting down. That says nothing about the copy
        // on its disk.
        Err(TransferError::Stale) => {
            let why = "its staging segment was reused".to_owned();
            Err(TransferError::Lost { peer: stage.name().to_owned(), why })
        }
        outcome => outcome,
    })
}

/// Receives the header of the reply to this request.
async fn reply(
    stream: &mut ClientStream,
    id: u64,
    kind: ReplyKind,
    is_greedy: bool,
) -> Result<ReplyHead, Broken> {
    answered(ReplyHead::decode(&stream.array(is_greedy).await?)?, id, kind)
}

fn answered(reply: ReplyHead, id: u64, kind: ReplyKind) -> Result<ReplyHead, Broken> {
    if reply.id != id || reply.kind != kind {
        return Err(Broken("it answered another request".to_owned()));
    }
    Ok(reply)
}

fn outcome_of(status: Status) -> Outcome {
    match status {
        Status::Ok => Ok(()),
        Status::Stale => Err(TransferError::Stale),
        Status::BadChecksum => Err(TransferError::Corrupt),
        Status::OutOfRange => Err(TransferError::OutOfRange),
        Status::Unreadable => Err(TransferError::Unreadable),
    }
}

/// Polls the workers until they end or the batch is settled: a worker that is still connecting is then not
/// needed. The first time, each may have a thread.
async fn until_settled<B: Direction>(mut workers: Vec<Worker<'_>>, batch: &Batch<B>) {
    let mut is_together = batch.division().is_together;
    poll_fn(|context| {
        if batch.is_stopped() {
            return Poll::Ready(());
        }
        match std::mem::take(&mut is_together) {
            true => together::poll(&mut workers, context),
            false => workers.retain_mut(|worker| worker.as_mut().poll(context).is_pending()),
        }
        if workers.is_empty() || batch.is_settled() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
