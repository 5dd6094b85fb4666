//! `BufferPool`: leases of memory from the local buffer of a store, and of further memory when that is
//! full.
//!
//! A lease is memory that counts as registered, until it is released or its last reference is dropped. An
//! exported view keeps the memory, so that its reader never finds other bytes there.
//!
//! **Invariant:** the total size of a pool's leases never exceeds its capacity, and their number is at most
//! `max_regions`. As in the store, locks are taken only while the interpreter is held, and never held
//! across a wait.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyBufferError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use tiffin_client::arena::{Arena, Block};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::arguments::{Flag, Number};
use super::class::MooncakeDistributedStore;
use super::memory::BufferLeaseView;
use super::open::Open;
use crate::runtime::block_on;

/// The maximum wait for a lease, which is practically unlimited.
const WAIT_MAX: Duration = Duration::from_secs(86_400 * 365);
/// How often a waiting call checks whether its store was closed.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The state that the leases of a pool share.
pub(crate) struct Pool {
    open: Arc<Open>,
    capacity: u64,
    alignment: u64,
    leases_max: Option<u64>,
    state: Mutex<State>,
    released: Notify,
}

#[derive(Debug, Default)]
struct State {
    used: u64,
    leases: u64,
    is_closed: bool,
}

/// The memory of one lease. It returns to its pool when this is dropped.
pub(crate) struct Leased {
    block: Block,
    /// Its offset in the block.
    offset: usize,
    len: usize,
    /// The bytes that count against the capacity.
    counted: u64,
    is_overflow: bool,
    pool: Arc<Pool>,
}

/// A lease: its memory until it is released.
pub(crate) struct Lease {
    memory: Mutex<Option<Arc<Leased>>>,
    size: u64,
}

impl Leased {
    /// The first byte, and the number of bytes.
    pub(crate) fn range(&self) -> (NonNull<u8>, usize) {
        let start = self.block.start();
        (start.map_addr(|address| address.saturating_add(self.offset)), self.len)
    }

    fn address(&self) -> u64 {
        self.range().0.as_ptr().expose_provenance() as u64
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        if self.is_overflow {
            self.pool.open.registry.remove(self.address());
        }
        let mut state = self.pool.lock();
        state.used -= self.counted;
        state.leases -= 1;
        drop(state);
        self.pool.released.notify_waiters();
    }
}

impl Lease {
    /// The memory; `None` after the release.
    pub(crate) fn memory(&self) -> Option<Arc<Leased>> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Leased>>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a lease if there is space now.
    fn take(self: &Arc<Self>, size: u64) -> PyResult<Option<Lease>> {
        if self.lock().is_closed {
            return Err(failure("buffer pool is closed"));
        }
        if self.open.handle.is_closed() {
            return Err(failure(NOT_SET_UP));
        }
        let counted = size.max(1);
        if counted > self.capacity {
            return Err(failure("requested buffer size exceeds pool capacity"));
        }
        let mut state = self.lock();
        let is_full = counted > self.capacity - state.used;
        if is_full || self.leases_max.is_some_and(|most| state.leases >= most) {
            return Ok(None);
        }
        state.used += counted;
        state.leases += 1;
        drop(state);
        let Some(leased) = self.allocate(size, counted) else {
            let mut state = self.lock();
            state.used -= counted;
            state.leases -= 1;
            return Err(failure("overflow buffer allocation failed"));
        };
        if leased.is_overflow && self.open.registry.add(leased.address(), counted).is_err() {
            return Err(failure("overflow buffer registration failed"));
        }
        Ok(Some(Lease { memory: Mutex::new(Some(Arc::new(leased))), size }))
    }

    /// Memory of the local buffer, or new memory if that is full.
    fn allocate(self: &Arc<Self>, size: u64, counted: u64) -> Option<Leased> {
        let len = usize::try_from(size).ok()?;
        let leased = |block, offset, is_overflow| Leased {
            block,
            offset,
            len,
            counted,
            is_overflow,
            pool: Arc::clone(self),
        };
        if let Some(block) = self.open.arena().and_then(|arena| arena.allocate(counted)) {
            return Some(leased(block, 0, false));
        }
        let whole = counted.checked_add(self.alignment)?;
        let block = Arena::new(whole).ok()?.allocate(whole)?;
        let address = block.start().addr().get() as u64;
        let offset = address.next_multiple_of(self.alignment) - address;
        Some(leased(block, usize::try_from(offset).ok()?, true))
    }
}

fn failure(what: &'static str) -> PyErr {
    PyRuntimeError::new_err(what)
}

/// Leases of memory that counts as registered, from the local buffer of a store.
///
/// When the local buffer is full, leases get further memory, up to the capacity of the pool. The capacity
/// is `max_bytes`, but at least the size of the local buffer; for 0 it is twice that size.
/// `min_size_class`, `max_size_class`, `prewarm_size` and `prewarm_count` have no effect.
#[pyclass(module = "mooncake.store", frozen, weakref)]
pub(crate) struct BufferPool {
    pool: Arc<Pool>,
    blocks: bool,
    default_timeout: Option<f64>,
}

#[pymethods]
impl BufferPool {
    #[new]
    #[pyo3(
        signature = (store, max_bytes=Number(0), min_size_class=Number(65536), max_size_class=None,
                     alignment=Number(8 << 20), block_on_exhaustion=Flag(true), default_timeout=None,
                     max_regions=None, prewarm_size=None, prewarm_count=Number(0)),
        text_signature = "(store, max_bytes=0, min_size_class=65536, max_size_class=None, \
                          alignment=8388608, block_on_exhaustion=True, default_timeout=None, \
                          max_regions=None, prewarm_size=None, prewarm_count=0)"
    )]
    #[expect(clippy::too_many_arguments, reason = "Mooncake's signature")]
    fn new(
        store: &Bound<'_, PyAny>,
        max_bytes: Number,
        min_size_class: Number,
        max_size_class: Option<Number>,
        alignment: Number,
        block_on_exhaustion: Flag,
        default_timeout: Option<f64>,
        max_regions: Option<Number>,
        prewarm_size: Option<Number>,
        prewarm_count: Number,
    ) -> PyResult<Self> {
        let _without_effect = (max_size_class, prewarm_size, prewarm_count);
        let open = open_store(store)?;
        if open.buffer_bytes == 0 {
            return Err(failure("BufferPool requires a store configured with a local buffer"));
        }
        if min_size_class.0 == 0 || alignment.0 == 0 {
            return Err(failure("min_size_class and alignment must be positive"));
        }
        if !alignment.0.is_power_of_two() || alignment.0 < size_of::<usize>() as u64 {
            return Err(failure("alignment must be a power of two and at least sizeof(void*)"));
        }
        let capacity = match max_bytes.0 {
            0 => open.buffer_bytes.saturating_mul(2),
            bytes => bytes.max(open.buffer_bytes),
        };
        let pool = Pool {
            open,
            capacity,
            alignment: alignment.0,
            leases_max: max_regions.map(|it| it.0),
            state: Mutex::default(),
            released: Notify::new(),
        };
        Ok(Self { pool: Arc::new(pool), blocks: block_on_exhaustion.0, default_timeout })
    }

    /// Returns a lease of `size` bytes. Raises `RuntimeError` if there is no space: at once if `block` is
    /// false, after `timeout` seconds otherwise. Both default to the settings of the pool.
    #[pyo3(signature = (size, block=None, timeout=None))]
    fn acquire(
        &self,
        py: Python<'_>,
        size: Number,
        block: Option<Flag>,
        timeout: Option<f64>,
    ) -> PyResult<BufferLease> {
        let deadline = match timeout.or(self.default_timeout) {
            Some(seconds) if seconds >= 0.0 => {
                let wait = Duration::try_from_secs_f64(seconds).unwrap_or(WAIT_MAX).min(WAIT_MAX);
                Some(Instant::now() + wait)
            }
            Some(_) => return Err(failure("timeout must be non-negative")),
            None => None,
        };
        loop {
            let released = self.pool.released.notified();
            if let Some(lease) = self.pool.take(size.0)? {
                return Ok(BufferLease { lease: Arc::new(lease) });
            }
            if !block.map_or(self.blocks, |it| it.0) {
                return Err(failure("buffer pool is exhausted"));
            }
            let left = deadline.map_or(WAIT_MAX, |it| it.saturating_duration_since(Instant::now()));
            let wait = left.min(CHECK_INTERVAL);
            let in_time = block_on(py, async move || timeout_of(wait, released).await)?;
            if !in_time && wait == left {
                return Err(failure("timed out waiting for buffer"));
            }
        }
    }

    /// The same as `acquire`.
    #[pyo3(signature = (size, block=None, timeout=None))]
    fn buffer(
        &self,
        py: Python<'_>,
        size: Number,
        block: Option<Flag>,
        timeout: Option<f64>,
    ) -> PyResult<BufferLease> {
        self.acquire(py, size, block, timeout)
    }

    /// Has no effect: memory is allocated at its first use.
    fn prewarm(&self, size: Number, count: Number) {
        let _without_effect = (size, count);
    }

    /// Close the pool: later leases are refused. Raises `RuntimeError` while there are leases.
    fn close(&self) -> PyResult<()> {
        let mut state = self.pool.lock();
        if state.leases > 0 {
            return Err(failure("cannot close buffer pool with active leases"));
        }
        state.is_closed = true;
        drop(state);
        self.pool.released.notify_waiters();
        Ok(())
    }
}

/// Whether the event came before the timeout.
async fn timeout_of(left: Duration, released: impl Future<Output = ()>) -> bool {
    timeout(left, released).await.is_ok()
}

const NOT_SET_UP: &str = "MooncakeDistributedStore is not initialized";

/// The open store of a store or of a wrapper.
fn open_store(store: &Bound<'_, PyAny>) -> PyResult<Arc<Open>> {
    let unset = || failure(NOT_SET_UP);
    if store.is_none() {
        return Err(unset());
    }
    if let Ok(store) = store.cast::<MooncakeDistributedStore>() {
        return store.get().open().ok_or_else(unset);
    }
    let other = || {
        failure(
            "BufferPool store parameter must be a PyClient or store wrapper that implements \
             _get_pyclient_capsule()",
        )
    };
    let inner = store.call_method0("_get_pyclient_capsule").map_err(|_| other())?;
    if inner.is_none() {
        return Err(unset());
    }
    inner.cast::<MooncakeDistributedStore>().map_err(|_| other())?.get().open().ok_or_else(unset)
}

/// Memory of a `BufferPool`, until it is released or the last reference to it is dropped.
#[pyclass(module = "mooncake.store", frozen, weakref)]
pub(crate) struct BufferLease {
    lease: Arc<Lease>,
}

#[pymethods]
impl BufferLease {
    /// The address of the first byte.
    #[getter]
    fn ptr(&self) -> PyResult<u64> {
        let memory = self.lease.memory().ok_or_else(|| failure("buffer lease is closed"))?;
        Ok(memory.address())
    }

    /// The number of bytes, also after the release.
    #[getter]
    fn size(&self) -> u64 {
        self.lease.size
    }

    /// The bytes, writable: a new view each time.
    #[getter]
    fn buffer<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        view_of(py, &self.lease)
    }

    /// Return the memory to the pool. Raises `RuntimeError` while a view of it exists.
    fn release(&self) -> PyResult<()> {
        let mut memory = self.lease.lock();
        // Every exported view has its own reference.
        if memory.as_ref().is_some_and(|it| Arc::strong_count(it) > 1) {
            return Err(failure("cannot release buffer while exported views exist"));
        }
        let released = memory.take();
        drop(memory);
        drop(released);
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_failure))]
    fn __exit__(&self, _failure: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.release()
    }
}

/// A view of the bytes of a lease.
pub(crate) fn view_of<'py>(py: Python<'py>, lease: &Arc<Lease>) -> PyResult<Bound<'py, PyMemoryView>> {
    if lease.memory().is_none() {
        return Err(PyBufferError::new_err("Error getting buffer"));
    }
    let exporter = Bound::new(py, BufferLeaseView::new(Arc::clone(lease)))?;
    PyMemoryView::from(exporter.as_any())
}
