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
    Client, ConnectOptions, Deadline, DeleteOptions, EmbeddedError, OnExists, Patience, Pattern, Policy,
    PutOptions,
};
use tiffin_core::REPLICAS_MAX;
use tiffin_server::Embedded;

use crate::errors::{self, invalid};
use crate::handle::{Handle, Opened, Operation, Servers};
use crate::keys::{self, Keys, Missing, Pairs};
use crate::lifetimes::{self, DropPins, PinAll, SetPolicy, WaitUsage, WhyAll};
use crate::memory::Memory;
use crate::operations::{
    DeleteAll, DeleteMatching, Describe, ExistAll, GetAll, GetIntoAll, InfoAll, List, PutAll, Routes, ViewAll,
};
use crate::promise;
use crate::runtime::block_on;
use crate::samples::{self, AckAll, Caller, LeaseAll, PutSample, Samples, TensorIn};

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
        self.caller().go(py, timeout, operation)
    }

    fn caller(&self) -> Caller {
        Caller { handle: Arc::clone(&self.handle), time: self.time, is_async: self.is_async }
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
    /// next 60 seconds only after all others. `owner` says whose pin it is, so that `unpin` and `drop_pins`
    /// find it.
    ///
    /// If there is no room, `tiffin.Full` is raised at once, or `tiffin.OverQuota` if it is the namespace
    /// that may not hold more. With `wait=True` the put waits in line for room until its `timeout`, and is
    /// woken by what makes room.
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
        soft_pin = None, owner = "", wait = false, timeout = None))]
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
        owner: &str,
        wait: bool,
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
        let soft_pin_ms = milliseconds(soft_pin)?;
        if !pin && !owner.is_empty() {
            let hint = "an owner is that of a pin: add `pin=True`";
            return Err(invalid(py, format!("owner={owner:?}, but nothing is pinned\n\nhint: {hint}")));
        }
        let owner = owner.to_owned();
        let options =
            PutOptions { replicas, on_exists, hard_pin: pin, soft_pin_ms, owner, ..PutOptions::default() };
        let patience = patience(wait);
        self.go(py, timeout, PutAll { keys, values, options, patience, refuses_existing })
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
    /// It is no snapshot: what is put or deleted meanwhile may or may not be in the list. With `pinned_by`
    /// only what that owner pins is in it.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put({"b": b"22", "a": b"1"})
    /// [True, True]
    /// >>> [(object.key, object.size) for object in store.list()]
    /// [('a', 1), ('b', 2)]
    #[pyo3(
        signature = (prefix = None, *, pinned_by = None, timeout = None),
        text_signature = "($self, prefix='', *, pinned_by=None, timeout=None)"
    )]
    fn list<'py>(
        &self,
        py: Python<'py>,
        prefix: Option<&Any<'py>>,
        pinned_by: Option<String>,
        timeout: Option<&Any<'py>>,
    ) -> PyResult<Py<PyAny>> {
        let prefix = prefix.map(keys::prefix).transpose()?.unwrap_or_default();
        let pattern = if prefix.is_empty() { Pattern::All } else { Pattern::Prefix(prefix) };
        self.go(py, timeout, List { pattern, pinned_by })
    }

    /// Protects an object, or many, from eviction, on behalf of an owner: a run, say.
    ///
    /// A pin ends with `unpin`, `drop_pins`, or the object; what is pinned can be deleted. To pin twice is as
    /// good as once, and each owner's pin stands by itself. A key that does not exist raises
    /// `tiffin.NotFound`.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put({"a": b"1", "b": b"2"}, pin=True, owner="run-7")
    /// [True, True]
    /// >>> store.pin("a", "run-8")
    /// >>> store.unpin("b", "run-7")
    /// >>> [object.key for object in store.list(pinned_by="run-7")]
    /// ['a']
    /// >>> store.drop_pins("run-7"), store.why("a").pins
    /// (1, ('run-8',))
    #[pyo3(signature = (key, owner = "", *, timeout = None))]
    fn pin<'py>(
        &self,
        py: Python<'py>,
        key: &Any<'py>,
        owner: &str,
        timeout: Option<&Any<'py>>,
    ) -> PyResult<Py<PyAny>> {
        self.go(py, timeout, PinAll { keys: Keys::parse(key)?, owner: owner.to_owned(), on: true })
    }

    /// Ends an owner's pin of an object, or of many. The objects stay; where there is no such pin, none is
    /// ended.
    #[pyo3(signature = (key, owner = "", *, timeout = None))]
    fn unpin<'py>(
        &self,
        py: Python<'py>,
        key: &Any<'py>,
        owner: &str,
        timeout: Option<&Any<'py>>,
    ) -> PyResult<Py<PyAny>> {
        self.go(py, timeout, PinAll { keys: Keys::parse(key)?, owner: owner.to_owned(), on: false })
    }

    /// Ends all pins of an owner in this namespace, and returns how many there were. The objects stay.
    #[pyo3(signature = (owner, *, timeout = None))]
    fn drop_pins<'py>(
        &self,
        py: Python<'py>,
        owner: String,
        timeout: Option<&Any<'py>>,
    ) -> PyResult<Py<PyAny>> {
        self.go(py, timeout, DropPins { owner })
    }

    /// Limits the namespace, for all its clients, in place of the limits that it had.
    ///
    /// `quota` is how many bytes it may hold, all copies counted: a number, or text such as `"8GiB"`.
    /// `max_hold` is for how many seconds a sample that nobody leases may wait before it is dropped. What is
    /// not given is not limited. What is there already stays.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.set_policy(quota="1MiB")
    /// >>> try:
    /// ...     store.put("large", bytes(2 << 20))
    /// ... except tiffin.OverQuota as error:
    /// ...     error.quota
    /// 1048576
    #[pyo3(signature = (*, quota = None, max_hold = None, timeout = None))]
    fn set_policy<'py>(
        &self,
        py: Python<'py>,
        quota: Option<&Any<'py>>,
        max_hold: Option<&Any<'py>>,
        timeout: Option<&Any<'py>>,
    ) -> PyResult<Py<PyAny>> {
        let quota = lifetimes::size(quota)?;
        let max_hold_ms = milliseconds(max_hold)?;
        self.go(py, timeout, SetPolicy { policy: Policy { quota, max_hold_ms } })
    }

    /// Waits until the namespace holds at most, or at least, so many bytes, and says how it is then, as
    /// `tiffin.Namespace`. Nobody polls: the master wakes it. `tiffin.Timeout` if that comes first.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.wait_usage(at_most="64MiB").objects
    /// 0
    #[pyo3(signature = (*, at_most = None, at_least = None, timeout = None))]
    fn wait_usage<'py>(
        &self,
        py: Python<'py>,
        at_most: Option<&Any<'py>>,
        at_least: Option<&Any<'py>>,
        timeout: Option<&Any<'py>>,
    ) -> PyResult<Py<PyAny>> {
        self.go(py, timeout, WaitUsage::parse(py, at_most, at_least)?)
    }

    /// Why an object, or each of many, is still here, or what took it away, as `tiffin.Why`.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put("k", b"hello"), store.delete("k")
    /// (True, True)
    /// >>> why = store.why("k")
    /// >>> why.state, why.cause
    /// ('gone', 'deleted')
    /// >>> print(why)
    /// `k` is gone: generation ... was removed by ...
    #[pyo3(signature = (key, *, timeout = None))]
    fn why<'py>(&self, py: Python<'py>, key: &Any<'py>, timeout: Option<&Any<'py>>) -> PyResult<Py<PyAny>> {
        self.go(py, timeout, WhyAll { keys: Keys::parse(key)? })
    }

    /// Stores a sample: tensors by name, visible as a whole or not at all. Returns its `tiffin.SampleRef`,
    /// which is what to tell the consumers.
    ///
    /// A tensor is an array with `dtype` and `shape`, such as that of numpy or torch in host memory, or
    /// anything with the buffer protocol. `metadata` is bytes beside them.
    ///
    /// A sample is never evicted: it is gone when it was consumed. `consume` says by whom: `"once"` by
    /// whoever acknowledges it first, a list of names by each of these groups once, `"retained"` any number
    /// of times, until it is deleted. A sample of that id takes the place of an older one, whose refs then
    /// lead nowhere; with `replace=False` that is an error (`tiffin.Exists`). `wait` is as for `put`.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> ref = store.put_sample("sample-7", {"ids": b"abc"}, consume=["trainer", "eval"])
    /// >>> store.ack(ref, "trainer"), store.ack(ref, "eval"), store.ack(ref, "eval")
    /// ('recorded', 'freed', 'stale')
    #[pyo3(
        signature = (id, tensors, *, metadata = None, consume = None, replace = true, wait = false,
            timeout = None),
        text_signature = "($self, id, tensors, *, metadata=None, consume='once', replace=True, wait=False, \
            timeout=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are given by name, and each is a choice of its own")]
    fn put_sample<'py>(
        &self,
        py: Python<'py>,
        id: &Any<'py>,
        tensors: &Any<'py>,
        metadata: Option<&Any<'py>>,
        consume: Option<&Any<'py>>,
        replace: bool,
        wait: bool,
        timeout: Option<&Any<'py>>,
    ) -> PyResult<Py<PyAny>> {
        let put = PutSample {
            id: keys::key(id)?,
            tensors: TensorIn::all(tensors)?,
            metadata: samples::metadata(metadata)?,
            consumption: samples::consumption(consume)?,
            replace,
            patience: patience(wait),
        };
        self.go(py, timeout, put)
    }

    /// Leases a sample, or many, on behalf of a consumer group: see `tiffin.Lease`.
    ///
    /// A sample is named by its id or by its ref. A ref of a sample that was replaced raises
    /// `tiffin.Superseded`, one that the group has consumed already `tiffin.Consumed`.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> ref = store.put_sample("sample-7", {"ids": b"abc"})
    /// >>> with store.lease(ref) as lease:
    /// ...     bytes(lease.tensors()["ids"])
    /// b'abc'
    #[pyo3(signature = (sample, group = "", *, timeout = None))]
    fn lease<'py>(
        &self,
        py: Python<'py>,
        sample: &Any<'py>,
        group: &str,
        timeout: Option<&Any<'py>>,
    ) -> PyResult<Py<PyAny>> {
        let samples = Samples::parse(sample)?;
        self.go(py, timeout, LeaseAll { samples, group: group.to_owned(), caller: self.caller() })
    }

    /// Says that a consumer group is done with a sample, or with many; no lease is needed for that.
    ///
    /// A sample is named by its ref or by its lease. Returns `"freed"` if nobody else was waited for: it is
    /// gone then, and its room can be used. Else `"recorded"`; or `"stale"` if there is no sample of that
    /// generation any more, so that to acknowledge twice is harmless.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> refs = [store.put_sample(f"sample-{i}", {"ids": b"abc"}) for i in range(2)]
    /// >>> store.ack(refs)
    /// ['freed', 'freed']
    #[pyo3(signature = (sample, group = "", *, timeout = None))]
    fn ack<'py>(
        &self,
        py: Python<'py>,
        sample: &Any<'py>,
        group: &str,
        timeout: Option<&Any<'py>>,
    ) -> PyResult<Py<PyAny>> {
        self.go(py, timeout, AckAll::parse(sample, group.to_owned())?)
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

fn patience(wait: bool) -> Patience {
    if wait { Patience::UntilDeadline } else { Patience::Never }
}

fn milliseconds(seconds: Option<&Any<'_>>) -> PyResult<Option<u64>> {
    let Some(seconds) = seconds else { return Ok(None) };
    let time = keys::time(Some(seconds), Duration::ZERO)?;
    Ok(Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
}
