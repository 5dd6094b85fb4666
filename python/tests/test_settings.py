"""Defaults from the environment, each declared once, and the command `tiffin`."""

import re
import subprocess
import sys

import pytest
import tiffin
from tiffin import _settings

import helpers

VARIABLES = {
    name: value
    for name, value in vars(_settings).items()
    if isinstance(value, str) and value.startswith("TIFFIN_")
}


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)


def test_the_environment_gives_defaults(monkeypatch, cluster):
    monkeypatch.setenv("TIFFIN_NAMESPACE", "here")
    monkeypatch.setenv("TIFFIN_CLIENT_SHARED_MEMORY", "off")
    with tiffin.connect(cluster) as store:
        assert (store.address, store.namespace) == (cluster, "here")
        store.put("k", b"1")
        assert [route.way for route in store.routes()] == ["tcp"]
    with tiffin.connect(cluster, namespace="there", shared_memory=True) as store:
        assert store.namespace == "there"
        store.put("k", b"1")
        assert [route.way for route in store.routes()] == ["shared memory"]


def test_without_an_address_the_store_is_in_the_process(monkeypatch, cluster):
    monkeypatch.setenv("TIFFIN_MASTER", cluster)
    with tiffin.connect(memory="16MiB") as store:
        assert store.address.startswith("unix:") and "in this process" in repr(store)


def test_the_time_limit_of_a_store(monkeypatch):
    monkeypatch.setenv("TIFFIN_TIMEOUT", "100ms")
    with helpers.silent_peer() as address, pytest.raises(tiffin.Timeout):
        tiffin.connect(address)
    for nonsense in ("soon", "10 parsecs", "-1s"):
        monkeypatch.setenv("TIFFIN_TIMEOUT", nonsense)
        with pytest.raises(tiffin.InvalidArgument, match="TIFFIN_TIMEOUT"):
            tiffin.connect()


def test_a_switch_is_on_or_off(monkeypatch):
    monkeypatch.setenv("TIFFIN_CLIENT_SHARED_MEMORY", "maybe")
    with pytest.raises(tiffin.InvalidArgument, match="TIFFIN_CLIENT_SHARED_MEMORY"):
        tiffin.connect()


def test_every_variable_is_documented():
    for variable in VARIABLES.values():
        assert variable in tiffin.connect.__doc__


def test_every_variable_is_a_setting_of_the_command():
    shown = command("settings")
    for variable in VARIABLES.values():
        assert re.search(rf"\b{variable}\b", shown), variable


@pytest.mark.parametrize(
    ("said", "size"),
    [
        ("1", 1),
        ("1B", 1),
        ("1KiB", 1024),
        ("1.5 MiB", 3 << 19),
        ("1GB", 10**9),
        ("2G", 2 * 10**9),
        (" 1Ki ", 1024),
    ],
)
def test_sizes(said, size):
    assert _settings.size(said) == size


def command(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "tiffin", *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_and_python_mean_the_same_store(cluster):
    assert tiffin.__version__ in command("--version")
    with tiffin.connect(cluster) as store:
        store.put("from python", b"hello")
        assert command("get", "from python", "--master", cluster) == "hello"
        command("put", "from shell", "--value", "world", "--master", cluster)
        assert store.get("from shell") == b"world"


def test_the_command_says_how_it_went():
    done = subprocess.run(
        [sys.executable, "-m", "tiffin", "nonsense"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "nonsense" in done.stderr
