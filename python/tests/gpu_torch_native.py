"""Tensors of torch on a GPU in the native API and the feature store: run by `make test-gpu`."""

import pytest
import tiffin
from tiffin.features import FeatureStore

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)

MIB = 1 << 20


@pytest.fixture(scope="module")
def store():
    with tiffin.connect(memory="1GiB", timeout=60) as store:
        yield store


def test_tensors_of_all_types(store):
    for dtype in (torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.int64):
        source = torch.arange(100_000, device="cuda").to(dtype).reshape(100, 1000)
        bits = source.view(torch.uint8) if dtype != torch.bfloat16 else source.view(torch.int16)
        assert store.put("k", bits)
        assert store.get("k") == bits.cpu().view(torch.uint8).numpy().tobytes()
        target = torch.zeros_like(bits)
        assert store.get_into("k", target) == source.nbytes
        assert torch.equal(bits, target)


def test_put_comes_after_the_current_stream(store):
    source = torch.zeros(16 * MIB, dtype=torch.uint8, device="cuda")
    left = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    for value in range(1, 8):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                left = left @ left * 1e-3
            source.fill_(value)
            assert store.put("k", source)
            back = torch.empty_like(source)
            store.get_into("k", back)
            assert bool((back == value).all())
        assert store.get("k")[:: 1 << 12] == bytes([value]) * (16 * MIB >> 12)


def test_queued_gets_are_in_the_order_of_their_stream(store):
    source = torch.randint(0, 255, (16 * MIB,), dtype=torch.uint8, device="cuda")
    store.put("k", source)
    with store.view("k") as view:
        array = view.cuda_array("cuda:0", timeout=60)
    left = torch.randn(4096, 4096, device="cuda")
    targets = [torch.zeros_like(source) for _ in range(8)]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        handles, sums = [], []
        for target in targets:
            for _ in range(20):
                left = left @ left * 1e-3
            handles.append(store.get_into("k", target, stream=stream))
            # A kernel after the copies, without a wait of the processor.
            sums.append((target == source).all())
        assert not handles[-1].is_done, "nothing has waited for the products"
    store.delete("k")
    assert [it.result() for it in handles] == [16 * MIB] * 8
    stream.synchronize()
    assert all(bool(it) for it in sums)
    del array


def test_queued_gets_on_the_default_stream_and_in_graphs(store):
    source = torch.randint(0, 255, (MIB,), dtype=torch.uint8, device="cuda")
    store.put("k", source)
    with store.view("k") as view:
        array = view.cuda_array("cuda:0", timeout=60)
    target = torch.zeros_like(source)
    assert store.get_into("k", target, stream=torch.cuda.current_stream()).result() == MIB
    assert torch.equal(target, source)
    pages = [torch.zeros(4096, dtype=torch.uint8, device="cuda") for _ in range(256)]
    ranges = [(at * 4096, 4096) for at in range(256)]
    handle = store.get_into(["k"] * 256, pages, range=ranges, stream=torch.cuda.Stream())
    assert handle.result() == [4096] * 256
    assert torch.equal(torch.cat(pages), source)
    stream = torch.cuda.Stream()
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
        captured = store.get_into("k", target, stream=stream)
    with pytest.raises(tiffin.DeviceError, match="graph"):
        captured.result()
    del array


def test_new_arrays(store):
    source = torch.randn(1000, 1000, device="cuda")
    store.put("k", source)
    array = store.get("k", device=source.device)
    assert array.device == "cuda:0"
    for tensor in (torch.from_dlpack(array), torch.as_tensor(array, device="cuda")):
        assert tensor.is_cuda and torch.equal(tensor.view(torch.float32).reshape(1000, 1000), source)
    del array
    assert torch.equal(tensor.view(torch.float32).reshape(1000, 1000), source), "the tensor owns the memory"


def test_views_are_read_in_place(store):
    source = torch.randint(0, 255, (4 * MIB,), dtype=torch.uint8, device="cuda")
    store.put("k", source)
    with store.view("k") as view:
        array = view.cuda_array("cuda:0", timeout=60)
    # `torch.as_tensor` refuses arrays that say that they are read-only.
    tensor = torch.from_dlpack(array)
    assert tensor.data_ptr() == array.__cuda_array_interface__["data"][0], "no copy"
    assert torch.equal(tensor, source)
    store.delete("k")
    assert int(tensor.long().sum()) == int(source.long().sum())


def test_tensors_that_are_not_contiguous_are_refused(store):
    source = torch.zeros(100, 100, device="cuda")
    with pytest.raises(tiffin.InvalidArgument, match="contiguous"):
        store.put("k", source.t()[:50])
    with pytest.raises(tiffin.InvalidArgument, match="contiguous"):
        store.get_into("k", source[:, :50])


def test_feature_store_keeps_tensors_on_the_device():
    with tiffin.connect(memory="1GiB", timeout=60) as index, FeatureStore("gpu", store=index) as features:
        sample = {
            "hidden": torch.randn(2048, 4096, device="cuda", dtype=torch.bfloat16),
            "scattered": torch.randn(64, 64, device="cuda").t(),
            "mask": torch.ones(2048, dtype=torch.bool, device="cuda"),
            "ids": torch.arange(2048),
        }
        ref = features.put(sample, sample_id="s")
        tensors, handle = features.get(ref, device="cuda:0")
        for name, tensor in sample.items():
            assert tensors[name].is_cuda and torch.equal(tensors[name], tensor.cuda()), name
        on_host, _ = features.get(ref)
        assert all(torch.equal(on_host[name], tensor.cpu()) for name, tensor in sample.items())
        features.release(handle)
