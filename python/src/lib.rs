//! The extension module `tiffin._native`. This file only registers classes and functions of the other
//! modules. The names that users see are in `tiffin/__init__.py`.
//!
//! | module | purpose |
//! |---|---|
//! | `process` | values that belong to one process, in a program that may fork |
//! | `runtime` | the one tokio runtime, and waiting for it with the interpreter released |
//! | `promise` | answers for an asyncio loop |
//! | `handle` | a connected store that survives a fork; everything else uses it |
//! | `memory`, `read_buffers`, `dlpack` | memory of Python objects for Rust, and ours for Python |
//! | `keys`, `types`, `errors` | arguments in, tuples and exceptions out |
//! | `methods` | the one shape of all methods that talk to a store |
//! | `connect`, `closing`, `store`, `operations`, `mapping`, `view` | the native API |
//! | `lifetimes`, `reservation`, `samples` | pins and limits, reserved space, and samples |
//! | `queued` | gets whose copies are queued on a stream of a device |
//! | `prefetch` | promotion of objects that are only on a disk |
//! | `trace` | the trace context of the caller |
//! | `kv` | the KV hierarchy: its engine over memory of Python, and stores and devices of the user |
//! | `mooncake` | the drop-in for `mooncake.store` |

mod checksum;
mod closing;
mod connect;
mod cuda;
mod dlpack;
mod errors;
mod handle;
mod keys;
mod kv;
mod lifetimes;
mod mapping;
mod memory;
mod methods;
mod mooncake;
mod operations;
mod prefetch;
mod process;
mod promise;
mod queued;
mod read_buffers;
mod reservation;
mod runtime;
mod samples;
mod store;
mod streams;
mod trace;
mod types;
mod view;

use std::ffi::OsString;

use pyo3::prelude::*;
use pyo3::types::PyDict;

// The same allocator as in the binary `tiffin`. Memory of Python objects stays with Python's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

// PyO3's default says the opposite. A free-threaded interpreter enables the GIL for this module, because no
// test has run without one.
#[pymodule(gil_used = true)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<store::Store>()?;
    module.add_class::<view::View>()?;
    module.add_class::<cuda::DeviceArray>()?;
    module.add_class::<cuda::MappedArray>()?;
    module.add_class::<samples::Lease>()?;
    module.add_class::<reservation::Reservation>()?;
    module.add_class::<prefetch::Prefetch>()?;
    module.add_class::<queued::QueuedGet>()?;
    module.add_function(wrap_pyfunction!(connect::connect, module)?)?;
    module.add_function(wrap_pyfunction!(checksum::checksum, module)?)?;
    module.add_function(wrap_pyfunction!(cli, module)?)?;
    module.add_function(wrap_pyfunction!(trace::accept_traceparent, module)?)?;
    module.add_function(wrap_pyfunction!(trace::trace_endpoint_problem, module)?)?;
    let leave = wrap_pyfunction!(runtime::leave, module)?;
    module.py().import("atexit")?.call_method1("register", (leave,))?;
    let forked = PyDict::new(module.py());
    forked.set_item("after_in_child", wrap_pyfunction!(runtime::forked, module)?)?;
    module.py().import("os")?.call_method("register_at_fork", (), Some(&forked))?;
    kv::register(module)?;
    mooncake::register(module)
}

/// Runs the command line with these arguments, the first of which is the program's name. Returns the exit
/// status.
#[pyfunction]
fn cli(py: Python<'_>, argv: Vec<OsString>) -> i32 {
    py.detach(|| tiffin_cli::run(argv))
}
