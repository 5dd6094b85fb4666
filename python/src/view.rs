//! A view of an object in place, as a Python buffer.
//!
//! Each exported buffer (buffer protocol or DLPack) owns a reference to the [`Sight`]. The view ends when
//! it was released and the last buffer is gone. Only then may the node reuse the memory.
//!
//! **Invariant:** bytes are exported only in the process that began the view. A forked child has no mapping
//! of them. It neither ends the view nor frees any part of it.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator, PyMemoryView};
use tiffin_client::Error;
use tiffin_types::units::Count;

use crate::cuda::{self, MappedArray};
use crate::dlpack::{self, DEVICE_CPU, Export, Rights};
use crate::errors;
use crate::process::Ours;
use crate::read_buffers::copied;

/// The state that a view and its exported buffers share.
pub(crate) type Sight = Arc<Ours<tiffin_client::View>>;

/// An object's bytes in place: no copy is made if the store's memory can be mapped.
///
/// A view is a read-only buffer. Any consumer of buffers can use it: `memoryview(view)`, `bytes(view)`,
/// `numpy.frombuffer(view, dtype)`, `numpy.from_dlpack(view)`, or a file's `write(view)`. A slice such as
/// `view[8:]` is a `memoryview`, and copies nothing either.
///
/// The bytes do not change while the view or one of its buffers exists, even if the object is deleted or
/// replaced meanwhile. They use memory of the store until the view is released *and* every buffer made from
/// it is gone.
///
/// >>> import tiffin
/// >>> store = tiffin.connect()
/// >>> store.put("k", b"hello")
/// True
/// >>> with store.view("k") as view:
/// ...     print(len(view), view.is_borrowed, view[0], bytes(view[1:3]))
/// 5 True 104 b'el'
///
/// A view belongs to the process that requested it. In a forked child it raises `tiffin.Closed`; arrays that
/// were made from it before the fork must not be used there, because their memory is not mapped.
#[pyclass(frozen, module = "tiffin")]
pub(crate) struct View {
    sight: Ours<Mutex<Option<Sight>>>,
    len: usize,
    is_borrowed: bool,
    generation: (u64, u64),
}

impl View {
    pub(crate) fn new(view: tiffin_client::View) -> Self {
        let generation = view.generation();
        Self {
            len: view.len(),
            is_borrowed: view.is_borrowed(),
            generation: (generation.epoch, generation.counter),
            sight: Ours::new(Mutex::new(Some(Arc::new(Ours::new(view))))),
        }
    }

    fn sight(&self, py: Python<'_>) -> PyResult<Sight> {
        if !self.sight.is_here() {
            return Err(errors::raise(py, &Error::Forked));
        }
        self.lock().clone().ok_or_else(|| errors::closed(py, "the view was released"))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Sight>> {
        self.sight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl View {
    /// Whether the bytes are in place. If not, they are a copy: the store is on another host, or the object
    /// is in several pieces.
    #[getter]
    fn is_borrowed(&self) -> bool {
        self.is_borrowed
    }

    /// The number of bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.len
    }

    /// Which put of the key this is.
    #[getter]
    fn generation(&self) -> (u64, u64) {
        self.generation
    }

    /// Releases the view. Buffers that were made from it stay valid, and keep the memory while they exist.
    /// Releasing twice is harmless.
    fn release(&self) {
        if self.sight.is_here() {
            drop(self.lock().take());
        }
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().sight(slf.py())?;
        Ok(slf)
    }

    fn __exit__(&self, _kind: &Bound<'_, PyAny>, _error: &Bound<'_, PyAny>, _traceback: &Bound<'_, PyAny>) {
        self.release();
    }

    fn __len__(&self) -> usize {
        self.len
    }

    /// A byte as an `int`; for a slice, a `memoryview` of these bytes in place.
    fn __getitem__<'py>(slf: &Bound<'py, Self>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        PyMemoryView::from(slf)?.get_item(index)
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyIterator>> {
        PyMemoryView::from(slf)?.try_iter()
    }

    /// A copy of the bytes.
    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let sight = self.sight(py)?;
        let bytes = sight.bytes().map_err(|error| errors::raise(py, &error))?;
        copied(py, bytes)
    }

    fn __repr__(&self) -> String {
        let how = match () {
            () if !self.sight.is_here() => "of the parent process",
            () if self.lock().is_none() => "released",
            () if self.is_borrowed => "borrowed",
            () => "copied",
        };
        format!("<tiffin.View of {}, {how}>", Count(self.len as u64, "byte"))
    }

    /// The bytes for a library with DLPack 1.0 or later, which knows read-only memory.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let hint = "use `memoryview(view)` or `numpy.frombuffer(view)`";
        if max_version.is_none_or(|(major, _)| major < 1) {
            let what = "the bytes are read-only, which DLPack supports only since version 1.0";
            return Err(PyBufferError::new_err(format!("{what}\n\nhint: {hint}")));
        }
        if stream.is_some() || dl_device.is_some_and(|device| device != DEVICE_CPU) {
            let what = "the bytes are in host memory";
            return Err(PyBufferError::new_err(format!(
                "{what}\n\nhint: copy them to the device from there"
            )));
        }
        let export =
            |start, len, rights| Export { start, len, device: DEVICE_CPU, rights, is_versioned: true };
        let sight = self.sight(py)?;
        let bytes = sight.bytes().map_err(|error| errors::raise(py, &error))?;
        if copy == Some(true) {
            let copied = bytes.to_vec();
            let (start, len) = (copied.as_ptr(), copied.len());
            // SAFETY: a vector's bytes keep their address while it lives, and only the capsule has this
            // vector.
            return unsafe { dlpack::lend(py, export(start, len, Rights::Copied), Box::new(copied)) };
        }
        let (start, len) = (bytes.as_ptr(), bytes.len());
        // SAFETY: the bytes do not change or move while a reference to the sight lives.
        unsafe { dlpack::lend(py, export(start, len, Rights::ReadOnly), Box::new(Arc::clone(&sight))) }
    }

    /// The bytes as an array that kernels of a CUDA device read in place, through the bus: an object with
    /// `__cuda_array_interface__` and `__dlpack__`, read-only, of type `uint8`.
    ///
    /// The memory is registered with the driver first, for at most `timeout` seconds. Raises `BufferError` if
    /// it is not by then, and for views that are copies. The array keeps the bytes as a buffer does: it must
    /// live until the kernels that read it have ended.
    #[pyo3(signature = (device = None, *, timeout = 10.0))]
    fn cuda_array(
        &self,
        py: Python<'_>,
        device: Option<&Bound<'_, PyAny>>,
        timeout: f64,
    ) -> PyResult<MappedArray> {
        let device = device.map_or(Ok(0), cuda::device_number)?;
        MappedArray::new(py, self.sight(py)?, device, timeout)
    }

    /// The device of the bytes: host memory.
    fn __dlpack_device__(&self) -> (i32, i32) {
        DEVICE_CPU
    }

    /// Exports the bytes to a buffer, which owns a reference to the sight.
    ///
    /// # Safety
    /// Python calls it with a place for one buffer.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let py = slf.py();
        let sight = match slf.get().sight(py) {
            Ok(sight) => sight,
            Err(error) => {
                // SAFETY: Python provides the buffer. A null `obj` says that nothing was exported.
                unsafe { (*view).obj = std::ptr::null_mut() };
                return Err(error);
            }
        };
        let bytes = sight.bytes().map_err(|error| errors::raise(py, &error))?;
        let (start, len) = (bytes.as_ptr().cast_mut().cast(), ffi::Py_ssize_t::try_from(bytes.len())?);
        // SAFETY: Python provides the buffer. The bytes do not change or move while a reference to the
        // sight lives, and they are marked read-only.
        unsafe {
            if ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 1, flags) == -1 {
                return Err(PyErr::fetch(py));
            }
            (*view).internal = Box::into_raw(Box::new(sight)).cast();
        }
        Ok(())
    }

    /// Drops the buffer's reference to the sight.
    ///
    /// # Safety
    /// Python calls it with a buffer that [`Self::__getbuffer__`] filled, once.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: the box was made for this buffer.
        drop(unsafe { Box::from_raw((*view).internal.cast::<Sight>()) });
    }
}
