"""Arrays in memory of a CUDA device, without an array library: over a real driver or the stand-in."""

import contextlib
import ctypes
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python-mooncake" / "tests"))

import cuda  # noqa: E402

LEGACY = 1
KIND_CUDA = 2
#: The exported structs whose consumer has not released them.
KEPT = []
CAPSULE = b"dltensor"


class Interface:
    """An array with `__cuda_array_interface__` only."""

    def __init__(self, address, shape, typestr="|u1", **more):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (address, more.pop("is_read_only", False)),
            "version": 3,
            "strides": None,
            **more,
        }


class Typed(Interface):
    """The same with a type and a shape, as arrays of samples have them."""

    def __init__(self, address, shape, dtype, typestr):
        super().__init__(address, shape, typestr, stream=LEGACY)
        self.dtype, self.shape = dtype, shape


class Tensor:
    """An array with DLPack only. `current` is the stream on which its library works now."""

    def __init__(self, driver, address, shape, current=0, device=0, strides=None):
        self.driver, self.address, self.shape = driver, address, shape
        self.current, self.device, self.strides = current, device, strides
        self.streams = []

    def __dlpack_device__(self):
        return (KIND_CUDA, self.device)

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        if stream not in (-1, self.current):
            self.driver.let_wait(stream, self.current)
        managed = _Managed()
        shape = (ctypes.c_int64 * len(self.shape))(*self.shape)
        managed.tensor.data, managed.tensor.shape = self.address, shape
        managed.tensor.dimensions, managed.tensor.device = len(self.shape), (KIND_CUDA, self.device)
        managed.tensor.type = (1, 8, 1)
        if self.strides is not None:
            managed.tensor.strides = (ctypes.c_int64 * len(self.shape))(*self.strides)
        managed.deleter = _Deleter(lambda _: KEPT.remove(managed))
        KEPT.append(managed)
        return _capsule(ctypes.addressof(managed), CAPSULE, None)


class _Raw(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("dimensions", ctypes.c_int32),
        ("type", ctypes.c_uint8 * 4),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Raw), ("context", ctypes.c_void_p), ("deleter", _Deleter)]


_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Driver(cuda.Driver):
    """The driver, with what an array library does on streams, and a kernel that reads mapped memory."""

    def let_wait(self, stream, other):
        """The work of a stream waits for the present work of another one."""
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), 2)
        self.call("cuEventRecord", event, ctypes.c_void_p(other))
        self.call("cuStreamWaitEvent", ctypes.c_void_p(stream), event, 0)

    def copy(self, target, source, size, stream):
        """Copy on the device, in the order of a stream."""
        arguments = (ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(size))
        self.call("cuMemcpyDtoDAsync_v2", *arguments, ctypes.c_void_p(stream))

    def change(self, stream, *, is_captured=False, is_stalled=False):
        """Let the stand-in record the work of a stream into a graph, or keep its events unfinished."""
        self.call("standin_stream", ctypes.c_void_p(stream), int(is_captured), int(is_stalled))

    def wait(self, stream):
        """Wait for the work of a stream."""
        self.call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def copy_by_kernel(self, source, target, size):
        """Copy with our kernel, which reads everything that a kernel can."""
        image = (ROOT / "crates" / "gpu" / "kernels" / "copy.ptx").read_bytes() + b"\0"
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), image)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"tiffin_copy")
        units = self.alloc(24, b"".join(it.to_bytes(8, "little") for it in (source, target, size)))
        list_address, count = ctypes.c_uint64(units), ctypes.c_uint32(1)
        parameters = (ctypes.c_void_p * 2)(ctypes.addressof(list_address), ctypes.addressof(count))
        self.call("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, ctypes.c_void_p(0), parameters, None)
        self.call("cuCtxSynchronize")
        self.free(units)

    @contextlib.contextmanager
    def memory(self, data):
        """Device memory with these bytes."""
        address = self.alloc(len(data), data)
        try:
            yield address
        finally:
            self.free(address)
