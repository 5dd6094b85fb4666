"""Mooncake's store, served by Tiffin."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Protocol, final, overload

from typing_extensions import Buffer

@final
class SoftPinAction:
    PRESERVE: ClassVar[SoftPinAction]
    ENABLE: ClassVar[SoftPinAction]
    DISABLE: ClassVar[SoftPinAction]
    __members__: ClassVar[dict[str, SoftPinAction]]
    def __init__(self, value: int) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...

@final
class ObjectDataType:
    UNKNOWN: ClassVar[ObjectDataType]
    KVCACHE: ClassVar[ObjectDataType]
    TENSOR: ClassVar[ObjectDataType]
    WEIGHT: ClassVar[ObjectDataType]
    SAMPLE: ClassVar[ObjectDataType]
    ACTIVATION: ClassVar[ObjectDataType]
    GRADIENT: ClassVar[ObjectDataType]
    OPTIMIZER_STATE: ClassVar[ObjectDataType]
    METADATA: ClassVar[ObjectDataType]
    GENERAL: ClassVar[ObjectDataType]
    __members__: ClassVar[dict[str, ObjectDataType]]
    def __init__(self, value: int) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...

@final
class ReplicaStatus:
    UNDEFINED: ClassVar[ReplicaStatus]
    INITIALIZED: ClassVar[ReplicaStatus]
    PROCESSING: ClassVar[ReplicaStatus]
    COMPLETE: ClassVar[ReplicaStatus]
    REMOVED: ClassVar[ReplicaStatus]
    FAILED: ClassVar[ReplicaStatus]
    __members__: ClassVar[dict[str, ReplicaStatus]]
    def __init__(self, value: int) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...

@final
class TaskType:
    REPLICA_COPY: ClassVar[TaskType]
    REPLICA_MOVE: ClassVar[TaskType]
    __members__: ClassVar[dict[str, TaskType]]
    def __init__(self, value: int) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...

@final
class TaskStatus:
    PENDING: ClassVar[TaskStatus]
    PROCESSING: ClassVar[TaskStatus]
    FAILED: ClassVar[TaskStatus]
    SUCCESS: ClassVar[TaskStatus]
    __members__: ClassVar[dict[str, TaskStatus]]
    def __init__(self, value: int) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...

class ReplicateConfig:
    replica_num: int
    nof_replica_num: int
    dfs_replica_num: int
    soft_pin_action: SoftPinAction
    soft_pin_ttl_ms: int | None
    with_soft_pin: bool
    with_hard_pin: bool
    preferred_segment: str
    preferred_segments: list[str]
    preferred_nof_segments: list[str]
    prefer_alloc_in_same_node: bool
    data_type: ObjectDataType
    group_ids: list[str] | None
    def __init__(self) -> None: ...

class ExistOptions:
    prefetch_to_memory: bool
    def __init__(self, prefetch_to_memory: bool = False) -> None: ...

@final
class Descriptor:
    @property
    def size(self) -> int: ...
    @property
    def buffer_address(self) -> int: ...
    @property
    def transport_endpoint(self) -> str: ...

@final
class MemoryDescriptor:
    @property
    def buffer_descriptor(self) -> Descriptor: ...

@final
class DiskDescriptor:
    @property
    def file_path(self) -> str: ...
    @property
    def object_size(self) -> int: ...

@final
class ReplicaDescriptor:
    @property
    def status(self) -> ReplicaStatus: ...
    def is_memory_replica(self) -> bool: ...
    def is_disk_replica(self) -> bool: ...
    def is_local_disk_replica(self) -> bool: ...
    def get_memory_descriptor(self) -> MemoryDescriptor: ...
    def get_disk_descriptor(self) -> DiskDescriptor: ...

@final
class BufferHandle:
    def ptr(self) -> int: ...
    def size(self) -> int: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class ParallelAxis:
    kind: str
    rank: int
    size: int
    split_dim: int | None
    expert_id: int | None
    stage_id: int | None
    def __init__(self) -> None: ...

class TensorParallelism:
    def __init__(self) -> None: ...
    @property
    def axes(self) -> list[ParallelAxis]: ...
    @axes.setter
    def axes(self, axes: Iterable[ParallelAxis]) -> None: ...

class ReadTarget:
    mode: str
    parallelism: TensorParallelism | None
    def __init__(self) -> None: ...

class _Tensor(Protocol):
    @property
    def dtype(self) -> Any: ...
    @property
    def shape(self) -> Any: ...
    def contiguous(self) -> Any: ...
    def data_ptr(self) -> int: ...
    def numel(self) -> int: ...
    def element_size(self) -> int: ...

class _Partition(Protocol):
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def split_dim(self) -> int | None: ...

class MooncakeDistributedStore:
    def __init__(self) -> None: ...
    @overload
    def setup(
        self,
        local_hostname: str,
        metadata_server: str,
        global_segment_size: int,
        local_buffer_size: int,
        protocol: str,
        rdma_devices: str,
        master_server_addr: str,
        engine: object = None,
        enable_ssd_offload: bool = False,
        ssd_offload_path: str = "",
        tenant_id: str = "default",
        enable_client_http_server: bool = False,
        client_http_port: int = 9300,
        ssd_prefetch_cooldown_sec: int = 5,
        ssd_prefetch_dedup_ttl_sec: int = 30,
        ssd_get_wait_ms: int = 10,
    ) -> int: ...
    @overload
    def setup(self, config: Mapping[str, Any]) -> int: ...
    def close(self) -> int: ...
    def health_check(self) -> int: ...
    def get_hostname(self) -> str: ...
    def register_buffer(self, buffer_ptr: int, size: int) -> int: ...
    def unregister_buffer(self, buffer_ptr: int) -> int: ...
    def put(self, key: str | bytes, value: Buffer, config: ReplicateConfig = ...) -> int: ...
    def put_parts(self, key: str | bytes, *parts: Buffer, config: ReplicateConfig = ...) -> int: ...
    def put_batch(
        self, keys: Iterable[str | bytes], values: Iterable[Buffer], config: ReplicateConfig = ...
    ) -> int: ...
    def put_from(
        self, key: str | bytes, buffer_ptr: int, size: int, config: ReplicateConfig = ...
    ) -> int: ...
    def batch_put_from(
        self,
        keys: Iterable[str | bytes],
        buffer_ptrs: Iterable[int],
        sizes: Iterable[int],
        config: ReplicateConfig = ...,
    ) -> list[int]: ...
    def batch_put_from_multi_buffers(
        self,
        keys: Iterable[str | bytes],
        all_buffer_ptrs: Iterable[Iterable[int]],
        all_sizes: Iterable[Iterable[int]],
        config: ReplicateConfig = ...,
    ) -> list[int]: ...
    def get(self, key: str | bytes) -> bytes: ...
    def get_batch(self, keys: Iterable[str | bytes]) -> list[bytes]: ...
    def get_into(self, key: str | bytes, buffer_ptr: int, size: int) -> int: ...
    def batch_get_into(
        self, keys: Iterable[str | bytes], buffer_ptrs: Iterable[int], sizes: Iterable[int]
    ) -> list[int]: ...
    def batch_get_into_multi_buffers(
        self,
        keys: Iterable[str | bytes],
        all_buffer_ptrs: Iterable[Iterable[int]],
        all_sizes: Iterable[Iterable[int]],
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]: ...
    def get_into_ranges(
        self,
        buffer_ptrs: Iterable[int],
        all_keys: Iterable[Iterable[str | bytes]],
        all_dst_offsets: Iterable[Iterable[Iterable[int]]],
        all_src_offsets: Iterable[Iterable[Iterable[int]]],
        all_sizes: Iterable[Iterable[Iterable[int]]],
    ) -> list[list[list[int]]]: ...
    def get_buffer(self, key: str | bytes) -> BufferHandle | None: ...
    def batch_get_buffer(self, keys: Iterable[str | bytes]) -> list[BufferHandle | None]: ...
    def upsert_parts(self, key: str | bytes, *parts: Buffer, config: ReplicateConfig = ...) -> int: ...
    def upsert(self, key: str | bytes, value: Buffer, config: ReplicateConfig = ...) -> int: ...
    def upsert_from(
        self, key: str | bytes, buffer_ptr: int, size: int, config: ReplicateConfig = ...
    ) -> int: ...
    def upsert_batch(
        self, keys: Iterable[str | bytes], values: Iterable[Buffer], config: ReplicateConfig = ...
    ) -> int: ...
    def batch_upsert_from(
        self,
        keys: Iterable[str | bytes],
        buffer_ptrs: Iterable[int],
        sizes: Iterable[int],
        config: ReplicateConfig = ...,
    ) -> list[int]: ...
    def put_tensor(self, key: str | bytes, tensor: _Tensor) -> int: ...
    def upsert_tensor(self, key: str | bytes, tensor: _Tensor) -> int: ...
    def pub_tensor(self, key: str | bytes, tensor: _Tensor, config: ReplicateConfig = ...) -> int: ...
    def upsert_pub_tensor(self, key: str | bytes, tensor: _Tensor, config: ReplicateConfig = ...) -> int: ...
    def batch_put_tensor(self, keys: Iterable[str | bytes], tensors_list: list[Any]) -> list[int]: ...
    def batch_upsert_tensor(self, keys: Iterable[str | bytes], tensors_list: list[Any]) -> list[int]: ...
    def batch_pub_tensor(
        self, keys: Iterable[str | bytes], tensors_list: list[Any], config: ReplicateConfig = ...
    ) -> list[int]: ...
    def batch_upsert_pub_tensor(
        self, keys: Iterable[str | bytes], tensors_list: list[Any], config: ReplicateConfig = ...
    ) -> list[int]: ...
    def put_tensor_from(self, key: str | bytes, buffer_ptr: int, size: int) -> int: ...
    def upsert_tensor_from(self, key: str | bytes, buffer_ptr: int, size: int) -> int: ...
    def batch_put_tensor_from(
        self, keys: Iterable[str | bytes], buffer_ptrs: Iterable[int], sizes: Iterable[int]
    ) -> list[int]: ...
    def batch_upsert_tensor_from(
        self, keys: Iterable[str | bytes], buffer_ptrs: Iterable[int], sizes: Iterable[int]
    ) -> list[int]: ...
    def get_tensor(self, key: str | bytes) -> Any: ...
    def get_tensor_with_tp(
        self, key: str | bytes, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> Any: ...
    def get_tensor_with_parallelism(self, key: str | bytes, target: ReadTarget | None = None) -> Any: ...
    def get_tensor_into(self, key: str | bytes, buffer_ptr: int, size: int) -> Any: ...
    def get_tensor_with_tp_into(
        self,
        key: str | bytes,
        buffer_ptr: int,
        size: int,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> Any: ...
    def get_tensor_with_parallelism_into(
        self, key: str | bytes, buffer_ptr: int, size: int, target: ReadTarget | None = None
    ) -> Any: ...
    def batch_get_tensor(self, keys: Iterable[str | bytes]) -> list[Any]: ...
    def batch_get_tensor_with_tp(
        self, base_keys: Iterable[str | bytes], tp_rank: int = 0, tp_size: int = 1
    ) -> list[Any]: ...
    def batch_get_tensor_with_parallelism(
        self, keys: Iterable[str | bytes], targets: list[ReadTarget | None] | None = None
    ) -> list[Any]: ...
    def batch_get_tensor_into(
        self, keys: Iterable[str | bytes], buffer_ptrs: Iterable[int], sizes: Iterable[int]
    ) -> list[Any]: ...
    def batch_get_tensor_with_tp_into(
        self,
        base_keys: Iterable[str | bytes],
        buffer_ptrs: Iterable[int],
        sizes: Iterable[int],
        tp_rank: int = 0,
        tp_size: int = 1,
    ) -> list[Any]: ...
    def batch_get_tensor_with_parallelism_into(
        self,
        keys: Iterable[str | bytes],
        buffer_ptrs: Iterable[int],
        sizes: Iterable[int],
        targets: list[ReadTarget | None] | None = None,
    ) -> list[Any]: ...
    def put_tensor_with_tp(
        self, key: str | bytes, tensor: _Tensor, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int: ...
    def pub_tensor_with_tp(
        self,
        key: str | bytes,
        tensor: _Tensor,
        config: ReplicateConfig = ...,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int: ...
    def batch_put_tensor_with_tp(
        self,
        base_keys: Iterable[str | bytes],
        tensors_list: list[Any],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]: ...
    def batch_pub_tensor_with_tp(
        self,
        base_keys: Iterable[str | bytes],
        tensors_list: list[Any],
        config: ReplicateConfig = ...,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]: ...
    def put_tensor_with_tp_from(
        self,
        key: str | bytes,
        buffer_ptr: int,
        size: int,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int: ...
    def batch_put_tensor_with_tp_from(
        self,
        base_keys: Iterable[str | bytes],
        buffer_ptrs: Iterable[int],
        sizes: Iterable[int],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]: ...
    def put_tensor_with_parallelism(
        self,
        key: str | bytes,
        tensor: _Tensor,
        parallelism: TensorParallelism | None = None,
        config: ReplicateConfig = ...,
        writer_partition: _Partition | None = None,
    ) -> int: ...
    def upsert_tensor_with_parallelism(
        self,
        key: str | bytes,
        tensor: _Tensor,
        parallelism: TensorParallelism | None = None,
        config: ReplicateConfig = ...,
        writer_partition: _Partition | None = None,
    ) -> int: ...
    def put_tensor_with_parallelism_from(
        self,
        key: str | bytes,
        buffer_ptr: int,
        size: int,
        parallelism: TensorParallelism | None = None,
        config: ReplicateConfig = ...,
        writer_partition: _Partition | None = None,
    ) -> int: ...
    def upsert_tensor_with_parallelism_from(
        self,
        key: str | bytes,
        buffer_ptr: int,
        size: int,
        parallelism: TensorParallelism | None = None,
        config: ReplicateConfig = ...,
        writer_partition: _Partition | None = None,
    ) -> int: ...
    def batch_put_tensor_with_parallelism(
        self,
        keys: Iterable[str | bytes],
        tensors_list: list[Any],
        parallelisms: list[TensorParallelism | None] | None = None,
        config: ReplicateConfig = ...,
        writer_partitions: list[_Partition | None] | None = None,
    ) -> list[int]: ...
    def batch_upsert_tensor_with_parallelism(
        self,
        keys: Iterable[str | bytes],
        tensors_list: list[Any],
        parallelisms: list[TensorParallelism | None] | None = None,
        config: ReplicateConfig = ...,
        writer_partitions: list[_Partition | None] | None = None,
    ) -> list[int]: ...
    def batch_put_tensor_with_parallelism_from(
        self,
        keys: Iterable[str | bytes],
        buffer_ptrs: Iterable[int],
        sizes: Iterable[int],
        parallelisms: list[TensorParallelism | None] | None = None,
        config: ReplicateConfig = ...,
        writer_partitions: list[_Partition | None] | None = None,
    ) -> list[int]: ...
    def batch_upsert_tensor_with_parallelism_from(
        self,
        keys: Iterable[str | bytes],
        buffer_ptrs: Iterable[int],
        sizes: Iterable[int],
        parallelisms: list[TensorParallelism | None] | None = None,
        config: ReplicateConfig = ...,
        writer_partitions: list[_Partition | None] | None = None,
    ) -> list[int]: ...
    def batch_get_session_start(self, keys: Iterable[str | bytes]) -> list[int]: ...
    def batch_get_into_multi_buffer_ranges(
        self,
        keys: Iterable[str | bytes],
        all_buffer_ptrs: Iterable[Iterable[int]],
        all_sizes: Iterable[Iterable[int]],
        all_src_offsets: Iterable[Iterable[int]],
    ) -> list[int]: ...
    def batch_get_session_end(self, keys: Iterable[str | bytes]) -> int: ...
    def batch_put_session_start(
        self, keys: Iterable[str | bytes], sizes: Iterable[int], config: ReplicateConfig = ...
    ) -> list[int]: ...
    def batch_put_from_multi_buffer_ranges(
        self,
        keys: Iterable[str | bytes],
        all_buffer_ptrs: Iterable[Iterable[int]],
        all_sizes: Iterable[Iterable[int]],
        all_dst_offsets: Iterable[Iterable[int]],
    ) -> list[int]: ...
    def batch_put_session_end(self, keys: Iterable[str | bytes]) -> list[int]: ...
    def batch_put_session_revoke(self, keys: Iterable[str | bytes]) -> list[int]: ...
    def get_tensor_into_cuda(self, key: str | bytes, tensor: _Tensor) -> int: ...
    def batch_get_tensor_into_cuda(
        self, keys: Iterable[str | bytes], tensors_list: list[Any]
    ) -> list[int]: ...
    def save_tensor_to_safetensor(self, key: str | bytes, file_name: str | None = None) -> int: ...
    @overload
    def load_tensor_from_safetensor(self, key: str | None, file_name: str) -> Any: ...
    @overload
    def load_tensor_from_safetensor(self, *, file_name: str) -> Any: ...
    def get_size(self, key: str | bytes) -> int: ...
    def is_exist(self, key: str | bytes, options: ExistOptions | None = None) -> int: ...
    def batch_is_exist(
        self, keys: Iterable[str | bytes], options: ExistOptions | None = None
    ) -> list[int]: ...
    def get_replica_desc(self, key: str | bytes) -> list[ReplicaDescriptor]: ...
    def batch_get_replica_desc(
        self, keys: Iterable[str | bytes]
    ) -> dict[str | bytes, list[ReplicaDescriptor]]: ...
    def get_offload_rpc_read_count(self) -> int: ...
    def remove(self, key: str | bytes, force: bool = False) -> int: ...
    def batch_remove(self, keys: Iterable[str | bytes], force: bool = False) -> list[int]: ...
    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int: ...
    def remove_all(self, force: bool = False) -> int: ...

UNKNOWN: ObjectDataType
KVCACHE: ObjectDataType
TENSOR: ObjectDataType
WEIGHT: ObjectDataType
SAMPLE: ObjectDataType
ACTIVATION: ObjectDataType
GRADIENT: ObjectDataType
OPTIMIZER_STATE: ObjectDataType
METADATA: ObjectDataType
GENERAL: ObjectDataType
UNDEFINED: ReplicaStatus
INITIALIZED: ReplicaStatus
COMPLETE: ReplicaStatus
REMOVED: ReplicaStatus
REPLICA_COPY: TaskType
REPLICA_MOVE: TaskType
PENDING: TaskStatus
PROCESSING: TaskStatus
SUCCESS: TaskStatus
FAILED: TaskStatus

def bind_to_numa_node(node: int) -> None: ...
def _serialize_tensor(tensor: _Tensor, /) -> tuple[bytes, int, int, Any]: ...
def _deserialize_tensor(payload: bytes, /) -> Any: ...
def _tensor_metadata_size() -> int: ...
