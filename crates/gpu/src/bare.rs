//! Copies of the driver between pinned and device memory, and nothing else: the floor of every transfer.

use crate::DeviceError;
use crate::device::Device;
use crate::driver::{Driver, Opaque};
use crate::pieces::Piece;
use crate::policy::Direction;

/// Two blocks of memory that are copied to each other.
pub struct BareCopy {
    device: &'static Device,
    stream: Opaque,
    piece: Piece,
}

impl BareCopy {
    /// Allocates both blocks. The driver is loaded if necessary.
    pub fn new(device: u32, len: u64) -> Result<Self, DeviceError> {
        let device = Driver::load()?.device(device)?;
        let current = device.enter()?;
        let on_device = current.allocate(len)?;
        let host = current.allocate_host(len).inspect_err(|_| drop(current.free(on_device)))?;
        // From here on the blocks are freed with the value.
        let mut copy = Self {
            device,
            stream: Opaque::named(crate::Stream::LEGACY),
            piece: Piece { device: on_device, host, len },
        };
        copy.stream = current.create_stream(0)?;
        Ok(copy)
    }

    /// Copies all bytes, and waits for that.
    pub fn run(&mut self, direction: Direction) -> Result<(), DeviceError> {
        let current = self.device.enter()?;
        // SAFETY: this value owns both blocks, and waits for the copy before anything else uses them.
        let begun = unsafe { current.copy(direction, self.piece, self.stream) };
        current.synchronize(self.stream).and(begun)
    }
}

impl Drop for BareCopy {
    fn drop(&mut self) {
        // In a forked child there is nothing to free.
        if let Ok(current) = self.device.enter() {
            if self.stream != Opaque::named(crate::Stream::LEGACY) {
                current.destroy(&[self.stream], &[]);
            }
            let _freed = current.free(self.piece.device).and(current.free_host(self.piece.host));
        }
    }
}
