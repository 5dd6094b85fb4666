//! The functions of the CUDA driver that are used, found at run time.
//!
//! Nothing is linked. The library stays loaded until the process ends, because the driver cannot be unloaded.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::transmute_copy;
use std::path::Path;
use std::ptr;

/// Result of a call; zero is success.
pub(crate) type Status = c_int;
/// Handle of a device.
pub(crate) type DeviceHandle = c_int;
/// Address that a device uses.
pub(crate) type DevicePtr = u64;
/// Handle of a context, stream, event, module or function.
pub(crate) type Handle = *mut c_void;

/// The operation has not finished.
pub(crate) const NOT_READY: Status = 600;

/// Hints for a list of copies.
#[repr(C)]
pub(crate) struct BatchAttributes {
    pub(crate) source_access_order: c_int,
    pub(crate) source_location: [c_int; 2],
    pub(crate) target_location: [c_int; 2],
    pub(crate) flags: c_uint,
}

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The functions. Each has the contract that the driver's manual gives for its symbol.
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> Status,)*
            /// `cuMemcpyBatchAsync_v2`, since CUDA 13.
            pub(crate) copy_batch_2: Option<CopyBatch2>,
            /// `cuMemcpyBatchAsync`, since CUDA 12.8.
            pub(crate) copy_batch_1: Option<CopyBatch1>,
        }

        impl Functions {
            /// Finds all functions in a loaded library; the name of the first that is missing otherwise.
            fn find(library: Library) -> Result<Self, String> {
                Ok(Self {
                    // SAFETY: the symbol is a function of the driver, or of a stand-in, with this signature.
                    $($name: unsafe { transmute_copy(&library.symbol($symbol).ok_or($symbol)?) },)*
                    copy_batch_2: library
                        .symbol("cuMemcpyBatchAsync_v2")
                        // SAFETY: as above.
                        .map(|it| unsafe { transmute_copy(&it) }),
                    copy_batch_1: library
                        .symbol("cuMemcpyBatchAsync")
                        // SAFETY: as above.
                        .map(|it| unsafe { transmute_copy(&it) }),
                })
            }
        }
    };
}

type CopyBatch2 = unsafe extern "C" fn(
    *mut DevicePtr,
    *mut DevicePtr,
    *mut usize,
    usize,
    *mut BatchAttributes,
    *mut usize,
    usize,
    Handle,
) -> Status;
type CopyBatch1 = unsafe extern "C" fn(
    *mut DevicePtr,
    *mut DevicePtr,
    *mut usize,
    usize,
    *mut BatchAttributes,
    *mut usize,
    usize,
    *mut usize,
    Handle,
) -> Status;

functions! {
    init = "cuInit"(c_uint);
    driver_version = "cuDriverGetVersion"(*mut c_int);
    error_name = "cuGetErrorName"(Status, *mut *const c_char);
    device_count = "cuDeviceGetCount"(*mut c_int);
    device_get = "cuDeviceGet"(*mut DeviceHandle, c_int);
    device_name = "cuDeviceGetName"(*mut c_char, c_int, DeviceHandle);
    device_attribute = "cuDeviceGetAttribute"(*mut c_int, c_int, DeviceHandle);
    device_memory = "cuDeviceTotalMem_v2"(*mut usize, DeviceHandle);
    retain_context = "cuDevicePrimaryCtxRetain"(*mut Handle, DeviceHandle);
    push_context = "cuCtxPushCurrent_v2"(Handle);
    pop_context = "cuCtxPopCurrent_v2"(*mut Handle);
    pointer_attributes = "cuPointerGetAttributes"(c_uint, *mut c_int, *mut *mut c_void, DevicePtr);
    allocate = "cuMemAlloc_v2"(*mut DevicePtr, usize);
    free = "cuMemFree_v2"(DevicePtr);
    allocate_host = "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
    free_host = "cuMemFreeHost"(*mut c_void);
    register_host = "cuMemHostRegister_v2"(*mut c_void, usize, c_uint);
    unregister_host = "cuMemHostUnregister"(*mut c_void);
    host_device_pointer = "cuMemHostGetDevicePointer_v2"(*mut DevicePtr, *mut c_void, c_uint);
    copy_to_device = "cuMemcpyHtoDAsync_v2"(DevicePtr, *const c_void, usize, Handle);
    copy_to_host = "cuMemcpyDtoHAsync_v2"(*mut c_void, DevicePtr, usize, Handle);
    create_stream = "cuStreamCreateWithPriority"(*mut Handle, c_uint, c_int);
    destroy_stream = "cuStreamDestroy_v2"(Handle);
    synchronize_stream = "cuStreamSynchronize"(Handle);
    is_capturing = "cuStreamIsCapturing"(Handle, *mut c_int);
    wait_event = "cuStreamWaitEvent"(Handle, Handle, c_uint);
    create_event = "cuEventCreate"(*mut Handle, c_uint);
    destroy_event = "cuEventDestroy_v2"(Handle);
    record_event = "cuEventRecord"(Handle, Handle);
    query_event = "cuEventQuery"(Handle);
    load_module = "cuModuleLoadData"(*mut Handle, *const c_void);
    module_function = "cuModuleGetFunction"(*mut Handle, Handle, *const c_char);
    launch = "cuLaunchKernel"(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void,
        *mut *mut c_void
    );
}

/// Whether a library may be loaded now, or must have been loaded before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loading {
    /// Only a library that this process has loaded already.
    AlreadyLoaded,
    /// It is loaded if necessary.
    Now,
}

/// A loaded library.
#[derive(Clone, Copy)]
struct Library(*mut c_void);

impl Library {
    fn symbol(self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: the handle is open, and the name ends with a zero.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }
}

/// The functions of a library; `Ok(None)` if it is not loaded and must not be.
pub(crate) fn load(path: &Path, loading: Loading) -> Result<Option<Functions>, String> {
    let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| "invalid path".to_owned())?;
    let only_loaded = if loading == Loading::AlreadyLoaded { libc::RTLD_NOLOAD } else { 0 };
    // SAFETY: the name ends with a zero. The initialisers of a CUDA driver may run in any thread.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | only_loaded) };
    if handle.is_null() && loading == Loading::AlreadyLoaded {
        return Ok(None);
    }
    if handle.is_null() {
        return Err(last_error());
    }
    Functions::find(Library(handle)).map(Some).map_err(|name| format!("it has no function `{name}`"))
}

fn last_error() -> String {
    // SAFETY: the message belongs to this thread and is valid until its next call.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "it cannot be loaded".to_owned();
    }
    // SAFETY: as above; it ends with a zero.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}

/// A null handle.
pub(crate) const NULL: Handle = ptr::null_mut();
