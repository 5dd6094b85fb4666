//! Host memory that is registered with the driver, so that devices access it directly.
//!
//! A [`Registration`] covers one mapping. A thread registers its populated parts, piece by piece, until all
//! of them are registered or the limit is reached; other parts are served by the ring. While the node still
//! populates the mapping, the thread registers whole pieces only: many small ones would divide every copy.
//!
//! Memory may be pinned already, as that of `torch.empty(…, pin_memory=True)` is. Then it is only entered in
//! the table, and its owner must keep it pinned.
//!
//! **Invariant:** a range in the table is registered, or pinned by its allocation. It leaves the table before
//! it is unregistered, and is unregistered before it is unmapped.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use crate::DeviceError;
use crate::device::Device;
use crate::driver::Driver;
use crate::settings::Settings;

/// Bytes registered at a time: about ten milliseconds.
const PIECE_BYTES: u64 = 256 << 20;
/// Shorter populated parts are not worth a registration.
const PIECE_BYTES_MIN: u64 = 2 << 20;
/// Maximum number of registrations of one mapping.
pub const PIECES_MAX: usize = 4096;
const PAGE_BYTES: u64 = 4096;
/// The driver's statuses for memory of which a part is pinned already: by an allocation of the driver, and by
/// a registration.
const INVALID_VALUE: i32 = 1;
const ALREADY_REGISTERED: i32 = 712;
/// If no page is added in this time, the populated parts are complete.
const GROWTH_TIME: Duration = Duration::from_millis(20);

#[derive(Clone, Copy)]
struct Range {
    len: u64,
    device: u64,
}

/// By their start.
static TABLE: RwLock<BTreeMap<u64, Range>> = RwLock::new(BTreeMap::new());
/// Bytes of mappings that are registered.
static REGISTERED: AtomicU64 = AtomicU64::new(0);

/// Adds a range that is pinned now.
pub(crate) fn insert(start: u64, len: u64, device: u64) {
    TABLE.write().unwrap_or_else(PoisonError::into_inner).insert(start, Range { len, device });
}

fn remove(start: u64) {
    TABLE.write().unwrap_or_else(PoisonError::into_inner).remove(&start);
}

/// The device's address of a registered host address, and the number of bytes up to the end of that range.
pub(crate) fn find(host: u64) -> Option<(u64, u64)> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    let (start, range) = table.range(..=host).next_back()?;
    let offset = host - start;
    (offset < range.len).then(|| (range.device + offset, range.len - offset))
}

/// Finds ranges, and remembers the last one: the pieces of a transfer are often in one. It must not outlive
/// the transfer, which keeps its ranges registered.
#[derive(Default)]
pub(crate) struct Finder {
    /// Start and end on the host, and the device's address of the start.
    last: Option<(u64, u64, u64)>,
}

impl Finder {
    /// As [`find`].
    pub(crate) fn find(&mut self, host: u64) -> Option<(u64, u64)> {
        if let Some((start, end, device)) = self.last
            && start <= host
            && host < end
        {
            return Some((device + (host - start), end - host));
        }
        let (device, most) = find(host)?;
        self.last = Some((host, host + most, device));
        Some((device, most))
    }
}

/// The first registered address after `host`, if it is before `end`.
pub(crate) fn next_after(host: u64, end: u64) -> Option<u64> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.range(host + 1..end.max(host + 1)).next().map(|(start, _)| *start)
}

/// Bytes of mappings that are registered now.
#[must_use]
pub fn registered_bytes() -> u64 {
    REGISTERED.load(Ordering::Relaxed)
}

/// The populated parts of a mapping.
pub trait Populated: Send + Sync {
    /// Offset and length of the first populated part at or after an offset.
    fn next(&self, offset: u64) -> Option<(u64, u64)>;
}

/// The registration of one mapping. Dropping it unregisters the memory.
pub struct Registration {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registration").field("start", &self.shared.start).finish_non_exhaustive()
    }
}

struct Shared {
    start: u64,
    len: u64,
    is_read_only: bool,
    process: u32,
    populated: Box<dyn Populated>,
    is_running: AtomicBool,
    is_ended: AtomicBool,
    /// Calls left until the next pass is made, and the number to wait after that.
    pause: AtomicU64,
    pauses: AtomicU64,
    /// Bytes of all registered pieces.
    bytes: AtomicU64,
    pieces: Mutex<Vec<Registered>>,
}

/// A piece of a mapping that devices can access.
#[derive(Clone, Copy)]
struct Registered {
    offset: u64,
    len: u64,
    /// Whether the driver pinned it for us, so that it must be unregistered.
    is_ours: bool,
    /// Whether it is in the table for us. Another registration may have entered the same memory.
    is_listed: bool,
}

impl Registration {
    /// Creates it for a mapping that stays until it is dropped. Nothing is registered yet.
    #[must_use]
    pub fn new(start: u64, len: u64, is_read_only: bool, populated: Box<dyn Populated>) -> Self {
        let shared = Shared {
            start,
            len,
            is_read_only,
            process: std::process::id(),
            populated,
            is_running: AtomicBool::new(false),
            is_ended: AtomicBool::new(false),
            pause: AtomicU64::new(0),
            pauses: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            pieces: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Registers what is populated and not registered yet, in a thread of its own. Does nothing if that is
    /// under way, or if the last calls have found nothing to do.
    pub fn extend(&self, device: u32) {
        let shared = &self.shared;
        if shared.is_ended.load(Ordering::Relaxed) || shared.is_running.swap(true, Ordering::Acquire) {
            return;
        }
        if shared.pause.load(Ordering::Relaxed) > 0 {
            shared.pause.fetch_sub(1, Ordering::Relaxed);
            shared.is_running.store(false, Ordering::Release);
            return;
        }
        let in_thread = Arc::clone(shared);
        let thread = std::thread::Builder::new().name("tiffin-register".to_owned());
        let spawned = thread.spawn(move || {
            in_thread.follow(device);
            in_thread.is_running.store(false, Ordering::Release);
        });
        if let Err(error) = spawned {
            tracing::debug!(%error, "memory is not registered with the CUDA driver");
            shared.is_running.store(false, Ordering::Release);
        }
    }

    /// Whether no registration is under way.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        !self.shared.is_running.load(Ordering::Acquire)
    }

    /// Bytes that are registered.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // In a forked child another thread of the parent may hold the lock for ever, and the memory is not
        // mapped.
        if self.shared.process != std::process::id() {
            return;
        }
        self.shared.is_ended.store(true, Ordering::Relaxed);
        // The thread registers only under the lock, and checks the flag first.
        let mut pieces = self.shared.lock();
        let Ok(driver) = Driver::loaded() else { return };
        let Some(device) = driver.used_devices().next() else { return };
        let Ok(current) = device.enter() else { return };
        for Registered { offset, len, is_ours, is_listed } in pieces.drain(..) {
            let start = self.shared.start + offset;
            if is_listed {
                remove(start);
            }
            if !is_ours {
                continue;
            }
            if let Err(error) = current.unregister(start) {
                tracing::debug!(%error, "memory is not unregistered from the CUDA driver");
            }
            REGISTERED.fetch_sub(len, Ordering::Relaxed);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<Registered>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers whole pieces as they are populated, and the rest when no more pages come.
    fn follow(&self, device: u32) {
        let before = self.bytes.load(Ordering::Relaxed);
        let mut seen = None;
        while !self.is_ended.load(Ordering::Relaxed) {
            let populated = self.populated_bytes();
            let is_complete = seen == Some(populated) || populated >= self.len;
            let passed = Driver::loaded()
                .and_then(|it| it.device(device))
                .and_then(|it| self.register_all(it, is_complete));
            if let Err(error) = &passed {
                tracing::warn!(
                    "memory cannot be registered with the CUDA driver, transfers go through the ring: \
                     {error}; hint: raise the limit of locked memory (`ulimit -l`)"
                );
                self.is_ended.store(true, Ordering::Relaxed);
            }
            if is_complete || passed != Ok(true) {
                break;
            }
            seen = Some(populated);
            std::thread::park_timeout(GROWTH_TIME);
        }
        // Nothing new: wait longer before the next pass.
        let is_idle = self.bytes.load(Ordering::Relaxed) == before;
        let pauses = if is_idle { (self.pauses.load(Ordering::Relaxed) * 2 + 1).min(1023) } else { 0 };
        self.pauses.store(pauses, Ordering::Relaxed);
        self.pause.store(pauses, Ordering::Relaxed);
    }

    fn populated_bytes(&self) -> u64 {
        let (mut at, mut bytes) = (0, 0);
        while let Some((offset, len)) = self.populated.next(at) {
            bytes += len;
            at = offset + len;
        }
        bytes
    }

    /// Registers populated parts: all of them, or only whole pieces. False if no more may be registered.
    fn register_all(&self, device: &Device, is_complete: bool) -> Result<bool, DeviceError> {
        let mapping_end = self.len / PAGE_BYTES * PAGE_BYTES;
        let mut at = 0;
        while let Some((offset, len)) = self.populated.next(at) {
            let end = (offset + len).min(mapping_end) / PAGE_BYTES * PAGE_BYTES;
            let mut start = offset.next_multiple_of(PAGE_BYTES);
            while start < end {
                // Pieces end at multiples of their size, so that neighbours never overlap.
                let whole_end = (start / PIECE_BYTES + 1).saturating_mul(PIECE_BYTES).min(mapping_end);
                let piece_end = whole_end.min(end);
                let is_whole = start.is_multiple_of(PIECE_BYTES) && piece_end == whole_end;
                if (is_whole || is_complete) && !self.register_piece(device, start, piece_end)? {
                    return Ok(false);
                }
                start = piece_end;
            }
            at = offset + len;
        }
        Ok(true)
    }

    /// Registers the parts of a range that are not registered yet. False if no more may be registered.
    fn register_piece(&self, device: &Device, start: u64, end: u64) -> Result<bool, DeviceError> {
        let mut pieces = self.lock();
        if self.is_ended.load(Ordering::Relaxed) || pieces.len() >= PIECES_MAX {
            return Ok(false);
        }
        for (start, end) in missing(&pieces, start, end) {
            let len = end - start;
            if len < PIECE_BYTES_MIN.min(self.len / PAGE_BYTES * PAGE_BYTES) {
                continue;
            }
            if REGISTERED.load(Ordering::Relaxed).saturating_add(len) > Settings::get().registered_bytes_max {
                return Ok(false);
            }
            if let Some(piece) = self.register_part(device, start, len)? {
                self.bytes.fetch_add(len, Ordering::Relaxed);
                pieces.push(piece);
            }
        }
        Ok(true)
    }

    /// Registers a part, or enters it in the table if it is pinned as a whole; `None` if it is neither.
    fn register_part(
        &self,
        device: &Device,
        offset: u64,
        len: u64,
    ) -> Result<Option<Registered>, DeviceError> {
        let (current, start) = (device.enter()?, self.start + offset);
        let refused = match current.register(start, len, self.is_read_only) {
            Ok(address) => {
                insert(start, len, address);
                REGISTERED.fetch_add(len, Ordering::Relaxed);
                return Ok(Some(Registered { offset, len, is_ours: true, is_listed: true }));
            }
            Err(error) => error,
        };
        let DeviceError::Failed { code: code @ (INVALID_VALUE | ALREADY_REGISTERED), .. } = refused else {
            return Err(refused);
        };
        let mut piece = Registered { offset, len, is_ours: false, is_listed: false };
        if find(start).is_some_and(|(_, most)| most >= len) {
            return Ok(Some(piece));
        }
        match device.pinned(start)? {
            Some((from, to)) if from <= start && start + len <= to => {
                insert(start, len, current.device_address(start)?);
                piece.is_listed = true;
                Ok(Some(piece))
            }
            Some(_) => Ok(None),
            None if code == ALREADY_REGISTERED => Ok(None),
            None => Err(refused),
        }
    }
}

/// The parts of `start .. end` that no piece covers.
fn missing(pieces: &[Registered], start: u64, end: u64) -> Vec<(u64, u64)> {
    let touched = pieces.iter().map(|it| (it.offset, it.len));
    let mut covered: Vec<_> = touched.filter(|(at, len)| *at < end && at + len > start).collect();
    covered.sort_unstable();
    let (mut at, mut parts) = (start, Vec::new());
    for (offset, len) in covered {
        if offset > at {
            parts.push((at, offset));
        }
        at = at.max(offset + len);
    }
    if at < end {
        parts.push((at, end));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_parts_are_registered() {
        let missing = |pieces: &[(u64, u64)], start, end| {
            let piece = |(offset, len)| Registered { offset, len, is_ours: true, is_listed: true };
            missing(&pieces.iter().copied().map(piece).collect::<Vec<_>>(), start, end)
        };
        assert_eq!(missing(&[], 0, 10), [(0, 10)]);
        assert_eq!(missing(&[(0, 10)], 0, 10), []);
        assert_eq!(missing(&[(4, 2), (0, 1), (20, 5)], 0, 10), [(1, 4), (6, 10)]);
        assert_eq!(missing(&[(8, 10)], 5, 10), [(5, 8)]);
    }
}
