//! New memory of a device, as a source and target of transfers.

use std::ptr::{NonNull, with_exposed_provenance_mut};

use tiffin_gpu::{DeviceError, Memory, Place, Stream};

use crate::buffer::{SourceBuf, TargetBuf};
use crate::queued::OwnedTarget;

/// Memory of a device that belongs to this value.
pub struct DeviceMemory {
    memory: Memory,
    start: NonNull<u8>,
    place: Place,
}

// SAFETY: the address is that of memory which the value owns, and only a device uses it.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above; concurrent copies leave unspecified bytes and nothing else.
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// Allocates memory. Transfers come after the work of that stream.
    pub fn allocate(device: u32, stream: Stream, len: u64) -> Result<Self, DeviceError> {
        let memory = Memory::allocate(device, len)?;
        let start = NonNull::new(with_exposed_provenance_mut(memory.start() as usize));
        let start = start.ok_or(DeviceError::NotDevice { start: 0, len })?;
        Ok(Self { memory, start, place: Place::new(device, stream) })
    }

    /// The bytes to read.
    #[must_use]
    pub fn as_source(&self) -> SourceBuf<'_> {
        self.as_target().as_source()
    }

    /// The bytes to write.
    #[must_use]
    pub fn as_target(&self) -> TargetBuf<'_> {
        // SAFETY: the memory is allocated while the value lives, and has no user but transfers.
        unsafe { TargetBuf::on_device(self.start, self.memory.len() as usize, &self.place) }
    }
}

// SAFETY: the range is the same for the whole life of the value, and valid for as long.
unsafe impl OwnedTarget for DeviceMemory {
    fn target(&self) -> TargetBuf<'_> {
        self.as_target()
    }
}
