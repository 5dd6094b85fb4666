"""Where the bytes of samples lie: in our own store, or in a Mooncake cluster that runs already.

A backend moves the bytes of tensors and nothing else. What is there, which generation is current, who has it
leased and who has consumed it is always the business of our master: the *index*.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import tiffin

from .pool import BufferPool

#: What a Mooncake store answers for a key that it does not have.
_NO_SUCH_KEY = -704
#: How often a read that came out wrong is tried again, each time into fresh memory.
_READ_TRIES_MAX = 3


class Torn(Exception):
    """The bytes are not those that were written."""


class Backend(Protocol):
    """What a feature store needs of a place for bytes beside the index."""

    #: What it is called in `health`.
    name: str

    def write(self, key: str, data: memoryview) -> int:
        """Write an object under a key that was never used, and give the checksum of what was written."""

    def read(self, key: str, nbytes: int, checksum: int) -> memoryview:
        """The object's bytes in fresh memory. Raises `Torn` if they are not what was written."""

    def remove(self, key: str) -> bool:
        """Take an object away, and say whether it is gone for sure. That it was not there is as good."""


class Own:
    """Our own store: a sample's tensors are one object with its entry in the index.

    It reads and writes straight between the store's memory and the tensors, with one copy.
    """

    name = "tiffin"


class Mooncake:
    """A Mooncake cluster that runs already: `store` is a `MooncakeDistributedStore` after its setup.

    Tensors are raw objects with a hard pin. What Mooncake cannot promise is made safe here and in the index:
    keys are never used twice, every read is verified by its length and its checksum and tried again into
    fresh memory, and a key that is gone already counts as removed. Without `put_from` and `get_into`, or with
    `zero_copy=False`, bytes go through `put` and `get`.
    """

    name = "mooncake"

    def __init__(
        self,
        store: Any,
        *,
        zero_copy: bool = True,
        hard_pin: bool = True,
        replica_num: int = 1,
        config: Any = None,
    ) -> None:
        for call in ("is_exist", "remove"):
            if not callable(getattr(store, call, None)):
                raise RuntimeError(
                    f"the Mooncake store has no `{call}`\n\nhint: hand in a store after its setup"
                )
        direct = all(callable(getattr(store, call, None)) for call in ("put_from", "get_into"))
        if not direct and not all(callable(getattr(store, call, None)) for call in ("put", "get")):
            raise RuntimeError("the Mooncake store has neither put_from and get_into, nor put and get")
        self._store = store
        self._is_direct = zero_copy and direct
        self._config = config if config is not None else _replicate_config(replica_num, hard_pin)
        self.pool = BufferPool(
            register=getattr(store, "register_buffer", None),
            unregister=getattr(store, "unregister_buffer", None),
        )

    def write(self, key: str, data: memoryview) -> int:
        # A copy of what is there now: the caller's tensor may change while it is sent, and then the bytes
        # would not be those of the checksum.
        if not self._is_direct:
            copy = bytes(data)
            self._check(key, "put", self._put(self._store.put, key, copy))
            return zlib.crc32(copy)
        with self.pool.take(data.nbytes) as buffer:
            buffer.view[: data.nbytes] = data
            checksum = zlib.crc32(buffer.view[: data.nbytes])
            status = self._put(self._store.put_from, key, buffer.address, data.nbytes)
            self._check(key, "put_from", status)
        return checksum

    def _put(self, put: Callable[..., Any], *arguments: Any) -> Any:
        return put(*arguments) if self._config is None else put(*arguments, self._config)

    @staticmethod
    def _check(key: str, call: str, status: Any) -> None:
        if status is not None and int(status) < 0:
            raise RuntimeError(f"Mooncake could not store `{key}`: {call} answered {int(status)}")

    def read(self, key: str, nbytes: int, checksum: int) -> memoryview:
        why = ""
        for _ in range(_READ_TRIES_MAX):
            data, why = self._read_once(key, nbytes)
            if data is not None and zlib.crc32(data) == checksum:
                return data
            why = why or "its bytes are not those of its checksum"
            if why == str(_NO_SUCH_KEY):
                break
        raise Torn(f"Mooncake could not read `{key}`: {why}")

    def _read_once(self, key: str, nbytes: int) -> tuple[memoryview | None, str]:
        if not self._is_direct:
            data = self._store.get(key)
            if data is None or len(data) != nbytes:
                return None, f"{0 if data is None else len(data)} bytes of {nbytes}" if data else str(
                    _NO_SUCH_KEY
                )
            return memoryview(bytearray(data)), ""
        if nbytes == 0:
            return memoryview(bytearray()), ""
        buffer = self.pool.take(nbytes)
        count = self._store.get_into(key, buffer.address, nbytes)
        if count is None or int(count) != nbytes:
            # Whatever was on its way may still come: this memory is not used again.
            buffer.discard()
            return None, str(count)
        data = memoryview(bytearray(buffer.view[:nbytes]))
        buffer.release()
        return data, ""

    def remove(self, key: str) -> bool:
        # Without asking first whether it exists: that would lease it.
        try:
            status = self._store.remove(key, force=True)
        except TypeError:
            status = self._store.remove(key)
        return status is None or int(status) in (0, _NO_SUCH_KEY)


def _replicate_config(replica_num: int, hard_pin: bool) -> Any:
    try:
        from mooncake.store import ReplicateConfig
    except ImportError:
        return None
    config = ReplicateConfig()
    config.replica_num = replica_num
    if hard_pin and hasattr(config, "with_hard_pin"):
        config.with_hard_pin = True
    return config


def mooncake_setup(address: str, **settings: Any) -> Any:
    """A `MooncakeDistributedStore` that has joined the cluster of that master.

    What is not given comes from MOONCAKE_LOCAL_HOSTNAME, MOONCAKE_METADATA_SERVER, MOONCAKE_PROTOCOL,
    MOONCAKE_RDMA_DEVICES, MOONCAKE_GLOBAL_SEGMENT_SIZE and MOONCAKE_LOCAL_BUFFER_SIZE.
    """
    try:
        from mooncake.store import MooncakeDistributedStore
    except ImportError as error:
        hint = "`pip install mooncake-transfer-engine`, or use our own store"
        raise RuntimeError(f"the package `mooncake` is not installed\n\nhint: {hint}") from error
    from tiffin import _settings

    sizes = {"global_segment_size": 512 << 20, "local_buffer_size": 128 << 20}
    texts = {
        "local_hostname": "127.0.0.1",
        "metadata_server": "P2PHANDSHAKE",
        "protocol": "tcp",
        "rdma_devices": "",
    }
    for name, default in sizes.items():
        given = os.environ.get(f"MOONCAKE_{name.upper()}")
        settings.setdefault(name, default if given is None else _settings.size(given))
    for name, default in texts.items():
        settings.setdefault(name, os.environ.get(f"MOONCAKE_{name.upper()}", default))
    store = MooncakeDistributedStore()
    status = store.setup(**settings, master_server_addr=address)
    if status not in (None, 0):
        raise RuntimeError(f"Mooncake's setup with the master at `{address}` answered {status}")
    return store


def keys_left(backend: Backend, keys: Iterable[str]) -> list[str]:
    """Removes objects, and says which of them are not gone for sure."""
    left = []
    for key in keys:
        try:
            gone = backend.remove(key)
        except Exception:
            gone = False
        if not gone:
            left.append(key)
    return left


def connect_index(store_id: str, address: str | None, credential: str | None, **options: Any) -> tiffin.Store:
    """The index of a feature store: our master, in a namespace of its own."""
    try:
        return tiffin.connect(address, namespace=store_id, token=credential, **options)
    except tiffin.Unauthenticated as error:
        raise PermissionError(str(error)) from error
