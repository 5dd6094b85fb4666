"""Lifetimes: pins by owner, limits, waiting for space, why, and losses at closing."""

import asyncio
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings

import pytest
import tiffin
import tiffin.aio

import helpers

MIB = 1 << 20


def keys(listed):
    return [info.key for info in listed]


# Pins.


def test_pins_belong_to_owners(store):
    store.put({"a": b"1", "b": b"2"}, pin=True, owner="run-1")
    store.put("c", b"3")
    assert store.pin(["b", "c"], "run-2") is None
    store.pin("c", "run-2")
    assert keys(store.list(pinned_by="run-1")) == ["a", "b"]
    assert keys(store.list("b", pinned_by="run-2")) == ["b"]
    assert set(store.why("b").pins) == {"run-1", "run-2"}
    assert store.unpin("b", "run-1") is None
    store.unpin("b", "run-1")
    assert store.why("b").pins == ("run-2",)
    assert [store.drop_pins("run-2"), store.drop_pins("run-2"), store.drop_pins("never")] == [2, 0, 0]
    assert store.list(pinned_by="run-2") == [] and len(store.list()) == 3


def test_pin_without_owner_has_an_empty_owner(store):
    store.put("a", b"1", pin=True)
    assert keys(store.list(pinned_by="")) == ["a"] and store.why("a").pins == ("",)
    store.unpin("a")
    assert store.list(pinned_by="") == []


def test_bad_pins(store):
    with pytest.raises(tiffin.NotFound) as caught:
        store.pin("absent", "run")
    assert caught.value.key == "absent"
    store.put("a", b"1")
    with pytest.raises(tiffin.NotFound) as caught:
        store.pin(["a", "absent"], "run")
    assert caught.value.results[0] is None and store.why("a").pins == ("run",)
    with pytest.raises(tiffin.InvalidArgument, match="pin=True"):
        store.put("b", b"1", owner="run")
    with pytest.raises(tiffin.InvalidArgument):
        store.pin("a", "x" * 10_000)


# Limits, and waiting for space.


def test_quota_is_a_typed_answer(small):
    small.put("a", bytes(900_000), pin=True)
    with pytest.raises(tiffin.OverQuota) as caught:
        small.put("b", bytes(900_000))
    error = caught.value
    assert isinstance(error, tiffin.Full) and error.is_retryable and error.key == "b"
    assert error.quota == MIB and 900_000 <= error.used <= MIB
    (namespace,) = small.stats().namespaces
    assert namespace.quota == MIB and namespace.used == error.used
    small.set_policy(quota=None)
    assert small.put("b", bytes(900_000)) is True


def test_put_waits_for_space(small):
    small.put("a", bytes(900_000), pin=True)
    put = threading.Thread(target=lambda: small.put("b", bytes(900_000), wait=True, timeout=60))
    put.start()
    helpers.eventually(lambda: small.stats().namespaces[0].waiting == 1)
    assert small.delete("a") is True
    put.join(60)
    assert not put.is_alive() and keys(small.list()) == ["b"]


def test_put_that_times_out_names_the_reason(small):
    small.put("a", bytes(900_000), pin=True)
    with pytest.raises(tiffin.OverQuota):
        small.put("b", bytes(900_000), wait=True, timeout=0.1)
    with pytest.raises(tiffin.OverQuota):
        small.put_sample("s", {"x": bytes(900_000)}, wait=True, timeout=0.1)


def test_usage_can_be_awaited(store):
    assert store.wait_usage(at_most="1MiB").used == 0
    seen = []
    wait = threading.Thread(target=lambda: seen.append(store.wait_usage(at_least=MIB, timeout=60)))
    wait.start()
    store.put("a", bytes(2 * MIB))
    wait.join(60)
    assert seen[0].used >= MIB
    with pytest.raises(tiffin.Timeout):
        store.wait_usage(at_most=0, timeout=0.1)


@pytest.mark.parametrize("marks", [{}, {"at_most": 1, "at_least": 1}, {"at_most": -1}, {"at_most": "much"}])
def test_bad_watermarks(store, marks):
    with pytest.raises(tiffin.InvalidArgument):
        store.wait_usage(**marks)


def test_bad_limits(store):
    for limits in ({"quota": -1}, {"quota": "much"}, {"quota": 1 << 80}):
        with pytest.raises(tiffin.InvalidArgument):
            store.set_policy(**limits)


@pytest.mark.parametrize("seconds", [-1, float("nan"), 0, 0.0001, 1e30, math.inf, 10**400])
def test_bad_times_name_their_argument(store, seconds):
    with pytest.raises(tiffin.InvalidArgument, match="max_hold=") as caught:
        store.set_policy(max_hold=seconds)
    assert "timeout" not in str(caught.value) and "\n\nhint: " in str(caught.value)
    assert store.policy().max_hold is None
    if not seconds >= 0:
        with pytest.raises(tiffin.InvalidArgument, match=r"soft_pin=.*\n\nhint: .*soft_pin=60"):
            store.put("k", b"1", soft_pin=seconds)


def test_put_larger_than_the_quota_does_not_wait(small):
    with pytest.raises(tiffin.OverQuota, match=r"`b` \(2.0 MiB\) exceeds the quota .* 1.0 MiB") as caught:
        small.put("b", bytes(2 * MIB), wait=True, timeout=600)
    error = caught.value
    assert (error.size, error.quota, error.is_retryable) == (2 * MIB, MIB, False)
    assert "raise the quota" in str(error)


def test_sample_without_lease_is_dropped_after_max_hold(store):
    store.set_policy(max_hold=0.05)
    store.put_sample("s", {"x": b"1"})
    helpers.eventually(lambda: store.why("s").state == "gone")
    assert store.why("s").cause == "held too long" and "no client leased it" in str(store.why("s"))


def test_limits_can_be_read(store):
    assert store.policy() == tiffin.Policy(quota=None, max_hold=None)
    store.set_policy(quota="1MiB", max_hold=1.5)
    assert store.policy() == (MIB, 1.5, "on-pressure", None)
    with tiffin.connect(store.address, namespace="other") as other:
        assert other.policy() == (None, None, "on-pressure", None)
    assert store.wait_usage(at_least=0).max_hold == 1.5


def test_only_named_limits_change(store):
    store.set_policy(quota="1MiB", demotion="never")
    store.set_policy(max_hold=60)
    assert store.policy() == (MIB, 60.0, "never", None)
    store.set_policy(quota="2MiB")
    assert store.policy() == (2 * MIB, 60.0, "never", None)
    store.set_policy()
    assert store.policy() == (2 * MIB, 60.0, "never", None)
    store.set_policy(quota=None)
    assert store.policy() == (None, 60.0, "never", None)
    store.set_policy(max_hold=None, demotion=None)
    assert store.policy() == (None, None, "on-pressure", None)


def test_minimum_of_memory_is_left_to_its_namespace(store):
    store.set_policy(guaranteed="1MiB")
    assert store.policy().guaranteed == MIB
    assert store.wait_usage(at_least=0).guaranteed == MIB
    with pytest.raises(tiffin.Error, match="the nodes have"):
        store.set_policy(guaranteed="1TiB")
    store.set_policy(guaranteed=None)
    assert store.policy().guaranteed is None


def test_quota_of_zero_admits_nothing(store):
    store.set_policy(quota=0)
    for put in (lambda: store.put("k", b"1"), lambda: store.put_sample("s", {"x": b"1"})):
        with pytest.raises(tiffin.OverQuota) as caught:
            put()
        assert (caught.value.quota, caught.value.used) == (0, 0)
    with pytest.raises(tiffin.OverQuota):
        store.put("k", b"1", wait=True, timeout=0.05)
    assert store.stats().usage.reserved == 0


def test_deadline_in_the_past(store):
    store.put("k", b"1")
    for call in (
        lambda: store.get("k", timeout=0),
        lambda: store.put("l", b"1", timeout=0),
        lambda: store.lease("k", timeout=0),
        lambda: store.wait_usage(at_most=0, timeout=0),
    ):
        with pytest.raises(tiffin.Timeout):
            call()
    assert store.stats().usage.reserved == 0


def test_regular_expression_that_explodes(store):
    store.put("a" * 64, b"1")
    assert store.delete_regex("(a*)*(a|aa)*(b|a+)*c$") == 0
    for pattern in ("(", "(a{1000}){1000}{1000}", "(?=a)"):
        with pytest.raises((tiffin.InvalidArgument, tiffin.Refused)):
            store.delete_regex(pattern)
    assert len(store.list()) == 1


# Closing.


def test_closing_reports_lost_objects(caplog):
    with tiffin.connect(memory="64MiB", timeout=30) as store:
        assert store.losses() == tiffin.Losses()
        store.put({"plain": b"12", "pinned": b"345"})
        store.pin("pinned", "run")
        store.put_sample("sample", {"x": b"1"})
        losses = store.losses()
        assert (losses.objects, losses.pinned, losses.unconsumed, losses.elsewhere) == (3, 1, 1, 0)
        assert losses.names == ("pinned", "sample") and losses.size > 5
        with pytest.raises(tiffin.WouldLose, match="`pinned`, `sample`") as caught:
            store.close(on_loss="error")
        assert caught.value.losses == losses and not store.is_closed
        assert store.get("plain") == b"12" and caplog.records == []
        with pytest.raises(tiffin.InvalidArgument):
            store.close(on_loss="panic")
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("tiffin", "WARNING")
    assert "3 objects" in record.getMessage() and "1 pinned and 1 unconsumed" in record.getMessage()


def test_closing_without_pins_or_samples_is_silent(caplog):
    with tiffin.connect(memory="64MiB") as store:
        store.put("plain", b"1")
    with tiffin.connect(memory="64MiB") as store:
        store.put("pinned", b"1", pin=True)
        store.close(on_loss="ignore")
    with tiffin.connect(memory="64MiB") as store:
        store.put("pinned", b"1", pin=True)
        store.delete("pinned")
        store.close(on_loss="error")
    assert caplog.records == []


def test_object_with_another_copy_is_not_lost(caplog):
    """A node that joined the store in this process holds the second copies."""
    with tiffin.connect(memory="64MiB", timeout=30) as store:
        with helpers.server("node", "--master", store.address, "--memory", "64MiB", "--json") as node:
            node.stdout.readline()
            store.put("two copies", b"1", pin=True, replicas=2)
            store.put("one copy", b"1", pin=True)
            here = store.losses()
            assert (
                here.elsewhere == 1 and here.objects + here.elsewhere <= 2 and "two copies" not in here.names
            )
        helpers.eventually(lambda: store.losses().elsewhere == 0)
        store.close(on_loss="ignore")
    with tiffin.connect(memory="64MiB") as store, tiffin.connect(store.address) as guest:
        guest.put("k", b"1", pin=True)
        assert guest.losses().objects == 0 and store.losses().objects == 1
        store.delete("k")
    assert caplog.records == []


def test_stopped_server_reports_lost_objects(tmp_path):
    command = [sys.executable, "-m", "tiffin", "up", "--listen", "127.0.0.1:0", "--http", "off"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"XDG_STATE_HOME": str(tmp_path)},
    )
    lines = iter(process.stdout.readline, "")
    address = next(line for line in lines if line.startswith("  master")).split()[1]
    with tiffin.connect(address) as store:
        store.put("wanted", b"123", pin=True)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "1 object (3 B) has its only copy here, among them 1 pinned and 0 unconsumed: `wanted`" in said


# Puts after a removal that a node could not confirm.


def test_put_warns_of_nodes_that_could_not_confirm(recwarn):
    with tiffin.connect(memory="64MiB", timeout=30) as store:
        # The master would withdraw replaced objects itself in memory that it can map.
        node = ("node", "--master", store.address, "--memory", "64MiB", "--name", "other", "--json")
        with helpers.server(*node, "--shared-memory", "off") as process:
            process.stdout.readline()
            sample = {"t": b"1"}
            for key in "abc":
                store.put(key, b"old", replicas=2)
                store.put_sample(key + "s", sample, replicas=2)
                assert store.info(key).replicas == 2
            reservation = store.reserve("c", 3)
            assert list(recwarn) == []
            helpers.stop(process.pid)
            with pytest.warns(tiffin.UnconfirmedWarning) as caught:
                assert store.put("a", b"new", timeout=2) is True
            warning = caught.pop(tiffin.UnconfirmedWarning)
            assert (warning.message.keys, warning.message.nodes) == (("a",), ("other",))
            assert "`other`" in str(warning.message) and warning.filename == __file__
            assert store.get("a") == b"new"
            with pytest.warns(tiffin.UnconfirmedWarning) as caught:
                assert store.put_sample("as", sample, timeout=2).is_replacement
            assert caught.pop(tiffin.UnconfirmedWarning).message.keys == ("as",)
            with pytest.warns(tiffin.UnconfirmedWarning):
                assert reservation.put(b"new", timeout=2) is True
            # A filter turns the warning into an error; the value is stored in that case, too.
            with warnings.catch_warnings():
                warnings.simplefilter("error", tiffin.UnconfirmedWarning)
                with pytest.raises(tiffin.UnconfirmedWarning):
                    store.put("b", b"new", timeout=2)
            assert store.get("b") == b"new"


# Holders of memory.


def test_leak_names_its_holder(cluster):
    holders = lambda store: store.stats().nodes[0].holders
    with tiffin.connect(cluster, timeout=30) as store, tiffin.connect(cluster, timeout=30) as other:
        store.put("k", bytes(100_000))
        view = other.view("k")
        assert view.is_borrowed and holders(store) == ()
        (viewer,) = store.why("k").viewers
        store.delete("k")
        helpers.eventually(lambda: holders(store))
        (holder,) = holders(store)
        assert (holder.kept, holder.who, holder.objects) == ("in view", viewer, 1) and holder.size >= 100_000
        view.release()
        helpers.eventually(lambda: not holders(store) and store.stats().usage.in_view == 0)
        ref = store.put_sample("s", {"t": b"123"})
        with other.lease(ref):
            (namespace,) = store.stats().namespaces
            (holder,) = namespace.holders
            assert (holder.kept, holder.objects, holder.size) == ("leased", 1, ref.size)
        store.ack(ref)


# Why.


def test_why(store):
    store.put({"a": b"123", "b": b""}, pin=True, owner="run\x1b")
    store.delete("b")
    here, gone, unknown = store.why(["a", "b", "c"])
    assert [it.state for it in (here, gone, unknown)] == ["here", "gone", "unknown"]
    assert (here.size, here.pins, here.generation) == (3, ("run\x1b",), store.info("a").generation)
    assert "`a` exists" in str(here) and "`run\\x1b`" in str(here) and "\x1b" not in str(here)
    assert gone.cause == "deleted" and gone.ago >= 0 and "was removed" in str(gone)
    assert str(unknown).startswith("`c` is unknown")
    with store.view("a"):
        seen = store.why("a")
        assert (seen.views, seen.viewers_more, seen.sends) == (1, 0, 0) and len(seen.viewers) == 1
        assert f"1 open: `{seen.viewers[0]}`" in str(seen)
        assert str(os.getpid()) in seen.viewers[0]
    store.put("a", b"")
    assert store.why("a").pins == ()
    assert pickle.loads(pickle.dumps(here)) == here


#: Keys as given, and as shown.
SHOWN = {
    "naïve/キー": "naïve/キー",
    "é\n\x1b[31m": r"é\n\x1b[31m",
    "naïve".encode(): "naïve",
    b"a\xff\x00b": r"a\xff\x00b",
    "k" * 121: "k" * 120 + "… (121 bytes)",
}


@pytest.mark.parametrize("key", SHOWN)
def test_keys_are_shown_as_text(store, key):
    shown = f"`{SHOWN[key]}`"
    with pytest.raises(tiffin.NotFound) as raised:
        store.get(key)
    assert str(raised.value).startswith(f"{shown} does not exist")
    store.put_sample(key, {"x": b"12"})
    with store.lease(key) as lease:
        assert f"tiffin.Lease of {shown}, held" in repr(lease)
    with store.reserve(key, 1) as reservation:
        assert f"tiffin.Reservation of 1 byte for {shown}, held" in repr(reservation)
    prefetch = store.prefetch(key)
    prefetch.result()
    assert repr(prefetch) == f"<tiffin.Prefetch of {shown}, done>"
    if len(key) < 100:
        assert str(store.why(key)).startswith(f"{shown} exists: generation ")
    store.delete(key)
    if len(key) < 100:
        assert str(store.why(key)).startswith(f"{shown} is gone: generation ")
    results = [*store.list(), *store.stats(), store.losses(), store.why(key)]
    assert not [result for result in results if "\x1b" in repr(result) or "\n" in repr(result)]


def test_results_show_sizes_with_units(store):
    for nbytes, shown in [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), ((1 << 20) - 1, "1.0 MiB")]:
        store.put("k", bytes(nbytes))
        assert f", {shown}\n" in str(store.why("k"))
        with store.view("k") as view:
            assert repr(view).startswith(f"<tiffin.View of {nbytes} bytes, ")
    why = store.why("k")._replace(disk_bytes_max=20 << 20)
    assert "the maximum is 20.0 MiB;" in str(why)
    assert "2 keys" in repr(store.prefetch(["k", "l"]))


def test_same_for_asyncio():
    async def main():
        async with await tiffin.aio.connect(memory="64MiB", timeout=30) as store:
            await store.put("a", b"1", pin=True, owner="run", wait=True)
            await store.pin("a", "other")
            await store.unpin("a", "other")
            assert keys(await store.list(pinned_by="run")) == ["a"]
            assert (await store.why("a")).pins == ("run",)
            assert await store.drop_pins("run") == 1
            await store.set_policy(quota="32MiB")
            assert (await store.wait_usage(at_least=1)).quota == 32 * MIB
            ref = await store.put_sample("s", {"x": b"abc"}, consume=["g"])
            async with await store.lease(ref, "g") as lease:
                assert (lease.id, lease.generation) == (ref.id, ref.generation)
                assert lease.manifest.tensors[0].name == "x" and "tiffin.aio.AsyncLease" in repr(lease)
                assert bytes((await lease.tensors())["x"]) == b"abc"
                assert await store.ack([lease], "g") == ["freed"]
            assert lease.is_released

    asyncio.run(main())
