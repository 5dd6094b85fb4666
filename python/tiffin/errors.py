"""The exceptions of a store: one class for each problem that callers handle differently.

All of them derive from `Error`. An argument of the wrong type is a `TypeError`, as everywhere in Python.

>>> import tiffin
>>> with tiffin.connect() as store:
...     try:
...         store.get("nothing")
...     except tiffin.NotFound as error:
...         print(error.key)
nothing

A call with many keys does all it can. If some of them failed, it raises the error of the first one.
`results` then has for each key, in order, its result or its error.

>>> with tiffin.connect() as store:
...     _ = store.put("a", b"1")
...     try:
...         store.get(["a", "b"])
...     except tiffin.NotFound as error:
...         print(error.key, error.results)
b [b'1', NotFound('`b` does not exist')]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .types import Losses, Usage

__all__ = [
    "Behind",
    "Closed",
    "Consumed",
    "Contended",
    "DeviceError",
    "EndOfStream",
    "Error",
    "Exists",
    "Full",
    "InvalidArgument",
    "Leased",
    "NodeDown",
    "NotASample",
    "NotFound",
    "OutOfRange",
    "OverQuota",
    "Refused",
    "StreamFailed",
    "Superseded",
    "Timeout",
    "TooSmall",
    "Unauthenticated",
    "Unavailable",
    "Unconfirmed",
    "UnconfirmedWarning",
    "Unreachable",
    "WouldLose",
    "WrongGroup",
]


class Error(Exception):
    """The base of all errors of a store. The message says what happened, and has a hint."""

    #: The affected key, if there is one.
    key: str | bytes | None = None
    #: From a call with many keys: one entry for each, in order, its result or its error.
    results: list[Any] | None = None
    #: Whether the same call may succeed later without a change by the caller.
    is_retryable: bool = False


class NotFound(Error, KeyError):
    """There is no such object."""

    def __str__(self) -> str:
        # A KeyError shows its argument as code; this one is a sentence.
        return Exception.__str__(self)


class Exists(Error):
    """The object exists, and the put must not replace it (`on_exists="error"`, `replace=False`)."""

    #: Which put of the key it is; only of a sample.
    generation: tuple[int, int] | None = None


class Full(Error):
    """No node has space for the object, and all that remains is pinned, leased, in view or reserved."""

    #: How many bytes the object has.
    size: int | None = None
    #: How full all nodes are together; `None` if the namespace is full.
    usage: Usage | None = None
    #: The missing resource: `bytes`, `slots`, `key space`, `contiguous space` or `share`; `None` if the
    #: namespace is full.
    lacks: str | None = None


class OverQuota(Full):
    """The namespace may not hold that much, and has nothing of its own to evict."""

    #: How many bytes the object needs. If they exceed the quota, the put was refused at once.
    size: int
    #: How many bytes the namespace holds, with all copies.
    used: int
    #: How many bytes it may hold.
    quota: int


class Behind(Full):
    """The consumers of a stream are behind: it accepts no puts until they have caught up."""

    #: How many samples are in flight, including those that are being put.
    refs: int
    #: How many bytes they have.
    used: int


class EndOfStream(Error):
    """The stream has ended, and has no more samples for this group."""

    #: How many samples other consumers of the group have and have not acknowledged. They are delivered again
    #: if these consumers die: acknowledge your own samples and pull once more to wait for them.
    outstanding: int


class StreamFailed(Error):
    """A client ended the stream with a failure."""

    #: The client's reason.
    failure: str


class TooSmall(Error):
    """The buffer is smaller than the object. Nothing was written into it."""

    #: How many bytes the object has.
    size: int


class Timeout(Error, TimeoutError):
    """The deadline has passed. The request may or may not have been carried out."""


class Unreachable(Error, ConnectionError):
    """The master, or every node that could have been used, cannot be reached; or no node is connected."""


class Unavailable(Error):
    """The answer is not known yet: the master has restarted, and waits for members that have not reported.

    Nothing was done. The message names the members.
    """


class NodeDown(Error):
    """The object exists, but no node that holds it can be reached now."""

    #: The names of the nodes.
    nodes: list[str]


class DeviceError(Error):
    """A device could not copy the bytes: its memory is not allocated, or a call of the CUDA driver failed."""


class Leased(Error):
    """A lease protects the object from removal."""


class Unconfirmed(Error):
    """The request is carried out, but some nodes could not confirm it.

    They have not confirmed that their copies are removed, or that they have recorded a pin or an
    acknowledgement. They must do so before they are used again. Repeat the request to learn when it is
    confirmed.
    """

    #: The names of the nodes.
    nodes: list[str]


class UnconfirmedWarning(UserWarning):
    """A put is done, but some nodes could not confirm in time that the older object of that name is
    removed.

    Lookups find the new object. Until those nodes learn of it, a reader with a cached location may still
    read the old one. Another delete or put of the name shows whether that is over. It is a warning and not
    an error, because the value is stored. With `warnings.simplefilter("error", tiffin.UnconfirmedWarning)`
    the put raises it, although the value is stored.
    """

    #: The keys of the puts.
    keys: tuple[str | bytes, ...] = ()
    #: The names of the nodes.
    nodes: tuple[str, ...] = ()


class Contended(Error):
    """The object was replaced repeatedly while it was read."""


class InvalidArgument(Error, ValueError):
    """An argument is invalid."""


class OutOfRange(InvalidArgument):
    """The object is shorter than the requested range. Nothing was read."""

    #: How many bytes the object has.
    size: int


class Superseded(Error):
    """The sample was replaced: refs of the older generation are no longer valid."""

    #: The current generation of the id.
    generation: tuple[int, int]


class Consumed(Error):
    """The group has already consumed the sample."""

    #: The group of the caller.
    group: str


class NotASample(Error):
    """The object was not put as a sample."""


class WrongGroup(Error):
    """The sample is not for this group."""

    #: The group of the caller.
    group: str


class WouldLose(Error):
    """Closing the store would lose objects, so it stays open (`on_loss="error"`)."""

    #: The objects that would be lost, as `tiffin.Losses`.
    losses: Losses


class Unauthenticated(Error):
    """The token is missing or wrong."""


class Refused(Error):
    """The server refused the request for another reason."""


class Closed(Error):
    """The store or the view was closed, or belongs to the parent of this forked process."""
