"""What a feature store tells of a sample: small records without a tensor, as JSON and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

#: The version of these records. A ref of another one is refused.
SCHEMA_VERSION = 1
#: The types of elements that a sample may have.
DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
)
_ITEM_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "int8": 1, "uint8": 1, "bool": 1}
#: Generations are (life of the master, counter); as one number they keep their order.
_COUNTER_BITS = 48


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """What one tensor of a sample is."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    device_hint: str = "cpu"
    required: bool = True
    target_repr: str | None = None
    target_meta: dict[str, Any] | None = None

    @property
    def nbytes(self) -> int:
        """How many bytes the tensor has.

        >>> FeatureSpec("x", (2, 3), "bfloat16").nbytes
        12
        """
        count = 1
        for length in self.shape:
            count *= length
        return count * _ITEM_BYTES.get(self.dtype, 2)


@dataclasses.dataclass(frozen=True)
class SampleRef:
    """A sample that is in a feature store: what a producer tells its consumers. It never holds a tensor.

    `metadata["generation"]` says which put of the id it is.

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
    def generation(self) -> int | None:
        """Which put of the id it is."""
        return self.metadata.get("generation")

    def to_json(self) -> str:
        """The record as text, which is the same for the same record."""
        return _encode(
            _flat(self) | {"feature_specs": {name: _flat(it) for name, it in self.feature_specs.items()}}
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> SampleRef:
        """The record that the text says. What a later version adds is ignored."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> SampleRef:
        """The record of a mapping, as `dataclasses.asdict` makes it."""
        fields = {name: value for name, value in record.items() if name in _REF_FIELDS}
        specs = fields.get("feature_specs") or {}
        fields["feature_specs"] = {name: _spec(spec) for name, spec in specs.items()}
        return cls(**fields)


@dataclasses.dataclass(frozen=True)
class FeatureHandle:
    """A sample that `get` has leased, until it is released or its process ends."""

    sample_id: str
    generation: int
    lease_token: str


_encode = json.JSONEncoder(separators=(",", ":")).encode
_REF_FIELDS = frozenset(field.name for field in dataclasses.fields(SampleRef))
_SPEC_FIELDS = frozenset(field.name for field in dataclasses.fields(FeatureSpec))


def _flat(record: Any) -> dict[str, Any]:
    """The fields of a record, as they are: `dataclasses.asdict` would copy all that is in them."""
    return dict(vars(record))


def _spec(spec: Any) -> FeatureSpec:
    fields = dict(spec) if isinstance(spec, Mapping) else _flat(spec)
    if not fields.keys() <= _SPEC_FIELDS:
        fields = {name: value for name, value in fields.items() if name in _SPEC_FIELDS}
    fields["shape"] = tuple(fields["shape"])
    return FeatureSpec(**fields)


def as_ref(given: Any) -> SampleRef:
    """A ref, given as one of ours or as any record with the same fields, or as JSON.

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


def to_number(generation: tuple[int, int]) -> int:
    """A generation of the store as the one number that refs have.

    >>> to_pair(to_number((3, 9)))
    (3, 9)
    """
    return generation[0] << _COUNTER_BITS | generation[1]


def to_pair(generation: int) -> tuple[int, int]:
    """The reverse of `to_number`."""
    return generation >> _COUNTER_BITS, generation & ((1 << _COUNTER_BITS) - 1)
