"""Scaling of both sides with concurrent client processes, and with the number of objects in the store.

`make bench-scale` runs it after the growth of the master's core. Clients: the same gets and puts by 1, 2, 4
and 8 processes at the same time. Objects: the time of a get of keys that the client has never read, and the
memory of the master, with ten thousand objects, a million, and optionally more.
"""

import argparse
import datetime
import json
import pathlib
import signal
import statistics
import sys
import tempfile
import time

import judge
import rows
from about import SCHEMA, Progress, machine, version
from sides import Failure, Store
from worker import SEGMENT_BYTES

SHAPES = (("tiffin", "same host"), ("mooncake", "same host"), ("mooncake", "daemon"))
CLIENTS = (1, 2, 4, 8)
SECONDS = 1.0
# Rounds in which all sides take turns; the median of each is shown.
ROUNDS = 3
OBJECTS = (10_000, 1_000_000, 10_000_000)
# Memory for the small objects, of which only a little is touched: there is a slot for every KiB.
BYTES_PER_OBJECT = 1200
# A throughput below this fraction of one client's is reported: two equal runs differ by as much.
GROWS_FROM = 0.9
GETS = 3000


def series_of(store, workload, case, clients, answers, objects=None):
    """The result of concurrent clients, in the format of `tiffin bench`."""
    times = sorted(value for answer in answers for value in answer["micros"])
    per_second = sum(answer["calls"] / answer["seconds"] for answer in answers)
    return {
        "source": store.side,
        "shape": store.shape,
        "workload": workload,
        "keys": None if workload == "put_from" else "new" if objects else "known",
        "size": case.size,
        "items": 1,
        "clients": clients,
        "objects": objects,
        "calls": sum(answer["calls"] for answer in answers),
        "seconds": sum(answer["seconds"] for answer in answers),
        "bytes_per_second": per_second * case.size,
        "calls_per_second": per_second,
        "micros": {
            "mean": statistics.fmean(times),
            "p50": statistics.median(times),
            "p90": judge.percentile(times, 0.9),
            "p99": judge.percentile(times, 0.99),
            "p999": judge.percentile(times, 0.999),
            "max": times[-1],
        },
    }


def flow(workers, case, workload):
    """Start the same work in all workers at the same moment."""
    start = time.monotonic() + 0.3
    for worker in workers:
        order = {"workload": workload, "start": start, "seconds": SECONDS}
        worker.tell("flow", case, order | {"bytes": SEGMENT_BYTES // 2 // len(workers)})
    return [worker.answer() for worker in workers]


def grow_clients(stores, progress):
    found = []
    for store in stores:
        store.start()
    crews = {store: [store.worker("other", index) for index in range(max(CLIENTS))] for store in stores}
    try:
        for size in ("4 KiB", "1 MiB"):
            case = rows.case_named(size)
            for workload in ("get_into", "put_from"):
                for count in CLIENTS:
                    kept = {}
                    for turn in range(ROUNDS):
                        for store in stores[turn % len(stores) :] + stores[: turn % len(stores)]:
                            progress.show(f"{workload} {size}, {count} clients")
                            answers = flow(crews[store][:count], case, workload)
                            kept.setdefault(store, []).append(
                                series_of(store, workload, case, count, answers)
                            )
                    for rounds in kept.values():
                        rounds.sort(key=lambda it: it["calls_per_second"])
                        found.append(rounds[len(rounds) // 2])
    finally:
        for crew in crews.values():
            for worker in crew:
                worker.end()
        for store in stores:
            store.stop()
    return found


def grow_objects(stores, counts, progress):
    """Gets of new keys among more and more objects, and the master's memory per object."""
    found, memory = [], {}
    case = rows.Case("64 B", 64)
    for store in stores:
        store.start(segment=max(SEGMENT_BYTES, max(counts) * BYTES_PER_OBJECT))
        try:
            other, before, there = store.worker("other"), store.master_bytes(), 0
            for count in counts:
                progress.show(f"{count} objects: {store.name}")
                other.tell("fill", None, {"first": there, "end": count})
                other.answer(3600)
                there = count
                client = store.worker("client")
                # Memory is preallocated from the first get on, which is not part of later ones.
                client.ask("pick", None, {"count": count, "gets": 0})
                store.rest(client, other)
                answer = client.ask("pick", None, {"count": count, "gets": GETS})
                client.end()
                found.append(series_of(store, "get_into", case, 1, [answer], objects=count))
                memory.setdefault(store.side, {})[count] = (store.master_bytes() - before) / count
            other.end()
        finally:
            store.stop()
    return found, memory


def show(clients, objects, memory):
    lines = ["", f"{'throughput with clients':<34}" + "".join(f"{count:>12}" for count in CLIENTS)]
    for one in clients:
        if one["clients"] != CLIENTS[0]:
            continue
        same = [
            it
            for it in clients
            if all(it[name] == one[name] for name in ("source", "shape", "workload", "size"))
        ]
        bulk = one["size"] >= rows.MIB
        values = [it["bytes_per_second"] / 1e9 if bulk else it["calls_per_second"] / 1e3 for it in same]
        grows = "" if min(values) >= GROWS_FROM * values[0] else "  LESS THAN ONE CLIENT'S"
        unit = "GB/s" if bulk else "k/s"
        name = f"{one['source']}, {one['shape']}"
        title = f"{name:<22}{one['workload']:<9}{unit:>4}"
        lines.append(f"{title:<34}" + "".join(f"{value:>12.2f}" for value in values) + grows)
    lines.append("")
    lines.append(
        f"{'get among objects':<34}{'objects':>12}{'p50 µs':>12}{'p99 µs':>12}{'master B/object':>18}"
    )
    for one in objects:
        each = memory[one["source"]][one["objects"]]
        micros = one["micros"]
        name = f"{one['source']}, {one['shape']}"
        lines.append(
            f"{name:<34}{one['objects']:>12}{micros['p50']:>12.1f}{micros['p99']:>12.1f}{each:>18.0f}"
        )
    return "\n".join(lines)


def parse():
    parser = argparse.ArgumentParser(prog="bench/scale.py", description=__doc__.split("\n")[0])
    parser.add_argument("--ours", required=True, help="the Python of an environment with our wheels")
    parser.add_argument("--peer", help="the Python of an environment with the official wheel")
    parser.add_argument(
        "--objects-max", type=int, default=1_000_000, help="the maximum number of objects (1000000)"
    )
    parser.add_argument("--output", type=pathlib.Path, help="a folder for scale.json")
    return parser.parse_args()


def main():
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    pythons = {"tiffin": arguments.ours, "mooncake": arguments.peer}
    began, progress = time.monotonic(), Progress(300)
    with tempfile.TemporaryDirectory(prefix="tiffin-bench-", ignore_cleanup_errors=True) as folder:
        make = lambda shapes: [
            Store(side, shape, pythons[side], folder) for side, shape in shapes if pythons[side]
        ]
        try:
            clients = grow_clients(make(SHAPES), progress)
            counts = [count for count in OBJECTS if count <= arguments.objects_max]
            objects, memory = grow_objects(make(SHAPES[:2]), counts, progress)
        except Failure as failure:
            progress.close()
            said = pathlib.Path(failure.log).read_text(errors="replace")[-3000:] if failure.log else ""
            sys.exit(f"error: {failure}" + (f"\n\nThe end of its log:\n{said}" if said else ""))
    progress.close()
    print(show(clients, objects, memory))
    if arguments.output:
        found = {
            "schema": SCHEMA,
            "kind": "growth",
            "made": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "seconds": time.monotonic() - began,
            "versions": {"tiffin": version(arguments.ours, "tiffin")},
            "machine": machine(),
            "master_bytes_per_object": memory,
            "series": clients + objects,
        }
        arguments.output.mkdir(parents=True, exist_ok=True)
        path = arguments.output / "scale.json"
        path.write_text(json.dumps(found, indent=1))
        print(f"written: {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
