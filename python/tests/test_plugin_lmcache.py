"""The contract of LMCache's remote connectors, and our connector."""

import asyncio
import importlib
import types

import numpy
import pytest

import frameworks

ADAPTERS = "lmcache.v1.storage_backend.connector"
BASE = f"{ADAPTERS}.base_connector"


@pytest.fixture
def lmcache(monkeypatch):
    return frameworks.load(monkeypatch, "lmcache", frameworks.lmcache, ADAPTERS, "lmcache.v1.protocol")


class Key:
    def __init__(self, name):
        self.name = name

    def to_string(self):
        return f"vllm@m@1@0@{self.name}"


class Chunk:
    """Memory of the host with a count of its users."""

    def __init__(self, shapes, dtypes, fmt, fill=0):
        self.shapes, self.dtypes, self.fmt, self.users = shapes, dtypes, fmt, 1
        self.array = numpy.full(int(numpy.prod(shapes[0])) * 2, fill, numpy.uint8)

    byte_array = property(lambda self: memoryview(self.array))

    def get_shapes(self):
        return self.shapes

    def get_dtypes(self):
        return self.dtypes

    def get_memory_format(self):
        return self.fmt

    def ref_count_down(self):
        self.users -= 1


class Memory:
    """LMCache's memory of the host, which may be full."""

    def __init__(self, metadata=None):
        self.metadata, self.made, self.left = metadata, [], 100

    def allocate(self, shapes, dtypes, fmt):
        if self.left == 0:
            return None
        self.left -= 1
        self.made.append(Chunk(shapes, dtypes, fmt))
        return self.made[-1]


def kinds():
    """A shape, a type and a format as LMCache's record knows them."""
    if not frameworks.IS_REAL:
        return 40, 7, 3
    import torch
    from lmcache.v1.memory_management import MemoryFormat

    return torch.Size([2, 1, 4, 5]), torch.float16, MemoryFormat.KV_2LTD


def record_of_model():
    if not frameworks.IS_REAL:
        return object()
    shape, dtype, _ = kinds()
    return types.SimpleNamespace(
        get_shapes=lambda: [shape], get_dtypes=lambda: [dtype], get_num_groups=lambda: 1, use_mla=False,
        chunk_size=4,
    )  # fmt: skip


def config(**extra):
    return types.SimpleNamespace(
        extra_config={f"remote_storage_plugin.tiffin.{name}": value for name, value in extra.items()},
        use_layerwise=False,
    )


@pytest.fixture
def connector(lmcache, store):
    return lmcache.TiffinConnector(
        None, Memory(record_of_model()), config(), metadata=record_of_model(), store=store
    )


def chunk(fill):
    shape, dtype, fmt = kinds()
    return Chunk([shape], [dtype], fmt, fill)


def run(call):
    return asyncio.run(call)


def test_classes_fit_the_base_classes(lmcache):
    base = importlib.import_module(BASE).RemoteConnector
    checked = frameworks.fits(lmcache.TiffinConnector, base)
    assert {"batched_contains", "batched_get_non_blocking", "remove_sync", "ping"} <= set(checked)
    frameworks.fits(lmcache.TiffinAdapter, importlib.import_module(ADAPTERS).ConnectorAdapter)


@pytest.mark.parametrize("plugin", ["tiffin", "tiffin.second", None])
def test_adapter_makes_a_connector(lmcache, cluster, plugin):
    adapter = lmcache.TiffinAdapter()
    assert adapter.can_parse("plugin://tiffin") and adapter.can_parse("plugin://tiffin.second")
    assert not adapter.can_parse("plugin://fs") and not adapter.can_parse("redis://localhost:1")
    url = f"tiffin://{cluster}/" if plugin is None else f"plugin://{plugin}"
    settings = {} if plugin is None else {"address": cluster, "module_path": "x", "class_name": "y"}
    context = types.SimpleNamespace(
        url=url, loop=None, local_cpu_backend=Memory(), config=config(**settings), plugin_name=plugin
    )
    context.metadata = record_of_model()
    connector = adapter.create_connector(context)
    assert connector.support_ping() and run(connector.ping()) == 0
    run(connector.close())
    assert connector.store.is_closed


def test_chunks_return(connector):
    keys = [Key(name) for name in "abc"]
    assert connector.batched_contains(keys) == 0 and not connector.exists_sync(keys[0])
    run(connector.put(keys[0], chunk(1)))
    run(connector.batched_put(keys[1:], [chunk(2), chunk(3)]))
    assert (
        run(connector.exists(keys[0])) and run(connector.batched_async_contains("l", [*keys, Key("d")])) == 3
    )
    found = run(connector.batched_get([*keys, Key("d")]))
    assert found[3] is None and [it.array[0] for it in found[:3]] == [1, 2, 3]
    assert all((it.array == it.array[0]).all() and it.users == 1 for it in found[:3])
    shape, dtype, fmt = kinds()
    assert [*found[0].shapes] == [shape] and [*found[0].dtypes] == [dtype] and found[0].fmt == fmt
    assert run(connector.get(keys[1])).array[0] == 2 and run(connector.get(Key("d"))) is None
    assert sorted(run(connector.list())) == sorted(key.to_string() for key in keys)
    # Each engine computes the same bytes for a chunk.
    run(connector.put(keys[0], chunk(9)))
    assert run(connector.get(keys[0])).array[0] == 1


def test_only_leading_chunks_are_returned_and_the_rest_is_freed(connector):
    keys = [Key(name) for name in "abc"]
    run(connector.batched_put(keys, [chunk(1), chunk(2), chunk(3)]))
    assert connector.remove_sync(keys[1]) and not connector.remove_sync(keys[1])
    assert connector.batched_contains(keys) == 1
    found = run(connector.batched_get_non_blocking("l", keys))
    assert [it.array[0] for it in found] == [1]
    made = connector.local_cpu_backend.made
    assert [it.users for it in made] == [1, 0], "the chunk behind the gap is freed"


def test_full_memory_of_the_host_is_a_miss(connector):
    keys = [Key(name) for name in "ab"]
    run(connector.batched_put(keys, [chunk(1), chunk(2)]))
    connector.local_cpu_backend.left = 1
    found = run(connector.batched_get(keys))
    assert found[0].array[0] == 1 and found[1] is None


def test_short_chunk_does_not_count(connector, store):
    key = Key("a")
    run(connector.put(key, chunk(1)))
    value = store.get(connector._name(key))
    store.put(connector._name(key), value[:-1])
    assert run(connector.get(key)) is None
    assert [it.users for it in connector.local_cpu_backend.made] == [0]
    store.put(connector._name(key), b"x")
    assert run(connector.get(key)) is None, "not even its record is whole"


def test_stopped_store_has_nothing(connector, store):
    keys = [Key("a")]
    store.close()
    assert connector.batched_contains(keys) == 0 and run(connector.batched_get(keys)) == [None]
    assert run(connector.ping()) == 1 and not connector.remove_sync(keys[0])


def test_unknown_settings_are_refused(lmcache, store):
    with pytest.raises(ValueError, match=r"unknown settings .*`tiffin`.*adress"):
        lmcache.TiffinConnector(None, Memory(), config(adress="x"), metadata=record_of_model(), store=store)
