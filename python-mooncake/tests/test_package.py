"""The drop-in wheel as a user gets it."""

import importlib.metadata
import pathlib
import sysconfig

import mooncake


def test_the_installed_wheel_is_what_is_tested():
    assert pathlib.Path(mooncake.__file__).is_relative_to(sysconfig.get_paths()["purelib"])


def test_it_stands_on_the_same_release_of_tiffin():
    version = importlib.metadata.version("tiffin-mooncake")
    assert importlib.metadata.requires("tiffin-mooncake") == [f"tiffin=={version}"]
