"""Tensors as they come and go: torch's, numpy's, and anything with DLPack or the buffer protocol."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from tiffin import _tensors

from .pool import Recycler
from .records import FeatureSpec

#: Tensors from this size on are read into memory that was used before.
_RECYCLED_MIN = 1 << 18
#: Types of extensions of numpy, which neither the buffer protocol nor DLPack know there.
_EXTENDED = {"bfloat16": "uint16"}


class _Bits:
    """An array of a type that only an extension of numpy knows: the bits, and what they are."""

    def __init__(self, array: Any, dtype: str) -> None:
        self.bits, self.dtype, self.shape = array.view(_EXTENDED[dtype]), dtype, array.shape

    def __dlpack__(self, **options: Any) -> Any:
        return self.bits.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.bits.__dlpack_device__()


def plain(value: Any) -> Any:
    """A tensor in host memory that is not part of a graph, and can say what it is."""
    if hasattr(value, "detach"):
        value = value.detach()
        if str(value.layout) != "torch.strided":
            raise TypeError(f"its elements are {value.layout}\n\nhint: `tensor.to_dense()`")
        if value.device.type != "cpu":
            value = value.cpu()
        return value.resolve_neg() if value.is_neg() else value
    numpy = _tensors.numpy
    if numpy is not None and isinstance(value, numpy.ndarray):
        name = value.dtype.name if value.dtype.kind == "V" or value.dtype.num > 255 else ""
        return _Bits(value, name) if name in _EXTENDED else value
    if hasattr(value, "__dlpack__") and not (hasattr(value, "dtype") and hasattr(value, "shape")):
        return numpy.from_dlpack(value) if numpy is not None else value
    return value


def describe(value: Any) -> tuple[str, tuple[int, ...]]:
    """The type of a tensor's elements, and its shape. Raises `ValueError` for what is no tensor."""
    try:
        dtype, shape = _tensors.describe(value)
    except TypeError as error:
        raise ValueError(f"{type(value).__name__} is no tensor: {error}") from error
    return dtype.removeprefix("<").removeprefix("|"), tuple(shape)


def in_one_piece(value: Any) -> tuple[memoryview, Any]:
    """The bytes of a tensor in the order of its elements, where they lie if that is how they lie; and what
    keeps them there."""
    if hasattr(value, "detach"):
        torch = sys.modules["torch"]
        value = value.contiguous()
        return memoryview(value.reshape(-1).view(torch.uint8).numpy()), value
    numpy = _tensors.numpy
    if not hasattr(value, "dtype") or numpy is None:
        view = memoryview(value)
        whole = view.c_contiguous and view.nbytes
        return (view.cast("B") if whole else memoryview(view.tobytes())), value
    if isinstance(value, _Bits):
        value = value.bits
    elif not isinstance(value, numpy.ndarray):
        value = numpy.from_dlpack(value) if hasattr(value, "__dlpack__") else numpy.asarray(value)
    value = numpy.ascontiguousarray(value)
    return memoryview(value.reshape(-1).view(numpy.uint8)), value


def room(recycler: Recycler, spec: FeatureSpec) -> tuple[Any, Any] | None:
    """Bytes to be filled, and the tensor that they are then; nothing without numpy and torch.

    Of a tensor without bytes there are none to be filled.
    """
    torch, numpy = sys.modules.get("torch"), _tensors.numpy
    if torch is None and numpy is None:
        return None
    nbytes = spec.nbytes
    # Small tensors are not worth the trouble.
    memory = recycler.room(nbytes) if nbytes >= _RECYCLED_MIN else bytearray(max(nbytes, 1))
    return _fill(torch, numpy, memory, spec, nbytes)


def _fill(torch: Any, numpy: Any, memory: Any, spec: FeatureSpec, nbytes: int) -> tuple[Any, Any]:
    if torch is None:
        data = numpy.frombuffer(memory, numpy.uint8, count=nbytes)
        return (data if nbytes else None), data.view(_tensors.numpy_type(spec.dtype)).reshape(spec.shape)
    if not nbytes:
        return None, torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))
    data = torch.frombuffer(memory, dtype=torch.uint8, count=nbytes)
    return data, data.view(getattr(torch, spec.dtype)).reshape(spec.shape)


def shaped(memory: Any, spec: FeatureSpec) -> Any:
    """The tensor that lies at the beginning of some memory, which it keeps."""
    torch, numpy = sys.modules.get("torch"), _tensors.numpy
    if torch is None and numpy is None:
        data, tensor = _tensors.room(spec.dtype, spec.shape, spec.nbytes)
        memoryview(data)[:] = memoryview(memory).cast("B")[: spec.nbytes]
        return tensor
    return _fill(torch, numpy, memory, spec, spec.nbytes)[1]


def lent(array: Any, spec: FeatureSpec) -> Any:
    """An array that looks at the store's memory, as torch's where that was imported."""
    torch = sys.modules.get("torch")
    if torch is None or not spec.nbytes:
        return array if torch is None else torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))
    if spec.dtype in _EXTENDED:
        array = array.view(_EXTENDED[spec.dtype])
    with warnings.catch_warnings():
        # Torch knows no tensors that are read-only, and says so.
        warnings.simplefilter("ignore")
        return torch.from_dlpack(array).view(getattr(torch, spec.dtype)).reshape(spec.shape)


def on_device(tensor: Any, device: str) -> Any:
    """The tensor where it is wanted, if it is one that can be elsewhere than in host memory."""
    return tensor.to(device) if device != "cpu" and hasattr(tensor, "to") else tensor
