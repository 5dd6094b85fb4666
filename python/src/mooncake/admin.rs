//! Calls of `MooncakeDistributedStore` that change the placement of objects and memory: copies, tasks,
//! segments.

use std::path::Path;
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tiffin_client::{Client, Deadline, DeleteOptions, Error, Why};
use tiffin_server::Address;

use super::arguments::{Items, KeyArg, Number, Text, texts};
use super::class::MooncakeDistributedStore;
use super::codes;
use super::config::{PutForm, ReplicateConfig};
use super::enums::{TaskStatus, TaskType};
use super::log::tell;
use super::segments::{self, Unmounted};
use super::store::first;
use super::tasks::{self, Change, Task};
use crate::runtime::block_on;

/// The maximum grace period of an unmount.
const GRACE_MAX: Duration = Duration::from_secs(86_400);

/// The state of a copy or move task.
#[pyclass(module = "mooncake.store", frozen, get_all)]
#[derive(Clone, Debug)]
pub(crate) struct QueryTaskResponse {
    /// The id of the task.
    id: (u64, u64),
    /// Whether it copies or moves.
    #[pyo3(name = "type")]
    kind: TaskType,
    /// The state of the task.
    status: TaskStatus,
    /// When it was created, in milliseconds since 1970.
    created_at_ms_epoch: u64,
    /// When its state changed last, in milliseconds since 1970.
    last_updated_at_ms_epoch: u64,
    /// The client that runs it.
    assigned_client: (u64, u64),
    /// The result; empty before the end.
    message: String,
}

impl From<Task> for QueryTaskResponse {
    fn from(task: Task) -> Self {
        Self {
            id: task.id,
            kind: task.kind,
            status: task.status,
            created_at_ms_epoch: task.created_ms,
            last_updated_at_ms_epoch: task.updated_ms,
            assigned_client: task.client,
            message: task.message,
        }
    }
}

#[pymethods]
impl QueryTaskResponse {
    #[new]
    fn new() -> Self {
        Self {
            id: (0, 0),
            kind: TaskType::ReplicaCopy,
            status: TaskStatus::Pending,
            created_at_ms_epoch: 0,
            last_updated_at_ms_epoch: 0,
            assigned_client: (0, 0),
            message: String::new(),
        }
    }

    fn __repr__(&self) -> String {
        format!(
            "QueryTaskResponse(id={}-{}, type={}, status={}, created_at={}, last_updated_at={}, \
             assigned_client={}-{}, message=\"{}\")",
            self.id.0,
            self.id.1,
            self.kind as i64,
            self.status as i64,
            self.created_at_ms_epoch,
            self.last_updated_at_ms_epoch,
            self.assigned_client.0,
            self.assigned_client.1,
            self.message,
        )
    }
}

/// The id of a task: a tuple or list of two numbers.
struct TaskArg((u64, u64));

impl<'a, 'py> FromPyObject<'a, 'py> for TaskArg {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let numbers: Items<Number> = object.extract()?;
        match numbers.0.as_slice() {
            [first, second] => Ok(Self((first.0, second.0))),
            _ => Err(PyTypeError::new_err("a task id is two numbers")),
        }
    }
}

#[pymethods]
impl MooncakeDistributedStore {
    /// Store metadata and data, concatenated, as one object. Returns 0; also if the key exists (its value
    /// stays), and if `size` is 0, which stores nothing.
    #[pyo3(signature = (key, buffer_ptr, metadata_buffer_ptr, size, metadata_size,
                        config=ReplicateConfig::default()))]
    #[expect(clippy::too_many_arguments, reason = "Mooncake's signature")]
    fn put_from_with_metadata(
        &self,
        py: Python<'_>,
        key: KeyArg,
        buffer_ptr: Number,
        metadata_buffer_ptr: Number,
        size: Number,
        metadata_size: Number,
        config: ReplicateConfig,
    ) -> PyResult<i64> {
        if self.open().is_some() && size.0 == 0 {
            return Ok(codes::OK);
        }
        let metadata = Some((metadata_buffer_ptr.0, metadata_size.0)).filter(|it| it.1 > 0);
        let ranges = [metadata.into_iter().chain([(buffer_ptr.0, size.0)]).collect()];
        let form = (PutForm::Plain, "put_from_with_metadata");
        first(self.put_ranges(py, &[key], &ranges, &config, form)?)
    }

    /// Remove objects that this client wrote, or only their copies on one segment. Returns the keys of
    /// removed objects or copies, each once. Keys that are missing, leased, or written by another client
    /// are skipped.
    #[pyo3(signature = (keys, segment_name=Text(String::new())))]
    fn batch_replica_clear<'py>(
        &self,
        py: Python<'py>,
        keys: Items<Bound<'py, PyAny>>,
        segment_name: Text,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let names = keys.0.iter().map(|key| key.extract()).collect::<PyResult<Vec<KeyArg>>>()?;
        let Some(open) = self.open() else { return Ok(Vec::new()) };
        let deadline = Deadline::after(open.call_time);
        let clear = async |client: &Client| {
            let mut cleared = Vec::with_capacity(names.len());
            for name in &names {
                let is_cleared = match name.key() {
                    Some(key) => clear_one(client, &key, &segment_name.0, deadline).await,
                    None => Ok(false),
                };
                cleared.push(is_cleared.unwrap_or(false));
            }
            Ok(cleared)
        };
        let cleared = open.handle.call(py, deadline, clear)?.unwrap_or_default();
        Ok(keys
            .0
            .into_iter()
            .zip(cleared)
            .filter_map(|(key, is_cleared)| is_cleared.then_some(key))
            .collect())
    }

    /// Start a task that copies an object to further segments. Returns its id, and 0 or a negative code.
    fn create_copy_task(
        &self,
        py: Python<'_>,
        key: KeyArg,
        targets: Items<Text>,
    ) -> PyResult<((u64, u64), i64)> {
        if targets.0.is_empty() {
            return Ok(((0, 0), codes::INVALID_PARAMS));
        }
        self.create_task(py, &key, Change::Copy(texts(targets)))
    }

    /// Start a task that moves the copy of an object from one segment to another. Returns its id, and 0 or
    /// a negative code.
    fn create_move_task(
        &self,
        py: Python<'_>,
        key: KeyArg,
        source: Text,
        target: Text,
    ) -> PyResult<((u64, u64), i64)> {
        self.create_task(py, &key, Change::Move(source.0, target.0))
    }

    /// Returns the state of a task that this store has created, and 0; or `None` and -1400.
    fn query_task(&self, task_id: TaskArg) -> (Option<QueryTaskResponse>, i64) {
        let Some(open) = self.open() else { return (None, codes::INVALID_PARAMS) };
        match open.tasks.find(task_id.0) {
            Some(task) => (Some(task.into()), codes::OK),
            None => (None, codes::TASK_NOT_FOUND),
        }
    }

    /// Provide more memory of this process to the cluster. Returns a dict with `ret`, `segment_ids` and
    /// `allocated_size`, which is a multiple of 16 MiB.
    #[pyo3(signature = (size, protocol=Text("tcp".to_owned()), location=Text(String::new())))]
    fn allocate_and_mount_segment<'py>(
        &self,
        py: Python<'py>,
        size: Number,
        protocol: Text,
        location: Text,
    ) -> PyResult<Bound<'py, PyDict>> {
        let _without_effect = (protocol, location);
        let made = match self.open() {
            Some(open) => {
                let (segments, again) = (&open.segments, open.handle.again());
                block_on(py, async || segments.allocate(size.0, again, open.call_time).await)?
            }
            None => Err("the store is not set up".to_owned()),
        };
        if let Err(why) = &made {
            segments::tell_failed("allocate_and_mount_segment", why);
        }
        let answer = segment_answer(py, made.is_err(), made.as_ref().ok().map(|made| made.0))?;
        answer.set_item("allocated_size", made.map_or(0, |made| made.1))?;
        Ok(answer)
    }

    /// Unmount a segment that `allocate_and_mount_segment` made, and free its memory: at once, or after a
    /// grace period in seconds. Its objects are then lost. Returns 0 or a negative code.
    #[pyo3(signature = (segment_ids, grace_period_seconds=Number(0)))]
    fn unmount_and_free_segment(
        &self,
        py: Python<'_>,
        segment_ids: Items<Text>,
        grace_period_seconds: Number,
    ) -> PyResult<i64> {
        let Some(open) = self.open() else { return Ok(codes::INTERNAL_ERROR) };
        let grace = Duration::from_secs(grace_period_seconds.0).min(GRACE_MAX);
        let mut code = codes::OK;
        for text in &texts(segment_ids) {
            let outcome = match segments::id_of(text) {
                Some(id) => block_on(py, async || open.segments.unmount(id, grace).await)?,
                None => Unmounted::Unknown,
            };
            let next = match outcome {
                Unmounted::Done => codes::OK,
                Unmounted::Unknown => codes::INTERNAL_ERROR,
                Unmounted::Leaving => codes::INVALID_PARAMS,
            };
            code = if code == codes::OK { next } else { code };
        }
        Ok(code)
    }

    /// Not supported: a file as memory of the cluster. Returns a dict with `ret` -1012 and no `segment_ids`;
    /// `ret` is -1 if the file does not have those bytes.
    #[pyo3(
        signature = (
            path, size, offset=Number(0), protocol=Text("tcp".to_owned()), location=Text(String::new())
        )
    )]
    fn mount_segment<'py>(
        &self,
        py: Python<'py>,
        path: Text,
        size: Number,
        offset: Number,
        protocol: Text,
        location: Text,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (path, _without_effect) = (path.0, (protocol, location));
        let answer = segment_answer(py, false, None)?;
        let code = match self.open() {
            None => codes::INTERNAL_ERROR,
            Some(_) if size.0 == 0 => codes::OK,
            Some(_) if !has_bytes(&path, offset.0, size.0) => {
                let what = format!("`{path}` is not a file with {} bytes from {} on", size.0, offset.0);
                segments::tell_failed("mount_segment", &what);
                codes::INTERNAL_ERROR
            }
            Some(_) => not_supported(
                "mount_segment",
                "a file as a segment: truncating the file would crash every process that reads it; use \
                 `allocate_and_mount_segment`",
            ),
        };
        answer.set_item("ret", code)?;
        Ok(answer)
    }

    /// Unmount segments that `mount_segment` made, of which there are none. Returns 0 for an empty list,
    /// else -1.
    #[pyo3(signature = (segment_ids, grace_period_seconds=Number(0)))]
    fn unmount_segment(&self, segment_ids: Items<Text>, grace_period_seconds: Number) -> i64 {
        let _without_effect = grace_period_seconds;
        let is_done = self.open().is_some() && segment_ids.0.is_empty();
        if is_done { codes::OK } else { codes::INTERNAL_ERROR }
    }

    /// Unmount the disk of this store's segment. Returns 0 if it has none; -1012 if it has one, which only
    /// `close` ends.
    #[pyo3(signature = (grace_period_seconds=Number(0)))]
    fn unmount_local_disk_segment(&self, grace_period_seconds: Number) -> i64 {
        let _without_effect = grace_period_seconds;
        match self.open() {
            None => codes::INTERNAL_ERROR,
            Some(open) if open.has_disk() => not_supported(
                "unmount_local_disk_segment",
                "a disk cannot be unmounted without its segment's memory; use `close`",
            ),
            Some(_) => codes::OK,
        }
    }

    /// Memory that a daemon of this host can map, for a store that `setup_dummy` has set up. Returns its
    /// address; 0 if there is no memory, and in every other store. `MooncakeHostMemAllocator.free` frees it.
    #[pyo3(signature = (size, /))]
    fn alloc_from_mem_pool(&self, py: Python<'_>, size: Number) -> PyResult<u64> {
        if self.open().is_none_or(|open| open.daemon.is_none()) || size.0 == 0 {
            return Ok(0);
        }
        let allocator = py.import("mooncake.store")?.getattr("MooncakeHostMemAllocator")?.call0()?;
        match allocator.call_method1("alloc", (size.0,)) {
            Ok(address) => address.extract(),
            Err(error) if error.is_instance_of::<PyRuntimeError>(py) => {
                tell(&format!("alloc_from_mem_pool failed: {}", error.value(py)));
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }

    /// Not Mooncake's: the port of this client's pages, or `None`.
    fn _pages_port(&self) -> Option<u16> {
        match self.open()?.pages_address()? {
            Address::Tcp { port, .. } => Some(port),
            _ => None,
        }
    }

    /// Not Mooncake's: the address of the master, complete with the name of the cluster in etcd, or `None`.
    fn _master_address(&self) -> Option<String> {
        Some(self.open()?.segments.site().config.master.to_string())
    }

    /// For other modules of this package: the store itself if it is set up, else `None`.
    fn _get_pyclient_capsule(slf: Bound<'_, Self>) -> Option<Bound<'_, Self>> {
        let is_open = slf.get().open().is_some();
        is_open.then_some(slf)
    }

    /// The oldest form of `setup`: a protocol, a device and the bytes of the segment, with a master on this
    /// host at port 50051 and a local buffer of 1 GiB.
    #[pyo3(signature = (protocol, device, size, /))]
    fn init_all(slf: &Bound<'_, Self>, protocol: Text, device: Text, size: Number) -> PyResult<i64> {
        let (host, metadata, master) = ("localhost:12345", "P2PHANDSHAKE", "127.0.0.1:50051");
        let arguments = (host, metadata, size, Number(1 << 30), protocol.0, device.0, master);
        slf.call_method1("setup", arguments)?.extract()
    }
}

impl MooncakeDistributedStore {
    fn create_task(&self, py: Python<'_>, key: &KeyArg, change: Change) -> PyResult<((u64, u64), i64)> {
        let Some(open) = self.open() else { return Ok(((0, 0), codes::INVALID_PARAMS)) };
        let Some(key) = key.key() else { return Ok(((0, 0), codes::OBJECT_NOT_FOUND)) };
        let deadline = Deadline::after(open.call_time);
        let start =
            async |client: &Client| Ok(open.tasks.start(&open.handle, client, key, change, deadline).await);
        let started = open.handle.call(py, deadline, start)?;
        Ok(match started {
            Ok(Ok(id)) => (id, codes::OK),
            Ok(Err(code)) => ((0, 0), code),
            Err(error) => ((0, 0), codes::of(&error)),
        })
    }
}

/// Removes an object, or its copy on a segment. Returns whether something was removed.
async fn clear_one(
    client: &Client,
    key: &tiffin_types::Key,
    segment: &str,
    deadline: Deadline,
) -> Result<bool, Error> {
    let why = client.why(std::slice::from_ref(key), deadline).await.pop();
    let Some(Ok(Why::Here(here))) = why else { return Ok(false) };
    // A restarted master does not know which client wrote older objects.
    let is_ours = here.writer.is_empty() || here.writer == client.options().label;
    if !is_ours || here.sample.is_some() {
        return Ok(false);
    }
    if !segment.is_empty() {
        let info = tasks::find(client, key, deadline).await?;
        let held = tasks::segments_of(&info);
        if !held.contains(segment) {
            return Ok(false);
        }
        if held.len() > 1 {
            let change = Change::Clear(segment.to_owned());
            return Ok(tasks::relocate(client, key, &change, deadline).await?.is_some());
        }
    }
    let removed = client.delete(std::slice::from_ref(key), DeleteOptions { force: false }, deadline).await;
    Ok(matches!(removed.first(), Some(Ok(true))))
}

fn segment_answer(py: Python<'_>, failed: bool, id: Option<segments::Id>) -> PyResult<Bound<'_, PyDict>> {
    let answer = PyDict::new(py);
    answer.set_item("ret", if failed { codes::INTERNAL_ERROR } else { codes::OK })?;
    answer.set_item("segment_ids", id.map(segments::text_of).into_iter().collect::<Vec<_>>())?;
    Ok(answer)
}

/// Whether a file is writable and has these bytes, starting at a page boundary.
fn has_bytes(path: &str, offset: u64, size: u64) -> bool {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(Path::new(path));
    let len = file.and_then(|file| file.metadata()).map(|it| it.len());
    let page = rustix::param::page_size() as u64;
    let end = offset.checked_add(size);
    offset.is_multiple_of(page) && end.is_some_and(|end| len.is_ok_and(|len| end <= len))
}

/// Reports in one line which feature is missing, and returns the code for that.
pub(super) fn not_supported(call: &str, feature: &str) -> i64 {
    let code = codes::NOT_SUPPORTED;
    tell(&format!("{call} failed ({code}): not supported: {feature}"));
    code
}
