"""Where the tensors of samples are stored: one interface, with an implementation for each kind of backend.

The feature store decides when a sample is put, read and freed. A placement carries it out. There are two:
`IndexPlacement`, where a sample's tensors and its entry in the index are one object, and
`external.ExternalPlacement`, where they are objects of another store.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Protocol

import tiffin

from .entries import Entries, Prepared, with_generation
from .pending import as_named, named
from .pool import Recycler
from .records import Number, SampleRef, to_number
from .tensors import allocate, lent


@dataclasses.dataclass(frozen=True)
class Stored:
    """The description of a leased sample in the store."""

    generation: Number
    #: Element type and shape of each tensor, by name.
    tensors: dict[str, tuple[str, tuple[int, ...]]]
    #: The record that `Placement.remove` needs, if it needs one.
    record: SampleRef | None


class Placement(Protocol):
    """How the tensors of samples are put, read and removed."""

    @property
    def is_freed_by_master(self) -> bool:
        """Whether a sample is freed completely when the master frees its entry."""

    @property
    def ends_with_process(self) -> bool:
        """Whether this process holds samples that other processes lose when it ends."""

    def put(self, sample: Prepared, replace: bool) -> SampleRef:
        """Put a sample atomically."""

    def put_many(self, samples: Sequence[Prepared], replace: bool) -> list[SampleRef]:
        """Put several samples, each atomically."""

    def find(self, sample_id: str) -> SampleRef | None:
        """The record that `remove` needs for the current sample of this id, or `None`."""

    def describe(self, lease: tiffin.Lease) -> Stored:
        """The description of a leased sample."""

    def read(
        self, lease: tiffin.Lease, ref: SampleRef, names: list[str], lend: bool, device: str
    ) -> dict[str, Any]:
        """Tensors of a leased sample, on this device if it can be done while they are read; with `lend`,
        views of the store's memory if that is possible."""

    def remove(self, record: SampleRef) -> bool:
        """Remove the bytes outside the index of a sample whose entry is gone. Returns whether nothing is
        left."""

    def remove_attempt(self, sample_id: str, generation: Number, names: Iterable[str]) -> bool:
        """Remove bytes that another process may have written before it failed. Returns whether nothing is
        left."""

    def sweep(self, spared: Collection[SampleRef]) -> None:
        """Remove bytes that ended processes have left outside the index, except those of these records."""


class IndexPlacement:
    """Our own store: the tensors of a sample and its entry are one object."""

    is_freed_by_master = True
    ends_with_process = False

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._recycler = Recycler()

    def put(self, sample: Prepared, replace: bool) -> SampleRef:
        """Put a sample with one request."""
        key = self._entries.key(sample.sample_id)
        with named(sample.sample_id):
            native = self._entries.put(key, sample.tensors, sample.text.encode(), replace)
        return _ref(sample, native)

    def put_many(self, samples: Sequence[Prepared], replace: bool) -> list[SampleRef]:
        """Put several samples with one request."""
        tensors = {self._entries.key(sample.sample_id): sample.tensors for sample in samples}
        texts = {self._entries.key(sample.sample_id): sample.text.encode() for sample in samples}
        try:
            natives = self._entries.put(tensors, None, texts, replace)
        except tiffin.Error as error:
            results: list[Any] = error.results or [error] * len(samples)
            for at, (sample, it) in enumerate(zip(samples, list(results), strict=True)):
                is_error = isinstance(it, Exception)
                results[at] = as_named(sample.sample_id, it) if is_error else _ref(sample, it)
            first: Any = next(it for it in results if isinstance(it, Exception))
            first.results = results
            raise first from error
        return [_ref(sample, native) for sample, native in zip(samples, natives, strict=True)]

    def find(self, sample_id: str) -> None:
        """No record is needed: the object is removed with its entry."""

    def describe(self, lease: tiffin.Lease) -> Stored:
        """The description from the manifest of the object."""
        tensors = {it.name: (it.dtype, tuple(it.shape)) for it in lease.manifest.tensors}
        return Stored(to_number(lease.generation), tensors, None)

    def read(
        self, lease: tiffin.Lease, ref: SampleRef, names: list[str], lend: bool, device: str
    ) -> dict[str, Any]:
        """Copy tensors into reused memory or to a CUDA device, or lend the store's memory."""
        specs = ref.feature_specs
        if lend:
            return {name: lent(it, specs[name]) for name, it in lease.tensors(names, copy=False).items()}
        targets: dict[str, tuple[Any, Any]] = {}
        for name in names:
            if (target := allocate(self._recycler, specs[name], device)) is None:
                return lease.tensors(names)
            targets[name] = target
        lease.get_into({name: data for name, (data, _) in targets.items() if data is not None})
        return {name: tensor for name, (_, tensor) in targets.items()}

    def remove(self, record: SampleRef) -> bool:
        """Nothing is outside the index."""
        return True

    def remove_attempt(self, sample_id: str, generation: Number, names: Iterable[str]) -> bool:
        """An incomplete put leaves nothing."""
        return True

    def sweep(self, spared: Collection[SampleRef]) -> None:
        """Nothing is outside the index."""


def _ref(sample: Prepared, native: tiffin.SampleRef) -> SampleRef:
    return with_generation(sample.record, to_number(native.generation), native.generation)
