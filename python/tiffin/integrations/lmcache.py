"""A remote connector for LMCache: its chunks in a Tiffin cluster. `docs/integrations/lmcache.md` has the
settings.

LMCache loads `TiffinAdapter` by name and calls it with a URL of the form `plugin://tiffin`; the address is in
the settings of the plugin. A URL of the form `tiffin://host:port` works as well.

A chunk is one object: LMCache's record of its shape, then its bytes. Threads make the calls, so that the
event loop never waits. A chunk of which less than everything was read does not count.
"""

from __future__ import annotations

import asyncio
import builtins
import concurrent.futures
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import tiffin
from tiffin._extras import need

if TYPE_CHECKING:
    ConnectorAdapter = object
    RemoteConnector = object
else:
    try:
        from lmcache.v1.storage_backend.connector import ConnectorAdapter
        from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector
    except ImportError:
        ConnectorAdapter = RemoteConnector = object

__all__ = ["TiffinAdapter", "TiffinConnector"]

_log = logging.getLogger("tiffin")

_T = TypeVar("_T")
_PLUGIN = "plugin://"
_URL = "tiffin://"
_TYPE = "tiffin"


class TiffinAdapter(ConnectorAdapter):
    """The implementation of LMCache's `ConnectorAdapter`, which makes connectors."""

    def __init__(self) -> None:
        if ConnectorAdapter is not object:
            super().__init__(_URL)  # type: ignore[call-arg]
        self.schema = _URL

    def can_parse(self, url: str) -> bool:
        name = url.removeprefix(_PLUGIN)
        return url.startswith(_URL) or (name != url and name.split(".", 1)[0] == _TYPE)

    def create_connector(self, context: Any) -> TiffinConnector:
        return TiffinConnector(
            context.loop,
            context.local_cpu_backend,
            context.config,
            plugin_name=getattr(context, "plugin_name", None),
            address=context.url.removeprefix(_URL).rstrip("/") if context.url.startswith(_URL) else None,
            metadata=getattr(context, "metadata", None),
        )


class TiffinConnector(RemoteConnector):
    """The implementation of LMCache's `RemoteConnector`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        local_cpu_backend: Any,
        config: Any,
        plugin_name: str | None = None,
        address: str | None = None,
        metadata: Any = None,
        *,
        store: Any = None,
    ) -> None:
        if RemoteConnector is not object and "metadata" in inspect.signature(super().__init__).parameters:
            # The scheduler has no memory of its own, only the record of the model.
            record = metadata or getattr(local_cpu_backend, "metadata", None)
            super().__init__(config, record)  # type: ignore[call-arg]
        settings = _settings(config, plugin_name or _TYPE)
        known = {name: settings[name] for name in ("namespace", "token", "timeout") if name in settings}
        self._is_own = store is None
        self.store: Any = (
            tiffin.connect(address or settings.get("address"), **known) if store is None else store
        )
        self.loop, self.local_cpu_backend = loop, local_cpu_backend
        self.prefix = f"lmcache/{settings.get('tag', '')}/"
        self._threads = concurrent.futures.ThreadPoolExecutor(
            int(settings.get("threads", 4)), "tiffin-lmcache"
        )

    # Lookups.

    async def exists(self, key: Any) -> bool:
        return await self._call(lambda: self.exists_sync(key))

    def exists_sync(self, key: Any) -> bool:
        return self.batched_contains([key]) == 1

    def support_batched_contains(self) -> bool:
        return True

    def batched_contains(self, keys: Sequence[Any]) -> int:
        """The number of leading chunks that exist. Those that are only on a disk are promoted."""
        try:
            found = self.store.exists(self._names(keys), prefetch="leading")
        except tiffin.Error as error:
            _log.warning("LMCache: %s", error)
            return 0
        return int(found.index(False)) if False in found else len(found)

    def support_batched_async_contains(self) -> bool:
        return True

    async def batched_async_contains(self, lookup_id: str, keys: Sequence[Any], pin: bool = False) -> int:
        return await self._call(lambda: self.batched_contains(keys))

    # Chunks.

    async def get(self, key: Any) -> Any:
        return (await self.batched_get([key]))[0]

    def support_batched_get(self) -> bool:
        return True

    async def batched_get(self, keys: Sequence[Any]) -> builtins.list[Any]:
        """The memory of each chunk, or `None`."""
        return await self._call(lambda: self._get(keys))

    def support_batched_get_non_blocking(self) -> bool:
        return True

    async def batched_get_non_blocking(self, lookup_id: str, keys: Sequence[Any]) -> builtins.list[Any]:
        """The memory of the leading chunks that could be read."""
        found = await self.batched_get(keys)
        leading = found.index(None) if None in found else len(found)
        for memory in found[leading:]:
            if memory is not None:
                memory.ref_count_down()
        return found[:leading]

    async def put(self, key: Any, memory_obj: Any) -> None:
        await self.batched_put([key], [memory_obj])

    def support_batched_put(self) -> bool:
        return True

    async def batched_put(self, keys: Sequence[Any], memory_objs: Sequence[Any]) -> None:
        await self._call(lambda: self._put(keys, memory_objs))

    def remove_sync(self, key: Any) -> bool:
        try:
            return bool(self.store.delete(self._name(key), force=True))
        except tiffin.Error as error:
            _log.warning("LMCache: %s", error)
            return False

    # The rest.

    async def list(self) -> builtins.list[str]:
        return await self._call(
            lambda: [_text(it.key).removeprefix(self.prefix) for it in self.store.scan(self.prefix)]
        )

    def support_ping(self) -> bool:
        return True

    async def ping(self) -> int:
        """0 if the store answers."""
        try:
            await self._call(lambda: self.store.exists(f"{self.prefix}ping"))
        except tiffin.Error as error:
            _log.warning("LMCache: %s", error)
            return 1
        return 0

    async def close(self) -> None:
        if self._is_own:
            await self._call(self.store.close)
        self._threads.shutdown(wait=False)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.prefix}>"

    # Helpers.

    async def _call(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _name(self, key: Any) -> str:
        return f"{self.prefix}{key.to_string()}"

    def _names(self, keys: Sequence[Any]) -> builtins.list[str]:
        return [self._name(key) for key in keys]

    def _put(self, keys: Sequence[Any], memory_objs: Sequence[Any]) -> None:
        record = _protocol().RemoteMetadata
        values = []
        for memory in memory_objs:
            data = memoryview(memory.byte_array).cast("B")
            told = record(len(data), memory.get_shapes(), memory.get_dtypes(), memory.get_memory_format())
            values.append(b"".join((told.serialize(), data)))
        # Each engine computes the same bytes for a chunk.
        self.store.put(self._names(keys), values, on_exists="keep")

    def _get(self, keys: Sequence[Any]) -> builtins.list[Any]:
        protocol = _protocol()
        size = int(protocol.get_remote_metadata_bytes())
        names = self._names(keys)
        told = self._each(lambda: self.store.get(names, None, range=(0, size)), len(names))
        found: builtins.list[Any] = [None] * len(names)
        places: builtins.list[int] = []
        for at, record in enumerate(told):
            if isinstance(record, bytes):
                it = protocol.RemoteMetadata.deserialize(record)
                found[at] = self.local_cpu_backend.allocate(it.shapes, it.dtypes, it.fmt)
                if found[at] is not None:
                    places.append(at)
        buffers = [memoryview(found[at].byte_array).cast("B") for at in places]
        ranges = [(size, len(buffer)) for buffer in buffers]
        read = self._each(
            lambda: self.store.get_into([names[at] for at in places], buffers, range=ranges), len(places)
        )
        for at, got, buffer in zip(places, read, buffers, strict=True):
            if got != len(buffer):
                found[at].ref_count_down()
                found[at] = None
        return found

    def _each(self, call: Callable[[], builtins.list[Any]], count: int) -> builtins.list[Any]:
        """The result of a call for each key; an error takes the place of its result."""
        if count == 0:
            return []
        try:
            return list(call())
        except tiffin.Error as error:
            _log.warning("LMCache: %s", error)
            return list(error.results or [error] * count)


def _protocol() -> Any:
    return need("lmcache.v1.protocol", "tiffin.integrations.lmcache", "lmcache")


def _text(key: str | bytes) -> str:
    return key if isinstance(key, str) else key.decode(errors="replace")


def _settings(config: Any, plugin: str) -> dict[str, Any]:
    """The settings of a plugin: those of its own name, over those of all plugins of this type."""
    extra = dict(getattr(config, "extra_config", None) or {})
    found: dict[str, Any] = {}
    for name in dict.fromkeys((_TYPE, plugin)):
        start = f"remote_storage_plugin.{name}."
        found |= {key.removeprefix(start): value for key, value in extra.items() if key.startswith(start)}
    known = {"address", "namespace", "token", "timeout", "tag", "threads", "module_path", "class_name"}
    if unknown := sorted(key for key in set(found) - known if "." not in key):
        raise ValueError(
            f"unknown settings of the plugin `{plugin}`: {unknown}\n\nhint: it may have {sorted(known)}"
        )
    return found
