"""Mooncake's store, served by Tiffin. The classes are made in Rust; here they get the names users know."""

import ctypes as _ctypes
import os as _os

from tiffin._native import mooncake as _native

from mooncake import _forms, _tensors
from mooncake._parallelism import ParallelAxis, ReadTarget, TensorParallelism
from mooncake._tensor_format import HEADER_BYTES as _HEADER_BYTES

BufferHandle = _native.BufferHandle
Descriptor = _native.Descriptor
DiskDescriptor = _native.DiskDescriptor
ExistOptions = _native.ExistOptions
MemoryDescriptor = _native.MemoryDescriptor
ObjectDataType = _native.ObjectDataType
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

# Mooncake's module has the members of these too; where two share a name, the later one has it.
for _enum in (ObjectDataType, ReplicaStatus, TaskType, TaskStatus):
    globals().update(_enum.__members__)
del _enum


_serialize_tensor = _tensors.serialize
_deserialize_tensor = _tensors.deserialize


def _tensor_metadata_size() -> int:
    """How many bytes the header of a stored tensor has."""
    return _HEADER_BYTES


_PREFERRED = 1
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}


def bind_to_numa_node(node: int) -> None:
    """Run this thread on the processors of a NUMA node, and prefer its memory.

    >>> bind_to_numa_node(0)

    A machine without NUMA has node 0 only.
    """
    if node < 0:
        raise ValueError(f"{node} is not a NUMA node")
    folder = f"/sys/devices/system/node/node{node}"
    try:
        with open(f"{folder}/cpulist") as file:
            processors = _processors(file.read())
    except FileNotFoundError:
        if node == 0 and not _os.path.isdir("/sys/devices/system/node"):
            return
        raise ValueError(f"there is no NUMA node {node}") from None
    allowed = processors & _os.sched_getaffinity(0)
    if allowed:
        _os.sched_setaffinity(0, allowed)
    call = _SET_MEMPOLICY.get(_os.uname().machine)
    if call is not None:
        words = (_ctypes.c_ulong * (node // 64 + 1))()
        words[node // 64] = 1 << node % 64
        # The memory policy is a preference: a refusal of the kernel has no other effect.
        _ctypes.CDLL(None).syscall(call, _PREFERRED, words, _ctypes.c_ulong(len(words) * 64 + 1))


def _processors(text):
    """The processors in a list such as `0-3,8`."""
    numbers = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            numbers.update(range(int(first), int(last or first) + 1))
    return numbers


__all__ = [
    "BufferHandle",
    "Descriptor",
    "DiskDescriptor",
    "ExistOptions",
    "MemoryDescriptor",
    "MooncakeDistributedStore",
    "ObjectDataType",
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
    *ObjectDataType.__members__,
    *ReplicaStatus.__members__,
    *TaskType.__members__,
    *TaskStatus.__members__,
]
