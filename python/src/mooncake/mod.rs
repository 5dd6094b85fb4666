//! The drop-in for `mooncake.store`: the module `tiffin._native.mooncake`, which the wheel
//! `tiffin-mooncake` exports under Mooncake's names.
//!
//! The return codes are Mooncake's, in the same situations (`docs/mooncake-compat.md` lists the
//! differences). The layers below are the ordinary client and the ordinary node.

mod admin;
mod arguments;
mod calls;
mod checks;
mod class;
mod codes;
mod config;
mod descriptors;
mod disk;
mod dummy;
mod enums;
mod exit;
mod log;
mod memory;
mod open;
mod owned;
mod pages;
mod pool;
mod ranges;
mod registry;
mod segments;
mod session_table;
mod sessions;
mod settings;
mod store;
mod tasks;
mod writes;

use std::collections::BTreeMap;
use std::ffi::OsString;

use pyo3::prelude::*;

/// Adds the module.
pub(crate) fn register(parent: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = parent.py();
    let module = PyModule::new(py, "mooncake")?;
    enums::register(&module)?;
    module.add_class::<config::ReplicateConfig>()?;
    module.add_class::<config::ExistOptions>()?;
    module.add_class::<descriptors::Descriptor>()?;
    module.add_class::<descriptors::MemoryDescriptor>()?;
    module.add_class::<descriptors::DiskDescriptor>()?;
    module.add_class::<descriptors::ReplicaDescriptor>()?;
    module.add_class::<memory::BufferHandle>()?;
    module.add_class::<memory::BufferLeaseView>()?;
    module.add_class::<pool::BufferLease>()?;
    module.add_class::<pool::BufferPool>()?;
    module.add_class::<admin::QueryTaskResponse>()?;
    module.add_class::<class::MooncakeDistributedStore>()?;
    module.add_function(wrap_pyfunction!(mooncake_master, &module)?)?;
    module.add_function(wrap_pyfunction!(mooncake_client_flags, &module)?)?;
    module.add_function(wrap_pyfunction!(open::protocol_problem, &module)?)?;
    primitives(&module)?;
    let close = wrap_pyfunction!(exit::close_open_stores, &module)?;
    py.import("atexit")?.call_method1("register", (close,))?;
    parent.add_submodule(&module)
}

/// The functions behind the methods that `mooncake/_forms.py` makes.
fn primitives(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<owned::OwnedBytes>()?;
    module.add_function(wrap_pyfunction!(writes::write, module)?)?;
    module.add_function(wrap_pyfunction!(owned::read_owned, module)?)?;
    module.add("ReadFailed", module.py().get_type::<owned::ReadFailed>())?;
    module.add_function(wrap_pyfunction!(owned::read_one, module)?)?;
    module.add_function(wrap_pyfunction!(owned::read_heads, module)?)?;
    module.add_function(wrap_pyfunction!(owned::read_rows, module)?)?;
    module.add_function(wrap_pyfunction!(owned::peek, module)?)?;
    module.add_function(wrap_pyfunction!(owned::device_at, module)?)?;
    module.add_function(wrap_pyfunction!(owned::is_registered, module)?)?;
    module.add_function(wrap_pyfunction!(owned::is_open, module)?)?;
    module.add_function(wrap_pyfunction!(sessions::get_session_start, module)?)?;
    module.add_function(wrap_pyfunction!(sessions::get_session_ranges, module)?)?;
    module.add_function(wrap_pyfunction!(sessions::get_session_end, module)?)?;
    module.add_function(wrap_pyfunction!(sessions::put_session_start, module)?)?;
    module.add_function(wrap_pyfunction!(sessions::put_session_ranges, module)?)?;
    module.add_function(wrap_pyfunction!(sessions::put_session_end, module)?)
}

/// Runs a master with Mooncake's flags until a signal stops it. The arguments do not include the program's
/// name. Returns the exit status.
#[pyfunction]
fn mooncake_master(py: Python<'_>, arguments: Vec<OsString>) -> i32 {
    py.detach(|| tiffin_server::mooncake::run(arguments))
}

/// The values of the flags of `mooncake_client`, and warnings; or the exit status.
type ClientFlags = (Option<i32>, BTreeMap<&'static str, String>, Vec<String>);

/// Parses the flags of `mooncake_client`, without the program's name.
#[pyfunction]
fn mooncake_client_flags(arguments: Vec<String>) -> ClientFlags {
    match tiffin_server::mooncake::client_flags(&arguments, &tiffin_server::mooncake::flag_variables()) {
        Ok((values, warnings)) => (None, values, warnings),
        Err(status) => (Some(status), BTreeMap::new(), Vec::new()),
    }
}
