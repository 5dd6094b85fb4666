//! What calls have in common: one key or many, time limits, what stands for a missing object.

use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMapping, PyString};
use tiffin_client::Key;

use crate::errors::{self, invalid, wrong_type};

/// The longest time limit, which is as good as none: about thirty years.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(86_400 * 365 * 30);

/// One key, or many in order.
pub(crate) struct Keys {
    pub(crate) list: Vec<Key>,
    /// Whether one was given by itself, so that its result is given by itself too.
    pub(crate) is_one: bool,
}

impl Keys {
    /// A key is `str` or `bytes`; anything else that can be iterated over holds many.
    pub(crate) fn parse(given: &Bound<'_, PyAny>) -> PyResult<Self> {
        if is_key(given) {
            return Ok(Self { list: vec![key(given)?], is_one: true });
        }
        let list = match given.try_iter() {
            Ok(items) => items.map(|item| key(&item?)).collect::<PyResult<_>>()?,
            Err(_) => return Err(no_key(given)),
        };
        Ok(Self { list, is_one: false })
    }

    /// Gives one result by itself, many as a list.
    pub(crate) fn gather(
        py: Python<'_>,
        is_one: bool,
        mut results: Vec<PyResult<Py<PyAny>>>,
    ) -> PyResult<Py<PyAny>> {
        match (is_one, results.pop()) {
            (true, Some(result)) => result,
            (_, last) => {
                results.extend(last);
                errors::all_or_first_error(py, results)
            }
        }
    }
}

/// A key and what goes with it, or many of them.
pub(crate) struct Pairs<'py> {
    pub(crate) keys: Keys,
    pub(crate) others: Vec<Bound<'py, PyAny>>,
}

impl<'py> Pairs<'py> {
    /// Either a key and something, or a mapping from keys to such things and nothing else.
    pub(crate) fn parse(
        first: &Bound<'py, PyAny>,
        second: Option<&Bound<'py, PyAny>>,
        call: &str,
        what: &str,
    ) -> PyResult<Self> {
        match (is_key(first), second) {
            (true, Some(other)) => Ok(Self { keys: Keys::parse(first)?, others: vec![other.clone()] }),
            (true, None) => {
                let hint = format!("`{call}(key, {what})` for one, `{call}({{key: {what}, …}})` for many");
                Err(PyTypeError::new_err(format!("no {what} for the key\n\nhint: {hint}")))
            }
            (false, None) if first.cast::<PyMapping>().is_ok() => {
                let items = first.cast::<PyMapping>()?.items()?;
                let mut list = Vec::with_capacity(items.len());
                let mut others = Vec::with_capacity(items.len());
                for item in items.iter() {
                    let (name, other): (Bound<'py, PyAny>, Bound<'py, PyAny>) = item.extract()?;
                    list.push(key(&name)?);
                    others.push(other);
                }
                Ok(Self { keys: Keys { list, is_one: false }, others })
            }
            (false, _) => {
                let hint = format!("many are given as one mapping, `{call}({{key: {what}, …}})`");
                Err(wrong_type("a key is str or bytes", first, &hint))
            }
        }
    }
}

/// The bytes of one key: those of `bytes`, or the UTF-8 of `str`.
pub(crate) fn key(given: &Bound<'_, PyAny>) -> PyResult<Key> {
    let py = given.py();
    let made = if let Ok(text) = given.cast::<PyString>() {
        let text = text.to_str().map_err(|_| {
            invalid(py, "the key cannot be written as UTF-8\n\nhint: give it as bytes, as `os.fsencode` does")
        })?;
        Key::new(text.as_bytes())
    } else if let Ok(bytes) = given.cast::<PyBytes>() {
        Key::new(bytes.as_bytes())
    } else {
        return Err(no_key(given));
    };
    made.map_err(|error| errors::raise(py, &error.into()))
}

/// A key as Python shows it: text where it is text.
pub(crate) fn show<'py>(py: Python<'py>, key: &Key) -> PyResult<Bound<'py, PyAny>> {
    Ok(match std::str::from_utf8(key.as_bytes()) {
        Ok(text) => PyString::new(py, text).into_any(),
        Err(_) => PyBytes::new(py, key.as_bytes()).into_any(),
    })
}

/// The start of keys: like a key, but it may be empty.
pub(crate) fn prefix(given: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if is_key(given) && given.len()? == 0 { Ok(Vec::new()) } else { Ok(key(given)?.as_bytes().to_vec()) }
}

/// A time limit in seconds; `default` where none is given.
pub(crate) fn time(given: Option<&Bound<'_, PyAny>>, default: Duration) -> PyResult<Duration> {
    let Some(given) = given else { return Ok(default) };
    let hint = "give seconds, as in timeout=2.5";
    let seconds: f64 = given.extract().map_err(|_| wrong_type("a timeout is a number", given, hint))?;
    if seconds.is_nan() || seconds < 0.0 {
        let what = format!("a timeout of {seconds} seconds\n\nhint: {hint}; `math.inf` waits for ever");
        return Err(invalid(given.py(), what));
    }
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or(TIME_MAX).min(TIME_MAX))
}

/// What stands for an object that is not there; without it, that is an error.
pub(crate) struct Missing(pub(crate) Option<Py<PyAny>>);

impl<'a, 'py> FromPyObject<'a, 'py> for Missing {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self(Some(given.to_owned().unbind())))
    }
}

/// Whether it is a key by itself, and not many.
pub(crate) fn is_key(given: &Bound<'_, PyAny>) -> bool {
    given.is_instance_of::<PyString>() || given.is_instance_of::<PyBytes>()
}

fn no_key(given: &Bound<'_, PyAny>) -> PyErr {
    wrong_type("a key is str or bytes", given, "many keys are given as a list of them")
}
