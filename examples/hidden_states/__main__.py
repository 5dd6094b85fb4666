"""Producers of hidden states, trainers that read them, and a display of the samples in flight: see the
README."""

import argparse
import json
import random
import sys
import threading
import time

import picture
import tiffin
import work
from crew import STORES, Crew, cluster
from tiffin.features import FeatureStore

#: The refresh interval of the display.
LOOK_S = 0.1


def arguments():
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(prog="hidden_states", description=__doc__)
    parser.add_argument("--samples", type=int, default=400, help="the number of samples")
    parser.add_argument("--producers", type=int, default=2)
    parser.add_argument("--trainers", type=int, default=2, help="the data-parallel size")
    parser.add_argument("--window", type=int, default=4, help="samples that a trainer takes for one step")
    parser.add_argument("--tokens", type=int, default=256, help="the mean length of a sample")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--in-flight", type=int, default=32, help="the high mark; the low one is 3/4 of it")
    parser.add_argument("--ttl", type=float, default=10, help="the duration of a lease, in seconds")
    parser.add_argument("--memory", default="512MiB")
    parser.add_argument("--store", default="tiffin", help=f"backend and address: {STORES}")
    parser.add_argument("--kill", type=int, default=0, help="the number of times that a worker is killed")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--picture", default="hidden_states.svg")
    parser.add_argument("--json", action="store_true", help="print the result as JSON, and no display")
    return parser.parse_args()


def main():
    """Run the pipeline, and print the result."""
    options = arguments()
    with cluster(options) as (address, mooncake):
        plan = work.Plan(
            address=address,
            mooncake=mooncake,
            samples=options.samples,
            producers=options.producers,
            window=options.window,
            tokens=options.tokens,
            hidden=options.hidden,
            seed=options.seed,
        )
        features = work.open_store(plan)
        index = features.index
        low = options.in_flight * 3 // 4
        index.open_stream(work.STREAM, refs_high=options.in_flight, refs_low=low)
        if options.trainers * options.window > low + 1:
            sys.exit(f"error: {options.trainers} x {options.window} samples in a step, {low + 1} in flight")
        result, curve = run(options, plan, features)
        features.close()
    picture.draw(options.picture, curve, f"{options.samples} samples, lease of {options.ttl:g} s")
    if options.json:
        print(json.dumps(result))
        return
    print(
        f"trained {result['trained']} samples, each once, in {result['seconds']:.1f} s; "
        f"wrong bytes: {result['wrong']}; left behind: {result['left_bytes']} bytes; "
        f"workers restarted: {result['started_again']}"
    )
    print(f"wrote {options.picture}")


def run(options, plan, features: FeatureStore):
    """Run all workers until every sample is trained."""
    chance = random.Random(options.seed)
    index = features.index
    producers = Crew(work.produce, options.producers, plan)
    trainers = Crew(work.train, options.trainers, plan)
    kills = [options.samples * (i + 1) // (options.kill + 1) for i in range(options.kill)]
    begin, curve, is_ended, pause = time.monotonic(), [], False, threading.Event()
    while True:
        made = producers.tend()
        if made and not is_ended:
            index.end_stream(work.STREAM)
            is_ended = True
        done = trainers.tend()
        stat = index.open_stream(work.STREAM)
        now = time.monotonic() - begin
        curve.append((now, stat.consumed, stat.size, stat.refs))
        if kills and stat.consumed >= kills[0]:
            kills.pop(0)
            chance.choice([producers, trainers]).kill_one(chance)
        if not options.json:
            show(options, curve, stat)
        if done and is_ended:
            break
        pause.wait(LOOK_S)
    wrong = int(index.get("wrong", default=b"0"))
    index.delete("wrong")
    features.gc()
    if not options.json:
        print()
    result = {
        "trained": stat.consumed,
        "seconds": now,
        "wrong": wrong,
        "left_bytes": index.wait_usage(at_least=0).used,
        "started_again": producers.started_again + trainers.started_again,
        "peak_in_flight_bytes": max(it[2] for it in curve),
        "delivered": sum(group.delivered for group in stat.groups),
    }
    return result, curve


def show(options, curve, stat):
    """One line that is overwritten."""
    now, count = curve[-1][:2]
    then, before = curve[max(0, len(curve) - 20)][:2]
    rate = (count - before) / (now - then) if now > then else 0.0
    line = (
        f"  {count}/{options.samples} trained · {rate:.1f} samples/s · "
        f"{stat.size / (1 << 20):.1f} MiB in flight · lag {stat.refs}"
    )
    print(f"\r{line:<78}", end="", flush=True)


if __name__ == "__main__":
    try:
        main()
    except tiffin.StreamFailed as error:
        sys.exit(f"error: {error}")
