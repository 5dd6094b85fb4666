//! Arrays of a CUDA device with a row for each page, as the device of an engine.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;
use tiffin_client::Error;
use tiffin_client::gpu::Stream;
use tiffin_kv_exec::{CudaDevice, CudaError, Pages};

use super::memory;
use crate::cuda;
use crate::errors::{self, invalid};
use crate::memory::Memory;
use crate::methods::Any;

/// The arrays of a device, until an engine takes them.
#[pyclass(frozen, module = "tiffin._native")]
pub(super) struct KvLayers {
    /// The number of pages.
    #[pyo3(get)]
    pages: u32,
    /// The number of bytes of a page in all layers.
    #[pyo3(get)]
    page_bytes: usize,
    pub(super) stream: Stream,
    /// The number of layers.
    pub(super) count: u32,
    groups: u32,
    lent: Mutex<Option<memory::Layers>>,
}

#[pymethods]
impl KvLayers {
    /// `stream` is the one on which the model computes. Loads are queued in so many groups of layers.
    #[new]
    fn new(py: Python<'_>, arrays: Vec<Any<'_>>, stream: Option<Any<'_>>, groups: u32) -> PyResult<Self> {
        let mut pages = None;
        let mut memories = Vec::with_capacity(arrays.len());
        for (layer, array) in arrays.iter().enumerate() {
            let memory = Memory::to_write(array)?;
            if memory.len() == 0 {
                let hint = "give arrays with a row for each page";
                return Err(invalid(py, format!("layer {layer} has no bytes\n\nhint: {hint}")));
            }
            if !memory.is_on_device() {
                let hint = "give arrays of one CUDA device, or one array in host memory";
                return Err(invalid(py, format!("layer {layer} is in host memory\n\nhint: {hint}")));
            }
            let (here, all) = (rows(array)?, *pages.get_or_insert(rows(array)?));
            if here != all {
                let hint = "give arrays with a row for each page";
                let what = format!("layer {layer} has {here} pages, and layer 0 has {all}");
                return Err(invalid(py, format!("{what}\n\nhint: {hint}")));
            }
            memories.push(memory);
        }
        let pages = pages.ok_or_else(|| raise(py, &CudaError::NoLayers))?;
        let page_bytes = memories.iter().map(|memory| memory.len() / pages as usize).sum();
        let lent = memory::Layers { memories, _stream: stream.as_ref().map(|it| it.clone().unbind()) };
        let stream = stream.as_ref().map_or(Ok(Stream::Legacy), cuda::stream)?;
        let count = arrays.len() as u32;
        Ok(Self { pages, page_bytes, stream, count, groups, lent: Mutex::new(Some(lent)) })
    }
}

impl KvLayers {
    /// The device of an engine with these pages of the host. It is made once.
    pub(super) fn device(&self, py: Python<'_>, host: &Arc<Pages>) -> PyResult<CudaDevice> {
        let lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner).take();
        let lent = lent.ok_or_else(|| invalid(py, "the arrays belong to an engine already"))?;
        let device = memory::device(self.stream, lent, self.pages, Arc::clone(host));
        let grouped = |it: CudaDevice| if self.groups > 1 { it.with_groups(self.groups) } else { Ok(it) };
        device.and_then(grouped).map_err(|error| raise(py, &error))
    }
}

/// The number of rows of an array.
fn rows(array: &Any<'_>) -> PyResult<u32> {
    let py = array.py();
    let no_rows = || {
        let hint = "give an array like `torch.zeros((pages, row_bytes), dtype=torch.uint8)`";
        invalid(py, format!("a layer is not an array with a row for each page\n\nhint: {hint}"))
    };
    let shape = match array.getattr_opt(intern!(py, "shape"))? {
        Some(shape) => shape,
        None => array.getattr(intern!(py, "__cuda_array_interface__"))?.get_item("shape")?,
    };
    let rows = shape.get_item(0).and_then(|it| it.extract::<u32>()).map_err(|_| no_rows())?;
    if rows == 0 { Err(no_rows()) } else { Ok(rows) }
}

fn raise(py: Python<'_>, error: &CudaError) -> PyErr {
    match error {
        CudaError::Device { .. } => errors::raise(py, &Error::Device { what: error.to_string() }),
        CudaError::NoLayers
        | CudaError::OtherDevice { .. }
        | CudaError::Overlap { .. }
        | CudaError::PageBytes { .. } => invalid(py, error.to_string()),
    }
}
