"""The processes of the two sides and of the floor, started and ended here by their ids.

**Invariant:** none outlives the process that started it, even if that one is killed.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import threading
import time

from worker import SEGMENT_BYTES, STAGING_BYTES

SETUP_SECONDS_MAX = 30
# A store is idle when all of it uses less than this fraction of a core; the wait for that has a limit.
REST_SHARE, REST_SECONDS_MAX = 0.1, 120
CLOSE_SECONDS_MAX = 10
SLICE_SECONDS_MAX = 60
HERE = pathlib.Path(__file__).resolve().parent


class Failure(Exception):
    """An error, and the log file that may contain the reason."""

    def __init__(self, what, log=None):
        super().__init__(what)
        self.log = log


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Process:
    """A child. Its lines of JSON are answers; other output goes to its log."""

    def __init__(self, name, command, folder, environment=None, close_max=CLOSE_SECONDS_MAX):
        self.name, self.close_max = name, close_max
        self.log = os.path.join(folder, f"{name.replace(' ', '-').replace(',', '')}.log")
        try:
            with open(self.log, "ab") as log:
                self.child = subprocess.Popen(
                    [str(word) for word in command],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    cwd=folder,
                    env=dict(os.environ, TMPDIR=folder, **(environment or {})),
                    preexec_fn=die_with_parent,
                )
        except OSError as error:
            raise Failure(f"cannot start {name}: {error}") from None
        self.lines = queue.SimpleQueue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.child.stdout:
            # The official client also prints to standard output.
            if line.startswith("{"):
                self.lines.put(line)
        self.lines.put(None)

    def answer(self, seconds=SLICE_SECONDS_MAX):
        try:
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            raise Failure(f"{self.name} did not answer in {seconds} s", self.log) from None
        if line is None:
            raise Failure(f"{self.name} ended unexpectedly", self.log)
        return json.loads(line)

    def tell(self, do, case=None, number=0):
        command = {"do": do, "case": case.name if case else None, "slice": number}
        with contextlib.suppress(OSError):
            self.child.stdin.write(json.dumps(command) + "\n")
            self.child.stdin.flush()

    def ask(self, do, case=None, number=0):
        self.tell(do, case, number)
        return self.answer()

    def cpu_seconds(self):
        """The processor time of all its threads so far."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = pathlib.Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def end(self):
        """Ask the process to end, then kill it. A worker ends at the end of its input."""
        for ask in (self.child.stdin.close, self.child.terminate, self.child.kill):
            if self.child.poll() is not None:
                break
            with contextlib.suppress(OSError):
                ask()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(self.close_max)
        self.child.wait()
        self.child.stdout.close()


class Store:
    """One side in one shape: its master, the process with the memory, and a measured client."""

    def __init__(self, side, shape, python, folder):
        self.side, self.shape, self.folder = side, shape, folder
        # The link itself is the environment; resolving it would leave the environment.
        self.python = pathlib.Path(python).absolute()
        self.servers, self.workers = [], []
        self.own_cpu = self.own_seconds = self.all_cpu = self.all_seconds = 0.0
        self.began = None

    @property
    def name(self):
        return f"{self.side}, {self.shape}"

    def start(self, segment=SEGMENT_BYTES):
        self.segment = segment
        port, metrics = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        flags = [f"--rpc_port={port}", "--rpc_address=127.0.0.1", f"--metrics_port={metrics}"]
        flags += ["--metrics_host=127.0.0.1", "--default_kv_lease_ttl=5000"]
        self.serve("master", [self.python.with_name("mooncake_master"), *flags])
        self.wait_for(port, "master")
        if self.shape == "daemon":
            (port,) = free_ports(1)
            flags = ["--host=127.0.0.1", f"--port={port}", f"--master_server_address={self.address}"]
            flags += ["--metadata_server=P2PHANDSHAKE", "--protocol=tcp"]
            flags += [f"--global_segment_size={segment}", f"--local_buffer_size={STAGING_BYTES}"]
            self.serve("daemon", [self.python.with_name("mooncake_client"), *flags])
            self.wait_for(port, "daemon")
            self.address = f"127.0.0.1:{port}"
        elif self.shape != "same process":
            self.servers.append(self.worker("owner"))

    def open(self):
        """Start a new, warm client, and another one that puts objects which the first has never read."""
        self.workers = [self.worker("client"), self.worker("other")]
        self.workers[0].ask("warm")
        self.began = (time.monotonic(), self.cpu_seconds())

    def measure(self, case, number):
        """One slice: the microseconds of each call, by measure."""
        client, other = self.workers
        began, cpu = time.monotonic(), self.cpu_seconds()
        if case.items < 128:
            other.ask("offer", case, number)
        times = client.ask("run", case, number)
        self.own_cpu += self.cpu_seconds() - cpu
        self.own_seconds += time.monotonic() - began
        return times

    def close(self):
        if self.began:
            self.all_seconds += time.monotonic() - self.began[0]
            self.all_cpu += self.cpu_seconds() - self.began[1]
            self.began = None
        # The process that holds memory, if any, ends last.
        for worker in reversed(self.workers):
            worker.end()
        self.workers.clear()

    def stop(self):
        self.close()
        for server in reversed(self.servers):
            server.end()
        self.servers.clear()

    def idle_share(self):
        """The fraction of one core that all of its processes used together while others were measured."""
        return (self.all_cpu - self.own_cpu) / max(self.all_seconds - self.own_seconds, 1e-9)

    def cpu_seconds(self):
        return sum(process.cpu_seconds() for process in self.servers + self.workers)

    def rest(self, *others):
        """Wait until its processes, and those of the others, have finished their background work."""
        cpu_seconds = lambda: self.cpu_seconds() + sum(other.cpu_seconds() for other in others)
        until, before = time.monotonic() + REST_SECONDS_MAX, cpu_seconds()
        while time.monotonic() < until:
            time.sleep(1)
            if (now := cpu_seconds()) - before < REST_SHARE:
                return
            before = now

    def serve(self, role, command):
        environment = {"GLOG_logtostderr": "1", "GLOG_minloglevel": "1"}
        # The official servers end slowly, and hold nothing that is needed.
        self.servers.append(Process(f"{self.name}, {role}", command, self.folder, environment, close_max=2))

    def master_bytes(self):
        """The memory of the master."""
        fields = pathlib.Path(f"/proc/{self.servers[0].child.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def worker(self, role, index=0):
        command = [self.python, HERE / "worker.py", "--shape", self.shape, "--role", role]
        command += ["--index", str(index), "--segment", str(self.segment)]
        environment = {"GLOG_logtostderr": "1", "GLOG_minloglevel": "1"}
        if self.shape == "tcp":
            environment["TIFFIN_SHARED_MEMORY"] = "off"
        process = Process(
            f"{self.name}, {role}", [*command, "--address", self.address], self.folder, environment
        )
        process.answer(SETUP_SECONDS_MAX)
        return process

    def wait_for(self, port, role):
        until = time.monotonic() + SETUP_SECONDS_MAX
        server = self.servers[-1]
        while time.monotonic() < until and server.child.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            time.sleep(0.02)
        raise Failure(f"the {role} of {self.name} did not listen", server.log)


class Machine:
    """The floor, with the interface of a store."""

    side = "floor"

    def __init__(self, shape, folder):
        self.shape, self.folder = shape, folder
        self.process = None

    def start(self):
        pass

    def open(self):
        command = [sys.executable, HERE / "floor.py", "--shape", self.shape]
        self.process = Process(f"floor, {self.shape}", command, self.folder)
        self.process.answer(SETUP_SECONDS_MAX)

    def measure(self, case, number):
        return self.process.ask("run", case, number)

    def close(self):
        if self.process:
            self.process.end()
            self.process = None

    stop = close


def free_ports(count):
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
