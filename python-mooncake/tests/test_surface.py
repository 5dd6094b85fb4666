"""The surface of the package for programs that inspect it."""

import importlib.metadata
import inspect
import os
import pathlib
import shutil
import subprocess
import sys

import mooncake
import mooncake.store
import pytest
from mooncake.store import MooncakeDistributedStore, ReplicateConfig, SoftPinAction

METHODS = {
    "setup": "local_hostname metadata_server global_segment_size local_buffer_size protocol rdma_devices "
    "master_server_addr engine enable_ssd_offload ssd_offload_path tenant_id enable_client_http_server "
    "client_http_port",
    "setup_dummy": "mem_pool_size local_buffer_size server_address",
    "close": "",
    "health_check": "",
    "get_hostname": "",
    "register_buffer": "buffer_ptr size",
    "unregister_buffer": "buffer_ptr",
    "put": "key value config",
    "put_parts": "key parts config",
    "put_batch": "keys values config",
    "put_from": "key buffer_ptr size config",
    "batch_put_from": "keys buffer_ptrs sizes config",
    "batch_put_from_multi_buffers": "keys all_buffer_ptrs all_sizes config",
    "get": "key",
    "get_batch": "keys",
    "get_into": "key buffer_ptr size",
    "batch_get_into": "keys buffer_ptrs sizes",
    "batch_get_into_multi_buffers": "keys all_buffer_ptrs all_sizes prefer_alloc_in_same_node",
    "get_into_ranges": "buffer_ptrs all_keys all_dst_offsets all_src_offsets all_sizes",
    "get_buffer": "key",
    "batch_get_buffer": "keys",
    "get_size": "key",
    "is_exist": "key",
    "batch_is_exist": "keys",
    "get_replica_desc": "key",
    "batch_get_replica_desc": "keys",
    "get_offload_rpc_read_count": "",
    "put_from_with_metadata": "key buffer_ptr metadata_buffer_ptr size metadata_size config",
    "batch_replica_clear": "keys segment_name",
    "create_copy_task": "key targets",
    "create_move_task": "key source target",
    "query_task": "task_id",
    "mount_segment": "path size offset protocol location",
    "unmount_segment": "segment_ids grace_period_seconds",
    "allocate_and_mount_segment": "size protocol location",
    "unmount_and_free_segment": "segment_ids grace_period_seconds",
    "unmount_local_disk_segment": "grace_period_seconds",
    "alloc_from_mem_pool": "size",
    "init_all": "protocol device size",
    "remove": "key force",
    "batch_remove": "keys force",
    "remove_by_regex": "regex_pattern force",
    "remove_all": "force",
}


@pytest.mark.parametrize("name", METHODS)
def test_signatures_and_docstrings_survive(name):
    method = getattr(MooncakeDistributedStore, name)
    assert list(inspect.signature(method).parameters)[1:] == METHODS[name].split()
    assert method.__doc__


def test_stubs_name_every_method():
    stubs = pathlib.Path(mooncake.__file__).with_name("store.pyi").read_text()
    for name in METHODS:
        assert f"def {name}(" in stubs
    for name in mooncake.store.__all__:
        forms = (f"{name}:", f"class {name}", f"def {name}(", f"\n{name} = ")
        assert any(form in stubs for form in forms), name


def test_probes_of_clients_succeed():
    assert "force" in MooncakeDistributedStore.batch_remove.__doc__
    assert "enable_ssd_offload" in MooncakeDistributedStore.setup.__doc__
    assert hasattr(ReplicateConfig, "group_ids")
    assert hasattr(ReplicateConfig(), "with_hard_pin")
    with pytest.raises(TypeError, match="some_new_option"):
        MooncakeDistributedStore().setup(*"abcdefg", some_new_option=1)


def test_names_that_clients_import_exist():
    for name in mooncake.store.__all__:
        assert hasattr(mooncake.store, name), name
    assert mooncake.MooncakeDistributedStore is MooncakeDistributedStore
    assert repr(MooncakeDistributedStore) == "<class 'mooncake.store.MooncakeDistributedStore'>"
    assert mooncake.store.KVCACHE == mooncake.store.ObjectDataType.KVCACHE
    assert mooncake.store.COMPLETE.name == "COMPLETE"


def test_both_spellings_of_the_soft_pin():
    config = ReplicateConfig()
    assert config.with_soft_pin is False
    config.with_soft_pin = True
    assert config.soft_pin_action == SoftPinAction.ENABLE
    config.soft_pin_action = SoftPinAction.DISABLE
    assert config.with_soft_pin is False
    with pytest.raises(TypeError):
        config.soft_pin_action = "ENABLE"


def test_binding_to_a_numa_node():
    script = (
        "import os; from mooncake.store import *; bind_to_numa_node(0); print(len(os.sched_getaffinity(0)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0 and int(done.stdout) >= 1, done.stderr
    script = "from mooncake.store import *; bind_to_numa_node(4096)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0 and "there is no NUMA node 4096" in done.stderr


SITE = pathlib.Path(mooncake.__file__).parents[1]


def official(folder):
    """The records of the official wheel."""
    records = folder / "mooncake_transfer_engine-0.3.13.dist-info"
    records.mkdir()
    records.joinpath("METADATA").write_text(
        "Metadata-Version: 2.1\nName: mooncake-transfer-engine\nVersion: 0.3.13\n"
    )


def import_from(folder, program="import mooncake"):
    environment = dict(os.environ, PYTHONPATH=str(folder))
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)


def test_mixture_with_the_official_wheel_is_refused(tmp_path):
    """The state that `pip` leaves when ours is installed over the official one."""
    shutil.copytree(SITE / "mooncake", tmp_path / "mooncake")
    suffix = next(s for s in __import__("importlib.machinery").machinery.EXTENSION_SUFFIXES if "cpython" in s)
    (tmp_path / "mooncake" / f"store{suffix}").write_bytes(b"theirs")
    official(tmp_path)
    done = import_from(tmp_path)
    assert done.returncode != 0
    assert "mooncake-transfer-engine 0.3.13" in done.stderr and "hint: " in done.stderr


def test_official_wheel_over_ours_is_refused(tmp_path):
    """The other order: their `__init__.py` has replaced ours, so that the guard beside the folder must
    notice."""
    shutil.copytree(SITE / "mooncake", tmp_path / "mooncake")
    shutil.copy(SITE / "tiffin_mooncake_guard.py", tmp_path)
    shutil.copy(SITE / "tiffin_mooncake_guard.pth", tmp_path)
    official(tmp_path)
    # A site folder, so that its .pth file is read; the environment's own is excluded, because it has a
    # guard too.
    program = f"import site; site.addsitedir({str(tmp_path)!r}); import sys; "
    program += f"sys.path.insert(0, {str(tmp_path)!r}); import mooncake; print(mooncake.__file__)"
    command = [sys.executable, "-S", "-c", program]
    whole = subprocess.run(
        command, capture_output=True, text=True, env=dict(os.environ, PYTHONPATH=str(SITE))
    )
    assert whole.returncode == 0 and str(tmp_path) in whole.stdout, whole.stderr
    (tmp_path / "mooncake" / "__init__.py").write_text("theirs = True\n")
    mixed = subprocess.run(command, capture_output=True, text=True)
    assert mixed.returncode != 0
    assert "mooncake-transfer-engine 0.3.13" in mixed.stderr and "hint: " in mixed.stderr
    # Uninstalling theirs also removes the files that it had replaced.
    (tmp_path / "mooncake" / "__init__.py").unlink()
    rest = subprocess.run(command, capture_output=True, text=True)
    assert rest.returncode != 0
    assert "are missing" in rest.stderr and "hint: pip install --force-reinstall" in rest.stderr
    # Elsewhere on the path the official package is complete, and is not refused.
    shutil.rmtree(tmp_path / "mooncake")
    (tmp_path / "theirs" / "mooncake").mkdir(parents=True)
    (tmp_path / "theirs" / "mooncake" / "__init__.py").write_text("theirs = True\n")
    done = import_from(tmp_path / "theirs", "import mooncake; print(mooncake.theirs)")
    assert done.stdout == "True\n", done.stderr


def test_guard_is_installed_and_checks_once():
    program = (
        "import sys, tiffin_mooncake_guard as it; before = it._Guard in sys.meta_path; import mooncake; "
    )
    program += "print(before, it._Guard in sys.meta_path)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "True False\n", done.stderr


def test_commands_are_installed():
    commands = {entry.name: entry.value for entry in importlib.metadata.entry_points(group="console_scripts")}
    assert commands["mooncake_master"] == "mooncake.master:main"
    assert commands["mooncake_client"] == "mooncake.client:main"
    assert commands["mc_store_rest_server"] == "mooncake.mooncake_store_service:main"
    assert commands["mooncake_http_metadata_server"] == "mooncake.http_metadata_server:main"
    for name in (
        "mc_store_rest_server",
        "mooncake_http_metadata_server",
        "mooncake_client",
        "mooncake_master",
    ):
        command = pathlib.Path(sys.executable).with_name(name)
        done = subprocess.run([command, "--help"], capture_output=True, text=True)
        assert done.returncode == 0 and name in done.stdout, done.stderr
