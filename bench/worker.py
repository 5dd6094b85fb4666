"""The program inside each of the two environments: a client that measures slices on request.

A worker reads one JSON command per line and answers each with one line. Both sides run this file. Shapes
differ only in how the store is opened and where the buffers come from.
"""

import argparse
import ctypes
import functools
import gc
import importlib.util
import json
import mmap
import random
import sys
import time

import rows

SEGMENT_BYTES = 512 * rows.MIB
STAGING_BYTES = 64 * rows.MIB
BUFFER_BYTES = 16 * rows.MIB
# Enough objects to touch nearly all of a segment once, as in a store that has been used for a while.
WARM_OBJECTS = 24
# Each turn starts with calls that do not count: during other turns, processors slept and caches were
# replaced.
LEAD_CALLS = 4
FILL_BATCH = 1000
WARM_GETS = 200


class Memory:
    """Bytes at a fixed address, for `put_from` and `get_into`."""

    def __init__(self, size):
        self.map = mmap.mmap(-1, size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))


class Lent:
    """The same, from the allocator whose memory the peer's daemon can map."""

    def __init__(self, size, allocator):
        self.address = allocator.alloc(size)
        expect("alloc", self.address != 0, True)
        self.map = memoryview((ctypes.c_char * size).from_address(self.address)).cast("B")


def expect(what, answer, wanted):
    if answer != wanted:
        sys.exit(f"error: {what} returned {answer!r} instead of {wanted!r}")


def long_name(number):
    """64 bytes that differ everywhere, as hashes do."""
    return f"{number * 0x9E3779B97F4A7C15 % (1 << 64):016x}{number:048x}"


def timed(call, *arguments):
    """The microseconds that one call takes."""
    began = time.perf_counter_ns()
    call(*arguments)
    return (time.perf_counter_ns() - began) / 1e3


class Client:
    """An open store, a buffer to put from and one to get into."""

    def __init__(self, shape, role, address, index, segment):
        from mooncake import store as mooncake

        self.store = mooncake.MooncakeDistributedStore()
        self.index = index
        if shape == "daemon":
            allocator = mooncake.MooncakeHostMemAllocator()
            self.source, self.target = Lent(BUFFER_BYTES, allocator), Lent(BUFFER_BYTES, allocator)
            answer = self.store.setup_dummy(SEGMENT_BYTES, STAGING_BYTES, address)
        else:
            self.source, self.target = Memory(BUFFER_BYTES), Memory(BUFFER_BYTES)
            holds = role == "owner" or (role == "client" and shape == "same process")
            segment = segment if holds else 0
            answer = self.store.setup("127.0.0.1", "P2PHANDSHAKE", segment, STAGING_BYTES, "tcp", "", address)
        expect("setup", answer, 0)
        if role != "owner":
            # All sides put the same bytes, so that objects of other clients can be checked too.
            block = random.Random(1).randbytes(64 * rows.KIB)
            self.source.map[:] = block * (BUFFER_BYTES // len(block))
            for memory in (self.source, self.target):
                expect("register_buffer", self.store.register_buffer(memory.address, BUFFER_BYTES), 0)

    def warm(self, _case, _slice):
        """Touch the segment once, for writing and for reading, with all other initialisation at first use."""
        keys = [f"warm-{index}" for index in range(WARM_OBJECTS)]
        for key in keys:
            expect("put_from", self.store.put_from(key, self.source.address, BUFFER_BYTES), 0)
        for key in keys:
            expect("get_into", self.store.get_into(key, self.target.address, BUFFER_BYTES), BUFFER_BYTES)
        self.remove(keys)
        return {}

    def offer(self, case, number):
        """Put objects that another client will get for the first time."""
        for keys in self.names(case, number, "new"):
            self.put_all(case, keys)
        return {}

    def run(self, case, number):
        """One slice of one case: the microseconds of each call, by measure."""
        if case.name == rows.EXIST.name:
            return {"batch_is_exist 128": self.exist(case, number)}
        batch = "batch_" if case.items > 1 else ""
        known, new = self.names(case, number, "own"), self.names(case, number, "new")
        get, lead = functools.partial(self.get_all, case), self.names(case, number, "lead")[:LEAD_CALLS]
        woken = [timed(self.put_all, case, keys) for keys in lead]
        times = {f"{batch}put_from": [timed(self.put_all, case, keys) for keys in known]}
        times[f"{batch}put_from{rows.AFTER_PAUSE}"] = woken[:1]
        for keys in known:
            get(keys)
        times[f"{batch}get_into"] = [timed(get, keys) for _ in range(case.rounds) for keys in known]
        # The calls that return bytes get half of the new keys: a key is new only once.
        unseen = new[: len(new) // 2] if case.copying else new
        ctypes.memset(self.target.address, 0, case.call_bytes)
        times[f"{batch}get_into{rows.NEW}"] = [timed(get, keys) for keys in unseen]
        same = self.target.map[: case.call_bytes] == self.source.map[: case.call_bytes]
        expect("comparing what came back", same, True)
        if case.copying:
            times |= self.copying(case, known, new[len(unseen) :])
        if case.extended:
            times |= self.ranged(case, known) | self.replacing(case, known) | self.tensors(case, known)
        self.remove([key for keys in lead + known + new for key in keys])
        return times

    def copying(self, case, known, new):
        """The times of `put` and `get`, which take and return bytes."""
        value = bytes(self.source.map[: case.size])
        keys = [f"{key}-copied" for (key,) in known]
        lead = [f"{key}-lead" for key in keys[:LEAD_CALLS]]
        put = lambda key: expect("put", self.store.put(key, value), 0)
        get = lambda key: expect("get", len(self.store.get(key)), case.size)
        for key in lead:
            put(key)
        times = {"put": [timed(put, key) for key in keys]}
        expect("comparing what came back", [self.store.get(key) == value for key in keys], [True] * len(keys))
        times["get"] = [timed(get, key) for _ in range(case.rounds) for key in keys]
        times[f"get{rows.NEW}"] = [timed(get, key) for (key,) in new]
        self.remove(lead + keys)
        return times

    def ranged(self, case, known):
        """The times of reads in four ranges that make up the object."""
        offsets = list(range(0, case.size, case.size // 4))
        sizes, target = [case.size // 4] * 4, self.target.address
        read = lambda key: self.store.get_into_ranges([target], [[key]], [[offsets]], [[offsets]], [[sizes]])
        get = lambda key: expect("get_into_ranges", read(key), [[sizes]])
        keys = [key for (key,) in known]
        for key in keys[:LEAD_CALLS]:
            get(key)
        return {"get_into_ranges": [timed(get, key) for _ in range(case.rounds) for key in keys]}

    def replacing(self, case, known):
        """The times of puts that replace an object of the same size."""
        if not hasattr(self.store, "upsert_from"):
            return {}
        upsert = lambda key: self.store.upsert_from(key, self.source.address, case.size)
        put = lambda key: expect("upsert_from", upsert(key), 0)
        keys = [key for (key,) in known]
        for key in keys[:LEAD_CALLS]:
            put(key)
        return {"upsert_from": [timed(put, key) for key in keys]}

    def tensors(self, case, known):
        """The times of tensors of that many bytes; empty without torch."""
        if not hasattr(self.store, "put_tensor") or not importlib.util.find_spec("torch"):
            return {}
        import torch

        value = torch.arange(case.size // 4, dtype=torch.float32)
        put = lambda key: expect("put_tensor", self.store.put_tensor(key, value), 0)
        get = lambda key: expect("get_tensor", self.store.get_tensor(key).shape, value.shape)
        keys = [f"{key}-tensor" for (key,) in known]
        times = {"put_tensor": [timed(put, key) for key in keys]}
        times["get_tensor"] = [timed(get, key) for _ in range(case.rounds) for key in keys]
        self.remove(keys)
        return times

    def exist(self, case, number):
        """The times of probes of many keys, of which every second one exists."""
        keys = [f"exist-{number}-{index}" for index in range(case.items)]
        for key in keys[::2]:
            expect("put_from", self.store.put_from(key, self.source.address, case.size), 0)
        wanted = [1, 0] * (case.items // 2)
        ask = lambda: expect("batch_is_exist", self.store.batch_is_exist(keys), wanted)
        for _ in range(LEAD_CALLS):
            ask()
        times = [timed(ask) for _ in range(case.rounds)]
        self.remove(keys[::2])
        return times

    def flow(self, case, order):
        """Repeat the same call from a common start: the number of calls, and the duration of each."""
        keys = [f"flow-{self.index}-{case.name.replace(' ', '')}-{at}" for at in range(case.calls)]
        is_get = order["workload"] == "get_into"
        if is_get:
            for key in keys:
                self.put_all(case, [key])
                self.get_all(case, [key])
        while time.monotonic() < order["start"]:
            time.sleep(0.001)
        began, tidying, micros, there = time.monotonic(), 0.0, [], []
        while time.monotonic() < began + order["seconds"]:
            if is_get:
                micros += [timed(self.get_all, case, [key]) for key in keys]
                continue
            # Removals would slow down the puts of other clients, so that they run only when there is no
            # space.
            if (len(there) + len(keys)) * case.size > order["bytes"]:
                tidying += timed(self.remove, there)
                there.clear()
            new = [f"{key}-{len(micros)}" for key in keys]
            micros += [timed(self.put_all, case, [key]) for key in new]
            there += new
        # Python's time between two calls counts: on busy processors, other clients' calls wait for it.
        seconds = time.monotonic() - began - tidying / 1e6
        self.remove(keys if is_get else there)
        # Counts include all calls, even if only a sample of their times is sent.
        answer = {"calls": len(micros), "seconds": seconds}
        return answer | {"micros": micros[:: max(1, len(micros) // 2000)]}

    def fill(self, _case, order):
        """Put small objects, with names as long as those of real pages."""
        for first in range(order["first"], order["end"], FILL_BATCH):
            keys = [long_name(at) for at in range(first, min(first + FILL_BATCH, order["end"]))]
            answers = self.store.batch_put_from(keys, [self.source.address] * len(keys), [64] * len(keys))
            expect("batch_put_from", answers, [0] * len(keys))
        return {}

    def pick(self, _case, order):
        """Get some of them, none twice."""
        places = random.Random(2).sample(range(order["count"]), order["gets"])
        get = lambda key: expect("get_into", self.store.get_into(key, self.target.address, 64), 64)
        for at in range(WARM_GETS):
            get(long_name(at))
        micros = [timed(get, long_name(at)) for at in places]
        return {"calls": len(micros), "seconds": sum(micros) / 1e6, "micros": micros}

    def names(self, case, number, whose):
        """The keys of a slice: a list for each call."""
        name = f"{case.name.replace(' ', '')}-{number}-{whose}"
        return [[f"{name}-{call}-{item}" for item in range(case.items)] for call in range(case.calls)]

    def put_all(self, case, keys):
        if case.items == 1:
            expect("put_from", self.store.put_from(keys[0], self.source.address, case.size), 0)
            return
        places, sizes = self.places(self.source, case)
        expect("batch_put_from", self.store.batch_put_from(keys, places, sizes), [0] * case.items)

    def get_all(self, case, keys):
        if case.items == 1:
            expect("get_into", self.store.get_into(keys[0], self.target.address, case.size), case.size)
            return
        places, sizes = self.places(self.target, case)
        expect("batch_get_into", self.store.batch_get_into(keys, places, sizes), sizes)

    @functools.cache  # noqa: B019 (a worker has one client during its lifetime)
    def places(self, memory, case):
        return [memory.address + index * case.size for index in range(case.items)], [case.size] * case.items

    def remove(self, keys):
        for first in range(0, len(keys), FILL_BATCH):
            some = keys[first : first + FILL_BATCH]
            expect("batch_remove", self.store.batch_remove(some, True), [0] * len(some))

    def close(self):
        for memory in (self.source, self.target):
            self.store.unregister_buffer(memory.address)
        self.store.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", required=True)
    parser.add_argument("--role", required=True, choices=("client", "other", "owner"))
    parser.add_argument("--address", required=True)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--segment", type=int, default=SEGMENT_BYTES)
    arguments = parser.parse_args()
    client = Client(**vars(arguments))
    # A garbage collection in the middle of a slice would distort its time.
    gc.disable()
    print('{"ready": true}', flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        case = rows.case_named(command["case"]) if command["case"] else None
        print(json.dumps(getattr(client, command["do"])(case, command["slice"])), flush=True)
    client.close()


if __name__ == "__main__":
    main()
