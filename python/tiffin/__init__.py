"""A tiered object store for tensors, embedded in this process or reached over a cluster.

>>> import tiffin
>>> store = tiffin.connect()                # a store inside this process
>>> store.put("greeting", b"hello")
True
>>> store.get("greeting")
b'hello'
>>> with store.view("greeting") as view:    # no copy: the bytes where they lie
...     print(memoryview(view)[0])
104
>>> store.close()

`tiffin.connect("host:port")` joins a cluster instead, and everything else stays the same. `tiffin.aio` has
the same for asyncio, `tiffin.errors` says what can go wrong, `tiffin.types` what a store tells of itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from . import _settings
from ._native import Lease, Prefetch, Reservation, Store, View, __version__
from ._native import connect as _connect
from .errors import (
    Behind,
    Closed,
    Consumed,
    Contended,
    EndOfStream,
    Error,
    Exists,
    Full,
    InvalidArgument,
    Leased,
    NodeDown,
    NotASample,
    NotFound,
    OutOfRange,
    OverQuota,
    Refused,
    StreamFailed,
    Superseded,
    Timeout,
    TooSmall,
    Unauthenticated,
    Unconfirmed,
    UnconfirmedWarning,
    Unreachable,
    WouldLose,
    WrongGroup,
)
from .types import (
    Group,
    Holder,
    Losses,
    Manifest,
    Namespace,
    Node,
    ObjectInfo,
    Policy,
    Route,
    SampleRef,
    Stats,
    Stream,
    TensorInfo,
    Tier,
    Traffic,
    Usage,
    Why,
)

__all__ = [
    "Behind",
    "Closed",
    "Consumed",
    "Contended",
    "EndOfStream",
    "Error",
    "Exists",
    "Full",
    "Group",
    "Holder",
    "InvalidArgument",
    "Lease",
    "Leased",
    "Losses",
    "Manifest",
    "Namespace",
    "Node",
    "NodeDown",
    "NotASample",
    "NotFound",
    "ObjectInfo",
    "OutOfRange",
    "OverQuota",
    "Policy",
    "Prefetch",
    "Refused",
    "Reservation",
    "Route",
    "SampleRef",
    "Stats",
    "Store",
    "Stream",
    "StreamFailed",
    "Superseded",
    "TensorInfo",
    "Tier",
    "Timeout",
    "TooSmall",
    "Traffic",
    "Unauthenticated",
    "Unconfirmed",
    "UnconfirmedWarning",
    "Unreachable",
    "Usage",
    "View",
    "Why",
    "WouldLose",
    "WrongGroup",
    "__version__",
    "connect",
]


def connect(
    address: str | None = None,
    *,
    memory: int | str = _settings.MEMORY_DEFAULT,
    ssd: str | Iterable[str] = (),
    namespace: str | None = None,
    token: str | None = None,
    shared_memory: bool | None = None,
    timeout: float | None = None,
) -> Store:
    """Connect to a store.

    Without an address the store is inside this process, has `memory` bytes (a number, or text such as
    `"8GiB"`), and ends with it. Other processes of the same user on this host may join it at `store.address`.
    What memory has no room for goes to `ssd`, a directory on a disk and how much of it may be used, as in
    `"path=/data/tiffin,size=100GiB"`, or several of them; what lies there is there again for the next store
    that is given the same directory.

    With an address, such as `"host:port"`, it is the cluster of the master that listens there, whose nodes
    have memory and disks of their own. `token` is the secret that its servers were started with.

    All keys are in `namespace`. `shared_memory=False` sends every byte through sockets, as if all nodes were
    on other hosts. `timeout`, in seconds, is how long connecting may take, and each call that does not say
    otherwise.

    Which store it is depends on the address alone. Where another argument is not given, the environment is
    asked, and then the default is taken: `namespace` TIFFIN_NAMESPACE (`default`), `token` TIFFIN_TOKEN,
    `shared_memory` TIFFIN_CLIENT_SHARED_MEMORY (`on`), `timeout` TIFFIN_TIMEOUT (`10s`).

    >>> import tiffin
    >>> with tiffin.connect(memory="64MiB", timeout=2.5) as store:
    ...     store.put("k", b"hello")
    ...     with tiffin.connect(store.address) as another:
    ...         another.get("k")
    True
    b'hello'
    """
    arguments = _arguments(address, memory, ssd, namespace, token, shared_memory, timeout)
    return _connect(**arguments, is_async=False)


def _arguments(address, memory, ssd, namespace, token, shared_memory, timeout) -> dict:
    return {
        "address": address,
        "memory": _settings.size(memory),
        "ssd": [ssd] if isinstance(ssd, str) else list(ssd),
        "namespace": _settings.text(namespace, _settings.NAMESPACE),
        "token": _settings.text(token, _settings.TOKEN),
        "shared_memory": _settings.switch(shared_memory, _settings.SHARED_MEMORY),
        "timeout": _settings.seconds(timeout, _settings.TIMEOUT),
    }


def _connect_again(address, namespace, token, shared_memory, timeout) -> Store:
    """A pickled store, in another process."""
    return connect(address, namespace=namespace, token=token, shared_memory=shared_memory, timeout=timeout)
