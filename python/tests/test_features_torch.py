"""The feature store with torch: types that only torch names, data loaders, and SpecForge's own code.

`make check-torch` runs these in an environment of their own.
"""

import pytest
from tiffin.features import DTYPES, FeatureStore, Mooncake, mooncake_setup

import helpers
import workers

torch = pytest.importorskip("torch")
# Every spawned worker imports torch. On a busy machine with a cold page cache that takes most of a minute.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def address():
    with helpers.up("--memory", "256MiB") as (address, _):
        yield address


@pytest.fixture(params=["tiffin", "mooncake"])
def features(request, address, mooncake):
    """A store that can be passed to workers."""
    backend = Mooncake.at(mooncake, global_segment_size=0) if request.param == "mooncake" else None
    with FeatureStore("torch", address=address, backend=backend, timeout=30) as features:
        yield features
        features.drop_run()


#: Integers of each size: torch can neither copy nor compare all types of elements that it names.
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor):
    """The elements of a tensor as integers of the same size, where there are such."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.view(INTEGERS.get(tensor.element_size(), tensor.dtype))


def same(got, tensors):
    assert list(got) == list(tensors)
    for name, tensor in tensors.items():
        assert got[name].dtype == tensor.dtype and got[name].shape == tensor.shape, name
        assert torch.equal(bits(got[name]), bits(tensor)), name


def all_kinds():
    pattern = (torch.arange(96, dtype=torch.uint8) % 2).reshape(2, 48)
    tensors = {dtype: pattern.view(getattr(torch, dtype)) for dtype in DTYPES if hasattr(torch, dtype)}
    assert {"uint16", "complex64", "complex32", "float8_e4m3fn", "int4", "bits8"} <= set(tensors)
    tensors |= {f"turned {dtype}": tensor.T for dtype, tensor in tensors.items()}
    grid = torch.arange(24).reshape(4, 6)
    tensors |= {"every other": grid.to(torch.bfloat16)[::2, 1::2]}
    tensors |= {"scalar": torch.tensor(3.5), "truth": torch.tensor(True)}
    tensors |= {"empty": torch.empty((0, 5), dtype=torch.bfloat16)}
    tensors |= {"expanded": torch.ones(1, dtype=torch.bfloat16).expand(3, 4)}
    tensors |= {"grad": torch.ones(3, requires_grad=True), "large": torch.randn(600, 600).to(torch.bfloat16)}
    conjugated = torch.randn(4, dtype=torch.complex64).conj()
    return tensors | {"conjugated": conjugated, "negated": conjugated.imag}


def test_tensors_of_all_types_and_layouts_are_returned(features):
    tensors = all_kinds()
    ref = features.put(tensors, sample_id="s")
    got, handle = features.get(ref.to_json())
    same(got, tensors)
    assert not any(it.requires_grad for it in got.values())
    got["large"].zero_()
    again, other = features.get(ref, names=["large"])
    assert torch.equal(again["large"], tensors["large"])
    features.release(handle)
    features.release(other)
    assert features.health()["resident_samples"] == 0


def test_lent_tensors_have_their_types_and_outlive_the_sample(features):
    tensors = all_kinds()
    lent, handle = features.get(features.put(tensors, sample_id="s"), lend=True)
    features.release(handle)
    assert features.health()["resident_samples"] == 0
    same(lent, tensors)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(3, device="meta"),
        torch.eye(3).to_sparse(),
        torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8),
    ],
    ids=["no memory", "sparse", "quantized"],
)
def test_tensor_that_cannot_be_stored_is_refused(features, tensor):
    with pytest.raises(ValueError):
        features.put({"x": torch.ones(3), "y": tensor}, sample_id="s")
    assert features.health()["resident_samples"] == 0


@pytest.mark.parametrize("how", ["fork", "spawn"])
@pytest.mark.parametrize("kind", [workers.Refs, workers.Lent])
def test_leases_of_a_data_loader_end_with_its_workers(features, how, kind):
    features._retain = True
    refs = [
        features.put({"x": torch.full((300, 300), i, dtype=torch.bfloat16)}, sample_id=f"s{i}")
        for i in range(6)
    ]
    told = [ref.to_json() for ref in refs]
    loader = torch.utils.data.DataLoader(
        kind(features, told), batch_size=2, num_workers=2, multiprocessing_context=how
    )
    for _ in range(2):
        batches = list(loader)
        assert [int(batch[at, 0, 0]) for batch in batches for at in range(2)] == list(range(6))
        assert all(torch.equal(batch, batch[:, :1, :1].expand_as(batch)) for batch in batches)
    helpers.eventually(lambda: features.health()["active_leases"] == 0)
    assert features.ack(refs) == ["freed"] * 6
    helpers.eventually(lambda: features.index.wait_usage(at_least=0).used == 0)


# SpecForge's own code, where that is installed.


@pytest.fixture
def specforge():
    pytest.importorskip("specforge")
    from tiffin.integrations import specforge

    return specforge


def metadata(number):
    told = {"run_id": "run", "strategy": "eagle3", "target_model_version": "m", "tokenizer_version": "t"}
    return told | {"num_tokens": 8, "source_task_id": f"task-{number}"}


def sample(number):
    tensors = {"hidden_states": torch.full((1, 8, 16), number, dtype=torch.bfloat16)}
    return tensors | {"input_ids": torch.arange(8)[None], "loss_mask": torch.ones(1, 8, dtype=torch.bool)}


def test_loader_of_specforge_reads_through_it(address, specforge):
    from specforge.runtime import contracts
    from specforge.runtime.data_plane import feature_store as theirs
    from specforge.runtime.data_plane.disaggregated import AuthPolicy
    from specforge.runtime.data_plane.feature_dataloader import FeatureDataLoader

    with pytest.raises(PermissionError):
        specforge.TiffinFeatureStore("sf", address=address, auth=AuthPolicy("x"), credential="y")
    store = specforge.TiffinFeatureStore(
        store_id="specforge",
        address=address,
        setup_kwargs={"protocol": "tcp"},
        auth=AuthPolicy(),
        retain_on_release=True,
        max_resident_bytes=1 << 24,
    )
    assert isinstance(store, theirs.FeatureStore)
    refs = [store.put(sample(i), sample_id=f"s{i}", metadata=metadata(i)) for i in range(4)]
    for number, ref in enumerate(refs):
        assert type(ref) is contracts.SampleRef and ref.metadata["source_task_id"] == f"task-{number}"
        assert ref.draft_weight_version is None
        contracts.assert_no_tensors(ref)
    batches = list(FeatureDataLoader(store, refs=refs, batch_size=2, strategy="eagle3"))
    assert [batch.sample_ids for batch in batches] == [["s0", "s1"], ["s2", "s3"]]
    for batch in batches:
        for at, name in enumerate(batch.sample_ids):
            wanted = sample(int(name[1:]))["hidden_states"]
            assert torch.equal(batch.tensors["hidden_states"][at], wanted)
    for ref in refs:
        store.abort(ref.sample_id, reason="acknowledged")
    assert theirs.drain_feature_store_sample_removals(store, ["s0"])["release_pending"] == 0
    assert theirs.drain_feature_store_removals(store)["release_pending"] == 0
    with pytest.raises(KeyError):
        store.get(refs[0])
    assert store.health()["resident_samples"] == 0 and store.gc(now=None)["release_pending"] == 0
    store.close()


def test_mooncake_store_of_specforge_runs_on_the_drop_in(mooncake, specforge):
    """Their own class, unmodified; deletes are immediate, whatever the lease."""
    from mooncake.store import ReplicateConfig
    from specforge.runtime.data_plane.mooncake_store import MooncakeFeatureStore

    joined = mooncake_setup(mooncake, global_segment_size=0, local_buffer_size=1 << 20)
    store = MooncakeFeatureStore(store_id="theirs", store=joined)
    # For a store that was passed in it makes no config of Mooncake; for its own store it does.
    store._put_config = ReplicateConfig()
    store._put_config.with_hard_pin = True
    first = store.put(sample(1), sample_id="s", metadata=metadata(1))
    second = store.put(sample(2), sample_id="s", metadata=metadata(2))
    with pytest.raises(KeyError):
        store.get(first)
    got, handle = store.get(second)
    same(got, sample(2))
    store.release(handle)
    assert store.health()["release_pending"] == 0
    with pytest.raises(KeyError):
        store.get(second)
