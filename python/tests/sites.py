"""Everything of ours that listens, in processes, behind the tokens of one access file."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading

import tiffin

import helpers
import wire

TOKENS = {
    "node": ["--right", "node"],
    "all": ["--right", "read", "--right", "write"],
    "admin": ["--right", "admin"],
    "reader": ["--right", "read"],
    "writer": ["--right", "write"],
    "a": ["--right", "read", "--right", "write", "--namespace", "team-a"],
    "b": ["--right", "read", "--right", "write", "--namespace", "team-b*"],
    "leaver": ["--right", "read", "--right", "write"],
    "revoked": ["--right", "read", "--right", "write"],
    "expired": ["--right", "read", "--right", "write", "--expires", "1ms"],
}
BIN = pathlib.Path(sys.executable).parent
EMBEDDED = """
import sys, tiffin
with tiffin.connect(memory="64MiB", ssd=sys.argv[1]) as store:
    store.put("k", b"v")
    print("ready", store.address, flush=True)
    sys.stdin.read()
"""


def program(name, *arguments):
    return [str(BIN / name), *arguments]


def tiffin_command(*arguments):
    return [sys.executable, "-m", "tiffin", *arguments]


class Process:
    """A server, with all that it has said."""

    def __init__(self, site, name, command, ready, **environment):
        self.name, self.command = name, command
        self.log = site.folder / f"{name}.log"
        clean = {key: it for key, it in os.environ.items() if not key.startswith(("TIFFIN_", "MC_", "MOON"))}
        state = {"XDG_STATE_HOME": str(site.folder / f"state of {name}"), "TIFFIN_NODE_POOL": "off"}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=clean | state | environment,
                umask=0o022,
            )
        self.found = None

        def is_ready():
            assert self.process.poll() is None, f"{name} ended:\n{self.said()}"
            self.found = re.search(ready, self.said())
            return self.found is not None

        helpers.eventually(is_ready)
        self.endpoints = {it: wire.protocol(it) for it in wire.listeners(self.process.pid)}

    def said(self):
        return self.log.read_text(errors="replace")

    def of(self, *protocols):
        return [it for it, protocol in self.endpoints.items() if protocol in protocols]

    @property
    def segment(self):
        """The segment of its node; zero without one."""
        names = [re.fullmatch(r"tiffin-([0-9a-f]{16})-memory", it.host) for it in self.endpoints]
        return next((int(it[1], 16) for it in names if it), 0)

    def end(self):
        self.process.stdin.close()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Neighbour:
    """A client that puts and gets all the time, and compares every byte."""

    def __init__(self, address, token):
        self.store = tiffin.connect(address, token=token, timeout=wire.SECONDS_MAX)
        self.rounds, self.problem, self.is_done = 0, None, threading.Event()
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    def _work(self):
        try:
            while not self.is_done.wait(0.01):
                key, value = f"neighbour-{self.rounds % 8}", os.urandom(32) * (1 + self.rounds % 4096)
                self.store.put(key, value)
                assert self.store.get(key) == value, "other bytes"
                self.rounds += 1
        except BaseException as error:
            self.problem = error

    def check(self):
        """It goes on."""
        goal = self.rounds + 3
        helpers.eventually(lambda: self.problem is not None or self.rounds >= goal)
        if self.problem is not None:
            raise self.problem

    def end(self):
        self.is_done.set()
        self.thread.join()
        self.store.close()


class Site:
    """The processes, their tokens and a neighbour of each store."""

    def __init__(self, folder, disks):
        self.folder, self.disks, self.processes, self.neighbours = folder, disks, [], []
        self.access = folder / "access.toml"
        self.pool = pathlib.Path(tempfile.mkdtemp(prefix="tiffin-outsider-", dir="/dev/shm"))
        # What protects a file is its own mode, not that of a folder above.
        self.pool.chmod(0o755)
        self.disks.chmod(0o755)
        self.tokens = {name: self._create(name, more) for name, more in TOKENS.items()}
        self.token(["revoke", "revoked"])
        self.node_token = folder / "node.token"
        self.node_token.touch(0o600)
        self.node_token.write_text(self.tokens["node"])

    def token(self, arguments):
        command = tiffin_command("token", *arguments, "--access-file", str(self.access))
        done = subprocess.run(command, capture_output=True, text=True, timeout=helpers.SECONDS_MAX)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def _create(self, name, more):
        return self.token(["create", name, *more])

    def start(self, name, command, ready, **environment):
        self.processes.append(Process(self, name, command, ready, **environment))
        return self.processes[-1]

    def start_all(self):
        """Everything that our commands open, on loopback and on free ports."""
        files = {"TIFFIN_ACCESS_FILE": str(self.access), "TIFFIN_LOG_LEVEL": "trace"}
        joining = files | {"TIFFIN_TOKEN_FILE": str(self.node_token)}
        any_port = ["--listen", "127.0.0.1:0"]
        pages = ["--http", "127.0.0.1:0", "--metadata-http", "127.0.0.1:0"]
        memory, json_ready = ["--memory", "64MiB", "--json"], r'"master":"([^"]+)"'
        disk = lambda name: f"path={self.disks / name},size=64MiB"
        command = tiffin_command("up", *any_port, *pages, *memory, "--ssd", disk("up"))
        self.up = self.start("up", command, json_ready, **files)
        command = tiffin_command("master", *any_port, *pages, "--json")
        self.master = self.start("master", command, json_ready, **files)
        command = tiffin_command("node", "--master", self.master.found[1], *any_port, *memory)
        command += ["--name", "outsider", "--ssd", disk("node"), "--pool", str(self.pool / "pool")]
        self.node = self.start("node", command, r'"name":"outsider"', **joining)
        self.mooncake = self._start_mooncake(files)
        address = f"127.0.0.1:{self.mooncake_port}"
        command = program("mooncake_client", "--host=127.0.0.1", "--port=0", "--enable_http_server")
        command += ["--http_port=0", "--metadata_server=P2PHANDSHAKE", "--global_segment_size=64 MB"]
        command += [f"--master_server_address={address}"]
        self.client = self.start("client", command, r"listens on ports (\d+) (\d+)", **joining)
        config = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE"}
        config |= {"master_server_address": address, "global_segment_size": "64mb"}
        (self.folder / "rest.json").write_text(json.dumps(config))
        command = program("mc_store_rest_server", "--config", str(self.folder / "rest.json"), "--port=0")
        command += ["--host=127.0.0.1"]
        self.rest = self.start("rest", command, r"listens on http://127.0.0.1:(\d+)", **joining)
        command = program("mooncake_http_metadata_server", "--port=0", "--host=127.0.0.1")
        self.metadata = self.start("metadata", command, r"listens on http://127.0.0.1:(\d+)", **joining)
        self.embedded = self.start(
            "embedded", [sys.executable, "-c", EMBEDDED, disk("embedded")], r"ready (\S+)"
        )
        for store in (self.up.found[1], self.master.found[1], address):
            self.neighbours.append(Neighbour(store, self.tokens["all"]))

    def _start_mooncake(self, files):
        command = program("mooncake_master", "--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1")
        command += ["--enable_http_metadata_server=true", "--http_metadata_server_host=127.0.0.1"]
        command += ["--enable_kv_events=true", "--kv_events_backend_id=1"]
        # Another process may take a free port before the master binds it.
        for _ in range(5):
            ports = [free_port() for _ in range(4)]
            names = ("rpc_port", "metrics_port", "http_metadata_server_port")
            flags = [f"--{name}={port}" for name, port in zip(names, ports, strict=False)]
            flags.append(f"--kv_events_bind_endpoint=tcp://127.0.0.1:{ports[3]}")
            with contextlib.suppress(AssertionError):
                self.mooncake_port = ports[0]
                return self.start("mooncake", command + flags, r"master is up", **files)
        raise AssertionError("no mooncake_master could be started")

    def endpoints(self, *protocols):
        """Process, endpoint and protocol of everything with one of these protocols, or of all."""
        for process in self.processes:
            for endpoint, protocol in process.endpoints.items():
                if protocol in protocols or not protocols:
                    yield process, endpoint, protocol

    def guarded(self, *protocols):
        """The same without what has no token, and says so in SECURITY.md."""
        return [it for it in self.endpoints(*protocols) if it[0] is not self.embedded and it[2] != "zmq"]

    def check(self):
        """Every process lives, and every neighbour goes on."""
        for process in self.processes:
            assert process.process.poll() is None, f"{process.name} ended:\n{process.said()[-3000:]}"
        for neighbour in self.neighbours:
            neighbour.check()

    def end(self):
        for neighbour in self.neighbours:
            neighbour.end()
        for process in reversed(self.processes):
            process.end()
        shutil.rmtree(self.pool)


@contextlib.contextmanager
def shown_folder():
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory(prefix="tiffin-outsider-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        yield folder


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
