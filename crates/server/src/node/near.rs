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
use tiffin_transport::tcp::Unfetched;
use tiffin_transport::{
    CHUNK_BYTES_MAX, Capability, Counters, Instant, Outcome, Outcomes, ReadOp, TargetBuf, TransferError,
    Transport, WriteOp,
};
use tokio::time::timeout_at;

use super::disk::Beside;

/// Bytes of one call that are on their way from the disk at a time; one chunk may be more.
const FLYING_BYTES_MAX: u64 = 64 << 20;

/// The disks of a node in this process.
#[derive(Clone, Debug, Default)]
pub struct LocalDisks(Vec<LocalDisk>);

/// One of them.
#[derive(Clone)]
pub struct LocalDisk {
    segment: SegmentId,
    name: String,
    disk: Weak<Beside>,
    counters: Arc<Counters>,
}

/// Where the bytes of an operation go, in order.
struct Landing<'a> {
    targets: Vec<TargetBuf<'a>>,
}

impl LocalDisks {
    pub(super) fn new(disks: &[Arc<Beside>]) -> Self {
        let local = |it: &Arc<Beside>| LocalDisk {
            segment: it.segment(),
            name: it.name().to_owned(),
            disk: Arc::downgrade(it),
            counters: Arc::default(),
        };
        Self(disks.iter().map(local).collect())
    }

    /// The disk of that name. What is read from it is counted there.
    #[must_use]
    pub fn find(&self, segment: SegmentId, counters: &Arc<Counters>) -> Option<LocalDisk> {
        let disk = self.0.iter().find(|it| it.segment == segment)?;
        Some(LocalDisk { counters: Arc::clone(counters), ..disk.clone() })
    }
}

impl LocalDisk {
    /// Reads copies. Who has asked nobody where they lie says in which life of the master that was known
    /// (`unasked`).
    pub async fn read_as(&self, ops: &[ReadOp<'_>], unasked: Option<u64>, deadline: Instant) -> Vec<Outcome> {
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
                    Ok(Err(Unfetched::Gone)) => Err(TransferError::Stale),
                    Ok(Err(Unfetched::Unreadable)) => Err(TransferError::Unreadable),
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
        self.counters.local.add_read(whole.map(|(op, _)| op.bytes()).sum());
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

impl Transport for LocalDisk {
    fn capability(&self) -> Capability {
        Capability { name: "disk", same_host: true, can_view: false }
    }

    fn read<'a>(&'a self, ops: &'a [ReadOp<'a>], deadline: Instant) -> Outcomes<'a> {
        Box::pin(self.read_as(ops, None, deadline))
    }

    /// Nobody writes to a disk but its node.
    fn write<'a>(&'a self, ops: &'a [WriteOp<'a>], _deadline: Instant) -> Outcomes<'a> {
        Box::pin(async move { vec![Err(TransferError::Stale); ops.len()] })
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

impl std::fmt::Debug for LocalDisk {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("LocalDisk").field("name", &self.name).finish_non_exhaustive()
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
