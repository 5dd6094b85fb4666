"""Threads that share a feature store: frees that fail while another thread goes through those that failed.

The test is deterministic. A hook runs in the middle of an iteration over the failed frees. There it starts a
thread that adds another one, and waits until that thread has either done so or stands at the lock of the
store.
"""

import threading

import pytest
import tiffin
from tiffin.features import FeatureStore
from tiffin.features.pending import Pending


class Watched:
    """A lock that signals when a thread has to wait for it."""

    def __init__(self, lock):
        self.lock, self.contended = lock, threading.Event()

    def __enter__(self):
        if not self.lock.acquire(blocking=False):
            self.contended.set()
            self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()


class Hooked(str):
    """A sample id that runs a hook when it is compared or looked up, once."""

    hook = None

    def _run(self):
        hook, self.hook = self.hook, None
        if hook is not None:
            hook()

    def __eq__(self, other):
        self._run()
        return str.__eq__(self, other)

    def __hash__(self):
        self._run()
        return str.__hash__(self)


@pytest.fixture
def features(monkeypatch):
    with FeatureStore("threads", memory="64MiB") as features:
        monkeypatch.setattr(features._pending, "_lock", Watched(features._pending._lock))
        yield features


def fail(*_):
    raise tiffin.Timeout("on purpose")


def failed(features, sample_id):
    """A free that failed and fails again."""
    pending = Pending(sample_id, 1, None, fail)
    features._pending.add(pending)
    return pending


def release_meanwhile(features, monkeypatch):
    """A hook that lets another thread release a sample whose free fails, and the thread."""
    ref = features.put({"x": b"1"}, sample_id="meanwhile")
    _, handle = features.get(ref)
    monkeypatch.setattr(features, "_consume", fail)
    done = threading.Event()
    errors = []

    def work():
        try:
            features.release(handle)
        except Exception as error:
            errors.append(error)
        done.set()
        features._pending._lock.contended.set()

    thread = threading.Thread(target=work, daemon=True)

    def hook():
        features._pending._lock.contended.clear()
        thread.start()
        features._pending._lock.contended.wait()

    return hook, thread, errors


def drain(features):
    with pytest.raises(RuntimeError, match="could not be freed"):
        features.drain_sample_removals(["a", "b"], max_attempts=1)


def drain_all(features):
    with pytest.raises(RuntimeError, match="could not be freed"):
        features.drain_pending_removals(max_attempts=1)


def discard(features):
    features.track_external_attempt("other", generation=1, feature_names=["x"])
    assert features.discard_external_attempts() == 1


def gc(features):
    assert features.gc()["release_pending"] == 3


@pytest.mark.parametrize("walk", [drain, discard])
def test_release_during_an_iteration_over_failed_frees(features, monkeypatch, walk):
    first = Hooked("a")
    failed(features, first)
    failed(features, "b")
    hook, thread, errors = release_meanwhile(features, monkeypatch)
    first.hook = hook
    walk(features)
    thread.join()
    assert not errors and first.hook is None
    assert features.health()["release_pending"] == 3


@pytest.mark.parametrize("walk", [drain_all, gc])
def test_release_during_the_retry_of_failed_frees(features, monkeypatch, walk):
    pending = failed(features, "a")
    failed(features, "b")
    hook, thread, errors = release_meanwhile(features, monkeypatch)

    def free():
        if not thread.is_alive() and thread.ident is None:
            hook()
        fail()

    pending.free = free
    walk(features)
    thread.join()
    assert not errors and features.health()["release_pending"] == 3


def test_free_is_tried_by_one_thread_at_a_time(features):
    begun, go_on, calls = threading.Event(), threading.Event(), []

    def free():
        calls.append(threading.get_ident())
        begun.set()
        go_on.wait()
        return True

    failed(features, "a").free = free
    thread = threading.Thread(target=features.gc, daemon=True)
    thread.start()
    begun.wait()
    with pytest.raises(RuntimeError, match="could not be freed after 1 attempts: a"):
        features.drain_pending_removals(max_attempts=1)
    assert features.gc()["release_pending"] == 1 and len(calls) == 1
    go_on.set()
    thread.join()
    assert features.gc()["release_pending"] == 0 and len(calls) == 1
    assert features.drain_pending_removals()["removed"] == 0


def test_error_of_the_backend_leaves_the_free_pending(features, monkeypatch):
    def broken():
        raise OSError("on purpose")

    failed(features, "a").free = broken
    with pytest.raises(OSError, match="on purpose"):
        features.gc()
    assert features.health()["release_pending"] == 1


class Guarded(dict):
    """A dictionary that is only used under a lock, and notes the names of accesses without it."""

    def __init__(self, lock):
        self.lock, self.used, self.unguarded = lock, set(), []

    def __getattribute__(self, name):
        if name in ("lock", "used", "unguarded", "_note"):
            return object.__getattribute__(self, name)
        self._note(name)
        return dict.__getattribute__(self, name)

    def _note(self, name):
        self.used.add(name)
        if not self.lock.locked():
            self.unguarded.append(name)

    def __len__(self):
        self._note("__len__")
        return dict.__len__(self)

    def __iter__(self):
        self._note("__iter__")
        return dict.__iter__(self)

    def __setitem__(self, name, value):
        self._note("__setitem__")
        dict.__setitem__(self, name, value)

    def __delitem__(self, name):
        self._note("__delitem__")
        dict.__delitem__(self, name)


def test_pending_frees_are_only_touched_under_their_lock(monkeypatch):
    with FeatureStore("guarded", memory="64MiB") as features:
        pending = features._pending
        pending._frees = guarded = Guarded(pending._lock)
        handles = [features.get(features.put({"x": b"1"}, sample_id=f"s{at}"))[1] for at in range(3)]
        with monkeypatch.context() as patched:
            patched.setattr(features, "_consume", fail)
            patched.setattr(features, "_delete", fail)
            for handle in handles:
                features.release(handle)
            features.abort("s2")
            features.track_external_attempt("s1", generation=1, feature_names=["x"])
            with pytest.raises(RuntimeError, match="could not be reclaimed: s1"):
                features.discard_external_attempts()
            drain_all(features)
        assert features.gc()["release_pending"] == 0
        assert features.drain_pending_removals() == {
            "removed": 0,
            "removed_bytes": 0,
            "release_pending": 0,
            "attempts": 0,
        }
        assert features.drain_sample_removals(["s0"])["removed"] == 0
        assert features.health()["release_pending"] == 0
        features.drop_run()
    assert {"__setitem__", "__delitem__", "__len__", "get", "values"} <= guarded.used
    assert guarded.unguarded == []
