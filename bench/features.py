"""Hidden states: our feature store and SpecForge's use of the official wheel, on this host.

A producer and a trainer, each its own process, take turns. The producer puts samples of a profile; the
trainer reads two at a time and frees them. Our side uses `tiffin.features`. The other side does what
SpecForge's `MooncakeFeatureStore` does. Per tensor it calls register, put_from with a hard pin, unregister;
is_exist, register, get_into, unregister; and remove, which is retried until the lease has expired.

The floor is memcpy of the same bytes, once for the put and once for the get, between the same number of
buffers, in turns with the others. The last two columns are our throughput relative to theirs, and to the
floor.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import sides

WORKER = pathlib.Path(__file__).with_name("features_worker.py")
#: Bytes of the tensors of one sample, largest first. They are those of SpecForge and TorchSpec, as far as
#: they fit here, and those of a prompt of 25 tokens, whose cost is mostly calls.
PROFILES = {
    "Domino, mean (21.5 MiB, 3 tensors)": [22_528_000, 4_400, 4_400],
    "Domino, longest (120 MiB, 3 tensors)": [125_829_120, 24_576, 24_576],
    "eagle3 (64 MiB, 5 tensors)": [50_331_648, 16_777_216, 16_384, 16_384, 16_384],
    "eagle3, long (512 MiB, 3 tensors)": [402_653_184, 134_217_728, 131_072],
    "DFlash (80 MiB, 2 tensors)": [83_886_080, 16_384],
    "small (1 MiB, 3 tensors)": [1_048_576, 4_096, 4_096],
}
ROUNDS = 8
#: The number of rounds in which every side touches the memory that is reused.
WARM_ROUNDS = 3
#: Batches of a round, of which only the last counts: a real pipeline does not pause between batches, but
#: here each side waits for its turn.
BATCHES = 3
SAMPLES = 4
#: The maximum number of bytes of a batch, so that batches of large samples have fewer.
BATCH_BYTES_MAX = 640 << 20
SEGMENT = 2 << 30
FLOOR = "floor (memcpy)"


class Pair:
    """A producer and a trainer of one side."""

    def __init__(self, side, python, address, folder):
        self.side = side
        # The link itself is the environment; resolving it would leave the environment.
        python = pathlib.Path(python).absolute()
        command = [python, WORKER, "--side", side, "--address", address, "--segment", str(SEGMENT)]
        self.producer = sides.Process(f"{side}, producer", [*command, "--role", "producer"], folder)
        self.producer.answer(sides.SETUP_SECONDS_MAX)
        self.trainer = sides.Process(f"{side}, trainer", [*command, "--role", "trainer"], folder)
        self.trainer.answer(sides.SETUP_SECONDS_MAX)

    def round(self, sizes, number):
        """Seconds to put, to read and to free a number of samples, and until the bytes were free."""
        for batch in range(BATCHES):
            number_of_batch, count = number * BATCHES + batch, samples_of(sizes)
            put = ask(self.producer, do="put", sizes=sizes, number=number_of_batch, count=count)
            got = ask(self.trainer, do="get", refs=put["refs"])
        freed = ask(self.trainer, do="free")
        return put["seconds"], got["seconds"], freed["seconds"]

    def end(self):
        """End both processes."""
        self.trainer.end()
        self.producer.end()


def ask(process, **request):
    """Send a request to a worker, and return its answer."""
    process.child.stdin.write(json.dumps(request) + "\n")
    process.child.stdin.flush()
    return process.answer(120)


def samples_of(sizes):
    """The number of samples of a batch."""
    return max(1, min(SAMPLES, BATCH_BYTES_MAX // sum(sizes)))


class Floor:
    """memcpy of the same samples: from one buffer to several, and from there to others."""

    def __init__(self, sizes):
        size, count = sum(sizes), samples_of(sizes)
        self.source = bytearray(size)
        self.stored, self.read = ([memoryview(bytearray(size)) for _ in range(count)] for _ in range(2))
        self.side = FLOOR

    def round(self, _sizes, _number):
        """Seconds to write and to read a batch. Nothing needs to be freed."""
        for _ in range(BATCHES):
            begin = time.perf_counter()
            for stored in self.stored:
                stored[:] = self.source
            put = time.perf_counter()
            for stored, read in zip(self.stored, self.read, strict=True):
                read[:] = stored
            got = time.perf_counter()
        return put - begin, got - put, 0.0


def main():
    """Measure in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ours", required=True)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", help="run only profiles whose names contain this")
    options = parser.parse_args()
    if not any(options.only in profile for profile in PROFILES):
        parser.error(f"no profile has `{options.only}` in its name; there are: {'; '.join(PROFILES)}")
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(options, folder)
    if options.json:
        print(json.dumps(rows))
        return
    print(
        "| profile | side | put GB/s | get GB/s | get of two, ms | samples/s | free, ms | x | of the floor |"
    )
    print("|---" * 9 + "|")
    rates = {(row["profile"], row["side"]): row["samples_per_s"] for row in rows}
    for row in rows:
        is_ours = row["side"] == "tiffin"
        times = row["samples_per_s"] / rates[row["profile"], "mooncake"]
        part = row["samples_per_s"] / rates[row["profile"], FLOOR]
        print(
            f"| {row['profile']} | {row['side']} | {row['put_gbps']:.2f} | {row['get_gbps']:.2f} "
            f"| {row['get_two_ms']:.2f} | {row['samples_per_s']:.1f} | {row['free_ms']:.2f} "
            f"| {f'{times:.1f}' if is_ours else ''} | {f'{part:.0%}' if is_ours else ''} |"
        )


def measure(options, folder):
    """One row for each profile and side."""
    up = [options.ours, "-m", "tiffin", "up", "--listen", "127.0.0.1:0", "--http", "off", "--json"]
    up += ["--memory", str(SEGMENT), "--state-dir", folder]
    server = subprocess.Popen(up, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    address = json.loads(server.stdout.readline())["master"]
    peer = sides.Store("mooncake", "same process", options.peer, folder)
    peer.start()
    pairs = []
    try:
        pairs = [
            Pair("tiffin", options.ours, address, folder),
            Pair("mooncake", options.peer, peer.address, folder),
        ]
        rows = []
        for profile, sizes in PROFILES.items():
            if options.only not in profile:
                continue
            everybody = [*pairs, Floor(sizes)]
            times = {it.side: [] for it in everybody}
            for number in range(ROUNDS):
                for it in everybody if number % 2 else reversed(everybody):
                    times[it.side].append(it.round(sizes, number))
            rows += [row(profile, side, sizes, rounds[WARM_ROUNDS:]) for side, rounds in times.items()]
            print(f"measured {profile}", file=sys.stderr)
        return rows
    finally:
        for pair in pairs:
            pair.end()
        peer.stop()
        server.terminate()
        server.wait()


def row(profile, side, sizes, rounds):
    """Medians of the rounds."""
    put, got, freed = (statistics.median(times) for times in zip(*rounds, strict=True))
    count = samples_of(sizes)
    size = sum(sizes) * count / 1e9
    return {
        "profile": profile,
        "side": side,
        "put_gbps": size / put,
        "get_gbps": size / got,
        "get_two_ms": got / count * 2 * 1e3,
        "samples_per_s": count / (put + got),
        "free_ms": freed * 1e3,
    }


if __name__ == "__main__":
    main()
