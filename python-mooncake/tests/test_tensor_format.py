"""Headers, manifests and names of stored tensors, and writing tensors, all without torch."""

import ctypes
import random
import struct
import sys

import pytest
from mooncake import _reads
from mooncake._parallelism import Invalid, ParallelAxis, ReadTarget, TensorParallelism, axes_of
from mooncake._tensor_format import (
    DTYPES,
    Axis,
    Header,
    Manifest,
    cut,
    full_header,
    is_shard_of,
    parse_header,
    parse_manifest,
    shard_key,
)

#: The header of float32 [2, 3], as the original writes it.
SHAPE = struct.pack("<8q", 2, 3, *[-1] * 6)
HEADER = bytes.fromhex("4e4f4f4d0100300100000000020000000000000000000000") + struct.pack("<QQ", 304, 24)
HEADER += SHAPE + SHAPE + bytes(136)


def changed(at, layout, *numbers):
    header = bytearray(HEADER)
    struct.pack_into(layout, header, at, *numbers)
    return bytes(header)


def test_header_has_the_bytes_of_the_original():
    assert full_header(0, (2, 3)).to_bytes() == HEADER and len(HEADER) == 304
    scalar = full_header(0, ()).to_bytes()
    assert scalar[40:168] == b"\xff" * 128 and struct.unpack_from("<Q", scalar, 32) == (4,)


def test_shard_header_has_the_bytes_of_the_original():
    header = Header(0, (4, 2), (4, 6), (Axis("tp", 2, 3, 1),), is_shard=True).to_bytes()
    assert struct.unpack_from("<I", header, 16) == (1,)
    assert struct.unpack_from("<2q", header, 40) == (4, 6) and struct.unpack_from("<2q", header, 104) == (
        4,
        2,
    )
    assert struct.unpack_from("<IIiiiiiiq", header, 168) == (1, 0, 1, 0, 2, 3, 1, 0, 2)
    assert header[208:] == bytes(96)


@pytest.mark.parametrize("dtype", range(len(DTYPES)))
def test_headers_of_all_types_can_be_read(dtype):
    axes = (
        Axis("pp", 1, 2, None, None, 9),
        Axis("tp", 0, 2, 1),
        Axis("ep", 0, 1, None, -4),
        Axis("dp", 0, 1),
    )
    header = Header(dtype, (3, 5), (3, 10), axes, is_shard=True)
    assert parse_header(header.to_bytes(), 304 + header.data_bytes) == header
    assert is_shard_of(header, axes[::-1]) and not is_shard_of(header, axes[1:])


@pytest.mark.parametrize(
    "wrong",
    [
        changed(0, "<I", 1),
        changed(4, "<H", 2),
        changed(6, "<H", 303),
        changed(8, "<i", 15),
        changed(8, "<i", -1),
        changed(8, "<i", 1),
        changed(12, "<i", 9),
        changed(12, "<i", -1),
        changed(12, "<i", 1),
        changed(16, "<I", 2),
        changed(24, "<Q", 303),
        changed(24, "<Q", 2**64 - 1),
        changed(32, "<Q", 23),
        changed(40, "<q", -1),
        changed(56, "<q", 0),
        changed(104, "<q", 3),
        changed(104, "<2q", 2**62, 2**62),
        changed(168, "<I", 5),
        changed(168, "<I", 1),
        changed(168, "<IIiiiii", 1, 0, 5, 0, 0, 1, 0),
        changed(168, "<IIiiiii", 1, 0, 1, 0, 1, 1, 0),
        changed(168, "<IIiiiii", 1, 0, 1, 0, 0, 1, 2),
        HEADER[:303],
        b"",
    ],
)
def test_invalid_headers_are_refused(wrong):
    assert parse_header(wrong, 304 + 24) is None


def test_mutated_headers_are_refused_or_consistent():
    chance = random.Random(7)
    shard = Header(0, (2, 3), (4, 3), (Axis("tp", 0, 2, 0),), is_shard=True).to_bytes()
    manifest = Manifest(0, 0, 2, (4, 6)).to_bytes()
    found = 0
    for _ in range(20_000):
        wrong = bytearray(chance.choice([HEADER, shard, manifest]))
        for _ in range(chance.randint(1, 3)):
            number = chance.choice([0, 1, 5, 9, 304, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1])
            size = chance.choice([1, 2, 4, 8])
            at = chance.randrange(0, len(wrong) - 8, size)
            wrong[at : at + size] = number.to_bytes(8, "little")[:size]
        total = chance.choice([304 + 24, 304, 0, 2**40])
        header = parse_header(bytes(wrong), total)
        if header is not None:
            found += 1
            assert header.data_offset + header.data_bytes == total
        parsed = parse_manifest(bytes(wrong))
        assert parsed is None or 0 <= parsed.split_dim < len(parsed.shape)
    assert found > 100


def test_size_of_the_object_must_be_exact():
    assert [parse_header(HEADER, 304 + size) is None for size in (23, 24, 25)] == [True, False, True]
    assert parse_header(changed(24, "<Q", 320), 344).data_offset == 320


def test_manifest_has_the_bytes_of_the_original():
    made = Manifest(0, 0, 2, (4, 6)).to_bytes()
    expected = "4e414d5701006000000000000200000000000000020000000000000000000000"
    assert made == bytes.fromhex(expected) + struct.pack("<8q", 4, 6, *[-1] * 6)
    assert parse_manifest(made + b"more") == Manifest(0, 0, 2, (4, 6))
    for at, value in ((0, 1), (4, 2), (8, 99), (12, 9), (16, 2), (16, -1), (20, 0)):
        wrong = bytearray(made)
        struct.pack_into("<H" if at == 4 else "<i", wrong, at, value)
        assert parse_manifest(bytes(wrong)) is None, at
    assert parse_manifest(made[:95]) is None


def test_parts_of_a_tensor_are_rows_of_its_memory():
    assert [cut((4, 6), 4, 0, rank, 2).at(1000) for rank in (0, 1)] == [(1000, 48, 1, 96), (1048, 48, 1, 96)]
    assert cut((2, 4, 3), 2, 1, 1, 2).at(0) == (12, 12, 2, 24)
    assert [cut((4, 6), 4, *wrong) for wrong in ((0, 0, 3), (2, 0, 1), (-1, 0, 1), (0, 2, 2), (0, 0, 8))] == [
        None
    ] * 5


def test_names_of_shards():
    assert shard_key(b"k", (Axis("tp", 3, 4, 1),)) == b"k_tp_3"
    axes = (Axis("pp", 1, 3, None, None, 9), Axis("tp", 1, 3, 1), Axis("dp", 0, 1), Axis("ep", 0, 2, None, 4))
    assert shard_key(b"k", axes) == b"k__dp_0of1__tp_1of3_sd1__ep_0of2_eid4__pp_1of3_sid9"


def test_at_most_four_axes():
    def of(count):
        made = TensorParallelism()
        made.axes = [ParallelAxis() for _ in range(count)]
        for axis, kind in zip(made.axes, ["dp", "tp", "ep", "pp", "dp"], strict=False):
            axis.kind, axis.split_dim = kind, 0 if kind == "tp" else None
            axis.expert_id = axis.stage_id = 1
        return made

    assert len(axes_of(of(4))) == 4
    for count in (0, 5):
        with pytest.raises(Invalid):
            axes_of(of(count))


class FakeTensor:
    """A tensor for the store: torch's members, over its own memory."""

    class dtype:
        def __str__(self):
            return "torch.int16"

    dtype = dtype()

    def __init__(self, *shape):
        self.shape = shape
        self.memory = (ctypes.c_int16 * self.numel())(*range(self.numel()))

    def contiguous(self):
        return self

    def data_ptr(self):
        return ctypes.addressof(self.memory)

    def element_size(self):
        return 2

    def numel(self):
        count = 1
        for length in self.shape:
            count *= length
        return count


def numbers(data):
    return list(struct.unpack(f"<{len(data) // 2}h", data))


def test_tensors_are_written_without_torch(worker):
    worker.run(f"import sys; sys.path.insert(0, {str(__file__).rpartition('/')[0]!r})")
    worker.run("from test_tensor_format import FakeTensor")
    worker.run("from mooncake.store import ParallelAxis, TensorParallelism")
    worker.run("master = Master(); connect(master.address)")
    assert worker.eval("store.put_tensor('t', FakeTensor(2, 3)), 'torch' in sys.modules") == (0, False)
    found = worker.eval("store.get('t')")
    assert found[:304] == full_header(4, (2, 3)).to_bytes() and numbers(found[304:]) == list(range(6))
    assert worker.eval("store.put_tensor_with_tp('p', FakeTensor(2, 4), 0, 2, 1)") == 0
    parts = worker.eval("store.get_batch(['p_tp_0', 'p_tp_1'])")
    assert [numbers(it[304:]) for it in parts] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    worker.run("axis, made = ParallelAxis(), TensorParallelism()")
    worker.run("axis.kind, axis.size, axis.split_dim, made.axes = 'tp', 2, 0, [axis]")
    worker.run("made.axes[0].kind, made.axes[0].size, made.axes[0].split_dim = 'tp', 2, 0")
    assert worker.eval("store.put_tensor_with_parallelism('q', FakeTensor(1, 4), made)") == 0
    manifest = worker.eval("store.get('q__parallelism_manifest')")
    assert parse_manifest(manifest) == Manifest(4, 0, 2, (2, 4))
    assert worker.eval("store.get_tensor_with_parallelism('nosuch', None)") is None
    if "torch" not in sys.modules and worker.ask(eval="__import__('torch')").get("raises"):
        answer = worker.ask(eval="store.get_tensor('t')")
        assert answer["raises"] == "ImportError" and "hint: " in answer["text"]


@pytest.mark.parametrize("mode", ["shard", "full"])
def test_next_name_is_tried_only_if_an_object_is_absent(monkeypatch, mode):
    """An object that cannot be read now is not replaced by the object of another name."""
    target = ReadTarget()
    target.mode = mode
    if mode == "shard":
        axis, whole = ParallelAxis(), TensorParallelism()
        axis.kind, axis.split_dim = "tp", 0
        whole.axes = [axis]
        target.parallelism = whole
    native = _reads._native

    def fails(*_):
        raise native.ReadFailed

    monkeypatch.setattr(_reads, "read_plain", lambda *_: ["the object of the last name"])
    monkeypatch.setattr(native, "read_one", lambda *_: None)
    monkeypatch.setattr(native, "read_heads", lambda _, names, __: [None] * len(names))
    assert _reads.read_target(None, b"k", target, None) == "the object of the last name"
    monkeypatch.setattr(native, "read_one", fails)
    assert _reads.read_target(None, b"k", target, None) is None


@pytest.mark.parametrize("changes", [_reads.HEAD_TRIES_MAX - 1, _reads.HEAD_TRIES_MAX])
def test_headers_of_changing_objects_are_read_again(monkeypatch, changes):
    """At the limit the last try counts; one change more is a failed read."""
    native, tries = _reads._native, []

    def read_heads(_, names, __):
        tries.append(names)
        return None if len(tries) <= changes else [None] * len(names)

    monkeypatch.setattr(native, "read_heads", read_heads)
    if changes < _reads.HEAD_TRIES_MAX:
        assert _reads._heads(None, [b"k"]) == [None]
    else:
        with pytest.raises(native.ReadFailed, match="replaced repeatedly"):
            _reads._heads(None, [b"k"])
    assert tries == [[b"k"]] * _reads.HEAD_TRIES_MAX
