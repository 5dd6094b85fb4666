"""The KV hierarchy with real bytes: a toy engine that checks every page, and a store that is another
process."""

import ctypes
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import typing

import numpy
import pytest
import tiffin
from tiffin import _native, kv

import helpers

ROOT = pathlib.Path(__file__).parents[2]
TOY = ROOT / "examples" / "kv_toy" / "toy.py"
spec = importlib.util.spec_from_file_location("kv_toy", TOY)
toy = importlib.util.module_from_spec(spec)
spec.loader.exec_module(toy)

PAGE_TOKENS = 16
PAGE_BYTES = PAGE_TOKENS * toy.TOKEN_BYTES


def make(store, device_pages=24, host_pages=32, rank=0, page_tokens=PAGE_TOKENS, **options):
    device = numpy.zeros((device_pages, page_tokens * toy.TOKEN_BYTES), numpy.uint8)
    options = {"threshold_pages": 0, "host_pages": host_pages, "page_tokens": page_tokens} | options
    engine = kv.Engine(device, store=store, rank=rank, **options)
    return toy.Toy(engine, device, rank)


def prompt(seed, count):
    return [seed * 1000 + at for at in range(count)]


def push_out(serving, tokens, also_host=True):
    """Serve other requests until no page of these tokens is on the device or in the host."""
    for seed in range(50, 90):
        found = serving.engine.match(tokens)
        if found.host == 0 or (found.device == 0 and not also_host):
            return serving.settle()
        serving.ask(prompt(seed, 7 * serving.engine.page_tokens), 1)
        serving.settle()
    raise AssertionError("it stays")


# One engine.


def test_pages_return_from_every_tier(store):
    serving = make(store, host_pages=40)
    long = prompt(1, 6 * PAGE_TOKENS + 5)
    said, found = serving.ask(long)
    assert said == toy.answer(long) and found.total == 0
    assert serving.ask(long) == (said, kv.Cached(6 * PAGE_TOKENS, 0, 0))
    push_out(serving, long, also_host=False)
    assert serving.ask(long) == (said, kv.Cached(0, 6 * PAGE_TOKENS, 0))
    push_out(serving, long)
    assert serving.ask(long) == (said, kv.Cached(0, 0, 6 * PAGE_TOKENS))
    stats = serving.engine.stats()
    assert stats["pages_asked"]["fetch"] == stats["pages_done"]["fetch"] == 6
    assert (stats["faults"], stats["conflicts"], stats["panics"]) == (0, 0, 0), stats["last_fault"]
    serving.engine.check()
    assert serving.engine.close() and serving.engine.close()


@pytest.mark.parametrize("index", ["radix", "flat"])
@pytest.mark.parametrize("eviction", ["lru", "s3-fifo", "cost"])
@pytest.mark.parametrize("write", ["through", "selective", "back"])
def test_chats_are_answered_as_without_a_cache(store, index, eviction, write):
    serving = make(store, device_pages=20, index=index, eviction=eviction, write=write)
    toy.converse(serving, *toy.chats(3, conversations=5, turns=3), generate=6)
    serving.settle()
    assert serving.pages_checked > 0 and set(serving.ended.values()) == {"finished"}
    serving.engine.check()
    serving.engine.close()


def test_request_may_leave_at_any_moment(store):
    serving = make(store)
    engine, ask = serving.engine, prompt(1, 60)
    engine.step(submit=[kv.Request(1, ask)])
    plan = engine.step(abort=[1, 1])
    assert plan.ended == [(1, "aborted")] and engine.state(1) is None
    plan = engine.step(submit=[kv.Request(2, ask, 0)])
    while not plan.ready:
        assert engine.wait(60)
        plan = engine.step()
    assert engine.pages(2).tolist() == plan.ready[0].pages.tolist() and engine.state(2) == "prefilling"
    # It leaves the device, and becomes ready again by itself.
    plan = engine.step(retract=[2])
    while not plan.ready:
        plan = engine.step()
    assert engine.step(abort=[2]).ended == [(2, "aborted")]
    serving.settle()
    counts = engine.stats()["device_pages"]
    assert counts["free"] == 24, counts
    engine.close()


def test_new_weights_and_clearing_make_all_unreachable(store):
    serving = make(store, namespace=kv.Namespace("m", weight_version=1))
    long = prompt(1, 60)
    serving.ask(long)
    serving.settle()
    assert serving.engine.match(long) == kv.Match(3, 3, 3) and len(store.list("kv1/")) == 3
    serving.engine.define(kv.Namespace("m", weight_version=2))
    assert serving.ask(long)[1].total == 0
    serving.settle()
    serving.engine.define(kv.Namespace("m", weight_version=1))
    assert serving.ask(long)[1].store == 48, "what the store has of the old weights is still theirs"
    serving.engine.clear()
    serving.turn()
    serving.settle()
    assert len(store.list("kv1/")) == 3 and serving.ask(long)[1].total == 0
    serving.engine.close()


def test_bad_input_has_a_defined_answer(store):
    serving = make(store)
    engine = serving.engine
    hashes = [bytes([at]) * 16 for at in range(4)]
    bad = [
        (kv.Request(1, []), "is empty"),
        (kv.Request(1, prompt(1, 16 * 25)), "needs 25 pages of 24"),
        (kv.Request(1, prompt(1, 8), namespace=9), "is not defined"),
        (kv.Request(1, hashes=hashes, length=60), "its tokens fill 3"),
        (kv.Request(1, hashes=[hashes[0], hashes[0]], length=40), "out of order at page 1"),
    ]
    for request, says in bad:
        (refused,) = engine.step(submit=[request]).refused
        assert says in refused and "hint: " in refused
    engine.step(computed=[(9, 1)], finish=[9], abort=[9], retract=[9])
    stats = engine.stats()
    assert (stats["refused"], stats["ignored"], stats["requests"]) == (5, 4, 0)
    assert serving.ask(prompt(1, 3))[1].total == 0, "a prompt that is shorter than a page is served"
    for broken in [{"pressure": [("host", "high")]}, {"vanished": [(0, "disk", [])]}]:
        with pytest.raises(tiffin.InvalidArgument, match="is unknown"):
            engine.step(**broken)
    engine.close()
    with pytest.raises(tiffin.Closed):
        engine.step()
    for options, says in [
        ({"host_pages": 0}, "no host page"),
        ({"eviction": "fifo"}, "none of lru"),
        ({"page_tokens": 0}, "0 tokens"),
        ({"ranks": 2}, "without a collective"),
        ({"ranks": 2, "rank": 2}, "rank 2 of 2"),
        ({"op_pages_max": 0}, "`op_pages_max` is 0"),
        ({"host": numpy.zeros((4, 8), numpy.uint8)}, "1024 bytes on the device and 8 in the host"),
        ({"device_pages": 5}, "device_pages=5, but that of the given memory is 4"),
        ({"page_bytes": 8}, "page_bytes=8, but that of the given memory is 1024"),
        ({"host": numpy.zeros((8, 8), numpy.uint8)}, "host_pages=4, but that of the given memory is 8"),
    ]:
        with pytest.raises(ValueError, match=says):
            device = numpy.zeros((4, PAGE_BYTES), numpy.uint8)
            kv.Engine(device, **({"host_pages": 4, "store": store} | options))
    for options, says in [
        ({"page_size": 4}, "unknown setting `page_size`"),
        ({"eviction": 7}, "eviction=7"),
        ({"op_timeout": "long"}, "op_timeout=long"),
        ({"index": object()}, "a setting is a number, a word or a bool, not object"),
    ]:
        with pytest.raises((TypeError, ValueError), match=says) as raised:
            kv.Engine(numpy.zeros((4, PAGE_BYTES), numpy.uint8), host_pages=4, **options)
        assert "\n\nhint: " in str(raised.value)
    with pytest.raises(ValueError, match="row for each page"):
        kv.Engine(bytearray(64), host_pages=4)
    with pytest.raises(TypeError, match="read-only"):
        kv.Engine(numpy.frombuffer(bytes(64), numpy.uint8).reshape(4, 16), host_pages=4)


def test_memory_of_the_caller_is_used_in_place_and_kept(store):
    host = numpy.zeros((32, PAGE_BYTES), numpy.uint8)
    serving = make(store, host=host)
    long = prompt(1, 40)
    serving.ask(long)
    serving.settle()
    pages = {bytes(page) for page in host}
    wanted = serving.wanted(serving.sequences[1], 0, 32).reshape(2, -1)
    assert {bytes(page) for page in wanted} <= pages
    serving.engine.close()


class Device:
    """A custom device, which counts."""

    def __init__(self, device, host):
        self.device, self.host, self.calls = device, host, []

    def load(self, host_pages, device_pages):
        assert host_pages.dtype == device_pages.dtype == numpy.int32
        self.device[device_pages] = self.host[host_pages]
        self.calls.append(("load", len(host_pages)))

    def save(self, device_pages, host_pages):
        if not self.calls:
            self.calls.append(("save", 1))
            self.host[host_pages[:1]] = self.device[device_pages[:1]]
            return 1
        self.host[host_pages] = self.device[device_pages]
        self.calls.append(("save", len(host_pages)))
        return len(host_pages)


def test_custom_device_object_is_used(store):
    memory = numpy.zeros((24, PAGE_BYTES), numpy.uint8)
    host = numpy.zeros((32, PAGE_BYTES), numpy.uint8)
    device = Device(memory, host)
    engine = kv.Engine(
        device, device_pages=24, page_bytes=PAGE_BYTES, host=host, page_tokens=PAGE_TOKENS, store=store
    )
    serving = toy.Toy(engine, memory)
    long = prompt(1, 60)
    serving.ask(long)
    serving.settle()
    assert engine.match(long) == kv.Match(3, 3, 3), (
        "a partial save was repeated, or the page is on the device"
    )
    push_out(serving, long, also_host=False)
    assert serving.ask(long)[1].host >= PAGE_TOKENS
    assert "load" in dict(device.calls)
    engine.close()
    with pytest.raises(ValueError, match="`device_pages` and `page_bytes`"):
        kv.Engine(device, host_pages=4)


def test_engine_belongs_to_its_process(store):
    serving = make(store)
    serving.ask(prompt(1, 40))

    def in_child():
        try:
            serving.engine.step()
        except tiffin.Closed as error:
            return str(error)

    assert "another process" in helpers.in_child(in_child)
    assert serving.ask(prompt(1, 40))[1].device == 32
    serving.engine.close()


def test_program_may_end_while_its_engine_works(cluster):
    program = """
import numpy, tiffin
from tiffin import _native, kv
engine = kv.Engine(numpy.zeros((8, 64), "u1"), page_tokens=4, host_pages=8, store=tiffin.connect(*arguments))
engine.step(submit=[kv.Request(1, range(30))])
print("over")
"""
    assert helpers.run(program, cluster) == "over\n"


def test_replay_is_that_of_the_command(tmp_path):
    options = {"generate": 300, "seed": 5, "device_pages": 100, "host_pages": 500}
    report = kv.Engine.replay(**options, policy=["eviction=lru", "eviction=s3-fifo"])
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "tiffin", "kv", "replay", *words, "--json"]
    said = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    same = lambda it: {name: value for name, value in it.items() if name != "wall_seconds"}
    assert same(report["policies"][0]["policy"]) == same(said["policies"][0]["policy"])
    assert [it["policy"]["policy"] for it in report["policies"]] == ["eviction=lru", "eviction=s3-fifo"]
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}\nno\n')
    with pytest.raises(tiffin.InvalidArgument, match="line 2"):
        kv.replay(trace)
    with pytest.raises(tiffin.InvalidArgument, match="--tokens"):
        kv.replay(trace, tokens=5)


# Other stores: any object with Mooncake's batched calls.


class Pages:
    """The part of a Mooncake store that an engine uses, over a dictionary. It can be made to fail."""

    def __init__(self):
        self.pages, self.registered, self.raises = {}, {}, None

    def register_buffer(self, address, size):
        self.registered[address] = size
        return 0

    def unregister_buffer(self, address):
        del self.registered[address]
        return 0

    def batch_is_exist(self, keys):
        self.fail("batch_is_exist")
        return [int(key in self.pages) for key in keys]

    def batch_get_into(self, keys, addresses, sizes):
        self.fail("batch_get_into")
        read = []
        for key, address, size in zip(keys, addresses, sizes, strict=True):
            page = self.pages.get(key)
            if page is not None:
                ctypes.memmove(address, page, min(size, len(page)))
            read.append(-704 if page is None else len(page))
        return read

    def batch_put_from(self, keys, addresses, sizes):
        self.fail("batch_put_from")
        for key, address, size in zip(keys, addresses, sizes, strict=True):
            self.pages.setdefault(key, ctypes.string_at(address, size))
        return [0] * len(keys)

    def remove_by_regex(self, pattern, force):
        gone = [key for key in self.pages if key.startswith(pattern.removeprefix("^"))]
        return len([self.pages.pop(key) for key in gone])

    def fail(self, call):
        if self.raises == call:
            raise OSError("the network is down")


def test_store_with_mooncakes_calls_works():
    pages = Pages()
    serving = make(pages)
    ((address, size),) = pages.registered.items()
    assert size == 32 * PAGE_BYTES and address > 0
    long = prompt(1, 60)
    said, _ = serving.ask(long)
    serving.settle()
    assert len(pages.pages) == 3 and all(name.startswith("kv1/") for name in pages.pages)
    serving.engine.close()
    del serving
    helpers.eventually(lambda: not pages.registered)
    serving = make(pages)
    assert serving.ask(long) == (said, kv.Cached(0, 0, 48))
    # A page of another size does not count.
    for name in pages.pages:
        pages.pages[name] += b"!"
    other = make(pages)
    assert other.ask(long) == (said, kv.Cached(0, 0, 0)) and other.recomputed == 1
    other.engine.clear()
    other.turn()
    other.settle()
    assert not pages.pages
    for seed, call in enumerate(("batch_is_exist", "batch_get_into", "batch_put_from"), 10):
        pages.raises = None
        other.ask(prompt(7, 60))
        other.settle()
        pages.raises = call
        third = make(pages, cooldown=0)
        assert third.ask(prompt(7, 60))[0] == other.ask(prompt(7, 60))[0]
        third.ask(prompt(seed, 60))
        third.settle()
        stats = third.engine.stats()
        assert stats["faults"] > 0 and "the network is down" in stats["last_fault"], call
        third.engine.check()


def test_drop_in_is_a_valid_store(cluster):
    from mooncake.store import MooncakeDistributedStore

    def connect():
        store = MooncakeDistributedStore()
        assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", cluster) == 0
        return store

    first, second = connect(), connect()
    serving = make(first, namespace=kv.Namespace("drop-in"))
    said, _ = serving.ask(prompt(1, 60))
    serving.settle()
    assert make(second, namespace=kv.Namespace("drop-in")).ask(prompt(1, 60)) == (said, kv.Cached(0, 0, 48))
    # A Tiffin store sees the same names, for it is the same cluster.
    with tiffin.connect(cluster) as native:
        assert make(native, namespace=kv.Namespace("drop-in")).ask(prompt(1, 60))[1].store == 48


# Several processes: the store is always another one.


def start(address, *options):
    """The toy in its own process, which prints a line after every round."""
    command = [sys.executable, str(TOY), "--store", address, "--json", *map(str, options)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(process):
    said, _ = process.communicate(timeout=helpers.SECONDS_MAX)
    assert process.returncode == 0
    return [json.loads(line) for line in said.splitlines()]


def test_second_engine_hits_pages_of_the_first():
    with helpers.up("--memory", "64MiB") as (address, _):
        (first,) = finish(start(address))
        (second,) = finish(start(address))
        assert first["found in the store"] == 0 and first["faults"] == second["faults"] == 0
        computed = first["prompt tokens"] - first["found on the device"]
        # All but incomplete pages, and those that it computes itself in the same round.
        assert second["found in the store"] > computed // 3, (first, second)
        for it in (first, second):
            found = sum(it[f"found {where}"] for where in ("on the device", "in the host", "in the store"))
            assert it["pages checked"] * 16 == found > 0, "every page that was found was compared"


@pytest.mark.parametrize("which", ["the first", "the second"])
def test_killed_engine_leaves_its_stored_pages(which):
    with helpers.up("--memory", "64MiB") as (address, _):
        # Both serve the same; one of them is killed in the middle of an operation.
        rounds = (0, 6) if which == "the first" else (6, 0)
        processes = [start(address, "--rounds", count) for count in rounds]
        killed, other = processes if which == "the first" else processes[::-1]
        with killed, other:
            assert json.loads(killed.stdout.readline())["requests"] == 32
            killed.kill()
            rounds = finish(other)
        assert [it["faults"] for it in rounds] == [0] * 6
        (after,) = finish(start(address))
        assert after["found in the store"] > 0 and after["faults"] == 0


def test_engine_survives_the_death_of_its_store():
    with helpers.up("--memory", "64MiB") as (address, process):
        store = tiffin.connect(address, timeout=2)
        serving = make(store, op_timeout=0.3, hint_interval=0.1, stop_base=0.2, cooldown=60)
        said, _ = serving.ask(prompt(1, 60))
        serving.settle()
        os.kill(process, signal.SIGKILL)
        for seed in range(2, 6):
            assert serving.ask(prompt(seed, 60))[0] == toy.answer(prompt(seed, 60))
        assert serving.ask(prompt(1, 60)) == (said, kv.Cached(48, 0, 0))
        serving.settle()
        stats = serving.engine.stats()
        assert stats["faults"] > 0 and stats["cooled"] >= 2, "one request finds out, the others do not wait"
        serving.engine.check()
        serving.engine.close()


def test_store_restarted_with_its_disk_is_hit_again(tmp_path):
    with helpers.disk_folder(tmp_path) as folder:
        # The state of the master is kept, as it is where one is installed.
        state = {"XDG_STATE_HOME": str(folder / "state")}
        disk = (
            "--memory",
            "16MiB",
            "--ssd",
            f"path={folder}/disk,size=128MiB",
            "--demotion",
            "write-through",
        )
        with helpers.up(*disk, **state) as (address, process):
            (first,) = finish(start(address))
            with tiffin.connect(address, timeout=30) as store:
                pages = len(store.list("kv1/"))
                helpers.eventually(lambda: store.stats().tier.disk_objects == pages)
            os.kill(process, signal.SIGKILL)
        with helpers.up(*disk, **state) as (address, _):
            with tiffin.connect(address, timeout=30) as store:
                helpers.eventually(lambda: len(store.list("kv1/")) == pages)
            (second,) = finish(start(address))
        assert first["found in the store"] == 0 < second["found in the store"]
        assert second["faults"] == 0


def test_settings_for_type_checkers_are_those_of_the_engine():
    told = typing.get_type_hints(kv.Settings)
    assert told == {name: type(default) for name, default in _native.kv_settings().items()}


def on_ranks(ranks, story):
    """The results of a scenario on each rank; each rank is a thread."""
    group, results = kv.local_group(ranks), [None] * ranks

    def run(rank):
        results[rank] = story(rank, group[rank])

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(helpers.SECONDS_MAX)
        assert not thread.is_alive()
    assert None not in results
    return results


def test_tokenspeed_293_reads_24_pages(cluster):
    """A long request, others that evict it from device and host, the same again: 24 pages are read."""

    def story(rank, gather):
        with tiffin.connect(cluster, timeout=30) as store:
            options = {"page_tokens": 64, "ranks": 4, "gather": gather, "compare_every": 1}
            serving = make(store, 16, 16, rank, namespace=kv.Namespace("293"), **options)
            long = prompt(1, 439)
            said, first = serving.ask(long, 1)
            push_out(serving, long)
            before = serving.engine.stats()["pages_done"]["fetch"]
            again, found = serving.ask(long, 1)
            serving.settle()
            stats, digest = serving.engine.stats(), serving.engine.digest()
            assert said == again == toy.answer(long, 1) and first.total == 0
            assert (stats["faults"], stats["conflicts"]) == (0, 0)
            fetches = [op for op in serving.operations if op.kind == "fetch"]
            # No rank leaves before all ranks are here.
            gather(b"")
            serving.engine.close()
            return stats["pages_done"]["fetch"] - before, found, digest, fetches[-1].completed

    results = on_ranks(4, story)
    assert sum(pages for pages, *_ in results) == 24
    assert {found for _, found, *_ in results} == {kv.Cached(0, 0, 384)}
    assert len({digest for *_, digest, _ in results}) == 1
    assert {completed for *_, completed in results} == {(6, 6, 6, 6)}


def test_example_includes_it(cluster):
    command = [sys.executable, str(TOY.with_name("story.py")), "--store", cluster]
    said = subprocess.run(command, capture_output=True, check=True, timeout=helpers.SECONDS_MAX).stdout
    assert json.loads(said)["pages read"] == 24


def test_page_that_one_rank_lost_does_not_count(cluster):
    def story(rank, gather):
        with tiffin.connect(cluster, timeout=30) as store:
            options = {"ranks": 2, "gather": gather, "namespace": kv.Namespace("lost")}
            serving = make(store, rank=rank, **options)
            long = prompt(1, 100)
            serving.ask(long)
            serving.settle()
            gather(b"")
            if rank == 0:
                root, hashes = kv.chain(long, page_tokens=PAGE_TOKENS, namespace=kv.Namespace("lost"))
                store.delete(kv.names(root, hashes[3:4], ((0, 2), (0, 1), (0, 1))))
            gather(b"")
            other = make(store, rank=rank, **options)
            found = other.ask(long)[1]
            gather(b"")
            return found

    assert set(on_ranks(2, story)) == {kv.Cached(0, 0, 3 * PAGE_TOKENS)}


# Adapters.


def test_adapters_need_none_of_their_packages():
    program = """
import sys
import tiffin.integrations.sglang, tiffin.integrations.vllm, tiffin.integrations.tokenspeed
import tiffin.integrations.vllm_tier, tiffin.integrations.lmcache, tiffin.integrations.transfer_queue
print([name for name in ("sglang", "vllm", "lmcache", "transfer_queue", "torch") if name in sys.modules])
"""
    assert helpers.run(program) == "[]\n"


def test_tokenspeed(store):
    from tiffin.integrations import tokenspeed

    serving = make(store, device_pages=16, host_pages=16)
    serving.ask(prompt(1, 60))
    push_out(serving, prompt(1, 60))
    serving.ask(prompt(1, 60))
    serving.settle()
    told = tokenspeed.events(serving.operations)
    fetched = [event for event in told if isinstance(event, tokenspeed.PrefetchDoneEvent)]
    assert [(it.completed_pages, it.pages_by_rank, it.success) for it in fetched] == [(3, (3,), True)]
    assert fetched[0].request_id == str(len(serving.sequences))
    backed_up = sum(it.completed_pages for it in told if isinstance(it, tokenspeed.BackUpDoneEvent))
    written = sum(it.completed_pages for it in told if isinstance(it, tokenspeed.WriteBackDoneEvent))
    assert backed_up == serving.engine.stats()["backed_up"] and written == serving.engine.stats()["saved"]
    loaded = [it for it in told if isinstance(it, tokenspeed.LoadBackDoneEvent)]
    assert loaded and all(it.success for it in loaded)
    serving.engine.close()


def test_tokenspeed_names_operations_and_events(store):
    from tiffin.integrations import tokenspeed

    device = numpy.zeros((16, 64), numpy.uint8)
    with kv.Engine(device, page_tokens=4, host_pages=16, store=store, threshold_pages=0) as engine:
        adapter = tokenspeed.Adapter(engine)
        begun, ended, states = [], [], []

        def step(**told):
            plan, operations, events = adapter.step(**told)
            begun.extend(operations)
            ended.extend(events)
            states.extend(plan.ended)
            return plan

        plan = step(submit=[kv.Request("chat-1", list(range(9)))])
        while not plan.ready:
            engine.wait(5)
            plan = step()
        assert plan.ready[0].request == "chat-1"
        step(computed=[kv.Computed("chat-1", 9)], finish=["chat-1"])
        while not any(isinstance(it, tokenspeed.BackUpDoneEvent) for it in ended) or not states:
            engine.wait(5)
            step()
        assert states == [("chat-1", "finished")]
        write = next(it for it in begun if isinstance(it, tokenspeed.WriteBackOperation))
        back_up = next(it for it in begun if isinstance(it, tokenspeed.BackUpOperation))
        assert len(write.src_pages) == len(write.dst_pages) == len(back_up.src_pages) == 2
        assert list(write.dst_pages) == list(back_up.src_pages)
        assert back_up.hashes == kv.chain(range(9), page_tokens=4)[1]
        assert {it.op_id for it in ended} <= {it.op_id for it in begun}
        payload = tokenspeed.to_payload(ended[0])
        assert payload["kind"] == "WriteBackDoneEvent" and payload["op_id"] == write.op_id
        assert json.loads(json.dumps(payload)) == payload
        assert step(abort=["never"]).ended == []


@pytest.mark.parametrize(
    ("start", "threshold", "fetches"), [("hits", 2, False), ("hits", 1, True), ("missing", 2, True)]
)
def test_store_is_read_if_it_has_more_than_the_threshold(store, start, threshold, fetches):
    """Two pages are in the store, and four are missing."""
    first = make(store, device_pages=16, host_pages=16)
    first.ask(prompt(1, 2 * PAGE_TOKENS + 1))
    first.settle()
    first.engine.close()
    again = make(store, device_pages=16, host_pages=16, threshold_pages=threshold, start=start)
    again.ask(prompt(1, 4 * PAGE_TOKENS + 1))
    again.settle()
    assert (again.engine.stats()["pages_asked"]["fetch"] > 0) is fetches
    again.engine.close()


def test_invalid_start_is_refused(store):
    with pytest.raises(tiffin.InvalidArgument, match="hits or missing"):
        make(store, start="whenever")
