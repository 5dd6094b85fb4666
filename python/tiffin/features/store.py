"""The feature store: put, get, release, abort and the rest of the contract, on top of samples.

Everything that decides is in the index: generations, leases, tombstones and consumption live in our master
and are seen by all processes at once. What is kept here is what this process has leased, and what it could
not finish: frees that failed, which are tried again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tiffin

from .backend import Backend, Mooncake, Own, connect_index, keys_left
from .beside import Beside, check_new
from .errors import GONE, BadRef, ConsumerBehind, Duplicate, NotAvailable
from .pool import Recycler
from .records import DTYPES, SCHEMA_VERSION, FeatureHandle, FeatureSpec, SampleRef, as_ref, to_number, to_pair
from .stream import Consumer
from .tensors import describe, lent, on_device, plain, room

_log = logging.getLogger("tiffin")
#: The fields of a ref that `put` takes from its metadata.
_FIELDS = (
    "run_id",
    "source_task_id",
    "strategy",
    "target_model_version",
    "draft_weight_version",
    "tokenizer_version",
    "num_tokens",
)
#: How many samples are asked for their age at a time.
_LOOK_MAX = 4096


class FeatureStore:
    """Samples of hidden states, from producers to trainers, with lifetimes that need no code of the caller's.

    Without `store` and `address` it is inside this process; `address` joins a cluster of ours, in a namespace
    that is called as `store_id`; `store` is a connected `tiffin.Store` to be used instead. With `backend` the
    tensors lie in a Mooncake cluster that runs already (`tiffin.features.Mooncake`), and only the index with
    us.

    `auth` is the secret that is expected, a function that says whether a credential is right, or an object
    with a `check` that raises `PermissionError`; `credential` is what this process presents, also to the
    servers. `max_resident_bytes` limits the namespace across all
    processes; `max_hold_age_s` frees what nobody has leased for so long. With `retain_on_release` a release
    only ends the lease; else the last release frees the sample. `stream` and `groups` append every put to a
    stream, which consumers of these groups read with `consumer`. `wait_s` is how long a put may wait for
    room. `linger_s` is how long `close` waits for samples to be freed that lie in a Mooncake segment of this
    process.

    >>> from tiffin.features import FeatureStore
    >>> features = FeatureStore("run-7", memory="64MiB")
    >>> ref = features.put({"ids": bytes(8)}, sample_id="s0", metadata={"num_tokens": 8})
    >>> tensors, handle = features.get(ref)
    >>> len(tensors["ids"]), features.health()["active_leases"]
    (8, 1)
    >>> features.release(handle, reason="trained")
    >>> features.health()["resident_samples"]
    0
    """

    def __init__(
        self,
        store_id: str,
        *,
        store: tiffin.Store | None = None,
        address: str | None = None,
        backend: Backend | Own | None = None,
        auth: Any = None,
        credential: str | None = None,
        max_resident_bytes: int | str | None = None,
        max_hold_age_s: float | None = None,
        retain_on_release: bool = False,
        max_release_attempts: int = 3,
        replica_num: int = 1,
        hard_pin: bool = True,
        stream: str = "",
        groups: Sequence[str] = (),
        wait_s: float = 0.0,
        linger_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
        **connect: Any,
    ) -> None:
        if not store_id or "/" in store_id:
            raise ValueError(f"store_id={store_id!r}: it is a name without slashes")
        self.store_id, self.stream, self.groups = store_id, stream, tuple(groups)
        self._auth, self._credential = auth, credential
        self._check_credential()
        self._owns_index = store is None
        self.index = connect_index(store_id, address, credential, **connect) if store is None else store
        self.backend = backend or Own()
        self._external: Backend | None = None if isinstance(self.backend, Own) else self.backend
        if isinstance(self.backend, Mooncake):
            self.backend.prefer(replica_num=replica_num, hard_pin=hard_pin)
        self.max_resident_bytes, self.max_hold_age_s = max_resident_bytes, max_hold_age_s
        self._retain, self._tries_max = retain_on_release, max_release_attempts
        self._replicas, self._hard_pin = replica_num, hard_pin
        self._wait_s, self._linger_s, self._clock = wait_s, linger_s, clock
        self._lock = threading.Lock()
        self._leases: dict[str, tuple[tiffin.Lease, Any]] = {}
        self._pending: dict[tuple[str, int], _Pending] = {}
        self._attempts: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._force_freed = 0
        self._recycler = Recycler()
        # Where tensors lie elsewhere, somebody must remove them: `gc` alone gives samples up.
        hold = max_hold_age_s if self._external is None else None
        if max_resident_bytes is not None or hold is not None:
            self.index.set_policy(quota=max_resident_bytes, max_hold=hold)

    # What is put and read.

    def put(
        self,
        tensors: Mapping[str, Any],
        *,
        sample_id: str,
        metadata: Mapping[str, Any] | None = None,
        replace: bool = True,
    ) -> SampleRef:
        """Store the tensors of a sample, all or none, and give its ref.

        An older sample of that id is superseded: its refs fail from now on. With `replace=False`, and for an
        id that was consumed from the stream, it is `Duplicate`, a `ValueError`. So is whatever cannot be
        stored: no tensors, or elements of none of the ten types. Raises `MemoryError` if the namespace or the
        stream is full because the consumer is behind, `RuntimeError` if it could not be written; nothing is
        left behind then.
        """
        self._check_credential()
        tensors, record, text = self._prepare(sample_id, tensors, metadata)
        with _named(sample_id):
            if (beside := self._beside) is None:
                native = self._put_index(self._entry(sample_id), tensors, text.encode(), replace)
                return _with_generation(record, to_number(native.generation), native.generation)
            old = self._look_up(sample_id)
            check_new(sample_id, old, replace)

            def put_entry(entry: Mapping[str, Any], record: SampleRef, elsewhere: int) -> tiffin.SampleRef:
                text = record.to_json().encode()
                return self._put_index(self._entry(sample_id), entry, text, replace, elsewhere)

            record, native = beside.put(sample_id, tensors, record, old, put_entry, self._wait_s)
            return _with_generation(record, record.metadata["generation"], native.generation)

    def put_many(
        self,
        samples: Mapping[str, Mapping[str, Any]],
        *,
        metadata: Mapping[str, Mapping[str, Any]] | None = None,
        replace: bool = True,
    ) -> list[SampleRef]:
        """Store the samples of a batch, by their ids, with one question to the store instead of one for each.

        Each is stored as `put` does it. If one cannot be, its error is raised, and those that could be stored
        stay: its `results` has for each sample its ref, or its error.
        """
        self._check_credential()
        told = metadata or {}
        # What is bad input is refused before anything is stored.
        ready = {name: self._prepare(name, tensors, told.get(name)) for name, tensors in samples.items()}
        if self._external is not None or len(samples) < 2:
            return [
                self.put(tensors, sample_id=name, metadata=told.get(name), replace=replace)
                for name, tensors in samples.items()
            ]
        tensors = {self._entry(name): it[0] for name, it in ready.items()}
        texts = {self._entry(name): it[2].encode() for name, it in ready.items()}
        give = lambda it, native: _with_generation(it[1], to_number(native.generation), native.generation)
        try:
            natives = self._put_index(tensors, None, texts, replace)
        except tiffin.Error as error:
            results = error.results or [error] * len(ready)
            for at, (name, it) in enumerate(ready.items()):
                result = results[at]
                results[at] = _as_named(name, result) if isinstance(result, Exception) else give(it, result)
            first = next(it for it in results if isinstance(it, Exception))
            first.results = results
            raise first from error
        return [give(it, native) for it, native in zip(ready.values(), natives, strict=True)]

    def get(
        self,
        ref: Any,
        *,
        device: str = "cpu",
        names: Iterable[str] | None = None,
        group: str = "",
        lend: bool = False,
    ) -> tuple[dict[str, Any], FeatureHandle]:
        """The tensors of a sample, or those with these names, and a handle that leases it.

        They are in memory of their own, which nothing in the store changes; with `lend=True` they are
        read-only and look at the bytes where they lie, if those are on this host. Torch tensors if torch was
        imported, else numpy arrays. Raises `KeyError` for whatever cannot be had: freed, aborted, superseded,
        never there, or a ref that does not match what is stored.
        """
        return self.get_many([ref], device=device, names=names, group=group, lend=lend)[0]

    def get_many(
        self,
        refs: Iterable[Any],
        *,
        device: str = "cpu",
        names: Iterable[str] | None = None,
        group: str = "",
        lend: bool = False,
    ) -> list[tuple[dict[str, Any], FeatureHandle]]:
        """What `get` gives, for the samples of a batch, which are leased in one call: all, or an error."""
        self._check_credential()
        refs = [self._checked(ref) for ref in refs]
        names = None if names is None else list(names)
        leases = self._lease(refs, group or (self.groups[0] if self.groups else ""))
        read: list[tuple[dict[str, Any], SampleRef | None]] = []
        try:
            for ref, lease in zip(refs, leases, strict=True):
                with _gone(ref.sample_id):
                    read.append(self._get(ref, lease, names, lend))
        except BaseException:
            for lease in leases:
                self._let_go(lease)
            raise
        given = []
        for ref, lease, (tensors, stored) in zip(refs, leases, read, strict=True):
            handle = FeatureHandle(ref.sample_id, ref.metadata["generation"], uuid.uuid4().hex)
            with self._lock:
                self._leases[handle.lease_token] = (lease, stored)
            if device != "cpu":
                tensors = {name: on_device(tensor, device) for name, tensor in tensors.items()}
            given.append((tensors, handle))
        return given

    def release(self, handle: FeatureHandle, *, reason: str = "") -> None:
        """End a lease. The last release of a sample frees it, unless it is retained or read from a stream.

        A handle of a superseded sample, or one that was released, does nothing. Never raises: a free that
        failed is tried again by `gc`, and by the drains.
        """
        with self._lock:
            lease, stored = self._leases.pop(handle.lease_token, (None, None))
        if lease is None:
            return
        self._let_go(lease)
        if self._retain or self.stream or self.groups:
            return
        native = tiffin.SampleRef(lease.id, lease.generation, 0, False)
        self._free(handle.sample_id, handle.generation, stored, lambda: self._consume(native))

    def abort(self, sample_id: str, *, reason: str = "") -> None:
        """Free a sample now, whoever has it leased. Every process is told so at once.

        Never raises: a free that failed is tried again by `gc`, and by the drains.
        """
        stored = None
        if self._external is not None:
            # What cannot be looked up now is found by `gc`.
            with contextlib.suppress(tiffin.Error):
                stored = self._look_up(sample_id)
        generation = stored.metadata["generation"] if stored is not None else 0
        self._free(sample_id, generation, stored, lambda: self._delete(sample_id))

    def ack(self, refs: Iterable[Any], *, group: str = "") -> list[str]:
        """Say that a group is done with samples, such as those of an optimizer step, in one call.

        Gives for each `"freed"`, `"recorded"` where other groups have yet to consume it, or `"stale"`. What
        is freed is gone for everybody when this returns, and so is its room.
        """
        refs = [self._checked(ref) for ref in refs]
        group = group or (self.groups[0] if self.groups else "")
        natives = [self._native(ref) for ref in refs]
        if self._external is None:
            return self.index.ack(natives, group)
        records = [self._look_up(ref.sample_id) for ref in refs]
        outcomes = self.index.ack(natives, group)
        for ref, stored, outcome in zip(refs, records, outcomes, strict=True):
            # What was put since then has another generation, and a life of its own.
            is_it = stored is not None and stored.metadata["generation"] == ref.metadata["generation"]
            if outcome == "freed" and stored is not None and is_it:
                self._clean(stored)
        return outcomes

    # What others wrote, or were about to.

    def adopt(self, ref: Any) -> bool:
        """Take note of a sample that another process wrote, and say whether it is there.

        Its lifetime is the store's business whoever wrote it, so this is a lookup. Raises `ValueError` for a
        ref without a generation.
        """
        ref = as_ref(ref)
        if not isinstance(ref.generation, int):
            raise ValueError(f"the ref of sample `{ref.sample_id}` has no generation")
        with self._lock:
            self._attempts.pop(ref.sample_id, None)
        stored = self._look_up(ref.sample_id)
        return stored is not None and stored.metadata["generation"] == ref.generation

    def track_external_attempt(
        self, sample_id: str, *, generation: int, feature_names: Iterable[str]
    ) -> None:
        """Remember what a server is about to write, so that it can be reclaimed if its response is lost."""
        names = tuple(feature_names)
        if not names:
            raise ValueError(f"an attempt to write sample `{sample_id}` that names no tensors")
        with self._lock:
            self._attempts[sample_id] = (generation, names)

    def discard_external_attempts(self, *, reason: str = "") -> int:
        """Free what tracked attempts have written and nobody adopted, and say how many there were.

        `RuntimeError` lists what failed.
        """
        with self._lock:
            attempts = dict(self._attempts)
        failed = []
        for sample_id, (generation, names) in attempts.items():
            self.abort(sample_id, reason=reason or "an attempt without a response")
            left = []
            if (beside := self._beside) is not None:
                left = keys_left(beside.backend, [beside.key(sample_id, generation, it) for it in names])
            if left or any(pending == sample_id for pending, _ in self._pending):
                failed.append(sample_id)
                continue
            with self._lock:
                self._attempts.pop(sample_id, None)
        if failed:
            raise RuntimeError(f"could not be reclaimed: {', '.join(failed)}")
        return len(attempts)

    # What was not finished.

    def drain_pending_removals(
        self,
        max_attempts: int = 8,
        retry_interval_s: float = 0.25,
        sleep: Callable[[float], object] = time.sleep,
    ) -> dict[str, int]:
        """Finish every free that failed, within bounds, and say how many that were.

        `RuntimeError` names what is left; it stays noted.
        """
        return self._drain(None, max_attempts, retry_interval_s, sleep)

    def drain_sample_removals(
        self,
        sample_ids: Iterable[str],
        max_attempts: int = 8,
        retry_interval_s: float = 0.25,
        sleep: Callable[[float], object] = time.sleep,
    ) -> dict[str, int]:
        """The same for these samples only."""
        return self._drain(set(sample_ids), max_attempts, retry_interval_s, sleep)

    def gc(self, now: float | None = None) -> dict[str, int]:
        """Free what nobody has leased for longer than `max_hold_age_s`, and try failed frees again.

        Also takes up what processes that died have left undone. Says what was freed, and what is pending.
        """
        later = 0.0 if now is None else max(0.0, now - self._clock())
        count, size = self._end_holding(later) if self.max_hold_age_s is not None else (0, 0)
        self._force_freed += count
        for pending in list(self._pending.values()):
            if pending.tries < self._tries_max:
                self._try_again(pending)
        self._sweep()
        return {"force_freed": count, "force_freed_bytes": size, "release_pending": len(self._pending)}

    def health(self) -> dict[str, Any]:
        """How the store stands, across all processes; what is pending and provisional, of this process."""
        stat = self.index.wait_usage(at_least=0)
        ages = [why.age for why in self._samples()]
        return {
            "store_id": self.store_id,
            "backend": self.backend.name,
            "resident_samples": len(ages),
            "resident_bytes": stat.samples_size,
            "max_resident_bytes": self.max_resident_bytes,
            "active_leases": stat.samples_leased,
            "release_pending": len(self._pending),
            "provisional_external": len(self._attempts),
            "oldest_age_s": max(ages, default=0.0),
            "avg_age_s": sum(ages) / len(ages) if ages else 0.0,
            "force_freed_total": self._force_freed,
            "hard_pin": self._hard_pin,
            "auth_required": getattr(self._auth, "required", self._auth is not None)
            or self._credential is not None,
        }

    @staticmethod
    def estimate_bytes(specs: Mapping[str, FeatureSpec] | Iterable[FeatureSpec]) -> int:
        """How many bytes tensors of these specs have."""
        return sum(spec.nbytes for spec in (specs.values() if isinstance(specs, Mapping) else specs))

    def consumer(self, group: str = "", *, window: int = 1, timeout: float | None = None) -> Consumer:
        """Read the stream as one of a group that takes `window` samples before it acknowledges any."""
        if not self.stream:
            raise ValueError('this store has no stream\n\nhint: `FeatureStore(…, stream="train")`')
        return Consumer(self, group or (self.groups[0] if self.groups else ""), window, timeout)

    def linger(self, max_s: float) -> bool:
        """Stay until every sample is freed, or so many seconds have passed; says whether all are.

        For a producer whose Mooncake segment holds samples that are not read yet: they would end with it.
        What it waits for is in the log `tiffin`.
        """
        until = time.monotonic() + max_s
        while left := self._samples():
            rest = until - time.monotonic()
            if rest <= 0:
                return False
            oldest = max(left, key=lambda why: why.age)
            _log.info("waiting for %d samples, `%s` for %.0f s", len(left), oldest.key, oldest.age)
            used = self.index.wait_usage(at_least=0).used
            with contextlib.suppress(tiffin.Timeout):
                self.index.wait_usage(at_most=max(0, used - 1), timeout=min(rest, 5.0))
        return True

    def drop_run(self) -> int:
        """Take away every sample of this store, and its stream; says how many there were."""
        count = self.index.drop_stream(self.stream) if self.stream else 0
        refs = self._samples()
        for why in refs:
            self.abort(self._id_of(why.key), reason="the run is over")
        self._sweep()
        self.index.delete_prefix(f"{self.store_id}.step/", force=True)
        return count + len(refs)

    def close(self) -> None:
        """End the leases of this store, and say goodbye. The samples stay where they are.

        If they lie in a Mooncake segment of this process, they would end with it: then this waits until they
        are freed, for at most `linger_s`.
        """
        with self._lock:
            leases, self._leases = self._leases, {}
        for lease, _ in leases.values():
            self._let_go(lease)
        if getattr(self.backend, "has_segment", False) and not self.index.is_closed:
            self.linger(self._linger_s)
        if self._owns_index:
            self.index.close()

    def __getstate__(self) -> dict[str, Any]:
        # A worker has leases and duties of its own.
        fresh = {"_leases": {}, "_pending": {}, "_attempts": {}}
        fresh |= dict.fromkeys(("_lock", "_clock", "_recycler"))
        return self.__dict__ | fresh

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._lock, self._clock = threading.Lock(), time.monotonic
        self._recycler = Recycler()

    def __enter__(self) -> FeatureStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # How it is done.

    @property
    def _beside(self) -> Beside | None:
        if self._external is None:
            return None
        return Beside(self.store_id, self.index, self._external, self._replicas, self._clean)

    def _check_credential(self) -> None:
        if hasattr(self._auth, "check"):
            self._auth.check(self._credential)
            return
        right = self._auth(self._credential) if callable(self._auth) else self._credential == self._auth
        if self._auth is not None and not right:
            raise PermissionError(f"the credential for the feature store `{self.store_id}` is wrong")

    def _entry(self, sample_id: str) -> str:
        return f"{self.store_id}/{sample_id}"

    def _id_of(self, key: str | bytes) -> str:
        return (key if isinstance(key, str) else key.decode()).removeprefix(f"{self.store_id}/")

    def _native(self, ref: SampleRef) -> tiffin.SampleRef:
        pair = ref.metadata.get("index_generation") or to_pair(ref.metadata["generation"])
        return tiffin.SampleRef(self._entry(ref.sample_id), tuple(pair), 0, False)

    def _checked(self, given: Any) -> SampleRef:
        try:
            ref = as_ref(given)
        except (TypeError, ValueError, KeyError) as error:
            raise BadRef(f"this is no ref: {error}") from error
        if ref.schema_version != SCHEMA_VERSION:
            raise BadRef(
                f"sample `{ref.sample_id}`: a ref of version {ref.schema_version}, not {SCHEMA_VERSION}"
            )
        if ref.feature_store_uri != f"tiffin://{self.store_id}/{ref.sample_id}":
            raise BadRef(
                f"sample `{ref.sample_id}` is in `{ref.feature_store_uri}`, not in `{self.store_id}`"
            )
        if not isinstance(ref.generation, int) or ref.generation < 0:
            raise BadRef(f"the ref of sample `{ref.sample_id}` has no generation")
        return ref

    def _record(
        self, sample_id: str, tensors: Mapping[str, Any], metadata: dict[str, Any]
    ) -> tuple[SampleRef, str]:
        specs = {}
        for name, value in tensors.items():
            dtype, shape = describe(value)
            if dtype not in DTYPES:
                raise ValueError(f"tensor `{name}` is of type {dtype}, which is none of {', '.join(DTYPES)}")
            specs[name] = FeatureSpec(name, shape, dtype)
        fields = {name: metadata[name] for name in _FIELDS if metadata.get(name) is not None}
        metadata.pop("num_tokens", None)
        record = SampleRef(
            sample_id=sample_id,
            feature_store_uri=f"tiffin://{self.store_id}/{sample_id}",
            feature_keys={name: f"{self._entry(sample_id)}/{name}" for name in specs},
            feature_specs=specs,
            estimated_bytes=sum(spec.nbytes for spec in specs.values()),
            metadata=metadata,
            **fields,
        )
        try:
            return record, record.to_json()
        except TypeError as error:
            raise ValueError(f"the metadata of sample `{sample_id}` is no JSON: {error}") from error

    def _prepare(
        self, sample_id: str, tensors: Mapping[str, Any], metadata: Mapping[str, Any] | None
    ) -> tuple[dict[str, Any], SampleRef, str]:
        if not tensors:
            raise ValueError(f"sample `{sample_id}` has no tensors")
        try:
            tensors = {name: plain(value) for name, value in tensors.items()}
        except (BufferError, RuntimeError, TypeError) as error:
            raise ValueError(f"sample `{sample_id}` has a tensor that cannot be stored: {error}") from error
        return tensors, *self._record(sample_id, tensors, dict(metadata or {}))

    def _lease(self, refs: list[SampleRef], group: str) -> list[tiffin.Lease]:
        natives = [self._native(ref) for ref in refs]
        if len(natives) == 1:
            with _gone(refs[0].sample_id):
                return [self.index.lease(natives[0], group)]
        try:
            return self.index.lease(natives, group)
        except tiffin.Error as error:
            for ref, result in zip(refs, error.results or [], strict=False):
                if isinstance(result, GONE):
                    raise NotAvailable(f"sample `{ref.sample_id}` is not available: {result}") from error
            # What was leased all the same is let go of with the error.
            raise

    def _get(
        self, ref: SampleRef, lease: tiffin.Lease, names: list[str] | None, lend: bool
    ) -> tuple[dict[str, Any], SampleRef | None]:
        stored = self._compare(ref, lease)
        wanted = list(ref.feature_specs) if names is None else names
        if unknown := [name for name in wanted if name not in ref.feature_specs]:
            raise NotAvailable(f"sample `{ref.sample_id}` has no tensors {unknown}")
        return self._read(lease, stored or ref, wanted, lend), stored

    def _put_index(self, entry: Any, tensors: Any, text: Any, replace: bool, elsewhere: int = 0) -> Any:
        return self.index.put_sample(
            entry,
            tensors,
            metadata=text,
            consume=list(self.groups) if self.groups else "once",
            replace=replace,
            replicas=self._replicas,
            stream=self.stream,
            # Its life counts the bytes against the quota.
            elsewhere=elsewhere if self.stream else 0,
            wait=self._wait_s > 0,
            timeout=self._wait_s or None,
        )

    def _look_up(self, sample_id: str) -> SampleRef | None:
        """The ref of what is there, if anything is. Nothing is leased for that."""
        try:
            manifest, generation = self.index.manifest(self._entry(sample_id))
        except GONE:
            return None
        return self._ref(manifest.metadata, generation)

    def _stored(self, lease: tiffin.Lease) -> SampleRef:
        return self._ref(lease.manifest.metadata, lease.generation)

    @staticmethod
    def _ref(metadata: bytes, native: tuple[int, int]) -> SampleRef:
        record = SampleRef.from_json(metadata)
        return _with_generation(record, record.metadata.get("generation", to_number(native)), native)

    def _compare(self, ref: SampleRef, lease: tiffin.Lease) -> SampleRef | None:
        """Whether what is leased is what the ref says. Gives the ref that is stored, where it is needed."""
        stored = None if self._external is None else self._stored(lease)
        generation = to_number(lease.generation) if stored is None else stored.metadata["generation"]
        if ref.metadata["generation"] != generation:
            raise NotAvailable(f"sample `{ref.sample_id}` was superseded")
        if stored is None:
            there = {it.name: (it.dtype, tuple(it.shape)) for it in lease.manifest.tensors}
        else:
            there = {name: (it.dtype, it.shape) for name, it in stored.feature_specs.items()}
        told = {name: (it.dtype, it.shape) for name, it in ref.feature_specs.items()}
        if told != there:
            wrong = sorted({name for name, _ in told.items() ^ there.items()})
            raise BadRef(f"the ref of sample `{ref.sample_id}` does not match what is stored: {wrong}")
        return stored

    def _read(self, lease: tiffin.Lease, stored: SampleRef, names: list[str], lend: bool) -> dict[str, Any]:
        if (beside := self._beside) is not None:
            return beside.read(lease, stored, names)
        specs = stored.feature_specs
        if lend:
            return {name: lent(it, specs[name]) for name, it in lease.tensors(names, copy=False).items()}
        rooms = {name: room(self._recycler, specs[name]) for name in names}
        if any(it is None for it in rooms.values()):
            return lease.tensors(names)
        lease.get_into({name: it[0] for name, it in rooms.items() if it[0] is not None})
        return {name: it[1] for name, it in rooms.items()}

    def _let_go(self, lease: tiffin.Lease) -> None:
        with contextlib.suppress(tiffin.Error):
            lease.release()

    def _consume(self, native: tiffin.SampleRef) -> bool:
        return self.index.ack(native, unless_leased=True) != "recorded"

    def _delete(self, sample_id: str) -> bool:
        self.index.delete(self._entry(sample_id), force=True)
        return True

    def _free(
        self, sample_id: str, generation: int, stored: SampleRef | None, free: Callable[[], bool]
    ) -> None:
        """Take a sample away, or note that it is still to be done."""
        try:
            is_free = free()
        except tiffin.Error as error:
            _log.warning("sample `%s` could not be freed, and will be tried again: %s", sample_id, error)
            self._pending[sample_id, generation] = _Pending(sample_id, generation, stored, free)
            return
        if is_free and stored is not None:
            self._clean(stored)

    def _clean(self, stored: SampleRef) -> None:
        """Remove the tensors of a sample that is gone from the index, or note that it is still to be done."""
        if (beside := self._beside) is not None and not beside.clean(stored):
            name = stored.sample_id, stored.metadata["generation"]
            self._pending[name] = _Pending(*name, stored, None)

    def _sweep(self) -> None:
        """Take up what processes that died have left undone."""
        if (beside := self._beside) is not None:
            pending = {it.stored.metadata["life"] for it in self._pending.values() if it.stored is not None}
            beside.sweep(self._look_up, pending)

    def _try_again(self, pending: _Pending) -> bool:
        pending.tries += 1
        self._pending.pop((pending.sample_id, pending.generation), None)
        if pending.free is not None:
            self._free(pending.sample_id, pending.generation, pending.stored, pending.free)
        elif pending.stored is not None:
            self._clean(pending.stored)
        again = self._pending.get((pending.sample_id, pending.generation))
        if again is not None:
            again.tries = pending.tries
        return again is None

    def _drain(
        self,
        sample_ids: set[str] | None,
        tries_max: int,
        interval: float,
        sleep: Callable[[float], object],
    ) -> dict[str, int]:
        if tries_max < 1 or interval < 0:
            raise ValueError(f"{tries_max} attempts, {interval} s apart")
        removed = size = 0
        left: list[_Pending] = []
        for attempt in range(tries_max):
            if attempt:
                sleep(interval)
            mine = [it for it in self._pending.values() if sample_ids is None or it.sample_id in sample_ids]
            left = [pending for pending in mine if not self._try_again(pending)]
            freed = [it for it in mine if it not in left]
            removed += len(freed)
            size += sum(it.stored.estimated_bytes for it in freed if it.stored is not None)
            if not left:
                tried = attempt + bool(mine)
                return {"removed": removed, "removed_bytes": size, "release_pending": 0, "attempts": tried}
        names = ", ".join(sorted({pending.sample_id for pending in left}))
        raise RuntimeError(f"could not be freed after {tries_max} attempts: {names}")

    def _samples(self) -> list[tiffin.Why]:
        keys = [info.key for info in self.index.list(f"{self.store_id}/")]
        found: list[tiffin.Why] = []
        for at in range(0, len(keys), _LOOK_MAX):
            found += self.index.why(keys[at : at + _LOOK_MAX])
        return [why for why in found if why.state == "here" and why.consume is not None]

    def _end_holding(self, later: float) -> tuple[int, int]:
        count = size = 0
        for why in self._samples():
            if why.leases or why.age + later < (self.max_hold_age_s or 0.0):
                continue
            sample_id = self._id_of(why.key)
            stored = self._look_up(sample_id) if self._external is not None else None
            native = tiffin.SampleRef(why.key, why.generation, why.size, False)
            self._free(sample_id, to_number(why.generation), stored, lambda it=native: self._give_up(it))
            count, size = count + 1, size + why.size
        return count, size

    def _give_up(self, native: tiffin.SampleRef) -> bool:
        return self.index.abort(native, unless_leased=True)


@dataclasses.dataclass
class _Pending:
    """A free that is still to be done."""

    sample_id: str
    generation: int
    stored: SampleRef | None
    #: Takes it out of the index; none if that is done, and only its bytes are left.
    free: Callable[[], bool] | None
    tries: int = 0


def _as_named(sample_id: str, error: Exception) -> Exception:
    """What a pipeline expects instead of an error of the store."""
    if isinstance(error, tiffin.Full):
        return ConsumerBehind(f"the consumer is behind: {error}")
    if isinstance(error, tiffin.Exists):
        return Duplicate(f"sample `{sample_id}` is there, or was consumed: {error}")
    if isinstance(error, (tiffin.InvalidArgument, BufferError, TypeError)):
        return ValueError(f"sample `{sample_id}`: {error}")
    return RuntimeError(f"sample `{sample_id}` could not be written: {error}")


@contextlib.contextmanager
def _named(sample_id: str) -> Iterator[None]:
    try:
        yield
    except (tiffin.Error, BufferError, TypeError) as error:
        raise _as_named(sample_id, error) from error


@contextlib.contextmanager
def _gone(sample_id: str) -> Iterator[None]:
    try:
        yield
    except GONE as error:
        raise NotAvailable(f"sample `{sample_id}` is not available: {error}") from error


def _with_generation(record: SampleRef, generation: int, native: tuple[int, int]) -> SampleRef:
    more = {"generation": generation, "index_generation": list(native)}
    return dataclasses.replace(record, metadata=record.metadata | more)


__all__ = ["FeatureStore", "Mooncake", "Own"]
