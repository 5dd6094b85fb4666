"""Compares Tiffin's `mooncake.store` with the official one: the same calls, in turns, on this machine.

Three shapes: `same process` (the client holds the segment), `same host` (another process holds it), and
`tcp` (the same with shared memory switched off on our side). Each repetition is a new client process; the two
sides take turns, so that what disturbs the machine disturbs both. The table shows medians, the ratio with its
spread over the repetitions, and the distance to the floor: what memcpy or a loopback socket does with
the same sizes.

Nothing is left behind: every process is ended by its id, also when this one is interrupted or killed.
"""

import argparse
import contextlib
import ctypes
import functools
import json
import mmap
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

KIB, MIB = 1 << 10, 1 << 20
SEGMENT_BYTES = 512 * MIB
STAGING_BYTES = 64 * MIB
BUFFER_BYTES = 16 * MIB
SETUP_SECONDS_MAX = 30
CLOSE_SECONDS_MAX = 15

SHAPES = ("same process", "same host", "tcp")
# What is measured: name, unit, and whether more is better.
GBPS = {"unit": "GB/s", "more_is_better": True}
MICROS = {"unit": "µs", "more_is_better": False}
METRICS = {
    "put_from 1 MiB": GBPS,
    "get_into 1 MiB": GBPS,
    "put_from 16 MiB": GBPS,
    "get_into 16 MiB": GBPS,
    "batch_put_from 32 x 64 KiB": GBPS,
    "batch_get_into 32 x 64 KiB": GBPS,
    "put_from 4 KiB p50": MICROS,
    "put_from 4 KiB p99": MICROS,
    "get_into 4 KiB p50": MICROS,
    "get_into 4 KiB p99": MICROS,
    "batch_is_exist 128 p50": MICROS,
}


# ----------------------------------------------------------------------------------------------------
# What runs inside one of the two environments.


class Memory:
    """Bytes at a fixed address, as `put_from` and `get_into` want them."""

    def __init__(self, size):
        self.map = mmap.mmap(-1, size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def fill(self):
        block = os.urandom(64 * KIB)
        self.map[:] = block * (len(self.map) // len(block))


def expect(what, answer, wanted):
    if answer != wanted:
        sys.exit(f"error: {what} answered {answer!r} instead of {wanted!r}")


def micros(calls):
    """The time of each call, in microseconds."""
    times = []
    for call in calls:
        began = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - began) / 1e3)
    return times


def gbps(size, times):
    return size / statistics.median(times) / 1e3


def percentile(times, part):
    return sorted(times)[min(len(times) - 1, int(len(times) * part))]


def open_store(arguments, segment):
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    answer = store.setup(
        "127.0.0.1", "P2PHANDSHAKE", segment, STAGING_BYTES, "tcp", "", f"127.0.0.1:{arguments.master_port}"
    )
    expect("setup", answer, 0)
    return store


def singles(store, source, target, size, count, passes):
    """The times of `put_from` and `get_into` for `count` objects of `size` bytes."""
    puts, gets = [], []
    for turn in range(passes):
        keys = [f"{size}-{turn}-{index}" for index in range(count)]
        put = lambda key: expect("put_from", store.put_from(key, source.address, size), 0)
        get = lambda key: expect("get_into", store.get_into(key, target.address, size), size)
        puts += micros(functools.partial(put, key) for key in keys)
        ctypes.memset(target.address, 0, size)
        gets += micros(functools.partial(get, key) for key in keys)
        expect("comparing what came back", target.map[:size] == source.map[:size], True)
        store.batch_remove(keys, True)
    # The first turn touches memory that nobody has touched before; users do that once.
    return puts[count:], gets[count:]


def batches(store, source, target, size, items, count):
    """The times of `batch_put_from` and `batch_get_into` for batches of `items` objects of `size` bytes."""
    sources = [source.address + index * size for index in range(items)]
    targets = [target.address + index * size for index in range(items)]
    sizes = [size] * items
    put = lambda keys: expect("batch_put_from", store.batch_put_from(keys, sources, sizes), [0] * items)
    get = lambda keys: expect("batch_get_into", store.batch_get_into(keys, targets, sizes), sizes)
    puts, gets = [], []
    for turn in range(count):
        keys = [f"batch-{turn}-{index}" for index in range(items)]
        ctypes.memset(target.address, 0, items * size)
        puts += micros([functools.partial(put, keys)])
        gets += micros([functools.partial(get, keys)])
        expect("comparing a batch", target.map[: items * size] == source.map[: items * size], True)
        store.batch_remove(keys, True)
    return puts[count // 4 :], gets[count // 4 :]


def exists(store, source, items, count):
    keys = [f"exist-{index}" for index in range(items)]
    for key in keys[::2]:
        expect("put_from", store.put_from(key, source.address, 4 * KIB), 0)
    wanted = [1, 0] * (items // 2)
    times = micros([lambda: expect("batch_is_exist", store.batch_is_exist(keys), wanted)] * count)
    store.batch_remove(keys[::2], True)
    return times


def run_client(arguments):
    """One client process: measures everything once and prints it as JSON."""
    store = open_store(arguments, SEGMENT_BYTES if arguments.shape == "same process" else 0)
    source, target = Memory(BUFFER_BYTES), Memory(BUFFER_BYTES)
    source.fill()
    for memory in (source, target):
        expect("register_buffer", store.register_buffer(memory.address, BUFFER_BYTES), 0)
    found = {}
    for size, count, passes, name in ((MIB, 32, 4, "1 MiB"), (16 * MIB, 4, 5, "16 MiB")):
        puts, gets = singles(store, source, target, size, count, passes)
        found[f"put_from {name}"], found[f"get_into {name}"] = gbps(size, puts), gbps(size, gets)
    puts, gets = batches(store, source, target, 64 * KIB, 32, 32)
    found["batch_put_from 32 x 64 KiB"] = gbps(2 * MIB, puts)
    found["batch_get_into 32 x 64 KiB"] = gbps(2 * MIB, gets)
    puts, gets = singles(store, source, target, 4 * KIB, 250, 5)
    for name, times in (("put_from", puts), ("get_into", gets)):
        found[f"{name} 4 KiB p50"], found[f"{name} 4 KiB p99"] = (
            percentile(times, 0.5),
            percentile(times, 0.99),
        )
    found["batch_is_exist 128 p50"] = percentile(exists(store, source, 128, 300), 0.5)
    print(json.dumps(found), flush=True)
    for memory in (source, target):
        store.unregister_buffer(memory.address)
    store.close()


def run_owner(arguments):
    """Holds the segment until the other end of standard input closes."""
    store = open_store(arguments, SEGMENT_BYTES)
    print("ready", flush=True)
    sys.stdin.read()
    store.close()


# ----------------------------------------------------------------------------------------------------
# What no store can beat.


def floor_memcpy(size, count):
    source, target = Memory(BUFFER_BYTES), Memory(BUFFER_BYTES)
    source.fill()
    calls = [lambda: ctypes.memmove(target.address, source.address, size)] * count
    micros(calls[:4])
    return gbps(size, micros(calls))


def receive(connection, view):
    got = 0
    while got < len(view):
        step = connection.recv_into(view[got:])
        if step == 0:
            sys.exit("error: the loopback peer went away")
        got += step


@contextlib.contextmanager
def loopback(serve):
    """A connection to a child process that runs `serve` on its end."""
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        with contextlib.suppress(Exception):
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            serve(connection)
        os._exit(0)
    try:
        with socket.create_connection(listener.getsockname(), timeout=20) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield connection
    finally:
        listener.close()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def floor_round_trip(count):
    def serve(connection):
        while data := connection.recv(64):
            connection.sendall(data)

    view = memoryview(bytearray(64))
    with loopback(serve) as connection:
        times = micros([lambda: (connection.sendall(view), receive(connection, view))] * count)
    return percentile(times, 0.5), percentile(times, 0.99)


def floor_stream(size, count):
    def serve(connection):
        source = Memory(BUFFER_BYTES)
        while connection.recv(1):
            connection.sendall(memoryview(source.map)[:size])

    target = Memory(BUFFER_BYTES)
    view = memoryview(target.map)[:size]
    with loopback(serve) as connection:
        times = micros([lambda: (connection.sendall(b"x"), receive(connection, view))] * count)
    view.release()
    return gbps(size, times[count // 4 :])


def measure_floor(shape):
    """For each metric the least that the shape must do: move the bytes once, and ask somebody once."""
    move = floor_stream if shape == "tcp" else floor_memcpy
    p50, p99 = floor_round_trip(1000)
    by_size = {"1 MiB": move(MIB, 64), "16 MiB": move(16 * MIB, 12), "32 x 64 KiB": move(2 * MIB, 48)}
    floor = {}
    for metric in METRICS:
        size = next((size for size in by_size if metric.endswith(f" {size}")), None)
        floor[metric] = by_size[size] if size else (p99 if metric.endswith("p99") else p50)
    return floor


# ----------------------------------------------------------------------------------------------------
# The conductor.


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Side:
    """One implementation: where its Python is, and the processes that serve it in one shape."""

    def __init__(self, name, python, folder, deadline):
        self.name, self.folder, self.deadline = name, folder, deadline
        # The link itself is the environment; resolving it would leave the environment.
        self.python = pathlib.Path(python).absolute()
        self.children = []

    def start(self, shape):
        self.port, metrics = free_ports(2)
        master = self.python.with_name("mooncake_master")
        flags = [f"--rpc_port={self.port}", "--rpc_address=127.0.0.1", f"--metrics_port={metrics}"]
        flags += ["--metrics_host=127.0.0.1", "--default_kv_lease_ttl=5000"]
        self.spawn(shape, "master", [str(master), *flags])
        self.wait_for_master()
        if shape != "same process":
            owner = self.spawn(shape, "owner", self.worker(shape, "owner"))
            if not answers_in_time(owner, SETUP_SECONDS_MAX):
                raise Failure(
                    f"the process that holds {self.name}'s segment did not start", self.log("owner")
                )

    def measure(self, shape):
        client = self.spawn(shape, "client", self.worker(shape, "client"))
        try:
            output, _ = client.communicate(timeout=max(1, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Failure(
                f"{self.name} used up the time of the whole comparison", self.log("client")
            ) from None
        finally:
            self.end(client)
        # The official client may crash on its way out, after everything was measured.
        lines = [line for line in output.splitlines() if line.startswith("{")]
        if not lines:
            raise Failure(f"a client of {self.name} failed in the shape `{shape}`", self.log("client"))
        return json.loads(lines[-1])

    def stop(self):
        for child in reversed(self.children):
            self.end(child)
        self.children.clear()

    def worker(self, shape, role):
        script = str(pathlib.Path(__file__).resolve())
        return [str(self.python), script, "--role", role, "--shape", shape, "--master-port", str(self.port)]

    def spawn(self, shape, role, command):
        environment = dict(os.environ, GLOG_logtostderr="1", GLOG_minloglevel="1", TMPDIR=self.folder)
        if shape == "tcp":
            environment["TIFFIN_SHARED_MEMORY"] = "off"
        with open(self.log(role), "ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.folder,
                env=environment,
                preexec_fn=die_with_parent,
            )
        self.children.append(child)
        if role == "master":
            threading.Thread(target=child.stdout.read, daemon=True).start()
        return child

    def wait_for_master(self):
        until = time.monotonic() + SETUP_SECONDS_MAX
        while time.monotonic() < until and self.children[-1].poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.02)
        raise Failure(f"{self.name}'s mooncake_master did not listen", self.log("master"))

    def log(self, role):
        return os.path.join(self.folder, f"{self.name}-{role}.log")

    def end(self, child):
        """Asks, then insists. A closed standard input is what an owner waits for."""
        for ask in (child.stdin.close, child.terminate, child.kill):
            if child.poll() is not None:
                break
            with contextlib.suppress(OSError):
                ask()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1 if child.args[0].endswith("mooncake_master") else CLOSE_SECONDS_MAX)
        child.wait()


class Failure(Exception):
    """What went wrong, and the file in which a process may have said why."""

    def __init__(self, what, log=None):
        super().__init__(what)
        self.log = log


def free_ports(count):
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def answers_in_time(child, seconds):
    line = []
    reader = threading.Thread(target=lambda: line.append(child.stdout.readline()), daemon=True)
    reader.start()
    reader.join(seconds)
    return line == ["ready\n"]


class Progress:
    """One line on standard error that is written over and over."""

    def __init__(self, steps):
        self.steps, self.done, self.began = steps, 0, time.monotonic()
        self.live = sys.stderr.isatty()

    def step(self, what):
        self.done += 1
        elapsed = time.monotonic() - self.began
        text = f"[{self.done}/{self.steps}] {elapsed:4.0f} s  {what}"
        sys.stderr.write(f"\r{text:<78}" if self.live else f"{text}\n")
        sys.stderr.flush()

    def close(self):
        if self.live:
            sys.stderr.write("\r" + " " * 78 + "\r")


def compare(sides, shapes, repetitions, progress):
    """The samples: shape → metric → side (or `floor`) → one value per repetition."""
    samples = {shape: {metric: {} for metric in METRICS} for shape in shapes}

    def keep(shape, name, found):
        for metric in METRICS:
            samples[shape][metric].setdefault(name, []).append(found[metric])

    for shape in shapes:
        try:
            for side in sides:
                side.start(shape)
            for repetition in range(1, repetitions + 1):
                # Who goes first changes, so that neither always finds the machine warm.
                for side in sides if repetition % 2 else sides[::-1]:
                    progress.step(f"{shape}, repetition {repetition}: {side.name}")
                    keep(shape, side.name, side.measure(shape))
                progress.step(f"{shape}, repetition {repetition}: the floor")
                keep(shape, "floor", measure_floor(shape))
        finally:
            for side in sides:
                side.stop()
    return samples


def summarize(samples):
    """One row per shape and metric, with the ratio turned so that more than 1 means that we are faster."""
    rows = []
    for shape, metrics in samples.items():
        for metric, values in metrics.items():
            more_is_better = METRICS[metric]["more_is_better"]
            row = {"shape": shape, "metric": metric, "unit": METRICS[metric]["unit"], "samples": values}
            row |= {name: statistics.median(list_) for name, list_ in values.items()}
            if "tiffin" in values and "mooncake" in values:
                pairs = list(zip(values["tiffin"], values["mooncake"], strict=True))
                ratios = [a / b if more_is_better else b / a for a, b in pairs]
                row["ratio"] = statistics.median(ratios)
                row["ratio_min"], row["ratio_max"] = min(ratios), max(ratios)
            if "tiffin" in row:
                ours, floor = row["tiffin"], row["floor"]
                row["of_floor"] = ours / floor if more_is_better else floor / ours
            rows.append(row)
    return rows


def table(rows):
    head = ("", "tiffin", "mooncake", "times faster (spread)", "floor", "of the floor")
    lines = []
    shape = None
    for row in rows:
        if row["shape"] != shape:
            shape = row["shape"]
            lines.append(
                f"\n{shape}\n{head[0]:<34}{head[1]:>10}{head[2]:>10}{head[3]:>24}{head[4]:>9}{head[5]:>14}"
            )
        cell = {name: f"{row[name]:.2f}" if name in row else "-" for name in ("tiffin", "mooncake", "floor")}
        spread = (
            f"{row['ratio']:.2f} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})"
            if "ratio" in row
            else "-"
        )
        share = f"{100 * row['of_floor']:.0f} %" if "of_floor" in row else "-"
        name = f"{row['metric']}, {row['unit']}"
        lines.append(
            f"{name:<34}{cell['tiffin']:>10}{cell['mooncake']:>10}{spread:>24}{cell['floor']:>9}{share:>14}"
        )
    lines.append(
        "\nThe floor: memcpy of the same size, for tcp a loopback stream; for times a loopback round trip."
    )
    return "\n".join(lines)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ours", help="the Python of an environment with tiffin and tiffin-mooncake")
    parser.add_argument("--peer", help="the Python of an environment with the official wheel")
    parser.add_argument("--repetitions", type=int, default=5, help="how often each side is measured (5)")
    parser.add_argument("--shape", action="append", choices=SHAPES, help="only this shape; may be repeated")
    parser.add_argument("--seconds-max", type=float, default=540, help="give up after this time (540)")
    parser.add_argument("--json", action="store_true", help="print the samples as JSON instead of a table")
    parser.add_argument("--role", choices=("client", "owner"), help=argparse.SUPPRESS)
    parser.add_argument("--master-port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.role and not (arguments.ours or arguments.peer):
        parser.error("neither --ours nor --peer is given\n\nhint: `make bench` prepares both and calls this")
    if arguments.repetitions < 3 and not arguments.role:
        print("warning: fewer than 3 repetitions show no spread", file=sys.stderr)
    return arguments


def main():
    arguments = parse()
    if arguments.role:
        arguments.shape = arguments.shape[0]
        {"client": run_client, "owner": run_owner}[arguments.role](arguments)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    shapes = arguments.shape or list(SHAPES)
    deadline = time.monotonic() + arguments.seconds_max
    with tempfile.TemporaryDirectory(prefix="tiffin-bench-") as folder:
        named = (("tiffin", arguments.ours), ("mooncake", arguments.peer))
        sides = [Side(name, python, folder, deadline) for name, python in named if python]
        progress = Progress(len(shapes) * arguments.repetitions * (len(sides) + 1))
        try:
            samples = compare(sides, shapes, arguments.repetitions, progress)
        except Failure as failure:
            progress.close()
            said = pathlib.Path(failure.log).read_text(errors="replace")[-3000:] if failure.log else ""
            sys.exit(f"error: {failure}\n\nIts last words:\n{said}")
        progress.close()
    rows = summarize(samples)
    print(json.dumps(rows, indent=1) if arguments.json else table(rows))


if __name__ == "__main__":
    main()
