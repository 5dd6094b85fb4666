"""What arrays say of their elements, and memory that tensors are read into: numpy's where it is installed."""

from __future__ import annotations

from typing import Any

try:
    import numpy
except ImportError:
    numpy = None

#: What one element is called in the buffer protocol, by its type.
_FORMATS = {
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
#: Types that neither the buffer protocol nor numpy has a name for, and what holds their bits.
_BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
_TYPES = {code: dtype for dtype, code in _FORMATS.items()} | {"c": "uint8"}


#: What types of array libraries are called; to ask them takes longer than to look it up.
_NAMES: dict[Any, str] = {}


def _name(dtype: Any) -> str:
    name = str(dtype).rpartition(".")[2]
    # Whoever makes up types for each array does not fill this up.
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
            return f"{'u' * (code == 'L')}int{8 * view.itemsize}", view.shape
        return _TYPES.get(code, code), view.shape


def room(dtype: str, shape: tuple[int, ...], size: int) -> tuple[Any, Any]:
    """Bytes to be filled, and the tensor that they are then.

    >>> data, tensor = room("float32", (2, 3), 24)
    >>> len(data), tensor.shape
    (24, (2, 3))
    """
    if numpy is None:
        data = bytearray(size)
        code = _FORMATS[_BITS.get(dtype, dtype)]
        # A memoryview cannot have an empty dimension beside others.
        return data, memoryview(data).cast(code, shape) if size else memoryview(data).cast(code)
    data = numpy.empty(size, numpy.uint8)
    return data, data.view(numpy_type(dtype)).reshape(shape)


def look(view: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """A tensor that is where it lies, and read-only.

    >>> look(bytes(8), "float32", (2, 1)).tolist()
    [[0.0], [0.0]]
    """
    if numpy is None:
        code = _FORMATS[_BITS.get(dtype, dtype)]
        memory = memoryview(view)
        return memory.cast(code, shape) if len(memory) else memory.cast(code)
    array = numpy.frombuffer(view, numpy.uint8) if len(view) else numpy.empty(0, numpy.uint8)
    array.flags.writeable = False
    return array.view(numpy_type(dtype)).reshape(shape)


def misfit(buffer: Any, dtype: str, shape: tuple[int, ...]) -> str | None:
    """What a buffer is that is neither such a tensor nor plain bytes.

    >>> misfit(bytearray(8), "float32", (2,))
    >>> misfit(memoryview(bytearray(8)).cast("i"), "float32", (2,))
    'is int32 of shape [2]'
    """
    given = describe(buffer)
    plain = given[0] in ("uint8", "int8") and len(given[1]) == 1
    if plain or given in ((dtype, shape), (_BITS.get(dtype), shape)):
        return None
    return f"is {given[0]} of shape {list(given[1])}"


def numpy_type(dtype: str) -> Any:
    """What numpy calls a type, or the unsigned integer that holds its bits."""
    if dtype not in _BITS:
        return numpy.dtype(dtype)
    try:
        import ml_dtypes
    except ImportError:
        return numpy.dtype(_BITS[dtype])
    return numpy.dtype(getattr(ml_dtypes, dtype))
