//! Moves bytes between host and device memory with the CUDA driver.
//!
//! The driver is found at run time. A process that has not loaded it cannot have device memory, so nothing
//! here loads it before [`load`] is called (by `tiffin doctor`), and host paths never ask it.
//!
//! - [`find`] says on which device an address is, and that all its bytes are allocated.
//! - A [`Place`] names a device and the stream whose work comes before a transfer.
//! - A [`Transfer`] copies a list of [`Piece`]s. [`policy`] decides which way they take.
//! - [`Queued`] loads are queued on a stream of the caller, and nothing waits for them.
//! - A [`Fence`] is the work that a stream has now, for transfers that begin later.
//! - An [`OwnStream`] is for loads that are queued beside the work of the caller.
//! - A [`Registration`] lets devices access a mapping directly; until then [`Stage`] and the transfer use a
//!   ring of pinned memory.
//!
//! **Invariant:** no function panics or blocks because a driver, a symbol, a device or memory is missing.
//!
//! **Invariant:** all `unsafe` code is in `bare`, `ffi`, `driver`, `queued` and `transfer`.

mod bare;
mod device;
mod driver;
mod error;
mod fence;
mod ffi;
mod own_stream;
pub mod pieces;
pub mod policy;
mod queued;
mod registered;
mod settings;
mod transfer;

pub use crate::bare::BareCopy;
pub use crate::device::{CHANNELS_MAX, QUEUED_MAX};
pub use crate::error::DeviceError;
pub use crate::fence::Fence;
pub use crate::own_stream::OwnStream;
pub use crate::pieces::Piece;
pub use crate::policy::Direction;
pub use crate::queued::{Begun, Queued, order};
pub use crate::registered::{PIECES_MAX, Populated, Registration, registered_bytes};
pub use crate::settings::{Load, Settings};
pub use crate::transfer::{HostCopy, Transfer};

use std::time::Duration;

use crate::device::Chunk;
use crate::driver::{Allocation, DEVICES_MAX, Driver};

/// The stream whose present work comes before a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// The legacy default stream, and with it all streams that are not `non-blocking`.
    Legacy,
    /// A handle, as DLPack and the driver write it. The caller promises that the stream exists.
    Named(u64),
    /// No stream: the caller has waited for all work on the memory.
    Synchronized,
}

impl Stream {
    /// The handle of the legacy default stream.
    pub const LEGACY: u64 = 1;

    /// The handle; that of the legacy default stream where no stream is named.
    #[must_use]
    pub const fn handle(self) -> u64 {
        match self {
            Self::Named(handle) => handle,
            Self::Legacy | Self::Synchronized => Self::LEGACY,
        }
    }

    /// A stream by its handle, where 0 is the legacy default stream.
    #[must_use]
    pub const fn of_handle(handle: u64) -> Self {
        match handle {
            0 | Self::LEGACY => Self::Legacy,
            handle => Self::Named(handle),
        }
    }
}

/// A device, and the stream whose work comes before transfers of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    device: u32,
    stream: Stream,
}

impl Place {
    /// Creates it.
    #[must_use]
    pub const fn new(device: u32, stream: Stream) -> Self {
        Self { device, stream }
    }

    /// A device, after the legacy default stream: for calls that have no stream argument.
    #[must_use]
    pub fn legacy(device: u32) -> Option<&'static Self> {
        static PLACES: [Place; DEVICES_MAX] = {
            let mut places = [Place::new(0, Stream::Legacy); DEVICES_MAX];
            let mut device = 0;
            #[expect(clippy::indexing_slicing, reason = "constant evaluation checks it")]
            while device < DEVICES_MAX {
                places[device].device = device as u32;
                device += 1;
            }
            places
        };
        PLACES.get(device as usize)
    }

    /// The number of the device.
    #[must_use]
    pub const fn device(&self) -> u32 {
        self.device
    }

    /// The stream.
    #[must_use]
    pub const fn stream(&self) -> Stream {
        self.stream
    }
}

/// Finds the device of addresses, and remembers the last allocation: pages of one cache are often adjacent.
#[derive(Debug, Default)]
pub struct Finder {
    last: Option<Allocation>,
}

impl Finder {
    /// The device of bytes that are in the allocation found last. The driver is not asked.
    #[must_use]
    pub fn known(&self, start: u64, len: u64) -> Option<u32> {
        let end = start.checked_add(len)?;
        self.last.filter(|it| it.start <= start && end <= it.end()).map(|it| it.device)
    }

    /// Start and end of the allocation found last.
    #[must_use]
    pub fn last(&self) -> Option<(u64, u64)> {
        self.last.map(|it| (it.start, it.end()))
    }

    /// The device that has all of these bytes. The driver is not loaded if this process has not.
    pub fn find(&mut self, start: u64, len: u64) -> Result<u32, DeviceError> {
        let not_device = || DeviceError::NotDevice { start, len };
        let end = start.checked_add(len).ok_or_else(not_device)?;
        if let Some(device) = self.known(start, len) {
            return Ok(device);
        }
        let driver = Driver::loaded()?;
        let first = driver.allocation(start)?.ok_or_else(not_device)?;
        let device = driver.device(first.device)?;
        let mut here = first;
        // An array may consist of several allocations that are mapped one after another.
        loop {
            if here.device != first.device {
                return Err(not_device());
            }
            if !device.owns(&here) {
                return Err(DeviceError::OtherContext { start, len, device: first.device });
            }
            if here.end() >= end {
                break;
            }
            here = driver.allocation(here.end())?.filter(|it| it.len > 0).ok_or_else(not_device)?;
        }
        self.last = Some(here);
        Ok(first.device)
    }
}

/// The device that has all of these bytes, after the legacy default stream.
pub fn find(start: u64, len: u64) -> Result<&'static Place, DeviceError> {
    let device = Finder::default().find(start, len)?;
    Place::legacy(device).ok_or(DeviceError::NotDevice { start, len })
}

/// Copies a few bytes from a device to new memory, and waits for them at most for `time_max`; `None` if that
/// passes.
pub fn read(
    place: &Place,
    start: u64,
    len: usize,
    time_max: Duration,
) -> Result<Option<Vec<u8>>, DeviceError> {
    transfer::read(place, start, len, time_max)
}

/// A chunk of the pinned ring, for bytes that come from a socket or a disk, or go there.
pub struct Stage(Chunk);

impl Stage {
    /// A free chunk; `None` if all are in use: try again.
    pub fn take(device: u32) -> Result<Option<Self>, DeviceError> {
        let device = Driver::loaded()?.device(device)?;
        let current = device.enter()?;
        Ok(Chunk::take(&current)?.map(Self))
    }

    /// Address of the first byte. The memory is mapped until the process ends, and has no other user while
    /// this lives.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.0.start()
    }

    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes()
    }
}

/// Device memory that this process has allocated.
pub struct Memory {
    device: &'static device::Device,
    start: u64,
    len: u64,
}

impl Memory {
    /// Allocates memory of a device. The driver is loaded if necessary.
    pub fn allocate(device: u32, len: u64) -> Result<Self, DeviceError> {
        let device = Driver::load()?.device(device)?;
        let start = device.enter()?.allocate(len)?;
        Ok(Self { device, start, len })
    }

    /// Its address on the device.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // In a forked child, and when the driver has shut down, there is nothing to free.
        if let Ok(current) = self.device.enter() {
            let _freed = current.free(self.start);
        }
    }
}

/// Whether a device can access read-only mappings directly.
#[must_use]
pub fn can_register_read_only(device: u32) -> bool {
    Driver::loaded().and_then(|it| it.device(device)).is_ok_and(|it| it.can_register_read_only())
}

/// Whether host memory is registered as a whole, so that devices access it directly.
#[must_use]
pub fn is_registered(host: u64, len: u64) -> bool {
    let (mut at, end) = (host, host + len);
    while at < end {
        let Some((_, most)) = registered::find(at) else { return false };
        at = at.saturating_add(most);
    }
    true
}

/// The address at which kernels of all devices find host memory; `None` if it is not registered as a whole.
#[must_use]
pub fn mapped_address(host: u64, len: u64) -> Option<u64> {
    let (device, most) = registered::find(host)?;
    if len <= most {
        return Some(device);
    }
    // The range may span several registrations; their addresses must continue each other.
    let mut at = most;
    while at < len {
        let (next, most) = registered::find(host + at)?;
        if next != device + at {
            return None;
        }
        at += most;
    }
    Some(device)
}

/// Bytes that a device has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The number of the device.
    pub device: u32,
    /// Bytes from the device to the host.
    pub saved: u64,
    /// Bytes from the host to the device.
    pub loaded: u64,
    /// Those of both that went through the ring.
    pub ringed: u64,
}

/// Bytes that each used device has moved. Empty without a driver.
#[must_use]
pub fn counted() -> Vec<Counted> {
    let Ok(driver) = Driver::loaded() else { return Vec::new() };
    let counted = |it: &device::Device| {
        let [saved, loaded, ringed] = it.counted();
        Counted { device: it.ordinal(), saved, loaded, ringed }
    };
    driver.used_devices().map(counted).collect()
}

/// A description of driver and devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The library.
    pub library: String,
    /// The version of CUDA that it supports, as in `13.0`.
    pub version: String,
    /// Name and bytes of memory of each device.
    pub devices: Vec<(String, u64)>,
}

/// Loads the driver, unless that is done, and describes it.
pub fn load() -> Result<Description, DeviceError> {
    let driver = Driver::load()?;
    let version = format!("{}.{}", driver.version() / 1000, driver.version() % 1000 / 10);
    let device = |ordinal| driver.describe(driver.device_handle(ordinal)?);
    let devices = (0..driver.device_count()).map(device).collect::<Result<_, _>>()?;
    Ok(Description { library: driver.library().display().to_string(), version, devices })
}
