"""The feature store: put, get, release, abort and the rest of the contract, on top of samples.

The index decides: generations, leases, tombstones and consumption are state of our master, and all
processes see changes at once. This module keeps the leases of this process, and failed frees that are
retried. A `placement.Placement` stores the tensors.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tiffin

from .backend import Backend, Mooncake, Own, connect_index
from .entries import Entries, Prepared
from .errors import GONE, BadRef, NotAvailable
from .external import ExternalPlacement
from .pending import Pending, PendingFrees, gone
from .placement import IndexPlacement, Placement
from .records import (
    DTYPES,
    PUT_FIELDS,
    SCHEMA_VERSION,
    FeatureHandle,
    FeatureSpec,
    Number,
    SampleRef,
    as_ref,
    is_generation,
    to_number,
)
from .stream import Consumer
from .tensors import describe, on_device, plain

_log = logging.getLogger("tiffin")


class FeatureStore:
    """Samples of hidden states, from producers to trainers, with lifetimes that the store manages.

    Without `store` and `address` the store is inside this process. `address` joins a Tiffin cluster, in the
    namespace `store_id`; `store` is a connected `tiffin.Store` to use instead. With `backend` the tensors
    are in a running Mooncake cluster (`tiffin.features.Mooncake`), and only the index is in Tiffin.

    `auth` is the expected secret, a function that checks a credential, or an object with a `check` that
    raises `PermissionError`. `credential` is the credential of this process, also for the servers.
    `max_resident_bytes` limits the namespace across all processes. `max_hold_age_s` frees samples that were
    not leased for that long. With `retain_on_release` a release only ends the lease; otherwise the last
    release frees the sample.

    `stream` and `groups` append every put to a stream, which consumers of these groups read with
    `consumer`. `wait_s` is the maximum time that a put waits for space. `linger_s` is the maximum time that
    `close` waits until the samples in a Mooncake segment of this process are freed.

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
            raise ValueError(f"store_id={store_id!r}: it must be a name without slashes")
        self.store_id, self.stream, self.groups = store_id, stream, tuple(groups)
        self._auth, self._credential = auth, credential
        self._check_credential()
        self._owns_index = store is None
        self.index = connect_index(store_id, address, credential, **connect) if store is None else store
        self.backend = backend or Own()
        self.max_resident_bytes, self.max_hold_age_s = max_resident_bytes, max_hold_age_s
        self._retain, self._tries_max = retain_on_release, max_release_attempts
        self._replicas, self._hard_pin = replica_num, hard_pin
        self._wait_s, self._linger_s, self._clock = wait_s, linger_s, clock
        self._set_up()
        # Samples that this store freed for their age, and those that `gc` has reported, with their bytes.
        self._given_up, self._reported = (0, 0), (0, 0)
        # The same for the master, as of the last request.
        self._expired = (0, 0)
        if max_resident_bytes is not None:
            self.index.set_policy(quota=max_resident_bytes)
        if max_hold_age_s is not None and self._placement.is_freed_by_master:
            self.index.set_policy(max_hold=max_hold_age_s)
            self._expired_since()

    def _set_up(self) -> None:
        """Create the state of this process: locks, leases, and open frees."""
        self._entries = Entries(
            self.store_id,
            self.index,
            stream=self.stream,
            groups=self.groups,
            replicas=self._replicas,
            wait_s=self._wait_s,
        )
        self._placement: Placement = (
            IndexPlacement(self._entries)
            if isinstance(self.backend, Own)
            else ExternalPlacement(self._entries, self.backend, hard_pin=self._hard_pin, discard=self._remove)
        )
        self._pending = PendingFrees()
        # Guards leases, attempts and counts. It is never held during a call to a store.
        self._lock = threading.Lock()
        # Held by the thread that asks the master for its counts. If two answers were applied in another
        # order, the older one would look like that of a restarted master.
        self._expiry = threading.Lock()
        self._leases: dict[str, tuple[tiffin.Lease, SampleRef | None]] = {}
        self._attempts: dict[str, tuple[Number, tuple[str, ...]]] = {}

    # Puts and reads.

    def put(
        self,
        tensors: Mapping[str, Any],
        *,
        sample_id: str,
        metadata: Mapping[str, Any] | None = None,
        replace: bool = True,
    ) -> SampleRef:
        """Store the tensors of a sample atomically, and return its ref.

        An older sample of that id is superseded: its refs fail from now on. With `replace=False`, and for
        an id that was consumed from the stream, this raises `Duplicate`, a `ValueError`. Samples without
        tensors, or with element types that are not in `DTYPES`, are a `ValueError`, too. Raises
        `MemoryError` if the namespace or the stream is full because the consumer is behind, and
        `RuntimeError` if the sample could not be written. Nothing is left behind then.
        """
        self._check_credential()
        return self._placement.put(self._prepare(sample_id, tensors, metadata), replace)

    def put_many(
        self,
        samples: Mapping[str, Mapping[str, Any]],
        *,
        metadata: Mapping[str, Mapping[str, Any]] | None = None,
        replace: bool = True,
    ) -> list[SampleRef]:
        """Store the samples of a batch, by their ids, with one request to the store if that is possible.

        Each sample is stored as by `put`. If one fails, its error is raised, and the others stay stored.
        `results` of the error has for each sample its ref, or its error.
        """
        self._check_credential()
        by_id = metadata or {}
        # Invalid input is rejected before anything is stored.
        ready = [self._prepare(name, tensors, by_id.get(name)) for name, tensors in samples.items()]
        if len(ready) < 2:
            return [self._placement.put(sample, replace) for sample in ready]
        return self._placement.put_many(ready, replace)

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

        They are in memory of their own, which the store does not change; with `lend=True` they are read-only
        views of the store's memory, if that is on this host. Torch tensors if torch was imported, else numpy
        arrays. With `device="cuda:0"` the device copies them from the store's memory itself. Raises
        `KeyError` if the sample was freed, aborted or superseded, was never put, or does not match the ref.
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
        """The same as `get` for the samples of a batch, which are leased in one call: all, or an error."""
        self._check_credential()
        refs = [self._checked(ref) for ref in refs]
        names = None if names is None else list(names)
        leases = self._lease(refs, group or (self.groups[0] if self.groups else ""))
        read: list[tuple[dict[str, Any], SampleRef | None]] = []
        try:
            for ref, lease in zip(refs, leases, strict=True):
                with gone(ref.sample_id):
                    read.append(self._get(ref, lease, names, lend, device))
        except BaseException:
            for lease in leases:
                self._let_go(lease)
            raise
        given = []
        for ref, lease, (tensors, stored) in zip(refs, leases, read, strict=True):
            handle = FeatureHandle(ref.sample_id, ref.metadata["generation"], uuid.uuid4().hex)
            with self._lock:
                self._leases[handle.lease_token] = (lease, stored)
            if str(device) != "cpu":
                tensors = {name: on_device(tensor, device) for name, tensor in tensors.items()}
            given.append((tensors, handle))
        return given

    def release(self, handle: FeatureHandle, *, reason: str = "") -> None:
        """End a lease. The last release of a sample frees it, unless it is retained or read from a stream.

        Releasing a superseded or released handle has no effect. Never raises: `gc` and the drains retry a
        failed free.
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
        """Free a sample now, even if it is leased. Every process sees that at once.

        Never raises: `gc` and the drains retry a failed free.
        """
        stored = None
        # `gc` finds a sample that cannot be looked up now.
        with contextlib.suppress(tiffin.Error):
            stored = self._placement.find(sample_id)
        generation = stored.metadata["generation"] if stored is not None else 0
        self._free(sample_id, generation, stored, lambda: self._delete(sample_id))

    def ack(self, refs: Iterable[Any], *, group: str = "") -> list[str]:
        """Acknowledge samples on behalf of a group, such as those of an optimizer step, in one call.

        Returns for each `"freed"`, `"recorded"` if other groups have not consumed it yet, or `"stale"`.
        When this returns, no process can read a freed sample, and its memory can be reused.
        """
        refs = [self._checked(ref) for ref in refs]
        group = group or (self.groups[0] if self.groups else "")
        natives = [self._entries.native(ref) for ref in refs]
        records = [self._placement.find(ref.sample_id) for ref in refs]
        outcomes: list[str] = list(self.index.ack(natives, group))
        for ref, stored, outcome in zip(refs, records, outcomes, strict=True):
            # A sample that was put in the meantime has another generation, and is not freed.
            is_it = stored is not None and stored.metadata["generation"] == ref.metadata["generation"]
            if outcome == "freed" and stored is not None and is_it:
                self._remove(stored)
        return outcomes

    # Samples that other processes wrote, or were about to write.

    def adopt(self, ref: Any) -> bool:
        """Check a sample that another process wrote, and return whether it exists.

        The store manages its lifetime in any case, so that this is a lookup. Raises `ValueError` for a ref
        without a generation.
        """
        ref = as_ref(ref)
        if not is_generation(ref.generation):
            raise ValueError(f"the ref of sample `{ref.sample_id}` has no generation")
        with self._lock:
            self._attempts.pop(ref.sample_id, None)
        stored = self._entries.look_up(ref.sample_id)
        return stored is not None and stored.metadata["generation"] == ref.generation

    def track_external_attempt(
        self, sample_id: str, *, generation: Number, feature_names: Iterable[str]
    ) -> None:
        """Record the tensors that a server is about to write, so that they can be reclaimed if its response
        is lost."""
        names = tuple(feature_names)
        if not names:
            raise ValueError(f"the attempt to write sample `{sample_id}` has no tensors")
        with self._lock:
            self._attempts[sample_id] = (generation, names)

    def discard_external_attempts(self, *, reason: str = "") -> int:
        """Free the samples of tracked attempts that were not adopted, and return their number.

        `RuntimeError` lists those that could not be freed.
        """
        with self._lock:
            attempts = dict(self._attempts)
        failed = []
        for sample_id, (generation, names) in attempts.items():
            self.abort(sample_id, reason=reason or "an attempt without a response")
            is_removed = self._placement.remove_attempt(sample_id, generation, names)
            if not is_removed or any(it.sample_id == sample_id for it in self._pending.snapshot()):
                failed.append(sample_id)
                continue
            with self._lock:
                self._attempts.pop(sample_id, None)
        if failed:
            raise RuntimeError(f"could not be reclaimed: {', '.join(failed)}")
        return len(attempts)

    # Open frees.

    def drain_pending_removals(
        self,
        max_attempts: int = 8,
        retry_interval_s: float = 0.25,
        sleep: Callable[[float], object] = time.sleep,
    ) -> dict[str, int]:
        """Finish every failed free, within limits, and return their number.

        `RuntimeError` names the samples that are left; they stay recorded.
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
        """Free samples that were not leased for longer than `max_hold_age_s`, and retry failed frees.

        Also removes the leftovers of ended processes in the backend. Returns the number of freed samples,
        including those that the master has freed by the same limit since the last call, and the number of
        pending frees.
        """
        later = 0.0 if now is None else max(0.0, now - self._clock())
        if self.max_hold_age_s is not None:
            self._end_holding(later)
        for pending in self._pending.snapshot():
            self._pending.retry(pending, self._finish, self._tries_max)
        self._sweep()
        expired = self._expired_since()
        with self._lock:
            pairs = zip(self._given_up, self._reported, strict=True)
            count, size = (now - reported for now, reported in pairs)
            self._reported = self._given_up
        return {
            "force_freed": count + expired[0],
            "force_freed_bytes": size + expired[1],
            "release_pending": len(self._pending),
        }

    def health(self) -> dict[str, Any]:
        """The state of the store across all processes; pending and provisional samples of this process."""
        stat = self.index.wait_usage(at_least=0)
        ages = [why.age or 0.0 for why in self._entries.resident()]
        with self._lock:
            provisional = len(self._attempts)
            force_freed = self._given_up[0] + stat.samples_expired
        return {
            "store_id": self.store_id,
            "backend": self.backend.name,
            "resident_samples": len(ages),
            "resident_bytes": stat.samples_size,
            "max_resident_bytes": self.max_resident_bytes,
            "active_leases": stat.samples_leased,
            "release_pending": len(self._pending),
            "provisional_external": provisional,
            "oldest_age_s": max(ages, default=0.0),
            "avg_age_s": sum(ages) / len(ages) if ages else 0.0,
            "force_freed_total": force_freed,
            "hard_pin": self._hard_pin,
            "auth_required": getattr(self._auth, "required", self._auth is not None)
            or self._credential is not None,
        }

    @staticmethod
    def estimate_bytes(specs: Mapping[str, FeatureSpec] | Iterable[FeatureSpec]) -> int:
        """The number of bytes of tensors with these specs."""
        return sum(spec.nbytes for spec in (specs.values() if isinstance(specs, Mapping) else specs))

    def consumer(self, group: str = "", *, window: int = 1, timeout: float | None = None) -> Consumer:
        """Read the stream as a consumer of a group that takes `window` samples before it acknowledges any."""
        if not self.stream:
            raise ValueError(
                'this store has no stream\n\nhint: create it with `FeatureStore(…, stream="train")`'
            )
        return Consumer(self, group or (self.groups[0] if self.groups else ""), window, timeout)

    def linger(self, max_s: float) -> bool:
        """Wait until every sample is freed, or `max_s` seconds have passed. Returns whether all are freed.

        This is for a producer whose Mooncake segment has samples that are not read yet: they would end with
        it. The log `tiffin` names the samples that it waits for.
        """
        until = time.monotonic() + max_s
        while left := self._entries.resident():
            rest = until - time.monotonic()
            if rest <= 0:
                return False
            oldest = max(left, key=lambda why: why.age or 0.0)
            _log.info("waiting for %d samples, `%s` for %.0f s", len(left), oldest.key, oldest.age)
            used = self.index.wait_usage(at_least=0).used
            with contextlib.suppress(tiffin.Timeout):
                self.index.wait_usage(at_most=max(0, used - 1), timeout=min(rest, 5.0))
        return True

    def drop_run(self) -> int:
        """Delete every sample of this store, and its stream. Returns the number of samples."""
        count = self.index.drop_stream(self.stream) if self.stream else 0
        refs = self._entries.resident()
        for why in refs:
            self.abort(self._entries.sample_id(why.key), reason="the run is over")
        self._sweep()
        self.index.delete_prefix(f"{self.store_id}.step/", force=True)
        return count + len(refs)

    def close(self) -> None:
        """End the leases of this store, and disconnect. The samples stay.

        Samples in a Mooncake segment of this process would end with it: this waits until they are freed,
        for at most `linger_s`.
        """
        with self._lock:
            leases, self._leases = self._leases, {}
        for lease, _ in leases.values():
            self._let_go(lease)
        if self._placement.ends_with_process and not self.index.is_closed:
            self.linger(self._linger_s)
        if self._owns_index:
            self.index.close()

    def __getstate__(self) -> dict[str, Any]:
        # A worker has its own leases and frees.
        own = ("_entries", "_placement", "_pending", "_lock", "_expiry", "_leases", "_attempts", "_clock")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._clock = time.monotonic
        self._set_up()

    def __enter__(self) -> FeatureStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Helpers.

    def _check_credential(self) -> None:
        if hasattr(self._auth, "check"):
            self._auth.check(self._credential)
            return
        right = self._auth(self._credential) if callable(self._auth) else self._credential == self._auth
        if self._auth is not None and not right:
            raise PermissionError(f"the credential for the feature store `{self.store_id}` is wrong")

    def _checked(self, given: Any) -> SampleRef:
        try:
            ref = as_ref(given)
        except (TypeError, ValueError, KeyError) as error:
            raise BadRef(f"not a ref: {error}") from error
        if ref.schema_version != SCHEMA_VERSION:
            raise BadRef(
                f"sample `{ref.sample_id}`: the ref has version {ref.schema_version}, not {SCHEMA_VERSION}"
            )
        if ref.feature_store_uri != f"tiffin://{self.store_id}/{ref.sample_id}":
            raise BadRef(
                f"sample `{ref.sample_id}` is in `{ref.feature_store_uri}`, not in `{self.store_id}`"
            )
        if not is_generation(ref.generation):
            raise BadRef(f"the ref of sample `{ref.sample_id}` has no generation")
        return ref

    def _record(
        self, sample_id: str, tensors: Mapping[str, Any], metadata: dict[str, Any]
    ) -> tuple[SampleRef, str]:
        specs = {}
        for name, value in tensors.items():
            dtype, shape = describe(value)
            if dtype not in DTYPES:
                raise ValueError(f"tensor `{name}` has type {dtype}, which is not one of {', '.join(DTYPES)}")
            specs[name] = FeatureSpec(name, shape, dtype)
        fields = {name: metadata[name] for name in PUT_FIELDS if metadata.get(name) is not None}
        metadata.pop("num_tokens", None)
        record = SampleRef(
            sample_id=sample_id,
            feature_store_uri=f"tiffin://{self.store_id}/{sample_id}",
            feature_keys={name: f"{self._entries.key(sample_id)}/{name}" for name in specs},
            feature_specs=specs,
            estimated_bytes=sum(spec.nbytes for spec in specs.values()),
            metadata=metadata,
            **fields,
        )
        try:
            return record, record.to_json()
        except TypeError as error:
            raise ValueError(f"the metadata of sample `{sample_id}` is not JSON: {error}") from error

    def _prepare(
        self, sample_id: str, tensors: Mapping[str, Any], metadata: Mapping[str, Any] | None
    ) -> Prepared:
        if not tensors:
            raise ValueError(f"sample `{sample_id}` has no tensors")
        try:
            tensors = {name: plain(value) for name, value in tensors.items()}
        except (BufferError, RuntimeError, TypeError) as error:
            raise ValueError(f"sample `{sample_id}` has a tensor that cannot be stored: {error}") from error
        return Prepared(sample_id, tensors, *self._record(sample_id, tensors, dict(metadata or {})))

    def _lease(self, refs: list[SampleRef], group: str) -> list[tiffin.Lease]:
        natives = [self._entries.native(ref) for ref in refs]
        if len(natives) == 1:
            with gone(refs[0].sample_id):
                return [self.index.lease(natives[0], group)]
        try:
            return self.index.lease(natives, group)
        except tiffin.Error as error:
            for ref, result in zip(refs, error.results or [], strict=False):
                if isinstance(result, GONE):
                    raise NotAvailable(f"sample `{ref.sample_id}` is not available: {result}") from error
            # Leases that were granted nevertheless end with the error.
            raise

    def _get(
        self, ref: SampleRef, lease: tiffin.Lease, names: list[str] | None, lend: bool, device: str
    ) -> tuple[dict[str, Any], SampleRef | None]:
        stored = self._compare(ref, lease)
        wanted = list(ref.feature_specs) if names is None else names
        if unknown := [name for name in wanted if name not in ref.feature_specs]:
            raise NotAvailable(f"sample `{ref.sample_id}` has no tensors {unknown}")
        return self._read(lease, stored or ref, wanted, lend, device), stored

    def _compare(self, ref: SampleRef, lease: tiffin.Lease) -> SampleRef | None:
        """Check that the leased sample is the one of the ref. Returns its stored record, if there is one."""
        stored = self._placement.describe(lease)
        if ref.metadata["generation"] != stored.generation:
            raise NotAvailable(f"sample `{ref.sample_id}` was superseded")
        expected = {name: (it.dtype, it.shape) for name, it in ref.feature_specs.items()}
        if expected != stored.tensors:
            wrong = sorted({name for name, _ in expected.items() ^ stored.tensors.items()})
            raise BadRef(f"the ref of sample `{ref.sample_id}` does not match the stored sample: {wrong}")
        return stored.record

    def _read(
        self, lease: tiffin.Lease, ref: SampleRef, names: list[str], lend: bool, device: str
    ) -> dict[str, Any]:
        return self._placement.read(lease, ref, names, lend, device)

    def _let_go(self, lease: tiffin.Lease) -> None:
        with contextlib.suppress(tiffin.Error):
            lease.release()

    def _consume(self, native: tiffin.SampleRef) -> bool:
        return self.index.ack(native, unless_leased=True) != "recorded"

    def _delete(self, sample_id: str) -> bool:
        self.index.delete(self._entries.key(sample_id), force=True)
        return True

    def _free(
        self, sample_id: str, generation: Number, stored: SampleRef | None, free: Callable[[], bool]
    ) -> None:
        """Free a sample, or record that for a retry."""
        pending = Pending(sample_id, generation, stored, free)
        if not self._finish(pending):
            self._pending.add(pending)

    def _remove(self, stored: SampleRef) -> None:
        """Remove the tensors of a sample whose entry is gone, or record that for a retry."""
        pending = Pending(stored.sample_id, stored.metadata["generation"], stored, None)
        if not self._finish(pending):
            self._pending.add(pending)

    def _finish(self, pending: Pending) -> bool:
        """Do the rest of a free. Returns whether it is done. No lock is held."""
        if pending.free is not None:
            try:
                is_free = pending.free()
            except tiffin.Error as error:
                what = "sample `%s` could not be freed, and is retried later: %s"
                _log.warning(what, pending.sample_id, error)
                return False
            if not is_free:
                # The sample has another lease, whose end frees it.
                return True
            pending.free = None
        return pending.stored is None or self._placement.remove(pending.stored)

    def _sweep(self) -> None:
        """Remove the leftovers of ended processes in the backend."""
        self._placement.sweep([it.stored for it in self._pending.snapshot() if it.stored is not None])

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
        left: list[Pending] = []
        for attempt in range(tries_max):
            if attempt:
                sleep(interval)
            noted = self._pending.snapshot()
            mine = [it for it in noted if sample_ids is None or it.sample_id in sample_ids]
            left = [pending for pending in mine if not self._pending.retry(pending, self._finish)]
            freed = [it for it in mine if it not in left]
            removed += len(freed)
            size += sum(it.stored.estimated_bytes for it in freed if it.stored is not None)
            if not left:
                tried = attempt + bool(mine)
                return {"removed": removed, "removed_bytes": size, "release_pending": 0, "attempts": tried}
        names = ", ".join(sorted({pending.sample_id for pending in left}))
        raise RuntimeError(f"could not be freed after {tries_max} attempts: {names}")

    def _end_holding(self, later: float) -> None:
        for why in self._entries.resident():
            if why.leases or (why.age or 0.0) + later < (self.max_hold_age_s or 0.0):
                continue
            sample_id = self._entries.sample_id(why.key)
            stored = self._placement.find(sample_id)
            native = tiffin.SampleRef(why.key, why.generation or (0, 0), why.size or 0, False)
            free = functools.partial(self._give_up, native)
            self._free(sample_id, to_number(native.generation), stored, free)

    def _expired_since(self) -> tuple[int, int]:
        """The number of samples that the master has freed for their age since the last call, and their
        bytes."""
        if not self._placement.is_freed_by_master or self.max_hold_age_s is None:
            return 0, 0
        with self._expiry:
            stat = self.index.wait_usage(at_least=0)
            (count, size), now = self._expired, (stat.samples_expired, stat.samples_expired_size)
            self._expired = now
        # A master that restarted meanwhile counts from zero.
        return (now[0] - count, now[1] - size) if now[0] >= count else now

    def _give_up(self, native: tiffin.SampleRef) -> bool:
        is_freed = self.index.abort(native, unless_leased=True)
        with self._lock:
            count, size = self._given_up
            self._given_up = (count + 1, size + native.size) if is_freed else (count, size)
        return is_freed


__all__ = ["FeatureStore", "Mooncake", "Own"]
