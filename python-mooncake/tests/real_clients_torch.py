"""Published clients of `mooncake.store` that need torch, on our drop-in: `make clients TORCH=1`.

They are installed without their dependencies, which have several gigabytes. A client whose package imports
those is loaded from its own files: `bare` leaves out the `__init__.py` of the packages around it. One that
is not installed is skipped with the reason.
"""

import concurrent.futures
import importlib
import importlib.util
import pathlib
import pickle
import sys
import types

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from test_clients import MIB, master, stores

__all__ = ["master", "stores"]

torch = pytest.importorskip("torch")


def bare(monkeypatch, *packages):
    """Packages that have their modules, and none of what their `__init__.py` imports."""
    for name in packages:
        parent, _, last = name.rpartition(".")
        paths = sys.modules[parent].__path__ if parent else sys.path
        folders = [str(path) for it in paths if (path := pathlib.Path(it, last)).is_dir()]
        if not folders:
            pytest.skip(f"{name} is not installed")
        module = types.ModuleType(name)
        module.__path__ = folders[:1]
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def imported(monkeypatch):
    """Imports a module of a client. Afterwards it is unknown again, as are the bare packages around it."""
    before = set(sys.modules)

    def load(name, *packages):
        bare(monkeypatch, *packages)
        return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("transfer_queue", "vllm_omni"):
            monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def transfer_queue(imported, master):
    packages = ["transfer_queue", "transfer_queue.storage", "transfer_queue.storage.clients"]
    for name in ("cloudpickle", "msgspec", "tensordict", "zmq"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    module = imported("transfer_queue.storage.clients.mooncake_client", *packages, "transfer_queue.utils")
    settings = {"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE"}
    settings |= {"global_segment_size": 64 * MIB, "local_buffer_size": 4 * MIB}
    client = module.MooncakeStoreClient(settings | {"master_server_address": master.address})
    yield client
    client.close()


def test_transfer_queue_stores_tensors_and_other_values(transfer_queue):
    for number in range(2):  # The second round replaces the values by ones of other sizes.
        tensors = [torch.arange(5 + number + i).to(torch.bfloat16) for i in range(900)]
        others = [{"prompt": "p" * (1 + number), "at": i} for i in range(500)]
        keys = [f"k{i}" for i in range(len(tensors) + len(others))]
        values = [*tensors, *others]
        meta = transfer_queue.put(keys, values)
        shapes = [list(it.shape) for it in tensors] + [[]] * len(others)
        dtypes = [it.dtype for it in tensors] + [None] * len(others)
        found = transfer_queue.get(keys, shapes, dtypes, meta)
        assert all(torch.equal(*both) for both in zip(found, tensors, strict=False))
        assert found[len(tensors) :] == others
    transfer_queue.clear(keys, meta)
    assert set(transfer_queue._store.batch_is_exist(keys)) == {0}


@pytest.fixture
def hidden_states(master):
    """The store of speculators."""
    module = pytest.importorskip("hs_connectors.mooncake_store", reason="hs-connectors is not installed")
    config = module.MooncakeStoreConfig.from_dict(
        {"master_server_address": master.address, "global_segment_size": 256 * MIB, "local_buffer_size": MIB}
    )
    return module, module.MooncakeHiddenStatesStore(config).setup()


def manifest(module, handle, tensors):
    specs, size = module.packed_layout({name: (tuple(it.shape), it.dtype) for name, it in tensors.items()})
    metadata = {"total_aligned_bytes": size}
    return {"version": module.VERSION, "handle": handle, "tensors": specs, "metadata": metadata}


def test_speculators_move_hidden_states_between_threads(hidden_states):
    module, store = hidden_states
    samples = {
        f"request-{i}": {
            "hidden_states": torch.full((16 + i, 64), i, dtype=torch.bfloat16),
            "token_ids": torch.arange(16 + i),
        }
        for i in range(8)
    }
    manifests = {handle: manifest(module, handle, tensors) for handle, tensors in samples.items()}
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        # The consumers wait for their producers.
        waiting = {handle: threads.submit(store.get_sample, told) for handle, told in manifests.items()}
        for handle, tensors in samples.items():
            store.put_sample(manifests[handle], tensors)
        for handle, tensors in samples.items():
            found = waiting[handle].result(60)
            assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    store.put_error(manifest(module, "failed", {}), "no memory")
    with pytest.raises(module.MooncakeIntegrityError, match="no memory"):
        store.get_sample(manifest(module, "failed", {}))
    for handle in (*samples, "failed", "never stored"):
        store.delete_sample(handle)
    with pytest.raises(module.MooncakeIntegrityError, match="-704"):
        store._read_from_store("request-1")


def test_vllm_omni_passes_objects_between_stages(imported, master):
    packages = ["vllm_omni", "vllm_omni.distributed", "vllm_omni.distributed.omni_connectors"]
    packages += [f"{packages[-1]}.connectors", f"{packages[-1]}.utils"]
    connectors = imported(f"{packages[-2]}.mooncake_store_connector", *packages)

    class Connector(connectors.MooncakeStoreConnector):
        """Its own format needs vLLM; the store only has bytes."""

        serialize_obj, deserialize_obj = staticmethod(pickle.dumps), staticmethod(pickle.loads)

    settings = {"host": "localhost", "metadata_server": "P2PHANDSHAKE", "master": master.address}
    connector = Connector(settings | {"segment": 64 * MIB, "localbuf": 16 * MIB})
    data = {"tokens": list(range(1000)), "audio": bytes(100_000)}
    is_stored, size, _ = connector.put("thinker", "talker", "request", data)
    assert is_stored and size > 100_000
    assert connector.get("thinker", "talker", "request") == (data, size)
    assert connector.get("talker", "vocoder", "request") is None
    assert connector.health()["status"] == "healthy"
    connector.close()
