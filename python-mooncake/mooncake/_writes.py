"""Writes: bytes, parts, memory at addresses, and tensors, whole or cut into shards.

Every method that stores goes through `_store`, a batch of objects made of parts. `write` and
`write_tensors` convert the arguments of a method into such batches.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tiffin._native import mooncake as _native

from mooncake import _parallelism as parallel
from mooncake import _tensor_format as formats
from mooncake import _tensors as tensors
from mooncake._codes import INVALID

OK = 0
#: The maximum number of shards of one tensor.
SHARDS_MAX = 1 << 16

#: Parts of an object: values with the buffer protocol, and rows at an address.
Parts = list[Any]


class Object(NamedTuple):
    """An object to store. The owner keeps the memory of its parts alive."""

    key: bytes
    parts: Parts
    owner: Any = None


class How(NamedTuple):
    """How a call stores: its name, its options, and whether its objects replace existing ones."""

    call: str
    config: Any
    #: The number of group ids that the config must have, if it has any.
    groups: int
    #: "value", "buffer" or "tensor".
    source: str
    replaces: bool


def _store(store: Any, how: How, objects: Sequence[Object]) -> list[int]:
    return _write(store, how, [it.key for it in objects], [it.parts for it in objects])


def _write(store: Any, how: How, keys: list[bytes], parts: list[Parts]) -> list[int]:
    codes: list[int] = _native.write(
        store, how.call, keys, parts, how.config, how.groups, how.source, how.replaces
    )
    return codes


def _first_failure(codes: Sequence[int]) -> int:
    return next((code for code in codes if code != OK), OK)


# Bytes.


def write_values(store: Any, how: How, keys: list[bytes], values: Sequence[Any]) -> int:
    """Store values. Returns the code of the first failure."""
    if not _native.is_open(store) or len(keys) != len(values):
        return INVALID
    return _first_failure(_write(store, how, keys, [[value] for value in values])) if keys else OK


def write_parts(store: Any, how: How, key: bytes, parts: Sequence[Any]) -> int:
    """Store the concatenation of parts; nothing if all are empty."""
    given = []
    for part in parts:
        try:
            view = memoryview(part)
        except TypeError:
            raise TypeError(f"a bytes-like object is required, not '{type(part).__name__}'") from None
        if view.ndim != 1 or view.itemsize != 1:
            raise RuntimeError("parts must be 1-D bytes-like")
        given += [view] if view.nbytes else []
    if not _native.is_open(store):
        return INVALID
    return _first_failure(_store(store, how, [Object(key, given)])) if given else OK


def write_buffers(
    store: Any, how: How, keys: list[bytes], addresses: list[int], sizes: list[int]
) -> list[int]:
    """Store memory at addresses."""
    if len(addresses) != len(keys) or len(sizes) != len(keys):
        return [INVALID] * len(keys)
    parts: list[Parts] = [[_whole(*it)] for it in zip(addresses, sizes, strict=True)]
    return _write(store, how, keys, parts)


def write_buffer(
    store: Any, call: str, config: Any, replaces: bool, key: bytes, address: int, size: int
) -> int:
    """Store memory at one address. Short, because a small value takes not much longer than its call."""
    codes: list[int] = _native.write(
        store, call, [key], [[(address, size, 1, size)]], config, 1, "buffer", replaces
    )
    return codes[0]


def _whole(address: int, size: int) -> tuple[int, int, int, int]:
    return (address, size, 1, size)


# Tensors.


class Buffer(NamedTuple):
    """A header and elements in the caller's memory."""

    address: int
    size: int


class Refused(Exception):
    """A tensor or a buffer that cannot be stored in this way. The answer is -600."""


def _elements(store: Any, value: Any, is_cut: bool = False) -> tuple[tensors.Elements, Any]:
    """The elements of a tensor or a buffer, and the header of the buffer."""
    if not isinstance(value, Buffer):
        try:
            return tensors.inspect(value, is_cut), None
        except tensors.Unsupported:
            raise Refused from None
    header = buffer_header(store, value)
    return tensors.Elements(header.dtype, header.shape, value.address + header.data_offset, None), header


def buffer_header(store: Any, buffer: Buffer) -> formats.Header:
    head = _native.peek(store, buffer.address, formats.HEADER_BYTES) if buffer.size >= 304 else None
    header = None if head is None else formats.parse_header(head, buffer.size)
    if header is None:
        raise Refused
    return header


def _object(key: bytes, header: formats.Header, rows: tuple[int, int, int, int], owner: Any) -> Object:
    return Object(key, [header.to_bytes(), rows] if header.data_bytes else [header.to_bytes()], owner)


def plain_object(store: Any, key: bytes, value: Any) -> Object:
    """A whole tensor, or a buffer as it is."""
    if isinstance(value, Buffer):
        buffer_header(store, value)
        return Object(key, [_whole(value.address, value.size)])
    elements, _ = _elements(store, value)
    header = formats.full_header(elements.dtype, elements.shape)
    return _object(key, header, _whole(elements.address, elements.data_bytes), elements.owner)


def _shard(
    key: bytes, elements: tensors.Elements, axes: tuple[formats.Axis, ...], axis: formats.Axis
) -> Object:
    """The part of a tensor that belongs to a rank of one axis."""
    part = formats.cut(elements.shape, elements.item_bytes, axis.split_dim or 0, axis.rank, axis.size)
    if part is None or axis.split_dim is None or axis.split_dim < 0:
        raise Refused
    header = formats.Header(elements.dtype, part.shape, elements.shape, axes, is_shard=True)
    return _object(key, header, part.at(elements.address), elements.owner)


def write_plain(store: Any, how: How, keys: list[bytes], values: Sequence[Any]) -> list[int]:
    """Store whole tensors. An invalid buffer fails the call, an invalid tensor only its own item."""
    codes, objects = [OK] * len(keys), []
    for place, (key, value) in enumerate(zip(keys, values, strict=True)):
        try:
            objects.append((place, plain_object(store, key, value)))
        except Refused:
            if isinstance(value, Buffer):
                return [INVALID] * len(keys)
            codes[place] = INVALID
    _merge(codes, objects, _store(store, how, [it for _, it in objects]))
    return codes


def write_tp(
    store: Any, how: How, keys: list[bytes], values: Sequence[Any], size: int, split_dim: int
) -> list[int]:
    """Cut tensors into shards, and store all of them in one batch."""
    if any(not isinstance(it, Buffer) and it is not None and not hasattr(it, "shape") for it in values):
        return [INVALID] * len(keys)
    codes, objects = [OK] * len(keys), []
    for place, (key, value) in enumerate(zip(keys, values, strict=True)):
        try:
            elements, _ = _elements(store, value, is_cut=True)
            axes = [formats.Axis("tp", rank, size, split_dim) for rank in range(_ranks(elements, size))]
            shards = [_shard(formats.tp_key(key, axis.rank), elements, (axis,), axis) for axis in axes]
            objects += [(place, shard) for shard in shards]
        except Refused:
            codes[place] = INVALID
    _merge(codes, objects, _store(store, how, [it for _, it in objects]))
    return codes


def _ranks(elements: tensors.Elements, size: int) -> int:
    """The number of parts, which are named one by one."""
    if size > SHARDS_MAX:
        raise Refused
    return size


def _merge(codes: list[int], objects: Sequence[tuple[int, Object]], stored: Sequence[int]) -> None:
    """The code of each tensor is that of the first failure among its objects."""
    for (place, _), code in zip(objects, stored, strict=True):
        codes[place] = codes[place] or code


def write_parallel(
    store: Any, how: How, keys: list[bytes], values: Sequence[Any], layouts: Sequence[Any], is_writer: bool
) -> list[int]:
    """Store each tensor according to its layout, one after the other."""
    codes = []
    for key, value, layout in zip(keys, values, layouts, strict=True):
        try:
            codes.append(_write_layout(store, how, key, value, layout, is_writer))
        except (Refused, parallel.Invalid):
            codes.append(INVALID)
    return codes


def _write_layout(store: Any, how: How, key: bytes, value: Any, layout: Any, is_writer: bool) -> int:
    if layout is None:
        return _one(store, how, plain_object(store, key, value))
    if is_writer:
        axis = parallel.partition_axis(layout)
        elements, header = _whole_elements(store, value)
        shard = _shard(formats.writer_key(key, axis), elements, (axis,), axis)
        return _with_manifest(store, how, shard, formats.writer_manifest_key(key), elements, axis)
    axes = parallel.axes_of(layout)
    tp = formats.tp_axis(axes)
    if tp is None:
        elements, header = _elements(store, value, is_cut=True)
        full = elements.shape if header is None else header.full_shape
        made = formats.Header(elements.dtype, elements.shape, full, axes, is_shard=True)
        rows = _whole(elements.address, elements.data_bytes)
        return _one(store, how, _object(formats.shard_key(key, axes), made, rows, elements.owner))
    if isinstance(value, Buffer):
        return _write_all_ranks(store, how, key, value, axes, tp)
    elements, _ = _elements(store, value, is_cut=True)
    if len(axes) > 1:
        shard = _shard(formats.shard_key(key, axes), elements, axes, tp)
        return _with_manifest(store, how, shard, formats.manifest_key(key), elements, tp)
    return _write_own_shard(store, how, key, elements, tp)


def _write_own_shard(store: Any, how: How, key: bytes, part: tensors.Elements, axis: formats.Axis) -> int:
    """Store a tensor that is already the shard of its rank."""
    dim = -1 if axis.split_dim is None else axis.split_dim
    if not 0 <= dim < len(part.shape):
        raise Refused
    full = (*part.shape[:dim], part.shape[dim] * axis.size, *part.shape[dim + 1 :])
    header = formats.Header(part.dtype, part.shape, full, (axis,), is_shard=True)
    rows = _whole(part.address, part.data_bytes)
    shard = _object(formats.tp_key(key, axis.rank), header, rows, part.owner)
    whole = tensors.Elements(part.dtype, full, 0, None)
    return _with_manifest(store, how, shard, formats.manifest_key(key), whole, axis)


def _write_all_ranks(
    store: Any, how: How, key: bytes, value: Buffer, axes: tuple[formats.Axis, ...], axis: formats.Axis
) -> int:
    """Store the shards of all ranks, one after the other, up to the first failure."""
    elements, _ = _whole_elements(store, value)
    for rank in range(_ranks(elements, axis.size)):
        ranked = formats.with_tp(axes, rank, axis.size)
        own = formats.tp_axis(ranked)
        assert own is not None
        code = _one(store, how, _shard(formats.shard_key(key, ranked), elements, ranked, own))
        if code != OK:
            return code
    return OK


def _whole_elements(store: Any, value: Any) -> tuple[tensors.Elements, Any]:
    """The elements of a whole tensor: a buffer with a shard is rejected."""
    elements, header = _elements(store, value, is_cut=True)
    if header is not None and header.full_shape != header.shape:
        raise Refused
    return elements, header


def _with_manifest(
    store: Any, how: How, shard: Object, key: bytes, whole: tensors.Elements, axis: formats.Axis
) -> int:
    """Store a shard, and then the manifest that makes it a part of a tensor."""
    code = _one(store, how, shard)
    if code != OK:
        return code
    manifest = formats.Manifest(whole.dtype, axis.split_dim or 0, axis.size, whole.shape)
    plain = How(how.call, how.config, how.groups, "value", how.replaces)
    return _one(store, plain, Object(key, [manifest.to_bytes()]))


def _one(store: Any, how: How, made: Object) -> int:
    return _store(store, how, [made])[0]


def segments_fit(config: Any) -> bool:
    """Whether a config has no preferred segments, or one for each copy."""
    return not config.preferred_segments or len(config.preferred_segments) == config.replica_num


def groups_fit(config: Any, count: int) -> bool:
    return config.group_ids is None or len(config.group_ids) == count
