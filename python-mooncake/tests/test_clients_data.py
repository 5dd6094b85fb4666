"""Clients that replace objects, store tensors, or read ranges: their calls, and what they check.

Each test stands for one client's own code: what it would do with the answers is what is asserted.
"""

import concurrent.futures

import numpy as np
import pytest
import worker
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

MIB = 1 << 20


@pytest.fixture(scope="module")
def master():
    flags = ["-client_ttl=30", "-default_kv_lease_ttl=999999", "--allow_evict_soft_pinned_objects=false"]
    made = worker.Master(*flags, "--eviction_high_watermark_ratio=1.0", "--eviction_ratio=0.0")
    yield made
    made.kill()


@pytest.fixture
def store(master):
    made = MooncakeDistributedStore()
    assert made.setup("localhost", master.metadata_url, 64 * MIB, 16 * MIB, "tcp", "", master.address) == 0
    yield made
    made.remove_all(True)
    made.close()


def test_transfer_queue_replaces_from_four_threads(store):
    """It registers and unregisters around every call, pins its objects, and has four threads."""
    config = ReplicateConfig()
    config.with_hard_pin = True

    def put(rank, step):
        data = np.full((4, 64 * 1024), rank * 100 + step, dtype=np.float32)
        assert store.register_buffer(data.ctypes.data, data.nbytes) == 0
        try:
            pointers = [data[at].ctypes.data for at in range(4)]
            keys = [f"{rank}@{at}" for at in range(4)]
            return store.batch_upsert_from(keys, pointers, [data[0].nbytes] * 4, config=config)
        finally:
            assert store.unregister_buffer(data.ctypes.data) == 0

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for step in range(5):
            assert list(pool.map(put, range(4), [step] * 4)) == [[0] * 4] * 4
    target = np.zeros((4, 64 * 1024), dtype=np.float32)
    assert store.register_buffer(target.ctypes.data, target.nbytes) == 0
    for rank in range(4):
        keys = [f"{rank}@{at}" for at in range(4)]
        into = [target[at].ctypes.data for at in range(4)]
        assert store.batch_get_into(keys, into, [target[0].nbytes] * 4) == [target[0].nbytes] * 4
        assert (target == rank * 100 + 4).all()
        assert all(code in (0, -704) for code in store.batch_remove(keys, force=True))
    assert store.unregister_buffer(target.ctypes.data) == 0
    assert store.remove_all() == 0


def test_nemo_rl_checkpoints(store):
    """It replaces an object by one of another size, and requires the exact size of what it reads."""
    for count in (1000, 10, 5000):
        data = np.arange(count, dtype=np.int64)
        assert store.upsert_from("checkpoint", data.ctypes.data, data.nbytes) == 0
        assert store.get_size("checkpoint") == data.nbytes
        target = np.zeros_like(data)
        assert store.get_into("checkpoint", target.ctypes.data, target.nbytes) == data.nbytes
        assert (target == data).all()
    (copy,) = store.get_replica_desc("checkpoint")
    assert copy.status.name == "COMPLETE"
    assert copy.get_memory_descriptor().buffer_descriptor.transport_endpoint == store.get_hostname()


def test_layers_are_saved_and_loaded_one_by_one(store):
    """A cache of pages: each layer is written into all pages of a request, and read back in the same way."""
    layers, pages, part = 4, 8, 1024
    keys = [f"page{at}" for at in range(pages)]
    cache = worker.Memory(layers * pages * part, bytes(range(251)))
    assert store.register_buffer(cache.address, cache.size) == 0
    addresses = [
        [[cache.address + (at * layers + layer) * part] for at in range(pages)] for layer in range(layers)
    ]
    assert store.put(keys[0], b"cached already") == 0
    assert store.batch_put_session_start(keys, [layers * part] * pages) == [-705] + [0] * (pages - 1)
    new = keys[1:]
    for layer in range(layers):
        offsets = [[layer * part]] * len(new)
        written = store.batch_put_from_multi_buffer_ranges(
            new, addresses[layer][1:], [[part]] * len(new), offsets
        )
        assert written == [part] * len(new)
    assert store.batch_put_session_end(new) == [0] * len(new)
    expected, cache[:] = cache[:], bytes(cache.size)
    assert store.batch_get_session_start(new) == [0] * len(new)
    for layer in range(layers):
        offsets = [[layer * part]] * len(new)
        read = store.batch_get_into_multi_buffer_ranges(
            new, addresses[layer][1:], [[part]] * len(new), offsets
        )
        assert read == [part] * len(new)
    assert store.batch_get_session_end(new) == 0
    assert cache[layers * part :] == expected[layers * part :]


def test_miles_reads_ranges_of_its_bundles(store):
    data = np.arange(4096, dtype=np.uint8)
    assert store.put("bundle", data) == 0
    target = worker.Memory(4096)
    assert store.register_buffer(target.address, target.size) == 0
    sizes = [[[100, 50]]]
    assert store.get_into_ranges([target.address], [["bundle"]], [[[0, 100]]], [[[10, 2000]]], sizes) == sizes
    assert target[:150] == data[10:110].tobytes() + data[2000:2050].tobytes()


def test_speculators_store_hidden_states(store):
    torch = pytest.importorskip("torch")
    states = torch.randn(16, 256).to(torch.bfloat16)
    assert store.put("meta", b"{}") == 0 and store.put_tensor("states", states) == 0
    assert store.get("meta") == b"{}" and torch.equal(store.get_tensor("states"), states)
    assert store.get_tensor("none") is None
    assert store.batch_remove(["meta", "states"], force=True) == [0, 0]
