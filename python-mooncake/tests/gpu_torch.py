"""Device pointers of torch in the drop-in, on a machine with a GPU: run by `make test-gpu`."""

import random

import gpu_checks
import pytest
import worker

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)

MIB = 1 << 20


@pytest.fixture(scope="module")
def store():
    master, store = gpu_checks.start(segment=1 << 30)
    yield store
    store.close()
    master.kill()


def test_tensors_of_all_sizes(store):
    for size in (1, 5, 4096, 70_001, MIB, 16 * MIB, 100 * MIB + 1):
        source = torch.randint(0, 255, (size,), dtype=torch.uint8, device="cuda")
        target = torch.zeros_like(source)
        assert store.put_from(f"t{size}", source.data_ptr(), size) == 0
        assert store.get_into(f"t{size}", target.data_ptr(), size) == size
        assert torch.equal(source, target)
        assert store.remove(f"t{size}", force=True) == 0


def test_put_waits_for_the_default_stream(store):
    source = torch.zeros(16 * MIB, dtype=torch.uint8, device="cuda")
    left = torch.randn(4096, 4096, device="cuda")
    for value in range(1, 8):
        for _ in range(20):
            left = left @ left * 1e-3
        source.fill_(value)
        assert store.put_from(f"s{value}", source.data_ptr(), source.numel()) == 0
        assert store.get(f"s{value}")[:: 1 << 12] == bytes([value]) * (16 * MIB >> 12)
        store.remove(f"s{value}", force=True)


def test_paged_cache(store):
    page, count = 16 << 10, 2048
    cache = torch.randint(0, 255, (2 * count, page), dtype=torch.uint8, device="cuda")
    copy = torch.zeros_like(cache)
    for tensor in (cache, copy):
        assert store.register_buffer(tensor.data_ptr(), tensor.numel()) == 0
    for number in range(5):
        order = random.Random(number).sample(range(2 * count), count)
        sources = [cache.data_ptr() + page * it for it in order]
        targets = [copy.data_ptr() + page * it for it in order]
        keys = [f"p{number} {at}" for at in range(8)]
        lists = [sources[at::8] for at in range(8)]
        sizes = [[page] * len(it) for it in lists]
        assert store.batch_put_from_multi_buffers(keys, lists, sizes) == [0] * 8
        lists = [targets[at::8] for at in range(8)]
        assert store.batch_get_into_multi_buffers(keys, lists, sizes) == [sum(it) for it in sizes]
        assert torch.equal(cache[order], copy[order])
        copy.zero_()
        assert store.batch_remove(keys, force=True) == [0] * 8
    for tensor in (cache, copy):
        assert store.unregister_buffer(tensor.data_ptr()) == 0


def test_pinned_and_plain_host_memory_work(store):
    for tensor in (torch.ones(MIB, dtype=torch.uint8, pin_memory=True), torch.ones(MIB, dtype=torch.uint8)):
        assert store.put_from("h", tensor.data_ptr(), MIB) == 0
        tensor.zero_()
        assert store.get_into("h", tensor.data_ptr(), MIB) == MIB
        assert bool((tensor == 1).all())
        store.remove("h", force=True)


def test_segment_is_registered(store):
    """After some puts the bytes do not go through the ring."""
    source = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")

    def is_direct():
        before = store._traffic().get("cuda:0 ring", (0, 0))
        assert store.put_from("d", source.data_ptr(), source.numel()) == 0
        store.remove("d", force=True)
        return store._traffic()["cuda:0 ring"] == before

    assert worker.until(is_direct, 60)


def test_tensor_calls_take_device_tensors(store):
    tensor = torch.randn(1000, 300, device="cuda")
    assert store.put_tensor("tensor", tensor) == 0
    assert torch.equal(store.get_tensor("tensor"), tensor.cpu())
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(50):
            tensor = (tensor @ torch.eye(300, device="cuda")) + 1
        assert store.put_tensor("side stream", tensor) == 0
    assert torch.equal(store.get_tensor("side stream"), tensor.cpu())


def test_tensor_is_read_into_device_memory(store):
    tensor = torch.randn(100, 30)
    assert store.put_tensor("into", tensor) == 0
    size = 304 + tensor.nbytes
    buffer = torch.zeros(size, dtype=torch.uint8, device="cuda")
    assert store.register_buffer(buffer.data_ptr(), size) == 0
    found = store.get_tensor_into("into", buffer.data_ptr(), size)
    assert found.device.type == "cuda" and torch.equal(found.cpu(), tensor)
    assert store.unregister_buffer(buffer.data_ptr()) == 0
