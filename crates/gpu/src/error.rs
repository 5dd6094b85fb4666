//! Why device memory could not be used.

/// Why device memory could not be used. After any error no copy of the transfer is in progress.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The process has not loaded the driver, so it cannot have device memory.
    #[error("this process has not loaded the CUDA driver")]
    NoDriver,
    /// The driver exists, but cannot be used.
    #[error("the CUDA driver `{library}` cannot be used: {why}")]
    Unusable {
        /// The library.
        library: String,
        /// The problem.
        why: String,
    },
    /// CUDA does not work in a child that was forked after its parent used it.
    #[error("CUDA was used before this process was forked; hint: start the child with `spawn`")]
    Forked,
    /// The driver does not know all of these bytes, or knows them as another kind of memory.
    #[error("{len} bytes at {start:#x} are not memory of one CUDA device; hint: {HINT_NOT_DEVICE}")]
    NotDevice {
        /// The address.
        start: u64,
        /// Number of bytes.
        len: u64,
    },
    /// The memory belongs to a context of its own.
    #[error(
        "{len} bytes at {start:#x} belong to a CUDA context that is not the primary one of device {device}; \
         hint: allocate with the runtime API, as torch and CuPy do"
    )]
    OtherContext {
        /// The address.
        start: u64,
        /// Number of bytes.
        len: u64,
        /// The device.
        device: u32,
    },
    /// A call of the driver failed.
    #[error("{call} failed: {name} ({code})")]
    Failed {
        /// The function of the driver.
        call: &'static str,
        /// The driver's name of the error.
        name: String,
        /// The driver's code.
        code: i32,
    },
    /// The stream records its work into a graph, which would read the memory again later.
    #[error("the stream is being captured into a graph; hint: read the object before the capture begins")]
    Captured,
    /// Device memory of one transfer is on several devices.
    #[error("the buffers of one object are on devices {first} and {second}; hint: use one device per object")]
    TwoDevices {
        /// One device.
        first: u32,
        /// Another.
        second: u32,
    },
}

const HINT_NOT_DEVICE: &str = "keep the memory allocated until the call returns";
