"""Samples whose tensors lie beside the index, in a store that makes fewer promises.

Before the first byte is written, a *life* is put into the index: it says what is about to be written and how
much that is, and goes after the last byte is removed. So the quota of the namespace counts what really lies
there, whichever process wrote it, and whatever could not be removed. A life that nobody has leased, and whose
generation is not the one that the index names, is of a process that died or of a free that failed: `sweep` of
any process ends it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any

import tiffin

from .backend import Backend, Changed, Torn, keys_left
from .errors import Duplicate, NotAvailable
from .records import SampleRef, to_number
from .tensors import in_one_piece, shaped

#: What is there of a sample, and how to put its entry: its tensors there, its record, bytes elsewhere.
PutEntry = Callable[[Mapping[str, Any], SampleRef, int], tiffin.SampleRef]


class Beside:
    """The tensors of a feature store's samples, in a backend, and their lives in the index."""

    def __init__(
        self,
        store_id: str,
        index: tiffin.Store,
        backend: Backend,
        copies: int,
        discard: Callable[[SampleRef], None],
    ) -> None:
        self.store_id, self.index, self.backend, self._copies = store_id, index, backend, copies
        # Cleans, or notes that it is still to be done.
        self._discard = discard

    def key(self, sample_id: str, generation: int, name: str) -> str:
        """Where a tensor lies."""
        return f"{self.store_id}/{sample_id}/g{generation}/{name}"

    def put(
        self,
        sample_id: str,
        tensors: Mapping[str, Any],
        record: SampleRef,
        old: SampleRef | None,
        put_entry: PutEntry,
        wait_s: float,
    ) -> tuple[SampleRef, tiffin.SampleRef]:
        """Write tensors and then their entry: all, or nothing is left but what `sweep` takes away."""
        pieces = {name: in_one_piece(value) for name, value in tensors.items()}
        try:
            put = self._put(sample_id, pieces, record, put_entry, wait_s, is_staged=False)
        except Changed:
            # Under other keys, and from copies, which nobody changes.
            put = self._put(sample_id, pieces, record, put_entry, wait_s, is_staged=True)
        if old is not None:
            self._discard(old)
        return put

    def _put(
        self,
        sample_id: str,
        pieces: Mapping[str, tuple[memoryview, Any]],
        record: SampleRef,
        put_entry: PutEntry,
        wait_s: float,
        *,
        is_staged: bool,
    ) -> tuple[SampleRef, tiffin.SampleRef]:
        told = json.dumps({"sample_id": sample_id, "names": list(pieces)}).encode()
        life = self.index.put_sample(
            f"{self.store_id}.life/{uuid.uuid4().hex}",
            {"life": told},
            elsewhere=record.estimated_bytes * self._copies,
            wait=wait_s > 0,
            timeout=wait_s or None,
        )
        generation = to_number(life.generation)
        keys = {name: self.key(sample_id, generation, name) for name in pieces}
        more = {"generation": generation, "life": life.id}
        record = dataclasses.replace(record, feature_keys=keys, metadata=record.metadata | more)
        with self.index.lease(life):
            try:
                sums = {
                    name: self.backend.write(keys[name], data, is_staged=is_staged)
                    for name, (data, _) in pieces.items()
                }
                record = dataclasses.replace(record, metadata=record.metadata | {"checksums": sums})
                native = put_entry({"entry": b"\0"}, record, record.estimated_bytes)
            except BaseException:
                self._discard(record)
                raise
        return record, native

    def read(self, lease: tiffin.Lease, stored: SampleRef, names: list[str]) -> dict[str, Any]:
        """The tensors of a leased sample, each straight in memory that it keeps."""
        tensors = {}
        for name in names:
            spec = stored.feature_specs[name]
            try:
                expected = stored.metadata["checksums"][name]
                memory = self.backend.read(stored.feature_keys[name], spec.nbytes, expected)
            except Torn as error:
                raise NotAvailable(f"sample `{stored.sample_id}` is not available: {error}") from error
            tensors[name] = shaped(memory, spec)
        # Whoever aborted it meanwhile was answered, so it is not to be had any more.
        if self.index.info(lease.id).generation != lease.generation:
            raise NotAvailable(f"sample `{stored.sample_id}` is gone")
        return tensors

    def clean(self, stored: SampleRef) -> bool:
        """Remove the tensors of a sample that is gone from the index, and then its life; says whether."""
        if keys_left(self.backend, stored.feature_keys.values()):
            return False
        with contextlib.suppress(tiffin.Error):
            self.index.delete(stored.metadata["life"], force=True)
            return True
        return False

    def sweep(self, look_up: Callable[[str], SampleRef | None], spared: Collection[str]) -> None:
        """End lives that nobody has leased and that the index does not name: those of processes that died."""
        lives = {info.key: info for info in self.index.list(f"{self.store_id}.life/")}
        for why in self.index.why(list(lives)) if lives else ():
            if why.key in spared or why.state != "here" or why.leases:
                continue
            try:
                with self.index.lease(why.key) as lease:
                    told = json.loads(bytes(lease.tensors()["life"]))
                    generation, sample_id = to_number(lives[why.key].generation), told["sample_id"]
                    stored = look_up(sample_id)
                    if stored is not None and stored.metadata["generation"] == generation:
                        continue
                    keys = [self.key(sample_id, generation, name) for name in told["names"]]
                    if not keys_left(self.backend, keys):
                        self.index.delete(why.key, force=True)
            except tiffin.Error:
                continue


def check_new(sample_id: str, old: SampleRef | None, replace: bool) -> None:
    """Whether a sample may be put where there is an older one."""
    if old is not None and not replace:
        raise Duplicate(f"sample `{sample_id}` is there")
