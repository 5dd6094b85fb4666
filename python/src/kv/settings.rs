//! The configuration of an engine, from the arguments of `tiffin.kv.Engine`.
//!
//! Names, defaults and meanings of settings are declared in `tiffin_kv::settings`.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt};
use tiffin_kv::{Config, SettingError, Settings, Value};

use crate::errors::{invalid, wrong_type};

/// Ticks of the engine: milliseconds.
const TICKS_PER_SECOND: u32 = 1000;

/// The sizes and ranks of an engine, which `tiffin/kv.py` determines.
#[derive(FromPyObject)]
pub(super) struct Shape {
    device_pages: u32,
    host_pages: u32,
    has_store: bool,
    ranks: u32,
    rank: u32,
    pub(super) compare_every: u64,
}

/// The configuration of an engine of this shape, with these settings and defaults for the others.
pub(super) fn config(shape: &Shape, given: &Bound<'_, PyDict>) -> PyResult<Config> {
    let mut settings = Settings::default();
    for (name, value) in given.iter() {
        let name: String = name.extract()?;
        settings.set(&name, read(&name, &value)?).map_err(|error| raise(given.py(), &error))?;
    }
    let Shape { device_pages, host_pages, has_store, ranks, rank, .. } = *shape;
    let config = settings.config(TICKS_PER_SECOND, has_store);
    Ok(Config { device_pages, host_pages, ranks, rank, ..config })
}

/// The default of every setting, by name.
#[pyfunction]
pub(super) fn kv_settings(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let defaults = PyDict::new(py);
    for (name, value, ..) in Settings::default().list() {
        match value {
            Value::Count(count) => defaults.set_item(name, count)?,
            Value::Seconds(seconds) => defaults.set_item(name, seconds)?,
            Value::Flag(flag) => defaults.set_item(name, flag)?,
            Value::Word(word) => defaults.set_item(name, word)?,
        }
    }
    Ok(defaults)
}

fn read(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Value> {
    if let Ok(flag) = value.extract() {
        Ok(Value::Flag(flag))
    } else if let Ok(count) = value.extract() {
        Ok(Value::Count(count))
    } else if value.is_instance_of::<PyInt>() {
        let hint = "give a number from 0 to 2^64 - 1";
        Err(invalid(value.py(), format!("{name}={value}\n\nhint: {hint}")))
    } else if let Ok(seconds) = value.extract() {
        Ok(Value::Seconds(seconds))
    } else if let Ok(word) = value.extract() {
        Ok(Value::Word(word))
    } else {
        Err(wrong_type("a setting is a number, a word or a bool", value, "see `tiffin.kv.Settings`"))
    }
}

fn raise(py: Python<'_>, error: &SettingError) -> PyErr {
    match error {
        SettingError::Unknown(_) => PyTypeError::new_err(error.to_string()),
        SettingError::Word { .. } | SettingError::Type { .. } => invalid(py, error.to_string()),
    }
}
