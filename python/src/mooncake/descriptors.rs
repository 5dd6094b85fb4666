//! The results of `get_replica_desc`: the copies of an object.
//!
//! Each of Mooncake's copies has one kind, and a getter of another kind raises `RuntimeError`. Ours are in
//! memory or on the disk of a node, which Mooncake calls a local disk.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tiffin_client::{Info, Replica};

use super::enums::ReplicaStatus;

/// The location of a copy in memory. Changing it has no other effect.
#[pyclass(module = "mooncake.store")]
#[derive(Clone, Debug, Default)]
pub(crate) struct Descriptor {
    /// The size of the object in bytes.
    #[pyo3(get, set)]
    size: u64,
    /// Always 0: an address in a node's memory is meaningless elsewhere.
    #[pyo3(get, set)]
    buffer_address: u64,
    /// The name of the segment, as `get_hostname()` returns it on its node.
    #[pyo3(get, set)]
    transport_endpoint: String,
}

#[pymethods]
impl Descriptor {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn __repr__(&self) -> String {
        format!(
            "<Descriptor size={} buffer_address={} transport_endpoint={}>",
            self.size, self.buffer_address, self.transport_endpoint
        )
    }
}

/// A copy in memory.
#[pyclass(module = "mooncake.store", frozen)]
#[derive(Clone, Debug)]
pub(crate) struct MemoryDescriptor {
    /// The location of its bytes.
    #[pyo3(get)]
    buffer_descriptor: Descriptor,
}

/// A copy in a file that every client can read. There are none.
#[pyclass(module = "mooncake.store", frozen)]
#[derive(Clone, Debug)]
pub(crate) struct DiskDescriptor {
    /// The file.
    #[pyo3(get)]
    file_path: String,
    /// The size of the object in bytes.
    #[pyo3(get)]
    object_size: u64,
}

/// One copy of an object.
#[pyclass(module = "mooncake.store", frozen)]
#[derive(Clone, Debug)]
pub(crate) struct ReplicaDescriptor {
    buffer: Descriptor,
    is_on_disk: bool,
}

impl ReplicaDescriptor {
    /// All copies of an object.
    pub(crate) fn of(info: &Info) -> Vec<Self> {
        let describe = |replica: &Replica| Self {
            buffer: Descriptor {
                size: info.len,
                buffer_address: 0,
                transport_endpoint: replica.node.name.clone(),
            },
            is_on_disk: replica.node.beside.is_some(),
        };
        info.replicas.iter().map(describe).collect()
    }
}

#[pymethods]
impl ReplicaDescriptor {
    /// The state of the copy: always `COMPLETE`, because others are not listed.
    #[getter]
    fn status(&self) -> ReplicaStatus {
        ReplicaStatus::Complete
    }

    /// Whether it is in memory.
    fn is_memory_replica(&self) -> bool {
        !self.is_on_disk
    }

    /// Whether it is in a file that every client can read: never.
    fn is_disk_replica(&self) -> bool {
        false
    }

    /// Whether it is on the disk of a node, which reads it for all clients.
    fn is_local_disk_replica(&self) -> bool {
        self.is_on_disk
    }

    /// Returns its location in memory; raises `RuntimeError` if it is not in memory.
    fn get_memory_descriptor(&self) -> PyResult<MemoryDescriptor> {
        if self.is_on_disk {
            return Err(PyRuntimeError::new_err("Expected MemoryDescriptor"));
        }
        Ok(MemoryDescriptor { buffer_descriptor: self.buffer.clone() })
    }

    /// Raises `RuntimeError`: no copy is in a file that every client can read.
    fn get_disk_descriptor(&self) -> PyResult<DiskDescriptor> {
        Err(PyRuntimeError::new_err("Expected DiskDescriptor"))
    }

    fn __repr__(&self) -> String {
        let kind = if self.is_on_disk { "local disk" } else { "memory" };
        format!(
            "<ReplicaDescriptor: {kind} of {}, {} bytes>",
            self.buffer.transport_endpoint, self.buffer.size
        )
    }
}
