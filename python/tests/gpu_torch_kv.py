"""`tiffin.kv` over tensors of torch on a GPU: run by `make test-gpu`."""

import numpy as np
import pytest
import tiffin
from tiffin import kv

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)

PAGE_TOKENS, LAYERS, SECONDS = 16, 24, 60
#: Those of one request of 200 tokens: the next one evicts its pages.
DEVICE_PAGES = 13
#: A page of keys or values of a layer: tokens, heads, size of a head.
PAGE = (PAGE_TOKENS, 4, 64)


class Model:
    """Keys and values of each layer. A page is computed by kernels on `stream`, and the processor does not
    wait for them."""

    def __init__(self, store, stream=None, **options):
        self.stream = stream or torch.cuda.default_stream()
        shape = (2, DEVICE_PAGES, *PAGE)
        self.cache = [torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in range(LAYERS)]
        # Keys and values are layers of their own, because each has a row for each page.
        self.layers = [half for layer in self.cache for half in layer]
        options = {"page_tokens": PAGE_TOKENS, "host_pages": 96, "threshold_pages": 0, **options}
        self.engine = kv.Engine(self.layers, store=store, stream=stream, **options)
        self.busy = torch.randn(4096, 4096, device="cuda")
        torch.cuda.synchronize()
        self.numbers = 0

    def value(self, layer, tokens):
        """What all elements of a page are."""
        return float((sum(tokens) * 7 + layer * 3) % 251)

    def serve(self, tokens):
        self.numbers += 1
        plan = self.engine.step(submit=[kv.Request(self.numbers, tokens)])
        while not plan.ready:
            assert self.engine.wait(SECONDS)
            plan = self.engine.step()
        (ready,) = plan.ready
        with torch.cuda.stream(self.stream):
            # The pass of the model takes a while after `step` has been called.
            for _ in range(30):
                self.busy = self.busy @ self.busy * 1e-3
            for position, page in enumerate(ready.pages):
                upto = min((position + 1) * PAGE_TOKENS, len(tokens))
                for number, layer in enumerate(self.layers):
                    wanted = self.value(number, tokens[:upto])
                    if upto <= ready.cached.total:
                        assert bool((layer[int(page)] == wanted).all()), (position, number)
                    else:
                        layer[int(page)].fill_(wanted)
        computed = [kv.Computed(self.numbers, len(tokens))]
        ended = self.engine.step(computed=computed, finish=[self.numbers]).ended
        while self.engine.stats()["operations"] or not ended:
            assert self.engine.wait(SECONDS)
            ended += self.engine.step().ended
        stats = self.engine.stats()
        assert (stats["faults"], stats["conflicts"]) == (0, 0), stats["last_fault"]
        return ready.cached


def prompt(seed, count=200):
    return list(range(seed * 1000, seed * 1000 + count))


@pytest.mark.parametrize("has_stream", [False, True])
def test_pages_come_back_from_every_tier(has_stream):
    with tiffin.connect(memory="1GiB", timeout=60) as store:
        model = Model(store, torch.cuda.Stream() if has_stream else None)
        tokens = prompt(1)
        assert model.serve(tokens).total == 0
        root, hashes = kv.chain(tokens, page_tokens=PAGE_TOKENS)
        rows = [
            torch.full(PAGE, model.value(number, tokens[:PAGE_TOKENS]), dtype=torch.bfloat16)
            for number in range(len(model.layers))
        ]
        found = np.frombuffer(store.get(kv.names(root, hashes)[0]), np.int16)
        assert np.array_equal(found, torch.cat(rows).view(torch.int16).numpy().ravel()), "device to store"
        assert model.serve(tokens).device == 192
        for seed in (2, 3, 4, 5):
            model.serve(prompt(seed))
        assert model.serve(tokens).host == 192, "host to device"
        other = Model(store, torch.cuda.Stream() if has_stream else None)
        assert other.serve(tokens).store == 192, "store to device"
        model.engine.close()
        other.engine.close()


def test_pinned_host_pages_are_used():
    page_bytes = 2 * LAYERS * int(np.prod(PAGE)) * 2
    host = torch.empty((96, page_bytes), dtype=torch.uint8, pin_memory=True)
    model = Model(None, host=host, host_pages=None)
    for seed in (1, 2, 3, 4, 5):
        model.serve(prompt(seed))
    assert model.serve(prompt(1)).host == 192
    model.engine.close()


def test_wrong_tensors_are_refused():
    good = torch.zeros((8, 64), device="cuda")
    for layers, words in (
        ([good, good.cpu()], "layer 1 is in host memory"),
        ([good, good[:7]], "layer 1 has 7 pages"),
        ([good, good.t()], "contiguous"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            kv.Engine(layers, host_pages=8)
