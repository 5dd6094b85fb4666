//! The work that a stream has at one moment, as something to wait for.
//!
//! A program that begins a transfer later than its caller has asked for it records a fence first. The
//! transfer then comes after the work of that moment, and not after work that the caller has begun since.

use crate::device::Device;
use crate::driver::{Driver, Opaque};
use crate::{DeviceError, Place, Stream};

/// The work that a stream had when this was recorded.
pub struct Fence {
    device: &'static Device,
    event: Opaque,
}

impl Fence {
    /// Records the present work of a stream; `None` if the place names no stream.
    pub fn record(place: &Place) -> Result<Option<Self>, DeviceError> {
        let Some(stream) = Opaque::of_stream(place.stream()) else { return Ok(None) };
        let device = Driver::loaded()?.device(place.device())?;
        let current = device.enter()?;
        let fence = Self { device, event: device.take_event(&current)? };
        current.record(fence.event, stream)?;
        Ok(Some(fence))
    }

    /// Whether the work has finished.
    pub fn is_done(&self) -> Result<bool, DeviceError> {
        self.device.enter()?.is_done(self.event)
    }

    /// Lets later work of a stream come after the work. The processor does not wait.
    pub fn order(&self, then: Stream) -> Result<(), DeviceError> {
        self.device.enter()?.wait(Opaque::named(then.handle()), self.event)
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        self.device.return_event(self.event);
    }
}
