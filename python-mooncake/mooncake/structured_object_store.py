"""Objects with named members in a store: bundles of bytes, arrays and tensors, and batches of rows.

A batch ("DataProto") has tensors and arrays of equal length, other rows, and metadata. It is stored in
stages; each stage is a bundle. A reference to it becomes JSON with `export_ref`, for another process.

>>> import numpy as np
>>> from mooncake.structured_object_store import MooncakeBundleTransfer
>>> class Store(dict):
...     def put(self, key, value, config=None):
...         self[key] = bytes(value)
...         return 0
...     def remove(self, key, force=False):
...         return 0 if self.pop(key, None) is not None else -704
>>> transfer = MooncakeBundleTransfer(Store())
>>> ref = transfer.put({"tokens": [np.array([1, 2]), np.array([3])], "step": 7}, type="dict")
>>> [row.tolist() for row in transfer.get(ref, type="dict")["tokens"]]
[[1, 2], [3]]
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

try:
    import numpy as np  # type: ignore[import-not-found, unused-ignore]
except ModuleNotFoundError:
    raise ImportError(
        "mooncake.structured_object_store needs numpy: pip install 'tiffin-mooncake[structured]'"
    ) from None

from mooncake._bundle import CHUNK_BYTES, Bundles, Bytes, RemoteBundleRef
from mooncake._fields import (
    FieldSchema,
    decode,
    dtype_name,
    dtype_of,
    encode,
    is_tensor,
    tensor_bytes,
    tensor_of,
)

DEFAULT_BUNDLE_CHUNK_BYTES = CHUNK_BYTES
DATAPROTO_REF_HANDLE_TYPE = "mooncake_dataproto_ref"
DATAPROTO_REF_HANDLE_VERSION = 1

_FIELDS_KEY = "__mooncake_structured_fields__"
_SINGLE_KEY = "__mooncake_single_value__"
_SECTIONS = ("batch", "non_tensor_batch", "meta_info")


@dataclass(frozen=True)
class BundleTransferPolicy:
    """The order of Mooncake's writes. It has no effect here: each object is one batch."""

    max_inflight_put: int = 1
    put_mode: str = "auto"
    copy_mode: str = "auto"

    def __post_init__(self) -> None:
        if self.max_inflight_put < 1:
            raise ValueError("max_inflight_put must be positive")
        if self.put_mode not in ("auto", "batch", "parallel"):
            raise ValueError(f"unsupported put_mode: {self.put_mode!r}")
        if self.copy_mode not in ("auto", "zero_copy", "copy"):
            raise ValueError(f"unsupported copy_mode: {self.copy_mode!r}")


@dataclass(frozen=True)
class StructuredObjectPayload:
    """An object to write: its members, and metadata that JSON can represent."""

    metadata: Mapping[str, Any] = field(default_factory=dict)
    buffers: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class StructuredMemberSlice:
    """A part of a member along one axis."""

    axis: int = 0
    start: int = 0
    end: int | None = None
    step: int = 1

    def __post_init__(self) -> None:
        if self.step <= 0:
            raise ValueError("step must be positive")


@dataclass(frozen=True)
class StructuredObjectReadSpec:
    """The selected part of an object. Its methods return a new one."""

    ref: Any
    members: tuple[str, ...] | None = None
    member_slices: tuple[tuple[str, StructuredMemberSlice], ...] = ()

    def select_members(self, names: Iterable[str]) -> "StructuredObjectReadSpec":
        """Select only these members."""
        return replace(self, members=tuple(names))

    def slice_member(
        self, name: str, axis: int, start: int, end: int | None, step: int = 1
    ) -> "StructuredObjectReadSpec":
        """Select only this part of a member."""
        others = tuple(it for it in self.member_slices if it[0] != name)
        part = StructuredMemberSlice(axis, start, end, step)
        return replace(self, member_slices=(*others, (name, part)))

    def member_slice(self, name: str) -> StructuredMemberSlice | None:
        """The selected part of a member, if it is not all of it."""
        return dict(self.member_slices).get(name)


@dataclass(frozen=True)
class StructuredObjectResult:
    """An object that was read."""

    metadata: dict[str, Any]
    objects: dict[str, Any]


@dataclass(frozen=True)
class DataProtoField:
    """The location of a field of a batch."""

    stage: str
    member: str
    section: str


@dataclass(frozen=True)
class MooncakeDataProtoRef:
    """A batch in the store."""

    batch_size: int
    namespace: str | None = None
    partition: str | None = None
    global_indexes: list[int] | None = None
    stage_refs: dict[str, RemoteBundleRef] = field(default_factory=dict)
    field_index: dict[str, DataProtoField] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)
    encoded_non_tensor: dict[str, Any] = field(default_factory=dict)
    storage_group_id: str | None = None

    def __len__(self) -> int:
        return self.batch_size


@dataclass(frozen=True)
class RawDestination:
    """The caller's memory that a member is read into."""

    ptr: int
    size: int
    owner: Any
    pre_registered: bool = False


def raw_destination(ptr: int, size: int, owner: Any, *, pre_registered: bool = False) -> RawDestination:
    """Memory at an address, which the owner keeps alive."""
    return RawDestination(ptr, size, owner, pre_registered)


def is_dataproto_ref_handle(value: Any) -> bool:
    """Whether it is a result of `export_dataproto_ref`."""
    return isinstance(value, Mapping) and value.get("type") == DATAPROTO_REF_HANDLE_TYPE


def export_dataproto_ref(ref: MooncakeDataProtoRef) -> dict[str, Any]:
    """A reference as JSON-compatible data."""
    if not isinstance(ref, MooncakeDataProtoRef):
        raise TypeError(f"expected MooncakeDataProtoRef, got {type(ref).__name__}")
    handle: dict[str, Any] = {
        "type": DATAPROTO_REF_HANDLE_TYPE,
        "version": DATAPROTO_REF_HANDLE_VERSION,
        "kind": "bundle_stages",
        "batch_size": ref.batch_size,
        "namespace": ref.namespace,
        "partition": ref.partition,
        "global_indexes": ref.global_indexes,
        "stage_refs": {stage: {"manifest_key": it.manifest_key} for stage, it in ref.stage_refs.items()},
        "field_index": {
            name: {"stage": it.stage, "member": it.member, "section": it.section}
            for name, it in ref.field_index.items()
        },
        "meta_info": _json_safe(ref.meta_info),
        "encoded_non_tensor": _json_safe(ref.encoded_non_tensor),
    }
    if ref.storage_group_id is not None:
        handle["storage_group_id"] = ref.storage_group_id
    return handle


def import_dataproto_ref(handle: Any) -> MooncakeDataProtoRef:
    """The reference from exported data."""
    if isinstance(handle, MooncakeDataProtoRef):
        return handle
    if not is_dataproto_ref_handle(handle):
        raise ValueError("not a Mooncake DataProto ref handle")
    if handle.get("version") != DATAPROTO_REF_HANDLE_VERSION:
        raise ValueError(f"unsupported Mooncake DataProto ref version: {handle.get('version')!r}")
    stages = {stage: RemoteBundleRef(it["manifest_key"]) for stage, it in handle["stage_refs"].items()}
    index = {
        name: DataProtoField(it["stage"], it["member"], it["section"])
        for name, it in handle["field_index"].items()
    }
    return MooncakeDataProtoRef(
        batch_size=int(handle["batch_size"]),
        namespace=handle.get("namespace"),
        partition=handle.get("partition"),
        global_indexes=handle.get("global_indexes"),
        stage_refs=stages,
        field_index=index,
        meta_info=dict(handle.get("meta_info") or {}),
        encoded_non_tensor=dict(handle.get("encoded_non_tensor") or {}),
        storage_group_id=handle.get("storage_group_id"),
    )


export_ref = export_dataproto_ref
import_ref = import_dataproto_ref


class MooncakeBundleTransfer:
    """Writes and reads structured objects.

    Any object with `put`, `get` and `remove` is a store. The zero-copy calls are used if it has them.
    Results have their own memory, so that `buffer_pool` is not needed and has no effect.
    """

    def __init__(
        self,
        store: Any,
        key_prefix: str = "bundle",
        default_chunk_bytes: int = CHUNK_BYTES,
        buffer_pool: Any = None,
    ):
        self.store = store
        self.buffer_pool = buffer_pool
        self._bundles = Bundles(store, key_prefix, default_chunk_bytes)
        self.key_prefix = self._bundles.prefix
        self.default_chunk_bytes = default_chunk_bytes

    # Bundles

    def put_bundle(
        self,
        meta: Any,
        buffers: Mapping[str, Any],
        partition: str = "default",
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        max_inflight_put: int | None = None,
        config: Any = None,
    ) -> RemoteBundleRef:
        """Write metadata and named buffers of bytes."""
        return self._bundles.put(meta, buffers, partition, chunk_bytes, config)

    def remove_bundle(self, ref: Any) -> None:
        """Remove a bundle. A missing bundle is not an error."""
        self._bundles.remove(ref)

    # Objects

    def put_structured_object(
        self,
        payload: StructuredObjectPayload,
        partition: str = "default",
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        max_inflight_put: int | None = None,
        config: Any = None,
    ) -> RemoteBundleRef:
        """Write an object: its members may be bytes, arrays and tensors."""
        if payload.buffers is None:
            raise TypeError("a structured object needs buffers")
        reserved = {_FIELDS_KEY, "layout"} & set(payload.metadata)
        if reserved:
            raise ValueError(f"metadata uses reserved keys: {sorted(reserved)}")
        members, fields = {}, {}
        for name, value in payload.buffers.items():
            members[name], fields[name] = _flatten(name, value)
        meta = {"layout": "structured", **payload.metadata, _FIELDS_KEY: fields}
        text = json.dumps(meta, separators=(",", ":")).encode()
        return self._bundles.put(text, members, partition, chunk_bytes, config)

    def put_object(self, obj: Any, **options: Any) -> RemoteBundleRef:
        """Write a mapping of members, or a single value."""
        is_many = isinstance(obj, Mapping)
        metadata = {} if is_many else {_SINGLE_KEY: True}
        members = obj if is_many else {"value": obj}
        return self.put_structured_object(StructuredObjectPayload(metadata, members), **options)

    def get_object(self, ref: Any) -> Any:
        """Read an object of `put_object`. Members that were bytes are arrays of bytes."""
        result = self.materialize(self.read_spec(ref))
        return result.objects["value"] if result.metadata.get(_SINGLE_KEY) else result.objects

    def read_spec(self, ref: Any) -> StructuredObjectReadSpec:
        """A selection of the whole object, to be narrowed."""
        return StructuredObjectReadSpec(ref)

    def materialize(self, spec: StructuredObjectReadSpec) -> StructuredObjectResult:
        """Read an object."""
        return self.materialize_into(spec, {})

    def materialize_into(
        self, spec: StructuredObjectReadSpec, destinations: Mapping[str, Any]
    ) -> StructuredObjectResult:
        """Read an object; members with a destination are read there."""
        manifest = self._bundles.manifest(spec.ref)
        meta = json.loads(self._bundles.meta(manifest))
        fields = meta.pop(_FIELDS_KEY)
        meta.pop("layout", None)
        names = tuple(fields) if spec.members is None else spec.members
        if not names:
            raise ValueError("no member is selected")
        asked = {*names, *(name for name, _ in spec.member_slices), *destinations}
        unknown = sorted(asked - set(fields))
        if unknown:
            raise KeyError(f"unknown bundle buffers: {unknown}")
        plans = [_Plan(fields[name], spec.member_slice(name)) for name in names]
        targets = [
            _target(name, plan, destinations.get(name)) for name, plan in zip(names, plans, strict=True)
        ]
        wanted = [
            (manifest["buffers"][name], plan.offset, plan.length)
            for name, plan in zip(names, plans, strict=True)
        ]
        read = self._bundles.read(wanted, targets)
        objects = {}
        for name, plan, data in zip(names, plans, read, strict=True):
            destination = destinations.get(name)
            value = plan.finish(data)
            if isinstance(destination, np.ndarray) and not np.shares_memory(destination, data):
                destination[...] = value
            objects[name] = value if destination is None else destination
        return StructuredObjectResult(meta, objects)

    @staticmethod
    def release_result(result: Any) -> None:
        """Release a result. It has its own memory, which the garbage collector frees."""

    # Batches

    def put(
        self,
        data: Any,
        *,
        type: str = "dataproto",
        namespace: str | None = None,
        partition: str | None = None,
        stage: str = "default",
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        config: Any = None,
        field_schemas: Mapping[str, FieldSchema] | None = None,
    ) -> MooncakeDataProtoRef:
        """Write a batch.

        With `type="dataproto"` it is an object or mapping with `batch`, `non_tensor_batch` and `meta_info`.
        With `type="dict"` it is flat, and its values with one entry per row are fields.
        """
        schemas = field_schemas or {}
        parts = _split(data, type, schemas)
        groups = getattr(config, "group_ids", None)
        if groups and len(groups) > 1:
            raise ValueError(f"expected one group id for a batch, not {len(groups)}")
        ref = MooncakeDataProtoRef(
            batch_size=parts.rows,
            namespace=namespace,
            partition=partition,
            meta_info=parts.meta_info,
            storage_group_id=groups[0] if groups else None,
        )
        return self._put_stage(ref, parts, stage, chunk_bytes, config, schemas)

    def put_dataproto(self, data: Any, **options: Any) -> MooncakeDataProtoRef:
        """`put(data, type="dataproto")`."""
        return self.put(data, type="dataproto", **options)

    def get(
        self,
        ref: Any,
        *,
        type: str = "dataproto",
        fields: Sequence[str] | None = None,
        batch_fields: Sequence[str] | None = None,
        non_tensor_fields: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
        data_cls: Any = None,
        destinations: Mapping[str, Any] | None = None,
        rows: Any = None,
    ) -> Any:
        """Read a batch, or some fields, metadata keys or rows of it."""
        _check_type(type)
        ref = import_dataproto_ref(ref)
        names = _wanted(ref, fields, batch_fields, non_tensor_fields)
        picked = _Rows(rows, ref.batch_size)
        sections = self._read_fields(ref, names, picked, destinations or {})
        keys = ref.meta_info.keys() if meta_info_keys is None else meta_info_keys
        meta = {key: ref.meta_info[key] for key in keys}
        if type == "dict":
            return {**sections["batch"], **sections["non_tensor_batch"], **meta}
        if data_cls is not None:
            return data_cls(
                batch=sections["batch"], non_tensor_batch=sections["non_tensor_batch"], meta_info=meta
            )
        return {**sections, "meta_info": meta}

    def get_dataproto(self, ref: Any, **options: Any) -> Any:
        """`get(ref, type="dataproto")`."""
        return self.get(ref, type="dataproto", **options)

    def append_dataproto_fields(
        self,
        ref: Any,
        data: Any,
        *,
        stage: str,
        overwrite: bool = False,
        type: str = "dataproto",
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        config: Any = None,
        field_schemas: Mapping[str, FieldSchema] | None = None,
    ) -> MooncakeDataProtoRef:
        """Write more fields of a batch as a separate stage. The old reference stays valid."""
        ref = import_dataproto_ref(ref)
        schemas = field_schemas or {}
        parts = _split(data, type, schemas)
        if stage in ref.stage_refs:
            raise ValueError(f"the batch already has a stage {stage!r}")
        if (parts.batch or parts.rest) and parts.rows != ref.batch_size:
            raise ValueError(f"the fields have {parts.rows} rows, and the batch {ref.batch_size}")
        known = sorted({*parts.batch, *parts.rest} & set(ref.field_index))
        if known and not overwrite:
            raise ValueError(f"the batch already has these fields: {known}")
        merged = replace(ref, meta_info={**ref.meta_info, **parts.meta_info})
        return self._put_stage(merged, parts, stage, chunk_bytes, config, schemas)

    def cleanup_dataproto_append(self, previous: Any, appended: Any) -> None:
        """Remove the fields that an append has added."""
        old, new = import_dataproto_ref(previous), import_dataproto_ref(appended)
        for stage, bundle in new.stage_refs.items():
            if stage not in old.stage_refs:
                self._bundles.remove(bundle)

    def cleanup_dataproto(self, ref: Any) -> None:
        """Remove a batch, leased or not."""
        for bundle in import_dataproto_ref(ref).stage_refs.values():
            self._bundles.remove(bundle)

    def dataproto_manifest_view(self, ref: Any) -> dict[str, Any]:
        """The contents of a batch."""
        ref = import_dataproto_ref(ref)
        stages = {}
        for stage, bundle in ref.stage_refs.items():
            manifest = self._bundles.manifest(bundle)
            sizes = {name: spec["bytes"] for name, spec in manifest["buffers"].items()}
            stages[stage] = {"manifest_key": bundle.manifest_key, "members": sizes}
        fields = {
            name: {"stage": it.stage, "member": it.member, "section": it.section}
            for name, it in ref.field_index.items()
        }
        return {"batch_size": ref.batch_size, "stages": stages, "fields": fields, "meta_info": ref.meta_info}

    def _put_stage(
        self,
        ref: MooncakeDataProtoRef,
        parts: "_Parts",
        stage: str,
        chunk_bytes: int | None,
        config: Any,
        schemas: Mapping[str, FieldSchema],
    ) -> MooncakeDataProtoRef:
        members: dict[str, Any] = {}
        index, encoded = dict(ref.field_index), dict(ref.encoded_non_tensor)
        for name, value in parts.batch.items():
            members[f"batch.{name}"] = value
            index[name] = DataProtoField(stage, f"batch.{name}", "batch")
        for name, rows in parts.rest.items():
            member = f"non_tensor_batch.{name}"
            try:
                buffers, description = encode(rows, schemas.get(name, FieldSchema()))
            except (TypeError, ValueError) as error:
                raise error.__class__(f"field {name!r}: {error}") from error
            members |= {f"{member}.{suffix}": buffer for suffix, buffer in buffers.items()}
            index[name] = DataProtoField(stage, member, "non_tensor_batch")
            encoded[name] = {**description, "buffers": list(buffers)}
        payload = StructuredObjectPayload({"meta_info": _json_safe(parts.meta_info)}, members)
        bundle = self.put_structured_object(payload, ref.partition or "default", chunk_bytes, config=config)
        stages = {**ref.stage_refs, stage: bundle}
        return replace(ref, stage_refs=stages, field_index=index, encoded_non_tensor=encoded)

    def _read_fields(
        self,
        ref: MooncakeDataProtoRef,
        names: Sequence[str],
        picked: "_Rows",
        destinations: Mapping[str, Any],
    ) -> dict[str, dict[str, Any]]:
        sections: dict[str, dict[str, Any]] = {"batch": {}, "non_tensor_batch": {}}
        for stage, bundle in ref.stage_refs.items():
            here = {name: ref.field_index[name] for name in names if ref.field_index[name].stage == stage}
            if not here:
                continue
            spec = self.read_spec(bundle)
            members, into = [], {}
            for name, where in here.items():
                if where.section == "batch":
                    members.append(where.member)
                    if picked.part is not None:
                        spec = spec.slice_member(
                            where.member, 0, picked.part.start, picked.part.end, picked.part.step
                        )
                    if name in destinations:
                        into[where.member] = destinations[name]
                else:
                    members += [f"{where.member}.{it}" for it in ref.encoded_non_tensor[name]["buffers"]]
            objects = self.materialize_into(spec.select_members(members), into).objects
            for name, where in here.items():
                if where.section == "batch":
                    value = objects[where.member]
                    sections["batch"][name] = value if picked.part is not None else picked.take(value)
                else:
                    description = ref.encoded_non_tensor[name]
                    buffers = {it: objects[f"{where.member}.{it}"] for it in description["buffers"]}
                    sections["non_tensor_batch"][name] = picked.take(decode(buffers, description))
        return sections


@dataclass
class _Parts:
    """The parts of a batch."""

    rows: int
    batch: dict[str, Any]
    rest: dict[str, Any]
    meta_info: dict[str, Any]


def _check_type(type: str) -> None:
    if type not in ("dataproto", "dict"):
        raise ValueError(f"unsupported Mooncake payload type: {type!r}")


def _split(data: Any, type: str, schemas: Mapping[str, FieldSchema]) -> _Parts:
    _check_type(type)
    if type == "dict":
        return _split_flat(data, schemas)
    batch, rest, meta = (_section(data, name) for name in _SECTIONS)
    return _Parts(_rows_of({**batch, **rest}), batch, rest, meta)


def _section(data: Any, name: str) -> dict[str, Any]:
    # The batch of a DataProto is a TensorDict, which has no truth value.
    found = data.get(name) if isinstance(data, Mapping) else getattr(data, name, None)
    return {} if found is None else dict(found.items())


def _split_flat(data: Mapping[str, Any], schemas: Mapping[str, FieldSchema]) -> _Parts:
    section = {}
    for name, schema in schemas.items():
        wanted = schema.metadata.get("section")
        if wanted is not None and wanted not in _SECTIONS:
            raise ValueError(f"field {name!r}: unknown section {wanted!r}")
        if name in data:
            section[name] = wanted or "non_tensor_batch"
    fixed = {name: data[name] for name, where in section.items() if where != "meta_info"}
    free = {name: value for name, value in data.items() if name not in section and _length(value) is not None}
    arrays = {name: value for name, value in free.items() if _is_array(value)}
    rows = _rows_of(fixed) if fixed else next((_length(it) for it in (arrays or free).values()), 0) or 0
    parts = _Parts(rows, {}, {}, {})
    for name, value in data.items():
        where = section.get(name)
        if where is None:
            is_field = name in free and _length(value) == rows
            where = ("batch" if _is_array(value) else "non_tensor_batch") if is_field else "meta_info"
        target = {"batch": parts.batch, "non_tensor_batch": parts.rest, "meta_info": parts.meta_info}[where]
        target[name] = value
    return parts


def _is_array(value: Any) -> bool:
    return is_tensor(value) or (isinstance(value, np.ndarray) and not value.dtype.hasobject)


def _length(value: Any) -> int | None:
    """The number of rows, if there are any."""
    if is_tensor(value) or isinstance(value, np.ndarray):
        return int(value.shape[0]) if len(value.shape) else None
    return len(value) if isinstance(value, (list, tuple)) else None


def _rows_of(fields: Mapping[str, Any]) -> int:
    counts = {name: _length(value) for name, value in fields.items()}
    for name, count in counts.items():
        if count is None:
            raise ValueError(f"field {name!r} has no rows")
    if len(set(counts.values())) > 1:
        raise ValueError(f"the fields differ in their number of rows: {counts}")
    return next(iter(counts.values()), 0) or 0


def _wanted(
    ref: MooncakeDataProtoRef,
    fields: Sequence[str] | None,
    batch_fields: Sequence[str] | None,
    non_tensor_fields: Sequence[str] | None,
) -> list[str]:
    if fields is not None and (batch_fields is not None or non_tensor_fields is not None):
        raise ValueError("fields cannot be combined with batch_fields or non_tensor_fields")
    if fields is None:
        fields = []
        for section, chosen in (("batch", batch_fields), ("non_tensor_batch", non_tensor_fields)):
            every = [name for name, it in ref.field_index.items() if it.section == section]
            fields += every if chosen is None else list(chosen)
    unknown = [name for name in fields if name not in ref.field_index]
    if unknown:
        raise KeyError(f"unknown DataProto fields: {unknown}")
    return list(fields)


class _Rows:
    """The rows to read: a contiguous part, or some by their index."""

    def __init__(self, rows: Any, count: int):
        self.part: StructuredMemberSlice | None = None
        self.indices: list[int] | None = None
        if isinstance(rows, StructuredMemberSlice):
            if rows.axis != 0:
                raise ValueError("rows are along axis 0")
            rows = slice(rows.start, rows.end, rows.step)
        if isinstance(rows, slice):
            start, end, step = rows.indices(count)
            if step <= 0:
                raise ValueError("the step of rows must be positive")
            self.part = StructuredMemberSlice(0, start, max(start, end), step)
            self.indices = list(range(start, max(start, end), step))
        elif rows is not None:
            self.indices = [int(it) for it in rows]
            for index in self.indices:
                if not -count <= index < count:
                    raise IndexError(f"row {index} is out of range for {count} rows")

    def take(self, value: Any) -> Any:
        if self.indices is None:
            return value
        if isinstance(value, list):
            return [value[index] for index in self.indices]
        return value[self.indices]


class _Plan:
    """How to read one member: its bytes, and their conversion."""

    def __init__(self, description: Mapping[str, Any], part: StructuredMemberSlice | None):
        self.encoding = description["encoding"]
        self.description = description
        self.shape = tuple(int(it) for it in description["shape"])
        self.part = part
        item = self._item_bytes()
        count = int(np.prod(self.shape, dtype=np.int64))
        self.offset, self.length = 0, count * item
        if part is not None:
            if not -len(self.shape) <= part.axis < len(self.shape):
                raise ValueError(f"axis {part.axis} is out of range for shape {self.shape}")
            if part.axis % len(self.shape) == 0:
                # Only the rows between the first and the last are read.
                start, end, _ = slice(part.start, part.end, part.step).indices(self.shape[0])
                row = count // self.shape[0] * item if self.shape[0] else 0
                self.offset, self.length = start * row, max(0, end - start) * row

    def _item_bytes(self) -> int:
        if self.encoding == "torch_tensor":
            return int(self.description["item_bytes"])
        return int(dtype_of(self.description["dtype"]).itemsize)

    def output_shape(self) -> tuple[int, ...]:
        if self.part is None:
            return self.shape
        axis = self.part.axis % len(self.shape)
        span = len(range(*slice(self.part.start, self.part.end, self.part.step).indices(self.shape[axis])))
        return (*self.shape[:axis], span, *self.shape[axis + 1 :])

    def is_in_place(self) -> bool:
        """Whether the bytes that are read are those of the result."""
        if self.part is None:
            return True
        return self.part.axis % len(self.shape) == 0 and self.part.step == 1

    def finish(self, data: Bytes) -> Any:
        shape = self.shape
        part = self.part
        if part is not None and part.axis % len(shape) == 0:
            row = int(np.prod(shape[1:], dtype=np.int64)) * self._item_bytes()
            shape = (data.nbytes // row if row else 0, *shape[1:])
        if self.encoding == "torch_tensor":
            value = tensor_of(data, {"dtype": self.description["dtype"], "shape": shape})
        else:
            value = data.view(dtype_of(self.description["dtype"])).reshape(shape)
        if part is None or self.is_in_place():
            return value
        axis = part.axis % len(shape)
        cut = slice(None, None, part.step) if axis == 0 else slice(part.start, part.end, part.step)
        return value[(slice(None),) * axis + (cut,)]


def _target(name: str, plan: _Plan, destination: Any) -> Bytes | None:
    """The memory of a destination, if the member can be read into it directly."""
    if destination is None:
        return None
    if isinstance(destination, RawDestination):
        if destination.size < plan.length or not plan.is_in_place():
            raise ValueError(f"structured field {name} needs {plan.length} bytes, not {destination.size}")
        return _memory(destination.ptr, plan.length)
    expected = plan.output_shape()
    if not isinstance(destination, np.ndarray) or destination.shape != expected:
        shape = getattr(destination, "shape", None)
        raise ValueError(
            f"structured ndarray field {name} destination shape mismatch: expected {expected}, got {shape}"
        )
    if destination.dtype != dtype_of(plan.description["dtype"]):
        raise ValueError(f"structured ndarray field {name} destination has type {destination.dtype}")
    if plan.is_in_place() and destination.flags.c_contiguous and destination.flags.writeable:
        return destination.reshape(-1).view(np.uint8)
    return None


def _memory(address: int, size: int) -> Bytes:
    import ctypes

    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def _flatten(name: str, value: Any) -> tuple[Any, dict[str, Any]]:
    """The bytes of a member, and their description."""
    if is_tensor(value):
        data, description = tensor_bytes(value)
        return data, {"encoding": "torch_tensor", **description, "item_bytes": value.element_size()}
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value)
        return array, {"encoding": "ndarray", "dtype": dtype_name(value.dtype), "shape": list(value.shape)}
    try:
        size = memoryview(value).nbytes
    except TypeError:
        raise TypeError(f"{name} must be bytes-like, got {type(value).__name__}") from None
    return value, {"encoding": "bytes", "dtype": "|u1", "shape": [size]}


def _json_safe(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return _json_safe(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _json_safe(it) for key, it in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_safe(it) for it in value]
    raise TypeError(f"DataProto ref handles support only JSON-safe values, got {type(value).__name__}")


__all__ = [
    "DATAPROTO_REF_HANDLE_TYPE",
    "DATAPROTO_REF_HANDLE_VERSION",
    "DEFAULT_BUNDLE_CHUNK_BYTES",
    "BundleTransferPolicy",
    "DataProtoField",
    "FieldSchema",
    "MooncakeBundleTransfer",
    "MooncakeDataProtoRef",
    "RawDestination",
    "RemoteBundleRef",
    "StructuredMemberSlice",
    "StructuredObjectPayload",
    "StructuredObjectReadSpec",
    "StructuredObjectResult",
    "export_dataproto_ref",
    "export_ref",
    "import_dataproto_ref",
    "import_ref",
    "is_dataproto_ref_handle",
    "raw_destination",
]
