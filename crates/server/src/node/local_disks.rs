//! The disks of a node, for clients in the node's process: reads cross no socket.
//!
//! The disk reads into a buffer, and the bytes are copied from there to the caller. A read straight into the
//! caller's memory would save the copy where that is aligned. But then a call could not end before the disk
//! read has ended, neither at its deadline nor when its task is dropped.
//!
//! **Invariant:** a reader holds only a weak reference to its disk, so the node alone decides when it closes.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use tiffin_ssd::Span;
use tiffin_transport::copy::copy_in;
use tiffin_transport::device::copy_lists;
use tiffin_transport::local::LocalDisk;
use tiffin_transport::tcp::FetchError;
use tiffin_transport::{
    CHUNK_BYTES_MAX, Counters, Instant, Outcome, Outcomes, ReadOp, SourceBuf, TargetBuf, TransferError,
};
use tiffin_types::{SegmentId, Stamp};
use tokio::time::timeout_at;

use super::disk::{DiskClient, DiskMember};

/// Maximum number of bytes that one call reads from the disk at a time, unless one chunk is larger.
const IN_FLIGHT_BYTES_MAX: u64 = 64 << 20;
/// The program of the node, among the clients that read its disks. Ids of clients are random.
const LOCAL_CLIENT: DiskClient = DiskClient { id: 0, token_group: None };

/// Reads one disk of the node.
struct DiskReader {
    segment: SegmentId,
    name: String,
    disk: Weak<DiskMember>,
}

/// The targets of an operation that are not filled yet, the next one last.
struct Unfilled<'a> {
    targets: Vec<TargetBuf<'a>>,
}

/// The disks, for clients in this process.
pub(super) fn local_disks(disks: &[Arc<DiskMember>]) -> Vec<Arc<dyn LocalDisk>> {
    let reader = |it: &Arc<DiskMember>| {
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
        cached_epoch: Option<u64>,
        counters: &Counters,
        deadline: Instant,
    ) -> Vec<Outcome> {
        let mut outcomes = vec![Ok(()); ops.len()];
        let mut unfilled: Vec<_> = ops.iter().map(Unfilled::new).collect();
        let mut chunks = ops.iter().enumerate().flat_map(|(at, op)| spans(op).map(move |span| (at, span)));
        let (mut in_flight, mut in_flight_bytes) = (VecDeque::new(), 0);
        loop {
            // A disk is fast only with many reads in flight.
            while in_flight_bytes < IN_FLIGHT_BYTES_MAX {
                let Some((at, span)) = chunks.next() else { break };
                let (Some(op), Some(Ok(()))) = (ops.get(at), outcomes.get(at)) else { continue };
                in_flight_bytes += span.len;
                let disk = self.disk.upgrade();
                let reading = disk.map(|it| it.read(LOCAL_CLIENT, Stamp(op.stamp), span, cached_epoch));
                in_flight.push_back((at, span, reading));
            }
            let Some((at, span, reading)) = in_flight.pop_front() else { break };
            in_flight_bytes -= span.len;
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
            let (Some(op), Some(outcome), Some(targets_left)) =
                (ops.get(at), outcomes.get_mut(at), unfilled.get_mut(at))
            else {
                continue;
            };
            if outcome.is_ok() {
                *outcome = match read {
                    Ok(bytes) => targets_left.fill(bytes.as_ref(), deadline).await,
                    Err(error) => Err(error),
                };
                *outcome = outcome.clone().and_then(|()| self.counts(Stamp(op.stamp), cached_epoch));
            }
        }
        let whole = ops.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok());
        counters.local.add_read(whole.map(|(op, _)| op.bytes()).sum());
        outcomes
    }

    /// Whether the copy that was read is still valid.
    fn counts(&self, stamp: Stamp, cached_epoch: Option<u64>) -> Outcome {
        let disk = self.disk.upgrade().ok_or_else(|| self.gone())?;
        if disk.counts(stamp, cached_epoch) { Ok(()) } else { Err(TransferError::Stale) }
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
        cached_epoch: Option<u64>,
        counters: &'a Counters,
        deadline: Instant,
    ) -> Outcomes<'a> {
        Box::pin(self.read_all(ops, cached_epoch, counters, deadline))
    }
}

impl<'a> Unfilled<'a> {
    fn new(op: &ReadOp<'a>) -> Self {
        Self { targets: op.targets.iter().rev().copied().collect() }
    }

    /// Fills the next bytes. Those on a device are complete when this returns.
    async fn fill(&mut self, mut bytes: &[u8], deadline: Instant) -> Outcome {
        let mut on_device = Vec::new();
        while !bytes.is_empty() {
            let Some(target) = self.targets.pop() else { break };
            let (now, later) = target.split_at(bytes.len());
            let (head, rest) = bytes.split_at(now.len());
            match now.place() {
                None => copy_in(head, now),
                Some(_) => on_device.push((SourceBuf::from(head), now)),
            }
            bytes = rest;
            if !later.is_empty() {
                self.targets.push(later);
            }
        }
        if on_device.is_empty() {
            return Ok(());
        }
        copy_lists(&[on_device], deadline).await.pop().unwrap_or(Ok(()))
    }
}

/// The chunks of an operation. An empty one has one chunk, so that a missing copy is noticed.
fn spans(op: &ReadOp<'_>) -> impl Iterator<Item = Span> + use<> {
    let (begin, len) = (op.offset, op.bytes());
    let count = len.div_ceil(CHUNK_BYTES_MAX).max(1);
    (0..count).map(move |it| {
        let at = it * CHUNK_BYTES_MAX;
        Span { offset: begin.saturating_add(at), len: CHUNK_BYTES_MAX.min(len - at) }
    })
}
