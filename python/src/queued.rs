//! Gets whose copies are queued on a CUDA stream: `store.get_into(key, array, stream=...)`.
//!
//! **Invariant:** the array and the object's bytes are kept until the copies have ended, also if the handle
//! is dropped or the store is closed. A forked child neither waits for them nor ends them.

use pyo3::prelude::*;
use tiffin_client::{Deadline, Error};
use tiffin_types::units::Count;

use crate::methods::{Any, Caller};
use crate::operations::sizes;
use crate::process::Ours;
use crate::runtime::block_on;
use crate::{errors, keys, promise};

/// A get whose copies are queued on a CUDA stream. Made by `tiffin.Store.get_into` with `stream=`.
///
/// Kernels that are submitted to the stream after the call see the bytes. The caller must not use what they
/// computed before `result` has returned. Until then the handle keeps the buffers, and views of the objects,
/// so that neither a delete nor a put changes the bytes. If the handle is dropped, they are kept until the
/// copies have ended.
#[pyclass(frozen, module = "tiffin")]
pub(crate) struct QueuedGet {
    get: Ours<tiffin_client::QueuedGet>,
    is_one: bool,
    count: usize,
    caller: Caller,
}

impl QueuedGet {
    pub(crate) fn new(get: tiffin_client::QueuedGet, is_one: bool, count: usize, caller: Caller) -> Self {
        Self { get: Ours::new(get), is_one, count, caller }
    }
}

#[pymethods]
impl QueuedGet {
    /// Whether all copies have ended: `result` does not wait then.
    #[getter]
    fn is_done(&self, py: Python<'_>) -> PyResult<bool> {
        if !self.get.is_here() {
            return Err(errors::raise(py, &Error::Forked));
        }
        Ok(py.detach(|| self.get.is_done()))
    }

    /// Waits until all copies have ended, and returns how many bytes each object has, in the order of the
    /// keys; for one key, of that one.
    ///
    /// Raises the errors of `get_into`, and `tiffin.DeviceError` if the device could not copy: then the
    /// buffers have no valid bytes. Raises `tiffin.Timeout` if `timeout` comes first; the copies are still
    /// queued then, and the call may be repeated.
    #[pyo3(signature = (*, timeout = None))]
    fn result(&self, py: Python<'_>, timeout: Option<&Any<'_>>) -> PyResult<Py<PyAny>> {
        if !self.get.is_here() {
            return Err(errors::raise(py, &Error::Forked));
        }
        let (get, is_one) = (tiffin_client::QueuedGet::clone(&self.get), self.is_one);
        let deadline = Deadline::after(keys::time(timeout, self.caller.time)?);
        let answer = move |py: Python<'_>, outcome: Result<_, Error>| {
            sizes(py, is_one, outcome.map_err(|error| errors::raise(py, &error))?)
        };
        let wait = async move { get.wait(deadline).await };
        if self.caller.is_async {
            return promise::start(py, wait, answer);
        }
        let outcome = block_on(py, async move || wait.await)?;
        answer(py, outcome)
    }

    fn __repr__(&self) -> String {
        let state = match () {
            () if !self.get.is_here() => "of the parent process",
            () if self.get.is_done() => "done",
            () => "queued",
        };
        format!("<tiffin.QueuedGet of {}, {state}>", Count(self.count as u64, "key"))
    }
}
