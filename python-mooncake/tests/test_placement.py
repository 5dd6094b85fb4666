"""Copies, tasks, segments and pools: cases that the conformance rows do not cover."""

import subprocess
import sys

import mooncake._host_memory
import pytest
from mooncake.store import MooncakeHostMemAllocator

MIB = 1 << 20

ENDED = """
from mooncake.store import *
def ended(task):
    '''The state of a task that has ended.'''
    begun = (TaskStatus.PENDING, TaskStatus.PROCESSING)
    until(lambda: store.query_task(task)[0].status not in begun)
    return store.query_task(task)[0]
def places(key):
    '''The segments that have a copy of an object.'''
    found = store.get_replica_desc(key)
    return sorted(it.get_memory_descriptor().buffer_descriptor.transport_endpoint for it in found)
"""


@pytest.fixture
def two(worker):
    """A store with a segment, and another process with one."""
    worker.run("master = Master()")
    worker.run("a = Other(master.address, 64 * MIB)")
    assert worker.eval("connect(master.address)") == 0
    worker.run("own, there = store.get_hostname(), a('store.get_hostname()')")
    worker.run(ENDED)
    return worker


def test_object_that_cannot_be_read_is_not_absent(two):
    """The tensor calls read the object of another name if one is absent, and only then."""
    two.run("""
from tiffin._native import mooncake as native
def read(key):
    for call in (lambda: native.read_one(store, key, True), lambda: native.read_heads(store, [key], 4)[0]):
        try:
            yield call()
        except native.ReadFailed:
            yield 'failed'
store.put('k', b'v' * 400, config(preferred_segment=there))
one, head = read(b'k')
before, holder = (bytes(one), head[:2]), store
a.stop()
# Calls of this store end soon, and do not reach the memory of the stopped process.
os.environ.update(MC_RPC_TIMEOUT_MS='300', TIFFIN_SHARED_MEMORY='off')
connect(master.address, segment=0)
after = list(read(b'k'))
a.resume()
# It has time: a call that is to succeed must not end early.
store = holder
""")
    assert two.eval("before, after, list(read(b'absent'))") == (
        (b"v" * 400, (400, b"vvvv")),
        ["failed", "failed"],
        [None, None],
    )


def test_failed_read_does_not_write_later(two):
    """A process stops while it is asked for bytes, and continues when the caller has reused the memory."""
    two.run("""
size = 4 * MIB
source, late, other = Memory(size, b'stored'), Memory(size), Memory(size)
store.put_from('k', source.address, size, config(preferred_segment=there))
holder = store
os.environ.update(MC_RPC_TIMEOUT_MS='300', TIFFIN_SHARED_MEMORY='off')
connect(master.address, segment=0)
read = lambda memory: store.get_into('k', memory.address, size)
until(lambda: read(late) == size)
a.stop()
code = read(late)
late[:] = bytes(size)
a.resume()
until(lambda: read(other) == size)
""")
    assert two.eval("code < 0, other[:] == source[:], late[:] == bytes(size)") == (True, True, True)


def test_task_never_overwrites_a_newer_value(two):
    """The value is removed and put again while tasks copy it."""
    two.run(
        """
wrong = []
for turn in range(40):
    value = str(turn).encode() * 5000
    store.put('k', value, config(preferred_segment=own))
    task, code = store.create_copy_task('k', [there])
    store.remove('k', True)
    newer = value + b'newer'
    store.put('k', newer, config(preferred_segment=own))
    if code == 0: ended(task)
    if store.get('k') != newer: wrong.append(turn)
    store.remove('k', True)
    if store.is_exist('k'): wrong.append(turn)
"""
    )
    assert two.eval("wrong") == []


def test_task_of_a_removed_object_fails(two):
    """A copy to a stopped process waits, so that the object is removed before it continues."""
    assert two.eval("store.put('k', b'v' * 100, config(preferred_segment=own))") == 0
    two.run("a.stop()")
    two.run("task, code = store.create_copy_task('k', [there])")
    assert two.eval("code, store.remove('k', True)") == (0, 0)
    two.run("a.resume()")
    assert two.eval("ended(task).status.name, ended(task).message") == (
        "FAILED",
        "OBJECT_NOT_FOUND (max retries reached: 10)",
    )
    assert two.eval("store.is_exist('k')") == 0


def test_copies_keep_the_hard_pin(two):
    assert two.eval("store.put('k', b'v', config(preferred_segment=own, with_hard_pin=True))") == 0
    assert two.eval("ended(store.create_move_task('k', own, there)[0]).status.name") == "SUCCESS"
    assert two.eval("places('k') == [there]") is True
    # More than both segments can hold.
    two.run("memory = Memory(4 * MIB)")
    two.run("filled = [store.put_from(f'f{i}', memory.address, 4 * MIB) for i in range(48)]")
    assert two.eval("set(filled), store.get('k')") == ({0}, b"v")


def test_task_fails_if_the_target_is_full(two):
    two.run(
        """
memory = Memory(4 * MIB)
kept = config(with_hard_pin=True, preferred_segment=there)
full = [store.put_from(f'f{i}', memory.address, 4 * MIB, kept) for i in range(17)]
"""
    )
    assert two.eval("[own] in [places(f'f{i}') for i in range(17)]") is True
    assert two.eval("store.put_from('k', memory.address, 4 * MIB, config(preferred_segment=own))") == 0
    two.run("done = ended(store.create_copy_task('k', [there])[0])")
    assert two.eval("done.status.name, done.message.split()[0]") == ("FAILED", "NO_AVAILABLE_HANDLE")
    assert two.eval("places('k') == [own], store.get_size('k')") == (True, 4 * MIB)


@pytest.mark.timeout(600)
def test_number_of_waiting_tasks_is_limited(two):
    """Each of these takes two seconds, so far fewer end than are created."""
    two.run(
        """
memory = Memory(4 * MIB)
kept = config(with_hard_pin=True, preferred_segment=there)
full = [store.put_from(f'f{i}', memory.address, 4 * MIB, kept) for i in range(17)]
store.put_from('k', memory.address, 4 * MIB, config(preferred_segment=own))
codes = []
def more(count):
    while count and -1401 not in codes[-1:]:
        codes.append(store.create_copy_task('k', [there])[1]); count -= 1
"""
    )
    # In portions, because a single request to the process has a time limit.
    for _ in range(20):
        two.run("more(1000)")
    assert two.eval("codes.count(0) >= 10000, codes[-1], set(codes[:-1])") == (True, -1401, {0})
    assert two.eval("store.close()") == 0


def test_closing_or_ending_unmounts_every_segment(worker):
    worker.run("master = Master('--client_ttl=60')")
    address = worker.eval("master.address")
    for end in ("store.close()", "pass", "del store; import gc; gc.collect()"):
        script = f"""
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("localhost", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", "{address}") == 0
assert store.allocate_and_mount_segment(1)["ret"] == 0
assert store.put("k", b"v") == 0
{end}
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert worker.eval("until(lambda: master.segments() == [])") is True


def test_closing_reports_what_mounted_segments_lose(worker):
    worker.run("master = Master()")
    assert worker.eval("connect(master.address, segment=0)") == 0
    assert worker.eval("store.allocate_and_mount_segment(1)['ret']") == 0
    assert worker.eval("store.put('precious', b'v', config(with_hard_pin=True)), store.close()") == (0, 0)
    assert "precious" in worker.tail() and "they are lost" in worker.tail()


def test_number_of_segments_is_limited(worker):
    worker.run("master = Master()")
    assert worker.eval("connect(master.address, segment=0)") == 0
    made = worker.eval("[store.allocate_and_mount_segment(1)['ret'] for _ in range(65)]")
    assert made == [0] * 64 + [-1]
    assert "64 segments are already mounted" in worker.tail()
    assert worker.eval("len(master.segments())") == 64


def test_threads_keep_the_limit_of_segments(worker):
    worker.run("master = Master()")
    assert worker.eval("connect(master.address, segment=0)") == 0
    assert worker.eval("{store.allocate_and_mount_segment(1)['ret'] for _ in range(62)}") == {0}
    worker.run(
        """
answers, start = [], threading.Barrier(8)
def mount():
    start.wait()
    answers.append(store.allocate_and_mount_segment(1)['ret'])
threads = [threading.Thread(target=mount) for _ in range(8)]
for it in threads: it.start()
for it in threads: it.join()
"""
    )
    assert worker.eval("sorted(answers), len(master.segments())") == ([-1] * 6 + [0] * 2, 64)


def test_number_of_allocations_is_limited(monkeypatch):
    monkeypatch.setattr(mooncake._host_memory, "REGIONS_MAX", 2)
    allocator = MooncakeHostMemAllocator()
    first, second = allocator.alloc(1), allocator.alloc(1)
    with pytest.raises(RuntimeError, match="too many allocations"):
        allocator.alloc(1)
    assert [allocator.free(it) for it in (first, second)] == [0, 0]


@pytest.mark.timeout(600)
def test_ended_tasks_are_forgotten_in_order(two):
    """The table keeps 10,000 of them."""
    assert two.eval("store.put('k', b'v', config(preferred_segment=own))") == 0
    two.run("tasks = []")
    for _ in range(10):
        two.run("tasks += [store.create_copy_task('k', [own])[0] for _ in range(1000)]; ended(tasks[-1])")
    assert two.eval(
        "until(lambda: all(store.query_task(it)[0].status == TaskStatus.SUCCESS for it in tasks))"
    )
    two.run("more = store.create_copy_task('k', [own])[0]; ended(more)")
    assert two.eval("sum(store.query_task(it)[1] == -1400 for it in tasks), store.query_task(more)[1]") == (
        1,
        0,
    )


def test_pool_waits_for_other_threads(worker):
    worker.run("from mooncake.store import BufferPool")
    worker.run("master = Master()")
    assert worker.eval("connect(master.address, segment=16 * MIB, buffer=MIB)") == 0
    worker.run(
        """
pool = BufferPool(store, max_bytes=MIB, max_regions=2)
most, now, lock, wrong = 0, 0, threading.Lock(), []
def work(number):
    global most, now
    for turn in range(50):
        with pool.acquire(1000, timeout=60) as lease:
            with lock:
                now += 1; most = max(most, now)
            view = lease.buffer
            view[:] = bytes([number]) * 1000
            if bytes(view) != bytes([number]) * 1000: wrong.append((number, turn))
            view.release()
            with lock: now -= 1
threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
for it in threads: it.start()
for it in threads: it.join()
"""
    )
    assert worker.eval("wrong, most <= 2, pool.close()") == ([], True, None)


@pytest.fixture
def pool(worker):
    """A worker with a store, and `new`, which makes a pool of it."""
    worker.run("from mooncake.store import BufferPool")
    worker.run("master = Master()")
    assert worker.eval("connect(master.address, segment=16 * MIB, buffer=MIB)") == 0
    worker.run("def new(**more): return BufferPool(store, **more)")
    return worker


def test_pool_refuses_memory_that_the_machine_does_not_have(pool):
    """No release of a lease helps, so the call does not wait for one."""
    pool.run("pool = new(max_bytes=2**64 - 1); lease = pool.acquire(1)")
    for size in ("2**62", "2**64 - 2", "2**64 - 1"):
        answer = pool.ask(eval=f"pool.acquire({size}, timeout=0)")
        assert answer["raises"] == "RuntimeError", answer
    answer = pool.ask(eval="pool.acquire(2**62)")
    assert (answer["raises"], answer["text"]) == ("RuntimeError", "overflow buffer allocation failed")
    assert pool.eval("pool.acquire(1000).size, lease.release(), pool.close()") == (1000, None, None)


def test_closing_the_store_ends_waiting_for_a_lease(pool):
    pool.run(
        """
pool, answers, started = new(max_regions=1), [], threading.Event()
lease = pool.acquire(1)
def wait():
    started.set()
    try:
        answers.append(pool.acquire(1))
    except RuntimeError as error:
        answers.append(str(error))
thread = threading.Thread(target=wait, daemon=True)
thread.start()
started.wait()
store.close()
thread.join(60)
"""
    )
    assert pool.eval("answers") == ["MooncakeDistributedStore is not initialized"]


@pytest.mark.parametrize("pin", ["with_soft_pin=True", "soft_pin_action=SoftPinAction.ENABLE"])
def test_both_spellings_of_the_soft_pin_protect(pin, worker):
    worker.run("from mooncake.store import SoftPinAction")
    worker.run("master = Master('--default_kv_lease_ttl=0')")
    assert worker.eval("connect(master.address, segment=16 * MIB)") == 0
    worker.run("memory = Memory(MIB)")
    assert worker.eval(f"store.put_from('pinned', memory.address, MIB, config({pin}))") == 0
    assert worker.eval("store.put_from('plain', memory.address, MIB)") == 0
    worker.run("[store.put_from(f'f{i}', memory.address, MIB) for i in range(20)]")
    assert worker.eval("store.batch_is_exist(['pinned', 'plain'])") == [1, 0]
    # Disabled again, the object has no protection.
    assert worker.eval("store.put_from('off', memory.address, MIB, config(with_soft_pin=False))") == 0
    worker.run("[store.put_from(f'g{i}', memory.address, MIB) for i in range(20)]")
    assert worker.eval("store.batch_is_exist(['pinned', 'off'])") == [1, 0]


def test_mounting_ends_by_the_time_limit_of_calls(worker):
    worker.run("master = Master()")
    worker.run("os.environ['MC_RPC_TIMEOUT_MS'] = '300'")
    assert worker.eval("connect(master.address)") == 0
    worker.run("master.process.send_signal(signal.SIGSTOP)")
    assert worker.eval("in_time(15, lambda: store.allocate_and_mount_segment(1)['ret'])") == -1
    worker.run("master.process.send_signal(signal.SIGCONT)")
    # The segment was not mounted, and the store works.
    assert worker.eval("until(lambda: store.put('k', b'v') == 0 and store.get('k') == b'v')") is True
    assert worker.eval("until(lambda: master.segments() == [store.get_hostname()])") is True
