"""Samples whose tensors are objects of another store, which gives fewer guarantees than the index.

Before the first byte is written, a *lifetime record* is put into the index. It names the tensors and counts
their bytes. It is deleted after the last byte is removed. So the quota of the namespace counts what the
other store really holds, whichever process wrote it, including bytes that could not be removed.

A lifetime record without a lease, whose generation is not in the index, belongs to a process that ended or
to a failed free. `sweep` in any process removes it and its tensors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import tiffin

from .backend import Backend, Changed, Mooncake, Torn, keys_left
from .entries import Entries, Prepared, with_generation
from .errors import Duplicate, NotAvailable
from .pending import named
from .placement import Stored
from .records import Number, SampleRef, to_number
from .tensors import in_one_piece, shaped

#: The bytes of each tensor in the order of its elements, and the object that owns them.
_Pieces = Mapping[str, tuple[memoryview, Any]]


class ExternalPlacement:
    """The tensors of samples in a backend, and their lifetime records in the index."""

    is_freed_by_master = False

    def __init__(
        self, entries: Entries, backend: Backend, *, hard_pin: bool, discard: Callable[[SampleRef], None]
    ) -> None:
        """`discard` removes a sample's tensors, or records that for a retry."""
        self._entries, self._index, self._backend = entries, entries.index, backend
        self._discard = discard
        if isinstance(backend, Mooncake):
            backend.prefer(replica_num=entries.replicas, hard_pin=hard_pin)

    @property
    def ends_with_process(self) -> bool:
        """Whether the backend stores objects in memory of this process."""
        return bool(getattr(self._backend, "has_segment", False))

    def put(self, sample: Prepared, replace: bool) -> SampleRef:
        """Write the tensors and then their entry. After a failure, only `sweep` finds leftovers."""
        with named(sample.sample_id):
            old = self._entries.look_up(sample.sample_id)
            if old is not None and not replace:
                raise Duplicate(f"sample `{sample.sample_id}` exists")
            pieces = {name: in_one_piece(value) for name, value in sample.tensors.items()}
            try:
                put = self._put(sample, pieces, replace, is_staged=False)
            except Changed:
                # Retry under other keys, and from copies, which do not change.
                put = self._put(sample, pieces, replace, is_staged=True)
            if old is not None:
                self._discard(old)
            return put

    def put_many(self, samples: Sequence[Prepared], replace: bool) -> list[SampleRef]:
        """Put the samples one after the other."""
        return [self.put(sample, replace) for sample in samples]

    def _put(self, sample: Prepared, pieces: _Pieces, replace: bool, *, is_staged: bool) -> SampleRef:
        record, lifetime = self._begin(sample, pieces)
        keys, generation = record.feature_keys, record.metadata["generation"]
        with self._index.lease(lifetime):
            try:
                sums = {
                    name: self._backend.write(keys[name], data, is_staged=is_staged)
                    for name, (data, _) in pieces.items()
                }
                record = dataclasses.replace(record, metadata=record.metadata | {"checksums": sums})
                entry, text = self._entries.key(sample.sample_id), record.to_json().encode()
                native = self._entries.put(entry, {"entry": b"\0"}, text, replace, record.estimated_bytes)
            except BaseException:
                self._discard(record)
                raise
        return with_generation(record, generation, native.generation)

    def _begin(self, sample: Prepared, pieces: _Pieces) -> tuple[SampleRef, tiffin.SampleRef]:
        """Put the lifetime record, whose generation makes the keys of the tensors unique."""
        contents = json.dumps({"sample_id": sample.sample_id, "names": list(pieces)}).encode()
        lifetime = self._index.put_sample(
            f"{self._lifetimes}{uuid.uuid4().hex}",
            {"life": contents},
            elsewhere=sample.record.estimated_bytes * self._entries.replicas,
            wait=self._entries.wait_s > 0,
            timeout=self._entries.wait_s or None,
        )
        generation = to_number(lifetime.generation)
        keys = {name: self._key(sample.sample_id, generation, name) for name in pieces}
        more = {"generation": generation, "life": lifetime.id}
        metadata = sample.record.metadata | more
        return dataclasses.replace(sample.record, feature_keys=keys, metadata=metadata), lifetime

    def find(self, sample_id: str) -> SampleRef | None:
        """The record of the current sample of this id, which names its tensors."""
        return self._entries.look_up(sample_id)

    def describe(self, lease: tiffin.Lease) -> Stored:
        """The contents of the record in the entry."""
        record = self._entries.leased(lease)
        tensors = {name: (it.dtype, it.shape) for name, it in record.feature_specs.items()}
        return Stored(record.metadata["generation"], tensors, record)

    def read(
        self, lease: tiffin.Lease, ref: SampleRef, names: list[str], lend: bool, device: str
    ) -> dict[str, Any]:
        """Read each tensor into memory of its own, and verify its checksum."""
        tensors = {}
        for name in names:
            spec = ref.feature_specs[name]
            try:
                expected = ref.metadata["checksums"][name]
                memory = self._backend.read(ref.feature_keys[name], spec.nbytes, expected)
            except Torn as error:
                raise NotAvailable(f"sample `{ref.sample_id}` is not available: {error}") from error
            tensors[name] = shaped(memory, spec)
        # An abort in the meantime was confirmed, so that the sample must not be returned.
        if self._index.info(lease.id).generation != lease.generation:
            raise NotAvailable(f"sample `{ref.sample_id}` is gone")
        return tensors

    def remove(self, record: SampleRef) -> bool:
        """Remove the tensors of a sample, and then its lifetime record."""
        if keys_left(self._backend, record.feature_keys.values()):
            return False
        with contextlib.suppress(tiffin.Error):
            self._index.delete(record.metadata["life"], force=True)
            return True
        return False

    def remove_attempt(self, sample_id: str, generation: Number, names: Iterable[str]) -> bool:
        """Remove the tensors that another process may have written under this generation."""
        return not keys_left(self._backend, [self._key(sample_id, generation, name) for name in names])

    def sweep(self, spared: Collection[SampleRef]) -> None:
        """Remove the tensors of lifetime records that no process leases and no entry names."""
        kept = {record.metadata["life"] for record in spared}
        lifetimes = {info.key: info for info in self._index.list(self._lifetimes)}
        for why in self._index.why(list(lifetimes)) if lifetimes else ():
            if why.key in kept or why.state != "here" or why.leases:
                continue
            with contextlib.suppress(tiffin.Error):
                self._end(why.key, to_number(lifetimes[why.key].generation))

    def _end(self, key: str | bytes, generation: Number) -> None:
        """Remove a lifetime record with its tensors, unless the index names its generation."""
        with self._index.lease(key) as lease:
            contents = json.loads(bytes(lease.tensors()["life"]))
            current = self._entries.look_up(contents["sample_id"])
            if current is not None and current.metadata["generation"] == generation:
                return
            if self.remove_attempt(contents["sample_id"], generation, contents["names"]):
                self._index.delete(key, force=True)

    @property
    def _lifetimes(self) -> str:
        """The beginning of the keys of lifetime records."""
        return f"{self._entries.store_id}.life/"

    def _key(self, sample_id: str, generation: Number, name: str) -> str:
        """The key of a tensor in the backend."""
        return f"{self._entries.store_id}/{sample_id}/g{generation}/{name}"
