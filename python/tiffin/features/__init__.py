"""A feature store for hidden states: samples from producers to trainers, with lifetimes that it manages.

>>> from tiffin.features import FeatureStore, SampleRef
>>> features = FeatureStore("run-7", memory="64MiB")
>>> ref = features.put({"hidden": memoryview(bytes(24)).cast("f")}, sample_id="s0")
>>> message = ref.to_json()                       # the producer sends it to the trainer
>>> tensors, handle = features.get(SampleRef.from_json(message))
>>> features.release(handle)                      # the last release frees it

docs/features.md describes it. Everything here imports without torch, without numpy and without mooncake.
"""

from __future__ import annotations

from .backend import Backend, Mooncake, Own, mooncake_setup
from .errors import BadRef, ConsumerBehind, Duplicate, NotAvailable
from .pool import Buffer, BufferPool
from .records import DTYPES, SCHEMA_VERSION, FeatureHandle, FeatureSpec, SampleRef
from .store import FeatureStore
from .stream import Consumer

__all__ = [
    "DTYPES",
    "SCHEMA_VERSION",
    "Backend",
    "BadRef",
    "Buffer",
    "BufferPool",
    "Consumer",
    "ConsumerBehind",
    "Duplicate",
    "FeatureHandle",
    "FeatureSpec",
    "FeatureStore",
    "Mooncake",
    "NotAvailable",
    "Own",
    "SampleRef",
    "mooncake_setup",
]
