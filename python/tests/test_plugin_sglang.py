"""The contract of SGLang's HiCache, and our backend for it."""

import types

import numpy
import pytest

import frameworks

BASE = "sglang.srt.mem_cache.hicache_storage"
FACTORY = "sglang.srt.mem_cache.storage.backend_factory"


@pytest.fixture
def sglang(monkeypatch):
    return frameworks.load(monkeypatch, "sglang", frameworks.sglang, BASE, FACTORY)


@pytest.fixture
def theirs(sglang):
    import importlib

    return importlib.import_module(BASE)


class HostPool:
    """A pool of the host: keys and values of a page are two pieces."""

    page_size = 4

    def __init__(self, pages, seed=1):
        self.memory = numpy.random.default_rng(seed).integers(0, 256, (2, pages, 256), numpy.uint8)

    def get_page_buffer_meta(self, indices):
        pages = [int(index) // self.page_size for index in list(indices)[:: self.page_size]]
        addresses = [self.memory[half, page].ctypes.data for page in pages for half in (0, 1)]
        return addresses, [256] * len(addresses)


class StatePool(HostPool):
    """A pool of recurrent state: a page is one place and one piece."""

    page_size = 1

    def get_page_buffer_meta(self, indices):
        addresses = [self.memory[0, int(at)].ctypes.data for at in indices]
        return addresses, [256] * len(addresses)


class CountingPool:
    """A pool without bytes: those of its pages are in other pools."""

    page_size, kv_buffer, size_per_token = 4, None, 0

    def get_page_buffer_meta(self, indices):
        return None


class Spy:
    """A store that records how it was asked."""

    def __init__(self, store):
        self.store, self.asked = store, []

    def exists(self, keys, prefetch):
        self.asked.append((len(keys), prefetch))
        return self.store.exists(keys, prefetch=prefetch)

    def __getattr__(self, name):
        return getattr(self.store, name)


def places(pages, size=4):
    return numpy.concatenate([numpy.arange(page * size, page * size + size) for page in pages])


def config(**options):
    options = {"extra_config": {"interface_v1": 1}, "is_page_first_layout": True} | options
    return types.SimpleNamespace(**{"model_name": "m", "tp_rank": 0, "tp_size": 2} | options)


def test_class_fits_the_base_class(sglang, theirs):
    checked = frameworks.fits(sglang.TiffinHiCache, theirs.HiCacheStorage)
    assert {"batch_get_v1", "batch_set_v2", "batch_exists_v2", "on_host_pools_registered"} <= set(checked)


def test_factory_loads_it_by_the_flags_of_the_document(sglang, theirs, cluster):
    import importlib

    extra = {"backend_name": "tiffin", "module_path": "tiffin.integrations.sglang", "interface_v1": 1}
    extra |= {"class_name": "TiffinHiCache", "address": cluster, "tag": "factory"}
    given = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1}
    given |= {"is_mla_model": False, "enable_storage_metrics": False, "is_page_first_layout": True}
    given |= {"model_name": "m", "extra_config": extra}
    factory = importlib.import_module(FACTORY).StorageBackendFactory
    pool = HostPool(8)
    backend = factory.create_backend("dynamic", theirs.HiCacheStorageConfig(**given), pool)
    backend.register_mem_pool_host(pool)
    before = pool.memory.copy()
    assert backend.batch_set_v1(["a", "b"], places([0, 1])) == [True, True]
    assert backend.batch_get_v1(["a", "b"], places([4, 5])) == [True, True]
    assert (pool.memory[:, 4:6] == before[:, 0:2]).all()
    assert backend.clear() and backend.batch_exists(["a"]) == 0
    backend.close()
    assert backend.store.is_closed


def test_pages_move_without_a_copy(sglang, store):
    hicache, pool = sglang.TiffinHiCache(config(), store=store), HostPool(8)
    hicache.register_mem_pool_host(pool)
    before = pool.memory.copy()
    keys = ["a", "b", "c"]
    assert hicache.batch_exists(keys) == 0
    assert hicache.batch_set_v1(keys, places([0, 1, 2])) == [True] * 3
    assert hicache.batch_set_v1(keys, places([5, 6, 7])) == [True] * 3, "existing pages count as stored"
    assert hicache.batch_exists([*keys, "d"]) == 3 and hicache.exists("a") and not hicache.exists("d")
    pool.memory[:] = 0
    assert hicache.batch_get_v1([*keys, "d"], places([4, 5, 6, 7])) == [True, True, True, False]
    assert (pool.memory[:, 4:7] == before[:, 0:3]).all()
    # A page with a missing piece does not exist.
    store.delete([name for name in (it.key for it in store.list(hicache.prefix)) if name.endswith("b/1")])
    assert hicache.batch_exists(keys) == 1
    assert hicache.batch_get_v1(keys, places([4, 5, 6])) == [True, False, True]


def test_lookup_prefetches_the_leading_pages(sglang, store):
    spy = Spy(store)
    hicache = sglang.TiffinHiCache(config(), store=spy)
    hicache.register_mem_pool_host(HostPool(2))
    hicache.batch_exists(["a", "b"])
    assert spy.asked == [(4, "leading")], "two pieces of each of two pages, in one call"


@pytest.mark.parametrize("extra", [{}, {"interface_v1": 0}])
def test_pages_that_the_caller_passes_are_found_again(sglang, store, extra):
    """Without `interface_v1` SGLang registers its pool too, and never passes places in it."""
    hicache = sglang.TiffinHiCache(config(extra_config={"tag": "w7"} | extra), store=store)
    pool = HostPool(8)
    if extra:
        hicache.register_mem_pool_host(pool)
    pages = [numpy.full(64, at, numpy.uint8) for at in range(3)]
    targets = [numpy.zeros(64, numpy.uint8) for _ in range(4)]
    assert hicache.batch_set(["a", "b", "c"], pages)
    assert hicache.batch_exists(["a", "b", "c", "d"]) == 3
    found = hicache.batch_get(["a", "b", "c", "d"], targets)
    assert found[3] is None and all((got == page).all() for got, page in zip(found, pages, strict=False))
    assert hicache.get("a", numpy.zeros(65, numpy.uint8)) is None, "a page of another size is no hit"
    assert not hicache.set("e") and hicache.get("a") is None and hicache.batch_get(["a"], []) == [None]
    assert hicache.clear() and not hicache.exists("a")


def test_ranks_share_only_equal_bytes(sglang, store):
    prefix = lambda **options: sglang.TiffinHiCache(config(**options), store=store).prefix
    assert prefix(tp_rank=1) != prefix() != prefix(model_name="m2")
    assert prefix(is_mla_model=True) == prefix(is_mla_model=True, tp_rank=1)
    assert prefix(extra_config={"tag": "a"}) != prefix(extra_config={"tag": "b"})
    # Recurrent state is sharded even where the latent pages are not, and so are the heads of a draft model.
    pool = type("MHAHostPool", (HostPool,), {})(1)
    for name, is_shared in (("mamba", False), ("draft", False), ("indexer", True)):
        both = [sglang.TiffinHiCache(config(is_mla_model=True, tp_rank=at), store=store) for at in (0, 1)]
        for it in both:
            it.register_mem_host_pool_v2(pool, name)
        assert (both[0]._prefix_of(name) == both[1]._prefix_of(name)) is is_shared, name


def test_clear_deletes_the_pages_of_all_ranks(sglang, store):
    ranks = [sglang.TiffinHiCache(config(tp_rank=at, extra_config={}), store=store) for at in (0, 1)]
    other = sglang.TiffinHiCache(config(model_name="other", extra_config={}), store=store)
    for it in (*ranks, other):
        assert it.set("a", numpy.zeros(8, numpy.uint8))
    assert ranks[0].clear() and not ranks[1].exists("a") and other.exists("a")


@pytest.fixture
def several(sglang, theirs, store):
    """A backend with a pool of pages, one of an indexer and one of recurrent state."""
    hicache = sglang.TiffinHiCache(config(), store=store)
    pools = {"kv": HostPool(8), "indexer": HostPool(8, 2), "mamba": StatePool(8, 3)}
    hicache.register_mem_pool_host(pools["kv"])
    for name, pool in pools.items():
        hicache.register_mem_host_pool_v2(pool, theirs.PoolName(name))
    hicache.on_host_pools_registered()
    return hicache, pools


def transfer(theirs, name, keys, indices, policy="all_pages"):
    return theirs.PoolTransfer(
        name=theirs.PoolName(name),
        host_indices=indices,
        keys=keys,
        hit_policy=theirs.PoolHitPolicy(policy),
    )


def test_several_pools_are_read_and_written(theirs, several):
    hicache, pools = several
    before = {name: pool.memory.copy() for name, pool in pools.items()}
    wanted = [
        transfer(theirs, "indexer", ["a", "b"], places([0, 1])),
        transfer(theirs, "mamba", ["b"], numpy.array([1])),
    ]
    assert hicache.batch_set_v2(wanted) == {"indexer": [True, True], "mamba": [True]}
    again = [
        transfer(theirs, "indexer", ["a", "b", "c"], places([4, 5, 6])),
        transfer(theirs, "mamba", ["b", "c"], numpy.array([6, 7])),
    ]
    assert hicache.batch_get_v2(again) == {"indexer": [True, True, False], "mamba": [True, False]}
    assert (pools["indexer"].memory[:, 4:6] == before["indexer"][:, 0:2]).all()
    assert (pools["mamba"].memory[0, 6] == before["mamba"][0, 1]).all()


def test_prefix_is_the_longest_that_all_pools_restore(theirs, several):
    hicache, _ = several
    keys = list("abcdef")
    hicache.batch_set_v1(keys[:5], places(range(5)))
    index, state = (lambda names: [transfer(theirs, "indexer", names, places(range(len(names))))]), []
    hicache.batch_set_v2(index(keys[:4]))
    for at, key in enumerate(keys):
        if key in "bd":
            hicache.batch_set_v2([transfer(theirs, "mamba", [key], numpy.array([at]))])
    state = transfer(theirs, "mamba", ["f"], None, "trailing_pages")
    found = hicache.batch_exists_v2(keys)
    assert found.kv_hit_pages == 5 and found.extra_pool_hit_pages == {"kv": 5}
    found = hicache.batch_exists_v2(keys, index(keys))
    assert found.kv_hit_pages == 4 and found.extra_pool_hit_pages == {"kv": 5, "indexer": 4}
    # The state of the second and fourth page exists, so a prefix can end there and nowhere else.
    found = hicache.batch_exists_v2(keys, [*index(keys), state])
    assert found.kv_hit_pages == 4 and list(found.restorable_prefix_pages) == [2, 4]
    window = transfer(theirs, "mamba", ["e", "f"], None, "trailing_pages")
    found = hicache.batch_exists_v2(keys, [window])
    assert found.kv_hit_pages == 0, "no two states in a row exist"
    # A pool of another policy has no say.
    groups = transfer(theirs, "indexer", keys, None, "block_groups")
    assert hicache.batch_exists_v2(keys, [groups]).kv_hit_pages == 5


def test_pool_without_bytes_leaves_the_decision_to_others(theirs, sglang, store):
    hicache, pool = sglang.TiffinHiCache(config(), store=store), HostPool(8)
    hicache.register_mem_pool_host(CountingPool())
    hicache.register_mem_host_pool_v2(pool, theirs.PoolName("indexer"))
    keys = ["a", "b", "c"]
    assert hicache.batch_set_v1(keys, places([0, 1, 2])) == [True] * 3
    assert hicache.batch_exists(keys) == 0, "nothing shows that the bytes exist"
    some = transfer(theirs, "indexer", keys[:2], places([0, 1]))
    assert hicache.batch_set_v2([some]) == {"indexer": [True, True]}
    every = transfer(theirs, "indexer", keys, places([0, 1, 2]))
    assert hicache.batch_exists_v2(keys, [every]).kv_hit_pages == 2


def test_no_call_raises(sglang, theirs, store):
    hicache = sglang.TiffinHiCache(config(), store=store)
    hicache.register_mem_pool_host(HostPool(4))
    keys = ["a", "b"]
    assert hicache.batch_set_v1(keys, places([0, 1])) == [True, True]

    class Refusing(HostPool):
        def get_page_buffer_meta(self, indices):
            raise ValueError("unsupported layout")

    hicache.register_mem_pool_host(Refusing(4))
    assert hicache.batch_exists(keys) == 0 and hicache.batch_get_v1(keys, places([0, 1])) == [False, False]
    assert hicache.batch_set_v1(keys, places([0, 1])) == [False, False]
    unknown = transfer(theirs, "swa", keys, places([0, 1]))
    assert hicache.batch_get_v2([unknown]) == {"swa": [False, False]}
    hicache.register_mem_pool_host(HostPool(4))
    store.close()
    assert hicache.batch_exists(keys) == 0 and hicache.batch_get_v1(keys, places([0, 1])) == [False] * 2
    assert hicache.batch_set_v1(keys, places([0, 1])) == [False] * 2 and hicache.clear() is False
