"""Results of `gc` about samples that the master has freed, in several threads."""

import threading
import types

import pytest
from tiffin.features import FeatureStore


class Watched:
    """A lock that signals when a thread has to wait for it."""

    def __init__(self):
        self.lock, self.moved = threading.Lock(), threading.Event()

    def __enter__(self):
        if not self.lock.acquire(blocking=False):
            self.moved.set()
            self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()


class Index:
    """An index that has freed one more sample at each request, and runs a hook at the first."""

    def __init__(self, hook):
        self.expired, self.hook = 0, hook

    def wait_usage(self, at_least):
        assert at_least == 0
        self.expired += 1
        expired, (hook, self.hook) = self.expired, (self.hook, None)
        if hook is not None:
            hook()
        return types.SimpleNamespace(samples_expired=expired, samples_expired_size=10 * expired)


def test_threads_count_each_expired_sample_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    lock = Watched()

    def other():
        counted.append(features._expired_since())
        lock.moved.set()

    def meanwhile():
        # The other thread asks while the first has its answer and has not counted it yet.
        thread.start()
        assert lock.moved.wait(timeout=60)

    thread = threading.Thread(target=other)
    with FeatureStore("counts", memory="16MiB", max_hold_age_s=3600) as features:
        monkeypatch.setattr(features, "_expiry", lock)
        monkeypatch.setattr(features, "_expired", (0, 0))
        with monkeypatch.context() as patch:
            patch.setattr(features, "index", Index(meanwhile))
            counted.append(features._expired_since())
            thread.join()
    assert [sum(column) for column in zip(*counted, strict=True)] == [2, 20]
