"""The same store for asyncio: every method is a coroutine, and nothing blocks the event loop.

>>> import asyncio
>>> import tiffin.aio
>>> async def main():
...     async with await tiffin.aio.connect() as store:
...         await store.put({"a": b"1", "b": b"2"})
...         return await asyncio.gather(store.get("a"), store.get("b"))
>>> asyncio.run(main())
[b'1', b'2']

A task that is cancelled stops its call. A put may then have stored its object or not; the content of a buffer
that was being filled is unspecified, and its memory is held until nothing touches it any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _arguments, _settings
from ._native import Lease, Store
from ._native import connect as _connect
from .types import Manifest, Namespace, ObjectInfo, Route, SampleRef, Stats

if TYPE_CHECKING:
    from ._native import Consume, Key, OnExists

__all__ = ["AsyncLease", "AsyncStore", "connect"]


async def connect(
    address: str | None = None,
    *,
    memory: int | str = _settings.MEMORY_DEFAULT,
    namespace: str | None = None,
    token: str | None = None,
    shared_memory: bool | None = None,
    timeout: float | None = None,
) -> AsyncStore:
    """Connect to a store; the arguments are those of `tiffin.connect`."""
    arguments = _arguments(address, memory, namespace, token, shared_memory, timeout)
    return AsyncStore(await _connect(**arguments, is_async=True))


class AsyncStore:
    """A `tiffin.Store` whose methods are coroutines. Made by `tiffin.aio.connect`."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    async def put(
        self,
        key: Key | Mapping[Key, Any],
        value: Any = None,
        *,
        on_exists: OnExists = "replace",
        replicas: int = 1,
        pin: bool = False,
        soft_pin: float | None = None,
        owner: str = "",
        wait: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Store a value, or many: see `tiffin.Store.put`. The value must not change before this has ended."""
        return await self._store.put(
            key,
            value,
            on_exists=on_exists,
            replicas=replicas,
            pin=pin,
            soft_pin=soft_pin,
            owner=owner,
            wait=wait,
            timeout=timeout,
        )

    async def get(self, key: Key | Iterable[Key], *, missing: Any = ..., timeout: float | None = None) -> Any:
        """The bytes of an object, or of many: see `tiffin.Store.get`."""
        return await self._store.get(key, timeout=timeout, **_given(missing))

    async def get_into(
        self, key: Key | Mapping[Key, Any], buffer: Any = None, *, timeout: float | None = None
    ) -> Any:
        """Read an object into a buffer, or many: see `tiffin.Store.get_into`."""
        return await self._store.get_into(key, buffer, timeout=timeout)

    async def view(
        self, key: Key | Iterable[Key], *, missing: Any = ..., timeout: float | None = None
    ) -> Any:
        """Look at an object, or at many, where the bytes lie: see `tiffin.Store.view` and `tiffin.View`."""
        return await self._store.view(key, timeout=timeout, **_given(missing))

    async def exists(self, key: Key | Iterable[Key], *, timeout: float | None = None) -> Any:
        """Whether an object exists, or each of many: see `tiffin.Store.exists`."""
        return await self._store.exists(key, timeout=timeout)

    async def info(
        self, key: Key | Iterable[Key], *, missing: Any = ..., timeout: float | None = None
    ) -> Any:
        """What is known of an object, or of many: see `tiffin.Store.info`."""
        return await self._store.info(key, timeout=timeout, **_given(missing))

    async def delete(
        self, key: Key | Iterable[Key], *, force: bool = False, timeout: float | None = None
    ) -> Any:
        """Delete an object, or many: see `tiffin.Store.delete`."""
        return await self._store.delete(key, force=force, timeout=timeout)

    async def delete_prefix(self, prefix: Key, *, force: bool = False, timeout: float | None = None) -> int:
        """Delete all objects whose key starts so: see `tiffin.Store.delete_prefix`."""
        return await self._store.delete_prefix(prefix, force=force, timeout=timeout)

    async def delete_regex(self, pattern: str, *, force: bool = False, timeout: float | None = None) -> int:
        """Delete all objects whose key matches: see `tiffin.Store.delete_regex`."""
        return await self._store.delete_regex(pattern, force=force, timeout=timeout)

    async def clear(self, *, force: bool = False, timeout: float | None = None) -> int:
        """Delete every object of the namespace: see `tiffin.Store.clear`."""
        return await self._store.clear(force=force, timeout=timeout)

    async def list(
        self, prefix: Key = "", *, pinned_by: str | None = None, timeout: float | None = None
    ) -> list[ObjectInfo]:
        """All objects whose key starts so: see `tiffin.Store.list`."""
        return await self._store.list(prefix, pinned_by=pinned_by, timeout=timeout)

    async def pin(self, key: Key | Iterable[Key], owner: str = "", *, timeout: float | None = None) -> None:
        """Protect objects from eviction: see `tiffin.Store.pin`."""
        await self._store.pin(key, owner, timeout=timeout)

    async def unpin(self, key: Key | Iterable[Key], owner: str = "", *, timeout: float | None = None) -> None:
        """End an owner's pins of objects: see `tiffin.Store.unpin`."""
        await self._store.unpin(key, owner, timeout=timeout)

    async def drop_pins(self, owner: str, *, timeout: float | None = None) -> int:
        """End all pins of an owner: see `tiffin.Store.drop_pins`."""
        return await self._store.drop_pins(owner, timeout=timeout)

    async def set_policy(
        self,
        *,
        quota: int | str | None = None,
        max_hold: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Limit the namespace: see `tiffin.Store.set_policy`."""
        await self._store.set_policy(quota=quota, max_hold=max_hold, timeout=timeout)

    async def wait_usage(
        self,
        *,
        at_most: int | str | None = None,
        at_least: int | str | None = None,
        timeout: float | None = None,
    ) -> Namespace:
        """Wait until the namespace is so full or so empty: see `tiffin.Store.wait_usage`."""
        return await self._store.wait_usage(at_most=at_most, at_least=at_least, timeout=timeout)

    async def why(self, key: Key | Iterable[Key], *, timeout: float | None = None) -> Any:
        """Why an object, or each of many, is here or gone: see `tiffin.Store.why`."""
        return await self._store.why(key, timeout=timeout)

    async def put_sample(
        self,
        id: Key,
        tensors: Mapping[str, Any],
        *,
        metadata: bytes | bytearray | None = None,
        consume: Consume = "once",
        replace: bool = True,
        wait: bool = False,
        timeout: float | None = None,
    ) -> SampleRef:
        """Store a sample: see `tiffin.Store.put_sample`. The tensors must not change before it has ended."""
        return await self._store.put_sample(
            id,
            tensors,
            metadata=metadata,
            consume=consume,
            replace=replace,
            wait=wait,
            timeout=timeout,
        )

    async def lease(self, sample: Any, group: str = "", *, timeout: float | None = None) -> Any:
        """Lease a sample, or many: see `tiffin.Store.lease`."""
        leased = await self._store.lease(sample, group, timeout=timeout)
        return [AsyncLease(lease) for lease in leased] if isinstance(leased, list) else AsyncLease(leased)

    async def ack(self, sample: Any, group: str = "", *, timeout: float | None = None) -> Any:
        """Say that a group is done with a sample, or with many: see `tiffin.Store.ack`."""
        return await self._store.ack(sample, group, timeout=timeout)

    async def stats(self, *, timeout: float | None = None) -> Stats:
        """How full the store is, and more: see `tiffin.Store.stats`."""
        return await self._store.stats(timeout=timeout)

    async def routes(self, *, timeout: float | None = None) -> list[Route]:
        """How bytes go to and from the nodes: see `tiffin.Store.routes`."""
        return await self._store.routes(timeout=timeout)

    async def close(self, *, timeout: float | None = None) -> None:
        """Let go of the store: see `tiffin.Store.close`."""
        await self._store.close(timeout=timeout)

    @property
    def address(self) -> str:
        """Where other processes reach the store."""
        return self._store.address

    @property
    def namespace(self) -> str:
        """The namespace of all keys."""
        return self._store.namespace

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._store.is_closed

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self._store).replace("tiffin.Store", "tiffin.aio.AsyncStore", 1)


class AsyncLease:
    """A `tiffin.Lease` whose methods are coroutines. Made by `AsyncStore.lease`.

    >>> import asyncio
    >>> import tiffin.aio
    >>> async def main():
    ...     async with await tiffin.aio.connect() as store:
    ...         ref = await store.put_sample("s", {"ids": b"abc"})
    ...         async with await store.lease(ref) as lease:
    ...             return bytes((await lease.tensors())["ids"])
    >>> asyncio.run(main())
    b'abc'
    """

    __slots__ = ("_lease",)

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    async def tensors(
        self, names: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Read the tensors, or those with these names: see `tiffin.Lease.tensors`."""
        return await self._lease.tensors(names, timeout=timeout)

    async def release(self, *, timeout: float | None = None) -> None:
        """End the lease without consuming the sample: see `tiffin.Lease.release`."""
        await self._lease.release(timeout=timeout)

    @property
    def id(self) -> Key:
        """The sample's name."""
        return self._lease.id

    @property
    def generation(self) -> tuple[int, int]:
        """Which put of the name it is."""
        return self._lease.generation

    @property
    def manifest(self) -> Manifest:
        """What the sample is made of."""
        return self._lease.manifest

    @property
    def is_released(self) -> bool:
        """Whether it was released."""
        return self._lease.is_released

    async def __aenter__(self) -> AsyncLease:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    def __repr__(self) -> str:
        return repr(self._lease).replace("tiffin.Lease", "tiffin.aio.AsyncLease", 1)


def _given(missing: Any) -> dict[str, Any]:
    return {} if missing is ... else {"missing": missing}
