"""A storage backend for SGLang's HiCache: its pages in a Tiffin cluster.

SGLang loads it by name:

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{"backend_name": "tiffin",
      "module_path": "tiffin.integrations.sglang", "class_name": "TiffinHiCache", "address":
      "127.0.0.1:7400"}'

`extra_config` may also have `namespace`, `token`, `timeout` (seconds) and `tag`. The tag must change with
everything that changes the bytes of a page and is not in SGLang's hashes: a revision, a weight version, a
quantisation.

A page that the pool has in several pieces, such as keys and values, is as many objects. It counts only if
all of them exist. A page that was read in part does not count. No call raises, because HiCache never
restarts the thread that makes it.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tiffin
from tiffin._extras import need

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
    """The implementation of SGLang's `HiCacheStorage`."""

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

    # Pages in the host's pool.

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        names, buffers, sizes = self._pieces(keys, host_indices)
        read = self._all(lambda: self.store.get_into(names, buffers), len(names))
        whole = [got == size for got, size in zip(read, sizes, strict=True)]
        return _together(whole, len(keys))

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        names, buffers, _ = self._pieces(keys, host_indices)
        stored = self._all(lambda: self.store.put(names, buffers, on_exists="keep"), len(names))
        return _together([isinstance(it, bool) for it in stored], len(keys))

    # Pages in memory that the caller passes.

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

    # Lookups.

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        """The number of leading keys that exist. Objects that are only on a disk are promoted."""
        # The pool knows the pieces of a page. Without a pool, a page is one object.
        pieces = self._pieces_per_page()
        names = [name for key in keys for name in self._of(key, pieces)]
        found = self._all(lambda: self.store.exists(names, prefetch="leading"), len(names))
        whole = _together([it is True for it in found], len(keys))
        return whole.index(False) if False in whole else len(whole)

    def clear(self) -> None:
        self._all(lambda: [self.store.delete_prefix(self.prefix, force=True)], 1)

    def get_stats(self) -> None:
        return None

    # Helpers.

    def _names(self, keys: Sequence[str]) -> list[str]:
        return [f"{self.prefix}{key}" for key in keys]

    def _of(self, key: str, pieces: int) -> list[str]:
        return (
            [f"{self.prefix}{key}/{piece}" for piece in range(pieces)] if pieces else [f"{self.prefix}{key}"]
        )

    def _pieces_per_page(self) -> int:
        """The number of pieces of a page in the pool; 0 if the caller passes pages."""
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
        """The result of a call for each key; an error takes the place of its result."""
        try:
            return call()
        except tiffin.Error as error:
            _log.warning("HiCache: %s", error)
            return error.results or [error] * count


def _prefix(config: Any, tag: str) -> str:
    """A prefix of everything that changes the bytes of a page and is not in SGLang's hashes."""

    def of(name: str, default: Any) -> Any:
        return getattr(config, name, default)

    # The ranks of a model with latent attention have the same bytes, so that they share them.
    tensor = "all" if of("is_mla_model", False) else f"{of('tp_rank', 0)}of{of('tp_size', 1)}"
    pipeline = f"{of('pp_rank', 0)}of{of('pp_size', 1)}"
    context = f"{of('attn_cp_rank', 0)}of{of('attn_cp_size', 1)}"
    layout = "page" if of("is_page_first_layout", False) else "layer"
    words = [of("model_name", None) or "", tag, f"t{tensor}", f"p{pipeline}", f"c{context}", layout]
    # Each word has its length, so that no two lists of words give the same text.
    return "sglang/" + "".join(f"{len(word)}:{word}/" for word in words)


def _first_page(pool: Any) -> Any:
    return need("numpy", "tiffin.integrations.sglang", "sglang").arange(getattr(pool, "page_size", 1))


def _together(pieces: list[bool], keys: int) -> list[bool]:
    """Whether all pieces of each key are valid."""
    each = len(pieces) // max(1, keys)
    return [all(pieces[key * each : (key + 1) * each]) for key in range(keys)]
