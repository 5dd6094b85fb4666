"""Failed frees that are retried, and the mapping of index errors to exceptions that pipelines expect."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator

import tiffin

from .errors import GONE, ConsumerBehind, Duplicate, NotAvailable
from .records import Number, SampleRef

__all__ = ["Pending", "PendingFrees", "as_named", "gone", "named"]


@dataclasses.dataclass(eq=False)
class Pending:
    """A free that is not done yet."""

    sample_id: str
    generation: Number
    stored: SampleRef | None
    #: Removes the entry from the index; `None` if that is done, and only its bytes are left.
    free: Callable[[], bool] | None
    tries: int = 0
    #: Whether a thread is trying it now.
    is_tried: bool = False


class PendingFrees:
    """The open frees of a store. Every access holds the lock; no free runs under it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._frees: dict[tuple[str, Number], Pending] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._frees)

    def add(self, pending: Pending) -> None:
        """Record a failed free."""
        with self._lock:
            self._frees[pending.sample_id, pending.generation] = pending

    def snapshot(self) -> list[Pending]:
        """The frees that are recorded now."""
        with self._lock:
            return list(self._frees.values())

    def retry(
        self, pending: Pending, finish: Callable[[Pending], bool], tries_max: int | None = None
    ) -> bool:
        """Retry a free, unless another thread does or the limit is reached. Returns whether it is done."""
        name = pending.sample_id, pending.generation
        with self._lock:
            if self._frees.get(name) is not pending:
                return True
            if pending.is_tried or (tries_max is not None and pending.tries >= tries_max):
                return False
            pending.is_tried = True
            pending.tries += 1
        is_done = False
        try:
            is_done = finish(pending)
        finally:
            with self._lock:
                pending.is_tried = False
                if is_done and self._frees.get(name) is pending:
                    del self._frees[name]
        return is_done


def as_named(sample_id: str, error: Exception) -> Exception:
    """The exception that a pipeline expects for an error of the index."""
    if isinstance(error, tiffin.Full):
        return ConsumerBehind(f"the consumer is behind: {error}")
    if isinstance(error, tiffin.Exists):
        return Duplicate(f"sample `{sample_id}` exists, or was consumed: {error}")
    if isinstance(error, (tiffin.InvalidArgument, BufferError, TypeError)):
        return ValueError(f"sample `{sample_id}`: {error}")
    return RuntimeError(f"sample `{sample_id}` could not be written: {error}")


@contextlib.contextmanager
def named(sample_id: str) -> Iterator[None]:
    """Raise errors of a put as the exceptions that a pipeline expects."""
    try:
        yield
    except (tiffin.Error, BufferError, TypeError) as error:
        raise as_named(sample_id, error) from error


@contextlib.contextmanager
def gone(sample_id: str) -> Iterator[None]:
    """Raise errors of a lease or read as `NotAvailable`, if the sample is not available."""
    try:
        yield
    except GONE as error:
        raise NotAvailable(f"sample `{sample_id}` is not available: {error}") from error
