"""The contract of the feature store: samples are read back unchanged, and bad input has its own error."""

import json

import numpy as np
import pytest
from tiffin.features import (
    BadRef,
    ConsumerBehind,
    Duplicate,
    FeatureStore,
    Mooncake,
    NotAvailable,
    SampleRef,
)

import helpers
from feature_stores import TENSORS, Faulty, resident, same


def test_all_types_and_layouts_are_returned(features):
    grid = np.arange(24).reshape(4, 6)
    tensors = {
        dtype: (grid % 2).astype(dtype) for dtype in ("float32", "float64", "float16", "int64", "int32")
    } | {dtype: (grid % 2).astype(dtype) for dtype in ("int16", "int8", "uint8", "bool")}
    tensors |= {"turned": grid.astype("float32").T, "every other": grid.astype("float16")[::2, 1::2]}
    tensors |= {"scalar": np.array(3.5, dtype="float64"), "empty": np.empty((0, 5), dtype="int32")}
    ref = features.put(tensors, sample_id="s", metadata={"run_id": "r", "num_tokens": 4, "note": [1, "x"]})
    assert (ref.run_id, ref.num_tokens, ref.metadata["note"]) == ("r", 4, [1, "x"])
    assert ref.estimated_bytes == sum(it.nbytes for it in tensors.values())
    assert ref.estimated_bytes == features.estimate_bytes(ref.feature_specs)
    told = SampleRef.from_json(ref.to_json())
    assert told == ref and len(ref.to_json()) < 4096
    got, handle = features.get(told)
    same(got, tensors)
    assert all(got[name].dtype == it.dtype for name, it in tensors.items())
    some, other = features.get(ref.to_json(), names=["scalar"])
    assert list(some) == ["scalar"]
    features.release(other)
    features.release(handle, reason="trained")
    assert resident(features) == 0


def test_tensors_of_get_are_independent_of_the_store(features):
    ref = features.put(TENSORS, sample_id="s")
    first, handle = features.get(ref)
    first["hidden"][:] = -1
    second, other = features.get(ref)
    same(second)
    features.abort("s")
    features.put({"hidden": np.ones(1000, dtype=np.float32)}, sample_id="t")
    same(second)
    features.release(handle)
    features.release(other)


def test_views_are_lent_and_outlive_their_sample(make):
    features = make("embedded")
    ref = features.put(TENSORS, sample_id="s")
    lent, handle = features.get(ref, lend=True)
    features.release(handle)
    assert resident(features) == 0 and not lent["hidden"].flags.writeable
    same(lent)


@pytest.mark.parametrize(
    ("tensors", "metadata"),
    [
        ({}, {}),
        ({"x": np.array([object()])}, {}),
        ({"x": "text"}, {}),
        (TENSORS, {"x": object()}),
    ],
    ids=["no tensors", "objects", "no tensor", "no JSON"],
)
def test_invalid_samples_are_refused(features, tensors, metadata):
    with pytest.raises(ValueError):
        features.put(tensors, sample_id="s", metadata=metadata)
    assert resident(features) == 0


def test_ref_that_does_not_match_is_refused(features):
    ref = features.put(TENSORS, sample_id="s")
    record = json.loads(ref.to_json())
    wrong = {
        "another store": record | {"feature_store_uri": "tiffin://other/s"},
        "another version": record | {"schema_version": 2},
        "no generation": record | {"metadata": {}},
        "no ref": {"nothing": 1},
        "another shape": json.loads(ref.to_json().replace('"shape":[4,6]', '"shape":[6,4]')),
        "fewer tensors": record | {"feature_specs": {"ids": record["feature_specs"]["ids"]}},
    }
    for what, given in wrong.items():
        with pytest.raises(BadRef):
            features.get(given)
        assert features.health()["active_leases"] == 0, what
    with pytest.raises(ValueError):
        features.adopt(record | {"metadata": {}})
    with pytest.raises(KeyError):
        features.get(ref, names=["nothing"])
    later = record | {"metadata": record["metadata"] | {"generation": ref.generation + 1}}
    later["metadata"].pop("index_generation")
    with pytest.raises(NotAvailable):
        features.get(later)


def test_wrong_credential_is_refused_at_attach_and_put_and_get(make):
    class Policy:
        required = True

        def check(self, presented):
            if presented != "secret":
                raise PermissionError("no")

    with pytest.raises(PermissionError):
        FeatureStore("s", memory="16MiB", auth=Policy(), credential="guess")
    with FeatureStore("s", memory="16MiB", auth=Policy(), credential="secret") as store:
        assert store.health()["auth_required"]
    with pytest.raises(PermissionError):
        FeatureStore("s", memory="16MiB", auth="secret", credential="guess")
    told = ["right"]
    features = make("embedded", auth=lambda credential: credential == told[0], credential="right")
    ref = features.put(TENSORS, sample_id="s")
    told[0] = "changed"
    for call in (lambda: features.put(TENSORS, sample_id="t"), lambda: features.get(ref)):
        with pytest.raises(PermissionError):
            call()
    told[0] = "right"
    assert features.health()["auth_required"] and resident(features) == 1


def test_servers_check_the_credential_too():
    with helpers.up("--memory", "16MiB", TIFFIN_TOKEN="secret") as (address, _):
        with pytest.raises(PermissionError):
            FeatureStore("s", address=address, credential="guess")
        FeatureStore("s", address=address, credential="secret").close()


def test_full_namespace_reports_a_consumer_behind(features):
    full = features.again(store_id=f"{features.store_id}-f", max_resident_bytes="96KiB")
    # Samples of one process count for the others, and so do bytes in another store.
    other = full if features.kind == "embedded" else features.again(store_id=full.store_id)
    array = np.zeros(60_000, dtype=np.uint8)
    ref = full.put({"x": array}, sample_id="a")
    assert 60_000 <= full.health()["resident_bytes"] < 70_000
    with pytest.raises(ConsumerBehind, match="consumer is behind"):
        other.put({"x": array}, sample_id="b")
    assert resident(full) == 1 and full.index.wait_usage(at_least=0).used < 70_000
    full.release(full.get(ref)[1])
    other.put({"x": array}, sample_id="b")


def test_error_names_the_group_that_never_acknowledges(features):
    stream = features.again(stream="train", groups=["trainer", "eval"], store_id=f"{features.store_id}-s")
    stream.index.open_stream("train", bytes_high=12_000, bytes_low=1_000)
    array = np.zeros(4_000, dtype=np.uint8)
    with stream.consumer("trainer") as trainer:
        for i in range(3):
            stream.put({"x": array}, sample_id=f"s{i}")
            assert trainer.ack(trainer.pull()) == ["recorded"]
        # Bytes in another store count, too.
        with pytest.raises(ConsumerBehind, match="3 samples"):
            stream.put({"x": array}, sample_id="s3")
    assert resident(stream) == 3
    stream.drop_run()
    assert stream.index.wait_usage(at_least=0).used == 0


def test_tensor_that_changes_during_put_matches_its_checksum(make, request):
    class Slow(Faulty):
        """Changes the caller's tensor while it is being sent."""

        def put_from(self, key, *arguments):
            array[:] += 1
            return self._store.put_from(key, *arguments)

    array = np.zeros(1000, dtype=np.int32)
    features = make("mooncake", backend=Mooncake(Slow(request.getfixturevalue("plane"))))
    ref = features.put({"x": array}, sample_id="s")
    # The second time it was sent from a copy.
    assert features.get(ref)[0]["x"].tolist() == [1] * 1000 and array[0] == 2
    assert [it.key for it in features.index.list(f"{features.store_id}.")] == [ref.metadata["life"]]


class Exporter:
    """An object with DLPack and nothing else."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_every_exporter_of_memory_is_a_tensor(features):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensors = {
        "dlpack": Exporter(array),
        "buffer": memoryview(array),
        "turned": memoryview(array.T),
        "bytes": b"abc",
    }
    got, handle = features.get(features.put(tensors, sample_id="s"))
    for name in ("dlpack", "buffer"):
        assert np.array_equal(got[name], array), name
    assert np.array_equal(got["turned"], array.T) and bytes(got["bytes"]) == b"abc"
    features.release(handle)


def test_half_precision_types_of_ml_dtypes_are_returned(features):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    tensors = {"x": np.arange(12).astype(bfloat16).reshape(3, 4)}
    tensors |= {"turned": tensors["x"].T, "scalar": np.array(2.5, dtype=bfloat16)}
    ref = features.put(tensors, sample_id="s")
    assert {spec.dtype for spec in ref.feature_specs.values()} == {"bfloat16"}
    got, handle = features.get(ref)
    same(got, tensors)
    assert all(it.dtype == bfloat16 for it in got.values())
    features.release(handle)


def test_batches_are_put_and_read_in_one_call(features):
    samples = {f"s{i}": {"x": np.full(100, i), "empty": np.empty((0, 3))} for i in range(5)}
    refs = features.put_many(samples, metadata={"s3": {"note": "third", "num_tokens": 7}})
    assert [ref.sample_id for ref in refs] == list(samples) and refs[3].metadata["note"] == "third"
    for (tensors, _), wanted in zip(features.get_many(refs[:4]), samples.values(), strict=False):
        same(tensors, wanted)
    features.abort("s4")
    with pytest.raises(NotAvailable, match="s4"):
        features.get_many([refs[0], refs[4]])
    with pytest.raises(NotAvailable):
        features.get_many(refs[:2], names=["nothing"])
    assert features.health()["active_leases"] == 4, "of what could not be read nothing is leased"
    with pytest.raises(ValueError):
        features.put_many({"good": {"x": np.zeros(1)}, "bad": {}})
    assert resident(features) == 4
    if features.kind != "mooncake":
        with pytest.raises(Duplicate) as told:
            features.put_many({"s0": samples["s0"], "new": samples["s1"]}, replace=False)
        assert isinstance(told.value.results[0], Duplicate) and told.value.results[1].sample_id == "new"
