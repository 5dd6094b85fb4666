"""The records that describe samples: small, without a tensor, and convertible to JSON and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from tiffin._tensors import ITEM_BYTES

#: The version of these records. Refs of another version are rejected.
SCHEMA_VERSION = 1
#: The element types that a sample may have: all types of torch and DLPack.
DTYPES = tuple(ITEM_BYTES)
#: The fields of a ref that `put` takes from its metadata.
PUT_FIELDS = (
    "run_id",
    "source_task_id",
    "strategy",
    "target_model_version",
    "draft_weight_version",
    "tokenizer_version",
    "num_tokens",
)
#: A generation of the store, (epoch of the master, counter), as one value for JSON, msgpack and 64-bit
#: columns: a number of at most 63 bits, or text if that is not enough. Both keep their order.
Number: TypeAlias = "int | str"
_EPOCH_BITS, _COUNTER_BITS = 23, 40


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """Type and shape of one tensor of a sample."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    device_hint: str = "cpu"
    required: bool = True
    target_repr: str | None = None
    target_meta: dict[str, Any] | None = None

    @property
    def nbytes(self) -> int:
        """Number of bytes of the tensor.

        >>> FeatureSpec("x", (2, 3), "bfloat16").nbytes
        12
        """
        count = 1
        for length in self.shape:
            count *= length
        return count * ITEM_BYTES[self.dtype]


@dataclasses.dataclass(frozen=True)
class SampleRef:
    """A reference to a sample, which a producer sends to its consumers. It never contains a tensor.

    `metadata["generation"]` is the generation of the sample.

    >>> ref = SampleRef("s", feature_store_uri="tiffin://run/s", metadata={"generation": 7})
    >>> SampleRef.from_json(ref.to_json()) == ref, ref.generation
    (True, 7)
    """

    sample_id: str
    run_id: str = ""
    source_task_id: str = ""
    feature_store_uri: str = ""
    feature_keys: dict[str, str] = dataclasses.field(default_factory=dict)
    feature_specs: dict[str, FeatureSpec] = dataclasses.field(default_factory=dict)
    strategy: str = ""
    schema_version: int = SCHEMA_VERSION
    target_model_version: str = ""
    draft_weight_version: str = ""
    tokenizer_version: str = ""
    num_tokens: int = 0
    estimated_bytes: int = 0
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def generation(self) -> Number | None:
        """The generation of the sample."""
        return self.metadata.get("generation")

    def to_json(self) -> str:
        """The record as text. Equal records have equal texts."""
        return _encode(
            _flat(self) | {"feature_specs": {name: _flat(it) for name, it in self.feature_specs.items()}}
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> SampleRef:
        """The record of this text. Fields of later versions are ignored."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> SampleRef:
        """The record of a mapping, as `dataclasses.asdict` makes it."""
        try:
            fields = {name: value for name, value in record.items() if name in _REF_FIELDS}
            specs = fields.get("feature_specs") or {}
            fields["feature_specs"] = {name: _spec(spec) for name, spec in specs.items()}
            ref = cls(**fields)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"invalid sample reference: {error}") from error
        for name, kind in _REF_KINDS.items():
            if not isinstance(vars(ref)[name], kind):
                raise ValueError(f"invalid sample reference: `{name}` is not of type `{kind.__name__}`")
        return ref


@dataclasses.dataclass(frozen=True)
class FeatureHandle:
    """A sample that `get` has leased, until it is released or its process ends."""

    sample_id: str
    generation: Number
    lease_token: str


_encode = json.JSONEncoder(separators=(",", ":")).encode
_REF_FIELDS = frozenset(field.name for field in dataclasses.fields(SampleRef))
#: The types of the fields that are read here.
_REF_KINDS = {"sample_id": str, "feature_store_uri": str, "schema_version": int, "metadata": Mapping}
_SPEC_FIELDS = frozenset(field.name for field in dataclasses.fields(FeatureSpec))


def _flat(record: Any) -> dict[str, Any]:
    """The fields of a record, without a copy of their values."""
    return dict(vars(record))


def _spec(spec: Any) -> FeatureSpec:
    fields = dict(spec) if isinstance(spec, Mapping) else _flat(spec)
    if not fields.keys() <= _SPEC_FIELDS:
        fields = {name: value for name, value in fields.items() if name in _SPEC_FIELDS}
    fields["shape"] = tuple(fields["shape"])
    return FeatureSpec(**fields)


def as_ref(given: Any) -> SampleRef:
    """A ref from one of ours, from any record with the same fields, or from JSON.

    >>> as_ref('{"sample_id": "s", "schema_version": 1}').sample_id
    's'
    """
    if isinstance(given, SampleRef):
        return given
    if isinstance(given, (str, bytes)):
        return SampleRef.from_json(given)
    if isinstance(given, Mapping):
        return SampleRef.from_dict(given)
    return SampleRef.from_dict({name: getattr(given, name) for name in _REF_FIELDS if hasattr(given, name)})


def to_number(generation: tuple[int, int]) -> Number:
    """A generation of the store as one value, as refs have it.

    >>> to_pair(to_number((3, 9))), to_number((1, 0)) == 2**40, to_number((2**23 - 1, 2**40 - 1)) == 2**63 - 1
    ((3, 9), True, True)
    >>> to_number((2**23, 9)), to_pair(to_number((2**23, 9)))
    ('00000000000008388608.00000000000000000009', (8388608, 9))
    """
    epoch, counter = generation
    if epoch >> _EPOCH_BITS or counter >> _COUNTER_BITS:
        # Masters of older versions without state had epochs of 51 bits; their successors continue them.
        return f"{epoch:020}.{counter:020}"
    return epoch << _COUNTER_BITS | counter


def to_pair(generation: Number) -> tuple[int, int]:
    """The reverse of `to_number`."""
    if isinstance(generation, str):
        epoch, _, counter = generation.partition(".")
        return int(epoch), int(counter)
    return generation >> _COUNTER_BITS, generation & ((1 << _COUNTER_BITS) - 1)


def is_generation(given: Any) -> bool:
    """Whether it is a result of `to_number`.

    >>> [is_generation(it) for it in (0, -1, 2**63, "1.2", "1", "1.x", None, True)]
    [True, False, False, True, False, False, False, False]
    """
    if isinstance(given, str):
        epoch, dot, counter = given.partition(".")
        return bool(dot) and epoch.isdecimal() and counter.isdecimal()
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 1 << 63
