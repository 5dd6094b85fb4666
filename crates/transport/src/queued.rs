//! Copies of mapped ranges to the memory of a device, queued on a stream of the caller.
//!
//! A [`QueuedCopy`] keeps both sides: the mapping, which is registered with the driver, and the device's
//! memory. It does not keep the bytes of the range from being reused: the caller must hold a view at the
//! node.
//!
//! **Invariant:** both sides outlive the copies, also if the value is dropped early: it waits then.

use std::ops::Range;
use std::sync::Arc;

use tiffin_gpu::{Begun, DeviceError, Piece, Place, Queued, is_registered};

use crate::buffer::TargetBuf;
use crate::mapped::MappedRange;

/// Memory that owns itself, so that it can be filled after a call has returned.
///
/// # Safety
/// All calls of [`Self::target`] must return the same range, and it must be valid as long as the value lives,
/// not only for the borrow.
pub unsafe trait OwnedTarget: Send + Sync + 'static {
    /// The memory.
    fn target(&self) -> TargetBuf<'_>;
}

/// One copy: a part of a range, and the memory whose first bytes it fills.
#[derive(Clone)]
pub struct Load {
    /// The range.
    pub range: MappedRange,
    /// The part of it.
    pub part: Range<usize>,
    /// The device's memory.
    pub target: Arc<dyn OwnedTarget>,
}

impl Load {
    /// Whether it can be queued: the part is in memory that is registered with the driver. If not, this
    /// begins to register it, in the background.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let Some(place) = self.target.target().place() else { return false };
        self.range.prepare_for(place.device());
        self.piece().is_some_and(|it| is_registered(it.host, it.len))
    }

    /// The addresses; `None` in a forked child, or if the target is too small.
    fn piece(&self) -> Option<Piece> {
        let (source, target) = (self.range.source()?, self.target.target());
        let (_, source) = source.split_at(self.part.start);
        let len = self.part.len();
        let fits = len <= source.len() && len <= target.len();
        let host = source.as_ptr().expose_provenance() as u64;
        let device = target.as_mut_ptr().expose_provenance() as u64;
        fits.then_some(Piece { device, host, len: len as u64 })
    }
}

/// Copies that are queued together.
pub struct QueuedCopy {
    // Dropped first: it waits for the device.
    queued: Queued,
    _loads: Vec<Load>,
}

/// The outcome of [`QueuedCopy::begin`].
pub enum QueueOutcome {
    /// The copies are queued.
    Queued(QueuedCopy),
    /// Too many are queued: try again.
    Full,
    /// A copy is not ready. Nothing was queued.
    NotReady,
}

impl QueuedCopy {
    /// Queues copies on the stream of a place, which is that of all targets.
    pub fn begin(place: &Place, loads: &[Load]) -> Result<QueueOutcome, DeviceError> {
        let is_here = |it: &Load| it.target.target().place().is_some_and(|it| it.device() == place.device());
        let pieces: Option<Vec<_>> = loads.iter().map(|it| it.piece().filter(|_| is_here(it))).collect();
        let Some(pieces) = pieces else { return Ok(QueueOutcome::NotReady) };
        // SAFETY: the loads keep the mapping, with its registration, and the targets until the copies have
        // ended. Targets of one call that overlap get the bytes of any of their sources.
        let begun = unsafe { Queued::begin(place, pieces)? };
        Ok(match begun {
            Begun::Queued(queued) => QueueOutcome::Queued(Self { queued, _loads: loads.to_vec() }),
            Begun::Full => QueueOutcome::Full,
            Begun::NotRegistered => QueueOutcome::NotReady,
        })
    }

    /// Whether the copies have ended. An error says that they have, and that bytes may be missing.
    pub fn is_done(&mut self) -> Result<bool, DeviceError> {
        self.queued.is_done()
    }
}
