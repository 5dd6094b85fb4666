//! Objects and parts of them in memory of their own, for the tensor calls; and bytes at addresses.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::time::Duration;

use pyo3::exceptions::{PyBufferError, PyException};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tiffin_client::gpu;
use tiffin_client::probe::Access;
use tiffin_client::{Client, Deadline, Error, GetInto, GetOptions};

use super::arguments::{Items, KeyArg, Number};
use super::calls::{self, LEASED, Whole};
use super::checks;
use super::class::MooncakeDistributedStore;
use super::memory;
use super::open::Open;

/// The time limit for reading a header from a device.
const PEEK_TIME_MAX: Duration = Duration::from_secs(10);

pyo3::create_exception!(
    mooncake,
    ReadFailed,
    PyException,
    "An object may exist, and cannot be read now: its node or the master does not answer in time."
);

/// The bytes of an object, writable, in memory of their own. A tensor over them keeps this object.
#[pyclass(module = "mooncake.store", frozen)]
pub(crate) struct OwnedBytes {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to this object alone and is freed when it is dropped. Rust code does not
// access it in between. Python threads must order their own accesses, as with a `bytearray`.
unsafe impl Send for OwnedBytes {}
// SAFETY: as above; a shared reference gives out the address only.
unsafe impl Sync for OwnedBytes {}

impl OwnedBytes {
    fn new(bytes: Vec<u8>) -> Self {
        let bytes = Box::into_raw(bytes.into_boxed_slice());
        Self { start: NonNull::new(bytes.cast()).unwrap_or(NonNull::dangling()), len: bytes.len() }
    }
}

impl Drop for OwnedBytes {
    fn drop(&mut self) {
        let bytes = ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.len);
        // SAFETY: made by `Box::into_raw` in `new`, and dropped once. An exported buffer holds a reference
        // to this object, so that none is left.
        drop(unsafe { Box::from_raw(bytes) });
    }
}

#[pymethods]
impl OwnedBytes {
    fn __len__(&self) -> usize {
        self.len
    }

    // SAFETY: called by the interpreter, with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("the view is null"));
        }
        let this = slf.get();
        let (start, len) = (this.start.as_ptr().cast::<c_void>(), this.len as isize);
        // SAFETY: `view` is valid for writes. The bytes are valid while the reference to the object exists
        // that the function stores in the view.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 0, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

/// Read whole objects that fit the local buffer. Returns `None` for the others.
#[pyfunction]
pub(super) fn read_owned(
    py: Python<'_>,
    store: &Bound<'_, MooncakeDistributedStore>,
    keys: Items<KeyArg>,
) -> PyResult<Vec<Option<OwnedBytes>>> {
    let found = match store.get().open() {
        Some(open) => calls::get(py, &open, &keys.0)?,
        None => keys.0.iter().map(|_| None).collect(),
    };
    Ok(found.into_iter().map(|it| it.map(OwnedBytes::new)).collect())
}

/// Read a whole object. Returns `None` if there is no such object, or if it exceeds `limited`, the size of
/// the local buffer. Raises `ReadFailed` if it cannot be read for another reason.
#[pyfunction]
pub(super) fn read_one(
    py: Python<'_>,
    store: &Bound<'_, MooncakeDistributedStore>,
    key: KeyArg,
    limited: bool,
) -> PyResult<Option<OwnedBytes>> {
    let Some(open) = store.get().open() else { return Ok(None) };
    let bytes_max = if limited { open.buffer_bytes } else { u64::MAX };
    match calls::get_whole(py, &open, &[key], bytes_max)?.pop() {
        Some(Whole::Read(bytes)) => Ok(Some(OwnedBytes::new(bytes))),
        Some(Whole::Absent) => Ok(None),
        Some(Whole::Failed) | None => Err(ReadFailed::new_err("object cannot be read now")),
    }
}

/// The size of an object, its first bytes, and its generation.
type Head<'py> = (u64, Bound<'py, PyBytes>, String);

/// Read the first `len` bytes of objects. Returns for each the object's size, those bytes and its
/// generation; `None` for objects that do not exist or are shorter. Returns `None` for all if one was
/// replaced or removed between the two requests. Raises `ReadFailed` if one cannot be read for another
/// reason.
#[pyfunction]
pub(super) fn read_heads<'py>(
    py: Python<'py>,
    store: &Bound<'py, MooncakeDistributedStore>,
    keys: Items<KeyArg>,
    len: usize,
) -> PyResult<Option<Vec<Option<Head<'py>>>>> {
    let Some(open) = store.get().open() else { return Ok(Some(keys.0.iter().map(|_| None).collect())) };
    let keys = keys.0.as_slice();
    let failed = |error: Error| ReadFailed::new_err(error.to_string());
    let found = calls::resolve(py, &open, keys, LEASED)?;
    let found = found.into_iter().collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let infos: Vec<_> = found.into_iter().map(|it| it.filter(|info| info.len >= len as u64)).collect();
    let mut heads: Vec<_> = infos.iter().flatten().map(|_| vec![0_u8; len]).collect();
    let wanted = keys.iter().zip(&infos).filter(|(_, info)| info.is_some());
    let keys = wanted.filter_map(|(key, _)| key.key());
    let gets: Vec<_> =
        keys.zip(&mut heads).map(|(key, head)| GetInto::new(key, head).range(0..len as u64)).collect();
    let fetched = fetch(py, &open, &gets)?;
    drop(gets);
    for (info, fetched) in infos.iter().flatten().zip(fetched) {
        match fetched {
            Ok(fetched) if fetched.generation == info.generation => {}
            Ok(_) | Err(Error::NotFound { .. } | Error::OutOfRange { .. }) => return Ok(None),
            Err(error) => return Err(failed(error)),
        }
    }
    let mut heads = heads.into_iter();
    let mut head = |info: tiffin_client::Info| {
        Some((info.len, PyBytes::new(py, &heads.next()?), info.generation.to_string()))
    };
    Ok(Some(infos.into_iter().map(|info| info.and_then(&mut head)).collect()))
}

fn fetch(
    py: Python<'_>,
    open: &Open,
    gets: &[GetInto<'_>],
) -> PyResult<Vec<Result<tiffin_client::Fetched, Error>>> {
    let deadline = Deadline::after(open.call_time);
    let options = GetOptions { lease: true, promotion_wait_ms: open.promotion_wait_ms };
    let get = async |client: &Client| Ok(client.get_into(gets, options, deadline).await);
    let fetched = open.handle.call(py, deadline, get)?;
    Ok(fetched.unwrap_or_else(|error| vec![Err(error); gets.len()]))
}

/// Bytes of an object that go to rows in memory: its key, their offset in the object, the address of the
/// first row, the bytes of a row, the number of rows, the distance between rows, and the expected
/// generation.
#[derive(FromPyObject)]
pub(super) struct ToRows(KeyArg, Number, Number, Number, Number, Number, String);

impl ToRows {
    fn get(&self) -> Option<GetInto<'static>> {
        let Self(key, start, address, len, rows, stride, _) = self;
        // Without a driver in this process this is host memory.
        let place = gpu::find(address.0, len.0).ok();
        let row = |at: u64| memory::target(address.0.checked_add(at.checked_mul(stride.0)?)?, len.0, place);
        let targets = (0..rows.0).map(row).collect::<Option<Vec<_>>>()?;
        let end = start.0.checked_add(len.0.checked_mul(rows.0)?)?;
        Some(GetInto::scattered(key.key()?, targets).range(start.0..end))
    }
}

/// Read ranges of objects into rows of memory that the caller has just allocated or checked. Returns for
/// each whether it was read from the expected generation.
#[pyfunction]
pub(super) fn read_rows(
    py: Python<'_>,
    store: &Bound<'_, MooncakeDistributedStore>,
    wanted: Items<ToRows>,
) -> PyResult<Vec<bool>> {
    let gets: Option<Vec<_>> = wanted.0.iter().map(ToRows::get).collect();
    let (Some(open), Some(gets)) = (store.get().open(), gets) else {
        return Ok(vec![false; wanted.0.len()]);
    };
    let fetched = fetch(py, &open, &gets)?.into_iter().zip(&wanted.0);
    let is_read = |(fetched, wanted): (Result<tiffin_client::Fetched, Error>, &ToRows)| {
        fetched.is_ok_and(|it| it.generation.to_string() == wanted.6)
    };
    Ok(fetched.map(is_read).collect())
}

/// The bytes at an address, or `None` if they are not memory that this process can read.
#[pyfunction]
pub(super) fn peek<'py>(
    py: Python<'py>,
    store: &Bound<'py, MooncakeDistributedStore>,
    address: Number,
    len: usize,
) -> Option<Bound<'py, PyBytes>> {
    let open = store.get().open()?;
    if address.0 == 0 {
        return None;
    }
    if let Some(place) = checks::find(&open, address.0, len as u64, Access::Read).ok()? {
        let read = py.detach(|| gpu::read(place, address.0, len, PEEK_TIME_MAX));
        return read.ok()?.map(|bytes| PyBytes::new(py, &bytes));
    }
    let start = ptr::with_exposed_provenance::<u8>(usize::try_from(address.0).ok()?);
    let mut bytes = vec![0; len];
    // SAFETY: the range was just found to be readable, and the caller of the Python method keeps it mapped.
    // The target is new memory of that size.
    unsafe { ptr::copy_nonoverlapping(start, bytes.as_mut_ptr(), len) };
    Some(PyBytes::new(py, &bytes))
}

/// The number of the CUDA device that has these bytes; `None` for memory of this process.
#[pyfunction]
pub(super) fn device_at(address: Number, len: Number) -> Option<u32> {
    gpu::find(address.0, len.0).ok().map(gpu::Place::device)
}

/// Whether all of these bytes are in one range of registered memory, or in the local buffer.
#[pyfunction]
pub(super) fn is_registered(
    store: &Bound<'_, MooncakeDistributedStore>,
    address: Number,
    len: Number,
) -> bool {
    let Some(open) = store.get().open() else { return false };
    let is_usable = || checks::find(&open, address.0, len.0, Access::Write).is_ok();
    address.0 > 0 && open.is_registered(address.0, len.0) && is_usable()
}

/// Whether the store is set up.
#[pyfunction]
pub(super) fn is_open(store: &Bound<'_, MooncakeDistributedStore>) -> bool {
    store.get().open().is_some()
}
