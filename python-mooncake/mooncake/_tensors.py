"""Tensors in memory: their description for the store, and tensors over memory that was read.

The first call that returns a tensor imports torch. Writing a tensor needs no import: any class works whose
name contains `Tensor` and that has the members of torch's tensors.
"""

import ctypes
import math
from typing import Any, NamedTuple

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
        # The store reads host memory.
        if str(getattr(tensor, "device", "cpu")).partition(":")[0] != "cpu":
            tensor = tensor.cpu()
        owner = tensor.contiguous()
        elements = Elements(dtype, shape, int(owner.data_ptr()), owner)
        if int(owner.numel()) * int(owner.element_size()) != elements.data_bytes:
            raise Unsupported
    except Unsupported:
        raise
    # Sparse, quantised and meta tensors each raise their own kind of exception.
    except Exception:
        raise Unsupported from None
    return elements


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


def at_address(address: int, size: int) -> Any:
    """Memory at an address. The caller keeps it mapped."""
    return (ctypes.c_char * size).from_address(address)


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
