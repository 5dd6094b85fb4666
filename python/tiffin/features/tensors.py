"""Conversions of tensors: of torch, of numpy, and of anything with DLPack or the buffer protocol."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from tiffin import _tensors

from .pool import Recycler
from .records import FeatureSpec

#: The minimum size of tensors that are read into reused memory.
_RECYCLED_MIN = 1 << 18


def plain(value: Any) -> Any:
    """The tensor in memory that the store reads, detached from its graph: of the host or of a CUDA device."""
    if hasattr(value, "detach"):
        value = value.detach()
        if str(value.layout) != "torch.strided":
            raise TypeError(f"its layout is {value.layout}\n\nhint: convert it with `tensor.to_dense()`")
        if value.device.type == "cuda":
            # The store copies straight from the device, if the bytes are contiguous there.
            value = value.contiguous()
        elif value.device.type != "cpu":
            value = value.cpu()
        if value.is_conj():
            value = value.resolve_conj()
        return value.resolve_neg() if value.is_neg() else value
    numpy = _tensors.numpy
    if hasattr(value, "__dlpack__") and not (hasattr(value, "dtype") and hasattr(value, "shape")):
        return numpy.from_dlpack(value) if numpy is not None else value
    return value


def describe(value: Any) -> tuple[str, tuple[int, ...]]:
    """The type of a tensor's elements, and its shape. Raises `ValueError` if it is not a tensor."""
    try:
        dtype, shape = _tensors.describe(value)
    except TypeError as error:
        raise ValueError(f"{type(value).__name__} is not a tensor: {error}") from error
    return dtype.removeprefix("<").removeprefix("|"), tuple(shape)


def in_one_piece(value: Any) -> tuple[memoryview, Any]:
    """The bytes of a tensor in the order of its elements, without a copy if it is contiguous; and their
    owner."""
    if hasattr(value, "detach"):
        torch, value = sys.modules["torch"], value.cpu()
        # Torch cannot copy all of its element types, but integers of the same size.
        integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        value = value.view(integers.get(value.element_size(), value.dtype)).contiguous()
        return memoryview(value.reshape(-1).view(torch.uint8).numpy()), value
    numpy = _tensors.numpy
    if not hasattr(value, "dtype") or numpy is None:
        view = memoryview(value)
        whole = view.c_contiguous and view.nbytes
        return (view.cast("B") if whole else memoryview(view.tobytes())), value
    if not isinstance(value, numpy.ndarray):
        value = numpy.from_dlpack(value) if hasattr(value, "__dlpack__") else numpy.asarray(value)
    value = numpy.ascontiguousarray(value)
    return memoryview(value.reshape(-1).view(numpy.uint8)), value


def allocate(recycler: Recycler, spec: FeatureSpec, device: str) -> tuple[Any, Any] | None:
    """A buffer to read into, and the tensor over it; `None` without numpy and torch.

    The buffer of an empty tensor is `None`. Torch allocates memory of CUDA devices; for other devices the
    buffer is in host memory.
    """
    torch, numpy = sys.modules.get("torch"), _tensors.numpy
    if torch is None and numpy is None:
        return None
    nbytes = spec.nbytes
    if torch is not None and str(device).startswith("cuda") and nbytes:
        data = torch.empty(nbytes, dtype=torch.uint8, device=device)
        return data, data.view(_tensors.torch_type(torch, spec.dtype)).reshape(spec.shape)
    # Reusing the memory of small tensors saves nothing.
    memory = recycler.allocate(nbytes) if nbytes >= _RECYCLED_MIN else bytearray(max(nbytes, 1))
    return _fill(torch, numpy, memory, spec, nbytes)


def _fill(torch: Any, numpy: Any, memory: Any, spec: FeatureSpec, nbytes: int) -> tuple[Any, Any]:
    if torch is None:
        data = numpy.frombuffer(memory, numpy.uint8, count=nbytes)
        return (data if nbytes else None), data.view(_tensors.numpy_type(spec.dtype)).reshape(spec.shape)
    if not nbytes:
        return None, torch.empty(spec.shape, dtype=_tensors.torch_type(torch, spec.dtype))
    data = torch.frombuffer(memory, dtype=torch.uint8, count=nbytes)
    return data, data.view(_tensors.torch_type(torch, spec.dtype)).reshape(spec.shape)


def shaped(memory: Any, spec: FeatureSpec) -> Any:
    """The tensor at the start of some memory, which it keeps alive."""
    torch, numpy = sys.modules.get("torch"), _tensors.numpy
    if torch is None and numpy is None:
        data, tensor = _tensors.allocate(spec.dtype, spec.shape, spec.nbytes)
        memoryview(data)[:] = memoryview(memory).cast("B")[: spec.nbytes]
        return tensor
    return _fill(torch, numpy, memory, spec, spec.nbytes)[1]


def lent(array: Any, spec: FeatureSpec) -> Any:
    """A view of the store's memory; a torch tensor if torch was imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return array
    dtype = _tensors.torch_type(torch, spec.dtype)
    if not spec.nbytes:
        return torch.empty(spec.shape, dtype=dtype)
    if spec.dtype in _tensors.HOLDERS:
        array = array.view(_tensors.HOLDERS[spec.dtype])
    with warnings.catch_warnings():
        # Torch has no read-only tensors, and warns about it.
        warnings.simplefilter("ignore")
        return torch.from_dlpack(array).view(dtype).reshape(spec.shape)


def on_device(tensor: Any, device: str) -> Any:
    """The tensor on this device, if it can be moved and is not there already."""
    return tensor.to(device) if str(device) != "cpu" and hasattr(tensor, "to") else tensor
