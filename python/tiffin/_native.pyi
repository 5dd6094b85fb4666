"""Types of the extension module."""
# A `str` is an iterable of keys as well; the overload that comes first decides.
# mypy: disable-error-code="overload-overlap"

import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, overload

from typing_extensions import Buffer, CapsuleType, Self

from .types import Losses, Manifest, Namespace, ObjectInfo, Policy, Route, SampleRef, Stats, Stream, Why

__version__: str

Key: TypeAlias = str | bytes
OnExists: TypeAlias = Literal["replace", "keep", "error"]
Consume: TypeAlias = Literal["once", "retained"] | Iterable[str]
OnLoss: TypeAlias = Literal["warn", "error", "ignore"]
Range: TypeAlias = tuple[int, int]
Ranges: TypeAlias = Range | Sequence[Range | None]
Acked: TypeAlias = Literal["freed", "recorded", "stale"]
Ahead: TypeAlias = Literal["none", "leading", "all"]
Demotion: TypeAlias = Literal["on-pressure", "write-through", "never"]
Outcome: TypeAlias = Literal["absent", "resident", "done", "running", "failed", "skipped"]

class SupportsDLPack(Protocol):
    def __dlpack__(self) -> Any: ...

class SupportsCudaArray(Protocol):
    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]: ...

Value: TypeAlias = Buffer | SupportsDLPack | SupportsCudaArray
#: A CUDA device: its number, `"cuda:0"`, or an object whose text that is.
Device: TypeAlias = int | str | object

class _TorchStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...

class _CupyStream(Protocol):
    @property
    def ptr(self) -> int: ...

class _OtherStream(Protocol):
    def __cuda_stream__(self) -> tuple[int, int]: ...

#: A CUDA stream: its handle, or an object that has one.
CudaStream: TypeAlias = int | _TorchStream | _CupyStream | _OtherStream
_Host: TypeAlias = Literal["cpu"] | None

_Default = TypeVar("_Default")
# The keys of a mapping are invariant: `Mapping[Key, Value]` would reject a `dict[str, bytes]`. With a union
# of mappings, type checkers would infer `object` for mixed values; with a variable they infer `Value`.
_AnyKey = TypeVar("_AnyKey", bound=str | bytes)
_OtherKey = TypeVar("_OtherKey", bound=str | bytes)

class View(Buffer):
    @property
    def is_borrowed(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def generation(self) -> tuple[int, int]: ...
    def release(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: int, /) -> int: ...
    @overload
    def __getitem__(self, index: slice, /) -> memoryview: ...
    def __iter__(self) -> Iterator[int]: ...
    def __bytes__(self) -> bytes: ...
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def cuda_array(self, device: Device | None = None, *, timeout: float = 10.0) -> MappedArray: ...

class _CudaArray:
    @property
    def nbytes(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __len__(self) -> int: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class DeviceArray(_CudaArray): ...
class MappedArray(_CudaArray): ...

class Lease:
    @property
    def id(self) -> Key: ...
    @property
    def generation(self) -> tuple[int, int]: ...
    @property
    def manifest(self) -> Manifest: ...
    @property
    def is_released(self) -> bool: ...
    def tensors(
        self, names: Sequence[str] | None = None, *, copy: bool = True, timeout: float | None = None
    ) -> dict[str, Any]: ...
    def get_into(self, tensors: Mapping[str, Value], *, timeout: float | None = None) -> None: ...
    def release(self, *, timeout: float | None = None) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

class Reservation:
    @property
    def key(self) -> Key: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def is_held(self) -> bool: ...
    def put(self, value: Value, *, timeout: float | None = None) -> bool: ...
    def release(self, *, timeout: float | None = None) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

class Prefetch:
    @property
    def is_done(self) -> bool: ...
    def result(self, *, timeout: float | None = None) -> Outcome | list[Outcome]: ...
    def cancel(self, *, timeout: float | None = None) -> bool: ...

class QueuedGet:
    @property
    def is_done(self) -> bool: ...
    def result(self, *, timeout: float | None = None) -> int | list[int]: ...

class Store:
    @property
    def address(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def is_closed(self) -> bool: ...
    @overload
    def put(
        self,
        key: Key,
        value: Value,
        *,
        on_exists: OnExists = "replace",
        replicas: int = 1,
        pin: bool = False,
        soft_pin: float | None = None,
        owner: str = "",
        wait: bool = False,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> bool: ...
    @overload
    def put(
        self,
        key: Mapping[_AnyKey, Value],
        value: None = None,
        *,
        on_exists: OnExists = "replace",
        replicas: int = 1,
        pin: bool = False,
        soft_pin: float | None = None,
        owner: str = "",
        wait: bool = False,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> builtins.list[bool]: ...
    @overload
    def put(
        self,
        key: Iterable[Key],
        value: Iterable[Value],
        *,
        on_exists: OnExists = "replace",
        replicas: int = 1,
        pin: bool = False,
        soft_pin: float | None = None,
        owner: str = "",
        wait: bool = False,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> builtins.list[bool]: ...
    @overload
    def reserve(
        self,
        key: Key,
        nbytes: int | str,
        *,
        on_exists: OnExists = "replace",
        replicas: int = 1,
        pin: bool = False,
        soft_pin: float | None = None,
        owner: str = "",
        wait: bool = False,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> Reservation: ...
    @overload
    def reserve(
        self,
        key: Mapping[_AnyKey, int | str],
        nbytes: None = None,
        *,
        on_exists: OnExists = "replace",
        replicas: int = 1,
        pin: bool = False,
        soft_pin: float | None = None,
        owner: str = "",
        wait: bool = False,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> builtins.list[Reservation]: ...
    @overload
    def reserve(
        self,
        key: Iterable[Key],
        nbytes: Iterable[int | str],
        *,
        on_exists: OnExists = "replace",
        replicas: int = 1,
        pin: bool = False,
        soft_pin: float | None = None,
        owner: str = "",
        wait: bool = False,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> builtins.list[Reservation]: ...
    @overload
    def get(
        self,
        key: Key,
        *,
        device: _Host = None,
        range: Range | None = None,
        timeout: float | None = None,
    ) -> bytes: ...
    @overload
    def get(
        self,
        key: Key,
        default: _Default,
        *,
        device: _Host = None,
        range: Range | None = None,
        timeout: float | None = None,
    ) -> bytes | _Default: ...
    @overload
    def get(
        self,
        key: Iterable[Key],
        *,
        device: _Host = None,
        range: Ranges | None = None,
        timeout: float | None = None,
    ) -> builtins.list[bytes]: ...
    @overload
    def get(
        self,
        key: Iterable[Key],
        default: _Default,
        *,
        device: _Host = None,
        range: Ranges | None = None,
        timeout: float | None = None,
    ) -> builtins.list[bytes | _Default]: ...
    @overload
    def get(
        self,
        key: Key,
        *,
        device: Device,
        range: Range | None = None,
        timeout: float | None = None,
    ) -> DeviceArray: ...
    @overload
    def get(
        self,
        key: Key,
        default: _Default,
        *,
        device: Device,
        range: Range | None = None,
        timeout: float | None = None,
    ) -> DeviceArray | _Default: ...
    @overload
    def get(
        self,
        key: Iterable[Key],
        *,
        device: Device,
        range: Ranges | None = None,
        timeout: float | None = None,
    ) -> builtins.list[DeviceArray]: ...
    @overload
    def get(
        self,
        key: Iterable[Key],
        default: _Default,
        *,
        device: Device,
        range: Ranges | None = None,
        timeout: float | None = None,
    ) -> builtins.list[DeviceArray | _Default]: ...
    @overload
    def get_into(
        self,
        key: Key,
        buffer: Value,
        *,
        range: Range | None = None,
        stream: None = None,
        timeout: float | None = None,
    ) -> int: ...
    @overload
    def get_into(
        self,
        key: Mapping[_AnyKey, Value],
        buffer: None = None,
        *,
        range: Ranges | None = None,
        stream: None = None,
        timeout: float | None = None,
    ) -> builtins.list[int]: ...
    @overload
    def get_into(
        self,
        key: Iterable[Key],
        buffer: Iterable[Value],
        *,
        range: Ranges | None = None,
        stream: None = None,
        timeout: float | None = None,
    ) -> builtins.list[int]: ...
    @overload
    def get_into(
        self,
        key: Key | Mapping[_AnyKey, Value] | Iterable[Key],
        buffer: Value | Iterable[Value] | None = None,
        *,
        range: Range | Ranges | None = None,
        stream: CudaStream,
        timeout: float | None = None,
    ) -> QueuedGet: ...
    @overload
    def view(self, key: Key, *, range: Range | None = None, timeout: float | None = None) -> View: ...
    @overload
    def view(
        self, key: Key, default: _Default, *, range: Range | None = None, timeout: float | None = None
    ) -> View | _Default: ...
    @overload
    def view(
        self, key: Iterable[Key], *, range: Ranges | None = None, timeout: float | None = None
    ) -> builtins.list[View]: ...
    @overload
    def view(
        self,
        key: Iterable[Key],
        default: _Default,
        *,
        range: Ranges | None = None,
        timeout: float | None = None,
    ) -> builtins.list[View | _Default]: ...
    @overload
    def exists(self, key: Key, *, prefetch: Ahead = "none", timeout: float | None = None) -> bool: ...
    @overload
    def exists(
        self, key: Iterable[Key], *, prefetch: Ahead = "none", timeout: float | None = None
    ) -> builtins.list[bool]: ...
    def prefetch(
        self, key: Key | Iterable[Key], *, leading: bool = False, timeout: float | None = None
    ) -> Prefetch: ...
    @overload
    def info(self, key: Key, *, timeout: float | None = None) -> ObjectInfo: ...
    @overload
    def info(self, key: Key, default: _Default, *, timeout: float | None = None) -> ObjectInfo | _Default: ...
    @overload
    def info(self, key: Iterable[Key], *, timeout: float | None = None) -> builtins.list[ObjectInfo]: ...
    @overload
    def info(
        self, key: Iterable[Key], default: _Default, *, timeout: float | None = None
    ) -> builtins.list[ObjectInfo | _Default]: ...
    @overload
    def delete(self, key: Key, *, force: bool = False, timeout: float | None = None) -> bool: ...
    @overload
    def delete(
        self, key: Iterable[Key], *, force: bool = False, timeout: float | None = None
    ) -> builtins.list[bool]: ...
    def delete_prefix(self, prefix: Key, *, force: bool = False, timeout: float | None = None) -> int: ...
    def delete_regex(self, pattern: str, *, force: bool = False, timeout: float | None = None) -> int: ...
    def clear(self, *, force: bool = False, timeout: float | None = None) -> int: ...
    def list(
        self,
        prefix: Key = "",
        *,
        after: Key | None = None,
        limit: int | None = None,
        pinned_by: str | None = None,
        timeout: float | None = None,
    ) -> builtins.list[ObjectInfo]: ...
    def scan(
        self, prefix: Key = "", *, pinned_by: str | None = None, timeout: float | None = None
    ) -> Iterator[ObjectInfo]: ...
    def _page(
        self, prefix: Key, pinned_by: str | None, cursor: int, *, timeout: float | None = None
    ) -> tuple[builtins.list[ObjectInfo], int]: ...
    def pin(self, key: Key | Iterable[Key], owner: str = "", *, timeout: float | None = None) -> None: ...
    def unpin(self, key: Key | Iterable[Key], owner: str = "", *, timeout: float | None = None) -> None: ...
    def drop_pins(self, owner: str, *, timeout: float | None = None) -> int: ...
    def set_policy(
        self,
        *,
        quota: int | str | None = ...,
        max_hold: float | None = ...,
        demotion: Demotion | None = ...,
        guaranteed: int | str | None = ...,
        timeout: float | None = None,
    ) -> None: ...
    def policy(self, *, timeout: float | None = None) -> Policy: ...
    def wait_usage(
        self,
        *,
        at_most: int | str | None = None,
        at_least: int | str | None = None,
        timeout: float | None = None,
    ) -> Namespace: ...
    @overload
    def why(self, key: Key, *, timeout: float | None = None) -> Why: ...
    @overload
    def why(self, key: Iterable[Key], *, timeout: float | None = None) -> builtins.list[Why]: ...
    @overload
    def put_sample(
        self,
        id: Key,
        tensors: Mapping[str, Value],
        *,
        metadata: bytes | bytearray | None = None,
        consume: Consume = "once",
        replace: bool = True,
        replicas: int = 1,
        pin: bool = False,
        owner: str = "",
        wait: bool = False,
        stream: str = "",
        elsewhere: int = 0,
        timeout: float | None = None,
    ) -> SampleRef: ...
    @overload
    def put_sample(
        self,
        id: Mapping[_AnyKey, Mapping[str, Value]],
        tensors: None = None,
        *,
        metadata: Mapping[_OtherKey, bytes | bytearray] | None = None,
        consume: Consume = "once",
        replace: bool = True,
        replicas: int = 1,
        pin: bool = False,
        owner: str = "",
        wait: bool = False,
        stream: str = "",
        elsewhere: int = 0,
        timeout: float | None = None,
    ) -> builtins.list[SampleRef]: ...
    @overload
    def lease(self, sample: Key | SampleRef, group: str = "", *, timeout: float | None = None) -> Lease: ...
    @overload
    def lease(
        self, sample: Iterable[Key | SampleRef], group: str = "", *, timeout: float | None = None
    ) -> builtins.list[Lease]: ...
    @overload
    def manifest(self, key: Key, *, timeout: float | None = None) -> tuple[Manifest, tuple[int, int]]: ...
    @overload
    def manifest(
        self, key: Iterable[Key], *, timeout: float | None = None
    ) -> builtins.list[tuple[Manifest, tuple[int, int]]]: ...
    @overload
    def ack(
        self,
        sample: SampleRef | Lease,
        group: str = "",
        *,
        unless_leased: bool = False,
        timeout: float | None = None,
    ) -> Acked: ...
    @overload
    def ack(
        self,
        sample: Iterable[SampleRef | Lease],
        group: str = "",
        *,
        unless_leased: bool = False,
        timeout: float | None = None,
    ) -> builtins.list[Acked]: ...
    @overload
    def abort(
        self, sample: SampleRef | Lease, *, unless_leased: bool = False, timeout: float | None = None
    ) -> bool: ...
    @overload
    def abort(
        self,
        sample: Iterable[SampleRef | Lease],
        *,
        unless_leased: bool = False,
        timeout: float | None = None,
    ) -> builtins.list[bool]: ...
    def open_stream(
        self,
        name: str,
        *,
        refs_high: int | None = None,
        refs_low: int | None = None,
        bytes_high: int | str | None = None,
        bytes_low: int | str | None = None,
        group: str | None = None,
        window: int = 0,
        timeout: float | None = None,
    ) -> Stream: ...
    def end_stream(
        self, name: str, *, failure: str | None = None, timeout: float | None = None
    ) -> Stream: ...
    def drop_stream(self, name: str, *, timeout: float | None = None) -> int: ...
    def pull(
        self,
        stream: str,
        group: str = "",
        *,
        at_least: int = 1,
        at_most: int = 1,
        timeout: float | None = None,
    ) -> builtins.list[Lease]: ...
    def tail(
        self,
        stream: str,
        *,
        behind: tuple[int, int] | None = None,
        at_most: int = 256,
        timeout: float | None = None,
    ) -> builtins.list[SampleRef]: ...
    def losses(self, *, timeout: float | None = None) -> Losses: ...
    def stats(self, *, timeout: float | None = None) -> Stats: ...
    def routes(self, *, timeout: float | None = None) -> builtins.list[Route]: ...
    def close(self, *, on_loss: OnLoss = "warn", timeout: float | None = None) -> None: ...
    def __contains__(self, key: Key, /) -> bool: ...
    def __getitem__(self, key: Key, /) -> bytes: ...
    def __setitem__(self, key: Key, value: Value, /) -> None: ...
    def __delitem__(self, key: Key, /) -> None: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> Literal[True]: ...
    def __iter__(self) -> Iterator[Key]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

def connect(
    address: str | None,
    *,
    memory: int,
    ssd: Sequence[str],
    namespace: str | None,
    token: str | None,
    tls: tuple[str | None, str | None, str | None],
    etcd: tuple[str | None, str | None, str | None, str | None],
    shared_memory: bool,
    timeout: float,
    is_async: bool,
) -> Any: ...
def checksum(value: Value) -> int: ...
def cli(argv: Sequence[str]) -> int: ...
def accept_traceparent(text: str) -> str | None: ...
def trace_endpoint_problem(url: str) -> str | None: ...

class _Mooncake(Protocol):
    """The submodule `mooncake`. The stub of `mooncake.store` declares its classes."""

    def mooncake_master(self, argv: Sequence[str]) -> int: ...
    def mooncake_client_flags(
        self, arguments: Sequence[str]
    ) -> tuple[int | None, dict[str, str], list[str]]: ...
    def __getattr__(self, name: str) -> Any: ...

mooncake: _Mooncake

class KvLayers:
    """Arrays of a CUDA device with a row for each page."""

    def __init__(self, arrays: builtins.list[Any], stream: Any, groups: int) -> None: ...
    @property
    def pages(self) -> int: ...
    @property
    def page_bytes(self) -> int: ...

class KvEngine:
    """See `tiffin.kv.Engine`."""

    def __init__(
        self,
        shape: Any,
        settings: dict[str, Any],
        *,
        page_bytes: int,
        device: Any,
        host: Any,
        store: Any,
        exist_options: Any,
        rank_part: tuple[tuple[int, int], tuple[int, int], tuple[int, int]],
        gather: Any,
    ) -> None: ...
    def step(self, inputs: Any) -> tuple[builtins.list[Any], ...]: ...
    def wait(self, seconds: float) -> bool: ...
    def wait_layer(self, layer: int, stream: Any, seconds: float) -> None: ...
    def match(
        self, space: int, tokens: bytes, media: Sequence[tuple[int, bytes]]
    ) -> tuple[int, int, int]: ...
    def block_table(self, request: int) -> bytes | None: ...
    def state(self, request: int) -> str | None: ...
    def stats(self) -> dict[str, Any]: ...
    def digest(self) -> int: ...
    def check(self) -> str | None: ...
    def close(self, seconds: float) -> bool: ...

def kv_chain(
    namespace: tuple[str, str, int, str, str, str, str, str],
    page_tokens: int,
    tokens: bytes,
    media: Sequence[tuple[int, bytes]],
) -> tuple[bytes, builtins.list[bytes]]: ...
def kv_names(
    root: bytes,
    rank: tuple[tuple[int, int], tuple[int, int], tuple[int, int]],
    hashes: Sequence[bytes],
) -> builtins.list[str]: ...
def kv_replay(arguments: Sequence[str]) -> str: ...
def kv_settings() -> dict[str, int | float | str | bool]: ...
