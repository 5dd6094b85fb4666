//! A store as Python's mappings are: `store[key]`, `del`, `len`, iteration.
//!
//! They are the calls of one key with other outcomes: a missing key is an error. An iteration asks for one
//! page at a time; `tiffin._scan` walks through the pages, for blocking callers and for event loops.

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyString;
use tiffin_client::{
    Ahead, Client, Deadline, DeleteOptions, Error, Listed, NamespaceStat, Pattern, PutOptions, Watermark,
};

use crate::handle::Operation;
use crate::keys::{self, Keys, UNGIVEN};
use crate::memory::Memory;
use crate::methods::Any;
use crate::operations::{DeleteAll, ExistAll, GetAll, PutAll, space_wait};
use crate::store::Store;
use crate::{errors, types};

/// The objects of a page of an iteration.
const PAGE_ITEMS: u32 = 1000;

#[pymethods]
impl Store {
    /// Iterates over the objects whose key starts with `prefix`, as `tiffin.ObjectInfo`, in arbitrary order.
    /// Unlike `list` it asks for a page at a time, so that it needs little memory.
    ///
    /// An object that is replaced meanwhile may come twice. `timeout` limits the time of each page.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put({"run1/a": b"1", "run1/b": b"2", "run2/a": b"3"})
    /// [True, True, True]
    /// >>> sum(object.size for object in store.scan("run1/"))
    /// 2
    #[pyo3(
        signature = (prefix = None, *, pinned_by = None, timeout = None),
        text_signature = "($self, prefix='', *, pinned_by=None, timeout=None)"
    )]
    fn scan<'py>(
        slf: &Bound<'py, Self>,
        prefix: Option<&Any<'py>>,
        pinned_by: Option<String>,
        timeout: Option<&Any<'py>>,
    ) -> PyResult<Any<'py>> {
        let walk = slf.py().import("tiffin._scan")?.getattr("scan")?;
        walk.call1((slf, prefix.unwrap_or(PyString::new(slf.py(), "").as_any()), pinned_by, timeout))
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        slf.py().import("tiffin._scan")?.call_method1("keys", (slf,))
    }

    fn __contains__(&self, py: Python<'_>, key: &Any<'_>) -> PyResult<bool> {
        self.caller.go(py, None, ExistAll { keys: one(key)?, ahead: Ahead::Nothing })?.extract(py)
    }

    fn __getitem__(&self, py: Python<'_>, key: &Any<'_>) -> PyResult<Py<PyAny>> {
        self.caller.go(py, None, GetAll::new(one(key)?, vec![None], UNGIVEN, None))
    }

    fn __setitem__(&self, py: Python<'_>, key: &Any<'_>, value: &Any<'_>) -> PyResult<()> {
        let (values, options) = (vec![Memory::to_read(value)?], PutOptions::default());
        let put = PutAll {
            keys: one(key)?,
            values,
            options,
            space_wait: space_wait(false),
            refuses_existing: false,
        };
        self.caller.go(py, None, put).map(drop)
    }

    /// Unlike `delete`, it raises an error if there is no such object.
    fn __delitem__(&self, py: Python<'_>, key: &Any<'_>) -> PyResult<()> {
        let operation = DeleteAll { keys: one(key)?, options: DeleteOptions::default() };
        if self.caller.go(py, None, operation)?.extract(py)? {
            return Ok(());
        }
        Err(errors::raise(py, &Error::NotFound { key: keys::key(key)? }))
    }

    /// The number of objects in the namespace.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.caller.go(py, None, Count)?.extract(py)
    }

    /// A store is always true. Otherwise `if store:` would ask the master, and an empty store would look
    /// like `None`.
    fn __bool__(&self) -> bool {
        true
    }
}

fn one(key: &Any<'_>) -> PyResult<Keys> {
    Ok(Keys { list: vec![keys::key(key)?], is_one: true })
}

/// Counts the objects of the namespace.
struct Count;

impl Operation for Count {
    type Outcome = NamespaceStat;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<NamespaceStat, Error> {
        // The usage is always at least 0, so that this is answered at once.
        client.wait_usage(Watermark::AtLeast(0), deadline).await
    }

    fn answer(self, py: Python<'_>, outcome: NamespaceStat) -> PyResult<Py<PyAny>> {
        outcome.objects.into_py_any(py)
    }
}

/// Lists the objects from a cursor on, in arbitrary order.
pub(crate) struct Page {
    pub(crate) pattern: Pattern,
    pub(crate) pinned_by: Option<String>,
    pub(crate) cursor: u64,
}

impl Operation for Page {
    type Outcome = Listed;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<Listed, Error> {
        let from = (self.cursor, PAGE_ITEMS);
        client.list_page(&self.pattern, self.pinned_by.as_deref(), from, deadline).await
    }

    fn answer(self, py: Python<'_>, outcome: Listed) -> PyResult<Py<PyAny>> {
        let infos: Vec<_> =
            outcome.items.iter().map(|item| types::listed(py, item)).collect::<PyResult<_>>()?;
        (infos, outcome.cursor).into_py_any(py)
    }
}
