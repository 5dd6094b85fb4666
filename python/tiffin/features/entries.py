"""The entries of a feature store's samples in the index: their keys, their records, and how they are put."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tiffin

from .errors import GONE
from .records import Number, SampleRef, to_number, to_pair

#: The maximum number of keys in one request about samples.
_KEYS_MAX = 4096


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A checked sample, ready for its put."""

    sample_id: str
    tensors: Mapping[str, Any]
    record: SampleRef
    #: The record as JSON.
    text: str


class Entries:
    """The samples of one feature store in the index."""

    def __init__(
        self,
        store_id: str,
        index: tiffin.Store,
        *,
        stream: str,
        groups: Sequence[str],
        replicas: int,
        wait_s: float,
    ) -> None:
        self.store_id, self.index = store_id, index
        self.replicas, self.wait_s = replicas, wait_s
        self._stream, self._groups = stream, list(groups)

    def key(self, sample_id: str) -> str:
        """The key of a sample's entry."""
        return f"{self.store_id}/{sample_id}"

    def sample_id(self, key: str | bytes) -> str:
        """The sample whose entry has this key."""
        return (key if isinstance(key, str) else key.decode()).removeprefix(f"{self.store_id}/")

    def native(self, ref: SampleRef) -> tiffin.SampleRef:
        """The index's own ref of a sample."""
        pair = ref.metadata.get("index_generation") or to_pair(ref.metadata["generation"])
        return tiffin.SampleRef(self.key(ref.sample_id), tuple(pair), 0, False)

    def put(self, key: Any, tensors: Any, text: Any, replace: bool, elsewhere: int = 0) -> Any:
        """Put one entry, or several as mappings by their keys. Returns the result of
        `tiffin.Store.put_sample`."""
        return self.index.put_sample(
            key,
            tensors,
            metadata=text,
            consume=self._groups or "once",
            replace=replace,
            replicas=self.replicas,
            stream=self._stream,
            # Bytes in another store count only for the stream here: their lifetime record counts for the
            # quota.
            elsewhere=elsewhere if self._stream else 0,
            wait=self.wait_s > 0,
            timeout=self.wait_s or None,
        )

    def look_up(self, sample_id: str) -> SampleRef | None:
        """The ref of the current sample of this id, if there is one. Takes no lease."""
        try:
            manifest, generation = self.index.manifest(self.key(sample_id))
        except GONE:
            return None
        return _ref(manifest.metadata, generation)

    @staticmethod
    def leased(lease: tiffin.Lease) -> SampleRef:
        """The ref of a leased sample."""
        return _ref(lease.manifest.metadata, lease.generation)

    def resident(self) -> list[tiffin.Why]:
        """Every sample that can be read, with its age and its leases."""
        keys = [info.key for info in self.index.list(f"{self.store_id}/")]
        found: list[tiffin.Why] = []
        for at in range(0, len(keys), _KEYS_MAX):
            found += self.index.why(keys[at : at + _KEYS_MAX])
        return [why for why in found if why.state == "here" and why.consume is not None]


def with_generation(record: SampleRef, generation: Number, native: tuple[int, int]) -> SampleRef:
    """The record of a stored sample, with its generation."""
    more = {"generation": generation, "index_generation": list(native)}
    return dataclasses.replace(record, metadata=record.metadata | more)


def _ref(metadata: bytes, native: tuple[int, int]) -> SampleRef:
    record = SampleRef.from_json(metadata)
    return with_generation(record, record.metadata.get("generation", to_number(native)), native)
