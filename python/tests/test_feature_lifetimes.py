"""The contract of the feature store: generations, leases, frees, and frees that fail."""

import json
import uuid

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tiffin.features import Duplicate, FeatureStore, Mooncake, NotAvailable
from tiffin.features.records import to_number

import helpers
from feature_stores import BACKENDS, TENSORS, Faulty, resident, same, start


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


def test_superseded_sample_is_unreadable_and_frees_nothing(features):
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


def test_abort_is_seen_by_every_process_at_once(features):
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


def test_retained_sample_is_freed_by_its_acknowledgement(features):
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


def test_old_samples_without_lease_are_freed(make):
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


def test_samples_freed_by_the_master_are_reported(make):
    features = make("embedded", max_hold_age_s=0.05)
    other = make("embedded", max_hold_age_s=0.05)
    features.put(TENSORS, sample_id="s")
    helpers.eventually(lambda: features.index.why(features._entries.key("s")).state == "gone")
    for store in (features, other):
        freed = store.gc()
        assert freed["force_freed"] == 1 and freed["force_freed_bytes"] > TENSORS["hidden"].nbytes
        assert store.gc()["force_freed"] == 0 and store.health()["force_freed_total"] == 1
    assert make("embedded", max_hold_age_s=0.05).gc()["force_freed"] == 0, "earlier samples are not reported"
    stat = features.index.wait_usage(at_least=0)
    assert (stat.samples_expired, stat.samples_expired_size) == (1, freed["force_freed_bytes"])


def test_sample_of_a_killed_lessee_is_freed(make, cluster):
    features = make("cluster")
    ref = features.put(TENSORS, sample_id="s")
    program = """
import sys
from tiffin.features import FeatureStore
store_id, address, ref = arguments
features = FeatureStore(store_id, address=address, timeout=30)
leased = features.get(ref)
print("leased", flush=True)
sys.stdin.read()
"""
    with start(program, features.store_id, cluster, ref.to_json()) as reader:
        assert reader.stdout.readline() == "leased\n"
        features.release(features.get(ref)[1])
        assert resident(features) == 1 and features.health()["active_leases"] == 1
        reader.kill()
    helpers.eventually(lambda: resident(features) == 0)
    assert features.health()["active_leases"] == 0
    assert features.index.why(features._entries.key("s")).cause == "consumed"


def test_samples_of_other_processes_are_adopted(features):
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
    """Two processes' worth of stores against a model of samples and leases."""

    def __init__(self, stores):
        super().__init__()
        self.stores = stores
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

    @precondition(lambda self: self.refs)
    @rule(at=st.integers(0, 50), who=st.integers(0, 1))
    def ack(self, at, who):
        ref = self.refs[at % len(self.refs)]
        is_current = self.current.get(ref.sample_id) == ref.generation
        assert self.stores[who].ack([ref.to_json()]) == ["freed" if is_current else "stale"]
        if is_current:
            del self.current[ref.sample_id]

    @precondition(lambda self: self.refs)
    @rule(at=st.integers(0, 50), who=st.integers(0, 1))
    def adopt(self, at, who):
        ref = self.refs[at % len(self.refs)]
        assert self.stores[who].adopt(ref) == (self.current.get(ref.sample_id) == ref.generation)

    @precondition(lambda self: self.current)
    @rule(at=st.integers(0, 50), who=st.integers(0, 1))
    def put_where_one_is(self, at, who):
        name = sorted(self.current)[at % len(self.current)]
        with pytest.raises(Duplicate):
            self.stores[who].put({"x": np.array([0])}, sample_id=name, replace=False)

    @rule(who=st.integers(0, 1))
    def gc(self, who):
        assert self.stores[who].gc() == {"force_freed": 0, "force_freed_bytes": 0, "release_pending": 0}

    @rule(name=st.sampled_from("abc"))
    def abort(self, name):
        self.stores[1].abort(name)
        self.current.pop(name, None)

    @invariant()
    def what_is_resident_is_what_the_model_says(self):
        assert resident(self.stores[0]) == len(self.current)
        held = {handle.generation for _, handle in self.handles} & set(self.current.values())
        leased = self.stores[1].health()["active_leases"]
        assert leased == len(held)

    def teardown(self):
        for who, handle in self.handles:
            self.stores[who].release(handle)
        self.stores[0].drop_run()
        assert self.stores[0].index.wait_usage(at_least=0).used == 0
        for store in reversed(self.stores):
            store.close()


@pytest.mark.parametrize("kind", BACKENDS)
def test_states_of_samples_are_those_of_a_model(make, kind):
    examples = {"embedded": 15, "cluster": 6, "mooncake": 4}[kind]
    checked = settings(max_examples=examples, stateful_step_count=25, deadline=None)

    def machine():
        name = f"model-{uuid.uuid4().hex[:12]}"
        if kind == "embedded":
            first = FeatureStore(name, memory="32MiB")
            return Lifetimes([first, FeatureStore(name, store=first.index)])
        return Lifetimes([make(kind, store_id=name) for _ in range(2)])

    run_state_machine_as_test(machine, settings=checked)


def test_failed_frees_are_retried_within_limits(make, plane):
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
    drained = features.drain_pending_removals(max_attempts=8, retry_interval_s=0.5, sleep=slept.append)
    assert (drained["removed"], drained["removed_bytes"]) == (1, ref.estimated_bytes)
    assert features.drain_pending_removals()["attempts"] == 0
    assert features.health()["release_pending"] == 0 and slept and set(slept) == {0.5}
    assert all(plane.is_exist(key) == 0 for key in ref.feature_keys.values())
    same(features.get(kept)[0])


def test_put_that_fails_half_way_leaves_nothing(make, plane):
    faulty = Faulty(plane)
    features = make("mooncake", backend=Mooncake(faulty))
    old = features.put(TENSORS, sample_id="s")
    faulty.answers["put_from"] = [0, -200]
    with pytest.raises(RuntimeError, match="-200"):
        features.put(TENSORS, sample_id="s")
    same(features.get(old)[0])
    lives = [info.key for info in features.index.list(f"{features.store_id}.")]
    assert lives == [old.metadata["life"]] and resident(features) == 1


def test_replaced_sample_whose_removal_fails_cannot_be_read(make, plane):
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


def test_torn_read_is_an_error_and_is_retried(make, plane):
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


def test_work_of_a_dead_process_is_completed(make, plane):
    features = make("mooncake")
    told = json.dumps({"sample_id": "dead", "names": ["x"]}).encode()
    life = features.index.put_sample(f"{features.store_id}.life/dead", {"life": told})
    key = f"{features.store_id}/dead/g{to_number(life.generation)}/x"
    assert plane.put(key, b"bytes") == 0
    ref = features.put(TENSORS, sample_id="s")
    with features.index.lease(life):
        features.gc()
        assert plane.is_exist(key) == 1, "its writer is alive"
    features.gc()
    assert plane.is_exist(key) == 0
    assert [it.key for it in features.index.list(f"{features.store_id}.")] == [ref.metadata["life"]]
    same(features.get(ref)[0])


def test_abort_under_a_read_is_seen_by_the_reader(features, monkeypatch):
    other = features.again()
    ref = features.put(TENSORS, sample_id="s")
    read = features._read

    def under(*arguments):
        other.abort("s")
        return read(*arguments)

    monkeypatch.setattr(features, "_read", under)
    with pytest.raises(NotAvailable):
        features.get(ref)
    health = features.health()
    assert (health["active_leases"], health["resident_samples"], health["release_pending"]) == (0, 0, 0)
    assert features.index.wait_usage(at_least=0).used == 0


def test_abort_after_the_last_byte_is_seen_too(make, plane):
    class Late(Faulty):
        """Reads, and then another client aborts the sample."""

        def get_into(self, key, *arguments):
            count = self._store.get_into(key, *arguments)
            other.abort("s")
            return count

    features, other = make("mooncake", backend=Mooncake(Late(plane))), make("mooncake")
    ref = features.put({"x": TENSORS["hidden"]}, sample_id="s")
    with pytest.raises(NotAvailable):
        features.get(ref)
    assert plane.is_exist(ref.feature_keys["x"]) == 0


def test_deferred_frees_are_done_when_the_lease_expires(make, plane):
    class Old(Faulty):
        """A version without `force`: an object that was just read cannot be removed."""

        def remove(self, key):
            return deferred.pop() if deferred else self._store.remove(key)

    # The drop-in frees at once, whatever the lease; the official one gives this answer itself.
    deferred = [-706] * 2
    features = make("mooncake", backend=Mooncake(Old(plane)), max_release_attempts=1000)
    ref = features.put(TENSORS, sample_id="s")
    features.release(features.get(ref)[1])
    with pytest.raises(NotAvailable):
        features.get(ref)
    assert features.health()["release_pending"] == 1 and features.health()["resident_bytes"] > 0
    helpers.eventually(lambda: features.gc()["release_pending"] == 0)
    assert all(plane.is_exist(key) == 0 for key in ref.feature_keys.values())
    assert features.index.wait_usage(at_least=0).used == 0
