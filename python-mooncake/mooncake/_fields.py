"""Encodes the fields of a batch as buffers: arrays and tensors as they are, other rows by a codec.

A codec writes named buffers and a description in JSON. No codec evaluates its input: there is no pickle.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np  # type: ignore[import-not-found, unused-ignore]
import numpy.typing as npt  # type: ignore[import-not-found, unused-ignore]

CODECS = (
    *("auto", "ndarray", "typed_ragged", "ragged_tensor", "ragged_tensor_dict", "bytes_ragged"),
    *("media_bytes", "media_list_ragged", "utf8_ragged", "msgpack_ragged", "json_ragged"),
)

Array: TypeAlias = npt.NDArray[Any]
Buffers = dict[str, Array]
Description = dict[str, Any]


@dataclass
class FieldSchema:
    """How to store a field: a codec, whether rows may be None, and hints such as `dtype` and `section`."""

    codec: str = "auto"
    nullable: bool = True
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.codec not in CODECS:
            raise ValueError(f"unsupported schema codec: {self.codec!r}")


def is_tensor(value: Any) -> bool:
    """Whether it is a torch tensor. Torch is not imported for this check."""
    return type(value).__name__ in ("Tensor", "Parameter") and hasattr(value, "detach")


def tensor_bytes(tensor: Any) -> tuple[Array, Description]:
    """The bytes of a tensor, and its type and shape."""
    torch = _torch()
    plain = tensor.detach().cpu().contiguous()
    flat = plain.reshape(-1).view(torch.uint8).numpy() if plain.numel() else np.empty(0, np.uint8)
    return flat, {"dtype": str(plain.dtype).removeprefix("torch."), "shape": list(plain.shape)}


def tensor_of(data: Array, description: Mapping[str, Any]) -> Any:
    """The tensor over these bytes."""
    torch = _torch()
    dtype = getattr(torch, description["dtype"])
    if not data.nbytes:
        return torch.empty(tuple(description["shape"]), dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(tuple(description["shape"]))


def dtype_name(dtype: "np.dtype[Any]") -> str:
    """A name from which `dtype_of` makes the same type."""
    if dtype.hasobject:
        raise TypeError(f"arrays of {dtype} cannot be stored\n\nhint: name a codec for the rows")
    return str(dtype.name if dtype.kind == "V" and dtype.names is None else dtype.str)


def dtype_of(name: str) -> "np.dtype[Any]":
    """The type of that name. Types of the package `ml_dtypes` require it."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # type: ignore[import-not-found,unused-ignore]

        made: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return made


def encode(rows: Any, schema: FieldSchema) -> tuple[Buffers, Description]:
    """The buffers of a field, by suffix, and their description."""
    codec = choose(rows) if schema.codec == "auto" else schema.codec
    if codec == "ndarray":
        array = np.asarray(rows, dtype=schema.metadata.get("dtype"))
        name = dtype_name(array.dtype)
        return {"data": np.ascontiguousarray(array)}, {
            "codec": codec,
            "dtype": name,
            "shape": list(array.shape),
        }
    rows = list(rows)
    nulls = [row is None for row in rows]
    if any(nulls) and not schema.nullable:
        raise ValueError(f"row {nulls.index(True)} is None, and the field is not nullable")
    buffers, description = _ENCODERS[codec](rows, schema)
    if any(nulls):
        buffers["nulls"] = np.asarray(nulls, np.uint8)
    return buffers, {"codec": codec, "rows": len(rows), **description}


def decode(buffers: Mapping[str, Array], description: Mapping[str, Any]) -> Any:
    """The rows of a field: an array, or a list."""
    codec = description["codec"]
    if codec == "ndarray":
        return _typed(buffers["data"], description).reshape(description["shape"])
    rows: list[Any] = _DECODERS[codec](buffers, description)
    nulls = buffers.get("nulls")
    return (
        rows
        if nulls is None
        else [None if is_null else row for row, is_null in zip(rows, nulls, strict=True)]
    )


def choose(rows: Any) -> str:
    """The codec for rows without a declared kind."""
    if isinstance(rows, np.ndarray) and not rows.dtype.hasobject:
        return "ndarray"
    kept = [row for row in rows if row is not None]
    for codec, fits in (
        ("utf8_ragged", lambda row: isinstance(row, str)),
        ("bytes_ragged", lambda row: isinstance(row, (bytes, bytearray, memoryview))),
        ("ragged_tensor", is_tensor),
        ("typed_ragged", lambda row: isinstance(row, np.ndarray) and not row.dtype.hasobject),
        (
            "ragged_tensor_dict",
            lambda row: isinstance(row, Mapping) and row and all(map(is_tensor, row.values())),
        ),
    ):
        if kept and all(map(fits, kept)):
            return (
                codec
                if codec != "typed_ragged" or len({row.dtype for row in kept}) == 1
                else "msgpack_ragged"
            )
    return "msgpack_ragged"


def _offsets(lengths: Sequence[int]) -> Array:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


def _typed(data: Array, description: Mapping[str, Any]) -> Array:
    return data.reshape(-1).view(np.uint8).view(dtype_of(description["dtype"]))


def _pieces(buffers: Mapping[str, Array]) -> list[Array]:
    data, offsets = buffers["data"].reshape(-1).view(np.uint8), _numbers(buffers["offsets"])
    return [data[start:end] for start, end in pairwise(offsets)]


def _numbers(data: Array) -> list[int]:
    numbers: list[int] = data.reshape(-1).view(np.uint8).view(np.int64).tolist()
    return numbers


def _joined(rows: Sequence[Array]) -> Buffers:
    plain = [np.ascontiguousarray(row).reshape(-1).view(np.uint8) for row in rows]
    data = np.concatenate(plain) if plain else np.empty(0, np.uint8)
    return {"data": data, "offsets": _offsets([len(row) for row in plain])}


def _encode_bytes(
    to_bytes: Callable[[Any], bytes],
) -> Callable[[list[Any], FieldSchema], tuple[Buffers, Description]]:
    def encode_rows(rows: list[Any], _schema: FieldSchema) -> tuple[Buffers, Description]:
        plain = [b"" if row is None else to_bytes(row) for row in rows]
        return _joined([np.frombuffer(row, np.uint8) for row in plain]), {}

    return encode_rows


def _decode_bytes(
    of_bytes: Callable[[bytes], Any],
) -> Callable[[Mapping[str, Array], Mapping[str, Any]], list[Any]]:
    def decode_rows(buffers: Mapping[str, Array], _description: Mapping[str, Any]) -> list[Any]:
        nulls = buffers.get("nulls")
        pieces = _pieces(buffers)
        kept = [True] * len(pieces) if nulls is None else [not it for it in nulls]
        return [of_bytes(it.tobytes()) if keep else None for it, keep in zip(pieces, kept, strict=True)]

    return decode_rows


def _encode_shaped(arrays: list[Array | None], shapes: list[list[int]]) -> Buffers:
    buffers = _joined([np.empty(0, np.uint8) if it is None else it for it in arrays])
    buffers["shapes"] = np.asarray([size for shape in shapes for size in shape], np.int64)
    buffers["dims"] = _offsets([len(shape) for shape in shapes])
    return buffers


def _shapes(buffers: Mapping[str, Array]) -> list[list[int]]:
    sizes, dims = _numbers(buffers["shapes"]), _numbers(buffers["dims"])
    return [sizes[start:end] for start, end in pairwise(dims)]


def _encode_typed(rows: list[Any], schema: FieldSchema) -> tuple[Buffers, Description]:
    wanted = schema.metadata.get("dtype")
    plain = [row.detach().cpu().numpy() if is_tensor(row) else row for row in rows]
    arrays = [None if row is None else np.asarray(row, dtype=wanted) for row in plain]
    # An empty list has no type.
    dtypes = {it.dtype for it in arrays if it is not None and it.size} or {
        it.dtype for it in arrays if it is not None
    }
    if len(dtypes) > 1:
        names = ", ".join(sorted(map(str, dtypes)))
        raise ValueError(f"the rows have several types: {names}\n\nhint: name one as `dtype` in the schema")
    dtype = dtypes.pop() if dtypes else np.dtype(wanted or np.float32)
    cast = [None if it is None else it.astype(dtype, copy=False) for it in arrays]
    shapes = [[] if it is None else list(it.shape) for it in cast]
    return _encode_shaped(cast, shapes), {"dtype": dtype_name(dtype)}


def _decode_typed(buffers: Mapping[str, Array], description: Mapping[str, Any]) -> list[Any]:
    nulls = buffers.get("nulls")
    rows = []
    for index, (piece, shape) in enumerate(zip(_pieces(buffers), _shapes(buffers), strict=True)):
        is_null = nulls is not None and bool(nulls[index])
        # A row starts at the end of the previous one, which may be misaligned for its type.
        rows.append(None if is_null else _typed(piece.copy(), description).reshape(shape))
    return rows


def _encode_tensors(rows: list[Any], _schema: FieldSchema) -> tuple[Buffers, Description]:
    parts = [None if row is None else tensor_bytes(row) for row in rows]
    dtypes = [None if part is None else part[1]["dtype"] for part in parts]
    shapes = [[] if part is None else part[1]["shape"] for part in parts]
    return _encode_shaped([None if part is None else part[0] for part in parts], shapes), {"dtypes": dtypes}


def _decode_tensors(buffers: Mapping[str, Array], description: Mapping[str, Any]) -> list[Any]:
    parts = zip(_pieces(buffers), _shapes(buffers), description["dtypes"], strict=True)
    return [
        None if dtype is None else tensor_of(piece.copy(), {"dtype": dtype, "shape": shape})
        for piece, shape, dtype in parts
    ]


def _encode_tensor_dicts(rows: list[Any], schema: FieldSchema) -> tuple[Buffers, Description]:
    names = sorted({name for row in rows if row is not None for name in row})
    buffers: Buffers = {}
    described = []
    for index, name in enumerate(names):
        column = [None if row is None else row.get(name) for row in rows]
        kind = "ragged_tensor" if all(it is None or is_tensor(it) for it in column) else "typed_ragged"
        inner, description = encode(column, FieldSchema(kind, True, schema.metadata))
        buffers |= {f"{index}.{suffix}": buffer for suffix, buffer in inner.items()}
        described.append({"name": name, "field": description})
    return buffers, {"columns": described}


def _decode_tensor_dicts(buffers: Mapping[str, Array], description: Mapping[str, Any]) -> list[Any]:
    rows: list[dict[str, Any]] = [{} for _ in range(description["rows"])]
    for index, column in enumerate(description["columns"]):
        mark = f"{index}."
        inner = {name.removeprefix(mark): it for name, it in buffers.items() if name.startswith(mark)}
        for row, value in zip(rows, decode(inner, column["field"]), strict=True):
            if value is not None:
                row[column["name"]] = value
    return rows


def _encode_lists(rows: list[Any], _schema: FieldSchema) -> tuple[Buffers, Description]:
    lists = [[] if row is None else list(row) for row in rows]
    buffers = _joined([np.frombuffer(bytes(item), np.uint8) for row in lists for item in row])
    buffers["counts"] = _offsets([len(row) for row in lists])
    return buffers, {}


def _decode_lists(buffers: Mapping[str, Array], _description: Mapping[str, Any]) -> list[Any]:
    items, counts = [it.tobytes() for it in _pieces(buffers)], _numbers(buffers["counts"])
    return [items[start:end] for start, end in pairwise(counts)]


def _pack(value: Any) -> bytes:
    return bytes(_msgpack().packb(value, default=_plain, use_bin_type=True))


def _unpack(data: bytes) -> Any:
    return _msgpack().unpackb(data, raw=False, strict_map_key=False)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (set, frozenset)):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be stored\n\nhint: name a codec for the field")


def _msgpack() -> Any:
    try:
        import msgpack  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ModuleNotFoundError:
        raise ImportError(
            "rows of any kind need msgpack: pip install 'tiffin-mooncake[structured]'"
        ) from None
    return msgpack


def _torch() -> Any:
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]
    except ModuleNotFoundError:
        raise ImportError("tensors need torch: pip install torch") from None
    return torch


_ENCODERS: dict[str, Callable[[list[Any], FieldSchema], tuple[Buffers, Description]]] = {
    "typed_ragged": _encode_typed,
    "ragged_tensor": _encode_tensors,
    "ragged_tensor_dict": _encode_tensor_dicts,
    "bytes_ragged": _encode_bytes(bytes),
    "media_bytes": _encode_bytes(bytes),
    "media_list_ragged": _encode_lists,
    "utf8_ragged": _encode_bytes(str.encode),
    "msgpack_ragged": _encode_bytes(_pack),
    "json_ragged": _encode_bytes(lambda row: json.dumps(row, default=_plain).encode()),
}

_DECODERS: dict[str, Callable[[Mapping[str, Array], Mapping[str, Any]], list[Any]]] = {
    "typed_ragged": _decode_typed,
    "ragged_tensor": _decode_tensors,
    "ragged_tensor_dict": _decode_tensor_dicts,
    "bytes_ragged": _decode_bytes(bytes),
    "media_bytes": _decode_bytes(bytes),
    "media_list_ragged": _decode_lists,
    "utf8_ragged": _decode_bytes(bytes.decode),
    "msgpack_ragged": _decode_bytes(_unpack),
    "json_ragged": _decode_bytes(json.loads),
}
