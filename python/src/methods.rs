//! Starts the operations of methods, and declares the methods of a class.
//!
//! All methods that call the store have one form. They parse their arguments, make an [`Operation`], and
//! wait for its answer or return an asyncio future for it. Each takes a `timeout`. [`methods!`] writes that
//! form, so that a method is its name, its arguments with their defaults, and its body. `tiffin.aio`
//! derives its coroutines from the same methods when it is imported.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;

use crate::handle::{Handle, Limit, Operation};
use crate::keys;

/// Any Python object.
pub(crate) type Any<'py> = Bound<'py, PyAny>;

/// The context of calls: the store, the default time limit, and whether they are for an event loop.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) handle: Arc<Handle>,
    pub(crate) time: Duration,
    pub(crate) is_async: bool,
}

impl Caller {
    /// Waits for the answer, or returns an asyncio future for it.
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
/// their body, then the others as they are. Arguments after a semicolon are keyword-only.
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
