"""The feature store in workers, its memory, and the projects that it is for."""

import concurrent.futures
import ctypes
import multiprocessing
import os

import numpy as np
import pytest
from tiffin.features import BufferPool
from tiffin.features.pool import Recycler

import helpers
from feature_stores import TENSORS, same


def test_forked_and_spawned_workers_read_the_store(make):
    features = make("cluster", retain_on_release=True)
    ref = features.put(TENSORS, sample_id="s").to_json()
    assert helpers.in_child(lambda: helpers.sum_of_ids(features, ref)) == 6
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as workers:
        assert workers.submit(helpers.sum_of_ids, features, ref).result() == 6
    helpers.eventually(lambda: features.health()["active_leases"] == 0)
    same(features.get(ref)[0])


def test_most_recent_memory_is_kept_for_the_next_tensor():
    dropped = []
    recycler = Recycler(max_bytes=8 << 20, register=lambda *_: None, unregister=dropped.append)
    old, new = (ctypes.addressof(recycler.allocate(size)) for size in (4 << 20, 6 << 20))
    block = recycler.allocate(1 << 20)
    assert dropped == [old], "together they are more than may be kept, and it was not used for longer"
    block = recycler.allocate(7 << 20)
    assert ctypes.addressof(block) == new
    block[:3] = b"abc"
    assert ctypes.addressof(recycler.allocate(8 << 20)) != new and bytes(block[:3]) == b"abc", "it is in use"
    block = None
    dropped.clear()
    large = ctypes.addressof(recycler.allocate(9 << 20))
    recycler.allocate(1 << 20)
    assert large in dropped and new not in dropped, "memory beyond the limit evicts nothing"


def test_memory_is_reused_before_the_limit_frees_it():
    dropped = []
    recycler = Recycler(max_bytes=10 << 20, register=lambda *_: None, unregister=dropped.append)
    blocks = [recycler.allocate(size) for size in (8 << 20, 2 << 20, 8 << 20)]
    places = {ctypes.addressof(block) for block in blocks}
    del blocks
    block = recycler.allocate(8 << 20)
    assert ctypes.addressof(block) in places and not dropped, "one is in use again, and two fit"


def test_pool_reuses_buffers_once_they_are_safe():
    told, now = [], [0.0]
    pool = BufferPool(
        register=lambda *it: told.append(it), unregister=told.append, settle_s=60, clock=lambda: now[0]
    )
    first = pool.take(5000)
    second = pool.take(5000)
    assert first.address != second.address and pool.in_use == 2 and len(told) == 2
    first.release()
    assert pool.take(8000).address == first.address and pool.made == 2
    with pytest.raises(RuntimeError), second:
        raise RuntimeError("a transfer that may continue")
    assert pool.take(5000).address != second.address
    now[0] += 61
    assert pool.take(5000).address == second.address, "by now nothing writes there any more"
    pool.take(9000).release()
    pool.close()
    assert len(told) == 5 and isinstance(told[-1], int)


def test_memory_is_reused_after_its_last_tensor(make):
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
