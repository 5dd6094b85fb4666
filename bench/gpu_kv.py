"""Measures loads and saves of KV pages, which are scattered over the layers of a GPU, by `tiffin.kv.Engine`.

    make bench-gpu                          # on a machine with a GPU and a Python with torch

Each row is shown with two others of the same run: one copy of as many bytes to or from pinned memory, and the
copies that a program makes with torch, one for each layer. Rows marked `busy` run beside a matrix product.
"""

import argparse
import functools
import statistics
import sys
import time

from gpu import BESIDE_SECONDS, KIB, ROUNDS, Product, Table, seconds, show
from tiffin import kv

#: Keys and values of 32 layers.
LAYERS = 64
ROWS = (4 * KIB, 16 * KIB, 64 * KIB)
PAGE_TOKENS = 16
#: Pages of a request: one operation.
PAGES = 128
#: The device keeps the pages of two requests: a third one evicts all pages of the first.
DEVICE_PAGES = 2 * PAGES + 1
PROMPTS = 3
SECONDS = 60


class Cache:
    """The layers of a model, and an engine over them."""

    def __init__(self, torch, row):
        self.torch, self.row = torch, row
        shape = (DEVICE_PAGES, row)
        self.layers = [torch.randint(0, 255, shape, dtype=torch.uint8, device="cuda") for _ in range(LAYERS)]
        self.host = torch.empty((8 * PAGES, LAYERS * row), dtype=torch.uint8, pin_memory=True)
        self.stream = torch.cuda.Stream()
        options = {"host": self.host, "page_tokens": PAGE_TOKENS, "stream": self.stream}
        self.engine = kv.Engine(self.layers, **options)
        self.numbers = 0
        self.bytes = PAGES * LAYERS * row

    def prompt(self, number):
        """Tokens of full pages, and one more: one token is always computed."""
        first = number * 1_000_000
        return range(first, first + PAGES * PAGE_TOKENS + 1)

    def step_until(self, is_over, plan):
        while not is_over(plan):
            assert self.engine.wait(SECONDS)
            plan = self.engine.step()
        return plan

    def serve(self, prompt):
        """Serve a request. Returns its pages, and the seconds until it was ready and from its end until all
        operations had ended."""
        self.numbers += 1
        began = time.perf_counter()
        plan = self.engine.step(submit=[kv.Request(self.numbers, prompt)])
        (ready,) = self.step_until(lambda plan: plan.ready, plan).ready
        loading = time.perf_counter() - began
        began = time.perf_counter()
        computed = [kv.Computed(self.numbers, len(prompt))]
        plan = self.engine.step(computed=computed, finish=[self.numbers])
        self.step_until(lambda _: self.engine.stats()["operations"] == 0, plan)
        return ready, loading, time.perf_counter() - began

    def rows(self, pages):
        index = self.torch.as_tensor(pages[:PAGES].tolist(), device="cuda")
        return [layer[index] for layer in self.layers]

    def check(self):
        """Every byte of a request comes back from the host."""
        first, _, _ = self.serve(self.prompt(0))
        wanted = self.rows(first.pages)
        for number in range(1, PROMPTS):
            self.serve(self.prompt(number))
        for layer in self.layers:
            layer.zero_()
        self.torch.cuda.synchronize()
        again, _, _ = self.serve(self.prompt(0))
        assert again.cached.host == PAGES * PAGE_TOKENS, again.cached
        assert all(map(self.torch.equal, wanted, self.rows(again.pages)))

    def save_once(self):
        """A request with new tokens, whose pages are all saved."""
        self.numbers += 1
        return self.serve(self.prompt(1000 + self.numbers))[2]

    def load_once(self):
        """A request whose pages are all in the host."""
        ready, loading, _ = self.serve(self.prompt(self.numbers % PROMPTS))
        assert ready.cached.host == PAGES * PAGE_TOKENS, ready.cached
        return loading

    def warm_up_loads(self):
        """The prompts of loads are in the host, and have left the device when their turn comes."""
        for _ in range(2 * PROMPTS):
            self.serve(self.prompt(self.numbers % PROMPTS))

    def close(self):
        stats = self.engine.stats()
        assert stats["faults"] == 0, stats["last_fault"]
        self.engine.close()


def floor(torch, cache, what):
    """One copy of as many bytes."""
    device = torch.empty(cache.bytes, dtype=torch.uint8, device="cuda")
    host = torch.empty(cache.bytes, dtype=torch.uint8, pin_memory=True)
    target, source = (host, device) if what == "save" else (device, host)

    def copy():
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    return statistics.median(seconds(copy) for _ in range(ROUNDS))


def by_layer(torch, cache, what):
    """Gather and copy layer by layer, as a program without an engine does."""
    index = torch.randperm(DEVICE_PAGES, device="cuda")[:PAGES]
    host = torch.empty((LAYERS, PAGES, cache.row), dtype=torch.uint8, pin_memory=True)

    def copy():
        for layer, rows in zip(cache.layers, host, strict=True):
            if what == "save":
                rows.copy_(layer[index], non_blocking=True)
            else:
                layer[index] = rows.to("cuda", non_blocking=True)
        torch.cuda.synchronize()

    return statistics.median(seconds(copy) for _ in range(ROUNDS))


def beside(cache, call, product):
    """The rate of calls beside the product, and the part of its speed that the product keeps."""
    with product.running():
        alone = product.rate(BESIDE_SECONDS)
        count, began, taken = product.count, time.monotonic(), []
        while time.monotonic() - began < BESIDE_SECONDS:
            taken.append(call())
        passed = time.monotonic() - began
        kept = (product.count - count) / passed / alone
    return cache.bytes / statistics.median(taken) / 1e9, kept


def measure(torch, table, row, product):
    cache = Cache(torch, row)
    cache.check()
    for what, call in (("save", cache.save_once), ("load", cache.load_once)):
        if what == "load":
            cache.warm_up_loads()
        rate = functools.partial(lambda size, time: size / time / 1e9, cache.bytes)
        best, loop = rate(floor(torch, cache, what)), rate(by_layer(torch, cache, what))
        name = f"kv: {what} {PAGES} pages of {LAYERS} rows of {show(row)}"
        ours = rate(statistics.median(call() for _ in range(ROUNDS)))
        target = (">= 80 % of the floor", ours >= 0.8 * best)
        table.add(name, ours, "GB/s", *target, floor=best, by_layer=loop)
        if product is not None:
            ours, kept = beside(cache, call, product)
            wanted, least = (42, 0.97) if what == "save" else (40, 0.95)
            target = (f">= {wanted} GB/s, product >= {least:.0%}", ours >= wanted and kept >= least)
            table.add(f"{name}, busy", ours, "GB/s", *target, product_percent=100 * kept)
    cache.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="without the matrix product")
    options = parser.parse_args()
    import torch

    table, product = Table(), None if options.quick else Product(torch)
    for row in ROWS:
        measure(torch, table, row, product)


if __name__ == "__main__":
    sys.exit(main())
