"""Reads a feature store's stream: windows of refs, acknowledged in one call."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import tiffin

from .errors import GONE, NotAvailable
from .records import Number, SampleRef
from .tensors import on_device

if TYPE_CHECKING:
    from .store import FeatureStore

#: The wait of one pull if the caller sets no limit; the pull is then repeated.
_TURN_S = 30.0
#: How often a consumer finishes failed frees, of this process or of ended ones.
_COLLECT_S = 15.0


class Consumer:
    """One consumer of a group. Made by `FeatureStore.consumer`.

    A pulled sample belongs to the consumer until it is acknowledged. If the process ends, or the consumer
    is closed, unacknowledged samples are delivered to the group again. Samples that the group has
    acknowledged never are. A window that the stream's limits can never fill is refused when the consumer
    attaches.

    >>> from tiffin.features import FeatureStore
    >>> features = FeatureStore("run-7", memory="64MiB", stream="train")
    >>> for i in range(4):
    ...     ref = features.put({"ids": bytes(8)}, sample_id=f"s{i}")
    >>> stat = features.index.end_stream("train")
    >>> with features.consumer(window=2) as consumer:
    ...     for window in consumer:
    ...         print([ref.sample_id for ref in window], consumer.ack(window))
    ['s0', 's1'] ['freed', 'freed']
    ['s2', 's3'] ['freed', 'freed']
    """

    def __init__(self, features: FeatureStore, group: str, window: int, timeout: float | None) -> None:
        self._features, self.group, self.window, self._timeout = features, group, window, timeout
        self._leases: dict[tuple[str, Number], tiffin.Lease] = {}
        self._collected = time.monotonic()
        #: The optimizer step that the group has acknowledged last, if it gave one.
        self.step: int | None = None
        features.index.open_stream(features.stream, group=group, window=window)
        self._finish_step()

    def pull(self, *, timeout: float | None = None) -> list[SampleRef]:
        """The next window of refs, or fewer at the timeout.

        Raises `tiffin.EndOfStream` after the last one, and `tiffin.StreamFailed` if the stream has failed.
        """
        self._collect()
        limit = timeout if timeout is not None else self._timeout
        leases = self._features.index.pull(
            self._features.stream,
            self.group,
            at_least=self.window,
            at_most=self.window,
            timeout=_TURN_S if limit is None else limit,
        )
        refs = [self._features._entries.leased(lease) for lease in leases]
        for ref, lease in zip(refs, leases, strict=True):
            self._leases[ref.sample_id, ref.metadata["generation"]] = lease
        return refs

    def __iter__(self) -> Iterator[list[SampleRef]]:
        """Windows until the stream has ended."""
        while True:
            try:
                window = self.pull()
            except tiffin.EndOfStream:
                return
            if window:
                yield window

    def get(self, ref: SampleRef, **options: Any) -> dict[str, Any]:
        """The tensors of a ref that this consumer has pulled. No further lease is taken.

        `names`, `lend` and `device` are as for `FeatureStore.get`.
        Raises `KeyError` if the sample was aborted or superseded meanwhile.
        """
        lease = self._leases[ref.sample_id, ref.metadata["generation"]]
        names = list(options.pop("names", None) or ref.feature_specs)
        device, lend = options.pop("device", "cpu"), bool(options.pop("lend", False))
        try:
            tensors = self._features._read(lease, ref, names, lend, device)
        except GONE as error:
            raise NotAvailable(f"sample `{ref.sample_id}` is not available: {error}") from error
        return {name: on_device(tensor, device) for name, tensor in tensors.items()}

    def ack(self, window: list[SampleRef], *, step: int | None = None) -> list[str]:
        """Acknowledge these on behalf of the group, after the optimizer's step.

        With `step`, the step and the samples are one transaction: they are recorded in the store before
        anything is freed. The next consumer of the group that attaches finishes the transaction, and finds
        the step in `step`. A trainer that restarts from the checkpoint of that step loses no sample and
        trains on none twice. One consumer of the group then acknowledges for all of its ranks.
        """
        if step is not None:
            marker = {"step": step, "refs": [json.loads(ref.to_json()) for ref in window]}
            self._features.index.put(self._marker, json.dumps(marker).encode(), pin=True)
            self.step = step
        outcomes = self._features.ack(window, group=self.group)
        # The leases of a freed sample end with it, so that no wait is needed.
        there = [ref for ref, outcome in zip(window, outcomes, strict=True) if outcome == "recorded"]
        self._release(there)
        for ref in window:
            self._leases.pop((ref.sample_id, ref.metadata["generation"]), None)
        return outcomes

    def _collect(self) -> None:
        if time.monotonic() - self._collected > _COLLECT_S:
            self._collected = time.monotonic()
            with contextlib.suppress(tiffin.Error):
                self._features.gc()

    @property
    def _marker(self) -> str:
        return f"{self._features.store_id}.step/{self._features.stream}/{self.group}"

    def _finish_step(self) -> None:
        marker = json.loads(self._features.index.get(self._marker, default=b"null"))
        if marker is not None:
            self.step = marker["step"]
            self._features.ack(marker["refs"], group=self.group)

    def give_back(self, window: list[SampleRef]) -> None:
        """Return these to the group, for another consumer."""
        self._release(window)

    def _release(self, window: list[SampleRef]) -> None:
        for ref in window:
            lease = self._leases.pop((ref.sample_id, ref.metadata["generation"]), None)
            if lease is not None:
                self._features._let_go(lease)

    def close(self) -> None:
        """Return the samples that were not acknowledged to the group."""
        leases, self._leases = self._leases, {}
        for lease in leases.values():
            self._features._let_go(lease)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
