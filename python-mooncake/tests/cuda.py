"""The CUDA driver, or the stand-in for it, through ctypes: device memory without torch.

The library is that of `TIFFIN_CUDA_LIBRARY`, or `libcuda.so.1`.
"""

import ctypes
import os

NON_BLOCKING = 1
# What the stand-in can let fail: see `standin_fail`.
COPY, RUNNING, REGISTER, ALLOCATE_HOST, LAUNCH, ALLOCATE, LOAD_MODULE, BATCH = range(8)
# The functions whose calls cost time, without those that ask whether work has ended.
CALLS = (
    "cuPointerGetAttributes",
    "cuMemAlloc_v2",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuMemHostGetDevicePointer_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyBatchAsync_v2",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuEventCreate",
    "cuEventRecord",
    "cuModuleLoadData",
    "cuLaunchKernel",
)


class Counts(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "registered_bytes",
            "copies",
            "batched",
            "launches",
            "pending",
            "device_bytes",
            "registered_bytes_peak",
        )
    ]


class Driver:
    """The driver, with the primary context of a device current in the thread that made it."""

    def __init__(self, device=0):
        self.library = ctypes.CDLL(os.environ.get("TIFFIN_CUDA_LIBRARY", "libcuda.so.1"))
        self.is_standin = hasattr(self.library, "standin_counts")
        self.call("cuInit", 0)
        self.enter(device)

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} failed with {status}")

    def enter(self, device):
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(handle), device)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        self.call("cuCtxPushCurrent_v2", context)

    def device_count(self):
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def alloc(self, size, data=None):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        if data is not None:
            self.write(address.value, data)
        return address.value

    def free(self, address):
        self.call("cuMemFree_v2", ctypes.c_uint64(address))

    def write(self, address, data):
        source = ctypes.c_char_p(bytes(data))
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), source, ctypes.c_size_t(len(data)))

    def read(self, address, size):
        target = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", target, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return target.raw

    def fill(self, address, value, size, stream=0):
        """Fill memory in the order of a stream."""
        arguments = (ctypes.c_uint64(address), ctypes.c_ubyte(value), ctypes.c_size_t(size))
        self.call("cuMemsetD8Async", *arguments, ctypes.c_void_p(stream))

    def stream(self, flags=0):
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), flags)
        return stream.value

    def fail(self, kind, after=0, count=1):
        """Let calls of the stand-in fail."""
        self.call("standin_fail", kind, ctypes.c_uint64(after), ctypes.c_uint64(count))

    def seed(self, seed, is_eager):
        """Other choices of the stand-in; the real driver has none."""
        if self.is_standin:
            self.call("standin_seed", ctypes.c_uint64(seed), int(is_eager))

    def calls(self):
        """How often each function of the stand-in was called that prepares, begins or waits for work."""
        calls, count = {}, ctypes.c_uint64()
        for name in CALLS:
            self.call("standin_calls", name.encode(), ctypes.byref(count))
            calls[name] = count.value
        return calls

    def counts(self):
        counts = Counts()
        self.call("standin_counts", ctypes.byref(counts))
        return counts
