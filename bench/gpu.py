"""Measures puts and gets of device memory beside the floor: copies to pinned memory, in the same run.

    make bench-gpu                          # on a machine with a GPU and a Python with torch

Each row is measured in turns with its floor, and shows medians. `--peer PYTHON` names an interpreter that has
the official CUDA wheel. The figures of `docs/gpu.md` are from this program.
"""

import argparse
import contextlib
import functools
import itertools
import json
import pathlib
import statistics
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python-mooncake" / "tests"))

KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB)
PAGES = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB)
# The kernel's figures for 2,048 scattered pages on an idle H200 (save, load), in GB/s.
KERNEL = {4 * KIB: (47.9, 47.1), 16 * KIB: (51.8, 50.3), 64 * KIB: (52.4, 51.1), 256 * KIB: (52.6, 51.4)}
SEGMENT = 3 << 30
ROUNDS = 15
WARM_SECONDS = 60
COLD_BYTES = 1 << 30
PAUSES = (0, 300e-6, 1.3e-3, 5e-3)
BESIDE_SECONDS = 2


class Table:
    """Rows that are printed as they are measured."""

    def __init__(self):
        self.rows = []

    def add(self, what, value, unit, target=None, is_met=None, **more):
        self.rows.append(dict(what=what, value=value, unit=unit, target=target, is_met=is_met, **more))
        mark = {None: "", True: "met", False: "MISSED"}[is_met]
        extra = "  ".join(f"{name} {number:.1f}" for name, number in more.items())
        print(f"{what:58} {value:9.2f} {unit:5} {target or '':34} {mark:6} {extra}", flush=True)


def seconds(call, rounds=1):
    began = time.perf_counter()
    for _ in range(rounds):
        call()
    return (time.perf_counter() - began) / rounds


class Bench:
    def __init__(self, store, table, name):
        import torch

        self.torch, self.store, self.table, self.name = torch, store, table, name
        self.numbers = itertools.count()
        self.stream = torch.cuda.Stream()

    def key(self):
        return f"bench {next(self.numbers)}"

    def warm_up(self, registered):
        """Puts and gets until so many bytes of segments are registered: then a call is as fast as it gets."""
        source = self.torch.ones(64 * MIB, dtype=self.torch.uint8, device="cuda")
        key, began = self.key(), time.monotonic()
        assert self.store.put_from(key, source.data_ptr(), 64 * MIB) == 0
        while time.monotonic() - began < WARM_SECONDS and self.registered() < registered:
            self.put_once(source.data_ptr(), 64 * MIB)
            self.get(key, source.data_ptr(), 64 * MIB)
        self.store.remove(key, force=True)
        took = time.monotonic() - began
        print(f"{self.name}: {self.registered() / MIB:.0f} MiB registered after {took:.1f} s", flush=True)

    def registered(self):
        return self.store._traffic()["cuda registered"][0]

    def show_ring(self):
        ringed = self.store._traffic()["cuda:0 ring"][0]
        print(f"{self.name}: {ringed / MIB:.0f} MiB went through the ring so far", flush=True)

    def put_once(self, address, size):
        key = self.key()
        began = time.perf_counter()
        code = self.store.put_from(key, address, size)
        taken = time.perf_counter() - began
        assert code == 0, code
        self.store.remove(key, force=True)
        return taken

    def pinned(self, size):
        return self.torch.empty(size, dtype=self.torch.uint8, pin_memory=True)

    def copy(self, target, source):
        target.copy_(source, non_blocking=True)
        self.torch.cuda.synchronize()

    def contiguous(self, size):
        torch = self.torch
        device = torch.randint(0, 255, (size,), dtype=torch.uint8, device="cuda")
        back, host, key = torch.zeros_like(device), self.pinned(size), self.key()
        puts, gets, floor_out, floor_in = [], [], [], []
        # The same calls with host memory show the part of the time that is not the device's.
        host_puts, host_gets = [], []
        # A put writes to memory that is in no cache of processor and device. The floor reuses one buffer; the
        # same copy to one of many buffers shows the difference.
        others = [self.pinned(size) for _ in range(max(1, min(16, COLD_BYTES // size)))]
        cold = []
        assert self.store.put_from(key, device.data_ptr(), size) == 0
        for number in range(ROUNDS if size < 256 * MIB else 5):
            other = others[number % len(others)]
            cold.append(seconds(functools.partial(self.copy, other, device)))
            floor_out.append(seconds(lambda: self.copy(host, device)))
            puts.append(self.put_once(device.data_ptr(), size))
            floor_in.append(seconds(lambda: self.copy(back, host)))
            gets.append(seconds(lambda: self.get(key, back.data_ptr(), size)))
            host_puts.append(self.put_once(host.data_ptr(), size))
            host_gets.append(seconds(lambda: self.get(key, host.data_ptr(), size)))
        assert torch.equal(device, back)
        self.store.remove(key, force=True)
        for what, *times in (("put", puts, floor_out, host_puts), ("get", gets, floor_in, host_gets)):
            self.contiguous_row(what, size, *map(statistics.median, times))
        self.table.add(
            f"{self.name}: copy of {show(size)} to one of many buffers", statistics.median(cold) * 1e6, "us"
        )

    def after_pause(self, pause):
        """A small put when the threads of the store have slept, as they have after a long copy."""
        device = self.torch.ones(64 * KIB, dtype=self.torch.uint8, device="cuda")
        times = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            while time.perf_counter() - began < pause:
                pass
            times.append(self.put_once(device.data_ptr(), 64 * KIB))
        name = f"{self.name}: put of 64 KiB after {pause * 1e6:.0f} us without a call"
        self.table.add(name, statistics.median(times) * 1e6, "us")

    def contiguous_row(self, what, size, ours, floor, host):
        name = f"{self.name}: {what} of {show(size)}"
        if size <= 64 * KIB:
            beyond = (ours - floor) * 1e6
            row = (name, ours * 1e6, "us", "<= 30 us beyond the copy", beyond <= 30)
            return self.table.add(*row, floor_us=floor * 1e6, host_us=host * 1e6)
        rate, best = size / ours / 1e9, size / floor / 1e9
        part = 0.8 if size < 16 * MIB else 0.9
        return self.table.add(
            name,
            rate,
            "GB/s",
            f">= {part:.0%} of the floor",
            rate >= part * best,
            floor=best,
            host_us=host * 1e6,
            us=ours * 1e6,
        )

    def get(self, key, address, size):
        assert self.store.get_into(key, address, size) == size

    def scattered(self, page, count=2048, loaded=None):
        """One object of pages that are scattered on the device. `loaded` runs beside it."""
        torch = self.torch
        count = min(count, 256 * MIB // page)
        cache = torch.randint(0, 255, (2 * count, page), dtype=torch.uint8, device="cuda")
        copy = torch.zeros_like(cache)
        order = torch.randperm(2 * count)[:count].tolist()
        sources = [cache.data_ptr() + page * it for it in order]
        targets = [copy.data_ptr() + page * it for it in order]
        sizes, bytes = [page] * count, page * count
        for tensor in (cache, copy):
            assert self.store.register_buffer(tensor.data_ptr(), tensor.numel()) == 0
        kept = self.key()
        assert self.store.batch_put_from_multi_buffers([kept], [sources], [sizes]) == [0]

        def save():
            key = self.key()
            began = time.perf_counter()
            assert self.store.batch_put_from_multi_buffers([key], [sources], [sizes]) == [0]
            taken = time.perf_counter() - began
            self.store.remove(key, force=True)
            return taken

        def load():
            began = time.perf_counter()
            assert self.store.batch_get_into_multi_buffers([kept], [targets], [sizes]) == [bytes]
            return time.perf_counter() - began

        for number, (what, call) in enumerate((("save", save), ("load", load))):
            call()
            name = f"{self.name}: {what} {count} pages of {show(page)}"
            if loaded is None:
                rate = bytes / statistics.median(call() for _ in range(ROUNDS)) / 1e9
                best = KERNEL[page][number]
                self.table.add(name, rate, "GB/s", ">= 85 % of the kernel", rate >= 0.85 * best, kernel=best)
            else:
                self.beside(name, what, call, bytes, loaded)
        assert torch.equal(cache[order], copy[order])
        for tensor in (cache, copy):
            assert self.store.unregister_buffer(tensor.data_ptr()) == 0
        self.store.remove(kept, force=True)

    def beside(self, name, what, call, bytes, loaded):
        """Calls from one thread and from two. A call waits until the product leaves a part of the device
        free; an engine keeps several calls under way."""
        with loaded.running():
            alone = loaded.rate(2)
            for threads in (1, 2):
                rate, beside = self.at_once(call, bytes, threads, loaded)
                product = beside / alone
                wanted, least = (42, 0.97) if what == "save" else (40, 0.95)
                target = f">= {wanted} GB/s, product >= {least:.0%}"
                is_met = rate >= wanted and product >= least
                row = (f"{name}, busy, {threads} at once", rate, "GB/s", target, is_met)
                self.table.add(*row, product_percent=100 * product)

    def at_once(self, call, bytes, threads, loaded):
        """The rate of calls from several threads, and that of the product meanwhile."""
        calls = [0] * threads
        count, began = loaded.count, time.monotonic()

        def work(number):
            while time.monotonic() - began < BESIDE_SECONDS:
                call()
                calls[number] += 1

        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        taken = time.monotonic() - began
        return sum(calls) * bytes / taken / 1e9, (loaded.count - count) / taken


class Product:
    """A matrix product that fills the device, again and again."""

    def __init__(self, torch):
        self.torch, self.count, self.is_ended = torch, 0, True
        self.stream = torch.cuda.Stream()
        self.left, self.right, self.out = (
            torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(3)
        )

    @contextlib.contextmanager
    def running(self):
        self.is_ended = False
        thread = threading.Thread(target=self.work)
        thread.start()
        try:
            self.rate(0.5)
            yield
        finally:
            self.is_ended = True
            thread.join()

    def rate(self, length):
        count, began = self.count, time.monotonic()
        threading.Event().wait(length)
        return (self.count - count) / (time.monotonic() - began)

    def work(self):
        events = []
        with self.torch.cuda.stream(self.stream):
            while not self.is_ended:
                self.torch.mm(self.left, self.right, out=self.out)
                events.append(self.torch.cuda.Event())
                events[-1].record()
                if len(events) > 6:
                    events.pop(0).synchronize()
                    self.count += 1
            self.stream.synchronize()


def show(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def setup(is_apart):
    import worker

    master = worker.Master()
    node = worker.Other(master.address, segment=SEGMENT, buffer=0) if is_apart else None
    assert worker.connect(master.address, segment=0 if is_apart else SEGMENT, buffer=64 * MIB) == 0
    return worker.store, (master, node)


def measure(options):
    import torch

    table = Table()
    for name, is_apart in (("same process", False), ("other process", True)):
        store, kept = setup(is_apart)
        bench = Bench(store, table, name)
        bench.warm_up(SEGMENT)
        for size in SIZES:
            bench.contiguous(size)
        for pause in PAUSES:
            bench.after_pause(pause)
        bench.show_ring()
        for page in PAGES:
            bench.scattered(page)
        bench.show_ring()
        if not options.quick:
            product = Product(torch)
            for page in PAGES[1:]:
                bench.scattered(page, count=128 * MIB // page, loaded=product)
        store.close()
        del kept
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": table.rows}
    print(json.dumps(about))
    return table


def peer(python):
    """The same contiguous puts and gets with the official wheel, in its own interpreter."""
    ended = subprocess.run([python, __file__, "--as-peer"], text=True, capture_output=True, timeout=900)
    print(ended.stdout, ended.stderr[-2000:] if ended.returncode else "", flush=True)


def as_peer():
    import torch

    store, kept = setup(False)
    for size in SIZES[:-1]:
        device = torch.ones(size, dtype=torch.uint8, device="cuda")
        address = device.data_ptr()
        assert store.register_buffer(address, size) == 0
        puts, gets = [], []
        for number in range(9):
            key = f"{size} {number}"
            puts.append(seconds(functools.partial(store.put_from, key, address, size)))
            gets.append(seconds(functools.partial(store.get_into, key, address, size)))
            store.remove(key)
        for what, times in (("put", puts), ("get", gets)):
            median = statistics.median(times)
            rate = f"{size / median / 1e9:9.2f} GB/s {median * 1e6:9.0f} us"
            print(f"official wheel: {what} of {show(size):30} {rate}")
        store.unregister_buffer(address)
    del kept


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", help="an interpreter with the official CUDA wheel")
    parser.add_argument("--as-peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="without the matrix product")
    options = parser.parse_args()
    if options.as_peer:
        return as_peer()
    measure(options)
    if options.peer:
        peer(options.peer)
    return None


if __name__ == "__main__":
    sys.exit(main())
