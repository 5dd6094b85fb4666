"""How the drop-in behaves where the original crashes, leaks, hangs or says nothing.

Everything happens in processes of its own, on free ports of loopback; `worker.py` has the names they know.
"""

import signal
import socket
import subprocess
import sys

import pytest

MIB = 1 << 20


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


def test_two_hosts_talk_through_tcp(worker):
    """Two addresses of 127/8, with shared memory switched off: as good as two hosts."""
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
    }


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


def test_a_store_is_set_up_and_closed_while_others_use_it(worker):
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


def test_a_forked_child_reconnects_and_its_parent_keeps_serving(worker):
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
    # A child that ends as a program does leaves its parent's segment alone, too.
    assert worker.eval("forked(lambda: __import__('atexit')._run_exitfuncs() is None)") == 0
    assert worker.eval("store.get('parent')") == b"p"
    # And many at once, as the workers of a data loader.
    assert worker.eval("[forked(lambda: store.get('parent') == b'p') for _ in range(8)]") == [0] * 8
    assert worker.eval("master.segments() == [store.get_hostname()]") is True


@pytest.mark.parametrize(
    "end",
    ["sys.exit(0)", "del store; gc.collect(); input()", "store = None; input()"],
    ids=["at exit", "deleted", "replaced"],
)
def test_a_store_that_nobody_closes_leaves_the_cluster(end, worker):
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


def test_a_client_killed_under_load_leaks_nothing(worker):
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
        # All of them are in the middle of something.
        assert worker.eval("until(lambda: master.used(segment) > 2 * MIB)") is True
        worker.run("[it.kill() for it in others]")
        # What they committed is theirs no more; what they had only reserved is nobody's.
        worker.run("store.remove_by_regex('^k[0-9]-', True)")
        assert worker.eval("until(lambda: master.used(segment) == 2 * MIB, 40)") is True, worker.eval(
            "master.used(segment)"
        )
    assert worker.eval("store.get('l1') == memory[:]") is True


def test_an_owner_killed_under_load_leaves_the_rest_working(worker):
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
    # Every object with a second copy can be read at once, and new ones find room.
    assert worker.eval("[store.get(f'r{i}') == b'r' * 4096 for i in range(16)]") == [True] * 16
    assert worker.eval("until(lambda: store.put('new', b'v') == 0)") is True
    worker.run("stop.set(); [it.join() for it in threads]")
    assert worker.eval("until(lambda: master.segments() == names[1:], 40)") is True
    worker.run("store.remove_by_regex('^t[0-9]-', True); store.remove('new', True)")
    used = "until(lambda: master.used(names[1]) == 16 * 4096, 40) or master.used(names[1])"
    assert worker.eval(used) is True
    assert worker.eval("store.remove_all(True)") == 16


def test_a_stopped_owner_stops_nobody_for_longer_than_the_deadline(worker):
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


def test_memory_that_was_not_registered_is_refused_if_asked_for(worker):
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


def test_a_failed_setup_says_in_one_line_what_and_why(worker):
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


def test_a_peer_that_accepts_and_never_answers_is_given_up_on(worker):
    worker.run("from mooncake.store import MooncakeDistributedStore; store = MooncakeDistributedStore()")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        setup = f"store.setup('localhost', 'P2PHANDSHAKE', 0, 0, 'tcp', '', '{address}')"
        assert worker.eval(f"in_time(30, lambda: {setup})") == -1
        setup = f"store.setup('localhost', 'http://{address}/metadata', 0, 0, 'tcp', '', '{address}')"
        assert worker.eval(f"in_time(30, lambda: {setup})") == -1
    assert address in worker.log.read_text()


def test_the_ports_of_clients_come_from_the_range_that_is_set(worker):
    worker.run("master = Master(); port = free_port()")
    worker.run("os.environ.update(MC_STORE_CLIENT_MIN_PORT=str(port), MC_STORE_CLIENT_MAX_PORT=str(port))")
    assert worker.eval("connect(master.address), store.get_hostname() == f'localhost:{port}'") == (0, True)
    assert worker.eval("listens(port)") is True
    # The only port is taken, and a client without a segment wants a name of its own as well.
    worker.run("first = store")
    assert worker.eval("connect(master.address), connect(master.address, segment=0)") == (-1, -1)
    assert worker.eval("first.close(), connect(master.address, segment=0)") == (0, 0)
    worker.run("second = store")
    assert worker.eval("listens(port), connect(master.address, segment=0)") == (False, -1)


def test_a_preferred_segment_is_where_objects_go(worker):
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
def test_the_master_ends_cleanly(number, worker):
    worker.run("master = Master()")
    assert worker.eval("connect(master.address)") == 0
    worker.run(f"master.process.send_signal({int(number)})")
    assert worker.eval("master.process.wait(30)") == 0


def test_the_master_refuses_flags_that_nobody_has(worker):
    command = "str(pathlib.Path(sys.executable).with_name('mooncake_master'))"
    run = f"subprocess.run([{command}, '--no_such_flag=1'], capture_output=True, text=True, timeout=60)"
    worker.run(f"done = {run}")
    assert worker.eval("done.returncode != 0 and 'no_such_flag' in done.stderr") is True


def test_the_pages_of_the_master_speak_of_what_the_store_does(worker):
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


def test_ranges_that_do_not_fit_fail_where_they_do_not(worker):
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
    assert worker.eval(read.format(targets, sources, "[[[5], [49]], []]")) == [[[-600], [49]], [[-600]]]
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
    """Starts a producer on a store of eight objects, where a consumer listens."""
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
def test_a_producer_on_a_full_store_waits_if_it_may(worker, producer, environment, settings):
    """It is not changed for that: the time that its puts have is a setting."""
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
def test_a_put_on_a_full_store_is_refused(producer, settings):
    """At once, or when its time to wait is over."""
    made, code = producer({}, settings)
    assert code == 0
    made.run("produce()")
    assert made.eval("codes") == [0] * 8 + [-200] * 4


def test_a_time_to_wait_that_is_none(producer):
    made, code = producer({}, {"put_wait": "soon"})
    assert code == -600 and "`put_wait` is `soon`" in made.tail()


def test_closing_says_what_is_lost(worker):
    worker.run("master = Master()")
    assert worker.eval("connect(master.address)") == 0
    assert worker.eval(
        "store.put('plain', b'123'), store.put('wanted', b'4', config(with_hard_pin=True))"
    ) == (0, 0)
    assert worker.eval("store.close()") == 0
    said = "2 objects (4 bytes) have their only copy here, among them 1 pinned and 0 unconsumed: `wanted`"
    assert said in worker.tail()
    assert worker.eval("connect(master.address), store.close()") == (0, 0)
    assert worker.tail().count("have their only copy here") == 1
