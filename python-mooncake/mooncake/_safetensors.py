"""Tensors in safetensors files. The package `safetensors` is imported at its first use."""

from typing import Any

from tiffin._native import mooncake as _native

from mooncake._codes import FILE_NOT_FOUND, INVALID


def _text(value: Any) -> str:
    """Text, or the error that Mooncake raises for anything else."""
    if not isinstance(value, str):
        raise RuntimeError(f"Unable to cast Python instance of type {type(value)} to C++ type 'std::string'")
    return value


def save(store: Any, key: bytes, file_name: Any) -> int:
    """Write one tensor to a file."""
    if not _native.is_open(store):
        return INVALID
    path = key.decode(errors="surrogateescape") if file_name is None else _text(file_name)
    tensor = store.get_tensor(key)
    if tensor is None:
        return FILE_NOT_FOUND
    try:
        from safetensors.torch import save_file  # type: ignore[import-not-found,unused-ignore]

        save_file({key.decode(): tensor}, path)
    except Exception:
        return INVALID
    return 0


def load(store: Any, key: Any, file_name: str) -> Any:
    """Store one tensor of a file."""
    name = None if key is None else _text(key)
    if not _native.is_open(store):
        return None
    try:
        from safetensors.torch import load_file  # type: ignore[import-not-found,unused-ignore]

        found = load_file(file_name)
    # Missing and invalid files each raise their own kind of exception.
    except Exception:
        return None
    if not found:
        return None
    tensor = found[name] if name in found else next(iter(found.values()))
    return tensor if store.put_tensor(file_name if name is None else name, tensor) == 0 else None
