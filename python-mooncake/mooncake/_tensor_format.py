"""The bytes of stored tensors and of manifests, and the names of shards. Torch is not needed here.

A stored tensor is a header of 304 bytes and the elements in row-major order. A shard's header also has the
shape of the whole tensor and up to four axes, which select its part. A manifest of 96 bytes has the number
of shards.
"""

import math
import struct
from typing import NamedTuple

HEADER_BYTES = 304
MANIFEST_BYTES = 96
DIMENSIONS_MAX = 8
AXES_MAX = 4

_HEADER = struct.Struct("<IHHiiIIQQ8q8qII")
_AXIS = struct.Struct("<iiiiiiq")
_MANIFEST = struct.Struct("<IHHiiiiiI8q")
_MAGIC, _VERSION = 0x4D4F4F4E, 1
_MANIFEST_MAGIC = 0x574D414E
_NO_AXIS = bytes(_AXIS.size)
_FULL, _SHARD = 0, 1
_UNUSED = (-1,) * DIMENSIONS_MAX

#: Torch's names of the element types, and the bytes of one element, by their codes.
DTYPES = (
    ("float32", 4),
    ("float64", 8),
    ("int8", 1),
    ("uint8", 1),
    ("int16", 2),
    ("uint16", 2),
    ("int32", 4),
    ("uint32", 4),
    ("int64", 8),
    ("uint64", 8),
    ("bool", 1),
    ("float16", 2),
    ("bfloat16", 2),
    ("float8_e4m3fn", 1),
    ("float8_e5m2", 1),
)
#: The codes by the text of a torch type.
CODES = {f"torch.{name}": code for code, (name, _) in enumerate(DTYPES)}
#: The kinds of axes in the order of their codes, and in the order in which names have them.
KINDS = ("dp", "tp", "ep", "pp")
_KINDS_KNOWN = 5


class Axis(NamedTuple):
    """One axis of parallelism: the part, the number of parts, and the dimension of the cut."""

    kind: str
    rank: int
    size: int
    split_dim: int | None = None
    expert_id: int | None = None
    stage_id: int | None = None

    @property
    def id(self) -> int:
        """The number in the header: the expert of an `ep` axis, the stage of a `pp` axis."""
        number = {"ep": self.expert_id, "pp": self.stage_id}.get(self.kind)
        return 0 if number is None else number

    @property
    def suffix(self) -> str:
        parts = [f"__{self.kind}_{self.rank}of{self.size}"]
        named = (("sd", self.split_dim), ("eid", self.expert_id), ("sid", self.stage_id))
        return "".join(parts + [f"_{name}{number}" for name, number in named if number is not None])


class Header(NamedTuple):
    """A valid header."""

    dtype: int
    shape: tuple[int, ...]
    full_shape: tuple[int, ...]
    axes: tuple[Axis, ...] = ()
    is_shard: bool = False
    data_offset: int = HEADER_BYTES

    @property
    def item_bytes(self) -> int:
        return DTYPES[self.dtype][1]

    @property
    def data_bytes(self) -> int:
        return math.prod(self.shape) * self.item_bytes

    def to_bytes(self) -> bytes:
        """The 304 bytes."""
        first = _HEADER.pack(
            _MAGIC,
            _VERSION,
            HEADER_BYTES,
            self.dtype,
            len(self.shape),
            _SHARD if self.is_shard else _FULL,
            0,
            HEADER_BYTES,
            self.data_bytes,
            *_padded(self.full_shape),
            *_padded(self.shape),
            len(self.axes),
            0,
        )
        axes = [self._axis(place, axis) for place, axis in enumerate(self.axes)]
        return b"".join((first, *axes, _NO_AXIS * (AXES_MAX - len(axes))))

    def _axis(self, place: int, axis: Axis) -> bytes:
        split = -1 if axis.split_dim is None else axis.split_dim
        extent = self.shape[split] if split >= 0 else 0
        return _AXIS.pack(KINDS.index(axis.kind), place, axis.rank, axis.size, split, axis.id, extent)


def full_header(dtype: int, shape: tuple[int, ...]) -> Header:
    """The header of a whole tensor."""
    return Header(dtype, shape, shape)


def parse_header(head: bytes | memoryview, total_bytes: int) -> Header | None:
    """The header of an object of that size, or `None` if it is not a valid one.

    >>> parse_header(full_header(0, (2, 3)).to_bytes(), 304 + 24).shape
    (2, 3)
    >>> parse_header(full_header(0, (2, 3)).to_bytes(), 304 + 25)
    """
    if total_bytes < HEADER_BYTES or len(head) < HEADER_BYTES:
        return None
    found = _HEADER.unpack_from(head)
    magic, version, header_bytes, dtype, ndim, layout, _, offset, data_bytes = found[:9]
    full, local, count = found[9:17], found[17:25], found[25]
    if (magic, version, header_bytes) != (_MAGIC, _VERSION, HEADER_BYTES):
        return None
    in_range = 0 <= dtype < len(DTYPES) and 0 <= ndim <= DIMENSIONS_MAX and count <= AXES_MAX and layout <= 1
    if not in_range or not HEADER_BYTES <= offset <= total_bytes or data_bytes != total_bytes - offset:
        return None
    if min(full[:ndim] + local[:ndim], default=0) < 0:
        return None
    if full[ndim:] != _UNUSED[ndim:] or local[ndim:] != _UNUSED[ndim:]:
        return None
    axes = []
    for place in range(count):
        kind, _, rank, size, split, number, _ = _AXIS.unpack_from(head, _HEADER.size + place * _AXIS.size)
        if not (0 <= kind < _KINDS_KNOWN and 0 <= rank < size and -1 <= split < ndim):
            return None
        name = KINDS[kind] if kind < len(KINDS) else ""
        split_dim = None if split == -1 else split
        ids = (number if name == "ep" else None, number if name == "pp" else None)
        axes.append(Axis(name, rank, size, split_dim, *ids))
    header = Header(dtype, local[:ndim], full[:ndim], tuple(axes), layout == _SHARD, offset)
    return header if header.data_bytes == data_bytes else None


class Manifest(NamedTuple):
    """How a tensor was cut into shards."""

    dtype: int
    split_dim: int
    shards: int
    shape: tuple[int, ...]

    def to_bytes(self) -> bytes:
        """The 96 bytes."""
        numbers = (self.dtype, len(self.shape), self.split_dim, self.shards, 0, 0)
        return _MANIFEST.pack(_MANIFEST_MAGIC, _VERSION, MANIFEST_BYTES, *numbers, *_padded(self.shape))


def parse_manifest(found: bytes | memoryview) -> Manifest | None:
    """The manifest, or `None` if it is not a valid one. Bytes after it are ignored.

    >>> parse_manifest(Manifest(0, 0, 2, (4, 6)).to_bytes() + b"more")
    Manifest(dtype=0, split_dim=0, shards=2, shape=(4, 6))
    """
    if len(found) < MANIFEST_BYTES:
        return None
    magic, version, size, dtype, ndim, split, count, _, _, *shape = _MANIFEST.unpack_from(found)
    if (magic, version, size) != (_MANIFEST_MAGIC, _VERSION, MANIFEST_BYTES) or count <= 0:
        return None
    if not 0 <= ndim <= DIMENSIONS_MAX or not 0 <= split < ndim or any(it < 0 for it in shape[:ndim]):
        return None
    # A type that no header can have cannot be the type of a tensor.
    return Manifest(dtype, split, count, tuple(shape[:ndim])) if 0 <= dtype < len(DTYPES) else None


def _padded(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape + _UNUSED[len(shape) :]


class Cut(NamedTuple):
    """A part of a tensor along one dimension, as rows in its memory."""

    shape: tuple[int, ...]
    #: The offset of the first row from the first byte of the tensor.
    offset: int
    row_bytes: int
    rows: int
    #: The distance between rows.
    stride: int

    def at(self, address: int) -> tuple[int, int, int, int]:
        """The rows of a tensor at that address, in the form of the native `write`."""
        return (address + self.offset, self.row_bytes, self.rows, self.stride)


def cut(shape: tuple[int, ...], item_bytes: int, dim: int, rank: int, size: int) -> Cut | None:
    """Part `rank` of `size` equal parts along a dimension; `None` if there is no such part.

    >>> cut((4, 6), 4, 1, 2, 3)
    Cut(shape=(4, 2), offset=16, row_bytes=8, rows=4, stride=24)
    """
    if not 0 <= dim < len(shape) or not 0 <= rank < size or shape[dim] % size:
        return None
    length = shape[dim] // size
    inner = math.prod(shape[dim + 1 :]) * item_bytes
    local = (*shape[:dim], length, *shape[dim + 1 :])
    rows = math.prod(shape[:dim])
    return Cut(local, rank * length * inner, length * inner, rows, shape[dim] * inner)


def tp_key(key: bytes, rank: int) -> bytes:
    return key + f"_tp_{rank}".encode()


def shard_key(key: bytes, axes: tuple[Axis, ...]) -> bytes:
    """The name of a shard: that of the TP calls for one `tp` axis, else all axes in the order of kinds.

    >>> shard_key(b"j", (Axis("tp", 0, 2, 0), Axis("dp", 1, 2)))
    b'j__dp_1of2__tp_0of2_sd0'
    """
    if len(axes) == 1 and axes[0].kind == "tp":
        return tp_key(key, axes[0].rank)
    ordered = sorted(axes, key=lambda axis: KINDS.index(axis.kind))
    return key + "".join(axis.suffix for axis in ordered).encode()


def writer_key(key: bytes, axis: Axis) -> bytes:
    return key + f"__writer_{axis.rank}of{axis.size}_sd{axis.split_dim}".encode()


def writer_manifest_key(key: bytes) -> bytes:
    return key + b"__writer_manifest"


def manifest_key(key: bytes) -> bytes:
    return key + b"__parallelism_manifest"


def tp_axis(axes: tuple[Axis, ...]) -> Axis | None:
    return next((axis for axis in axes if axis.kind == "tp"), None)


def with_tp(axes: tuple[Axis, ...], rank: int, size: int) -> tuple[Axis, ...]:
    """The axes of another shard of the same tensor."""
    return tuple(axis._replace(rank=rank, size=size) if axis.kind == "tp" else axis for axis in axes)


def is_shard_of(header: Header, axes: tuple[Axis, ...]) -> bool:
    """Whether a header has exactly these axes, in any order."""
    found = {axis.kind: axis for axis in header.axes}
    return (
        header.is_shard
        and len(found) == len(header.axes) == len(axes)
        and all(found.get(axis.kind) == axis for axis in axes)
    )
