"""The worker half of the connector for vLLM: copies blocks between the device and a Tiffin cluster.

A page is one object for each rank: the bytes of its block in all layers, in the order in which vLLM registers
them, and a digest of their layout. A page of another layout is not loaded, so that two deployments that share
a name and not a layout never read each other's bytes.

Every copy of the device runs on a stream of its own, after the work that vLLM had submitted. Threads move the
pages of a request one batch after the other, through memory of the host that is bounded by
`STAGING_BYTES_MAX` for each thread. vLLM calls all methods from one thread.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tiffin
from tiffin import kv
from tiffin._extras import need

if TYPE_CHECKING:
    from .vllm import Meta, Page

_log = logging.getLogger("tiffin")

#: Memory of the host through which one thread moves pages. A page that is larger moves alone.
STAGING_BYTES_MAX = 64 << 20
_DIGEST_BYTES = 16

Job = concurrent.futures.Future[None]


class WorkerHalf:
    """Loads and saves the blocks that the scheduler names, for one rank."""

    def __init__(
        self, store: Any, rank_part: kv.RankPart, num_blocks: int | None = None, *, threads: int = 2
    ) -> None:
        self.store, self.rank_part, self.num_blocks = store, rank_part, num_blocks
        self._blocks: _Blocks | None = None
        self._threads = concurrent.futures.ThreadPoolExecutor(threads, "tiffin-vllm")
        self._saves: dict[str, list[Job]] = {}
        self._loads: dict[str, Job] = {}
        #: Requests that ended while their saves ran, and whose blocks vLLM keeps until they are reported.
        self._ending: set[str] = set()
        self._errors: set[int] = set()
        self._lock = threading.Lock()

    def register(self, kv_caches: Mapping[str, Any]) -> None:
        """The memory of all layers."""
        self._blocks = _Blocks(kv_caches, self.num_blocks)

    def load(self, meta: Meta) -> None:
        """Start to load pages into blocks that no request uses yet."""
        for id, pages in meta.loads.items():
            ready = self._memory().mark()
            self._loads[id] = self._threads.submit(self._load, meta.roots[id], pages, ready)

    def save(self, meta: Meta) -> None:
        """Start to save the blocks that this step has filled."""
        for id, pages in meta.saves.items():
            ready = self._memory().mark()
            job = self._threads.submit(self._save, meta.roots[id], pages, ready)
            self._saves.setdefault(id, []).append(job)

    def finished(self, ended: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """The ended requests whose saves are over, and the requests whose loads are over."""
        self._ending |= ended & self._saves.keys()
        sent = {id for id in self._ending if all(job.done() for job in self._saves[id])}
        for id in sent:
            del self._saves[id]
        self._ending -= sent
        received = {id for id, job in self._loads.items() if job.done()}
        for id in received:
            del self._loads[id]
        return sent or None, received or None

    def take_errors(self) -> set[int]:
        """Blocks that were not loaded since the last call."""
        with self._lock:
            errors, self._errors = self._errors, set()
        return errors

    def forget(self, ids: set[str]) -> None:
        """Wait for the saves of requests that lose their blocks."""
        for id in ids & self._saves.keys():
            concurrent.futures.wait(self._saves.pop(id))
            self._ending.discard(id)

    def wait(self) -> None:
        """Wait for all copies."""
        jobs = [*self._loads.values(), *(job for jobs in self._saves.values() for job in jobs)]
        concurrent.futures.wait(jobs)

    def shutdown(self) -> None:
        self._threads.shutdown(wait=True)

    # The threads.

    def _save(self, root: bytes, pages: Sequence[Page], ready: Any) -> None:
        try:
            memory = self._memory()
            for batch in memory.batches(pages):
                rows = memory.read([page.block for page in batch], ready)
                names = kv.names(root, [page.hash for page in batch], self.rank_part)
                self.store.put(names, list(rows), on_exists="keep")
        except tiffin.Error as error:
            _log.warning("vLLM: %d pages were not saved: %s", len(pages), error)
        except Exception:
            _log.exception("vLLM: %d pages were not saved", len(pages))

    def _load(self, root: bytes, pages: Sequence[Page], ready: Any) -> None:
        left = {page.block for page in pages}
        try:
            memory = self._memory()
            for batch in memory.batches(pages):
                rows = memory.rows(len(batch))
                names = kv.names(root, [page.hash for page in batch], self.rank_part)
                found = self._read(names, list(rows))
                whole = [
                    at for at, got in enumerate(found) if got == memory.row_bytes and memory.fits(rows[at])
                ]
                memory.write([batch[at].block for at in whole], rows[whole], ready)
                left -= {batch[at].block for at in whole}
        except Exception:
            _log.exception("vLLM: pages could not be loaded")
        if left:
            _log.warning("vLLM: %d of %d pages were not loaded", len(left), len(pages))
            with self._lock:
                self._errors |= left

    def _read(self, names: list[str], rows: list[Any]) -> list[Any]:
        try:
            return list(self.store.get_into(names, rows))
        except tiffin.Error as error:
            _log.warning("vLLM: %s", error)
            return list(error.results or [error] * len(names))

    def _memory(self) -> _Blocks:
        assert self._blocks is not None, "vLLM registers its memory before the first step"
        return self._blocks


class _Blocks:
    """The blocks of a device as rows of bytes in the memory of the host."""

    def __init__(self, kv_caches: Mapping[str, Any], num_blocks: int | None) -> None:
        self.torch = need("torch", "tiffin.integrations.vllm", "vllm")
        self.layers: list[tuple[Any, int, int]] = []
        seen: set[int] = set()
        for name, tensor in kv_caches.items():
            if not isinstance(tensor, self.torch.Tensor):
                raise ValueError(f"layer `{name}` keeps state that is not a page\n\nhint: use `TiffinTier`")
            # Layers that share their memory are saved once.
            if tensor.data_ptr() in seen:
                continue
            seen.add(tensor.data_ptr())
            self.layers.append((tensor, *_place_of_blocks(name, tensor, num_blocks)))
        self.device = self.layers[0][0].device
        self.sizes = [
            tensor.numel() // tensor.shape[dim] * each * tensor.element_size()
            for tensor, dim, each in self.layers
        ]
        self.page_bytes = sum(self.sizes)
        self.row_bytes = self.page_bytes + _DIGEST_BYTES
        self.digest = self._layout()
        self._is_cuda = self.device.type == "cuda"
        self._streams = threading.local()

    def batches(self, pages: Sequence[Page]) -> Iterator[Sequence[Page]]:
        most = max(1, STAGING_BYTES_MAX // self.row_bytes)
        for first in range(0, len(pages), most):
            yield pages[first : first + most]

    def rows(self, count: int) -> Any:
        """Empty rows, as an array."""
        return self._rows(count).numpy()

    def _rows(self, count: int) -> Any:
        shape = (count, self.row_bytes)
        return self.torch.empty(shape, dtype=self.torch.uint8, pin_memory=self._is_cuda)

    def fits(self, row: Any) -> bool:
        """Whether a row was saved with this layout."""
        return bytes(row[self.page_bytes :]) == self.digest

    def mark(self) -> Any:
        """The work that was submitted to the device so far."""
        if not self._is_cuda:
            return None
        event = self.torch.cuda.Event()
        event.record(self.torch.cuda.current_stream(self.device))
        return event

    def read(self, blocks: Sequence[int], ready: Any) -> Any:
        """The bytes of blocks, as rows."""
        rows = self._rows(len(blocks))
        at = 0
        with self._after(ready):
            for (tensor, dim, each), size in zip(self.layers, self.sizes, strict=True):
                picked = tensor.index_select(dim, self._indices(blocks, each)).movedim(dim, 0)
                flat = picked.reshape(len(blocks), -1).contiguous().view(self.torch.uint8)
                rows[:, at : at + size].copy_(flat)
                at += size
        rows[:, at:] = self.torch.frombuffer(bytearray(self.digest), dtype=self.torch.uint8)
        return rows.numpy()

    def write(self, blocks: Sequence[int], rows: Any, ready: Any) -> None:
        """Set the bytes of blocks from rows."""
        if not blocks:
            return
        bytes_of = self.torch.from_numpy(rows)
        at = 0
        with self._after(ready):
            for (tensor, dim, each), size in zip(self.layers, self.sizes, strict=True):
                shape = [tensor.shape[other] for other in range(tensor.dim()) if other != dim]
                flat = bytes_of[:, at : at + size].contiguous().view(tensor.dtype)
                values = flat.reshape(len(blocks) * each, *shape).movedim(0, dim).to(self.device)
                tensor.index_copy_(dim, self._indices(blocks, each), values)
                at += size

    def _indices(self, blocks: Sequence[int], each: int) -> Any:
        indices = [block * each + part for block in blocks for part in range(each)]
        return self.torch.tensor(indices, dtype=self.torch.int64, device=self.device)

    @contextlib.contextmanager
    def _after(self, ready: Any) -> Iterator[None]:
        """Copies on a stream of this thread, after the marked work. They have ended when the block ends."""
        if not self._is_cuda:
            yield
            return
        with self.torch.cuda.device(self.device):
            if not hasattr(self._streams, "own"):
                self._streams.own = self.torch.cuda.Stream(self.device)
            stream = self._streams.own
            with self.torch.cuda.stream(stream):
                stream.wait_event(ready)
                yield
            stream.synchronize()

    def _layout(self) -> bytes:
        """A digest of the order of a page's bytes. Rows are in logical order, so strides do not matter."""
        words = [
            (tuple(tensor.shape[:dim] + tensor.shape[dim + 1 :]), each, str(tensor.dtype))
            for tensor, dim, each in self.layers
        ]
        return hashlib.blake2b(repr(words).encode(), digest_size=_DIGEST_BYTES).digest()


def _place_of_blocks(name: str, tensor: Any, num_blocks: int | None) -> tuple[int, int]:
    """The dimension that counts blocks, and how many entries of it one block has.

    Keys and values come first in some layouts, and kernels may use smaller blocks than the scheduler.
    """
    if num_blocks is None:
        return (1, 1) if tensor.dim() > 3 and tensor.shape[0] == 2 else (0, 1)
    for dim in (0, 1):
        if tensor.dim() > dim and tensor.shape[dim] >= num_blocks and tensor.shape[dim] % num_blocks == 0:
            return dim, tensor.shape[dim] // num_blocks
    raise ValueError(
        f"layer `{name}` of shape {tuple(tensor.shape)} has no dimension for {num_blocks} blocks\n\n"
        "hint: use `TiffinTier`"
    )
