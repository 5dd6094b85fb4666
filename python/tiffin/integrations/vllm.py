"""The scheduler half of a vLLM connector: lookups in a shared store, and the blocks to load and to save.

It has the methods of a `KVConnectorBase_V1` that vLLM's scheduler calls, and decides; the worker half moves
the blocks that `Meta` names. vLLM owns the blocks of the device and their index, so this half uses the names
and the store of `tiffin.kv`, and not its engine.

No method waits: a thread asks the store, and until it has an answer, vLLM is asked to retry. A page counts
only if every rank has it. A record of position, name and block describes each moved page.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tiffin import kv

if TYPE_CHECKING:
    KVConnectorMetadata = object
else:
    try:
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
    except ImportError:
        KVConnectorMetadata = object

__all__ = ["Meta", "Page", "SchedulerHalf"]


class Page(NamedTuple):
    """A page to move: its position in the prefix, its hash, and the block of the device."""

    position: int
    hash: bytes
    block: int


@dataclass
class Meta(KVConnectorMetadata):
    """The work of the workers in one step."""

    #: The root of the namespace. With it and its rank, a worker names pages by `tiffin.kv.names`.
    root: bytes
    #: Pages to load before the request is computed, by request.
    loads: dict[str, list[Page]] = field(default_factory=dict)
    #: Pages that are full after this step, to save, by request.
    saves: dict[str, list[Page]] = field(default_factory=dict)
    #: Requests whose blocks are about to be reused: their saves must end before that.
    preempted: set[str] = field(default_factory=set)


class _Known:
    """A request that this half knows."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.hashes: list[bytes] = []
        self.blocks: list[int] = []
        self.asked: concurrent.futures.Future[int] | None = None
        self.saved = 0
        self.saving = False


class SchedulerHalf:
    """Asks the store for vLLM's scheduler. `rank_parts` names every rank that keeps a part of each page."""

    def __init__(
        self,
        store: Any,
        *,
        block_size: int,
        namespace: kv.Namespace,
        rank_parts: Sequence[kv.RankPart] = (((0, 1), (0, 1), (0, 1)),),
        threads: int = 1,
    ) -> None:
        self.store, self.block_size, self.namespace = store, block_size, namespace
        self.rank_parts = list(rank_parts)
        self.root, _ = kv.chain((), page_tokens=block_size, namespace=namespace)
        self._threads = concurrent.futures.ThreadPoolExecutor(threads, "tiffin-vllm")
        self._requests: dict[str, _Known] = {}
        self._loads: dict[str, list[Page]] = {}

    # Methods that the scheduler calls.

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """The number of tokens that the store has beyond the computed ones; `None` while the store is being
        asked."""
        known = self._know(request)
        # One token is always left to compute.
        usable = (len(known.tokens) - 1) // self.block_size
        if usable * self.block_size <= num_computed_tokens:
            return 0, False
        if known.asked is None:
            known.asked = self._threads.submit(self._leading, known.hashes[:usable])
        if not known.asked.done():
            return None, False
        found = 0 if known.asked.exception() else known.asked.result()
        more = found * self.block_size - num_computed_tokens
        return (more, True) if more > 0 else (0, False)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The request has blocks. Those after the computed ones are loaded, as many as were reported."""
        known = self._know(request)
        known.blocks = list(_blocks(blocks))
        if num_external_tokens <= 0:
            return
        last = (request.num_computed_tokens + num_external_tokens) // self.block_size
        first = request.num_computed_tokens // self.block_size
        self._loads[request.request_id] = self._pages(known, first, last)
        known.saved = max(known.saved, last)

    def build_connector_meta(self, scheduler_output: Any) -> Meta:
        """The work of the workers in this step."""
        meta = Meta(self.root, loads=self._loads)
        self._loads = {}
        meta.preempted = set(getattr(scheduler_output, "preempted_req_ids", None) or ())
        for id in meta.preempted & self._requests.keys():
            self._requests[id].blocks = []
        for new in scheduler_output.scheduled_new_reqs:
            known = self._requests.get(new.req_id)
            if known is not None:
                known.blocks = list(new.block_ids[0])
                self._save(meta, new.req_id, known, new.num_computed_tokens, scheduler_output)
        cached = scheduler_output.scheduled_cached_reqs
        resumed = set(getattr(cached, "resumed_req_ids", ()) or ())
        for place, id in enumerate(cached.req_ids):
            known = self._requests.get(id)
            if known is None:
                continue
            more = cached.new_block_ids[place]
            if more is not None:
                known.blocks = [*([] if id in resumed else known.blocks), *more[0]]
            self._save(meta, id, known, cached.num_computed_tokens[place], scheduler_output)
        return meta

    def update_connector_output(self, connector_output: Any) -> None:
        """Saves that the workers have finished. Until then no other request may use their blocks."""
        for id in getattr(connector_output, "finished_sending", None) or ():
            self._requests.pop(id, None)

    def request_finished(self, request: Any, block_ids: Sequence[int]) -> tuple[bool, dict[str, Any] | None]:
        """Whether the blocks must stay until the workers report the end of their saves."""
        known = self._requests.get(request.request_id)
        self._loads.pop(request.request_id, None)
        if known is not None and known.saving:
            return True, None
        self._requests.pop(request.request_id, None)
        return False, None

    def take_events(self) -> tuple[Any, ...]:
        return ()

    def shutdown(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    # Helpers.

    def _know(self, request: Any) -> _Known:
        known = self._requests.setdefault(request.request_id, _Known())
        tokens = request.all_token_ids if hasattr(request, "all_token_ids") else request.prompt_token_ids
        if len(tokens) > len(known.tokens):
            self._hear(known, tokens)
        return known

    def _hear(self, known: _Known, tokens: Sequence[int]) -> None:
        known.tokens = list(tokens)
        _, known.hashes = kv.chain(known.tokens, page_tokens=self.block_size, namespace=self.namespace)

    def _leading(self, hashes: list[bytes]) -> int:
        """The number of leading pages that every rank has."""
        least = len(hashes)
        for part in self.rank_parts:
            found = self.store.exists(kv.names(self.root, hashes[:least], part), prefetch="leading")
            least = min(least, found.index(False) if False in found else len(found))
        return least

    def _pages(self, known: _Known, first: int, last: int) -> list[Page]:
        last = min(last, len(known.hashes), len(known.blocks))
        return [Page(at, known.hashes[at], known.blocks[at]) for at in range(first, last)]

    def _save(self, meta: Meta, id: str, known: _Known, computed: int, scheduler_output: Any) -> None:
        """Adds the pages that are full after this step, and were neither loaded nor saved."""
        full = (computed + scheduler_output.num_scheduled_tokens.get(id, 0)) // self.block_size
        pages = self._pages(known, known.saved, full)
        if pages:
            meta.saves[id] = pages
            known.saved += len(pages)
            known.saving = True


def _blocks(blocks: Any) -> Sequence[int]:
    """The ids of blocks, from vLLM's type or as they are."""
    ids: Sequence[int] = blocks.get_block_ids()[0] if hasattr(blocks, "get_block_ids") else blocks
    return ids
