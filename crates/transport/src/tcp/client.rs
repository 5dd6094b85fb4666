//! A client's end of the data socket.
//!
//! A batch is cut into chunks. They are dealt out to a few streams, each of which keeps several requests on
//! the way. Everything happens inside the caller's future: when that is dropped or its deadline passes, no
//! buffer is touched any more, and the streams that it used are closed.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tokio::time::timeout_at;

use super::frame::{ReplyHead, ReplyKind, RequestHead, RequestKind, Status};
use super::pool::{Connect, Identity, Lent, Pool, STREAMS_MAX, TcpConnect};
use super::stream::{Wire, receive_all, receive_array, send_all};
use crate::buffer::{Buf, Run, SourceBuf, TargetBuf};
use crate::local::moved;
use crate::{
    CHUNK_BYTES_MAX, Capability, Counters, Instant, Outcome, Outcomes, ReadOp, TransferError, Transport,
    WriteOp, copy,
};

/// How many requests are on the way on one stream, so that the node never waits for the next.
const WINDOW_MAX: usize = 4;

/// Reaches the memory of a node through its data socket.
pub struct Tcp {
    pool: Pool,
    counters: Arc<Counters>,
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
        Self { pool: Pool::new(address, identity, connect), counters }
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
    async fn run<B: Cargo>(&self, batch: Batch<B>, deadline: Instant) -> Vec<Outcome> {
        // A timer lets work that is ready pass even when it is too late.
        if Instant::now() >= deadline {
            return batch.outcomes(&TransferError::Timeout);
        }
        let streams =
            usize::try_from(batch.bytes() / CHUNK_BYTES_MAX).unwrap_or(STREAMS_MAX).clamp(1, STREAMS_MAX);
        let workers = (0..streams).map(|number| {
            let batch = &batch;
            Box::pin(async move { self.work(batch, number == 0).await })
                as Pin<Box<dyn Future<Output = ()> + Send>>
        });
        let in_time = timeout_at(deadline, until_settled(workers.collect(), &batch)).await.is_ok();
        let unfinished = if in_time { self.pool.lost("every stream broke") } else { TransferError::Timeout };
        batch.outcomes(&unfinished)
    }

    /// One stream's share. The first worker waits for a stream; the others only help if one is to be had.
    async fn work<B: Cargo>(&self, batch: &Batch<B>, is_first: bool) {
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
        match self.exchange(&mut lent, batch).await {
            Ok(()) => lent.hand_back(),
            Err(error) => drop((lent, error)),
        }
    }

    /// Asks and hears until there is nothing left to ask. `Err`: the stream broke, and its chunks are marked.
    async fn exchange<B: Cargo>(&self, lent: &mut Lent<'_>, batch: &Batch<B>) -> Result<(), TransferError> {
        let mut asked: VecDeque<(u64, Chunk<B>)> = VecDeque::new();
        let mut next_id = 0;
        loop {
            let mut broken = None;
            while asked.len() < WINDOW_MAX && broken.is_none() {
                let Some(chunk) = batch.next() else { break };
                next_id += 1;
                let request = chunk.request(next_id);
                broken = B::ask(&mut lent.wire, &request, &chunk.bufs).await.err();
                asked.push_back((next_id, chunk));
            }
            let outcome = match (broken, asked.front()) {
                (None, None) => return Ok(()),
                (None, Some((id, chunk))) => B::hear(&mut lent.wire, *id, chunk).await,
                (Some(error), _) => Err(Broken::from(error)),
            };
            match (outcome, asked.pop_front()) {
                (Ok(outcome), Some((_, chunk))) => batch.settle(chunk.op, outcome),
                (Err(Broken(why)), front) => {
                    let lost = self.pool.lost(why);
                    for (_, chunk) in front.into_iter().chain(asked) {
                        batch.settle(chunk.op, Err(lost.clone()));
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
        Box::pin(async move {
            let parts = ops.iter().map(|op| (op.slot, op.stamp, op.offset, op.targets.as_slice()));
            let outcomes = self.run(Batch::new(parts), deadline).await;
            self.counters.tcp.add_read(moved(&outcomes, ops.iter().map(ReadOp::bytes)));
            outcomes
        })
    }

    fn write<'a>(&'a self, ops: &'a [WriteOp<'a>], deadline: Instant) -> Outcomes<'a> {
        Box::pin(async move {
            let parts = ops.iter().map(|op| (op.slot, op.stamp, op.offset, op.sources.as_slice()));
            let outcomes = self.run(Batch::new(parts), deadline).await;
            self.counters.tcp.add_written(moved(&outcomes, ops.iter().map(WriteOp::bytes)));
            outcomes
        })
    }
}

/// Why a stream is of no use any more.
struct Broken(String);

impl<E: std::error::Error> From<E> for Broken {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// What is asked and heard, by the direction in which the bytes go.
trait Cargo: Buf + Send + Sync {
    const KIND: RequestKind;

    /// The checksum that goes with the request.
    fn checksum(bufs: &[Self]) -> u64;

    /// Sends the request, with its bytes if it has any.
    fn ask(
        wire: &mut Box<dyn Wire>,
        request: &RequestHead,
        bufs: &[Self],
    ) -> impl Future<Output = std::io::Result<()>> + Send;

    /// Receives the answer, with its bytes if it has any.
    fn hear(
        wire: &mut Box<dyn Wire>,
        id: u64,
        chunk: &Chunk<Self>,
    ) -> impl Future<Output = Result<Outcome, Broken>> + Send;
}

impl Cargo for SourceBuf<'_> {
    const KIND: RequestKind = RequestKind::Write;

    fn checksum(bufs: &[Self]) -> u64 {
        copy::checksum(bufs.iter().copied())
    }

    async fn ask(wire: &mut Box<dyn Wire>, request: &RequestHead, bufs: &[Self]) -> std::io::Result<()> {
        let head = request.encode();
        let all: Vec<_> = std::iter::once(SourceBuf::from(&head[..])).chain(bufs.iter().copied()).collect();
        send_all(wire, all).await
    }

    async fn hear(wire: &mut Box<dyn Wire>, id: u64, _: &Chunk<Self>) -> Result<Outcome, Broken> {
        let reply = reply(wire, id, ReplyKind::Written).await?;
        Ok(outcome_of(reply.status))
    }
}

impl Cargo for TargetBuf<'_> {
    const KIND: RequestKind = RequestKind::Read;

    fn checksum(_: &[Self]) -> u64 {
        0
    }

    async fn ask(wire: &mut Box<dyn Wire>, request: &RequestHead, _: &[Self]) -> std::io::Result<()> {
        send_all(wire, [SourceBuf::from(&request.encode()[..])]).await
    }

    async fn hear(wire: &mut Box<dyn Wire>, id: u64, chunk: &Chunk<Self>) -> Result<Outcome, Broken> {
        let data = reply(wire, id, ReplyKind::Data).await?;
        if data.status != Status::Ok {
            return Ok(outcome_of(data.status));
        }
        if data.len != chunk.len {
            return Err(Broken("it sent another length than was asked for".to_owned()));
        }
        receive_all(wire, chunk.bufs.iter().copied()).await?;
        let trailer = reply(wire, id, ReplyKind::Trailer).await?;
        if trailer.status != Status::Ok {
            return Ok(outcome_of(trailer.status));
        }
        let is_whole = copy::checksum(chunk.bufs.iter().map(|target| target.as_source())) == trailer.checksum;
        Ok(if is_whole { Ok(()) } else { Err(TransferError::Corrupt) })
    }
}

/// Receives the header of the answer to this very request.
async fn reply(wire: &mut Box<dyn Wire>, id: u64, kind: ReplyKind) -> Result<ReplyHead, Broken> {
    let reply = ReplyHead::decode(&receive_array(wire).await?)?;
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
    }
}

/// A part of an operation that one request moves.
struct Chunk<B> {
    op: usize,
    slot: u32,
    stamp: u64,
    offset: u64,
    len: u64,
    bufs: Vec<B>,
}

impl<B: Cargo> Chunk<B> {
    fn request(&self, id: u64) -> RequestHead {
        RequestHead {
            kind: B::KIND,
            slot: self.slot,
            id,
            stamp: self.stamp,
            offset: self.offset,
            len: self.len,
            checksum: B::checksum(&self.bufs),
        }
    }
}

/// The chunks of a batch, and what became of its operations so far.
struct Batch<B> {
    state: Mutex<BatchState<B>>,
}

struct BatchState<B> {
    chunks: VecDeque<Chunk<B>>,
    /// Per operation: how many chunks are not settled, and the first thing that went wrong.
    ops: Vec<(usize, Outcome)>,
    /// Why a stream could not be had.
    why: Option<TransferError>,
}

impl<B: Cargo> Batch<B> {
    fn new<'a>(parts: impl Iterator<Item = (u32, u64, u64, &'a [B])>) -> Self
    where
        B: 'a,
    {
        let mut state = BatchState { chunks: VecDeque::new(), ops: Vec::new(), why: None };
        for (op, (slot, stamp, start, bufs)) in parts.enumerate() {
            let count_before = state.chunks.len();
            let mut run = Run::new(bufs.iter().copied());
            let mut offset = start;
            loop {
                let bufs = run.take(CHUNK_BYTES_MAX);
                let len = bufs.iter().map(|buf| buf.bytes() as u64).sum();
                state.chunks.push_back(Chunk { op, slot, stamp, offset, len, bufs });
                // An offset that overflows is out of range, and the node says so.
                offset = offset.saturating_add(len);
                // A range of no bytes is asked for too: whether the stamp is still there is an answer.
                if run.is_done() {
                    break;
                }
            }
            state.ops.push((state.chunks.len() - count_before, Ok(())));
        }
        Self { state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, BatchState<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many bytes are still to be asked for.
    fn bytes(&self) -> u64 {
        self.state().chunks.iter().fold(0, |sum, chunk| sum.saturating_add(chunk.len))
    }

    /// Whether every operation has its outcome.
    fn is_settled(&self) -> bool {
        self.state().ops.iter().all(|(unsettled, _)| *unsettled == 0)
    }

    /// The next chunk of an operation that can still succeed.
    fn next(&self) -> Option<Chunk<B>> {
        let mut state = self.state();
        while let Some(chunk) = state.chunks.pop_front() {
            match state.ops.get_mut(chunk.op) {
                Some((_, Ok(()))) => return Some(chunk),
                Some((unsettled, Err(_))) => *unsettled -= 1,
                None => {}
            }
        }
        None
    }

    fn settle(&self, op: usize, outcome: Outcome) {
        let mut state = self.state();
        let Some((unsettled, so_far)) = state.ops.get_mut(op) else { return };
        *unsettled -= 1;
        if so_far.is_ok() {
            *so_far = outcome;
        }
    }

    fn explain(&self, why: TransferError) {
        self.state().why.get_or_insert(why);
    }

    fn outcomes(self, unfinished: &TransferError) -> Vec<Outcome> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let unfinished = match (state.why, unfinished) {
            (Some(why), TransferError::Lost { .. }) => why,
            _ => unfinished.clone(),
        };
        let outcome = |(unsettled, outcome): (usize, Outcome)| match outcome {
            Ok(()) if unsettled > 0 => Err(unfinished.clone()),
            outcome => outcome,
        };
        state.ops.into_iter().map(outcome).collect()
    }
}

/// Runs the workers, inside the future that waits, until they end or there is nothing left to wait for: one
/// that is still connecting then is not needed.
async fn until_settled<B: Cargo>(
    mut workers: Vec<Pin<Box<dyn Future<Output = ()> + Send + '_>>>,
    batch: &Batch<B>,
) {
    poll_fn(|context| {
        workers.retain_mut(|worker| worker.as_mut().poll(context).is_pending());
        if workers.is_empty() || batch.is_settled() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
