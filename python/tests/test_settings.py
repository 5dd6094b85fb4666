"""Defaults from the environment, each declared once, and the command `tiffin`."""

import asyncio
import re
import subprocess
import sys

import pytest
import tiffin
import tiffin.aio
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


def test_environment_gives_defaults(monkeypatch, cluster):
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


@pytest.mark.parametrize(
    ("given", "named"),
    [({"memory": "8GiB"}, "memory="), ({"ssd": "path=/x,size=1GiB"}, "ssd="), ({"memory": 1}, "memory=")],
)
def test_arguments_without_effect_are_refused(cluster, given, named):
    with pytest.raises(tiffin.InvalidArgument, match=named) as caught:
        tiffin.connect(cluster, **given)
    assert "hint:" in str(caught.value) and "inside this process" in str(caught.value)

    async def connect():
        await tiffin.aio.connect(cluster, **given)

    with pytest.raises(tiffin.InvalidArgument, match=named):
        asyncio.run(connect())


def test_token_without_an_address_is_refused(monkeypatch):
    with pytest.raises(tiffin.InvalidArgument, match="token=") as caught:
        tiffin.connect(memory="16MiB", token="secret")
    assert "hint:" in str(caught.value)
    # A token of the environment is for clusters, and does not forbid a store inside the process.
    monkeypatch.setenv("TIFFIN_TOKEN", "secret")
    with tiffin.connect(memory="16MiB", token="") as store:
        assert not store.is_closed
    with tiffin.connect(memory="16MiB") as store:
        assert not store.is_closed


def test_token_is_read_from_a_file(monkeypatch, tmp_path):
    path = tmp_path / "token"
    path.write_text("secret\n")
    monkeypatch.setenv("TIFFIN_TOKEN_FILE", str(path))
    with helpers.up("--memory", "16MiB", TIFFIN_TOKEN_FILE=str(path)) as (address, _):
        with tiffin.connect(address) as store:
            assert store.put("k", b"v")
        with pytest.raises(tiffin.Unauthenticated):
            tiffin.connect(address, token="other")
    monkeypatch.setenv("TIFFIN_TOKEN_FILE", str(tmp_path / "missing"))
    with pytest.raises(tiffin.InvalidArgument, match="TIFFIN_TOKEN_FILE"):
        tiffin.connect(address)


def test_time_limit_of_a_store(monkeypatch):
    monkeypatch.setenv("TIFFIN_TIMEOUT", "100ms")
    with helpers.silent_peer() as address, pytest.raises(tiffin.Timeout):
        tiffin.connect(address)
    for nonsense in ("soon", "10 parsecs", "-1s"):
        monkeypatch.setenv("TIFFIN_TIMEOUT", nonsense)
        with pytest.raises(tiffin.InvalidArgument, match="TIFFIN_TIMEOUT"):
            tiffin.connect()


@pytest.mark.parametrize("connect", [tiffin.connect, tiffin.aio.connect])
def test_time_limit_of_a_store_is_above_zero(monkeypatch, connect):
    with pytest.raises(tiffin.InvalidArgument, match="0 seconds") as caught:
        connect(timeout=0)
    assert "hint:" in str(caught.value)
    monkeypatch.setenv("TIFFIN_TIMEOUT", "0s")
    with pytest.raises(tiffin.InvalidArgument, match="0 seconds"):
        connect()


@pytest.mark.parametrize("name", ["namespace", "token"])
def test_text_that_is_none_is_refused_by_name(name):
    with pytest.raises(TypeError, match=f"{name}= must be text, not int") as caught:
        tiffin.connect("127.0.0.1:1", **{name: 31415})
    assert "hint:" in str(caught.value) and "31415" not in str(caught.value)


def test_switch_is_on_or_off(monkeypatch):
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


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("lots", "it does not begin with a number"),
        ("", "it does not begin with a number"),
        ("-1GiB", "it is negative"),
        ("1 elephant", "there is no unit `elephant`"),
        ("1.2.3GiB", "`1.2.3` is not a number"),
    ],
)
def test_invalid_sizes_are_quoted(said, why):
    with pytest.raises(ValueError, match=f"invalid size '{said}': {why}") as raised:
        tiffin.connect(memory=said)
    assert "hint: write a number and a unit" in str(raised.value)


@pytest.mark.parametrize("said", [-1, 2**64, 10**40])
def test_sizes_have_limits(said):
    with pytest.raises(ValueError, match="a size of"):
        tiffin.connect(memory=said)


def test_address_is_text():
    with pytest.raises(TypeError, match="an address must be text, not int") as raised:
        tiffin.connect(7400)
    assert 'connect("127.0.0.1:7400")' in str(raised.value)
    with pytest.raises(TypeError, match="an address must be text, not tuple"):
        tiffin.connect(("127.0.0.1", 7400))


@pytest.mark.parametrize("number", [-1, -(10**40), 2**32, 2**64, 10**40])
def test_counts_out_of_range_name_their_argument(number):
    with tiffin.connect(memory="16MiB") as store:
        calls = {
            "replicas": [
                lambda **it: store.put("k", b"1", **it),
                lambda **it: store.reserve("k", 1, **it),
                lambda **it: store.put_sample("s", {"a": b"1"}, **it),
            ],
            "at_least": [lambda **it: store.pull("stream", timeout=0, **it)],
            "at_most": [
                lambda **it: store.pull("stream", timeout=0, **it),
                lambda **it: store.tail("stream", timeout=0, **it),
            ],
        }
        if not 0 <= number < 2**64:
            calls |= {
                "refs_high": [lambda **it: store.open_stream("stream", **it)],
                "refs_low": [lambda **it: store.open_stream("stream", refs_high=1, **it)],
                "window": [lambda **it: store.open_stream("stream", group="g", **it)],
                "elsewhere": [lambda **it: store.put_sample("s", {"a": b"1"}, **it)],
            }
        for name, calls_of_it in calls.items():
            for call in calls_of_it:
                with pytest.raises(ValueError, match=f"^{name}=") as raised:
                    call(**{name: number})
                assert "hint: " in str(raised.value)
                with pytest.raises(TypeError, match=f"is a whole number, not str(.|\n)*'{name}'"):
                    call(**{name: "1"})
        with pytest.raises(tiffin.InvalidArgument):
            store.get("k", range=(-1, 1))


@pytest.mark.parametrize("number", [-1, -(10**40), 2**64, 10**40])
def test_generation_out_of_range_is_refused(number):
    with tiffin.connect(memory="16MiB") as store:
        for behind in [(number, 0), (0, number)]:
            with pytest.raises(tiffin.InvalidArgument, match="is not a generation") as raised:
                store.tail("stream", behind=behind, timeout=0)
            assert f"{behind}" in str(raised.value)
            assert str(raised.value).count("hint: ") == 1 and "ref.generation" in str(raised.value)


@pytest.mark.parametrize("behind", [7, "ab", (1,), (1, 2, 3), (1.5, 2), ("1", "2"), (None, 1)])
def test_stream_position_that_is_not_a_pair_is_refused(behind):
    with tiffin.connect(memory="16MiB") as store:
        with pytest.raises(TypeError, match="a generation is a pair of integers") as raised:
            store.tail("stream", behind=behind, timeout=0)
        assert "hint: " in str(raised.value)
        assert store.tail("stream", behind=(2**64 - 1, 2**64 - 1), timeout=0) == []


def command(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "tiffin", *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_command_and_python_mean_the_same_store(cluster):
    assert tiffin.__version__ in command("--version")
    with tiffin.connect(cluster) as store:
        store.put("from python", b"hello")
        assert command("get", "from python", "--master", cluster) == "hello"
        command("put", "from shell", "--value", "world", "--master", cluster)
        assert store.get("from shell") == b"world"


def test_command_reports_the_result():
    done = subprocess.run(
        [sys.executable, "-m", "tiffin", "nonsense"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "nonsense" in done.stderr
