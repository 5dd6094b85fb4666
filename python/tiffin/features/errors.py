"""The exceptions of a feature store, in the form that pipelines expect."""

from __future__ import annotations

import tiffin

#: The errors of the index for a sample that is not available.
GONE = (
    tiffin.NotFound,
    tiffin.Superseded,
    tiffin.Consumed,
    tiffin.WrongGroup,
    tiffin.NotASample,
    tiffin.Contended,
)


class NotAvailable(KeyError):
    """The sample is not available: it was freed, aborted, superseded or consumed, or never existed."""

    def __str__(self) -> str:
        # A KeyError shows its argument as code; this one is a sentence.
        return Exception.__str__(self)


class BadRef(NotAvailable, ValueError):
    """The ref belongs to another store, has another version, or does not match what is stored."""


class Duplicate(ValueError):
    """The id exists and must not be replaced, or was consumed from the stream."""


class ConsumerBehind(MemoryError):
    """The namespace or the stream is full: the consumer is behind."""
