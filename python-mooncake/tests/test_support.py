"""The generated parts of docs/mooncake-compat.md are those of the installed wheels."""

import importlib.util
import pathlib

import pytest

SCRIPT = pathlib.Path(__file__).parents[1] / "support.py"
spec = importlib.util.spec_from_file_location("support", SCRIPT)
support = importlib.util.module_from_spec(spec)
spec.loader.exec_module(support)


def test_page_matches_the_code():
    """If this fails, run `make docs-mooncake`."""
    page = support.PAGE.read_text()
    for name, text in support.parts().items():
        assert text in page, f"the part `{name}` is not up to date\n\nhint: run `make docs-mooncake`"


def test_missing_marker_is_reported():
    try:
        support.fill("a page", {"methods": "text"})
    except SystemExit as error:
        assert "no markers for `methods`" in str(error)
    else:
        raise AssertionError("the marker is missing, and nothing was said")


def test_request_that_no_page_answers_is_not_supported():
    rows = support.endpoints(["GET /health", "GET /nosuch", "POST /api/v1/nosuch"]).splitlines()[2:]
    assert [row.split("|")[2].strip() for row in rows] == ["yes", "no", "no"]


SETUP = "store.setup('localhost', 'P2PHANDSHAKE', 0, MIB, {protocol!r}, '', {master})"
REFUSED = {
    "MooncakeDistributedNoFRegister().real_register('n', 1, 'h', 1, 0, 1, 'm')": (-1012, "NVMe-oF"),
    "store.put('k', b'v', config(nof_replica_num=1))": (-600, "NVMe-oF"),
    "store.put('k', b'v', config(dfs_replica_num=1))": (-1601, "distributed file systems"),
    "store.mount_segment(__file__, 1)['ret']": (-1012, "a file as a segment"),
    SETUP.format(protocol="cxl", master="master.address"): (-1, "protocol `cxl`"),
    SETUP.format(protocol="ascend", master="master.address"): (-1, "protocol `ascend`"),
    SETUP.format(protocol="tcp", master="'redis://127.0.0.1:6379'"): (-600, "Redis"),
    SETUP.format(protocol="tcp", master="'k8s://namespace'"): (-600, "Kubernetes"),
}


@pytest.mark.parametrize("call", REFUSED)
def test_unsupported_features_are_named(call, worker):
    worker.run("from mooncake.store import *")
    worker.run("master = Master()")
    assert worker.eval("connect(master.address)") == 0
    before = len(worker.log.read_text())
    code, feature = REFUSED[call]
    assert worker.eval(call) == code
    lines = [line for line in worker.log.read_text()[before:].splitlines() if "mooncake.store" in line]
    said = [line for line in lines if "not supported" in line]
    assert len(said) == 1 and feature in said[0] and str(code) in said[0], lines
