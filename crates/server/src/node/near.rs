//! The disks of a node, for clients in the process where it lives: what is read for them crosses no socket.
//!
//! The disk reads into memory of its own, and from there the bytes are copied to the caller. They could be
//! read straight into the caller's memory where that is aligned, but then a call could not end before the
//! disk has: neither at its deadline nor when its task is dropped.
//!
//! **Invariant:** nothing here keeps a disk open that its node has let go of.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use tiffin_core::{SegmentId, Stamp};
use tiffin_ssd::Span;
use tiffin_transport::copy::copy_in;
use tiffin_transport::local::LocalDisk;
use tiffin_transport::tcp::FetchError;
use tiffin_transport::{
    CHUNK_BYTES_MAX, Counters, Instant, Outcome, Outcomes, ReadOp, TargetBuf, TransferError,
};
use tokio::time::timeout_at;

use super::disk::Beside;

/// Bytes of one call that are on their way from the disk at a time; one chunk may be more.
const FLYING_BYTES_MAX: u64 = 64 << 20;

/// Reads one of them.
struct DiskReader {
    segment: SegmentId,
    name: String,
    disk: Weak<Beside>,
}

/// Where the bytes of an operation go, in order.
struct Landing<'a> {
    targets: Vec<TargetBuf<'a>>,
}

/// The disks, for clients in this process.
pub(super) fn local_disks(disks: &[Arc<Beside>]) -> Vec<Arc<dyn LocalDisk>> {
    let reader = |it: &Arc<Beside>| {
        let (segment, name, disk) = (it.segment(), it.name().to_owned(), Arc::downgrade(it));
        Arc::new(DiskReader { segment, name, disk }) as Arc<dyn LocalDisk>
    };
    disks.iter().map(reader).collect()
}

impl DiskReader {
    /// See [`LocalDisk::read`].
    async fn read_all(
        &self,
        ops: &[ReadOp<'_>],
        unasked: Option<u64>,
        counters: &Counters,
        deadline: Instant,
    ) -> Vec<Outcome> {
        let mut outcomes = vec![Ok(()); ops.len()];
        let mut landings: Vec<_> = ops.iter().map(Landing::new).collect();
        let mut chunks = ops.iter().enumerate().flat_map(|(at, op)| spans(op).map(move |span| (at, span)));
        let (mut flying, mut flying_bytes) = (VecDeque::new(), 0);
        loop {
            // A disk is fast only if it has much to do at a time.
            while flying_bytes < FLYING_BYTES_MAX {
                let Some((at, span)) = chunks.next() else { break };
                let (Some(op), Some(Ok(()))) = (ops.get(at), outcomes.get(at)) else { continue };
                flying_bytes += span.len;
                let disk = self.disk.upgrade();
                let reading = disk.map(|it| it.read(Stamp(op.stamp), span, unasked));
                flying.push_back((at, span, reading));
            }
            let Some((at, span, reading)) = flying.pop_front() else { break };
            flying_bytes -= span.len;
            let read = match reading {
                None => Err(self.gone()),
                Some(None) => Err(TransferError::Stale),
                Some(Some(reading)) => match timeout_at(deadline, reading).await {
                    Err(_) => Err(TransferError::Timeout),
                    Ok(Err(FetchError::Gone)) => Err(TransferError::Stale),
                    Ok(Err(FetchError::Unreadable)) => Err(TransferError::Unreadable),
                    Ok(Ok(bytes)) => Ok(bytes),
                },
            };
            let (Some(op), Some(outcome), Some(landing)) =
                (ops.get(at), outcomes.get_mut(at), landings.get_mut(at))
            else {
                continue;
            };
            if outcome.is_ok() {
                *outcome = read.and_then(|bytes| {
                    landing.land(bytes.as_ref());
                    self.counts(Stamp(op.stamp), unasked)
                });
            }
        }
        let whole = ops.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok());
        counters.local.add_read(whole.map(|(op, _)| op.bytes()).sum());
        outcomes
    }

    /// Whether what was read still counts.
    fn counts(&self, stamp: Stamp, unasked: Option<u64>) -> Outcome {
        let disk = self.disk.upgrade().ok_or_else(|| self.gone())?;
        if disk.counts(stamp, unasked) { Ok(()) } else { Err(TransferError::Stale) }
    }

    fn gone(&self) -> TransferError {
        let why = "the node in this process was stopped".to_owned();
        TransferError::Lost { peer: self.name.clone(), why }
    }
}

impl LocalDisk for DiskReader {
    fn segment(&self) -> u64 {
        self.segment.0
    }

    fn read<'a>(
        &'a self,
        ops: &'a [ReadOp<'a>],
        unasked: Option<u64>,
        counters: &'a Counters,
        deadline: Instant,
    ) -> Outcomes<'a> {
        Box::pin(self.read_all(ops, unasked, counters, deadline))
    }
}

impl<'a> Landing<'a> {
    fn new(op: &ReadOp<'a>) -> Self {
        Self { targets: op.targets.iter().rev().copied().collect() }
    }

    fn land(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Some(target) = self.targets.pop() else { return };
            let (now, later) = target.split_at(bytes.len());
            let (head, rest) = bytes.split_at(now.len());
            copy_in(head, now);
            bytes = rest;
            if !later.is_empty() {
                self.targets.push(later);
            }
        }
    }
}

/// What is read at a time; at least one, so that it is found out whether the copy is there.
fn spans(op: &ReadOp<'_>) -> impl Iterator<Item = Span> + use<> {
    let (begin, len) = (op.offset, op.bytes());
    let count = len.div_ceil(CHUNK_BYTES_MAX).max(1);
    (0..count).map(move |it| {
        let at = it * CHUNK_BYTES_MAX;
        Span { offset: begin.saturating_add(at), len: CHUNK_BYTES_MAX.min(len - at) }
    })
}
