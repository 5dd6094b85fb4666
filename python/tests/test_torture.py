"""Threads and processes that read, while others delete, replace, evict and kill: never a wrong byte."""

import contextlib
import os
import random
import signal
import threading
import zlib

import pytest
import tiffin

import helpers

KEYS = 8
SIZES = (100, 5_000, 300_000)
READS = 400
#: Errors that a reader may get instead of bytes.
GONE = (tiffin.NotFound, tiffin.Contended, tiffin.OutOfRange, tiffin.Superseded, tiffin.Consumed)


def value(chance, name):
    """Self-describing bytes: a header with key and checksum, followed by a pattern."""
    body = chance.randbytes(16) * (chance.choice(SIZES) // 16)
    head = f"{name}:{zlib.crc32(body)}:{len(body)}".encode().ljust(64)
    return head + body


def check(name, data):
    """Whether these are all the bytes of one value of that key."""
    head, body = bytes(data[:64]).decode().split(":"), bytes(data[64:])
    assert head[0] == name and int(head[2]) == len(body) and int(head[1]) == zlib.crc32(body)


def read(store, chance, count):
    """Read in every form, and count the reads by outcome."""
    done = lost = 0
    buffer = bytearray(64 + max(SIZES))
    for _ in range(count):
        name = f"k{chance.randrange(KEYS)}"
        how = chance.randrange(5)
        try:
            if how == 0:
                check(name, store.get(name))
            elif how == 1:
                check(name, buffer[: store.get_into(name, buffer)])
            elif how == 2:
                with store.view(name) as view:
                    check(name, view.__bytes__())
                    check(name, memoryview(view))
            elif how == 3:
                assert store.get(name, range=(0, len(name) + 1)) == f"{name}:".encode()
            else:
                with store.lease(f"s{chance.randrange(KEYS)}") as lease:
                    tensors = lease.tensors(copy=chance.random() < 0.5)
                    check(lease.id, bytes(tensors["a"]))
                    check(lease.id, bytes(tensors["b"]))
            done += 1
        except GONE:
            lost += 1
    return done, lost


def write(store, chance, ended):
    """Put, replace, delete, abort and acknowledge, until stopped."""
    while not ended.is_set():
        # Objects in view use memory, too.
        with contextlib.suppress(tiffin.Full):
            change(store, chance)


def change(store, chance):
    name, sample = f"k{chance.randrange(KEYS)}", f"s{chance.randrange(KEYS)}"
    if chance.random() < 0.3:
        store.delete(name, force=True)
    else:
        store.put(name, value(chance, name))
    if chance.random() < 0.2:
        # A large object, for which others must be evicted.
        store.put("large", bytes(2 << 20))
    ref = store.put_sample(sample, {"a": value(chance, sample), "b": value(chance, sample)})
    match chance.randrange(4):
        case 0:
            store.ack(ref)
        case 1:
            store.abort(ref)
        case 2:
            store.delete(sample)


@pytest.mark.parametrize("shared_memory", [True, False], ids=["shared memory", "tcp"])
def test_readers_never_get_wrong_bytes(shared_memory):
    with (
        helpers.up("--memory", "8MiB") as (address, _),
        tiffin.connect(address, shared_memory=shared_memory, timeout=60) as store,
    ):
        ended = threading.Event()
        failures = []

        def attempt(work, *arguments):
            try:
                work(*arguments)
            except BaseException as error:
                failures.append(error)

        writers = [
            threading.Thread(target=attempt, args=(write, store, random.Random(seed), ended))
            for seed in range(2)
        ]
        for writer in writers:
            writer.start()
        counts = []
        try:
            readers = [
                threading.Thread(
                    target=attempt,
                    args=(lambda seed: counts.append(read(store, random.Random(seed), READS)), seed),
                )
                for seed in range(10, 12)
            ]
            for reader in readers:
                reader.start()
            # Readers in their own processes, one of which is killed.
            doomed = os.fork()
            if doomed == 0:
                try:
                    views = [store.view("k0", default=None)]
                    while True:
                        read(store, random.Random(99), READS)
                        views.append(store.view("k1", default=None))
                finally:
                    os._exit(1)
            counts.append(helpers.in_child(lambda: read(store, random.Random(7), READS)))
            os.kill(doomed, signal.SIGKILL)
            os.waitpid(doomed, 0)
            for reader in readers:
                reader.join()
        finally:
            ended.set()
            for writer in writers:
                writer.join()
        assert failures == []
        assert sum(done for done, _ in counts) > 0 and sum(map(sum, counts)) == 3 * READS
        # At rest, the objects use exactly their memory, and all of it is freed.
        helpers.eventually(lambda: store.stats().usage.in_view == 0)
        helpers.eventually(lambda: store.stats().usage.reserved == 0)
        store.clear(force=True)
        usage = store.stats().usage
        assert (usage.free, usage.objects) == (usage.capacity, 0)
