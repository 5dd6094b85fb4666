"""Helpers of the feature store's tests: samples, a store whose calls fail, code in other processes."""

import os
import pickle
import subprocess
import sys

import numpy as np

#: If the official wheel is installed, the tests run against its master at this address.
PEER = os.environ.get("TIFFIN_TEST_MOONCAKE")
BACKENDS = ("mooncake",) if PEER is not None else ("embedded", "cluster", "mooncake")
TENSORS = {
    "hidden": np.arange(24, dtype=np.float32).reshape(4, 6),
    "ids": np.arange(4, dtype=np.int64),
}


def same(tensors, wanted=TENSORS):
    """Whether tensors are those that were put."""
    assert list(tensors) == list(wanted)
    for name, array in wanted.items():
        assert tensors[name].shape == array.shape and np.array_equal(np.asarray(tensors[name]), array), name


def resident(features):
    """The number of samples."""
    return features.health()["resident_samples"]


class Faulty:
    """A Mooncake store with some failing calls."""

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


def start(program, *arguments):
    """A program in a process of its own, which reads commands and prints answers."""
    prelude = f"import pickle\narguments = pickle.loads({pickle.dumps(arguments)!r})\n"
    return subprocess.Popen(
        [sys.executable, "-c", prelude + program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
