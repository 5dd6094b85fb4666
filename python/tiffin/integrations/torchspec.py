"""TorchSpec's use of `mooncake.store`, in one file: the calls of its `EagleMooncakeStore`.

A sample has four keys. They are put in one batch with a hard pin, read in one batch, and deleted right after.
With our drop-in (the wheel `tiffin-mooncake`) that is safe: a delete is immediate in spite of a lease, and a
reader that began before gets the old bytes or an error, never a mix. No thread for late deletes is needed.
Trainers call `setup` with a segment of 0; buffers are in host memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tiffin._extras import need

#: The suffixes of a sample's name in the keys of its tensors.
SUFFIXES = {"hidden_states": "_hs", "input_ids": "_ids", "target": "_tgt", "last_hidden_states": "_lhs"}
#: The answer of `mooncake.store` for a missing key.
_NO_SUCH_KEY = -704


class EagleStore:
    """Samples of hidden states under four keys each, in a `mooncake.store.MooncakeDistributedStore`.

    A sample is a mapping from some of `hidden_states`, `input_ids`, `target` and `last_hidden_states` to
    arrays. The reader passes the shapes and types that it expects.
    """

    def __init__(self, store: Any, *, hard_pin: bool = True) -> None:
        mooncake = need("mooncake.store", "tiffin.integrations.torchspec", package="tiffin-mooncake")
        self._store = store
        self._config = mooncake.ReplicateConfig()
        self._config.with_hard_pin = hard_pin

    def put(self, base: str, tensors: Mapping[str, Any]) -> list[str]:
        """Store a sample's tensors in one batch, directly from their memory, and return their keys."""
        np = need("numpy", "tiffin.integrations.torchspec", "numpy")

        arrays = {_key(base, name): np.ascontiguousarray(array) for name, array in tensors.items()}
        keys, pointers = list(arrays), [array.ctypes.data for array in arrays.values()]
        sizes = [array.nbytes for array in arrays.values()]
        for pointer, size in zip(pointers, sizes, strict=True):
            self._store.register_buffer(pointer, size)
        try:
            statuses = self._store.batch_put_from(keys, pointers, sizes, config=self._config)
        finally:
            for pointer in pointers:
                self._store.unregister_buffer(pointer)
        if any(status != 0 for status in statuses):
            self._store.batch_remove(keys, force=True)
            raise RuntimeError(
                f"sample `{base}` could not be stored: {dict(zip(keys, statuses, strict=True))}"
            )
        return keys

    def get(self, base: str, shapes: Mapping[str, tuple[tuple[int, ...], str]]) -> dict[str, Any]:
        """Read a sample's tensors in one batch into fresh memory."""
        np = need("numpy", "tiffin.integrations.torchspec", "numpy")

        arrays = {name: np.empty(shape, dtype) for name, (shape, dtype) in shapes.items()}
        keys = [_key(base, name) for name in arrays]
        pointers = [array.ctypes.data for array in arrays.values()]
        sizes = [array.nbytes for array in arrays.values()]
        counts = self._store.batch_get_into(keys, pointers, sizes)
        for key, count, size in zip(keys, counts, sizes, strict=True):
            if count not in (0, size):
                raise RuntimeError(f"`{key}` could not be read: {count} instead of {size} bytes")
        return arrays

    def get_bytes(self, base: str, names: list[str]) -> dict[str, bytes]:
        """The same through memory of the store, which is held until it was copied."""
        import ctypes

        handles = self._store.batch_get_buffer([_key(base, name) for name in names])
        if missing := [name for name, handle in zip(names, handles, strict=True) if handle is None]:
            raise RuntimeError(f"sample `{base}` has no {missing}")
        return {
            name: ctypes.string_at(handle.ptr(), handle.size())
            for name, handle in zip(names, handles, strict=True)
        }

    def delete(
        self,
        base: str,
        names: list[str] | None = None,
        *,
        tries_max: int = 3,
        sleep: Callable[[float], object] = time.sleep,
    ) -> bool:
        """Delete a sample right after it was read, and return whether all of it is removed."""
        keys = [_key(base, name) for name in names or SUFFIXES]
        for attempt in range(tries_max):
            if attempt:
                sleep(0.5)
            statuses = self._store.batch_remove(keys, force=True)
            left = [key for key, it in zip(keys, statuses, strict=True) if it not in (None, 0, _NO_SUCH_KEY)]
            if not left:
                return True
            keys = left
        return False


def _key(base: str, name: str) -> str:
    return base + SUFFIXES[name]
