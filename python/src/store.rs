//! The class `Store`: reads arguments, starts operations.
//!
//! The same class serves blocking callers and event loops. For a loop every method gives an asyncio future;
//! the coroutines of `tiffin.aio` await it.

use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tiffin_client::{
    Client, ConnectOptions, Deadline, DeleteOptions, EmbeddedError, OnExists, Pattern, PutOptions,
};
use tiffin_core::REPLICAS_MAX;
use tiffin_server::Embedded;

use crate::errors::{self, invalid};
use crate::handle::{Handle, Opened, Operation, Servers};
use crate::keys::{self, Keys, Missing, Pairs};
use crate::memory::Memory;
use crate::operations::{
    DeleteAll, DeleteMatching, Describe, ExistAll, GetAll, GetIntoAll, InfoAll, List, PutAll, Routes, ViewAll,
};
use crate::promise;
use crate::runtime::block_on;

type Any<'py> = Bound<'py, PyAny>;

/// Connects: to a store inside this process if no address is given, else to the cluster of that master.
#[pyfunction]
#[pyo3(signature = (address, *, memory, namespace, token, shared_memory, timeout, is_async))]
#[expect(clippy::too_many_arguments, reason = "the package gives them by name, and settles their defaults")]
pub(crate) fn connect<'py>(
    py: Python<'py>,
    address: Option<String>,
    memory: u64,
    namespace: Option<String>,
    token: Option<String>,
    shared_memory: bool,
    timeout: &Any<'py>,
    is_async: bool,
) -> PyResult<Py<PyAny>> {
    let time = keys::time(Some(timeout), keys::TIME_MAX)?;
    let mut options = ConnectOptions::new(address.as_deref().unwrap_or_default());
    options.shared_memory = shared_memory;
    options.connect_time = time;
    options.namespace = namespace.unwrap_or(options.namespace);
    options.token = token.unwrap_or_default();
    let is_embedded = address.is_none();
    let opening = async move { if is_embedded { start(memory, options).await } else { join(options).await } };
    let store = move |py: Python<'_>, handle| {
        Ok(Py::new(py, Store { handle, time, is_embedded, is_async })?.into_any())
    };
    if is_async {
        return promise::start(py, opening, move |py, opened| {
            store(py, Handle::new(opened.map_err(|error| errors::raise_start(py, &error))?))
        });
    }
    store(py, Handle::open(py, opening)?)
}

async fn join(options: ConnectOptions) -> Result<Opened, EmbeddedError> {
    let client = Client::connect(options.clone()).await?;
    Ok(Opened { client, again: options, servers: Servers::None })
}

async fn start(memory: u64, options: ConnectOptions) -> Result<Opened, EmbeddedError> {
    let server = Embedded::start(memory).await?;
    let here = tiffin_client::Embedded::options(&server);
    let again = ConnectOptions { address: here.address, ..options };
    let here = ConnectOptions { home: here.home, home_memory: here.home_memory, ..again.clone() };
    let client = Client::connect(here).await?;
    Ok(Opened { client, again, servers: Servers::Embedded(server) })
}

/// A store: in this process, or a cluster that it is connected to. Made by `tiffin.connect`.
///
/// Where a method takes a key it takes many just as well. One key gives one result. Many give a list of
/// results in the same order: any iterable of keys, and for `put` and `get_into` a mapping from keys to
/// values or buffers. A call with many keys does all it can; if some of them failed, it raises the error of
/// the first one, and `error.results` tells about each key.
///
/// A key is `str` or `bytes`; a `str` is its UTF-8, so `"k"` and `b"k"` are the same key. Every method takes
/// a `timeout` in seconds, which is that of the store unless given, and raises `tiffin.Timeout` when it has
/// passed.
///
/// A store may be used from many threads at once; while a call waits, other threads run. A forked child may
/// use it too, and gets a connection of its own. It can be pickled for another process of the same host (or,
/// if it is a cluster, of any host that reaches it); its token travels with it.
///
/// >>> import tiffin
/// >>> with tiffin.connect() as store:
/// ...     store.put("greeting", b"hello")
/// ...     store.get("greeting")
/// ...     store.put({"a": b"1", "b": b"2"})
/// ...     store.get(["a", "b"])
/// True
/// b'hello'
/// [True, True]
/// [b'1', b'2']
#[pyclass(frozen, module = "tiffin")]
pub(crate) struct Store {
    handle: Arc<Handle>,
    time: Duration,
    is_embedded: bool,
    is_async: bool,
}

impl Store {
    fn go<O: Operation>(
        &self,
        py: Python<'_>,
        timeout: Option<&Any<'_>>,
        operation: O,
    ) -> PyResult<Py<PyAny>> {
        let time = keys::time(timeout, self.time)?;
        if self.is_async {
            self.handle.start(py, time, operation)
        } else {
            self.handle.run(py, time, operation)
        }
    }
}

#[pymethods]
impl Store {
    /// Stores a value under a key, or many: `put(key, value)` or `put({key: value, …})`.
    ///
    /// A value is anything with the buffer protocol (bytes, bytearray, memoryview, arrays of any element
    /// type) or with `__dlpack__` (tensors in host memory). Its bytes are stored as they lie in memory; if
    /// they do not lie in one piece, in the order of its elements. When the call has returned, everybody can
    /// read the object.
    ///
    /// `on_exists` says what to do if the key exists: `"replace"` it, `"keep"` it, or raise an `"error"`
    /// (`tiffin.Exists`). `replicas` is how many copies to make on different nodes; if there are fewer nodes,
    /// there are fewer copies. An object with `pin=True` is never evicted; one with `soft_pin=60` for the
    /// next 60 seconds only after all others.
    ///
    /// Returns whether the value was stored: `False` if an existing object was kept.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put("k", b"old")
    /// True
    /// >>> store.put("k", b"new", on_exists="keep")
    /// False
    /// >>> store.put({"k": b"newer", "l": bytearray(3)})
    /// [True, True]
    /// >>> store.get("k")
    /// b'newer'
    #[pyo3(signature = (key, value = None, *, on_exists = "replace", replicas = 1, pin = false,
        soft_pin = None,        timeout = None))]
    #[expect(clippy::too_many_arguments, reason = "they are given by name, and each is a choice of its own")]
    fn put<'py>(
        &self,
        py: Python<'py>,
        key: &Any<'py>,
        value: Option<&Any<'py>>,
        on_exists: &str,
        replicas: u32,
        pin: bool,
        soft_pin: Option<&Any<'py>>,
        timeout: Option<&Any<'py>>,
    ) -> PyResult<Py<PyAny>> {
        let Pairs { keys, others } = Pairs::parse(key, value, "put", "value")?;
        let values = others.iter().map(Memory::to_read).collect::<PyResult<_>>()?;
        let (on_exists, refuses_existing) = match on_exists {
            "replace" => (OnExists::Replace, false),
            "keep" => (OnExists::Keep, false),
            "error" => (OnExists::Keep, true),
            other => {
                let hint = "it is \"replace\", \"keep\" or \"error\"";
                return Err(invalid(py, format!("on_exists={other:?} is unknown\n\nhint: {hint}")));
            }
        };
        if !(1..=REPLICAS_MAX).contains(&replicas) {
            let hint = format!("an object has 1 to {REPLICAS_MAX} copies");
            return Err(invalid(py, format!("replicas={replicas}\n\nhint: {hint}")));
        }
        let soft_pin_ms = match soft_pin {
            Some(_) => {
                let time = keys::time(soft_pin, Duration::ZERO)?;
                Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
            }
            None => None,
        };
        let options = PutOptions { replicas, on_exists, hard_pin: pin, soft_pin_ms, ..PutOptions::default() };
        self.go(py, timeout, PutAll { keys, values, options, refuses_existing })
    }

    /// The bytes of an object, or of many.
    ///
    /// A key that does not exist raises `tiffin.NotFound`, or gives `missing` if that is given.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put("a", b"1")
    /// True
    /// >>> store.get("a")
    /// b'1'
    /// >>> store.get(["a", "b"], missing=None)
    /// [b'1', None]
    #[pyo3(signature = (key, *, missing = Missing(None), timeout = None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Any<'py>,
        missing: Missing,
        timeout: Option<&Any<'py>>,
    ) -> PyResult<Py<PyAny>> {
        self.go(py, timeout, GetAll::new(Keys::parse(key)?, missing))
    }

    /// Reads an object into a writable buffer and returns how many bytes it has, or many:
    /// `get_into(key, buffer)` or `get_into({key: buffer, …})`.
    ///
    /// A buffer is anything writable with the buffer protocol or `__dlpack__` that lies in one piece. It may
    /// be larger than the object; what is not needed is not touched. If it is smaller, `tiffin.TooSmall` is
    /// raised and nothing is written. After any other error its content is unspecified.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put("k", b"hello")
    /// True
    /// >>> buffer = bytearray(8)
    /// >>> store.get_into("k", buffer)
    /// 5
    /// >>> buffer
    /// bytearray(b'hello\x00\x00\x00')
    #[pyo3(signature = (key, buffer = None, *, timeout = None))]
    fn get_into<'py>(
        &self,
        py: Python<'py>,
        key: &Any<'py>,
        buffer: Option<&Any<'py>>,
        timeout: Option<&Any<'py>>,
    ) -> PyResult<Py<PyAny>> {
        let Pairs { keys, others } = Pairs::parse(key, buffer, "get_into", "buffer")?;
        let buffers = others.iter().map(Memory::to_write).collect::<PyResult<_>>()?;
        self.go(py, timeout, GetIntoAll { keys, buffers })
    }

    /// Looks at an object, or at many, where the bytes lie: see `tiffin.View`.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put("k", b"hello")
    /// True
    /// >>> with store.view("k") as view:
    /// ...     print(memoryview(view)[0])
    /// 104
    #[pyo3(signature = (key, *, missing = Missing(None), timeout = None))]
    fn view<'py>(
        &self,
        py: Python<'py>,
        key: &Any<'py>,
        missing: Missing,
        timeout: Option<&Any<'py>>,
    ) -> PyResult<Py<PyAny>> {
        self.go(py, timeout, ViewAll { keys: Keys::parse(key)?, missing })
    }

    /// Whether an object exists, or each of many. Does not count as a use of it.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put("a", b"1")
    /// True
    /// >>> store.exists(["a", "b"])
    /// [True, False]
    /// >>> "a" in store
    /// True
    #[pyo3(signature = (key, *, timeout = None))]
    fn exists<'py>(
        &self,
        py: Python<'py>,
        key: &Any<'py>,
        timeout: Option<&Any<'py>>,
    ) -> PyResult<Py<PyAny>> {
        self.go(py, timeout, ExistAll { keys: Keys::parse(key)? })
    }

    /// What is known of an object, or of many, as `tiffin.ObjectInfo`. Does not count as a use of it.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put("k", b"hello")
    /// True
    /// >>> store.info("k").size
    /// 5
    #[pyo3(signature = (key, *, missing = Missing(None), timeout = None))]
    fn info<'py>(
        &self,
        py: Python<'py>,
        key: &Any<'py>,
        missing: Missing,
        timeout: Option<&Any<'py>>,
    ) -> PyResult<Py<PyAny>> {
        self.go(py, timeout, InfoAll { keys: Keys::parse(key)?, missing })
    }

    /// Deletes an object, or many, and returns whether it existed.
    ///
    /// When the call has returned, nobody can read the object any more; only views that began before still
    /// see it. Deleting what does not exist is no error. `force` deletes what a lease protects, where leases
    /// do.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put("a", b"1")
    /// True
    /// >>> store.delete(["a", "b"])
    /// [True, False]
    #[pyo3(signature = (key, *, force = false, timeout = None))]
    fn delete<'py>(
        &self,
        py: Python<'py>,
        key: &Any<'py>,
        force: bool,
        timeout: Option<&Any<'py>>,
    ) -> PyResult<Py<PyAny>> {
        let options = DeleteOptions { force };
        self.go(py, timeout, DeleteAll { keys: Keys::parse(key)?, options })
    }

    /// Deletes all objects whose key starts so, and returns how many there were.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put({"run1/a": b"1", "run1/b": b"2", "run2/a": b"3"})
    /// [True, True, True]
    /// >>> store.delete_prefix("run1/")
    /// 2
    #[pyo3(signature = (prefix, *, force = false, timeout = None))]
    fn delete_prefix<'py>(
        &self,
        py: Python<'py>,
        prefix: &Any<'py>,
        force: bool,
        timeout: Option<&Any<'py>>,
    ) -> PyResult<Py<PyAny>> {
        let prefix = keys::prefix(prefix)?;
        if prefix.is_empty() {
            let hint = "to delete every object, use `clear()`";
            return Err(invalid(py, format!("every key starts with an empty prefix\n\nhint: {hint}")));
        }
        let options = DeleteOptions { force };
        self.go(py, timeout, DeleteMatching { pattern: Pattern::Prefix(prefix), options })
    }

    /// Deletes all objects in whose key the regular expression is found, and returns how many there were.
    ///
    /// The syntax is that of the Rust crate `regex`: like Python's, but without look-around and
    /// back-references.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put({"a1": b"", "b2": b"", "c": b""})
    /// [True, True, True]
    /// >>> store.delete_regex("[0-9]$")
    /// 2
    #[pyo3(signature = (pattern, *, force = false, timeout = None))]
    fn delete_regex<'py>(
        &self,
        py: Python<'py>,
        pattern: String,
        force: bool,
        timeout: Option<&Any<'py>>,
    ) -> PyResult<Py<PyAny>> {
        let options = DeleteOptions { force };
        self.go(py, timeout, DeleteMatching { pattern: Pattern::Regex(pattern), options })
    }

    /// Deletes every object of the namespace, and returns how many there were.
    #[pyo3(signature = (*, force = false, timeout = None))]
    fn clear<'py>(&self, py: Python<'py>, force: bool, timeout: Option<&Any<'py>>) -> PyResult<Py<PyAny>> {
        let options = DeleteOptions { force };
        self.go(py, timeout, DeleteMatching { pattern: Pattern::All, options })
    }

    /// All objects whose key starts with `prefix`, as `tiffin.ObjectInfo`, in the order of their keys.
    ///
    /// It is no snapshot: what is put or deleted meanwhile may or may not be in the list.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put({"b": b"22", "a": b"1"})
    /// [True, True]
    /// >>> [(object.key, object.size) for object in store.list()]
    /// [('a', 1), ('b', 2)]
    #[pyo3(
        signature = (prefix = None, *, timeout = None),
        text_signature = "($self, prefix='', *, timeout=None)"
    )]
    fn list<'py>(
        &self,
        py: Python<'py>,
        prefix: Option<&Any<'py>>,
        timeout: Option<&Any<'py>>,
    ) -> PyResult<Py<PyAny>> {
        let prefix = prefix.map(keys::prefix).transpose()?.unwrap_or_default();
        let pattern = if prefix.is_empty() { Pattern::All } else { Pattern::Prefix(prefix) };
        self.go(py, timeout, List { pattern })
    }

    /// How full the store is, who is in it, and how many bytes went which way, as `tiffin.Stats`.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect(memory="64MiB")
    /// >>> store.put("k", bytes(1000))
    /// True
    /// >>> stats = store.stats()
    /// >>> stats.usage.capacity, stats.traffic.local_written
    /// (67108864, 1000)
    #[pyo3(signature = (*, timeout = None))]
    fn stats<'py>(&self, py: Python<'py>, timeout: Option<&Any<'py>>) -> PyResult<Py<PyAny>> {
        self.go(py, timeout, Describe)
    }

    /// The nodes that this store has exchanged bytes with, and how: a list of `tiffin.Route`.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put("k", b"hello")
    /// True
    /// >>> [route.way for route in store.routes()]
    /// ['local']
    #[pyo3(signature = (*, timeout = None))]
    fn routes<'py>(&self, py: Python<'py>, timeout: Option<&Any<'py>>) -> PyResult<Py<PyAny>> {
        self.go(py, timeout, Routes)
    }

    /// Lets go of the store. Calls under way are waited for; later ones raise `tiffin.Closed`. A store that
    /// lives in this process ends, and its objects with it; views of them stay valid. Closing twice is
    /// harmless.
    #[pyo3(signature = (*, timeout = None))]
    fn close<'py>(&self, py: Python<'py>, timeout: Option<&Any<'py>>) -> PyResult<Py<PyAny>> {
        let deadline = Deadline::after(keys::time(timeout, self.time)?);
        let handle = Arc::clone(&self.handle);
        let answer = |py: Python<'_>, closed: Result<(), _>| {
            closed.map(|()| py.None()).map_err(|error| errors::raise(py, &error))
        };
        if self.is_async {
            return promise::start(py, async move { handle.close(deadline).await }, answer);
        }
        answer(py, block_on(py, async || handle.close(deadline).await)?)
    }

    /// Where other processes reach the store: give it to `tiffin.connect`. That of a store inside this
    /// process is good for other processes of the same user on this host.
    #[getter]
    fn address(&self) -> &str {
        &self.handle.again().address
    }

    /// The namespace of all keys.
    #[getter]
    fn namespace(&self) -> &str {
        &self.handle.again().namespace
    }

    /// Whether `close` was called.
    #[getter]
    fn is_closed(&self) -> bool {
        self.handle.is_closed()
    }

    fn __contains__(&self, py: Python<'_>, key: &Any<'_>) -> PyResult<bool> {
        let keys = Keys { list: vec![keys::key(key)?], is_one: true };
        self.go(py, None, ExistAll { keys })?.extract(py)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Any<'_>,
        _error: &Any<'_>,
        _traceback: &Any<'_>,
    ) -> PyResult<()> {
        self.close(py, None).map(drop)
    }

    fn __repr__(&self) -> String {
        let address = self.address();
        let state = match (self.is_embedded, self.handle.is_forked(), self.is_closed()) {
            (.., true) => "closed",
            (true, false, _) => "in this process",
            (true, true, _) => "in the parent process",
            (false, ..) => "connected",
        };
        format!("<tiffin.Store at {address:?}, {state}>")
    }

    /// Another process gets a connection of its own.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Any<'py>, Bound<'py, PyTuple>)> {
        if self.is_async {
            return Err(PyValueError::new_err("a store of an event loop cannot be pickled"));
        }
        let again = self.handle.again();
        let seconds = self.time.as_secs_f64();
        let arguments = (&again.address, &again.namespace, &again.token, again.shared_memory, seconds);
        Ok((py.import("tiffin")?.getattr("_connect_again")?, arguments.into_pyobject(py)?))
    }
}
