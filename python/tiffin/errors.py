"""What can go wrong, one class per thing that a caller would handle differently.

All of them derive from `Error`. An argument of the wrong type is a `TypeError`, as everywhere in Python.

>>> import tiffin
>>> with tiffin.connect() as store:
...     try:
...         store.get("nothing")
...     except tiffin.NotFound as error:
...         print(error.key)
nothing

A call that takes many keys does all it can. If some of them failed, it raises the error of the first one, and
`results` tells about each key in order: what the call would have returned for it, or its error.

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
    """Anything that the store could not do. The message says what happened, and what may help."""

    #: The key that it is about, if it is about one.
    key: str | bytes | None = None
    #: From a call with many keys: one entry for each, in order, its result or its error.
    results: list[Any] | None = None
    #: Whether the same call may succeed later, with nothing changed by the caller.
    is_retryable: bool = False


class NotFound(Error, KeyError):
    """There is no such object."""

    def __str__(self) -> str:
        # A KeyError shows its argument as code; this one is a sentence.
        return Exception.__str__(self)


class Exists(Error):
    """An object of that name exists, and was not to be replaced (`on_exists="error"`, `replace=False`)."""

    #: Which put of the key it is; only of a sample.
    generation: tuple[int, int] | None = None


class Full(Error):
    """No node has space for the object, and all that remains is pinned, leased, in view or reserved."""

    #: How many bytes the object has.
    size: int | None = None
    #: How full all nodes are together; not said where it is the namespace that is full.
    usage: Usage | None = None
    #: What is missing: `bytes`, `slots`, `key space` or `contiguous space`; not said of a full namespace.
    lacks: str | None = None


class OverQuota(Full):
    """The namespace may not hold that much, and has nothing of its own to evict."""

    #: How many bytes the object counts. If they are more than the quota, the put was refused at once.
    size: int
    #: How many bytes the namespace holds, all copies counted.
    used: int
    #: How many bytes it may hold.
    quota: int


class Behind(Full):
    """The consumers of a stream are behind: it takes in no more until they have caught up."""

    #: How many samples are in flight, those counted that are about to be put.
    refs: int
    #: How many bytes they have.
    used: int


class EndOfStream(Error):
    """There is nothing more in the stream for this group, and nothing will come."""

    #: How many samples other consumers of the group have and have not acknowledged. They come again if those
    #: die: who waits for them pulls once more after acknowledging its own.
    outstanding: int


class StreamFailed(Error):
    """Somebody ended the stream because something went wrong."""

    #: What, as it was said.
    failure: str


class TooSmall(Error):
    """The buffer is smaller than the object. Nothing was written into it."""

    #: How many bytes the object has.
    size: int


class Timeout(Error, TimeoutError):
    """The deadline came first. What was asked may or may not have been done."""


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


class Leased(Error):
    """A lease protects the object from removal."""


class Unconfirmed(Error):
    """It is as asked, but some nodes could not confirm it.

    That is, that they gave their copies up, or that they have a pin or an acknowledgement in writing. They
    must before they are used again; ask once more to learn when it is confirmed.
    """

    #: The names of the nodes.
    nodes: list[str]


class UnconfirmedWarning(UserWarning):
    """A put is done, but some nodes could not confirm in time that the older object of that name is gone.

    Lookups find the new one. Until those nodes hear of it, a reader that knows where the old one lies there
    may still read it; a delete of the name, or another put, says whether that is over. A warning, not an
    error, because the value is stored: with `warnings.simplefilter("error", tiffin.UnconfirmedWarning)` the
    put raises it, and the value is stored all the same.
    """

    #: What was put.
    keys: tuple[str | bytes, ...] = ()
    #: The names of the nodes.
    nodes: tuple[str, ...] = ()


class Contended(Error):
    """The object was replaced again and again while it was read."""


class InvalidArgument(Error, ValueError):
    """The request makes no sense."""


class OutOfRange(InvalidArgument):
    """The object is shorter than the range that was asked for. Nothing was read."""

    #: How many bytes the object has.
    size: int


class Superseded(Error):
    """The sample was replaced: refs of the older generation lead nowhere any more."""

    #: Which put of the id is there now.
    generation: tuple[int, int]


class Consumed(Error):
    """The group has consumed the sample already."""

    #: The group that asked.
    group: str


class NotASample(Error):
    """The object was not put as a sample."""


class WrongGroup(Error):
    """The group is none of those that the sample is for."""

    #: The group that asked.
    group: str


class WouldLose(Error):
    """A store that was to be closed only if nothing is lost with it. It stays open."""

    #: What would be lost, as `tiffin.Losses`.
    losses: Losses


class Unauthenticated(Error):
    """The token is missing or wrong."""


class Refused(Error):
    """The server said no, for another reason."""


class Closed(Error):
    """The store or the view was closed, or belongs to the process that this one was forked from."""
