"""A long request, others that evict its pages from device and host, and the same request again, on four
ranks.

    python examples/kv_toy/story.py --store 127.0.0.1:7400

Its pages return from the store through the host to the device, and the answer is the same. With 439 tokens
and pages of 64, exactly 24 pages are read from the store: six full ones on each of four ranks. This is the
scenario of TokenSpeed's #293.
"""

import argparse
import json
import sys
import threading

import numpy
import tiffin
import toy
from tiffin import kv

RANKS = 4
PAGE_TOKENS = 64
PROMPT = [1000 + at for at in range(439)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", help="the address of a Tiffin cluster")
    parser.add_argument("--mooncake", help="the address of a Mooncake master")
    options = parser.parse_args()
    group, told = kv.local_group(RANKS), [None] * RANKS
    here = None if options.store or options.mooncake else tiffin.connect(memory="64MiB")

    def run(rank):
        if options.mooncake:
            store = toy.mooncake_store(options.mooncake, 0)
        else:
            store = here or tiffin.connect(options.store)
        told[rank] = story(store, rank, group[rank])

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert None not in told, "a rank has failed"
    pages, answers, digests = zip(*told, strict=True)
    shown = {
        "pages read": sum(pages),
        "same answer on every rank": len({tuple(answer) for answer in answers}) == 1,
        "same decisions on every rank": len(set(digests)) == 1,
    }
    print(json.dumps(shown), flush=True)
    assert sum(pages) == 24 and len(set(digests)) == 1


def story(store, rank, gather):
    """The work of one rank: the pages read for the second request, its answer, and the digest of its
    engine."""
    device = numpy.zeros((16, PAGE_TOKENS * toy.TOKEN_BYTES), numpy.uint8)
    engine = kv.Engine(
        device,
        page_tokens=PAGE_TOKENS,
        host_pages=16,
        store=store,
        namespace=kv.Namespace(model="the story of 293"),
        threshold_pages=1,
        ranks=RANKS,
        rank=rank,
        gather=gather,
        compare_every=1,
    )
    serving = toy.Toy(engine, device, rank)
    first, _ = serving.ask(PROMPT, 1)
    seed = 2
    while engine.match(PROMPT).host:
        serving.ask([seed * 1000 + at for at in range(7 * PAGE_TOKENS)], 1)
        serving.settle()
        seed += 1
    before = engine.stats()["pages_done"]["fetch"]
    again, found = serving.ask(PROMPT, 1)
    serving.settle()
    assert first == again == toy.answer(PROMPT, 1) and found.store == 6 * PAGE_TOKENS
    result = engine.stats()["pages_done"]["fetch"] - before, again, engine.digest()
    # The other ranks wait for a rank that leaves.
    gather(b"")
    engine.close()
    return result


if __name__ == "__main__":
    sys.exit(main())
