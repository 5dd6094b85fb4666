//! Arguments of Mooncake's methods. An invalid argument is always a `TypeError`.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyInt, PyList, PyString, PyTuple};
use tiffin_types::{Key, Keys};

/// A key: text, which is stored as UTF-8, or bytes. It may be empty or too long: see [`KeyArg::key`].
#[derive(Clone, Debug)]
pub(crate) struct KeyArg(Option<Key>);

impl KeyArg {
    fn new(bytes: &[u8]) -> Self {
        Self(Key::new(bytes).ok())
    }

    /// No key.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// The key; `None` if no object can have it.
    pub(crate) fn key(&self) -> Option<Key> {
        self.0.clone()
    }
}

impl From<Key> for KeyArg {
    fn from(key: Key) -> Self {
        Self(Some(key))
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for KeyArg {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        with_name(&object, Self::new)
    }
}

/// The keys of a probe, in one allocation: one allocation per key would dominate the cost of the call.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameArgs {
    /// The valid keys.
    pub(crate) keys: Keys,
    /// The ascending positions of the invalid keys in the given list.
    unfit: Vec<usize>,
}

impl NameArgs {
    /// The number of given keys.
    pub(crate) fn len(&self) -> usize {
        self.keys.len() + self.unfit.len()
    }

    /// Inserts an answer for the invalid keys.
    pub(crate) fn merge<A: Copy>(&self, answers: impl IntoIterator<Item = A>, unfit: A) -> Vec<A> {
        let (mut answers, mut places) = (answers.into_iter(), self.unfit.iter().peekable());
        let mut last = unfit;
        let merge = |place| {
            if places.next_if(|it| **it == place).is_some() {
                return unfit;
            }
            // A single failure applies to all keys.
            last = answers.next().unwrap_or(last);
            last
        };
        (0..self.len()).map(merge).collect()
    }

    fn add(&mut self, name: &[u8]) {
        if self.keys.push(name).is_err() {
            self.unfit.push(self.len());
        }
    }
}

impl From<&KeyArg> for NameArgs {
    fn from(key: &KeyArg) -> Self {
        let mut names = Self::default();
        names.add(key.0.as_ref().map(Key::as_bytes).unwrap_or_default());
        names
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for NameArgs {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let mut names = Self { keys: Keys::with_capacity(count(&object), 0), unfit: Vec::new() };
        each(object, |item| with_name(&item, |name| names.add(name)))?;
        Ok(names)
    }
}

/// Calls `look` with the bytes of a key.
fn with_name<R>(object: &Bound<'_, PyAny>, look: impl FnOnce(&[u8]) -> R) -> PyResult<R> {
    if let Ok(text) = object.cast::<PyString>() {
        let text = text.to_cow().map_err(|_| PyTypeError::new_err("a key must be valid Unicode text"))?;
        return Ok(look(text.as_bytes()));
    }
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(look(bytes.as_bytes()));
    }
    if let Ok(bytes) = object.cast::<PyByteArray>() {
        return Ok(look(&bytes.to_vec()));
    }
    Err(PyTypeError::new_err(format!("a key must be str or bytes, not {}", type_name(object))))
}

/// Text: a `str`, or the UTF-8 of one.
#[derive(Clone, Debug)]
pub(crate) struct Text(pub(crate) String);

impl<'a, 'py> FromPyObject<'a, 'py> for Text {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let invalid = || PyTypeError::new_err("expected valid Unicode text");
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(Self(text.to_cow().map_err(|_| invalid())?.into_owned()));
        }
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self(String::from_utf8(bytes.as_bytes().to_vec()).map_err(|_| invalid())?));
        }
        Err(PyTypeError::new_err(format!("expected str, not {}", type_name(&object))))
    }
}

/// The texts of a list.
pub(crate) fn texts(items: Items<Text>) -> Vec<String> {
    items.0.into_iter().map(|it| it.0).collect()
}

/// An address, a size or a count: an integer from 0 to 2^64 - 1. A bool counts as one, a float does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number(pub(crate) u64);

impl<'a, 'py> FromPyObject<'a, 'py> for Number {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        // For an integer that fits, this is the quickest question to the interpreter. Calls have thousands.
        if let Ok(number) = object.cast::<PyInt>()
            && let Ok(number) = number.extract::<i64>()
            && let Ok(number) = u64::try_from(number)
        {
            return Ok(Self(number));
        }
        let number = object.extract::<u64>().map(Self);
        number.map_err(|_| {
            PyTypeError::new_err(format!("expected a non-negative integer, not {}", shown(&object)))
        })
    }
}

impl<'py> IntoPyObject<'py> for Number {
    type Target = pyo3::types::PyInt;
    type Output = Bound<'py, Self::Target>;
    type Error = std::convert::Infallible;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Self::Error> {
        self.0.into_pyobject(py)
    }
}

/// A boolean argument: a bool, a number or `None`, as pybind11 accepts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flag(pub(crate) bool);

impl<'a, 'py> FromPyObject<'a, 'py> for Flag {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if object.is_none() || object.hasattr("__bool__")? {
            return object.is_truthy().map(Self);
        }
        Err(PyTypeError::new_err(format!("expected a bool, not {}", type_name(&object))))
    }
}

/// A list, a tuple or any other iterable but text and bytes.
#[derive(Clone, Debug)]
pub(crate) struct Items<T>(pub(crate) Vec<T>);

impl<'a, 'py, T> FromPyObject<'a, 'py> for Items<T>
where
    T: FromPyObjectOwned<'py>,
    for<'x> PyErr: From<<T as FromPyObject<'x, 'py>>::Error>,
{
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let mut items = Vec::with_capacity(count(&object));
        each(object, |item| {
            items.push(item.extract()?);
            Ok(())
        })?;
        Ok(Self(items))
    }
}

/// A lower bound of the number of items.
fn count(object: &Bound<'_, PyAny>) -> usize {
    let list = object.cast::<PyList>().map(PyListMethods::len);
    list.or_else(|_| object.cast::<PyTuple>().map(PyTupleMethods::len)).unwrap_or(0)
}

/// Extracts the items of a list, a tuple or any other iterable but text and bytes.
fn each<'py>(
    object: Borrowed<'_, 'py, PyAny>,
    mut take: impl FnMut(Bound<'py, PyAny>) -> PyResult<()>,
) -> PyResult<()> {
    if let Ok(list) = object.cast::<PyList>() {
        return list.iter().try_for_each(take);
    }
    if let Ok(tuple) = object.cast::<PyTuple>() {
        return tuple.iter().try_for_each(take);
    }
    if object.is_instance_of::<PyString>() || object.is_instance_of::<PyBytes>() {
        return Err(PyTypeError::new_err(format!("expected a list, not {}", type_name(&object))));
    }
    object.try_iter()?.try_for_each(|item| take(item?))
}

/// The type of an object, for messages.
pub(crate) fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "another type".to_owned(), |name| name.to_string())
}

fn shown(object: &Bound<'_, PyAny>) -> String {
    let value = if object.is_instance_of::<pyo3::types::PyInt>() { object.str().ok() } else { None };
    value.map_or_else(|| type_name(object), |value| value.to_string())
}
