//! Closing a store, and reporting the objects that are lost with it.

use std::sync::Arc;
use std::time::Duration;

use pyo3::intern;
use pyo3::prelude::*;
use tiffin_client::{Deadline, Error, Losses};

use crate::errors::{self, invalid};
use crate::handle::Handle;
use crate::methods::{Any, Caller};
use crate::runtime::block_on;
use crate::{keys, promise};

/// The time limit for finding the objects that are lost; closing itself has the rest of the time.
const LOSSES_TIME_MAX: Duration = Duration::from_secs(2);

/// What closing does if objects are lost.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnLoss {
    Warn,
    Error,
    Ignore,
}

impl OnLoss {
    pub(crate) fn parse(py: Python<'_>, word: &str) -> PyResult<Self> {
        match word {
            "warn" => Ok(Self::Warn),
            "error" => Ok(Self::Error),
            "ignore" => Ok(Self::Ignore),
            other => {
                let hint = "give \"warn\", \"error\" or \"ignore\"";
                Err(invalid(py, format!("on_loss={other:?} is unknown\n\nhint: {hint}")))
            }
        }
    }
}

/// The outcome.
enum Closed {
    /// The store is closed; these objects are lost, which is to be reported.
    Done(Option<Losses>),
    /// The store is open: these objects would be lost.
    WouldLose(Losses),
    Failed(Error),
}

/// Closes the store of a caller: waits for the end, or returns an asyncio future for it.
pub(crate) fn run(
    py: Python<'_>,
    caller: &Caller,
    on_loss: OnLoss,
    timeout: Option<&Any<'_>>,
) -> PyResult<Py<PyAny>> {
    let deadline = Deadline::after(keys::time(timeout, caller.time)?);
    let handle = Arc::clone(&caller.handle);
    let closing = async move { close(&handle, on_loss, deadline).await };
    if caller.is_async {
        return promise::start(py, closing, answer);
    }
    answer(py, block_on(py, async || closing.await)?)
}

/// Finds the objects that are lost, if that is requested, and closes the store.
async fn close(handle: &Handle, on_loss: OnLoss, deadline: Deadline) -> Closed {
    let losses = if on_loss == OnLoss::Ignore || handle.is_closed() {
        Losses::default()
    } else {
        handle.losses(deadline.min(Deadline::after(LOSSES_TIME_MAX))).await
    };
    if on_loss == OnLoss::Error && !losses.is_empty() {
        return Closed::WouldLose(losses);
    }
    match handle.close(deadline).await {
        Ok(()) => Closed::Done(Some(losses).filter(Losses::is_precious)),
        Err(error) => Closed::Failed(error),
    }
}

/// Reports losses to Python.
fn answer(py: Python<'_>, closed: Closed) -> PyResult<Py<PyAny>> {
    match closed {
        Closed::Done(None) => {}
        Closed::Done(Some(losses)) => warn(py, &losses)?,
        Closed::WouldLose(losses) => return Err(errors::would_lose(py, &losses)),
        Closed::Failed(error) => return Err(errors::raise(py, &error)),
    }
    Ok(py.None())
}

fn warn(py: Python<'_>, losses: &Losses) -> PyResult<()> {
    let log = py.import("logging")?.call_method1(intern!(py, "getLogger"), ("tiffin",))?;
    let line = format!("a store was closed: {losses}; they are lost");
    log.call_method1(intern!(py, "warning"), ("%s", line)).map(drop)
}
