"""How long things stay: pins by owner, limits, waiting for room, samples, and why."""

import asyncio
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
import tiffin
import tiffin.aio

import helpers

MIB = 1 << 20


@pytest.fixture
def small():
    """A namespace that may hold a mebibyte."""
    with tiffin.connect(memory="64MiB", timeout=30) as store:
        store.set_policy(quota=MIB)
        yield store


def keys(listed):
    return [info.key for info in listed]


# Pins.


def test_pins_belong_to_owners(store):
    store.put({"a": b"1", "b": b"2"}, pin=True, owner="run-1")
    store.put("c", b"3")
    assert store.pin(["b", "c"], "run-2") is None
    store.pin("c", "run-2")
    assert keys(store.list(pinned_by="run-1")) == ["a", "b"]
    assert keys(store.list("b", pinned_by="run-2")) == ["b"]
    assert set(store.why("b").pins) == {"run-1", "run-2"}
    assert store.unpin("b", "run-1") is None
    store.unpin("b", "run-1")
    assert store.why("b").pins == ("run-2",)
    assert [store.drop_pins("run-2"), store.drop_pins("run-2"), store.drop_pins("never")] == [2, 0, 0]
    assert store.list(pinned_by="run-2") == [] and len(store.list()) == 3


def test_a_pin_without_an_owner_is_nobodys_in_particular(store):
    store.put("a", b"1", pin=True)
    assert keys(store.list(pinned_by="")) == ["a"] and store.why("a").pins == ("",)
    store.unpin("a")
    assert store.list(pinned_by="") == []


def test_bad_pins(store):
    with pytest.raises(tiffin.NotFound) as caught:
        store.pin("absent", "run")
    assert caught.value.key == "absent"
    store.put("a", b"1")
    with pytest.raises(tiffin.NotFound) as caught:
        store.pin(["a", "absent"], "run")
    assert caught.value.results[0] is None and store.why("a").pins == ("run",)
    with pytest.raises(tiffin.InvalidArgument, match="pin=True"):
        store.put("b", b"1", owner="run")
    with pytest.raises(tiffin.InvalidArgument):
        store.pin("a", "x" * 10_000)


# Limits, and waiting for room.


def test_a_quota_is_a_typed_answer(small):
    small.put("a", bytes(900_000), pin=True)
    with pytest.raises(tiffin.OverQuota) as caught:
        small.put("b", bytes(900_000))
    error = caught.value
    assert isinstance(error, tiffin.Full) and error.is_retryable and error.key == "b"
    assert error.quota == MIB and 900_000 <= error.used <= MIB
    (namespace,) = small.stats().namespaces
    assert namespace.quota == MIB and namespace.used == error.used
    small.set_policy()
    assert small.put("b", bytes(900_000)) is True


def test_a_put_waits_for_room(small):
    small.put("a", bytes(900_000), pin=True)
    put = threading.Thread(target=lambda: small.put("b", bytes(900_000), wait=True, timeout=60))
    put.start()
    helpers.eventually(lambda: small.stats().namespaces[0].waiting == 1)
    assert small.delete("a") is True
    put.join(60)
    assert not put.is_alive() and keys(small.list()) == ["b"]


def test_a_put_that_waits_in_vain_says_why(small):
    small.put("a", bytes(900_000), pin=True)
    with pytest.raises(tiffin.OverQuota):
        small.put("b", bytes(900_000), wait=True, timeout=0.1)
    with pytest.raises(tiffin.OverQuota):
        small.put_sample("s", {"x": bytes(900_000)}, wait=True, timeout=0.1)


def test_usage_can_be_awaited(store):
    assert store.wait_usage(at_most="1MiB").used == 0
    seen = []
    wait = threading.Thread(target=lambda: seen.append(store.wait_usage(at_least=MIB, timeout=60)))
    wait.start()
    store.put("a", bytes(2 * MIB))
    wait.join(60)
    assert seen[0].used >= MIB
    with pytest.raises(tiffin.Timeout):
        store.wait_usage(at_most=0, timeout=0.1)


@pytest.mark.parametrize("marks", [{}, {"at_most": 1, "at_least": 1}, {"at_most": -1}, {"at_most": "much"}])
def test_bad_watermarks(store, marks):
    with pytest.raises(tiffin.InvalidArgument):
        store.wait_usage(**marks)


def test_bad_limits(store):
    for limits in ({"quota": -1}, {"quota": "much"}, {"quota": 1 << 80}, {"max_hold": -1}):
        with pytest.raises(tiffin.InvalidArgument):
            store.set_policy(**limits)


def test_what_nobody_leases_is_dropped(store):
    store.set_policy(max_hold=0.05)
    store.put_sample("s", {"x": b"1"})
    helpers.eventually(lambda: store.why("s").state == "gone")
    assert store.why("s").cause == "held too long" and "nobody leased it" in str(store.why("s"))


# Why.


def test_why(store):
    store.put({"a": b"123", "b": b""}, pin=True, owner="run\x1b")
    store.delete("b")
    here, gone, unknown = store.why(["a", "b", "c"])
    assert [it.state for it in (here, gone, unknown)] == ["here", "gone", "unknown"]
    assert (here.size, here.pins, here.generation) == (3, ("run\x1b",), store.info("a").generation)
    assert "`a` is here" in str(here) and "`run\\x1b`" in str(here) and "\x1b" not in str(here)
    assert gone.cause == "deleted" and gone.ago >= 0 and "was removed" in str(gone)
    assert str(unknown).startswith("nothing is known of `c`")
    with store.view("a"):
        assert store.why("a").views == 1 and "look at it" in str(store.why("a"))
    store.put("a", b"")
    assert store.why("a").pins == ()
    assert pickle.loads(pickle.dumps(here)) == here


# Samples.

ARRAYS = {
    "bool": np.array([[True, False], [False, True]]),
    "scalar": np.array(7, dtype=np.int64),
    "empty": np.empty((0, 3), dtype=np.float32),
    "half": np.arange(12, dtype=np.float16).reshape(3, 4),
    "turned": np.arange(12, dtype=np.float64).reshape(3, 4).T,
    "large": np.arange(200_000, dtype=np.uint32),
}


def test_a_sample_is_what_was_put(store):
    ref = store.put_sample("s", ARRAYS, metadata=b"step 1")
    assert (ref.id, ref.is_replacement) == ("s", False) and pickle.loads(pickle.dumps(ref)) == ref
    with store.lease(ref) as lease:
        assert (lease.id, lease.generation) == (ref.id, ref.generation)
        assert lease.manifest.metadata == b"step 1" and lease.manifest.size == ref.size
        told = {it.name: (it.dtype, it.shape, it.size) for it in lease.manifest.tensors}
        assert told == {name: (str(it.dtype), it.shape, it.nbytes) for name, it in ARRAYS.items()}
        tensors = lease.tensors()
        assert list(tensors) == list(ARRAYS)
        for name, array in ARRAYS.items():
            assert tensors[name].dtype == array.dtype and tensors[name].shape == array.shape
            assert np.array_equal(tensors[name], array) and tensors[name].flags.writeable
        assert list(lease.tensors(["half"])) == ["half"]
        assert store.why("s").leases != () and not lease.is_released
    assert lease.is_released and store.why("s").leases == ()
    lease.release()
    with pytest.raises(tiffin.InvalidArgument, match="released"):
        lease.tensors()


WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None
import array, tiffin
with tiffin.connect(memory="16MiB") as store:
    ref = store.put_sample("s", {"f": array.array("f", [1, 2]), "l": array.array("l", [3]), "e": b""})
    with store.lease(ref) as lease:
        print([(name, it.format, it.shape, it.tolist()) for name, it in lease.tensors().items()])
"""


def test_numpy_is_not_needed():
    done = subprocess.run([sys.executable, "-c", WITHOUT_NUMPY], capture_output=True, text=True, timeout=60)
    told = "[('f', 'f', (2,), [1.0, 2.0]), ('l', 'q', (1,), [3]), ('e', 'B', (0,), [])]\n"
    assert done.stdout == told, done.stderr


def test_types_without_a_name_in_numpy_come_as_their_bits(store):
    class Bfloat16:
        """As a library would show it that numpy does not know."""

        dtype, shape = "torch.bfloat16", (2,)

        def __dlpack__(self, **options):
            return np.array([1, 2], dtype=np.uint16).__dlpack__()

        def __dlpack_device__(self):
            return (1, 0)

    with store.lease(store.put_sample("s", {"x": Bfloat16()})) as lease:
        assert lease.manifest.tensors[0].dtype == "bfloat16"
        assert lease.tensors()["x"].view(np.uint16).tolist() == [1, 2]


def test_consumption(store):
    ref = store.put_sample("s", {"x": b"1"})
    assert [store.ack(ref), store.ack(ref)] == ["freed", "stale"]
    assert "s" not in store and store.why("s").cause == "consumed"
    ref = store.put_sample("s", {"x": b"1"}, consume=["a", "b"])
    assert store.why("s").consume == ("a", "b")
    with pytest.raises(tiffin.WrongGroup) as caught:
        store.ack([ref], "c")
    assert (caught.value.key, caught.value.group) == ("s", "c")
    assert store.ack([ref], "a") == ["recorded"]
    assert "waits for `b`; consumed by `a`" in str(store.why("s"))
    with pytest.raises(tiffin.Consumed):
        store.lease(ref, "a")
    with store.lease(ref, "b") as lease:
        assert store.ack(lease, "b") == "freed"
    ref = store.put_sample("s", {"x": b"1"}, consume="retained")
    assert [store.ack(ref), store.ack(ref)] == ["recorded", "recorded"] and "s" in store


def test_refs_of_what_was_replaced_lead_nowhere(store):
    old = store.put_sample("s", {"x": b"1"})
    lease = store.lease(old)
    new = store.put_sample("s", {"x": b"2"})
    assert new.is_replacement and new.generation > old.generation
    with pytest.raises(tiffin.Superseded) as caught:
        store.lease(old)
    assert caught.value.generation == new.generation
    with pytest.raises(tiffin.Error):
        lease.tensors()
    assert store.ack(old) == "stale" and bytes(store.lease("s").tensors()["x"]) == b"2"
    with pytest.raises(tiffin.Exists) as caught:
        store.put_sample("s", {"x": b"3"}, replace=False)
    assert (caught.value.key, caught.value.generation) == ("s", new.generation)


def test_many_samples_at_once(store):
    refs = [store.put_sample(f"s{i}", {"x": bytes([i])}) for i in range(3)]
    leases = store.lease(refs)
    assert [bytes(lease.tensors()["x"]) for lease in leases] == [b"\0", b"\1", b"\2"]
    assert store.ack(leases) == ["freed"] * 3
    with pytest.raises(tiffin.NotFound):
        store.lease(["s1"])


@pytest.mark.parametrize(
    ("tensors", "options", "error"),
    [
        ({}, {}, tiffin.InvalidArgument),
        ({"": b"1"}, {}, tiffin.InvalidArgument),
        ({"x": np.array(["a"])}, {}, tiffin.InvalidArgument),
        ({"x": np.array([1], dtype=">i4")}, {}, tiffin.InvalidArgument),
        ({"x": "text"}, {}, TypeError),
        ({1: b"1"}, {}, TypeError),
        ([b"1"], {}, TypeError),
        ({"x": b"1"}, {"metadata": "text"}, TypeError),
        ({"x": b"1"}, {"consume": "twice"}, tiffin.InvalidArgument),
        ({"x": b"1"}, {"consume": []}, tiffin.InvalidArgument),
        ({"x": b"1"}, {"consume": ["a", "a"]}, tiffin.InvalidArgument),
        ({"x": b"1"}, {"consume": [1]}, TypeError),
    ],
)
def test_what_is_no_sample(store, tensors, options, error):
    with pytest.raises(error):
        store.put_sample("s", tensors, **options)
    assert "s" not in store


def test_bad_leases_and_acks(store):
    store.put("plain", b"1")
    with pytest.raises(tiffin.NotASample) as caught:
        store.lease("plain")
    assert caught.value.key == "plain"
    with pytest.raises(tiffin.InvalidArgument, match="no ref"):
        store.ack("plain")
    for nonsense in (7, [7]):
        with pytest.raises(TypeError):
            store.lease(nonsense)
    with store.lease(store.put_sample("s", {"x": b"1"})) as lease, pytest.raises(tiffin.InvalidArgument):
        lease.tensors(["y"])


def test_a_store_that_is_closed_ends_its_leases():
    with tiffin.connect(memory="16MiB") as store:
        lease = store.lease(store.put_sample("s", {"x": b"1"}))
    with lease, pytest.raises(tiffin.Closed):
        lease.tensors()


def test_samples_of_a_cluster(cluster):
    """By shared memory and through a socket, from the process that put it and from another."""
    with tiffin.connect(cluster) as producer:
        ref = producer.put_sample("s", ARRAYS, consume=["a", "b"])
        for group, shared_memory in (("a", True), ("b", False)):
            with tiffin.connect(cluster, shared_memory=shared_memory) as consumer:
                with consumer.lease(ref, group) as lease:
                    assert np.array_equal(lease.tensors()["large"], ARRAYS["large"])
                acked = consumer.ack(ref, group)
        assert acked == "freed" and "s" not in producer


def test_the_same_for_asyncio():
    async def main():
        async with await tiffin.aio.connect(memory="64MiB", timeout=30) as store:
            await store.put("a", b"1", pin=True, owner="run", wait=True)
            await store.pin("a", "other")
            await store.unpin("a", "other")
            assert keys(await store.list(pinned_by="run")) == ["a"]
            assert (await store.why("a")).pins == ("run",)
            assert await store.drop_pins("run") == 1
            await store.set_policy(quota="32MiB")
            assert (await store.wait_usage(at_least=1)).quota == 32 * MIB
            ref = await store.put_sample("s", {"x": b"abc"}, consume=["g"])
            async with await store.lease(ref, "g") as lease:
                assert (lease.id, lease.generation) == (ref.id, ref.generation)
                assert lease.manifest.tensors[0].name == "x" and "tiffin.aio.AsyncLease" in repr(lease)
                assert bytes((await lease.tensors())["x"]) == b"abc"
                assert await store.ack([lease], "g") == ["freed"]
            assert lease.is_released

    asyncio.run(main())
