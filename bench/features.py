"""Hidden states: our feature store beside SpecForge's way to use the official wheel, on this host.

A producer and a trainer, each a process of its own, take turns: the producer puts samples of a profile, the
trainer reads two at a time and frees them. On our side that is `tiffin.features`; on the other what
SpecForge's `MooncakeFeatureStore` does: per tensor register, put_from with a hard pin, unregister; is_exist,
register, get_into, unregister; and remove, which is tried until the lease has run out. The floor is memcpy of
the same bytes, from and to memory that is as far from the caches as that of two processes is. The last two
columns say how many times as many samples we move as they do, and how far that is from the floor.
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
#: Bytes of the tensors of one sample, largest first. Those of section 2.7 that fit here.
PROFILES = {
    "Domino, mean (21.5 MiB, 3 tensors)": [22_528_000, 4_400, 4_400],
    "eagle3 (64 MiB, 5 tensors)": [50_331_648, 16_777_216, 16_384, 16_384, 16_384],
    "small (1 MiB, 3 tensors)": [1_048_576, 4_096, 4_096],
}
ROUNDS = 8
#: So many of them are for everybody to have touched the memory that is used again and again.
WARM_ROUNDS = 3
#: Batches of a round, the last of which counts: a pipeline does not pause between them, as those do here who
#: wait for their turn.
BATCHES = 3
SAMPLES = 4
SEGMENT = 1 << 30
#: More than fits into any cache.
COLD = 64 << 20


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
        """Seconds to put, to read and to free so many samples; and until the bytes were free."""
        for batch in range(BATCHES):
            put = ask(self.producer, do="put", sizes=sizes, number=number * BATCHES + batch, count=SAMPLES)
            got = ask(self.trainer, do="get", refs=put["refs"])
        freed = ask(self.trainer, do="free")
        return put["seconds"], got["seconds"], freed["seconds"]

    def end(self):
        """Both are gone."""
        self.trainer.end()
        self.producer.end()


def ask(process, **request):
    """What a worker answers."""
    process.child.stdin.write(json.dumps(request) + "\n")
    process.child.stdin.flush()
    return process.answer(120)


def floor(sizes):
    """Seconds that memcpy takes for the same samples, in memory that was written before, and not just now."""
    source = bytearray(sum(sizes))
    targets = [memoryview(bytearray(sum(sizes))) for _ in range(SAMPLES)]
    others = [memoryview(bytearray(COLD)) for _ in range(2)]
    for target in targets:
        target[:] = source
    others[0][:] = others[1]
    begin = time.perf_counter()
    for target in targets:
        target[:] = source
    return time.perf_counter() - begin


def main():
    """Measure in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ours", required=True)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
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
            times = {pair.side: [] for pair in pairs}
            for number in range(ROUNDS):
                for pair in pairs if number % 2 else reversed(pairs):
                    times[pair.side].append(pair.round(sizes, number))
            rows += [row(profile, side, sizes, rounds[WARM_ROUNDS:]) for side, rounds in times.items()]
            copies = [(floor(sizes),) * 2 + (0.0,) for _ in range(ROUNDS - WARM_ROUNDS)]
            rows.append(row(profile, FLOOR, sizes, copies))
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
    size = sum(sizes) * SAMPLES / 1e9
    return {
        "profile": profile,
        "side": side,
        "put_gbps": size / put,
        "get_gbps": size / got,
        "get_two_ms": got / SAMPLES * 2 * 1e3,
        "samples_per_s": SAMPLES / (put + got),
        "free_ms": freed * 1e3,
    }


if __name__ == "__main__":
    main()
