//! Answers for an event loop: work runs on the runtime, and its answer is set on an asyncio future.
//!
//! Cancelling the future stops the work at its next await. Only then are the values of the work dropped, so
//! that memory which it reads or fills stays valid.

use std::future::Future;

use pyo3::exceptions::{PyBaseException, PyRuntimeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tiffin_client::trace::scoped;
use tokio::task::AbortHandle;

use crate::{runtime, trace};

/// Starts work, and returns the future of its answer. It needs a running event loop.
pub(crate) fn start<T: Send + 'static>(
    py: Python<'_>,
    work: impl Future<Output = T> + Send + 'static,
    answer: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> PyResult<Py<PyAny>> {
    let promise = Promise::new(py)?;
    let future = promise.future.clone_ref(py);
    let traced = trace::current(py);
    let task = runtime::runtime()?.spawn(async move {
        let outcome = scoped(traced, work).await;
        runtime::run_attached(Box::new(move |py| promise.settle(py, answer(py, outcome))));
    });
    let stop = Py::new(py, Stop { task: task.abort_handle() })?;
    future.call_method1(py, intern!(py, "add_done_callback"), (stop,))?;
    Ok(future)
}

/// An asyncio future and its loop.
struct Promise {
    event_loop: Py<PyAny>,
    future: Py<PyAny>,
}

impl Promise {
    fn new(py: Python<'_>) -> PyResult<Self> {
        static RUNNING_LOOP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let event_loop = RUNNING_LOOP.import(py, "asyncio", "get_running_loop")?.call0()?;
        let future = event_loop.call_method0(intern!(py, "create_future"))?;
        Ok(Self { event_loop: event_loop.unbind(), future: future.unbind() })
    }

    /// Schedules the answer on the loop. On a closed loop no task waits for it.
    fn settle(self, py: Python<'_>, answer: PyResult<Py<PyAny>>) {
        let (value, error) = match answer {
            Ok(value) => (Some(value), None),
            Err(error) => (None, Some(error.into_value(py))),
        };
        let Ok(settle) = Py::new(py, Settle { future: self.future, value, error }) else { return };
        let told = self.event_loop.call_method1(py, intern!(py, "call_soon_threadsafe"), (settle,));
        if let Err(error) = told
            && !error.is_instance_of::<PyRuntimeError>(py)
        {
            error.write_unraisable(py, None);
        }
    }
}

/// Sets the answer on the loop's own thread, unless the future was cancelled meanwhile.
#[pyclass(frozen, module = "tiffin._native")]
struct Settle {
    future: Py<PyAny>,
    value: Option<Py<PyAny>>,
    error: Option<Py<PyBaseException>>,
}

#[pymethods]
impl Settle {
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        let is_done: bool = self.future.call_method0(py, intern!(py, "done"))?.extract(py)?;
        if is_done {
            return Ok(());
        }
        match &self.error {
            Some(error) => self.future.call_method1(py, intern!(py, "set_exception"), (error,))?,
            None => self.future.call_method1(py, intern!(py, "set_result"), (&self.value,))?,
        };
        Ok(())
    }
}

/// Stops the work of a future that is done. Unless it was cancelled, the work has already ended.
#[pyclass(frozen, module = "tiffin._native")]
struct Stop {
    task: AbortHandle,
}

#[pymethods]
impl Stop {
    fn __call__(&self, _future: &Bound<'_, PyAny>) {
        self.task.abort();
    }
}
