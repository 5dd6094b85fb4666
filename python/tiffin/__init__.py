"""A tiered object store for tensors, embedded in this process or reached over a cluster.

>>> import tiffin
>>> store = tiffin.connect()                # a store inside this process
>>> store.put("greeting", b"hello")
True
>>> store.get("greeting")
b'hello'
>>> with store.view("greeting") as view:    # no copy: the bytes in place
...     print(memoryview(view)[0])
104
>>> store.close()

`tiffin.connect("host:port")` connects to a cluster instead, and everything else stays the same. `tiffin.aio`
has the same calls for asyncio, `tiffin.errors` the exceptions, `tiffin.types` the types of results.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from . import _settings
from ._native import (
    DeviceArray,
    Lease,
    MappedArray,
    Prefetch,
    QueuedGet,
    Reservation,
    Store,
    View,
    __version__,
)
from ._native import connect as _connect
from ._trace import trace
from .errors import (
    Behind,
    Closed,
    Consumed,
    Contended,
    DeviceError,
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
    Unavailable,
    Unconfirmed,
    UnconfirmedWarning,
    Unreachable,
    WouldLose,
    WrongGroup,
)
from .types import (
    DeviceTraffic,
    Group,
    Holder,
    Latency,
    Losses,
    Manifest,
    Namespace,
    Node,
    ObjectInfo,
    Policy,
    Route,
    SampleRef,
    Spans,
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
    "DeviceArray",
    "DeviceError",
    "DeviceTraffic",
    "EndOfStream",
    "Error",
    "Exists",
    "Full",
    "Group",
    "Holder",
    "InvalidArgument",
    "Latency",
    "Lease",
    "Leased",
    "Losses",
    "Manifest",
    "MappedArray",
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
    "QueuedGet",
    "Refused",
    "Reservation",
    "Route",
    "SampleRef",
    "Spans",
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
    "Unavailable",
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
    "trace",
]


def connect(
    address: str | None = None,
    *,
    memory: int | str | None = None,
    ssd: str | Iterable[str] = (),
    namespace: str | None = None,
    token: str | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    shared_memory: bool | None = None,
    timeout: float | None = None,
) -> Store:
    """Connect to a store.

    Without an address the store is inside this process, has `memory` bytes (a number, or text such as
    `"8GiB"`; 1 GiB if it is not given), and ends with it. Other processes of the same user on this host may
    connect to it at `store.address`. Objects that do not fit into memory go to `ssd`: a directory on a disk
    and a size, as in `"path=/data/tiffin,size=100GiB"`, or several of them. The next store with the same
    directory finds these objects again.

    With an address, such as `"host:port"`, it is the cluster of the master that listens there. Its nodes have
    memory and disks of their own: `memory` and `ssd` are refused. `token` is the secret that its servers were
    started with; without an address it is refused. `tls_ca` is a file with the CA of its servers: then TCP
    connections are encrypted, and lead only to servers whose certificate it has signed. `tls_cert` and
    `tls_key` are shown to servers that ask for a certificate. The files are read again when they change.

    All keys are in `namespace`. `shared_memory=False` sends every byte through sockets, as if all nodes were
    on other hosts. `timeout`, in seconds, limits connecting, and is the default of each call.

    Only the address decides which store it is. For other arguments that are not given, environment variables
    apply, and then the defaults: `namespace` TIFFIN_NAMESPACE (`default`), `token` TIFFIN_TOKEN or
    the content of TIFFIN_TOKEN_FILE, `tls_ca`, `tls_cert` and `tls_key` TIFFIN_TLS_CA, TIFFIN_TLS_CERT and
    TIFFIN_TLS_KEY, `shared_memory` TIFFIN_CLIENT_SHARED_MEMORY (`on`), `timeout` TIFFIN_TIMEOUT (`10s`).
    For an address of etcd, TIFFIN_ETCD_CA, TIFFIN_ETCD_CERT, TIFFIN_ETCD_KEY and TIFFIN_ETCD_CREDENTIALS_FILE
    name the files for connections to it.
    TIFFIN_TRACE_ENDPOINT names the collector of spans, and OTEL_SERVICE_NAME this process in them: see
    `tiffin.trace`.

    >>> import tiffin
    >>> with tiffin.connect(memory="64MiB", timeout=2.5) as store:
    ...     store.put("k", b"hello")
    ...     with tiffin.connect(store.address) as another:
    ...         another.get("k")
    True
    b'hello'
    """
    tls = (tls_ca, tls_cert, tls_key)
    arguments = _arguments(address, memory, ssd, namespace, token, tls, shared_memory, timeout)
    store: Store = _connect(**arguments, is_async=False)
    return store


def _arguments(
    address: str | None,
    memory: int | str | None,
    ssd: str | Iterable[str],
    namespace: str | None,
    token: str | None,
    tls: _settings.Files,
    shared_memory: bool | None,
    timeout: float | None,
) -> dict[str, Any]:
    disks = [ssd] if isinstance(ssd, str) else list(ssd)
    if address is not None:
        _refuse_embedded_only(address, memory, disks)
    elif token:
        raise InvalidArgument(
            "token= without an address: a store inside this process has no token, and only processes of the "
            "same user on this host can join it\n\nhint: leave out token=; or start a store that checks a "
            "token, with TIFFIN_TOKEN in the environment of `tiffin up`, and give its address"
        )
    return {
        "address": _settings.address(address),
        "memory": _settings.size(_settings.MEMORY_DEFAULT if memory is None else memory),
        "ssd": disks,
        "namespace": _settings.text(namespace, _settings.NAMESPACE, "namespace"),
        "token": _settings.token(token),
        "tls": (None, None, None) if address is None else _settings.tls(*tls),
        "etcd": _settings.etcd(),
        "shared_memory": _settings.switch(shared_memory, _settings.SHARED_MEMORY),
        "timeout": _settings.seconds(timeout, _settings.TIMEOUT),
    }


def _refuse_embedded_only(address: str, memory: int | str | None, disks: list[str]) -> None:
    """Reject arguments that have no effect: a cluster has the memory and the disks of its nodes."""
    flags = {"memory": "--memory 8GiB", "ssd": "--ssd path=/data/tiffin,size=100GiB"}
    given = [name for name, value in (("memory", memory), ("ssd", disks or None)) if value is not None]
    if not given:
        return
    names = " and ".join(f"{name}=" for name in given)
    raise InvalidArgument(
        f"{names} with the address {address!r}: only a store inside this process has memory and disks of its "
        f"own\n\nhint: leave out {names}, and give it to the nodes of the cluster, as in "
        f"`tiffin node {' '.join(flags[name] for name in given)}`; or leave out the address"
    )


def _connect_again(
    address: str,
    namespace: str,
    token: str,
    tls: tuple[str | None, str | None, str | None],
    shared_memory: bool,
    timeout: float,
) -> Store:
    """Restore a pickled store in another process."""
    ca, cert, key = tls
    return connect(
        address,
        namespace=namespace,
        token=token,
        tls_ca=ca,
        tls_cert=cert,
        tls_key=key,
        shared_memory=shared_memory,
        timeout=timeout,
    )
