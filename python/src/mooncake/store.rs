//! `MooncakeDistributedStore`: Mooncake's calls and return values, one method each.
//!
//! Almost no call raises: failures are negative numbers, `None` or `b""`, and arguments of the wrong type
//! are a `TypeError`. Every method can be called at any time from any thread, also before `setup` and after
//! `close`.
//!
//! **Invariant:** the locks here are taken only while the interpreter is held, and never held across a
//! wait, so that a fork never finds one locked.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use tiffin_client::probe::Access;
use tiffin_client::{DeleteOptions, Error, GetInto, Pattern, Put, SourceBuf, TargetBuf};

use super::arguments::{Flag, Items, KeyArg, NameArgs, Number, Text};
use super::calls;
use super::checks::{self, Devices};
use super::class::MooncakeDistributedStore;
use super::codes;
use super::config::{ExistOptions, PutForm, ReplicateConfig};
use super::descriptors::ReplicaDescriptor;
use super::dummy;
use super::exit;
use super::log::tell;
use super::memory::{self, BufferHandle, Lent};
use super::open::Open;
use super::ranges;
use super::registry::NotRegistered;
use super::settings::{Problem, Settings};
use crate::read_buffers::copied;
use crate::runtime::block_on;

/// The start and length of each part of an object in the caller's memory.
type Ranges = Vec<(u64, u64)>;

impl MooncakeDistributedStore {
    /// Puts values that are Python objects. The first error of one of them is that of the call; an invalid
    /// value stores none.
    fn put_values(
        &self,
        py: Python<'_>,
        keys: &[KeyArg],
        values: &[Vec<Lent<'_>>],
        config: &ReplicateConfig,
    ) -> PyResult<i64> {
        let Some(open) = self.open() else { return Ok(codes::INVALID_PARAMS) };
        let options = match config.options(keys.len(), PutForm::Plain) {
            Ok(options) => options,
            Err(code) => return Ok(code),
        };
        let mut puts = Vec::with_capacity(keys.len());
        for (key, parts) in keys.iter().zip(values) {
            let len = parts.iter().map(Lent::len).fold(0, u64::saturating_add);
            if len == 0 || len > open.buffer_bytes {
                return Ok(codes::INVALID_PARAMS);
            }
            // An invalid key fails alone: Mooncake copies all values before it looks at the keys.
            let put = key.key().map(|key| {
                let parts = parts.iter().map(Lent::source).collect();
                Put { key, parts, options: options.clone() }
            });
            puts.push(put.ok_or(codes::INVALID_PARAMS));
        }
        let codes = calls::put(py, &open, puts)?;
        Ok(codes.into_iter().find(|code| *code != codes::OK).unwrap_or(codes::OK))
    }

    /// Puts from the caller's memory: each key from its own list of ranges.
    pub(super) fn put_ranges(
        &self,
        py: Python<'_>,
        keys: &[KeyArg],
        ranges: &[Vec<(u64, u64)>],
        config: &ReplicateConfig,
        (form, call): (PutForm, &str),
    ) -> PyResult<Vec<i64>> {
        let Some(open) = self.open() else { return Ok(vec![codes::INVALID_PARAMS; keys.len()]) };
        let options = match config.options(keys.len(), form) {
            Ok(options) => options,
            Err(code) => return Ok(vec![code; keys.len()]),
        };
        let checked = checks::usable(&open, call, ranges, Access::Read);
        let put = |((key, ranges), is_usable): ((&KeyArg, &Ranges), &bool)| {
            let parts = sources(&open, &checked.devices, ranges, *is_usable)?;
            let is_empty = parts.iter().all(|part| part.is_empty());
            match key.key() {
                Some(key) if !is_empty => Ok(Put { key, parts, options: options.clone() }),
                _ => Err(codes::INVALID_PARAMS),
            }
        };
        let puts = keys.iter().zip(ranges).zip(&checked.usable).map(put).collect();
        calls::put(py, &open, puts)
    }

    /// Gets into the caller's memory: each key into its own list of ranges.
    fn get_ranges(
        &self,
        py: Python<'_>,
        keys: &[KeyArg],
        ranges: &[Vec<(u64, u64)>],
        call: &str,
    ) -> PyResult<Vec<i64>> {
        let Some(open) = self.open() else { return Ok(vec![codes::INVALID_PARAMS; keys.len()]) };
        let checked = checks::usable(&open, call, ranges, Access::Write);
        let get = |((key, ranges), is_usable): ((&KeyArg, &Ranges), &bool)| {
            let targets = targets(&open, &checked.devices, ranges, *is_usable)?;
            let key = key.key().ok_or(codes::OBJECT_NOT_FOUND)?;
            Ok(GetInto::scattered(key, targets))
        };
        let gets = keys.iter().zip(ranges).zip(&checked.usable).map(get).collect();
        calls::get_into(py, &open, gets)
    }

    fn end(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.lock().take();
        match open {
            Some(open) => block_on(py, async move || open.close().await),
            None => Ok(()),
        }
    }
}

#[pymethods]
impl MooncakeDistributedStore {
    #[new]
    fn new() -> Self {
        Self { open: Mutex::new(None) }
    }

    /// Set the store up, with seven or more values or with one dict. Returns 0, or a negative code and
    /// prints one line with the reason on standard error. A second setup replaces the first.
    ///
    /// :param local_hostname: this client's host, or host:port; the name of its segment
    /// :param metadata_server: "P2PHANDSHAKE", or "http://host:port/metadata", which must answer
    /// :param global_segment_size: bytes of memory that this process provides to the cluster, or 0
    /// :param local_buffer_size: the largest value that put and get of bytes accept, and the memory that
    ///     `BufferHandle` objects share
    /// :param protocol: "tcp", or "rpc_only" for a client that moves no bytes
    /// :param rdma_devices: has no effect
    /// :param master_server_addr: host:port of the master, or "etcd://host:2379" to find it in etcd
    /// :param engine: has no effect
    /// :param enable_ssd_offload: whether the segment has a disk, for objects that do not fit its memory
    /// :param ssd_offload_path: a directory on that disk, which ranks may share; default:
    /// MOONCAKE_OFFLOAD_FILE_STORAGE_PATH, or "/data/file_storage"
    /// :param tenant_id: the namespace, on a master with tenants
    /// :param enable_client_http_server: whether this client serves `/health` and `/metrics`
    /// :param client_http_port: the port of these pages
    ///
    /// Keyword-only, beyond Mooncake's: `ssd_get_wait_ms` is how long a get waits for a promotion in flight
    /// (10). `ssd_prefetch_cooldown_sec` and `ssd_prefetch_dedup_ttl_sec` are settings of the master here,
    /// and have no effect.
    ///
    /// A dict has the same names as keys, and sizes may have suffixes, as in "4GB". `device_name` and
    /// `master_server_address` are also accepted, and unknown keys are ignored.
    #[pyo3(
        signature = (*args, **named),
        text_signature = "($self, local_hostname, metadata_server, global_segment_size, local_buffer_size, \
                          protocol, rdma_devices, master_server_addr, engine=None, enable_ssd_offload=False, \
                          ssd_offload_path='', tenant_id='default', enable_client_http_server=False, \
                          client_http_port=9300)"
    )]
    fn setup(
        &self,
        py: Python<'_>,
        args: &Bound<'_, PyTuple>,
        named: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<i64> {
        let settings = match Settings::parse(args, named) {
            Ok(settings) => settings,
            Err(Problem::Raise(error)) => return Err(error),
            Err(Problem::Refuse(what)) => {
                tell(&format!("setup failed ({}): {what}", codes::INVALID_PARAMS));
                return Ok(codes::INVALID_PARAMS);
            }
        };
        if !settings.ignored.is_empty() {
            tell(&format!("warning: setup ignores {}", settings.ignored.join(", ")));
        }
        for warning in &settings.warnings {
            tell(&format!("warning: {warning}"));
        }
        self.end(py)?;
        let (open, code) = match block_on(py, async || Open::new(&settings).await)? {
            Ok(open) => (Some(open), codes::OK),
            Err(failure) => {
                tell(&format!("setup failed ({}): {}", failure.code, failure.what));
                (failure.rest.map(|rest| *rest), failure.code)
            }
        };
        if let Some(open) = open.map(Arc::new) {
            exit::remember(&open);
            *self.lock() = Some(open);
        }
        Ok(code)
    }

    /// Set the store up as a client of the node daemon `mooncake_client` at `server_address`, which has the
    /// segment. Returns 0, or -1 if no daemon answers there. `local_buffer_size` is that of `setup`. Any
    /// memory of the process can be used, so that `mem_pool_size` has no effect.
    fn setup_dummy(
        &self,
        py: Python<'_>,
        mem_pool_size: Number,
        local_buffer_size: Number,
        server_address: Text,
    ) -> PyResult<i64> {
        let _no_limit = mem_pool_size;
        self.end(py)?;
        let Some(open) = dummy::set_up(py, local_buffer_size.0, &server_address.0)? else {
            return Ok(codes::INTERNAL_ERROR);
        };
        exit::remember(&open);
        *self.lock() = Some(open);
        Ok(codes::OK)
    }

    /// Close the store: its segment leaves the cluster, and the objects in it are lost. Returns 0, also if
    /// the store is not open.
    fn close(&self, py: Python<'_>) -> PyResult<i64> {
        self.end(py)?;
        Ok(codes::OK)
    }

    /// Returns 0 if the master answers, 1 if the store is not set up, and 2 if the master, or the node
    /// daemon of a store that `setup_dummy` has set up, does not answer.
    fn health_check(&self, py: Python<'_>) -> PyResult<i64> {
        match self.open() {
            None => Ok(codes::HEALTH_NOT_SET_UP),
            Some(open) if dummy::is_orphan(py, &open)? => Ok(codes::HEALTH_NO_MASTER),
            Some(open) if calls::master_answers(py, &open)? => Ok(codes::OK),
            Some(_) => Ok(codes::HEALTH_NO_MASTER),
        }
    }

    /// Returns this client's name, "host:port": that of its segment, for `preferred_segment`.
    fn get_hostname(&self) -> String {
        self.open().map_or_else(String::new, |open| open.hostname.clone())
    }

    /// Not Mooncake's: the bytes that this client has written and read so far, by transport. Zeros for
    /// "tcp" prove that no byte went through a socket.
    fn _traffic<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let traffic = PyDict::new(py);
        if let Some(open) = self.open() {
            for (way, bytes) in calls::traffic(py, &open)? {
                traffic.set_item(way, bytes)?;
            }
        }
        Ok(traffic)
    }

    /// Register memory of this process or of a CUDA device for the zero-copy calls. Returns 0; -600 if it
    /// overlaps a registered range, or cannot be accessed.
    fn register_buffer(&self, buffer_ptr: Number, size: Number) -> i64 {
        let Some(open) = self.open() else { return codes::INVALID_PARAMS };
        match open.registry.add(buffer_ptr.0, size.0) {
            Ok(()) => codes::OK,
            Err(NotRegistered::Invalid) => codes::INVALID_PARAMS,
            Err(NotRegistered::NotReadable(error)) => {
                let range = (buffer_ptr.0, size.0);
                checks::tell_refused("register_buffer refused", range, Access::Read, &error);
                codes::INVALID_PARAMS
            }
        }
    }

    /// Unregister memory. Returns 0; -600 if no registered range starts there.
    fn unregister_buffer(&self, buffer_ptr: Number) -> i64 {
        match self.open() {
            Some(open) if open.registry.remove(buffer_ptr.0) => codes::OK,
            _ => codes::INVALID_PARAMS,
        }
    }

    /// Store a value, any object with the buffer protocol. Returns 0; also if the key exists, whose value
    /// then stays.
    #[pyo3(signature = (key, value, config=ReplicateConfig::default()))]
    fn put(
        &self,
        py: Python<'_>,
        key: KeyArg,
        value: &Bound<'_, PyAny>,
        config: ReplicateConfig,
    ) -> PyResult<i64> {
        self.put_values(py, &[key], &[vec![Lent::new(value)?]], &config)
    }

    /// Store the concatenation of the parts. Returns 0, and stores nothing if all parts are empty.
    #[pyo3(signature = (key, *parts, config=ReplicateConfig::default()))]
    fn put_parts(
        &self,
        py: Python<'_>,
        key: KeyArg,
        parts: &Bound<'_, PyTuple>,
        config: ReplicateConfig,
    ) -> PyResult<i64> {
        let parts = parts.iter().map(|part| Lent::bytes_like(&part)).collect::<PyResult<Vec<_>>>()?;
        if self.open().is_some() && parts.iter().all(|part| part.len() == 0) {
            return Ok(codes::OK);
        }
        self.put_values(py, &[key], &[parts], &config)
    }

    /// Store many values. Returns 0, or the code of the first failure; the others may have been stored.
    #[pyo3(signature = (keys, values, config=ReplicateConfig::default()))]
    fn put_batch(
        &self,
        py: Python<'_>,
        keys: Items<KeyArg>,
        values: Items<Bound<'_, PyAny>>,
        config: ReplicateConfig,
    ) -> PyResult<i64> {
        let values =
            values.0.iter().map(|value| Ok(vec![Lent::new(value)?])).collect::<PyResult<Vec<_>>>()?;
        match (self.open(), keys.0.len() == values.len()) {
            (Some(_), true) if values.is_empty() => Ok(codes::OK),
            (Some(_), true) => self.put_values(py, &keys.0, &values, &config),
            _ => Ok(codes::INVALID_PARAMS),
        }
    }

    /// Store `size` bytes at an address, without an intermediate copy. Returns 0.
    #[pyo3(signature = (key, buffer_ptr, size, config=ReplicateConfig::default()))]
    fn put_from(
        &self,
        py: Python<'_>,
        key: KeyArg,
        buffer_ptr: Number,
        size: Number,
        config: ReplicateConfig,
    ) -> PyResult<i64> {
        if self.open().is_some() && size.0 == 0 {
            return Ok(codes::OK);
        }
        let ranges = [vec![(buffer_ptr.0, size.0)]];
        first(self.put_ranges(py, &[key], &ranges, &config, (PutForm::Plain, "put_from"))?)
    }

    /// Store many objects, each from an address. Returns 0 or a negative code for each.
    #[pyo3(signature = (keys, buffer_ptrs, sizes, config=ReplicateConfig::default()))]
    fn batch_put_from(
        &self,
        py: Python<'_>,
        keys: Items<KeyArg>,
        buffer_ptrs: Items<Number>,
        sizes: Items<Number>,
        config: ReplicateConfig,
    ) -> PyResult<Vec<i64>> {
        match one_each(keys.0.len(), &buffer_ptrs.0, &sizes.0) {
            Some(ranges) => {
                self.put_ranges(py, &keys.0, &ranges, &config, (PutForm::Plain, "batch_put_from"))
            }
            None => Ok(vec![codes::INVALID_PARAMS; keys.0.len()]),
        }
    }

    /// Store many objects, each from a list of addresses. Returns 0 or a negative code for each.
    #[pyo3(signature = (keys, all_buffer_ptrs, all_sizes, config=ReplicateConfig::default()))]
    fn batch_put_from_multi_buffers(
        &self,
        py: Python<'_>,
        keys: Items<KeyArg>,
        all_buffer_ptrs: Items<Items<Number>>,
        all_sizes: Items<Items<Number>>,
        config: ReplicateConfig,
    ) -> PyResult<Vec<i64>> {
        match many_each(keys.0.len(), &all_buffer_ptrs.0, &all_sizes.0) {
            _ if self.open().is_none() => Ok(Vec::new()),
            Some(ranges) => {
                let form = (PutForm::MultiBuffer, "batch_put_from_multi_buffers");
                self.put_ranges(py, &keys.0, &ranges, &config, form)
            }
            None => Ok(vec![codes::INVALID_PARAMS; keys.0.len()]),
        }
    }

    /// Returns the bytes of an object, or b"" if it cannot be read.
    fn get<'py>(&self, py: Python<'py>, key: KeyArg) -> PyResult<Bound<'py, PyBytes>> {
        let found = match self.open() {
            Some(open) => calls::get(py, &open, &[key])?.pop().flatten(),
            None => None,
        };
        copied(py, &found.unwrap_or_default())
    }

    /// Returns the bytes of many objects, with b"" for those that cannot be read.
    fn get_batch<'py>(&self, py: Python<'py>, keys: Items<KeyArg>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let found = match self.open() {
            Some(open) if !keys.0.is_empty() => calls::get(py, &open, &keys.0)?,
            _ => vec![None],
        };
        found.into_iter().map(|it| copied(py, &it.unwrap_or_default())).collect()
    }

    /// Read an object into `size` bytes at an address. Returns how many bytes it has, or a negative code.
    fn get_into(&self, py: Python<'_>, key: KeyArg, buffer_ptr: Number, size: Number) -> PyResult<i64> {
        first(self.get_ranges(py, &[key], &[vec![(buffer_ptr.0, size.0)]], "get_into")?)
    }

    /// Read many objects, each to an address. Returns the bytes of each, or a negative code.
    fn batch_get_into(
        &self,
        py: Python<'_>,
        keys: Items<KeyArg>,
        buffer_ptrs: Items<Number>,
        sizes: Items<Number>,
    ) -> PyResult<Vec<i64>> {
        match one_each(keys.0.len(), &buffer_ptrs.0, &sizes.0) {
            Some(ranges) => self.get_ranges(py, &keys.0, &ranges, "batch_get_into"),
            None => Ok(vec![codes::INVALID_PARAMS; keys.0.len()]),
        }
    }

    /// Read many objects, each to a list of addresses that has exactly its size. Returns the bytes of each,
    /// or a negative code: -600 if the memory is smaller than the object, -800 if it is larger.
    #[pyo3(
        signature = (keys, all_buffer_ptrs, all_sizes, prefer_alloc_in_same_node=Flag(false)),
        text_signature = "($self, keys, all_buffer_ptrs, all_sizes, prefer_alloc_in_same_node=False)"
    )]
    fn batch_get_into_multi_buffers(
        &self,
        py: Python<'_>,
        keys: Items<KeyArg>,
        all_buffer_ptrs: Items<Items<Number>>,
        all_sizes: Items<Items<Number>>,
        prefer_alloc_in_same_node: Flag,
    ) -> PyResult<Vec<i64>> {
        // In Mooncake it chooses between two read paths; there is one here.
        let _ = prefer_alloc_in_same_node;
        let Some(ranges) = many_each(keys.0.len(), &all_buffer_ptrs.0, &all_sizes.0) else {
            return Ok(vec![codes::INVALID_PARAMS; keys.0.len()]);
        };
        let read = self.get_ranges(py, &keys.0, &ranges, "batch_get_into_multi_buffers")?;
        // Sizes that are refused may have any sum.
        let total = |ranges: &Ranges| ranges.iter().fold(0, |sum: u64, (_, size)| sum.saturating_add(*size));
        let exact = |(read, sizes): (i64, u64)| match u64::try_from(read) {
            Ok(bytes) if bytes != sizes => codes::TRANSFER_FAIL,
            _ => read,
        };
        Ok(read.into_iter().zip(ranges.iter().map(total)).map(exact).collect())
    }

    /// Read ranges of objects: into each registered buffer, for each of its keys, some fragments, each from
    /// `src_offset` in the object to `dst_offset` in the buffer. Returns the bytes of each fragment, or a
    /// negative code: -600 if it is outside the object or the registered memory.
    fn get_into_ranges(
        &self,
        py: Python<'_>,
        buffer_ptrs: Items<Number>,
        all_keys: Items<Items<KeyArg>>,
        all_dst_offsets: Items<Items<Items<Number>>>,
        all_src_offsets: Items<Items<Items<Number>>>,
        all_sizes: Items<Items<Items<Number>>>,
    ) -> PyResult<Vec<Vec<Vec<i64>>>> {
        let Some(open) = self.open() else { return Ok(Vec::new()) };
        let ranges = ranges::Ranges {
            buffers: buffer_ptrs,
            keys: all_keys,
            targets: all_dst_offsets,
            sources: all_src_offsets,
            sizes: all_sizes,
        };
        let (gets, counts) = ranges.gets(&open);
        Ok(ranges::nest(calls::get_into(py, &open, gets)?, &counts))
    }

    /// Returns an object as a `BufferHandle` in the local buffer, or `None` if it cannot be read, or does not
    /// fit into the part of the local buffer that live handles leave.
    fn get_buffer(&self, py: Python<'_>, key: KeyArg) -> PyResult<Option<BufferHandle>> {
        let found = match self.open() {
            Some(open) => calls::get_blocks(py, &open, &[key])?.pop().flatten(),
            None => None,
        };
        Ok(found.map(BufferHandle::new))
    }

    /// Returns many objects as `BufferHandle`, with `None` for those that cannot be read.
    fn batch_get_buffer(&self, py: Python<'_>, keys: Items<KeyArg>) -> PyResult<Vec<Option<BufferHandle>>> {
        let found = match self.open() {
            Some(open) => calls::get_blocks(py, &open, &keys.0)?,
            None => keys.0.iter().map(|_| None).collect(),
        };
        Ok(found.into_iter().map(|it| it.map(BufferHandle::new)).collect())
    }

    /// Returns how many bytes an object has, or a negative code.
    fn get_size(&self, py: Python<'_>, key: KeyArg) -> PyResult<i64> {
        let Some(open) = self.open() else { return Ok(codes::INVALID_PARAMS) };
        let size = |info: Option<tiffin_client::Info>| {
            info.map_or(codes::OBJECT_NOT_FOUND, |it| i64::try_from(it.len).unwrap_or(i64::MAX))
        };
        first(calls::look(py, &open, &[key], codes::of, size)?)
    }

    /// Returns 1 if an object can be read, 0 if not, or a negative code. Takes a lease of the object.
    ///
    /// :param options: `ExistOptions(prefetch_to_memory=True)` promotes it to memory if only a disk has it.
    ///     The answer is the same; it takes no lease.
    #[pyo3(signature = (key, options=None), text_signature = "($self, key)")]
    fn is_exist(&self, py: Python<'_>, key: KeyArg, options: Option<ExistOptions>) -> PyResult<i64> {
        first(self.batch_is_exist(py, NameArgs::from(&key), options)?)
    }

    /// Returns for each key 1 if it can be read, 0 if not, or a negative code. Takes a lease of the objects
    /// that can be read.
    ///
    /// :param options: `ExistOptions(prefetch_to_memory=True)` promotes objects that are only on a disk, up
    /// to
    ///     the first key that does not exist, for prefix caches. The answer is the same; it takes no lease.
    #[pyo3(signature = (keys, options=None), text_signature = "($self, keys)")]
    fn batch_is_exist(
        &self,
        py: Python<'_>,
        keys: NameArgs,
        options: Option<ExistOptions>,
    ) -> PyResult<Vec<i64>> {
        let Some(open) = self.open() else { return Ok(vec![codes::INVALID_PARAMS; keys.len()]) };
        // An object whose nodes are all down is unreadable, which is a miss. After a restart of the master,
        // until all members have reported, it is unknown whether the object exists. That is a code, as in
        // other calls.
        let failed = |error: &Error| match error {
            Error::NodeDown { .. } => 0,
            error => codes::of(error),
        };
        calls::exist(py, &open, &keys, options.unwrap_or_default(), failed)
    }

    /// Returns the copies of an object, each as a `ReplicaDescriptor`; none if there is no such object. It
    /// has no side effects.
    fn get_replica_desc(&self, py: Python<'_>, key: KeyArg) -> PyResult<Vec<ReplicaDescriptor>> {
        match self.open() {
            Some(open) => Ok(calls::copies(py, &open, &[key])?.pop().unwrap_or_default()),
            None => Ok(Vec::new()),
        }
    }

    /// Returns the copies of many objects, by key. Keys that do not exist are left out.
    fn batch_get_replica_desc<'py>(
        &self,
        py: Python<'py>,
        keys: Items<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let found = PyDict::new(py);
        let Some(open) = self.open() else { return Ok(found) };
        let names = keys.0.iter().map(|key| key.extract()).collect::<PyResult<Vec<KeyArg>>>()?;
        for (key, copies) in keys.0.iter().zip(calls::copies(py, &open, &names)?) {
            if !copies.is_empty() {
                found.set_item(key, copies)?;
            }
        }
        Ok(found)
    }

    /// Returns how many objects this client has read from disks, its own and those of others.
    fn get_offload_rpc_read_count(&self, py: Python<'_>) -> PyResult<u64> {
        self.open().map_or(Ok(0), |open| calls::disk_reads(py, &open))
    }

    /// Remove an object. Returns 0, -704 if there is none, or -706 if a lease refuses; force=True overrides a
    /// lease.
    #[pyo3(signature = (key, force=Flag(false)), text_signature = "($self, key, force=False)")]
    fn remove(&self, py: Python<'_>, key: KeyArg, force: Flag) -> PyResult<i64> {
        first(self.batch_remove(py, Items(vec![key]), force)?)
    }

    /// Remove many objects. Returns for each 0, -704 if there is none, or -706 if a lease refuses; force=True
    /// overrides a lease.
    #[pyo3(signature = (keys, force=Flag(false)), text_signature = "($self, keys, force=False)")]
    fn batch_remove(&self, py: Python<'_>, keys: Items<KeyArg>, force: Flag) -> PyResult<Vec<i64>> {
        match self.open() {
            Some(open) => calls::remove(py, &open, &keys.0, DeleteOptions { force: force.0 }),
            None => Ok(vec![codes::INVALID_PARAMS; keys.0.len()]),
        }
    }

    /// Remove every object whose key the pattern matches anywhere. Returns how many, or a negative code;
    /// objects that a lease protects stay, unless force=True.
    #[pyo3(
        signature = (regex_pattern, force=Flag(false)),
        text_signature = "($self, regex_pattern, force=False)"
    )]
    fn remove_by_regex(&self, py: Python<'_>, regex_pattern: Text, force: Flag) -> PyResult<i64> {
        match self.open() {
            Some(open) => {
                let options = DeleteOptions { force: force.0 };
                calls::remove_matching(py, &open, Pattern::Regex(regex_pattern.0), options)
            }
            None => Ok(codes::INVALID_PARAMS),
        }
    }

    /// Remove every object. Returns how many, or a negative code; objects that a lease protects stay, unless
    /// force=True.
    #[pyo3(signature = (force=Flag(false)), text_signature = "($self, force=False)")]
    fn remove_all(&self, py: Python<'_>, force: Flag) -> PyResult<i64> {
        match self.open() {
            Some(open) => calls::remove_matching(py, &open, Pattern::All, DeleteOptions { force: force.0 }),
            None => Ok(codes::INVALID_PARAMS),
        }
    }
}

/// The only item of the answer for one key.
pub(super) fn first(codes: Vec<i64>) -> PyResult<i64> {
    Ok(codes.first().copied().unwrap_or(codes::INVALID_PARAMS))
}

/// One range for each key; `None` if the lists differ in length.
fn one_each(keys: usize, pointers: &[Number], sizes: &[Number]) -> Option<Vec<Vec<(u64, u64)>>> {
    let fits = pointers.len() == keys && sizes.len() == keys;
    let ranges = pointers.iter().zip(sizes).map(|(pointer, size)| vec![(pointer.0, size.0)]);
    fits.then(|| ranges.collect())
}

/// Many ranges for each key; `None` if the outer lists differ in length. If the inner lists of a key
/// differ, it gets an impossible range, so that only this key fails.
fn many_each(
    keys: usize,
    pointers: &[Items<Number>],
    sizes: &[Items<Number>],
) -> Option<Vec<Vec<(u64, u64)>>> {
    const NOWHERE: (u64, u64) = (0, 1);
    let ranges = pointers.iter().zip(sizes).map(|(pointers, sizes)| {
        if pointers.0.len() != sizes.0.len() {
            return vec![NOWHERE];
        }
        pointers.0.iter().zip(&sizes.0).map(|(pointer, size)| (pointer.0, size.0)).collect()
    });
    (pointers.len() == keys && sizes.len() == keys).then(|| ranges.collect())
}

fn sources(
    open: &Open,
    devices: &Devices,
    ranges: &[(u64, u64)],
    is_usable: bool,
) -> Result<Vec<SourceBuf<'static>>, i64> {
    let source = |&(start, len): &(u64, u64)| {
        allowed(open, start, len, memory::source(start, len, devices.place(start, len)))
    };
    if is_usable { ranges.iter().map(source).collect() } else { Err(codes::INVALID_PARAMS) }
}

fn targets(
    open: &Open,
    devices: &Devices,
    ranges: &[(u64, u64)],
    is_usable: bool,
) -> Result<Vec<TargetBuf<'static>>, i64> {
    let target = |&(start, len): &(u64, u64)| {
        allowed(open, start, len, memory::target(start, len, devices.place(start, len)))
    };
    if is_usable { ranges.iter().map(target).collect() } else { Err(codes::INVALID_PARAMS) }
}

/// A range without memory is an invalid argument. A range that is not registered is rejected, if that is
/// set.
pub(super) fn allowed<T>(open: &Open, start: u64, len: u64, range: Option<T>) -> Result<T, i64> {
    match range {
        None => Err(codes::INVALID_PARAMS),
        Some(_) if open.require_registered && !open.is_registered(start, len) => Err(codes::TRANSFER_FAIL),
        Some(range) => Ok(range),
    }
}
