"""Backends: stores for the bytes of samples, either our own or a running Mooncake cluster.

A backend only moves the bytes of tensors. Our master, the *index*, always decides which samples exist,
which generation is current, and which clients have leased or consumed them.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import tiffin
from tiffin import _tensors
from tiffin._native import checksum

from .pool import BufferPool, Recycler

#: The answer of a Mooncake store for a key that it does not have.
_NO_SUCH_KEY = -704
#: After these answers no transfer was started, so that none can still write.
_UNTOUCHED = (_NO_SUCH_KEY, -600)
#: The number of attempts to read after a wrong checksum, each into other memory.
_READ_TRIES_MAX = 3
#: Copying through registered memory is faster if registering is slower than this.
_COPY_BYTES_PER_S = 4e9
#: Number of bytes after which the measured speed of registering is used.
_JUDGED_BYTES = 64 << 20
#: Stores of the parent of this forked process. Dropping them would close them there, too.
_inherited: list[Any] = []


class Torn(Exception):
    """The bytes differ from those that were written."""


class Changed(Exception):
    """The tensor changed while it was being written, so that the stored bytes are unspecified."""


class Backend(Protocol):
    """The interface of a store for bytes outside the index."""

    #: Its name in `health`.
    name: str

    def write(self, key: str, data: memoryview, *, is_staged: bool = False) -> int:
        """Write an object under a key that was never used, and return the checksum of the written bytes.

        Raises `Changed` if the bytes changed meanwhile, which cannot happen if they are copied first.
        """

    def read(self, key: str, nbytes: int, expected: int) -> Any:
        """The object's bytes at the start of fresh memory. Raises `Torn` if they differ from the written
        bytes."""

    def remove(self, key: str) -> bool:
        """Remove an object, and return whether it certainly no longer exists. A missing object counts as
        removed."""


class Own:
    """Our own store: a sample's tensors and its entry in the index are one object.

    Bytes are copied once between the store's memory and the tensors.
    """

    name = "tiffin"


class _Here:
    """A Mooncake store of this process, and the memory that is registered there."""

    def __init__(self, store: Any, is_direct: bool) -> None:
        self.process, self.store, self.is_direct = os.getpid(), store, is_direct
        register = getattr(store, "register_buffer", None)
        unregister = getattr(store, "unregister_buffer", None)
        self.register, self.unregister = register, unregister
        self.pool = BufferPool(register=register, unregister=unregister)
        self.memory = Recycler(register=register, unregister=unregister)
        # The cost of registering memory per call so far: seconds, and bytes.
        self.registering, self.registered = 0.0, 0

    @property
    def is_slow_to_register(self) -> bool:
        """Whether copying into registered memory is faster."""
        is_judged = self.registered >= _JUDGED_BYTES
        return is_judged and self.registered < self.registering * _COPY_BYTES_PER_S

    def put_from(self, key: str, address: int, nbytes: int, put: Callable[..., Any]) -> Any:
        """Put from memory that is registered for the time of the call."""
        if self.register is None or self.unregister is None:
            return put(self.store.put_from, key, address, nbytes)
        begin = time.perf_counter()
        self.register(address, nbytes)
        taken = time.perf_counter() - begin
        try:
            return put(self.store.put_from, key, address, nbytes)
        finally:
            begin = time.perf_counter()
            self.unregister(address)
            self.registering += taken + time.perf_counter() - begin
            self.registered += nbytes


class Mooncake:
    """A running Mooncake cluster: `store` is a `MooncakeDistributedStore` after its setup.

    `Mooncake.at("host:port")` joins the cluster of that master itself. It can be passed to forked or
    spawned workers, which join the cluster with a client of their own.

    Tensors are raw objects with a hard pin. The index and this class add the guarantees that Mooncake
    lacks. Keys are never used twice. Every read is verified by its length and its checksum, and retried
    into other memory. A key that no longer exists counts as removed.

    Tensors are put from their own memory, registered for the time of the call. If registering takes longer
    than a copy, they go through reused registered buffers. They are read into memory that they keep.
    Without `put_from` and `get_into`, or with `zero_copy=False`, bytes go through `put` and `get`.
    """

    name = "mooncake"

    def __init__(
        self,
        store: Any,
        *,
        zero_copy: bool = True,
        hard_pin: bool | None = None,
        replica_num: int | None = None,
        config: Any = None,
    ) -> None:
        self._address: str | None = None
        self._settings: dict[str, Any] = {}
        self._zero_copy, self._config = zero_copy, config
        self._hard_pin, self._replicas = hard_pin, replica_num
        self._here: _Here | None = self._check(store)

    @classmethod
    def at(cls, address: str, *, options: dict[str, Any] | None = None, **settings: Any) -> Mooncake:
        """A backend that joins the cluster of the master at that address, with `mooncake_setup(address,
        **settings)`; `options` are those of the class."""
        made = cls(mooncake_setup(address, **settings), **(options or {}))
        made._address, made._settings = address, settings
        return made

    @property
    def has_segment(self) -> bool:
        """Whether this process is known to provide memory to the cluster, which would end with it."""
        return self._address is not None and _segment(self._settings) > 0

    def prefer(self, *, replica_num: int, hard_pin: bool) -> None:
        """Use these settings for new objects, unless the constructor was given others."""
        self._replicas = replica_num if self._replicas is None else self._replicas
        self._hard_pin = hard_pin if self._hard_pin is None else self._hard_pin

    def write(self, key: str, data: memoryview, *, is_staged: bool = False) -> int:
        here = self._joined()
        if not here.is_direct:
            copy = bytes(data)
            self._accept(key, "put", self._put(here.store.put, key, copy))
            return checksum(copy)
        address = None if is_staged or here.is_slow_to_register else _address(data)
        if address is None:
            return self._write_copy(here, key, data)
        before = checksum(data)
        self._accept(key, "put_from", here.put_from(key, address, data.nbytes, self._put))
        if checksum(data) != before:
            raise Changed(key)
        return before

    def _write_copy(self, here: _Here, key: str, data: memoryview) -> int:
        with here.pool.take(data.nbytes) as buffer:
            buffer.view[: data.nbytes] = data
            written = checksum(buffer.view[: data.nbytes])
            status = self._put(here.store.put_from, key, buffer.address, data.nbytes)
            self._accept(key, "put_from", status)
        return written

    def read(self, key: str, nbytes: int, expected: int) -> Any:
        why = ""
        for _ in range(_READ_TRIES_MAX):
            memory, why = self._read_once(self._joined(), key, nbytes)
            if memory is not None and checksum(memoryview(memory).cast("B")[:nbytes]) == expected:
                return memory
            why = why or "its checksum is wrong"
            if why == str(_NO_SUCH_KEY):
                break
        raise Torn(f"Mooncake could not read `{key}`: {why}")

    @staticmethod
    def _read_once(here: _Here, key: str, nbytes: int) -> tuple[Any, str]:
        if not here.is_direct:
            data = here.store.get(key)
            if data is not None and len(data) == nbytes:
                return bytearray(data) or bytearray(1), ""
            return None, f"{len(data)} bytes of {nbytes}" if data else str(_NO_SUCH_KEY)
        if nbytes == 0:
            return bytearray(1), ""
        target = here.memory.allocate(nbytes)
        count = here.store.get_into(key, ctypes.addressof(target), nbytes)
        if count is not None and int(count) == nbytes:
            return target, ""
        if count is None or int(count) not in _UNTOUCHED:
            # A started transfer may still write.
            here.memory.set_aside(target)
        return None, str(count)

    def remove(self, key: str) -> bool:
        store = self._joined().store
        # It does not check first whether the object exists, because that would lease it.
        try:
            status = store.remove(key, force=True)
        except TypeError:
            status = store.remove(key)
        return status is None or int(status) in (0, _NO_SUCH_KEY)

    def _put(self, put: Callable[..., Any], *arguments: Any) -> Any:
        if self._config is None:
            pin = True if self._hard_pin is None else self._hard_pin
            self._config = _replicate_config(self._replicas or 1, pin)
        return put(*arguments) if self._config is None else put(*arguments, self._config)

    @staticmethod
    def _accept(key: str, call: str, status: Any) -> None:
        if status is not None and int(status) < 0:
            raise RuntimeError(f"Mooncake could not store `{key}`: {call} returned {int(status)}")

    def _check(self, store: Any) -> _Here:
        for call in ("is_exist", "remove"):
            if not callable(getattr(store, call, None)):
                raise RuntimeError(
                    f"the Mooncake store has no `{call}`\n\nhint: pass a store after its setup"
                )
        direct = all(callable(getattr(store, call, None)) for call in ("put_from", "get_into"))
        if not direct and not all(callable(getattr(store, call, None)) for call in ("put", "get")):
            raise RuntimeError("the Mooncake store has neither put_from and get_into, nor put and get")
        return _Here(store, self._zero_copy and direct)

    def _joined(self) -> _Here:
        """The Mooncake store of this process."""
        if self._here is not None and self._here.process == os.getpid():
            return self._here
        if self._address is None:
            hint = "use `Mooncake.at(address)`, which joins the cluster in each worker"
            raise RuntimeError(f"this Mooncake store belongs to another process\n\nhint: {hint}")
        _inherited.append(self._here)
        # Objects in the segment of a worker would end with it.
        self._settings = self._settings | {"global_segment_size": 0}
        self._here = self._check(mooncake_setup(self._address, **self._settings))
        return self._here

    def __getstate__(self) -> dict[str, Any]:
        # A config is an object of Mooncake, which cannot be pickled.
        return self.__dict__ | {"_here": None, "_config": None}


def _address(data: memoryview) -> int | None:
    """The address of the bytes, if it is known."""
    if not data.nbytes or _tensors.numpy is None:
        return None
    return int(_tensors.numpy.frombuffer(data, _tensors.numpy.uint8).ctypes.data)


def _replicate_config(replica_num: int, hard_pin: bool) -> Any:
    try:
        config = importlib.import_module("mooncake.store").ReplicateConfig()
    except ImportError:
        return None
    config.replica_num = replica_num
    if hard_pin and hasattr(config, "with_hard_pin"):
        config.with_hard_pin = True
    return config


def _segment(settings: dict[str, Any]) -> int:
    """The size of the memory that a client provides to the cluster."""
    from tiffin import _settings

    given = settings.get("global_segment_size", os.environ.get("MOONCAKE_GLOBAL_SEGMENT_SIZE"))
    return 512 << 20 if given is None else _settings.size(given)


def mooncake_setup(address: str, **settings: Any) -> Any:
    """A `MooncakeDistributedStore` that has joined the cluster of that master.

    Missing arguments come from MOONCAKE_LOCAL_HOSTNAME, MOONCAKE_METADATA_SERVER, MOONCAKE_PROTOCOL,
    MOONCAKE_RDMA_DEVICES, MOONCAKE_GLOBAL_SEGMENT_SIZE and MOONCAKE_LOCAL_BUFFER_SIZE.
    """
    try:
        mooncake = importlib.import_module("mooncake.store")
    except ImportError as error:
        hint = "run `pip install mooncake-transfer-engine`, or use our own store"
        raise RuntimeError(f"the package `mooncake` is not installed\n\nhint: {hint}") from error
    from tiffin import _settings

    texts = {
        "local_hostname": "127.0.0.1",
        "metadata_server": "P2PHANDSHAKE",
        "protocol": "tcp",
        "rdma_devices": "",
    }
    buffer = settings.get("local_buffer_size", os.environ.get("MOONCAKE_LOCAL_BUFFER_SIZE", 128 << 20))
    settings |= {"global_segment_size": _segment(settings), "local_buffer_size": _settings.size(buffer)}
    for name, default in texts.items():
        settings.setdefault(name, os.environ.get(f"MOONCAKE_{name.upper()}", default))
    store = mooncake.MooncakeDistributedStore()
    status = store.setup(**settings, master_server_addr=address)
    if status not in (None, 0):
        raise RuntimeError(f"Mooncake's setup with the master at `{address}` returned {status}")
    return store


def keys_left(backend: Backend, keys: Iterable[str]) -> list[str]:
    """Remove objects, and return the keys of those that may still exist."""
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
    """The index of a feature store: our master, in its own namespace."""
    # A store inside this process has no token: only processes of the same user reach it.
    token = None if address is None else credential
    try:
        return tiffin.connect(address, namespace=store_id, token=token, **options)
    except tiffin.Unauthenticated as error:
        raise PermissionError(str(error)) from error
