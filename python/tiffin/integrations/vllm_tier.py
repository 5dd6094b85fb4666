"""A tier for vLLM's offloading connector: chunks of its host memory in a Tiffin cluster.
`docs/integrations/vllm.md` has the flags.

vLLM keeps the KV data of its device in memory of the host, and copies it to tiers below, which its
`TieringOffloadingSpec` loads by name. All methods run in the scheduler, and none waits for the store, except
`drain_jobs` and `shutdown`: threads move the bytes between the memory of the host and the store, without a
copy in between.

A chunk has one name for everything that changes its bytes: model, types, layout, parallel sizes, vLLM's hash
and the tag of the settings.
"""

from __future__ import annotations

import concurrent.futures
import enum
import hashlib
import inspect
import json
import logging
import queue
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import tiffin

__all__ = ["TiffinTier"]

_log = logging.getLogger("tiffin")


@dataclass
class _JobResult:
    """The fields of vLLM's `JobResult`, where vLLM is not installed."""

    job_id: int
    success: bool
    successful_keys: Collection[bytes] | None = None
    transfer_time: float | None = None
    transfer_bytes: int | None = None


class _LookupResult(enum.Enum):
    """The members of vLLM's `LookupResult`, where vLLM is not installed."""

    MISS = enum.auto()
    HIT = enum.auto()
    HIT_PENDING = enum.auto()
    RETRY = enum.auto()


class _Anything:
    """vLLM's `RequestOffloadingContext` with its defaults, where vLLM is not installed."""


if TYPE_CHECKING:
    SecondaryTierManager = object
    JobResult, LookupResult, RequestOffloadingContext = _JobResult, _LookupResult, _Anything
    _STORAGE: Any = None
    _locality: Any = None
else:
    try:
        from vllm.v1.kv_offload.base import Locality as _locality
        from vllm.v1.kv_offload.base import LookupResult, Medium, RequestOffloadingContext
        from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

        _STORAGE = Medium.STORAGE
    except ImportError:
        SecondaryTierManager, _STORAGE, _locality = object, None, None
        JobResult, LookupResult, RequestOffloadingContext = _JobResult, _LookupResult, _Anything


@dataclass
class _Lookup:
    """One key that requests have asked for."""

    requests: set[str] = field(default_factory=set)
    #: `None` until the store has answered.
    is_present: bool | None = None


class TiffinTier(SecondaryTierManager):
    """The implementation of vLLM's `SecondaryTierManager`."""

    medium: ClassVar[Any] = _STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        *,
        address: str | None = None,
        namespace: str | None = None,
        token: str | None = None,
        timeout: float | None = None,
        tag: str = "",
        read_threads: int = 4,
        write_threads: int = 4,
        locality: str = "REMOTE",
        store: Any = None,
    ) -> None:
        if SecondaryTierManager is not object:
            # Older releases have no detector.
            fourth = "backpressure_detector" in inspect.signature(super().__init__).parameters
            more = (backpressure_detector,) if fourth else ()
            super().__init__(offloading_spec, primary_kv_view, tier_type, *more)  # type: ignore[call-arg]
            self.locality = _locality(locality)
        given = {"namespace": namespace, "token": token, "timeout": timeout}
        known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        self._is_own = store is None
        self.store = tiffin.connect(address, **known) if store is None else store
        assert primary_kv_view.strides is not None
        self.chunk_bytes = primary_kv_view.strides[0]
        self._memory = primary_kv_view.cast("B")
        self.prefix = _prefix(offloading_spec, self.chunk_bytes, tag)
        self._readers = concurrent.futures.ThreadPoolExecutor(read_threads, "tiffin-vllm-read")
        self._writers = concurrent.futures.ThreadPoolExecutor(write_threads, "tiffin-vllm-write")
        self._askers = concurrent.futures.ThreadPoolExecutor(1, "tiffin-vllm-ask")
        self._jobs: set[concurrent.futures.Future[None]] = set()
        self._done: queue.SimpleQueue[tuple[Any, list[bytes], bool]] = queue.SimpleQueue()
        self._lookups: dict[bytes, _Lookup] = {}
        self._asked_by: dict[str, set[bytes]] = {}
        #: Keys that were asked for in this step, by request.
        self._new: dict[str, list[bytes]] = {}
        self._answers: queue.SimpleQueue[tuple[list[bytes], list[bool]]] = queue.SimpleQueue()

    # Lookups.

    def on_new_request(self, req_context: Any) -> Any:
        return RequestOffloadingContext()

    def lookup(self, key: bytes, req_context: Any) -> Any:
        """Whether the store has a chunk. The answer comes after the end of the step, and all later ones of
        the request are the same."""
        self._take_answers()
        found = self._lookups.get(key)
        if found is None:
            found = self._lookups[key] = _Lookup()
            self._new.setdefault(req_context.req_id, []).append(key)
        found.requests.add(req_context.req_id)
        self._asked_by.setdefault(req_context.req_id, set()).add(key)
        if found.is_present is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found.is_present else LookupResult.MISS

    def on_schedule_end(self, context: Any) -> None:
        for keys in self._new.values():
            self._askers.submit(self._ask, keys)
        self._new = {}

    def on_request_finished(self, req_context: Any) -> None:
        for key in self._asked_by.pop(req_context.req_id, ()):
            found = self._lookups.get(key)
            if found is not None:
                found.requests.discard(req_context.req_id)
                if not found.requests:
                    del self._lookups[key]

    # Transfers.

    def submit_store(self, job_metadata: Any) -> None:
        self._submit(self._writers, self._store, job_metadata)

    def submit_load(self, job_metadata: Any) -> None:
        self._submit(self._readers, self._load, job_metadata)

    def get_finished_jobs(self) -> Iterable[Any]:
        """The jobs that have ended since the last call."""
        results = []
        while not self._done.empty():
            result, keys, is_load = self._done.get()
            results.append(result)
            present = set(keys) if result.success else set(result.successful_keys or ())
            for key in keys:
                # A chunk that could not be read is missing for the requests that asked for it.
                if key in self._lookups and (is_load or key in present):
                    self._lookups[key].is_present = key in present
        self._jobs = {job for job in self._jobs if not job.done()}
        return results

    def drain_jobs(self) -> None:
        concurrent.futures.wait(self._jobs)

    def shutdown(self) -> None:
        for threads in (self._askers, self._readers, self._writers):
            threads.shutdown(wait=True)
        if self._is_own:
            self.store.close()

    # The threads.

    def _ask(self, keys: list[bytes]) -> None:
        try:
            found = self.store.exists(self._names(keys), prefetch="leading")
        except Exception as error:
            _log.warning("vLLM: %s", error)
            found = [False] * len(keys)
        self._answers.put((keys, list(found)))

    def _store(self, keys: list[bytes], places: list[memoryview]) -> list[bool]:
        try:
            self.store.put(self._names(keys), places, on_exists="keep")
        except tiffin.Error as error:
            _log.warning("vLLM: %s", error)
            results = error.results or [error] * len(keys)
            return [isinstance(it, bool) for it in results]
        return [True] * len(keys)

    def _load(self, keys: list[bytes], places: list[memoryview]) -> list[bool]:
        try:
            read = self.store.get_into(self._names(keys), places)
        except tiffin.Error as error:
            _log.warning("vLLM: %s", error)
            read = error.results or [error] * len(keys)
        return [got == self.chunk_bytes for got in read]

    # Helpers.

    def _submit(self, threads: concurrent.futures.ThreadPoolExecutor, move: Any, job: Any) -> None:
        keys, size = list(job.keys), self.chunk_bytes
        places = [self._memory[int(at) * size : (int(at) + 1) * size] for at in job.chunk_ids]
        is_load = move == self._load

        def run() -> None:
            begun = time.monotonic()
            try:
                moved = move(keys, places)
            except Exception:
                _log.exception("vLLM: a transfer failed")
                moved = [False] * len(keys)
            good = tuple(key for key, is_good in zip(keys, moved, strict=True) if is_good)
            success = len(good) == len(keys)
            result = JobResult(
                job_id=job.job_id,
                success=success,
                successful_keys=good if is_load and good and not success else None,
                transfer_time=time.monotonic() - begun,
                transfer_bytes=len(good) * size,
            )
            self._done.put((result, keys, is_load))

        self._jobs.add(threads.submit(run))

    def _take_answers(self) -> None:
        while not self._answers.empty():
            keys, found = self._answers.get()
            for key, is_present in zip(keys, found, strict=True):
                lookup = self._lookups.get(key)
                if lookup is not None and lookup.is_present is None:
                    lookup.is_present = is_present

    def _names(self, keys: Iterable[bytes]) -> list[str]:
        return [f"{self.prefix}{bytes(key).hex()}" for key in keys]


def _prefix(spec: Any, chunk_bytes: int, tag: str) -> str:
    """A prefix of everything that changes the bytes of a chunk and is not in vLLM's hash."""
    config = spec.config
    parallel, cache = config.parallel, config.cache
    sizes = [parallel.tp_size, parallel.pp_size, parallel.pcp_size, parallel.dcp_size]
    words = {
        "model": config.model.name,
        "dtype": str(config.model.dtype),
        "tokens_per_hash": cache.tokens_per_hash,
        "blocks_per_chunk": cache.blocks_per_chunk,
        "chunk_bytes": chunk_bytes,
        "groups": [[group.tokens_per_block, list(group.layer_names)] for group in config.groups],
        # Some layouts are the same for all sizes.
        "sizes": "any" if parallel.is_parallelism_agnostic else sizes,
        "layout": getattr(config, "kv_cache_layout", None),
        "is_canonical": getattr(config, "canonical_layout", False),
        "is_replicated": getattr(config, "replicated_layout", False),
        "tag": tag,
    }
    digest = hashlib.blake2b(json.dumps(words, sort_keys=True).encode(), digest_size=16).hexdigest()
    return f"vllm/{digest}/"
