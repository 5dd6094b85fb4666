//! The write path of the methods in the table of `mooncake/_forms.py`: batches of objects made of values
//! and of memory at addresses, which may replace existing objects.

use std::collections::BTreeMap;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tiffin_client::probe::Access;
use tiffin_client::{OnExists, Put, PutOptions, ResolveOptions, SOFT_PIN_DEFAULT, SourceBuf};

use super::arguments::{Items, KeyArg, Number};
use super::calls;
use super::checks::{self, Checked, Devices};
use super::class::MooncakeDistributedStore;
use super::codes;
use super::config::{PutForm, ReplicateConfig};
use super::memory::{self, Lent};
use super::open::Open;
use super::store::allowed;

/// The rows of a tensor, or of a part of it, given by address.
#[derive(Clone, Copy, Debug)]
struct Rows {
    address: u64,
    /// The bytes of one row.
    len: u64,
    count: u64,
    /// From the start of one row to the start of the next.
    stride: u64,
}

impl Rows {
    /// The range from the first byte to the last; `None` if it is not an address range.
    fn span(self) -> Option<(u64, u64)> {
        let last = self.count.checked_sub(1)?.checked_mul(self.stride)?;
        let len = last.checked_add(self.len)?;
        self.address.checked_add(len).map(|_| (self.address, len))
    }
}

/// A part of an object: a value with the buffer protocol, or `(address, bytes of a row, rows, stride)`.
enum Part<'py> {
    Value(Lent<'py>),
    Rows(Rows),
}

impl<'py> Part<'py> {
    fn new(part: &Bound<'py, PyAny>) -> PyResult<Self> {
        let Ok(rows) = part.cast::<PyTuple>() else { return Lent::new(part).map(Self::Value) };
        let (address, len, count, stride): (Number, Number, Number, Number) = rows.extract()?;
        Ok(Self::Rows(Rows { address: address.0, len: len.0, count: count.0, stride: stride.0 }))
    }

    fn range(&self) -> Option<(u64, u64)> {
        match self {
            Self::Value(_) => None,
            // An invalid range becomes one without memory, so that only this object fails.
            Self::Rows(rows) if rows.count > 0 && rows.len > 0 => Some(rows.span().unwrap_or((0, 1))),
            Self::Rows(_) => None,
        }
    }

    fn add_sources<'a>(
        &'a self,
        open: &Open,
        devices: &Devices,
        how: Source,
        to: &mut Vec<SourceBuf<'a>>,
    ) -> Result<(), i64> {
        let source = |start, len| source(open, devices, how, start, len);
        match self {
            Self::Value(value) => to.push(value.source()),
            Self::Rows(rows) if rows.len == rows.stride || rows.count <= 1 => {
                let (start, len) = rows.span().unwrap_or((rows.address, 0));
                if len > 0 {
                    to.push(source(start, len)?);
                }
            }
            Self::Rows(rows) => {
                for row in 0..rows.count {
                    to.push(source(rows.address + row * rows.stride, rows.len)?);
                }
            }
        }
        Ok(())
    }
}

fn source<'a>(
    open: &Open,
    devices: &Devices,
    how: Source,
    start: u64,
    len: u64,
) -> Result<SourceBuf<'a>, i64> {
    let source = memory::source(start, len, devices.place(start, len));
    match how {
        Source::Buffer => allowed(open, start, len, source),
        Source::Value | Source::Tensor => source.ok_or(codes::INVALID_PARAMS),
    }
}

/// The kind of the objects' parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Bytes, which Mooncake copies into the local buffer first: a value that does not fit fails the call.
    Value,
    /// The caller's memory, which an environment variable may require to be registered.
    Buffer,
    /// The memory of tensors.
    Tensor,
}

impl<'a, 'py> FromPyObject<'a, 'py> for Source {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        match object.extract::<&str>()? {
            "value" => Ok(Self::Value),
            "buffer" => Ok(Self::Buffer),
            "tensor" => Ok(Self::Tensor),
            other => Err(PyTypeError::new_err(format!("`{other}` is not a source"))),
        }
    }
}

/// Store objects, each made of parts. Returns 0 or a negative code for each.
///
/// `source` is "value", "buffer" or "tensor". `groups` is the number of group ids that the config must
/// have, if it has any. A repeated key keeps its last object if `replaces`, and otherwise its first.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "each is a column of the table")]
pub(super) fn write(
    py: Python<'_>,
    store: &Bound<'_, MooncakeDistributedStore>,
    call: &str,
    keys: Items<KeyArg>,
    objects: Items<Items<Bound<'_, PyAny>>>,
    config: ReplicateConfig,
    groups: usize,
    source: Source,
    replaces: bool,
) -> PyResult<Vec<i64>> {
    let objects = objects.0.iter().map(|parts| parts.0.iter().map(Part::new).collect::<PyResult<Vec<_>>>());
    let objects = objects.collect::<PyResult<Vec<_>>>()?;
    let count = keys.0.len();
    let Some(open) = store.get().open().filter(|_| objects.len() == count) else {
        return Ok(vec![codes::INVALID_PARAMS; count]);
    };
    let form = if source == Source::Tensor { PutForm::MultiBuffer } else { PutForm::Plain };
    let mut options = match config.options(groups, form) {
        Ok(options) => options,
        Err(code) => return Ok(vec![code; count]),
    };
    if replaces {
        options.on_exists = on_exists(&config, &options);
    }
    let is_storable = |parts: &Vec<Part<'_>>| source != Source::Value || is_staged(&open, parts);
    if !objects.iter().all(is_storable) {
        return Ok(vec![codes::INVALID_PARAMS; count]);
    }
    let ranges: Vec<Vec<_>> = objects.iter().map(|it| it.iter().filter_map(Part::range).collect()).collect();
    let Checked { usable, devices } = checks::usable(&open, call, &ranges, Access::Read);
    let objects = keys.0.iter().zip(&objects).zip(usable);
    let puts = objects.map(|((key, parts), is_usable)| {
        let mut sources = Vec::with_capacity(parts.len());
        for part in parts.iter().filter(|_| is_usable) {
            part.add_sources(&open, &devices, source, &mut sources)?;
        }
        match key.key() {
            Some(key) if is_usable && sources.iter().any(|it| !it.is_empty()) => {
                Ok(Put { key, parts: sources, options: options.clone() })
            }
            _ => Err(codes::INVALID_PARAMS),
        }
    });
    let puts = puts.collect();
    // Mooncake's batch of values keeps the first of two values, its batch of buffers the last.
    let (puts, places) = once_each(puts, replaces && source != Source::Value);
    let (mut codes, kept) = calls::put_or_keep(py, &open, puts)?;
    if replaces && !kept.is_empty() {
        replace_pinned(py, &open, &config, kept, &mut codes)?;
    }
    let code = |place: usize| codes.get(place).copied().unwrap_or(codes::RPC_FAIL);
    Ok(places.into_iter().map(code).collect())
}

/// Which objects an upsert replaces at once. Mooncake's upserts keep the pins of the object that they
/// replace, and only few objects have any: those are looked up first, see [`replace_pinned`].
fn on_exists(config: &ReplicateConfig, options: &PutOptions) -> OnExists {
    match (options.hard_pin, config.keeps_soft_pin()) {
        (_, true) => OnExists::KeepPinned,
        (false, false) => OnExists::KeepHardPinned,
        // The config sets all pins itself.
        (true, false) => OnExists::Replace,
    }
}

/// Replaces objects that have pins, which the new objects keep. If the master does not answer, its code is
/// that of each of them.
fn replace_pinned(
    py: Python<'_>,
    open: &Open,
    config: &ReplicateConfig,
    kept: Vec<(usize, Put<'_>)>,
    codes: &mut [i64],
) -> PyResult<()> {
    let keys: Vec<KeyArg> = kept.iter().map(|(_, put)| put.key.clone().into()).collect();
    // Such a lookup does not count as a use, and takes no lease.
    let found = calls::resolve(py, open, &keys, ResolveOptions::default())?;
    let (places, puts): (Vec<_>, Vec<_>) = kept.into_iter().unzip();
    let puts = puts.into_iter().zip(found).map(|(put, found)| {
        let unreached = |it: &i64| [codes::RPC_FAIL, codes::RPC_TIMEOUT].contains(it);
        if let Some(code) = found.as_ref().err().map(codes::of).filter(unreached) {
            return Err(code);
        }
        let (hard, soft) = found.ok().flatten().map_or((false, false), |it| (it.hard_pin, it.soft_pin));
        let keeps_soft = soft && config.keeps_soft_pin();
        let options = PutOptions {
            on_exists: OnExists::Replace,
            hard_pin: put.options.hard_pin || hard,
            soft_pin_ms: put.options.soft_pin_ms.or(keeps_soft.then_some(SOFT_PIN_DEFAULT)),
            ..put.options
        };
        Ok(Put { options, ..put })
    });
    let again = calls::put(py, open, puts.collect())?;
    for (place, code) in places.into_iter().zip(again) {
        codes.get_mut(place).into_iter().for_each(|it| *it = code);
    }
    Ok(())
}

/// Whether a value fits the local buffer.
fn is_staged(open: &Open, parts: &[Part<'_>]) -> bool {
    let len = |part: &Part<'_>| if let Part::Value(value) = part { value.len() } else { 0 };
    let len = parts.iter().map(len).fold(0, u64::saturating_add);
    len > 0 && len <= open.buffer_bytes
}

type Puts<'a> = Vec<Result<Put<'a>, i64>>;

/// Each key once, with its first or its last object, and the position of every object's answer.
fn once_each(puts: Puts<'_>, keeps_last: bool) -> (Puts<'_>, Vec<usize>) {
    let mut known = BTreeMap::new();
    let (mut once, mut places) = (Vec::with_capacity(puts.len()), Vec::with_capacity(puts.len()));
    for put in puts {
        let place = match &put {
            Ok(put) => *known.entry(put.key.clone()).or_insert(once.len()),
            Err(_) => once.len(),
        };
        places.push(place);
        match once.get_mut(place) {
            Some(kept) if keeps_last => *kept = put,
            Some(_) => {}
            None => once.push(put),
        }
    }
    (once, places)
}
