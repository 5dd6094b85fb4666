"""Structured objects and batches, on a store of plain calls and on the real one."""

import ctypes
import json
import re
import subprocess
import sys
import types

import numpy as np
import pytest
from mooncake import structured_object_store as module
from mooncake.store import MooncakeDistributedStore
from mooncake.structured_object_store import (
    BundleTransferPolicy,
    FieldSchema,
    MooncakeBundleTransfer,
    StructuredMemberSlice,
    StructuredObjectPayload,
    export_ref,
    import_ref,
    is_dataproto_ref_handle,
    raw_destination,
)


class PlainStore:
    """A minimal store."""

    def __init__(self):
        self.objects = {}
        self.fail_at = None

    def put(self, key, value, config=None):
        if self.fail_at is not None and self.fail_at in key:
            return -200
        self.objects[key] = bytes(value)
        return 0

    def get(self, key):
        return self.objects.get(key, b"")

    def remove(self, key, force=False):
        return 0 if self.objects.pop(key, None) is not None else -704


class FastStore(PlainStore):
    """The same with the zero-copy calls; it counts the bytes that are read."""

    def __init__(self):
        super().__init__()
        self.read = 0

    def batch_put_from(self, keys, pointers, sizes, config=None):
        parts = zip(keys, pointers, sizes, strict=True)
        return [self.put(key, ctypes.string_at(pointer, size)) for key, pointer, size in parts]

    def batch_get_into(self, keys, pointers, sizes):
        counts = []
        for key, pointer, size in zip(keys, pointers, sizes, strict=True):
            value = self.objects.get(key)
            counts.append(-704 if value is None else len(value) if len(value) <= size else -600)
            if counts[-1] > 0:
                ctypes.memmove(pointer, value, len(value))
                self.read += len(value)
        return counts

    def get_into_ranges(self, pointers, all_keys, all_to, all_from, all_sizes):
        results = []
        for pointer, keys, to, start, sizes in zip(
            pointers, all_keys, all_to, all_from, all_sizes, strict=True
        ):
            value = self.objects[keys[0]][start[0][0] : start[0][0] + sizes[0][0]]
            ctypes.memmove(pointer + to[0][0], value, len(value))
            self.read += len(value)
            results.append([[len(value)]])
        return results

    def batch_remove(self, keys, force=False):
        return [self.remove(key, force) for key in keys]


@pytest.fixture(params=[PlainStore, FastStore])
def store(request):
    return request.param()


# Bundles


def test_bundle_has_the_keys_and_the_manifest_of_the_original(store):
    transfer = MooncakeBundleTransfer(store, key_prefix="/p/", default_chunk_bytes=4)
    ref = transfer.put_bundle(b"meta", {"a": b"0123456789", "b": b"xyz", "empty": b""}, partition="part")
    base = ref.manifest_key.removesuffix("/manifest")
    assert re.fullmatch(r"p/part/[0-9a-f]{32}", base)
    chunks = [f"{base}/buffer/a/chunk/{index}" for index in range(3)]
    assert set(store.objects) == {f"{base}/meta", f"{base}/buffer/b", f"{base}/manifest", *chunks}
    assert [store.objects[key] for key in chunks] == [b"0123", b"4567", b"89"]
    manifest = json.loads(store.objects[ref.manifest_key])
    assert manifest["object_id"] == base.removeprefix("p/")
    assert (manifest["version"], manifest["layout"]) == (1, "bundle")
    assert manifest["buffers"]["a"]["bytes"] == 10
    assert manifest["buffers"]["b"]["chunks"] == [{"key": f"{base}/buffer/b", "bytes": 3}]
    assert manifest["buffers"]["empty"] == {"key": f"{base}/buffer/empty", "bytes": 0, "chunks": []}
    for _ in range(2):
        transfer.remove_bundle({"manifest_key": ref.manifest_key})
        assert store.objects == {}


def test_failed_write_leaves_nothing(store):
    transfer = MooncakeBundleTransfer(store, default_chunk_bytes=4)
    for fail_at in ("/chunk/1", "/manifest"):
        store.fail_at = fail_at
        with pytest.raises(RuntimeError, match=r"put failed for .*: -200"):
            transfer.put_bundle(b"meta", {"a": b"0123456789"})
        assert store.objects == {}


def test_failed_removal_does_not_hide_the_failed_write(caplog):
    transfer = MooncakeBundleTransfer(MooncakeDistributedStore())
    with pytest.raises(RuntimeError, match="put failed for"):
        transfer.put_bundle(b"meta", {"a": b"0123456789"})
    assert "may remain: remove failed for" in caplog.text


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda it: it.put_bundle("text", {}), TypeError("meta must be bytes-like, got str")),
        (lambda it: it.put_bundle(b"", {"a": 3}), TypeError("a must be bytes-like, got int")),
        (lambda it: it.put_bundle(b"", {"a/b": b""}), ValueError("invalid bundle buffer name: 'a/b'")),
        (lambda it: it.put_bundle(b"", {}, partition="a/b"), ValueError("invalid bundle partition: 'a/b'")),
        (lambda it: it.put_bundle(b"", {}, partition=""), ValueError("invalid bundle partition: ''")),
        (lambda it: it.put_bundle(b"", {}, chunk_bytes=0), ValueError("chunk_bytes must be positive")),
        (lambda it: it.get_object({"key": 1}), ValueError("bundle ref must include manifest_key")),
        (lambda it: it.get_object({"manifest_key": "x"}), json.JSONDecodeError("Expecting value", "", 0)),
        (lambda it: it.put_structured_object(StructuredObjectPayload()), TypeError("needs buffers")),
        (
            lambda it: it.put_structured_object(
                StructuredObjectPayload({"__mooncake_structured_fields__": 1}, {})
            ),
            ValueError("reserved"),
        ),
        (lambda it: it.put({}, type="zz"), ValueError("unsupported Mooncake payload type: 'zz'")),
        (lambda it: it.get({"type": "other"}), ValueError("not a Mooncake DataProto ref handle")),
        (lambda it: FieldSchema("pickle"), ValueError("unsupported schema codec: 'pickle'")),
        (lambda it: BundleTransferPolicy(put_mode="x"), ValueError("unsupported put_mode")),
        (lambda it: MooncakeBundleTransfer(it.store, "/"), ValueError("key_prefix must be a non-empty")),
    ],
)
def test_mistakes_are_named(call, error):
    with pytest.raises(type(error), match=re.escape(str(error).split(":")[0])):
        call(MooncakeBundleTransfer(PlainStore()))


# Objects


def test_object_is_returned_unchanged(store):
    transfer = MooncakeBundleTransfer(store, default_chunk_bytes=64)
    members = {
        "a": np.arange(60, dtype=np.float32).reshape(3, 4, 5),
        "t": np.arange(6).reshape(2, 3).T,
        "none": np.empty((0, 3), np.int16),
        "scalar": np.array(5),
        "raw": b"bytes",
    }
    found = transfer.get_object({"manifest_key": transfer.put_object(members).manifest_key})
    for name, value in members.items():
        if name == "raw":
            assert found[name].tobytes() == value
        else:
            assert found[name].dtype == value.dtype and found[name].shape == value.shape
            np.testing.assert_array_equal(found[name], value)
            found[name][...] = 0
    single = transfer.get_object(transfer.put_object(members["a"]))
    np.testing.assert_array_equal(single, members["a"])
    with pytest.raises(TypeError, match="cannot be stored"):
        transfer.put_object({"x": np.array([{}], object)})


@pytest.mark.parametrize(
    ("axis", "start", "end", "step"),
    [(0, 2, 7, 1), (0, 1, 9, 3), (0, 5, 5, 1), (1, 1, 3, 1), (-1, 0, None, 2)],
)
def test_part_of_a_member_is_read(store, axis, start, end, step):
    transfer = MooncakeBundleTransfer(store, default_chunk_bytes=50)
    array = np.arange(10 * 4 * 3, dtype=np.int32).reshape(10, 4, 3)
    spec = transfer.read_spec(transfer.put_object({"a": array, "b": b"rest"})).select_members(["a"])
    spec = spec.slice_member("a", axis, start, end, step)
    assert spec.member_slice("a") == StructuredMemberSlice(axis, start, end, step)
    index = [slice(None)] * 3
    index[axis] = slice(start, end, step)
    expected = array[tuple(index)]
    objects = transfer.materialize(spec).objects
    assert list(objects) == ["a"]
    np.testing.assert_array_equal(objects["a"], expected)
    into = np.full(expected.shape, -1, np.int32)
    assert transfer.materialize_into(spec, {"a": into}).objects["a"] is into
    np.testing.assert_array_equal(into, expected)


def test_only_the_bytes_of_the_rows_are_read():
    store = FastStore()
    transfer = MooncakeBundleTransfer(store, default_chunk_bytes=100)
    ref = transfer.put_object({"a": np.arange(1000, dtype=np.uint8)})
    spec = transfer.read_spec(ref).slice_member("a", 0, 250, 420)
    store.read = 0
    assert (
        transfer.materialize(spec).objects["a"].tolist() == np.arange(1000, dtype=np.uint8)[250:420].tolist()
    )
    meta = json.loads(store.objects[ref.manifest_key])["meta"]["bytes"]
    assert store.read == 170 + meta


def test_destinations_must_fit(store):
    transfer = MooncakeBundleTransfer(store)
    array = np.arange(6, dtype=np.int64).reshape(2, 3)
    spec = transfer.read_spec(transfer.put_object({"a": array}))
    expected = "structured ndarray field a destination shape mismatch: expected (2, 3), got (3,)"
    with pytest.raises(ValueError, match=re.escape(expected)):
        transfer.materialize_into(spec, {"a": np.empty(3)})
    with pytest.raises(ValueError, match="has type float64"):
        transfer.materialize_into(spec, {"a": np.empty((2, 3))})
    with pytest.raises(KeyError, match=re.escape("unknown bundle buffers: ['zz']")):
        transfer.materialize(spec.select_members(["zz"]))
    with pytest.raises(ValueError, match="no member"):
        transfer.materialize(spec.select_members([]))
    memory = np.zeros(6, np.int64)
    place = raw_destination(memory.ctypes.data, memory.nbytes, memory)
    assert transfer.materialize_into(spec, {"a": place}).objects["a"] is place
    assert memory.tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match="needs 48 bytes"):
        transfer.materialize_into(spec, {"a": raw_destination(memory.ctypes.data, 47, memory)})


# Batches


def rollout():
    """The payload of miles, with arrays instead of tensors."""
    return {
        "tokens": [np.array([1, 2, 3], np.int32), np.array([4, 5], np.int32)],
        "rewards": [0.5, 1.0],
        "partition": [0, 1],
        "raw_reward": [0.5, 1.0],
        "total_lengths": [3, 2],
        "prompt": ["hello", "world"],
        "metadata": [{"a": 1}, {"b": [2, None]}],
        "weight_versions": None,
    }


SCHEMAS = {
    "tokens": FieldSchema("typed_ragged", False, {"section": "non_tensor_batch"}),
    "rewards": FieldSchema("ndarray", False, {"section": "non_tensor_batch", "dtype": "float32"}),
    "partition": FieldSchema("ndarray", False, {"section": "non_tensor_batch", "dtype": "int64"}),
    "prompt": FieldSchema("msgpack_ragged", False, {"section": "non_tensor_batch"}),
    "metadata": FieldSchema("msgpack_ragged", False, {"section": "non_tensor_batch"}),
    "raw_reward": FieldSchema("auto", False, {"section": "meta_info"}),
    "total_lengths": FieldSchema("auto", False, {"section": "meta_info"}),
}


def check_rollout(found):
    data = rollout()
    assert sorted(found) == sorted(data)
    assert [row.tolist() for row in found["tokens"]] == [[1, 2, 3], [4, 5]]
    assert all(row.dtype == np.int32 for row in found["tokens"])
    assert found["rewards"].dtype == np.float32 and found["rewards"].tolist() == data["rewards"]
    assert found["partition"].tolist() == data["partition"]
    for name in ("prompt", "metadata", "raw_reward", "total_lengths", "weight_versions"):
        assert found[name] == data[name]


def test_miles_calls(store):
    transfer = MooncakeBundleTransfer(store, key_prefix="miles-object-store")
    ref = transfer.put(
        rollout(), type="dict", namespace="miles", chunk_bytes=None, config=None, field_schemas=SCHEMAS
    )
    handle = json.loads(json.dumps(export_ref(ref)))
    assert is_dataproto_ref_handle(handle) and handle["batch_size"] == 2 and handle["namespace"] == "miles"
    result = transfer.get(import_ref(handle), type="dict")
    check_rollout(result)
    MooncakeBundleTransfer.release_result(result)
    for _ in range(2):
        transfer.cleanup_dataproto(import_ref(handle))
        assert store.objects == {}
    with pytest.raises((RuntimeError, ValueError)):
        transfer.get(import_ref(handle), type="dict")


def test_removed_payloads_are_named():
    store = FastStore()
    transfer = MooncakeBundleTransfer(store)
    ref = transfer.put({"x": np.arange(4)}, type="dict")
    for key in [key for key in store.objects if "/buffer/" in key]:
        store.remove(key)
    with pytest.raises(RuntimeError, match=r"batch_get_into failed for .*: expected 32, got -704"):
        transfer.get(ref)


ROWS = {
    "ndarray": [[1, 2], [3, 4], [5, 6]],
    "typed_ragged": [np.ones((2, 3), np.int16), np.empty((0, 3), np.int16), np.array(7, np.int16)],
    "bytes_ragged": [b"a", b"", b"\x00\xff"],
    "media_bytes": [b"png", bytearray(b"jpg"), memoryview(b"gif")],
    "media_list_ragged": [[b"a", b"bc"], [], [b""]],
    "utf8_ragged": ["grün", "", "\n"],
    "msgpack_ragged": [{"a": [1, None]}, {1: b"x"}, "text"],
    "json_ragged": [{"a": [1, None]}, [True], "text"],
    "ragged_tensor_dict": [{"x": np.arange(2)}, {"y": np.ones(1)}, {}],
}


def plain(value):
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, dict):
        return {name: plain(it) for name, it in value.items()}
    return [plain(it) for it in value] if isinstance(value, list) else value


@pytest.mark.parametrize("codec", ROWS)
def test_every_codec_returns_its_rows(codec):
    transfer = MooncakeBundleTransfer(FastStore(), default_chunk_bytes=5)
    schema = {"x": FieldSchema(codec)}
    data = {"non_tensor_batch": {"x": ROWS[codec]}, "batch": {"ids": np.arange(3)}, "meta_info": {"step": 1}}
    ref = transfer.put(data, field_schemas=schema)
    handle = json.loads(json.dumps(export_ref(ref)))
    found = transfer.get(handle)
    assert plain(found["non_tensor_batch"]["x"]) == plain(ROWS[codec])
    assert found["batch"]["ids"].tolist() == [0, 1, 2] and found["meta_info"] == {"step": 1}
    some = transfer.get(handle, rows=[-1, 0])
    assert plain(some["non_tensor_batch"]["x"]) == [plain(ROWS[codec])[2], plain(ROWS[codec])[0]]
    assert some["batch"]["ids"].tolist() == [2, 0]
    part = transfer.get(handle, rows=slice(1, None), fields=["x"])
    assert plain(part["non_tensor_batch"]["x"]) == plain(ROWS[codec])[1:] and part["batch"] == {}
    if codec == "ndarray":
        return
    rows = [None, *ROWS[codec][1:]]
    found = transfer.get(transfer.put({"x": rows}, type="dict", field_schemas=schema), type="dict")
    assert plain(found["x"]) == plain(rows)
    with pytest.raises(ValueError, match="field 'x': row 0 is None"):
        transfer.put({"x": rows}, type="dict", field_schemas={"x": FieldSchema(codec, nullable=False)})


@pytest.mark.parametrize(
    ("rows", "codec"),
    [
        (np.arange(3), "ndarray"),
        (["a", None], "utf8_ragged"),
        ([b"a", b"b"], "bytes_ragged"),
        ([np.arange(2), np.arange(3)], "typed_ragged"),
        ([np.arange(2), np.arange(3.0)], "msgpack_ragged"),
        ([1, "a"], "msgpack_ragged"),
        ([None, None], "msgpack_ragged"),
    ],
)
def test_codec_is_chosen_by_the_rows(rows, codec):
    transfer = MooncakeBundleTransfer(PlainStore())
    ref = transfer.put({"non_tensor_batch": {"x": rows}})
    assert ref.encoded_non_tensor["x"]["codec"] == codec
    assert plain(transfer.get(ref)["non_tensor_batch"]["x"]) == plain(rows)


def test_flat_dict_is_split_by_rows():
    transfer = MooncakeBundleTransfer(PlainStore())
    ref = transfer.put({"a": np.zeros((2, 3)), "b": ["x", "y"], "c": [1, 2, 3], "d": "text"}, type="dict")
    assert {name: it.section for name, it in ref.field_index.items()} == {
        "a": "batch",
        "b": "non_tensor_batch",
    }
    assert (ref.meta_info, len(ref)) == ({"c": [1, 2, 3], "d": "text"}, 2)
    with pytest.raises(ValueError, match="differ in their number of rows"):
        transfer.put({"batch": {"a": np.zeros(2), "b": np.zeros(3)}})
    with pytest.raises(TypeError, match="JSON-safe"):
        transfer.put({"meta_info": {"x": object()}})


def test_fields_can_be_chosen(store):
    transfer = MooncakeBundleTransfer(store)
    data = {"batch": {"a": np.arange(4), "b": np.ones((4, 2))}, "non_tensor_batch": {"n": list("wxyz")}}
    ref = transfer.put({**data, "meta_info": {"s": 1, "t": 2}})
    found = transfer.get(ref, batch_fields=["b"], non_tensor_fields=[], meta_info_keys=["t"])
    assert (
        list(found["batch"]) == ["b"] and found["non_tensor_batch"] == {} and found["meta_info"] == {"t": 2}
    )
    into = np.empty(2, np.int64)
    part = transfer.get(ref, fields=["a"], rows=slice(1, 3), destinations={"a": into})
    assert part["batch"]["a"] is into and into.tolist() == [1, 2]
    rows = transfer.get(ref, rows=StructuredMemberSlice(0, 0, 4, 3), data_cls=lambda **parts: parts)
    assert rows["batch"]["a"].tolist() == [0, 3] and rows["non_tensor_batch"]["n"] == ["w", "z"]
    with pytest.raises(KeyError, match="unknown DataProto fields"):
        transfer.get(ref, fields=["zz"])
    with pytest.raises(ValueError, match="cannot be combined"):
        transfer.get(ref, fields=["a"], batch_fields=["b"])
    with pytest.raises(IndexError):
        transfer.get(ref, rows=[4])
    with pytest.raises(ValueError, match="positive"):
        transfer.get(ref, rows=slice(None, None, -1))


def test_fields_can_be_appended(store):
    transfer = MooncakeBundleTransfer(store)
    first = transfer.put({"batch": {"a": np.arange(2)}, "meta_info": {"s": 1}}, stage="rollout")
    count = len(store.objects)
    more = {"batch": {"b": np.arange(2.0)}, "meta_info": {"t": 2}}
    second = transfer.append_dataproto_fields(export_ref(first), more, stage="reward")
    found = transfer.get(second)
    assert (sorted(found["batch"]), found["meta_info"]) == (["a", "b"], {"s": 1, "t": 2})
    assert sorted(transfer.get(first)["batch"]) == ["a"]
    view = transfer.dataproto_manifest_view(second)
    assert view["stages"]["reward"]["members"] == {"batch.b": 16} and view["batch_size"] == 2
    with pytest.raises(ValueError, match=re.escape("already has these fields: ['a']")):
        transfer.append_dataproto_fields(first, {"batch": {"a": np.zeros(2)}}, stage="x")
    changed = transfer.append_dataproto_fields(first, {"batch": {"a": np.ones(2)}}, stage="x", overwrite=True)
    assert transfer.get(changed)["batch"]["a"].tolist() == [1, 1]
    with pytest.raises(ValueError, match="3 rows"):
        transfer.append_dataproto_fields(first, {"batch": {"c": np.zeros(3)}}, stage="y")
    transfer.cleanup_dataproto_append(first, changed)
    transfer.cleanup_dataproto_append(first, second)
    assert len(store.objects) == count
    transfer.cleanup_dataproto(first)
    assert store.objects == {}


def test_one_group_is_the_group_of_every_key():
    from mooncake.store import ReplicateConfig

    seen = []

    class Store(FastStore):
        def batch_put_from(self, keys, pointers, sizes, config=None):
            seen.append((len(keys), config.group_ids, config.replica_num))
            return super().batch_put_from(keys, pointers, sizes)

    config = ReplicateConfig()
    config.replica_num, config.group_ids = 2, ["g"]
    ref = MooncakeBundleTransfer(Store()).put({"batch": {"a": np.arange(2)}}, config=config)
    assert ref.storage_group_id == "g" and export_ref(ref)["storage_group_id"] == "g"
    assert seen and all(groups == ["g"] * count and replicas == 2 for count, groups, replicas in seen)
    config.group_ids = ["g", "h"]
    with pytest.raises(ValueError, match="one group id"):
        MooncakeBundleTransfer(Store()).put({"batch": {"a": np.arange(2)}}, config=config)


def test_number_of_members_is_bounded(monkeypatch):
    monkeypatch.setattr("mooncake._bundle.MEMBERS_MAX", 2)
    transfer = MooncakeBundleTransfer(PlainStore())
    transfer.put_bundle(b"", {"a": b"", "b": b""})
    with pytest.raises(ValueError, match="at most 2 buffers"):
        transfer.put_bundle(b"", {"a": b"", "b": b"", "c": b""})


class Tensor:
    """The part of torch's tensor that is used; the test environment has no torch."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, f"torch.{array.dtype}"

    def detach(self):
        return self

    cpu = contiguous = detach

    def numel(self):
        return self.array.size

    def element_size(self):
        return self.array.itemsize

    def reshape(self, *shape):
        return Tensor(self.array.reshape(*shape))

    def view(self, dtype):
        return Tensor(self.array.view(dtype))

    def numpy(self):
        return self.array

    def tolist(self):
        return self.array.tolist()

    def __getitem__(self, index):
        return Tensor(self.array[index])


@pytest.fixture
def torch(monkeypatch):
    made = types.SimpleNamespace(uint8=np.uint8, float16=np.float16, int64=np.int64)
    made.frombuffer = lambda data, dtype: Tensor(np.frombuffer(data, dtype))
    made.empty = lambda shape, dtype: Tensor(np.empty(shape, dtype))
    monkeypatch.setitem(sys.modules, "torch", made)


def test_tensors_return_as_tensors(torch):
    transfer = MooncakeBundleTransfer(FastStore(), default_chunk_bytes=16)
    batch = {
        "t": Tensor(np.arange(12, dtype=np.float16).reshape(3, 4)),
        "none": Tensor(np.empty((3, 0), np.int64)),
    }
    rows = [Tensor(np.arange(3)), None, Tensor(np.ones((2, 2), np.float16))]
    dicts = [
        {"x": Tensor(np.arange(2)), "y": Tensor(np.ones(1, np.float16))},
        {"x": Tensor(np.arange(0))},
        None,
    ]
    ref = transfer.put({"batch": batch, "non_tensor_batch": {"rows": rows, "dicts": dicts}})
    assert [it["codec"] for it in ref.encoded_non_tensor.values()] == ["ragged_tensor", "ragged_tensor_dict"]
    found = transfer.get(json.loads(json.dumps(export_ref(ref))))
    for name, value in batch.items():
        assert (found["batch"][name].dtype, found["batch"][name].shape) == (value.dtype, value.shape)
        assert found["batch"][name].tolist() == value.tolist()
    others = found["non_tensor_batch"]
    assert [row and (row.dtype, row.tolist()) for row in others["rows"]] == [
        row and (row.dtype, row.tolist()) for row in rows
    ]
    assert [row and {name: it.tolist() for name, it in row.items()} for row in others["dicts"]] == [
        {"x": [0, 1], "y": [1.0]},
        {"x": []},
        None,
    ]
    assert transfer.get(ref, rows=slice(1, 3))["batch"]["t"].tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_without_numpy_the_error_names_the_extra(tmp_path):
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError(\"No module named 'numpy'\")")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import mooncake.structured_object_store"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode != 0 and "tiffin-mooncake[structured]" in done.stderr.splitlines()[-1]


def test_names_are_complete():
    assert all(hasattr(module, name) for name in module.__all__)


def test_two_processes_share_a_batch_through_the_store(worker):
    worker.run("import numpy as np, json, sys; master = Master()")
    worker.run(f"sys.path.insert(0, {str(__file__).rpartition('/')[0]!r})")
    assert worker.eval("connect(master.address)") == 0
    worker.run("from mooncake.structured_object_store import *; import test_structured as t")
    worker.run("transfer = MooncakeBundleTransfer(store, key_prefix='miles', default_chunk_bytes=1000)")
    worker.run("big = np.arange(5000, dtype=np.int64).reshape(1000, 5)")
    worker.run("ref = transfer.put({**t.rollout(), 'm': 1}, type='dict', field_schemas=t.SCHEMAS)")
    worker.run("wide = transfer.put({'batch': {'big': big}})")
    worker.run("handles = json.dumps([export_ref(ref), export_ref(wide)])")
    worker.run("other = Other(master.address)")
    worker.run("other(\"exec('from mooncake.structured_object_store import *; import json', globals())\")")
    worker.run("other(f\"exec({'import numpy as np; handles = ' + repr(handles)!r}, globals())\")")
    worker.run(
        "other(\"exec('transfer = MooncakeBundleTransfer(store); h = json.loads(handles)', globals())\")"
    )
    read = "[row.tolist() for row in transfer.get(h[0], type='dict')['tokens']]"
    assert worker.eval(f"other({read!r})") == [[1, 2, 3], [4, 5]]
    part = "transfer.get(h[1], rows=slice(300, 302))['batch']['big'].tolist()"
    assert worker.eval(f"other({part!r})") == [[*range(1500, 1505)], [*range(1505, 1510)]]
    worker.run("transfer.cleanup_dataproto(ref); transfer.cleanup_dataproto(wide)")
    assert worker.eval("fetch(master.metrics, '/get_all_keys')") == (200, "")
