"""A probe, a pause of 50 ms, and a get: how much is served from memory, compared with the official wheel.

Every store has 128 MiB of memory and twice that on its disk, inside the measuring process, and is used
through the same calls of `mooncake.store`. Keys that are only on the disk are requested in three passes. A
store that promotes used objects improves from the second pass on. Only a store that acts on the probe can
serve the first pass from memory. The stores take turns, a few objects each.

The peer reads its files through the kernel's page cache, which holds everything here; ours does not.
"""

import argparse
import json
import mmap
import pathlib
import statistics
import sys
import tempfile
import time

MIB = 1 << 20
MEMORY_BYTES = 128 * MIB
OBJECTS = 256
BATCH = 4
BATCHES = 12
PASSES = 3
PAUSE_SECONDS = 0.05
# Promotions may evict objects that were last used this long ago: the leases of both sides have expired.
COLD_SECONDS = 6
FILL_SECONDS_MAX = 120

PEER_FLAGS = ["--enable_offload=true"]
PEER_DISK = {
    "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": str(128 * MIB),
    # Otherwise nothing is written before 256 MiB or 500 objects have accumulated.
    "MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES": str(16 * MIB),
}
FAST_BEAT = {"MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": "1"}
# Side, name, flags of its master, environment of the store, and whether the probe prefetches.
WAYS = (
    ("tiffin", "nothing", ["--promotion_on_hit=false"], {}, False),
    ("tiffin", "on hit", ["--promotion_on_hit=true"], {}, False),
    ("tiffin", "on exist", ["--promotion_on_hit=false"], {}, True),
    ("mooncake", "nothing", [], PEER_DISK | FAST_BEAT, False),
    ("mooncake", "on hit, as it comes", ["--promotion_on_hit=true"], PEER_DISK, False),
    (
        "mooncake",
        "on hit, beat 1 s, 64 each",
        ["--promotion_on_hit=true", "--promotion_max_per_heartbeat=64"],
        PEER_DISK | FAST_BEAT,
        False,
    ),
)


def name(number):
    return f"object-{number:06d}"


class Subject:
    """A store inside this process, controlled by lines of JSON."""

    def __init__(self, address, disk, prefetches):
        from mooncake import store

        self.options = store.ExistOptions(prefetch_to_memory=True) if prefetches else None
        self.store = store.MooncakeDistributedStore()
        setup = ("127.0.0.1", "P2PHANDSHAKE", MEMORY_BYTES, 64 * MIB, "tcp", "", address, None, True, disk)
        answer = self.store.setup(*setup)
        if answer != 0:
            sys.exit(f"error: setup returned {answer}")
        self.memory = mmap.mmap(-1, MIB)
        self.address = address_of(self.memory)
        self.store.register_buffer(self.address, MIB)

    def fill(self):
        """Put all objects, as fast as the disk accepts them, and return the keys that only the disk has."""
        data = bytes(range(256)) * (MIB // 256)
        end = time.monotonic() + FILL_SECONDS_MAX
        refused = 0
        for number in range(OBJECTS):
            while self.store.put(name(number), data) != 0:
                refused += 1
                if time.monotonic() > end:
                    sys.exit(f"error: the store accepts only {number} objects")
                time.sleep(0.02)
        names = [name(number) for number in range(OBJECTS)]
        only = []
        while len(only) < BATCH * BATCHES and time.monotonic() < end:
            time.sleep(1)
            found = self.store.batch_get_replica_desc(names)
            only = [key for key in names if key in found and is_only_on_disk(found[key])]
        if len(only) < BATCH * BATCHES:
            sys.exit(f"error: only {len(only)} objects are only on the disk")
        lost = sum(key not in found for key in names)
        self.keys = only[: BATCH * BATCHES]
        return {"lost": lost, "refused": refused, "only_on_disk": len(only)}

    def visit(self, batch):
        """Probe, pause and get. Returns the duration of the gets, and how many were served from memory."""
        keys = self.keys[batch * BATCH : (batch + 1) * BATCH]
        if self.options:
            there = self.store.batch_is_exist(keys, self.options)
        else:
            there = self.store.batch_is_exist(keys)
        time.sleep(PAUSE_SECONDS)
        from_memory, failed, began = 0, 0, time.perf_counter()
        for key in keys:
            before = self.store.get_offload_rpc_read_count()
            if self.store.get_into(key, self.address, MIB) != MIB:
                failed += 1
            elif self.store.get_offload_rpc_read_count() == before:
                from_memory += 1
        took = time.perf_counter() - began
        failed += sum(answer != 1 for answer in there)
        return {"ms": took * 1e3, "from_memory": from_memory, "failed": failed}


def is_only_on_disk(replicas):
    return all(replica.is_local_disk_replica() for replica in replicas)


def address_of(memory):
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def be_subject(arguments):
    subject = Subject(arguments.address, arguments.disk, arguments.prefetches)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answer = subject.fill() if command["do"] == "fill" else subject.visit(command["slice"])
        print(json.dumps(answer), flush=True)
    subject.store.close()


class Way:
    """One row of the table: its processes and results."""

    def __init__(self, way, python, folder):
        from sides import Process, free_ports

        self.side, self.name, flags, environment, prefetches = way
        self.visits = [[] for _ in range(PASSES)]
        python = pathlib.Path(python).absolute()
        quiet = {"GLOG_logtostderr": "1", "GLOG_minloglevel": "2"}
        port, metrics = free_ports(2)
        place = pathlib.Path(folder) / f"{self.side} {self.name}".replace(" ", "-").replace(",", "")
        (place / "disk").mkdir(parents=True)
        common = [f"--rpc_port={port}", "--rpc_address=127.0.0.1", f"--metrics_port={metrics}"]
        common += ["--metrics_host=127.0.0.1", "--default_kv_lease_ttl=100", *PEER_FLAGS]
        master = [python.with_name("mooncake_master"), *common, *flags]
        self.master = Process(f"{self.side} {self.name} master", master, str(place), quiet, close_max=2)
        time.sleep(1)
        command = [python, __file__, "--be", "--address", f"127.0.0.1:{port}", "--disk", str(place / "disk")]
        command += ["--prefetches"] if prefetches else []
        # Ours has a setting for the size of its disk; the peer uses nine tenths of the filesystem.
        size = {"MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": str(1024 * MIB)}
        self.subject = Process(f"{self.side} {self.name}", command, str(place), environment | size | quiet)
        self.subject.answer(60)
        self.subject.tell("fill")
        self.filled = self.subject.answer(FILL_SECONDS_MAX * 2)

    def visit(self, number, batch):
        self.visits[number].append(self.subject.ask("visit", number=batch))

    def result(self):
        passes = []
        for visits in self.visits:
            times = sorted(visit["ms"] for visit in visits)
            passes.append(
                {
                    "from_memory": sum(visit["from_memory"] for visit in visits) / (len(visits) * BATCH),
                    "median_ms": statistics.median(times),
                    "worst_ms": times[-1],
                    "failed": sum(visit["failed"] for visit in visits),
                }
            )
        return {"side": self.side, "name": self.name, **self.filled, "passes": passes}

    def end(self):
        self.subject.end()
        self.master.end()


def compare(arguments):
    from sides import Failure

    pythons = {"tiffin": arguments.ours, "mooncake": arguments.peer}
    ways = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        try:
            for way in WAYS:
                try:
                    ways.append(Way(way, pythons[way[0]], folder))
                except Failure as failure:
                    # A store that does not run here is a result, with its reason.
                    log = pathlib.Path(failure.log).read_text(errors="replace")[-2000:] if failure.log else ""
                    print(f"{way[0]}, {way[1]}: {failure}\n{log}", file=sys.stderr)
            time.sleep(COLD_SECONDS)
            for number in range(PASSES):
                for batch in range(BATCHES):
                    for way in ways[batch % len(ways) :] + ways[: batch % len(ways)]:
                        way.visit(number, batch)
            return [way.result() for way in ways]
        finally:
            for way in ways:
                way.end()


def show(results):
    pause_ms = PAUSE_SECONDS * 1e3
    print(f"probe, {pause_ms:.0f} ms, {BATCH} gets of 1 MiB; {PASSES} passes over keys that only a disk had:")
    for result in results:
        cells = "".join(
            f"   {it['from_memory'] * 100:3.0f} % {it['median_ms']:6.2f} ms ({it['worst_ms']:6.2f})"
            for it in result["passes"]
        )
        lost = f"   {result['lost']} of {OBJECTS} objects lost" if result["lost"] else ""
        failed = sum(it["failed"] for it in result["passes"])
        failed = f"   {failed} gets failed" if failed else ""
        print(f"  {result['side']:<9}{result['name']:<26}{cells}{lost}{failed}")
    print("  (from memory, median, worst, by pass)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ours")
    parser.add_argument("--peer")
    parser.add_argument("--folder", default=".")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--be", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--disk", help=argparse.SUPPRESS)
    parser.add_argument("--prefetches", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.be:
        return be_subject(arguments)
    results = compare(arguments)
    return print(json.dumps(results)) if arguments.json else show(results)


if __name__ == "__main__":
    main()
