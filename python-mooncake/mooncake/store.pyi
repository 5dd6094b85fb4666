"""Mooncake's store, served by Tiffin."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, final, overload

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

@final
class BufferHandle:
    def ptr(self) -> int: ...
    def size(self) -> int: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

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
    def get_size(self, key: str | bytes) -> int: ...
    def is_exist(self, key: str | bytes) -> int: ...
    def batch_is_exist(self, keys: Iterable[str | bytes]) -> list[int]: ...
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
