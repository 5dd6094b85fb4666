"""Behaviour of the drop-in in cases where the original crashes, leaks, hangs or gives no message.

Everything happens in processes of its own, on free ports of loopback; `worker.py` has the names they know.
"""

import mmap
import signal
import socket
import subprocess
import sys

import pytest

MIB = 1 << 20
PAGE = mmap.PAGESIZE


def test_two_processes_of_one_host_share_memory(worker):
    worker.run("master = Master()")
    worker.run("a = Other(master.address, 64 * MIB)")
    assert worker.eval("connect(master.address, segment=0)") == 0
    worker.run("memory = Memory(8 * MIB, bytes(range(251)))")
    assert worker.eval("store.put_from('x', memory.address, 8 * MIB)") == 0
    assert worker.eval("a(\"__import__('zlib').crc32(store.get('x'))\")") == worker.eval(
        "__import__('zlib').crc32(memory.map)"
    )
    worker.run("memory[:] = bytes(8 * MIB)")
    assert worker.eval("store.get_into('x', memory.address, 8 * MIB)") == 8 * MIB
    assert worker.eval("memory[:502] == bytes(range(251)) * 2") is True
    traffic = worker.eval("store._traffic()")
    assert traffic["shared_memory"] == (8 * MIB, 8 * MIB)
    assert traffic["tcp"] == (0, 0) and traffic["local"] == (0, 0)
    assert worker.eval("a('store._traffic()')")["tcp"] == (0, 0)


def test_two_hosts_exchange_bytes_through_tcp(worker):
    """Two addresses of 127/8, with shared memory disabled, stand for two hosts."""
    worker.run("off = dict(TIFFIN_SHARED_MEMORY='off')")
    worker.run("master = Master(host='0.0.0.0')")
    worker.run("a = Other(master.address, 64 * MIB, hostname='127.0.0.2', environment=off)")
    worker.run("b = Other(master.address, 0, hostname='127.0.0.3', environment=off)")
    assert worker.eval("a('store.get_hostname()')").startswith("127.0.0.2:")
    worker.run("b('NAMES.update(memory=Memory(8 * MIB, bytes(range(251))))')")
    assert worker.eval("b(\"store.put_from('x', memory.address, 8 * MIB)\")") == 0
    assert (
        worker.eval("a(\"store.get('x') == (bytes(range(251)) * (8 * MIB // 251 + 1))[:8 * MIB]\")") is True
    )
    assert worker.eval("b(\"store.get_into('x', memory.address, 8 * MIB)\")") == 8 * MIB
    assert worker.eval("b('store._traffic()')") == {
        "local": (0, 0),
        "shared_memory": (0, 0),
        "tcp": (8 * MIB, 8 * MIB),
        "cuda registered": (0, 0),
    }


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "127.0.0.1"),
        ({"TIFFIN_NODE_LISTEN": "0.0.0.0"}, "0.0.0.0"),
        ({"TIFFIN_TOKEN": "secret"}, "0.0.0.0"),
    ],
)
def test_segment_listens_on_loopback_unless_told_otherwise(worker, environment, expected):
    """An address that other machines reach needs a token, or the word of the operator."""
    worker.run(f"environment = {environment!r}")
    worker.run("os.environ.update(environment)")
    worker.run("master = Master()")
    worker.run("a = Other(master.address, 16 * MIB, hostname='0.0.0.0', environment=environment)")
    assert worker.eval("a(\"store.put('k', b'v')\"), a(\"store.get('k')\")") == (0, b"v")
    worker.run(
        """
def opened(pid):
    for entry in os.scandir(f'/proc/{pid}/fd'):
        try: yield os.readlink(entry.path)
        except FileNotFoundError: pass  # It was closed meanwhile.

def listening(pid):
    sockets = set(opened(pid))
    rows = [line.split() for line in open(f'/proc/{pid}/net/tcp')][1:]
    mine = [it for it in rows if it[3] == '0A' and f'socket:[{it[9]}]' in sockets]
    return {'.'.join(str(byte) for byte in bytes.fromhex(it[1][:8])[::-1]) for it in mine}
"""
    )
    assert worker.eval("listening(a.process.pid)") == {expected}


def test_many_threads_use_one_store(worker):
    worker.run("master = Master()")
    assert worker.eval("connect(master.address)") == 0
    worker.run(
        """
def work(number, wrong):
    memory = Memory(64 * 1024)
    for turn in range(40):
        key, value = f'{number}-{turn}', bytes([number, turn]) * 8192
        if store.put(key, value) != 0: wrong.append((key, 'put'))
        if store.get(key) != value: wrong.append((key, 'get'))
        if store.get_into(key, memory.address, 64 * 1024) != len(value): wrong.append((key, 'get_into'))
        if memory[:len(value)] != value: wrong.append((key, 'bytes'))
        if store.batch_is_exist([key, 'missing']) != [1, 0]: wrong.append((key, 'exist'))
        if turn % 2 and store.remove(key, True) != 0: wrong.append((key, 'remove'))
"""
    )
    worker.run("wrong = []")
    worker.run("threads = [threading.Thread(target=work, args=(n, wrong)) for n in range(8)]")
    worker.run("[it.start() for it in threads]; [it.join() for it in threads]")
    assert worker.eval("wrong") == []
    assert worker.eval("store.remove_all(True)") == 8 * 20


def test_store_is_set_up_and_closed_while_others_use_it(worker):
    worker.run("master = Master()")
    assert worker.eval("connect(master.address)") == 0
    worker.run("arguments = ['localhost', 'P2PHANDSHAKE', 16 * MIB, MIB, 'tcp', '', master.address]")
    worker.run("end = threading.Event(); seen = set()")
    worker.run(
        """
def work():
    while not end.is_set():
        seen.add(store.put('k', b'v')); seen.add(store.is_exist('k')); store.get('k'); store.remove('k', True)
"""
    )
    worker.run("threads = [threading.Thread(target=work) for _ in range(4)]; [it.start() for it in threads]")
    assert worker.eval("[(store.close(), store.setup(*arguments)) for _ in range(5)]") == [(0, 0)] * 5
    worker.run("end.set(); [it.join() for it in threads]")
    assert worker.eval("seen - {0, 1, -200, -600, -704, -800, -900}") == set()
    assert worker.eval("store.put('after', b'v'), store.get('after')") == (0, b"v")


def test_forked_child_reconnects_and_its_parent_keeps_serving(worker):
    worker.run("master = Master()")
    assert worker.eval("connect(master.address)") == 0
    assert worker.eval("store.put('parent', b'p')") == 0
    worker.run(
        """
def forked(work):
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if work() else 1)
        except BaseException:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
    )
    child = "lambda: (store.get('parent'), store.put('child', b'c'), store.is_exist('child')) == (b'p', 0, 1)"
    assert worker.eval(f"forked({child})") == 0
    assert worker.eval("store.get('child'), store.put('later', b'l')") == (b"c", 0)
    assert worker.eval("forked(lambda: store.close() == 0 and store.put('x', b'y') == -600)") == 0
    assert worker.eval("store.get('parent'), store.get('later'), store.health_check()") == (b"p", b"l", 0)
    # A child that ends like a program does not touch its parent's segment either.
    assert worker.eval("forked(lambda: __import__('atexit')._run_exitfuncs() is None)") == 0
    assert worker.eval("store.get('parent')") == b"p"
    # Many children at once, like the workers of a data loader.
    assert worker.eval("[forked(lambda: store.get('parent') == b'p') for _ in range(8)]") == [0] * 8
    assert worker.eval("master.segments() == [store.get_hostname()]") is True


@pytest.mark.parametrize(
    "end",
    ["sys.exit(0)", "del store; gc.collect(); input()", "store = None; input()"],
    ids=["at exit", "deleted", "replaced"],
)
def test_unclosed_store_leaves_the_cluster(end, worker):
    worker.run("master = Master('--client_ttl=60')")
    address = worker.eval("master.address")
    script = f"""
import gc, sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
arguments = ["localhost", "P2PHANDSHAKE", 16 << 20, 1 << 20, "tcp", "", "{address}"]
assert store.setup(*arguments) == 0 and store.put("k", b"v") == 0
print("ready", flush=True)
input()
{end}
"""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, text=True)
    assert process.stdout.readline() == "ready\n"
    assert worker.eval("connect(master.address, segment=0), store.is_exist('k'), len(master.segments())") == (
        0,
        1,
        1,
    )
    process.stdin.write("\n")
    process.stdin.flush()
    assert worker.eval("until(lambda: not master.segments() and store.is_exist('k') == 0)") is True
    process.communicate("\n", timeout=30)
    assert process.returncode == 0


LOAD = """
def load(name, stop=threading.Event()):
    memory = Memory(256 * 1024, name.encode())
    for turn in range(10 ** 9):
        if stop.is_set(): return
        keys = [f'{name}-{turn}-{n}' for n in range(4)]
        store.batch_put_from(keys, [memory.address] * 4, [256 * 1024] * 4)
        store.batch_get_into(keys, [memory.address] * 4, [256 * 1024] * 4)
        store.batch_remove(keys, True)
"""


def test_client_killed_under_load_leaks_nothing(worker):
    worker.run("master = Master('--client_ttl=2')")
    assert worker.eval("connect(master.address, segment=256 * MIB)") == 0
    worker.run("memory = Memory(MIB, b'live')")
    assert worker.eval("store.batch_put_from(['l1', 'l2'], [memory.address] * 2, [MIB] * 2)") == [0, 0]
    worker.run("segment = store.get_hostname()")
    assert worker.eval("until(lambda: master.used(segment) == 2 * MIB)") is True
    for environment in ("{}", "dict(TIFFIN_SHARED_MEMORY='off')"):
        worker.run(f"others = [Other(master.address, environment={environment}) for _ in range(3)]")
        worker.run(f"load = {LOAD!r}")
        worker.run("[it(f'exec({load!r}, NAMES)') for it in others]")
        worker.run("[it.begin(f'load(\"k{n}\")') for n, it in enumerate(others)]")
        # All of them are in the middle of a call.
        assert worker.eval("until(lambda: master.used(segment) > 2 * MIB)") is True
        worker.run("[it.kill() for it in others]")
        # Committed objects stay; space that was only reserved is freed.
        worker.run("store.remove_by_regex('^k[0-9]-', True)")
        assert worker.eval("until(lambda: master.used(segment) == 2 * MIB, 40)") is True, worker.eval(
            "master.used(segment)"
        )
    assert worker.eval("store.get('l1') == memory[:]") is True


def test_owner_killed_under_load_leaves_the_rest_working(worker):
    worker.run("master = Master('--client_ttl=2')")
    worker.run("doomed, kept = Other(master.address, 64 * MIB), Other(master.address, 64 * MIB)")
    assert worker.eval("connect(master.address, segment=0)") == 0
    worker.run("names = [doomed('store.get_hostname()'), kept('store.get_hostname()')]")
    both = "config(replica_num=2)"
    assert worker.eval(f"[store.put(f'r{{i}}', b'r' * 4096, {both}) for i in range(16)]") == [0] * 16
    worker.run(LOAD)
    worker.run("stop = threading.Event()")
    worker.run("threads = [threading.Thread(target=load, args=(f't{n}', stop)) for n in range(3)]")
    worker.run("[it.start() for it in threads]")
    assert worker.eval("until(lambda: min(master.used(name) for name in names) > 16 * 4096)") is True
    worker.run("doomed.kill()")
    # Every object with a second copy can be read at once, and new ones find space.
    assert worker.eval("[store.get(f'r{i}') == b'r' * 4096 for i in range(16)]") == [True] * 16
    assert worker.eval("until(lambda: store.put('new', b'v') == 0)") is True
    worker.run("stop.set(); [it.join() for it in threads]")
    assert worker.eval("until(lambda: master.segments() == names[1:], 40)") is True
    worker.run("store.remove_by_regex('^t[0-9]-', True); store.remove('new', True)")
    used = "until(lambda: master.used(names[1]) == 16 * 4096, 40) or master.used(names[1])"
    assert worker.eval(used) is True
    assert worker.eval("store.remove_all(True)") == 16


def test_stopped_node_delays_no_call_beyond_its_deadline(worker):
    worker.run("os.environ['MC_RPC_TIMEOUT_MS'] = '2000'")
    worker.run("master = Master('--client_ttl=1')")
    worker.run("a = Other(master.address, 64 * MIB)")
    assert worker.eval("connect(master.address, segment=0)") == 0
    assert worker.eval("store.put('k', b'v')") == 0
    worker.run("a.stop()")
    assert worker.eval("in_time(30, lambda: store.put('n', b'v'))") in (-200, -800, -900, -901)
    assert worker.eval("in_time(30, lambda: store.remove('k', True))") in (-704, -900, -901)
    assert worker.eval("in_time(30, lambda: store.get('k'))") == b""
    worker.run("a.resume()")
    assert worker.eval("until(lambda: store.put('again', b'v') == 0)") is True
    assert worker.eval("store.get('k'), store.is_exist('k')") == (b"", 0)


def test_restarted_master_does_not_deny_objects_of_late_nodes(worker):
    worker.run("os.environ['MC_RPC_TIMEOUT_MS'] = '8000'")
    # The master must not declare the owner lost before the calls are over.
    worker.run("master = Master('--client_ttl=600')")
    worker.run("owner = Other(master.address, 64 * MIB)")
    assert worker.eval("connect(master.address, segment=0)") == 0
    assert worker.eval("store.put('k', b'v')") == 0
    worker.run("owner.stop(); master.kill(); master.start()")
    worker.run("store.close(); memory = Memory(MIB); answers = {}")
    # Each answer takes most of its deadline, so that all are requested at once.
    worker.run(
        """
calls = dict(
    is_exist=lambda: store.is_exist('k'),
    batch_is_exist=lambda: store.batch_is_exist(['k', 'absent']),
    get_size=lambda: store.get_size('k'),
    get_into=lambda: store.get_into('k', memory.address, MIB),
    remove=lambda: store.remove('k', True),
)
def ask(name):
    answers[name] = calls[name]()
"""
    )
    assert worker.eval("connect(master.address, segment=0)") == 0
    worker.run("threads = [threading.Thread(target=ask, args=(name,)) for name in calls]")
    worker.run("[it.start() for it in threads]; [it.join() for it in threads]")
    assert worker.eval("answers") == dict.fromkeys(("is_exist", "get_size", "get_into", "remove"), -703) | {
        "batch_is_exist": [-703, -703]
    }
    worker.run("owner.resume()")
    assert worker.eval("store.is_exist('k'), store.is_exist('absent'), store.get('k')") == (1, 0, b"v")


def test_unregistered_memory_is_refused_if_configured(worker):
    worker.run("os.environ['TIFFIN_REQUIRE_REGISTERED'] = '1'")
    worker.run("master = Master()")
    assert worker.eval("connect(master.address)") == 0
    worker.run("memory = Memory(16384); p = memory.address")
    assert worker.eval("store.put('k', b'v' * 100)") == 0
    assert worker.eval("store.put_from('f', p, 100), store.get_into('k', p, 100)") == (-800, -800)
    assert worker.eval("store.batch_put_from(['f'], [p], [100])") == [-800]
    assert worker.eval("store.batch_get_into(['k'], [p], [100])") == [-800]
    assert worker.eval("store.batch_put_from_multi_buffers(['f'], [[p]], [[100]])") == [-800]
    assert worker.eval("store.batch_get_into_multi_buffers(['k'], [[p]], [[100]])") == [-800]
    assert worker.eval("store.register_buffer(p + 4096, 4096)") == 0
    assert worker.eval("store.put_from('f', p + 4096, 4096), store.get_into('k', p + 5000, 100)") == (0, 100)
    # One byte too far to either side.
    assert worker.eval("store.put_from('g', p + 4095, 4096), store.get_into('k', p + 8093, 100)") == (
        -800,
        -800,
    )
    assert worker.eval("store.unregister_buffer(p + 4096), store.put_from('g', p + 4096, 64)") == (0, -800)
    worker.run(
        "del os.environ['TIFFIN_REQUIRE_REGISTERED']; from mooncake.store import MooncakeDistributedStore"
    )
    worker.run("settings = dict(local_hostname='localhost', metadata_server='', require_registered=True)")
    worker.run("other = MooncakeDistributedStore(); settings['master_server_addr'] = master.address")
    assert worker.eval("other.setup(settings), other.put_from('h', p, 64)") == (0, -800)


def test_counts_above_two_gib_are_right(worker):
    worker.run("master = Master()")
    assert worker.eval("connect(master.address, segment=2304 * MIB)") == 0
    worker.run("memory = Memory(64 * MIB, b'large'); pointers = [[memory.address] * 33]")
    assert worker.eval("store.batch_put_from_multi_buffers(['big'], pointers, [[64 * MIB] * 33])") == [0]
    assert worker.eval("store.batch_get_into_multi_buffers(['big'], pointers, [[64 * MIB] * 33])") == [
        33 * 64 * MIB
    ]
    assert worker.eval("store.get_size('big')") == 33 * 64 * MIB


def test_failed_setup_prints_one_line(worker):
    worker.run("master = Master(); from mooncake.store import MooncakeDistributedStore")
    worker.run("store = MooncakeDistributedStore()")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        taken.listen()
        for arguments, code, told in [
            (("localhost", "P2PHANDSHAKE", 0, 0, "tcp", "", "127.0.0.1:1"), -1, "127.0.0.1:1"),
            (("localhost", "P2PHANDSHAKE", 0, 0, "rdma", "mlx5_0", "m"), -1, "/sys/class/infiniband"),
            (("localhost", "P2PHANDSHAKE", 0, 0, "nvlink", "", "m"), -1, "`nvlink`"),
            (("localhost", "http://127.0.0.1:1/metadata", 0, 0, "tcp", "", "m"), -1, "127.0.0.1:1"),
            (("localhost", "P2PHANDSHAKE", 0, 0, "tcp", "", "etcd://a;b"), -600, "etcd://a;b"),
            ((f"127.0.0.1:{port}", "P2PHANDSHAKE", 16 * MIB, 0, "tcp", "", "m"), -600, str(port)),
            (("localhost", "P2PHANDSHAKE", 1 << 60, 0, "tcp", "", "m"), -600, "memory"),
            (("no.such.host.invalid", "P2PHANDSHAKE", 0, 0, "tcp", "", "m"), -600, "no.such.host.invalid"),
        ]:
            before = len(worker.log.read_text())
            master = "*, " if arguments[-1] == "m" else ""
            call = (
                f"store.setup(*{arguments[:-1]!r}, master.address)"
                if master
                else f"store.setup(*{arguments!r})"
            )
            assert worker.eval(f"in_time(30, lambda: {call})") == code, arguments
            lines = [
                line for line in worker.log.read_text()[before:].splitlines() if "mooncake.store: " in line
            ]
            assert len(lines) == 1 and told in lines[0], lines
            assert worker.eval("store.put('k', b'v'), store.health_check()") == (-600, 1)


def test_silent_peer_causes_a_failed_setup(worker):
    worker.run("from mooncake.store import MooncakeDistributedStore; store = MooncakeDistributedStore()")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        setup = f"store.setup('localhost', 'P2PHANDSHAKE', 0, 0, 'tcp', '', '{address}')"
        assert worker.eval(f"in_time(30, lambda: {setup})") == -1
        setup = f"store.setup('localhost', 'http://{address}/metadata', 0, 0, 'tcp', '', '{address}')"
        assert worker.eval(f"in_time(30, lambda: {setup})") == -1
    assert address in worker.log.read_text()


def test_client_ports_are_in_the_configured_range(worker):
    worker.run("master = Master(); port = free_port()")
    worker.run("os.environ.update(MC_STORE_CLIENT_MIN_PORT=str(port), MC_STORE_CLIENT_MAX_PORT=str(port))")
    assert worker.eval("connect(master.address), store.get_hostname() == f'localhost:{port}'") == (0, True)
    assert worker.eval("listens(port)") is True
    # The only port is taken, and a client without a segment also needs a name.
    worker.run("first = store")
    assert worker.eval("connect(master.address), connect(master.address, segment=0)") == (-1, -1)
    assert worker.eval("first.close(), connect(master.address, segment=0)") == (0, 0)
    worker.run("second = store")
    assert worker.eval("listens(port), connect(master.address, segment=0)") == (False, -1)


def test_objects_go_to_the_preferred_segment(worker):
    worker.run("master = Master()")
    worker.run("others = [Other(master.address, 64 * MIB) for _ in range(3)]")
    worker.run("names = [it('store.get_hostname()') for it in others]")
    assert worker.eval("connect(master.address, segment=0)") == 0
    for wish in ("preferred_segment=names[{}]", "preferred_segments=['nosuch:1', names[{}]]"):
        for index in range(3):
            wanted = f"config({wish.format(index)})"
            assert worker.eval(f"store.put('k', bytes(MIB), {wanted})") == 0
            used = "until(lambda: [master.used(name) // MIB for name in names] == {})"
            expected = [int(index == at) for at in range(3)]
            assert worker.eval(used.format(expected)) is True
            assert worker.eval("store.remove('k', True)") == 0
            assert worker.eval(used.format([0, 0, 0])) is True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_master_ends_cleanly(number, worker):
    worker.run("master = Master()")
    assert worker.eval("connect(master.address)") == 0
    worker.run(f"master.process.send_signal({int(number)})")
    assert worker.eval("master.process.wait(30)") == 0


def test_master_refuses_unknown_flags(worker):
    command = "str(pathlib.Path(sys.executable).with_name('mooncake_master'))"
    run = f"subprocess.run([{command}, '--no_such_flag=1'], capture_output=True, text=True, timeout=60)"
    worker.run(f"done = {run}")
    assert worker.eval("done.returncode != 0 and 'no_such_flag' in done.stderr") is True


def test_master_pages_reflect_the_store(worker):
    worker.run("master = Master()")
    assert worker.eval("connect(master.address), store.put('k', bytes(4096))") == (0, 0)
    assert worker.eval("fetch(master.metrics, '/get_all_keys')") == (200, "k\n")
    assert worker.eval("fetch(master.metrics, '/health')[0]") == 200
    assert worker.eval("fetch(master.metrics, '/query_key?key=k')[0]") == 200
    assert worker.eval("fetch(master.metrics, '/query_key?key=l')[0]") == 404
    assert worker.eval("'master_key_count 1' in fetch(master.metrics, '/metrics')[1]") is True
    assert worker.eval("fetch(master.metadata, '/metadata?key=a')[0]") == 404
    assert worker.eval("fetch(master.metadata, '/metadata?key=a', 'PUT', 'v')[0]") == 200
    assert worker.eval("fetch(master.metadata, '/metadata?key=a')") == (200, "v")


def test_only_ranges_that_do_not_fit_fail(worker):
    worker.run("master = Master()")
    worker.run("from mooncake.store import MooncakeDistributedStore as Store")
    assert worker.eval("Store().get_into_ranges([1], [['k']], [[[0]]], [[[0]]], [[[1]]])") == []
    assert worker.eval("connect(master.address)") == 0
    worker.run("memory = Memory(4096); p = memory.address; store.register_buffer(p, 4096)")
    worker.run("store.put('a', bytes(range(100))); store.put('b', b'b' * 50)")
    read = "store.get_into_ranges([p, p + 2048], [['a', 'b'], ['a']], {}, {}, {})"
    targets, sources = "[[[0, 10], [20]], [[0]]]", "[[[0, 90], [1]], [[5]]]"
    assert worker.eval(read.format(targets, sources, "[[[5, 10], [49]], [[3]]]")) == [[[5, 10], [49]], [[3]]]
    assert worker.eval("memory[:5] == bytes(range(5)) and memory[10:20] == bytes(range(90, 100))") is True
    assert worker.eval("memory[20:69] == b'b' * 49 and memory[2048:2051] == bytes([5, 6, 7])") is True
    assert worker.eval(read.format(targets, sources, "[[[5, 11], [50]], [[4096]]]")) == [
        [[5, -600], [-600]],
        [[-600]],
    ]
    assert worker.eval(read.format(targets, sources, "[[[5], [49]], []]")) == [
        [[-600, -600], [49]],
        [[-600]],
    ]
    assert worker.eval("store.get_into_ranges([p], [['a']], [[[2**64 - 1]]], [[[0]]], [[[1]]])") == [[[-600]]]
    assert worker.eval("store.get_into_ranges([p], [['a']], [[[0]]], [[[2**64 - 1]]], [[[1]]])") == [[[-600]]]


PRODUCER = """
codes, keys = [], [f'{form}-{step}' for step in range(3) for form in ('put', 'from', 'parts', 'batch')]

def begin(address, settings):
    from mooncake.store import MooncakeDistributedStore
    NAMES['store'] = MooncakeDistributedStore()
    return store.setup(dict(local_hostname='localhost', metadata_server='P2PHANDSHAKE', global_segment_size=0,
                            local_buffer_size='32MB', master_server_addr=address) | settings)

def produce():
    memory, pinned = Memory(MIB, b'step'), config(with_hard_pin=True)
    for key in keys:
        match key.split('-')[0]:
            case 'put': codes.append(store.put(key, memory[:], pinned))
            case 'from': codes.append(store.put_from(key, memory.address, MIB, pinned))
            case 'parts': codes.append(store.put_parts(key, memory[:1000], memory[1000:], config=pinned))
            case 'batch': codes.extend(store.batch_put_from([key], [memory.address], [MIB], pinned))

producing = threading.Thread(target=produce)
"""


@pytest.fixture
def producer(worker, start_worker, tmp_path):
    """Start a producer on a store of eight objects, with a consumer."""
    made = []

    def start(environment, settings):
        worker.run("master = Master()")
        assert worker.eval("connect(master.address, segment=8 * MIB)") == 0
        folder = tmp_path / "producer"
        folder.mkdir()
        made.append(start_worker(folder, environment))
        made[0].run(PRODUCER)
        return made[0], made[0].eval(f"begin({worker.eval('master.address')!r}, {settings!r})")

    yield start
    for it in made:
        it.end()


@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        ({"TIFFIN_PUT_WAIT": "60s"}, {}),
        ({}, {"put_wait": "1m"}),
        ({"TIFFIN_PUT_WAIT": "off"}, {"put_wait": 60}),
    ],
)
def test_producer_on_a_full_store_waits_if_configured(worker, producer, environment, settings):
    """The producer is unchanged: the wait of its puts is a setting."""
    made, code = producer(environment, settings)
    assert code == 0
    made.run("producing.start()")
    assert worker.eval("until(lambda: store.is_exist('batch-1') or store.is_exist('put-2'))") == 1
    for key in made.eval("keys"):
        assert worker.eval(f"until(lambda: store.is_exist({key!r}))") == 1, key
        assert worker.eval(f"store.get({key!r}) == (b'step' * MIB)[:MIB]") is True
        assert worker.eval(f"store.remove({key!r})") == 0
    made.run("producing.join()")
    assert made.eval("codes") == [0] * 12


@pytest.mark.parametrize("settings", [{}, {"put_wait": "0.05s"}])
def test_put_on_a_full_store_is_refused(producer, settings):
    """At once, or after its maximum wait."""
    made, code = producer({}, settings)
    assert code == 0
    made.run("produce()")
    assert made.eval("codes") == [0] * 8 + [-200] * 4


def test_invalid_put_wait_is_refused(producer):
    made, code = producer({}, {"put_wait": "soon"})
    assert code == -600 and "put_wait: invalid duration `soon`" in made.tail()


def test_closing_reports_lost_objects(worker):
    worker.run("master = Master()")
    assert worker.eval("connect(master.address)") == 0
    assert worker.eval(
        "store.put('plain', b'123'), store.put('wanted', b'4', config(with_hard_pin=True))"
    ) == (0, 0)
    assert worker.eval("store.close()") == 0
    said = "2 objects (4 B) have their only copy here, among them 1 pinned and 0 unconsumed: `wanted`"
    assert said in worker.tail()
    assert worker.eval("connect(master.address), store.close()") == (0, 0)
    assert worker.tail().count("have their only copy here") == 1


BAD_ADDRESSES = """
import mmap as _mmap
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
PAGE = _mmap.PAGESIZE

def pages(count, protection):
    return _libc.mmap(None, count * PAGE, protection, _mmap.MAP_PRIVATE | _mmap.MAP_ANONYMOUS, -1, 0)

def reserved(count):
    # Like address space that a device driver reserves: mapped, without any access rights.
    return pages(count, 0)

def read_only(count):
    return pages(count, _mmap.PROT_READ)

def unmapped(count):
    start = pages(count, _mmap.PROT_READ | _mmap.PROT_WRITE)
    _libc.munmap(start, count * PAGE)
    return start

def partial(count):
    # Mapped, except its last page.
    start = pages(count, _mmap.PROT_READ | _mmap.PROT_WRITE)
    _libc.munmap(start + (count - 1) * PAGE, PAGE)
    return start

def sources(p, size):
    return [
        store.put_from('bad', p, size),
        *store.batch_put_from(['bad', 'good'], [p, good.address], [size, 64]),
        *store.batch_put_from_multi_buffers(['bad'], [[good.address, p]], [[64, size]]),
    ]

def targets(p, size):
    return [
        store.get_into('k', p, size),
        *store.batch_get_into(['k', 'k'], [p, good.address], [size, 4 * PAGE]),
        *store.batch_get_into_multi_buffers(['k'], [[good.address, p + PAGE]], [[PAGE, 3 * PAGE]]),
    ]
"""


@pytest.fixture
def addresses(worker):
    """A store with an object `k` of four pages, and memory that cannot be accessed."""
    worker.run(BAD_ADDRESSES)
    worker.run("master = Master()")
    assert worker.eval("connect(master.address)") == 0
    worker.run("good = Memory(4 * PAGE, b'good')")
    assert worker.eval("store.put_from('k', good.address, 4 * PAGE)") == 0
    return worker


@pytest.mark.parametrize("kind", ["unmapped", "reserved", "partial", "read_only"])
def test_bad_address_is_refused(kind, addresses):
    worker = addresses
    worker.run(f"p = {kind}(4)")
    # Objects can be put from read-only memory.
    put = [0, 0, 0, 0] if kind == "read_only" else [-600, -600, 0, -600]
    assert worker.eval("sources(p, 4 * PAGE)") == put
    assert worker.eval("targets(p, 4 * PAGE)") == [-600, -600, 4 * PAGE, -600]
    assert worker.eval("store.register_buffer(p, 4 * PAGE)") == (0 if kind == "read_only" else -600)
    if kind == "read_only":
        assert worker.eval("store.get_into('k', p, 4 * PAGE)") == -600, "also where it is registered"
    both = "[[[0, 0]]], [[[0, 0]]], [[[4 * PAGE, 4 * PAGE]]]"
    assert worker.eval(f"store.get_into_ranges([p], [['k']], {both})") == [[[-600, -600]]]
    lines = [line for line in worker.log.read_text().splitlines() if " refused" in line]
    # One line for each call that refused something.
    assert len(lines) == (5 if kind == "read_only" else 8), lines
    assert all("(-600)" in line and "hint: keep the memory allocated" in line for line in lines)
    assert hex(worker.eval("p")) in lines[0]
    # The store still works.
    assert worker.eval("store.get_into('k', good.address, 4 * PAGE), good[:4]") == (4 * PAGE, b"good")


def test_address_outside_the_address_space_is_refused(addresses):
    worker = addresses
    for start, size in [(0, 64), ((1 << 64) - 8, 64), (1 << 63, 64), (4096, (1 << 64) - 4096), (8, 1 << 62)]:
        worker.run(f"p, size = {start}, {size}")
        assert worker.eval("store.put_from('bad', p, size), store.get_into('k', p, size)") == (-600, -600)
        assert worker.eval("store.register_buffer(p, size)") == -600


def test_registered_memory_that_was_unmapped_is_refused(addresses):
    worker = addresses
    worker.run("p = pages(8, _mmap.PROT_READ | _mmap.PROT_WRITE)")
    assert worker.eval("store.register_buffer(p, 8 * PAGE)") == 0
    assert worker.eval("store.put_from('r', p, 4 * PAGE), store.get_into('k', p, 4 * PAGE)") == (0, 4 * PAGE)
    worker.run("_libc.munmap(p + 4 * PAGE, PAGE)")
    assert worker.eval("store.put_from('s', p + 3 * PAGE, 2 * PAGE)") == -600
    assert worker.eval("store.get_into('k', p + PAGE, 4 * PAGE)") == -600
    # The rest of the range is still used, also on both sides of the hole in one call.
    assert worker.eval("store.batch_get_into(['k', 'k'], [p, p + 4 * PAGE], [4 * PAGE] * 2)") == [
        4 * PAGE,
        -600,
    ]
    assert worker.eval("store.batch_put_from(['t', 'u'], [p, p + 5 * PAGE], [4 * PAGE, 3 * PAGE])") == [0, 0]


def test_dropped_handle_stays_intact_until_its_space_is_needed(worker):
    worker.run("master = Master()")
    # Four objects fit into the local buffer at a time.
    assert worker.eval("connect(master.address, buffer=4 * MIB)") == 0
    for number in range(8):
        assert worker.eval(f"store.put('s{number}', bytes([{number + 1}]) * MIB)") == 0
    worker.run(
        """
def address(key):
    # Like TorchSpec: it takes the address, and drops the handle.
    [handle] = store.batch_get_buffer([key])
    return handle.ptr()

def value(p):
    found = set(ctypes.string_at(p, MIB))
    return found.pop() if len(found) == 1 else 'mixed'
"""
    )
    worker.run("tensors = [address(f's{number}') for number in range(4)]")
    assert worker.eval("[value(p) for p in tensors]") == [1, 2, 3, 4]
    # The first of them is the first to be reused, and no other.
    for number in range(4, 8):
        worker.run(f"tensors.append(address('s{number}'))")
        before = [number + 1, *range(number - 2, number + 1)]
        assert worker.eval("[value(tensors[-1]), *map(value, tensors[-4:-1])]") == before
    assert worker.eval("len(set(tensors))") == 4
    # Failed reads, and gets into other memory, take no space of it.
    assert worker.eval("store.get_buffer('missing'), store.get('s0')[:1]") == (None, b"\x01")
    assert worker.eval("[value(p) for p in tensors[-4:]]") == [5, 6, 7, 8]


def test_live_handles_are_never_overwritten(worker):
    worker.run("master = Master()")
    assert worker.eval("connect(master.address, buffer=16 * MIB)") == 0
    assert worker.eval("[store.put(key, key.encode() * (5 * MIB)) for key in 'abcd']") == [0] * 4
    worker.run("handles = store.batch_get_buffer(list('abcd'))")
    # As in the original, three of them fit.
    assert worker.eval("[it and it.size() for it in handles]") == [5 << 20] * 3 + [None]
    assert "has no 5242880 bytes of contiguous space beside live BufferHandles" in worker.log.read_text()
    assert worker.eval("store.get_buffer('d'), store.get('d') == b'd' * (5 * MIB)") == (None, True)
    assert worker.eval("[set(bytes(it)) for it in handles[:3]]") == [{97}, {98}, {99}]
    # A view keeps the memory as its handle does.
    worker.run("view = memoryview(handles[1]); p = handles[1].ptr(); del handles[1]")
    assert worker.eval("store.get_buffer('d')") is None
    worker.run("del view; other = store.get_buffer('d')")
    assert worker.eval("other.ptr() == p, set(bytes(other))") == (True, {100})
    # The local buffer counts as registered memory.
    assert worker.eval("store.get_into_ranges([p], [['a']], [[[0]]], [[[0]]], [[[8]]])") == [[[8]]]
    assert worker.eval("bytes(other)[:9]") == b"aaaaaaaad"
    assert worker.eval("store.close(), set(bytes(handles[0])), bytes(other)[:9]") == (0, {97}, b"aaaaaaaad")


def test_forked_child_has_a_local_buffer_of_its_own(worker):
    worker.run("master = Master()")
    assert worker.eval("connect(master.address, buffer=2 * MIB)") == 0
    assert worker.eval("[store.put(key, key.encode() * MIB) for key in 'abc']") == [0] * 3
    worker.run("kept, dropped = store.get_buffer('a'), store.get_buffer('b').ptr()")
    worker.run(
        """
read_end, write_end = os.pipe()
pid = os.fork()
if pid == 0:
    own = store.batch_get_buffer(['c', 'c', 'c'])
    seen = bytes(kept)[:1] + ctypes.string_at(dropped, 1) + bytes(own[0])[:1] + bytes([own[2] is None])
    del own
    os.write(write_end, seen)
    os._exit(0)
os.close(write_end)
seen = os.read(read_end, 100)
os.waitpid(pid, 0)
"""
    )
    assert worker.eval("seen") == b"abc\x01"
    assert worker.eval("bytes(kept)[:1], ctypes.string_at(dropped, 1)") == (b"a", b"b")


def test_gets_use_the_other_copy_while_an_owner_hangs(worker):
    worker.run("os.environ['TIFFIN_SHARED_MEMORY'] = 'off'; os.environ['MC_RPC_TIMEOUT_MS'] = '10000'")
    worker.run("master = Master()")
    worker.run("owners = [Other(master.address, 64 * MIB) for _ in range(2)]")
    assert worker.eval("connect(master.address, segment=0)") == 0
    worker.run("names = [f'k{at}' for at in range(8)]; two = config(replica_num=2)")
    assert worker.eval("count(store.put(name, name.encode() * MIB, two) for name in names)") == {0: 8}
    worker.run("memory = Memory(2 * MIB)")
    for owner in range(2):
        worker.run(f"owners[{owner}].stop()")
        for name in ("k0", "k5"):
            # A get that waits for the hanging owner would miss its deadline.
            right = f"lambda _: store.get({name!r}) == {name.encode()!r} * MIB"
            assert worker.eval(f"list(map({right}, range(20))).count(True)") == 20
            read = f"lambda _: store.get_into({name!r}, memory.address, 2 * MIB)"
            assert worker.eval(f"count(map({read}, range(20)))") == {2 * MIB: 20}
        sizes = "[it and it.size() for it in store.batch_get_buffer(names)]"
        assert worker.eval(sizes) == [2 * MIB] * 8
        worker.run(f"owners[{owner}].resume()")
