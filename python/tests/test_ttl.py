"""A TTL per object: it expires, unless it is pinned; views of it stay."""

import asyncio
import math

import pytest
import tiffin
import tiffin.aio

import helpers


def test_object_expires(store):
    assert store.put("a", b"1", ttl=0.05) is True
    assert store.put({"b": b"2", "c": b"3"}, ttl=0.05) == [True, True]
    store.put("stays", b"4")
    helpers.eventually(lambda: not any(store.exists(["a", "b", "c"])))
    assert store.get("a", default=None) is None
    assert [info.key for info in store.list()] == ["stays"]
    why = store.why("a")
    assert (why.state, why.cause, why.by) == ("gone", "expired", "")
    assert "expired: its TTL was over" in str(why)
    helpers.eventually(lambda: store.stats().usage.objects == 1)
    stats = store.stats()
    assert (stats.expired_objects, stats.expired_bytes, stats.expiring_objects) == (3, 3, 0)
    assert "3 expired (3 B)" in str(stats)


def test_remaining_time_is_told(store):
    store.put("a", b"1", ttl=3600)
    store.put("b", b"2")
    for info in (store.info("a"), store.list()[0]):
        assert 3000 < info.expires_in <= 3600
    assert store.info("b").expires_in is None
    why = store.why("a")
    assert why.ttl == 3600 and 3000 < why.expires_in <= 3600
    assert "  ttl      3600 s, of which " in str(why)
    assert store.stats().expiring_objects == 1


def test_put_that_replaces_has_its_own_ttl(store):
    store.put("a", b"1", ttl=3600)
    store.put("a", b"2", ttl=7200)
    assert store.why("a").ttl == 7200
    assert store.put("a", b"3", ttl=1, on_exists="keep") is False
    assert store.why("a").ttl == 7200
    store.put("a", b"3")
    assert store.why("a").ttl is None
    store["a"] = b"4"
    assert store.info("a").expires_in is None


def test_pinned_object_expires_with_its_last_pin(store):
    store.put("a", b"1", ttl=0.001, pin=True, owner="run")
    helpers.eventually(lambda: store.why("a").expires_in == 0)
    assert store.get("a") == b"1"
    assert "ends with its last pin" in str(store.why("a"))
    assert store.drop_pins("run") == 1
    helpers.eventually(lambda: not store.exists("a"))


def test_view_outlives_the_object(store):
    store.put("a", bytes(range(256)) * 16, ttl=0.2)
    try:
        view = store.view("a")
    except tiffin.NotFound:  # a machine that was stopped meanwhile
        return
    with view:
        helpers.eventually(lambda: not store.exists("a"))
        assert bytes(view) == bytes(range(256)) * 16
    helpers.eventually(lambda: store.stats().usage.in_view == 0)


def test_reservation_has_a_ttl(store):
    with store.reserve("a", 1, ttl=3600) as reservation:
        reservation.put(b"1")
    assert store.why("a").ttl == 3600


@pytest.mark.parametrize("ttl", [0, -1, 0.0001, math.nan, math.inf, 11 * 365 * 86400.0])
def test_invalid_ttls_are_refused(store, ttl):
    with pytest.raises(tiffin.InvalidArgument, match=r"ttl=.*\n\nhint: "):
        store.put("a", b"1", ttl=ttl)
    assert not store.exists("a")


def test_ttl_must_be_a_number(store):
    with pytest.raises(TypeError, match="ttl"):
        store.put("a", b"1", ttl="30s")


def test_async_put_has_a_ttl():
    async def main():
        async with await tiffin.aio.connect(memory="64MiB") as store:
            await store.put("a", b"1", ttl=3600)
            return (await store.why("a")).ttl

    assert asyncio.run(main()) == 3600
