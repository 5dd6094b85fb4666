"""The contract of vLLM's secondary tiers, and our tier."""

import importlib
import types

import numpy
import pytest
import tiffin

import frameworks
import helpers

BASE = "vllm.v1.kv_offload.tiering.base"
FACTORY = "vllm.v1.kv_offload.tiering.factory"
CHUNK, CHUNKS = 64, 8
KEYS = [bytes([at]) * 36 for at in range(CHUNKS)]


@pytest.fixture
def module(monkeypatch):
    return frameworks.load(monkeypatch, "vllm_tier", frameworks.vllm_tier, BASE, FACTORY)


@pytest.fixture
def results(module):
    return importlib.import_module("vllm.v1.kv_offload.base").LookupResult


def spec(**options):
    parallel = {"tp_size": 2, "pp_size": 1, "pcp_size": 1, "dcp_size": 1, "is_parallelism_agnostic": False}
    group = types.SimpleNamespace(tokens_per_block=16, layer_names=("a", "b"))
    given = {
        "model": types.SimpleNamespace(name="m", dtype="float16"),
        "cache": types.SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=1),
        "parallel": types.SimpleNamespace(**parallel),
        "groups": (group,),
        "kv_cache_layout": "NHD",
    }
    return types.SimpleNamespace(config=types.SimpleNamespace(**given | options))


class Memory:
    """vLLM's memory of the host: rows of chunks."""

    def __init__(self, seed=1):
        self.array = numpy.random.default_rng(seed).integers(0, 256, (CHUNKS, CHUNK), numpy.uint8)
        self.view = memoryview(self.array)


def job(id, keys, places):
    return types.SimpleNamespace(
        job_id=id, keys=keys, chunk_ids=numpy.array(places), req_context=context(), is_promotion=True
    )


def context(id="r"):
    return types.SimpleNamespace(req_id=id)


@pytest.fixture
def tier(module, store):
    memory = Memory()
    tier = module.TiffinTier(spec(), memory.view, "TiffinTier", store=store)
    tier.memory = memory
    yield tier
    tier.shutdown()


def finished(tier):
    tier.drain_jobs()
    return {it.job_id: it for it in tier.get_finished_jobs()}


def ask(tier, results, keys, request="r"):
    """The answers, as vLLM gets them: it asks again in the next steps."""
    found = [tier.lookup(key, context(request)) for key in keys]
    while results.RETRY in found:
        tier.on_schedule_end(None)
        helpers.eventually(lambda: not tier._answers.empty())
        found = [tier.lookup(key, context(request)) for key in keys]
    return [it.name for it in found]


def test_class_fits_the_base_class(module):
    base = importlib.import_module(BASE).SecondaryTierManager
    assert {"lookup", "drain_jobs", "shutdown"} <= set(frameworks.fits(module.TiffinTier, base))


def test_factory_loads_it_by_the_flags_of_the_document(module, cluster):
    factory = importlib.import_module(FACTORY).SecondaryTierFactory
    settings = {"type": "TiffinTier", "module_path": "tiffin.integrations.vllm_tier", "address": cluster}
    memory = Memory()
    tier = factory.create_secondary_tier(settings, memory.view, spec())
    before = memory.array.copy()
    tier.submit_store(job(1, KEYS[:2], [0, 1]))
    assert finished(tier)[1].success
    tier.submit_load(job(2, KEYS[:2], [5, 6]))
    assert finished(tier)[2].success and (memory.array[5:7] == before[:2]).all()
    tier.shutdown()
    assert tier.store.is_closed


def test_chunks_return(tier, results):
    before = tier.memory.array.copy()
    assert ask(tier, results, KEYS[:3]) == ["MISS"] * 3
    tier.submit_store(job(1, KEYS[:3], [2, 0, 1]))
    done = finished(tier)[1]
    assert done.success and done.transfer_bytes == 3 * CHUNK and done.successful_keys is None
    assert ask(tier, results, KEYS[:3]) == ["HIT"] * 3, "a stored chunk is there for all requests"
    tier.submit_load(job(2, KEYS[:3], [5, 6, 7]))
    assert finished(tier)[2].success and (tier.memory.array[5:8] == before[[2, 0, 1]]).all()
    assert list(tier.get_finished_jobs()) == []


def test_chunks_that_are_lost_fail_alone(tier, results, store):
    tier.submit_store(job(1, KEYS[:3], [0, 1, 2]))
    finished(tier)
    assert ask(tier, results, KEYS[:3]) == ["HIT"] * 3
    store.delete(tier._names(KEYS[1:2]), force=True)
    tier.submit_load(job(2, KEYS[:3], [5, 6, 7]))
    done = finished(tier)[2]
    assert not done.success and set(done.successful_keys) == {KEYS[0], KEYS[2]}
    assert ask(tier, results, KEYS[:3]) == ["HIT", "MISS", "HIT"]


def test_answers_are_forgotten_with_their_requests(tier, results):
    assert ask(tier, results, KEYS[:2], "a") == ["MISS"] * 2
    assert [tier.lookup(KEYS[0], context("b")).name] == ["MISS"]
    tier.on_request_finished(context("a"))
    assert set(tier._lookups) == {KEYS[0]}
    tier.on_request_finished(context("b"))
    assert tier._lookups == {} and tier._asked_by == {}
    tier.on_request_finished(context("never"))
    # A request may end before its step does.
    tier.lookup(KEYS[3], context("c"))
    tier.on_request_finished(context("c"))
    tier.on_schedule_end(None)
    assert ask(tier, results, KEYS[3:4], "d") == ["MISS"]


def test_keys_of_a_request_are_one_lookup(module, store, results):
    asked = []

    class Spy:
        def exists(self, names, prefetch):
            asked.append((len(names), prefetch))
            return store.exists(names, prefetch=prefetch)

    tier = module.TiffinTier(spec(), Memory().view, "TiffinTier", store=Spy())
    assert ask(tier, results, KEYS[:4]) == ["MISS"] * 4
    assert asked == [(4, "leading")]
    tier.shutdown()


def test_stopped_store_fails_jobs_and_has_nothing(tier, results, store):
    store.close()
    assert ask(tier, results, KEYS[:2]) == ["MISS"] * 2
    tier.submit_store(job(1, KEYS[:2], [0, 1]))
    tier.submit_load(job(2, KEYS[:2], [0, 1]))
    done = finished(tier)
    assert not done[1].success and not done[2].success and done[2].successful_keys is None


def test_everything_that_changes_bytes_is_in_the_name(module, store):
    def prefix(tag="", **options):
        tier = module.TiffinTier(spec(**options), Memory().view, "TiffinTier", store=store, tag=tag)
        tier.shutdown()
        return tier.prefix

    other = [
        prefix(),
        prefix(tag="w"),
        prefix(kv_cache_layout="HND"),
        prefix(model=types.SimpleNamespace(name="n", dtype="float16")),
        prefix(model=types.SimpleNamespace(name="m", dtype="float8")),
        prefix(cache=types.SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=2)),
    ]
    assert len(set(other)) == len(other) and prefix() == other[0]


def test_store_that_is_unreachable_is_named(module):
    with helpers.silent_peer() as address, pytest.raises(tiffin.Error, match=address):
        module.TiffinTier(spec(), Memory().view, "TiffinTier", address=address, timeout=0.2)
