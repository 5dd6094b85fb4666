"""The asyncio twin: the same calls as coroutines, many at once, and cancelled ones."""

import asyncio
import inspect
import os
import signal

import pytest
import tiffin
import tiffin.aio

import helpers

VALUE = bytes(range(256)) * 4096


def go(work, **options):
    """Run `work(store)` on its own loop."""

    async def main():
        usual = {"timeout": 30} if "address" in options else {"memory": "256MiB", "timeout": 30}
        async with tiffin.aio.connect(**usual | options) as store:
            return await work(store)

    return asyncio.run(main())


def test_every_method(cluster):
    async def work(store):
        await store.clear()
        assert await store.put("k", VALUE) is True
        assert await store.put({"a": b"1", "b": b"2"}) == [True, True]
        assert await store.put("a", b"3", on_exists="keep") is False
        assert await store.get("k") == VALUE
        assert await store.get(["a", "absent"], default=None) == [b"1", None]
        buffer = bytearray(len(VALUE))
        assert await store.get_into("k", buffer) == len(VALUE) and buffer == VALUE
        assert await store.get_into({"a": memoryview(buffer)[:1]}) == [1]
        with await store.view("k") as view:
            assert bytes(view) == VALUE
        assert await store.exists(["a", "absent"]) == [True, False]
        assert (await store.info("a")).size == 1
        assert await store.info("absent", default=7) == 7
        assert [info.key for info in await store.list()] == ["a", "b", "k"]
        assert (await store.stats()).usage.objects == 3
        assert len(await store.routes()) == 1
        assert await store.delete("a") is True
        assert await store.delete_prefix("b") == 1
        assert await store.delete_regex("^k$") == 1
        assert await store.clear() == 0
        assert store.namespace == "default" and store.address in repr(store)
        with pytest.raises(tiffin.NotFound):
            await store.get("absent")
        with pytest.raises(TypeError):
            await store.put("k", "text")
        return store

    for where in ({}, {"address": cluster}, {"address": cluster, "shared_memory": False}):
        store = go(work, **where)
        assert store.is_closed


def test_async_store_has_every_blocking_method():
    for name in dir(tiffin.Store):
        if name.startswith("_"):
            continue
        method, twin = getattr(tiffin.Store, name), getattr(tiffin.aio.AsyncStore, name)
        if callable(method):
            assert inspect.iscoroutinefunction(twin) or name in {"lease", "reserve", "scan"}, name
            assert twin.__doc__
            # Doctest of Python 3.12 needs the source of every function.
            assert inspect.unwrap(twin).__code__, name
            assert list(inspect.signature(method).parameters) == list(inspect.signature(twin).parameters), (
                name
            )


def test_connecting_takes_the_same_arguments():
    here, there = inspect.signature(tiffin.connect), inspect.signature(tiffin.aio.connect)
    assert here.parameters == there.parameters


def test_context_managers_need_no_await():
    async def main():
        async with tiffin.aio.connect(memory="64MiB") as store:
            ref = await store.put_sample("s", {"ids": b"abc"})
            async with store.lease(ref) as lease:
                assert bytes((await lease.tensors())["ids"]) == b"abc"
            assert lease.is_released
            async with store.reserve("k", 5) as reservation:
                assert await reservation.put(b"hello")
            async with await store.reserve("l", 5) as reservation:
                pass
            assert not reservation.is_held
            several = await asyncio.create_task(store.reserve({"m": 1, "n": 2}))
            assert [it.nbytes for it in several] == [1, 2]
            with pytest.raises(tiffin.NotFound):
                async with store.lease("absent"):
                    pass
        assert store.is_closed
        with pytest.raises(ZeroDivisionError):
            async with tiffin.aio.connect(memory="64MiB") as store:
                raise ZeroDivisionError
        assert store.is_closed
        opened = await asyncio.wait_for(tiffin.aio.connect(memory="64MiB"), 30)
        await opened.close()

    asyncio.run(main())


def test_iteration_walks_through_pages():
    async def work(store):
        keys = [f"{part}/{number}" for part in "ab" for number in range(1500)]
        await store.put(dict.fromkeys(keys, b""))
        assert sorted([key async for key in store]) == sorted(keys)
        found = [info.key async for info in store.scan("b/")]
        assert sorted(found) == sorted(key for key in keys if key.startswith("b/"))
        with pytest.raises(tiffin.Timeout):
            async for _ in store.scan(timeout=0):
                pass

    go(work)


def test_many_at_once():
    async def work(store):
        keys = [f"k{index}" for index in range(500)]
        await asyncio.gather(*(store.put(key, key.encode()) for key in keys))
        values = await asyncio.gather(*(store.get(key) for key in keys))
        assert values == [key.encode() for key in keys]

    go(work)


def test_event_loop_keeps_running():
    async def work(store):
        turns = 0

        async def turn():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(turn())
        await asyncio.sleep(0)
        before = turns
        await store.put("k", bytes(64 << 20))
        assert turns > before
        other.cancel()

    go(work)


def test_errors_arrive_as_exceptions():
    async def work(store):
        with pytest.raises(tiffin.Timeout):
            await store.get("k", timeout=0)
        await store.close()
        with pytest.raises(tiffin.Closed):
            await store.get("k")
        with helpers.silent_peer() as address, pytest.raises(tiffin.Timeout):
            await tiffin.aio.connect(address, timeout=0.1)

    go(work)


def test_call_needs_a_loop(store):
    async def connect():
        return await tiffin.aio.connect(store.address)

    orphan = asyncio.run(connect())
    with pytest.raises(RuntimeError, match="loop"):
        orphan.get("k").send(None)

    async def elsewhere():
        await orphan.put("k", b"1")
        return await orphan.get("k")

    assert asyncio.run(elsewhere()) == b"1"


def test_waiting_can_be_cancelled():
    async def work(store):
        helpers.stop(pid)
        buffer = bytearray(len(VALUE))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(store.get_into("k", buffer), 0.1)
        task = asyncio.create_task(store.get("k"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        os.kill(pid, signal.SIGCONT)
        helpers.eventually(lambda: is_free(buffer))
        assert await store.get("k") == VALUE

    with helpers.up() as (address, pid):
        with tiffin.connect(address) as store:
            store.put("k", VALUE)
        go(work, address=address)


def is_free(buffer):
    """Whether the memory is not in use: only then can it grow."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    return True


@pytest.mark.parametrize("shared_memory", [True, False])
def test_cancelled_calls_keep_their_memory_while_it_is_used(cluster, shared_memory):
    async def work(store):
        await store.put("k", VALUE * 8)
        for turn in range(60):
            source, target = bytearray(VALUE * 8), bytearray(len(VALUE) * 8)
            tasks = [
                asyncio.create_task(store.put("k", source)),
                asyncio.create_task(store.get_into("k", target)),
                asyncio.create_task(store.get("k")),
            ]
            for _ in range(turn % 20):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            del source
            helpers.eventually(lambda target=target: is_free(target))
        assert await store.get("k") == VALUE * 8
        assert [info.key for info in await store.list()] == ["k"]

    go(work, address=cluster, shared_memory=shared_memory)


def test_memory_of_cancelled_puts_is_freed():
    async def work(store):
        for turn in range(50):
            task = asyncio.create_task(store.put(f"k{turn}", bytes(8 << 20)))
            for _ in range(turn % 10):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        # A put that was cancelled too late takes effect, possibly after the older object was removed.
        for _ in range(3000):
            await store.clear()
            usage = (await store.stats()).usage
            if not usage.reserved and usage.free == usage.capacity:
                break
            await asyncio.sleep(0.01)
        assert (usage.reserved, usage.free) == (0, usage.capacity)

    go(work, memory="64MiB")


def test_loop_that_ends_first_leaves_nothing():
    async def work(store):
        return [asyncio.ensure_future(store.get("k")) for _ in range(20)]

    for _ in range(5):
        assert len(go(work)) == 20


def test_two_loops_in_two_threads(store):
    async def work(number):
        async with tiffin.aio.connect(store.address) as mine:
            for turn in range(50):
                await mine.put(f"{number}/{turn}", VALUE)
                assert await mine.get(f"{number}/{turn}") == VALUE

    async def both():
        await asyncio.gather(*(asyncio.to_thread(asyncio.run, work(number)) for number in range(2)))

    asyncio.run(both())
