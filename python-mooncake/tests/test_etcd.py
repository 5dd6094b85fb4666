"""Stores that find their master in etcd, as Mooncake's clients do with `etcd://` addresses."""

import subprocess
import sys

import pytest
import test_standalone
from etcd_stand_in import StandIn

CLUSTER = "mooncake_cluster"
start_daemon = test_standalone.start_daemon


@pytest.fixture
def etcd():
    with StandIn() as etcd:
        yield etcd


def start_masters(worker, etcd, *flags):
    """Two masters that stand by for each other. Returns when one of them leads."""
    flags = ["--enable_ha=true", f"--etcd_endpoints={etcd.address}", *flags]
    worker.run(f"masters = [Master(*{flags!r}) for _ in (1, 2)]")


def setup(address, metadata="P2PHANDSHAKE", segment="64 * MIB"):
    return f"store.setup('localhost', {metadata!r}, {segment}, MIB, 'tcp', '', {address!r})"


def prepare(worker):
    worker.run("from mooncake.store import MooncakeDistributedStore; store = MooncakeDistributedStore()")


def test_objects_survive_the_leader(worker, etcd):
    start_masters(worker, etcd)
    prepare(worker)
    address = f"etcd://{etcd.address}"
    # LMCache's users write the metadata server in the same way.
    assert worker.eval(setup(f"{address};127.0.0.1:1", metadata=address)) == 0
    assert worker.eval("store.put('before', b'kept'), store.get('before')") == (0, b"kept")
    first = etcd.leader(CLUSTER)
    worker.run(f"leader = next(master for master in masters if master.address == {first!r}); leader.kill()")
    etcd.silence(CLUSTER)
    worker.run("until(lambda: store.put('after', b'stored') == 0)")
    assert worker.eval("store.get_batch(['before', 'after'])") == [b"kept", b"stored"]
    assert etcd.leader(CLUSTER) not in (None, first)
    assert worker.eval("store.health_check(), store.close()") == (0, 0)


@pytest.mark.parametrize("how", ["variable", "address"])
def test_cluster_has_a_name(start_ours, etcd, how):
    worker = start_ours({"MC_STORE_CLUSTER_ID": "prod"} if how == "variable" else {})
    start_masters(worker, etcd, "--cluster_id=prod")
    prepare(worker)
    address = f"etcd://{etcd.address}/" + ("prod" if how == "address" else "")
    assert worker.eval(setup(address)) == 0
    assert worker.eval("store.put('k', b'v'), store.get('k')") == (0, b"v")


def test_cluster_without_leader_is_a_failed_setup(worker, etcd):
    prepare(worker)
    assert worker.eval(f"in_time(60, lambda: {setup(f'etcd://{etcd.address}')})") == -1
    lines = [line for line in worker.log.read_text().splitlines() if "mooncake.store: " in line]
    assert len(lines) == 1 and "etcd knows no leader" in lines[0] and CLUSTER in lines[0], lines


@pytest.mark.parametrize("address", ["etcd://", "etcd://a", "etcd://a:1/b/c", "redis://a:1", "k8s://a"])
def test_invalid_address_is_named(worker, address):
    prepare(worker)
    assert worker.eval(setup(address)) == -600
    lines = [line for line in worker.log.read_text().splitlines() if "mooncake.store: " in line]
    assert len(lines) == 1 and address in lines[0] and "etcd://host:2379" in lines[0], lines


def test_programs_of_a_daemon_learn_the_name_of_its_cluster(worker, etcd, start_daemon):
    start_masters(worker, etcd, "--cluster_id=prod")
    daemon = start_daemon(f"etcd://{etcd.address}", environment={"MC_STORE_CLUSTER_ID": "prod"})
    prepare(worker)
    assert worker.eval(f"store.setup_dummy(64 * MIB, MIB, {daemon.address!r})") == 0
    assert worker.eval("store.put('k', b'v'), store.get('k')") == (0, b"v")


def test_settings_of_the_environment_may_name_etcd(worker, etcd, tmp_path):
    start_masters(worker, etcd)
    program = (
        "from mooncake.mooncake_config import MooncakeConfig\n"
        "from mooncake.store import MooncakeDistributedStore\n"
        "config, store = MooncakeConfig.load_from_env(), MooncakeDistributedStore()\n"
        "sizes = (config.global_segment_size, config.local_buffer_size)\n"
        "print(store.setup(config.local_hostname, config.metadata_server, *sizes, config.protocol,\n"
        "                  config.device_name, config.master_server_address), store.put('k', b'v'))\n"
        "store.close()\n"
    )
    variables = {
        "MOONCAKE_MASTER": f"etcd://{etcd.address}",
        "MOONCAKE_TE_META_DATA_SERVER": f"etcd://{etcd.address}",
        "MOONCAKE_GLOBAL_SEGMENT_SIZE": "16mb",
        "MOONCAKE_LOCAL_HOSTNAME": "localhost",
        "TMPDIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True, timeout=100
    )
    assert done.stdout.split() == ["0", "0"], done
