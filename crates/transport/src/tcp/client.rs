//! A client's end of the data socket.
//!
//! A batch is cut into chunks. They are dealt out to a few streams, each of which keeps several requests
//! on the way; small ones are asked for, and answered, many at a time. Everything happens inside the
//! caller's future: when that is dropped or its deadline passes, no buffer is touched any more, and the
//! streams that it used are closed. A caller that may block its thread ([`Manner::lingers`]) waits in the
//! socket itself if all goes over one stream.
//!
//! What a disk of this host has is left in memory that is mapped here: the socket then says where, and the
//! bytes count if, after the copy, they are still there under the same stamp.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use tokio::time::timeout_at;

use super::batch::{Batch, Chunk, Heard};
use super::frame::{ReplyHead, ReplyKind, RequestHead, RequestKind, Status};
use super::line::{AHEAD_BYTES, FIRST_PIECE_BYTES, Line, PIECE_BYTES, SMALL_BYTES_MAX};
use super::pool::{Connect, DISK_STREAMS_MAX, Identity, Lent, Pool, STREAMS_MAX, TcpConnect};
use super::stream::{Waits, Wire};
use crate::buffer::{Buf, Run, SourceBuf, TargetBuf};
use crate::local::moved;
use crate::mapped;
use crate::shm::Attachment;
use crate::watch::Watch;
use crate::{
    CHUNK_BYTES_MAX, Capability, Counters, Instant, Outcome, Outcomes, ReadOp, TransferError, Transport,
    WriteOp,
};

/// How many requests, and how many bytes, are on the way on one stream, so that the node never waits for
/// the next.
const WINDOW_MAX: usize = 128;
/// See [`WINDOW_MAX`].
const WINDOW_BYTES_MAX: u64 = 2 * CHUNK_BYTES_MAX;

/// How many bytes of small objects travel together.
const TOGETHER_BYTES_MAX: usize = 512 << 10;

/// How long a thread waits in a socket before it leaves that to the runtime, so that it can be interrupted.
const LINGER_TIME_MAX: Duration = Duration::from_millis(16);

/// How bytes are read for somebody in particular.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// The reader knows of the uses from that life of the master, and has asked nobody about them since. The
    /// node itself says, after the bytes, whether it is a member in that life and the uses are its objects;
    /// where it is not so, the read is [`TransferError::Stale`].
    pub unasked: Option<u64>,
    /// Whoever polls is a thread that waits for nothing else, so it may wait a moment in the socket.
    pub lingers: bool,
}

/// Reaches the memory of a node through its data socket.
pub struct Tcp {
    pool: Pool,
    counters: Arc<Counters>,
    /// Memory of the node's into which a disk reads for readers of this host.
    stage: Option<Arc<Attachment>>,
}

impl Tcp {
    /// Reaches the node at `host:port`. Connects when there is something to move.
    #[must_use]
    pub fn new(address: String, identity: Identity, counters: Arc<Counters>) -> Self {
        Self::with_connect(address, identity, counters, Box::new(TcpConnect))
    }

    /// The same over connections of another kind.
    #[must_use]
    pub fn with_connect(
        address: String,
        identity: Identity,
        counters: Arc<Counters>,
        connect: Box<dyn Connect>,
    ) -> Self {
        Self { pool: Pool::new(address, identity, connect, STREAMS_MAX), counters, stage: None }
    }

    /// Reaches a disk beside the memory of the node at `host:port`, if the identity names one. Where its
    /// stage is mapped, the bytes are copied from there.
    #[must_use]
    pub fn to_disk(
        address: String,
        identity: Identity,
        counters: Arc<Counters>,
        stage: Option<Arc<Attachment>>,
    ) -> Self {
        let pool = Pool::new(address, identity, Box::new(TcpConnect), DISK_STREAMS_MAX);
        Self { pool, counters, stage }
    }

    /// The node's `host:port`.
    #[must_use]
    pub fn address(&self) -> &str {
        self.pool.address()
    }

    /// Connects, if there is no connection yet: finds out whether the node can be reached and lets this
    /// client in.
    pub async fn probe(&self, deadline: Instant) -> Outcome {
        let stream = timeout_at(deadline, self.pool.lend()).await.map_err(|_| TransferError::Timeout)??;
        stream.hand_back();
        Ok(())
    }

    /// Moves all chunks, or as many as can be moved until the deadline.
    async fn run<B: Cargo>(&self, batch: &Batch<B>, lingers: bool, deadline: Instant) -> Vec<Outcome> {
        // A timer lets work that is ready pass even when it is too late.
        let now = Instant::now();
        if now >= deadline {
            return batch.outcomes(&TransferError::Timeout);
        }
        // Several streams want somebody who is there for all of them.
        let lingers = lingers && streams(batch).min(helpers_max()) == 1;
        let (waits, streams) = match lingers {
            true => (Waits::ThreadFirst(deadline.min(now + LINGER_TIME_MAX).into_std()), 1),
            false => (Waits::InTask, streams(batch)),
        };
        let workers = (0..streams).map(|number| {
            Box::pin(async move { self.work(batch, number == 0, waits).await })
                as Pin<Box<dyn Future<Output = ()> + Send>>
        });
        let in_time = timeout_at(deadline, until_settled(workers.collect(), batch)).await.is_ok();
        self.outcomes(batch, in_time && !batch.is_stopped())
    }

    fn outcomes<B: Cargo>(&self, batch: &Batch<B>, in_time: bool) -> Vec<Outcome> {
        let unfinished = if in_time { self.pool.lost("every stream broke") } else { TransferError::Timeout };
        batch.outcomes(&unfinished)
    }

    /// One stream's share. The first worker waits for a stream; the others only help if one is to be had.
    async fn work<B: Cargo>(&self, batch: &Batch<B>, is_first: bool, waits: Waits) {
        let lent = if is_first {
            self.pool.lend().await
        } else {
            match self.pool.try_lend().await {
                Some(lent) => lent,
                None => return,
            }
        };
        let mut lent = match lent {
            Ok(lent) => lent,
            // The others may have streams already; if not, this is what there is to say.
            Err(error) => return batch.explain(error),
        };
        lent.line.wait(waits);
        lent.line.set_watch(batch.watch());
        match self.exchange(&mut lent, batch).await {
            Ok(()) => {
                lent.line.set_watch(None);
                lent.hand_back();
            }
            Err(error) => drop((lent, error)),
        }
    }

    /// Asks and hears until there is nothing left to ask. `Err`: the stream broke, and its chunks are marked.
    async fn exchange<B: Cargo>(&self, lent: &mut Lent<'_>, batch: &Batch<B>) -> Result<(), TransferError> {
        let mut asked: VecDeque<(u64, Chunk<B>)> = VecDeque::new();
        let (mut next_id, mut bytes) = (0, 0);
        loop {
            let known = asked.len();
            // Half of the window is empty before it is filled again, so that requests travel together.
            while known <= WINDOW_MAX / 2 && asked.len() < WINDOW_MAX && bytes < WINDOW_BYTES_MAX {
                let Some(chunk) = batch.next() else { break };
                next_id += 1;
                bytes += chunk.len;
                asked.push_back((next_id, chunk));
            }
            let new = asked.iter().skip(known);
            let broken = if asked.len() > known { B::ask(&mut lent.line, new).await.err() } else { None };
            let outcome = match (broken, asked.front()) {
                (None, None) => return Ok(()),
                (None, Some((id, chunk))) => B::hear(&mut lent.line, *id, chunk).await,
                (Some(error), _) => Err(Broken::from(error)),
            };
            match (outcome, asked.pop_front()) {
                (Ok(heard), Some((_, chunk))) => {
                    bytes -= chunk.len;
                    batch.settle(&chunk, heard);
                }
                (Err(Broken(why)), front) => {
                    let lost = self.pool.lost(why);
                    for (_, chunk) in front.into_iter().chain(asked) {
                        batch.settle(&chunk, Heard::of(Err(lost.clone())));
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
        Box::pin(self.read_as(ops, Manner::default(), deadline))
    }

    fn write<'a>(&'a self, ops: &'a [WriteOp<'a>], deadline: Instant) -> Outcomes<'a> {
        Box::pin(self.write_as(ops, false, deadline))
    }
}

impl Tcp {
    /// Reads, in another manner than a [`Transport`] does.
    pub async fn read_as(&self, ops: &[ReadOp<'_>], manner: Manner, deadline: Instant) -> Vec<Outcome> {
        self.read_watched(ops, manner, None, deadline).await
    }

    /// The same, seen and steered while it runs. What was not read when it was stopped is
    /// [`TransferError::Timeout`]; where another read has the buffers, it is [`TransferError::Lost`].
    pub async fn read_watched(
        &self,
        ops: &[ReadOp<'_>],
        manner: Manner,
        watch: Option<&Arc<Watch>>,
        deadline: Instant,
    ) -> Vec<Outcome> {
        let parts = ops.iter().map(|op| (op.slot, op.stamp, op.offset, op.targets.as_slice()));
        let batch = Batch::new(parts, manner.unasked, self.stage()).watched(watch);
        let outcomes = self.run(&batch, manner.lingers, deadline).await;
        self.count_read(ops, &outcomes, &batch);
        outcomes
    }

    /// Writes, for somebody who may [linger](Manner::lingers).
    pub async fn write_as(&self, ops: &[WriteOp<'_>], lingers: bool, deadline: Instant) -> Vec<Outcome> {
        let parts = ops.iter().map(|op| (op.slot, op.stamp, op.offset, op.sources.as_slice()));
        let outcomes = self.run(&Batch::new(parts, None, None), lingers, deadline).await;
        self.counters.tcp.add_written(moved(&outcomes, ops.iter().map(WriteOp::bytes)));
        outcomes
    }

    /// The memory that a disk may read into for us, while its node is there.
    fn stage(&self) -> Option<&Arc<Attachment>> {
        self.stage.as_ref().filter(|it| it.is_connected())
    }

    fn count_read(&self, ops: &[ReadOp<'_>], outcomes: &[Outcome], batch: &Batch<TargetBuf<'_>>) {
        let (all, staged) = (moved(outcomes, ops.iter().map(ReadOp::bytes)), batch.state().staged);
        self.counters.shm.add_read(staged.min(all));
        self.counters.tcp.add_read(all.saturating_sub(staged));
    }
}

/// How many streams are worth their while.
fn streams<B: Cargo>(batch: &Batch<B>) -> usize {
    streams_for(batch.bytes())
}

fn streams_for(bytes: u64) -> usize {
    usize::try_from(bytes / CHUNK_BYTES_MAX).unwrap_or(STREAMS_MAX).clamp(1, STREAMS_MAX)
}

/// How many threads may move bytes at the same time: a stream keeps one processor busy here and, on the
/// same machine, another at its other end.
fn helpers_max() -> usize {
    // Finding out takes longer than a small transfer.
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, |count| count.get().div_ceil(2)))
}

/// Why a stream is of no use any more.
struct Broken(String);

impl<E: std::error::Error> From<E> for Broken {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

type ClientLine = Line<Box<dyn Wire>>;

/// What is asked and heard, by the direction in which the bytes go.
trait Cargo: Buf + Send + Sync + Sized {
    /// Sends the requests, with their bytes if they have any.
    fn ask<'a>(
        line: &mut ClientLine,
        new: impl Iterator<Item = &'a (u64, Chunk<Self>)> + Send,
    ) -> impl Future<Output = std::io::Result<()>> + Send
    where
        Self: 'a;

    /// Receives the answer, with its bytes if it has any.
    fn hear(
        line: &mut ClientLine,
        id: u64,
        chunk: &Chunk<Self>,
    ) -> impl Future<Output = Result<Heard, Broken>> + Send;
}

impl Cargo for SourceBuf<'_> {
    async fn ask<'a>(
        line: &mut ClientLine,
        new: impl Iterator<Item = &'a (u64, Chunk<Self>)> + Send,
    ) -> std::io::Result<()>
    where
        Self: 'a,
    {
        // Small ones travel together, as long as they are few bytes.
        let mut small: Vec<&(u64, Chunk<Self>)> = Vec::new();
        let (mut bytes, mut bytes_max) = (0, FIRST_PIECE_BYTES);
        for asked in new {
            let len = asked.1.len as usize;
            // They are answered in the order in which they are asked.
            if bytes + len > bytes_max || len > AHEAD_BYTES {
                write_small(line, &small).await?;
                small.clear();
                (bytes, bytes_max) = (0, TOGETHER_BYTES_MAX);
            }
            if len > AHEAD_BYTES {
                write_large(line, asked).await?;
            } else {
                small.push(asked);
                bytes += len;
            }
        }
        write_small(line, &small).await
    }

    async fn hear(line: &mut ClientLine, id: u64, _: &Chunk<Self>) -> Result<Heard, Broken> {
        let reply = reply(line, id, ReplyKind::Written, true).await?;
        Ok(Heard::of(outcome_of(reply.status)))
    }
}

async fn write_small(line: &mut ClientLine, small: &[&(u64, Chunk<SourceBuf<'_>>)]) -> std::io::Result<()> {
    let mut frames = Vec::with_capacity(small.len());
    for (id, chunk) in small {
        line.hash().reset();
        chunk.bufs.iter().for_each(|buf| line.hash().update_far(*buf));
        frames.push((
            chunk.request(RequestKind::Write, *id).encode(),
            &chunk.bufs,
            line.hash().finish().to_le_bytes(),
        ));
    }
    let mut all = Vec::new();
    for (head, bufs, sum) in &frames {
        all.push(SourceBuf::from(&head[..]));
        all.extend(bufs.iter().copied());
        all.push(SourceBuf::from(&sum[..]));
    }
    line.send(all).await
}

/// Each piece is hashed just before it is sent: so the kernel finds it in the cache.
async fn write_large(line: &mut ClientLine, asked: &(u64, Chunk<SourceBuf<'_>>)) -> std::io::Result<()> {
    let (id, chunk) = asked;
    let head = chunk.request(RequestKind::Write, *id).encode();
    let mut run = Run::new(chunk.bufs.iter().copied());
    let mut all = vec![SourceBuf::from(&head[..])];
    let mut bytes_max = FIRST_PIECE_BYTES;
    line.hash().reset();
    loop {
        let pieces = run.take(bytes_max as u64);
        bytes_max = PIECE_BYTES;
        pieces.iter().for_each(|piece| line.hash().update_far(*piece));
        all.extend(pieces);
        if run.is_done() {
            break;
        }
        line.send(all).await?;
        all = Vec::new();
    }
    let sum = line.hash().finish().to_le_bytes();
    all.push(SourceBuf::from(&sum[..]));
    line.send(all).await
}

impl Cargo for TargetBuf<'_> {
    async fn ask<'a>(
        line: &mut ClientLine,
        new: impl Iterator<Item = &'a (u64, Chunk<Self>)> + Send,
    ) -> std::io::Result<()>
    where
        Self: 'a,
    {
        let heads: Vec<u8> =
            new.flat_map(|(id, chunk)| chunk.request(RequestKind::Read, *id).encode()).collect();
        line.send([SourceBuf::from(&heads[..])]).await
    }

    async fn hear(line: &mut ClientLine, id: u64, chunk: &Chunk<Self>) -> Result<Heard, Broken> {
        // In front of many bytes only the header is received: they are to go straight to where they belong.
        let is_small = chunk.len as usize <= SMALL_BYTES_MAX;
        let head = ReplyHead::decode(&line.array(is_small).await?)?;
        let overtaken = || Broken("another copy was faster".to_owned());
        let data = match (head.kind, &chunk.stage) {
            (ReplyKind::Staged, Some(_)) if head.status == Status::Ok && !line.may_fill(chunk.op) => {
                return Err(overtaken());
            }
            (ReplyKind::Staged, Some(stage)) if head.id == id => {
                let outcome = collect(line, &head, chunk, stage).await?;
                return Ok(Heard { outcome, is_staged: true });
            }
            _ => answered(head, id, ReplyKind::Data)?,
        };
        if data.status != Status::Ok {
            return Ok(Heard::of(outcome_of(data.status)));
        }
        if data.len != chunk.len {
            return Err(Broken("it sent another length than was asked for".to_owned()));
        }
        if !line.may_fill(chunk.op) {
            return Err(overtaken());
        }
        let sum = line.fill_hashed(chunk.bufs.iter().copied()).await?;
        let trailer = reply(line, id, ReplyKind::Trailer, true).await?;
        if trailer.status != Status::Ok {
            return Ok(Heard::of(outcome_of(trailer.status)));
        }
        Ok(Heard::of(if sum == trailer.checksum { Ok(()) } else { Err(TransferError::Corrupt) }))
    }
}

/// Copies what the disk has left in memory that is mapped here, and lets go of it.
async fn collect(
    line: &mut ClientLine,
    head: &ReplyHead,
    chunk: &Chunk<TargetBuf<'_>>,
    stage: &Attachment,
) -> Result<Outcome, Broken> {
    if head.status != Status::Ok {
        return Ok(outcome_of(head.status));
    }
    let slot = u32::try_from(head.len).map_err(|_| Broken("it named a slot that cannot be".to_owned()))?;
    let op = ReadOp { slot, stamp: head.checksum, offset: 0, targets: chunk.bufs.clone() };
    let outcome = mapped::read_now(stage.reader(), stage.data(), &op);
    let release = RequestHead {
        kind: RequestKind::Release,
        slot,
        id: head.id,
        stamp: head.checksum,
        offset: 0,
        len: 0,
        unasked: None,
    };
    line.send([SourceBuf::from(&release.encode()[..])]).await?;
    Ok(match outcome {
        // That memory was taken back under our hands, so the node is going away. It says nothing about the
        // copy on its disk.
        Err(TransferError::Stale) => {
            let why = "its stage was given to others".to_owned();
            Err(TransferError::Lost { peer: stage.name().to_owned(), why })
        }
        outcome => outcome,
    })
}

/// Receives the header of the answer to this very request.
async fn reply(
    line: &mut ClientLine,
    id: u64,
    kind: ReplyKind,
    is_greedy: bool,
) -> Result<ReplyHead, Broken> {
    answered(ReplyHead::decode(&line.array(is_greedy).await?)?, id, kind)
}

fn answered(reply: ReplyHead, id: u64, kind: ReplyKind) -> Result<ReplyHead, Broken> {
    if reply.id != id || reply.kind != kind {
        return Err(Broken("it answered what was not asked".to_owned()));
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

/// Runs the workers, inside the future that waits, until they end or there is nothing left to wait for: one
/// that is still connecting then is not needed.
async fn until_settled<B: Cargo>(
    mut workers: Vec<Pin<Box<dyn Future<Output = ()> + Send + '_>>>,
    batch: &Batch<B>,
) {
    poll_fn(|context| {
        if batch.is_stopped() {
            return Poll::Ready(());
        }
        workers.retain_mut(|worker| worker.as_mut().poll(context).is_pending());
        if workers.is_empty() || batch.is_settled() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
