//! The class `Store`: its methods and their arguments.
//!
//! The same class serves blocking callers and event loops. For a loop every method returns an asyncio future;
//! the coroutines of `tiffin.aio` await it.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tiffin_client::{Ahead, DeleteOptions, Generation, ListOptions, Pattern, Pull, PutOptions};

use crate::closing::{self, OnLoss};
use crate::cuda;
use crate::errors::invalid;
use crate::keys::{self, Keys, Missing, Pairs, UNGIVEN, Whole};
use crate::lifetimes::{DropPins, PinAll, ReadPolicy, SetPolicy, TellLosses, WaitUsage, WhyAll};
use crate::mapping::Page;
use crate::memory::Memory;
use crate::methods::{Any, Caller, methods};
use crate::operations::{
    DeleteAll, DeleteMatching, Describe, ExistAll, GetAll, GetIntoAll, InfoAll, Keeping, List, OnExists,
    PutAll, Routes, ViewAll, space_wait,
};
use crate::prefetch::{self, Begin};
use crate::reservation::ReserveAll;
use crate::samples::{AbortAll, AckAll, LeaseAll, Manifests, PutSamples, Samples};
use crate::streams::{DropAll, End, ListSamples, Open, PullNext};

/// A store: in this process, or a cluster that it is connected to. Made by `tiffin.connect`.
///
/// It is used like a `dict` as well: `store[key]`, `store[key] = value`, `del store[key]`, `key in store`,
/// `len(store)`, and `for key in store`, which has no order. A missing key raises `tiffin.NotFound`, which is
/// a `KeyError`.
///
/// A method that takes a key also takes many. One key gives one result. Many keys give a list of results in
/// the same order: pass any iterable of keys. `put` and `get_into` take a mapping from keys to values or
/// buffers, or two lists. A call with many keys does all it can. If some keys failed, it raises the error of
/// the first one, and `error.results` has the result of each key.
///
/// A key is `str` or `bytes`; a `str` is its UTF-8, so `"k"` and `b"k"` are the same key. Every method takes
/// a `timeout` in seconds (default: that of the store), and raises `tiffin.Timeout` when it has passed. For
/// `pull`, `tail`, `wait_usage`, `prefetch` and puts with `wait=True` it is how long they wait; then they
/// return. They raise `tiffin.Timeout` only if the answer takes longer than the time limit of the store
/// beyond that.
///
/// A store may be used from many threads at once; while a call waits, other threads run. A forked child may
/// use it too, with a connection of its own. It can be pickled for another process of the same host, or, if
/// it is a cluster, of any host that reaches it. The pickle contains its token.
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
    pub(crate) caller: Caller,
    pub(crate) is_embedded: bool,
}

methods! {
    class Store, with self and py;

    /// Stores a value under a key, or many: `put(key, value)` or `put({key: value, …})`.
    ///
    /// A value is anything with the buffer protocol (bytes, bytearray, memoryview, arrays of any element
    /// type), with `__dlpack__` (tensors) or with `__cuda_array_interface__`. Its bytes are stored in the
    /// order of memory, or, if it is not contiguous, in the order of its elements. They may be on a CUDA
    /// device; then they must be contiguous, and the put comes after the work of the exporter's current
    /// stream. When the call has returned, every client can read the object, and the value may change.
    ///
    /// `on_exists` decides what happens if the key exists: `"replace"` it, `"keep"` it, or raise an `"error"`
    /// (`tiffin.Exists`). `replicas` is how many copies to make on different nodes; if there are fewer nodes,
    /// there are fewer copies. An object with `pin=True` is never evicted; one with `soft_pin=60` is evicted
    /// after all others, for the next 60 seconds. `owner` names the owner of the pin, for `unpin` and
    /// `drop_pins`. An object with `ttl=30` is removed 30 seconds after its put; if it is pinned then, with
    /// its last pin. A put that replaces it has its own `ttl`, or none.
    ///
    /// If there is no space, the put raises `tiffin.Full` at once, or `tiffin.OverQuota` if the namespace may
    /// not hold more. With `wait=True` the put waits in a queue until there is space, or until its `timeout`.
    ///
    /// Returns whether the value was stored: `False` if an existing object was kept. If nodes could not
    /// confirm in time that a replaced object is gone, there is a `tiffin.UnconfirmedWarning` with their
    /// names.
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
    #[expect(clippy::too_many_arguments, reason = "they are passed by name, and are independent")]
    call put(
        key: &Any<'py>, value: Option<&Any<'py>> = None;
        on_exists: &str = "replace", #[pyo3(from_py_with = keys::whole)] replicas: Whole = 1,
        pin: bool = false, soft_pin: Option<&Any<'py>> = None, owner: &str = "", wait: bool = false,
        ttl: Option<&Any<'py>> = None,
    ) {
        let Pairs { keys, others } = Pairs::parse(key, value, "put", "value")?;
        let values = others.iter().map(Memory::to_read).collect::<PyResult<_>>()?;
        let on_exists = OnExists::parse(py, on_exists)?;
        let options = Keeping { on_exists, replicas, pin, soft_pin, owner, ttl }.options(py)?;
        let refuses_existing = on_exists == OnExists::Error;
        PutAll { keys, values, options, space_wait: space_wait(wait), refuses_existing }
    }

    /// Reserves space ahead of the data, for one object or for many: `reserve(key, nbytes)` or
    /// `reserve({key: nbytes, …})`. Returns a `tiffin.Reservation`, which takes the data.
    ///
    /// A reserved object can be put however full the store is by then. Until then no other put gets the
    /// space, and it counts as used by the namespace. `nbytes` is a number, or text such as `"8MiB"`: the
    /// exact size of the object. The other arguments are those of `put`; with `wait=True` the call waits in
    /// the same queue. A key that exists, and is not to be replaced, raises `tiffin.Exists` at once. The name
    /// itself is not claimed: another put may come first.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect(memory="64MiB")
    /// >>> with store.reserve("k", 5, wait=True) as reservation:
    /// ...     reservation.put(b"hello")
    /// True
    /// >>> store.get("k")
    /// b'hello'
    #[expect(clippy::too_many_arguments, reason = "they are passed by name, and are independent")]
    call reserve(
        key: &Any<'py>, nbytes: Option<&Any<'py>> = None;
        on_exists: &str = "replace", #[pyo3(from_py_with = keys::whole)] replicas: Whole = 1,
        pin: bool = false, soft_pin: Option<&Any<'py>> = None, owner: &str = "", wait: bool = false,
        ttl: Option<&Any<'py>> = None,
    ) {
        let pairs = Pairs::parse(key, nbytes, "reserve", "nbytes")?;
        let on_exists = OnExists::parse(py, on_exists)?;
        let options = Keeping { on_exists, replicas, pin, soft_pin, owner, ttl }.options(py)?;
        let refuses_existing = on_exists == OnExists::Error;
        ReserveAll::parse(pairs, &options, space_wait(wait), refuses_existing, self.caller.clone())?
    }

    /// The bytes of an object, or of many.
    ///
    /// A key that does not exist raises `tiffin.NotFound`, or gives `default` if that is given.
    ///
    /// `range=(offset, length)` reads only those bytes. For many keys it is one pair for all, or a list with
    /// a pair for each (`None` for the whole object), and a key may be named more than once. A range that is
    /// not inside the object raises `tiffin.OutOfRange`, which has the object's `size`.
    ///
    /// `device="cuda:0"` reads into new memory of that device, and returns a `tiffin.DeviceArray`. To read
    /// into memory that exists, which is faster, use `get_into`.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put("a", b"hello")
    /// True
    /// >>> store.get("a"), store.get("a", range=(1, 3))
    /// (b'hello', b'ell')
    /// >>> store.get(["a", "b"], default=None)
    /// [b'hello', None]
    /// >>> store.get(["a", "a"], range=[(0, 1), (4, 1)])
    /// [b'h', b'o']
    call get(
        key: &Any<'py>, default: Missing = UNGIVEN;
        range: Option<&Any<'py>> = None, device: Option<&Any<'py>> = None,
    ) {
        let keys = Keys::parse(key)?;
        let ranges = keys.ranges(range)?;
        let device = device.map(cuda::target_device).transpose()?.flatten();
        GetAll::new(keys, ranges, default, device)
    }

    /// Reads an object into a writable buffer and returns how many bytes it has, or many:
    /// `get_into(key, buffer)` or `get_into({key: buffer, …})`; also `get_into([key, …], [buffer, …])`.
    ///
    /// A buffer is any writable, contiguous object with the buffer protocol, `__dlpack__` or
    /// `__cuda_array_interface__`, in host memory or on a CUDA device. It may be larger than the object; the
    /// rest is not changed, unless the object is replaced meanwhile. If it is smaller, `tiffin.TooSmall` is
    /// raised and nothing is written. After any other error its content is unspecified. `range` is as for
    /// `get`. Memory of a device is written after the work of its exporter's current stream, and is complete
    /// when the call returns.
    ///
    /// With `stream=`, a CUDA stream of torch or CuPy or its handle, all buffers are on its device, and the
    /// call returns a `tiffin.QueuedGet` without waiting for the copies. They come after the work that the
    /// stream has, and work that is submitted to it later comes after them. Only `QueuedGet.result` says
    /// whether the bytes count; it also raises what the call would have raised for a key.
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
    call get_into(
        key: &Any<'py>, buffer: Option<&Any<'py>> = None;
        range: Option<&Any<'py>> = None, stream: Option<&Any<'py>> = None,
    ) {
        let Pairs { keys, others } = Pairs::parse(key, buffer, "get_into", "buffer")?;
        let stream = stream.map(cuda::stream).transpose()?;
        let memory = |it| stream.map_or_else(|| Memory::to_write(it), |on| Memory::to_write_on(it, on));
        let buffers = others.iter().map(|it| memory(it).map(Arc::new)).collect::<PyResult<_>>()?;
        let ranges = keys.ranges(range)?;
        GetIntoAll { keys, buffers, ranges, queued: stream.map(|_| self.caller.clone()) }
    }

    /// Views an object, or many, in place: see `tiffin.View`. `default` and `range` are as for `get`.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put("k", b"hello")
    /// True
    /// >>> with store.view("k") as view:
    /// ...     print(memoryview(view)[0])
    /// 104
    call view(key: &Any<'py>, default: Missing = UNGIVEN; range: Option<&Any<'py>> = None) {
        let keys = Keys::parse(key)?;
        let ranges = keys.ranges(range)?;
        ViewAll { keys, ranges, missing: default }
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
    ///
    /// `prefetch` says which objects that are only on a disk are promoted to memory meanwhile: `"none"`,
    /// `"all"`, or those before the first key that does not exist (`"leading"`), for prefix caches. The
    /// answer is the same and does not wait for the promotions.
    call exists(key: &Any<'py>; prefetch: &str = "none") {
        ExistAll { keys: Keys::parse(key)?, ahead: prefetch::ahead(py, prefetch)? }
    }

    /// Promotes an object that is only on a disk to memory, or many, in the background. Returns a
    /// `tiffin.Prefetch`, to wait for the end or to cancel it.
    ///
    /// With `leading=True` it promotes only those before the first key that does not exist. It does not count
    /// as a use of the objects, and no other process promotes the same ones at the same time. Objects stay on
    /// the disk if memory is full of objects that are used more. `timeout` limits the whole prefetch.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put("a", b"1")
    /// True
    /// >>> store.prefetch(["a", "b"]).result()
    /// ['resident', 'absent']
    call prefetch(key: &Any<'py>; leading: bool = false) {
        let ahead = if leading { Ahead::LeadingRun } else { Ahead::All };
        Begin { keys: Keys::parse(key)?, ahead, caller: self.caller.clone() }
    }

    /// The `tiffin.ObjectInfo` of an object, or of many. Does not count as a use of it. `default` is as for
    /// `get`.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put("k", b"hello")
    /// True
    /// >>> store.info("k").size
    /// 5
    call info(key: &Any<'py>, default: Missing = UNGIVEN) {
        InfoAll { keys: Keys::parse(key)?, missing: default }
    }

    /// Deletes an object, or many, and returns whether it existed.
    ///
    /// When the call has returned, no client can read the object any more, except through views that began
    /// before. Deleting a key that does not exist is not an error. `force` deletes objects that a lease
    /// protects, in the lease mode in which leases do that.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put("a", b"1")
    /// True
    /// >>> store.delete(["a", "b"])
    /// [True, False]
    call delete(key: &Any<'py>; force: bool = false) {
        DeleteAll { keys: Keys::parse(key)?, options: DeleteOptions { force } }
    }

    /// Deletes all objects whose key starts with `prefix`, and returns how many there were.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put({"run1/a": b"1", "run1/b": b"2", "run2/a": b"3"})
    /// [True, True, True]
    /// >>> store.delete_prefix("run1/")
    /// 2
    call delete_prefix(prefix: &Any<'py>; force: bool = false) {
        let prefix = keys::prefix(prefix)?;
        if prefix.is_empty() {
            let hint = "to delete every object, use `clear()`";
            return Err(invalid(py, format!("every key starts with an empty prefix\n\nhint: {hint}")));
        }
        DeleteMatching { pattern: Pattern::Prefix(prefix), options: DeleteOptions { force } }
    }

    /// Deletes all objects whose key the regular expression matches anywhere, and returns how many there
    /// were.
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
    call delete_regex(pattern: String; force: bool = false) {
        DeleteMatching { pattern: Pattern::Regex(pattern), options: DeleteOptions { force } }
    }

    /// Deletes every object of the namespace, and returns how many there were.
    call clear(; force: bool = false) {
        DeleteMatching { pattern: Pattern::All, options: DeleteOptions { force } }
    }

    /// The objects whose key starts with `prefix`, as `tiffin.ObjectInfo`, in the order of their keys.
    ///
    /// It is not a snapshot: objects that are put or deleted meanwhile may or may not be in the list. With
    /// `pinned_by` it lists only the objects that this owner pins. `limit` is the greatest number of objects,
    /// and `after` a key that theirs are greater than, such as the last one of the page before. A short list
    /// takes the master as long as a complete one: to visit many objects, use `scan`.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put({"b": b"22", "a": b"1"})
    /// [True, True]
    /// >>> [(object.key, object.size) for object in store.list()]
    /// [('a', 1), ('b', 2)]
    /// >>> [object.key for object in store.list(after="a", limit=10)]
    /// ['b']
    #[pyo3(
        text_signature = "($self, prefix='', *, after=None, limit=None, pinned_by=None, timeout=None)"
    )]
    call list(
        prefix: Option<&Any<'py>> = None;
        after: Option<&Any<'py>> = None,
        #[pyo3(from_py_with = keys::whole_or_none)] limit: Option<Whole> = None,
        pinned_by: Option<String> = None,
    ) {
        let after = after.map(keys::key).transpose()?;
        let limit = limit.map(|it| keys::count(py, "limit", it, 0)).transpose()?;
        List { pattern: keys::pattern(prefix)?, options: ListOptions { pinned_by, after, limit } }
    }

    /// A page of `scan`.
    call _page(prefix: &Any<'py>, pinned_by: Option<String>, cursor: u64) {
        Page { pattern: keys::pattern(Some(prefix))?, pinned_by, cursor }
    }

    /// Protects an object, or many, from eviction, on behalf of an owner, such as a run.
    ///
    /// A pin ends with `unpin`, `drop_pins`, or the object; a pinned object can be deleted. Pinning twice is
    /// the same as once, and each owner has a pin of its own. A key that does not exist raises
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
    call pin(key: &Any<'py>, owner: &str = "") {
        PinAll { keys: Keys::parse(key)?, owner: owner.to_owned(), on: true }
    }

    /// Ends an owner's pin of an object, or of many. The objects stay. A missing pin is not an error.
    call unpin(key: &Any<'py>, owner: &str = "") {
        PinAll { keys: Keys::parse(key)?, owner: owner.to_owned(), on: false }
    }

    /// Ends all pins of an owner in this namespace, and returns how many there were. The objects stay.
    call drop_pins(owner: String) {
        DropPins { owner }
    }

    /// Changes the limits of the namespace, for all its clients. Only the limits that are given change;
    /// `None` removes a limit. Objects that are already there stay.
    ///
    /// `quota` is how many bytes it may hold, with all copies: a number, or text such as `"8GiB"`. `max_hold`
    /// is for how many seconds a sample without a lease may wait before it is dropped: at least a
    /// millisecond, at most 30 years.
    ///
    /// `demotion` decides when objects go to disks: before their memory is used again (`"on-pressure"`), soon
    /// after their put (`"write-through"`), or never (`"never"`). `None` is the default of the master's
    /// settings.
    ///
    /// `guaranteed` is how many bytes of memory other namespaces leave to this one, whatever they do. All
    /// minimums together must fit the memory of the nodes. While there is one, puts reserve memory for each
    /// object.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.set_policy(quota="1MiB")
    /// >>> try:
    /// ...     store.put("large", bytes(2 << 20))
    /// ... except tiffin.OverQuota as error:
    /// ...     error.quota
    /// 1048576
    call set_policy(;
        quota: Missing = UNGIVEN, max_hold: Missing = UNGIVEN, demotion: Missing = UNGIVEN,
        guaranteed: Missing = UNGIVEN,
    ) {
        SetPolicy::parse(py, &quota, &max_hold, &demotion, &guaranteed)?
    }

    /// The limits of the namespace, as `tiffin.Policy`: those that `set_policy` has set.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.set_policy(quota="1MiB")
    /// >>> store.set_policy(max_hold=60)
    /// >>> store.policy()
    /// Policy(quota=1048576, max_hold=60.0, demotion='on-pressure', guaranteed=None)
    call policy() {
        ReadPolicy
    }

    /// Waits until the namespace holds at most, or at least, this many bytes. Returns its state then, as
    /// `tiffin.Namespace`. The master wakes the call; it does not poll. Raises `tiffin.Timeout` if the time
    /// limit comes first.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.wait_usage(at_most="64MiB").objects
    /// 0
    call wait_usage(; at_most: Option<&Any<'py>> = None, at_least: Option<&Any<'py>> = None) {
        WaitUsage::parse(py, at_most, at_least)?
    }

    /// Why an object, or each of many, exists, or what removed it, as `tiffin.Why`.
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
    call why(key: &Any<'py>) {
        WhyAll { keys: Keys::parse(key)? }
    }

    /// Stores a sample, or many: tensors by name, visible as a whole or not at all. Returns its
    /// `tiffin.SampleRef`, which the producer sends to the consumers. Many are given as
    /// `put_sample({id: tensors, …})`.
    ///
    /// A tensor is an array with `dtype` and `shape`, such as one of numpy or torch in host memory, or
    /// anything with the buffer protocol. It is stored directly from its memory; if it is not contiguous, in
    /// the order of its elements. `metadata` is bytes that are stored with the tensors; for many samples, a
    /// mapping from ids to bytes.
    ///
    /// A sample is never evicted: it is freed when it was consumed. `consume` names the consumers: `"once"`
    /// for the first that acknowledges it, a list of names for each of these groups once, `"retained"` for
    /// any number, until it is deleted. A sample replaces an older one of the same id, whose refs are then
    /// invalid; with `replace=False` that is an error (`tiffin.Exists`). `replicas`, `pin`, `owner` and
    /// `wait` are as for `put`, and so is `tiffin.UnconfirmedWarning`.
    ///
    /// With `stream` it is appended to the stream of that name, from which consumers `pull` it. An id that
    /// was consumed from the stream cannot be used again, so that a put may be repeated safely: it raises
    /// `tiffin.Exists`. If too much is in flight, the put raises `tiffin.Behind`, or waits with `wait=True`.
    ///
    /// `elsewhere` is how many bytes of the sample are in another store. They count for its stream or,
    /// without one, for the quota of the namespace.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> ref = store.put_sample("sample-7", {"ids": b"abc"}, consume=["trainer", "eval"])
    /// >>> store.ack(ref, "trainer"), store.ack(ref, "eval"), store.ack(ref, "eval")
    /// ('recorded', 'freed', 'stale')
    #[expect(clippy::too_many_arguments, reason = "they are passed by name, and are independent")]
    #[pyo3(
        text_signature = "($self, id, tensors=None, *, metadata=None, consume='once', replace=True, \
            replicas=1, pin=False, owner='', wait=False, stream='', elsewhere=0, timeout=None)"
    )]
    call put_sample(
        id: &Any<'py>, tensors: Option<&Any<'py>> = None;
        metadata: Option<&Any<'py>> = None, consume: Option<&Any<'py>> = None, replace: bool = true,
        #[pyo3(from_py_with = keys::whole)] replicas: Whole = 1, pin: bool = false, owner: &str = "",
        wait: bool = false, stream: &str = "",
        #[pyo3(from_py_with = keys::whole)] elsewhere: Whole = 0,
    ) {
        let pairs = Pairs::parse(id, tensors, "put_sample", "tensors")?;
        let on_exists = if replace { OnExists::Replace } else { OnExists::Error };
        let options = Keeping { on_exists, replicas, pin, soft_pin: None, owner, ttl: None }.options(py)?;
        let elsewhere = keys::count(py, "elsewhere", elsewhere, 0)?;
        let options = PutOptions { stream: stream.to_owned(), elsewhere, ..options };
        PutSamples::parse(pairs, metadata, consume, options, space_wait(wait))?
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
    call lease(sample: &Any<'py>, group: &str = "") {
        LeaseAll { samples: Samples::parse(sample)?, group: group.to_owned(), caller: self.caller.clone() }
    }

    /// The contents of a sample, or of each of many: a pair of `tiffin.Manifest` and generation. Takes no
    /// lease.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> ref = store.put_sample("sample-7", {"ids": b"abc"}, metadata=b"step 1")
    /// >>> manifest, generation = store.manifest("sample-7")
    /// >>> manifest.metadata, generation == ref.generation
    /// (b'step 1', True)
    call manifest(key: &Any<'py>) {
        Manifests { keys: Keys::parse(key)? }
    }

    /// Acknowledges a sample, or many, on behalf of a consumer group. That needs no lease.
    ///
    /// A sample is named by its ref or by its lease. Returns `"freed"` if no other consumer is awaited: the
    /// sample is gone, and its space is free. Else returns `"recorded"`, or `"stale"` if there is no sample
    /// of that generation any more: acknowledging twice is harmless.
    ///
    /// With `unless_leased=True` a sample that is still leased stays, and the answer is `"recorded"`. If
    /// every consumer calls this after releasing its lease, the last one frees the sample.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> refs = [store.put_sample(f"sample-{i}", {"ids": b"abc"}) for i in range(2)]
    /// >>> store.ack(refs)
    /// ['freed', 'freed']
    call ack(sample: &Any<'py>, group: &str = ""; unless_leased: bool = false) {
        AckAll::parse(sample, group.to_owned(), unless_leased)?
    }

    /// Removes a sample, or many, at once, whether or not it was consumed, and returns whether it existed.
    ///
    /// A sample is named by its ref or by its lease. When the call has returned, it is gone for every process
    /// and its space is free. A ref of an older put of the id removes nothing; and with `unless_leased=True`
    /// a leased sample stays.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> ref = store.put_sample("sample-7", {"ids": b"abc"}, consume="retained")
    /// >>> store.abort(ref), store.abort(ref)
    /// (True, False)
    call abort(sample: &Any<'py>; unless_leased: bool = false) {
        AbortAll::parse(sample, unless_leased)?
    }

    /// Opens a stream, or only asks for its state, and returns it as `tiffin.Stream`.
    ///
    /// A stream is made of the samples that are put with its name, in that order. `refs_high` and
    /// `bytes_high` limit the samples in flight: those that were put or are being put, and that not all
    /// groups have consumed. At a high mark puts wait until the stream is at or below the low marks, which
    /// are three quarters of the high ones by default. Limits that are not given stay as they are.
    ///
    /// With `group` this store is a consumer of that group, and may hold `window` samples before it
    /// acknowledges any. If the limits can never allow that many, it raises `tiffin.InvalidArgument`.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> stream = store.open_stream("train", refs_high=8)
    /// >>> stream.refs, stream.marks
    /// (0, (8, 6, 0, 0))
    #[expect(clippy::too_many_arguments, reason = "they are passed by name, and are independent")]
    call open_stream(
        name: &str;
        #[pyo3(from_py_with = keys::whole_or_none)] refs_high: Option<Whole> = None,
        #[pyo3(from_py_with = keys::whole_or_none)] refs_low: Option<Whole> = None,
        bytes_high: Option<&Any<'py>> = None, bytes_low: Option<&Any<'py>> = None,
        group: Option<&str> = None, #[pyo3(from_py_with = keys::whole)] window: Whole = 0,
    ) {
        let refs = |name, given: Option<Whole>| given.map(|it| keys::count(py, name, it, 0)).transpose();
        let refs = (refs("refs_high", refs_high)?, refs("refs_low", refs_low)?);
        let window = keys::count(py, "window", window, 0)?;
        Open::parse(name, refs, (bytes_high, bytes_low), (group, window))?
    }

    /// Ends a stream: no sample can be appended any more. A consumer that pulls from it gets
    /// `tiffin.EndOfStream` after the last sample; or, with a `failure`, `tiffin.StreamFailed` at once.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.end_stream("train").is_ended
    /// True
    call end_stream(name: &str; failure: Option<String> = None) {
        End { name: name.to_owned(), failure }
    }

    /// Removes all samples that are left in a stream, and returns how many. A consumer that pulls from it
    /// gets `tiffin.StreamFailed`.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> ref = store.put_sample("sample-7", {"ids": b"abc"}, stream="train")
    /// >>> store.drop_stream("train"), store.abort(ref)
    /// (1, False)
    call drop_stream(name: &str) {
        DropAll { name: name.to_owned() }
    }

    /// Leases the next samples of a stream that no other consumer of the group has, and returns a list of
    /// `tiffin.Lease`, in the order of the stream.
    ///
    /// It waits until there are `at_least` samples, and returns at most `at_most`. At its `timeout` it
    /// returns the available ones, possibly none. After the last sample it raises `tiffin.EndOfStream`; if
    /// the stream has failed, `tiffin.StreamFailed`.
    ///
    /// A pulled sample is delivered to the group again if its lease is released, or its process dies, before
    /// it is acknowledged. After the group's `ack` it is never delivered again.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> for i in range(3):
    /// ...     ref = store.put_sample(f"sample-{i}", {"ids": b"abc"}, stream="train")
    /// >>> window = store.pull("train", at_least=2, at_most=2)
    /// >>> [lease.id for lease in window], store.ack(window)
    /// (['sample-0', 'sample-1'], ['freed', 'freed'])
    call pull(
        stream: &str, group: &str = "";
        #[pyo3(from_py_with = keys::whole)] at_least: Whole = 1,
        #[pyo3(from_py_with = keys::whole)] at_most: Whole = 1,
    ) {
        let (stream, group) = (stream.to_owned(), group.to_owned());
        let at_least: u32 = keys::count(py, "at_least", at_least, 0)?;
        let at_most: u32 = keys::count(py, "at_most", at_most, 0)?;
        let pull = Pull { stream, group, at_least, at_most: at_most.max(at_least) };
        PullNext { pull, caller: self.caller.clone() }
    }

    /// The samples of a stream after a position, whichever consumer has them, as a list of
    /// `tiffin.SampleRef`. It takes no lease, and does not show consumed samples. A position is the
    /// generation of a ref. The call waits for the first sample after it, and returns an empty list at its
    /// `timeout`.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> ref = store.put_sample("sample-7", {"ids": b"abc"}, stream="train")
    /// >>> [it.id for it in store.tail("train")], store.tail("train", behind=ref.generation, timeout=0.01)
    /// (['sample-7'], [])
    call tail(
        stream: &str;
        #[pyo3(from_py_with = keys::generation_or_none)] behind: Option<Generation> = None,
        #[pyo3(from_py_with = keys::whole)] at_most: Whole = 256,
    ) {
        let at_most = keys::count(py, "at_most", at_most, 1)?;
        ListSamples { stream: stream.to_owned(), after: behind.unwrap_or_default(), limit: at_most }
    }

    /// The objects that are lost if the store is closed now, as `tiffin.Losses`: those whose only copy is in
    /// this process. A store elsewhere loses nothing.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put({"a": b"1", "b": b"2"}, pin=True)
    /// [True, True]
    /// >>> store.losses().objects, store.losses().names
    /// (2, ('a', 'b'))
    call losses() {
        TellLosses { handle: Arc::clone(&self.caller.handle) }
    }

    /// Usage, nodes, namespaces, clients and traffic, as `tiffin.Stats`.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect(memory="64MiB")
    /// >>> store.put("k", bytes(1000))
    /// True
    /// >>> stats = store.stats()
    /// >>> stats.usage.capacity, stats.traffic.local_written
    /// (67108864, 1000)
    call stats() {
        Describe
    }

    /// The nodes that this store has exchanged bytes with, and how: a list of `tiffin.Route`.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> store.put("k", b"hello")
    /// True
    /// >>> [route.way for route in store.routes()]
    /// ['local']
    call routes() {
        Routes
    }

    others {
        /// Closes the store. Waits for calls in progress; later calls raise `tiffin.Closed`. A store inside
        /// this process ends, and its objects with it; views of them stay valid. Closing twice is harmless.
        ///
        /// Objects whose only copy is in this process are lost: `losses()` lists them. `on_loss` decides what
        /// happens if some of them are pinned, or are samples that wait to be consumed: `"warn"` (a line in
        /// the log `tiffin`), `"error"` (`tiffin.WouldLose`, for any object, and the store stays open) or
        /// `"ignore"`.
        #[pyo3(signature = (*, on_loss = "warn", timeout = None))]
        fn close<'py>(
            &self,
            py: Python<'py>,
            on_loss: &str,
            timeout: Option<&Any<'py>>,
        ) -> PyResult<Py<PyAny>> {
            closing::run(py, &self.caller, OnLoss::parse(py, on_loss)?, timeout)
        }

        /// The address for other processes: pass it to `tiffin.connect`. That of a store inside this process
        /// is valid for other processes of the same user on this host.
        #[getter]
        fn address(&self) -> &str {
            &self.caller.handle.again().address
        }

        /// The namespace of all keys.
        #[getter]
        fn namespace(&self) -> &str {
            &self.caller.handle.again().namespace
        }

        /// Whether `close` was called.
        #[getter]
        fn is_closed(&self) -> bool {
            self.caller.handle.is_closed()
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
            self.close(py, "warn", None).map(drop)
        }

        fn __repr__(&self) -> String {
            format!("<tiffin.Store at {:?}, {}>", self.address(), self.caller.handle.state(self.is_embedded))
        }

        /// Another process gets a connection of its own.
        fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Any<'py>, Bound<'py, PyTuple>)> {
            if self.caller.is_async {
                return Err(PyValueError::new_err("a store of an event loop cannot be pickled"));
            }
            let again = self.caller.handle.again();
            let seconds = self.caller.time.as_secs_f64();
            let tls = (&again.tls.ca, &again.tls.cert, &again.tls.key);
            let arguments =
                (&again.address, &again.namespace, &again.token, tls, again.shared_memory, seconds);
            Ok((py.import("tiffin")?.getattr("_connect_again")?, arguments.into_pyobject(py)?))
        }
    }
}
