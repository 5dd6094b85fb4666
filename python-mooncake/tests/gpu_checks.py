"""Checks of device pointers in the drop-in, each in a process of its own: `python gpu_checks.py NAME`.

They run over the stand-in for the driver (`TIFFIN_CUDA_LIBRARY`) and over a real one. Those whose name begins
with `standin_` need the stand-in. `test_gpu.py` runs all of them.
"""

import contextlib
import os
import random
import sys
import threading

import cuda
import worker

MIB = 1 << 20
SIZES = (1, 3, 100, 4096, 65_536, 65_537, MIB + 3, 9 * MIB)


def pattern(size, seed=1):
    return random.Random(f"{size} {seed}").randbytes(size)


def start(segment=128 * MIB, **environment):
    os.environ.update(environment)
    master = worker.Master()
    assert worker.connect(master.address, segment=segment, buffer=16 * MIB) == 0
    return master, worker.store


def start_apart(**environment):
    """A store whose node is in another process."""
    master = worker.Master()
    node = worker.Other(master.address, segment=128 * MIB, buffer=0)
    os.environ.update(environment)
    assert worker.connect(master.address, segment=0, buffer=16 * MIB) == 0
    return (master, node), worker.store


def round_trips(driver, store):
    for seed, is_eager in ((1, False), (2, True)):
        driver.seed(seed, is_eager)
        for size in SIZES:
            for shift in (0, 1, 8):
                data, key = pattern(size, shift), f"{seed} {size} {shift}"
                source = driver.alloc(size + shift + 16, b"\x11" * (size + shift + 16))
                target = driver.alloc(size + 32, b"\x22" * (size + 32))
                driver.write(source + shift, data)
                assert store.put_from(key, source + shift, size) == 0, key
                # The source may be reused when the call has returned.
                driver.write(source + shift, bytes(size))
                assert store.get(key) == data, key
                assert store.get_into(key, target + 16, size) == size, key
                assert driver.read(target, size + 32) == b"\x22" * 16 + data + b"\x22" * 16, key
                driver.free(source)
                driver.free(target)
                assert store.remove(key, force=True) == 0


def one_object():
    """Objects of all sizes and alignments, with the node in this process."""
    _master, store = start()
    round_trips(cuda.Driver(), store)


def other_process():
    """The same with the node in another process of the host."""
    _apart, store = start_apart()
    round_trips(cuda.Driver(), store)
    assert store._traffic()["shared_memory"][0] > 0


def through_a_socket():
    """The same through the data socket."""
    _apart, store = start_apart(TIFFIN_CLIENT_SHARED_MEMORY="0")
    round_trips(cuda.Driver(), store)
    assert store._traffic()["tcp"][0] > 0


def without_direct_access():
    """The same with no registered memory: everything goes through the ring."""
    _master, store = start(TIFFIN_GPU_REGISTERED_BYTES="0", TIFFIN_GPU_CHUNK_BYTES="4MiB")
    driver = cuda.Driver()
    round_trips(driver, store)
    assert not driver.is_standin or driver.counts().registered_bytes == 0


def without_kernels():
    """The same with the copy engine alone, scattered pages too."""
    _master, store = start(TIFFIN_GPU_KERNELS="0")
    driver = cuda.Driver()
    pages(driver, store)
    assert not driver.is_standin or driver.counts().launches == 0


def idle_device():
    """Scattered pages with kernels in both directions."""
    _master, store = start(TIFFIN_GPU_LOAD="idle")
    pages(cuda.Driver(), store)


def scattered_pages():
    """Pages of a cache, in batches of objects with many buffers, mixed with host memory."""
    _master, store = start()
    driver = cuda.Driver()
    pages(driver, store)
    assert not driver.is_standin or driver.counts().launches > 0


def pages(driver, store):
    page, count = 4096, 300
    data = pattern(2 * page * count)
    cache, copy = driver.alloc(len(data), data), driver.alloc(len(data), bytes(len(data)))
    host = worker.Memory(page, b"host")
    assert store.register_buffer(cache, len(data)) == 0
    assert store.register_buffer(copy, len(data)) == 0
    order = list(range(count))
    random.Random(5).shuffle(order)
    for round in range(3):
        keys = [f"{round} {number}" for number in range(3)]
        addresses = [[cache + 2 * page * it for it in order[at::3]] + [host.address] for at in range(3)]
        sizes = [[page] * len(it) for it in addresses]
        assert store.batch_put_from_multi_buffers(keys, addresses, sizes) == [0, 0, 0]
        for at, key in enumerate(keys):
            expected = [data[2 * page * it : 2 * page * it + page] for it in order[at::3]]
            assert store.get(key) == b"".join(expected) + host[:], key
        targets = [[copy + 2 * page * it for it in order[at::3]] + [host.address] for at in range(3)]
        read = store.batch_get_into_multi_buffers(keys, targets, sizes)
        assert read == [sum(it) for it in sizes]
        found = driver.read(copy, len(data))
        for it in order:
            assert found[2 * page * it :][:page] == data[2 * page * it :][:page]
            assert found[2 * page * it + page :][:page] == bytes(page), "between the pages"
        driver.write(copy, bytes(len(data)))
    assert store.unregister_buffer(cache) == 0
    ranged = store.get_into_ranges([copy], [["0 0"]], [[[8 * page]]], [[[page]]], [[[100]]])
    assert ranged == [[[100]]]
    first = order[0::3][1]
    assert driver.read(copy + 8 * page, 100) == data[2 * page * first :][:100]


def batches():
    """Many objects in one call, in device and host memory."""
    _master, store = start()
    driver = cuda.Driver()
    size, count = 70_000, 40
    data = [pattern(size, it) for it in range(count)]
    memories = [worker.Memory(size, data[it]) if it % 3 == 0 else None for it in range(count)]
    devices = [driver.alloc(size, data[it]) for it in range(count)]
    addresses = [host.address if host else device for host, device in zip(memories, devices, strict=True)]
    keys = [f"k{it}" for it in range(count)]
    assert store.batch_put_from(keys, addresses, [size] * count) == [0] * count
    for memory, device in zip(memories, devices, strict=True):
        driver.write(device, bytes(size))
        if memory:
            memory[:] = bytes(size)
    assert store.batch_get_into(keys, addresses, [size] * count) == [size] * count
    for memory, device, expected in zip(memories, devices, data, strict=True):
        assert (memory[:] if memory else driver.read(device, size)) == expected


def order_of_streams():
    """A put comes after the work of the default stream; so does a get."""
    _master, store = start()
    driver = cuda.Driver()
    device = driver.alloc(MIB)
    blocking = driver.stream()
    for value in range(1, 20):
        driver.fill(device, value, MIB, blocking if value % 2 else 0)
        assert store.put_from(f"k{value}", device, MIB) == 0
        assert store.get(f"k{value}") == bytes([value]) * MIB
        driver.fill(device, 200, MIB, 0)
        assert store.get_into(f"k{value}", device, MIB) == MIB
        assert driver.read(device, MIB) == bytes([value]) * MIB


def bad_pointers():
    """Pointers that cannot be used are codes and one line each."""
    _master, store = start()
    driver = cuda.Driver()
    assert store.put("k", b"x" * 1000) == 0
    freed, good = driver.alloc(64 * MIB), driver.alloc(1000)
    assert store.register_buffer(freed, 64 * MIB) == 0
    driver.free(freed)
    for address, size in ((freed, 1000), (good, 8 * MIB), (good - 4 * MIB, 8 * MIB), (1 << 46, 1000)):
        with told() as lines:
            assert store.put_from("bad", address, size) == -600
            assert store.get_into("k", address, size) == -600
            assert store.batch_put_from(["bad", "good"], [address, good], [size, 1000]) == [-600, 0]
            assert store.batch_get_into(["k", "good"], [address, good], [size, 1000]) == [-600, 1000]
        assert len(lines) == 4 and all("hint" in it for it in lines), lines
        assert store.is_exist("bad") == 0
    with told() as lines:
        assert store.register_buffer(good, 8 * MIB) == -600
    assert len(lines) == 1, lines


@contextlib.contextmanager
def told():
    """The lines that the drop-in writes to standard error."""
    lines, saved = [], os.dup(2)
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)
    try:
        yield lines
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        with open(reader) as file:
            lines += [it for it in file.read().splitlines() if it.startswith("mooncake.store:")]


def forked_child():
    """A child gets a code, not a crash."""
    _master, store = start()
    driver = cuda.Driver()
    device = driver.alloc(4096, pattern(4096))
    assert store.put_from("k", device, 4096) == 0
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            code = 0 if store.put_from("c", device, 4096) < 0 else 2
        os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    assert store.put_from("p", device, 4096) == 0
    assert store.get("p") == pattern(4096)


def second_device():
    """Memory of each device goes through its own context."""
    _master, store = start()
    driver = cuda.Driver()
    if driver.device_count() < 2:
        return
    first = driver.alloc(MIB, pattern(MIB, 1))
    driver.enter(1)
    second = driver.alloc(MIB, pattern(MIB, 2))
    assert store.batch_put_from(["a", "b"], [first, second], [MIB, MIB]) == [0, 0]
    assert (store.get("a"), store.get("b")) == (pattern(MIB, 1), pattern(MIB, 2))
    assert store.batch_put_from_multi_buffers(["c"], [[first, second]], [[100, 100]]) == [0]
    assert store.get("c") == pattern(MIB, 1)[:100] + pattern(MIB, 2)[:100]


def races():
    """Deletes and new puts race transfers of devices: every read that succeeds is one whole object.

    `TIFFIN_GPU_READS` is the number of successful reads to reach.
    """
    _master, store = start()
    cuda.Driver().seed(3, True)
    size, keys = 64 << 10, [f"k{it}" for it in range(8)]
    wanted = int(os.environ.get("TIFFIN_GPU_READS", "1000"))
    counts, failures, ended = {"reads": 0, "misses": 0}, [], threading.Event()

    def write(seed):
        mine, choose, value = cuda.Driver(), random.Random(seed), seed
        source = mine.alloc(size)
        while not ended.is_set():
            key, value = choose.choice(keys), value % 251 + 1
            mine.write(source, bytes([value]) * size)
            store.remove(key, force=True)
            store.put_from(key, source, size)

    def read():
        mine = cuda.Driver()
        target = mine.alloc(size * len(keys))
        addresses = [target + size * it for it in range(len(keys))]
        while not ended.is_set():
            read = store.batch_get_into(keys, addresses, [size] * len(keys))
            found = mine.read(target, size * len(keys))
            for at, code in enumerate(read):
                part = found[size * at :][:size]
                if code == size and (part[0] == 0 or part != part[:1] * size):
                    failures.append((at, part[:16], part[-16:]))
                counts["reads" if code == size else "misses"] += 1
            if counts["reads"] >= wanted or failures:
                ended.set()

    threads = [threading.Thread(target=write, args=(it,)) for it in (1, 100)]
    threads += [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    print(counts, flush=True)


def standin_failing_copies():
    """A put whose copy fails leaves no object; a get whose copy fails leaves the store as it is."""
    for environment in ({}, {"TIFFIN_GPU_REGISTERED_BYTES": "0"}):
        _master, store = start(**environment)
        driver = cuda.Driver()
        size = 5 * MIB
        data = pattern(size)
        device = driver.alloc(size, data)
        assert store.put("there", data) == 0
        for kind in (cuda.COPY, cuda.RUNNING):
            for after in range(3):
                driver.fail(kind, after)
                code = store.put_from("new", device, size)
                driver.fail(kind, 0, 0)
                assert code in (0, -800), code
                assert store.is_exist("new") == (code == 0)
                if code == 0:
                    assert store.get("new") == data
                    assert store.remove("new", force=True) == 0
                driver.fail(kind, after)
                code = store.get_into("there", device, size)
                driver.fail(kind, 0, 0)
                assert code in (size, -800), code
                assert store.get("there") == data
        driver.fail(cuda.COPY, 0)
        with told() as lines:
            assert store.put_from("new", device, size) == -800
        assert len(lines) == 1 and "hint" in lines[0], lines
        store.close()


def standin_missing_wait():
    """The stand-in detects a missing wait: it runs the work of a stream only when a call waits for it."""
    _master, store = start()
    driver = cuda.Driver()
    device = driver.alloc(MIB, bytes(MIB))
    side = driver.stream(cuda.NON_BLOCKING)
    driver.fill(device, 7, MIB, side)
    assert store.put_from("k", device, MIB) == 0
    # The drop-in waits for the default stream only, as the original does; the work of this one is missing.
    assert store.get("k") == bytes(MIB)


def standin_calls():
    """Puts and gets take few calls of the driver, however many pages they have."""
    _master, store = start()
    driver = cuda.Driver()
    page, count = 4096, 1000
    cache = driver.alloc(2 * page * count, pattern(2 * page * count))
    large = driver.alloc(16 * MIB, pattern(16 * MIB))
    addresses = [cache + 2 * page * it for it in reversed(range(count))]
    sizes = [page] * count
    asked = {"cuPointerGetAttributes": 1}
    saved = dict(asked, cuMemcpyDtoHAsync_v2=1, cuEventRecord=2)
    loaded = dict(asked, cuMemcpyHtoDAsync_v2=1, cuEventRecord=2)
    # The list of pages, a kernel that moves them on the device, and one copy.
    moved = dict(asked, cuLaunchKernel=1, cuEventRecord=4, cuStreamWaitEvent=1)
    saved_pages = dict(moved, cuMemcpyHtoDAsync_v2=1, cuMemcpyDtoHAsync_v2=1)
    loaded_pages = dict(moved, cuMemcpyHtoDAsync_v2=2)

    def put_pages(key):
        return store.batch_put_from_multi_buffers([key], [addresses], [sizes]) == [0]

    def get_pages(_key):
        return store.batch_get_into_multi_buffers(["pages"], [addresses], [sizes]) == [page * count]

    def is_registered():
        assert store.put_from("warm", large, 16 * MIB) == 0
        assert store.remove("warm", force=True) == 0
        return store._traffic()["cuda registered"][0] >= 128 * MIB

    assert worker.until(is_registered), store._traffic()
    assert store.put_from("large", large, 16 * MIB) == 0
    assert put_pages("pages")
    for number, (call, expected) in enumerate(
        (
            (lambda key: store.put_from(key, large + MIB, 65_536) == 0, saved),
            (lambda key: store.put_from(key, large, 16 * MIB) == 0, saved),
            (lambda _: store.get_into("large", large, 16 * MIB) == 16 * MIB, loaded),
            (put_pages, saved_pages),
            (get_pages, loaded_pages),
        )
    ):
        # The first ones make channels, lists and the memory for pages.
        assert call(f"{number} first") and call(f"{number} second")
        before = driver.calls()
        assert call(f"{number} third")
        after = driver.calls()
        called = {name: after[name] - before[name] for name in after if after[name] != before[name]}
        assert called == expected, (number, called)


def standin_registration():
    """The segment is registered in the background, used directly, and unregistered when the store closes."""
    _master, store = start()
    driver = cuda.Driver()
    device = driver.alloc(MIB, pattern(MIB))
    number = 0

    def is_registered():
        nonlocal number
        number += 1
        assert store.put_from(f"k{number}", device, MIB) == 0
        store.remove(f"k{number}", force=True)
        return driver.counts().registered_bytes >= 100 * MIB

    assert worker.until(is_registered), driver.counts().registered_bytes
    assert store.put_from("k", device, MIB) == 0
    assert store.get("k") == pattern(MIB)
    store.close()
    # The last piece may still be in registration.
    assert worker.until(lambda: driver.counts().registered_bytes == 0), driver.counts().registered_bytes
    assert worker.until(lambda: driver.counts().pending == 0), driver.counts().pending


CHECKS = (
    one_object,
    other_process,
    through_a_socket,
    without_direct_access,
    without_kernels,
    idle_device,
    scattered_pages,
    batches,
    order_of_streams,
    bad_pointers,
    forked_child,
    second_device,
    races,
    standin_failing_copies,
    standin_missing_wait,
    standin_calls,
    standin_registration,
)


if __name__ == "__main__":
    {it.__name__: it for it in CHECKS}[sys.argv[1]]()
    print("passed", sys.argv[1], flush=True)
