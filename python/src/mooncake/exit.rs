//! Closes open stores when the interpreter ends, so that their segments leave the cluster at once, before
//! the master declares them lost.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use pyo3::prelude::*;

use super::open::Open;
use crate::process::PerProcess;
use crate::runtime::block_on;

static OPEN: PerProcess<Mutex<Vec<Weak<Open>>>> = PerProcess::new();

/// Registers the store to be closed at the end, if it is still open then.
pub(super) fn remember(open: &Arc<Open>) {
    let Ok(list) = OPEN.get_or_try(|| Ok::<_, std::convert::Infallible>(Mutex::default()));
    let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
    list.retain(|it| it.strong_count() > 0);
    list.push(Arc::downgrade(open));
}

/// Closes every store of this process that is still open. Registered with `atexit`.
#[pyfunction]
pub(super) fn close_open_stores(py: Python<'_>) -> PyResult<()> {
    let Some(list) = OPEN.here() else { return Ok(()) };
    let list = std::mem::take(&mut *list.lock().unwrap_or_else(PoisonError::into_inner));
    let open: Vec<_> = list.iter().filter_map(Weak::upgrade).collect();
    block_on(py, async move || {
        let tasks: Vec<_> =
            open.into_iter().map(|open| tokio::spawn(async move { open.close().await })).collect();
        for task in tasks {
            // A task that panicked has printed its message. The other stores are still closed.
            drop(task.await);
        }
    })
}
