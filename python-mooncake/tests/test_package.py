"""The drop-in wheel as a user gets it."""

import importlib.metadata
import pathlib
import sysconfig

import mooncake


def test_the_installed_wheel_is_what_is_tested():
    assert pathlib.Path(mooncake.__file__).is_relative_to(sysconfig.get_paths()["purelib"])


def test_it_stands_on_the_same_release_of_tiffin():
    version = importlib.metadata.version("tiffin-mooncake")
    needed = [it for it in importlib.metadata.requires("tiffin-mooncake") if "extra ==" not in it]
    assert needed == [f"tiffin=={version}"]
