"""A store as a mapping, lists in parts, views as sequences, and how results look."""

import re

import numpy as np
import pytest
import tiffin


@pytest.fixture(params=["in this process", "elsewhere"])
def any_store(request, cluster):
    if request.param == "in this process":
        with tiffin.connect(memory="64MiB", timeout=30) as store:
            yield store
    else:
        with tiffin.connect(cluster, timeout=30) as store:
            store.clear()
            yield store


def test_items(any_store):
    store = any_store
    store["k"] = b"value"
    store[b"\xff"] = np.arange(3, dtype=np.uint8)
    assert store["k"] == b"value" and store[b"\xff"] == bytes([0, 1, 2])
    assert "k" in store and "l" not in store
    assert len(store) == 2 and set(store) == {"k", b"\xff"}
    del store["k"]
    assert "k" not in store and len(store) == 1
    store.put_sample("s", {"ids": b"abc"})
    assert len(store) == 2
    with tiffin.connect(store.address, namespace="another") as another:
        assert len(another) == 0 and list(another) == []


def test_missing_items_are_key_errors(any_store):
    with pytest.raises(KeyError) as failed:
        any_store["absent"]
    assert isinstance(failed.value, tiffin.NotFound) and failed.value.key == "absent"
    with pytest.raises(tiffin.NotFound):
        del any_store["absent"]
    with pytest.raises(TypeError):
        any_store[["a", "b"]]
    with pytest.raises(TypeError):
        any_store["k"] = "text"


def test_empty_store_is_true(any_store):
    assert len(any_store) == 0 and any_store
    any_store.close()
    assert any_store
    with pytest.raises(tiffin.Closed):
        len(any_store)


def test_default_may_be_positional(any_store):
    for call in (any_store.get, any_store.view, any_store.info):
        assert call("absent", None) is None
        assert call(["absent"], 7) == [7]
        with pytest.raises(tiffin.NotFound):
            call("absent")


def test_lists_in_parts(any_store):
    keys = [f"{part}/{number:04}" for part in "ab" for number in range(1500)]
    any_store.put(dict.fromkeys(keys, b""))
    assert [info.key for info in any_store.list("b/", limit=2)] == ["b/0000", "b/0001"]
    walked, last = [], None
    while page := any_store.list(limit=700, after=last):
        assert len(page) <= 700
        walked += [info.key for info in page]
        last = page[-1].key
    assert walked == keys
    assert any_store.list(limit=0) == []
    with pytest.raises(tiffin.InvalidArgument):
        any_store.list(limit=-1)
    # An iteration has more than one page.
    assert sorted(any_store) == keys
    assert sorted(info.key for info in any_store.scan("b/")) == keys[1500:]
    any_store.pin("a/0007", "run")
    assert [info.key for info in any_store.scan(pinned_by="run")] == ["a/0007"]
    with pytest.raises(tiffin.Timeout):
        next(any_store.scan(timeout=0))


def test_objects_may_go_during_an_iteration(any_store):
    any_store.put({f"k{number}": b"" for number in range(3000)})
    for key in any_store:
        del any_store[key]
    assert len(any_store) == 0


def test_view_is_a_sequence_of_bytes(any_store):
    any_store["k"] = b"hello"
    with any_store.view("k") as view:
        assert (view[0], view[-1]) == (ord("h"), ord("o"))
        assert list(view) == list(b"hello")
        part = view[1:3]
        assert isinstance(part, memoryview) and part.readonly and part == b"el"
        assert view[::-1].tobytes() == b"olleh"
        with pytest.raises(IndexError):
            view[5]
        with pytest.raises(TypeError):
            view["k"]
        with pytest.raises(TypeError):
            view[0] = 1
    with pytest.raises(tiffin.Closed):
        view[0]
    # A part outlives the view and the object.
    del any_store["k"]
    assert part.tobytes() == b"el"


def test_results_are_short():
    with tiffin.connect(memory="64MiB") as store:
        store["k"] = bytes(2048)
        stats = store.stats()
        assert (
            repr(stats)
            == "<tiffin.Stats: 1 node, 1 object, 2.0 KiB of 64.0 MiB in use; print it for details>"
        )
        namespace = repr(store.wait_usage(at_least=0))
        assert namespace == "Namespace(name='default', objects=1, size=2048, used=2048)"
        assert repr(tiffin.Tier(disk_objects=2)) == "Tier(disk_objects=2)"
        assert "acked" not in repr(store.why("k"))


def test_stats_can_be_printed():
    with tiffin.connect(memory="64MiB", namespace="a\x1b[31mb") as store:
        store["k"] = bytes(2048)
        store.set_policy(quota="1MiB")
        text = str(store.stats())
    tables = [table.splitlines() for table in text.split("\n\n")]
    assert tables[0] == ["master  1 client, 0 objects evicted (0 B)"]
    columns = ["node", "capacity", "free", "reserved", "in use", "in view", "metadata", "objects"]
    assert re.split(" {2,}", tables[1][0]) == columns
    assert "64.0 MiB" in tables[1][1] and tables[1][1].endswith(" 1")
    assert tables[2][1].split()[:8] == ["a\\x1b[31mb", "1", "2.0", "KiB", "2.0", "KiB", "1.0", "MiB"]
    assert tables[3] == ["traffic of this store     size", "local_written          2.0 KiB"]
    # The columns of a table end at the same place.
    assert all(len({len(line) for line in table}) == 1 for table in tables[1:])
