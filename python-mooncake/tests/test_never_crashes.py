"""No call ends the process: before `setup`, after `close`, from many threads, in a forked child, or with an
address that is not memory of this process.

The calls are found by inspection, so a new method is covered without a change here. Each runs in a process of
its own kind; the test reads its exit status.
"""

import pathlib
import subprocess
import sys

import pytest

PRELUDE = r"""
import inspect, os, sys, threading
sys.path.insert(0, {tests!r})
import worker
from mooncake import store as module
from mooncake.store import *

MIB = 1 << 20
memory = worker.Memory(MIB, b"pattern")
BAD = {bad}
pointer = BAD or memory.address

# A plausible argument for each name in Mooncake's signatures.
VALUES = dict(
    key="k", base_key="k", keys=["k", "l"], base_keys=["k", "l"], value=b"v", values=[b"v", b"w"], size=4096,
    sizes=[4096, 4096], buffer_ptr=pointer, buffer_ptrs=[pointer, pointer], metadata_buffer_ptr=pointer,
    metadata_size=16, all_buffer_ptrs=[[pointer], [pointer]], all_sizes=[[4096], [4096]],
    all_keys=[["k"], ["l"]], all_dst_offsets=[[[0]], [[0]]], all_src_offsets=[[[0]], [[0]]],
    regex_pattern="k", force=True, segment_name="", segment_ids=["1-2"], grace_period_seconds=0,
    targets=["a:1"], source="a:1", target="b:1", task_id=(1, 2), path="/nosuch", offset=0, protocol="tcp",
    location="", device="", mem_pool_size=0, local_buffer_size=0, server_address="127.0.0.1:1",
    prefer_alloc_in_same_node=False, tp_rank=0, tp_size=1, split_dim=0, file_name=None, tensor=None,
    tensors_list=[None, None], tensors=[None, None], options=None,
)
SKIPPED = {{"setup", "setup_dummy", "init_all", "close"}}


def arguments(method):
    given, named = [], {{}}
    for name, it in list(inspect.signature(method).parameters.items()):
        if name == "self" or it.kind is it.VAR_KEYWORD:
            continue
        if it.kind is it.VAR_POSITIONAL:
            given.append(b"part")
        elif name == "all_sizes" and "ranges" in method.__name__ and "multi" not in method.__name__:
            given.append([[[16]], [[16]]])
        elif name in ("all_dst_offsets", "all_src_offsets") and "multi" in method.__name__:
            given.append([[0], [0]])
        elif name in VALUES and it.kind in (it.POSITIONAL_ONLY, it.POSITIONAL_OR_KEYWORD):
            given.append(VALUES[name])
        elif it.default is it.empty:
            given.append(4096)
        else:
            break
    return given


def call_all(store):
    '''Calls everything; an exception is an answer.'''
    answers = {{}}
    for name in dir(type(store)):
        method = getattr(store, name)
        if name.startswith("__") or name in SKIPPED or not callable(method):
            continue
        given = arguments(method)
        try:
            answers[name] = method(*given)
        except Exception as error:
            answers[name] = error
    return answers


def connected(address):
    store = MooncakeDistributedStore()
    given = ["localhost", "P2PHANDSHAKE", 16 * MIB, 4 * MIB, "tcp", "", address]
    assert store.setup(*given) == 0
    return store
"""

BEFORE = """
answers = call_all(MooncakeDistributedStore())
assert len(answers) > 35, len(answers)
"""

AFTER = """
master = worker.Master()
store = connected(master.address)
assert store.put("k", bytes(4096)) == 0
assert store.close() == 0
call_all(store)
assert store.close() == 0 and store.health_check() == 1
"""

# After a failed setup, a store is not set up.
FAILED = """
store = MooncakeDistributedStore()
assert store.setup("localhost:1", "P2PHANDSHAKE", 16 * MIB, MIB, "tcp", "", "127.0.0.1") == -600
call_all(store)
"""

THREADS = """
master = worker.Master()
store = connected(master.address)
def work():
    for _ in range(4):
        call_all(store)
threads = [threading.Thread(target=work) for _ in range(4)]
for it in threads: it.start()
given = ["localhost", "P2PHANDSHAKE", 16 * MIB, 4 * MIB, "tcp", "", master.address]
for _ in range(3):
    assert store.close() == 0
    assert store.setup(*given) == 0
for it in threads: it.join()
assert store.put("end", b"v") == 0 and store.get("end") == b"v"
"""

FORK = """
master = worker.Master()
store = connected(master.address)
assert store.put("parent", b"p") == 0
segments = store.allocate_and_mount_segment(16 * MIB)["segment_ids"]
pool = BufferPool(store)
lease = pool.acquire(1000)
handle = store.get_buffer("parent")
child = os.fork()
if child == 0:
    try:
        call_all(store)
        assert bytes(handle) == b"p" and bytes(lease.buffer[:1]) is not None
        # The segment is the parent's.
        assert store.unmount_and_free_segment(segments) == -1
        lease.release()
        assert store.close() == 0
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr)
        os._exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert len(master.segments()) == 2
assert store.put("later", b"l") == 0 and store.get("later") == b"l"
assert store.unmount_and_free_segment(segments) == 0
lease.release()
"""

ADDRESS = """
master = worker.Master()
store = connected(master.address)
for key in ("k", "l"):
    assert store.put(key, bytes(4096)) == 0
answers = call_all(store)
call_all(store)
refused = ("put_from", "get_into", "register_buffer", "put_from_with_metadata")
assert all(answers[name] == -600 for name in refused), {name: answers[name] for name in refused}
assert answers["batch_get_into"] == [-600, -600] and answers["batch_put_from"] == [-600, -600]
assert store.put("alive", b"v") == 0 and store.get("alive") == b"v"
"""

CASES = {
    "before setup": (BEFORE, 0),
    "after close": (AFTER, 0),
    "after a failed setup": (FAILED, 0),
    "from many threads": (THREADS, 0),
    "in a forked child": (FORK, 0),
    "at an address of no mapping": (ADDRESS, 1 << 40),
    "at a small number": (ADDRESS, 64),
    "at an address of the kernel": (ADDRESS, (1 << 64) - (1 << 20)),
}


@pytest.mark.parametrize("name", CASES)
def test_no_call_ends_the_process(name, tmp_path):
    body, bad = CASES[name]
    program = PRELUDE.format(tests=str(pathlib.Path(__file__).parent), bad=bad) + body
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, f"{name} ended with {done.returncode}\n{done.stderr[-3000:]}"
