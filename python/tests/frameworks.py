"""The packages that adapters are for: the real ones where they are installed, else stand-ins.

A stand-in has the base classes, records and loaders of a package with their documented parameters, and
nothing else: it shows that an adapter fits the contract. `make check-plugins` sets `TIFFIN_PLUGINS=real` and
runs the same tests with the real packages; there a package that cannot be imported is a skip with its reason.
"""
# Methods of a base class without an effect are part of its contract.
# ruff: noqa: B027

import abc
import dataclasses
import enum
import importlib
import inspect
import os
import sys
import types

import numpy
import pytest

IS_REAL = os.environ.get("TIFFIN_PLUGINS") == "real"


def load(monkeypatch, adapter, stand_in, *needed):
    """An adapter, imported with its framework: the real modules `needed`, or those of `stand_in`."""
    if IS_REAL:
        for name in needed:
            try:
                importlib.import_module(name)
            except Exception as error:
                pytest.skip(f"{name} cannot be imported here: {type(error).__name__}: {error}")
    else:
        for name, module in stand_in().items():
            monkeypatch.setitem(sys.modules, name, module)
    # The adapter looks for its framework when it is imported.
    names = [it for it in sys.modules if it.startswith("tiffin.integrations.")]
    for name in names:
        monkeypatch.delitem(sys.modules, name)
    module = importlib.import_module(f"tiffin.integrations.{adapter}")
    monkeypatch.setattr(sys.modules["tiffin.integrations"], adapter, module, raising=False)
    return module


def modules(**contents):
    """Modules by dotted name, with `__` for a dot, and the packages around them."""
    found = {}
    for name, content in contents.items():
        dotted = name.replace("__", ".")
        parts = dotted.split(".")
        for depth in range(1, len(parts) + 1):
            part = ".".join(parts[:depth])
            module = found.setdefault(part, types.ModuleType(part))
            module.__path__ = []
            if depth > 1:
                setattr(found[".".join(parts[: depth - 1])], parts[depth - 1], module)
        vars(found[dotted]).update(content)
    return found


def fits(adapter, base):
    """Every method of a base class can be called on the adapter with the base class's parameters."""
    checked = []
    for name, method in inspect.getmembers(base, inspect.isfunction):
        if name.startswith("_"):
            continue
        ours = inspect.signature(getattr(adapter, name))
        theirs = [it for it in inspect.signature(method).parameters.values() if it.kind != it.VAR_KEYWORD]
        ours.bind(*([None] * len(theirs)))
        ours.bind(None, **{it.name: None for it in theirs[1:]})
        checked.append(name)
    assert not getattr(adapter, "__abstractmethods__", None), adapter.__abstractmethods__
    return checked


# SGLang.


def sglang():
    class HiCacheStorage(abc.ABC):
        @abc.abstractmethod
        def get(self, key, target_location=None, target_sizes=None): ...
        @abc.abstractmethod
        def batch_get(self, keys, target_locations=None, target_sizes=None): ...
        @abc.abstractmethod
        def set(self, key, value=None, target_location=None, target_sizes=None): ...
        @abc.abstractmethod
        def batch_set(self, keys, values=None, target_locations=None, target_sizes=None): ...
        @abc.abstractmethod
        def exists(self, key): ...
        def batch_exists(self, keys, extra_info=None): ...
        def batch_get_v1(self, keys, host_indices, extra_info=None): ...
        def batch_set_v1(self, keys, host_indices, extra_info=None): ...
        def batch_exists_v2(self, keys, pool_transfers=None, extra_info=None): ...
        def batch_get_v2(self, transfers, extra_info=None): ...
        def batch_set_v2(self, transfers, extra_info=None): ...
        def register_mem_pool_host(self, mem_pool_host): ...
        def register_mem_host_pool_v2(self, host_pool, host_pool_name): ...
        def on_host_pools_registered(self): ...
        def clear(self): ...
        def get_stats(self): ...

    @dataclasses.dataclass
    class HiCacheStorageConfig:
        tp_rank: int
        tp_size: int
        pp_rank: int
        pp_size: int
        attn_cp_rank: int
        attn_cp_size: int
        is_mla_model: bool
        enable_storage_metrics: bool
        is_page_first_layout: bool
        model_name: str | None
        extra_config: dict | None = None

    class PoolHitPolicy(str, enum.Enum):
        ALL_PAGES = "all_pages"
        TRAILING_PAGES = "trailing_pages"
        BLOCK_GROUPS = "block_groups"

    class PoolName(str, enum.Enum):
        KV = "kv"
        MAMBA = "mamba"
        SWA = "swa"
        INDEXER = "indexer"
        DRAFT = "draft"

    @dataclasses.dataclass
    class PoolTransfer:
        name: PoolName
        host_indices: object = None
        keys: list | None = None
        hit_policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES

    @dataclasses.dataclass
    class PoolTransferResult:
        kv_hit_pages: int
        extra_pool_hit_pages: dict
        restorable_prefix_pages: list | None = None

    class StorageBackendFactory:
        @classmethod
        def create_backend(cls, name, config, pool, **more):
            assert name == "dynamic"
            extra = config.extra_config
            kind = getattr(importlib.import_module(extra["module_path"]), extra["class_name"])
            assert issubclass(kind, HiCacheStorage) and extra["backend_name"]
            return kind(config, more)

    contents = {
        kind.__name__: kind for kind in (HiCacheStorage, HiCacheStorageConfig, PoolHitPolicy, PoolName)
    }
    contents |= {"PoolTransfer": PoolTransfer, "PoolTransferResult": PoolTransferResult}
    return modules(
        sglang__srt__mem_cache__hicache_storage=contents,
        sglang__srt__mem_cache__storage__backend_factory={"StorageBackendFactory": StorageBackendFactory},
    )


# vLLM.


def vllm():
    class KVConnectorRole(enum.Enum):
        SCHEDULER = 0
        WORKER = 1

    class KVConnectorMetadata(abc.ABC):  # noqa: B024
        pass

    class KVConnectorBase_V1(abc.ABC):
        def __init__(self, vllm_config, role, kv_cache_config):
            self._connector_metadata, self._role = None, role

        def bind_connector_metadata(self, connector_metadata): ...
        def clear_connector_metadata(self): ...
        def register_kv_caches(self, kv_caches): ...
        def unregister_kv_caches(self): ...
        def handle_preemptions(self, kv_connector_metadata): ...
        @abc.abstractmethod
        def start_load_kv(self, forward_context, **kwargs): ...
        @abc.abstractmethod
        def wait_for_layer_load(self, layer_name): ...
        @abc.abstractmethod
        def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs): ...
        @abc.abstractmethod
        def wait_for_save(self): ...
        def get_finished(self, finished_req_ids): ...
        def get_block_ids_with_load_errors(self): ...
        def shutdown(self): ...
        @abc.abstractmethod
        def get_num_new_matched_tokens(self, request, num_computed_tokens): ...
        @abc.abstractmethod
        def update_state_after_alloc(self, request, blocks, num_external_tokens): ...
        @abc.abstractmethod
        def build_connector_meta(self, scheduler_output): ...
        def update_connector_output(self, connector_output): ...
        def request_finished(self, request, block_ids): ...
        def take_events(self): ...
        def reset_cache(self): ...

    class KVTransferConfig(types.SimpleNamespace):
        pass

    class KVConnectorFactory:
        @classmethod
        def get_connector_class(cls, config):
            return getattr(importlib.import_module(config.kv_connector_module_path), config.kv_connector)

    base = {"KVConnectorBase_V1": KVConnectorBase_V1, "KVConnectorMetadata": KVConnectorMetadata}
    return torch() | modules(
        vllm__distributed__kv_transfer__kv_connector__v1__base=base | {"KVConnectorRole": KVConnectorRole},
        vllm__distributed__kv_transfer__kv_connector__factory={"KVConnectorFactory": KVConnectorFactory},
        vllm__config__kv_transfer={"KVTransferConfig": KVTransferConfig},
    )


def vllm_tier():
    class LookupResult(enum.Enum):
        MISS = enum.auto()
        HIT = enum.auto()
        HIT_PENDING = enum.auto()
        RETRY = enum.auto()

    class Medium(enum.Enum):
        CPU = "CPU"
        STORAGE = "STORAGE"

    class Locality(enum.Enum):
        LOCAL = "LOCAL"
        REMOTE = "REMOTE"

    @dataclasses.dataclass
    class JobResult:
        job_id: int
        success: bool
        successful_keys: object = None
        transfer_time: float | None = None
        transfer_bytes: int | None = None

    class RequestOffloadingContext:
        pass

    class SecondaryTierManager(abc.ABC):
        medium = None

        def __init__(self, offloading_spec, primary_kv_view, tier_type, backpressure_detector=None):
            self.tier_type = tier_type

        @abc.abstractmethod
        def lookup(self, key, req_context): ...
        @abc.abstractmethod
        def submit_store(self, job_metadata): ...
        @abc.abstractmethod
        def submit_load(self, job_metadata): ...
        @abc.abstractmethod
        def get_finished_jobs(self): ...
        @abc.abstractmethod
        def on_new_request(self, req_context): ...
        def on_request_finished(self, req_context): ...
        def on_schedule_end(self, context): ...
        @abc.abstractmethod
        def drain_jobs(self): ...
        def shutdown(self): ...

    class SecondaryTierFactory:
        @classmethod
        def create_secondary_tier(cls, tier_config, primary_kv_view, offloading_spec):
            config = dict(tier_config)
            kind = getattr(importlib.import_module(config.pop("module_path")), config.pop("type"))
            assert issubclass(kind, SecondaryTierManager)
            return kind(
                offloading_spec=offloading_spec,
                primary_kv_view=primary_kv_view,
                tier_type=kind.__name__,
                backpressure_detector=None,
                **config,
            )

    return modules(
        vllm__v1__kv_offload__base={
            "LookupResult": LookupResult,
            "Medium": Medium,
            "Locality": Locality,
            "RequestOffloadingContext": RequestOffloadingContext,
        },
        vllm__v1__kv_offload__tiering__base={
            "JobResult": JobResult,
            "SecondaryTierManager": SecondaryTierManager,
        },
        vllm__v1__kv_offload__tiering__factory={"SecondaryTierFactory": SecondaryTierFactory},
    )


# LMCache.


def lmcache():
    class RemoteConnector(abc.ABC):
        def __init__(self, config, metadata):
            assert metadata is not None

        @abc.abstractmethod
        async def exists(self, key): ...
        @abc.abstractmethod
        def exists_sync(self, key): ...
        @abc.abstractmethod
        async def get(self, key): ...
        @abc.abstractmethod
        async def put(self, key, memory_obj): ...
        @abc.abstractmethod
        async def list(self): ...
        @abc.abstractmethod
        async def close(self): ...
        def support_ping(self): ...
        async def ping(self): ...
        def support_batched_get(self): ...
        async def batched_get(self, keys): ...
        def support_batched_put(self): ...
        async def batched_put(self, keys, memory_objs): ...
        def support_batched_async_contains(self): ...
        async def batched_async_contains(self, lookup_id, keys, pin=False): ...
        def support_batched_get_non_blocking(self): ...
        async def batched_get_non_blocking(self, lookup_id, keys): ...
        def remove_sync(self, key): ...
        def batched_contains(self, keys): ...
        def support_batched_contains(self): ...

    class ConnectorAdapter(abc.ABC):
        def __init__(self, schema=""):
            self.schema = schema

        def can_parse(self, url): ...
        @abc.abstractmethod
        def create_connector(self, context): ...

    class RemoteMetadata:
        """A record of four numbers: length, tokens, type, format."""

        def __init__(self, length, shapes, dtypes, fmt):
            self.length, self.shapes, self.dtypes, self.fmt = length, shapes, dtypes, fmt

        def serialize(self):
            return numpy.array([self.length, *self.shapes, *self.dtypes, self.fmt], numpy.int32).tobytes()

        @staticmethod
        def deserialize(record):
            length, shape, dtype, fmt = numpy.frombuffer(record, numpy.int32).tolist()
            return RemoteMetadata(length, [shape], [dtype], fmt)

    protocol = {"RemoteMetadata": RemoteMetadata, "get_remote_metadata_bytes": lambda: 16}
    return modules(
        lmcache__v1__protocol=protocol,
        lmcache__v1__storage_backend__connector={"ConnectorAdapter": ConnectorAdapter},
        lmcache__v1__storage_backend__connector__base_connector={"RemoteConnector": RemoteConnector},
    )


# TransferQueue.


def transfer_queue():
    import json

    class StorageKVClient(abc.ABC):
        def __init__(self, config):
            self.config = config

        @abc.abstractmethod
        def put(self, keys, values): ...
        @abc.abstractmethod
        def get(self, keys, shapes=None, dtypes=None, custom_backend_meta=None): ...
        @abc.abstractmethod
        def clear(self, keys, custom_backend_meta=None): ...

    class Registry:
        def __init__(self):
            self.known = {}

        def register(self, name):
            return lambda kind: self.known.setdefault(name, kind)

        register_provider = register

        def create(self, name, *arguments):
            return self.known[name](*arguments)

        def get_provider(self, name):
            return self.known.get(name)

    clients, managers, providers = Registry(), Registry(), Registry()

    class KVStorageManager:
        def __init__(self, controller_info, config):
            self.storage_client = clients.create(
                config["client_name"], {name: config[name] for name in config if name != "client_name"}
            )

    def batch_encode_into(values, alloc, num_workers=1):
        encoded = [json.dumps(value).encode() for value in values]
        buffers = alloc([len(it) for it in encoded])
        for buffer, it in zip(buffers, encoded, strict=True):
            buffer.array[:] = numpy.frombuffer(it, numpy.uint8)
        return buffers, [len(it) for it in encoded]

    def batch_decode_from(buffers):
        return [json.loads(buffer.array.tobytes()) for buffer in buffers]

    base = {"StorageKVClient": StorageKVClient, "StorageClientFactory": clients}
    manager = {"KVStorageManager": KVStorageManager, "StorageManagerFactory": managers}
    codec = {"batch_encode_into": batch_encode_into, "batch_decode_from": batch_decode_from}
    return torch() | modules(
        transfer_queue__storage__clients__base=base,
        transfer_queue__storage__managers__base=manager,
        transfer_queue__storage__bootstrap__provider={"StorageBootstrapProvider": providers},
        transfer_queue__utils__serial_utils=codec,
    )


# Torch: what adapters use of its tensors, over numpy.


class Tensor:
    def __init__(self, array):
        self.array = array

    shape = property(lambda self: self.array.shape)
    dtype = property(lambda self: self.array.dtype)
    nbytes = property(lambda self: self.array.nbytes)
    device = types.SimpleNamespace(type="cpu")

    def data_ptr(self):
        return self.array.ctypes.data

    def dim(self):
        return self.array.ndim

    def numel(self):
        return self.array.size

    def element_size(self):
        return self.array.itemsize

    def stride(self):
        return tuple(stride // self.array.itemsize for stride in self.array.strides)

    def index_select(self, dim, indices):
        return Tensor(numpy.take(self.array, indices.array, dim))

    def index_copy_(self, dim, indices, values):
        numpy.moveaxis(self.array, dim, 0)[indices.array] = numpy.moveaxis(values.array, dim, 0)

    def movedim(self, source, target):
        return Tensor(numpy.moveaxis(self.array, source, target))

    def reshape(self, *shape):
        return Tensor(self.array.reshape(*shape))

    def contiguous(self):
        return Tensor(numpy.ascontiguousarray(self.array).reshape(self.array.shape))

    def view(self, dtype):
        return Tensor(self.array.view(dtype))

    def copy_(self, other):
        self.array[:] = other.array

    def to(self, device):
        return self

    def detach(self):
        return self

    cpu = detach

    def numpy(self):
        return self.array

    def tolist(self):
        return self.array.tolist()

    def __len__(self):
        return len(self.array)

    def __getitem__(self, at):
        return Tensor(self.array[at])

    def __setitem__(self, at, value):
        self.array[at] = value.array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def torch():
    def empty(shape, dtype=None, pin_memory=False):
        return Tensor(numpy.zeros(shape, dtype))

    def tensor(values, dtype=None, device=None):
        return Tensor(numpy.array(values, dtype))

    return modules(
        torch={
            "Tensor": Tensor,
            "empty": empty,
            "zeros": empty,
            "tensor": tensor,
            "arange": lambda count: Tensor(numpy.arange(count)),
            "from_numpy": Tensor,
            "frombuffer": lambda buffer, dtype: Tensor(numpy.frombuffer(buffer, dtype)),
            "uint8": numpy.dtype("uint8"),
            "int64": numpy.dtype("int64"),
            "float32": numpy.dtype("float32"),
            "float16": numpy.dtype("float16"),
        }
    )
