"""The drop-in with `enable_ssd_offload`: objects beyond memory go to disk; probes promote them."""

import pytest

import helpers

MIB = 1 << 20
PRELUDE = """
from mooncake.store import ExistOptions, MooncakeDistributedStore
AHEAD = ExistOptions(prefetch_to_memory=True)
KEYS = [f'k{number}' for number in range(40)]

def value(key):
    return key.encode().ljust(8, b'.') * (MIB // 8)

def disked(address, path, segment=16 * MIB, **options):
    store = MooncakeDistributedStore()
    settings = dict(enable_ssd_offload=True, ssd_offload_path=path) | options
    return store, store.setup('localhost', 'P2PHANDSHAKE', segment, 4 * MIB, 'tcp', '', address, **settings)

def kinds(store, key):
    return [it.is_local_disk_replica() for it in store.get_replica_desc(key)]

def fill(store):
    return [store.put(key, value(key)) for key in KEYS]

def only_on_disk(store):
    found = [key for key in KEYS if kinds(store, key) == [True]]
    store.batch_remove([key for key in KEYS if key not in found], True)
    return found
"""
#: The master writes every object to disk, so that all are there when they must leave memory.
MASTER = "Master('--enable_offload=true', '--promotion_on_hit=false', '--default_kv_lease_ttl=1')"
SIZE = {"MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": str(256 * MIB), "TIFFIN_PUT_WAIT": "30s"}


@pytest.fixture
def disk(tmp_path):
    with helpers.disk_folder(tmp_path) as folder:
        yield str(folder)


@pytest.fixture
def ranks(start_ours):
    """A process with a master, and the names above."""
    worker = start_ours(SIZE)
    worker.run(PRELUDE)
    worker.run(f"master = {MASTER}")
    return worker


def test_objects_beyond_memory_are_readable(ranks, disk):
    ranks.run(f"store, code = disked(master.address, {disk!r})")
    assert ranks.eval("code, set(fill(store))") == (0, {0})
    assert ranks.eval("[key for key in KEYS if store.get(key) != value(key)]") == []
    assert ranks.eval("store.get_offload_rpc_read_count()") > 0
    assert ranks.eval("set(store.batch_is_exist(KEYS))") == {1}
    found = ranks.eval("only_on_disk(store)")
    assert len(found) >= 40 - 16
    ranks.run(f"copy = store.get_replica_desc({found[0]!r})[0]")
    assert ranks.eval("copy.is_memory_replica(), copy.is_disk_replica(), copy.status.name") == (
        False,
        False,
        "COMPLETE",
    )
    assert ranks.ask(eval="copy.get_memory_descriptor()")["raises"] == "RuntimeError"
    assert ranks.ask(eval="copy.get_disk_descriptor()")["raises"] == "RuntimeError"
    assert ranks.eval(f"sorted(store.batch_get_replica_desc([{found[0]!r}, 'absent']))") == [found[0]]
    # A copy in memory reports that, and names the segment.
    assert ranks.eval("store.put('new', b'12345')") == 0
    ranks.run("memory = [it for it in store.get_replica_desc('new') if it.is_memory_replica()][0]")
    ranks.run("place = memory.get_memory_descriptor().buffer_descriptor")
    assert ranks.eval("place.size, place.transport_endpoint == store.get_hostname()") == (5, True)
    assert ranks.eval("store.get_replica_desc('absent')") == []


def test_probe_prefetches_the_leading_run(ranks, disk):
    ranks.run(f"store, code = disked(master.address, {disk!r}, ssd_get_wait_ms=2000)")
    assert ranks.eval("code, set(fill(store))") == (0, {0})
    ranks.run("found = only_on_disk(store)")
    ranks.run("keys = [*found[:4], 'absent', found[4]]")
    assert ranks.eval("store.batch_is_exist(keys, AHEAD)") == [1, 1, 1, 1, 0, 1]
    assert ranks.eval("store.is_exist(found[0], AHEAD), store.is_exist('absent', AHEAD)") == (1, 0)
    before = ranks.eval("store.get_offload_rpc_read_count()")
    # These wait for the promotions, and read memory.
    assert ranks.eval("[store.get(key) == value(key) for key in found[:4]]") == [True] * 4
    assert ranks.eval("store.get_offload_rpc_read_count()") == before
    assert ranks.eval("kinds(store, found[4])") == [True]
    assert ranks.eval("store.get(found[4]) == value(found[4])") is True
    assert ranks.eval("store.get_offload_rpc_read_count()") == before + 1


@pytest.mark.parametrize(
    ("index", "probe"), [(0, "is_exist('k')"), (1, "batch_is_exist(['k'])"), (1, "get_size('k')")]
)
def test_probe_takes_a_lease_and_is_not_a_read(worker, index, probe):
    worker.run("import tiffin; from mooncake.store import MooncakeDistributedStore")
    worker.run("master = Master('--default_kv_lease_ttl=600000')")
    worker.run("stores = [MooncakeDistributedStore(), MooncakeDistributedStore()]")
    setup = "[it.setup('localhost', 'P2PHANDSHAKE', size, 4 * MIB, 'tcp', '', master.address) "
    assert worker.eval(setup + "for it, size in zip(stores, (16 * MIB, 0))]") == [0, 0]
    worker.run("watcher = tiffin.connect(master.address)")
    worker.run("stores[0].put('k', b'v')")
    # The first store has a cached location and reports its lease later. The second asks the master.
    worker.run(f"stores[{index}].{probe}")
    helpers.eventually(lambda: worker.eval("watcher.why('k').lease_left") > 0)
    assert worker.eval("watcher.why('k').reader") == ""
    assert worker.eval(f"stores[{index}].get('k')") == b"v"
    helpers.eventually(lambda: worker.eval("watcher.why('k').reader") != "")


def test_restarted_rank_has_the_objects_of_its_disk(ranks, disk):
    ranks.run(f"store, code = disked(master.address, {disk!r})")
    assert ranks.eval("code, set(fill(store))") == (0, {0})
    assert ranks.eval("store.batch_remove(['k0', 'k1'])") == [0, 0]
    ranks.run("left = [key for key in KEYS[2:] if True in kinds(store, key)]")
    assert ranks.eval("len(left)") >= 40 - 16 - 2
    assert ranks.eval("store.close()") == 0
    assert ranks.eval("set(store.batch_is_exist(KEYS))") == {-600}
    ranks.run(f"store, code = disked(master.address, {disk!r})")
    assert ranks.eval("code, [key for key in left if store.get(key) != value(key)]") == (0, [])
    assert ranks.eval("store.batch_is_exist(['k0', 'k1'])") == [0, 0]
    # The same in another epoch of the master.
    ranks.run("store.close(); master.kill(); master.start()")
    ranks.run(f"store, code = disked(master.address, {disk!r})")
    assert ranks.eval("code, [key for key in left if store.get(key) != value(key)]") == (0, [])
    assert ranks.eval("store.batch_is_exist(['k0', 'k1'])") == [0, 0]


def test_two_ranks_may_share_a_path(ranks, disk):
    ranks.run(f"a, b = disked(master.address, {disk!r}), disked(master.address, {disk!r})")
    assert ranks.eval("a[1], b[1]") == (0, 0)
    folders = f"sorted(it.name for it in pathlib.Path({disk!r}).iterdir() if it.is_dir())"
    assert ranks.eval(folders) == ["rank-0", "rank-1"]
    # A forked child that outlives the store does not keep its directory.
    ranks.run("child = os.fork()\nif child == 0: die_with_parent(); signal.pause()")
    ranks.run("a[0].close()")
    ranks.run(f"a = disked(master.address, {disk!r})")
    assert ranks.eval("a[1], a[0].put('k', b'v'), b[0].get('k')") == (0, 0, b"v")
    assert ranks.eval(folders) == ["rank-0", "rank-1"]
    ranks.run("os.kill(child, 9); os.waitpid(child, 0)")


def test_prefetch_settings_are_checked(ranks, disk):
    ranks.run(
        f"store, code = disked(master.address, {disk!r}, ssd_prefetch_cooldown_sec=7, "
        "ssd_prefetch_dedup_ttl_sec=30, ssd_get_wait_ms=5)"
    )
    assert ranks.eval("code") == 0
    assert "ssd_prefetch_cooldown_sec=7 has no effect" in ranks.tail()
    assert "TIFFIN_MASTER_PREFETCH_COOLDOWN=7s" in ranks.tail()
    assert "ssd_prefetch_dedup_ttl_sec" not in ranks.tail()
    ranks.run("config = dict(local_hostname='localhost', metadata_server='P2PHANDSHAKE')")
    ranks.run(f"config |= dict(enable_ssd_offload=True, ssd_offload_path={disk!r}, ssd_get_wait_ms='5')")
    assert ranks.eval("store.setup(config | dict(master_server_addr=master.address))") == 0
    assert ranks.eval("store.setup(config | dict(ssd_get_wait_ms='soon'))") == -600
    assert ranks.eval("disked(master.address, '', segment=0)[1]") == 0
    assert "without a segment" in ranks.tail()


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("{disk}/missing", "does not exist"),
        ("{disk}/file", "it is not a directory"),
        ("relative", "not absolute"),
        ("{disk}/../x", "contains `..`"),
    ],
)
def test_unusable_path_is_refused(ranks, disk, path, says):
    ranks.run(f"open({disk!r} + '/file', 'w').close()")
    assert ranks.eval(f"disked(master.address, {path.format(disk=disk)!r})[1]") == -600
    assert says in ranks.tail() and "hint: " in ranks.tail()


@pytest.mark.parametrize(
    ("said", "code", "says"),
    [
        # The allocation must not fill the disk of the machine, so the process has a file size limit.
        ({"MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": str(1 << 60)}, -600, "bytes free, so"),
        ({"MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": "many"}, -600, "invalid size `many`"),
        ({"MOONCAKE_OFFLOAD_USE_URING": "false"}, 0, ""),
        ({"MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": "10"}, 0, ""),
    ],
)
def test_environment_of_the_disk(ranks, disk, said, code, says):
    said = {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": disk} | said
    ranks.run(f"os.environ.update({said!r})")
    ranks.run("import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (512 * MIB, 512 * MIB))")
    assert ranks.eval("disked(master.address, '')[1]") == code
    assert says in ranks.tail()


@pytest.mark.parametrize("flags", ["'--enable_offload=true'", "'--offload_on_evict=true'"])
@pytest.mark.parametrize("threshold", [1, 2, 3])
def test_objects_that_are_read_again_return_to_memory(start_ours, disk, flags, threshold):
    """Memory is full of objects that were never read; they make way."""
    ranks = start_ours(SIZE)
    ranks.run(PRELUDE)
    ranks.run(f"master = Master({flags}, '--promotion_admission_threshold={threshold}')")
    ranks.run(f"store, code = disked(master.address, {disk!r})")
    assert ranks.eval("code, set(fill(store))") == (0, {0})
    ranks.run("found = [key for key in KEYS if kinds(store, key) == [True]]")
    assert len(ranks.eval("found")) >= 40 - 16, "memory is full"
    # One read less than the threshold is not enough. Promotions begin in the order of the reads.
    ranks.run("rare, often = found[0], found[-1]")
    ranks.run(f"[store.get(rare) for _ in range({threshold} - 1)]")
    ranks.run(f"right = [store.get(often) == value(often) for _ in range({threshold})]")
    assert ranks.eval("all(right)")
    assert ranks.eval("until(lambda: False in kinds(store, often))")
    assert ranks.eval("kinds(store, rare)") == [True]
    assert ranks.eval("[key for key in KEYS if store.get(key) != value(key)]") == []


def test_number_of_ranks_on_a_path_is_limited(ranks, disk):
    ranks.run("import fcntl, resource")
    ranks.run("most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]")
    ranks.run("resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))")
    ranks.run(f"held = [open(f'{disk}/rank-{{rank}}.lock', 'w') for rank in range(1023)]")
    ranks.run("[fcntl.flock(it, fcntl.LOCK_EX) for it in held]")
    ranks.run(f"last, code = disked(master.address, {disk!r})")
    assert ranks.eval(f"code, os.path.isdir({disk!r} + '/rank-1023')") == (0, True)
    ranks.run(f"beyond, code = disked(master.address, {disk!r})")
    assert ranks.eval("code") == -600
    assert "1024 stores already use" in ranks.tail()
    assert ranks.eval("last.put('k', b'v'), last.get('k')") == (0, b"v")
