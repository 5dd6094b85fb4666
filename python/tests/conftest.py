"""Stores for the tests of the native API: one inside the process, and one that is a process of its own.

And feature stores, over every backend: our own store inside the process and elsewhere, and a Mooncake cluster
beside our index. The last one is what `mooncake.store` is where the tests run: here our drop-in; `make
check-features-peer` runs the same tests where the official wheel is installed, against its own master.
"""

import uuid

import pytest
import tiffin
from tiffin.features import FeatureStore, Mooncake, mooncake_setup

import feature_stores
import helpers


@pytest.fixture
def store():
    with tiffin.connect(memory="256MiB", timeout=30) as store:
        yield store


@pytest.fixture(scope="module")
def cluster():
    """The address of a store in a process of its own, reached over TCP on loopback."""
    with helpers.up("--memory", "256MiB") as (address, _):
        yield address


@pytest.fixture
def small():
    """A namespace that may hold a mebibyte."""
    with tiffin.connect(memory="64MiB", timeout=30) as store:
        store.set_policy(quota=1 << 20)
        yield store


@pytest.fixture(scope="module")
def mooncake():
    """The address of a Mooncake master, or of its substitute."""
    pytest.importorskip("mooncake")
    if feature_stores.PEER is not None:
        yield feature_stores.PEER
        return
    with helpers.up("--memory", "64MiB") as (address, _):
        yield address


@pytest.fixture(scope="module")
def plane(mooncake):
    """A Mooncake store that outlives the processes of a test."""
    segment = 0 if feature_stores.PEER is None else 64 << 20
    store = mooncake_setup(mooncake, global_segment_size=segment, local_buffer_size=16 << 20)
    yield store
    store.close()


@pytest.fixture
def make(request, cluster):
    """Makes feature stores of one backend; those of one test share their contents."""
    made, name = [], f"t-{uuid.uuid4().hex[:12]}"

    def make(kind, **options):
        store_id = options.pop("store_id", name)
        if kind == "embedded":
            if made:
                options["store"] = made[0].index
            else:
                options["memory"] = "64MiB"
        else:
            options["address"] = cluster
        if kind == "mooncake":
            options.setdefault("backend", Mooncake(request.getfixturevalue("plane")))
        made.append(FeatureStore(store_id, timeout=30, **options))
        return made[-1]

    yield make
    for features in reversed(made):
        if not features.index.is_closed:
            features.drop_run()
            features.close()


@pytest.fixture(params=feature_stores.BACKENDS)
def features(request, make):
    """A store, and how to make another one like it."""
    features = make(request.param)
    features.kind = request.param
    features.again = lambda **options: make(request.param, **options)
    return features
