"""Checks of device memory in the native API, each in a process of its own, which gets its name.

They run over the stand-in for the driver (`TIFFIN_CUDA_LIBRARY`) and over a real one. Those whose name begins
with `standin_` need the stand-in. `test_gpu_native.py` runs all of them.
"""

import asyncio
import gc
import itertools
import os
import random
import sys

import tiffin
import tiffin.aio

import gpu_torture
from device_arrays import KEPT, LEGACY, Driver, Interface, Tensor, Typed, cuda

MIB = 1 << 20
#: The limit of lists that are queued on a device.
QUEUED_MAX = 128
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


def held(store, key):
    """Register the memory of the store, so that gets from it are queued."""
    with store.view(key) as view:
        return view.cuda_array("cuda:0", timeout=60)


class StreamOf:
    """A stream as torch, CuPy or another library has it."""

    def __init__(self, kind, handle):
        if kind == "__cuda_stream__":
            self.__cuda_stream__ = lambda: (0, handle)
        else:
            setattr(self, kind, handle)


def queued_gets():
    """A get with a stream returns at once, and is right when its handle says so."""
    driver = Driver()
    side = driver.stream(cuda.NON_BLOCKING)
    with connect() as store, driver.memory(bytes(4 * MIB)) as target:
        data = {f"k{number}": pattern(size, number) for number, size in enumerate(SIZES)}
        store.put(data)
        array = held(store, "k0")
        for stream in (0, side, *(StreamOf(it, side) for it in ("cuda_stream", "ptr", "__cuda_stream__"))):
            for size, key in zip(SIZES, data, strict=True):
                for buffer in (Interface(target, (4 * MIB,)), Tensor(driver, target, (size,), side)):
                    handle = store.get_into(key, buffer, stream=stream)
                    assert handle.result() == size and handle.is_done and handle.result(timeout=0) == size
                    assert driver.read(target, size) == data[key]
                    driver.write(target, bytes(size))
        # The exporter orders its work before the stream.
        tensor = Tensor(driver, target, (MIB,), side)
        store.get_into("k1", tensor, stream=side).result()
        assert tensor.streams == [side]
        places = {
            key: Interface(target + at * MIB, (SIZES[at],)) for at, key in enumerate(("k0", "k1", "k2"))
        }
        handle = store.get_into(places, range=[(0, 1), None, (5, 7)], stream=side)
        assert handle.result() == [1, 100, 7] and "3 keys, done" in repr(handle)
        assert driver.read(target + 2 * MIB, 7) == data["k2"][5:12]
        handle = store.get_into(["k0", "gone", "k1"], list(places.values()), stream=side)
        for _ in range(2):
            try:
                handle.result()
            except tiffin.NotFound as error:
                assert error.results[::2] == [1, 100], error.results
            else:
                raise AssertionError("not refused")
        assert driver.read(target + 2 * MIB, 100) == data["k1"]
        handle = store.get_into("k2", Interface(target, (4095,)), stream=side)
        try:
            handle.result()
        except tiffin.TooSmall as error:
            assert error.size == 4096
        else:
            raise AssertionError("not refused")
        # An empty object, and an array without memory.
        store.put("empty", b"")
        assert store.get_into("empty", Interface(target, (5,)), stream=side).result() == 0
        assert store.get_into("empty", Interface(0, (0,)), stream=side).result() == 0
        del array


def queued_order():
    """Queued copies come after the work of their stream and of the exporter's, and before later work."""
    driver = Driver()
    side, other = driver.stream(cuda.NON_BLOCKING), driver.stream(cuda.NON_BLOCKING)
    with connect() as store, driver.memory(bytes(MIB)) as target, driver.memory(bytes(MIB)) as copy:
        data = pattern(MIB)
        store.put("k", data)
        array = held(store, "k")
        for writer in (side, other):
            for number in range(1, 6):
                driver.fill(target, number, MIB, writer)
                buffer = Interface(target, (MIB,), stream=writer)
                handle = store.get_into("k", buffer, stream=side)
                driver.copy(copy, target, MIB, side)
                driver.fill(target, number, MIB, side)
                handle.result()
                driver.wait(side)
                assert driver.read(copy, MIB) == data and driver.read(target, 1) == bytes([number])
        del array


def standin_queued_bytes_come_later():
    """A reader that does not wait sees the bytes from before."""
    driver = Driver()
    side = driver.stream(cuda.NON_BLOCKING)
    with connect() as store, driver.memory(bytes(MIB)) as target:
        store.put("k", pattern(MIB))
        array = held(store, "k")
        # A task of the client asks for the end, which would make the stand-in copy.
        driver.change(side, is_stalled=True)
        handle = store.get_into("k", Interface(target, (MIB,)), stream=side)
        assert driver.read(target, MIB) == bytes(MIB), "nothing was copied yet"
        driver.change(side)
        assert handle.result() == MIB
        assert driver.read(target, MIB) == pattern(MIB)
        del array


def queued_copies_keep_the_object():
    """The memory of an object is not used again before its copies have ended, and then it is."""
    driver = Driver()
    side = driver.stream(cuda.NON_BLOCKING)
    big, data = 40 * MIB, pattern(40 * MIB)
    with connect() as store, driver.memory(bytes(big)) as target:
        for is_dropped in (False, True):
            store.put("k", data)
            array = held(store, "k")
            del array
            if driver.is_standin:
                driver.change(side, is_stalled=True)
            handle = store.get_into("k", Interface(target, (big,)), stream=side)
            store.delete("k")
            store.put("other", pattern(big, 2))
            if is_dropped:
                del handle
            if driver.is_standin:
                refused(tiffin.Full, lambda: store.put("third", bytes(100 * MIB)))
                driver.change(side)
            if not is_dropped:
                assert handle.result() == big
            store.delete("other")
            assert store.put("third", bytes(100 * MIB), wait=True), "there is memory again"
            driver.wait(side)
            assert driver.read(target, big) == data
            driver.write(target, bytes(big))
            store.clear()


def queued_gets_outlive_their_store():
    """A handle stays right when its store is closed; a forked child refuses it, and changes nothing."""
    driver = Driver()
    side = driver.stream(cuda.NON_BLOCKING)
    data = pattern(MIB)
    with driver.memory(bytes(MIB)) as target, driver.memory(bytes(MIB)) as other:
        with connect() as store:
            store.put("k", data)
            array = held(store, "k")
            places = [Interface(it, (MIB,)) for it in (target, other)]
            forked, handle = (store.get_into("k", it, stream=side) for it in places)
            child = os.fork()
            if child == 0:
                try:
                    refused(tiffin.Closed, forked.result)
                    refused(tiffin.Closed, lambda: forked.is_done)
                    assert "of the parent process" in repr(forked)
                    del forked, handle
                    gc.collect()
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
            assert forked.result() == MIB and driver.read(target, MIB) == data
        assert handle.result() == MIB and driver.read(other, MIB) == data
        del array


def queued_gets_of_other_paths():
    """What cannot be queued is read at once, in the order of the stream."""
    os.environ["TIFFIN_GPU_REGISTERED_BYTES"] = "0"
    driver = Driver()
    side = driver.stream(cuda.NON_BLOCKING)
    with connect() as store, driver.memory(bytes(4 * MIB)) as target:
        data = pattern(3 * MIB)
        store.put("k", data)
        driver.fill(target, 7, 4 * MIB, side)
        handle = store.get_into("k", Interface(target, (4 * MIB,), stream=None), stream=side)
        assert handle.is_done and handle.result() == 3 * MIB
        assert driver.read(target, 4 * MIB) == data + b"\7" * MIB


def queued_gets_of_event_loops():
    """The handle's `result` is a coroutine."""
    driver = Driver()
    side = driver.stream(cuda.NON_BLOCKING)

    async def run(address, target):
        async with tiffin.aio.connect(address) as store:
            handle = await store.get_into("k", Interface(target, (MIB,)), stream=side)
            assert isinstance(handle, tiffin.aio.AsyncQueuedGet)
            assert await handle.result() == MIB and handle.is_done
            handle = await store.get_into("gone", Interface(target, (MIB,)), stream=side)
            try:
                await handle.result()
            except tiffin.NotFound:
                return
            raise AssertionError("not refused")

    with connect() as store, driver.memory(bytes(MIB)) as target:
        store.put("k", pattern(MIB))
        asyncio.run(run(store.address, target))
        assert driver.read(target, MIB) == pattern(MIB)


def invalid_streams():
    """Wrong streams and buffers are exceptions with hints."""
    driver = Driver()
    side = driver.stream(cuda.NON_BLOCKING)
    with connect() as store, driver.memory(bytes(MIB)) as target:
        store.put("k", b"x" * 100)
        good, buffer = Interface(target, (100,)), bytearray(100)
        refused(tiffin.InvalidArgument, lambda: store.get_into("k", good, stream=2), "stream=2")
        for stream in ("side", -1, 1.5, StreamOf("ptr", None)):
            refused(TypeError, lambda stream=stream: store.get_into("k", good, stream=stream), "handle")
        refused(tiffin.InvalidArgument, lambda: store.get_into("k", buffer, stream=side), "CUDA device")
        read_only = Interface(target, (100,), is_read_only=True)
        refused(TypeError, lambda: store.get_into("k", read_only, stream=side))
        assert bytes(buffer) == bytes(100) and store.get_into("k", good, stream=side).result() == 100


def standin_queued_failures():
    """Failed copies are errors of the handle, a captured stream is refused, and the number is limited."""
    driver = Driver()
    side = driver.stream(cuda.NON_BLOCKING)
    with connect() as store, driver.memory(bytes(MIB)) as target:
        store.put("k", pattern(MIB))
        array, buffer = held(store, "k"), Interface(target, (MIB,))
        for kind in (cuda.COPY, cuda.RUNNING):
            driver.fail(kind)
            handle = store.get_into("k", buffer, stream=side)
            refused(tiffin.DeviceError, handle.result)
            assert handle.is_done
            assert store.get_into("k", buffer, stream=side).result() == MIB
        driver.change(side, is_captured=True)
        refused(tiffin.DeviceError, store.get_into("k", buffer, stream=side).result, "graph")
        driver.change(side)
        # Further gets wait. Those that have ended give way, also if nothing has asked for their result.
        handles = [store.get_into("k", buffer, stream=side) for _ in range(QUEUED_MAX + 5)]
        assert [it.result() for it in handles] == [MIB] * (QUEUED_MAX + 5)
        # A stream whose work takes for ever.
        driver.change(side, is_stalled=True)
        handles = [store.get_into("k", buffer, stream=side) for _ in range(QUEUED_MAX)]
        refused(tiffin.Timeout, lambda: handles[0].result(timeout=0.01), "queued")
        late = store.get_into("k", buffer, stream=side, timeout=0.1)
        refused(tiffin.Timeout, late.result, str(QUEUED_MAX))
        assert late.is_done and not any(it.is_done for it in handles)
        driver.change(side)
        assert [it.result() for it in handles] == [MIB] * QUEUED_MAX
        del array


def torture():
    """Deletes and puts race with transfers; every read is checked. `make torture-gpu` runs it for longer."""
    rounds = itertools.count()
    counts = gpu_torture.torture(lambda: next(rounds) < 1000)
    assert min(counts[it] for it in ("queued", "dropped", "get", "delete", "put_from_device")) > 0, counts
    assert counts["checked"] > 50, counts


def standin_torture_notices_a_missing_wait():
    """The check of the torture fails if a read does not wait for its handle."""

    class Hasty(gpu_torture.Worker):
        def queued(self, key):
            self.driver.fill(self.memory, gpu_torture.MARK, gpu_torture.SIZE_MAX, self.stream)
            handle = self.store.get_into(key, self.array(), stream=self.stream)
            version = int.from_bytes(self.driver.read(self.memory, 8), "little")
            self.check(key, len(gpu_torture.content(version % gpu_torture.VERSIONS)))
            handle.result()

    try:
        gpu_torture.torture(lambda: True, kind=Hasty)
    except AssertionError:
        return
    raise AssertionError("the torture has no check that can fail")


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
    queued_gets,
    queued_order,
    queued_copies_keep_the_object,
    queued_gets_outlive_their_store,
    queued_gets_of_other_paths,
    queued_gets_of_event_loops,
    invalid_streams,
    torture,
    standin_broken_order,
    standin_failing_copies,
    standin_queued_bytes_come_later,
    standin_queued_failures,
    standin_torture_notices_a_missing_wait,
)


if __name__ == "__main__":
    {it.__name__: it for it in CHECKS}[sys.argv[1]]()
    print("passed", sys.argv[1], flush=True)
