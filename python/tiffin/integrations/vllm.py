"""A KV connector for vLLM: the pages of its prompts in a Tiffin cluster. `docs/integrations/vllm.md` has the
flags.

vLLM loads `TiffinConnector` by name, once in the scheduler and once in each worker:

    --kv-transfer-config '{"kv_connector": "TiffinConnector", "kv_role": "kv_both",
      "kv_connector_module_path": "tiffin.integrations.vllm", "kv_load_failure_policy": "recompute",
      "kv_connector_extra_config": {"address": "127.0.0.1:7400"}}'

The scheduler half asks the store and decides; `vllm_worker` moves the blocks that `Meta` names. vLLM owns the
blocks of the device and their index, so this adapter uses the names and the store of `tiffin.kv`, and not its
engine. `vllm_tier` is the other way to use vLLM: a tier below its own memory of the host.

No method of the scheduler waits: a thread asks the store, and until it has an answer, vLLM is asked to retry.
A page counts only if every rank has it. A record of position, name and block describes each moved page.
"""

from __future__ import annotations

import concurrent.futures
import inspect
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import tiffin
from tiffin._extras import missing

try:
    from tiffin import kv
except ImportError as error:
    # The hint of `tiffin.kv` names numpy alone, with which vLLM would be the next to be missing.
    raise missing("numpy", "tiffin.integrations.vllm", "vllm") from error

from .vllm_worker import WorkerHalf

if TYPE_CHECKING:
    KVConnectorMetadata = object
    KVConnectorBase_V1 = object
else:
    try:
        from vllm.distributed.kv_transfer.kv_connector.v1.base import (
            KVConnectorBase_V1,
            KVConnectorMetadata,
        )
    except ImportError:
        KVConnectorMetadata = KVConnectorBase_V1 = object

__all__ = ["Meta", "Page", "SchedulerHalf", "TiffinConnector"]

_log = logging.getLogger("tiffin")

#: The namespaces of adapters and salts that `reset_cache` clears; of more, it clears the latest.
ROOTS_MAX = 1024


class Page(NamedTuple):
    """A page to move: its position in the prefix, its hash, and the block of the device."""

    position: int
    hash: bytes
    block: int


@dataclass
class Meta(KVConnectorMetadata):
    """The work of the workers in one step."""

    #: The root of the namespace of each request. With it and its rank, a worker names pages by
    #: `tiffin.kv.names`.
    roots: dict[str, bytes] = field(default_factory=dict)
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
        self.root = b""
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
        root, _ = kv.chain((), page_tokens=block_size, namespace=namespace)
        self._roots = {root: None}
        self._threads = concurrent.futures.ThreadPoolExecutor(threads, "tiffin-vllm")
        self._requests: dict[str, _Known] = {}
        self._loads: dict[str, list[Page]] = {}

    # Methods that the scheduler calls.

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """The number of tokens that the store has beyond the computed ones; `None` while the store is being
        asked."""
        known = self._know(request)
        # One token is always left to compute.
        usable = min(len(known.hashes), (len(known.tokens) - 1) // self.block_size)
        if usable * self.block_size <= num_computed_tokens:
            return 0, False
        if known.asked is None:
            known.asked = self._threads.submit(self._leading, known.root, known.hashes[:usable])
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
        meta = Meta(loads=self._loads)
        self._loads = {}
        meta.preempted = set(getattr(scheduler_output, "preempted_req_ids", None) or ())
        for id in meta.preempted & self._requests.keys():
            # The workers finish its saves before they do anything else, so nothing is left to wait for.
            self._requests[id].blocks, self._requests[id].saving = [], False
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
        meta.roots = {
            id: self._requests[id].root
            for id in meta.loads.keys() | meta.saves.keys()
            if id in self._requests
        }
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

    def reset_cache(self) -> bool:
        """Delete the pages of all namespaces that requests have used, as after new weights."""
        try:
            for root in self._roots:
                (name,) = kv.names(root, [bytes(16)])
                self.store.delete_prefix(name.rpartition("/")[0] + "/", force=True)
        except tiffin.Error as error:
            _log.warning("vLLM: the pages could not be deleted: %s", error)
            return False
        return True

    def shutdown(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    # Helpers.

    def _know(self, request: Any) -> _Known:
        known = self._requests.setdefault(request.request_id, _Known())
        tokens = request.all_token_ids if hasattr(request, "all_token_ids") else request.prompt_token_ids
        if len(tokens) > len(known.tokens):
            self._hear(known, request, tokens)
        return known

    def _hear(self, known: _Known, request: Any, tokens: Sequence[int]) -> None:
        known.tokens = list(tokens)
        if getattr(request, "prompt_embeds", None) is not None:
            # Embeddings have no tokens that would name their pages.
            return
        lora, salt = getattr(request, "lora_request", None), getattr(request, "cache_salt", None)
        namespace = self.namespace._replace(
            lora=self.namespace.lora if lora is None else lora.lora_name,
            salt=self.namespace.salt if salt is None else salt,
        )
        features = getattr(request, "mm_features", None) or ()
        media = [(it.mm_position.offset, it.identifier.encode()) for it in features]
        known.root, known.hashes = kv.chain(
            known.tokens, page_tokens=self.block_size, namespace=namespace, media=media
        )
        self._roots.setdefault(known.root)
        if len(self._roots) > ROOTS_MAX:
            del self._roots[next(iter(self._roots))]

    def _leading(self, root: bytes, hashes: list[bytes]) -> int:
        """The number of leading pages that every rank has."""
        least = len(hashes)
        for part in self.rank_parts:
            found = self.store.exists(kv.names(root, hashes[:least], part), prefetch="leading")
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


class TiffinConnector(KVConnectorBase_V1):
    """The implementation of vLLM's `KVConnectorBase_V1`, for both of its roles."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        if KVConnectorBase_V1 is not object:
            # Older releases have no third argument.
            third = "kv_cache_config" in inspect.signature(super().__init__).parameters
            more = (kv_cache_config,) if third else ()
            super().__init__(vllm_config, role, *more)  # type: ignore[call-arg]
        setup = _Setup(vllm_config, kv_cache_config)
        self._metadata: Any = None
        self.store = setup.connect()
        self.scheduler: SchedulerHalf | None = None
        self.worker: WorkerHalf | None = None
        if getattr(role, "name", role) == "SCHEDULER":
            self.scheduler = SchedulerHalf(
                self.store,
                block_size=setup.block_size,
                namespace=setup.namespace,
                rank_parts=setup.rank_parts,
                threads=setup.threads,
            )
        else:
            self.worker = WorkerHalf(self.store, setup.rank_part, setup.num_blocks, threads=setup.threads)

    @property
    def requires_kv_delivery(self) -> bool:
        """A lost page is computed again."""
        return False

    # The workers.

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        self._metadata = connector_metadata
        self._connector_metadata = connector_metadata

    def clear_connector_metadata(self) -> None:
        self._metadata = self._connector_metadata = None

    def register_kv_caches(self, kv_caches: Any) -> None:
        self._worker().register(kv_caches)

    def unregister_kv_caches(self) -> None:
        self._worker().wait()

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        # Releases before 0.16 pass the requests themselves.
        preempted = getattr(kv_connector_metadata, "preempted", kv_connector_metadata)
        self._worker().forget(set(preempted or ()))

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._metadata is not None:
            self._worker().forget(self._metadata.preempted)
            self._worker().load(self._metadata)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads end before their request is computed, so no layer waits."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Blocks are saved when all layers are computed."""

    def wait_for_save(self) -> None:
        if self._metadata is not None:
            self._worker().save(self._metadata)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return self._worker().finished(finished_req_ids)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker().take_errors()

    # The scheduler.

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._scheduler().get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._scheduler().update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Meta:
        return self._scheduler().build_connector_meta(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        self._scheduler().update_connector_output(connector_output)

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        return self._scheduler().request_finished(request, block_ids)

    def take_events(self) -> tuple[Any, ...]:
        return ()

    def reset_cache(self) -> bool | None:
        return self._scheduler().reset_cache() if self.scheduler is not None else None

    def shutdown(self) -> None:
        for half in (self.scheduler, self.worker):
            if half is not None:
                half.shutdown()
        self.store.close()

    def _worker(self) -> WorkerHalf:
        assert self.worker is not None, "this connector has the role of the scheduler"
        return self.worker

    def _scheduler(self) -> SchedulerHalf:
        assert self.scheduler is not None, "this connector has the role of a worker"
        return self.scheduler


class _Setup:
    """What the connector takes from vLLM's configuration."""

    def __init__(self, config: Any, kv_cache_config: Any) -> None:
        self.extra = dict(config.kv_transfer_config.kv_connector_extra_config or {})
        known = {"address", "namespace", "token", "timeout", "tag", "threads"}
        if unknown := sorted(set(self.extra) - known):
            raise ValueError(
                f"unknown settings in `kv_connector_extra_config`: {unknown}\n\n"
                f"hint: it may have {sorted(known)}"
            )
        self.threads = int(self.extra.get("threads", 2))
        self.block_size = int(config.cache_config.block_size)
        self.num_blocks = getattr(kv_cache_config, "num_blocks", None)
        groups = getattr(kv_cache_config, "kv_cache_groups", None) or [None]
        if len(groups) > 1:
            raise ValueError(
                f"the model has {len(groups)} groups of KV caches, and this connector moves one\n\n"
                "hint: start vLLM with `--disable-hybrid-kv-cache-manager`, or use `TiffinTier`"
            )
        self._ranks(config.parallel_config)
        model = config.model_config
        self.namespace = kv.Namespace(
            model=str(model.model),
            revision=str(getattr(model, "revision", None) or ""),
            dtype=f"{model.dtype}/{getattr(config.cache_config, 'cache_dtype', 'auto')}",
            layout=f"vllm/{self.extra.get('tag', '')}",
        )

    def connect(self) -> Any:
        known = {name: self.extra[name] for name in ("namespace", "token", "timeout") if name in self.extra}
        return tiffin.connect(self.extra.get("address"), **known)

    def _ranks(self, parallel: Any) -> None:
        tensor = int(getattr(parallel, "tensor_parallel_size", 1))
        pipeline = int(getattr(parallel, "pipeline_parallel_size", 1))
        for name in ("prefill_context_parallel_size", "decode_context_parallel_size"):
            if int(getattr(parallel, name, 1) or 1) > 1:
                raise ValueError(f"`{name}` above 1 is not supported\n\nhint: use `TiffinTier`")
        rank = int(getattr(parallel, "rank", 0)) % (tensor * pipeline)
        self.rank_part = ((rank % tensor, tensor), (rank // tensor, pipeline), (0, 1))
        self.rank_parts = [
            ((t, tensor), (p, pipeline), (0, 1)) for p in range(pipeline) for t in range(tensor)
        ]


def _blocks(blocks: Any) -> Sequence[int]:
    """The ids of blocks, from vLLM's type or as they are."""
    ids: Sequence[int] = blocks.get_block_ids()[0] if hasattr(blocks, "get_block_ids") else blocks
    return ids
