"""TLS in Python: a cluster of processes, the arguments of `connect`, the variables, and the drop-in."""

import json
import pickle
import subprocess
import sys

import pytest
import tiffin

import helpers

SIZE = 9 << 20
DROP_IN = """
import sys
from mooncake.store import MooncakeDistributedStore
address, size, segment = arguments
store = MooncakeDistributedStore()
code = store.setup("127.0.0.1", "P2PHANDSHAKE", segment, 16 << 20, "tcp", "", address)
if code == 0:
    value = bytes(range(256)) * (size // 256)
    assert store.put("from the drop-in", value) == 0
    assert store.get("from the drop-in") == value
    assert store.get("from Python") == value[::-1]
    store.close()
print(code)
"""


def certs(*arguments):
    subprocess.run([sys.executable, "-m", "tiffin", "certs", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls") / "certs"
    certs("create", str(folder))
    return folder


@pytest.fixture(scope="module")
def secured(folder):
    """The address of a master with two nodes, all of which want certificates of clients."""
    variables = {
        "TIFFIN_TLS_CERT": str(folder / "server.pem"),
        "TIFFIN_TLS_KEY": str(folder / "server.key"),
        "TIFFIN_TLS_CA": str(folder / "ca.pem"),
        "TIFFIN_TLS_CLIENT_CA": str(folder / "ca.pem"),
    }
    with helpers.server(
        "master", "--listen", "127.0.0.1:0", "--http", "off", "--json", **variables
    ) as master:
        address = json.loads(master.stdout.readline())["master"]
        node = ("node", "--master", address, "--memory", "64MiB", "--shared-memory", "off", "--json")
        with helpers.server(*node, **variables) as first, helpers.server(*node, **variables) as second:
            first.stdout.readline(), second.stdout.readline()
            yield address


@pytest.fixture
def files(folder):
    names = {"tls_ca": "ca.pem", "tls_cert": "client.pem", "tls_key": "client.key"}
    return {argument: folder / name for argument, name in names.items()}


def test_values_of_any_size_cross_tls(secured, files):
    with tiffin.connect(secured, shared_memory=False, timeout=60, **files) as store:
        values = {f"k{size}": bytes(range(256)) * (size // 256) for size in (0, 256, 65_536, SIZE)}
        store.put(values)
        store.put("twice", values[f"k{SIZE}"], replicas=2)
        assert store.get(list(values)) == list(values.values())
        buffer = bytearray(SIZE)
        assert store.get_into("twice", buffer) == SIZE and buffer == values[f"k{SIZE}"]
        assert {route.way for route in store.routes()} == {"tcp"}
        # Another process gets the files with the store.
        with pickle.loads(pickle.dumps(store)) as again:
            assert again.get("k65536") == values["k65536"]


def test_variables_are_the_defaults_of_the_arguments(secured, folder, files, monkeypatch):
    monkeypatch.setenv("TIFFIN_TLS_CA", str(folder / "ca.pem"))
    with pytest.raises(tiffin.Unreachable, match="show a certificate"):
        tiffin.connect(secured, shared_memory=False)
    monkeypatch.setenv("TIFFIN_TLS_CERT", str(folder / "client.pem"))
    monkeypatch.setenv("TIFFIN_TLS_KEY", str(folder / "client.key"))
    tiffin.connect(secured, shared_memory=False).close()
    # A store inside the process has Unix sockets only.
    tiffin.connect(memory="16MiB").close()


def test_mistakes_are_named_with_a_hint(secured, files, tmp_path):
    certs("create", str(tmp_path / "other"))
    for arguments, message in [
        ({}, "accepts only TLS"),
        (files | {"tls_ca": tmp_path / "other" / "ca.pem"}, "not signed by a CA"),
    ]:
        with pytest.raises(tiffin.Unreachable, match=message) as error:
            tiffin.connect(secured, shared_memory=False, **arguments)
        assert "hint: " in str(error.value)
    with pytest.raises(tiffin.InvalidArgument, match="tls_key is not"):
        tiffin.connect(secured, tls_ca=files["tls_ca"], tls_cert=files["tls_cert"])
    with (
        helpers.up("--memory", "16MiB") as (plain, _),
        pytest.raises(tiffin.Unreachable, match="not speak TLS"),
    ):
        tiffin.connect(plain, shared_memory=False, **files)


@pytest.mark.parametrize("segment", [0, 32 << 20])
def test_drop_in_uses_the_variables(secured, folder, files, segment):
    pytest.importorskip("mooncake.store")
    value = (bytes(range(256)) * (SIZE // 256))[::-1]
    with tiffin.connect(secured, shared_memory=False, timeout=60, **files) as store:
        store.put("from Python", value)
        # A process with a segment is a server as well.
        name = "server" if segment else "client"
        variables = {
            "TIFFIN_TLS_CA": str(folder / "ca.pem"),
            "TIFFIN_TLS_CERT": str(folder / f"{name}.pem"),
            "TIFFIN_TLS_KEY": str(folder / f"{name}.key"),
            "TIFFIN_SHARED_MEMORY": "off",
        }
        assert helpers.run(DROP_IN, secured, SIZE, segment, **variables).split()[-1] == "0"
        if not segment:
            assert store.get("from the drop-in") == value[::-1]
        assert helpers.run(DROP_IN, secured, SIZE, 0, TIFFIN_SHARED_MEMORY="off").split()[-1] != "0"
