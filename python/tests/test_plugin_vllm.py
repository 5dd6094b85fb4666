"""The contract of vLLM's KV connectors and offloading tiers, and our classes for them."""

import contextlib
import importlib
import types

import numpy
import pytest
from tiffin import kv

import frameworks
import helpers

BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"
FACTORY = "vllm.distributed.kv_transfer.kv_connector.factory"
CONFIG = "vllm.config.kv_transfer"
BLOCK, BLOCKS = 4, 12
TOKENS = [1000 + at for at in range(20)]


@pytest.fixture
def vllm(monkeypatch):
    return frameworks.load(monkeypatch, "vllm", frameworks.vllm, "torch", BASE, FACTORY)


def config(address, rank=0, ranks=1, extra=(), connector=True):
    given = {"kv_connector_extra_config": {"address": address} | dict(extra), "kv_role": "kv_both"}
    if connector:
        given |= {"kv_connector": "TiffinConnector", "kv_connector_module_path": "tiffin.integrations.vllm"}
    return types.SimpleNamespace(
        kv_transfer_config=importlib.import_module(CONFIG).KVTransferConfig(**given),
        cache_config=types.SimpleNamespace(block_size=BLOCK, cache_dtype="auto"),
        model_config=types.SimpleNamespace(model="m", revision=None, dtype="float16"),
        parallel_config=types.SimpleNamespace(
            tensor_parallel_size=ranks, pipeline_parallel_size=1, rank=rank, decode_context_parallel_size=1
        ),
    )


CACHES = types.SimpleNamespace(num_blocks=BLOCKS, kv_cache_groups=[None])


class Engine:
    """The calls of vLLM's scheduler and workers, in their order."""

    def __init__(self, address, ranks=2, layout=0, **extra):
        base = importlib.import_module(BASE)
        make = lambda rank: config(address, rank, ranks, extra)
        kind = importlib.import_module(FACTORY).KVConnectorFactory.get_connector_class(
            make(0).kv_transfer_config
        )
        self.scheduler = kind(make(0), base.KVConnectorRole.SCHEDULER, CACHES)
        self.workers = [kind(make(rank), base.KVConnectorRole.WORKER, CACHES) for rank in range(ranks)]
        self.memory = [caches(layout) for _ in range(ranks)]
        for worker, memory in zip(self.workers, self.memory, strict=True):
            worker.register_kv_caches(memory)
        self.done, self.errors = set(), set()

    def ask(self, request, computed=0):
        ask = lambda: self.scheduler.get_num_new_matched_tokens(request, computed)
        helpers.eventually(lambda: ask()[0] is not None)
        return ask()

    def step(self, new=(), cached=(), preempted=(), finished=()):
        """One step on all ranks; nothing is computed."""
        meta = self.scheduler.build_connector_meta(output(new, cached, preempted))
        for worker in self.workers:
            worker.bind_connector_metadata(meta)
            if preempted:
                worker.handle_preemptions(meta)
            worker.start_load_kv(None)
            worker.wait_for_layer_load("a")
            worker.save_kv_layer("a", None, None)
            worker.wait_for_save()
            worker.clear_connector_metadata()
        self.collect(set(finished))
        return meta

    def collect(self, finished=frozenset()):
        """What the workers report: requests that every rank has ended."""
        for rank, worker in enumerate(self.workers):
            sent, received = worker.get_finished(set(finished))
            self.errors |= worker.get_block_ids_with_load_errors()
            self.done |= {(rank, "sent", id) for id in sent or ()}
            self.done |= {(rank, "received", id) for id in received or ()}

    def until(self, what, id):
        wanted = {(rank, what, id) for rank in range(len(self.workers))}

        def arrived():
            self.collect()
            return wanted <= self.done

        helpers.eventually(arrived)
        self.done -= wanted
        if what == "sent":
            self.scheduler.update_connector_output(types.SimpleNamespace(finished_sending={id}))

    def close(self):
        for connector in (self.scheduler, *self.workers):
            connector.shutdown()


def caches(layout):
    """Three layers, of which two share their memory. Keys and values come before the blocks in layout 0."""
    torch = importlib.import_module("torch")
    shapes = [(2, BLOCKS, BLOCK, 2, 8), (BLOCKS, 2, BLOCK, 2, 8), (BLOCKS * 2, 2, BLOCK // 2, 2, 8)]
    first = torch.zeros(shapes[layout], dtype=torch.float16)
    second = torch.zeros((BLOCKS, BLOCK, 6), dtype=torch.float32)
    return {"a": first, "b": second, "again": second}


def fill(memory, blocks, seed):
    """Random bytes in these blocks, and what they are."""
    numbers, written = numpy.random.default_rng(seed), []
    for tensor in (memory["a"], memory["b"]):
        array = tensor.numpy()
        dim = 1 if array.shape[0] == 2 else 0
        each = array.shape[dim] // BLOCKS
        for block in blocks:
            places = [slice(None)] * dim + [slice(block * each, (block + 1) * each)]
            values = numbers.integers(-9, 9, array[tuple(places)].shape)
            array[tuple(places)] = values
            written.append(values)
    return written


def content(memory, blocks):
    found = []
    for tensor in (memory["a"], memory["b"]):
        array = tensor.numpy()
        dim = 1 if array.shape[0] == 2 else 0
        each = array.shape[dim] // BLOCKS
        for block in blocks:
            places = [slice(None)] * dim + [slice(block * each, (block + 1) * each)]
            found.append(array[tuple(places)].copy())
    return found


def same(left, right):
    return all((a == b).all() for a, b in zip(left, right, strict=True))


def request(id, tokens=TOKENS, **options):
    return types.SimpleNamespace(request_id=id, prompt_token_ids=tokens, num_computed_tokens=0, **options)


def output(new=(), cached=(), preempted=()):
    return types.SimpleNamespace(
        scheduled_new_reqs=[
            types.SimpleNamespace(req_id=id, block_ids=(blocks,), num_computed_tokens=computed)
            for id, blocks, computed, _ in new
        ],
        scheduled_cached_reqs=types.SimpleNamespace(
            req_ids=[id for id, *_ in cached],
            new_block_ids=[(blocks,) if blocks else None for _, blocks, *_ in cached],
            num_computed_tokens=[computed for _, _, computed, _ in cached],
        ),
        num_scheduled_tokens={id: count for id, _, _, count in [*new, *cached]},
        preempted_req_ids=set(preempted),
    )


@pytest.fixture
def engine(vllm, cluster, request):
    """Makes engines whose pages no other test sees."""
    with contextlib.ExitStack() as made:

        def make(**options):
            engine = Engine(cluster, **{"tag": request.node.name} | options)
            made.callback(engine.close)
            return engine

        yield make


def saved(engine, id="1", blocks=(3, 1, 4, 7, 9), **options):
    """Computes and saves a request; the bytes of its blocks on every rank."""
    one = request(id, **options)
    assert engine.ask(one) == (0, False)
    engine.scheduler.update_state_after_alloc(one, list(blocks), 0)
    written = [fill(memory, blocks, rank) for rank, memory in enumerate(engine.memory)]
    engine.step(new=[(id, list(blocks), 0, len(TOKENS))])
    assert engine.scheduler.request_finished(one, list(blocks)) == (True, None)
    engine.collect({id})
    engine.until("sent", id)
    return written


def loaded(engine, id="2", blocks=(8, 2, 6, 0, 5), **options):
    one = request(id, **options)
    more, is_async = engine.ask(one)
    if not more:
        return 0
    assert is_async
    engine.scheduler.update_state_after_alloc(one, list(blocks), more)
    engine.step()
    engine.until("received", id)
    assert engine.scheduler.request_finished(one, list(blocks)) == (False, None)
    return more // BLOCK


def test_class_fits_the_base_class(vllm):
    base = importlib.import_module(BASE).KVConnectorBase_V1
    assert {"start_load_kv", "get_finished", "reset_cache"} <= set(
        frameworks.fits(vllm.TiffinConnector, base)
    )
    assert issubclass(vllm.Meta, importlib.import_module(BASE).KVConnectorMetadata)


@pytest.mark.parametrize("layout", [0, 1, 2])
def test_pages_return_on_every_rank(engine, layout):
    """Blocks come first or second, and kernels may have smaller ones than the scheduler."""
    first = engine(layout=layout)
    written = saved(first)
    second = engine(layout=layout)
    assert loaded(second) == 4, "one token is always left to compute"
    for memory, expected in zip(second.memory, written, strict=True):
        kept = [it for at, it in enumerate(expected) if at % 5 != 4]
        assert same(content(memory, [8, 2, 6, 0]), kept)
        assert not any(it.any() for it in content(memory, [1, 3, 4, 5, 7, 9, 10, 11]))
    assert not second.errors


def test_missing_pages_are_reported_as_blocks(engine, monkeypatch):
    first = engine()
    saved(first)
    second = engine()
    one = request("2")
    assert second.ask(one) == (16, True)
    # A page of one rank is lost between the lookup and the load.
    known = second.scheduler.scheduler._requests["2"]
    (name,) = kv.names(known.root, known.hashes[1:2], ((1, 2), (0, 1), (0, 1)))
    assert second.scheduler.store.delete(name, force=True)
    second.scheduler.update_state_after_alloc(one, [8, 2, 6, 0, 5], 16)
    second.step()
    second.until("received", "2")
    assert second.errors == {2}
    assert second.ask(request("3")) == (4, True), "a page counts only if every rank has it"


def test_place_of_the_blocks_is_not_part_of_a_page(engine):
    written = saved(engine(layout=0))
    other = engine(layout=1)
    assert loaded(other) == 4 and not other.errors
    found = content(other.memory[0], [8, 2, 6, 0])
    keys_and_values = [numpy.moveaxis(it, 1, 0) for it in found[:4]]
    kept = [it for at, it in enumerate(written[0]) if at % 5 != 4]
    assert same([*keys_and_values, *found[4:]], kept)


def test_page_of_another_layout_is_not_loaded(engine):
    saved(engine(layout=0))
    other = engine(layout=2)
    one = request("2")
    assert other.ask(one) == (16, True)
    other.scheduler.update_state_after_alloc(one, [8, 2, 6, 0, 5], 16)
    other.step()
    other.until("received", "2")
    assert other.errors == {8, 2, 6, 0}
    assert not any(it.any() for memory in other.memory for it in content(memory, range(BLOCKS)))


def test_everything_that_changes_bytes_is_in_the_name(engine):
    image = lambda name: types.SimpleNamespace(
        identifier=name, mm_position=types.SimpleNamespace(offset=1, length=3)
    )
    lora = lambda name: types.SimpleNamespace(lora_name=name)
    kinds = [{}, {"cache_salt": "s"}, {"lora_request": lora("l")}, {"mm_features": [image("i")]}]
    kinds += [{"mm_features": [image("j")]}]
    one = engine()
    for at, options in enumerate(kinds):
        saved(one, id=f"s{at}", **options)
    for at, options in enumerate(kinds):
        assert loaded(one, id=f"l{at}", **options) == 4
    assert one.ask(request("e", prompt_embeds=object())) == (0, False), "embeddings have no name"


def test_blocks_stay_until_their_saves_end(engine):
    one = engine(ranks=1)
    first = request("1")
    assert one.ask(first) == (0, False)
    one.scheduler.update_state_after_alloc(first, [3, 1, 4, 7, 9], 0)
    meta = one.step(new=[("1", [3, 1, 4, 7, 9], 0, 10)])
    assert [page.block for page in meta.saves["1"]] == [3, 1]
    # Pages that are not full are saved by the step that fills them.
    meta = one.step(cached=[("1", None, 10, 10)])
    assert [page.block for page in meta.saves["1"]] == [4, 7, 9]
    # When a request loses its blocks, its saves have ended, and its end is not reported.
    meta = one.step(preempted=["1"])
    assert meta.preempted == {"1"} and one.workers[0].worker._saves == {}
    assert one.scheduler.request_finished(first, []) == (False, None)
    one.collect({"1"})
    assert one.done == set()
    assert one.scheduler.request_finished(request("2"), []) == (False, None)


def test_reset_deletes_the_pages(engine):
    one = engine()
    saved(one)
    saved(one, id="s", cache_salt="s")
    assert one.scheduler.reset_cache() is True
    assert one.ask(request("2")) == (0, False) and one.ask(request("3", cache_salt="s")) == (0, False)
    one.scheduler.store.close()
    assert one.scheduler.reset_cache() is False


def test_stopped_store_has_no_pages_and_fails_no_step(engine):
    one = engine(ranks=1)
    for connector in (one.scheduler, *one.workers):
        connector.store.close()
    first = request("1")
    assert one.ask(first) == (0, False)
    one.scheduler.update_state_after_alloc(first, [3, 1, 4, 7, 9], 0)
    one.step(new=[("1", [3, 1, 4, 7, 9], 0, 20)])
    one.collect({"1"})
    one.until("sent", "1")


def test_unsupported_setups_are_refused_with_a_hint(vllm, cluster):
    role = importlib.import_module(BASE).KVConnectorRole.SCHEDULER
    groups = types.SimpleNamespace(num_blocks=BLOCKS, kv_cache_groups=[None, None])
    with pytest.raises(ValueError, match=r"hint: .*--disable-hybrid-kv-cache-manager"):
        vllm.TiffinConnector(config(cluster), role, groups)
    split = config(cluster)
    split.parallel_config.decode_context_parallel_size = 2
    with pytest.raises(ValueError, match="hint: "):
        vllm.TiffinConnector(split, role, CACHES)
    with pytest.raises(ValueError, match=r"unknown settings.*addres'"):
        vllm.TiffinConnector(config(cluster, extra={"addres": ""}), role, CACHES)


def test_large_pages_move_in_batches(engine, monkeypatch):
    from tiffin.integrations import vllm_worker

    monkeypatch.setattr(vllm_worker, "STAGING_BYTES_MAX", 1)
    written = saved(engine())
    second = engine()
    assert loaded(second) == 4
    kept = [it for at, it in enumerate(written[0]) if at % 5 != 4]
    assert same(content(second.memory[0], [8, 2, 6, 0]), kept)


def test_number_of_remembered_namespaces_is_limited(vllm, store, monkeypatch):
    monkeypatch.setattr(vllm, "ROOTS_MAX", 3)
    half = vllm.SchedulerHalf(store, block_size=BLOCK, namespace=kv.Namespace("m"))
    for at in range(3):
        half._know(request(str(at), cache_salt=str(at)))
    assert len(half._roots) == 3
    half._know(request("9", cache_salt="9"))
    assert len(half._roots) == 3
    half.shutdown()
