"""Tenants: with `--enable_multi_tenants` each is a namespace that rejects writes without a quota."""

import pytest

SET = (
    "fetch(master.metrics, '/api/v1/tenant_quotas?tenant_id={}', 'PUT', '{{\"requested_quota_bytes\": {}}}')"
)


def connect(worker, name, tenant, segment="0"):
    worker.run("from mooncake.store import MooncakeDistributedStore")
    worker.run(f"{name} = MooncakeDistributedStore()")
    return worker.eval(
        f"{name}.setup('localhost', 'P2PHANDSHAKE', {segment}, 32 * MIB, 'tcp', '', master.address, "
        f"tenant_id={tenant!r})"
    )


@pytest.fixture
def cluster(worker):
    """A master with tenants, and a segment that belongs to none of them."""
    worker.run("master = Master('--enable_multi_tenants=true')")
    assert connect(worker, "node", "default", "64 * MIB") == 0
    return worker


def test_tenant_needs_a_quota(cluster):
    assert connect(cluster, "a", "alpha") == 0
    assert cluster.eval("(a.put('k', b'v'), a.is_exist('k'), a.get('k'))") == (-1701, 0, b"")
    assert cluster.eval("(node.put('k', b'v'), a.batch_is_exist(['k']))") == (-1701, [0])
    assert cluster.eval(SET.format("alpha", 1 << 20) + "[0]") == 200
    assert cluster.eval("(a.put('k', b'v'), a.is_exist('k'), a.get('k'))") == (0, 1, b"v")


def test_tenants_do_not_see_each_other(cluster):
    for name, tenant in (("a", "alpha"), ("b", "beta")):
        assert cluster.eval(SET.format(tenant, 1 << 20) + "[0]") == 200
        assert connect(cluster, name, tenant) == 0
    assert cluster.eval("(a.put('k', b'of a'), b.is_exist('k'), b.put('k', b'of b'))") == (0, 0, 0)
    assert cluster.eval("(a.get('k'), b.get('k'))") == (b"of a", b"of b")
    assert cluster.eval("(a.remove_all(True), b.get('k'))") == (1, b"of b")


def test_tenant_stays_within_its_quota(cluster):
    assert cluster.eval(SET.format("alpha", 1 << 20) + "[0]") == 200
    assert connect(cluster, "a", "alpha") == 0
    # It evicts its own objects, and a put that can never fit evicts none.
    assert cluster.eval("[a.put(f'k{n}', bytes(MIB // 4)) for n in range(8)]") == [0] * 8
    before = cluster.eval("a.batch_is_exist([f'k{n}' for n in range(8)])")
    assert 0 < before.count(1) < 8
    assert cluster.eval("a.put('large', bytes(2 * MIB))") == -1700
    assert cluster.eval("a.batch_is_exist([f'k{n}' for n in range(8)])") == before


@pytest.mark.parametrize("tenant", ["", "_a", "a\n", "t" * 129])
def test_bad_name_is_refused(cluster, tenant):
    assert connect(cluster, "a", tenant) == -600
    assert "tenant_id is" in cluster.tail()


def test_tenant_is_ignored_without_the_flag(worker):
    worker.run("master = Master()")
    assert connect(worker, "a", "alpha", "64 * MIB") == 0
    assert connect(worker, "b", "_bad") == 0
    assert worker.eval("(a.put('k', b'v'), b.get('k'))") == (0, b"v")
    assert worker.eval(SET.format("alpha", 5) + "[0]") == 409
