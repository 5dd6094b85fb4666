"""A toy inference engine: multi-turn chats through device, host and a shared store, with real bytes.

    python examples/kv_toy/toy.py                            # a store inside this process
    python examples/kv_toy/toy.py --store 127.0.0.1:7400     # a cluster, shared with its other clients
    python examples/kv_toy/toy.py --mooncake 127.0.0.1:50051 # an existing Mooncake cluster

Its "model" writes 64 bytes for every token into a page of the device. They depend on all tokens before it,
and the next token is a checksum over all of them. So a wrong byte in a cached page changes the answer.
Every cached page is also compared with its expected bytes before it is used.
"""

import argparse
import hashlib
import json
import random
import sys
import zlib

import numpy
import tiffin
from tiffin import kv

TOKEN_BYTES = 64
VOCABULARY = 50_000
WAIT_SECONDS_MAX = 60


class Sequence:
    """The state of a request, and the model's bytes for its tokens."""

    def __init__(self, prompt, generate):
        self.tokens = []
        self.prompt_length, self.length = len(prompt), len(prompt) + generate
        self.entries = []
        self.state = b""
        self.extend(prompt)
        self.table = None
        self.computed = 0

    def extend(self, tokens):
        for token in tokens:
            self.state = hashlib.blake2b(self.state + int(token).to_bytes(4, "little")).digest()
            self.tokens.append(int(token))
            self.entries.append(self.state)

    @property
    def reply(self):
        return self.tokens[self.prompt_length :]


class Toy:
    """Serves requests with an engine whose device memory is `device`."""

    def __init__(self, engine, device, rank=0):
        self.engine, self.rank = engine, rank
        # The bytes of the ranks differ, like parts of a tensor; the answers do not.
        self.mask = numpy.uint8(rank * 37 % 256)
        self.slots = device.reshape(-1, TOKEN_BYTES)
        self.sequences, self.ended = {}, {}
        self.told = {"submit": [], "computed": [], "finish": []}
        self.pages_checked = self.recomputed = self.retractions = 0
        self.found = kv.Cached(0, 0, 0)
        self.operations = []

    def submit(self, prompt, generate=4, priority=0):
        """Submit a request; `serve` completes it."""
        id = len(self.sequences) + 1
        self.sequences[id] = Sequence(prompt, generate)
        self.told["submit"].append(kv.Request(id, prompt, priority))
        return id

    def serve(self):
        """Step until every request has its answer."""
        while len(self.ended) < len(self.sequences):
            if not self.turn():
                assert self.engine.wait(WAIT_SECONDS_MAX), "the engine makes no progress"
        return self

    def ask(self, prompt, generate=4):
        """The answer to one prompt, and the tiers of its cached tokens."""
        before = self.found
        id = self.submit(prompt, generate)
        self.serve()
        return self.sequences[id].reply, kv.Cached(
            *(now - was for now, was in zip(self.found, before, strict=True))
        )

    def settle(self):
        """Step until no operation is in progress: everything that was computed is in the store."""
        while self.engine.stats()["operations"]:
            assert self.engine.wait(WAIT_SECONDS_MAX), "an operation does not end"
            self.turn()

    def turn(self):
        """Run one step and one pass of the model. Returns whether there was something to compute."""
        told, self.told = self.told, {"submit": [], "computed": [], "finish": []}
        plan = self.engine.step(**told)
        assert not plan.refused, plan.refused
        self.operations += plan.operations
        self.recomputed += len(plan.recompute)
        for id, _ in plan.retracted:
            self.sequences[id].table = None
            self.retractions += 1
        for id, how in plan.ended:
            self.ended[id] = how
        for ready in plan.ready:
            self.start(ready)
        for grant in plan.granted:
            sequence = self.sequences[grant.request]
            sequence.table = numpy.concatenate([sequence.table, grant.pages])
        running = [id for id, it in self.sequences.items() if it.table is not None]
        for id in running:
            self.compute(id)
        return bool(running or plan.ended)

    def start(self, ready):
        """The request is on the device: compare cached pages before they are used."""
        sequence = self.sequences[ready.request]
        sequence.table, sequence.computed = ready.pages, ready.cached.total
        self.found = kv.Cached(*(sum(both) for both in zip(self.found, ready.cached, strict=True)))
        found = self.slots[self.rows(sequence, 0, sequence.computed)]
        assert (found == self.wanted(sequence, 0, sequence.computed)).all(), "a page has wrong bytes"
        self.pages_checked += sequence.computed // self.engine.page_tokens

    def compute(self, id):
        """One pass for one request: the bytes of tokens without any, and the next token."""
        sequence = self.sequences[id]
        upto = len(sequence.tokens)
        self.slots[self.rows(sequence, sequence.computed, upto)] = self.wanted(
            sequence, sequence.computed, upto
        )
        sequence.computed = upto
        seen = self.slots[self.rows(sequence, 0, upto)] ^ self.mask
        token = zlib.crc32(seen.tobytes()) % VOCABULARY
        sequence.extend([token])
        self.told["computed"].append((id, upto, [token]))
        if len(sequence.tokens) == sequence.length:
            self.told["finish"].append(id)
            sequence.table = None

    def rows(self, sequence, first, last):
        """The positions of these tokens' bytes on the device."""
        positions = numpy.arange(first, last)
        pages = sequence.table[positions // self.engine.page_tokens]
        return pages * self.engine.page_tokens + positions % self.engine.page_tokens

    def wanted(self, sequence, first, last):
        """The model's bytes for these tokens."""
        entries = numpy.frombuffer(b"".join(sequence.entries[first:last]), numpy.uint8)
        return entries.reshape(-1, TOKEN_BYTES) ^ self.mask


def answer(prompt, generate=4):
    """The model's answer without any cache."""
    sequence = Sequence(prompt, generate)
    while len(sequence.tokens) < sequence.length:
        sequence.extend([zlib.crc32(b"".join(sequence.entries)) % VOCABULARY])
    return sequence.reply


def chats(seed, conversations, turns, system=48, said=24):
    """Inputs of users: conversations of several turns that start with the same system prompt."""
    chance = random.Random(seed)
    words = lambda count: [chance.randrange(VOCABULARY) for _ in range(count)]
    prompt = words(system)
    return prompt, [
        [words(said + chance.randrange(said)) for _ in range(turns)] for _ in range(conversations)
    ]


def converse(toy, prompt, conversations, generate):
    """Serve the conversations turn by turn, all concurrently, and check every answer."""
    histories = [list(prompt) for _ in conversations]
    for said in zip(*conversations, strict=True):
        ids = [toy.submit(history + words, generate) for history, words in zip(histories, said, strict=True)]
        toy.serve()
        for history, words, id in zip(histories, said, ids, strict=True):
            reply = toy.sequences[id].reply
            assert reply == answer(history + words, generate), "the answer differs from that without a cache"
            history += words + reply


def mooncake_store(address, memory=64 << 20):
    """An existing Mooncake cluster, through its own Python module."""
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    # Without memory of its own, nothing ends with this process.
    status = store.setup("127.0.0.1", "P2PHANDSHAKE", memory, 16 << 20, "tcp", "", address)
    assert status == 0, f"setup returned {status}"
    return store


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", help="the address of a Tiffin cluster")
    parser.add_argument("--mooncake", help="the address of a Mooncake master")
    parser.add_argument(
        "--mooncake-memory",
        type=int,
        default=64 << 20,
        help="bytes of memory that this process adds to the cluster",
    )
    parser.add_argument("--device-pages", type=int, default=96)
    parser.add_argument("--host-pages", type=int, default=128)
    parser.add_argument("--page-tokens", type=int, default=16)
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--generate", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--rounds",
        type=int,
        default=1,
        help="the number of seeds to serve, one after the other; 0 for no limit",
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.mooncake:
        store = mooncake_store(options.mooncake, options.mooncake_memory)
    else:
        store = tiffin.connect(options.store) if options.store else tiffin.connect(memory="64MiB")
    device = numpy.zeros((options.device_pages, options.page_tokens * TOKEN_BYTES), numpy.uint8)
    engine = kv.Engine(
        device,
        page_tokens=options.page_tokens,
        host_pages=options.host_pages,
        store=store,
        namespace=kv.Namespace(model="toy"),
        threshold_pages=1,
    )
    with engine:
        round = 0
        while options.rounds == 0 or round < options.rounds:
            toy = Toy(engine, device)
            prompt, conversations = chats(options.seed + round, options.conversations, options.turns)
            converse(toy, prompt, conversations, options.generate)
            toy.settle()
            engine.check()
            report(toy, options.json)
            round += 1


def report(toy, as_json):
    stats = toy.engine.stats()
    asked = sum(sequence.prompt_length for sequence in toy.sequences.values())
    shown = {
        "requests": len(toy.sequences),
        "prompt tokens": asked,
        "found on the device": toy.found.device,
        "found in the host": toy.found.host,
        "found in the store": toy.found.store,
        "pages checked": toy.pages_checked,
        "pages in the store": stats["backed_up"],
        "faults": stats["faults"],
    }
    if as_json:
        print(json.dumps(shown), flush=True)
    else:
        print("\n".join(f"{name:>20}  {value}" for name, value in shown.items()), flush=True)


if __name__ == "__main__":
    sys.exit(main())
