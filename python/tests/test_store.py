"""Every method of a store, for one key and for many, and its errors."""

import math
import os
import pickle
import random
import signal

import pytest
import tiffin

import helpers

KEYS = {
    "text": "key",
    "bytes": b"key",
    "one byte": b"\x00",
    "not UTF-8": b"\xff\xfe\x00\x80",
    "beyond ASCII": "ключ/鍵/🗝",
    "10 KB": "k" * 10_000,
    "slashes and spaces": "a b/../c\n",
}
SIZES = [0, 1, 63, 64, 65, 4096, (1 << 20) - 1, 1 << 20, (4 << 20) + 1, 32 << 20]


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_any_key(store, key):
    assert store.put(key, b"value")
    assert store.get(key) == b"value"
    assert store.exists(key) and key in store
    assert store.info(key).size == 5
    with store.view(key) as view:
        assert bytes(view) == b"value"
    assert [info.key for info in store.list(key)] == [store.info(key).key]
    assert store.delete(key)
    assert not store.delete(key)
    assert not store.exists(key) and key not in store


def test_text_is_its_utf8(store):
    store.put("é", b"1")
    assert store.get("é".encode()) == b"1"
    assert store.list()[0].key == "é"
    store.put(b"\xff", b"2")
    assert [info.key for info in store.list()] == ["é", b"\xff"]


@pytest.mark.parametrize("size", SIZES)
def test_any_size(store, size):
    value = random.Random(size).randbytes(size)
    assert store.put("k", value)
    assert store.get("k") == value
    buffer = bytearray(size + 3)
    assert store.get_into("k", buffer) == size
    assert buffer[:size] == value and buffer[size:] == bytes(3)
    with store.view("k") as view:
        assert bytes(view) == value
        assert len(view) == view.nbytes == size


def test_many_keys_give_a_list_of_results(store):
    values = {f"k{index}": str(index).encode() for index in range(100)}
    assert store.put(values) == [True] * 100
    keys = list(values)
    for many in (keys, tuple(keys), iter(keys), values.keys(), dict.fromkeys(keys)):
        assert store.get(many) == list(values.values())
    assert store.exists([*keys, "absent"]) == [True] * 100 + [False]
    assert [info.size for info in store.info(keys)] == [len(value) for value in values.values()]
    buffers = {key: bytearray(2) for key in keys}
    assert store.get_into(buffers) == [len(value) for value in values.values()]
    assert [bytes(buffers[key]).rstrip(b"\x00") for key in keys] == list(values.values())
    assert [bytes(view) for view in store.view(keys)] == list(values.values())
    assert store.delete([*keys, "absent"]) == [True] * 100 + [False]


def test_many_keys_may_be_none(store):
    assert store.put({}) == []
    for call in (store.get, store.exists, store.info, store.view, store.delete):
        assert call([]) == []
    assert store.get_into({}) == []


def test_many_keys_may_be_very_many(store):
    count = 20_000
    assert (
        store.put({f"k{index:05}": index.to_bytes(4, "little") for index in range(count)}) == [True] * count
    )
    values = store.get(f"k{index:05}" for index in range(count))
    assert values == [index.to_bytes(4, "little") for index in range(count)]
    assert len(store.list()) == count
    assert store.clear() == count


def test_key_may_repeat_in_one_call(store):
    store.put("k", b"1")
    assert store.get(["k", "k"]) == [b"1", b"1"]
    assert store.delete(["k", "k"]) == [True, False]


def test_on_exists_decides_about_existing_objects(store):
    assert store.put("k", b"1")
    assert store.put("k", b"2")
    assert store.get("k") == b"2"
    assert store.put("k", b"3", on_exists="keep") is False
    assert store.put({"k": b"3", "l": b"4"}, on_exists="keep") == [False, True]
    assert store.get(["k", "l"]) == [b"2", b"4"]
    with pytest.raises(tiffin.Exists) as error:
        store.put("k", b"5", on_exists="error")
    assert error.value.key == "k"
    with pytest.raises(tiffin.Exists) as error:
        store.put({"m": b"6", "k": b"5"}, on_exists="error")
    assert error.value.results[0] is True and error.value.results[1] is error.value
    assert store.get(["k", "m"]) == [b"2", b"6"]


def test_generations_only_grow(store):
    store.put("k", b"1")
    first = store.info("k").generation
    store.put("k", b"2")
    second = store.info("k").generation
    store.delete("k")
    store.put("k", b"2")
    assert first < second < store.info("k").generation
    assert store.view("k").generation == store.info("k").generation == store.list()[0].generation


def test_missing_objects(store):
    store.put("a", b"1")
    for call in (store.get, store.info, store.view):
        with pytest.raises(tiffin.NotFound, match="`b` does not exist") as error:
            call("b")
        assert error.value.key == "b" and error.value.results is None
        assert isinstance(error.value, KeyError) and isinstance(error.value, tiffin.Error)
        assert call("b", default=None) is None
        assert call("b", default=...) is ...
        assert call(["b", "c"], default=7) == [7, 7]
        with pytest.raises(tiffin.NotFound) as error:
            call(["a", "b", "c"])
        assert error.value.key == "b"
        found, *others = error.value.results
        assert not isinstance(found, Exception)
        assert [other.key for other in others] == ["b", "c"]
    with pytest.raises(tiffin.NotFound):
        store.get_into("b", bytearray(1))
    buffers = {"b": bytearray(1), "a": bytearray(1)}
    with pytest.raises(tiffin.NotFound) as error:
        store.get_into(buffers)
    assert error.value.results[1] == 1 and buffers["a"] == b"1"


def test_buffer_that_is_too_small_is_not_touched(store):
    store.put("k", b"hello")
    buffer = bytearray(b"....")
    with pytest.raises(tiffin.TooSmall, match="hint: ") as error:
        store.get_into("k", buffer)
    assert (error.value.key, error.value.size, buffer) == ("k", 5, b"....")


def test_deleting_by_pattern(store):
    store.put({f"run{run}/{index}": b"" for run in (1, 2) for index in range(5)})
    assert store.delete_prefix("run1/") == 5
    assert store.delete_prefix(b"run1/") == 0
    assert store.delete_regex("/[01]$") == 2
    assert [info.key for info in store.list("run")] == ["run2/2", "run2/3", "run2/4"]
    assert store.clear() == 3
    assert store.list() == []
    with pytest.raises(tiffin.InvalidArgument, match="clear"):
        store.delete_prefix("")
    with pytest.raises(tiffin.InvalidArgument):
        store.delete_regex("(")


def test_list_is_ordered_and_has_the_prefix(store):
    store.put({"b": b"22", "a/2": b"", "a/1": b"1", "a": b"333"})
    assert [(info.key, info.size) for info in store.list()] == [("a", 3), ("a/1", 1), ("a/2", 0), ("b", 2)]
    assert [info.key for info in store.list("a/")] == ["a/1", "a/2"]
    assert store.list(b"\xff") == []
    assert store.list("a/1")[0] == store.info("a/1")


def test_full_reports_the_usage():
    with tiffin.connect(memory="16MiB") as store:
        with pytest.raises(tiffin.Full, match="hint: ") as error:
            for index in range(100):
                store.put(f"k{index}", bytes(1 << 20), pin=True)
        error = error.value
        assert error.key == f"k{len(store.list())}" and error.size == 1 << 20
        assert error.usage.capacity == 16 << 20
        assert error.usage.used >= 15 << 20
        assert error.is_retryable
        with pytest.raises(tiffin.Full):
            store.put("larger than the store", bytes(17 << 20))
        assert store.clear() > 0
        assert store.put("now there is space", bytes(1 << 20))


def test_unpinned_objects_are_evicted():
    with tiffin.connect(memory="16MiB") as store:
        store.put("pinned", bytes(1 << 20), pin=True)
        for index in range(100):
            store.put(f"k{index}", bytes(1 << 20))
        assert store.exists("pinned") and not store.exists("k0")
        assert store.stats().evicted_objects > 0


def test_usage_returns_to_nothing(store):
    store.put({f"k{index}": bytes(index * 1000) for index in range(50)})
    # A node reports its usage from time to time.
    helpers.eventually(lambda: store.stats().usage.objects == 50)
    usage = store.stats().usage
    assert usage.used >= sum(index * 1000 for index in range(50))
    assert usage.free + usage.reserved + usage.used + usage.in_view == usage.capacity == 256 << 20
    store.clear()
    helpers.eventually(lambda: store.stats().usage.free == usage.capacity)
    assert store.stats().usage.objects == 0


def test_namespaces_do_not_see_each_other(store):
    with tiffin.connect(store.address, namespace="other") as other:
        store.put("k", b"1")
        assert not other.exists("k")
        other.put("k", b"2")
        assert other.clear() == 1
        assert store.get("k") == b"1"
        assert other.namespace == "other" and store.namespace == "default"


def test_use_after_close(store):
    view = store.view(["k"], default=None)
    assert view == [None]
    store.put("k", b"1")
    view = store.view("k")
    store.close()
    store.close()
    assert store.is_closed and "closed" in repr(store)
    calls = [
        lambda: store.put("k", b""),
        lambda: store.get("k"),
        lambda: store.get([]),
        lambda: store.get_into("k", bytearray()),
        lambda: store.view("k"),
        lambda: store.exists("k"),
        lambda: "k" in store,
        lambda: store.info("k"),
        lambda: store.delete("k"),
        lambda: store.delete_prefix("k"),
        lambda: store.delete_regex("k"),
        lambda: store.clear(),
        lambda: store.list(),
        lambda: store.stats(),
        lambda: store.routes(),
    ]
    for call in calls:
        with pytest.raises(tiffin.Closed, match="hint: "):
            call()
    assert bytes(view) == b"1"


def test_two_stores_of_one_process_are_two(store):
    with tiffin.connect(memory="16MiB") as other:
        store.put("k", b"1")
        assert not other.exists("k")
        assert store.address != other.address
    assert store.get("k") == b"1"


def test_pickled_store_is_the_same_store(store):
    again = pickle.loads(pickle.dumps(store))
    store.put("k", b"1")
    assert again.get("k") == b"1"
    again.close()
    assert store.get("k") == b"1"


def test_errors_survive_pickling(store):
    with pytest.raises(tiffin.NotFound) as error:
        store.get(["a", "b"])
    again = pickle.loads(pickle.dumps(error.value))
    assert type(again) is tiffin.NotFound and str(again) == str(error.value) and again.key == "a"
    for name in tiffin.errors.__all__:
        again = pickle.loads(pickle.dumps(getattr(tiffin, name)("what happened")))
        assert type(again).__name__ == name and str(again) == "what happened"
        assert isinstance(again, (tiffin.Error, Warning))


def test_errors_are_also_builtin_exceptions():
    for error, base in [
        (tiffin.NotFound, KeyError),
        (tiffin.Timeout, TimeoutError),
        (tiffin.Unreachable, ConnectionError),
        (tiffin.InvalidArgument, ValueError),
    ]:
        assert issubclass(error, base) and issubclass(error, tiffin.Error)


def test_bad_arguments_never_crash(store):
    store.put("k", b"1")
    calls = [
        (TypeError, lambda: store.put(1, b"")),
        (TypeError, lambda: store.put(None, b"")),
        (TypeError, lambda: store.put("k")),
        (TypeError, lambda: store.put("k", None)),
        (TypeError, lambda: store.put(["k"], b"")),
        (TypeError, lambda: store.put(["k"], [None])),
        (tiffin.InvalidArgument, lambda: store.put(["k"], [b"", b""])),
        (TypeError, lambda: store.put([("k", b"")])),
        (TypeError, lambda: store.put({"k": b""}, b"")),
        (TypeError, lambda: store.put({1: b""})),
        (TypeError, lambda: store.put({"k": None})),
        (TypeError, lambda: store.put("k", b"", pin="yes")),
        (TypeError, lambda: store.put("k", b"", replicas="2")),
        (TypeError, lambda: store.put("k", b"", unknown=1)),
        (tiffin.InvalidArgument, lambda: store.put("k", b"", replicas=-1)),
        (tiffin.InvalidArgument, lambda: store.put("k", b"", replicas=0)),
        (tiffin.InvalidArgument, lambda: store.put("k", b"", replicas=17)),
        (tiffin.InvalidArgument, lambda: store.put("k", b"", on_exists="maybe")),
        (tiffin.InvalidArgument, lambda: store.put("k", b"", soft_pin=-1)),
        (tiffin.InvalidArgument, lambda: store.put("", b"")),
        (tiffin.InvalidArgument, lambda: store.put("k" * ((1 << 20) + 1), b"")),
        (tiffin.InvalidArgument, lambda: store.put("\udc80", b"")),
        (TypeError, lambda: store.get()),
        (TypeError, lambda: store.get(1)),
        (TypeError, lambda: store.get([1])),
        (TypeError, lambda: store.get(bytearray(b"k"))),
        (TypeError, lambda: store.get("k", timeout="soon")),
        (tiffin.InvalidArgument, lambda: store.get("")),
        (tiffin.InvalidArgument, lambda: store.get(["k", ""])),
        (tiffin.InvalidArgument, lambda: store.get("k", timeout=-1)),
        (tiffin.InvalidArgument, lambda: store.get("k", timeout=math.nan)),
        (TypeError, lambda: store.get_into("k")),
        (TypeError, lambda: store.get_into("k", b"read-only")),
        (TypeError, lambda: store.get_into("k", "text")),
        (TypeError, lambda: store.get_into(["k"], bytearray(1))),
        (TypeError, lambda: store.get_into(["k"], "text")),
        (TypeError, lambda: store.get_into({"k": bytearray(1)}, [bytearray(1)])),
        (tiffin.InvalidArgument, lambda: store.get_into(["k"], [])),
        (TypeError, lambda: store.list(1)),
        (TypeError, lambda: store.delete_regex(b"k")),
        (TypeError, lambda: 1 in store),
        (TypeError, lambda: tiffin.Store()),
        (TypeError, lambda: tiffin.View()),
    ]
    for kind, call in calls:
        with pytest.raises(kind):
            call()
    assert store.get("k") == b"1"


def test_exception_of_an_iterator_is_raised(store):
    def keys():
        yield "a"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.get(keys())


def test_errors_have_hints(store):
    for call, hint in [
        (lambda: store.put("k", "text"), "encode"),
        (lambda: store.put("k", 5), "give bytes"),
        (lambda: store.put({"k": None}), "delete"),
        (lambda: store.put("k"), "for many"),
        (lambda: store.put(["k"], b""), "value"),
        (lambda: store.get(7), "list"),
        (lambda: store.get_into("k", b""), "bytearray"),
    ]:
        with pytest.raises(TypeError, match=f"\n\nhint: .*{hint}"):
            call()


def test_timeout_of_zero_times_out(store):
    for call in (lambda: store.put("k", b"", timeout=0), lambda: store.get("k", timeout=0)):
        with pytest.raises(tiffin.Timeout, match="hint: "):
            call()
    assert store.put("k", b"1", timeout=math.inf)
    assert store.get("k", timeout=1e300) == b"1"
    assert store.get("k", timeout=5) == b"1"


def test_stopped_store_causes_a_timeout():
    with helpers.up() as (address, pid):
        store = tiffin.connect(address)
        store.put("k", b"1")
        store.put("m", b"2")
        assert store.delete("m"), "its node has confirmed that, and so has heard of all that was put before"
        helpers.stop(pid)
        with pytest.raises(tiffin.Timeout):
            store.get("l", timeout=0.2)
        with pytest.raises(tiffin.Timeout):
            store.get(["k", "l"], timeout=0.2)
        assert store.get("k", timeout=30) == b"1", "the location is cached, so the master is not asked"
        os.kill(pid, signal.SIGCONT)
        assert not store.exists("l", timeout=30)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises((tiffin.Unreachable, tiffin.Timeout)):
            store.get("l", timeout=1)


def test_failed_connection_names_the_address():
    with helpers.silent_peer() as address:
        pass
    with pytest.raises(tiffin.Unreachable, match=f"{address}(.|\n)*hint: ") as error:
        tiffin.connect(address, timeout=5)
    assert error.value.is_retryable
    with helpers.silent_peer() as address, pytest.raises(tiffin.Timeout):
        tiffin.connect(address, timeout=0.2)
    for nonsense in ("", "nonsense", "host:port", "127.0.0.1:99999999", "unix:"):
        with pytest.raises(tiffin.Error):
            tiffin.connect(nonsense, timeout=5)


def test_token_is_required():
    with helpers.up("--memory", "16MiB", TIFFIN_TOKEN="secret") as (address, _):
        for token in (None, "wrong"):
            with pytest.raises(tiffin.Unauthenticated, match="hint: "):
                tiffin.connect(address, token=token)
        for shared_memory in (True, False):
            with tiffin.connect(address, token="secret", shared_memory=shared_memory) as store:
                store.put("k", b"1")
                assert store.get("k") == b"1"
                assert "secret" not in repr(store)


def test_memory_beyond_the_machine_is_refused():
    for memory in (0, 1 << 62, "9000PB"):
        with pytest.raises(tiffin.Error):
            tiffin.connect(memory=memory)
    for memory in ("1 elephant", -1, ""):
        with pytest.raises(tiffin.InvalidArgument, match="hint: "):
            tiffin.connect(memory=memory)
    for memory in (1.5, True):
        with pytest.raises(TypeError):
            tiffin.connect(memory=memory)
