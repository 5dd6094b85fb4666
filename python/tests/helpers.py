"""Helpers of several tests: servers, code in other interpreters, forked children, silent peers."""

import contextlib
import json
import os
import pathlib
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

SECONDS_MAX = 600


@contextlib.contextmanager
def server(*arguments, stderr=None, **environment):
    """A process of the command `tiffin`, which keeps its state in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "tiffin", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            # Named nodes would leave their memory behind, for a next start that never comes.
            env=os.environ | {"XDG_STATE_HOME": folder, "TIFFIN_NODE_POOL": "off"} | environment,
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


@contextlib.contextmanager
def up(*arguments, stderr=None, **environment):
    """Address and process id of a store in a process of its own, reached over TCP on loopback."""
    command = ("up", "--listen", "127.0.0.1:0", "--http", "off", "--json", *arguments)
    with server(*command, stderr=stderr, **environment) as process:
        yield json.loads(process.stdout.readline())["master"], process.pid


def run(program, *arguments, **environment):
    """The output of a program in a new interpreter, with these `arguments`."""
    done = _done(program, arguments, environment)
    assert done.returncode == 0, f"ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def end_of(program, *arguments):
    """Exit status and output of a program, as for `run`."""
    done = _done(program, arguments, {})
    return done.returncode, done.stdout


def _done(program, arguments, environment):
    # A background job ignores Ctrl-C, and its children inherit that.
    prelude = "import pickle, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    prelude += f"arguments = pickle.loads({pickle.dumps(arguments)!r})\n"
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", prelude + program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env=os.environ | environment,
    )


def in_child(work):
    """The result of `work()` in a forked child; an exception there fails here."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            try:
                result = (True, work())
            except BaseException as error:
                result = (False, repr(error))
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(result, pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}"
    succeeded, result = pickle.loads(said)
    assert succeeded, f"the child raised {result}"
    return result


def mutations(chance, good, count):
    """Damaged forms of some bytes: flipped bits, cut and doubled ranges, other texts and numbers."""
    texts = [b"", b"null", b"[]", b"{}", b'"', b"-1", b"1e999", b"18446744073709551616", b"\xff", b"\0"]
    for _ in range(count):
        bytes_ = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            start = chance.randint(0, len(bytes_))
            end = min(len(bytes_), start + chance.choice([0, 1, 4, 30]))
            kind = chance.randint(0, 3)
            if kind == 0 and start < len(bytes_):
                bytes_[start] ^= 1 << chance.randint(0, 7)
            elif kind == 1:
                del bytes_[start:end]
            elif kind == 2:
                bytes_[start:start] = bytes_[start:end]
            else:
                bytes_[start:end] = chance.choice(texts)
        yield bytes(bytes_)


def stop(process):
    """Stop a process, and wait until none of its threads runs."""
    os.kill(process, signal.SIGSTOP)
    threads = pathlib.Path(f"/proc/{process}/task")
    state = lambda thread: thread.joinpath("stat").read_text().rpartition(")")[2].split()[0]
    eventually(lambda: all(state(thread) == "T" for thread in threads.iterdir()))


@contextlib.contextmanager
def silent_peer():
    """The address of a server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def eventually(condition):
    """Polls until a condition holds."""
    deadline = time.monotonic() + SECONDS_MAX
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        pause.wait(0.01)


@contextlib.contextmanager
def disk_folder(*wanted):
    """A folder on a filesystem with direct I/O: below the first of these with it, or in the build folder."""
    for parent in (*wanted, pathlib.Path(__file__).parents[2] / "target"):
        with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=parent) as name:
            probe = pathlib.Path(name, "probe")
            os.close(os.open(probe, os.O_CREAT | os.O_RDWR | os.O_DIRECT))
            probe.unlink()
            yield pathlib.Path(name)
            return
    raise AssertionError(f"none of {[*map(str, wanted)]} has direct I/O: set TMPDIR to a folder on a disk")


def sum_of_ids(features, ref):
    """The work of a worker with a feature store: it reads a sample, and ends without a release."""
    tensors, _ = features.get(ref)
    return int(tensors["ids"].sum())
