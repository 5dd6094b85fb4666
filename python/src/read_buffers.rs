//! Buffers for objects that are read into `bytes`. They are allocated when the size is known, filled once,
//! and never copied.
//!
//! A large object is read directly into a new `bytes` object. For a small one it is cheaper to copy it later
//! than to attach to the interpreter in the middle of a call.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tiffin_client::{Landing, TargetBuf};

use crate::runtime;

/// The minimum size of an object that is read directly into its `bytes`.
const DIRECT_BYTES_MIN: usize = 64 << 10;

/// Buffers for the objects of one call. Blocks are only added while it is borrowed, so that ranges in them
/// stay valid.
pub(crate) struct ReadBuffers {
    /// The blocks of each object, with their sizes.
    items: Vec<Mutex<Vec<(usize, Block)>>>,
    ranges: Vec<Option<Range<u64>>>,
}

enum Block {
    Direct(Py<PyBytes>),
    Small(Vec<u8>),
    /// The allocation failed.
    Failed(PyErr),
}

impl ReadBuffers {
    /// Buffers for objects, or for these ranges of them.
    pub(crate) fn new(ranges: Vec<Option<Range<u64>>>) -> Self {
        Self { items: ranges.iter().map(|_| Mutex::default()).collect(), ranges }
    }

    /// The `bytes` of an object of that size, which was read into its last buffer.
    pub(crate) fn take(&self, py: Python<'_>, item: usize, len: u64) -> PyResult<Py<PyAny>> {
        let block = self.items.get(item).and_then(|blocks| lock(blocks).pop()).map(|(_, block)| block);
        match block {
            Some(Block::Direct(bytes)) => {
                assert_eq!(bytes.as_bytes(py).len() as u64, len, "an object and its buffer differ in size");
                Ok(bytes.into_any())
            }
            Some(Block::Small(bytes)) => {
                assert_eq!(bytes.len() as u64, len, "an object and its buffer differ in size");
                Ok(copied(py, &bytes)?.into_any().unbind())
            }
            Some(Block::Failed(error)) => Err(error),
            None => Err(PyMemoryError::new_err(format!("{len} bytes exceed the maximum"))),
        }
    }

    fn make(len: usize) -> Block {
        if len < DIRECT_BYTES_MIN {
            return Block::Small(vec![0; len]);
        }
        let made = runtime::enter(|py| {
            // SAFETY: without a source, this makes an uninitialised object of that size for us to fill.
            let bytes = unsafe { ffi::PyBytes_FromStringAndSize(std::ptr::null(), len as ffi::Py_ssize_t) };
            // SAFETY: a new reference to an object of that type, or null if the allocation failed.
            let bytes = unsafe { Bound::from_owned_ptr_or_err(py, bytes) }?;
            PyResult::Ok(bytes.cast_into::<PyBytes>()?.unbind())
        });
        match made {
            Some(Ok(bytes)) => Block::Direct(bytes),
            Some(Err(error)) => Block::Failed(error),
            None => Block::Failed(PyMemoryError::new_err("the interpreter is shutting down")),
        }
    }
}

/// A `bytes` object with these bytes. Raises `MemoryError` if there is no memory for it, where `PyBytes::new`
/// panics.
pub(crate) fn copied<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let len = ffi::Py_ssize_t::try_from(bytes.len())?;
    // SAFETY: the source has that many bytes, which the call copies.
    let made = unsafe { ffi::PyBytes_FromStringAndSize(bytes.as_ptr().cast(), len) };
    // SAFETY: a new reference to an object of that type, or null if the allocation failed.
    Ok(unsafe { Bound::from_owned_ptr_or_err(py, made) }?.cast_into()?)
}

impl<'a> Landing<'a> for &'a ReadBuffers {
    fn land(&self, item: usize, len: u64) -> Option<Vec<TargetBuf<'a>>> {
        let len = usize::try_from(len).ok().filter(|len| *len <= isize::MAX as usize)?;
        let mut blocks = lock(self.items.get(item)?);
        if blocks.last().is_none_or(|(of_len, _)| *of_len != len) {
            blocks.push((len, ReadBuffers::make(len)));
        }
        let start = blocks.last_mut()?.1.start();
        // SAFETY: the block has exactly that many bytes, at an address that does not change when its owner
        // moves. It lives as long as the borrow of `self`. No other code has the address before the block
        // is taken out.
        Some(vec![unsafe { TargetBuf::new(start?, len) }])
    }

    fn range(&self, item: usize) -> Option<Range<u64>> {
        self.ranges.get(item)?.clone()
    }
}

impl Block {
    /// The address of its bytes, for writing.
    fn start(&mut self) -> Option<NonNull<u8>> {
        match self {
            // SAFETY: it is a `bytes` object, so that this only computes an address, which needs no
            // interpreter.
            Self::Direct(bytes) => NonNull::new(unsafe { ffi::PyBytes_AsString(bytes.as_ptr()) }.cast()),
            Self::Small(bytes) => NonNull::new(bytes.as_mut_ptr()),
            Self::Failed(_) => None,
        }
    }
}

fn lock(blocks: &Mutex<Vec<(usize, Block)>>) -> MutexGuard<'_, Vec<(usize, Block)>> {
    blocks.lock().unwrap_or_else(PoisonError::into_inner)
}
