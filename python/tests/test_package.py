"""The wheel as a user gets it: installed, without the repository."""

import importlib.metadata
import pathlib
import re
import subprocess
import sys
import sysconfig

import pytest
import tiffin


def test_installed_wheel_is_tested():
    assert pathlib.Path(tiffin.__file__).is_relative_to(sysconfig.get_paths()["platlib"])


def test_version_is_the_same_everywhere():
    assert tiffin.__version__ == importlib.metadata.version("tiffin")
    assert tiffin.__version__ == importlib.metadata.version("tiffin-mooncake")


def test_type_checkers_find_the_types():
    for name in ("py.typed", "_native.pyi"):
        assert pathlib.Path(tiffin.__file__).with_name(name).exists()


def test_licence_travels_with_the_wheel():
    files = importlib.metadata.files("tiffin") or []
    assert any(file.name == "LICENSE" for file in files)


def test_requires_python_agrees_with_the_tag():
    """`cp311-abi3` runs on 3.11 and later, `cp310-cp310` on 3.10 alone."""
    told = importlib.metadata.metadata("tiffin")["Requires-Python"]
    wheel = importlib.metadata.distribution("tiffin").read_text("WHEEL") or ""
    tags = [line.removeprefix("Tag: ").split("-") for line in wheel.splitlines() if line.startswith("Tag: ")]
    assert tags
    for interpreter, abi, _ in tags:
        version = f"{interpreter[2]}.{interpreter[3:]}"
        assert told == (f">={version}" if abi == "abi3" else f"=={version}.*")


def test_messages_name_extras_that_exist():
    extras = set(importlib.metadata.metadata("tiffin").get_all("Provides-Extra") or [])
    assert extras == {"lmcache", "numpy", "sglang", "torch", "vllm"}
    folder = pathlib.Path(tiffin.__file__).parent
    code = "".join(path.read_text() for path in folder.rglob("*.py"))
    named = set(re.findall(r"tiffin\[(\w+)\]", code)) | set(
        re.findall(r'(?:need|missing)\(\s*"[\w.]+", "[\w.]+", "(\w+)"', code)
    )
    assert "numpy" in named and "sglang" in named and named <= extras


@pytest.mark.parametrize(
    ("module", "extra"),
    [("kv", "numpy"), ("integrations.tokenspeed", "numpy"), ("integrations.vllm", "vllm")],
)
def test_import_without_numpy_names_the_extra_of_the_module(module, extra):
    code = f"import sys; sys.modules['numpy'] = None; import tiffin.{module}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    told = ran.stderr.split("ImportError: ")[-1]
    assert told.endswith(f"needs numpy, which is not installed\n\nhint: `pip install 'tiffin[{extra}]'`\n"), (
        told
    )


def test_register_without_transfer_queue_names_the_package():
    code = "from tiffin.integrations import transfer_queue as it; it.register()"
    hidden = "import sys; sys.modules['transfer_queue'] = None; "
    ran = subprocess.run([sys.executable, "-c", hidden + code], capture_output=True, text=True, check=False)
    assert ran.stderr.endswith("which is not installed\n\nhint: `pip install TransferQueue`\n"), ran.stderr


def test_no_other_package_is_needed():
    assert not [need for need in importlib.metadata.requires("tiffin") or [] if "extra ==" not in need]
