//! The driver as safe functions: every call has its context, and every failure is a value.
//!
//! **Invariant:** after a fork no function of the driver is called in the child.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::OnceLock;

use crate::device::Device;
use crate::ffi::{self, BatchAttributes, DeviceHandle, DevicePtr, Functions, Handle, Loading, NULL, Status};
use crate::pieces::Piece;
use crate::policy::Direction;
use crate::settings::{LIBRARY, Settings};
use crate::{DeviceError, Stream};

/// Maximum number of devices.
pub(crate) const DEVICES_MAX: usize = 64;

const ATTRIBUTE_READ_ONLY_REGISTER: c_int = 113;
const ATTRIBUTE_MULTIPROCESSORS: c_int = 16;
const ATTRIBUTE_UNIFIED_ADDRESSING: c_int = 41;
const POINTER_CONTEXT: c_int = 1;
const POINTER_MEMORY_TYPE: c_int = 2;
const POINTER_IS_MANAGED: c_int = 8;
const POINTER_ORDINAL: c_int = 9;
const POINTER_RANGE_START: c_int = 11;
const POINTER_RANGE_BYTES: c_int = 12;
const MEMORY_TYPE_HOST: c_uint = 1;
const MEMORY_TYPE_DEVICE: c_uint = 2;
const HOST_PORTABLE: c_uint = 1;
const HOST_MAPPED: c_uint = 2;
const HOST_READ_ONLY: c_uint = 8;
const STREAM_NON_BLOCKING: c_uint = 1;
const EVENT_NO_TIMING: c_uint = 2;
/// The source of a batch is read in the order of its stream.
const ACCESS_ORDER_STREAM: c_int = 1;

/// The driver of this process.
pub(crate) struct Driver {
    functions: Functions,
    library: PathBuf,
    version: i32,
    process: u32,
    devices: Vec<OnceLock<Result<Device, DeviceError>>>,
}

/// A handle of the driver. It is only a number to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opaque(usize);

impl Opaque {
    fn new(handle: Handle) -> Self {
        Self(handle.expose_provenance())
    }

    /// A stream that the caller named.
    pub(crate) fn named(value: u64) -> Self {
        Self(value as usize)
    }

    /// The stream whose work comes first, if there is one.
    pub(crate) fn of_stream(stream: Stream) -> Option<Self> {
        match stream {
            Stream::Legacy => Some(Self::named(Stream::LEGACY)),
            Stream::Named(stream) => Some(Self::named(stream)),
            Stream::Synchronized => None,
        }
    }

    /// The number of a stream.
    pub(crate) fn value(self) -> u64 {
        self.0 as u64
    }

    fn handle(self) -> Handle {
        ptr::with_exposed_provenance_mut(self.0)
    }
}

/// What the driver knows about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) device: u32,
    pub(crate) start: u64,
    pub(crate) len: u64,
    context: usize,
}

impl Allocation {
    /// The address after it.
    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// Whether a context can access it with kernels.
    pub(crate) fn is_usable_in(&self, context: Opaque) -> bool {
        // Memory from pools and virtual memory management has no context.
        self.context == 0 || self.context == context.0
    }
}

static DRIVER: OnceLock<Result<Driver, DeviceError>> = OnceLock::new();

impl Driver {
    /// The driver, if this process uses it already. It is never loaded here.
    pub(crate) fn loaded() -> Result<&'static Self, DeviceError> {
        Self::get(Loading::AlreadyLoaded)
    }

    /// The driver, which is loaded if necessary.
    pub(crate) fn load() -> Result<&'static Self, DeviceError> {
        Self::get(Loading::Now)
    }

    fn get(loading: Loading) -> Result<&'static Self, DeviceError> {
        if DRIVER.get().is_none() {
            let library = Settings::get().library.clone().unwrap_or_else(|| PathBuf::from(LIBRARY));
            let unusable = |why| DeviceError::Unusable { library: library.display().to_string(), why };
            let functions = match ffi::load(&library, loading) {
                // Nothing is kept: another library of this process may load it later.
                Ok(None) => return Err(DeviceError::NoDriver),
                Ok(Some(functions)) => Ok(functions),
                Err(why) => Err(unusable(why)),
            };
            DRIVER.get_or_init(|| Self::new(functions?, library.clone()));
        }
        match DRIVER.get() {
            None => Err(DeviceError::NoDriver),
            Some(Err(error)) => Err(error.clone()),
            Some(Ok(driver)) if driver.process != std::process::id() => Err(DeviceError::Forked),
            Some(Ok(driver)) => Ok(driver),
        }
    }

    fn new(functions: Functions, library: PathBuf) -> Result<Self, DeviceError> {
        let process = std::process::id();
        let mut driver = Self { functions, library, version: 0, process, devices: Vec::new() };
        let (mut count, mut version) = (0, 0);
        // SAFETY: both targets are valid.
        unsafe {
            driver.check("cuInit", (driver.functions.init)(0))?;
            driver.check("cuDriverGetVersion", (driver.functions.driver_version)(&raw mut version))?;
            driver.check("cuDeviceGetCount", (driver.functions.device_count)(&raw mut count))?;
        }
        let count = usize::try_from(count).unwrap_or(0).min(DEVICES_MAX);
        driver.devices = (0..count).map(|_| OnceLock::new()).collect();
        driver.version = version;
        Ok(driver)
    }

    /// Whether this process created it: false in a forked child.
    pub(crate) fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    pub(crate) fn library(&self) -> &PathBuf {
        &self.library
    }

    /// The version of CUDA that it supports, as in 13000.
    pub(crate) fn version(&self) -> i32 {
        self.version
    }

    pub(crate) fn device_count(&self) -> u32 {
        self.devices.len() as u32
    }

    /// A device, with its primary context.
    pub(crate) fn device(&'static self, ordinal: u32) -> Result<&'static Device, DeviceError> {
        let cell = self.devices.get(ordinal as usize);
        let missing = || self.failure("cuDeviceGet", 101);
        match cell.ok_or_else(missing)?.get_or_init(|| Device::new(self, ordinal)) {
            Ok(device) => Ok(device),
            Err(error) => Err(error.clone()),
        }
    }

    /// The devices that this process has used.
    pub(crate) fn used_devices(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().filter_map(|it| it.get()?.as_ref().ok())
    }

    pub(crate) fn has_batch(&self) -> bool {
        self.functions.copy_batch_2.is_some() || self.functions.copy_batch_1.is_some()
    }

    fn check(&self, call: &'static str, status: Status) -> Result<(), DeviceError> {
        if status == 0 { Ok(()) } else { Err(self.failure(call, status)) }
    }

    fn failure(&self, call: &'static str, code: Status) -> DeviceError {
        let mut name: *const c_char = ptr::null();
        // SAFETY: the driver stores the address of a static text, or fails.
        let status = unsafe { (self.functions.error_name)(code, &raw mut name) };
        let name = match status {
            // SAFETY: the text is static and ends with a zero.
            0 if !name.is_null() => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
            _ => "unknown error".to_owned(),
        };
        DeviceError::Failed { call, name, code }
    }

    pub(crate) fn device_handle(&self, ordinal: u32) -> Result<DeviceHandle, DeviceError> {
        let mut handle = 0;
        // SAFETY: the target is valid.
        let status = unsafe { (self.functions.device_get)(&raw mut handle, ordinal as c_int) };
        self.check("cuDeviceGet", status).map(|()| handle)
    }

    /// Name and memory of a device.
    pub(crate) fn describe(&self, handle: DeviceHandle) -> Result<(String, u64), DeviceError> {
        let (mut name, mut bytes) = ([0_u8; 128], 0_usize);
        // SAFETY: the driver writes at most that many bytes of the name, and a number.
        unsafe {
            let status = (self.functions.device_name)(name.as_mut_ptr().cast(), 127, handle);
            self.check("cuDeviceGetName", status)?;
            self.check("cuDeviceTotalMem", (self.functions.device_memory)(&raw mut bytes, handle))?;
        }
        let name = CStr::from_bytes_until_nul(&name).map(|it| it.to_string_lossy().into_owned());
        Ok((name.unwrap_or_default(), bytes as u64))
    }

    fn attribute(&self, handle: DeviceHandle, attribute: c_int) -> c_int {
        let mut value = 0;
        // SAFETY: the target is valid.
        let status = unsafe { (self.functions.device_attribute)(&raw mut value, attribute, handle) };
        if status == 0 { value } else { 0 }
    }

    pub(crate) fn can_register_read_only(&self, handle: DeviceHandle) -> bool {
        self.attribute(handle, ATTRIBUTE_READ_ONLY_REGISTER) == 1
    }

    /// Number of multiprocessors.
    pub(crate) fn multiprocessors(&self, handle: DeviceHandle) -> u32 {
        self.attribute(handle, ATTRIBUTE_MULTIPROCESSORS).max(1).cast_unsigned()
    }

    pub(crate) fn has_unified_addresses(&self, handle: DeviceHandle) -> bool {
        self.attribute(handle, ATTRIBUTE_UNIFIED_ADDRESSING) == 1
    }

    pub(crate) fn primary_context(&self, handle: DeviceHandle) -> Result<Opaque, DeviceError> {
        let mut context = NULL;
        // SAFETY: the target is valid. The context is retained until the process ends.
        let status = unsafe { (self.functions.retain_context)(&raw mut context, handle) };
        self.check("cuDevicePrimaryCtxRetain", status).map(|()| Opaque::new(context))
    }

    /// Makes a context current in this thread until the guard is dropped.
    pub(crate) fn enter(&self, context: Opaque) -> Result<Current<'_>, DeviceError> {
        if !self.is_here() {
            return Err(DeviceError::Forked);
        }
        // SAFETY: the context is retained for the life of the process.
        let status = unsafe { (self.functions.push_context)(context.handle()) };
        self.check("cuCtxPushCurrent", status).map(|()| Current { driver: self })
    }

    /// The allocation of device memory that contains an address; `None` if it is no device memory.
    pub(crate) fn allocation(&self, address: u64) -> Result<Option<Allocation>, DeviceError> {
        let it = self.attributes(address)?;
        if it.kind != MEMORY_TYPE_DEVICE || it.is_managed != 0 || it.len == 0 {
            return Ok(None);
        }
        let (device, context) = (u32::try_from(it.ordinal).ok(), it.context.expose_provenance());
        let (start, len) = (it.start, it.len as u64);
        Ok(device.map(|device| Allocation { device, start, len, context }))
    }

    /// Start and end of the pinned host memory that contains an address; `None` if there is none.
    pub(crate) fn pinned(&self, address: u64) -> Result<Option<(u64, u64)>, DeviceError> {
        let it = self.attributes(address)?;
        let is_pinned = it.kind == MEMORY_TYPE_HOST && it.is_managed == 0 && it.len > 0;
        Ok(is_pinned.then(|| (it.start, it.start.saturating_add(it.len as u64))))
    }

    /// What the driver knows about an address.
    fn attributes(&self, address: u64) -> Result<Attributes, DeviceError> {
        if !self.is_here() {
            return Err(DeviceError::Forked);
        }
        let mut found = Attributes { context: NULL, kind: 0, is_managed: 0, ordinal: -1, start: 0, len: 0 };
        let mut attributes = [
            POINTER_CONTEXT,
            POINTER_MEMORY_TYPE,
            POINTER_IS_MANAGED,
            POINTER_ORDINAL,
            POINTER_RANGE_START,
            POINTER_RANGE_BYTES,
        ];
        let mut values: [*mut c_void; 6] = [
            (&raw mut found.context).cast(),
            (&raw mut found.kind).cast(),
            (&raw mut found.is_managed).cast(),
            (&raw mut found.ordinal).cast(),
            (&raw mut found.start).cast(),
            (&raw mut found.len).cast(),
        ];
        // SAFETY: each value has the type of its attribute, and the driver checks the address.
        let status = unsafe {
            let count = attributes.len() as c_uint;
            (self.functions.pointer_attributes)(count, attributes.as_mut_ptr(), values.as_mut_ptr(), address)
        };
        self.check("cuPointerGetAttributes", status).map(|()| found)
    }
}

/// Attributes of an address, with the driver's types.
struct Attributes {
    context: Handle,
    kind: c_uint,
    is_managed: c_uint,
    ordinal: c_int,
    start: DevicePtr,
    len: usize,
}

/// A context that is current in this thread. All functions work in it.
pub(crate) struct Current<'d> {
    driver: &'d Driver,
}

impl Current<'_> {
    pub(crate) fn allocate(&self, bytes: u64) -> Result<DevicePtr, DeviceError> {
        let mut address = 0;
        // SAFETY: the target is valid.
        let status = unsafe { (self.driver.functions.allocate)(&raw mut address, bytes as usize) };
        self.driver.check("cuMemAlloc", status).map(|()| address)
    }

    pub(crate) fn free(&self, address: DevicePtr) -> Result<(), DeviceError> {
        // SAFETY: the driver checks the address; the caller has finished all work that uses it.
        self.driver.check("cuMemFree", unsafe { (self.driver.functions.free)(address) })
    }

    /// Pinned host memory that all devices can access.
    pub(crate) fn allocate_host(&self, bytes: u64) -> Result<u64, DeviceError> {
        let mut start = ptr::null_mut();
        let flags = HOST_PORTABLE | HOST_MAPPED;
        // SAFETY: the target is valid.
        let status = unsafe { (self.driver.functions.allocate_host)(&raw mut start, bytes as usize, flags) };
        self.driver.check("cuMemHostAlloc", status).map(|()| start.expose_provenance() as u64)
    }

    pub(crate) fn free_host(&self, start: u64) -> Result<(), DeviceError> {
        // SAFETY: the memory is from `allocate_host`, and nothing uses it any more.
        let status = unsafe { (self.driver.functions.free_host)(address(start)) };
        self.driver.check("cuMemFreeHost", status)
    }

    /// Pins mapped memory. Returns its address for kernels.
    pub(crate) fn register(
        &self,
        start: u64,
        len: u64,
        is_read_only: bool,
    ) -> Result<DevicePtr, DeviceError> {
        let flags = HOST_PORTABLE | HOST_MAPPED | if is_read_only { HOST_READ_ONLY } else { 0 };
        // SAFETY: the driver checks the range; the owner keeps it mapped until it is unregistered.
        let status = unsafe { (self.driver.functions.register_host)(address(start), len as usize, flags) };
        self.driver.check("cuMemHostRegister", status)?;
        self.device_address(start).inspect_err(|_| drop(self.unregister(start)))
    }

    /// The address of pinned memory for kernels.
    pub(crate) fn device_address(&self, start: u64) -> Result<DevicePtr, DeviceError> {
        let mut device = 0;
        // SAFETY: the target is valid, and the driver checks the address.
        let status =
            unsafe { (self.driver.functions.host_device_pointer)(&raw mut device, address(start), 0) };
        self.driver.check("cuMemHostGetDevicePointer", status).map(|()| device)
    }

    pub(crate) fn unregister(&self, start: u64) -> Result<(), DeviceError> {
        // SAFETY: the driver checks the address, and waits for work that uses the memory.
        let status = unsafe { (self.driver.functions.unregister_host)(address(start)) };
        self.driver.check("cuMemHostUnregister", status)
    }

    /// Creates a stream. The driver limits the priority to what the device has; a lower number comes first.
    pub(crate) fn create_stream(&self, priority: c_int) -> Result<Opaque, DeviceError> {
        let (mut stream, flags) = (NULL, STREAM_NON_BLOCKING);
        // SAFETY: the target is valid.
        let status = unsafe { (self.driver.functions.create_stream)(&raw mut stream, flags, priority) };
        self.driver.check("cuStreamCreateWithPriority", status).map(|()| Opaque::new(stream))
    }

    pub(crate) fn create_event(&self) -> Result<Opaque, DeviceError> {
        let mut event = NULL;
        // SAFETY: the target is valid.
        let status = unsafe { (self.driver.functions.create_event)(&raw mut event, EVENT_NO_TIMING) };
        self.driver.check("cuEventCreate", status).map(|()| Opaque::new(event))
    }

    pub(crate) fn destroy(&self, streams: &[Opaque], events: &[Opaque]) {
        for stream in streams {
            // SAFETY: the stream is ours, and this is its last use.
            unsafe { (self.driver.functions.destroy_stream)(stream.handle()) };
        }
        for event in events {
            // SAFETY: as above.
            unsafe { (self.driver.functions.destroy_event)(event.handle()) };
        }
    }

    /// Marks in an event the work that a stream has now.
    pub(crate) fn record(&self, event: Opaque, stream: Opaque) -> Result<(), DeviceError> {
        // SAFETY: the event is ours; the driver checks a stream that the caller named, or the caller has
        // broken its promise that the stream exists.
        let status = unsafe { (self.driver.functions.record_event)(event.handle(), stream.handle()) };
        self.driver.check("cuEventRecord", status)
    }

    /// Whether the work marked in an event has finished.
    pub(crate) fn is_done(&self, event: Opaque) -> Result<bool, DeviceError> {
        // SAFETY: the event is ours.
        match unsafe { (self.driver.functions.query_event)(event.handle()) } {
            ffi::NOT_READY => Ok(false),
            status => self.driver.check("cuEventQuery", status).map(|()| true),
        }
    }

    /// Whether the work of a stream is recorded into a graph instead of being carried out.
    pub(crate) fn is_capturing(&self, stream: Opaque) -> Result<bool, DeviceError> {
        let mut state = 0;
        // SAFETY: the target is valid; for the stream as in `record`.
        let status = unsafe { (self.driver.functions.is_capturing)(stream.handle(), &raw mut state) };
        self.driver.check("cuStreamIsCapturing", status).map(|()| state != 0)
    }

    /// Lets a stream wait for the work marked in an event.
    pub(crate) fn wait(&self, stream: Opaque, event: Opaque) -> Result<(), DeviceError> {
        // SAFETY: both are ours.
        let status = unsafe { (self.driver.functions.wait_event)(stream.handle(), event.handle(), 0) };
        self.driver.check("cuStreamWaitEvent", status)
    }

    /// Blocks until a stream has no work.
    pub(crate) fn synchronize(&self, stream: Opaque) -> Result<(), DeviceError> {
        // SAFETY: the stream is ours.
        let status = unsafe { (self.driver.functions.synchronize_stream)(stream.handle()) };
        self.driver.check("cuStreamSynchronize", status)
    }

    /// Begins a copy.
    ///
    /// # Safety
    /// The host's side must stay mapped, and both sides must be free to use, until the stream has done it.
    pub(crate) unsafe fn copy(
        &self,
        way: Direction,
        piece: Piece,
        stream: Opaque,
    ) -> Result<(), DeviceError> {
        let Piece { device, host, len } = piece;
        let (host, len, stream) = (address(host), len as usize, stream.handle());
        let functions = &self.driver.functions;
        // SAFETY: the caller's contract.
        let (call, status) = unsafe {
            match way {
                Direction::Load => {
                    ("cuMemcpyHtoDAsync", (functions.copy_to_device)(device, host, len, stream))
                }
                Direction::Save => ("cuMemcpyDtoHAsync", (functions.copy_to_host)(host, device, len, stream)),
            }
        };
        self.driver.check(call, status)
    }

    /// Begins many copies with one call. [`Driver::has_batch`] must be true.
    ///
    /// # Safety
    /// As for [`Self::copy`].
    pub(crate) unsafe fn copy_batch(
        &self,
        way: Direction,
        pieces: &[Piece],
        stream: Opaque,
    ) -> Result<(), DeviceError> {
        let mut hosts: Vec<DevicePtr> = pieces.iter().map(|it| it.host).collect();
        let mut devices: Vec<DevicePtr> = pieces.iter().map(|it| it.device).collect();
        let mut sizes: Vec<usize> = pieces.iter().map(|it| it.len as usize).collect();
        let (targets, sources) = match way {
            Direction::Load => (&mut devices, &mut hosts),
            Direction::Save => (&mut hosts, &mut devices),
        };
        let (targets, sources) = (targets.as_mut_ptr(), sources.as_mut_ptr());
        let (sizes, count) = (sizes.as_mut_ptr(), pieces.len());
        let mut attributes = BatchAttributes {
            source_access_order: ACCESS_ORDER_STREAM,
            source_location: [0; 2],
            target_location: [0; 2],
            flags: 0,
        };
        let (attributes, mut first, mut failed) = (&raw mut attributes, 0_usize, usize::MAX);
        let (first, stream) = (&raw mut first, stream.handle());
        let functions = &self.driver.functions;
        // SAFETY: the lists have `count` entries each, and the attributes apply from the first on; the rest
        // is the caller's contract.
        let status = unsafe {
            match (functions.copy_batch_2, functions.copy_batch_1) {
                (Some(copy), _) => copy(targets, sources, sizes, count, attributes, first, 1, stream),
                (None, Some(copy)) => {
                    copy(targets, sources, sizes, count, attributes, first, 1, &raw mut failed, stream)
                }
                (None, None) => 801,
            }
        };
        self.driver.check("cuMemcpyBatchAsync", status)
    }

    /// Loads a module from PTX.
    pub(crate) fn load_module(&self, ptx: &CStr) -> Result<Opaque, DeviceError> {
        let mut module = NULL;
        // SAFETY: the text ends with a zero, and the target is valid. The module is never unloaded.
        let status = unsafe { (self.driver.functions.load_module)(&raw mut module, ptx.as_ptr().cast()) };
        self.driver.check("cuModuleLoadData", status).map(|()| Opaque::new(module))
    }

    /// A kernel of a module.
    pub(crate) fn kernel(&self, module: Opaque, name: &CStr) -> Result<Opaque, DeviceError> {
        let mut kernel = NULL;
        let find = self.driver.functions.module_function;
        // SAFETY: the module is loaded, the name ends with a zero, and the target is valid.
        let status = unsafe { find(&raw mut kernel, module.handle(), name.as_ptr()) };
        self.driver.check("cuModuleGetFunction", status).map(|()| Opaque::new(kernel))
    }

    /// Launches the copy kernel over a list of `count` units in device memory.
    ///
    /// # Safety
    /// The list must have that many units, and each must name memory that the device can access until the
    /// stream has done it.
    pub(crate) unsafe fn launch(
        &self,
        kernel: Opaque,
        (blocks, threads): (u32, u32),
        (units, count): (DevicePtr, u32),
        stream: Opaque,
    ) -> Result<(), DeviceError> {
        let (mut units, mut count) = (units, count);
        let mut parameters: [*mut c_void; 2] = [(&raw mut units).cast(), (&raw mut count).cast()];
        // SAFETY: the parameters have the types of the kernel's; the rest is the caller's contract.
        let status = unsafe {
            (self.driver.functions.launch)(
                kernel.handle(),
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream.handle(),
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        self.driver.check("cuLaunchKernel", status)
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut context = NULL;
        // SAFETY: this thread pushed it; the target is valid.
        unsafe { (self.driver.functions.pop_context)(&raw mut context) };
    }
}

fn address(start: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(start as usize)
}
