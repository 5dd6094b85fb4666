"""The contract of the feature store, over every backend: our own store inside the process and elsewhere,
and a Mooncake cluster beside our index.

The last one is what `mooncake.store` is where the tests run: here our drop-in; `make check-features-peer`
runs the same tests where the official wheel is installed, against its own master (`TIFFIN_TEST_MOONCAKE` has
its address).
"""

import concurrent.futures
import json
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import uuid

import numpy as np
import pytest
import tiffin
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tiffin.features import (
    BadRef,
    BufferPool,
    ConsumerBehind,
    Duplicate,
    FeatureStore,
    Mooncake,
    NotAvailable,
    SampleRef,
    mooncake_setup,
)

import helpers

BACKENDS = ("mooncake",) if "TIFFIN_TEST_MOONCAKE" in os.environ else ("embedded", "cluster", "mooncake")
TENSORS = {
    "hidden": np.arange(24, dtype=np.float32).reshape(4, 6),
    "ids": np.arange(4, dtype=np.int64),
}


@pytest.fixture(scope="module")
def plane():
    """A Mooncake store, or what stands for one."""
    pytest.importorskip("mooncake")
    address = os.environ.get("TIFFIN_TEST_MOONCAKE")
    if address is not None:
        store = mooncake_setup(address, global_segment_size=64 << 20, local_buffer_size=16 << 20)
        yield store
        store.close()
        return
    with helpers.up("--memory", "64MiB") as (address, _):
        store = mooncake_setup(address, global_segment_size=0, local_buffer_size=16 << 20)
        yield store
        store.close()


@pytest.fixture
def make(cluster, plane):
    """Makes feature stores of one backend; those of one test share what they hold."""
    made, name = [], f"t-{uuid.uuid4().hex[:12]}"
    address = cluster

    def make(kind, **options):
        if kind == "embedded":
            if made:
                options["store"] = made[0].index
            else:
                options["memory"] = "64MiB"
        else:
            options["address"] = address
        if kind == "mooncake":
            options.setdefault("backend", Mooncake(plane))
        made.append(FeatureStore(options.pop("store_id", name), timeout=30, **options))
        return made[-1]

    yield make
    for features in reversed(made):
        if not features.index.is_closed:
            features.drop_run()
            features.close()


@pytest.fixture(params=BACKENDS)
def features(request, make):
    """A store, and how to make another one like it."""
    features = make(request.param)
    features.again = lambda **options: make(request.param, **options)
    return features


def same(tensors, wanted=TENSORS):
    assert list(tensors) == list(wanted)
    for name, array in wanted.items():
        assert tensors[name].shape == array.shape and np.array_equal(np.asarray(tensors[name]), array), name


def resident(features):
    return features.health()["resident_samples"]


# What is put is what is read.


def test_all_types_and_layouts_come_back(features):
    grid = np.arange(24).reshape(4, 6)
    tensors = {
        dtype: (grid % 2).astype(dtype) for dtype in ("float32", "float64", "float16", "int64", "int32")
    } | {dtype: (grid % 2).astype(dtype) for dtype in ("int16", "int8", "uint8", "bool")}
    tensors |= {"turned": grid.astype("float32").T, "every other": grid.astype("float16")[::2, 1::2]}
    tensors |= {"scalar": np.array(3.5, dtype="float64"), "empty": np.empty((0, 5), dtype="int32")}
    ref = features.put(tensors, sample_id="s", metadata={"run_id": "r", "num_tokens": 4, "note": [1, "x"]})
    assert (ref.run_id, ref.num_tokens, ref.metadata["note"]) == ("r", 4, [1, "x"])
    assert ref.estimated_bytes == sum(it.nbytes for it in tensors.values())
    assert ref.estimated_bytes == features.estimate_bytes(ref.feature_specs)
    told = SampleRef.from_json(ref.to_json())
    assert told == ref and len(ref.to_json()) < 4096
    got, handle = features.get(told)
    same(got, tensors)
    assert all(got[name].dtype == it.dtype for name, it in tensors.items())
    some, other = features.get(ref.to_json(), names=["scalar"])
    assert list(some) == ["scalar"]
    features.release(other)
    features.release(handle, reason="trained")
    assert resident(features) == 0


def test_what_get_returns_is_independent_of_the_store(features):
    ref = features.put(TENSORS, sample_id="s")
    first, handle = features.get(ref)
    first["hidden"][:] = -1
    second, other = features.get(ref)
    same(second)
    features.abort("s")
    features.put({"hidden": np.ones(1000, dtype=np.float32)}, sample_id="t")
    same(second)
    features.release(handle)
    features.release(other)


def test_views_are_lent_and_outlive_their_sample(make):
    features = make("embedded")
    ref = features.put(TENSORS, sample_id="s")
    lent, handle = features.get(ref, lend=True)
    features.release(handle)
    assert resident(features) == 0 and not lent["hidden"].flags.writeable
    same(lent)


# Bad input has a name, and leaves nothing behind.


@pytest.mark.parametrize(
    ("tensors", "metadata"),
    [
        ({}, {}),
        ({"x": np.array([object()])}, {}),
        ({"x": np.array([1j])}, {}),
        ({"x": "text"}, {}),
        (TENSORS, {"x": object()}),
    ],
    ids=["no tensors", "objects", "complex", "no tensor", "no JSON"],
)
def test_what_cannot_be_stored_is_refused(features, tensors, metadata):
    with pytest.raises(ValueError):
        features.put(tensors, sample_id="s", metadata=metadata)
    assert resident(features) == 0


def test_a_ref_that_does_not_match_is_refused(features):
    ref = features.put(TENSORS, sample_id="s")
    record = json.loads(ref.to_json())
    wrong = {
        "another store": record | {"feature_store_uri": "tiffin://other/s"},
        "another version": record | {"schema_version": 2},
        "no generation": record | {"metadata": {}},
        "no ref": {"nothing": 1},
        "another shape": json.loads(ref.to_json().replace('"shape":[4,6]', '"shape":[6,4]')),
    }
    for what, given in wrong.items():
        with pytest.raises(BadRef):
            features.get(given)
        assert features.health()["active_leases"] == 0, what
    with pytest.raises(ValueError):
        features.adopt(record | {"metadata": {}})
    with pytest.raises(KeyError):
        features.get(ref, names=["nothing"])
    later = record | {"metadata": record["metadata"] | {"generation": ref.generation + 1}}
    later["metadata"].pop("index_generation")
    with pytest.raises(NotAvailable):
        features.get(later)


def test_a_wrong_credential_is_refused_at_attach_and_on_the_data_path(make):
    with pytest.raises(PermissionError):
        FeatureStore("s", memory="16MiB", auth="secret", credential="guess")
    told = ["right"]
    features = make("embedded", auth=lambda credential: credential == told[0], credential="right")
    ref = features.put(TENSORS, sample_id="s")
    told[0] = "changed"
    for call in (lambda: features.put(TENSORS, sample_id="t"), lambda: features.get(ref)):
        with pytest.raises(PermissionError):
            call()
    told[0] = "right"
    assert features.health()["auth_required"] and resident(features) == 1


def test_the_servers_check_the_credential_too():
    with helpers.up("--memory", "16MiB", TIFFIN_TOKEN="secret") as (address, _):
        with pytest.raises(PermissionError):
            FeatureStore("s", address=address, credential="guess")
        FeatureStore("s", address=address, credential="secret").close()


def test_a_full_namespace_says_that_the_consumer_is_behind(make):
    for backend in ("embedded", "cluster"):
        features = make(backend, max_resident_bytes="64KiB", store_id=f"full-{backend}")
        other = make(backend, store_id=f"full-{backend}") if backend == "cluster" else features
        ref = features.put({"x": np.zeros(40_000, dtype=np.uint8)}, sample_id="a")
        with pytest.raises(ConsumerBehind, match="consumer is behind"):
            other.put({"x": np.zeros(40_000, dtype=np.uint8)}, sample_id="b")
        assert resident(features) == 1
        _, handle = features.get(ref)
        features.release(handle)
        other.put({"x": np.zeros(40_000, dtype=np.uint8)}, sample_id="b")


# Generations, leases and frees.


def test_only_the_last_release_of_the_current_generation_frees(features):
    other = features.again()
    ref = features.put(TENSORS, sample_id="s")
    _, first = features.get(ref)
    _, second = other.get(ref)
    features.release(first)
    features.release(first)
    assert resident(features) == 1
    other.release(second)
    assert resident(features) == 0
    with pytest.raises(NotAvailable):
        features.get(ref)


def test_a_superseded_sample_cannot_be_read_and_its_handles_free_nothing(features):
    old = features.put(TENSORS, sample_id="s")
    _, stale = features.get(old)
    new = features.put({"hidden": TENSORS["hidden"] + 1}, sample_id="s")
    assert new.generation > old.generation
    with pytest.raises(NotAvailable):
        features.get(old)
    features.release(stale)
    features.gc()
    got, handle = features.get(new)
    same(got, {"hidden": TENSORS["hidden"] + 1})
    features.release(handle)
    assert resident(features) == 0 and features.health()["release_pending"] == 0


def test_an_abort_is_seen_by_every_process_at_once(features):
    other = features.again()
    ref = features.put(TENSORS, sample_id="s")
    _, handle = other.get(ref)
    features.abort("s", reason="a test")
    for store in (features, other):
        with pytest.raises(NotAvailable):
            store.get(ref)
    other.release(handle)
    features.abort("s")
    features.abort("never there")
    assert features.health()["release_pending"] == 0


def test_a_retained_sample_is_freed_by_its_acknowledgement(features):
    trainer = features.again(retain_on_release=True)
    refs = [features.put(TENSORS, sample_id=f"s{i}") for i in range(3)]
    for _ in range(2):
        for ref in refs:
            tensors, handle = trainer.get(ref)
            same(tensors)
            trainer.release(handle)
    assert resident(features) == 3
    assert trainer.ack(refs[:2]) == ["freed", "freed"] and trainer.ack(refs[:1]) == ["stale"]
    assert resident(features) == 1
    same(trainer.get(refs[2])[0])


def test_old_samples_that_nobody_leases_are_given_up(make):
    now = [100.0]
    features = make("embedded", max_hold_age_s=50, clock=lambda: now[0])
    kept, old = (features.put(TENSORS, sample_id=name) for name in ("kept", "old"))
    _, handle = features.get(kept)
    assert features.gc() == {"force_freed": 0, "force_freed_bytes": 0, "release_pending": 0}
    freed = features.gc(now=now[0] + 60)
    assert freed["force_freed"] == 1 and freed["force_freed_bytes"] > TENSORS["hidden"].nbytes
    with pytest.raises(NotAvailable):
        features.get(old)
    same(features.get(kept)[0])
    assert features.health()["force_freed_total"] == 1
    features.release(handle)


def test_what_another_process_wrote_is_adopted_by_looking_it_up(features):
    other = features.again()
    ref = features.put(TENSORS, sample_id="s")
    other.track_external_attempt("s", generation=1, feature_names=["hidden"])
    other.track_external_attempt("lost", generation=1, feature_names=["hidden"])
    lost = features.put(TENSORS, sample_id="lost")
    assert other.adopt(ref) and other.health()["provisional_external"] == 1
    other.discard_external_attempts()
    assert other.health()["provisional_external"] == 0
    with pytest.raises(NotAvailable):
        features.get(lost)
    same(features.get(ref)[0])
    assert not other.adopt(lost)


class Lifetimes(RuleBasedStateMachine):
    """Two processes' worth of stores against a model: what is there, and who has what leased."""

    def __init__(self):
        super().__init__()
        first = FeatureStore("model", memory="32MiB")
        self.stores = [first, FeatureStore("model", store=first.index)]
        self.current, self.refs, self.handles = {}, [], []

    @rule(name=st.sampled_from("abc"))
    def put(self, name):
        ref = self.stores[0].put({"x": np.array([len(self.refs)])}, sample_id=name)
        assert all(ref.generation > old.generation for old in self.refs)
        self.current[name] = ref.generation
        self.refs.append(ref)

    @precondition(lambda self: self.refs)
    @rule(at=st.integers(0, 50), who=st.integers(0, 1))
    def get(self, at, who):
        number = at % len(self.refs)
        ref = self.refs[number]
        if self.current.get(ref.sample_id) != ref.generation:
            with pytest.raises(NotAvailable):
                self.stores[who].get(ref)
            return
        tensors, handle = self.stores[who].get(ref)
        assert tensors["x"].tolist() == [number]
        self.handles.append((who, handle))

    @precondition(lambda self: self.handles)
    @rule(at=st.integers(0, 50), twice=st.booleans())
    def release(self, at, twice):
        who, handle = self.handles.pop(at % len(self.handles))
        is_current = self.current.get(handle.sample_id) == handle.generation
        if is_current and not any(it.generation == handle.generation for _, it in self.handles):
            del self.current[handle.sample_id]
        for _ in range(1 + twice):
            self.stores[who].release(handle)

    @rule(name=st.sampled_from("abc"))
    def abort(self, name):
        self.stores[1].abort(name)
        self.current.pop(name, None)

    @invariant()
    def what_is_resident_is_what_the_model_says(self):
        assert resident(self.stores[0]) == len(self.current)

    def teardown(self):
        for who, handle in self.handles:
            self.stores[who].release(handle)
        self.stores[0].drop_run()
        assert self.stores[0].index.wait_usage(at_least=0).used == 0
        self.stores[0].close()


Lifetimes.TestCase.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
TestLifetimes = Lifetimes.TestCase


# Frees that fail.


class Faulty:
    """A Mooncake store some of whose calls fail."""

    def __init__(self, store):
        self._store = store
        self.answers = {}

    def __getattr__(self, name):
        call = getattr(self._store, name)

        def answer(*arguments, **options):
            planned = self.answers.get(name)
            if planned:
                return planned.pop(0)
            return call(*arguments, **options)

        return answer


def test_frees_that_fail_are_tried_again_within_bounds(make, plane):
    faulty = Faulty(plane)
    features = make("mooncake", backend=Mooncake(faulty), max_release_attempts=2)
    ref = features.put(TENSORS, sample_id="s")
    kept = features.put(TENSORS, sample_id="kept")
    _, handle = features.get(ref)
    faulty.answers["remove"] = [-800] * 8
    features.release(handle)
    with pytest.raises(NotAvailable):
        features.get(ref)
    assert features.gc()["release_pending"] == 1
    slept = []
    with pytest.raises(RuntimeError, match="s"):
        features.drain_sample_removals(["s"], max_attempts=1, sleep=slept.append)
    features.drain_sample_removals(["kept"], max_attempts=1)
    assert features.health()["release_pending"] == 1
    features.drain_pending_removals(max_attempts=8, retry_interval_s=0.5, sleep=slept.append)
    assert features.health()["release_pending"] == 0 and slept and set(slept) == {0.5}
    assert all(plane.is_exist(key) == 0 for key in ref.feature_keys.values())
    same(features.get(kept)[0])


def test_a_put_that_fails_half_way_leaves_nothing(make, plane):
    faulty = Faulty(plane)
    features = make("mooncake", backend=Mooncake(faulty))
    old = features.put(TENSORS, sample_id="s")
    faulty.answers["put_from"] = [0, -200]
    with pytest.raises(RuntimeError, match="-200"):
        features.put(TENSORS, sample_id="s")
    same(features.get(old)[0])
    lives = [info.key for info in features.index.list(f"{features.store_id}.")]
    assert lives == [old.metadata["life"]] and resident(features) == 1


def test_a_replaced_sample_whose_removal_fails_cannot_be_read(make, plane):
    faulty = Faulty(plane)
    features = make("mooncake", backend=Mooncake(faulty))
    old = features.put(TENSORS, sample_id="s")
    faulty.answers["remove"] = [-706] * 2
    new = features.put(TENSORS, sample_id="s")
    assert features.health()["release_pending"] == 1
    with pytest.raises(NotAvailable):
        features.get(old)
    features.gc()
    assert features.health()["release_pending"] == 0
    assert all(plane.is_exist(key) == 0 for key in old.feature_keys.values())
    same(features.get(new)[0])


def test_a_torn_read_is_an_error_and_is_tried_again(make, plane):
    faulty = Faulty(plane)
    features = make("mooncake", backend=Mooncake(faulty))
    ref = features.put(TENSORS, sample_id="s")
    faulty.answers["get_into"] = [8, -800]
    same(features.get(ref)[0])
    key = ref.feature_keys["hidden"]
    assert plane.remove(key, force=True) == 0
    assert plane.put(key, bytes(TENSORS["hidden"].nbytes)) == 0
    with pytest.raises(NotAvailable, match="checksum"):
        features.get(ref)
    assert plane.remove(key, force=True) == 0
    with pytest.raises(NotAvailable):
        features.get(ref)


def test_without_put_from_bytes_go_through_put_and_get(make, plane):
    features = make("mooncake", backend=Mooncake(plane, zero_copy=False))
    ref = features.put(TENSORS, sample_id="s")
    same(features.get(ref)[0])
    same(make("mooncake").get(ref)[0])
    with pytest.raises(RuntimeError, match="is_exist"):
        Mooncake(object())


def test_what_a_dead_process_left_undone_is_taken_up(make, plane):
    features = make("mooncake")
    told = json.dumps({"sample_id": "dead", "names": ["x"]}).encode()
    life = features.index.put_sample(f"{features.store_id}.life/dead", {"life": told})
    key = f"{features.store_id}/dead/g{(life.generation[0] << 48) | life.generation[1]}/x"
    assert plane.put(key, b"bytes") == 0
    ref = features.put(TENSORS, sample_id="s")
    with features.index.lease(life):
        features.gc()
        assert plane.is_exist(key) == 1, "whoever writes it lives"
    features.gc()
    assert plane.is_exist(key) == 0
    assert [it.key for it in features.index.list(f"{features.store_id}.")] == [ref.metadata["life"]]
    same(features.get(ref)[0])


# Streams.


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


def test_a_consumer_that_is_behind_stops_its_producer(make):
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


def test_an_optimizer_step_and_its_samples_are_one_transaction(features, monkeypatch):
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


def test_a_producer_stays_until_its_samples_are_freed(features):
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


def hold(address, name, count):
    """A process that pulls samples and then does nothing."""
    import subprocess

    prelude = f"import pickle\narguments = pickle.loads({pickle.dumps((address, name, count))!r})\n"
    return subprocess.Popen(
        [sys.executable, "-c", prelude + CONSUME], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_what_a_killed_consumer_had_comes_again(make, cluster):
    features = make("cluster", stream="train")
    for i in range(3):
        features.put(TENSORS, sample_id=f"s{i}")
    process = hold(cluster, features.store_id, 2)
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


def test_a_killed_producer_leaves_what_it_put_and_nothing_provisional(make, cluster):
    import subprocess

    features = make("cluster", stream="train")
    prelude = f"import pickle\narguments = pickle.loads({pickle.dumps((cluster, features.store_id))!r})\n"
    process = subprocess.Popen(
        [sys.executable, "-c", prelude + PRODUCE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
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


# Workers of data loaders.


def test_workers_that_are_forked_or_spawned_read_through_it(make):
    features = make("cluster", retain_on_release=True)
    ref = features.put(TENSORS, sample_id="s").to_json()
    assert helpers.in_child(lambda: helpers.sum_of_ids(features, ref)) == 6
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as workers:
        assert workers.submit(helpers.sum_of_ids, features, ref).result() == 6
    helpers.eventually(lambda: features.health()["active_leases"] == 0)
    same(features.get(ref)[0])


def test_a_pool_reuses_buffers_once_they_are_safe():
    told = []
    pool = BufferPool(register=lambda *it: told.append(it), unregister=told.append)
    first = pool.take(5000)
    second = pool.take(5000)
    assert first.address != second.address and pool.in_use == 2 and len(told) == 2
    first.release()
    assert pool.take(8000).address == first.address and pool.made == 2
    with pytest.raises(RuntimeError), second:
        raise RuntimeError("a transfer that may go on")
    assert pool.take(5000).address != second.address


def test_memory_is_used_again_when_the_last_tensor_in_it_is_gone(make):
    features = make("embedded", retain_on_release=True)
    refs = [features.put({"x": np.full(1 << 20, i, dtype=np.uint8)}, sample_id=f"s{i}") for i in range(2)]
    (first, one), (second, other) = (features.get(ref) for ref in refs)
    kept = first["x"][10:20]
    place, del_place = first["x"].ctypes.data, second["x"].ctypes.data
    del first, second
    again, third = features.get(refs[1])
    assert again["x"].ctypes.data == del_place != place
    assert kept.tolist() == [0] * 10 and (again["x"] == 1).all() and again["x"].flags.writeable
    for handle in (one, other, third):
        features.release(handle)


IMPORTS = """
import sys
for name in ("torch", "numpy", "mooncake"):
    sys.modules[name] = None
import array
import tiffin.features, tiffin.integrations.specforge, tiffin.integrations.torchspec
features = tiffin.features.FeatureStore("s", memory="16MiB")
ref = features.put({"f": array.array("f", [1, 2])}, sample_id="x")
tensors, handle = features.get(ref)
features.release(handle)
print(tensors["f"].tolist())
"""


def test_nothing_else_needs_to_be_installed():
    assert helpers.run(IMPORTS) == "[1.0, 2.0]\n"


# What other projects expect.


def test_torchspec_puts_reads_and_deletes_at_once(plane):
    from tiffin.integrations.torchspec import EagleStore

    eagle = EagleStore(plane)
    tensors = {
        "hidden_states": np.arange(48, dtype=np.float16).reshape(4, 12),
        "input_ids": np.arange(4, dtype=np.int64),
        "last_hidden_states": np.ones((4, 4), dtype=np.float16),
    }
    shapes = {name: (array.shape, str(array.dtype)) for name, array in tensors.items()}
    for attempt in range(2):
        base = f"torchspec-{os.getpid()}-{attempt}"
        assert eagle.put(base, tensors) == [f"{base}_hs", f"{base}_ids", f"{base}_lhs"]
        same(eagle.get(base, shapes), tensors)
        assert eagle.get_bytes(base, ["input_ids"])["input_ids"] == tensors["input_ids"].tobytes()
        assert eagle.delete(base, sleep=pytest.fail) and plane.is_exist(f"{base}_hs") == 0
        with pytest.raises(RuntimeError):
            eagle.get(base, shapes)


SPECFORGE = """
import dataclasses, sys, types

class FeatureStore:
    pass

def record(name, *fields):
    return dataclasses.make_dataclass(name, [(it, object, None) for it in fields], frozen=True)

module = types.ModuleType("specforge.runtime.data_plane.feature_store")
module.FeatureStore = FeatureStore
module.SampleRef = record("SampleRef", "sample_id", "run_id", "feature_store_uri", "feature_specs",
                          "schema_version", "num_tokens", "metadata")
module.FeatureSpec = record("FeatureSpec", "name", "shape", "dtype")
module.FeatureHandle = record("FeatureHandle", "sample_id", "generation", "lease_token")
for name in ("specforge", "specforge.runtime", "specforge.runtime.data_plane"):
    sys.modules[name] = types.ModuleType(name)
sys.modules[module.__name__] = module

import numpy as np
from tiffin.integrations.specforge import TiffinFeatureStore

store = TiffinFeatureStore("run", memory="16MiB", setup_kwargs={"protocol": "tcp"})
assert isinstance(store, FeatureStore)
ref = store.put({"x": np.arange(3)}, sample_id="s", metadata={"run_id": "r", "num_tokens": 3})
assert type(ref) is module.SampleRef and type(ref.feature_specs["x"]) is module.FeatureSpec
tensors, handle = store.get(ref, device="cpu")
assert type(handle) is module.FeatureHandle and tensors["x"].tolist() == [0, 1, 2]
store.release(handle, reason="done")
try:
    store.get(ref)
except KeyError:
    print("ok")
"""


def test_specforge_gets_its_own_records():
    assert helpers.run(SPECFORGE) == "ok\n"


def test_a_tensor_that_changes_during_put_matches_its_checksum(make, plane):
    class Slow(Faulty):
        """Changes the caller's tensor while it is being sent."""

        def put_from(self, key, *arguments):
            array[:] += 1
            return self._store.put_from(key, *arguments)

    array = np.zeros(1000, dtype=np.int32)
    features = make("mooncake", backend=Mooncake(Slow(plane)))
    ref = features.put({"x": array}, sample_id="s")
    assert features.get(ref)[0]["x"].tolist() == [0] * 1000 and array[0] == 1
