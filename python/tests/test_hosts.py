"""The transport of the bytes: shared memory inside a host, TCP between hosts, and the proof of it."""

import json

import pytest
import tiffin

import helpers

SIZE = 8 << 20
OTHER = """
import json, tiffin
address, shared_memory, size = arguments
with tiffin.connect(address, shared_memory=shared_memory, timeout=30) as store:
    value = store.get("from one")
    assert value == bytes(range(256)) * (size // 256)
    store.put("from the other", value[::-1])
    buffer = bytearray(size)
    store.get_into("from one", buffer)
    assert buffer == value
    with store.view("from one") as view:
        assert bytes(view) == value
        is_borrowed = view.is_borrowed
    print(json.dumps([store.stats().traffic, [route.way for route in store.routes()], is_borrowed]))
"""


def exchange(store, shared_memory=True):
    """The traffic of another process that has read from this store and written into it."""
    value = bytes(range(256)) * (SIZE // 256)
    store.put("from one", value)
    traffic, ways, is_borrowed = json.loads(helpers.run(OTHER, store.address, shared_memory, SIZE))
    assert store.get("from the other") == value[::-1]
    return tiffin.Traffic(*traffic), ways, is_borrowed


def test_two_processes_of_one_host_share_memory(store):
    traffic, ways, is_borrowed = exchange(store)
    assert traffic == tiffin.Traffic(0, 0, 2 * SIZE, SIZE, 0, 0)
    assert ways == ["shared memory"] and is_borrowed
    assert store.stats().traffic == tiffin.Traffic(SIZE, SIZE, 0, 0, 0, 0)
    assert [route.way for route in store.routes()] == ["local"]


def test_two_clients_of_one_daemon_share_its_memory(cluster):
    with tiffin.connect(cluster) as store:
        traffic, ways, _ = exchange(store)
        assert traffic == tiffin.Traffic(0, 0, 2 * SIZE, SIZE, 0, 0)
        assert ways == ["shared memory"]
        assert store.stats().traffic == tiffin.Traffic(0, 0, SIZE, SIZE, 0, 0)


def test_without_shared_memory_every_byte_goes_through_a_socket(cluster):
    with tiffin.connect(cluster, shared_memory=False) as store:
        traffic, ways, is_borrowed = exchange(store, shared_memory=False)
        # A view over TCP is a get.
        assert traffic == tiffin.Traffic(0, 0, 0, 0, 3 * SIZE, SIZE)
        assert ways == ["tcp"] and not is_borrowed
        assert store.stats().traffic == tiffin.Traffic(0, 0, 0, 0, SIZE, SIZE)
        assert store.routes()[0].why


@pytest.mark.parametrize("size", [0, 1, 65_537, 32 << 20])
def test_any_size_over_tcp(cluster, size):
    value = bytes(range(256)) * (size // 256) + bytes(size % 256)
    with tiffin.connect(cluster, shared_memory=False, timeout=60) as store:
        store.put({"a": value, "b": value})
        assert store.get(["a", "b"]) == [value, value]
        buffer = bytearray(size)
        assert store.get_into("a", buffer) == size and buffer == value


def test_copies_on_several_nodes_survive_the_death_of_one():
    with helpers.server("master", "--listen", "127.0.0.1:0", "--http", "off", "--json") as master:
        address = json.loads(master.stdout.readline())["master"]
        # Like on another host: the master has no proof that their processes have ended.
        node = ("node", "--master", address, "--memory", "32MiB", "--shared-memory", "off", "--json")
        with helpers.server(*node) as first, helpers.server(*node) as second:
            first.stdout.readline(), second.stdout.readline()
            with tiffin.connect(address, timeout=30) as store:
                helpers.eventually(lambda: sum(node.is_alive for node in store.stats().nodes) == 2)
                store.put("k", b"hello" * 1000, replicas=2)
                assert store.info("k").replicas == 2
                assert store.put("other", b"", replicas=16)
                first.kill()
                assert store.get("k") == b"hello" * 1000
                second.kill()
                helpers.eventually(lambda: not any(node.is_alive for node in store.stats().nodes))
                with pytest.raises(tiffin.NodeDown, match="hint: ") as error:
                    store.get("k")
                assert error.value.key == "k" and len(error.value.nodes) == 2
