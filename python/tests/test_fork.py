"""Forked children and spawned ones: each has a connection of its own."""

import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading

import pytest
import tiffin

import helpers
import workers


@pytest.fixture(params=["inside the process", "a cluster"])
def any_store(request, cluster):
    where = {"memory": "256MiB"} if request.param == "inside the process" else {"address": cluster}
    with tiffin.connect(**where, timeout=30) as store:
        store.clear()
        yield store


def test_child_reads_and_writes(any_store):
    any_store.put("from parent", b"1")

    def work():
        any_store.put("from child", b"2" * 100_000)
        return any_store.get("from parent"), any_store.stats().traffic

    value, traffic = helpers.in_child(work)
    assert value == b"1"
    assert (traffic.shared_memory_read, traffic.shared_memory_written) == (1, 100_000)
    assert traffic.tcp_read == traffic.tcp_written == traffic.local_written == 0
    assert any_store.get("from child") == b"2" * 100_000
    assert any_store.put("from parent", b"3")


def test_child_of_a_child(any_store):
    any_store.put("k", b"1")

    def work():
        any_store.put("child", b"2")
        grandchild = helpers.in_child(lambda: (any_store.put("grandchild", b"3"), any_store.get("child")))
        return grandchild, any_store.get("grandchild")

    assert helpers.in_child(work) == ((True, b"2"), b"3")
    assert any_store.get(["k", "child", "grandchild"]) == [b"1", b"2", b"3"]


def test_child_that_ends_releases_nothing_of_its_parent(any_store):
    any_store.put("k", b"1")
    view = any_store.view("k")
    for _ in range(3):
        helpers.in_child(lambda: any_store.get("k"))
        helpers.in_child(lambda: any_store.close())
        helpers.in_child(lambda: None)
    assert any_store.get("k") == b"1" == bytes(view)
    assert not any_store.is_closed


def test_closed_store_stays_closed_in_a_child(store):
    store.close()

    def work():
        with pytest.raises(tiffin.Closed):
            store.get("k")
        return True

    assert helpers.in_child(work)


def test_child_shows_where_the_store_is(store):
    assert "in this process" in repr(store)
    assert "in the parent process" in helpers.in_child(lambda: repr(store))


def test_parent_in_the_middle_of_calls_may_fork(any_store):
    ended = threading.Event()

    def call(number):
        chance = random.Random(number)
        while not ended.is_set():
            key = f"{number}/{chance.randrange(3)}"
            any_store.put(key, chance.randbytes(chance.randrange(10_000)))
            any_store.get(key, default=None)
            any_store.view(key, default=None)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(25):
            key = f"child/{turn}"
            assert helpers.in_child(lambda key=key: (any_store.put(key, b"1"), any_store.get(key))) == (
                True,
                b"1",
            )
            assert any_store.get(key) == b"1"
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_threads_of_a_child(any_store):
    def work():
        values = [None] * 4

        def call(number):
            any_store.put(f"k{number}", str(number).encode())
            values[number] = any_store.get(f"k{number}")

        threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return values

    assert helpers.in_child(work) == [b"0", b"1", b"2", b"3"]


def test_store_of_a_child_is_independent(store):
    def work():
        with tiffin.connect(memory="16MiB") as own:
            own.put("k", b"1")
            return own.get("k"), store.exists("k")

    assert helpers.in_child(work) == (b"1", False)


def test_leases_and_views_are_those_of_their_process(any_store):
    """A child can inspect them, cannot use them, and does not end them by its use or exit."""
    ref = any_store.put_sample("s", {"x": b"1"}, pin=True, owner="run")
    any_store.put("k", b"2")
    lease, view = any_store.lease(ref), any_store.view("k")

    def work():
        uses = [
            lease.tensors,
            lambda: lease.tensors(copy=False),
            lambda: lease.get_into({"x": bytearray(1)}),
            lease.release,
            lease.__enter__,
            lambda: bytes(view),
            lambda: memoryview(view),
            view.__enter__,
        ]
        for use in uses:
            with pytest.raises((tiffin.Closed, BufferError), match="fork"):
                use()
        assert "of the parent process" in repr(lease) and "of the parent process" in repr(view)
        assert (lease.id, lease.generation, lease.manifest.size) == ("s", ref.generation, ref.size)
        view.release()
        # The store is different: the child has its own connection, and its own leases.
        with any_store.lease(ref) as own:
            return bytes(own.tensors()["x"]), len(any_store.why("s").leases), any_store.why("s").pins

    assert helpers.in_child(work) == (b"1", 2, ("run",))
    helpers.in_child(gc.collect)
    assert len(any_store.why("s").leases) == 1 and any_store.why("k").views == 1
    assert not lease.is_released and bytes(view) == b"2" and bytes(lease.tensors()["x"]) == b"1"
    any_store.delete("k")
    assert bytes(view) == b"2"
    lease.release()
    assert any_store.why("s").leases == () and any_store.why("s").pins == ("run",)


def test_child_that_is_killed_ends_its_own_leases_only(any_store):
    ref = any_store.put_sample("s", {"x": b"1"}, consume=["a", "b"])
    lease = any_store.lease(ref, "a")
    said, telling = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _held = any_store.lease(ref, "b"), any_store.view("s")
            os.write(telling, b".")
            signal.pause()
        finally:
            os._exit(1)
    assert os.read(said, 1) == b"."
    why = any_store.why("s")
    assert (len(why.leases), why.views) == (2, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    helpers.eventually(lambda: len(any_store.why("s").leases) == 1 and any_store.why("s").views == 0)
    assert bytes(lease.tensors()["x"]) == b"1"
    lease.release()


def test_death_of_a_parent_ends_its_leases_and_views(cluster):
    """Also while a forked child runs that has inherited its sockets."""
    program = """
import os, signal, tiffin
store = tiffin.connect(arguments[0])
ref = store.put_sample("orphan", {"x": b"1"})
lease, view = store.lease(ref), store.view("orphan")
if os.fork() == 0:
    parent = os.getppid()
    os.close(1)
    os.close(2)
    while os.getppid() == parent:
        pass
    signal.pause()
print(len(store.why("orphan").leases), store.why("orphan").views, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", f"arguments = {[cluster]!r}" + program],
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        assert process.stdout.readline() == "1 1\n"
        assert process.wait(60) == -signal.SIGKILL
        with tiffin.connect(cluster) as store:
            helpers.eventually(lambda: store.why("orphan").leases == () and store.why("orphan").views == 0)
            assert store.delete("orphan")
    finally:
        # The child, which is all that is left of the group.
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()


def test_end_of_a_parent_is_an_error_in_its_child():
    program = """
import os, sys, tiffin
store = tiffin.connect(memory="16MiB")
store.put("k", b"1")
said, telling = os.pipe()
child = os.fork()
if child:
    os.read(said, 1)
    os._exit(0)
assert store.get("k") == b"1"
parent = os.getppid()
os.write(telling, b".")
while os.getppid() == parent:
    pass
# The sockets of a parent with threads close shortly after its end; until then its memory may be read.
try:
    while store.get("k", timeout=1) == b"1":
        pass
except (tiffin.Unreachable, tiffin.Timeout):
    print("noticed", flush=True)
"""
    assert helpers.run(program) == "noticed\n"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader(any_store, method):
    context = multiprocessing.get_context(method)
    values = {f"sample{index}": random.Random(index).randbytes(50_000 + index) for index in range(40)}
    any_store.put(values)
    indexes, results = context.Queue(), context.Queue()
    samples = workers.Samples(any_store)
    crew = [context.Process(target=workers.serve, args=(samples, indexes, results)) for _ in range(3)]
    for worker in crew:
        worker.start()
    for index in [*range(len(values)), *[None] * len(crew)]:
        indexes.put(index)
    seen = [results.get(timeout=60) for _ in values]
    for worker in crew:
        worker.join(60)
        assert worker.exitcode == 0
    assert {f"sample{index}": value for index, value, _ in seen} == values
    assert os.getpid() not in {process for *_, process in seen}
    assert any_store.get([f"worker{worker.pid}" for worker in crew]) == [b"done"] * 3


def double(key):
    STORE[0].put(f"{key}/doubled", STORE[0].get(key) * 2)
    return key


STORE = []


def test_pool_uses_the_store_of_its_parent(store):
    STORE[:] = [store]
    keys = [f"k{index}" for index in range(20)]
    store.put({key: key.encode() for key in keys})
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert pool.map(double, keys) == keys
    assert store.get([f"{key}/doubled" for key in keys]) == [key.encode() * 2 for key in keys]
