//! A stream of our own, for copies that run beside the work of the caller's streams.

use crate::device::Device;
use crate::driver::{Driver, Opaque};
use crate::{DeviceError, Stream};

/// A stream that this value owns. The caller orders its work with that of other streams.
pub struct OwnStream {
    device: &'static Device,
    stream: Opaque,
}

impl OwnStream {
    /// Creates a stream of a device.
    pub fn new(device: u32) -> Result<Self, DeviceError> {
        let device = Driver::loaded()?.device(device)?;
        let stream = device.enter()?.create_stream(0)?;
        Ok(Self { device, stream })
    }

    /// The stream, for as long as this lives.
    #[must_use]
    pub fn stream(&self) -> Stream {
        Stream::Named(self.stream.value())
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        // The driver carries out the work that the stream has. In a forked child there is nothing to do.
        if let Ok(current) = self.device.enter() {
            current.destroy(&[self.stream], &[]);
        }
    }
}
