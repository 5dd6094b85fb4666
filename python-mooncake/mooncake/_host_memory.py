"""Host memory for other libraries: shared memory that another process can map, the processors and memory of
a NUMA node, and the addresses of C functions that allocate."""

import ctypes
import mmap
import os
import sys
import threading

REGIONS_MAX = 1 << 16

_PREFERRED = 1
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}


class _Region:
    """One mapping, and the memory file behind it."""

    def __init__(self, size: int) -> None:
        pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.file = os.memfd_create("mooncake_shm", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.file, pages)
            self.map = mmap.mmap(self.file, pages)
        except BaseException:
            os.close(self.file)
            raise
        self.size = size
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def end(self) -> None:
        self.map.close()
        os.close(self.file)


class _Regions:
    """Every mapping of the process, by address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._regions: dict[int, _Region] = {}

    def add(self, size: int) -> int:
        with self._lock:
            if len(self._regions) >= REGIONS_MAX:
                raise RuntimeError("Failed to map shared memory: too many allocations")
            region = _Region(size)
            self._regions[region.address] = region
            return region.address

    def remove(self, address: int) -> int:
        with self._lock:
            region = self._regions.pop(address, None)
        if region is None:
            return -1
        region.end()
        return 0

    def find(self, address: int, size: int = 1) -> tuple[int, int] | None:
        """The memory file with these bytes and their offset in it, or `None`."""
        with self._lock:
            for start, region in self._regions.items():
                if start <= address and address + size <= start + region.size:
                    return region.file, address - start
        return None

    def after_fork(self) -> None:
        """A thread of the parent may have held the lock. The mappings are shared with the child."""
        self._lock = threading.Lock()


regions = _Regions()
os.register_at_fork(after_in_child=regions.after_fork)


class MooncakeHostMemAllocator:
    """Allocates shared memory in whole pages, which a daemon of this host can map. All allocators of a
    process share the same memory, and dropping one frees nothing."""

    __module__ = "mooncake.store"

    def alloc(self, size: int, /) -> int:
        """Returns the address of new memory, filled with zeros. Raises `RuntimeError` if the allocation
        fails."""
        if not isinstance(size, int) or size < 0:
            raise TypeError(f"alloc(size: int): expected a non-negative integer, not {size!r}")
        if size == 0:
            raise RuntimeError("Failed to map shared memory: Invalid argument")
        try:
            return regions.add(size)
        except (OSError, OverflowError, ValueError):
            raise RuntimeError("Failed to map shared memory: Cannot allocate memory") from None

    def free(self, address: int, /) -> int:
        """Free memory. Returns 0, or -1 if none was allocated there."""
        if not isinstance(address, int):
            raise TypeError(f"free(address: int): expected an integer, not {address!r}")
        return regions.remove(address)


def _function(name: str) -> int:
    return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0


def get_alloc_func_addr() -> int:
    """Returns the address of a C function that allocates host memory: its first argument is the size."""
    return _function("malloc")


def get_free_func_addr() -> int:
    """Returns the address of a C function that frees such memory: its first argument is the address."""
    return _function("free")


def bind_to_numa_node(node: int) -> None:
    """Run this thread on the processors of a NUMA node, and prefer its memory.

    >>> bind_to_numa_node(0)

    A missing node changes nothing, and prints a line on standard error.
    """
    if not isinstance(node, int):
        raise TypeError(f"bind_to_numa_node(node: int): expected an integer, not {node!r}")
    try:
        with open(f"/sys/devices/system/node/node{node}/cpulist") as file:
            processors = _processors(file.read())
    except OSError:
        if node != 0:
            print(f"mooncake.store: there is no NUMA node {node}, nothing was bound", file=sys.stderr)
        return
    allowed = processors & os.sched_getaffinity(0)
    if allowed:
        os.sched_setaffinity(0, allowed)
    call = _SET_MEMPOLICY.get(os.uname().machine)
    if call is not None:
        words = (ctypes.c_ulong * (node // 64 + 1))()
        words[node // 64] = 1 << node % 64
        # The memory policy is a preference: a refusal by the kernel has no other effect.
        ctypes.CDLL(None).syscall(call, _PREFERRED, words, ctypes.c_ulong(len(words) * 64 + 1))


def _processors(text: str) -> set[int]:
    """The processors in a list such as `0-3,8`."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            numbers.update(range(int(first), int(last or first) + 1))
    return numbers
