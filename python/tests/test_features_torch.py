"""The feature store with torch, where that is installed: types that only torch names, and data loaders."""

import pytest
from tiffin.features import DTYPES, FeatureStore

import helpers

torch = pytest.importorskip("torch")


@pytest.fixture
def features():
    with helpers.up("--memory", "256MiB") as (address, _), FeatureStore("t", address=address) as features:
        yield features


def test_tensors_of_all_types_and_layouts_come_back(features):
    grid = torch.arange(24).reshape(4, 6) % 2
    tensors = {dtype: grid.to(getattr(torch, dtype)) for dtype in DTYPES}
    tensors |= {"turned": grid.float().T, "every other": grid.to(torch.bfloat16)[::2, 1::2]}
    tensors |= {"scalar": torch.tensor(3.5), "empty": torch.empty((0, 5), dtype=torch.bfloat16)}
    tensors |= {"grad": torch.ones(3, requires_grad=True), "large": torch.randn(600, 600).to(torch.bfloat16)}
    ref = features.put(tensors, sample_id="s")
    got, handle = features.get(ref.to_json())
    for name, tensor in tensors.items():
        assert got[name].dtype == tensor.dtype and got[name].shape == tensor.shape, name
        assert torch.equal(got[name], tensor.detach()), name
    got["large"].zero_()
    again, other = features.get(ref, names=["large"])
    assert torch.equal(again["large"], tensors["large"])
    features.release(handle)
    features.release(other)
    assert features.health()["resident_samples"] == 0


class Samples(torch.utils.data.Dataset):
    """What a data loader reads: refs, through the store."""

    def __init__(self, features, refs):
        self.features, self.refs = features, refs

    def __len__(self):
        return len(self.refs)

    def __getitem__(self, at):
        tensors, _ = self.features.get(self.refs[at])
        return tensors["x"]


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_data_loader_reads_through_it_and_its_leases_end_with_its_workers(features, how):
    features._retain = True
    refs = [
        features.put({"x": torch.full((300, 300), i, dtype=torch.bfloat16)}, sample_id=f"s{i}")
        for i in range(6)
    ]
    told = [ref.to_json() for ref in refs]
    loader = torch.utils.data.DataLoader(
        Samples(features, told), batch_size=2, num_workers=2, multiprocessing_context=how
    )
    seen = [int(batch[at, 0, 0]) for batch in loader for at in range(2)]
    assert seen == list(range(6))
    helpers.eventually(lambda: features.health()["active_leases"] == 0)
    assert features.ack(refs) == ["freed"] * 6
