"""Parts of objects: as bytes, into buffers, and as views."""

import asyncio

import pytest
import tiffin
import tiffin.aio

VALUE = bytes(range(256)) * 1024


@pytest.fixture(params=["local", "shared memory", "tcp"])
def holder(request, cluster):
    """A store with this transport, and one object."""
    where = {"memory": "64MiB"} if request.param == "local" else {"address": cluster}
    with tiffin.connect(**where, timeout=30, shared_memory=request.param != "tcp") as store:
        store.put("k", VALUE)
        assert store.routes()[0].way == request.param
        yield store
        store.delete("k")


RANGES = [(0, 0), (0, 1), (7, 100_001), (0, len(VALUE)), (len(VALUE) - 1, 1), (len(VALUE), 0)]
OUTSIDE = [(len(VALUE), 1), (0, len(VALUE) + 1), (1 << 63, 1 << 63), (1 << 70, 0), (1, 1 << 70)]


def test_every_form_reads_the_range(holder):
    for offset, length in RANGES:
        wanted = VALUE[offset : offset + length]
        assert holder.get("k", range=(offset, length)) == wanted
        buffer = bytearray(b"!" * (length + 1))
        assert holder.get_into("k", buffer, range=(offset, length)) == length
        assert buffer == wanted + b"!"
        with holder.view("k", range=(offset, length)) as view:
            assert (bytes(view), view.nbytes, len(view)) == (wanted, length, length)
            assert view.generation == holder.info("k").generation


def test_only_the_range_is_moved(holder):
    def read():
        traffic = holder.stats().traffic
        return traffic.local_read + traffic.shared_memory_read + traffic.tcp_read

    before = read()
    holder.get("k", range=(1000, 500))
    holder.get_into("k", bytearray(500), range=(0, 500))
    assert read() - before == 1000
    with holder.view("k", range=(5, 10)) as view:
        assert read() - before == (1000 if view.is_borrowed else 1010)


def test_many_at_once(holder):
    assert holder.get(["k"] * len(RANGES), range=RANGES) == [VALUE[at : at + length] for at, length in RANGES]
    assert holder.get(["k", "absent", "k"], range=[(1, 2), (0, 1), None], default=0) == [VALUE[1:3], 0, VALUE]
    buffers = [bytearray(2), bytearray(3)]
    assert holder.get_into(["k", "k"], buffers, range=[(10, 2), (20, 3)]) == [2, 3]
    assert buffers == [VALUE[10:12], VALUE[20:23]]
    assert holder.get_into({"k": buffers[0]}, range=(30, 2)) == [2] and buffers[0] == VALUE[30:32]
    views = holder.view(["k", "k"], range=[(3, 4), (5, 6)])
    assert [bytes(view) for view in views] == [VALUE[3:7], VALUE[5:11]]


@pytest.mark.parametrize("outside", OUTSIDE)
def test_range_outside_the_object_is_a_typed_error(holder, outside):
    buffer = bytearray(8)
    for call in (
        lambda: holder.get("k", range=outside),
        lambda: holder.get("k", range=outside, default=None),
        lambda: holder.get_into("k", buffer, range=outside),
        lambda: holder.view("k", range=outside),
        lambda: holder.get(["k", "k"], range=[(0, 1), outside]),
    ):
        with pytest.raises(tiffin.OutOfRange) as caught:
            call()
        assert (caught.value.key, caught.value.size) == ("k", len(VALUE))
    assert caught.value.results[0] == VALUE[:1] and buffer == bytearray(8)
    with pytest.raises(tiffin.NotFound):
        holder.get("absent", range=outside)
    assert holder.stats().usage.in_view == 0


def test_buffer_smaller_than_the_range_is_refused(holder):
    buffer = bytearray(3)
    with pytest.raises(tiffin.TooSmall) as caught:
        holder.get_into("k", buffer, range=(0, 4))
    assert caught.value.size == 4 and buffer == bytearray(3)


@pytest.mark.parametrize(
    ("key", "given", "error"),
    [
        ("k", (0,), TypeError),
        ("k", (0, 1, 2), TypeError),
        ("k", (0, 1.5), TypeError),
        ("k", ("0", 1), TypeError),
        ("k", 7, TypeError),
        ("k", "ab", TypeError),
        ("k", (-1, 1), tiffin.InvalidArgument),
        ("k", (0, -1), tiffin.InvalidArgument),
        ("k", [(0, 1)], tiffin.InvalidArgument),
        (["k"], [], tiffin.InvalidArgument),
        (["k"], [(0, 1), (0, 1)], tiffin.InvalidArgument),
        (["k"], [7], TypeError),
    ],
)
def test_invalid_ranges_are_refused(store, key, given, error):
    store.put("k", VALUE)
    for call in (store.get, store.view):
        with pytest.raises(error):
            call(key, range=given)
    with pytest.raises(error):
        store.get_into(key, bytearray(9) if key == "k" else [bytearray(9)], range=given)


def test_part_keeps_the_whole_alive(store):
    store.put("k", VALUE)
    view = store.view("k", range=(5, 1))
    store.delete("k")
    assert store.stats().usage.in_view >= len(VALUE) and bytes(view) == VALUE[5:6]
    view.release()


def test_same_for_asyncio():
    async def main():
        async with await tiffin.aio.connect(memory="64MiB", timeout=30) as store:
            await store.put(["a", "b"], [VALUE, b"2"])
            assert await store.get("a", range=(1, 3)) == VALUE[1:4]
            with await store.view("a", range=(2, 3)) as view:
                assert bytes(view) == VALUE[2:5]
            with pytest.raises(tiffin.OutOfRange):
                await store.get("b", range=(1, 1))

    asyncio.run(main())
