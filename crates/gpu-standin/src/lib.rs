//! A stand-in for the CUDA driver over host memory, for tests on machines without a GPU.
//!
//! It exports the functions of the driver that `tiffin-gpu` uses, and a few more for tests. Set
//! `TIFFIN_CUDA_LIBRARY` to this library. It is never part of a wheel.
//!
//! - Device memory cannot be accessed by the process: a dereferenced device pointer is a fault.
//! - Streams and events are lazy (see `state`): a missing wait shows as wrong bytes.
//! - Calls and copies fail on request (`standin_fail`).
//! - Kernels run by name, and see only device memory and pinned memory.
//!
//! | variable | meaning |
//! |---|---|
//! | `TIFFIN_STANDIN_DEVICES` | number of devices, 2 if not set |
//! | `TIFFIN_STANDIN_SEED` | seed of its choices |
//! | `TIFFIN_STANDIN_EAGER` | `1`: half of the work is carried out at once |

#![expect(clippy::missing_safety_doc, reason = "the driver's manual has the contract of each function")]

mod memory;
mod state;

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::memory::{number, pointer, protection, store};
pub use crate::state::Counts;
use crate::state::{
    ALREADY_REGISTERED, Event, Failing, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, INVALID_IMAGE,
    INVALID_VALUE, LEGACY, NOT_FOUND, NOT_INITIALIZED, NOT_REGISTERED, NOT_SUPPORTED, OK, OUT_OF_MEMORY,
    Pinned, State, Stream, UNKNOWN, Work,
};

type Handle = *mut c_void;

static STATE: Mutex<Option<State>> = Mutex::new(None);

thread_local! {
    static CONTEXTS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

const MODULE: u64 = 0xc0de;
/// The kernels and the maximum number of threads of a block. A handle is that of the module, plus the number.
const KERNELS: [(&str, u32); 2] = [("tiffin_copy", 1024), ("tiffin_move", 32)];
const CONTEXT: u64 = 0xc000;
const PAGE: u64 = 4096;

fn lock() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a call in the initialised stand-in.
fn with(call: impl FnOnce(&mut State) -> c_int) -> c_int {
    match lock().as_mut() {
        Some(state) if state.process != std::process::id() => NOT_INITIALIZED,
        Some(state) if state.broken != OK => state.broken,
        Some(state) => call(state),
        None => NOT_INITIALIZED,
    }
}

/// Runs a call that needs a current context, with its device.
fn within(call: impl FnOnce(&mut State, c_int) -> c_int) -> c_int {
    match CONTEXTS.with_borrow(|it| it.last().copied()) {
        Some(context) => with(|state| call(state, (context - CONTEXT) as c_int)),
        None => INVALID_CONTEXT,
    }
}

fn setting(name: &str) -> Option<u64> {
    #[expect(clippy::disallowed_methods, reason = "the stand-in has no other way to get settings")]
    std::env::var(name).ok()?.parse().ok()
}

fn stream_of(stream: Handle) -> u64 {
    number(stream).max(LEGACY)
}

/// Counts a call.
fn count(name: &'static str) {
    if let Some(state) = lock().as_mut() {
        *state.calls.entry(name).or_default() += 1;
    }
}

macro_rules! export {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
                count(stringify!($name));
                $body
            }
        )*
    };
}

export! {
    /// Initialises the stand-in.
    fn cuInit(_flags: c_uint) {
        let mut state = lock();
        if let Some(state) = &*state {
            return if state.process == std::process::id() { OK } else { NOT_INITIALIZED };
        }
        let devices = setting("TIFFIN_STANDIN_DEVICES").unwrap_or(2) as c_int;
        let seed = setting("TIFFIN_STANDIN_SEED").unwrap_or(1);
        *state = Some(State::new(devices, seed, setting("TIFFIN_STANDIN_EAGER") == Some(1)));
        OK
    }

    /// The version of CUDA.
    fn cuDriverGetVersion(version: *mut c_int) {
        // SAFETY: the caller's contract.
        if unsafe { store(version, 13_000) } { OK } else { INVALID_VALUE }
    }

    /// The name of an error.
    fn cuGetErrorName(code: c_int, name: *mut *const c_char) {
        let text = match code {
            INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
            OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
            state::ILLEGAL_ADDRESS => c"CUDA_ERROR_ILLEGAL_ADDRESS",
            _ => c"CUDA_ERROR_OF_THE_STAND_IN",
        };
        // SAFETY: the caller's contract.
        if unsafe { store(name, text.as_ptr()) } { OK } else { INVALID_VALUE }
    }

    /// The number of devices.
    fn cuDeviceGetCount(count: *mut c_int) {
        // SAFETY: the caller's contract.
        with(|state| if unsafe { store(count, state.devices) } { OK } else { INVALID_VALUE })
    }

    /// The handle of a device.
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        with(|state| match ordinal {
            // SAFETY: the caller's contract.
            0.. if ordinal < state.devices && unsafe { store(device, ordinal) } => OK,
            _ => INVALID_DEVICE,
        })
    }

    /// The name of a device.
    fn cuDeviceGetName(name: *mut c_char, len: c_int, _device: c_int) {
        let text = c"stand-in".to_bytes_with_nul();
        if name.is_null() || (len as usize) < text.len() {
            return INVALID_VALUE;
        }
        // SAFETY: the caller's buffer has at least that many bytes.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), text.len()) };
        OK
    }

    /// An attribute of a device: all that are asked for are true.
    fn cuDeviceGetAttribute(value: *mut c_int, _attribute: c_int, _device: c_int) {
        // SAFETY: the caller's contract.
        if unsafe { store(value, 1) } { OK } else { INVALID_VALUE }
    }

    /// The memory of a device.
    fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) {
        // SAFETY: the caller's contract.
        if unsafe { store(bytes, 1 << 30) } { OK } else { INVALID_VALUE }
    }

    /// The primary context of a device.
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) {
        let handle = pointer(CONTEXT + device as u64).cast();
        // SAFETY: the caller's contract.
        with(|_| if unsafe { store(context, handle) } { OK } else { INVALID_VALUE })
    }

    /// Makes a context current.
    fn cuCtxPushCurrent_v2(context: Handle) {
        with(|state| {
            let context = number(context);
            if context < CONTEXT || context - CONTEXT >= state.devices as u64 {
                return INVALID_CONTEXT;
            }
            CONTEXTS.with_borrow_mut(|it| it.push(context));
            OK
        })
    }

    /// Makes the context before current again.
    fn cuCtxPopCurrent_v2(context: *mut Handle) {
        match CONTEXTS.with_borrow_mut(Vec::pop) {
            Some(popped) => {
                // SAFETY: the caller's contract.
                unsafe { store(context, pointer(popped).cast()) };
                OK
            }
            None => INVALID_CONTEXT,
        }
    }

    /// Waits for all work.
    fn cuCtxSynchronize() {
        within(|state, _| {
            let marks = state.all_marks();
            state.run_all(&marks)
        })
    }

    /// What is known about an address.
    fn cuPointerGetAttributes(count: c_uint, which: *mut c_int, values: *mut *mut c_void, address: u64) {
        with(|state| {
            let found = state.allocation(address, 1);
            let device = found.map_or(-2, |(_, it)| it.device);
            let pinned = state.pinned_range(address);
            let (start, len) = found.map(|(start, it)| (start, it.len)).or(pinned).unwrap_or((0, 0));
            for at in 0..count as usize {
                // SAFETY: both lists have that many entries, and each value the type of its attribute.
                unsafe {
                    let value = values.add(at).read();
                    match which.add(at).read() {
                        1 => {
                            let context = found.map_or(0, |(_, it)| CONTEXT + it.device as u64);
                            value.cast::<u64>().write(context);
                        }
                        2 => value.cast::<u32>().write(match (found, pinned) {
                            (Some(_), _) => 2,
                            (None, Some(_)) => 1,
                            (None, None) => 0,
                        }),
                        8 => value.cast::<u32>().write(0),
                        9 => value.cast::<i32>().write(device),
                        11 => value.cast::<u64>().write(start),
                        12 => value.cast::<usize>().write(len as usize),
                        _ => return INVALID_VALUE,
                    }
                }
            }
            OK
        })
    }

    /// Allocates device memory.
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) {
        within(|state, device| {
            if state.fails(Failing::Allocate) {
                return OUT_OF_MEMORY;
            }
            match memory::allocate(state, device, bytes as u64) {
                // SAFETY: the caller's contract.
                Ok(start) => if unsafe { store(address, start) } { OK } else { INVALID_VALUE },
                Err(status) => status,
            }
        })
    }

    /// Frees device memory, after all work.
    fn cuMemFree_v2(address: u64) {
        within(|state, _| {
            let marks = state.all_marks();
            state.run_all(&marks);
            memory::free(state, address)
        })
    }

    /// Allocates pinned host memory.
    fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        within(|state, _| {
            if state.fails(Failing::AllocateHost) {
                return OUT_OF_MEMORY;
            }
            let Some(start) = memory::allocate_host(bytes as u64) else { return OUT_OF_MEMORY };
            state.pin(start, bytes as u64, false, true);
            // SAFETY: the caller's contract.
            if unsafe { store(address, pointer(start).cast()) } { OK } else { INVALID_VALUE }
        })
    }

    /// Frees pinned host memory.
    fn cuMemFreeHost(address: *mut c_void) {
        within(|state, _| match state.pinned.get(&number(address)) {
            Some(Pinned { is_allocated: true, len, .. }) => {
                memory::free_host(number(address), *len);
                state.pinned.remove(&number(address));
                OK
            }
            _ => INVALID_VALUE,
        })
    }

    /// Pins host memory.
    fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: c_uint) {
        within(|state, _| {
            let (start, len, is_read_only) = (number(address), bytes as u64, flags & 8 != 0);
            if state.fails(Failing::Register) {
                return OUT_OF_MEMORY;
            }
            if len == 0 || start % PAGE != 0 {
                return INVALID_VALUE;
            }
            if state.is_torn(start, len) || state.pinned(start, len).is_some() {
                // The driver says so of registered memory only.
                return if state.has_allocated(start, len) { INVALID_VALUE } else { ALREADY_REGISTERED };
            }
            match protection(start, len) {
                Some(is_writable) if is_writable || is_read_only => {}
                _ => return INVALID_VALUE,
            }
            state.pin(start, len, is_read_only, false);
            state.counts.registered_bytes += len;
            let peak = &mut state.counts.registered_bytes_peak;
            *peak = (*peak).max(state.counts.registered_bytes);
            OK
        })
    }

    /// Unpins host memory, after all work.
    fn cuMemHostUnregister(address: *mut c_void) {
        within(|state, _| match state.pinned.get(&number(address)) {
            Some(Pinned { is_allocated: false, len, .. }) => {
                state.counts.registered_bytes -= len;
                state.pinned.remove(&number(address));
                OK
            }
            _ => NOT_REGISTERED,
        })
    }

    /// Where kernels find pinned memory.
    fn cuMemHostGetDevicePointer_v2(device: *mut u64, address: *mut c_void, _flags: c_uint) {
        within(|state, _| match state.pinned(number(address), 1).map(|it| number(address) + it.distance) {
            // SAFETY: the caller's contract.
            Some(mapped) => if unsafe { store(device, mapped) } { OK } else { INVALID_VALUE },
            None => INVALID_VALUE,
        })
    }

    /// Copies to the device, in the order of a stream.
    fn cuMemcpyHtoDAsync_v2(target: u64, source: *const c_void, len: usize, stream: Handle) {
        let source = number(source);
        within(|state, _| copy(state, (target, source, len as u64), source, stream_of(stream)))
    }

    /// Copies to the host, in the order of a stream.
    fn cuMemcpyDtoHAsync_v2(target: *mut c_void, source: u64, len: usize, stream: Handle) {
        let target = number(target);
        within(|state, _| copy(state, (target, source, len as u64), target, stream_of(stream)))
    }

    /// Copies on the device, in the order of a stream.
    fn cuMemcpyDtoDAsync_v2(target: u64, source: u64, len: usize, stream: Handle) {
        within(|state, _| state.push(stream_of(stream), Work::Copy { target, source, len: len as u64 }))
    }

    /// Copies to the device.
    fn cuMemcpyHtoD_v2(target: u64, source: *const c_void, len: usize) {
        within(|state, _| copy_now(state, (target, number(source), len as u64), number(source)))
    }

    /// Copies to the host.
    fn cuMemcpyDtoH_v2(target: *mut c_void, source: u64, len: usize) {
        within(|state, _| copy_now(state, (number(target), source, len as u64), number(target)))
    }

    /// Fills device memory, in the order of a stream.
    fn cuMemsetD8Async(target: u64, value: u8, len: usize, stream: Handle) {
        within(|state, _| match state.allocation(target, len as u64) {
            Some(_) => state.push(stream_of(stream), Work::Fill { target, value, len: len as u64 }),
            None => INVALID_VALUE,
        })
    }

    /// A list of copies.
    fn cuMemcpyBatchAsync_v2(
        targets: *mut u64,
        sources: *mut u64,
        sizes: *mut usize,
        count: usize,
        attributes: *mut c_void,
        first: *mut usize,
        attribute_count: usize,
        stream: Handle,
    ) {
        // The driver takes no list on the legacy default stream.
        let is_legacy = stream_of(stream) == LEGACY;
        if attributes.is_null() || first.is_null() || attribute_count != 1 || is_legacy {
            return INVALID_VALUE;
        }
        within(|state, _| {
            if state.fails(Failing::Batch) {
                return NOT_SUPPORTED;
            }
            for at in 0..count {
                // SAFETY: the lists have that many entries.
                let (target, source, len) =
                    unsafe { (targets.add(at).read(), sources.add(at).read(), sizes.add(at).read() as u64) };
                let host = if state.allocation(target, 1).is_some() { source } else { target };
                let status = copy(state, (target, source, len), host, stream_of(stream));
                if status != OK {
                    return status;
                }
                state.counts.copies -= 1;
                state.counts.batched += 1;
            }
            OK
        })
    }

    /// Creates a stream.
    fn cuStreamCreate(stream: *mut Handle, flags: c_uint) {
        // SAFETY: the caller's contract.
        unsafe { cuStreamCreateWithPriority(stream, flags, 0) }
    }

    /// Creates a stream. The priority has no effect.
    fn cuStreamCreateWithPriority(stream: *mut Handle, flags: c_uint, _priority: c_int) {
        within(|state, device| {
            let handle = state.handle();
            state.streams.insert(handle, Stream::new(device, flags & 1 == 0));
            // SAFETY: the caller's contract.
            if unsafe { store(stream, pointer(handle).cast()) } { OK } else { INVALID_VALUE }
        })
    }

    /// Destroys a stream, after its work.
    fn cuStreamDestroy_v2(stream: Handle) {
        within(|state, _| {
            let Some(marks) = state.marks(number(stream)) else { return INVALID_HANDLE };
            state.run_all(&marks);
            state.streams.remove(&number(stream)).map_or(INVALID_HANDLE, |_| OK)
        })
    }

    /// Waits for the work of a stream.
    fn cuStreamSynchronize(stream: Handle) {
        within(|state, _| match state.marks(stream_of(stream)) {
            Some(marks) => state.run_all(&marks),
            None => INVALID_HANDLE,
        })
    }

    /// Whether the work of a stream is recorded into a graph.
    fn cuStreamIsCapturing(stream: Handle, state_of: *mut c_int) {
        within(|state, _| match state.streams.get(&stream_of(stream)).map(|it| c_int::from(it.is_captured)) {
            // SAFETY: the caller's contract.
            Some(value) => if unsafe { store(state_of, value) } { OK } else { INVALID_VALUE },
            None => INVALID_HANDLE,
        })
    }

    /// Lets a stream wait for an event.
    fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) {
        within(|state, _| match state.events.get(&number(event)).map(|it| it.marks.clone()) {
            Some(marks) => state.push(stream_of(stream), Work::Wait(marks)),
            None => INVALID_HANDLE,
        })
    }

    /// Creates an event.
    fn cuEventCreate(event: *mut Handle, _flags: c_uint) {
        within(|state, _| {
            let handle = state.handle();
            state.events.insert(handle, Event::default());
            // SAFETY: the caller's contract.
            if unsafe { store(event, pointer(handle).cast()) } { OK } else { INVALID_VALUE }
        })
    }

    /// Destroys an event.
    fn cuEventDestroy_v2(event: Handle) {
        within(|state, _| state.events.remove(&number(event)).map_or(INVALID_HANDLE, |_| OK))
    }

    /// Marks the present work of a stream.
    fn cuEventRecord(event: Handle, stream: Handle) {
        within(|state, device| match state.streams.get(&stream_of(stream)) {
            Some(found) if stream_of(stream) == LEGACY || found.device == device => {
                state.record(number(event), stream_of(stream))
            }
            _ => INVALID_HANDLE,
        })
    }

    /// Whether marked work has finished.
    fn cuEventQuery(event: Handle) {
        within(|state, _| state.query(number(event)))
    }

    /// Loads a module, which must have the copy kernel.
    fn cuModuleLoadData(module: *mut Handle, image: *const c_void) {
        within(|state, _| {
            // SAFETY: the image is a text that ends with a zero.
            let text = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy();
            let has_kernels = KERNELS.iter().all(|it| text.contains(&format!(".visible .entry {}(", it.0)));
            if state.fails(Failing::LoadModule) || !has_kernels {
                return INVALID_IMAGE;
            }
            // SAFETY: the caller's contract.
            if unsafe { store(module, pointer(MODULE).cast()) } { OK } else { INVALID_VALUE }
        })
    }

    /// Finds a kernel.
    fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) {
        // SAFETY: the name ends with a zero.
        let name = unsafe { CStr::from_ptr(name) };
        let found = KERNELS.iter().position(|it| it.0.as_bytes() == name.to_bytes());
        let Some(found) = found.filter(|_| number(module) == MODULE) else { return NOT_FOUND };
        // SAFETY: the caller's contract.
        if unsafe { store(function, pointer(MODULE + found as u64).cast()) } { OK } else { INVALID_VALUE }
    }

    /// Launches a kernel: both copy units.
    fn cuLaunchKernel(
        function: Handle,
        blocks: c_uint,
        _blocks_y: c_uint,
        _blocks_z: c_uint,
        threads: c_uint,
        _threads_y: c_uint,
        _threads_z: c_uint,
        _shared_bytes: c_uint,
        stream: Handle,
        parameters: *mut *mut c_void,
        _extra: *mut *mut c_void,
    ) {
        within(|state, _| {
            let kernel = number(function).checked_sub(MODULE).and_then(|it| KERNELS.get(it as usize));
            if blocks == 0 || threads == 0 || kernel.is_none_or(|it| threads > it.1) {
                return INVALID_VALUE;
            }
            if state.fails(Failing::Launch) {
                return UNKNOWN;
            }
            // SAFETY: the kernel has two parameters of these types.
            let (units, count) = unsafe {
                ((*parameters).cast::<u64>().read(), (*parameters.add(1)).cast::<u32>().read())
            };
            state.counts.launches += 1;
            state.push(stream_of(stream), Work::Kernel { units, count })
        })
    }

    /// For tests: after `after` more calls of a kind, `count` calls fail.
    fn standin_fail(kind: c_uint, after: u64, count: u64) {
        let kinds = [
            Failing::Copy,
            Failing::Running,
            Failing::Register,
            Failing::AllocateHost,
            Failing::Launch,
            Failing::Allocate,
            Failing::LoadModule,
            Failing::Batch,
        ];
        let Some(kind) = kinds.get(kind as usize).copied() else { return NOT_SUPPORTED };
        with(|state| {
            state.fail(kind, after, count);
            OK
        })
    }

    /// For tests: another seed, and whether half of the work is carried out at once.
    fn standin_seed(seed: u64, is_eager: c_int) {
        with(|state| {
            state.set_seed(seed, is_eager != 0);
            OK
        })
    }

    /// For tests: whether the work of a stream is recorded into a graph, and whether its events stay
    /// unfinished. A call that waits for the stream itself still carries out its work.
    fn standin_stream(stream: Handle, is_captured: c_int, is_stalled: c_int) {
        with(|state| match state.streams.get_mut(&number(stream)) {
            Some(found) => {
                found.is_captured = is_captured != 0;
                found.is_stalled = is_stalled != 0;
                OK
            }
            None => INVALID_HANDLE,
        })
    }

    /// For tests: how often a function was called.
    fn standin_calls(name: *const c_char, calls: *mut u64) {
        // SAFETY: the name ends with a zero.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        // SAFETY: the caller's contract.
        with(|state| match unsafe { store(calls, state.calls.get(&*name).copied().unwrap_or(0)) } {
            true => OK,
            false => INVALID_VALUE,
        })
    }

    /// For tests: numbers.
    fn standin_counts(counts: *mut Counts) {
        // SAFETY: the caller's contract.
        with(|state| if unsafe { store(counts, state.counts) } { OK } else { INVALID_VALUE })
    }
}

/// Begins a copy. Memory that is not pinned is copied at once, as the driver does.
fn copy(state: &mut State, (target, source, len): (u64, u64, u64), host: u64, stream: u64) -> c_int {
    if state.fails(Failing::Copy) {
        return UNKNOWN;
    }
    let device = if host == target { source } else { target };
    if state.allocation(device, len).is_none() || state.is_torn(host, len) {
        return INVALID_VALUE;
    }
    state.counts.copies += 1;
    let is_pinned = state.pinned(host, len).is_some();
    let status = state.push(stream, Work::Copy { target, source, len });
    match state.marks(stream) {
        Some(marks) if !is_pinned && status == OK => state.run_all(&marks),
        _ => status,
    }
}

/// Copies after all work of blocking streams.
fn copy_now(state: &mut State, (target, source, len): (u64, u64, u64), host: u64) -> c_int {
    if state.is_torn(host, len) {
        return INVALID_VALUE;
    }
    let status = state.push(LEGACY, Work::Copy { target, source, len });
    match state.marks(LEGACY) {
        // Blocking streams come first.
        Some(mut marks) if status == OK => {
            marks.reverse();
            state.run_all(&marks)
        }
        _ => status,
    }
}
