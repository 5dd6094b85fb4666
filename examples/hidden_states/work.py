"""The workers of the pipeline. Each is its own process, and may be killed at any time."""

import contextlib
import dataclasses
import random
import threading
import time
import zlib

import numpy as np
import tiffin
from tiffin.features import Duplicate, FeatureStore, Mooncake

STREAM = "train"
GROUP = "trainer"
NAMESPACE = "hidden-states"
#: An object that tells producers to stop.
STOP = "stop"
#: Objects with the progress of each producer.
AT = "at-"


@dataclasses.dataclass(frozen=True)
class Plan:
    """The settings of every worker."""

    address: str
    mooncake: str | None
    samples: int
    producers: int
    window: int
    tokens: int
    hidden: int
    seed: int
    #: Whether producers repeat puts and trainers stall, as in production.
    has_faults: bool = False
    #: The average number of samples per second of each producer, in bursts; 0 for no limit.
    rate: float = 0.0


def open_store(plan, *, segment=0):
    """Connect this process to the store."""
    backend = None
    if plan.mooncake is not None:
        backend = Mooncake.at(plan.mooncake, **({} if segment is None else {"global_segment_size": segment}))
    return FeatureStore(
        NAMESPACE,
        address=plan.address,
        backend=backend,
        stream=STREAM,
        groups=[GROUP],
        wait_s=600.0,
        timeout=30,
    )


def produce(rank, plan):
    """Put this producer's share of the samples. After a restart it continues where it stopped."""
    features = open_store(plan, segment=None)
    model = transformer(plan) if torch_is_here() else None
    # The last few are put again after a kill, and refused because they exist or were consumed.
    first = int(features.index.get(f"{AT}{rank}", default=str(rank).encode()))
    for number in range(first, plan.samples, plan.producers):
        if plan.has_faults and number % 64 < plan.producers:
            if features.index.exists(STOP):
                break
            features.index.put(f"{AT}{rank}", str(number).encode(), pin=True)
        await_turn(plan)
        tensors = make(plan, number, model)
        note = {"checksum": checksum(tensors), "num_tokens": len(tensors["input_ids"])}
        chance = random.Random(plan.seed * 1_000_003 + number).random()
        # One in a hundred is put again with another generation; of one in a thousand the answer was lost.
        replaces = [False, True] if chance < 0.01 else [False, False] if chance < 0.011 else [False]
        for replace in replaces if plan.has_faults else [False]:
            with contextlib.suppress(Duplicate):
                features.put(tensors, sample_id=f"sample-{number}", metadata=note, replace=replace)
    # In a Mooncake cluster its segment ends with it, so that this waits for the samples there.
    features.close()


def await_turn(plan):
    """Wait for a random time: for 20 seconds the rate is 1.8 times the average, then as much lower."""
    if plan.rate > 0:
        burst = 1.8 if int(time.monotonic() / 20) % 2 else 0.2
        threading.Event().wait(random.expovariate(plan.rate * burst))


def train(rank, plan):
    """Read windows, make a step, and acknowledge them."""
    features = open_store(plan)
    weights = np.zeros(plan.hidden, dtype=np.float32)
    with features.consumer(window=plan.window) as consumer:
        while True:
            try:
                window = consumer.pull(timeout=30)
            except tiffin.EndOfStream:
                break
            if plan.has_faults and random.random() < 0.02:
                threading.Event().wait(2.0)
            for ref in window:
                try:
                    tensors = consumer.get(ref)
                except KeyError:
                    # It was put again meanwhile, and is delivered with its new generation.
                    continue
                if checksum(tensors) != ref.metadata["checksum"]:
                    features.index.put("wrong", b"1")
                weights += np.asarray(tensors["hidden_states"], dtype=np.float32).mean(axis=0)[: plan.hidden]
            consumer.ack(window)
    features.close()


def checksum(tensors):
    """A number that verifies the bytes."""
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(np.ascontiguousarray(np.asarray(tensors[name])).view(np.uint8).reshape(-1), total)
    return total


def make(plan, number, model):
    """The tensors of one sample: the hidden states of three layers and of the last, and its ids."""
    chance = np.random.default_rng((plan.seed, number))
    length = int(np.clip(chance.lognormal(np.log(plan.tokens) - 0.32, 0.8), 8, plan.tokens * 6))
    ids = chance.integers(0, 32_000, length)
    if model is not None:
        return model(ids)
    hidden = chance.standard_normal((length, 3 * plan.hidden), dtype=np.float32).astype(np.float16)
    return {"hidden_states": hidden, "last_hidden_states": hidden[:, : plan.hidden], "input_ids": ids}


def torch_is_here():
    """Whether torch is available for a real model."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


def transformer(plan):
    """A small torch transformer, whose hidden states are stored."""
    import torch

    torch.manual_seed(plan.seed)
    embed = torch.nn.Embedding(32_000, plan.hidden)
    layers = [
        torch.nn.TransformerEncoderLayer(plan.hidden, 8, 2 * plan.hidden, batch_first=True).eval()
        for _ in range(4)
    ]

    @torch.no_grad()
    def run(ids):
        states, x = [], embed(torch.from_numpy(ids))[None]
        for layer in layers:
            x = layer(x)
            states.append(x[0].to(torch.float16))
        return {
            "hidden_states": torch.cat(states[:3], dim=-1).numpy(),
            "last_hidden_states": states[3].numpy(),
            "input_ids": ids,
        }

    return run
