"""A process that uses `mooncake.store` by the test's commands, line by line.

It reads JSON from standard input, one request a line: `{"run": code}` runs a statement, `{"eval": code}`
answers with what an expression comes to. It imports nothing but the standard library and what it is told to
try, so that it runs under any interpreter that has a `mooncake.store`. All that it starts dies with it.
"""

import collections
import contextlib
import ctypes
import http.client
import json
import mmap
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading

MIB = 1 << 20
START_SECONDS_MAX = 30
#: For answers that come at once from a machine that is not busy.
ANSWER_SECONDS_MAX = 100
PAUSE_SECONDS = 0.01
TRIES_MAX = 5


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def until(condition, seconds=START_SECONDS_MAX):
    """The value of the condition as soon as it is true, or after so many pauses. A busy machine, which is
    slower to make it true, makes the pauses longer too."""
    pause = threading.Event()
    for _ in range(int(seconds / PAUSE_SECONDS)):
        if found := condition():
            return found
        pause.wait(PAUSE_SECONDS)
    return condition()


def listens(port, host="127.0.0.1"):
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def fetch(port, path, method="GET", body=None):
    """The status and text of a page of the master."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS_MAX)
    with contextlib.closing(connection):
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


class Memory:
    """Bytes at a fixed address, for the zero-copy calls."""

    def __init__(self, size, fill=None):
        self.map = mmap.mmap(-1, size)
        self.size = size
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        if fill is not None:
            self.map[:] = (fill * (size // len(fill) + 1))[:size]

    def __getitem__(self, part):
        return self.map[part]

    def __setitem__(self, part, value):
        self.map[part] = value


class Master:
    """A `mooncake_master` of the same environment, on free ports of loopback."""

    def __init__(self, *flags, host="127.0.0.1", environment=()):
        self.host, self.flags = host, flags
        self.environment = {"TIFFIN_MASTER_STATE_DIR": tempfile.mkdtemp()} | dict(environment)
        # Another process may take a free port before the master binds it.
        for _ in range(TRIES_MAX):
            self.port, self.metrics, self.metadata = free_port(), free_port(), free_port()
            with contextlib.suppress(RuntimeError):
                return self.start()
        raise RuntimeError("no master could be started")

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    @property
    def metadata_url(self):
        return f"http://127.0.0.1:{self.metadata}/metadata"

    def start(self):
        command = [
            str(pathlib.Path(sys.executable).with_name("mooncake_master")),
            f"--rpc_port={self.port}",
            f"--rpc_address={self.host}",
            f"--metrics_port={self.metrics}",
            "--metrics_host=127.0.0.1",
            "--enable_http_metadata_server=true",
            f"--http_metadata_server_port={self.metadata}",
            "--http_metadata_server_host=127.0.0.1",
            *self.flags,
        ]
        environment = dict(os.environ, GLOG_logtostderr="1", GLOG_minloglevel="2") | self.environment
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=environment, preexec_fn=die_with_parent
        )
        if not until(lambda: listens(self.port) or self.process.poll() is not None):
            raise RuntimeError(f"the master does not listen on port {self.port}")
        if self.process.poll() is not None:
            raise RuntimeError(f"the master ended with {self.process.returncode}")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """End it with a signal, and return its status."""
        self.process.terminate()
        return self.process.wait(ANSWER_SECONDS_MAX)

    def segments(self):
        return fetch(self.metrics, "/get_all_segments")[1].split()

    def used(self, segment):
        """The bytes in use on a segment, according to the master."""
        lines = fetch(self.metrics, f"/query_segment?segment={segment}")[1].splitlines()
        return next((int(line.split(":")[1]) for line in lines if line.startswith("Used(bytes)")), None)


class Other:
    """Another process that runs commands: a second client."""

    def __init__(
        self,
        master,
        segment=0,
        buffer=32 * MIB,
        hostname="localhost",
        environment=(),
        metadata="P2PHANDSHAKE",
    ):
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ) | dict(environment),
            preexec_fn=die_with_parent,
        )
        self("connect", address=master, segment=segment, buffer=buffer, hostname=hostname, metadata=metadata)

    def __call__(self, code, **arguments):
        self.begin(code, **arguments)
        return self.finish()

    def begin(self, code, **arguments):
        request = {"eval": code} if not arguments else {"eval": f"{code}(**{arguments!r})"}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def finish(self):
        answer = json.loads(self.process.stdout.readline() or '{"raises": "the other process is gone"}')
        if "raises" in answer:
            raise RuntimeError(answer["raises"])
        return eval(answer["value"])

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)
        # A busy process continues for a moment.
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)


NAMES = globals()


def connect(address, segment=64 * MIB, buffer=32 * MIB, hostname="localhost", metadata="P2PHANDSHAKE"):
    """Set up `store`, and answer with the code."""
    from mooncake.store import MooncakeDistributedStore

    NAMES["store"] = MooncakeDistributedStore()
    return NAMES["store"].setup(hostname, metadata, segment, buffer, "tcp", "", address)


def config(**fields):
    from mooncake.store import ReplicateConfig

    made = ReplicateConfig()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def count(codes):
    return dict(collections.Counter(codes))


def in_time(seconds, call):
    """The result of a call, if it ends in time. A thread counts pauses meanwhile, because a busy machine
    delays both, and a clock would count that."""
    ended, pauses = threading.Event(), []

    def count_pauses():
        while not ended.wait(PAUSE_SECONDS):
            pauses.append(None)

    counter = threading.Thread(target=count_pauses, daemon=True)
    counter.start()
    try:
        answer = call()
    finally:
        ended.set()
        counter.join()
    is_in_time = len(pauses) * PAUSE_SECONDS < seconds
    return answer if is_in_time else f"{answer} only after {seconds} s"


def answer_to(request):
    try:
        if "run" in request:
            exec(request["run"], NAMES)
            return {}
        return {"value": repr(eval(request["eval"], NAMES))}
    except Exception as error:
        return {"raises": type(error).__name__, "text": str(error)[:2000]}


def serve():
    # Output of the library must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(answer_to(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    serve()
