"""Every type of elements that torch and DLPack name, without torch: arrays of ml_dtypes, and a stub."""

import json
import pickle
import random
import subprocess
import sys
import types

import msgpack
import numpy as np
import pytest
import tiffin
from tiffin import _tensors
from tiffin.features import DTYPES, FeatureSpec, FeatureStore, SampleRef
from tiffin.features.records import to_number, to_pair

import helpers

#: The names that torch has for types of elements, without those of quantized tensors; and DLPack's of floats.
_TORCH = """bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex32
complex64 complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2
int1 int2 int3 int4 int5 int6 int7 uint1 uint2 uint3 uint4 uint5 uint6 uint7 bits8 bits16 bits1x8 bits2x4
bits4x2"""
_DLPACK = """float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2
float8_e5m2fnuz float8_e8m0fnu float6_e2m3fn float6_e3m2fn float4_e2m1fn"""
TORCH, DLPACK = _TORCH.split(), _DLPACK.split()


@pytest.fixture
def features():
    with FeatureStore("types", memory="64MiB") as features:
        yield features


def arrays():
    """An array of every type that numpy has a name for, or ml_dtypes."""
    bits = np.arange(48, dtype=np.uint8).reshape(2, 24)
    found = {}
    for dtype in DTYPES:
        numpy_type = _tensors.numpy_type(dtype)
        if numpy_type.name == dtype:
            count = 6 * numpy_type.itemsize
            found[dtype] = np.resize(bits % 2, (2, count)).view(numpy_type).copy()
    return found


def test_every_type_has_a_name_and_a_size():
    assert set(TORCH) | set(DLPACK) == set(DTYPES)
    for dtype in DTYPES:
        assert FeatureSpec("x", (2, 3), dtype).nbytes == 6 * _tensors.numpy_type(dtype).itemsize


def test_arrays_of_every_type_are_returned(features):
    tensors = arrays()
    assert {"complex64", "uint64", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"} <= set(tensors)
    tensors |= {f"turned {name}": array.T for name, array in tensors.items()}
    ref = features.put(tensors, sample_id="s")
    for lend in (False, True):
        got, handle = features.get(ref.to_json(), lend=lend)
        for name, array in tensors.items():
            assert got[name].dtype == array.dtype and got[name].shape == array.shape, name
            assert got[name].tobytes() == np.ascontiguousarray(array).tobytes(), name
    features.release(handle)


class Tensor:
    """The interface of a torch tensor. Like most versions of torch, it exports only plain types."""

    def __init__(self, bits, dtype):
        self.bits, self.dtype, self.shape = bits, f"torch.{dtype}", bits.shape
        self.device, self.layout = types.SimpleNamespace(type="cpu"), "torch.strided"

    def detach(self):
        return self

    def is_conj(self):
        return False

    is_neg = is_conj

    def view(self, dtype):
        return Tensor(self.bits, dtype)

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **options):
        name = self.dtype.removeprefix("torch.")
        if name in _tensors.HOLDERS or name in ("uint16", "uint32", "uint64"):
            raise BufferError(f"{name} is not supported by DLPack")
        return self.bits.__dlpack__(**options)


def test_tensors_that_torch_cannot_export_are_stored_as_bits(monkeypatch):
    torch = types.SimpleNamespace(Tensor=Tensor, uint8="uint8", int16="int16", int32="int32", int64="int64")
    with tiffin.connect(memory="64MiB") as store:
        for at, dtype in enumerate(TORCH):
            size = _tensors.ITEM_BYTES[dtype]
            bits = np.arange(3 * size, dtype=np.uint8).view({16: "c16"}.get(size, f"u{size}"))
            monkeypatch.setitem(sys.modules, "torch", torch)
            ref = store.put_sample(f"s{at}", {"x": Tensor(bits, dtype)})
            monkeypatch.delitem(sys.modules, "torch")
            with store.lease(ref) as lease:
                (told,) = lease.manifest.tensors
                assert (told.dtype, told.shape, told.size) == (dtype, (3,), 3 * size)
                assert lease.tensors()["x"].tobytes() == bits.tobytes()
        monkeypatch.setitem(sys.modules, "torch", torch)
        with pytest.raises(TypeError, match="int_repr"):
            store.put_sample("q", {"x": Tensor(np.zeros(3, np.uint8), "qint8")})


def test_without_numpy_every_type_can_be_read():
    program = f"""
import sys
sys.modules["numpy"] = None
from tiffin import _tensors
for dtype in {list(DTYPES)!r}:
    size = 6 * _tensors.ITEM_BYTES[dtype]
    data, tensor = _tensors.allocate(dtype, (2, 3), size)
    assert len(data) == size and tensor.nbytes == size and tensor.shape[:2] == (2, 3), dtype
    assert _tensors.in_place(bytes(size), dtype, (2, 3)).nbytes == size
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_ref_survives_json_msgpack_pickle_and_a_column(features):
    refs = [features.put({"x": b"1"}, sample_id=f"s{i}") for i in range(3)]
    numbers = [ref.generation for ref in refs]
    if all(isinstance(number, int) for number in numbers):
        assert all(0 < number < 1 << 63 for number in numbers)
        assert np.array(numbers, np.int64).tolist() == np.array(numbers, np.uint64).tolist() == numbers
    assert numbers == sorted(numbers)
    for ref, number in zip(refs, numbers, strict=True):
        told = json.loads(ref.to_json())
        handles = []
        for again in (told, msgpack.unpackb(msgpack.packb(told)), pickle.loads(pickle.dumps(told))):
            assert SampleRef.from_dict(again) == ref
            handles.append(features.get(again)[1])
        for handle in handles:
            features.release(handle)
        assert to_number(to_pair(number)) == number
    assert features.health()["resident_samples"] == 0


def test_mutated_refs_are_refused_with_the_reason():
    spec = FeatureSpec("x", (2, 3), "bfloat16")
    good = SampleRef("s", "run", feature_specs={"x": spec}, metadata={"generation": 7}).to_json().encode()
    chance = random.Random(7)
    refused = 0
    for text in helpers.mutations(chance, good, 5000):
        try:
            assert isinstance(SampleRef.from_json(text), SampleRef)
        except ValueError:
            refused += 1
    assert 500 < refused < 5000
    for record in ([], 7, None, {}, {"sample_id": 7}, {"sample_id": "s", "feature_specs": [1]}):
        with pytest.raises(ValueError, match="invalid sample reference"):
            SampleRef.from_dict(record)


def test_generations_of_current_masters_fit_63_bits():
    # Minutes since 2025 are epochs, until 2040 in 23 bits.
    for pair in [(1, 1), (2**23 - 1, 2**40 - 1)]:
        number = to_number(pair)
        assert isinstance(number, int) and number < 1 << 63 and to_pair(number) == pair
    # Epochs of older versions: text, in the same order.
    old = [to_number(pair) for pair in [(2**51, 9), (2**51, 10), (2**51 + 1, 1)]]
    assert old == sorted(old) and [to_pair(it) for it in old] == [(2**51, 9), (2**51, 10), (2**51 + 1, 1)]
    assert msgpack.unpackb(msgpack.packb(old)) == old
