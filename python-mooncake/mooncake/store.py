"""Mooncake's store, served by Tiffin. The classes are defined in Rust, and exported here under Mooncake's
names."""

from tiffin._native import mooncake as _native

from mooncake import _forms, _tensors
from mooncake._engram import EngramStore, EngramStoreConfig
from mooncake._host_memory import (
    MooncakeHostMemAllocator,
    bind_to_numa_node,
    get_alloc_func_addr,
    get_free_func_addr,
)
from mooncake._parallelism import ParallelAxis, ReadTarget, TensorParallelism
from mooncake._tensor_format import HEADER_BYTES as _HEADER_BYTES
from mooncake._unsupported import MooncakeDistributedNoFRegister

BufferHandle = _native.BufferHandle
BufferLease = _native.BufferLease
BufferLeaseView = _native.BufferLeaseView
BufferPool = _native.BufferPool
Descriptor = _native.Descriptor
DiskDescriptor = _native.DiskDescriptor
ExistOptions = _native.ExistOptions
MemoryDescriptor = _native.MemoryDescriptor
ObjectDataType = _native.ObjectDataType
QueryTaskResponse = _native.QueryTaskResponse
ReplicaDescriptor = _native.ReplicaDescriptor
ReplicaStatus = _native.ReplicaStatus
ReplicateConfig = _native.ReplicateConfig
SoftPinAction = _native.SoftPinAction
TaskStatus = _native.TaskStatus
TaskType = _native.TaskType


class MooncakeDistributedStore(_native.MooncakeDistributedStore):
    __doc__ = _native.MooncakeDistributedStore.__doc__
    __slots__ = ()


for _name, _method in _forms.methods():
    setattr(MooncakeDistributedStore, _name, _method)
del _name, _method

# Mooncake's module also has the members of these. If two share a name, the later one has it.
for _enum in (ObjectDataType, ReplicaStatus, TaskType, TaskStatus):
    globals().update(_enum.__members__)
del _enum

RegisteredBufferLease = BufferLease
RegisteredBufferLeaseView = BufferLeaseView
RegisteredBufferPool = BufferPool

_serialize_tensor = _tensors.serialize
_deserialize_tensor = _tensors.deserialize


def _tensor_metadata_size() -> int:
    """The length of a stored tensor's header, in bytes."""
    return _HEADER_BYTES


def _get_pyclient_from_wrapper(wrapper):
    """For other classes of this package: the store behind a wrapper, or `None`."""
    if not isinstance(wrapper, MooncakeDistributedStore):
        raise TypeError(f"_get_pyclient_from_wrapper(wrapper: MooncakeDistributedStore), not {wrapper!r}")
    return wrapper._get_pyclient_capsule()


__all__ = [
    "BufferHandle",
    "BufferLease",
    "BufferLeaseView",
    "BufferPool",
    "Descriptor",
    "DiskDescriptor",
    "EngramStore",
    "EngramStoreConfig",
    "ExistOptions",
    "MemoryDescriptor",
    "MooncakeDistributedNoFRegister",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "QueryTaskResponse",
    "RegisteredBufferLease",
    "RegisteredBufferLeaseView",
    "RegisteredBufferPool",
    "ParallelAxis",
    "ReadTarget",
    "ReplicaDescriptor",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "TaskStatus",
    "TaskType",
    "TensorParallelism",
    "bind_to_numa_node",
    "get_alloc_func_addr",
    "get_free_func_addr",
    *ObjectDataType.__members__,
    *ReplicaStatus.__members__,
    *TaskType.__members__,
    *TaskStatus.__members__,
]
