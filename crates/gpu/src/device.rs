//! One device: its primary context, and the streams, lists and memory that transfers use.
//!
//! **Invariant:** a channel, a ticket or a memory for pages has one owner, and returns only after its work
//! has ended.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::DeviceError;
use crate::driver::{Allocation, Current, Driver, Opaque};
use crate::policy::{Abilities, Direction};
use crate::registered;
use crate::settings::Settings;

/// Maximum number of transfers in flight on one device; further ones wait.
pub const CHANNELS_MAX: usize = 16;
/// Maximum number of lists of copies that are queued on streams of one device; further ones wait.
pub const QUEUED_MAX: usize = 128;
/// Maximum number of units in the list of one kernel.
pub(crate) const UNITS_MAX: usize = 16 << 10;
/// Size of a unit in the list: source, target, length.
pub(crate) const UNIT_WORDS: usize = 3;
/// Parts of a memory for pages: some are filled while others are emptied.
pub(crate) const PAGES_PARTS: usize = 4;
/// Maximum number of them for each direction: the kernel of one transfer runs beside the copies of another.
pub(crate) const PAGES_MAX: usize = 2;

/// Statuses of the driver for a call that it does not support.
const INVALID_VALUE: i32 = 1;
const NOT_SUPPORTED: i32 = 801;

/// The kernels, from `kernels/copy.cu`.
const PTX: &[u8] = concat!(include_str!("../kernels/copy.ptx"), "\0").as_bytes();
/// The highest priority that a device has.
const FIRST: i32 = i32::MIN;

/// A device.
pub(crate) struct Device {
    driver: &'static Driver,
    ordinal: u32,
    context: Opaque,
    can_register_read_only: bool,
    multiprocessors: u32,
    kernels: OnceLock<Option<Kernels>>,
    channels: Mutex<Channels>,
    tickets: Mutex<Tickets>,
    /// Of saves and of loads.
    pages: [Mutex<FreePages>; 2],
    /// Events of fences that are over.
    events: Mutex<Vec<Opaque>>,
    /// Whether lists of copies work.
    has_batch: AtomicBool,
    saved: AtomicU64,
    loaded: AtomicU64,
    ringed: AtomicU64,
}

#[derive(Default)]
struct Channels {
    free: Vec<Channel>,
    made: usize,
}

#[derive(Default)]
struct Tickets {
    free: Vec<Ticket>,
    made: usize,
}

#[derive(Default)]
struct FreePages {
    free: Vec<Pages>,
    made: usize,
    /// There is no memory for more, or they are switched off.
    is_full: bool,
}

/// The kernels. Each takes a list of units.
#[derive(Clone, Copy)]
pub(crate) struct Kernels {
    /// Copies between host and device.
    pub(crate) copy: Opaque,
    /// Copies on the device, beside other kernels.
    pub(crate) mover: Opaque,
    /// Blocks and threads of [`Self::mover`].
    pub(crate) mover_grid: (u32, u32),
}

/// What one part of a transfer needs to run.
pub(crate) struct Channel {
    pub(crate) stream: Opaque,
    /// For kernels that move pages on the device. They come first, because copies wait for them.
    pub(crate) moves: Opaque,
    pub(crate) done: Opaque,
    pub(crate) ordered: Opaque,
    units: Option<Units>,
}

/// What copies on a stream of the caller need.
pub(crate) struct Ticket {
    pub(crate) done: Opaque,
    units: Option<Units>,
}

/// Memory for a list of units: pinned, and on the device.
#[derive(Clone, Copy)]
pub(crate) struct Units {
    pub(crate) host: u64,
    pub(crate) device: u64,
}

/// Device memory in which pages follow each other, so that the copy engine copies many at once.
pub(crate) struct Pages {
    direction: Direction,
    pub(crate) start: u64,
    pub(crate) part_bytes: u64,
    /// Events for each part.
    pub(crate) filled: [Opaque; PAGES_PARTS],
    pub(crate) emptied: [Opaque; PAGES_PARTS],
}

impl Device {
    pub(crate) fn new(driver: &'static Driver, ordinal: u32) -> Result<Self, DeviceError> {
        let handle = driver.device_handle(ordinal)?;
        if !driver.has_unified_addresses(handle) {
            let why = format!("device {ordinal} has no unified addresses");
            return Err(DeviceError::Unusable { library: driver.library().display().to_string(), why });
        }
        let has_pages = Settings::get().gather_bytes > 0 && Settings::get().kernels;
        let pages = || Mutex::new(FreePages { is_full: !has_pages, ..FreePages::default() });
        Ok(Self {
            driver,
            ordinal,
            context: driver.primary_context(handle)?,
            can_register_read_only: driver.can_register_read_only(handle),
            multiprocessors: driver.multiprocessors(handle),
            kernels: OnceLock::new(),
            channels: Mutex::default(),
            tickets: Mutex::default(),
            pages: [pages(), pages()],
            events: Mutex::default(),
            has_batch: AtomicBool::new(driver.has_batch()),
            saved: AtomicU64::new(0),
            loaded: AtomicU64::new(0),
            ringed: AtomicU64::new(0),
        })
    }

    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Whether its context can access an allocation.
    pub(crate) fn owns(&self, allocation: &Allocation) -> bool {
        allocation.is_usable_in(self.context)
    }

    pub(crate) fn can_register_read_only(&self) -> bool {
        self.can_register_read_only
    }

    /// Start and end of the pinned host memory that contains an address; `None` if there is none.
    pub(crate) fn pinned(&self, address: u64) -> Result<Option<(u64, u64)>, DeviceError> {
        self.driver.pinned(address)
    }

    /// Makes its context current.
    pub(crate) fn enter(&self) -> Result<Current<'_>, DeviceError> {
        self.driver.enter(self.context)
    }

    /// A free channel; `None` if all are in use.
    pub(crate) fn take_channel(&self, current: &Current<'_>) -> Result<Option<Channel>, DeviceError> {
        let mut channels = lock(&self.channels);
        if let Some(channel) = channels.free.pop() {
            return Ok(Some(channel));
        }
        if channels.made == CHANNELS_MAX {
            return Ok(None);
        }
        let channel = Channel::new(current)?;
        channels.made += 1;
        Ok(Some(channel))
    }

    /// Returns a channel whose streams have no work.
    pub(crate) fn return_channel(&self, channel: Channel) {
        lock(&self.channels).free.push(channel);
    }

    /// Another channel may be made instead of one whose streams failed.
    pub(crate) fn discard_channel(&self) {
        lock(&self.channels).made -= 1;
    }

    /// A free ticket; `None` if all are in use.
    pub(crate) fn take_ticket(&self, current: &Current<'_>) -> Result<Option<Ticket>, DeviceError> {
        let mut tickets = lock(&self.tickets);
        if let Some(ticket) = tickets.free.pop() {
            return Ok(Some(ticket));
        }
        if tickets.made == QUEUED_MAX {
            return Ok(None);
        }
        let ticket = Ticket { done: current.create_event()?, units: None };
        tickets.made += 1;
        Ok(Some(ticket))
    }

    /// Returns a ticket whose work has ended.
    pub(crate) fn return_ticket(&self, ticket: Ticket) {
        lock(&self.tickets).free.push(ticket);
    }

    /// An event for a fence.
    pub(crate) fn take_event(&self, current: &Current<'_>) -> Result<Opaque, DeviceError> {
        match lock(&self.events).pop() {
            Some(event) => Ok(event),
            None => current.create_event(),
        }
    }

    /// Returns the event of a fence. It may be recorded again at any time.
    pub(crate) fn return_event(&self, event: Opaque) {
        lock(&self.events).push(event);
    }

    /// The kernels; `None` if the device cannot load them, or they are switched off.
    pub(crate) fn kernels(&self, current: &Current<'_>) -> Option<Kernels> {
        *self.kernels.get_or_init(|| {
            if !Settings::get().kernels {
                return None;
            }
            let ptx = CStr::from_bytes_with_nul(PTX).ok()?;
            let load = || {
                let module = current.load_module(ptx)?;
                let copy = current.kernel(module, c"tiffin_copy")?;
                let mover = current.kernel(module, c"tiffin_move")?;
                // A block is one warp: the bounds of the kernel say so.
                Ok(Kernels { copy, mover, mover_grid: (self.multiprocessors, 32) })
            };
            let loaded = load();
            let failed = |error: &DeviceError| {
                tracing::warn!(device = self.ordinal, "pages are copied without a kernel: {error}");
            };
            loaded.inspect_err(failed).ok()
        })
    }

    fn free_pages(&self, direction: Direction) -> MutexGuard<'_, FreePages> {
        let [saves, loads] = &self.pages;
        lock(if direction == Direction::Save { saves } else { loads })
    }

    /// What is possible now.
    pub(crate) fn abilities(&self, current: &Current<'_>, direction: Direction) -> Abilities {
        let free = self.free_pages(direction);
        let pages = !free.free.is_empty() || !free.is_full;
        drop(free);
        let batch = self.has_batch.load(Ordering::Relaxed);
        Abilities { batch, kernel: self.kernels(current).is_some(), pages }
    }

    /// Whether a list of copies failed because this driver takes no such lists: then none is made again.
    pub(crate) fn refuses_batches(&self, error: &DeviceError) -> bool {
        let is_refused = matches!(error, DeviceError::Failed { code: INVALID_VALUE | NOT_SUPPORTED, .. });
        if is_refused && self.has_batch.swap(false, Ordering::Relaxed) {
            tracing::warn!(device = self.ordinal, "pages are copied one by one: {error}");
        }
        is_refused
    }

    /// Memory for pages; `None` if other transfers of this direction use all, or the device has too little.
    pub(crate) fn take_pages(&self, current: &Current<'_>, direction: Direction) -> Option<Pages> {
        let mut free = self.free_pages(direction);
        if free.free.is_empty() && !free.is_full {
            match Pages::new(current, direction) {
                Ok(pages) => {
                    free.free.push(pages);
                    free.made += 1;
                    free.is_full = free.made == PAGES_MAX;
                }
                Err(error) => {
                    tracing::warn!(device = self.ordinal, "no more device memory to sort pages in: {error}");
                    free.is_full = true;
                }
            }
        }
        free.free.pop()
    }

    pub(crate) fn return_pages(&self, pages: Pages) {
        self.free_pages(pages.direction).free.push(pages);
    }

    /// Counts bytes that were moved, and those of them that went through the ring.
    pub(crate) fn count(&self, direction: Direction, bytes: u64, ringed: u64) {
        let counter = match direction {
            Direction::Save => &self.saved,
            Direction::Load => &self.loaded,
        };
        counter.fetch_add(bytes, Ordering::Relaxed);
        self.ringed.fetch_add(ringed, Ordering::Relaxed);
    }

    /// Bytes saved, loaded, and moved through the ring.
    pub(crate) fn counted(&self) -> [u64; 3] {
        [&self.saved, &self.loaded, &self.ringed].map(|it| it.load(Ordering::Relaxed))
    }
}

impl Channel {
    fn new(current: &Current<'_>) -> Result<Self, DeviceError> {
        Ok(Self {
            stream: current.create_stream(0)?,
            moves: current.create_stream(FIRST)?,
            done: current.create_event()?,
            ordered: current.create_event()?,
            units: None,
        })
    }

    /// Memory for [`UNITS_MAX`] units.
    pub(crate) fn units(&mut self, current: &Current<'_>) -> Result<Units, DeviceError> {
        allocated(&mut self.units, current)
    }

    /// Waits until its streams have no work, then gives it back. Channels of broken streams are discarded.
    pub(crate) fn finish(self, device: &Device, current: &Current<'_>) -> Result<(), DeviceError> {
        let finished = current.synchronize(self.stream).and(current.synchronize(self.moves));
        match finished {
            Ok(()) => device.return_channel(self),
            Err(_) => {
                current.destroy(&[self.stream, self.moves], &[self.done, self.ordered]);
                device.discard_channel();
            }
        }
        finished
    }
}

impl Ticket {
    /// Memory for [`UNITS_MAX`] units.
    pub(crate) fn units(&mut self, current: &Current<'_>) -> Result<Units, DeviceError> {
        allocated(&mut self.units, current)
    }
}

fn allocated(units: &mut Option<Units>, current: &Current<'_>) -> Result<Units, DeviceError> {
    if let Some(units) = *units {
        return Ok(units);
    }
    let bytes = (UNITS_MAX * UNIT_WORDS * size_of::<u64>()) as u64;
    let device = current.allocate(bytes)?;
    let host = current.allocate_host(bytes).inspect_err(|_| drop(current.free(device)))?;
    Ok(*units.insert(Units { host, device }))
}

impl Pages {
    fn new(current: &Current<'_>, direction: Direction) -> Result<Self, DeviceError> {
        let part_bytes = (Settings::get().gather_bytes / PAGES_PARTS as u64).max(1 << 20) & !0xffff;
        let mut events = Vec::with_capacity(2 * PAGES_PARTS);
        for _ in 0..2 * PAGES_PARTS {
            events.push(current.create_event()?);
        }
        let (filled, emptied) = events.split_at(PAGES_PARTS);
        let all = |events: &[Opaque]| events.try_into().map_err(|_| DeviceError::NoDriver);
        let (filled, emptied) = (all(filled)?, all(emptied)?);
        let start = current.allocate(part_bytes * PAGES_PARTS as u64)?;
        Ok(Self { direction, start, part_bytes, filled, emptied })
    }
}

/// Memory of the ring in which host bytes are staged.
pub(crate) struct Chunk {
    start: u64,
    bytes: u64,
}

/// The pinned memory of all devices.
static RING: Mutex<Ring> = Mutex::new(Ring { free: Vec::new(), made: 0 });

struct Ring {
    free: Vec<u64>,
    made: u64,
}

impl Chunk {
    /// A free chunk; `None` if all are in use.
    pub(crate) fn take(current: &Current<'_>) -> Result<Option<Self>, DeviceError> {
        let settings = Settings::get();
        let bytes = settings.chunk_bytes;
        let mut ring = lock(&RING);
        if let Some(start) = ring.free.pop() {
            return Ok(Some(Self { start, bytes }));
        }
        if (ring.made + 1) * bytes > settings.ring_bytes_max {
            return Ok(None);
        }
        let start = current.allocate_host(bytes)?;
        let device = current.device_address(start).inspect_err(|_| drop(current.free_host(start)))?;
        registered::insert(start, bytes, device);
        ring.made += 1;
        Ok(Some(Self { start, bytes }))
    }

    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        lock(&RING).free.push(self.start);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
