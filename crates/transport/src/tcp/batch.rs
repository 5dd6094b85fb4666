//! A batch in progress on one or several streams: chunks still to be requested, and outcomes so far.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tiffin_gpu::Stage;

use super::frame::{RequestHead, RequestKind};
use crate::buffer::{Buf, Run};
use crate::hedge::ReadControl;
use crate::shm::Attachment;
use crate::{CHUNK_BYTES_MAX, Outcome, TransferError};

/// Shorter chunks always go through the socket, which takes one message less than staging.
const STAGED_BYTES_MIN: u64 = 64 << 10;
/// Maximum bytes in flight on one stream: enough that the node never waits for the next request.
const WINDOW_BYTES_MAX: u64 = 2 * CHUNK_BYTES_MAX;

/// The outcome of a chunk, and whether its bytes came through a staging segment.
pub(super) struct ChunkOutcome {
    pub(super) outcome: Outcome,
    pub(super) is_staged: bool,
}

impl ChunkOutcome {
    pub(super) fn of(outcome: Outcome) -> Self {
        Self { outcome, is_staged: false }
    }
}

/// A part of an operation that one request moves.
pub(super) struct Chunk<B> {
    pub(super) op: usize,
    pub(super) slot: u32,
    pub(super) stamp: u64,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) bufs: Vec<B>,
    pub(super) cached_epoch: Option<u64>,
    /// Pinned memory that the bytes go through, and the caller's buffers, if those are on a device.
    pub(super) pinned: Option<(Stage, Vec<B>)>,
    /// The staging segment in which the node may leave the bytes instead of sending them.
    pub(super) stage: Option<Arc<Attachment>>,
}

impl<B> Chunk<B> {
    pub(super) fn request(&self, kind: RequestKind, id: u64) -> RequestHead {
        RequestHead {
            kind: if self.stage.is_some() { RequestKind::Stage } else { kind },
            slot: self.slot,
            id,
            stamp: self.stamp,
            offset: self.offset,
            len: self.len,
            cached_epoch: self.cached_epoch,
        }
    }
}

/// The chunks of a batch, and the outcomes of its operations so far.
pub(super) struct Batch<B> {
    state: Mutex<BatchState<B>>,
    watch: Option<Arc<ReadControl>>,
    /// A device that has some of the buffers.
    device: Option<u32>,
    division: Division,
}

/// How the bytes of a batch are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Division {
    /// Number of streams.
    pub(super) streams: usize,
    /// Maximum bytes of a chunk.
    pub(super) chunk_bytes: u64,
    /// Each stream has a thread, so that one takes no more chunks than it needs to stay busy.
    pub(super) is_together: bool,
}

impl Division {
    /// Bytes that a stream takes before it sends them.
    pub(super) fn taken_bytes(&self) -> u64 {
        if self.is_together { self.chunk_bytes } else { u64::MAX }
    }

    /// Maximum bytes in flight on one stream.
    pub(super) fn window_bytes(&self) -> u64 {
        if self.is_together { 2 * self.chunk_bytes } else { WINDOW_BYTES_MAX }
    }
}

pub(super) struct BatchState<B> {
    chunks: VecDeque<Chunk<B>>,
    /// Per operation: number of chunks without an outcome, and the first error.
    ops: Vec<(usize, Outcome)>,
    /// Why no stream could be opened.
    why: Option<TransferError>,
    /// Bytes that came through a staging segment.
    pub(super) staged: u64,
}

impl<B: Buf> Batch<B> {
    pub(super) fn new<'a>(
        parts: impl Iterator<Item = (u32, u64, u64, &'a [B])>,
        cached_epoch: Option<u64>,
        stage: Option<&Arc<Attachment>>,
        division: Division,
    ) -> Self
    where
        B: 'a,
    {
        let mut state = BatchState { chunks: VecDeque::new(), ops: Vec::new(), why: None, staged: 0 };
        let mut device = None;
        for (op, (slot, stamp, start, bufs)) in parts.enumerate() {
            let count_before = state.chunks.len();
            device = device.or_else(|| bufs.iter().find_map(|buf| buf.device()));
            let mut run = Run::new(bufs.iter().copied());
            let mut offset = start;
            loop {
                let bufs = run.take(division.chunk_bytes);
                let len = bufs.iter().map(|buf| buf.bytes() as u64).sum();
                let stage = stage.filter(|_| len >= STAGED_BYTES_MIN).cloned();
                let pinned = None;
                state.chunks.push_back(Chunk {
                    op,
                    slot,
                    stamp,
                    offset,
                    len,
                    bufs,
                    cached_epoch,
                    pinned,
                    stage,
                });
                // The node reports an overflowing offset as out of range.
                offset = offset.saturating_add(len);
                // An empty range is requested as well: the stamp is still checked.
                if run.is_done() {
                    break;
                }
            }
            state.ops.push((state.chunks.len() - count_before, Ok(())));
        }
        Self { state: Mutex::new(state), watch: None, device, division }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, BatchState<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches a control to the batch.
    pub(super) fn watched(self, watch: Option<&Arc<ReadControl>>) -> Self {
        Self { watch: watch.cloned(), ..self }
    }

    /// A device that has some of the buffers.
    pub(super) fn device(&self) -> Option<u32> {
        self.device
    }

    pub(super) fn division(&self) -> Division {
        self.division
    }

    pub(super) fn watch(&self) -> Option<Arc<ReadControl>> {
        self.watch.clone()
    }

    /// Whether it must end without accessing a buffer again.
    pub(super) fn is_stopped(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.is_stopped())
    }

    /// Whether every chunk was taken.
    pub(super) fn is_taken(&self) -> bool {
        self.state().chunks.is_empty()
    }

    /// Whether every operation has its outcome.
    pub(super) fn is_settled(&self) -> bool {
        self.state().ops.iter().all(|(unsettled, _)| *unsettled == 0)
    }

    /// The next chunk of an operation that can still succeed.
    pub(super) fn next(&self) -> Option<Chunk<B>> {
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

    pub(super) fn settle(&self, chunk: &Chunk<B>, ChunkOutcome { outcome, is_staged }: ChunkOutcome) {
        let mut state = self.state();
        if is_staged && outcome.is_ok() {
            state.staged += chunk.len;
        }
        let Some((unsettled, so_far)) = state.ops.get_mut(chunk.op) else { return };
        *unsettled -= 1;
        if so_far.is_ok() {
            *so_far = outcome;
        }
    }

    pub(super) fn explain(&self, why: TransferError) {
        self.state().why.get_or_insert(why);
    }

    pub(super) fn outcomes(&self, unfinished: &TransferError) -> Vec<Outcome> {
        let state = self.state();
        let unfinished = match (&state.why, unfinished) {
            (Some(why), TransferError::Lost { .. }) => why,
            _ => unfinished,
        };
        let outcome = |(unsettled, outcome): &(usize, Outcome)| match outcome {
            Ok(()) if *unsettled > 0 => Err(unfinished.clone()),
            outcome => outcome.clone(),
        };
        state.ops.iter().map(outcome).collect()
    }
}
