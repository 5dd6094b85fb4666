"""The suite of the KV hierarchy over the official Mooncake wheel: `make check-kv-peer` runs it.

The wheel owns the package `mooncake`, and so does our drop-in; so the engines run in the environment of
the wheel, to which the installed `tiffin` and numpy are added. Master and memory are processes of the
wheel, on free ports.
"""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys

import numpy
import pytest
import tiffin

import helpers

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "kv_toy"
PEER = pathlib.Path(os.environ.get("TIFFIN_PEER_PYTHON", ROOT / ".venv-peer" / "bin" / "python"))
#: Provides memory to the cluster while its input is open.
OWNER = """
import sys
sys.path.insert(0, {examples!r})
import toy
store = toy.mooncake_store({address!r}, 256 << 20)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The path on which the wheel's interpreter finds our packages as well."""
    folder = tmp_path_factory.mktemp("beside")
    for package in (pathlib.Path(tiffin.__file__).parent, pathlib.Path(numpy.__file__).parent):
        (folder / package.name).symlink_to(package)
        for libraries in package.parent.glob(f"{package.name}.libs"):
            (folder / libraries.name).symlink_to(libraries)
    return dict(os.environ, PYTHONPATH=str(folder), MC_MS_AUTO_DISC="0", MC_LOG_LEVEL="ERROR")


@pytest.fixture
def cluster(environment):
    """The address of a master, with a process that has memory."""
    ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    rpc, metrics = (port.getsockname()[1] for port in ports)
    for port in ports:
        port.close()
    flags = [f"--rpc_port={rpc}", "--rpc_address=127.0.0.1", f"--metrics_port={metrics}"]
    with contextlib.ExitStack() as processes:
        start = lambda command, **pipes: processes.enter_context(ending(command, environment, **pipes))
        start(
            [PEER.with_name("mooncake_master"), *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        helpers.eventually(lambda: reaches(rpc))
        address = f"127.0.0.1:{rpc}"
        program = OWNER.format(examples=str(EXAMPLES), address=address)
        owner = start([PEER, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        # The wheel also prints to standard output.
        assert any(line == "ready\n" for line in owner.stdout)
        yield address


@contextlib.contextmanager
def ending(command, environment, **pipes):
    process = subprocess.Popen([str(word) for word in command], env=environment, **pipes)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def reaches(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def start(environment, script, *options):
    command = [PEER, EXAMPLES / script, *map(str, options)]
    return ending(command, environment, stdout=subprocess.PIPE, text=True)


def lines(process):
    said, _ = process.communicate(timeout=helpers.SECONDS_MAX)
    assert process.returncode == 0, said
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def test_it_is_the_official_wheel(environment):
    program = "import importlib.metadata as m; print(m.version('mooncake-transfer-engine-non-cuda'))"
    said = subprocess.run([PEER, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert said.returncode == 0 and said.stdout.strip(), said.stderr
    assert sys.executable != str(PEER)


def test_second_engine_hits_pages_of_the_first(environment, cluster):
    toy = ("toy.py", "--mooncake", cluster, "--mooncake-memory", 0, "--json")
    with start(environment, *toy) as process:
        (first,) = lines(process)
    with start(environment, *toy) as process:
        (second,) = lines(process)
    assert first["found in the store"] == 0 < second["found in the store"]
    assert first["faults"] == second["faults"] == 0
    for it in (first, second):
        found = sum(it[f"found {where}"] for where in ("on the device", "in the host", "in the store"))
        assert it["pages checked"] * 16 == found > 0, "every page that was found was compared"


@pytest.mark.parametrize("which", ["the first", "the second"])
def test_killed_engine_leaves_its_stored_pages(environment, cluster, which):
    # Both serve the same; one of them is killed in the middle of an operation.
    toy = ("toy.py", "--mooncake", cluster, "--mooncake-memory", 0, "--json", "--rounds")
    rounds = (0, 4) if which == "the first" else (4, 0)
    with start(environment, *toy, rounds[0]) as first, start(environment, *toy, rounds[1]) as second:
        killed, other = (first, second) if which == "the first" else (second, first)
        assert any(line.startswith("{") for line in killed.stdout)
        killed.kill()
        assert [it["faults"] for it in lines(other)] == [0] * 4
    with start(environment, *toy, 1) as process:
        (after,) = lines(process)
    assert after["found in the store"] > 0 and after["faults"] == 0


def test_tokenspeed_293_reads_24_pages(environment, cluster):
    with start(environment, "story.py", "--mooncake", cluster) as process:
        (told,) = lines(process)
    assert told == {
        "pages read": 24,
        "same answer on every rank": True,
        "same decisions on every rank": True,
    }
