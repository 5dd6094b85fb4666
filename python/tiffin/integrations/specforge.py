"""SpecForge's `FeatureStore` on ours: its pipelines use it after a change of the constructor.

    from tiffin.integrations.specforge import TiffinFeatureStore
    store = TiffinFeatureStore("run-7", address="master:7500", retain_on_release=True)

If SpecForge is installed, refs, specs and handles are its own records, and the class is one of its
`FeatureStore`s. Otherwise they are those of `tiffin.features`, which have the same fields.
"""

from __future__ import annotations

import dataclasses
import importlib
import uuid
from collections.abc import Mapping
from typing import Any

import tiffin
from tiffin.features import FeatureHandle, FeatureSpec, FeatureStore, Mooncake, SampleRef

#: The modules of SpecForge's interface and records.
_MODULES = ("specforge.runtime.data_plane.feature_store", "specforge.runtime.contracts")


def _of_specforge(name: str) -> Any:
    for module in _MODULES:
        try:
            found = getattr(importlib.import_module(module), name, None)
        except ImportError:
            continue
        if found is not None:
            return found
    return None


_Base = _of_specforge("FeatureStore")
_Ref = _of_specforge("SampleRef")
_Spec = _of_specforge("FeatureSpec")
_Handle = _of_specforge("FeatureHandle")


class TiffinFeatureStore(FeatureStore, *(() if _Base is None else (_Base,))):  # type: ignore[misc]
    """A `tiffin.features.FeatureStore` with SpecForge's records and arguments.

    `store` may be a Mooncake store after its setup, as in SpecForge: the tensors are then stored there, and
    the index is ours. `auth` may be SpecForge's `AuthPolicy`. `setup_kwargs`, which SpecForge passes to
    Mooncake, is accepted and ignored.

    >>> store = TiffinFeatureStore("run-7", memory="64MiB")
    >>> ref = store.put({"ids": bytes(8)}, sample_id="s0", metadata={"run_id": "run-7"})
    >>> tensors, handle = store.get(ref, device="cpu")
    >>> store.release(handle, reason="consumed")
    >>> store.health()["resident_samples"]
    0
    """

    def __init__(
        self,
        store_id: str | None = None,
        *,
        store: Any = None,
        setup_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if store is not None and not isinstance(store, tiffin.Store):
            options.setdefault("backend", Mooncake(store))
            store = None
        super().__init__(store_id or uuid.uuid4().hex[:8], store=store, **options)

    def put(
        self, tensors: Mapping[str, Any], *, sample_id: str, metadata: Any = None, replace: bool = True
    ) -> Any:
        """Store a sample, and return SpecForge's ref of it."""
        ref = super().put(tensors, sample_id=sample_id, metadata=metadata, replace=replace)
        return _to_specforge(ref)

    # The name of the first parameter is SpecForge's.
    def get(  # type: ignore[override]
        self, sample_ref: Any, *, device: Any = "cpu", names: Any = None, **options: Any
    ) -> Any:
        """The tensors of a sample, and SpecForge's handle."""
        tensors, handle = super().get(sample_ref, device=str(device), names=names or None, **options)
        return tensors, _record(_Handle, handle)

    def put_many(self, samples: Any, **options: Any) -> Any:
        """Store the samples of a batch, and return SpecForge's refs of them."""
        refs = super().put_many(samples, **options)
        return [_to_specforge(ref) if isinstance(ref, SampleRef) else ref for ref in refs]

    def abort_all(self) -> None:
        """Free every sample of this store."""
        self.drop_run()


#: SpecForge's values for empty fields whose records have no default.
_UNSAID = {"run_id": "unknown", "source_task_id": None, "strategy": "eagle3"}


def _to_specforge(ref: SampleRef) -> Any:
    if _Ref is None:
        return ref
    specs = {name: _record(_Spec, spec) for name, spec in ref.feature_specs.items()}
    ref = dataclasses.replace(ref, feature_specs=specs)
    unsaid: dict[str, Any] = {
        field.name: _UNSAID.get(field.name, field.default)
        for field in dataclasses.fields(_Ref)
        if getattr(ref, field.name, None) == "" and field.name in _SAID
    }
    return _record(_Ref, dataclasses.replace(ref, **unsaid))


#: Fields that a producer may leave empty.
_SAID = (*_UNSAID, "target_model_version", "draft_weight_version", "tokenizer_version")


def _record(kind: Any, ours: SampleRef | FeatureSpec | FeatureHandle) -> Any:
    if kind is None:
        return ours
    known = {field.name for field in dataclasses.fields(kind)}
    fields = {field.name: getattr(ours, field.name) for field in dataclasses.fields(ours)}
    return kind(**{name: value for name, value in fields.items() if name in known})
