//! Checksums of Python's memory, for bytes in other stores than ours.

use pyo3::prelude::*;

use crate::memory::Memory;
use crate::methods::Any;

/// The xxh3-64 of the bytes of a value that could be stored.
///
/// >>> from tiffin._native import checksum
/// >>> checksum(b"abc") == checksum(bytearray(b"abc")) != checksum(b"abd")
/// True
#[pyfunction]
pub(crate) fn checksum(py: Python<'_>, value: &Any<'_>) -> PyResult<u64> {
    let memory = Memory::to_read(value)?.on_host(value)?;
    Ok(py.detach(|| tiffin_client::checksum([memory.as_source()])))
}
