"""A storage backend for SGLang's HiCache: its pages in a Tiffin cluster. `docs/integrations/sglang.md` has
the flags.

SGLang loads the class by name, and passes the settings of its flag as `extra_config`:

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{"backend_name": "tiffin",
      "module_path": "tiffin.integrations.sglang", "class_name": "TiffinHiCache", "interface_v1": 1,
      "address": "127.0.0.1:7400"}'

With `interface_v1` the bytes move between the pool of the host and the store without a copy in between. A
page that the pool has in several pieces, such as keys and values, is as many objects, and it counts only if
all of them exist. Without `interface_v1` SGLang passes each page in memory of its own, and a page is one
object.

Models with several pools (sliding windows, recurrent state, draft models) use the methods that end in `v2`.
A page that was read in part does not count. No call raises, because HiCache never restarts the thread that
makes it.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import tiffin
from tiffin._extras import need

if TYPE_CHECKING:
    HiCacheStorage = object
    _Result: Any = None
else:
    try:
        from sglang.srt.mem_cache.hicache_storage import HiCacheStorage
    except ImportError:
        HiCacheStorage = object
    try:
        from sglang.srt.mem_cache.hicache_storage import PoolTransferResult as _Result
    except ImportError:
        _Result = None

__all__ = ["Found", "TiffinHiCache"]

_log = logging.getLogger("tiffin")

#: The settings in `extra_config` that `tiffin.connect` takes.
_CONNECT = ("namespace", "token", "timeout")
#: Those that SGLang reads itself, or that name this class.
_OTHER = ("address", "tag", "backend_name", "module_path", "class_name", "interface_v1")
#: The pool of keys and values, which every model has.
_KV = "kv"


@dataclass
class Found:
    """The answer of `batch_exists_v2` without SGLang: the fields of its `PoolTransferResult`."""

    kv_hit_pages: int
    extra_pool_hit_pages: dict[str, int]
    restorable_prefix_pages: list[int] | None = None


class TiffinHiCache(HiCacheStorage):
    """The implementation of SGLang's `HiCacheStorage`."""

    def __init__(
        self, storage_config: Any = None, kwargs: dict[str, Any] | None = None, *, store: Any = None
    ) -> None:
        extra = dict(getattr(storage_config, "extra_config", None) or {}) | dict(kwargs or {})
        if unknown := sorted(set(extra) - {*_CONNECT, *_OTHER}):
            _log.warning("HiCache: settings of `extra_config` that Tiffin does not have: %s", unknown)
        known = {name: extra[name] for name in _CONNECT if name in extra}
        self._is_own = store is None
        self.store: Any = tiffin.connect(extra.get("address"), **known) if store is None else store
        self._config, self._tag = storage_config, str(extra.get("tag", ""))
        #: Whether SGLang passes places in the pool of the host. `None`: as soon as there is a pool.
        self._in_place = bool(extra["interface_v1"]) if "interface_v1" in extra else None
        self.prefix = _prefix(storage_config, self._tag, is_shared=_is_replicated(storage_config))
        self.mem_pool_host: Any = None
        self.registered_pools: dict[str, Any] = {}
        self._pieces_known: dict[str, int] = {}

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host
        self._pieces_known.pop(_KV, None)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        self.registered_pools[_text(host_pool_name)] = host_pool
        self._pieces_known.pop(_text(host_pool_name), None)

    def on_host_pools_registered(self) -> None:
        """Nothing depends on the set of pools."""

    # Pages in the host's pool.

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._read(_KV, keys, host_indices)

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._write(_KV, keys, host_indices)

    # Pages in several pools of the host.

    def batch_get_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        return {it.name: self._read(_text(it.name), it.keys or [], it.host_indices) for it in transfers}

    def batch_set_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        return {it.name: self._write(_text(it.name), it.keys or [], it.host_indices) for it in transfers}

    def batch_exists_v2(
        self, keys: Sequence[str], pool_transfers: Sequence[Any] | None = None, extra_info: Any = None
    ) -> Any:
        """The longest prefix that every pool can restore.

        A pool of `all_pages` needs every page of the prefix. One of `trailing_pages` needs only the last
        ones, as many as the transfer has keys, so that it can restore some prefixes and not others.
        """
        pages = len(keys) if self._is_logical(_KV) else self.batch_exists(keys)
        hits: dict[Any, int] = {_KV: pages} if pages else {}
        usable = list(range(1, pages + 1))
        for transfer in pool_transfers or ():
            if not usable:
                break
            restorable = self._restorable(transfer, keys[:pages])
            if restorable is None:
                continue
            if restorable:
                hits[transfer.name] = restorable[-1]
            allowed = set(restorable)
            usable = [length for length in usable if length in allowed]
        return _result(usable[-1] if usable else 0, hits, usable)

    # Pages in memory that the caller passes.

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location])[0]

    def batch_get(
        self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[Any]:
        targets = list(target_locations or [])
        if len(targets) != len(keys) or any(target is None for target in targets):
            return [None] * len(keys)
        if self._is_logical(_KV):
            return targets
        read = self._all(lambda: self.store.get_into(self._names(keys), targets), len(keys))
        return [
            target if isinstance(got, int) and got == _nbytes(target) else None
            for got, target in zip(read, targets, strict=True)
        ]

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
        if self._is_logical(_KV):
            return True
        put = lambda: self.store.put(self._names(keys), values, on_exists="keep")
        return all(isinstance(it, bool) for it in self._all(put, len(keys)))

    # Lookups.

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        """The number of leading keys that exist. Objects that are only on a disk are promoted."""
        if self._is_logical(_KV):
            return 0
        present = self._present(_KV, keys, "leading")
        return present.index(False) if False in present else len(present)

    def clear(self) -> bool:
        """Delete the pages of all ranks that have this model and tag."""
        deleted = self._all(
            lambda: [self.store.delete_prefix(_model(self._config, self._tag), force=True)], 1
        )
        return isinstance(deleted[0], int)

    def get_stats(self) -> None:
        return None

    def close(self) -> None:
        if self._is_own:
            self.store.close()

    # Helpers.

    def _names(self, keys: Sequence[str]) -> list[str]:
        return [f"{self.prefix}page/{key}" for key in keys]

    def _pieces_of(self, pool: str, keys: Sequence[str], each: int) -> list[str]:
        prefix = self._prefix_of(pool)
        return [f"{prefix}{pool}/{key}/{piece}" for key in keys for piece in range(each)]

    def _prefix_of(self, pool: str) -> str:
        """The prefix of a pool's pages: that of all ranks only where all ranks have the same bytes."""
        # SGLang shards recurrent state over tensor ranks, and the heads of a plain draft model.
        is_sharded = pool == "mamba" or (
            pool.startswith("draft") and "MHA" in type(self.registered_pools.get(pool)).__name__
        )
        if is_sharded and _is_replicated(self._config):
            return _prefix(self._config, self._tag, is_shared=False)
        return self.prefix

    def _pool(self, pool: str) -> Any:
        return self.mem_pool_host if pool == _KV else self.registered_pools.get(pool)

    def _is_logical(self, pool: str) -> bool:
        """Whether the pool only counts pages: its bytes are in other pools."""
        memory = self._pool(pool)
        return memory is not None and getattr(memory, "kv_buffer", memory) is None and _is_empty(memory)

    def _is_in_place(self, pool: str) -> bool:
        if pool != _KV:
            return True
        if self._in_place is None:
            return hasattr(self.mem_pool_host, "get_page_buffer_meta")
        return self._in_place

    def _read(self, pool: str, keys: Sequence[str], host_indices: Any) -> list[bool]:
        if self._is_logical(pool):
            return [True] * len(keys)

        def read() -> list[bool]:
            names, buffers, sizes = self._places(pool, keys, host_indices)
            found = self._all(lambda: self.store.get_into(names, buffers), len(names))
            whole = [got == size for got, size in zip(found, sizes, strict=True)]
            return _together(whole, len(keys))

        return self._or_false(read, len(keys))

    def _write(self, pool: str, keys: Sequence[str], host_indices: Any) -> list[bool]:
        if self._is_logical(pool):
            return [True] * len(keys)

        def write() -> list[bool]:
            names, buffers, _ = self._places(pool, keys, host_indices)
            stored = self._all(lambda: self.store.put(names, buffers, on_exists="keep"), len(names))
            return _together([isinstance(it, bool) for it in stored], len(keys))

        return self._or_false(write, len(keys))

    def _present(self, pool: str, keys: Sequence[str], ahead: str) -> list[bool]:
        def present() -> list[bool]:
            names = self._names(keys)
            if self._is_in_place(pool):
                names = self._pieces_of(pool, keys, self._pieces_per_page(pool))
            found = self._all(lambda: self.store.exists(names, prefetch=ahead), len(names))
            return _together([it is True for it in found], len(keys))

        return self._or_false(present, len(keys))

    def _restorable(self, transfer: Any, keys: Sequence[str]) -> list[int] | None:
        """The lengths of prefixes that a pool can restore; `None` if it has no say."""
        policy, pool = _text(getattr(transfer, "hit_policy", "all_pages")), _text(transfer.name)
        if policy == "all_pages":
            present = self._present(pool, keys, "leading")
            return list(range(1, (present.index(False) if False in present else len(present)) + 1))
        if policy != "trailing_pages":
            return None
        window = max(1, len(transfer.keys or ()))
        present = self._present(pool, keys, "none")
        lengths = range(1, len(keys) + 1)
        ends = [length for length in lengths if all(present[max(0, length - window) : length])]
        if ends:
            # Only the pages of the longest prefix are about to be read.
            self._present(pool, keys[max(0, ends[-1] - window) : ends[-1]], "all")
        return ends

    def _pieces_per_page(self, pool: str) -> int:
        if pool not in self._pieces_known:
            memory = self._pool(pool)
            addresses, _ = memory.get_page_buffer_meta(_first_page(memory))
            self._pieces_known[pool] = len(addresses)
        return self._pieces_known[pool]

    def _places(
        self, pool: str, keys: Sequence[str], host_indices: Any
    ) -> tuple[list[str], list[Any], list[int]]:
        addresses, sizes = self._pool(pool).get_page_buffer_meta(host_indices)
        each, rest = divmod(len(addresses), max(1, len(keys)))
        if rest:
            raise ValueError(f"{len(addresses)} pieces do not belong to {len(keys)} pages")
        memory = [(ctypes.c_char * size).from_address(at) for at, size in zip(addresses, sizes, strict=True)]
        return self._pieces_of(pool, keys, each), memory, list(sizes)

    def _all(self, call: Callable[[], list[Any]], count: int) -> list[Any]:
        """The result of a call for each key; an error takes the place of its result."""
        try:
            return call()
        except tiffin.Error as error:
            _log.warning("HiCache: %s", error)
            return error.results or [error] * count

    def _or_false(self, call: Callable[[], list[bool]], count: int) -> list[bool]:
        """The same for a pool that refuses: with an unsupported layout, no page counts."""
        try:
            return call()
        except Exception:
            _log.exception("HiCache: the pool of the host refused a call")
            return [False] * count


def _text(name: Any) -> str:
    """The name of a pool or a policy: text, or a member of SGLang's enumerations."""
    return str(getattr(name, "value", name))


def _is_empty(pool: Any) -> bool:
    return bool(getattr(pool, "size_per_token", 0) == 0)


def _nbytes(target: Any) -> int:
    """The size of a target: an array, a tensor or another buffer."""
    return int(target.nbytes) if hasattr(target, "nbytes") else memoryview(target).nbytes


def _result(pages: int, hits: dict[Any, int], usable: list[int]) -> Any:
    kind = Found if _Result is None else _Result
    values: dict[str, Any] = {"kv_hit_pages": pages, "extra_pool_hit_pages": hits}
    values["restorable_prefix_pages"] = usable
    # Older releases have no field for the prefixes.
    return kind(**{field.name: values[field.name] for field in fields(kind) if field.name in values})


def _is_replicated(config: Any) -> bool:
    """Whether the ranks have the same bytes, as those of a model with latent attention, and share them."""
    return bool(getattr(config, "is_mla_model", False))


def _model(config: Any, tag: str) -> str:
    return "sglang/" + _words([getattr(config, "model_name", None) or "", tag])


def _prefix(config: Any, tag: str, *, is_shared: bool) -> str:
    """A prefix of everything that changes the bytes of a page and is not in SGLang's hashes."""

    def of(name: str, default: Any) -> Any:
        return getattr(config, name, default)

    tensor = "all" if is_shared else f"{of('tp_rank', 0)}of{of('tp_size', 1)}"
    pipeline = f"{of('pp_rank', 0)}of{of('pp_size', 1)}"
    context = f"{of('attn_cp_rank', 0)}of{of('attn_cp_size', 1)}"
    layout = "page" if of("is_page_first_layout", False) else "layer"
    # Context parallelism of decoding gives each of its ranks other tokens of a page.
    decode = f"{of('dcp_rank', 0)}of{of('dcp_size', 1)}"
    return _model(config, tag) + _words([f"t{tensor}", f"p{pipeline}", f"c{context}", f"d{decode}", layout])


def _words(words: Sequence[str]) -> str:
    """Each word has its length, so that no two lists of words give the same text."""
    return "".join(f"{len(word)}:{word}/" for word in words)


def _first_page(pool: Any) -> Any:
    """The places of the first page: a tensor where torch is installed, as it is with SGLang."""
    size = getattr(pool, "page_size", 1) or 1
    try:
        return need("torch", "tiffin.integrations.sglang", "sglang").arange(size)
    except ImportError:
        return need("numpy", "tiffin.integrations.sglang", "sglang").arange(size)


def _together(pieces: list[bool], keys: int) -> list[bool]:
    """Whether all pieces of each key are valid."""
    each = len(pieces) // max(1, keys)
    return [each > 0 and all(pieces[key * each : (key + 1) * each]) for key in range(keys)]
