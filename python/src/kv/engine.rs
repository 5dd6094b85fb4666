//! The class `_native.KvEngine`: an executor over memory that Python provides.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict, PyTuple};
use tiffin_client::gpu::Stream;
use tiffin_client::{Deadline, Error};
use tiffin_kv::{OpKind, PageCounts, Prompt, ReqId, SpaceId, Tier};
use tiffin_kv_exec::{ClusterStore, Device, Executor, Gather, HostDevice, Pages, Parts, StepError, Threads};

use super::convert::{self, Coordinates, Inputs, Mediums};
use super::layers::KvLayers;
use super::python_objects::{PythonDevice, PythonGather, PythonStore};
use super::settings::{self, Shape};
use super::{convert::kind_word, memory};
use crate::cuda;
use crate::errors::{self, closed, invalid};
use crate::memory::Memory;
use crate::methods::Any;
use crate::process::PerProcess;
use crate::runtime::{self, block_on};
use crate::store::Store;

/// The maximum wait, which is practically unlimited.
const SECONDS_MAX: f64 = 1e6;
/// How often a waiting call checks for signals.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// The engine of a KV hierarchy over Python's memory. `tiffin.kv.Engine` is its public class.
#[pyclass(frozen, module = "tiffin._native")]
pub(crate) struct KvEngine {
    /// Threads and locks belong to the process that made the engine; a forked child has none.
    executor: PerProcess<Mutex<Option<Executor>>>,
    /// The stream on which the model computes, and the number of layers, if they are on a CUDA device.
    model: Option<(Stream, u32)>,
}

#[pymethods]
impl KvEngine {
    /// `device` is memory, layers of a CUDA device, or an object that loads and saves. `host` is memory, or
    /// `None` for memory of our own.
    #[new]
    #[pyo3(
        signature = (shape, settings, *, page_bytes, device, host, store, exist_options, rank_part, gather)
    )]
    #[expect(clippy::too_many_arguments, reason = "the package passes them by name")]
    fn new(
        py: Python<'_>,
        shape: Shape,
        settings: &Bound<'_, PyDict>,
        page_bytes: usize,
        device: &Any<'_>,
        host: Option<&Any<'_>>,
        store: Option<&Any<'_>>,
        exist_options: Option<Py<PyAny>>,
        rank_part: Coordinates,
        gather: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        // The arrays are released by its thread, which must know when the interpreter ends.
        runtime::runtime()?;
        let config = settings::config(&shape, settings)?;
        let no_memory = || invalid(py, format!("cannot allocate {} host pages", config.host_pages));
        let host = match host {
            Some(host) => lent(host, config.host_pages, page_bytes)?,
            None => Pages::allocate(config.host_pages, page_bytes).ok_or_else(no_memory)?,
        };
        let host = Arc::new(host);
        let model = device.cast::<KvLayers>().ok().map(|it| (it.get().stream, it.get().count));
        let device: Box<dyn Device> = if let Ok(layers) = device.cast::<KvLayers>() {
            Box::new(layers.get().device(py, &host)?)
        } else if device.hasattr("load")? && device.hasattr("save")? {
            Box::new(PythonDevice(device.clone().unbind()))
        } else {
            Box::new(HostDevice::new(Arc::new(lent(device, config.device_pages, page_bytes)?)))
        };
        let parts = Parts {
            host,
            device,
            store: store.map(|store| open_store(py, store, exist_options)).transpose()?,
            rank: convert::rank(rank_part),
            gather: gather.map(|gather| Box::new(PythonGather(gather)) as Box<dyn Gather>),
            threads: Threads::default(),
            compare_every: shape.compare_every,
        };
        let executor = Executor::start(config, parts).map_err(|error| invalid(py, error.to_string()))?;
        Ok(Self { executor: PerProcess::with(Mutex::new(Some(executor))), model })
    }

    /// Runs one step: applies inputs, starts operations, and returns the actions for the caller.
    fn step<'py>(&self, py: Python<'py>, inputs: Inputs) -> PyResult<Bound<'py, PyTuple>> {
        let inputs = inputs.parse(py)?;
        let step = self.with(py, |executor| executor.step(inputs))?;
        convert::plan(py, &step.map_err(|error| raise_step(py, &error))?)
    }

    /// Waits until a step has work, with the interpreter released.
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let until = Deadline::after(Duration::from_secs_f64(seconds.clamp(0.0, SECONDS_MAX)));
        loop {
            // Other threads may step meanwhile: this waits only for the list of ended operations.
            let waiter = self.with(py, |executor| executor.waiter())?;
            if py.detach(|| waiter.wait(until.remaining().min(SIGNALS_EVERY))) {
                return Ok(true);
            }
            if until.has_passed() {
                return Ok(false);
            }
            py.check_signals()?;
        }
    }

    /// Lets later work of a stream come after a layer of all loads in flight.
    fn wait_layer(&self, py: Python<'_>, layer: u32, stream: Option<&Any<'_>>, seconds: f64) -> PyResult<()> {
        let (of_model, layers) = self.model.ok_or_else(|| {
            let hint = "give arrays of a CUDA device";
            invalid(py, format!("the engine has no layers to wait for\n\nhint: {hint}"))
        })?;
        if layer >= layers {
            let what = format!("there is no layer {layer}: the engine has {layers}");
            return Err(invalid(py, format!("{what}\n\nhint: count from 0, in the order of the arrays")));
        }
        let stream = stream.map_or(Ok(of_model), cuda::stream)?;
        let until = Deadline::after(Duration::from_secs_f64(seconds.clamp(0.0, SECONDS_MAX)));
        let loads = self.with(py, |executor| executor.loads())?;
        loop {
            let at_most = until.remaining().min(SIGNALS_EVERY);
            match py.detach(|| loads.order(layer, stream, at_most)) {
                Ok(true) => return Ok(()),
                Ok(false) if until.has_passed() => {
                    let what = format!("queueing the loads of layer {layer}");
                    return Err(errors::raise(py, &Error::Timeout { what }));
                }
                Ok(false) => py.check_signals()?,
                Err(fault) => return Err(errors::raise(py, &Error::Device { what: fault.to_string() })),
            }
        }
    }

    /// The length of a cached prefix in pages: on the device, plus the host, plus fetches in progress.
    #[pyo3(name = "match")]
    fn match_prefix(
        &self,
        py: Python<'_>,
        space: u32,
        tokens: &[u8],
        media: Mediums,
    ) -> PyResult<(u32, u32, u32)> {
        let prompt = Prompt::Tokens { tokens: convert::tokens(tokens), media: convert::media(media) };
        let found = self.with(py, |executor| executor.engine().match_prefix(SpaceId(space), &prompt))?;
        Ok((found.device, found.host, found.coming))
    }

    /// The device pages of a request that is computed.
    fn block_table<'py>(&self, py: Python<'py>, request: u64) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let table = self.with(py, |executor| executor.engine().block_table(ReqId(request)))?;
        Ok(table.map(|pages| convert::page_ids(py, &pages)))
    }

    /// The state of a request, as text.
    fn state(&self, py: Python<'_>, request: u64) -> PyResult<Option<String>> {
        let state = self.with(py, |executor| executor.engine().state(ReqId(request)))?;
        Ok(state.map(|state| format!("{state:?}").to_lowercase()))
    }

    /// Counters, by name.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (stats, moved, pages, open, requests) = self.with(py, |executor| {
            let engine = executor.engine();
            let pages = Tier::BOTH.map(|tier| engine.pages(tier));
            (engine.stats(), executor.moved(), pages, executor.open_ops(), engine.request_count())
        })?;
        let all = PyDict::new(py);
        stats.each(|name, count| all.set_item(name, count))?;
        for (tier, counts) in ["device", "host"].into_iter().zip(pages) {
            let PageCounts { free, staged, indexed, private, quarantined } = counts;
            let words = ["free", "staged", "indexed", "private", "quarantined"];
            let by_use = words.into_iter().zip([free, staged, indexed, private, quarantined]);
            all.set_item(format!("{tier}_pages"), by_use.into_py_dict(py)?)?;
        }
        let (asked, done) = (PyDict::new(py), PyDict::new(py));
        for (kind, (of_asked, of_done)) in
            OpKind::ALL.into_iter().zip(moved.asked.into_iter().zip(moved.done))
        {
            asked.set_item(kind_word(kind), of_asked)?;
            done.set_item(kind_word(kind), of_done)?;
        }
        all.set_item("pages_asked", asked)?;
        all.set_item("pages_done", done)?;
        let counts = [("faults", moved.faults), ("stopped", moved.stopped), ("conflicts", moved.conflicts)];
        for (name, count) in counts.into_iter().chain([("panics", moved.panics)]) {
            all.set_item(name, count)?;
        }
        all.set_item("last_fault", moved.last_fault)?;
        all.set_item("operations", open)?;
        all.set_item("requests_here", requests)?;
        Ok(all)
    }

    /// A digest of the state. Engines with equal digests make equal decisions.
    fn digest(&self, py: Python<'_>) -> PyResult<u128> {
        self.with(py, |executor| executor.engine().digest())
    }

    /// Checks the invariants, and returns the first violation.
    fn check(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let checked = self.with(py, |executor| executor.engine().check())?;
        Ok(checked.err().map(|violation| violation.to_string()))
    }

    /// Closes the engine: waits for backups, and stops other operations. Returns whether all have ended.
    fn close(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let at_most = Duration::from_secs_f64(seconds.clamp(0.0, SECONDS_MAX));
        let Some(executor) = self.executor.here() else { return Ok(true) };
        Ok(py.detach(|| match lock(executor).take() {
            Some(mut executor) => executor.close(at_most),
            None => true,
        }))
    }
}

impl KvEngine {
    /// Calls the executor with the interpreter released.
    fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut Executor) -> T + Send) -> PyResult<T> {
        let forked = || closed(py, "the engine belongs to another process\n\nhint: make one in each process");
        let executor = self.executor.here().ok_or_else(forked)?;
        let done = py.detach(|| lock(executor).as_mut().map(work));
        done.ok_or_else(|| closed(py, "the engine is closed"))
    }
}

fn lock(executor: &Mutex<Option<Executor>>) -> MutexGuard<'_, Option<Executor>> {
    executor.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a store of ours, or wraps an object with Mooncake's batched calls.
fn open_store(
    py: Python<'_>,
    store: &Any<'_>,
    exist_options: Option<Py<PyAny>>,
) -> PyResult<Box<dyn tiffin_kv_exec::PageStore>> {
    let Ok(ours) = store.cast::<Store>() else {
        return Ok(Box::new(PythonStore { store: store.clone().unbind(), exist_options }));
    };
    let caller = &ours.get().caller;
    let deadline = Deadline::after(caller.time);
    let connected = block_on(py, async || caller.handle.client(deadline).await)?;
    let client = connected.map_err(|error| crate::errors::raise(py, &error))?;
    Ok(Box::new(ClusterStore::new(client, runtime::runtime()?.handle().clone())))
}

fn lent(array: &Any<'_>, count: u32, page_bytes: usize) -> PyResult<Pages> {
    let memory = Memory::to_write(array)?.on_host(array)?;
    let pages = memory::pages(memory, count).filter(|pages| pages.page_bytes() == page_bytes);
    pages.ok_or_else(|| {
        let what = format!("the memory is not {count} pages of {page_bytes} bytes");
        invalid(array.py(), format!("{what}\n\nhint: give an array with one row for each page"))
    })
}

fn raise_step(py: Python<'_>, error: &StepError) -> PyErr {
    invalid(py, error.to_string())
}
