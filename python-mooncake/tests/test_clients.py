"""The calls of real clients of `mooncake.store`: their order, their arguments, and what they check.

Each test stands for one client's own code: what it would do with the answers is what is asserted.
"""

import ctypes
import importlib.metadata
import inspect
import pathlib
import sys
import threading

import numpy as np
import pytest
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import worker

MIB = 1 << 20


@pytest.fixture(scope="module")
def master():
    made = worker.Master("--default_kv_lease_ttl=500")
    yield made
    made.kill()


@pytest.fixture
def stores(master):
    """Create stores, and close those that their client does not close."""
    made = []

    def make():
        made.append(MooncakeDistributedStore())
        return made[-1]

    yield make
    for store in made:
        store.remove_all(True)
        store.close()


def arguments(master, segment=64 * MIB, buffer=16 * MIB):
    return ["localhost", "P2PHANDSHAKE", segment, buffer, "tcp", "", master.address]


def test_sglang_hicache(master, stores):
    store = stores()
    extra = {"enable_ssd_offload": False, "enable_client_http_server": False, "not_there_yet": 1}
    while True:
        try:
            assert store.setup(*arguments(master), None, **extra) == 0
            break
        except TypeError as error:
            unknown = [key for key in extra if key in str(error)]
            assert unknown == ["not_there_yet"]
            extra.pop(unknown[0])
    assert worker.until(lambda: worker.fetch(master.metrics, "/get_all_segments")[1].strip())
    # The warm-up.
    assert store.put("warmup", b"w" * 4096) == 0
    assert store.is_exist("warmup") == 1
    assert store.get("warmup") == b"w" * 4096
    # Pages of the host pool, keys and values separately.
    pool = np.arange(8 * 4096, dtype=np.uint8).reshape(8, 4096)
    assert store.register_buffer(pool.ctypes.data, pool.nbytes) == 0
    keys = [f"page-{index}_k" for index in range(4)] + [f"page-{index}_v" for index in range(4)]
    pointers = [pool.ctypes.data + index * 4096 for index in range(8)]
    assert store.batch_is_exist(keys) == [0] * 8
    config = ReplicateConfig()
    if hasattr(ReplicateConfig, "group_ids"):
        config.group_ids = ["group"] * 8
    assert store.batch_put_from(keys, pointers, [4096] * 8, config) == [0] * 8
    assert store.batch_is_exist([*keys, "page-9_k"]) == [1] * 8 + [0]
    expected = pool.copy()
    pool[:] = 0
    assert all(got > 0 for got in store.batch_get_into(keys, pointers, [4096] * 8))
    assert (pool == expected).all()
    # Layer first, a page from many buffers.
    halves = [[pointer, pointer + 2048] for pointer in pointers[:4]]
    names = [f"layers-{index}" for index in range(4)]
    config.group_ids = ["group"] * 4
    assert store.batch_put_from_multi_buffers(names, halves, [[2048, 2048]] * 4, config) == [0] * 4
    assert store.batch_get_into_multi_buffers(names, halves, [[2048, 2048]] * 4) == [4096] * 4
    assert store.remove_all() >= 0


def test_vllm_store_connector(master, stores):
    store = stores()
    assert store.setup(*arguments(master), tenant_id="default") == 0
    cache = np.random.default_rng(1).integers(0, 255, (16, 1024), dtype=np.uint8)
    assert store.register_buffer(cache.ctypes.data, cache.nbytes) == 0
    config = ReplicateConfig()
    config.preferred_segment = store.get_hostname()
    failures = []

    def send(first):
        keys = [f"block-{index}" for index in range(first, first + 4)]
        addresses = [[cache.ctypes.data + index * 1024] for index in range(first, first + 4)]
        missing = [key for key, found in zip(keys, store.batch_is_exist(keys), strict=True) if found != 1]
        config_of_thread = ReplicateConfig()
        config_of_thread.group_ids = keys
        codes = store.batch_put_from_multi_buffers(keys, addresses, [[1024]] * 4, config_of_thread)
        failures.extend(code for code in codes if code < 0)
        assert missing == keys

    threads = [threading.Thread(target=send, args=(first,)) for first in (0, 4, 8, 12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    # One config object is kept, and its groups are set for each call.
    config.group_ids = ["again"]
    again = store.batch_put_from_multi_buffers(["block-0"], [[cache.ctypes.data]], [[1024]], config)
    assert again == [0]
    target = np.zeros_like(cache)
    pointers = [[target.ctypes.data + index * 1024] for index in range(16)]
    keys = [f"block-{index}" for index in range(16)]
    assert store.batch_get_into_multi_buffers(keys, pointers, [[1024]] * 16) == [1024] * 16
    assert (target == cache).all()
    assert store.batch_get_into_multi_buffers(["absent"], [pointers[0]], [[1024]]) == [-704]
    # A block that fits nowhere: the connector backs off on exactly this code.
    huge = worker.Memory(80 * MIB)
    config.group_ids = None
    full = store.batch_put_from_multi_buffers(["huge"], [[huge.address]], [[huge.size]], config)
    assert full == [-200]
    assert store.remove_all(force=True) == 16
    assert store.close() == 0


def test_lmcache_connector(master, stores):
    store = stores()
    settings = {
        "local_hostname": "localhost",
        "metadata_server": "P2PHANDSHAKE",
        "global_segment_size": str(64 * MIB),
        "local_buffer_size": 16 * MIB,
        "protocol": "tcp",
        "device_name": "",
        "master_server_address": master.address,
        "transfer_timeout": 1,
    }
    assert store.setup(settings) == 0
    config = ReplicateConfig()
    config.replica_num = 1
    config.preferred_segment = store.get_hostname()
    pool = worker.Memory(8 * MIB, bytes(range(255)))
    assert store.register_buffer(pool.address, pool.size) == 0
    assert not store.is_exist("chunk")
    assert store.put_from("chunk", pool.address, MIB, config) == 0
    assert store.batch_put_from(["c1", "c2"], [pool.address, pool.address + MIB], [MIB, MIB], config) == [
        0,
        0,
    ]
    # The other path: metadata and data, concatenated.
    header = b"header--"
    assert store.put_parts("parts", header, memoryview(pool.map)[:4096]) == 0
    assert bool(store.is_exist("chunk"))
    assert store.batch_is_exist(["chunk", "no"]) == [1, 0]
    found = store.batch_get_buffer(["chunk", "missing", "parts"])
    assert found[1] is None
    view = memoryview(found[0])
    assert len(view) == found[0].size() == MIB and view.cast("B") == memoryview(pool.map)[:MIB]
    parts = memoryview(found[2]).cast("B")
    assert bytes(parts[:8]) == header and parts[8:] == memoryview(pool.map)[:4096]
    # The bytes stay as long as a view of them exists.
    array = np.frombuffer(found[0], dtype=np.uint8)
    del found, view
    assert store.remove_all(True) == 4
    assert (array == np.frombuffer(pool.map, dtype=np.uint8, count=MIB)).all()
    target = worker.Memory(2 * MIB)
    assert store.put_from("chunk", pool.address, MIB, config) == 0
    assert store.batch_get_into(["chunk", "no"], [target.address] * 2, [MIB] * 2) == [MIB, -704]
    assert store.unregister_buffer(pool.address) == 0
    assert store.close() == 0


def test_torchspec(master, stores):
    try:
        importlib.metadata.version("mooncake-transfer-engine")
    except importlib.metadata.PackageNotFoundError:
        assert "force" in MooncakeDistributedStore.batch_remove.__doc__
    store = stores()
    names = list(inspect.signature(MooncakeDistributedStore.setup).parameters)[1:8]
    metadata = arguments(master)
    metadata[1] = master.metadata_url
    assert store.setup(**dict(zip(names, metadata, strict=True))) in (0, None)
    config = ReplicateConfig()
    assert hasattr(config, "with_hard_pin")
    config.with_hard_pin = True
    buffer = worker.Memory(8 * MIB, b"hidden")
    assert store.register_buffer(buffer.address, buffer.size) == 0
    keys = [f"sample/{name}" for name in ("hidden", "last", "ids")]
    offsets, sizes = [0, 4 * MIB, 6 * MIB], [4 * MIB, 2 * MIB, 1000]
    pointers = [buffer.address + offset for offset in offsets]
    assert store.batch_put_from(keys, pointers, sizes, config=config) == [0, 0, 0]
    assert all(store.is_exist(key) == 1 for key in keys)
    target = worker.Memory(8 * MIB)
    into = [target.address + offset for offset in offsets]
    assert store.batch_get_into(keys, into, sizes) == sizes
    assert all(
        target[at : at + size] == buffer[at : at + size] for at, size in zip(offsets, sizes, strict=True)
    )
    handles = store.batch_get_buffer(keys)
    for handle, size, offset in zip(handles, sizes, offsets, strict=True):
        assert handle.size() == size
        assert ctypes.string_at(handle.ptr(), size) == buffer[offset : offset + size]
    removed = store.batch_remove([*keys, "sample/none"], force=True)
    assert all(code in (0, -704) for code in removed)
    assert store.batch_is_exist(keys) == [0, 0, 0]
    assert store.close() == 0


def test_specforge(master, stores):
    store = stores()
    names = list(inspect.signature(MooncakeDistributedStore.setup).parameters)[1:8]
    assert store.setup(**dict(zip(names, arguments(master), strict=True))) in (0, None)
    config = ReplicateConfig()
    config.replica_num, config.with_hard_pin = 1, True
    tensor = np.random.default_rng(2).standard_normal((64, 128)).astype(np.float32)
    assert store.register_buffer(tensor.ctypes.data, tensor.nbytes) == 0
    try:
        assert store.put_from("feature", tensor.ctypes.data, tensor.nbytes, config) == 0
    finally:
        assert store.unregister_buffer(tensor.ctypes.data) == 0
    assert store.is_exist("feature") == 1
    target = np.zeros_like(tensor)
    assert store.register_buffer(target.ctypes.data, target.nbytes) == 0
    assert store.get_into("feature", target.ctypes.data, target.nbytes) == tensor.nbytes
    assert store.unregister_buffer(target.ctypes.data) == 0
    assert (target == tensor).all()
    # It was just read: with strict leases a removal would have to wait.
    assert store.remove("feature") in (0, -706)
    assert store.remove("feature", force=True) in (0, -704)
    assert store.is_exist("feature") == 0


def test_tensorrt_llm_and_atom(master, stores):
    donor, store = stores(), stores()
    assert donor.setup(*arguments(master)) == 0
    assert store.setup(*arguments(master, segment=0, buffer=0)) == 0
    pool = worker.Memory(MIB, b"kv")
    assert store.register_buffer(pool.address, pool.size) == 0
    assert store.batch_put_from(["a", "b"], [pool.address] * 2, [512, 1024]) == [0, 0]
    assert [type(found) for found in store.batch_is_exist(["a", "b", "c"])] == [int] * 3
    assert store.batch_get_into(["a", "b", "c"], [pool.address] * 3, [1024] * 3) == [512, 1024, -704]
    assert store.remove("a", False) in (0, -706)
    assert store.remove("c", False) == -704
    assert store.remove("b", True) == 0


def test_flexkv_probes_without_a_data_plane(master, stores):
    holder, asking = stores(), stores()
    assert holder.setup(*arguments(master)) == 0
    assert holder.put("there", b"v") == 0
    query = arguments(master, segment=0, buffer=0)
    query[4] = "rpc_only"
    assert asking.setup(*query) == 0
    assert asking.batch_is_exist(["there", "not there"]) == [1, 0]


def test_vllm_omni(master, stores):
    store = stores()
    assert store.setup(*arguments(master)) == 0
    config = ReplicateConfig()
    config.with_soft_pin = True
    assert store.put("key", b"value", config) == 0
    assert store.is_exist("key")
    assert store.get("key") == b"value"
    assert store.get("nothing") == b""
    assert store.close() == 0


def test_miles_and_roll(master, stores):
    store = stores()
    settings = dict(zip(list(inspect.signature(store.setup).parameters)[:7], arguments(master), strict=True))
    assert store.setup({key: str(value) for key, value in settings.items()}) == 0
    assert store.put("meta", memoryview(b"meta"), config=ReplicateConfig()) == 0
    data = np.arange(1000, dtype=np.int64)
    assert store.register_buffer(data.ctypes.data, data.nbytes) == 0
    assert store.register_buffer(data.ctypes.data, data.nbytes) == -600
    config = ReplicateConfig()
    assert store.batch_put_from(["x"], [data.ctypes.data], [data.nbytes], config=config) == [0]
    target = np.zeros_like(data)
    assert store.batch_get_into(["x"], [target.ctypes.data], [target.nbytes]) == [data.nbytes]
    assert (target == data).all()
    assert store.batch_remove(["x", "meta", "gone"], True) == [0, 0, -704]


def test_lmdeploy_gets_integers_and_not_bools(master, stores):
    store = stores()
    assert store.setup(*arguments(master)) == 0
    assert store.put("k", b"v") == 0
    states = store.batch_is_exist(["k", "l"])
    assert states == [1, 0] and not any(isinstance(state, bool) for state in states)
    assert not isinstance(store.is_exist("k"), bool)
