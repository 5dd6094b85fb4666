//! Common arguments of calls: one key or many, ranges of bytes, time limits, the substitute for a missing
//! object.

use std::ops::Range;
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyMapping, PyString, PyTuple};
use tiffin_client::{Key, Pattern};
use tiffin_types::Generation;

use crate::errors::{self, invalid, wrong_type};

/// The maximum of a time limit, about thirty years, which is practically unlimited.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(86_400 * 365 * 30);

/// One key, or many in order.
pub(crate) struct Keys {
    pub(crate) list: Vec<Key>,
    /// Whether a single key was given, so that its result is not a list.
    pub(crate) is_one: bool,
}

impl Keys {
    /// A key is `str` or `bytes`; any other iterable contains many.
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

    /// The requested bytes of each object: one pair `(offset, length)` for all, or a list with a pair or
    /// `None` (the whole object) for each.
    pub(crate) fn ranges(&self, given: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<Option<Range<u64>>>> {
        let count = self.list.len();
        let Some(given) = given else { return Ok(vec![None; count]) };
        if given.is_instance_of::<PyTuple>() {
            return Ok(vec![Some(range(given)?); count]);
        }
        let Ok(items) = given.try_iter() else { return Err(no_range(given)) };
        let item = |item: PyResult<Bound<'_, PyAny>>| {
            item.and_then(|it| if it.is_none() { Ok(None) } else { range(&it).map(Some) })
        };
        let ranges = items.map(item).collect::<PyResult<Vec<_>>>()?;
        if self.is_one || ranges.len() != count {
            let what = format!("a list of {} ranges for {count} keys", ranges.len());
            let hint = "give one range for each key of a list, or one pair for all; a key may repeat";
            return Err(invalid(given.py(), format!("{what}\n\nhint: {hint}")));
        }
        Ok(ranges)
    }

    /// Returns a single result as it is, and many as a list.
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

/// A key and its value or buffer, or many of them.
pub(crate) struct Pairs<'py> {
    pub(crate) keys: Keys,
    pub(crate) others: Vec<Bound<'py, PyAny>>,
}

impl<'py> Pairs<'py> {
    /// Either a key and a value, or a mapping from keys to values.
    pub(crate) fn parse(
        first: &Bound<'py, PyAny>,
        second: Option<&Bound<'py, PyAny>>,
        call: &str,
        what: &str,
    ) -> PyResult<Self> {
        match (is_key(first), second) {
            (true, Some(other)) => Ok(Self { keys: Keys::parse(first)?, others: vec![other.clone()] }),
            (true, None) => {
                let hint =
                    format!("write `{call}(key, {what})` for one, `{call}({{key: {what}, …}})` for many");
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
            (false, Some(second)) if first.cast::<PyMapping>().is_err() && first.try_iter().is_ok() => {
                let keys = Keys::parse(first)?;
                let others = match second.try_iter() {
                    Ok(others) if !is_key(second) => others.collect::<PyResult<Vec<_>>>()?,
                    _ => {
                        let wanted = format!("many keys have a list with a {what} for each");
                        let hint = format!("`{call}([key, …], [{what}, …])`");
                        return Err(wrong_type(&wanted, second, &hint));
                    }
                };
                if keys.list.len() != others.len() {
                    let what = format!("{} keys, but {} {what}s", keys.list.len(), others.len());
                    return Err(invalid(first.py(), format!("{what}\n\nhint: give one for each key")));
                }
                Ok(Self { keys, others })
            }
            (false, _) => {
                let hint = format!("give many as one mapping, `{call}({{key: {what}, …}})`");
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

/// A prefix of keys: like a key, but it may be empty.
pub(crate) fn prefix(given: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if is_key(given) && given.len()? == 0 { Ok(Vec::new()) } else { Ok(key(given)?.as_bytes().to_vec()) }
}

/// The objects whose keys have a prefix: all of them if it is empty or not given.
pub(crate) fn pattern(given: Option<&Bound<'_, PyAny>>) -> PyResult<Pattern> {
    let prefix = given.map(prefix).transpose()?.unwrap_or_default();
    Ok(if prefix.is_empty() { Pattern::All } else { Pattern::Prefix(prefix) })
}

/// A whole number from Python, before its range is checked: see [`count`].
pub(crate) type Whole = i128;

/// Extracts a whole number. One that is too large becomes the maximum.
pub(crate) fn whole(given: &Bound<'_, PyAny>) -> PyResult<Whole> {
    if let Ok(number) = given.extract::<i64>() {
        return Ok(number.into());
    }
    match given.extract::<Whole>() {
        Ok(number) => Ok(number),
        Err(_) if given.is_instance_of::<PyInt>() => Ok(if given.lt(0)? { Whole::MIN } else { Whole::MAX }),
        Err(_) => Err(wrong_type("the argument is a whole number", given, "give an int")),
    }
}

/// The same for an optional number.
pub(crate) fn whole_or_none(given: &Bound<'_, PyAny>) -> PyResult<Option<Whole>> {
    if given.is_none() { Ok(None) } else { whole(given).map(Some) }
}

/// A number that is `least` or more, and fits its type.
pub(crate) fn count<T: TryFrom<Whole>>(
    py: Python<'_>,
    name: &str,
    given: Whole,
    least: Whole,
) -> PyResult<T> {
    let number = if given < least { None } else { T::try_from(given).ok() };
    number.ok_or_else(|| {
        let hint = match (given < least, least) {
            (false, _) => "give a smaller number, or leave it out for the default".to_owned(),
            (true, 0) => "give 0 or more".to_owned(),
            (true, least) => format!("give {least} or more"),
        };
        let shown =
            if given == Whole::MAX || given == Whole::MIN { "…".to_owned() } else { given.to_string() };
        invalid(py, format!("{name}={shown}\n\nhint: {hint}"))
    })
}

/// Extracts an optional generation, which is a pair of an epoch and a counter.
pub(crate) fn generation_or_none(given: &Bound<'_, PyAny>) -> PyResult<Option<Generation>> {
    if given.is_none() {
        return Ok(None);
    }
    let hint = "give the `generation` of a ref, as in `behind=ref.generation`";
    let Ok((epoch, counter)) = given.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>() else {
        return Err(wrong_type("a generation is a pair of integers", given, hint));
    };
    let number = |it: &Bound<'_, PyAny>| {
        if !it.is_instance_of::<PyInt>() {
            return Err(wrong_type("a generation is a pair of integers", given, hint));
        }
        let problem = "is not a generation: epoch and counter have 64 bits and no sign";
        it.extract().map_err(|_| invalid(given.py(), format!("{given} {problem}\n\nhint: {hint}")))
    };
    Ok(Some(Generation { epoch: number(&epoch)?, counter: number(&counter)? }))
}

/// A time limit in seconds; `default` where none is given.
pub(crate) fn time(given: Option<&Bound<'_, PyAny>>, default: Duration) -> PyResult<Duration> {
    let Some(given) = given else { return Ok(default) };
    let hint = "give seconds, as in timeout=2.5";
    let seconds = number_of_seconds(given, "a timeout is a number", hint)?;
    if seconds.is_nan() || seconds < 0.0 {
        let what = format!("a timeout of {seconds} seconds\n\nhint: {hint}; `math.inf` waits forever");
        return Err(invalid(given.py(), what));
    }
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or(TIME_MAX).min(TIME_MAX))
}

fn number_of_seconds(given: &Bound<'_, PyAny>, wanted: &str, hint: &str) -> PyResult<f64> {
    match given.extract() {
        Ok(seconds) => Ok(seconds),
        // The number is too large for a float.
        Err(_) if given.is_instance_of::<PyInt>() => Ok(if given.lt(0)? { f64::MIN } else { f64::MAX }),
        Err(_) => Err(wrong_type(wanted, given, hint)),
    }
}

/// A duration in seconds, as whole milliseconds; at most [`TIME_MAX`].
pub(crate) fn milliseconds(name: &str, given: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u64>> {
    let Some(given) = given else { return Ok(None) };
    let hint = format!("give seconds, as in {name}=60");
    let seconds = number_of_seconds(given, &format!("{name} is a number of seconds"), &hint)?;
    if seconds.is_nan() || seconds < 0.0 {
        let problem = if seconds.is_nan() { "is not a number" } else { "is negative" };
        return Err(invalid(given.py(), format!("{name}={given} {problem}\n\nhint: {hint}")));
    }
    let time = Duration::try_from_secs_f64(seconds).unwrap_or(TIME_MAX).min(TIME_MAX);
    Ok(Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
}

/// The substitute for a missing object. Without it, a missing object is an error.
pub(crate) struct Missing(pub(crate) Option<Py<PyAny>>);

impl Missing {
    /// The substitute, if one was given; the inner `None` is Python's `None`.
    pub(crate) fn given<'py>(&self, py: Python<'py>) -> Option<Option<Bound<'py, PyAny>>> {
        let given = self.0.as_ref()?.bind(py);
        Some((!given.is_none()).then(|| given.clone()))
    }
}

/// No substitute.
pub(crate) const UNGIVEN: Missing = Missing(None);

impl<'a, 'py> FromPyObject<'a, 'py> for Missing {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self(Some(given.to_owned().unbind())))
    }
}

/// Whether the argument is a single key.
pub(crate) fn is_key(given: &Bound<'_, PyAny>) -> bool {
    given.is_instance_of::<PyString>() || given.is_instance_of::<PyBytes>()
}

/// One range of bytes. A range that no object can have counts as outside this object.
fn range(given: &Bound<'_, PyAny>) -> PyResult<Range<u64>> {
    let Ok((offset, length)) = given.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>() else {
        return Err(no_range(given));
    };
    let number = |it: &Bound<'_, PyAny>| match it.extract::<u64>() {
        Ok(number) => Ok(number),
        Err(_) if it.is_instance_of::<PyInt>() && it.gt(0)? => Ok(u64::MAX),
        Err(_) if it.is_instance_of::<PyInt>() => {
            let hint = "give offset and length in bytes, counted from the start of the object";
            Err(invalid(given.py(), format!("range={given}\n\nhint: {hint}")))
        }
        Err(_) => Err(no_range(given)),
    };
    let (offset, length) = (number(&offset)?, number(&length)?);
    Ok(offset..offset.saturating_add(length))
}

fn no_range(given: &Bound<'_, PyAny>) -> PyErr {
    wrong_type(
        "a range is a pair of integers",
        given,
        "write `range=(offset, length)`, or a list of such pairs",
    )
}

fn no_key(given: &Bound<'_, PyAny>) -> PyErr {
    wrong_type("a key is str or bytes", given, "give many keys as a list")
}
