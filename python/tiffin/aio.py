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

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from . import _arguments, _settings
from ._native import Store
from ._native import connect as _connect
from .types import ObjectInfo, Route, Stats

if TYPE_CHECKING:
    from ._native import Key, OnExists

__all__ = ["AsyncStore", "connect"]


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

    async def list(self, prefix: Key = "", *, timeout: float | None = None) -> list[ObjectInfo]:
        """All objects whose key starts so: see `tiffin.Store.list`."""
        return await self._store.list(prefix, timeout=timeout)

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


def _given(missing: Any) -> dict[str, Any]:
    return {} if missing is ... else {"missing": missing}
