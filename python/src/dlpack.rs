//! DLPack, the protocol by which tensor libraries share memory.
//!
//! Import: [`Tensor`] is the memory of any object with `__dlpack__`, until it is dropped. Export: [`lend`]
//! makes a capsule over our memory. The layouts are those of DLPack 1.0. The older layout, without a
//! version and a read-only flag, is accepted on import, and exported for writable memory.
//!
//! The exporter of device memory is asked to order its work before the legacy default stream. A transfer
//! comes after the work of that stream.

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use pyo3::{ffi, intern};

use crate::errors::{invalid, wrong_type};
use crate::runtime;

/// The device of ordinary memory.
pub(crate) const DEVICE_CPU: (i32, i32) = (1, 0);
/// Kinds of device whose memory the processor can access: host memory, and memory pinned for CUDA or ROCm.
const REACHABLE: [i32; 3] = [1, 3, 11];
/// The kind of device of CUDA memory.
pub(crate) const KIND_CUDA: i32 = 2;
/// The legacy default stream of CUDA, as DLPack writes it.
const STREAM_LEGACY: u64 = 1;
const VERSION: Version = Version { major: 1, minor: 0 };
const FLAG_READ_ONLY: u64 = 1;
const FLAG_COPIED: u64 = 2;
const UNSIGNED: u8 = 1;
/// The maximum number of dimensions.
const DIMENSIONS_MAX: usize = 64;

const FRESH: &CStr = c"dltensor_versioned";
const USED: &CStr = c"used_dltensor_versioned";
const FRESH_OLD: &CStr = c"dltensor";
const USED_OLD: &CStr = c"used_dltensor";

#[repr(C)]
struct Device {
    kind: i32,
    number: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct RawTensor {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    data_type: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
struct Managed {
    version: Version,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    flags: u64,
    tensor: RawTensor,
}

#[repr(C)]
struct ManagedOld {
    tensor: RawTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedOld)>,
}

/// Memory that another library has exported.
pub(crate) struct Tensor {
    start: NonNull<u8>,
    /// The total number of bytes.
    len: usize,
    layout: Layout,
    is_writable: bool,
    is_on_device: bool,
    loan: Loan,
}

#[derive(Clone, Copy)]
enum Loan {
    New(*mut Managed),
    Old(*mut ManagedOld),
}

// SAFETY: only the thread that ends the loan uses more than the address.
unsafe impl Send for Loan {}

impl Loan {
    fn end(self, _py: Python<'_>) {
        // SAFETY: the struct is alive until its deleter is called. A tensor ends its loan once, when it is
        // dropped.
        unsafe {
            match self {
                Self::New(managed) => (*managed).deleter.map(|delete| delete(managed)),
                Self::Old(managed) => (*managed).deleter.map(|delete| delete(managed)),
            };
        }
    }
}

/// The layout of the elements.
struct Layout {
    element_bytes: usize,
    /// Count and distance in bytes, outermost first; `None` if they are contiguous.
    axes: Option<Vec<(usize, isize)>>,
}

impl Tensor {
    /// Imports the memory of an object with `__dlpack__`. If that is on a device, its library orders its work
    /// before the legacy default stream.
    pub(crate) fn take(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::take_on(object, STREAM_LEGACY)
    }

    /// The same for another stream.
    pub(crate) fn take_on(object: &Bound<'_, PyAny>, on: u64) -> PyResult<Self> {
        let (py, mut stream) = (object.py(), None);
        if let Ok(device) = object.getattr(intern!(py, "__dlpack_device__")) {
            let (kind, _): (i32, i32) = device.call0()?.extract()?;
            if kind == KIND_CUDA {
                stream = Some(on);
            } else if !REACHABLE.contains(&kind) {
                let hint = "copy it to the host first, as in `tensor.cpu()`";
                return Err(wrong_type(
                    "the tensor must be in host memory or on a CUDA device",
                    object,
                    hint,
                ));
            }
        }
        let capsule = ask(object, stream)?;
        let Ok(capsule) = capsule.cast::<PyCapsule>() else {
            return Err(wrong_type(
                "`__dlpack__` must return a capsule",
                &capsule,
                "report this to the authors of that library",
            ));
        };
        Self::open(capsule)
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Whether the processor cannot access the bytes, because they are on a CUDA device.
    pub(crate) fn is_on_device(&self) -> bool {
        self.is_on_device
    }

    pub(crate) fn is_in_one_piece(&self) -> bool {
        self.layout.axes.is_none()
    }

    /// A contiguous copy of the bytes, in the order of the elements.
    pub(crate) fn copied(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len);
        let mut axes = self.layout.axes.as_deref().unwrap_or_default();
        let mut run = if axes.is_empty() { self.len } else { self.layout.element_bytes };
        // Contiguous inner axes are copied at once.
        while let [outer @ .., (count, distance)] = axes
            && usize::try_from(*distance) == Ok(run)
        {
            (axes, run) = (outer, run * count);
        }
        gather(self.start.as_ptr(), axes, run, &mut bytes);
        bytes
    }

    /// Takes the tensor out of its capsule, which is marked as used.
    fn open(capsule: &Bound<'_, PyCapsule>) -> PyResult<Self> {
        /// A capsule belongs to the thread that marks it first. Without a GIL, two threads that got the same
        /// one could otherwise both find it unused. No code of Python runs while it is locked.
        static TAKING: Mutex<()> = Mutex::new(());
        let _only_one = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
        let py = capsule.py();
        let pointer = |name: &CStr| {
            // SAFETY: the capsule is alive and the name a C string. A capsule of that name holds such a
            // pointer.
            unsafe {
                let is_it = ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) != 0;
                is_it.then(|| ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()))
            }
        };
        // SAFETY: DLPack promises that a capsule of this name holds this struct, alive until its deleter is
        // called.
        let (raw, flags, loan, used) = unsafe {
            if let Some(managed) = pointer(FRESH).map(|managed| managed.cast::<Managed>()) {
                let version = (*managed).version.major;
                if version != VERSION.major {
                    return Err(PyBufferError::new_err(format!("DLPack version {version} is not supported")));
                }
                (&raw const (*managed).tensor, (*managed).flags, Loan::New(managed), USED)
            } else if let Some(managed) = pointer(FRESH_OLD).map(|managed| managed.cast::<ManagedOld>()) {
                (&raw const (*managed).tensor, 0, Loan::Old(managed), USED_OLD)
            } else {
                return Err(PyTypeError::new_err(
                    "`__dlpack__` returned a capsule that is already used, or that holds no tensor",
                ));
            }
        };
        // SAFETY: as above; no other thread takes the struct, or changes it, meanwhile.
        let (start, len, layout) = unsafe { measure(py, &*raw)? };
        // From here on this code must release the memory.
        // SAFETY: the capsule is alive, and the name is static.
        if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } == -1 {
            return Err(PyErr::fetch(py));
        }
        // SAFETY: as above.
        let is_on_device = unsafe { (*raw).device.kind } == KIND_CUDA;
        Ok(Self { start, len, layout, is_writable: flags & FLAG_READ_ONLY == 0, is_on_device, loan })
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // A deleter may need the interpreter.
        let loan = self.loan;
        runtime::give_back(move |py| loan.end(py));
    }
}

/// Bytes to export.
#[derive(Clone, Copy)]
pub(crate) struct Export {
    /// The address of the first.
    pub(crate) start: *const u8,
    /// Number of bytes.
    pub(crate) len: usize,
    /// Kind and number of the device that has them.
    pub(crate) device: (i32, i32),
    /// How the consumer may use them.
    pub(crate) rights: Rights,
    /// The consumer accepts DLPack 1.0.
    pub(crate) is_versioned: bool,
}

/// How the consumer of exported bytes may use them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rights {
    /// They are shared, and must not be written.
    ReadOnly,
    /// They belong to the consumer alone.
    Copied,
    /// They are shared, and may be written.
    Shared,
}

/// A capsule over bytes, which `owner` keeps valid: a one-dimensional tensor of bytes.
///
/// # Safety
/// The bytes must stay readable while `owner` lives, and writable unless the rights say otherwise.
pub(crate) unsafe fn lend<'py>(
    py: Python<'py>,
    export: Export,
    owner: Box<dyn Any + Send>,
) -> PyResult<Bound<'py, PyAny>> {
    let Export { start, len, device, rights, is_versioned } = export;
    if !is_versioned && rights == Rights::ReadOnly {
        return Err(PyBufferError::new_err("read-only bytes need DLPack 1.0"));
    }
    let mut lent = Box::new(Lent { shape: [i64::try_from(len)?], strides: [1], _owner: owner });
    let tensor = RawTensor {
        data: start.cast_mut().cast(),
        device: Device { kind: device.0, number: device.1 },
        dimensions: 1,
        data_type: DataType { code: UNSIGNED, bits: 8, lanes: 1 },
        shape: lent.shape.as_mut_ptr(),
        strides: lent.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let context = Box::into_raw(lent).cast();
    // SAFETY: in each case the pointer is not null, the name is static, and the destructor matches the
    // contents. If there is no capsule, no other code has the struct.
    let capsule = unsafe {
        if is_versioned {
            let flags = match rights {
                Rights::ReadOnly => FLAG_READ_ONLY,
                Rights::Copied => FLAG_COPIED,
                Rights::Shared => 0,
            };
            let deleter = Some(take_back as unsafe extern "C" fn(*mut Managed));
            let managed =
                Box::into_raw(Box::new(Managed { version: VERSION, context, deleter, flags, tensor }));
            let capsule = ffi::PyCapsule_New(managed.cast(), FRESH.as_ptr(), Some(throw_away));
            if capsule.is_null() {
                take_back(managed);
            }
            capsule
        } else {
            let deleter = Some(take_back_old as unsafe extern "C" fn(*mut ManagedOld));
            let managed = Box::into_raw(Box::new(ManagedOld { tensor, context, deleter }));
            let capsule = ffi::PyCapsule_New(managed.cast(), FRESH_OLD.as_ptr(), Some(throw_away));
            if capsule.is_null() {
                take_back_old(managed);
            }
            capsule
        }
    };
    // SAFETY: a new reference, just made, or null after an error.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}

/// The data of an exported tensor.
struct Lent {
    shape: [i64; 1],
    strides: [i64; 1],
    _owner: Box<dyn Any + Send>,
}

/// The deleter of a tensor that [`lend`] made.
unsafe extern "C" fn take_back(managed: *mut Managed) {
    // SAFETY: both boxes were made by `lend`, and DLPack calls a deleter once.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Lent>()));
    }
}

/// The same for the older layout.
unsafe extern "C" fn take_back_old(managed: *mut ManagedOld) {
    // SAFETY: as above.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Lent>()));
    }
}

/// The destructor of a capsule: frees a tensor that no consumer has taken.
unsafe extern "C" fn throw_away(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule that `lend` made. A capsule that was taken has another
    // name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, FRESH.as_ptr()) != 0 {
            take_back(ffi::PyCapsule_GetPointer(capsule, FRESH.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, FRESH_OLD.as_ptr()) != 0 {
            take_back_old(ffi::PyCapsule_GetPointer(capsule, FRESH_OLD.as_ptr()).cast());
        }
    }
}

/// Calls `__dlpack__`, with DLPack 1.0 arguments if the object accepts them.
fn ask<'py>(object: &Bound<'py, PyAny>, stream: Option<u64>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let old = PyDict::new(py);
    if let Some(stream) = stream {
        old.set_item(intern!(py, "stream"), stream)?;
    }
    let options = old.copy()?;
    options.set_item(intern!(py, "max_version"), (VERSION.major, VERSION.minor))?;
    match object.call_method(intern!(py, "__dlpack__"), (), Some(&options)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            object.call_method(intern!(py, "__dlpack__"), (), Some(&old))
        }
        answer => answer,
    }
}

/// The start, number and layout of the bytes.
///
/// # Safety
/// The struct must be one that DLPack allows.
unsafe fn measure(py: Python<'_>, raw: &RawTensor) -> PyResult<(NonNull<u8>, usize, Layout)> {
    let invalid_shape = || PyBufferError::new_err("the tensor's shape is invalid");
    let dimensions = usize::try_from(raw.dimensions).map_err(|_| invalid_shape())?;
    if dimensions > DIMENSIONS_MAX || !(REACHABLE.contains(&raw.device.kind) || raw.device.kind == KIND_CUDA)
    {
        return Err(invalid_shape());
    }
    let element_bits = usize::from(raw.data_type.bits) * usize::from(raw.data_type.lanes);
    let element_bytes = element_bits / 8;
    let numbers = |list: *mut i64| -> Vec<i64> {
        // SAFETY: DLPack guarantees one number for each dimension if the list is present.
        (0..dimensions).map(|at| unsafe { list.add(at).read() }).collect()
    };
    let shape = if dimensions == 0 { Vec::new() } else { numbers(raw.shape) };
    let shape: Vec<_> =
        shape.into_iter().map(usize::try_from).collect::<Result<_, _>>().map_err(|_| invalid_shape())?;
    let count =
        shape.iter().try_fold(1_usize, |count, axis| count.checked_mul(*axis)).ok_or_else(invalid_shape)?;
    let len = count.checked_mul(element_bits).ok_or_else(invalid_shape)?.div_ceil(8);
    let axes = match raw.strides.is_null() || count == 0 {
        true => None,
        false => scattered(&shape, &numbers(raw.strides), element_bytes).ok_or_else(invalid_shape)?,
    };
    if axes.is_some() && !element_bits.is_multiple_of(8) {
        return Err(invalid(
            py,
            "elements smaller than a byte are not contiguous\n\nhint: make the tensor contiguous",
        ));
    }
    let offset = usize::try_from(raw.byte_offset).map_err(|_| invalid_shape())?;
    let start = if len == 0 { ptr::null_mut() } else { raw.data.cast::<u8>().wrapping_add(offset) };
    let start = match NonNull::new(start) {
        Some(start) => start,
        None if len == 0 => NonNull::dangling(),
        None => return Err(invalid_shape()),
    };
    Ok((start, len, Layout { element_bytes, axes }))
}

/// Count and distance of each axis in bytes, or `Some(None)` if the elements are contiguous; `None` if a
/// value overflows.
#[expect(clippy::option_option, reason = "the outer option is validity, the inner one contiguity")]
fn scattered(shape: &[usize], strides: &[i64], element_bytes: usize) -> Option<Option<Vec<(usize, isize)>>> {
    let mut is_in_order = true;
    let mut expected = 1_usize;
    for (count, stride) in shape.iter().zip(strides).rev() {
        is_in_order &= *count == 1 || usize::try_from(*stride) == Ok(expected);
        expected = expected.checked_mul(*count)?;
    }
    if is_in_order {
        return Some(None);
    }
    let element_bytes = isize::try_from(element_bytes).ok()?;
    let axes = shape
        .iter()
        .zip(strides)
        .map(|(count, stride)| Some((*count, isize::try_from(*stride).ok()?.checked_mul(element_bytes)?)));
    Some(Some(axes.collect::<Option<_>>()?))
}

/// Appends the elements of all axes, in order. Each read is inside the producer's memory, as its shape
/// promises.
fn gather(start: *const u8, axes: &[(usize, isize)], element_bytes: usize, bytes: &mut Vec<u8>) {
    match axes {
        [] => {
            let at = bytes.len();
            bytes.resize(at + element_bytes, 0);
            // SAFETY: the element is inside the tensor, and the vector has capacity for it.
            unsafe { ptr::copy_nonoverlapping(start, bytes.as_mut_ptr().add(at), element_bytes) };
        }
        [(count, distance), inner @ ..] => {
            for index in 0..*count {
                // It never leaves the tensor, as its shape promises.
                let next = start.wrapping_offset((index as isize).wrapping_mul(*distance));
                gather(next, inner, element_bytes, bytes);
            }
        }
    }
}
