"""The same store for asyncio: every method is a coroutine, and nothing blocks the event loop.

>>> import asyncio
>>> import tiffin.aio
>>> async def main():
...     async with await tiffin.aio.connect() as store:
...         await store.put({"a": b"1", "b": b"2"})
...         return await asyncio.gather(store.get("a"), store.get("b"))
>>> asyncio.run(main())
[b'1', b'2']

Cancelling a task stops its call. A put may then have stored its object or not. The content of a buffer that
was being filled is unspecified, and its memory is held until no operation uses it. A value must not change
before its put has ended.

The methods are those of `tiffin.Store`, `tiffin.Lease`, `tiffin.Reservation` and `tiffin.Prefetch`. The
code below derives them, and `stubs.py` writes `aio.pyi`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Generator, Iterable
from typing import Any

from . import _arguments
from ._native import Lease, Prefetch, Reservation, Store
from ._native import connect as _connect

__all__ = ["AsyncLease", "AsyncPrefetch", "AsyncReservation", "AsyncStore", "connect"]


async def connect(
    address: str | None = None,
    *,
    memory: int | str | None = None,
    ssd: str | Iterable[str] = (),
    namespace: str | None = None,
    token: str | None = None,
    shared_memory: bool | None = None,
    timeout: float | None = None,
) -> AsyncStore:
    """Connect to a store; the arguments are those of `tiffin.connect`."""
    arguments = _arguments(address, memory, ssd, namespace, token, shared_memory, timeout)
    return AsyncStore(await _connect(**arguments, is_async=True))


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


class AsyncLease(_Twin):
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

    __slots__ = ()
    _original = Lease

    async def __aexit__(self, *_: object) -> None:
        await self.release()


class AsyncReservation(_Twin):
    """A `tiffin.Reservation` whose methods are coroutines. Made by `AsyncStore.reserve`.

    >>> import asyncio
    >>> import tiffin.aio
    >>> async def main():
    ...     async with await tiffin.aio.connect() as store:
    ...         async with await store.reserve("k", 5) as reservation:
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
    ...     async with await tiffin.aio.connect() as store:
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


_TWINS = {Lease: AsyncLease, Prefetch: AsyncPrefetch, Reservation: AsyncReservation}
