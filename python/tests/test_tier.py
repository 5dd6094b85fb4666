"""Stores with disks: objects beyond memory are demoted, read, promoted, and outlive the store."""

import asyncio
import concurrent.futures
import os
import signal
import subprocess
import sys

import pytest
import tiffin
import tiffin.aio

import helpers

MIB = 1 << 20
MEMORY = 16 * MIB
#: More than twice as much as memory holds.
KEYS = [f"k{number}" for number in range(40)]


def value(key):
    return key.encode().ljust(8, b".") * (MIB // 8)


@pytest.fixture
def disk(tmp_path):
    with helpers.disk_folder(tmp_path) as folder:
        yield folder / "disk"


def with_disk(disk, size="256MiB"):
    return tiffin.connect(memory=MEMORY, ssd=f"path={disk},size={size}", timeout=30)


@pytest.fixture
def store(disk):
    with with_disk(disk) as store:
        yield store


def fill(store):
    for key in KEYS:
        store.put(key, value(key), wait=True)


def is_in_memory(store, key):
    disks = {node.name for node in store.stats().nodes if node.is_disk}
    return not disks.issuperset(store.why(key).nodes)


def only_on_disk(store):
    """Keys that are only on the disk, after memory was freed."""
    fill(store)
    demoted = [key for key in KEYS if not is_in_memory(store, key)]
    store.delete([key for key in KEYS if key not in demoted])
    assert len(demoted) >= len(KEYS) - MEMORY // MIB
    return demoted


def test_objects_beyond_memory_are_read_from_the_disk(store):
    fill(store)
    assert all(store.exists(KEYS))
    assert [key for key in KEYS if store.get(key) != value(key)] == []
    buffer = bytearray(MIB)
    assert store.get_into("k0", buffer) == MIB and buffer == value("k0")
    assert store.get("k0", range=(MIB - 8, 8)) == b"k0......"
    with store.view("k1") as view:
        assert bytes(view) == value("k1")
    # A disk reports its usage with its next heartbeat.
    helpers.eventually(lambda: store.stats().disk_usage.objects >= len(KEYS) - MEMORY // MIB)
    stats = store.stats()
    assert stats.usage.capacity == MEMORY < stats.disk_usage.capacity
    assert stats.tier.demoted_bytes >= len(KEYS) * MIB - MEMORY
    assert stats.tier.gets_from_disk > 0 and stats.tier.evicted_undemoted == 0
    assert [node.is_disk for node in stats.nodes].count(True) == 1


def test_reopened_store_has_the_objects_of_its_disk(disk):
    with with_disk(disk) as store:
        store.set_policy(demotion="write-through")
        assert store.policy().demotion == "write-through"
        fill(store)
        helpers.eventually(lambda: store.stats().tier.disk_objects == len(KEYS))
        assert store.delete(["k3", "k4"]) == [True, True]
        store.put("k5", b"newer", wait=True)
        helpers.eventually(lambda: store.stats().tier.demoted_objects > len(KEYS))
    with with_disk(disk) as store:
        assert store.exists(["k3", "k4", "never"]) == [False, False, False]
        assert store.get("k5") == b"newer"
        left = [key for key in KEYS if key not in ("k3", "k4", "k5")]
        assert [key for key in left if store.get(key) != value(key)] == []
        store.clear()
    with with_disk(disk) as store:
        assert store.list() == []


def test_namespace_that_never_goes_to_disk(store):
    store.set_policy(demotion="never")
    (namespace,) = store.stats().namespaces
    assert namespace.demotion == "never"
    for key in KEYS:
        store.put(key, value(key))
    assert store.stats().tier.demoted_objects == 0 and store.exists(KEYS).count(True) <= MEMORY // MIB
    with pytest.raises(tiffin.InvalidArgument, match="write-through"):
        store.set_policy(demotion="sometimes")


def test_prefetch_promotes_to_memory(store):
    demoted = only_on_disk(store)
    prefetch = store.prefetch([*demoted[:8], "absent"])
    assert prefetch.result() == ["done"] * 8 + ["absent"]
    assert prefetch.is_done and prefetch.result()[0] == "done"
    assert prefetch.cancel() is False
    assert all(is_in_memory(store, key) for key in demoted[:8])
    before = store.stats().tier
    assert [store.get(key) == value(key) for key in demoted[:8]] == [True] * 8
    after = store.stats().tier
    assert (after.promoted_objects, after.gets_from_disk) == (8, before.gets_from_disk)
    assert store.prefetch(demoted[0]).result() == "resident"


def test_probe_prefetches_the_leading_run(store):
    demoted = only_on_disk(store)
    keys = [*demoted[:3], "absent", *demoted[3:5]]
    answer = [True] * 3 + [False] + [True] * 2
    assert store.exists(keys) == answer
    assert not any(is_in_memory(store, key) for key in demoted)
    assert store.exists(keys, prefetch="leading") == answer
    # It joins running promotions, and starts none after the gap.
    outcomes = store.prefetch(keys, leading=True).result()
    assert set(outcomes[:3]) <= {"done", "resident"} and outcomes[3:] == ["absent", "skipped", "skipped"]
    assert [is_in_memory(store, key) for key in demoted[:5]] == [True] * 3 + [False] * 2
    assert store.exists(keys, prefetch="all") == answer
    assert set(store.prefetch(demoted[:5]).result()) <= {"done", "resident"}
    assert store.stats().tier.promoted_objects == 5
    with pytest.raises(tiffin.InvalidArgument, match="leading"):
        store.exists(keys, prefetch="some")


def test_prefetch_that_is_cancelled(store):
    demoted = only_on_disk(store)
    prefetch = store.prefetch(demoted[:4])
    if prefetch.cancel():
        with pytest.raises(concurrent.futures.CancelledError):
            prefetch.result()
    assert prefetch.is_done
    # Cancelled promotions may be requested again at once; the others have completed.
    assert set(store.prefetch(demoted[:4]).result()) <= {"done", "resident"}
    assert store.get(demoted[0]) == value(demoted[0])


def test_prefetch_in_an_event_loop(disk):
    async def main():
        options = {"memory": MEMORY, "ssd": [f"path={disk},size=256MiB"], "timeout": 30}
        async with await tiffin.aio.connect(**options) as store:
            for key in KEYS:
                await store.put(key, value(key), wait=True)
            await store.delete(KEYS[20:])
            prefetch = await store.prefetch(KEYS[:4])
            assert set(await prefetch) <= {"done", "resident"} and prefetch.is_done
            assert await prefetch.result() == await prefetch
            assert await prefetch.cancel() is False
            assert await store.exists(KEYS[:4], prefetch="leading") == [True] * 4
            return await store.get("k0")

    assert asyncio.run(main()) == value("k0")


def test_child_does_not_keep_the_disk_of_a_killed_parent(disk):
    program = """
import os, sys, tiffin
store = tiffin.connect(memory="16MiB", ssd=f"path={sys.argv[1]},size=256MiB", timeout=30)
store.set_policy(demotion="write-through")
store.put("k", b"kept")
while not store.stats().tier.demoted_objects:
    pass
child = os.fork()
if child:
    print(child, flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(disk)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    child = int(parent.stdout.readline())
    try:
        with pytest.raises(tiffin.InvalidArgument, match=f"in use by pid {parent.pid}"):
            with_disk(disk)
        parent.kill()
        parent.wait()
        os.kill(child, 0)
        with with_disk(disk) as store:
            assert store.get("k") == b"kept"
    finally:
        os.kill(child, signal.SIGKILL)
        parent.kill()
        parent.communicate()


def test_disk_belongs_to_one_store(disk, store):
    with pytest.raises(tiffin.InvalidArgument, match="in use by pid"):
        with_disk(disk)
    assert store.put("k", b"still works")


@pytest.mark.parametrize(
    ("ssd", "says"),
    [
        ("path={file},size=256MiB", "is a file"),
        ("path={folder}/no/such,size=256MiB", "No such file"),
        ("path={folder}/large,size=1000PiB", "do not fit"),
        ("path={folder}/small,size=1MiB", "at least 64"),
        ("path={folder}/x", "the size is missing"),
        ("{folder}", "has no `=`"),
        ("path={folder}/x,size=1GiB,sice=1", "unknown key `sice`"),
    ],
)
def test_disk_that_cannot_be_used(ssd, says, tmp_path):
    with helpers.disk_folder(tmp_path) as folder:
        file = folder / "file"
        file.write_text("")
        with pytest.raises(tiffin.InvalidArgument, match=says) as raised:
            tiffin.connect(memory=MEMORY, ssd=ssd.format(file=file, folder=folder))
        assert "hint: " in str(raised.value)


def test_disks_belong_to_the_store_in_this_process(cluster):
    with pytest.raises(tiffin.InvalidArgument, match="tiffin node --ssd"):
        tiffin.connect(cluster, ssd="path=/tmp/x,size=1GiB")
