"""The contract of the feature store: streams, and processes that die."""

import os
import signal
import threading
import uuid

import numpy as np
import pytest
import tiffin
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tiffin.features import ConsumerBehind, Duplicate, FeatureStore

import helpers
from feature_stores import BACKENDS, TENSORS, resident, same, start


def test_windows_are_read_in_order_and_acknowledged_in_one_call(features):
    producer = features.again(stream="train", groups=["trainer", "eval"], store_id=f"{features.store_id}-s")
    refs = [producer.put(TENSORS, sample_id=f"s{i}") for i in range(5)]
    producer.index.end_stream("train")
    with producer.consumer("trainer", window=2) as trainer, producer.consumer("eval", window=5) as judge:
        windows = []
        for window in trainer:
            for ref in window:
                same(trainer.get(ref))
            windows.append([ref.sample_id for ref in window])
            assert trainer.ack(window) == ["recorded"] * len(window)
        assert windows == [["s0", "s1"], ["s2", "s3"], ["s4"]]
        (window,) = list(judge)
        assert window == refs and judge.ack(window) == ["freed"] * 5
    stat = producer.index.open_stream("train")
    assert (stat.appended, stat.consumed, stat.refs) == (5, 5, 0)
    assert {group.name: (group.acked, group.delivered) for group in stat.groups} == {
        "trainer": (5, 5),
        "eval": (5, 5),
    }
    with pytest.raises(ValueError, match="ended"):
        producer.put(TENSORS, sample_id="late")


def test_consumer_that_is_behind_stops_its_producer(make):
    features = make("cluster", stream="train")
    features.index.open_stream("train", refs_high=2, refs_low=1)
    for name in ("a", "b"):
        features.put(TENSORS, sample_id=name)
    with pytest.raises(ConsumerBehind, match="2 samples"):
        features.put(TENSORS, sample_id="c")
    with pytest.raises(tiffin.InvalidArgument, match=r"= 3 samples.*only 2.*high mark is 2"):
        features.consumer(window=3)
    with features.consumer() as consumer:
        assert consumer.ack(consumer.pull()) == ["freed"]
    features.put(TENSORS, sample_id="c")
    for name in ("a", "b"):
        with pytest.raises(Duplicate):
            features.put(TENSORS, sample_id=name, replace=False)
    with pytest.raises(Duplicate, match="consumed"):
        features.put(TENSORS, sample_id="a")
    features.index.end_stream("train", failure="rank 3 died")
    with features.consumer() as consumer, pytest.raises(tiffin.StreamFailed, match="rank 3 died"):
        consumer.pull()


def test_optimizer_step_and_its_samples_are_one_transaction(features, monkeypatch):
    producer = features.again(stream="train", store_id=f"{features.store_id}-s")
    for i in range(4):
        producer.put(TENSORS, sample_id=f"s{i}")
    with producer.consumer(window=2) as trainer:
        assert trainer.step is None
        trainer.ack(trainer.pull(), step=1)
        window = trainer.pull()

        def die(*_, **__):
            raise KeyboardInterrupt

        # It dies between the step and the acknowledgement.
        monkeypatch.setattr(producer, "ack", die)
        with pytest.raises(KeyboardInterrupt):
            trainer.ack(window, step=2)
        monkeypatch.undo()
    assert resident(producer) == 2
    producer.index.end_stream("train")
    with producer.consumer(window=2) as again:
        assert again.step == 2 and resident(producer) == 0 and list(again) == []


def test_producer_stays_until_its_samples_are_freed(features):
    ref = features.put(TENSORS, sample_id="s")
    assert not features.linger(0.01)
    _, handle = features.get(ref)
    freed = threading.Timer(0.05, lambda: features.release(handle))
    freed.start()
    assert features.linger(helpers.SECONDS_MAX)
    freed.join()


CONSUME = """
import sys
from tiffin.features import FeatureStore
address, name, count = arguments
features = FeatureStore(name, address=address, stream="train", timeout=30)
consumer = features.consumer(window=count)
window = consumer.pull()
print([ref.sample_id for ref in window], flush=True)
sys.stdin.read()
"""


def test_samples_of_a_killed_consumer_are_redelivered(make, cluster):
    features = make("cluster", stream="train")
    for i in range(3):
        features.put(TENSORS, sample_id=f"s{i}")
    process = start(CONSUME, cluster, features.store_id, 2)
    try:
        assert process.stdout.readline() == "['s0', 's1']\n"
        with features.consumer() as consumer:
            (kept,) = consumer.pull()
            assert kept.sample_id == "s2"
            os.kill(process.pid, signal.SIGKILL)
            again = [ref.sample_id for _ in range(2) for ref in consumer.pull(timeout=helpers.SECONDS_MAX)]
            assert sorted(again) == ["s0", "s1"]
    finally:
        process.kill()
        process.communicate()


PRODUCE = """
import os, sys
import numpy as np
from tiffin.features import FeatureStore
address, name = arguments
features = FeatureStore(name, address=address, stream="train", timeout=30)
features.put({"x": np.zeros(1000, dtype=np.uint8)}, sample_id="whole")
reservation = features.index.reserve("provisional", 1 << 20)
print("ready", flush=True)
sys.stdin.read()
"""


def test_killed_producer_leaves_only_complete_samples(make, cluster):
    features = make("cluster", stream="train")
    process = start(PRODUCE, cluster, features.store_id)
    try:
        assert process.stdout.readline() == "ready\n"
        assert features.index.wait_usage(at_least=1 << 20, timeout=helpers.SECONDS_MAX).used >= 1 << 20
    finally:
        process.kill()
        process.communicate()
    features.index.wait_usage(at_most=1 << 16, timeout=helpers.SECONDS_MAX)
    with features.consumer() as consumer:
        (ref,) = consumer.pull(timeout=helpers.SECONDS_MAX)
        assert ref.sample_id == "whole" and consumer.get(ref)["x"].shape == (1000,)


GROUPS = ("trainer", "eval")


class Streams(RuleBasedStateMachine):
    """A stream of two groups against a model: samples in order, consumers, acknowledgements."""

    def __init__(self, features):
        super().__init__()
        self.features = features
        self.consumers = {group: features.consumer(group) for group in GROUPS}
        self.current, self.acked, self.count = {}, {}, 0
        self.held = {group: [] for group in GROUPS}

    def ready(self, group):
        """The next samples of a group."""
        out = {ref.generation for ref in self.held[group]}
        refs = sorted(self.current.values(), key=lambda ref: ref.generation)
        return [it for it in refs if it.generation not in out and group not in self.acked[it.sample_id]]

    @rule(name=st.sampled_from("abcdef"), replace=st.booleans())
    def put(self, name, replace):
        put = lambda: self.features.put({"x": np.array([self.count])}, sample_id=name, replace=replace)
        if self.acked.get(name) or (name in self.current and not replace):
            with pytest.raises(Duplicate):
                put()
            return
        ref = put()
        assert all(ref.generation > it.generation for it in self.current.values())
        self.current[name], self.acked[name] = ref, set()
        self.count += 1

    @rule(group=st.sampled_from(GROUPS), count=st.integers(1, 3))
    def pull(self, group, count):
        for wanted in self.ready(group)[:count]:
            assert self.consumers[group].pull() == [wanted]
            self.held[group].append(wanted)

    @precondition(lambda self: any(self.held.values()))
    @rule(group=st.sampled_from(GROUPS), count=st.integers(1, 3))
    def ack(self, group, count):
        window, self.held[group] = self.held[group][:count], self.held[group][count:]
        outcomes = []
        for ref in window:
            is_current = self.current.get(ref.sample_id) == ref
            self.acked[ref.sample_id] |= {group} if is_current else set()
            is_last = is_current and len(self.acked[ref.sample_id]) == 2
            outcomes.append("freed" if is_last else "recorded" if is_current else "stale")
            if is_last:
                del self.current[ref.sample_id]
        assert self.consumers[group].ack(window) == outcomes

    @rule(group=st.sampled_from(GROUPS))
    def read(self, group):
        for ref in self.held[group]:
            if self.current.get(ref.sample_id) == ref:
                assert self.consumers[group].get(ref)["x"].shape == (1,)
            else:
                with pytest.raises(KeyError):
                    self.consumers[group].get(ref)

    @rule(group=st.sampled_from(GROUPS))
    def start_again(self, group):
        self.consumers[group].close()
        self.consumers[group] = self.features.consumer(group)
        self.held[group] = []

    @invariant()
    def counts_are_exact(self):
        stat = self.features.index.open_stream("s")
        assert (stat.refs, resident(self.features)) == (len(self.current), len(self.current))

    def teardown(self):
        for consumer in self.consumers.values():
            consumer.close()
        self.features.drop_run()
        assert self.features.index.wait_usage(at_least=0).used == 0
        self.features.close()


@pytest.mark.parametrize("kind", BACKENDS)
def test_order_of_a_stream_is_that_of_a_model(make, kind):
    examples = {"embedded": 20, "cluster": 6, "mooncake": 4}[kind]

    def machine():
        options = {"stream": "s", "groups": GROUPS}
        name = f"model-{uuid.uuid4().hex[:12]}"
        if kind == "embedded":
            return Streams(FeatureStore(name, memory="32MiB", **options))
        return Streams(make(kind, store_id=name, **options))

    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=30, deadline=None)
    )
