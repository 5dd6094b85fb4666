"""Element types of arrays, and memory to read tensors into: numpy arrays if numpy is installed."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def _import_numpy() -> Any:
    try:
        import numpy  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    return numpy


#: The module, or `None` if it is not installed.
numpy: Any = _import_numpy()

#: The format characters of the buffer protocol, by element type.
_FORMATS: dict[str, Any] = {
    "bool": "?",
    "uint8": "B",
    "int8": "b",
    "uint16": "H",
    "int16": "h",
    "uint32": "I",
    "int32": "i",
    "uint64": "Q",
    "int64": "q",
    "float16": "e",
    "float32": "f",
    "float64": "d",
}
_SMALL_FLOATS = (
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float4_e2m1fn",
    "float4_e2m1fn_x2",
)
#: For types of torch, DLPack or ml_dtypes that numpy and the buffer protocol lack: the type that holds the
#: bits of an element. Elements smaller than a byte have a byte each, unless their type packs several.
HOLDERS = {
    "bfloat16": "uint16",
    **dict.fromkeys(_SMALL_FLOATS, "uint8"),
    "complex32": "uint32",
    **{f"int{bits}": "int8" for bits in range(1, 8)},
    **{f"uint{bits}": "uint8" for bits in range(1, 8)},
    **dict.fromkeys(("bits8", "bits1x8", "bits2x4", "bits4x2"), "uint8"),
    "bits16": "uint16",
}
#: The element types of complex numbers without numpy, which are pairs of these.
_PARTS = {"complex32": "e", "complex64": "f", "complex128": "d"}
_WIDTHS = {"?": 1, "b": 1, "B": 1, "h": 2, "H": 2, "e": 2, "i": 4, "I": 4, "f": 4, "q": 8, "Q": 8, "d": 8}
#: Every type of elements that a sample may have, and the bytes of one.
ITEM_BYTES: dict[str, int] = {
    **{dtype: _WIDTHS[code] for dtype, code in _FORMATS.items()},
    "complex64": 8,
    "complex128": 16,
    **{dtype: _WIDTHS[_FORMATS[holder]] for dtype, holder in HOLDERS.items()},
}
#: The types that every version of torch exports through DLPack, by the bytes of an element.
_TORCH_LENDS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
#: Quantized types of torch, whose bits have no meaning without a scale.
_QUANTIZED = ("qint8", "quint8", "qint32", "quint4x2", "quint2x4")
_TYPES = {code: dtype for dtype, code in _FORMATS.items()}
_TYPES |= {"c": "uint8", "Zf": "complex64", "Zd": "complex128"}


#: The names of element types. A lookup is faster than `str` of a type.
_NAMES: dict[Any, str] = {}


def _name(dtype: Any) -> str:
    name = str(dtype).rpartition(".")[2]
    # A limit, for programs that create a new type for each array.
    if len(_NAMES) < 256:
        _NAMES[dtype] = name
    return name


def describe(value: Any) -> tuple[str, tuple[int, ...]]:
    """The type of an array's elements, and its shape.

    >>> describe(b"abc"), describe(memoryview(bytes(8)).cast("f"))
    (('uint8', (3,)), ('float32', (2,)))
    """
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is not None and shape is not None:
        name = _NAMES.get(dtype) or _name(dtype)
        return name, shape if type(shape) is tuple else tuple(int(length) for length in shape)
    with memoryview(value) as view:
        code = view.format.lstrip("@")
        if code in ("l", "L"):
            return f"{'u' * (code == 'L')}int{8 * view.itemsize}", view.shape or ()
        return _TYPES.get(code, code), view.shape or ()


def exposed(value: Any) -> tuple[Any, str, tuple[int, ...]]:
    """The object that exports the memory of a tensor, the type of its elements, and its shape.

    Types that array libraries cannot export are exported as the integers that hold their bits.

    >>> exposed(b"abc")
    (b'abc', 'uint8', (3,))
    """
    dtype, shape = describe(value)
    if dtype in _QUANTIZED:
        raise TypeError(
            f"{dtype} has a scale besides its bits\n\nhint: store `tensor.int_repr()` and the scale"
        )
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach()
        if value.is_conj():
            value = value.resolve_conj()
        if dtype in HOLDERS or dtype in ("uint16", "uint32", "uint64"):
            value = value.view(getattr(torch, _TORCH_LENDS[ITEM_BYTES[dtype]]))
    elif dtype in HOLDERS and numpy is not None and isinstance(value, numpy.ndarray):
        value = value.view(HOLDERS[dtype])
    return value, dtype, shape


def allocate(dtype: str, shape: tuple[int, ...], size: int) -> tuple[Any, Any]:
    """Memory to fill, and the tensor over it.

    >>> data, tensor = allocate("float32", (2, 3), 24)
    >>> len(data), tensor.shape
    (24, (2, 3))
    """
    if numpy is None:
        data = bytearray(size)
        return data, _cast(memoryview(data), dtype, shape)
    data = numpy.empty(size, numpy.uint8)
    return data, data.view(numpy_type(dtype)).reshape(shape)


def in_place(view: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """A read-only tensor over the memory of a view.

    >>> in_place(bytes(8), "float32", (2, 1)).tolist()
    [[0.0], [0.0]]
    """
    if numpy is None:
        return _cast(memoryview(view), dtype, shape)
    array = numpy.frombuffer(view, numpy.uint8) if len(view) else numpy.empty(0, numpy.uint8)
    array.flags.writeable = False
    return array.view(numpy_type(dtype)).reshape(shape)


def misfit(buffer: Any, dtype: str, shape: tuple[int, ...]) -> str | None:
    """Why a buffer is neither such a tensor nor plain bytes, or `None`.

    >>> misfit(bytearray(8), "float32", (2,))
    >>> misfit(memoryview(bytearray(8)).cast("i"), "float32", (2,))
    'is int32 of shape [2]'
    """
    given = describe(buffer)
    plain = given[0] in ("uint8", "int8") and len(given[1]) == 1
    if plain or given in ((dtype, shape), (HOLDERS.get(dtype), shape)):
        return None
    return f"is {given[0]} of shape {list(given[1])}"


def _cast(memory: memoryview, dtype: str, shape: tuple[int, ...]) -> memoryview:
    """Memory as such a tensor, without numpy. Complex numbers are pairs in an additional last dimension."""
    code: Any = _PARTS.get(dtype) or _FORMATS[HOLDERS.get(dtype, dtype)]
    # A memoryview cannot be cast to half precision: the result has the bits instead.
    code = "H" if code == "e" else code
    # A memoryview of several dimensions cannot be empty.
    if not len(memory):
        return memory.cast(code)
    return memory.cast(code, (*shape, 2) if dtype in _PARTS else shape)


def numpy_type(dtype: str) -> Any:
    """The numpy type of that name, or the integer that holds its bits."""
    if dtype not in HOLDERS:
        return numpy.dtype(dtype)
    try:
        # No import statement: type checkers would require a package that is optional.
        ml_dtypes = importlib.import_module("ml_dtypes")
    except ImportError:
        return numpy.dtype(HOLDERS[dtype])
    return numpy.dtype(getattr(ml_dtypes, dtype, HOLDERS[dtype]))


def torch_type(torch: Any, dtype: str) -> Any:
    """The torch type of that name, or the integer that holds its bits if this version has no such type."""
    lent = _TORCH_LENDS.get(ITEM_BYTES[dtype], "uint8")
    return (
        getattr(torch, dtype, None) or getattr(torch, HOLDERS.get(dtype, lent), None) or getattr(torch, lent)
    )
