"""Mooncake's store for programs with an event loop."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from mooncake.store import MooncakeDistributedStore

_PREFIX = "async_"


class MooncakeDistributedStoreAsync(MooncakeDistributedStore):
    """A store with a coroutine `async_<name>` for every method `<name>`.

    The coroutine runs the method in the default executor of the running loop, and returns or raises the same.
    """

    def __getattr__(self, name: str) -> Any:
        if not name.startswith(_PREFIX):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        plain = name.removeprefix(_PREFIX)
        try:
            method = object.__getattribute__(self, plain)
        except AttributeError:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r} (nor {plain!r})"
            ) from None
        call = _in_executor(plain, method)
        # The next access finds it on the instance.
        self.__dict__[name] = call
        return call


def _in_executor(name: str, method: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, lambda: method(*args, **kwargs))

    call.__name__ = call.__qualname__ = f"{_PREFIX}{name}"
    call.__doc__ = f"`{name}`, in the default executor of the running loop."
    return call
