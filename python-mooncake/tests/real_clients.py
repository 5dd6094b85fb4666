"""Clients of `mooncake.store` as their authors publish them, on our drop-in: `make clients`.

It is not part of `make test`: the clients come from PyPI. One that is not installed is skipped with the
reason. A client is loaded from its own files; only `mooncake.store` is ours.

`make clients TORCH=1` also runs SpecForge's store (`python/tests/test_features_torch.py`), and those of
TransferQueue, speculators and vllm-omni (`real_clients_torch.py`). Others are not run, because of what their
packages require: LMCache (cupy, cuda-python), SGLang (78 packages, CUDA kernels among them), LMDeploy (CUDA
tensors). `test_clients.py` has their calls.
"""

import importlib.util
import pathlib
import sys

import numpy as np
import pytest
from mooncake.store import BufferPool, MooncakeDistributedStore, ReplicateConfig

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from test_clients import arguments, master, stores

__all__ = ["master", "stores"]

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def structured():
    """Mooncake's own `structured_object_store`, which miles and ROLL use, from the official wheel."""
    pytest.importorskip("msgpack", reason="msgpack is not installed")
    found = sorted(ROOT.glob(".venv-peer/lib/python3*/site-packages/mooncake/structured_object_store.py"))
    if not found:
        pytest.skip("the official wheel is not installed in .venv-peer")
    spec = importlib.util.spec_from_file_location("official_structured_object_store", found[0])
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    assert module._mooncake_store.MooncakeDistributedStore is MooncakeDistributedStore
    return module


@pytest.fixture(params=["without a pool", "with a pool"])
def transfer(request, structured, master, stores):
    store = stores()
    assert store.setup(*arguments(master)) == 0
    pool = BufferPool(store) if request.param == "with a pool" else None
    return structured.MooncakeBundleTransfer(store, buffer_pool=pool)


def test_object_survives_a_round_trip(structured, transfer):
    value = {
        "weights": np.arange(30_000, dtype=np.float32).reshape(100, 300),
        "mask": np.arange(100) % 3 == 0,
        "raw": b"some bytes",
    }
    ref = transfer.put_object(value, config=ReplicateConfig())
    found = transfer.get_object(ref)
    assert found["weights"].dtype == np.float32 and (found["weights"] == value["weights"]).all()
    assert (found["mask"] == value["mask"]).all() and bytes(found["raw"]) == value["raw"]
    spec = transfer.read_spec(ref).select_members(["weights"]).slice_member("weights", 0, 10, 20)
    part = transfer.materialize(spec)
    assert (part.objects["weights"] == value["weights"][10:20]).all()
    target = np.zeros((10, 300), dtype=np.float32)
    transfer.materialize_into(spec, {"weights": target})
    assert (target == value["weights"][10:20]).all()
    structured.MooncakeBundleTransfer.release_result(part)
    structured.MooncakeBundleTransfer.release_result(found)
    transfer.remove_bundle(ref)
    with pytest.raises(RuntimeError, match="-704"):
        transfer.get_object(ref)


def test_batch_of_rows_is_read_in_parts(structured, transfer):
    batch = {
        "ids": np.arange(64, dtype=np.int64).reshape(16, 4),
        "text": np.array([f"row {i}" for i in range(16)], dtype=object),
    }
    ref = transfer.put(batch, type="dict", namespace="n", partition="p")
    handle = structured.export_dataproto_ref(ref)
    assert structured.is_dataproto_ref_handle(handle)
    found = transfer.get(structured.import_dataproto_ref(handle), type="dict")
    assert (found["ids"] == batch["ids"]).all() and list(found["text"]) == list(batch["text"])
    rows = transfer.get(ref, type="dict", rows=slice(2, 10, 2))
    assert (rows["ids"] == batch["ids"][2:10:2]).all()
    rows = transfer.get(ref, type="dict", fields=["ids"], rows=[3, -1])
    assert (rows["ids"] == batch["ids"][[3, -1]]).all()
    transfer.cleanup_dataproto(ref)
    with pytest.raises(RuntimeError, match="-704"):
        transfer.get(ref, type="dict")
