//! The trace context of Python callers, and the export of spans.
//!
//! `tiffin._trace` knows the context of the current task: that of `tiffin.trace`, or that of OpenTelemetry.
//! It is asked only in a process that has met a trace context or a collector. Tracing never makes a call
//! fail.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tiffin_client::trace::{self, Current, Endpoint, TraceContext, TracerSettings};

use crate::{errors, runtime};

/// The position in a trace that the caller works for.
pub(crate) fn current(py: Python<'_>) -> Option<Current> {
    if trace::is_active() { ask(py) } else { None }
}

#[cold]
fn ask(py: Python<'_>) -> Option<Current> {
    static CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let text = CURRENT.import(py, "tiffin._trace", "current").and_then(|it| it.call0());
    let text: Option<String> = text.and_then(|it| it.extract()).ok()?;
    Some(Current { context: TraceContext::parse(&text?)?, tracer: None })
}

/// Where this process sends spans, by its environment.
pub(crate) fn settings(py: Python<'_>) -> PyResult<Option<TracerSettings>> {
    let said = py.import("tiffin._settings")?.call_method0("trace_endpoint")?;
    let Some((endpoint, service)) = said.extract::<Option<(String, String)>>()? else { return Ok(None) };
    let endpoint: Endpoint = endpoint.parse().map_err(|error| {
        let hint = "set it to a collector, such as `http://127.0.0.1:4318`, or to `off`";
        errors::invalid(py, format!("TIFFIN_TRACE_ENDPOINT={endpoint:?}: {error}\n\nhint: {hint}"))
    })?;
    let tell = Arc::new(|message: &str| {
        let message = message.to_owned();
        runtime::run_attached(Box::new(move |py| {
            // A logger that raises must not stop the thread that answers event loops.
            let _unlogged = warn(py, &message);
        }));
    });
    Ok(Some(TracerSettings { tell, ..TracerSettings::new(endpoint, &service) }))
}

fn warn(py: Python<'_>, message: &str) -> PyResult<()> {
    py.import("logging")?.call_method1("getLogger", ("tiffin",))?.call_method1("warning", ("%s", message))?;
    Ok(())
}

/// Why a URL cannot be that of a collector; `None` if it can.
#[pyfunction]
pub(crate) fn trace_endpoint_problem(url: &str) -> Option<String> {
    url.parse::<Endpoint>().err().map(|error| error.to_string())
}

/// The trace context in this text, in its usual form; `None` if it is invalid. From now on, calls ask
/// for the context of their task.
#[pyfunction]
pub(crate) fn accept_traceparent(text: &str) -> Option<String> {
    let context = TraceContext::parse(text)?;
    trace::activate();
    Some(context.to_string())
}
