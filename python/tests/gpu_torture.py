"""Lifetimes of objects under transfers of a device: puts, deletes and gets race, and every read is checked.

    make torture-gpu ARGS='--seconds 60'

Objects of many sizes share few keys and little memory, so that memory is used again at once. The bytes of an
object say which version it is. A read that counts must have all bytes of one version. Gets are queued behind
a kernel's work or not, with deletes and puts between the call and its result, and some handles are dropped.
"""

import argparse
import collections
import functools
import os
import random
import threading
import time

import tiffin

from device_arrays import Driver, Interface, cuda

KEYS = [f"key {number}" for number in range(12)]
SIZES = (8, 4096, 65_537, 300_000, 1 << 20)
SIZE_MAX = max(SIZES)
VERSIONS = 64
MEMORY = "24MiB"
#: What a call may raise here: the key is gone, there is no memory now, or the object changes all the time.
EXPECTED = (tiffin.NotFound, tiffin.Full, tiffin.Contended)
#: Bytes that are in no object, in front of each read.
MARK = 0xEE


@functools.cache
def content(version):
    """The bytes of a version; the first say which one it is."""
    size = SIZES[version % len(SIZES)]
    return version.to_bytes(8, "little") + random.Random(version).randbytes(size - 8)


class Worker:
    """A thread with a stream and memory of its own."""

    def __init__(self, store, seed):
        self.store, self.random, self.counts = store, random.Random(seed), collections.Counter()

    def run(self, may_continue):
        self.driver = Driver()
        self.stream = self.driver.stream(cuda.NON_BLOCKING)
        self.memory = self.driver.alloc(SIZE_MAX)
        calls = (self.put_from_device, self.put_from_host, self.delete, self.get, self.queued, self.dropped)
        while may_continue():
            call = self.random.choice(calls)
            try:
                call(self.random.choice(KEYS))
                self.counts[call.__name__] += 1
            except EXPECTED as error:
                self.counts[type(error).__name__] += 1
            # Nothing of this round uses the memory any more.
            self.driver.wait(self.stream)
        self.driver.free(self.memory)

    def version(self):
        return self.random.randrange(VERSIONS)

    def array(self, size=SIZE_MAX):
        return Interface(self.memory, (size,), stream=self.stream)

    def put_from_host(self, key):
        self.store.put(key, content(self.version()))

    def put_from_device(self, key):
        data = content(self.version())
        self.driver.write(self.memory, data)
        self.store.put(key, self.array(len(data)))
        # The source may be reused when the call has returned.
        self.driver.fill(self.memory, MARK, SIZE_MAX, self.stream)

    def delete(self, key):
        self.store.delete(key)

    def get(self, key):
        self.driver.fill(self.memory, MARK, SIZE_MAX, self.stream)
        self.check(key, self.store.get_into(key, self.array()))

    def queued(self, key):
        self.driver.fill(self.memory, MARK, SIZE_MAX, self.stream)
        handle = self.store.get_into(key, self.array(), stream=self.stream)
        self.disturb(key)
        self.check(key, handle.result())

    def dropped(self, key):
        self.store.get_into(key, self.array(), stream=self.stream)
        self.disturb(key)

    def disturb(self, key):
        """Let the memory of the object be used again, if nothing keeps it."""
        choice = self.random.randrange(3)
        try:
            if choice == 0:
                self.store.delete(key)
            elif choice == 1:
                self.store.put(key, content(self.version()))
        except EXPECTED as error:
            self.counts[type(error).__name__] += 1

    def check(self, key, size):
        read = self.driver.read(self.memory, SIZE_MAX)
        version = int.from_bytes(read[:8], "little")
        assert version < VERSIONS, f"{key}: {size} bytes of no version: {read[:16].hex()}"
        expected = content(version)
        assert size == len(expected), f"{key}: {size} bytes of version {version}, which has {len(expected)}"
        if read[:size] != expected:
            wrong = next(at for at in range(size) if read[at] != expected[at])
            raise AssertionError(f"{key}: byte {wrong} of version {version} is not from it")
        self.counts["checked"] += 1


def torture(may_continue, workers=4, seed=1, kind=Worker):
    """Run until `may_continue` is false in every thread, and count what happened."""
    driver = Driver()
    driver.seed(seed, is_eager=True)
    failures, counts = [], collections.Counter()
    with tiffin.connect(memory=MEMORY, timeout=60) as store:
        store.put(KEYS[0], content(0))
        with store.view(KEYS[0]) as view:
            # Gets are queued from now on.
            view.cuda_array("cuda:0", timeout=60)

        def run(worker):
            try:
                worker.run(lambda: not failures and may_continue())
            except BaseException as error:
                failures.append(error)

        all_workers = [kind(store, f"{seed} {number}") for number in range(workers)]
        threads = [threading.Thread(target=run, args=(worker,)) for worker in all_workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for worker in all_workers:
            counts.update(worker.counts)
    if failures:
        raise failures[0]
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.workers} workers, {options.seconds:.0f} s", flush=True)
    end = time.monotonic() + options.seconds
    counts = torture(lambda: time.monotonic() < end, options.workers, options.seed)
    print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    print(f"{counts['checked']} reads were checked byte by byte: no wrong byte")


if __name__ == "__main__":
    main()
