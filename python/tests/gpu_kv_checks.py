"""Checks of `tiffin.kv` over pages of a CUDA device, each in a process of its own, which gets its name.

As those of `gpu_native_checks.py`, they run over the stand-in for the driver and over a real one.
`test_gpu_native.py` runs all of them.
"""

import ctypes
import gc
import random
import sys

import numpy as np
import tiffin
from tiffin import kv

from device_arrays import KEPT, Driver, Interface, Tensor, cuda
from gpu_native_checks import connect, refused

PAGE_TOKENS = 16
#: Bytes of the rows of each layer: one layer, layers of several sizes, and as many as a model has.
SHAPES = ((24_576,), (1000, 4096, 56), (512,) * 48)
#: Those of one request of 100 tokens: the next one evicts its pages.
DEVICE_PAGES = 7
SECONDS = 60


class Model:
    """Layers of a device, and an engine over them. It computes on a stream of its own, without waiting."""

    def __init__(self, driver, rows, store=None, *, named=None, stream=None, **options):
        self.driver, self.rows = driver, rows
        self.starts = [driver.alloc(row * DEVICE_PAGES, bytes(row * DEVICE_PAGES)) for row in rows]
        self.staged = driver.alloc(sum(rows) * 64)
        self.stream = driver.stream(cuda.NON_BLOCKING) if stream is None else stream
        shapes = [(start, (DEVICE_PAGES, row)) for start, row in zip(self.starts, rows, strict=True)]
        # Both protocols.
        arrays = [
            Tensor(driver, start, shape) if number % 2 else Interface(start, shape)
            for number, (start, shape) in enumerate(shapes)
        ]
        options = {"host_pages": 32, "page_tokens": PAGE_TOKENS, "threshold_pages": 0, **options}
        device = arrays[0] if len(arrays) == 1 else arrays
        named = self.stream if named is None else named
        self.engine = kv.Engine(device, stream=named, store=store, **options)
        self.numbers, self.at = 0, 0
        self.has_failed = False

    def content(self, prefix):
        """The rows of a page, which follow from all tokens up to its end."""
        return random.Random(str(prefix)).randbytes(sum(self.rows))

    def compute(self, page, data):
        """Write a page on the stream of the model, and do not wait."""
        source = self.staged + self.at * len(data)
        self.at = (self.at + 1) % 64
        self.driver.write(source, data)
        for start, row in zip(self.starts, self.rows, strict=True):
            arguments = (ctypes.c_uint64(start + page * row), ctypes.c_uint64(source), ctypes.c_size_t(row))
            self.driver.call("cuMemcpyDtoDAsync_v2", *arguments, ctypes.c_void_p(self.stream))
            source += row

    def read(self, page):
        self.driver.call("cuStreamSynchronize", ctypes.c_void_p(self.stream))
        rows = zip(self.starts, self.rows, strict=True)
        return b"".join(self.driver.read(start + page * row, row) for start, row in rows)

    def serve(self, prompt):
        """Serve a request to its end, and compare every page that it finds. Returns the cached tokens."""
        self.numbers += 1
        number = self.numbers
        plan = self.step(submit=[kv.Request(number, prompt)])
        while not plan.ready:
            assert self.engine.wait(SECONDS)
            plan = self.step()
        (ready,) = plan.ready
        for position, page in enumerate(ready.pages):
            upto = min((position + 1) * PAGE_TOKENS, len(prompt))
            data = self.content(prompt[:upto])
            if upto <= ready.cached.total:
                assert self.read(int(page)) == data, f"page {position} has other bytes"
            else:
                self.compute(int(page), data)
        ended = self.step(computed=[kv.Computed(number, len(prompt))], finish=[number]).ended
        while not ended and self.engine.wait(SECONDS):
            ended = self.step().ended
        assert ended == [(number, "finished")]
        return ready.cached

    def step(self, **events):
        plan = self.engine.step(**events)
        assert not plan.refused
        return plan

    def settle(self):
        """Step until no operation is in flight."""
        while self.engine.stats()["operations"]:
            assert self.engine.wait(SECONDS)
            self.step()
        stats = self.engine.stats()
        assert (stats["conflicts"], stats["panics"]) == (0, 0), stats
        if not self.has_failed:
            assert stats["faults"] == 0, stats["last_fault"]

    def close(self):
        assert self.engine.close()
        for start in [*self.starts, self.staged]:
            self.driver.free(start)


def prompt(seed, count=100):
    return list(range(seed * 1000, seed * 1000 + count))


def full_pages(tokens):
    return [tokens[:end] for end in range(PAGE_TOKENS, len(tokens) + 1, PAGE_TOKENS)]


def story():
    """Every byte on its way from a device to the host and the store, and back to another device's memory."""
    driver = Driver()
    for rows in SHAPES:
        with connect() as store:
            model, tokens = Model(driver, rows, store), prompt(1)
            assert model.serve(tokens).total == 0
            model.settle()
            # Down: the objects in the store are the pages.
            root, hashes = kv.chain(tokens, page_tokens=PAGE_TOKENS)
            keys = kv.names(root, hashes)
            assert store.get(keys) == [model.content(prefix) for prefix in full_pages(tokens)]
            assert model.serve(tokens).device == 96
            # Up from the host: other requests have evicted the pages from the device.
            for seed in (2, 3):
                model.serve(prompt(seed))
                model.settle()
            assert model.serve(tokens).host == 96
            # Up from the store: the host has lost them, too.
            for seed in range(4, 12):
                model.serve(prompt(seed))
                model.settle()
            assert model.serve(tokens).store == 96
            other = Model(driver, rows, store)
            assert other.serve([*tokens, 7]).store == 96
            model.settle()
            other.settle()
            model.close()
            other.close()
        # Threads of the engines end the loans. If one never ends, the time limit of this program does.
        while KEPT:
            gc.collect()


def hosts():
    """Host pages of the caller: not aligned, and pinned by the program."""
    driver = Driver()
    size = sum(SHAPES[1])
    room = np.zeros(33 * size, np.uint8)
    address = ctypes.c_void_p()
    driver.call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(32 * size), 3)
    pinned = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_ubyte)), (32 * size,))
    for host in (room[7 : 7 + 32 * size], pinned):
        host = host.reshape(32, size)
        model = Model(driver, SHAPES[1], host=host, host_pages=None)
        model.serve(prompt(1))
        for seed in (2, 3):
            model.serve(prompt(seed))
            model.settle()
        pages = {bytes(page) for page in host}
        assert all(model.content(prefix) in pages for prefix in full_pages(prompt(1)))
        assert model.serve(prompt(1)).host == 96
        model.close()
    driver.call("cuMemFreeHost", address)


def streams():
    """A stream is a handle, an object that has one, or the default stream."""
    driver = Driver()

    class Torch:
        cuda_stream = driver.stream(cuda.NON_BLOCKING)

    class Cupy:
        ptr = driver.stream(cuda.NON_BLOCKING)

    class Core:
        handle = driver.stream(cuda.NON_BLOCKING)

        def __cuda_stream__(self):
            return 0, self.handle

    named = ((Torch(), Torch.cuda_stream), (Cupy(), Cupy.ptr), (Core(), Core.handle), (0, 0), (None, 0))
    with connect() as store:
        for number, (given, stream) in enumerate(named):
            model = Model(driver, SHAPES[2], store, stream=stream, named=given)
            tokens = prompt(number)
            assert model.serve(tokens).total == 0
            model.settle()
            root, hashes = kv.chain(tokens, page_tokens=PAGE_TOKENS)
            found = store.get(kv.names(root, hashes))
            assert found == [model.content(prefix) for prefix in full_pages(tokens)]
            model.close()


def layers_in_groups():
    """The model reads each layer of a request as soon as its stream may, before the request is ready."""
    driver = Driver()
    model, tokens = Model(driver, SHAPES[2], layer_groups=5), prompt(1)
    model.serve(tokens)
    for seed in (2, 3):
        model.serve(prompt(seed))
        model.settle()
    while driver.is_standin and driver.counts().registered_bytes < 32 * sum(SHAPES[2]):
        pass
    size = sum(model.rows)
    scratch = driver.alloc(6 * size)
    plan = model.step(submit=[kv.Request(100, tokens)])
    (loading,) = plan.loading
    assert (loading.request, loading.cached.host, len(loading.pages)) == (100, 96, 7) and not plan.ready
    offset = 0
    for layer, (start, row) in enumerate(zip(model.starts, model.rows, strict=True)):
        model.engine.wait_layer(layer, stream=None if layer % 2 else model.stream)
        for position, page in enumerate(loading.pages[:6].tolist()):
            driver.copy(scratch + position * size + offset, start + page * row, row, model.stream)
        offset += row
    driver.wait(model.stream)
    for position, prefix in enumerate(full_pages(tokens)):
        assert driver.read(scratch + position * size, size) == model.content(prefix), f"page {position}"
    while not plan.ready:
        assert model.engine.wait(SECONDS)
        plan = model.step()
    assert plan.ready[0].cached == loading.cached and (plan.ready[0].pages == loading.pages).all()
    model.engine.wait_layer(0, timeout=0)
    model.step(computed=[kv.Computed(100, 100)], finish=[100])
    model.settle()
    refused(tiffin.InvalidArgument, lambda: model.engine.wait_layer(48), "no layer 48")
    refused(tiffin.InvalidArgument, lambda: model.engine.wait_layer(0, stream=2), "stream of each thread")
    model.close()
    host = np.zeros((4, 64), np.uint8)
    with kv.Engine(host, host_pages=4) as engine:
        refused(tiffin.InvalidArgument, lambda: engine.wait_layer(0), "no layers")
    for groups, device in ((0, Interface(scratch, (4, 64))), (2, host)):
        options = {"host_pages": 4, "layer_groups": groups}
        refused(ValueError, lambda d=device, o=options: kv.Engine(d, **o), f"layer_groups={groups}")
    driver.free(scratch)


def invalid_layers():
    """Wrong arrays are exceptions with hints."""
    driver = Driver()
    good, freed = driver.alloc(1 << 16), driver.alloc(1 << 20)
    driver.free(freed)
    array = Interface(good, (16, 64))

    def engine(device, **options):
        return lambda: kv.Engine(device, **{"host_pages": 8, **options})

    host = np.zeros((16, 64), np.uint8)
    bad = (
        (tiffin.InvalidArgument, [], {}, "no layers"),
        (tiffin.InvalidArgument, [array, host], {}, "layer 1 is in host memory"),
        (tiffin.InvalidArgument, [array, array], {}, "layers 0 and 1 overlap"),
        (tiffin.InvalidArgument, [Interface(good + 64, (16, 64)), array], {}, "layers 1 and 0 overlap"),
        (tiffin.InvalidArgument, [array, Interface(good, (16, 0))], {}, "layer 1 has no bytes"),
        (tiffin.InvalidArgument, [array, Interface(good, (15, 64))], {}, "layer 1 has 15 pages"),
        (tiffin.InvalidArgument, Interface(good, (16, 64), strides=(128, 1)), {}, "contiguous"),
        (tiffin.InvalidArgument, Interface(good, ()), {}, "row for each page"),
        (tiffin.DeviceError, Interface(freed, (16, 64)), {}, "memory of one CUDA device"),
        (tiffin.DeviceError, Interface(good, (16, 1 << 20)), {}, "memory of one CUDA device"),
        (tiffin.InvalidArgument, array, {"stream": 2}, "stream of each thread"),
        (TypeError, array, {"stream": "fast"}, "handle"),
        (TypeError, Interface(good, (16, 64), is_read_only=True), {}, "read-only"),
        (ValueError, host, {"stream": 0}, "without arrays of a CUDA device"),
        (ValueError, array, {"host": np.zeros((8, 65), np.uint8)}, "64 bytes on the device and 65"),
    )
    for kind, device, options, words in bad:
        refused(kind, engine(device, **options), words)
    if driver.device_count() > 1:
        driver.enter(1)
        other = Interface(driver.alloc(1024), (16, 64))
        refused(tiffin.InvalidArgument, engine([array, other]), "layer 1 is on device 1")
        driver.enter(0)
    kv.Engine(array, host_pages=8).close()
    gc.collect()
    assert not KEPT


def standin_missing_wait():
    """With another stream than that of the model, the pages are saved before they are computed."""
    driver = Driver()
    for is_right in (True, False):
        with connect() as store:
            named = None if is_right else driver.stream(cuda.NON_BLOCKING)
            model, tokens = Model(driver, SHAPES[2], store, named=named), prompt(1)
            model.serve(tokens)
            model.settle()
            root, hashes = kv.chain(tokens, page_tokens=PAGE_TOKENS)
            wanted = [model.content(prefix) for prefix in full_pages(tokens)]
            found = store.get(kv.names(root, hashes))
            assert found == (wanted if is_right else [bytes(len(page)) for page in wanted])
            model.close()


def standin_calls_per_load():
    """All pages and layers of an operation are one list and one kernel."""
    driver = Driver()
    model, tokens = Model(driver, SHAPES[2]), prompt(1)
    model.serve(tokens)
    for seed in (2, 3):
        model.serve(prompt(seed))
        model.settle()
    while driver.counts().registered_bytes < 32 * sum(SHAPES[2]):
        pass
    before = driver.counts()
    assert model.serve(tokens).host == 96
    after = driver.counts()
    # What is saved meanwhile are the last tokens' pages: none is full.
    assert (after.launches - before.launches, after.batched - before.batched) == (1, 0)
    model.settle()
    model.close()
    # By the thread that registers them, if it is at it.
    while driver.counts().registered_bytes:
        pass


def standin_failing_copies():
    """Failed copies and freed layers are faults; the requests compute what did not arrive."""
    driver = Driver()
    model = Model(driver, SHAPES[1])
    model.has_failed = True
    driver.fail(cuda.COPY, 0, 1000)
    model.serve(prompt(1))
    model.settle()
    driver.fail(cuda.COPY, 0, 0)
    stats = model.engine.stats()
    assert stats["faults"] > 0 and "cuMemcpy" in stats["last_fault"], stats
    model.serve(prompt(2))
    model.settle()
    other = driver.alloc(DEVICE_PAGES * 8192)
    driver.free(model.starts[1])
    model.starts[1] = other
    plan = model.step(submit=[kv.Request(1000, prompt(3))])
    while not plan.ready:
        assert model.engine.wait(SECONDS)
        plan = model.step()
    model.step(computed=[kv.Computed(1000, 100)], finish=[1000])
    while not model.engine.stats()["last_fault"].startswith("layer 1 cannot be used"):
        assert model.engine.wait(SECONDS)
        model.step()
    model.settle()
    model.close()


CHECKS = (
    story,
    hosts,
    streams,
    layers_in_groups,
    invalid_layers,
    standin_missing_wait,
    standin_calls_per_load,
    standin_failing_copies,
)


if __name__ == "__main__":
    {it.__name__: it for it in CHECKS}[sys.argv[1]]()
    print("passed", sys.argv[1], flush=True)
