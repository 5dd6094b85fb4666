"""What can go wrong in a feature store, as the exceptions that pipelines expect."""

from __future__ import annotations

import tiffin

#: What the store says of a sample that cannot be had.
GONE = (
    tiffin.NotFound,
    tiffin.Superseded,
    tiffin.Consumed,
    tiffin.WrongGroup,
    tiffin.NotASample,
    tiffin.Contended,
)


class NotAvailable(KeyError):
    """The sample cannot be had: it is freed, aborted, superseded, consumed, or not there."""

    def __str__(self) -> str:
        # A KeyError shows its argument as code; this one is a sentence.
        return Exception.__str__(self)


class BadRef(NotAvailable, ValueError):
    """The ref is not of this store, of another version, or does not match what is stored."""


class Duplicate(ValueError):
    """The id is there and was not to be replaced, or was consumed from the stream."""


class ConsumerBehind(MemoryError):
    """The namespace or the stream may not hold more: the consumer is behind."""
