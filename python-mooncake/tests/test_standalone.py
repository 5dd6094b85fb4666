"""The standalone mode: several programs that use one node daemon, like SGLang's."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest

SECONDS_MAX = 60


class Daemon:
    """A `mooncake_client` on a free port of loopback."""

    def __init__(self, master, *flags, port=0, environment=()):
        command = [os.path.join(os.path.dirname(sys.executable), "mooncake_client"), "--host=127.0.0.1"]
        command += [f"--port={port}", f"-master_server_address={master}", "--metadata_server", "P2PHANDSHAKE"]
        self.process = subprocess.Popen(
            [*command, "--global_segment_size=64 MB", *flags],
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ) | dict(environment),
        )
        guard = threading.Timer(SECONDS_MAX, self.process.kill)
        guard.start()
        try:
            lines = iter(self.process.stderr.readline, "")
            found = next(filter(None, (re.search(r"listens on ports (.*)", line) for line in lines)))
        finally:
            guard.cancel()
        self.ports = [int(port) for port in found[1].split()]
        self.address = f"127.0.0.1:{self.ports[0]}"

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        self.process.wait(SECONDS_MAX)
        self.process.stderr.close()
        return self.process.returncode


@pytest.fixture
def start_daemon():
    made = []

    def start(*arguments, **named):
        made.append(Daemon(*arguments, **named))
        return made[-1]

    yield start
    for daemon in made:
        if daemon.process.poll() is None:
            daemon.end(signal.SIGKILL)


def test_invalid_setting_ends_the_daemon_at_once(worker):
    """It does not wait for a master, which would not help."""
    worker.run("master = Master()")
    address = worker.eval("master.address")
    program = os.path.join(os.path.dirname(sys.executable), "mooncake_client")
    flags = [
        "--host=127.0.0.1",
        "--port=0",
        f"--master_server_address={address}",
        "--global_segment_size=lots",
    ]
    done = subprocess.run([program, *flags], capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 1
    assert done.stderr.count("invalid size `lots`") == 1, done.stderr


DUMMY = """
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
store = MooncakeDistributedStore()
"""


def test_programs_share_one_daemon(start_ours, start_daemon):
    first, second = start_ours(), start_ours()
    first.run("master = Master()")
    daemon = start_daemon(first.eval("master.address"))
    assert len(first.eval("master.segments()")) == 1
    for worker in (first, second):
        worker.run(DUMMY)
        assert worker.eval(f"store.setup_dummy(64 * MIB, 16 * MIB, '{daemon.address}')") == 0
        assert worker.eval("(store.get_hostname(), store.health_check())") == ("", 0)
    assert first.eval("store.put('k', b'value', ReplicateConfig())") == 0
    assert second.eval("(store.is_exist('k'), store.get('k'), store.get_size('k'))") == (1, b"value", 5)

    # SGLang's calls: a pool of host memory, pages of it put and read in batches.
    first.run("pool = Memory(4 * MIB, b'0123456789abcdef'); page = MIB // 4")
    second.run("pool = Memory(4 * MIB); page = MIB // 4")
    for worker in (first, second):
        assert worker.eval("store.register_buffer(pool.address, pool.size)") == 0
        worker.run("keys = [f'page{n}' for n in range(16)]; sizes = [page] * 16")
        worker.run("places = [pool.address + n * page for n in range(16)]")
    assert first.eval("store.batch_is_exist(keys)") == [0] * 16
    assert first.eval("store.batch_put_from(keys, places, sizes)") == [0] * 16
    assert second.eval("store.batch_get_into(keys, places, sizes)") == [1 << 18] * 16
    assert second.eval("pool[:32]") == b"0123456789abcdef" * 2
    assert second.eval("store._traffic()['tcp']") == (0, 0)

    # A program that ends does not disturb the others: nothing was in its own process.
    assert first.eval("(store.close(), store.health_check())") == (0, 1)
    assert second.eval("(store.get('k'), store.remove('k'), store.remove_all())") == (b"value", 0, 16)
    assert daemon.end() == 0
    assert first.eval("master.segments()") == []


def test_program_continues_after_a_restart_of_its_daemon(worker, start_daemon):
    worker.run("master = Master('--client_ttl=1')")
    worker.run(DUMMY)
    address = worker.eval("master.address")
    daemon = start_daemon(address)
    assert worker.eval(f"store.setup_dummy(0, 16 * MIB, '{daemon.address}')") == 0
    assert worker.eval("store.put('k', b'v')") == 0
    daemon.end(signal.SIGKILL)
    assert worker.eval("store.health_check()") == 2
    assert worker.eval("store.get('k')") == b""
    assert worker.eval("store.put('n', b'v') < 0")
    start_daemon(address, port=daemon.ports[0])
    assert worker.eval("store.health_check()") == 0
    assert worker.eval("until(lambda: store.put('m', b'w') == 0) and store.get('m')") == b"w"


def test_program_can_be_set_up_again(worker, start_daemon):
    worker.run("master = Master()")
    worker.run(DUMMY)
    daemon = start_daemon(worker.eval("master.address"))
    for _ in range(2):
        assert worker.eval(f"store.setup_dummy(0, 0, '{daemon.address}')") == 0
    # Without a local buffer there is no space for values, and everything else works.
    assert worker.eval("(store.put('k', b'v'), store.get('k'), store.is_exist('k'))") == (-600, b"", 0)
    assert worker.eval("store.setup_dummy(0, 16 * MIB, f'localhost:{free_port()}')") == -1
    assert worker.eval("(store.put('k', b'v'), store.health_check())") == (-600, 1)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("closed", "no mooncake_client answers"),
        ("no port", "no mooncake_client answers"),
        ("master", "is not a mooncake_client"),
    ],
)
def test_setup_dummy_reports_its_failure(worker, what, expected):
    worker.run("master = Master()")
    worker.run(DUMMY)
    address = {
        "closed": "f'127.0.0.1:{free_port()}'",
        "no port": "'localhost'",
        "master": "f'127.0.0.1:{master.metrics}'",
    }[what]
    assert worker.eval(f"store.setup_dummy(0, 16 * MIB, {address})") == -1
    said = [line for line in worker.tail().splitlines() if "setup_dummy failed (-1)" in line]
    assert len(said) == 1 and expected in said[0], worker.tail()


def test_daemon_serves_pages(worker, start_daemon):
    worker.run("master = Master()")
    daemon = start_daemon(worker.eval("master.address"), "--enable_http_server", "--http_port=0")
    page = lambda path: worker.eval(f"fetch({daemon.ports[1]}, '{path}')")
    assert page("/health") == (200, '{"status":"healthy","code":0}')
    assert "mooncake_transfer_read_bytes 0\n" in page("/metrics")[1]
    assert page("/metrics/summary")[1].startswith("Client Metrics Summary")
    assert page("/standalone") == (404, "404 Not Found")


def test_the_daemon_needs_the_port_of_its_pages(worker):
    worker.run("master = Master()")
    flags = ["--host=127.0.0.1", "--port=0", "--metadata_server=P2PHANDSHAKE", "--global_segment_size=16 MB"]
    flags.append(f"--master_server_address={worker.eval('master.address')}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run_client(*flags, "--enable_http_server", f"--http_port={taken.getsockname()[1]}")
    assert done.returncode == 1 and "the pages of this client are not served" in done.stderr, done.stderr


@pytest.mark.parametrize("protocol", ["rdma", "cxl", "nonsense"])
def test_a_protocol_that_is_not_here_ends_the_daemon_at_once(protocol):
    """No master is there, so a daemon that tried to set up would wait for one."""
    done = run_client("--host=127.0.0.1", "--port=0", f"--protocol={protocol}")
    assert done.returncode == 1 and "hint: " in done.stderr
    assert done.stderr.count(f"protocol `{protocol}`") == 1, done.stderr


def test_a_program_takes_memory_from_its_pool(worker, start_daemon):
    worker.run("master = Master()")
    worker.run(DUMMY)
    assert worker.eval("store.alloc_from_mem_pool(4096)") == 0
    daemon = start_daemon(worker.eval("master.address"))
    assert worker.eval(f"store.setup_dummy(4096, 16 * MIB, '{daemon.address}')") == 0
    # The size of the pool is no limit.
    worker.run("address = store.alloc_from_mem_pool(MIB)")
    worker.run("import ctypes; memory = (ctypes.c_char * MIB).from_address(address)")
    worker.run("memory[:4] = b'abcd'")
    assert worker.eval("(store.register_buffer(address, MIB), store.put_from('k', address, 4))") == (0, 0)
    assert worker.eval("(store.get('k'), store.get_into('k', address + 8, 4), memory[8:12])") == (
        b"abcd",
        4,
        b"abcd",
    )
    assert worker.eval("(store.alloc_from_mem_pool(0), store.alloc_from_mem_pool(1 << 62))") == (0, 0)
    assert "alloc_from_mem_pool failed" in worker.tail()


def test_token_protects_the_daemon(start_ours, start_daemon):
    token = {"TIFFIN_TOKEN": "secret"}
    with_token, without = start_ours(token), start_ours()
    with_token.run("master = Master()")
    daemon = start_daemon(with_token.eval("master.address"), environment=token)
    for worker, code in ((with_token, 0), (without, -1)):
        worker.run(DUMMY)
        assert worker.eval(f"store.setup_dummy(0, 16 * MIB, '{daemon.address}')") == code
    assert "it requires another TIFFIN_TOKEN" in without.tail()


def run_client(*flags):
    command = os.path.join(os.path.dirname(sys.executable), "mooncake_client")
    return subprocess.run([command, *flags], capture_output=True, text=True, timeout=SECONDS_MAX)


def test_daemon_has_mooncakes_flags():
    helped = run_client("--help")
    assert helped.returncode == 0 and "--global_segment_size" in helped.stdout
    for flag, expected in (
        ("--nosuch", "ERROR: unknown command line flag 'nosuch'"),
        ("--port=x", "ERROR: illegal value 'x' specified for int32 flag 'port'"),
        ("--rpc_port=1", "ERROR: unknown command line flag 'rpc_port'"),
    ):
        done = run_client(flag)
        assert done.returncode == 1 and done.stderr.startswith(expected), done.stderr


def test_port_in_use_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run_client("--host=127.0.0.1", f"--port={taken.getsockname()[1]}")
    assert done.returncode == 1 and "cannot listen" in done.stderr and "hint: " in done.stderr
