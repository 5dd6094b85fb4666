"""A storage backend for SGLang's HiCache: its pages in a Tiffin cluster.

SGLang loads it by name:

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{"backend_name": "tiffin",
      "module_path": "tiffin.integrations.sglang", "class_name": "TiffinHiCache", "address":
      "127.0.0.1:7400"}'

`extra_config` may also have `namespace`, `token` and `timeout` (seconds), and `tag`, which is to change
with whatever changes the bytes of a page and is not in SGLang's hashes: a revision, a weight version, a
quantisation.

A page that the pool has in several pieces, as keys and values, is as many objects, and counts only if all are
there. Nothing that was read in part counts, and no call raises: HiCache never restarts the thread that
makes it.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tiffin

if TYPE_CHECKING:
    HiCacheStorage = object
else:
    try:
        from sglang.srt.mem_cache.hicache_storage import HiCacheStorage
    except ImportError:
        HiCacheStorage = object

__all__ = ["TiffinHiCache"]

_log = logging.getLogger("tiffin")


class TiffinHiCache(HiCacheStorage):
    """What SGLang calls a `HiCacheStorage`."""

    def __init__(
        self, storage_config: Any = None, kwargs: dict[str, Any] | None = None, *, store: Any = None
    ) -> None:
        extra = dict(getattr(storage_config, "extra_config", None) or {}) | dict(kwargs or {})
        known = {name: extra[name] for name in ("namespace", "token", "timeout") if name in extra}
        self.store = store if store is not None else tiffin.connect(extra.get("address"), **known)
        self.prefix = _prefix(storage_config, str(extra.get("tag", "")))
        self.mem_pool_host: Any = None

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host

    # Pages where they lie in the host's pool.

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        names, buffers, sizes = self._pieces(keys, host_indices)
        read = self._all(lambda: self.store.get_into(names, buffers), len(names))
        whole = [got == size for got, size in zip(read, sizes, strict=True)]
        return _together(whole, len(keys))

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        names, buffers, _ = self._pieces(keys, host_indices)
        stored = self._all(lambda: self.store.put(names, buffers, on_exists="keep"), len(names))
        return _together([isinstance(it, bool) for it in stored], len(keys))

    # Pages in memory that is handed over.

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location])[0]

    def batch_get(
        self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[Any]:
        targets = list(target_locations or [])
        if len(targets) != len(keys):
            return [None] * len(keys)
        read = self._all(lambda: self.store.get_into(self._names(keys), targets), len(keys))
        return [target if isinstance(got, int) else None for got, target in zip(read, targets, strict=True)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    def batch_set(
        self,
        keys: Sequence[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        values = list(values or [])
        if len(values) != len(keys) or any(value is None for value in values):
            return False
        put = lambda: self.store.put(self._names(keys), values, on_exists="keep")
        return all(isinstance(it, bool) for it in self._all(put, len(keys)))

    # What is there.

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        """How many of the keys, counted from the first, are there. What only a disk has comes into memory."""
        # Which pieces there are of a page the pool knows. Without one, a page is one object.
        pieces = self._pieces_per_page()
        names = [name for key in keys for name in self._of(key, pieces)]
        found = self._all(lambda: self.store.exists(names, prefetch="leading"), len(names))
        whole = _together([it is True for it in found], len(keys))
        return whole.index(False) if False in whole else len(whole)

    def clear(self) -> None:
        self._all(lambda: [self.store.delete_prefix(self.prefix, force=True)], 1)

    def get_stats(self) -> None:
        return None

    # What they share.

    def _names(self, keys: Sequence[str]) -> list[str]:
        return [f"{self.prefix}{key}" for key in keys]

    def _of(self, key: str, pieces: int) -> list[str]:
        return (
            [f"{self.prefix}{key}/{piece}" for piece in range(pieces)] if pieces else [f"{self.prefix}{key}"]
        )

    def _pieces_per_page(self) -> int:
        """How many pieces the pool has of a page; none where pages are handed over."""
        pool = self.mem_pool_host
        if pool is None or not hasattr(pool, "get_page_buffer_meta"):
            return 0
        if not hasattr(self, "_pieces_known"):
            addresses, _ = pool.get_page_buffer_meta(_first_page(pool))
            self._pieces_known = len(addresses)
        return self._pieces_known

    def _pieces(self, keys: Sequence[str], host_indices: Any) -> tuple[list[str], list[Any], list[int]]:
        addresses, sizes = self.mem_pool_host.get_page_buffer_meta(host_indices)
        each = len(addresses) // max(1, len(keys))
        names = [name for key in keys for name in self._of(key, each)]
        memory = [(ctypes.c_char * size).from_address(at) for at, size in zip(addresses, sizes, strict=True)]
        return names, memory, list(sizes)

    def _all(self, call: Callable[[], list[Any]], count: int) -> list[Any]:
        """What a call with many keys says of each; errors stand in their places."""
        try:
            return call()
        except tiffin.Error as error:
            _log.warning("HiCache: %s", error)
            return error.results or [error] * count


def _prefix(config: Any, tag: str) -> str:
    """Everything that changes the bytes of a page and is not in SGLang's hashes."""

    def of(name: str, default: Any) -> Any:
        return getattr(config, name, default)

    # The ranks of a model with latent attention have the same bytes, so they share them.
    tensor = "all" if of("is_mla_model", False) else f"{of('tp_rank', 0)}of{of('tp_size', 1)}"
    pipeline = f"{of('pp_rank', 0)}of{of('pp_size', 1)}"
    context = f"{of('attn_cp_rank', 0)}of{of('attn_cp_size', 1)}"
    layout = "page" if of("is_page_first_layout", False) else "layer"
    words = [of("model_name", None) or "", tag, f"t{tensor}", f"p{pipeline}", f"c{context}", layout]
    # Framed by their lengths, so that no two lists of words run together.
    return "sglang/" + "".join(f"{len(word)}:{word}/" for word in words)


def _first_page(pool: Any) -> Any:
    import numpy

    return numpy.arange(getattr(pool, "page_size", 1))


def _together(pieces: list[bool], keys: int) -> list[bool]:
    """Whether all pieces of each key are good."""
    each = len(pieces) // max(1, keys)
    return [all(pieces[key * each : (key + 1) * each]) for key in range(keys)]
