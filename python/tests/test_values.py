"""Values and destinations: any object that exports its memory, of any shape."""

import array
import ctypes
import mmap

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tiffin

VALUES = {
    "bytes": b"hello",
    "bytearray": bytearray(b"hello"),
    "memoryview": memoryview(b"hello"),
    "a part of a memoryview": memoryview(b"hello")[1:4],
    "every second byte": memoryview(b"hello")[::2],
    "backwards": memoryview(b"hello")[::-1],
    "words": memoryview(array.array("I", range(10))),
    "array.array": array.array("d", [1.5, 2.5]),
    "ctypes": (ctypes.c_uint16 * 3)(1, 2, 3),
    "nothing": b"",
    "numpy, floats": np.linspace(0, 1, 7, dtype=np.float32),
    "numpy, two dimensions": np.arange(12, dtype=np.int16).reshape(3, 4),
    "numpy, transposed": np.arange(12, dtype=np.int16).reshape(3, 4).T,
    "numpy, in Fortran's order": np.asfortranarray(np.arange(12).reshape(3, 4)),
    "numpy, a slice": np.arange(24, dtype=np.int64).reshape(2, 3, 4)[:, ::2, 1:],
    "numpy, backwards": np.arange(5)[::-1],
    "numpy, repeated": np.broadcast_to(np.arange(3), (4, 3)),
    "numpy, a scalar array": np.array(7.0),
    "numpy, empty": np.zeros((0, 5)),
    "numpy, big-endian": np.arange(5, dtype=">u4"),
    "numpy, complex": np.array([1 + 2j]),
    "numpy, fields": np.array([(1, 2.0)], dtype=[("On", "i4"), ("b", "f8")]),
    "numpy, booleans": np.array([True, False]),
    "numpy, a number": np.float64(1.5),
    "numpy, read-only": np.frombuffer(b"hello", dtype=np.uint8),
}


class OnlyDLPack:
    """An array that exports its memory by DLPack alone, like a tensor."""

    def __init__(self, array, understands_versions=True):
        self.array = array
        self.understands_versions = understands_versions
        if not understands_versions:
            self.__class__ = OnlyOldDLPack

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OnlyOldDLPack(OnlyDLPack):
    """The same, in DLPack without versions."""

    def __dlpack__(self):
        return self.array.__dlpack__()


def in_order(value):
    return memoryview(value).tobytes()


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_bytes_of_a_value_are_stored_in_order(store, value):
    store.put("k", value)
    assert store.get("k") == in_order(value)


TENSORS = [name for name in VALUES if name.startswith("numpy, ") and not name.endswith(("fields", "number"))]


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("name", TENSORS)
def test_tensor_counts_as_a_buffer(store, name, is_new):
    value = VALUES[name]
    try:
        value.__dlpack__(**({"max_version": (1, 0)} if is_new else {}))
    except BufferError:
        with pytest.raises(BufferError):
            store.put("k", OnlyDLPack(value, is_new))
        return
    store.put("k", OnlyDLPack(value, is_new))
    assert store.get("k") == in_order(value)


def test_element_types_without_a_name_are_refused(store):
    dates = np.zeros(3, dtype="M8[s]")
    with pytest.raises(ValueError):
        memoryview(dates)
    with pytest.raises(BufferError):
        store.put("k", dates)


def test_array_without_buffer_format_is_stored_as_a_tensor(store):
    class Bfloat16(np.ndarray):
        """Has the buffer protocol and cannot use it, like arrays of bfloat16."""

        def __dlpack__(self, **options):
            return self.view("u2").view(np.ndarray).__dlpack__(**options)

    value = np.zeros(3, dtype="M8[s]").view(Bfloat16)
    store.put("k", value)
    assert store.get("k") == bytes(24)


def test_reading_into_memory_of_many_kinds(store):
    value = bytes(range(24))
    store.put("k", value)
    flat = np.zeros(24, dtype=np.uint8)
    shaped = np.zeros((2, 3), dtype=np.float32)
    for buffer in (
        bytearray(24),
        memoryview(bytearray(30))[3:27],
        array.array("Q", [0, 0, 0]),
        (ctypes.c_uint8 * 24)(),
        mmap.mmap(-1, 24),
        flat,
        shaped,
        np.zeros((2, 4, 3), dtype=np.uint8),
        np.zeros((3, 24), dtype=np.uint8)[1],
    ):
        assert store.get_into("k", buffer) == 24
        assert in_order(buffer) == value
    for understands_versions in (True, False):
        target = np.zeros(24, dtype=np.uint8)
        assert store.get_into("k", OnlyDLPack(target, understands_versions)) == 24
        assert target.tobytes() == value


def test_invalid_destinations_are_refused(store):
    store.put("k", bytes(8))
    read_only = np.zeros(8, dtype=np.uint8)
    read_only.flags.writeable = False
    for buffer, kind in [
        (b"12345678", TypeError),
        (memoryview(b"12345678"), TypeError),
        (read_only, TypeError),
        (OnlyDLPack(read_only), TypeError),
        (OnlyDLPack(read_only, understands_versions=False), BufferError),
        (np.zeros((8, 2), dtype=np.uint8)[:, 0], tiffin.InvalidArgument),
        (OnlyDLPack(np.zeros((8, 2), dtype=np.uint8)[:, 0]), tiffin.InvalidArgument),
        (memoryview(bytearray(16))[::2], tiffin.InvalidArgument),
        (np.empty(8, dtype=object), TypeError),
        (np.empty(8, dtype=[("a", "O"), ("b", "i4")]), TypeError),
        ("text", TypeError),
        (8, TypeError),
        (None, TypeError),
        ([0] * 8, TypeError),
    ]:
        with pytest.raises(kind):
            store.get_into("k", buffer)


def test_invalid_values_are_refused(store):
    class Liar:
        def __dlpack__(self, **_):
            return "no capsule"

    class Used:
        def __init__(self):
            self.capsule = np.zeros(3).__dlpack__()
            np.from_dlpack(OnlyThis(self.capsule))

        def __dlpack__(self, **_):
            return self.capsule

    class OnlyThis:
        def __init__(self, capsule):
            self.capsule = capsule

        def __dlpack__(self, **_):
            return self.capsule

        def __dlpack_device__(self):
            return (1, 0)

    class OnDevice:
        def __dlpack__(self, **_):
            raise AssertionError("must not be called")

        def __dlpack_device__(self):
            # Metal: only memory of the host and of CUDA devices can be stored.
            return (8, 0)

    class OnCuda:
        """Memory of a device in a process that has not loaded the driver."""

        def __init__(self, interface):
            self.__cuda_array_interface__ = interface

    interface = {"shape": (100,), "typestr": "|u1", "data": (1 << 40, False), "version": 3}

    class Raises:
        def __dlpack__(self, **_):
            raise ZeroDivisionError

    released = memoryview(b"hello")
    released.release()
    for value, kind in [
        ("text", TypeError),
        (5, TypeError),
        (None, TypeError),
        (object(), TypeError),
        ([1, 2], TypeError),
        (np.array([object()]), TypeError),
        (np.array([("a", 1)], dtype=[("x", "O"), ("y", "i4")]), TypeError),
        (Liar(), TypeError),
        (Used(), TypeError),
        (OnDevice(), TypeError),
        (OnCuda(interface), tiffin.DeviceError),
        (OnCuda("text"), tiffin.InvalidArgument),
        (OnCuda({}), tiffin.InvalidArgument),
        (Raises(), ZeroDivisionError),
        (released, ValueError),
    ]:
        with pytest.raises(kind):
            store.put({"k": value})
        assert not store.exists("k")


def test_value_is_released_after_the_call(store):
    value = bytearray(b"hello")
    store.put("k", value)
    value.append(1)
    with pytest.raises(tiffin.TooSmall):
        store.get_into("k", small := bytearray(1))
    small.append(1)
    with pytest.raises(TypeError):
        store.put({"k": value, "l": "text"})
    value.append(2)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    items=st.dictionaries(
        st.one_of(
            st.binary(min_size=1, max_size=40),
            st.text(min_size=1, max_size=20).map(lambda t: t.encode(errors="replace")),
        ),
        st.binary(max_size=5000),
        max_size=20,
    )
)
def test_any_value_is_read_back(shared, items):
    shared.clear()
    shared.put(items)
    assert dict(zip(items, shared.get(list(items)), strict=True)) == items
    listed = {
        info.key if isinstance(info.key, bytes) else info.key.encode(): info.size for info in shared.list()
    }
    assert listed == {key: len(value) for key, value in items.items()}
    assert [bytes(view) for view in shared.view(items)] == list(items.values())


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    shape=st.lists(st.integers(0, 4), max_size=4),
    dtype=st.sampled_from(["u1", "<f4", ">i8", "c16", "?"]),
    data=st.data(),
)
def test_arrays_of_any_shape_are_stored_in_order(shared, shape, dtype, data):
    steps = [data.draw(st.sampled_from([1, 2, -1, -2])) for _ in shape]
    axes = data.draw(st.permutations(range(len(shape))))
    whole = np.arange(np.prod([size * 2 for size in shape], dtype=int)).astype(dtype)
    value = whole.reshape([size * 2 for size in shape])[tuple(slice(None, None, step) for step in steps)]
    value = np.asarray(value.transpose(axes))
    shared.put({"buffer": value})
    assert shared.get("buffer") == in_order(value)
    if np.dtype(dtype).isnative:
        shared.put({"tensor": OnlyDLPack(value)})
        assert shared.get("tensor") == in_order(value)


@pytest.fixture(scope="module")
def shared():
    with tiffin.connect(memory="64MiB", timeout=30) as store:
        yield store
