"""A master that restarts before its nodes report: calls that depend on a node are `Unavailable` meanwhile."""

import asyncio
import contextlib
import signal
import uuid

import pytest
import tiffin
import tiffin.aio

import helpers


def start(servers, *command):
    """A process of the command `tiffin`, once it serves."""
    process = servers.enter_context(helpers.server(*command, "--json"))
    assert process.stdout.readline()
    return process


async def outcomes(address, ref):
    """The answers of concurrent calls that depend on a node: each waits for most of its deadline."""
    async with await tiffin.aio.connect(address, timeout=8) as store:
        calls = {
            "get": store.get("k"),
            "missing": store.get("k", default=None),
            "exists": store.exists("k"),
            "delete": store.delete("k"),
            "keep": store.put("k", b"other", on_exists="keep"),
            "list": store.list(),
            "lease": store.lease(ref),
            "ack": store.ack(ref),
        }
        return dict(zip(calls, await asyncio.gather(*calls.values(), return_exceptions=True), strict=True))


def test_calls_are_unavailable_until_nodes_report(tmp_path):
    address = f"unix:@tiffin-test-{uuid.uuid4().hex}"
    master = ("master", "--listen", address, "--http", "off", "--state-dir", str(tmp_path))
    with contextlib.ExitStack() as servers:
        first = start(servers, *master)
        node = start(servers, "node", "--master", address, "--memory", "32MiB", "--name", "late")
        with tiffin.connect(address, timeout=30) as store:
            store.put("k", b"hello")
            ref = store.put_sample("s", {"x": b"1"})
        helpers.stop(node.pid)
        first.kill()
        first.wait()
        start(servers, *master)
        for name, outcome in asyncio.run(outcomes(address, ref)).items():
            assert type(outcome) is tiffin.Unavailable, (name, outcome)
            assert outcome.is_retryable and "waiting for late" in str(outcome), (name, outcome)
            assert "\n\nhint: " in str(outcome)
        node.send_signal(signal.SIGCONT)
        with tiffin.connect(address, timeout=30) as store:
            assert store.get("k") == b"hello" and store.exists("k")
            assert store.ack(ref) == "freed" and store.delete("k") is True
            with pytest.raises(tiffin.NotFound):
                store.get("k")
