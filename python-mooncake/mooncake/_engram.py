"""`EngramStore`: embedding tables as objects, one per head, looked up by row."""

from typing import Any

from mooncake import _stores
from mooncake._codes import INVALID, NOT_FOUND

DIM_DEFAULT = 64
VOCAB_DEFAULT = 1024


class EngramStoreConfig:
    """The tables of one layer: the number of rows of each head's table, and the floats per row."""

    __module__ = "mooncake.store"
    __slots__ = ("embedding_dim", "table_vocab_sizes")

    def __init__(self) -> None:
        self.table_vocab_sizes: list[int] = [VOCAB_DEFAULT]
        self.embedding_dim: int = DIM_DEFAULT


class EngramStore:
    """The embedding tables of one layer. The table of head `h` is the object `engram:l<layer>:h<h>`:
    consecutive rows of float32."""

    __module__ = "mooncake.store"

    def __init__(self, layer_id: int, config: EngramStoreConfig, store: object = None) -> None:
        if not isinstance(layer_id, int) or not isinstance(config, EngramStoreConfig):
            raise TypeError("EngramStore(layer_id: int, config: EngramStoreConfig, store: object = None)")
        if config.embedding_dim <= 0:
            raise ValueError("EngramStoreConfig.embedding_dim must be positive")
        if not config.table_vocab_sizes:
            raise ValueError("EngramStoreConfig.table_vocab_sizes must not be empty")
        if min(config.table_vocab_sizes) <= 0:
            raise ValueError("EngramStoreConfig.table_vocab_sizes must contain only positive values")
        self._store = _stores.find(store, "EngramStore")
        self._sizes = [int(size) for size in config.table_vocab_sizes]
        self._dim = int(config.embedding_dim)
        self._keys = [f"engram:l{layer_id}:h{head}" for head in range(len(self._sizes))]

    def get_store_keys(self) -> list[str]:
        """Returns the keys of the tables, by head."""
        return list(self._keys)

    def get_num_heads(self) -> int:
        """Returns the number of tables."""
        return len(self._sizes)

    def get_embedding_dim(self) -> int:
        """Returns the number of floats of a row."""
        return self._dim

    def get_table_vocab_sizes(self) -> list[int]:
        """Returns the number of rows of each table."""
        return list(self._sizes)

    def populate(self, embedding_buffers: list[Any]) -> None:
        """Store all tables, or none and raise `RuntimeError`."""
        import numpy as np  # type: ignore[import-not-found, unused-ignore]

        if not isinstance(embedding_buffers, list):
            raise TypeError("populate(embedding_buffers: list)")
        if len(embedding_buffers) != len(self._keys):
            raise RuntimeError("embedding_buffers size must match num_heads")
        tables = []
        for buffer, rows in zip(embedding_buffers, self._sizes, strict=True):
            if not isinstance(buffer, np.ndarray):
                raise RuntimeError("embedding_buffers must be NumPy arrays")
            if buffer.ndim != 2:
                raise RuntimeError("each embedding buffer must be 2D [N_h, D]")
            if buffer.shape != (rows, self._dim):
                raise RuntimeError(
                    "embedding buffer shape does not match get_table_vocab_sizes()/get_embedding_dim()"
                )
            tables.append(np.ascontiguousarray(buffer, dtype=np.float32))
        if self._store is None or any(found != 0 for found in self._store.batch_is_exist(self._keys)):
            raise RuntimeError("populate failed")
        addresses, sizes = [it.ctypes.data for it in tables], [it.nbytes for it in tables]
        codes = self._store.batch_put_from(self._keys, addresses, sizes)
        if any(codes):
            stored = [key for key, code in zip(self._keys, codes, strict=True) if code == 0]
            self._store.batch_remove(stored, force=True)
            raise RuntimeError("populate failed")

    def lookup(self, row_ids: Any) -> Any:
        """Returns the rows `[B, L, H, D]` for row numbers `[B, L, H]`, an array or nested lists."""
        import numpy as np  # type: ignore[import-not-found, unused-ignore]

        rows = self._rows(np, row_ids)
        is_valid = rows is not None and rows.size > 0 and rows.shape[2] == len(self._sizes)
        if not is_valid or self._store is None:
            raise RuntimeError("EngramStore lookup failed")
        if (rows < 0).any() or (rows >= np.array(self._sizes)).any():
            raise RuntimeError("EngramStore lookup failed")
        tables = [np.empty((size, self._dim), dtype=np.float32) for size in self._sizes]
        addresses, sizes = [it.ctypes.data for it in tables], [it.nbytes for it in tables]
        if self._store.batch_get_into(self._keys, addresses, sizes) != sizes:
            raise RuntimeError("EngramStore lookup failed")
        found = np.empty((*rows.shape, self._dim), dtype=np.float32)
        for head, table in enumerate(tables):
            found[:, :, head] = table[rows[:, :, head]]
        return found

    def _rows(self, np: Any, row_ids: Any) -> Any:
        """The row numbers as an array; `None` for lists that are not rectangular."""
        if isinstance(row_ids, np.ndarray):
            if row_ids.ndim != 3:
                raise RuntimeError("row_ids array must have shape [B, L, H]")
            if row_ids.shape[2] != len(self._sizes):
                raise RuntimeError("row_ids last dimension must match num_heads")
            return row_ids if np.issubdtype(row_ids.dtype, np.integer) else None
        rows = list(row_ids)
        if not rows:
            raise RuntimeError("row_ids must not be empty")
        try:
            array = np.array(rows, dtype=object)
            if array.ndim != 3 or not all(isinstance(it, int) for it in array.flat):
                return None
            return array.astype(np.int64)
        except (OverflowError, ValueError):
            return None

    def remove_from_store(self, force: bool = False) -> int:
        """Remove the tables. Returns the number of removed tables; raises `RuntimeError` if one could not
        be removed."""
        codes = [INVALID] if self._store is None else self._store.batch_remove(self._keys, force)
        failed = [code for code in codes if code not in (0, NOT_FOUND)]
        if failed:
            raise RuntimeError(f"remove_from_store failed, rc={failed[0]}")
        return int(codes.count(0))
