"""Bundles: named payloads of one object, in chunks, and a manifest that names them.

The keys of a bundle are `<prefix>/<partition>/<id>/…`. The manifest is written last and removed last, so
that a bundle that can be found is complete. A failed write removes the chunks that it has written.
"""

import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np  # type: ignore[import-not-found, unused-ignore]
import numpy.typing as npt  # type: ignore[import-not-found, unused-ignore]

from mooncake._codes import NOT_FOUND

CHUNK_BYTES = 67108864
MEMBERS_MAX = 1 << 16

_log = logging.getLogger(__name__)

Bytes: TypeAlias = npt.NDArray[np.uint8]

_CONFIG_FIELDS = (
    *("replica_num", "nof_replica_num", "dfs_replica_num", "soft_pin_action", "soft_pin_ttl_ms"),
    *("with_hard_pin", "preferred_segments", "preferred_segment", "prefer_alloc_in_same_node", "data_type"),
)


@dataclass(frozen=True)
class RemoteBundleRef:
    """The location of a bundle: the key of its manifest, and the manifest if it is known."""

    manifest_key: str
    manifest: Mapping[str, Any] = field(default_factory=dict)


class Bundles:
    """Writes, reads and removes bundles of a store.

    Any object with `put`, `get` and `remove` is a store. `batch_put_from`, `batch_get_into`,
    `get_into_ranges`, `register_buffer` and `batch_remove` are used if it has them.
    """

    def __init__(self, store: Any, key_prefix: str, chunk_bytes: int):
        self.store = store
        self.prefix = key_prefix.strip("/")
        if not self.prefix or any(ord(it) < 32 for it in self.prefix):
            raise ValueError("key_prefix must be a non-empty key prefix")
        self.chunk_bytes = checked_chunk(chunk_bytes)

    def put(
        self,
        meta: Any,
        buffers: Mapping[str, Any],
        partition: str = "default",
        chunk_bytes: int | None = None,
        config: Any = None,
    ) -> RemoteBundleRef:
        """Write a bundle."""
        chunk = self.chunk_bytes if chunk_bytes is None else checked_chunk(chunk_bytes)
        check_name(partition, "bundle partition")
        if len(buffers) > MEMBERS_MAX:
            raise ValueError(f"a bundle has at most {MEMBERS_MAX} buffers, not {len(buffers)}")
        object_id = f"{partition}/{uuid.uuid4().hex}"
        base = f"{self.prefix}/{object_id}"
        pieces: dict[str, Bytes] = {}
        specs = {}
        for name, value in buffers.items():
            check_name(name, "bundle buffer name")
            specs[name] = _cut(f"{base}/buffer/{name}", as_bytes(name, value), chunk, pieces)
        meta_spec = _cut(f"{base}/meta", as_bytes("meta", meta), None, pieces)
        manifest = {"version": 1, "layout": "bundle", "object_id": object_id}
        manifest = {**manifest, "meta": meta_spec, "buffers": specs}
        key = f"{base}/manifest"
        try:
            self.write(pieces, config)
            self.write({key: as_bytes("manifest", _compact(manifest))}, config)
        except BaseException:
            self._undo([*pieces, key])
            raise
        return RemoteBundleRef(key, manifest)

    def manifest(self, ref: Any) -> dict[str, Any]:
        """The manifest that a reference contains or names."""
        key, known = _parts_of(ref)
        return dict(known) if known else dict(json.loads(self.store.get(key)))

    def meta(self, manifest: Mapping[str, Any]) -> bytes:
        """The metadata of a bundle."""
        data: bytes = self.read([(manifest["meta"], 0, int(manifest["meta"]["bytes"]))])[0].tobytes()
        return data

    def read(
        self,
        wanted: Sequence[tuple[Mapping[str, Any], int, int]],
        into: Sequence[Bytes | None] | None = None,
    ) -> list[Bytes]:
        """Read a range of each payload, into the given memory if there is any."""
        targets = []
        whole: list[tuple[str, Bytes, int]] = []
        parts: list[tuple[str, Bytes, int, int]] = []
        for index, (spec, start, length) in enumerate(wanted):
            given = None if into is None else into[index]
            target = np.empty(length, np.uint8) if given is None else given
            targets.append(target)
            at = 0
            for chunk in spec["chunks"]:
                size = int(chunk["bytes"])
                first, last = max(start, at), min(start + length, at + size)
                if first < last:
                    piece = target[first - start : last - start]
                    if last - first == size:
                        whole.append((chunk["key"], piece, size))
                    else:
                        parts.append((chunk["key"], piece, first - at, size))
                at += size
        self._read_whole(whole)
        self._read_parts(parts)
        return targets

    def remove(self, ref: Any) -> None:
        """Remove a bundle. Missing keys are not an error."""
        try:
            manifest = self.manifest(ref)
        except ValueError:
            # The manifest is removed last: without it the bundle cannot be found.
            return
        specs = [manifest["meta"], *manifest["buffers"].values()]
        self.remove_keys([chunk["key"] for spec in specs for chunk in spec["chunks"]])
        self.remove_keys([_parts_of(ref)[0]])

    def write(self, pieces: Mapping[str, Bytes], config: Any) -> None:
        """Write all objects, or raise an error."""
        keys = [key for key, piece in pieces.items() if piece.nbytes]
        if not keys:
            return
        named = {} if config is None else {"config": config_for(config, len(keys))}
        if hasattr(self.store, "batch_put_from"):
            with _Registered(self.store, list(pieces.values())):
                codes = self.store.batch_put_from(
                    keys,
                    [pieces[key].ctypes.data for key in keys],
                    [pieces[key].nbytes for key in keys],
                    **named,
                )
        else:
            one = {} if config is None else {"config": config_for(config, 1)}
            codes = [self.store.put(key, pieces[key].data, **one) for key in keys]
        for key, code in zip(keys, codes, strict=True):
            if code:
                raise RuntimeError(f"put failed for {key}: {code}")

    def remove_keys(self, keys: Sequence[str]) -> None:
        """Remove objects, leased or not."""
        if not keys:
            return
        if hasattr(self.store, "batch_remove"):
            codes = self.store.batch_remove(list(keys), True)
        else:
            codes = [self._remove_one(key) for key in keys]
        failed = [
            (key, code) for key, code in zip(keys, codes, strict=True) if code not in (0, NOT_FOUND, None)
        ]
        if failed:
            raise RuntimeError(f"remove failed for {failed[0][0]}: {failed[0][1]}")

    def _undo(self, keys: Sequence[str]) -> None:
        """Remove the leftovers of a failed write. An error here must not hide that of the write."""
        try:
            self.remove_keys(keys)
        except Exception as error:
            _log.warning("parts of an incomplete bundle may remain: %s", error)

    def _remove_one(self, key: str) -> Any:
        try:
            return self.store.remove(key, True)
        except TypeError:
            return self.store.remove(key)

    def _read_whole(self, wanted: Sequence[tuple[str, Bytes, int]]) -> None:
        if not wanted:
            return
        if not hasattr(self.store, "batch_get_into"):
            for key, target, size in wanted:
                _fill(target, self.store.get(key), key, size)
            return
        with _Registered(self.store, [target for _, target, _ in wanted]):
            counts = self.store.batch_get_into(
                [key for key, _, _ in wanted],
                [target.ctypes.data for _, target, _ in wanted],
                [target.nbytes for _, target, _ in wanted],
            )
        for (key, _, size), count in zip(wanted, counts, strict=True):
            if count != size:
                raise RuntimeError(f"batch_get_into failed for {key}: expected {size}, got {count}")

    def _read_parts(self, wanted: Sequence[tuple[str, Bytes, int, int]]) -> None:
        if not wanted:
            return
        if not hasattr(self.store, "get_into_ranges"):
            for key, target, start, size in wanted:
                whole = np.empty(size, np.uint8)
                self._read_whole([(key, whole, size)])
                target[:] = whole[start : start + target.nbytes]
            return
        targets = [target for _, target, _, _ in wanted]
        with _Registered(self.store, targets):
            counts = self.store.get_into_ranges(
                [target.ctypes.data for target in targets],
                [[key] for key, _, _, _ in wanted],
                [[[0]]] * len(wanted),
                [[[start]] for _, _, start, _ in wanted],
                [[[target.nbytes]] for target in targets],
            )
        for (key, target, _, _), ((count,),) in zip(wanted, ((it[0],) for it in counts), strict=True):
            if count != target.nbytes:
                raise RuntimeError(f"get_into_ranges failed for {key}: expected {target.nbytes}, got {count}")


class _Registered:
    """Memory that is registered during a call, if the store has such a call."""

    def __init__(self, store: Any, arrays: Sequence[Bytes]):
        self._store = store
        self._arrays = [it for it in arrays if it.nbytes] if hasattr(store, "register_buffer") else []
        self._registered: list[int] = []

    def __enter__(self) -> None:
        for array in self._arrays:
            # A refusal means that the memory is already registered by its owner.
            if self._store.register_buffer(array.ctypes.data, array.nbytes) == 0:
                self._registered.append(array.ctypes.data)

    def __exit__(self, *_exc: Any) -> None:
        for address in self._registered:
            self._store.unregister_buffer(address)


def as_bytes(name: str, value: Any) -> Bytes:
    """The bytes of a buffer, in place if it is contiguous."""
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(f"{name} must be bytes-like, got {type(value).__name__}") from None
    view = view if view.c_contiguous else memoryview(view.tobytes())
    return np.frombuffer(view.cast("B") if view.nbytes else b"", np.uint8)


def config_for(config: Any, count: int) -> Any:
    """The configuration for this many keys. A single group name applies to each key."""
    groups = getattr(config, "group_ids", None)
    if not groups or count == len(groups):
        return config
    if len(groups) > 1:
        raise ValueError(f"expected one group id for the keys of an object, not {len(groups)}")
    made = type(config)()
    for name in _CONFIG_FIELDS:
        if hasattr(config, name):
            setattr(made, name, getattr(config, name))
    made.group_ids = list(groups) * count
    return made


def checked_chunk(chunk_bytes: int) -> int:
    """The checked size of a chunk."""
    if chunk_bytes <= 0:
        raise ValueError("chunk_bytes must be positive")
    return chunk_bytes


def check_name(name: str, what: str) -> None:
    """Check a component of a key, which must not contain a separator."""
    if not isinstance(name, str) or not name or "/" in name or any(ord(it) < 32 for it in name):
        raise ValueError(f"invalid {what}: {name!r}")


def _parts_of(ref: Any) -> tuple[str, Mapping[str, Any]]:
    if isinstance(ref, RemoteBundleRef):
        return ref.manifest_key, ref.manifest
    key = ref.get("manifest_key") if isinstance(ref, Mapping) else None
    if not key:
        raise ValueError("bundle ref must include manifest_key")
    return key, ref.get("manifest") or {}


def _cut(key: str, payload: Bytes, chunk: int | None, pieces: dict[str, Bytes]) -> dict[str, Any]:
    """Adds the chunks of a payload, and describes them."""
    total = payload.nbytes
    chunks: list[dict[str, Any]] = []
    if total and (chunk is None or total <= chunk):
        pieces[key] = payload
        chunks.append({"key": key, "bytes": total})
    elif total and chunk is not None:
        for index, start in enumerate(range(0, total, chunk)):
            piece = payload[start : start + chunk]
            pieces[f"{key}/chunk/{index}"] = piece
            chunks.append({"key": f"{key}/chunk/{index}", "bytes": piece.nbytes})
    return {"key": key, "bytes": total, "chunks": chunks}


def _fill(target: Bytes, value: bytes, key: str, size: int) -> None:
    if len(value) != size:
        raise RuntimeError(f"get failed for {key}: expected {size}, got {len(value)}")
    target[:] = np.frombuffer(value, np.uint8)


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
