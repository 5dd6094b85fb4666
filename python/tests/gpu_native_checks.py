"""Checks of device memory in the native API, each in a process of its own, which gets its name.

They run over the stand-in for the driver (`TIFFIN_CUDA_LIBRARY`) and over a real one. Those whose name begins
with `standin_` need the stand-in. `test_gpu_native.py` runs all of them.
"""

import gc
import random
import sys

import tiffin

from device_arrays import KEPT, LEGACY, Driver, Interface, Tensor, Typed, cuda

MIB = 1 << 20
SIZES = (1, 100, 4096, 65_537, 3 * MIB)


def pattern(size, seed=1):
    return random.Random(f"{size} {seed}").randbytes(size)


def connect():
    return tiffin.connect(memory="128MiB", timeout=60)


def refused(kind, call, *words):
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in (*words, "hint")), error
    else:
        raise AssertionError(f"not refused: {words}")


def arrays():
    """Values and buffers of both protocols, alone, in batches and mixed with host memory."""
    driver = Driver()
    with connect() as store:
        for size in SIZES:
            data = pattern(size)
            with driver.memory(data) as source, driver.memory(bytes(size + 8)) as target:
                assert store.put("i", Interface(source, (size,), stream=LEGACY))
                assert store.put({"t": Tensor(driver, source, (size,)), "h": data}) == [True, True]
                # The source may be reused when the call has returned.
                driver.write(source, bytes(size))
                assert store.get(["i", "t", "h"]) == [data] * 3
                for buffer in (Interface(target, (size + 8,)), Tensor(driver, target, (size + 8,))):
                    assert store.get_into("i", buffer) == size
                    assert driver.read(target, size + 8) == data + bytes(8)
                    driver.write(target, bytes(size + 8))
                host = bytearray(size)
                assert store.get_into(["t", "h"], [Tensor(driver, target, (size,)), host]) == [size, size]
                assert driver.read(target, size) == bytes(host) == data
                if size > 100:
                    driver.write(target, bytes(size))
                    assert store.get_into("i", Interface(target, (9,)), range=(50, 9)) == 9
                    assert driver.read(target, 10) == data[50:59] + b"\0"
        assert store.put("empty", Interface(0, (0,))) and store.get("empty") == b""
    gc.collect()
    assert not KEPT, "every loan ends"


def order_of_streams():
    """A put comes after the work of the exporter's current stream; so does a get."""
    driver = Driver()
    side = driver.stream(cuda.NON_BLOCKING)
    with connect() as store, driver.memory(bytes(MIB)) as memory:
        for value in range(1, 12):
            exports = (Tensor(driver, memory, (MIB,), side), Interface(memory, (MIB,), stream=side))
            array = exports[value % 2]
            driver.fill(memory, value, MIB, side)
            store.put("k", array)
            assert store.get("k") == bytes([value]) * MIB
            driver.fill(memory, 200, MIB, side)
            store.get_into("k", array)
            assert driver.read(memory, MIB) == bytes([value]) * MIB
        # Our calls ask for the order of the default stream.
        tensor = Tensor(driver, memory, (MIB,), side)
        store.put("k", tensor)
        assert tensor.streams == [LEGACY]


def new_arrays():
    """`get(device=)` returns an array with both protocols, which frees its memory."""
    driver = Driver()
    before = driver.counts().device_bytes if driver.is_standin else 0
    with connect() as store:
        for size in (0, *SIZES):
            store.put("k", pattern(size))
            array = store.get("k", device="cuda:0")
            assert (len(array), array.nbytes, array.device) == (size, size, "cuda:0")
            about = array.__cuda_array_interface__
            assert (about["shape"], about["typestr"], about["stream"]) == ((size,), "|u1", None)
            if size:
                assert driver.read(about["data"][0], size) == pattern(size)
                # What one call returns, others take.
                assert store.put("again", array) and store.get("again") == pattern(size)
            assert array.__dlpack_device__() == (2, 0)
            for options in ({}, {"max_version": (1, 0), "stream": 2}):
                capsule = array.__dlpack__(**options)
                assert "dltensor" in repr(capsule)
        store.put({"a": b"1234", "b": b"56"})
        first, second, third = store.get(["a", "b", "c"], None, device="cuda")
        assert (len(first), len(second), third) == (4, 2, None)
        part = store.get("a", range=(1, 2), device=0)
        assert driver.read(part.__cuda_array_interface__["data"][0], 2) == b"23"
        assert store.get("a", device="cpu") == b"1234"
        refused(tiffin.InvalidArgument, lambda: store.get("a", device="tpu"), "tpu")
        refused(tiffin.DeviceError, lambda: store.get("a", device="cuda:63"))
        del array, capsule, first, second, part
    gc.collect()
    if driver.is_standin:
        # The channels' lists, and what their first use allocates, stay.
        assert driver.counts().device_bytes - before < 3 * MIB, driver.counts().device_bytes


def views():
    """Kernels read the store's memory in place, also after the object was deleted."""
    driver = Driver()
    with connect() as store, driver.memory(bytes(MIB)) as target:
        data = pattern(MIB)
        store.put("k", data)
        view = store.view("k")
        array = view.cuda_array("cuda:0", timeout=60)
        about = array.__cuda_array_interface__
        assert about["data"][1], "it is read-only"
        assert (len(array), array.nbytes, array.device) == (MIB, MIB, "cuda:0")
        view.release()
        store.delete("k")
        for number in range(20):
            store.put(f"other {number}", pattern(MIB, number + 5))
        driver.copy_by_kernel(about["data"][0], target, MIB)
        assert driver.read(target, MIB) == data
        assert "dltensor_versioned" in repr(array.__dlpack__(max_version=(1, 0)))
        refused_dlpack(array)
        refused(tiffin.DeviceError, lambda: store.put("x", array))
        part = store.view("other 0", range=(MIB - 5, 5)).cuda_array()
        driver.copy_by_kernel(part.__cuda_array_interface__["data"][0], target, 5)
        assert driver.read(target, 5) == pattern(MIB, 5)[-5:]


def refused_dlpack(array):
    for options in ({}, {"max_version": (1, 0), "copy": True}, {"max_version": (1, 0), "dl_device": (1, 0)}):
        try:
            array.__dlpack__(**options)
        except BufferError:
            continue
        raise AssertionError(f"not refused: {options}")


def samples():
    """Samples of tensors on the device and on the host."""
    driver = Driver()
    data, size = pattern(2 * MIB), 2 * MIB
    with connect() as store, driver.memory(data) as source, driver.memory(bytes(size)) as target:
        tensors = {
            "hidden": Typed(source, (MIB // 2,), "float32", "<f4"),
            "ids": memoryview(pattern(80)).cast("q"),
        }
        ref = store.put_sample("s", tensors)
        with store.lease(ref) as lease:
            assert lease.manifest.tensors[0].shape == (MIB // 2,)
            assert bytes(memoryview(lease.tensors()["hidden"]).cast("B")) == data
            ids = bytearray(80)
            lease.get_into({"hidden": Typed(target, (MIB // 2,), "float32", "<f4"), "ids": ids})
            assert driver.read(target, size) == data and bytes(ids) == pattern(80)
        with store.reserve("r", size) as reservation:
            assert reservation.put(Tensor(driver, target, (size,)))
        assert store.get("r") == data


def invalid_arrays():
    """Wrong arrays are exceptions with hints; the store works afterwards."""
    driver = Driver()
    freed = driver.alloc(8 * MIB)
    driver.free(freed)
    with connect() as store, driver.memory(pattern(4096)) as good:
        store.put("k", b"x" * 100)
        bad = (
            (tiffin.DeviceError, Interface(freed, (100,))),
            (tiffin.DeviceError, Tensor(driver, freed, (100,))),
            (tiffin.DeviceError, Interface(good, (8 * MIB,))),
            (tiffin.InvalidArgument, Interface(good, (10, 10), strides=(20, 1))),
            (tiffin.InvalidArgument, Tensor(driver, good, (10, 10), strides=(20, 1))),
            (tiffin.InvalidArgument, Interface(good, (100,), stream=2)),
            (tiffin.InvalidArgument, Interface(good, (100,), mask=Interface(good, (100,)))),
            (tiffin.InvalidArgument, Interface(good, (100,), "u")),
            (tiffin.InvalidArgument, Interface(good, (1 << 40, 1 << 40))),
        )
        for kind, array in bad:
            refused(kind, lambda array=array: store.put("bad", array))
            refused(kind, lambda array=array: store.get_into("k", array))
        refused(TypeError, lambda: store.get_into("k", Interface(good, (100,), is_read_only=True)))
        refused(TypeError, lambda: tiffin._native.checksum(Interface(good, (100,))))
        assert not store.exists("bad")
        assert store.put("good", Interface(good, (4096,))) and store.get("good") == pattern(4096)
    gc.collect()
    assert not KEPT, "every loan ends"


def standin_broken_order():
    """The stand-in detects a broken rule: an exporter that names no stream must have waited itself."""
    driver = Driver()
    side = driver.stream(cuda.NON_BLOCKING)
    with connect() as store, driver.memory(bytes(MIB)) as memory:
        driver.fill(memory, 7, MIB, side)
        store.put("k", Interface(memory, (MIB,), stream=None))
        assert store.get("k") == bytes(MIB)


def standin_failing_copies():
    """A failed copy is `tiffin.DeviceError`, and stores nothing."""
    driver = Driver()
    with connect() as store, driver.memory(pattern(MIB)) as memory:
        store.put("there", b"x" * 1000)
        for kind in (cuda.COPY, cuda.RUNNING):
            driver.fail(kind)
            refused(tiffin.DeviceError, lambda: store.put("k", Interface(memory, (MIB,))))
            assert not store.exists("k")
            # A get tries again, so that one failure may pass unnoticed.
            driver.fail(kind, 0, 1000)
            refused(tiffin.DeviceError, lambda: store.get_into("there", Interface(memory, (MIB,))))
            driver.fail(kind, 0, 0)
            assert store.get_into("there", Interface(memory, (MIB,))) == 1000
            assert driver.read(memory, 1000) == b"x" * 1000
            driver.write(memory, pattern(MIB))
        driver.fail(cuda.ALLOCATE, 0, 1000)
        refused(tiffin.DeviceError, lambda: store.get("there", device="cuda:0"))
        driver.fail(cuda.ALLOCATE, 0, 0)
        assert len(store.get("there", device="cuda:0")) == 1000


CHECKS = (
    arrays,
    order_of_streams,
    new_arrays,
    views,
    samples,
    invalid_arrays,
    standin_broken_order,
    standin_failing_copies,
)


if __name__ == "__main__":
    {it.__name__: it for it in CHECKS}[sys.argv[1]]()
    print("passed", sys.argv[1], flush=True)
