"""The same store for asyncio: every method is a coroutine, and nothing blocks the event loop.

>>> import asyncio
>>> import tiffin.aio
>>> async def main():
...     async with tiffin.aio.connect() as store:
...         await store.put({"a": b"1", "b": b"2"})
...         return await asyncio.gather(store.get("a"), store.get("b"))
>>> asyncio.run(main())
[b'1', b'2']

Cancelling a task stops its call. A put may then have stored its object or not. The content of a buffer that
was being filled is unspecified, and its memory is held until no operation uses it. A value must not change
before its put has ended.

The methods are those of `tiffin.Store`, `tiffin.Lease`, `tiffin.Reservation`, `tiffin.Prefetch` and
`tiffin.QueuedGet`. The code below derives them, and `stubs.py` writes `aio.pyi`.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import AsyncIterator, Coroutine, Generator, Iterable
from typing import Any

from . import _arguments
from ._native import Lease, Prefetch, QueuedGet, Reservation, Store
from ._native import connect as _connect
from ._scan import scan_async
from .types import ObjectInfo

__all__ = ["AsyncLease", "AsyncPrefetch", "AsyncQueuedGet", "AsyncReservation", "AsyncStore", "connect"]


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
) -> _Opening:
    """Connect to a store; the arguments are those of `tiffin.connect`.

    `async with tiffin.aio.connect() as store` closes the store at the end; `await tiffin.aio.connect()`
    leaves that to the caller.
    """
    tls = (tls_ca, tls_cert, tls_key)
    arguments = _arguments(address, memory, ssd, namespace, token, tls, shared_memory, timeout)

    async def opened() -> AsyncStore:
        return AsyncStore(await _connect(**arguments, is_async=True))

    return _Opening(opened())


class _Opening(Coroutine[Any, Any, Any]):
    """A coroutine whose result is a context manager, and which can be used with `async with` itself."""

    __slots__ = ("_coroutine", "_opened")

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> Any:
        self._opened = await self._coroutine
        return await self._opened.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        await self._opened.__aexit__(*error)


#: Methods whose results end with an `async with`.
_OPENING = {"tiffin.Store.lease", "tiffin.Store.reserve"}


class _Twin:
    """Forwards attributes to the original, whose answers are futures."""

    __slots__ = ("_twin",)
    _original: type

    def __init__(self, original: Any) -> None:
        self._twin = original

    def __init_subclass__(cls) -> None:
        """Give the class all methods of the original, except those that Python calls itself."""
        for name, member in vars(cls._original).items():
            if name.startswith("_"):
                continue
            make = _property if inspect.isdatadescriptor(member) else _coroutine
            if name in vars(cls):
                vars(cls)[name].__signature__ = inspect.signature(member)
            else:
                setattr(cls, name, make(f"tiffin.{cls._original.__name__}.{name}", member))

    async def __aenter__(self) -> Any:
        return self

    def __repr__(self) -> str:
        name = type(self)._original.__name__
        return repr(self._twin).replace(f"tiffin.{name}", f"tiffin.aio.Async{name}", 1)


def _property(_: str, member: Any) -> property:
    return property(lambda self: member.__get__(self._twin), doc=member.__doc__)


def _coroutine(origin: str, member: Any) -> Any:
    async def call(self, *arguments, **options):
        answer = await member(self._twin, *arguments, **options)
        return [_awaited(it) for it in answer] if isinstance(answer, list) else _awaited(answer)

    method: Any = functools.update_wrapper(call, member)
    if origin in _OPENING:
        method = functools.update_wrapper(lambda *given, **options: _Opening(call(*given, **options)), member)
    # The original is not Python code, which doctest of some releases of Python 3.12 expects when it
    # unwraps.
    del method.__wrapped__
    method.__signature__ = inspect.signature(member)
    method.__doc__ = f"{inspect.getdoc(member).partition('.')[0]}. A coroutine: see `{origin}`."
    return method


def _awaited(answer: Any) -> Any:
    twin = _TWINS.get(type(answer))
    return answer if twin is None else twin(answer)


class AsyncStore(_Twin):
    """A `tiffin.Store` whose methods are coroutines. Made by `tiffin.aio.connect`."""

    __slots__ = ()
    _original = Store

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def scan(
        self, prefix: str | bytes = "", *, pinned_by: str | None = None, timeout: float | None = None
    ) -> AsyncIterator[ObjectInfo]:
        """Iterate over objects with `async for`: see `tiffin.Store.scan`."""
        return scan_async(self._twin, prefix, pinned_by, timeout)

    async def __aiter__(self) -> AsyncIterator[str | bytes]:
        async for info in self.scan():
            yield info.key


class AsyncLease(_Twin):
    """A `tiffin.Lease` whose methods are coroutines. Made by `AsyncStore.lease`.

    >>> import asyncio
    >>> import tiffin.aio
    >>> async def main():
    ...     async with tiffin.aio.connect() as store:
    ...         ref = await store.put_sample("s", {"ids": b"abc"})
    ...         async with store.lease(ref) as lease:
    ...             return bytes((await lease.tensors())["ids"])
    >>> asyncio.run(main())
    b'abc'
    """

    __slots__ = ()
    _original = Lease

    async def __aexit__(self, *_: object) -> None:
        await self.release()


class AsyncReservation(_Twin):
    """A `tiffin.Reservation` whose methods are coroutines. Made by `AsyncStore.reserve`.

    >>> import asyncio
    >>> import tiffin.aio
    >>> async def main():
    ...     async with tiffin.aio.connect() as store:
    ...         async with store.reserve("k", 5) as reservation:
    ...             await reservation.put(b"hello")
    ...         return await store.get("k")
    >>> asyncio.run(main())
    b'hello'
    """

    __slots__ = ()
    _original = Reservation

    async def __aexit__(self, *_: object) -> None:
        if self.is_held:
            await self.release()


class AsyncPrefetch(_Twin):
    """A `tiffin.Prefetch` whose methods are coroutines. Made by `AsyncStore.prefetch`.

    Awaiting it awaits its result.

    >>> import asyncio
    >>> import tiffin.aio
    >>> async def main():
    ...     async with tiffin.aio.connect() as store:
    ...         await store.put("a", b"1")
    ...         prefetch = await store.prefetch(["a", "b"])
    ...         return await prefetch
    >>> asyncio.run(main())
    ['resident', 'absent']
    """

    __slots__ = ()
    _original = Prefetch

    def __await__(self) -> Generator[Any, None, str | list[str]]:
        return self.result().__await__()


class AsyncQueuedGet(_Twin):
    """A `tiffin.QueuedGet` whose `result` is a coroutine. Made by `AsyncStore.get_into` with `stream=`."""

    __slots__ = ()
    _original = QueuedGet


_TWINS = {
    Lease: AsyncLease,
    Prefetch: AsyncPrefetch,
    QueuedGet: AsyncQueuedGet,
    Reservation: AsyncReservation,
}
