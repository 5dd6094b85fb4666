"""Samples: groups of tensors that are put as one, leased, read and acknowledged."""

import asyncio
import gc
import pickle
import subprocess
import sys

import numpy as np
import pytest
import tiffin
import tiffin.aio

import helpers

ARRAYS = {
    "bool": np.array([[True, False], [False, True]]),
    "scalar": np.array(7, dtype=np.int64),
    "empty": np.empty((0, 3), dtype=np.float32),
    "half": np.arange(12, dtype=np.float16).reshape(3, 4),
    "turned": np.arange(12, dtype=np.float64).reshape(3, 4).T,
    "large": np.arange(200_000, dtype=np.uint32),
}


def test_sample_has_the_tensors_that_were_put(store):
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


def test_types_unknown_to_numpy_are_returned_as_bits(store):
    class Bfloat16:
        """Like the type of a library that numpy does not know."""

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


def test_refs_of_replaced_samples_are_superseded(store):
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
    refs = store.put_sample({f"s{i}": {"x": bytes([i])} for i in range(3)}, metadata={"s1": b"one"})
    assert [ref.id for ref in refs] == ["s0", "s1", "s2"]
    leases = store.lease(refs)
    assert [bytes(lease.tensors()["x"]) for lease in leases] == [b"\0", b"\1", b"\2"]
    assert [lease.manifest.metadata for lease in leases] == [b"", b"one", b""]
    assert store.ack(leases) == ["freed"] * 3
    with pytest.raises(tiffin.NotFound):
        store.lease(["s1"])


class Said:
    """Twelve bytes with a wrong description."""

    def __init__(self, dtype, shape):
        self.dtype, self.shape = dtype, shape

    def __dlpack__(self, **options):
        return np.zeros(12, np.uint8).__dlpack__()

    def __dlpack_device__(self):
        return (1, 0)


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
        ({"x": b"1"}, {"replicas": 0}, tiffin.InvalidArgument),
        ({"x": b"1"}, {"owner": "run"}, tiffin.InvalidArgument),
        ({"x": b"1"}, {"pin": True, "owner": "x" * 10_000}, tiffin.InvalidArgument),
        ({"x": Said("float32", (2, 2))}, {}, tiffin.InvalidArgument),
        ({"x": Said("float32", (1 << 62, 1 << 62))}, {}, tiffin.InvalidArgument),
        (None, {}, TypeError),
    ],
)
def test_object_that_is_not_a_sample_is_refused(store, tensors, options, error):
    with pytest.raises(error):
        store.put_sample("s", tensors, **options)
    assert "s" not in store


def test_bad_leases_and_acks(store):
    store.put("plain", b"1")
    with pytest.raises(tiffin.NotASample) as caught:
        store.lease("plain")
    assert caught.value.key == "plain"
    with pytest.raises(tiffin.InvalidArgument, match="not a ref"):
        store.ack("plain")
    for nonsense in (7, [7]):
        with pytest.raises(TypeError):
            store.lease(nonsense)
    with store.lease(store.put_sample("s", {"x": b"1"})) as lease, pytest.raises(tiffin.InvalidArgument):
        lease.tensors(["y"])


def test_closing_a_store_ends_its_leases():
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


def test_of_many_samples_some_may_fail(store):
    store.put_sample("s1", {"x": b"old"})
    with pytest.raises(tiffin.Exists) as caught:
        store.put_sample({f"s{i}": {"x": b"new"} for i in range(3)}, replace=False)
    first, second, third = caught.value.results
    assert (first.id, third.id) == ("s0", "s2") and isinstance(second, tiffin.Exists)
    with pytest.raises(tiffin.InvalidArgument) as caught:
        store.put_sample({"good": {"x": b"1"}, "bad": {}})
    assert caught.value.results[0].id == "good" and "bad" not in store
    for metadata, error in ((b"1", TypeError), ({"c": b"1"}, tiffin.InvalidArgument), ({"a": 1}, TypeError)):
        with pytest.raises(error):
            store.put_sample({"a": {"x": b"1"}}, metadata=metadata)
    assert "a" not in store


def test_sample_may_be_pinned_on_behalf_of_an_owner(store):
    store.put_sample("s", {"x": b"1"}, pin=True, owner="run-7", consume="retained")
    assert store.why("s").pins == ("run-7",) and store.why("s").consume == "retained"
    assert store.drop_pins("run-7") == 1 and "s" in store


def test_sample_may_have_copies(cluster):
    with tiffin.connect(cluster) as store:
        ref = store.put_sample("copied", {"x": b"1"}, replicas=2)
        # There is one node, so there is one copy.
        assert store.info("copied").replicas == 1 and store.ack(ref) == "freed"


def test_tensors_are_viewed_in_place(store):
    with store.lease(store.put_sample("s", ARRAYS)) as lease:
        before = store.stats().traffic
        tensors = lease.tensors(copy=False)
        assert store.stats().traffic == before
        for name, array in ARRAYS.items():
            assert tensors[name].dtype == array.dtype and tensors[name].shape == array.shape
            assert np.array_equal(tensors[name], array)
            with pytest.raises(ValueError, match="read-only"):
                tensors[name].fill(0)
        assert list(lease.tensors(["half"], copy=False)) == ["half"]
        assert store.ack(lease) == "freed"
        with pytest.raises(tiffin.NotFound):
            lease.tensors(copy=False)
    large = tensors.pop("large")
    del tensors, array
    gc.collect()
    assert np.array_equal(large, ARRAYS["large"]) and store.stats().usage.in_view >= large.nbytes
    del large
    helpers.eventually(lambda: store.stats().usage.in_view == 0)
    with pytest.raises(tiffin.InvalidArgument, match="released"):
        lease.tensors(copy=False)


def test_replaced_tensors_are_not_read(store):
    old = store.put_sample("s", {"x": bytes(1000)})
    with store.lease(old) as lease:
        new = store.put_sample("s", {"y": bytes(5000)})
        with pytest.raises(tiffin.Superseded) as caught:
            lease.tensors(copy=False)
        assert caught.value.generation == new.generation
        store.put_sample("s", {"y": b"1"})
        with pytest.raises((tiffin.Superseded, tiffin.Contended)):
            lease.tensors(copy=False)


def test_tensors_are_read_into_existing_memory(store):
    ref = store.put_sample("s", ARRAYS)
    out = {name: np.empty(array.shape, array.dtype) for name, array in ARRAYS.items()}
    plain = bytearray(ARRAYS["half"].nbytes + 1)
    with store.lease(ref) as lease:
        assert lease.get_into(out) is None
        assert all(np.array_equal(out[name], array) for name, array in ARRAYS.items())
        lease.get_into({"half": plain})
        assert plain == ARRAYS["half"].tobytes() + b"\0"
        for buffers, error in (
            ({"half": np.empty((4, 3), np.float16)}, tiffin.InvalidArgument),
            ({"half": np.empty((3, 4), np.int16)}, tiffin.InvalidArgument),
            ({"half": np.empty((4, 3), np.float16).T}, tiffin.InvalidArgument),
            ({"other": bytearray(9)}, tiffin.InvalidArgument),
            ({"half": bytearray(3)}, tiffin.TooSmall),
            ({"half": b"read-only, and long enough"}, TypeError),
            ({"half": "text"}, TypeError),
            ([bytearray(9)], TypeError),
        ):
            with pytest.raises(error):
                lease.get_into(buffers)
    with pytest.raises(tiffin.InvalidArgument, match="released"):
        lease.get_into({"half": plain})


def test_noncontiguous_arrays_are_stored_in_element_order(store):
    whole = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    apart = {"step": whole[:, ::2], "back": whole[::-1], "turned": whole.transpose(2, 0, 1)}
    with store.lease(store.put_sample("s", apart)) as lease:
        for name, tensor in lease.tensors().items():
            assert np.array_equal(tensor, apart[name]) and tensor.flags.c_contiguous


def test_lease_may_be_released_twice_and_acks_need_none(store):
    first, second = store.put_sample({"a": {"x": b"1"}, "b": {"x": b"2"}})
    lease = store.lease(first)
    assert [lease.release(), lease.release()] == [None, None]
    refs = [first, second]
    assert [store.ack(refs), store.ack(refs)] == [["freed"] * 2, ["stale"] * 2]
    wrong = first._replace(generation=(first.generation[0], first.generation[1] + 1000))
    assert store.ack(wrong) == "stale"
    with pytest.raises(tiffin.NotFound):
        store.lease(wrong)
    store.put_sample("a", {"x": b"1"})
    with pytest.raises(tiffin.Superseded):
        store.lease(wrong)


def test_abort_removes_an_unconsumed_sample(store):
    for consume in ("once", "retained", ["a", "b"]):
        old = store.put_sample("s", {"x": b"1"}, consume=consume, pin=True)
        new = store.put_sample("s", {"x": b"2"}, consume=consume)
        with store.lease(new, "a") as lease:
            assert store.abort(old) is False and "s" in store
            assert [store.abort(lease), store.abort([new, old])] == [True, [False, False]]
            with pytest.raises(tiffin.NotFound):
                lease.tensors()
        assert "s" not in store and store.why("s").cause == "deleted" and store.ack(new, "a") == "stale"
    store.put("plain", b"1")
    with pytest.raises(tiffin.InvalidArgument, match="not a ref"):
        store.abort("plain")
    assert store.stats().usage.used == store.stats().usage.used and "plain" in store


def test_samples_are_counted_by_state(store):
    a, b, c = store.put_sample({name: {"x": bytes(10_000)} for name in "abc"})
    empty, full = tiffin.Namespace("default", 0, 0), store.wait_usage(at_least=1)
    assert (full.samples, full.samples_leased) == (3, 0) and full.samples_size == 3 * a.size
    assert (full.samples_leased_size, full.oldest_leased_sample) == (0, 0.0)
    with store.lease(b):
        stat = store.wait_usage(at_least=1)
        assert (stat.samples_leased, stat.samples_leased_size) == (1, b.size)
        assert stat.oldest_sample >= stat.oldest_leased_sample >= 0
    assert store.ack([a, b, c]) == ["freed"] * 3
    stat = store.wait_usage(at_most=0)
    assert (stat.samples, stat.samples_size, stat.oldest_sample) == (empty.samples, 0, 0.0)


def test_same_for_asyncio():
    async def main():
        async with await tiffin.aio.connect(memory="64MiB", timeout=30) as store:
            refs = await store.put_sample({"a": {"x": b"1"}, "b": {"x": b"2"}})
            leases = await store.lease(refs)
            out = bytearray(1)
            await leases[1].get_into({"x": out})
            assert out == b"2" and bytes((await leases[0].tensors(copy=False))["x"]) == b"1"
            assert await store.ack(leases) == ["freed", "freed"]

    asyncio.run(main())
