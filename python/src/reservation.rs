//! Space that is reserved before the data exists, and puts into it.

use std::sync::Arc;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use tiffin_client::{
    Client, Deadline, Error, PutEffect, PutOptions, Reserved, SpaceRequest, SpaceWait, Stored,
};
use tiffin_types::units::Count;

use crate::handle::Operation;
use crate::keys::{Pairs, UNGIVEN};
use crate::memory::Memory;
use crate::methods::{Any, Caller, methods};
use crate::operations::{Each, gather};
use crate::process::Ours;
use crate::{errors, lifetimes, types};

/// Reserves space.
pub(crate) struct ReserveAll {
    spaces: Vec<SpaceRequest>,
    is_one: bool,
    space_wait: SpaceWait,
    refuses_existing: bool,
    caller: Caller,
}

impl ReserveAll {
    /// Parses keys with the size of each.
    pub(crate) fn parse(
        pairs: Pairs<'_>,
        options: &PutOptions,
        space_wait: SpaceWait,
        refuses_existing: bool,
        caller: Caller,
    ) -> PyResult<Self> {
        let is_one = pairs.keys.is_one;
        let spaces = pairs.keys.list.into_iter().zip(&pairs.others).map(|(key, nbytes)| {
            let len = lifetimes::size(Some(nbytes))?.unwrap_or_default();
            Ok(SpaceRequest { key, len, options: options.clone() })
        });
        let spaces = spaces.collect::<PyResult<_>>()?;
        Ok(Self { spaces, is_one, space_wait, refuses_existing, caller })
    }
}

impl Operation for ReserveAll {
    type Outcome = Each<Reserved>;

    fn waits(&self) -> bool {
        self.space_wait != SpaceWait::Never
    }

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<Each<Reserved>, Error> {
        Ok(client.reserve(&self.spaces, self.space_wait, deadline).await)
    }

    fn answer(self, py: Python<'_>, outcome: Each<Reserved>) -> PyResult<Py<PyAny>> {
        gather(py, self.is_one, &UNGIVEN, outcome, |reserved| {
            let (reserved, caller) = (Arc::new(Ours::new(reserved)), self.caller.clone());
            Reservation { reserved, refuses_existing: self.refuses_existing, caller }.into_py_any(py)
        })
    }
}

/// Space that is reserved for one object. Made by `tiffin.Store.reserve`.
///
/// It ends when it is used by a put, when it is released or dropped, or when the store is closed or the
/// process ends; never by a timer. As a context manager it is released at the end, unless it was used.
///
/// >>> import tiffin
/// >>> store = tiffin.connect()
/// >>> first, second = store.reserve({"a": 1, "b": "1MiB"})
/// >>> first.put(b"1"), first.is_held
/// (True, False)
/// >>> second.release()
/// >>> store.list()
/// [ObjectInfo(key='a', size=1, ...)]
///
/// A reservation belongs to the process that asked for it; in a forked child it raises `tiffin.Closed`.
#[pyclass(frozen, module = "tiffin")]
pub(crate) struct Reservation {
    reserved: Arc<Ours<Reserved>>,
    refuses_existing: bool,
    caller: Caller,
}

methods! {
    class Reservation, with self and py;

    /// Stores a value in the reserved space, as `tiffin.Store.put` does. The value has exactly `nbytes`
    /// bytes.
    ///
    /// If it has more or fewer, `tiffin.InvalidArgument` is raised and the reservation stays. Otherwise the
    /// reservation ends, also if the put fails; then the space is freed. Returns whether the value was
    /// stored: `False` if an existing object was kept.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> reservation = store.reserve("k", 3)
    /// >>> try:
    /// ...     reservation.put(b"four")
    /// ... except tiffin.InvalidArgument as error:
    /// ...     print(error)
    /// `k` has space for exactly 3 bytes, and 4 were given
    /// >>> reservation.put(b"abc")
    /// True
    call put(value: &Any<'py>) {
        let value = Memory::to_read(value)?;
        PutReserved { reserved: Arc::clone(&self.reserved), value, refuses_existing: self.refuses_existing }
    }

    /// Frees the space. Puts that wait for space are woken. Releasing a reservation that was used or released
    /// is harmless.
    call release() {
        Release { reserved: Arc::clone(&self.reserved) }
    }

    others {
        /// The key of the object.
        #[getter]
        fn key<'py>(&self, py: Python<'py>) -> PyResult<Any<'py>> {
            types::show(py, self.reserved.key())
        }

        /// The size of the object.
        #[getter]
        fn nbytes(&self) -> u64 {
            self.reserved.len()
        }

        /// Whether the space is still reserved.
        #[getter]
        fn is_held(&self) -> bool {
            self.reserved.is_here() && !self.caller.handle.is_closed() && self.reserved.is_held()
        }

        fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
            if slf.get().reserved.is_here() { Ok(slf) } else { Err(errors::raise(slf.py(), &Error::Forked)) }
        }

        fn __exit__(
            &self,
            py: Python<'_>,
            _kind: &Any<'_>,
            _error: &Any<'_>,
            _traceback: &Any<'_>,
        ) -> PyResult<()> {
            // Reservations of a store end with it, and a forked child has none to release.
            if self.is_held() { self.release(py, None).map(drop) } else { Ok(()) }
        }

        fn __repr__(&self) -> String {
            let state = match () {
                () if !self.reserved.is_here() => "of the parent process",
                () if self.is_held() => "held",
                () => "ended",
            };
            let (key, nbytes) = (self.reserved.key(), Count(self.nbytes(), "byte"));
            format!("<tiffin.Reservation of {nbytes} for `{key}`, {state}>")
        }
    }
}

/// Stores a value in reserved space.
struct PutReserved {
    reserved: Arc<Ours<Reserved>>,
    value: Memory,
    refuses_existing: bool,
}

impl Operation for PutReserved {
    type Outcome = Stored;

    async fn run(&self, _: &Client, deadline: Deadline) -> Result<Stored, Error> {
        if !self.reserved.is_here() {
            return Err(Error::Forked);
        }
        self.reserved.put(vec![self.value.as_source()], deadline).await
    }

    fn answer(self, py: Python<'_>, stored: Stored) -> PyResult<Py<PyAny>> {
        // The caller may change the value again before the answer is converted.
        drop(self.value);
        errors::warn_unconfirmed(py, [(self.reserved.key(), stored.unconfirmed.as_slice())].into_iter())?;
        match stored.effect {
            PutEffect::Kept if self.refuses_existing => Err(errors::exists(py, self.reserved.key())),
            effect => (effect != PutEffect::Kept).into_py_any(py),
        }
    }
}

/// Frees reserved space.
struct Release {
    reserved: Arc<Ours<Reserved>>,
}

impl Operation for Release {
    type Outcome = ();

    async fn run(&self, _: &Client, deadline: Deadline) -> Result<(), Error> {
        if !self.reserved.is_here() {
            return Err(Error::Forked);
        }
        self.reserved.release(deadline).await
    }

    fn answer(self, py: Python<'_>, (): ()) -> PyResult<Py<PyAny>> {
        Ok(py.None())
    }
}
