//! Reads and writes through mappings, shared by `local` and `shm`.
//!
//! A copy is done in steps; between them the deadline is checked and other tasks run. The stamp is checked
//! before the first step and after the last.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::buffer::{Run, SourceBuf, TargetBuf};
use crate::claim::Claims;
use crate::control::{ControlReader, SlotState};
use crate::copy::{self, copy};
use crate::device::{Pair, copy_lists, has_device};
use crate::map::Map;
use crate::seams::{Rule, is_broken};
use crate::{Extent, Instant, Outcome, ReadOp, TransferError, WriteOp};

/// Bytes copied before yielding to other tasks: less than a millisecond.
const STEP_BYTES: usize = 4 << 20;

/// The mappings that a writer needs besides the control segment.
#[derive(Clone, Copy)]
pub(crate) struct Writable<'a> {
    pub(crate) data: &'a Map,
    pub(crate) claims: &'a Claims,
}

/// Copies ranges out of a segment.
pub(crate) async fn read(
    control: &ControlReader,
    data: &Map,
    ops: &[ReadOp<'_>],
    deadline: Instant,
) -> Vec<Outcome> {
    if ops.iter().any(|op| has_device(&op.targets)) {
        let begun = ops.iter().map(|op| begin_read(control, data, op)).collect();
        let outcomes = copy_on_device(data, begun, deadline).await.into_iter();
        return outcomes.zip(ops).map(|(it, op)| it.and_then(|()| end_read(control, op))).collect();
    }
    let mut outcomes = Vec::with_capacity(ops.len());
    for op in ops {
        let outcome = match begin_read(control, data, op) {
            Ok(steps) => steps.all(deadline).await.and_then(|()| end_read(control, op)),
            Err(error) => Err(error),
        };
        outcomes.push(outcome);
    }
    outcomes
}

/// Copies one chunk out of a segment without yielding: less than a millisecond.
pub(crate) fn read_now(control: &ControlReader, data: &Map, op: &ReadOp<'_>) -> Outcome {
    begin_read(control, data, op)?.all_now();
    end_read(control, op)
}

/// Copies ranges into a segment.
pub(crate) async fn write(
    control: &ControlReader,
    target: Writable<'_>,
    ops: &[WriteOp<'_>],
    deadline: Instant,
) -> Vec<Outcome> {
    if ops.iter().any(|op| has_device(&op.sources)) {
        let begun = ops.iter().map(|op| begin_write(control, target, op)).collect();
        let outcomes = copy_on_device(target.data, begun, deadline).await.into_iter();
        return outcomes.zip(ops).map(|(it, op)| it.and_then(|()| end_write(control, op))).collect();
    }
    let mut outcomes = Vec::with_capacity(ops.len());
    for op in ops {
        let outcome = match begin_write(control, target, op) {
            Ok(steps) => steps.all(deadline).await.and_then(|()| end_write(control, op)),
            Err(error) => Err(error),
        };
        outcomes.push(outcome);
    }
    outcomes
}

/// Copies all operations together, so that a device gets one list of copies.
async fn copy_on_device(
    data: &Map,
    begun: Vec<Result<Steps<'_>, TransferError>>,
    deadline: Instant,
) -> Vec<Outcome> {
    let mut lists = Vec::with_capacity(begun.len());
    let mut outcomes: Vec<Outcome> = Vec::with_capacity(begun.len());
    for begun in begun {
        match begun {
            Ok(steps) => {
                lists.push(steps.pairs());
                outcomes.push(Ok(()));
            }
            Err(error) => outcomes.push(Err(error)),
        }
    }
    let places = lists.iter().flatten().filter_map(|(from, to)| from.place().or(to.place()));
    let devices: BTreeSet<_> = places.map(|place| place.device()).collect();
    devices.into_iter().for_each(|device| data.prepare_for(device));
    let mut copied = copy_lists(&lists, deadline).await.into_iter();
    let outcome = |it: Outcome| it.and_then(|()| copied.next().unwrap_or(Err(TransferError::Timeout)));
    outcomes.into_iter().map(outcome).collect()
}

fn begin_read<'a>(
    control: &ControlReader,
    data: &'a Map,
    op: &ReadOp<'a>,
) -> Result<Steps<'a>, TransferError> {
    let pieces = control.load(op.slot, op.stamp)?.range(op.offset, op.bytes())?;
    let sources: Option<Vec<_>> = pieces.into_iter().map(|piece| data.source(piece)).collect();
    Ok(Steps::new(&sources.ok_or(TransferError::Corrupt)?, &op.targets))
}

fn end_read(control: &ControlReader, op: &ReadOp<'_>) -> Outcome {
    let is_believed = is_broken(Rule::CheckAfterCopy) || control.is_current(op.slot, op.stamp);
    if is_believed { Ok(()) } else { Err(TransferError::Stale) }
}

fn begin_write<'a>(
    control: &ControlReader,
    Writable { data, claims }: Writable<'a>,
    op: &WriteOp<'a>,
) -> Result<Steps<'a>, TransferError> {
    let placement = control.load(op.slot, op.stamp)?;
    let pieces = placement.range(op.offset, op.bytes())?;
    let targets: Option<Vec<_>> = pieces.into_iter().map(|piece| data.target(piece)).collect();
    let targets = targets.ok_or(TransferError::Corrupt)?;
    // The claim is the last step before the bytes: only a use that will be written is claimed.
    let may_write = match placement.state {
        SlotState::Reserved => true,
        SlotState::Offered => claims.claim(op.slot, op.stamp),
        SlotState::Free
        | SlotState::Prepared
        | SlotState::Committed
        | SlotState::Ending
        | SlotState::Retired => false,
    };
    if !may_write {
        return Err(TransferError::Stale);
    }
    control.before_bytes();
    Ok(Steps::new(&op.sources, &targets))
}

fn end_write(control: &ControlReader, op: &WriteOp<'_>) -> Outcome {
    if control.is_current(op.slot, op.stamp) { Ok(()) } else { Err(TransferError::Stale) }
}

/// A copy of as many bytes as both lists have in common, one step at a time.
struct Steps<'a> {
    sources: Run<SourceBuf<'a>>,
    targets: Run<TargetBuf<'a>>,
}

impl<'a> Steps<'a> {
    fn new(sources: &[SourceBuf<'a>], targets: &[TargetBuf<'a>]) -> Self {
        Self { sources: Run::new(sources.iter().copied()), targets: Run::new(targets.iter().copied()) }
    }

    /// Copies a step. True if that was the last.
    fn step(&mut self, deadline: Instant) -> Result<bool, TransferError> {
        if Instant::now() >= deadline {
            return Err(TransferError::Timeout);
        }
        Ok(self.copy_some())
    }

    /// Copies a step. True if that was the last.
    fn copy_some(&mut self) -> bool {
        let mut left = STEP_BYTES;
        while left > 0 {
            let most = left.min(self.sources.front_bytes()).min(self.targets.front_bytes());
            let (Some(source), Some(target)) = (self.sources.next_piece(most), self.targets.next_piece(most))
            else {
                return true;
            };
            copy(source, target);
            left -= most;
        }
        false
    }

    /// All pieces that are contiguous on both sides.
    fn pairs(mut self) -> Vec<Pair<'a>> {
        let mut pairs = Vec::new();
        loop {
            let most = self.sources.front_bytes().min(self.targets.front_bytes());
            match (self.sources.next_piece(most), self.targets.next_piece(most)) {
                (Some(source), Some(target)) => pairs.push((source, target)),
                _ => return pairs,
            }
        }
    }

    fn all_now(mut self) {
        while !self.copy_some() {}
    }

    async fn all(mut self, deadline: Instant) -> Outcome {
        while !self.step(deadline)? {
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}

/// The bytes of one use of a slot, in place. This keeps them mapped, but does not protect them from reuse:
/// the caller must hold a view at the node.
#[derive(Clone, Debug)]
pub struct MappedRange {
    map: Arc<Map>,
    extent: Extent,
}

impl MappedRange {
    /// The whole of a use, if it still exists and is contiguous.
    pub(crate) fn of(control: &ControlReader, map: &Arc<Map>, slot: u32, stamp: u64) -> Option<Self> {
        let placement = control.load(slot, stamp).ok()?;
        let extent = match *placement.extents.as_slice() {
            [] => Extent::default(),
            [extent] => extent,
            _ => return None,
        };
        map.source(extent)?;
        Some(Self { map: Arc::clone(map), extent })
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.extent.len as usize
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.extent.len == 0
    }

    /// Whether the bytes are mapped in this process: false in a forked child.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.map.is_here()
    }

    /// The bytes as a range to copy from; `None` in a forked child.
    #[must_use]
    pub fn source(&self) -> Option<SourceBuf<'_>> {
        self.map.source(self.extent)
    }

    /// The address of the first byte; `None` in a forked child. The caller must hold the view while it reads.
    #[must_use]
    pub fn as_ptr(&self) -> Option<*const u8> {
        self.source().map(SourceBuf::as_ptr)
    }

    /// A device is about to read the range: begins to register its mapping, in the background.
    pub(crate) fn prepare_for(&self, device: u32) {
        self.map.prepare_for(device);
    }

    /// The address at which kernels of a device read the bytes in place. `None` while they are not registered
    /// with the driver: the first call begins that, in the background, and may be repeated. The caller must
    /// hold the view until the kernels have ended.
    #[must_use]
    pub fn device_address(&self, device: u32) -> Option<u64> {
        let start = self.as_ptr()?.expose_provenance() as u64;
        self.map.prepare_for(device);
        tiffin_gpu::mapped_address(start, self.extent.len)
    }

    /// A copy of the bytes; `None` in a forked child.
    #[must_use]
    pub fn to_vec(&self) -> Option<Vec<u8>> {
        let source = self.source()?;
        let mut bytes = vec![0; source.len()];
        copy::copy_out(source, &mut bytes);
        Some(bytes)
    }
}
