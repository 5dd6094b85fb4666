//! The memory that the caller has registered.
//!
//! The data path needs no registration: bytes are copied through shared memory or a socket from any
//! address. The record has three uses. Callers check the return codes. The access rights of a registered
//! range need not be probed in every call. A test can reject what RDMA would reject.
//!
//! **Invariant:** the ranges do not overlap, none is empty, and each was readable when it was added, by this
//! process or by a device.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tiffin_client::gpu::{self, DeviceError};
use tiffin_client::probe::{Access, Coverage, is_accessible};

/// The registered ranges of one store, by their start.
#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<BTreeMap<u64, Registered>>);

#[derive(Clone, Copy, Debug)]
struct Registered {
    len: u64,
    is_writable: bool,
    /// It is memory of a device.
    is_on_device: bool,
}

/// Why a range is not registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotRegistered {
    /// It is empty, at a null address, or overlaps another.
    Invalid,
    /// Neither this process nor a device can read it.
    NotReadable(DeviceError),
}

impl Registry {
    /// Adds a range.
    pub(crate) fn add(&self, start: u64, len: u64) -> Result<(), NotRegistered> {
        let mut ranges = self.lock();
        let end = start.checked_add(len).filter(|_| start > 0 && len > 0).ok_or(NotRegistered::Invalid)?;
        if ranges.range(..end).next_back().is_some_and(|(at, it)| at + it.len > start) {
            return Err(NotRegistered::Invalid);
        }
        let (Ok(first), Ok(bytes)) = (usize::try_from(start), usize::try_from(len)) else {
            return Err(NotRegistered::Invalid);
        };
        let is_on_device = !is_accessible(first, bytes, Access::Read, Coverage::Sampled);
        if is_on_device {
            gpu::find(start, len).map_err(NotRegistered::NotReadable)?;
        }
        let is_writable = !is_on_device && is_accessible(first, bytes, Access::Write, Coverage::Ends);
        ranges.insert(start, Registered { len, is_writable, is_on_device });
        Ok(())
    }

    /// Removes the range that starts there; `false` if there is none.
    pub(crate) fn remove(&self, start: u64) -> bool {
        self.lock().remove(&start).is_some()
    }

    /// Whether one range contains all of those bytes.
    pub(crate) fn covers(&self, start: u64, len: u64) -> bool {
        let Some(end) = start.checked_add(len) else { return false };
        self.lock().range(..=start).next_back().is_some_and(|(at, it)| end <= at + it.len)
    }

    /// The ranges, for many questions. Nothing is registered meanwhile.
    pub(crate) fn view(&self) -> View<'_> {
        View(self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Registered>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The registered ranges at one moment.
pub(crate) struct View<'r>(MutexGuard<'r, BTreeMap<u64, Registered>>);

impl View<'_> {
    /// Whether the address is in a range on a device.
    pub(crate) fn is_on_device(&self, start: u64) -> bool {
        let found = self.0.range(..=start).next_back();
        found.is_some_and(|(at, it)| it.is_on_device && start - at < it.len)
    }

    /// The start of the range of host memory that contains all of those bytes and permits the access.
    pub(crate) fn region(&self, start: u64, len: u64, access: Access) -> Option<u64> {
        let end = start.checked_add(len)?;
        let (at, it) = self.0.range(..=start).next_back()?;
        (end <= at + it.len && !it.is_on_device && (it.is_writable || access == Access::Read)).then_some(*at)
    }
}
