//! Converts errors of the client into the exceptions of `tiffin.errors`.

use std::collections::BTreeSet;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple, PyType};
use tiffin_client::{Error, Key, Losses};
use tiffin_embedded::EmbeddedError;
use tiffin_server::StartError;

use crate::types;

/// The exception for an error.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    exception(py, error).map_or_else(|failure| failure, |exception| PyErr::from_value(exception))
}

/// The exception for a store that did not start.
pub(crate) fn raise_start(py: Python<'_>, error: &EmbeddedError) -> PyErr {
    match error {
        EmbeddedError::Connect(error) => raise(py, error),
        EmbeddedError::Start(error) => {
            let class = match error {
                StartError::Access(_)
                | StartError::Config(_)
                | StartError::Tenants(_)
                | StartError::Tls(_)
                | StartError::Memory(_)
                | StartError::Etcd(_)
                | StartError::Disk(_)
                | StartError::DiskInUse(_) => "InvalidArgument",
                StartError::Listen(_) | StartError::State { .. } | StartError::System { .. } => "Error",
            };
            new(py, class, &error.to_string()).map_or_else(|failure| failure, PyErr::from_value)
        }
    }
}

/// An invalid argument.
pub(crate) fn invalid(py: Python<'_>, what: impl Into<String>) -> PyErr {
    raise(py, &Error::Invalid { what: what.into() })
}

/// An object exists that the put must not replace.
pub(crate) fn exists(py: Python<'_>, key: &Key) -> PyErr {
    let made = || {
        let exception = new(py, "Exists", &format!("`{key}` exists and was not replaced"))?;
        exception.setattr("key", types::show(py, key)?)?;
        PyResult::Ok(exception)
    };
    made().map_or_else(|failure| failure, PyErr::from_value)
}

/// Warns of puts that succeeded while some nodes may still serve the replaced objects. Fails if the caller
/// turns warnings into errors.
pub(crate) fn warn_unconfirmed<'a>(
    py: Python<'_>,
    puts: impl Iterator<Item = (&'a Key, &'a [String])>,
) -> PyResult<()> {
    let puts: Vec<_> = puts.filter(|(_, nodes)| !nodes.is_empty()).collect();
    let Some((first, _)) = puts.first() else { return Ok(()) };
    let nodes: BTreeSet<_> = puts.iter().flat_map(|(_, nodes)| *nodes).collect();
    let names: Vec<_> = nodes.iter().map(|it| format!("`{it}`")).collect();
    let more = if puts.len() > 1 { format!(" and {} more", puts.len() - 1) } else { String::new() };
    let warning = new(
        py,
        "UnconfirmedWarning",
        &format!(
            "`{first}`{more}: stored, but {} could not confirm that the older object is gone; a reader \
             with its cached location may still read it",
            names.join(", ")
        ),
    )?;
    let keys = puts.iter().map(|(key, _)| types::show(py, key)).collect::<PyResult<Vec<_>>>()?;
    warning.setattr("keys", PyTuple::new(py, keys)?)?;
    warning.setattr("nodes", PyTuple::new(py, nodes)?)?;
    py.import("warnings")?.call_method1("warn", (warning,)).map(drop)
}

/// The error of a call to something closed.
pub(crate) fn closed(py: Python<'_>, what: &str) -> PyErr {
    new(py, "Closed", what).map_or_else(|failure| failure, PyErr::from_value)
}

/// The error of closing a store with losses.
pub(crate) fn would_lose(py: Python<'_>, losses: &Losses) -> PyErr {
    let hint = "acknowledge, unpin or copy what is needed, or close with on_loss=\"warn\"";
    let made = || {
        let exception = new(py, "WouldLose", &format!("{losses}, so the store stays open\n\nhint: {hint}"))?;
        exception.setattr("losses", types::losses(py, losses)?)?;
        PyResult::Ok(exception)
    };
    made().map_or_else(|failure| failure, PyErr::from_value)
}

/// An argument of a wrong type.
pub(crate) fn wrong_type(wanted: &str, given: &Bound<'_, PyAny>, hint: &str) -> PyErr {
    let name = given.get_type().name().map_or_else(|_| "an object".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!("{wanted}, not {name}\n\nhint: {hint}"))
}

/// The result of a call with many keys: all results, or the first error, which carries all results.
pub(crate) fn all_or_first_error(py: Python<'_>, results: Vec<PyResult<Py<PyAny>>>) -> PyResult<Py<PyAny>> {
    let first = results.iter().find_map(|result| result.as_ref().err()).map(|error| error.clone_ref(py));
    let entries = results.into_iter().map(|result| match result {
        Ok(value) => value,
        Err(error) => error.into_value(py).into_any(),
    });
    let entries = PyList::new(py, entries.collect::<Vec<_>>())?;
    match first {
        None => Ok(entries.into_any().unbind()),
        Some(error) => {
            error.value(py).setattr("results", entries)?;
            Err(error)
        }
    }
}

fn exception<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let message = match error.hint() {
        Some(hint) => format!("{error}\n\nhint: {hint}"),
        None => error.to_string(),
    };
    let exception = new(py, class(error), &message)?;
    if error.is_retryable() {
        exception.setattr("is_retryable", true)?;
    }
    match error {
        Error::NotFound { key }
        | Error::Leased { key }
        | Error::Contended { key }
        | Error::NoNode { key }
        | Error::NotASample { key, .. } => {
            exception.setattr("key", types::show(py, key)?)?;
        }
        Error::Superseded { key, generation } | Error::Exists { key, generation } => {
            exception.setattr("key", types::show(py, key)?)?;
            exception.setattr("generation", (generation.epoch, generation.counter))?;
        }
        Error::Consumed { key, group } | Error::WrongGroup { key, group } => {
            exception.setattr("key", types::show(py, key)?)?;
            exception.setattr("group", group)?;
        }
        Error::OutOfRange { key, len, .. } => {
            exception.setattr("key", types::show(py, key)?)?;
            exception.setattr("size", len)?;
        }
        Error::Full { key, len, usage, lacks, .. } => {
            exception.setattr("key", types::show(py, key)?)?;
            exception.setattr("size", len)?;
            exception.setattr("usage", types::usage(py, usage)?)?;
            exception.setattr("lacks", types::resource(*lacks))?;
        }
        Error::OverQuota { key, quota } => {
            exception.setattr("key", types::show(py, key)?)?;
            exception.setattr("size", quota.need)?;
            exception.setattr("used", quota.used)?;
            exception.setattr("quota", quota.limit)?;
        }
        Error::Behind { key, backlog } => {
            exception.setattr("key", types::show(py, key)?)?;
            exception.setattr("refs", backlog.refs)?;
            exception.setattr("used", backlog.bytes)?;
        }
        Error::TooSmall { key, len } => {
            exception.setattr("key", types::show(py, key)?)?;
            exception.setattr("size", len)?;
        }
        Error::NodeDown { key, nodes } => {
            exception.setattr("key", types::show(py, key)?)?;
            exception.setattr("nodes", nodes)?;
        }
        Error::Unconfirmed { nodes } => exception.setattr("nodes", nodes)?,
        _ => {}
    }
    Ok(exception)
}

/// The name of the class for an error.
fn class(error: &Error) -> &'static str {
    match error {
        Error::NotFound { .. } => "NotFound",
        Error::Full { .. } => "Full",
        Error::OverQuota { .. } => "OverQuota",
        Error::Behind { .. } => "Behind",
        Error::TooSmall { .. } => "TooSmall",
        Error::Timeout { .. } | Error::NoHandshake { is_silent: true, .. } => "Timeout",
        Error::NoHandshake { is_silent: false, .. } => "Unreachable",
        Error::Tls { .. } | Error::NoLeader { .. } => "Unreachable",
        Error::Unreachable { .. } | Error::UnknownHost { .. } | Error::NoNode { .. } => "Unreachable",
        Error::NodeDown { .. } => "NodeDown",
        Error::Device { .. } => "DeviceError",
        Error::Unavailable { .. } => "Unavailable",
        Error::Leased { .. } => "Leased",
        Error::Unconfirmed { .. } => "Unconfirmed",
        Error::Contended { .. } => "Contended",
        Error::Exists { .. } => "Exists",
        Error::Superseded { .. } => "Superseded",
        Error::Consumed { .. } => "Consumed",
        Error::NotASample { .. } => "NotASample",
        Error::WrongGroup { .. } => "WrongGroup",
        Error::OutOfRange { .. } => "OutOfRange",
        Error::Invalid { .. } => "InvalidArgument",
        Error::Unauthenticated { .. } => "Unauthenticated",
        Error::Refused { .. } | Error::WrongPort { .. } => "Refused",
        Error::Closed | Error::Forked => "Closed",
    }
}

/// An exception of that class.
pub(crate) fn new<'py>(py: Python<'py>, class: &str, message: &str) -> PyResult<Bound<'py, PyAny>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || py.import("tiffin.errors").map(Bound::unbind))?;
    module.bind(py).getattr(class)?.cast_into::<PyType>()?.call1((message,))
}
