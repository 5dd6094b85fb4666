"""A storage backend for TransferQueue: the fields of its samples in a Tiffin cluster.
`docs/integrations/transfer-queue.md` has the settings, and how verl uses them.

TransferQueue knows the backends that were registered in each of its processes. `register()` adds
`TiffinStore`; importing this module where TransferQueue is installed does so too. In a worker of Ray:

    ray.init(runtime_env={"worker_process_setup_hook": "tiffin.integrations.transfer_queue.register"})

A field of a sample is one object, with a pin, so that no data of a training step is evicted. A tensor is
stored as its bytes; anything else as TransferQueue's own codec encodes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tiffin
from tiffin._extras import need

if TYPE_CHECKING:
    StorageKVClient = object
else:
    try:
        from transfer_queue.storage.clients.base import StorageKVClient
    except ImportError:
        StorageKVClient = object

__all__ = ["TiffinStorageClient", "register"]

#: The name of the backend in TransferQueue's configuration.
NAME = "TiffinStore"
#: Threads that encode and decode values that are not tensors.
_CODEC_THREADS = 4
_SETTINGS = {"address", "namespace", "token", "timeout", "run", "pin", "wait", "client_name"}


class TiffinStorageClient(StorageKVClient):
    """The implementation of TransferQueue's `StorageKVClient`."""

    def __init__(self, config: Mapping[str, Any], *, store: Any = None) -> None:
        if StorageKVClient is not object:
            super().__init__(config)  # type: ignore[call-arg]
        config = dict(config)
        if unknown := sorted(set(config) - _SETTINGS):
            raise ValueError(
                f"unknown settings of `{NAME}`: {unknown}\n\nhint: it may have {sorted(_SETTINGS)}"
            )
        known = {
            name: config[name] for name in ("namespace", "token", "timeout") if config.get(name) is not None
        }
        self._is_own = store is None
        self.store = tiffin.connect(config.get("address"), **known) if store is None else store
        # TransferQueue counts samples from zero in every run.
        self.owner = f"transfer-queue/{config.get('run', '')}"
        self._pin, self._wait = bool(config.get("pin", True)), bool(config.get("wait", False))

    def put(self, keys: list[str], values: list[Any]) -> list[dict[str, int] | None]:
        """Store the fields of samples; existing ones are replaced. For each key the size of an encoded value,
        or `None` for a tensor."""
        if len(keys) != len(values):
            raise ValueError(f"{len(keys)} keys do not belong to {len(values)} values")
        torch = _torch()
        sources: list[Any] = [None] * len(values)
        others = []
        for at, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                sources[at] = _bytes_of(torch, value)
            else:
                others.append(at)
        sizes = dict.fromkeys(others, 0)
        if others:
            encoded, lengths = _codec().batch_encode_into(
                [values[at] for at in others],
                lambda lengths: [torch.empty(length, dtype=torch.uint8) for length in lengths],
                num_workers=_CODEC_THREADS,
            )
            for at, buffer, length in zip(others, encoded, lengths, strict=True):
                sources[at], sizes[at] = buffer, int(length)
        if keys:
            self.store.put(
                self._names(keys),
                sources,
                pin=self._pin,
                owner=self.owner if self._pin else "",
                wait=self._wait,
            )
        return [{"packed_size": sizes[at]} if at in sizes else None for at in range(len(keys))]

    def get(
        self,
        keys: list[str],
        shapes: Sequence[Any] | None = None,
        dtypes: Sequence[Any] | None = None,
        custom_backend_meta: Sequence[Any] | None = None,
    ) -> list[Any]:
        """The values of keys. A key with a type is a tensor; one without is decoded."""
        if shapes is None or dtypes is None or not len(keys) == len(shapes) == len(dtypes):
            raise ValueError("each key needs a shape and a type")
        if not keys:
            return []
        torch, meta = _torch(), list(custom_backend_meta or [])
        others = [at for at, dtype in enumerate(dtypes) if dtype is None]
        if others and len(meta) != len(keys):
            raise ValueError("values that are not tensors need the sizes that `put` has returned")
        targets = [
            torch.empty(meta[at]["packed_size"], dtype=torch.uint8)
            if dtype is None
            else torch.empty(tuple(shapes[at]), dtype=dtype)
            for at, dtype in enumerate(dtypes)
        ]
        read = self.store.get_into(self._names(keys), [_bytes_of(torch, target) for target in targets])
        for key, got, target in zip(keys, read, targets, strict=True):
            if got != target.numel() * target.element_size():
                raise ValueError(f"`{key}` has {got} bytes, and its shape and type need {target.nbytes}")
        if others:
            decoded = _codec().batch_decode_from([targets[at] for at in others])
            for at, value in zip(others, decoded, strict=True):
                targets[at] = value
        return targets

    def clear(self, keys: list[str], custom_backend_meta: Any = None) -> None:
        """Delete the values of keys; missing ones are ignored."""
        if keys:
            self.store.delete(self._names(keys), force=True)

    def close(self) -> None:
        if self._is_own:
            self.store.close()

    def _names(self, keys: Sequence[str]) -> list[str]:
        return [f"{self.owner}/{key}" for key in keys]


def register() -> None:
    """Add the backend `TiffinStore` to TransferQueue in this process. It may be called again."""
    clients = _transfer_queue("storage.clients.base")
    managers = _transfer_queue("storage.managers.base")
    bootstrap = _transfer_queue("storage.bootstrap.provider")

    class TiffinStorageManager(managers.KVStorageManager):  # type: ignore[misc, name-defined]
        """TransferQueue's manager for stores of keys and values, with this client."""

        def __init__(self, controller_info: Any, config: Mapping[str, Any], zmq_context: Any = None) -> None:
            super().__init__(controller_info, {**config, "client_name": "TiffinStorageClient"})

    clients.StorageClientFactory.register("TiffinStorageClient")(TiffinStorageClient)
    managers.StorageManagerFactory.register(NAME)(TiffinStorageManager)
    # The cluster runs already: TransferQueue has nothing to start, and gets its address back.
    bootstrap.StorageBootstrapProvider.register_provider(NAME)(
        lambda conf: {"address": conf.backend[NAME].address}
    )


def _torch() -> Any:
    return need("torch", "tiffin.integrations.transfer_queue", "torch")


def _codec() -> Any:
    return _transfer_queue("utils.serial_utils")


def _transfer_queue(module: str) -> Any:
    user = "tiffin.integrations.transfer_queue"
    return need(f"transfer_queue.{module}", user, package="TransferQueue")


def _bytes_of(torch: Any, value: Any) -> Any:
    """The memory of a tensor as bytes: all types and shapes, also those without elements."""
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


if StorageKVClient is not object:
    register()
