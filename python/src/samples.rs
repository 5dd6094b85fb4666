//! Samples: groups of tensors that are put, leased, read and acknowledged as one.
//!
//! `tiffin/_tensors.py` determines the element types of Python objects, and allocates memory for tensors.
//! It uses numpy if that is installed.

use std::collections::BTreeMap;
use std::sync::Arc;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyMapping, PyString, PyTuple};
use tiffin_client::{
    Acked, Client, Consumption, Deadline, Dtype, Error, Generation, Key, Manifest, PutOptions, SamplePut,
    SampleRef, SpaceWait, Tensor, TensorRef,
};

use crate::errors::{self, invalid, wrong_type};
use crate::handle::Operation;
use crate::keys::{self, Keys, Pairs, UNGIVEN};
use crate::memory::Memory;
use crate::methods::{Any, Caller, methods};
use crate::operations::{Each, gather};
use crate::process::Ours;
use crate::types;
use crate::view::View;

/// Stores samples.
pub(crate) struct PutSamples {
    samples: Vec<SampleIn>,
    is_one: bool,
    consumption: Consumption,
    options: PutOptions,
    space_wait: SpaceWait,
}

/// A sample to store.
struct SampleIn {
    id: Key,
    tensors: Vec<TensorIn>,
    metadata: Vec<u8>,
}

/// A tensor to store.
struct TensorIn {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    memory: Memory,
}

impl PutSamples {
    /// One sample or many, with metadata for the one, or a mapping from ids to metadata.
    pub(crate) fn parse(
        pairs: Pairs<'_>,
        metadata: Option<&Any<'_>>,
        consume: Option<&Any<'_>>,
        options: PutOptions,
        space_wait: SpaceWait,
    ) -> PyResult<Self> {
        let Pairs { keys: Keys { list, is_one }, others } = pairs;
        let mut beside = match metadata {
            None => BTreeMap::new(),
            Some(given) if is_one => {
                list.iter().map(|id| Ok((id.clone(), bytes(given)?))).collect::<PyResult<_>>()?
            }
            Some(given) => metadata_of_many(given)?,
        };
        let mut samples = Vec::with_capacity(list.len());
        for (id, tensors) in list.into_iter().zip(&others) {
            let metadata = beside.remove(&id).unwrap_or_default();
            samples.push(SampleIn { id, tensors: TensorIn::all(tensors)?, metadata });
        }
        if let (Some((id, _)), Some(given)) = (beside.pop_first(), metadata) {
            let hint = "use the ids of the samples";
            return Err(invalid(given.py(), format!("metadata of `{id}`, which is not put\n\nhint: {hint}")));
        }
        Ok(Self { samples, is_one, consumption: consumption(consume)?, options, space_wait })
    }
}

impl Operation for PutSamples {
    type Outcome = Each<SampleRef>;

    fn waits(&self) -> bool {
        self.space_wait != SpaceWait::Never
    }

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<Each<SampleRef>, Error> {
        let puts: Vec<_> =
            self.samples.iter().map(|it| it.as_put(&self.consumption, &self.options)).collect();
        Ok(client.put_samples(&puts, self.space_wait, deadline).await)
    }

    fn answer(self, py: Python<'_>, outcome: Each<SampleRef>) -> PyResult<Py<PyAny>> {
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        // The caller may change the arrays again before the answer is converted.
        drop(self.samples);
        let stored = outcome.iter().filter_map(|it| it.as_ref().ok());
        errors::warn_unconfirmed(py, stored.map(|it| (&it.id, it.unconfirmed.as_slice())))?;
        gather(py, self.is_one, &UNGIVEN, outcome, |it| {
            let fields =
                (types::show(py, &it.id)?, (it.generation.epoch, it.generation.counter), it.len, it.replaced);
            Ok(types::class(py, &CLASS, "SampleRef")?.call1(fields)?.unbind())
        })
    }
}

impl SampleIn {
    fn as_put<'a>(&'a self, consumption: &Consumption, options: &PutOptions) -> SamplePut<'a> {
        let tensors = self.tensors.iter().map(|it| TensorRef {
            name: it.name.clone(),
            dtype: it.dtype,
            shape: it.shape.clone(),
            parts: vec![it.memory.as_source()],
        });
        SamplePut {
            id: self.id.clone(),
            tensors: tensors.collect(),
            metadata: &self.metadata,
            consumption: consumption.clone(),
            options: options.clone(),
        }
    }
}

impl TensorIn {
    /// The tensors of a mapping from names to arrays.
    fn all(given: &Any<'_>) -> PyResult<Vec<Self>> {
        let tensors = by_name("a sample is a mapping", given)?;
        tensors.into_iter().map(|(name, value)| Self::one(name, &value)).collect()
    }

    fn one(name: String, value: &Any<'_>) -> PyResult<Self> {
        static EXPOSED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = value.py();
        let exposed = EXPOSED.import(py, "tiffin._tensors", "exposed")?.call1((value,))?;
        let (lender, dtype, shape): (Any<'_>, String, Vec<u64>) = exposed.extract()?;
        let memory = Memory::to_read(&lender)?;
        let dtype = dtype.parse().map_err(|error| {
            let hint = "convert it first, as in `array.astype(\"float32\")`";
            invalid(py, format!("tensor `{name}`: {error}\n\nhint: {hint}"))
        })?;
        Ok(Self { name, dtype, shape, memory })
    }
}

/// Arrays by the names of tensors.
fn by_name<'py>(wanted: &str, given: &Any<'py>) -> PyResult<Vec<(String, Any<'py>)>> {
    let hint = "give a mapping from names to arrays, as in {\"mask\": mask}";
    let Ok(mapping) = given.cast::<PyMapping>() else { return Err(wrong_type(wanted, given, hint)) };
    let items = mapping.items()?;
    let named = |item: Any<'py>| {
        let (name, value): (Any<'py>, Any<'py>) = item.extract()?;
        match name.extract::<String>() {
            Ok(text) => Ok((text, value)),
            Err(_) => Err(wrong_type("the name of a tensor is str", &name, hint)),
        }
    };
    items.iter().map(named).collect()
}

fn metadata_of_many(given: &Any<'_>) -> PyResult<BTreeMap<Key, Vec<u8>>> {
    let Ok(mapping) = given.cast::<PyMapping>() else {
        let hint = "give `metadata={id: bytes, …}`, for some or all of the ids";
        return Err(wrong_type("the metadata of many samples is a mapping", given, hint));
    };
    let items = mapping.items()?;
    let item = |item: Any<'_>| {
        let (id, given): (Any<'_>, Any<'_>) = item.extract()?;
        Ok((keys::key(&id)?, bytes(&given)?))
    };
    items.iter().map(item).collect()
}

/// Metadata of a producer, stored with the tensors.
fn bytes(given: &Any<'_>) -> PyResult<Vec<u8>> {
    match given.extract::<PyBackedBytes>() {
        Ok(bytes) => Ok(bytes.to_vec()),
        Err(_) => Err(wrong_type(
            "metadata must be bytes",
            given,
            "encode it first, as in `json.dumps(it).encode()`",
        )),
    }
}

/// The consumers of a sample: `once`, `retained`, or the names of groups.
fn consumption(given: Option<&Any<'_>>) -> PyResult<Consumption> {
    let Some(given) = given else { return Ok(Consumption::Once) };
    let hint = "give \"once\", \"retained\", or a list of the groups that consume it once each";
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

/// Returns the contents of samples.
pub(crate) struct Manifests {
    pub(crate) keys: Keys,
}

impl Operation for Manifests {
    type Outcome = Each<(Manifest, Generation)>;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<Self::Outcome, Error> {
        Ok(client.manifests(&self.keys.list, deadline).await)
    }

    fn answer(self, py: Python<'_>, outcome: Self::Outcome) -> PyResult<Py<PyAny>> {
        gather(py, self.keys.is_one, &UNGIVEN, outcome, |(told, generation)| {
            (manifest(py, &told)?, (generation.epoch, generation.counter)).into_py_any(py)
        })
    }
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
        gather(py, self.samples.is_one, &UNGIVEN, outcome, |lease| {
            self::lease(lease, &self.caller).into_py_any(py)
        })
    }
}

/// Wraps a lease for Python.
pub(crate) fn lease(lease: tiffin_client::Lease, caller: &Caller) -> Lease {
    Lease { lease: Arc::new(Ours::new(lease)), caller: caller.clone() }
}

/// Acknowledges samples on behalf of a group.
pub(crate) struct AckAll {
    samples: Vec<(Key, Generation)>,
    is_one: bool,
    group: String,
    unless_leased: bool,
}

impl AckAll {
    /// Refs and leases name the generation that was consumed; an id alone does not.
    pub(crate) fn parse(given: &Any<'_>, group: String, unless_leased: bool) -> PyResult<Self> {
        let Samples { list, is_one } = Samples::parse(given)?;
        let named = list.into_iter().map(|(key, generation)| {
            let generation = generation.ok_or_else(|| {
                let hint = "give the result of `put_sample`, or the lease: they name the generation";
                invalid(given.py(), format!("`{key}` is an id, not a ref\n\nhint: {hint}"))
            })?;
            Ok((key, generation))
        });
        Ok(Self { samples: named.collect::<PyResult<_>>()?, is_one, group, unless_leased })
    }
}

impl Operation for AckAll {
    type Outcome = Each<Acked>;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<Each<Acked>, Error> {
        if self.unless_leased {
            return Ok(client.ack_unless_leased(&self.samples, &self.group, deadline).await);
        }
        Ok(client.ack(&self.samples, &self.group, deadline).await)
    }

    fn answer(self, py: Python<'_>, outcome: Each<Acked>) -> PyResult<Py<PyAny>> {
        gather(py, self.is_one, &UNGIVEN, outcome, |acked| {
            let word = match acked {
                Acked::Freed => "freed",
                Acked::Recorded => "recorded",
                Acked::Stale => "stale",
            };
            word.into_py_any(py)
        })
    }
}

/// Removes samples, whether or not they were consumed.
pub(crate) struct AbortAll(AckAll);

impl AbortAll {
    pub(crate) fn parse(given: &Any<'_>, unless_leased: bool) -> PyResult<Self> {
        AckAll::parse(given, String::new(), unless_leased).map(Self)
    }
}

impl Operation for AbortAll {
    type Outcome = Each<bool>;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<Each<bool>, Error> {
        Ok(client.abort(&self.0.samples, self.0.unless_leased, deadline).await)
    }

    fn answer(self, py: Python<'_>, outcome: Each<bool>) -> PyResult<Py<PyAny>> {
        gather(py, self.0.is_one, &UNGIVEN, outcome, |was_there| was_there.into_py_any(py))
    }
}

/// One sample or many, each by its id or by an object that has its generation.
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

/// The sample that an object names, if it names one.
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
    wrong_type("a sample is named by its id or its ref", given, "give the result of `put_sample`")
}

/// A sample that is leased to this process. Made by `tiffin.Store.lease`.
///
/// It tells the store that this process is about to consume the sample. It ends when it is released, when the
/// sample is gone, or when the process ends; never by a timer. Reads are correct with or without it: reading
/// a sample that was consumed, deleted or replaced meanwhile raises an error.
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

impl Lease {
    /// The tensors with these names, or all.
    fn chosen(&self, py: Python<'_>, names: Option<Vec<String>>) -> PyResult<Vec<Tensor>> {
        let manifest = self.lease.manifest();
        match names {
            None => Ok(manifest.tensors.clone()),
            Some(names) => names.iter().map(|name| self.tensor(py, name)).collect(),
        }
    }

    fn tensor(&self, py: Python<'_>, name: &str) -> PyResult<Tensor> {
        self.lease.manifest().tensor(name).cloned().ok_or_else(|| {
            let what = format!("sample `{}` has no tensor `{name}`", self.lease.id());
            invalid(py, format!("{what}\n\nhint: `lease.manifest` lists the tensors"))
        })
    }
}

methods! {
    class Lease, with self and py;

    /// Reads the tensors, or those with these names, and returns them by name.
    ///
    /// They are numpy arrays where numpy is installed, else memoryviews, of their original type and shape, in
    /// writable memory of their own. Types that numpy lacks, such as bfloat16, are returned as unsigned
    /// integers of the same size, unless the package `ml_dtypes` is installed; `manifest` has the true type.
    ///
    /// With `copy=False` they are read-only and in place, if this process can map the memory (else they are a
    /// copy). They stay valid after the end of the lease and the sample, and keep the memory of the whole
    /// sample until the last of them is gone.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> ref = store.put_sample("s", {"a": b"1", "b": b"2"})
    /// >>> with store.lease(ref) as lease:
    /// ...     [(name, bytes(tensor)) for name, tensor in lease.tensors().items()]
    /// ...     list(lease.tensors(["b"], copy=False))
    /// [('a', b'1'), ('b', b'2')]
    /// ['b']
    call tensors(names: Option<Vec<String>> = None; copy: bool = true) {
        let tensors = self.chosen(py, names)?;
        let lease = Arc::clone(&self.lease);
        if copy { Read::into_memory(py, lease, tensors)? } else { Read { lease, tensors, how: How::Look } }
    }

    /// Reads tensors into existing memory: a mapping from their names to buffers.
    ///
    /// A buffer is any writable, contiguous object with the buffer protocol or `__dlpack__`. It has the type
    /// and shape of its tensor, or is plain bytes, which may be larger than the tensor. If one of them does
    /// not fit, nothing is read.
    ///
    /// >>> import tiffin
    /// >>> store = tiffin.connect()
    /// >>> ref = store.put_sample("s", {"a": b"123", "b": b"2"})
    /// >>> out = bytearray(3)
    /// >>> with store.lease(ref) as lease:
    /// ...     lease.get_into({"a": out})
    /// >>> out
    /// bytearray(b'123')
    call get_into(tensors: &Any<'py>) {
        let (mut list, mut memories) = (Vec::new(), Vec::new());
        for (name, buffer) in by_name("the tensors to fill are a mapping", tensors)? {
            let tensor = self.tensor(py, &name)?;
            fits(&tensor, &buffer)?;
            memories.push(Memory::to_write(&buffer)?);
            list.push(tensor);
        }
        Read { lease: Arc::clone(&self.lease), tensors: list, how: How::Fill(memories) }
    }

    /// Ends the lease without consuming the sample. Releasing twice is harmless.
    call release() {
        Release { lease: Arc::clone(&self.lease) }
    }

    others {
        /// The sample's name.
        #[getter]
        fn id<'py>(&self, py: Python<'py>) -> PyResult<Any<'py>> {
            types::show(py, self.lease.id())
        }

        /// Which put of the name it is.
        #[getter]
        fn generation(&self) -> (u64, u64) {
            let generation = self.lease.generation();
            (generation.epoch, generation.counter)
        }

        /// The contents of the sample, as `tiffin.Manifest`.
        #[getter]
        fn manifest<'py>(&self, py: Python<'py>) -> PyResult<Any<'py>> {
            manifest(py, self.lease.manifest())
        }

        /// Whether it was released.
        #[getter]
        fn is_released(&self) -> bool {
            self.lease.is_released()
        }

        fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
            if slf.get().lease.is_here() { Ok(slf) } else { Err(errors::raise(slf.py(), &Error::Forked)) }
        }

        fn __exit__(
            &self,
            py: Python<'_>,
            _kind: &Any<'_>,
            _error: &Any<'_>,
            _traceback: &Any<'_>,
        ) -> PyResult<()> {
            // The leases of a store end with it, and a forked child has none to end.
            if self.caller.handle.is_closed() || !self.lease.is_here() {
                return Ok(());
            }
            self.release(py, None).map(drop)
        }

        fn __repr__(&self) -> String {
            let state = match () {
                () if !self.lease.is_here() => "of the parent process",
                () if self.is_released() => "released",
                () => "held",
            };
            format!("<tiffin.Lease of `{}`, {state}>", self.lease.id())
        }
    }
}

/// Reads tensors of a leased sample.
struct Read {
    lease: Arc<Ours<tiffin_client::Lease>>,
    tensors: Vec<Tensor>,
    how: How,
}

/// The destination of the bytes.
enum How {
    /// Memory that was allocated for them, and the arrays over it.
    Make(Vec<Memory>, Vec<Py<PyAny>>),
    /// The caller's memory.
    Fill(Vec<Memory>),
    /// No destination: the arrays are in place.
    Look,
}

impl Read {
    fn into_memory(
        py: Python<'_>,
        lease: Arc<Ours<tiffin_client::Lease>>,
        tensors: Vec<Tensor>,
    ) -> PyResult<Self> {
        static ALLOCATE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let (mut memories, mut arrays) =
            (Vec::with_capacity(tensors.len()), Vec::with_capacity(tensors.len()));
        for tensor in &tensors {
            let shape = PyTuple::new(py, &tensor.shape)?;
            let allocate = ALLOCATE.import(py, "tiffin._tensors", "allocate")?;
            let made = allocate.call1((tensor.dtype.long_name(), shape, tensor.bytes))?;
            let (buffer, array): (Any<'_>, Py<PyAny>) = made.extract()?;
            memories.push(Memory::to_write(&buffer)?);
            arrays.push(array);
        }
        Ok(Self { lease, tensors, how: How::Make(memories, arrays) })
    }
}

impl Operation for Read {
    type Outcome = Vec<tiffin_client::View>;

    async fn run(&self, _: &Client, deadline: Deadline) -> Result<Self::Outcome, Error> {
        if !self.lease.is_here() {
            return Err(Error::Forked);
        }
        let names = self.tensors.iter().map(|it| it.name.as_str());
        match &self.how {
            How::Make(memories, _) | How::Fill(memories) => {
                let targets = memories.iter().map(|memory| vec![memory.as_target()]);
                let tensors = names.map(str::to_owned).zip(targets).collect();
                self.lease.read_into(tensors, deadline).await?;
                Ok(Vec::new())
            }
            How::Look => self.lease.view(&names.collect::<Vec<_>>(), deadline).await,
        }
    }

    fn answer(self, py: Python<'_>, views: Self::Outcome) -> PyResult<Py<PyAny>> {
        static IN_PLACE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let by_name = PyDict::new(py);
        match self.how {
            How::Fill(_) => return Ok(py.None()),
            How::Make(memories, arrays) => {
                drop(memories);
                for (tensor, array) in self.tensors.iter().zip(arrays) {
                    by_name.set_item(&tensor.name, array)?;
                }
            }
            How::Look => {
                let in_place = IN_PLACE.import(py, "tiffin._tensors", "in_place")?;
                for (tensor, view) in self.tensors.iter().zip(views) {
                    let shape = PyTuple::new(py, &tensor.shape)?;
                    let array = in_place.call1((View::new(view), tensor.dtype.long_name(), shape))?;
                    by_name.set_item(&tensor.name, array)?;
                }
            }
        }
        Ok(by_name.into_any().unbind())
    }
}

/// Whether a buffer may hold a tensor: by its type and shape, or as plain bytes.
fn fits(tensor: &Tensor, buffer: &Any<'_>) -> PyResult<()> {
    static FITS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = buffer.py();
    let shape = PyTuple::new(py, &tensor.shape)?;
    let problem = FITS.import(py, "tiffin._tensors", "misfit")?;
    match problem.call1((buffer, tensor.dtype.long_name(), shape))?.extract::<Option<String>>()? {
        None => Ok(()),
        Some(given) => {
            let wanted = format!("tensor `{}` is {} of shape {:?}", tensor.name, tensor.dtype, tensor.shape);
            let hint = "give an array like it, or enough plain bytes";
            Err(invalid(py, format!("{wanted}, and the buffer {given}\n\nhint: {hint}")))
        }
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
