"""Upserts and sessions beyond single answers: readers in between, limits, threads, forks, bad addresses."""

import pytest

SESSIONS_MAX = 1 << 16


@pytest.fixture
def store(worker):
    worker.run("master = Master(); connect(master.address)")
    return worker


def test_reader_sees_the_old_or_the_new_value(store):
    """Two threads replace an object, others read it: every read is one writer's whole value."""
    store.run("""
def values(writer, count):
    return [bytes([writer, turn % 250]) * (50_000 + 1000 * (turn % 3)) for turn in range(count)]

valid = {value for writer in (1, 2) for value in values(writer, 60)}
stop, wrong, codes, seen = threading.Event(), [], [], collections.Counter()

def write(writer):
    codes.extend(store.upsert('k', value) for value in values(writer, 60))

def read():
    while not stop.is_set():
        found = store.get('k')
        seen[found in valid] += 1
        if found not in valid:
            wrong.append(found[:4])

store.upsert('k', values(1, 1)[0])
readers = [threading.Thread(target=read) for _ in range(2)]
writers = [threading.Thread(target=write, args=[writer]) for writer in (1, 2)]
[it.start() for it in readers + writers]
[it.join() for it in writers]
stop.set()
[it.join() for it in readers]
""")
    assert store.eval("wrong") == []
    assert store.eval("set(codes), seen[True] > 0, store.get('k') in valid") == ({0}, True, True)


def test_failed_upsert_keeps_the_old_value(store):
    store.run("memory = Memory(100 * MIB)")
    assert store.eval("store.put_from('k', memory.address, 40 * MIB, config(with_hard_pin=True))") == 0
    assert store.eval("store.upsert_from('k', memory.address, 100 * MIB)") == -200
    assert store.eval("store.upsert_from('k', memory.address, 50 * MIB)") == -200
    assert store.eval("store.get_size('k')") == 40 << 20
    # An address that is not memory fails before anything is stored.
    assert store.eval("store.upsert_from('k', 4096, 100), store.get_size('k')") == (-600, 40 << 20)


def test_bad_addresses_are_refused(store):
    store.run("store.put('k', bytes(100))")
    assert store.eval("store.batch_upsert_from(['a', 'b'], [4096, 4096], [10, 10])") == [-600, -600]
    assert store.eval("store.put_tensor_from('t', 4096, 400)") == -600
    assert store.eval("store.put_tensor_with_tp_from('t', 4096, 400, 0, 2)") == -600
    assert store.eval("store.get_tensor_into('k', 4096, 400)") is None
    store.run("store.batch_get_session_start(['k']); store.batch_put_session_start(['s'], [100])")
    assert store.eval("store.batch_get_into_multi_buffer_ranges(['k'], [[4096]], [[10]], [[0]])") == [-600]
    assert store.eval("store.batch_put_from_multi_buffer_ranges(['s'], [[4096]], [[10]], [[0]])") == [-600]
    assert store.eval("store.batch_put_from_multi_buffer_ranges(['s'], [[2**64 - 1]], [[10]], [[0]])") == [
        -600
    ]


def test_number_of_sessions_is_limited(store):
    store.run(f"keys = [f'k{{i}}' for i in range({SESSIONS_MAX} + 1)]")
    # Each call has its own deadline, also on a slow machine.
    store.run(
        "some = [keys[at : at + 2048] for at in range(0, len(keys) - 1, 2048)]; some[-1] = some[-1][:2048]"
    )
    store.run("all_of = lambda call: {code for keys in some for code in call(keys)}")
    assert store.eval("all_of(lambda keys: store.batch_put_session_start(keys, [1] * len(keys)))") == {0}
    assert store.eval("store.batch_put_session_start(keys[-1:], [1])") == [-200]
    assert store.eval("all_of(store.batch_put_session_end)") == {0}
    assert store.eval("store.batch_put_session_start(keys[-1:], [1])") == [0]
    assert store.eval("store.batch_put_session_end(keys[-1:])") == [0]
    assert store.eval("all_of(store.batch_get_session_start)") == {0}
    assert store.eval("store.batch_get_session_start(keys[-1:])") == [-200]
    # An open session can be started again.
    assert store.eval("store.batch_get_session_start(keys[:1])") == [0]
    assert store.eval("store.batch_get_session_end(keys[:1]), store.batch_get_session_start(keys[-1:])") == (
        0,
        [0],
    )


def test_upsert_preempts_an_open_put_session(store):
    assert store.eval("store.batch_put_session_start(['k'], [8]), store.put('k', b'ignored')") == ([0], 0)
    assert store.eval("store.get('k'), store.get_size('k')") == (b"", -703)
    assert store.eval("store.upsert('k', b'upserted'), store.get('k')") == (0, b"upserted")
    # The session is no reason to ignore later puts.
    assert store.eval("store.remove('k', True), store.get_size('k')") == (0, -704)
    assert store.eval("store.put('k', b'put'), store.get('k')") == (0, b"put")
    # Its end has no effect, also when the key is free.
    assert store.eval("store.remove('k', True), store.batch_put_session_end(['k'])") == (0, [0])
    assert store.eval("store.is_exist('k'), store.batch_put_session_end(['k'])") == (0, [-600])
    assert store.eval("store.batch_put_session_start(['k'], [1])") == [0]


def test_number_of_ranges_of_a_put_session_is_limited(store):
    store.run("memory = Memory(4096, b'x'); p = memory.address")
    store.run(f"size = 2 * {SESSIONS_MAX} + 2; offsets = list(range(0, size, 2))")
    store.run(
        "write = store.batch_put_from_multi_buffer_ranges; store.batch_put_session_start(['k'], [size])"
    )
    store.run("many = lambda o: write(['k'], [[p] * len(o)], [[1] * len(o)], [o])")
    assert store.eval("many(offsets[:-1])") == [SESSIONS_MAX]
    assert store.eval("many(offsets[-1:])") == [-600]
    assert store.eval(
        "store.batch_put_session_end(['k']), store.get('k') == b'x\\0' * (size // 2 - 1) + bytes(2)"
    ) == (
        [0],
        True,
    )


def test_threads_write_one_object(store):
    store.run("""
memory = Memory(1 << 20, bytes(range(251)))
store.batch_put_session_start(['k'], [memory.size])
step, codes = 4096, []

def write(first):
    for offset in range(first * step, memory.size, 4 * step):
        codes.extend(store.batch_put_from_multi_buffer_ranges(
            ['k'], [[memory.address + offset]], [[step]], [[offset]]))

threads = [threading.Thread(target=write, args=[first]) for first in range(4)]
[it.start() for it in threads]
[it.join() for it in threads]
""")
    assert store.eval("set(codes), store.batch_put_session_end(['k'])") == ({4096}, [0])
    assert store.eval("store.get('k') == memory[:]")


def test_only_one_thread_opens_a_session(store):
    store.run("""
codes, gate = [], threading.Barrier(8)

def start():
    gate.wait()
    codes.extend(store.batch_put_session_start(['k'], [100]))

threads = [threading.Thread(target=start) for _ in range(8)]
[it.start() for it in threads]
[it.join() for it in threads]
""")
    assert store.eval("sorted(codes)") == [-600] * 7 + [0]
    assert store.eval("store.batch_put_session_revoke(['k']), store.batch_put_session_end(['k'])") == (
        [0],
        [-600],
    )


def test_open_session_holds_space_until_it_ends(store):
    store.run("memory = Memory(40 * MIB)")
    assert store.eval("store.batch_put_session_start(['k'], [40 * MIB])") == [0]
    assert store.eval("store.put_from('n', memory.address, 40 * MIB)") == -200
    assert store.eval("store.batch_put_session_revoke(['k'])") == [0]
    assert store.eval("until(lambda: store.put_from('n', memory.address, 40 * MIB) == 0)")


def test_closing_ends_sessions(store):
    store.run("other = Other(master.address, 0)")
    store.run("more = Other(master.address, 64 * MIB)")
    assert store.eval("other(\"store.batch_put_session_start(['k'], [90 * MIB])\")") == [-200]
    assert store.eval("other(\"store.batch_put_session_start(['k'], [50 * MIB])\")") == [0]
    assert store.eval("other('store.close()')") == 0
    assert store.eval("store.put('k', b'v'), store.get('k')") == (0, b"v")


def test_forked_child_has_sessions_of_its_own(store):
    store.run("store.put('k', b'value'); store.batch_get_session_start(['k'])")
    store.run("store.batch_put_session_start(['s'], [5]); memory = Memory(64, b'bytes')")
    store.run("""
def in_child():
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        p = memory.address + 32
        codes = (
            store.batch_get_into_multi_buffer_ranges(['k'], [[p]], [[5]], [[0]]),
            store.batch_put_session_end(['s']),
            store.batch_get_session_start(['k']),
            store.batch_get_into_multi_buffer_ranges(['k'], [[p]], [[5]], [[0]]),
            store.upsert('c', b'child'),
        )
        os.write(write, repr(codes).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        found = answer.read()
    os.waitpid(child, 0)
    return eval(found)
""")
    assert store.eval("in_child()") == ([-600], [-600], [0], [5], 0)
    assert store.eval(
        "store.batch_put_from_multi_buffer_ranges(['s'], [[memory.address]], [[5]], [[0]])"
    ) == [5]
    assert store.eval("store.batch_put_session_end(['s']), store.get('s'), store.get('c')") == (
        [0],
        b"bytes",
        b"child",
    )


def test_memory_must_be_registered_if_configured(start_ours):
    worker = start_ours({"TIFFIN_REQUIRE_REGISTERED": "1"})
    worker.run("master = Master(); connect(master.address); memory = Memory(4096, b'x'); p = memory.address")
    assert worker.eval("store.upsert_from('k', p, 10), store.batch_upsert_from(['k'], [p], [10])") == (
        -800,
        [-800],
    )
    assert worker.eval("store.register_buffer(p, 4096), store.upsert_from('k', p, 10)") == (0, 0)


def test_one_of_two_waiting_threads_gets_the_session(start_ours):
    """The other one is refused: its space is freed, and the session of the first is not affected."""
    worker = start_ours({"TIFFIN_PUT_WAIT": "60s"})
    worker.run("master = Master(); connect(master.address); own = store.get_hostname(); answers = []")
    assert worker.eval("store.batch_put_session_start(['full'], [60 * MIB])") == [0]
    worker.run("""
def start():
    answers.extend(store.batch_put_session_start(['k'], [20 * MIB]))

threads = [threading.Thread(target=start) for _ in range(2)]
[it.start() for it in threads]
""")
    worker.run("waiting = lambda: 'tiffin_operations_waiting 2' in fetch(master.metrics, '/metrics')[1]")
    assert worker.eval("until(waiting)")
    assert worker.eval("store.batch_put_session_revoke(['full'])") == [0]
    worker.run("[it.join() for it in threads]")
    assert worker.eval("sorted(answers)") == [-600, 0]
    assert worker.eval("until(lambda: master.used(own) < 40 * MIB)")
    assert worker.eval("store.batch_put_session_end(['k']), store.get_size('k')") == ([0], 20 << 20)


def test_unknown_outcome_is_not_reported_as_missing(start_ours):
    """Without a master it is unknown whether the object will be stored."""
    worker = start_ours({"MC_RPC_TIMEOUT_MS": "2000"})
    worker.run("master = Master(); connect(master.address); memory = Memory(64, b'bytes')")
    worker.run("store.batch_put_session_start(['k'], [5])")
    worker.run("store.batch_put_from_multi_buffer_ranges(['k'], [[memory.address]], [[5]], [[0]])")
    worker.run("master.kill()")
    assert worker.eval("store.batch_put_session_end(['k'])[0] in (-900, -901)")
    worker.run("master.start()")
    assert worker.eval("until(lambda: store.put('k', b'other') == 0)")
    assert worker.eval("store.get('k') in (b'bytes', b'other')")
