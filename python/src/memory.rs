//! Memory of Python objects, borrowed for the time of a call.
//!
//! It accepts objects with the buffer protocol, with `__dlpack__`, or with `__cuda_array_interface__`. Their
//! bytes are in host memory or on a CUDA device. Bytes of the host that are not contiguous are copied first.
//!
//! **Invariant:** the memory stays mapped and at its address while its [`Memory`] lives, on any thread and
//! without the interpreter. It is accessed only through [`SourceBuf`] and [`TargetBuf`], which allow for
//! concurrent access by Python threads. The processor never accesses memory of a device.

use std::ffi::{CStr, c_char};
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::{ffi, intern};
use tiffin_client::gpu::{self, DeviceError, Finder, Place, Stream};
use tiffin_client::{Error, OwnedTarget, SourceBuf, TargetBuf};

use crate::cuda::Interface;
use crate::dlpack::Tensor;
use crate::errors::{self, invalid, wrong_type};
use crate::runtime;

/// Contiguous bytes of a Python object.
pub(crate) struct Memory {
    start: NonNull<u8>,
    len: usize,
    is_writable: bool,
    /// The device that has the bytes, and the stream whose work comes first; `None` for host memory.
    place: Option<Place>,
    /// Keeps the bytes at their address.
    _owner: Owner,
}

enum Owner {
    Buffer(#[expect(dead_code, reason = "kept for its destructor")] Buffer),
    Tensor(#[expect(dead_code, reason = "kept for its destructor")] Tensor),
    Copy(#[expect(dead_code, reason = "kept for its destructor")] Vec<u8>),
    Array(#[expect(dead_code, reason = "kept for its destructor")] Py<PyAny>),
}

// SAFETY: the bytes may be read and written on any thread (see above), and the owners are released with the
// interpreter attached, on whichever thread.
unsafe impl Send for Memory {}
// SAFETY: as above; a shared `Memory` only gives out addresses.
unsafe impl Sync for Memory {}

// SAFETY: the range is the same for the whole life of the value, and valid for as long.
unsafe impl OwnedTarget for Memory {
    fn target(&self) -> TargetBuf<'_> {
        self.as_target()
    }
}

impl Memory {
    /// The bytes of a value to store.
    pub(crate) fn to_read(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        match Lender::of(value, ffi::PyBUF_FULL_RO)? {
            Lender::Buffer(buffer) => Self::of_buffer(buffer, value),
            Lender::Tensor => Self::of_tensor(Tensor::take(value)?, value),
            Lender::CudaArray => Self::of_cuda_array(value),
            Lender::None => Err(no_value(value)),
        }
    }

    /// The same for bytes that the processor reads or writes.
    pub(crate) fn on_host(self, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        match self.place {
            None => Ok(self),
            Some(_) => Err(on_device(object)),
        }
    }

    /// The bytes of a buffer to fill.
    pub(crate) fn to_write(buffer: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = buffer.py();
        let memory = match Lender::of(buffer, ffi::PyBUF_FULL).map_err(|error| not_writable(buffer, error))? {
            Lender::Buffer(lent) => Self::of_buffer(lent, buffer)?,
            Lender::Tensor => Self::of_tensor(Tensor::take(buffer)?, buffer)?,
            Lender::CudaArray => Self::of_cuda_array(buffer)?,
            Lender::None => {
                let hint = "give a bytearray, a writable memoryview or array, or a tensor";
                return Err(wrong_type("a buffer is a writable bytes-like object", buffer, hint));
            }
        };
        match memory._owner {
            Owner::Copy(_) => Err(invalid(py, "the buffer is not contiguous\n\nhint: give a contiguous one")),
            _ if !memory.is_writable => Err(read_only(buffer)),
            _ => Ok(memory),
        }
    }

    /// The bytes of a device's array to fill in the order of a stream.
    pub(crate) fn to_write_on(array: &Bound<'_, PyAny>, stream: Stream) -> PyResult<Self> {
        let mut memory = match Lender::of(array, ffi::PyBUF_FULL_RO)? {
            Lender::Tensor => Self::of_tensor(Tensor::take_on(array, stream.handle())?, array)?,
            Lender::CudaArray => Self::of_cuda_array(array)?,
            Lender::Buffer(_) | Lender::None => return Err(not_on_device(array)),
        };
        if !memory.is_writable {
            return Err(read_only(array));
        }
        match &mut memory.place {
            Some(place) => {
                if !matches!(memory._owner, Owner::Tensor(_)) {
                    let ordered = gpu::order(place.device(), place.stream(), stream);
                    ordered.map_err(|error| failed(array.py(), &error))?;
                }
                *place = Place::new(place.device(), stream);
            }
            None if memory.len > 0 => return Err(not_on_device(array)),
            None => {}
        }
        Ok(memory)
    }

    /// The number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether the bytes are on a CUDA device.
    pub(crate) fn is_on_device(&self) -> bool {
        self.place.is_some()
    }

    /// The bytes for reading.
    pub(crate) fn as_source(&self) -> SourceBuf<'_> {
        // SAFETY: they are mapped and readable while `self` lives, and only Python and C access them; or they
        // are allocated on their device, which the driver has confirmed.
        unsafe {
            match &self.place {
                None => SourceBuf::new(self.start, self.len),
                Some(place) => SourceBuf::on_device(self.start, self.len, place),
            }
        }
    }

    /// The bytes for writing.
    pub(crate) fn as_target(&self) -> TargetBuf<'_> {
        assert!(self.is_writable, "the target is read-only memory");
        // SAFETY: as above, and they are writable.
        unsafe {
            match &self.place {
                None => TargetBuf::new(self.start, self.len),
                Some(place) => TargetBuf::on_device(self.start, self.len, place),
            }
        }
    }

    fn of_buffer(buffer: Buffer, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if buffer.holds_objects() {
            let hint = "give numbers or bytes, such as `array.astype(float)`";
            return Err(wrong_type(
                "the argument must contain bytes, and it contains Python objects",
                object,
                hint,
            ));
        }
        if !buffer.is_in_one_piece() {
            return Ok(Self::of_copy(buffer.copied(object.py())?));
        }
        let (start, len) = (buffer.start(), buffer.len());
        Ok(Self { start, len, is_writable: buffer.is_writable(), place: None, _owner: Owner::Buffer(buffer) })
    }

    fn of_tensor(tensor: Tensor, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut place = None;
        if tensor.is_on_device() {
            if !tensor.is_in_one_piece() {
                return Err(not_contiguous(object.py()));
            }
            // The exporter has ordered its work before this stream.
            place = found(object.py(), tensor.start(), tensor.len(), Stream::Legacy)?;
        }
        if !tensor.is_in_one_piece() {
            return Ok(Self::of_copy(tensor.copied()));
        }
        let (start, len) = (tensor.start(), tensor.len());
        Ok(Self { start, len, is_writable: tensor.is_writable(), place, _owner: Owner::Tensor(tensor) })
    }

    fn of_cuda_array(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let Interface { address, len, is_read_only, is_contiguous, stream } = Interface::of(object)?;
        if !is_contiguous {
            return Err(not_contiguous(object.py()));
        }
        let start = NonNull::new(ptr::with_exposed_provenance_mut(address)).filter(|_| len > 0);
        let start = start.unwrap_or(NonNull::dangling());
        let place = found(object.py(), start, len, stream)?;
        Ok(Self {
            start,
            len,
            is_writable: !is_read_only,
            place,
            _owner: Owner::Array(object.clone().unbind()),
        })
    }

    fn of_copy(mut bytes: Vec<u8>) -> Self {
        let start = NonNull::new(bytes.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Self { start, len: bytes.len(), is_writable: true, place: None, _owner: Owner::Copy(bytes) }
    }
}

/// How an object exports its memory.
enum Lender {
    Buffer(Buffer),
    Tensor,
    CudaArray,
    None,
}

impl Lender {
    fn of(object: &Bound<'_, PyAny>, flags: i32) -> PyResult<Self> {
        let is_tensor = || object.hasattr(intern!(object.py(), "__dlpack__"));
        // SAFETY: the object is alive and the interpreter attached.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 0 {
            return Ok(match () {
                () if is_tensor()? => Self::Tensor,
                () if Interface::is_at(object)? => Self::CudaArray,
                () => Self::None,
            });
        }
        match Buffer::get(object, flags) {
            Ok(buffer) => Ok(Self::Buffer(buffer)),
            // An array may have the protocol without a format for its elements, such as bfloat16.
            Err(_) if is_tensor()? => Ok(Self::Tensor),
            Err(error) => Err(error),
        }
    }
}

/// A buffer of the buffer protocol.
struct Buffer(ManuallyDrop<Lent>);

/// The buffer as its exporter filled it: it must not move, and is released with the interpreter attached.
struct Lent(Box<ffi::Py_buffer>);

// SAFETY: only the thread that releases it uses more than the address.
unsafe impl Send for Lent {}

impl Lent {
    fn release(mut self, _py: Python<'_>) {
        // SAFETY: the buffer was filled by its exporter and is released once, with the interpreter attached.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.0) };
    }
}

impl Buffer {
    fn get(object: &Bound<'_, PyAny>, flags: i32) -> PyResult<Self> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the object is alive, and `view` is a place for one buffer that does not move until it is
        // released.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) } == -1 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(Self(ManuallyDrop::new(Lent(view))))
    }

    fn raw(&self) -> &ffi::Py_buffer {
        &self.0.0
    }

    fn start(&self) -> NonNull<u8> {
        NonNull::new(self.raw().buf.cast()).unwrap_or(NonNull::dangling())
    }

    fn len(&self) -> usize {
        usize::try_from(self.raw().len).unwrap_or(0)
    }

    fn is_writable(&self) -> bool {
        self.raw().readonly == 0
    }

    /// Whether the bytes are contiguous, in the order of the elements.
    fn is_in_one_piece(&self) -> bool {
        const ROWS_FIRST: c_char = b'C' as c_char;
        // SAFETY: the buffer was filled by its exporter.
        unsafe { ffi::PyBuffer_IsContiguous(self.raw(), ROWS_FIRST) != 0 }
    }

    /// Whether elements contain pointers to Python objects: stored pointers are useless, and overwriting them
    /// would crash the interpreter.
    fn holds_objects(&self) -> bool {
        if self.raw().format.is_null() {
            return false;
        }
        // SAFETY: the format is a string of C that lives as long as the buffer.
        let format = unsafe { CStr::from_ptr(self.raw().format) }.to_bytes();
        // The names of fields are between colons.
        format.split(|byte| *byte == b':').step_by(2).any(|codes| codes.contains(&b'O'))
    }

    /// A contiguous copy of the bytes, in the order of the elements.
    fn copied(&self, py: Python<'_>) -> PyResult<Vec<u8>> {
        const ROWS_FIRST: c_char = b'C' as c_char;
        let mut bytes = vec![0_u8; self.len()];
        // Python 3.10 declares the argument as mutable, and does not write to it.
        let raw = ptr::from_ref(self.raw()).cast_mut();
        // SAFETY: the buffer was filled by its exporter, and the vector has exactly `len` bytes.
        let status =
            unsafe { ffi::PyBuffer_ToContiguous(bytes.as_mut_ptr().cast(), raw, self.raw().len, ROWS_FIRST) };
        if status == -1 { Err(PyErr::fetch(py)) } else { Ok(bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it is taken out only here, and `self` is not used afterwards.
        let lent = unsafe { ManuallyDrop::take(&mut self.0) };
        runtime::give_back(|py| lent.release(py));
    }
}

/// The device that has these bytes. An exporter may be wrong, so the driver is asked.
fn found(py: Python<'_>, start: NonNull<u8>, len: usize, stream: Stream) -> PyResult<Option<Place>> {
    if len == 0 {
        return Ok(None);
    }
    let start = start.as_ptr().expose_provenance() as u64;
    match Finder::default().find(start, len as u64) {
        Ok(device) => Ok(Some(Place::new(device, stream))),
        Err(error) => Err(failed(py, &error)),
    }
}

fn failed(py: Python<'_>, error: &DeviceError) -> PyErr {
    errors::raise(py, &Error::Device { what: error.to_string() })
}

fn not_on_device(array: &Bound<'_, PyAny>) -> PyErr {
    let hint = "leave out `stream`: a get into host memory is complete when it returns";
    invalid(array.py(), format!("`stream` is given, and the buffer is not on a CUDA device\n\nhint: {hint}"))
}

fn not_contiguous(py: Python<'_>) -> PyErr {
    invalid(
        py,
        "the device memory is not contiguous\n\nhint: give a contiguous tensor, as in `tensor.contiguous()`",
    )
}

fn on_device(object: &Bound<'_, PyAny>) -> PyErr {
    let hint = "copy it to the host first, as in `tensor.cpu()`";
    wrong_type("the argument must be in host memory, and it is in device memory", object, hint)
}

fn no_value(value: &Bound<'_, PyAny>) -> PyErr {
    let hint = if value.is_instance_of::<pyo3::types::PyString>() {
        "encode it first, as in `value.encode()`"
    } else if value.is_none() {
        "to remove an object, use `delete`"
    } else {
        "give bytes, a bytearray, a memoryview, an array or a tensor"
    };
    wrong_type("a value is a bytes-like object or has `__dlpack__`", value, hint)
}

/// Why a buffer is not writable.
fn not_writable(buffer: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let readable = Buffer::get(buffer, ffi::PyBUF_FULL_RO);
    if readable.is_ok_and(|readable| !readable.is_writable()) { read_only(buffer) } else { error }
}

fn read_only(buffer: &Bound<'_, PyAny>) -> PyErr {
    let name = buffer.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
    let hint = "give a bytearray, or an array that owns its memory";
    PyTypeError::new_err(format!("the {name} is read-only\n\nhint: {hint}"))
}
