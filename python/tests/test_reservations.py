"""Space that is reserved ahead of the data: its owner, and how it is freed."""

import asyncio
import gc
import subprocess
import sys
import threading

import numpy
import pytest
import tiffin
import tiffin.aio

import helpers

MIB = 1 << 20


def used(store):
    return store.wait_usage(at_least=0).used


def test_reserved_object_can_be_put_into_a_full_store(small):
    reservation = small.reserve("k", MIB, pin=True, owner="run")
    assert (reservation.key, reservation.nbytes, reservation.is_held) == ("k", MIB, True)
    assert "1048576 bytes for `k`, held" in repr(reservation)
    assert used(small) == MIB
    with pytest.raises(tiffin.OverQuota):
        small.put("n", b"1")
    with pytest.raises(tiffin.OverQuota) as caught:
        small.reserve("n", 1)
    assert caught.value.key == "n" and caught.value.is_retryable
    assert "k" not in small
    array = numpy.arange(MIB // 4, dtype="uint32")
    assert reservation.put(array) is True
    assert small.get("k") == array.tobytes() and small.why("k").pins == ("run",)
    assert not reservation.is_held and "ended" in repr(reservation)


def test_reservation_takes_the_values_of_a_put(store):
    class Tensor:
        """Has DLPack and nothing else."""

        def __dlpack__(self, **options):
            return array.__dlpack__(**options)

        def __dlpack_device__(self):
            return array.__dlpack_device__()

    array = numpy.arange(6, dtype="uint8").reshape(2, 3)
    for value in (array.tobytes(), bytearray(array), memoryview(array), array.T, Tensor(), array):
        with store.reserve("k", "6B" if value is array else 6) as reservation:
            reservation.put(value)
        assert sorted(store.get("k")) == [0, 1, 2, 3, 4, 5]
    with store.reserve("k", 6) as reservation:
        with pytest.raises(TypeError):
            reservation.put("text")
        assert reservation.is_held


def test_wrong_size_is_refused_and_the_reservation_stays(store):
    reservation = store.reserve("k", 3)
    for wrong in (b"", b"12", b"1234"):
        with pytest.raises(tiffin.InvalidArgument, match="exactly 3 bytes"):
            reservation.put(wrong)
    assert reservation.put(b"123") is True
    with pytest.raises(tiffin.InvalidArgument, match="used or released"):
        reservation.put(b"123")
    reservation.release()
    assert store.get("k") == b"123"


@pytest.mark.parametrize("how", ["release", "with", "drop"])
def test_released_space_wakes_waiting_puts(small, how):
    reservation = small.reserve("k", MIB)
    woken = []
    waiter = threading.Thread(target=lambda: woken.append(small.reserve("n", MIB, wait=True)))
    waiter.start()
    helpers.eventually(lambda: small.wait_usage(at_least=0).waiting == 1)
    if how == "release":
        reservation.release()
        reservation.release()
        with pytest.raises(tiffin.InvalidArgument):
            reservation.put(bytes(MIB))
    elif how == "with":
        with pytest.raises(KeyError), reservation:
            raise KeyError
    del reservation
    gc.collect()
    waiter.join()
    assert woken.pop().put(bytes(MIB)) is True


def test_many_in_one_call(small):
    first, second = small.reserve({"a": 1, "b": "2B"})
    assert [it.put(value) for it, value in ((first, b"1"), (second, b"22"))] == [True, True]
    assert small.get(["a", "b"]) == [b"1", b"22"]
    with pytest.raises(tiffin.OverQuota) as caught:
        small.reserve(["c", "huge"], [1, 2 * MIB])
    given, error = caught.value.results
    assert error is caught.value and given.put(b"1") is True


def test_name_is_not_claimed(store):
    store.put("old", b"old")
    for word in ("keep", "error"):
        with pytest.raises(tiffin.Exists) as caught:
            store.reserve("old", 3, on_exists=word)
        assert caught.value.key == "old"
    keeps, raises = store.reserve("k", 1, on_exists="keep"), store.reserve("k", 1, on_exists="error")
    replaces = store.reserve("k", 1)
    store.put("k", b"0")
    assert keeps.put(b"1") is False
    with pytest.raises(tiffin.Exists):
        raises.put(b"2")
    assert store.get("k") == b"0"
    assert replaces.put(b"3") is True and store.get("k") == b"3"
    helpers.eventually(lambda: store.stats().usage.reserved == 0)


def test_bad_arguments(store):
    for arguments in [("k", -1), ("k", "many"), ("k", 1 << 70), ("", 1)]:
        with pytest.raises(tiffin.InvalidArgument):
            store.reserve(*arguments)
    for arguments in [("k",), ("k", None, 3), (3, 3), ("k", [1])]:
        with pytest.raises(TypeError):
            store.reserve(*arguments)
    with pytest.raises(tiffin.Full):
        store.reserve("k", "1TiB")


def test_after_close(cluster):
    with tiffin.connect(cluster, timeout=30) as other:
        before = other.stats().usage.reserved
        store = tiffin.connect(cluster, timeout=30)
        with store.reserve("k", MIB) as reservation:
            assert other.stats().usage.reserved == before + MIB
            store.close()
            assert not reservation.is_held
            with pytest.raises(tiffin.Closed):
                reservation.put(bytes(MIB))
            with pytest.raises(tiffin.Closed):
                reservation.release()
        helpers.eventually(lambda: other.stats().usage.reserved == before)


def test_forked_child_has_no_reservations(store):
    reservation = store.reserve("k", 3)

    def child():
        said = []
        for call in (lambda: reservation.put(b"123"), reservation.release, reservation.__enter__):
            try:
                call()
            except tiffin.Closed:
                said.append("closed")
        return [*said, reservation.is_held, reservation.key, "parent process" in repr(reservation)]

    assert helpers.in_child(child) == ["closed", "closed", "closed", False, "k", True]
    assert reservation.is_held and reservation.put(b"123") is True


def test_space_of_a_killed_process_is_freed(small):
    program = (
        f"import sys, tiffin\nstore = tiffin.connect({small.address!r})\n"
        f"held = store.reserve('k', {MIB})\nprint('ready', flush=True)\nsys.stdin.read()"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(tiffin.Full):
            small.put("n", bytes(MIB))
        process.kill()
    assert small.put("n", bytes(MIB), wait=True) is True


def test_asyncio(cluster):
    async def main():
        async with await tiffin.aio.connect(cluster, timeout=30) as store:
            async with await store.reserve("aio/k", 5) as reservation:
                assert isinstance(reservation, tiffin.aio.AsyncReservation) and reservation.nbytes == 5
                with pytest.raises(tiffin.InvalidArgument):
                    await reservation.put(b"1")
                assert await reservation.put(b"hello") is True
            first, second = await store.reserve({"aio/a": 1, "aio/b": 1})
            async with first:
                assert "tiffin.aio.AsyncReservation" in repr(first)
            await second.release()
            assert not first.is_held and not second.is_held
            return await store.get("aio/k")

    assert asyncio.run(main()) == b"hello"
