//! The extension module `tiffin._native`. This file only registers; what is registered lives in the modules
//! beside it, and the names that users see are given in `tiffin/__init__.py`.

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
