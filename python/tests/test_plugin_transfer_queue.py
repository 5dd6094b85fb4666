"""The contract of TransferQueue's storage backends, and our backend."""

import importlib
import types

import pytest
import tiffin

import frameworks

CLIENTS = "transfer_queue.storage.clients.base"
MANAGERS = "transfer_queue.storage.managers.base"


@pytest.fixture
def module(monkeypatch):
    return frameworks.load(
        monkeypatch, "transfer_queue", frameworks.transfer_queue, "torch", CLIENTS, MANAGERS
    )


@pytest.fixture
def torch(module):
    return importlib.import_module("torch")


@pytest.fixture
def client(module, store):
    return module.TiffinStorageClient({"run": "7"}, store=store)


def test_class_fits_the_base_class(module):
    base = importlib.import_module(CLIENTS).StorageKVClient
    assert frameworks.fits(module.TiffinStorageClient, base) == ["clear", "get", "put"]


def test_backend_is_registered_by_importing_it(module, cluster):
    factory = importlib.import_module(CLIENTS).StorageClientFactory
    client = factory.create("TiffinStorageClient", {"address": cluster})
    assert client.put(["0@text"], [{"a": [1, 2]}])[0]["packed_size"] > 0
    client.clear(["0@text"])
    client.close()
    assert client.store.is_closed
    providers = importlib.import_module("transfer_queue.storage.bootstrap.provider").StorageBootstrapProvider
    conf = types.SimpleNamespace(backend={module.NAME: types.SimpleNamespace(address=cluster)})
    assert providers.get_provider(module.NAME)(conf) == {"address": cluster}
    module.register()


def test_tensors_and_other_values_return(client, torch):
    keys = ["0@ids", "1@ids", "0@text", "0@scalar", "0@none"]
    values = [torch.arange(6), torch.arange(3), {"said": "hello", "turns": [1, 2]}, torch.arange(1)[0], None]
    meta = client.put(keys, values)
    assert meta[:2] == [None, None] and meta[3] is None and meta[2]["packed_size"] > 0
    shapes = [value.shape if hasattr(value, "shape") else None for value in values]
    dtypes = [value.dtype if hasattr(value, "dtype") else None for value in values]
    found = client.get(keys, shapes, dtypes, meta)
    assert found[0].tolist() == [0, 1, 2, 3, 4, 5] and found[1].tolist() == [0, 1, 2]
    assert found[2] == values[2] and found[3].tolist() == 0 and found[4] is None
    # A second put replaces.
    client.put(["1@ids"], [torch.arange(2)])
    assert client.get(["1@ids"], [(2,)], [values[1].dtype])[0].tolist() == [0, 1]


def test_data_of_a_step_is_pinned_and_deleted_at_once(client, torch, store):
    client.put(["0@ids"], [torch.arange(6)])
    assert store.why("transfer-queue/7/0@ids").pins == ("transfer-queue/7",)
    client.clear(["0@ids", "9@never"])
    assert not store.exists("transfer-queue/7/0@ids")
    client.clear([])
    assert client.put([], []) == [] and client.get([], [], []) == []


def test_runs_do_not_share_keys(module, store, torch):
    first, second = (module.TiffinStorageClient({"run": run}, store=store) for run in "ab")
    first.put(["0@ids"], [torch.arange(2)])
    with pytest.raises(tiffin.NotFound):
        second.get(["0@ids"], [(2,)], [torch.int64])


def test_wrong_arguments_are_refused(client, torch):
    client.put(["0@ids"], [torch.arange(6)])
    with pytest.raises(ValueError, match="48 bytes, and its shape and type need 56"):
        client.get(["0@ids"], [(7,)], [torch.int64])
    with pytest.raises(ValueError, match="a shape and a type"):
        client.get(["0@ids"])
    with pytest.raises(ValueError, match="2 keys do not belong to 1 values"):
        client.put(["a", "b"], [torch.arange(1)])
    with pytest.raises(ValueError, match="sizes that `put` has returned"):
        client.get(["0@text"], [None], [None])


def test_unknown_settings_are_refused(module, store):
    with pytest.raises(ValueError, match=r"unknown settings of `TiffinStore`.*adress"):
        module.TiffinStorageClient({"adress": "x"}, store=store)
