//! The class `MooncakeDistributedStore`. Its methods are in `store` and `admin`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

use super::open::Open;

/// A client of a cluster: puts and gets objects by key, and may provide memory to the cluster.
///
/// Call :meth:`setup` before any other method. Calls return 0 or a count, or a negative code. A store that
/// is not closed leaves the cluster when it is garbage-collected, or when the interpreter ends.
#[pyclass(module = "mooncake.store", frozen, weakref, subclass)]
pub(crate) struct MooncakeDistributedStore {
    pub(super) open: Mutex<Option<Arc<Open>>>,
}

impl MooncakeDistributedStore {
    /// The locks here are taken only while the interpreter is held, and never held across a wait.
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Arc<Open>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn open(&self) -> Option<Arc<Open>> {
        self.lock().clone()
    }
}
