"""Reused buffers, which are registered with a network card once."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import mmap
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

#: The memory of a buffer. Large memory is mapped from the system.
_Memory: TypeAlias = "bytearray | mmap.mmap"
#: The minimum size of memory in huge pages, which the system provides faster.
_HUGE_MIN = 2 << 20
#: How long a failed transfer may still write: longer than the timeout of any transport.
SETTLE_S = 600.0


class Buffer:
    """Memory from a pool. Only its holder uses it until it is released."""

    def __init__(self, pool: BufferPool, memory: _Memory) -> None:
        self._pool, self._memory = pool, memory
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) if memory else 0
        self.nbytes = len(memory)

    @property
    def view(self) -> memoryview:
        """Its bytes, writable."""
        return memoryview(self._memory)

    def release(self) -> None:
        """Return it to the pool. No code may use it afterwards."""
        self._pool._give_back(self)

    def discard(self) -> None:
        """Return it although a transfer may still write to it: it is reused only after `settle_s`."""
        self._pool._set_aside(self)

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # After an error a transfer may still write to it.
        if kind is None:
            self.release()
        else:
            self.discard()


class BufferPool:
    """Buffers of powers of two, each registered once, and reused as soon as they are released.

    `register(address, nbytes)` and `unregister(address)` are called once for each buffer. At most
    `max_bytes` are kept for reuse; buffers beyond that are freed when they are released. A released buffer
    is reused at once. A buffer that was discarded, because a transfer may still write to it, is reused
    after `settle_s` seconds.

    >>> pool = BufferPool(max_bytes=1 << 20)
    >>> with pool.take(1000) as buffer:
    ...     buffer.view[:3] = b"abc"
    >>> pool.take(900).address == buffer.address, pool.made
    (True, 1)
    """

    def __init__(
        self,
        *,
        max_bytes: int = 1 << 30,
        register: Callable[[int, int], Any] | None = None,
        unregister: Callable[[int], Any] | None = None,
        settle_s: float = SETTLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._register, self._unregister = register, unregister
        self._max, self._settle_s, self._clock = max_bytes, settle_s, clock
        self._lock = threading.Lock()
        self._free: dict[int, list[Buffer]] = {}
        self._kept = 0
        self._aside: collections.deque[tuple[float, Buffer]] = collections.deque()
        #: Number of buffers that were ever made.
        self.made = 0
        #: Number of buffers in use now, including discarded ones that cannot be reused yet.
        self.in_use = 0

    def take(self, nbytes: int) -> Buffer:
        """A buffer of at least `nbytes` bytes, for the caller alone until it is released."""
        self._settle()
        size = _size(nbytes)
        with self._lock:
            self.in_use += 1
            free = self._free.get(size)
            if free:
                self._kept -= size
                return free.pop()
            self.made += 1
        buffer = Buffer(self, _fresh(size))
        if self._register is not None:
            self._register(buffer.address, size)
        return buffer

    def close(self) -> None:
        """Free every buffer that is not in use."""
        with self._lock:
            free, self._free, self._kept = self._free, {}, 0
        for buffer in (it for buffers in free.values() for it in buffers):
            self._drop(buffer)

    def _give_back(self, buffer: Buffer) -> None:
        with self._lock:
            self.in_use -= 1
            if self._kept + buffer.nbytes <= self._max:
                self._kept += buffer.nbytes
                self._free.setdefault(buffer.nbytes, []).append(buffer)
                return
        self._drop(buffer)

    def _set_aside(self, buffer: Buffer) -> None:
        # Its memory stays mapped and registered, so that a late write hits nothing else.
        with self._lock:
            self._aside.append((self._clock() + self._settle_s, buffer))

    def _settle(self) -> None:
        while self._aside and self._aside[0][0] <= self._clock():
            with self._lock:
                _, buffer = self._aside.popleft()
            self._give_back(buffer)

    def _drop(self, buffer: Buffer) -> None:
        if self._unregister is not None:
            self._unregister(buffer.address)


class Recycler:
    """Memory for tensors, which is reused when the last tensor in it is gone.

    Fresh memory from the system is slow: a page fault for each page takes longer than the copy into it. A
    tensor, and a view of one, holds its memory; the caller returns nothing. At most `max_bytes` are kept for
    reuse: the least recently used memory is freed first. Memory is registered from its allocation until it is
    freed, where `register` and `unregister` are given.

    >>> recycler = Recycler(max_bytes=1 << 20)
    >>> first = ctypes.addressof(recycler.allocate(5000))
    >>> ctypes.addressof(recycler.allocate(6000)) == first, ctypes.addressof(recycler.allocate(5000)) == first
    (True, True)
    """

    def __init__(
        self,
        *,
        max_bytes: int = 1 << 30,
        register: Callable[[int, int], Any] | None = None,
        unregister: Callable[[int], Any] | None = None,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._register, self._unregister, self._settle_s = register, unregister, settle_s
        self._max, self._kept = max_bytes, 0
        self._lock = threading.Lock()
        # By size, each with the number of its last use; the most recent one is last.
        self._free: dict[int, collections.deque[tuple[int, _Memory]]] = {}
        self._uses = 0
        # Finalizers of tensors run at any moment, even while this thread holds the lock.
        self._ended: collections.deque[_Memory] = collections.deque()
        self._aside: collections.deque[tuple[float, Any]] = collections.deque()

    def allocate(self, nbytes: int) -> Any:
        """A buffer of at least `nbytes` bytes, which is not reused while anything refers to it."""
        size = _size(nbytes)
        with self._lock:
            self._collect()
            memory = self._take(size, -1)
            unused = self._too_much()
        for old in unused:
            self._drop(old)
        is_new = memory is None
        if memory is None:
            memory = _fresh(size)
        buffer = (ctypes.c_ubyte * size).from_buffer(memory)
        if is_new and self._register is not None:
            self._register(ctypes.addressof(buffer), size)
        weakref.finalize(buffer, self._ended.append, memory).atexit = False
        return buffer

    def set_aside(self, buffer: Any) -> None:
        """Keep memory from being reused for `settle_s`, because a transfer may still write to it."""
        self._aside.append((time.monotonic() + self._settle_s, buffer))

    def close(self) -> None:
        """Free all memory that no tensor uses."""
        with self._lock:
            self._collect()
            free, self._free, self._kept = self._free, {}, 0
        for _, memory in (it for memories in free.values() for it in memories):
            self._drop(memory)

    def _collect(self) -> None:
        while self._aside and self._aside[0][0] <= time.monotonic():
            self._aside.popleft()
        while self._ended:
            memory = self._ended.popleft()
            self._uses += 1
            self._kept += len(memory)
            self._free.setdefault(len(memory), collections.deque()).append((self._uses, memory))

    def _too_much(self) -> list[_Memory]:
        """Remove memory beyond the limit: blocks that exceed it alone, then the least recently used."""
        unused = []
        while self._kept > self._max:
            sizes = [size for size in self._free if size > self._max] or list(self._free)
            oldest = min(sizes, key=lambda size: self._free[size][0][0])
            if (memory := self._take(oldest, 0)) is not None:
                unused.append(memory)
        return unused

    def _take(self, size: int, which: int) -> _Memory | None:
        """Remove and return unused memory of that size: the first or the last block."""
        free = self._free.get(size)
        if free is None:
            return None
        _, memory = free[which]
        del free[which]
        if not free:
            del self._free[size]
        self._kept -= size
        return memory

    def _drop(self, memory: _Memory) -> None:
        if self._unregister is not None:
            self._unregister(ctypes.addressof(ctypes.c_char.from_buffer(memory)))


def _fresh(size: int) -> _Memory:
    """New memory from the system."""
    if size < _HUGE_MIN or not hasattr(mmap, "MADV_HUGEPAGE"):
        return bytearray(size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Without huge pages, ordinary ones are used.
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _size(nbytes: int) -> int:
    """The smallest power of two that is at least `nbytes`."""
    return 1 << max(12, (max(nbytes, 1) - 1).bit_length())
