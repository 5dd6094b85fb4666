"""Reads tensors: whole ones, and shards that are found by their names or cut from other shards.

A read returns a tensor or `None`. With a destination the object is read into the caller's memory, and the
tensor is a view of that memory.

A tensor may be stored under several names, which are tried in order. The next name is tried only if the
object of the one before does not exist. If that object cannot be read now, the result is `None`: the next
name may be another tensor.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from tiffin._native import mooncake as _native

from mooncake import _parallelism as parallel
from mooncake import _tensor_format as formats
from mooncake import _tensors as tensors
from mooncake._codes import NOT_FOUND
from mooncake._writes import SHARDS_MAX, Buffer


def read_plain(store: Any, keys: list[bytes]) -> list[Any]:
    """The tensors of whole objects that fit the local buffer."""
    found = _native.read_owned(store, keys)
    return [None if memory is None else tensors.from_object(memory) for memory in found]


def read_into(store: Any, keys: list[bytes], targets: Sequence[Buffer]) -> list[Any]:
    """The tensors of whole objects, in the caller's memory."""
    wanted = [it for it in zip(keys, targets, strict=True) if it[1].address and it[1].size]
    names = [key for key, _ in wanted]
    addresses, sizes = [it.address for _, it in wanted], [it.size for _, it in wanted]
    read = iter(store.batch_get_into(names, addresses, sizes) if names else [])
    return [_landed(store, it, next(read)) if it.address and it.size else None for it in targets]


def _landed(store: Any, target: Buffer, size: int) -> Any:
    """The tensor in memory that an object of that size was read into."""
    header = _landed_header(store, target, size)
    return None if header is None else _view(target, header, header.data_offset)


def _landed_header(store: Any, target: Buffer, size: int) -> formats.Header | None:
    head = _native.peek(store, target.address, formats.HEADER_BYTES) if size >= 304 else None
    return None if head is None else formats.parse_header(head, size)


def _view(target: Buffer, header: formats.Header, offset: int) -> Any:
    return tensors.over_address(tensors.import_torch(), target.address, header, offset)


def read_target(store: Any, key: bytes, target: Any, into: Buffer | None) -> Any:
    """The tensor that a target selects, or `None`."""
    try:
        return _read_target(store, key, target, into)
    except (parallel.Invalid, _native.ReadFailed):
        return None


def _read_target(store: Any, key: bytes, target: Any, into: Buffer | None) -> Any:
    mode, parallelism = parallel.target_of(target)
    if mode == "as_stored":
        return None if parallelism is not None else _read_one(store, key, into)
    axes = None if parallelism is None else parallel.axes_of(parallelism)
    if into is not None and not _native.is_registered(store, into.address, into.size):
        return None
    if axes is None:
        return _read_whole_of_writers(store, key, into) if mode == "full" else None
    if mode == "shard":
        return _read_shard(store, key, axes, into)
    axis = formats.tp_axis(axes)
    shards = None if axis is None else _find_shards(store, key, axes, axis)
    return None if shards is None else _assemble(store, shards, None, (), into)


def _read_one(store: Any, key: bytes, into: Buffer | None) -> Any:
    if into is None:
        return read_plain(store, [key])[0]
    if not _native.is_registered(store, into.address, into.size):
        return None
    return read_into(store, [key], [into])[0]


def _read_whole_of_writers(store: Any, key: bytes, into: Buffer | None) -> Any:
    """The tensor that writers have stored in parts, if all exist; else the object of that name."""
    manifest = _read_manifest(store, formats.writer_manifest_key(key))
    if manifest is not None:
        axes = [formats.Axis("tp", rank, manifest.shards, manifest.split_dim) for rank in _ranks(manifest)]
        names = [formats.writer_key(key, axis) for axis in axes]
        shards = _check_shards(store, names, [(axis,) for axis in axes], manifest)
        if shards is not None:
            return _assemble(store, shards, None, (), into)
    return _read_one(store, key, into)


def _read_shard(store: Any, key: bytes, axes: tuple[formats.Axis, ...], into: Buffer | None) -> Any:
    """A shard: as stored, as a writer has stored it, or cut from the shards of another size."""
    names = [formats.shard_key(key, axes)]
    is_single = len(axes) == 1 and axes[0].kind == "tp"
    if is_single:
        names.append(formats.writer_key(key, axes[0]))
    for name in names:
        found = _read_exact(store, name, axes, into)
        if found is not None:
            return found
    axis = formats.tp_axis(axes)
    shards = None if axis is None else _find_shards(store, key, axes, axis)
    if shards is not None:
        return _assemble(store, shards, axis, axes, into)
    if is_single and into is None:
        # As in Mooncake, an object that the TP calls have stored under that name is returned without a
        # check.
        rank, size = axes[0].rank, axes[0].size
        return read_plain(store, [key if size == 1 else formats.tp_key(key, rank)])[0]
    return None


def _read_exact(store: Any, name: bytes, axes: tuple[formats.Axis, ...], into: Buffer | None) -> Any:
    """The object of that name, if its header has these axes."""
    if into is None:
        memory = _native.read_one(store, name, True)
        header = None if memory is None else tensors.header_of(memory)
        if header is None or not formats.is_shard_of(header, axes):
            return None
        return tensors.over(tensors.import_torch(), memory, header, header.data_offset)
    found = _heads(store, [name])[0]
    if found is None or not formats.is_shard_of(found.header, axes):
        return None
    size = store.get_into(name, into.address, into.size)
    if size < 0 and size != NOT_FOUND:
        raise _native.ReadFailed
    header = _landed_header(store, into, size)
    # It may have been replaced between the two reads.
    if header is None or not formats.is_shard_of(header, axes):
        return None
    return _view(into, header, header.data_offset)


class Head(NamedTuple):
    """The header of a stored object, and its generation."""

    header: formats.Header
    generation: str


#: How often the headers of objects that are replaced meanwhile are read.
HEAD_TRIES_MAX = 16


def _heads(store: Any, names: list[bytes]) -> list[Head | None]:
    found: list[Head | None] = []
    for head in _stable_heads(store, names):
        header = None if head is None else formats.parse_header(head[1], head[0])
        found.append(None if header is None else Head(header, head[2]))
    return found


def _stable_heads(store: Any, names: list[bytes]) -> list[Any]:
    """The first bytes of objects, of which none was replaced between the two requests for it."""
    for _ in range(HEAD_TRIES_MAX):
        heads: list[Any] | None = _native.read_heads(store, names, formats.HEADER_BYTES)
        if heads is not None:
            return heads
    raise _native.ReadFailed("object was replaced repeatedly while it was read")


def _read_manifest(store: Any, name: bytes) -> formats.Manifest | None:
    memory = _native.read_one(store, name, False)
    return None if memory is None else formats.parse_manifest(bytes(memoryview(memory)[:96]))


def _ranks(manifest: formats.Manifest) -> range:
    return range(min(manifest.shards, SHARDS_MAX + 1))


#: Shorter rows are copied faster from a shard that was read as a whole.
ROW_BYTES_MIN = 256


class Shards(NamedTuple):
    """All shards of a tensor, found and checked."""

    names: list[bytes]
    axes: list[tuple[formats.Axis, ...]]
    manifest: formats.Manifest
    heads: list[Head]

    @property
    def item_bytes(self) -> int:
        return formats.DTYPES[self.manifest.dtype][1]


def _check_shards(
    store: Any, names: list[bytes], axes: list[tuple[formats.Axis, ...]], manifest: formats.Manifest
) -> Shards | None:
    """The shards, if all exist and are equal parts of the tensor that the manifest describes."""
    if manifest.shards > SHARDS_MAX or manifest.shape[manifest.split_dim] % manifest.shards:
        return None
    heads = [head for head in _heads(store, names) if head is not None]
    shards = Shards(names, axes, manifest, heads)
    is_whole = len(heads) == len(names)
    return shards if is_whole and all(_is_part(shards, *it) for it in enumerate(heads)) else None


def _is_part(shards: Shards, place: int, head: Head) -> bool:
    manifest, header = shards.manifest, head.header
    part = formats.cut(manifest.shape, shards.item_bytes, manifest.split_dim, place, manifest.shards)
    return (
        part is not None
        and formats.is_shard_of(header, shards.axes[place])
        and (header.dtype, header.full_shape, header.shape) == (manifest.dtype, manifest.shape, part.shape)
    )


def _find_shards(store: Any, key: bytes, axes: tuple[formats.Axis, ...], axis: formats.Axis) -> Shards | None:
    """The shards from which any part along the axis can be cut."""
    manifest = _read_manifest(store, formats.manifest_key(key))
    if manifest is not None and _divides(manifest, axis):
        found = _shards_of(store, key, axes, manifest)
        if found is not None:
            return found
    if len(axes) > 1:
        first = formats.shard_key(key, formats.with_tp(axes, 0, axis.size))
    else:
        first = key if axis.size == 1 else formats.tp_key(key, 0)
    head = _heads(store, [first])[0]
    if head is None or not head.header.is_shard or len(head.header.axes) != len(axes):
        return None
    header = head.header
    own = formats.tp_axis(header.axes)
    if own is None or own.split_dim is None:
        return None
    if len(axes) > 1 and own.size != axis.size:
        return None
    described = formats.Manifest(header.dtype, own.split_dim, own.size, header.full_shape)
    return _shards_of(store, key, axes, described) if _divides(described, axis) else None


def _divides(manifest: formats.Manifest, axis: formats.Axis) -> bool:
    """Whether the tensor is cut along that dimension, and can be cut into that many parts."""
    dim = manifest.split_dim
    if dim != axis.split_dim or dim >= len(manifest.shape):
        return False
    return manifest.shape[dim] % axis.size == 0 and manifest.shape[dim] % manifest.shards == 0


def _shards_of(
    store: Any, key: bytes, axes: tuple[formats.Axis, ...], manifest: formats.Manifest
) -> Shards | None:
    each = [formats.with_tp(axes, rank, manifest.shards) for rank in _ranks(manifest)]
    return _check_shards(store, [formats.shard_key(key, it) for it in each], each, manifest)


def _assemble(
    store: Any,
    shards: Shards,
    axis: formats.Axis | None,
    axes: tuple[formats.Axis, ...],
    into: Buffer | None,
) -> Any:
    """The part of a tensor that an axis selects, or the whole, copied from its shards."""
    torch, manifest = tensors.import_torch(), shards.manifest
    shape, dim = manifest.shape, manifest.split_dim
    header = formats.full_header(manifest.dtype, shape)
    if axis is not None:
        part = formats.cut(shape, shards.item_bytes, dim, axis.rank, axis.size)
        if part is None:
            return None
        header = formats.Header(manifest.dtype, part.shape, shape, axes, is_shard=True)
    size = formats.HEADER_BYTES + header.data_bytes
    if into is None:
        result = torch.empty(header.shape, dtype=tensors.torch_type(torch, header.dtype))
        elements = result.reshape(-1).view(torch.uint8)
    else:
        if size > into.size:
            return None
        memory = tensors.bytes_at(torch, into.address, size)
        elements = memory[formats.HEADER_BYTES :]
    start = 0 if axis is None else axis.rank * header.shape[dim]
    if not _copy_parts(torch, store, shards, elements, (start, start + header.shape[dim])):
        return None
    if into is None:
        return result
    memory[: formats.HEADER_BYTES] = torch.frombuffer(bytearray(header.to_bytes()), dtype=torch.uint8)
    return _view(into, header, formats.HEADER_BYTES)


def _copy_parts(torch: Any, store: Any, shards: Shards, elements: Any, wanted: tuple[int, int]) -> bool:
    """Copies a range of the split dimension from the shards that have a part of it.

    Contiguous rows of a shard are read directly to their destination. Otherwise, or if the shard was
    replaced since its header was read, the whole shard is read first, so that its header and its elements
    match.
    """
    manifest, (start, end) = shards.manifest, wanted
    shape, dim = manifest.shape, manifest.split_dim
    rows, inner = math.prod(shape[:dim]), math.prod(shape[dim + 1 :]) * shards.item_bytes
    length = shape[dim] // manifest.shards
    if rows * inner * (end - start) == 0:
        return True
    direct, left = [], []
    for place in range(start // length, -(-end // length)):
        first, last = max(start, place * length), min(end, (place + 1) * length)
        if rows > 1 and (last - first < length or length * inner < ROW_BYTES_MIN):
            left.append(place)
            continue
        header, generation = shards.heads[place]
        source = header.data_offset + (first - place * length) * inner
        address = elements.data_ptr() + (first - start) * inner
        row, stride = (last - first) * inner, (end - start) * inner
        name = shards.names[place]
        direct.append((place, (name, source, address, row, rows, stride, generation)))
    read = _native.read_rows(store, [it for _, it in direct]) if direct else []
    left += [place for (place, _), is_read in zip(direct, read, strict=True) if not is_read]
    target = elements.reshape(rows, end - start, inner)
    for place in left:
        memory = _native.read_one(store, shards.names[place], False)
        found = None if memory is None else tensors.header_of(memory)
        if found is None or not _is_part(shards, place, Head(found, "")):
            return False
        count = rows * length * inner
        part = torch.frombuffer(memory, dtype=torch.uint8, count=count, offset=found.data_offset)
        part = part.reshape(rows, length, inner)
        first, last = max(start, place * length), min(end, (place + 1) * length)
        target[:, first - start : last - start] = part[:, first - place * length : last - place * length]
    return True
