//! How a method starts its operation, and the one place where a method of a class is declared.
//!
//! All methods that talk to the store have one shape: they read their arguments, make an [`Operation`], and
//! either wait for its answer or give an asyncio future for it; each takes a `timeout`. [`methods!`] writes
//! that shape, so a method is its name, its arguments with their defaults, and what it does. The coroutines
//! of `tiffin.aio` are made of the same methods when that module is imported.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;

use crate::handle::{Handle, Limit, Operation};
use crate::keys;

/// Any Python object.
pub(crate) type Any<'py> = Bound<'py, PyAny>;

/// How calls are made: of which store, with which time limit, and whether for an event loop.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) handle: Arc<Handle>,
    pub(crate) time: Duration,
    pub(crate) is_async: bool,
}

impl Caller {
    /// Waits for the answer, or gives the asyncio future that it will be set on.
    pub(crate) fn go<O: Operation>(
        &self,
        py: Python<'_>,
        timeout: Option<&Any<'_>>,
        operation: O,
    ) -> PyResult<Py<PyAny>> {
        let time = keys::time(timeout, self.time)?;
        let limit = Limit { time, answer_time: operation.waits().then_some(self.time) };
        if self.is_async {
            self.handle.start(py, limit, operation)
        } else {
            self.handle.run(py, limit, operation)
        }
    }
}

/// The methods of a class that has a `caller`: first those that start an operation, which is the value of
/// their body, then the others as they are. Arguments after a semicolon are given by name.
macro_rules! methods {
    (
        class $class:ident, with $this:ident and $py:ident;
        $(
            $(#[$meta:meta])*
            call $name:ident(
                $($arg:ident: $type:ty $(= $default:tt)?),*
                $(; $($(#[$how:meta])* $option:ident: $option_type:ty = $option_default:tt),* $(,)?)?
            ) $operation:block
        )*
        others { $($other:tt)* }
    ) => {
        #[pymethods]
        impl $class {
            $(
                $(#[$meta])*
                #[pyo3(
                    signature = (
                        $($arg $(= $default)?,)* *, $($($option = $option_default,)*)? timeout = None
                    )
                )]
                fn $name<'py>(
                    &$this,
                    $py: Python<'py>,
                    $($arg: $type,)*
                    $($($(#[$how])* $option: $option_type,)*)?
                    timeout: Option<&Any<'py>>,
                ) -> PyResult<Py<PyAny>> {
                    let operation = $operation;
                    $this.caller.go($py, timeout, operation)
                }
            )*

            $($other)*
        }
    };
}

pub(crate) use methods;
