"""Types of the asyncio twins. Written by `stubs.py` from `_native.pyi`."""
# mypy: disable-error-code="overload-overlap"

import builtins
import os
from collections.abc import AsyncIterator, Coroutine, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, overload

from typing_extensions import Self

from ._native import (
    Acked,
    Ahead,
    Consume,
    CudaStream,
    Demotion,
    Device,
    DeviceArray,
    Key,
    OnExists,
    OnLoss,
    Outcome,
    Range,
    Ranges,
    Value,
    View,
    _Host,
)
from .types import Losses, Manifest, Namespace, ObjectInfo, Policy, Route, SampleRef, Stats, Stream, Why

_Default = TypeVar("_Default")
_AnyKey = TypeVar("_AnyKey", bound=str | bytes)
_OtherKey = TypeVar("_OtherKey", bound=str | bytes)
_Opened = TypeVar("_Opened", covariant=True)

class _Opening(Coroutine[Any, Any, _Opened]):
    def send(self, value: Any) -> Any: ...
    def throw(self, *error: Any) -> Any: ...
    def close(self) -> None: ...
    def __await__(self) -> Generator[Any, Any, _Opened]: ...
    async def __aenter__(self) -> _Opened: ...
    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

class AsyncLease:
    @property
    def id(self) -> Key: ...
    @property
    def generation(self) -> tuple[int, int]: ...
    @property
    def manifest(self) -> Manifest: ...
    @property
    def is_released(self) -> bool: ...
    async def tensors(
        self, names: Sequence[str] | None = None, *, copy: bool = True, timeout: float | None = None
    ) -> dict[str, Any]: ...
    async def get_into(self, tensors: Mapping[str, Value], *, timeout: float | None = None) -> None: ...
    async def release(self, *, timeout: float | None = None) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

class AsyncReservation:
    @property
    def key(self) -> Key: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def is_held(self) -> bool: ...
    async def put(self, value: Value, *, timeout: float | None = None) -> bool: ...
    async def release(self, *, timeout: float | None = None) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

class AsyncPrefetch:
    @property
    def is_done(self) -> bool: ...
    async def result(self, *, timeout: float | None = None) -> Outcome | list[Outcome]: ...
    async def cancel(self, *, timeout: float | None = None) -> bool: ...
    def __await__(self) -> Generator[Any, None, Outcome | list[Outcome]]: ...

class AsyncQueuedGet:
    @property
    def is_done(self) -> bool: ...
    async def result(self, *, timeout: float | None = None) -> int | list[int]: ...

class AsyncStore:
    @property
    def address(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def is_closed(self) -> bool: ...
    @overload
    async def put(
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
    async def put(
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
    async def put(
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
    ) -> _Opening[AsyncReservation]: ...
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
    ) -> Coroutine[Any, Any, builtins.list[AsyncReservation]]: ...
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
    ) -> Coroutine[Any, Any, builtins.list[AsyncReservation]]: ...
    @overload
    async def get(
        self, key: Key, *, device: _Host = None, range: Range | None = None, timeout: float | None = None
    ) -> bytes: ...
    @overload
    async def get(
        self,
        key: Key,
        default: _Default,
        *,
        device: _Host = None,
        range: Range | None = None,
        timeout: float | None = None,
    ) -> bytes | _Default: ...
    @overload
    async def get(
        self,
        key: Iterable[Key],
        *,
        device: _Host = None,
        range: Ranges | None = None,
        timeout: float | None = None,
    ) -> builtins.list[bytes]: ...
    @overload
    async def get(
        self,
        key: Iterable[Key],
        default: _Default,
        *,
        device: _Host = None,
        range: Ranges | None = None,
        timeout: float | None = None,
    ) -> builtins.list[bytes | _Default]: ...
    @overload
    async def get(
        self, key: Key, *, device: Device, range: Range | None = None, timeout: float | None = None
    ) -> DeviceArray: ...
    @overload
    async def get(
        self,
        key: Key,
        default: _Default,
        *,
        device: Device,
        range: Range | None = None,
        timeout: float | None = None,
    ) -> DeviceArray | _Default: ...
    @overload
    async def get(
        self, key: Iterable[Key], *, device: Device, range: Ranges | None = None, timeout: float | None = None
    ) -> builtins.list[DeviceArray]: ...
    @overload
    async def get(
        self,
        key: Iterable[Key],
        default: _Default,
        *,
        device: Device,
        range: Ranges | None = None,
        timeout: float | None = None,
    ) -> builtins.list[DeviceArray | _Default]: ...
    @overload
    async def get_into(
        self,
        key: Key,
        buffer: Value,
        *,
        range: Range | None = None,
        stream: None = None,
        timeout: float | None = None,
    ) -> int: ...
    @overload
    async def get_into(
        self,
        key: Mapping[_AnyKey, Value],
        buffer: None = None,
        *,
        range: Ranges | None = None,
        stream: None = None,
        timeout: float | None = None,
    ) -> builtins.list[int]: ...
    @overload
    async def get_into(
        self,
        key: Iterable[Key],
        buffer: Iterable[Value],
        *,
        range: Ranges | None = None,
        stream: None = None,
        timeout: float | None = None,
    ) -> builtins.list[int]: ...
    @overload
    async def get_into(
        self,
        key: Key | Mapping[_AnyKey, Value] | Iterable[Key],
        buffer: Value | Iterable[Value] | None = None,
        *,
        range: Range | Ranges | None = None,
        stream: CudaStream,
        timeout: float | None = None,
    ) -> AsyncQueuedGet: ...
    @overload
    async def view(self, key: Key, *, range: Range | None = None, timeout: float | None = None) -> View: ...
    @overload
    async def view(
        self, key: Key, default: _Default, *, range: Range | None = None, timeout: float | None = None
    ) -> View | _Default: ...
    @overload
    async def view(
        self, key: Iterable[Key], *, range: Ranges | None = None, timeout: float | None = None
    ) -> builtins.list[View]: ...
    @overload
    async def view(
        self,
        key: Iterable[Key],
        default: _Default,
        *,
        range: Ranges | None = None,
        timeout: float | None = None,
    ) -> builtins.list[View | _Default]: ...
    @overload
    async def exists(self, key: Key, *, prefetch: Ahead = "none", timeout: float | None = None) -> bool: ...
    @overload
    async def exists(
        self, key: Iterable[Key], *, prefetch: Ahead = "none", timeout: float | None = None
    ) -> builtins.list[bool]: ...
    async def prefetch(
        self, key: Key | Iterable[Key], *, leading: bool = False, timeout: float | None = None
    ) -> AsyncPrefetch: ...
    @overload
    async def info(self, key: Key, *, timeout: float | None = None) -> ObjectInfo: ...
    @overload
    async def info(
        self, key: Key, default: _Default, *, timeout: float | None = None
    ) -> ObjectInfo | _Default: ...
    @overload
    async def info(
        self, key: Iterable[Key], *, timeout: float | None = None
    ) -> builtins.list[ObjectInfo]: ...
    @overload
    async def info(
        self, key: Iterable[Key], default: _Default, *, timeout: float | None = None
    ) -> builtins.list[ObjectInfo | _Default]: ...
    @overload
    async def delete(self, key: Key, *, force: bool = False, timeout: float | None = None) -> bool: ...
    @overload
    async def delete(
        self, key: Iterable[Key], *, force: bool = False, timeout: float | None = None
    ) -> builtins.list[bool]: ...
    async def delete_prefix(
        self, prefix: Key, *, force: bool = False, timeout: float | None = None
    ) -> int: ...
    async def delete_regex(
        self, pattern: str, *, force: bool = False, timeout: float | None = None
    ) -> int: ...
    async def clear(self, *, force: bool = False, timeout: float | None = None) -> int: ...
    async def list(
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
    ) -> AsyncIterator[ObjectInfo]: ...
    async def pin(
        self, key: Key | Iterable[Key], owner: str = "", *, timeout: float | None = None
    ) -> None: ...
    async def unpin(
        self, key: Key | Iterable[Key], owner: str = "", *, timeout: float | None = None
    ) -> None: ...
    async def drop_pins(self, owner: str, *, timeout: float | None = None) -> int: ...
    async def set_policy(
        self,
        *,
        quota: int | str | None = ...,
        max_hold: float | None = ...,
        demotion: Demotion | None = ...,
        guaranteed: int | str | None = ...,
        timeout: float | None = None,
    ) -> None: ...
    async def policy(self, *, timeout: float | None = None) -> Policy: ...
    async def wait_usage(
        self,
        *,
        at_most: int | str | None = None,
        at_least: int | str | None = None,
        timeout: float | None = None,
    ) -> Namespace: ...
    @overload
    async def why(self, key: Key, *, timeout: float | None = None) -> Why: ...
    @overload
    async def why(self, key: Iterable[Key], *, timeout: float | None = None) -> builtins.list[Why]: ...
    @overload
    async def put_sample(
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
    async def put_sample(
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
    def lease(
        self, sample: Key | SampleRef, group: str = "", *, timeout: float | None = None
    ) -> _Opening[AsyncLease]: ...
    @overload
    def lease(
        self, sample: Iterable[Key | SampleRef], group: str = "", *, timeout: float | None = None
    ) -> Coroutine[Any, Any, builtins.list[AsyncLease]]: ...
    @overload
    async def manifest(
        self, key: Key, *, timeout: float | None = None
    ) -> tuple[Manifest, tuple[int, int]]: ...
    @overload
    async def manifest(
        self, key: Iterable[Key], *, timeout: float | None = None
    ) -> builtins.list[tuple[Manifest, tuple[int, int]]]: ...
    @overload
    async def ack(
        self,
        sample: SampleRef | AsyncLease,
        group: str = "",
        *,
        unless_leased: bool = False,
        timeout: float | None = None,
    ) -> Acked: ...
    @overload
    async def ack(
        self,
        sample: Iterable[SampleRef | AsyncLease],
        group: str = "",
        *,
        unless_leased: bool = False,
        timeout: float | None = None,
    ) -> builtins.list[Acked]: ...
    @overload
    async def abort(
        self, sample: SampleRef | AsyncLease, *, unless_leased: bool = False, timeout: float | None = None
    ) -> bool: ...
    @overload
    async def abort(
        self,
        sample: Iterable[SampleRef | AsyncLease],
        *,
        unless_leased: bool = False,
        timeout: float | None = None,
    ) -> builtins.list[bool]: ...
    async def open_stream(
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
    async def end_stream(
        self, name: str, *, failure: str | None = None, timeout: float | None = None
    ) -> Stream: ...
    async def drop_stream(self, name: str, *, timeout: float | None = None) -> int: ...
    async def pull(
        self,
        stream: str,
        group: str = "",
        *,
        at_least: int = 1,
        at_most: int = 1,
        timeout: float | None = None,
    ) -> builtins.list[AsyncLease]: ...
    async def tail(
        self,
        stream: str,
        *,
        behind: tuple[int, int] | None = None,
        at_most: int = 256,
        timeout: float | None = None,
    ) -> builtins.list[SampleRef]: ...
    async def losses(self, *, timeout: float | None = None) -> Losses: ...
    async def stats(self, *, timeout: float | None = None) -> Stats: ...
    async def routes(self, *, timeout: float | None = None) -> builtins.list[Route]: ...
    async def close(self, *, on_loss: OnLoss = "warn", timeout: float | None = None) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...
    def __aiter__(self) -> AsyncIterator[Key]: ...

def connect(
    address: str | None = None,
    *,
    memory: int | str | None = None,
    ssd: str | Iterable[str] = (),
    namespace: str | None = None,
    token: str | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    shared_memory: bool | None = None,
    timeout: float | None = None,
) -> _Opening[AsyncStore]: ...
