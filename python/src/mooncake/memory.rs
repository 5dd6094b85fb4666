//! Memory that is given by an address, lent through the buffer protocol, or returned as a `BufferHandle`.
//! This module has all `unsafe` code of the drop-in except that of `owned`.
//!
//! Mooncake's API consists of addresses. `checks` rejects those that are not memory of this process; here a
//! range must not be null or wrap around. The caller must keep the memory mapped and not change it until
//! the call returns.

use std::ffi::{c_int, c_void};
use std::iter;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyBufferError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};
use pyo3::{buffer::PyUntypedBuffer, ffi};
use tiffin_client::arena::{Arena, Block};
use tiffin_client::gpu::Place;
use tiffin_client::{Landing, SourceBuf, TargetBuf};

use super::pool::{self, Lease, Leased};

/// The `len` bytes at `address`, on a device or in this process, for reading during the caller's call; `None`
/// if no memory can be there.
pub(crate) fn source<'a>(address: u64, len: u64, place: Option<&'a Place>) -> Option<SourceBuf<'a>> {
    let (start, len) = range(address, len)?;
    // SAFETY: the caller of the Python method promises that these bytes are mapped or allocated until it
    // returns, and the range is not null and does not wrap around.
    Some(unsafe {
        match place {
            None => SourceBuf::new(start, len),
            Some(place) => SourceBuf::on_device(start, len, place),
        }
    })
}

/// The `len` bytes at `address`, on a device or in this process, for writing during the caller's call; `None`
/// if no memory can be there.
pub(crate) fn target<'a>(address: u64, len: u64, place: Option<&'a Place>) -> Option<TargetBuf<'a>> {
    let (start, len) = range(address, len)?;
    // SAFETY: as for `source`; the caller also promises that they may be written.
    Some(unsafe {
        match place {
            None => TargetBuf::new(start, len),
            Some(place) => TargetBuf::on_device(start, len, place),
        }
    })
}

fn range(address: u64, len: u64) -> Option<(NonNull<u8>, usize)> {
    let (address, len) = (usize::try_from(address).ok()?, usize::try_from(len).ok()?);
    let fits = isize::try_from(len).is_ok() && address.checked_add(len).is_some();
    let start = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(address))?;
    fits.then_some((start, len))
}

/// A value given through the buffer protocol. It stays exported, and so keeps its address, until this is
/// dropped.
pub(crate) enum Lent<'py> {
    /// The value itself, which is contiguous.
    Whole(PyUntypedBuffer),
    /// A contiguous copy.
    Copied(Bound<'py, PyBytes>),
}

impl<'py> Lent<'py> {
    /// Borrows every byte of a value, with items of any size and layout.
    pub(crate) fn new(value: &Bound<'py, PyAny>) -> PyResult<Self> {
        match PyUntypedBuffer::get(value) {
            Ok(buffer) if buffer.is_c_contiguous() => return Ok(Self::Whole(buffer)),
            // PyO3 takes no buffer without dimensions, such as that of a numpy scalar.
            Err(error) if !error.is_instance_of::<PyBufferError>(value.py()) => return Err(error),
            _ => {}
        }
        let copied = PyMemoryView::from(value)?.call_method0("tobytes")?.cast_into::<PyBytes>();
        Ok(Self::Copied(copied.map_err(PyErr::from)?))
    }

    /// The same, for values that must be one-dimensional bytes.
    pub(crate) fn bytes_like(value: &Bound<'py, PyAny>) -> PyResult<Self> {
        let is_bytes = match PyUntypedBuffer::get(value) {
            Ok(buffer) => buffer.dimensions() == 1 && buffer.item_size() == 1,
            Err(error) if !error.is_instance_of::<PyBufferError>(value.py()) => return Err(error),
            Err(_) => false,
        };
        if is_bytes { Self::new(value) } else { Err(PyRuntimeError::new_err("parts must be 1-D bytes-like")) }
    }

    /// The number of bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Whole(buffer) => buffer.len_bytes() as u64,
            Self::Copied(bytes) => bytes.as_bytes().len() as u64,
        }
    }

    /// The bytes.
    pub(crate) fn source(&self) -> SourceBuf<'_> {
        match self {
            Self::Copied(bytes) => SourceBuf::from(bytes.as_bytes()),
            Self::Whole(buffer) => match NonNull::new(buffer.buf_ptr().cast()) {
                // SAFETY: an exported buffer stays mapped at its address while `self` is borrowed. It is
                // C-contiguous, so that its bytes are the first `len_bytes`.
                Some(start) => unsafe { SourceBuf::new(start, buffer.len_bytes()) },
                None => SourceBuf::from(&[] as &[u8]),
            },
        }
    }
}

/// Space in the local buffer for the objects of one call. Blocks are only added while it is borrowed, so
/// that a range in one stays valid.
pub(crate) struct Blocks {
    arena: Arc<Arena>,
    items: Vec<Mutex<Vec<Block>>>,
}

impl Blocks {
    /// Space for a number of objects.
    pub(crate) fn new(arena: Arc<Arena>, count: usize) -> Self {
        Self { arena, items: (0..count).map(|_| Mutex::default()).collect() }
    }

    /// The last block of each object that was read. All other blocks are freed.
    pub(crate) fn take(self, is_read: impl Iterator<Item = bool>) -> Vec<Option<Block>> {
        let items = self.items.into_iter().zip(is_read.chain(iter::repeat(false)));
        let taken = items.map(|(blocks, is_read)| {
            let mut blocks = blocks.into_inner().unwrap_or_else(PoisonError::into_inner);
            let block = blocks.pop_if(|_| is_read);
            blocks.into_iter().for_each(Block::discard);
            block
        });
        taken.collect()
    }
}

impl<'a> Landing<'a> for &'a Blocks {
    fn land(&self, item: usize, len: u64) -> Option<Vec<TargetBuf<'a>>> {
        let mut blocks = self.items.get(item)?.lock().unwrap_or_else(PoisonError::into_inner);
        if blocks.last().is_none_or(|block| block.len() as u64 != len) {
            blocks.push(self.arena.allocate(len)?);
        }
        let block = blocks.last()?;
        let (start, len) = (block.start(), block.len());
        // SAFETY: the block has exactly that many bytes, at an address that does not change when it moves.
        // It lives as long as the borrow of `self`. No other code has the address before the block is taken
        // out.
        Some(vec![unsafe { TargetBuf::new(start, len) }])
    }
}

/// The bytes of an object in the local buffer, writable. They stay valid while the handle or a view of it
/// lives, and after that until the local buffer needs the space again.
#[pyclass(module = "mooncake.store", frozen, weakref)]
pub(crate) struct BufferHandle {
    block: Block,
}

impl BufferHandle {
    /// Takes ownership of the bytes.
    pub(crate) fn new(block: Block) -> Self {
        Self { block }
    }
}

#[pymethods]
impl BufferHandle {
    /// The address of the first byte.
    fn ptr(&self) -> usize {
        self.block.start().as_ptr().expose_provenance()
    }

    /// The number of bytes.
    fn size(&self) -> usize {
        self.block.len()
    }

    fn __len__(&self) -> usize {
        self.block.len()
    }

    // SAFETY: called by the interpreter, with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("the view is null"));
        }
        let this = slf.get();
        let len = isize::try_from(this.block.len()).map_err(|_| PyBufferError::new_err("too many bytes"))?;
        let wanted = |flag| flags & flag == flag;
        // SAFETY: `view` is valid for writes. The reference in `obj` keeps the handle and its bytes alive.
        // `shape` and `strides` point into the view itself, which is permitted, and the format is static.
        unsafe {
            (*view).buf = this.block.start().as_ptr().cast::<c_void>();
            (*view).len = len;
            (*view).readonly = 0;
            (*view).itemsize = 1;
            (*view).format =
                if wanted(ffi::PyBUF_FORMAT) { c"b".as_ptr().cast_mut() } else { ptr::null_mut() };
            (*view).ndim = 1;
            (*view).shape = if wanted(ffi::PyBUF_ND) { &raw mut (*view).len } else { ptr::null_mut() };
            (*view).strides =
                if wanted(ffi::PyBUF_STRIDES) { &raw mut (*view).itemsize } else { ptr::null_mut() };
            (*view).suboffsets = ptr::null_mut();
            (*view).internal = ptr::null_mut();
            (*view).obj = slf.into_any().into_ptr();
        }
        Ok(())
    }
}

/// Exports the bytes of a lease. It has no other use than its views.
#[pyclass(module = "mooncake.store", frozen)]
pub(crate) struct BufferLeaseView {
    lease: Arc<Lease>,
}

impl BufferLeaseView {
    /// Exports the bytes of a lease.
    pub(crate) fn new(lease: Arc<Lease>) -> Self {
        Self { lease }
    }
}

#[pymethods]
impl BufferLeaseView {
    /// The bytes, writable: a new view each time.
    #[getter]
    fn buffer<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        pool::view_of(py, &self.lease)
    }

    /// Exports the bytes to a buffer, which owns a reference to the memory.
    ///
    /// # Safety
    /// Python calls it with a place for one buffer.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("the view is null"));
        }
        let Some(memory) = slf.get().lease.memory() else {
            // SAFETY: Python provides the buffer. A null `obj` says that nothing was exported.
            unsafe { (*view).obj = ptr::null_mut() };
            return Err(PyBufferError::new_err("Error getting buffer"));
        };
        let (start, len) = memory.range();
        let len = ffi::Py_ssize_t::try_from(len)?;
        // SAFETY: Python provides the buffer. The bytes keep their address and may be written while the
        // reference in `internal` lives, which is released with the buffer.
        unsafe {
            if ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.as_ptr().cast(), len, 0, flags) == -1 {
                return Err(PyErr::fetch(slf.py()));
            }
            (*view).internal = Arc::into_raw(memory).cast_mut().cast();
        }
        Ok(())
    }

    /// Drops the buffer's reference to the memory.
    ///
    /// # Safety
    /// Python calls it with a buffer that [`Self::__getbuffer__`] filled, once.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: the reference was made for this buffer.
        drop(unsafe { Arc::from_raw((*view).internal.cast_const().cast::<Leased>()) });
    }
}
