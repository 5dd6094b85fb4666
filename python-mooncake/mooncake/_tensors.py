"""Tensors in memory: their description for the store, and tensors over memory that was read.

The first call that returns a tensor imports torch. Writing a tensor needs no import: any class works whose
name contains `Tensor` and that has the members of torch's tensors.
"""

import ctypes
import math
import sys
from typing import Any, NamedTuple

from tiffin._native import mooncake as _native

from mooncake._tensor_format import (
    CODES,
    DIMENSIONS_MAX,
    DTYPES,
    HEADER_BYTES,
    Header,
    full_header,
    parse_header,
)


class Unsupported(Exception):
    """The object is not a tensor, or cannot be stored."""


class Elements(NamedTuple):
    """The elements of a tensor in memory, in row-major order. The owner keeps the memory alive."""

    dtype: int
    shape: tuple[int, ...]
    address: int
    owner: Any

    @property
    def item_bytes(self) -> int:
        return DTYPES[self.dtype][1]

    @property
    def data_bytes(self) -> int:
        return math.prod(self.shape) * self.item_bytes


def inspect(tensor: Any, is_cut: bool = False) -> Elements:
    """The elements of a tensor. Raises `Unsupported` if it cannot be stored.

    The part of a cut tensor is a plain tensor, whatever the class of the whole is.
    """
    try:
        if is_cut and "Tensor" not in type(tensor).__name__:
            tensor = tensor.detach()
        if "Tensor" not in type(tensor).__name__:
            raise Unsupported
        dtype = CODES[str(tensor.dtype)]
        shape = tuple(map(int, tensor.shape))
        if len(shape) > DIMENSIONS_MAX:
            raise Unsupported
        # A lazily negated view has other bytes than values.
        if getattr(tensor, "is_neg", bool)():
            tensor = tensor.resolve_neg()
        # The store reads memory of the host and of CUDA devices.
        device = str(getattr(tensor, "device", "cpu")).partition(":")[0]
        if device not in ("cpu", "cuda"):
            tensor = tensor.cpu()
        owner = tensor.contiguous()
        if device == "cuda":
            _wait_for(owner)
        elements = Elements(dtype, shape, int(owner.data_ptr()), owner)
        if int(owner.numel()) * int(owner.element_size()) != elements.data_bytes:
            raise Unsupported
    except Unsupported:
        raise
    # Sparse, quantised and meta tensors each raise their own kind of exception.
    except Exception:
        raise Unsupported from None
    return elements


def _wait_for(tensor: Any) -> None:
    """Wait for the work of torch's current stream. The store waits for the default stream only."""
    sys.modules["torch"].cuda.current_stream(tensor.device).synchronize()


def import_torch() -> Any:
    """The module, which only calls that return tensors need."""
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise ImportError(
            "tensors cannot be read: torch is not installed\n\n"
            "hint: run `pip install torch`, or read the object as bytes: a header of 304 bytes, then elements"
        ) from None
    return torch


def torch_type(torch: Any, code: int) -> Any:
    return getattr(torch, DTYPES[code][0])


def over(torch: Any, memory: Any, header: Header, offset: int) -> Any:
    """A tensor over memory. A tensor without dimensions is returned with one."""
    dtype, shape = torch_type(torch, header.dtype), header.shape or (1,)
    if header.data_bytes == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=offset).reshape(shape)


def from_object(memory: Any) -> Any:
    """The tensor of a whole stored object, or `None` if the object is not one."""
    header = header_of(memory)
    return None if header is None else over(import_torch(), memory, header, header.data_offset)


def header_of(memory: Any) -> Header | None:
    """The header of a whole stored object."""
    with memoryview(memory) as view:
        return parse_header(bytes(view[:HEADER_BYTES]), view.nbytes)


class _DeviceBytes:
    """Bytes on a CUDA device, for torch."""

    def __init__(self, address: int, size: int):
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def at_address(address: int, size: int) -> Any:
    """Memory of this process at an address. The caller keeps it mapped."""
    return (ctypes.c_char * size).from_address(address)


def bytes_at(torch: Any, address: int, size: int) -> Any:
    """A tensor of the bytes at an address, on the host or on a CUDA device. The caller keeps them there."""
    device = _native.device_at(address, size)
    if device is None:
        return torch.frombuffer(at_address(address, size), dtype=torch.uint8)
    return torch.as_tensor(_DeviceBytes(address, size), device=f"cuda:{device}")


def over_address(torch: Any, address: int, header: Header, offset: int) -> Any:
    """A tensor over the bytes at an address, after an offset, on the host or on a CUDA device."""
    size = offset + header.data_bytes
    if _native.device_at(address, size) is None or header.data_bytes == 0:
        return over(torch, at_address(address, size), header, offset)
    elements = bytes_at(torch, address + offset, header.data_bytes)
    return elements.view(torch_type(torch, header.dtype)).reshape(header.shape or (1,))


def serialize(tensor: Any) -> tuple[bytes, int, int, Any]:
    """The header of a tensor, the address and the size of its elements, and the object that owns them."""
    try:
        elements = inspect(tensor)
    except Unsupported:
        raise ValueError("unsupported tensor for Mooncake tensor serialization") from None
    header = full_header(elements.dtype, elements.shape)
    address = elements.address if elements.data_bytes else 0
    return header.to_bytes(), address, elements.data_bytes, elements.owner


def deserialize(payload: bytes) -> Any:
    """The tensor of a header and elements, with memory of its own."""
    if type(payload) is not bytes:
        raise TypeError(
            "_deserialize_tensor(): incompatible function arguments. The following argument types are "
            "supported:\n    1. (arg0: bytes) -> object"
        )
    tensor = from_object(bytearray(payload))
    if tensor is None:
        raise ValueError("invalid serialized Mooncake tensor payload")
    return tensor
