//! Memory of CUDA devices in Python: arrays of others, arrays that a get makes, and views that kernels read
//! in place.
//!
//! Arrays of others report their memory by `__cuda_array_interface__`; `dlpack` has the other protocol. Ours
//! have both. No array library is needed.
//!
//! **Invariant:** the memory of an exported array stays allocated, or mapped for the device, while the array
//! or a capsule of it lives.

use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyBufferError, PyMemoryError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use tiffin_client::gpu::{self, DeviceError, Place, Stream};
use tiffin_client::{Error, Landing, TargetBuf};
use tiffin_types::units::Count;

use crate::dlpack::{self, Export, KIND_CUDA, Rights};
use crate::errors::{self, invalid, wrong_type};
use crate::methods::Any;
use crate::view::Sight;

/// How often a mapping is asked whether it is registered.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// What `__cuda_array_interface__` reports.
pub(crate) struct Interface {
    pub(crate) address: usize,
    pub(crate) len: usize,
    pub(crate) is_read_only: bool,
    pub(crate) is_contiguous: bool,
    /// The stream whose work comes before a transfer.
    pub(crate) stream: Stream,
}

impl Interface {
    /// Whether an object has the interface.
    pub(crate) fn is_at(object: &Any<'_>) -> PyResult<bool> {
        object.hasattr(intern!(object.py(), "__cuda_array_interface__"))
    }

    /// Reads the interface of an object.
    pub(crate) fn of(object: &Any<'_>) -> PyResult<Self> {
        let py = object.py();
        let malformed = |what: &str| {
            invalid(py, format!("`__cuda_array_interface__` has no valid {what}\n\nhint: give a plain array"))
        };
        let given = object.getattr(intern!(py, "__cuda_array_interface__"))?;
        let given = given.cast::<PyDict>().map_err(|_| malformed("content"))?;
        let item = |name: &str| PyResult::Ok(given.get_item(name)?.filter(|it| !it.is_none()));
        let data = item("data")?.ok_or_else(|| malformed("data"))?;
        let (address, is_read_only): (usize, bool) = data.extract().map_err(|_| malformed("data"))?;
        let shape = item("shape")?.ok_or_else(|| malformed("shape"))?;
        let shape: Vec<usize> = shape.extract().map_err(|_| malformed("shape"))?;
        let code: String = item("typestr")?.ok_or_else(|| malformed("typestr"))?.extract()?;
        let element_bytes: usize =
            code.get(2..).and_then(|it| it.parse().ok()).ok_or_else(|| malformed("typestr"))?;
        let strides: Option<Vec<i64>> = item("strides")?.map(|it| it.extract()).transpose()?;
        if item("mask")?.is_some() || strides.as_ref().is_some_and(|it| it.len() != shape.len()) {
            return Err(malformed("strides or mask"));
        }
        let len = shape.iter().try_fold(element_bytes, |bytes, axis| bytes.checked_mul(*axis));
        let len = len.ok_or_else(|| malformed("shape"))?;
        let is_contiguous = len == 0 || strides.is_none_or(|it| is_in_order(&shape, &it, element_bytes));
        let stream = match given.get_item("stream")? {
            // Before version 3 of the interface there is no word about it.
            None => Stream::Legacy,
            Some(none) if none.is_none() => Stream::Synchronized,
            Some(handle) => match handle.extract::<u64>().map_err(|_| malformed("stream"))? {
                // The stream of each thread is another one, and transfers run in threads of their own.
                0 | 2 => return Err(malformed("stream")),
                handle => Stream::of_handle(handle),
            },
        };
        Ok(Self { address, len, is_read_only, is_contiguous, stream })
    }
}

/// Whether elements are contiguous, in their order.
fn is_in_order(shape: &[usize], strides: &[i64], element_bytes: usize) -> bool {
    let mut expected = element_bytes;
    shape.iter().zip(strides).rev().all(|(count, stride)| {
        let is_next = *count == 1 || usize::try_from(*stride) == Ok(expected);
        expected = expected.saturating_mul(*count);
        is_next
    })
}

/// The number of a CUDA device: from a number, from text such as `cuda:1`, or from an object whose text that
/// is, such as `torch.device`.
pub(crate) fn device_number(given: &Any<'_>) -> PyResult<u32> {
    match target_device(given)? {
        Some(device) => Ok(device),
        None => Err(wrong_type("a CUDA device is text such as \"cuda:0\"", given, "name a CUDA device")),
    }
}

/// The same, where `None` is the host, `cpu`.
pub(crate) fn target_device(given: &Any<'_>) -> PyResult<Option<u32>> {
    if let Ok(number) = given.extract::<u32>() {
        return Ok(Some(number));
    }
    let text = given.str()?.to_string();
    match text.split_once(':').map_or((text.as_str(), "0"), |it| it) {
        ("cpu", _) => Ok(None),
        ("cuda", number) if number.parse::<u32>().is_ok() => Ok(number.parse().ok()),
        _ if given.is_instance_of::<PyString>() => {
            let hint = "give \"cpu\", \"cuda\" or \"cuda:1\"";
            Err(invalid(given.py(), format!("device={text:?} is unknown\n\nhint: {hint}")))
        }
        _ => Err(wrong_type("a device is text such as \"cuda:0\"", given, "name a device")),
    }
}

/// A stream: its handle, or an object of torch (`cuda_stream`), CuPy (`ptr`) or another library
/// (`__cuda_stream__`) that has one.
pub(crate) fn stream(given: &Any<'_>) -> PyResult<Stream> {
    let py = given.py();
    let handle = if let Some(method) = given.getattr_opt(intern!(py, "__cuda_stream__"))? {
        // Version and handle.
        method.call0()?.extract::<(u64, u64)>().map(|it| it.1)
    } else if let Some(handle) = given.getattr_opt(intern!(py, "cuda_stream"))? {
        handle.extract()
    } else if let Some(handle) = given.getattr_opt(intern!(py, "ptr"))? {
        handle.extract()
    } else {
        given.extract()
    };
    let hint = "give a stream of torch or CuPy, or its handle as an `int`";
    match handle {
        // That of each thread is another one, and copies are queued from threads of their own.
        Ok(2) => Err(invalid(py, format!("stream=2 is the stream of each thread\n\nhint: {hint}"))),
        Ok(handle) => Ok(Stream::of_handle(handle)),
        Err(_) => Err(wrong_type("`stream` has no handle", given, hint)),
    }
}

/// The entries of `__cuda_array_interface__` for bytes whose work has ended.
fn interface(py: Python<'_>, address: u64, len: usize, is_read_only: bool) -> PyResult<Bound<'_, PyDict>> {
    let entries = PyDict::new(py);
    entries.set_item("shape", (len,))?;
    entries.set_item("typestr", "|u1")?;
    entries.set_item("data", (address, is_read_only))?;
    entries.set_item("strides", py.None())?;
    entries.set_item("stream", py.None())?;
    entries.set_item("version", 3)?;
    Ok(entries)
}

/// A copy of an object in memory of a CUDA device: `store.get(key, device="cuda:0")`.
///
/// It is an array of type `uint8` with `__cuda_array_interface__` and `__dlpack__`, so that array libraries
/// use it without a copy: `torch.from_dlpack(array).view(torch.float16)`, `cupy.asarray(array)`. The memory
/// is freed with the array and everything made from it.
#[pyclass(frozen, module = "tiffin")]
pub(crate) struct DeviceArray {
    memory: Arc<gpu::Memory>,
    len: usize,
    device: u32,
}

#[pymethods]
impl DeviceArray {
    /// The number of bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.len
    }

    /// The device, such as `cuda:0`.
    #[getter]
    fn device(&self) -> String {
        format!("cuda:{}", self.device)
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        interface(py, self.memory.start(), self.len, false)
    }

    /// The bytes for a library with DLPack. The copy has ended, so that any stream may use them.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Any<'py>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _any = stream;
        refuse_moves(self.__dlpack_device__(), dl_device, copy)?;
        let start = ptr::with_exposed_provenance(self.memory.start() as usize);
        let (rights, is_versioned) = (Rights::Shared, max_version.is_some_and(|(major, _)| major >= 1));
        let export = Export { start, len: self.len, device: self.__dlpack_device__(), rights, is_versioned };
        // SAFETY: the memory is allocated while a reference to it lives.
        unsafe { dlpack::lend(py, export, Box::new(Arc::clone(&self.memory))) }
    }

    /// The device of the bytes.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (KIND_CUDA, self.device as i32)
    }

    fn __len__(&self) -> usize {
        self.len
    }

    fn __repr__(&self) -> String {
        format!("<tiffin.DeviceArray of {} on cuda:{}>", Count(self.len as u64, "byte"), self.device)
    }
}

/// An object in the store's memory, as kernels of a CUDA device read it: `view.cuda_array()`.
///
/// It is a read-only array of type `uint8` with `__cuda_array_interface__` and `__dlpack__`. It keeps the
/// bytes as a buffer of the view does.
#[pyclass(frozen, module = "tiffin")]
pub(crate) struct MappedArray {
    sight: Sight,
    address: u64,
    len: usize,
    device: u32,
}

impl MappedArray {
    /// Waits until the memory of a view is registered with the driver.
    pub(crate) fn new(py: Python<'_>, sight: Sight, device: u32, timeout: f64) -> PyResult<Self> {
        let time = Duration::try_from_secs_f64(timeout);
        let time = time.map_err(|_| invalid(py, "the timeout is negative\n\nhint: give seconds"))?;
        let deadline = Instant::now().checked_add(time);
        let hint = "copy the object to the device, with `store.get(key, device=...)`";
        if !sight.is_borrowed() {
            return Err(PyBufferError::new_err(format!("the view is a copy\n\nhint: {hint}")));
        }
        gpu::load().map_err(|error| failed(py, &error))?;
        let len = sight.len();
        loop {
            let address = if len == 0 { Some(0) } else { sight.device_address(device) };
            if let Some(address) = address {
                return Ok(Self { sight, address, len, device });
            }
            if deadline.is_some_and(|it| Instant::now() >= it) {
                let what = "the memory of the store is not registered with the CUDA driver";
                return Err(PyBufferError::new_err(format!("{what}\n\nhint: {hint}")));
            }
            py.check_signals()?;
            py.detach(|| std::thread::park_timeout(LOOK_AGAIN));
        }
    }
}

#[pymethods]
impl MappedArray {
    /// The number of bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.len
    }

    /// The device whose kernels read it, such as `cuda:0`.
    #[getter]
    fn device(&self) -> String {
        format!("cuda:{}", self.device)
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        interface(py, self.address, self.len, true)
    }

    /// The bytes for a library with DLPack 1.0 or later, which knows read-only memory.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Any<'py>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _any = stream;
        refuse_moves(self.__dlpack_device__(), dl_device, copy)?;
        let start = ptr::with_exposed_provenance(self.address as usize);
        let (rights, is_versioned) = (Rights::ReadOnly, max_version.is_some_and(|(major, _)| major >= 1));
        let export = Export { start, len: self.len, device: self.__dlpack_device__(), rights, is_versioned };
        // SAFETY: the bytes do not change, and stay registered, while a reference to the sight lives.
        unsafe { dlpack::lend(py, export, Box::new(Arc::clone(&self.sight))) }
    }

    /// The device that reads the bytes.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (KIND_CUDA, self.device as i32)
    }

    fn __len__(&self) -> usize {
        self.len
    }

    fn __repr__(&self) -> String {
        format!("<tiffin.MappedArray of {} for cuda:{}>", Count(self.len as u64, "byte"), self.device)
    }
}

fn refuse_moves(here: (i32, i32), wanted: Option<(i32, i32)>, copy: Option<bool>) -> PyResult<()> {
    if wanted.is_some_and(|it| it != here) || copy == Some(true) {
        let hint = "import the array first, and copy it then";
        return Err(PyBufferError::new_err(format!("the array is exported without a copy\n\nhint: {hint}")));
    }
    Ok(())
}

fn failed(py: Python<'_>, error: &DeviceError) -> PyErr {
    errors::raise(py, &Error::Device { what: error.to_string() })
}

/// Memory of a device for the objects of one call. Blocks are only added while it is borrowed, so that ranges
/// in them stay valid.
pub(crate) struct DeviceBuffers {
    place: Place,
    /// The blocks of each object, with their sizes.
    items: Vec<Mutex<Vec<(usize, Block)>>>,
    ranges: Vec<Option<Range<u64>>>,
}

type Block = Result<Arc<gpu::Memory>, DeviceError>;

impl DeviceBuffers {
    /// Memory for objects, or for these ranges of them.
    pub(crate) fn new(device: u32, ranges: Vec<Option<Range<u64>>>) -> Self {
        // New memory has no work to wait for.
        let place = Place::new(device, Stream::Synchronized);
        Self { place, items: ranges.iter().map(|_| Mutex::default()).collect(), ranges }
    }

    /// The array of an object of that size, which was read into its last block.
    pub(crate) fn take(&self, py: Python<'_>, item: usize, len: u64) -> PyResult<Py<PyAny>> {
        let block = self.items.get(item).and_then(|blocks| lock(blocks).pop());
        match block {
            Some((len, Ok(memory))) => {
                let array = DeviceArray { memory, len, device: self.place.device() };
                Ok(Py::new(py, array)?.into_any())
            }
            Some((_, Err(error))) => Err(failed(py, &error)),
            None => Err(PyMemoryError::new_err(format!("{len} bytes exceed the maximum"))),
        }
    }
}

impl<'a> Landing<'a> for &'a DeviceBuffers {
    fn land(&self, item: usize, len: u64) -> Option<Vec<TargetBuf<'a>>> {
        let this: &'a DeviceBuffers = self;
        let len = usize::try_from(len).ok().filter(|len| *len <= isize::MAX as usize)?;
        let mut blocks = lock(this.items.get(item)?);
        if blocks.last().is_none_or(|(of_len, _)| *of_len != len) {
            // The driver allocates no empty memory.
            let made = gpu::Memory::allocate(this.place.device(), len.max(1) as u64);
            blocks.push((len, made.map(Arc::new)));
        }
        let start = blocks.last()?.1.as_ref().ok()?.start();
        let start = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(start as usize))?;
        // SAFETY: the block has that many bytes, and lives as long as the borrow of `self`. No other code has
        // the address before the block is taken out.
        Some(vec![unsafe { TargetBuf::on_device(start, len, &this.place) }])
    }

    fn range(&self, item: usize) -> Option<Range<u64>> {
        self.ranges.get(item)?.clone()
    }
}

fn lock(blocks: &Mutex<Vec<(usize, Block)>>) -> MutexGuard<'_, Vec<(usize, Block)>> {
    blocks.lock().unwrap_or_else(PoisonError::into_inner)
}
