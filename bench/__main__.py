"""Compares Tiffin's `mooncake.store` with the official one: the same calls, slice by slice, on this
machine.

There are three groups. In `same host`, another process holds the memory; the peer also runs in its best
configuration there, a daemon that shares memory. In `same process`, the client holds the memory. In `tcp`,
shared memory is disabled on our side. In each group all servers run at the same time. The stores and the
floor take turns of a few milliseconds; the floor is memcpy or a loopback socket with the same sizes. The
order of turns changes every time.

Every process is ended by its id, also when this one is interrupted or killed.
"""

import argparse
import datetime
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import judge
import rows
import show
from about import SCHEMA, Progress, machine, version
from sides import Failure, Machine, Store

GROUPS = {
    "same host": (("tiffin", "same host"), ("mooncake", "same host"), ("mooncake", "daemon")),
    "same process": (("tiffin", "same process"), ("mooncake", "same process")),
    "tcp": (("tiffin", "tcp"), ("mooncake", "tcp")),
}
# The steady state, the same for all: the first slices after the warm-up of a client do not count.
SLICES_DROPPED = 2


def measure(stores, cases, repetitions, slices, until, progress, samples):
    """Run all repetitions of one group. No slice starts after `until`; all cases get the same number."""
    for store in stores:
        store.start()
    for repetition in range(repetitions):
        share = (until - time.monotonic()) / (repetitions - repetition)
        end = time.monotonic() + share
        for store in stores:
            store.open()
        for number in range(slices + SLICES_DROPPED):
            progress.show(f"{stores[0].shape}, repetition {repetition + 1} of {repetitions}")
            if time.monotonic() > end and number > SLICES_DROPPED:
                break
            turn = number % len(stores)
            for case in cases:
                if number >= SLICES_DROPPED and number % case.every:
                    continue
                for store in stores[turn:] + stores[:turn]:
                    times = store.measure(case, repetition * 1000 + number)
                    if number >= SLICES_DROPPED:
                        samples.keep(store.side, store.shape, case, repetition, number, times)
        for store in stores:
            store.close()


def compare(arguments, folder, progress):
    samples, idle = judge.Samples(), {}
    pythons = {"tiffin": arguments.ours, "mooncake": arguments.peer}
    groups = {name: GROUPS[name] for name in arguments.group or GROUPS}
    cases = [case for case in rows.CASES if case.name in (arguments.case or [case.name])]
    end = time.monotonic() + arguments.seconds_max
    for index, (name, members) in enumerate(groups.items()):
        stores = [Store(side, shape, pythons[side], folder) for side, shape in members if pythons[side]]
        stores.append(Machine(name, folder))
        now = time.monotonic()
        try:
            until = now + (end - now) / (len(groups) - index)
            measure(stores, cases, arguments.repetitions, arguments.slices, until, progress, samples)
        finally:
            for store in stores:
                store.stop()
        idle |= {store.name: store.idle_share() for store in stores if isinstance(store, Store)}
    return samples, idle


def document(arguments, samples, idle, cells, seconds):
    versions = {}
    if arguments.ours:
        versions["tiffin"] = version(arguments.ours, "tiffin")
    if arguments.peer:
        versions["mooncake"] = version(arguments.peer, "mooncake-transfer-engine-non-cuda")
    return {
        "schema": SCHEMA,
        "kind": "comparison",
        "made": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "seconds": seconds,
        "repetitions": arguments.repetitions,
        "versions": versions,
        "machine": machine(),
        "idle_cores": idle,
        "targets": [cell for cell in cells if "target" in cell],
        "beside": [cell for cell in cells if "target" not in cell],
        "series": judge.series(samples),
    }


def parse():
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.split("\n")[0])
    parser.add_argument("--ours", help="the Python of an environment with tiffin and tiffin-mooncake")
    parser.add_argument("--peer", help="the Python of an environment with the official wheel")
    parser.add_argument(
        "--repetitions", type=int, default=5, help="number of repetitions with new clients on both sides (5)"
    )
    parser.add_argument("--slices", type=int, default=16, help="turns per case and repetition (16)")
    parser.add_argument(
        "--group", action="append", choices=GROUPS, help="run only this group; may be repeated"
    )
    parser.add_argument(
        "--case",
        action="append",
        choices=[it.name for it in rows.CASES],
        help="measure only this case; likewise",
    )
    parser.add_argument("--seconds-max", type=float, default=480, help="start no slice after this time (480)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead of tables")
    parser.add_argument("--output", type=pathlib.Path, help="a folder for comparison.json and report.html")
    parser.add_argument("--tiffin", help="the command that renders the report")
    arguments = parser.parse_args()
    if not (arguments.ours or arguments.peer):
        parser.error("neither --ours nor --peer is given\n\nhint: run `make bench`, which prepares both")
    return arguments


def write(arguments, found):
    """Write the samples to a file, and the report if there is a command that renders it."""
    arguments.output.mkdir(parents=True, exist_ok=True)
    data, page = arguments.output / "comparison.json", arguments.output / "report.html"
    data.write_text(json.dumps(found, indent=1))
    print(f"\nwritten: {data}", file=sys.stderr)
    if arguments.tiffin:
        subprocess.run([arguments.tiffin, "bench", "report", data, "--output", page], check=True)


def main():
    arguments = parse()
    # A signal also stops the children.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    progress, began = Progress(arguments.seconds_max), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tiffin-bench-", ignore_cleanup_errors=True) as folder:
        try:
            samples, idle = compare(arguments, folder, progress)
        except Failure as failure:
            progress.close()
            said = pathlib.Path(failure.log).read_text(errors="replace")[-3000:] if failure.log else ""
            sys.exit(f"error: {failure}" + (f"\n\nThe end of its log:\n{said}" if said else ""))
        except KeyboardInterrupt:
            progress.close()
            sys.exit(130)
        progress.close()
    cells = judge.cells(samples)
    found = document(arguments, samples, idle, cells, time.monotonic() - began)
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        print(show.details(cells))
        for name, cores in idle.items():
            print(f"idle, {name}: {100 * cores:.1f} % of a core while others were measured")
        print(show.targets(cells))
    if arguments.output:
        write(arguments, found)


if __name__ == "__main__":
    main()
