//! Samples: groups of tensors that are put as one, leased, read and acknowledged.
//!
//! What a Python object says of its elements, and the memory that tensors are read into, is the business of
//! `tiffin/_tensors.py`, which knows numpy where that is installed.

use std::sync::Arc;
use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyMapping, PyString, PyTuple};
use tiffin_client::{
    Acked, Client, Consumption, Deadline, Dtype, Error, Generation, Key, Manifest, OnExists, Patience,
    SamplePut, SampleRef, TensorRef,
};

use crate::errors::{invalid, wrong_type};
use crate::handle::{Handle, Operation};
use crate::keys::{self, Missing};
use crate::memory::Memory;
use crate::operations::{Each, gather};
use crate::process::Ours;
use crate::types;

type Any<'py> = Bound<'py, PyAny>;

/// How calls are made: of which store, with which time limit, and whether for an event loop.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) handle: Arc<Handle>,
    pub(crate) time: Duration,
    pub(crate) is_async: bool,
}

impl Caller {
    /// Waits for the answer, or gives the asyncio future that it will be set on.
    pub(crate) fn go<O: Operation>(
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

/// Stores one sample.
pub(crate) struct PutSample {
    pub(crate) id: Key,
    pub(crate) tensors: Vec<TensorIn>,
    pub(crate) metadata: Vec<u8>,
    pub(crate) consumption: Consumption,
    pub(crate) replace: bool,
    pub(crate) patience: Patience,
}

/// A tensor to be stored.
pub(crate) struct TensorIn {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    memory: Memory,
}

impl Operation for PutSample {
    type Outcome = SampleRef;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<SampleRef, Error> {
        let tensors = self.tensors.iter().map(|it| TensorRef {
            name: it.name.clone(),
            dtype: it.dtype,
            shape: it.shape.clone(),
            parts: vec![it.memory.as_source()],
        });
        let mut sample = SamplePut::new(self.id.clone(), tensors.collect());
        sample.metadata = &self.metadata;
        sample.consumption = self.consumption.clone();
        sample.options.on_exists = if self.replace { OnExists::Replace } else { OnExists::Keep };
        only(client.put_samples(&[sample], self.patience, deadline).await)
    }

    fn answer(self, py: Python<'_>, outcome: SampleRef) -> PyResult<Py<PyAny>> {
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        drop(self.tensors);
        let SampleRef { id, generation, len, replaced, .. } = outcome;
        let fields = (keys::show(py, &id)?, (generation.epoch, generation.counter), len, replaced);
        Ok(types::class(py, &CLASS, "SampleRef")?.call1(fields)?.unbind())
    }
}

impl TensorIn {
    /// The tensors of a mapping from names to arrays.
    pub(crate) fn all(given: &Any<'_>) -> PyResult<Vec<Self>> {
        let hint = "give a mapping from names to arrays, as in {\"mask\": mask}";
        let Ok(mapping) = given.cast::<PyMapping>() else {
            return Err(wrong_type("a sample is a mapping", given, hint));
        };
        let mut tensors = Vec::new();
        for item in mapping.items()?.iter() {
            let (name, value): (Any<'_>, Any<'_>) = item.extract()?;
            let Ok(text) = name.extract::<String>() else {
                return Err(wrong_type("the name of a tensor is str", &name, hint));
            };
            tensors.push(Self::one(text, &value)?);
        }
        Ok(tensors)
    }

    fn one(name: String, value: &Any<'_>) -> PyResult<Self> {
        static DESCRIBE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = value.py();
        let memory = Memory::to_read(value)?;
        let described = DESCRIBE.import(py, "tiffin._tensors", "describe")?.call1((value,))?;
        let (dtype, shape): (String, Vec<u64>) = described.extract()?;
        let dtype = dtype.parse().map_err(|error| {
            let hint = "convert it first, as in `array.astype(\"float32\")`";
            invalid(py, format!("tensor `{name}`: {error}\n\nhint: {hint}"))
        })?;
        Ok(Self { name, dtype, shape, memory })
    }
}

/// What a producer wrote beside the tensors.
pub(crate) fn metadata(given: Option<&Any<'_>>) -> PyResult<Vec<u8>> {
    let Some(given) = given else { return Ok(Vec::new()) };
    match given.extract::<PyBackedBytes>() {
        Ok(bytes) => Ok(bytes.to_vec()),
        Err(_) => {
            Err(wrong_type("metadata is bytes", given, "encode it first, as in `json.dumps(it).encode()`"))
        }
    }
}

/// Who is to consume a sample: `once`, `retained`, or the names of groups.
pub(crate) fn consumption(given: Option<&Any<'_>>) -> PyResult<Consumption> {
    let Some(given) = given else { return Ok(Consumption::Once) };
    let hint = "it is \"once\", \"retained\", or a list of the groups that consume it once each";
    if let Ok(word) = given.cast::<PyString>() {
        return match word.to_string().as_str() {
            "once" => Ok(Consumption::Once),
            "retained" => Ok(Consumption::Retained),
            other => Err(invalid(given.py(), format!("consume={other:?} is unknown\n\nhint: {hint}"))),
        };
    }
    let groups = given.try_iter().and_then(|groups| groups.map(|it| it?.extract::<String>()).collect());
    groups.map(Consumption::Groups).map_err(|_| wrong_type("consume is text or a list of it", given, hint))
}

/// Leases samples.
pub(crate) struct LeaseAll {
    pub(crate) samples: Samples,
    pub(crate) group: String,
    pub(crate) caller: Caller,
}

impl Operation for LeaseAll {
    type Outcome = Each<tiffin_client::Lease>;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<Self::Outcome, Error> {
        Ok(client.lease(&self.samples.list, &self.group, deadline).await)
    }

    fn answer(self, py: Python<'_>, outcome: Self::Outcome) -> PyResult<Py<PyAny>> {
        gather(py, self.samples.is_one, &Missing(None), outcome, |lease| {
            Lease { lease: Arc::new(Ours::new(lease)), caller: self.caller.clone() }.into_py_any(py)
        })
    }
}

/// Says that a group is done with samples.
pub(crate) struct AckAll {
    samples: Vec<(Key, Generation)>,
    is_one: bool,
    group: String,
}

impl AckAll {
    /// Refs and leases name the generation that was consumed; an id alone does not.
    pub(crate) fn parse(given: &Any<'_>, group: String) -> PyResult<Self> {
        let Samples { list, is_one } = Samples::parse(given)?;
        let named = list.into_iter().map(|(key, generation)| {
            let generation = generation.ok_or_else(|| {
                let hint =
                    "give what `put_sample` returned, or the lease: they say which put of the id it was";
                invalid(given.py(), format!("`{key}` is an id and no ref\n\nhint: {hint}"))
            })?;
            Ok((key, generation))
        });
        Ok(Self { samples: named.collect::<PyResult<_>>()?, is_one, group })
    }
}

impl Operation for AckAll {
    type Outcome = Each<Acked>;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<Each<Acked>, Error> {
        Ok(client.ack(&self.samples, &self.group, deadline).await)
    }

    fn answer(self, py: Python<'_>, outcome: Each<Acked>) -> PyResult<Py<PyAny>> {
        gather(py, self.is_one, &Missing(None), outcome, |acked| {
            let word = match acked {
                Acked::Freed => "freed",
                Acked::Recorded => "recorded",
                Acked::Stale => "stale",
            };
            word.into_py_any(py)
        })
    }
}

/// One sample or many, each by its id or by something that knows its generation.
pub(crate) struct Samples {
    list: Vec<(Key, Option<Generation>)>,
    is_one: bool,
}

impl Samples {
    pub(crate) fn parse(given: &Any<'_>) -> PyResult<Self> {
        if let Some(sample) = named(given)? {
            return Ok(Self { list: vec![sample], is_one: true });
        }
        let Ok(items) = given.try_iter() else { return Err(no_sample(given)) };
        let list = items.map(|item| {
            let item = item?;
            named(&item)?.ok_or_else(|| no_sample(&item))
        });
        Ok(Self { list: list.collect::<PyResult<_>>()?, is_one: false })
    }
}

/// The sample that something names, if it names one by itself.
fn named(given: &Any<'_>) -> PyResult<Option<(Key, Option<Generation>)>> {
    if keys::is_key(given) {
        return Ok(Some((keys::key(given)?, None)));
    }
    let (Ok(id), Ok(generation)) = (given.getattr("id"), given.getattr("generation")) else {
        return Ok(None);
    };
    let (epoch, counter) = generation.extract()?;
    Ok(Some((keys::key(&id)?, Some(Generation { epoch, counter }))))
}

fn no_sample(given: &Any<'_>) -> PyErr {
    wrong_type("a sample is named by its id or its ref", given, "give what `put_sample` returned")
}

/// A sample that is leased to this process. Made by `tiffin.Store.lease`.
///
/// It says to the store that somebody is about to consume the sample. It ends when it is released, when the
/// sample is gone, or when the process is; never because time passed. Reads are right with or without it:
/// what was consumed, deleted or replaced meanwhile raises an error.
///
/// >>> import tiffin
/// >>> store = tiffin.connect()
/// >>> ref = store.put_sample("sample-7", {"ids": b"abc"}, metadata=b"step 1")
/// >>> with store.lease(ref) as lease:
/// ...     print(lease.manifest.metadata, bytes(lease.tensors()["ids"]))
/// ...     store.ack(lease)
/// b'step 1' b'abc'
/// 'freed'
#[pyclass(frozen, module = "tiffin")]
pub(crate) struct Lease {
    lease: Arc<Ours<tiffin_client::Lease>>,
    caller: Caller,
}

#[pymethods]
impl Lease {
    /// The sample's name.
    #[getter]
    fn id<'py>(&self, py: Python<'py>) -> PyResult<Any<'py>> {
        keys::show(py, self.lease.id())
    }

    /// Which put of the name it is.
    #[getter]
    fn generation(&self) -> (u64, u64) {
        let generation = self.lease.generation();
        (generation.epoch, generation.counter)
    }

    /// What the sample is made of, as `tiffin.Manifest`.
    #[getter]
    fn manifest<'py>(&self, py: Python<'py>) -> PyResult<Any<'py>> {
        manifest(py, self.lease.manifest())
    }

    /// Whether it was released.
    #[getter]
    fn is_released(&self) -> bool {
        self.lease.is_released()
    }

    /// Reads the tensors, or those with these names, and gives them by name.
    ///
    /// They are numpy arrays where numpy is installed, else memoryviews, of the type and shape that they were
    /// put with and in memory of their own, which may be written. Types that numpy has no name for, such as
    /// bfloat16, come as unsigned integers of the same size, unless the package `ml_dtypes` is installed;
    /// `manifest` has the true type.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> ref = store.put_sample("s", {"a": b"1", "b": b"2"})
    /// >>> with store.lease(ref) as lease:
    /// ...     [(name, bytes(tensor)) for name, tensor in lease.tensors().items()]
    /// ...     list(lease.tensors(["b"]))
    /// [('a', b'1'), ('b', b'2')]
    /// ['b']
    #[pyo3(signature = (names = None, *, timeout = None))]
    fn tensors<'py>(
        &self,
        py: Python<'py>,
        names: Option<Vec<String>>,
        timeout: Option<&Any<'py>>,
    ) -> PyResult<Py<PyAny>> {
        static ROOM: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let manifest = self.lease.manifest();
        let names = names.unwrap_or_else(|| manifest.tensors.iter().map(|it| it.name.clone()).collect());
        let mut read = ReadTensors {
            lease: Arc::clone(&self.lease),
            buffers: Vec::with_capacity(names.len()),
            tensors: Vec::with_capacity(names.len()),
            names,
        };
        for name in &read.names {
            let Some(tensor) = manifest.tensor(name) else {
                let what = format!("sample `{}` has no tensor `{name}`", self.lease.id());
                return Err(invalid(py, format!("{what}\n\nhint: `lease.manifest` lists them")));
            };
            let shape = PyTuple::new(py, &tensor.shape)?;
            let room = ROOM.import(py, "tiffin._tensors", "room")?;
            let made = room.call1((tensor.dtype.long_name(), shape, tensor.bytes))?;
            let (buffer, shaped): (Any<'py>, Py<PyAny>) = made.extract()?;
            read.buffers.push(Memory::to_write(&buffer)?);
            read.tensors.push(shaped);
        }
        self.caller.go(py, timeout, read)
    }

    /// Ends the lease without consuming the sample. Releasing twice is harmless.
    #[pyo3(signature = (*, timeout = None))]
    fn release<'py>(&self, py: Python<'py>, timeout: Option<&Any<'py>>) -> PyResult<Py<PyAny>> {
        self.caller.go(py, timeout, Release { lease: Arc::clone(&self.lease) })
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
        // The leases of a store end with it.
        if self.caller.handle.is_closed() { Ok(()) } else { self.release(py, None).map(drop) }
    }

    fn __repr__(&self) -> String {
        let state = match () {
            () if !self.lease.is_here() => "of the parent process",
            () if self.is_released() => "released",
            () => "held",
        };
        format!("<tiffin.Lease of {:?}, {state}>", self.lease.id().to_string())
    }
}

/// Reads tensors into memory that was made for them.
struct ReadTensors {
    lease: Arc<Ours<tiffin_client::Lease>>,
    names: Vec<String>,
    buffers: Vec<Memory>,
    tensors: Vec<Py<PyAny>>,
}

impl Operation for ReadTensors {
    type Outcome = ();

    async fn run(&self, _: &Client, deadline: Deadline) -> Result<(), Error> {
        if !self.lease.is_here() {
            return Err(Error::Forked);
        }
        let targets = self.buffers.iter().map(|buffer| vec![buffer.as_target()]);
        let tensors = self.names.iter().cloned().zip(targets).collect();
        self.lease.read_into(tensors, deadline).await
    }

    fn answer(self, py: Python<'_>, (): ()) -> PyResult<Py<PyAny>> {
        drop(self.buffers);
        let tensors = PyDict::new(py);
        for (name, tensor) in self.names.iter().zip(self.tensors) {
            tensors.set_item(name, tensor)?;
        }
        Ok(tensors.into_any().unbind())
    }
}

/// Ends a lease.
struct Release {
    lease: Arc<Ours<tiffin_client::Lease>>,
}

impl Operation for Release {
    type Outcome = ();

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<(), Error> {
        if !self.lease.is_here() {
            return Err(Error::Forked);
        }
        client.release(&[&**self.lease], deadline).await
    }

    fn answer(self, py: Python<'_>, (): ()) -> PyResult<Py<PyAny>> {
        Ok(py.None())
    }
}

fn manifest<'py>(py: Python<'py>, manifest: &Manifest) -> PyResult<Any<'py>> {
    static MANIFEST: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static TENSOR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let class = types::class(py, &TENSOR, "TensorInfo")?;
    let tensors = manifest.tensors.iter().map(|it| {
        let shape = PyTuple::new(py, &it.shape)?;
        class.call1((&it.name, it.dtype.long_name(), shape, it.bytes))
    });
    let tensors = PyTuple::new(py, tensors.collect::<PyResult<Vec<_>>>()?)?;
    let metadata = pyo3::types::PyBytes::new(py, &manifest.metadata);
    types::class(py, &MANIFEST, "Manifest")?.call1((tensors, metadata, manifest.len))
}

/// The one result of a call with one item.
fn only<T>(results: Vec<Result<T, Error>>) -> Result<T, Error> {
    let none = || Error::Invalid { what: "a call with one item gave no result".to_owned() };
    results.into_iter().next().unwrap_or_else(|| Err(none()))
}
