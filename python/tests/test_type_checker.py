"""Type checkers: no errors in the installed packages, and the right errors in code of users."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest
from tiffin.integrations import sglang

#: Code of users: tensors that look like torch's and JAX's, numpy's arrays, and everything with a buffer.
GOOD = """
import asyncio
from typing import Any

import numpy as np
import tiffin.aio
from tiffin import kv
from tiffin.features import FeatureStore, SampleRef

class Tensor:
    # As torch declares it: no return type, and options of its own.
    def __dlpack__(self, *, stream: Any = -1, max_version: Any = None): ...  # type: ignore[no-untyped-def]
    def __dlpack_device__(self) -> tuple[int, int]: ...  # type: ignore[empty-body]

class Array:
    # As JAX declares it.
    def __dlpack__(self, *, stream: int | None = None) -> object: ...

store = tiffin.connect(memory="64MiB")
array = np.zeros((2, 3), np.float32)
created: bool = store.put("a", array)
store.put("t", Tensor(), replicas=1)
store.put("j", Array())
store.put("b", b"1", pin=True)
store.put("m", memoryview(b"1"))
several: list[bool] = store.put({"a": array, "b": array})
store.put({"a": array, "b": b"1", "c": Tensor()})
store.put({b"a": array, b"b": bytearray(1)})
by_name: dict[str, bytes] = {"a": b"1"}
store.put(by_name)
by_key: dict[str | bytes, bytes] = {"a": b"1", b"b": b"2"}
store.put(by_key)
store.put(["a", b"b"], [b"1", array])
store.get_into({"a": array, "b": bytearray(1)})
store.reserve({"a": 1, "b": "1MiB"})
data: bytes = store.get("a")
maybe: bytes | None = store.get("a", default=None)
many: list[bytes] = store.get(["a", "b"])
other: bytes | int = store.get("a", 7)
store["a"] = array
store["t"] = Tensor()
item: bytes = store["a"]
del store["a"]
sizes: dict[str | bytes, int] = {info.key: info.size for info in store.scan("a")}
keys: list[str | bytes] = [key for key in store if key in store and len(store)]
count: int = store.get_into("a", array)
class Stream:
    cuda_stream = 7

queued: tiffin.QueuedGet = store.get_into({"t": Tensor()}, stream=Stream())
finished: bool = store.get_into("t", Tensor(), stream=0, range=(0, 1)).is_done
read: int | list[int] = queued.result(timeout=1.0)
store.get_into("t", Tensor())
with store.view("a") as view:
    np.frombuffer(memoryview(view), np.uint8)
    first: int = view[0]
    part: memoryview = view[1:]
store.set_policy(quota="1GiB")
store.set_policy(max_hold=None)
ref: tiffin.SampleRef = store.put_sample("s", {"x": array, "y": Tensor(), "z": b"1"})
refs: list[tiffin.SampleRef] = store.put_sample({"s": {"x": array, "y": b"1"}}, metadata={b"s": b"m"})
with store.lease(ref) as lease:
    tensors: dict[str, Any] = lease.tensors()
acked: str = store.ack(ref)

features = FeatureStore("run", memory="64MiB")
told: SampleRef = features.put({"x": array, "y": Tensor()}, sample_id="s")
got, handle = features.get(told.to_json())
features.release(handle)

plan: kv.Plan = kv.Engine(np.zeros((8, 64), np.uint8), page_tokens=4).step(submit=[kv.Request(1, [1, 2])])

async def main() -> bytes:
    async with tiffin.aio.connect() as other:
        async with other.lease("s") as lease, other.reserve("k", 5) as reservation:
            await reservation.put(b"hello")
            await lease.release()
        several: list[tiffin.aio.AsyncReservation] = await other.reserve({"a": 1})
        names: list[str | bytes] = [key async for key in other]
        found: list[tiffin.ObjectInfo] = [info async for info in other.scan()]
        await other.put("t", Tensor())
        await other.put({"a": array, "b": b"1"})
        return await other.get("t")

asyncio.run(main())
"""
#: One mistake a line.
BAD = {
    'store.put("k", 3)': "call-overload",
    'store.put(3, b"")': "call-overload",
    'store.put("k", object())': "call-overload",
    'store.put({"k": b"1", "l": 3})': "dict-item",
    'store.put({"k": b"1", "l": "text"})': "dict-item",
    'store.put({3: b"1"})': "type-var",
    'store.put_sample("s", {"x": b"1", "y": object()})': "dict-item",
    'store.put_sample({"s": {"x": b"1", "y": 1.5}})': "dict-item",
    'number: int = store.get("k")': "assignment",
    'store["k"] = 3': "assignment",
    "store[3]": "index",
    'store.get("k", missing=None)': "call-overload",
    'store.set_policy(demotion="sometimes")': "arg-type",
    "tiffin.connect(memory=1.5)": "arg-type",
}


def check(folder, *arguments):
    options = ["--strict", "--no-incremental", "--no-error-summary", "--hide-error-context"]
    command = [sys.executable, "-m", "mypy", *options, "--cache-dir", str(folder / "cache"), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return (done.stdout + done.stderr).strip()


@pytest.mark.parametrize("package", ["tiffin", "mooncake"])
def test_installed_package_has_no_errors(tmp_path, package):
    assert check(tmp_path, "-p", package) == ""


def test_packages_have_no_errors_without_optional_ones(tmp_path):
    """Checked as if nothing else were installed: neither numpy, nor torch, nor msgpack."""
    for package in ("tiffin", "mooncake"):
        found = importlib.util.find_spec(package)
        assert found is not None and found.origin is not None
        (tmp_path / package).symlink_to(pathlib.Path(found.origin).parent)
    assert check(tmp_path, "--no-site-packages", "-p", "tiffin", "-p", "mooncake") == ""


def test_users_may_pass_tensors_and_mistakes_are_found(tmp_path):
    (tmp_path / "good.py").write_text(GOOD)
    lines = ["import tiffin", "store = tiffin.connect()", *BAD]
    (tmp_path / "bad.py").write_text("\n".join(lines) + "\n")
    said = check(tmp_path, "good.py", "bad.py").splitlines()
    assert not [line for line in said if line.startswith("good.py")], said
    for number, (line, kind) in enumerate(BAD.items(), 3):
        assert any(it.startswith(f"bad.py:{number}: error") and f"[{kind}]" in it for it in said), (
            line,
            said,
        )


def test_calls_that_need_a_package_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ImportError, match=r"needs numpy.*(\n.*)*tiffin\[sglang\]"):
        sglang._first_page(None)
