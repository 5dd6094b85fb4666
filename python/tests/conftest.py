"""Stores for the tests of the native API: one inside the process, and one that is a process of its own."""

import pytest
import tiffin

import helpers


@pytest.fixture
def store():
    with tiffin.connect(memory="256MiB", timeout=30) as store:
        yield store


@pytest.fixture(scope="module")
def cluster():
    """The address of a store in a process of its own, reached over TCP on loopback."""
    with helpers.up("--memory", "256MiB") as (address, _):
        yield address


@pytest.fixture
def small():
    """A namespace that may hold a mebibyte."""
    with tiffin.connect(memory="64MiB", timeout=30) as store:
        store.set_policy(quota=1 << 20)
        yield store
