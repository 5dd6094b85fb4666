"""Reading a feature store's stream: windows of refs, acknowledged in one call."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import tiffin

from .errors import GONE, NotAvailable
from .records import SampleRef

if TYPE_CHECKING:
    from .store import FeatureStore

#: How long one question waits where the caller sets no limit: it is asked again then.
_TURN_S = 30.0
#: How often a consumer takes up what others, or frees that failed, have left undone.
_TEND_S = 15.0


class Consumer:
    """One consumer of a group. Made by `FeatureStore.consumer`.

    What it has pulled is its own until it is acknowledged. If the process dies, or the consumer is closed,
    what it has not acknowledged comes again to the group; what the group has acknowledged never does. A
    window that the stream's limits can never fill is refused when the consumer attaches.

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
        self._leases: dict[tuple[str, int], tiffin.Lease] = {}
        self._tended = time.monotonic()
        #: The optimizer step that the group has acknowledged last, if it said so.
        self.step: int | None = None
        features.index.open_stream(features.stream, group=group, window=window)
        self._redo()

    def pull(self, *, timeout: float | None = None) -> list[SampleRef]:
        """The next window of refs, or fewer at the end of the time.

        Raises `tiffin.EndOfStream` behind the last one, and `tiffin.StreamFailed` if somebody said so.
        """
        self._tend()
        limit = timeout if timeout is not None else self._timeout
        leases = self._features.index.pull(
            self._features.stream,
            self.group,
            at_least=self.window,
            at_most=self.window,
            timeout=_TURN_S if limit is None else limit,
        )
        refs = [self._features._stored(lease) for lease in leases]
        for ref, lease in zip(refs, leases, strict=True):
            self._leases[ref.sample_id, ref.metadata["generation"]] = lease
        return refs

    def __iter__(self) -> Iterator[list[SampleRef]]:
        """Windows, until the stream has ended."""
        while True:
            try:
                window = self.pull()
            except tiffin.EndOfStream:
                return
            if window:
                yield window

    def get(self, ref: SampleRef, **options: Any) -> dict[str, Any]:
        """The tensors of a ref that this consumer has pulled. No further lease is taken.

        Raises `KeyError` if the sample was aborted or superseded meanwhile.
        """
        lease = self._leases[ref.sample_id, ref.metadata["generation"]]
        names = list(options.pop("names", None) or ref.feature_specs)
        try:
            return self._features._read(lease, ref, names, bool(options.pop("lend", False)))
        except GONE as error:
            raise NotAvailable(f"sample `{ref.sample_id}` is not available: {error}") from error

    def ack(self, window: list[SampleRef], *, step: int | None = None) -> list[str]:
        """Say that the group is done with these, after the optimizer's step.

        With `step`, that and the samples are one transaction: they are in writing in the store before
        anything is freed, and the next consumer of the group that attaches finishes what this one could not,
        and finds the step in `step`. A trainer that restarts from the checkpoint of that step has lost
        nothing, and trains on nothing twice. One of the group acknowledges for all of its ranks then.
        """
        if step is not None:
            told = {"step": step, "refs": [json.loads(ref.to_json()) for ref in window]}
            self._features.index.put(self._marker, json.dumps(told).encode(), pin=True)
            self.step = step
        outcomes = self._features.ack(window, group=self.group)
        # With a sample that is gone go its leases; nobody waits for that.
        there = [ref for ref, outcome in zip(window, outcomes, strict=True) if outcome == "recorded"]
        self._release(there)
        for ref in window:
            self._leases.pop((ref.sample_id, ref.metadata["generation"]), None)
        return outcomes

    def _tend(self) -> None:
        if time.monotonic() - self._tended > _TEND_S:
            self._tended = time.monotonic()
            with contextlib.suppress(tiffin.Error):
                self._features.gc()

    @property
    def _marker(self) -> str:
        return f"{self._features.store_id}.step/{self._features.stream}/{self.group}"

    def _redo(self) -> None:
        told = json.loads(self._features.index.get(self._marker, missing=b"null"))
        if told is not None:
            self.step = told["step"]
            self._features.ack(told["refs"], group=self.group)

    def give_back(self, window: list[SampleRef]) -> None:
        """Let another consumer of the group have these."""
        self._release(window)

    def _release(self, window: list[SampleRef]) -> None:
        for ref in window:
            lease = self._leases.pop((ref.sample_id, ref.metadata["generation"]), None)
            if lease is not None:
                self._features._let_go(lease)

    def close(self) -> None:
        """Give back what was not acknowledged."""
        leases, self._leases = self._leases, {}
        for lease in leases.values():
            self._features._let_go(lease)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
