"""Many threads, and signals: waiting never holds the interpreter."""

import contextlib
import pathlib
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import tiffin

import helpers


@pytest.fixture
def switching_by_itself():
    """From here on a thread runs until it releases the interpreter itself."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


CALLS = {
    "get": lambda store, buffer: store.get("k"),
    "get_into": lambda store, buffer: store.get_into("k", buffer),
    "put": lambda store, buffer: store.put("l", buffer),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_other_threads_run_during_a_copy(store, call, switching_by_itself):
    buffer = bytearray(64 << 20)
    store.put("k", buffer)
    ended = threading.Event()
    turns = 0

    def turn():
        nonlocal turns
        while not ended.wait(0.0001):
            turns += 1

    other = threading.Thread(target=turn)
    other.start()
    before = turns
    # On a busy machine a thread may get no processor during one call; without the interpreter it never
    # does.
    for _ in range(100):
        call(store, buffer)
        if turns > before:
            break
    after = turns
    ended.set()
    other.join()
    assert after > before


def test_other_threads_run_during_a_network_wait(switching_by_itself):
    with helpers.silent_peer() as address, pytest.raises(tiffin.Timeout):
        ran = threading.Event()
        threading.Thread(target=ran.set).start()
        tiffin.connect(address, timeout=0.5)
    assert ran.is_set()


@pytest.mark.parametrize("ways", ["one store", "a store each"])
def test_many_threads_at_once(store, ways):
    def work(number):
        chance = random.Random(number)
        mine = store if ways == "one store" else tiffin.connect(store.address, timeout=30)
        for turn in range(30):
            value = chance.randbytes(chance.randrange(100_000))
            key = f"{number}/{turn}"
            assert mine.put(key, value)
            assert mine.get([key, "absent"], default=None) == [value, None]
            with mine.view(key) as view:
                assert bytes(view) == value
            assert mine.delete(key)
        return number

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == list(range(8))
    assert store.list() == []


def test_readers_see_whole_values_while_a_writer_replaces_them(store):
    size = 1 << 20
    store.put("k", bytes(size))
    ended = threading.Event()

    def read(_):
        seen = set()
        buffer = bytearray(size)
        while not seen or not ended.is_set():
            # A reader whose object was replaced repeatedly gets an error; it never gets bytes of two
            # values.
            with contextlib.suppress(tiffin.Contended):
                value = store.get("k")
                assert value == value[:1] * size
                store.get_into("k", buffer)
                assert buffer == buffer[:1] * size
                seen.add(value[0])
        return seen

    with ThreadPoolExecutor(3) as pool:
        readers = pool.map(read, range(3))
        for turn in range(200):
            store.put("k", bytes([turn]) * size)
        ended.set()
        assert all(readers)


def test_closing_while_others_call(store):
    def call(_):
        count = 0
        try:
            while True:
                store.put("k", b"1")
                assert store.get("k") == b"1"
                count += 1
        except tiffin.Closed:
            return count

    with ThreadPoolExecutor(4) as pool:
        counts = pool.map(call, range(4))
        helpers.eventually(lambda: store.exists("k"))
        store.close()
        assert len(list(counts)) == 4


INTERRUPTED = """
import math, os, signal, socket, threading, tiffin

listener = socket.create_server(("127.0.0.1", 0))
address = f"127.0.0.1:{listener.getsockname()[1]}"

def interrupt():
    peer, _ = listener.accept()
    peer.recv(1)
    os.kill(os.getpid(), signal.SIGINT)
    keep.append(peer)

keep = []
threading.Thread(target=interrupt, daemon=True).start()
try:
    tiffin.connect(address, timeout=math.inf)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_interrupts_connecting():
    assert helpers.run(INTERRUPTED) == "interrupted\n"


INTERRUPTED_CALL = """
import math, os, signal, sys, threading, tiffin

address, pid, folder = arguments
sys.path.append(folder)
import helpers
store = tiffin.connect(address, timeout=math.inf)
store.put("k", b"1")
helpers.stop(pid)
timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
timer.start()
buffer = bytearray(8)
try:
    store.get_into("never seen, so the store is asked", buffer)
except KeyboardInterrupt:
    print("interrupted")
    buffer.append(0)
os.kill(pid, signal.SIGCONT)
print(store.get("k"))
"""


def test_ctrl_c_interrupts_a_call_and_the_store_survives():
    with helpers.up() as (address, pid):
        folder = str(pathlib.Path(helpers.__file__).parent)
        assert helpers.run(INTERRUPTED_CALL, address, pid, folder) == "interrupted\nb'1'\n"


HANDLED = """
import signal, socket, tiffin
heard = []
signal.signal(signal.SIGALRM, lambda *_: heard.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.05)
listener = socket.create_server(("127.0.0.1", 0))
try:
    tiffin.connect(f"127.0.0.1:{listener.getsockname()[1]}", timeout=1)
except tiffin.Timeout:
    print(heard)
"""


def test_signal_handler_without_exception_does_not_end_the_call():
    assert helpers.run(HANDLED) == "[1]\n"


HANDLER_THAT_CALLS = """
import math, os, signal, sys, threading, tiffin

address, pid, folder = arguments
sys.path.append(folder)
import helpers
store = tiffin.connect(address, timeout=math.inf)
other = tiffin.connect(memory="16MiB")
heard = []

def handle(*_):
    heard.append(other.put("k", b"from the handler"))
    os.kill(pid, signal.SIGCONT)

signal.signal(signal.SIGALRM, handle)
helpers.stop(pid)
signal.setitimer(signal.ITIMER_REAL, 0.05)
print(store.exists("k"), heard, other.get("k"))
"""


def test_signal_handler_may_use_a_store():
    with helpers.up() as (address, pid):
        folder = str(pathlib.Path(helpers.__file__).parent)
        shown = helpers.run(HANDLER_THAT_CALLS, address, pid, folder)
        assert shown == "False [True] b'from the handler'\n"


def test_leaving_with_everything_open():
    program = """
import asyncio, threading, tiffin, tiffin.aio
store = tiffin.connect(memory="16MiB")
store.put("k", bytes(1 << 20))
view = store.view("k")
memory = memoryview(view)
capsule = view.__dlpack__(max_version=(1, 0))
def forever():
    while True:
        store.get("k")
threading.Thread(target=forever, daemon=True).start()
async def unfinished():
    other = await tiffin.aio.connect(store.address)
    return other, [asyncio.ensure_future(other.get("k")) for _ in range(10)]
left = asyncio.run(unfinished())
print("left")
"""
    for _ in range(5):
        assert helpers.run(program) == "left\n"
