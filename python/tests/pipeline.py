"""Producers and consumers of a feature store, each a process of its own that may be killed at any time.

Whatever a consumer sees and acknowledges it writes down, so that the test can tell afterwards what became of
every sample.
"""

import contextlib
import json
import os
import threading
import time

import numpy as np
import tiffin
from tiffin.features import Duplicate, FeatureStore, Mooncake

STREAM, GROUP = "train", "trainer"
WINDOW = 2


def tensors(number):
    """The tensors of sample `number`."""
    hidden = np.random.default_rng(number).standard_normal((8 + number % 5, 64), dtype=np.float32)
    return {"hidden": hidden, "ids": np.full(8, number)}


def connect(place, store_id):
    """Connect this process to the store: `place` is a store to share, or addresses."""
    options = {"stream": STREAM, "groups": [GROUP], "wait_s": 60.0}
    if isinstance(place, tiffin.Store):
        return FeatureStore(store_id, store=place, **options)
    address, mooncake = place
    backend = None
    if mooncake is not None:
        # Another process has the segment, so that a killed process loses none.
        backend = Mooncake.at(mooncake, global_segment_size=0, local_buffer_size=16 << 20)
    return FeatureStore(store_id, address=address, backend=backend, timeout=60, **options)


def produce(place, store_id, numbers, limit):
    """Put these samples, as far as permitted yet. Skips samples that were put before a restart."""
    features, pause = connect(place, store_id), threading.Event()
    for number in numbers:
        while number >= limit.value:
            pause.wait(0.002)
        with contextlib.suppress(Duplicate):
            features.put(tensors(number), sample_id=f"s{number}", replace=False)
    leave()


def consume(place, store_id, path):
    """Read windows, each of which is acknowledged after the next has been pulled."""
    features = connect(place, store_id)
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    consumer, held = features.consumer(window=WINDOW), []
    while True:
        try:
            window = consumer.pull(timeout=0.2)
        except tiffin.EndOfStream:
            window = []
            if not held:
                break
        for ref in window:
            try:
                got = consumer.get(ref)
            except KeyError:
                write(log, "missed", ref)
                continue
            wanted = tensors(int(ref.sample_id[1:]))
            right = all(np.array_equal(got[name], array) for name, array in wanted.items())
            write(log, "got" if right else "wrong", ref)
        if held:
            consumer.ack(held)
            for ref in held:
                write(log, "acked", ref)
        held = window
    leave()


def write(log, what, ref):
    """Write one line atomically."""
    line = {
        "what": what,
        "id": ref.sample_id,
        "at": time.monotonic(),
        "keys": list(ref.feature_keys.values()),
    }
    os.write(log, (json.dumps(line) + "\n").encode())


def leave():
    """End without cleanup, like a killed process."""
    os._exit(0)
