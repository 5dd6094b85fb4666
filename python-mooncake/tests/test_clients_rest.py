"""The calls of clients that `test_clients.py` does not cover, in their order and with their arguments.

A client that needs a method which is not there yet is reported as skipped, with the name of the method.
"""

import concurrent.futures
import hashlib
import inspect
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import worker
from test_clients import arguments, master, stores

__all__ = ["master", "stores"]

MIB = 1 << 20


def needs(*methods):
    """Skip a client whose methods are missing."""
    missing = [name for name in methods if not hasattr(MooncakeDistributedStore, name)]
    return pytest.mark.skipif(bool(missing), reason=f"there is no {', '.join(missing)}")


def other_process(master, program):
    """Run a program with its own store, without a segment, and return its output."""
    begin = f"""
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("localhost", "P2PHANDSHAKE", 0, 1 << 24, "tcp", "", {master.address!r}) == 0
"""
    done = subprocess.run([sys.executable, "-c", begin + program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_vllm_ascend(master, stores):
    """It inspects `setup`, puts through one path only, and never closes."""
    signature = inspect.signature(MooncakeDistributedStore.setup)
    assert "enable_ssd_offload" in signature.parameters
    store = stores()
    names = list(signature.parameters)[1:8]
    given = dict(zip(names, arguments(master), strict=True)) | {"engine": None}
    assert store.setup(**given, enable_ssd_offload=False, ssd_offload_path="") == 0
    cache = np.arange(8 * 2048, dtype=np.uint8)
    keys = [f"hash-{index}@layers" for index in range(4)]
    addresses = [
        [cache.ctypes.data + index * 4096, cache.ctypes.data + index * 4096 + 2048] for index in range(4)
    ]
    sizes = [[2048, 2048]] * 4
    config = ReplicateConfig()
    config.preferred_segment, config.prefer_alloc_in_same_node = store.get_hostname(), True
    assert store.batch_is_exist(keys) == [0] * 4
    assert all(code >= 0 for code in store.batch_put_from_multi_buffers(keys, addresses, sizes, config))
    expected, cache[:] = cache.copy(), 0
    read = store.batch_get_into_multi_buffers(keys, addresses, sizes, True)
    assert read == [4096] * 4 and (cache == expected).all()


def test_vllm_logs_the_tier_of_what_it_reads(master, stores):
    store = stores()
    assert store.setup(*arguments(master)) == 0
    assert store.put("hit", b"v") == 0
    found = store.batch_get_replica_desc(["hit", "miss"])
    assert list(found) == ["hit"]
    tiers = [
        "memory" if it.is_memory_replica() else "disk" if it.is_disk_replica() else "local disk"
        for it in found["hit"]
    ]
    assert tiers == ["memory"] and found["hit"][0].status.name == "COMPLETE"


def test_fastdeploy(master, stores):
    """A warm-up, then pages without registration of each; the store is never closed."""
    store = stores()
    assert store.setup(*arguments(master)) == 0
    warmup = b"\x00" * (1 << 20)
    assert store.put("warmup_key", warmup) == 0
    assert store.is_exist("warmup_key") == 1
    assert store.get("warmup_key") == warmup
    assert store.remove("warmup_key", True) == 0
    pages = worker.Memory(4 * 4096, b"page")
    assert store.register_buffer(pages.address, pages.size) == 0
    keys, pointers = [f"p{i}" for i in range(4)], [pages.address + i * 4096 for i in range(4)]
    assert store.batch_put_from(keys, pointers, [4096] * 4) == [0] * 4
    assert dict(zip(keys, store.batch_is_exist(keys), strict=True)) == dict.fromkeys(keys, 1)
    assert store.batch_get_into(keys, pointers, [4096] * 4) == [4096] * 4


def test_unified_cache_management(master, stores):
    """Version 0 stores bytes from many threads; version 1 shares an engine and uses addresses."""
    store = stores()
    assert store.setup(*arguments(master)) == 0
    values = {f"ucm-{index}": bytes([index]) * 5000 for index in range(32)}
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda item: store.put(*item), values.items())) == {0}
        assert list(threads.map(store.get, values)) == list(values.values())
        assert list(threads.map(store.is_exist, [*values, "none"])) == [1] * 32 + [0]
    assert store.get("none") == b""
    other = stores()
    assert other.setup(*arguments(master), None) == 0
    assert other.close() == 0 and store.close() == 0


@needs("batch_upsert_from")
def test_transfer_queue(master, stores):
    """Registers around every call, replaces, and reads back in four threads."""
    store = stores()
    assert store.setup(*arguments(master)) == 0
    config = ReplicateConfig()
    config.with_hard_pin = True
    rows = np.arange(4 * 1000, dtype=np.int64).reshape(4, 1000)
    keys, pointers = [f"row-{index}" for index in range(4)], [row.ctypes.data for row in rows]
    sizes = [row.nbytes for row in rows]
    for turn in range(2):
        rows += turn
        for pointer, size in zip(pointers, sizes, strict=True):
            assert store.register_buffer(pointer, size) == 0
        assert store.batch_upsert_from(keys, pointers, sizes, config=config) == [0] * 4
        for pointer in pointers:
            assert store.unregister_buffer(pointer) == 0

    def read(index):
        target = np.zeros(1000, dtype=np.int64)
        assert store.register_buffer(target.ctypes.data, target.nbytes) == 0
        got = store.batch_get_into([keys[index]], [target.ctypes.data], [target.nbytes])
        assert store.unregister_buffer(target.ctypes.data) == 0
        return got == [target.nbytes] and (target == rows[index]).all()

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        assert all(threads.map(read, range(4)))
    assert all(code in (0, -704) for code in store.batch_remove([*keys, "row-9"], force=True))
    assert store.remove_all() == 0
    assert store.close() == 0


@needs("upsert_from")
def test_nemo_rl_checkpoints(master, stores):
    """It looks for the segment of each copy, and reads in another process."""
    store = stores()
    names = list(inspect.signature(MooncakeDistributedStore.setup).parameters)[1:8]
    given = arguments(master)
    given[1] = master.metadata_url
    assert store.setup(**dict(zip(names, given, strict=True))) == 0
    config = ReplicateConfig()
    config.preferred_segment = store.get_hostname()
    weights = np.random.default_rng(3).standard_normal(5000).astype(np.float32)
    assert store.register_buffer(weights.ctypes.data, weights.nbytes) == 0
    assert store.upsert_from("step", weights.ctypes.data, weights.nbytes, config) == 0
    copies = [it for it in store.get_replica_desc("step") if it.status.name == "COMPLETE"]
    places = [it.get_memory_descriptor().buffer_descriptor.transport_endpoint for it in copies]
    assert places == [store.get_hostname()]
    assert store.get_size("step") == weights.nbytes
    said = other_process(
        master,
        """
import hashlib
print(hashlib.sha256(store.get("step")).hexdigest())
""",
    )
    assert said == hashlib.sha256(weights.tobytes()).hexdigest()
    assert store.unregister_buffer(weights.ctypes.data) == 0


def test_segment_of_an_ended_donor_process_is_removed(master, stores):
    """TensorRT-LLM's donor drops its store and relies on that."""
    asking = stores()
    assert asking.setup(*arguments(master, segment=0)) == 0
    donor = MooncakeDistributedStore()
    assert donor.setup(*arguments(master)) == 0
    assert asking.put("k", b"v") == 0
    del donor
    assert worker.until(lambda: asking.is_exist("k") == 0)
    assert asking.put("k", b"v") == -200


def test_structured_payloads_of_miles_and_roll(master, stores):
    """A pool if there is one, ranges into its leases, and removal by `(keys, True)`."""
    from mooncake import BufferPool

    store = stores()
    settings = dict(zip(list(inspect.signature(store.setup).parameters)[:7], arguments(master), strict=True))
    assert store.setup({key: str(value) for key, value in settings.items()}) == 0
    assert store._get_pyclient_capsule() is not None
    pool = BufferPool(store)
    payload = np.arange(4000, dtype=np.float32)
    with pool.acquire(payload.nbytes) as lease:
        view = lease.buffer
        view[:] = payload.tobytes()
        assert store.batch_put_from(["bundle"], [lease.ptr], [lease.size], config=ReplicateConfig()) == [0]
        view.release()
    lease = pool.acquire(8000)
    ranges = store.get_into_ranges([lease.ptr], [["bundle"]], [[[0, 4000]]], [[[0, 12000]]], [[[4000, 4000]]])
    assert ranges == [[[4000, 4000]]]
    rows = np.frombuffer(lease.buffer, dtype=np.float32)
    assert (rows == np.concatenate([payload[:1000], payload[3000:]])).all()
    del rows
    lease.release()
    assert store.batch_remove(["bundle", "gone"], True) == [0, -704]
    pool.close()


@needs("put_tensor", "get_tensor")
def test_speculators(master, stores):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    store = stores()
    assert store.setup(*arguments(master)) == 0
    assert store.put("meta", b"{}") == 0 and store.get("meta") == b"{}"
    states = torch.arange(24, dtype=torch.bfloat16).reshape(4, 6)
    assert store.put_tensor("states", states) == 0
    found = store.get_tensor("states")
    assert found.dtype == states.dtype and torch.equal(found, states)
    assert store.get_tensor("none") is None
    assert store.batch_remove(["states", "meta"], force=True) == [0, 0]
