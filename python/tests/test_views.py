"""Views: bytes in place, for as long as a buffer of them exists."""

import gc
import io
import pathlib
import signal
import weakref

import numpy as np
import pytest
import tiffin

import helpers

VALUE = bytes(range(256)) * 4


@pytest.fixture
def view(store):
    store.put("k", VALUE)
    return store.view("k")


def in_view(store):
    return store.stats().usage.in_view


def test_nothing_is_copied(store, view):
    moved = store.stats().traffic
    assert view.is_borrowed
    assert bytes(view) == VALUE
    assert store.stats().traffic == moved
    address = np.frombuffer(view, dtype=np.uint8).ctypes.data
    assert np.frombuffer(store.view("k"), dtype=np.uint8).ctypes.data == address


def test_it_is_a_buffer(view):
    assert len(view) == view.nbytes == len(VALUE)
    memory = memoryview(view)
    assert (memory.format, memory.itemsize, memory.ndim, memory.shape) == ("B", 1, 1, (len(VALUE),))
    assert memory.readonly and memory.c_contiguous
    assert memory == VALUE and memory[3:5] == VALUE[3:5]
    assert bytearray(view) == VALUE
    assert io.BytesIO().write(view) == len(VALUE)
    assert b"".join([view, b"!"]) == VALUE + b"!"
    assert np.frombuffer(view, dtype="<u4").tobytes() == VALUE


def test_view_is_read_only(store, view):
    with pytest.raises(TypeError):
        memoryview(view)[0] = 1
    with pytest.raises(ValueError):
        np.frombuffer(view, dtype=np.uint8)[0] = 1
    with pytest.raises(ValueError):
        np.from_dlpack(view)[0] = 1
    with pytest.raises((TypeError, BufferError)):
        io.BytesIO(VALUE).readinto(view)
    with pytest.raises(TypeError, match="read-only"):
        store.get_into("k", view)


STORE_THROUGH_ADDRESS = """
import ctypes
import numpy as np
import tiffin

address, key, value = arguments
store = tiffin.connect(address, timeout=30) if address else tiffin.connect(memory="64MiB", timeout=30)
if not address:
    store.put(key, value)
view = store.view(key)
assert view.is_borrowed and bytes(view) == value
print("viewed", flush=True)
ctypes.memset(np.frombuffer(view, dtype=np.uint8).ctypes.data, 0, 8)
print("stored", flush=True)
"""


@pytest.mark.parametrize("is_embedded", [True, False])
def test_store_through_the_address_of_a_view_ends_the_process(cluster, is_embedded):
    key = f"read-only {is_embedded}"
    with tiffin.connect(cluster, timeout=30) as other:
        other.put(key, VALUE)
        address = None if is_embedded else cluster
        status, output = helpers.end_of(STORE_THROUGH_ADDRESS, address, key, VALUE)
        assert (status, output) == (-signal.SIGSEGV, "viewed\n")
        assert other.get(key) == VALUE


@pytest.mark.parametrize("arguments", [["--isolate"], []])
def test_other_process_maps_isolated_memory_for_reading_only(arguments):
    up = helpers.up("--memory", "64MiB", *arguments)
    # Other stores of this process are mapped, too.
    before = set(pathlib.Path("/proc/self/maps").read_text().splitlines())
    with up as (address, _), tiffin.connect(address, timeout=30) as store:
        store.put("k", VALUE)
        assert store.view("k").is_borrowed
        maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
        permissions = {line.split()[1] for line in maps if "tiffin-data" in line and line not in before}
        assert permissions == ({"r--s"} if arguments else {"r--s", "rw-s"})
        moved = store.stats().traffic
        assert (moved.tcp_written if arguments else moved.shared_memory_written) >= len(VALUE)


def test_view_can_be_stored(store, view):
    store.put("copy", view)
    assert store.get("copy") == VALUE


def test_dlpack(view):
    assert view.__dlpack_device__() == (1, 0)
    array = np.from_dlpack(view)
    assert array.dtype == np.uint8 and array.shape == (len(VALUE),)
    assert array.tobytes() == VALUE
    assert array.ctypes.data == np.frombuffer(view, dtype=np.uint8).ctypes.data
    copy = np.from_dlpack(view, copy=True)
    copy[0] = 99
    assert array[0] == VALUE[0]
    with pytest.raises(BufferError, match="hint: "):
        view.__dlpack__()
    with pytest.raises(BufferError):
        view.__dlpack__(max_version=(0, 8))
    with pytest.raises(BufferError):
        view.__dlpack__(max_version=(1, 0), dl_device=(2, 0))
    with pytest.raises(BufferError):
        view.__dlpack__(max_version=(1, 0), stream=1)
    with pytest.raises(TypeError):
        view.__dlpack__((1, 0))


def test_unused_capsule_is_freed(store, view):
    capsule = view.__dlpack__(max_version=(1, 0))
    view.release()
    store.delete("k")
    assert in_view(store) > 0
    del capsule
    helpers.eventually(lambda: in_view(store) == 0)


def test_view_survives_delete_and_replace(store, view):
    store.delete("k")
    assert bytes(view) == VALUE
    store.put("k", bytes(len(VALUE)))
    assert bytes(view) == VALUE
    assert store.get("k") == bytes(len(VALUE))
    usage = store.stats().usage
    assert usage.in_view > 0 and usage.objects == 1
    view.release()
    helpers.eventually(lambda: in_view(store) == 0)


LENDERS = {
    "memoryview": memoryview,
    "a part of a memoryview": lambda view: memoryview(view)[5:],
    "numpy.frombuffer": lambda view: np.frombuffer(view, dtype=np.uint8),
    "numpy.from_dlpack": np.from_dlpack,
}


@pytest.mark.parametrize("lend", LENDERS.values(), ids=LENDERS)
def test_memory_lives_as_long_as_its_last_buffer(store, view, lend):
    lent = lend(view)
    expected = bytes(lent)
    view.release()
    del view
    store.delete("k")
    for index in range(20):
        store.put(f"other{index}", bytes(8 << 20))
        store.delete(f"other{index}")
    gc.collect()
    assert bytes(lent) == expected
    assert in_view(store) > 0
    del lent
    gc.collect()
    helpers.eventually(lambda: in_view(store) == 0)


def test_view_outlives_its_store(store, view):
    array = np.frombuffer(view, dtype=np.uint8)
    store.close()
    del store
    gc.collect()
    assert bytes(view) == VALUE and array.tobytes() == VALUE


def test_released_view_is_closed(store, view):
    with view as same:
        assert same is view
    view.release()
    assert "released" in repr(view) and len(view) == len(VALUE)
    for use in (bytes, memoryview, np.from_dlpack, lambda view: view.__enter__()):
        with pytest.raises(tiffin.Closed):
            use(view)
    with pytest.raises(tiffin.Closed):
        store.put("l", view)


def test_dropped_view_is_released(store):
    store.put("k", VALUE)
    store.view("k")
    view = store.view("k")
    gone = weakref.ref(array := np.frombuffer(view, dtype=np.uint8))
    del array, view
    gc.collect()
    assert gone() is None
    store.delete("k")
    helpers.eventually(lambda: in_view(store) == 0)


def test_views_of_nothing(store):
    store.put("empty", b"")
    with store.view("empty") as view:
        assert bytes(view) == b"" == memoryview(view).tobytes()
        assert np.from_dlpack(view).shape == (0,)


def test_view_of_several_extents_is_a_copy():
    with tiffin.connect(memory="16MiB") as store:
        keys = [f"k{index:02}" for index in range(15)]
        store.put({key: bytes(1 << 20) for key in keys}, pin=True)
        store.delete(keys[::2])
        value = bytes(range(256)) * (6 << 12)
        store.put("scattered", value, pin=True)
        with store.view("scattered") as view:
            assert not view.is_borrowed and bytes(view) == value


def test_over_tcp_a_view_is_a_copy(cluster):
    with tiffin.connect(cluster, shared_memory=False) as store:
        store.put("k", VALUE)
        with store.view("k") as view:
            assert not view.is_borrowed and bytes(view) == VALUE
            array = np.from_dlpack(view)
        store.delete("k")
        assert array.tobytes() == VALUE


def test_in_a_forked_child_a_view_raises(store, view):
    def look():
        said = []
        for use in (bytes, memoryview, np.from_dlpack, lambda view: view.__enter__()):
            try:
                use(view)
            except tiffin.Closed as error:
                said.append("forked child" in str(error))
        view.release()
        return said, repr(view)

    said, shown = helpers.in_child(look)
    assert said == [True] * 4 and "parent" in shown
    assert bytes(view) == VALUE
    store.delete("k")
    assert in_view(store) > 0
