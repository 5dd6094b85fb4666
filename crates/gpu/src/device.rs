//! One device: its primary context, and the streams, lists and memory that transfers use.
//!
//! **Invariant:** a channel, a ticket or a gather buffer has one owner, and returns only after its work has
//! ended.

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
/// Parts of a gather buffer: some are filled while others are copied.
pub(crate) const GATHER_PARTS: usize = 4;
/// Maximum number of gather buffers of a device: one transfer gathers while another copies.
pub(crate) const GATHERS_MAX: usize = 2;

/// Statuses of the driver for a call that it does not support.
const INVALID_VALUE: i32 = 1;
const NOT_SUPPORTED: i32 = 801;

/// The copy kernel, from `kernels/copy.cu`.
const PTX: &[u8] = concat!(include_str!("../kernels/copy.ptx"), "\0").as_bytes();
const KERNEL: &CStr = c"tiffin_copy";

/// A device.
pub(crate) struct Device {
    driver: &'static Driver,
    ordinal: u32,
    context: Opaque,
    can_register_read_only: bool,
    kernel: OnceLock<Option<Opaque>>,
    channels: Mutex<Channels>,
    tickets: Mutex<Tickets>,
    gathers: Mutex<Gathers>,
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
struct Gathers {
    free: Vec<Gather>,
    made: usize,
    /// There is no memory for more, or they are switched off.
    is_full: bool,
}

/// What one part of a transfer needs to run.
pub(crate) struct Channel {
    pub(crate) stream: Opaque,
    /// For copies that follow a gather.
    pub(crate) second: Opaque,
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

/// Device memory in which pages are gathered.
pub(crate) struct Gather {
    pub(crate) start: u64,
    pub(crate) part_bytes: u64,
    pub(crate) gathered: [Opaque; GATHER_PARTS],
    pub(crate) copied: [Opaque; GATHER_PARTS],
}

impl Device {
    pub(crate) fn new(driver: &'static Driver, ordinal: u32) -> Result<Self, DeviceError> {
        let handle = driver.device_handle(ordinal)?;
        if !driver.has_unified_addresses(handle) {
            let why = format!("device {ordinal} has no unified addresses");
            return Err(DeviceError::Unusable { library: driver.library().display().to_string(), why });
        }
        let can_gather = Settings::get().gather_bytes > 0 && Settings::get().kernels;
        Ok(Self {
            driver,
            ordinal,
            context: driver.primary_context(handle)?,
            can_register_read_only: driver.can_register_read_only(handle),
            kernel: OnceLock::new(),
            channels: Mutex::default(),
            tickets: Mutex::default(),
            gathers: Mutex::new(Gathers { is_full: !can_gather, ..Gathers::default() }),
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

    /// The copy kernel; `None` if the device cannot load it, or it is switched off.
    pub(crate) fn kernel(&self, current: &Current<'_>) -> Option<Opaque> {
        *self.kernel.get_or_init(|| {
            if !Settings::get().kernels {
                return None;
            }
            let ptx = CStr::from_bytes_with_nul(PTX).ok()?;
            let loaded = current.load_kernel(ptx, KERNEL);
            let failed = |error: &DeviceError| {
                tracing::warn!(device = self.ordinal, "pages are copied without a kernel: {error}");
            };
            loaded.inspect_err(failed).ok()
        })
    }

    /// What is possible now.
    pub(crate) fn abilities(&self, current: &Current<'_>) -> Abilities {
        let gathers = lock(&self.gathers);
        let gather = !gathers.free.is_empty() || !gathers.is_full;
        drop(gathers);
        let batch = self.has_batch.load(Ordering::Relaxed);
        Abilities { batch, kernel: self.kernel(current).is_some(), gather }
    }

    /// Whether a list of copies failed because this driver takes no such lists: then none is made again.
    pub(crate) fn refuses_batches(&self, error: &DeviceError) -> bool {
        let is_refused = matches!(error, DeviceError::Failed { code: INVALID_VALUE | NOT_SUPPORTED, .. });
        if is_refused && self.has_batch.swap(false, Ordering::Relaxed) {
            tracing::warn!(device = self.ordinal, "pages are copied one by one: {error}");
        }
        is_refused
    }

    /// A gather buffer; `None` if other transfers use all, or there is no memory for one.
    pub(crate) fn take_gather(&self, current: &Current<'_>) -> Option<Gather> {
        let mut gathers = lock(&self.gathers);
        if gathers.free.is_empty() && !gathers.is_full {
            match Gather::new(current) {
                Ok(gather) => {
                    gathers.free.push(gather);
                    gathers.made += 1;
                    gathers.is_full = gathers.made == GATHERS_MAX;
                }
                Err(error) => {
                    tracing::warn!(device = self.ordinal, "no more memory for pages to be gathered: {error}");
                    gathers.is_full = true;
                }
            }
        }
        gathers.free.pop()
    }

    pub(crate) fn return_gather(&self, gather: Gather) {
        lock(&self.gathers).free.push(gather);
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
            stream: current.create_stream()?,
            second: current.create_stream()?,
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
        let finished = current.synchronize(self.stream).and(current.synchronize(self.second));
        match finished {
            Ok(()) => device.return_channel(self),
            Err(_) => {
                current.destroy(&[self.stream, self.second], &[self.done, self.ordered]);
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

impl Gather {
    fn new(current: &Current<'_>) -> Result<Self, DeviceError> {
        let part_bytes = (Settings::get().gather_bytes / GATHER_PARTS as u64).max(1 << 20) & !0xffff;
        let mut gathered = [None; GATHER_PARTS];
        let mut copied = [None; GATHER_PARTS];
        for event in gathered.iter_mut().chain(&mut copied) {
            *event = Some(current.create_event()?);
        }
        let start = current.allocate(part_bytes * GATHER_PARTS as u64)?;
        let missing = || DeviceError::NoDriver;
        let all = |events: [Option<Opaque>; GATHER_PARTS]| -> Result<[Opaque; GATHER_PARTS], DeviceError> {
            let [a, b, c, d] = events;
            Ok([
                a.ok_or_else(missing)?,
                b.ok_or_else(missing)?,
                c.ok_or_else(missing)?,
                d.ok_or_else(missing)?,
            ])
        };
        Ok(Self { start, part_bytes, gathered: all(gathered)?, copied: all(copied)? })
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
