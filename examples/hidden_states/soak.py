"""Runs the pipeline for minutes or hours, with repeated puts, lost answers, stalls and kills, and reports
leaks."""

import argparse
import json
import random
import sys
import threading
import time

import work
from crew import STORES, Crew, cluster

#: How often a worker is killed.
KILL_S = 15.0
#: How often the state is polled.
LOOK_S = 0.5


def arguments():
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--producers", type=int, default=2)
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--window", type=int, default=4)
    parser.add_argument("--in-flight", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--ttl", type=float, default=300)
    parser.add_argument("--store", default="tiffin", help=f"backend and address: {STORES}")
    parser.add_argument("--rate", type=float, default=40, help="samples per second of each producer")
    parser.add_argument("--seed", type=int, default=11)
    return parser.parse_args()


def main():
    """Run, and fail after a leak or wrong bytes."""
    options = arguments()
    with cluster(options) as (address, mooncake):
        plan = work.Plan(
            address=address,
            mooncake=mooncake,
            samples=1 << 40,
            producers=options.producers,
            window=options.window,
            tokens=options.tokens,
            hidden=options.hidden,
            seed=options.seed,
            has_faults=True,
            rate=options.rate,
        )
        result = run(options, plan)
    print(json.dumps(result, indent=2))
    sys.exit(0 if result["wrong"] == result["left_bytes"] == result["left_samples"] == 0 else 1)


def run(options, plan):
    """Run all workers until the time limit, and then until all samples are consumed."""
    features = work.open_store(plan)
    index = features.index
    index.open_stream(work.STREAM, refs_high=options.in_flight, refs_low=options.in_flight * 3 // 4)
    chance, pause = random.Random(options.seed), threading.Event()
    crews = [Crew(work.produce, options.producers, plan), Crew(work.train, options.trainers, plan)]
    next_kill, kills, peak, peak_used, is_ended = KILL_S, 0, (0, 0), 0, False
    begin = time.monotonic()
    until = begin + 60 * options.minutes
    while True:
        made, done = [crew.tend() for crew in crews]
        stat = index.open_stream(work.STREAM)
        peak = max(peak, (stat.size, stat.refs))
        peak_used = max(peak_used, index.wait_usage(at_least=0).used)
        now = time.monotonic()
        if now > until and not index.exists(work.STOP):
            index.put(work.STOP, b"")
        if made and not is_ended:
            index.end_stream(work.STREAM)
            is_ended = True
        if done and is_ended:
            break
        if now - begin > next_kill and now < until:
            next_kill += KILL_S
            kills += 1
            chance.choice(crews).kill_one(chance)
        pause.wait(LOOK_S)
    wrong = int(index.get("wrong", default=b"0"))
    index.delete(["wrong", work.STOP])
    index.delete_prefix(work.AT, force=True)
    features.gc()
    usage = index.wait_usage(at_least=0)
    seconds = time.monotonic() - begin
    result = {
        "seconds": round(seconds, 1),
        "appended": stat.appended,
        "consumed": stat.consumed,
        "delivered": sum(group.delivered for group in stat.groups),
        "samples_per_s": round(stat.consumed / seconds, 1),
        "kills": kills,
        "wrong": wrong,
        "left_samples": stat.refs,
        "left_bytes": usage.used,
        "peak_in_flight_bytes": peak[0],
        "peak_in_flight_samples": peak[1],
        "peak_over_in_flight": round(peak_used / max(1, peak[0]), 3),
        "limit_samples": options.in_flight,
    }
    features.close()
    return result


if __name__ == "__main__":
    main()
