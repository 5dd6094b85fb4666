"""The drop-in wheel as installed."""

import importlib.metadata
import pathlib
import sysconfig

import mooncake


def test_installed_wheel_is_tested():
    assert pathlib.Path(mooncake.__file__).is_relative_to(sysconfig.get_paths()["purelib"])


def test_release_matches_that_of_tiffin():
    version = importlib.metadata.version("tiffin-mooncake")
    needed = [it for it in importlib.metadata.requires("tiffin-mooncake") if "extra ==" not in it]
    assert needed == [f"tiffin=={version}"]
