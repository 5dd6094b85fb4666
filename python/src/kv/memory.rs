//! Memory of Python objects, as pages that our threads copy from and to.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use pyo3::prelude::*;
use tiffin_client::gpu::Stream;
use tiffin_kv_exec::{CudaDevice, CudaError, CudaLayer, Pages};

use crate::memory::Memory;
use crate::runtime;

/// Releases the memory on a thread that may wait for the interpreter. The last page may be dropped by a
/// thread that must not wait.
struct Borrowed<T: Send + 'static>(ManuallyDrop<T>);

impl<T: Send + 'static> Drop for Borrowed<T> {
    fn drop(&mut self) {
        // SAFETY: it is taken out only here, and `self` is not used afterwards.
        let memory = unsafe { ManuallyDrop::take(&mut self.0) };
        runtime::run_attached(Box::new(move |_| drop(memory)));
    }
}

/// Divides the memory into `count` pages of one size; `None` if that is not possible.
pub(super) fn pages(memory: Memory, count: u32) -> Option<Pages> {
    let bytes = memory.as_target();
    let (start, len) = (NonNull::new(bytes.as_mut_ptr())?, bytes.len());
    if count == 0 || len == 0 || !len.is_multiple_of(count as usize) {
        return None;
    }
    let owner = Borrowed(ManuallyDrop::new(memory));
    // SAFETY: the memory stays mapped and writable at its address while its owner lives, on any thread (see
    // `crate::memory`). Rust accesses it only through such ranges.
    Some(unsafe { Pages::borrowed(start, count, len / count as usize, Box::new(owner)) })
}

/// The arrays of a device, and the object whose stream the model uses.
pub(super) struct Layers {
    pub(super) memories: Vec<Memory>,
    pub(super) _stream: Option<Py<PyAny>>,
}

/// A device of arrays that are in memory of a CUDA device and have `count` rows each.
pub(super) fn device(
    stream: Stream,
    lent: Layers,
    count: u32,
    host: Arc<Pages>,
) -> Result<CudaDevice, CudaError> {
    let layer = |memory: &Memory| {
        let start = NonNull::new(memory.as_target().as_mut_ptr()).unwrap_or(NonNull::dangling());
        CudaLayer { start, row_bytes: memory.len() / count.max(1) as usize }
    };
    let layers = lent.memories.iter().map(layer).collect();
    let owner = Borrowed(ManuallyDrop::new(lent));
    // SAFETY: the arrays stay allocated while their owner lives, and so does the stream of an object. A
    // caller that gives a number promises that its stream exists.
    unsafe { CudaDevice::new(stream, layers, count, host, Box::new(owner)) }
}
